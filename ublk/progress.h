/* SPDX-License-Identifier: BSD-3-Clause */
/* Is a device still worth waiting for whose server ends? Each of those who ask has seen how far it
 * had come. */
#ifndef USERBLK_UBLK_PROGRESS_H
#define USERBLK_UBLK_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct backend;
struct ublk_queue;

/* What is looked at. */
struct ublk_work {
	struct backend *device;
	bool can_stall; /* the device may wait for something out of reach */
	int below;	/* the file of the device; negative: it has none */
	struct ublk_queue *const *queues;
	unsigned count; /* of the queues */
};

/* What one has seen of it; 0 at first. */
struct ublk_seen {
	uint64_t written, writes_below;
};

/*
 * Does the device work on what it has? What it finishes shows that. While it does not, one that
 * may wait for something out of reach knows that; of a file, the disk below shows it: a flush of a
 * large page cache is one request that takes minutes.
 */
bool ublk_works_since(const struct ublk_work *work, struct ublk_seen *seen);
/* The same of a device that has got backend_stop(): one that may stall gives its requests up by
 * itself. Without requests, it is not what is waited for. */
bool ublk_stops_since(const struct ublk_work *work, struct ublk_seen *seen);
/*
 * The same of one that is being closed, without the queues: one that may stall knows itself when to
 * give up; of others, the last flush is all that takes long.
 */
bool ublk_closes_since(const struct ublk_work *work, struct ublk_seen *seen);

#endif
