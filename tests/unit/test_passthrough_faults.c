/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the kernel does too seldom to wait for: interrupted and partial calls,
 * failing flushes, missing features. The linker puts these functions between
 * the device and libc (names as with 64-bit offsets).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "backends/passthrough.h"
#include "tests/unit/support.h"

#define MIB (1u << 20)

/* The plan for the next calls; all zero: the kernel decides. */
static struct {
	int interrupt;	    /* calls to answer with EINTR */
	size_t at_most;	    /* bytes that one call transfers */
	int no_dsync;	    /* RWF_DSYNC is unknown */
	int sync_error;	    /* the next fdatasync or write with RWF_DSYNC fails with this, once */
	int lost_error;	    /* each descriptor gets this once, by a sync or durable write */
	bool stacked;	    /* a sync alone reaches the file system below, which has lost it */
	int told[4];	    /* those that had it, plus 1 */
	int read_error;	    /* each read of one buffer fails with this */
	int write_error;    /* each other write fails with this */
	unsigned dio_align; /* what direct I/O is said to need */
	void (*between)(const char *path); /* what others do between an open and its claim, once */
	const char *path;
	int refused_modes;	/* fallocate modes that are not supported */
	bool drops;		/* as the kernel does of a device's page cache before it refuses */
	_Atomic int calls;	/* of fdatasync, or of fallocate in a refused mode */
	struct device *flushed; /* by another thread while fallocate or a failing fdatasync runs */
	pthread_t flusher;
	int flusher_result;
	int calls_beside;     /* calls when that ends */
	off_t offset, length; /* of the last fallocate */
	int mode;
	int busy;	     /* fallocates that find a page of a device busy after their work */
	int zeroouts;	     /* calls of BLKZEROOUT */
	bool no_direct_open; /* open fails with O_DIRECT */
	int direct_fd;	     /* the last that was opened with O_DIRECT */
} plan;

/* What was there before the data that is dropped. */
static const char older[MIB] = {1};

static ssize_t interrupted(void)
{
	if (plan.interrupt == 0)
		return 0;
	plan.interrupt--;
	errno = EINTR;
	return -1;
}

/* What the kernel is asked for: direct I/O takes whole sectors only. */
static size_t cut(size_t length)
{
	size_t most = (plan.at_most + 511) & ~(size_t)511;

	return plan.at_most && length > most ? most : length;
}

/* What it is said to have done, which may end inside a sector. */
static ssize_t claim(ssize_t done)
{
	return plan.at_most && done > (ssize_t)plan.at_most ? (ssize_t)plan.at_most : done;
}

/* As the kernel tells that it could not write something back. */
static bool tell_loss(int fd)
{
	size_t i = 0;

	if (!plan.lost_error)
		return false;
	for (; plan.told[i]; i++)
		if (plan.told[i] == fd + 1)
			return false;
	plan.told[i] = fd + 1;
	errno = plan.lost_error;
	return true;
}

#define WRAP(type, name, ...)                                                                      \
	type __real_##name(__VA_ARGS__);                                                           \
	type __wrap_##name(__VA_ARGS__);                                                           \
	type __wrap_##name(__VA_ARGS__)

WRAP(ssize_t, pread64, int fd, void *buffer, size_t length, off_t offset)
{
	if (plan.read_error) {
		errno = plan.read_error;
		return -1;
	}
	return interrupted() ? -1 : claim(__real_pread64(fd, buffer, cut(length), offset));
}

WRAP(ssize_t, pwrite64, int fd, const void *buffer, size_t length, off_t offset)
{
	if (plan.write_error) {
		errno = plan.write_error;
		return -1;
	}
	return interrupted() ? -1 : claim(__real_pwrite64(fd, buffer, cut(length), offset));
}

/* A vector call that is cut transfers only the beginning of the first vector. */
WRAP(ssize_t, preadv64, int fd, const struct iovec *iov, int n, off_t offset)
{
	if (interrupted())
		return -1;
	return plan.at_most && iov->iov_len
		       ? claim(__real_pread64(fd, iov->iov_base, cut(iov->iov_len), offset))
		       : __real_preadv64(fd, iov, n, offset);
}

