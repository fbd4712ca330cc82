/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tells devices that wait for something out of reach that they have to end. The runner waits for
 * the commands in flight, without limit, before it closes a disk, and goes from one to the next.
 */
#ifndef USERBLK_TCMU_ENDING_H
#define USERBLK_TCMU_ENDING_H

struct backend;
struct ending;
struct tcmu_device;

/*
 * From open() on: when the disk is removed, or the daemon ends, a device that is stalled gets
 * backend_stop(). NULL: it gets none, for lack of memory or of a thread.
 */
struct ending *ending_watch(struct tcmu_device *dev, struct backend *backend);
/* The disk is being closed: its device hears nothing more. Others may hear of its end. */
void ending_begin(struct ending *e);
/* The disk is closed. NULL is allowed in both. */
void ending_over(struct ending *e);

#endif
