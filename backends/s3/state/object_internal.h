/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of the table of objects share. object_table.h is for the others. */
#ifndef USERBLK_S3_STATE_OBJECT_INTERNAL_H
#define USERBLK_S3_STATE_OBJECT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/state/object_table.h"

#define S3_TABLE_CHUNK	64u
#define S3_TABLE_CHUNKS (1u << 20)

#define S3_USE_STEPS 50u
enum {
	S3_LIST_NONE,
	S3_LIST_DEAD, /* ascending by death */
	S3_LIST_HELD, /* by the newest snapshot, or not ours: nothing to compact */
	S3_LIST_USE,  /* + use */
	S3_LIST_SMALL = S3_LIST_USE + S3_USE_STEPS + 1, /* the same of small ones */
	S3_LISTS = S3_LIST_SMALL + S3_USE_STEPS + 1,
};

enum s3_object_state {
	S3_SLOT_FREE,
	S3_SLOT_OPEN, /* its records are not all in the map */
	S3_SLOT_LISTED,
	S3_SLOT_TAKEN, /* by GC: in no list */
};

struct s3_slot {
	uint64_t id, birth;
	_Atomic uint64_t death;
	_Atomic uint32_t bytes, blocks; /* of an open object they may still change */
	_Atomic uint32_t live;
	_Atomic uint32_t held;	/* by snapshots but the newest */
	_Atomic uint32_t fresh; /* by the newest */
	_Atomic uint32_t pins;
	uint32_t prev, next;
	_Atomic uint16_t header_units; /* of S3_ALIGN */
	uint8_t origin;
	uint8_t state;
	uint8_t list;
	bool dead;
};
_Static_assert(sizeof(struct s3_slot) == 64, "what object_table.h promises");

struct s3_held {
	uint32_t slot, count;
};

struct s3_objects_snapshot_entry {
	uint64_t seq;
	/* What died while it was the newest, ascending by slot; of the newest itself, slot.fresh.
	 */
	struct s3_held *held;
	size_t n_held;
};

struct s3_objects {
	uint32_t target;
	struct s3_slot **chunks; /* S3_TABLE_CHUNKS */
	uint64_t *used;		 /* S3_TABLE_CHUNKS: a bit per slot */
	uint32_t n_chunks;	 /* those from here on were never used */
	uint32_t hint;		 /* chunks below have no free slot */
	_Atomic uint64_t newest; /* seq of the newest snapshot; 0: none */
	/* For this volume's objects. */
	_Atomic uint64_t live, held;

	pthread_mutex_t lock; /* guards what follows, and in slots what is not atomic */
	bool disorder;	      /* the dead are about to be sorted */
	uint32_t heads[S3_LISTS], tails[S3_LISTS];
	uint32_t *hash; /* slots by origin and id; 0: empty */
	uint32_t hash_size;
	struct s3_objects_snapshot_entry *snapshots; /* ascending */
	size_t n_snapshots;
	uint64_t objects, small, dead, deaths, bytes, blocks, dead_bytes, dead_blocks, allocated;
};

#define s3_for_each_slot(o, n)                                                                     \
	for (uint32_t n = s3_objects_slot_after(o, 1); n; n = s3_objects_slot_after(o, n + 1))

/* ---- object_table.c ---- */

/* Makes a chunk of slots. 0 or -ENOMEM. */
int s3_objects_chunk_make(struct s3_objects *o, uint32_t c);
/* Marks a slot as used. */
void s3_objects_slot_use(struct s3_objects *o, uint32_t n);
/* Where it is, or where it would be. */
uint32_t s3_objects_hash_place(const struct s3_objects *o, uint8_t origin, uint64_t id);
/* Enters all slots again into a table of size. */
int s3_objects_hash_rebuild(struct s3_objects *o, uint32_t size);
/* Counts an object among the dead, or no longer. */
void s3_objects_set_dead(struct s3_objects *o, struct s3_slot *s, bool dead);
/*
 * seq: when those died that are found dead. In the order of the slots many would each take a walk
 * to their place, so they are sorted afterwards, if there is memory for that.
 */
void s3_objects_relist_all(struct s3_objects *o, uint64_t seq);
/* Enters an object into slot n. */
void s3_objects_fill(struct s3_objects *o, uint32_t n, const struct s3_object *object);
/* Room in the hash for one more. */
int s3_objects_make_room(struct s3_objects *o);
/* Makes an open object one that may be listed. */
void s3_objects_seal_slot(struct s3_slot *s);
/* What others see of a slot. */
void s3_objects_describe(struct s3_slot *s, struct s3_object *object);

/* ---- object_snapshots.c ---- */

/* Remembers the number of the newest snapshot. */
void s3_objects_set_newest(struct s3_objects *o);
/* Index of the snapshot at seq; n_snapshots: there is none. */
size_t s3_objects_find_snapshot(const struct s3_objects *o, uint64_t seq);
/*
 * What the snapshot of an index holds, as a list that the caller frees; without the one of index
 * gone (n_snapshots: with all). 0 or -ENOMEM.
 */
int s3_objects_list_held(
	struct s3_objects *o, size_t i, size_t gone, struct s3_held **list, size_t *n_list);

/* A slot by its number. */
static inline struct s3_slot *s3_objects_slot(const struct s3_objects *o, uint32_t n)
{
	return &o->chunks[n / S3_TABLE_CHUNK][n % S3_TABLE_CHUNK];
}

/* Blocks of an object that the head or a snapshot uses. */
static inline uint32_t s3_objects_used_blocks(struct s3_slot *s)
{
	return atomic_load(&s->live) + atomic_load(&s->held) + atomic_load(&s->fresh);
}

/* The first slot in use from n on; S3_NO_SLOT: none. */
static inline uint32_t s3_objects_slot_after(const struct s3_objects *o, uint32_t n)
{
	for (uint32_t c = n / S3_TABLE_CHUNK; c < o->n_chunks; c++, n = c * S3_TABLE_CHUNK) {
		uint64_t bits = o->used[c] & UINT64_MAX << n % S3_TABLE_CHUNK;

		if (bits)
			return c * S3_TABLE_CHUNK + (uint32_t)__builtin_ctzll(bits);
	}
	return S3_NO_SLOT;
}

/* Is the slot in use? */
static inline bool s3_objects_slot_used(const struct s3_objects *o, uint64_t n)
{
	return n / S3_TABLE_CHUNK < o->n_chunks &&
	       o->used[n / S3_TABLE_CHUNK] >> n % S3_TABLE_CHUNK & 1;
}

#endif
