/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/slab.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/map_internal.h"
#include "backends/s3/state/object_internal.h"
#include "backends/s3/state/object_table.h"

/* ---- map ---------------------------------------------------------------------- */

struct s3_map *s3_map_new(struct s3_objects *objects, uint64_t blocks)
{
	struct s3_map *m = calloc(1, sizeof *m);

	if (!m)
		return NULL;
	/* Not touched before they are needed: the kernel gives pages then. */
	m->regions = calloc(S3_REGIONS, sizeof *m->regions);
	m->slab = s3_slab_new();
	if (!m->regions || !m->slab) {
		s3_slab_free(m->slab);
		free(m->regions);
		free(m);
		return NULL;
	}
	m->objects = objects;
	m->blocks = blocks;
	m->memory = sizeof *m;
	pthread_mutex_init(&m->making, NULL);
	for (unsigned i = 0; i < S3_SHARDS; i++)
		pthread_mutex_init(&m->shards[i].lock, NULL);
	return m;
}

void s3_map_drop_notes(struct s3_map *m, struct s3_leaf *notes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		s3_leaf_drop(m, &notes[i]);
	s3_leaf_give(m, notes);
}

static void drop_regions(struct s3_map *m)
{
	for (uint32_t i = 0; i < m->top; i++) {
		struct s3_region *region = m->regions[i];

		if (!region)
			continue;
		for (unsigned j = 0; j < S3_LEAVES; j++)
			s3_leaf_drop(m, &region->leaves[j]);
		s3_map_drop_notes(m, region->notes, region->n_notes);
		pthread_mutex_destroy(&region->lock);
		s3_leaf_give(m, region);
		m->regions[i] = NULL;
	}
	m->mapped = 0;
}

void s3_map_free(struct s3_map *m)
{
	if (!m)
		return;
	drop_regions(m);
	for (unsigned i = 0; i < S3_SHARDS; i++)
		pthread_mutex_destroy(&m->shards[i].lock);
	pthread_mutex_destroy(&m->making);
	free(m->captured);
	free(m->scratch);
	free(m->regions);
	s3_slab_free(m->slab);
	free(m);
}

void s3_map_clear(struct s3_map *m)
{
	drop_regions(m);
}

uint64_t s3_map_blocks(const struct s3_map *m)
{
	return atomic_load(&m->blocks);
}

int s3_map_resize(struct s3_map *m, uint64_t blocks)
{
	if (blocks > S3_BLOCKS_MAX)
		return -EINVAL;
	atomic_store(&m->blocks, blocks);
	return 0;
}

uint64_t s3_map_memory(const struct s3_map *m)
{
	return atomic_load(&m->memory) + s3_slab_memory(m->slab);
}

uint64_t s3_map_mapped(const struct s3_map *m)
{
	return atomic_load(&m->mapped);
}

struct s3_region *s3_map_region_make(struct s3_map *m, uint32_t index)
{
	struct s3_region *region;

	pthread_mutex_lock(&m->making);
	region = m->regions[index];
	if (!region) {
		region = calloc(1, sizeof *region);
		if (region) {
			atomic_fetch_add(&m->memory, s3_map_weight(region));
			pthread_mutex_init(&region->lock, NULL);
			m->regions[index] = region;
			if (index >= m->top)
				m->top = index + 1;
		}
	}
	pthread_mutex_unlock(&m->making);
	return region;
}

/* ---- lookup ------------------------------------------------------------------- */

struct lookup {
	struct s3_map *m;
	struct s3_run *runs;
	size_t n, max;
	bool pin;
};

/* False: no room for another run. */
static bool lookup_add(struct lookup *l, uint64_t lba, uint64_t count, s3_leaf_entry e)
{
	uint32_t slot = s3_leaf_slot(e), offset = (uint32_t)(e & 0xffff);
	struct s3_run *last = l->n ? &l->runs[l->n - 1] : NULL;

	if (last && last->slot == slot && (!slot || last->offset + last->count == offset)) {
		last->count += count;
		return true;
	}
	if (l->n == l->max)
		return false;
	if (l->pin && slot)
		s3_objects_pin(l->m->objects, slot);
	l->runs[l->n++] = (struct s3_run){lba, count, slot, offset};
	return true;
}

static bool lookup_part(struct lookup *l, const struct s3_map_part *part, struct s3_region *region)
{
	struct s3_leaf_piece pieces[S3_LEAF_BLOCKS];
	pthread_mutex_t *lock = s3_map_lock_of(l->m, part->base);
	unsigned at = part->a;
	bool room = true;
	size_t n;

	pthread_mutex_lock(lock);
	n = s3_leaf_pieces_of(&region->leaves[part->leaf], part->a, part->b, pieces);
	for (size_t i = 0; room && i < n; i++) {
		if (pieces[i].start > at)
			room = lookup_add(l, part->base + at, pieces[i].start - at, 0);
		room = room && lookup_add(l, part->base + pieces[i].start, pieces[i].count,
				       pieces[i].entry);
		at = pieces[i].start + pieces[i].count;
	}
	/* Pinned before the lock goes: until then the map's block keeps the object. */
	pthread_mutex_unlock(lock);
	if (room && at < part->b)
		room = lookup_add(l, part->base + at, part->b - at, 0);
	return room;
}

