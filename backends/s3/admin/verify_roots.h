/* SPDX-License-Identifier: BSD-3-Clause */
/* What the map of a volume and those of its snapshots are made of in the store. */
#ifndef USERBLK_S3_VERIFY_ROOTS_H
#define USERBLK_S3_VERIFY_ROOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/recovery/parts.h"

struct s3_root_snapshot;
struct s3_volume;

/* A region or a summary. */
struct s3_verify_part {
	struct s3_root_part part;
	bool parent; /* it is below the parent's name, for a clone that has no full root yet */
	bool own;    /* the newest root needs it, and maybe snapshots; or they alone do */
	bool looked; /* at, by the caller, who sets it... */
	bool damaged;
};

struct s3_verify_parts {
	struct s3_verify_part *all; /* each once; to be freed */
	size_t n, room;
	uint64_t roots; /* that were read */
	/* Called for a root that is missing or damaged, with its key. 0 or negative errno. */
	int (*lost)(void *opaque, const char *key, const char *reason, bool own);
	/* Called for a damaged part that a snapshot needs, too. */
	void (*again)(void *opaque, const struct s3_verify_part *part, const char *snapshot);
	void *opaque;
};

/*
 * Both read roots and enter their regions and summaries that are not there yet. No checkpoint is
 * made or deleted meanwhile. 0 or negative errno, reported but for -ENOMEM.
 *
 * The newest root, and the full root that it builds upon.
 */
int s3_verify_own_parts(struct s3_volume *v, struct s3_verify_parts *parts);
/* A snapshot's root. */
int s3_verify_snapshot_parts(struct s3_volume *v, struct s3_verify_parts *parts,
	const struct s3_root_snapshot *snapshot);
/* The part's key in the bucket. */
void s3_verify_part_key(const struct s3_volume *v, const struct s3_verify_part *part, char *key);

#endif
