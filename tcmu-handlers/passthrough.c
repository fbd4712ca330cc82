/* SPDX-License-Identifier: BSD-3-Clause */
#include "tcmu-handlers/tcmu_adapter.h"

const struct handler_identity handler_identity = {
	.ops = &passthrough_backend,
	.subtype = "userblk_passthrough",
	.threads_subtype = "userblk_threads_passthrough",
	.name = "userblk passthrough device",
};
