/* SPDX-License-Identifier: BSD-3-Clause */
#include "ublk/progress.h"

#include "backends/backend.h"
#include "ublk/disk.h"
#include "ublk/queue.h"

static bool serves(const struct ublk_work *work)
{
	for (unsigned i = 0; i < work->count; i++)
		if (ublk_queue_serves(work->queues[i]))
			return true;
	return false;
}

static bool has_written(const struct ublk_work *work, struct ublk_seen *seen)
{
	uint64_t before = seen->written;

	seen->written = 0;
	for (unsigned i = 0; i < work->count; i++)
		seen->written += ublk_queue_written(work->queues[i]);
	return seen->written != before;
}

static bool has_written_below(const struct ublk_work *work, struct ublk_seen *seen)
{
	uint64_t before = seen->writes_below;

	if (work->below < 0)
		return false;
	seen->writes_below = ublk_disk_writes_below(work->below);
	return seen->writes_below != before;
}

bool ublk_works_since(const struct ublk_work *work, struct ublk_seen *seen)
{
	if (has_written(work, seen))
		return true;
	if (!serves(work))
		return false;
	return work->can_stall ? !backend_stalled(work->device) : has_written_below(work, seen);
}

bool ublk_stops_since(const struct ublk_work *work, struct ublk_seen *seen)
{
	return ublk_works_since(work, seen) || (work->can_stall && serves(work));
}

bool ublk_closes_since(const struct ublk_work *work, struct ublk_seen *seen)
{
	return work->can_stall || has_written_below(work, seen);
}
