/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "programs/other_files.h"
#include "tests/unit/support.h"

#define MOST 64

/* As a sandbox does that does not know the call. */
static void refuse_close_range(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_close_range, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {.len = sizeof rules / sizeof *rules, .filter = rules};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) < 0)
		_exit(2);
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

/* In a process with all descriptors below MOST: are only those left that should be? */
static bool closes(bool refused, int first, int one, int other)
{
	int status;
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0) {
		for (int fd = 0; fd < MOST; fd++)
			if (!is_open(fd) && dup2(STDOUT_FILENO, fd) < 0)
				_exit(2);
		if (refused)
			refuse_close_range();
		close_other_files(first, one, other);
		for (int fd = 0; fd < MOST; fd++)
			if (is_open(fd) != (fd < first || fd == one || fd == other))
				_exit(1);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 2);
	return WEXITSTATUS(status) == 0;
}

static void test_all_but_two(void **state)
{
	static const struct {
		int first, one, other;
	} cases[] = {{3, 5, 9}, {3, 9, 5}, {3, 3, 4}, {3, 63, -1}, {3, -1, -1}, {3, 3, -1},
		{1, 0, -1}, {1, 7, 7}, {0, -1, -1}, {10, 4, 20}};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int refused = 0; refused < 2; refused++)
			assert_true(closes(refused, cases[i].first, cases[i].one, cases[i].other));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_but_two),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
