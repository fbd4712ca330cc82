/* SPDX-License-Identifier: BSD-3-Clause */
/* The process of a server, of which the kernel tells a number. */
#ifndef USERBLK_UBLK_PROCESS_H
#define USERBLK_UBLK_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#include "ublk/uapi.h"

/*
 * A descriptor of the process of that number (pidfd_open(2)), which the caller closes, if it has
 * the character device open; or nothing any longer, as one that was killed and has a thread in the
 * kernel. -ESRCH: there is none, or it has ended; -ENXIO: it has other files; other negative
 * errnos, as of pidfd_open().
 */
int ublk_process_with(pid_t pid, dev_t device);

/* The process that serves a disk that lives; the same. */
int ublk_process_of_disk(const struct ublksrv_ctrl_dev_info *info);
/* Has the process ended, within the time? One that cannot be watched has. */
bool ublk_process_has_ended(int pidfd, int timeout_ms);
/*
 * Starts a program that may outlive this one: it has no open files of ours, not even the pipe that
 * somebody reads our messages from. input: becomes its standard input; negative: nothing.
 * Signals stay blocked as they are. 0 or negative errno.
 */
int ublk_process_spawn(const char *program, char *const *argv, int input, pid_t *child);
/* s of a clock that nobody sets. */
time_t ublk_seconds(void);

#endif
