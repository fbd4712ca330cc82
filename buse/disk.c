/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <linux/nbd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "buse/disk.h"
#include "buse/sysfs.h"

#define SECTOR	  512u
#define MAX_BLOCK 4096u

/* Newer than some of the kernel's headers. */
#define FLAG_ROTATIONAL	  (1u << 4)
#define FLAG_WRITE_ZEROES (1u << 6)

/* More than the kernel can have. */
#define NO_SUCH_INDEX (1 << 20)

/* Only root can open it, and so nobody else lock it. */
#define LOCK "/run/userblk-buse.lock"

/* For how long a disk may take to get its node and its size. */
#define THERE_LIMIT_MS 10000
/* For how long another program may have a free node open, as udev has each for a moment. */
#define OPEN_LIMIT_MS 10000
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

static void pause_ms(long ms)
{
	nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* Has a server, or had one that somebody still uses. */
static bool connected(int index)
{
	return sysfs_number(index, "pid") || sysfs_number(index, "size");
}

static int index_of(const char *path)
{
	unsigned long number = strtoul(path + strlen("/dev/nbd"), NULL, 10);

	return number < NO_SUCH_INDEX ? (int)number : NO_SUCH_INDEX;
}

static void close_file(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

int disk_prepare(struct disk *d)
{
	int r;

	*d = (struct disk){.index = -1, .sockets = {-1, -1}};
	r = holder_start(&d->holder);
	if (r < 0)
		return r;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, d->sockets) < 0)
		return -errno;
	r = guard_start(&d->guard, d->sockets[0]);
	/* Only the guard keeps this end, which it gives to the kernel. */
	close_file(&d->sockets[0]);
	if (r < 0)
		close_file(&d->sockets[1]);
	return r;
}

/* Had it a server that was killed together with its guard? identity: also if it has that one. */
static bool is_left(int index, const char *identity)
{
	char of[sizeof((struct netlink_disk *)0)->identity];

	return (identity && netlink_is(index, identity)) ||
	       (sysfs_text(index, "backend", of, sizeof of) && guard_owner(of) == GUARD_LEFT);
}

/*
 * Disconnects all such disks, whose users may still wait for an answer. This holds up all programs
 * that use generic netlink while a request is being sent: not forever, since nobody has the other
 * end. Returns a lock to close once our own is connected, lest another start takes that for one of
 * them; negative: none.
 */
static int clear_left(struct disk *d, const char *identity)
{
	int lock = -1;
	glob_t blocks;

	if (glob("/sys/block/nbd*", 0, NULL, &blocks) != 0)
		return -1;
	for (size_t i = 0; i < blocks.gl_pathc; i++) {
		int index = atoi(strrchr(blocks.gl_pathv[i], '/') + strlen("/nbd"));

		if (!is_left(index, identity))
			continue;
		if (lock < 0) {
			lock = open(LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
			if (lock < 0 || flock(lock, LOCK_EX) < 0)
				break;
		}
		/* Still, now that no other start does the same. */
		if (is_left(index, identity))
			netlink_disconnect(&d->netlink, index);
	}
	globfree(&blocks);
	return lock;
}

/* Is a node that of the disk, which nobody has mounted or claimed in another way? 0 or negative
 * errno. */
static int examine(const struct disk *d, int index)
{
	/* Not to write: udev would open it, too, after that. */
	int fd = open(d->path, O_RDONLY | O_EXCL | O_CLOEXEC), r = 0;
	char device[32], number[32];
	struct stat file;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &file) < 0)
		r = -errno;
	close(fd);
	snprintf(number, sizeof number, "%u:%u", major(file.st_rdev), minor(file.st_rdev));
	if (r == 0 && (!S_ISBLK(file.st_mode) || !sysfs_text(index, "dev", device, sizeof device) ||
			      strcmp(device, number) != 0))
		r = -ENOTTY;
	return r;
}

/* Was its server killed? A program that has it open then still gets errors. */
static bool is_ending(int index)
{
	char of[sizeof((struct netlink_disk *)0)->identity];
	enum guard_owner owner = GUARD_STRANGER;

	if (sysfs_text(index, "backend", of, sizeof of))
		owner = guard_owner(of);
	return owner == GUARD_ENDING || owner == GUARD_LEFT;
}

/* The disk that the user has named. Its number or negative errno. */
static int connect_named(struct disk *d, struct netlink_disk *wish)
{
	int r = -EBUSY;

	for (int waited = 0; waited < OPEN_LIMIT_MS; waited += STEP_MS) {
		if (!connected(wish->index)) {
			r = examine(d, wish->index);
			if (r == 0)
				r = guard_connect(&d->guard, wish);
			if (r == -EBUSY && examine(d, wish->index) < 0)
				break;
		} else if (!is_ending(wish->index)) {
			/* Also one whose server has just ended, if somebody has it open. */
			r = -EBUSY;
			break;
		}
		if (r != -EBUSY)
			break;
		pause_ms(STEP_MS);
	}
	return r;
}

