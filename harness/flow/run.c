/* SPDX-License-Identifier: BSD-3-Clause */
#include "run.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "database.h"

#define SECOND	   UINT64_C(1000000000)
#define STACK_SIZE (256 * 1024)

struct run {
	const struct workload *workload;
	const struct run_options *options;
	struct control control;
	struct process_count *processes;
	struct crew *crew; /* one per thread */
	unsigned threads;

	struct stats *now, *at_interval, *at_print, *scratch; /* rows */

	pthread_mutex_t lock; /* of what follows; threads take it when they start and end only */
	pthread_cond_t changed;
	unsigned ready, running;
	bool go, cancelled;
	bool ended, failed;
	enum run_end end;
	uint64_t end_ns;
	unsigned finished, no_file;
	struct flow_error *error;
};

/* A thread. */
struct crew {
	struct run *run;
	const struct thread_def *def;
	struct process_count *process;
	unsigned number;
	pthread_t thread;
	struct worker *worker;
	bool initialised;
};

/* ---- signals ---- */

static void signal_set(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGUSR1); /* from a thread that ends the run */
}

void run_block_signals(bool block)
{
	sigset_t set;

	signal_set(&set);
	pthread_sigmask(block ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

bool run_interrupted(void)
{
	sigset_t set;
	struct timespec none = {0};

	signal_set(&set);
	sigdelset(&set, SIGUSR1);
	return sigtimedwait(&set, NULL, &none) > 0;
}

/* ---- threads ---- */

/* Ends the run; lock held. */
static void stop(struct run *r, enum run_end end, uint64_t at)
{
	if (r->ended)
		return;
	r->ended = true;
	r->end = end;
	r->end_ns = at;
	atomic_store(&r->control.deadline, at);
	atomic_store(&r->control.stop, true);
	for (unsigned i = 0; i < r->workload->file_count; i++)
		fileset_wake(r->workload->files[i].fs);
	database_stop(&r->control);
}

static void fail(struct run *r, const struct flow_error *error)
{
	if (!r->failed)
		*r->error = *error;
	r->failed = true;
}

/* What the end of a thread means to the run; lock held. */
static void thread_ended(struct run *r, enum step step, const struct flow_error *error)
{
	uint64_t now = flow_now();

	r->running--;
	r->finished += step == STEP_FINISHED;
	r->no_file += step == STEP_NO_FILE;
	if (step == STEP_FAILED) {
		fail(r, error);
		stop(r, RUN_EARLY, now);
	} else if (step != STEP_STOPPED && r->options->mode != MODE_ALLDONE) {
		stop(r, r->options->mode == MODE_FIRSTDONE ? RUN_FIRST_DONE : RUN_EARLY, now);
	} else if (r->running == 0) {
		stop(r, RUN_ALL_DONE, now);
	}
	kill(getpid(), SIGUSR1);
}

static void *thread_main(void *arg)
{
	struct crew *c = arg;
	struct run *r = c->run;
	struct worker *w = c->worker;
	bool ok = worker_init(w, c->def, &r->control, c->process, r->options->seed, c->number);

	pthread_mutex_lock(&r->lock);
	c->initialised = true;
	if (!ok)
		fail(r, &w->error);
	r->ready++;
	pthread_cond_broadcast(&r->changed);
	while (!r->go)
		pthread_cond_wait(&r->changed, &r->lock);
	ok = !r->cancelled;
	pthread_mutex_unlock(&r->lock);

	enum step step = ok ? worker_run(w) : STEP_STOPPED;

	pthread_mutex_lock(&r->lock);
	thread_ended(r, step, &w->error);
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

/* Starts all threads and waits until they are ready; false with r->failed set. */
static bool start_threads(struct run *r, unsigned *started)
{
	pthread_attr_t attr;
	struct flow_error error;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	*started = 0;
	for (int result = 0; *started < r->threads; ++*started) {
		struct crew *c = &r->crew[*started];

		c->worker = aligned_alloc(128, (sizeof *c->worker + 127) / 128 * 128);
		result = c->worker == NULL ? ENOMEM
					   : pthread_create(&c->thread, &attr, thread_main, c);
		if (result != 0) {
			free(c->worker);
			c->worker = NULL;
			flow_error_set(&error,
				"thread %s: cannot start thread %u of %u: %s; lower instances=",
				c->def->name, *started + 1, r->threads, strerror(result));
			pthread_mutex_lock(&r->lock);
			fail(r, &error);
			pthread_mutex_unlock(&r->lock);
			break;
		}
	}
	pthread_attr_destroy(&attr);

	pthread_mutex_lock(&r->lock);
	while (r->ready < *started)
		pthread_cond_wait(&r->changed, &r->lock);
	r->running = *started;
	r->cancelled = r->failed;
	pthread_mutex_unlock(&r->lock);
	return !r->cancelled;
}

static void release_threads(struct run *r)
{
	pthread_mutex_lock(&r->lock);
	r->go = true;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->lock);
}

/* ---- sampling ---- */

/* Sums up what all threads have counted. */
static void sample(struct run *r)
{
	memset(r->now, 0, r->workload->row_count * sizeof *r->now);
	for (unsigned i = 0; i < r->threads; i++) {
		const struct crew *c = &r->crew[i];

		for (unsigned j = 0; j < c->def->count; j++)
			stats_add_live(&r->now[c->def->flowops[j].row], &c->worker->stats[j]);
	}
}

static void *need(void *memory)
{
	if (memory == NULL)
		abort(); /* of a few KiB */
	return memory;
}

/* Adds the time since the last interval to the series. */
static void add_interval(struct run *r, struct run_result *result, double end)
{
	const struct workload *w = r->workload;
	struct run_interval *last =
		result->interval_count > 0 ? &result->intervals[result->interval_count - 1] : NULL;
	struct run_interval new = {.start = last != NULL ? last->end : 0, .end = end};
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

	signal_set(&set);
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
	uint64_t deadline = atomic_load(&r->control.deadline);
	uint64_t next_interval = t0 + interval;
	uint64_t next_print = period > 0 ? t0 + period : UINT64_MAX, last_print = t0;

	for (;;) {
		int signal = wait_until(earlier(deadline, earlier(next_interval, next_print)));
		uint64_t now = flow_now();

		pthread_mutex_lock(&r->lock);
		if (signal == SIGINT || signal == SIGTERM)
			stop(r, RUN_INTERRUPTED, now);
		else if (now >= deadline)
			stop(r, RUN_TIME, deadline);

		bool ended = r->ended;

		pthread_mutex_unlock(&r->lock);
		if (ended)
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
	unsigned processes = 0;

	*r = (struct run){.workload = w, .options = options, .error = error};
	r->control.original = options->original;
	r->control.semaphores = -1;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->changed, NULL);
	for (unsigned i = 0; i < w->process_count; i++) {
		processes += w->processes[i].instances;
		for (unsigned j = 0; j < w->processes[i].count; j++)
			r->threads +=
				w->processes[i].instances * w->processes[i].threads[j].instances;
	}
	r->processes = aligned_alloc(128, processes * sizeof *r->processes);
	r->crew = calloc(r->threads, sizeof *r->crew);
	r->now = calloc(w->row_count, sizeof *r->now);
	r->at_interval = calloc(w->row_count, sizeof *r->now);
	r->at_print = calloc(w->row_count, sizeof *r->now);
	r->scratch = calloc(2, sizeof *r->scratch);
	if (r->processes == NULL || r->crew == NULL || r->now == NULL || r->at_interval == NULL ||
		r->at_print == NULL || r->scratch == NULL)
		return flow_error_set(error, "out of memory; lower instances=");
	memset(r->processes, 0, processes * sizeof *r->processes);
	r->control.event_rate = options->event_rate;

	unsigned process = 0, thread = 0;

	for (unsigned i = 0; i < w->process_count; i++) {
		const struct process_def *p = &w->processes[i];

		for (unsigned n = 0; n < p->instances; n++, process++)
			for (unsigned j = 0; j < p->count; j++)
				for (unsigned k = 0; k < p->threads[j].instances; k++, thread++)
					r->crew[thread] = (struct crew){.run = r,
						.def = &p->threads[j],
						.process = &r->processes[process],
						.number = thread};
	}
	for (thread = 0; thread < r->threads; thread++)
		if (!database_add_blocks(&r->control, r->crew[thread].def, thread))
			return flow_error_set(error, "out of memory; lower instances=");
	return database_start(&r->control, processes, error);
}

static void run_destroy(struct run *r)
{
	for (unsigned i = 0; r->crew != NULL && i < r->threads; i++) {
		if (r->crew[i].initialised)
			worker_destroy(r->crew[i].worker);
		free(r->crew[i].worker);
	}
	database_stop(&r->control);
	free(r->control.blocks);
	free(r->processes);
	free(r->crew);
	free(r->now);
	free(r->at_interval);
	free(r->at_print);
	free(r->scratch);
	pthread_cond_destroy(&r->changed);
	pthread_mutex_destroy(&r->lock);
}

static double cpu_seconds(const struct timeval *before, const struct timeval *after)
{
	return (double)(after->tv_sec - before->tv_sec) +
	       (double)(after->tv_usec - before->tv_usec) / 1e6;
}

static void measure(struct run *r, run_print *print, struct run_result *result, unsigned started)
{
	struct rusage before, after;
	double seconds = r->options->seconds;

	clock_gettime(CLOCK_REALTIME, &result->started);
	getrusage(RUSAGE_SELF, &before);
	result->started_ns = flow_now();
	atomic_store(&r->control.event_start, result->started_ns);
	atomic_store(&r->control.deadline,
		seconds > 0 ? result->started_ns + (uint64_t)(seconds * 1e9) : UINT64_MAX);
	release_threads(r);

	int priority = come_first();

	if (!r->cancelled)
		watch(r, print, result);
	setpriority(PRIO_PROCESS, (id_t)gettid(), priority);
	getrusage(RUSAGE_SELF, &after);
	for (unsigned i = 0; i < started; i++)
		pthread_join(r->crew[i].thread, NULL);
	result->user_s = cpu_seconds(&before.ru_utime, &after.ru_utime);
	result->system_s = cpu_seconds(&before.ru_stime, &after.ru_stime);
}

bool run_perform(const struct workload *w, const struct run_options *options, run_print *print,
	struct run_result *result, struct flow_error *error)
{
	struct run r;
	unsigned started = 0;

	*result = (struct run_result){0};

	bool ok = run_init(&r, w, options, error);

	if (ok) {
		start_threads(&r, &started);
		measure(&r, print, result, started);
		/* Notices that came after the end are still pending. */
		while (wait_until(0) > 0)
			;
		ok = !r.failed;
	}
	if (ok) {
		sample(&r);
		result->seconds = (double)(r.end_ns - result->started_ns) / 1e9;
		result->end = r.end;
		result->threads = r.threads;
		result->finished = r.finished;
		result->no_file = r.no_file;
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
