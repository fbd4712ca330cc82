/* SPDX-License-Identifier: BSD-3-Clause */
/* Snapshots, clones and rollbacks of a volume of the S3 device in a store that is full. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/lifecycle/lifecycle.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_mib_volume.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

/* A clone that is made of what a server has, beside it, takes nothing of its reserve. */
static void test_a_clone_beside_a_server(void **state)
{
	struct device d, reader;
	uint64_t full;

	(void)state;
	open_full(&d, 1, 48);
	fake_store_limit(0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	full = fake_store_bytes();
	fake_store_limit(full);
	device_open(&reader, &s3_backend, COMMON "uploads=1;memory=16M;readonly=on");
	assert_int_equal(s3_volume_clone(volume_of(&reader), "s", "userblk", "c"), -ENOSPC);
	device_close(&reader);
	assert_int_equal(fake_store_bytes(), full);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* Neither a clone nor a snapshot is made of the room that is there to free some. */
static void test_no_snapshot_in_a_full_store(void **state)
{
	unsigned n = 48, snaps, parts;
	struct device d;

	(void)state;
	open_full(&d, 1, 48);
	fake_store_limit(0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	fake_store_limit(fake_store_bytes());
	while (write_mib(&d, n, n) == 0)
		n++;
	assert_int_equal(backend_flush(d.backend), 0);
	snaps = fake_store_requests(S3_PUT, "/snap/");
	parts = fake_store_requests(S3_PUT, "/ckpt/");
	assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), -ENOSPC);
	assert_holds(d.reported.error, "snapshot=t: the store of volume v is full; ");
	assert_int_equal(s3_volume_clone(volume_of(&d), "s", "userblk", "c"), -ENOSPC);
	assert_int_equal(fake_store_requests(S3_PUT, "/snap/"), snaps);
	assert_int_equal(fake_store_requests(S3_PUT, "/ckpt/"), parts);
	assert_int_equal(s3_snapshot_delete(volume_of(&d), "s"), 0);
	fake_store_limit(0);
	wait_full(&d, false);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), 0);
	device_close(&d);
	fake_store_reset();
}

/* A snapshot that is the first to find the store full does not take that room. */
static void test_a_snapshot_finds_a_full_store(void **state)
{
	static const char *const parts[] = {"/snap/t/child/", "/ckpt/", "/snap/t/root"};
	struct device d;

	(void)state;
	for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++) {
		uint64_t full;

		open_full(&d, 1, 48);
		fake_store_limit(0);
		assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
		put_mib(&d, 48, 48);
		full = device_counter(&d, "full_roots");
		fake_store_fail(S3_PUT, parts[i], -ENOSPC, 1);
		assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), -ENOSPC);
		assert_int_equal(fake_store_failed(), 1);
		assert_holds(d.reported.error, "snapshot=t: ");
		assert_int_equal(device_counter(&d, "store_full"), 0);
		assert_true(device_reserve(&d) >= MIB);
		/* The next root needs no more room than without it. */
		put_mib(&d, 49, 49);
		assert_int_equal(try_checkpoint(&d), 0);
		assert_int_equal(device_counter(&d, "full_roots"), full);
		crash(&d);
		device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M");
		check_mib(&d, 48, 48);
		check_mib(&d, 49, 49);
		assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), 0);
		device_close(&d);
	}
	fake_store_reset();
}

/* A snapshot that is stored, but not yet in a root of the volume, needs a full one. */
static void test_a_snapshot_without_a_root(void **state)
{
	struct device d;
	uint64_t full;

	(void)state;
	open_full(&d, 1, 48);
	fake_store_limit(0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	full = device_counter(&d, "full_roots");
	/* Nothing has changed, so that the root is all that this one puts there. */
	fake_store_fail(S3_PUT, "/ckpt/", -EIO, 1);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), 0);
	assert_int_equal(fake_store_failed(), 1);
	assert_int_equal(device_counter(&d, "full_roots"), full);
	put_mib(&d, 0, 1);
	assert_int_equal(try_checkpoint(&d), 0);
	assert_int_equal(device_counter(&d, "full_roots"), full + 1);
	assert_int_equal(s3_snapshot_rollback(volume_of(&d), "t"), 0);
	check_mib(&d, 0, 0);
	device_close(&d);
	fake_store_reset();
}

/* Changes what the store has under each key that ends so: removes it, or damages its last byte. */
static void spoil(const char *key, bool damage)
{
	static uint8_t data[MIB];
	size_t bytes = fake_store_object(key, data, sizeof data);

	assert_in_range(bytes, 1, sizeof data);
	data[bytes - 1] ^= 1;
	fake_store_set(key, damage ? data : NULL, bytes);
}