size_t s3_map_lookup(
	struct s3_map *m, uint64_t lba, uint64_t count, bool pin, struct s3_run *runs, size_t max)
{
	struct lookup l = {.m = m, .runs = runs, .max = max, .pin = pin};
	uint64_t end = lba + count;

	while (lba < end) {
		struct s3_map_part part = s3_map_part_at(lba, end);
		struct s3_region *region = m->regions[part.region];
		uint64_t next = part.base + part.b;

		if (!region) {
			/* Beyond the last region that was made there is nothing. */
			next = part.region < m->top ? ((uint64_t)part.region + 1) << S3_REGION_SHIFT
						    : end;
			next = next < end ? next : end;
			if (!lookup_add(&l, lba, next - lba, 0))
				break;
		} else if (!lookup_part(&l, &part, region)) {
			break;
		}
		lba = next;
	}
	return l.n;
}

bool s3_map_is_hole(struct s3_map *m, uint64_t lba, uint64_t count)
{
	struct s3_run run;

	if (!count)
		return true;
	s3_map_lookup(m, lba, count, false, &run, 1);
	return run.slot == S3_NO_SLOT && run.count >= count;
}

/* ---- changes ------------------------------------------------------------------ */

/*
 * Notes what [a, b) of a leaf holds before it changes, for a checkpoint that has not copied
 * it. Backwards, the notes lead to what was: so first the pieces, then the hole below them. A
 * leaf that is replaced as a whole is noted as it is (took: its memory is the note's). The
 * lock of its shard is held.
 */
static int note(struct s3_map *m, struct s3_region *region, unsigned leaf,
	const struct s3_leaf_piece *pieces, size_t n, unsigned a, unsigned b, bool *took)
{
	const struct s3_leaf *l = &region->leaves[leaf];
	uint64_t more = 0;
	int r = 0;

	*took = false;
	if (!atomic_load(&region->capturing) || region->copied[leaf])
		return 0;
	pthread_mutex_lock(&region->lock);
	if (!atomic_load(&region->capturing))
		goto out; /* given up meanwhile */
	if (region->n_notes + n + 1 > region->notes_room) {
		size_t room = region->notes_room * 2 + n + 64;
		struct s3_leaf *notes = s3_leaf_take(m, room * sizeof *notes);

		if (!notes) {
			r = -ENOMEM;
			goto out;
		}
		if (region->n_notes)
			memcpy(notes, region->notes, region->n_notes * sizeof *notes);
		s3_leaf_give(m, region->notes);
		more = (room - region->notes_room) * sizeof *notes;
		region->notes = notes;
		region->notes_room = room;
	}
	if (a == 0 && b == S3_LEAF_BLOCKS) {
		struct s3_leaf *whole = &region->notes[region->n_notes++];

		*whole = *l;
		whole->whole = true;
		whole->index = (uint16_t)leaf;
		if (l->kind == S3_LEAF_FLAT)
			more += S3_LEAF_BLOCKS * sizeof(s3_leaf_entry);
		*took = true;
		goto out;
	}
	for (size_t i = 0; i < n; i++)
		region->notes[region->n_notes++] = (struct s3_leaf){
			.entry = pieces[i].entry,
			.start = pieces[i].start,
			.count = pieces[i].count,
			.kind = S3_LEAF_RUN,
			.index = (uint16_t)leaf,
		};
	if (n != 1 || pieces[0].start != a || pieces[0].start + pieces[0].count != b)
		region->notes[region->n_notes++] = (struct s3_leaf){
			.start = (uint16_t)a,
			.count = (uint16_t)(b - a),
			.kind = S3_LEAF_RUN,
			.index = (uint16_t)leaf,
		};
out:
	region->notes_bytes += more;
	atomic_fetch_add(&m->notes, more);
	pthread_mutex_unlock(&region->lock);
	return r;
}

/* Displaced pieces no longer live, one call for neighbours of one object. */
static void displaced(struct s3_map *m, const struct s3_leaf_piece *pieces, size_t n, uint64_t seq)
{
	uint64_t total = 0;

	for (size_t i = 0; i < n;) {
		uint32_t slot = s3_leaf_slot(pieces[i].entry);
		int32_t count = 0;

		for (; i < n && s3_leaf_slot(pieces[i].entry) == slot; i++)
			count += pieces[i].count;
		s3_objects_live(m->objects, slot, -count, seq);
		total += (uint64_t)count;
	}
	atomic_fetch_sub(&m->mapped, total);
}

/* Sets p in a leaf whose lock is held. What enters has been counted as alive. */
static int leaf_set(struct s3_map *m, struct s3_region *region, unsigned leaf,
	struct s3_leaf_piece p, uint64_t seq)
{
	struct s3_leaf *l = &region->leaves[leaf];
	struct s3_leaf_piece old[S3_LEAF_BLOCKS];
	unsigned a = p.start, b = a + p.count;
	size_t n = s3_leaf_pieces_of(l, a, b, old);
	bool took;
	int r;

