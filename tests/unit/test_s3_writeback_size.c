/* SPDX-License-Identifier: BSD-3-Clause */
/* The file or device of a write-back log has another size than when it was written. */
#include <fcntl.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/s3/core/volume.h"
#include "backends/s3/log/log.h"
#include "tests/unit/s3_write_back.h"

/* ---- files that are devices --------------------------------------------------------------- */

static uint64_t device_bytes; /* of each write-back log; 0: it is a file */

int __real_stat64(const char *path, struct stat *st);
int __wrap_stat64(const char *path, struct stat *st);
int __real_fstat64(int fd, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st);
int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...);

static int as_device(int r, struct stat *st)
{
	if (r == 0 && device_bytes && S_ISREG(st->st_mode))
		st->st_mode = (st->st_mode & ~(mode_t)S_IFMT) | S_IFBLK;
	return r;
}

int __wrap_stat64(const char *path, struct stat *st)
{
	return as_device(__real_stat64(path, st), st);
}

int __wrap_fstat64(int fd, struct stat *st)
{
	return as_device(__real_fstat64(fd, st), st);
}

int __wrap_ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *value;

	va_start(args, request);
	value = va_arg(args, void *);
	va_end(args);
	if (!device_bytes || request != BLKGETSIZE64)
		return __real_ioctl(fd, request, value);
	memcpy(value, &device_bytes, sizeof device_bytes);
	return 0;
}

/* ---- the tests ---------------------------------------------------------------------------- */

static void resize(const char *path, uint64_t bytes)
{
	assert_int_equal(truncate(path, (off_t)bytes), 0);
}

/* Flushes so much that the ring begins again, the last of it not into the store; then crashes. */
static void crash_behind_the_end_of_the_ring(struct device *d)
{
	fake_store_hold(S3_PUT, NULL);
	for (unsigned i = 0; i < 22; i++) {
		/* What is not stored by then takes memory, for which writes would wait. */
		if (i == 18) {
			assert_int_equal(s3_log_drain((struct s3_volume *)d->backend), 0);
			fake_store_hold(S3_PUT, "/log/");
		}
		change(d, i % 8 * 512 * KIB, 500 * KIB, i + 1);
		flush(d);
	}
	assert_int_equal(device_counter(d, "write_back_full"), 0);
	crash_with_log(d);
}

static void test_a_larger_file(void **state)
{
	const char *path = new_path();
	struct device d;

	(void)state;
	create(&d, path, "");
	for (unsigned turn = 2; turn < 5; turn++) {
		crash_behind_the_end_of_the_ring(&d);
		resize(path, turn * LOG);
		reopen(&d, path, "");
		assert_in_range(device_counter(&d, "write_back_replayed"), 4, 22);
		holds_model(&d);
	}
	device_close(&d);
	/* What it has become does not have to stay. */
	resize(path, LOG);
	reopen_and_check(path, "");
}

static void test_a_smaller_file(void **state)
{
	const char *path = new_path();
	struct device d;

	(void)state;
	create(&d, path, "");
	device_close(&d);
	resize(path, 2 * LOG);
	reopen(&d, path, "");
	fake_store_hold(S3_PUT, "/log/");
	for (unsigned i = 0; i < 3; i++) {
		change(&d, i * BLOCK, BLOCK, i);
		flush(&d);
	}
	crash_with_log(&d);
	resize(path, LOG);
	refused("v", path, "", "is smaller than when it was written; give it 16777216 bytes again");
	resize(path, 2 * LOG);
	reopen(&d, path, "");
	holds_model(&d);

	fake_store_hold(S3_PUT, "/log/");
	change(&d, 0, BLOCK, 7);
	flush(&d);
	crash_with_log(&d);
	resize(path, LOG);
	/* What is there is not lost. */
	reopen(&d, path, "write-back-discard=on");
	assert_int_equal(d.reported.errors, 1);
	assert_holds(d.reported.error, "are lost, because of write-back-discard=on");
	holds_model(&d);
	crash_with_log(&d);
	reopen_and_check(path, "");
}

/* No log is as small: no other size is chosen, or what was cut off would count as torn. */
static void test_a_file_that_was_truncated(void **state)
{
	const char *path = new_path();
	struct stat st;

	(void)state;
	crash_after_a_write(path);
	resize(path, RING + BLOCK);
	refused("v", path, "", "was truncated");
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, RING + BLOCK);
	fake_store_reset();
}

/* The number of the first object that the log in the store lacks. */
static unsigned end_of_log(void)
{
	char end[32];

	for (unsigned seq = 1;; seq++) {
		snprintf(end, sizeof end, "/%016x", seq);
		if (fake_store_object(end, NULL, 0) == SIZE_MAX)
			return seq;
	}
}

static void test_a_crash_in_the_replay_of_another_size(void **state)
{
	const char *path = new_path();
	char second[32];
	struct device d;

	(void)state;
	for (unsigned after = 1; after < 4; after++) {
		create(&d, path, "");
		crash_behind_the_end_of_the_ring(&d);
		resize(path, 2 * LOG);
		/* The fence and the first object of the replay are stored. */
		snprintf(second, sizeof second, "/%016x", end_of_log() + 2);
		fake_store_fail(S3_PUT, second, -EIO, 1);
		assert_int_not_equal(attempt(&d, "v", path, ""), 0);
		assert_int_equal(fake_store_failed(), 1);
		resize(path, after * LOG);
		reopen(&d, path, "");
		holds_model(&d);
		crash_behind_the_end_of_the_ring(&d);
		reopen_and_check(path, "");
		unlink(path);
	}
}

/* The new size is that of the log as soon as the log is the new writer's, and not before. */
static void test_a_crash_while_it_is_taken_over(void **state)
{
	const char *path = new_path();
	struct device d;

	(void)state;
	for (unsigned failing = 0; failing < 2; failing++) {
		create(&d, path, "");
		crash_behind_the_end_of_the_ring(&d);
		resize(path, 2 * LOG);
		/* Neither the new owner arrives, nor the end. */
		fake_store_fail(S3_PUT, "/v/super", -EIO, 1000);
		if (failing)
			fake_store_fail_late("/v/super", -EIO, 1);
		assert_int_not_equal(attempt(&d, "v", path, ""), 0);
		fake_store_fail(S3_PUT, "/v/super", 0, 0);
		fake_store_arrive();
		reopen(&d, path, "");
		holds_model(&d);
		crash_behind_the_end_of_the_ring(&d);
		reopen_and_check(path, "");
		unlink(path);
	}
}

/* First a part of a device, then all of it. */
static void test_a_device(void **state)
{
	const char *path = new_path();
	struct device d;
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	(void)state;
	close(fd);
	resize(path, 3 * LOG);
	device_bytes = 3 * LOG;
	create(&d, path, ""); /* with write-back-size= */
	crash_behind_the_end_of_the_ring(&d);
	reopen(&d, path, "");
	holds_model(&d);
	crash_behind_the_end_of_the_ring(&d);
	refused("v", path, "write-back-size=8M",
		"give it 25165824 bytes again (by write-back-size=, if it is a device)");
	reopen(&d, path, "write-back-size=24M");
	holds_model(&d);
	device_close(&d);
	/* Nothing is in it. */
	reopen_and_check(path, "write-back-size=8M");
	device_bytes = 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_larger_file),
		cmocka_unit_test(test_a_smaller_file),
		cmocka_unit_test(test_a_file_that_was_truncated),
		cmocka_unit_test(test_a_crash_in_the_replay_of_another_size),
		cmocka_unit_test(test_a_crash_while_it_is_taken_over),
		cmocka_unit_test(test_a_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
