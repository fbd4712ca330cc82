/* SPDX-License-Identifier: BSD-3-Clause */
/* What sched.c and coroutine.c share with each other, random.c, trace.c and the calls that stand in
 * for the C library's. */
#ifndef USERBLK_TESTS_SIMULATION_SCHED_H
#define USERBLK_TESTS_SIMULATION_SCHED_H

#include "tests/simulation/sim.h"

enum sim_state { SIM_RUNNABLE, SIM_WAITING, SIM_FROZEN, SIM_ENDED, SIM_DEAD };

struct sim_thread {
	struct sim_thread *next; /* of all */
	struct sim_process *process;
	uint64_t serial;
	unsigned number; /* in its process */
	const char *name;
	void *(*run)(void *opaque);
	void *opaque, *result;
	enum sim_state state;
	unsigned place; /* among those that can run */
	int64_t priority;
	int error; /* errno while it does not run */
	void *sp, *fake;
	uint8_t *stack;
	size_t size;
	/* What it does, for the reader of a failure. */
	const char *what;
	const void *object;
	void *frame;
	/* Waiting. */
	struct sim_queue *queue;
	struct sim_thread *before, *after;
	uint64_t generation; /* of waits */
	bool timed_out;
	struct sim_queue joiners;
};

extern struct sim_thread *sim_current; /* NULL: outside of the simulation, or in an event */

/* ---- coroutine.c ---- */

extern struct sim_thread sim_root; /* the context that sim_run() was called in */

/* Gives a thread a stack, on which it begins with entry, which never returns. */
void sim_give_stack(struct sim_thread *t, void (*entry)(void));
/* The stack of a thread that has ended is free as soon as nobody stands on it. */
void sim_leave_stack(struct sim_thread *t);
/* The first call of entry. */
void sim_arrive(void);
/* Another thread goes on; returns when somebody switches to this one. */
void sim_switch_to(struct sim_thread *to);

/* ---- sched.c ---- */

/* Lets others go first, and time pass if there are none. */
void sim_yield(void);
/* Is this wait to end for no reason? */
bool sim_wait_spurious(void);

/* random.c: restarts all streams. */
void sim_seed(uint64_t seed);
/* trace.c: a word more in the hash; the last lines, in the report. */
void sim_hash_word(uint64_t word);
void sim_print_trace(void);

#endif
