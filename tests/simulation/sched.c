/* SPDX-License-Identifier: BSD-3-Clause */
/* The scheduler, and virtual time. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/simulation/memory.h"
#include "tests/simulation/runner.h"
#include "tests/simulation/sched.h"
#include "tests/simulation/sim.h"

#define EPOCH (INT64_C(1700000000) * 1000000000)

const char *const sim_class_names[SIM_CLASSES] = {"lost", "late", "refuse", "full", "line", "clock",
	"kill", "crash", "pause", "stall", "takeover", "reader", "tool", "clone", "write-back",
	"cache-file", "transform", "direct", "odd-store", "parameters", "scenes", "schedule",
	"threads"};

struct sim_options sim_options;

static struct sim_thread *threads; /* all, newest first */
static unsigned n_threads, n_processes;

static void pick(bool may_stay);
static void remove_runnable(struct sim_thread *t);

static void thread_main(void)
{
	struct sim_thread *t = sim_current;

	sim_arrive();
	t->result = t->run(t->opaque);
	remove_runnable(t);
	t->state = SIM_ENDED;
	t->process->running--;
	sim_wake_all(&t->joiners);
	sim_leave_stack(t);
	pick(false);
	abort();
}

/* ---- what can run --------------------------------------------------------------------------- */

static struct sim_thread *runnable[4096];
static unsigned n_runnable;
static uint64_t now, steps;
static int64_t lowest, highest;
static bool calm;
static struct sim_thread *avoided; /* it lets others go first */

/* How this seed schedules. */
static struct {
	enum { RUN_TO_BLOCK, RANDOM, STICKY, PRIORITIES } mode;
	uint64_t stay;	  /* STICKY: it goes on but once in so many steps */
	uint64_t change;  /* PRIORITIES: one sinks once in so many steps */
	uint64_t step_ns; /* that a step takes, at most */
	uint64_t stall;	  /* a thread is delayed once in so many steps; 0: never */
	uint64_t stall_ns;
	uint64_t spurious; /* a wait ends for no reason once in so many; 0: never */
} how;

static void draw_schedule(void)
{
	how.mode = (int)sim_below(SIM_SCHED, 4);
	how.stay = sim_log_between(SIM_SCHED, 2, 200);
	how.change = sim_log_between(SIM_SCHED, 20, 2000);
	how.step_ns = sim_log_between(SIM_SCHED, 100, sim_once_in(SIM_SCHED, 4) ? 1000000 : 5000);
	how.stall = sim_once_in(SIM_SCHED, 2) ? sim_log_between(SIM_SCHED, 200, 5000) : 0;
	how.stall_ns = sim_log_between(SIM_SCHED, 10000, 3 * SIM_SECOND);
	how.spurious = sim_once_in(SIM_SCHED, 3) ? 50 : 0;
	if (!sim_with(SIM_SCHEDULE))
		how.mode = RUN_TO_BLOCK;
	if (!sim_with(SIM_SCHEDULE))
		how.spurious = 0;
	if (!sim_with(SIM_STALL))
		how.stall = 0;
}

static void add_runnable(struct sim_thread *t)
{
	if (n_runnable == sizeof runnable / sizeof *runnable)
		sim_fail("threads", "too many threads can run");
	t->state = SIM_RUNNABLE;
	t->place = n_runnable;
	runnable[n_runnable++] = t;
}

static void remove_runnable(struct sim_thread *t)
{
	runnable[t->place] = runnable[--n_runnable];
	runnable[t->place]->place = t->place;
}

static void make_runnable(struct sim_thread *t)
{
	if (t->process->dead)
		return;
	if (t->process->paused)
		t->state = SIM_FROZEN;
	else
		add_runnable(t);
}

/* ---- events ---------------------------------------------------------------------------------- */

struct event {
	uint64_t when, number;
	void (*fn)(void *a, uint64_t b);
	void *a;
	uint64_t b;
};
static struct event *events;
static size_t n_events, events_room;
static uint64_t events_made;

static bool sooner(const struct event *x, const struct event *y)
{
	return x->when != y->when ? x->when < y->when : x->number < y->number;
}

