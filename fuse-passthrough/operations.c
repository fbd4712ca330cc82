/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <linux/fs.h>

#include "passthrough.h"

struct fd_path fd_path(int fd)
{
	struct fd_path path;

	snprintf(path.path, sizeof(path.path), FD_PATHS "/%d", fd);
	return path;
}

static void reply(fuse_req_t req, int result)
{
	session_reply_error(req, -result);
}

void inode_put_changed(struct inode *inode)
{
	inode_put(inode);
	/* Waits for nobody: the caller keeps the inode until it has its answer. */
	if (inodes_change_numbers())
		fuse_lowlevel_notify_inval_inode(session.fuse, inode_number(inode), -1, 0);
}

/* ---- lookup ---- */

int lookup_fd(int fd, struct fuse_entry_param *entry)
{
	struct inode *inode;
	int result;

	memset(entry, 0, sizeof(*entry));
	if (fstatat(fd, "", &entry->attr, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) == -1) {
		result = -errno;
		close(fd);
		return result;
	}
	result = inode_learn(fd, &entry->attr, &inode);
	if (result < 0)
		return result;
	entry->ino = inode_number(inode);
	entry->attr.st_ino = shown_ino(entry->attr.st_dev, entry->attr.st_ino);
	entry->generation = inode->generation;
	entry->attr_timeout = attr_timeout(inode, entry->attr.st_mode);
	entry->entry_timeout = session.timeout;
	return 0;
}

/*
 * An O_PATH descriptor of the one path component name, or a negative errno.
 * Whatever name is, the walk neither leaves the directory nor the mount: a name
 * of a file in dir cannot, and for the others RESOLVE_BENEATH sees to it, for
 * which the kernel takes a lock that all mounts share.
 */
static int open_child(int dir, const char *name)
{
	bool may_leave = strcmp(name, "..") == 0 || strchr(name, '/');
	const struct open_how how = {
		.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
		.resolve =
			RESOLVE_NO_XDEV | (may_leave ? RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS : 0),
	};
	long fd;

	do /* EAGAIN: a rename or mount raced with the check of RESOLVE_BENEATH */
		fd = syscall(__NR_openat2, dir, name, &how, sizeof(how));
	while (fd == -1 && (errno == EAGAIN || fds_freed()));
	return fd == -1 ? -errno : (int)fd;
}

/*
 * Finds out about names in the directory parent, open as dir. By the flag of chattr(1) +F: one that
 * the daemon may not open, because it is not root, is taken for one without. If it cannot, as
 * without descriptors, the next lookup tries again.
 */
static void learn_names(struct inode *parent, int dir)
{
	int flags = 0, fd;

	do
		fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	while (fd == -1 && fds_freed());
	if (fd != -1) {
		if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == -1)
			flags = 0;
		close(fd);
	} else if (errno != EACCES) {
		return;
	}
	atomic_store(&parent->names, flags & FS_CASEFOLD_FL ? NAMES_WITHOUT_CASE : NAMES_WITH_CASE);
}

/* As far as that is known. */
static enum names names_of(const struct inode *parent)
{
	return fs.names != NAMES_UNKNOWN ? fs.names : atomic_load(&parent->names);
}

/* Those in the directory parent, open as dir. */
static enum names names_in(struct inode *parent, int dir)
{
	if (names_of(parent) == NAMES_UNKNOWN)
		learn_names(parent, dir);
	return names_of(parent);
}

/*
 * Whether the kernel may remember which file a name in parent is, or that there is none. It does
 * not see that a change of one name changes others that differ in case.
 */
static bool may_remember_names(const struct inode *parent)
{
	return names_of(parent) == NAMES_WITH_CASE;
}

/*
 * Whether a file goes from the directory from to the directory to, and the kernel's memory of its
 * name with it, where the kernel must not remember names.
 */
static bool takes_memory(enum names from, enum names to)
{
	return session.timeout > 0 && from != NAMES_WITHOUT_CASE && to != NAMES_WITH_CASE;
}

int lookup_name(struct inode *parent, const char *name, struct fuse_entry_param *entry)
{
	int dir = inode_get(parent), fd, result;

	if (dir < 0)
		return dir;
	names_in(parent, dir);
	fd = open_child(dir, name);
	inode_put(parent);
	result = fd < 0 ? fd : lookup_fd(fd, entry);
	if (result == 0 && !may_remember_names(parent))
		entry->entry_timeout = 0;
	return result;
}

void take_back(struct inode *parent, const char *name, int flags, int fd)
{
	int dir = inode_get(parent);
	struct stat st;
	dev_t dev;
	ino_t ino;

	if (dir < 0)
		return;
	if (fd == -1 || (fstat(fd, &st) == 0 && inode_identify(dir, name, &dev, &ino) &&
				dev == st.st_dev && ino == st.st_ino))
		unlinkat(dir, name, flags);
	names_changed(parent);
	inode_put(parent);
}

