/* SPDX-License-Identifier: BSD-3-Clause */
/* The parameters of the S3 device. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "backends/params.h"
#include "backends/s3/admin/control.h"
#include "backends/s3/chunked/chunked.h"
#include "backends/s3/client/client.h"
#include "backends/s3/client/names.h"
#include "backends/s3/core/config.h"
#include "backends/s3/device/internal.h"
#include "backends/s3/format/format.h"
#include "backends/s3/log/writeback.h"

static const char *const block_size_names[] = {"512", "4096", NULL};

static const char *const layout_names[] = {
	[S3_LAYOUT_LOG] = "log", [S3_LAYOUT_DIRECT] = "direct", NULL};
static const char *const flush_names[] = {"durable", "weak", NULL};
static const char *const fencing_names[] = {"auto", "none", NULL};
static const char *const payload_signing_names[] = {"sha256", "crc32c", NULL};
static const char *const compress_names[] = {"off", "zstd", NULL};

const struct param s3_params[] = {
	{
		.name = "volume",
		.type = PARAM_STRING,
		.offset = offsetof(struct s3_config, volume),
		.required = true,
		.metavar = "NAME",
		.help = "name of the volume: a-z, 0-9, '.', '_' and '-'",
	},
	{
		.name = "prefix",
		.type = PARAM_STRING,
		.offset = offsetof(struct s3_config, prefix),
		.default_value = "userblk",
		.metavar = "KEY",
		.help = "beginning of the keys of all volumes",
	},
	S3_STORE_PARAMS(struct s3_config, store),
	{
		.name = "create",
		.type = PARAM_BOOL,
		.offset = offsetof(struct s3_config, create),
		.default_value = "off",
		.help = "create the volume, with size= bytes, if it does not exist",
	},
	{
		.name = "size",
		.type = PARAM_SIZE,
		.offset = offsetof(struct s3_config, size),
		.min = 1 << 20,
		.max = UINT64_C(1) << 50,
		.metavar = "SIZE",
		.help = "size of the volume; not needed if the volume exists",
	},
	{
		.name = "block-size",
		.type = PARAM_CHOICE,
		.offset = offsetof(struct s3_config, block_size),
		.default_value = "4096",
		.choices = block_size_names,
		.help = "block size in bytes of a new volume",
	},
	{
		.name = "layout",
		.type = PARAM_CHOICE,
		.offset = offsetof(struct s3_config, layout),
		.default_value = "log",
		.choices = layout_names,
		.help = "layout of a new volume: a log, or an object for each chunk "
			"of it (for comparisons)",
	},
	{
		.name = "chunk-size",
		.alias = "object-size", /* of nbdkit's S3 plugin, which has no other layout */
		.type = PARAM_SIZE,
		.offset = offsetof(struct s3_config, chunk_size),
		.default_value = "4M",
		.min = 64 << 10,
		.max = 64 << 20,
		.metavar = "SIZE",
		.help = "bytes of a chunk of a new volume with layout=direct",
	},
	{
		.name = "compress",
		.type = PARAM_CHOICE,
		.offset = offsetof(struct s3_config, compress),
		.default_value = "off",
		.choices = compress_names,
		.help = "compress the data of a new volume; an existing one cannot be changed",
	},
	{
		.name = "encryption-key",
		.type = PARAM_PATH,
		.offset = offsetof(struct s3_config, encryption_key),
		.metavar = "FILE",
		.help = "file with a key of 32 bytes, which encrypts a new volume (AES-256-GCM) or "
			"opens an encrypted one",
	},
	{
		.name = "batch-size",
		.type = PARAM_SIZE,
		.offset = offsetof(struct s3_config, batch_size),
		.default_value = "4M",
		.min = S3_BATCH_MIN,
		.max = S3_BATCH_MAX,
		.metavar = "SIZE",
		.help = "bytes of writes in an object of the log",
	},
	{
		.name = "uploads",
		.type = PARAM_UINT,
		.offset = offsetof(struct s3_config, uploads),
		.default_value = "8",
		.min = 1,
		.max = S3_MAX_UPLOADS,
		.metavar = "N",
		.help = "objects of the log that are uploaded in parallel",
	},
	{
		.name = "memory",
		.type = PARAM_SIZE,
		.offset = offsetof(struct s3_config, memory),
		.default_value = "256M",
		.min = 8 << 20,
		.metavar = "SIZE",
		.help = "memory for written and cached data, without the map",
	},
	{
		.name = "cache-file",
		.type = PARAM_PATH,
		.offset = offsetof(struct s3_config, cache_file),
		.metavar = "FILE",
		.help = "local file or block device that caches reads across restarts; not shared "
			"with other volumes",
	},
	{
		.name = "cache-size",
		.type = PARAM_SIZE,
		.offset = offsetof(struct s3_config, cache_size),
		.min = 16 << 20,
		.max = UINT64_C(64) << 40,
		.metavar = "SIZE",
		.help = "size of cache-file (default: 1G, or the whole device)",
	},
	{
		.name = "write-back",
		.type = PARAM_PATH,
		.offset = offsetof(struct s3_config, write_back),
		.metavar = "FILE",
		.help = "local file or block device that holds flushed data until it is uploaded, "
			"so that a flush waits for this disk only; not shared with other volumes",
	},
	{
		.name = "write-back-size",
		.type = PARAM_SIZE,
		.offset = offsetof(struct s3_config, write_back_size),
		.min = S3_WRITEBACK_LEAST,
		.max = UINT64_C(64) << 40,
		.metavar = "SIZE",
		.help = "size of write-back, at least four times batch-size (default: 1G, or the "
			"whole device)",
	},
	{
		.name = "write-back-discard",
		.type = PARAM_BOOL,
		.offset = offsetof(struct s3_config, write_back_discard),
		.default_value = "off",
		.help = "open the volume even if its write-back log is lost, damaged or not given, "
			"and lose the data that only that log holds",
	},
	{
		.name = "flush",
		.type = PARAM_CHOICE,
		.offset = offsetof(struct s3_config, flush),
		.default_value = "durable",
		.choices = flush_names,
		.help = "what a flush waits for: the upload, or nothing (a barrier only: a crash "
			"loses the newest writes)",
	},
	{
		.name = "fencing",
		.type = PARAM_CHOICE,
		.offset = offsetof(struct s3_config, fencing),
		.default_value = "auto",
		.choices = fencing_names,
		.help = "auto: refuse a store that cannot keep a second writer out; none: you "
			"ensure that there is only one writer",
	},
	{
		.name = "payload-signing",
		.type = PARAM_CHOICE,
		.offset = offsetof(struct s3_config, payload_signing),
		.default_value = "sha256",
		.choices = payload_signing_names,
		.help = "what the signature of an upload covers: sha256: all data, unless TLS "
			"protects it; crc32c: a checksum that the store verifies; it needs less "
			"CPU time and detects errors, but no deliberate changes on the network",
	},
	{
		.name = "checkpoint",
		.type = PARAM_UINT,
		.offset = offsetof(struct s3_config, checkpoint),
		.default_value = "512",
		.min = 4,
		.max = 512,
		.metavar = "OBJECTS",
		.help = "objects of the log between two checkpoints; opening after a crash reads "
			"twice as many",
	},
	{
		.name = "gc-delay",
		.type = PARAM_UINT,
		.offset = offsetof(struct s3_config, gc_delay),
		.default_value = "60",
		.max = 86400,
		.metavar = "SECONDS",
		.help = "time to keep objects that are no longer needed",
	},
	{
		.name = "close-timeout",
		.type = PARAM_UINT,
		.offset = offsetof(struct s3_config, close_timeout),
		.default_value = "60",
		.max = 86400,
		.metavar = "SECONDS",
		.help = "time without a reply from the store, or in which it refuses all uploads, "
			"after which a server that shuts down stops waiting; 0: never",
	},
	{
		.name = "snapshot",
		.type = PARAM_STRING,
		.offset = offsetof(struct s3_config, snapshot),
		.metavar = "NAME",
		.help = "serve this snapshot of the volume, read-only",
	},
	{
		.name = "readonly",
		.type = PARAM_BOOL,
		.offset = offsetof(struct s3_config, readonly),
		.default_value = "off",
		.help = "refuse all changes and serve the state at the time of opening",
	},
	{
		.name = "control",
		.type = PARAM_PATH,
		.offset = offsetof(struct s3_config, control),
		.metavar = "PATH",
		.help = "Unix socket to create, through which userblk-s3 controls the server",
	},
	{.name = NULL},
};

