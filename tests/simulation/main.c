/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs schedules, some in one process after the other, and shrinks the first one that fails. */
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/simulation/memory.h"
#include "tests/simulation/runner.h"
#include "tests/simulation/sim.h"
#include "tests/simulation/wrap.h"
#include "tests/simulation/world.h"

#define JOBS_MAX  64
#define KIND_MAX  64
#define ROUND	  (SIM_KEEPS_MEMORY ? 100u : 1u) /* schedules of a process */
#define STEPS_MAX 6000000

/* What a schedule leaves. */
struct result {
	uint64_t hash, steps;
	uint64_t counts[COUNTS];
	bool complete;
	char kind[KIND_MAX];
};

/* A process that runs schedules. */
struct job {
	pid_t pid;
	uint64_t seed; /* of the first one */
	unsigned n;
};

static struct result *results; /* shared, by job and place in its round */
static struct result *mine;
static int report_fd = -1;
static int report_fds[JOBS_MAX];
static unsigned limit_s = 60;
static const char *command;

static const char *const count_names[COUNTS] = {
#define X(name) [COUNT_##name] = #name,
	RUNNER_COUNTS(X)
#undef X
};

/* ---- in the schedule's process ------------------------------------------------------------------
 */

void runner_count(enum runner_count count, uint64_t n)
{
	mine->counts[count] += n;
}

void runner_vreport(const char *format, va_list args)
{
	vdprintf(report_fd, format, args);
}

void runner_report(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	runner_vreport(format, args);
	va_end(args);
}

/* Where the program was loaded, so that addr2line can be asked. */
extern const char __executable_start;

void runner_print_address(const void *address)
{
	runner_report("    @%zx\n", (size_t)((const char *)address - &__executable_start) - 1);
}

_Noreturn void runner_failed(const char *kind)
{
	snprintf(mine->kind, sizeof mine->kind, "%s", kind);
	_exit(RUNNER_FAILED);
}

static void run_schedule(const struct sim_options *options)
{
	const struct itimerval time = {.it_value.tv_sec = limit_s};

	/* Its own CPU time: other load says nothing about it. */
	setitimer(ITIMER_PROF, &time, NULL);
	sim_options = *options;
	sim_run(world_run, NULL);
	mine->hash = sim_trace_hash();
	mine->steps = sim_steps();
	mine->complete = true;
}

/* n schedules, of seeds that follow each other. */
_Noreturn static void run_round(unsigned job, const struct sim_options *options, unsigned n)
{
	report_fd = report_fds[job];
	/* The trace of one that is looked at is for reading. */
	if (ftruncate(report_fd, 0) || lseek(report_fd, 0, SEEK_SET))
		_exit(1);
	/* Libraries keep what they have had. */
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	sim_memory_begin();
	for (unsigned i = 0; i < n; i++) {
		struct sim_options o = *options;

		if (i)
			sim_memory_reset();
		o.seed += i;
		mine = &results[job * ROUND + i];
		run_schedule(&o);
		sim_files_reset();
	}
	_exit(0);
}

/* ---- the runner
 * ------------------------------------------------------------------------------------ */

static pid_t start(unsigned job, const struct sim_options *options, unsigned n)
{
	pid_t pid;

	memset(&results[job * ROUND], 0, n * sizeof *results);
	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(2);
	}
	if (pid == 0)
		run_round(job, options, n);
	return pid;
}

/* What came of a schedule, the last one of its process unless it is complete: NULL, or what it
 * failed with. */
static const char *verdict(struct result *r, int status)
{
	if (r->complete)
		return NULL;
	if (!r->kind[0] && WIFSIGNALED(status))
		snprintf(r->kind, sizeof r->kind, "signal %d%s", WTERMSIG(status),
			WTERMSIG(status) == SIGPROF ? " (took too long)" : "");
	else if (!r->kind[0])
		snprintf(r->kind, sizeof r->kind, "exit status %d", WEXITSTATUS(status));
	return r->kind;
}

/* n schedules that follow each other; what the last one failed with, or NULL. */
static const char *run_some(const struct sim_options *options, unsigned n)
{
	int status;
	pid_t pid = start(0, options, n);

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return verdict(&results[n - 1], status);
}

