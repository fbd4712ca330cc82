/* SPDX-License-Identifier: BSD-3-Clause */
#include "ublk/claiming.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ublk/process.h"

#define STEP_MS 20

/* For how long a process may take to close its disk. */
#define RELEASE_MS 1000

static int open_claimed(const char *path)
{
	int fd = open(path, O_RDONLY | O_EXCL | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

int ublk_claim_for_parent(void)
{
	char path[PATH_MAX];
	ssize_t length;
	int fd = -1;

	/* Its end comes with that of the parent, too. */
	while ((length = recv(STDIN_FILENO, path, sizeof path - 1, 0)) > 0) {
		int answer;

		path[length] = 0;
		if (fd >= 0)
			close(fd);
		fd = open_claimed(path);
		answer = fd < 0 ? fd : 0;
		if (send(STDIN_FILENO, &answer, sizeof answer, MSG_NOSIGNAL) < 0)
			break;
	}
	return length < 0;
}

/* Starts the process. 0 or negative errno. */
static int begin(struct ublk_claim *claim)
{
	static char program[] = "userblk-ublk", command[] = UBLK_CLAIM_COMMAND;
	char *const argv[] = {program, command, NULL};
	int ends[2], r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		return -errno;
	r = ublk_process_spawn("/proc/self/exe", argv, ends[1], &claim->child);
	close(ends[1]);
	if (r == 0)
		claim->fd = ends[0];
	else
		close(ends[0]);
	return r;
}

/* The answer of the process, within the limits. False: it has ended without one. */
static bool await(struct ublk_claim *claim, const struct ublk_claim_limits *limits, int *answer)
{
	for (int waited = 0;; waited += STEP_MS) {
		struct pollfd answered = {.fd = claim->fd, .events = POLLIN};
		ssize_t length = recv(claim->fd, answer, sizeof *answer, MSG_DONTWAIT);

		if (length == sizeof *answer) {
			claim->asked = false;
			return true;
		}
		if (length >= 0 || (errno != EAGAIN && errno != EINTR))
			return false;
		*answer = limits->over && limits->over(limits->opaque) ? -ECANCELED : -ETIME;
		if (*answer == -ECANCELED || waited >= limits->timeout_ms)
			return true;
		poll(&answered, 1, STEP_MS);
	}
}

/* In this process. */
static int claim_here(struct ublk_claim *claim, const char *path)
{
	int fd = open_claimed(path);

	if (fd < 0)
		return fd;
	claim->fd = fd;
	claim->held = true;
	return 0;
}

int ublk_claim(struct ublk_claim *claim, const char *path, const struct ublk_claim_limits *limits)
{
	int r = 0;

	if (claim->held)
		return 0;
	if (claim->fd < 0)
		r = begin(claim);
	if (r < 0) /* such as without /proc */
		return r == -ENOENT ? claim_here(claim, path) : r;
	if (!claim->asked)
		claim->asked = send(claim->fd, path, strlen(path), MSG_NOSIGNAL) >= 0;
	if (claim->asked && await(claim, limits, &r)) {
		claim->held = r == 0;
		return r;
	}
	/* One that was killed, or could not begin. The next open may wait in the kernel, which must
	 * not happen here. */
	claim->asked = false;
	ublk_claim_release(claim);
	return -ECHILD;
}

void ublk_claim_release(struct ublk_claim *claim)
{
	int pidfd = claim->child > 0 ? (int)syscall(SYS_pidfd_open, claim->child, 0) : -1;

	if (claim->fd >= 0)
		close(claim->fd);
	/* One that waits in the kernel ends when that does. */
	if (claim->child > 0) {
		ublk_process_has_ended(pidfd, claim->asked ? 0 : RELEASE_MS);
		waitpid(claim->child, NULL, WNOHANG);
	}
	if (pidfd >= 0)
		close(pidfd);
	*claim = UBLK_NO_CLAIM;
}
