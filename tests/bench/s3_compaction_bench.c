/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How fast the S3 device compacts over a store in this process that answers each request after 20
 * ms (or the first argument): bytes of the objects that it reads, a second.
 */
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

static unsigned latency = 20;

static void compacts(void **state)
{
	uint8_t *data = malloc(OBJECT);
	uint64_t began, ns;
	struct device d;

	(void)state;
	assert_non_null(data);
	fake_store_reset();
	device_open(&d, &s3_backend,
		"endpoint=http://127.0.0.1;bucket=abc;volume=v;create=on;size=1G;gc-delay=0");
	memset(data, 1, OBJECT);
	/* A half of each object is written anew, at once, so that none is compacted before. */
	for (unsigned i = 0; i < OBJECTS; i++)
		assert_int_equal(device_write(&d, data, OBJECT, (uint64_t)i * OBJECT, 0), 0);
	for (unsigned i = 0; i < OBJECTS; i++)
		assert_int_equal(device_write(&d, data, OBJECT / 2, (uint64_t)i * OBJECT, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	fake_store_latency(latency);
	began = s3_now();
	assert_int_equal(s3_volume_gc((struct s3_volume *)d.backend, NULL, NULL), 0);
	ns = s3_now() - began;
	printf("%u ms: %.1f MB/s of sources (%.2f s, %llu objects written)\n", latency,
		(double)OBJECTS * OBJECT / (double)ns * 1e3, (double)ns / 1e9,
		(unsigned long long)device_counter(&d, "gc_objects"));
	fake_store_latency(0);
	device_close(&d);
	fake_store_reset();
	free(data);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(compacts)};

	if (argc > 1)
		latency = (unsigned)atoi(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
