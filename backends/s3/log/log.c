/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The log: writes are copied into the open batch, closed batches are sealed and
 * uploaded, several at once, and the frontier says up to where all of them
 * arrived.
 *
 * A write gets its place in the batch and its entry in the map under the
 * volume's lock, which makes the order of the log that of acknowledgement: who
 * was told of a write before he began another finds them in this order in the
 * log. The bytes are copied outside of the lock; the batch is not sealed, and a
 * reader of the blocks waits, until they are there.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "backends/s3/base/failpoint.h"
#include "backends/s3/base/iov.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/log/writeback.h"

/* A batch that nobody closes is closed after that. */
#define IDLE_NS UINT64_C(1000000000)
/* The longest pause before what the store refused is put again. */
#define PAUSE_LAST (10 * UINT64_C(1000000000))

/* Who waits for a sequence number to be in the store. */
struct s3_waiter {
	struct s3_waiter *next;
	struct backend_request *request;
	uint64_t seq;
	uint64_t change; /* or for this one to be in the write-back log */
};

enum stage { HEAD, MIDDLE, TAIL, END };

/*
 * A write, trim or zero: a part of a block at its head, whole blocks, a part of a block at its
 * tail. Parts are read, changed and written; if the block has been written meanwhile, again.
 */
struct s3_write {
	struct s3_write *next;
	struct s3_volume *v;
	struct backend_request *request;
	enum stage stage;
	uint64_t lba, end;	/* of the whole blocks that are left */
	uint64_t last_seq;	/* of the newest batch that has a part of it */
	bool on_heap;		/* it outlives s3_write() */
	struct iovec edge;	/* the block that head or tail is in; NULL: not read */
	struct s3_run edge_run; /* where it was read from */
	struct backend_request read;
};

/* What reserving a place says besides an error. */
enum { DONE = 0, STALLED = 1, CHANGED = 2 };

static bool has_data(const struct s3_write *w)
{
	return w->request->op == BACKEND_WRITE;
}

/* ---- batches, under the lock ---------------------------------------------------- */

static uint32_t max_records(const struct s3_volume *v)
{
	return v->batch_blocks + S3_EXTRA_RECORDS;
}

static void free_batch(struct s3_volume *v, struct s3_batch *b)
{
	if (b->data)
		munmap(b->data, v->batch_size);
	free(b->header);
	free((void *)b->ready);
	free(b->crcs);
	s3_stored_free(&b->stored);
	free(b);
}

size_t s3_log_header_room(const struct s3_volume *v)
{
	size_t room = s3_header_room(max_records(v), v->batch_blocks, v->shift, v->super.features);

	return (room + S3_ALIGN - 1) / S3_ALIGN * S3_ALIGN;
}

static struct s3_batch *make_batch(struct s3_volume *v)
{
	struct s3_batch *b = calloc(1, sizeof *b);
	size_t room = s3_log_header_room(v);

	if (!b)
		return NULL;
	b->data = mmap(
		NULL, v->batch_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->data == MAP_FAILED)
		b->data = NULL;
	b->header = aligned_alloc(S3_ALIGN, room);
	b->ready = malloc(v->batch_blocks);
	b->crcs = malloc(v->batch_blocks * sizeof *b->crcs);
	b->volume = v;
	if (!b->data || !b->header || !b->ready || !b->crcs ||
		s3_stored_init(v, &b->stored, v->batch_size)) {
		free_batch(v, b);
		return NULL;
	}
	return b;
}

/* Has the next batch no place among those in memory? Then an upload must end first. */
static bool window_full(const struct s3_volume *v)
{
	return v->next_seq - v->frontier >= S3_WINDOW || v->resident[v->next_seq % S3_WINDOW];
}

/* A new open batch. DONE, STALLED: an upload must end first, or negative errno. */
static int open_batch(struct s3_volume *v)
{
	struct s3_batch *b = v->free_batches;
	struct s3_object_header header = {
		.type = S3_TYPE_DATA,
		.block_shift = v->shift,
		.id = v->next_seq,
		.epoch = v->epoch,
		.batch = v->next_seq,
	};

	if (window_full(v))
		return STALLED;
	if (b) {
		v->free_batches = b->next;
	} else {
		if (v->n_batches >= v->max_batches)
			return STALLED;
		b = make_batch(v);
		if (!b)
			return v->n_batches ? STALLED : -ENOMEM;
		v->n_batches++;
	}
	/* Its size is told when it is sealed. */
	b->slot = s3_objects_add(v->objects,
		&(struct s3_object){
			.id = v->next_seq, .birth = v->next_seq, .blocks = v->batch_blocks});
	if (b->slot == S3_NO_SLOT) {
		b->next = v->free_batches;
		v->free_batches = b;
		return -ENOMEM;
	}
	memcpy(header.uuid, v->super.uuid, S3_UUID);
	memcpy(header.instance, v->instance, S3_UUID);
	s3_header_begin(&b->writer, &header, b->header, s3_log_header_room(v));
	memset((void *)b->ready, 0, v->batch_blocks);
	b->next = NULL;
	b->seq = v->next_seq++;
	b->blocks = b->n_records = 0;
	b->last.count = 0;
	b->change = 0;
	b->logged = (struct s3_logged){.records = b->writer.length};
	b->closed = b->wanted = b->relocates = false;
	b->refs = 1;
	b->writers = 1;
	b->began = s3_now();
	v->resident[b->seq % S3_WINDOW] = b;
	v->open = b;
	v->applied = b->seq;
	pthread_cond_signal(&v->sealer_work); /* it now has to look at the clock */
	return DONE;
}

