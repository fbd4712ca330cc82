/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads and read-ahead, and the checksums they are checked with. */
#ifndef USERBLK_S3_READ_H
#define USERBLK_S3_READ_H

#include <stdint.h>

#include "backends/backend.h"

struct s3_crc_cache;
struct s3_object_header;
struct s3_volume;

void s3_read(struct s3_volume *v, struct backend_request *request);
/* Reads ahead what a read of length bytes at offset, which has been begun, may be followed by. */
void s3_read_ahead(struct s3_volume *v, uint64_t offset, uint64_t length);
int s3_read_extents(struct s3_volume *v, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque);
/* bytes: what the checksums of objects may take. */
struct s3_crc_cache *s3_crc_cache_new(uint64_t bytes);
void s3_crc_cache_free(struct s3_crc_cache *cache);
/* Remembers the checksums in a decoded header. */
void s3_crc_cache_add(struct s3_crc_cache *cache, const struct s3_object_header *header);

#endif
