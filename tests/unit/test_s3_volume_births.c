/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Volumes, clones and roots that come into being over a store in this process: what was stored
 * counts, even if the answer was lost, and what stands in their place is seen.
 */
#include <errno.h>
#include <string.h>

#include "backends/params.h"
#include "backends/s3/core/config.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/lifecycle/lifecycle.h"
#include "tests/unit/s3_writers.h"

/* Another volume in the same store. */
#define OTHER "endpoint=http://127.0.0.1;bucket=abc;uploads=2;memory=64M;volume=c;"

static int make_clone(struct device *d)
{
	return s3_volume_clone(volume_of(d), "s", "userblk", "c");
}

/* Makes the clone; such a PUT arrives twice, as one does that a proxy sends again. */
static int clone_twice(struct device *d, const char *key)
{
	struct job job;

	fake_store_hold_answers(S3_PUT, key, true);
	start_job(&job, d, make_clone);
	fake_store_wait_held(S3_PUT, key);
	fake_store_release(S3_PUT, key);
	return end_job(&job);
}

/* The clone is there, although the answer says that something was there before: it needs its
 * parent's snapshot. */
static void test_a_clone_that_arrives_twice(void **state)
{
	static const char *const keys[] = {"/s/child/", "/c/super"};
	uint8_t block[BLOCK];
	struct device a;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		create_with_a_write(&a);
		assert_int_equal(create_snapshot(&a), 0);
		assert_int_equal(clone_twice(&a, keys[i]), 0);
		assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), -EBUSY);
		device_close(&a);
		device_open(&a, &s3_backend, OTHER);
		assert_int_equal(device_read(&a, block, BLOCK, 0), 0);
		assert_int_equal(block[0], 1);
		device_close(&a);
	}
	fake_store_reset();
}

/* The PUT arrives, its answer does not, and the next attempt is refused for another reason. */
static void test_a_clone_that_arrives_and_is_refused(void **state)
{
	struct device a;
	struct job job;

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(create_snapshot(&a), 0);
	fake_store_hold_answers(S3_PUT, "/c/super", true);
	start_job(&job, &a, make_clone);
	fake_store_wait_held(S3_PUT, "/c/super");
	fake_store_fail(S3_PUT, "/c/super", -EACCES, 1);
	fake_store_release(S3_PUT, "/c/super");
	assert_int_equal(end_job(&job), -EACCES);
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), -EBUSY);
	device_close(&a);
	fake_store_reset();
}

/* A name that is taken stays so, and costs the snapshot nothing. */
static void test_a_clone_of_a_name_that_is_taken(void **state)
{
	struct device a, b;
	struct job job;

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(create_snapshot(&a), 0);
	start_held_job(&job, &a, make_clone, S3_PUT, "/s/child/");
	device_open(&b, &s3_backend, OTHER "create=on;size=1M");
	device_close(&b);
	fake_store_release(S3_PUT, "/s/child/");
	assert_int_equal(end_job(&job), -EEXIST);
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), 0);
	device_close(&a);
	fake_store_reset();
}

/* The first pages of a listing may be empty: what was there has been deleted. */
static void test_a_name_that_is_seen_on_a_later_page(void **state)
{
	struct device a;

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(create_snapshot(&a), 0);
	fake_store_set("userblk/c/gc/00/0000000000000001", "x", 1);
	fake_store_begin_empty();
	assert_int_equal(make_clone(&a), -EEXIST);
	assert_int_equal(fake_store_object("/c/super", NULL, 0), SIZE_MAX);
	device_close(&a);
	fake_store_reset();
}

static void ignore(void *opaque, const char *message)
{
	(void)opaque;
	(void)message;
}

/* For a job: creates the volume, as userblk-s3 does. */
static int create_new(struct device *d)
{
	struct params *params = params_new(&s3_backend);
	struct params_error error;
	struct s3_config config;
	struct s3_volume *v;
	int r;

	(void)d;
	assert_int_equal(params_set_string(params, COMMON "create=on;size=1M", &error), 0);
	assert_int_equal(params_complete(params, false, &error), 0);
	config = *(const struct s3_config *)params_config(params);
	config.exclusive = true;
	r = s3_volume_open(&config, 0, &(struct backend_host){.error = ignore}, &v);
	if (r == 0)
		r = s3_volume_close(v);
	params_free(params);
	return r;
}

static void test_a_volume_that_arrives_twice(void **state)
{
	struct job job;

	(void)state;
	fake_store_reset();
	fake_store_hold_answers(S3_PUT, "/v/super", true);
	start_job(&job, NULL, create_new);
	fake_store_wait_held(S3_PUT, "/v/super");
	fake_store_release(S3_PUT, "/v/super");
	assert_int_equal(end_job(&job), 0);
	assert_int_equal(create_new(NULL), -EEXIST);
	fake_store_reset();
}

static void test_a_root_that_arrives_twice(void **state)
{
	struct device a;
	struct job job;

	(void)state;
	create_with_a_write(&a);
	fake_store_hold_answers(S3_PUT, "/root", true);
	start_job(&job, &a, try_checkpoint);
	fake_store_wait_held(S3_PUT, "/root");
	fake_store_release(S3_PUT, "/root");
	assert_int_equal(end_job(&job), 0);
	device_close(&a);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_clone_that_arrives_twice),
		cmocka_unit_test(test_a_clone_that_arrives_and_is_refused),
		cmocka_unit_test(test_a_clone_of_a_name_that_is_taken),
		cmocka_unit_test(test_a_name_that_is_seen_on_a_later_page),
		cmocka_unit_test(test_a_volume_that_arrives_twice),
		cmocka_unit_test(test_a_root_that_arrives_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
