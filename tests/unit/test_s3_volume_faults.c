/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A volume of the S3 device over a store in this process: one request that fails, or is never
 * answered, holds up nothing else, and memory stays bounded.
 */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <time.h>

#include "backends/s3/admin/verify.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/lifecycle/lifecycle.h"
#include "backends/s3/log/log.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_internal.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_mib_volume.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

static uint64_t roots(struct device *d)
{
	return device_counter(d, "light_roots") + device_counter(d, "full_roots");
}

/* ---- the end --------------------------------------------------------------------------------- */

/* A volume that is closed without a store lacks only its checkpoint, and its last object. */
static void test_an_end_that_lacks_only_a_checkpoint(void **state)
{
	struct device d;

	(void)state;
	for (int changed = 0; changed < 2; changed++) {
		fake_store_reset();
		device_open(&d, &s3_backend,
			COMMON "uploads=2;memory=16M;create=on;size=64M;close-timeout=1");
		put_mib(&d, 0, 1);
		/* Before the next one there will be an empty object in the log. */
		fake_store_fail(S3_PUT, "/root", -EIO, 1);
		assert_int_equal(try_checkpoint(&d), -EIO);
		fake_store_hold(S3_PUT, "/log/");
		if (changed)
			assert_int_equal(backend_trim(d.backend, 0, MIB / 2, 0), 0);
		params_free(d.params);
		assert_int_equal(s3_volume_close(volume_of(&d)), -EIO);
		assert_holds(d.reported.error,
			changed ? ": 1 objects of the log with 0 bytes of writes are not stored"
				: "volume=v: all data is stored, but not that it was closed; next "
				  "time use --take-over with userblk-s3: no reply from the store "
				  "for close-timeout=1");
		fake_store_release(S3_PUT, NULL);
	}
	fake_store_reset();
}

/* An end that the store refuses to note is tried again, until close-timeout= has passed. */
static void test_an_end_that_is_refused(void **state)
{
	struct device d;

	(void)state;
	for (int forever = 0; forever < 2; forever++) {
		fake_store_reset();
		device_open(&d, &s3_backend,
			COMMON "uploads=2;memory=16M;create=on;size=64M;close-timeout=2");
		put_mib(&d, 0, 1);
		fake_store_fail(S3_PUT, "/log/", -EACCES, forever ? 1000 : 1);
		params_free(d.params);
		assert_int_equal(s3_volume_close(volume_of(&d)), forever ? -EACCES : 0);
		assert_in_range(fake_store_failed(), forever ? 2 : 1, 5);
		if (forever)
			assert_holds(d.reported.error,
				"volume=v: all data is stored, but not that it was closed; next "
				"time use --take-over with userblk-s3");
		else
			assert_int_equal(d.reported.errors, 0);
	}
	fake_store_reset();
}

/*
 * One that answers and takes nothing is as far away as one that does not answer, to a framework
 * whose end would wait for it. One that takes something now and then is not.
 */
static void test_a_store_that_refuses_is_waited_for(void **state)
{
	const struct timespec step = {.tv_nsec = 20000000};
	struct device d;
	int steps = 0;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M;create=on;size=64M");
	put_mib(&d, 0, 1);
	WAIT_UNTIL(!backend_stalled(d.backend), "it takes all");
	fake_store_fail(S3_PUT, "/log/", -EACCES, 1);
	assert_int_equal(write_mib(&d, 1, 2), 0);
	assert_int_equal(backend_flush(d.backend), -EIO);
	WAIT_UNTIL(!backend_stalled(d.backend), "it has just begun");
	device_flush_at_last(&d);
	WAIT_UNTIL(!backend_stalled(d.backend), "it takes all");
	fake_store_fail(S3_PUT, "/log/", -EACCES, 1000);
	assert_int_equal(write_mib(&d, 2, 3), 0);
	assert_int_equal(backend_flush(d.backend), -EIO);
	for (; steps < 500 && !backend_stalled(d.backend); steps++)
		nanosleep(&step, NULL);
	assert_in_range(steps, 25, 499);
	assert_true(backend_stalled(d.backend));
	fake_store_fail(S3_PUT, "/log/", 0, 0);
	device_flush_at_last(&d);
	WAIT_UNTIL(!backend_stalled(d.backend), "it takes all");
	device_close(&d);
	fake_store_reset();
}

