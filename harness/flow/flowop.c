/* SPDX-License-Identifier: BSD-3-Clause */
#include "database.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t flow_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

bool flowop_is_read(enum flowop_type type)
{
	return type == FLOWOP_READ || type == FLOWOP_READWHOLEFILE;
}

bool flowop_is_write(enum flowop_type type)
{
	return type == FLOWOP_WRITE || type == FLOWOP_WRITEWHOLEFILE || type == FLOWOP_APPENDFILE ||
	       type == FLOWOP_APPENDFILERAND || type == FLOWOP_AIOWRITE;
}

/*
 * The calls that are cancellation points, made without being one: in glibc 2.36
 * that costs two locked instructions each, an eighth of the CPU time that an
 * operation takes outside the kernel. No thread here is ever cancelled.
 */
static int open_plain(const char *path, int flags, mode_t mode)
{
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static int close_plain(int fd)
{
	return (int)syscall(SYS_close, fd);
}

static int fsync_plain(int fd)
{
	return (int)syscall(SYS_fsync, fd);
}

static ssize_t read_plain(int fd, void *buffer, size_t size)
{
	return syscall(SYS_read, fd, buffer, size);
}

static ssize_t write_plain(int fd, const void *buffer, size_t size)
{
	return syscall(SYS_write, fd, buffer, size);
}

/* ---- what the flowops need ---- */

/*
 * Records an operation that has just ended. False: it was too late. That ends the threads, also
 * where userblk-flow itself gets no CPU to do so.
 */
static bool record(struct worker *w, unsigned i, uint64_t begin, uint64_t bytes)
{
	uint64_t end = flow_now();

	if (end > atomic_load_explicit(&w->control->deadline, memory_order_relaxed)) {
		atomic_store_explicit(&w->control->stop, true, memory_order_relaxed);
		return false;
	}
	stats_record(&w->stats[i], end - begin, bytes);
	return true;
}

bool flowop_count(struct worker *w, unsigned i, uint64_t begin, uint64_t bytes)
{
	if (!record(w, i, begin, bytes))
		return false;
	w->pending_ops++;
	w->pending_bytes += bytes;
	return true;
}

enum step flowop_fail(struct worker *w, const struct flowop *op, const char *what, const char *path)
{
	flow_error_set(&w->error, "%s:%d: flowop %s: %s%s%s: %m", op->file, op->line, op->name,
		what, path != NULL ? " " : "", path != NULL ? path : "");
	return STEP_FAILED;
}

/* A read or write of size bytes failed. */
static enum step io_failed(
	struct worker *w, const struct flowop *op, const char *what, int fd, uint64_t size)
{
	if (errno != EINVAL || size % PAGE == 0 || (fcntl(fd, F_GETFL) & O_DIRECT) == 0)
		return flowop_fail(w, op, what, NULL);
	flow_error_set(&w->error,
		"%s:%d: flowop %s: %s of %" PRIu64
		" bytes: directio takes multiples of the device's block;"
		" give iosize and the sizes of files such values, and a cvar round=4k and min=4k",
		op->file, op->line, op->name, what, size);
	return STEP_FAILED;
}

static enum step refuse(struct worker *w, const struct flowop *op, const char *why)
{
	flow_error_set(
		&w->error, "%s:%d: flowop %s: fd=%u %s", op->file, op->line, op->name, op->fd, why);
	return STEP_FAILED;
}

/* Why no file was available. */
static enum step no_file(const struct worker *w)
{
	return flowop_stopped(w) ? STEP_STOPPED : STEP_NO_FILE;
}

/*
 * Room for size bytes of data: a random multiple of step in the thread's memory,
 * step being the iosize, so that caches see what they see of Filebench. NULL
 * with an error.
 */
static char *io_buffer(struct worker *w, const struct flowop *op, uint64_t size, uint64_t step)
{
	uint64_t memsize = w->def->memsize;

	if (step < size || step > memsize)
		step = size;
	if (memsize > 0 && size <= memsize) {
		uint64_t places = step > 0 ? memsize / step : 1;

		return w->buffer + (places > 1 ? rng_below(&w->rng, places) * step : 0);
	}
	if (memsize > 0) {
		flow_error_set(&w->error,
			"%s:%d: flowop %s: %" PRIu64 " bytes do not fit memsize=%" PRIu64
			" of thread %s; raise memsize",
			op->file, op->line, op->name, size, memsize, w->def->name);
		return NULL;
	}
	if (size > w->room || w->buffer == NULL) {
		uint64_t room = size > 0 ? (size + PAGE - 1) / PAGE * PAGE : PAGE;
		char *buffer = aligned_alloc(PAGE, room);

		if (buffer == NULL) {
			flowop_fail(w, op, "buffer", NULL);
			return NULL;
		}
		if (w->control->original)
			memset(buffer, 0, room);
		else
			rng_fill(&w->rng, buffer, room);
		free(w->buffer);
		w->buffer = buffer;
		w->room = room;
	}
	return w->buffer;
}

/* Takes the file whose turn it is, the thread's own turn with opennext, or the one that indexed=
 * says. */
static uint32_t pick(struct worker *w, const struct flowop *op, enum pick what)
{
	uint32_t index = NO_FILE;

	if (op->opennext && what == PICK_EXISTING)
		index = w->flows[op->rotor].next;
	if (op->has_indexed)
		index = (uint32_t)(number_sample(&op->indexed, &w->rng) % op->fs->entries);

	uint32_t file = fileset_pick(op->fs, what, index, &w->control->stop);

	if (op->opennext && what == PICK_EXISTING && file != NO_FILE)
		w->flows[op->rotor].next = file + 1 == op->fs->entries ? 0 : file + 1;
	return file;
}

/*
 * The slot that a flowop works on: with opennext and no fd= the next one, downwards, as
 * Filebench goes; each is opened when it is first met and stays so.
 */
static struct slot *slot_of(struct worker *w, const struct flowop *op)
{
	if (!op->opennext || op->fd > 0)
		return &w->slots[op->fd];
	w->fd_rotor = (w->fd_rotor > 0 ? w->fd_rotor : FLOW_FDS) - 1;
	return &w->slots[w->fd_rotor];
}

/* createfile and openfile, and the open that other flowops imply. */
static enum step open_file(struct worker *w, unsigned i, struct slot *slot, bool create)
{
	const struct flowop *op = &w->def->flowops[i];
	struct fileset *fs = op->fs;

	if (slot->fd >= 0)
		return refuse(w, op, "is open already; close it first or name another fd=");
	if (fs == NULL)
		return refuse(w, op, "is not open; open it first or name filesetname=");

	uint32_t file = pick(w, op, create ? PICK_ABSENT : PICK_EXISTING);
	int flags = O_CLOEXEC;

	if (file == NO_FILE)
		return no_file(w);
	flags |= fs->spec.readonly ? O_RDONLY : fs->spec.writeonly ? O_WRONLY : O_RDWR;
	flags |= (create ? O_CREAT : 0) | (op->dsync ? O_SYNC : 0) | (op->directio ? O_DIRECT : 0);

	uint32_t state = fileset_state(fs, file);
	uint64_t begin = flow_now();
	uint32_t length = fileset_file_path(fs, file, w->path);
	bool parent = true;

	/* Filebench looks at the directory before it creates a file there. */
	if (create) {
		struct stat st;

		w->path[length] = '\0';
		parent = stat(w->path, &st) == 0;
		w->path[length] = '/';
	}

	int fd = parent ? open_plain(w->path, flags, 0666) : -1;

	if (fd < 0) {
		fileset_give(fs, file, state);
		return flowop_fail(w, op, create ? "create" : "open", w->path);
	}
	if (op->noreadahead)
		posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	flowop_count(w, i, begin, 0);
	fileset_give(fs, file, (state | FILE_EXISTS) + 1);
	*slot = (struct slot){.fd = fd, .file = file, .fs = fs};
	return STEP_OK;
}

/* The slot of a flowop that needs an open file, opened if need be. */
static enum step open_slot(struct worker *w, unsigned i, struct slot **slot)
{
	const struct flowop *op = &w->def->flowops[i];

	*slot = slot_of(w, op);
	if ((*slot)->fd < 0)
		return open_file(w, i, *slot, false);
	if (op->fs != NULL && (*slot)->fs != op->fs)
		return refuse(w, op, "holds a file of another fileset; name another fd=");
	return STEP_OK;
}

static uint64_t slot_size(const struct slot *slot)
{
	return fileset_size(slot->fs, slot->file);
}

/* Writes all of it at the descriptor's position. */
static bool write_all(int fd, const char *data, uint64_t size)
{
	while (size > 0) {
		ssize_t n = write_plain(fd, data, size);

		if (n < 0)
			return false;
		data += n;
		size -= (uint64_t)n;
	}
	return true;
}

/* ---- the flowops ---- */

static enum step flow_createfile(struct worker *w, unsigned i)
{
	return open_file(w, i, slot_of(w, &w->def->flowops[i]), true);
}

static enum step flow_openfile(struct worker *w, unsigned i)
{
	return open_file(w, i, slot_of(w, &w->def->flowops[i]), false);
}

static enum step flow_closefile(struct worker *w, unsigned i)
{
	const struct flowop *op = &w->def->flowops[i];
	struct slot *slot = &w->slots[op->fd];
	uint32_t state;

	if (slot->fd < 0)
		return refuse(w, op, "is not open; open it first");

	enum step step = database_settle(w, slot->fd);

	if (step != STEP_OK)
		return step;
	if (!fileset_take(slot->fs, slot->file, &state, &w->control->stop))
		return STEP_STOPPED;

	uint64_t begin = flow_now();
	int result = close_plain(slot->fd);

	slot->fd = -1;
	if (result == 0)
		flowop_count(w, i, begin, 0);
	fileset_give(slot->fs, slot->file, state - 1);
	return result == 0 ? STEP_OK : flowop_fail(w, op, "close", NULL);
}

/* The file that deletefile removes, taken; NO_FILE with *step: there is none. */
static uint32_t pick_victim(struct worker *w, const struct flowop *op, enum step *step)
{
	uint32_t file = NO_FILE;

	/* Filebench passes over an operation when its turn falls on an open file. */
	if (!w->control->original)
		file = pick(w, op, PICK_CLOSED);
	if (file == NO_FILE)
		file = pick(w, op, PICK_EXISTING);
	if (file == NO_FILE)
		*step = no_file(w);
	return file;
}

static enum step flow_deletefile(struct worker *w, unsigned i)
{
	const struct flowop *op = &w->def->flowops[i];
	const struct slot *slot = &w->slots[op->fd];
	bool mine = op->fd > 0 && slot->fs != NULL;
	struct fileset *fs = mine ? slot->fs : op->fs;
	enum step step = STEP_OK;
	uint32_t state, file, own = 0;

	if (mine) {
		file = slot->file;
		own = slot->fd >= 0;
		if (!fileset_take(fs, file, &state, &w->control->stop))
			return STEP_STOPPED;
	} else {
		if (fs == NULL)
			return refuse(w, op, "holds no file; name filesetname=");
		file = pick_victim(w, op, &step);
		if (file == NO_FILE)
			return step;
		state = fileset_state(fs, file);
	}
	if (!(state & FILE_EXISTS) || (state & FILE_OPENERS) > own) {
		fileset_give(fs, file, state);
		return STEP_OK; /* not done and not counted */
	}
	fileset_file_path(fs, file, w->path);

	uint64_t begin = flow_now();

	if (unlink(w->path) < 0) {
		fileset_give(fs, file, state);
		return flowop_fail(w, op, "delete", w->path);
	}
	flowop_count(w, i, begin, 0);
	fileset_give(fs, file, state & ~FILE_EXISTS);
	return STEP_OK;
}

static enum step flow_statfile(struct worker *w, unsigned i)
{
	const struct flowop *op = &w->def->flowops[i];
	const struct slot *slot = &w->slots[op->fd];
	struct stat st;

	if (op->fd > 0 && slot->fd >= 0) {
		uint64_t begin = flow_now();

		if (fstat(slot->fd, &st) < 0)
			return flowop_fail(w, op, "stat", NULL);
		flowop_count(w, i, begin, 0);
		return STEP_OK;
	}
	if (op->fs == NULL)
		return refuse(w, op, "is not open; open it first or name filesetname=");

	uint32_t file = pick(w, op, PICK_EXISTING);

	if (file == NO_FILE)
		return no_file(w);
	fileset_file_path(op->fs, file, w->path);

	uint64_t begin = flow_now();
	int result = stat(w->path, &st);

	if (result == 0)
		flowop_count(w, i, begin, 0);
	fileset_give(op->fs, file, fileset_state(op->fs, file));
	return result == 0 ? STEP_OK : flowop_fail(w, op, "stat", w->path);
}

static enum step flow_fsync(struct worker *w, unsigned i)
{
	const struct flowop *op = &w->def->flowops[i];
	const struct slot *slot = &w->slots[op->fd];

	if (slot->fd < 0)
		return refuse(w, op, "is not open; open it first");

	uint64_t begin = flow_now();

	if (fsync_plain(slot->fd) < 0)
		return flowop_fail(w, op, "fsync", NULL);
	flowop_count(w, i, begin, 0);
	return STEP_OK;
}

static enum step flow_readwholefile(struct worker *w, unsigned i)
{
	const struct flowop *op = &w->def->flowops[i];
	struct slot *slot;
	enum step step = open_slot(w, i, &slot);

	if (step != STEP_OK)
		return step;

	uint64_t size = number_sample(&op->iosize, &w->rng), total = 0;

	if (size == 0)
		size = w->flows[i].workingset > 0 ? w->flows[i].workingset : slot_size(slot);
	if (size == 0)
		size = PAGE;

	char *buffer = io_buffer(w, op, size, size);

	if (buffer == NULL)
		return STEP_FAILED;

	uint64_t begin = flow_now();
	ssize_t n = lseek(slot->fd, 0, SEEK_SET) < 0 ? -1 : 1;

	while (n > 0) {
		n = read_plain(slot->fd, buffer, size);
		total += n > 0 ? (uint64_t)n : 0;
	}
	if (n < 0)
		return io_failed(w, op, "read", slot->fd, size);
	flowop_count(w, i, begin, total);
	return STEP_OK;
}

static enum step flow_writewholefile(struct worker *w, unsigned i)
{
	const struct flowop *op = &w->def->flowops[i];
	const struct slot *source = &w->slots[op->srcfd];
	struct slot *slot;
	enum step step = open_slot(w, i, &slot);

	if (step != STEP_OK)
		return step;
	if (source->fs == NULL && op->srcfd != 0)
		return refuse(w, op, "has no source: srcfd= holds no file; open one there first");

	uint64_t size = source->fs != NULL	     ? slot_size(source)
			: w->flows[i].workingset > 0 ? w->flows[i].workingset
						     : slot_size(slot);
	uint64_t iosize = number_sample(&op->iosize, &w->rng);
	uint64_t chunk = iosize == 0 || iosize > size ? size : iosize;
	const char *buffer = io_buffer(w, op, chunk, iosize);

	if (buffer == NULL)
		return STEP_FAILED;
	if (w->control->original && chunk > 0)
		size = (size + chunk - 1) / chunk * chunk;

	uint64_t begin = flow_now();

	for (uint64_t left = size; left > 0;) {
		uint64_t n = left < chunk ? left : chunk;

		if (!write_all(slot->fd, buffer, n))
			return io_failed(w, op, "write", slot->fd, n);
		left -= n;
	}
	flowop_count(w, i, begin, size);
	return STEP_OK;
}

/* Appends bytes drawn before the file is opened: none leave even that out. */
static enum step append(struct worker *w, unsigned i, uint64_t bytes, uint64_t iosize)
{
	const struct flowop *op = &w->def->flowops[i];
	struct slot *slot;
	enum step step;

	if (bytes == 0) {
		flowop_count(w, i, flow_now(), 0);
		return STEP_OK;
	}
	step = open_slot(w, i, &slot);
	if (step != STEP_OK)
		return step;

	const char *buffer = io_buffer(w, op, bytes, iosize);

	if (buffer == NULL)
		return STEP_FAILED;

	uint64_t begin = flow_now();

	if (lseek(slot->fd, 0, SEEK_END) < 0 || !write_all(slot->fd, buffer, bytes))
		return io_failed(w, op, "append", slot->fd, bytes);
	flowop_count(w, i, begin, bytes);
	return STEP_OK;
}

static enum step flow_appendfile(struct worker *w, unsigned i)
{
	uint64_t bytes = number_sample(&w->def->flowops[i].iosize, &w->rng);

	return append(w, i, bytes, bytes);
}

static enum step flow_appendfilerand(struct worker *w, unsigned i)
{
	uint64_t most = number_sample(&w->def->flowops[i].iosize, &w->rng);

	return append(w, i, most > 0 ? rng_below(&w->rng, most) : 0, most);
}

enum step flowop_prepare_io(struct worker *w, unsigned i, struct io *io)
{
	const struct flowop *op = &w->def->flowops[i];
	struct slot *slot;
	enum step step = open_slot(w, i, &slot);

	if (step != STEP_OK)
		return step;
	*io = (struct io){.fd = slot->fd, .size = number_sample(&op->iosize, &w->rng)};
	if (op->random) {
		uint64_t set =
			w->flows[i].workingset > 0 ? w->flows[i].workingset : slot_size(slot);

		if (io->size == 0 || io->size > set) {
			flow_error_set(&w->error,
				"%s:%d: flowop %s: iosize=%" PRIu64 " exceeds the %" PRIu64
				" bytes it works on; lower it",
				op->file, op->line, op->name, io->size, set);
			return STEP_FAILED;
		}
		io->offset = (off_t)(rng_below(&w->rng, set / io->size) * io->size);
	}
	io->buffer = io_buffer(w, op, io->size, io->size);
	return io->buffer != NULL ? STEP_OK : STEP_FAILED;
}

static enum step flow_read(struct worker *w, unsigned i)
{
	const struct flowop *op = &w->def->flowops[i];
	struct io io;
	enum step step = flowop_prepare_io(w, i, &io);

	if (step != STEP_OK)
		return step;

	uint64_t begin = flow_now();
	ssize_t n = op->random ? pread(io.fd, io.buffer, io.size, io.offset)
			       : read_plain(io.fd, io.buffer, io.size);

	if (n == 0 && !op->random && (io.size > 0 || w->control->original)) {
		/* At the end it starts again; Filebench counts an operation without data. */
		if (lseek(io.fd, 0, SEEK_SET) < 0)
			return flowop_fail(w, op, "seek", NULL);
		if (!w->control->original)
			n = read_plain(io.fd, io.buffer, io.size);
	}
	if (n < 0)
		return io_failed(w, op, "read", io.fd, io.size);
	if (n == 0 && io.size > 0 && (op->random || !w->control->original))
		return refuse(w, op, "holds no data where it reads; give the fileset prealloc");
	flowop_count(w, i, begin, (uint64_t)n);
	return STEP_OK;
}

static enum step flow_write(struct worker *w, unsigned i)
{
	const struct flowop *op = &w->def->flowops[i];
	struct io io;
	enum step step = flowop_prepare_io(w, i, &io);

	if (step != STEP_OK)
		return step;

	uint64_t begin = flow_now();

	if (op->random) {
		for (uint64_t done = 0; done < io.size;) {
			ssize_t n = pwrite(
				io.fd, io.buffer + done, io.size - done, io.offset + (off_t)done);

			if (n < 0)
				return io_failed(w, op, "write", io.fd, io.size);
			done += (uint64_t)n;
		}
	} else if (!write_all(io.fd, io.buffer, io.size)) {
		return io_failed(w, op, "write", io.fd, io.size);
	}
	flowop_count(w, i, begin, io.size);
	return STEP_OK;
}

void flowop_count_other(struct worker *w, unsigned i, uint64_t begin)
{
	if (record(w, i, begin, 0) && w->control->original)
		w->pending_ops++;
}

void flowop_tell(struct worker *w)
{
	atomic_fetch_add_explicit(&w->process->ops, w->pending_ops, memory_order_relaxed);
	atomic_fetch_add_explicit(&w->process->bytes, w->pending_bytes, memory_order_relaxed);
	w->pending_ops = w->pending_bytes = 0;
}

/* Filebench's counter sees every flowop, these included. */
static void count_finish(struct worker *w, unsigned i)
{
	stats_record(&w->stats[i], 0, 0);
	if (w->control->original)
		w->pending_ops++;
	if (w->def->flowops[i].target < 0)
		flowop_tell(w);
}

static enum step flow_finishoncount(struct worker *w, unsigned i)
{
	int target = w->def->flowops[i].target;

	count_finish(w, i);
	return (target < 0 ? atomic_load_explicit(&w->process->ops, memory_order_relaxed)
			   : w->stats[target].ops) >= w->flows[i].value
		       ? STEP_FINISHED
		       : STEP_OK;
}

static enum step flow_finishonbytes(struct worker *w, unsigned i)
{
	int target = w->def->flowops[i].target;

	count_finish(w, i);
	return (target < 0 ? atomic_load_explicit(&w->process->bytes, memory_order_relaxed)
			   : atomic_load_explicit(&w->stats[target].bytes, memory_order_relaxed)) >
			       w->flows[i].value
		       ? STEP_FINISHED
		       : STEP_OK;
}

enum step (*const flowop_functions[FLOWOP_TYPES])(struct worker *, unsigned) = {
	[FLOWOP_CREATEFILE] = flow_createfile,
	[FLOWOP_OPENFILE] = flow_openfile,
	[FLOWOP_CLOSEFILE] = flow_closefile,
	[FLOWOP_DELETEFILE] = flow_deletefile,
	[FLOWOP_STATFILE] = flow_statfile,
	[FLOWOP_FSYNC] = flow_fsync,
	[FLOWOP_READWHOLEFILE] = flow_readwholefile,
	[FLOWOP_WRITEWHOLEFILE] = flow_writewholefile,
	[FLOWOP_APPENDFILE] = flow_appendfile,
	[FLOWOP_APPENDFILERAND] = flow_appendfilerand,
	[FLOWOP_READ] = flow_read,
	[FLOWOP_WRITE] = flow_write,
	[FLOWOP_FINISHONCOUNT] = flow_finishoncount,
	[FLOWOP_FINISHONBYTES] = flow_finishonbytes,
	[FLOWOP_AIOWRITE] = flow_aiowrite,
	[FLOWOP_AIOWAIT] = flow_aiowait,
	[FLOWOP_HOG] = flow_hog,
	[FLOWOP_SEMBLOCK] = flow_semblock,
	[FLOWOP_SEMPOST] = flow_sempost,
	[FLOWOP_EVENTLIMIT] = flow_eventlimit,
};
