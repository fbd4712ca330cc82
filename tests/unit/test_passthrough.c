/* SPDX-License-Identifier: BSD-3-Clause */
/* The passthrough device on real files: opening, space, extents, direct I/O, the process's limits.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/passthrough_file.h"
#include "tests/unit/support.h"

/* ---- open ------------------------------------------------------------------- */

static void test_open_errors(void **state)
{
	const char *path = scratch_file("plain", MIB);
	char text[600], part[600];

	(void)state;
	refused(-EINVAL, "file: missing; give file=FILE", "direct=off");
	refused(-ENOENT,
		"file=/no/such: No such file or directory; name one that exists or give size=",
		"file=/no/such");
	refused(-ENOENT, "; name one that exists", "file=/no/such;readonly=on");
	refused(-EINVAL, "file=/dev/null: neither a block device nor a regular file", "/dev/null");
	refused(-EINVAL, "neither a block device nor a regular file", "/tmp");
	snprintf(text, sizeof text, "%s;size=1m;readonly=on", path);
	refused(-EINVAL, "size=1048576: creates a file, which readonly=on forbids", text);
	snprintf(text, sizeof text, "%s;size=2m", path);
	snprintf(part, sizeof part, "size=2097152: %s exists with 1048576 bytes; leave size= out",
		path);
	refused(-EEXIST, part, text);
	refused(-EINVAL, "size is 0; give size= to create it", scratch_file("empty", 0));
	snprintf(text, sizeof text, "%s", scratch_file("odd", 1000));
	refused(-EINVAL, "its size 1000 is not a multiple of 512 bytes, which direct I/O needs",
		text);
}

/* Two that write to one file would destroy each other's data. */
static void test_a_file_has_one_writer(void **state)
{
	const char *path = scratch_file("claimed", MIB);
	struct device d, other;

	(void)state;
	device_open(&d, &passthrough_backend, "%s", path);
	assert_int_equal(device_try(&other, &passthrough_backend, 0, "%s", path), -EBUSY);
	assert_holds(other.reported.error, "in use (mounted, or claimed by another program)");
	device_open(&other, &passthrough_backend, "%s;readonly=on", path);
	device_close(&other);
	device_close(&d);
	device_open(&d, &passthrough_backend, "%s", path);
	device_close(&d);
	/* Also one that was just created. */
	path = scratch_path("made");
	device_open(&d, &passthrough_backend, "%s;size=1m", path);
	assert_int_equal(device_try(&other, &passthrough_backend, 0, "%s", path), -EBUSY);
	device_close(&d);
}

static void test_creation(void **state)
{
	const char *path = scratch_path("new");
	struct device d;
	struct stat st;
	char text[600];

	(void)state;
	device_open(&d, &passthrough_backend, "%s;size=3m", path);
	device_close(&d);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 3 * MIB);
	/* The same again opens it; never another size. */
	device_open(&d, &passthrough_backend, "%s;size=3m", path);
	assert_int_equal(device_write(&d, "kept", 4, 0, 0), 0);
	device_close(&d);
	snprintf(text, sizeof text, "%s;size=2m", path);
	refused(-EEXIST, "exists with 3145728 bytes", text);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 3 * MIB);
	assert_int_equal(unlink(path), 0);

	/* What fails leaves no file: an odd size, a size that no file has, one that is asked for.
	 */
	snprintf(text, sizeof text, "%s;size=1000", path);
	refused(-EINVAL, "not a multiple", text);
	assert_int_equal(access(path, F_OK), -1);
	snprintf(text, sizeof text, "%s;size=7E;direct=off", path);
	refused(-EFBIG, "cannot create a file of that size: File too large", text);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(
		device_try(&d, &passthrough_backend, 2 * MIB, "%s;size=1m", path), -EINVAL);
	assert_holds(d.reported.error,
		"size=1048576: less than the 2097152 bytes that are required; give at least that");
	assert_int_equal(access(path, F_OK), -1);
	/* Nor does it change one that is empty. */
	path = scratch_file("empty", 0);
	snprintf(text, sizeof text, "%s;size=1000", path);
	refused(-EINVAL, "not a multiple", text);
	assert_int_equal(
		device_try(&d, &passthrough_backend, 2 * MIB, "%s;size=1m", path), -EINVAL);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 0);
	device_open(&d, &passthrough_backend, "%s;size=1m", path);
	device_close(&d);
	snprintf(text, sizeof text, "%s/missing/new;size=1m", scratch());
	refused(-ENOENT, "cannot be created: No such file or directory", text);
}

