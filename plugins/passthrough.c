/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugins/nbdkit_adapter.h"

const struct plugin_identity plugin_identity = {
	.ops = &passthrough_backend,
	.name = "userblk-passthrough",
	.longname = "userblk passthrough device",
};
