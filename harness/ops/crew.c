/* SPDX-License-Identifier: BSD-3-Clause */
#include "crew.h"

#include <err.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness/flow/results.h"

#include "command.h"

#define NS	1000000000
#define LEAD_NS (20 * 1000000) /* from the last that is ready to the start of all */
#define POLL_NS (2 * 1000000)

enum worker_state { WORKING, OUT_OF_WORK, FINISHED, STOPPED, FAILED };

/* What a worker tells, in memory that all share. */
struct shared_worker {
	_Atomic int state; /* enum worker_state */
	char why[CREW_WHY];
	pid_t pid; /* processes */
	pthread_t thread;
	bool reaped;
};

struct shared {
	sem_t ready, go;
	_Atomic uint64_t start_ns, end_ns; /* of all; of the last step of the last worker */
	atomic_bool stop;
	struct shared_worker workers[];
};

/* A crew at work. live: of each worker its kinds. */
struct work {
	const struct crew *crew;
	struct shared *all;
	struct stats_live *live;
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

static enum worker_state repeat(
	const struct work *work, struct crew_worker *w, struct stats_live *live)
{
	const struct crew *crew = work->crew;
	uint64_t begin = now_ns();

	while (!atomic_load_explicit(&work->all->stop, memory_order_relaxed)) {
		enum crew_step result;
		uint64_t end;

		if (crew->count && w->done == crew->count)
			return FINISHED;
		w->bytes = 0;
		result = crew->step(w);
		if (result != CREW_DONE)
			return result == CREW_FAILED ? FAILED : OUT_OF_WORK;
		end = now_ns();
		stats_record(&live[w->kind], end - begin, w->bytes);
		w->done++;
		begin = end;
	}
	return STOPPED;
}

/* The last to end says when all had ended. */
static void note_end(struct shared *all)
{
	uint64_t end = now_ns(), latest = atomic_load(&all->end_ns);

	while (latest < end && !atomic_compare_exchange_weak(&all->end_ns, &latest, end))
		;
}

static void work_in(const struct work *work, unsigned index)
{
	const struct crew *crew = work->crew;
	struct shared *all = work->all;
	struct shared_worker *mine = &all->workers[index];
	struct crew_worker w = {.task = crew->task, .index = index};
	enum worker_state state;

	if (!crew->unpinned)
		pin(index);
	state = crew->begin(&w) == CREW_DONE ? WORKING : FAILED;
	sem_post(&all->ready);
	while (sem_wait(&all->go) == -1)
		;
	if (state != FAILED) {
		sleep_until(atomic_load(&all->start_ns));
		state = repeat(work, &w, &work->live[index * crew->kind_count]);
		note_end(all);
	}
	if (state == FAILED)
		memcpy(mine->why, w.why, sizeof(w.why));
	/* All end with the first that fails or has nothing left: rates are of all workers together.
	 */
	if (state == FAILED || state == OUT_OF_WORK)
		atomic_store(&all->stop, true);
	crew->end(&w);
	atomic_store(&mine->state, (int)state);
}

struct start {
	const struct work *work;
	unsigned index;
};

static void *work_in_thread(void *arg)
{
	const struct start *start = arg;

	work_in(start->work, start->index);
	return NULL;
}

/* ---- all workers ---- */

/* False: reported. */
static bool start_worker(const struct start *start)
{
	struct shared_worker *mine = &start->work->all->workers[start->index];
	int error;

	if (start->work->crew->threads) {
		error = pthread_create(&mine->thread, NULL, work_in_thread, (void *)start);
		if (error)
			warnx("worker %u cannot start: %s", start->index, strerror(error));
		return !error;
	}
	pid_t parent = getpid(), pid = fork();

	if (pid == 0) {
		/* It ends with its parent, which gets the signal, or has ended by now. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(EXIT_FAILURE);
		signal(SIGINT, SIG_IGN);
		signal(SIGTERM, SIG_IGN);
		work_in(start->work, start->index);
		_exit(0);
	}
	if (pid == -1)
		warnx("worker %u cannot start: %s", start->index, strerror(errno));
	mine->pid = pid; /* here: a child that wrote it would write 0 */
	return pid != -1;
}

/* A worker that ended without having said how ends the run. */
static void look_after(const struct work *work)
{
	for (unsigned i = 0; i < work->crew->workers && !work->crew->threads; i++) {
		struct shared_worker *w = &work->all->workers[i];
		int status;

		if (w->reaped || waitpid(w->pid, &status, WNOHANG) != w->pid)
			continue;
		w->reaped = true;
		if (atomic_load(&w->state) != WORKING)
			continue;
		if (WIFSIGNALED(status))
			warnx("worker %u was ended by signal %d", i, WTERMSIG(status));
		else
			warnx("worker %u ended by itself, with status %d", i, WEXITSTATUS(status));
		atomic_store(&w->state, FAILED);
		atomic_store(&work->all->stop, true);
	}
}

/* Not counted by the workers: one that is killed cannot. */
static bool some_work(const struct work *work)
{
	for (unsigned i = 0; i < work->crew->workers; i++)
		if (atomic_load(&work->all->workers[i].state) == WORKING)
			return true;
	return false;
}

/* Until each of them has begun, or one has failed. */
static bool await_ready(const struct work *work)
{
	struct shared *all = work->all;

	for (unsigned i = 0; i < work->crew->workers; i++)
		while (sem_trywait(&all->ready) == -1) {
			if (interrupted || atomic_load(&all->stop))
				return false;
			look_after(work);
			sleep_until(now_ns() + POLL_NS);
		}
	return true;
}

/* What all workers have done so far: of each kind, and in all. */
static void sum(const struct work *work, struct stats *total, struct stats *kinds)
{
	unsigned count = work->crew->kind_count;

	memset(total, 0, sizeof(*total));
	memset(kinds, 0, count * sizeof(*kinds));
	for (unsigned i = 0; i < work->crew->workers * count; i++)
		stats_add_live(&kinds[i % count], &work->live[i]);
	for (unsigned i = 0; i < count; i++)
		stats_add(total, &kinds[i]);
}

struct sums {
	struct stats total, kinds[CREW_KINDS];
};

static void print_interval(FILE *f, const struct work *work, uint64_t origin, uint64_t begin,
	uint64_t end, const struct sums *now, const struct sums *before)
{
	static struct stats between;
	const struct crew *crew = work->crew;

	stats_difference(&between, &now->total, &before->total);
	fprintf(f,
		"%s\n    {\"start_s\": %.6f, \"end_s\": %.6f, \"ops\": %" PRIu64
		", \"bytes\": %" PRIu64 ", \"flowops\": {",
		begin == origin ? "" : ",", (double)(begin - origin) / 1e9,
		(double)(end - origin) / 1e9, between.ops, between.bytes);
	for (unsigned i = 0; i < crew->kind_count; i++)
		fprintf(f, "%s\"%s\": %" PRIu64, i > 0 ? ", " : "", crew->kinds[i],
			now->kinds[i].ops - before->kinds[i].ops);
	fputs("}, ", f);
	stats_print(f, "latency_ns", &between);
	fputc('}', f);
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* From the start to the end, an interval after the other. */
static bool measure(const struct work *work, struct crew_results *r)
{
	static struct sums before, now;
	const struct crew *crew = work->crew;
	struct shared *all = work->all;
	uint64_t step = (uint64_t)(crew->interval * NS), begin = r->start_ns, end = begin;
	uint64_t limit = crew->seconds > 0 ? begin + (uint64_t)(crew->seconds * NS) : UINT64_MAX;
	size_t length;
	FILE *f = open_memstream(&r->intervals, &length);

	if (!f)
		return false;
	memset(&before, 0, sizeof(before));
	for (bool over = false; !over; begin = end) {
		uint64_t next = begin + step < limit ? begin + step : limit;

		while ((end = now_ns()) < next && some_work(work) && !interrupted &&
			!atomic_load(&all->stop)) {
			uint64_t poll = end + POLL_NS * 5;

			sleep_until(poll < next ? poll : next);
			look_after(work);
		}
		over = end >= limit || !some_work(work) || interrupted || atomic_load(&all->stop);
		if (over) {
			r->end = interrupted ? "interrupted" : end >= limit ? "time" : "all-done";
			/* What is under way still counts, with the time that it takes. */
			atomic_store(&all->stop, true);
			while (some_work(work)) {
				look_after(work);
				sleep_until(now_ns() + POLL_NS / 20);
			}
			end = later(begin, atomic_load(&all->end_ns));
		}
		sum(work, &now.total, now.kinds);
		print_interval(f, work, r->start_ns, begin, end, &now, &before);
		before = now;
	}
	r->end_ns = end;
	r->total = now.total;
	memcpy(r->kinds, now.kinds, sizeof(r->kinds));
	return fclose(f) == 0;
}

/* Whether all have ended well; tells otherwise. */
static bool collect(const struct work *work, unsigned started, struct crew_results *r)
{
	const struct crew *crew = work->crew;
	bool ok = true;

	for (unsigned i = 0; i < started; i++) {
		struct shared_worker *w = &work->all->workers[i];

		if (crew->threads)
			pthread_join(w->thread, NULL);
		else if (!w->reaped)
			waitpid(w->pid, NULL, 0);
		if (atomic_load(&w->state) == FAILED && ok) {
			if (w->why[0])
				warnx("%s: %s", crew->name, w->why);
			ok = false;
		}
		r->without_work += atomic_load(&w->state) == OUT_OF_WORK;
	}
	return ok;
}

static bool run_with(const struct work *work, struct start *starts, struct crew_results *r)
{
	const struct crew *crew = work->crew;
	struct shared *all = work->all;
	unsigned started = 0;
	sigset_t signals;
	bool ok = true;

	sem_init(&all->ready, 1, 0);
	sem_init(&all->go, 1, 0);
	for (unsigned i = 0; i < crew->workers * crew->kind_count; i++)
		stats_live_init(&work->live[i]);
	signal(SIGCHLD, SIG_DFL); /* ignored, children would leave no status */
	/* Operations must not be interrupted. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	for (; started < crew->workers && ok; started++) {
		starts[started] = (struct start){work, started};
		ok = start_worker(&starts[started]);
		started -= !ok;
	}
	pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
	ok = ok && await_ready(work);
	r->start_ns = now_ns() + LEAD_NS;
	atomic_store(&all->start_ns, ok ? r->start_ns : 0);
	if (!ok)
		atomic_store(&all->stop, true);
	for (unsigned i = 0; i < started; i++)
		sem_post(&all->go);
	if (ok) {
		sleep_until(r->start_ns);
		ok = measure(work, r);
	}
	ok = collect(work, started, r) && ok;
	if (r->without_work > 0)
		r->end = "first-done";
	return ok;
}

static void *shared_memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

bool crew_run(const struct crew *crew, struct crew_results *results)
{
	size_t size = sizeof(struct shared) + crew->workers * sizeof(struct shared_worker);
	size_t live = (size_t)crew->workers * crew->kind_count * sizeof(struct stats_live);
	const struct work work = {crew, shared_memory(size), shared_memory(live)};
	struct start *starts = calloc(crew->workers, sizeof(*starts));
	const struct sigaction action = {.sa_handler = on_signal};
	bool ok = false;

	memset(results, 0, sizeof(*results));
	if (!work.all || !work.live || !starts) {
		warnx("out of memory");
	} else {
		sigaction(SIGINT, &action, NULL);
		sigaction(SIGTERM, &action, NULL);
		ok = run_with(&work, starts, results);
	}
	results->interrupted = interrupted;
	free(starts);
	if (work.all)
		munmap(work.all, size);
	if (work.live)
		munmap(work.live, live);
	return ok;
}

/* ---- results ---- */

static double seconds_of(const struct crew_results *r)
{
	return (double)(r->end_ns - r->start_ns) / 1e9;
}

void crew_print(const struct crew *crew, const struct crew_results *r)
{
	printf("%s: %u %s, %" PRIu64 " operations in %.3f s, %.0f/s, %.2f us each\n", crew->name,
		crew->workers, crew->threads ? "threads" : "processes", r->total.ops, seconds_of(r),
		(double)r->total.ops / seconds_of(r),
		r->total.ops ? (double)r->total.sum_ns / 1e3 / (double)r->total.ops : 0);
}

static void print_kinds(FILE *f, const struct crew *crew, const struct crew_results *r)
{
	for (unsigned i = 0; i < crew->kind_count; i++) {
		const struct stats *kind = &r->kinds[i];

		fprintf(f,
			"%s\n    {\"name\": \"%s\", \"type\": \"%s\", \"ops\": %" PRIu64
			", \"ops_per_s\": %.3f, \"bytes\": %" PRIu64 ", ",
			i > 0 ? "," : "", crew->kinds[i], crew->kinds[i], kind->ops,
			(double)kind->ops / seconds_of(r), kind->bytes);
		stats_print(f, "latency_ns", kind);
		fputc('}', f);
	}
}

bool crew_write(
	const struct crew *crew, const struct crew_results *r, const char *path, const char *head)
{
	FILE *f = results_open(path);

	if (!f) {
		warnx("--json %s: %s", path, strerror(errno));
		return false;
	}
	fprintf(f,
		"{\n  \"schema\": 1,\n  \"program\": \"%s " USERBLK_VERSION
		"\", \"original\": false,\n  %s\n"
		"  \"threads\": %u, \"processes\": %s, \"pinned\": %s, \"cpus\": %ld, "
		"\"filesets\": [],\n"
		"  \"started_monotonic_s\": %.6f, \"duration_s\": %.6f, \"end\": \"%s\", "
		"\"threads_without_file\": %u,\n",
		command_name, head, crew->workers, crew->threads ? "false" : "true",
		crew->unpinned ? "false" : "true", sysconf(_SC_NPROCESSORS_ONLN),
		(double)r->start_ns / 1e9, seconds_of(r), r->end, r->without_work);
	fprintf(f,
		"  \"summary\": {\"ops\": %" PRIu64 ", \"ops_per_s\": %.3f, \"bytes\": %" PRIu64
		", ",
		r->total.ops, (double)r->total.ops / seconds_of(r), r->total.bytes);
	stats_print(f, "latency_ns", &r->total);
	fprintf(f, "},\n  \"flowops\": [");
	print_kinds(f, crew, r);
	fprintf(f, "\n  ],\n  \"intervals\": [%s\n  ]\n}\n", r->intervals);
	if (results_close(f, path))
		return true;
	warnx("--json %s: %s", path, strerror(errno));
	return false;
}

int crew_status(const struct crew_results *r, bool ok)
{
	if (r->interrupted)
		warnx("interrupted; the results are of the time until then");
	return ok && !r->interrupted ? 0 : 1;
}
