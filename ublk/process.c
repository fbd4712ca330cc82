/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "programs/process_state.h"
#include "ublk/process.h"

/* An entry of /proc/PID/fd. The server of the file that is open there may be out of reach. */
static bool is_device(int directory, const char *name, dev_t device)
{
	struct statx s;

	return statx(directory, name, AT_STATX_DONT_SYNC, STATX_TYPE, &s) == 0 &&
	       S_ISCHR(s.stx_mode) && makedev(s.stx_rdev_major, s.stx_rdev_minor) == device;
}

/* Has the thread the device open? files: it has anything open. */
static bool has_open(const char *path, dev_t device, bool *files)
{
	DIR *directory = opendir(path);
	const struct dirent *entry;
	bool found = false;

	while (directory && !found && (entry = readdir(directory))) {
		if (entry->d_name[0] == '.')
			continue;
		*files = true;
		found = is_device(dirfd(directory), entry->d_name, device);
	}
	if (directory)
		closedir(directory);
	return found;
}

int ublk_process_with(pid_t pid, dev_t device)
{
	struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
	bool files = false, found = false;
	const struct dirent *thread;
	char path[320];
	DIR *threads;
	int r;

	/* The kernel has none for one that its parent has waited for. */
	if (end.fd < 0)
		return pid > 0 ? -errno : -ESRCH;
	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	threads = opendir(path);
	/* They share what is open, but one that has ended has nothing. */
	while (threads && !files && (thread = readdir(threads))) {
		if (thread->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%s/fd", (int)pid, thread->d_name);
		found = has_open(path, device, &files);
	}
	if (threads)
		closedir(threads);
	if (found)
		return end.fd;
	/* Its parent may not have asked for its end yet. */
	r = poll(&end, 1, 0) > 0 ? -ESRCH : -ENXIO;
	/* Its first thread may have ended before others. */
	if (r == -ENXIO && !files && process_state(pid) == 'Z')
		return end.fd;
	close(end.fd);
	return r;
}

/* Has the process ended, within the time? One that cannot be watched has. */
bool ublk_process_has_ended(int pidfd, int timeout_ms)
{
	struct pollfd end = {.fd = pidfd, .events = POLLIN};

	return pidfd < 0 || poll(&end, 1, timeout_ms) > 0;
}

/* The process that serves a disk that lives, as ublk_process_with() has it. */
int ublk_process_of_disk(const struct ublksrv_ctrl_dev_info *info)
{
	char path[32];
	struct stat st;

	snprintf(path, sizeof path, "/dev/ublkc%u", info->dev_id);
	return stat(path, &st) < 0 ? -errno : ublk_process_with(info->ublksrv_pid, st.st_rdev);
}

time_t ublk_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec;
}

int ublk_process_spawn(const char *program, char *const *argv, int input, pid_t *child)
{
	posix_spawn_file_actions_t actions;
	int r = posix_spawn_file_actions_init(&actions);

	if (r != 0)
		return -r;
	if (input >= 0)
		r = posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
	for (int fd = input < 0 ? STDIN_FILENO : STDOUT_FILENO; r == 0 && fd <= STDERR_FILENO; fd++)
		r = posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
	if (r == 0)
		r = posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
	if (r == 0)
		r = posix_spawnp(child, program, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}
