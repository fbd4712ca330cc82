/* SPDX-License-Identifier: BSD-3-Clause */
#include "database.h"

#include <aio.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <time.h>

#define MS	 1000000L
#define SECOND	 UINT64_C(1000000000)
#define LOOK_NS	 (50 * MS)    /* how long at most until a sleeping thread sees the end of the run */
#define PATIENCE (1 * SECOND) /* that aiowait waits at most */
#define BACKLOG	 5	      /* s of events that are kept for threads that come late */
/* Threads of glibc's that write at a time, in each process. */
#define AIO_THREADS 20
#define PRIVATE	    0600

struct write_behind {
	struct write_behind *next; /* older */
	const struct flowop *op;   /* whose it is, for messages */
	bool counted;
	struct aiocb control;
};

/* ---- writes ---- */

enum step flow_aiowrite(struct worker *w, unsigned i)
{
	const struct flowop *op = &w->def->flowops[i];
	struct io io;
	enum step step = flowop_prepare_io(w, i, &io);

	if (step != STEP_OK)
		return step;

	struct write_behind *write = malloc(sizeof *write);

	if (write == NULL)
		return flowop_fail(w, op, "write", NULL);
	*write = (struct write_behind){.op = op,
		.next = w->writes,
		.control = {.aio_fildes = io.fd,
			.aio_buf = io.buffer,
			.aio_nbytes = io.size,
			.aio_offset = io.offset,
			.aio_sigevent.sigev_notify = SIGEV_NONE}};

	uint64_t begin = flow_now();

	if (aio_write(&write->control) < 0) {
		free(write);
		return flowop_fail(w, op, "write", NULL);
	}
	w->writes = write;
	write->counted = flowop_count(w, i, begin, io.size);
	return STEP_OK;
}

#define ANY (-1) /* descriptor */

/*
 * Takes up to todo writes to a descriptor that have ended off the list. Sets *first to one that
 * has not, and *done to how many have.
 */
static enum step reap(
	struct worker *w, int fd, unsigned todo, unsigned *done, const struct write_behind **first)
{
	*done = 0;
	*first = NULL;
	for (struct write_behind **link = &w->writes; *link != NULL && *done < todo;) {
		struct write_behind *write = *link;

		if (fd != ANY && write->control.aio_fildes != fd) {
			link = &write->next;
			continue;
		}

		int state = aio_error(&write->control);

		if (state == EINPROGRESS) {
			*first = write;
			link = &write->next;
			continue;
		}

		ssize_t written = aio_return(&write->control);
		const struct flowop *op = write->op;
		bool all = written == (ssize_t)write->control.aio_nbytes;

		*link = write->next;
		free(write);
		if (!all) {
			errno = state != 0 ? state : ENOSPC;
			return flowop_fail(w, op, "write", NULL);
		}
		++*done;
	}
	return STEP_OK;
}

/* Until a write that is under way has ended, or it is time to look at something else. */
static void await_write(const struct write_behind *write)
{
	const struct aiocb *const list[] = {&write->control};
	const struct timespec look = {.tv_nsec = LOOK_NS};

	aio_suspend(list, 1, &look);
}

enum step flow_aiowait(struct worker *w, unsigned i)
{
	const struct write_behind *first;
	unsigned outstanding = 0, done;
	uint64_t begin = flow_now();

	for (const struct write_behind *write = w->writes; write != NULL; write = write->next)
		outstanding++;

	/* It is for half of them, or for one. On Linux Filebench looks which have ended, and does
	 * not wait.
	 */
	for (unsigned todo = outstanding < 2 ? outstanding : outstanding / 2;;) {
		enum step step = reap(w, ANY, todo, &done, &first);

		if (step != STEP_OK)
			return step;
		todo -= done;
		if (todo == 0 || first == NULL || w->control->original ||
			flow_now() - begin > PATIENCE)
			break;
		if (flowop_stopped(w))
			return STEP_STOPPED;
		await_write(first);
	}
	flowop_count(w, i, begin, 0);
	return STEP_OK;
}

enum step database_settle(struct worker *w, int fd)
{
	const struct write_behind *first;
	unsigned done;

	for (;;) {
		enum step step = reap(w, fd, UINT_MAX, &done, &first);

		if (step != STEP_OK || first == NULL)
			return step;
		if (flowop_stopped(w))
			return STEP_STOPPED;
		await_write(first);
	}
}

void database_stopped(struct worker *w)
{
	for (const struct write_behind *write = w->writes; write != NULL; write = write->next) {
		if (!write->counted || aio_error(&write->control) != EINPROGRESS)
			continue;
		atomic_fetch_add(&w->control->unfinished_writes, 1);
		atomic_fetch_add(&w->control->unfinished_bytes, write->control.aio_nbytes);
	}
}

bool database_end(struct worker *w)
{
	const struct write_behind *first;
	unsigned done;
	bool ok = true;

	while (w->writes != NULL) {
		ok = reap(w, ANY, UINT_MAX, &done, &first) == STEP_OK && ok;
		if (first != NULL)
			await_write(first);
	}
	return ok;
}

/* ---- semaphores ---- */

