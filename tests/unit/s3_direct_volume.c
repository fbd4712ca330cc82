/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/unit/s3_direct_volume.h"

uint8_t model[CHUNKS * MIB], there[CHUNKS * MIB];

void create(struct device *d, const char *more)
{
	fake_store_reset();
	device_open(d, &s3_backend, COMMON "create=on;size=%u;layout=direct;chunk-size=1M%s", SIZE,
		more);
}

void reopen(struct device *d)
{
	device_open(d, &s3_backend, COMMON);
}

uint8_t *pattern(uint8_t *data, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		data[i] = (uint8_t)((seed = seed * 1103515245 + 12345) >> 16) | 1;
	return data;
}

void expect(struct device *d, uint32_t offset, uint32_t length)
{
	assert_int_equal(device_read(d, there, length, offset), 0);
	assert_memory_equal(there, model + offset, length);
}
