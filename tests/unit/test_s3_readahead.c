/* SPDX-License-Identifier: BSD-3-Clause */
/* The S3 device's detector of streams: which reads are read ahead of, and how far. */
#include <stdlib.h>
#include <string.h>

#include "backends/s3/state/readahead.h"
#include "tests/unit/support.h"

#define KIB  1024ull
#define MIB  (1024 * KIB)
#define SIZE (1024 * MIB)

/* A detector, and what it had read ahead, by pieces of 4 KiB. */
struct reader {
	struct s3_streams *streams;
	uint8_t *ahead;
	uint64_t bytes, size;
	uint64_t last; /* size of the last part */
};

static struct reader begin(uint64_t size, uint64_t limit)
{
	struct reader r = {.streams = s3_streams_new(limit), .size = size};

	r.ahead = calloc(size / 4096 + 1, 1);
	return r;
}

static void end(struct reader *r)
{
	s3_streams_free(r->streams);
	free(r->ahead);
}

/* Reads, and notes what to read ahead: nothing twice, and nothing beyond the end. */
static bool note(struct reader *r, uint64_t offset, uint64_t length)
{
	struct s3_ahead ahead;

	if (!s3_streams_note(r->streams, offset, length, r->size, &ahead))
		return false;
	assert_true(ahead.from < ahead.to && ahead.to <= r->size);
	for (uint64_t at = ahead.from / 4096; at < ahead.to / 4096; at++) {
		assert_int_equal(r->ahead[at], 0);
		r->ahead[at] = 1;
	}
	r->bytes += ahead.to - ahead.from;
	r->last = ahead.to - ahead.from;
	return true;
}

/* Bytes of a range that have not been read ahead. */
static uint64_t missing(const struct reader *r, uint64_t offset, uint64_t length)
{
	uint64_t bytes = 0;

	for (uint64_t at = offset; at < offset + length; at += 4096)
		bytes += r->ahead[at / 4096] ? 0 : 4096;
	return bytes;
}

static bool was_ahead(const struct reader *r, uint64_t offset, uint64_t length)
{
	return missing(r, offset, length) == 0;
}

static void test_sequence(void **state)
{
	static const uint64_t lengths[] = {4 * KIB, 128 * KIB, 1 * MIB};

	(void)state;
	for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
		struct reader r = begin(SIZE, SIZE);
		uint64_t missed = 0;

		for (uint64_t at = 0; at < SIZE; at += lengths[i]) {
			missed += missing(&r, at, lengths[i]);
			note(&r, at, lengths[i]);
			/* No further than allowed. */
			if (at + S3_AHEAD_MAX + 2 * MIB < SIZE)
				assert_false(was_ahead(&r, at + S3_AHEAD_MAX + 2 * MIB, 4096));
		}
		assert_in_range(missed, 1, 5 * MIB);
		assert_int_equal(r.bytes + missed, SIZE);
		end(&r);
	}
}

static void test_begins_small_and_grows(void **state)
{
	struct reader r = begin(SIZE, SIZE);
	uint64_t at = 512 * MIB, first = 0, steps = 0;

	(void)state;
	for (int i = 0; i < 3; i++, at += 128 * KIB)
		if (note(&r, at, 128 * KIB))
			first = r.last;
	assert_in_range(first, 128 * KIB, 512 * KIB);
	for (; at < 768 * MIB; at += 128 * KIB)
		steps += note(&r, at, 128 * KIB);
	/* Well on its way it is read in large parts. */
	assert_int_equal(r.last, S3_AHEAD_STEP);
	assert_in_range(steps, 256 * MIB / S3_AHEAD_STEP, 256 * MIB / S3_AHEAD_STEP + 30);
	end(&r);
}

static void test_two_reads_are_no_stream(void **state)
{
	struct reader r = begin(SIZE, SIZE);

	(void)state;
	assert_false(note(&r, 10 * MIB, 128 * KIB));
	assert_false(note(&r, 10 * MIB + 128 * KIB, 128 * KIB));
	/* Nor are a few small ones. */
	for (uint64_t at = 100 * MIB; at < 100 * MIB + 60 * KIB; at += 4 * KIB)
		assert_false(note(&r, at, 4 * KIB));
	end(&r);
}

static uint64_t draw(uint64_t *random)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return *random;
}

static void test_random_reads(void **state)
{
	static const struct {
		uint64_t size, length;
	} cases[] = {{64 * MIB, 4 * KIB}, {SIZE, 4 * KIB}, {SIZE, 64 * KIB}};
	uint64_t random = 88172645463325252u;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		uint64_t size = cases[i].size, length = cases[i].length;
		struct reader r = begin(size, SIZE);

		for (int k = 0; k < 5000; k++)
			note(&r, draw(&random) % (size / length) * length, length);
		assert_in_range(r.bytes, 0, 5000 * length / 50);
		end(&r);
	}
}

static void test_backward_and_strided(void **state)
{
	struct reader r = begin(SIZE, SIZE);

	(void)state;
	for (uint64_t at = SIZE; at > 512 * MIB; at -= 128 * KIB)
		note(&r, at - 128 * KIB, 128 * KIB);
	for (uint64_t at = 0; at < 256 * MIB; at += 64 * KIB)
		note(&r, at, 4 * KIB);
	for (uint64_t at = 256 * MIB; at < 512 * MIB; at += 256 * KIB)
		note(&r, at, 128 * KIB);
	assert_int_equal(r.bytes, 0);
	end(&r);
}

