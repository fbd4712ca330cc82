/* SPDX-License-Identifier: BSD-3-Clause */
/* The keeper's thread: checkpoints and garbage in turn, and orders of others. */
#include <errno.h>
#include <time.h>

#include "backends/s3/base/clock.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/space.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/keeper/internal.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/log/writeback.h"
#include "backends/s3/recovery/writeback_open.h"
#include "backends/s3/state/object_table.h"

/* A round of compaction is followed by a pause of this many times its own duration. */
#define GC_PAUSE       3
#define GC_INTERVAL_NS UINT64_C(1000000000)
/* What a store does not delete is left alone that long. */
#define DELETE_PAUSE_NS UINT64_C(10000000000)

struct s3_order {
	struct s3_order *next;
	int (*run)(struct s3_volume *v, void *opaque);
	void *opaque;
	int result;
	bool done;
};

/* Has the thread that takes orders from *tail do something, and waits for it. */
static int call(struct s3_volume *v, struct s3_order ***tail, pthread_cond_t *work,
	int (*run)(struct s3_volume *v, void *opaque), void *opaque)
{
	struct s3_order order = {.run = run, .opaque = opaque, .result = -ESHUTDOWN};
	int r;

	if (!v->layout->has_log)
		return s3_volume_refuse(v, -EOPNOTSUPP,
			"volume=%s: has layout=direct, which does not support this; copy it into a "
			"volume with layout=log",
			v->name);
	r = v->backend.readonly ? -EROFS : v->layout->start(v);
	if (r)
		return r;
	pthread_mutex_lock(&v->lock);
	if (!v->keeper_stopping) {
		**tail = &order;
		*tail = &order.next;
		pthread_cond_signal(work);
		while (!order.done)
			pthread_cond_wait(&v->quiet, &v->lock);
	}
	pthread_mutex_unlock(&v->lock);
	return order.result;
}

int s3_keeper_call(struct s3_volume *v, int (*run)(struct s3_volume *v, void *opaque), void *opaque)
{
	return call(v, &v->orders_tail, &v->keeper_work, run, opaque);
}

int s3_collector_call(
	struct s3_volume *v, int (*run)(struct s3_volume *v, void *opaque), void *opaque)
{
	return call(v, &v->collections_tail, &v->collector_work, run, opaque);
}

bool s3_keeper_is_stopping(struct s3_volume *v)
{
	bool stopping;

	pthread_mutex_lock(&v->lock);
	stopping = v->keeper_stopping;
	pthread_mutex_unlock(&v->lock);
	return stopping;
}

/* Does what was ordered first. Under the lock. */
static void run_order(struct s3_volume *v, struct s3_order **orders, struct s3_order ***tail)
{
	struct s3_order *order = *orders;
	int r = v->keeper_stopping ? -ESHUTDOWN : atomic_load(&v->failed);

	*orders = order->next;
	if (!*orders)
		*tail = orders;
	if (r == 0) {
		pthread_mutex_unlock(&v->lock);
		r = order->run(v, order->opaque);
		pthread_mutex_lock(&v->lock);
	}
	order->result = r;
	order->done = true;
	pthread_cond_broadcast(&v->quiet);
}

/* Waits for work until due, ns. Under the lock. */
static void wait_until(struct s3_volume *v, pthread_cond_t *work, uint64_t due)
{
	struct timespec until = {
		.tv_sec = (time_t)(due / 1000000000), .tv_nsec = (long)(due % 1000000000)};

	pthread_cond_timedwait(work, &v->lock, &until);
}

void *s3_keeper(void *volume)
{
	struct s3_volume *v = volume;

	pthread_mutex_lock(&v->lock);
	while (!v->keeper_stopping) {
		bool due = s3_checkpoint_due(v) && !atomic_load(&v->failed);

		if (v->orders) {
			run_order(v, &v->orders, &v->orders_tail);
		} else if (!atomic_load(&v->failed) && s3_writeback_is_over(v)) {
			pthread_mutex_unlock(&v->lock);
			s3_writeback_give_up(v);
			pthread_mutex_lock(&v->lock);
		} else if (due && s3_now() >= v->root_due) {
			pthread_mutex_unlock(&v->lock);
			s3_checkpoint(v);
			pthread_mutex_lock(&v->lock);
		} else if (due) {
			wait_until(v, &v->keeper_work, v->root_due);
		} else if (v->prune && s3_now() >= v->prune->due && !atomic_load(&v->failed)) {
			pthread_mutex_unlock(&v->lock);
			s3_keeper_delete_old_roots(v);
			pthread_mutex_lock(&v->lock);
		} else if (v->prune && !atomic_load(&v->failed)) {
			wait_until(v, &v->keeper_work, v->prune->due);
		} else {
			pthread_cond_wait(&v->keeper_work, &v->lock);
		}
	}
	while (v->orders)
		run_order(v, &v->orders, &v->orders_tail);
	pthread_mutex_unlock(&v->lock);
	return NULL;
}

/*
 * In a full store nothing more is written, so that no root comes by itself that would let go
 * what has died: by a trim, say. Deaths count, since of the dead some go, and the roots themselves
 * add objects without data to them. covered: how many the last ones covered.
 */
static void cover_if_full(struct s3_volume *v, uint64_t *covered)
{
	uint64_t deaths, due;

	if (atomic_load(&v->refused) != -ENOSPC)
		return;
	deaths = s3_objects_deaths(v->objects);
	pthread_mutex_lock(&v->lock);
	due = v->root_due;
	pthread_mutex_unlock(&v->lock);
	if (deaths != *covered && s3_now() >= due && s3_gc_cover(v) == 0)
		*covered = deaths;
}

void *s3_collector(void *volume)
{
	struct s3_volume *v = volume;
	uint64_t next = s3_now() + GC_INTERVAL_NS, delete_ns = 0, covered = 0;
	size_t n;

	v->next_sweep_ns = s3_now() + v->gc_delay_ns;
	pthread_mutex_lock(&v->lock);
	while (!v->keeper_stopping) {
		if (v->collections) {
			run_order(v, &v->collections, &v->collections_tail);
		} else if (atomic_load(&v->failed)) {
			pthread_cond_wait(&v->collector_work, &v->lock);
		} else if (v->reserve.undecided && v->reserve.decide_by) {
			pthread_mutex_unlock(&v->lock);
			s3_space_tend(v);
			pthread_mutex_lock(&v->lock);
		} else if (s3_now() >= next) {
			uint64_t began = s3_now();

			pthread_mutex_unlock(&v->lock);
			s3_space_tend(v);
			if (s3_now() >= delete_ns && s3_gc_collect_dead(v, &n))
				delete_ns = s3_now() + DELETE_PAUSE_NS;
			s3_gc_readmit(v, false);
			s3_gc_compact_if_needed(v);
			if (s3_now() >= v->next_sweep_ns)
				s3_gc_sweep(v);
			cover_if_full(v, &covered);
			next = s3_now() + (s3_now() - began) * GC_PAUSE + GC_INTERVAL_NS / 10;
			pthread_mutex_lock(&v->lock);
		} else {
			wait_until(v, &v->collector_work, next);
		}
	}
	while (v->collections)
		run_order(v, &v->collections, &v->collections_tail);
	pthread_mutex_unlock(&v->lock);
	s3_room_leave(v);
	return NULL;
}
