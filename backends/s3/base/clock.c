/* SPDX-License-Identifier: BSD-3-Clause */
/* The clock. */
#include <time.h>

#include "backends/s3/base/clock.h"

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t s3_now(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t s3_now_suspended(void)
{
	return read_clock(CLOCK_BOOTTIME);
}
