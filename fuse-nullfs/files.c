/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "names.h"
#include "nullfs.h"

#define MOST_READ  (1 << 20) /* of one request */
#define BLOCK	   4096
#define MANY	   (1 << 30) /* blocks and files that fit, as statvfs(3) reports */
#define PERMISSION 07777

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

struct nullfs nullfs;

static const char zeroes[MOST_READ];

static struct node *node_of(fuse_ino_t ino)
{
	return ino == FUSE_ROOT_ID ? names_root() : (struct node *)(uintptr_t)ino;
}

/* ---- names ---- */

static void fill_entry(struct fuse_entry_param *entry, const struct node *node)
{
	entry->ino = (uintptr_t)node;
	entry->generation = entry->attr.st_ino; /* never the same, where an address is */
	entry->attr_timeout = session.timeout;
	entry->entry_timeout = session.timeout;
}

static void null_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = {0};
	struct node *node;
	int result = names_find(node_of(parent), name, &node, &entry.attr);

	if (result) {
		session_reply_absent(req);
		return;
	}
	fill_entry(&entry, node);
	if (fuse_reply_entry(req, &entry) != 0)
		names_forget(node, 1);
}

static void forget(fuse_ino_t ino, uint64_t times)
{
	names_forget(node_of(ino), times);
}

static void null_forget(fuse_req_t req, fuse_ino_t ino, uint64_t times)
{
	forget(ino, times);
	fuse_reply_none(req);
}

static void null_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	session_forget_multi(req, count, forgets, forget);
}

/* Makes a node for who asks. 0 or an errno. */
static int make(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	struct node **node, struct fuse_entry_param *entry)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	const struct maker maker = {ctx->uid, ctx->gid, mode, 0};
	int result = names_make(node_of(parent), name, &maker, true, node, &entry->attr);

	if (result < 0)
		return -result;
	fill_entry(entry, *node);
	return 0;
}

static void make_and_reply(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct fuse_entry_param entry = {0};
	struct node *node;
	int error = make(req, parent, name, mode, &node, &entry);

	if (error)
		fuse_reply_err(req, error);
	else if (fuse_reply_entry(req, &entry) != 0)
		names_forget(node, 1);
}

static void null_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	make_and_reply(req, parent, name, S_IFDIR | (mode & PERMISSION));
}

static void null_mknod(
	fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t device)
{
	(void)device;
	if (S_ISREG(mode))
		make_and_reply(req, parent, name, mode);
	else
		fuse_reply_err(req, EPERM); /* as a file system that has no such nodes */
}

static void null_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	fuse_reply_err(req, -names_remove(node_of(parent), name, false));
}

static void null_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	fuse_reply_err(req, -names_remove(node_of(parent), name, true));
}

static void null_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	const char *new_name, unsigned flags)
{
	if (flags & ~(unsigned)RENAME_NOREPLACE)
		fuse_reply_err(req, EINVAL);
	else
		fuse_reply_err(req, -names_rename(node_of(parent), name, node_of(new_parent),
					    new_name, flags & RENAME_NOREPLACE));
}

static void null_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	names_stat(node_of(ino), &st);
	fuse_reply_attr(req, &st, session.timeout);
}

static void null_setattr(
	fuse_req_t req, fuse_ino_t ino, struct stat *wanted, int which, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	names_set(node_of(ino), wanted, which, &st);
	fuse_reply_attr(req, &st, session.timeout);
}

static void null_readdir(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t place, struct fuse_file_info *fi)
{
	char *buffer = malloc(size), name[NAME_MAX + 1];
	struct stat st;
	size_t used = 0, length;

	(void)fi;
	if (!buffer) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	while ((place = names_list(node_of(ino), place, name, &st)) != 0) {
		length = fuse_add_direntry(req, buffer + used, size - used, name, &st, place);
		if (length > size - used)
			break; /* it is the first of the next request */
		used += length;
	}
	fuse_reply_buf(req, buffer, used);
	free(buffer);
}

static void null_statfs(fuse_req_t req, fuse_ino_t ino)
{
	const struct statvfs st = {
		.f_bsize = BLOCK,
		.f_frsize = BLOCK,
		.f_blocks = MANY,
		.f_bfree = MANY,
		.f_bavail = MANY,
		.f_files = MANY,
		.f_ffree = MANY - names_count(),
		.f_favail = MANY - names_count(),
		.f_namemax = NAME_MAX,
	};

	(void)ino;
	session_note_statfs(req);
	fuse_reply_statfs(req, &st);
}

