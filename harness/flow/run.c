/* SPDX-License-Identifier: BSD-3-Clause */
#include "run.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "crew.h"

#define SECOND UINT64_C(1000000000)

struct run {
	const struct workload *workload;
	const struct run_options *options;
	struct crew *crew;
	uint64_t deadline;

	struct stats *now, *at_interval, *at_print, *scratch; /* rows */
};

/* ---- signals ---- */

void run_block_signals(bool block)
{
	sigset_t set;

	crew_signals(&set);
	pthread_sigmask(block ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

bool run_interrupted(void)
{
	sigset_t set;
	struct timespec none = {0};

	crew_signals(&set);
	sigdelset(&set, SIGUSR1);
	sigdelset(&set, SIGCHLD);
	return sigtimedwait(&set, NULL, &none) > 0;
}

/* ---- sampling ---- */

/* Sums up what all threads have counted. */
static void sample(struct run *r)
{
	memset(r->now, 0, r->workload->row_count * sizeof *r->now);
	crew_sum(r->crew, r->now);
}

static void *need(void *memory)
{
	if (memory == NULL)
		abort(); /* of a few KiB */
	return memory;
}

/* Takes the last interval out of the series, and adds what it counted. */
static void take_back(
	struct run_result *result, struct stats *total, uint64_t *row_ops, unsigned rows)
{
	struct run_interval *last = &result->intervals[--result->interval_count];

	total->ops += last->ops;
	total->bytes += last->bytes;
	total->sum_ns += last->sum_ns;
	for (unsigned i = 0; i < last->bin_count; i++)
		total->bins[last->bins[i].bin] += last->bins[i].count;
	for (unsigned i = 0; i < rows; i++)
		row_ops[i] += last->row_ops[i];
	free(last->bins);
	free(last->row_ops);
}

/*
 * Adds the time since the last interval to the series. Intervals that the sampler took before it
 * saw that the run had ended become part of the one that ends with the run.
 */
static void add_interval(struct run *r, struct run_result *result, double end)
{
	const struct workload *w = r->workload;
	struct run_interval new = {.end = end};
	struct stats *total = &r->scratch[0], *row = &r->scratch[1];

	memset(total, 0, sizeof *total);
	new.row_ops = need(calloc(w->row_count, sizeof *new.row_ops));
	for (unsigned i = 0; i < w->row_count; i++) {
		stats_difference(row, &r->now[i], &r->at_interval[i]);
		new.row_ops[i] = row->ops;
		if (flowop_is_io(w->rows[i].type))
			stats_add(total, row);
	}
	memcpy(r->at_interval, r->now, w->row_count * sizeof *r->now);
	while (result->interval_count > 0 &&
		result->intervals[result->interval_count - 1].end >= end)
		take_back(result, total, new.row_ops, w->row_count);
	if (result->interval_count > 0)
		new.start = result->intervals[result->interval_count - 1].end;

	new.ops = total->ops;
	new.bytes = total->bytes;
	new.sum_ns = total->sum_ns;
	for (unsigned bin = 0; bin < STATS_BINS; bin++)
		new.bin_count += total->bins[bin] > 0;
	new.bins = need(malloc((new.bin_count + 1) * sizeof *new.bins));
	for (unsigned bin = 0, n = 0; bin < STATS_BINS; bin++)
		if (total->bins[bin] > 0)
			new.bins[n++] = (struct run_bin){bin, total->bins[bin]};
	result->intervals = need(realloc(
		result->intervals, (result->interval_count + 1) * sizeof *result->intervals));
	result->intervals[result->interval_count++] = new;
}

static void print_period(struct run *r, run_print *print, double since, double now)
{
	const struct workload *w = r->workload;

	if (!r->options->clear) {
		print(w, r->now, now);
		return;
	}

	struct stats *rows = need(calloc(w->row_count, sizeof *rows));

	for (unsigned i = 0; i < w->row_count; i++)
		stats_difference(&rows[i], &r->now[i], &r->at_print[i]);
	memcpy(r->at_print, r->now, w->row_count * sizeof *r->now);
	print(w, rows, now - since);
	free(rows);
}

static void show_progress(const struct run *r, const struct run_interval *i)
{
	static uint64_t last;
	uint64_t now = flow_now();
	bool terminal = isatty(STDERR_FILENO);

	if (r->options->quiet || now - last < (terminal ? 1 : 10) * SECOND)
		return;
	last = now;
	fprintf(stderr, "%suserblk-flow: %.0f s: %.0f ops/s, %.1f MB/s%s",
		terminal ? "\r\033[K" : "", i->end, (double)i->ops / (i->end - i->start),
		(double)i->bytes / 1e6 / (i->end - i->start), terminal ? "" : "\n");
}

/* Waits until the time, a signal, or a thread's notice; the signal, if any. */
static int wait_until(uint64_t at)
{
	uint64_t now = flow_now(), left = at > now ? at - now : 0;
	struct timespec t = {.tv_sec = (time_t)(left / SECOND), .tv_nsec = (long)(left % SECOND)};
	sigset_t set;

	crew_signals(&set);
	return sigtimedwait(&set, NULL, &t);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Samples while the threads work, until the run has ended or its time is over. */
static void watch(struct run *r, run_print *print, struct run_result *result)
{
	const struct run_options *o = r->options;
	uint64_t t0 = result->started_ns, interval = (uint64_t)(o->interval * 1e9);
	uint64_t period = (uint64_t)(o->period * 1e9);
	uint64_t next_interval = t0 + interval;
	uint64_t next_print = period > 0 ? t0 + period : UINT64_MAX, last_print = t0;

	for (;;) {
		int signal = wait_until(earlier(r->deadline, earlier(next_interval, next_print)));
		uint64_t now = flow_now();

		if (signal == SIGINT || signal == SIGTERM)
			crew_stop(r->crew, RUN_INTERRUPTED, now);
		else if (now >= r->deadline)
			crew_stop(r->crew, RUN_TIME, r->deadline);
		if (crew_ended(r->crew))
			return;
		if (now < next_interval && now < next_print)
			continue;
		sample(r);
		if (now >= next_interval) {
			add_interval(r, result, (double)(now - t0) / 1e9);
			show_progress(r, &result->intervals[result->interval_count - 1]);
			while (next_interval <= now)
				next_interval += interval;
		}
		if (now >= next_print) {
			print_period(r, print, (double)(last_print - t0) / 1e9,
				(double)(now - t0) / 1e9);
			last_print = now;
			while (next_print <= now)
				next_print += period;
		}
	}
}

/*
 * Lets the sampler, this thread, come before those that it samples: with all
 * CPUs busy its intervals would be late. Needs a privilege; does without.
 * Returns the priority before.
 */
static int come_first(void)
{
	int before = getpriority(PRIO_PROCESS, (id_t)gettid());

	setpriority(PRIO_PROCESS, (id_t)gettid(), -20);
	return before;
}

/* ---- the run ---- */

static bool run_init(struct run *r, const struct workload *w, const struct run_options *options,
	struct flow_error *error)
{
	*r = (struct run){.workload = w, .options = options};
	r->now = calloc(w->row_count, sizeof *r->now);
	r->at_interval = calloc(w->row_count, sizeof *r->now);
	r->at_print = calloc(w->row_count, sizeof *r->now);
	r->scratch = calloc(2, sizeof *r->scratch);
	if (r->now == NULL || r->at_interval == NULL || r->at_print == NULL || r->scratch == NULL)
		return flow_error_set(error, "out of memory; lower instances=");
	r->crew = crew_new(w, options, error);
	return r->crew != NULL;
}

static void run_destroy(struct run *r)
{
	crew_free(r->crew);
	free(r->now);
	free(r->at_interval);
	free(r->at_print);
	free(r->scratch);
}

static void measure(struct run *r, run_print *print, struct run_result *result)
{
	struct rusage before, after;
	double seconds = r->options->seconds;
	bool started = crew_start(r->crew);

	clock_gettime(CLOCK_REALTIME, &result->started);
	getrusage(RUSAGE_SELF, &before);
	result->started_ns = flow_now();
	r->deadline = seconds > 0 ? result->started_ns + (uint64_t)(seconds * 1e9) : UINT64_MAX;
	if (started) {
		crew_release(r->crew, result->started_ns, r->deadline);

		int priority = come_first();

		watch(r, print, result);
		setpriority(PRIO_PROCESS, (id_t)gettid(), priority);
	}
	getrusage(RUSAGE_SELF, &after);
	result->user_s = crew_cpu_seconds(&before.ru_utime, &after.ru_utime);
	result->system_s = crew_cpu_seconds(&before.ru_stime, &after.ru_stime);
	crew_join(r->crew, &result->user_s, &result->system_s);
}

bool run_perform(const struct workload *w, const struct run_options *options, run_print *print,
	struct run_result *result, struct flow_error *error)
{
	struct run r;

	*result = (struct run_result){0};

	bool ok = run_init(&r, w, options, error);

	if (ok) {
		measure(&r, print, result);
		/* Notices that came after the end are still pending. */
		while (wait_until(0) > 0)
			;
		ok = !crew_failed(r.crew, error);
	}
	if (ok) {
		sample(&r);
		result->seconds = (double)(crew_result(r.crew, result) - result->started_ns) / 1e9;
		add_interval(&r, result, result->seconds);
		result->rows = r.now;
		r.now = NULL;
	}
	run_destroy(&r);
	if (!ok)
		run_result_free(result);
	return ok;
}

void run_result_free(struct run_result *result)
{
	for (unsigned i = 0; i < result->interval_count; i++) {
		free(result->intervals[i].bins);
		free(result->intervals[i].row_ops);
	}
	free(result->intervals);
	free(result->rows);
	*result = (struct run_result){0};
}

void run_summarize(const struct workload *w, const struct stats *rows, struct run_summary *out)
{
	*out = (struct run_summary){0};
	for (unsigned i = 0; i < w->row_count; i++) {
		if (!flowop_is_io(w->rows[i].type))
			continue;
		stats_add(&out->total, &rows[i]);
		if (flowop_is_read(w->rows[i].type)) {
			out->reads += rows[i].ops;
			out->read_bytes += rows[i].bytes;
		} else if (flowop_is_write(w->rows[i].type)) {
			out->writes += rows[i].ops;
			out->written_bytes += rows[i].bytes;
		}
	}
}
