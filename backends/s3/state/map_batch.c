/* SPDX-License-Identifier: BSD-3-Clause */
/* Many changes at once, as recovery brings them: sorted by leaf, applied by some threads. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/s3/format/format.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/map_internal.h"
#include "backends/s3/state/object_internal.h"
#include "backends/s3/state/object_table.h"

/*
 * Changes are kept by region in the order in which they came, then sorted by leaf. So a leaf is
 * taken apart and put together once for all changes of it that are near, and what it takes of the
 * cache is used again.
 */
#define CHUNK_CHANGES 64u
#define SLICE	      (64u << 10) /* changes that are sorted at once */
#define BATCH_THREADS 4u
/* So many leaves before its turn the runs of one are asked for; runs in a line of the CPU's cache.
 */
#define LEAVES_AHEAD 3u
#define RUNS_A_LINE  5u
/* Fewer changes than that are not worth another thread. */
#define THREAD_CHANGES (64u << 10)

/* A change of a part of a leaf. */
struct change {
	s3_leaf_entry entry; /* 0: a hole */
	uint32_t seq;	     /* less the batch's first */
	uint32_t where;	     /* WHERE() */
};

/* from: it says what the blocks have to be for the next change of them to happen. */
#define WHERE(leaf, a, count, from)                                                                \
	((uint32_t)(leaf) << 19 | (uint32_t)(a) << 10 | ((uint32_t)(count)-1) << 1 | (from))
#define WHERE_LEAF(w)  ((w) >> 19)
#define WHERE_START(w) ((w) >> 10 & (S3_LEAF_BLOCKS - 1))
#define WHERE_COUNT(w) (((w) >> 1 & (S3_LEAF_BLOCKS - 1)) + 1)
#define WHERE_FROM(w)  ((w)&1)

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
	s3_leaf_entry flat[S3_LEAF_BLOCKS];
	uint64_t set[S3_LEAF_BLOCKS / 64];
};

/* What applies a batch: one for each thread. */
struct applier {
	struct s3_map_batch *batch;
	struct s3_region *region;
	struct change *slice, *sorted;	/* SLICE each */
	uint32_t begins[S3_LEAVES + 1]; /* in sorted */
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
	b->room = room < 16 ? 16 : room > S3_REGIONS * 16u ? S3_REGIONS * 16u : (uint32_t)room;
	b->m = m;
	b->chunks = malloc(b->room * sizeof *b->chunks);
	b->next = malloc(b->room * sizeof *b->next);
	b->used = malloc(b->room * sizeof *b->used);
	b->chains = calloc(S3_REGIONS, sizeof *b->chains);
	b->touched = malloc((b->room < S3_REGIONS ? b->room : S3_REGIONS) * sizeof *b->touched);
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
	uint64_t chunks = (count / S3_LEAF_BLOCKS + 2) * 2 / CHUNK_CHANGES + 3;
	int r = 0;

	if (b->n + chunks > b->room || (b->n && seq - b->seq > UINT32_MAX))
		r = s3_map_batch_apply(b);
	if (!b->n)
		b->seq = seq;
	return r;
}

