/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two writers of an S3 volume over a store in this process: what one deletes, however late, is
 * nothing that the other needs.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/params.h"
#include "backends/s3/admin/delete.h"
#include "backends/s3/admin/verify.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/keeper/snapshot.h"
#include "tests/unit/s3_writers.h"

/* ---- what the other writer deletes -------------------------------------------------------------
 */

/* A volume so large that its map costs more than the summaries of what is written: light roots. */
#define LARGE "size=1T;gc-delay=0"

/* Blocks far from each other, each in an object of its own. */
static uint64_t place_of(unsigned i)
{
	return i * (UINT64_C(12345677) * BLOCK) % (UINT64_C(1) << 40);
}

static void write_far(struct device *d, unsigned from, unsigned to)
{
	uint8_t block[BLOCK];

	for (unsigned i = from; i < to; i++) {
		memset(block, (int)i, BLOCK);
		assert_int_equal(device_write(d, block, BLOCK, place_of(i), BACKEND_FUA), 0);
	}
}

static void check_far(struct device *d, unsigned to)
{
	uint8_t block[BLOCK];

	for (unsigned i = 0; i < to; i++) {
		assert_int_equal(device_read(d, block, BLOCK, place_of(i)), 0);
		assert_int_equal(block[0], i & 0xff);
	}
}

static int collect(struct device *d)
{
	return s3_volume_gc(volume_of(d), NULL, NULL);
}

static int open_writer(struct device *d)
{
	return device_try(d, &s3_backend, 0, COMMON "gc-delay=0");
}

static int open_reader(struct device *d)
{
	return device_try(d, &s3_backend, 0, COMMON "readonly=on");
}

/*
 * The root that B begins with, and the one that it builds upon, are deleted by A before B's fence.
 * What B stores must not need them.
 */
static void test_base_is_deleted_before_the_fence(void **state)
{
	struct device a, b, c;
	struct job opening;
	uint64_t end_of_log;

	(void)state;
	create_volume(&a, LARGE);
	write_far(&a, 0, 20);
	assert_int_equal(s3_snapshot_create(volume_of(&a), "s"), 0);
	assert_int_equal(s3_snapshot_create(volume_of(&a), "t"), 0);
	write_far(&a, 20, 40);
	assert_int_equal(try_checkpoint(&a), 0);
	assert_int_equal(device_counter(&a, "light_roots"), 1);
	end_of_log = volume_of(&a)->frontier;
	/* The last of the first headers that B asks for, and A for none so far. */
	start_held_job(&opening, &b, open_writer, S3_GET, log_key(end_of_log + 4));
	/* By two full roots, of the map and without the snapshot. */
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), 0);
	fake_store_release(S3_GET, NULL);
	assert_int_equal(end_job(&opening), 0);
	check_far(&b, 40);
	for (unsigned i = 0; i < 3; i++) {
		write_far(&b, 40, 60);
		assert_int_equal(try_checkpoint(&b), 0);
	}
	assert_int_equal(device_counter(&b, "light_roots"), 3);
	/* Only what these roots do not need is left of the log. */
	assert_int_equal(s3_volume_gc(volume_of(&b), NULL, NULL), 0);
	crash(&b);
	device_open(&c, &s3_backend, COMMON);
	check_far(&c, 60);
	device_close(&c);
	crash(&a);
	fake_store_reset();
}

/*
 * A reader, or the next writer, whose roots go one after the other, with the log before the newest:
 * nothing is damaged.
 */
static void open_while_roots_go(int (*open)(struct device *d))
{
	struct job opening;
	struct device a, b;
	char key[64];

	create_volume(&a, LARGE);
	for (unsigned i = 0; i < 3; i++)
		write_far(&a, 0, 20); /* of the first ones nothing is alive */
	assert_int_equal(s3_snapshot_create(volume_of(&a), "s"), 0);
	assert_int_equal(s3_snapshot_create(volume_of(&a), "t"), 0);
	snprintf(key, sizeof key, "/ckpt/%016llx/root",
		(unsigned long long)volume_of(&a)->checkpoint);
	start_held_job(&opening, &b, open, S3_GET, key);
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), 0);
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "t"), 0);
	assert_int_equal(s3_volume_gc(volume_of(&a), NULL, NULL), 0);
	assert_int_equal(fake_store_object(log_key(2), NULL, 0), SIZE_MAX);
	/* One that is never answered holds the collector up for no longer. */
	assert_in_range(fake_store_deadline(S3_DELETE_MANY, "/log/"), 1, 60);
	fake_store_release(S3_GET, NULL);
	if (end_job(&opening))
		fail_msg("cannot open: %s", b.reported.error);
	assert_int_equal(b.reported.errors, 0);
	check_far(&b, 20);
	device_close(&b);
	crash(&a);
	fake_store_reset();
}

