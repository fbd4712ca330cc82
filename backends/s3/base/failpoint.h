/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Named points at which a process kills itself on request, for the crash checker:
 * USERBLK_S3_FAILPOINT=NAME[:N] in the environment means the N-th pass (default 1) of that point.
 */
#ifndef USERBLK_S3_FAILPOINT_H
#define USERBLK_S3_FAILPOINT_H

#include <stdatomic.h>

#include "backends/backend.h"

enum s3_failpoint {
	S3_FAIL_NOWHERE,
	S3_FAIL_LOG_PUT_BEFORE, /* an object of the log is complete, its PUT not begun */
	S3_FAIL_LOG_PUT_AFTER,	/* stored; nothing has been done about it */
	S3_FAIL_FENCE_PUT_BEFORE,
	S3_FAIL_FENCE_PUT_AFTER,
	S3_FAIL_CKPT_REGION_AFTER, /* a region or summary is stored, the root is not */
	S3_FAIL_CKPT_ROOT_BEFORE,
	S3_FAIL_CKPT_ROOT_AFTER,
	S3_FAIL_RELOCATE_PUT_AFTER, /* a GC object is stored, the log does not know it */
	S3_FAIL_RELOCATE_LOG_AFTER, /* nor anything been done about an object with RELOCATE records
				     */
	S3_FAIL_DELETE_BEFORE,	    /* some dead objects are deleted next */
	S3_FAIL_DELETE_AFTER,
	S3_FAIL_SNAP_ROOT_BEFORE,   /* all that a snapshot's root names is stored */
	S3_FAIL_SNAP_ROOT_AFTER,    /* it is, but no root of the volume knows it */
	S3_FAIL_SNAP_LIVE_AFTER,    /* one does */
	S3_FAIL_SNAP_MARK_AFTER,    /* a snapshot is marked as being deleted */
	S3_FAIL_SNAP_DELETE_BEFORE, /* a root without it is stored */
	S3_FAIL_SNAP_DELETE_AFTER,  /* its own root is gone, the mark is not */
	S3_FAIL_ROLLBACK_LOG_AFTER, /* the log says that the volume was rolled back, no root does */
	S3_FAIL_CLONE_CHILD_AFTER,  /* the parent knows a clone that is not there yet */
	S3_FAIL_CLONE_SUPER_AFTER,
	S3_FAIL_RESIZE_SUPER_BEFORE,
	S3_FAIL_RESIZE_SUPER_AFTER,
	S3_FAIL_REKEY_SUPER_BEFORE,
	S3_FAIL_REKEY_SUPER_AFTER,
	S3_FAIL_ORPHAN_DELETE_BEFORE, /* an object in gc/ that neither log nor root knows is deleted
					 next */
	S3_FAIL_WB_MARK_BEFORE,	 /* the write-back log knows its next owner, the super does not */
	S3_FAIL_WB_MARK_AFTER,	 /* the super does, the log is still the last one's */
	S3_FAIL_WB_APPEND_AFTER, /* an entry is written, but not synced */
	S3_FAIL_WB_SYNC_AFTER,	 /* synced, nothing acknowledged */
	S3_FAIL_WB_FREE_BEFORE,	 /* the log has no room, but entries that are not needed */
	S3_FAIL_WB_FREE_AFTER,	 /* it begins behind those */
	S3_FAIL_WB_REPLAY_PUT_BEFORE, /* an object of entries is complete */
	S3_FAIL_WB_REPLAY_PUT_AFTER,  /* stored */
	S3_FAIL_WB_EMPTY_AFTER,	      /* everything is stored, and the log says so */
	S3_FAIL_POINTS,
};

extern _Atomic int s3_failpoint_chosen;

/* Reads the environment. 0, or -EINVAL for what is no such point, which is reported to host. */
int s3_failpoint_choose(const struct backend_host *host);

void s3_failpoint_pass(void);

/* The process is at a point. */
static inline void s3_failpoint(enum s3_failpoint point)
{
	if (atomic_load_explicit(&s3_failpoint_chosen, memory_order_relaxed) == (int)point)
		s3_failpoint_pass();
}

#endif
