/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two writers of an S3 volume over a store in this process: when the other takes over, nothing that
 * was acknowledged to one of them as durable is lost, whatever is late.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backends/s3/admin/verify.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/read/internal.h"
#include "backends/s3/recovery/internal.h"
#include "backends/s3/state/cache.h"
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
	device_open(d, &s3_backend, COMMON "create=on;%s", more);
}

static void reopen(struct device *d)
{
	device_open(d, &s3_backend, COMMON);
}

/* Ends a server as a crash does: nothing more is stored. */
static void crash(struct device *d)
{
	s3_volume_fail(volume_of(d), -EIO, "test");
	device_close(d);
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

static int open_it(struct device *d)
{
	reopen(d);
	return 0;
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
	create(&a, "size=64M");
	assert_int_equal(write_block(&a, 0, 1), 0);
	fake_store_hold(S3_PUT, "/snap/");
	start(&snapshot, &a, create_snapshot);
	fake_store_wait_held(S3_PUT, "/snap/");
	/* It is stored, but the writer has not received the answer yet. */
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
	create(&a, "size=64M");
	assert_int_equal(write_block(&a, 0, 1), 0);
	fake_store_hold(S3_PUT, "/snap/s/root");
	start(&snapshot, &a, create_snapshot);
	fake_store_wait_held(S3_PUT, "/snap/s/root");
	reopen(&b);
	fake_store_release(S3_PUT, NULL);
	assert_int_not_equal(end(&snapshot), 0);
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

	create(&a, "size=64M");
	next_log_key(&a, 0, held);
	next_log_key(&a, 1, key);
	fake_store_hold(S3_PUT, held);
	start(&first, &a, write_next);
	fake_store_wait_held(S3_PUT, held);
	start(&second, &a, write_far_away);
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
	assert_int_not_equal(end(&first), 0);
	assert_int_not_equal(end(&second), 0);
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
	create(&a, "size=64M");
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

static int run_checkpoint(struct s3_volume *v, void *opaque)
{
	(void)opaque;
	return s3_checkpoint(v);
}

static int checkpoint(struct device *d)
{
	return s3_keeper_call(volume_of(d), run_checkpoint, NULL);
}

static int open_writer(struct device *d)
{
	return device_try(d, &s3_backend, 0, COMMON "gc-delay=0");
}

static int open_reader(struct device *d)
{
	return device_try(d, &s3_backend, 0, COMMON "readonly=on");
}

static const char *log_key(uint64_t seq)
{
	static char key[32];

	snprintf(key, sizeof key, "/log/%02x/%016llx", (unsigned)(seq & 0xff),
		(unsigned long long)seq);
	return key;
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
	create(&a, LARGE);
	write_far(&a, 0, 20);
	assert_int_equal(s3_snapshot_create(volume_of(&a), "s"), 0);
	assert_int_equal(s3_snapshot_create(volume_of(&a), "t"), 0);
	write_far(&a, 20, 40);
	assert_int_equal(checkpoint(&a), 0);
	assert_int_equal(device_counter(&a, "light_roots"), 1);
	end_of_log = volume_of(&a)->frontier;
	/* The last of the first headers that B asks for, and A for none so far. */
	fake_store_hold(S3_GET, log_key(end_of_log + 4));
	start(&opening, &b, open_writer);
	fake_store_wait_held(S3_GET, log_key(end_of_log + 4));
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), 0);
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "t"), 0);
	fake_store_release(S3_GET, NULL);
	assert_int_equal(end(&opening), 0);
	check_far(&b, 40);
	for (unsigned i = 0; i < 3; i++) {
		write_far(&b, 40, 60);
		assert_int_equal(checkpoint(&b), 0);
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

	create(&a, LARGE);
	for (unsigned i = 0; i < 3; i++)
		write_far(&a, 0, 20); /* of the first ones nothing is alive */
	assert_int_equal(s3_snapshot_create(volume_of(&a), "s"), 0);
	assert_int_equal(s3_snapshot_create(volume_of(&a), "t"), 0);
	snprintf(key, sizeof key, "/ckpt/%016llx/root",
		(unsigned long long)volume_of(&a)->checkpoint);
	fake_store_hold(S3_GET, key);
	start(&opening, &b, open);
	fake_store_wait_held(S3_GET, key);
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "s"), 0);
	assert_int_equal(s3_snapshot_delete(volume_of(&a), "t"), 0);
	assert_int_equal(s3_volume_gc(volume_of(&a), NULL, NULL), 0);
	assert_int_equal(fake_store_object(log_key(2), NULL, 0), SIZE_MAX);
	/* One that is never answered holds the collector up for no longer. */
	assert_in_range(fake_store_deadline(S3_DELETE_MANY, "/log/"), 1, 60);
	fake_store_release(S3_GET, NULL);
	if (end(&opening))
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
	create(&a, LARGE);
	write_far(&a, 0, 10);
	assert_int_equal(checkpoint(&a), 0);
	snprintf(key, sizeof key, "/ckpt/%016llx/root",
		(unsigned long long)volume_of(&a)->checkpoint);
	fake_store_hold_answers(S3_GET, key, false);
	start(&opening, &b, open_reader);
	fake_store_wait_held(S3_GET, key);
	for (unsigned i = 0; i < 20; i++)
		write_far(&a, 0, 10);
	assert_int_equal(s3_volume_gc(volume_of(&a), NULL, NULL), 0);
	fake_store_release(S3_GET, NULL);
	if (end(&opening))
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
	create(&a, "size=64M;gc-delay=1");
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
	struct device a, c;
	uint8_t block[BLOCK];
	char key[64];

	(void)state;
	create(&a, "size=64M;gc-delay=1");
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
	device_open(&c, &s3_backend, COMMON "snapshot=s");
	assert_int_equal(device_read(&c, block, BLOCK, 0), 0);
	assert_int_equal(block[0], 1);
	device_close(&c);
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
	struct device a, b, c;
	struct job deletion;
	uint8_t block[BLOCK];

	(void)state;
	create(&a, "size=64M");
	assert_int_equal(write_block(&a, 0, 1), 0);
	assert_int_equal(create_snapshot(&a), 0);
	fake_store_hold_answers(S3_DELETE, "/snap/s/root", true);
	start(&deletion, &a, delete_snapshot);
	fake_store_wait_held(S3_DELETE, "/snap/s/root");
	reopen(&b);
	assert_int_equal(write_block(&b, 0, 2), 0);
	assert_int_equal(create_snapshot(&b), 0);
	fake_store_release(S3_DELETE, NULL);
	end(&deletion);
	device_close(&a);
	crash(&b);
	device_open(&c, &s3_backend, COMMON "snapshot=s");
	assert_int_equal(device_read(&c, block, BLOCK, 0), 0);
	assert_int_equal(block[0], 2);
	device_close(&c);
	fake_store_reset();
}