/* As if the framework had refused after the open: a mistake of the user's changes nothing. */
static void open_and_close(const char *text)
{
	const struct backend_host host = {0};
	struct params *params = params_new(&passthrough_backend);
	struct params_error error;
	struct backend *b;

	assert_int_equal(params_set_string(params, text, &error), 0);
	assert_int_equal(params_complete(params, false, &error), 0);
	assert_int_equal(backend_open(params, 0, &host, &b), 0);
	assert_int_equal(backend_size(b), MIB);
	backend_close(b);
	params_free(params);
}

static void test_what_never_served_leaves_no_file(void **state)
{
	const char *path = scratch_path("unused");
	struct stat st;
	char text[600];

	(void)state;
	snprintf(text, sizeof text, "%s;size=1m", path);
	open_and_close(text);
	assert_int_equal(access(path, F_OK), -1);
	path = scratch_file("empty", 0);
	snprintf(text, sizeof text, "%s;size=1m", path);
	open_and_close(text);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 0);
	path = scratch_file("full", MIB);
	open_and_close(path);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, MIB);
}

/* Clients that had a disk before must not find zeroes in the place of what they wrote. */
static void test_size_is_for_new_clients(void **state)
{
	const char *path = scratch_path("continued");
	struct device d;
	struct stat st;

	(void)state;
	assert_int_equal(
		device_try_again(&d, &passthrough_backend, MIB, "%s;size=1m", path), -ENOENT);
	assert_holds(d.reported.error, "No such file or directory; bring back the file");
	assert_int_equal(access(path, F_OK), -1);

	path = scratch_file("emptied", 0);
	assert_int_equal(
		device_try_again(&d, &passthrough_backend, MIB, "%s;size=1m", path), -EINVAL);
	assert_holds(d.reported.error, "size is 0; bring back the file");
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 0);

	path = scratch_file("cut", MIB / 2);
	assert_int_equal(
		device_try_again(&d, &passthrough_backend, MIB, "%s;size=1m", path), -EINVAL);
	assert_string_equal(d.reported.error,
		"the device has only 524288 bytes, the disk has 1048576; give one that is "
		"large enough");
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, MIB / 2);

	/* As it was, or grown meanwhile. */
	for (int i = 1; i <= 2; i++) {
		path = scratch_file("whole", i * MIB);
		assert_int_equal(
			device_try_again(&d, &passthrough_backend, MIB, "%s;size=1m", path), 0);
		device_close(&d);
	}
}

static void test_framework_size(void **state)
{
	const char *path = scratch_file("sized", MIB);
	struct device d;
	char byte;

	(void)state;
	assert_int_equal(device_try(&d, &passthrough_backend, 2 * MIB, "%s", path), -EINVAL);
	assert_holds(d.reported.error, "the device has only 1048576 bytes");
	assert_int_equal(device_try(&d, &passthrough_backend, MIB / 2, "%s", path), 0);
	assert_int_equal(device_read(&d, &byte, 1, MIB / 2), -EINVAL);
	assert_int_equal(device_read(&d, &byte, 1, MIB / 2 - 1), 0);
	device_close(&d);
}

static void test_readonly(void **state)
{
	const char *path = scratch_file("readonly", MIB);
	struct device d;
	struct backend_info info;
	char buffer[512];

	(void)state;
	assert_int_equal(chmod(path, 0400), 0);
	device_open(&d, &passthrough_backend, "%s;readonly=on", path);
	assert_int_equal(backend_info(d.backend, &info), 0);
	assert_true(info.readonly);
	assert_false(info.can_trim || info.can_zero || info.can_fast_zero);
	assert_int_equal(device_read(&d, buffer, 512, 0), 0);
	assert_int_equal(device_write(&d, buffer, 512, 0, 0), -EROFS);
	assert_int_equal(backend_zero(d.backend, 0, 512, 0), -EROFS);
	assert_int_equal(backend_flush(d.backend), 0);
	device_close(&d);
}