/* The store says nothing any more. */
static void test_an_end_without_an_answer(void **state)
{
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(
		&d, &s3_backend, COMMON "uploads=2;memory=16M;create=on;size=64M;close-timeout=1");
	put_mib(&d, 0, 1);
	fake_store_hold(S3_PUT, "/log/");
	params_free(d.params);
	assert_int_equal(s3_volume_close(volume_of(&d)), -EIO);
	assert_holds(d.reported.error, "no reply from the store for close-timeout=1");
	assert_int_equal(d.reported.errors, 1);
	fake_store_reset();
}

static void *close_it(void *opaque)
{
	struct device *d = opaque;

	assert_int_equal(s3_volume_close(volume_of(d)), 0);
	return NULL;
}

/* It has been noted, although the answer was lost and the next attempt meets it. */
static void test_an_end_whose_answer_was_lost(void **state)
{
	pthread_t thread;
	struct device d;

	(void)state;
	create_volume(&d);
	put_mib(&d, 0, 1);
	fake_store_hold_answers(S3_PUT, "/log/", true);
	params_free(d.params);
	assert_int_equal(pthread_create(&thread, NULL, close_it, &d), 0);
	fake_store_wait_held(S3_PUT, "/log/");
	fake_store_release(S3_PUT, NULL);
	pthread_join(thread, NULL);
	assert_int_equal(d.reported.errors, 0);
	fake_store_reset();
}

/* ---- one request that fails, or never ends ------------------------------------------------------
 */

/* Objects of which a half is alive. */
static void make_sparse(struct device *d, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(write_mib(d, i, i), 0);
	assert_int_equal(backend_flush(d->backend), 0);
	for (unsigned i = 0; i < n; i++) {
		fill(buffer, MIB, 1000 + i);
		assert_int_equal(device_write(d, buffer, MIB / 2, (uint64_t)i * MIB, 0), 0);
	}
	assert_int_equal(backend_flush(d->backend), 0);
}

static _Atomic bool closed;

/* Compaction that waits forever holds up no checkpoint. */
static void test_checkpoints_go_on_beside_a_stuck_collection(void **state)
{
	struct device d;
	uint64_t moved;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M;create=on;size=64M;checkpoint=4");
	fake_store_hold(S3_GET, "/log/03/0000000000000003");
	make_sparse(&d, 16);
	pause_ms(2500); /* it has begun */
	moved = device_counter(&d, "gc_objects");
	for (unsigned i = 0; i < 4; i++) {
		uint64_t before = roots(&d);

		for (unsigned j = 0; j < 5; j++) {
			put_mib(&d, 20 + j, 7);
		}
		WAIT_UNTIL(roots(&d) != before, "no further checkpoint");
	}
	assert_int_equal(device_counter(&d, "gc_objects"), moved);
	fake_store_hold(S3_GET, NULL);
	device_close(&d);
	fake_store_reset();
}

static void *close_and_tell(void *opaque)
{
	struct device *d = opaque;

	assert_int_equal(s3_volume_close(volume_of(d)), 0);
	closed = true;
	return NULL;
}

/* An end does not wait for what a collection has under way: the line is for the data. */
static void check_end_beside_a_collection(enum s3_op op, const char *part)
{
	pthread_t thread;
	struct device d;

	create_volume(&d);
	fake_store_hold(op, part);
	make_sparse(&d, 16);
	fake_store_wait_held(op, part);
	assert_int_equal(write_mib(&d, 40, 1), 0);
	params_free(d.params);
	closed = false;
	assert_int_equal(pthread_create(&thread, NULL, close_and_tell, &d), 0);
	WAIT_UNTIL(closed, "it waits for the collection");
	pthread_join(thread, NULL);
	assert_int_equal(d.reported.errors, 0);
	fake_store_release(op, part);
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M");
	check_mib(&d, 40, 1);
	device_close(&d);
	fake_store_reset();
}

