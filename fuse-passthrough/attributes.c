/* SPDX-License-Identifier: BSD-3-Clause */
/* Attributes of files: getattr, statx, setattr. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "passthrough.h"

/* In the kernel's number, which libfuse hands on where it knows it (killpriv_v2). */
#define SETATTR_KILL_SETID (1 << 11)

double attr_timeout(struct inode *inode, mode_t mode)
{
	if (S_ISREG(mode) && ((mode & (S_ISUID | S_ISGID)) || changes_unseen(inode)))
		return 0;
	return session.timeout;
}

/* Takes the bits from fd that go from a file with the attributes st. */
static int clear_setid_of(fuse_req_t req, int fd, const struct stat *st)
{
	mode_t mode = st->st_mode & ~(mode_t)S_ISUID;

	/* As Linux 6.2 and later do: also where only a member of the group may set it. */
	if ((mode & S_IXGRP) || ((mode & S_ISGID) && fuse_req_ctx(req)->uid != 0 &&
					!caller_in_group(req, st->st_gid)))
		mode &= ~(mode_t)S_ISGID;
	if (mode != st->st_mode && chmod(fd_path(fd).path, mode & ALLPERMS) == -1)
		return -errno;
	return 0;
}

int clear_setid(fuse_req_t req, int fd)
{
	struct stat st;

	/* The calls of others lose the bits by themselves, and who is not the owner may not. */
	if (!fs.owns_all)
		return 0;
	return fstat(fd, &st) == -1 ? -errno : clear_setid_of(req, fd, &st);
}

/* Answers req with attributes of the source. */
static void reply_attr(fuse_req_t req, fuse_ino_t ino, struct stat *st)
{
	st->st_ino = shown_ino(st->st_dev, st->st_ino);
	fuse_reply_attr(req, st, attr_timeout(inode_of(ino), st->st_mode));
}

/* A descriptor for the attributes: of the open file if there is one. */
static int attr_fd(fuse_ino_t ino, const struct fuse_file_info *fi)
{
	return fi ? file_fd(fi) : inode_get(inode_of(ino));
}

static void attr_done(fuse_ino_t ino, const struct fuse_file_info *fi)
{
	if (!fi)
		inode_put(inode_of(ino));
}

static void fs_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	int fd = attr_fd(ino, fi), result;
	struct stat st;

	if (fd < 0) {
		session_reply_error(req, -fd);
		return;
	}
	result = fstatat(fd, "", &st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) == -1 ? -errno : 0;
	attr_done(ino, fi);
	if (result)
		session_reply_error(req, -result);
	else
		reply_attr(req, ino, &st);
}

#if HAVE_STATX
static void fs_statx(fuse_req_t req, fuse_ino_t ino, int flags, int mask, struct fuse_file_info *fi)
{
	int fd = attr_fd(ino, fi), result;
	struct statx stx;

	if (fd < 0) {
		session_reply_error(req, -fd);
		return;
	}
	result = statx(fd, "", flags | AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, (unsigned)mask, &stx);
	result = result == -1 ? -errno : 0;
	attr_done(ino, fi);
	if (result < 0) {
		session_reply_error(req, -result);
		return;
	}
	stx.stx_ino = shown_ino(makedev(stx.stx_dev_major, stx.stx_dev_minor), stx.stx_ino);
	fuse_reply_statx(req, 0, &stx, attr_timeout(inode_of(ino), stx.stx_mode));
}
#endif

static int set_owner(int fd, const struct stat *st, int what)
{
	uid_t uid = what & FUSE_SET_ATTR_UID ? st->st_uid : (uid_t)-1;
	gid_t gid = what & FUSE_SET_ATTR_GID ? st->st_gid : (gid_t)-1;

	return fchownat(fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) == -1 ? -errno : 0;
}

/*
 * Whether a change that only the owner of fd may make is the kernel's own, which goes with a write
 * or a truncation: neither the caller nor the daemon, the same user unless that is root of a user
 * namespace, is the owner.
 */
