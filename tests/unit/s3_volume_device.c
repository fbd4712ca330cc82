/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <unistd.h>

#include "backends/s3/core/failure.h"
#include "backends/s3/keeper/keeper.h"
#include "tests/unit/s3_volume_device.h"

struct s3_volume *volume_of(const struct device *d)
{
	return (struct s3_volume *)d->backend;
}

static int run_checkpoint(struct s3_volume *v, void *opaque)
{
	(void)opaque;
	return s3_checkpoint(v);
}

int try_checkpoint(struct device *d)
{
	return s3_keeper_call(volume_of(d), run_checkpoint, NULL);
}

void crash(struct device *d)
{
	s3_volume_fail(volume_of(d), -EIO, "test");
	device_close(d);
}

void device_flush_at_last(struct device *d)
{
	for (unsigned i = 0; backend_flush(d->backend); i++) {
		if (i == 600)
			fail_msg("no flush succeeds");
		usleep(100000);
	}
}
