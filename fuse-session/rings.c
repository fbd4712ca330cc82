/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <liburing.h>
#include <linux/fuse.h>

#include "begin.h"
#include "session.h"

/* Requests that one CPU may have under way. */
#define DEPTH 16

/* What comes by the device once the rings serve is forgets: those of this time come together. */
#define FORGETS_NS 1000000

/* Bytes of a write that is done at once when no other request is there. */
#define MAX_AT_ONCE (128 << 10)

#define PAGE		  4096
#define MIN_PAYLOAD	  8192 /* FUSE_MIN_READ_BUFFER */
#define DEFAULT_MAX_PAGES 32
#define FLAGS2_OVER_URING (1u << (41 - 32))

/* Marks of file I/O among completions, in the low bits of the entry's address. */
#define IO_LINKED 1 /* to the answer */
#define IO_WRITE  2
#define IO_MARKS  3

/* linux/fuse.h has these since Linux 6.14. */
#ifndef FUSE_OVER_IO_URING
struct fuse_uring_ent_in_out {
	uint64_t flags;
	uint64_t commit_id;
	uint32_t payload_sz;
	uint32_t padding;
	uint64_t reserved;
};
struct fuse_uring_req_header {
	char in_out[128]; /* struct fuse_in_header, then struct fuse_out_header */
	char op_in[128];  /* the arguments of fixed size */
	struct fuse_uring_ent_in_out ring_ent_in_out;
};
struct fuse_uring_cmd_req {
	uint64_t flags;
	uint64_t commit_id;
	uint16_t qid;
	uint8_t padding[6];
};
enum { FUSE_IO_URING_CMD_REGISTER = 1, FUSE_IO_URING_CMD_COMMIT_AND_FETCH = 2 };
#endif

/* A place for one request. The memory stays where it is: the kernel knows it. */
struct entry {
	struct queue *queue;
	struct fuse_uring_req_header *header; /* a page, and one more before the payload */
	char *payload;
	struct iovec memory[2]; /* both, as the kernel wants to hear of them */
	uint32_t command;	/* the last one */
	uint64_t commit_id;
	uint64_t unique; /* of the request at work; 0: none */
};

struct queue {
	uint16_t id; /* of the CPU */
	struct io_uring ring;
	bool has_ring;
	pthread_t thread;
	int event; /* eventfd: it is time to start, or to stop */
	void *memory;
	size_t memory_size;
	unsigned at_hand; /* completions, of which one is at work */
	unsigned writes;  /* under way in the ring */
	struct entry entries[DEPTH];
};

static struct {
	struct fuse_session *session;
	const struct rings_files *files; /* NULL: all requests go through libfuse */
	/* Known from the kernel's first request, until it is answered. */
	bool offered;
	uint64_t init_unique;
	size_t payload_size;
	struct queue *queues;
	unsigned count;
	unsigned threads;
	atomic_bool serving, stopping;
} rings;

static _Thread_local struct queue *own_queue; /* of a thread that serves one */

bool rings_serve_this(void)
{
	return own_queue != NULL;
}

/* ---- submissions: all by the thread of the queue ---- */

/* There is one: each entry has at most two at a time. */
static struct io_uring_sqe *new_sqe(struct queue *queue)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&queue->ring);

	if (!sqe)
		abort();
	return sqe;
}

static void submit_command(struct entry *entry, uint32_t command)
{
	struct io_uring_sqe *sqe = new_sqe(entry->queue);
	struct fuse_uring_cmd_req *req = (void *)sqe->cmd;

	entry->command = command;
	/* The session's descriptor is the only registered one. */
	io_uring_prep_rw(IORING_OP_URING_CMD, sqe, 0, NULL, 0, 0);
	sqe->flags = IOSQE_FIXED_FILE;
	sqe->cmd_op = command;
	memset(req, 0, sizeof(*req));
	req->qid = entry->queue->id;
	if (command == FUSE_IO_URING_CMD_REGISTER) {
		sqe->addr = (uintptr_t)entry->memory;
		sqe->len = 2;
	} else {
		req->commit_id = entry->commit_id;
	}
	io_uring_sqe_set_data(sqe, entry);
}

