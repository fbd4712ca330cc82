/* SPDX-License-Identifier: BSD-3-Clause */
/* A write-back log at the opening and at the end of its volume. */
#ifndef USERBLK_S3_WRITEBACK_OPEN_H
#define USERBLK_S3_WRITEBACK_OPEN_H

struct s3_chain;
struct s3_recovery;
struct s3_volume;

/*
 * The volume has been recovered from the store, for writing: may it be opened with the log that
 * was given, or none? Changes nothing. Negative errno: no, which has been reported.
 */
int s3_writeback_check(struct s3_volume *v, const struct s3_chain *chain);
/*
 * The same once the volume has been fenced. Then replays what the store lacks, and makes the log,
 * if there is one, this writer's. 0 or negative errno, reported.
 */
int s3_writeback_attach(
	struct s3_volume *v, const struct s3_chain *chain, struct s3_recovery *recovery);

/* Everything is in the store: says so, in the log; then, past the end of the log, in the store.
 */
void s3_writeback_empty(struct s3_volume *v);
void s3_writeback_unmark(struct s3_volume *v);
/* The same of a log that has failed, while the volume is in use: the next open needs no log. */
void s3_writeback_give_up(struct s3_volume *v);

#endif