WRAP(ssize_t, pwritev64, int fd, const struct iovec *iov, int n, off_t offset)
{
	if (interrupted())
		return -1;
	return plan.at_most && iov->iov_len
		       ? claim(__real_pwrite64(fd, iov->iov_base, cut(iov->iov_len), offset))
		       : __real_pwritev64(fd, iov, n, offset);
}

WRAP(ssize_t, pwritev64v2, int fd, const struct iovec *iov, int n, off_t offset, int flags)
{
	if (plan.no_dsync) {
		errno = EOPNOTSUPP;
		return -1;
	}
	if (plan.sync_error) {
		errno = plan.sync_error;
		plan.sync_error = 0;
		return -1;
	}
	if (flags & RWF_DSYNC && tell_loss(fd))
		return -1;
	return interrupted() ? -1 : __real_pwritev64v2(fd, iov, n, offset, flags);
}

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
	va_list arguments;
	mode_t mode;
	int fd;

	va_start(arguments, flags);
	mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
	va_end(arguments);
	if (flags & O_DIRECT && plan.no_direct_open) {
		errno = EINVAL;
		return -1;
	}
	fd = __real_open64(path, flags, mode);
	if (flags & O_DIRECT)
		plan.direct_fd = fd;
	return fd;
}

int __real_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...)
{
	void (*between)(const char *) = plan.between;
	va_list arguments;
	void *argument;

	va_start(arguments, command);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	if (command == F_OFD_SETLK && between) {
		plan.between = NULL;
		between(plan.path);
	}
	return __real_fcntl64(fd, command, argument);
}

WRAP(int, statx, int dir, const char *path, int flags, unsigned mask, struct statx *stx)
{
	int r = __real_statx(dir, path, flags, mask, stx);

	if (r == 0 && plan.dio_align) {
		stx->stx_mask |= STATX_DIOALIGN;
		stx->stx_dio_mem_align = 512;
		stx->stx_dio_offset_align = plan.dio_align;
	}
	return r;
}

static void *flush(void *opaque)
{
	const struct device *d = opaque;

	plan.flusher_result = backend_flush(d->backend);
	return NULL;
}

static void flush_beside(void)
{
	if (!plan.flushed)
		return;
	pthread_create(&plan.flusher, NULL, flush, plan.flushed);
	plan.flushed = NULL;
	usleep(50000);
	plan.calls_beside = plan.calls;
}

WRAP(int, fdatasync, int fd)
{
	int error = plan.sync_error;

	plan.calls++;
	if (interrupted())
		return -1;
	if (error) {
		plan.sync_error = 0;
		flush_beside();
		errno = error;
		return -1;
	}
	if (tell_loss(fd))
		return -1;
	return __real_fdatasync(fd);
}

WRAP(int, sync_file_range, int fd, off_t offset, off_t length, unsigned flags)
{
	if (!plan.stacked && tell_loss(fd))
		return -1;
	return __real_sync_file_range(fd, offset, length, flags);
}

WRAP(int, fstatfs64, int fd, struct statfs *fs)
{
	int r = __real_fstatfs64(fd, fs);

	if (plan.stacked)
		fs->f_type = OVERLAYFS_SUPER_MAGIC;
	return r;
}

/* After a command has failed, the kernel announces it no more. */
WRAP(uint64_t, passthrough_queue_limit, dev_t disk, const char *name, uint64_t otherwise)
{
	return plan.calls && plan.drops ? 0 : __real_passthrough_queue_limit(disk, name, otherwise);
}

WRAP(int, fallocate64, int fd, int mode, off_t offset, off_t length)
{
	if (interrupted())
		return -1;
	plan.mode = mode;
	plan.offset = offset;
	plan.length = length;
	flush_beside();
	if (mode & plan.refused_modes) {
		plan.calls++;
		if (plan.drops)
			assert_int_equal(
				__real_pwrite64(fd, older, (size_t)length, offset), length);
		errno = EOPNOTSUPP;
		return -1;
	}
	if (plan.busy) {
		plan.busy--;
		assert_int_equal(__real_fallocate64(fd, mode, offset, length), 0);
		errno = EBUSY;
		return -1;
	}
	return __real_fallocate64(fd, mode, offset, length);
}

