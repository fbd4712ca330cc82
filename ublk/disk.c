/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/disk_nodes.h"
#include "ublk/disk.h"

/* For how long nothing may be written before it is given up, and how often that is looked at. */
#define SYNC_LIMIT_MS 30000
#define STEP_MS	      20

extern char **environ;

int ublk_disk_claim(uint32_t id)
{
	char path[32];
	int fd;

	snprintf(path, sizeof path, "/dev/ublkb%" PRIu32, id);
	fd = open(path, O_RDONLY | O_EXCL | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

bool ublk_disk_in_use(uint32_t id)
{
	int fd = ublk_disk_claim(id);

	if (fd >= 0)
		close(fd);
	return fd == -EBUSY;
}

/* How many writes and flushes of the disk have ended; 0: not known. */
static uint64_t writes_ended(uint32_t id)
{
	uint64_t value[16] = {0};
	char path[48];
	FILE *file;

	snprintf(path, sizeof path, "/sys/block/ublkb%" PRIu32 "/stat", id);
	file = fopen(path, "re");
	if (!file)
		return 0;
	for (int i = 0; i < 16 && fscanf(file, "%" SCNu64, &value[i]) == 1; i++)
		;
	fclose(file);
	return value[4] + value[15];
}

/* The end of the process that writes, as ublk_disk_sync() answers it. */
static int await(uint32_t id, pid_t child, bool (*over)(void *opaque), void *opaque)
{
	struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, child, 0), .events = POLLIN};
	uint64_t before = writes_ended(id);
	int status, r = -ETIME;

	for (int waited = 0; waited < SYNC_LIMIT_MS; waited += STEP_MS) {
		uint64_t now = writes_ended(id);
		pid_t ended = waitpid(child, &status, WNOHANG);

		if (ended != 0) {
			r = ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0
											    : -EIO;
			break;
		}
		if (over && over(opaque)) {
			r = -ECANCELED;
			break;
		}
		if (now != before)
			waited = 0;
		before = now;
		poll(&end, 1, STEP_MS); /* without a descriptor it sleeps as long */
	}
	if (end.fd >= 0)
		close(end.fd);
	return r;
}

/*
 * Runs sync(1), which says what it could not write: a process of its own, since one that waits
 * in the kernel for the disk cannot be killed, and the disk's own server must be able to end.
 */
static int run_sync(uint32_t id, char *const *argv, bool (*over)(void *opaque), void *opaque)
{
	posix_spawn_file_actions_t actions;
	pid_t child;
	int r;

	if (posix_spawn_file_actions_init(&actions) != 0)
		return -ENOMEM;
	r = posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
	if (r == 0)
		r = posix_spawnp(&child, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (r != 0)
		return -r;
	r = await(id, child, over, opaque);
	if (r == -ETIME || r == -ECANCELED)
		kill(child, SIGKILL); /* it ends when its requests do */
	return r;
}

int ublk_disk_sync(uint32_t id, bool in_use, bool (*over)(void *opaque), void *opaque)
{
	static char program[] = "sync";
	char *all[] = {program, NULL};
	glob_t nodes;
	char disk[32];
	int r = in_use ? run_sync(id, all, over, opaque) : 0;

	if (r < 0)
		return r;
	snprintf(disk, sizeof disk, "/dev/ublkb%" PRIu32, id);
	r = -ENOENT;
	if (disk_nodes(disk, 1, &nodes)) {
		nodes.gl_pathv[0] = program;
		r = run_sync(id, nodes.gl_pathv, over, opaque);
	}
	globfree(&nodes);
	return r;
}