/* The last record cannot be continued any more. */
static void settle_last(struct s3_batch *b)
{
	if (b->last.count)
		s3_header_add(&b->writer, &b->last);
	b->last.count = 0;
}

/* Adds a record; the last one is kept back, since the next may continue it. */
static void add_record(struct s3_batch *b, const struct s3_record *record)
{
	struct s3_record *last = &b->last;

	b->change = ++b->volume->changes;
	if (last->count && last->op == record->op && last->lba + last->count == record->lba &&
		((record->op == S3_RECORD_WRITE && last->offset + last->count == record->offset) ||
			record->op == S3_RECORD_ZERO)) {
		last->count += record->count;
		return;
	}
	settle_last(b);
	*last = *record;
	b->n_records++;
}

/* A writer, or the log itself, is done with a batch. With or without the lock. */
static bool drop_writer(struct s3_batch *b)
{
	return atomic_fetch_sub(&b->writers, 1) == 1;
}

static void close_batch(struct s3_volume *v)
{
	struct s3_batch *b = v->open;

	settle_last(b);
	b->records_end = b->writer.length;
	b->closed = true;
	v->open = NULL;
	v->in_flight++;
	v->unsealed++;
	b->next = NULL;
	*v->sealing_tail = b;
	v->sealing_tail = &b->next;
	if (drop_writer(b))
		pthread_cond_signal(&v->sealer_work);
}

/* May a batch be closed because a flush wants it? If not, the next upload that ends closes it. */
static void close_for_flush(struct s3_volume *v)
{
	if (v->in_flight < v->uploads)
		close_batch(v);
	else
		v->open->wanted = true;
}

/* Sees to an open batch with room. As open_batch(). */
static int make_room(struct s3_volume *v, bool data, uint32_t records)
{
	struct s3_batch *b = v->open;
	int r = atomic_load(&v->failed);

	if (r)
		return r;
	if (v->barrier)
		return STALLED;
	if (b &&
		((data && b->blocks == v->batch_blocks) || b->n_records + records > max_records(v)))
		close_batch(v);
	return v->open ? DONE : open_batch(v);
}

static void release(struct s3_volume *v, struct s3_batch *b)
{
	if (--b->refs)
		return;
	b->next = v->free_batches;
	v->free_batches = b;
	if (v->stalled)
		pthread_cond_signal(&v->sealer_work);
	pthread_cond_broadcast(&v->quiet);
}

struct s3_batch *s3_log_hold(struct s3_volume *v, uint32_t slot)
{
	struct s3_object object;
	struct s3_batch *b;

	s3_objects_get(v->objects, slot, &object);
	if (object.id & S3_GC || object.origin)
		return NULL;
	pthread_mutex_lock(&v->lock);
	b = v->resident[object.id % S3_WINDOW];
	if (b && b->seq == object.id)
		b->refs++;
	else
		b = NULL;
	pthread_mutex_unlock(&v->lock);
	return b;
}

void s3_log_release(struct s3_volume *v, struct s3_batch *b)
{
	pthread_mutex_lock(&v->lock);
	release(v, b);
	pthread_mutex_unlock(&v->lock);
}

/* A copy takes microseconds, unless its thread is not running. */
bool s3_log_wait_copied(struct s3_batch *b, uint32_t first, uint32_t count)
{
	bool all = true;

	for (uint32_t i = first; i < first + count; i++) {
		enum s3_copied copied;

		while (!(copied = atomic_load_explicit(&b->ready[i], memory_order_acquire)))
			sched_yield();
		all &= copied == S3_COPIED;
	}
	return all;
}

void s3_batches_free(struct s3_volume *v)
{
	for (unsigned i = 0; i < S3_WINDOW; i++) {
		if (v->resident[i])
			free_batch(v, v->resident[i]);
		if (v->kept_batches[i])
			free_batch(v, v->kept_batches[i]);
	}
	while (v->free_batches) {
		struct s3_batch *b = v->free_batches;

		v->free_batches = b->next;
		free_batch(v, b);
	}
}

/* ---- flush ---------------------------------------------------------------------- */