int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	void *argument;

	va_start(arguments, request);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	plan.zeroouts += request == BLKZEROOUT;
	return __real_ioctl(fd, request, argument);
}

static int set_up(void **state)
{
	(void)state;
	memset(&plan, 0, sizeof plan);
	return 0;
}

static void open_file(struct device *d, int direct)
{
	device_open(d, &passthrough_backend, "%s;direct=%s", scratch_file("faults", MIB),
		direct ? "on" : "off");
}

/* Every call is interrupted first and then moves a little: everything arrives. */
static void test_partial_and_interrupted(void **state)
{
	static const size_t steps[] = {512, 1024, 5000};
	char *memory = aligned_alloc(4096, 64 * 1024), *back = aligned_alloc(4096, 64 * 1024);

	(void)state;
	for (int direct = 0; direct < 2; direct++)
		for (size_t i = 0; i < 3; i++) {
			struct device d;
			struct iovec out[] = {{memory, 8192}, {NULL, 0}, {memory + 8192, 24576}};
			struct iovec in[] = {{back, 24576}, {back + 24576, 8192}};

			open_file(&d, direct);
			for (int j = 0; j < 32768; j++)
				memory[j] = (char)(j * 31 + (j >> 9));
			memset(back, 0, 65536);
			plan.at_most = steps[i];
			plan.interrupt = 3;
			assert_int_equal(backend_writev(d.backend, out, 3, 4096, 0), 0);
			assert_int_equal(plan.interrupt, 0);
			plan.interrupt = 3;
			assert_int_equal(backend_readv(d.backend, in, 2, 4096), 0);
			assert_int_equal(plan.interrupt, 0);
			assert_memory_equal(back, memory, 32768);
			plan.interrupt = 2;
			assert_int_equal(device_write(&d, memory, 4096, 0, BACKEND_FUA), 0);
			plan.interrupt = 2;
			assert_int_equal(backend_flush(d.backend), 0);
			plan.interrupt = 2;
			assert_int_equal(backend_zero(d.backend, 0, 4096, BACKEND_MAY_TRIM), 0);
			assert_int_equal(plan.interrupt, 0);
			plan.at_most = 0;
			device_close(&d);
		}
	free(back);
	free(memory);
}

/* The kernel tells a lost write once; we tell it to everybody from then on. */
static void test_flush_error_stays(void **state)
{
	struct device d;
	char block[512] = "x";

	(void)state;
	open_file(&d, 0);
	plan.sync_error = EIO;
	assert_int_equal(backend_flush(d.backend), -EIO);
	assert_int_equal(d.reported.errors, 1);
	assert_holds(d.reported.error, "Input/output error while making data durable");
	assert_int_equal(backend_flush(d.backend), -EIO);
	assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), -EIO);
	assert_int_equal(backend_trim(d.backend, 0, 512, BACKEND_FUA), -EIO);
	assert_int_equal(device_write(&d, block, 512, 0, 0), 0);
	assert_int_equal(device_read(&d, block, 512, 0), 0);
	assert_int_equal(d.reported.errors, 1);
	device_close(&d);
}

/* The kernel reports the loss to one of them, which has not yet kept it for the others. */
static void test_a_flush_beside_a_failing_one(void **state)
{
	(void)state;
	for (int direct = 0; direct < 2; direct++) {
		struct device d;

		memset(&plan, 0, sizeof plan);
		open_file(&d, direct);
		plan.flushed = &d;
		plan.sync_error = EIO;
		assert_int_equal(backend_flush(d.backend), -EIO);
		assert_null(plan.flushed);
		pthread_join(plan.flusher, NULL);
		assert_int_equal(plan.flusher_result, -EIO);
		device_close(&d);
	}
}

