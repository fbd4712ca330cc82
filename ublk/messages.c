/* SPDX-License-Identifier: BSD-3-Clause */
#include "ublk/messages.h"

#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <syslog.h>
#include <unistd.h>

/* What is asked for one line must not change by another one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Not if it is /dev/null, as in the background, or a pipe that is full or has no reader. */
static bool is_read_at_once(int fd)
{
	struct pollfd error = {.fd = fd, .events = POLLOUT};
	struct stat st;

	if (fstat(fd, &st) < 0 || (S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)))
		return false;
	return poll(&error, 1, 0) > 0 && error.revents == POLLOUT;
}

/* A line that begins with its priority, which systemd's journal reads (sd-daemon(3)). */
static bool is_journal(int fd)
{
	const char *stream = getenv("JOURNAL_STREAM");
	uintmax_t device, inode;
	struct stat st;

	return stream && sscanf(stream, "%ju:%ju", &device, &inode) == 2 && fstat(fd, &st) == 0 &&
	       st.st_dev == device && st.st_ino == inode;
}

void ublk_message(bool serves, int priority, const char *line)
{
	pthread_mutex_lock(&lock);
	if (serves && !is_read_at_once(STDERR_FILENO))
		syslog(priority, "%s", line);
	else if (is_journal(STDERR_FILENO))
		fprintf(stderr, "<%d>userblk-ublk: %s\n", priority, line);
	else
		fprintf(stderr, "userblk-ublk: %s\n", line);
	pthread_mutex_unlock(&lock);
}
