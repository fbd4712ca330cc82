/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Clones of an S3 volume over a store in this process: while there is one, or may be one, its
 * snapshot stays, and so does its volume.
 */
#include <errno.h>

#include "backends/s3/admin/delete.h"
#include "backends/s3/keeper/snapshot.h"
#include "tests/unit/s3_writers.h"

/*
 * The deletion of a clone was interrupted, or is about to put it back because it has a clone
 * itself: its data is not given up.
 */
static void test_a_clone_that_is_being_deleted_holds_its_snapshot(void **state)
{
	uint8_t super[4096];
	struct device a;
	size_t length;

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(create_snapshot(&a), 0);
	assert_int_equal(s3_volume_clone(volume_of(&a), "s", "userblk", "c"), 0);
	assert_int_equal(s3_snapshot_may_delete(volume_of(&a), "s"), -EBUSY);
	length = fake_store_object("/c/super", super, sizeof super);
	fake_store_set("userblk/c/deleted", super, length);
	fake_store_set("userblk/c/super", NULL, 0);
	assert_int_equal(s3_snapshot_may_delete(volume_of(&a), "s"), -EBUSY);
	fake_store_set("userblk/c/deleted", NULL, 0);
	assert_int_equal(s3_snapshot_may_delete(volume_of(&a), "s"), 0);
	device_close(&a);
	fake_store_reset();
}

static int make_clone(struct device *d)
{
	return s3_volume_clone(volume_of(d), "s", "userblk", "c");
}

static bool is_marked(void)
{
	return fake_store_requests(S3_PUT, "/v/snap/s/child/") >
	       fake_store_requests(S3_DELETE, "/v/snap/s/child/");
}

/* A creation is stopped for s seconds between the mark of the clone and its super object. */
static void begin_clone(struct device *a, struct device *reader, struct job *creation, unsigned s)
{
	create_with_a_write(a);
	assert_int_equal(create_snapshot(a), 0);
	device_open(reader, &s3_backend, COMMON "readonly=on");
	start_held_job(creation, reader, make_clone, S3_PUT, "/c/super");
	fake_store_pass(s);
}

static void check_clone(unsigned value)
{
	uint8_t block[BLOCK];
	struct device c;

	device_open(&c, &s3_backend,
		"endpoint=http://127.0.0.1;bucket=abc;uploads=2;memory=64M;volume=c;");
	assert_int_equal(device_read(&c, block, BLOCK, 0), 0);
	assert_int_equal(block[0], value);
	device_close(&c);
}

/* Meanwhile its snapshot is deleted, for its mark is old and there is no clone. */
static void test_a_clone_that_comes_after_its_snapshot(void **state)
{
	struct device a, reader;
	struct job creation;

	(void)state;
	begin_clone(&a, &reader, &creation, 700);
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), 0);
	fake_store_release(S3_PUT, NULL);
	assert_int_equal(end_job(&creation), -EIO);
	assert_holds(reader.reported.error, "its snapshot may have been deleted");
	assert_int_equal(fake_store_object("/c/super", NULL, 0), SIZE_MAX);
	device_close(&reader);
	device_close(&a);
	fake_store_reset();
}

/* Nobody deletes it, but somebody may be about to. */
static void test_a_clone_that_comes_late(void **state)
{
	struct device a, reader;
	struct job creation;

	(void)state;
	begin_clone(&a, &reader, &creation, 301);
	fake_store_release(S3_PUT, NULL);
	assert_int_equal(end_job(&creation), -EIO);
	assert_int_equal(fake_store_object("/c/super", NULL, 0), SIZE_MAX);
	assert_int_equal(make_clone(&reader), 0);
	check_clone(1);
	device_close(&reader);
	device_close(&a);
	fake_store_reset();
}

static void test_a_clone_that_comes_in_time(void **state)
{
	struct device a, reader;
	struct job creation;
	unsigned puts;

	(void)state;
	begin_clone(&a, &reader, &creation, 300);
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), -EBUSY);
	fake_store_release(S3_PUT, NULL);
	assert_int_equal(end_job(&creation), 0);
	fake_store_pass(1000);
	/* This takes no more than a look, however large the map is. */
	puts = fake_store_requests(S3_PUT, "/v/");
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), -EBUSY);
	assert_int_equal(fake_store_requests(S3_PUT, "/v/"), puts);
	check_clone(1);
	device_close(&reader);
	device_close(&a);
	fake_store_reset();
}

