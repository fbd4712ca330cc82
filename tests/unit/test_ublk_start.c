/* SPDX-License-Identifier: BSD-3-Clause */
/* How a ublk server goes to the background. It ends where it would ask the driver. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/support.h"
#include "ublk/options.h"
#include "ublk/show.h"
#include "ublk/start.h"

int __wrap_ublk_open_control(struct ublk_control *c);
int __wrap_ublk_server_add(struct ublk_control *c, const struct params *params,
	const struct ublk_server_options *o, uint64_t cookie, const struct ublk_server_user *user);
ssize_t __real_getrandom(void *buffer, size_t length, unsigned flags);
ssize_t __wrap_getrandom(void *buffer, size_t length, unsigned flags);

static int opened = -1;		/* an exit code; -1: by the environment */
static int inherited[2];	/* what the caller has open, if any */
static const uint64_t *drawn;	/* random numbers, if any */
static bool is_ready;		/* the server can be used at once */
static uint64_t cookie_of_disk; /* what the driver gets */

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

/* An exit code. */
int __wrap_ublk_open_control(struct ublk_control *c)
{
	(void)c;
	if (inherited[0])
		return 50 + is_open(inherited[0]) + is_open(inherited[1]);
	if (opened >= 0)
		return opened;
	return getenv("NOTIFY_SOCKET") ? 42 : 43;
}

int __wrap_ublk_server_add(struct ublk_control *c, const struct params *params,
	const struct ublk_server_options *o, uint64_t cookie, const struct ublk_server_user *user)
{
	(void)c;
	(void)params;
	(void)o;
	cookie_of_disk = cookie;
	if (is_ready)
		user->ready(user->opaque, 7);
	return 0;
}

ssize_t __wrap_getrandom(void *buffer, size_t length, unsigned flags)
{
	if (!drawn || length != sizeof *drawn)
		return __real_getrandom(buffer, length, flags);
	memcpy(buffer, drawn++, length);
	return (ssize_t)length;
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

/* A lock would stay, and one who reads a pipe to its end would wait for the disk's. */
static void test_a_server_in_the_background_keeps_no_file_of_its_caller(void **state)
{
	(void)state;
	inherited[0] = open("/dev/null", O_RDONLY);
	inherited[1] = fcntl(inherited[0], F_DUPFD, 200);
	assert_int_equal(code_of_add(false), 50);
	/* Such as a socket of systemd. */
	assert_int_equal(code_of_add(true), 52);
	close(inherited[0]);
	close(inherited[1]);
	inherited[0] = 0;
	/* It can still say that it is ready. */
	opened = 0;
	is_ready = true;
	assert_int_equal(code_of_add(false), 0);
	is_ready = false;
	opened = -1;
}

static void test_marks_of_disks_are_no_small_numbers(void **state)
{
	static const uint64_t numbers[] = {5, 0xffffffff, 0x1234567800000001u};
	const struct ublk_options o = {.foreground = true};
	char *const argv[] = {NULL};

	(void)state;
	opened = 0;
	drawn = numbers;
	assert_int_equal(ublk_add(&o, argv), 0);
	assert_true(cookie_of_disk == 0x1234567800000001u);
	drawn = NULL;
	opened = -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_server_in_the_background_tells_no_unit),
		cmocka_unit_test(test_a_server_in_the_background_keeps_no_file_of_its_caller),
		cmocka_unit_test(test_marks_of_disks_are_no_small_numbers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
