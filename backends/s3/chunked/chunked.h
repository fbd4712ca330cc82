/* SPDX-License-Identifier: BSD-3-Clause */
/* layout=direct: an object for each chunk of the volume. chunked.c says how. */
#ifndef USERBLK_S3_CHUNKED_H
#define USERBLK_S3_CHUNKED_H

#include <stdint.h>

struct s3_config;
struct s3_volume;

/*
 * Sets v->direct and v->layout up, for a volume whose super object has been read; unless it is
 * opened read-only, other writers will notice. 0 or negative errno.
 */
int s3_direct_open(struct s3_volume *v, const struct s3_config *config);

/* The least memory for chunks of that size, both in bytes. */
uint64_t s3_direct_memory(uint64_t chunk_bytes);

#endif
