/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <mntent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/disk_nodes.h"
#include "ublk/disk.h"
#include "ublk/process.h"
#include "ublk/syncing.h"

/* For how long nothing may be written before it is given up, and how often that is looked at. */
#define SYNC_LIMIT_MS 30000
#define STEP_MS	      20
/* For how long all disks of the machine are written where the user wants an end: another may hang,
 * and others may go on to write to ours. */
#define FORCED_LIMIT_MS 300000
/* For how long it is asked who has a part of the disk. */
#define CLAIM_LIMIT_MS 10000

int ublk_disk_claim(uint32_t id, struct ublk_claim *claim, const struct ublk_claim_limits *limits)
{
	char path[32];

	snprintf(path, sizeof path, "/dev/ublkb%" PRIu32, id);
	return ublk_claim(claim, path, limits);
}

/* Writes and flushes that have ended of the disk of that directory in sysfs; 0: not known. */
static uint64_t writes_ended(const char *directory)
{
	uint64_t value[16] = {0};
	char path[64];
	FILE *file;

	snprintf(path, sizeof path, "%s/stat", directory);
	file = fopen(path, "re");
	if (!file)
		return 0;
	for (int i = 0; i < 16 && fscanf(file, "%" SCNu64, &value[i]) == 1; i++)
		;
	fclose(file);
	return value[4] + value[15];
}

uint64_t ublk_disk_writes_below(int fd)
{
	char directory[48];
	struct stat st;
	dev_t disk;

	if (fstat(fd, &st) < 0)
		return 0;
	disk = S_ISBLK(st.st_mode) ? st.st_rdev : st.st_dev;
	snprintf(directory, sizeof directory, "/sys/dev/block/%u:%u", major(disk), minor(disk));
	return writes_ended(directory);
}

/* A write-back in parts, each by a process. */
struct write_back {
	uint32_t id;
	const struct ublk_sync_limits *limits;
	int result; /* as ublk_disk_sync() answers it */
	bool over;  /* no part follows */
};

/* How much a result says of what may be lost. */
static int rank(int r)
{
	switch (-r) {
	case 0:
		return 0;
	case ETIME:
		return 1;
	case ECANCELED:
		return 2;
	case EIO: /* it is lost, and the kernel tells of it once */
		return 4;
	default:
		return 3;
	}
}

static void add_result(struct write_back *w, int r)
{
	w->over = w->over || r == -ECANCELED;
	if (rank(r) > rank(w->result))
		w->result = r;
}

/* The end of the process that writes a part, as ublk_disk_sync() answers it. */
static int await(const struct write_back *w, pid_t child, int64_t at_most_ms)
{
	const struct ublk_sync_limits *limits = w->limits;
	struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, child, 0), .events = POLLIN};
	char directory[32];
	uint64_t before;
	int status, r = -ETIME;

	snprintf(directory, sizeof directory, "/sys/block/ublkb%" PRIu32, w->id);
	before = writes_ended(directory);
	for (int waited = 0; waited < SYNC_LIMIT_MS && at_most_ms > 0;
		waited += STEP_MS, at_most_ms -= STEP_MS) {
		uint64_t now = writes_ended(directory);
		pid_t ended = waitpid(child, &status, WNOHANG);

		if (ended != 0) {
			r = ended != child || WIFSIGNALED(status)
				    ? -EINTR
				    : ublk_sync_result(WEXITSTATUS(status));
			break;
		}
		if (limits && limits->over(limits->opaque)) {
			r = -ECANCELED;
			break;
		}
		if (now != before || (limits && limits->works && limits->works(limits->opaque)))
			waited = 0;
		before = now;
		poll(&end, 1, STEP_MS); /* without a descriptor it sleeps as long */
	}
	if (end.fd >= 0)
		close(end.fd);
	return r;
}

/* By a process of its own: the disk's own server must be able to end. */
static int run_sync(const struct write_back *w, char *const *argv, int64_t at_most_ms)
{
	pid_t child;
	int r;

	if (w->over)
		return -ECANCELED;
	r = ublk_sync_begin(argv, &child);
	if (r < 0)
		return r;
	r = await(w, child, at_most_ms);
	if (r == -ETIME || r == -ECANCELED)
		kill(child, SIGKILL); /* it ends when its requests do */
	return r;
}

