/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reads: each run that the map tells is zeroes, a copy from a batch in memory, or pages of the
 * cache; where there is no room for them, one GET straight into the caller's vector.
 */
#include <errno.h>
#include <stdlib.h>

#include "backends/backend.h"
#include "backends/s3/core/batch.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/read/internal.h"
#include "backends/s3/read/read.h"
#include "backends/s3/state/cache.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "backends/s3/state/readahead.h"

static void read_run(struct s3_plan *plan, struct s3_read *r, const struct s3_run *run)
{
	struct s3_volume *v = r->v;
	struct s3_run rest = *run, part;
	struct s3_object object;
	struct s3_batch *b;

	if (run->slot == S3_NO_SLOT) {
		s3_read_deliver(r, s3_read_position(r, run), NULL, run->count << v->shift);
		return;
	}
	s3_objects_get(v->objects, run->slot, &object);
	s3_fill_read_cached(r, &rest, &object);
	b = rest.count ? s3_log_hold(v, run->slot) : NULL;
	if (b) {
		int none = 0;

		if (s3_log_wait_copied(b, rest.offset, (uint32_t)rest.count))
			s3_read_deliver(r, s3_read_position(r, &rest),
				b->data + ((size_t)rest.offset << v->shift),
				rest.count << v->shift);
		else
			atomic_compare_exchange_strong(&r->result, &none, -EIO);
		s3_log_release(v, b);
		atomic_fetch_add(&v->stats.reads_memory, 1);
		return;
	}
	atomic_fetch_add(&v->stats.served, run->count << v->shift);
	/* Its size is known since it is no longer in memory. */
	if (rest.count)
		s3_objects_get(v->objects, run->slot, &object);
	while (s3_fill_next_in_line(v, &rest, &part)) {
		if (s3_fill_read_part(plan, r, &part, &object))
			continue;
		/* One GET for the rest: a GET for each line costs more than fetching some bytes
		 * twice. */
		part.count += rest.count;
		s3_get_start(r, &part);
		return;
	}
}

/* The runs of some blocks from lba on, pinned; how many. */
static size_t look_up(struct s3_volume *v, uint64_t lba, uint64_t end, struct s3_run *runs)
{
	uint64_t most = S3_READ_PIECE >> v->shift;

	return s3_map_lookup(
		v->map, lba, end - lba < most ? end - lba : most, true, runs, S3_READ_RUNS);
}

static void unpin(struct s3_volume *v, const struct s3_run *runs, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (runs[i].slot != S3_NO_SLOT)
			s3_objects_unpin(v->objects, runs[i].slot);
}

void s3_read(struct s3_volume *v, struct backend_request *request)
{
	uint64_t mask = v->block_size - 1;
	uint64_t lba = request->offset >> v->shift;
	uint64_t end = (request->offset + request->length + mask) >> v->shift;
	struct s3_run runs[S3_READ_RUNS];
	struct s3_plan plan;
	struct s3_read *r;

	if (atomic_load(&v->fenced)) {
		request->done(request, -EIO);
		return;
	}
	r = calloc(1, sizeof *r);
	if (!r) {
		request->done(request, -ENOMEM);
		return;
	}
	r->v = v;
	r->request = request;
	r->pending = 1;
	r->base = lba << v->shift;
	r->iov = request->iov;
	if ((request->offset | request->length) & mask) {
		r->whole.iov_len = (end - lba) << v->shift;
		r->whole.iov_base = malloc(r->whole.iov_len);
		r->iov = &r->whole;
		if (!r->whole.iov_base) {
			free(r);
			request->done(request, -ENOMEM);
			return;
		}
	}
	plan.v = v;
	plan.ahead = false;
	plan.n = 0;
	while (lba < end) {
		size_t n = look_up(v, lba, end, runs);

		for (size_t i = 0; i < n; i++)
			read_run(&plan, r, &runs[i]);
		s3_fill_carry_out(&plan);
		unpin(v, runs, n);
		lba = runs[n - 1].lba + runs[n - 1].count;
	}
	s3_read_end_part(r, 0);
}

