/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "buse/child.h"
#include "programs/other_files.h"

void child_settle(const char *name, int one, int other)
{
	int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

	/* No Ctrl-C or Ctrl-Z. */
	setsid();
	/* Not what `killall userblk-buse` looks for. */
	prctl(PR_SET_NAME, name);
	if (chdir("/") < 0)
		errno = 0;
	/* A reader of the server's messages must see the end of them. */
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		dup2(nothing, fd);
	close_other_files(STDERR_FILENO + 1, one, other);
}