static void test_reader_whose_roots_are_deleted(void **state)
{
	(void)state;
	open_while_roots_go(open_reader);
}

static void test_writer_whose_roots_are_deleted(void **state)
{
	(void)state;
	open_while_roots_go(open_writer);
}

/*
 * So much is deleted of the log behind the root that a reader began with that it looks like the
 * end of the log.
 */
static void test_reader_behind_whose_root_the_log_goes(void **state)
{
	struct job opening;
	struct device a, b;
	char key[64];

	(void)state;
	create_volume(&a, LARGE);
	write_far(&a, 0, 10);
	assert_int_equal(try_checkpoint(&a), 0);
	snprintf(key, sizeof key, "/ckpt/%016llx/root",
		(unsigned long long)volume_of(&a)->checkpoint);
	fake_store_hold_answers(S3_GET, key, false);
	start_job(&opening, &b, open_reader);
	fake_store_wait_held(S3_GET, key);
	for (unsigned i = 0; i < 20; i++)
		write_far(&a, 0, 10);
	assert_int_equal(s3_volume_gc(volume_of(&a), NULL, NULL), 0);
	fake_store_release(S3_GET, NULL);
	if (end_job(&opening))
		fail_msg("cannot open: %s", b.reported.error);
	check_far(&b, 10);
	device_close(&b);
	crash(&a);
	fake_store_reset();
}

/* They stay for a while, so that an open in the meantime need not begin again. */
static void test_old_roots_stay_for_a_while(void **state)
{
	static const char *const names[] = {"t", "u", "v"};
	struct device a;
	char key[64];

	(void)state;
	create_volume(&a, "size=64M;gc-delay=1");
	assert_int_equal(create_snapshot(&a), 0);
	snprintf(key, sizeof key, "/ckpt/%016llx/root",
		(unsigned long long)volume_of(&a)->checkpoint);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_not_equal(fake_store_object(key, NULL, 0), SIZE_MAX);
		assert_int_equal(s3_snapshot_create(volume_of(&a), names[i]), 0);
	}
	assert_int_equal(device_counter(&a, "full_roots"), 4);
	for (int i = 0; i < 200 && fake_store_object(key, NULL, 0) != SIZE_MAX; i++)
		nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
	assert_int_equal(fake_store_object(key, NULL, 0), SIZE_MAX);
	device_close(&a);
	fake_store_reset();
}

/*
 * A root without the snapshot could not be stored: until there is one the snapshot stays, and what
 * its own root names, too.
 */
static void test_a_snapshot_whose_deletion_failed_is_whole(void **state)
{
	static const char *const names[] = {"s", "t", "u"};
	struct device a;
	char key[64];

	(void)state;
	create_volume(&a, "size=64M;gc-delay=1");
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(write_block(&a, 0, i + 1), 0);
		assert_int_equal(s3_snapshot_create(volume_of(&a), names[i]), 0);
		if (i == 0)
			snprintf(key, sizeof key, "/ckpt/%016llx/0000",
				(unsigned long long)volume_of(&a)->checkpoint);
	}
	assert_int_not_equal(fake_store_object(key, NULL, 0), SIZE_MAX);
	fake_store_fail(S3_PUT, "/root", -EIO, 1);
	assert_int_not_equal(s3_snapshot_delete(volume_of(&a), "s"), 0);
	nanosleep(&(struct timespec){.tv_sec = 2, .tv_nsec = 500000000}, NULL);
	assert_int_not_equal(fake_store_object(key, NULL, 0), SIZE_MAX);
	crash(&a);
	check_snapshot(1);
	fake_store_reset();
}

