/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "programs/exit_codes.h"
#include "programs/io_flusher.h"
#include "ublk/disk.h"
#include "ublk/ending.h"
#include "ublk/messages.h"
#include "ublk/notify.h"
#include "ublk/parameters.h"
#include "ublk/process.h"
#include "ublk/progress.h"
#include "ublk/record.h"
#include "ublk/server.h"
#include "ublk/stopping.h"

/* What keeps a device from zero copy: the kernel knows no way to tell the clients. */
#define UNSTABLE "the device may compute checksums of pages that may change meanwhile"

/* What is refused both before and after the device is opened. */
#define EXISTS	     "exists; choose another --number"
#define NEEDS_FILE   "--zero-copy=on: needs --mode=uring and a device that is a file, as passthrough"
#define NEEDS_KERNEL "--zero-copy=on: this kernel's ublk has no AUTO_BUF_REG (6.16); leave it out"

/* For how long a device node may take to appear, or an old server to go. */
#define NODE_LIMIT_MS 30000
/*
 * Seconds for which a server may still be ending: before Linux 6.16, the kernel asks one that has
 * all requests of a queue to end when the oldest is 30 s old, as its timers have it.
 */
#define START_LIMIT 40
#define STEP_MS	    20

/* For how long what an old server had open may still be claimed after its end. */
#define RELEASE_MS 10000

struct server {
	struct ublk_control *control;
	uint32_t id;
	uint64_t cookie;
	struct ublk_dev dev;
	struct ublk_queue **queues;
	unsigned started; /* queues with a thread */
	unsigned ended;	  /* of these, for whatever reason; atomic */
	pthread_t main;
	_Atomic bool serves; /* the disk can be used */
	_Atomic bool error_told;
	struct ublk_work work; /* that the end waits for */
	struct ublk_seen seen; /* by the one that ends the disk */
	struct ublk_seen told; /* to systemd */
	struct ublk_extension extension;
	/* While it waits for the device: */
	bool keeps;	 /* errors, as they may go away by waiting */
	char kept[1024]; /* the first one */
};

/* ---- messages --------------------------------------------------------------------- */

static void host_error(void *opaque, const char *message)
{
	struct server *s = opaque;

	if (s->keeps) {
		if (!s->kept[0])
			snprintf(s->kept, sizeof s->kept, "%s", message);
		return;
	}
	s->error_told = true;
	ublk_message(s->serves, LOG_ERR, message);
}

/* A line to the user about a step that failed, with the remedy, or "". r: negative errno. */
static int failed_with(struct server *s, const char *what, int r, const char *remedy)
{
	char line[256], disk[32] = "";

	if ((int32_t)s->id >= 0) /* it has got a number, or was asked for one */
		snprintf(disk, sizeof disk, "ublk%u: ", s->id);
	snprintf(line, sizeof line, "%s%s: %s%s", disk, what, strerror(-r), remedy);
	host_error(s, line);
	return EXIT_FAILURE;
}

static int failed(struct server *s, const char *what, int r)
{
	return failed_with(s, what, r, "");
}

/* The driver gives no new disk. An exit code. */
static int not_added(struct server *s, int r)
{
	const char *remedy = "";

	if (r == -EEXIST) {
		failed(s, EXISTS, r);
		return EXIT_USAGE;
	}
	if (r == -EACCES)
		remedy = "; the driver has as many disks as it may (parameter ublks_max of "
			 "ublk_drv): delete one, or raise it";
	else if (r == -EPERM)
		remedy = "; run as root, with CAP_SYS_ADMIN";
	return failed_with(s, "ADD_DEV", r, remedy);
}

/* What is not an error. */
static void log_line(struct server *s, const char *what, const char *more)
{
	char line[3072];

	snprintf(line, sizeof line, "ublk%u: %s%s", s->id, what, more);
	ublk_message(s->serves, LOG_INFO, line);
}

static void log_counters(struct server *s)
{
	char line[2048];

	if (backend_counters_text(s->dev.device, line, sizeof line))
		log_line(s, "counters:", line);
}

/* ---- set-up -------------------------------------------------------------------------- */

