/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What compression and encryption of the S3 device's data cost, both ways: MiB per second of CPU
 * time, of objects of 4 MiB that shrink or do not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"

#define DATA   (4u << 20)
#define UNITS  (DATA / S3_UNIT)
#define ROUNDS 64

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void fail(const char *what)
{
	fprintf(stderr, "s3_transform_bench: %s failed\n", what);
	exit(1);
}

/* shrinks: of each 64 bytes 40 are like those of another. */
static void fill(uint8_t *data, bool shrinks)
{
	uint64_t random = 88172645463325252u;

	for (size_t i = 0; i < DATA; i += 8) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		s3_le_store(data + i, random, 8);
		if (shrinks && i % 64 >= 24)
			memset(data + i, (int)(i / 4096 % 256), 8);
	}
}

static void run(uint32_t features, const char *name, bool shrinks)
{
	static const uint8_t key[S3_KEY_BYTES] = "thirty-two bytes of a known key", uuid[S3_UUID];
	struct s3_object_header header = {.id = 1};
	uint8_t *data = malloc(DATA), *out = malloc(s3_transform_room(DATA)),
		*back = malloc(S3_UNIT);
	struct s3_unit units[UNITS];
	struct s3_transform *t;
	double start, encoded, decoded;
	size_t stored = 0;

	if (!data || !out || !back || s3_transform_new(features, key, uuid, &t))
		fail("memory");
	fill(data, shrinks);
	start = now();
	for (int i = 0; i < ROUNDS; i++)
		if (s3_transform_encode(t, &header, data, DATA, out, units, &stored))
			fail("encoding");
	encoded = now() - start;
	start = now();
	for (int i = 0; i < ROUNDS; i++)
		for (uint32_t u = 0, at = 0; u < UNITS; at += units[u++].bytes)
			if (s3_transform_decode(t, &header, u, &units[u], out + at, back, S3_UNIT))
				fail("decoding");
	decoded = now() - start;
	printf("%-9s %-12s stored %5.1f %%; encode %6.0f MiB/s of CPU, decode %6.0f\n", name,
		shrinks ? "compressible" : "random", 100.0 * (double)stored / DATA,
		ROUNDS * (DATA >> 20) / encoded, ROUNDS * (DATA >> 20) / decoded);
	s3_transform_free(t);
	free(back);
	free(out);
	free(data);
}

int main(void)
{
	for (int shrinks = 0; shrinks < 2; shrinks++) {
		run(S3_FEATURE_ZSTD, "zstd", shrinks);
		run(S3_FEATURE_AES, "aes", shrinks);
		run(S3_FEATURES, "zstd+aes", shrinks);
	}
	return 0;
}
