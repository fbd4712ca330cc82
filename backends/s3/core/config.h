/* SPDX-License-Identifier: BSD-3-Clause */
/* The parameters of a volume. */
#ifndef USERBLK_S3_CONFIG_H
#define USERBLK_S3_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/s3/client/client.h"

struct s3_volume;

#define S3_MAX_UPLOADS 64

enum s3_flush_mode { S3_FLUSH_DURABLE, S3_FLUSH_WEAK };
enum s3_fencing { S3_FENCING_AUTO, S3_FENCING_NONE };
enum s3_payload_signing { S3_PAYLOAD_SHA256, S3_PAYLOAD_CRC32C };
enum s3_compress { S3_COMPRESS_OFF, S3_COMPRESS_ZSTD };

struct s3_config {
	struct s3_store_config store;
	char *volume, *prefix;
	char *snapshot;	      /* to be served, read-only; NULL: the volume as it is now */
	char *cache_file;     /* or NULL */
	char *write_back;     /* file, or NULL */
	char *control;	      /* path of a socket, or NULL */
	char *encryption_key; /* file, or NULL */
	bool create, readonly, write_back_discard;
	uint64_t size, batch_size, uploads, memory, checkpoint, gc_delay, chunk_size, cache_size;
	uint64_t close_timeout;
	uint64_t write_back_size;
	unsigned block_size; /* index; s3_config_block_size() */
	unsigned flush, fencing, layout, compress, payload_signing;
	/* No parameters: the tool's. */
	bool require_clean_close;  /* only if the last writer has closed the volume */
	bool exclusive;		   /* with create: only if there is none yet */
	bool use_default_deadline; /* the user gave no deadline of requests: an open need not
				      take it */
	/*
	 * Called when the volume is known up to its end and nothing has been changed, unless it is
	 * readonly: may refuse it by a reported negative errno. Or NULL.
	 */
	int (*before_change)(struct s3_volume *v, void *opaque);
	void *before_change_opaque;
	/* Called with the same opaque when the log has its last object. Or NULL. */
	void (*when_closed)(struct s3_volume *v, void *opaque);
};

uint32_t s3_config_block_size(const struct s3_config *config);

#endif
