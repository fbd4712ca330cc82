/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening, creating and closing files; kernel passthrough. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/fuse.h>

#include "passthrough.h"

/* linux/fuse.h has it since Linux 6.9. */
#ifndef FUSE_DEV_IOC_BACKING_CLOSE
#define FUSE_DEV_IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)
#endif

/*
 * fi->fh of an open file: its descriptor, and above that, plus 1, a second one
 * with O_DIRECT if the user asked for that. Two, because the kernel writes its
 * cached pages back through any open file of the inode, and the last page of a
 * file is seldom aligned; and because fcntl(2) may turn the flag on and off.
 * The bit between them: both have O_APPEND. The last one: it is one of the
 * writers. That is kept, since the flags of a release can be other ones: what
 * is created to be neither read nor written is created to be both.
 */
#define ONLY_APPENDS (UINT64_C(1) << 31)
#define WRITES	     (UINT64_C(1) << 63)

static uint64_t pack(int fd, int direct_fd)
{
	return (uint64_t)fd | (uint64_t)(direct_fd + 1) << 32;
}

int file_fd(const struct fuse_file_info *fi)
{
	return (int)(fi->fh & INT32_MAX);
}

bool only_appends(const struct fuse_file_info *fi)
{
	return fi->fh & ONLY_APPENDS;
}

static int file_direct_fd(const struct fuse_file_info *fi)
{
	return (int)(fi->fh >> 32 & INT32_MAX) - 1;
}

int data_fd(const struct fuse_file_info *fi)
{
	int direct_fd = file_direct_fd(fi);

	return direct_fd != -1 && (fi->flags & O_DIRECT) && !fi->writepage ? direct_fd
									   : file_fd(fi);
}

/* fd, which wrote to the end of its file, without O_APPEND. -1: the file may still only grow. */
static int without_append(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags == -1 || fcntl(fd, F_SETFL, flags & ~O_APPEND) == -1 ? -1 : fd;
}

int range_fd(const struct fuse_file_info *fi)
{
	return only_appends(fi) ? without_append(file_fd(fi)) : file_fd(fi);
}

/*
 * A file that may only grow by now has perhaps been opened before, and what the cache holds belongs
 * at the offset that the kernel says. So does what is appended with write-back. A write to a place
 * that the user chooses does not, which has O_APPEND, too, with RWF_NOAPPEND; without O_APPEND, it
 * is refused, unless the file may change by now.
 */
int write_fd(struct inode *inode, const struct fuse_file_info *fi, off_t offset)
{
	/* It stays open while fi, which is one of the writers, does. */
	int plain_fd = atomic_load(&inode->plain_fd) - 1;
	struct stat st;

	if (!only_appends(fi))
		return data_fd(fi);
	if (fi->writepage)
		return plain_fd != -1 ? plain_fd : without_append(file_fd(fi));
	if (plain_fd != -1 && session.writeback && (fi->flags & O_APPEND) &&
		fstat(plain_fd, &st) == 0 && offset >= st.st_size)
		return plain_fd;
	return fi->flags & O_APPEND ? data_fd(fi) : without_append(data_fd(fi));
}

/*
 * The flag is that of the moment, for fcntl(2) may turn it on and off, and
 * mappings do not have it. With write-back the kernel alone knows the end of
 * the file, and its offset counts.
 */
bool appends(const struct fuse_file_info *fi)
{
	return (fi->flags & O_APPEND) && !fi->writepage && !session.writeback;
}

bool appends_twice(const struct fuse_file_info *fi)
{
	return only_appends(fi) && (fi->flags & O_APPEND) && !fi->writepage && session.writeback;
}

/* -1: none. */
static void close_files(int fd, int other_fd)
{
	if (other_fd != -1)
		close(other_fd);
	if (fd != -1)
		close(fd);
}

/* ---- open, create, release ---- */

