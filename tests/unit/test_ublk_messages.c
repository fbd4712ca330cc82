/* SPDX-License-Identifier: BSD-3-Clause */
/* Where the messages of a ublk server go. The system's log is the test's. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include "tests/unit/support.h"
#include "ublk/messages.h"

void __wrap_syslog(int priority, const char *format, ...);
void __wrap___syslog_chk(int priority, int flag, const char *format, ...);

static char logged[256];
static int priority_of_logged;

static void keep(int priority, const char *format, va_list args)
{
	priority_of_logged = priority;
	vsnprintf(logged, sizeof logged, format, args);
}

void __wrap_syslog(int priority, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	keep(priority, format, args);
	va_end(args);
}

void __wrap___syslog_chk(int priority, int flag, const char *format, ...)
{
	va_list args;

	(void)flag;
	va_start(args, format);
	keep(priority, format, args);
	va_end(args);
}

/* Tells a line with fd as standard error. */
static void tell(int fd, bool serves)
{
	int kept = dup(STDERR_FILENO);

	logged[0] = 0;
	dup2(fd, STDERR_FILENO);
	ublk_message(serves, LOG_ERR, "line");
	dup2(kept, STDERR_FILENO);
	close(kept);
}

static void test_a_line_that_is_read_is_not_logged(void **state)
{
	int ends[2];

	(void)state;
	assert_int_equal(pipe(ends), 0);
	for (int serves = 0; serves <= 1; serves++) {
		char text[64] = "";

		tell(ends[1], serves);
		assert_true(read(ends[0], text, sizeof text - 1) > 0);
		assert_string_equal(text, "userblk-ublk: line\n");
		assert_string_equal(logged, "");
	}
	close(ends[0]);
	close(ends[1]);
}

static void test_the_journal_gets_the_priority(void **state)
{
	char stream[64], text[64] = "";
	struct stat st;
	int ends[2];

	(void)state;
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(fstat(ends[1], &st), 0);
	snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	tell(ends[1], true);
	assert_true(read(ends[0], text, sizeof text - 1) > 0);
	assert_string_equal(text, "<3>userblk-ublk: line\n");
	/* A program of the unit may have given this one another standard error. */
	setenv("JOURNAL_STREAM", "1:2", 1);
	memset(text, 0, sizeof text);
	tell(ends[1], true);
	assert_true(read(ends[0], text, sizeof text - 1) > 0);
	assert_string_equal(text, "userblk-ublk: line\n");
	unsetenv("JOURNAL_STREAM");
	close(ends[0]);
	close(ends[1]);
}

static void test_a_line_that_nobody_reads_is_logged(void **state)
{
	int null = open("/dev/null", O_WRONLY), ends[2];

	(void)state;
	tell(null, false);
	assert_string_equal(logged, ""); /* the user wants it so */
	tell(null, true);
	assert_string_equal(logged, "line");
	assert_int_equal(priority_of_logged, LOG_ERR);
	close(null);
	assert_int_equal(pipe(ends), 0);
	close(ends[0]);
	tell(ends[1], true);
	assert_string_equal(logged, "line");
	close(ends[1]);
}

/* The thread of a queue may be the one that tells it: the disk would stand still. */
static void test_a_reader_that_does_not_read_is_not_waited_for(void **state)
{
	char page[4096] = {0};
	int ends[2];

	(void)state;
	assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
	while (write(ends[1], page, sizeof page) > 0)
		;
	assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0);
	alarm(60);
	tell(ends[1], true);
	alarm(0);
	assert_string_equal(logged, "line");
	close(ends[0]);
	close(ends[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_line_that_is_read_is_not_logged),
		cmocka_unit_test(test_the_journal_gets_the_priority),
		cmocka_unit_test(test_a_line_that_nobody_reads_is_logged),
		cmocka_unit_test(test_a_reader_that_does_not_read_is_not_waited_for),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
