/* SPDX-License-Identifier: BSD-3-Clause */
/* Chunks in memory, and the ends of the requests that wait for them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "backends/backend.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/chunked/internal.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/space.h"
#include "backends/s3/format/format.h"

void s3_chunk_key(const struct s3_direct *d, uint64_t index, char *key)
{
	s3_volume_key(d->v, &(struct s3_name){.kind = S3_NAME_CHUNK, .number = index}, key);
}

void s3_chunk_set_present(struct s3_direct *d, uint64_t index, bool present)
{
	uint8_t bit = (uint8_t)(1u << index % 8);

	if (present)
		d->present[index / 8] |= bit;
	else
		d->present[index / 8] &= (uint8_t)~bit;
}

/* ---- requests and their ends ------------------------------------------------------ */

void s3_direct_leave(struct s3_direct *d)
{
	struct s3_io *io = d->ready;
	bool space = d->space_again;

	d->ready = NULL;
	d->space_again = false;
	pthread_mutex_unlock(&d->lock);
	if (space)
		s3_space_tell_again(d->v);
	while (io) {
		struct s3_io *next = io->next;
		struct backend_request *request = io->request;
		int result = io->result;

		/* Another writer's data may be newer than what was read or written. */
		if (result == 0 && atomic_load(&d->v->fenced))
			result = -EIO;
		free(io);
		request->done(request, result);
		io = next;
	}
}

void s3_io_push(struct s3_io **list, struct s3_io *io)
{
	io->next = *list;
	*list = io;
}

void s3_io_end_part(struct s3_direct *d, struct s3_io *io, int result)
{
	const struct backend_request *request = io->request;

	if (result && !io->result)
		io->result = result;
	if (--io->pending)
		return;
	if (io->result == 0 && request->op != BACKEND_READ && request->flags & BACKEND_FUA &&
		d->v->flush_mode == S3_FLUSH_DURABLE) {
		io->target = d->number;
		s3_io_push(&d->waiters, io);
	} else {
		s3_io_push(&d->ready, io);
	}
}

void s3_io_end_piece(struct s3_direct *d, struct s3_chunk_piece *p, int result)
{
	struct s3_io *io = p->io;

	if (p != &io->only)
		free(p);
	s3_io_end_part(d, io, result);
}

struct s3_io *s3_io_make(struct backend_request *request)
{
	struct s3_io *io = calloc(1, sizeof *io);

	if (!io) {
		request->done(request, -ENOMEM);
		return NULL;
	}
	io->request = request;
	io->pending = 1;
	return io;
}

/* ---- chunks ----------------------------------------------------------------------- */

static struct s3_chunk **bucket(struct s3_direct *d, uint64_t index)
{
	return &d->buckets[index & (d->n_buckets - 1)];
}

struct s3_chunk *s3_chunk_find(struct s3_direct *d, uint64_t index)
{
	struct s3_chunk *c = *bucket(d, index);

	while (c && c->index != index)
		c = c->next;
	return c;
}

struct s3_chunk *s3_chunk_entry(struct s3_direct *d, uint64_t index)
{
	struct s3_chunk *c = s3_chunk_find(d, index);

	if (c)
		return c;
	c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->index = index;
	c->d = d;
	TAILQ_INIT(&c->waiting);
	s3_chunk_key(d, index, c->key);
	c->next = *bucket(d, index);
	*bucket(d, index) = c;
	return c;
}

void s3_chunk_free(struct s3_chunk *c)
{
	free(c->data);
	free(c->known);
	free(c->iov);
	free(c);
}

void s3_chunk_drop_idle(struct s3_direct *d, struct s3_chunk *c)
{
	struct s3_chunk **link = bucket(d, c->index);

	if (c->state != S3_CHUNK_IDLE || c->data || !TAILQ_EMPTY(&c->waiting))
		return;
	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	s3_chunk_free(c);
}

/* Sets those of blocks, of which n are set. */
static void set(uint8_t *blocks, uint32_t *n, uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i++) {
		*n += !blocks[i];
		blocks[i] = 1;
	}
}

