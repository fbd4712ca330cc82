/* SPDX-License-Identifier: BSD-3-Clause */
/* The description of a device for the kernel, and which device can take the place of another. */
#ifndef USERBLK_UBLK_PARAMETERS_H
#define USERBLK_UBLK_PARAMETERS_H

#include <stdint.h>

struct backend_info;
struct ublk_params_sent;

#define UBLK_SECTOR_SHIFT 9
#define UBLK_MAX_BLOCK	  4096u /* of the kernel's driver: a page */

/* What the kernel announces. -EINVAL for a device whose blocks are larger than 4096 bytes. */
int ublk_parameters(const struct backend_info *info, uint32_t memory_alignment,
	uint32_t buffer_size, struct ublk_params_sent *out);
/* A line about what keeps a device with the new parameters from taking the place of one with the
 * old ones. NULL: nothing. */
const char *ublk_parameters_mismatch(
	const struct ublk_params_sent *old, const struct ublk_params_sent *new);

#endif
