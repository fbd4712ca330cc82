/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A process that uses the mount as anybody does, for the daemon, and keeps nothing of it open
 * before the end: a thread of the daemon that waits in the kernel for an answer that it owes cannot
 * be killed, and would keep the connection of a killed daemon alive. So would a process with a copy
 * of the rings; hence one of before the mount, for as long as the daemon lives.
 */
#ifndef USERBLK_FUSE_ASKER_H
#define USERBLK_FUSE_ASKER_H

#include <stdbool.h>
#include <sys/types.h>

enum asker_question {
	ASK_ANSWERS = 'a', /* does the file system at path answer? */
	ASK_WRITE = 'w',   /* syncfs(2) of it; the kernel does not wait for FUSE's writes then */
	ASK_SYNC = 'f'	   /* fdatasync(2) of the name path in it, wherever it is by then */
};

/* Before other threads and the mount. Returns 0 or an errno. */
int asker_start(void);

/* Has it done, of path, and waits: 0 or an errno; EIO: the process is gone. From any thread. */
int asker_ask(enum asker_question question, const char *path);

/* Whether it is the process of that number. */
bool asker_is(pid_t pid);

/* Ends it, and with EIO what it has been asked. */
void asker_stop(void);

#endif
