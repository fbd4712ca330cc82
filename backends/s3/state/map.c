/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/s3/state/map.h"
#include "backends/s3/base/slab.h"

#define LEAF_SHIFT  9u
#define LEAF_BLOCKS (1u << LEAF_SHIFT)
#define LEAVES	    (S3_REGION_BLOCKS / LEAF_BLOCKS)
#define REGIONS	    ((uint32_t)(S3_BLOCKS_MAX >> S3_REGION_SHIFT))
#define SHARDS	    1024u

/*
 * An array of more runs would take a page, as a flat leaf does. A flat one becomes an array when it
 * has so few: the distance keeps a leaf from going to and fro.
 */
#define RUNS_MAX  170u
#define RUNS_BACK 128u

/*
 * Where a block is: slot << 16 | block in the object; 0: a hole. In a run the entry of the next
 * block is the next number.
 */
typedef uint64_t entry;

/* A run of a leaf as it is kept: 12 bytes, aligned to 4. */
struct packed {
	uint32_t low, high;
	uint16_t start, count;
};

enum kind { EMPTY, RUN, RUNS, FLAT };

/* 512 blocks. */
struct leaf {
	union {
		entry entry;	     /* RUN */
		struct packed *runs; /* RUNS: start of them, room for count */
		entry *flat;	     /* FLAT: has start runs */
	};
	uint16_t start, count; /* RUN */
	uint8_t kind;
	bool whole;	/* of notes: see note() */
	uint16_t index; /* of notes: the leaf */
};

_Static_assert(sizeof(struct leaf) == 16 && sizeof(struct packed) == 12, "what map.h promises");

/* A run of a leaf, or of a part of it. */
struct piece {
	entry entry;
	uint16_t start, count;
};

struct region {
	struct leaf leaves[LEAVES]; /* each under the lock of its shard */
	_Atomic bool changed;	    /* since the last checkpoint */
	/*
	 * Being captured: leaf i is still to be copied unless copied[i] (under its shard's lock).
	 * A change of such a leaf adds to notes what is displaced.
	 */
	_Atomic bool capturing;
	bool copied[LEAVES];
	pthread_mutex_t lock; /* guards notes; taken inside a shard's */
	struct leaf *notes;
	size_t n_notes, notes_room;
};

struct shard {
	pthread_mutex_t lock;
	char pad[64 - sizeof(pthread_mutex_t)]; /* a cache line of its own */
};

struct s3_map {
	struct s3_objects *objects;
	struct s3_slab *slab; /* of the leaves' runs and entries */
	_Atomic uint64_t blocks;
	_Atomic uint64_t memory; /* besides the slab */
	_Atomic uint64_t mapped;
	struct region *_Atomic *regions; /* REGIONS; made when first written */
	_Atomic uint32_t top;		 /* regions from here on were never made */
	pthread_mutex_t making;		 /* of a region */
	struct shard shards[SHARDS];
	/* The checkpoint that is running. */
	uint32_t *captured; /* indexes of its regions; NULL: none is running */
	size_t n_captured;
	entry *scratch; /* a region's entries; all zero between two regions */
};

/* ---- memory ------------------------------------------------------------------- */

/* What malloc() takes for p, its own word included. */
static size_t weight(void *p)
{
	return p ? malloc_usable_size(p) + sizeof(size_t) : 0;
}

static void *take(struct s3_map *m, size_t bytes)
{
	void *p = malloc(bytes);

	atomic_fetch_add(&m->memory, weight(p));
	return p;
}

static void give(struct s3_map *m, void *p)
{
	atomic_fetch_sub(&m->memory, weight(p));
	free(p);
}

/* ---- leaves ------------------------------------------------------------------- */

static entry entry_of(uint32_t slot, uint32_t offset)
{
	return (entry)slot << 16 | offset;
}

static uint32_t slot_in(entry e)
{
	return (uint32_t)(e >> 16);
}

/* Does e continue a run of count blocks at before? The last block of an object is not followed
 * by the first of the next slot. */
static bool continues(entry before, uint64_t count, entry e)
{
	return before && e == before + count && slot_in(e) == slot_in(before);
}

static struct packed pack(struct piece p)
{
	return (struct packed){(uint32_t)p.entry, (uint32_t)(p.entry >> 32), p.start, p.count};
}

static struct piece unpack(struct packed r)
{
	return (struct piece){(entry)r.high << 32 | r.low, r.start, r.count};
}

static unsigned end_of(struct packed r)
{
	return r.start + r.count;
}

