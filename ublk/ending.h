/* SPDX-License-Identifier: BSD-3-Clause */
/* The end of a disk whose server is asked to end by signals. */
#ifndef USERBLK_UBLK_ENDING_H
#define USERBLK_UBLK_ENDING_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "ublk/claiming.h"

struct ublk_ending {
	uint32_t id; /* of the disk */
	/* Has the kernel taken the device away? Asked after SIGUSR1, which anybody can send. */
	bool (*ended)(void *opaque);
	/* Has the device a request, and works on it, as far as that can be known? */
	bool (*works)(void *opaque);
	void (*log)(void *opaque, const char *line);
	void *opaque;
	/* Its own, 0 at first: */
	bool hurried;		 /* by another signal, which has not been obeyed yet */
	bool gone;		 /* ended() */
	bool told;		 /* what it waits for while the disk is stopped */
	struct timespec counted; /* when the last signal of another cause came */
	time_t stopping;	 /* since when the disk is being stopped */
};

/* Blocks the signals: before there are threads, which inherit that. */
void ublk_ending_block(void);
/* Until the end. True: someone asked for it; false: the kernel has taken the device away. */
bool ublk_ending_wait(struct ublk_ending *e);
/*
 * Shutdown was requested: writes what the kernel has in memory, and waits while the disk is mounted
 * or claimed. Another request, at any time, makes it write once more and wait no longer, for all
 * disks of the machine five minutes; the third one ends that, too. Those within a second are one.
 * claim: UBLK_NO_CLAIM at first; then of the disk, which nobody can mount from then on, unless it
 * is in use, or that is not known; the caller releases it. Negative errno, as ublk_disk_sync():
 * some of it was not written.
 */
int ublk_ending_release(struct ublk_ending *e, struct ublk_claim *claim);
/*
 * To be asked again and again while the kernel stops the disk, which takes until the device has
 * answered all requests. True: that is waited for no longer, for another signal, which counts
 * after UBLK_CONTROL_LIMIT only, or because the device is gone. opaque: a struct ublk_ending.
 */
bool ublk_ending_gives_up(void *opaque);

#endif
