/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Writes, trims and zeroes.
 *
 * A write receives its place in the batch and its entry in the map under the volume's lock.
 * Therefore the log has the order of acknowledgement: if a client began a write after an earlier
 * one was acknowledged, the log has them in this order. The bytes are copied outside the lock.
 * Until this is done, the batch is not sealed, and readers of the blocks wait.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/base/iov.h"
#include "backends/s3/core/batch.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/space.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/log/internal.h"
#include "backends/s3/log/log.h"
#include "backends/s3/read/read.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

/* Where a piece of a write goes. */
struct place {
	struct s3_batch *batch;
	uint32_t first, count;
};

/* The volume may have been cut since the request was checked. */
static bool inside(const struct s3_volume *v, uint64_t end)
{
	return end <= s3_map_blocks(v->map);
}

static void set_copied(const struct place *place, enum s3_copied copied)
{
	for (uint32_t i = 0; i < place->count; i++)
		atomic_store_explicit(
			&place->batch->ready[place->first + i], copied, memory_order_release);
}

static uint8_t *place_data(const struct s3_volume *v, const struct place *place)
{
	return place->batch->data + ((size_t)place->first << v->shift);
}

/* Sums the blocks of a place, while they still are in the caches of this processor. */
static void sum(const struct s3_volume *v, const struct place *place)
{
	const uint8_t *data = place_data(v, place);

	if (v->transforms)
		return; /* what is stored is summed */
	for (uint32_t i = 0; i < place->count; i++, data += v->block_size)
		place->batch->crcs[place->first + i] = s3_crc32c(0, data, v->block_size);
}

/* Does a full store refuse data? What space there is is for what frees some. */
static bool is_full(const struct s3_volume *v)
{
	return atomic_load(&v->refused) == -ENOSPC;
}

/*
 * A place for up to count blocks of data at lba. With expect only if the block still
 * is where that says. DONE, STALLED, CHANGED or negative errno.
 */
static int reserve(struct s3_write *w, uint64_t lba, uint64_t count, const struct s3_run *expect,
	struct place *place)
{
	struct s3_volume *v = w->v;
	struct s3_batch *b;
	struct s3_run now;
	bool torn = false;
	int r;

	pthread_mutex_lock(&v->lock);
	r = v->stalled && !w->on_heap ? S3_LOG_STALLED : 0;
	/* Also one that has waited: the reserve has room for what was in memory by then. And the
	 * ends of a zero, which are data. */
	if (is_full(v))
		r = -ENOSPC;
	if (r == 0 && s3_space_undecided(v))
		r = S3_LOG_STALLED;
	if (r == 0)
		r = s3_log_make_room(v, true, 1);
	if (r == S3_LOG_DONE && !inside(v, lba + count))
		r = -ENOSPC;
	if (r == S3_LOG_DONE && expect) {
		s3_map_lookup(v->map, lba, 1, false, &now, 1);
		if (now.slot != expect->slot || now.offset != expect->offset)
			r = S3_LOG_CHANGED;
	}
	if (r == S3_LOG_DONE) {
		b = v->open;
		place->batch = b;
		place->first = b->blocks;
		place->count = v->batch_blocks - b->blocks;
		if (place->count > count)
			place->count = (uint32_t)count;
		r = s3_map_update(v->map, b->seq, lba, place->count, b->slot, place->first);
		/* Even if the map has received only a part of them: it must not find other blocks
		 * there. */
		b->blocks += place->count;
		torn = r != 0;
		if (torn) {
			set_copied(place, S3_COPIED_NEVER);
			sum(v, place);
		}
	}
	if (r == S3_LOG_DONE) {
		s3_log_add_record(b, &(struct s3_record){.op = S3_RECORD_WRITE,
					     .lba = lba,
					     .count = place->count,
					     .offset = place->first});
		atomic_fetch_add(&b->writers, 1);
	}
	pthread_mutex_unlock(&v->lock);
	if (torn)
		s3_volume_fail(v, r, "out of memory for the map");
	return r;
}

/* The bytes of a place are there. */
static void publish(struct s3_volume *v, const struct place *place)
{
	struct s3_batch *b = place->batch;

	set_copied(place, S3_COPIED);
	sum(v, place);
	if (!s3_batch_drop_writer(b))
		return;
	/* It has been closed meanwhile. */
	pthread_mutex_lock(&v->lock);
	pthread_cond_signal(&v->sealer_work);
	pthread_mutex_unlock(&v->lock);
}

