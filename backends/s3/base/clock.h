/* SPDX-License-Identifier: BSD-3-Clause */
/* The clock. */
#ifndef USERBLK_S3_CLOCK_H
#define USERBLK_S3_CLOCK_H

#include <stdint.h>

uint64_t s3_now(void); /* ns, monotonic */
/* The same, which goes on while the machine is suspended. */
uint64_t s3_now_suspended(void);

#endif
