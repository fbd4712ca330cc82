/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The write-back log over a store in this process: what was flushed is there whatever becomes of
 * the store or of the log's disk.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/log/log.h"
#include "tests/unit/s3_write_back.h"

static _Atomic int sync_result;
static _Atomic unsigned syncs_left; /* until one fails; 0: none does */

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);

int __wrap_fdatasync(int fd)
{
	bool fails = syncs_left && --syncs_left == 0;

	if (!sync_result && !fails)
		return __real_fdatasync(fd);
	errno = fails ? EIO : -sync_result;
	return -1;
}

static void test_a_flush_does_not_wait_for_the_store(void **state)
{
	const char *path = new_path();
	struct device d;

	(void)state;
	create(&d, path, "");
	fake_store_hold(S3_PUT, "/log/");
	change(&d, 0, 64 * KIB, 1);
	flush(&d);
	change(&d, 100 * KIB, 8 * KIB, 2);
	assert_int_equal(device_write(&d, model + 100 * KIB, 8 * KIB, 100 * KIB, BACKEND_FUA), 0);
	assert_int_equal(device_counter(&d, "write_back_failed"), 0);
	assert_true(device_counter(&d, "write_back_entries") >= 2);
	holds_model(&d);
	crash_with_log(&d);
	reopen(&d, path, "");
	assert_true(device_counter(&d, "write_back_replayed") >= 2);
	holds_model(&d);
	device_close(&d);
	/* It was closed: neither the log is needed, nor is anything in it. */
	reopen(&d, NULL, "");
	holds_model(&d);
	device_close(&d);
	reopen(&d, path, "");
	assert_int_equal(device_counter(&d, "write_back_replayed"), 0);
	holds_model(&d);
	device_close(&d);
	fake_store_reset();
}

static void random_change(struct device *d, unsigned *seed)
{
	unsigned r = *seed = *seed * 1103515245 + 12345;
	uint64_t offset = (r >> 8) % SIZE, length = 1 + (r >> 4) % (96 * KIB);

	if (length > SIZE - offset)
		length = SIZE - offset;
	switch (r >> 28 & 7) {
	case 0:
		assert_int_equal(backend_zero(d->backend, offset, length, 0), 0);
		memset(model + offset, 0, length);
		break;
	case 1:
		offset = offset / BLOCK * BLOCK;
		length = (length + BLOCK - 1) / BLOCK * BLOCK;
		assert_int_equal(backend_trim(d->backend, offset, length, 0), 0);
		memset(model + offset, 0, length);
		break;
	default:
		change(d, offset, length, r);
	}
}

static void model_test(const char *more)
{
	const char *path = new_path();
	unsigned seed = 7;
	struct device d;

	create(&d, path, more);
	for (int life = 0; life < 8; life++) {
		/* In some lives a part arrives, in others nothing does. */
		if (life % 2)
			fake_store_hold(S3_PUT, "/log/");
		for (int i = 0; i < 40; i++) {
			random_change(&d, &seed);
			if (i % 8 == 3)
				flush(&d);
			if (i == 20)
				fake_store_hold(S3_PUT, "/log/");
		}
		flush(&d);
		holds_model(&d);
		crash_with_log(&d);
		reopen(&d, path, "");
		holds_model(&d);
	}
	device_close(&d);
	fake_store_reset();
}

static void test_model(void **state)
{
	(void)state;
	model_test("");
}

static void test_model_compressed(void **state)
{
	(void)state;
	model_test("compress=zstd;");
}

static void test_what_was_not_flushed_is_a_prefix(void **state)
{
	const char *path = new_path();
	struct device d;

	(void)state;
	create_with_a_write(&d, path);
	assert_int_equal(device_write(&d, there, BLOCK, BLOCK, 0), 0); /* lost, as it may be */
	crash_with_log(&d);
	reopen_and_check(path, "");
}

static void test_bad_files_and_parameters(void **state)
{
	const char *path = scratch_file("something", 64 * KIB);
	struct device d;
	int fd = open(path, O_WRONLY);

	(void)state;
	assert_int_equal(pwrite(fd, "precious", 8, 0), 8);
	close(fd);
	create(&d, new_path(), "");
	device_close(&d);
	refused("v", path, "", "something else than a write-back log");
	refused("v", "/nonexistent/log", "", "write-back=");
	refused("v", scratch_path("new"), "flush=weak", "never waits");
	refused("v", scratch_path("new"), "write-back-size=1M", "write-back-size=");
	refused("v", scratch_path("new"), "write-back-size=8M;batch-size=4M", "four times");
	refused("v", scratch_path("new"), "layout=direct", "layout=direct");
	refused("v", NULL, "write-back-size=64M", "needs a file");
	assert_int_equal(access(scratch_path("new"), F_OK), -1);
	fake_store_reset();
}

static void test_its_size_stays(void **state)
{
	const char *path = new_path();

	(void)state;
	crash_after_a_write(path);
	refused("v", path, "write-back-size=16M", "another size");
	reopen_and_check(path, "");
}