/* RWF_DSYNC where no write but this one can be meant: not with anything in the page cache. */
static void test_durable_writes(void **state)
{
	struct device d;
	char block[512] = "x";

	(void)state;
	open_file(&d, 1);
	/* An earlier server may have left something there. */
	assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), 0);
	assert_int_equal(plan.calls, 1);
	assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), 0);
	assert_int_equal(plan.calls, 1); /* RWF_DSYNC does it */
	/* The file system may have cached another's write, whose loss it tells but once. */
	plan.sync_error = EIO;
	assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), -EIO);
	assert_int_equal(backend_flush(d.backend), -EIO);
	device_close(&d);
	plan.sync_error = 0;
	open_file(&d, 1);
	assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), 0);
	plan.no_dsync = 1;
	plan.calls = 0;
	assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), 0);
	assert_int_equal(plan.calls, 1);
	plan.sync_error = ENOSPC;
	assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), -ENOSPC);
	device_close(&d);
	plan.no_dsync = 0;
	open_file(&d, 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), 0);
	assert_int_equal(plan.calls, 4);
	device_close(&d);
}

/* With direct I/O, the edges of zeroes are in the page cache until the next sync. */
static void test_durable_writes_after_zeroes(void **state)
{
	char block[512] = "x";

	(void)state;
	for (int trim = 0; trim < 2; trim++) {
		struct device d;

		memset(&plan, 0, sizeof plan);
		open_file(&d, 1);
		for (int round = 1; round < 3; round++) {
			assert_int_equal(trim ? backend_trim(d.backend, 512, 8192, 0)
					      : backend_zero(d.backend, 512, 8192, 0),
				0);
			assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), 0);
			assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), 0);
			assert_int_equal(plan.calls, round);
		}
		assert_int_equal(backend_zero(d.backend, 512, 8192, 0), 0);
		plan.sync_error = EIO;
		assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), -EIO);
		assert_int_equal(backend_flush(d.backend), -EIO);
		device_close(&d);
	}
}

/*
 * Through the page cache, a durable write may get the error of an earlier one, which the kernel
 * tells once; a full file system is this write's own.
 */
static void test_a_durable_write_gets_the_error_of_another(void **state)
{
	struct device d;
	char block[512] = "x";

	(void)state;
	open_file(&d, 0);
	plan.write_error = ENOSPC;
	assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), -ENOSPC);
	plan.write_error = 0;
	assert_int_equal(backend_flush(d.backend), 0);
	plan.sync_error = ENOSPC;
	assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), -ENOSPC);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	device_close(&d);
}

/* With direct I/O on a file, where the file system may have cached another's write all the same. */
static void test_a_durable_write_takes_no_loss_away(void **state)
{
	char block[512] = "x";

	(void)state;
	for (int stacked = 0; stacked < 2; stacked++) {
		struct device d;

		memset(&plan, 0, sizeof plan);
		plan.stacked = stacked;
		open_file(&d, 1);
		for (int i = 0; i < 2; i++)
			assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), 0);
		/* Its own: there was no room. */
		plan.sync_error = ENOSPC;
		assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), -ENOSPC);
		assert_int_equal(backend_flush(d.backend), 0);
		plan.lost_error = ENOSPC;
		assert_int_equal(device_write(&d, block, 512, 0, BACKEND_FUA), -ENOSPC);
		for (int i = 0; i < 2; i++)
			assert_int_equal(backend_flush(d.backend), -ENOSPC);
		device_close(&d);
	}
}

/* By the descriptor of a process that watched the file when another server ended. */
static void test_what_others_lost_is_heeded(void **state)
{
	(void)state;
	for (int stacked = 0; stacked < 2; stacked++) {
		const char *file = scratch_file("faults", MIB);
		int watch = open(file, O_RDONLY);
		struct device d;

		memset(&plan, 0, sizeof plan);
		plan.stacked = stacked;
		device_open(&d, &passthrough_backend, "%s;direct=off", file);
		backend_heed(d.backend, watch);
		assert_int_equal(backend_flush(d.backend), 0);
		plan.lost_error = EIO;
		backend_heed(d.backend, watch);
		plan.lost_error = 0;
		assert_int_equal(backend_flush(d.backend), -EIO);
		device_close(&d);
		close(watch);
	}
}

