/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Commands of userblk-ublk that are no longer needed: START_DEV waits for queues, which may
 * have ended meanwhile. The kernel's driver is not needed: what would go to it becomes a read
 * from a pipe, which io_uring leaves waiting, answers and cancels like a command.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/support.h"
#include "ublk/control.h"

#define ENTRIES 4

int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);
int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);

static int from_pipe; /* what commands wait for */
static char byte;
static uint32_t refused; /* the command that this kernel does not know */
static bool unknown;	 /* not even as a bad descriptor, but as a bad operation */
static uint32_t commands[8], count;
static const struct ublksrv_ctrl_dev_info *known; /* of any device */
static unsigned taken; /* how often the number of a new device is taken */

int __wrap_io_uring_submit(struct io_uring *ring)
{
	/* Entries have twice the usual size: SQE128. */
	struct io_uring_sqe *sqe = &ring->sq.sqes[2 * ((ring->sq.sqe_tail - 1) % ENTRIES)];
	uint64_t number = sqe->user_data;

	if (sqe->opcode == IORING_OP_URING_CMD) {
		const struct ublksrv_ctrl_cmd *sent = (const void *)sqe->cmd;
		void *answer = (void *)(uintptr_t)sent->addr;
		uint32_t command = sqe->cmd_op;

		assert_true(count < sizeof commands / sizeof commands[0]);
		commands[count++] = command;
		memset(sqe, 0, 2 * sizeof *sqe);
		/* There are no devices. */
		if (command == UBLK_U_CMD_ADD_DEV && taken)
			io_uring_prep_mkdirat(sqe, AT_FDCWD, "/", 0); /* which exists */
		else if (command == UBLK_U_CMD_ADD_DEV ||
			 (command == UBLK_U_CMD_GET_DEV_INFO && known))
			io_uring_prep_nop(sqe);
		else if (command == refused || command == UBLK_U_CMD_GET_DEV_INFO)
			io_uring_prep_read(sqe, -1, &byte, 1, 0);
		else
			io_uring_prep_read(sqe, from_pipe, &byte, 1, 0);
		if (command == UBLK_U_CMD_GET_DEV_INFO && known)
			memcpy(answer, known, sizeof *known);
		if (command == refused && unknown)
			sqe->opcode = 255;
		taken -= command == UBLK_U_CMD_ADD_DEV && taken;
		sqe->user_data = number;
	}
	return __real_io_uring_submit(ring);
}

/* The kernel's file is not needed. */
int __wrap_open64(const char *path, int flags, ...)
{
	bool control = strcmp(path, UBLK_CONTROL_PATH) == 0;

	return __real_open64(control ? "/dev/null" : path, flags, 0600);
}

struct scene {
	struct ublk_control control;
	int to_pipe;
	unsigned ended;
};

static int set_up(void **state)
{
	static struct scene s;
	int ends[2];

	s = (struct scene){.control.fd = -1};
	if (io_uring_queue_init(ENTRIES, &s.control.ring, IORING_SETUP_SQE128) < 0 || pipe(ends))
		return -1;
	from_pipe = ends[0];
	s.to_pipe = ends[1];
	refused = taken = 0;
	unknown = false;
	count = 0;
	*state = &s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	io_uring_queue_exit(&s->control.ring);
	close(from_pipe);
	close(s->to_pipe);
	return 0;
}

static void *end_queues(void *opaque)
{
	struct scene *s = opaque;

	usleep(200000); /* while the command waits */
	__atomic_store_n(&s->ended, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void test_a_start_is_given_up_when_queues_have_ended(void **state)
{
	struct scene *s = *state;

	s->ended = 1;
	assert_int_equal(ublk_control_start(&s->control, 0, &s->ended), -ECANCELED);
	assert_int_equal(ublk_control_end_recovery(&s->control, 0, &s->ended), -ECANCELED);
}

static void test_a_start_is_given_up_when_queues_end(void **state)
{
	struct scene *s = *state;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, end_queues, s), 0);
	assert_int_equal(ublk_control_start(&s->control, 0, &s->ended), -ECANCELED);
	pthread_join(thread, NULL);
}

static void test_an_answer_counts_although_queues_have_ended(void **state)
{
	struct scene *s = *state;

	s->ended = 1;
	assert_int_equal(write(s->to_pipe, "x", 1), 1);
	assert_int_equal(ublk_control_start(&s->control, 0, &s->ended), 0);
}