/* Answers request when everything up to seq (0: all there is) is durable. */
static void answer_durable(struct s3_volume *v, uint64_t seq, struct backend_request *request)
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
		close_for_flush(v);
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
		answer_durable(v, 0, request);
}

/* Takes the waiters up to seq, or up to change, out of the list, under the lock. */
static struct s3_waiter *take_waiters(struct s3_volume *v, uint64_t seq, uint64_t change)
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

static void answer_waiters(struct s3_waiter *w, int r)
{
	while (w) {
		struct s3_waiter *next = w->next;

		w->request->done(w->request, r);
		free(w);
		w = next;
	}
}

/* ---- writes --------------------------------------------------------------------- */

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

/*
 * A place for up to count blocks of data at lba. With expect only if the block still
 * is where that says. DONE, STALLED, CHANGED or negative errno.
 */
static int reserve(struct s3_volume *v, uint64_t lba, uint64_t count, const struct s3_run *expect,
	bool queued, struct place *place)
{
	struct s3_batch *b;
	struct s3_run now;
	int r;

	pthread_mutex_lock(&v->lock);
	r = v->stalled && !queued ? STALLED : make_room(v, true, 1);
	if (r == DONE && !inside(v, lba + count))
		r = -ENOSPC;
	if (r == DONE && expect) {
		s3_map_lookup(v->map, lba, 1, false, &now, 1);
		if (now.slot != expect->slot || now.offset != expect->offset)
			r = CHANGED;
	}
	if (r == DONE) {
		b = v->open;
		place->batch = b;
		place->first = b->blocks;
		place->count = v->batch_blocks - b->blocks;
		if (place->count > count)
			place->count = (uint32_t)count;
		r = s3_map_update(v->map, b->seq, lba, place->count, b->slot, place->first);
		/* Also if the map has got but a part of them: it is not to find others there. */
		b->blocks += place->count;
		if (r)
			set_copied(place, S3_COPIED_NEVER);
	}
	if (r == DONE) {
		add_record(b, &(struct s3_record){.op = S3_RECORD_WRITE,
				      .lba = lba,
				      .count = place->count,
				      .offset = place->first});
		atomic_fetch_add(&b->writers, 1);
	}
	pthread_mutex_unlock(&v->lock);
	if (r == -ENOMEM)
		s3_volume_fail(v, r, "out of memory for the map");
	return r;
}

/* The bytes of a place are there. */
static void publish(struct s3_volume *v, const struct place *place)
{
	struct s3_batch *b = place->batch;

	set_copied(place, S3_COPIED);
	if (!drop_writer(b))
		return;
	/* It has been closed meanwhile. */
	pthread_mutex_lock(&v->lock);
	pthread_cond_signal(&v->sealer_work);
	pthread_mutex_unlock(&v->lock);
}

static uint8_t *place_data(const struct s3_volume *v, const struct place *place)
{
	return place->batch->data + ((size_t)place->first << v->shift);
}

/* A record that makes count blocks read as zeroes. */
static int append_zero(struct s3_write *w)
{
	struct s3_volume *v = w->v;
	int r;

	pthread_mutex_lock(&v->lock);
	r = v->stalled && !w->on_heap ? STALLED : atomic_load(&v->failed);
	if (r == DONE && !inside(v, w->end))
		r = -ENOSPC;
	/* A new file system trims what is empty. */
	if (r == DONE && s3_map_is_hole(v->map, w->lba, w->end - w->lba)) {
		w->last_seq = v->applied;
		pthread_mutex_unlock(&v->lock);
		w->lba = w->end;
		return DONE;
	}
	if (r == DONE)
		r = make_room(v, false, 1);
	if (r == DONE) {
		struct s3_batch *b = v->open;

		r = s3_map_punch(v->map, b->seq, w->lba, w->end - w->lba);
		add_record(
			b, &(struct s3_record){
				   .op = S3_RECORD_ZERO, .lba = w->lba, .count = w->end - w->lba});
		w->last_seq = b->seq;
		w->lba = w->end;
	}
	pthread_mutex_unlock(&v->lock);
	if (r == -ENOMEM)
		s3_volume_fail(v, r, "out of memory for the map");
	return r;
}

/* The whole blocks. DONE, STALLED or negative errno. */
static int append_blocks(struct s3_write *w)
{
	struct s3_volume *v = w->v;
	struct place place;
	int r = DONE;

	if (w->lba < w->end && !has_data(w))
		return append_zero(w);
	while (r == DONE && w->lba < w->end) {
		r = reserve(v, w->lba, w->end - w->lba, NULL, w->on_heap, &place);
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

static void run(struct s3_write *w);

/* The part of the block of stage that the request covers: from, and how many bytes. */
static uint64_t edge_part(const struct s3_write *w, uint32_t *from, uint32_t *bytes)
{
	const struct s3_volume *v = w->v;
	uint64_t start = w->request->offset, end = start + w->request->length;
	uint64_t lba = (w->stage == HEAD ? start : end) >> v->shift;
	uint64_t block = lba << v->shift;

	if (start < block)
		start = block;
	if (end > block + v->block_size)
		end = block + v->block_size;
	*from = (uint32_t)(start - block);
	*bytes = (uint32_t)(end - start);
	return lba;
}

/* What was read of an edge is not needed any more, if anything was. */
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
		run(w);
		return;
	}
	drop_edge(w);
	w->request->done(w->request, result);
	free(w);
}

