/* SPDX-License-Identifier: BSD-3-Clause */
/* What s3_verify() finds damaged: kept until the map tells where in the volume that is. */
#ifndef USERBLK_S3_VERIFY_DAMAGE_H
#define USERBLK_S3_VERIFY_DAMAGE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/client/client.h"

struct s3_object;
struct s3_verify;
struct s3_volume;

/* One that is not as it was written. */
struct s3_damaged {
	uint32_t slot; /* pinned */
	uint32_t blocks;
	bool *bad; /* of each block; NULL: all are */
	bool other_size;
	bool always; /* to be reported although no block that is in use is concerned */
	bool own;    /* the newest root needs it */
	bool reported;
	char key[S3_KEY_MAX + 1];
	char reason[192];
};

struct s3_damaged_list {
	struct s3_volume *v;
	struct s3_verify *verify;
	pthread_mutex_t lock;
	/* Under it. */
	struct s3_damaged **all;
	size_t n;
	uint64_t kept;			   /* bytes of those with data */
	uint64_t unlisted;		   /* that there was no memory for */
	char unlisted_key[S3_KEY_MAX + 1]; /* of the first of them */
};

/* Any thread. Keeps d, or frees it. 0 or -ENOMEM. */
int s3_damaged_keep(struct s3_damaged_list *l, struct s3_damaged *d);
/*
 * The same of an object with data. All of these take at most a quarter of what the cache may have;
 * the others are counted.
 */
int s3_damaged_keep_object(
	struct s3_damaged_list *l, struct s3_damaged *d, const struct s3_object *o);
/* Also unpins it. */
void s3_damaged_free(struct s3_volume *v, struct s3_damaged *d);
/* Tells verify->damage() of all. */
void s3_damaged_tell(struct s3_damaged_list *l);
void s3_damaged_drop(struct s3_damaged_list *l);

#endif
