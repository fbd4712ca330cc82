/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A run: starts the threads of a workload together, samples what they count,
 * ends them, and returns the results.
 *
 * The clock starts when every thread is ready and its memory touched. It stops
 * at the end of the time to the nanosecond (operations that end later do not
 * count), or when the last thread has ended.
 */
#ifndef FLOW_RUN_H
#define FLOW_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "stats.h"
#include "workload.h"

enum run_end {
	RUN_TIME,	 /* the time was over */
	RUN_ALL_DONE,	 /* every thread has ended by itself */
	RUN_FIRST_DONE,	 /* mode firstdone: one thread has */
	RUN_EARLY,	 /* mode timeout: one thread has, before the time was over */
	RUN_INTERRUPTED, /* SIGINT or SIGTERM */
};

struct run_options {
	enum wml_mode mode;
	double seconds;	   /* 0: no limit */
	double interval;   /* of the series, s */
	double period;	   /* of printed statistics (psrun), s; 0: none */
	bool clear;	   /* printed statistics are of the period, not of the run so far */
	double event_rate; /* of eventgen, events per second; 0: eventlimit limits nothing */
	uint64_t seed;
	bool original;
	bool quiet;
};

/* One step of the series: all I/O flowops together, and the operations of each row. */
struct run_interval {
	double start, end; /* s since the start of the run */
	uint64_t ops, bytes, sum_ns;
	uint64_t *row_ops;
	struct run_bin {
		unsigned bin;
		uint64_t count;
	} * bins;
	unsigned bin_count;
};

struct run_result {
	struct timespec started; /* CLOCK_REALTIME */
	uint64_t started_ns;	 /* CLOCK_MONOTONIC */
	double seconds;
	double user_s, system_s; /* CPU time of the program in that time */
	enum run_end end;
	unsigned threads;
	unsigned finished; /* threads that a finishon* ended */
	unsigned no_file;  /* threads that found no file to take */
	/* Writes that the rows count, and that had not ended when their thread did. */
	uint64_t unfinished_writes, unfinished_bytes;
	struct stats *rows; /* as workload->rows */
	struct run_interval *intervals;
	unsigned interval_count;
};

/* The "IO Summary" line. */
struct run_summary {
	struct stats total;
	uint64_t reads, writes, read_bytes, written_bytes;
};

/* Statistics of a period to be printed; seconds since its start. */
typedef void run_print(const struct workload *w, const struct stats *rows, double seconds);

/*
 * Runs the workload, whose filesets exist. False with a line in error if a
 * flowop failed; there are no results then.
 */
bool run_perform(const struct workload *w, const struct run_options *options, run_print *print,
	struct run_result *result, struct flow_error *error);
void run_result_free(struct run_result *result);
void run_summarize(const struct workload *w, const struct stats *rows, struct run_summary *out);

/*
 * SIGINT and SIGTERM are blocked while files are made and while a workload runs,
 * so that both end in order; system commands in between see them as usual.
 */
void run_block_signals(bool block);
/* Has one of them come? */
bool run_interrupted(void);

#endif
