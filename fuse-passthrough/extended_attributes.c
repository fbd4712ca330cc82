/* SPDX-License-Identifier: BSD-3-Clause */
/* Extended attributes, ACLs among them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "passthrough.h"

/* The largest value of an extended attribute (XATTR_SIZE_MAX); a list is as long at most. */
#define XATTR_MAX 65536

/* Answers with result bytes of value, with a size when none was asked for, or with an error. */
static void reply_xattr(fuse_req_t req, size_t size, const char *value, ssize_t result, int error)
{
	if (result == -1)
		session_reply_error(req, error);
	else if (size == 0)
		fuse_reply_xattr(req, (size_t)result);
	else
		fuse_reply_buf(req, value, (size_t)result);
}

static bool begins_with(const char *name, const char *prefix)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

static bool is_acl(const char *name)
{
	return begins_with(name, "system.posix_acl_");
}

/* Whether the file system of the source alone knows what name means, and who may change it. */
static bool is_of_source(const char *name)
{
	return begins_with(name, "system.") && !is_acl(name);
}

/*
 * The kernel asks for the capability before it writes to its cache, and not again once it has
 * heard that there is none: those writes take away what the source may have got by then.
 */
static void tell_no_value(struct inode *inode, const char *name)
{
	if (name && strcmp(name, CAPABILITY) == 0)
		lose_capability(inode);
}

/* getxattr, or listxattr as the daemon sees it when name is NULL. */
static void read_xattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct inode *inode = inode_of(ino);
	char small[1024], *value = small;
	struct fd_path path;
	ssize_t result;
	int fd, error;

	if (size > XATTR_MAX)
		size = XATTR_MAX;
	if (size > sizeof(small)) {
		value = malloc(size);
		if (!value) {
			session_reply_error(req, ENOMEM);
			return;
		}
	}
	fd = inode_get(inode);
	if (fd < 0) {
		tell_no_value(inode, name);
		session_reply_error(req, -fd);
	} else {
		path = fd_path(fd);
		result = name ? getxattr(path.path, name, value, size)
			      : listxattr(path.path, value, size);
		error = errno;
		inode_put(inode);
		/* A source without ACLs. The kernel would refuse everything to all but the owner.
		 */
		if (error == EOPNOTSUPP && name && is_acl(name))
			error = ENODATA;
		if (result == -1 && error != ERANGE)
			tell_no_value(inode, name);
		reply_xattr(req, size, value, result, error);
	}
	if (value != small)
		free(value);
}

static void fs_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	read_xattr(req, ino, name, size);
}

/* Takes the attributes out of a list that are not for users, and returns its new length. */
static ssize_t hide_trusted(char *list, ssize_t length)
{
	ssize_t kept = 0;

	for (ssize_t at = 0, next; at < length; at = next) {
		next = at + (ssize_t)strlen(list + at) + 1;
		if (begins_with(list + at, "trusted."))
			continue;
		memmove(list + kept, list + at, (size_t)(next - at));
		kept += next - at;
	}
	return kept;
}

static void fs_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct inode *inode = inode_of(ino);
	ssize_t result;
	char *list;
	int fd, error;

	if (!fs.is_root || fuse_req_ctx(req)->uid == 0) {
		read_xattr(req, ino, NULL, size);
		return;
	}
	/* The kernel shows the daemon more than the caller may see. */
	list = malloc(XATTR_MAX);
	fd = list ? inode_get(inode) : -ENOMEM;
	if (fd < 0) {
		session_reply_error(req, -fd);
		free(list);
		return;
	}
	result = listxattr(fd_path(fd).path, list, XATTR_MAX);
	error = errno;
	inode_put(inode);
	if (result != -1)
		result = hide_trusted(list, result);
	if (size > 0 && result > (ssize_t)size) {
		result = -1;
		error = ERANGE;
	}
	reply_xattr(req, size, list, result, error);
	free(list);
}

