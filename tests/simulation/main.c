/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs schedules, each in a process of its own, and shrinks the first one that fails. */
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/simulation/runner.h"
#include "tests/simulation/sim.h"
#include "tests/simulation/wrap.h"
#include "tests/simulation/world.h"

#define JOBS_MAX  64
#define KIND_MAX  64
#define MEMORY	  (UINT64_C(2) << 30)
#define STEPS_MAX 6000000

/* What a schedule leaves. */
struct result {
	uint64_t hash, steps;
	uint64_t counts[COUNTS];
	char kind[KIND_MAX];
};

struct job {
	pid_t pid;
	uint64_t seed;
};

static struct result *results; /* shared, by job */
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

static void run_schedule(unsigned job, const struct sim_options *options)
{
	const struct itimerval time = {.it_value.tv_sec = limit_s};
	struct rlimit memory = {MEMORY, MEMORY};

	mine = &results[job];
	memset(mine, 0, sizeof *mine);
	report_fd = report_fds[job];
	/* The trace of one that is looked at is for reading. */
	if (ftruncate(report_fd, 0) || lseek(report_fd, 0, SEEK_SET))
		_exit(1);
#if !defined(__SANITIZE_ADDRESS__)
	setrlimit(RLIMIT_AS, &memory);
#else
	(void)memory;
#endif
	/* What is large comes from the kernel as zeroes, and is never touched as a whole. */
	mallopt(M_MMAP_THRESHOLD, SIM_LARGE);
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	/* Of its own time: other load says nothing about it. */
	setitimer(ITIMER_PROF, &time, NULL);
	sim_options = *options;
	sim_run(world_run, NULL);
	mine->hash = sim_trace_hash();
	mine->steps = sim_steps();
	_exit(0);
}

/* ---- the runner
 * ------------------------------------------------------------------------------------ */

static pid_t start(unsigned job, const struct sim_options *options)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(2);
	}
	if (pid == 0)
		run_schedule(job, options);
	return pid;
}

/* What came of it: NULL, or what it failed with. */
static const char *verdict(unsigned job, int status)
{
	struct result *r = &results[job];

	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return NULL;
	if (!r->kind[0] && WIFSIGNALED(status))
		snprintf(r->kind, sizeof r->kind, "signal %d%s", WTERMSIG(status),
			WTERMSIG(status) == SIGPROF ? " (took too long)" : "");
	else if (!r->kind[0])
		snprintf(r->kind, sizeof r->kind, "exit status %d", WEXITSTATUS(status));
	return r->kind;
}

static const char *run_one(const struct sim_options *options)
{
	int status;
	pid_t pid = start(0, options);

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return verdict(0, status);
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

/* Many seeds. Number of failures. */
static uint64_t search(const struct search *s)
{
	struct job jobs[JOBS_MAX] = {{0}};
	uint64_t began = real_ms(), told = began, next = s->options.seed, done = 0, failed = 0;
	uint64_t counts[COUNTS] = {0}, hash = 0;
	unsigned running = 0;
	bool enough = false;

	for (;;) {
		int status;
		pid_t pid;
		unsigned j;

		for (j = 0; j < s->jobs && !enough; j++)
			if (!jobs[j].pid && next - s->options.seed < s->seeds) {
				struct sim_options o = s->options;

				o.seed = jobs[j].seed = next++;
				jobs[j].pid = start(j, &o);
				running++;
			}
		if (!running)
			break;
		pid = waitpid(-1, &status, 0);
		for (j = 0; j < s->jobs && jobs[j].pid != pid; j++)
			;
		if (pid < 0 || j == s->jobs)
			continue;
		running--;
		done++;
		jobs[j].pid = 0;
		hash = (hash ^ results[j].hash) * 0x9e3779b97f4a7c15u;
		for (unsigned i = 0; i < COUNTS; i++)
			counts[i] += results[j].counts[i];
		if (verdict(j, status)) {
			struct sim_options o = s->options;

			o.seed = jobs[j].seed;
			failed++;
			printf("\nseed %" PRIu64 " fails: %s\n", o.seed, results[j].kind);
			if (s->quick)
				print_report(j);
			if (failed > s->keep_going) {
				/* The others first, whose places the shrinking uses. */
				enough = true;
				while (running && waitpid(-1, &status, 0) > 0)
					running--;
				if (!s->quick)
					shrink(&o, results[j].kind);
				break;
			}
		}
		if (real_ms() - told >= 10000) {
			told = real_ms();
			progress(done, failed, began, "\n");
		}
		enough |= s->seconds && real_ms() - began >= s->seconds * 1000;
	}
	progress(done, failed, began, "");
	printf(", seeds %" PRIu64 " to %" PRIu64 "\n", s->options.seed, next - 1);
	for (unsigned i = 0; i < COUNTS; i++)
		printf("%s%s %" PRIu64,
			i % 8 ? ", "
			: i   ? "\n  "
			      : "  ",
			count_names[i], counts[i]);
	printf("\n");
	return failed;
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
		uint64_t hash;

		o.seed += i;
		if (run_one(&o))
			continue; /* told by others */
		hash = results[0].hash;
		for (unsigned k = 1; k < 3000; k += 997)
			free(mmap(NULL, k * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
						MAP_FAILED
					? NULL
					: malloc(k));
		if (malloc(64 + 16 * (i % 64)) == NULL || run_one(&o) || results[0].hash != hash) {
			printf("seed %" PRIu64 " runs otherwise the second time: %016" PRIx64
			       " and %016" PRIx64 "\n",
				o.seed, hash, results[0].hash);
			return 1;
		}
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
	results = mmap(NULL, JOBS_MAX * sizeof *results, PROT_READ | PROT_WRITE,
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
