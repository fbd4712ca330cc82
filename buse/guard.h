/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A process that connects a disk for the server and then waits for the server's death, which the
 * kernel does not take for the end of the disk: requests that were under way would wait forever.
 */
#ifndef USERBLK_BUSE_GUARD_H
#define USERBLK_BUSE_GUARD_H

#include <stdbool.h>
#include <sys/types.h>

#include "buse/netlink.h"

struct guard {
	pid_t pid;   /* 0: none */
	int control; /* orders to it */
};

/*
 * Starts the process, which has no files of ours but the kernel's end of the connection. To be
 * called before there are threads; it starts one. From then on, no signal makes us dump core. 0 or
 * negative errno.
 */
int guard_start(struct guard *guard, int socket);
/* netlink_connect() there: the disk is disconnected when this process has been killed, even in the
 * middle of this, and even if a thread of it never leaves the kernel. */
int guard_connect(struct guard *guard, const struct netlink_disk *disk);
/* Looks without waiting. */
bool guard_has_died(struct guard *guard);
/* For a disk that was disconnected. */
void guard_dismiss(struct guard *guard);

/* The identity of a disk: the processes that have connected it. */
void guard_identity(const struct guard *guard, char *text, size_t size);
enum guard_owner {
	GUARD_STRANGER, /* or it cannot be seen from here */
	GUARD_SERVED,	/* or the server was killed, and a thread of it hangs in the kernel */
	GUARD_ENDING,	/* the server was killed, and its guard is about to disconnect the disk */
	GUARD_LEFT,	/* both were killed, and nobody has the server's end of the connection */
};
/* Whose disk has such an identity? */
enum guard_owner guard_owner(const char *identity);

#endif
