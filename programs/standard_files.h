/* SPDX-License-Identifier: BSD-3-Clause */
/* The standard files of a program whose parent had closed some of them. */
#ifndef USERBLK_STANDARD_FILES_H
#define USERBLK_STANDARD_FILES_H

#include <fcntl.h>
#include <unistd.h>

/*
 * Opens those that are closed, so that no device or log gets their numbers: what is printed would
 * be written into it.
 */
static inline void open_standard_files(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

#endif
