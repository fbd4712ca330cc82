/* SPDX-License-Identifier: BSD-3-Clause */
/* Histograms, and the random numbers that workloads draw. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/flow/random.h"
#include "harness/flow/stats.h"
#include "tests/unit/support.h"

/* Each value lies in a bin whose name is at most 1/128 off; bins are in order and without gaps. */
static void test_bins(void **state)
{
	unsigned last = 0;

	(void)state;
	for (uint64_t ns = 0; ns < UINT64_C(1) << 37; ns += ns / 300 + 1) {
		unsigned bin = stats_bin(ns);
		uint64_t value = stats_bin_value(bin), off = value > ns ? value - ns : ns - value;

		assert_true(bin == last || bin == last + 1);
		assert_true(off * 128 <= ns);
		last = bin;
	}
	assert_int_equal(stats_bin(UINT64_MAX), STATS_BINS - 1);
	for (unsigned bin = 0; bin < STATS_BINS; bin++)
		assert_int_equal(stats_bin(stats_bin_value(bin)), bin);
}

/* Waits as long as runs of the open loop have bins of their own, and their groups a bit. */
static void test_minutes(void **state)
{
	static struct stats_live live;
	static struct stats sum;
	const uint64_t second = 1000000000;

	(void)state;
	stats_live_init(&live);
	for (uint64_t s = 15; s <= 135; s += 5)
		stats_record(&live, s * second, 0);
	stats_add_live(&sum, &live);
	assert_int_equal(sum.ops, 25);
	for (uint64_t s = 15; s <= 135; s += 5)
		assert_int_equal(sum.bins[stats_bin(s * second)], 1);
}

/* Names of bins that fio 3.33 wrote with --output-format=json+. */
static void test_bins_are_those_of_fio(void **state)
{
	static const uint64_t fio[] = {524, 532, 540, 548, 564, 572, 580, 588, 667648, 675840,
		692224, 700416, 708608, 724992, 757760, 806912, 1073152, 1236992, 1859584, 2441216,
		3063808, 3129344, 3883008};

	(void)state;
	for (size_t i = 0; i < sizeof fio / sizeof *fio; i++)
		assert_int_equal(stats_bin_value(stats_bin(fio[i])), fio[i]);
}

static void test_sums(void **state)
{
	struct stats_live *live = aligned_alloc(64, 2 * sizeof *live);
	struct stats *sums = calloc(3, sizeof *sums), *before = &sums[0], *now = &sums[1],
		     *difference = &sums[2];

	(void)state;
	assert_non_null(live);
	assert_non_null(sums);
	memset((void *)live, 0, 2 * sizeof *live);
	stats_live_init(&live[0]);
	stats_live_init(&live[1]);
	stats_record(&live[0], 100, 10);
	stats_record(&live[0], 5000, 0);
	stats_add_live(before, &live[0]);
	stats_add_live(before, &live[1]);
	assert_int_equal(before->ops, 2);
	assert_int_equal(before->bytes, 10);
	assert_int_equal(before->sum_ns, 5100);
	assert_int_equal(before->min_ns, 100);
	assert_int_equal(before->max_ns, 5000);

	stats_record(&live[1], 50, 1);
	stats_record(&live[1], 50, 1);
	stats_add_live(now, &live[0]);
	stats_add_live(now, &live[1]);
	assert_int_equal(now->min_ns, 50);
	stats_difference(difference, now, before);
	assert_int_equal(difference->ops, 2);
	assert_int_equal(difference->bytes, 2);
	assert_int_equal(difference->min_ns, 50);
	assert_int_equal(difference->max_ns, 50);
	assert_int_equal(difference->bins[stats_bin(50)], 2);
	assert_int_equal(difference->bins[stats_bin(5000)], 0);
	stats_add(before, difference);
	assert_memory_equal(before, now, sizeof *now);
	free(live);
	free(sums);
}

/* Mean and variance of gamma draws, for shapes on both sides of 1. */
static void test_gamma(void **state)
{
	static const double shapes[] = {0.5, 1, 1.5, 4};
	struct rng rng;

	(void)state;
	rng_seed(&rng, 7, 1);
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		const int n = 200000;
		double sum = 0, squares = 0;

		for (int k = 0; k < n; k++) {
			double x = rng_gamma(&rng, shapes[i]);

			assert_true(x >= 0);
			sum += x;
			squares += x * x;
		}

		double mean = sum / n, variance = squares / n - mean * mean;

		/* Five standard errors of the mean; the variance to 5 %. */
		assert_true(fabs(mean - shapes[i]) < 5 * sqrt(shapes[i] / n));
		assert_true(fabs(variance / shapes[i] - 1) < 0.05);
	}
}

static void test_cvar(void **state)
{
	const struct cvar cvar = {
		.mean = 1000, .gamma = 1.5, .min = 300, .max = 2000, .round = 100};
	struct rng rng;
	uint64_t least = UINT64_MAX, most = 0;

	(void)state;
	rng_seed(&rng, 7, 2);
	for (int i = 0; i < 10000; i++) {
		uint64_t x = cvar_sample(&cvar, &rng);

		assert_int_equal(x % 100, 0);
		least = x < least ? x : least;
		most = x > most ? x : most;
	}
	assert_int_equal(least, 300);
	assert_int_equal(most, 2000);
}

static void test_streams(void **state)
{
	struct rng a, b;

	(void)state;
	rng_seed(&a, 1, 1);
	rng_seed(&b, 1, 1);
	assert_int_equal(rng_next(&a), rng_next(&b));
	rng_seed(&b, 1, 2);
	assert_int_not_equal(rng_next(&a), rng_next(&b));
	rng_seed(&a, 2, 2);
	assert_int_not_equal(rng_next(&a), rng_next(&b));
}

/* Every element once, another order for another seed, and an order that is not the index's. */
static void test_permutation(void **state)
{
	static const uint64_t sizes[] = {1, 2, 3, 64, 1000, 4097};

	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		uint64_t n = sizes[i], same = 0, fixed = 0;
		char *seen = calloc(n, 1);

		assert_non_null(seen);
		for (uint64_t k = 0; k < n; k++) {
			uint64_t x = permute(k, n, 5);

			assert_true(x < n);
			assert_int_equal(seen[x]++, 0);
			fixed += x == k;
			same += x == permute(k, n, 6);
		}
		if (n >= 64) {
			assert_true(fixed < n / 8);
			assert_true(same < n / 8);
		}
		free(seen);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bins),
		cmocka_unit_test(test_minutes),
		cmocka_unit_test(test_bins_are_those_of_fio),
		cmocka_unit_test(test_sums),
		cmocka_unit_test(test_gamma),
		cmocka_unit_test(test_cvar),
		cmocka_unit_test(test_streams),
		cmocka_unit_test(test_permutation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