static void test_an_end_beside_a_collection(void **state)
{
	(void)state;
	check_end_beside_a_collection(S3_GET, "/log/03/0000000000000003");
	check_end_beside_a_collection(S3_PUT, "/gc/");
}

/* What has to wait while a checkpoint captures the map goes on by itself then. */
struct mark {
	struct s3_volume *v;
	_Atomic bool done;
};

static void *put_mark(void *opaque)
{
	struct mark *m = opaque;

	assert_int_equal(s3_log_mark(m->v, NULL), 0);
	m->done = true;
	return NULL;
}

static void test_what_waits_for_a_capture_goes_on(void **state)
{
	struct mark mark = {0};
	pthread_t thread;
	struct device d;

	(void)state;
	create_volume(&d);
	put_mib(&d, 0, 1);
	mark.v = volume_of(&d);
	s3_log_pause(mark.v);
	assert_int_equal(pthread_create(&thread, NULL, put_mark, &mark), 0);
	pause_ms(200); /* it waits */
	assert_false(mark.done);
	s3_log_resume(mark.v);
	WAIT_UNTIL(mark.done, "it waits forever");
	pthread_join(thread, NULL);
	device_close(&d);
	fake_store_reset();
}

/*
 * The store answers an upload again and again with a reply to something else: the request ends long
 * before its deadline, and the batch is sent again.
 */
static void test_replies_that_do_not_match(void **state)
{
	static const struct {
		enum s3_op op;
		const char *part;
	} requests[] = {{S3_PUT, "/log/"}, {S3_GET, "/super"}};
	struct device d;

	(void)state;
	for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
		fake_store_reset();
		device_open(&d, &s3_backend, COMMON "create=on;size=64M;retry-deadline=60");
		fake_store_mismatch(requests[i].op, requests[i].part, 1);
		assert_int_equal(write_mib(&d, 0, 1), 0);
		if (backend_flush(d.backend))
			device_flush_at_last(&d);
		assert_int_equal(fake_store_failed(), 1);
		check_mib(&d, 0, 1);
		device_close(&d);
	}
	fake_store_reset();
}

struct checking {
	struct s3_volume *v;
	struct s3_verify verify;
	int result;
};

static void *run_check(void *opaque)
{
	struct checking *c = opaque;

	c->result = s3_verify(c->v, &c->verify);
	return NULL;
}

static unsigned pinned(const struct s3_volume *v)
{
	unsigned n = 0;

	s3_for_each_slot(v->objects, i) n += s3_objects_slot(v->objects, i)->pins > 0;
	return n;
}

/* The objects that a check reads at once fit into memory=. */
static void test_memory_of_a_check(void **state)
{
	struct checking checking = {0};
	pthread_t thread;
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M;create=on;size=64M");
	for (unsigned i = 0; i < 12; i++)
		put_mib(&d, i, i);
	checking.v = volume_of(&d);
	/* So that no headers are read before that. */
	assert_int_equal(try_checkpoint(&d), 0);
	fake_store_hold(S3_GET, "/log/");
	assert_int_equal(pthread_create(&thread, NULL, run_check, &checking), 0);
	fake_store_wait_held(S3_GET, "/log/");
	pause_ms(500); /* for the others */
	assert_in_range(pinned(checking.v), 1, 3);
	fake_store_release(S3_GET, NULL);
	pthread_join(thread, NULL);
	assert_int_equal(checking.result, 0);
	assert_int_equal(checking.verify.objects, 12 + 2);
	assert_int_equal(device_counter(&d, "compaction_bytes"), 0);
	device_close(&d);
	fake_store_reset();
}

