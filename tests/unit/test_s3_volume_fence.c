/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two writers of an S3 volume over a store in this process: whether there is another one is
 * noticed, and what was acknowledged to either of them is never lost.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/read/internal.h"
#include "backends/s3/state/cache.h"
#include "tests/unit/s3_writers.h"

static int write_next(struct device *d)
{
	return write_block(d, 1, 2);
}

/* ---- is there another writer? -----------------------------------------------------------------
 */

/*
 * What stands behind the frontier may be our own, with the other writer's fence behind it: a
 * snapshot that it does not know is not acknowledged.
 */
static void test_fence_behind_our_own_object(void **state)
{
	struct s3_snapshot_info *list;
	struct job snapshot, write;
	struct device a, b;
	char key[64];
	size_t n;

	(void)state;
	create_with_a_write(&a);
	start_held_job(&snapshot, &a, create_snapshot, S3_PUT, "/snap/");
	/* It is stored, but the writer has not received the answer yet. */
	snprintf(key, sizeof key, "/%016llx", (unsigned long long)volume_of(&a)->next_seq);
	fake_store_hold_answers(S3_PUT, key, false);
	start_job(&write, &a, write_next);
	fake_store_wait_held(S3_PUT, key);
	open_volume(&b);
	fake_store_release(S3_PUT, "/snap/");
	assert_int_not_equal(end_job(&snapshot), 0);
	fake_store_release(S3_PUT, NULL);
	end_job(&write);
	assert_int_equal(s3_snapshot_list(volume_of(&b), &list, &n), 0);
	assert_int_equal(n, 0);
	free(list);
	device_close(&b);
	device_close(&a);
	fake_store_reset();
}

static int create_other(struct device *d)
{
	return s3_snapshot_create(volume_of(d), "t");
}

/*
 * A's snapshot is stored when B has taken over, and B does not know of it. A reader that saw it
 * makes no clone of it once a root of B's is there.
 */
static void test_clone_of_what_a_successor_does_not_know(void **state)
{
	struct device a, b, reader;
	struct job snapshot;

	(void)state;
	create_with_a_write(&a);
	start_held_job(&snapshot, &a, create_snapshot, S3_PUT, "/snap/s/root");
	open_volume(&b);
	fake_store_release(S3_PUT, NULL);
	assert_int_not_equal(end_job(&snapshot), 0);
	device_open(&reader, &s3_backend, COMMON "readonly=on");
	assert_int_equal(s3_volume_clone(volume_of(&reader), "s", "userblk", "clone"), -EBUSY);
	assert_int_equal(create_other(&b), 0);
	assert_int_equal(s3_volume_clone(volume_of(&reader), "s", "userblk", "clone"), -ENOENT);
	assert_int_equal(fake_store_object("/clone/super", NULL, 0), SIZE_MAX);
	device_close(&reader);
	device_close(&b);
	device_close(&a);
	fake_store_reset();
}

/* Number of the open volume's next object of the log, as the end of its key. */
static void next_log_key(struct device *d, unsigned skip, char key[64])
{
	unsigned long long number = volume_of(d)->next_seq + skip;

	snprintf(key, 64, "log/%02llx/%016llx", number & 0xff, number);
}

/* Has other data push all that is cached out. */
static void forget_cached(struct device *d)
{
	static const uint8_t other[1 << 20];

	for (uint64_t id = 1000; id < 1100; id++)
		s3_cache_insert(volume_of(d)->cache, 0, id, other, sizeof other);
}

/* Waits until an object of the log is stored, and what it holds in the cache. */
static void wait_until_cached(struct device *d, uint64_t seq)
{
	struct s3_volume *v = volume_of(d);
	bool cached = false;

	while (!cached) {
		usleep(1000);
		pthread_mutex_lock(&v->lock);
		cached = v->uploaded[seq % S3_WINDOW] && !v->resident[seq % S3_WINDOW];
		pthread_mutex_unlock(&v->lock);
	}
}

