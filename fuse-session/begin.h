/* SPDX-License-Identifier: BSD-3-Clause */
/* The beginning and the end of a session of libfuse, where its own functions do not suffice. */
#ifndef USERBLK_FUSE_BEGIN_H
#define USERBLK_FUSE_BEGIN_H

#include <stdbool.h>

#include <fuse_log.h>
#include <fuse_lowlevel.h>

/*
 * As fuse_session_new(), which reads the options that are left: its own and mount(8)'s. NULL: a
 * mistake, which was reported in one line on behalf of the program name. log: what libfuse has to
 * say from then on goes there; NULL: to standard error.
 */
struct fuse_session *session_begin(const char *name, struct fuse_args *args,
	const struct fuse_lowlevel_ops *ops, void *data, fuse_log_func_t log);

/*
 * As fuse_set_signal_handlers(), which loses a signal that comes while it is at it, or right before
 * the session's loop begins to wait. before: called at the first signal, in a thread of its own;
 * the session serves until it returns, or until another signal, which is not of the first second.
 * NULL: the first signal ends it. Returns 0 or -1.
 */
int session_set_signal_handlers(struct fuse_session *session, void (*before)(void));

/* Has the session end without before(), from any thread: it can no longer serve. */
void session_end_now(void);

/* Those signals change nothing any more. */
void session_ignore_signals(void);

/*
 * Ends the thread for signals, in which before() waits for nobody by then: they are ignored, and
 * the session has been destroyed.
 */
void session_end_signals(void);

/* As fuse_session_mount(). */
int session_mount(struct fuse_session *session, const char *mount_point);

/*
 * Where it is now: mount_point, or where it has been moved or bound to, in memory of the thread;
 * NULL: it has been unmounted, or is covered by another mount.
 */
const char *session_place(const char *mount_point);

/* Whether others have ended the connection, by umount --force or otherwise. */
bool session_is_cut_off(struct fuse_session *session);

/*
 * Unmounts, after the session's loop has ended with result, and takes the signal handlers away.
 * What others have mounted at the place since (after umount --lazy) stays. From here on the process
 * ends by itself, so signals change nothing any more. Returns result, or 0 where it is only another
 * word for an unmount.
 */
int session_unmount(struct fuse_session *session, const char *mount_point, int result);

#endif
