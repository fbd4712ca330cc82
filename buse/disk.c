/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/nbd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "backends/disk_nodes.h"
#include "buse/disk.h"

#define SECTOR	  512u
#define MAX_BLOCK 4096u

/* Newer than some of the kernel's headers. */
#define FLAG_ROTATIONAL	  (1u << 4)
#define FLAG_WRITE_ZEROES (1u << 6)

/* For how long a disk may take to get its size. */
#define SIZE_LIMIT_MS 30000
#define STEP_MS	      5

/*
 * With a timeout, the kernel writes zeroes itself: requests to do so have up to 4 GiB, many are
 * sent at once, and the time of each begins then. A device that takes long for them would lose the
 * disk.
 */
static uint32_t flags_of(const struct backend_info *info, unsigned timeout)
{
	return NBD_FLAG_HAS_FLAGS | (info->readonly ? NBD_FLAG_READ_ONLY : 0u) |
	       /* Without it nobody would ever send a flush. */
	       (info->can_flush ? NBD_FLAG_SEND_FLUSH : 0u) |
	       (info->can_fua ? NBD_FLAG_SEND_FUA : 0u) |
	       (info->rotational ? FLAG_ROTATIONAL : 0u) |
	       (info->can_trim ? NBD_FLAG_SEND_TRIM : 0u) |
	       (info->can_zero && !timeout ? FLAG_WRITE_ZEROES : 0u);
}

/* A number of the disk's in sysfs; 0 also if there is none. */
static uint64_t attribute(const char *path, const char *name)
{
	char file[64];
	uint64_t value = 0;
	FILE *stream;

	snprintf(file, sizeof file, "/sys/block/%s/%s", strrchr(path, '/') + 1, name);
	stream = fopen(file, "re");
	if (!stream)
		return 0;
	if (fscanf(stream, "%" SCNu64, &value) != 1)
		value = 0;
	fclose(stream);
	return value;
}

/* Has a server, or had one that somebody still uses. */
static bool connected(const char *path)
{
	return attribute(path, "pid") || attribute(path, "size");
}

static void close_all(struct disk *d)
{
	for (size_t i = 0; i < 2; i++)
		if (d->sockets[i] >= 0)
			close(d->sockets[i]);
	if (d->node >= 0)
		close(d->node);
	d->sockets[0] = d->sockets[1] = d->node = -1;
}

/* Opens the node and gives it the socket; no other may do so after us. 0 or negative errno. */
static int claim(struct disk *d)
{
	/* Refused while it is mounted, or claimed in another way; and nobody else can until then.
	 */
	int exclusive = open(d->path, O_RDWR | O_EXCL | O_CLOEXEC), r = 0;

	if (exclusive < 0)
		return -errno;
	d->node = open(d->path, O_RDWR | O_CLOEXEC);
	if (d->node < 0)
		r = -errno;
	else if (connected(d->path))
		r = -EBUSY;
	/* The first call, which the kernel refuses if the node has another server. */
	else if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, d->sockets) < 0 ||
		 ioctl(d->node, NBD_SET_SOCK, (unsigned long)d->sockets[0]) < 0)
		r = -errno;
	close(exclusive);
	if (r < 0)
		close_all(d);
	return r;
}

/* The first node that nobody uses. */
static int claim_any(struct disk *d)
{
	int r = -EBUSY;

	for (unsigned n = 0;; n++) {
		snprintf(d->path, sizeof d->path, "/dev/nbd%u", n);
		if (access(d->path, F_OK) < 0)
			return n ? r : -ENOENT;
		if (connected(d->path))
			continue;
		r = claim(d);
		if (r != -EBUSY)
			return r;
	}
}

static int set_up(struct disk *d, uint32_t block, const struct backend_info *info)
{
	d->size = info->size / block * block;
	if (ioctl(d->node, NBD_SET_BLKSIZE, (unsigned long)block) < 0 ||
		ioctl(d->node, NBD_SET_SIZE_BLOCKS, (unsigned long)(d->size / block)) < 0 ||
		ioctl(d->node, NBD_SET_FLAGS, (unsigned long)flags_of(info, d->timeout)) < 0 ||
		ioctl(d->node, NBD_SET_TIMEOUT, (unsigned long)d->timeout) < 0)
		return -errno;
	return 0;
}

