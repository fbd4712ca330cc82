/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A process that has the disk open for the server, and writes it back. It then waits in the kernel,
 * where no signal reaches it. A server that did so would not close its end of the connection when
 * it is killed, and requests would wait that nobody answers.
 */
#ifndef USERBLK_BUSE_HOLDER_H
#define USERBLK_BUSE_HOLDER_H

#include <sys/types.h>

struct holder {
	pid_t pid;   /* 0: none */
	int control; /* orders to it */
};

/* Starts the process, which has no files of ours, and ends with us. 0 or negative errno. */
int holder_start(struct holder *holder);
/* Opens the disk, if it is not open. Reads from it. 0 or negative errno. A process that was killed
 * is replaced, here and in the next function. */
int holder_open(struct holder *holder, const char *path);
/* What was written to the disk and its partitions is in the device. 0 or negative errno, also of
 * what was written since the disk was opened. */
int holder_sync(struct holder *holder, const char *path);
/* The disk is closed, too. Waits for what is under way there. */
void holder_end(struct holder *holder);

#endif
