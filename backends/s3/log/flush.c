/* SPDX-License-Identifier: BSD-3-Clause */
/* Flushes, and writes that must be durable, until they are answered. */
#include <errno.h>
#include <stdlib.h>

#include "backends/backend.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/log/internal.h"
#include "backends/s3/log/log.h"
#include "backends/s3/log/writeback.h"

void s3_log_answer_durable(struct s3_volume *v, uint64_t seq, struct backend_request *request)
{
	enum s3_writeback_state logged = S3_WRITEBACK_NEVER;
	struct s3_waiter *w;
	int r;

	pthread_mutex_lock(&v->lock);
	r = atomic_load(&v->failed);
	if (seq == 0)
		seq = v->applied;
	if (r == 0 && v->writeback && seq > v->frontier)
		logged = s3_writeback_want(v, v->changes);
	if (r == 0 && logged == S3_WRITEBACK_NEVER && v->open && v->open->seq <= seq)
		s3_log_close_for_flush(v);
	if (r || v->flush_mode == S3_FLUSH_WEAK || seq <= v->frontier ||
		logged == S3_WRITEBACK_NOW) {
		pthread_mutex_unlock(&v->lock);
		request->done(request, r);
		return;
	}
	w = malloc(sizeof *w);
	if (w) {
		*w = (struct s3_waiter){.next = v->waiters,
			.request = request,
			.seq = seq,
			.change = v->writeback ? v->changes : UINT64_MAX};
		v->waiters = w;
	}
	pthread_mutex_unlock(&v->lock);
	if (!w)
		request->done(request, -ENOMEM);
}

void s3_flush(struct s3_volume *v, struct backend_request *request)
{
	if (v->backend.readonly)
		request->done(request, 0);
	else
		s3_log_answer_durable(v, 0, request);
}

struct s3_waiter *s3_log_take_waiters(struct s3_volume *v, uint64_t seq, uint64_t change)
{
	struct s3_waiter *taken = NULL, **link = &v->waiters;

	while (*link) {
		struct s3_waiter *w = *link;

		if (w->seq > seq && w->change > change) {
			link = &w->next;
			continue;
		}
		*link = w->next;
		w->next = taken;
		taken = w;
	}
	return taken;
}

void s3_log_answer_waiters(struct s3_waiter *w, int r)
{
	while (w) {
		struct s3_waiter *next = w->next;

		w->request->done(w->request, r);
		free(w);
		w = next;
	}
}
