/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * userblk-s3 check of an S3 volume over a store in this process: what roots, regions and summaries
 * have lost is found before the next open needs it, and a server replaces it.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "backends/s3/admin/verify.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/keeper/snapshot.h"
#include "tests/unit/s3_writers.h"

struct found {
	unsigned n;
	char key[S3_KEY_MAX + 1];
	char reason[128];
};

static void note(void *opaque, const struct s3_damage *damage)
{
	struct found *found = opaque;

	assert_int_equal(damage->length, 0);
	found->n++;
	snprintf(found->key, sizeof found->key, "%s", damage->key);
	snprintf(found->reason, sizeof found->reason, "%s", damage->reason);
}

static int delete_snapshot(struct device *d)
{
	return s3_snapshot_delete(volume_of(d), "s");
}

/* What a check finds. */
static struct found check(struct device *d)
{
	struct found found = {0};
	struct s3_verify verify = {.opaque = &found, .damage = note};

	assert_int_equal(s3_verify(volume_of(d), &verify), 0);
	assert_int_equal(verify.damaged_objects, found.n);
	assert_true(verify.objects > 1);
	return found;
}

/* The key of a part of the checkpoint at seq, in a static buffer. */
static const char *part_of(uint64_t seq, const char *part)
{
	static char key[64];

	snprintf(key, sizeof key, "userblk/v/ckpt/%016llx/%s", (unsigned long long)seq, part);
	return key;
}

/* One of its bytes is another, in the middle or in its header; missing: it is gone. */
enum damage { MIDDLE, HEADER, MISSING };

static void damage_so(const char *key, enum damage how)
{
	static uint8_t data[1 << 20];
	size_t length = fake_store_object(key, data, sizeof data);

	assert_in_range(length, 1, sizeof data);
	data[how == HEADER ? 20 : length / 2] ^= 1;
	fake_store_set(key, how == MISSING ? NULL : data, length);
}

static void damage(const char *key, bool missing)
{
	damage_so(key, missing ? MISSING : MIDDLE);
}

static void check_data(struct device *d)
{
	uint8_t block[BLOCK];

	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(device_read(d, block, BLOCK, (uint64_t)i * BLOCK), 0);
		assert_int_equal(block[0], i + 1);
	}
}

/* A volume with a full root. Its number in the log. */
static uint64_t make(struct device *d)
{
	create_volume(d, "size=64M;gc-delay=0");
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(write_block(d, i, i + 1), 0);
	volume_of(d)->full_wanted = true;
	assert_int_equal(try_checkpoint(d), 0);
	assert_int_equal(check(d).n, 0);
	return volume_of(d)->full;
}

/* The next open finds all of it. Ends it. */
static void assert_whole_after_a_crash(struct device *d)
{
	crash(d);
	open_volume(d);
	check_data(d);
	assert_int_equal(check(d).n, 0);
	device_close(d);
}

static void assert_is(const struct found *found, const char *key, const char *reason)
{
	assert_int_equal(found->n, 1);
	assert_string_equal(found->key, key);
	assert_holds(found->reason, reason);
}

/* A server has the whole map in memory, and stores it again. */
static void test_a_server_replaces_its_checkpoint(void **state)
{
	static const char *const parts[] = {"0000", "root"};
	struct found found;
	struct device d;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		char key[64];

		strcpy(key, part_of(make(&d), parts[i % 2]));
		damage(key, i / 2);
		found = check(&d);
		assert_is(&found, key,
			i / 2	? "missing"
			: i % 2 ? "damaged"
				: "has a wrong checksum");
		assert_holds(found.reason, "; a new checkpoint does not need it");
		assert_int_equal(check(&d).n, 0);
		assert_whole_after_a_crash(&d);
	}
	fake_store_reset();
}

