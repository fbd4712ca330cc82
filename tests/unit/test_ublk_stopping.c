/* SPDX-License-Identifier: BSD-3-Clause */
/* What comes of the process that stops a ublk disk; it is a shell here. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/support.h"
#include "ublk/process.h"
#include "ublk/stopping.h"

int __wrap_ublk_process_spawn(const char *program, char *const *argv, int input, pid_t *child);
int __wrap_ublk_control_stop(
	struct ublk_control *c, uint32_t id, bool (*over)(void *opaque), void *opaque);

static const char *script;
static unsigned stopped; /* by the test's own process */

int __real_ublk_process_spawn(const char *program, char *const *argv, int input, pid_t *child);
int __wrap_ublk_process_spawn(const char *program, char *const *argv, int input, pid_t *child)
{
	static char shell[] = "sh", option[] = "-c";
	char text[64], pid[16];
	char *const words[] = {shell, option, text, NULL};

	assert_string_equal(program, "/proc/self/exe");
	assert_string_equal(argv[1], "stop-for-server");
	assert_string_equal(argv[2], "5");
	assert_string_equal(argv[3], "abc");
	snprintf(pid, sizeof pid, "%d", (int)getpid());
	assert_string_equal(argv[4], pid);
	assert_null(argv[5]);
	snprintf(text, sizeof text, "%s", script);
	return __real_ublk_process_spawn(shell, words, input, child);
}

int __wrap_ublk_control_stop(
	struct ublk_control *c, uint32_t id, bool (*over)(void *opaque), void *opaque)
{
	(void)c;
	(void)over;
	(void)opaque;
	assert_int_equal(id, 5);
	stopped++;
	return 0;
}

static bool never(void *opaque)
{
	(void)opaque;
	return false;
}

static int stop(const char *text)
{
	struct ublk_control control = {0};

	script = text;
	stopped = 0;
	return ublk_stop_elsewhere(&control, 5, 0xabc, never, NULL);
}

static void test_its_exit_code_is_the_errno(void **state)
{
	(void)state;
	assert_int_equal(stop("exit 0"), 0);
	assert_int_equal(stop("exit 19"), -ENODEV);
	assert_int_equal(stopped, 0);
}

/* 127: the loader has not found a library of it. */
static void test_one_that_cannot_begin_is_no_answer(void **state)
{
	static const char *const scripts[] = {"exit 127", "exit 126", "exit 255", "kill -KILL $$"};

	(void)state;
	for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
		assert_int_equal(stop(scripts[i]), 0);
		assert_int_equal(stopped, 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_its_exit_code_is_the_errno),
		cmocka_unit_test(test_one_that_cannot_begin_is_no_answer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
