/* SPDX-License-Identifier: BSD-3-Clause */
/* A fixed number of threads that do what may block. */
#ifndef USERBLK_UBLK_WORKERS_H
#define USERBLK_UBLK_WORKERS_H

struct ublk_workers;

/* A piece of work; the owner keeps it until it was done. */
struct ublk_work {
	struct ublk_work *next;
	void (*run)(struct ublk_work *work);
};

/* NULL: no memory, or no threads can be made. count: at least 1. */
struct ublk_workers *ublk_workers_new(unsigned count);
/* No work left, and none will come. NULL is allowed. */
void ublk_workers_free(struct ublk_workers *w);

/* Has a chain of pieces, linked by next, done in some order. From any thread. */
void ublk_workers_push(struct ublk_workers *w, struct ublk_work *first);

#endif