void s3_chunk_mark_dirty(struct s3_direct *d, struct s3_chunk *c, uint32_t first, uint32_t end)
{
	if (!c->dirty) {
		memset(c->written, 0, d->chunk_blocks);
		c->n_written = 0;
		c->dirty = true;
		c->dirtied = ++d->number;
		c->since = s3_now();
		TAILQ_INSERT_TAIL(&d->dirty, c, dirt);
		if (d->n_dirty++ == 0)
			pthread_cond_signal(&d->work); /* it has to look at the clock now */
	}
	set(c->written, &c->n_written, first, end);
	c->full = c->n_written == s3_chunk_blocks(d, c->index);
}

void s3_chunk_mark_clean(struct s3_direct *d, struct s3_chunk *c)
{
	if (!c->dirty)
		return;
	c->dirty = c->full = false;
	TAILQ_REMOVE(&d->dirty, c, dirt);
	d->n_dirty--;
	pthread_cond_broadcast(&d->quiet);
}

void s3_chunk_release_memory(struct s3_direct *d, struct s3_chunk *c)
{
	if (!c->data)
		return;
	TAILQ_REMOVE(&d->used, c, used);
	memcpy(c->data, &d->spare, sizeof d->spare);
	d->spare = c->data;
	c->data = NULL;
	c->n_known = 0;
}

static struct s3_chunk *evictable(struct s3_direct *d)
{
	struct s3_chunk *c;

	TAILQ_FOREACH(c, &d->used, used)
	if (c->state == S3_CHUNK_IDLE && !c->dirty && TAILQ_EMPTY(&c->waiting))
		return c;
	return NULL;
}

bool s3_direct_memory_left(struct s3_direct *d)
{
	return d->spare || d->n_buffers < d->max_buffers || evictable(d);
}

void s3_chunk_touch(struct s3_direct *d, struct s3_chunk *c)
{
	TAILQ_REMOVE(&d->used, c, used);
	TAILQ_INSERT_TAIL(&d->used, c, used);
}

int s3_chunk_want_memory(struct s3_direct *d, struct s3_chunk *c)
{
	struct s3_chunk *old;

	if (c->data) {
		s3_chunk_touch(d, c);
		return 0;
	}
	if (!c->known)
		c->known = malloc(2 * (size_t)d->chunk_blocks);
	if (!c->known)
		return -ENOMEM;
	c->written = c->known + d->chunk_blocks;
	if (!d->spare && d->n_buffers < d->max_buffers) {
		c->data = malloc(d->chunk_bytes);
		if (c->data)
			d->n_buffers++;
	}
	if (!c->data && !d->spare && (old = evictable(d))) {
		s3_chunk_release_memory(d, old);
		s3_chunk_drop_idle(d, old);
	}
	if (!c->data && d->spare) {
		c->data = d->spare;
		memcpy(&d->spare, c->data, sizeof d->spare);
	}
	if (!c->data)
		return d->n_buffers ? -EAGAIN : -ENOMEM;
	memset(c->known, 0, d->chunk_blocks);
	c->n_known = 0;
	TAILQ_INSERT_TAIL(&d->used, c, used);
	return 0;
}

void s3_chunk_set_known(struct s3_chunk *c, uint32_t first, uint32_t end)
{
	set(c->known, &c->n_known, first, end);
}

uint32_t s3_chunk_run_end(const struct s3_chunk *c, uint32_t first, uint32_t end)
{
	const uint8_t *p = memchr(c->known + first, !c->known[first], end - first);

	return p ? (uint32_t)(p - c->known) : end;
}

void s3_chunk_fill_with_zeroes(
	struct s3_direct *d, struct s3_chunk *c, uint32_t first, uint32_t end)
{
	for (uint32_t i = first, next; i < end; i = next) {
		next = s3_chunk_run_end(c, i, end);
		if (!c->known[i])
			memset(c->data + ((size_t)i << d->v->shift), 0,
				(size_t)(next - i) << d->v->shift);
	}
	s3_chunk_set_known(c, first, end);
}

void s3_chunk_run_waiting(struct s3_direct *d, struct s3_chunk *c)
{
	struct s3_chunk_piece *p;

	while (c->state == S3_CHUNK_IDLE && (p = TAILQ_FIRST(&c->waiting))) {
		bool last = !TAILQ_NEXT(p, link);

		TAILQ_REMOVE(&c->waiting, p, link);
		s3_io_run_piece(d, p);
		if (last)
			return; /* it may be gone */
	}
	s3_chunk_drop_idle(d, c);
}