/* A store that refuses the new one: it comes later. */
static void test_a_checkpoint_that_cannot_be_replaced(void **state)
{
	struct found found;
	struct device d;
	char key[64];

	(void)state;
	strcpy(key, part_of(make(&d), "0000"));
	damage(key, false);
	fake_store_fail(S3_PUT, "/ckpt/", -EACCES, 1);
	found = check(&d);
	assert_is(&found, key, "; the next checkpoint does not need it");
	assert_int_equal(write_block(&d, 0, 1), 0);
	assert_int_equal(try_checkpoint(&d), 0);
	assert_int_equal(check(&d).n, 0);
	crash(&d);
	open_volume(&d);
	check_data(&d);
	device_close(&d);
	fake_store_reset();
}

/* One that is only marked, in a volume that is closed: the map in memory was whole. */
static void test_a_checkpoint_that_the_end_replaces(void **state)
{
	struct device d;
	char key[64];

	(void)state;
	make(&d);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), 0);
	volume_of(&d)->full_wanted = true;
	assert_int_equal(write_block(&d, 0, 1), 0);
	assert_int_equal(try_checkpoint(&d), 0);
	strcpy(key, part_of(volume_of(&d)->full, "0000"));
	damage(key, false);
	fake_store_fail(S3_PUT, "/ckpt/", -EACCES, 1);
	assert_int_equal(check(&d).n, 1);
	device_close(&d);
	open_volume(&d);
	check_data(&d);
	assert_int_equal(check(&d).n, 0);
	device_close(&d);
	fake_store_reset();
}

/* A full store has no room for a full root: the smaller ones go on. */
static void test_a_full_store(void **state)
{
	struct found found;
	struct device d;
	char key[64];

	(void)state;
	strcpy(key, part_of(make(&d), "0000"));
	damage(key, false);
	atomic_store(&volume_of(&d)->refused, -ENOSPC);
	found = check(&d);
	assert_is(&found, key, "; the store takes nothing now");
	assert_false(volume_of(&d)->full_wanted);
	assert_true(volume_of(&d)->full);
	atomic_store(&volume_of(&d)->refused, 0);
	found = check(&d);
	assert_is(&found, key, "; a new checkpoint does not need it");
	assert_int_equal(check(&d).n, 0);
	device_close(&d);
	fake_store_reset();
}

/* The open has passed the newest root over, and begun with an older one. */
static void test_a_root_that_the_open_could_not_use(void **state)
{
	struct found found;
	struct device d;
	char key[64];

	(void)state;
	strcpy(key, part_of(make(&d), "root"));
	device_close(&d);
	damage(key, false);
	device_open(&d, &s3_backend, COMMON "readonly=on");
	found = check(&d);
	assert_is(&found, key, "missing or damaged");
	device_close(&d);
	open_volume(&d);
	check_data(&d);
	found = check(&d);
	assert_is(&found, key, "; a new checkpoint does not need it");
	assert_int_equal(check(&d).n, 0);
	device_close(&d);
	fake_store_reset();
}

/* Without a server it is reported, and nothing changes. */
static void test_a_reader_changes_nothing(void **state)
{
	struct device d, reader;
	struct found found;
	unsigned puts;
	char key[64];

	(void)state;
	strcpy(key, part_of(make(&d), "0000"));
	device_close(&d);
	device_open(&reader, &s3_backend, COMMON "readonly=on");
	damage(key, false);
	puts = fake_store_requests(S3_PUT, "");
	for (unsigned i = 0; i < 2; i++) {
		found = check(&reader);
		assert_is(&found, key, "has a wrong checksum");
	}
	assert_int_equal(fake_store_requests(S3_PUT, ""), puts);
	device_close(&reader);
	fake_store_reset();
}

