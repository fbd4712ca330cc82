/* SPDX-License-Identifier: BSD-3-Clause */
/* Chunks are loaded, stored and deleted. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "backends/backend.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/chunked/internal.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/space.h"
#include "backends/s3/core/volume.h"

/* A chunk that is no longer written is stored after that; and how often that is looked at. */
#define IDLE_NS UINT64_C(1000000000)
/* The pause before a chunk is put to a store that refused one. */
#define RETRY_NS UINT64_C(1000000000)

void s3_direct_fail(struct s3_direct *d, const struct s3_request *req)
{
	if (req->result == -ESHUTDOWN)
		s3_volume_fail(d->v, -EIO, "closed before everything was stored");
	else
		s3_volume_fail(d->v, -EIO, "%s: %s", req->key, req->message);
}

/* Does the store not take a chunk now, which may change? */
static bool is_refusal(const struct s3_request *req)
{
	return req->result != -ESHUTDOWN && !(req->result == -EIO && req->expired);
}

/* The chunk stays dirty and is put again; flushes fail meanwhile. */
static void refuse(struct s3_direct *d, const struct s3_request *req)
{
	bool tell;

	pthread_mutex_lock(&d->lock);
	tell = s3_space_refused(d->v, req->result);
	pthread_mutex_unlock(&d->lock);
	if (tell)
		s3_space_tell(d->v, req->result, req->message);
}

static void store_done(struct s3_request *req)
{
	struct s3_chunk *c = req->opaque;
	struct s3_direct *d = c->d;
	struct s3_volume *v = d->v;

	if (req->result && is_refusal(req))
		refuse(d, req);
	else if (req->result)
		s3_direct_fail(d, req);
	pthread_mutex_lock(&d->lock);
	c->state = S3_CHUNK_IDLE;
	d->storing--;
	if (req->result) {
		/* An attempt may have arrived, so that a trim of the chunk has to delete it. */
		s3_chunk_set_present(d, c->index, true);
		d->retry_ns = s3_now() + RETRY_NS;
	} else {
		d->retry_ns = 0;
		/* An end waits for a full store that has space again, until all is stored. */
		atomic_store(&v->refused_since, s3_now());
		if (req->op == S3_PUT && atomic_load(&v->refused) != -ENOSPC)
			atomic_store(&v->refused, 0);
		s3_chunk_mark_clean(d, c);
		s3_chunk_set_present(d, c->index, req->op == S3_PUT);
		d->unchecked = true;
		d->stored += req->op == S3_PUT;
		d->deleted += req->op == S3_DELETE;
		d->stored_bytes += req->op == S3_PUT ? s3_chunk_bytes(d, c->index) : 0;
	}
	s3_chunk_run_waiting(d, c);
	s3_direct_settle(d);
	s3_direct_leave(d);
}

static bool is_zero(const uint8_t *data, size_t length)
{
	return data[0] == 0 && memcmp(data, data + 1, length - 1) == 0;
}

void s3_chunk_put(struct s3_direct *d, struct s3_chunk *c)
{
	uint32_t bytes = s3_chunk_bytes(d, c->index);
	int r;

	c->body = (struct iovec){c->data, bytes};
	c->request = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_LOG,
		.key = c->key,
		.iov = &c->body,
		.iovcnt = 1,
		.done = store_done,
		.opaque = c,
	};
	/* Zeroes are no object. Deleting one that is not there is no error. */
	if (is_zero(c->data, bytes)) {
		c->request.op = S3_DELETE;
		c->request.iovcnt = 0;
	} else if (d->v->checksums) {
		c->crc32c = s3_crc32c(0, c->data, bytes);
		c->request.crc32c = &c->crc32c;
	}
	r = s3_store_submit(d->v->store, &c->request);
	if (r) {
		c->request.result = -EIO;
		strcpy(c->request.message, "cannot be stored: out of memory");
		store_done(&c->request);
	}
}

