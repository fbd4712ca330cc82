/* SPDX-License-Identifier: BSD-3-Clause */
/* The null device, and through it what the core promises for every device. */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "tests/unit/support.h"

#define MIB (1u << 20)

static void test_parameters(void **state)
{
	struct device d;
	struct backend_info info;

	(void)state;
	assert_int_equal(device_try(&d, &null_backend, 0, "fill=zero"), -EINVAL);
	assert_string_equal(d.reported.error, "size: missing; give size=SIZE, size of the device");
	assert_int_equal(device_try(&d, &null_backend, 0, "1000"), -EINVAL);
	assert_string_equal(
		d.reported.error, "size=1000: not a multiple of block-size=512; round it to 1024");
	assert_int_equal(device_try(&d, &null_backend, 0, "size=512;block-size=4096"), -EINVAL);
	assert_holds(d.reported.error, "round it to 4096");
	assert_int_equal(device_try(&d, &null_backend, 0, "size=1m;block-size=1024"), -EINVAL);
	assert_string_equal(
		d.reported.error, "block-size=1024: no such choice; write block-size=512|4096");

	device_open(&d, &null_backend, "1m;block-size=4096");
	assert_int_equal(backend_info(d.backend, &info), 0);
	assert_int_equal(info.size, MIB);
	assert_int_equal(info.block_size, 4096);
	assert_int_equal(info.preferred_size, 4096);
	assert_int_equal(info.trim_granularity, 4096);
	assert_false(info.readonly);
	assert_true(info.can_flush && info.can_fua && info.can_trim && info.can_zero &&
		    info.can_fast_zero && info.can_extents && info.can_multi_conn);
	device_close(&d);
}

static void test_framework_size(void **state)
{
	struct device d;
	struct backend_info info;

	(void)state;
	assert_int_equal(device_try(&d, &null_backend, 2 * MIB, "block-size=512"), 0);
	assert_int_equal(backend_info(d.backend, &info), 0);
	assert_int_equal(info.size, 2 * MIB);
	device_close(&d);
	/* Both give one: the device may be larger, not smaller. */
	assert_int_equal(device_try(&d, &null_backend, MIB, "size=2m"), 0);
	assert_int_equal(backend_info(d.backend, &info), 0);
	assert_int_equal(info.size, MIB);
	device_close(&d);
	assert_int_equal(device_try(&d, &null_backend, 2 * MIB, "size=1m"), -EINVAL);
	assert_string_equal(d.reported.error,
		"size=2097152: the device has only 1048576 bytes; give at most that");
	assert_int_equal(device_try(&d, &null_backend, 1000, "fill=none"), -EINVAL);
	assert_holds(d.reported.error, "size=1000: not a multiple");
}

/* A device that has another size by now: a framework that demanded one keeps it if it can. */
static void test_resized(void **state)
{
	struct device d;

	(void)state;
	device_open(&d, &null_backend, "1m");
	backend_resized(d.backend, 3 * MIB);
	assert_int_equal(atomic_load(&d.backend->size), 3 * MIB);
	assert_int_equal(backend_resize(d.backend, 2 * MIB), 0);
	backend_resized(d.backend, 4 * MIB);
	assert_int_equal(atomic_load(&d.backend->size), 2 * MIB);
	device_close(&d);
	assert_int_equal(device_try(&d, &null_backend, 2 * MIB, "block-size=512"), 0);
	backend_resized(d.backend, 4 * MIB);
	assert_int_equal(atomic_load(&d.backend->size), 2 * MIB);
	backend_resized(d.backend, MIB);
	assert_int_equal(atomic_load(&d.backend->size), MIB);
	device_close(&d);
}

static void test_fill(void **state)
{
	char a[700], b[300];
	struct iovec iov[] = {{a, sizeof a}, {NULL, 0}, {b, sizeof b}};

	(void)state;
	for (int zero = 0; zero < 2; zero++) {
		struct device d;

		device_open(&d, &null_backend, "1m;fill=%s", zero ? "zero" : "none");
		memset(a, 0x5a, sizeof a);
		memset(b, 0x5a, sizeof b);
		assert_int_equal(backend_readv(d.backend, iov, 3, 13), 0);
		for (size_t i = 0; i < sizeof a; i++)
			assert_int_equal(a[i], zero ? 0 : 0x5a);
		for (size_t i = 0; i < sizeof b; i++)
			assert_int_equal(b[i], zero ? 0 : 0x5a);
		device_close(&d);
	}
}