/* The store refuses it, and an earlier attempt, which had no answer, makes it all the same. */
static void test_a_clone_that_comes_though_it_was_refused(void **state)
{
	static const int refusals[] = {-ENOSPC, -EACCES, -EINVAL, -EEXIST};
	struct device a, reader;

	(void)state;
	for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
		create_with_a_write(&a);
		assert_int_equal(create_snapshot(&a), 0);
		device_open(&reader, &s3_backend, COMMON "readonly=on");
		fake_store_fail_late("/c/super", refusals[i], 1);
		assert_true(make_clone(&reader) < 0);
		assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), -EBUSY);
		assert_holds(a.reported.error, "may just be created; try again in ten minutes");
		fake_store_arrive();
		assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), -EBUSY);
		check_clone(1);
		device_close(&reader);
		device_close(&a);
	}
	fake_store_reset();
}

/* Until the creation looks, its clone is deleted and the name given to another volume: that stays.
 */
static void test_a_late_clone_takes_nothing_of_others(void **state)
{
	struct device a, reader, other;
	struct job creation;

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(create_snapshot(&a), 0);
	device_open(&reader, &s3_backend, COMMON "readonly=on");
	fake_store_hold_answers(S3_PUT, "/c/super", false);
	start_job(&creation, &reader, make_clone);
	fake_store_wait_held(S3_PUT, "/c/super");
	fake_store_set("userblk/c/super", NULL, 0);
	device_open(&other, &s3_backend,
		"endpoint=http://127.0.0.1;bucket=abc;volume=c;create=on;size=64M");
	assert_int_equal(write_block(&other, 0, 7), 0);
	device_close(&other);
	fake_store_pass(700);
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), 0);
	fake_store_release(S3_PUT, NULL);
	assert_int_equal(end_job(&creation), -EIO);
	check_clone(7);
	device_close(&reader);
	device_close(&a);
	fake_store_reset();
}

/* Until the creation looks, somebody has opened the clone and changed its super object. */
static void test_a_late_look_at_a_clone_in_use(void **state)
{
	struct device a, reader, clone;
	struct job creation;

	(void)state;
	for (unsigned marked = 0; marked < 2; marked++) {
		create_with_a_write(&a);
		assert_int_equal(create_snapshot(&a), 0);
		device_open(&reader, &s3_backend, COMMON "readonly=on");
		fake_store_hold_answers(S3_PUT, "/c/super", false);
		start_job(&creation, &reader, make_clone);
		fake_store_wait_held(S3_PUT, "/c/super");
		fake_store_pass(400);
		device_open(&clone, &s3_backend,
			"endpoint=http://127.0.0.1;bucket=abc;uploads=2;memory=64M;volume=c;");
		assert_int_equal(write_block(&clone, 0, 9), 0);
		assert_int_equal(s3_volume_resize(volume_of(&clone), 128 << 20), 0);
		device_close(&clone);
		if (!marked) {
			char key[80];

			assert_true(fake_store_find("/v/snap/s/child/", key, sizeof key));
			fake_store_set(key, NULL, 0);
		}
		fake_store_release(S3_PUT, NULL);
		assert_int_equal(end_job(&creation), marked ? 0 : -EIO);
		check_clone(9);
		device_close(&reader);
		device_close(&a);
	}
	fake_store_reset();
}

static int open_clone(struct device *clone)
{
	return device_try(clone, &s3_backend, 0,
		"endpoint=http://127.0.0.1;bucket=abc;uploads=2;memory=64M;volume=c;");
}

/* The same of one that somebody only writes to, before a request of the creation. */
static void test_a_late_look_at_a_clone_that_is_written(void **state)
{
	static const struct {
		enum s3_op op;
		const char *part;
	} stops[] = {{S3_LIST, "/c/super"}, {S3_LIST, "/c/log/"}, {S3_DELETE, "/c/super"}};
	struct device a, reader, clone;
	struct job creation;

	(void)state;
	for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
		begin_clone(&a, &reader, &creation, 301);
		fake_store_hold(stops[i].op, stops[i].part);
		fake_store_release(S3_PUT, "/c/super");
		fake_store_wait_held(stops[i].op, stops[i].part);
		assert_int_equal(open_clone(&clone), 0);
		assert_int_equal(write_block(&clone, 0, 9), 0);
		fake_store_release(stops[i].op, stops[i].part);
		assert_int_equal(end_job(&creation), 0);
		device_close(&clone);
		check_clone(9);
		assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), -EBUSY);
		device_close(&reader);
		device_close(&a);
	}
	fake_store_reset();
}