/* The answer: error, 0 or negative, and length bytes of payload. */
static void prepare_answer(struct entry *entry, int error, size_t length)
{
	struct fuse_out_header out = {
		.len = (uint32_t)(sizeof(out) + length),
		.error = error,
		.unique = entry->commit_id,
	};

	memcpy(entry->header->in_out, &out, sizeof(out));
	entry->header->ring_ent_in_out.payload_sz = (uint32_t)length;
	entry->unique = 0;
}

/* Answers what was done here; error as the source has given it. */
static void submit_answer(struct entry *entry, int error, size_t length)
{
	prepare_answer(entry, -session_error(-error), length);
	submit_command(entry, FUSE_IO_URING_CMD_COMMIT_AND_FETCH);
}

static void submit_poll(struct queue *queue)
{
	struct io_uring_sqe *sqe = new_sqe(queue);

	io_uring_prep_poll_add(sqe, queue->event, POLLIN);
	io_uring_sqe_set_data(sqe, NULL);
}

/* I/O whose success is all that the answer waits for. */
static void link_to_answer(struct io_uring_sqe *sqe, const struct entry *entry)
{
	sqe->flags |= IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS;
	io_uring_sqe_set_data64(sqe, (uintptr_t)entry | IO_LINKED);
}

/* ---- requests ---- */

/* Reads what is left of a read, of which length bytes have come, and answers it. */
static void end_read(struct entry *entry, size_t length)
{
	const struct fuse_read_in *arg = (const void *)entry->header->op_in;
	struct fuse_file_info fi = {.fh = arg->fh, .flags = (int)arg->flags};
	ssize_t result = session_read(
		rings.files->read_fd(&fi), entry->payload, arg->size, (off_t)arg->offset, length);

	submit_answer(entry, result < 0 ? (int)result : 0, result < 0 ? 0 : (size_t)result);
}

/*
 * The answer is linked to the read: the kernel sends it when the read is
 * complete. After a short or failed one it does not, and says so.
 */
static void start_read(struct entry *entry)
{
	const struct fuse_read_in *arg = (const void *)entry->header->op_in;
	struct fuse_file_info fi = {.fh = arg->fh, .flags = (int)arg->flags};
	uint32_t size = arg->size;
	uint64_t offset = arg->offset;
	struct io_uring_sqe *sqe;

	if (rings.files->in_memory) {
		end_read(entry, 0);
		return;
	}
	sqe = new_sqe(entry->queue);
	io_uring_prep_read(sqe, rings.files->read_fd(&fi), entry->payload, size, offset);
	link_to_answer(sqe, entry);
	submit_answer(entry, 0, size);
}

static void start_fsync(struct entry *entry)
{
	const struct fuse_fsync_in *arg = (const void *)entry->header->op_in;
	struct fuse_file_info fi = {.fh = arg->fh};
	struct io_uring_sqe *sqe = new_sqe(entry->queue);

	io_uring_prep_fsync(sqe, rings.files->sync_fd(&fi),
		arg->fsync_flags & FUSE_FSYNC_FDATASYNC ? IORING_FSYNC_DATASYNC : 0);
	link_to_answer(sqe, entry);
	submit_answer(entry, 0, 0);
}

/* The I/O of entry ended with result: a write, or what broke the link to its answer. */
static void end_io(struct entry *entry, unsigned mark, int result)
{
	const struct fuse_read_in *arg = (const void *)entry->header->op_in;
	size_t length = result < 0 ? 0 : (size_t)result;

	/* What breaks a link without an error is a read. */
	if (mark == IO_LINKED && length > 0 &&
		session_read_may_go_on(arg->size, (off_t)arg->offset, length)) {
		end_read(entry, length);
		return;
	}
	if (mark == IO_WRITE && result >= 0) {
		struct fuse_write_out out = {.size = (uint32_t)result};

		memcpy(entry->payload, &out, sizeof(out));
		length = sizeof(out);
	}
	submit_answer(entry, result < 0 ? result : 0, length);
}

/*
 * Does a write at once: by the ring, a worker of the kernel completes it and
 * wakes this thread. Returns whether all of it was written; not where it had to
 * wait for the file's lock or for space, while nobody of this CPU is served.
 */
