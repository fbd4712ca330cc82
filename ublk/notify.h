/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages to systemd, if it has started the server: see sd_notify(3). */
#ifndef USERBLK_UBLK_NOTIFY_H
#define USERBLK_UBLK_NOTIFY_H

#include <pthread.h>
#include <stdbool.h>

/* One message, such as "READY=1". Does nothing for other parents. */
void ublk_notify(const char *message);

/* Tells systemd during the end of a server that it goes on. */
struct ublk_extension {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool runs, over;
	bool (*works)(void *opaque);
	void *opaque;
};

/*
 * From here on, the unit's limit for its end does not count while works() says that there is
 * progress. It is asked every second, from a thread of its own.
 */
void ublk_extension_begin(struct ublk_extension *e, bool (*works)(void *opaque), void *opaque);
/* From now on works() says so, and the one before it is called no more. */
void ublk_extension_follow(struct ublk_extension *e, bool (*works)(void *opaque));
/* Nothing, if it was not begun. */
void ublk_extension_end(struct ublk_extension *e);

#endif
