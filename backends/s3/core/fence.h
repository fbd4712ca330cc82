/* SPDX-License-Identifier: BSD-3-Clause */
/* Has another writer taken over? */
#ifndef USERBLK_S3_FENCE_H
#define USERBLK_S3_FENCE_H

struct s3_volume;

/*
 * Has another writer taken over? Its fence stands right behind our frontier. Has it deleted the
 * volume? Then the super object is missing, or a new volume's. 0: no. To be asked
 * before each deletion; a fence that lands afterwards is of a writer that has not yet read
 * what it would need.
 */
int s3_check_not_fenced(struct s3_volume *v);
/*
 * Only the second question: to be asked before what is not put where a fence would stand. 0 or
 * -ESTALE, reported; other errors say nothing about it.
 */
int s3_check_not_deleted(struct s3_volume *v);

#endif