void sim_at(uint64_t when, void (*fn)(void *a, uint64_t b), void *a, uint64_t b)
{
	struct event e = {
		.when = when < now ? now : when, .number = events_made++, .fn = fn, .a = a, .b = b};
	size_t i;

	if (n_events == events_room) {
		events_room = events_room ? 2 * events_room : 256;
		events = realloc(events, events_room * sizeof *events);
		if (!events)
			abort();
	}
	for (i = n_events++; i && sooner(&e, &events[(i - 1) / 2]); i = (i - 1) / 2)
		events[i] = events[(i - 1) / 2];
	events[i] = e;
}

static void fire(void)
{
	struct event first = events[0], last = events[--n_events];
	struct sim_thread *running = sim_current;
	size_t i = 0, child;

	while ((child = 2 * i + 1) < n_events) {
		if (child + 1 < n_events && sooner(&events[child + 1], &events[child]))
			child++;
		if (!sooner(&events[child], &last))
			break;
		events[i] = events[child];
		i = child;
	}
	events[i] = last;
	if (first.when > now)
		now = first.when;
	/* No thread does it. */
	sim_current = NULL;
	first.fn(first.a, first.b);
	sim_current = running;
}

/* ---- choosing ----------------------------------------------------------------------------------
 */

static void deadlock(void)
{
	sim_fail("deadlock", "all threads wait, and nothing is due");
}

static struct sim_thread *choose(bool may_stay)
{
	struct sim_thread *best = NULL, *self = sim_current;

	if (avoided) {
		struct sim_thread *last = avoided;

		avoided = NULL;
		if (last->state == SIM_RUNNABLE && n_runnable > 1) {
			uint64_t i = sim_below(SIM_SCHED, n_runnable - 1);

			return runnable[i == last->place ? n_runnable - 1 : i];
		}
	}
	switch (how.mode) {
	case RUN_TO_BLOCK:
		if (may_stay)
			return self;
		break;
	case STICKY:
		if (may_stay && !sim_once_in(SIM_SCHED, how.stay))
			return self;
		break;
	case PRIORITIES:
		if (self && sim_once_in(SIM_SCHED, how.change))
			self->priority = --lowest;
		for (unsigned i = 0; i < n_runnable; i++)
			if (!best || runnable[i]->priority > best->priority)
				best = runnable[i];
		return best;
	case RANDOM:
		break;
	}
	return runnable[sim_below(SIM_SCHED, n_runnable)];
}

/* Another thread goes on, or (may_stay) this one. It is among those that can run if it may stay. */
static void pick(bool may_stay)
{
	struct sim_thread *next;

	for (;;) {
		while (n_events && (events[0].when <= now || n_runnable == 0))
			fire();
		if (n_runnable)
			break;
		if (n_events == 0)
			deadlock();
	}
	/* An event may have ended or paused who stood here. */
	if (may_stay && sim_current->state != SIM_RUNNABLE)
		may_stay = false;
	next = choose(may_stay);
	if (next != sim_current) {
		sim_hash_word(next->serial << 8 | 1);
		sim_switch_to(next);
	}
}

static void unpause(void *process, uint64_t unused)
{
	struct sim_process *p = process;

	(void)unused;
	if (!p->paused)
		return;
	p->paused = false;
	if (p->dead)
		return;
	sim_trace("process %u goes on", p->id);
	for (struct sim_thread *t = threads; t; t = t->next)
		if (t->process == p && t->state == SIM_FROZEN)
			add_runnable(t);
}

static void pause_process(struct sim_process *p)
{
	p->paused = true;
	p->pause_at = SIM_NEVER;
	sim_trace("process %u is paused for %.3f s", p->id, (double)p->pause_ns / 1e9);
	for (struct sim_thread *t = threads; t; t = t->next)
		if (t->process == p && t->state == SIM_RUNNABLE) {
			remove_runnable(t);
			t->state = SIM_FROZEN;
		}
	sim_at(now + p->pause_ns, unpause, p, 0);
}

