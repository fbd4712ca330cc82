/* SPDX-License-Identifier: BSD-3-Clause */
/* A store that is full, and what a volume keeps for that. */
#ifndef USERBLK_S3_SPACE_H
#define USERBLK_S3_SPACE_H

#include <stdbool.h>

struct s3_volume;

/*
 * Under the lock (layout=direct has another one): the store refuses what is put with r. True if
 * that is news, to be reported by s3_space_tell() without the lock.
 */
bool s3_space_refused(struct s3_volume *v, int r);
/* why: the store's message. */
void s3_space_tell(struct s3_volume *v, int r, const char *why);
/* A full store has space again. */
void s3_space_tell_again(struct s3_volume *v);
/* How often room was made: is noted before a PUT, for the two below. Any thread. */
unsigned s3_space_made(const struct s3_volume *v);
/*
 * Under the lock, of a PUT that found the store full and was made when room had been made so often:
 * has the reserve deleted, after which refused batches are put again. False: there is none any
 * more, and was none when the PUT was made.
 */
bool s3_space_ask(struct s3_volume *v, unsigned made);
/* The same, waited for, of a PUT outside of the log. True: try again. why: the store's message. */
bool s3_space_make(struct s3_volume *v, unsigned made, const char *why);
/*
 * In a full store, before something big is put there: sees to it that there is a reserve, if only
 * for roots and what else makes room. The collector's thread. 0, or negative errno: -ENOSPC: there
 * is none, and what room there may be is left to those.
 */
int s3_space_keep(struct s3_volume *v);
/* Under the lock, before there are threads: is the store full, although nothing was refused yet? */
void s3_space_begin(struct s3_volume *v);
/*
 * Under the lock: until when, ns, data writes wait, because that is not decided; 0: they go on. The
 * first that asks has the collector decide it.
 */
uint64_t s3_space_undecided(struct s3_volume *v);
/* Puts the reserve when there is space for it, which ends a time without; by the collector. */
void s3_space_tend(struct s3_volume *v);

#endif
