/* SPDX-License-Identifier: BSD-3-Clause */
/* A disk of Linux's nbd driver whose requests come over a socket pair. */
#ifndef USERBLK_BUSE_DISK_H
#define USERBLK_BUSE_DISK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "backends/backend.h"

struct disk {
	char path[32];
	int node;	  /* /dev/nbdN */
	int sockets[2];	  /* the kernel's end, ours */
	unsigned timeout; /* s after which the kernel gives a request up; 0: never */
	uint64_t size;	  /* bytes, whole blocks */
	pthread_t holder;
	pthread_t main;	    /* gets SIGUSR1 when the disk has ended */
	_Atomic bool ended; /* the kernel has let the disk go */
	int result;	    /* of that; 0 or negative errno */
};

/*
 * Gives one end of a socket pair to /dev/nbdN and waits until the disk has its
 * size; requests then come to disk->sockets[1], which must be served at once. path: NULL,
 * the first free one. The caller has blocked all signals that it takes by
 * sigwait, SIGUSR1 among them. 0 or negative errno, reported through host; -EBUSY:
 * mounted, or connected already; nothing was changed.
 */
int disk_attach(struct disk *disk, const char *path, unsigned timeout,
	const struct backend_info *info, const struct backend_host *host);
/* What was written to the disk and its partitions is in the device. 0 or negative errno. */
int disk_sync(const struct disk *disk);
/* Asks the kernel to say goodbye; the disk ends once that was served. */
void disk_disconnect(const struct disk *disk);
/*
 * Has a disk ended because its process was stopped, frozen or traced, and went on? The call that
 * keeps the disk ends then, as by a signal, and finds a disk that is closed when it is made again.
 */
bool disk_was_interrupted(const struct disk *disk);
/* For a disk that has ended or whose socket was shut down. Waits for the kernel. */
void disk_detach(struct disk *disk);

#endif
