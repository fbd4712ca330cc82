/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The table of objects that a volume's map refers to: how much of each is alive,
 * what snapshots hold of it, which are dead or worth compacting. 64 bytes each.
 *
 * A block of an object lives in the head (the volume as it is now) without a break from
 * the object's birth to its displacement. So snapshots need no list of blocks: a block that is
 * displaced is held by the newest snapshot if the object was born before it; when
 * a snapshot is deleted, what it holds goes to the one before it, or is free if the
 * object was born later. (ZFS's dead lists, counted per object.)
 *
 * Any number of threads may call these functions; those that say "exclusive" not beside
 * changes of the map. A slot may be looked at as long as it is pinned, alive, or taken.
 */
#ifndef USERBLK_S3_OBJECT_TABLE_H
#define USERBLK_S3_OBJECT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/format.h"

#define S3_NO_SLOT 0u /* what the map says of a hole; slots begin at 1 */

struct s3_objects;

/* What is known of one object. */
struct s3_object {
	uint64_t id;	/* format.h; with S3_GC for a GC object */
	uint64_t birth; /* sequence number of the log object whose records put it into the map */
	uint64_t death; /* of the one that took the last block out; 0: alive or held */
	uint8_t origin; /* 0: this volume; n: parents[n - 1] of the super */
	uint32_t bytes; /* stored, header included */
	uint32_t header_bytes;
	uint32_t blocks; /* of data */
	uint32_t live;	 /* blocks in the head */
	uint32_t held;	 /* blocks that only snapshots hold */
};

/* target: blocks of a full object; those with less than half are small. NULL: no memory. */
struct s3_objects *s3_objects_new(uint32_t target_blocks);
void s3_objects_free(struct s3_objects *o);

/*
 * A new object, with nothing of it in the map; it is no candidate for anything until it
 * is sealed, that is when its records are in the map. id, birth, origin, bytes,
 * header_bytes and blocks are taken. 0: no memory, or it is there (s3_objects_find()).
 */
uint32_t s3_objects_add(struct s3_objects *o, const struct s3_object *object);
/*
 * What becomes known of a log object, of which blocks are in the map since it was begun, when its
 * last block is: before s3_objects_seal().
 */
void s3_objects_size(struct s3_objects *o, uint32_t slot, uint32_t bytes, uint32_t header_bytes,
	uint32_t blocks);
/* seq: of the log object that was applied. */
void s3_objects_seal(struct s3_objects *o, uint32_t slot, uint64_t seq);
/* Slot of an object; S3_NO_SLOT: not there. */
uint32_t s3_objects_find(struct s3_objects *o, uint8_t origin, uint64_t id);
/* The same, pinned. */
uint32_t s3_objects_find_pinned(struct s3_objects *o, uint8_t origin, uint64_t id);
void s3_objects_get(struct s3_objects *o, uint32_t slot, struct s3_object *object);
/* Is the rest of the table for objects that free others: trims, and what is moved? */
bool s3_objects_crowded(struct s3_objects *o);

/* A read is under way, or has ended: the slot keeps its object. s3_map_lookup() pins. */
void s3_objects_pin(struct s3_objects *o, uint32_t slot);
void s3_objects_unpin(struct s3_objects *o, uint32_t slot);

/* The map's: blocks of slot entered (delta > 0) or left the head through seq. */
void s3_objects_live(struct s3_objects *o, uint32_t slot, int32_t delta, uint64_t seq);

/*
 * The same while a map is built and nobody looks at lists or totals: they are made again by
 * s3_objects_settle(). Calls for one slot may come in any order of their seq.
 */
void s3_objects_live_unlisted(struct s3_objects *o, uint32_t slot, int32_t delta, uint64_t seq);

/* ---- GC ---------------------------------------------------------------------- */

/*
 * Takes up to max dead objects of this volume whose death is at most limit (the frontier of
 * the oldest root that is kept, so that recovery needs neither their headers nor their
 * data) and that nobody reads. They are the caller's: s3_objects_remove() when the store has
 * deleted them (those of ancestors: at once), s3_objects_put_back() when not. Oldest death
 * first. How many.
 */
size_t s3_objects_take_dead(struct s3_objects *o, uint64_t limit, uint32_t *slots, size_t max);

/*
 * Takes up to max objects worth compacting, the least used first: those of whose blocks less than
 * percent (in steps of 2) are used, and with small also those that are small, however used.
 * None that a snapshot holds, because relocating frees nothing then. They are the caller's until
 * s3_objects_put_back(), which finds the dead among them.
 */
size_t s3_objects_take_sparse(
	struct s3_objects *o, unsigned percent, bool small, uint32_t *slots, size_t max);
void s3_objects_put_back(struct s3_objects *o, uint32_t slot);

/* Forgets an object; the slot may be used again. -EBUSY: alive, held or being read. */
int s3_objects_remove(struct s3_objects *o, uint32_t slot);

struct s3_objects_totals {
	/* small: worth compacting for that; held ones are not. dead: not yet removed */
	uint64_t objects, small, dead;
	uint64_t bytes;		     /* of all objects of this volume, as stored */
	uint64_t blocks, live, held; /* of those */
	uint64_t dead_bytes, dead_blocks;
	uint64_t memory; /* bytes of the table */
};
void s3_objects_totals(struct s3_objects *o, struct s3_objects_totals *totals);
/* How many objects with data have died, those that are removed by now included. */
uint64_t s3_objects_deaths(struct s3_objects *o);

/* ---- snapshots ----------------------------------------------------------------- */

/* Exclusive. A snapshot of the head at seq, not below the newest one. 0, -EINVAL or -ENOMEM. */
int s3_objects_snapshot(struct s3_objects *o, uint64_t seq);
/* Exclusive. now: the newest sequence number applied. -ENOENT: no such snapshot. */
int s3_objects_snapshot_delete(struct s3_objects *o, uint64_t seq, uint64_t now);
/*
 * Exclusive. The head becomes the snapshot at seq, which has to be the newest (-EINVAL if not:
 * delete the younger ones first). Afterwards no object has live blocks: load the map of the
 * snapshot (s3_map_clear(), s3_map_load()), which counts them, then s3_objects_settle().
 */
int s3_objects_rollback(struct s3_objects *o, uint64_t seq);
/*
 * Exclusive. Makes the table of a parent's snapshot that of a clone: every object is the next
 * ancestor's (origin + 1), there are no snapshots. -ERANGE: the chain is too long; -ENOMEM: the
 * table is no longer of use.
 */
int s3_objects_inherit(struct s3_objects *o);

/* ---- checkpoint ------------------------------------------------------------------ */

/*
 * Exclusive. Appends the table (all sealed objects, dead lists, snapshots) as it is now; without
 * the snapshot at seq gone (0: with all), as s3_objects_snapshot_delete() would leave it.
 */
void s3_objects_encode(struct s3_objects *o, uint64_t gone, struct s3_buffer *out);
/*
 * Fills a new table, with nothing alive: s3_map_load() counts. Then s3_objects_settle(). After
 * anything but S3_GOOD it is only to be freed.
 */
enum s3_check s3_objects_decode(struct s3_objects *o, const void *data, size_t length);
/* The map's while it is loaded: count blocks of slot from offset on are alive. False: there are
 * no such blocks. */
bool s3_objects_count(struct s3_objects *o, uint64_t slot, uint64_t offset, uint32_t count);
/* That is about to be called for slot, which need not be there. */
void s3_objects_prefetch(const struct s3_objects *o, uint32_t slot);
/* Exclusive. The map has been loaded, or changed by s3_map_batch_apply(); now: the sequence number
 * that it stands for. */
void s3_objects_settle(struct s3_objects *o, uint64_t now);
/* Calls fn for each object in order of slots until it answers non-zero, and returns that. */
int s3_objects_walk(struct s3_objects *o,
	int (*fn)(void *opaque, uint32_t slot, const struct s3_object *object), void *opaque);

#endif