/* A record that makes count blocks read as zeroes. */
static int append_zero(struct s3_write *w)
{
	struct s3_volume *v = w->v;
	bool torn = false;
	int r;

	pthread_mutex_lock(&v->lock);
	r = v->stalled && !w->on_heap ? S3_LOG_STALLED : atomic_load(&v->failed);
	if (r == S3_LOG_DONE && !inside(v, w->end))
		r = -ENOSPC;
	/* A new file system trims what is empty. */
	if (r == S3_LOG_DONE && s3_map_is_hole(v->map, w->lba, w->end - w->lba)) {
		w->last_seq = v->applied;
		pthread_mutex_unlock(&v->lock);
		w->lba = w->end;
		return S3_LOG_DONE;
	}
	if (r == S3_LOG_DONE)
		r = s3_log_make_room(v, false, 1);
	if (r == S3_LOG_DONE) {
		struct s3_batch *b = v->open;

		r = s3_map_punch(v->map, b->seq, w->lba, w->end - w->lba);
		torn = r != 0;
		s3_log_add_record(
			b, &(struct s3_record){
				   .op = S3_RECORD_ZERO, .lba = w->lba, .count = w->end - w->lba});
		w->last_seq = b->seq;
		w->lba = w->end;
	}
	pthread_mutex_unlock(&v->lock);
	if (torn)
		s3_volume_fail(v, r, "out of memory for the map");
	return r;
}

/* The whole blocks. DONE, STALLED or negative errno. */
static int append_blocks(struct s3_write *w)
{
	struct s3_volume *v = w->v;
	struct place place;
	int r = S3_LOG_DONE;

	if (w->lba < w->end && !s3_log_has_data(w))
		return append_zero(w);
	while (r == S3_LOG_DONE && w->lba < w->end) {
		r = reserve(w, w->lba, w->end - w->lba, NULL, &place);
		if (r)
			break;
		s3_iov_copy(w->request->iov, (w->lba << v->shift) - w->request->offset,
			place_data(v, &place), (uint64_t)place.count << v->shift);
		w->last_seq = place.batch->seq;
		w->lba += place.count;
		publish(v, &place);
	}
	return r;
}

/* The part of the block of stage that the request covers: from, and how many bytes. */
static uint64_t edge_part(const struct s3_write *w, uint32_t *from, uint32_t *bytes)
{
	const struct s3_volume *v = w->v;
	uint64_t start = w->request->offset, end = start + w->request->length;
	uint64_t lba = (w->stage == S3_STAGE_HEAD ? start : end) >> v->shift;
	uint64_t block = lba << v->shift;

	if (start < block)
		start = block;
	if (end > block + v->block_size)
		end = block + v->block_size;
	*from = (uint32_t)(start - block);
	*bytes = (uint32_t)(end - start);
	return lba;
}

/* What was read of an edge is no longer needed, if anything was. */
static void drop_edge(struct s3_write *w)
{
	if (!w->edge.iov_base)
		return;
	if (w->edge_run.slot != S3_NO_SLOT)
		s3_objects_unpin(w->v->objects, w->edge_run.slot);
	free(w->edge.iov_base);
	w->edge.iov_base = NULL;
}

static void edge_read(struct backend_request *read, int result)
{
	struct s3_write *w = read->opaque;

	if (result == 0) {
		s3_write_run(w);
		return;
	}
	drop_edge(w);
	w->request->done(w->request, result);
	free(w);
}

/* Reads the block of an edge and goes on in s3_write_run(). False: no memory. */
static bool read_edge(struct s3_write *w, uint64_t lba)
{
	struct s3_volume *v = w->v;

	w->edge.iov_base = malloc(v->block_size);
	w->edge.iov_len = v->block_size;
	if (!w->edge.iov_base)
		return false;
	/*
	 * Found once more when it is written: a place in an object is never given to other data,
	 * as long as the object is pinned, which it is until then.
	 */
	s3_map_lookup(v->map, lba, 1, true, &w->edge_run, 1);
	w->read = (struct backend_request){
		.op = BACKEND_READ,
		.iov = &w->edge,
		.iovcnt = 1,
		.offset = lba << v->shift,
		.length = v->block_size,
		.done = edge_read,
		.opaque = w,
	};
	if (w->edge_run.slot == S3_NO_SLOT) {
		/* Not by reading: it might be written and trimmed again meanwhile. */
		memset(w->edge.iov_base, 0, v->block_size);
		edge_read(&w->read, 0);
	} else {
		s3_read(v, &w->read);
	}
	return true;
}

