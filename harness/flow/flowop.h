/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Flowops: what a thread of a workload does, one after the other, again and again.
 *
 * A worker owns all it writes: descriptors, buffer, random numbers, counters.
 * It shares filesets (fileset.h), and the count of its process, to which it
 * adds only if a finishoncount or finishonbytes of the process asks for that.
 */
#ifndef FLOW_FLOWOP_H
#define FLOW_FLOWOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fileset.h"
#include "random.h"
#include "stats.h"
#include "wml.h"

#define FLOW_FDS 128 /* fd=0 to fd=127 of a thread */

struct flowop {
	enum flowop_type type;
	const char *name;
	const char *file; /* where it stands, for messages */
	int line;
	struct fileset *fs; /* NULL: of the file that is open */
	unsigned fd, srcfd;
	struct number iosize, workingset, iters, value, indexed, highwater;
	bool has_indexed, random, dsync, directio, noreadahead, opennext, blocking;
	/*
	 * Of a finishon* the index of the flowop that it counts, -1: all of the process; of a
	 * sempost the row of the semblocks that it posts to.
	 */
	int target;
	unsigned rotor; /* opennext: the thread's first such flowop on the fileset, which has it */
	unsigned row;	/* of the results */
};

struct thread_def {
	const char *name;
	struct flowop *flowops;
	unsigned count;
	unsigned instances;
	uint64_t memsize;
	bool counted; /* by a finishon* of another thread, of which it has none itself */
};

/* What one instance of a process has. */
struct process_count {
	_Alignas(128) _Atomic uint64_t ops, bytes;
};

/* A semblock of one thread: the rows of its flowop, the thread's number, its two semaphores in the
 * set. */
struct block {
	unsigned row, thread;
	unsigned short posts, room;
	uint64_t highwater; /* room at the start */
};

/* What all workers of a run share, in memory that their processes share. */
struct control {
	_Atomic bool stop;
	_Atomic uint64_t deadline; /* CLOCK_MONOTONIC ns; what ends later does not count */
	bool original;		   /* Filebench's own behaviour: docs/flow.md */
	int semaphores;		   /* a System V set; -1: no semblock */
	struct block *blocks;
	unsigned block_count;
	double event_rate;	      /* 0: eventlimit limits nothing */
	_Atomic uint64_t events;      /* taken so far */
	_Atomic uint64_t event_start; /* since when there are events */
	/* aiowrite's that were counted when they began, and had not ended when their thread did. */
	_Atomic uint64_t unfinished_writes, unfinished_bytes;
};

struct slot {
	int fd;		    /* -1: closed */
	uint32_t file;	    /* stays when the descriptor is closed */
	struct fileset *fs; /* NULL: never opened */
};

/* A worker's own part of a flowop: attributes drawn once; next: the file that opennext goes on
 * with. */
struct flow {
	uint64_t value, workingset;
	uint32_t next;
};

enum step {
	STEP_OK,
	STEP_STOPPED,  /* the run is over */
	STEP_FINISHED, /* a finishoncount or finishonbytes was reached */
	STEP_NO_FILE,  /* no file is left to take */
	STEP_FAILED,   /* error says why */
};

struct worker {
	const struct thread_def *def;
	struct control *control;
	struct process_count *process;
	struct rng rng;
	struct slot slots[FLOW_FDS];
	char *buffer; /* memsize bytes, or room of as many as were needed */
	uint64_t room;
	uint64_t pending_ops, pending_bytes; /* not yet added to the process */
	unsigned number;		     /* of the thread */
	unsigned fd_rotor;		     /* opennext: the descriptor before, counted down */
	struct write_behind *writes;	     /* aiowrite's, not yet waited for; the newest first */
	struct flow *flows;		     /* def->count of each */
	struct stats_live *stats; /* not its own: the process that samples them may be another */
	struct flow_error error;
	char path[FILESET_PATH];
};

/* Is it an operation of the summary? finishon*, hog, semaphores and eventlimit are not. */
static inline bool flowop_is_io(enum flowop_type type)
{
	return type < FLOWOP_FINISHONCOUNT;
}

/* Do its completions count as reads, as writes in the summary? */
bool flowop_is_read(enum flowop_type type);
bool flowop_is_write(enum flowop_type type);

/*
 * Allocates what the worker owns and touches it, so that this does not fall
 * into the measurement; the buffer is random unless control->original is set.
 * def, control, process, stats and number are set, all else is zero.
 */
bool worker_init(struct worker *w, uint64_t seed);
/* Runs the flowops until one of them ends it; files that are open stay so. */
enum step worker_run(struct worker *w);
/*
 * Closes files and frees what worker_init() allocated. False: a write that was counted, and not
 * waited for, has failed; error says why.
 */
bool worker_destroy(struct worker *w);

/* CLOCK_MONOTONIC in ns. */
uint64_t flow_now(void);

#endif
