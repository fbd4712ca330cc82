/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads of userblk-kv that insert records, and read the number of existing ones. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "harness/kv/ycsb.h"
#include "tests/unit/support.h"

#define THREADS 4
#define INSERTS 20000
#define FIRST	100

struct shared {
	struct numbers numbers;
	atomic_bool inserted[FIRST + THREADS * INSERTS];
};

static void *insert(void *arg)
{
	struct shared *all = arg;
	uint64_t last = 0;

	for (unsigned i = 0; i < INSERTS; i++) {
		uint64_t number = numbers_take(&all->numbers), there;

		atomic_store(&all->inserted[number], true);
		numbers_add(&all->numbers, number);
		there = atomic_load(&all->numbers.there);
		/* Never less than before, and only what was inserted. */
		if (there < last || !atomic_load(&all->inserted[there - 1]))
			return arg;
		last = there;
	}
	return NULL;
}

static void test_all_inserts_are_there_in_the_end(void **state)
{
	struct shared *all = calloc(1, sizeof(*all));
	pthread_t threads[THREADS];
	void *failed;

	(void)state;
	assert_non_null(all);
	numbers_init(&all->numbers, FIRST);
	for (unsigned i = 0; i < FIRST; i++)
		atomic_store(&all->inserted[i], true);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, insert, all), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	/* A thread that came while another advanced leaves it to the next. */
	numbers_add(&all->numbers, numbers_take(&all->numbers));
	assert_int_equal(atomic_load(&all->numbers.there), FIRST + THREADS * INSERTS + 1);
	free(all);
}

/* Inserts as many as may be under way; NULL: it could not. */
static void *fill_window(void *arg)
{
	struct numbers *n = arg;

	for (unsigned i = 0; i < YCSB_WINDOW; i++) {
		uint64_t number = numbers_take(n);

		if (number == NO_NUMBER)
			return NULL;
		numbers_add(n, number);
	}
	return arg;
}

/* An insert takes longer than that of the whole window by another thread, and may fail in the end.
 */
static void test_a_slow_insert_holds_up_the_others(void **state)
{
	const struct timespec moment = {.tv_nsec = 200000000};

	(void)state;
	for (int fails = 0; fails < 2; fails++) {
		struct numbers *n = malloc(sizeof(*n));
		pthread_t thread;
		uint64_t slow;
		void *filled;

		assert_non_null(n);
		numbers_init(n, FIRST);
		slow = numbers_take(n);
		assert_int_equal(pthread_create(&thread, NULL, fill_window, n), 0);
		while (atomic_load(&n->next) <= slow + YCSB_WINDOW)
			sched_yield();
		nanosleep(&moment, NULL);
		assert_int_equal(atomic_load(&n->there), FIRST);
		if (fails)
			numbers_fail(n);
		else
			numbers_add(n, slow);
		pthread_join(thread, &filled);
		assert_ptr_equal(filled, fails ? NULL : n);
		assert_int_equal(atomic_load(&n->there), FIRST + !fails * (1 + YCSB_WINDOW));
		free(n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_slow_insert_holds_up_the_others),
		cmocka_unit_test(test_all_inserts_are_there_in_the_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