static bool write_at_once(struct entry *entry, int fd, uint32_t size, uint64_t offset, int rwf)
{
	struct iovec iov = {entry->payload, size};
	ssize_t length = pwritev2(fd, &iov, 1, (off_t)offset, RWF_NOWAIT | rwf);

	if (length != (ssize_t)size)
		return false;
	end_io(entry, IO_WRITE, (int)length);
	return true;
}

/*
 * A write that waits for a device. The answer needs the memory
 * of the data, so it cannot be prepared. Returns whether it was one.
 */
static bool start_write(struct entry *entry)
{
	struct queue *queue = entry->queue;
	const struct fuse_write_in *arg = (const void *)entry->header->op_in;
	struct fuse_file_info fi = {
		.fh = arg->fh,
		.flags = (int)arg->flags,
		.writepage = (arg->write_flags & FUSE_WRITE_CACHE) != 0,
	};
	struct io_uring_sqe *sqe;
	const struct fuse_in_header *in = (const void *)entry->header->in_out;
	int fd = rings.files->write_fd(&fi, in->nodeid, arg->write_flags & FUSE_WRITE_KILL_SUIDGID);

	if (fd == -1)
		return false;
	if (queue->at_hand == 1 && queue->writes == 0 && arg->size <= MAX_AT_ONCE &&
		write_at_once(entry, fd, arg->size, arg->offset, session_write_flags(&fi)))
		return true;
	queue->writes++;
	sqe = new_sqe(queue);
	io_uring_prep_write(sqe, fd, entry->payload, arg->size, arg->offset);
	sqe->rw_flags = session_write_flags(&fi);
	io_uring_sqe_set_data64(sqe, (uintptr_t)entry | IO_WRITE);
	return true;
}

/* Hands a request to libfuse, which wants it in one piece. */
static void process(struct entry *entry, const struct fuse_in_header *in)
{
	size_t payload = entry->header->ring_ent_in_out.payload_sz;
	size_t fixed = in->len - sizeof(*in) - payload;
	struct fuse_buf buf = {
		.size = in->len,
		.mem = entry->payload - fixed - sizeof(*in),
	};

	memcpy(entry->payload - fixed, entry->header->op_in, fixed);
	memcpy(buf.mem, in, sizeof(*in));
	fuse_session_process_buf(rings.session, &buf);
}

static void start_request(struct entry *entry)
{
	const struct fuse_in_header *in = (const void *)entry->header->in_out;

	entry->commit_id = entry->header->ring_ent_in_out.commit_id;
	switch (rings.files ? in->opcode : 0) {
	case FUSE_READ:
		start_read(entry);
		return;
	case FUSE_FSYNC:
		start_fsync(entry);
		return;
	case FUSE_WRITE:
		if (start_write(entry))
			return;
		break;
	}
	entry->unique = in->unique;
	process(entry, in);
}

/* ---- answers from libfuse ---- */

/* The entry of request unique; the thread that received it answers it. NULL: it came by the device.
 */
static struct entry *find_entry(uint64_t unique)
{
	for (unsigned i = 0; own_queue && i < DEPTH; i++)
		if (own_queue->entries[i].unique == unique)
			return &own_queue->entries[i];
	return NULL;
}

static void wake(struct queue *queue)
{
	uint64_t one = 1;

	if (write(queue->event, &one, sizeof(one)) == -1)
		session_warn("eventfd: %s", strerror(errno));
}

static ssize_t answer(
	struct entry *entry, const struct fuse_out_header *out, const struct iovec *iov, int count)
{
	size_t length = 0;

	for (int i = 0; i < count; i++) {
		if (iov[i].iov_len > rings.payload_size - length) {
			errno = EMSGSIZE;
			return -1;
		}
		memcpy(entry->payload + length, iov[i].iov_base, iov[i].iov_len);
		length += iov[i].iov_len;
	}
	prepare_answer(entry, out->error, length);
	submit_command(entry, FUSE_IO_URING_CMD_COMMIT_AND_FETCH);
	return (ssize_t)(sizeof(*out) + length);
}

/* ---- the threads ---- */

