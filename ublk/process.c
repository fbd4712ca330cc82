/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "ublk/process.h"

/* An entry of /proc/PID/fd. The server of the file that is open there may be out of reach. */
static bool is_device(int directory, const char *name, dev_t device)
{
	struct statx s;

	return statx(directory, name, AT_STATX_DONT_SYNC, STATX_TYPE, &s) == 0 &&
	       S_ISCHR(s.stx_mode) && makedev(s.stx_rdev_major, s.stx_rdev_minor) == device;
}

int ublk_process_with(pid_t pid, dev_t device)
{
	struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
	const struct dirent *entry;
	char path[32];
	DIR *files;
	int r = -ENXIO;

	if (end.fd < 0)
		return -errno;
	snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
	files = opendir(path);
	while (files && r < 0 && (entry = readdir(files)))
		if (is_device(dirfd(files), entry->d_name, device))
			r = end.fd;
	if (files)
		closedir(files);
	/* Its parent may not have asked for its end yet. */
	if (r < 0 && poll(&end, 1, 0) > 0)
		r = -ESRCH;
	if (r < 0)
		close(end.fd);
	return r;
}