/* The flags with which the daemon opens a file that the user opens with flags. */
static int source_flags(int flags)
{
	/* pwrite(2) on an O_APPEND descriptor ignores the offset, see appends(). */
	flags &= ~(O_APPEND | O_DIRECT | O_CREAT | O_EXCL | O_TMPFILE | O_NOCTTY | O_NOFOLLOW);
	/* A page that is written in part is read first. */
	if (session.writeback && (flags & O_ACCMODE) == O_WRONLY)
		flags = (flags & ~O_ACCMODE) | O_RDWR;
	return flags | O_CLOEXEC;
}

int open_retrying(const char *path, int flags)
{
	int fd;

	do
		fd = open(path, flags);
	while (fd == -1 && fds_freed());
	return fd == -1 ? -errno : fd;
}

/* Opens path with flags for the user's open fi. */
static int open_source(const char *path, int flags, struct fuse_file_info *fi)
{
	int fd = open_retrying(path, flags);

	/* O_NOATIME is for the owner of the file, as the caller is, and the daemon need not be. */
	if (fd == -EPERM && (flags & O_NOATIME)) {
		flags &= ~O_NOATIME;
		fd = open_retrying(path, flags);
	}
	/* A file that may only grow (chattr(1) +a) is opened to append, or not for writing. */
	if (fd == -EPERM && (fi->flags & O_APPEND)) {
		fd = open_retrying(path, flags | O_APPEND);
		fi->fh |= ONLY_APPENDS;
	}
	/* Where a daemon that is not root may only write, as the user asked. */
	if (fd == -EACCES && (fi->flags & O_ACCMODE) == O_WRONLY) {
		fd = open_retrying(path, (flags & ~O_ACCMODE) | O_WRONLY);
		/* No page of it could be read. */
		fi->direct_io = 1;
	}
	return fd;
}

/* The second descriptor for fd where fi asks for O_DIRECT: into *direct_fd, or -1. */
static int open_direct(int fd, struct fuse_file_info *fi, int *direct_fd)
{
	int flags = (source_flags(fi->flags) & ~O_TRUNC) | O_DIRECT, result = -1;

	if (fi->flags & O_DIRECT) {
		result = open_source(fd_path(fd).path, flags, fi);
		/* A new file may deny it to a daemon that is not root: no second one then. */
		if (result == -EACCES)
			result = -1;
		else if (result < 0)
			return result;
	}
	*direct_fd = result;
	return 0;
}

#if HAVE_PASSTHROUGH
/*
 * Asks the kernel to do the I/O of the file fd itself. It does so with the
 * credentials of this thread for any writer, so without the right to keep
 * set-id bits. A file that has them now goes through the daemon, which knows
 * the writer. So does one that may only grow: as of Linux 6.18, the kernel
 * maps it as any other. Returns the kernel's number for it, or 0.
 */
static int32_t pass_through(fuse_req_t req, int fd)
{
	struct statx stx;
	int32_t id;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_MODE, &stx) == -1 ||
		(stx.stx_mode & (S_ISUID | S_ISGID)) || (stx.stx_attributes & STATX_ATTR_APPEND))
		return 0;
	caller_lose_setid();
	id = fuse_passthrough_open(req, fd);
	if (id > 0)
		return id;
	if (atomic_fetch_add(&fs.passthrough_refused, 1) == 0)
		session_warn("the kernel refuses to pass a file through; its data goes through the "
			     "daemon, as may that of others");
	return 0;
}

