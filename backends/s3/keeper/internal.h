/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of the keeper share. keeper.h is for the others. */
#ifndef USERBLK_S3_KEEPER_INTERNAL_H
#define USERBLK_S3_KEEPER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s3_root;
struct s3_root_region;
struct s3_volume;

/* Objects that are used less than that are compacted; percent. */
#define S3_GC_SPARSE 70
/* s that a request of garbage collection is tried for. */
#define S3_GC_DEADLINE 60

/*
 * The two newest roots of some moment. What neither they nor the snapshots need may go, gc-delay=
 * after that: a process that opens the volume may have begun with what was there before.
 */
struct s3_prune {
	uint64_t due; /* ns, monotonic */
	uint64_t newest, newest_full, previous, previous_full;
	struct s3_root_region *regions, *previous_regions;
	uint32_t n_regions, n_previous_regions;
};

/* ---- keeper.c ---- */

/* Is the volume about to end? Without the lock. */
bool s3_keeper_is_stopping(struct s3_volume *v);

/* ---- checkpointer.c ---- */

/*
 * Is a root that stands where one of ours belongs our own, whose reply was lost? A proxy, too,
 * sends again what had no answer. Frees root and the data that it was read from. 0: yes; -ESTALE:
 * another writer has taken over; -EEXIST: another writer's; or negative errno of the store.
 */
int s3_keeper_meet_root(struct s3_volume *v, struct s3_root *root, void *data);

/* ---- old_roots.c ---- */

/*
 * Deletes what no root needs that recovery may start from, and no snapshot, when it is time.
 * Nothing depends on it.
 */
void s3_keeper_delete_old_roots(struct s3_volume *v);
/* Before a full root is stored: keeps what is known of the one before it. NULL: no memory. */
struct s3_prune *s3_prune_prepare(const struct s3_volume *v);
/* The full root is stored: has old ones deleted in time. Takes prune, which may be NULL. */
void s3_prune_plan(struct s3_volume *v, struct s3_prune *prune);
/* Frees one that is not planned. NULL is fine. */
void s3_prune_drop(struct s3_prune *prune);

/* ---- gc.c ---- */

/* Deletes a group of dead objects whose time has come; n: how many there were to delete. 0 or
 * negative errno. */
int s3_gc_collect_dead(struct s3_volume *v, size_t *n);
/* Deletes orphans: objects in gc/ that neither log nor root knows. */
void s3_gc_sweep(struct s3_volume *v);
/* Is it time for a checkpoint? Under the lock. */
bool s3_checkpoint_due(const struct s3_volume *v);
/* Has two roots cover what has died. */
int s3_gc_cover(struct s3_volume *v);

/* ---- room.c ---- */

/* Memory for a round, all of which is free: how many bytes. */
uint64_t s3_room_enter(struct s3_volume *v);
/* No round follows soon: gives the memory back, if there is any. */
void s3_room_leave(struct s3_volume *v);
/* Takes bytes, from elsewhere if the room is full; NULL: no memory. */
void *s3_room_take(struct s3_volume *v, size_t bytes);
/* Frees what came from elsewhere; in the room v->room.used is set back instead. NULL is fine. */
void s3_room_give(const struct s3_volume *v, void *memory);

/* ---- compaction.c: compaction.h is for its other files ---- */

/* Those whose time has come may be compacted again; all: every one. */
void s3_gc_readmit(struct s3_volume *v, bool all);
/*
 * Moves what is alive in some sparse or small objects into new ones. How many objects, or negative
 * errno.
 */
int s3_gc_compact(struct s3_volume *v, unsigned percent, bool small);
/* Compacts if too much of what is stored is garbage, or there are too many objects. */
void s3_gc_compact_if_needed(struct s3_volume *v);

#endif
