/* SPDX-License-Identifier: BSD-3-Clause */
/* A writer of an S3 volume takes it over from one that goes on writing, or changes the size. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/core/config.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/lifecycle/lifecycle.h"
#include "backends/s3/recovery/internal.h"
#include "tests/unit/s3_writers.h"

/* ---- the size -----------------------------------------------------------------------------------
 */

static int grow(struct device *d)
{
	return s3_volume_resize(volume_of(d), 128 << 20);
}

/* A writer that takes over has the acknowledged size, whatever it read before. */
static void test_takeover_beside_a_resize(void **state)
{
	struct device a, b;
	struct job job;

	(void)state;
	create_with_a_write(&a);
	start_held_job(&job, &b, open_in_job, S3_LIST, "ckpt/");
	assert_int_equal(grow(&a), 0);
	fake_store_release(S3_LIST, NULL);
	assert_int_equal(end_job(&job), 0);
	assert_int_equal(b.backend->size, 128 << 20);
	crash(&a);
	crash(&b);
	/* A size that is stored after it has looked is not acknowledged. */
	create_with_a_write(&a);
	fake_store_hold_answers(S3_GET, "/super", false);
	start_job(&job, &a, grow);
	fake_store_wait_held(S3_GET, "/super");
	open_volume(&b);
	assert_int_equal(b.backend->size, 64 << 20);
	fake_store_release(S3_GET, NULL);
	assert_int_equal(end_job(&job), -EIO);
	crash(&b);
	crash(&a);
	fake_store_reset();
}

/* The store refuses the change, and an earlier attempt, which had no answer, makes it. */
static void test_a_size_that_comes_though_it_was_refused(void **state)
{
	struct device d;

	(void)state;
	fake_store_reset();
	create_with_a_write(&d);
	fake_store_fail_late("/super", -EACCES, 1);
	assert_int_equal(grow(&d), -EACCES);
	assert_holds(d.reported.error, "the size may be changed all the same; resize it again");
	assert_int_equal(d.backend->size, 64 << 20);
	device_close(&d);
	fake_store_reset();
}

static int shrink(struct device *d)
{
	return s3_volume_resize(volume_of(d), 32 << 20);
}

static int open_reader(struct device *d)
{
	return device_try(d, &s3_backend, 0, COMMON "readonly=on");
}

/* A reader that has read the size before a writer makes the volume larger, and its log after. */
static void test_reader_beside_a_resize(void **state)
{
	uint8_t block[BLOCK];
	struct device a, b;
	struct job job;

	(void)state;
	create_with_a_write(&a);
	start_held_job(&job, &b, open_reader, S3_LIST, "ckpt/");
	assert_int_equal(grow(&a), 0);
	assert_int_equal(write_block(&a, 25600, 2), 0);
	fake_store_release(S3_LIST, NULL);
	assert_int_equal(end_job(&job), 0);
	assert_int_equal(b.backend->size, 128 << 20);
	assert_int_equal(device_read(&b, block, BLOCK, 25600 * (uint64_t)BLOCK), 0);
	assert_int_equal(block[0], 2);
	device_close(&b);
	device_close(&a);
	fake_store_reset();
}

/* The volume becomes smaller, and its writer does not learn of it. */
static void shrink_without_an_answer(struct device *a)
{
	struct job job;

	create_with_a_write(a);
	fake_store_hold_answers(S3_PUT, "/super", false);
	start_job(&job, a, shrink);
	fake_store_wait_held(S3_PUT, "/super");
	fake_store_fail(S3_GET, "/log/", -EIO, 1);
	fake_store_release(S3_PUT, NULL);
	assert_int_equal(end_job(&job), -EIO);
	assert_int_equal(a->backend->size, 64 << 20);
}

/* What is written then beyond the end that the super object tells is not lost. */
static void test_writes_after_a_resize_without_an_answer(void **state)
{
	uint8_t block[BLOCK];
	struct device a, b;

	(void)state;
	shrink_without_an_answer(&a);
	assert_int_equal(write_block(&a, 12287, 2), 0);
	crash(&a);
	open_volume(&b);
	assert_int_equal(b.backend->size, 48 << 20);
	assert_holds(b.reported.error, "resize it");
	assert_int_equal(device_read(&b, block, BLOCK, 12287 * (uint64_t)BLOCK), 0);
	assert_int_equal(block[0], 2);
	crash(&b);
	/* With a root the size is known. */
	shrink_without_an_answer(&a);
	assert_int_equal(write_block(&a, 12287, 2), 0);
	assert_int_equal(try_checkpoint(&a), 0);
	crash(&a);
	open_volume(&b);
	assert_int_equal(b.backend->size, 64 << 20);
	crash(&b);
	/* A resize to the size that it still has stores it. */
	shrink_without_an_answer(&a);
	assert_int_equal(s3_volume_resize(volume_of(&a), 64 << 20), 0);
	crash(&a);
	open_volume(&b);
	assert_int_equal(b.backend->size, 64 << 20);
	device_close(&b);
	fake_store_reset();
}