/* All open files of an inode must agree on passthrough: the first one decides. */
static void begin_passthrough(fuse_req_t req, struct inode *inode, struct fuse_file_info *fi)
{
	inode_lock(inode);
	if (inode->opens++ == 0)
		inode->backing_id = pass_through(req, file_fd(fi));
	fi->backing_id = inode->backing_id;
	inode_unlock(inode);
	if (!fi->backing_id)
		return;
	fi->keep_cache = 0; /* pages of before would hide what is written now */
	/*
	 * The kernel's own file keeps O_APPEND when fcntl(2) has taken it off ours, so that
	 * reads and writes by this descriptor come here. Mappings are passed through. Not without
	 * need: sendfile(2) goes to the kernel's cache then, of which the writes that it passes
	 * through know nothing.
	 */
	if ((fi->flags & O_APPEND) && (fi->flags & O_ACCMODE) != O_RDONLY)
		fi->direct_io = 1;
}

/* As fuse_passthrough_close(), which needs a request: an answer that fails has none any more. */
static int close_backing(int32_t id)
{
	return ioctl(fuse_session_fd(session.fuse), FUSE_DEV_IOC_BACKING_CLOSE, &id);
}

static void end_passthrough(struct inode *inode)
{
	int32_t last = 0;

	inode_lock(inode);
	if (--inode->opens == 0) {
		last = inode->backing_id;
		inode->backing_id = 0;
	}
	/* Closed under the lock: the next open of the inode must not meet it. */
	if (last && close_backing(last) == -1)
		session_warn("a file passed through stays open in the kernel: %s", strerror(errno));
	inode_unlock(inode);
}
#endif

/* Whether the kernel may hold data written through it back: without write-back, those of mappings.
 */
static bool may_dirty(const struct fuse_file_info *fi)
{
	int mode = fi->flags & O_ACCMODE;

	/* There is a fourth one, which neither reads nor writes: open(2). */
	return mode == O_RDWR || (mode == O_WRONLY && session.writeback);
}

bool changes_unseen(struct inode *inode)
{
	return atomic_load(&inode->mapped);
}

/*
 * Before the last of the writers is released, all that was written through any has arrived. What
 * the kernel passes through (backing_id lasts as long as an open file) needs no cache.
 */
bool may_hold_data(struct inode *inode)
{
	return atomic_load(&inode->writers) > 0 && inode->backing_id == 0;
}

/*
 * Counts fi. With kernel passthrough, a mapping that is made through it may be there after its
 * release: the kernel maps a file of its own.
 *
 * What may only append has no pages in the cache, because nobody sees who stores what at which
 * place there. Linux before 6.6 goes on to show, and to write, what pages held before a direct
 * write: there it shares those of an earlier writer, unless it could be mapped.
 */
static void begin_writing(struct inode *inode, struct fuse_file_info *fi)
{
	bool plain;

	fi->fh |= WRITES;
	inode_lock(inode);
	atomic_fetch_add(&inode->writers, 1);
	if (!only_appends(fi) && atomic_load(&inode->plain_fd) == 0)
		atomic_store(&inode->plain_fd, file_fd(fi) + 1);
	plain = atomic_load(&inode->plain_fd) != 0;
	inode_unlock(inode);
	if (plain && only_appends(fi) && !fs.direct_drops_pages &&
		(fi->flags & O_ACCMODE) == O_WRONLY)
		fi->direct_io = 0;
	if (fs.passthrough)
		atomic_store(&inode->mapped, true);
}

/* Closes the descriptor of fi, too, or leaves it to the other writers. */
static void end_writing(struct inode *inode, const struct fuse_file_info *fi)
{
	int fd = file_fd(fi), plain_fd;
	bool last;

	inode_lock(inode);
	plain_fd = atomic_load(&inode->plain_fd) - 1;
	last = atomic_fetch_sub(&inode->writers, 1) == 1;
	if (last)
		atomic_store(&inode->plain_fd, 0);
	inode_unlock(inode);
	close_files(last || plain_fd != fd ? fd : -1, last && plain_fd != fd ? plain_fd : -1);
}

