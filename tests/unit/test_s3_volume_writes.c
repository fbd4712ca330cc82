/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes of a volume of the S3 device that meet what is rare, over a store in this process. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "backends/s3/client/client.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

#define BLOCK  4096u
#define MIB    (1u << 20)
#define COMMON "endpoint=http://127.0.0.1;bucket=abc;uploads=1;memory=64M;batch-size=1M;volume=v;"

/* Pieces of memory that the map still gets; below 0: any number. */
static _Atomic int pieces_left = -1;

void *__real_s3_slab_take(struct s3_slab *s, size_t bytes, size_t *room);
void *__wrap_s3_slab_take(struct s3_slab *s, size_t bytes, size_t *room);

void *__wrap_s3_slab_take(struct s3_slab *s, size_t bytes, size_t *room)
{
	if (pieces_left == 0)
		return NULL;
	if (pieces_left > 0)
		pieces_left--;
	return __real_s3_slab_take(s, bytes, room);
}

/* There is no memory for a batch of the log. */
static _Atomic bool no_batches;

void *__real_mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset);

void *__wrap_mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
	if (no_batches && length == MIB) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return __real_mmap64(at, length, protection, flags, fd, offset);
}

/* The table of objects is as full as it may become by writes. */
static _Atomic bool crowded;

bool __real_s3_objects_crowded(struct s3_objects *o);
bool __wrap_s3_objects_crowded(struct s3_objects *o);

bool __wrap_s3_objects_crowded(struct s3_objects *o)
{
	return crowded || __real_s3_objects_crowded(o);
}

/* The last thread that a volume starts with cannot be made. */
static _Atomic bool no_collector;

int __real_pthread_create(
	pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *opaque);
int __wrap_pthread_create(
	pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *opaque);

int __wrap_pthread_create(
	pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *opaque)
{
	if (no_collector && start == s3_collector)
		return EAGAIN;
	return __real_pthread_create(thread, attr, start, opaque);
}

/* A request that another thread answers. */
struct asked {
	struct backend_request request;
	struct iovec iov;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done;
	int result;
};

static void answered(struct backend_request *request, int result)
{
	struct asked *a = request->opaque;

	pthread_mutex_lock(&a->lock);
	a->done = true;
	a->result = result;
	pthread_cond_signal(&a->changed);
	pthread_mutex_unlock(&a->lock);
}

static void ask(struct device *d, struct asked *a, enum backend_op op, void *data, size_t length,
	uint64_t offset)
{
	*a = (struct asked){
		.request = {.op = op,
			.iov = &a->iov,
			.iovcnt = 1,
			.offset = offset,
			.length = length,
			.done = answered,
			.opaque = a},
		.iov = {data, length},
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.changed = PTHREAD_COND_INITIALIZER,
	};
	backend_submit(d->backend, &a->request);
}

static int result_of(struct asked *a)
{
	pthread_mutex_lock(&a->lock);
	while (!a->done)
		pthread_cond_wait(&a->changed, &a->lock);
	pthread_mutex_unlock(&a->lock);
	return a->result;
}

/* The map has no memory for the second half of a write: a read of the first does not wait. */
static void test_no_memory_for_all_of_a_write(void **state)
{
	static uint8_t data[MIB];
	struct device d;
	unsigned found = 0;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "create=on;size=64M");
	/* The leaf of the map from 42 MiB on has to become an array then; that before it need not.
	 */
	assert_int_equal(device_write(&d, data, BLOCK, 43 * MIB, 0), 0);
	pieces_left = 0;
	assert_int_equal(device_write(&d, data, sizeof data, 42 * MIB - MIB / 2, 0), -ENOMEM);
	pieces_left = -1;
	alarm(20);
	for (uint64_t at = 41 * MIB; at < 43 * MIB; at += BLOCK) {
		int r = device_read(&d, data, BLOCK, at);

		assert_true(r == 0 || r == -EIO);
		found += r == -EIO;
	}
	assert_int_equal(found, MIB / 2 / BLOCK);
	/* What was written before is there. */
	assert_int_equal(device_read(&d, data, BLOCK, 43 * MIB), 0);
	alarm(0);
	device_close(&d);
	fake_store_reset();
}

/* Changes and collections fail that have no memory for a batch: nothing has changed, and others go
 * on. */
static void test_no_memory_for_a_batch(void **state)
{
	static uint8_t data[MIB / 4];
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "gc-delay=0;create=on;size=64M");
	no_batches = true;
	assert_int_equal(device_write(&d, data, sizeof data, 0, 0), -ENOMEM);
	no_batches = false;
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(device_write(&d, data, sizeof data, i * MIB, BACKEND_FUA), 0);
	device_close(&d);
	device_open(&d, &s3_backend, COMMON "gc-delay=0");
	no_batches = true;
	assert_int_equal(backend_trim(d.backend, 0, BLOCK, 0), -ENOMEM);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), -ENOMEM);
	no_batches = false;
	assert_int_equal(backend_trim(d.backend, 0, BLOCK, 0), 0);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	device_close(&d);
	fake_store_reset();
}

