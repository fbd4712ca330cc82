/* SPDX-License-Identifier: BSD-3-Clause */
/* What a workload file defines, with the values its variables have. */
#ifndef FLOW_WORKLOAD_H
#define FLOW_WORKLOAD_H

#include "fileset.h"
#include "flowop.h"
#include "wml.h"

struct file_def {
	const struct wml_object *object;
	struct fileset_spec spec; /* valid once bound */
	bool bound;
	struct fileset *fs; /* NULL until created */
};

struct process_def {
	const struct wml_object *object;
	const char *name;
	unsigned instances;
	struct thread_def *threads;
	unsigned count;
};

/* A line of the results: all flowops of one name. */
struct row_def {
	const char *name;
	enum flowop_type type;
};

struct workload {
	const struct wml *wml;
	struct file_def *files;
	unsigned file_count;
	struct process_def *processes;
	unsigned process_count;
	struct row_def *rows;
	unsigned row_count;
};

/* Takes up a definition; what it says is evaluated by the functions below. */
bool workload_define(struct workload *w, const struct wml_object *object, struct flow_error *error);
/* Evaluates the filesets that are not bound yet. */
bool workload_bind_files(struct workload *w, struct flow_error *error);
/* Evaluates processes, threads and flowops. */
bool workload_bind_processes(struct workload *w, struct flow_error *error);
void workload_free(struct workload *w);

#endif
