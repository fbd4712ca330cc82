/* SPDX-License-Identifier: BSD-3-Clause */
/* What the processes that a server starts have in common: they are no part of its terminal. */
#ifndef USERBLK_BUSE_CHILD_H
#define USERBLK_BUSE_CHILD_H

/*
 * Makes the calling process independent of where its parent was started. It keeps two files of its
 * parent's, -1: only one; standard files are /dev/null.
 */
void child_settle(const char *name, int one, int other);

#endif
