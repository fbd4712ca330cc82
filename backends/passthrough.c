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
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/dio.h"
#include "backends/passthrough.h"
#include "backends/transfer.h"

/* How often a call is made that finds something busy, which lasts for a moment. */
#define BUSY_ATTEMPTS 10

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
		.help = "create FILE, a regular file, with this size if it does not exist or is "
			"empty",
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

static int passthrough_info(struct backend *b, struct backend_info *info)
{
	*info = ((struct passthrough *)b)->info;
	return 0;
}

static int passthrough_available(struct backend *b, uint64_t *size)
{
	const struct passthrough *p = (const struct passthrough *)b;
	int64_t now = passthrough_current_size(p);

	if (now < 0)
		return (int)now;
	/* Direct I/O cannot transfer a part of a block behind the last whole one. */
	*size = (uint64_t)now - (uint64_t)now % p->block;
	return 0;
}

static size_t passthrough_counters(struct backend *b, struct backend_counter *counters, size_t max)
{
	struct passthrough *p = (struct passthrough *)b;

	return p->direct ? direct_counters(p->direct, counters, max) : 0;
}

/* ---- data ------------------------------------------------------------------- */

/*
 * The file ends inside the device, or the disk was removed, whose size is 0 then. What was there is
 * gone: never answered with zeroes.
 */
static int shrunk(struct passthrough *p)
{
	bool gone = p->is_device && passthrough_current_size(p) <= 0;

	if (!atomic_exchange(&p->shrink_told, true))
		backend_error(&p->backend.host,
			gone ? "file=%s: was removed while it was served; all requests fail"
			     : "file=%s: became smaller while it was served; data beyond its new "
			       "end is lost and requests there fail",
			p->file);
	return gone ? -ENODEV : -EIO;
}

/*
 * What r, the result of a request, means. The kernel says of a removed disk that it has ended, that
 * there is no space, or that the range is not valid.
 */
static int explain(struct passthrough *p, int r)
{
	if (r == TRANSFER_EOF || (r && p->is_device && passthrough_current_size(p) <= 0))
		return shrunk(p);
	return r;
}

static int passthrough_readv(
	struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset)
{
	struct passthrough *p = (struct passthrough *)b;
	int r = p->direct ? direct_readv(p->direct, iov, iovcnt, offset)
			  : transfer_readv(p->fd, iov, iovcnt, offset, 1);

	return explain(p, r);
}

/* Does the file still reach so far? 0 or negative errno. A disk checks that itself. */
static int check_end(struct passthrough *p, uint64_t end)
{
	int64_t size;

	if (p->is_device)
		return 0;
	size = passthrough_current_size(p);
	if (size < 0)
		return (int)size;
	return (uint64_t)size < end ? shrunk(p) : 0;
}

static int write_with(
	struct passthrough *p, const struct iovec *iov, int iovcnt, uint64_t offset, int rwf)
{
	uint64_t end = offset;
	int r;

	for (int i = 0; i < iovcnt; i++)
		end += iov[i].iov_len;
	/* It would make the file larger again, and what was lost before it would read as zeroes. */
	r = check_end(p, end);
	if (r)
		return r;
	r = p->direct ? direct_writev(p->direct, iov, iovcnt, offset, rwf)
		      : transfer_writev(p->fd, iov, iovcnt, offset, 1, rwf);
	return explain(p, r);
}

/*
 * The kernel reports a failed write-back once, to the first who syncs, and then
 * takes the data for clean. Another connection's flush must not report success
 * after that, so the failure stays until the device is opened again.
 */
static void keep_flush_error(struct passthrough *p, int r)
{
	int none = 0;

	if (r && atomic_compare_exchange_strong(&p->flush_error, &none, r))
		backend_error(&p->backend.host,
			"file=%s: %s while making data durable; writes may be lost, so every flush "
			"fails from now on; repair the device and start again",
			p->file, strerror(-r));
}

