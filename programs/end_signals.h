/* SPDX-License-Identifier: BSD-3-Clause */
/* The signals by which a program is asked to end. */
#ifndef USERBLK_END_SIGNALS_H
#define USERBLK_END_SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <time.h>

/* Signals of one cause, such as SIGTERM and SIGHUP of the end of a login, come within this time. */
#define ONE_CAUSE_S 1.0

/* Has a signal that comes now the cause of the one that came then? Safe in a signal handler. */
static inline bool is_of_one_cause(const struct timespec *then)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return difftime(now.tv_sec, then->tv_sec) + (double)(now.tv_nsec - then->tv_nsec) / 1e9 <=
	       ONE_CAUSE_S;
}

/* Those to block and to wait for. Not SIGHUP if it is ignored, by nohup(1): a blocked one would
 * come all the same. */
static inline void end_signals(sigset_t *set)
{
	struct sigaction hang_up;

	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
	if (sigaction(SIGHUP, NULL, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN)
		sigaddset(set, SIGHUP);
}

#endif
