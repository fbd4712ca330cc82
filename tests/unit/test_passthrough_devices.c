/* SPDX-License-Identifier: BSD-3-Clause */
/* The passthrough device on loop devices and on small or odd file systems, some of which fail. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/passthrough_file.h"
#include "tests/unit/support.h"

/* ---- devices ---------------------------------------------------------------- */

static int no_extent(void *opaque, const struct backend_extent *extent)
{
	(void)opaque;
	(void)extent;
	fail();
	return 0;
}

static void test_device_limits(void **state)
{
	char device[64], text[200];
	struct device d, other;
	struct backend_info info;

	(void)state;
	loop_attach(scratch_file("disk", SIZE), 4096, device, sizeof device);
	for (int direct = 0; direct < 2; direct++) {
		device_open(
			&d, &passthrough_backend, "%s;direct=%s", device, direct ? "on" : "off");
		assert_int_equal(backend_info(d.backend, &info), 0);
		assert_int_equal(info.size, SIZE);
		assert_int_equal(info.block_size, 4096);
		assert_true(info.preferred_size >= 4096);
		assert_int_equal(info.preferred_size & (info.preferred_size - 1), 0);
		assert_true(info.can_trim);
		assert_true(info.trim_granularity >= 4096);
		assert_true(info.max_trim > 0);
		assert_false(info.can_extents);
		assert_int_equal(
			backend_extents(d.backend, 0, 4096, 0, no_extent, NULL), -EOPNOTSUPP);
		/* Claimed: nobody else writes to it; reading is allowed. */
		assert_int_equal(device_try(&other, &passthrough_backend, 0, "%s", device), -EBUSY);
		assert_holds(
			other.reported.error, "in use (mounted, or claimed by another program)");
		device_open(&other, &passthrough_backend, "%s;readonly=on", device);
		device_close(&other);
		device_close(&d);
	}
	snprintf(text, sizeof text, "%s;size=1m", device);
	refused(-EINVAL, "only for creating a regular file", text);

	const char *const lock[] = {"blockdev", "--setro", device, NULL};

	assert_int_equal(run(lock), 0);
	int r = device_try(&d, &passthrough_backend, 0, "%s", device);

	assert_true(r == -EROFS || r == -EACCES || r == -EPERM);
	assert_holds(d.reported.error, "readonly=on");
	device_open(&d, &passthrough_backend, "%s;readonly=on", device);
	device_close(&d);
	loop_detach(device);
	refused(-EINVAL, "size is 0; insert a medium or connect the device", device);
}

/* False: the disk cannot have this one. */
static bool choose_scheduler(const char *device, const char *name)
{
	char path[128];
	FILE *file;
	bool taken;

	snprintf(path, sizeof path, "/sys/block/%s/queue/scheduler", device + strlen("/dev/"));
	file = fopen(path, "w");
	if (!file)
		return false;
	taken = fputs(name, file) >= 0;
	return fclose(file) == 0 && taken;
}

static bool is_scheduled(const char *device, const char *more)
{
	struct backend_request r = {.op = BACKEND_READ, .length = 4096};
	struct backend_backing m;
	struct device d;

	device_open(&d, &passthrough_backend, "%s%s", device, more);
	assert_int_equal(backend_get_backing(d.backend, &r, &m), 0);
	device_close(&d);
	return m.is_scheduled;
}

static void test_scheduler(void **state)
{
	char device[64];

	(void)state;
	loop_attach(scratch_file("disk", SIZE), 4096, device, sizeof device);
	if (!choose_scheduler(device, "mq-deadline")) {
		loop_detach(device);
		skip_test("kernel: %s cannot have the scheduler mq-deadline", device);
	}
	assert_true(is_scheduled(device, ""));
	assert_false(is_scheduled(device, ";direct=off"));
	assert_true(choose_scheduler(device, "none"));
	assert_false(is_scheduled(device, ""));
	loop_detach(device);
}

/* Partitions find their limits in the disk's directory. */
static void test_partition(void **state)
{
	char device[64], partition[80];
	struct device d;
	struct backend_info info;

	(void)state;
	loop_attach(scratch_file("disk", 8 * MIB), 512, device, sizeof device);

	const char *const add[] = {"addpart", device, "1", "2048", "8192", NULL};
	const char *const remove_it[] = {"delpart", device, "1", NULL};

	snprintf(partition, sizeof partition, "%sp1", device);
	if (run(add) != 0) {
		loop_detach(device);
		skip_test("addpart cannot make a partition of %s", device);
	}
	for (int i = 0; i < 100 && access(partition, F_OK); i++)
		usleep(20000);

	bool node = access(partition, F_OK) == 0;
	int r = node ? device_try(&d, &passthrough_backend, 0, "%s", partition) : 0;

	if (node && r == 0) {
		r = backend_info(d.backend, &info);
		device_close(&d);
	}
	assert_int_equal(run(remove_it), 0);
	loop_detach(device);
	if (!node) {
		skip_test("nobody makes the node %s", partition);
	}
	assert_int_equal(r, 0);
	assert_int_equal(info.size, 4 * MIB);
	assert_true(info.can_trim);
}

