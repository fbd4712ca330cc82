/* SPDX-License-Identifier: BSD-3-Clause */
/* Results as text, in Filebench's layout, and as JSON (docs/flow.md). */
#ifndef FLOW_REPORT_H
#define FLOW_REPORT_H

#include "run.h"
#include "workload.h"

/* Starts the clock of the log. */
void report_start(void);
/* A line of the log on standard output: "SECONDS: TEXT". */
void report_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "Per-Operation Breakdown" and "IO Summary" of rows counted in the given seconds. */
void report_breakdown(const struct workload *w, const struct stats *rows, double seconds);
/* Writes the results; path gets its name only when it is complete. */
bool report_json(const char *path, const struct workload *w, const struct run_options *options,
	const struct run_result *result, struct flow_error *error);

#endif