static const char *run_one(const struct sim_options *options)
{
	return run_some(options, 1);
}

/* Prints a report, with the names of its addresses. */
static void print_report(unsigned job)
{
	char line[4096], program[512];
	ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
	FILE *in = fdopen(dup(report_fds[job]), "r");

	program[n > 0 ? n : 0] = 0;
	if (!in)
		return;
	rewind(in);
	fflush(stdout);
	while (fgets(line, sizeof line, in)) {
		char shell[1024];
		FILE *names;

		if (strncmp(line, "    @", 5) != 0) {
			fputs(line, stdout);
			continue;
		}
		snprintf(shell, sizeof shell, "addr2line -spfe '%s' 0x%llx 2>/dev/null", program,
			strtoull(line + 5, NULL, 16));
		names = popen(shell, "r");
		while (names && fgets(line, sizeof line, names))
			printf("      %s", line);
		if (names)
			pclose(names);
	}
	fclose(in);
	fflush(stdout);
}

static void print_command(const struct sim_options *o)
{
	printf("%s --seeds 1 --seed %" PRIu64, command, o->seed);
	if (o->ops)
		printf(" --ops %u", o->ops);
	if (o->lives)
		printf(" --lives %u", o->lives);
	if (o->without) {
		const char *comma = "";

		printf(" --without ");
		for (unsigned i = 0; i < SIM_CLASSES; i++)
			if (o->without >> i & 1) {
				printf("%s%s", comma, sim_class_names[i]);
				comma = ",";
			}
	}
	printf("\n");
}

/* Does it still fail in the same way? Then it is the new one. */
static bool try_smaller(
	struct sim_options *best, const struct sim_options *candidate, const char *kind)
{
	const char *now = run_one(candidate);

	if (!now || strcmp(now, kind) != 0)
		return false;
	*best = *candidate;
	return true;
}

/* Fewer kinds of faults and actors, fewer operations, as long as it fails in the same way. */
static void shrink(const struct sim_options *options, const char *why)
{
	struct sim_options best = *options, candidate;
	char kind[KIND_MAX];
	bool smaller = true;

	snprintf(kind, sizeof kind, "%s", why);
	while (smaller) {
		smaller = false;
		for (unsigned i = 0; i < SIM_CLASSES; i++) {
			candidate = best;
			candidate.without |= 1u << i;
			if (candidate.without != best.without)
				smaller |= try_smaller(&best, &candidate, kind);
		}
		for (unsigned n = best.lives ? best.lives - 1 : 8; n; n--) {
			candidate = best;
			candidate.lives = n;
			if (!try_smaller(&best, &candidate, kind))
				break;
			smaller = true;
		}
		for (unsigned step = best.ops ? best.ops / 2 : 100; step; step /= 2)
			for (;;) {
				candidate = best;
				candidate.ops = (best.ops ? best.ops : 200) - step;
				if (candidate.ops == 0 || candidate.ops > 200 ||
					!try_smaller(&best, &candidate, kind))
					break;
				smaller = true;
			}
	}
	run_one(&best);
	print_report(0);
	printf("replay as it was:\n  ");
	print_command(options);
	printf("replay what is left of it (add --trace for all of it):\n  ");
	print_command(&best);
}