/* Writes the block of an edge that has been read. DONE, STALLED, CHANGED or negative errno. */
static int append_edge(struct s3_write *w)
{
	struct s3_volume *v = w->v;
	uint32_t from, bytes;
	uint64_t lba = edge_part(w, &from, &bytes);
	struct place place;
	int r = reserve(w, lba, 1, &w->edge_run, &place);
	uint8_t *data;

	if (r)
		return r;
	data = place_data(v, &place);
	memcpy(data, w->edge.iov_base, v->block_size);
	if (s3_log_has_data(w))
		s3_iov_copy(w->request->iov, (lba << v->shift) + from - w->request->offset,
			data + from, bytes);
	else
		memset(data + from, 0, bytes);
	w->last_seq = place.batch->seq;
	publish(v, &place);
	return S3_LOG_DONE;
}

void s3_write_finish(struct s3_write *w, int r)
{
	struct backend_request *request = w->request;
	struct s3_volume *v = w->v;
	uint64_t seq = w->last_seq;

	drop_edge(w);
	if (w->on_heap)
		free(w);
	if (r == 0 && request->flags & BACKEND_FUA && seq)
		s3_log_answer_durable(v, seq, request);
	else
		request->done(request, r);
}

/* Waits for memory, behind those that wait already. */
static void stall(struct s3_write *w)
{
	struct s3_volume *v = w->v;
	int r;

	if (!w->on_heap) {
		struct s3_write *copy = malloc(sizeof *copy);

		if (!copy) {
			s3_write_finish(w, -ENOMEM);
			return;
		}
		*copy = *w;
		copy->on_heap = true;
		w = copy;
	}
	atomic_fetch_add(&v->stats.stalls, 1);
	pthread_mutex_lock(&v->lock);
	r = atomic_load(&v->failed);
	if (r == 0) {
		w->next = NULL;
		*v->stalled_tail = w;
		v->stalled_tail = &w->next;
		pthread_cond_signal(&v->sealer_work);
	}
	pthread_mutex_unlock(&v->lock);
	if (r)
		s3_write_finish(w, r);
}

/* One step of an edge: true if s3_write_run() continues at once; *r as append_edge(). */
static bool edge_step(struct s3_write *w, int *r)
{
	uint32_t from, bytes;
	uint64_t lba = edge_part(w, &from, &bytes);

	if (!w->edge.iov_base) {
		if (read_edge(w, lba))
			return false; /* edge_read() has taken over */
		*r = -ENOMEM;
		return true;
	}
	*r = append_edge(w);
	if (*r == S3_LOG_DONE || *r == S3_LOG_CHANGED)
		drop_edge(w);
	return true;
}

void s3_write_run(struct s3_write *w)
{
	const struct s3_volume *v = w->v;
	uint64_t start = w->request->offset, end = start + w->request->length;
	uint64_t mask = v->block_size - 1;
	bool edges = w->request->op != BACKEND_TRIM;
	int r = S3_LOG_DONE;

	while (w->stage != S3_STAGE_END) {
		switch (w->stage) {
		case S3_STAGE_HEAD:
			if (edges && start & mask && !edge_step(w, &r))
				return;
			break;
		case S3_STAGE_MIDDLE:
			r = append_blocks(w);
			break;
		case S3_STAGE_TAIL:
			if (edges && end & mask &&
				(end >> v->shift != start >> v->shift || !(start & mask)) &&
				!edge_step(w, &r))
				return;
			break;
		case S3_STAGE_END:
			break;
		}
		if (r == S3_LOG_CHANGED)
			continue;
		if (r == S3_LOG_STALLED) {
			stall(w);
			return;
		}
		if (r)
			break;
		w->stage++;
	}
	s3_write_finish(w, r);
}

void s3_write(struct s3_volume *v, struct backend_request *request)
{
	uint64_t mask = v->block_size - 1, end = request->offset + request->length;
	struct s3_write w = {
		.v = v,
		.request = request,
		.lba = (request->offset + mask) >> v->shift,
		.end = end >> v->shift,
	};
	struct s3_write *heap;
	int r = v->layout->start(v);

	if (r == 0)
		r = atomic_load(&v->failed);
	if (r == 0 && s3_log_has_data(&w) && is_full(v))
		r = -ENOSPC;
	if (r) {
		request->done(request, r);
		return;
	}
	if (w.end < w.lba)
		w.end = w.lba;
	if (((request->offset | end) & mask) == 0 || request->op == BACKEND_TRIM) {
		w.stage = S3_STAGE_MIDDLE;
		s3_write_run(&w);
		return;
	}
	heap = malloc(sizeof *heap);
	if (!heap) {
		request->done(request, -ENOMEM);
		return;
	}
	*heap = w;
	heap->on_heap = true;
	s3_write_run(heap);
}