/* A light root names summaries, and a full root. */
static void test_a_light_root(void **state)
{
	struct found found;
	struct device d;
	uint64_t full;
	char key[64];

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		/* So large that its map costs more than the summaries. */
		create_volume(&d, "size=1T");
		for (unsigned j = 0; j < 20; j++)
			assert_int_equal(write_block(&d, j * 1234567, j), 0);
		assert_int_equal(create_snapshot(&d), 0);
		full = volume_of(&d)->full;
		assert_true(full);
		for (unsigned j = 0; j < 4; j++)
			assert_int_equal(write_block(&d, j, j + 1), 0);
		assert_int_equal(try_checkpoint(&d), 0);
		assert_int_equal(volume_of(&d)->n_summaries, 1);
		assert_int_equal(check(&d).n, 0);
		strcpy(key,
			i ? part_of(full, "root") : part_of(volume_of(&d)->checkpoint, "summary"));
		damage(key, true);
		found = check(&d);
		assert_is(&found, key, "missing");
		assert_int_equal(check(&d).n, 0);
		crash(&d);
		open_volume(&d);
		check_data(&d);
		device_close(&d);
	}
	fake_store_reset();
}

/* That of a snapshot cannot be replaced, by nobody. */
static void test_a_snapshot(void **state)
{
	struct device d, reader;
	struct found found;
	uint64_t seq;
	char key[64];

	(void)state;
	make(&d);
	assert_int_equal(create_snapshot(&d), 0);
	seq = volume_of(&d)->snapshots[0].seq;
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(write_block(&d, i, i + 1), 0);
	assert_int_equal(try_checkpoint(&d), 0);
	assert_int_equal(check(&d).n, 0);
	device_open(&reader, &s3_backend, COMMON "snapshot=s");
	assert_int_equal(check(&reader).n, 0);
	snprintf(key, sizeof key, "userblk/v/snap/s/root-%016llx", (unsigned long long)seq);
	damage(key, false);
	for (unsigned i = 0; i < 2; i++) {
		found = check(&d);
		assert_is(&found, key, "is missing or damaged");
		assert_null(strstr(found.reason, "checkpoint"));
	}
	found = check(&reader);
	assert_is(&found, key, "is missing or damaged");
	device_close(&reader);
	assert_int_equal(s3_snapshot_delete(volume_of(&d), "s"), 0);
	assert_int_equal(check(&d).n, 0);
	device_close(&d);
	fake_store_reset();
}

/* A region of both: the snapshot has lost it for good. */
static void test_a_region_of_a_snapshot(void **state)
{
	struct found found;
	struct device d;
	char key[64];

	(void)state;
	make(&d);
	assert_int_equal(create_snapshot(&d), 0);
	strcpy(key, part_of(volume_of(&d)->full, "0000"));
	if (fake_store_object(key, NULL, 0) == SIZE_MAX)
		strcpy(key, part_of(volume_of(&d)->regions[0].seq, "0000"));
	damage(key, false);
	found = check(&d);
	assert_is(&found, key, "; a new checkpoint does not need it; and snapshot s");
	found = check(&d);
	assert_is(&found, key, "has a wrong checksum");
	assert_null(strstr(found.reason, "checkpoint"));
	device_close(&d);
	fake_store_reset();
}

/* Its table also has what only an older snapshot held, which is gone. */
static void test_a_reader_of_a_snapshot(void **state)
{
	struct device d, reader;

	(void)state;
	create_volume(&d, "size=64M;gc-delay=0");
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(write_block(&d, i, 100), 0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "a"), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(write_block(&d, i, i + 1), 0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "b"), 0);
	assert_int_equal(s3_snapshot_delete(volume_of(&d), "a"), 0);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), 0);
	device_open(&reader, &s3_backend, COMMON "snapshot=b");
	check_data(&reader);
	assert_int_equal(check(&reader).n, 0);
	/* When the snapshot itself is deleted, nothing is damaged. */
	assert_int_equal(s3_snapshot_delete(volume_of(&d), "b"), 0);
	assert_int_equal(s3_verify(volume_of(&reader),
				 &(struct s3_verify){.opaque = &(struct found){0}, .damage = note}),
		-ENOENT);
	assert_holds(reader.reported.error, "has been deleted since it was opened");
	device_close(&reader);
	device_close(&d);
	fake_store_reset();
}