/* One that a user has made in the size that it shall have keeps that if nothing comes of the open.
 */
static void test_its_chosen_size_stays(void **state)
{
	const char *path = new_path();
	struct stat st;
	struct device d;
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	(void)state;
	assert_int_equal(ftruncate(fd, 3 * LOG), 0);
	close(fd);
	fake_store_reset();
	for (unsigned i = 0; i < 2; i++) {
		refused("v", path, "", "create");
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(st.st_size, 3 * LOG);
	}
	memset(model, 0, sizeof model);
	reopen(&d, path, "create=on;size=4M");
	change(&d, 0, BLOCK, 1);
	device_close(&d);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 3 * LOG);
	reopen_and_check(path, "");
}

static void test_objects_that_the_store_lost(void **state)
{
	const char *path = new_path();
	struct device d;

	(void)state;
	create(&d, path, "");
	change(&d, 0, BLOCK, 1);
	assert_int_equal(s3_log_drain((struct s3_volume *)d.backend), 0);
	fake_store_hold(S3_PUT, "/log/");
	change(&d, BLOCK, BLOCK, 2);
	flush(&d);
	crash_with_log(&d);
	fake_store_set("userblk/v/log/02/0000000000000002", NULL, 0);
	refused("v", path, "", "ends at object 1");
	fake_store_reset();
}

static void *write_all(void *opaque)
{
	struct device *d = opaque;

	/* Twice as much as there is room for; each time a little more than the ring divides into.
	 */
	for (unsigned i = 0; i < 2 * LOG / (64 * KIB); i++) {
		uint64_t offset = (uint64_t)i % 60 * 64 * KIB;

		if (device_write(d, model + offset, 64 * KIB, offset, BACKEND_FUA))
			return d;
	}
	return NULL;
}

static void test_a_full_log_waits_for_the_store(void **state)
{
	const char *path = new_path();
	pthread_t thread;
	struct device d;
	void *failed;

	(void)state;
	create(&d, path, "uploads=16;memory=128M;batch-size=1M;");
	fill(model, 60 * 64 * KIB, 5);
	fake_store_hold(S3_PUT, "/log/");
	pthread_create(&thread, NULL, write_all, &d);
	while (!device_counter(&d, "write_back_full"))
		usleep(1000);
	assert_true(device_counter(&d, "write_back_used_bytes") <= LOG);
	fake_store_hold(S3_PUT, NULL);
	pthread_join(thread, &failed);
	assert_null(failed);
	assert_int_equal(device_counter(&d, "write_back_failed"), 0);
	/* There is room again. */
	assert_int_equal(s3_log_drain((struct s3_volume *)d.backend), 0);
	fake_store_hold(S3_PUT, "/log/");
	change(&d, SIZE - BLOCK, BLOCK, 6);
	flush(&d);
	crash_with_log(&d);
	reopen_and_check(path, "");
}

static void *flush_it(void *opaque)
{
	struct device *d = opaque;

	return backend_flush(d->backend) ? d : NULL;
}

static void test_a_broken_disk_is_not_waited_for(void **state)
{
	const char *path = new_path();
	pthread_t thread;
	struct device d;
	void *failed;

	(void)state;
	create_with_a_write(&d, path);
	sync_result = -EIO;
	change(&d, BLOCK, BLOCK, 2);
	pthread_create(&thread, NULL, flush_it, &d);
	while (!device_counter(&d, "write_back_failed"))
		usleep(1000);
	sync_result = 0;
	fake_store_hold(S3_PUT, NULL);
	pthread_join(thread, &failed);
	assert_null(failed);
	assert_holds(d.reported.error, "flushes wait for the store");
	/* Now they do: it is not tried again. */
	change(&d, 2 * BLOCK, BLOCK, 3);
	flush(&d);
	assert_int_equal(device_counter(&d, "write_back_syncs"), 2);
	crash_with_log(&d);
	reopen(&d, path, "");
	assert_int_equal(device_counter(&d, "write_back_replayed"), 0);
	holds_model(&d);
	device_close(&d);
	fake_store_reset();
}

/* Does the super object name a writer whose log is needed? */
static bool is_named(void)
{
	uint8_t data[KIB];
	size_t length = fake_store_object("/v/super", data, sizeof data);
	struct s3_super super;
	bool named;

	assert_int_equal(s3_super_decode(data, length, &super), S3_GOOD);
	named = memcmp(super.write_back, (uint8_t[S3_UUID]){0}, S3_UUID) != 0;
	s3_super_free(&super);
	return named;
}