/* A store that deletes nothing is not asked again and again, and a collection says so. */
static void test_a_store_that_does_not_delete(void **state)
{
	struct device d;
	unsigned before;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M;create=on;size=64M;checkpoint=4");
	fake_store_fail(S3_DELETE_MANY, "/log/", -EACCES, 1000000);
	for (unsigned i = 0; i < 12; i++)
		put_mib(&d, 0, i);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), -EACCES);
	assert_holds(d.reported.error, "cannot be deleted: Permission denied; collect again");
	WAIT_UNTIL(volume_of(&d)->deletion_failing, "no attempt");
	before = fake_store_failed();
	pause_ms(3000);
	assert_in_range(fake_store_failed() - before, 0, 2);
	fake_store_fail(S3_DELETE_MANY, "/log/", 0, 0);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), 0);
	assert_true(device_counter(&d, "deleted") > 8);
	device_close(&d);
	fake_store_reset();
}

/* Nor does each object of the log make a root, since one would let a mark go that stays. */
static void test_a_store_that_keeps_a_mark(void **state)
{
	struct device d;
	uint64_t before;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M;create=on;size=64M");
	put_mib(&d, 0, 0);
	fake_store_fail(S3_DELETE, "/snap/s/child/", -EACCES, 1000);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	device_close(&d);
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M");
	assert_true(volume_of(&d)->marked);
	for (unsigned i = 0; i < 8; i++) {
		put_mib(&d, 0, i);
		assert_int_equal(backend_flush(d.backend), 0);
		if (i == 1) {
			WAIT_UNTIL(roots(&d) > 0, "no root");
			WAIT_UNTIL(volume_of(&d)->unmark_due, "no attempt");
			before = roots(&d);
		}
	}
	pause_ms(300);
	assert_int_equal(roots(&d), before);
	fake_store_fail(S3_DELETE, "", 0, 0);
	assert_int_equal(try_checkpoint(&d), 0);
	assert_false(volume_of(&d)->marked);
	device_close(&d);
	fake_store_reset();
}

/* An object that cannot be read is passed over, which is reported once. */
static void test_an_unreadable_source_is_passed_over(void **state)
{
	struct device d;
	int errors;

	(void)state;
	create_volume(&d);
	errors = d.reported.errors;
	fake_store_fail(S3_GET, "/log/03/0000000000000003", -EIO, UINT32_MAX);
	make_sparse(&d, 16);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), 0);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), 0);
	assert_int_equal(volume_of(&d)->room.bytes, 0); /* the cache has its memory back */
	assert_int_equal(d.reported.errors, errors + 1);
	assert_holds(d.reported.error, "0000000000000003: fake: ");
	assert_holds(d.reported.error, "it is not compacted for ten minutes");
	assert_true(device_counter(&d, "gc_objects") >= 7);
	assert_true(device_counter(&d, "deleted") >= 14);
	fake_store_fail(S3_GET, "", 0, 0);
	for (unsigned i = 0; i < 16; i++) {
		static uint8_t got[MIB];

		assert_int_equal(device_read(&d, got, MIB, (uint64_t)i * MIB), 0);
		fill(buffer, MIB, i);
		assert_memory_equal(got + MIB / 2, buffer + MIB / 2, MIB / 2);
		fill(buffer, MIB, 1000 + i);
		assert_memory_equal(got, buffer, MIB / 2);
	}
	device_close(&d);
	fake_store_reset();
}

