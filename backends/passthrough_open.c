/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Opens what passthrough.c serves: what kind of file it is, its size, what direct I/O needs
 * and what can be trimmed and zeroed.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "backends/dio.h"
#include "backends/passthrough.h"

/* Limits of what is reported as preferred, and of the block sizes that are tried. */
#define MIN_PREFERRED 4096u
#define MAX_PREFERRED (1u << 20)
#define MAX_BLOCK     65536u

/* The remedy if clients had a disk before. */
#define BRING_BACK "bring back the file that the disk had"

/* A file of the queue directory of a disk, or of the disk of a partition. NULL: it has none. */
static FILE *open_queue(dev_t disk, const char *name)
{
	static const char *const places[] = {"queue", "../queue"};
	FILE *file = NULL;

	for (size_t i = 0; !file && i < sizeof places / sizeof places[0]; i++) {
		char path[128];

		snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%s/%s", major(disk), minor(disk),
			places[i], name);
		file = fopen(path, "re");
	}
	return file;
}

uint64_t passthrough_queue_limit(dev_t disk, const char *name, uint64_t otherwise)
{
	FILE *file = open_queue(disk, name);
	uint64_t value;

	if (!file)
		return otherwise;
	if (fscanf(file, "%" SCNu64, &value) != 1)
		value = otherwise;
	fclose(file);
	return value;
}

/* Has the disk an I/O scheduler? Its file has all names, the chosen one in brackets; with none, it
 * may lack these. */
static bool has_scheduler(dev_t disk)
{
	FILE *file = open_queue(disk, "scheduler");
	char names[128];
	bool has;

	if (!file)
		return false;
	has = fgets(names, sizeof names, file) && strchr(names, '[') && !strstr(names, "[none]");
	fclose(file);
	return has;
}

/* Does it take writes only where the last one in the same zone has ended? */
static bool is_host_managed(dev_t disk)
{
	static const char managed[] = "host-managed";
	FILE *file = open_queue(disk, "zoned");
	char model[sizeof managed];
	bool is;

	if (!file)
		return false;
	is = fgets(model, sizeof model, file) && strcmp(model, managed) == 0;
	fclose(file);
	return is;
}

static uint32_t power_of_two_up_to(uint64_t n)
{
	uint32_t power = 1;

	while (power < MAX_PREFERRED && (uint64_t)power * 2 <= n)
		power *= 2;
	return power;
}

int64_t passthrough_current_size(const struct passthrough *p)
{
	struct stat st;
	uint64_t bytes;

	if (p->is_device)
		return ioctl(p->fd, BLKGETSIZE64, &bytes) < 0 ? -errno : (int64_t)bytes;
	return fstat(p->fd, &st) < 0 ? -errno : st.st_size;
}

/* Does it say that the block cannot be read, which only its reader needs to know? */
static bool is_bad_block(int error)
{
	return error == EIO || error == EILSEQ || error == ENODATA || error == EREMOTEIO ||
	       error == EBADMSG;
}

/*
 * Does the kernel take a direct read of one block at this alignment? 0 or negative errno. It looks
 * at the alignment first.
 */
static int try_alignment(int fd, uint32_t block, uint32_t memory)
{
	char *buffer = aligned_alloc(MAX_BLOCK, 2 * (size_t)MAX_BLOCK);
	int r = 0;

	if (!buffer)
		return -ENOMEM;
	/* Aligned to memory and, where that is less than a block, to no more. */
	if (pread(fd, buffer + (memory < block ? memory : 0), block, block) < 0 &&
		!is_bad_block(errno))
		r = -errno;
	free(buffer);
	return r;
}

#ifdef STATX_DIOALIGN
/* 0 from the kernel means that direct I/O is not possible. */
static bool is_block(uint32_t bytes)
{
	return bytes && bytes <= MAX_BLOCK && (bytes & (bytes - 1)) == 0;
}
#endif

