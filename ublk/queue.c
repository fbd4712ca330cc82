/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "ublk/queue.h"

#define SECTOR_SHIFT 9
/* As many entries in one call make the kernel gather what they have for a disk (io_uring's
 * IO_PLUG_THRESHOLD, and one). */
#define GATHERED 3

/* What a completion is about: the upper half of its user data; the lower half is the tag. */
enum event {
	EVENT_COMMAND, /* the kernel sends a request, or takes the tag away */
	EVENT_TRANSFER,
	EVENT_WAKE, /* workers have finished something */
};

/* A tag and the request that it carries. */
struct io {
	struct work work; /* for the workers */
	struct backend_request request;
	struct iovec iov; /* this tag's buffer, as long as the request */
	struct ublk_queue *queue;
	struct io *next_finished;
	uint64_t dirty;	  /* of the buffer: ublk_queue_dirty() */
	int result;	  /* of a finished request: 0 or negative errno */
	uint32_t moved;	  /* bytes that transfers have done */
	int failed;	  /* the error of a transfer that the device is to repeat */
	bool flush_after; /* FUA that the transfer itself cannot have */
	uint16_t tag;
};

struct ublk_queue {
	const struct ublk_dev *dev;
	/* For requests with data and for the others: the same for all that the queue gets. */
	void (*start_data)(struct io *io), (*start_other)(struct io *io);
	uint16_t id;
	cpu_set_t cpus;
	pthread_t thread;
	sem_t done, go; /* a stage of the start is done; the next one can begin */
	bool starts;	/* the next stage is no end */
	int error;	/* of the stage */

	struct io_uring ring;
	const struct ublksrv_io_desc *iods; /* one a tag, written by the kernel */
	size_t iods_size;
	char *buffers; /* NULL with zero copy */
	size_t buffers_size;
	struct io *ios;
	_Atomic unsigned
		in_service; /* requests that the kernel waits for; set by the thread alone */
	_Atomic uint64_t
		written; /* requests but reads that were answered; set by the thread alone */
	bool may_gather; /* this kernel leaves single requests to a thread of its own */
	bool gathers;	 /* some of what is submitted next is for a disk with an I/O scheduler */
	bool stopping;	 /* the kernel has begun to take tags away */
	struct work *for_workers, **last_for_workers;

	/* From the workers: requests that are finished, newest first. */
	_Atomic(struct io *) finished;
	int wake; /* eventfd */
	uint64_t wake_count;
};

/* ---- translation -------------------------------------------------------------- */

int ublk_queue_translate(const struct ublksrv_io_desc *d, struct backend_request *request)
{
	*request = (struct backend_request){
		.offset = d->start_sector << SECTOR_SHIFT,
		.length = (uint64_t)d->nr_sectors << SECTOR_SHIFT,
	};
	switch (d->op_flags & 0xff) {
	case UBLK_IO_OP_READ:
		request->op = BACKEND_READ;
		return 0;
	case UBLK_IO_OP_WRITE:
		request->op = BACKEND_WRITE;
		break;
	case UBLK_IO_OP_FLUSH:
		request->op = BACKEND_FLUSH;
		return 0;
	case UBLK_IO_OP_DISCARD:
		request->op = BACKEND_TRIM;
		break;
	case UBLK_IO_OP_WRITE_ZEROES:
		request->op = BACKEND_ZERO;
		if (!(d->op_flags & UBLK_IO_F_NOUNMAP))
			request->flags |= BACKEND_MAY_TRIM;
		break;
	default:
		return -EOPNOTSUPP;
	}
	if (d->op_flags & UBLK_IO_F_FUA)
		request->flags |= BACKEND_FUA;
	return 0;
}

int ublk_queue_answer(const struct backend_request *request, int result)
{
	if (result == 0 && (request->op == BACKEND_READ || request->op == BACKEND_WRITE))
		return (int)request->length;
	return result;
}

int ublk_queue_repeated(const struct backend_request *request, int transfer, int repeated)
{
	bool unsynced = request->flags & BACKEND_FUA && transfer == -EIO;

	return repeated == 0 && unsynced ? transfer : repeated;
}

uint64_t ublk_queue_dirty(const struct backend_request *request, int result, uint64_t dirty)
{
	switch (request->op) {
	case BACKEND_READ:
		if (result == 0)
			return request->length < dirty ? dirty : 0;
		return MAX(dirty, request->length);
	case BACKEND_WRITE: /* the kernel has put the data there */
		return MAX(dirty, request->length);
	default:
		return dirty;
	}
}