/* The same of the mark of a deletion: B's holds off clones until B is done with its own. */
static void test_late_deletion_of_a_mark(void **state)
{
	struct job deletion, other;
	struct device a, b, reader;

	(void)state;
	create(&a, "size=64M");
	assert_int_equal(write_block(&a, 0, 1), 0);
	assert_int_equal(create_snapshot(&a), 0);
	fake_store_hold_answers(S3_DELETE, "/snap/s/child/", true);
	start(&deletion, &a, delete_snapshot);
	fake_store_wait_held(S3_DELETE, "/snap/s/child/");
	reopen(&b);
	assert_int_equal(create_snapshot(&b), 0);
	device_open(&reader, &s3_backend, COMMON "readonly=on");
	/* It has put its mark, and looks for clones. */
	fake_store_hold(S3_LIST, "/snap/s/child/");
	start(&other, &b, delete_snapshot);
	fake_store_wait_held(S3_LIST, "/snap/s/child/");
	fake_store_release(S3_DELETE, "/snap/s/child/");
	end(&deletion);
	fake_store_hold(S3_DELETE, "/snap/s/root");
	fake_store_release(S3_LIST, "/snap/s/child/");
	fake_store_wait_held(S3_DELETE, "/snap/s/root");
	assert_int_equal(s3_volume_clone(volume_of(&reader), "s", "userblk", "clone"), -EBUSY);
	device_close(&reader);
	fake_store_release(S3_DELETE, NULL);
	assert_int_equal(end(&other), 0);
	device_close(&b);
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
	create(&a, "size=64M");
	assert_int_equal(write_block(&a, 0, 1), 0);
	assert_int_equal(create_snapshot(&a), 0);
	assert_int_equal(write_block(&a, 0, 2), 0);
	fake_store_hold(S3_PUT, "/root");
	start(&deletion, &a, delete_snapshot);
	fake_store_wait_held(S3_PUT, "/root");
	/* B has tried the roots, and reads the log. */
	number = volume_of(&a)->frontier;
	snprintf(key, sizeof key, "log/%02llx/%016llx", number & 0xff, number);
	fake_store_hold(S3_GET, key);
	start(&takeover, &b, open_it);
	fake_store_wait_held(S3_GET, key);
	fake_store_release(S3_PUT, "/root");
	assert_int_equal(end(&deletion), 0);
	fake_store_release(S3_GET, key);
	assert_int_equal(end(&takeover), 0);
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
	create(&a, "size=64M");
	assert_int_equal(write_block(&a, 0, 1), 0);
	number = volume_of(&a)->frontier;
	snprintf(key, sizeof key, "log/%02llx/%016llx", number & 0xff, number);
	fake_store_fail(S3_GET, key, -ENOENT, 1000);
	assert_int_equal(s3_verify(volume_of(&a), &verify), 0);
	assert_true(damaged > 0);
	fake_store_fail(S3_GET, key, -ENOENT, 0);
	reopen(&b);
	fake_store_fail(S3_GET, key, -ENOENT, 1000);
	damaged = 0;
	assert_int_equal(s3_verify(volume_of(&a), &verify), -EIO);
	assert_int_equal(damaged, 0);
	device_close(&b);
	device_close(&a);
	fake_store_reset();
}

