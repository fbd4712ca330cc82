/* SPDX-License-Identifier: BSD-3-Clause */
#include "ublk/stopping.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ublk/process.h"
#include "ublk/record.h"

/* From here on an exit code is not an errno: 127 is the loader's, that finds no library. */
#define NO_ERRNO 126

/* How often it is asked whether that is waited for no longer. */
#define STEP_MS 100

/* Its signals are blocked, as the server's are. */
static int spawn(uint32_t id, uint64_t cookie, pid_t *child)
{
	static char program[] = "userblk-ublk", command[] = "stop-for-server";
	char disk[16], mark[20], parent[16];
	char *const argv[] = {program, command, disk, mark, parent, NULL};

	snprintf(disk, sizeof disk, "%" PRIu32, id);
	snprintf(mark, sizeof mark, "%" PRIx64, cookie);
	snprintf(parent, sizeof parent, "%d", (int)getpid());
	return ublk_process_spawn("/proc/self/exe", argv, -1, child);
}

int ublk_stop_elsewhere(struct ublk_control *c, uint32_t id, uint64_t cookie,
	bool (*over)(void *opaque), void *opaque)
{
	struct pollfd end = {.events = POLLIN};
	pid_t child, ended;
	int status, r = spawn(id, cookie, &child);

	if (r < 0) /* such as without /proc */
		return ublk_control_stop(c, id, over, opaque);
	end.fd = (int)syscall(SYS_pidfd_open, child, 0);
	r = -ECANCELED;
	for (;;) {
		poll(&end, 1, STEP_MS); /* without a descriptor it sleeps as long */
		ended = waitpid(child, &status, WNOHANG);
		if (ended != 0)
			break;
		if (over(opaque))
			goto out;
	}
	r = ended == child && WIFEXITED(status) && WEXITSTATUS(status) < NO_ERRNO
		    ? -WEXITSTATUS(status)
		    : -UBLK_STOP_FAILED;
out:
	if (end.fd >= 0)
		close(end.fd);
	/* One that was killed, or could not begin. */
	return r == -UBLK_STOP_FAILED ? ublk_control_stop(c, id, over, opaque) : r;
}

static bool never(void *opaque)
{
	(void)opaque;
	return false;
}

int ublk_stop_for_parent(struct ublk_control *c, uint32_t id, uint64_t cookie, pid_t parent)
{
	int r = ublk_control_examine(c, id, cookie);

	if (r == 0)
		r = ublk_control_stop(c, id, never, NULL);
	if (r == 0 && getppid() != parent) {
		r = ublk_control_delete(c, id, cookie);
		if (r == 0)
			ublk_record_remove(id, cookie);
	}
	return -r;
}