/* The kernel drops cached pages before it zeroes; with direct I/O, those of the edges of zeroes. */
static void test_flush_beside_zeroes(void **state)
{
	(void)state;
	for (int direct = 0; direct < 2; direct++)
		for (int trim = 0; trim < 2; trim++) {
			struct device d;

			memset(&plan, 0, sizeof plan);
			open_file(&d, direct);
			plan.flushed = &d;
			assert_int_equal(trim ? backend_trim(d.backend, 0, 4096, 0)
					      : backend_zero(d.backend, 0, 4096, 0),
				0);
			assert_null(plan.flushed);
			pthread_join(plan.flusher, NULL);
			assert_int_equal(plan.flusher_result, 0);
			assert_int_equal(plan.calls, 1);
			assert_int_equal(plan.calls_beside, 0);
			device_close(&d);
		}
}

/* Direct I/O may need larger blocks than we try: not ours, and not beyond our memory. */
static void test_huge_blocks(void **state)
{
	struct device d;

	(void)state;
	plan.dio_align = MIB;
	assert_int_equal(
		device_try(&d, &passthrough_backend, 0, "%s", scratch_file("huge", 4 * MIB)),
		-EINVAL);
	assert_holds(d.reported.error, "direct I/O is not possible there; use direct=off");
	plan.dio_align = 3 * 512;
	assert_int_equal(
		device_try(&d, &passthrough_backend, 0, "%s", scratch_file("huge", 4 * MIB)),
		-EINVAL);
	assert_holds(d.reported.error, "direct I/O is not possible there; use direct=off");
}

/* CIFS decides in open(2) how a file is read and written. */
static void test_direct_from_the_open(void **state)
{
	(void)state;
	for (int refused = 0; refused < 2; refused++)
		for (int direct = 0; direct < 2; direct++)
			for (int created = 0; created < 2; created++) {
				const char *path = scratch_path("direct");
				struct backend_request r = {.op = BACKEND_READ, .length = 4096};
				struct backend_backing backing;
				struct device d;

				unlink(path);
				if (!created)
					scratch_file("direct", MIB);
				plan.direct_fd = -1;
				plan.no_direct_open = refused;
				device_open(&d, &passthrough_backend, "%s;direct=%s%s", path,
					direct ? "on" : "off", created ? ";size=1m" : "");
				assert_int_equal(backend_get_backing(d.backend, &r, &backing), 0);
				assert_int_equal(
					plan.direct_fd, direct && !refused ? backing.fd : -1);
				assert_int_equal(!(fcntl(backing.fd, F_GETFL) & O_DIRECT), !direct);
				device_close(&d);
			}
}

/* A block that cannot be read says nothing of alignment: the rest can be served. */
static void test_a_bad_block_where_alignment_is_tried(void **state)
{
	static const int bad[] = {EIO, EILSEQ, ENODATA, EREMOTEIO, EBADMSG};
	static const int fatal[] = {ENXIO, ENODEV, ENOMEM};
	const char *file = scratch_file("bad", MIB);
	struct backend_info info;
	struct device d;

	(void)state;
	device_open(&d, &passthrough_backend, "%s", file);
	assert_int_equal(backend_info(d.backend, &info), 0);
	device_close(&d);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		uint32_t block = info.block_size;

		plan.read_error = bad[i];
		device_open(&d, &passthrough_backend, "%s", file);
		assert_int_equal(backend_info(d.backend, &info), 0);
		assert_int_equal(info.block_size, block);
		device_close(&d);
	}
	for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) {
		plan.read_error = fatal[i];
		assert_int_equal(device_try(&d, &passthrough_backend, 0, "%s", file), -fatal[i]);
		assert_holds(d.reported.error, "direct I/O fails");
	}
}

static int other_fd;

static void other_claims(const char *path)
{
	struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	other_fd = open(path, O_RDWR);
	assert_int_equal(__real_fcntl64(other_fd, F_OFD_SETLK, &whole), 0);
}

static void other_replaces(const char *path)
{
	struct stat st;

	/* Not the same number again. */
	other_fd = open(path, O_RDONLY);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(stat(scratch_file("replaced", MIB), &st), 0);
}