/* Which of the nodes it is, and its device; their number: none. */
static size_t find_node(const char *path, const glob_t *nodes, dev_t *device)
{
	struct stat st, node;
	size_t i = nodes->gl_pathc;

	if (strncmp(path, "/dev/", 5) != 0 || stat(path, &st) < 0)
		return i;
	*device = st.st_rdev;
	for (i = 0; i < nodes->gl_pathc; i++)
		if (stat(nodes->gl_pathv[nodes->gl_offs + i], &node) == 0 &&
			node.st_rdev == st.st_rdev &&
			(node.st_mode & S_IFMT) == (st.st_mode & S_IFMT))
			break;
	return i;
}

/* Does the mount's path lead to it? It may be removed, or lie under another mount. */
static bool is_reached(const struct mntent *mount, dev_t device)
{
	struct statx s;

	if (statx(AT_FDCWD, mount->mnt_dir, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &s) < 0)
		return false;
	/* btrfs has numbers of its own, as it may have several disks. */
	return makedev(s.stx_dev_major, s.stx_dev_minor) == device ||
	       (s.stx_dev_major == 0 && strcmp(mount->mnt_type, "btrfs") == 0);
}

/* Where they are mounted, behind three words of a command, with NULL at the end; which of them, in
 * mounted. NULL: nowhere. The caller frees those after the three, and the list. */
static char **find_mounts(const glob_t *nodes, bool *mounted)
{
	FILE *mounts = setmntent("/proc/self/mounts", "re");
	char **found = NULL;
	size_t count = 3;
	struct mntent *mount;

	while (mounts && (mount = getmntent(mounts))) {
		dev_t device;
		size_t node = find_node(mount->mnt_fsname, nodes, &device);
		char **more;

		if (node == nodes->gl_pathc || !is_reached(mount, device))
			continue;
		more = realloc(found, (count + 2) * sizeof *found);
		if (!more)
			break;
		found = more;
		found[count] = strdup(mount->mnt_dir);
		mounted[node] = mounted[node] || found[count];
		count += found[count] != NULL;
		found[count] = NULL;
	}
	if (mounts)
		endmntent(mounts);
	return found;
}

/* Has something a part of the disk that is not mounted here: LVM, LUKS, md, or a mount of another
 * namespace? True also if that is not known. */
static bool used_elsewhere(const struct write_back *w, const glob_t *nodes, const bool *mounted)
{
	const struct ublk_claim_limits limits = {
		.timeout_ms = CLAIM_LIMIT_MS,
		.over = w->limits ? w->limits->over : NULL,
		.opaque = w->limits ? w->limits->opaque : NULL,
	};
	bool claimed = false, used = false;

	/* The disk comes first, and is claimed with each of its partitions. */
	for (size_t i = nodes->gl_pathc; i-- > 0 && !used && !(i == 0 && claimed);) {
		struct ublk_claim claim = UBLK_NO_CLAIM;
		int r = ublk_claim(&claim, nodes->gl_pathv[nodes->gl_offs + i], &limits);

		ublk_claim_release(&claim);
		/* A partition may be gone. */
		used = r == -EBUSY ? !mounted[i] : r != -ENOENT && ublk_disk_may_be_used(r);
		claimed = claimed || r == -EBUSY;
	}
	return used;
}

static char program[] = UBLK_SYNC_PROGRAM, command[] = UBLK_SYNC_COMMAND;

/* What file systems hold of the disk. */
static void sync_file_systems(struct write_back *w, const glob_t *nodes)
{
	static char option[] = UBLK_SYNC_FILE_SYSTEMS;
	char *all[] = {program, command, NULL};
	bool *mounted = calloc(nodes->gl_pathc, sizeof *mounted);
	char **mounts = mounted ? find_mounts(nodes, mounted) : NULL;

	if (mounts) {
		mounts[0] = program;
		mounts[1] = command;
		mounts[2] = option;
		add_result(w, run_sync(w, mounts, INT64_MAX));
		for (size_t i = 3; mounts[i]; i++)
			free(mounts[i]);
	}
	/* It waits for all disks. That another one takes long says nothing of ours, except where
	 * nothing else writes a part of it. */
	if (mounts && !used_elsewhere(w, nodes, mounted)) {
		int r = run_sync(w, all, SYNC_LIMIT_MS);

		add_result(w, r == -ETIME ? 0 : r);
	} else {
		add_result(
			w, run_sync(w, all,
				   w->limits && w->limits->forced ? FORCED_LIMIT_MS : INT64_MAX));
	}
	free(mounts);
	free(mounted);
}

