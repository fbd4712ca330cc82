/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/param.h>
#include <time.h>
#include <unistd.h>

#include "ublk/control.h"

/* The kernel's own, which some of its drivers let out. */
#define ENOTSUPP 524

/* How often it is looked whether a command has become pointless. */
#define LOOK_NS 100000000

/* For how long a device that was deleted may be seen, and how often that is looked at: ever more
 * seldom. */
#define GONE_NS	      1000000000
#define FIRST_STEP_NS 500000
#define LAST_STEP_NS  10000000

/* For how long a command may wait for an idle tag in each queue. */
#define QUIESCE_MS 1000

static struct io_uring_sqe *new_sqe(struct ublk_control *c)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&c->ring);

	if (sqe)
		memset(sqe, 0, 2 * sizeof *sqe); /* SQE128 */
	return sqe;
}

/* The kernel's wait for a command of ours must end. */
static int cancel(struct ublk_control *c, uint64_t number)
{
	struct io_uring_sqe *sqe = new_sqe(c);
	int r;

	if (!sqe)
		return -EBUSY;
	io_uring_prep_cancel64(sqe, number, 0);
	sqe->user_data = ++c->sent;
	r = io_uring_submit(&c->ring);
	return r < 0 ? r : 0;
}

/*
 * Looks once for the answer to a command. False: it is not there yet. Answers to others, for which
 * nobody waits now, are left out.
 */
static bool answered(struct ublk_control *c, uint64_t number, int *answer)
{
	struct __kernel_timespec look = {.tv_nsec = LOOK_NS};
	struct io_uring_cqe *cqe;
	uint64_t found;
	int r = io_uring_wait_cqe_timeout(&c->ring, &cqe, &look);

	*answer = r;
	if (r < 0)
		return r != -ETIME && r != -EINTR;
	found = cqe->user_data;
	*answer = cqe->res < 0 ? cqe->res : 0;
	io_uring_cqe_seen(&c->ring, cqe);
	return found == number;
}

/*
 * The answer to a command. ended, if not NULL: gives up with -ECANCELED when that
 * becomes other than 0.
 */
