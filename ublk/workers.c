/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "ublk/workers.h"

struct ublk_workers {
	pthread_mutex_t lock;
	pthread_cond_t ready;
	struct ublk_work *first, **last; /* waiting pieces, oldest first */
	unsigned idle;			 /* threads that wait */
	bool ending;
	unsigned count;
	pthread_t threads[];
};

static void *work(void *opaque)
{
	struct ublk_workers *w = opaque;

	pthread_mutex_lock(&w->lock);
	for (;;) {
		struct ublk_work *piece = w->first;

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
			w->idle++;
			pthread_cond_wait(&w->ready, &w->lock);
			w->idle--;
		}
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

struct ublk_workers *ublk_workers_new(unsigned count)
{
	struct ublk_workers *w = calloc(1, sizeof *w + count * sizeof w->threads[0]);

	if (!w)
		return NULL;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->ready, NULL);
	w->last = &w->first;
	for (; w->count < count; w->count++)
		if (pthread_create(&w->threads[w->count], NULL, work, w) != 0) {
			ublk_workers_free(w);
			return NULL;
		}
	return w;
}

void ublk_workers_free(struct ublk_workers *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->ending = true;
	pthread_cond_broadcast(&w->ready);
	pthread_mutex_unlock(&w->lock);
	for (unsigned i = 0; i < w->count; i++)
		pthread_join(w->threads[i], NULL);
	pthread_cond_destroy(&w->ready);
	pthread_mutex_destroy(&w->lock);
	free(w);
}

void ublk_workers_push(struct ublk_workers *w, struct ublk_work *first)
{
	struct ublk_work *last = first;
	unsigned count = 1, wake;

	for (; last->next; last = last->next)
		count++;
	pthread_mutex_lock(&w->lock);
	*w->last = first;
	w->last = &last->next;
	wake = count < w->idle ? count : w->idle;
	pthread_mutex_unlock(&w->lock);
	/* Those who are busy look for more by themselves. */
	while (wake--)
		pthread_cond_signal(&w->ready);
}
