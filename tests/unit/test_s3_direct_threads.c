/* SPDX-License-Identifier: BSD-3-Clause */
/* Concurrent requests on layout=direct, with less memory than chunks: no acknowledged byte is lost.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/unit/s3_fake_store.h"
#include "tests/unit/support.h"

#define THREADS 6
#define ROUNDS	60
#define CHUNK	(1u << 20)
#define CHUNKS	20
#define SLICE	3000 /* of no alignment: several of them in every block's neighbourhood */

static struct device device;
static _Atomic int lost, failed;

struct member {
	unsigned number;
	pthread_t thread;
};

/* Writes its own slice of every chunk over and over, and finds it as it left it. */
static void *write_slices(void *opaque)
{
	const struct member *m = opaque;
	char mine[SLICE], back[SLICE];

	for (unsigned round = 1; round <= ROUNDS; round++) {
		uint64_t chunk = (round * 7 + m->number * 3) % CHUNKS;
		uint64_t offset = chunk * CHUNK + m->number * SLICE;

		memset(mine, (int)(round + m->number), SLICE);
		if (device_write(&device, mine, SLICE, offset, round % 16 ? 0 : BACKEND_FUA) ||
			device_read(&device, back, SLICE, offset))
			atomic_fetch_add(&failed, 1);
		else if (memcmp(mine, back, SLICE))
			atomic_fetch_add(&lost, 1);
	}
	return NULL;
}

/* Flushes, and cuts and reads chunks that nobody else writes. */
static void *disturb(void *opaque)
{
	char data[4096] = {1};

	(void)opaque;
	for (unsigned round = 0; round < ROUNDS; round++) {
		uint64_t offset = (CHUNKS + round % 3) * (uint64_t)CHUNK;

		if (device_write(&device, data, sizeof data, offset, 0) ||
			backend_trim(device.backend, offset, CHUNK, 0) ||
			device_read(&device, data, sizeof data, offset) ||
			(round % 8 == 0 && backend_flush(device.backend)))
			atomic_fetch_add(&failed, 1);
		if (data[0])
			atomic_fetch_add(&lost, 1);
		data[0] = 1;
	}
	return NULL;
}

static void test_nothing_is_lost(void **state)
{
	struct member members[THREADS + 1];

	(void)state;
	fake_store_reset();
	device_open(&device, &s3_backend,
		"volume=v;endpoint=http://127.0.0.1;bucket=abc;memory=8M;batch-size=1M;uploads=2;"
		"create=on;size=%u;layout=direct;chunk-size=1M",
		(CHUNKS + 3) * CHUNK);
	for (unsigned i = 0; i <= THREADS; i++) {
		members[i].number = i;
		assert_int_equal(pthread_create(&members[i].thread, NULL,
					 i < THREADS ? write_slices : disturb, &members[i]),
			0);
	}
	for (unsigned i = 0; i <= THREADS; i++)
		pthread_join(members[i].thread, NULL);
	assert_int_equal(failed, 0);
	assert_int_equal(lost, 0);
	device_close(&device);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing_is_lost)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
