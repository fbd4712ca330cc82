/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * userblk-nullfs: a file system that holds names and no data. What a request costs here is the cost
 * of FUSE itself. The session is that of fuse-session/.
 *
 *   main.c   options, what it asks of the kernel
 *   files.c  the operations
 *   names.c  names and attributes
 */
#ifndef USERBLK_NULLFS_H
#define USERBLK_NULLFS_H

#include "fuse-session/session.h"

#define MAX_FILES 10000000

/* Set up by main.c, constant once the session runs. */
struct nullfs {
	int zeroes;	  /* descriptor: as many as a request may read, to splice from */
	int null;	  /* descriptor: where spliced data goes */
	bool direct_mmap; /* O_DIRECT files may bypass the kernel's cache and still be mapped */
};
extern struct nullfs nullfs;

/* Makes the root and file-0, file-1, ... in it: count, of size bytes. 0 or a negative errno. */
int files_make(unsigned long count, off_t size);

/* Opens the descriptors. 0 or a negative errno. */
int files_open(void);

/* Fills in the operations. */
void files_operations(struct fuse_lowlevel_ops *ops);

#endif
