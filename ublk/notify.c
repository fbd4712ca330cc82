/* SPDX-License-Identifier: BSD-3-Clause */
#include "ublk/notify.h"

#include <err.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* More than a server waits for a device that does nothing, before it ends without. */
#define EXTENSION "EXTEND_TIMEOUT_USEC=60000000"

static const char *socket_name(void)
{
	const char *name = getenv("NOTIFY_SOCKET");

	return name && name[0] ? name : NULL;
}

void ublk_notify(const char *message)
{
	const char *path = socket_name();
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	size_t length = path ? strlen(path) : 0;
	int fd;

	if (length == 0 || length >= sizeof to.sun_path)
		return;
	memcpy(to.sun_path, path, length);
	if (to.sun_path[0] == '@')
		to.sun_path[0] = 0;
	length += offsetof(struct sockaddr_un, sun_path);
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || sendto(fd, message, strlen(message), MSG_NOSIGNAL, (struct sockaddr *)&to,
			      (socklen_t)length) < 0)
		warnx("NOTIFY_SOCKET=%s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
}

static void *extend(void *opaque)
{
	struct ublk_extension *e = opaque;

	pthread_mutex_lock(&e->lock);
	while (!e->over) {
		struct timespec until;

		if (e->works(e->opaque))
			ublk_notify(EXTENSION);
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec++;
		pthread_cond_timedwait(&e->changed, &e->lock, &until);
	}
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

void ublk_extension_begin(struct ublk_extension *e, bool (*works)(void *opaque), void *opaque)
{
	pthread_condattr_t monotonic;

	if (!socket_name())
		return;
	*e = (struct ublk_extension){.works = works, .opaque = opaque};
	pthread_mutex_init(&e->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&e->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	e->runs = pthread_create(&e->thread, NULL, extend, e) == 0;
}

void ublk_extension_follow(struct ublk_extension *e, bool (*works)(void *opaque))
{
	if (!e->runs)
		return;
	pthread_mutex_lock(&e->lock);
	e->works = works;
	pthread_mutex_unlock(&e->lock);
}

void ublk_extension_end(struct ublk_extension *e)
{
	if (!e->runs)
		return;
	pthread_mutex_lock(&e->lock);
	e->over = true;
	pthread_cond_signal(&e->changed);
	pthread_mutex_unlock(&e->lock);
	pthread_join(e->thread, NULL);
	e->runs = false;
}
