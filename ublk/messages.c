/* SPDX-License-Identifier: BSD-3-Clause */
#include "ublk/messages.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
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

void ublk_message(bool serves, int priority, const char *line)
{
	pthread_mutex_lock(&lock);
	if (serves && !is_read_at_once(STDERR_FILENO))
		syslog(priority, "%s", line);
	else
		fprintf(stderr, "userblk-ublk: %s\n", line);
	pthread_mutex_unlock(&lock);
}
