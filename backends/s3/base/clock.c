/* SPDX-License-Identifier: BSD-3-Clause */
/* The clock. */
#include <time.h>

#include "backends/s3/base/clock.h"

uint64_t s3_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
