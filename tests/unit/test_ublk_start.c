/* SPDX-License-Identifier: BSD-3-Clause */
/* How a ublk server goes to the background. It ends where it would ask the driver. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/support.h"
#include "ublk/options.h"
#include "ublk/show.h"
#include "ublk/start.h"

int __wrap_ublk_open_control(struct ublk_control *c);

/* An exit code. */
int __wrap_ublk_open_control(struct ublk_control *c)
{
	(void)c;
	return getenv("NOTIFY_SOCKET") ? 42 : 43;
}

/* A server is started with the socket of a unit in its environment. */
static int code_of_add(bool foreground)
{
	const struct ublk_options o = {.foreground = foreground};
	char *const argv[] = {NULL};
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		setenv("NOTIFY_SOCKET", "/run/notify", 1);
		_exit(ublk_add(&o, argv));
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* It would ask systemd for more time for the unit that has started it, and may not be ending. */
static void test_a_server_in_the_background_tells_no_unit(void **state)
{
	(void)state;
	assert_int_equal(code_of_add(true), 42);
	assert_int_equal(code_of_add(false), 43);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_server_in_the_background_tells_no_unit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
