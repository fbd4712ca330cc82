/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How the adapter for tcmu-runner learns that the daemon ends, while a device waits for something
 * out of reach. What the kernel has of the disk is the test's, and so is the time between looks.
 */
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tcmu-handlers/ending.h"
#include "tests/unit/tcmu_disk.h"

FILE *__wrap_fopen64(const char *path, const char *mode);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_open64(const char *path, int flags, ...);

/* What the kernel has of /dev/null, which is the UIO device. */
static char name[] = "tcm-user/7/disk/userblk_test/file=x";

/* Another pause may end, and another one has begun. */
static sem_t ends, began;

static atomic_int stops;
static atomic_bool waits;
static bool looks; /* there is a thread */

FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode)
{
	if (strcmp(path, "/sys/dev/char/1:3/name") == 0)
		return fmemopen(name, strlen(name), "r");
	return __real_fopen64(path, mode);
}

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list more;

	if (flags & O_CREAT) {
		va_start(more, flags);
		mode = va_arg(more, mode_t);
		va_end(more);
	}
	if (strcmp(path, "/sys/kernel/config/target/core/user_7/disk/action/block_dev") == 0)
		path = scratch_path("block_dev");
	return __real_open64(path, flags, mode);
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
	(void)time;
	(void)left;
	sem_post(&began);
	while (sem_wait(&ends) < 0)
		;
	return 0;
}

static void await_pause(void)
{
	while (sem_wait(&began) < 0)
		;
}

/* So many looks, to their end. */
static void let_it_look(int times)
{
	if (!looks)
		await_pause();
	looks = true;
	for (int i = 0; i < times; i++) {
		sem_post(&ends);
		await_pause();
	}
}

static void set_blocked(bool blocked)
{
	int fd = open(scratch_path("block_dev"), O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_true(dprintf(fd, blocked ? "blocked\n" : "online\n") > 0);
	close(fd);
}

static void count_stop(struct backend *b)
{
	(void)b;
	stops++;
}

static bool is_waiting(struct backend *b)
{
	(void)b;
	return waits;
}

/* Opens the disk again, with a device that waits, and a ring that the kernel may block. */
static void open_waiting(void)
{
	registered->close(&dev);
	ops.stop = count_stop;
	ops.stalled = is_waiting;
	prepare("");
	dev.uio = open("/dev/null", O_RDWR | O_CLOEXEC);
	assert_true(dev.uio >= 0);
	set_blocked(false);
	stops = 0;
	waits = true;
	assert_int_equal(registered->open(&dev, false), 0);
}

static void close_waiting(void)
{
	registered->close(&dev);
	close(dev.uio);
}

static void test_a_daemon_that_ends_blocks_its_disks(void **state)
{
	(void)state;
	open_waiting();
	let_it_look(10);
	assert_int_equal(stops, 0);
	set_blocked(true);
	let_it_look(10);
	assert_int_equal(stops, 1);
	close_waiting();
}

/* A new daemon opens it, or an administrator looks at something. */
static void test_a_disk_that_is_blocked_for_a_moment_goes_on(void **state)
{
	(void)state;
	open_waiting();
	for (int times = 0; times < 3; times++) {
		set_blocked(true);
		let_it_look(3);
		set_blocked(false);
		let_it_look(1);
	}
	/* Nor do looks count that were long ago. */
	set_blocked(true);
	let_it_look(4);
	waits = false;
	let_it_look(1);
	waits = true;
	let_it_look(4);
	assert_int_equal(stops, 0);
	let_it_look(2);
	assert_int_equal(stops, 1);
	close_waiting();
}

static int begin(void **state)
{
	(void)state;
	return sem_init(&ends, 0, 0) || sem_init(&began, 0, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_a_daemon_that_ends_blocks_its_disks, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_a_disk_that_is_blocked_for_a_moment_goes_on, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, begin, NULL);
}