static void queue_put(struct s3_direct *d, struct s3_chunk *c)
{
	c->state = S3_CHUNK_STORING;
	TAILQ_INSERT_TAIL(&d->puts, c, put);
	pthread_cond_signal(&d->work);
}

static void load_done(struct s3_request *req)
{
	struct s3_chunk *c = req->opaque;
	struct s3_direct *d = c->d;
	struct s3_volume *v = d->v;
	int r = req->result;
	bool refused = r && r != -ENOENT && c->store_next && is_refusal(req);
	struct s3_chunk_piece *p;

	if (r == 0 && req->object_size != s3_chunk_bytes(d, c->index)) {
		r = req->result = -EIO;
		snprintf(req->message, sizeof req->message,
			"has %" PRIu64 " bytes instead of %" PRIu32 "; restore it from a backup",
			req->object_size, s3_chunk_bytes(d, c->index));
	}
	if (r && !c->store_next && r != -ESHUTDOWN)
		backend_error(&v->host, "volume=%s: %s: %s", v->name, c->key, req->message);
	if (refused)
		refuse(d, req);
	else if (r && c->store_next)
		s3_direct_fail(d, req); /* what has been answered can be stored no more */
	pthread_mutex_lock(&d->lock);
	free(c->iov);
	c->iov = NULL;
	c->state = S3_CHUNK_IDLE;
	d->loaded++;
	if (r == 0)
		s3_chunk_set_known(c, 0, s3_chunk_blocks(d, c->index));
	if (r == 0 && c->store_next) {
		queue_put(d, c);
	} else {
		d->storing -= c->store_next;
		if (refused)
			d->retry_ns = s3_now() + RETRY_NS;
		while (r && !refused && (p = TAILQ_FIRST(&c->waiting))) {
			TAILQ_REMOVE(&c->waiting, p, link);
			s3_io_end_piece(d, p, -EIO);
		}
		s3_chunk_run_waiting(d, c);
	}
	s3_direct_settle(d);
	s3_direct_leave(d);
}

bool s3_chunk_load(struct s3_direct *d, struct s3_chunk *c, bool store_next)
{
	unsigned shift = d->v->shift;
	uint32_t first = 0, end = s3_chunk_blocks(d, c->index), next;
	int n = 0;

	first = c->known[0] ? s3_chunk_run_end(c, 0, end) : 0;
	while (c->known[end - 1])
		end--;
	for (uint32_t i = first; i < end; i = s3_chunk_run_end(c, i, end))
		n++;
	c->iov = malloc((size_t)n * sizeof *c->iov);
	if (!c->iov)
		return false;
	n = 0;
	for (uint32_t i = first; i < end; i = next) {
		next = s3_chunk_run_end(c, i, end);
		c->iov[n++] = (struct iovec){
			c->known[i] ? d->sink : c->data + ((size_t)i << shift),
			(size_t)(next - i) << shift,
		};
	}
	c->state = S3_CHUNK_LOADING;
	c->store_next = store_next;
	c->request = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_BACKGROUND,
		.key = c->key,
		.iov = c->iov,
		.iovcnt = n,
		.offset = (uint64_t)first << shift,
		.done = load_done,
		.opaque = c,
	};
	if (s3_store_submit(d->v->store, &c->request) == 0)
		return true;
	c->state = S3_CHUNK_IDLE;
	free(c->iov);
	c->iov = NULL;
	return false;
}

/* Stores a dirty chunk that nothing else happens to. */
static void begin_store(struct s3_direct *d, struct s3_chunk *c)
{
	uint32_t blocks = s3_chunk_blocks(d, c->index);

	if (c->n_known < blocks && s3_chunk_is_present(d, c->index)) {
		d->storing += s3_chunk_load(d, c, true); /* without memory: another time */
		return;
	}
	if (c->n_known < blocks)
		s3_chunk_fill_with_zeroes(d, c, 0, blocks);
	d->storing++;
	queue_put(d, c);
}

