/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What bounds recovery: checkpoint roots and summaries of log headers. Regions of the map are
 * encoded by map.h, the table of objects by object_table.h.
 *
 * A full root holds the table of objects and the keys of all regions as of its base. A light
 * root (base < seq) names a full one by its base and the summaries of the log headers base+1 to
 * seq, so that a volume written at random need not store its whole map every few GiB. Base 0 is
 * what the volume began with: nothing, or its parent's snapshot. Recovery: newest root; its full
 * root; regions; summaries; log headers from seq+1 on.
 */
#ifndef USERBLK_S3_CHECKPOINT_H
#define USERBLK_S3_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/format.h"

/* ---- summary ------------------------------------------------------------------- */

/* Many consecutive log headers without their checksums of data. */
struct s3_summary {
	uint8_t uuid[S3_UUID];
	uint64_t epoch;	      /* of the writer of the summary */
	uint64_t first, last; /* sequence numbers, all there */
};

#define S3_SUMMARY_PLANES 5 /* bytes of an address, relative to another */

/* Builds one: zero it, add headers in the order of the log, finish. */
struct s3_summary_writer {
	struct s3_buffer body;			    /* everything but the addresses: */
	struct s3_buffer planes[S3_SUMMARY_PLANES]; /* a byte of each, the lowest first */
	uint64_t bits;				    /* that it will take when stored, about */
	uint64_t first, last;			    /* 0: none yet */
	uint8_t instance[S3_UUID];
	bool failed; /* it lacks a header, and holds nothing: only to be abandoned */
};

/*
 * header: decoded (s3_header_decode()). 0; -EINVAL: not the next one, or too many; -ENOMEM. After
 * an error it has failed.
 */
int s3_summary_add(struct s3_summary_writer *w, const struct s3_object_header *header);
/* Appends the whole summary, with uuid and epoch of summary, to out and empties w. */
void s3_summary_finish(
	struct s3_summary_writer *w, const struct s3_summary *summary, struct s3_buffer *out);
/* It has failed: what it has is no longer of use. */
void s3_summary_fail(struct s3_summary_writer *w);
void s3_summary_abandon(struct s3_summary_writer *w);

/*
 * Decodes: calls header() for each log header (its records and crcs are NULL; salt, batch, time,
 * frontier, cache_record are 0) and then record() for each of its records. Non-zero ends it and
 * is kept in *stopped. The checksum is checked before the first call, and a record before it is
 * reported; uuid NULL: any.
 */
struct s3_summary_visitor {
	int (*header)(void *opaque, const struct s3_object_header *header);
	int (*record)(void *opaque, const struct s3_object_header *header,
		const struct s3_record *record);
	void *opaque;
};
enum s3_check s3_summary_decode(const void *data, size_t length, const uint8_t *uuid,
	const struct s3_summary_visitor *visitor, struct s3_summary *summary, int *stopped);

/* ---- root ---------------------------------------------------------------------- */

/* A region object: key ckpt/<seq>/<region>. */
struct s3_root_region {
	uint32_t region;
	uint64_t seq;	     /* of the root it was written for */
	uint32_t bytes, crc; /* of the stored object */
};

/* A summary object: key ckpt/<last>/summary. */
struct s3_root_summary {
	uint64_t first, last;
	uint32_t bytes, crc;
};

struct s3_root_snapshot {
	char name[S3_NAME_MAX + 1];
	uint64_t seq;
	uint64_t time;	 /* s since 1970 */
	uint64_t blocks; /* size of the volume then */
};

struct s3_root {
	uint8_t uuid[S3_UUID];
	uint8_t instance[S3_UUID]; /* of the writer */
	uint64_t epoch;
	uint64_t seq;	  /* frontier: everything up to it is in here */
	uint64_t base;	  /* frontier of regions and table; seq in a full root, 0: see above */
	uint64_t blocks;  /* size of the volume */
	uint64_t next_gc; /* every GC object's number is below it (with S3_GC) */
	uint64_t time;	  /* s since 1970 */
	bool packed;	  /* light, with summaries in columns, which older programs do not know */
	uint32_t n_regions, n_summaries, n_snapshots;
	struct s3_root_region *regions;	    /* ascending; none in a light root */
	struct s3_root_summary *summaries;  /* base+1 to seq without gaps; none in a full root */
	struct s3_root_snapshot *snapshots; /* ascending by seq */
	const uint8_t *table; /* s3_objects_encode(); into the decoded data; none in a light root */
	size_t table_bytes;
};

void s3_root_encode(const struct s3_root *root, struct s3_buffer *out);
/* Fills *root, to be freed with s3_root_free(), only when the answer is S3_GOOD. uuid NULL: any. */
enum s3_check s3_root_decode(
	const void *data, size_t length, const uint8_t *uuid, struct s3_root *root);
void s3_root_free(struct s3_root *root);

#define S3_REGION_SHIFT	 21u /* log2 of the blocks of a region */
#define S3_REGION_BLOCKS (1u << S3_REGION_SHIFT)

#endif