/* The kernel keeps this thread for as long as there is the disk. */
static void *hold(void *opaque)
{
	struct disk *d = opaque;

	d->result = ioctl(d->node, NBD_DO_IT) < 0 ? -errno : 0;
	/* Requests that are still to come fail at once. */
	shutdown(d->sockets[1], SHUT_RDWR);
	d->ended = true;
	pthread_kill(d->main, SIGUSR1);
	return NULL;
}

static int start(struct disk *d)
{
	int r = -pthread_create(&d->holder, NULL, hold, d);

	if (r < 0)
		return r;
	for (int waited = 0; attribute(d->path, "size") * SECTOR != d->size && !d->ended;
		waited += STEP_MS) {
		if (waited >= SIZE_LIMIT_MS) {
			disk_disconnect(d);
			shutdown(d->sockets[1], SHUT_RDWR);
			pthread_join(d->holder, NULL);
			return -ETIMEDOUT;
		}
		nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000}, NULL);
	}
	if (!d->ended)
		return 0;
	pthread_join(d->holder, NULL);
	return d->result < 0 ? d->result : -EIO;
}

static void explain(const struct backend_host *host, const char *path, bool named, int r)
{
	switch (-r) {
	case ENOENT:
	case ENXIO:
		backend_error(host, "%s: does not exist; run: modprobe nbd", path);
		break;
	case EACCES:
	case EPERM:
		backend_error(host, "%s: %s; run as root", path, strerror(-r));
		break;
	case EBUSY:
		if (named)
			backend_error(host,
				"disk=%s: in use; name another one, or leave --disk out", path);
		else
			backend_error(host, "all of /dev/nbdN are in use; disconnect one");
		break;
	case ENOTTY:
	case EINVAL:
		backend_error(
			host, "disk=%s: is not a disk of the nbd driver; name /dev/nbdN", path);
		break;
	default:
		backend_error(host, "%s: %s", path, strerror(-r));
	}
}

int disk_attach(struct disk *d, const char *path, unsigned timeout, const struct backend_info *info,
	const struct backend_host *host)
{
	uint32_t block = info->block_size < SECTOR ? SECTOR : info->block_size;
	int r;

	*d = (struct disk){.node = -1, .sockets = {-1, -1}, .timeout = timeout};
	d->main = pthread_self();
	if (block > MAX_BLOCK) {
		backend_error(host,
			"the device's blocks have %" PRIu32
			" bytes; the nbd driver takes at most 4096: use direct=off",
			block);
		return -EINVAL;
	}
	if (info->size < block) {
		backend_error(host,
			"the device has %" PRIu64 " bytes; a disk needs a block of %" PRIu32,
			info->size, block);
		return -EINVAL;
	}
	if (path)
		snprintf(d->path, sizeof d->path, "%s", path);
	r = path ? claim(d) : claim_any(d);
	if (r < 0) {
		explain(host, d->path, path, r);
		return r;
	}
	r = set_up(d, block, info);
	if (r == 0)
		r = start(d);
	if (r < 0) {
		backend_error(host, "%s: cannot be set up: %s", d->path, strerror(-r));
		ioctl(d->node, NBD_CLEAR_SOCK);
		close_all(d);
	}
	return r;
}

int disk_sync(const struct disk *d)
{
	int r = 0, node;
	glob_t nodes;

	if (disk_nodes(d->path, 0, &nodes))
		for (size_t i = 0; i < nodes.gl_pathc; i++) {
			node = open(nodes.gl_pathv[i], O_RDONLY | O_CLOEXEC);
			/* The kernel has written back a partition that it has dropped; in a
			 * static /dev its node stays. */
			if (node < 0 && (errno == ENXIO || errno == ENOENT))
				continue;
			if (node < 0 || fsync(node) < 0)
				r = -errno;
			if (node >= 0)
				close(node);
		}
	globfree(&nodes);
	/* Last: it has been open from the beginning, and so has seen all errors. */
	return fsync(d->node) < 0 ? -errno : r;
}

void disk_disconnect(const struct disk *d)
{
	ioctl(d->node, NBD_DISCONNECT);
}

bool disk_was_interrupted(const struct disk *d)
{
	return d->result == -EBUSY || d->result == -EINTR;
}

void disk_detach(struct disk *d)
{
	pthread_join(d->holder, NULL);
	ioctl(d->node, NBD_CLEAR_SOCK);
	close_all(d);
}