/* A checkpoint that failed costs no full one: what the headers hold is kept. */
static void test_a_failed_light_root_is_followed_by_a_light_one(void **state)
{
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M;create=on;size=1T");
	for (unsigned i = 0; i < 4; i++) {
		for (unsigned j = 0; j < 16; j++)
			assert_int_equal(device_write(&d, buffer, 4096,
						 (uint64_t)(i * 16 + j) * 12345 * MIB, 0),
				0);
		if (i == 1)
			fake_store_fail(S3_PUT, "/summary", -EIO, 1);
		if (i == 2)
			fake_store_fail(S3_PUT, "/root", -EIO, 1);
		assert_int_equal(try_checkpoint(&d), i == 1 || i == 2 ? -EIO : 0);
	}
	assert_int_equal(device_counter(&d, "full_roots"), 0);
	assert_int_equal(device_counter(&d, "light_roots"), 2);
	fill(buffer, MIB, 9);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M");
	assert_int_equal(device_counter(&d, "replayed"), 1); /* its fence */
	for (unsigned i = 0; i < 64; i++) {
		bool hole = s3_map_is_hole(volume_of(&d)->map, (uint64_t)i * 12345 * MIB / 4096, 1);

		assert_false(hole);
	}
	device_close(&d);
	fake_store_reset();
}

/* ---- memory ---------------------------------------------------------------------------------- */

#define PLACES 60000

/* Writes blocks all over the second region, each for itself. */
static void *scribble(void *opaque)
{
	struct device *d = opaque;
	uint8_t block[512] = {1};

	for (uint64_t i = 0; i < PLACES; i++)
		if (device_write(d, block, sizeof block,
			    (UINT64_C(1) << 30) + i * 7919 % (1 << 21) * sizeof block, 0))
			abort();
	return NULL;
}

static int run_full_checkpoint(struct s3_volume *v, void *opaque)
{
	(void)opaque;
	v->full_wanted = true;
	return s3_checkpoint(v);
}

static void *checkpoint_thread(void *opaque)
{
	assert_int_equal(s3_keeper_call(volume_of(opaque), run_full_checkpoint, NULL), 0);
	return NULL;
}

/* What changes note for a checkpoint that waits is bounded: they wait with it. */
static void test_changes_beside_a_checkpoint_that_waits(void **state)
{
	pthread_t writer, checkpoint;
	uint64_t notes = 0;
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(
		&d, &s3_backend, COMMON "uploads=2;memory=16M;create=on;size=1T;block-size=512");
	assert_int_equal(device_write(&d, buffer, 512, 0, 0), 0);
	assert_int_equal(device_write(&d, buffer, 512, UINT64_C(1) << 30, 0), 0);
	fake_store_hold(S3_PUT, "/ckpt/");
	pthread_create(&checkpoint, NULL, checkpoint_thread, &d);
	fake_store_wait_held(S3_PUT, "/ckpt/");
	pthread_create(&writer, NULL, scribble, &d);
	for (unsigned i = 0; i < 300; i++) {
		notes = s3_map_notes(volume_of(&d)->map);
		assert_true(notes < volume_of(&d)->waiting_memory);
		pause_ms(10);
	}
	assert_true(notes > volume_of(&d)->waiting_memory / 4);
	fake_store_release(S3_PUT, NULL);
	pthread_join(writer, NULL);
	pthread_join(checkpoint, NULL);
	assert_int_equal(s3_map_notes(volume_of(&d)->map), 0);
	crash(&d);
	fake_store_reset();
}

/* Bytes on the heap that are not the store's objects; sampled while something goes on. */
struct sampler {
	const struct s3_volume *v;
	_Atomic bool over;
	uint64_t highest;
};