static bool is_kernels_own(fuse_req_t req, int fd)
{
	uid_t caller = fuse_req_ctx(req)->uid, own = geteuid();
	struct stat st;

	return !fs.owns_all && (fs.is_root || caller == own) && fstat(fd, &st) == 0 &&
	       st.st_uid != own && st.st_uid != caller;
}

/*
 * Sets times that the source lets only the owner choose, if it lets anybody. With write-back the
 * kernel sends what its own clock says where others need to have the moment set only, as touch(1)
 * does, or nothing: it also sends the time of the change then, and a user does not choose that.
 */
static int set_clock_times(fuse_req_t req, int fd, bool open_file, const struct stat *st, int what)
{
	if (!(what & FUSE_SET_ATTR_CTIME))
		return -EPERM;
	/* The data, or the new size, has changed the source's already. */
	if (open_file || (what & FUSE_SET_ATTR_SIZE))
		return 0;
	if ((what & FUSE_SET_ATTR_ATIME_NOW) && st->st_mtim.tv_sec == st->st_ctim.tv_sec &&
		st->st_mtim.tv_nsec == st->st_ctim.tv_nsec)
		return utimensat(fd, "", NULL, AT_EMPTY_PATH) == -1 ? -errno : 0;
	return !(what & FUSE_SET_ATTR_ATIME) && is_kernels_own(req, fd) ? 0 : -EPERM;
}

/*
 * Whether the name by which fd, an O_PATH descriptor, was opened is gone. The number of names does
 * not always say so: over overlayfs, it may be that of the lower layer.
 */
static bool has_lost_name(int fd)
{
	static const char mark[] = " (deleted)";
	const ssize_t size = sizeof(mark) - 1;
	char path[PATH_MAX];
	ssize_t length = readlink(fd_path(fd).path, path, sizeof(path));

	return length >= size && memcmp(path + length - size, mark, (size_t)size) == 0;
}

/*
 * Whether the kernel sends times only because it has changed that of the last change, as with
 * write-back after a name is removed, and the source has the others. To set them again would have
 * an overlayfs copy all of a file from the lower layer to the upper one. If the file is gone, that
 * fails, and close(2) and fsync(2) would fail with it.
 */
static bool has_times(int fd, bool open_file, const struct stat *st, int what)
{
	struct stat now;

	return inodes_change_numbers() && !open_file &&
	       what == (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_CTIME) && fstat(fd, &now) == 0 &&
	       now.st_mtim.tv_sec == st->st_mtim.tv_sec &&
	       now.st_mtim.tv_nsec == st->st_mtim.tv_nsec &&
	       (now.st_nlink == 0 || has_lost_name(fd));
}

static int set_times(fuse_req_t req, int fd, bool open_file, const struct stat *st, int what)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};

	if (has_times(fd, open_file, st, what))
		return 0;
	if (what & FUSE_SET_ATTR_ATIME_NOW)
		times[0].tv_nsec = UTIME_NOW;
	else if (what & FUSE_SET_ATTR_ATIME)
		times[0] = st->st_atim;
	if (what & FUSE_SET_ATTR_MTIME_NOW)
		times[1].tv_nsec = UTIME_NOW;
	else if (what & FUSE_SET_ATTR_MTIME)
		times[1] = st->st_mtim;
	if (utimensat(fd, "", times, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) == 0)
		return 0;
	return errno == EPERM ? set_clock_times(req, fd, open_file, st, what) : -errno;
}

/*
 * Gives the file of an O_PATH descriptor, which is empty, a new time of modification, as open(2)
 * with O_TRUNC does. A daemon that does not own it opens it for that, and truncates it once more:
 * ext4 and Btrfs write what has been truncated at the next close(2), which must be the user's, not
 * this one. Without a descriptor, the time stays: open(2) fails as well then, and truncate(2) does
 * not need one.
 */
