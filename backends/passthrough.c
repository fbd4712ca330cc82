/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A block device, partition or regular file as it is: a request becomes one
 * system call on it. Everything that O_DIRECT asks for in addition is in dio.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "backends/device.h"
#include "backends/dio.h"
#include "backends/transfer.h"

/* Limits of what is reported as preferred, and of the block sizes that are tried. */
#define MIN_PREFERRED 4096u
#define MAX_PREFERRED (1u << 20)
#define MAX_BLOCK     65536u

struct passthrough_config {
	char *file;
	bool direct;
	bool readonly;
	uint64_t size;
};

struct passthrough {
	struct backend backend;
	int fd;
	char *file;
	bool is_device;
	dev_t disk;	       /* the device itself or the one below the file; may be anonymous */
	uint32_t sector;       /* logical block size of a device; 1 for a file */
	uint32_t block;	       /* what info tells: of direct I/O, or sector */
	uint32_t memory;       /* alignment of addresses, for direct I/O; otherwise 1 */
	struct direct *direct; /* NULL with direct=off */
	struct backend_info info;
	pthread_mutex_t seek_lock; /* the file offset, which lseek() needs and nothing else uses */
	/* What the kernel has not refused yet. */
	_Atomic bool has_dsync, has_punch, has_zero_range, has_zeroout;
	_Atomic bool shrink_told;
	_Atomic int flush_error; /* errno of the first failed flush; see sync_data() */
};

static const struct param passthrough_params[] = {
	{
		.name = "file",
		.type = PARAM_PATH,
		.offset = offsetof(struct passthrough_config, file),
		.required = true,
		.metavar = "FILE",
		.help = "block device, partition or regular file to serve",
	},
	{
		.name = "direct",
		.type = PARAM_BOOL,
		.offset = offsetof(struct passthrough_config, direct),
		.default_value = "on",
		.help = "bypass this host's page cache (O_DIRECT)",
	},
	{
		.name = "readonly",
		.type = PARAM_BOOL,
		.offset = offsetof(struct passthrough_config, readonly),
		.default_value = "off",
		.help = "open for reading only",
	},
	{
		.name = "size",
		.type = PARAM_SIZE,
		.offset = offsetof(struct passthrough_config, size),
		.min = 512,
		.metavar = "SIZE",
		.help = "create FILE, a regular file, with this size if it does not exist",
	},
	{.name = NULL},
};

static int passthrough_check(const void *config, struct params_error *error)
{
	const struct passthrough_config *c = config;

	if (c->size && c->readonly) {
		params_error_set(error,
			"size=%" PRIu64
			": creates a file, which readonly=on forbids; leave one out",
			c->size);
		return -EINVAL;
	}
	return 0;
}

/* ---- open ------------------------------------------------------------------- */

/* A number from the queue directory of a disk or of the disk of a partition. */
static bool queue_limit(dev_t disk, const char *name, uint64_t *value)
{
	static const char *const places[] = {"queue", "../queue"};
	bool found = false;

	for (size_t i = 0; !found && i < sizeof places / sizeof places[0]; i++) {
		char path[128];
		FILE *file;

		snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%s/%s", major(disk), minor(disk),
			places[i], name);
		file = fopen(path, "re");
		if (!file)
			continue;
		found = fscanf(file, "%" SCNu64, value) == 1;
		fclose(file);
	}
	return found;
}

static uint64_t queue_limit_or(dev_t disk, const char *name, uint64_t otherwise)
{
	uint64_t value;

	return queue_limit(disk, name, &value) ? value : otherwise;
}

static uint32_t power_of_two_up_to(uint64_t n)
{
	uint32_t power = 1;

	while (power < MAX_PREFERRED && (uint64_t)power * 2 <= n)
		power *= 2;
	return power;
}

/* Bytes now; negative errno. */
static int64_t current_size(const struct passthrough *p)
{
	struct stat st;
	uint64_t bytes;

	if (p->is_device)
		return ioctl(p->fd, BLKGETSIZE64, &bytes) < 0 ? -errno : (int64_t)bytes;
	return fstat(p->fd, &st) < 0 ? -errno : st.st_size;
}