/* ---- deletions that come late
 * -------------------------------------------------------------------- */

static int delete_snapshot(struct device *d)
{
	return s3_snapshot_delete(volume_of(d), "s");
}

/*
 * The reply to A's deletion is lost, and it is sent again when B has made a snapshot of the same
 * name.
 */
static void test_late_deletion_of_a_snapshot(void **state)
{
	struct device a, b;
	struct job deletion;

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(create_snapshot(&a), 0);
	fake_store_hold_answers(S3_DELETE, "/snap/s/root", true);
	start_job(&deletion, &a, delete_snapshot);
	fake_store_wait_held(S3_DELETE, "/snap/s/root");
	open_volume(&b);
	assert_int_equal(write_block(&b, 0, 2), 0);
	assert_int_equal(create_snapshot(&b), 0);
	fake_store_release(S3_DELETE, NULL);
	end_job(&deletion);
	device_close(&a);
	crash(&b);
	check_snapshot(2);
	fake_store_reset();
}

/* The same of the mark of a deletion: B's holds off clones until B is done with its own. */
static void test_late_deletion_of_a_mark(void **state)
{
	struct job deletion, other;
	struct device a, b, reader;

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(create_snapshot(&a), 0);
	fake_store_hold_answers(S3_DELETE, "/snap/s/child/", true);
	start_job(&deletion, &a, delete_snapshot);
	fake_store_wait_held(S3_DELETE, "/snap/s/child/");
	open_volume(&b);
	assert_int_equal(create_snapshot(&b), 0);
	device_open(&reader, &s3_backend, COMMON "readonly=on");
	/* It has put its mark, and is about to look for clones. */
	fake_store_hold_answers(S3_PUT, "/snap/s/child/", false);
	start_job(&other, &b, delete_snapshot);
	fake_store_wait_held(S3_PUT, "/snap/s/child/");
	fake_store_release(S3_DELETE, "/snap/s/child/");
	end_job(&deletion);
	fake_store_hold(S3_DELETE, "/snap/s/root");
	fake_store_release(S3_PUT, "/snap/s/child/");
	fake_store_wait_held(S3_DELETE, "/snap/s/root");
	assert_int_equal(s3_volume_clone(volume_of(&reader), "s", "userblk", "clone"), -EBUSY);
	device_close(&reader);
	fake_store_release(S3_DELETE, NULL);
	assert_int_equal(end_job(&other), 0);
	device_close(&b);
	device_close(&a);
	fake_store_reset();
}

/* One that the store's refusal of the log ends before it has begun: clones may be made again. */
static void test_mark_of_a_deletion_that_did_not_begin(void **state)
{
	struct device a;

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(create_snapshot(&a), 0);
	fake_store_fail(S3_PUT, "/v/log/", -EACCES, 1);
	assert_int_not_equal(write_block(&a, 0, 2), 0);
	assert_int_equal(delete_snapshot(&a), -EACCES);
	device_flush_at_last(&a);
	assert_int_equal(s3_volume_clone(volume_of(&a), "s", "userblk", "c"), 0);
	device_close(&a);
	fake_store_reset();
}

/* The marker of a clone that was never made cannot be deleted: that is what is reported. */
static void test_marker_that_the_store_keeps(void **state)
{
	struct device a;

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(create_snapshot(&a), 0);
	assert_int_equal(s3_volume_clone(volume_of(&a), "s", "userblk", "c"), 0);
	fake_store_set("userblk/c/super", NULL, 0);
	fake_store_pass(700);
	fake_store_fail(S3_DELETE, "/snap/s/child/", -EACCES, 1);
	assert_int_equal(delete_snapshot(&a), -EACCES);
	assert_holds(a.reported.error, "fake: ");
	assert_int_equal(delete_snapshot(&a), 0);
	device_close(&a);
	fake_store_reset();
}

/*
 * B lists the roots when A has stored the parts of one, and that comes before B's fence: B begins
 * again with it, and knows of the deletion that A acknowledged.
 */