/* Zeroing and trimming in the kernel must not leave old pages in the cache. */
static void test_zero_and_page_cache(void **state)
{
	static char buffer[64 * KIB], expected[64 * KIB];
	char device[64];

	(void)state;
	loop_attach(scratch_file("disk", SIZE), 512, device, sizeof device);
	for (unsigned flags = 0; flags < 8; flags++) {
		struct device d;
		/* Not on pages, not on sectors: each has its edges. */
		uint64_t offset = flags & 1 ? 1000 : 1024, length = flags & 1 ? 30001 : 30720;

		device_open(&d, &passthrough_backend, "%s;direct=off", device);
		fill(expected, sizeof expected, flags);
		assert_int_equal(device_write(&d, expected, sizeof expected, 0, 0), 0);
		assert_int_equal(
			backend_zero(d.backend, offset, length, flags & 2 ? BACKEND_MAY_TRIM : 0),
			0);
		memset(expected + offset, 0, length);
		assert_int_equal(device_read(&d, buffer, sizeof buffer, 0), 0);
		assert_memory_equal(buffer, expected, sizeof buffer);
		assert_int_equal(backend_flush(d.backend), 0);
		device_close(&d);
		/* And the same on the medium. */
		device_open(&d, &passthrough_backend, "%s;direct=on", device);
		assert_int_equal(device_read(&d, buffer, sizeof buffer, 0), 0);
		assert_memory_equal(buffer, expected, sizeof buffer);
		device_close(&d);
	}
	loop_detach(device);
}

/* A refused zeroing changes nothing, nor does it take back what no flush has made durable. */
static void test_refused_zero_and_page_cache(void **state)
{
	static const char zeroes[64 * KIB];
	static char before[64 * KIB], expected[64 * KIB], buffer[64 * KIB];
	char mount_point[300], path[400], device[64];
	int fd;

	(void)state;
	need_root("mounting a ramfs");
	snprintf(mount_point, sizeof mount_point, "%s", scratch_path("no-holes"));
	assert_int_equal(mkdir(mount_point, 0700), 0);
	if (mount("ramfs", mount_point, "ramfs", 0, NULL) < 0)
		skip_test("no ramfs can be mounted: %s", strerror(errno));
	/* Its files have no holes, so that a disk on them has no command for zeroes. */
	snprintf(path, sizeof path, "%s/disk", mount_point);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0 && ftruncate(fd, SIZE) == 0);
	close(fd);
	loop_attach(path, 512, device, sizeof device);
	umount2(mount_point, MNT_DETACH); /* it goes with the loop device */
	fill(before, sizeof before, 1);
	fill(expected, sizeof expected, 2);
	for (int direct = 0; direct < 2; direct++) {
		struct device d;

		device_open(
			&d, &passthrough_backend, "%s;direct=%s", device, direct ? "on" : "off");
		assert_int_equal(device_write(&d, before, sizeof before, 0, 0), 0);
		assert_int_equal(backend_flush(d.backend), 0);
		assert_int_equal(device_write(&d, expected, sizeof expected, 0, 0), 0);
		assert_int_equal(backend_zero(d.backend, 0, sizeof expected,
					 BACKEND_MAY_TRIM | BACKEND_FAST_ZERO),
			-EOPNOTSUPP);
		assert_int_equal(device_read(&d, buffer, sizeof buffer, 0), 0);
		assert_memory_equal(buffer, expected, sizeof buffer);
		assert_int_equal(backend_zero(d.backend, 0, sizeof expected, BACKEND_MAY_TRIM), 0);
		assert_int_equal(device_read(&d, buffer, sizeof buffer, 0), 0);
		assert_memory_equal(buffer, zeroes, sizeof buffer);
		device_close(&d);
	}
	loop_detach(device);
}

