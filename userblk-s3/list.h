/* SPDX-License-Identifier: BSD-3-Clause */
/* The volumes below a prefix. */
#ifndef USERBLK_S3_LIST_H
#define USERBLK_S3_LIST_H

#include "userblk-s3/answer.h"

/* 0 or negative errno, which has been reported. */
int list_volumes(const struct options *o, struct answer *answer);

#endif
