/* SPDX-License-Identifier: BSD-3-Clause */
/* The lab's idle CPUs: where threads wake up, and how long their CPUs take to leave an idle state.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lab/ssd/idle_cpus.h"

#define US 1000ull

/* CPUs 0 and 2 share a core, 1 and 3 the other one. */
static const struct idle_machine four = {
	.cpus = 4, .residency_us = {3, 2, 20, 100}, .exit_us = {3, 2, 10, 33}};

/* All idle since time 0. */
static struct idle_model idle(void)
{
	struct idle_model m;

	idle_become(&m, &four, 0);
	return m;
}

static void test_a_cpu_is_in_the_deepest_state_it_was_idle_long_enough_for(void **state)
{
	static const u64 after[] = {0, 1, 2, 19, 20, 99, 100, 5000};
	static const u64 takes[] = {0, 0, 2, 2, 10, 10, 33, 33};

	(void)state;
	for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
		struct idle_model m = idle();
		struct idle_thread thread = {.cpu = 1};

		assert_int_equal(idle_awaken(&m, &thread, after[i] * US), takes[i] * US);
		assert_int_equal(idle_awaken(&m, &thread, after[i] * US), 0); /* awake already */
		idle_fall_asleep(&m, &thread, false, (after[i] + 50) * US);
		assert_int_equal(idle_awaken(&m, &thread, (after[i] + 75) * US), 10 * US);
	}
}

static void test_a_core_is_in_the_lighter_of_its_two_states(void **state)
{
	struct idle_model m = idle();
	struct idle_thread one = {.cpu = 0}, sibling = {.cpu = 2}, other = {.cpu = 1};

	(void)state;
	idle_awaken(&m, &one, 1000 * US);
	assert_int_equal(idle_awaken(&m, &sibling, 2000 * US), 2 * US); /* the core is awake */
	assert_int_equal(idle_awaken(&m, &other, 2000 * US), 33 * US);
	idle_fall_asleep(&m, &one, false, 3000 * US);
	idle_fall_asleep(&m, &sibling, false, 4000 * US);
	assert_int_equal(idle_awaken(&m, &one, 4050 * US), 10 * US); /* its core slept for 50 us */
}

static void test_threads_keep_their_cpu_or_take_an_idle_core_or_an_idle_cpu(void **state)
{
	struct idle_model m = idle();
	struct idle_thread threads[6] = {0};
	static const unsigned cpus[6] = {0, 1, 2, 3, 0, 0};

	(void)state;
	for (size_t i = 0; i < 6; i++) {
		idle_awaken(&m, &threads[i], 1000 * US);
		assert_int_equal(threads[i].cpu, cpus[i]);
	}
	assert_int_equal(m.cpu[0].awake, 3);
	for (size_t i = 0; i < 6; i++)
		idle_fall_asleep(&m, &threads[i], false, 2000 * US);
	assert_int_equal(idle_awaken(&m, &threads[3], 2200 * US), 33 * US);
	assert_int_equal(threads[3].cpu, 3);
	/* Where it was somebody is awake now, and that core is not idle: the other one is. */
	threads[5].cpu = 3;
	idle_awaken(&m, &threads[5], 2200 * US);
	assert_int_equal(threads[5].cpu, 0);
}

static void test_new_threads_take_idle_cores_then_idle_cpus_then_the_least_busy(void **state)
{
	struct idle_model m = idle();
	struct idle_thread parent = {.cpu = 3}, new[7] = {0};
	static const unsigned cpus[7] = {0, 1, 2, 3, 0, 1, 2};

	(void)state;
	idle_awaken(&m, &parent, 1000 * US);
	for (size_t i = 0; i < 7; i++) {
		idle_begin(&m, &new[i], &parent);
		assert_int_equal(new[i].cpu, cpus[i]);
		assert_int_equal(idle_awaken(&m, &new[i], 1000 * US), 0);
	}
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(m.cpu[i].awake, 2);
}

/* 33 us must be an eleventh of the time: 363 us, 10 us one of 110. */
static void test_a_cpu_whose_thread_waits_for_io_stays_out_of_deep_states(void **state)
{
	static const u64 for_us[] = {15, 109, 110, 362, 363};
	static const u64 takes[] = {0, 2, 10, 10, 33};

	(void)state;
	for (size_t i = 0; i < sizeof for_us / sizeof *for_us; i++) {
		struct idle_model m = idle();
		struct idle_thread thread = {.cpu = 1}, another = {.cpu = 1};

		idle_awaken(&m, &thread, 1000 * US);
		idle_fall_asleep(&m, &thread, true, 2000 * US);
		assert_int_equal(idle_awaken(&m, &another, (2000 + for_us[i]) * US), takes[i] * US);
		idle_fall_asleep(&m, &another, false, 3000 * US);
		assert_int_equal(idle_awaken(&m, &thread, (3000 + for_us[i]) * US), takes[i] * US);
		/* Nobody waits for I/O any more. */
		idle_fall_asleep(&m, &thread, false, 4000 * US);
		assert_int_equal(idle_awaken(&m, &thread, 4100 * US), 33 * US);
	}
}

static void test_threads_of_one_machine_spread_over_the_next(void **state)
{
	static const struct idle_machine two = {
		.cpus = 2, .residency_us = {1, 2}, .exit_us = {1, 2}};
	struct idle_model m = idle();
	struct idle_thread awake = {.cpu = 3}, waits = {.cpu = 2};

	(void)state;
	idle_awaken(&m, &awake, 1000 * US);
	idle_awaken(&m, &waits, 1000 * US);
	idle_fall_asleep(&m, &waits, true, 1000 * US);
	idle_become(&m, &two, 2000 * US);
	idle_move(&m, &awake, 3);
	idle_move(&m, &waits, 2);
	assert_int_equal(awake.cpu, 1);
	assert_int_equal(m.cpu[1].awake, 1);
	assert_int_equal(m.cpu[0].waiting_for_io, 1);
	idle_fall_asleep(&m, &awake, false, 3000 * US);
	idle_awaken(&m, &waits, 3000 * US);
	assert_int_equal(m.cpu[0].waiting_for_io, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_cpu_is_in_the_deepest_state_it_was_idle_long_enough_for),
		cmocka_unit_test(test_a_core_is_in_the_lighter_of_its_two_states),
		cmocka_unit_test(test_threads_keep_their_cpu_or_take_an_idle_core_or_an_idle_cpu),
		cmocka_unit_test(
			test_new_threads_take_idle_cores_then_idle_cpus_then_the_least_busy),
		cmocka_unit_test(test_a_cpu_whose_thread_waits_for_io_stays_out_of_deep_states),
		cmocka_unit_test(test_threads_of_one_machine_spread_over_the_next),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