/* A file system without direct I/O: an error that names the way out, not a fallback. */
static void test_direct_refused(void **state)
{
	char mount_point[300], text[600];
	struct device d;

	(void)state;
	need_root("mounting a ramfs");
	snprintf(mount_point, sizeof mount_point, "%s", scratch_path("ramfs"));
	assert_int_equal(mkdir(mount_point, 0700), 0);
	if (mount("ramfs", mount_point, "ramfs", 0, NULL) < 0) {
		skip_test("kernel: no ramfs can be mounted: %s", strerror(errno));
	}
	snprintf(text, sizeof text, "%s/f;size=1m", mount_point);

	int r = device_try(&d, &passthrough_backend, 0, "%s", text);
	char error[1024];
	snprintf(error, sizeof error, "%s", d.reported.error);
	snprintf(text, sizeof text, "%s/f", mount_point);
	int left = access(text, F_OK);
	snprintf(text, sizeof text, "%s/f;size=1m;direct=off", mount_point);
	int buffered = device_try(&d, &passthrough_backend, 0, "%s", text);
	if (buffered == 0)
		device_close(&d);
	umount(mount_point);
	assert_int_equal(r, -EINVAL);
	assert_holds(error, "direct I/O is not possible there; use direct=off");
	assert_int_equal(left, -1);
	assert_int_equal(buffered, 0);
}

/* ---- devices ---------------------------------------------------------------- */

static uint64_t blocks_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

/* Trim and zero do to the file what the flags say. */
static void test_allocation(void **state)
{
	const char *path = scratch_file("allocation", MIB);
	static char buffer[MIB];
	struct device d;

	(void)state;
	device_open(&d, &passthrough_backend, "%s;direct=off", path);
	fill(buffer, sizeof buffer, 1);
	assert_int_equal(device_write(&d, buffer, MIB, 0, BACKEND_FUA), 0);
	assert_int_equal(blocks_of(path) >= MIB, 1);
	if (backend_zero(d.backend, 0, MIB, BACKEND_FUA) == 0)
		assert_int_equal(blocks_of(path) >= MIB, 1);
	assert_int_equal(device_write(&d, buffer, MIB, 0, BACKEND_FUA), 0);
	assert_int_equal(
		backend_zero(d.backend, 0, MIB, BACKEND_MAY_TRIM | BACKEND_FAST_ZERO | BACKEND_FUA),
		0);
	assert_int_equal(blocks_of(path), 0);
	assert_int_equal(device_write(&d, buffer, MIB, 0, BACKEND_FUA), 0);
	assert_int_equal(backend_trim(d.backend, 0, MIB, BACKEND_FUA), 0);
	assert_int_equal(blocks_of(path), 0);
	device_close(&d);
}

struct extent_list {
	int n;
	struct backend_extent at[8];
};

static int list_extent(void *opaque, const struct backend_extent *extent)
{
	struct extent_list *list = opaque;

	if (list->n == 8)
		return -E2BIG;
	list->at[list->n++] = *extent;
	return 0;
}

static void test_extents(void **state)
{
	struct device d;
	struct extent_list list = {0};
	char *block = calloc(1, 64 * KIB);

	(void)state;
	device_open(&d, &passthrough_backend, "%s;direct=off", scratch_file("extents", MIB));
	memset(block, 1, 64 * KIB);
	assert_int_equal(device_write(&d, block, 64 * KIB, 256 * KIB, BACKEND_FUA), 0);
	assert_int_equal(backend_extents(d.backend, 0, MIB, 0, list_extent, &list), 0);
	assert_int_equal(list.n, 3);
	assert_true(list.at[0].hole && !list.at[1].hole && list.at[2].hole);
	assert_int_equal(list.at[1].offset, 256 * KIB);
	assert_int_equal(list.at[1].length, 64 * KIB);
	assert_int_equal(list.at[2].offset + list.at[2].length, MIB);
	list.n = 0;
	assert_int_equal(
		backend_extents(d.backend, 1000, MIB / 2, BACKEND_REQ_ONE, list_extent, &list), 0);
	assert_int_equal(list.n, 1);
	assert_int_equal(list.at[0].offset, 1000);
	/* What the receiver answers ends the walk. */
	list.n = 8;
	assert_int_equal(backend_extents(d.backend, 0, MIB, 0, list_extent, &list), -E2BIG);
	device_close(&d);
	free(block);
}

