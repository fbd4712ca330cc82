/* SPDX-License-Identifier: BSD-3-Clause */
/* Changes of chunks, and flushes. */
#include <errno.h>
#include <string.h>
#include <sys/queue.h>

#include "backends/backend.h"
#include "backends/s3/base/iov.h"
#include "backends/s3/chunked/internal.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"

/* ---- changes ------------------------------------------------------------------------ */

/* Blocks of which a piece changes a part only are there, or can be filled. False: to be read. */
static bool have_edges(struct s3_direct *d, struct s3_chunk *c, const struct s3_chunk_piece *p)
{
	unsigned shift = d->v->shift;
	uint32_t mask = d->v->block_size - 1, end = p->from + p->bytes;
	uint32_t edges[2], n = 0;

	if (p->from & mask)
		edges[n++] = p->from >> shift;
	if (end & mask)
		edges[n++] = end >> shift;
	for (uint32_t i = 0; i < n; i++) {
		if (c->known[edges[i]])
			continue;
		if (s3_chunk_is_present(d, c->index))
			return false;
		s3_chunk_fill_with_zeroes(d, c, edges[i], edges[i] + 1);
	}
	return true;
}

static void change(struct s3_direct *d, struct s3_chunk *c, struct s3_chunk_piece *p)
{
	const struct backend_request *request = p->io->request;
	unsigned shift = d->v->shift;
	uint32_t first = p->from >> shift;
	uint32_t end = (p->from + p->bytes + d->v->block_size - 1) >> shift;

	if (request->op == BACKEND_WRITE)
		s3_iov_copy(request->iov, p->position, c->data + p->from, p->bytes);
	else
		memset(c->data + p->from, 0, p->bytes);
	s3_chunk_set_known(c, first, end);
	s3_chunk_mark_dirty(d, c, first, end);
	s3_io_end_piece(d, p, 0);
}

void s3_io_run_piece(struct s3_direct *d, struct s3_chunk_piece *p)
{
	enum backend_op op = p->io->request->op;
	int r = atomic_load(&d->v->failed);
	struct s3_chunk *c;

	if (r) {
		s3_io_end_piece(d, p, r);
		return;
	}
	c = s3_chunk_entry(d, p->chunk);
	if (!c) {
		s3_io_end_piece(d, p, -ENOMEM);
		return;
	}
	if (c->state != S3_CHUNK_IDLE) {
		TAILQ_INSERT_TAIL(&c->waiting, p, link);
		return;
	}
	if (op != BACKEND_WRITE && p->bytes == s3_chunk_bytes(d, c->index)) {
		s3_chunk_cut(d, c, p);
		return;
	}
	if (op == BACKEND_TRIM ||
		(op == BACKEND_ZERO && !c->data && !s3_chunk_is_present(d, c->index))) {
		s3_io_end_piece(d, p, 0); /* a part of a chunk is kept; or is zeroes already */
		s3_chunk_drop_idle(d, c);
		return;
	}
	r = s3_chunk_want_memory(d, c);
	if (r == 0 && !have_edges(d, c, p)) {
		if (s3_chunk_load(d, c, false)) {
			TAILQ_INSERT_HEAD(&c->waiting, p, link);
			return;
		}
		r = -ENOMEM;
	}
	if (r == 0) {
		change(d, c, p);
		return;
	}
	s3_chunk_drop_idle(d, c);
	if (r == -EAGAIN) {
		d->stalls++;
		TAILQ_INSERT_TAIL(&d->stalled, p, link);
	} else {
		s3_io_end_piece(d, p, r);
	}
}

/* ---- flush -------------------------------------------------------------------------- */

static void start_check(struct s3_direct *d);

/* Moves what fulfils the condition of a flush from waiters to checked or ready. */
static void look_at_flushes(struct s3_direct *d)
{
	const struct s3_chunk *oldest = TAILQ_FIRST(&d->dirty);
	struct s3_io **link = &d->waiters;
	bool check = d->unchecked && d->v->conditional;
	int r = atomic_load(&d->v->failed), refused = atomic_load(&d->v->refused);

	if (d->checking && r == 0)
		return;
	while (*link) {
		struct s3_io *io = *link;

		if (r) {
			*link = io->next;
			io->result = r;
			s3_io_push(&d->ready, io);
			continue;
		}
		if (oldest && oldest->dirtied <= io->target) {
			if (io->target > d->want_up_to)
				d->want_up_to = io->target;
			if (!refused) {
				link = &io->next;
				continue;
			}
			*link = io->next;
			io->result = refused == -ENOSPC ? refused : -EIO;
			s3_io_push(&d->ready, io);
			continue;
		}
		*link = io->next;
		s3_io_push(check ? &d->checked : &d->ready, io);
	}
	if (d->checked && !d->checking)
		start_check(d);
}

