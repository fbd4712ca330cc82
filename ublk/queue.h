/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One hardware queue of a ublk device: a thread with its own io_uring, which
 * takes requests from the kernel and hands back their results.
 */
#ifndef USERBLK_UBLK_QUEUE_H
#define USERBLK_UBLK_QUEUE_H

#include <sched.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

#include "backends/backend.h"
#include "ublk/uapi.h"
#include "workers/workers.h"

/* How a request is served. */
enum ublk_mode {
	UBLK_MODE_WORKERS, /* worker threads, by the device's synchronous calls */
	UBLK_MODE_URING,   /* the queue's own thread, wherever nothing makes it wait */
};

/* What all queues of a device share. */
struct ublk_dev {
	struct backend *device;
	struct backend_info info;
	enum ublk_mode mode;
	bool mapped;	 /* reads and writes go to the device's file: backend_get_backing() */
	bool zero_copy;	 /* mapped, from and to the client's own pages */
	bool weak_flush; /* flushes and FUA are barriers only */
	struct workers *workers; /* NULL when there is nothing for them to do */
	int fd;			 /* /dev/ublkcN */
	uint16_t depth;		 /* tags of each queue */
	uint32_t buffer_size;	 /* bytes of the largest request */
	/* Called once by each queue's thread when it ends. From that thread. */
	void (*ended)(void *opaque);
	void *opaque;
};

struct ublk_queue;

/*
 * Queue number id with its thread and all memory that it needs, of which the kernel's driver does
 * not know yet. cpus: where it runs if it can. 0 or a negative errno.
 */
int ublk_queue_new(
	const struct ublk_dev *dev, uint16_t id, const cpu_set_t *cpus, struct ublk_queue **out);
/* Returns once the thread has offered all its tags to the kernel. 0 or a negative errno. */
int ublk_queue_start(struct ublk_queue *queue);
/* Has it a request that it has not answered? From any thread. */
bool ublk_queue_serves(const struct ublk_queue *queue);
/* How many requests but reads it has answered. From any thread. */
uint64_t ublk_queue_written(const struct ublk_queue *queue);
/* Waits for the end of the thread: the kernel has taken the device away, or it was not started. */
void ublk_queue_join(struct ublk_queue *queue);
/* After the join, and after the end of all threads that may still be answering. */
void ublk_queue_free(struct ublk_queue *queue);

/* What the kernel's description of a request asks of the device. -EOPNOTSUPP: nothing it knows. */
int ublk_queue_translate(
	const struct ublksrv_io_desc *description, struct backend_request *request);
/* The result for the kernel: bytes or negative errno. result: 0 or negative errno. */
int ublk_queue_answer(const struct backend_request *request, int result);
/*
 * The result of a request that the device has repeated after a transfer of the queue's own failed.
 * A durable write stays failed if its transfer may have written the data, but could not sync them:
 * the disk may have lost earlier writes, and reports that once.
 */
int ublk_queue_repeated(const struct backend_request *request, int transfer, int repeated);
/*
 * For a device whose reads are zeroes: how many bytes of a buffer, from its first on, may hold
 * something else after a request. dirty: before it; result: 0 or negative errno.
 */
uint64_t ublk_queue_dirty(const struct backend_request *request, int result, uint64_t dirty);

#endif