/* Can the kernel hold changes in its page cache? With direct I/O, the edges of zeroes in a file. */
static bool has_cache(const struct passthrough *p)
{
	return !p->direct || !p->is_device;
}

static void lock_for_reading(struct passthrough *p)
{
	if (has_cache(p))
		pthread_rwlock_rdlock(&p->drop_lock);
}

static void unlock(struct passthrough *p)
{
	if (has_cache(p))
		pthread_rwlock_unlock(&p->drop_lock);
}

static int sync_descriptor(int fd)
{
	int r;

	do
		r = fdatasync(fd) < 0 ? -errno : 0;
	while (r == -EINTR);
	return r;
}

/* What failed since the last call, or since the open of fd. 0 or negative errno. */
static int loss_since(const struct passthrough *p, int fd)
{
	if (p->is_stacked)
		return sync_descriptor(fd);
	/* Waits for a page at most. */
	return sync_file_range(fd, 0, 1, SYNC_FILE_RANGE_WAIT_BEFORE) < 0 ? -errno : 0;
}

/* Under drop_lock: a request under way has not dropped some of it meanwhile. */
static int sync_locked(struct passthrough *p)
{
	/* The other descriptor of a stacked file does both. */
	int r = p->is_stacked && p->loss_fd >= 0 ? 0 : sync_descriptor(p->fd);

	if (r == 0 && p->loss_fd >= 0)
		r = loss_since(p, p->loss_fd);
	if (r == 0)
		p->is_cached = !p->direct;
	return r;
}

/*
 * One call of the kernel at a time: it reports a failed write-back to one of those that wait for it
 * at once, and to the others that all is well. The next one begins when the failure of the last one
 * is known to all. A call serves all who came before it began.
 */
static int sync_together(struct passthrough *p)
{
	struct passthrough_syncs *s = &p->syncs;
	uint64_t needed;
	int r;

	pthread_mutex_lock(&s->lock);
	needed = s->begun + 1;
	while (s->ended < needed && !atomic_load(&p->flush_error)) {
		if (s->begun != s->ended) {
			pthread_cond_wait(&s->changed, &s->lock);
			continue;
		}
		s->begun++;
		pthread_mutex_unlock(&s->lock);
		lock_for_reading(p);
		r = sync_locked(p);
		unlock(p);
		keep_flush_error(p, r);
		pthread_mutex_lock(&s->lock);
		s->ended = s->begun;
		pthread_cond_broadcast(&s->changed);
	}
	pthread_mutex_unlock(&s->lock);
	return atomic_load(&p->flush_error);
}

static int sync_data(struct passthrough *p)
{
	bool is_cached;
	int r = atomic_load(&p->flush_error);

	if (r)
		return r;
	lock_for_reading(p);
	is_cached = p->is_cached || !p->is_device;
	/* No data wait to be written back, and the disk itself answers each flush. */
	if (!is_cached)
		r = sync_locked(p);
	unlock(p);
	if (is_cached)
		return sync_together(p);
	keep_flush_error(p, r);
	return atomic_load(&p->flush_error);
}

/*
 * By one call. On a disk its failure is this write's alone; of a file, the file system may have
 * cached others in spite of direct I/O, such as its own blocks, or data of a file that shares
 * blocks. -EOPNOTSUPP: not possible.
 */
static int write_durably(
	struct passthrough *p, const struct iovec *iov, int iovcnt, uint64_t offset)
{
	int r = -EOPNOTSUPP;

	lock_for_reading(p);
	if (p->has_dsync && !p->is_cached) {
		r = atomic_load(&p->flush_error);
		if (r == 0)
			r = write_with(p, iov, iovcnt, offset, RWF_DSYNC);
		if (r == -EOPNOTSUPP)
			p->has_dsync = false;
		if (r == -EIO && !p->is_device && !p->shrink_told) /* else shrunk() has said why */
			keep_flush_error(p, r);
	}
	unlock(p);
	return r;
}

