/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * userblk-ops: one operation on files, again and again, by workers that begin together.
 *
 *   main.c        options
 *   operations.c  what the operations do
 *   worker.c      workers, what is made before they begin, and what they leave behind
 *   run.c         a crew that repeats one, and its results
 *   crew.c        workers, processes or threads, pinned, timed; the results of all
 *   command.c     what options of the engines have in common
 */
#ifndef USERBLK_OPS_H
#define USERBLK_OPS_H

#include <dirent.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "harness/flow/random.h"

#include "command.h"

#define UNIT	 4096 /* bytes of a read or write */
#define MAX_PATH (PATH_MAX + 128)
#define NAME	 "userblk-ops"

/* What step() returns beside 0 and negative errnos. */
#define OUT_OF_WORK 1

enum phase { PHASE_ALL, PHASE_PREPARE, PHASE_RUN };

struct options {
	const struct operation *operation;
	char top[PATH_MAX]; /* a directory that is ours alone */
	enum phase phase;
	unsigned workers;
	bool threads, unpinned;
	struct common_options common;
	uint64_t files;	  /* of each worker, or names in a directory */
	uint64_t size;	  /* bytes of a file of data */
	unsigned fan_out; /* names in each directory of a tree */
};

/* One process or thread that repeats the operation. */
struct worker {
	const struct options *options;
	unsigned index;
	char home[PATH_MAX];	   /* the directory of its operation: its own, or that of all */
	char path[MAX_PATH];	   /* of the file that stays the same, or of the last one */
	char other[PATH_MAX + 64]; /* where the last one is renamed to */
	size_t base;		   /* of path: what a name is put behind */
	uint64_t done;		   /* operations */
	uint64_t bytes;		   /* of the last operation */
	int fd;
	DIR *directory;
	struct rng rng;
	char *buffer; /* UNIT bytes */
};

/* What is left behind by n operations, of which the file system is asked afterwards. */
enum trace {
	TRACE_NONE,
	TRACE_MADE,    /* n names in files/ */
	TRACE_REMOVED, /* n names fewer than there were in files/ */
	TRACE_MOVED,   /* n names in moved/ */
	TRACE_GROWN,   /* n times UNIT bytes */
};

struct operation {
	const char *name;
	const char *what; /* for --help */
	bool shared;	  /* directory or file of all workers */
	enum trace trace;
	uint64_t files, size; /* unless options say otherwise; 0: it needs none */
	/* Makes what a worker needs: called for each, one after the other. */
	int (*prepare)(struct worker *w);
	/* Opens it, and looks at it as often as the source does. In the worker, before the start.
	 */
	int (*begin)(struct worker *w);
	/* Once. 0, OUT_OF_WORK before anything was done, or a negative errno about path. */
	int (*step)(struct worker *w);
};

extern const struct operation operations[];
extern const unsigned operation_count;

/* Where the operation of a worker happens. */
void worker_init(struct worker *w, const struct options *options, unsigned index);
void worker_end(struct worker *w);

/* 0 if path is a directory afterwards, else a negative errno. */
int make_directory(const char *path);

/* Makes everything in options.top. 0, or a negative errno that was reported. */
int operations_prepare(const struct options *options);

/* What is left behind by total operations as it should be and as it is. False: cannot be read,
 * reported. */
bool operations_trace(
	const struct options *options, uint64_t total, uint64_t *expected, uint64_t *found);

/* Returns an exit status. */
int run(const struct options *options);

#endif