/* ---- the ring ------------------------------------------------------------------- */

static struct io_uring_sqe *get_sqe(struct ublk_queue *q)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&q->ring);

	/* There are entries for all tags at once, but a tag may need two in one round. */
	while (!sqe) {
		io_uring_submit(&q->ring);
		sqe = io_uring_get_sqe(&q->ring);
	}
	return sqe;
}

static uint64_t user_data(enum event event, uint16_t tag)
{
	return (uint64_t)event << 32 | tag;
}

static unsigned in_service(const struct ublk_queue *q)
{
	return atomic_load_explicit(&q->in_service, memory_order_relaxed);
}

static void count_in_service(struct ublk_queue *q, int more)
{
	atomic_store_explicit(&q->in_service, in_service(q) + (unsigned)more, memory_order_relaxed);
}

bool ublk_queue_serves(const struct ublk_queue *q)
{
	return in_service(q) > 0;
}

uint64_t ublk_queue_written(const struct ublk_queue *q)
{
	return atomic_load_explicit(&q->written, memory_order_relaxed);
}

/* Fetches the tag's next request, after the result of the last one, if any, is committed. */
static void fetch(struct ublk_queue *q, struct io *io, uint32_t op, int result)
{
	struct io_uring_sqe *sqe = get_sqe(q);
	struct ublksrv_io_cmd *command = (struct ublksrv_io_cmd *)sqe->cmd;

	memset(sqe, 0, sizeof *sqe);
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = 0; /* of the registered files */
	sqe->flags = IOSQE_FIXED_FILE;
	sqe->cmd_op = op;
	sqe->user_data = user_data(EVENT_COMMAND, io->tag);
	command->q_id = q->id;
	command->tag = io->tag;
	command->result = result;
	if (q->dev->zero_copy)
		sqe->addr =
			io->tag; /* the slot for the next request's pages: UBLK_F_AUTO_BUF_REG */
	else
		command->addr = (uintptr_t)io->iov.iov_base;
}

static void finish(struct io *io, int result)
{
	struct ublk_queue *q = io->queue;

	count_in_service(q, -1);
	if (io->request.op != BACKEND_READ)
		atomic_store_explicit(&q->written, ublk_queue_written(q) + 1, memory_order_relaxed);
	if (q->dev->info.reads_zeroes)
		io->dirty = ublk_queue_dirty(&io->request, result, io->dirty);
	fetch(q, io, UBLK_U_IO_COMMIT_AND_FETCH_REQ, ublk_queue_answer(&io->request, result));
}

static void arm_wake(struct ublk_queue *q)
{
	struct io_uring_sqe *sqe = get_sqe(q);

	io_uring_prep_read(sqe, q->wake, &q->wake_count, sizeof q->wake_count, 0);
	sqe->user_data = user_data(EVENT_WAKE, 0);
}

/* ---- serving --------------------------------------------------------------------- */

/* Makes the device's call and waits for it. 0 or negative errno. */
static int call(struct io *io)
{
	io->request.iov = &io->iov;
	io->request.iovcnt = 1;
	return backend_perform(io->queue->dev->device, &io->request);
}

/* Hands a result to the queue's thread. From any thread; io is no longer the caller's. */
static void complete(struct io *io, int result)
{
	struct ublk_queue *q = io->queue;
	struct io *newest = atomic_load(&q->finished);

	io->result = result;
	do
		io->next_finished = newest;
	while (!atomic_compare_exchange_weak(&q->finished, &newest, io));
	/* The thread that put the first one there wakes it for all that follow. */
	if (!newest)
		eventfd_write(q->wake, 1);
}

static void run_in_worker(struct work *work)
{
	struct io *io = (struct io *)work;

	/* After a transfer of its own, the queue wants only this. */
	if (io->flush_after)
		complete(io, backend_flush(io->queue->dev->device));
	else
		complete(io, ublk_queue_repeated(&io->request, io->failed, call(io)));
}

static void done_later(struct backend_request *request, int result)
{
	complete(request->opaque, result);
}

static void to_workers(struct io *io)
{
	struct ublk_queue *q = io->queue;

	io->work = (struct work){.run = run_in_worker};
	*q->last_for_workers = &io->work;
	q->last_for_workers = &io->work.next;
}

