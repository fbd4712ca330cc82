/* SPDX-License-Identifier: BSD-3-Clause */
/* The volume's size. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "backends/device.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/super.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/keeper/snapshot_internal.h"
#include "backends/s3/log/log.h"
#include "backends/s3/state/map.h"

/* A volume's size in bytes, as the parameter size= has it. */
#define SMALLEST (UINT64_C(1) << 20)
#define LARGEST	 (UINT64_C(1) << 50)

static int change_size(void *opaque, struct s3_volume *v, struct s3_super *super)
{
	uint64_t blocks = *(const uint64_t *)opaque;

	(void)v;
	if (super->blocks == blocks)
		return 0;
	super->blocks = blocks;
	return 1;
}

/* Has the super object tell another size: from then on it is the volume's. */
static int store_size(struct s3_volume *v, uint64_t blocks)
{
	int r;

	s3_failpoint(S3_FAIL_RESIZE_SUPER_BEFORE);
	r = s3_volume_change_super(
		v, change_size, &blocks, "the size may be changed all the same; resize it again");
	if (r)
		return r;
	/* A writer that takes over reads the size after its fence, which may have been before this.
	 */
	r = s3_check_not_fenced(v);
	if (r == -ESTALE)
		return -EIO; /* reported */
	if (r)
		return s3_volume_refuse(v, r, "volume=%s: %s", v->name, strerror(-r));
	s3_failpoint(S3_FAIL_RESIZE_SUPER_AFTER);
	v->super.blocks = blocks;
	return 0;
}

int s3_volume_grow(struct s3_volume *v, uint64_t blocks)
{
	int r = store_size(v, blocks);

	if (r == 0)
		r = s3_map_resize(v->map, blocks);
	return r;
}

static int refuse_cut(struct s3_volume *v, uint64_t blocks)
{
	return s3_volume_refuse(v, -ENOTEMPTY,
		"size=%" PRIu64
		": there is data beyond that size; trim it first (blkdiscard --offset %" PRIu64 ")",
		blocks << v->shift, blocks << v->shift);
}

/*
 * Only of what is empty: a size with a digit missing must not cost any data, and who means it
 * trims first (blkdiscard). The end moves while writes wait; those behind it fail.
 */
static int cut(struct s3_volume *v, uint64_t blocks)
{
	uint64_t before = v->super.blocks;
	bool empty;
	int r;

	s3_log_pause(v);
	empty = s3_map_is_hole(v->map, blocks, before - blocks);
	if (empty)
		s3_map_resize(v->map, blocks);
	s3_log_resume(v);
	if (!empty)
		return refuse_cut(v, blocks);
	/* Emptied for good. */
	r = s3_log_drain(v);
	if (r == 0)
		r = store_size(v, blocks);
	if (r)
		s3_map_resize(v->map, before);
	return r;
}

static int resize(struct s3_volume *v, void *opaque)
{
	uint64_t blocks = *(const uint64_t *)opaque >> v->shift;
	int r;

	/* Also to the size that it has: one before that had no answer may have stored another. */
	if (blocks >= v->super.blocks)
		r = s3_volume_grow(v, blocks);
	else
		r = cut(v, blocks);
	if (r == 0)
		backend_resized(&v->backend, blocks << v->shift);
	return r;
}

static int check_size(struct s3_volume *v, uint64_t size)
{
	uint64_t most = S3_BLOCKS_MAX << v->shift;

	if (most > LARGEST)
		most = LARGEST;
	if (size % 4096 || size < SMALLEST || size > most)
		return s3_volume_refuse(v, -EINVAL,
			"size=%" PRIu64 ": give a multiple of 4096 from %" PRIu64 " to %" PRIu64,
			size, SMALLEST, most);
	return 0;
}

int s3_volume_resize(struct s3_volume *v, uint64_t size)
{
	int r = check_size(v, size);

	return r ? r : s3_keeper_call(v, resize, &size);
}

int s3_volume_may_resize(struct s3_volume *v, uint64_t size)
{
	uint64_t blocks = size >> v->shift, before = v->super.blocks;
	int r = check_size(v, size);

	if (r || blocks >= before || s3_map_is_hole(v->map, blocks, before - blocks))
		return r;
	return refuse_cut(v, blocks);
}