static int passthrough_writev(
	struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset, unsigned flags)
{
	struct passthrough *p = (struct passthrough *)b;
	int r = flags & BACKEND_FUA ? write_durably(p, iov, iovcnt, offset) : -EOPNOTSUPP;

	if (r != -EOPNOTSUPP)
		return r;
	r = write_with(p, iov, iovcnt, offset, 0);
	return r || !(flags & BACKEND_FUA) ? r : sync_data(p);
}

static int passthrough_get_backing(
	struct backend *b, const struct backend_request *request, struct backend_backing *backing)
{
	struct passthrough *p = (struct passthrough *)b;

	if (request->offset % p->block || request->length % p->block)
		return -EOPNOTSUPP;
	*backing = (struct backend_backing){.fd = p->fd,
		.offset = request->offset,
		.memory_alignment = p->memory,
		.is_scheduled = p->is_scheduled};
	if (request->flags & BACKEND_FUA) {
		/* As in write_durably(), but nothing can be locked. */
		if (has_cache(p) || p->is_cached || !p->has_dsync || atomic_load(&p->flush_error))
			return -EOPNOTSUPP;
		backing->rwf = RWF_DSYNC;
	}
	return request->op == BACKEND_WRITE ? check_end(p, request->offset + request->length) : 0;
}

static int passthrough_transfer_failed(struct backend *b, int result)
{
	return explain((struct passthrough *)b, result);
}

static int passthrough_flush(struct backend *b)
{
	struct passthrough *p = (struct passthrough *)b;
	int64_t size;

	if (p->backend.readonly)
		return 0;
	size = passthrough_current_size(p);
	if (size < 0)
		return (int)size;
	/* Writes behind the new end may be among what was lost, whatever its size is now. */
	if ((uint64_t)size < atomic_load(&b->size) || p->shrink_told)
		return shrunk(p);
	return sync_data(p);
}