/* ---- direct I/O ------------------------------------------------------------- */

static void test_bounce_counters(void **state)
{
	char *aligned = aligned_alloc(4096, 4 * MIB);
	struct device d;

	(void)state;
	device_open(&d, &passthrough_backend, "%s", scratch_file("counters", 4 * MIB));
	assert_holds(d.reported.debug, "direct I/O in blocks of ");
	fill(aligned, 4 * MIB, 1);
	assert_int_equal(device_write(&d, aligned, 2 * MIB, 0, 0), 0);
	assert_int_equal(device_read(&d, aligned, 4 * MIB, 0), 0);
	assert_int_equal(device_counter(&d, "bounced_requests"), 0);
	assert_int_equal(device_counter(&d, "bounced_bytes"), 0);
	/* An odd address: all of it, in more than one buffer. */
	assert_int_equal(device_read(&d, aligned + 1, 3 * MIB, 0), 0);
	assert_int_equal(device_counter(&d, "bounced_requests"), 1);
	assert_int_equal(device_counter(&d, "bounced_bytes"), 3 * MIB);
	/* One odd vector among aligned ones: only that. */
	struct iovec iov[] = {{aligned, 64 * KIB}, {aligned + 200 * KIB + 1, 8 * KIB},
		{aligned + 100 * KIB, 64 * KIB}};

	assert_int_equal(backend_writev(d.backend, iov, 3, 0, 0), 0);
	assert_int_equal(device_counter(&d, "bounced_requests"), 2);
	assert_int_equal(device_counter(&d, "bounced_bytes"), 3 * MIB + 8 * KIB);
	assert_int_equal(device_counter(&d, "read_modify_writes"), 0);
	/* Parts of the first and the last block. */
	assert_int_equal(device_write(&d, aligned, 64 * KIB, 100, 0), 0);
	assert_int_equal(device_counter(&d, "read_modify_writes"), 2);
	assert_int_equal(device_write(&d, aligned, 10, 100, 0), 0);
	assert_int_equal(device_counter(&d, "read_modify_writes"), 3);
	/* Fewer places than counters: as many as fit, and how many there are. */
	struct backend_counter one[1];

	assert_int_equal(backend_counters(d.backend, one, 1), 3);
	assert_string_equal(one[0].name, "bounced_requests");
	device_close(&d);
	device_open(&d, &passthrough_backend, "%s;direct=off", scratch_path("counters"));
	assert_int_equal(backend_counters(d.backend, one, 1), 0);
	device_close(&d);
	free(aligned);
}

/* More vectors than one system call takes, aligned and not, with empty ones. */
static void test_many_vectors(void **state)
{
	const int n = 3 * IOV_MAX;
	struct iovec *iov = calloc((size_t)n, sizeof *iov);
	char *memory = aligned_alloc(4096, (size_t)n * 512 + 4096);
	char *copy = malloc((size_t)n * 512);

	(void)state;
	for (int direct = 0; direct < 2; direct++)
		for (size_t shift = 0; shift < 2; shift++) {
			struct device d;
			size_t length = 0;

			device_open(&d, &passthrough_backend, "%s;direct=%s",
				scratch_file("many", 4 * MIB), direct ? "on" : "off");
			fill(memory, (size_t)n * 512 + 4096, (unsigned)(17 * shift));
			for (int i = 0; i < n; i++) {
				size_t part = i % 5 == 4 ? 0 : 512;

				iov[i] =
					(struct iovec){part ? memory + shift + length : NULL, part};
				length += part;
			}
			assert_int_equal(backend_writev(d.backend, iov, n, 4096, BACKEND_FUA), 0);
			memcpy(copy, memory + shift, length);
			memset(memory, 0, (size_t)n * 512 + 4096);
			assert_int_equal(backend_readv(d.backend, iov, n, 4096), 0);
			assert_memory_equal(memory + shift, copy, length);
			device_close(&d);
		}
	free(copy);
	free(memory);
	free(iov);
}