/* Requests in flight together arrive in any order. */
static void test_reordered(void **state)
{
	struct reader r = begin(SIZE, SIZE);
	uint64_t random = 1, missed = 0;

	(void)state;
	for (uint64_t at = 0; at < 256 * MIB; at += 16 * 128 * KIB) {
		uint64_t order[16];

		for (unsigned i = 0; i < 16; i++) {
			unsigned k = (unsigned)(draw(&random) % (i + 1));

			order[i] = order[k];
			order[k] = i;
		}
		for (unsigned i = 0; i < 16; i++) {
			uint64_t offset = at + order[i] * 128 * KIB;

			missed += missing(&r, offset, 128 * KIB);
			note(&r, offset, 128 * KIB);
		}
	}
	assert_in_range(missed, 0, 16 * MIB);
	end(&r);
}

static void test_many_streams(void **state)
{
	const uint64_t limit = 32 * MIB, part = SIZE / 32;
	struct reader r = begin(SIZE, limit);
	uint64_t missed = 0;

	(void)state;
	for (uint64_t at = 0; at < part / 2; at += 128 * KIB) {
		for (uint64_t i = 0; i < 32; i++) {
			missed += missing(&r, i * part + at, 128 * KIB);
			note(&r, i * part + at, 128 * KIB);
		}
		/* Together they keep the limit, once all are known. */
		if (at > part / 4)
			assert_in_range(r.bytes, 0, 32 * (at + 128 * KIB) + limit + 32 * MIB);
	}
	assert_in_range(missed, 1, SIZE / 16);
	end(&r);
}

static void test_a_stream_among_random_reads(void **state)
{
	struct reader r = begin(SIZE, SIZE);
	uint64_t random = 7, missed = 0;

	(void)state;
	for (uint64_t at = 0; at < 128 * MIB; at += 128 * KIB) {
		missed += missing(&r, at, 128 * KIB);
		note(&r, at, 128 * KIB);
		for (int i = 0; i < 20; i++)
			note(&r, 512 * MIB + draw(&random) % (500 * MIB) / 4096 * 4096, 4 * KIB);
	}
	assert_in_range(missed, 1, 8 * MIB);
	end(&r);
}

/* Streams that have ended do not keep new ones from being found, nor small, forever. */
static void test_ended_streams_are_forgotten(void **state)
{
	struct reader r = begin(4096 * MIB, 256 * MIB);
	uint64_t missed = 0;

	(void)state;
	for (uint64_t i = 0; i < 100; i++)
		for (uint64_t at = 0; at < 1 * MIB; at += 128 * KIB)
			note(&r, i * 20 * MIB + at, 128 * KIB);
	for (uint64_t at = 2048 * MIB; at < 3072 * MIB; at += 128 * KIB) {
		missed += missing(&r, at, 128 * KIB);
		note(&r, at, 128 * KIB);
	}
	assert_in_range(missed, 1, 4 * MIB);
	assert_true(was_ahead(&r, 3072 * MIB, 13 * MIB));
	end(&r);
}

static void test_cut_is_told_again(void **state)
{
	struct s3_streams *s = s3_streams_new(SIZE);
	struct s3_ahead ahead, again;
	uint64_t at = 0;

	(void)state;
	while (!s3_streams_note(s, at, 128 * KIB, SIZE, &ahead))
		at += 128 * KIB;
	s3_streams_cut(s, &ahead, ahead.from + 64 * KIB);
	at += 128 * KIB;
	assert_true(s3_streams_note(s, at, 128 * KIB, SIZE, &again));
	/* From there on, or from where the reader has come to meanwhile. */
	assert_int_equal(again.from, at + 128 * KIB);
	s3_streams_cut(s, &again, again.from + 192 * KIB);
	at += 128 * KIB;
	assert_true(s3_streams_note(s, at, 128 * KIB, SIZE, &ahead));
	assert_int_equal(ahead.from, again.from + 192 * KIB);
	s3_streams_free(s);
}

static void test_little_memory(void **state)
{
	struct reader r = begin(SIZE, 100 * KIB);

	(void)state;
	for (uint64_t at = 0; at < 64 * MIB; at += 128 * KIB)
		if (note(&r, at, 128 * KIB))
			assert_in_range(r.last, 1, 100 * KIB);
	end(&r);
	r = begin(SIZE, 0);
	for (uint64_t at = 0; at < 64 * MIB; at += 128 * KIB)
		assert_false(note(&r, at, 128 * KIB));
	end(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sequence),
		cmocka_unit_test(test_begins_small_and_grows),
		cmocka_unit_test(test_two_reads_are_no_stream),
		cmocka_unit_test(test_random_reads),
		cmocka_unit_test(test_backward_and_strided),
		cmocka_unit_test(test_reordered),
		cmocka_unit_test(test_many_streams),
		cmocka_unit_test(test_a_stream_among_random_reads),
		cmocka_unit_test(test_ended_streams_are_forgotten),
		cmocka_unit_test(test_cut_is_told_again),
		cmocka_unit_test(test_little_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