/* ---- a writer that does not pause ---------------------------------------------------------------
 */

/*
 * The fence ahead of a writer that began with an old root may stand in a hole of the log that a
 * collection has made. With a newer root it puts another one.
 */
static void test_each_attempt_may_stop_a_writer(void **state)
{
	struct device a, b;
	struct s3_recovery p;

	(void)state;
	create_volume(&a, "size=64M");
	device_open(&b, &s3_backend, COMMON);
	p = (struct s3_recovery){.v = volume_of(&b)};
	for (unsigned i = 0; i < 2; i++) {
		uint64_t end;
		unsigned puts;

		assert_int_equal(s3_recovery_load_newest_root(volume_of(&b), &p), 0);
		p.window = s3_recovery_make_window();
		assert_int_equal(s3_recovery_follow(volume_of(&b), &p, 4), 0);
		s3_recovery_free_window(p.window);
		end = volume_of(&b)->applied;
		puts = fake_store_requests(S3_PUT, "/log/");
		for (unsigned j = 0; j < 2; j++)
			assert_int_equal(s3_recovery_stop_writer(volume_of(&b), &p), 0);
		assert_true(fake_store_requests(S3_PUT, "/log/") > puts);
		assert_int_not_equal(fake_store_object(log_key(end + 16), NULL, 0), SIZE_MAX);
		assert_int_equal(p.ahead, 5);
	}
	free(p.gc);
	device_close(&b);
	device_close(&a);
	fake_store_reset();
}

/* Objects of A are there up to that number. */
static void write_up_to(struct device *a, uint64_t number)
{
	while (volume_of(a)->applied < number)
		assert_int_equal(write_block(a, (unsigned)(volume_of(a)->applied % 64), 1), 0);
}

static int open_readonly(struct device *d)
{
	device_open(d, &s3_backend, COMMON "readonly=on");
	return 0;
}

static int open_with_log(struct device *d)
{
	device_open(d, &s3_backend, COMMON "write-back=%s;write-back-size=64M",
		scratch_path("write-back"));
	return 0;
}

/*
 * A process that may not simply stop a writer follows it no further than necessary, even if there
 * is always one more object when it asks.
 */
static void test_a_busy_writer_is_not_followed_for_ever(void **state)
{
	const uint64_t horizon = 4 + 15 * 64 + 128;
	char last[32], next[32];
	struct device a, b;
	struct job job;

	(void)state;
	for (int readonly = 0; readonly < 2; readonly++) {
		create_volume(&a, "size=64M");
		fake_store_hold(S3_PUT, "/ckpt/");
		write_up_to(&a, horizon - 64);
		snprintf(last, sizeof last, "%s", log_key(horizon - 64));
		start_held_job(&job, &b, readonly ? open_readonly : open_with_log, S3_GET, last);
		for (uint64_t end = horizon; end <= horizon + 64; end += 64) {
			write_up_to(&a, end);
			snprintf(next, sizeof next, "%s", log_key(end));
			if (!readonly || end == horizon)
				fake_store_hold(S3_GET, next);
			fake_store_release(S3_GET, last);
			strcpy(last, next);
			if (!readonly || end == horizon)
				fake_store_wait_held(S3_GET, last);
		}
		fake_store_release(S3_GET, last);
		assert_int_equal(end_job(&job), 0);
		if (readonly)
			assert_int_equal(volume_of(&b)->applied, horizon);
		else
			assert_int_not_equal(
				fake_store_object(log_key(horizon + 128), NULL, 0), SIZE_MAX);
		crash(&a);
		if (readonly)
			device_close(&b);
		else
			crash(&b);
	}
	fake_store_reset();
}

#define HURRY	 "endpoint=http://127.0.0.1;bucket=abc;uploads=8;memory=160M;volume=v;"
#define WRITERS	 8
#define DISTANCE 128 /* blocks of each */

struct hurry {
	struct device *d;
	pthread_t thread;
	unsigned first;		  /* block */
	_Atomic unsigned written; /* durable writes: number n went to block first + n % DISTANCE */
};

static void *write_on(void *opaque)
{
	struct hurry *h = opaque;
	unsigned n = 0;

	while (write_block(h->d, h->first + n % DISTANCE, n & 0xff) == 0)
		atomic_store(&h->written, ++n);
	return NULL;
}

static void check_hurry(struct device *d, const struct hurry *h)
{
	unsigned last = h->written - 1;
	uint8_t block[BLOCK];

	assert_true(h->written > 0);
	assert_int_equal(
		device_read(d, block, BLOCK, (uint64_t)(h->first + last % DISTANCE) * BLOCK), 0);
	assert_int_equal(block[0], last & 0xff);
}

