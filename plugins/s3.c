/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugins/nbdkit_adapter.h"

const struct plugin_identity plugin_identity = {
	.ops = &s3_backend,
	.name = "userblk-s3",
	.longname = "userblk S3 device",
};