/* Does a direct read of one block at this alignment work? 0 or negative errno. */
static int try_alignment(int fd, uint32_t block, uint32_t memory)
{
	char *buffer = aligned_alloc(MAX_BLOCK, 2 * (size_t)MAX_BLOCK);
	int r = 0;

	if (!buffer)
		return -ENOMEM;
	/* Aligned to memory and, where that is less than a block, to no more. */
	if (pread(fd, buffer + (memory < block ? memory : 0), block, block) < 0)
		r = -errno;
	free(buffer);
	return r;
}

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
		if (stx.stx_dio_offset_align == 0)
			return -EINVAL;
		if (stx.stx_dio_offset_align > *block)
			*block = stx.stx_dio_offset_align;
		*memory = stx.stx_dio_mem_align;
	}
#endif
	if (*memory && try_alignment(p->fd, *block, *memory) == 0)
		return 0;
	/* Nobody told, or it is not true: addresses aligned like offsets, as ever. */
	while ((r = try_alignment(p->fd, *block, *block)) == -EINVAL && *block < MAX_BLOCK)
		*block *= 2;
	*memory = *block;
	return r;
}

static int set_up_direct(struct passthrough *p, const struct backend_host *host)
{
	int flags = fcntl(p->fd, F_GETFL);
	int r = 0;

	/* After the open, so that its errors are not mixed up with this one. */
	if (flags < 0 || fcntl(p->fd, F_SETFL, flags | O_DIRECT) < 0)
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

/* Creates the file, sparse. It is still empty when that fails half-way, and removed by the caller.
 */
static int create_file(
	struct passthrough *p, const struct passthrough_config *c, const struct backend_host *host)
{
	p->fd = open(c->file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (p->fd < 0) {
		int r = -errno;

		backend_error(host,
			"file=%s: cannot be created: %s; name a file in a writable directory",
			c->file, strerror(-r));
		return r;
	}
	return 0;
}

static int open_existing(
	struct passthrough *p, const struct passthrough_config *c, const struct backend_host *host)
{
	int flags = O_CLOEXEC | (c->readonly ? O_RDONLY : O_RDWR);

	/* Nobody else may mount or claim what we write to. */
	if (p->is_device && !c->readonly)
		flags |= O_EXCL;
	p->fd = open(c->file, flags);
	if (p->fd >= 0)
		return 0;

	int r = -errno;

	if (r == -EBUSY)
		backend_error(host,
			"file=%s: in use (mounted, or claimed by another program); release it or "
			"use "
			"readonly=on",
			c->file);
	else if (r == -EACCES || r == -EPERM || r == -EROFS)
		backend_error(host, "file=%s: %s; %s", c->file, strerror(-r),
			c->readonly ? "run as a user who may read it"
				    : "run as a user who may write it or use readonly=on");
	else
		backend_error(host, "file=%s: %s; name a device or file that can be opened",
			c->file, strerror(-r));
	return r;
}

/* Opens or creates the file. created: there was none. */
static int open_file(struct passthrough *p, const struct passthrough_config *c, uint64_t size,
	const struct backend_host *host, bool *created)
{
	struct stat st;

	/* Before the open, which has effects on other kinds of files. */
	if (stat(c->file, &st) < 0) {
		int r = -errno;

		if (r == -ENOENT && c->size && size > c->size) {
			backend_error(host,
				"size=%" PRIu64 ": less than the %" PRIu64
				" bytes that are asked for; make it that much",
				c->size, size);
			return -EINVAL;
		}
		if (r == -ENOENT && c->size) {
			r = create_file(p, c, host);
			*created = r == 0;
			return r;
		}
		backend_error(host, "file=%s: %s; %s", c->file, strerror(-r),
			r == -ENOENT && !c->readonly
				? "name one that exists or give size= to create it"
				: "name one that exists");
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

/* What the open file is and how large. */
static int examine_file(struct passthrough *p, const struct passthrough_config *c, bool created,
	const struct backend_host *host)
{
	struct stat st;
	int sector = 1, locked = 0;
	int64_t size;

	if (created && ftruncate(p->fd, (off_t)c->size) < 0) {
		int r = -errno;

		backend_error(host,
			"size=%" PRIu64 ": cannot create a file of that size: %s; "
			"use a smaller one or another file system",
			c->size, strerror(-r));
		return r;
	}
	if (fstat(p->fd, &st) < 0)
		return -errno;
	if (p->is_device != S_ISBLK(st.st_mode)) {
		backend_error(host, "file=%s: replaced while it was opened; try again", p->file);
		return -EAGAIN;
	}
	p->disk = p->is_device ? st.st_rdev : st.st_dev;
	size = current_size(p);
	if (size < 0)
		return (int)size;
	if (size == 0) {
		backend_error(host, "file=%s: size is 0; %s", p->file,
			p->is_device ? "insert a medium or connect the device"
				     : "remove it and give size= to create it again");
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
		preferred = queue_limit_or(p->disk, "optimal_io_size", 0);
		if (preferred < physical)
			preferred = physical;
		info->max_trim = queue_limit_or(p->disk, "discard_max_bytes", 0);
		info->can_trim = writable && info->max_trim > 0;
		if (info->can_trim)
			info->trim_granularity =
				(uint32_t)queue_limit_or(p->disk, "discard_granularity", p->sector);
		else
			info->max_trim = 0;
		p->has_punch = true;
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
	info->rotational = queue_limit_or(p->disk, "rotational", 0) != 0;
	info->can_flush = true;
	info->can_fua = true;
	info->can_zero = writable;
	info->can_fast_zero = writable;
	info->can_multi_conn = true;
	p->has_dsync = true;
}

static int passthrough_close(struct backend *b)
{
	struct passthrough *p = (struct passthrough *)b;

	direct_free(p->direct);
	if (p->fd >= 0)
		close(p->fd);
	pthread_mutex_destroy(&p->seek_lock);
	free(p->file);
	free(p);
	return 0;
}

static int passthrough_open(
	const void *config, uint64_t size, const struct backend_host *host, struct backend **out)
{
	const struct passthrough_config *c = config;
	struct passthrough *p = calloc(1, sizeof *p);
	bool created = false;
	int r;

	if (!p)
		return -ENOMEM;
	p->fd = -1;
	pthread_mutex_init(&p->seek_lock, NULL);
	p->file = strdup(c->file);
	r = p->file ? open_file(p, c, size, host, &created) : -ENOMEM;
	if (r == 0)
		r = examine_file(p, c, created, host);
	if (r == 0 && c->direct)
		r = set_up_direct(p, host);
	if (r) {
		if (created)
			unlink(c->file);
		passthrough_close(&p->backend);
		return r;
	}
	learn_limits(p);
	*out = &p->backend;
	return 0;
}

static int passthrough_info(struct backend *b, struct backend_info *info)
{
	*info = ((struct passthrough *)b)->info;
	return 0;
}

static int passthrough_available(struct backend *b, uint64_t *size)
{
	const struct passthrough *p = (const struct passthrough *)b;
	int64_t now = current_size(p);

	if (now < 0)
		return (int)now;
	/* A part of a block behind the last whole one cannot be had by direct I/O. */
	*size = (uint64_t)now - (uint64_t)now % p->block;
	return 0;
}

static size_t passthrough_counters(struct backend *b, struct backend_counter *counters, size_t max)
{
	struct passthrough *p = (struct passthrough *)b;

	return p->direct ? direct_counters(p->direct, counters, max) : 0;
}

/* ---- data ------------------------------------------------------------------- */

/* The file ends inside the device. What was there is gone: never answered with zeroes. */
static int shrunk(struct passthrough *p)
{
	if (!atomic_exchange(&p->shrink_told, true))
		backend_error(&p->backend.host,
			"file=%s: became smaller while it was served; data behind its end is lost "
			"and "
			"requests there fail",
			p->file);
	return -EIO;
}

static int passthrough_readv(
	struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset)
{
	struct passthrough *p = (struct passthrough *)b;
	int r = p->direct ? direct_readv(p->direct, iov, iovcnt, offset)
			  : transfer_readv(p->fd, iov, iovcnt, offset, 1);

	return r == TRANSFER_EOF ? shrunk(p) : r;
}

/*
 * The kernel tells a failed write-back once, to whoever syncs first, and then
 * takes the data for clean. Another connection's flush must not report success
 * after that, so the failure stays until the device is opened again.
 */
static int keep_flush_error(struct passthrough *p, int r)
{
	int none = 0;

	if (r && atomic_compare_exchange_strong(&p->flush_error, &none, r))
		backend_error(&p->backend.host,
			"file=%s: %s while making data durable; writes may be lost, so every flush "
			"fails from now on; repair the device and start again",
			p->file, strerror(-r));
	return r;
}

static int sync_data(struct passthrough *p)
{
	int r = atomic_load(&p->flush_error);

	if (r)
		return r;
	do
		r = fdatasync(p->fd) < 0 ? -errno : 0;
	while (r == -EINTR);
	return keep_flush_error(p, r);
}

static int write_with(
	struct passthrough *p, const struct iovec *iov, int iovcnt, uint64_t offset, int rwf)
{
	int r = p->direct ? direct_writev(p->direct, iov, iovcnt, offset, rwf)
			  : transfer_writev(p->fd, iov, iovcnt, offset, 1, rwf);

	return r == TRANSFER_EOF ? shrunk(p) : r;
}

static int passthrough_writev(
	struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset, unsigned flags)
{
	struct passthrough *p = (struct passthrough *)b;
	int r;

	if (!(flags & BACKEND_FUA))
		return write_with(p, iov, iovcnt, offset, 0);
	if (p->has_dsync) {
		r = atomic_load(&p->flush_error);
		if (r == 0)
			r = write_with(p, iov, iovcnt, offset, RWF_DSYNC);
		/* Through the page cache, it may have been told of an earlier write's failure. */
		if (r == -EIO && !p->direct)
			keep_flush_error(p, r);
		if (r != -EOPNOTSUPP)
			return r;
		p->has_dsync = false;
	}
	r = write_with(p, iov, iovcnt, offset, 0);
	return r ? r : sync_data(p);
}

static int passthrough_map(
	struct backend *b, const struct backend_request *request, struct backend_mapping *mapping)
{
	struct passthrough *p = (struct passthrough *)b;

	if (request->offset % p->block || request->length % p->block)
		return -EOPNOTSUPP;
	*mapping = (struct backend_mapping){
		.fd = p->fd, .offset = request->offset, .memory_alignment = p->memory};
	if (request->flags & BACKEND_FUA) {
		/* Through the page cache, its failure must not be lost: see passthrough_writev().
		 */
		if (!p->direct || !p->has_dsync || atomic_load(&p->flush_error))
			return -EOPNOTSUPP;
		mapping->rwf = RWF_DSYNC;
	}
	return 0;
}

static int passthrough_flush(struct backend *b)
{
	struct passthrough *p = (struct passthrough *)b;
	int64_t size;

	if (p->backend.readonly)
		return 0;
	size = current_size(p);
	if (size < 0)
		return (int)size;
	/* Writes behind the new end may be among what was lost. */
	if ((uint64_t)size < atomic_load(&b->size))
		return shrunk(p);
	return sync_data(p);
}

/* ---- trim and zero ---------------------------------------------------------- */

static bool is_unsupported(int r)
{
	return r == -EOPNOTSUPP || r == -ENOSYS || r == -ENOTTY;
}

static int allocate(struct passthrough *p, int mode, uint64_t offset, uint64_t length)
{
	int r;

	do
		r = fallocate(p->fd, mode | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length) < 0
			    ? -errno
			    : 0;
	while (r == -EINTR);
	return r;
}

static int device_range(
	struct passthrough *p, unsigned long request, uint64_t offset, uint64_t length)
{
	uint64_t range[2] = {offset, length};
	int r;

	do
		r = ioctl(p->fd, request, range) < 0 ? -errno : 0;
	while (r == -EINTR);
	return r;
}

/* Remembers a refusal of the kernel in has, and answers it with -EOPNOTSUPP. */
static int attempt(_Atomic bool *has, int r)
{
	if (is_unsupported(r)) {
		*has = false;
		return -EOPNOTSUPP;
	}
	return r;
}

static int punch(struct passthrough *p, uint64_t offset, uint64_t length)
{
	if (!p->has_punch)
		return -EOPNOTSUPP;
	return attempt(&p->has_punch, allocate(p, FALLOC_FL_PUNCH_HOLE, offset, length));
}

static uint64_t hold(struct passthrough *p, uint64_t offset, uint64_t length)
{
	return p->direct ? direct_lock(p->direct, offset, length) : 0;
}

static void release(struct passthrough *p, uint64_t held)
{
	if (p->direct)
		direct_unlock(p->direct, held);
}

static int passthrough_trim(struct backend *b, uint64_t offset, uint64_t length, unsigned flags)
{
	struct passthrough *p = (struct passthrough *)b;
	uint64_t start = (offset + p->sector - 1) / p->sector * p->sector;
	uint64_t end = (offset + length) / p->sector * p->sector;
	int r = 0;

	if (!p->info.can_trim)
		return -EOPNOTSUPP;
	if (start < end) {
		uint64_t held = hold(p, start, end - start);

		r = p->is_device ? device_range(p, BLKDISCARD, start, end - start)
				 : punch(p, start, end - start);
		release(p, held);
	}
	if (r)
		return is_unsupported(r) ? -EOPNOTSUPP : r;
	return flags & BACKEND_FUA ? sync_data(p) : 0;
}

static int zero_file(struct passthrough *p, uint64_t offset, uint64_t length, unsigned flags)
{
	int r = -EOPNOTSUPP;

	if (flags & BACKEND_MAY_TRIM)
		r = punch(p, offset, length);
	if (r == -EOPNOTSUPP && p->has_zero_range)
		r = attempt(&p->has_zero_range, allocate(p, FALLOC_FL_ZERO_RANGE, offset, length));
	/* The same in two steps, for file systems such as tmpfs. Allocating may take its time. */
	if (r == -EOPNOTSUPP && !(flags & (BACKEND_FAST_ZERO | BACKEND_MAY_TRIM))) {
		r = punch(p, offset, length);
		if (r == 0) {
			r = allocate(p, 0, offset, length);
			if (is_unsupported(r))
				r = 0; /* it reads as zeroes already, which is what was asked for */
		}
	}
	return r;
}

/* Whole sectors. The kernel drops the range from the page cache in both ways. */
static int zero_sectors(struct passthrough *p, uint64_t offset, uint64_t length, unsigned flags)
{
	int r = -EOPNOTSUPP;

	/* On a device the kernel does this by a command or not at all: it is always fast. */
	if (flags & BACKEND_MAY_TRIM)
		r = punch(p, offset, length);
	if (r != -EOPNOTSUPP || !p->has_zeroout)
		return r;
	/* BLKZEROOUT writes zeroes where there is no command; the limit drops to 0 when one failed.
	 */
	if (flags & BACKEND_FAST_ZERO && !queue_limit_or(p->disk, "write_zeroes_max_bytes", 0))
		return -EOPNOTSUPP;
	return attempt(&p->has_zeroout, device_range(p, BLKZEROOUT, offset, length));
}

/* Zeroes less than a sector at the edge of a range. */
static int zero_edge(struct passthrough *p, uint64_t offset, uint64_t length)
{
	static const char zeroes[4096];
	int r = 0;

	while (r == 0 && length > 0) {
		size_t n = length < sizeof zeroes ? length : sizeof zeroes;

		r = write_with(p, &(struct iovec){(char *)zeroes, n}, 1, offset, 0);
		offset += n;
		length -= n;
	}
	return r;
}

static int zero_device(struct passthrough *p, uint64_t offset, uint64_t length, unsigned flags)
{
	uint64_t stop = offset + length;
	uint64_t start = (offset + p->sector - 1) / p->sector * p->sector;
	uint64_t end = stop / p->sector * p->sector;
	int r;

	/* Inside one sector or around the border of two. */
	if (start >= end)
		return flags & BACKEND_FAST_ZERO ? -EOPNOTSUPP : zero_edge(p, offset, length);

	/* The sectors first: whether they can be zeroed decides on the request. */
	uint64_t held = hold(p, start, end - start);

	r = zero_sectors(p, start, end - start, flags);
	release(p, held);
	if (r == 0)
		r = zero_edge(p, offset, start - offset);
	if (r == 0)
		r = zero_edge(p, end, stop - end);
	return r;
}

static int passthrough_zero(struct backend *b, uint64_t offset, uint64_t length, unsigned flags)
{
	struct passthrough *p = (struct passthrough *)b;
	int r;

	if (p->is_device) {
		r = zero_device(p, offset, length, flags);
	} else {
		uint64_t held = hold(p, offset, length);

		r = zero_file(p, offset, length, flags);
		release(p, held);
	}
	if (r)
		return r;
	return flags & BACKEND_FUA ? sync_data(p) : 0;
}

/* ---- extents ---------------------------------------------------------------- */

/* The run of equal state that begins at pos. */
static int find_extent(
	struct passthrough *p, uint64_t pos, uint64_t end, struct backend_extent *extent)
{
	int64_t size = current_size(p);
	off_t data, next = -1;
	int r = 0;

	if (size < 0)
		return (int)size;
	/* What lies behind the new end must not pass for a hole. */
	if ((uint64_t)size < end)
		return shrunk(p);
	pthread_mutex_lock(&p->seek_lock);
	data = lseek(p->fd, (off_t)pos, SEEK_DATA);
	if (data < 0)
		r = -errno;
	else if ((uint64_t)data == pos)
		next = lseek(p->fd, (off_t)pos, SEEK_HOLE);
	pthread_mutex_unlock(&p->seek_lock);
	if (r && r != -ENXIO)
		return r;
	extent->offset = pos;
	extent->hole = extent->zero = r == -ENXIO || (uint64_t)data != pos;
	if (r == -ENXIO)
		next = (off_t)end; /* no data behind pos */
	else if (extent->hole)
		next = data;
	/* Claiming data is always true, also when another thread changes it meanwhile. */
	if (next <= (off_t)pos || (uint64_t)next > end)
		next = (off_t)end;
	extent->length = (uint64_t)next - pos;
	return 0;
}

static int passthrough_extents(struct backend *b, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque)
{
	struct passthrough *p = (struct passthrough *)b;
	uint64_t end = offset + length;

	if (!p->info.can_extents)
		return -EOPNOTSUPP;
	while (offset < end) {
		struct backend_extent extent;
		int r = find_extent(p, offset, end, &extent);

		if (r == 0)
			r = fn(opaque, &extent);
		if (r || flags & BACKEND_REQ_ONE)
			return r;
		offset += extent.length;
	}
	return 0;
}

const struct backend_ops passthrough_backend = {
	.name = "passthrough",
	.summary = "A block device, partition or regular file as it is",
	.params = passthrough_params,
	.main_param = "file",
	.config_size = sizeof(struct passthrough_config),
	.check = passthrough_check,
	.open = passthrough_open,
	.close = passthrough_close,
	.info = passthrough_info,
	.available = passthrough_available,
	.readv = passthrough_readv,
	.writev = passthrough_writev,
	.flush = passthrough_flush,
	.trim = passthrough_trim,
	.zero = passthrough_zero,
	.extents = passthrough_extents,
	.map = passthrough_map,
	.counters = passthrough_counters,
};

BACKEND_REGISTER(passthrough_backend)
