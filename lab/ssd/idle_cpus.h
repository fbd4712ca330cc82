/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * On which CPU of a machine a thread would wake up, and how long that CPU takes to leave its idle
 * state: a model without a clock or threads of its own. The kernel module and the unit test include
 * the same code.
 *
 * It does what Linux 5.8 does.
 *
 * Cores: CPU i and CPU i + cpus/2 share one, which is in the lighter of their two states. A CPU
 * whose sibling is awake is in the lightest one.
 *
 * Placement: a thread wakes up on the CPU where it was last if that is idle, otherwise on the next
 * idle core, otherwise on the next idle CPU; if all are busy, where it was (kernel/sched/fair.c,
 * select_idle_sibling()). A new thread starts on the next idle core after its parent's, otherwise
 * on the next idle CPU, otherwise on one with the fewest threads (find_idlest_cpu()).
 *
 * Idle states: a CPU is in the deepest one that it was idle long enough for, as if it had known how
 * long that would be. If threads that were on it wait for I/O, it must be idle for 11 times as long
 * as it takes to leave the state, for two threads 21 times (drivers/cpuidle/governors/menu.c,
 * performance_multiplier()).
 *
 * Times are ns of one clock.
 */
#ifndef USERBLK_LAB_SSD_IDLE_CPUS_H
#define USERBLK_LAB_SSD_IDLE_CPUS_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint64_t u64;
#endif

#define IDLE_CPUS   128U /* at most */
#define IDLE_STATES 8

/* cpus: an even number. States from the lightest: [0] how many, [1...] us. */
struct idle_machine {
	char name[32];
	unsigned int cpus;
	int residency_us[1 + IDLE_STATES], exit_us[1 + IDLE_STATES];
};

struct idle_cpu {
	unsigned int awake;	     /* threads on it that do not sleep */
	unsigned int waiting_for_io; /* threads that were on it last */
	u64 since;		     /* it is idle */
	unsigned int multiplier;
};

struct idle_model {
	const struct idle_machine *machine;
	struct idle_cpu cpu[IDLE_CPUS];
};

struct idle_thread {
	unsigned int cpu; /* where it is, or was last */
	bool awake, waits_for_io;
};

/* All CPUs of a machine are idle from now on. */
static inline void idle_become(struct idle_model *m, const struct idle_machine *machine, u64 now)
{
	unsigned int i;

	m->machine = machine;
	for (i = 0; i < IDLE_CPUS; i++)
		m->cpu[i] = (struct idle_cpu){.since = now, .multiplier = 1};
}

/* A thread that there was before: it goes to a CPU of this machine. */
static inline void idle_move(struct idle_model *m, struct idle_thread *thread, unsigned int number)
{
	thread->cpu = number % m->machine->cpus;
	m->cpu[thread->cpu].awake += thread->awake;
	m->cpu[thread->cpu].waiting_for_io += thread->waits_for_io;
}

static inline unsigned int idle_sibling(const struct idle_model *m, unsigned int number)
{
	return (number + m->machine->cpus / 2) % m->machine->cpus;
}

/* The idle state of a CPU, 1: the lightest. 0: none. */
static inline int idle_state(const struct idle_model *m, unsigned int number, u64 now)
{
	const struct idle_machine *machine = m->machine;
	const struct idle_cpu *cpu = &m->cpu[number];
	int state = cpu->awake ? 0 : machine->residency_us[0];

	while (state &&
		(now - cpu->since < machine->residency_us[state] * 1000ULL ||
			now - cpu->since < machine->exit_us[state] * 1000ULL * cpu->multiplier))
		state--;
	return state;
}

static inline u64 idle_exit_ns(const struct idle_model *m, unsigned int number, u64 now)
{
	int its = idle_state(m, number, now),
	    siblings = idle_state(m, idle_sibling(m, number), now);

	if (its > 1 && siblings < its)
		its = siblings > 1 ? siblings : 1;
	return its ? m->machine->exit_us[its] * 1000ULL : 0;
}

/* The next CPU from this one on that is idle and, with core, whose sibling is too; or IDLE_CPUS. */
static inline unsigned int idle_next(const struct idle_model *m, unsigned int number, bool core)
{
	unsigned int i;

	for (i = 0; i < m->machine->cpus; i++, number = (number + 1) % m->machine->cpus)
		if (!m->cpu[number].awake && (!core || !m->cpu[idle_sibling(m, number)].awake))
			return number;
	return IDLE_CPUS;
}

static inline void idle_start(struct idle_model *m, struct idle_thread *thread, unsigned int number)
{
	m->cpu[thread->cpu].waiting_for_io -= thread->waits_for_io;
	thread->waits_for_io = false;
	thread->cpu = number;
	thread->awake = true;
	m->cpu[number].awake++;
}

/* A thread wakes up. Returns how long its CPU takes to leave its idle state, in ns. */
static inline u64 idle_awaken(struct idle_model *m, struct idle_thread *thread, u64 now)
{
	unsigned int number = thread->cpu;
	u64 exit_ns;

	if (thread->awake)
		return 0;
	if (m->cpu[number].awake)
		number = idle_next(m, thread->cpu, true);
	if (number == IDLE_CPUS)
		number = idle_next(m, thread->cpu, false);
	if (number == IDLE_CPUS)
		number = thread->cpu;
	exit_ns = idle_exit_ns(m, number, now);
	idle_start(m, thread, number);
	return exit_ns;
}

/* A thread that runs made a new one, which is awake until it sleeps. */
static inline void idle_begin(
	struct idle_model *m, struct idle_thread *new, const struct idle_thread *parent)
{
	unsigned int number = idle_next(m, parent->cpu, true), i;

	if (new->awake)
		return;
	if (number == IDLE_CPUS)
		number = idle_next(m, parent->cpu, false);
	if (number == IDLE_CPUS)
		for (number = parent->cpu, i = 0; i < m->machine->cpus; i++)
			if (m->cpu[i].awake < m->cpu[number].awake)
				number = i;
	idle_start(m, new, number);
}

/* A thread sleeps from now on. for_io: it waits for I/O (task_struct's in_iowait). */
static inline void idle_fall_asleep(
	struct idle_model *m, struct idle_thread *thread, bool for_io, u64 now)
{
	struct idle_cpu *cpu = &m->cpu[thread->cpu];

	if (!thread->awake)
		return;
	thread->awake = false;
	thread->waits_for_io = for_io;
	cpu->waiting_for_io += for_io;
	if (!--cpu->awake) {
		cpu->since = now;
		cpu->multiplier = 1 + 10 * cpu->waiting_for_io;
	}
}

#endif