/* The kernel answers the cancellation too. */
static void test_the_next_command_gets_its_own_answer(void **state)
{
	struct scene *s = *state;
	int pipe_end = from_pipe;

	s->ended = 1;
	assert_int_equal(ublk_control_start(&s->control, 0, &s->ended), -ECANCELED);
	from_pipe = -1;
	assert_int_equal(ublk_control_stop(&s->control, 0, NULL, NULL), -EBADF);
	from_pipe = pipe_end;
	assert_int_equal(write(s->to_pipe, "x", 1), 1);
	assert_int_equal(ublk_control_stop(&s->control, 0, NULL, NULL), 0);
}

static bool third_time(void *opaque)
{
	return ++*(unsigned *)opaque == 3;
}

static bool and_answers(void *opaque)
{
	struct scene *s = opaque;

	/* The kernel's answer comes when the third look has found none. */
	assert_true(++s->ended < 20);
	if (s->ended == 3)
		assert_int_equal(write(s->to_pipe, "x", 1), 1);
	return false;
}

static void test_a_stop_is_waited_for_until_the_caller_is_not_patient(void **state)
{
	struct scene *s = *state;
	unsigned looks = 0;

	assert_int_equal(ublk_control_stop(&s->control, 0, third_time, &looks), -ECANCELED);
	assert_int_equal(looks, 3);
	/* It is the answer to the one before, which nobody waits for now. */
	assert_int_equal(write(s->to_pipe, "x", 1), 1);
	assert_int_equal(ublk_control_stop(&s->control, 0, and_answers, s), 0);
	assert_int_equal(s->ended, 3);
}

/* Linux 6.5 and 6.6: the one that does not wait is not there; the other waits, but not for long. */
static void test_a_device_is_deleted_by_old_kernels(void **state)
{
	struct scene *s = *state;

	refused = UBLK_U_CMD_DEL_DEV_ASYNC;
	/* Its wait is for those who have the disk open. */
	assert_int_equal(ublk_control_delete(&s->control, 0, 0), 0);
	assert_int_equal(commands[1], UBLK_U_CMD_DEL_DEV_ASYNC);
	assert_int_equal(commands[2], UBLK_U_CMD_DEL_DEV);
	assert_int_equal(commands[3], UBLK_U_CMD_GET_DEV_INFO);
}

/* The one that was meant has been deleted by somebody else, and its number given to a new disk. */
static void test_a_number_of_another_disk_is_not_deleted(void **state)
{
	static const struct ublksrv_ctrl_dev_info other = {.ublksrv_flags = 8};
	struct scene *s = *state;

	known = &other;
	assert_int_equal(ublk_control_delete(&s->control, 0, 7), -ENODEV);
	known = NULL;
	assert_int_equal(count, 1);
	assert_int_equal(commands[0], UBLK_U_CMD_GET_DEV_INFO);
}

/* A device that was just deleted still has its number when nothing else is known of it. */
static void test_a_number_that_is_about_to_be_free_is_waited_for(void **state)
{
	static const uint32_t expected[] = {UBLK_U_CMD_ADD_DEV, UBLK_U_CMD_GET_DEV_INFO,
		UBLK_U_CMD_ADD_DEV, UBLK_U_CMD_GET_DEV_INFO, UBLK_U_CMD_ADD_DEV};
	struct scene *s = *state;
	struct ublksrv_ctrl_dev_info info = {.dev_id = 40};

	taken = 2;
	assert_int_equal(ublk_control_add(&s->control, &info), 0);
	assert_int_equal(count, 5);
	assert_memory_equal(commands, expected, sizeof expected);
}

/* Another failure says nothing about the age of the kernel. */
static void test_a_kernel_is_too_old_only_if_it_does_not_know_the_command(void **state)
{
	struct ublk_control c;

	(void)state;
	refused = UBLK_U_CMD_GET_FEATURES;
	assert_int_equal(ublk_control_open(&c), -EBADF);
	unknown = true;
	assert_int_equal(ublk_control_open(&c), -EOPNOTSUPP); /* of -EINVAL */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_a_kernel_is_too_old_only_if_it_does_not_know_the_command, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			test_a_start_is_given_up_when_queues_have_ended, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_a_start_is_given_up_when_queues_end, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_an_answer_counts_although_queues_have_ended, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_the_next_command_gets_its_own_answer, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_a_stop_is_waited_for_until_the_caller_is_not_patient, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			test_a_device_is_deleted_by_old_kernels, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_a_number_of_another_disk_is_not_deleted, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_a_number_that_is_about_to_be_free_is_waited_for, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
