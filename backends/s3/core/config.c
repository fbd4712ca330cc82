/* SPDX-License-Identifier: BSD-3-Clause */
/* The parameters of a volume. */

#include "backends/s3/core/config.h"

static const uint32_t block_sizes[] = {512, 4096};

uint32_t s3_config_block_size(const struct s3_config *c)
{
	return block_sizes[c->block_size];
}