static uint64_t heap(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

static void *sample(void *opaque)
{
	struct sampler *s = opaque;

	while (!s->over) {
		/* What comes or goes meanwhile is the store's. */
		uint64_t before = fake_store_bytes(), used = heap() + s->v->room.bytes,
			 others = fake_store_bytes();

		others = others > before ? others : before;
		used = used > others ? used - others : 0;
		s->highest = used > s->highest ? used : s->highest;
		nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
	}
	return NULL;
}

/* Compaction takes its memory from the cache, whatever the size of the objects. */
static void test_memory_of_a_compaction(void **state)
{
	struct sampler sampler = {.over = false};
	uint64_t before;
	pthread_t thread;
	struct device d;

	(void)state;
	if (heap() == 0)
		skip(); /* a sanitizer's allocator: test-unit runs it once more without */
	fake_store_reset();
	device_open(&d, &s3_backend,
		"endpoint=http://127.0.0.1;bucket=abc;gc-delay=0;volume=v;batch-size=8M;"
		"uploads=1;memory=64M;create=on;size=256M");
	for (unsigned i = 0; i < 128; i++)
		assert_int_equal(write_mib(&d, i, i), 0);
	device_close(&d);
	/* In less memory than one of the objects takes. */
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=10M");
	for (unsigned i = 0; i < 128; i += 4) {
		fill(buffer, MIB, 1000 + i);
		for (unsigned j = 0; j < 3; j++)
			assert_int_equal(
				device_write(&d, buffer, MIB / 2, (uint64_t)(i + j) * MIB, 0), 0);
	}
	assert_int_equal(backend_flush(d.backend), 0);
	pause_ms(500);
	before = heap() - fake_store_bytes();
	sampler.v = volume_of(&d);
	pthread_create(&thread, NULL, sample, &sampler);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), 0);
	sampler.over = true;
	pthread_join(thread, NULL);
	assert_true(device_counter(&d, "gc_objects") >= 32);
	print_message("%.1f MiB before, at most %.1f\n", (double)before / MIB,
		(double)sampler.highest / MIB);
	/* Besides what it is lent: a copy that the store makes, and the map's for a checkpoint. */
	assert_true(sampler.highest < before + volume_of(&d)->compact_memory + 2 * MIB +
					      S3_REGION_BLOCKS * sizeof(uint64_t));
	for (unsigned i = 3; i < 128; i += 4)
		check_mib(&d, i, i);
	device_close(&d);
	fake_store_reset();
}

/* ---- what a snapshot holds ------------------------------------------------------------------- */

/* Small objects that a snapshot holds are no reason to compact those that it does not. */
static void test_held_small_objects_are_left_in_peace(void **state)
{
	struct device d;
	uint64_t before;

	(void)state;
	create_volume(&d);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(
			device_write(&d, buffer, 4096, (uint64_t)i * 4096, BACKEND_FUA), 0);
	/* Before compaction has come to it. */
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	pause_ms(2000);
	before = device_counter(&d, "gc_objects");
	for (unsigned i = 0; i < 10; i++) {
		for (unsigned j = 0; j < 2; j++)
			assert_int_equal(device_write(&d, buffer, 4096,
						 (uint64_t)(200 + 2 * i + j) * 4096, BACKEND_FUA),
				0);
		pause_ms(250);
	}
	assert_int_equal(device_counter(&d, "gc_objects"), before);
	device_close(&d);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_an_end_beside_a_collection),
		cmocka_unit_test(test_replies_that_do_not_match),
		cmocka_unit_test(test_memory_of_a_check),
		cmocka_unit_test(test_a_store_that_does_not_delete),
		cmocka_unit_test(test_a_store_that_keeps_a_mark),
		cmocka_unit_test(test_an_end_that_lacks_only_a_checkpoint),
		cmocka_unit_test(test_an_end_that_is_refused),
		cmocka_unit_test(test_a_store_that_refuses_is_waited_for),
		cmocka_unit_test(test_an_end_without_an_answer),
		cmocka_unit_test(test_an_end_whose_answer_was_lost),
		cmocka_unit_test(test_checkpoints_go_on_beside_a_stuck_collection),
		cmocka_unit_test(test_what_waits_for_a_capture_goes_on),
		cmocka_unit_test(test_an_unreadable_source_is_passed_over),
		cmocka_unit_test(test_a_failed_light_root_is_followed_by_a_light_one),
		cmocka_unit_test(test_changes_beside_a_checkpoint_that_waits),
		cmocka_unit_test(test_memory_of_a_compaction),
		cmocka_unit_test(test_held_small_objects_are_left_in_peace),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