/* from: what the blocks have to be; 0: that does not matter. */
static void batch_add(struct s3_map_batch *b, uint64_t seq, uint64_t lba, uint64_t count,
	s3_leaf_entry from, s3_leaf_entry to)
{
	uint64_t end = lba + count;

	while (lba < end) {
		struct s3_map_part part = s3_map_part_at(lba, end);
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
	batch_add(b, seq, lba, count, 0, s3_leaf_entry_of(slot, offset));
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
		batch_add(b, seq, lba, count, s3_leaf_entry_of(source, source_offset),
			s3_leaf_entry_of(slot, offset));
	return r;
}

static void open_leaf(struct open_leaf *o, const struct s3_leaf *l)
{
	struct s3_leaf_piece pieces[S3_LEAF_BLOCKS];
	size_t n = s3_leaf_pieces_of(l, 0, S3_LEAF_BLOCKS, pieces);

	memset(o->set, 0, sizeof o->set);
	for (size_t i = 0; i < n; i++) {
		s3_leaf_fill(o->flat, pieces[i]);
		for (unsigned j = 0; j < pieces[i].count; j++)
			o->set[(pieces[i].start + j) / 64] |= 1ull << (pieces[i].start + j) % 64;
	}
}

static int close_leaf(struct s3_map *m, const struct open_leaf *o, struct s3_leaf *l)
{
	struct s3_leaf_piece pieces[S3_LEAF_BLOCKS], *last = NULL;
	size_t n = 0;

	for (unsigned w = 0; w < S3_LEAF_BLOCKS / 64; w++)
		for (uint64_t bits = o->set[w]; bits; bits &= bits - 1) {
			unsigned i = w * 64 + (unsigned)__builtin_ctzll(bits);

			if (last && last->start + last->count == i &&
				s3_leaf_continues(last->entry, last->count, o->flat[i])) {
				last->count++;
				continue;
			}
			last = &pieces[n++];
			*last = (struct s3_leaf_piece){o->flat[i], (uint16_t)i, 1};
		}
	return s3_leaf_build(m, l, pieces, n);
}

/* One change of the leaf that is open. from: what has to be there, 0: anything. */
static void open_set(struct applier *a, const struct change *c, s3_leaf_entry from)
{
	struct open_leaf *o = &a->leaf;
	struct s3_objects *objects = a->batch->m->objects;
	uint64_t seq = a->batch->seq + c->seq;
	unsigned start = WHERE_START(c->where), count = WHERE_COUNT(c->where);
	s3_leaf_entry to = c->entry;
	uint32_t gone = S3_NO_SLOT, source = s3_leaf_slot(from);
	int32_t n_gone = 0, n_came = 0;
	bool changed = false;

	for (unsigned i = start; i < start + count; i++, to += to != 0, from += from != 0) {
		uint64_t bit = 1ull << i % 64, *set = &o->set[i / 64];
		bool is = *set & bit;

		if (from && (!is || o->flat[i] != from || s3_leaf_slot(from) != source))
			continue;
		changed |= is || to;
		if (is) {
			if (n_gone && s3_leaf_slot(o->flat[i]) != gone) {
				s3_objects_live_unlisted(objects, gone, -n_gone, seq);
				a->mapped -= n_gone;
				n_gone = 0;
			}
			gone = s3_leaf_slot(o->flat[i]);
			n_gone++;
		}
		o->flat[i] = to;
		*set = to ? *set | bit : *set & ~bit;
		n_came += to != 0;
	}
	if (n_gone)
		s3_objects_live_unlisted(objects, gone, -n_gone, seq);
	/* An update has counted them already. */
	if (from && n_came)
		s3_objects_live_unlisted(objects, s3_leaf_slot(c->entry), n_came, seq);
	a->mapped += n_came - n_gone;
	if (changed && !atomic_load_explicit(&a->region->changed, memory_order_relaxed))
		atomic_store(&a->region->changed, true);
}

/* The changes of a leaf. */
static int apply_leaf(struct applier *a, unsigned leaf, const struct change *c, size_t n)
{
	struct s3_leaf *l = &a->region->leaves[leaf];
	s3_leaf_entry from = 0;

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

/* What a leaf holds is anywhere in memory; most are there when their turn comes. */
static void prefetch_leaf(const struct applier *a, unsigned leaf)
{
	const struct s3_leaf *l;

	if (leaf >= S3_LEAVES)
		return;
	l = &a->region->leaves[leaf];
	for (unsigned i = 0; l->kind == S3_LEAF_RUNS && i < l->start; i += RUNS_A_LINE)
		__builtin_prefetch(&l->runs[i]);
}

static int apply_slice(struct applier *a, size_t n)
{
	uint32_t *begins = a->begins;
	int r = 0;

	memset(begins, 0, sizeof a->begins);
	for (size_t i = 0; i < n; i++)
		begins[WHERE_LEAF(a->slice[i].where) + 1]++;
	for (unsigned i = 1; i <= S3_LEAVES; i++)
		begins[i] += begins[i - 1];
	for (size_t i = 0; i < n; i++)
		a->sorted[begins[WHERE_LEAF(a->slice[i].where)]++] = a->slice[i];
	/* Now begins[i] is where the next leaf begins. */
	for (unsigned i = 0; r == 0 && i < S3_LEAVES; i++) {
		uint32_t first = i ? begins[i - 1] : 0;

		prefetch_leaf(a, i + LEAVES_AHEAD);
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
		a->region = s3_map_region_make(b->m, index);
	if (!a->region)
		return -ENOMEM;
	for (uint32_t i = b->chains[index].first; r == 0 && i; i = b->next[i - 1]) {
		struct change last;

		memcpy(a->slice + n, b->chunks[i - 1].changes,
			b->used[i - 1] * sizeof(struct change));
		n += b->used[i - 1];
		if (n + CHUNK_CHANGES < SLICE)
			continue;
		/* What a relocation finds and what it leaves must stay together. */
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
