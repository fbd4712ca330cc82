/* SPDX-License-Identifier: BSD-3-Clause */
#include "tcmu-handlers/tcmu_adapter.h"

const struct handler_identity handler_identity = {
	.ops = &s3_backend,
	.subtype = "userblk_s3",
	.threads_subtype = "userblk_threads_s3",
	.name = "userblk S3 device",
};
