/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The end of a volume. First a copy of its super object is put under another name, then the super
 * object goes: from there on it is no volume, and what is left can only be deleted, by doing the
 * same again. The copy goes last. Only keys of the volume that parse as its own are deleted.
 */
#ifndef USERBLK_S3_DELETE_H
#define USERBLK_S3_DELETE_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/s3/core/config.h"
#include "backends/s3/format/format.h"

struct s3_removal {
	/* May be NULL. */
	void (*progress)(void *opaque, uint64_t done, uint64_t total); /* objects */
	void *opaque;
	/* Only the volume of that UUID, all zeroes: what is left of one; or else whichever has the
	 * name. */
	bool only;
	uint8_t uuid[S3_UUID];
	/* The last object of the log and its epoch, by s3_volume_note_end(). 0: not known. */
	uint64_t end, epoch;
	/* Also objects without a super object or its copy. No server may have them. */
	bool remains;

	/* Filled. */
	bool unseen; /* refused: there is a volume, where only the rest of one may be deleted */
	uint64_t deleted; /* objects */
	uint64_t foreign; /* keys below the volume's name that are not of a volume: left alone */
};

/*
 * Deletes the volume, or what an interrupted deletion has left. No writer may have it: the
 * caller has fenced them all. 0 or negative errno, which has been reported: -ENOENT: nothing
 * there; -EBUSY: it has snapshots with clones, somebody has opened it since, or only the rest of
 * one may be deleted.
 */
int s3_volume_remove(const struct s3_config *config, const struct backend_host *host,
	struct s3_removal *removal);
/*
 * As before_change of struct s3_config. removal (may be NULL): gets the UUID. -EBUSY, reported: the
 * volume has snapshots with clones.
 */
int s3_volume_may_remove(struct s3_volume *v, void *removal);
/* As when_closed: a server that opens the volume after this ends its deletion. */
void s3_volume_note_end(struct s3_volume *v, void *removal);

#endif
