/* SPDX-License-Identifier: BSD-3-Clause */
/* The worker threads of userblk-ublk; also run under the thread sanitizer. */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/unit/support.h"
#include "ublk/workers.h"

#define THREADS 3
#define CHAINS	200
#define LENGTH	5

struct piece {
	struct ublk_work work;
	atomic_int runs;
};

struct pusher {
	struct ublk_workers *workers;
	struct piece pieces[CHAINS][LENGTH];
	pthread_t thread;
};

static void count(struct ublk_work *work)
{
	((struct piece *)work)->runs++;
}

static void *push(void *opaque)
{
	struct pusher *p = opaque;

	for (int i = 0; i < CHAINS; i++) {
		for (int j = 0; j < LENGTH; j++)
			p->pieces[i][j].work = (struct ublk_work){.run = count,
				.next = j + 1 < LENGTH ? &p->pieces[i][j + 1].work : NULL};
		ublk_workers_push(p->workers, &p->pieces[i][0].work);
	}
	return NULL;
}

/* Also what is still waiting when the workers must end. */
static void test_every_piece_is_done_once(void **state)
{
	static struct pusher pushers[THREADS];
	struct ublk_workers *workers = ublk_workers_new(4);

	(void)state;
	assert_non_null(workers);
	for (int i = 0; i < THREADS; i++) {
		pushers[i].workers = workers;
		assert_int_equal(pthread_create(&pushers[i].thread, NULL, push, &pushers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(pushers[i].thread, NULL);
	ublk_workers_free(workers);
	for (int i = 0; i < THREADS; i++)
		for (int j = 0; j < CHAINS; j++)
			for (int k = 0; k < LENGTH; k++)
				assert_int_equal(pushers[i].pieces[j][k].runs, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_piece_is_done_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
