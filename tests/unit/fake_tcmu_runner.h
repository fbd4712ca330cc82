/* SPDX-License-Identifier: BSD-3-Clause */
/* A stand-in for the part of tcmu-runner that holds a device's attributes and takes the answers. */
#ifndef USERBLK_FAKE_TCMU_RUNNER_H
#define USERBLK_FAKE_TCMU_RUNNER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tcmu-runner.h>
#include <tcmur_device.h>

struct tcmu_device {
	char cfgstring[512];
	uint64_t blocks;
	uint32_t block_size, max_transfer, xcopy, granularity, alignment, max_unmap;
	bool write_cache, solid_state, unmap, split;
	/* As configfs has them; the cache is the attribute, as the kernel keeps it. */
	int exports, session, enabled, cache;
	/* The kernel waits for the answer to a change: beside an rmdir, configfs would, too. */
	bool reconfigured;
	struct tcmur_device runners; /* the runner's own */
	int uio;		     /* descriptor; negative: it is never blocked */
	void *own;
};

extern struct tcmur_handler *registered, *registered_with_threads;
extern char logged[4096]; /* all messages since a test emptied it */
extern atomic_int completions, completed_status;
extern void (*on_completion)(struct tcmu_device *dev); /* from the thread that completes */

#endif