/* Reads the block of an edge and goes on in run(). False: no memory. */
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
	int r = reserve(v, lba, 1, &w->edge_run, w->on_heap, &place);
	uint8_t *data;

	if (r)
		return r;
	data = place_data(v, &place);
	memcpy(data, w->edge.iov_base, v->block_size);
	if (has_data(w))
		s3_iov_copy(w->request->iov, (lba << v->shift) + from - w->request->offset,
			data + from, bytes);
	else
		memset(data + from, 0, bytes);
	w->last_seq = place.batch->seq;
	publish(v, &place);
	return DONE;
}

static void finish(struct s3_write *w, int r)
{
	struct backend_request *request = w->request;
	struct s3_volume *v = w->v;
	uint64_t seq = w->last_seq;

	drop_edge(w);
	if (w->on_heap)
		free(w);
	if (r == 0 && request->flags & BACKEND_FUA && seq)
		answer_durable(v, seq, request);
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
			finish(w, -ENOMEM);
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
		finish(w, r);
}

/* One step of an edge: answers whether run() is to go on at once; *r as append_edge(). */
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
	if (*r == DONE || *r == CHANGED)
		drop_edge(w);
	return true;
}

/* Goes on with a write until it is done or has to wait. */
static void run(struct s3_write *w)
{
	const struct s3_volume *v = w->v;
	uint64_t start = w->request->offset, end = start + w->request->length;
	uint64_t mask = v->block_size - 1;
	bool edges = w->request->op != BACKEND_TRIM;
	int r = DONE;

	while (w->stage != END) {
		switch (w->stage) {
		case HEAD:
			if (edges && start & mask && !edge_step(w, &r))
				return;
			break;
		case MIDDLE:
			r = append_blocks(w);
			break;
		case TAIL:
			if (edges && end & mask &&
				(end >> v->shift != start >> v->shift || !(start & mask)) &&
				!edge_step(w, &r))
				return;
			break;
		case END:
			break;
		}
		if (r == CHANGED)
			continue;
		if (r == STALLED) {
			stall(w);
			return;
		}
		if (r)
			break;
		w->stage++;
	}
	finish(w, r);
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
	/* What space there is is for those that free some. */
	if (r == 0 && has_data(&w) && atomic_load(&v->refused) == -ENOSPC)
		r = -ENOSPC;
	if (r) {
		request->done(request, r);
		return;
	}
	if (w.end < w.lba)
		w.end = w.lba;
	if (((request->offset | end) & mask) == 0 || request->op == BACKEND_TRIM) {
		w.stage = MIDDLE;
		run(&w);
		return;
	}
	heap = malloc(sizeof *heap);
	if (!heap) {
		request->done(request, -ENOMEM);
		return;
	}
	*heap = w;
	heap->on_heap = true;
	run(heap);
}

/* ---- upload --------------------------------------------------------------------- */

/*
 * A batch is in the store: moves the frontier and answers those who waited. What was written may
 * soon be read: it is in memory until it is in the cache.
 */
static void uploaded(struct s3_batch *b)
{
	struct s3_volume *v = b->volume;
	struct s3_waiter *ready;
	int r;

	s3_failpoint(S3_FAIL_LOG_PUT_AFTER);
	if (b->relocates)
		s3_failpoint(S3_FAIL_RELOCATE_LOG_AFTER);
	s3_crc_cache_add(v->crcs, &b->sealed);
	pthread_mutex_lock(&v->lock);
	v->uploaded[b->seq % S3_WINDOW] = true;
	v->in_flight--;
	v->blocked = false;
	/* Of a full store this shows little: s3_space_tend() sees to it. */
	if (v->refused && v->refused != -ENOSPC && !v->refused_batches)
		v->refused = 0;
	if (v->writeback) {
		/* Recovery does not see it as long as an earlier one is missing. */
		v->kept_batches[b->seq % S3_WINDOW] = b;
		b->refs++;
	}
	while (v->uploaded[(v->frontier + 1) % S3_WINDOW]) {
		struct s3_batch **kept;

		v->frontier++;
		v->uploaded[v->frontier % S3_WINDOW] = false;
		kept = &v->kept_batches[v->frontier % S3_WINDOW];
		if (*kept)
			release(v, *kept);
		*kept = NULL;
	}
	if (v->writeback)
		s3_writeback_advance(v);
	/* After another writer's fence nothing may be acknowledged, even if it arrived. */
	r = atomic_load(&v->failed);
	ready = r ? NULL : take_waiters(v, v->frontier, 0);
	if (v->open && v->open->wanted && v->in_flight < v->uploads)
		close_batch(v);
	pthread_cond_signal(&v->sealer_work);
	pthread_cond_signal(&v->keeper_work);
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
	answer_waiters(ready, 0);
	s3_cache_insert(v->cache, 0, b->seq, b->data, (size_t)b->blocks << v->shift);
	pthread_mutex_lock(&v->lock);
	v->resident[b->seq % S3_WINDOW] = NULL;
	release(v, b);
	/* Its place is free even if somebody still reads it. */
	if (v->stalled)
		pthread_cond_signal(&v->sealer_work);
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
}