static int answer(struct ublk_control *c, uint64_t number, const unsigned *ended)
{
	struct timespec now;
	time_t limit;
	bool cancelled = false;
	int r;

	clock_gettime(CLOCK_MONOTONIC, &now);
	limit = now.tv_sec + UBLK_CONTROL_LIMIT;
	while (now.tv_sec <= limit) {
		if (answered(c, number, &r))
			return cancelled && r < 0 ? -ECANCELED : r;
		if (ended && !cancelled && __atomic_load_n(ended, __ATOMIC_ACQUIRE)) {
			cancelled = true;
			r = cancel(c, number);
			if (r < 0)
				return r;
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
	}
	return -ETIME;
}

/* Sends a command, whose number is c->sent from then on. 0 or negative errno. */
static int send_command(struct ublk_control *c, uint32_t op, const struct ublksrv_ctrl_cmd *cmd)
{
	struct io_uring_sqe *sqe = new_sqe(c);
	int r;

	if (!sqe)
		return -EBUSY;
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = c->fd;
	sqe->cmd_op = op;
	sqe->user_data = ++c->sent;
	memcpy(sqe->cmd, cmd, sizeof *cmd);
	r = io_uring_submit(&c->ring);
	return r < 0 ? r : 0;
}

/* One command and its answer. ended: as for answer(). */
static int command_unless(struct ublk_control *c, uint32_t op, const struct ublksrv_ctrl_cmd *cmd,
	const unsigned *ended)
{
	int r = send_command(c, op, cmd);

	return r < 0 ? r : answer(c, c->sent, ended);
}

static int command(struct ublk_control *c, uint32_t op, const struct ublksrv_ctrl_cmd *cmd)
{
	return command_unless(c, op, cmd, NULL);
}

static int with_buffer(
	struct ublk_control *c, uint32_t op, uint32_t id, void *buffer, size_t length)
{
	return command(c, op,
		&(struct ublksrv_ctrl_cmd){.dev_id = id,
			.queue_id = (uint16_t)-1,
			.len = (uint16_t)length,
			.addr = (uintptr_t)buffer});
}

static int with_data(struct ublk_control *c, uint32_t op, uint32_t id, uint64_t data)
{
	return command(c, op,
		&(struct ublksrv_ctrl_cmd){
			.dev_id = id, .queue_id = (uint16_t)-1, .data[0] = data});
}

/* Is that what a kernel without a command answers? Of no device, it may look for that first. */
static bool is_unknown(int r)
{
	return r == -EOPNOTSUPP || r == -ENOTSUPP || r == -EINVAL || r == -ENODEV || r == -ENOTTY;
}

int ublk_control_open(struct ublk_control *c)
{
	int r;

	*c = (struct ublk_control){.fd = open(UBLK_CONTROL_PATH, O_RDWR | O_CLOEXEC)};
	if (c->fd < 0)
		return -errno;
	r = io_uring_queue_init(4, &c->ring, IORING_SETUP_SQE128);
	if (r < 0) {
		close(c->fd);
		return r == -EPERM || r == -EACCES ? -ENOSYS : r;
	}
	r = with_buffer(c, UBLK_U_CMD_GET_FEATURES, (uint32_t)-1, &c->features, UBLK_FEATURES_LEN);
	if (r == 0 && !(c->features & UBLK_F_CMD_IOCTL_ENCODE))
		r = -EOPNOTSUPP;
	if (r < 0) {
		ublk_control_close(c);
		return is_unknown(r) ? -EOPNOTSUPP : r;
	}
	return 0;
}

void ublk_control_close(struct ublk_control *c)
{
	io_uring_queue_exit(&c->ring);
	close(c->fd);
}

/* What is waited for a device to be gone: longer each time. False: that was enough. */
static bool wait_for_gone(long *waited)
{
	long step = MIN(*waited + FIRST_STEP_NS, LAST_STEP_NS);

	if (*waited >= GONE_NS)
		return false;
	nanosleep(&(struct timespec){.tv_nsec = step}, NULL);
	*waited += step;
	return true;
}

int ublk_control_add(struct ublk_control *c, struct ublksrv_ctrl_dev_info *info)
{
	struct ublksrv_ctrl_dev_info other;
	long waited = 0;
	int r;

	/* A deleted device keeps its number for a moment after the kernel knows nothing else of it.
	 */
	do
		r = with_buffer(c, UBLK_U_CMD_ADD_DEV, info->dev_id, info, sizeof *info);
	while (r == -EEXIST && ublk_control_info(c, info->dev_id, &other) < 0 &&
		wait_for_gone(&waited));
	return r;
}

int ublk_control_set_params(struct ublk_control *c, uint32_t id, struct ublk_params_sent *params)
{
	params->len = sizeof *params;
	return with_buffer(c, UBLK_U_CMD_SET_PARAMS, id, params, sizeof *params);
}

int ublk_control_get_params(struct ublk_control *c, uint32_t id, struct ublk_params_sent *params)
{
	*params = (struct ublk_params_sent){.len = sizeof *params};
	return with_buffer(c, UBLK_U_CMD_GET_PARAMS, id, params, sizeof *params);
}

/* A command that says whose the disk is, and waits for its queues. */
static int with_pid(struct ublk_control *c, uint32_t op, uint32_t id, const unsigned *ended)
{
	return command_unless(c, op,
		&(struct ublksrv_ctrl_cmd){
			.dev_id = id, .queue_id = (uint16_t)-1, .data[0] = (uint64_t)getpid()},
		ended);
}

int ublk_control_start(struct ublk_control *c, uint32_t id, const unsigned *ended)
{
	return with_pid(c, UBLK_U_CMD_START_DEV, id, ended);
}

int ublk_control_info(struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info)
{
	return with_buffer(c, UBLK_U_CMD_GET_DEV_INFO, id, info, sizeof *info);
}

int ublk_control_examine(struct ublk_control *c, uint32_t id, uint64_t cookie)
{
	struct ublksrv_ctrl_dev_info info;
	int r = ublk_control_info(c, id, &info);

	return r == 0 && info.ublksrv_flags != cookie ? -ENODEV : r;
}

int ublk_control_affinity(struct ublk_control *c, uint32_t id, uint16_t queue, cpu_set_t *cpus)
{
	int r;

	CPU_ZERO(cpus);
	r = command(c, UBLK_U_CMD_GET_QUEUE_AFFINITY,
		&(struct ublksrv_ctrl_cmd){.dev_id = id,
			.queue_id = (uint16_t)-1,
			.len = sizeof *cpus,
			.addr = (uintptr_t)cpus,
			.data[0] = queue});
	/* The machine may have more CPUs than the set has room for: the thread then runs on any. */
	return r == -EINVAL ? 0 : r;
}

int ublk_control_stop(struct ublk_control *c, uint32_t id, bool (*over)(void *opaque), void *opaque)
{
	int r = send_command(c, UBLK_U_CMD_STOP_DEV,
		&(struct ublksrv_ctrl_cmd){.dev_id = id, .queue_id = (uint16_t)-1});

	if (r < 0)
		return r;
	if (!over)
		return answer(c, c->sent, NULL);
	while (!answered(c, c->sent, &r))
		if (over(opaque))
			return -ECANCELED;
	return r;
}

int ublk_control_delete(struct ublk_control *c, uint32_t id, uint64_t cookie)
{
	static const unsigned at_once = 1;
	long waited = 0;
	int r = ublk_control_examine(c, id, cookie);

	if (r != -ENODEV)
		r = with_data(c, UBLK_U_CMD_DEL_DEV_ASYNC, id, 0);
	/*
	 * Linux 6.5 and 6.6 lack it. The other command waits for those who have the disk open
	 * when all is done, and does not mind being cancelled then.
	 */
	if (r < 0 && r != -ENODEV) {
		r = command_unless(c, UBLK_U_CMD_DEL_DEV,
			&(struct ublksrv_ctrl_cmd){.dev_id = id, .queue_id = (uint16_t)-1},
			&at_once);
		r = r == -ECANCELED ? 0 : r;
	}
	while (r == 0 && ublk_control_examine(c, id, cookie) == 0 && wait_for_gone(&waited))
		;
	return r;
}

int ublk_control_quiesce(struct ublk_control *c, uint32_t id)
{
	return with_data(c, UBLK_U_CMD_QUIESCE_DEV, id, QUIESCE_MS);
}

int ublk_control_start_recovery(struct ublk_control *c, uint32_t id)
{
	return with_data(c, UBLK_U_CMD_START_USER_RECOVERY, id, 0);
}

int ublk_control_end_recovery(struct ublk_control *c, uint32_t id, const unsigned *ended)
{
	return with_pid(c, UBLK_U_CMD_END_USER_RECOVERY, id, ended);
}
