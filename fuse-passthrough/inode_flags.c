/* SPDX-License-Identifier: BSD-3-Clause */
/* The inode flags of lsattr(1) and chattr(1). */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/fs.h>

#include "passthrough.h"

/* What the calls take. */
union inode_flags {
	int flags;
	struct fsxattr attr;
};

/* How long the last release of a file may take to get here after close(2). */
#define RELEASE_MS 100

/*
 * Linux before 5.13 sends them without a look at who calls: the owner changes flags, and only
 * root those that protect from everybody. 0 or errno.
 */
static int check_setter(fuse_req_t req, int fd, bool whole, unsigned protecting)
{
	uid_t caller = fuse_req_ctx(req)->uid;
	struct stat st;

	if (fs.flags_checked || caller == 0)
		return 0;
	if (fstat(fd, &st) == -1)
		return errno;
	if (st.st_uid != caller)
		return whole ? EPERM : EACCES;
	return protecting ? EPERM : 0;
}

/*
 * Nobody writes to a file that is immutable, so neither what the kernel's cache holds of it.
 * Nothing here may wait for the kernel to write that, see docs/fuse.md.
 */
static bool holds_data(struct inode *inode)
{
	for (int i = 0; i < RELEASE_MS && may_hold_data(inode); i++)
		usleep(1000);
	return may_hold_data(inode);
}

/* Whether the call may set wanted: 0 or errno. */
static int check_change(fuse_req_t req, struct inode *inode, int fd, unsigned int cmd,
	const union inode_flags *wanted)
{
	bool whole = cmd == FS_IOC_FSSETXATTR;
	const unsigned immutable = whole ? FS_XFLAG_IMMUTABLE : FS_IMMUTABLE_FL;
	const unsigned append = whole ? FS_XFLAG_APPEND : FS_APPEND_FL;
	union inode_flags now;
	unsigned old, new;
	int result;

	memset(&now, 0, sizeof(now));
	if (ioctl(fd, whole ? FS_IOC_FSGETXATTR : FS_IOC_GETFLAGS, &now) == -1)
		return errno;
	old = whole ? now.attr.fsx_xflags : (unsigned)now.flags;
	new = whole ? wanted->attr.fsx_xflags : (unsigned)wanted->flags;
	result = check_setter(req, fd, whole, (old ^ new) & (immutable | append));
	/* The source asks whether the daemon may: not its owner, but who has CAP_SYS_RESOURCE. */
	if (result == 0 && !whole && ((old ^ new) & FS_JOURNAL_DATA_FL) &&
		fuse_req_ctx(req)->uid != 0)
		result = EPERM;
	if (result == 0 && (new & ~old &immutable) && holds_data(inode))
		result = EBUSY;
	return result;
}

/*
 * Only the four calls that the kernel translates itself before it
 * sends them. Files are opened again: those at hand may be directories.
 */
void fs_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg,
	struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_size, size_t out_size)
{
	union inode_flags value;
	bool get = cmd == FS_IOC_GETFLAGS || cmd == FS_IOC_FSGETXATTR;
	bool set = cmd == FS_IOC_SETFLAGS || cmd == FS_IOC_FSSETXATTR;
	size_t size = cmd == FS_IOC_GETFLAGS || cmd == FS_IOC_SETFLAGS ? sizeof(value.flags)
								       : sizeof(value.attr);
	struct inode *inode = inode_of(ino);
	int path_fd, fd, result;

	(void)arg;
	(void)fi;
	(void)flags;
	if (!(get && out_size >= size) && !(set && in_size >= size)) {
		session_reply_error(req, ENOTTY);
		return;
	}
	path_fd = inode_get(inode);
	if (path_fd < 0) {
		session_reply_error(req, -path_fd);
		return;
	}
	fd = open_retrying(fd_path(path_fd).path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		inode_put(inode);
		session_reply_error(req, -fd);
		return;
	}
	memset(&value, 0, sizeof(value));
	if (set)
		memcpy(&value, in, size);
	result = set ? check_change(req, inode, fd, cmd, &value) : 0;
	if (result == 0 && ioctl(fd, cmd, &value) == -1)
		result = errno;
	if (set && result == 0)
		atomic_store(&inode->names, NAMES_UNKNOWN);
	close(fd);
	inode_put(inode);
	/*
	 * It changed the time of change, too, for which the kernel would not ask again, or failed
	 * after a change as in inode_put_changed(). This waits for nobody: the caller keeps the
	 * inode until it has its answer.
	 */
	if (set)
		fuse_lowlevel_notify_inval_inode(session.fuse, ino, -1, 0);
	if (result)
		session_reply_error(req, result);
	else
		fuse_reply_ioctl(req, 0, get ? &value : NULL, get ? size : 0);
}