/* Makes fi ready to be answered: fd and direct_fd belong to it from now on. */
static void finish_open(
	fuse_req_t req, struct inode *inode, struct fuse_file_info *fi, int fd, int direct_fd)
{
	(void)req;
	fi->fh = pack(fd, direct_fd) | (fi->fh & ONLY_APPENDS);
	fi->keep_cache = session.timeout > 0;
	fi->direct_io = fi->direct_io || only_appends(fi);
#if HAVE_NOFLUSH
	/*
	 * Nothing is left to do when it is closed: a request less, and close(2) waits for nobody.
	 * With write-back, the kernel ignores this.
	 */
	fi->noflush = fs.plain_close || (fi->flags & O_ACCMODE) == O_RDONLY;
#endif
#if HAVE_PASSTHROUGH
	if (fs.passthrough)
		begin_passthrough(req, inode, fi);
#endif
	if (may_dirty(fi))
		begin_writing(inode, fi);
#if HAVE_PARALLEL_WRITES
	if (fs.direct_mmap && !fs.passthrough && session_direct_io(fi)) {
		fi->direct_io = 1;
		fi->parallel_direct_writes = 1;
	}
#endif
}

/*
 * Whether stores to a mapping made by fi could replace what a file that may only grow holds: they
 * would go where a program writes that has opened it before. The kernel does not ask about
 * mappings.
 */
static bool could_store(struct inode *inode, const struct fuse_file_info *fi)
{
	bool passed;

	if (!only_appends(fi) || (fi->flags & O_ACCMODE) != O_RDWR)
		return false;
	inode_lock(inode);
	passed = inode->backing_id != 0;
	inode_unlock(inode);
	return passed || (fs.direct_mmap && atomic_load(&inode->plain_fd) != 0);
}

static void undo_open(struct inode *inode, const struct fuse_file_info *fi)
{
#if HAVE_PASSTHROUGH
	if (fs.passthrough)
		end_passthrough(inode);
#endif
	close_files(fi->fh & WRITES ? -1 : file_fd(fi), file_direct_fd(fi));
	if (fi->fh & WRITES)
		end_writing(inode, fi);
}

/* Opens a known inode, a regular file. */
static int open_inode(fuse_req_t req, struct inode *inode, struct fuse_file_info *fi)
{
	int path_fd = inode_get(inode), fd, direct_fd = -1, result;

	if (path_fd < 0)
		return path_fd;
	if (fi->flags & O_TRUNC)
		lose_capability(inode);
	fd = open_source(fd_path(path_fd).path, source_flags(fi->flags), fi);
	if ((fi->flags & O_ACCMODE) == O_RDONLY)
		inode_put(inode);
	else
		inode_put_changed(inode);
	if (fd < 0)
		return fd;
	result = could_store(inode, fi) ? -EBUSY : open_direct(fd, fi, &direct_fd);
	if (result < 0) {
		close(fd);
		return result;
	}
	if ((fi->flags & O_ACCMODE) != O_RDONLY)
		find_capability(inode, fd);
	finish_open(req, inode, fi, fd, direct_fd);
	/* Waits for nobody: the caller keeps the inode until it has its answer. */
	if (changes_unseen(inode) && (fi->fh & WRITES))
		fuse_lowlevel_notify_inval_inode(session.fuse, inode_number(inode), -1, 0);
	return 0;
}

void fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	int result = open_inode(req, inode_of(ino), fi);

	if (result < 0)
		session_reply_error(req, -result);
	else if (fuse_reply_open(req, fi) != 0)
		undo_open(inode_of(ino), fi);
}

/*
 * Counts a lookup of the file that is open as fd, and fills entry: by name, its
 * name below parent, unless that is NULL or somebody has already put another
 * file in its place. Going by fd is slower: /proc makes it a new file.
 */