/*
 * Two snapshots of one name, one after the other, and the root that tells of the second is damaged:
 * it is that one that there is.
 */
static void test_snapshot_made_anew_before_a_damaged_root(void **state)
{
	struct s3_snapshot_info *list;
	uint8_t block[BLOCK];
	struct device a, c;
	char key[64];
	uint64_t seq;
	size_t n;

	(void)state;
	create(&a, "size=64M");
	assert_int_equal(write_block(&a, 0, 1), 0);
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
	reopen(&c);
	assert_int_equal(s3_snapshot_list(volume_of(&c), &list, &n), 0);
	assert_int_equal(n, 1);
	assert_true(list[0].seq > seq);
	free(list);
	assert_int_equal(write_block(&c, 0, 3), 0);
	device_close(&c);
	device_open(&c, &s3_backend, COMMON "snapshot=s");
	assert_int_equal(device_read(&c, block, BLOCK, 0), 0);
	assert_int_equal(block[0], 2);
	device_close(&c);
	fake_store_reset();
}

static int collect(struct device *d)
{
	return s3_volume_gc(volume_of(d), NULL, NULL);
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
	create(&z, "size=64M;gc-delay=0");
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(write_block(&z, i, i + 1), 0);
	fake_store_hold_answers(S3_PUT, "/gc/", false);
	start(&round, &z, collect);
	fake_store_wait_held(S3_PUT, "/gc/");
	s3_volume_fail(volume_of(&z), -EIO, "test");
	fake_store_release(S3_PUT, NULL);
	assert_int_not_equal(end(&round), 0);
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
	reopen(&c);
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
	create(&a, "size=64M;gc-delay=0");
	length = fake_store_object("/v/super", super, sizeof super);
	fake_store_set("userblk/v/deleted", super, length);
	assert_int_equal(write_block(&a, 0, 1), 0);
	assert_int_equal(collect(&a), 0);
	assert_int_equal(fake_store_object("/v/deleted", NULL, 0), SIZE_MAX);
	assert_int_not_equal(fake_store_object("/v/super", NULL, 0), SIZE_MAX);
	device_close(&a);
	fake_store_reset();
}

