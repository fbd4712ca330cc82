/* SPDX-License-Identifier: BSD-3-Clause */
/* A fixed number of threads that do what may block; the one that was last busy works next. */
#ifndef USERBLK_WORKERS_H
#define USERBLK_WORKERS_H

struct workers;

/* A piece of work; the owner keeps it until it was done. */
struct work {
	struct work *next;
	void (*run)(struct work *work);
};

/* NULL: no memory, or no threads can be made. count: at least 1. */
struct workers *workers_new(unsigned count);
/* No work left, and none will come. NULL is allowed. */
void workers_free(struct workers *w);

/* Has a chain of pieces, linked by next, done in some order. From any thread. */
void workers_push(struct workers *w, struct work *first);

#endif