/* Seen by what the memory really holds. */
static void test_zeroes_are_not_written_twice(void **state)
{
	char memory[512];
	const struct iovec iov = {memory, sizeof memory};
	struct backend_request read = {
		.op = BACKEND_READ, .flags = BACKEND_ZEROED, .iov = &iov, .iovcnt = 1};
	struct backend_info info;
	struct device d;

	(void)state;
	device_open(&d, &null_backend, "1m");
	assert_int_equal(backend_info(d.backend, &info), 0);
	assert_true(info.reads_zeroes);
	memset(memory, 0x5a, sizeof memory);
	assert_int_equal(backend_perform(d.backend, &read), 0);
	assert_int_equal(memory[0], 0x5a);
	assert_int_equal(read.length, sizeof memory);
	read.flags = 0;
	assert_int_equal(backend_perform(d.backend, &read), 0);
	assert_int_equal(memory[0], 0);
	read.flags = BACKEND_ZEROED;
	read.offset = MIB;
	assert_int_equal(backend_perform(d.backend, &read), -EINVAL);
	device_close(&d);
	device_open(&d, &null_backend, "1m;fill=none");
	assert_int_equal(backend_info(d.backend, &info), 0);
	assert_false(info.reads_zeroes);
	device_close(&d);
}

static int keep_extent(void *opaque, const struct backend_extent *extent)
{
	*(struct backend_extent *)opaque = *extent;
	return 17;
}

static void test_everything_succeeds(void **state)
{
	struct device d;
	char buffer[512] = "x";
	struct backend_extent extent;

	(void)state;
	device_open(&d, &null_backend, "1m;fill=none");
	assert_int_equal(device_write(&d, buffer, 512, 0, 0), 0);
	assert_int_equal(device_write(&d, buffer, 512, 0, BACKEND_FUA), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(backend_trim(d.backend, 0, MIB, BACKEND_FUA), 0);
	assert_int_equal(
		backend_zero(d.backend, 0, MIB, BACKEND_FUA | BACKEND_MAY_TRIM | BACKEND_FAST_ZERO),
		0);
	assert_int_equal(
		backend_extents(d.backend, 512, 1024, BACKEND_REQ_ONE, keep_extent, &extent), 17);
	assert_int_equal(extent.offset, 512);
	assert_int_equal(extent.length, 1024);
	assert_true(extent.hole);
	assert_false(extent.zero); /* fill=none: nobody knows */
	assert_int_equal(backend_counters(d.backend, NULL, 0), 0);
	assert_int_equal(d.reported.errors, 0);
	device_close(&d);
}

/* ---- the core --------------------------------------------------------------- */

static void test_ranges(void **state)
{
	static const struct {
		uint64_t offset, length;
	} outside[] = {{MIB, 1}, {MIB - 1, 2}, {0, MIB + 1}, {UINT64_MAX, 1}, {UINT64_MAX - 1, 2},
		{1, UINT64_MAX}, {MIB + 1, 0}};
	struct device d;
	static char buffer[2 * MIB];
	struct backend_extent extent;

	(void)state;
	device_open(&d, &null_backend, "1m;fill=none");
	for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
		uint64_t offset = outside[i].offset, length = outside[i].length;

		/* fill=none touches no memory, so the length may be anything. */
		assert_int_equal(device_read(&d, buffer, length, offset), -EINVAL);
		assert_int_equal(device_write(&d, buffer, length, offset, 0), -ENOSPC);
		assert_int_equal(backend_trim(d.backend, offset, length, 0), -EINVAL);
		assert_int_equal(backend_zero(d.backend, offset, length, 0), -ENOSPC);
		assert_int_equal(
			backend_extents(d.backend, offset, length, 0, keep_extent, &extent),
			-EINVAL);
	}
	assert_int_equal(device_read(&d, buffer, MIB, 0), 0);
	assert_int_equal(device_read(&d, buffer, 1, MIB - 1), 0);
	assert_int_equal(device_read(&d, buffer, 0, MIB), 0);
	assert_int_equal(device_write(&d, buffer, 0, MIB, BACKEND_FUA), 0);
	assert_int_equal(backend_trim(d.backend, MIB, 0, 0), 0);
	assert_int_equal(backend_zero(d.backend, MIB, 0, 0), 0);
	assert_int_equal(backend_extents(d.backend, MIB, 0, 0, keep_extent, &extent), 0);
	device_close(&d);
}