static uint64_t real_ms(void)
{
	struct timespec now;

	__real_clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void progress(uint64_t done, uint64_t failed, uint64_t began, const char *end)
{
	double s = (double)(real_ms() - began) / 1000;

	printf("%" PRIu64 " schedules, %" PRIu64 " failed, %.0f a minute%s", done, failed,
		s > 0 ? (double)done / s * 60 : 0.0, end);
	fflush(stdout);
}

struct search {
	struct sim_options options;
	uint64_t seeds, seconds;
	unsigned jobs, keep_going;
	bool quick; /* no shrinking */
};

/* What a search has come to. */
struct found {
	uint64_t next, done, failed;
	uint64_t counts[COUNTS];
};

/* Schedules for a job that has none, or the rest of those that it had. */
static void give_work(const struct search *s, struct found *f, struct job *jobs, unsigned j)
{
	struct sim_options o = s->options;
	uint64_t left = s->seeds - (f->next - o.seed), share = (left + s->jobs - 1) / s->jobs;

	if (!jobs[j].n) {
		jobs[j].seed = f->next;
		jobs[j].n = share < ROUND ? (unsigned)share : ROUND;
		f->next += jobs[j].n;
	}
	o.seed = jobs[j].seed;
	if (jobs[j].n)
		jobs[j].pid = start(j, &o, jobs[j].n);
}

/* A job has ended: its schedules up to the first one that failed. False: that was one too many. */
static bool take_results(const struct search *s, struct found *f, struct job *job, unsigned j,
	int status, struct sim_options *failed)
{
	bool fails = false;

	job->pid = 0;
	for (struct result *r = &results[j * ROUND]; job->n && !fails; r++) {
		fails = verdict(r, status) != NULL;
		for (unsigned i = 0; i < COUNTS; i++)
			f->counts[i] += r->counts[i];
		f->done++;
		if (fails) {
			printf("\nseed %" PRIu64 " fails: %s\n", job->seed, r->kind);
			*failed = s->options;
			failed->seed = job->seed;
		}
		job->seed++;
		job->n--;
	}
	if (!fails)
		return true;
	f->failed++;
	if (s->quick)
		print_report(j);
	return f->failed <= s->keep_going;
}

/* Ends a job before its time; what it has completed counts. */
static void stop_job(struct found *f, struct job *job, unsigned j)
{
	if (!job->pid)
		return;
	kill(job->pid, SIGKILL);
	waitpid(job->pid, NULL, 0);
	for (struct result *r = &results[j * ROUND]; job->n-- && r->complete; r++) {
		for (unsigned i = 0; i < COUNTS; i++)
			f->counts[i] += r->counts[i];
		f->done++;
	}
}

/* Many seeds. Number of failures. */
static uint64_t search(const struct search *s)
{
	struct job jobs[JOBS_MAX] = {{0}};
	struct found f = {.next = s->options.seed};
	uint64_t began = real_ms(), reported = began;
	unsigned running;
	bool enough = false;

	for (;;) {
		struct sim_options failed;
		int status;
		pid_t pid;
		unsigned j;

		running = 0;
		for (j = 0; j < s->jobs; j++) {
			if (!jobs[j].pid && !enough)
				give_work(s, &f, jobs, j);
			running += jobs[j].pid != 0;
		}
		if (!running)
			break;
		pid = waitpid(-1, &status, 0);
		for (j = 0; j < s->jobs && jobs[j].pid != pid; j++)
			;
		if (pid < 0 || j == s->jobs)
			continue;
		if (!take_results(s, &f, &jobs[j], j, status, &failed)) {
			/* The others first, whose places the shrinking uses. */
			for (j = 0; j < s->jobs; j++)
				stop_job(&f, &jobs[j], j);
			if (!s->quick && run_one(&failed))
				shrink(&failed, results[0].kind);
			else if (!s->quick)
				printf("by itself it does not fail: something of the one before it "
				       "was left\n");
			break;
		}
		if (real_ms() - reported >= 10000) {
			reported = real_ms();
			progress(f.done, f.failed, began, "\n");
		}
		enough |= s->seconds && real_ms() - began >= s->seconds * 1000;
	}
	progress(f.done, f.failed, began, "");
	printf(", seeds %" PRIu64 " to %" PRIu64 "\n", s->options.seed, f.next - 1);
	for (unsigned i = 0; i < COUNTS; i++)
		printf("%s%s %" PRIu64,
			i % 8 ? ", "
			: i   ? "\n  "
			      : "  ",
			count_names[i], f.counts[i]);
	printf("\n");
	return f.failed;
}

static uint64_t number(const char *text, const char *option)
{
	char *end;
	uint64_t n = strtoull(text, &end, 10);

	if (*end || !*text) {
		fprintf(stderr, "s3_simulation: %s %s: not a number; give one\n", option, text);
		exit(2);
	}
	return n;
}

static uint32_t classes(char *list)
{
	uint32_t bits = 0;

	for (char *name; (name = strsep(&list, ","));) {
		unsigned i = 0;

		while (i < SIM_CLASSES && strcmp(name, sim_class_names[i]) != 0)
			i++;
		if (i == SIM_CLASSES) {
			fprintf(stderr,
				"s3_simulation: --without %s: no such class; use some of:", name);
			for (i = 0; i < SIM_CLASSES; i++)
				fprintf(stderr, " %s", sim_class_names[i]);
			fprintf(stderr, "\n");
			exit(2);
		}
		bits |= 1u << i;
	}
	return bits;
}

/* Twice, with memory elsewhere the second time: is all of it the same? */
static int check_determinism(const struct search *s)
{
	for (uint64_t i = 0; i < s->seeds; i++) {
		struct sim_options o = s->options;
		unsigned second;
		uint64_t hash;

		o.seed += i;
		if (run_one(&o))
			continue; /* other tests report it */
		hash = results[0].hash;
		for (unsigned k = 1; k < 3000; k += 997)
			free(mmap(NULL, k * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
						MAP_FAILED
					? NULL
					: malloc(k));
		/* And after another one. */
		second = ROUND > 1 && o.seed;
		o.seed -= second;
		if (malloc(64 + 16 * (i % 64)) == NULL || run_some(&o, 1 + second) ||
			results[second].hash != hash) {
			printf("seed %" PRIu64 " runs otherwise the second time: %016" PRIx64
			       " and %016" PRIx64 "\n",
				o.seed + second, hash, results[second].hash);
			return 1;
		}
		o.seed += second;
		printf("%" PRIu64 " %016" PRIx64 "\n", o.seed, hash);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct search s = {.options = {.seed = 1, .max_steps = STEPS_MAX}, .seeds = 1, .jobs = 2};
	bool twice = false, given = false;

	command = argv[0];
	for (int i = 1; i < argc; i++) {
		const char *option = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";

		if (strcmp(option, "--trace") == 0) {
			s.options.trace = true;
			continue;
		}
		if (strcmp(option, "--twice") == 0) {
			twice = true;
			continue;
		}
		if (strcmp(option, "--no-shrink") == 0) {
			s.quick = true;
			continue;
		}
		i++;
		if (strcmp(option, "--seed") == 0) {
			s.options.seed = number(value, option);
		} else if (strcmp(option, "--seeds") == 0) {
			s.seeds = number(value, option);
			given = true;
		} else if (strcmp(option, "--seconds") == 0) {
			s.seconds = number(value, option);
		} else if (strcmp(option, "--jobs") == 0) {
			s.jobs = (unsigned)number(value, option);
		} else if (strcmp(option, "--ops") == 0) {
			s.options.ops = (unsigned)number(value, option);
		} else if (strcmp(option, "--lives") == 0) {
			s.options.lives = (unsigned)number(value, option);
		} else if (strcmp(option, "--keep-going") == 0) {
			s.keep_going = (unsigned)number(value, option);
		} else if (strcmp(option, "--limit") == 0) {
			limit_s = (unsigned)number(value, option);
		} else if (strcmp(option, "--without") == 0 && i < argc) {
			s.options.without = classes(argv[i]);
		} else {
			fprintf(stderr,
				"s3_simulation: %s: no such option; use --seed N --seeds N "
				"--seconds N --jobs N --ops N --lives N --without CLASS,... "
				"--keep-going FAILURES --limit SECONDS --trace --twice "
				"--no-shrink\n",
				option);
			return 2;
		}
	}
	if (s.seconds && !given)
		s.seeds = UINT64_MAX - s.options.seed;
	if (s.jobs < 1 || s.jobs > JOBS_MAX)
		s.jobs = 2;
	unsetenv("USERBLK_S3_FAILPOINT");
	results = mmap(NULL, JOBS_MAX * ROUND * sizeof *results, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (results == MAP_FAILED) {
		perror("mmap");
		return 2;
	}
	for (unsigned j = 0; j < s.jobs; j++)
		report_fds[j] = memfd_create("report", MFD_CLOEXEC);
	if (twice)
		return check_determinism(&s);
	return search(&s) ? 1 : 0;
}
