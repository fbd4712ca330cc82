/* SPDX-License-Identifier: BSD-3-Clause */
#include "crew.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "database.h"
#include "shared.h"

#define STACK_SIZE (256 * 1024)
#define END_BITS   3 /* of a verdict: which end, plus one */

/* What the threads wait for. */
enum phase {
	PREPARING,
	RUNNING,
	ENDED,
};

/* In memory that all processes share. No lock: its holder may be killed. */
struct common {
	struct control control;
	_Atomic uint32_t phase;
	_Atomic uint32_t ready, running; /* threads */
	_Atomic uint32_t finished, no_file;
	_Atomic uint64_t verdict; /* 0: goes on; else the time of its end, and which */
	_Atomic bool failed;
	struct flow_error error; /* of who set failed */
};

/* A thread. */
struct member {
	struct crew *crew;
	const struct thread_def *def;
	struct process_count *process;
	struct stats_live *stats; /* def->count, shared */
	unsigned number;
	pthread_t thread;
	struct worker *worker; /* in its own process */
};

/* A process. */
struct team {
	const struct process_def *def;
	unsigned instance;     /* from 1 */
	unsigned first, count; /* its threads */
	pid_t pid;	       /* 0: userblk-flow itself, or it has ended */
	struct usage {
		double user_s, system_s;
	} * usage; /* shared */
	struct process_count done;
};

struct crew {
	const struct workload *workload;
	const struct run_options *options;
	struct common *common;
	struct usage *usage;
	struct member *members;
	unsigned threads;
	struct team *teams;
	unsigned processes;
	pid_t pid; /* userblk-flow's */
};

void crew_signals(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGUSR1); /* from a thread */
	sigaddset(set, SIGCHLD);
}

double crew_cpu_seconds(const struct timeval *before, const struct timeval *after)
{
	return (double)(after->tv_sec - before->tv_sec) +
	       (double)(after->tv_usec - before->tv_usec) / 1e6;
}

static void notify(const struct crew *c)
{
	kill(c->pid, SIGUSR1);
}

static void set_phase(struct crew *c, enum phase phase)
{
	atomic_store(&c->common->phase, phase);
	shared_wake(&c->common->phase);
}

/* Until it is later than the phase. */
static enum phase await_after(struct crew *c, enum phase phase)
{
	enum phase now;

	while ((now = atomic_load(&c->common->phase)) <= phase)
		shared_wait(&c->common->phase, now);
	return now;
}

void crew_stop(struct crew *c, enum run_end end, uint64_t at)
{
	struct common *s = c->common;
	uint64_t none = 0;

	if (!atomic_compare_exchange_strong(&s->verdict, &none, at << END_BITS | (end + 1)))
		return;
	atomic_store(&s->control.deadline, at);
	atomic_store(&s->control.stop, true);
	set_phase(c, ENDED);
	for (unsigned i = 0; i < c->workload->file_count; i++)
		fileset_wake(c->workload->files[i].fs);
	database_stop(&s->control);
}

static void fail(struct crew *c, const struct flow_error *error)
{
	if (!atomic_exchange(&c->common->failed, true))
		c->common->error = *error;
}

/* ---- in each process ---- */

/* What the end of a thread means to the run. */
static void thread_ended(struct crew *c, enum step step, const struct flow_error *error)
{
	struct common *s = c->common;

	atomic_fetch_add(&s->finished, step == STEP_FINISHED);
	atomic_fetch_add(&s->no_file, step == STEP_NO_FILE);
	if (step == STEP_FAILED)
		fail(c, error);

	bool last = atomic_fetch_sub(&s->running, 1) == 1;
	uint64_t now = flow_now(), deadline = atomic_load(&s->control.deadline);

	if (step == STEP_FAILED)
		crew_stop(c, RUN_EARLY, now);
	else if (last && now >= deadline)
		crew_stop(c, RUN_TIME, deadline);
	else if (step != STEP_STOPPED && c->options->mode != MODE_ALLDONE)
		crew_stop(c, c->options->mode == MODE_FIRSTDONE ? RUN_FIRST_DONE : RUN_EARLY, now);
	else if (last)
		crew_stop(c, RUN_ALL_DONE, now);
	notify(c);
}

static void ready(struct crew *c, unsigned threads)
{
	if (atomic_fetch_add(&c->common->ready, threads) + threads == c->threads)
		notify(c);
}

static void *thread_main(void *arg)
{
	struct member *m = arg;
	struct crew *c = m->crew;
	struct worker *w = m->worker;

	*w = (struct worker){.def = m->def,
		.control = &c->common->control,
		.process = m->process,
		.stats = m->stats,
		.number = m->number};
	if (!worker_init(w, c->options->seed))
		fail(c, &w->error);
	ready(c, 1);

	enum step step = await_after(c, PREPARING) == RUNNING ? worker_run(w) : STEP_STOPPED;

	database_stopped(w);
	thread_ended(c, step, &w->error);
	return NULL;
}

