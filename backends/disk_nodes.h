/* SPDX-License-Identifier: BSD-3-Clause */
/* A disk's nodes in /dev: of itself and of its partitions, each of which has a page cache. */
#ifndef USERBLK_DISK_NODES_H
#define USERBLK_DISK_NODES_H

#include <glob.h>
#include <stdbool.h>
#include <stddef.h>

/* disk: "/dev/nbd0". spare: entries of gl_pathv that are left before them. False: there is none.
 * The caller calls globfree(). */
bool disk_nodes(const char *disk, size_t spare, glob_t *nodes);

#endif