/* A framework may write durably by itself when nothing can be in the page cache. */
static void test_durable_writes_of_a_framework(void **state)
{
	char device[64];

	(void)state;
	loop_attach(scratch_file("disk", SIZE), 512, device, sizeof device);
	for (int direct = 0; direct < 2; direct++) {
		struct backend_request r = {
			.op = BACKEND_WRITE, .flags = BACKEND_FUA, .length = 4096};
		struct backend_backing m;
		struct device d;

		device_open(
			&d, &passthrough_backend, "%s;direct=%s", device, direct ? "on" : "off");
		assert_int_equal(backend_get_backing(d.backend, &r, &m), -EOPNOTSUPP);
		assert_int_equal(backend_flush(d.backend), 0);
		assert_int_equal(backend_get_backing(d.backend, &r, &m), direct ? 0 : -EOPNOTSUPP);
		if (direct)
			assert_int_equal(m.rwf, RWF_DSYNC);
		assert_int_equal(backend_zero(d.backend, 0, 4096, 0), 0);
		assert_int_equal(backend_get_backing(d.backend, &r, &m), direct ? 0 : -EOPNOTSUPP);
		device_close(&d);
	}
	loop_detach(device);
}

/* ---- what goes wrong -------------------------------------------------------- */

/* A loop device whose file ends early: the kernel's own errors come through. */
static void test_device_fails(void **state)
{
	const char *path = scratch_file("disk", SIZE);
	char *buffer;
	char device[64];
	struct device d;

	(void)state;
	loop_attach(path, 512, device, sizeof device);
	buffer = aligned_alloc(4096, 4096);
	device_open(&d, &passthrough_backend, "%s", device);

	const char *const shrink[] = {"losetup", "--set-capacity", device, NULL};

	assert_int_equal(truncate(path, MIB), 0);
	assert_int_equal(run(shrink), 0);
	assert_int_equal(device_read(&d, buffer, 4096, 0), 0);
	assert_int_equal(device_read(&d, buffer, 4096, 2 * MIB), -EIO);
	assert_holds(d.reported.error, "became smaller while it was served");
	assert_int_equal(device_write(&d, buffer, 4096, 2 * MIB, 0), -ENOSPC);
	assert_int_equal(device_write(&d, buffer, 100, 2 * MIB, 0), -EIO);
	assert_int_equal(backend_flush(d.backend), -EIO);
	assert_int_equal(d.reported.errors, 1);
	device_close(&d);
	loop_detach(device);
	free(buffer);
}

/* The kernel sets the size of a disk that is pulled to 0, as that of a loop device without a file.
 */
static void test_device_is_removed(void **state)
{
	char *buffer = aligned_alloc(4096, 4096);
	char device[64];

	(void)state;
	for (int direct = 0; direct < 2; direct++) {
		const char *path = scratch_file("disk", SIZE);
		const char *const resize[] = {"losetup", "--set-capacity", device, NULL};
		struct backend_request r = {.op = BACKEND_WRITE, .offset = MIB, .length = 4096};
		struct backend_backing m;
		struct device d;

		loop_attach(path, 512, device, sizeof device);
		device_open(
			&d, &passthrough_backend, "%s;direct=%s", device, direct ? "on" : "off");
		assert_int_equal(device_write(&d, buffer, 4096, MIB, BACKEND_FUA), 0);
		/* While it is there, the kernel's own errors come through. */
		assert_int_equal(backend_transfer_failed(d.backend, &r, -ENOSPC), -ENOSPC);
		assert_int_equal(truncate(path, 0), 0);
		assert_int_equal(run(resize), 0);
		d.reported.errors = 0;
		for (unsigned fua = 0; fua < 2; fua++) {
			assert_int_equal(device_write(&d, buffer, 4096, MIB, fua), -ENODEV);
			assert_int_equal(device_write(&d, buffer, 100, MIB, fua), -ENODEV);
			assert_int_equal(backend_zero(d.backend, MIB, 4096, fua), -ENODEV);
			assert_int_equal(backend_trim(d.backend, MIB, 4096, fua), -ENODEV);
		}
		assert_int_equal(device_read(&d, buffer, 4096, MIB), -ENODEV);
		assert_int_equal(device_read(&d, buffer, 100, MIB), -ENODEV);
		assert_int_equal(backend_flush(d.backend), -ENODEV);
		assert_holds(d.reported.error, "was removed while it was served");
		assert_int_equal(backend_get_backing(d.backend, &r, &m), 0);
		assert_int_equal(backend_transfer_failed(d.backend, &r, -ENOSPC), -ENODEV);
		/* Whatever is there now: what was acknowledged is not. */
		assert_int_equal(truncate(path, SIZE), 0);
		assert_int_equal(run(resize), 0);
		assert_int_equal(device_read(&d, buffer, 4096, MIB), 0);
		assert_int_equal(backend_flush(d.backend), -EIO);
		device_close(&d);
		loop_detach(device);
	}
	free(buffer);
}

