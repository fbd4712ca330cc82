/* SPDX-License-Identifier: BSD-3-Clause */
/* Garbage: what is alive in sparse and small objects moves into new ones. */
#include <errno.h>
#include <stdlib.h>

#include "backends/backend.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/keeper/compaction.h"
#include "backends/s3/keeper/internal.h"
#include "backends/s3/state/object_table.h"

/* Objects that cannot be read are left alone that long. */
#define PASSED_NS UINT64_C(600000000000)
/* Compaction begins when less than this part of what is stored is used, in percent. */
#define GC_USED 70
/* Small objects that may be there besides one for each full object. */
#define GC_SMALL 64

/* Puts back those that are not yet in the store. How many there are left. */
static size_t keep_stored(struct s3_volume *v, uint32_t *slots, size_t n)
{
	uint64_t frontier;
	size_t kept = 0;

	pthread_mutex_lock(&v->lock);
	frontier = v->frontier;
	pthread_mutex_unlock(&v->lock);
	for (size_t i = 0; i < n; i++) {
		struct s3_object object;

		s3_objects_get(v->objects, slots[i], &object);
		if (object.id & S3_GC || object.id <= frontier)
			slots[kept++] = slots[i];
		else
			s3_objects_put_back(v->objects, slots[i]);
	}
	return kept;
}

/* A single object that is only small becomes another one that is. */
static bool worth_moving(struct s3_volume *v, const uint32_t *slots, size_t n, unsigned percent)
{
	struct s3_object object;

	if (n != 1)
		return n > 0;
	s3_objects_get(v->objects, slots[0], &object);
	return (uint64_t)object.live * 100 < (uint64_t)object.blocks * percent;
}

/* ---- sources that cannot be read ----------------------------------------------------------- */

/* An object that is left alone for a while, taken out of the table's lists. */
struct s3_passed {
	uint32_t slot;
	uint64_t id;
	uint64_t until; /* ns, monotonic; 0: it may be tried */
};

/* Leaves a source alone that could not be read, which is reported once. False: put it back. */
static bool pass_over(struct s3_volume *v, const struct s3_gc_source *s, int r)
{
	struct s3_passed *passed;
	bool damaged = r == -EIO && !s->req.result;
	size_t i = 0;

	/* A store out of reach says nothing about the object. */
	if (r == -ENOMEM || r == -ESHUTDOWN || s3_check_not_fenced(v))
		return false;
	while (i < v->n_passed && v->passed[i].id != s->object.id)
		i++;
	if (i == v->n_passed) {
		passed = realloc(v->passed, (v->n_passed + 1) * sizeof *passed);
		if (!passed)
			return false;
		v->passed = passed;
		v->passed[v->n_passed++] = (struct s3_passed){.id = s->object.id};
		/* What was not answered says nothing about the object either. */
		backend_error(&v->host, "volume=%s: %s: %s; it is not compacted%s", v->name, s->key,
			damaged ? "is damaged" : s->req.message,
			s->req.result == -EIO ? " for ten minutes"
					      : "; run a check, and restore the volume from a "
						"backup if it is damaged");
	}
	v->passed[i].slot = s->slot;
	v->passed[i].until = s3_now() + PASSED_NS;
	return true;
}

void s3_gc_readmit(struct s3_volume *v, bool all)
{
	for (size_t i = 0; i < v->n_passed; i++) {
		struct s3_passed *p = &v->passed[i];

		if (p->until && (all || s3_now() >= p->until)) {
			p->until = 0;
			s3_objects_put_back(v->objects, p->slot);
		}
	}
}

/* ---- a round ------------------------------------------------------------------------------- */

static void init_flight(struct s3_gc_flight *f)
{
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->landed, NULL);
}

static void end_flight(struct s3_gc_flight *f)
{
	pthread_cond_destroy(&f->landed);
	pthread_mutex_destroy(&f->lock);
}

/* Reads all sources at once and moves what is alive of those that are as they should be. */
static int compact_sources(struct s3_volume *v, struct s3_gc_round *round, bool passed[])
{
	int r = 0, fenced;

	for (size_t i = 0; r == 0 && i < round->n_sources; i++) {
		struct s3_gc_source *s = &round->sources[i];

		s->length = s->object.bytes;
		r = s3_gc_begin_read(v, round, s, &s->raw, 0, s->length);
	}
	/* Meanwhile: nothing has been changed yet. */
	fenced = s3_check_not_fenced(v);
	s3_gc_wait_all(&round->reads);
	r = fenced ? fenced : r;
	for (size_t i = 0; r == 0 && i < round->n_sources; i++) {
		struct s3_gc_source *s = &round->sources[i];
		int read = s->req.result ? s->req.result : s3_gc_check_source(v, s);

		s->to = s->header.blocks;
		if (read == 0)
			read = s3_gc_use_source(v, round, (uint32_t)i);
		if (read) {
			passed[i] = pass_over(v, s, read);
			r = passed[i] ? 0 : read;
		}
	}
	return r ? r : s3_gc_move_pieces(v, round);
}

