/* SPDX-License-Identifier: BSD-3-Clause */
/* How long a run of userblk-ops and userblk-kv was: until its last step, whenever that is noticed.
 * And processes of it that end before it, or that it leaves behind. */
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness/ops/crew.h"
#include "tests/unit/support.h"

#define STEPS	13 /* of 1 ms each */
#define MS	1000000
#define LATE_NS (2 * MS)

const char command_name[] = "test_crew";

/* When the last step was over, and how many there are before the work is out. */
struct times {
	uint64_t last;
	unsigned steps;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static enum crew_step begin(struct crew_worker *w)
{
	(void)w;
	return CREW_DONE;
}

static enum crew_step step(struct crew_worker *w)
{
	struct times *times = *(struct times *const *)w->task;
	const struct timespec each = {.tv_nsec = MS};

	if (w->done == times->steps)
		return CREW_OUT_OF_WORK;
	nanosleep(&each, NULL);
	times->last = now_ns();
	return CREW_DONE;
}

/* As of a session that is closed. */
static void end(struct crew_worker *w)
{
	const struct timespec closing = {.tv_nsec = 20 * MS};

	(void)w;
	nanosleep(&closing, NULL);
}

static void run_crew(uint64_t count, const char *how)
{
	static struct crew_results results;
	static const char *const kinds[] = {"step"};
	struct times times = {.steps = STEPS}, *const task = &times;
	const struct crew crew = {
		.name = "test",
		.task = &task,
		.workers = 1,
		.threads = true,
		.unpinned = true,
		.seconds = 60,
		.interval = 1,
		.count = count,
		.kinds = kinds,
		.kind_count = 1,
		.begin = begin,
		.step = step,
		.end = end,
	};

	assert_true(crew_run(&crew, &results));
	assert_string_equal(results.end, how);
	assert_int_equal(results.total.ops, STEPS);
	assert_in_range(results.end_ns, times.last, times.last + LATE_NS);
	free(results.intervals);
}

static void test_a_run_ends_with_its_last_step(void **state)
{
	(void)state;
	run_crew(0, "first-done");
	run_crew(STEPS, "all-done");
}

/* What the second of two processes does in its third step. */
static enum crew_step leave(struct crew_worker *w)
{
	void (*const *how)(void) = w->task;
	const struct timespec each = {.tv_nsec = MS};

	nanosleep(&each, NULL);
	if (w->index == 1 && w->done == 2)
		(*how)();
	return CREW_DONE;
}

static void nothing(struct crew_worker *w)
{
	(void)w;
}

static void exit_alone(void)
{
	_exit(0);
}

static void be_killed(void)
{
	raise(SIGKILL);
}

static void test_a_run_fails_with_the_process_that_leaves_it(void **state)
{
	static void (*const ways[])(void) = {exit_alone, be_killed};
	static const char *const kinds[] = {"step"};
	static struct crew_results results;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		const struct crew crew = {
			.name = "test",
			.task = &ways[i],
			.workers = 2,
			.unpinned = true,
			.seconds = 60,
			.interval = 60,
			.kinds = kinds,
			.kind_count = 1,
			.begin = begin,
			.step = leave,
			.end = nothing,
		};
		uint64_t before = now_ns();

		signal(SIGCHLD, SIG_IGN); /* as one may inherit it */
		assert_false(crew_run(&crew, &results));
		assert_int_equal(crew_status(&results, false), 1);
		assert_in_range(now_ns() - before, 1, UINT64_C(30000) * MS);
		free(results.intervals);
	}
}

/* A parent that ends before its worker has asked to end with it. */
struct orphan {
	_Atomic pid_t parent, worker;
};

static struct orphan *orphan;

int __real_prctl(int option, ...);
int __wrap_prctl(int option, ...);

int __wrap_prctl(int option, ...)
{
	va_list arguments;
	unsigned long argument;

	va_start(arguments, option);
	argument = (unsigned long)va_arg(arguments, int);
	va_end(arguments);
	if (orphan && option == PR_SET_PDEATHSIG) {
		orphan->worker = getpid();
		kill(orphan->parent, SIGKILL);
		while (getppid() == orphan->parent)
			usleep(1000);
	}
	return __real_prctl(option, argument);
}

static enum crew_step rest(struct crew_worker *w)
{
	const struct timespec each = {.tv_nsec = MS};

	(void)w;
	nanosleep(&each, NULL);
	return CREW_DONE;
}

/* Waits for the process up to 10 s. */
static bool has_ended(pid_t pid)
{
	for (int i = 0; i < 1000; i++) {
		if (waitpid(pid, NULL, WNOHANG) == pid)
			return true;
		usleep(10000);
	}
	return false;
}

static void test_a_worker_whose_parent_has_ended_ends_too(void **state)
{
	static const char *const kinds[] = {"step"};
	static struct crew_results results;
	const struct crew crew = {
		.name = "test",
		.workers = 1,
		.unpinned = true,
		.seconds = 60,
		.interval = 60,
		.kinds = kinds,
		.kind_count = 1,
		.begin = begin,
		.step = rest,
		.end = nothing,
	};
	bool ended;

	(void)state;
	signal(SIGCHLD, SIG_DFL);
	assert_int_equal(__real_prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	orphan = mmap(
		NULL, sizeof *orphan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(orphan, MAP_FAILED);

	pid_t parent = fork();

	if (parent == 0) {
		orphan->parent = getpid();
		crew_run(&crew, &results);
		_exit(0);
	}
	assert_true(has_ended(parent));
	assert_int_not_equal(orphan->worker, 0);
	ended = has_ended(orphan->worker);
	if (!ended)
		kill(orphan->worker, SIGKILL);
	munmap(orphan, sizeof *orphan);
	orphan = NULL;
	assert_true(ended);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_run_ends_with_its_last_step),
		cmocka_unit_test(test_a_run_fails_with_the_process_that_leaves_it),
		cmocka_unit_test(test_a_worker_whose_parent_has_ended_ends_too),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
