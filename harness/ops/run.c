/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ops.h"

#define NS	1000000000
#define LEAD_NS (20 * 1000000) /* from the last that is ready to the start of all */
#define POLL_NS (2 * 1000000)

enum worker_state { WORKING, OUT_OF_FILES, FINISHED, STOPPED, FAILED };

/* What a worker tells, in memory that all share. */
struct shared_worker {
	struct stats_live live;
	_Atomic int state; /* enum worker_state */
	int error;
	char path[MAX_PATH];
	pid_t pid; /* processes */
	pthread_t thread;
	bool reaped;
};

struct shared {
	sem_t ready, go;
	_Atomic uint64_t start_ns;
	atomic_bool stop;
	_Atomic unsigned running;
	struct shared_worker workers[];
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
	(void)number;
	interrupted = 1;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
	const struct timespec t = {(time_t)(ns / NS), (long)(ns % NS)};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

/* ---- a worker ---- */

/* On a CPU of its own, of those that this program may use, as long as there are enough. */
static void pin(unsigned index)
{
	cpu_set_t allowed, own;
	unsigned wanted;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) == -1)
		return;
	wanted = index % (unsigned)CPU_COUNT(&allowed);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &allowed) && wanted-- == 0) {
			CPU_ZERO(&own);
			CPU_SET(cpu, &own);
			sched_setaffinity(0, sizeof(own), &own);
			return;
		}
}

static int repeat(struct worker *w, struct shared *all, struct shared_worker *mine)
{
	const struct options *o = w->options;
	uint64_t begin = now_ns();

	while (!atomic_load_explicit(&all->stop, memory_order_relaxed)) {
		int result;
		uint64_t end;

		if (o->count && w->done == o->count)
			return FINISHED;
		w->bytes = 0;
		result = o->operation->step(w);
		if (result == OUT_OF_WORK)
			return OUT_OF_FILES;
		if (result < 0) {
			mine->error = -result;
			return FAILED;
		}
		end = now_ns();
		stats_record(&mine->live, end - begin, w->bytes);
		w->done++;
		begin = end;
	}
	return STOPPED;
}

static void work(const struct options *o, struct shared *all, unsigned index)
{
	struct shared_worker *mine = &all->workers[index];
	struct worker w;
	int result, state = FAILED;

	if (!o->unpinned)
		pin(index);
	worker_init(&w, o, index);
	result = o->operation->begin(&w);
	sem_post(&all->ready);
	while (sem_wait(&all->go) == -1)
		;
	if (result < 0) {
		mine->error = -result;
	} else {
		sleep_until(atomic_load(&all->start_ns));
		state = repeat(&w, all, mine);
	}
	if (state == FAILED)
		memcpy(mine->path, w.path, sizeof(w.path));
	/* All end with the first that fails or has nothing left: rates are of all workers together.
	 */
	if (state == FAILED || state == OUT_OF_FILES)
		atomic_store(&all->stop, true);
	worker_end(&w);
	atomic_store(&mine->state, state);
	atomic_fetch_sub(&all->running, 1);
}

struct start {
	const struct options *options;
	struct shared *all;
	unsigned index;
};

static void *work_in_thread(void *arg)
{
	const struct start *start = arg;

	work(start->options, start->all, start->index);
	return NULL;
}

/* ---- all workers ---- */

