/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The processes of a run and their threads: starts them together, ends them, and
 * notices those that end otherwise.
 *
 * Each instance of a process that the workload defines is a process, forked from
 * userblk-flow; a workload's only one is userblk-flow itself. They share
 * what they count, the states of files, semaphores, and how the run stands; descriptors
 * and memory are their own. They end with userblk-flow, however that ends.
 */
#ifndef FLOW_CREW_H
#define FLOW_CREW_H

#include <signal.h>

#include "run.h"

struct crew;

/* What it needs, before any process is started. NULL with a line in error. */
struct crew *crew_new(
	const struct workload *w, const struct run_options *options, struct flow_error *error);
void crew_free(struct crew *crew);

/* Starts all threads and waits until they are ready; false: one could not start. */
bool crew_start(struct crew *crew);
/* Lets them work until CLOCK_MONOTONIC is deadline ns, or crew_stop(). */
void crew_release(struct crew *crew, uint64_t start, uint64_t deadline);
/* Ends the run at the time, if it has not ended before. */
void crew_stop(struct crew *crew, enum run_end end, uint64_t at);
/* Has it ended? Ends it where a process was killed. */
bool crew_ended(struct crew *crew);
/* Waits for all threads and processes; adds the CPU time that the processes took. */
void crew_join(struct crew *crew, double *user_s, double *system_s);

/* Adds to the rows what all threads have counted so far. */
void crew_sum(const struct crew *crew, struct stats *rows);
/* Once all have ended: when and how, and for how many threads of their own accord. */
uint64_t crew_result(const struct crew *crew, struct run_result *result);
/* The first error, once all have ended; false: there was none. */
bool crew_failed(const struct crew *crew, struct flow_error *error);

/* The signals that run_block_signals() blocks, of which some tell of threads and processes. */
void crew_signals(sigset_t *set);
/* Seconds of CPU time between two times. */
double crew_cpu_seconds(const struct timeval *before, const struct timeval *after);

#endif