/* Does nobody have to wait for the store, since it refuses what the log puts? Under the lock. */
static bool is_blocked(const struct s3_volume *v)
{
	return v->blocked && !v->keeper_stopping;
}

/* The flushes that wait for seq or something newer, out of the list, under the lock. */
static struct s3_waiter *take_waiters_from(struct s3_volume *v, uint64_t seq)
{
	struct s3_waiter *taken = NULL, **link = &v->waiters;

	while (*link) {
		struct s3_waiter *w = *link;

		if (w->seq < seq) {
			link = &w->next;
			continue;
		}
		*link = w->next;
		w->next = taken;
		taken = w;
	}
	return taken;
}

/* The writes with data that wait for memory, out of the queue, under the lock. */
static struct s3_write *take_stalled_writes(struct s3_volume *v)
{
	struct s3_write *taken = NULL, **link = &v->stalled;

	while (*link) {
		struct s3_write *w = *link;

		if (!has_data(w)) {
			link = &w->next;
			continue;
		}
		*link = w->next;
		w->next = taken;
		taken = w;
	}
	v->stalled_tail = link;
	return taken;
}

/*
 * The store does not take a batch: now, which may change. It stays in memory and is put again; a
 * flush is told, unless it is in the write-back log. r: negative errno; why: one line.
 */
static void refuse(struct s3_batch *b, int r, const char *why)
{
	struct s3_volume *v = b->volume;
	struct s3_waiter *waiters = NULL;
	struct s3_write *writes = NULL;
	bool tell;

	pthread_mutex_lock(&v->lock);
	b->next = v->refused_batches;
	v->refused_batches = b;
	tell = s3_space_refused(v, r);
	v->retry_ns = s3_now() + v->refused_pause;
	if (r != -ENOSPC || !s3_space_ask(v)) {
		v->blocked = true;
		if (!v->writeback)
			waiters = take_waiters_from(v, b->seq);
		if (r == -ENOSPC)
			writes = take_stalled_writes(v);
	}
	pthread_cond_broadcast(&v->sealer_work);
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
	if (tell)
		s3_space_tell(v, r, why);
	answer_waiters(waiters, r == -ENOSPC ? r : -EIO);
	while (writes) {
		struct s3_write *next = writes->next;

		finish(writes, -ENOSPC);
		writes = next;
	}
}

static void put_done(struct s3_request *req);
static void look(struct s3_batch *b, size_t length);

static void put_batch(struct s3_batch *b)
{
	struct s3_volume *v = b->volume;
	int r;

	b->request = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_LOG,
		.key = b->key,
		.iov = b->iov,
		.iovcnt = b->iov[1].iov_len ? 2 : 1,
		.if_none_match = v->conditional && !b->stale[0],
		.if_match = b->stale[0] ? b->stale : NULL,
		.done = put_done,
		.opaque = b,
	};
	r = s3_store_submit(v->store, &b->request);
	if (r)
		refuse(b, r, "cannot upload: out of memory or threads");
}

/* Puts what the store has refused once more. Under the lock, which it lets go. */
static void put_refused(struct s3_volume *v)
{
	struct s3_batch *b = v->refused_batches;

	v->refused_batches = NULL;
	v->refused_pause = v->refused_pause < PAUSE_LAST ? 2 * v->refused_pause : PAUSE_LAST;
	pthread_mutex_unlock(&v->lock);
	while (b) {
		struct s3_batch *next = b->next;

		if (atomic_load(&v->failed) == 0)
			put_batch(b);
		b = next;
	}
	pthread_mutex_lock(&v->lock);
}

/* A request about a batch has ended in an error. */
static void not_put(struct s3_batch *b, const struct s3_request *req)
{
	if (req->result == -ESHUTDOWN)
		s3_volume_fail(b->volume, -EIO, "closed before everything was uploaded");
	else if (req->result == -EIO && req->deadline)
		s3_volume_fail(b->volume, -EIO, "%s", req->message);
	else
		refuse(b, req->result, req->message);
}