/*
 * The entry of name, which was made if result is 0; otherwise that error. flags: to remove it; fd:
 * what it is of, or -1. The parent is in use.
 */
static int lookup_made(fuse_ino_t parent, const char *name, int flags, int fd, int result,
	struct fuse_entry_param *entry)
{
	if (result == 0) {
		result = lookup_name(inode_of(parent), name, entry);
		/* It has gone: somebody else may have the name by now. */
		if (result < 0 && result != -ENOENT)
			take_back(inode_of(parent), name, flags, fd);
	}
	return result;
}

/* Answers with entry, or with result when that is an error. */
static void reply_entry(fuse_req_t req, int result, const struct fuse_entry_param *entry)
{
	if (result < 0)
		session_reply_error(req, -result);
	else if (fuse_reply_entry(req, entry) != 0)
		inode_forget(inode_of(entry->ino), 1); /* the kernel never heard of it */
}

/* The inode that is synced, which the session has looked up by a name that no file needs to have.
 */
static int lookup_synced(struct fuse_entry_param *entry)
{
	int result = -ENOENT, fd;
	struct inode *inode;

	pthread_mutex_lock(&fs.synced_lock);
	inode = atomic_load(&fs.synced);
	if (inode) {
		result = fd = inode_get(inode);
		if (fd >= 0) {
			fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
			result = fd == -1 ? -errno : lookup_fd(fd, entry);
			inode_put(inode);
		}
	}
	pthread_mutex_unlock(&fs.synced_lock);
	entry->entry_timeout = 0; /* nobody else is to find it by that name */
	return result;
}

static void fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry;
	int result;

	if (atomic_load(&fs.synced) && parent == FUSE_ROOT_ID && session_looks_up(req, name))
		result = lookup_synced(&entry);
	else
		result = lookup_name(inode_of(parent), name, &entry);
	if (result == -ENOENT && may_remember_names(inode_of(parent)))
		session_reply_absent(req);
	else
		reply_entry(req, result, &entry);
}

static void forget(fuse_ino_t ino, uint64_t count)
{
	inode_forget(inode_of(ino), count);
}

static void fs_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
	forget(ino, count);
	fuse_reply_none(req);
}

static void fs_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	session_forget_multi(req, count, forgets, forget);
}

static void fs_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct inode *inode = inode_of(ino);
	char target[PATH_MAX + 1];
	int fd = inode_get(inode);
	ssize_t length;

	if (fd < 0) {
		session_reply_error(req, -fd);
		return;
	}
	length = readlinkat(fd, "", target, PATH_MAX);
	if (length == -1) {
		int error = errno;

		inode_put(inode);
		session_reply_error(req, error);
		return;
	}
	inode_put(inode);
	target[length] = '\0';
	fuse_reply_readlink(req, target);
}

static void fs_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct inode *inode = inode_of(ino);
	int fd = inode_get(inode), result;
	struct statvfs st;

	session_note_statfs(req);
	if (fd < 0) {
		session_reply_error(req, -fd);
		return;
	}
	result = fstatvfs(fd, &st) == -1 ? errno : 0;
	inode_put(inode);
	if (result)
		session_reply_error(req, result);
	else
		fuse_reply_statfs(req, &st);
}

/* ---- names ---- */

/* dir is held from here to the end of the change, which makes a file of this mode. */
static int begin_change(fuse_req_t req, fuse_ino_t parent, mode_t mode)
{
	int dir = inode_get(inode_of(parent));

	if (dir >= 0)
		caller_begin(req, mode);
	return dir;
}

/* Ends it and answers with the new entry; result is what the call returned, with errno. */
static void end_change(fuse_req_t req, fuse_ino_t parent, const char *name, int flags, int result)
{
	struct fuse_entry_param entry;

	result = result == -1 ? -errno : 0;
	names_changed(inode_of(parent));
	caller_end(req);
	result = lookup_made(parent, name, flags, -1, result, &entry);
	inode_put(inode_of(parent));
	reply_entry(req, result, &entry);
}

static void fs_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	int dir = begin_change(req, parent, mode);

	if (dir < 0)
		reply(req, dir);
	else
		end_change(req, parent, name, 0,
			mknodat(dir, name, caller_file_mode(req, dir, mode), rdev));
}

static void fs_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	int dir = begin_change(req, parent, mode);

	if (dir < 0)
		reply(req, dir);
	else
		end_change(req, parent, name, AT_REMOVEDIR, mkdirat(dir, name, mode));
}

static void fs_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	int dir = begin_change(req, parent, 0);

	if (dir < 0)
		reply(req, dir);
	else
		end_change(req, parent, name, 0, symlinkat(target, dir, name));
}