static int read_part(struct s3_volume *v, struct s3_gc_round *round, struct s3_gc_source *s,
	uint8_t **to, uint64_t offset, size_t length)
{
	int r = s3_gc_begin_read(v, round, s, to, offset, length);

	s3_gc_wait_all(&round->reads);
	return r ? r : s->req.result;
}

/* Moves an object that does not fit into the available memory, window by window. */
static int compact_large(struct s3_volume *v, struct s3_gc_round *round, bool *passed)
{
	struct s3_gc_source *s = &round->sources[0];
	uint64_t bytes = round->memory / 2 / (v->transforms ? 3 : 2);
	uint32_t blocks =
		(uint32_t)(bytes / S3_UNIT ? bytes / S3_UNIT : 1) * (uint32_t)(S3_UNIT >> v->shift);
	int r = s3_check_not_fenced(v);
	size_t used;

	if (r)
		return r;
	s->length = s->object.header_bytes;
	r = read_part(v, round, s, &s->raw, 0, s->length);
	used = v->room.used;
	if (r == 0)
		r = s3_gc_check_source(v, s);
	while (r == 0 && s3_gc_next_window(v, used, s, blocks)) {
		uint64_t from = s3_gc_stored_at(v, s, s->from), to = s3_gc_stored_at(v, s, s->to);
		int moved = 0;

		round->n_pieces = 0;
		if (to > from)
			r = read_part(v, round, s, &s->window, s->header.header_bytes + from,
				(size_t)(to - from));
		if (r == 0)
			r = s3_gc_use_source(v, round, 0);
		if (r == 0)
			moved = s3_gc_move_pieces(v, round);
		if (moved)
			return moved;
	}
	if (r)
		*passed = pass_over(v, s, r);
	return *passed ? 0 : r;
}

int s3_gc_compact(struct s3_volume *v, unsigned percent, bool small)
{
	uint32_t slots[S3_GC_OBJECTS];
	bool passed[S3_GC_OBJECTS] = {false}, worth;
	struct s3_gc_round *round = calloc(1, sizeof *round);
	size_t n = round ? s3_objects_take_sparse(v->objects, percent, small, slots, S3_GC_OBJECTS)
			 : 0;
	uint64_t bytes = 0;
	int r = 0;

	if (!round)
		return -ENOMEM;
	init_flight(&round->reads);
	init_flight(&round->writes);
	n = keep_stored(v, slots, n);
	worth = worth_moving(v, slots, n, percent);
	if (worth)
		round->memory = s3_room_enter(v);
	for (size_t i = 0; worth && i < n; i++) {
		struct s3_gc_source *s = &round->sources[round->n_sources];

		s->slot = slots[i];
		s3_objects_get(v->objects, s->slot, &s->object);
		bytes += s3_gc_source_bytes(v, &s->object);
		if (round->n_sources && bytes > round->memory / 2)
			break;
		round->n_sources++;
	}
	if (round->n_sources == 1 && bytes > round->memory / 2) {
		r = compact_large(v, round, passed);
	} else if (round->n_sources) {
		r = compact_sources(v, round, passed);
	}
	for (size_t i = 0; i < n; i++)
		if (!passed[i])
			s3_objects_put_back(v->objects, slots[i]);
	for (size_t i = 0; i < round->n_sources; i++)
		s3_gc_free_source(v, &round->sources[i]);
	n = round->n_sources;
	end_flight(&round->reads);
	end_flight(&round->writes);
	free(round->pieces);
	free(round);
	return r ? r : (int)n;
}

void s3_gc_compact_if_needed(struct s3_volume *v)
{
	struct s3_objects_totals t;
	bool small, sparse;

	s3_objects_totals(v->objects, &t);
	small = t.small > GC_SMALL + 2 * t.live / v->batch_blocks;
	/* What is dead goes without our help. */
	sparse = (t.live + t.held) * 100 < (t.blocks - t.dead_blocks) * GC_USED;
	/* What room there is in a full store is for trims, roots, and a collection on demand. */
	if (atomic_load(&v->refused) == -ENOSPC || (!small && !sparse) ||
		s3_gc_compact(v, sparse ? S3_GC_SPARSE : 0, small) <= 0)
		s3_room_leave(v);
}
