/* SPDX-License-Identifier: BSD-3-Clause */
#include "asker.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "begin.h"
#include "programs/other_files.h"

static struct {
	pthread_mutex_t lock;
	_Atomic(pid_t) pid; /* 0: none */
	int fd; /* a message to it is a question and a path, an int from it the answer */
} asker = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Whose files are synced next, wherever it is mounted by then. */
static int written = -1;

/* An error may be an old one, of a file that is closed: those that are open are synced each. */
static int write_all(const char *path)
{
	written = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (written != -1)
		syncfs(written);
	else /* of a directory that its owner may not list */
		written = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return written == -1 ? errno : 0;
}

static int sync_file(const char *name)
{
	const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	int fd = openat(written, name, O_RDONLY | flags), error;

	if (fd == -1 && errno == EACCES)
		fd = openat(written, name, O_WRONLY | flags);
	if (fd == -1)
		return errno;
	error = fdatasync(fd) == -1 ? errno : 0;
	close(fd);
	return error;
}

static int answer(char question, const char *path)
{
	struct statvfs st;

	switch (question) {
	case ASK_WRITE:
		return write_all(path);
	case ASK_SYNC:
		return sync_file(path);
	default:
		return statvfs(path, &st) == -1 ? errno : 0;
	}
}

static _Noreturn void answer_questions(int fd)
{
	char message[1 + PATH_MAX];
	int error;

	session_ignore_signals(); /* which a terminal sends to both: it ends with the daemon */
	prctl(PR_SET_NAME, "userblk-asker");
	/* Whatever it was started in can be unmounted. */
	if (chdir("/") == -1 || dup2(fd, STDIN_FILENO) == -1)
		_exit(EXIT_FAILURE);
	close_other_files(STDOUT_FILENO, -1, -1);
	while (read(STDIN_FILENO, message, sizeof(message)) > 0) {
		error = answer(message[0], message + 1);
		if (write(STDIN_FILENO, &error, sizeof(error)) == -1)
			break;
	}
	_exit(EXIT_SUCCESS);
}

int asker_start(void)
{
	int ends[2], error = 0;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == -1)
		return errno;
	asker.fd = ends[0];
	pid = fork();
	if (pid == 0)
		answer_questions(ends[1]);
	if (pid == -1) {
		error = errno;
		close(ends[0]);
	} else {
		atomic_store(&asker.pid, pid);
	}
	close(ends[1]);
	return error;
}

int asker_ask(enum asker_question question, const char *path)
{
	char kind = (char)question;
	const struct iovec parts[] = {{&kind, 1}, {(char *)(uintptr_t)path, strlen(path) + 1}};
	const struct msghdr message = {
		.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = 2};
	int error;

	if (strlen(path) >= PATH_MAX)
		return ENAMETOOLONG;
	pthread_mutex_lock(&asker.lock);
	if (sendmsg(asker.fd, &message, MSG_NOSIGNAL) == -1 ||
		read(asker.fd, &error, sizeof(error)) != sizeof(error))
		error = EIO;
	pthread_mutex_unlock(&asker.lock);
	return error;
}

bool asker_is(pid_t pid)
{
	return pid == atomic_load(&asker.pid);
}

void asker_stop(void)
{
	pid_t pid = atomic_exchange(&asker.pid, 0);

	if (pid == 0)
		return;
	kill(pid, SIGKILL); /* it may have been stopped */
	while (waitpid(pid, NULL, 0) == -1 && errno == EINTR)
		;
}