/* Once the store has what was in the log before its disk broke, nobody needs that any more. */
static void test_a_broken_disk_is_not_needed(void **state)
{
	const char *path = new_path();
	pthread_t thread;
	struct device d;
	void *failed;

	(void)state;
	for (int works = 0; works < 2; works++) {
		create_with_a_write(&d, path);
		sync_result = -EIO;
		change(&d, BLOCK, BLOCK, 2);
		/* The first block is in the log alone. */
		pthread_create(&thread, NULL, flush_it, &d);
		while (!device_counter(&d, "write_back_failed"))
			usleep(1000);
		usleep(100000);
		assert_true(is_named());
		if (works)
			sync_result = 0;
		fake_store_hold(S3_PUT, NULL);
		pthread_join(thread, &failed);
		assert_null(failed);
		for (unsigned i = 0; is_named(); i++) {
			if (i == 10000)
				fail_msg("the log of the broken disk is still needed");
			usleep(1000);
		}
		sync_result = 0;
		change(&d, 2 * BLOCK, BLOCK, 3);
		flush(&d);
		crash_with_log(&d);
		reopen_and_check(works ? path : NULL, "");
		unlink(path);
	}
}

struct flush {
	struct device *d;
	_Atomic bool done;
	int result;
};

static void *flush_beside(void *opaque)
{
	struct flush *f = opaque;

	f->result = backend_flush(f->d->backend);
	f->done = true;
	return NULL;
}

/* A flush that has to wait for the store fails if the store refuses, as without a log. */
static void test_a_broken_disk_and_a_store_that_refuses(void **state)
{
	const char *path = new_path();
	struct device d;
	struct flush f = {.d = &d};
	pthread_t thread;

	(void)state;
	create(&d, path, "");
	sync_result = -EIO;
	change(&d, 0, BLOCK, 1);
	flush(&d);
	assert_int_equal(device_counter(&d, "write_back_failed"), 1);
	sync_result = 0;
	fake_store_fail(S3_PUT, "/log/", -EACCES, 1000);
	change(&d, BLOCK, BLOCK, 2);
	assert_int_equal(pthread_create(&thread, NULL, flush_beside, &f), 0);
	for (unsigned i = 0; !f.done; i++) {
		if (i == 2000)
			fail_msg("it waits forever");
		usleep(10000);
	}
	pthread_join(thread, NULL);
	assert_int_equal(f.result, -EIO);
	fake_store_fail(S3_PUT, "/log/", 0, 0);
	for (unsigned i = 0; backend_flush(d.backend); i++) {
		assert_true(i < 2000);
		usleep(10000);
	}
	crash_with_log(&d);
	reopen_and_check(path, "");
}

/*
 * A volume was closed, and an open of it fails: whatever came of that, it is opened without the log
 * next.
 */
static void test_an_open_that_fails(void **state)
{
	const char *path = new_path();
	unsigned failed = 0;
	char more[320];
	struct device d;

	(void)state;
	create(&d, path, "");
	change(&d, 0, BLOCK, 1);
	device_close(&d);
	snprintf(more, sizeof more, "cache-file=%s;cache-size=16M", scratch_path("cache"));
	/* The log names its next owner, and begins; and the cache file has its header. */
	for (syncs_left = 1; attempt(&d, "v", path, more); syncs_left = failed + 1) {
		failed++;
		assert_int_equal(d.reported.errors, 1);
		syncs_left = 0;
		reopen(&d, NULL, "");
		holds_model(&d);
		device_close(&d);
	}
	syncs_left = 0;
	assert_int_equal(failed, 3);
	device_close(&d);
	fake_store_reset();
}

static void test_encrypted(void **state)
{
	const char *key = scratch_file("key", 32), *path = new_path();
	char more[512];
	struct device d;
	uint8_t *data;

	(void)state;
	snprintf(more, sizeof more, "encryption-key=%s;", key);
	assert_int_equal(chmod(key, 0644), 0);
	create(&d, path, more);
	assert_holds(d.reported.error, "/key: every user may read it; chmod 600 it");
	assert_int_equal(chmod(key, 0600), 0);
	fake_store_hold(S3_PUT, "/log/");
	change(&d, 0, 16 * KIB, 1);
	flush(&d);
	crash_with_log(&d);
	data = whole(path);
	assert_null(memmem(data, LOG, model, 32));
	assert_null(memmem(data, LOG, model + 8 * KIB, 32));
	free(data);
	reopen(&d, path, more);
	assert_int_equal(d.reported.errors, 0);
	assert_true(device_counter(&d, "write_back_replayed") > 0);
	holds_model(&d);
	device_close(&d);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_flush_does_not_wait_for_the_store),
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_model_compressed),
		cmocka_unit_test(test_what_was_not_flushed_is_a_prefix),
		cmocka_unit_test(test_bad_files_and_parameters),
		cmocka_unit_test(test_its_size_stays),
		cmocka_unit_test(test_its_chosen_size_stays),
		cmocka_unit_test(test_objects_that_the_store_lost),
		cmocka_unit_test(test_a_full_log_waits_for_the_store),
		cmocka_unit_test(test_a_broken_disk_is_not_waited_for),
		cmocka_unit_test(test_a_broken_disk_is_not_needed),
		cmocka_unit_test(test_a_broken_disk_and_a_store_that_refuses),
		cmocka_unit_test(test_an_open_that_fails),
		cmocka_unit_test(test_encrypted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