/* What is there in place of a batch? */
static void looked(struct s3_request *req)
{
	struct s3_batch *b = req->opaque;
	struct s3_volume *v = b->volume;
	struct s3_object_header there;
	enum s3_check check;
	int r = req->result;
	uint64_t bytes = req->bytes;

	b->stale[0] = 0;
	if (r == -ENOENT) {
		free(b->probe.iov_base);
		put_batch(b);
		return;
	}
	if (r) {
		free(b->probe.iov_base);
		not_put(b, req);
		return;
	}
	check = s3_header_decode(b->probe.iov_base, bytes, v->super.uuid, &there);
	if (check == S3_SHORT && bytes == b->probe.iov_len && there.header_bytes > bytes) {
		/* Its writer had larger batches. */
		free(b->probe.iov_base);
		look(b, there.header_bytes);
		return;
	}
	if (check == S3_GOOD && there.epoch == v->epoch && there.batch == b->seq &&
		memcmp(there.instance, v->instance, S3_UUID) == 0) {
		/* An attempt whose reply was lost had arrived. */
		free(b->probe.iov_base);
		uploaded(b);
		return;
	}
	if (check == S3_GOOD && there.epoch < v->epoch && req->etag[0]) {
		/*
		 * Left by a writer that our fence had stopped: nobody ever counted on it. It is
		 * replaced as it is: a deletion might meet the fence of the next writer, who has
		 * made room for it here meanwhile.
		 */
		free(b->probe.iov_base);
		memcpy(b->stale, req->etag, sizeof b->stale);
		put_batch(b);
		return;
	}
	free(b->probe.iov_base);
	s3_volume_fence(v, check == S3_GOOD ? "another writer took the volume over"
					    : "a foreign object stands in the log");
}

/* Gets so many bytes of what is there in place of a batch. */
static void look(struct s3_batch *b, size_t length)
{
	struct s3_volume *v = b->volume;
	int r;

	b->probe = (struct iovec){malloc(length), length};
	if (!b->probe.iov_base) {
		refuse(b, -ENOMEM, "cannot upload: out of memory");
		return;
	}
	b->request = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_LOG,
		.key = b->key,
		.iov = &b->probe,
		.iovcnt = 1,
		.allow_short = true,
		.done = looked,
		.opaque = b,
	};
	r = s3_store_submit(v->store, &b->request);
	if (r) {
		free(b->probe.iov_base);
		refuse(b, r, "cannot upload: out of memory or threads");
	}
}

static void put_done(struct s3_request *req)
{
	struct s3_batch *b = req->opaque;
	struct s3_volume *v = b->volume;
	int r = req->result;

	if (r == 0) {
		uploaded(b);
		return;
	}
	/* What was to be replaced is gone, or another one by now: look again. */
	if (r != -EEXIST && !(r == -ENOENT && b->stale[0])) {
		not_put(b, req);
		return;
	}
	look(b, s3_log_header_room(v));
}

/* ---- the sealers' threads --------------------------------------------------------- */

/* Brings a batch that nobody changes any more into the form in which it is stored. */
static int complete(struct s3_volume *v, struct s3_batch *b)
{
	struct timespec now;

	if (!v->transforms)
		for (uint32_t i = 0; i < b->blocks; i++)
			b->crcs[i] = s3_crc32c(0, b->data + ((size_t)i << v->shift), v->block_size);
	clock_gettime(CLOCK_REALTIME, &now);
	b->writer.header.blocks = b->blocks;
	b->writer.header.time = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
	return s3_seal(v, &b->writer, b->data, b->crcs, &b->stored, b->iov, &b->sealed);
}

/* Uploads a batch. Several threads may be at it; the summary gets the batches in their order. */
static void seal(struct s3_volume *v, struct s3_batch *b)
{
	uint64_t bytes = 0;
	int r = complete(v, b);

	if (r) {
		s3_volume_fail(v, r == -ENOMEM ? r : -EIO, "object %llu cannot be built: %s",
			(unsigned long long)b->seq, strerror(-r));
	} else {
		bytes = b->sealed.header_bytes + b->sealed.data_bytes;
		s3_volume_object_key(v, b->seq, b->key);
		s3_objects_size(
			v->objects, b->slot, (uint32_t)bytes, b->sealed.header_bytes, b->blocks);
		s3_objects_seal(v->objects, b->slot, b->seq);
	}
	pthread_mutex_lock(&v->lock);
	while (v->sealed + 1 != b->seq)
		pthread_cond_wait(&v->quiet, &v->lock);
	v->sealed = b->seq;
	if (r == 0)
		s3_summary_add(&v->summary, &b->sealed); /* if not, the next root is a full one */
	v->log_bytes_since_full += bytes;
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
	if (r)
		return;
	atomic_fetch_add(&v->stats.log_objects, 1);
	atomic_fetch_add(&v->stats.log_bytes, bytes);
	if (atomic_load(&v->failed) == 0) {
		s3_failpoint(S3_FAIL_LOG_PUT_BEFORE);
		put_batch(b);
	}
}