bool database_add_blocks(struct control *control, const struct thread_def *def, unsigned thread)
{
	for (unsigned i = 0; i < def->count; i++) {
		const struct flowop *op = &def->flowops[i];
		unsigned n = control->block_count;

		if (op->type != FLOWOP_SEMBLOCK)
			continue;

		struct block *more = realloc(control->blocks, (n + 1) * sizeof *more);

		if (more == NULL)
			return false;
		more[n] = (struct block){.row = op->row,
			.thread = thread,
			.posts = (unsigned short)(2 * n),
			.room = (unsigned short)(2 * n + 1),
			.highwater = op->highwater.value};
		control->blocks = more;
		control->block_count = n + 1;
	}
	return true;
}

bool database_start(struct control *control, struct flow_error *error)
{
	const struct aioinit threads = {.aio_threads = AIO_THREADS, .aio_num = AIO_THREADS};

	aio_init(&threads);
	if (control->block_count == 0)
		return true;
	/* In a namespace of its own the set ends with the program, however that ends. */
	unshare(CLONE_NEWIPC);
	control->semaphores = semget(IPC_PRIVATE, (int)(2 * control->block_count), PRIVATE);
	if (control->semaphores < 0)
		return flow_error_set(error, "cannot make %u semaphores: %m; lower instances=",
			2 * control->block_count);
	for (unsigned i = 0; i < control->block_count; i++) {
		union {
			int value;
		} room = {.value = (int)control->blocks[i].highwater};

		if (semctl(control->semaphores, control->blocks[i].posts, SETVAL, 0) < 0 ||
			semctl(control->semaphores, control->blocks[i].room, SETVAL, room) < 0)
			return flow_error_set(error, "a semaphore cannot be set: %m");
	}
	return true;
}

void database_stop(const struct control *control)
{
	if (control->semaphores >= 0)
		semctl(control->semaphores, 0, IPC_RMID); /* or they are gone already */
}

/* Waits until all of it can be done at once. At the end of the run the set is gone. */
static enum step change(
	struct worker *w, const struct flowop *op, struct sembuf *changes, size_t count)
{
	while (!flowop_stopped(w)) {
		if (semop(w->control->semaphores, changes, count) == 0)
			return STEP_OK;
		if (errno != EINTR && !flowop_stopped(w))
			return flowop_fail(w, op, "semaphore", NULL);
	}
	return STEP_STOPPED;
}

enum step flow_semblock(struct worker *w, unsigned i)
{
	const struct flowop *op = &w->def->flowops[i];
	const struct block *block = w->control->blocks;
	short value = (short)op->value.value;

	while (block->row != op->row || block->thread != w->number)
		block++;

	struct sembuf room = {.sem_num = block->room, .sem_op = value};
	struct sembuf posts = {.sem_num = block->posts, .sem_op = (short)-value};
	uint64_t begin = flow_now();

	enum step step = change(w, op, &room, 1);

	if (step == STEP_OK)
		step = change(w, op, &posts, 1);
	if (step != STEP_OK)
		return step;
	flowop_count_other(w, i, begin);
	return STEP_OK;
}

enum step flow_sempost(struct worker *w, unsigned i)
{
	const struct flowop *op = &w->def->flowops[i];
	short value = (short)op->value.value;
	uint64_t begin = flow_now();

	for (unsigned n = 0; n < w->control->block_count; n++) {
		const struct block *block = &w->control->blocks[n];
		/* Both or neither: a thread that waits for room has not posted yet. */
		struct sembuf both[] = {{.sem_num = block->posts, .sem_op = value},
			{.sem_num = block->room, .sem_op = (short)-value}};

		if (block->row != (unsigned)op->target)
			continue;

		enum step step = change(w, op, both, op->blocking ? 2 : 1);

		if (step != STEP_OK)
			return step;
	}
	flowop_count_other(w, i, begin);
	return STEP_OK;
}

/* ---- time ---- */

enum step flow_hog(struct worker *w, unsigned i)
{
	volatile char *byte = w->buffer;
	uint64_t begin = flow_now();

	for (uint64_t n = w->def->memsize > 0 ? w->flows[i].value : 0; n > 0; n--)
		*byte = 1;
	flowop_count_other(w, i, begin);
	return STEP_OK;
}

enum step flow_eventlimit(struct worker *w, unsigned i)
{
	struct control *c = w->control;

	if (c->event_rate <= 0)
		return STEP_OK;

	uint64_t begin = flow_now(), start = atomic_load(&c->event_start);
	uint64_t oldest = 0, mine = atomic_load(&c->events), taken;

	if (begin - start > BACKLOG * SECOND)
		oldest = (uint64_t)((double)(begin - start - BACKLOG * SECOND) / 1e9 *
				    c->event_rate);
	do {
		taken = mine > oldest ? mine : oldest;
	} while (!atomic_compare_exchange_weak(&c->events, &mine, taken + 1));

	uint64_t due = start + (uint64_t)((double)(taken + 1) / c->event_rate * 1e9);

	for (uint64_t now = begin; now < due; now = flow_now()) {
		uint64_t left = due - now < LOOK_NS ? due - now : LOOK_NS;
		const struct timespec look = {.tv_nsec = (long)left};

		if (flowop_stopped(w))
			return STEP_STOPPED;
		nanosleep(&look, NULL);
	}
	flowop_count_other(w, i, begin);
	return STEP_OK;
}