void sim_kill(struct sim_process *p)
{
	if (p->dead)
		return;
	sim_trace("process %u is killed%s", p->id, p->crash ? ", its machine too" : "");
	p->dead = true;
	for (struct sim_thread *t = threads; t; t = t->next)
		if (t->process == p && t->state == SIM_RUNNABLE)
			remove_runnable(t), t->state = SIM_DEAD;
	sim_files_close_all(p);
	if (p->on_kill)
		p->on_kill(p);
}

static void wake_timed(void *thread, uint64_t generation);

void sim_point(const char *what, const void *object)
{
	struct sim_thread *t = sim_current;
	struct sim_process *p;

	if (!t)
		return;
	t->what = what;
	t->object = object;
	t->frame = __builtin_frame_address(0);
	steps++;
	p = t->process;
	p->steps++;
	now += 1 + sim_below(SIM_SCHED, how.step_ns);
	sim_hash_word(t->serial << 32 ^ now);
	if (steps > sim_options.max_steps)
		sim_fail("livelock", "more than %" PRIu64 " steps", sim_options.max_steps);
	if (p->steps >= p->kill_at) {
		sim_kill(p);
		pick(false);
		abort();
	}
	if (p->steps >= p->pause_at && (!calm || p->pause_certain)) {
		pause_process(p);
		pick(false);
		return;
	}
	if (how.stall && !calm && sim_once_in(SIM_SCHED, how.stall)) {
		remove_runnable(t);
		t->state = SIM_WAITING;
		t->timed_out = false;
		t->queue = NULL;
		sim_at(now + sim_below(SIM_SCHED, how.stall_ns), wake_timed, t, ++t->generation);
		pick(false);
		return;
	}
	pick(true);
}

void sim_yield(void)
{
	struct sim_thread *t = sim_current;

	t->priority = --lowest;
	/* The thread that it waits for may wait for something else. */
	if (n_runnable == 1 && n_events && events[0].when > now)
		now = events[0].when;
	avoided = t;
	sim_point("yield", NULL);
}

/* ---- waiting
 * ------------------------------------------------------------------------------------- */

static void unlink_waiter(struct sim_thread *t)
{
	struct sim_queue *q = t->queue;

	if (!q)
		return;
	*(t->before ? &t->before->after : &q->head) = t->after;
	*(t->after ? &t->after->before : &q->tail) = t->before;
	t->queue = NULL;
}

static void wake_timed(void *thread, uint64_t generation)
{
	struct sim_thread *t = thread;

	if (t->generation != generation || t->state != SIM_WAITING || t->process->dead)
		return;
	unlink_waiter(t);
	t->timed_out = true;
	make_runnable(t);
}

bool sim_wait(struct sim_queue *q, uint64_t until, const char *what, const void *object)
{
	struct sim_thread *t = sim_current;

	t->what = what;
	t->object = object;
	t->frame = __builtin_frame_address(0);
	t->queue = q;
	t->after = NULL;
	t->before = q->tail;
	*(q->tail ? &q->tail->after : &q->head) = t;
	q->tail = t;
	t->timed_out = false;
	t->generation++;
	remove_runnable(t);
	t->state = SIM_WAITING;
	if (until != SIM_NEVER)
		sim_at(until, wake_timed, t, t->generation);
	pick(false);
	return !t->timed_out;
}

bool sim_wait_spurious(void)
{
	return how.spurious && !calm && sim_once_in(SIM_SCHED, how.spurious);
}

bool sim_wake(struct sim_queue *q)
{
	struct sim_thread *t = q->head;
	unsigned n = 0;

	if (!t)
		return false;
	for (struct sim_thread *x = t; x; x = x->after)
		n++;
	if (n > 1 && how.mode != RUN_TO_BLOCK)
		for (uint64_t skip = sim_below(SIM_SCHED, n); skip; skip--)
			t = t->after;
	unlink_waiter(t);
	t->generation++;
	make_runnable(t);
	return true;
}

void sim_wake_all(struct sim_queue *q)
{
	while (q->head) {
		struct sim_thread *t = q->head;

		unlink_waiter(t);
		t->generation++;
		make_runnable(t);
	}
}