/* Unlike the server's, it claims nothing. */
static int passthrough_watch(const void *config)
{
	const struct passthrough_config *c = config;
	int fd = c->readonly ? -1 : open(c->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	return fd < 0 ? -ENOENT : fd;
}

static void passthrough_heed(struct backend *b, int watch)
{
	struct passthrough *p = (struct passthrough *)b;
	struct stat own, watched;

	if (fstat(p->fd, &own) < 0 || fstat(watch, &watched) < 0 ||
		(p->is_device ? own.st_rdev != watched.st_rdev
			      : own.st_dev != watched.st_dev || own.st_ino != watched.st_ino))
		return;
	keep_flush_error(p, loss_since(p, watch));
}

/* ---- trim and zero ---------------------------------------------------------- */

static bool is_unsupported(int r)
{
	return r == -EOPNOTSUPP || r == -ENOSYS || r == -ENOTTY;
}

/* On a device, EBUSY: a page was written to beside it, so that the kernel could not drop it. */
static int allocate(struct passthrough *p, int mode, uint64_t offset, uint64_t length)
{
	int r, busy = 0;

	do
		r = fallocate(p->fd, mode | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length) < 0
			    ? -errno
			    : 0;
	while (r == -EINTR || (r == -EBUSY && ++busy < BUSY_ATTEMPTS));
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

/* Around what changes the file behind its cached pages. Locks in the order of write_durably(). */
static uint64_t hold(struct passthrough *p, uint64_t offset, uint64_t length)
{
	if (has_cache(p)) {
		pthread_rwlock_wrlock(&p->drop_lock);
		p->is_cached = true;
	}
	return p->direct ? direct_lock(p->direct, offset, length) : 0;
}

static void release(struct passthrough *p, uint64_t held)
{
	if (p->direct)
		direct_unlock(p->direct, held);
	unlock(p);
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
		return is_unsupported(r) ? -EOPNOTSUPP : explain(p, r);
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

/*
 * Zeroes that keep their blocks, written where there is no command. Before Linux 5.16, BLKZEROOUT
 * drops pages at its beginning only: a read beside it, or ahead, leaves the old data in the cache.
 * fallocate(2) drops them at its end, too.
 */
static int write_zeroes(struct passthrough *p, uint64_t offset, uint64_t length)
{
	int r = -EOPNOTSUPP;

	if (p->has_zero_range)
		r = attempt(&p->has_zero_range, allocate(p, FALLOC_FL_ZERO_RANGE, offset, length));
	if (r == -EOPNOTSUPP && p->has_zeroout)
		r = attempt(&p->has_zeroout, device_range(p, BLKZEROOUT, offset, length));
	return r;
}

/* Whole sectors. */
static int zero_sectors(struct passthrough *p, uint64_t offset, uint64_t length, unsigned flags)
{
	int r = -EOPNOTSUPP;

	/* On a device the kernel does this by a command or not at all: it is always fast. */
	if (flags & BACKEND_MAY_TRIM && p->has_punch) {
		r = punch(p, offset, length);
		/* What the page cache held is gone before the kernel refuses, and with it data that
		 * was acknowledged: from now on nothing but zeroes is right. */
		if (r == -EOPNOTSUPP && !p->direct)
			flags &= ~(unsigned)BACKEND_FAST_ZERO;
	}
	if (r != -EOPNOTSUPP)
		return r;
	/* The limit drops to 0 when a command failed. */
	if (flags & BACKEND_FAST_ZERO &&
		!passthrough_queue_limit(p->disk, "write_zeroes_max_bytes", 0))
		return -EOPNOTSUPP;
	return write_zeroes(p, offset, length);
}

/* Zeroes what zero_sectors() cannot at the edge of a range. */
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

/*
 * What is left to the kernel begins and ends with these. Behind the page cache: with pages. Before
 * Linux 6.15 and its backports, a write to the rest of a page may read it while the zeroes are on
 * their way to the disk, and bring back what it read.
 */
static uint64_t zero_unit(const struct passthrough *p)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return !p->direct && page > p->sector ? page : p->sector;
}

static int zero_device(struct passthrough *p, uint64_t offset, uint64_t length, unsigned flags)
{
	uint64_t stop = offset + length, unit = zero_unit(p);
	uint64_t start = (offset + unit - 1) / unit * unit;
	uint64_t end = stop / unit * unit;
	int r;

	/* Inside one unit or around the border of two. */
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

		r = check_end(p, offset + length);
		if (r == 0)
			r = zero_file(p, offset, length, flags);
		release(p, held);
	}
	if (r)
		return explain(p, r);
	return flags & BACKEND_FUA ? sync_data(p) : 0;
}

/* ---- extents ---------------------------------------------------------------- */

/* The run of equal state that begins at pos. */
static int find_extent(
	struct passthrough *p, uint64_t pos, uint64_t end, struct backend_extent *extent)
{
	off_t data, next = -1;
	bool no_data; /* behind pos */
	int r = 0;

	pthread_mutex_lock(&p->seek_lock);
	data = lseek(p->fd, (off_t)pos, SEEK_DATA);
	if (data < 0)
		r = -errno;
	else if ((uint64_t)data == pos)
		next = lseek(p->fd, (off_t)pos, SEEK_HOLE);
	pthread_mutex_unlock(&p->seek_lock);
	no_data = r == -ENXIO;
	if (r && !no_data)
		return r;
	/* Now: what lies behind a new end must not pass for a hole. */
	r = check_end(p, end);
	if (r)
		return r;
	extent->offset = pos;
	extent->hole = extent->zero = no_data || (uint64_t)data != pos;
	if (no_data)
		next = (off_t)end;
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
	.start = passthrough_start,
	.close = passthrough_close,
	.info = passthrough_info,
	.available = passthrough_available,
	.readv = passthrough_readv,
	.writev = passthrough_writev,
	.watch = passthrough_watch,
	.heed = passthrough_heed,
	.flush = passthrough_flush,
	.trim = passthrough_trim,
	.zero = passthrough_zero,
	.extents = passthrough_extents,
	.get_backing = passthrough_get_backing,
	.transfer_failed = passthrough_transfer_failed,
	.counters = passthrough_counters,
};

BACKEND_REGISTER(passthrough_backend)