/* A snapshot that cannot be read changes nothing: the volume goes on, and can be opened. */
static void test_a_rollback_to_what_is_gone(void **state)
{
	struct device d;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		char key[96];
		unsigned long long seq;

		create_volume(&d);
		put_mib(&d, 0, 1);
		assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
		seq = volume_of(&d)->snapshots[0].seq;
		put_mib(&d, 0, 2);
		/* Its region is only in the root of the snapshot. */
		assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), 0);
		assert_int_equal(s3_snapshot_delete(volume_of(&d), "t"), 0);
		snprintf(key, sizeof key,
			i < 2 ? "userblk/v/snap/s/root-%016llx" : "userblk/v/ckpt/%016llx/0000",
			seq);
		spoil(key, i % 2);
		assert_int_equal(s3_snapshot_rollback(volume_of(&d), "s"), -EIO);
		assert_holds(d.reported.error, "snapshot=s: ");
		assert_holds(d.reported.error, key);
		assert_holds(d.reported.error, " is damaged or gone; ");
		check_mib(&d, 0, 2);
		put_mib(&d, 1, 3);
		device_close(&d);
		device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M");
		check_mib(&d, 0, 2);
		check_mib(&d, 1, 3);
		device_close(&d);
		fake_store_reset();
	}
}

static void *roll_back(void *opaque)
{
	struct device *d = opaque;

	assert_int_equal(s3_snapshot_rollback(volume_of(d), "s"), 0);
	return NULL;
}

/* A rollback that is in the log waits for a store that is out of reach. */
static void test_a_rollback_waits_for_the_store(void **state)
{
	struct device d;
	pthread_t thread;

	(void)state;
	create_volume(&d);
	assert_int_equal(write_mib(&d, 0, 1), 0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	put_mib(&d, 0, 2);
	/* Before that it fails, and nothing has happened. */
	fake_store_fail(S3_GET, "/snap/s/root", -EIO, 1);
	assert_int_equal(s3_snapshot_rollback(volume_of(&d), "s"), -EIO);
	check_mib(&d, 0, 2);
	fake_store_hold_answers(S3_PUT, "/log/", false);
	assert_int_equal(pthread_create(&thread, NULL, roll_back, &d), 0);
	fake_store_wait_held(S3_PUT, "/log/");
	fake_store_fail(S3_GET, "/snap/s/root", -EIO, 1);
	fake_store_release(S3_PUT, "/log/");
	pthread_join(thread, NULL);
	assert_int_equal(fake_store_failed(), 2);
	check_mib(&d, 0, 1);
	assert_int_equal(write_mib(&d, 1, 3), 0);
	device_close(&d);
	fake_store_reset();
}

/* Nor does it end with an error while the store refuses its record, and happen after that. */
static void test_a_rollback_that_is_refused(void **state)
{
	struct device d;

	(void)state;
	create_volume(&d);
	put_mib(&d, 0, 1);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	put_mib(&d, 0, 2);
	fake_store_fail(S3_PUT, "/log/", -EACCES, 3);
	assert_int_equal(s3_snapshot_rollback(volume_of(&d), "s"), 0);
	assert_int_equal(fake_store_failed(), 3);
	check_mib(&d, 0, 1);
	put_mib(&d, 1, 3);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M");
	check_mib(&d, 0, 1);
	check_mib(&d, 1, 3);
	device_close(&d);
	fake_store_reset();
}

/* Nor while it refuses its root: what is in the log has happened. */
static void test_a_rollback_without_a_root(void **state)
{
	struct device d;

	(void)state;
	create_volume(&d);
	put_mib(&d, 0, 1);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	put_mib(&d, 0, 2);
	fake_store_fail(S3_PUT, "/ckpt/", -ENOSPC, 1000000);
	assert_int_equal(s3_snapshot_rollback(volume_of(&d), "s"), 0);
	assert_true(fake_store_failed() > 0);
	check_mib(&d, 0, 1);
	crash(&d);
	fake_store_fail(S3_PUT, "/ckpt/", 0, 0);
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M");
	check_mib(&d, 0, 1);
	device_close(&d);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_clone_beside_a_server),
		cmocka_unit_test(test_no_snapshot_in_a_full_store),
		cmocka_unit_test(test_a_snapshot_finds_a_full_store),
		cmocka_unit_test(test_a_snapshot_without_a_root),
		cmocka_unit_test(test_a_rollback_to_what_is_gone),
		cmocka_unit_test(test_a_rollback_waits_for_the_store),
		cmocka_unit_test(test_a_rollback_that_is_refused),
		cmocka_unit_test(test_a_rollback_without_a_root),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
