/* SPDX-License-Identifier: BSD-3-Clause */
/* The files that a process has from its parent, and that others wait for the end of. */
#ifndef USERBLK_OTHER_FILES_H
#define USERBLK_OTHER_FILES_H

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* False: close_range(2) is missing (before Linux 5.9), or refused by a sandbox. */
static inline bool close_range_of_files(long first, long last)
{
	/* The C library of Debian 11 does not have it. */
	return first > last || syscall(__NR_close_range, first, last, 0) == 0;
}

static inline void close_one_by_one(int first, int one, int other)
{
	DIR *list = opendir("/proc/self/fd");
	const struct dirent *entry;
	long limit;

	if (!list) {
		limit = sysconf(_SC_OPEN_MAX);
		for (int fd = first; fd < limit; fd++)
			if (fd != one && fd != other)
				close(fd);
		return;
	}
	while ((entry = readdir(list)) != NULL) {
		int fd = entry->d_name[0] == '.' ? -1 : atoi(entry->d_name);

		if (fd >= first && fd != one && fd != other && fd != dirfd(list))
			close(fd);
	}
	closedir(list);
}

/* Closes all descriptors from first on but two; -1: none. */
static inline void close_other_files(int first, int one, int other)
{
	int low = one < other ? one : other, high = one < other ? other : one;
	long after_low = low < first ? first : low + 1L;
	long after_high = high < first ? first : high + 1L;

	if (!close_range_of_files(first, low - 1L) || !close_range_of_files(after_low, high - 1L) ||
		!close_range_of_files(after_high, INT_MAX))
		close_one_by_one(first, one, other);
}

#endif
