/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How fast the S3 device compacts over a store in this process that answers each request after 20
 * ms (or the first argument): bytes of the objects that it reads, a second. And what one thread
 * that writes beside it as fast as it can loses by that: in pairs (the second argument, 6), in each
 * of which it also writes for as long alone, before or after it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/clock.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/keeper/keeper.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/support.h"

#define OBJECT	(4u << 20)
#define OBJECTS 64u
#define WRITE	(64u << 10)
#define PAIRS	64u
#define COMMON	"endpoint=http://127.0.0.1;bucket=abc;volume=v;create=on;size=64G;gc-delay=0"

static unsigned latency = 20, pairs = 6;

/* Objects of which a half is garbage; at once, so that none is compacted before. */
static void make_garbage(struct device *d)
{
	uint8_t *data = malloc(OBJECT);

	assert_non_null(data);
	memset(data, 1, OBJECT);
	for (unsigned i = 0; i < OBJECTS; i++)
		assert_int_equal(device_write(d, data, OBJECT, (uint64_t)i * OBJECT, 0), 0);
	for (unsigned i = 0; i < OBJECTS; i++)
		assert_int_equal(device_write(d, data, OBJECT / 2, (uint64_t)i * OBJECT, 0), 0);
	assert_int_equal(backend_flush(d->backend), 0);
	free(data);
}

static uint64_t compact(struct device *d)
{
	uint64_t began = s3_now();

	assert_int_equal(s3_volume_gc((struct s3_volume *)d->backend, NULL, NULL), 0);
	return s3_now() - began;
}

static void compacts(void **state)
{
	struct device d;
	uint64_t ns;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON);
	make_garbage(&d);
	fake_store_latency(latency);
	fake_store_page(1000); /* as S3's */
	ns = compact(&d);
	printf("%u ms: %.1f MB/s of sources (%.2f s, %llu objects written)\n", latency,
		(double)OBJECTS * OBJECT / (double)ns * 1e3, (double)ns / 1e9,
		(unsigned long long)device_counter(&d, "gc_objects"));
	fake_store_latency(0);
	device_close(&d);
	fake_store_reset();
}

struct writer {
	struct device *d;
	_Atomic bool end;
	uint64_t bytes, ns;
};

/* Writes where nothing was, so that there is no more garbage. */
static void *write_on(void *opaque)
{
	static uint8_t data[WRITE] = {1};
	struct writer *w = opaque;
	uint64_t began = s3_now();

	for (; !atomic_load(&w->end); w->bytes += WRITE)
		assert_int_equal(
			device_write(w->d, data, WRITE, (uint64_t)OBJECTS * OBJECT + w->bytes, 0),
			0);
	w->ns = s3_now() - began;
	return NULL;
}

/* MB/s that are written while *ns pass, or with beside while a compaction takes its time, *ns. */
static double writes(bool beside, uint64_t *ns)
{
	struct device d;
	struct writer w = {.d = &d};
	pthread_t thread;

	fake_store_reset();
	device_open(&d, &s3_backend, COMMON);
	if (beside)
		make_garbage(&d);
	fake_store_latency(latency);
	fake_store_page(1000); /* as S3's */
	assert_int_equal(pthread_create(&thread, NULL, write_on, &w), 0);
	if (beside)
		*ns = compact(&d);
	else
		nanosleep(&(struct timespec){.tv_sec = (time_t)(*ns / 1000000000),
				  .tv_nsec = (long)(*ns % 1000000000)},
			NULL);
	atomic_store(&w.end, true);
	pthread_join(thread, NULL);
	fake_store_latency(0);
	device_close(&d);
	fake_store_reset();
	return (double)w.bytes / (double)w.ns * 1e3;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void writes_beside(void **state)
{
	double ratios[PAIRS];
	uint64_t ns = 2000000000;

	(void)state;
	for (unsigned i = 0; i < pairs; i++) {
		double alone = i % 2 ? 0 : writes(false, &ns), beside = writes(true, &ns);

		alone = i % 2 ? writes(false, &ns) : alone;
		ratios[i] = beside / alone;
		printf("written beside it %.0f MB/s, alone %.0f MB/s\n", beside, alone);
	}
	qsort(ratios, pairs, sizeof *ratios, by_value);
	if (pairs)
		printf("ratio: median %.3f, %.3f to %.3f\n",
			(ratios[(pairs - 1) / 2] + ratios[pairs / 2]) / 2, ratios[0],
			ratios[pairs - 1]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(compacts), cmocka_unit_test(writes_beside)};

	if (argc > 1)
		latency = (unsigned)atoi(argv[1]);
	if (argc > 2)
		pairs = (unsigned)atoi(argv[2]) < PAIRS ? (unsigned)atoi(argv[2]) : PAIRS;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