static void forget_checksums(struct device *d)
{
	struct s3_crc_cache *crcs = volume_of(d)->crcs;
	uint64_t limit = crcs->limit;

	pthread_mutex_lock(&crcs->lock);
	crcs->limit = 0;
	s3_crcs_shrink(crcs);
	crcs->limit = limit;
	pthread_mutex_unlock(&crcs->lock);
}

static int write_far_away(struct device *d)
{
	return write_block(d, 2, 3);
}

/* The object of another writer's in place of one: its header, with another epoch. */
static void replace_object(const char *key, unsigned epoch)
{
	char whole[80];
	uint8_t object[64 << 10];
	size_t length = fake_store_object(key, object, sizeof object);
	uint32_t header;

	assert_true(length <= sizeof object);
	header = (uint32_t)s3_le_load(object + 16, 4);
	memset(object + header, 0xee, length - header);
	s3_le_store(object + 48, s3_le_load(object + 48, 8) + epoch, 8);
	s3_le_store(object + 20, 0, 4);
	s3_le_store(object + 20, s3_crc32c(0, object, header), 4);
	snprintf(whole, sizeof whole, "userblk/v/%s", key);
	fake_store_set(whole, object, length);
}

/*
 * A has stored an object behind one that is still on its way, and reads from it when B has put
 * something else in its place: nothing is damaged. checksums: A still has those of what it wrote.
 */
static void read_what_was_replaced(bool checksums)
{
	char held[64], key[64];
	struct job first, second;
	uint8_t block[BLOCK];
	struct device a;

	create_volume(&a, "size=64M");
	next_log_key(&a, 0, held);
	next_log_key(&a, 1, key);
	start_held_job(&first, &a, write_next, S3_PUT, held);
	start_job(&second, &a, write_far_away);
	wait_until_cached(&a, volume_of(&a)->frontier + 2);
	replace_object(key, 2);
	forget_cached(&a);
	if (!checksums)
		forget_checksums(&a);
	assert_int_equal(device_read(&a, block, BLOCK, 2 * (uint64_t)BLOCK), -EIO);
	assert_null(strstr(a.reported.error, "backup"));
	assert_holds(a.reported.error,
		checksums ? "check whether another server" : "another writer took");
	s3_volume_fail(volume_of(&a), -EIO, "test");
	fake_store_release(S3_PUT, NULL);
	assert_int_not_equal(end_job(&first), 0);
	assert_int_not_equal(end_job(&second), 0);
	device_close(&a);
	fake_store_reset();
}

static void test_reading_what_was_replaced(void **state)
{
	(void)state;
	read_what_was_replaced(true);
	read_what_was_replaced(false);
}

/* However much is uploaded beside it. */
static void test_not_fenced_while_it_writes(void **state)
{
	struct job write;
	struct device a;
	char key[64];

	(void)state;
	create_with_a_write(&a);
	snprintf(key, sizeof key, "/%016llx", (unsigned long long)volume_of(&a)->next_seq);
	fake_store_hold_answers(S3_PUT, key, false);
	start_job(&write, &a, write_next);
	fake_store_wait_held(S3_PUT, key);
	assert_int_equal(s3_check_not_fenced(volume_of(&a)), 0);
	fake_store_release(S3_PUT, NULL);
	assert_int_equal(end_job(&write), 0);
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
	assert_holds(d.reported.error, what);
	assert_int_equal(d.reported.errors, 1);
	assert_int_equal(fake_store_requests(S3_PUT, "/super"), 0);
	assert_int_equal(fake_store_object("", NULL, 0), SIZE_MAX); /* nothing is left behind */
	fake_store_reset();
}

static void test_store_without_conditions(void **state)
{
	struct device d;

	(void)state;
	refused(true, false, "fencing=auto: this store ignores If-None-Match and cannot");
	refused(false, true, "fencing=auto: this store ignores If-Match and cannot");
	refused(true, true,
		"fencing=auto: this store ignores If-None-Match and If-Match and cannot");
	fake_store_ignore(true, true);
	device_open(&d, &s3_backend, COMMON "create=on;size=64M;fencing=none");
	device_close(&d);
	fake_store_reset();
}

