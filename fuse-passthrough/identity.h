/* SPDX-License-Identifier: BSD-3-Clause */
/* Which open descriptors of the source are of one file. */
#ifndef USERBLK_FUSE_IDENTITY_H
#define USERBLK_FUSE_IDENTITY_H

#include <stdbool.h>

#include "inodes.h"

/* Before all others, with how the source numbers its files: 0 or a negative errno. */
int identity_init(enum numbers numbers);
void identity_end(void);

/* The handle of fd in new memory, or NULL with errno. */
struct file_handle *handle_of(int fd);
/* Whether fd has the handle. */
bool has_handle(int fd, const struct file_handle *handle);

/* Whether two open descriptors with equal numbers are one file: 1 or 0, or a negative errno. */
int are_same_file(enum numbers numbers, int fd, int other_fd);

#endif