/* Can reads and writes go to the device's file? alignment: what memory needs there. */
static bool can_map(struct backend *device, const struct backend_info *info, uint32_t *alignment)
{
	struct backend_request first = {.op = BACKEND_READ, .length = info->block_size};
	struct backend_backing backing;

	if (backend_get_backing(device, &first, &backing) < 0)
		return false;
	*alignment = backing.memory_alignment;
	return true;
}

/*
 * size: of the disk that continues with this device, 0: it is new. timeout_ms: how long to wait for
 * a device that is claimed. 0 or an exit code.
 */
static int open_device(struct server *s, const struct params *params, uint64_t size, int timeout_ms)
{
	const struct backend_host host = {
		.opaque = s,
		.error = host_error,
		.previous_session = size ? BACKEND_SESSION_UNKNOWN : 0,
	};
	int r;

	s->keeps = true;
	for (int waited = 0;; waited += STEP_MS) {
		s->kept[0] = 0;
		r = backend_open(params, size, &host, &s->dev.device);
		if (r != -EBUSY || waited >= timeout_ms)
			break;
		nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000}, NULL);
	}
	s->keeps = false;
	if (s->kept[0])
		host_error(s, s->kept);
	if (r == 0)
		r = backend_info(s->dev.device, &s->dev.info);
	if (r == 0)
		return 0;
	/* A device reports what a user can correct, and only that. */
	if (!s->error_told) {
		backend_error(&host, "cannot open the %s device: %s",
			backend_kind(params_ops(params)).name, strerror(-r));
		return EXIT_FAILURE;
	}
	return EXIT_USAGE;
}

/* Has the disk a server that has not ended? */
static bool is_served(const struct server *s)
{
	struct ublksrv_ctrl_dev_info info;
	int pidfd = -1;

	if (ublk_control_info(s->control, s->id, &info) == 0 && info.state == UBLK_S_DEV_LIVE)
		pidfd = ublk_process_of_disk(&info);
	if (pidfd >= 0)
		close(pidfd);
	return pidfd >= 0;
}

/*
 * The character device. udev may be about to give it its owner, and a server that has failed may
 * still hold it: its io_uring lets go of it a moment after its end. One that serves does not: it
 * has been faster, and what it is given may be newer than what we have.
 */
static int open_char(struct server *s)
{
	char path[32];

	snprintf(path, sizeof path, "/dev/ublkc%u", s->id);
	for (int waited = 0;; waited += STEP_MS) {
		int r;

		s->dev.fd = open(path, O_RDWR | O_CLOEXEC);
		if (s->dev.fd >= 0)
			return 0;
		r = -errno;
		if ((r != -ENOENT && r != -EACCES && r != -EBUSY) || waited >= NODE_LIMIT_MS ||
			(r == -EBUSY && is_served(s)))
			return r;
		nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000}, NULL);
	}
}

static void queue_ended(void *opaque)
{
	struct server *s = opaque;

	if (__atomic_add_fetch(&s->ended, 1, __ATOMIC_ACQ_REL) ==
		__atomic_load_n(&s->started, __ATOMIC_ACQUIRE))
		pthread_kill(s->main, SIGUSR1);
}

