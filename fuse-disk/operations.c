/* SPDX-License-Identifier: BSD-3-Clause */
/* What the kernel asks of the file, as calls of the device. Every request is answered just once. */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuse-disk/disk.h"

/* Aligned for direct I/O. */
#define ALIGNMENT 4096u

static uint64_t size_of(const struct disk *d)
{
	return backend_size(d->device);
}

/* How many of the size bytes at offset the device has; as in any file, the rest is past EOF. */
static uint64_t within(const struct disk *d, uint64_t size, off_t offset)
{
	uint64_t end = size_of(d), begin = (uint64_t)offset;

	if (begin >= end)
		return 0;
	return size < end - begin ? size : end - begin;
}

/* ---- attributes ----------------------------------------------------------------- */

static void reply_attributes(fuse_req_t req, const struct disk *d)
{
	const struct stat st = {
		.st_ino = FUSE_ROOT_ID,
		.st_mode = S_IFREG | (d->info.readonly ? 0400 : 0600),
		.st_nlink = 1,
		.st_uid = geteuid(),
		.st_gid = getegid(),
		.st_size = (off_t)size_of(d),
		.st_blksize = (blksize_t)d->info.preferred_size,
		.st_blocks = (blkcnt_t)(size_of(d) / 512),
	};

	/* Kept for 0 s: the kernel would go on to show the file of a server that is dead. */
	fuse_reply_attr(req, &st, 0);
}

static void disk_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino, (void)fi;
	reply_attributes(req, fuse_req_userdata(req));
}

/* A device is as large as it is, and its server's. Times mean nothing, and may be set. */
static void disk_setattr(
	fuse_req_t req, fuse_ino_t ino, struct stat *wanted, int which, struct fuse_file_info *fi)
{
	const struct disk *d = fuse_req_userdata(req);

	(void)ino, (void)fi;
	if (which & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID) ||
		(which & FUSE_SET_ATTR_SIZE && (uint64_t)wanted->st_size != size_of(d)))
		fuse_reply_err(req, EPERM);
	else
		reply_attributes(req, d);
}

/* ---- open ------------------------------------------------------------------------- */

/*
 * Nothing is kept in the page cache: every read and write comes here as it was made, any number at
 * once, and close(2) has nothing to flush. Without FOPEN_NOFLUSH, close(2) waits for all writes of
 * the file on Linux 6.12, and so does a new process that closes its copy. The kernel's own
 * struct, since not every libfuse has a name for writes side by side.
 */
static void disk_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	const struct disk *d = fuse_req_userdata(req);
	const struct fuse_open_out out = {
		.open_flags = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES | FOPEN_NOFLUSH,
	};

	(void)ino;
	if (d->info.readonly && (fi->flags & O_ACCMODE) != O_RDONLY)
		fuse_reply_err(req, EROFS);
	else if (fi->flags & O_TRUNC)
		fuse_reply_err(req, EPERM);
	else
		fuse_reply_buf(req, (const char *)&out, sizeof out);
}

/* ---- data ------------------------------------------------------------------------- */

/* A thread's own, which grows to the largest request that it has had. */
struct memory {
	void *bytes;
	size_t size;
};

static void memory_free(void *opaque)
{
	struct memory *m = opaque;

	free(m->bytes);
	free(m);
}

/* At least size bytes, aligned; NULL: out of memory. */
static void *memory_of_thread(const struct disk *d, size_t size)
{
	struct memory *m = pthread_getspecific(d->memory);

	if (!m) {
		m = calloc(1, sizeof *m);
		if (!m || pthread_setspecific(d->memory, m) != 0) {
			free(m);
			return NULL;
		}
	}
	if (m->size < size) {
		free(m->bytes);
		m->size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
		m->bytes = aligned_alloc(ALIGNMENT, m->size);
		if (!m->bytes)
			m->size = 0;
	}
	return m->bytes;
}