/* Starts the transfer of what is left of a request. 0 or negative errno. */
static int transfer(struct io *io)
{
	struct ublk_queue *q = io->queue;
	struct backend_request rest = {
		.op = io->request.op,
		.flags = io->request.flags,
		.offset = io->request.offset + io->moved,
		.length = io->request.length - io->moved,
	};
	struct backend_backing m;
	int r = backend_get_backing(q->dev->device, &rest, &m);

	if (r == -EOPNOTSUPP && rest.flags & BACKEND_FUA) {
		rest.flags &= ~BACKEND_FUA;
		r = backend_get_backing(q->dev->device, &rest, &m);
		io->flush_after = r == 0;
	}
	if (r)
		return r;

	struct io_uring_sqe *sqe = get_sqe(q);
	bool reads = rest.op == BACKEND_READ;

	if (q->dev->zero_copy) {
		/* The address is an offset into the registered pages. */
		if (reads)
			io_uring_prep_read_fixed(sqe, m.fd, (void *)(uintptr_t)io->moved,
				(unsigned)rest.length, m.offset, io->tag);
		else
			io_uring_prep_write_fixed(sqe, m.fd, (void *)(uintptr_t)io->moved,
				(unsigned)rest.length, m.offset, io->tag);
	} else {
		char *buffer = (char *)io->iov.iov_base + io->moved;

		if (reads)
			io_uring_prep_read(sqe, m.fd, buffer, (unsigned)rest.length, m.offset);
		else
			io_uring_prep_write(sqe, m.fd, buffer, (unsigned)rest.length, m.offset);
	}
	sqe->rw_flags = m.rwf;
	sqe->user_data = user_data(EVENT_TRANSFER, io->tag);
	q->gathers |= q->may_gather && m.is_scheduled;
	return 0;
}

static void transferred(struct io *io, int result)
{
	const struct ublk_dev *dev = io->queue->dev;
	int r = -EIO; /* the file has ended */

	if (result > 0) {
		io->moved += (uint32_t)result;
		if (io->moved < io->request.length) {
			r = transfer(io);
			if (r && r != -EOPNOTSUPP) /* the device has said why */
				finish(io, r);
			if (r != -EOPNOTSUPP)
				return;
		} else if (io->flush_after) {
			to_workers(io);
			return;
		} else {
			finish(io, 0);
			return;
		}
	} else if (result < 0) {
		r = result;
	}
	/* Only the device can say what it means; without a buffer, it cannot be asked. */
	if (dev->zero_copy) {
		finish(io, backend_transfer_failed(dev->device, &io->request, r));
	} else {
		/* Without a sync of its own, it was about its own data only. */
		io->failed = io->flush_after ? 0 : r;
		io->flush_after = false;
		to_workers(io);
	}
}

static void start_call(struct io *io)
{
	finish(io, call(io));
}

static void start_submit(struct io *io)
{
	io->request.iov = &io->iov;
	io->request.iovcnt = 1;
	io->request.done = done_later;
	io->request.opaque = io;
	backend_submit(io->queue->dev->device, &io->request);
}

static void start_transfer(struct io *io)
{
	int r = transfer(io);

	if (r == -EOPNOTSUPP && !io->queue->dev->zero_copy)
		to_workers(io);
	else if (r)
		finish(io, r);
}

static void choose_handlers(struct ublk_queue *q)
{
	const struct ublk_dev *dev = q->dev;

	q->start_other = to_workers;
	if (dev->mode == UBLK_MODE_URING && dev->info.never_waits)
		q->start_other = start_call;
	else if (dev->mode == UBLK_MODE_URING && dev->info.answers_later)
		q->start_other = start_submit;
	q->start_data =
		q->start_other == to_workers && dev->mapped ? start_transfer : q->start_other;
}

/* A request has come. */
static void start_request(struct io *io)
{
	struct ublk_queue *q = io->queue;
	const struct ublk_dev *dev = q->dev;
	int r = ublk_queue_translate(&q->iods[io->tag], &io->request);
	bool has_data = io->request.op == BACKEND_READ || io->request.op == BACKEND_WRITE;

	/* What was acknowledged is in the device's hands: in order, if not durable. */
	if (dev->weak_flush)
		io->request.flags &= ~BACKEND_FUA;
	if (dev->info.reads_zeroes && io->request.op == BACKEND_READ && io->dirty == 0)
		io->request.flags |= BACKEND_ZEROED;
	count_in_service(q, 1);
	io->moved = 0;
	io->failed = 0;
	io->flush_after = false;
	io->iov.iov_len = io->request.length;
	if (r || (dev->weak_flush && io->request.op == BACKEND_FLUSH))
		finish(io, r);
	else if (has_data)
		q->start_data(io);
	else
		q->start_other(io);
}

