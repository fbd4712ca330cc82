/* SPDX-License-Identifier: BSD-3-Clause */
/* The beginning and the end of a ublk server. The driver, the queues and what is opened are the
 * test's. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "programs/exit_codes.h"
#include "tests/unit/support.h"
#include "ublk/ending.h"
#include "ublk/options.h"
#include "ublk/record.h"
#include "ublk/server.h"

#define COOKIE 0x1234567800000001u

int __real_backend_open(const struct params *params, uint64_t size, const struct backend_host *host,
	struct backend **out);
int __wrap_backend_open(const struct params *params, uint64_t size, const struct backend_host *host,
	struct backend **out);
int __real_backend_close(struct backend *b);
int __wrap_backend_close(struct backend *b);
int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_ublk_control_info(
	struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info);
int __wrap_ublk_control_add(struct ublk_control *c, struct ublksrv_ctrl_dev_info *info);
int __wrap_ublk_control_set_params(
	struct ublk_control *c, uint32_t id, struct ublk_params_sent *params);
int __wrap_ublk_control_affinity(
	struct ublk_control *c, uint32_t id, uint16_t queue, cpu_set_t *cpus);
int __wrap_ublk_control_start(struct ublk_control *c, uint32_t id, const unsigned *ended);
int __wrap_ublk_control_stop(
	struct ublk_control *c, uint32_t id, bool (*over)(void *opaque), void *opaque);
int __wrap_ublk_control_delete(struct ublk_control *c, uint32_t id, uint64_t cookie);
int __wrap_ublk_queue_new(
	const struct ublk_dev *dev, uint16_t id, const cpu_set_t *cpus, struct ublk_queue **out);
int __wrap_ublk_queue_start(struct ublk_queue *queue);
void __wrap_ublk_queue_join(struct ublk_queue *queue);
void __wrap_ublk_queue_free(struct ublk_queue *queue);
bool __wrap_ublk_ending_wait(struct ublk_ending *e);
void __wrap_ublk_record_leave_failure(uint32_t id, uint64_t cookie);

static struct {
	/* What is answered. */
	int known; /* by GET_DEV_INFO, of a disk */
	struct ublksrv_ctrl_dev_info info;
	int added, queue; /* by ADD_DEV, and by a queue that is made */
	int closed;	  /* by the device at its end */
	int signal;	  /* that comes while the device is opened */
	/* What was done. */
	unsigned opened, adds;
	bool blocked;	  /* signals, when the disk was added */
	uint64_t failure; /* the cookie with which one was left */
} world;

int __wrap_backend_open(const struct params *params, uint64_t size, const struct backend_host *host,
	struct backend **out)
{
	world.opened++;
	if (world.signal)
		raise(world.signal);
	return __real_backend_open(params, size, host, out);
}

int __wrap_backend_close(struct backend *b)
{
	int r = __real_backend_close(b);

	return r < 0 ? r : world.closed;
}

int __wrap_open64(const char *path, int flags, ...)
{
	return __real_open64(
		strncmp(path, "/dev/ublkc", 10) == 0 ? "/dev/null" : path, flags, 0600);
}

int __wrap_ublk_control_info(
	struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info)
{
	(void)c;
	(void)id;
	*info = world.info;
	return world.known;
}

int __wrap_ublk_control_add(struct ublk_control *c, struct ublksrv_ctrl_dev_info *info)
{
	sigset_t set;

	(void)c;
	pthread_sigmask(SIG_BLOCK, NULL, &set);
	world.blocked = sigismember(&set, SIGTERM) && sigismember(&set, SIGINT);
	world.adds++;
	if (world.added == 0)
		info->dev_id = 7;
	return world.added;
}

int __wrap_ublk_control_set_params(
	struct ublk_control *c, uint32_t id, struct ublk_params_sent *params)
{
	(void)c;
	(void)id;
	(void)params;
	return 0;
}

int __wrap_ublk_control_affinity(
	struct ublk_control *c, uint32_t id, uint16_t queue, cpu_set_t *cpus)
{
	(void)c;
	(void)id;
	(void)queue;
	CPU_ZERO(cpus);
	return 0;
}

int __wrap_ublk_control_start(struct ublk_control *c, uint32_t id, const unsigned *ended)
{
	(void)c;
	(void)id;
	(void)ended;
	return 0;
}

int __wrap_ublk_control_stop(
	struct ublk_control *c, uint32_t id, bool (*over)(void *opaque), void *opaque)
{
	(void)c;
	(void)id;
	(void)over;
	(void)opaque;
	return 0;
}