/* 0 or negative errno. */
static int connect_disk(struct disk *d, struct netlink_disk *wish)
{
	int r = netlink_open(&d->netlink), lock;

	if (r < 0)
		return r;
	guard_identity(&d->guard, d->identity, sizeof d->identity);
	memcpy(wish->identity, d->identity, sizeof wish->identity);
	lock = clear_left(d, NULL);
	r = wish->index < 0 ? guard_connect(&d->guard, wish) : connect_named(d, wish);
	close_file(&lock);
	if (r == -ECHILD) {
		/* The guard has been killed, perhaps after it had connected the disk, whose
		 * requests nobody reads. */
		shutdown(d->sockets[1], SHUT_RDWR);
		clear_left(d, wish->identity);
	}
	if (r < 0)
		return r;
	d->index = r;
	d->shown = netlink_is(r, d->identity);
	snprintf(d->path, sizeof d->path, "/dev/nbd%d", r);
	return 0;
}

static void explain(const struct backend_host *host, const struct disk *d, int r)
{
	const char *name = d->path[0] ? d->path : "nbd";

	switch (-r) {
	case ENODEV:
		backend_error(host, "the kernel has no nbd driver; run: modprobe nbd");
		break;
	case ENOENT:
	case ENXIO:
		backend_error(host, "%s: does not exist; run: modprobe nbd", name);
		break;
	case EACCES:
	case EPERM:
		backend_error(host, "%s: %s; run as root", name, strerror(-r));
		break;
	case EBUSY:
		backend_error(host, "disk=%s: in use; name another one, or leave --disk out", name);
		break;
	case ENOSPC:
		backend_error(host, "all of /dev/nbdN are in use; disconnect one");
		break;
	case ENOTTY:
		backend_error(
			host, "disk=%s: is not a disk of the nbd driver; name /dev/nbdN", name);
		break;
	case ECHILD:
		backend_error(host, "the process that connects the disk was killed");
		break;
	default:
		backend_error(host, "%s: cannot be connected: %s", name, strerror(-r));
	}
}

int disk_connect(struct disk *d, const char *path, unsigned timeout,
	const struct backend_info *info, const struct backend_host *host)
{
	uint32_t block = info->block_size < SECTOR ? SECTOR : info->block_size;
	struct netlink_disk wish = {
		.index = path ? index_of(path) : -1,
		.block = block,
		.size = info->size / block * block,
		.flags = flags_of(info, timeout),
		.timeout = timeout,
	};
	int r;

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
	d->size = wish.size;
	r = connect_disk(d, &wish);
	if (r < 0)
		explain(host, d, r);
	return r == -EINVAL ? -EIO : r; /* not the user's mistake */
}

int disk_open(struct disk *d, const struct backend_host *host)
{
	int r = -ENOENT;

	for (int waited = 0;; waited += STEP_MS) {
		if (r == -ENOENT)
			r = holder_open(&d->holder, d->path);
		if (r < 0 && r != -ENOENT) {
			backend_error(host, "%s: %s", d->path, strerror(-r));
			return -EIO;
		}
		if (r == 0 && sysfs_number(d->index, "size") * SECTOR == d->size)
			return 0;
		if (waited >= THERE_LIMIT_MS)
			break;
		pause_ms(STEP_MS);
	}
	if (r < 0)
		backend_error(host,
			"%s: the kernel has connected it, but it does not exist here; name one "
			"that does by --disk",
			d->path);
	else
		backend_error(host, "%s: does not get its size", d->path);
	return -ETIMEDOUT;
}

int disk_sync(struct disk *d)
{
	return holder_sync(&d->holder, d->path);
}

void disk_disconnect(struct disk *d)
{
	if (d->index < 0)
		return;
	/* Not if somebody has disconnected it, and another has connected it since. The server ends
	 * all the same. */
	if ((d->shown && !netlink_is(d->index, d->identity)) ||
		netlink_disconnect(&d->netlink, d->index) < 0)
		shutdown(d->sockets[1], SHUT_RDWR);
	d->index = -1;
}

void disk_close(struct disk *d)
{
	disk_disconnect(d);
	holder_end(&d->holder);
	/* Not before: it stands by if we are killed here. */
	guard_dismiss(&d->guard);
	close_file(&d->sockets[1]);
	netlink_close(&d->netlink);
}