static void check_done(struct s3_request *req)
{
	struct s3_direct *d = req->opaque;
	struct s3_volume *v = d->v;
	int r = req->result;
	struct s3_super super;
	bool again = r && r != -ESHUTDOWN && r != -ENOENT;

	if (r == 0) {
		if (s3_super_decode(d->check_iov.iov_base, req->bytes, &super) != S3_GOOD)
			super = (struct s3_super){0};
		if (super.epoch != v->epoch || memcmp(super.uuid, v->super.uuid, S3_UUID))
			s3_volume_fence(v, "another writer took the volume over");
		s3_super_free(&super);
	} else if (!again) {
		s3_direct_fail(d, req);
	} else if (!d->check_failing) {
		backend_error(&v->host,
			"volume=%s: %s; all data is stored, but flushes fail until this object can "
			"be read",
			v->name, req->message);
	}
	pthread_mutex_lock(&d->lock);
	d->checking = false;
	pthread_cond_broadcast(&d->quiet);
	d->check_failing = again;
	d->unchecked |= again;
	while (d->checked) {
		struct s3_io *io = d->checked;

		d->checked = io->next;
		io->result = again ? -EIO : atomic_load(&v->failed);
		s3_io_push(&d->ready, io);
	}
	s3_direct_settle(d);
	s3_direct_leave(d);
}

/* Is the epoch in the super object still ours, now that all of it is stored? */
static void start_check(struct s3_direct *d)
{
	d->checking = true;
	d->unchecked = false;
	d->check = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_LOG,
		.key = d->super_key,
		.iov = &d->check_iov,
		.iovcnt = 1,
		.allow_short = true,
		.done = check_done,
		.opaque = d,
	};
	if (s3_store_submit(d->v->store, &d->check) == 0)
		return;
	d->checking = false;
	d->unchecked = true;
	while (d->checked) {
		struct s3_io *io = d->checked;

		d->checked = io->next;
		io->result = -ENOMEM;
		s3_io_push(&d->ready, io);
	}
}

void s3_direct_look_at_epoch(struct s3_direct *d)
{
	const struct s3_volume *v = d->v;

	for (int i = 0; i < 2; i++) {
		while (d->checking && atomic_load(&v->failed) == 0)
			pthread_cond_wait(&d->quiet, &d->lock);
		if (i == 0 && atomic_load(&v->failed) == 0)
			start_check(d);
	}
}

void s3_direct_settle(struct s3_direct *d)
{
	struct s3_chunk_piece *p, *last;

	/* All that waited is stored, or has been cut. */
	if (atomic_load(&d->v->refused) && TAILQ_EMPTY(&d->dirty))
		d->space_again |= atomic_exchange(&d->v->refused, 0) == -ENOSPC;
	/* Each one once: the machine may have less memory than we may use. */
	last = TAILQ_LAST(&d->stalled, s3_pieces);
	while (last && s3_direct_memory_left(d)) {
		p = TAILQ_FIRST(&d->stalled);
		last = p == last ? NULL : last;
		TAILQ_REMOVE(&d->stalled, p, link);
		s3_io_run_piece(d, p);
	}
	while (atomic_load(&d->v->refused) == -ENOSPC && (p = TAILQ_FIRST(&d->stalled))) {
		TAILQ_REMOVE(&d->stalled, p, link);
		s3_io_end_piece(d, p, -ENOSPC);
	}
	look_at_flushes(d);
	if (!TAILQ_EMPTY(&d->dirty))
		s3_direct_begin_stores(d);
}

void s3_direct_give_up(struct s3_volume *v)
{
	struct s3_direct *d = v->direct;
	int r = atomic_load(&v->failed);
	struct s3_chunk_piece *p;

	pthread_mutex_lock(&d->lock);
	while ((p = TAILQ_FIRST(&d->stalled))) {
		TAILQ_REMOVE(&d->stalled, p, link);
		s3_io_end_piece(d, p, r);
	}
	look_at_flushes(d);
	pthread_cond_broadcast(&d->quiet);
	s3_direct_leave(d);
}
