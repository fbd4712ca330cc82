/* SPDX-License-Identifier: BSD-3-Clause */
/* From the store to the map; the fence. */
#ifndef USERBLK_S3_RECOVERY_H
#define USERBLK_S3_RECOVERY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "backends/s3/format/format.h"

struct s3_recovery;
struct s3_request;
struct s3_root;
struct s3_root_snapshot;
struct s3_volume;

/*
 * Fills map and table from the store; unless readonly, keeps all other writers out. found: the
 * newest object of the log that was there, our fence included, before a write-back log was
 * replayed behind it.
 */
int s3_recover(struct s3_volume *v, bool readonly, uint64_t *found);
/* The same with what a snapshot holds, to be read only. */
int s3_recover_snapshot(struct s3_volume *v, const char *name);
/*
 * Has a writer stored a root behind that one, so that it may have deleted what was before it? 1:
 * yes; errors are reported.
 */
int s3_is_outdated(struct s3_volume *v, uint64_t since);
/*
 * Which snapshot of that name is it that the newest root in the store knows, or has not yet come
 * to? 0 in seq: none. 0 or negative errno, reported.
 */
int s3_snapshot_find_stored(struct s3_volume *v, const char *name, uint64_t *seq);
/*
 * Can s3_restore() read that snapshot, from the store as it is? Changes nothing. 0 or negative
 * errno, reported.
 */
int s3_restore_check(struct s3_volume *v, const struct s3_root_snapshot *snapshot);
/*
 * The map becomes that of a snapshot, the newest one. No other call meanwhile; after an error the
 * map must not be used. Errors are reported through the host.
 */
int s3_restore(struct s3_volume *v, uint64_t seq);
/*
 * Reads a root of a volume under base ("<prefix>/<volume>/") with that uuid. -ENOENT: there is no
 * such object, or a damaged one, or no root. Other errors are reported. data outlives root.
 */
int s3_root_read(struct s3_volume *v, const char *base, const uint8_t *uuid,
	const struct s3_name *name, void **data, struct s3_root *root);
/* The same of a snapshot's own root, by whatever key it is stored. */
int s3_snapshot_read(struct s3_volume *v, const char *base, const uint8_t *uuid, const char *name,
	uint64_t seq, void **data, struct s3_root *root);
/* backend_session() of a writer. */
uint32_t s3_session(const uint8_t instance[S3_UUID]);
/* Has the last writer said that it is done? Nobody has to be driven away then. */
bool s3_closed_cleanly(const struct s3_volume *v);
/* Is everything in the store, and may be ended? */
bool s3_is_drained(struct s3_volume *v);
/*
 * Says so, behind everything else. 0; -ESTALE: another writer has taken over; or negative errno, of
 * which req has the message, if any.
 */
int s3_close_cleanly(struct s3_volume *v, struct s3_request *req);

/* What the store's log says of the writer that super.write_back names. */
struct s3_chain {
	uint64_t last;	   /* newest object of the log that is its, 0: none */
	uint64_t replayed; /* entry of its write-back log up to which they are in objects of others
			    */
	bool closed;	   /* it says that nothing comes after it */
	bool foreign;	   /* others have written something else since */
};

#endif