/* A full file system: the write says so, what was there stays. */
static void test_no_space(void **state)
{
	char mount_point[300], path[400];
	static char buffer[2 * MIB], back[64 * KIB];
	struct device d;

	(void)state;
	need_root("mounting a small tmpfs");
	snprintf(mount_point, sizeof mount_point, "%s", scratch_path("small"));
	assert_int_equal(mkdir(mount_point, 0700), 0);
	if (mount("tmpfs", mount_point, "tmpfs", 0, "size=1m") < 0) {
		skip_test("no tmpfs can be mounted: %s", strerror(errno));
	}
	snprintf(path, sizeof path, "%s/f", mount_point);
	fill(buffer, sizeof buffer, 5);

	int opened = device_try(&d, &passthrough_backend, 0, "%s;size=4m;direct=off", path);
	int first = opened ? opened : device_write(&d, buffer, 64 * KIB, 0, 0);
	int full = opened ? 0 : device_write(&d, buffer, 2 * MIB, MIB, 0);
	int read_back = opened ? opened : device_read(&d, back, 64 * KIB, 0);

	if (!opened)
		device_close(&d);
	umount(mount_point);
	assert_int_equal(opened, 0);
	assert_int_equal(first, 0);
	assert_int_equal(full, -ENOSPC);
	assert_int_equal(read_back, 0);
	assert_memory_equal(back, buffer, 64 * KIB);
}

#define FLUSHERS 4

static pthread_barrier_t barrier;

struct flusher {
	struct device *device;
	bool writes; /* durably, instead of a flush */
	int result;
	pthread_t thread;
};

static void *flush_together(void *opaque)
{
	struct flusher *f = opaque;

	pthread_barrier_wait(&barrier);
	f->result = f->writes ? device_write(f->device, "x", 1, 0, BACKEND_FUA)
			      : backend_flush(f->device->backend);
	return NULL;
}

/*
 * Writes are lost after they were acknowledged: every flush under way says so, and every durable
 * write. The kernel says it to one of them.
 */
static void test_lost_writes_and_parallel_flushes(void **state)
{
	char mount_point[300], path[400], device[64];
	static char buffer[MIB];
	struct flusher flushers[FLUSHERS];
	int fd, answered = 0;

	(void)state;
	need_root("mounting a small tmpfs");
	snprintf(mount_point, sizeof mount_point, "%s", scratch_path("thin"));
	assert_int_equal(mkdir(mount_point, 0700), 0);
	if (mount("tmpfs", mount_point, "tmpfs", 0, "size=256k") < 0)
		skip_test("no tmpfs can be mounted: %s", strerror(errno));
	snprintf(path, sizeof path, "%s/disk", mount_point);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	/* The first page has room. */
	assert_true(fd >= 0 && ftruncate(fd, SIZE) == 0 && pwrite(fd, "", 1, 0) == 1);
	close(fd);
	loop_attach(path, 512, device, sizeof device);
	umount2(mount_point, MNT_DETACH); /* it goes with the loop device */
	fill(buffer, sizeof buffer, 1);
	pthread_barrier_init(&barrier, NULL, FLUSHERS);
	for (int round = 0; round < 10; round++) {
		struct device d;

		device_open(&d, &passthrough_backend, "%s;direct=off", device);
		assert_int_equal(device_write(&d, buffer, sizeof buffer, MIB, 0), 0);
		for (int i = 0; i < FLUSHERS; i++) {
			flushers[i] = (struct flusher){.device = &d, .writes = round % 2 && i % 2};
			pthread_create(&flushers[i].thread, NULL, flush_together, &flushers[i]);
		}
		for (int i = 0; i < FLUSHERS; i++) {
			pthread_join(flushers[i].thread, NULL);
			answered += flushers[i].result == 0;
		}
		assert_int_equal(backend_flush(d.backend), flushers[0].result);
		device_close(&d);
	}
	pthread_barrier_destroy(&barrier);
	loop_detach(device);
	assert_int_equal(answered, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_device_limits),
		cmocka_unit_test(test_scheduler),
		cmocka_unit_test(test_partition),
		cmocka_unit_test(test_zero_and_page_cache),
		cmocka_unit_test(test_refused_zero_and_page_cache),
		cmocka_unit_test(test_durable_writes_of_a_framework),
		cmocka_unit_test(test_device_fails),
		cmocka_unit_test(test_device_is_removed),
		cmocka_unit_test(test_no_space),
		cmocka_unit_test(test_lost_writes_and_parallel_flushes),
	};

	return cmocka_run_group_tests_name("passthrough", tests, NULL, NULL);
}
