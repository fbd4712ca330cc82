/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "identity.h"
#include "passthrough.h"

static int watcher = -1; /* inotify, with NUMBERS_SHARED; used under the lock of all inodes */

int identity_init(enum numbers numbers)
{
	if (numbers != NUMBERS_SHARED)
		return 0;
	watcher = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	return watcher == -1 ? -errno : 0;
}

void identity_end(void)
{
	if (watcher != -1)
		close(watcher);
	watcher = -1;
}

struct file_handle *handle_of(int fd)
{
	union {
		struct file_handle handle;
		char space[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	} big;
	struct file_handle *handle;
	size_t size;
	int mount_id;

	memset(&big.handle, 0, sizeof(big.handle));
	big.handle.handle_bytes = MAX_HANDLE_SZ;
	if (name_to_handle_at(fd, "", &big.handle, &mount_id, AT_EMPTY_PATH) == -1)
		return NULL;
	size = sizeof(struct file_handle) + big.handle.handle_bytes;
	handle = malloc(size);
	if (handle)
		memcpy(handle, &big, size);
	return handle;
}

static bool same_handle(const struct file_handle *a, const struct file_handle *b)
{
	return a->handle_type == b->handle_type && a->handle_bytes == b->handle_bytes &&
	       memcmp(a->f_handle, b->f_handle, a->handle_bytes) == 0;
}

bool has_handle(int fd, const struct file_handle *handle)
{
	struct file_handle *own = handle_of(fd);
	bool same = own && same_handle(own, handle);

	free(own);
	return same;
}

/* Watches fd: a number, the same one for an inode that is watched already; or a negative errno. */
static int watch(int fd)
{
	int result = inotify_add_watch(watcher, fd_path(fd).path, IN_DELETE_SELF);

	return result == -1 ? -errno : result;
}

/* Takes watches away, and what they have said. */
static void unwatch(int first, int second)
{
	char events[4096];

	if (first >= 0)
		inotify_rm_watch(watcher, first);
	if (second >= 0 && second != first)
		inotify_rm_watch(watcher, second);
	while (read(watcher, events, sizeof(events)) > 0)
		continue;
}

/*
 * Whether two open descriptors are one inode of the kernel, which watches each only once: 1 or 0,
 * or a negative errno. What the daemon may not read is not watched, and they are taken for one. The
 * lock of all inodes is held, so nothing here may wait: closing an inotify instance would.
 */
static int are_same_inode(int fd, int other_fd)
{
	int first = watch(fd);
	int second = first < 0 ? first : watch(other_fd);

	unwatch(first, second);
	if (second < 0)
		return second == -EACCES ? 1 : second;
	return first == second;
}

static bool same_handles(int fd, int other_fd)
{
	struct file_handle *handle = handle_of(other_fd);
	bool same = !handle || has_handle(fd, handle);

	free(handle);
	return same;
}

static bool same_time(struct timespec a, struct timespec b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/*
 * Whether two descriptors with equal numbers and different handles may be names of one file: a FUSE
 * server that goes by paths has a handle for each.
 */
static bool may_be_links(int fd, int other_fd)
{
	struct stat a, b;

	return fstat(fd, &a) == 0 && fstat(other_fd, &b) == 0 && a.st_mode == b.st_mode &&
	       !S_ISDIR(a.st_mode) && a.st_nlink > 1 && b.st_nlink > 1 && a.st_uid == b.st_uid &&
	       a.st_gid == b.st_gid && a.st_size == b.st_size && same_time(a.st_mtim, b.st_mtim);
}

/*
 * Whether the file that is open as fd, by a name, can be that of other_fd, where no handles tell:
 * not if that is gone, nor with another time of birth, which stays. Over SMB, the kernel has no
 * other generation, either, and knows it without asking the server.
 */
static bool may_be_same(int fd, int other_fd)
{
	const int flags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
	const unsigned mask = STATX_TYPE | STATX_NLINK | STATX_BTIME;
	struct statx a, b;

	if (statx(other_fd, "", flags, mask, &b) == -1)
		return errno != ENOENT && errno != ESTALE;
	if (statx(fd, "", flags, mask, &a) == -1)
		return true;
	if ((a.stx_mode & S_IFMT) != (b.stx_mode & S_IFMT) || (a.stx_nlink > 0 && b.stx_nlink == 0))
		return false;
	return !(a.stx_mask & b.stx_mask & STATX_BTIME) ||
	       (a.stx_btime.tv_sec == b.stx_btime.tv_sec &&
		       a.stx_btime.tv_nsec == b.stx_btime.tv_nsec);
}

int are_same_file(enum numbers numbers, int fd, int other_fd)
{
	struct stat st;

	switch (numbers) {
	case NUMBERS_RECYCLED:
		return same_handles(fd, other_fd);
	case NUMBERS_WITHOUT_HANDLES:
		return may_be_same(fd, other_fd);
	case NUMBERS_OF_SEVERAL:
		return same_handles(fd, other_fd) || may_be_links(fd, other_fd);
	case NUMBERS_SHARED:
		/* By hard links only. */
		if (fstat(fd, &st) == -1)
			return -errno;
		return st.st_nlink < 2 || S_ISDIR(st.st_mode) ? 1 : are_same_inode(fd, other_fd);
	default:
		return 1;
	}
}