/* Two that create a file at once: one has it; and nobody serves what has no name any more. */
static void test_two_create_the_file(void **state)
{
	const char *path = scratch_path("two");
	struct device d;
	struct stat st;

	(void)state;
	plan.path = path;
	plan.between = other_claims;
	assert_int_equal(device_try(&d, &passthrough_backend, 0, "%s;size=1m", path), -EBUSY);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 0);
	close(other_fd);
	/* As after a kill: it is still to be created. */
	device_open(&d, &passthrough_backend, "%s;size=1m", path);
	device_close(&d);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, MIB);

	plan.path = path = scratch_file("replaced", MIB);
	plan.between = other_replaces;
	assert_int_equal(device_try(&d, &passthrough_backend, 0, "%s", path), -EAGAIN);
	assert_holds(d.reported.error, "replaced while it was opened; try again");
	close(other_fd);
	plan.path = path = scratch_path("replaced");
	assert_int_equal(unlink(path), 0);
	plan.between = other_replaces;
	assert_int_equal(device_try(&d, &passthrough_backend, 0, "%s;size=1m", path), -EAGAIN);
	assert_int_equal(stat(path, &st), 0); /* the other's */
	close(other_fd);
}

/* What is not supported is tried once, and the answers stay right. */
static void test_refused_modes(void **state)
{
	struct device d;
	struct backend_info info;

	(void)state;
	open_file(&d, 0);
	plan.refused_modes = FALLOC_FL_ZERO_RANGE;
	assert_int_equal(backend_zero(d.backend, 0, 4096, BACKEND_FAST_ZERO), -EOPNOTSUPP);
	assert_int_equal(backend_zero(d.backend, 0, 4096, BACKEND_FAST_ZERO), -EOPNOTSUPP);
	assert_int_equal(plan.calls, 1);
	assert_int_equal(backend_zero(d.backend, 0, 4096, 0), 0); /* punched and allocated */
	assert_int_equal(backend_zero(d.backend, 0, 4096, BACKEND_FAST_ZERO | BACKEND_MAY_TRIM), 0);
	assert_int_equal(plan.calls, 1);
	device_close(&d);

	plan.refused_modes = FALLOC_FL_ZERO_RANGE | FALLOC_FL_PUNCH_HOLE;
	open_file(&d, 0);
	assert_int_equal(backend_info(d.backend, &info), 0);
	assert_false(info.can_trim);
	assert_int_equal(backend_trim(d.backend, 0, 4096, 0), 0); /* advice */
	assert_int_equal(backend_zero(d.backend, 0, 4096, BACKEND_MAY_TRIM), -EOPNOTSUPP);
	device_close(&d);
}

/* A command for zeroes that the device announces fails: zeroes are written, quick or not. */
static void test_zeroes_after_a_refusal(void **state)
{
	static const char zeroes[64 * 1024];
	static char data[sizeof zeroes];
	struct device d;
	char device[64];

	(void)state;
	loop_attach(scratch_file("refuses", MIB), 512, device, sizeof device);
	device_open(&d, &passthrough_backend, "%s;direct=off", device);
	memset(data, 2, sizeof data);
	assert_int_equal(device_write(&d, data, sizeof data, 0, 0), 0);
	plan.refused_modes = FALLOC_FL_PUNCH_HOLE;
	plan.drops = true;
	assert_int_equal(
		backend_zero(d.backend, 0, sizeof data, BACKEND_MAY_TRIM | BACKEND_FAST_ZERO), 0);
	assert_int_equal(plan.calls, 1);
	assert_int_equal(device_read(&d, data, sizeof data, 0), 0);
	assert_memory_equal(data, zeroes, sizeof data);
	device_close(&d);
	loop_detach(device);
}

/*
 * Behind the page cache, only whole pages are zeroed: a write to a part of one may have read the
 * rest before it was zeroed on the disk, and would write that back.
 */
