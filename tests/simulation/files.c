/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Local files of simulated machines: those whose path begins with /sim/. Readers see
 * what was not synced; after a crash of the machine, each of its sectors is there or not.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#include "tests/simulation/memory.h"
#include "tests/simulation/sched.h"
#include "tests/simulation/wrap.h"

#define SECTOR	  512u
#define SECTORS	  (SIM_ROOM / SECTOR)
#define CHUNK	  (64u << 10)
#define CHUNKS	  (SIM_ROOM / CHUNK)
#define FIRST_FD  100000
#define FILES	  32
#define OPEN_MAX_ 256

struct file {
	char path[64];
	bool exists;
	bool named; /* its name is there after a crash, too */
	uint64_t size;
	uint8_t *now, *safe;		 /* as it is read, and as it is after a crash */
	uint8_t *unsafe;		 /* of each sector: 1 written, 2 and its sync has failed */
	bool written[CHUNKS];		 /* since it was all zeroes */
	const struct sim_process *owner; /* of the lock */
	int owner_fd;
};

struct handle {
	struct file *file;
	const struct sim_process *process;
	uint64_t at; /* of read() */
};

static struct file files[FILES];
static struct file directory; /* of all of them */
static struct handle handles[OPEN_MAX_];
static unsigned failing_syncs, failing_calls;
static uint64_t calls_left; /* until one fails; 0: none does */

static bool simulated(const char *path)
{
	return strncmp(path, "/sim/", 5) == 0;
}

static struct handle *handle_of(int fd)
{
	if (fd < FIRST_FD || fd >= FIRST_FD + OPEN_MAX_)
		return NULL;
	if (!handles[fd - FIRST_FD].file)
		sim_fail("file", "a file that is not open is used");
	return &handles[fd - FIRST_FD];
}

static struct file *find(const char *path, bool make)
{
	struct file *empty = NULL;

	for (unsigned i = 0; i < FILES; i++) {
		if (files[i].now && strcmp(files[i].path, path) == 0)
			return files[i].exists || make ? &files[i] : NULL;
		if (!files[i].now && !empty)
			empty = &files[i];
	}
	if (!make)
		return NULL;
	if (!empty)
		sim_fail("simulation", "too many files");
	snprintf(empty->path, sizeof empty->path, "%s", path);
	empty->now = sim_memory_file(2 * (unsigned)(empty - files));
	empty->safe = sim_memory_file(2 * (unsigned)(empty - files) + 1);
	empty->unsafe = calloc(1, SECTORS);
	return empty;
}

static void clear(struct file *f)
{
	for (unsigned i = 0; i < CHUNKS; i++) {
		if (!f->written[i])
			continue;
		memset(f->now + i * CHUNK, 0, CHUNK);
		memset(f->safe + i * CHUNK, 0, CHUNK);
		memset(f->unsafe + i * (CHUNK / SECTOR), 0, CHUNK / SECTOR);
		f->written[i] = false;
	}
	f->size = 0;
	f->exists = f->named = false;
}

static void note_written(struct file *f, uint64_t at, size_t length)
{
	for (uint64_t i = at / CHUNK; length && i <= (at + length - 1) / CHUNK; i++)
		f->written[i] = true;
}

void sim_files_reset(void)
{
	for (unsigned i = 0; i < FILES; i++)
		if (files[i].now)
			clear(&files[i]);
}

void sim_file_remove(const char *path)
{
	struct file *f = find(path, false);

	if (f)
		clear(f);
}

void sim_file_make(const char *path, const void *data, size_t length)
{
	struct file *f = find(path, true);

	f->exists = f->named = true;
	f->size = length;
	note_written(f, 0, length);
	memcpy(f->now, data, length);
	memcpy(f->safe, data, length);
}

uint64_t sim_file_extend(const char *path, uint64_t by)
{
	struct file *f = find(path, false);
	bool used = false;

	for (unsigned i = 0; i < OPEN_MAX_; i++)
		used |= f && handles[i].file == f;
	if (!f || used || !f->size || f->size + by > SIM_ROOM)
		return 0;
	return f->size += by;
}

