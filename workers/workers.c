/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdlib.h>

#include "workers/workers.h"

struct worker {
	struct workers *all;
	pthread_t thread;
	sem_t chosen; /* from among the idle */
	struct worker *next_idle;
};

struct workers {
	pthread_mutex_t lock;
	struct work *first, **last; /* waiting pieces, oldest first */
	/*
	 * The last one to become idle is the first to be chosen: its CPU has slept the shortest,
	 * and takes up to 0.1 ms less to wake up than that of a thread whose turn comes once in a
	 * while.
	 */
	struct worker *idle;
	bool ending;
	unsigned count;
	struct worker threads[];
};

static void *work(void *opaque)
{
	struct worker *me = opaque;
	struct workers *w = me->all;

	pthread_mutex_lock(&w->lock);
	for (;;) {
		struct work *piece = w->first;

		if (piece) {
			w->first = piece->next;
			if (!w->first)
				w->last = &w->first;
			pthread_mutex_unlock(&w->lock);
			piece->run(piece);
			pthread_mutex_lock(&w->lock);
		} else if (w->ending) {
			break;
		} else {
			me->next_idle = w->idle;
			w->idle = me;
			pthread_mutex_unlock(&w->lock);
			while (sem_wait(&me->chosen) < 0) /* a signal came */
				continue;
			pthread_mutex_lock(&w->lock);
		}
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* At most so many idle threads, linked. Those that are busy look for more by themselves. Locked. */
static struct worker *choose(struct workers *w, unsigned count)
{
	struct worker *chosen = w->idle, **end = &chosen;

	for (; count && *end; count--)
		end = &(*end)->next_idle;
	w->idle = *end;
	*end = NULL;
	return chosen;
}

static void wake_up(struct worker *chosen)
{
	while (chosen) {
		struct worker *next = chosen->next_idle; /* it is free to change then */

		sem_post(&chosen->chosen);
		chosen = next;
	}
}

struct workers *workers_new(unsigned count)
{
	struct workers *w = calloc(1, sizeof *w + count * sizeof w->threads[0]);

	if (!w)
		return NULL;
	pthread_mutex_init(&w->lock, NULL);
	w->last = &w->first;
	for (; w->count < count; w->count++) {
		struct worker *worker = &w->threads[w->count];

		worker->all = w;
		sem_init(&worker->chosen, 0, 0);
		if (pthread_create(&worker->thread, NULL, work, worker) != 0) {
			sem_destroy(&worker->chosen);
			workers_free(w);
			return NULL;
		}
	}
	return w;
}

void workers_free(struct workers *w)
{
	struct worker *chosen;

	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->ending = true;
	chosen = choose(w, w->count);
	pthread_mutex_unlock(&w->lock);
	wake_up(chosen);
	for (unsigned i = 0; i < w->count; i++) {
		pthread_join(w->threads[i].thread, NULL);
		sem_destroy(&w->threads[i].chosen);
	}
	pthread_mutex_destroy(&w->lock);
	free(w);
}

void workers_push(struct workers *w, struct work *first)
{
	struct work *last = first;
	struct worker *chosen;
	unsigned count = 1;

	for (; last->next; last = last->next)
		count++;
	pthread_mutex_lock(&w->lock);
	*w->last = first;
	w->last = &last->next;
	chosen = choose(w, count);
	pthread_mutex_unlock(&w->lock);
	wake_up(chosen);
}
