/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A deterministic machine for the S3 device: threads, clocks, files and random numbers of simulated
 * processes, all in one thread of this process. docs/s3-format.md, "Simulation".
 *
 * A simulated thread is a coroutine. One runs at a time; at each lock, unlock, wait, signal, clock
 * reading, file call, request and thread start the seed decides which one goes on. Virtual time
 * passes a little with each step, and to the next event where all wait. What the engine calls of
 * the C library comes here by ld's --wrap.
 */
#ifndef USERBLK_TESTS_SIMULATION_SIM_H
#define USERBLK_TESTS_SIMULATION_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MS	   UINT64_C(1000000)
#define SIM_SECOND UINT64_C(1000000000)
#define SIM_NEVER  UINT64_MAX
#define SIM_LARGE  (1 << 20) /* bytes that come from the kernel by themselves */

/* ---- options of a run ---- */

/* Faults and features that --without takes away, to shrink what fails. */
enum sim_class {
	SIM_LOST,	/* requests and replies that are lost */
	SIM_LATE,	/* requests that take effect late */
	SIM_REFUSE,	/* 503 and the like */
	SIM_FULL,	/* the store full */
	SIM_LINE,	/* slow lines */
	SIM_CLOCK,	/* clocks that jump */
	SIM_KILL,	/* processes killed */
	SIM_CRASH,	/* machines that crash: unsynced bytes lost or torn */
	SIM_PAUSE,	/* processes paused */
	SIM_STALL,	/* single threads delayed */
	SIM_TAKEOVER,	/* a second writer beside the first */
	SIM_READER,	/* read-only openers */
	SIM_TOOL,	/* snapshots, gc, resize, check */
	SIM_CLONE,	/* clones, rollback, deletion */
	SIM_WRITEBACK,	/* write-back= */
	SIM_CACHEFILE,	/* cache-file= */
	SIM_TRANSFORM,	/* compression, encryption */
	SIM_DIRECT,	/* layout=direct */
	SIM_ODD_STORE,	/* stores that ignore conditions */
	SIM_PARAMETERS, /* parameters that change between opens */
	SIM_SCENES,	/* scenes of their own instead of a schedule drawn freely */
	SIM_SCHEDULE,	/* any other schedule than that threads run until they wait */
	SIM_THREADS,	/* threads that cannot be made */
	SIM_CLASSES,
};
extern const char *const sim_class_names[SIM_CLASSES];

struct sim_options {
	uint64_t seed;
	uint32_t without; /* bits of enum sim_class */
	unsigned ops;	  /* device operations; 0: as drawn */
	unsigned lives;	  /* processes after another; 0: as drawn */
	bool trace;	  /* print each line as it comes */
	uint64_t max_steps;
};
extern struct sim_options sim_options;

static inline bool sim_with(enum sim_class class)
{
	return !(sim_options.without >> class & 1);
}

/* ---- random numbers ---- */

/* Streams that are independent of each other, so that one thing less changes little else. */
enum sim_stream { SIM_PLAN, SIM_SCHED, SIM_STORE, SIM_DISK, SIM_BYTES, SIM_STREAMS };

uint64_t sim_random(enum sim_stream stream);
/* 0 to n - 1; n 0: 0. */
uint64_t sim_below(enum sim_stream stream, uint64_t n);
/* Once in n times. n 0: never. */
bool sim_once_in(enum sim_stream stream, uint64_t n);
/* From low to high, every order of magnitude as likely as the others. */
uint64_t sim_log_between(enum sim_stream stream, uint64_t low, uint64_t high);

/* ---- trace ---- */

/* Enters a line into the trace and its hash. */
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sim_hash(const void *data, size_t length);
/* The schedule has failed: tells why, what threads wait for and the last lines, and ends. kind:
 * what a shrunk schedule has to fail with as well. */
_Noreturn void sim_fail(const char *kind, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
uint64_t sim_trace_hash(void);
uint64_t sim_steps(void);

/* ---- threads and processes ---- */

struct sim_thread;

struct sim_process {
	unsigned id;
	bool dead, paused;
	int64_t skew;	   /* ns that its wall clock is ahead */
	unsigned cpus;	   /* what sysconf() tells */
	uint64_t steps;	   /* of its threads */
	uint64_t kill_at;  /* step at which it is killed; SIM_NEVER */
	uint64_t pause_at; /* and paused */
	uint64_t pause_ns;
	bool pause_certain;		/* also where there are no faults */
	bool crash;			/* the kill is one of the machine */
	uint64_t memory_limit;		/* bytes of what it has open; 0: none */
	unsigned running, threads_made; /* threads that have not ended; and ever */
	void (*on_kill)(struct sim_process *p);
	void *opaque;
};

/* Begins a simulation: makes the world's process and runs main(opaque) in its first thread, until
 * that has ended. */
void sim_run(void (*main)(void *opaque), void *opaque);
struct sim_process *sim_process_new(void);
struct sim_process *sim_self(void); /* whose thread runs */
/* A thread that nobody joins. name: for traces. */
struct sim_thread *sim_spawn(
	struct sim_process *p, const char *name, void *(*run)(void *opaque), void *opaque);
void sim_kill(struct sim_process *p);
void sim_sleep(uint64_t ns);
uint64_t sim_now(void);			       /* ns of virtual time */
int64_t sim_wall(const struct sim_process *p); /* ns since 1970 by its clock; NULL: the true one */
/* A place where another thread may go on. */
void sim_point(const char *what, const void *object);

/* Waiting, for the simulation's own parts: threads in their order. */
struct sim_queue {
	struct sim_thread *head, *tail;
};
/* Waits until woken or, if until is not SIM_NEVER, that moment. False: the time has come. */
bool sim_wait(struct sim_queue *q, uint64_t until, const char *what, const void *object);
/* Wakes the first one, or one drawn. False: nobody waits. */
bool sim_wake(struct sim_queue *q);
void sim_wake_all(struct sim_queue *q);

/* Calls fn(a, b) at a moment. It must not wait. */
void sim_at(uint64_t when, void (*fn)(void *a, uint64_t b), void *a, uint64_t b);
/* Threads that are delayed or processes that are paused are so no more, and no more will be. */
void sim_calm(void);
/* Does each thread that can run have its turn before long, and its steps take no time to speak of?
 */
bool sim_is_fair(void);

/* ---- files (files.c) ---- */

/* No file is there, and their memory is zero again. */
void sim_files_reset(void);
/* The machine has crashed: of each sector that was not synced, the old or the new is there. */
void sim_files_crash(const char *path, const struct sim_process *p);
/* The locks of a killed process. */
void sim_files_close_all(const struct sim_process *p);
void sim_file_remove(const char *path);
/* Makes a file, synced. */
void sim_file_make(const char *path, const void *data, size_t length);
/* The user makes a file larger that nobody has open: its size then, or 0. */
uint64_t sim_file_extend(const char *path, uint64_t by);
/* Errors of the disk: once in so many syncs, and calls of any kind. 0: never. */
void sim_files_fail(unsigned syncs, unsigned calls);
/* The n-th call from now on, and no other. 0: none. */
void sim_files_fail_once(uint64_t n);
/* Once in n times no thread can be made. 0: never. */
void sim_threads_fail(unsigned n);
void sim_files_hash(void);

#endif