static void test_root_that_comes_after_its_parts(void **state)
{
	struct s3_snapshot_info *list;
	struct job deletion, takeover;
	struct device a, b;
	unsigned long long number;
	char key[64];
	size_t n;

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(create_snapshot(&a), 0);
	assert_int_equal(write_block(&a, 0, 2), 0);
	start_held_job(&deletion, &a, delete_snapshot, S3_PUT, "/root");
	/* B has tried the roots, and reads the log. */
	number = volume_of(&a)->frontier;
	snprintf(key, sizeof key, "log/%02llx/%016llx", number & 0xff, number);
	start_held_job(&takeover, &b, open_in_job, S3_GET, key);
	fake_store_release(S3_PUT, "/root");
	assert_int_equal(end_job(&deletion), 0);
	fake_store_release(S3_GET, key);
	assert_int_equal(end_job(&takeover), 0);
	assert_int_equal(s3_snapshot_list(volume_of(&b), &list, &n), 0);
	assert_int_equal(n, 0);
	free(list);
	device_close(&b);
	device_close(&a);
	fake_store_reset();
}

static void count_damage(void *opaque, const struct s3_damage *damage)
{
	(void)damage;
	++*(unsigned *)opaque;
}

/* What another writer has deleted since it took over is not damaged. */
static void test_check_of_a_volume_taken_over(void **state)
{
	unsigned damaged = 0;
	struct s3_verify verify = {.opaque = &damaged, .damage = count_damage};
	struct device a, b;
	unsigned long long number;
	char key[64];

	(void)state;
	create_with_a_write(&a);
	number = volume_of(&a)->frontier;
	snprintf(key, sizeof key, "log/%02llx/%016llx", number & 0xff, number);
	fake_store_fail(S3_GET, key, -ENOENT, 1000);
	assert_int_equal(s3_verify(volume_of(&a), &verify), 0);
	assert_true(damaged > 0);
	fake_store_fail(S3_GET, key, -ENOENT, 0);
	open_volume(&b);
	fake_store_fail(S3_GET, key, -ENOENT, 1000);
	damaged = 0;
	assert_int_equal(s3_verify(volume_of(&a), &verify), -EIO);
	assert_int_equal(damaged, 0);
	device_close(&b);
	device_close(&a);
	fake_store_reset();
}

/* Nor is what a writer has deleted since a reader opened the volume. */
static void test_check_beside_a_writer(void **state)
{
	unsigned damaged = 0;
	struct s3_verify verify = {.opaque = &damaged, .damage = count_damage};
	struct device a, b;

	(void)state;
	create_volume(&a, "size=64M;gc-delay=0");
	assert_int_equal(write_block(&a, 0, 1), 0);
	assert_int_equal(open_reader(&b), 0);
	assert_int_equal(write_block(&a, 0, 2), 0);
	assert_int_equal(collect(&a), 0);
	assert_int_equal(s3_verify(volume_of(&b), &verify), -EBUSY);
	assert_int_equal(damaged, 0);
	assert_holds(b.reported.error, "give control= of that server");
	device_close(&b);
	/* What no writer has deleted is damaged. */
	device_close(&a);
	assert_int_equal(open_reader(&b), 0);
	fake_store_fail(S3_GET, "/log/", -ENOENT, 1000);
	assert_int_equal(s3_verify(volume_of(&b), &verify), 0);
	assert_int_equal(damaged, 2); /* the block, and that the volume was closed */
	device_close(&b);
	fake_store_reset();
}

/*
 * Two snapshots have one name, one after the other, and the root that names the second is damaged:
 * the second exists.
 */
static void test_snapshot_made_anew_before_a_damaged_root(void **state)
{
	struct s3_snapshot_info *list;
	struct device a, c;
	char key[64];
	uint64_t seq;
	size_t n;

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(create_snapshot(&a), 0);
	seq = volume_of(&a)->checkpoint;
	assert_int_equal(delete_snapshot(&a), 0);
	snprintf(key, sizeof key, "userblk/v/ckpt/%016llx/root",
		(unsigned long long)volume_of(&a)->checkpoint);
	fake_store_set(key, "damaged", 7);
	assert_int_equal(write_block(&a, 0, 2), 0);
	assert_int_equal(create_snapshot(&a), 0);
	snprintf(key, sizeof key, "userblk/v/ckpt/%016llx/root",
		(unsigned long long)volume_of(&a)->checkpoint);
	fake_store_set(key, "damaged", 7);
	crash(&a);
	open_volume(&c);
	assert_int_equal(s3_snapshot_list(volume_of(&c), &list, &n), 0);
	assert_int_equal(n, 1);
	assert_true(list[0].seq > seq);
	free(list);
	assert_int_equal(write_block(&c, 0, 3), 0);
	device_close(&c);
	check_snapshot(2);
	fake_store_reset();
}

