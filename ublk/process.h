/* SPDX-License-Identifier: BSD-3-Clause */
/* The process of a server, of which the kernel tells a number. */
#ifndef USERBLK_UBLK_PROCESS_H
#define USERBLK_UBLK_PROCESS_H

#include <sys/types.h>

/*
 * A descriptor of the process of that number (pidfd_open(2)), which the caller closes, if it has
 * the character device open; or nothing any longer, as one that was killed and has a thread in the
 * kernel. -ESRCH: there is none, or it has ended; -ENXIO: it has other files; other negative
 * errnos, as of pidfd_open().
 */
int ublk_process_with(pid_t pid, dev_t device);

#endif