/*
 * A user who sets an ACL without belonging to the file's group loses the
 * set-group-ID bit. The kernel leaves that to the file system, which sees
 * only that the daemon may keep it.
 */
static int drop_setgid(fuse_req_t req, int fd)
{
	struct stat st;

	if (fuse_req_ctx(req)->uid == 0)
		return 0;
	if (fstatat(fd, "", &st, AT_EMPTY_PATH) == -1)
		return -errno;
	if (!(st.st_mode & S_ISGID) || caller_in_group(req, st.st_gid))
		return 0;
	return chmod(fd_path(fd).path, st.st_mode & ALLPERMS & ~(mode_t)S_ISGID) == -1 ? -errno : 0;
}

/*
 * Whether the sender of req may change name of fd: 0 or a negative errno. The kernel leaves names
 * of the source to the source, which would decide by the rights of the daemon. They hold an ACL of
 * NFSv4, say, so they are for who may change the mode.
 */
static int check_changer(fuse_req_t req, int fd, const char *name)
{
	uid_t caller = fuse_req_ctx(req)->uid;
	struct stat st;

	if (!is_of_source(name) || caller == 0 || caller == geteuid())
		return 0;
	if (fstatat(fd, "", &st, AT_EMPTY_PATH) == -1)
		return -errno;
	return st.st_uid == caller ? 0 : -EPERM;
}

/*
 * Answers the change of name by req with 0 or a negative errno. One of the source may have changed
 * the mode, for which the kernel would not ask again. This waits for nobody: the caller keeps the
 * inode until it has its answer.
 */
static void reply_change(fuse_req_t req, fuse_ino_t ino, const char *name, int result)
{
	if (result == 0 && is_of_source(name))
		fuse_lowlevel_notify_inval_inode(session.fuse, ino, -1, 0);
	session_reply_error(req, -result);
}

static void fs_setxattr(
	fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags)
{
	struct inode *inode = inode_of(ino);
	int fd = inode_get(inode), result;
	bool gives;

	if (fd < 0) {
		session_reply_error(req, -fd);
		return;
	}
	caller_keep_setid(); /* an ACL may change the mode */
	result = check_changer(req, fd, name);
	gives = result == 0 && fs.owns_all && strcmp(name, CAPABILITY) == 0;
	if (gives)
		begin_capability(inode);
	if (result == 0 && setxattr(fd_path(fd).path, name, value, size, flags) == -1)
		result = -errno;
	if (gives)
		end_capability(inode);
	if (result == 0 && strcmp(name, "system.posix_acl_access") == 0)
		result = drop_setgid(req, fd);
	inode_put_changed(inode);
	reply_change(req, ino, name, result);
}

/*
 * Whether the kernel takes name away by itself, with a change of the file by the sender of req: a
 * user could not. The source does so, too, when the change gets there, also where the daemon has
 * not the right to.
 */
static bool goes_with_a_change(fuse_req_t req, const char *name)
{
	return fuse_req_ctx(req)->uid != 0 && strcmp(name, CAPABILITY) == 0;
}

static void fs_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct inode *inode = inode_of(ino);
	int fd = inode_get(inode), result;

	if (fd < 0) {
		session_reply_error(req, -fd);
		return;
	}
	if (strcmp(name, CAPABILITY) == 0)
		lose_capability(inode);
	result = check_changer(req, fd, name);
	if (result == 0 && removexattr(fd_path(fd).path, name) == -1)
		result = -errno;
	inode_put_changed(inode);
	if (result == -EPERM && goes_with_a_change(req, name))
		result = 0;
	reply_change(req, ino, name, result);
}

void operations_extended_attributes(struct fuse_lowlevel_ops *ops)
{
	ops->getxattr = fs_getxattr;
	ops->listxattr = fs_listxattr;
	ops->setxattr = fs_setxattr;
	ops->removexattr = fs_removexattr;
}