/* The kernel takes the data from where the device has put them. */
static void disk_read(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
	const struct disk *d = fuse_req_userdata(req);
	struct iovec iov = {.iov_len = within(d, size, offset)};
	int r = 0;

	(void)ino, (void)fi;
	if (iov.iov_len) {
		iov.iov_base = memory_of_thread(d, iov.iov_len);
		r = iov.iov_base ? backend_readv(d->device, &iov, 1, (uint64_t)offset) : -ENOMEM;
	}
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_buf(req, iov.iov_base, iov.iov_len);
}

static void disk_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t offset,
	struct fuse_file_info *fi)
{
	const struct disk *d = fuse_req_userdata(req);
	/* struct iovec has no const; devices do not change the data that they write. */
	const struct iovec iov = {(void *)data, within(d, size, offset)};
	/* The flags are those of this write, RWF_DSYNC among them. */
	unsigned fua = fi->flags & O_DSYNC ? BACKEND_FUA : 0;
	int r = -ENOSPC;

	(void)ino;
	if (iov.iov_len)
		r = backend_writev(d->device, &iov, 1, (uint64_t)offset, fua);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_write(req, iov.iov_len);
}

static void disk_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	const struct disk *d = fuse_req_userdata(req);

	(void)ino, (void)datasync, (void)fi;
	fuse_reply_err(req, -backend_flush(d->device));
}

/* ---- space ------------------------------------------------------------------------ */

/*
 * A hole must read as zeroes, which a trim does not promise: it is zeroes that the device need not
 * store. To reserve space is not for the device to promise.
 */
static void disk_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
	struct fuse_file_info *fi)
{
	const struct disk *d = fuse_req_userdata(req);
	uint64_t bytes = (uint64_t)length;
	int r = -EOPNOTSUPP;

	(void)ino, (void)fi;
	/* Zeroes past the end change nothing if the size must stay. */
	if (mode & FALLOC_FL_KEEP_SIZE)
		bytes = within(d, bytes, offset);
	switch (mode & ~FALLOC_FL_KEEP_SIZE) {
	case FALLOC_FL_PUNCH_HOLE:
	case FALLOC_FL_ZERO_RANGE:
		r = bytes ? backend_zero(d->device, (uint64_t)offset, bytes,
				    mode & FALLOC_FL_PUNCH_HOLE ? BACKEND_MAY_TRIM : 0)
			  : 0;
	}
	fuse_reply_err(req, -r);
}

/* Where data, or zeroes, begin. */
struct search {
	bool zeroes;
	off_t found;
};

static int look(void *opaque, const struct backend_extent *extent)
{
	struct search *s = opaque;

	if (extent->zero != s->zeroes)
		return 0;
	s->found = (off_t)extent->offset;
	return 1;
}

static void disk_lseek(
	fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, struct fuse_file_info *fi)
{
	const struct disk *d = fuse_req_userdata(req);
	uint64_t left = within(d, UINT64_MAX, offset);
	struct search search = {.zeroes = whence == SEEK_HOLE};
	int r = -ENXIO;

	(void)ino, (void)fi;
	if (!d->info.can_extents)
		r = -ENOSYS; /* the kernel knows what to do, and does not ask again */
	else if (left)
		r = backend_extents(d->device, (uint64_t)offset, left, 0, look, &search);
	if (r < 0)
		fuse_reply_err(req, -r);
	else if (r > 0)
		fuse_reply_lseek(req, search.found);
	else if (search.zeroes)
		fuse_reply_lseek(
			req, offset + (off_t)left); /* there is a hole at every file's end */
	else
		fuse_reply_err(req, ENXIO);
}

int disk_prepare(struct disk *disk, struct fuse_lowlevel_ops *ops)
{
	ops->getattr = disk_getattr;
	ops->setattr = disk_setattr;
	ops->open = disk_open;
	ops->read = disk_read;
	ops->write = disk_write;
	ops->fsync = disk_fsync;
	ops->fallocate = disk_fallocate;
	ops->lseek = disk_lseek;
	return -pthread_key_create(&disk->memory, memory_free);
}