/* ---- what goes wrong -------------------------------------------------------- */

static void test_file_shrinks(void **state)
{
	char *buffer = aligned_alloc(4096, 64 * KIB);

	(void)state;
	for (int direct = 0; direct < 2; direct++)
		for (int odd = 0; odd < 2; odd++) {
			const char *path = scratch_file("shrinks", MIB);
			struct device d;
			struct extent_list list = {0};
			struct backend_request r;
			struct backend_backing m;
			struct stat st;

			device_open(&d, &passthrough_backend, "%s;direct=%s", path,
				direct ? "on" : "off");
			assert_int_equal(truncate(path, odd ? 512 * KIB + 100 : 512 * KIB), 0);
			assert_int_equal(device_read(&d, buffer, 4096, 0), 0);
			assert_int_equal(d.reported.errors, 0);
			/* Past the end, across it, in parts of blocks: never zeroes. */
			assert_int_equal(device_read(&d, buffer, 4096, 768 * KIB), -EIO);
			assert_int_equal(d.reported.errors, 1);
			assert_holds(d.reported.error, "became smaller while it was served");
			assert_int_equal(device_read(&d, buffer, 64 * KIB, 480 * KIB), -EIO);
			assert_int_equal(device_read(&d, buffer, 7, 700001), -EIO);
			assert_int_equal(device_read(&d, buffer + 1, 4096, 768 * KIB), -EIO);
			assert_int_equal(backend_flush(d.backend), -EIO);
			assert_int_equal(
				backend_extents(d.backend, 0, MIB, 0, list_extent, &list), -EIO);
			assert_int_equal(list.n, 0);
			/* Nothing makes it larger again: the lost data would be zeroes. */
			for (unsigned fua = 0; fua < 2; fua++) {
				assert_int_equal(device_write(&d, buffer, 7, 700001, fua), -EIO);
				assert_int_equal(
					device_write(&d, buffer, 4096, MIB - 4096, fua), -EIO);
				assert_int_equal(
					backend_zero(d.backend, 768 * KIB, 4096, fua), -EIO);
			}
			r = (struct backend_request){
				.op = BACKEND_WRITE, .offset = MIB - 4096, .length = 4096};
			assert_int_equal(backend_get_backing(d.backend, &r, &m), -EIO);
			assert_int_equal(device_write(&d, buffer, 4096, 0, 0), 0);
			assert_int_equal(stat(path, &st), 0);
			assert_int_equal(st.st_size, odd ? 512 * KIB + 100 : 512 * KIB);
			/* Somebody else does: it is lost all the same. */
			assert_int_equal(truncate(path, MIB), 0);
			assert_int_equal(backend_flush(d.backend), -EIO);
			assert_int_equal(d.reported.errors, 1); /* reported once */
			device_close(&d);
		}
	free(buffer);
}

/* The framework follows a file that grew; never behind its end, nor into part of a block. */
static void test_resize(void **state)
{
	const char *path = scratch_file("grows", MIB);
	struct device d;
	char byte;

	(void)state;
	device_open(&d, &passthrough_backend, "%s", path);
	assert_int_equal(backend_resize(d.backend, 2 * MIB), -EINVAL);
	assert_holds(d.reported.error, "the device has only 1048576 bytes");
	assert_int_equal(truncate(path, 2 * MIB + 100), 0);
	assert_int_equal(backend_resize(d.backend, 2 * MIB + 100), -EINVAL);
	assert_int_equal(backend_resize(d.backend, 2 * MIB), 0);
	assert_int_equal(device_read(&d, &byte, 1, 2 * MIB - 1), 0);
	assert_int_equal(backend_resize(d.backend, MIB), 0);
	assert_int_equal(device_read(&d, &byte, 1, MIB), -EINVAL);
	device_close(&d);
}