/* A writer deletes a snapshot while a reader opens the volume: the root comes after that. */
static void test_a_reader_beside_a_deletion(void **state)
{
	struct device d, reader;
	struct job deletion;

	(void)state;
	make(&d);
	assert_int_equal(create_snapshot(&d), 0);
	start_held_job(&deletion, &d, delete_snapshot, S3_PUT, "/root");
	device_open(&reader, &s3_backend, COMMON "readonly=on");
	fake_store_release(S3_PUT, NULL);
	assert_int_equal(end_job(&deletion), 0);
	assert_int_equal(s3_verify(volume_of(&reader),
				 &(struct s3_verify){.opaque = &(struct found){0}, .damage = note}),
		-EBUSY);
	device_close(&reader);
	device_close(&d);
	fake_store_reset();
}

/* It ends before the next root. */
static void test_a_check_that_is_stopped(void **state)
{
	const _Atomic bool stop = true;
	struct device d;
	unsigned gets;

	(void)state;
	make(&d);
	assert_int_equal(create_snapshot(&d), 0);
	gets = fake_store_requests(S3_GET, "");
	assert_int_equal(
		s3_verify(volume_of(&d), &(struct s3_verify){.damage = note, .stop = &stop}),
		-ECANCELED);
	assert_int_equal(fake_store_requests(S3_GET, ""), gets);
	device_close(&d);
	fake_store_reset();
}

static const char *log_object(uint64_t seq)
{
	static char key[64];

	snprintf(key, sizeof key, "userblk/v%s", log_key(seq));
	return key;
}