static void test_zeroes_end_with_pages(void **state)
{
	static char data[64 * 1024], expected[sizeof data];
	char device[64];

	(void)state;
	loop_attach(scratch_file("pages", MIB), 512, device, sizeof device);
	for (int direct = 0; direct < 2; direct++) {
		struct device d;

		device_open(
			&d, &passthrough_backend, "%s;direct=%s", device, direct ? "on" : "off");
		memset(expected, 3, sizeof expected);
		assert_int_equal(device_write(&d, expected, sizeof expected, 0, 0), 0);
		assert_int_equal(backend_zero(d.backend, 512, 16384, BACKEND_MAY_TRIM), 0);
		assert_int_equal(plan.offset, direct ? 512 : 4096);
		assert_int_equal(plan.length, direct ? 16384 : 12288);
		memset(expected + 512, 0, 16384);
		/* Less than a page. */
		plan.length = 0;
		assert_int_equal(backend_zero(d.backend, 32768 + 512, 1024, BACKEND_MAY_TRIM), 0);
		assert_int_equal(plan.length, direct ? 1024 : 0);
		memset(expected + 32768 + 512, 0, 1024);
		assert_int_equal(device_read(&d, data, sizeof data, 0), 0);
		assert_memory_equal(data, expected, sizeof data);
		device_close(&d);
	}
	loop_detach(device);
}

/*
 * A read beside BLKZEROOUT leaves old pages in the cache before Linux 5.16, one beside fallocate(2)
 * does not.
 */
static void test_zeroes_behind_the_page_cache(void **state)
{
	static const char zeroes[64 * 1024];
	static char data[sizeof zeroes];
	char device[64];

	(void)state;
	loop_attach(scratch_file("zeroes", MIB), 512, device, sizeof device);
	for (int direct = 0; direct < 2; direct++) {
		struct device d;

		memset(&plan, 0, sizeof plan);
		device_open(
			&d, &passthrough_backend, "%s;direct=%s", device, direct ? "on" : "off");
		memset(data, 4, sizeof data);
		assert_int_equal(device_write(&d, data, sizeof data, 0, 0), 0);
		plan.busy = direct ? 0 : 2;
		assert_int_equal(backend_zero(d.backend, 0, sizeof data, 0), 0);
		assert_int_equal(plan.busy, 0);
		assert_int_equal(
			plan.mode, direct ? 0 : FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE);
		assert_int_equal(plan.zeroouts, direct);
		assert_int_equal(device_read(&d, data, sizeof data, 0), 0);
		assert_memory_equal(data, zeroes, sizeof data);
		if (!direct) {
			plan.busy = 1000;
			assert_int_equal(backend_zero(d.backend, 0, sizeof data, 0), -EIO);
			plan.busy = 0;
			/* A kernel without fallocate(2) of devices. */
			plan.refused_modes = FALLOC_FL_ZERO_RANGE;
			assert_int_equal(backend_zero(d.backend, 0, sizeof data, 0), 0);
			assert_int_equal(plan.zeroouts, 1);
		}
		device_close(&d);
	}
	loop_detach(device);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_partial_and_interrupted, set_up),
		cmocka_unit_test_setup(test_flush_error_stays, set_up),
		cmocka_unit_test_setup(test_a_flush_beside_a_failing_one, set_up),
		cmocka_unit_test_setup(test_durable_writes, set_up),
		cmocka_unit_test_setup(test_durable_writes_after_zeroes, set_up),
		cmocka_unit_test_setup(test_a_durable_write_gets_the_error_of_another, set_up),
		cmocka_unit_test_setup(test_a_durable_write_takes_no_loss_away, set_up),
		cmocka_unit_test_setup(test_what_others_lost_is_heeded, set_up),
		cmocka_unit_test_setup(test_flush_beside_zeroes, set_up),
		cmocka_unit_test_setup(test_huge_blocks, set_up),
		cmocka_unit_test_setup(test_direct_from_the_open, set_up),
		cmocka_unit_test_setup(test_a_bad_block_where_alignment_is_tried, set_up),
		cmocka_unit_test_setup(test_two_create_the_file, set_up),
		cmocka_unit_test_setup(test_refused_modes, set_up),
		cmocka_unit_test_setup(test_zeroes_after_a_refusal, set_up),
		cmocka_unit_test_setup(test_zeroes_end_with_pages, set_up),
		cmocka_unit_test_setup(test_zeroes_behind_the_page_cache, set_up),
	};

	return cmocka_run_group_tests_name("passthrough faults", tests, NULL, NULL);
}
