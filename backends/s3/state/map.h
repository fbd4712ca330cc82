/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where each block of a volume is: block address -> (object slot, block in its data).
 *
 * Regions of 2^21 blocks (8 GiB of 4 KiB blocks), made when first written, hold leaves of 512
 * blocks: empty, one run, an array of runs (12 bytes each), or 512 entries of 8 bytes, whichever
 * is smallest. A lock is held for one leaf at a time: lookups wait for at most one leaf's
 * change. A change of many leaves is atomic per leaf only; a caller that needs more (a batch at
 * once) answers reads from the batch until it is in the map.
 *
 * Changes keep the live counts of the object table exact. seq is the sequence number of the log
 * object that is applied.
 *
 * Checkpoint: between two batches s3_map_capture() marks the regions that have changed since the
 * last one. From then on a change of a region not yet written also notes what it displaced
 * (16 bytes per run): s3_map_capture_region() copies the region as it is and takes the notes back.
 * Against copying leaves on write that costs 16 bytes instead of 4 KiB for a 4 KiB write.
 */
#ifndef USERBLK_S3_MAP_H
#define USERBLK_S3_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/format/format.h"
#include "backends/s3/state/map_internal.h"

struct s3_buffer;
struct s3_map_batch;
struct s3_objects;

struct s3_map;

/* count blocks from lba on, in consecutive blocks of one object or in a hole. */
struct s3_run {
	uint64_t lba, count;
	uint32_t slot;	 /* S3_NO_SLOT: a hole, which reads as zeroes */
	uint32_t offset; /* block in the object's data */
};

/* A map without any block of blocks in all. objects: outlives it. NULL: no memory. */
struct s3_map *s3_map_new(struct s3_objects *objects, uint64_t blocks);
/* Does not touch the live counts. */
void s3_map_free(struct s3_map *m);

uint64_t s3_map_blocks(const struct s3_map *m);
/* Another size. What is cut off has to be punched before. -EINVAL: above S3_BLOCKS_MAX. */
int s3_map_resize(struct s3_map *m, uint64_t blocks);

/*
 * The runs from lba on, in ascending order without gaps, holes included, neighbours joined:
 * how many (1 to max). They cover count blocks, or fewer when max is reached. With pin each
 * run that is no hole has pinned its object; s3_objects_unpin() when it has been read.
 * lba + count is inside the volume; count > 0.
 */
size_t s3_map_lookup(
	struct s3_map *m, uint64_t lba, uint64_t count, bool pin, struct s3_run *runs, size_t max);

/* Are all count blocks from lba on a hole? */
bool s3_map_is_hole(struct s3_map *m, uint64_t lba, uint64_t count);

/*
 * Changes: 0, or -ENOMEM after which the map holds a part of the change and must not be
 * used to serve.
 */
int s3_map_update(struct s3_map *m, uint64_t seq, uint64_t lba, uint64_t count, uint32_t slot,
	uint32_t offset);
int s3_map_punch(struct s3_map *m, uint64_t seq, uint64_t lba, uint64_t count);
/* Moves those of the count blocks that still are where source and source_offset say; moved: how
 * many, may be NULL. */
int s3_map_relocate(struct s3_map *m, uint64_t seq, uint64_t lba, uint64_t count, uint32_t source,
	uint32_t source_offset, uint32_t slot, uint32_t offset, uint64_t *moved);

/*
 * Changes that are collected and applied together, for recovery: at random in a large map they are
 * many times faster than one by one, and spread over the CPUs. No other call of the map until they
 * are applied; then it is as if each had been made in its order, but the table lists no object
 * again until s3_objects_settle(). bytes: of memory for them, about. NULL: no memory.
 */
struct s3_map_batch;
struct s3_map_batch *s3_map_batch_new(struct s3_map *m, size_t bytes);
/* Forgets what is not applied; the map is then only to be freed. NULL is fine. */
void s3_map_batch_free(struct s3_map_batch *b);
/* As the calls above. They may apply what was collected: -ENOMEM as there. */
int s3_map_batch_update(struct s3_map_batch *b, uint64_t seq, uint64_t lba, uint64_t count,
	uint32_t slot, uint32_t offset);
int s3_map_batch_punch(struct s3_map_batch *b, uint64_t seq, uint64_t lba, uint64_t count);
int s3_map_batch_relocate(struct s3_map_batch *b, uint64_t seq, uint64_t lba, uint64_t count,
	uint32_t source, uint32_t source_offset, uint32_t slot, uint32_t offset);
int s3_map_batch_apply(struct s3_map_batch *b);

/* Everything a hole, nothing changed since the last checkpoint, live counts as they are: for
 * s3_objects_rollback(). No other call meanwhile. */
void s3_map_clear(struct s3_map *m);

uint64_t s3_map_memory(const struct s3_map *m); /* bytes allocated */
uint64_t s3_map_mapped(const struct s3_map *m); /* blocks that are no hole */

/* ---- checkpoint ------------------------------------------------------------------- */

/*
 * Begins a checkpoint of the map as it is now; no change may run meanwhile, lookups may. all:
 * every region, not only changed ones. regions (free() it): n indexes of the regions to write,
 * ascending; those that no longer hold anything are among them, and encode to nothing. 0, -ENOMEM,
 * or -EBUSY: one is running.
 */
int s3_map_capture(struct s3_map *m, bool all, uint32_t **regions, size_t *n);
/*
 * Appends region as it was at s3_map_capture(), while changes go on; nothing appended: it
 * held no block. Once per region of the list, by one thread at a time. 0 or -ENOMEM.
 */
int s3_map_capture_region(struct s3_map *m, uint32_t region, struct s3_buffer *out);
/* Bytes that changes since s3_map_capture() have noted, of regions that are yet to be copied. */
uint64_t s3_map_notes(const struct s3_map *m);
/* Ends it. committed: the root that lists the regions is stored; if not, they count as changed. */
void s3_map_capture_end(struct s3_map *m, bool committed);

/*
 * Enters a region that s3_map_capture_region() wrote into a map that holds nothing there, and
 * counts what is alive (s3_objects_settle() when all are loaded). The region does not count as
 * changed. Regions may be loaded side by side. S3_INVALID also when it names blocks that no object
 * has; after anything but S3_GOOD map and table are only to be freed.
 */
enum s3_check s3_map_load(struct s3_map *m, uint32_t region, const void *data, size_t length);
/* Calls fn for every run that is no hole, ascending; no change may run meanwhile. */
int s3_map_walk(struct s3_map *m, int (*fn)(void *opaque, const struct s3_run *run), void *opaque);

#endif
