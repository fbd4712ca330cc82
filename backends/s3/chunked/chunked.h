/* SPDX-License-Identifier: BSD-3-Clause */
/* layout=direct: an object for each chunk of the volume. chunked.c says how. */
#ifndef USERBLK_S3_CHUNKED_H
#define USERBLK_S3_CHUNKED_H

#include "backends/backend.h"

struct s3_config;
struct s3_direct;
struct s3_volume;

/*
 * Sets v->direct up, for a volume whose super object has been read; unless it is opened
 * read-only, other writers will notice. To be freed even if it fails. 0 or negative errno.
 */
int s3_direct_open(struct s3_volume *v, const struct s3_config *config);
/* Stores what is dirty and ends the thread. Then the store is closed, then s3_direct_free(). */
void s3_direct_stop(struct s3_direct *d);
void s3_direct_free(struct s3_direct *d); /* NULL is fine */

/* The least memory for chunks of that size, both in bytes. */
uint64_t s3_direct_memory(uint64_t chunk_bytes);

/* As the device's calls of the same name. */
void s3_direct_submit(struct s3_direct *d, struct backend_request *request);
int s3_direct_extents(struct s3_direct *d, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque);
size_t s3_direct_counters(struct s3_direct *d, struct backend_counter *counters, size_t max);
/* What differs from the log. */
void s3_direct_info(const struct s3_direct *d, struct backend_info *info);
/* Answers everything that waits, after a failure. */
void s3_direct_give_up(struct s3_direct *d);

#endif
