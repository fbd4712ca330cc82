/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of the map share. map.h is for the others. */
#ifndef USERBLK_S3_STATE_MAP_INTERNAL_H
#define USERBLK_S3_STATE_MAP_INTERNAL_H

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"

struct s3_objects;
struct s3_slab;

#define S3_LEAF_SHIFT  9u
#define S3_LEAF_BLOCKS (1u << S3_LEAF_SHIFT)
#define S3_LEAVES      (S3_REGION_BLOCKS / S3_LEAF_BLOCKS)
#define S3_REGIONS     ((uint32_t)(S3_BLOCKS_MAX >> S3_REGION_SHIFT))
#define S3_SHARDS      1024u

/*
 * Where a block is: slot << 16 | block in the object; 0: a hole. In a run the entry of the next
 * block is the next number.
 */
typedef uint64_t s3_leaf_entry;

/* A run of a leaf as it is kept: 12 bytes, aligned to 4. */
struct s3_packed {
	uint32_t low, high;
	uint16_t start, count;
};

enum s3_leaf_kind { S3_LEAF_EMPTY, S3_LEAF_RUN, S3_LEAF_RUNS, S3_LEAF_FLAT };

/* 512 blocks. */
struct s3_leaf {
	union {
		s3_leaf_entry entry;	/* RUN */
		struct s3_packed *runs; /* RUNS: start of them, room for count */
		s3_leaf_entry *flat;	/* FLAT: has start runs */
	};
	uint16_t start, count; /* RUN */
	uint8_t kind;
	bool whole;	/* of notes: see note() */
	uint16_t index; /* of notes: the leaf */
};
_Static_assert(
	sizeof(struct s3_leaf) == 16 && sizeof(struct s3_packed) == 12, "what map.h promises");

/* A run of a leaf, or of a part of it. */
struct s3_leaf_piece {
	s3_leaf_entry entry;
	uint16_t start, count;
};

struct s3_region {
	struct s3_leaf leaves[S3_LEAVES]; /* each under the lock of its shard */
	_Atomic bool changed;		  /* since the last checkpoint */
	/*
	 * Being captured: leaf i is still to be copied unless copied[i] (under its shard's lock).
	 * A change of such a leaf adds to notes what is displaced.
	 */
	_Atomic bool capturing;
	bool copied[S3_LEAVES];
	pthread_mutex_t lock; /* guards notes; taken inside a shard's */
	struct s3_leaf *notes;
	size_t n_notes, notes_room;
	uint64_t notes_bytes; /* what they take */
};

struct s3_shard {
	pthread_mutex_t lock;
	char pad[64 - sizeof(pthread_mutex_t)]; /* a cache line of its own */
};

struct s3_map {
	struct s3_objects *objects;
	struct s3_slab *slab; /* of the leaves' runs and entries */
	_Atomic uint64_t blocks;
	_Atomic uint64_t memory; /* besides the slab */
	_Atomic uint64_t notes;	 /* bytes of all of them */
	_Atomic uint64_t mapped;
	struct s3_region *_Atomic *regions; /* REGIONS; made when first written */
	_Atomic uint32_t top;		    /* regions from here on were never made */
	pthread_mutex_t making;		    /* of a region */
	struct s3_shard shards[S3_SHARDS];
	/* The checkpoint that is running. */
	uint32_t *captured; /* indexes of its regions; NULL: none is running */
	size_t n_captured;
	s3_leaf_entry *scratch; /* a region's entries; all zero between two regions */
};

/* The part of [lba, end) that is in one leaf. */
struct s3_map_part {
	uint32_t region;
	unsigned leaf, a, b;
	uint64_t base; /* block address of the leaf */
};
_Static_assert(S3_LEAVES <= 1u << 13 && S3_LEAF_BLOCKS == 512, "what WHERE() has room for");

/* ---- leaf.c ---- */

/* What lies in [a, b) of a leaf, holes left out: how many pieces. */
size_t s3_leaf_pieces_of(
	const struct s3_leaf *l, unsigned a, unsigned b, struct s3_leaf_piece out[S3_LEAF_BLOCKS]);