/* Claims what is absent of a run. False: there is no room to read more ahead. */
static bool plan_ahead(struct s3_plan *plan, const struct s3_run *run)
{
	struct s3_volume *v = plan->v;
	struct s3_run rest = *run, part;
	struct s3_object object;
	struct s3_batch *b;

	if (run->slot == S3_NO_SLOT)
		return true;
	b = s3_log_hold(v, run->slot);
	if (b) {
		s3_log_release(v, b);
		return true;
	}
	s3_objects_get(v->objects, run->slot, &object);
	while (s3_fill_next_in_line(v, &rest, &part)) {
		struct s3_line_key key = s3_line_key_of(v, &object, &part);
		uint16_t pages = s3_fill_pages_of(v, part.offset, part.count);
		struct s3_claim claim;

		s3_cache_claim(v->cache, &key, pages,
			s3_fill_whole_blocks(v, &object, key.number, pages), NULL, &claim);
		if (!claim.line)
			return false;
		if (claim.claimed)
			plan->wants[plan->n++] = (struct s3_want){
				object, run->slot, key.number, claim.line, claim.claimed};
		else
			s3_cache_release(claim.line);
	}
	return true;
}

/* Is a run the first part of an object's data, which a GET could bring as a whole? */
static bool is_beginning(const struct s3_volume *v, const struct s3_run *run)
{
	struct s3_object object;

	if (run->slot == S3_NO_SLOT || run->offset != 0)
		return false;
	s3_objects_get(v->objects, run->slot, &object);
	return run->count < object.blocks && (uint64_t)object.blocks << v->shift <= S3_AHEAD_STEP;
}

void s3_read_ahead(struct s3_volume *v, uint64_t offset, uint64_t length)
{
	uint64_t size = s3_map_blocks(v->map) << v->shift, lba, start, end;
	struct s3_run runs[S3_READ_RUNS];
	struct s3_ahead ahead;
	struct s3_plan plan;
	bool room = true;

	if (!s3_streams_note(v->streams, offset, length, size, &ahead))
		return;
	plan.v = v;
	plan.ahead = true;
	plan.n = 0;
	lba = start = ahead.from >> v->shift;
	end = ahead.to >> v->shift;
	while (room && lba < end && !atomic_load(&v->fenced) && s3_fill_is_generous(v) &&
		atomic_load(&v->ahead_now) < v->ahead_max) {
		size_t n = look_up(v, lba, end, runs), used = n;

		/* Fetch an object as a whole: the part that begins here waits for the rest. */
		if ((n > 1 || lba > start) && is_beginning(v, &runs[n - 1]))
			room = --used > 0;
		for (size_t i = 0; room && i < used; i++) {
			room = plan_ahead(&plan, &runs[i]);
			if (room)
				lba = runs[i].lba + runs[i].count;
		}
		s3_fill_carry_out(&plan);
		unpin(v, runs, n);
	}
	if (lba < end)
		s3_streams_cut(v->streams, &ahead, lba << v->shift);
}

int s3_read_extents(struct s3_volume *v, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque)
{
	uint64_t mask = v->block_size - 1, end = offset + length;
	uint64_t lba = offset >> v->shift, last = (end + mask) >> v->shift;
	struct s3_run runs[S3_READ_RUNS];

	while (lba < last) {
		size_t n = s3_map_lookup(v->map, lba, last - lba, false, runs, S3_READ_RUNS);

		for (size_t i = 0; i < n; i++) {
			struct backend_extent extent = {
				.offset = runs[i].lba << v->shift,
				.hole = runs[i].slot == S3_NO_SLOT,
				.zero = runs[i].slot == S3_NO_SLOT,
			};
			uint64_t stop = (runs[i].lba + runs[i].count) << v->shift;
			int r;

			if (extent.offset < offset)
				extent.offset = offset;
			extent.length = (stop < end ? stop : end) - extent.offset;
			r = fn(opaque, &extent);
			if (r || flags & BACKEND_REQ_ONE)
				return r;
		}
		lba = runs[n - 1].lba + runs[n - 1].count;
	}
	return 0;
}