/* The first of n runs that ends beyond a. */
static size_t find_run(const struct packed *runs, size_t n, unsigned a)
{
	size_t low = 0;

	while (low < n) {
		size_t middle = (low + n) / 2;

		if (end_of(runs[middle]) > a)
			n = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* The part of p inside [a, b). */
static struct piece clip(struct piece p, unsigned a, unsigned b)
{
	unsigned end = p.start + p.count;

	if (p.start < a) {
		p.entry += a - p.start;
		p.start = (uint16_t)a;
	}
	p.count = (uint16_t)((end < b ? end : b) - p.start);
	return p;
}

/* What lies in [a, b) of a leaf, holes left out: how many pieces. */
static size_t pieces_of(const struct leaf *l, unsigned a, unsigned b, struct piece out[LEAF_BLOCKS])
{
	size_t n = 0;

	switch (l->kind) {
	case RUN:
		if (l->start < b && l->start + l->count > a)
			out[n++] = clip((struct piece){l->entry, l->start, l->count}, a, b);
		break;
	case RUNS:
		for (size_t i = find_run(l->runs, l->start, a);
			i < l->start && l->runs[i].start < b; i++)
			out[n++] = clip(unpack(l->runs[i]), a, b);
		break;
	case FLAT:
		for (unsigned i = a; i < b; i++) {
			if (!l->flat[i])
				continue;
			if (n && out[n - 1].start + out[n - 1].count == i &&
				continues(out[n - 1].entry, out[n - 1].count, l->flat[i]))
				out[n - 1].count++;
			else
				out[n++] = (struct piece){l->flat[i], (uint16_t)i, 1};
		}
		break;
	}
	return n;
}

/* Runs that begin in [a, b] of a flat leaf. */
static unsigned count_starts(const entry *flat, unsigned a, unsigned b)
{
	unsigned n = 0;

	for (unsigned i = a; i <= b && i < LEAF_BLOCKS; i++)
		n += flat[i] && !(i && continues(flat[i - 1], 1, flat[i]));
	return n;
}

static void fill(entry *flat, struct piece p)
{
	for (unsigned i = 0; i < p.count; i++)
		flat[p.start + i] = p.entry ? p.entry + i : 0;
}

static void leaf_drop(struct s3_map *m, struct leaf *l)
{
	if (l->kind == RUNS)
		s3_slab_give(m->slab, l->runs);
	else if (l->kind == FLAT)
		s3_slab_give(m->slab, l->flat);
	l->kind = EMPTY;
}

static struct packed *take_runs(struct s3_map *m, size_t n, uint16_t *room)
{
	size_t bytes = 0;
	struct packed *runs = s3_slab_take(m->slab, n * sizeof *runs, &bytes);

	*room = (uint16_t)(bytes / sizeof *runs);
	return runs;
}

/* A flat leaf that has got few runs becomes an array; without memory it stays. */
static void leaf_shrink(struct s3_map *m, struct leaf *l)
{
	struct piece pieces[LEAF_BLOCKS];
	struct packed *runs;
	uint16_t room;
	size_t n;

	if (l->start > RUNS_BACK)
		return;
	n = pieces_of(l, 0, LEAF_BLOCKS, pieces);
	if (n < 2) {
		leaf_drop(m, l);
		if (n)
			*l = (struct leaf){.entry = pieces[0].entry,
				.start = pieces[0].start,
				.count = pieces[0].count,
				.kind = RUN};
		return;
	}
	runs = take_runs(m, n, &room);
	if (!runs)
		return;
	for (size_t i = 0; i < n; i++)
		runs[i] = pack(pieces[i]);
	leaf_drop(m, l);
	*l = (struct leaf){.runs = runs, .start = (uint16_t)n, .count = room, .kind = RUNS};
}

/* n pieces, ascending, none continuing the one before, become all that a leaf holds. */
static int leaf_build(struct s3_map *m, struct leaf *l, const struct piece *pieces, size_t n)
{
	struct packed *runs = l->runs;
	uint16_t room = l->count;
	size_t bytes;

	if (n < 2) {
		leaf_drop(m, l);
		*l = (struct leaf){.kind = EMPTY};
		if (n)
			*l = (struct leaf){.entry = pieces[0].entry,
				.start = pieces[0].start,
				.count = pieces[0].count,
				.kind = RUN};
	} else if (n > RUNS_MAX) {
		entry *flat = l->kind == FLAT
				      ? l->flat
				      : s3_slab_take(m->slab, LEAF_BLOCKS * sizeof *flat, &bytes);

		if (!flat)
			return -ENOMEM;
		memset(flat, 0, LEAF_BLOCKS * sizeof *flat);
		for (size_t i = 0; i < n; i++)
			fill(flat, pieces[i]);
		if (l->kind != FLAT)
			leaf_drop(m, l);
		*l = (struct leaf){.flat = flat, .start = (uint16_t)n, .kind = FLAT};
	} else {
		if (l->kind != RUNS || n > room || n < room / 2u) {
			runs = take_runs(m, n, &room);
			if (!runs)
				return -ENOMEM;
			leaf_drop(m, l);
		}
		for (size_t i = 0; i < n; i++)
			runs[i] = pack(pieces[i]);
		*l = (struct leaf){.runs = runs, .start = (uint16_t)n, .count = room, .kind = RUNS};
	}
	return 0;
}

static int leaf_flatten(struct s3_map *m, struct leaf *l)
{
	size_t room;
	entry *flat = s3_slab_take(m->slab, LEAF_BLOCKS * sizeof *flat, &room);
	unsigned n = l->start;

	if (!flat)
		return -ENOMEM;
	memset(flat, 0, LEAF_BLOCKS * sizeof *flat);
	for (unsigned i = 0; i < n; i++)
		fill(flat, unpack(l->runs[i]));
	leaf_drop(m, l);
	*l = (struct leaf){.flat = flat, .start = (uint16_t)n, .kind = FLAT};
	return 0;
}

static void flat_set(struct s3_map *m, struct leaf *l, struct piece p)
{
	unsigned a = p.start, b = a + p.count;
	unsigned before = count_starts(l->flat, a, b);

	fill(l->flat, p);
	l->start = (uint16_t)(l->start + count_starts(l->flat, a, b) - before);
	leaf_shrink(m, l);
}

/* Adds p to out, joined with the last one if it continues that. */
static size_t append(struct packed *out, size_t n, struct piece p)
{
	if (n && end_of(out[n - 1]) == p.start &&
		continues(unpack(out[n - 1]).entry, out[n - 1].count, p.entry))
		out[n - 1].count = (uint16_t)(out[n - 1].count + p.count);
	else
		out[n++] = pack(p);
	return n;
}

/* Sets [p.start, p.start + p.count) of a leaf that is not flat; entry 0: a hole. */
static int runs_set(struct s3_map *m, struct leaf *l, struct piece p)
{
	struct packed one = pack((struct piece){l->entry, l->start, l->count});
	struct packed *runs = l->kind == RUNS ? l->runs : &one;
	size_t n = l->kind == RUNS ? l->start : l->kind == RUN;
	unsigned a = p.start, b = a + p.count;
	struct packed middle[3];
	size_t i, j, n_middle = 0, total;

	/* Runs i to j - 1 overlap [a, b), or touch it and may join. */
	i = find_run(runs, n, a);
	if (i && end_of(runs[i - 1]) == a)
		i--;
	for (j = i; j < n && runs[j].start <= b; j++)
		;
	if (i < j && runs[i].start < a)
		n_middle = append(middle, n_middle, clip(unpack(runs[i]), 0, a));
	if (p.entry)
		n_middle = append(middle, n_middle, p);
	if (i < j && end_of(runs[j - 1]) > b)
		n_middle = append(middle, n_middle, clip(unpack(runs[j - 1]), b, LEAF_BLOCKS));
	total = n - (j - i) + n_middle;
	if (total > RUNS_MAX) {
		/* Only an array can have become so long. */
		int r = leaf_flatten(m, l);

		if (!r)
			flat_set(m, l, p);
		return r;
	}
	if (total < 2) {
		struct packed last = n_middle ? middle[0] : i ? runs[0] : runs[n - 1];

		leaf_drop(m, l);
		if (total)
			*l = (struct leaf){.entry = unpack(last).entry,
				.start = last.start,
				.count = last.count,
				.kind = RUN};
		return 0;
	}
	if (l->kind != RUNS || total > l->count || total < l->count / 2u) {
		uint16_t room;
		struct packed *larger = take_runs(m, total, &room);

		if (!larger)
			return -ENOMEM;
		memcpy(larger, runs, i * sizeof *runs);
		memcpy(larger + i, middle, n_middle * sizeof *runs);
		memcpy(larger + i + n_middle, runs + j, (n - j) * sizeof *runs);
		leaf_drop(m, l);
		*l = (struct leaf){.runs = larger, .count = room, .kind = RUNS};
	} else {
		memmove(runs + i + n_middle, runs + j, (n - j) * sizeof *runs);
		memcpy(runs + i, middle, n_middle * sizeof *runs);
	}
	l->start = (uint16_t)total;
	return 0;
}

/* ---- map ---------------------------------------------------------------------- */

struct s3_map *s3_map_new(struct s3_objects *objects, uint64_t blocks)
{
	struct s3_map *m = calloc(1, sizeof *m);

	if (!m)
		return NULL;
	/* Not touched before they are needed: the kernel gives pages then. */
	m->regions = calloc(REGIONS, sizeof *m->regions);
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
	for (unsigned i = 0; i < SHARDS; i++)
		pthread_mutex_init(&m->shards[i].lock, NULL);
	return m;
}

static void drop_notes(struct s3_map *m, struct leaf *notes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		leaf_drop(m, &notes[i]);
	give(m, notes);
}

static void drop_regions(struct s3_map *m)
{
	for (uint32_t i = 0; i < m->top; i++) {
		struct region *region = m->regions[i];

		if (!region)
			continue;
		for (unsigned j = 0; j < LEAVES; j++)
			leaf_drop(m, &region->leaves[j]);
		drop_notes(m, region->notes, region->n_notes);
		pthread_mutex_destroy(&region->lock);
		give(m, region);
		m->regions[i] = NULL;
	}
	m->mapped = 0;
}

void s3_map_free(struct s3_map *m)
{
	if (!m)
		return;
	drop_regions(m);
	for (unsigned i = 0; i < SHARDS; i++)
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

static struct region *region_make(struct s3_map *m, uint32_t index)
{
	struct region *region;

	pthread_mutex_lock(&m->making);
	region = m->regions[index];
	if (!region) {
		region = calloc(1, sizeof *region);
		if (region) {
			atomic_fetch_add(&m->memory, weight(region));
			pthread_mutex_init(&region->lock, NULL);
			m->regions[index] = region;
			if (index >= m->top)
				m->top = index + 1;
		}
	}
	pthread_mutex_unlock(&m->making);
	return region;
}

static pthread_mutex_t *lock_of(struct s3_map *m, uint64_t lba)
{
	return &m->shards[lba >> LEAF_SHIFT & (SHARDS - 1)].lock;
}

/* The part of [lba, end) that is in one leaf. */
struct part {
	uint32_t region;
	unsigned leaf, a, b;
	uint64_t base; /* block address of the leaf */
};

static struct part part_at(uint64_t lba, uint64_t end)
{
	uint64_t base = lba & ~(uint64_t)(LEAF_BLOCKS - 1);

	return (struct part){
		.region = (uint32_t)(lba >> S3_REGION_SHIFT),
		.leaf = (unsigned)(lba >> LEAF_SHIFT & (LEAVES - 1)),
		.a = (unsigned)(lba - base),
		.b = end - base < LEAF_BLOCKS ? (unsigned)(end - base) : LEAF_BLOCKS,
		.base = base,
	};
}

/* ---- lookup ------------------------------------------------------------------- */

struct lookup {
	struct s3_map *m;
	struct s3_run *runs;
	size_t n, max;
	bool pin;
};

/* False: no room for another run. */
static bool lookup_add(struct lookup *l, uint64_t lba, uint64_t count, entry e)
{
	uint32_t slot = slot_in(e), offset = (uint32_t)(e & 0xffff);
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

static bool lookup_part(struct lookup *l, const struct part *part, struct region *region)
{
	struct piece pieces[LEAF_BLOCKS];
	pthread_mutex_t *lock = lock_of(l->m, part->base);
	unsigned at = part->a;
	bool room = true;
	size_t n;

	pthread_mutex_lock(lock);
	n = pieces_of(&region->leaves[part->leaf], part->a, part->b, pieces);
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
		struct part part = part_at(lba, end);
		struct region *region = m->regions[part.region];
		uint64_t next = part.base + part.b;

		if (!region) {
			next = ((uint64_t)part.region + 1) << S3_REGION_SHIFT;
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
static int note(struct s3_map *m, struct region *region, unsigned leaf, const struct piece *pieces,
	size_t n, unsigned a, unsigned b, bool *took)
{
	const struct leaf *l = &region->leaves[leaf];
	int r = 0;

	*took = false;
	if (!atomic_load(&region->capturing) || region->copied[leaf])
		return 0;
	pthread_mutex_lock(&region->lock);
	if (!atomic_load(&region->capturing))
		goto out; /* given up meanwhile */
	if (region->n_notes + n + 1 > region->notes_room) {
		size_t room = region->notes_room * 2 + n + 64;
		struct leaf *notes = take(m, room * sizeof *notes);

		if (!notes) {
			r = -ENOMEM;
			goto out;
		}
		if (region->n_notes)
			memcpy(notes, region->notes, region->n_notes * sizeof *notes);
		give(m, region->notes);
		region->notes = notes;
		region->notes_room = room;
	}
	if (a == 0 && b == LEAF_BLOCKS) {
		struct leaf *whole = &region->notes[region->n_notes++];

		*whole = *l;
		whole->whole = true;
		whole->index = (uint16_t)leaf;
		*took = true;
		goto out;
	}
	for (size_t i = 0; i < n; i++)
		region->notes[region->n_notes++] = (struct leaf){
			.entry = pieces[i].entry,
			.start = pieces[i].start,
			.count = pieces[i].count,
			.kind = RUN,
			.index = (uint16_t)leaf,
		};
	if (n != 1 || pieces[0].start != a || pieces[0].start + pieces[0].count != b)
		region->notes[region->n_notes++] = (struct leaf){
			.start = (uint16_t)a,
			.count = (uint16_t)(b - a),
			.kind = RUN,
			.index = (uint16_t)leaf,
		};
out:
	pthread_mutex_unlock(&region->lock);
	return r;
}

/* Displaced pieces no longer live, one call for neighbours of one object. */
static void displaced(struct s3_map *m, const struct piece *pieces, size_t n, uint64_t seq)
{
	uint64_t total = 0;

	for (size_t i = 0; i < n;) {
		uint32_t slot = slot_in(pieces[i].entry);
		int32_t count = 0;

		for (; i < n && slot_in(pieces[i].entry) == slot; i++)
			count += pieces[i].count;
		s3_objects_live(m->objects, slot, -count, seq);
		total += (uint64_t)count;
	}
	atomic_fetch_sub(&m->mapped, total);
}

/* Sets p in a leaf whose lock is held. What enters has been counted as alive. */
static int leaf_set(
	struct s3_map *m, struct region *region, unsigned leaf, struct piece p, uint64_t seq)
{
	struct leaf *l = &region->leaves[leaf];
	struct piece old[LEAF_BLOCKS];
	unsigned a = p.start, b = a + p.count;
	size_t n = pieces_of(l, a, b, old);
	bool took;
	int r;

	if (!n && !p.entry)
		return 0;
	r = note(m, region, leaf, old, n, a, b, &took);
	if (r)
		return r;
	if (!atomic_load_explicit(&region->changed, memory_order_relaxed))
		atomic_store(&region->changed, true);
	if (p.count == LEAF_BLOCKS) {
		if (!took)
			leaf_drop(m, l);
		*l = (struct leaf){.entry = p.entry, .kind = EMPTY};
		if (p.entry) {
			l->count = LEAF_BLOCKS;
			l->kind = RUN;
		}
	} else if (l->kind == FLAT) {
		flat_set(m, l, p);
	} else {
		r = runs_set(m, l, p);
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
		struct part part = part_at(lba, end);
		struct region *region = m->regions[part.region];
		struct piece p = {
			entry_of(slot, offset), (uint16_t)part.a, (uint16_t)(part.b - part.a)};
		pthread_mutex_t *lock = lock_of(m, lba);

		if (!region)
			region = region_make(m, part.region);
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
		struct part part = part_at(lba, end);
		struct region *region = m->regions[part.region];
		struct piece hole = {0, (uint16_t)part.a, (uint16_t)(part.b - part.a)};
		pthread_mutex_t *lock = lock_of(m, lba);

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
static int leaf_relocate(struct s3_map *m, struct region *region, const struct part *part,
	uint64_t seq, entry source, entry destination, uint64_t *moved)
{
	struct piece pieces[LEAF_BLOCKS];
	size_t n = pieces_of(&region->leaves[part->leaf], part->a, part->b, pieces);
	int r = 0;

	for (size_t i = 0; !r && i < n; i++) {
		struct piece p = pieces[i];
		unsigned distance = p.start - part->a;

		/* A run is where source says as a whole, or not at all. */
		if (p.entry != source + distance || slot_in(p.entry) != slot_in(source))
			continue;
		p.entry = destination + distance;
		s3_objects_live(m->objects, slot_in(destination), p.count, seq);
		r = leaf_set(m, region, part->leaf, p, seq);
		*moved += p.count;
	}
	return r;
}

int s3_map_relocate(struct s3_map *m, uint64_t seq, uint64_t lba, uint64_t count, uint32_t source,
	uint32_t source_offset, uint32_t slot, uint32_t offset, uint64_t *moved)
{
	uint64_t end = lba + count, all = 0;
	entry from = entry_of(source, source_offset), to = entry_of(slot, offset);
	int r = 0;

	while (!r && lba < end) {
		struct part part = part_at(lba, end);
		struct region *region = m->regions[part.region];
		pthread_mutex_t *lock = lock_of(m, lba);

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

/* ---- checkpoint ------------------------------------------------------------------ */

int s3_map_capture(struct s3_map *m, bool all, uint32_t **regions, size_t *n)
{
	uint32_t *list;
	size_t room = 0, count = 0;

	if (m->captured)
		return -EBUSY;
	for (uint32_t i = 0; i < m->top; i++)
		room += m->regions[i] != NULL;
	*regions = malloc((room + 1) * sizeof *list);
	m->captured = malloc((room + 1) * sizeof *list);
	m->scratch = calloc(S3_REGION_BLOCKS, sizeof *m->scratch);
	if (!*regions || !m->captured || !m->scratch) {
		free(*regions);
		free(m->captured);
		free(m->scratch);
		*regions = m->captured = NULL;
		m->scratch = NULL;
		return -ENOMEM;
	}
	atomic_fetch_add(&m->memory, weight(m->scratch));
	list = m->captured;
	for (uint32_t i = 0; i < m->top; i++) {
		struct region *region = m->regions[i];

		if (!region || (!all && !region->changed))
			continue;
		memset(region->copied, 0, sizeof region->copied);
		region->changed = false;
		region->capturing = true;
		list[count++] = i;
	}
	memcpy(*regions, list, count * sizeof *list);
	*n = m->n_captured = count;
	return 0;
}

/* Ends the noting of a region: its notes are the caller's. */
static struct leaf *take_notes(struct region *region, size_t *n)
{
	struct leaf *notes;

	pthread_mutex_lock(&region->lock);
	atomic_store(&region->capturing, false);
	notes = region->notes;
	*n = region->n_notes;
	region->notes = NULL;
	region->n_notes = region->notes_room = 0;
	pthread_mutex_unlock(&region->lock);
	return notes;
}

/* Takes back what happened since the capture. */
static void apply_notes(const struct leaf *notes, size_t n, entry *scratch, bool *touched)
{
	struct piece pieces[LEAF_BLOCKS];

	while (n--) {
		const struct leaf *l = &notes[n];
		entry *flat = scratch + (size_t)l->index * LEAF_BLOCKS;
		size_t n_pieces;

		touched[l->index] = true;
		if (!l->whole) {
			fill(flat, (struct piece){l->entry, l->start, l->count});
			continue;
		}
		memset(flat, 0, LEAF_BLOCKS * sizeof *flat);
		n_pieces = pieces_of(l, 0, LEAF_BLOCKS, pieces);
		for (size_t i = 0; i < n_pieces; i++)
			fill(flat, pieces[i]);
	}
}

/*
 * A region: magic 8 | version 2 | zero 2 | region 4 | runs 4 | CRC32C 4 (over everything, itself
 * zero); per run, in varints: (count - 1) << 2 | 2 when there is a gap before it | 1 when it is in
 * the object of the run before; gap - 1; slot - last slot (signed), not with 1; block in the
 * object, with 1 minus where the run before ended (signed).
 */
static const uint8_t region_magic[8] = "USERBLKR";

#define REGION_VERSION 1
#define REGION_HEAD    24
#define REGION_RUNS    16
#define REGION_CRC     20

struct region_writer {
	struct s3_buffer *out;
	struct piece_long {
		entry entry;
		uint32_t start, count;
	} last;	      /* not written yet; count 0: none */
	uint32_t end; /* of what is written */
	uint32_t slot, offset;
	uint32_t n;
};

static void write_run(struct region_writer *w)
{
	uint32_t slot = slot_in(w->last.entry), offset = (uint32_t)(w->last.entry & 0xffff);
	uint32_t gap = w->last.start - w->end;
	bool same = slot == w->slot;

	if (!w->last.count)
		return;
	s3_buffer_varint(w->out, (uint64_t)(w->last.count - 1) << 2 | (gap ? 2 : 0) | same);
	if (gap)
		s3_buffer_varint(w->out, gap - 1);
	if (same) {
		s3_buffer_signed(w->out, (int64_t)offset - w->offset);
	} else {
		s3_buffer_signed(w->out, (int64_t)slot - w->slot);
		s3_buffer_varint(w->out, offset);
	}
	w->end = w->last.start + w->last.count;
	w->slot = slot;
	w->offset = offset + w->last.count;
	w->n++;
}

static uint32_t region_crc(const uint8_t *p, size_t length)
{
	static const uint8_t zero[4];
	uint32_t crc = s3_crc32c(0, p, REGION_CRC);

	crc = s3_crc32c(crc, zero, sizeof zero);
	return s3_crc32c(crc, p + REGION_HEAD, length - REGION_HEAD);
}

/* Writes the region in the scratch, and clears that. */
static void write_region(
	struct s3_map *m, uint32_t index, const bool *touched, struct s3_buffer *out)
{
	size_t start = out->length;
	struct region_writer w = {.out = out};

	s3_buffer_bytes(out, region_magic, sizeof region_magic);
	s3_buffer_number(out, REGION_VERSION, 2);
	s3_buffer_number(out, 0, 2);
	s3_buffer_number(out, index, 4);
	s3_buffer_number(out, 0, 8);
	for (uint32_t leaf = 0; leaf < LEAVES; leaf++) {
		entry *flat = m->scratch + (size_t)leaf * LEAF_BLOCKS;

		if (!touched[leaf])
			continue;
		for (uint32_t i = 0; i < LEAF_BLOCKS; i++) {
			uint32_t at = leaf * LEAF_BLOCKS + i;

			if (!flat[i])
				continue;
			if (w.last.count && w.last.start + w.last.count == at &&
				continues(w.last.entry, w.last.count, flat[i])) {
				w.last.count++;
				continue;
			}
			write_run(&w);
			w.last = (struct piece_long){flat[i], at, 1};
		}
		memset(flat, 0, LEAF_BLOCKS * sizeof *flat);
	}
	write_run(&w);
	if (out->failed)
		return;
	if (!w.n) {
		out->length = start;
		return;
	}
	s3_put(out->data + start + REGION_RUNS, w.n, 4);
	s3_put(out->data + start + REGION_CRC, region_crc(out->data + start, out->length - start),
		4);
}

int s3_map_capture_region(struct s3_map *m, uint32_t index, struct s3_buffer *out)
{
	struct region *region = m->regions[index];
	bool touched[LEAVES];
	struct leaf *notes;
	size_t n_notes;

	for (unsigned i = 0; i < LEAVES; i++) {
		struct piece pieces[LEAF_BLOCKS];
		uint64_t lba = ((uint64_t)index << S3_REGION_SHIFT) + (uint64_t)i * LEAF_BLOCKS;
		pthread_mutex_t *lock = lock_of(m, lba);
		size_t n;

		pthread_mutex_lock(lock);
		n = pieces_of(&region->leaves[i], 0, LEAF_BLOCKS, pieces);
		region->copied[i] = true;
		pthread_mutex_unlock(lock);
		touched[i] = n > 0;
		for (size_t j = 0; j < n; j++)
			fill(m->scratch + (size_t)i * LEAF_BLOCKS, pieces[j]);
	}
	/* No change of this region notes anything any more: every leaf has been copied. */
	notes = take_notes(region, &n_notes);
	apply_notes(notes, n_notes, m->scratch, touched);
	drop_notes(m, notes, n_notes);
	write_region(m, index, touched, out);
	return out->failed ? -ENOMEM : 0;
}

void s3_map_capture_end(struct s3_map *m, bool committed)
{
	for (size_t i = 0; i < m->n_captured; i++) {
		struct region *region = m->regions[m->captured[i]];
		size_t n;
		struct leaf *notes = take_notes(region, &n);

		drop_notes(m, notes, n);
		if (!committed)
			atomic_store(&region->changed, true);
	}
	free(m->captured);
	give(m, m->scratch);
	m->captured = NULL;
	m->scratch = NULL;
	m->n_captured = 0;
}

/* What is being loaded of a leaf. */
struct loading {
	struct s3_map *m;
	struct region *region;
	unsigned leaf;
	size_t n;
	struct piece pieces[LEAF_BLOCKS];
};

/* The leaf is complete. */
static enum s3_check load_leaf(struct loading *g)
{
	struct leaf *l = &g->region->leaves[g->leaf];
	int r = g->n ? leaf_build(g->m, l, g->pieces, g->n) : 0;

	g->n = 0;
	return r ? S3_NO_MEMORY : S3_GOOD;
}

/* Enters a run, which is behind all before it. */
static enum s3_check load_run(struct loading *g, uint64_t lba, uint32_t count, entry e)
{
	uint64_t end = lba + count;
	enum s3_check check = S3_GOOD;

	while (!check && lba < end) {
		struct part part = part_at(lba, end);
		struct piece *last = g->n ? &g->pieces[g->n - 1] : NULL;
		struct piece p = {e, (uint16_t)part.a, (uint16_t)(part.b - part.a)};

		if (part.leaf != g->leaf) {
			check = load_leaf(g);
			last = NULL;
			g->leaf = part.leaf;
		}
		if (last && last->start + last->count == p.start &&
			continues(last->entry, last->count, e))
			last->count = (uint16_t)(last->count + p.count);
		else
			g->pieces[g->n++] = p;
		lba += p.count;
		e += p.count;
	}
	return check;
}

enum s3_check s3_map_load(struct s3_map *m, uint32_t index, const void *data, size_t length)
{
	const uint8_t *p = data;
	uint64_t base = (uint64_t)index << S3_REGION_SHIFT, room, at = 0, n;
	struct s3_reader r = {.next = p + REGION_HEAD, .end = p + length};
	enum s3_check check = S3_GOOD;
	struct loading loading = {.m = m};
	uint64_t mapped = 0;
	const int64_t limit = UINT32_MAX; /* of differences that are taken at all */
	int64_t slot = 0, offset = 0;

	if (length < REGION_HEAD)
		return S3_SHORT;
	if (memcmp(p, region_magic, sizeof region_magic))
		return S3_NOT_OURS;
	if (s3_get(p + 8, 2) > REGION_VERSION)
		return S3_NEWER;
	if (region_crc(p, length) != s3_get(p + REGION_CRC, 4))
		return S3_CHECKSUM;
	if (s3_get(p + 8, 2) != REGION_VERSION || s3_get(p + 10, 2) || s3_get(p + 12, 4) != index ||
		base >= m->blocks)
		return S3_INVALID;
	loading.region = m->regions[index] ? m->regions[index] : region_make(m, index);
	if (!loading.region)
		return S3_NO_MEMORY;
	room = m->blocks - base < S3_REGION_BLOCKS ? m->blocks - base : S3_REGION_BLOCKS;
	n = s3_get(p + REGION_RUNS, 4);
	for (uint64_t i = 0; !check && i < n; i++) {
		uint64_t token = s3_read_varint(&r), count = (token >> 2) + 1;
		uint64_t gap = token & 2 ? s3_read_varint(&r) : 0;

		if (gap > room || count > room || (token & 1 && !i))
			return S3_INVALID;
		at += gap + (token & 2 ? 1 : 0);
		if (token & 1) {
			int64_t by = s3_read_signed(&r);

			offset += by < -limit || by > limit ? -offset - 1 : by;
		} else {
			int64_t by = s3_read_signed(&r);
			uint64_t from = s3_read_varint(&r);

			slot += by < -limit || by > limit ? -slot : by;
			offset = from < S3_OBJECT_MAX ? (int64_t)from : -1;
		}
		if (r.bad || at + count > room || slot <= 0 || offset < 0 ||
			!s3_objects_count(
				m->objects, (uint64_t)slot, (uint64_t)offset, (uint32_t)count))
			return S3_INVALID;
		check = load_run(&loading, base + at, (uint32_t)count,
			entry_of((uint32_t)slot, (uint32_t)offset));
		at += count;
		offset += (int64_t)count;
		mapped += count;
	}
	if (!check)
		check = load_leaf(&loading);
	atomic_fetch_add(&m->mapped, mapped);
	if (!check && s3_read_left(&r))
		check = S3_INVALID;
	return check;
}

/* ---- changes by the batch --------------------------------------------------------- */

/*
 * Changes are kept by region in the order in which they came, then sorted by leaf. So a leaf is
 * taken apart and put together once for all changes of it that are near, and what it takes of the
 * cache is used again.
 */
#define CHUNK_CHANGES 64u
#define SLICE	      (64u << 10) /* changes that are sorted at once */
#define BATCH_THREADS 4u
/* Fewer changes than that are not worth another thread. */
#define THREAD_CHANGES (64u << 10)

/* A change of a part of a leaf. */
struct change {
	entry entry;	/* 0: a hole */
	uint32_t seq;	/* less the batch's first */
	uint32_t where; /* WHERE() */
};

/* from: it says what the blocks have to be for the next change of them to happen. */
#define WHERE(leaf, a, count, from)                                                                \
	((uint32_t)(leaf) << 19 | (uint32_t)(a) << 10 | ((uint32_t)(count)-1) << 1 | (from))
#define WHERE_LEAF(w)  ((w) >> 19)
#define WHERE_START(w) ((w) >> 10 & (LEAF_BLOCKS - 1))
#define WHERE_COUNT(w) (((w) >> 1 & (LEAF_BLOCKS - 1)) + 1)
#define WHERE_FROM(w)  ((w)&1)

_Static_assert(LEAVES <= 1u << 13 && LEAF_BLOCKS == 512, "what WHERE() has room for");

struct chunk {
	struct change changes[CHUNK_CHANGES];
};

/* The chunks of a region: the first and the last, by their number and one. 0: none. */
struct chain {
	uint32_t first, last;
};

struct s3_map_batch {
	struct s3_map *m;
	struct chunk *chunks;
	uint32_t *next;	      /* of each chunk: the one behind it in its region */
	uint16_t *used;	      /* of each chunk */
	uint32_t n, room;     /* chunks */
	struct chain *chains; /* REGIONS */
	uint32_t *touched;    /* regions that have a chunk: n_touched */
	uint32_t n_touched;
	uint64_t seq; /* of the first */
	_Atomic uint32_t turn;
	_Atomic int error;
};

/* A leaf that is taken apart: those of its entries count that are in the set. */
struct open_leaf {
	entry flat[LEAF_BLOCKS];
	uint64_t set[LEAF_BLOCKS / 64];
};

/* What applies a batch: one for each thread. */
struct applier {
	struct s3_map_batch *batch;
	struct region *region;
	struct change *slice, *sorted; /* SLICE each */
	uint32_t begins[LEAVES + 1];   /* in sorted */
	struct open_leaf leaf;
	int64_t mapped;
};

struct s3_map_batch *s3_map_batch_new(struct s3_map *m, size_t bytes)
{
	struct s3_map_batch *b = calloc(1, sizeof *b);
	size_t room = bytes / (sizeof(struct chunk) + sizeof *b->next + sizeof *b->used);

	if (!b)
		return NULL;
	/* A change of 64 Ki blocks, with what they were, has to fit. */
	b->room = room < 16 ? 16 : room > REGIONS * 16u ? REGIONS * 16u : (uint32_t)room;
	b->m = m;
	b->chunks = malloc(b->room * sizeof *b->chunks);
	b->next = malloc(b->room * sizeof *b->next);
	b->used = malloc(b->room * sizeof *b->used);
	b->chains = calloc(REGIONS, sizeof *b->chains);
	b->touched = malloc((b->room < REGIONS ? b->room : REGIONS) * sizeof *b->touched);
	if (b->chunks && b->next && b->used && b->chains && b->touched)
		return b;
	s3_map_batch_free(b);
	return NULL;
}

void s3_map_batch_free(struct s3_map_batch *b)
{
	if (!b)
		return;
	free(b->chunks);
	free(b->next);
	free(b->used);
	free(b->chains);
	free(b->touched);
	free(b);
}

/* Adds a change of a region. There is a chunk for it. */
static void add_change(struct s3_map_batch *b, uint32_t region, struct change c)
{
	struct chain *chain = &b->chains[region];

	if (!chain->last || b->used[chain->last - 1] == CHUNK_CHANGES) {
		b->next[b->n] = 0;
		b->used[b->n] = 0;
		if (chain->last)
			b->next[chain->last - 1] = b->n + 1;
		else
			b->touched[b->n_touched++] = region;
		chain->last = ++b->n;
		if (!chain->first)
			chain->first = chain->last;
	}
	b->chunks[chain->last - 1].changes[b->used[chain->last - 1]++] = c;
}

/* Makes room for changes of so many blocks; -ENOMEM as s3_map_batch_apply(). */
static int batch_room(struct s3_map_batch *b, uint64_t seq, uint64_t count)
{
	/* Two for each leaf, in two regions. */
	uint64_t chunks = (count / LEAF_BLOCKS + 2) * 2 / CHUNK_CHANGES + 3;
	int r = 0;

	if (b->n + chunks > b->room || (b->n && seq - b->seq > UINT32_MAX))
		r = s3_map_batch_apply(b);
	if (!b->n)
		b->seq = seq;
	return r;
}

/* from: what the blocks have to be; 0: that does not matter. */
static void batch_add(
	struct s3_map_batch *b, uint64_t seq, uint64_t lba, uint64_t count, entry from, entry to)
{
	uint64_t end = lba + count;

	while (lba < end) {
		struct part part = part_at(lba, end);
		unsigned n = part.b - part.a;
		struct change c = {to, (uint32_t)(seq - b->seq), WHERE(part.leaf, part.a, n, 0)};

		if (from) {
			add_change(b, part.region,
				(struct change){from, c.seq, WHERE(part.leaf, part.a, n, 1)});
			from += n;
		}
		add_change(b, part.region, c);
		lba += n;
		to += to ? n : 0;
	}
}

int s3_map_batch_update(struct s3_map_batch *b, uint64_t seq, uint64_t lba, uint64_t count,
	uint32_t slot, uint32_t offset)
{
	int r = batch_room(b, seq, count);

	if (r)
		return r;
	/* They come in the order of the log, which is that of the objects. */
	s3_objects_live_unlisted(b->m->objects, slot, (int32_t)count, seq);
	batch_add(b, seq, lba, count, 0, entry_of(slot, offset));
	return 0;
}

int s3_map_batch_punch(struct s3_map_batch *b, uint64_t seq, uint64_t lba, uint64_t count)
{
	int r;

	/* What is so long leaves little of the map, and may be as long as that. */
	if (count > S3_OBJECT_MAX) {
		r = s3_map_batch_apply(b);
		return r ? r : s3_map_punch(b->m, seq, lba, count);
	}
	r = batch_room(b, seq, count);
	if (r == 0)
		batch_add(b, seq, lba, count, 0, 0);
	return r;
}

int s3_map_batch_relocate(struct s3_map_batch *b, uint64_t seq, uint64_t lba, uint64_t count,
	uint32_t source, uint32_t source_offset, uint32_t slot, uint32_t offset)
{
	int r = batch_room(b, seq, count);

	if (r == 0)
		batch_add(b, seq, lba, count, entry_of(source, source_offset),
			entry_of(slot, offset));
	return r;
}

static void open_leaf(struct open_leaf *o, const struct leaf *l)
{
	struct piece pieces[LEAF_BLOCKS];
	size_t n = pieces_of(l, 0, LEAF_BLOCKS, pieces);

	memset(o->set, 0, sizeof o->set);
	for (size_t i = 0; i < n; i++) {
		fill(o->flat, pieces[i]);
		for (unsigned j = 0; j < pieces[i].count; j++)
			o->set[(pieces[i].start + j) / 64] |= 1ull << (pieces[i].start + j) % 64;
	}
}

static int close_leaf(struct s3_map *m, const struct open_leaf *o, struct leaf *l)
{
	struct piece pieces[LEAF_BLOCKS], *last = NULL;
	size_t n = 0;

	for (unsigned w = 0; w < LEAF_BLOCKS / 64; w++)
		for (uint64_t bits = o->set[w]; bits; bits &= bits - 1) {
			unsigned i = w * 64 + (unsigned)__builtin_ctzll(bits);

			if (last && last->start + last->count == i &&
				continues(last->entry, last->count, o->flat[i])) {
				last->count++;
				continue;
			}
			last = &pieces[n++];
			*last = (struct piece){o->flat[i], (uint16_t)i, 1};
		}
	return leaf_build(m, l, pieces, n);
}

/* One change of the leaf that is open. from: what has to be there, 0: anything. */
static void open_set(struct applier *a, const struct change *c, entry from)
{
	struct open_leaf *o = &a->leaf;
	struct s3_objects *objects = a->batch->m->objects;
	uint64_t seq = a->batch->seq + c->seq;
	unsigned start = WHERE_START(c->where), count = WHERE_COUNT(c->where);
	entry to = c->entry;
	uint32_t gone = S3_NO_SLOT, source = slot_in(from);
	int32_t n_gone = 0, n_came = 0;
	bool changed = false;

	for (unsigned i = start; i < start + count; i++, to += to != 0, from += from != 0) {
		uint64_t bit = 1ull << i % 64, *set = &o->set[i / 64];
		bool is = *set & bit;

		if (from && (!is || o->flat[i] != from || slot_in(from) != source))
			continue;
		changed |= is || to;
		if (is) {
			if (n_gone && slot_in(o->flat[i]) != gone) {
				s3_objects_live_unlisted(objects, gone, -n_gone, seq);
				a->mapped -= n_gone;
				n_gone = 0;
			}
			gone = slot_in(o->flat[i]);
			n_gone++;
		}
		o->flat[i] = to;
		*set = to ? *set | bit : *set & ~bit;
		n_came += to != 0;
	}
	if (n_gone)
		s3_objects_live_unlisted(objects, gone, -n_gone, seq);
	/* Of an update they have been counted. */
	if (from && n_came)
		s3_objects_live_unlisted(objects, slot_in(c->entry), n_came, seq);
	a->mapped += n_came - n_gone;
	if (changed && !atomic_load_explicit(&a->region->changed, memory_order_relaxed))
		atomic_store(&a->region->changed, true);
}

/* The changes of a leaf. */
static int apply_leaf(struct applier *a, unsigned leaf, const struct change *c, size_t n)
{
	struct leaf *l = &a->region->leaves[leaf];
	entry from = 0;

	open_leaf(&a->leaf, l);
	for (size_t i = 0; i < n; i++) {
		if (WHERE_FROM(c[i].where)) {
			from = c[i].entry;
			continue;
		}
		open_set(a, &c[i], from);
		from = 0;
	}
	return close_leaf(a->batch->m, &a->leaf, l);
}

static int apply_slice(struct applier *a, size_t n)
{
	uint32_t *begins = a->begins;
	int r = 0;

	memset(begins, 0, sizeof a->begins);
	for (size_t i = 0; i < n; i++)
		begins[WHERE_LEAF(a->slice[i].where) + 1]++;
	for (unsigned i = 1; i <= LEAVES; i++)
		begins[i] += begins[i - 1];
	for (size_t i = 0; i < n; i++)
		a->sorted[begins[WHERE_LEAF(a->slice[i].where)]++] = a->slice[i];
	/* Now begins[i] is where the next leaf begins. */
	for (unsigned i = 0; r == 0 && i < LEAVES; i++) {
		uint32_t first = i ? begins[i - 1] : 0;

		if (begins[i] > first)
			r = apply_leaf(a, i, a->sorted + first, begins[i] - first);
	}
	return r;
}

/* Do the changes of a region bring anything into it, if there is nothing? */
static bool fills(const struct s3_map_batch *b, uint32_t index)
{
	for (uint32_t i = b->chains[index].first; i; i = b->next[i - 1])
		for (unsigned j = 0; j < b->used[i - 1]; j++)
			if (b->chunks[i - 1].changes[j].entry)
				return true;
	return false;
}

static int apply_changes(struct applier *a, uint32_t index)
{
	struct s3_map_batch *b = a->batch;
	size_t n = 0;
	int r = 0;

	a->region = b->m->regions[index];
	if (!a->region && !fills(b, index))
		return 0;
	if (!a->region)
		a->region = region_make(b->m, index);
	if (!a->region)
		return -ENOMEM;
	for (uint32_t i = b->chains[index].first; r == 0 && i; i = b->next[i - 1]) {
		struct change last;

		memcpy(a->slice + n, b->chunks[i - 1].changes,
			b->used[i - 1] * sizeof(struct change));
		n += b->used[i - 1];
		if (n + CHUNK_CHANGES < SLICE)
			continue;
		/* What a relocation finds and what it leaves are not to be parted. */
		last = a->slice[n - 1];
		n -= WHERE_FROM(last.where);
		r = apply_slice(a, n);
		n = WHERE_FROM(last.where);
		a->slice[0] = last;
	}
	return r == 0 && n ? apply_slice(a, n) : r;
}

/* Takes one region after the other until all are applied. */
static void *apply_regions(void *opaque)
{
	struct s3_map_batch *b = opaque;
	struct applier *a = malloc(sizeof *a);
	int r = 0;

	if (a)
		*a = (struct applier){.batch = b,
			.slice = malloc(SLICE * sizeof(struct change)),
			.sorted = malloc(SLICE * sizeof(struct change))};
	if (!a || !a->slice || !a->sorted)
		r = -ENOMEM;
	while (r == 0) {
		uint32_t turn = atomic_fetch_add(&b->turn, 1);

		if (turn >= b->n_touched || atomic_load(&b->error))
			break;
		r = apply_changes(a, b->touched[turn]);
	}
	if (r)
		atomic_store(&b->error, r);
	if (a) {
		atomic_fetch_add(&b->m->mapped, (uint64_t)a->mapped);
		free(a->slice);
		free(a->sorted);
	}
	free(a);
	return NULL;
}

int s3_map_batch_apply(struct s3_map_batch *b)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	pthread_t threads[BATCH_THREADS];
	unsigned wanted = 0, n = 0;

	if (!b->n)
		return 0;
	if (cpus > 1)
		wanted = (cpus < BATCH_THREADS ? (unsigned)cpus : BATCH_THREADS) - 1;
	if (wanted > b->n / (THREAD_CHANGES / CHUNK_CHANGES))
		wanted = b->n / (THREAD_CHANGES / CHUNK_CHANGES);
	atomic_store(&b->turn, 0);
	while (n < wanted && pthread_create(&threads[n], NULL, apply_regions, b) == 0)
		n++;
	apply_regions(b);
	while (n)
		pthread_join(threads[--n], NULL);
	for (uint32_t i = 0; i < b->n_touched; i++)
		b->chains[b->touched[i]] = (struct chain){0};
	b->n = b->n_touched = 0;
	return atomic_load(&b->error);
}

int s3_map_walk(struct s3_map *m, int (*fn)(void *opaque, const struct s3_run *run), void *opaque)
{
	struct s3_run runs[256];
	uint64_t lba = 0, blocks = m->blocks;
	int r = 0;

	while (!r && lba < blocks) {
		size_t n = s3_map_lookup(
			m, lba, blocks - lba, false, runs, sizeof runs / sizeof runs[0]);

		for (size_t i = 0; !r && i < n; i++)
			if (runs[i].slot)
				r = fn(opaque, &runs[i]);
		lba = runs[n - 1].lba + runs[n - 1].count;
	}
	return r;
}