void sim_files_crash(const char *path, const struct sim_process *p)
{
	struct file *f = find(path, false);
	unsigned lost = 0, kept = 0;
	uint64_t how;

	/* It is on the machine of who uses it. */
	if (!f || (f->owner && f->owner != p))
		return;
	how = sim_below(SIM_DISK, 4); /* all old, all new, or of each sector one or the other */
	for (uint32_t i = 0; i <= (f->size - 1) / SECTOR && f->size; i++) {
		bool old = how == 0 || (how != 1 && sim_once_in(SIM_DISK, 2));

		if (!f->unsafe[i])
			continue;
		if (old)
			memcpy(f->now + i * SECTOR, f->safe + i * SECTOR, SECTOR);
		else
			memcpy(f->safe + i * SECTOR, f->now + i * SECTOR, SECTOR);
		f->unsafe[i] = 0;
		lost += old;
		kept += !old;
	}
	/* Nor was it made, if nothing in it is left of its beginning. */
	f->exists = false;
	for (unsigned i = 0; i < SECTOR; i++)
		f->exists |= f->now[i] != 0;
	if (!f->exists || (!f->named && sim_once_in(SIM_DISK, 2)))
		clear(f);
	else
		f->named = true;
	if (!f->exists)
		sim_trace("crash: %s is gone", path);
	sim_trace("crash: %s lost %u sectors and kept %u that were not synced", path, lost, kept);
}

void sim_files_close_all(const struct sim_process *p)
{
	for (int i = 0; i < OPEN_MAX_; i++)
		if (handles[i].file && handles[i].process == p)
			handles[i].file = NULL;
	for (unsigned i = 0; i < FILES; i++)
		if (files[i].owner == p)
			files[i].owner = NULL;
}

void sim_files_fail(unsigned syncs, unsigned calls)
{
	failing_syncs = syncs;
	failing_calls = calls;
}

void sim_files_fail_once(uint64_t after)
{
	calls_left = after;
}

/* Does this call fail? */
static bool fails(const char *what, const struct file *f)
{
	bool now = sim_once_in(SIM_DISK, failing_calls) || calls_left == 1;

	calls_left -= calls_left > 0;
	if (!now)
		return false;
	errno = sim_once_in(SIM_DISK, 2) ? EIO : ENOSPC;
	sim_trace("%s of %s fails", what, f->path);
	return true;
}

void sim_files_hash(void)
{
	for (unsigned i = 0; i < FILES; i++)
		for (unsigned k = 0; files[i].exists && k < CHUNKS; k++)
			if (files[i].written[k])
				sim_hash(files[i].now + k * CHUNK, CHUNK);
}

/* ---- the calls ----------------------------------------------------------------------------- */

int __wrap_open64(const char *path, int flags, ...)
{
	va_list args;
	struct file *f;
	mode_t mode;
	int i;

	va_start(args, flags);
	mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
	va_end(args);
	if (!simulated(path) && strcmp(path, "/sim") != 0)
		return __real_open64(path, flags, mode);
	sim_point("open", path);
	f = simulated(path) ? find(path, false) : &directory;
	if (!f && !(flags & O_CREAT)) {
		errno = ENOENT;
		return -1;
	}
	if (f && flags & O_CREAT && flags & O_EXCL) {
		errno = EEXIST;
		return -1;
	}
	if (!f)
		f = find(path, true);
	f->exists = true;
	for (i = 0; i < OPEN_MAX_ && handles[i].file; i++)
		;
	if (i == OPEN_MAX_)
		sim_fail("file", "too many open files: they are not closed");
	handles[i] = (struct handle){.file = f, .process = sim_self()};
	return FIRST_FD + i;
}

