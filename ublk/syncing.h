/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Write-back by a process of its own, since one that waits in the kernel for a disk cannot be
 * killed. Not by sync(1): some of them (uutils) write all disks instead of those named, which
 * neither flushes a disk nor tells of its errors.
 */
#ifndef USERBLK_UBLK_SYNCING_H
#define USERBLK_UBLK_SYNCING_H

#include <sys/types.h>

/* Its command line: program, command, then paths of disks; or the option and mount
 * points; or nothing: all disks. NULL at the end. */
#define UBLK_SYNC_PROGRAM      "userblk-ublk"
#define UBLK_SYNC_COMMAND      "sync"
#define UBLK_SYNC_FILE_SYSTEMS "--file-system"

/* What the process does; argv: behind the command. An exit code. */
int ublk_sync_for_parent(char *const *argv);
/* Starts one. 0 or negative errno. */
int ublk_sync_begin(char *const *argv, pid_t *child);
/* What came of it: 0, -EIO: some of it cannot be written; -ENXIO: it could not be tried. */
int ublk_sync_result(int exit_code);

#endif