/* All that needs memory and threads. 0 or negative errno. */
static int prepare_queues(struct server *s, const struct ublk_server_options *o, uint16_t queues)
{
	struct ublk_dev *dev = &s->dev;
	bool in_place =
		dev->mode == UBLK_MODE_URING && (dev->info.never_waits || dev->info.answers_later);

	dev->ended = queue_ended;
	dev->opaque = s;
	s->main = pthread_self();
	if (!in_place) {
		dev->workers = workers_new(o->threads);
		if (!dev->workers)
			return -EAGAIN;
	}
	s->queues = calloc(queues, sizeof(struct ublk_queue *));
	if (!s->queues)
		return -ENOMEM;
	s->started = queues;
	for (uint16_t i = 0; i < queues; i++) {
		cpu_set_t cpus;
		int r = ublk_control_affinity(s->control, s->id, i, &cpus);

		if (r == 0)
			r = ublk_queue_new(dev, i, &cpus, &s->queues[i]);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Offers all tags to the kernel. 0 or negative errno. */
static int start_queues(struct server *s)
{
	int r = 0;

	for (unsigned i = 0; i < s->started && r == 0; i++)
		r = ublk_queue_start(s->queues[i]);
	return r;
}

static void find_work(struct server *s)
{
	struct backend_request first = {.op = BACKEND_READ, .length = s->dev.info.block_size};
	struct backend_backing backing;

	s->work = (struct ublk_work){
		.device = s->dev.device,
		.can_stall = s->dev.info.can_stall,
		.below = backend_get_backing(s->dev.device, &first, &backing) < 0 ? -1 : backing.fd,
		.queues = s->queues,
		.count = s->started,
	};
}

/* For the one that ends the disk. */
static bool device_works(void *opaque)
{
	struct server *s = opaque;

	return ublk_works_since(&s->work, &s->seen);
}

/* For systemd, from another thread. */
static bool still_works(void *opaque)
{
	struct server *s = opaque;

	return ublk_works_since(&s->work, &s->told);
}

static bool still_stops(void *opaque)
{
	struct server *s = opaque;

	return ublk_stops_since(&s->work, &s->told);
}

static bool still_closes(void *opaque)
{
	struct server *s = opaque;

	return ublk_closes_since(&s->work, &s->told);
}

/* Once the kernel has taken all tags away. Negative errno: not all that was written is kept. */
static int end_threads(struct server *s)
{
	int r = 0;

	for (unsigned i = 0; i < s->started; i++)
		if (s->queues[i])
			ublk_queue_join(s->queues[i]);
	workers_free(s->dev.workers);
	ublk_extension_follow(&s->extension, still_closes);
	/* An orderly end leaves nothing behind that a crash of the machine could take. */
	if (s->dev.weak_flush && (r = backend_flush(s->dev.device)) < 0)
		failed(s, "the last writes are not durable", -EIO);
	log_counters(s);
	if (backend_close(s->dev.device) < 0)
		r = -EIO;
	/* Before the kernel is asked to delete the device: it waits for these mappings. */
	for (unsigned i = 0; i < s->started; i++)
		if (s->queues[i])
			ublk_queue_free(s->queues[i]);
	free(s->queues);
	close(s->dev.fd);
	return r;
}

/* SIGUSR1 says so, but anybody can send it. */
static bool queues_ended(void *opaque)
{
	struct server *s = opaque;

	return __atomic_load_n(&s->ended, __ATOMIC_ACQUIRE) == s->started;
}

/* Has another program stopped the disk, and does not just want another server? */
static bool is_stopped(struct server *s)
{
	struct ublksrv_ctrl_dev_info info;

	return ublk_control_info(s->control, s->id, &info) < 0 || info.ublksrv_flags != s->cookie ||
	       info.state == UBLK_S_DEV_DEAD;
}

static void log_ending(void *opaque, const char *line)
{
	log_line(opaque, line, "");
}

static uint64_t recovery_flags(uint64_t features, enum ublk_recovery recovery)
{
	uint64_t flags = features & UBLK_F_QUIESCE;

	switch (recovery) {
	case UBLK_RECOVERY_REISSUE:
		return flags | UBLK_F_USER_RECOVERY | UBLK_F_USER_RECOVERY_REISSUE;
	case UBLK_RECOVERY_FAIL:
		return flags | UBLK_F_USER_RECOVERY;
	case UBLK_RECOVERY_FAIL_ALL:
		return flags | UBLK_F_USER_RECOVERY | UBLK_F_USER_RECOVERY_FAIL_IO;
	case UBLK_RECOVERY_AUTO:
	case UBLK_RECOVERY_NONE:
		break;
	}
	return 0;
}

bool ublk_server_knows(uint64_t flags)
{
	const uint64_t known =
		UBLK_F_CMD_IOCTL_ENCODE | UBLK_F_USER_RECOVERY | UBLK_F_USER_RECOVERY_REISSUE |
		UBLK_F_USER_RECOVERY_FAIL_IO | UBLK_F_AUTO_BUF_REG | UBLK_F_QUIESCE |
		/* What changes nothing for a server. */
		UBLK_F_URING_CMD_COMP_IN_TASK | UBLK_F_UPDATE_SIZE | UBLK_F_PER_IO_DAEMON |
		UBLK_F_BUF_REG_OFF_DAEMON | UBLK_F_SAFE_STOP_DEV | UBLK_F_NO_AUTO_PART_SCAN;

	return !(flags & ~known);
}

/* Service has begun: until its end. An exit code. */
static int serve(struct server *s)
{
	int r = 0, kept;

	find_work(s);

	struct ublk_ending ending = {
		.id = s->id,
		.ended = queues_ended,
		.works = device_works,
		.log = log_ending,
		.opaque = s,
	};
	bool asked = ublk_ending_wait(&ending);

	ublk_extension_begin(&s->extension, still_works, s);
	struct ublk_claim claim = UBLK_NO_CLAIM;
	int released = asked ? ublk_ending_release(&ending, &claim) : 0;

	/* The program that stopped the disk has written it back. The kernel reports only once what
	 * the disk refused. */
	if (ending.gone && released != -EIO)
		released = 0;
	if (released < 0)
		failed(s, ublk_disk_loss(released), released);
	asked = asked && !ending.gone;
	if (asked) {
		backend_stop(s->dev.device);
		ublk_extension_follow(&s->extension, still_stops);
		r = ublk_stop_elsewhere(
			s->control, s->id, s->cookie, ublk_ending_gives_up, &ending);
	}
	ublk_claim_release(&claim); /* the kernel waits for it */
	if (asked && r < 0 && r != -ENODEV && !ending.gone)
		return failed(s, "STOP_DEV", r);
	kept = end_threads(s);
	/* The program that stopped the device deletes it, or gives it another server. */
	if (asked) {
		r = ublk_control_delete(s->control, s->id, s->cookie);
		if (r < 0 && r != -ENODEV)
			return failed(s, "DEL_DEV", r);
		/* The driver may know it for as long as somebody has it open. */
		ublk_record_remove(s->id, s->cookie);
		if (released == 0 && kept == 0)
			log_line(s, "written back and removed", "");
	} else if (kept < 0 && is_stopped(s)) {
		ublk_record_leave_failure(s->id, s->cookie);
	}
	/* A disk that has got another server has lost nothing. */
	released = asked || is_stopped(s) ? released : 0;
	return kept < 0 || released < 0 ? EXIT_FAILURE : 0;
}

/* Threads, then start, then service until the end. recovers: the disk is there already. */
static int run_server(struct server *s, const struct ublk_server_options *o, uint16_t queues,
	bool recovers, const struct ublk_server_user *user)
{
	const char *step = "cannot start the queues", *remedy = "";
	int r;

	backend_start(s->dev.device);
	r = prepare_queues(s, o, queues);
	/* A new disk outlives us from its start on. */
	if (r == 0 && user->taking(user->opaque, s->id) < 0)
		_exit(EXIT_FAILURE);
	/*
	 * From here on as little as possible may fail: before Linux 6.16, a server that ends while
	 * it has some of the queues leaves a disk that no other server can have.
	 */
	if (r == 0)
		r = start_queues(s);
	if (r == -EAGAIN || r == -ENOMEM)
		remedy = recovers ? "; use fewer --threads"
				  : "; use fewer --queues, --depth or --threads";
	if (r == 0 && recovers)
		user->taken(user->opaque);
	if (r == 0) {
		step = recovers ? "END_USER_RECOVERY" : "START_DEV";
		r = recovers ? ublk_control_end_recovery(s->control, s->id, &s->ended)
			     : ublk_control_start(s->control, s->id, &s->ended);
		if (r == -ECANCELED)
			step = "its queues ended before it could be used";
	}
	if (r < 0) {
		failed_with(s, step, r, remedy);
		if (recovers) {
			user->missed(user->opaque, s->id);
			_exit(EXIT_FAILURE); /* the device waits for another server */
		}
		ublk_control_stop(s->control, s->id, NULL, NULL);
		end_threads(s);
		ublk_control_delete(s->control, s->id, s->cookie);
		return EXIT_FAILURE;
	}
	s->serves = true;
	user->ready(user->opaque, s->id);
	r = serve(s);
	ublk_extension_end(&s->extension);
	return r;
}

/*
 * What can be known before the device is opened, which may take it from the server that has it. 0
 * or an exit code.
 */
static int check_unopened(
	struct server *s, const struct params *params, const struct ublk_server_options *o)
{
	const struct backend_host host = {.opaque = s, .error = host_error};
	struct ublksrv_ctrl_dev_info other;
	int known;

	if (o->zero_copy == UBLK_ZERO_COPY_ON) {
		const char *lacks = NULL;

		if (o->mode != UBLK_MODE_URING || backend_kind(params_ops(params)).answers_later)
			lacks = NEEDS_FILE;
		else if (!(s->control->features & UBLK_F_AUTO_BUF_REG))
			lacks = NEEDS_KERNEL;
		if (lacks) {
			backend_error(&host, "%s", lacks);
			return EXIT_USAGE;
		}
	}
	if (o->id < 0)
		return 0;
	/* -EINVAL: an unprivileged disk of another program. A number of which the driver tells
	 * nothing else may be about to be free: ublk_control_add() waits for that. */
	known = ublk_control_info(s->control, s->id, &other);
	if (known < 0 && known != -EINVAL)
		return 0;
	return not_added(s, -EEXIST);
}

int ublk_server_add(struct ublk_control *c, const struct params *params,
	const struct ublk_server_options *o, uint64_t cookie, const struct ublk_server_user *user)
{
	struct server s = {.control = c, .id = (uint32_t)o->id, .cookie = cookie};
	struct ublk_dev *dev = &s.dev;
	const struct backend_host host = {.opaque = &s, .error = host_error};
	struct ublksrv_ctrl_dev_info info = {
		.dev_id = (uint32_t)o->id,
		.nr_hw_queues = (uint16_t)o->queues,
		.queue_depth = (uint16_t)o->depth,
		.max_io_buf_bytes = UBLK_MAX_REQUEST,
		.ublksrv_flags = cookie,
		.flags = UBLK_F_CMD_IOCTL_ENCODE | recovery_flags(c->features, o->recovery),
	};
	struct ublk_params_sent sent;
	uint32_t alignment = 1;
	int r;

	become_io_flusher();
	if (o->recovery != UBLK_RECOVERY_NONE && ~c->features & info.flags) {
		backend_error(&host,
			"--recovery: this kernel's ublk does not support it; choose another");
		return EXIT_USAGE;
	}
	r = check_unopened(&s, params, o);
	if (r == 0)
		r = open_device(&s, params, 0, 0);
	if (r)
		return r;
	dev->mode = o->mode;
	dev->weak_flush = o->flush == UBLK_FLUSH_WEAK;
	dev->mapped = o->mode == UBLK_MODE_URING && can_map(dev->device, &dev->info, &alignment);
	dev->zero_copy = dev->mapped && !dev->info.stable_writes &&
			 o->zero_copy != UBLK_ZERO_COPY_OFF && c->features & UBLK_F_AUTO_BUF_REG &&
			 alignment <= UBLK_MAX_BLOCK;
	if (o->zero_copy == UBLK_ZERO_COPY_ON && !dev->zero_copy) {
		backend_error(&host, "%s",
			!dev->mapped		  ? NEEDS_FILE
			: dev->info.stable_writes ? "--zero-copy=on: " UNSTABLE
						    "; leave it out, or use direct=off"
						  : NEEDS_KERNEL);
		backend_close(dev->device);
		return EXIT_USAGE;
	}
	if (dev->zero_copy)
		info.flags |= UBLK_F_AUTO_BUF_REG;
	if (ublk_parameters(&dev->info, dev->zero_copy ? alignment : 1, UBLK_MAX_REQUEST, &sent) <
		0) {
		backend_error(&host,
			"the device's blocks have %" PRIu32
			" bytes; ublk takes at most 4096: use direct=off",
			dev->info.block_size);
		backend_close(dev->device);
		return EXIT_USAGE;
	}
	if (sent.basic.dev_sectors == 0) {
		backend_error(&host, "the device has %" PRIu64 " bytes; a disk needs a block of %u",
			dev->info.size, 1u << sent.basic.logical_bs_shift);
		backend_close(dev->device);
		return EXIT_USAGE;
	}
	/* Not earlier: a device may take long to open, and leaves nothing behind if a signal ends
	 * us. */
	ublk_ending_block();
	r = ublk_control_add(c, &info);
	if (r < 0) {
		r = not_added(&s, r);
		backend_close(dev->device);
		return r;
	}
	s.id = info.dev_id;
	dev->depth = info.queue_depth;
	dev->buffer_size = info.max_io_buf_bytes;
	sent.basic.max_sectors = dev->buffer_size >> UBLK_SECTOR_SHIFT;
	r = ublk_control_set_params(c, s.id, &sent);
	if (r < 0)
		failed(&s, "SET_PARAMS", r);
	else if ((r = open_char(&s)) < 0)
		failed(&s, "cannot open its character device", r);
	if (r < 0) {
		ublk_control_delete(c, s.id, s.cookie);
		backend_close(dev->device);
		return EXIT_FAILURE;
	}
	return run_server(&s, o, info.nr_hw_queues, false, user);
}

int ublk_server_recover(struct ublk_control *c, const struct params *params,
	const struct ublk_server_options *o, const struct ublk_server_user *user)
{
	struct server s = {.control = c, .id = (uint32_t)o->id};
	struct ublk_dev *dev = &s.dev;
	const struct backend_host host = {.opaque = &s, .error = host_error};
	struct ublksrv_ctrl_dev_info info;
	struct ublk_params_sent old, new;
	uint32_t alignment = 1;
	const char *mismatch;
	time_t begun;
	int r;

	/* Before there are threads, which inherit both. The disk has users: one who ends its server
	 * wants it to be written back first. */
	ublk_ending_block();
	become_io_flusher();
	r = ublk_control_info(c, s.id, &info);
	if (r == 0)
		r = ublk_control_get_params(c, s.id, &old);
	if (r < 0)
		return failed(&s, "cannot be examined", r);
	s.cookie = info.ublksrv_flags;
	/* The old server may not be quite gone, and may hold the device that we must open. */
	begun = ublk_seconds();
	while ((r = ublk_control_start_recovery(c, s.id)) == -EBUSY &&
		ublk_seconds() - begun <= START_LIMIT && !is_served(&s))
		nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000}, NULL);
	/* Begun by one that then failed: kernels before 6.16 want it only once. */
	if (r == -EINVAL && info.flags & UBLK_F_USER_RECOVERY && info.state != UBLK_S_DEV_LIVE)
		r = 0;
	if (r < 0)
		return failed(&s,
			r != -EBUSY	? "START_USER_RECOVERY"
			: is_served(&s) ? "has a server"
					: "its server does not end",
			r);
	r = open_device(&s, params, old.basic.dev_sectors << UBLK_SECTOR_SHIFT, RELEASE_MS);
	if (r)
		return r;
	if (user->watch >= 0) {
		backend_heed(dev->device, user->watch);
		close(user->watch);
	}
	dev->mode = o->mode;
	dev->weak_flush = o->flush == UBLK_FLUSH_WEAK;
	dev->mapped = o->mode == UBLK_MODE_URING && can_map(dev->device, &dev->info, &alignment);
	dev->zero_copy = info.flags & UBLK_F_AUTO_BUF_REG;
	dev->depth = info.queue_depth;
	dev->buffer_size = info.max_io_buf_bytes;
	mismatch = "its blocks are too large";
	if (ublk_parameters(&dev->info, dev->zero_copy ? alignment : 1, dev->buffer_size, &new) ==
		0)
		mismatch = ublk_parameters_mismatch(&old, &new);
	if (!mismatch && dev->zero_copy && !dev->mapped)
		mismatch = "the disk was added with zero copy, which needs --mode=uring and a file";
	/* One that comes back serves what it served a moment ago. */
	if (!mismatch && dev->zero_copy && dev->info.stable_writes && !user->returns)
		mismatch = "the disk was added with zero copy, but " UNSTABLE "; use direct=off";
	if (mismatch) {
		backend_error(
			&host, "ublk%u: this device cannot serve the disk: %s", s.id, mismatch);
		backend_close(dev->device);
		return EXIT_USAGE;
	}
	r = open_char(&s);
	if (r < 0) {
		failed(&s,
			r == -EBUSY && is_served(&s) ? "has another server by now"
						     : "cannot open its character device",
			r);
		backend_close(dev->device);
		return EXIT_FAILURE;
	}
	return run_server(&s, o, info.nr_hw_queues, true, user);
}
