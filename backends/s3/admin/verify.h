/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Looks at everything that a volume needs in the store: is each object there, as long as it was,
 * and is each of its blocks that is in use what was written? The store is asked, not caches. As
 * checksums are of the bytes as they are stored, no key is needed.
 */
#ifndef USERBLK_S3_VERIFY_H
#define USERBLK_S3_VERIFY_H

#include "backends/s3/core/volume.h"

/* A range that cannot be read as it was written. */
struct s3_damage {
	/* Bytes of the device; length 0: only snapshots have it, or nothing that is in use is hurt.
	 */
	uint64_t offset, length;
	const char *key;    /* of the object, in the bucket */
	const char *reason; /* "is missing" */
};

struct s3_verify {
	/* May be called from any thread, from one at a time; not after the end. */
	void (*progress)(void *opaque, uint64_t done, uint64_t total); /* bytes; may be NULL */
	/* Ascending by offset within a call of s3_verify(), those of snapshots last, and one more
	 * if there are too many to be kept in memory. */
	void (*damage)(void *opaque, const struct s3_damage *damage);
	void *opaque;
	const _Atomic bool *stop; /* ends it with -ECANCELED; may be NULL */

	/* Filled: what was looked at, and what of it is damaged. */
	uint64_t objects, bytes, damaged_objects, damaged_bytes;
};

/*
 * 0, whether there is damage or not; negative errno when it could not be found out, which has been
 * reported. The volume may be in use.
 */
int s3_verify(struct s3_volume *v, struct s3_verify *verify);

#endif