int s3_check(const void *config, struct params_error *error)
{
	const struct s3_config *c = config;
	uint64_t buffers = (c->uploads + 2) * c->batch_size;

	if (!s3_name_valid(c->volume)) {
		params_error_set(error,
			"volume=%s: not a valid name for a volume; use 1 to 63 of a-z, 0-9, '.', "
			"'_' and '-', beginning with a letter or digit",
			c->volume);
		return -EINVAL;
	}
	if (!s3_key_valid(c->prefix) || strlen(c->prefix) > 200) {
		params_error_set(error,
			"prefix=%s: not a valid prefix of keys; use a-z, 0-9, '.', '_', '-' and "
			"single '/' between them",
			c->prefix);
		return -EINVAL;
	}
	if (c->snapshot && !s3_name_valid(c->snapshot)) {
		params_error_set(error,
			"snapshot=%s: not a valid name for a snapshot; use 1 to 63 of a-z, 0-9, "
			"'.', '_' and '-', beginning with a letter or digit",
			c->snapshot);
		return -EINVAL;
	}
	if (c->create && c->snapshot) {
		params_error_set(error, "create=on: not together with snapshot=; leave one out");
		return -EINVAL;
	}
	if (c->create && c->readonly) {
		params_error_set(error, "create=on: not together with readonly=on; leave one out");
		return -EINVAL;
	}
	if (c->size % 4096) {
		params_error_set(error,
			"size=%" PRIu64 ": not a multiple of 4096; round it to %" PRIu64, c->size,
			(c->size / 4096 + 1) * 4096);
		return -EINVAL;
	}
	if (c->chunk_size & (c->chunk_size - 1)) {
		params_error_set(error,
			"chunk-size=%" PRIu64 ": not a power of two; use one such as %" PRIu64,
			c->chunk_size, UINT64_C(1) << (63 - __builtin_clzll(c->chunk_size)));
		return -EINVAL;
	}
	if (c->batch_size % 4096) {
		params_error_set(error,
			"batch-size=%" PRIu64 ": not a multiple of 4096; round it to %" PRIu64,
			c->batch_size, c->batch_size / 4096 * 4096);
		return -EINVAL;
	}
	if (c->memory < 2 * buffers) {
		params_error_set(error,
			"memory=%" PRIu64 ": too little for uploads=%" PRIu64
			" of batch-size=%" PRIu64 "; give %" PRIu64 " or more",
			c->memory, c->uploads, c->batch_size, 2 * buffers);
		return -EINVAL;
	}
	if (c->create && c->layout == S3_LAYOUT_DIRECT &&
		c->memory < s3_direct_memory(c->chunk_size)) {
		params_error_set(error,
			"memory=%" PRIu64 ": too little for chunk-size=%" PRIu64 "; give %" PRIu64
			" or more",
			c->memory, c->chunk_size, s3_direct_memory(c->chunk_size));
		return -EINVAL;
	}
	if (c->layout == S3_LAYOUT_DIRECT && (c->compress || c->encryption_key)) {
		params_error_set(error,
			"layout=direct: supports no compression or encryption; leave compress= and "
			"encryption-key= out");
		return -EINVAL;
	}
	if (c->cache_size && !c->cache_file) {
		params_error_set(error,
			"cache-size=%" PRIu64 ": needs a file; give cache-file= as well",
			c->cache_size);
		return -EINVAL;
	}
	if (c->cache_file && c->layout == S3_LAYOUT_DIRECT) {
		params_error_set(error,
			"cache-file=%s: layout=direct has no cache; leave one of them out",
			c->cache_file);
		return -EINVAL;
	}
	if (c->cache_file && c->encryption_key) {
		params_error_set(error,
			"cache-file=%s: would hold the data of an encrypted volume as plain text; "
			"leave it out",
			c->cache_file);
		return -EINVAL;
	}
	if (c->cache_file && c->write_back && strcmp(c->cache_file, c->write_back) == 0) {
		params_error_set(error, "cache-file=%s: is write-back= as well; give two files",
			c->cache_file);
		return -EINVAL;
	}
	if (c->write_back && c->flush == S3_FLUSH_WEAK) {
		params_error_set(error,
			"write-back=%s: flush=weak never waits; leave one of them out",
			c->write_back);
		return -EINVAL;
	}
	if (c->write_back && c->layout == S3_LAYOUT_DIRECT) {
		params_error_set(error,
			"write-back=%s: layout=direct has no log; leave one of them out",
			c->write_back);
		return -EINVAL;
	}
	if (c->write_back_size && !c->write_back) {
		params_error_set(error,
			"write-back-size=%" PRIu64 ": needs a file; give write-back= as well",
			c->write_back_size);
		return -EINVAL;
	}
	if (c->write_back_size && c->write_back_size < 4 * c->batch_size) {
		params_error_set(error,
			"write-back-size=%" PRIu64 ": less than four times batch-size=%" PRIu64
			"; give %" PRIu64 " or more",
			c->write_back_size, c->batch_size, 4 * c->batch_size);
		return -EINVAL;
	}
	if (c->control && strlen(c->control) > S3_CONTROL_PATH_MAX) {
		params_error_set(error,
			"control=%s: longer than the %zu bytes that a socket's path may have; "
			"choose "
			"a shorter one",
			c->control, S3_CONTROL_PATH_MAX);
		return -EINVAL;
	}
	return s3_store_check(&c->store, error);
}
