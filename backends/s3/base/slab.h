/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory for the leaves of the map: very many pieces of 24 to 4096 bytes that grow step by step.
 * malloc() holds on to the gaps that they leave behind; here a page of 4 KiB holds pieces of
 * one size, and with its last piece it goes back, for pieces of any size or to the kernel. Since a
 * page is no larger than the largest piece, pieces that have all grown to that leave nothing.
 */
#ifndef USERBLK_S3_SLAB_H
#define USERBLK_S3_SLAB_H

#include <stddef.h>
#include <stdint.h>

#define S3_SLAB_MAX 4096u /* bytes of a piece */

struct s3_slab;

/* Any number of threads may call what follows. NULL: no memory. */
struct s3_slab *s3_slab_new(void);
/* With all pieces. NULL is fine. */
void s3_slab_free(struct s3_slab *s);

/*
 * A piece of at least bytes (1 to S3_SLAB_MAX), aligned to 8, not initialised; room: bytes that it
 * has, which are a multiple of 24, or S3_SLAB_MAX. NULL: no memory.
 */
void *s3_slab_take(struct s3_slab *s, size_t bytes, size_t *room);
/* NULL is fine. */
void s3_slab_give(struct s3_slab *s, void *piece);

/* Bytes that the kernel has been asked for and not been given back. */
uint64_t s3_slab_memory(struct s3_slab *s);

#endif