/* Starts the threads of a process; how many. */
static unsigned start_threads(struct crew *c, const struct team *t)
{
	pthread_attr_t attr;
	struct flow_error error;
	unsigned started = 0;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	for (int result = 0; started < t->count; started++) {
		struct member *m = &c->members[t->first + started];

		m->worker = aligned_alloc(128, (sizeof *m->worker + 127) / 128 * 128);
		result = m->worker == NULL ? ENOMEM
					   : pthread_create(&m->thread, &attr, thread_main, m);
		if (result != 0) {
			free(m->worker);
			m->worker = NULL;
			flow_error_set(&error,
				"thread %s: cannot start thread %u of %u: %s; lower instances=",
				m->def->name, t->first + started + 1, c->threads, strerror(result));
			fail(c, &error);
			atomic_fetch_sub(&c->common->running, t->count - started);
			ready(c, t->count - started);
			break;
		}
	}
	pthread_attr_destroy(&attr);
	return started;
}

static void join_threads(struct crew *c, const struct team *t, unsigned started)
{
	for (unsigned i = 0; i < started; i++) {
		struct member *m = &c->members[t->first + i];

		pthread_join(m->thread, NULL);
		if (!worker_destroy(m->worker))
			fail(c, &m->worker->error);
		free(m->worker);
		m->worker = NULL;
	}
}

/* A process from its beginning to its end. */
static _Noreturn void team_main(struct crew *c, struct team *t)
{
	struct rusage before, after;

	/* With userblk-flow, and before anything is done if that has ended by now. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != c->pid)
		_exit(EXIT_FAILURE);

	unsigned started = start_threads(c, t);

	await_after(c, PREPARING);
	getrusage(RUSAGE_SELF, &before);
	await_after(c, RUNNING);
	getrusage(RUSAGE_SELF, &after);
	*t->usage = (struct usage){crew_cpu_seconds(&before.ru_utime, &after.ru_utime),
		crew_cpu_seconds(&before.ru_stime, &after.ru_stime)};
	join_threads(c, t, started);
	_exit(EXIT_SUCCESS);
}

/* ---- in userblk-flow ---- */

static bool forks(const struct crew *c)
{
	return c->processes > 1;
}

static void kill_teams(const struct crew *c)
{
	for (unsigned i = 0; i < c->processes; i++)
		if (c->teams[i].pid > 0)
			kill(c->teams[i].pid, SIGKILL);
}

/* A process has ended: if not by itself, then neither it nor the others have results. */
static void team_ended(struct crew *c, struct team *t, int status)
{
	pid_t pid = t->pid;

	t->pid = 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS)
		return;

	struct flow_error error;

	if (WIFSIGNALED(status))
		flow_error_set(&error,
			"process %s: instance %u of %u (pid %d) was killed by signal %d (%s); "
			"the run has no results, repeat it",
			t->def->name, t->instance, t->def->instances, (int)pid, WTERMSIG(status),
			strsignal(WTERMSIG(status)));
	else
		flow_error_set(&error,
			"process %s: instance %u of %u (pid %d) ended with exit status %d; "
			"the run has no results, repeat it",
			t->def->name, t->instance, t->def->instances, (int)pid,
			WEXITSTATUS(status));
	fail(c, &error);
	kill_teams(c);
	crew_stop(c, RUN_EARLY, flow_now());
}

bool crew_ended(struct crew *c)
{
	int status;

	for (unsigned i = 0; i < c->processes; i++) {
		struct team *t = &c->teams[i];

		if (t->pid > 0 && waitpid(t->pid, &status, WNOHANG) == t->pid)
			team_ended(c, t, status);
	}
	return atomic_load(&c->common->verdict) != 0;
}

static void fork_teams(struct crew *c)
{
	struct flow_error error;

	signal(SIGCHLD, SIG_DFL); /* ignored, children would leave no status */
	fflush(NULL);
	for (unsigned i = 0; i < c->processes; i++) {
		struct team *t = &c->teams[i];
		pid_t pid = fork();

		if (pid == 0)
			team_main(c, t);
		if (pid < 0) {
			unsigned missing = c->threads - t->first;

			flow_error_set(&error,
				"process %s: cannot start process %u of %u: %m; lower instances=",
				t->def->name, i + 1, c->processes);
			fail(c, &error);
			atomic_fetch_sub(&c->common->running, missing);
			ready(c, missing);
			break;
		}
		t->pid = pid;
	}
}

bool crew_start(struct crew *c)
{
	sigset_t set;
	int number;

	if (forks(c))
		fork_teams(c);
	else
		c->teams[0].count = start_threads(c, &c->teams[0]);

	/* SIGINT and SIGTERM wait until the run has begun. */
	crew_signals(&set);
	sigdelset(&set, SIGINT);
	sigdelset(&set, SIGTERM);
	while (!crew_ended(c) && atomic_load(&c->common->ready) < c->threads)
		sigwait(&set, &number);
	if (!atomic_load(&c->common->failed))
		return true;
	crew_stop(c, RUN_EARLY, flow_now());
	return false;
}