/* One whose fence comes when the clone has been taken back acknowledges nothing. */
static void test_a_clone_that_is_opened_while_it_is_taken_back(void **state)
{
	struct device a, reader, clone;
	struct job creation, opening;

	(void)state;
	begin_clone(&a, &reader, &creation, 301);
	fake_store_hold(S3_LIST, "/c/super");
	fake_store_release(S3_PUT, "/c/super");
	fake_store_wait_held(S3_LIST, "/c/super");
	start_held_job(&opening, &clone, open_clone, S3_PUT, "/c/log/");
	fake_store_release(S3_LIST, "/c/super");
	assert_int_equal(end_job(&creation), -EIO);
	assert_holds(reader.reported.error, "it was taken back; choose another name, or wait");
	fake_store_release(S3_PUT, "/c/log/");
	if (end_job(&opening) == 0) {
		assert_int_equal(write_block(&clone, 0, 9), -EIO);
		device_close(&clone);
	}
	assert_int_equal(fake_store_object("/c/super", NULL, 0), SIZE_MAX);
	device_close(&reader);
	device_close(&a);
	fake_store_reset();
}

/* A volume that has the mark of a clone which was never made. */
static void mark_without_clone(struct device *a)
{
	struct device reader;
	struct job creation;

	begin_clone(a, &reader, &creation, 0);
	fake_store_fail(S3_PUT, "/c/super", -EIO, 1);
	fake_store_release(S3_PUT, NULL);
	assert_int_equal(end_job(&creation), -EIO);
	device_close(&reader);
	assert_true(is_marked());
}

/* The deletion of the volume, and its refusal, when that is not certain yet. */
static void test_a_volume_whose_clone_was_never_made(void **state)
{
	struct device a, b;

	(void)state;
	mark_without_clone(&a);
	assert_int_equal(s3_volume_may_remove(volume_of(&a), NULL), 0);
	device_close(&a);
	assert_int_equal(delete_volume(&b), -EBUSY);
	assert_holds(b.reported.error, "try again in ten minutes");
	assert_int_not_equal(fake_store_object("/v/deleted", NULL, 0), SIZE_MAX);
	open_volume(&a);
	device_close(&a);
	fake_store_pass(601);
	assert_int_equal(delete_volume(&b), 0);
	assert_int_equal(fake_store_object("/v/super", NULL, 0), SIZE_MAX);
	fake_store_reset();
}

/* One that is made while the deletion runs, just before or after the super object goes. */
static void test_a_clone_that_is_made_beside_the_deletion(void **state)
{
	struct device a, b;

	(void)state;
	mark_without_clone(&a);
	assert_int_equal(make_clone(&a), 0);
	fake_store_pass(601);
	assert_int_equal(s3_volume_may_remove(volume_of(&a), NULL), -EBUSY);
	device_close(&a);
	assert_int_equal(delete_volume(&b), -EBUSY);
	assert_holds(b.reported.error, "has clones");
	check_clone(1);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_clone_that_comes_after_its_snapshot),
		cmocka_unit_test(test_a_clone_that_comes_late),
		cmocka_unit_test(test_a_clone_that_comes_in_time),
		cmocka_unit_test(test_a_clone_that_comes_though_it_was_refused),
		cmocka_unit_test(test_a_late_clone_takes_nothing_of_others),
		cmocka_unit_test(test_a_late_look_at_a_clone_in_use),
		cmocka_unit_test(test_a_late_look_at_a_clone_that_is_written),
		cmocka_unit_test(test_a_clone_that_is_opened_while_it_is_taken_back),
		cmocka_unit_test(test_a_volume_whose_clone_was_never_made),
		cmocka_unit_test(test_a_clone_that_is_made_beside_the_deletion),
		cmocka_unit_test(test_a_clone_that_is_being_deleted_holds_its_snapshot),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
