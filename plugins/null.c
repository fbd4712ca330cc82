/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugins/nbdkit_adapter.h"

const struct plugin_identity plugin_identity = {
	.ops = &null_backend,
	.name = "userblk-null",
	.longname = "userblk null device",
};
