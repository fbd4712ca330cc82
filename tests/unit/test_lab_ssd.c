/* SPDX-License-Identifier: BSD-3-Clause */
/* The lab's modelled SSD: when requests complete, against what queueing theory says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lab/ssd/model.h"

#define US 1000ull

/* A disk of one channel and nothing that takes time. */
static struct ssd_model plain(void)
{
	return (struct ssd_model){.p = {.channels = 1}};
}

/* One that continues no other one, while nothing else is read. */
static u64 read_at(struct ssd_model *m, u64 page, u64 now)
{
	return ssd_move(
		m, SSD_PAGE, ssd_arrive(m, SSD_READ, (page * 2 + 1) * SSD_PAGE, SSD_PAGE, now));
}

static void test_one_read_takes_the_sum(void **state)
{
	struct ssd_model m = plain();

	(void)state;
	m.p.command_ns = 2 * US;
	m.p.read_ns = 80 * US;
	m.p.read_ps = 1000;
	m.p.read_link_ps = 2000;
	assert_int_equal(read_at(&m, 1, 5 * US), 5 * US + 2 * US + 80 * US + 4096 + 8192);
}

static void test_a_channel_serves_one_after_the_other(void **state)
{
	struct ssd_model m = plain();

	(void)state;
	m.p.read_ns = 80 * US;
	for (u64 i = 1; i <= 5; i++)
		assert_int_equal(read_at(&m, i, 0), i * 80 * US);
	/* Once it has been idle nobody waits. */
	assert_int_equal(read_at(&m, 9, 1000 * US), 1080 * US);
}

/* Mean time in a queue of random arrivals and constant service (Pollaczek, Khinchine). */
static void test_random_arrivals_wait_as_the_formula_says(void **state)
{
	static const double loads[] = {0.3, 0.5, 0.7};
	enum { READS = 400000 };

	(void)state;
	for (size_t k = 0; k < sizeof loads / sizeof *loads; k++) {
		struct ssd_model m = plain();
		uint64_t random = 88172645463325252ull;
		double service = 80.0 * US, sum = 0, now = 0;
		double expected = service + loads[k] * service / (2 * (1 - loads[k]));

		m.p.read_ns = 80 * US;
		for (u64 i = 0; i < READS; i++) {
			double uniform;

			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			uniform = ((double)(random >> 11) + 0.5) / (double)(1ull << 53);
			now += -__builtin_log(uniform) * service / loads[k];
			sum += (double)read_at(&m, i, (u64)now) - now;
		}
		assert_true(sum / READS > 0.98 * expected && sum / READS < 1.02 * expected);
	}
}

/* ns that reads at random places take of which so many are always under way. */
static double closed_loop(struct ssd_model *m, unsigned jobs, u64 bytes, unsigned reads)
{
	u64 due[64] = {0}, now = 0;
	bool moving[64] = {false}, begun[64] = {false};
	uint64_t random = 88172645463325252ull;

	while (reads) {
		unsigned first = 0;

		for (unsigned i = 1; i < jobs; i++)
			if (due[i] < due[first])
				first = i;
		now = due[first];
		if (begun[first] && !moving[first]) {
			moving[first] = true;
			due[first] = ssd_move(m, bytes, now);
			continue;
		}
		reads -= begun[first];
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		due[first] = ssd_arrive(
			m, SSD_READ, (random >> 30) / 131072 * 131072 + 4096, bytes, now);
		begun[first] = true;
		moving[first] = false;
	}
	return (double)now;
}

static void test_channels_work_side_by_side(void **state)
{
	struct ssd_model m = plain();
	double alone, many;

	(void)state;
	m.p.read_ns = 80 * US;
	m.p.channels = 64;
	alone = closed_loop(&m, 1, 4096, 20000);
	assert_true(alone > 0.999 * 20000 * 80 * US && alone < 1.001 * 20000 * 80 * US);
	m = plain();
	m.p.read_ns = 80 * US;
	m.p.channels = 64;
	many = closed_loop(&m, 16, 4096, 200000);
	/* 16 customers at 64 servers, whose service is constant: about 16 / (1 + 15 / 64 / 2)
	 * = 14.3 under way. */
	assert_true(200000 * 80.0 * US / many > 13.5 && 200000 * 80.0 * US / many < 15.0);
}