static void finish_all(struct ublk_queue *q)
{
	struct io *io = atomic_exchange(&q->finished, NULL), *next;

	for (; io; io = next) {
		next = io->next_finished;
		finish(io, io->result);
	}
}

static void handle_cqe(struct ublk_queue *q, uint64_t data, int result)
{
	struct io *io = &q->ios[data & 0xffff];

	switch ((enum event)(data >> 32)) {
	case EVENT_COMMAND:
		if (result == UBLK_IO_RES_OK)
			start_request(io);
		else
			q->stopping = true; /* UBLK_IO_RES_ABORT, or the end of the device */
		break;
	case EVENT_TRANSFER:
		transferred(io, result);
		break;
	case EVENT_WAKE:
		arm_wake(q);
		finish_all(q);
		break;
	}
}

/* Everything that has completed. Were there any? */
static bool handle_cqes(struct ublk_queue *q)
{
	struct io_uring_cqe *cqe;
	unsigned head, count = 0;

	io_uring_for_each_cqe(&q->ring, head, cqe)
	{
		handle_cqe(q, cqe->user_data, cqe->res);
		count++;
	}
	io_uring_cq_advance(&q->ring, count);
	if (q->for_workers) {
		workers_push(q->dev->workers, q->for_workers);
		q->for_workers = NULL;
		q->last_for_workers = &q->for_workers;
	}
	return count > 0;
}

/* Linux 6.12 does not, and takes 3 % more instructions for the entries; what lies between is not
 * known. */
static bool leaves_single_requests(void)
{
	struct utsname name;

	return uname(&name) == 0 && atoi(name.release) >= 7;
}

/*
 * Linux 7 leaves a request for a disk with an I/O scheduler to a thread of the kernel, unless
 * requests are gathered first (blk_mq_submit_bio()): for a single one, to switch to that thread
 * and back takes an eighth of all instructions. Entries that do nothing are cheaper.
 */
static void gather(struct ublk_queue *q)
{
	q->gathers = false;
	while (io_uring_sq_ready(&q->ring) < GATHERED) {
		struct io_uring_sqe *sqe = get_sqe(q);

		io_uring_prep_nop(sqe);
		sqe->flags = IOSQE_CQE_SKIP_SUCCESS;
	}
}

/*
 * Until the kernel takes the tags away. A tag whose result was committed after
 * that is no longer answered (QUIESCE_DEV), so that nobody waits for it.
 */
static void loop(struct ublk_queue *q)
{
	do {
		int r;

		if (q->gathers)
			gather(q);
		r = io_uring_submit_and_wait(&q->ring, 1);
		if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY) {
			backend_error(backend_host(q->dev->device), "queue %u: io_uring fails: %s",
				q->id, strerror(-r));
			_exit(1); /* the kernel deals with it as with any dead server */
		}
		handle_cqes(q);
	} while (!q->stopping || q->in_service > 0);
	do
		io_uring_submit_and_get_events(&q->ring);
	while (handle_cqes(q) || q->in_service > 0);
}

/* ---- start and end --------------------------------------------------------------- */

static size_t page_multiple(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (bytes + page - 1) / page * page;
}

static int map_descriptors(struct ublk_queue *q)
{
	const struct ublk_dev *dev = q->dev;
	size_t stride = page_multiple(UBLK_MAX_QUEUE_DEPTH * sizeof(struct ublksrv_io_desc));
	void *memory;

	q->iods_size = page_multiple(dev->depth * sizeof(struct ublksrv_io_desc));
	memory = mmap(NULL, q->iods_size, PROT_READ, MAP_SHARED | MAP_POPULATE, dev->fd,
		(off_t)(UBLKSRV_CMD_BUF_OFFSET + q->id * stride));
	if (memory == MAP_FAILED)
		return -errno;
	q->iods = memory;
	return 0;
}

