/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "backends/s3/core/volume.h"
#include "tests/unit/s3_mib_volume.h"
#include "tests/unit/support.h"

uint8_t buffer[MIB];

void pause_ms(unsigned ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

void create_volume(struct device *d)
{
	fake_store_reset();
	device_open(d, &s3_backend, COMMON "uploads=2;memory=16M;create=on;size=64M");
}

void fill(uint8_t *data, size_t length, unsigned seed)
{
	uint32_t x = seed * 2654435761u | 1;

	for (size_t i = 0; i < length; i++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		data[i] = (uint8_t)x;
	}
}

int write_mib(struct device *d, unsigned number, unsigned seed)
{
	fill(buffer, MIB, seed);
	return device_write(d, buffer, MIB, (uint64_t)number * MIB, 0);
}

void put_mib(struct device *d, unsigned number, unsigned seed)
{
	assert_int_equal(write_mib(d, number, seed), 0);
	assert_int_equal(backend_flush(d->backend), 0);
}

void check_mib(struct device *d, unsigned number, unsigned seed)
{
	static uint8_t got[MIB];

	fill(buffer, MIB, seed);
	assert_int_equal(device_read(d, got, MIB, (uint64_t)number * MIB), 0);
	assert_memory_equal(got, buffer, MIB);
}

void wait_full(struct device *d, bool full)
{
	WAIT_UNTIL(device_counter(d, "store_full") == full, "store_full stays %d", !full);
}

uint64_t device_reserve(const struct device *d)
{
	struct s3_volume *v = volume_of(d);
	uint64_t bytes;

	pthread_mutex_lock(&v->lock);
	bytes = v->reserve.state == S3_RESERVE_THERE ? v->reserve.bytes : 0;
	pthread_mutex_unlock(&v->lock);
	return bytes;
}

void open_full(struct device *d, unsigned uploads, unsigned written)
{
	char config[256];

	fake_store_reset();
	snprintf(
		config, sizeof config, COMMON "uploads=%u;memory=16M;create=on;size=128M", uploads);
	device_open(d, &s3_backend, config);
	for (unsigned n = 0; n < written; n++)
		assert_int_equal(write_mib(d, n, n), 0);
	assert_int_equal(backend_flush(d->backend), 0);
	/* The reserve, of which nobody knows when it is put. */
	WAIT_UNTIL(device_reserve(d) >= MIB, "there is no reserve");
	fake_store_limit(fake_store_bytes());
}
