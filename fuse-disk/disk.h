/* SPDX-License-Identifier: BSD-3-Clause */
/* One device as one regular file: the root of a FUSE file system, mounted on a file. */
#ifndef USERBLK_FUSE_DISK_H
#define USERBLK_FUSE_DISK_H

#include <pthread.h>

#include <fuse_lowlevel.h>

#include "backends/backend.h"

/* What the operations find as the session's user data. */
struct disk {
	struct backend *device;
	struct backend_info info; /* of the open device; its size may have changed since */
	pthread_key_t memory;	  /* of each thread, to read into */
};

/* Fills in all operations but init, and makes disk ready for them. 0 or negative errno. */
int disk_prepare(struct disk *disk, struct fuse_lowlevel_ops *ops);

#endif