int __wrap_ublk_control_delete(struct ublk_control *c, uint32_t id, uint64_t cookie)
{
	(void)c;
	(void)id;
	assert_true(cookie == COOKIE);
	return 0;
}

int __wrap_ublk_queue_new(
	const struct ublk_dev *dev, uint16_t id, const cpu_set_t *cpus, struct ublk_queue **out)
{
	(void)dev;
	(void)id;
	(void)cpus;
	*out = NULL; /* none, which nobody has to end */
	return world.queue;
}

int __wrap_ublk_queue_start(struct ublk_queue *queue)
{
	(void)queue;
	return 0;
}

void __wrap_ublk_queue_join(struct ublk_queue *queue)
{
	(void)queue;
}

void __wrap_ublk_queue_free(struct ublk_queue *queue)
{
	(void)queue;
}

/* The kernel has taken the disk away. */
bool __wrap_ublk_ending_wait(struct ublk_ending *e)
{
	(void)e;
	return false;
}

void __wrap_ublk_record_leave_failure(uint32_t id, uint64_t cookie)
{
	assert_int_equal(id, 7);
	world.failure = cookie;
}

static int taking(void *opaque, uint32_t id)
{
	(void)opaque;
	(void)id;
	return 0;
}

static void ready(void *opaque, uint32_t id)
{
	(void)opaque;
	(void)id;
}

static const struct ublk_server_user user = {.taking = taking, .ready = ready, .watch = -1};

/* No disks, and nothing fails. */
static int set_up(void **state)
{
	sigset_t none;

	(void)state;
	memset(&world, 0, sizeof world);
	world.known = -ENODEV;
	sigemptyset(&none);
	return pthread_sigmask(SIG_SETMASK, &none, NULL);
}

static const char s3[] = "s3 volume=v endpoint=http://127.0.0.1:1 bucket=bucket region=r "
			 "credentials=/nowhere";

/* A command line, which may be printf's. The caller frees the parameters. */
static struct ublk_options parse(const char *format, const char *device)
{
	char line[512], *argv[16] = {"userblk-ublk"};
	struct params_error error;
	struct ublk_options o;
	int argc = 1;

	strcpy(line, format);
	strcat(strcat(line, " "), device);
	for (char *word = strtok(line, " "); word; word = strtok(NULL, " "))
		argv[argc++] = word;
	if (ublk_options_parse(argc, argv, &o, &error) < 0)
		fail_msg("%s", error.text);
	return o;
}

/* Serves a disk to its end. said: what it has reported. An exit code. */
static int serve(uint64_t features, const char *options, const char *device, char said[1024])
{
	struct ublk_control c = {.features = UBLK_F_CMD_IOCTL_ENCODE | features};
	struct ublk_options o = parse(options, device);
	const char *path = scratch_file("said", 0);
	int kept = dup(STDERR_FILENO), fd = open(path, O_RDWR | O_TRUNC | O_CLOEXEC), code;
	ssize_t length;

	dup2(fd, STDERR_FILENO);
	code = ublk_server_add(&c, o.params, &o.server, COOKIE, &user);
	dup2(kept, STDERR_FILENO);
	length = pread(fd, said, 1023, 0);
	assert_true(length >= 0);
	said[length] = 0;
	close(kept);
	close(fd);
	params_free(o.params);
	return code;
}

/* Opening the device may take it from the server of the disk that is there. */
static void test_a_number_that_is_taken_is_refused_before_the_device_is_opened(void **state)
{
	static const int answers[] = {0, -EINVAL /* an unprivileged disk of another program */};
	char said[1024];

	(void)state;
	for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
		world.known = answers[i];
		assert_int_equal(serve(0, "add --recovery=none --number=7", "null size=1M", said),
			EXIT_USAGE);
		assert_string_equal(said, "userblk-ublk: ublk7: exists; choose another --number: "
					  "File exists\n");
		assert_int_equal(world.opened, 0);
		assert_int_equal(world.adds, 0);
	}
	/* One that is about to be free is waited for by the one who adds. */
	world.known = -ENODEV;
	world.added = -EEXIST;
	assert_int_equal(
		serve(0, "add --recovery=none --number=7", "null size=1M", said), EXIT_USAGE);
	assert_holds(said, "ublk7: exists; choose another --number");
	assert_int_equal(world.opened, 1);
	assert_int_equal(world.adds, 1);
	/* Others are no matter of one who takes any. */
	world.known = 0;
	world.added = 0;
	assert_int_equal(serve(0, "add --recovery=none", "null size=1M", said), 0);
}