/* Takes over from one that is written to by several at once; then what it writes lasts. */
static void test_takeover_of_a_busy_writer(void **state)
{
	struct hurry hurry[WRITERS];
	struct timespec began, now;
	struct device a, b, c;

	(void)state;
	fake_store_reset();
	device_open(&a, &s3_backend, HURRY "create=on;size=64M");
	for (unsigned i = 0; i < WRITERS; i++) {
		hurry[i] = (struct hurry){.d = &a, .first = i * DISTANCE};
		assert_int_equal(pthread_create(&hurry[i].thread, NULL, write_on, &hurry[i]), 0);
	}
	while (hurry[WRITERS - 1].written < 10)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	clock_gettime(CLOCK_MONOTONIC, &began);
	device_open(&b, &s3_backend, HURRY);
	clock_gettime(CLOCK_MONOTONIC, &now);
	print_message("taken over after %ld ms, at object %llu\n",
		(now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000,
		(unsigned long long)volume_of(&b)->frontier);
	assert_true(now.tv_sec - began.tv_sec < 10);
	for (unsigned i = 0; i < WRITERS; i++)
		pthread_join(hurry[i].thread, NULL);
	for (unsigned i = 0; i < WRITERS; i++)
		check_hurry(&b, &hurry[i]);
	/* Past the fence ahead, and what the other one had under way behind it. */
	for (unsigned i = 0; i < 300; i++)
		assert_int_equal(write_block(&b, 8000 + i, i & 0xff), 0);
	crash(&b);
	device_open(&c, &s3_backend, HURRY);
	for (unsigned i = 0; i < WRITERS; i++)
		check_hurry(&c, &hurry[i]);
	for (unsigned i = 0; i < 300; i++) {
		uint8_t block[BLOCK];

		assert_int_equal(device_read(&c, block, BLOCK, (8000 + i) * (uint64_t)BLOCK), 0);
		assert_int_equal(block[0], i & 0xff);
	}
	device_close(&c);
	device_close(&a);
	fake_store_reset();
}

/* A fence that is refused may stand there all the same: the volume counts as in use then. */
static void test_fence_that_comes_though_it_was_refused(void **state)
{
	struct device a;

	(void)state;
	create_with_a_write(&a);
	device_close(&a);
	fake_store_fail_late("/v/log/", -EACCES, 1);
	assert_int_equal(device_try(&a, &s3_backend, 0, COMMON), -EACCES);
	assert_holds(a.reported.error, "counts as in use now, although nobody has it");
	fake_store_fail(S3_PUT, "/v/log/", -EACCES, 1);
	assert_int_equal(device_try(&a, &s3_backend, 0, COMMON), -EACCES);
	assert_null(strstr(a.reported.error, "counts as in use now"));
	fake_store_arrive();
	open_volume(&a);
	device_close(&a);
	fake_store_reset();
}

/* ---- when the last writer wrote ---------------------------------------------------------------
 */

static _Atomic time_t skew; /* s that this host's clock is ahead */

time_t __real_time(time_t *t);
time_t __wrap_time(time_t *t);
time_t __wrap_time(time_t *t)
{
	return __real_time(t) + skew;
}

static char refusal[512];

static void keep_error(void *opaque, const char *message)
{
	(void)opaque;
	snprintf(refusal, sizeof refusal, "%s", message);
}

static void test_when_the_last_writer_wrote(void **state)
{
	static const struct {
		time_t ahead;
		const char *told;
	} clocks[] = {{1000, "(it wrote 10"}, {-1000, "(it wrote when its clock was "}};
	const struct backend_host host = {.error = keep_error};
	struct device a;

	(void)state;
	create_with_a_write(&a);
	for (size_t i = 0; i < sizeof clocks / sizeof *clocks; i++) {
		struct s3_config config = *(const struct s3_config *)params_config(a.params);
		struct s3_volume *v;

		config.create = false;
		config.size = 0;
		config.require_clean_close = true;
		skew = clocks[i].ahead;
		assert_int_equal(s3_volume_open(&config, 0, &host, &v), -EBUSY);
		assert_holds(refusal, clocks[i].told);
	}
	assert_holds(refusal, "s ahead of this one)");
	skew = 0;
	device_close(&a);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_when_the_last_writer_wrote),
		cmocka_unit_test(test_takeover_beside_a_resize),
		cmocka_unit_test(test_reader_beside_a_resize),
		cmocka_unit_test(test_a_size_that_comes_though_it_was_refused),
		cmocka_unit_test(test_writes_after_a_resize_without_an_answer),
		cmocka_unit_test(test_each_attempt_may_stop_a_writer),
		cmocka_unit_test(test_a_busy_writer_is_not_followed_for_ever),
		cmocka_unit_test(test_takeover_of_a_busy_writer),
		cmocka_unit_test(test_fence_that_comes_though_it_was_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