static int lookup_open(int fd, fuse_ino_t parent, const char *name, struct fuse_entry_param *entry)
{
	struct inode *inode;
	struct stat st;
	int path_fd, result;

	if (name && lookup_name(inode_of(parent), name, entry) == 0) {
		inode = inode_of(entry->ino);
		if (fstat(fd, &st) == 0 && st.st_ino == inode->ino && st.st_dev == inode->dev)
			return 0;
		inode_forget(inode, 1);
	}
	path_fd = open_retrying(fd_path(fd).path, O_PATH | O_CLOEXEC);
	result = path_fd < 0 ? path_fd : lookup_fd(path_fd, entry);
	entry->entry_timeout = 0; /* if it had the name, it has it no more */
	return result;
}

/* Fills entry and fi for fd, a new file; an error leaves it open. name: as in lookup_open(). */
static int adopt(fuse_req_t req, int fd, fuse_ino_t parent, const char *name,
	struct fuse_file_info *fi, struct fuse_entry_param *entry)
{
	int direct_fd = -1, result;

	result = open_direct(fd, fi, &direct_fd);
	if (result < 0)
		return result;
	result = lookup_open(fd, parent, name, entry);
	if (result < 0) {
		close_files(-1, direct_fd);
		return result;
	}
	lose_capability(inode_of(entry->ino)); /* it has none, so that none is to stay */
	finish_open(req, inode_of(entry->ino), fi, fd, direct_fd);
	if (changes_unseen(inode_of(entry->ino)))
		entry->attr_timeout = 0;
	return 0;
}

static void reply_create(
	fuse_req_t req, int result, const struct fuse_entry_param *entry, struct fuse_file_info *fi)
{
	struct inode *inode;

	if (result < 0) {
		session_reply_error(req, -result);
		return;
	}
	inode = inode_of(entry->ino);
	if (fuse_reply_create(req, entry, fi) != 0) {
		undo_open(inode, fi);
		inode_forget(inode, 1);
	}
}

/* Creates name below parent, or a file without name when name is NULL. */
static int create_file(
	fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, int open_flags)
{
	int flags = source_flags(open_flags) | O_NOFOLLOW;
	int dir = inode_get(inode_of(parent)), fd;

	if (dir < 0)
		return dir;
	if (name)
		flags |= O_CREAT | O_EXCL;
	else
		flags |= O_TMPFILE | (open_flags & O_EXCL); /* O_EXCL: never to get a name */
	mode = caller_file_mode(req, dir, mode);
	caller_begin(req, mode);
	do
		fd = openat(dir, name ? name : ".", flags, mode);
	while (fd == -1 && fds_freed());
	fd = fd == -1 ? -errno : fd;
	names_changed(inode_of(parent));
	caller_end(req);
	inode_put(inode_of(parent));
	return fd;
}

void fs_create(
	fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	struct fuse_entry_param entry;
	int fd = create_file(req, parent, name, mode, fi->flags);
	int result = fd < 0 ? fd : adopt(req, fd, parent, name, fi, &entry);
	bool in_vain = fd >= 0 && result < 0;

	/*
	 * It is there, while the kernel remembers that there is none: somebody has made it since,
	 * or it was made here and could not be opened as asked for. The kernel looks again, and
	 * opens it like any other file: for who may, and if it is one.
	 */
	if (!(fi->flags & O_EXCL) && (result == -EEXIST || in_vain))
		result = -ESTALE;
	else if (in_vain)
		take_back(inode_of(parent), name, 0, fd);
	if (in_vain)
		close(fd);
	reply_create(req, result, &entry, fi);
}

#if HAVE_TMPFILE
void fs_tmpfile(fuse_req_t req, fuse_ino_t parent, mode_t mode, struct fuse_file_info *fi)
{
	struct fuse_entry_param entry;
	int fd = create_file(req, parent, NULL, mode, fi->flags);
	int result = fd < 0 ? fd : adopt(req, fd, parent, NULL, fi, &entry);

	if (fd >= 0 && result < 0)
		close(fd);
	reply_create(req, result, &entry, fi);
}
#endif

void fs_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	undo_open(inode_of(ino), fi);
	session_reply_error(req, 0);
}