static int renew_time(int fd)
{
	static const struct timespec now[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
	int file;

	if (utimensat(fd, "", now, AT_EMPTY_PATH) == 0)
		return 0;
	file = open_retrying(fd_path(fd).path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	if (file < 0)
		return 0;
	close(file);
	return truncate(fd_path(fd).path, 0) == -1 ? -errno : 0;
}

/*
 * fd is open for writing if there is an open file, otherwise O_PATH. Where truncate(2) changes
 * nothing, many file systems do not change the time either, and the request may be of an open(2)
 * with O_TRUNC. With write-back, that sends the time as well.
 */
static int set_size(int fd, bool open_file, off_t size, int what)
{
	struct stat st;
	bool renews = !open_file && size == 0 &&
		      (!session.writeback || (what & FUSE_SET_ATTR_MTIME)) && fstat(fd, &st) == 0 &&
		      st.st_size == 0;
	int result = open_file ? ftruncate(fd, size) : truncate(fd_path(fd).path, size);

	if (result == -1)
		return -errno;
	return renews ? renew_time(fd) : 0;
}

static int set_mode(fuse_req_t req, int fd, mode_t mode)
{
	struct stat st;
	mode_t changed;

	if (chmod(fd_path(fd).path, mode & ALLPERMS) == 0)
		return 0;
	if (errno != EPERM || fs.killpriv_v2 || !is_kernels_own(req, fd))
		return -errno;
	if (fstat(fd, &st) == -1)
		return -EPERM;
	/* The kernel only takes set-id bits away, and so does the source with what is written. */
	changed = (st.st_mode ^ mode) & ALLPERMS;
	return changed & (mode | ACCESSPERMS | S_ISVTX) ? -EPERM : 0;
}

static int set_attributes(fuse_req_t req, int fd, bool open_file, const struct stat *st, int what)
{
	/*
	 * As in clear_setid(): the calls of others do it. Capabilities go with a truncation or a
	 * new owner, also if root asks for it.
	 */
	bool drops = fs.killpriv_v2 && fs.owns_all && (what & SETATTR_KILL_SETID);
	struct stat before;
	int result = 0;

	caller_keep_setid();
	if (drops && fstat(fd, &before) == -1)
		return -errno;
	/* Giving a file away clears its set-id bits, so the mode comes after the owner. */
	if (what & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
		result = set_owner(fd, st, what);
	if (result == 0 && drops)
		result = clear_setid_of(req, fd, &before);
	if (result == 0 && (what & FUSE_SET_ATTR_MODE))
		result = set_mode(req, fd, st->st_mode);
	if (result == 0 && (what & FUSE_SET_ATTR_SIZE))
		result = set_size(fd, open_file, st->st_size, what);
	if (result == 0 && (what & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME)))
		result = set_times(req, fd, open_file, st, what);
	return result;
}

static void fs_setattr(
	fuse_req_t req, fuse_ino_t ino, struct stat *attr, int what, struct fuse_file_info *fi)
{
	int fd = attr_fd(ino, fi), result;
	struct stat st;

	if (fd < 0) {
		session_reply_error(req, -fd);
		return;
	}
	if (what & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID | FUSE_SET_ATTR_SIZE))
		lose_capability(inode_of(ino));
	result = set_attributes(req, fd, fi != NULL, attr, what);
	if (result == 0 && fstatat(fd, "", &st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) == -1)
		result = -errno;
	/* The data may be written later. */
	if (result == 0 && (what & FUSE_SET_ATTR_MODE) && is_kernels_own(req, fd))
		st.st_mode = (st.st_mode & S_IFMT) | (attr->st_mode & ALLPERMS);
	if (result && !fi)
		inode_put_changed(inode_of(ino));
	else
		attr_done(ino, fi);
	if (result)
		session_reply_error(req, -result);
	else
		reply_attr(req, ino, &st);
}

void operations_attributes(struct fuse_lowlevel_ops *ops)
{
	ops->getattr = fs_getattr;
	ops->setattr = fs_setattr;
#if HAVE_STATX
	ops->statx = fs_statx;
#endif
}
