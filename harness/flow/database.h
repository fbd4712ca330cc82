/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The flowops of databases: writes that nobody waits for at once, semaphores between
 * threads, time spent computing, and a rate of events; and what flowop.c has for them.
 */
#ifndef FLOW_DATABASE_H
#define FLOW_DATABASE_H

#include <sys/types.h>

#include "flowop.h"

/* Notes the semaphores of a thread's semblocks. False: out of memory. */
bool database_add_blocks(struct control *control, const struct thread_def *def, unsigned thread);
/* Makes what they need, before processes are forked. */
bool database_start(struct control *control, struct flow_error *error);
/* Wakes who waits for a semaphore: they are gone. */
void database_stop(const struct control *control);
/*
 * Waits for a worker's writes to a descriptor that it is about to close: they would go into the
 * file that gets its number next.
 */
enum step database_settle(struct worker *w, int fd);
/* When a worker has stopped: which of its writes were counted and are still under way? */
void database_stopped(struct worker *w);
/* Waits for what a worker has not waited for. False: some of it failed; the worker's error says
 * why. */
bool database_end(struct worker *w);

enum step flow_aiowrite(struct worker *w, unsigned i);
enum step flow_aiowait(struct worker *w, unsigned i);
enum step flow_hog(struct worker *w, unsigned i);
enum step flow_semblock(struct worker *w, unsigned i);
enum step flow_sempost(struct worker *w, unsigned i);
enum step flow_eventlimit(struct worker *w, unsigned i);

/* ---- of flowop.c, also for worker.c ---- */

#define PAGE 4096

/* What carries out a flowop, by its type. */
extern enum step (*const flowop_functions[FLOWOP_TYPES])(struct worker *w, unsigned i);

static inline bool flowop_stopped(const struct worker *w)
{
	return atomic_load_explicit(&w->control->stop, memory_order_relaxed);
}

/*
 * Counts an operation of the summary that began at the given time and has just ended. False: it
 * was too late.
 */
bool flowop_count(struct worker *w, unsigned i, uint64_t begin, uint64_t bytes);
/* Counts one that is not of the summary; Filebench's counter sees it all the same. */
void flowop_count_other(struct worker *w, unsigned i, uint64_t begin);
/* Adds what was counted since to what the process has done. */
void flowop_tell(struct worker *w);
/* "FILE:LINE: flowop NAME: WHAT PATH: errno" */
enum step flowop_fail(
	struct worker *w, const struct flowop *op, const char *what, const char *path);
/* What is read or written, and where if it is random. */
struct io {
	int fd;
	char *buffer;
	uint64_t size;
	off_t offset;
};

enum step flowop_prepare_io(struct worker *w, unsigned i, struct io *io);

#endif
