/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <linux/fuse.h>

#include "passthrough.h"

/* An open directory. Two requests for it may come at once. */
struct directory {
	pthread_mutex_t lock;
	DIR *stream;
	off_t offset;	  /* up to where it has been answered */
	unsigned changes; /* of its inode, before what the stream has read ahead */
	/* What comes next, if the stream has been read beyond: it did not fit. Not sought again,
	 * since the offset may be one that lseek(2) refuses: NFS passes its server's on. */
	const struct dirent *next;
};

static struct directory *directory_of(const struct fuse_file_info *fi)
{
	return (struct directory *)(uintptr_t)fi->fh;
}

static int dir_fd(const struct fuse_file_info *fi)
{
	return dirfd(directory_of(fi)->stream);
}

static void directory_close(struct directory *dir)
{
	if (dir->stream)
		closedir(dir->stream);
	pthread_mutex_destroy(&dir->lock);
	free(dir);
}

/* Opens the directory fd, an O_PATH descriptor, with flags. A descriptor or a negative errno. */
static int open_directory(int fd, int flags)
{
	int result;

	do
		result = openat(fd, ".", flags);
	while (result == -1 && fds_freed());
	if (result != -1)
		return result;
	/* Its user may read it and not enter it, and the daemon is not root. */
	return errno == EACCES ? open_retrying(fd_path(fd).path, flags) : -errno;
}

void fs_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct inode *inode = inode_of(ino);
	struct directory *dir;
	int parent = inode_get(inode), fd, error, flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

	if (parent < 0) {
		session_reply_error(req, -parent);
		return;
	}
	fd = open_directory(parent, flags | (fi->flags & O_NOATIME));
	/* As in open_source(). */
	if (fd == -EPERM && (fi->flags & O_NOATIME))
		fd = open_directory(parent, flags);
	inode_put(inode);
	if (fd < 0) {
		session_reply_error(req, -fd);
		return;
	}
	dir = calloc(1, sizeof(*dir));
	if (!dir) {
		close(fd);
		session_reply_error(req, ENOMEM);
		return;
	}
	pthread_mutex_init(&dir->lock, NULL);
	dir->stream = fdopendir(fd);
	if (!dir->stream) {
		error = errno;
		close(fd);
		directory_close(dir);
		session_reply_error(req, error);
		return;
	}
	fi->fh = (uintptr_t)dir;
	fi->keep_cache = session.timeout > 0;
	fi->cache_readdir = session.timeout > 0;
	if (fuse_reply_open(req, fi) != 0)
		directory_close(dir);
}

/*
 * Puts the entry d into the capacity bytes at to. Returns its size, more than capacity
 * if it does not fit: then nothing was counted.
 */
static size_t add_entry(fuse_req_t req, fuse_ino_t ino, const struct dirent *d, char *to,
	size_t capacity, bool plus)
{
	struct fuse_entry_param entry = {
		.attr.st_ino = shown_ino(inode_of(ino)->dev, d->d_ino),
		.attr.st_mode = DTTOIF(d->d_type),
	};
	const struct fuse_entry_param only_name = entry;
	size_t size;

	if (!plus)
		return fuse_add_direntry(req, to, capacity, d->d_name, &entry.attr, d->d_off);
	size = fuse_add_direntry_plus(req, NULL, 0, d->d_name, NULL, 0);
	if (size > capacity)
		return size;
	if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0 &&
		lookup_name(inode_of(ino), d->d_name, &entry) < 0)
		/* Gone, or a mount point: the name is shown, a lookup will say more. */
		entry = only_name;
	return fuse_add_direntry_plus(req, to, capacity, d->d_name, &entry, d->d_off);
}

/* Takes back the lookups of a readdirplus answer that never arrived. */
static void forget_entries(const char *buffer, size_t length)
{
	struct fuse_direntplus entry;

	for (size_t at = 0; at < length; at += FUSE_DIRENTPLUS_SIZE(&entry)) {
		memcpy(&entry, buffer + at, FUSE_NAME_OFFSET_DIRENTPLUS);
		if (entry.entry_out.nodeid)
			inode_forget(inode_of(entry.entry_out.nodeid), 1);
	}
}

/*
 * Prepares dir to go on at offset. It seeks at the beginning, too: Btrfs lists what there was when
 * it was opened or sought last, and the kernel remembers that for all who come. So it does with
 * what was read ahead before a change, if an answer with it follows one of a listing that has begun
 * since.
 */
static void go_to(struct directory *dir, const struct inode *inode, off_t offset)
{
	unsigned changes = atomic_load(&inode->changes);
	bool stale = fs.seeks_back && changes != dir->changes;

	if (offset == dir->offset && offset != 0 && !stale)
		return;
	seekdir(dir->stream, offset);
	dir->offset = offset;
	dir->changes = changes;
	dir->next = NULL;
}

static void read_directory(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct directory *dir, bool plus)
{
	char *buffer = malloc(size);
	size_t used = 0;
	int error = 0;

	if (!buffer) {
		session_reply_error(req, ENOMEM);
		return;
	}
	pthread_mutex_lock(&dir->lock);
	go_to(dir, inode_of(ino), offset);
	for (;;) {
		const struct dirent *d = dir->next;
		size_t length;

		errno = 0;
		d = d ? d : readdir(dir->stream);
		if (!d) {
			error = errno;
			break;
		}
		length = add_entry(req, ino, d, buffer + used, size - used, plus);
		dir->next = length > size - used ? d : NULL;
		if (dir->next)
			break;
		used += length;
		dir->offset = d->d_off;
	}
	pthread_mutex_unlock(&dir->lock);
	/* What was read before an error counts lookups and must arrive. */
	if (error && used == 0)
		session_reply_error(req, error);
	else if (fuse_reply_buf(req, buffer, used) != 0 && plus)
		forget_entries(buffer, used);
	free(buffer);
}

void fs_readdir(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
	read_directory(req, ino, size, offset, directory_of(fi), false);
}

void fs_readdirplus(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
	read_directory(req, ino, size, offset, directory_of(fi), true);
}

void fs_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	directory_close(directory_of(fi));
	session_reply_error(req, 0);
}

void fs_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	int fd = dir_fd(fi);

	(void)ino;
	session_reply_error(req, (datasync ? fdatasync(fd) : fsync(fd)) == -1 ? errno : 0);
}