int ublk_disk_sync(uint32_t id, bool in_use, const struct ublk_sync_limits *limits)
{
	struct write_back w = {.id = id, .limits = limits};
	glob_t nodes;
	char disk[32];

	snprintf(disk, sizeof disk, "/dev/ublkb%" PRIu32, id);
	if (disk_nodes(disk, 2, &nodes)) {
		if (in_use)
			sync_file_systems(&w, &nodes);
		nodes.gl_pathv[0] = program;
		nodes.gl_pathv[1] = command;
		add_result(&w, run_sync(&w, nodes.gl_pathv, INT64_MAX));
	} else {
		add_result(&w, -ENOENT);
	}
	globfree(&nodes);
	return w.result;
}

const char *ublk_disk_loss(int error)
{
	return error == -EIO ? "the last writes are lost" : "the last writes may be lost";
}

/* ---- who uses it ---------------------------------------------------------------------- */

static void append(char *text, size_t size, const char *one, const char *name)
{
	size_t length = strlen(text);

	snprintf(text + length, size - length, "%s%s%s%s%s", length ? ", " : "", one,
		name[0] ? " (" : "", name, name[0] ? ")" : "");
}

/* The name of a disk of the device mapper; "": it has none. */
static void mapper_name(const char *disk, char *name, int size)
{
	char path[96];
	FILE *file;

	name[0] = 0;
	snprintf(path, sizeof path, "/sys/block/%.64s/dm/name", disk);
	file = fopen(path, "re");
	if (!file)
		return;
	if (!fgets(name, size, file))
		name[0] = 0;
	name[strcspn(name, "\n")] = 0;
	fclose(file);
}

static void append_mounts(const glob_t *nodes, char *text, size_t size)
{
	FILE *mounts = setmntent("/proc/self/mounts", "re");
	struct mntent *mount;
	dev_t device;

	while (mounts && (mount = getmntent(mounts)))
		if (find_node(mount->mnt_fsname, nodes, &device) < nodes->gl_pathc)
			append(text, size, mount->mnt_dir, "");
	if (mounts)
		endmntent(mounts);
}

static void append_swap(const glob_t *nodes, char *text, size_t size)
{
	FILE *swaps = fopen("/proc/swaps", "re");
	char path[512];
	dev_t device;

	while (swaps && fscanf(swaps, "%511s%*[^\n]", path) == 1)
		if (find_node(path, nodes, &device) < nodes->gl_pathc)
			append(text, size, "swap", "");
	if (swaps)
		fclose(swaps);
}

void ublk_disk_users(uint32_t id, char *text, size_t size)
{
	char pattern[80], name[128];
	glob_t holders = {0}, nodes;

	text[0] = 0;
	snprintf(pattern, sizeof pattern, "/sys/block/ublkb%" PRIu32 "/holders/*", id);
	glob(pattern, 0, NULL, &holders);
	snprintf(pattern, sizeof pattern,
		"/sys/block/ublkb%" PRIu32 "/ublkb%" PRIu32 "p*/holders/*", id, id);
	glob(pattern, GLOB_APPEND, NULL, &holders);
	for (size_t i = 0; i < holders.gl_pathc; i++) {
		const char *holder = strrchr(holders.gl_pathv[i], '/') + 1;

		mapper_name(holder, name, sizeof name);
		append(text, size, holder, name);
	}
	globfree(&holders);
	snprintf(pattern, sizeof pattern, "/dev/ublkb%" PRIu32, id);
	disk_nodes(pattern, 0, &nodes);
	append_mounts(&nodes, text, size);
	append_swap(&nodes, text, size);
	globfree(&nodes);
}