/* A writer has flushed four blocks, the first of them twice, and is gone; one object is lost. */
static void lose_one_of_the_log(uint64_t seq)
{
	struct device d;

	create_volume(&d, "size=64M");
	assert_int_equal(write_block(&d, 0, 100), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(write_block(&d, i, i + 1), 0);
	crash(&d);
	fake_store_set(log_object(seq), NULL, 0);
}

/* What was flushed is lost, and a server cannot open the volume: a reader sees what was before. */
static void test_a_reader_of_what_is_left(void **state)
{
	struct device reader, server;
	struct found found;

	(void)state;
	lose_one_of_the_log(5);
	device_open(&reader, &s3_backend, COMMON "readonly=on");
	for (unsigned i = 0; i < 2; i++) {
		found = check(&reader);
		assert_is(&found, log_object(5),
			"is missing, although it had been stored before object 6 of the log was");
	}
	device_close(&reader);
	assert_int_equal(device_try(&server, &s3_backend, 0, COMMON), -EIO);
	assert_holds(server.reported.error, "is missing, although it had been stored before");
	fake_store_reset();
}

/* Objects that recovery needs although none of their blocks is in use. */
static void test_a_server_replaces_the_end_of_its_log(void **state)
{
	struct found found;
	struct device d;
	unsigned i;

	(void)state;
	/* The fence; an object that the next one overwrites; the same, damaged. */
	for (i = 0; i < 3; i++) {
		create_volume(&d, "size=64M");
		assert_int_equal(write_block(&d, 0, 100), 0);
		for (unsigned j = 0; j < 4; j++)
			assert_int_equal(write_block(&d, j, j + 1), 0);
		assert_int_equal(check(&d).n, 0);
		if (i < 2)
			fake_store_set(log_object(i + 1), NULL, 0);
		else
			damage_so(log_object(2), HEADER);
		found = check(&d);
		assert_is(&found, log_object(i ? 2 : 1), "; a new checkpoint does not need it");
		assert_int_equal(check(&d).n, 0);
		assert_whole_after_a_crash(&d);
	}
	fake_store_reset();
}

struct listed {
	unsigned n, others;
};

static void count(void *opaque, const struct s3_damage *damage)
{
	struct listed *listed = opaque;

	listed->n++;
	sscanf(damage->reason, "and %u others are damaged and not listed; ", &listed->others);
}

/* Data is lost with it: told once, and the rest can be opened after a crash. */
static void test_data_at_the_end_of_the_log(void **state)
{
	struct listed listed = {0};
	struct s3_verify verify = {.opaque = &listed, .damage = count};
	uint8_t block[BLOCK];
	struct device d;

	(void)state;
	create_volume(&d, "size=64M");
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(write_block(&d, i, i + 1), 0);
	fake_store_set(log_object(3), NULL, 0);
	assert_int_equal(s3_verify(volume_of(&d), &verify), 0);
	assert_int_equal(listed.n, 1);
	assert_int_equal(verify.damaged_objects, 1);
	assert_int_equal(verify.damaged_bytes, BLOCK);
	crash(&d);
	open_volume(&d);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(
			device_read(&d, block, BLOCK, (uint64_t)i * BLOCK), i == 1 ? -EIO : 0);
	device_close(&d);
	fake_store_reset();
}

/* When much is missing, so much of it is listed as there is memory, and the rest is counted. */
static void test_a_store_that_has_lost_all(void **state)
{
	const unsigned lost = 100;
	struct listed listed = {0};
	struct s3_verify verify = {.opaque = &listed, .damage = count};
	struct device d;

	(void)state;
	create_volume(&d, "size=64M");
	for (unsigned i = 0; i < lost; i++)
		assert_int_equal(write_block(&d, i, 1), 0);
	fake_store_fail(S3_GET, "/log/", -ENOENT, UINT_MAX);
	volume_of(&d)->cache_bytes = 128 << 10;
	assert_int_equal(s3_verify(volume_of(&d), &verify), 0);
	assert_int_equal(verify.damaged_objects, lost + 1); /* and the fence */
	assert_int_equal(verify.damaged_bytes, lost * BLOCK);
	assert_in_range(listed.n, 10, lost / 2);
	assert_int_equal(listed.n + listed.others, lost + 1);
	crash(&d);
	fake_store_reset();
}

/* A clone begins with its parent's snapshot, until it has a full root of its own. */
static void test_a_clone(void **state)
{
	struct device d, clone;
	struct found found;
	uint64_t seq;
	char key[64];

	(void)state;
	make(&d);
	assert_int_equal(create_snapshot(&d), 0);
	seq = volume_of(&d)->snapshots[0].seq;
	assert_int_equal(s3_volume_clone(volume_of(&d), "s", "userblk", "c"), 0);
	device_close(&d);
	device_open(&clone, &s3_backend,
		"endpoint=http://127.0.0.1;bucket=abc;uploads=2;memory=64M;volume=c;");
	assert_int_equal(check(&clone).n, 0);
	snprintf(key, sizeof key, "userblk/v/snap/s/root-%016llx", (unsigned long long)seq);
	damage(key, false);
	found = check(&clone);
	assert_is(&found, key, "; a new checkpoint does not need it");
	assert_int_equal(check(&clone).n, 0);
	crash(&clone);
	device_open(&clone, &s3_backend,
		"endpoint=http://127.0.0.1;bucket=abc;uploads=2;memory=64M;volume=c;");
	check_data(&clone);
	device_close(&clone);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_server_replaces_its_checkpoint),
		cmocka_unit_test(test_a_checkpoint_that_cannot_be_replaced),
		cmocka_unit_test(test_a_reader_changes_nothing),
		cmocka_unit_test(test_a_light_root),
		cmocka_unit_test(test_a_snapshot),
		cmocka_unit_test(test_a_checkpoint_that_the_end_replaces),
		cmocka_unit_test(test_a_full_store),
		cmocka_unit_test(test_a_root_that_the_open_could_not_use),
		cmocka_unit_test(test_a_region_of_a_snapshot),
		cmocka_unit_test(test_a_reader_of_a_snapshot),
		cmocka_unit_test(test_a_reader_beside_a_deletion),
		cmocka_unit_test(test_a_check_that_is_stopped),
		cmocka_unit_test(test_a_reader_of_what_is_left),
		cmocka_unit_test(test_a_server_replaces_the_end_of_its_log),
		cmocka_unit_test(test_data_at_the_end_of_the_log),
		cmocka_unit_test(test_a_store_that_has_lost_all),
		cmocka_unit_test(test_a_clone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
