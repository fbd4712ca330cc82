/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two writers of an S3 volume over a store in this process: nothing that one of them was told to
 * be durable is lost when the other takes over, whatever is late.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/core/volume.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/support.h"

#define BLOCK  4096u
#define COMMON "endpoint=http://127.0.0.1;bucket=abc;uploads=2;memory=64M;volume=v;"

static struct s3_volume *volume_of(struct device *d)
{
	return (struct s3_volume *)d->backend;
}

static void create(struct device *d, const char *more)
{
	fake_store_reset();
	device_open(d, &s3_backend, COMMON "create=on;size=64M;%s", more);
}

static void reopen(struct device *d)
{
	device_open(d, &s3_backend, COMMON);
}

/* Block i of the volume is made to hold value, durably. */
static int write_block(struct device *d, unsigned i, unsigned value)
{
	uint8_t block[BLOCK];

	memset(block, (int)value, BLOCK);
	return device_write(d, block, BLOCK, (uint64_t)i * BLOCK, BACKEND_FUA);
}

/* Something that a writer does, beside the test. */
struct job {
	pthread_t thread;
	struct device *d;
	int (*run)(struct device *d);
	int result;
};

static void *run_job(void *opaque)
{
	struct job *job = opaque;

	job->result = job->run(job->d);
	return NULL;
}

static void start(struct job *job, struct device *d, int (*what)(struct device *d))
{
	*job = (struct job){.d = d, .run = what};
	assert_int_equal(pthread_create(&job->thread, NULL, run_job, job), 0);
}

static int end(struct job *job)
{
	pthread_join(job->thread, NULL);
	return job->result;
}

static int create_snapshot(struct device *d)
{
	return s3_snapshot_create(volume_of(d), "s");
}

static int write_next(struct device *d)
{
	return write_block(d, 1, 2);
}

/* ---- is there another writer? -----------------------------------------------------------------
 */

/*
 * What stands behind the frontier may be our own, with the other writer's fence behind it: a
 * snapshot that he does not know of is not acknowledged.
 */
static void test_fence_behind_our_own_object(void **state)
{
	struct s3_snapshot_info *list;
	struct job snapshot, write;
	struct device a, b;
	char key[64];
	size_t n;

	(void)state;
	create(&a, "");
	assert_int_equal(write_block(&a, 0, 1), 0);
	fake_store_hold(S3_PUT, "/snap/");
	start(&snapshot, &a, create_snapshot);
	fake_store_wait_held(S3_PUT, "/snap/");
	/* It is stored, and the writer has not yet been told so. */
	snprintf(key, sizeof key, "/%016llx", (unsigned long long)volume_of(&a)->next_seq);
	fake_store_hold_answers(S3_PUT, key, false);
	start(&write, &a, write_next);
	fake_store_wait_held(S3_PUT, key);
	reopen(&b);
	fake_store_release(S3_PUT, "/snap/");
	assert_int_not_equal(end(&snapshot), 0);
	fake_store_release(S3_PUT, NULL);
	end(&write);
	assert_int_equal(s3_snapshot_list(volume_of(&b), &list, &n), 0);
	assert_int_equal(n, 0);
	free(list);
	device_close(&b);
	device_close(&a);
	fake_store_reset();
}

/* However much is uploaded beside it. */
static void test_not_fenced_while_it_writes(void **state)
{
	struct job write;
	struct device a;
	char key[64];

	(void)state;
	create(&a, "");
	assert_int_equal(write_block(&a, 0, 1), 0);
	snprintf(key, sizeof key, "/%016llx", (unsigned long long)volume_of(&a)->next_seq);
	fake_store_hold_answers(S3_PUT, key, false);
	start(&write, &a, write_next);
	fake_store_wait_held(S3_PUT, key);
	assert_int_equal(s3_check_not_fenced(volume_of(&a)), 0);
	fake_store_release(S3_PUT, NULL);
	assert_int_equal(end(&write), 0);
	device_close(&a);
	fake_store_reset();
}

/* ---- what the store has to know ----------------------------------------------------------------
 */

static void refused(bool if_none_match, bool if_match, const char *what)
{
	struct device d;

	fake_store_reset();
	fake_store_ignore(if_none_match, if_match);
	assert_int_equal(device_try(&d, &s3_backend, 0, COMMON "create=on;size=64M"), -EOPNOTSUPP);
	assert_holds(d.told.error, what);
	assert_int_equal(d.told.errors, 1);
	assert_int_equal(fake_store_requests(S3_PUT, "/super"), 0);
	assert_int_equal(fake_store_object("", NULL, 0), SIZE_MAX); /* nothing is left behind */
	fake_store_reset();
}

static void test_store_without_conditions(void **state)
{
	struct device d;

	(void)state;
	refused(true, false, "fencing=auto: this store ignores If-None-Match, ");
	refused(false, true, "fencing=auto: this store ignores If-Match, ");
	refused(true, true, "fencing=auto: this store ignores If-None-Match and If-Match, ");
	fake_store_ignore(true, true);
	device_open(&d, &s3_backend, COMMON "create=on;size=64M;fencing=none");
	device_close(&d);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fence_behind_our_own_object),
		cmocka_unit_test(test_not_fenced_while_it_writes),
		cmocka_unit_test(test_store_without_conditions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