/* Returns false when the file system is gone, or it is time to stop. */
static bool complete(uint64_t data, int result)
{
	struct entry *entry = (struct entry *)(uintptr_t)(data & ~(uint64_t)IO_MARKS);

	if (!entry)
		return false; /* rings_stop() */
	if (data & IO_MARKS) {
		if (data & IO_WRITE)
			entry->queue->writes--;
		end_io(entry, data & IO_MARKS, result);
	} else if (result == 0) {
		start_request(entry);
	} else if (result == -EAGAIN || result == -EINTR) {
		submit_command(entry, entry->command);
	} else {
		if (result != -ENOTCONN && result != -ECONNABORTED) {
			session_warn("io_uring: %s; the file system stops", strerror(-result));
			session_end_now();
		}
		return false;
	}
	return true;
}

static void *serve_queue(void *arg)
{
	struct queue *queue = arg;
	struct io_uring_cqe *cqe;
	bool alive = true;
	char name[16];
	uint64_t count;
	cpu_set_t cpus;

	own_queue = queue;
	snprintf(name, sizeof(name), "fuse-ring-%u", queue->id); /* as libfuse calls its own */
	pthread_setname_np(pthread_self(), name);
	/* Where the kernel puts the requests of its CPU. */
	CPU_ZERO(&cpus);
	CPU_SET(queue->id, &cpus);
	pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus);

	/* Until the kernel has its answer to the first request. */
	if (read(queue->event, &count, sizeof(count)) == -1)
		return NULL;
	for (unsigned i = 0; i < DEPTH; i++)
		submit_command(&queue->entries[i], FUSE_IO_URING_CMD_REGISTER);
	submit_poll(queue);
	while (alive && !atomic_load(&rings.stopping)) {
		unsigned head, done = 0;

		io_uring_submit_and_wait(&queue->ring, 1);
		queue->at_hand = io_uring_cq_ready(&queue->ring);
		io_uring_for_each_cqe(&queue->ring, head, cqe)
		{
			alive = complete(io_uring_cqe_get_data64(cqe), cqe->res) && alive;
			done++;
		}
		io_uring_cq_advance(&queue->ring, done);
	}
	return NULL;
}

/* ---- beginning and end ---- */

