/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Claims of disks by a process of its own. The kernel lets nobody open a disk while it looks for
 * its partitions, and an open that waits cannot be killed: the disk's own server must be able to
 * answer, and to end.
 */
#ifndef USERBLK_UBLK_CLAIMING_H
#define USERBLK_UBLK_CLAIMING_H

#include <stdbool.h>
#include <sys/types.h>

/* Its command: paths come by standard input, a socket, and the answers go there. */
#define UBLK_CLAIM_COMMAND "claim"

struct ublk_claim {
	int fd;	     /* the other end of that socket; negative: there is no process */
	pid_t child; /* 0: the descriptor is the disk */
	bool asked;  /* it has not answered yet */
	bool held;   /* a disk is claimed */
};

#define UBLK_NO_CLAIM ((struct ublk_claim){.fd = -1})

/* How long an answer is waited for. over: asked again and again; true: no longer. NULL: never. */
struct ublk_claim_limits {
	int timeout_ms;
	bool (*over)(void *opaque);
	void *opaque;
};

/*
 * Keeps everybody else from mounting or claiming a disk, until ublk_claim_release() or the end of
 * this process. 0; -EBUSY: it is mounted or claimed already, which the kernel answers at once;
 * -ETIME: no answer in that time; -ECANCELED: over(); -ECHILD: that process has ended, or could not
 * begin; other negative errnos, as of open(2). It can be called again then, with the same path
 * after the first two of these: what waits for an answer goes on.
 */
int ublk_claim(struct ublk_claim *claim, const char *path, const struct ublk_claim_limits *limits);
/* Whether something is claimed or not. */
void ublk_claim_release(struct ublk_claim *claim);
/* What the process does. An exit code. */
int ublk_claim_for_parent(void);

#endif
