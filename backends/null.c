/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A device that keeps nothing: reads are zeroes (or whatever the framework's
 * buffer held), everything else succeeds at once. What remains is the cost of
 * the framework.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/device.h"

enum fill { FILL_ZERO, FILL_NONE };

/* block-size's choices in bytes, in the order of the names below. */
static const uint32_t block_sizes[] = {512, 4096};
static const char *const block_size_names[] = {"512", "4096", NULL};
static const char *const fill_names[] = {"zero", "none", NULL};

struct null_config {
	uint64_t size;
	unsigned block_size; /* index into block_sizes */
	unsigned fill;	     /* enum fill */
};

struct null {
	struct backend backend;
	uint32_t block_size;
};

static const struct param null_params[] = {
	{
		.name = "size",
		.type = PARAM_SIZE,
		.offset = offsetof(struct null_config, size),
		.required = true,
		.min = 512,
		.metavar = "SIZE",
		.help = "size of the device",
	},
	{
		.name = "block-size",
		.type = PARAM_CHOICE,
		.offset = offsetof(struct null_config, block_size),
		.default_value = "512",
		.choices = block_size_names,
		.help = "block size in bytes that is reported to clients",
	},
	{
		.name = "fill",
		.type = PARAM_CHOICE,
		.offset = offsetof(struct null_config, fill),
		.default_value = "zero",
		.choices = fill_names,
		.help = "what reads return: zeroes, or what was in the server's memory (unsafe)",
	},
	{.name = NULL},
};

static int null_check(const void *config, struct params_error *error)
{
	const struct null_config *c = config;
	uint32_t block_size = block_sizes[c->block_size];

	if (c->size % block_size) {
		params_error_set(error,
			"size=%llu: not a multiple of block-size=%u; round it to %llu",
			(unsigned long long)c->size, block_size,
			(unsigned long long)(c->size / block_size + 1) * block_size);
		return -EINVAL;
	}
	return 0;
}

static int null_open(
	const void *config, uint64_t size, const struct backend_host *host, struct backend **out)
{
	struct null_config c = *(const struct null_config *)config;
	struct params_error error;

	if (!c.size)
		c.size = size;

	/* The framework's size has not been through the parameters' check. */
	int r = null_check(&c, &error);

	if (r) {
		backend_error(host, "%s", error.text);
		return r;
	}

	struct null *n = calloc(1, sizeof *n);

	if (!n)
		return -ENOMEM;
	n->backend.size = c.size;
	n->block_size = block_sizes[c.block_size];
	n->backend.reads_zeroes = c.fill == FILL_ZERO;
	*out = &n->backend;
	return 0;
}

static int null_close(struct backend *b)
{
	free(b);
	return 0;
}

static int null_info(struct backend *b, struct backend_info *info)
{
	const struct null *n = (const struct null *)b;

	*info = (struct backend_info){
		.block_size = n->block_size,
		.preferred_size = 4096,
		.max_request = 1u << 30,
		.trim_granularity = n->block_size,
		.can_flush = true,
		.can_fua = true,
		.can_trim = true,
		.can_zero = true,
		.can_fast_zero = true,
		.can_extents = true,
		.can_multi_conn = true,
		.never_waits = true,
	};
	return 0;
}

static int null_readv(struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset)
{
	(void)offset;
	if (b->reads_zeroes)
		for (int i = 0; i < iovcnt; i++)
			if (iov[i].iov_len) /* an empty one may have no base */
				memset(iov[i].iov_base, 0, iov[i].iov_len);
	return 0;
}

static int null_writev(
	struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset, unsigned flags)
{
	(void)b, (void)iov, (void)iovcnt, (void)offset, (void)flags;
	return 0;
}

static int null_trim(struct backend *b, uint64_t offset, uint64_t length, unsigned flags)
{
	(void)b, (void)offset, (void)length, (void)flags;
	return 0;
}

static int null_extents(struct backend *b, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque)
{
	(void)flags;
	return fn(opaque, &(struct backend_extent){
				  .offset = offset,
				  .length = length,
				  .hole = true,
				  .zero = b->reads_zeroes,
			  });
}

const struct backend_ops null_backend = {
	.name = "null",
	.summary = "A device that stores nothing, to measure what the framework itself costs",
	.params = null_params,
	.main_param = "size",
	.config_size = sizeof(struct null_config),
	.check = null_check,
	.open = null_open,
	.close = null_close,
	.info = null_info,
	.readv = null_readv,
	.writev = null_writev,
	.trim = null_trim,
	.zero = null_trim, /* nothing to do either */
	.extents = null_extents,
};

BACKEND_REGISTER(null_backend)
