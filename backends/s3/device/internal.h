/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of this folder share. */
#ifndef USERBLK_S3_DEVICE_INTERNAL_H
#define USERBLK_S3_DEVICE_INTERNAL_H

#include "backends/params.h"

/* ---- params.c ---- */

/* Those of struct s3_config. */
extern const struct param s3_params[];
/* Do the parameters go together? 0 or negative errno, with the error set. */
int s3_check(const void *config, struct params_error *error);

#endif