void crew_release(struct crew *c, uint64_t start, uint64_t deadline)
{
	atomic_store(&c->common->control.event_start, start);
	atomic_store(&c->common->control.deadline, deadline);
	set_phase(c, RUNNING);
}

void crew_join(struct crew *c, double *user_s, double *system_s)
{
	int status;

	if (!forks(c)) {
		join_threads(c, &c->teams[0], c->teams[0].count);
		return;
	}
	for (unsigned i = 0; i < c->processes; i++) {
		struct team *t = &c->teams[i];

		if (t->pid > 0 && waitpid(t->pid, &status, 0) == t->pid)
			team_ended(c, t, status);
		*user_s += t->usage->user_s;
		*system_s += t->usage->system_s;
	}
}

void crew_sum(const struct crew *c, struct stats *rows)
{
	for (unsigned i = 0; i < c->threads; i++) {
		const struct member *m = &c->members[i];

		for (unsigned j = 0; j < m->def->count; j++)
			stats_add_live(&rows[m->def->flowops[j].row], &m->stats[j]);
	}
}

uint64_t crew_result(const struct crew *c, struct run_result *result)
{
	uint64_t verdict = atomic_load(&c->common->verdict);

	result->end = (enum run_end)((verdict & ((1U << END_BITS) - 1)) - 1);
	result->threads = c->threads;
	result->finished = atomic_load(&c->common->finished);
	result->no_file = atomic_load(&c->common->no_file);
	result->unfinished_writes = atomic_load(&c->common->control.unfinished_writes);
	result->unfinished_bytes = atomic_load(&c->common->control.unfinished_bytes);
	return verdict >> END_BITS;
}

bool crew_failed(const struct crew *c, struct flow_error *error)
{
	if (!atomic_load(&c->common->failed))
		return false;
	*error = c->common->error;
	return true;
}

/* ---- before and after ---- */

static bool no_memory(struct flow_error *error)
{
	return flow_error_set(error, "out of memory; lower instances=");
}

/* Assigns threads to processes, and maps what each shares. */
static bool enlist(struct crew *c, struct flow_error *error)
{
	struct control *control = &c->common->control;
	unsigned process = 0, thread = 0;

	for (unsigned i = 0; i < c->workload->process_count; i++) {
		const struct process_def *p = &c->workload->processes[i];

		for (unsigned n = 0; n < p->instances; n++, process++) {
			struct team *t = &c->teams[process];

			t->def = p;
			t->instance = n + 1;
			t->first = thread;
			t->usage = &c->usage[process];
			for (unsigned j = 0; j < p->count; j++)
				for (unsigned k = 0; k < p->threads[j].instances; k++, thread++)
					c->members[thread] = (struct member){.crew = c,
						.def = &p->threads[j],
						.process = &t->done,
						.number = thread};
			t->count = thread - t->first;
		}
	}
	for (thread = 0; thread < c->threads; thread++) {
		struct member *m = &c->members[thread];

		m->stats = shared_map(m->def->count * sizeof *m->stats);
		if (m->stats == NULL || !database_add_blocks(control, m->def, thread))
			return no_memory(error);
	}
	return database_start(control, error);
}

struct crew *crew_new(
	const struct workload *w, const struct run_options *options, struct flow_error *error)
{
	struct crew *c = calloc(1, sizeof *c);

	if (c == NULL) {
		no_memory(error);
		return NULL;
	}
	*c = (struct crew){.workload = w, .options = options, .pid = getpid()};
	for (unsigned i = 0; i < w->process_count; i++) {
		c->processes += w->processes[i].instances;
		for (unsigned j = 0; j < w->processes[i].count; j++)
			c->threads +=
				w->processes[i].instances * w->processes[i].threads[j].instances;
	}
	c->common = shared_map(sizeof *c->common);
	c->usage = shared_map(c->processes * sizeof *c->usage);
	c->teams = aligned_alloc(_Alignof(struct team), c->processes * sizeof *c->teams);
	c->members = calloc(c->threads, sizeof *c->members);
	if (c->common != NULL) {
		c->common->control.original = options->original;
		c->common->control.event_rate = options->event_rate;
		c->common->control.semaphores = -1;
		c->common->running = c->threads;
	}
	if (c->teams != NULL)
		memset(c->teams, 0, c->processes * sizeof *c->teams);
	if (c->common == NULL || c->usage == NULL || c->teams == NULL || c->members == NULL)
		no_memory(error);
	else if (enlist(c, error))
		return c;
	crew_free(c);
	return NULL;
}

void crew_free(struct crew *c)
{
	if (c == NULL)
		return;
	for (unsigned i = 0; c->members != NULL && i < c->threads; i++)
		if (c->members[i].def != NULL)
			shared_unmap(c->members[i].stats,
				c->members[i].def->count * sizeof *c->members[i].stats);
	if (c->common != NULL) {
		database_stop(&c->common->control);
		free(c->common->control.blocks);
	}
	shared_unmap(c->common, sizeof *c->common);
	shared_unmap(c->usage, c->processes * sizeof *c->usage);
	free(c->teams);
	free(c->members);
	free(c);
}