static void test_the_link_bounds_large_reads(void **state)
{
	struct ssd_model m = plain();
	double ns;

	(void)state;
	m.p.read_ns = 80 * US;
	m.p.channels = 64;
	m.p.read_link_ps = 1850;
	ns = closed_loop(&m, 16, 131072, 20000);
	assert_true(ns > 0.99 * 20000 * 131072 * 1.85 && ns < 1.02 * 20000 * 131072 * 1.85);
}

static void test_reads_in_order_are_prefetched(void **state)
{
	struct ssd_model m = plain();
	u64 now = 0;

	(void)state;
	m.p.read_ns = 80 * US;
	m.p.stream_ns = 10 * US;
	m.p.stream_ps = 500;
	/* Two streams in turns; the first read of each is a random one. */
	for (u64 i = 0; i < 20; i++)
		for (u64 stream = 1; stream <= 2; stream++) {
			u64 end = ssd_arrive(&m, SSD_READ, (stream << 30) + i * 65536, 65536, now);

			assert_int_equal(end - now, i ? 10 * US + 32768 : 80 * US);
			now = end;
		}
}

static void test_a_buffer_takes_writes_and_then_the_drain_bounds_them(void **state)
{
	struct ssd_model m = plain();
	u64 now = 0;

	(void)state;
	m.p.write_ns = 20 * US;
	m.p.buffer_bytes = 1 << 20;
	m.p.drain_ps = 6400;
	/* The first MiB at once, each in write_ns. */
	for (unsigned i = 0; i < 8; i++) {
		u64 end = ssd_arrive(&m, SSD_WRITE, i * 131072ull, 131072, 0);

		assert_int_equal(end, 20 * US);
	}
	for (unsigned i = 0; i < 10000; i++)
		now = ssd_arrive(&m, SSD_WRITE, i * 131072ull, 131072, now);
	assert_true((double)now > 0.999 * 10000 * 131072 * 6.4 &&
		    (double)now < 1.001 * 10000 * 131072 * 6.4);
}

static void test_a_flush_waits_for_what_is_buffered(void **state)
{
	struct ssd_model m = plain();

	(void)state;
	m.p.buffer_bytes = 1 << 20;
	m.p.drain_ps = 6400;
	m.p.flush_ns = 500 * US;
	assert_int_equal(ssd_arrive(&m, SSD_FLUSH, 0, 0, 7 * US), 507 * US);
	ssd_arrive(&m, SSD_WRITE, 0, 131072, 10 * US);
	assert_int_equal(
		ssd_arrive(&m, SSD_FLUSH, 0, 0, 11 * US), 10 * US + 131072 * 64 / 10 + 500 * US);
}

static void test_duplex_lets_reads_pass_writes(void **state)
{
	(void)state;
	for (u64 duplex = 0; duplex <= 1; duplex++) {
		struct ssd_model m = plain();

		m.p.duplex = duplex;
		m.p.read_link_ps = m.p.write_link_ps = 1000;
		ssd_arrive(&m, SSD_WRITE, 0, 1000000, 0);
		assert_int_equal(read_at(&m, 1, 0), 4096 + (duplex ? 0 : 1000000));
	}
}

static void test_discards_take_their_time(void **state)
{
	struct ssd_model m = plain();

	(void)state;
	m.p.command_ns = US;
	m.p.discard_ns = 20 * US;
	assert_int_equal(ssd_arrive(&m, SSD_DISCARD, 0, 1 << 26, 0), 21 * US);
	/* The controller takes the next one meanwhile. */
	assert_int_equal(ssd_arrive(&m, SSD_DISCARD, 0, 1 << 26, 0), 22 * US);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_read_takes_the_sum),
		cmocka_unit_test(test_a_channel_serves_one_after_the_other),
		cmocka_unit_test(test_random_arrivals_wait_as_the_formula_says),
		cmocka_unit_test(test_channels_work_side_by_side),
		cmocka_unit_test(test_the_link_bounds_large_reads),
		cmocka_unit_test(test_reads_in_order_are_prefetched),
		cmocka_unit_test(test_a_buffer_takes_writes_and_then_the_drain_bounds_them),
		cmocka_unit_test(test_a_flush_waits_for_what_is_buffered),
		cmocka_unit_test(test_duplex_lets_reads_pass_writes),
		cmocka_unit_test(test_discards_take_their_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