static void test_vectors(void **state)
{
	struct device d;
	struct iovec overflow[] = {{NULL, SIZE_MAX}, {NULL, 2}};
	struct iovec many[3 * IOV_MAX];
	char byte = 1;

	(void)state;
	device_open(&d, &null_backend, "1m");
	assert_int_equal(backend_readv(d.backend, overflow, 2, 0), -EINVAL);
	assert_int_equal(backend_writev(d.backend, overflow, 2, 0, 0), -EINVAL);
	assert_int_equal(backend_readv(d.backend, overflow, -1, 0), -EINVAL);
	assert_int_equal(backend_writev(d.backend, overflow, -1, 0, 0), -EINVAL);
	assert_int_equal(backend_readv(d.backend, NULL, 0, 0), 0);
	for (size_t i = 0; i < 3 * IOV_MAX; i++)
		many[i] = (struct iovec){&byte, 1};
	assert_int_equal(backend_readv(d.backend, many, 3 * IOV_MAX, 0), 0);
	assert_int_equal(byte, 0);
	device_close(&d);
}

static void test_flags(void **state)
{
	struct device d;
	char buffer[512];
	struct backend_extent extent;

	(void)state;
	device_open(&d, &null_backend, "1m");
	assert_int_equal(device_write(&d, buffer, 512, 0, BACKEND_MAY_TRIM), -EINVAL);
	assert_int_equal(device_write(&d, buffer, 512, 0, BACKEND_ZEROED), -EINVAL);
	assert_int_equal(backend_trim(d.backend, 0, 512, BACKEND_FAST_ZERO), -EINVAL);
	assert_int_equal(backend_zero(d.backend, 0, 512, BACKEND_REQ_ONE), -EINVAL);
	assert_int_equal(
		backend_extents(d.backend, 0, 512, BACKEND_FUA, keep_extent, &extent), -EINVAL);
	device_close(&d);
}

static void test_readonly(void **state)
{
	struct device d;
	struct backend_info info;
	char buffer[512];

	(void)state;
	device_open(&d, &null_backend, "1m");
	d.backend->readonly = true;
	assert_int_equal(backend_info(d.backend, &info), 0);
	assert_true(info.readonly);
	assert_int_equal(device_read(&d, buffer, 512, 0), 0);
	assert_int_equal(device_write(&d, buffer, 512, 0, 0), -EROFS);
	assert_int_equal(backend_trim(d.backend, 0, 512, 0), -EROFS);
	assert_int_equal(backend_zero(d.backend, 0, 512, 0), -EROFS);
	assert_int_equal(backend_flush(d.backend), 0);
	device_close(&d);
}

/* A device that has only what every device must have. */
static void test_absent_calls(void **state)
{
	struct backend_ops bare = {.readv = null_backend.readv};
	struct device d;
	char buffer[512];
	struct backend_extent extent;

	(void)state;
	device_open(&d, &null_backend, "1m");
	d.backend->ops = &bare;
	assert_int_equal(device_read(&d, buffer, 512, 0), 0);
	assert_int_equal(device_write(&d, buffer, 512, 0, 0), -EOPNOTSUPP);
	assert_int_equal(backend_trim(d.backend, 0, 512, 0), -EOPNOTSUPP);
	assert_int_equal(backend_zero(d.backend, 0, 512, 0), -EOPNOTSUPP);
	assert_int_equal(backend_extents(d.backend, 0, 512, 0, keep_extent, &extent), -EOPNOTSUPP);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(backend_counters(d.backend, NULL, 0), 0);
	d.backend->ops = &null_backend;
	device_close(&d);
}

static void test_messages(void **state)
{
	struct device d;
	char text[3000];

	(void)state;
	device_open(&d, &null_backend, "1m");
	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	errno = ENODEV;
	backend_error(&d.backend->host, "%s", text);
	backend_debug(&d.backend->host, "%s", text);
	assert_int_equal(errno, ENODEV);
	assert_int_equal(strlen(d.reported.error), 1023);
	assert_int_equal(strlen(d.reported.debug), 1023);
	d.backend->host.debug = NULL;
	backend_debug(&d.backend->host, "nobody hears this");
	backend_close(NULL);
	device_close(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parameters),
		cmocka_unit_test(test_framework_size),
		cmocka_unit_test(test_resized),
		cmocka_unit_test(test_fill),
		cmocka_unit_test(test_zeroes_are_not_written_twice),
		cmocka_unit_test(test_everything_succeeds),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_flags),
		cmocka_unit_test(test_readonly),
		cmocka_unit_test(test_absent_calls),
		cmocka_unit_test(test_messages),
	};

	return cmocka_run_group_tests_name("null", tests, NULL, NULL);
}
