/* SPDX-License-Identifier: BSD-3-Clause */
#include "ublk/parameters.h"

#include <errno.h>
#include <stddef.h>

#include "backends/backend.h"
#include "ublk/uapi.h"

/* What a disk has that announces none; a mask. */
#define USUAL_DMA_ALIGNMENT 3u

/* The largest discard and write of zeroes in bytes: lengths have 32 bits. */
#define MAX_RANGE (1u << 31)

static uint8_t shift_of(uint32_t power)
{
	return (uint8_t)__builtin_ctz(power);
}

int ublk_parameters(const struct backend_info *info, uint32_t memory_alignment,
	uint32_t buffer_size, struct ublk_params_sent *out)
{
	uint32_t block = info->block_size < 1u << UBLK_SECTOR_SHIFT ? 1u << UBLK_SECTOR_SHIFT
								    : info->block_size;
	uint64_t max_trim =
		info->max_trim && info->max_trim < MAX_RANGE ? info->max_trim : MAX_RANGE;

	if (block > UBLK_MAX_BLOCK)
		return -EINVAL;
	*out = (struct ublk_params_sent){
		.types = UBLK_PARAM_TYPE_BASIC,
		.basic =
			{
				.attrs = (info->readonly ? UBLK_ATTR_READ_ONLY : 0u) |
					 (info->rotational ? UBLK_ATTR_ROTATIONAL : 0u) |
					 /* Without it nobody would ever send a flush. */
					 (info->can_flush ? UBLK_ATTR_VOLATILE_CACHE : 0u) |
					 (info->can_fua ? UBLK_ATTR_FUA : 0u),
				.logical_bs_shift = shift_of(block),
				.physical_bs_shift = shift_of(block),
				.io_min_shift = shift_of(block),
				.io_opt_shift = shift_of(info->preferred_size < block
								 ? block
								 : info->preferred_size),
				.max_sectors = buffer_size >> UBLK_SECTOR_SHIFT,
				.dev_sectors = info->size / block * (block >> UBLK_SECTOR_SHIFT),
			},
	};
	if (info->can_trim || info->can_zero) {
		uint32_t granularity =
			info->trim_granularity > block ? info->trim_granularity : block;

		out->types |= UBLK_PARAM_TYPE_DISCARD;
		out->discard = (struct ublk_param_discard){
			.discard_granularity = granularity,
			.max_discard_sectors =
				info->can_trim
					? (uint32_t)(max_trim / block * block >> UBLK_SECTOR_SHIFT)
					: 0,
			.max_write_zeroes_sectors =
				info->can_zero ? MAX_RANGE >> UBLK_SECTOR_SHIFT : 0,
			.max_discard_segments = 1,
		};
	}
	if (memory_alignment > 1) {
		out->types |= UBLK_PARAM_TYPE_DMA_ALIGN;
		out->dma_alignment = memory_alignment - 1;
	}
	return 0;
}

const char *ublk_parameters_mismatch(
	const struct ublk_params_sent *old, const struct ublk_params_sent *new)
{
	const uint32_t same = UBLK_ATTR_READ_ONLY | UBLK_ATTR_VOLATILE_CACHE | UBLK_ATTR_FUA;
	uint32_t aligned =
		old->types & UBLK_PARAM_TYPE_DMA_ALIGN ? old->dma_alignment : USUAL_DMA_ALIGNMENT;

	if (new->basic.dev_sectors < old->basic.dev_sectors)
		return "it is smaller than the disk";
	if (new->basic.logical_bs_shift > old->basic.logical_bs_shift)
		return "its blocks are larger than the disk's";
	if ((new->basic.attrs ^ old->basic.attrs) & same)
		return "it differs from the disk in being read-only, in its cache or in FUA";
	if (new->types & UBLK_PARAM_TYPE_DMA_ALIGN &&new->dma_alignment > aligned)
		return "it needs memory aligned better than the disk's";
	return NULL;
}