/* Runs that begin in [a, b] of a flat leaf. */
unsigned s3_leaf_count_starts(const s3_leaf_entry *flat, unsigned a, unsigned b);
/* Frees a leaf. */
void s3_leaf_drop(struct s3_map *m, struct s3_leaf *l);
/* Turns a flat leaf that now has few runs into an array; without memory it stays flat. */
void s3_leaf_shrink(struct s3_map *m, struct s3_leaf *l);
/* n pieces, ascending, none continuing the one before, become all that a leaf holds. */
int s3_leaf_build(
	struct s3_map *m, struct s3_leaf *l, const struct s3_leaf_piece *pieces, size_t n);
/* Sets [p.start, p.start + p.count) of a leaf that is not flat; entry 0: a hole. */
int s3_leaf_runs_set(struct s3_map *m, struct s3_leaf *l, struct s3_leaf_piece p);

/* ---- map.c ---- */

/* Frees the notes of a capture. */
void s3_map_drop_notes(struct s3_map *m, struct s3_leaf *notes, size_t n);
/* A region, made if there is none. NULL: no memory. */
struct s3_region *s3_map_region_make(struct s3_map *m, uint32_t index);

/* What malloc() takes for p, its own word included. */
static inline size_t s3_map_weight(void *p)
{
	return p ? malloc_usable_size(p) + sizeof(size_t) : 0;
}

/* Memory for a part of a leaf; counts it. NULL: none. */
static inline void *s3_leaf_take(struct s3_map *m, size_t bytes)
{
	void *p = malloc(bytes);

	atomic_fetch_add(&m->memory, s3_map_weight(p));
	return p;
}

/* Gives it back. */
static inline void s3_leaf_give(struct s3_map *m, void *p)
{
	atomic_fetch_sub(&m->memory, s3_map_weight(p));
	free(p);
}

/* Where a block is, as an entry of a leaf. */
static inline s3_leaf_entry s3_leaf_entry_of(uint32_t slot, uint32_t offset)
{
	return (s3_leaf_entry)slot << 16 | offset;
}

/* The slot in an entry. */
static inline uint32_t s3_leaf_slot(s3_leaf_entry e)
{
	return (uint32_t)(e >> 16);
}

/* Does e continue a run of count blocks at before? The last block of an object is not followed
 * by the first of the next slot. */
static inline bool s3_leaf_continues(s3_leaf_entry before, uint64_t count, s3_leaf_entry e)
{
	return before && e == before + count && s3_leaf_slot(e) == s3_leaf_slot(before);
}

/* Enters a piece into the entries of a flat leaf. */
static inline void s3_leaf_fill(s3_leaf_entry *flat, struct s3_leaf_piece p)
{
	for (unsigned i = 0; i < p.count; i++)
		flat[p.start + i] = p.entry ? p.entry + i : 0;
}

/* The same, and the leaf becomes an array of runs if it has few. */
static inline void s3_leaf_flat_set(struct s3_map *m, struct s3_leaf *l, struct s3_leaf_piece p)
{
	unsigned a = p.start, b = a + p.count;
	unsigned before = s3_leaf_count_starts(l->flat, a, b);

	s3_leaf_fill(l->flat, p);
	l->start = (uint16_t)(l->start + s3_leaf_count_starts(l->flat, a, b) - before);
	s3_leaf_shrink(m, l);
}

/* The lock of the leaf that block lba is in. */
static inline pthread_mutex_t *s3_map_lock_of(struct s3_map *m, uint64_t lba)
{
	return &m->shards[lba >> S3_LEAF_SHIFT & (S3_SHARDS - 1)].lock;
}

/* The part of a range of blocks that is in one leaf. */
static inline struct s3_map_part s3_map_part_at(uint64_t lba, uint64_t end)
{
	uint64_t base = lba & ~(uint64_t)(S3_LEAF_BLOCKS - 1);

	return (struct s3_map_part){
		.region = (uint32_t)(lba >> S3_REGION_SHIFT),
		.leaf = (unsigned)(lba >> S3_LEAF_SHIFT & (S3_LEAVES - 1)),
		.a = (unsigned)(lba - base),
		.b = end - base < S3_LEAF_BLOCKS ? (unsigned)(end - base) : S3_LEAF_BLOCKS,
		.base = base,
	};
}

#endif