static void test_zero_copy_is_refused_before_the_device_is_opened(void **state)
{
	static const struct {
		const char *options, *device, *said;
		uint64_t features;
	} cases[] = {
		{"add --recovery=none --zero-copy=on", "null size=1M", "needs --mode=uring",
			UBLK_F_AUTO_BUF_REG},
		{"add --recovery=none --zero-copy=on --mode=uring", s3, "needs --mode=uring and",
			UBLK_F_AUTO_BUF_REG},
		{"add --recovery=none --zero-copy=on --mode=uring", "null size=1M",
			"no AUTO_BUF_REG", 0},
	};
	char said[1024];

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		assert_int_equal(serve(cases[i].features, cases[i].options, cases[i].device, said),
			EXIT_USAGE);
		assert_holds(said, "--zero-copy=on: ");
		assert_holds(said, cases[i].said);
		assert_int_equal(world.opened, 0);
	}
	/* Only the device can tell. */
	assert_int_equal(
		serve(UBLK_F_AUTO_BUF_REG, "add --recovery=none --zero-copy=on --mode=uring",
			"null size=1M", said),
		EXIT_USAGE);
	assert_holds(said, "and a device that is a file");
	assert_int_equal(world.opened, 1);
}

/* A store that does not answer is waited for. */
static void test_a_signal_ends_a_server_that_opens_its_device(void **state)
{
	char said[1024];
	pid_t child = fork();
	int status;

	(void)state;
	assert_true(child >= 0);
	if (child == 0) {
		world.signal = SIGTERM;
		serve(0, "add --recovery=none", "null size=1M", said);
		_exit(99);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGTERM);
	/* Once there is a disk, it has to be removed. */
	assert_int_equal(serve(0, "add --recovery=none", "null size=1M", said), 0);
	assert_true(world.blocked);
}

static void test_what_the_driver_refuses_has_a_remedy(void **state)
{
	static const struct {
		int added, queue;
		const char *options, *said;
	} cases[] = {
		{-EACCES, 0, "add --recovery=none",
			"userblk-ublk: ADD_DEV: Permission denied; the driver has as many disks as "
			"it may (parameter ublks_max of ublk_drv): delete one, or raise it\n"},
		{-EPERM, 0, "add --recovery=none",
			"userblk-ublk: ADD_DEV: Operation not permitted; run as root, with "
			"CAP_SYS_ADMIN\n"},
		{-ENOMEM, 0, "add --recovery=none",
			"userblk-ublk: ADD_DEV: Cannot allocate memory\n"},
		{-ENOMEM, 0, "add --recovery=none --number=7",
			"userblk-ublk: ublk7: ADD_DEV: Cannot allocate memory\n"},
		{0, -EAGAIN, "add --recovery=none",
			"userblk-ublk: ublk7: cannot start the queues: Resource temporarily "
			"unavailable; use fewer --queues, --depth or --threads\n"},
		{0, -ENOMEM, "add --recovery=none",
			"userblk-ublk: ublk7: cannot start the queues: Cannot allocate memory; "
			"use fewer --queues, --depth or --threads\n"},
		{0, -EIO, "add --recovery=none",
			"userblk-ublk: ublk7: cannot start the queues: Input/output error\n"},
	};
	char said[1024];

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		world.added = cases[i].added;
		world.queue = cases[i].queue;
		assert_int_equal(serve(0, cases[i].options, "null size=1M", said), EXIT_FAILURE);
		assert_string_equal(said, cases[i].said);
	}
}

/* Its number may be another disk's by the time at which the device has kept what it could. */
static void test_a_disk_that_was_stopped_is_known_by_its_cookie(void **state)
{
	char said[1024];

	(void)state;
	world.known = 0;
	world.info = (struct ublksrv_ctrl_dev_info){
		.dev_id = 7, .state = UBLK_S_DEV_LIVE, .ublksrv_flags = COOKIE + 1};
	world.closed = -EIO;
	assert_int_equal(serve(0, "add --recovery=none", "null size=1M", said), EXIT_FAILURE);
	assert_true(world.failure == COOKIE);
	/* Another server has it. */
	world.failure = 0;
	world.info.ublksrv_flags = COOKIE;
	assert_int_equal(serve(0, "add --recovery=none", "null size=1M", said), EXIT_FAILURE);
	assert_true(world.failure == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(
			test_a_number_that_is_taken_is_refused_before_the_device_is_opened, set_up),
		cmocka_unit_test_setup(
			test_zero_copy_is_refused_before_the_device_is_opened, set_up),
		cmocka_unit_test_setup(test_a_signal_ends_a_server_that_opens_its_device, set_up),
		cmocka_unit_test_setup(test_what_the_driver_refuses_has_a_remedy, set_up),
		cmocka_unit_test_setup(test_a_disk_that_was_stopped_is_known_by_its_cookie, set_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
