/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A crew: workers, processes or threads, that begin at the same moment and repeat steps. Each step
 * is of one kind and timed; results are those of userblk-flow (docs/flow.md), with a flowop for
 * each kind.
 */
#ifndef OPS_CREW_H
#define OPS_CREW_H

#include <stdbool.h>
#include <stdint.h>

#include "harness/flow/stats.h"

#define CREW_MAX   1024 /* workers */
#define CREW_KINDS 8
#define CREW_WHY   4352 /* a path, and what is wrong with it */

struct crew_worker {
	const void *task; /* the crew's */
	unsigned index;
	unsigned kind;	/* of the last step */
	uint64_t done;	/* steps */
	uint64_t bytes; /* of the last step */
	void *own;
	char why[CREW_WHY]; /* it failed */
};

enum crew_step {
	CREW_DONE,
	CREW_OUT_OF_WORK, /* before anything was done */
	CREW_FAILED,	  /* why says why */
};

struct crew {
	const char *name; /* of what they repeat, for people */
	const void *task;
	unsigned workers;
	bool threads, unpinned;
	double seconds; /* 0: no limit */
	double interval;
	uint64_t count; /* steps of each; 0: no limit */
	const char *const *kinds;
	unsigned kind_count;
	/* In the worker: before the start, each step, afterwards. */
	enum crew_step (*begin)(struct crew_worker *w);
	enum crew_step (*step)(struct crew_worker *w);
	void (*end)(struct crew_worker *w);
};

struct crew_results {
	uint64_t start_ns, end_ns;
	struct stats total, kinds[CREW_KINDS];
	const char *end;
	unsigned without_work;
	bool interrupted;
	char *intervals; /* JSON; free() */
};

/* The crew at work. False: reported, and nothing was measured. */
bool crew_run(const struct crew *crew, struct crew_results *results);
/* One line of it for people. */
void crew_print(const struct crew *crew, const struct crew_results *results);
/* All of it for programs; path gets its name only when it is complete. head: members of the object
 * that say what was done, with a comma behind each. False: reported. */
bool crew_write(const struct crew *crew, const struct crew_results *results, const char *path,
	const char *head);
/* The exit status, which tells of an interruption. */
int crew_status(const struct crew_results *results, bool ok);

#endif