static int map_buffers(struct ublk_queue *q)
{
	const struct ublk_dev *dev = q->dev;
	void *memory;

	if (dev->zero_copy)
		return 0;
	q->buffers_size = (size_t)dev->depth * dev->buffer_size;
	/* Pages come with the first request that needs them. */
	memory = mmap(NULL, q->buffers_size, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return -errno;
	q->buffers = memory;
	return 0;
}

static int set_up_ring(struct ublk_queue *q)
{
	const struct ublk_dev *dev = q->dev;
	struct io_uring_params params = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			 IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE,
		/* A command or a transfer of each tag, and the wake-up. */
		.cq_entries = 2u * dev->depth + 2,
	};
	int r = io_uring_queue_init_params(dev->depth + 2u, &q->ring, &params);

	if (r < 0)
		return r;
	r = io_uring_register_files(&q->ring, &dev->fd, 1);
	if (r == 0 && dev->zero_copy)
		r = io_uring_register_buffers_sparse(&q->ring, dev->depth);
	if (r == 0)
		r = io_uring_register_ring_fd(&q->ring) == 1 ? 0 : -EINVAL;
	if (r < 0)
		io_uring_queue_exit(&q->ring);
	return r;
}

static void wait_for(sem_t *semaphore)
{
	while (sem_wait(semaphore) < 0)
		; /* EINTR */
}

static int fetch_all_tags(struct ublk_queue *q)
{
	int r;

	for (uint16_t tag = 0; tag < q->dev->depth; tag++)
		fetch(q, &q->ios[tag], UBLK_U_IO_FETCH_REQ, 0);
	arm_wake(q);
	r = io_uring_submit(&q->ring);
	return r < 0 ? r : 0;
}

static void *run(void *opaque)
{
	struct ublk_queue *q = opaque;
	const struct ublk_dev *dev = q->dev;
	int r = q->error = set_up_ring(q);

	sem_post(&q->done);
	if (r < 0)
		return NULL;
	wait_for(&q->go);
	if (q->starts) {
		r = q->error = fetch_all_tags(q);
		sem_post(&q->done);
		if (r == 0)
			loop(q);
	}
	io_uring_queue_exit(&q->ring);
	if (q->starts && r == 0)
		dev->ended(dev->opaque);
	return NULL;
}

void ublk_queue_free(struct ublk_queue *q)
{
	if (q->iods)
		munmap((void *)q->iods, q->iods_size);
	if (q->buffers)
		munmap(q->buffers, q->buffers_size);
	if (q->wake >= 0)
		close(q->wake);
	sem_destroy(&q->done);
	sem_destroy(&q->go);
	free(q->ios);
	free(q);
}

int ublk_queue_new(
	const struct ublk_dev *dev, uint16_t id, const cpu_set_t *cpus, struct ublk_queue **out)
{
	struct ublk_queue *q = calloc(1, sizeof *q);
	pthread_attr_t attributes;
	int r;

	if (!q)
		return -ENOMEM;
	q->dev = dev;
	choose_handlers(q);
	q->id = id;
	q->last_for_workers = &q->for_workers;
	q->may_gather = leaves_single_requests();
	sem_init(&q->done, 0, 0);
	sem_init(&q->go, 0, 0);
	q->wake = eventfd(0, EFD_CLOEXEC);
	q->ios = calloc(dev->depth, sizeof *q->ios);
	r = q->wake < 0 ? -errno : q->ios ? map_buffers(q) : -ENOMEM;
	if (r < 0) {
		ublk_queue_free(q);
		return r;
	}
	for (uint16_t tag = 0; tag < dev->depth; tag++)
		q->ios[tag] = (struct io){.queue = q,
			.tag = tag,
			.iov.iov_base =
				q->buffers ? q->buffers + (size_t)tag * dev->buffer_size : NULL};
	pthread_attr_init(&attributes);
	if (CPU_COUNT(cpus) > 0)
		pthread_attr_setaffinity_np(&attributes, sizeof *cpus, cpus);
	r = -pthread_create(&q->thread, &attributes, run, q);
	pthread_attr_destroy(&attributes);
	if (r == -EINVAL) /* they are offline, or not in our cpuset */
		r = -pthread_create(&q->thread, NULL, run, q);
	if (r == 0) {
		wait_for(&q->done);
		r = q->error;
		if (r < 0)
			pthread_join(q->thread, NULL);
	}
	if (r < 0) {
		ublk_queue_free(q);
		return r;
	}
	*out = q;
	return 0;
}

int ublk_queue_start(struct ublk_queue *q)
{
	int r = map_descriptors(q);

	if (r < 0)
		return r;
	q->starts = true;
	sem_post(&q->go);
	wait_for(&q->done);
	return q->error;
}

void ublk_queue_join(struct ublk_queue *q)
{
	if (!q->starts)
		sem_post(&q->go);
	pthread_join(q->thread, NULL);
}
