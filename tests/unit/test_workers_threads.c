/* SPDX-License-Identifier: BSD-3-Clause */
/* Worker threads; also run under the thread sanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "tests/unit/support.h"
#include "workers/workers.h"

#define THREADS 3
#define CHAINS	200
#define LENGTH	5

struct piece {
	struct work work;
	atomic_int runs;
};

struct pusher {
	struct workers *workers;
	struct piece pieces[CHAINS][LENGTH];
	pthread_t thread;
};

static void count(struct work *work)
{
	((struct piece *)work)->runs++;
}

static void *push(void *opaque)
{
	struct pusher *p = opaque;

	for (int i = 0; i < CHAINS; i++) {
		for (int j = 0; j < LENGTH; j++)
			p->pieces[i][j].work = (struct work){.run = count,
				.next = j + 1 < LENGTH ? &p->pieces[i][j + 1].work : NULL};
		workers_push(p->workers, &p->pieces[i][0].work);
	}
	return NULL;
}

/* Also what is still waiting when the workers must end. */
static void test_every_piece_is_done_once(void **state)
{
	static struct pusher pushers[THREADS];
	struct workers *workers = workers_new(4);

	(void)state;
	assert_non_null(workers);
	for (int i = 0; i < THREADS; i++) {
		pushers[i].workers = workers;
		assert_int_equal(pthread_create(&pushers[i].thread, NULL, push, &pushers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(pushers[i].thread, NULL);
	workers_free(workers);
	for (int i = 0; i < THREADS; i++)
		for (int j = 0; j < CHAINS; j++)
			for (int k = 0; k < LENGTH; k++)
				assert_int_equal(pushers[i].pieces[j][k].runs, 1);
}

struct turn {
	struct work work;
	pthread_t thread;
	atomic_bool done;
};

static void note_thread(struct work *work)
{
	struct turn *turn = (struct turn *)work;

	turn->thread = pthread_self();
	turn->done = true;
}

/*
 * Pieces that come one after the other: 16 threads do not take turns. A few do where the machine
 * is so busy that a thread is not idle again after 2 ms.
 */
static void test_the_last_idle_thread_is_chosen_first(void **state)
{
	enum { WORKERS = 16, TURNS = 4 * WORKERS };
	static struct turn turns[TURNS];
	struct workers *workers = workers_new(WORKERS);
	int different = 0;

	(void)state;
	assert_non_null(workers);
	for (int i = 0; i < TURNS; i++) {
		bool known = false;

		nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
		turns[i].work.run = note_thread;
		workers_push(workers, &turns[i].work);
		while (!turns[i].done)
			nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
		for (int j = 0; j < i; j++)
			known |= pthread_equal(turns[i].thread, turns[j].thread) != 0;
		different += !known;
	}
	workers_free(workers);
	assert_in_range(different, 1, WORKERS / 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_piece_is_done_once),
		cmocka_unit_test(test_the_last_idle_thread_is_chosen_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