static void fs_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *new_name)
{
	struct inode *inode = inode_of(ino), *parent = inode_of(new_parent);
	struct fuse_entry_param entry;
	int fd = inode_get(inode), dir, result;

	if (fd < 0) {
		reply(req, fd);
		return;
	}
	dir = inode_get(parent);
	if (dir < 0) {
		inode_put(inode);
		reply(req, dir);
		return;
	}
	result = linkat(AT_FDCWD, fd_path(fd).path, dir, new_name, AT_SYMLINK_FOLLOW);
	result = result == -1 ? -errno : 0;
	names_changed(parent);
	inode_renumber(inode); /* the new name is of this inode, also where the file has moved */
	result = lookup_made(new_parent, new_name, 0, fd, result, &entry);
	inode_put_changed(inode);
	inode_put(parent);
	reply_entry(req, result, &entry);
}

static void remove_name(fuse_req_t req, fuse_ino_t parent, const char *name, int flags)
{
	struct removal removal;
	int dir = inode_get(inode_of(parent)), result;

	if (dir < 0) {
		reply(req, dir);
		return;
	}
	result = removal_begin(&removal, dir, name);
	if (result == 0) {
		result = unlinkat(dir, name, flags) == -1 ? -errno : 0;
		names_changed(inode_of(parent));
		removal_end(&removal);
	}
	inode_put(inode_of(parent));
	reply(req, result);
}

static void fs_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_name(req, parent, name, 0);
}

static void fs_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_name(req, parent, name, AT_REMOVEDIR);
}

/*
 * Into *changed the inode of name below parent, which a rename may change, with its descriptor; or
 * NULL. 0 or a negative errno.
 */
static int hold_changed(struct inode *parent, const char *name, struct inode **changed)
{
	struct fuse_entry_param entry;
	int result;

	if (!inodes_change_numbers())
		return 0;
	result = lookup_name(parent, name, &entry);
	/* What is not there, or is a mount point, the rename refuses. */
	if (result < 0)
		return result == -ENOENT || result == -EXDEV ? 0 : result;
	result = inode_get(inode_of(entry.ino));
	if (result < 0) {
		inode_forget(inode_of(entry.ino), 1);
		return result;
	}
	*changed = inode_of(entry.ino);
	return 0;
}

static void release_changed(struct inode *inode)
{
	if (!inode)
		return;
	inode_put_changed(inode);
	inode_forget(inode, 1);
}

/* 0 or a negative errno. */
static int rename_over(fuse_req_t req, int dir, const char *name, int new_dir, const char *new_name,
	unsigned int flags)
{
	struct removal removal;
	int result = removal_begin(&removal, new_dir, new_name);

	if (result < 0)
		return result;
	/* RENAME_WHITEOUT makes a file. */
	caller_begin(req, 0);
	result = renameat2(dir, name, new_dir, new_name, flags) == -1 ? -errno : 0;
	caller_end(req);
	removal_end(&removal);
	return result;
}

/* 0 or a negative errno; from and to are open as dir and new_dir. */
static int rename_name(fuse_req_t req, struct inode *from, int dir, const char *name,
	struct inode *to, int new_dir, const char *new_name, unsigned int flags)
{
	enum names old = names_in(from, dir), new = names_in(to, new_dir);
	struct inode *moved = NULL, *exchanged = NULL;
	int result;

	/* mv(1) then makes a new file, about which the kernel asks. */
	if (from != to &&
		(takes_memory(old, new) || ((flags & RENAME_EXCHANGE) && takes_memory(new, old))))
		return -EXDEV;
	result = hold_changed(from, name, &moved);
	if (result == 0 && (flags & RENAME_EXCHANGE))
		result = hold_changed(to, new_name, &exchanged);
	if (result == 0)
		result = rename_over(req, dir, name, new_dir, new_name, flags);
	release_changed(exchanged);
	release_changed(moved);
	return result;
}

static void fs_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	const char *new_name, unsigned int flags)
{
	struct inode *from = inode_of(parent), *to = inode_of(new_parent);
	int dir = inode_get(from), new_dir, result;

	if (dir < 0) {
		reply(req, dir);
		return;
	}
	new_dir = inode_get(to);
	if (new_dir < 0) {
		inode_put(from);
		reply(req, new_dir);
		return;
	}
	result = rename_name(req, from, dir, name, to, new_dir, new_name, flags);
	names_changed(from);
	names_changed(to);
	inode_put(to);
	inode_put(from);
	reply(req, result);
}

void operations_namespace(struct fuse_lowlevel_ops *ops)
{
	ops->lookup = fs_lookup;
	ops->forget = fs_forget;
	ops->forget_multi = fs_forget_multi;
	ops->readlink = fs_readlink;
	ops->statfs = fs_statfs;
	ops->mknod = fs_mknod;
	ops->mkdir = fs_mkdir;
	ops->symlink = fs_symlink;
	ops->link = fs_link;
	ops->unlink = fs_unlink;
	ops->rmdir = fs_rmdir;
	ops->rename = fs_rename;
}