/* The oldest closed batch, once all have copied what they write into it. Under the lock. */
static struct s3_batch *next_to_seal(struct s3_volume *v)
{
	struct s3_batch *b = v->sealing;

	if (!b || atomic_load(&b->writers))
		return NULL;
	v->sealing = b->next;
	if (!v->sealing)
		v->sealing_tail = &v->sealing;
	return b;
}

/* Could a write that waits get its memory now? Under the lock. */
static bool can_resume(struct s3_volume *v)
{
	if (!v->stalled || v->barrier)
		return false;
	if (atomic_load(&v->failed) || v->open)
		return true;
	return !window_full(v) && (v->free_batches || v->n_batches < v->max_batches);
}

/* The writes that wait, in order, until one has to wait again. */
static void resume_stalled(struct s3_volume *v)
{
	struct s3_write *w = v->stalled;

	v->stalled = w->next;
	if (!v->stalled)
		v->stalled_tail = &v->stalled;
	pthread_mutex_unlock(&v->lock);
	run(w);
	pthread_mutex_lock(&v->lock);
}

/* Waits for work, or until the open batch has been idle for long. Under the lock. */
static void wait_for_work(struct s3_volume *v)
{
	struct timespec until;
	uint64_t due = UINT64_MAX;

	/* One that is too old waits for an upload to end. */
	if (v->open && s3_now() < v->open->began + IDLE_NS)
		due = v->open->began + IDLE_NS;
	if (v->refused_batches && v->retry_ns < due)
		due = v->retry_ns;
	if (due == UINT64_MAX) {
		pthread_cond_wait(&v->sealer_work, &v->lock);
		return;
	}
	until.tv_sec = (time_t)(due / 1000000000);
	until.tv_nsec = (long)(due % 1000000000);
	pthread_cond_timedwait(&v->sealer_work, &v->lock, &until);
}

void *s3_sealer(void *volume)
{
	struct s3_volume *v = volume;
	struct s3_batch *b;

	pthread_mutex_lock(&v->lock);
	while (!v->stopping) {
		if ((b = next_to_seal(v))) {
			b->writer.header.frontier = v->frontier;
			b->writer.header.checkpoint = v->checkpoint;
			pthread_mutex_unlock(&v->lock);
			seal(v, b);
			pthread_mutex_lock(&v->lock);
			v->unsealed--;
			pthread_cond_broadcast(&v->quiet);
		} else if (can_resume(v)) {
			resume_stalled(v);
		} else if (v->open && !v->barrier && s3_now() >= v->open->began + IDLE_NS &&
			   v->in_flight < v->uploads) {
			close_batch(v);
		} else if (v->refused_batches && s3_now() >= v->retry_ns) {
			put_refused(v);
		} else {
			wait_for_work(v);
		}
	}
	pthread_mutex_unlock(&v->lock);
	return NULL;
}

/* ---- for the others ---------------------------------------------------------------- */

void s3_log_give_up(struct s3_volume *v)
{
	struct s3_waiter *waiters;
	struct s3_write *stalled;
	int r = atomic_load(&v->failed);

	pthread_mutex_lock(&v->lock);
	waiters = take_waiters(v, UINT64_MAX, 0);
	stalled = v->stalled;
	v->stalled = NULL;
	v->stalled_tail = &v->stalled;
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
	answer_waiters(waiters, r);
	while (stalled) {
		struct s3_write *next = stalled->next;

		finish(stalled, r);
		stalled = next;
	}
}

void s3_log_lag(struct s3_volume *v, struct s3_lag *lag)
{
	*lag = (struct s3_lag){0};
	pthread_mutex_lock(&v->lock);
	lag->objects = v->applied - v->frontier;
	for (uint64_t seq = v->frontier + 1; seq <= v->applied; seq++) {
		const struct s3_batch *b = v->resident[seq % S3_WINDOW];

		if (!b || v->uploaded[seq % S3_WINDOW])
			continue; /* an earlier one is not */
		lag->bytes += (uint64_t)b->blocks << v->shift;
		if (!lag->oldest || b->began < lag->oldest)
			lag->oldest = b->began;
	}
	pthread_mutex_unlock(&v->lock);
}

int s3_log_wait(struct s3_volume *v, uint64_t seq)
{
	int r;

	pthread_mutex_lock(&v->lock);
	if (v->open && v->open->seq <= seq)
		close_for_flush(v);
	while ((r = atomic_load(&v->failed)) == 0 && v->frontier < seq) {
		if (is_blocked(v)) {
			r = v->refused;
			break;
		}
		pthread_cond_wait(&v->quiet, &v->lock);
	}
	pthread_mutex_unlock(&v->lock);
	return r;
}