/* Where there may be no more objects writes have no space, and what frees some goes on. */
static void test_as_many_objects_as_there_may_be(void **state)
{
	static uint8_t data[MIB / 4];
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "gc-delay=0;create=on;size=64M");
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(device_write(&d, data, sizeof data, i * MIB, BACKEND_FUA), 0);
	crowded = true;
	assert_int_equal(device_write(&d, data, sizeof data, 0, 0), -ENOSPC);
	assert_int_equal(backend_trim(d.backend, 0, MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), 0);
	assert_true(device_counter(&d, "gc_objects") > 0);
	crowded = false;
	assert_int_equal(device_write(&d, data, sizeof data, 0, BACKEND_FUA), 0);
	device_close(&d);
	fake_store_reset();
}

/*
 * Where there is memory for one batch only, a write waits for it, and the volume goes on meanwhile:
 * it puts again what the store has refused.
 */
static void test_memory_for_one_batch(void **state)
{
	static uint8_t data[MIB];
	struct asked second;
	struct timespec before, after;
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "create=on;size=64M");
	assert_int_equal(device_write(&d, data, sizeof data, 0, 0), 0);
	no_batches = true;
	fake_store_fail(S3_PUT, "/log/", -EACCES, 2);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	ask(&d, &second, BACKEND_WRITE, data, sizeof data, MIB);
	alarm(20);
	assert_int_equal(result_of(&second), 0);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	alarm(0);
	/* The store is asked again after half a second, and after a whole one. */
	assert_true(after.tv_sec * 1000 + after.tv_nsec / 1000000 <
		    before.tv_sec * 1000 + before.tv_nsec / 1000000 + 700);
	no_batches = false;
	device_flush_at_last(&d);
	device_close(&d);
	fake_store_reset();
}

/*
 * A part of a block waits for memory with the rest of that block in hand. The object that it is
 * from stays until then: a place in another one of its number would look the same.
 */
static void test_an_edge_that_waits_holds_its_object(void **state)
{
	static uint8_t data[8 * MIB];
	struct asked large, part;
	struct s3_volume *v;
	struct device d;
	uint32_t slot;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "create=on;size=64M");
	v = volume_of(&d);
	memset(data, 1, BLOCK);
	assert_int_equal(device_write(&d, data, BLOCK, 0, BACKEND_FUA), 0);
	slot = s3_objects_find(v->objects, 0, v->applied);
	assert_int_not_equal(slot, S3_NO_SLOT);
	fake_store_hold(S3_PUT, "/log/");
	ask(&d, &large, BACKEND_WRITE, data, sizeof data, MIB);
	fake_store_wait_held(S3_PUT, "/log/");
	while (device_counter(&d, "stalls") < 1)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	ask(&d, &part, BACKEND_WRITE, "part", 4, 100);
	while (device_counter(&d, "stalls") < 2)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	/* As if another write had come before it. */
	assert_int_equal(s3_map_punch(v->map, v->applied, 0, 1), 0);
	assert_int_equal(s3_objects_remove(v->objects, slot), -EBUSY);
	fake_store_hold(S3_PUT, NULL);
	assert_int_equal(result_of(&large), 0);
	assert_int_equal(result_of(&part), 0);
	assert_int_equal(device_read(&d, data, BLOCK, 0), 0);
	assert_int_equal(data[0], 0);
	assert_memory_equal(data + 100, "part", 4);
	assert_int_equal(s3_objects_remove(v->objects, slot), 0);
	device_close(&d);
	fake_store_reset();
}

static void *write_some(void *opaque)
{
	static const uint8_t block[BLOCK];
	struct device *d = opaque;
	intptr_t done = 0;

	for (unsigned i = 0; i < 20; i++)
		done += device_write(d, block, BLOCK, 0, 0) == 0;
	return (void *)done;
}

/* The first writes come side by side, and each of them makes the threads as long as there are none.
 */
static void test_threads_that_cannot_be_made(void **state)
{
	pthread_t writers[4];
	struct timespec end;
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "create=on;size=16M");
	no_collector = true;
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&writers[i], NULL, write_some, &d), 0);
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 20;
	for (unsigned i = 0; i < 4; i++) {
		void *done;

		assert_int_equal(pthread_timedjoin_np(writers[i], &done, &end), 0);
		assert_null(done);
	}
	no_collector = false;
	assert_int_equal(device_write(&d, "x", 1, 0, BACKEND_FUA), 0);
	device_close(&d);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_memory_for_all_of_a_write),
		cmocka_unit_test(test_no_memory_for_a_batch),
		cmocka_unit_test(test_memory_for_one_batch),
		cmocka_unit_test(test_as_many_objects_as_there_may_be),
		cmocka_unit_test(test_an_edge_that_waits_holds_its_object),
		cmocka_unit_test(test_threads_that_cannot_be_made),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