/* ---- the size -----------------------------------------------------------------------------------
 */

static int grow(struct device *d)
{
	return s3_volume_resize(volume_of(d), 128 << 20);
}

/* A size that was acknowledged is that of who takes over, whatever he had read before. */
static void test_takeover_beside_a_resize(void **state)
{
	struct device a, b;
	struct job job;

	(void)state;
	create(&a, "size=64M");
	assert_int_equal(write_block(&a, 0, 1), 0);
	fake_store_hold(S3_LIST, "ckpt/");
	start(&job, &b, open_it);
	fake_store_wait_held(S3_LIST, "ckpt/");
	assert_int_equal(grow(&a), 0);
	fake_store_release(S3_LIST, NULL);
	assert_int_equal(end(&job), 0);
	assert_int_equal(b.backend->size, 128 << 20);
	crash(&a);
	crash(&b);
	/* What is stored when he has looked is not acknowledged. */
	create(&a, "size=64M");
	assert_int_equal(write_block(&a, 0, 1), 0);
	fake_store_hold(S3_PUT, "/super");
	start(&job, &a, grow);
	fake_store_wait_held(S3_PUT, "/super");
	reopen(&b);
	assert_int_equal(b.backend->size, 64 << 20);
	fake_store_release(S3_PUT, NULL);
	assert_int_equal(end(&job), -EIO);
	crash(&b);
	crash(&a);
	fake_store_reset();
}

/* ---- a writer that does not pause ---------------------------------------------------------------
 */

/*
 * The fence ahead of one who had begun with an old root may stand in a hole of the log that a
 * collection has made. With a newer root he puts another one.
 */
static void test_each_attempt_may_stop_a_writer(void **state)
{
	struct device a, b;
	struct s3_recovery p;

	(void)state;
	create(&a, "size=64M");
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
 * Who may not simply stop a writer follows him no further than necessary, even if there is always
 * one more object when he asks.
 */
static void test_a_busy_writer_is_not_followed_for_ever(void **state)
{
	const uint64_t horizon = 4 + 15 * 64 + 128;
	char last[32], next[32];
	struct device a, b;
	struct job job;

	(void)state;
	for (int readonly = 0; readonly < 2; readonly++) {
		create(&a, "size=64M");
		fake_store_hold(S3_PUT, "/ckpt/");
		write_up_to(&a, horizon - 64);
		snprintf(last, sizeof last, "%s", log_key(horizon - 64));
		fake_store_hold(S3_GET, last);
		start(&job, &b, readonly ? open_readonly : open_with_log);
		fake_store_wait_held(S3_GET, last);
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
		assert_int_equal(end(&job), 0);
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

/* Objects of a newer program may hold flushed data: no message suggests to delete them. */
static void test_newer_object_is_not_to_be_deleted(void **state)
{
	uint8_t object[64 << 10];
	struct device a, b;
	size_t length;
	char key[64];

	(void)state;
	create(&a, "size=64M");
	assert_int_equal(write_block(&a, 0, 1), 0);
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
		cmocka_unit_test(test_root_that_comes_after_its_parts),
		cmocka_unit_test(test_check_of_a_volume_taken_over),
		cmocka_unit_test(test_snapshot_made_anew_before_a_damaged_root),
		cmocka_unit_test(test_takeover_beside_a_resize),
		cmocka_unit_test(test_each_attempt_may_stop_a_writer),
		cmocka_unit_test(test_a_busy_writer_is_not_followed_for_ever),
		cmocka_unit_test(test_takeover_of_a_busy_writer),
		cmocka_unit_test(test_store_without_conditions),
		cmocka_unit_test(test_newer_object_is_not_to_be_deleted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