int s3_log_drain(struct s3_volume *v)
{
	uint64_t seq;

	pthread_mutex_lock(&v->lock);
	seq = v->applied;
	pthread_mutex_unlock(&v->lock);
	return s3_log_wait(v, seq);
}

/* Adds a record that the next one cannot continue. */
static void add_alone(struct s3_batch *b, const struct s3_record *record)
{
	settle_last(b);
	s3_header_add(&b->writer, record);
	b->n_records++;
}

/* As make_room() for records alone, but waits for it; under the lock. 0 or negative errno. */
static int wait_for_room(struct s3_volume *v, uint32_t records)
{
	int r;

	while ((r = make_room(v, false, records)) == STALLED) {
		if (is_blocked(v))
			return v->refused;
		pthread_cond_wait(&v->quiet, &v->lock);
	}
	return r;
}

int s3_log_mark(struct s3_volume *v, const struct s3_record *record)
{
	int r;

	pthread_mutex_lock(&v->lock);
	r = wait_for_room(v, 1);
	if (r == 0 && record)
		add_alone(v->open, record);
	pthread_mutex_unlock(&v->lock);
	return r;
}

uint64_t s3_log_pause(struct s3_volume *v)
{
	uint64_t seq;

	pthread_mutex_lock(&v->lock);
	v->barrier = true;
	if (v->open)
		close_batch(v);
	while (v->unsealed)
		pthread_cond_wait(&v->quiet, &v->lock);
	seq = v->applied;
	pthread_mutex_unlock(&v->lock);
	return seq;
}

void s3_log_resume(struct s3_volume *v)
{
	pthread_mutex_lock(&v->lock);
	v->barrier = false;
	pthread_cond_signal(&v->sealer_work);
	pthread_mutex_unlock(&v->lock);
}

int s3_log_relocate(struct s3_volume *v, const struct s3_object *object,
	const struct s3_record *records, size_t n)
{
	struct s3_object copy = *object;
	struct s3_batch *b = NULL;
	uint32_t slot = S3_NO_SLOT;
	uint64_t moved;
	int r;

	pthread_mutex_lock(&v->lock);
	r = wait_for_room(v, (uint32_t)n + 1);
	if (r == 0) {
		b = v->open;
		copy.birth = b->seq;
		slot = s3_objects_add(v->objects, &copy);
		if (slot == S3_NO_SLOT)
			r = -ENOMEM;
	}
	if (r == 0)
		add_alone(b, &(struct s3_record){.op = S3_RECORD_GC_OBJECT,
				     .object = object->id,
				     .bytes = object->bytes,
				     .blocks = object->blocks,
				     .header_bytes = object->header_bytes});
	for (size_t i = 0; r == 0 && i < n; i++) {
		const struct s3_record *record = &records[i];
		uint32_t source = s3_objects_find(v->objects, 0, record->source);

		r = s3_map_relocate(v->map, b->seq, record->lba, record->count, source,
			record->source_offset, slot, record->offset, &moved);
		if (r == 0 && moved) {
			s3_header_add(&b->writer, record);
			b->n_records++;
			b->relocates = true;
		}
	}
	if (r == 0)
		s3_objects_seal(v->objects, slot, b->seq);
	pthread_mutex_unlock(&v->lock);
	if (r == -ENOMEM)
		s3_volume_fail(v, r, "out of memory for the map");
	return r;
}

/* ---- for the write-back log ---------------------------------------------------------- */

bool s3_log_take(struct s3_volume *v, struct s3_part *part)
{
	for (uint64_t seq = v->frontier + 1; seq <= v->applied; seq++) {
		struct s3_batch *b = v->kept_batches[seq % S3_WINDOW];

		if (!b)
			b = v->resident[seq % S3_WINDOW];
		if (!b->closed)
			settle_last(b);
		*part = (struct s3_part){
			.batch = b,
			.records = {.id = seq,
				.frontier = v->frontier,
				.records = b->header,
				.records_bytes = b->closed ? b->records_end : b->writer.length},
			.position = b->logged.records,
			.first = b->logged.blocks,
			.count = b->blocks - b->logged.blocks,
			.change = b->change,
		};
		if (part->position < part->records.records_bytes) {
			b->refs++;
			return true;
		}
	}
	return false;
}

void s3_log_put(struct s3_volume *v, struct s3_part *part, bool logged)
{
	if (logged)
		part->batch->logged = (struct s3_logged){.records = part->records.records_bytes,
			.blocks = part->first + part->count};
	release(v, part->batch);
}

void s3_log_push(struct s3_volume *v)
{
	if (v->open)
		close_for_flush(v);
}

void s3_log_answer(struct s3_volume *v, uint64_t change)
{
	struct s3_waiter *ready = NULL;

	pthread_mutex_lock(&v->lock);
	if (atomic_load(&v->failed) == 0)
		ready = take_waiters(v, v->frontier, change);
	pthread_mutex_unlock(&v->lock);
	answer_waiters(ready, 0);
}