/* Finds what direct I/O needs, in bytes; at least whole sectors. 0 or negative errno. */
static int find_alignment(const struct passthrough *p, uint32_t *block, uint32_t *memory)
{
	int r;

	*block = p->sector > 512 ? p->sector : 512;
	*memory = 0;
#ifdef STATX_DIOALIGN
	struct statx stx;

	if (statx(p->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 &&
		stx.stx_mask & STATX_DIOALIGN) {
		if (!is_block(stx.stx_dio_offset_align) || stx.stx_dio_mem_align > MAX_BLOCK)
			return -EINVAL;
		if (stx.stx_dio_offset_align > *block)
			*block = stx.stx_dio_offset_align;
		*memory = stx.stx_dio_mem_align;
	}
#endif
	if (*memory && try_alignment(p->fd, *block, *memory) == 0)
		return 0;
	/* STATX_DIOALIGN is missing or wrong: align addresses like offsets. */
	while ((r = try_alignment(p->fd, *block, *block)) == -EINVAL && *block < MAX_BLOCK)
		*block *= 2;
	*memory = *block;
	return r;
}

static int report_in_use(const struct passthrough_config *c, const struct backend_host *host)
{
	backend_error(host,
		"file=%s: in use (mounted, or claimed by another program); release it or use "
		"readonly=on",
		c->file);
	return -EBUSY;
}

static int report_replaced(const struct passthrough_config *c, const struct backend_host *host)
{
	backend_error(host, "file=%s: replaced while it was opened; try again", c->file);
	return -EAGAIN;
}

/* Opens loss_fd. 0 or negative errno. */
static int open_for_losses(
	struct passthrough *p, const struct passthrough_config *c, const struct backend_host *host)
{
	struct stat st, own;
	int r, fd = open(c->file, O_WRONLY | O_CLOEXEC);

	if (fd < 0) {
		r = -errno;
		if (r == -ENOENT)
			return report_replaced(c, host);
		backend_error(host, "file=%s: cannot be opened a second time: %s; %s", c->file,
			strerror(-r),
			r == -EMFILE || r == -ENFILE ? "raise the limit of open files"
						     : "use direct=off");
		return r;
	}
	if (fstat(fd, &own) < 0 || fstat(p->fd, &st) < 0 || own.st_dev != st.st_dev ||
		own.st_ino != st.st_ino) {
		close(fd);
		return report_replaced(c, host);
	}
	p->loss_fd = fd;
	return 0;
}

static int set_up_direct(struct passthrough *p, const struct backend_host *host)
{
	int flags = fcntl(p->fd, F_GETFL);
	int r = 0;

	/* After the open, so that its errors are not mixed up with this one. */
	if (flags < 0 || (!(flags & O_DIRECT) && fcntl(p->fd, F_SETFL, flags | O_DIRECT) < 0))
		r = -errno;
	else
		r = find_alignment(p, &p->block, &p->memory);
	if (r == -EINVAL) {
		backend_error(
			host, "file=%s: direct I/O is not possible there; use direct=off", p->file);
		return r;
	}
	if (r) {
		backend_error(host,
			"file=%s: direct I/O fails: %s; repair the device or use direct=off",
			p->file, strerror(-r));
		return r;
	}
	if (p->backend.size % p->block) {
		backend_error(host,
			"file=%s: its size %" PRIu64
			" is not a multiple of %u bytes, which direct I/O "
			"needs; extend it or use direct=off",
			p->file, p->backend.size, p->block);
		return -EINVAL;
	}
	p->direct = direct_new(p->fd, p->block, p->memory);
	if (!p->direct)
		return -ENOMEM;
	backend_debug(host, "file=%s: direct I/O in blocks of %u bytes, memory aligned to %u bytes",
		p->file, p->block, p->memory);
	return 0;
}

/*
 * Claims a regular file for writing, as O_EXCL claims a device: two servers that wrote to it would
 * destroy each other's data. Programs that lock images, such as QEMU, are kept out, too. Goes
 * without where the file system has no locks.
 */
static int claim_file(int fd, const struct passthrough_config *c, const struct backend_host *host)
{
	struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct stat st, now;

	if (fcntl(fd, F_OFD_SETLK, &whole) < 0 && (errno == EAGAIN || errno == EACCES))
		return report_in_use(c, host);
	if (fstat(fd, &st) < 0)
		return -errno;
	/* A server that created it may have failed, and removed it, since we opened it. */
	if (stat(c->file, &now) < 0 || now.st_dev != st.st_dev || now.st_ino != st.st_ino)
		return report_replaced(c, host);
	return 0;
}

/*
 * For direct I/O, opens a regular file again, before it is locked: CIFS heeds O_DIRECT in open(2)
 * alone. What fails here is tried, and reported, by set_up_direct().
 */
static void reopen_direct(struct passthrough *p, const struct passthrough_config *c)
{
	char path[32];
	int fd;

	if (!c->direct || p->is_device)
		return;
	snprintf(path, sizeof path, "/proc/self/fd/%d", p->fd);
	fd = open(path, (c->readonly ? O_RDONLY : O_RDWR) | O_DIRECT | O_CLOEXEC);
	if (fd < 0)
		return;
	close(p->fd);
	p->fd = fd;
}

/* Creates the file, empty. */
static int create_file(
	struct passthrough *p, const struct passthrough_config *c, const struct backend_host *host)
{
	int r;

	p->fd = open(c->file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (p->fd < 0) {
		r = -errno;
		backend_error(host,
			"file=%s: cannot be created: %s; name a file in a writable directory",
			c->file, strerror(-r));
		return r;
	}
	reopen_direct(p, c);
	r = claim_file(p->fd, c, host);
	p->created = r == 0;
	return r;
}

static int open_existing(
	struct passthrough *p, const struct passthrough_config *c, const struct backend_host *host)
{
	int flags = O_CLOEXEC | (c->readonly ? O_RDONLY : O_RDWR);

	/* Nobody else may mount or claim what we write to. */
	if (p->is_device && !c->readonly)
		flags |= O_EXCL;
	p->fd = open(c->file, flags);
	if (p->fd >= 0) {
		reopen_direct(p, c);
		return p->is_device || c->readonly ? 0 : claim_file(p->fd, c, host);
	}

	int r = -errno;

	if (r == -EBUSY)
		return report_in_use(c, host);
	if (r == -EACCES || r == -EPERM || r == -EROFS)
		backend_error(host, "file=%s: %s; %s", c->file, strerror(-r),
			c->readonly ? "run as a user who may read it"
				    : "run as a user who may write it or use readonly=on");
	else
		backend_error(host, "file=%s: %s; name a device or file that can be opened",
			c->file, strerror(-r));
	return r;
}

/* A file is created with the size that the framework demands, or not at all. */
static int check_demand(
	const struct passthrough_config *c, uint64_t size, const struct backend_host *host)
{
	if (size <= c->size)
		return 0;
	backend_error(host,
		"size=%" PRIu64 ": less than the %" PRIu64
		" bytes that are required; give at least that",
		c->size, size);
	return -EINVAL;
}

/* Opens or creates the file. */
static int open_file(struct passthrough *p, const struct passthrough_config *c, uint64_t size,
	const struct backend_host *host)
{
	struct stat st;

	/* Before the open, which has effects on other kinds of files. */
	if (stat(c->file, &st) < 0) {
		int r = -errno;

		if (r == -ENOENT && c->size) {
			r = check_demand(c, size, host);
			if (r == 0)
				r = create_file(p, c, host);
			return r;
		}
		backend_error(host, "file=%s: %s; %s", c->file, strerror(-r),
			r != -ENOENT		 ? "name one that exists"
			: host->previous_session ? BRING_BACK
			: c->readonly		 ? "name one that exists"
				      : "name one that exists or give size= to create it");
		return r;
	}
	p->is_device = S_ISBLK(st.st_mode);
	if (!p->is_device && !S_ISREG(st.st_mode)) {
		backend_error(host,
			"file=%s: neither a block device nor a regular file; name one of these",
			c->file);
		return -EINVAL;
	}
	if (p->is_device && c->size) {
		backend_error(host,
			"size=%" PRIu64
			": only for creating a regular file, and %s is a block device; "
			"leave it out",
			c->size, c->file);
		return -EINVAL;
	}
	return open_existing(p, c, host);
}

/*
 * Gives an empty file its size, sparse: one that we created, or that somebody did who then lost the
 * race for its claim or was killed.
 */
static int extend_file(struct passthrough *p, const struct passthrough_config *c, uint64_t size,
	const struct backend_host *host)
{
	struct stat st;
	int r;

	if (p->is_device || !c->size)
		return 0;
	if (fstat(p->fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_size != 0)
		return 0;
	r = check_demand(c, size, host);
	if (r)
		return r;
	if (ftruncate(p->fd, (off_t)c->size) < 0) {
		r = -errno;
		backend_error(host,
			"size=%" PRIu64 ": cannot create a file of that size: %s; "
			"use a smaller one or another file system",
			c->size, strerror(-r));
		return r;
	}
	p->extended = true;
	return 0;
}

/* What the open file is and how large. */
static int examine_file(
	struct passthrough *p, const struct passthrough_config *c, const struct backend_host *host)
{
	struct stat st;
	struct statfs fs;
	int sector = 1, locked = 0;
	int64_t size;

	if (fstat(p->fd, &st) < 0)
		return -errno;
	if (p->is_device != S_ISBLK(st.st_mode))
		return report_replaced(c, host);
	p->disk = p->is_device ? st.st_rdev : st.st_dev;
	p->is_stacked =
		!p->is_device && fstatfs(p->fd, &fs) == 0 && fs.f_type == OVERLAYFS_SUPER_MAGIC;
	size = passthrough_current_size(p);
	if (size < 0)
		return (int)size;
	if (size == 0) {
		backend_error(host, "file=%s: size is 0; %s", p->file,
			p->is_device		 ? "insert a medium or connect the device"
			: host->previous_session ? BRING_BACK
						 : "give size= to create it");
		return -EINVAL;
	}
	if (c->size && (uint64_t)size != c->size) {
		backend_error(host,
			"size=%" PRIu64 ": %s exists with %" PRId64 " bytes; leave size= out",
			c->size, p->file, size);
		return -EEXIST;
	}
	if (p->is_device) {
		if (ioctl(p->fd, BLKSSZGET, &sector) < 0 || ioctl(p->fd, BLKROGET, &locked) < 0)
			return -errno;
		if (locked && !c->readonly) {
			backend_error(
				host, "file=%s: the device is read-only; use readonly=on", p->file);
			return -EROFS;
		}
	}
	if (p->is_device && !c->readonly && is_host_managed(p->disk)) {
		backend_error(host,
			"file=%s: a host-managed zoned device, which refuses random writes; use "
			"readonly=on, or a conventional disk that dm-zoned makes of it",
			p->file);
		return -EINVAL;
	}
	p->sector = (uint32_t)sector;
	p->block = p->sector;
	p->memory = 1;
	p->backend.size = (uint64_t)size;
	p->backend.readonly = c->readonly;
	return 0;
}

/* Whether the file system can punch holes: asked past the end, where it changes nothing. */
static bool probe_punch(const struct passthrough *p)
{
	return fallocate(p->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)p->backend.size,
		       4096) == 0;
}

static void learn_limits(struct passthrough *p)
{
	struct backend_info *info = &p->info;
	bool writable = !p->backend.readonly;
	uint64_t preferred, physical = 0;
	struct stat st;

	if (p->is_device) {
		unsigned bytes;

		if (ioctl(p->fd, BLKPBSZGET, &bytes) == 0)
			physical = bytes;
		preferred = passthrough_queue_limit(p->disk, "optimal_io_size", 0);
		if (preferred < physical)
			preferred = physical;
		info->max_trim = passthrough_queue_limit(p->disk, "discard_max_bytes", 0);
		info->can_trim = writable && info->max_trim > 0;
		if (info->can_trim)
			info->trim_granularity = (uint32_t)passthrough_queue_limit(
				p->disk, "discard_granularity", p->sector);
		else
			info->max_trim = 0;
		p->has_punch = passthrough_queue_limit(p->disk, "write_zeroes_max_bytes", 0) > 0;
		p->has_zero_range = !p->direct; /* of use to the page cache alone */
		p->has_zeroout = true;
	} else {
		preferred = fstat(p->fd, &st) == 0 ? (uint64_t)st.st_blksize : MIN_PREFERRED;
		p->has_punch = writable && probe_punch(p);
		p->has_zero_range = true;
		info->can_trim = p->has_punch;
		if (info->can_trim)
			info->trim_granularity = (uint32_t)preferred;
		info->can_extents = lseek(p->fd, 0, SEEK_HOLE) >= 0;
	}
	if (preferred < MIN_PREFERRED)
		preferred = MIN_PREFERRED;
	if (preferred < p->block)
		preferred = p->block;
	info->block_size = p->block;
	info->preferred_size = power_of_two_up_to(preferred);
	info->max_request = p->direct ? DIRECT_BUFFER_SIZE : 1u << 30;
	p->is_scheduled = p->is_device && p->direct && has_scheduler(p->disk);
	info->rotational = passthrough_queue_limit(p->disk, "rotational", 0) != 0;
	/* The page cache has copies. Where no disk is known, as on btrfs, it may be needed. */
	info->stable_writes = p->direct && passthrough_queue_limit(p->disk, "stable_writes", 1);
	info->can_flush = true;
	info->can_fua = true;
	info->can_zero = writable;
	info->can_fast_zero = writable;
	info->can_multi_conn = true;
	p->has_dsync = true;
	p->is_cached = true;
}

void passthrough_start(struct backend *b)
{
	struct passthrough *p = (struct passthrough *)b;

	p->created = p->extended = false;
}

int passthrough_close(struct backend *b)
{
	struct passthrough *p = (struct passthrough *)b;

	if (p->created)
		unlink(p->file);
	else if (p->extended && ftruncate(p->fd, 0) < 0)
		backend_debug(&b->host, "file=%s: cannot be made empty again", p->file);
	direct_free(p->direct);
	if (p->loss_fd >= 0)
		close(p->loss_fd);
	if (p->fd >= 0)
		close(p->fd);
	pthread_mutex_destroy(&p->seek_lock);
	pthread_rwlock_destroy(&p->drop_lock);
	pthread_mutex_destroy(&p->syncs.lock);
	pthread_cond_destroy(&p->syncs.changed);
	free(p->file);
	free(p);
	return 0;
}

static void set_up_locks(struct passthrough *p)
{
	pthread_rwlockattr_t attributes;

	pthread_mutex_init(&p->seek_lock, NULL);
	pthread_mutex_init(&p->syncs.lock, NULL);
	pthread_cond_init(&p->syncs.changed, NULL);
	pthread_rwlockattr_init(&attributes);
	/* Flushes of many connections never leave a gap for zeroes otherwise. */
	pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&p->drop_lock, &attributes);
	pthread_rwlockattr_destroy(&attributes);
}

int passthrough_open(
	const void *config, uint64_t size, const struct backend_host *host, struct backend **out)
{
	struct passthrough_config given = *(const struct passthrough_config *)config, *c = &given;
	struct passthrough *p = calloc(1, sizeof *p);
	int r;

	if (!p)
		return -ENOMEM;
	/* What clients that are not new wrote must not read as zeroes in a new file. */
	if (host->previous_session)
		given.size = 0;
	p->fd = p->loss_fd = -1;
	set_up_locks(p);
	p->file = strdup(c->file);
	r = p->file ? open_file(p, c, size, host) : -ENOMEM;
	if (r == 0)
		r = extend_file(p, c, size, host);
	if (r == 0)
		r = examine_file(p, c, host);
	if (r == 0 && c->direct)
		r = set_up_direct(p, host);
	if (r == 0 && c->direct && !c->readonly && !p->is_device)
		r = open_for_losses(p, c, host);
	if (r) {
		p->backend.host = *host;
		passthrough_close(&p->backend);
		return r;
	}
	learn_limits(p);
	*out = &p->backend;
	return 0;
}