/*
 * A round of Z's ended before what it had stored was entered. A deletes that, the reply is lost,
 * and it is sent again when B has compacted.
 */
static void test_late_deletion_of_an_orphan(void **state)
{
	struct device z, a, b, c;
	uint8_t block[BLOCK];
	struct job round;

	(void)state;
	create_volume(&z, "size=64M;gc-delay=0");
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(write_block(&z, i, i + 1), 0);
	fake_store_hold_answers(S3_PUT, "/gc/", false);
	start_job(&round, &z, collect);
	fake_store_wait_held(S3_PUT, "/gc/");
	s3_volume_fail(volume_of(&z), -EIO, "test");
	fake_store_release(S3_PUT, NULL);
	assert_int_not_equal(end_job(&round), 0);
	device_close(&z);
	device_open(&a, &s3_backend, COMMON "gc-delay=0");
	fake_store_hold_answers(S3_DELETE, "/gc/", true);
	assert_int_equal(write_block(&a, 20, 1), 0);
	fake_store_wait_held(S3_DELETE, "/gc/"); /* once it has served for gc-delay= */
	device_open(&b, &s3_backend, COMMON "gc-delay=0");
	assert_int_equal(collect(&b), 0);
	assert_int_not_equal(device_counter(&b, "gc_objects"), 0);
	fake_store_release(S3_DELETE, NULL);
	device_close(&a); /* when its deletion has been answered */
	crash(&b);
	open_volume(&c);
	for (unsigned i = 0; i < 10; i++) {
		assert_int_equal(device_read(&c, block, BLOCK, i * (uint64_t)BLOCK), 0);
		assert_int_equal(block[0], i + 1);
	}
	device_close(&c);
	fake_store_reset();
}

/* A deletion ended between its copy of the super object and the deletion of that. */
static void test_copy_of_a_deletion_that_did_not_begin(void **state)
{
	uint8_t super[4096];
	struct device a;
	size_t length;

	(void)state;
	create_volume(&a, "size=64M;gc-delay=0");
	length = fake_store_object("/v/super", super, sizeof super);
	fake_store_set("userblk/v/deleted", super, length);
	assert_int_equal(write_block(&a, 0, 1), 0);
	assert_int_equal(collect(&a), 0);
	assert_int_equal(fake_store_object("/v/deleted", NULL, 0), SIZE_MAX);
	assert_int_not_equal(fake_store_object("/v/super", NULL, 0), SIZE_MAX);
	device_close(&a);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_base_is_deleted_before_the_fence),
		cmocka_unit_test(test_reader_whose_roots_are_deleted),
		cmocka_unit_test(test_writer_whose_roots_are_deleted),
		cmocka_unit_test(test_reader_behind_whose_root_the_log_goes),
		cmocka_unit_test(test_old_roots_stay_for_a_while),
		cmocka_unit_test(test_a_snapshot_whose_deletion_failed_is_whole),
		cmocka_unit_test(test_late_deletion_of_a_snapshot),
		cmocka_unit_test(test_late_deletion_of_a_mark),
		cmocka_unit_test(test_late_deletion_of_an_orphan),
		cmocka_unit_test(test_copy_of_a_deletion_that_did_not_begin),
		cmocka_unit_test(test_mark_of_a_deletion_that_did_not_begin),
		cmocka_unit_test(test_marker_that_the_store_keeps),
		cmocka_unit_test(test_root_that_comes_after_its_parts),
		cmocka_unit_test(test_check_of_a_volume_taken_over),
		cmocka_unit_test(test_check_beside_a_writer),
		cmocka_unit_test(test_snapshot_made_anew_before_a_damaged_root),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