/* Gives queue its ring and memory; what there is goes with rings_stop(). */
static bool prepare_queue(struct queue *queue, unsigned id)
{
	/*
	 * The kernel's threads for I/O that waits, such as fdatasync(2), which ext4 does for many
	 * at once: as many as requests, not 4 for each CPU. 0: the other kind stays as it is.
	 */
	unsigned workers[2] = {DEPTH, 0};
	size_t size = 2 * PAGE + rings.payload_size;
	int fd = fuse_session_fd(rings.session);
	char *memory;

	queue->id = (uint16_t)id;
	queue->memory_size = DEPTH * size;
	/* Pages are taken as they are used. */
	memory = mmap(NULL, queue->memory_size, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	queue->memory = memory == MAP_FAILED ? NULL : memory;
	queue->event = eventfd(0, EFD_CLOEXEC);
	if (!queue->memory || queue->event == -1)
		return false;
	/* For each entry, its command and its I/O; and the eventfd. */
	queue->has_ring = io_uring_queue_init(2 * DEPTH + 1, &queue->ring,
				  IORING_SETUP_SQE128 | IORING_SETUP_SUBMIT_ALL) == 0;
	if (!queue->has_ring || io_uring_register_files(&queue->ring, &fd, 1) != 0 ||
		io_uring_register_iowq_max_workers(&queue->ring, workers) != 0)
		return false;
	for (unsigned i = 0; i < DEPTH; i++) {
		struct entry *entry = &queue->entries[i];

		entry->queue = queue;
		entry->header = (void *)(memory + i * size);
		entry->payload = memory + i * size + 2 * PAGE;
		entry->memory[0] = (struct iovec){entry->header, sizeof(*entry->header)};
		entry->memory[1] = (struct iovec){entry->payload, rings.payload_size};
	}
	return pthread_create(&queue->thread, NULL, serve_queue, queue) == 0;
}

unsigned rings_capacity(void)
{
	return DEPTH * (unsigned)get_nprocs_conf();
}

/* Prepares all, for the largest payload that init allows. */
static bool prepare(const struct fuse_init_out *init)
{
	size_t pages = init->flags & FUSE_MAX_PAGES ? init->max_pages : DEFAULT_MAX_PAGES;

	rings.payload_size = pages * PAGE;
	if (rings.payload_size < init->max_write)
		rings.payload_size = (init->max_write + PAGE - 1) & ~(size_t)(PAGE - 1);
	if (rings.payload_size < MIN_PAYLOAD)
		rings.payload_size = MIN_PAYLOAD;
	/* The possible CPUs, as glibc counts them since 2.35: the kernel wants a queue for each. */
	rings.count = (unsigned)get_nprocs_conf();
	rings.queues = calloc(rings.count, sizeof(*rings.queues));
	if (!rings.queues)
		return false;
	for (unsigned i = 0; i < rings.count; i++)
		rings.queues[i].event = -1;
	while (rings.threads < rings.count) {
		if (!prepare_queue(&rings.queues[rings.threads], rings.threads))
			return false;
		rings.threads++;
	}
	return true;
}

void rings_stop(void)
{
	atomic_store(&rings.stopping, true);
	for (unsigned i = 0; i < rings.threads; i++) {
		wake(&rings.queues[i]);
		pthread_join(rings.queues[i].thread, NULL);
	}
	for (unsigned i = 0; i < rings.count; i++) {
		struct queue *queue = &rings.queues[i];

		if (queue->has_ring)
			io_uring_queue_exit(&queue->ring);
		if (queue->event != -1)
			close(queue->event);
		if (queue->memory)
			munmap(queue->memory, queue->memory_size);
	}
	free(rings.queues);
	rings.queues = NULL;
	rings.count = 0;
	rings.threads = 0;
}

/* Sends the answer to the first request, with io_uring in it if all is prepared. */
static ssize_t answer_init(int fd, struct iovec *iov, int count)
{
	struct fuse_init_out *init = iov[1].iov_base;
	bool ready = iov[1].iov_len == sizeof(*init) && prepare(init);
	ssize_t result;

	if (ready) {
		init->flags |= FUSE_INIT_EXT;
		init->flags2 |= FLAGS2_OVER_URING;
	} else {
		rings_stop();
	}
	result = writev(fd, iov, count);
	atomic_store(&rings.serving, ready);
	for (unsigned i = 0; i < rings.threads; i++)
		wake(&rings.queues[i]);
	return result;
}

/* ---- custom I/O of libfuse ---- */

/* The kernel wakes a reader for each file that it forgets, but puts those together that wait. */
static ssize_t device_read(int fd, void *buffer, size_t size, void *data)
{
	static _Thread_local bool forgot;
	const struct fuse_in_header *in = buffer;
	const struct fuse_init_in *init = (const void *)(in + 1);
	ssize_t result;

	(void)data;
	if (forgot && atomic_load(&rings.serving))
		nanosleep(&(struct timespec){.tv_nsec = FORGETS_NS}, NULL);
	result = read(fd, buffer, size);
	forgot = result >= (ssize_t)sizeof(*in) &&
		 (in->opcode == FUSE_FORGET || in->opcode == FUSE_BATCH_FORGET);
	if (result >= (ssize_t)(sizeof(*in) + sizeof(*init)) && in->opcode == FUSE_INIT) {
		rings.offered = (init->flags & FUSE_INIT_EXT) && (init->flags2 & FLAGS2_OVER_URING);
		rings.init_unique = in->unique;
	}
	return result;
}

static ssize_t device_writev(int fd, struct iovec *iov, int count, void *data)
{
	const struct fuse_out_header *out = iov[0].iov_base;
	struct entry *entry = out->unique ? find_entry(out->unique) : NULL;

	(void)data;
	if (entry)
		return answer(entry, out, iov + 1, count - 1);
	if (rings.offered && out->unique == rings.init_unique && !out->error && count == 2) {
		rings.offered = false;
		return answer_init(fd, iov, count);
	}
	return writev(fd, iov, count);
}

int rings_offer(struct fuse_session *fuse, const struct rings_files *files)
{
	static const struct fuse_custom_io io = {.read = device_read, .writev = device_writev};

	/* Mounting sets the descriptor that counts. */
	rings.session = fuse;
	rings.files = files;
	return fuse_session_custom_io(fuse, &io, STDIN_FILENO);
}
