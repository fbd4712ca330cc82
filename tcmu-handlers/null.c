/* SPDX-License-Identifier: BSD-3-Clause */
#include "tcmu-handlers/tcmu_adapter.h"

const struct handler_identity handler_identity = {
	.ops = &null_backend,
	.subtype = "userblk_null",
	.threads_subtype = "userblk_threads_null",
	.name = "userblk null device",
};