/* A store that does not replace what it gives is not asked again and again. */
static void test_what_is_never_replaced(void **state)
{
	uint8_t object[64 << 10];
	struct device d;
	size_t length;
	char key[64];

	(void)state;
	create_with_a_write(&d);
	/* What this writer leaves behind the fence of the next one. */
	length = fake_store_object(log_key(2), object, sizeof object);
	assert_true(length > 0 && length <= sizeof object);
	crash(&d);
	open_volume(&d);
	s3_le_store(object + 40, 4, 8);
	s3_le_store(object + 20, 0, 4);
	s3_le_store(object + 20, s3_crc32c(0, object, s3_le_load(object + 16, 4)), 4);
	snprintf(key, sizeof key, "userblk/v%s", log_key(4));
	fake_store_set(key, object, length);
	fake_store_fail(S3_PUT, log_key(4), -EEXIST, UINT32_MAX);
	assert_int_equal(write_block(&d, 1, 2), -EIO);
	sleep(2);
	assert_in_range(fake_store_failed(), 2, 8);
	assert_holds(d.reported.error, "is not replaced, although");
	fake_store_fail(S3_PUT, "", 0, 0);
	device_flush_at_last(&d);
	device_close(&d);
	fake_store_reset();
}

/*
 * Without conditions an upload of a killed writer that arrives late replaces an object of the next
 * one. Nothing can undo that, but what was flushed is not taken for never written.
 */
static void test_late_upload_without_conditions(void **state)
{
	uint8_t object[64 << 10];
	char key[64];
	struct device d;
	size_t length;

	(void)state;
	create_volume(&d, "size=64M;fencing=none");
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(write_block(&d, i, 1), 0);
	crash(&d);
	length = fake_store_object(log_key(4), object, sizeof object);
	assert_true(length > 0 && length <= sizeof object);
	for (unsigned seq = 3; seq <= 4; seq++) {
		snprintf(key, sizeof key, "userblk/v%s", log_key(seq));
		fake_store_set(key, NULL, 0);
	}
	device_open(&d, &s3_backend, COMMON "fencing=none");
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(write_block(&d, i, 2), 0);
	fake_store_set(key, object, length);
	crash(&d);
	assert_int_equal(device_try(&d, &s3_backend, 0, COMMON "fencing=none"), -EIO);
	assert_holds(d.reported.error, "is missing, although it had been stored before");
	fake_store_reset();
}

/* Objects of a newer program may hold flushed data: no message suggests to delete them. */
static void test_newer_object_is_not_to_be_deleted(void **state)
{
	uint8_t object[64 << 10];
	struct device a, b;
	size_t length;
	char key[64];

	(void)state;
	create_with_a_write(&a);
	snprintf(key, sizeof key, "userblk/v/log/%02x/%016llx",
		(unsigned)(volume_of(&a)->frontier & 0xff),
		(unsigned long long)volume_of(&a)->frontier);
	crash(&a);
	length = fake_store_object(key, object, sizeof object);
	assert_true(length > 0 && length <= sizeof object);
	object[8]++; /* the version */
	fake_store_set(key, object, length);
	assert_true(device_try(&b, &s3_backend, 0, COMMON) < 0);
	assert_holds(b.reported.error, "use a newer userblk");
	assert_null(strstr(b.reported.error, "delete"));
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fence_behind_our_own_object),
		cmocka_unit_test(test_clone_of_what_a_successor_does_not_know),
		cmocka_unit_test(test_reading_what_was_replaced),
		cmocka_unit_test(test_not_fenced_while_it_writes),
		cmocka_unit_test(test_store_without_conditions),
		cmocka_unit_test(test_what_is_never_replaced),
		cmocka_unit_test(test_late_upload_without_conditions),
		cmocka_unit_test(test_newer_object_is_not_to_be_deleted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