static void test_file_size_limit(void **state)
{
	const char *path = scratch_file("limit", MIB);
	char *buffer = aligned_alloc(4096, 64 * KIB);
	struct rlimit before, low;

	(void)state;
	memset(buffer, 3, 64 * KIB);
	for (int direct = 0; direct < 2; direct++) {
		struct device d;

		device_open(&d, &passthrough_backend, "%s;direct=%s", path, direct ? "on" : "off");
		assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
		low = before;
		low.rlim_cur = 512 * KIB + 100;
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
		int beyond = device_write(&d, buffer, 4096, 768 * KIB, 0);
		int across = device_write(&d, buffer, 64 * KIB, 480 * KIB, 0);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
		assert_int_equal(beyond, -ENOSPC);
		/* The transfer stops inside a block: with direct I/O there is no going on. */
		assert_true(across == -ENOSPC || (direct && across == -EIO));
		device_close(&d);
	}
	free(buffer);
}

/* Where a framework that transfers by itself finds the bytes. */
static void test_map(void **state)
{
	const char *file = scratch_file("map", MIB);
	struct backend_request r = {.op = BACKEND_READ, .offset = 4096, .length = 8192};
	struct backend_backing m;
	char wrote[512], found[512];
	struct device d;

	(void)state;
	device_open(&d, &passthrough_backend, "file=%s;direct=off", file);
	memset(wrote, 7, sizeof wrote);
	assert_int_equal(device_write(&d, wrote, sizeof wrote, 4096, 0), 0);
	assert_int_equal(backend_get_backing(d.backend, &r, &m), 0);
	assert_int_equal(m.offset, 4096);
	assert_int_equal(m.rwf, 0);
	assert_int_equal(pread(m.fd, found, sizeof found, (off_t)m.offset), sizeof found);
	assert_memory_equal(found, wrote, sizeof found);
	r.op = BACKEND_WRITE;
	assert_int_equal(backend_get_backing(d.backend, &r, &m), 0);
	/* Its failure would be reported once and be lost. */
	r.flags = BACKEND_FUA;
	assert_int_equal(backend_get_backing(d.backend, &r, &m), -EOPNOTSUPP);
	r.flags = 0;
	r.offset = MIB - 4096;
	assert_int_equal(backend_get_backing(d.backend, &r, &m), -ENOSPC);
	r.op = BACKEND_READ;
	assert_int_equal(backend_get_backing(d.backend, &r, &m), -EINVAL);
	r.op = BACKEND_TRIM;
	assert_int_equal(backend_get_backing(d.backend, &r, &m), -EOPNOTSUPP);
	device_close(&d);

	device_open(&d, &passthrough_backend, "file=%s;direct=off;readonly=on", file);
	r = (struct backend_request){.op = BACKEND_WRITE, .length = 4096};
	assert_int_equal(backend_get_backing(d.backend, &r, &m), -EROFS);
	device_close(&d);

	device_open(&d, &passthrough_backend, "file=%s", file);
	r = (struct backend_request){.op = BACKEND_WRITE, .length = 65536};
	assert_int_equal(backend_get_backing(d.backend, &r, &m), 0);
	assert_int_equal(m.rwf, 0);
	assert_true(m.memory_alignment > 1);
	/* There may be edges of zeroes in the page cache. */
	r.flags = BACKEND_FUA;
	assert_int_equal(backend_get_backing(d.backend, &r, &m), -EOPNOTSUPP);
	r.flags = 0;
	r.offset = 100;
	assert_int_equal(backend_get_backing(d.backend, &r, &m), -EOPNOTSUPP);
	device_close(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open_errors),
		cmocka_unit_test(test_a_file_has_one_writer),
		cmocka_unit_test(test_a_file_has_one_writer),
		cmocka_unit_test(test_creation),
		cmocka_unit_test(test_what_never_served_leaves_no_file),
		cmocka_unit_test(test_size_is_for_new_clients),
		cmocka_unit_test(test_framework_size),
		cmocka_unit_test(test_readonly),
		cmocka_unit_test(test_direct_refused),
		cmocka_unit_test(test_allocation),
		cmocka_unit_test(test_extents),
		cmocka_unit_test(test_bounce_counters),
		cmocka_unit_test(test_many_vectors),
		cmocka_unit_test(test_file_shrinks),
		cmocka_unit_test(test_resize),
		cmocka_unit_test(test_file_size_limit),
		cmocka_unit_test(test_map),
	};

	return cmocka_run_group_tests_name("passthrough", tests, NULL, NULL);
}