/* False: told. */
static bool start_worker(const struct start *start)
{
	struct shared_worker *mine = &start->all->workers[start->index];
	int error;

	if (start->options->threads) {
		error = pthread_create(&mine->thread, NULL, work_in_thread, (void *)start);
		if (error)
			complain("worker %u cannot start: %s", start->index, strerror(error));
		return !error;
	}
	pid_t pid = fork();

	if (pid == 0) {
		/* It ends with its parent, which gets the signal. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGINT, SIG_IGN);
		signal(SIGTERM, SIG_IGN);
		work(start->options, start->all, start->index);
		_exit(0);
	}
	if (pid == -1)
		complain("worker %u cannot start: %s", start->index, strerror(errno));
	mine->pid = pid; /* here: a child that wrote it would write 0 */
	return pid != -1;
}

/* A worker that was killed ends the run. */
static void look_after(const struct options *o, struct shared *all)
{
	for (unsigned i = 0; i < o->workers && !o->threads; i++) {
		struct shared_worker *w = &all->workers[i];
		int status;

		if (w->reaped || waitpid(w->pid, &status, WNOHANG) != w->pid)
			continue;
		w->reaped = true;
		if (WIFEXITED(status))
			continue;
		complain("worker %u was ended by signal %d", i, WTERMSIG(status));
		atomic_store(&w->state, FAILED);
		atomic_store(&all->stop, true);
		atomic_fetch_sub(&all->running, 1);
	}
}

/* Until each of them has begun, or one has failed. */
static bool await_ready(const struct options *o, struct shared *all)
{
	for (unsigned i = 0; i < o->workers; i++)
		while (sem_trywait(&all->ready) == -1) {
			if (interrupted || atomic_load(&all->stop))
				return false;
			look_after(o, all);
			sleep_until(now_ns() + POLL_NS);
		}
	return true;
}

static void sum(const struct options *o, struct shared *all, struct stats *out)
{
	memset(out, 0, sizeof(*out));
	for (unsigned i = 0; i < o->workers; i++)
		stats_add_live(out, &all->workers[i].live);
}

struct results {
	uint64_t start_ns, end_ns;
	struct stats total;
	const char *end;
	unsigned without_file;
	char *intervals; /* JSON */
	uint64_t expected, found;
	bool traced;
};

static void print_interval(
	FILE *f, uint64_t origin, uint64_t begin, uint64_t end, const struct stats *s)
{
	fprintf(f,
		"%s\n    {\"start_s\": %.6f, \"end_s\": %.6f, \"ops\": %" PRIu64
		", \"bytes\": %" PRIu64 ", \"flowops\": {\"operation\": %" PRIu64 "}, ",
		begin == origin ? "" : ",", (double)(begin - origin) / 1e9,
		(double)(end - origin) / 1e9, s->ops, s->bytes, s->ops);
	stats_print(f, "latency_ns", s);
	fputc('}', f);
}

/* From the start to the end, an interval after the other. */
static bool measure(const struct options *o, struct shared *all, struct results *r)
{
	static struct stats before, now, between;
	uint64_t step = (uint64_t)(o->interval * NS), begin = r->start_ns, end = begin;
	uint64_t limit = o->seconds > 0 ? begin + (uint64_t)(o->seconds * NS) : UINT64_MAX;
	size_t length;
	FILE *f = open_memstream(&r->intervals, &length);

	if (!f)
		return false;
	memset(&before, 0, sizeof(before));
	for (bool over = false; !over; begin = end) {
		uint64_t next = begin + step < limit ? begin + step : limit;

		while ((end = now_ns()) < next && atomic_load(&all->running) > 0 && !interrupted &&
			!atomic_load(&all->stop)) {
			uint64_t poll = end + POLL_NS * 5;

			sleep_until(poll < next ? poll : next);
			look_after(o, all);
		}
		over = end >= limit || atomic_load(&all->running) == 0 || interrupted ||
		       atomic_load(&all->stop);
		if (over) {
			r->end = interrupted ? "interrupted" : end >= limit ? "time" : "all-done";
			/* What is under way still counts, with the time that it takes. */
			atomic_store(&all->stop, true);
			while (atomic_load(&all->running) > 0) {
				look_after(o, all);
				sleep_until(now_ns() + POLL_NS / 20);
			}
			end = now_ns();
		}
		sum(o, all, &now);
		stats_difference(&between, &now, &before);
		print_interval(f, r->start_ns, begin, end, &between);
		before = now;
	}
	r->end_ns = end;
	r->total = now;
	return fclose(f) == 0;
}

/* ---- results ---- */

static bool print_json(const struct options *o, const struct results *r)
{
	double seconds = (double)(r->end_ns - r->start_ns) / 1e9;
	char partial[PATH_MAX + 16];
	bool ok;
	FILE *f;

	snprintf(partial, sizeof(partial), "%s.partial", o->json);
	f = fopen(partial, "we");
	if (!f) {
		complain("--json %s: %s", o->json, strerror(errno));
		return false;
	}
	fprintf(f,
		"{\n  \"schema\": 1,\n  \"program\": \"" NAME " " USERBLK_VERSION
		"\", \"operation\": \"%s\", \"original\": false, \"seed\": %" PRIu64 ",\n"
		"  \"threads\": %u, \"processes\": %s, \"pinned\": %s, \"cpus\": %ld,\n"
		"  \"variables\": {\"files\": %" PRIu64 ", \"size\": %" PRIu64
		", \"fan-out\": %u, \"count\": %" PRIu64 "}, \"filesets\": [],\n"
		"  \"started_monotonic_s\": %.6f, \"duration_s\": %.6f, \"end\": \"%s\", "
		"\"threads_without_file\": %u,\n",
		o->operation->name, o->seed, o->workers, o->threads ? "false" : "true",
		o->unpinned ? "false" : "true", sysconf(_SC_NPROCESSORS_ONLN), o->files, o->size,
		o->fan_out, o->count, (double)r->start_ns / 1e9, seconds, r->end, r->without_file);
	if (r->traced)
		fprintf(f,
			"  \"left_behind\": {\"expected\": %" PRIu64 ", \"found\": %" PRIu64 "},\n",
			r->expected, r->found);
	fprintf(f,
		"  \"summary\": {\"ops\": %" PRIu64 ", \"ops_per_s\": %.3f, \"bytes\": %" PRIu64
		", ",
		r->total.ops, (double)r->total.ops / seconds, r->total.bytes);
	stats_print(f, "latency_ns", &r->total);
	fprintf(f,
		"},\n  \"flowops\": [{\"name\": \"operation\", \"type\": \"%s\"}],\n  "
		"\"intervals\": [%s\n  ]\n}\n",
		o->operation->name, r->intervals);
	ok = fflush(f) == 0 && !ferror(f);
	ok = fclose(f) == 0 && ok;
	ok = ok && rename(partial, o->json) == 0;
	if (!ok) {
		complain("--json %s: %s", o->json, strerror(errno));
		unlink(partial);
	}
	return ok;
}

static bool report(const struct options *o, struct results *r)
{
	double seconds = (double)(r->end_ns - r->start_ns) / 1e9;
	bool ok = true;

	if (o->operation->trace != TRACE_NONE) {
		r->traced = operations_trace(o, r->total.ops, &r->expected, &r->found);
		ok = r->traced && r->expected == r->found;
		if (r->traced && !ok)
			complain("%s: %" PRIu64 " operations leave %" PRIu64
				 ", but there are %" PRIu64,
				o->operation->name, r->total.ops, r->expected, r->found);
	}
	printf("%s: %u %s, %" PRIu64 " operations in %.3f s, %.0f/s, %.2f us each\n",
		o->operation->name, o->workers, o->threads ? "threads" : "processes", r->total.ops,
		seconds, (double)r->total.ops / seconds,
		r->total.ops ? (double)r->total.sum_ns / 1e3 / (double)r->total.ops : 0);
	if (o->json)
		ok = print_json(o, r) && ok;
	return ok;
}

/* Whether all have ended well; tells otherwise. */
static bool collect(
	const struct options *o, struct shared *all, unsigned started, struct results *r)
{
	bool ok = true;

	for (unsigned i = 0; i < started; i++) {
		struct shared_worker *w = &all->workers[i];

		if (o->threads)
			pthread_join(w->thread, NULL);
		else if (!w->reaped)
			waitpid(w->pid, NULL, 0);
		if (atomic_load(&w->state) == FAILED && ok) {
			if (w->error)
				complain("%s: %s: %s", o->operation->name, w->path,
					strerror(w->error));
			ok = false;
		}
		r->without_file += atomic_load(&w->state) == OUT_OF_FILES;
	}
	return ok;
}

static int run_with(const struct options *o, struct shared *all, struct start *starts)
{
	struct results r = {0};
	unsigned started = 0;
	sigset_t signals;
	bool ok = true;

	sem_init(&all->ready, 1, 0);
	sem_init(&all->go, 1, 0);
	atomic_store(&all->running, o->workers);
	for (unsigned i = 0; i < o->workers; i++)
		stats_live_init(&all->workers[i].live);
	/* Operations are not to be interrupted. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	for (; started < o->workers && ok; started++) {
		starts[started] = (struct start){o, all, started};
		ok = start_worker(&starts[started]);
		started -= !ok;
	}
	pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
	ok = ok && await_ready(o, all);
	r.start_ns = now_ns() + LEAD_NS;
	atomic_store(&all->start_ns, ok ? r.start_ns : 0);
	if (!ok)
		atomic_store(&all->stop, true);
	for (unsigned i = 0; i < started; i++)
		sem_post(&all->go);
	if (ok) {
		sleep_until(r.start_ns);
		ok = measure(o, all, &r);
	}
	ok = collect(o, all, started, &r) && ok;
	if (r.without_file > 0)
		r.end = "first-done";
	if (ok)
		ok = report(o, &r);
	free(r.intervals);
	if (interrupted)
		complain("interrupted; the results are of the time until then");
	return ok && !interrupted ? 0 : 1;
}

int run(const struct options *o)
{
	size_t size = sizeof(struct shared) + o->workers * sizeof(struct shared_worker);
	struct shared *all =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct start *starts = calloc(o->workers, sizeof(*starts));
	const struct sigaction action = {.sa_handler = on_signal};
	int status = 1;

	if (all == MAP_FAILED || !starts) {
		complain("out of memory");
	} else {
		sigaction(SIGINT, &action, NULL);
		sigaction(SIGTERM, &action, NULL);
		status = run_with(o, all, starts);
	}
	free(starts);
	return status;
}
