/* SPDX-License-Identifier: BSD-3-Clause */
#include "ublk/syncing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "ublk/process.h"

/* What the process answers by its exit code, besides 0. */
#define NOT_WRITTEN 1 /* as sync(1) does */
#define NOT_TRIED   2

/* -EIO: not all is written; another negative errno: it could not be tried. */
static int write_out(const char *path, bool file_system)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), r;

	if (fd < 0)
		return -errno;
	r = (file_system ? syncfs(fd) : fsync(fd)) < 0 ? -EIO : 0;
	close(fd);
	return r;
}

int ublk_sync_for_parent(char *const *argv)
{
	bool file_system = argv[0] && strcmp(argv[0], UBLK_SYNC_FILE_SYSTEMS) == 0;
	int code = 0;

	argv += file_system;
	if (!argv[0]) {
		sync();
		return 0;
	}
	for (size_t i = 0; argv[i]; i++) {
		int r = write_out(argv[i], file_system);

		if (r == -EIO)
			code = NOT_WRITTEN;
		/* The kernel has written what it held of a partition that is gone. */
		else if (r < 0 && (i == 0 || file_system || (r != -ENOENT && r != -ENXIO)))
			code = code ? code : NOT_TRIED;
	}
	return code;
}

int ublk_sync_begin(char *const *argv, pid_t *child)
{
	int r = ublk_process_spawn("/proc/self/exe", argv, -1, child);

	/* Without /proc: sync(1). That of GNU does the same; others may write all disks instead. */
	return r == -ENOENT ? ublk_process_spawn(argv[1], argv + 1, -1, child) : r;
}

int ublk_sync_result(int exit_code)
{
	/* Others are the loader's, for example, that finds no library. */
	return exit_code == 0 ? 0 : exit_code == NOT_WRITTEN ? -EIO : -ENXIO;
}