/* ---- data ---- */

static void prepare_open(struct fuse_file_info *fi)
{
	fi->keep_cache = session.timeout > 0;
#if HAVE_PARALLEL_WRITES
	if (nullfs.direct_mmap && session_direct_io(fi)) {
		fi->direct_io = 1;
		fi->parallel_direct_writes = 1;
	}
#endif
}

static void null_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	prepare_open(fi);
	fuse_reply_open(req, fi);
}

static void null_create(
	fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	struct fuse_entry_param entry = {0};
	struct node *node;
	int error = make(req, parent, name, S_IFREG | (mode & PERMISSION), &node, &entry);

	if (error) {
		fuse_reply_err(req, error);
		return;
	}
	prepare_open(fi);
	if (fuse_reply_create(req, &entry, fi) != 0)
		names_forget(node, 1);
}

static void null_read(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
	off_t end = names_size(node_of(ino));
	struct fuse_bufvec data = FUSE_BUFVEC_INIT(0);

	(void)fi;
	if (offset >= end)
		size = 0;
	else if ((off_t)size > end - offset)
		size = (size_t)(end - offset);
	if (size > MOST_READ)
		size = MOST_READ;
	if (!session.splice) {
		fuse_reply_buf(req, zeroes, size);
		return;
	}
	data.buf[0].size = size;
	data.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	data.buf[0].fd = nullfs.zeroes;
	fuse_reply_data(req, &data, 0); /* not moved: the pages are needed again */
}

static void null_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in, off_t offset,
	struct fuse_file_info *fi)
{
	size_t size = fuse_buf_size(in);
	struct fuse_bufvec out = FUSE_BUFVEC_INIT(size);

	(void)fi;
	/* What was spliced is still in the pipe, which the next request needs. */
	if (in->buf[0].flags & FUSE_BUF_IS_FD) {
		out.buf[0].flags = FUSE_BUF_IS_FD;
		out.buf[0].fd = nullfs.null;
		if (fuse_buf_copy(&out, in, FUSE_BUF_SPLICE_MOVE) < 0) {
			fuse_reply_err(req, EIO);
			return;
		}
	}
	names_grow(node_of(ino), offset + (off_t)size);
	fuse_reply_write(req, size);
}

/* There is nothing that could be lost. */
static void null_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	(void)ino, (void)datasync, (void)fi;
	fuse_reply_err(req, 0);
}

/* ---- beginning ---- */

int files_make(unsigned long count, off_t size)
{
	const struct maker maker = {geteuid(), getegid(), S_IFREG | 0644, size};
	int result = names_init();
	char name[32];

	for (unsigned long i = 0; i < count && result == 0; i++) {
		snprintf(name, sizeof(name), "file-%lu", i);
		result = names_make(names_root(), name, &maker, false, NULL, NULL);
	}
	return result;
}

int files_open(void)
{
	nullfs.zeroes = memfd_create("zeroes", MFD_CLOEXEC);
	nullfs.null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (nullfs.zeroes == -1 || nullfs.null == -1)
		return -errno;
	/* Pages that are there are spliced without being made first. */
	return pwrite(nullfs.zeroes, zeroes, MOST_READ, 0) == MOST_READ ? 0 : -ENOMEM;
}

/* Without flush and release of directories: the kernel asks once, and not again. */
void files_operations(struct fuse_lowlevel_ops *ops)
{
	ops->lookup = null_lookup;
	ops->forget = null_forget;
	ops->forget_multi = null_forget_multi;
	ops->getattr = null_getattr;
	ops->setattr = null_setattr;
	ops->mknod = null_mknod;
	ops->mkdir = null_mkdir;
	ops->unlink = null_unlink;
	ops->rmdir = null_rmdir;
	ops->rename = null_rename;
	ops->open = null_open;
	ops->create = null_create;
	ops->read = null_read;
	ops->write_buf = null_write_buf;
	ops->fsync = null_fsync;
	ops->fsyncdir = null_fsync;
	ops->readdir = null_readdir;
	ops->statfs = null_statfs;
}