/* May the store have a chunk now, or is it better kept for a while? */
static bool is_due(const struct s3_direct *d, const struct s3_chunk *c, uint64_t now)
{
	bool pressed = !TAILQ_EMPTY(&d->stalled) || d->n_dirty - d->storing > d->max_buffers / 2;

	return c->state == S3_CHUNK_IDLE &&
	       (pressed || c->full || c->dirtied <= d->want_up_to || now >= c->since + IDLE_NS);
}

/*
 * To a store that refuses, one after the other: the one that has waited for the longest since it
 * was tried, for the store may have room for another one that it has not for the oldest.
 */
static void try_next(struct s3_direct *d, uint64_t now)
{
	struct s3_chunk *c, *next = NULL;

	if (d->storing || now < d->retry_ns)
		return;
	TAILQ_FOREACH(c, &d->dirty, dirt)
	if (is_due(d, c, now) && (!next || c->tried < next->tried))
		next = c;
	if (!next)
		return;
	next->tried = ++d->tries;
	begin_store(d, next);
}

void s3_direct_begin_stores(struct s3_direct *d)
{
	uint64_t now = s3_now();
	struct s3_chunk *c;

	if (atomic_load(&d->v->failed))
		return;
	if (atomic_load(&d->v->refused)) {
		try_next(d, now);
		return;
	}
	TAILQ_FOREACH(c, &d->dirty, dirt)
	{
		if (d->storing >= d->uploads)
			return;
		if (is_due(d, c, now))
			begin_store(d, c);
	}
}

/* If several deletions are refused one after the other the first is reported. */
static void tell_refused(struct s3_direct *d, const struct s3_request *req)
{
	bool told;

	pthread_mutex_lock(&d->lock);
	told = d->deletion_failing;
	d->deletion_failing = true;
	pthread_mutex_unlock(&d->lock);
	if (!told)
		backend_error(&d->v->host,
			"volume=%s: %s cannot be deleted: %s; trims and zeroes of whole chunks "
			"fail until the store deletes them",
			d->v->name, req->key, req->message);
}

static void delete_done(struct s3_request *req)
{
	struct s3_chunk *c = req->opaque;
	struct s3_direct *d = c->d;
	struct s3_chunk_piece *p = c->cut;

	/* Then the chunk stays what it was, in memory as well. */
	if (req->result && is_refusal(req))
		tell_refused(d, req);
	else if (req->result)
		s3_direct_fail(d, req);
	pthread_mutex_lock(&d->lock);
	c->state = S3_CHUNK_IDLE;
	if (req->result == 0) {
		s3_chunk_mark_clean(d, c);
		s3_chunk_release_memory(d, c);
		s3_chunk_set_present(d, c->index, false);
		d->unchecked = true;
		d->deletion_failing = false;
		d->deleted++;
	}
	s3_io_end_piece(d, p, req->result ? -EIO : 0);
	s3_chunk_run_waiting(d, c);
	s3_direct_settle(d);
	s3_direct_leave(d);
}

void s3_chunk_cut(struct s3_direct *d, struct s3_chunk *c, struct s3_chunk_piece *p)
{
	if (!s3_chunk_is_present(d, c->index)) {
		s3_chunk_mark_clean(d, c);
		s3_chunk_release_memory(d, c);
		s3_io_end_piece(d, p, 0);
		s3_chunk_drop_idle(d, c);
		return;
	}
	c->state = S3_CHUNK_DELETING;
	c->cut = p;
	c->request = (struct s3_request){
		.op = S3_DELETE,
		.pool = S3_POOL_LOG,
		.key = c->key,
		.done = delete_done,
		.opaque = c,
	};
	/* If it was dirty it is until the object is gone: a flush must not be answered while
	 * the store has neither what was written nor what overwrote it. */
	if (s3_store_submit(d->v->store, &c->request) == 0)
		return;
	c->state = S3_CHUNK_IDLE;
	s3_io_end_piece(d, p, -ENOMEM);
	s3_chunk_drop_idle(d, c);
}
