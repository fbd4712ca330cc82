/* SPDX-License-Identifier: BSD-3-Clause */
/* layout=direct over a store in this process: what is asked of the store, and what is kept. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/s3_direct_volume.h"

/* There is no memory in pieces of that size; 0: there is. */
static _Atomic size_t scarce;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
	return size && size == scarce ? NULL : __real_malloc(size);
}

static void test_sequential_writes_cost_a_put_a_chunk(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	pattern(model, 3 * MIB, 1);
	for (unsigned i = 0; i < 3 * MIB; i += 64 << 10)
		assert_int_equal(device_write(&d, model + i, 64 << 10, i, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(fake_store_requests(S3_PUT, "chunk/"), 3);
	assert_int_equal(fake_store_requests(S3_GET, "chunk/"), 0);
	assert_int_equal(fake_store_object(CHUNK("02"), there, MIB), MIB);
	assert_memory_equal(there, model + 2 * MIB, MIB);
	/* All of it once more: still nothing is read. */
	assert_int_equal(device_write(&d, model, 3 * MIB, 0, BACKEND_FUA), 0);
	assert_int_equal(fake_store_requests(S3_PUT, "chunk/"), 6);
	assert_int_equal(fake_store_requests(S3_GET, "chunk/"), 0);
	device_close(&d);
	fake_store_reset();
}

static void test_a_part_of_a_chunk_is_read_changed_and_written(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	assert_int_equal(device_write(&d, pattern(model, MIB, 2), MIB, MIB, BACKEND_FUA), 0);
	device_close(&d);
	reopen(&d);
	pattern(model + 8192, 4096, 3);
	assert_int_equal(device_write(&d, model + 8192, 4096, MIB + 8192, 0), 0);
	assert_int_equal(fake_store_requests(S3_GET, "chunk/"), 0); /* not before it is stored */
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(fake_store_requests(S3_GET, CHUNK("01")), 1);
	assert_int_equal(fake_store_object(CHUNK("01"), there, MIB), MIB);
	assert_memory_equal(there, model, MIB);
	assert_int_equal(backend_flush(d.backend), 0); /* of nothing: nothing */
	assert_int_equal(fake_store_requests(S3_PUT, "chunk/"), 2);
	device_close(&d);
	fake_store_reset();
}

/* A chunk that is in memory as a whole has not been written as a whole because of that. */
static void test_a_chunk_in_memory_is_stored_when_all_is_written(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	assert_int_equal(device_write(&d, pattern(model, MIB, 16), MIB, 0, BACKEND_FUA), 0);
	pattern(model, MIB, 17);
	assert_int_equal(device_write(&d, model, MIB / 2, 0, 0), 0);
	assert_int_equal(device_write(&d, model + MIB / 2, MIB / 2, MIB / 2, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(fake_store_requests(S3_PUT, "chunk/"), 2);
	device_close(&d);
	/* The same after it was read for parts of blocks. */
	reopen(&d);
	pattern(model + 1000, 100, 18);
	pattern(model + 5000, 100, 19);
	assert_int_equal(device_write(&d, model + 1000, 100, 1000, 0), 0);
	assert_int_equal(device_write(&d, model + 5000, 100, 5000, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(fake_store_requests(S3_GET, "chunk/"), 1);
	assert_int_equal(fake_store_requests(S3_PUT, "chunk/"), 3);
	assert_int_equal(fake_store_object(CHUNK("00"), there, MIB), MIB);
	assert_memory_equal(there, model, MIB);
	device_close(&d);
	fake_store_reset();
}

static void test_reads_fetch_what_is_asked_for(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	assert_int_equal(device_write(&d, pattern(model, 2 * MIB, 4), 2 * MIB, 0, 0), 0);
	device_close(&d);
	reopen(&d);
	assert_int_equal(device_read(&d, there, 5000, MIB - 2500), 0);
	assert_memory_equal(there, model + MIB - 2500, 5000);
	assert_int_equal(fake_store_requests(S3_GET, "chunk/"), 2);
	assert_int_equal(device_read(&d, there, 4096, 7 * MIB), 0); /* never written */
	assert_int_equal(fake_store_requests(S3_GET, "chunk/"), 2);
	assert_int_equal(there[0] | there[4095], 0);
	assert_int_equal(device_counter(&d, "chunks"), 2);
	device_close(&d);
	fake_store_reset();
}

static void test_trim_and_zero(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	/* They cost nothing where nothing is stored. */
	assert_int_equal(backend_trim(d.backend, 0, SIZE, 0), 0);
	assert_int_equal(backend_zero(d.backend, 4096, SIZE - 8192, BACKEND_FUA), 0);
	assert_int_equal(fake_store_requests(S3_DELETE, "chunk/"), 0);
	assert_int_equal(device_write(&d, pattern(model, 4 * MIB, 5), 4 * MIB, 0, BACKEND_FUA), 0);
	/* The two whole chunks go, what is at the ends stays. */
	assert_int_equal(backend_trim(d.backend, MIB / 2, 3 * MIB, 0), 0);
	assert_int_equal(fake_store_requests(S3_DELETE, "chunk/"), 2);
	memset(model + MIB, 0, 2 * MIB);
	assert_int_equal(device_read(&d, there, 4 * MIB, 0), 0);
	assert_memory_equal(there, model, 4 * MIB);
	/* Zero makes them zero. */
	assert_int_equal(backend_zero(d.backend, MIB / 2 + 7, 3 * MIB, BACKEND_FUA), 0);
	memset(model + MIB / 2 + 7, 0, 3 * MIB);
	assert_int_equal(device_read(&d, there, 4 * MIB, 0), 0);
	assert_memory_equal(there, model, 4 * MIB);
	assert_int_equal(fake_store_object(CHUNK("01"), there, 0), SIZE_MAX);
	/* A chunk that became zeroes by writing is no object either. */
	memset(model, 0, MIB);
	assert_int_equal(device_write(&d, model, MIB, 0, BACKEND_FUA), 0);
	assert_int_equal(fake_store_object(CHUNK("00"), there, 0), SIZE_MAX);
	device_close(&d);
	fake_store_reset();
}

struct call {
	pthread_t thread;
	struct device *d;
	int result;
	_Atomic bool answered;
};

static void *trim_first_chunk(void *opaque)
{
	struct call *c = opaque;

	c->result = backend_trim(c->d->backend, 0, MIB, 0);
	return NULL;
}

static void *flush_all(void *opaque)
{
	struct call *c = opaque;

	c->result = backend_flush(c->d->backend);
	c->answered = true;
	return NULL;
}

/* Until the object of a chunk that was changed is gone the store has what was before both. */
static void test_a_flush_waits_for_a_deletion(void **state)
{
	struct device d;
	struct call trim = {.d = &d}, flush = {.d = &d};

	(void)state;
	create(&d, "");
	assert_int_equal(device_write(&d, pattern(model, MIB, 5), MIB, 0, BACKEND_FUA), 0);
	/* Not all of the chunk is in memory then, so that it is not stored at once. */
	device_close(&d);
	reopen(&d);
	assert_int_equal(device_write(&d, pattern(model, 4096, 6), 4096, 0, 0), 0);
	fake_store_hold(S3_DELETE, "chunk/");
	assert_int_equal(pthread_create(&trim.thread, NULL, trim_first_chunk, &trim), 0);
	fake_store_wait_held(S3_DELETE, "chunk/");
	assert_int_equal(pthread_create(&flush.thread, NULL, flush_all, &flush), 0);
	usleep(100000);
	assert_false(flush.answered);
	fake_store_release(S3_DELETE, "chunk/");
	pthread_join(trim.thread, NULL);
	pthread_join(flush.thread, NULL);
	assert_int_equal(trim.result, 0);
	assert_int_equal(flush.result, 0);
	device_close(&d);
	fake_store_reset();
}

static int note_extent(void *opaque, const struct backend_extent *e)
{
	char *text = opaque;

	sprintf(text + strlen(text), "%u%s ", (unsigned)(e->length / 4096), e->hole ? "h" : "d");
	return 0;
}

static void test_extents_are_chunks(void **state)
{
	char text[256] = "";
	struct device d;

	(void)state;
	create(&d, "");
	assert_int_equal(device_write(&d, pattern(model, 4096, 6), 4096, 2 * MIB, 0), 0);
	assert_int_equal(backend_extents(d.backend, MIB / 2, 4 * MIB, 0, note_extent, text), 0);
	assert_string_equal(text, "384h 256d 384h ");
	device_close(&d);
	fake_store_reset();
}

/* Random requests of any alignment against an array, with more chunks than memory holds. */
static void test_model(void **state)
{
	static uint8_t data[3 * MIB];
	struct device d;
	unsigned seed = 7;

	(void)state;
	memset(model, 0, sizeof model);
	create(&d, ";block-size=512");
	for (int opening = 0; opening < 4; opening++) {
		for (int i = 0; i < 250; i++) {
			uint32_t length, offset;
			unsigned what;

			seed = seed * 1103515245 + 12345;
			what = seed >> 16 & 15;
			seed = seed * 1103515245 + 12345;
			length = (seed >> 8) % (what & 1 ? 20000 : 3 * MIB) + 1;
			seed = seed * 1103515245 + 12345;
			offset = (seed >> 4) % (SIZE - length);
			if (what < 3) {
				offset = offset / MIB * MIB;
				length = what == 2 ? 2 * MIB : MIB;
				if (offset + length > SIZE)
					continue;
				memset(model + offset, 0, length);
				assert_int_equal(
					what == 1 ? backend_trim(d.backend, offset, length, 0)
						  : backend_zero(d.backend, offset, length, 0),
					0);
			} else if (what == 3) {
				memset(model + offset, 0, length);
				assert_int_equal(backend_zero(d.backend, offset, length, 0), 0);
			} else if (what == 4) {
				assert_int_equal(backend_flush(d.backend), 0);
			} else if (what < 11) {
				memcpy(model + offset, pattern(data, length, seed), length);
				assert_int_equal(device_write(&d, data, length, offset,
							 what == 5 ? BACKEND_FUA : 0),
					0);
			} else {
				assert_int_equal(device_read(&d, there, length, offset), 0);
				assert_memory_equal(there, model + offset, length);
			}
		}
		device_close(&d);
		reopen(&d);
		assert_int_equal(device_read(&d, there, SIZE, 0), 0);
		assert_memory_equal(there, model, SIZE);
	}
	device_close(&d);
	fake_store_reset();
}

static void test_memory_is_bounded(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	for (unsigned i = 0; i < 200; i++) {
		uint64_t offset = i * 7 % CHUNKS * MIB + i * 4096;

		assert_int_equal(device_write(&d, pattern(model, 4096, i), 4096,
					 offset % (SIZE - 4096) / 4096 * 4096, 0),
			0);
	}
	assert_true(device_counter(&d, "memory_bytes") <= 8 * MIB);
	device_close(&d);
	fake_store_reset();
}

static void *write_second_chunk(void *opaque)
{
	assert_int_equal(device_write(opaque, model + MIB, MIB, MIB, 0), 0);
	return NULL;
}

/* Less memory than memory= allows: a write waits until that of another chunk is free. */
static void test_memory_that_is_not_there(void **state)
{
	struct device d;
	pthread_t thread;

	(void)state;
	create(&d, "");
	pattern(model, 2 * MIB, 7);
	fake_store_hold(S3_PUT, CHUNK("00"));
	assert_int_equal(device_write(&d, model, MIB, 0, 0), 0);
	fake_store_wait_held(S3_PUT, CHUNK("00"));
	scarce = MIB;
	alarm(PATIENCE);
	assert_int_equal(pthread_create(&thread, NULL, write_second_chunk, &d), 0);
	while (!device_counter(&d, "stalls"))
		usleep(1000);
	fake_store_release(S3_PUT, NULL);
	pthread_join(thread, NULL);
	alarm(0);
	scarce = 0;
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(fake_store_object(CHUNK("01"), there, MIB), MIB);
	assert_memory_equal(there, model + MIB, MIB);
	device_close(&d);
	fake_store_reset();
}

static void test_a_missing_object_is_an_error(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	assert_int_equal(device_write(&d, pattern(model, 2 * MIB, 8), 2 * MIB, 0, 0), 0);
	device_close(&d);
	reopen(&d);
	fake_store_set("userblk/v/" CHUNK("01"), NULL, 0);
	assert_int_equal(device_read(&d, there, 4096, MIB), -EIO);
	assert_holds(d.reported.error, CHUNK("01"));
	assert_int_equal(device_read(&d, there, 4096, 0), 0);
	/* And so it is when it would have to be completed. */
	assert_int_equal(device_write(&d, model, 100, MIB, 0), -EIO);
	assert_int_equal(device_write(&d, model, 4096, MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), -EIO);
	device_close(&d);
	fake_store_reset();
}

static void test_foreign_objects_are_refused(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	assert_int_equal(device_write(&d, pattern(model, MIB, 9), MIB, 0, 0), 0);
	device_close(&d);
	fake_store_set("userblk/v/" CHUNK("03"), "short", 5);
	assert_int_not_equal(device_try(&d, &s3_backend, 0, COMMON), 0);
	assert_holds(d.reported.error, CHUNK("03"));
	fake_store_set("userblk/v/" CHUNK("03"), NULL, 0);
	fake_store_set("userblk/v/chunk/foreign", "x", 1);
	assert_int_not_equal(device_try(&d, &s3_backend, 0, COMMON), 0);
	assert_holds(d.reported.error, "chunk/foreign");
	fake_store_set("userblk/v/chunk/foreign", NULL, 0);
	reopen(&d);
	device_close(&d);
	fake_store_reset();
}

static void test_bad_parameters_are_refused(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	device_close(&d);
	assert_int_not_equal(device_try(&d, &s3_backend, 0, COMMON "chunk-size=3M"), 0);
	assert_holds(d.reported.error,
		"chunk-size=3145728: not a power of two; use one such as 2097152");
	fake_store_reset();
	assert_int_not_equal(device_try(&d, &s3_backend, 0,
				     COMMON "create=on;size=1G;layout=direct;chunk-size=4M"),
		0);
	assert_holds(d.reported.error,
		"memory=8388608: too little for chunk-size=4194304; give 16777216");
	assert_int_equal(fake_store_requests(S3_PUT, ""), 0);
	device_open(&d, &s3_backend,
		"volume=v;endpoint=http://127.0.0.1;bucket=abc;create=on;size=1G;layout=direct");
	device_close(&d);
	assert_int_not_equal(device_try(&d, &s3_backend, 0, COMMON), 0);
	assert_holds(d.reported.error,
		"memory=8388608: too little for chunks of 4194304 bytes; give 16777216");
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "create=on;size=1G");
	device_close(&d);
	assert_int_not_equal(device_try(&d, &s3_backend, 0, COMMON "layout=direct"), 0);
	assert_holds(d.reported.error, "layout=direct: the volume exists and is a log");
	fake_store_reset();
}

/* The parameters of nbdkit's S3 plugin: its objects are our chunks. */
static void test_names_of_nbdkits_plugin(void **state)
{
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend,
		"volume=v;endpoint-url=http://127.0.0.1;bucket=abc;create=on;size=1M;layout=direct;"
		"object-size=64k");
	assert_int_equal(device_write(&d, model, 64 << 10, 192 << 10, BACKEND_FUA), 0);
	assert_int_equal(fake_store_requests(S3_PUT, CHUNK("03")), 1);
	device_close(&d);
	assert_int_not_equal(device_try(&d, &s3_backend, 0, COMMON "endpoint-url=http://x"), 0);
	assert_holds(d.reported.error,
		"endpoint-url=http://x: given twice (endpoint= is the same parameter); leave one "
		"out");
	fake_store_reset();
}

static void test_a_second_writer_stops_the_first(void **state)
{
	struct device first, second;

	(void)state;
	create(&first, "");
	assert_int_equal(device_write(&first, pattern(model, MIB, 11), MIB, 0, BACKEND_FUA), 0);
	reopen(&second);
	assert_int_equal(device_read(&second, there, MIB, 0), 0);
	assert_memory_equal(there, model, MIB);
	assert_int_equal(device_write(&first, model, 4096, 5 * MIB, 0), 0);
	assert_int_equal(backend_flush(first.backend), -EIO);
	assert_holds(first.reported.error, "another writer");
	assert_int_equal(device_read(&first, there, 4096, 0), -EIO);
	assert_int_equal(device_write(&second, model, 4096, 6 * MIB, BACKEND_FUA), 0);
	device_close(&first);
	device_close(&second);
	fake_store_reset();
}

/* A writer that is closed without a flush, and what backend_close() returns. */
static void *close_writer(void *opaque)
{
	struct device *d = opaque;
	intptr_t r = backend_close(d->backend);

	params_free(d->params);
	return (void *)r;
}

/* What it has in memory at its end would replace what the second one has flushed since. */
static void test_a_first_writer_ends_after_a_takeover(void **state)
{
	struct device first, second;

	(void)state;
	create(&first, "");
	assert_int_equal(device_write(&first, pattern(model, MIB, 40), MIB, 0, BACKEND_FUA), 0);
	reopen(&second);
	assert_int_equal(device_write(&second, pattern(model, MIB, 41), MIB, 0, BACKEND_FUA), 0);
	assert_int_equal(device_write(&first, pattern(there, 4096, 42), 4096, 0, 0), 0);
	assert_int_equal((intptr_t)close_writer(&first), -EIO);
	assert_int_equal(first.reported.errors, 1);
	assert_holds(first.reported.error, "another writer took the volume over");
	assert_int_equal(fake_store_object(CHUNK("00"), there, MIB), MIB);
	assert_memory_equal(there, model, MIB);
	device_close(&second);
	/* The epoch cannot be read, and then it can: only then it is known that all is kept. */
	for (unsigned i = 0; i < 2; i++) {
		device_open(&first, &s3_backend, COMMON "close-timeout=2");
		assert_int_equal(device_write(&first, model, 4096, 0, 0), 0);
		fake_store_fail(S3_GET, "/super", -EACCES, i ? UINT_MAX : 2);
		assert_int_equal((intptr_t)close_writer(&first), i ? -EIO : 0);
	}
	assert_holds(first.reported.error, "cannot be read");
	fake_store_reset();
}

/* The other one comes while the last chunk is on its way: it may have read what was before. */
static void test_a_takeover_while_a_writer_ends(void **state)
{
	struct device first, second;
	pthread_t thread;
	void *result;

	(void)state;
	create(&first, "");
	assert_int_equal(device_write(&first, pattern(model, 4096, 43), 4096, 0, 0), 0);
	fake_store_hold(S3_PUT, "chunk/");
	assert_int_equal(pthread_create(&thread, NULL, close_writer, &first), 0);
	fake_store_wait_held(S3_PUT, "chunk/");
	reopen(&second);
	fake_store_release(S3_PUT, NULL);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_int_equal((intptr_t)result, -EIO);
	assert_holds(first.reported.error, "another writer took the volume over");
	device_close(&second);
	/* Without anything like that it ends well. */
	reopen(&second);
	assert_int_equal(device_write(&second, model, 4096, 0, 0), 0);
	assert_int_equal((intptr_t)close_writer(&second), 0);
	assert_int_equal(second.reported.errors, 0);
	fake_store_reset();
}

static void test_readonly_changes_nothing(void **state)
{
	struct device d;
	unsigned puts;

	(void)state;
	create(&d, "");
	assert_int_equal(device_write(&d, pattern(model, 4096, 12), 4096, 0, 0), 0);
	device_close(&d);
	puts = fake_store_requests(S3_PUT, "");
	device_open(&d, &s3_backend, COMMON "readonly=on");
	assert_int_equal(device_read(&d, there, 4096, 0), 0);
	assert_memory_equal(there, model, 4096);
	assert_int_equal(device_write(&d, model, 4096, 0, 0), -EROFS);
	assert_int_equal(backend_flush(d.backend), 0);
	device_close(&d);
	assert_int_equal(fake_store_requests(S3_PUT, ""), puts);
	fake_store_reset();
}

/* Or nothing of it: what a writer has done since is not mixed into it. */
static void test_a_reader_sees_the_state_at_its_open(void **state)
{
	struct device d, reader;

	(void)state;
	create(&d, "");
	pattern(model, 4 * MIB, 30);
	memset(model + MIB, 0, MIB);
	assert_int_equal(device_write(&d, model, 4 * MIB, 0, BACKEND_FUA), 0);
	device_open(&reader, &s3_backend, COMMON "readonly=on");
	expect(&reader, 0, 4 * MIB);
	pattern(there, MIB, 31);
	assert_int_equal(device_write(&d, there, MIB, 0, 0), 0);
	assert_int_equal(device_write(&d, there, MIB, MIB, 0), 0);
	assert_int_equal(backend_trim(d.backend, 2 * MIB, MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	expect(&reader, MIB, MIB);
	expect(&reader, 3 * MIB, MIB);
	for (unsigned i = 0; i < 3; i += 2) {
		assert_int_equal(device_read(&reader, there, 4096, i * MIB + 8192), -EIO);
		assert_holds(reader.reported.error, i ? CHUNK("02") : CHUNK("00"));
		assert_holds(
			reader.reported.error, "it has been changed since the volume was opened");
	}
	device_close(&reader);
	device_open(&reader, &s3_backend, COMMON "readonly=on");
	pattern(model, MIB, 31);
	memcpy(model + MIB, model, MIB);
	memset(model + 2 * MIB, 0, MIB);
	expect(&reader, 0, 4 * MIB);
	device_close(&reader);
	device_close(&d);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_reader_sees_the_state_at_its_open),
		cmocka_unit_test(test_a_first_writer_ends_after_a_takeover),
		cmocka_unit_test(test_a_takeover_while_a_writer_ends),
		cmocka_unit_test(test_sequential_writes_cost_a_put_a_chunk),
		cmocka_unit_test(test_a_part_of_a_chunk_is_read_changed_and_written),
		cmocka_unit_test(test_a_chunk_in_memory_is_stored_when_all_is_written),
		cmocka_unit_test(test_reads_fetch_what_is_asked_for),
		cmocka_unit_test(test_trim_and_zero),
		cmocka_unit_test(test_a_flush_waits_for_a_deletion),
		cmocka_unit_test(test_extents_are_chunks),
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_memory_is_bounded),
		cmocka_unit_test(test_memory_that_is_not_there),
		cmocka_unit_test(test_a_missing_object_is_an_error),
		cmocka_unit_test(test_foreign_objects_are_refused),
		cmocka_unit_test(test_bad_parameters_are_refused),
		cmocka_unit_test(test_names_of_nbdkits_plugin),
		cmocka_unit_test(test_a_second_writer_stops_the_first),
		cmocka_unit_test(test_readonly_changes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
