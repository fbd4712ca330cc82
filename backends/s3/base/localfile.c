/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "backends/s3/base/localfile.h"

/* A device whose beginning is zeroes so far holds nothing. */
#define BEGINNING (1u << 20)
#define MESSAGE	  256

int s3_localfile_refuse(const struct s3_localfile *f, int r, const char *what)
{
	backend_error(&f->host, "%s=%s: %s", f->kind->parameter, f->path, what);
	return r;
}

int s3_localfile_refuse_errno(const struct s3_localfile *f, int r, const char *remedy)
{
	backend_error(&f->host, "%s=%s: %s; %s", f->kind->parameter, f->path, strerror(-r), remedy);
	return r;
}

int s3_localfile_transfer(
	const struct s3_localfile *f, bool write, void *memory, size_t length, uint64_t at)
{
	uint8_t *p = memory;

	while (length) {
		ssize_t n = write ? pwrite(f->fd, p, length, (off_t)at)
				  : pread(f->fd, p, length, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		p += n;
		at += (uint64_t)n;
		length -= (size_t)n;
	}
	return 0;
}

/* Opens path, makes it if it is not there. */
static int open_path(struct s3_localfile *f, struct stat *st)
{
	int flags = O_RDWR | O_CLOEXEC;
	char text[MESSAGE];
	bool make = false;
	struct stat now;

	if (stat(f->path, st) == 0) {
		if (!S_ISREG(st->st_mode) && !S_ISBLK(st->st_mode))
			return s3_localfile_refuse(f, -EINVAL,
				"neither a regular file nor a block device; give one of these");
		if (S_ISBLK(st->st_mode))
			flags |= O_EXCL;
	} else if (errno == ENOENT) {
		flags |= O_CREAT | O_EXCL;
		make = true;
	} else {
		return s3_localfile_refuse_errno(f, -errno, "give another path");
	}
	f->fd = open(f->path, flags, 0600);
	if (f->fd < 0 && errno == EBUSY)
		return s3_localfile_refuse(f, -EBUSY, "the device is in use; give another one");
	if (f->fd < 0)
		return s3_localfile_refuse_errno(f, -errno, "give a path that may be written");
	snprintf(text, sizeof text, "in use by another server; give each volume %s", f->kind->own);
	if (flock(f->fd, LOCK_EX | LOCK_NB))
		return s3_localfile_refuse(f, -EBUSY, text);
	if (fstat(f->fd, st))
		return -errno;
	/* What it had made, another server has taken away again between our open and our lock. */
	if (stat(f->path, &now) || now.st_dev != st->st_dev || now.st_ino != st->st_ino)
		return s3_localfile_refuse(
			f, -EBUSY, "removed by another server just now; try again");
	f->made = make; /* not before: it may be another server's by now */
	return 0;
}

/* The size that it must have. */
static int choose_size(struct s3_localfile *f, const struct stat *st, uint64_t asked)
{
	uint64_t there = (uint64_t)st->st_size;
	char text[MESSAGE];

	f->size = asked ? asked : f->kind->size_default;
	if (!S_ISBLK(st->st_mode) && f->kind->keeps_size && there >= f->kind->size_least) {
		f->size = there;
		if (!asked || asked == there)
			return 0;
		snprintf(text, sizeof text,
			"has another size than %s= gives; leave that out, or remove the file once "
			"the volume has been closed",
			f->kind->size_parameter);
		return s3_localfile_refuse(f, -EINVAL, text);
	}
	if (!S_ISBLK(st->st_mode))
		return 0;
	if (ioctl(f->fd, BLKGETSIZE64, &there))
		return s3_localfile_refuse_errno(f, -errno, "give another device");
	if (!asked)
		f->size = there;
	if (f->size <= there && f->size >= f->kind->size_least)
		return 0;
	snprintf(text, sizeof text,
		"the device has less than %s= bytes, or less than %uM; give another one or a lower "
		"%s=",
		f->kind->size_parameter, (unsigned)(f->kind->size_least >> 20),
		f->kind->size_parameter);
	return s3_localfile_refuse(f, -EINVAL, text);
}

/* Does it hold anything else than zeroes or the expected content? */
static int look_inside(struct s3_localfile *f, const struct stat *st)
{
	bool device = S_ISBLK(st->st_mode);
	uint8_t *data = calloc(1, BEGINNING);
	ssize_t n = data ? pread(f->fd, data, BEGINNING, 0) : -1;
	bool ours, empty = true;
	char text[MESSAGE];

	if (n < 0) {
		int r = data ? -errno : -ENOMEM;

		free(data);
		return s3_localfile_refuse_errno(f, r, "give another path");
	}
	ours = memcmp(data, f->kind->magic, sizeof f->kind->magic) == 0;
	for (ssize_t i = 0; i < n; i++)
		empty &= data[i] == 0;
	free(data);
	/* Its size is right and it holds only zeroes at its beginning: so a crash of the machine
	 * leaves a new file. */
	f->was_empty = n == 0 || (!device && empty && (uint64_t)st->st_size == f->size &&
					 lseek(f->fd, n, SEEK_DATA) < 0 && errno == ENXIO);
	f->former_size = (uint64_t)st->st_size;
	/* A server that was killed while it made the file left the magic alone. Space that is
	 * given back to the file lacks what it held. */
	if (ours && !device && f->kind->keeps_size && n > (ssize_t)sizeof f->kind->magic &&
		(uint64_t)st->st_size < f->size) {
		snprintf(text, sizeof text,
			"has less than %uM, so it was truncated; restore it, or remove it if the "
			"volume was closed",
			(unsigned)(f->kind->size_least >> 20));
		return s3_localfile_refuse(f, -EINVAL, text);
	}
	if (ours || f->was_empty || (device && empty))
		return 0;
	snprintf(text, sizeof text, "%s %s; %s",
		device	? "the device holds something else than"
		: empty ? "begins with zeroes, unlike"
			: "holds something else than",
		f->kind->content,
		device ? "wipe it or give another one" : "remove it or give another path");
	return s3_localfile_refuse(f, -EEXIST, text);
}

/* Reserves the space of a regular file. */
static int reserve(struct s3_localfile *f, const struct stat *st)
{
	uint64_t has = (uint64_t)st->st_blocks * 512;
	char lower[MESSAGE], room[MESSAGE];
	struct statvfs fs;

	if (S_ISBLK(st->st_mode))
		return 0;
	snprintf(lower, sizeof lower, "give a lower %s=", f->kind->size_parameter);
	snprintf(room, sizeof room, "give a lower %s=, or make room", f->kind->size_parameter);
	/* Not to be found out by filling it up. */
	if (f->size > has && fstatvfs(f->fd, &fs) == 0 && f->size - has > fs.f_bavail * fs.f_frsize)
		return s3_localfile_refuse_errno(f, -ENOSPC, room);
	if ((uint64_t)st->st_size != f->size && ftruncate(f->fd, (off_t)f->size))
		return s3_localfile_refuse_errno(f, -errno, lower);
	/* A file system that cannot reserve may run out of space later: a write then fails. */
	if (fallocate(f->fd, 0, 0, (off_t)f->size) == 0 || errno == EOPNOTSUPP)
		return 0;
	s3_localfile_refuse_errno(f, -errno, room);
	return ftruncate(f->fd, st->st_size) ? -errno : -ENOSPC;
}

int s3_localfile_open(struct s3_localfile *f, const struct s3_localfile_kind *kind,
	const char *path, uint64_t asked, const struct backend_host *host)
{
	struct stat st;
	int r;

	*f = (struct s3_localfile){.kind = kind, .host = *host, .fd = -1, .path = strdup(path)};
	r = f->path ? open_path(f, &st) : -ENOMEM;
	if (r == 0)
		r = choose_size(f, &st, asked);
	if (r == 0)
		r = look_inside(f, &st);
	/* Its first bytes identify it, so that a kill at any time leaves a recognizable file. */
	if (r == 0 && f->was_empty &&
		pwrite(f->fd, kind->magic, sizeof kind->magic, 0) != sizeof kind->magic)
		r = s3_localfile_refuse_errno(f, -errno, "give another path");
	if (r == 0)
		r = reserve(f, &st);
	if (r)
		s3_localfile_close(f, false);
	return r;
}

int s3_localfile_sync_name(const struct s3_localfile *f)
{
	char *path = realpath(f->path, NULL);
	int fd, r;

	if (!path)
		return -errno;
	strrchr(path, '/')[strrchr(path, '/') == path] = 0;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* A directory that may not be read is synced with all of its file system. */
	r = (fd < 0 ? syncfs(f->fd) : fsync(fd)) ? -errno : 0;
	if (fd >= 0)
		close(fd);
	free(path);
	return r == -EINVAL ? 0 : r; /* a file system that cannot */
}

/* As it was found: all zeroes, in the size that the user may have chosen. */
static int make_empty(const struct s3_localfile *f)
{
	if (ftruncate(f->fd, 0))
		return -1;
	return f->former_size ? ftruncate(f->fd, (off_t)f->former_size) : 0;
}

void s3_localfile_close(struct s3_localfile *f, bool used)
{
	if (f->made && !used)
		unlink(f->path);
	else if (f->was_empty && !used && make_empty(f))
		backend_debug(
			&f->host, "%s=%s: cannot be made empty again", f->kind->parameter, f->path);
	if (f->fd >= 0)
		close(f->fd);
	free(f->path);
	*f = (struct s3_localfile){.fd = -1};
}
