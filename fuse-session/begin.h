/* SPDX-License-Identifier: BSD-3-Clause */
/* A session of libfuse whose options are looked at as the program's own are. */
#ifndef USERBLK_FUSE_BEGIN_H
#define USERBLK_FUSE_BEGIN_H

#include <fuse_log.h>
#include <fuse_lowlevel.h>

/*
 * As fuse_session_new(), which reads the options that are left: its own and mount(8)'s. NULL: a
 * mistake, which was reported in one line on behalf of the program name. log: what libfuse has to
 * say from then on goes there; NULL: to standard error.
 */
struct fuse_session *session_begin(const char *name, struct fuse_args *args,
	const struct fuse_lowlevel_ops *ops, void *data, fuse_log_func_t log);

#endif
