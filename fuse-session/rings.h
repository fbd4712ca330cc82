/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Requests and answers through io_uring (FUSE_OVER_IO_URING).
 *
 * The kernel has one queue for each CPU, and here a thread serves each. libfuse
 * has such threads too (3.18), but they do all I/O themselves, so that no more
 * requests are under way than there are CPUs, and an answer from another thread
 * races with them. Here, the file I/O of a request goes into the same ring as
 * its answer: one system call submits both, the answer follows the I/O without
 * the thread, which serves the next request meanwhile. All other requests go
 * through libfuse, as custom I/O, which it has had since 3.14.
 */
#ifndef USERBLK_FUSE_RINGS_H
#define USERBLK_FUSE_RINGS_H

#include <stdbool.h>

#include <fuse_lowlevel.h>

/* The files of a file system whose data is in files: what the rings read, write and sync. */
struct rings_files {
	int (*read_fd)(const struct fuse_file_info *fi);
	/* -1: this write goes through libfuse. kill_setid: it takes set-id bits away. */
	int (*write_fd)(const struct fuse_file_info *fi, fuse_ino_t ino, bool kill_setid);
	int (*sync_fd)(const struct fuse_file_info *fi);
	bool in_memory; /* they are: reads do not wait, so they are done at once */
};

/*
 * Makes session, which is not mounted yet, agree when the kernel offers
 * io_uring; the rings come up with the first request. Returns 0, or a negative
 * errno, -ENOTSUP when libfuse was built without custom I/O. Then nothing has
 * changed. files: NULL has all requests go through libfuse.
 */
int rings_offer(struct fuse_session *session, const struct rings_files *files);

/* How many requests may be under way at a time. */
unsigned rings_capacity(void);

/* Ends the threads. The loop of the session has ended; requests will no longer be answered. */
void rings_stop(void);

/* Whether the calling thread serves a request that came through io_uring. */
bool rings_serve_this(void);

#endif