	if (!n && !p.entry)
		return 0;
	r = note(m, region, leaf, old, n, a, b, &took);
	if (r)
		return r;
	if (!atomic_load_explicit(&region->changed, memory_order_relaxed))
		atomic_store(&region->changed, true);
	if (p.count == S3_LEAF_BLOCKS) {
		if (!took)
			s3_leaf_drop(m, l);
		*l = (struct s3_leaf){.entry = p.entry, .kind = S3_LEAF_EMPTY};
		if (p.entry) {
			l->count = S3_LEAF_BLOCKS;
			l->kind = S3_LEAF_RUN;
		}
	} else if (l->kind == S3_LEAF_FLAT) {
		s3_leaf_flat_set(m, l, p);
	} else {
		r = s3_leaf_runs_set(m, l, p);
	}
	if (r)
		return r;
	if (p.entry)
		atomic_fetch_add(&m->mapped, p.count);
	displaced(m, old, n, seq);
	return 0;
}

int s3_map_update(struct s3_map *m, uint64_t seq, uint64_t lba, uint64_t count, uint32_t slot,
	uint32_t offset)
{
	uint64_t end = lba + count;
	int r = 0;

	/* Before the map shows it, so that it cannot be dead and in the map. */
	s3_objects_live(m->objects, slot, (int32_t)count, seq);
	while (!r && lba < end) {
		struct s3_map_part part = s3_map_part_at(lba, end);
		struct s3_region *region = m->regions[part.region];
		struct s3_leaf_piece p = {s3_leaf_entry_of(slot, offset), (uint16_t)part.a,
			(uint16_t)(part.b - part.a)};
		pthread_mutex_t *lock = s3_map_lock_of(m, lba);

		if (!region)
			region = s3_map_region_make(m, part.region);
		if (!region)
			return -ENOMEM;
		pthread_mutex_lock(lock);
		r = leaf_set(m, region, part.leaf, p, seq);
		pthread_mutex_unlock(lock);
		lba += p.count;
		offset += p.count;
	}
	return r;
}

int s3_map_punch(struct s3_map *m, uint64_t seq, uint64_t lba, uint64_t count)
{
	uint64_t end = lba + count;
	int r = 0;

	while (!r && lba < end) {
		struct s3_map_part part = s3_map_part_at(lba, end);
		struct s3_region *region = m->regions[part.region];
		struct s3_leaf_piece hole = {0, (uint16_t)part.a, (uint16_t)(part.b - part.a)};
		pthread_mutex_t *lock = s3_map_lock_of(m, lba);

		if (!region) {
			lba = ((uint64_t)part.region + 1) << S3_REGION_SHIFT;
			continue;
		}
		pthread_mutex_lock(lock);
		r = leaf_set(m, region, part.leaf, hole, seq);
		pthread_mutex_unlock(lock);
		lba += hole.count;
	}
	return r;
}

/* The part of a relocation in one leaf, whose lock is held. */
static int leaf_relocate(struct s3_map *m, struct s3_region *region, const struct s3_map_part *part,
	uint64_t seq, s3_leaf_entry source, s3_leaf_entry destination, uint64_t *moved)
{
	struct s3_leaf_piece pieces[S3_LEAF_BLOCKS];
	size_t n = s3_leaf_pieces_of(&region->leaves[part->leaf], part->a, part->b, pieces);
	int r = 0;

	for (size_t i = 0; !r && i < n; i++) {
		struct s3_leaf_piece p = pieces[i];
		unsigned distance = p.start - part->a;

		/* A run is where source says as a whole, or not at all. */
		if (p.entry != source + distance || s3_leaf_slot(p.entry) != s3_leaf_slot(source))
			continue;
		p.entry = destination + distance;
		s3_objects_live(m->objects, s3_leaf_slot(destination), p.count, seq);
		r = leaf_set(m, region, part->leaf, p, seq);
		*moved += p.count;
	}
	return r;
}

int s3_map_relocate(struct s3_map *m, uint64_t seq, uint64_t lba, uint64_t count, uint32_t source,
	uint32_t source_offset, uint32_t slot, uint32_t offset, uint64_t *moved)
{
	uint64_t end = lba + count, all = 0;
	s3_leaf_entry from = s3_leaf_entry_of(source, source_offset),
		      to = s3_leaf_entry_of(slot, offset);
	int r = 0;

	while (!r && lba < end) {
		struct s3_map_part part = s3_map_part_at(lba, end);
		struct s3_region *region = m->regions[part.region];
		pthread_mutex_t *lock = s3_map_lock_of(m, lba);

		if (region) {
			pthread_mutex_lock(lock);
			r = leaf_relocate(m, region, &part, seq, from, to, &all);
			pthread_mutex_unlock(lock);
		}
		lba += part.b - part.a;
		from += part.b - part.a;
		to += part.b - part.a;
	}
	if (moved)
		*moved = all;
	return r;
}