static void fill_stat(const struct file *f, struct stat *st)
{
	*st = (struct stat){.st_mode = S_IFREG | 0600,
		.st_size = (off_t)f->size,
		.st_blocks = (blkcnt_t)(f->size / 512),
		.st_blksize = 4096,
		.st_nlink = 1};
}

int __wrap_stat64(const char *path, struct stat *st)
{
	struct file *f;

	if (!simulated(path))
		return __real_stat64(path, st);
	sim_point("stat", path);
	f = find(path, false);
	if (!f) {
		errno = ENOENT;
		return -1;
	}
	fill_stat(f, st);
	return 0;
}

int __wrap_fstat64(int fd, struct stat *st)
{
	struct handle *h = handle_of(fd);

	if (!h)
		return __real_fstat64(fd, st);
	fill_stat(h->file, st);
	return 0;
}

int __wrap_fstatvfs64(int fd, struct statvfs *st)
{
	if (!handle_of(fd))
		return __real_fstatvfs64(fd, st);
	*st = (struct statvfs){.f_bavail = 1u << 20, .f_frsize = 4096};
	return 0;
}

int __wrap_flock(int fd, int operation)
{
	struct handle *h = handle_of(fd);

	if (!h)
		return __real_flock(fd, operation);
	sim_point("flock", h->file);
	if (operation & LOCK_UN) {
		if (h->file->owner_fd == fd)
			h->file->owner = NULL;
		return 0;
	}
	if (h->file->owner && h->file->owner_fd != fd) {
		errno = EWOULDBLOCK;
		return -1;
	}
	h->file->owner = sim_self();
	h->file->owner_fd = fd;
	return 0;
}

static ssize_t get(struct file *f, void *data, size_t length, uint64_t at)
{
	if (at >= f->size)
		return 0;
	if (length > f->size - at)
		length = f->size - at;
	memcpy(data, f->now + at, length);
	return (ssize_t)length;
}

static ssize_t put(struct file *f, const void *data, size_t length, uint64_t at)
{
	if (at + length > SIM_ROOM) {
		errno = ENOSPC;
		return -1;
	}
	note_written(f, at, length);
	memcpy(f->now + at, data, length);
	if (at + length > f->size)
		f->size = at + length;
	for (uint64_t i = at / SECTOR; length && i <= (at + length - 1) / SECTOR; i++)
		f->unsafe[i] = 1;
	return (ssize_t)length;
}

ssize_t __wrap_read(int fd, void *data, size_t length)
{
	struct handle *h = handle_of(fd);
	ssize_t n;

	if (!h)
		return __real_read(fd, data, length);
	n = get(h->file, data, length, h->at);
	h->at += (uint64_t)n;
	return n;
}

ssize_t __wrap_pread64(int fd, void *data, size_t length, off_t at)
{
	struct handle *h = handle_of(fd);

	if (!h)
		return __real_pread64(fd, data, length, at);
	sim_point("pread", h->file);
	if (fails("pread", h->file))
		return -1;
	return get(h->file, data, length, (uint64_t)at);
}

ssize_t __wrap_pwrite64(int fd, const void *data, size_t length, off_t at)
{
	struct handle *h = handle_of(fd);

	if (!h)
		return __real_pwrite64(fd, data, length, at);
	sim_point("pwrite", h->file);
	if (fails("pwrite", h->file))
		return -1;
	return put(h->file, data, length, (uint64_t)at);
}

ssize_t __wrap_preadv64(int fd, const struct iovec *iov, int n, off_t at)
{
	struct handle *h = handle_of(fd);
	ssize_t total = 0;

	if (!h)
		return __real_preadv64(fd, iov, n, at);
	sim_point("preadv", h->file);
	if (fails("preadv", h->file))
		return -1;
	for (int i = 0; i < n; i++)
		total += get(h->file, iov[i].iov_base, iov[i].iov_len, (uint64_t)(at + total));
	return total;
}

ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int n, off_t at)
{
	struct handle *h = handle_of(fd);
	ssize_t total = 0;

	if (!h)
		return __real_pwritev64(fd, iov, n, at);
	sim_point("pwritev", h->file);
	if (fails("pwritev", h->file))
		return -1;
	for (int i = 0; i < n; i++) {
		ssize_t did = put(h->file, iov[i].iov_base, iov[i].iov_len, (uint64_t)(at + total));

		if (did < 0)
			return -1;
		total += did;
	}
	return total;
}

