/* SPDX-License-Identifier: BSD-3-Clause */
/* Roots of a volume of the S3 device in a store that is full. */
#include <errno.h>
#include <pthread.h>

#include "backends/s3/base/clock.h"
#include "backends/s3/keeper/snapshot.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_mib_volume.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

/* What has died in a full store is covered by roots as small as can be. */
static void test_roots_of_a_full_store(void **state)
{
	struct device d;
	uint64_t light, full;
	unsigned puts;

	(void)state;
	open_full(&d, 1, 48);
	full = device_counter(&d, "full_roots");
	light = device_counter(&d, "light_roots");
	/* One that does not fit leaves nothing behind, however often it is tried. */
	fake_store_fail(S3_PUT, "/ckpt/", -ENOSPC, 1000000);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 8 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	puts = fake_store_requests(S3_PUT, "/log/");
	WAIT_UNTIL(fake_store_failed() > 2, "no root is tried");
	assert_in_range(fake_store_requests(S3_PUT, "/log/"), puts, puts + 1);
	fake_store_fail(S3_PUT, "/ckpt/", 0, 0);
	WAIT_UNTIL(device_counter(&d, "light_roots") >= light + 2, "there are no light roots");
	assert_int_equal(device_counter(&d, "full_roots"), full);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* A root that is refused may yet arrive, so that the next one needs a number: it is tried seldom.
 */
static void test_a_root_that_is_refused(void **state)
{
	struct device d;
	unsigned puts;

	(void)state;
	open_full(&d, 1, 48);
	fake_store_fail(S3_PUT, "/root", -ENOSPC, 1000000);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 8 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	puts = fake_store_requests(S3_PUT, "/log/");
	pause_ms(6000);
	assert_in_range(fake_store_failed(), 2, 4);
	assert_in_range(fake_store_requests(S3_PUT, "/log/"), puts, puts + 4);
	fake_store_limit(0);
	fake_store_fail(S3_PUT, "/root", 0, 0);
	device_close(&d);
	fake_store_reset();
}

/* Nor are roots that are due for the length of the log tried more often. */
static void test_a_due_root_that_is_refused(void **state)
{
	struct s3_volume *v;
	struct device d;
	unsigned puts;

	(void)state;
	open_full(&d, 1, 48);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M;checkpoint=8");
	fake_store_fail(S3_PUT, "/root", -ENOSPC, 1000000);
	for (unsigned i = 0; i < 9; i++) {
		assert_int_equal(backend_trim(d.backend, i * MIB, MIB, 0), 0);
		assert_int_equal(backend_flush(d.backend), 0);
	}
	puts = fake_store_requests(S3_PUT, "/log/");
	pause_ms(6000);
	assert_in_range(fake_store_failed(), 2, 5);
	assert_in_range(fake_store_requests(S3_PUT, "/log/"), puts, puts + 4);
	/* They are tried as soon as there is space. */
	v = volume_of(&d);
	pthread_mutex_lock(&v->lock);
	v->root_due = s3_now() + 600 * UINT64_C(1000000000);
	fake_store_fail(S3_PUT, "/root", 0, 0);
	puts = fake_store_requests(S3_PUT, "/root");
	pthread_mutex_unlock(&v->lock);
	fake_store_limit(0);
	WAIT_UNTIL(fake_store_requests(S3_PUT, "/root") > puts, "there is no root");
	device_close(&d);
	fake_store_reset();
}

/* An attempt that cannot begin leaves nothing behind, and is made again soon. */
static void test_roots_while_the_log_is_refused(void **state)
{
	struct s3_volume *v;
	struct device d;
	uint64_t due = 0, pause = 0;

	(void)state;
	open_full(&d, 1, 48);
	v = volume_of(&d);
	fake_store_fail(S3_PUT, "/log/", -ENOSPC, 1000000);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 8 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	for (unsigned attempts = 0; attempts < 4; attempts++) {
		uint64_t before = due;

		for (unsigned waited = 0; due == before && waited < 3000; waited++) {
			pause_ms(1);
			pthread_mutex_lock(&v->lock);
			due = v->root_due;
			pause = due > s3_now() ? due - s3_now() : 0;
			pthread_mutex_unlock(&v->lock);
		}
		assert_true(due != before);
		assert_in_range(pause, 0, 1000000000);
	}
	fake_store_fail(S3_PUT, "/log/", 0, 0);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* What dies while as much is being deleted is covered, too. */
static void test_deaths_beside_deletions(void **state)
{
	struct device d;

	(void)state;
	open_full(&d, 1, 48);
	fake_store_hold_answers(S3_DELETE_MANY, "/log/", false);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 8 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	fake_store_wait_held(S3_DELETE_MANY, "/log/");
	fake_store_limit(fake_store_bytes() + MIB / 8);
	assert_int_equal(backend_trim(d.backend, 16 * MIB, 8 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	fake_store_release(S3_DELETE_MANY, NULL);
	WAIT_UNTIL(device_counter(&d, "deleted") >= 16, "what has died stays");
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* Once: a root that covers an earlier one says nothing of its own that would have to be covered. */
static void test_deaths_are_covered_once(void **state)
{
	unsigned roots;
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend,
		"endpoint=http://127.0.0.1;bucket=abc;batch-size=1M;volume=v;uploads=1;memory=16M;"
		"create=on;size=128M;gc-delay=600");
	for (unsigned n = 0; n < 48; n++)
		assert_int_equal(write_mib(&d, n, n), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	WAIT_UNTIL(device_reserve(&d) >= MIB, "there is no reserve");
	fake_store_limit(fake_store_bytes());
	roots = fake_store_requests(S3_PUT, "/root");
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 8 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	WAIT_UNTIL(fake_store_requests(S3_PUT, "/root") >= roots + 2, "there are no roots");
	pause_ms(2000);
	assert_in_range(fake_store_requests(S3_PUT, "/root"), roots + 2, roots + 4);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* Where a region of the map begins. */
#define REGION(n) ((uint64_t)(n)*8192 * MIB)

/* A volume with a snapshot and the regions 2, 4... up to last, which have changed since. */
static void open_with_snapshot(struct device *d, unsigned last)
{
	uint8_t block[4096] = {1};

	fake_store_reset();
	device_open(d, &s3_backend, COMMON "uploads=1;memory=16M;create=on;size=128G");
	for (unsigned i = 0; i < 2; i++) {
		for (unsigned region = 2; region <= last; region += 2)
			assert_int_equal(device_write(d, block, sizeof block,
						 REGION(region) + i * sizeof block, 0),
				0);
		if (i == 0)
			assert_int_equal(s3_snapshot_create(volume_of(d), "s"), 0);
	}
	assert_int_equal(backend_flush(d->backend), 0);
}

/* A full store has no room for all of the map: nothing has changed, and what died is freed. */
static void test_a_snapshot_deletion_without_room(void **state)
{
	struct device d;
	uint64_t light;

	(void)state;
	open_with_snapshot(&d, 4);
	fake_store_fail(S3_PUT, "/0004", -ENOSPC, 1000000);
	assert_int_equal(s3_snapshot_delete(volume_of(&d), "s"), -ENOSPC);
	assert_holds(d.reported.error, "is full; free space, or add some");
	assert_int_equal(fake_store_requests(S3_DELETE, "/0004"), 1);
	light = device_counter(&d, "light_roots");
	assert_int_equal(backend_trim(d.backend, REGION(2), MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(try_checkpoint(&d), 0);
	assert_true(device_counter(&d, "light_roots") > light);
	fake_store_fail(S3_PUT, "/0004", 0, 0);
	wait_full(&d, false);
	assert_int_equal(s3_snapshot_delete(volume_of(&d), "s"), 0);
	device_close(&d);
	fake_store_reset();
}

/* A root that is refused itself leaves none of its regions, however often it is tried. */
static void test_regions_of_a_root_that_is_refused(void **state)
{
	unsigned puts, deletes;
	struct device d;

	(void)state;
	open_with_snapshot(&d, 4);
	puts = fake_store_requests(S3_PUT, "/0002");
	deletes = fake_store_requests(S3_DELETE, "/0002");
	fake_store_fail(S3_PUT, "/root", -ENOSPC, 1000000);
	for (unsigned i = 1; i <= 3; i++) {
		assert_int_equal(s3_snapshot_delete(volume_of(&d), "s"), -ENOSPC);
		assert_int_equal(fake_store_requests(S3_PUT, "/0002") - puts, i);
		assert_int_equal(fake_store_requests(S3_DELETE, "/0002") - deletes, i);
	}
	/* Those of one that may be stored stay. */
	fake_store_fail_late("/root", -ENOSPC, 1000000);
	assert_int_equal(s3_snapshot_delete(volume_of(&d), "s"), -ENOSPC);
	assert_int_equal(fake_store_requests(S3_DELETE, "/0002") - deletes, 3);
	fake_store_fail(S3_PUT, "/root", 0, 0);
	wait_full(&d, false);
	device_close(&d);
	fake_store_reset();
}

/* A deletion of the snapshot beside the test. */
struct deletion {
	pthread_t thread;
	struct device d;
	int result;
};

static void *delete_it(void *opaque)
{
	struct deletion *deletion = opaque;

	deletion->result = s3_snapshot_delete(volume_of(&deletion->d), "s");
	return NULL;
}

/* While regions of a root that was refused are deleted the map is as it always is. */
static void test_changes_beside_a_root_that_is_refused(void **state)
{
	struct deletion deletion;
	struct device *d = &deletion.d;

	(void)state;
	open_with_snapshot(d, 6);
	fake_store_fail(S3_PUT, "/0004", -ENOSPC, 2);
	fake_store_hold(S3_DELETE, "/0002");
	assert_int_equal(pthread_create(&deletion.thread, NULL, delete_it, &deletion), 0);
	fake_store_wait_held(S3_DELETE, "/0002");
	assert_int_equal(backend_trim(d->backend, REGION(6), 4096, 0), 0);
	assert_int_equal(device_counter(d, "checkpoint_notes_bytes"), 0);
	fake_store_release(S3_DELETE, NULL);
	pthread_join(deletion.thread, NULL);
	assert_int_equal(deletion.result, -ENOSPC);
	wait_full(d, false);
	device_close(d);
	fake_store_reset();
}

/* An attempt that has stored nothing leaves nothing: neither a deletion nor another number. */
static void test_a_root_whose_first_region_is_refused(void **state)
{
	struct device d;

	(void)state;
	open_with_snapshot(&d, 4);
	fake_store_fail(S3_PUT, "/0002", -ENOSPC, 1000000);
	assert_int_equal(s3_snapshot_delete(volume_of(&d), "s"), -ENOSPC);
	assert_int_equal(fake_store_requests(S3_DELETE, "/0002"), 0);
	assert_false(volume_of(&d)->root_in_doubt);
	fake_store_fail(S3_PUT, "/0002", 0, 0);
	wait_full(&d, false);
	device_close(&d);
	fake_store_reset();
}

/* Until the map is stored, and the mark is about to be. */
static void begin_deletion(struct deletion *deletion)
{
	open_with_snapshot(&deletion->d, 4);
	fake_store_hold(S3_PUT, "/snap/s/child/");
	assert_int_equal(pthread_create(&deletion->thread, NULL, delete_it, deletion), 0);
	fake_store_wait_held(S3_PUT, "/snap/s/child/");
}

static void end_deletion(struct deletion *deletion)
{
	fake_store_release(S3_PUT, NULL);
	pthread_join(deletion->thread, NULL);
}

/* The same of the root without the snapshot, when the map is stored: the snapshot stays. */
static void test_a_snapshot_deletion_whose_root_is_refused(void **state)
{
	struct deletion deletion;
	struct device *d = &deletion.d;
	uint64_t light;

	(void)state;
	begin_deletion(&deletion);
	/* Also when the reserve is gone. */
	fake_store_fail(S3_PUT, "/root", -ENOSPC, 2);
	end_deletion(&deletion);
	assert_int_equal(deletion.result, -ENOSPC);
	assert_holds(d->reported.error, "is full; free space, or add some");
	/* There is no room for regions, and what dies is covered all the same. */
	fake_store_fail(S3_PUT, "/0004", -ENOSPC, 1000000);
	light = device_counter(d, "light_roots");
	assert_int_equal(backend_trim(d->backend, REGION(4), 4096, 0), 0);
	assert_int_equal(backend_flush(d->backend), 0);
	assert_int_equal(try_checkpoint(d), 0);
	assert_true(device_counter(d, "light_roots") > light);
	/* It can be cloned again. */
	wait_full(d, false);
	assert_int_equal(s3_volume_clone(volume_of(d), "s", "userblk", "c"), 0);
	fake_store_fail(S3_PUT, "/0004", 0, 0);
	crash(d);
	device_open(d, &s3_backend, COMMON "uploads=1;memory=16M");
	assert_int_equal(s3_snapshot_delete(volume_of(d), "s"), -EBUSY);
	device_close(d);
	fake_store_reset();
}

/* A proxy has sent the root twice, and a look does not find it: the snapshot is gone, and stays so.
 */
static void test_a_snapshot_deletion_whose_root_may_be_stored(void **state)
{
	struct deletion deletion;
	struct device *d = &deletion.d;

	(void)state;
	begin_deletion(&deletion);
	fake_store_fail(S3_PUT, "/root", -EEXIST, 1);
	end_deletion(&deletion);
	assert_int_not_equal(deletion.result, 0);
	assert_int_not_equal(s3_volume_clone(volume_of(d), "s", "userblk", "c"), 0);
	/* The end sees to the root that is owed. */
	device_close(d);
	device_open(d, &s3_backend, COMMON "uploads=1;memory=16M");
	assert_int_equal(s3_snapshot_delete(volume_of(d), "s"), -ENOENT);
	device_close(d);
	fake_store_reset();
}

/* A snapshot that a store has no room for takes none, and the next root need not be a full one. */
static void test_a_snapshot_without_room(void **state)
{
	static const char *const refused[] = {"/0004", "/snap/t/root"};
	struct device d;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		open_with_snapshot(&d, 4);
		fake_store_fail(S3_PUT, refused[i], -ENOSPC, 1);
		assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), -ENOSPC);
		assert_holds(d.reported.error, "is full; free space, or add some");
		assert_int_equal(fake_store_requests(S3_DELETE, "/0004"), 1);
		assert_false(volume_of(&d)->full_wanted);
		assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), 0);
		device_close(&d);
		device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M");
		device_close(&d);
	}
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_roots_of_a_full_store),
		cmocka_unit_test(test_a_root_that_is_refused),
		cmocka_unit_test(test_a_due_root_that_is_refused),
		cmocka_unit_test(test_roots_while_the_log_is_refused),
		cmocka_unit_test(test_deaths_beside_deletions),
		cmocka_unit_test(test_deaths_are_covered_once),
		cmocka_unit_test(test_a_snapshot_deletion_without_room),
		cmocka_unit_test(test_regions_of_a_root_that_is_refused),
		cmocka_unit_test(test_changes_beside_a_root_that_is_refused),
		cmocka_unit_test(test_a_root_whose_first_region_is_refused),
		cmocka_unit_test(test_a_snapshot_deletion_whose_root_is_refused),
		cmocka_unit_test(test_a_snapshot_deletion_whose_root_may_be_stored),
		cmocka_unit_test(test_a_snapshot_without_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