void sim_sleep(uint64_t ns)
{
	struct sim_queue nobody = {NULL, NULL};

	sim_wait(&nobody, now + ns, "sleep", NULL);
}

/* ---- processes and threads
 * ------------------------------------------------------------------------- */

struct sim_process *sim_process_new(void)
{
	struct sim_process *p = calloc(1, sizeof *p);

	if (!p)
		abort();
	p->id = n_processes++;
	p->cpus = 2;
	p->kill_at = p->pause_at = SIM_NEVER;
	return p;
}

struct sim_process *sim_self(void)
{
	return sim_current ? sim_current->process : NULL;
}

struct sim_thread *sim_spawn(
	struct sim_process *p, const char *name, void *(*run)(void *opaque), void *opaque)
{
	struct sim_thread *t = calloc(1, sizeof *t);

	if (!t)
		abort();
	t->process = p;
	t->name = name;
	t->serial = ++n_threads;
	t->number = p->threads_made++;
	t->run = run;
	t->opaque = opaque;
	t->what = "start";
	t->priority = sim_once_in(SIM_SCHED, 2) ? ++highest : --lowest;
	sim_give_stack(t, thread_main);
	t->next = threads;
	threads = t;
	p->running++;
	make_runnable(t);
	return t;
}

uint64_t sim_steps(void)
{
	return steps;
}

uint64_t sim_now(void)
{
	return now;
}

int64_t sim_wall(const struct sim_process *p)
{
	return EPOCH + (int64_t)now + (p ? p->skew : 0);
}

void sim_calm(void)
{
	calm = true;
	for (struct sim_thread *t = threads; t; t = t->next)
		if (t->process->paused)
			unpause(t->process, 0);
}

bool sim_is_fair(void)
{
	return how.mode != PRIORITIES && how.step_ns <= SIM_MS / 10;
}

static void (*world_main)(void *opaque);
static void *world_opaque;

static void *world(void *unused)
{
	(void)unused;
	world_main(world_opaque);
	sim_switch_to(&sim_root);
	return NULL;
}

void sim_run(void (*main)(void *opaque), void *opaque)
{
	struct sim_process *p;

	sim_seed(sim_options.seed);
	draw_schedule();
	p = sim_process_new();
	world_main = main;
	world_opaque = opaque;
	sim_switch_to(sim_spawn(p, "world", world, NULL));
}

/* ---- failure
 * ------------------------------------------------------------------------------------------ */

/* The return addresses of a thread, for addr2line; frames are kept in the build of the simulation.
 */
#if defined(__SANITIZE_ADDRESS__)
__attribute__((no_sanitize_address))
#endif
static void
print_stack(const struct sim_thread *t)
{
	void *const *frame = t == sim_current ? __builtin_frame_address(0) : t->frame;

	for (int i = 0; i < 12 && frame; i++) {
		const uint8_t *at = (const uint8_t *)frame;

		if (at < t->stack || at >= t->stack + SIM_STACK - 32)
			break;
		if (frame[1])
			runner_print_address(frame[1]);
		frame = *frame;
	}
}

void sim_fail(const char *kind, const char *format, ...)
{
	static const char *const states[] = {
		"can run", "waits", "is paused", "has ended", "was killed"};
	static bool failing;
	va_list args;

	if (failing)
		_exit(RUNNER_FAILED);
	failing = true;
	runner_report("FAILED: %s: ", kind);
	va_start(args, format);
	runner_vreport(format, args);
	va_end(args);
	runner_report("\n");
	runner_report("-- the last lines of the trace --\n");
	sim_print_trace();
	runner_report("-- threads --\n");
	for (struct sim_thread *t = threads; t; t = t->next) {
		if (t->state == SIM_ENDED || t->process->dead)
			continue;
		runner_report("p%u.%u %s %s%s: %s\n", t->process->id, t->number, t->name,
			t == sim_current ? "(runs) " : "", states[t->state], t->what);
		print_stack(t);
	}
	runner_report("-- %" PRIu64 " steps, %.6f s of virtual time, mode %d\n", steps,
		(double)now / 1e9, (int)how.mode);
	runner_failed(kind);
}