int __wrap_ftruncate64(int fd, off_t length)
{
	struct handle *h = handle_of(fd);
	struct file *f;

	if (!h)
		return __real_ftruncate64(fd, length);
	f = h->file;
	sim_point("ftruncate", f);
	if ((uint64_t)length > SIM_ROOM) {
		errno = EFBIG;
		return -1;
	}
	if (fails("ftruncate", f))
		return -1;
	if ((uint64_t)length < f->size) {
		memset(f->now + length, 0, f->size - (uint64_t)length);
		memset(f->safe + length, 0, f->size - (uint64_t)length);
	}
	f->size = (uint64_t)length;
	return 0;
}

int __wrap_fallocate64(int fd, int mode, off_t at, off_t length)
{
	struct handle *h = handle_of(fd);

	if (!h)
		return __real_fallocate64(fd, mode, at, length);
	if (fails("fallocate", h->file))
		return -1;
	if ((uint64_t)(at + length) > h->file->size)
		h->file->size = (uint64_t)(at + length);
	return 0;
}

int __wrap_fdatasync(int fd)
{
	struct handle *h = handle_of(fd);
	struct file *f;
	uint8_t *begun;
	uint32_t n;
	bool failed;

	if (!h)
		return __real_fdatasync(fd);
	f = h->file;
	n = (uint32_t)((f->size + SECTOR - 1) / SECTOR);
	begun = malloc(n + 1);
	if (!begun)
		abort();
	memcpy(begun, f->unsafe, n);
	sim_point("fdatasync", f);
	sim_sleep(sim_log_between(SIM_DISK, 20000, 20 * SIM_MS));
	failed = sim_once_in(SIM_DISK, failing_syncs) || fails("fdatasync", f);
	for (uint32_t i = 0; i < n; i++) {
		/* What was written meanwhile happens to get there too. */
		if (begun[i] == 1 && failed) {
			f->unsafe[i] = 2;
		} else if (begun[i] == 1) {
			memcpy(f->safe + i * SECTOR, f->now + i * SECTOR, SECTOR);
			f->unsafe[i] = 0;
		}
	}
	free(begun);
	if (!failed)
		return 0;
	sim_trace("fdatasync of %s fails", f->path);
	errno = EIO;
	return -1;
}

int __wrap_fsync(int fd)
{
	struct handle *h = handle_of(fd);

	if (!h)
		return __real_fsync(fd);
	if (h->file != &directory)
		sim_fail("file", "fsync of a file: only fdatasync is simulated");
	sim_point("fsync", h->file);
	sim_sleep(sim_log_between(SIM_DISK, 20000, 20 * SIM_MS));
	if (fails("fsync", h->file))
		return -1;
	for (unsigned i = 0; i < FILES; i++)
		files[i].named = files[i].exists;
	return 0;
}

char *__wrap_realpath(const char *path, char *resolved)
{
	return simulated(path) ? strdup(path) : __real_realpath(path, resolved);
}

int __wrap_unlink(const char *path)
{
	struct file *f;

	if (!simulated(path))
		return __real_unlink(path);
	sim_point("unlink", path);
	f = find(path, false);
	if (!f) {
		errno = ENOENT;
		return -1;
	}
	clear(f);
	return 0;
}

int __wrap_close(int fd)
{
	struct handle *h = handle_of(fd);

	if (!h)
		return __real_close(fd);
	if (h->file->owner && h->file->owner_fd == fd)
		h->file->owner = NULL;
	h->file = NULL;
	sim_point("close", NULL);
	return 0;
}
