/* SPDX-License-Identifier: BSD-3-Clause */
/* The core: what frameworks get for what devices answer, with and without submit. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/support.h"

#define SIZE 65536u

static int fault;	       /* what every call answers */
static char written[3u << 20]; /* by those that do not fail */
static char reported[1024];
static unsigned lines;

static void tell(void *opaque, const char *message)
{
	(void)opaque;
	snprintf(reported, sizeof reported, "%s", message);
	lines++;
}

static int fake_readv(struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset)
{
	(void)b, (void)iov, (void)iovcnt, (void)offset;
	return fault;
}

static int fake_writev(
	struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset, unsigned flags)
{
	(void)b, (void)iovcnt, (void)flags;
	if (fault == 0 && offset + iov->iov_len <= sizeof written)
		memcpy(written + offset, iov->iov_base, iov->iov_len);
	return fault;
}

static int fake_flush(struct backend *b)
{
	(void)b;
	return fault;
}

static int fake_range(struct backend *b, uint64_t offset, uint64_t length, unsigned flags)
{
	(void)b, (void)offset, (void)length, (void)flags;
	return fault;
}

static int fake_extents(struct backend *b, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque)
{
	(void)b, (void)offset, (void)length, (void)flags, (void)fn, (void)opaque;
	return fault;
}

static void fake_submit(struct backend *b, struct backend_request *request)
{
	(void)b;
	request->done(request, fault);
}

static int fake_get_backing(
	struct backend *b, const struct backend_request *request, struct backend_backing *backing)
{
	(void)b;
	(void)request;
	*backing = (struct backend_backing){.fd = -1};
	return fault;
}

static const struct backend_ops calls = {
	.name = "calls",
	.readv = fake_readv,
	.writev = fake_writev,
	.flush = fake_flush,
	.trim = fake_range,
	.zero = fake_range,
	.extents = fake_extents,
	.get_backing = fake_get_backing,
};
static const struct backend_ops submits = {.name = "submits", .submit = fake_submit};

static struct backend open_fake(const struct backend_ops *ops)
{
	reported[0] = 0;
	lines = 0;
	return (struct backend){.ops = ops, .host.error = tell, .size = SIZE};
}

static int perform(struct backend *b, enum backend_op op)
{
	static char block[512];
	const struct iovec iov = {block, sizeof block};

	switch (op) {
	case BACKEND_READ:
		return backend_readv(b, &iov, 1, 4096);
	case BACKEND_WRITE:
		return backend_writev(b, &iov, 1, 4096, 0);
	case BACKEND_FLUSH:
		return backend_flush(b);
	case BACKEND_TRIM:
		return backend_trim(b, 4096, 512, 0);
	case BACKEND_ZERO:
		return backend_zero(b, 4096, 512, 0);
	}
	return 0;
}

static int get_backing(struct backend *b)
{
	struct backend_request r = {.op = BACKEND_WRITE, .offset = 4096, .length = 512};
	struct backend_backing backing;

	return backend_get_backing(b, &r, &backing);
}

static void test_errors_are_few(void **state)
{
	static const struct {
		int device, framework;
	} cases[] = {
		{0, 0},
		{-EIO, -EIO},
		{-ENOSPC, -ENOSPC},
		{-EDQUOT, -ENOSPC},
		{-EROFS, -EROFS},
		{-EPERM, -EROFS},
		{-EACCES, -EROFS},
		{-ENODEV, -ENODEV},
		{-ENXIO, -ENODEV},
		{-ENOMEDIUM, -ENODEV},
		{-ENOMEM, -ENOMEM},
		{-EINVAL, -EIO}, /* the request had been found right */
		{-ENODATA, -EIO},
		{-EREMOTEIO, -EIO},
		{-EILSEQ, -EIO},
		{-ETIMEDOUT, -EIO},
		{-ESHUTDOWN, -EIO},
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct backend with_calls = open_fake(&calls), with_submit = open_fake(&submits);

		fault = cases[i].device;
		for (enum backend_op op = BACKEND_READ; op < BACKEND_OPS; op++) {
			assert_int_equal(perform(&with_calls, op), cases[i].framework);
			assert_int_equal(perform(&with_submit, op), cases[i].framework);
		}
		assert_int_equal(
			backend_extents(&with_calls, 0, SIZE, 0, NULL, NULL), cases[i].framework);
		assert_int_equal(get_backing(&with_calls), cases[i].framework);
	}
}

/* Zeroes in memory say nothing of what the device holds. */
static void test_zeroes_in_memory_replace_no_read(void **state)
{
	struct backend with_calls = open_fake(&calls), with_submit = open_fake(&submits);
	char byte = 0;
	const struct iovec iov = {&byte, 1};
	struct backend_request read = {
		.op = BACKEND_READ, .flags = BACKEND_ZEROED, .iov = &iov, .iovcnt = 1};

	(void)state;
	fault = -EIO;
	assert_int_equal(backend_perform(&with_calls, &read), -EIO);
	assert_int_equal(backend_perform(&with_submit, &read), -EIO);
}

static void test_what_a_device_cannot_do(void **state)
{
	struct backend b = open_fake(&calls);

	(void)state;
	fault = -EOPNOTSUPP;
	assert_int_equal(perform(&b, BACKEND_TRIM), 0);
	assert_int_equal(perform(&b, BACKEND_ZERO), -EOPNOTSUPP);
	assert_int_equal(lines, 0);
	assert_int_equal(get_backing(&b), -EOPNOTSUPP);
	assert_int_equal(backend_extents(&b, 0, SIZE, 0, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(lines, 0);
	assert_int_equal(perform(&b, BACKEND_WRITE), -EIO);
	assert_string_equal(reported, "write of 512 bytes at 4096: Operation not supported");
}

static void test_wrong_requests_are_not_the_device_s_fault(void **state)
{
	struct backend b = open_fake(&calls);
	char byte;
	const struct iovec iov = {&byte, 1};

	(void)state;
	fault = -EIO;
	assert_int_equal(backend_readv(&b, &iov, 1, SIZE), -EINVAL);
	assert_int_equal(backend_writev(&b, &iov, 1, SIZE, 0), -ENOSPC);
	b.readonly = true;
	assert_int_equal(backend_writev(&b, &iov, 1, 0, 0), -EROFS);
	assert_int_equal(lines, 0);
}

static void test_a_failure_is_told_once(void **state)
{
	struct backend b = open_fake(&calls);

	(void)state;
	fault = -ENODATA;
	assert_int_equal(perform(&b, BACKEND_READ), -EIO);
	assert_string_equal(reported, "read of 512 bytes at 4096: No data available");
	for (int i = 0; i < 1000; i++)
		perform(&b, BACKEND_READ);
	assert_in_range(lines, 1, 3); /* one a second */
	perform(&b, BACKEND_FLUSH);
	assert_string_equal(reported, "flush: No data available");
	assert_int_equal(get_backing(&b), -EIO);
	assert_string_equal(reported, "write of 512 bytes at 4096: No data available");
	assert_int_equal(backend_extents(&b, 0, SIZE, 0, NULL, NULL), -EIO);
	assert_holds(reported, "search for extents of ");
	assert_holds(reported, ": No data available");
}

/* A device without zeroes of its own: written piece by piece, of a pattern that divides no piece.
 */
/* By the framework itself, in a device that it cannot ask for what that means. */
static void test_transfers_that_fail(void **state)
{
	static const int cases[][2] = {{-EIO, -EIO}, {-ENODATA, -EIO}, {-EOPNOTSUPP, -EIO},
		{-EDQUOT, -ENOSPC}, {-ENXIO, -ENODEV}};
	const struct backend_request r = {.op = BACKEND_WRITE, .offset = 4096, .length = 512};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct backend b = open_fake(&calls);

		assert_int_equal(backend_transfer_failed(&b, &r, cases[i][0]), cases[i][1]);
		assert_int_equal(lines, 1);
		assert_holds(reported, "write of 512 bytes at 4096: ");
	}
}

static void test_fill(void **state)
{
	static const struct backend_ops writes = {.name = "writes", .writev = fake_writev};
	struct backend b = open_fake(&writes);
	const uint64_t length = 2 * (1u << 20) + 3 * 5;
	const uint64_t whole = length / 3 * 3;

	(void)state;
	b.size = sizeof written;
	fault = 0;
	memset(written, 'x', sizeof written);
	assert_int_equal(backend_fill(&b, "abc", 3, 7, whole, BACKEND_MAY_TRIM | BACKEND_FUA), 0);
	for (uint64_t i = 0; i < whole; i++)
		assert_int_equal(written[7 + i], "abc"[i % 3]);
	assert_int_equal(written[6], 'x');
	assert_int_equal(written[7 + whole], 'x');
	assert_int_equal(backend_fill(&b, "", 1, 9, 100, 0), 0);
	assert_int_equal(written[8], 'b');
	for (uint64_t i = 9; i < 109; i++)
		assert_int_equal(written[i], 0);
	assert_int_equal(written[109], "abc"[102 % 3]);
	assert_int_equal(backend_fill(&b, "q", 1, 1, whole, 0), 0);
	assert_int_equal(written[0], 'x');
	assert_int_equal(written[1], 'q');
	assert_memory_equal(written + 1, written + 2, whole - 1);
	assert_int_equal(written[1 + whole], "abc"[(whole - 6) % 3]);
	assert_int_equal(backend_fill(&b, "abc", 3, 0, 4, 0), -EINVAL);
	assert_int_equal(backend_fill(&b, "abc", 3, 0, 3, BACKEND_FAST_ZERO), -EINVAL);
	fault = -EIO;
	assert_int_equal(backend_fill(&b, "abc", 3, 0, 3, 0), -EIO);
}

static void note(struct backend_request *request, int result)
{
	*(int *)request->opaque = result;
}

/* A request may be submitted again as it is. */
static void test_requests_can_be_used_again(void **state)
{
	struct backend b = open_fake(&submits);
	int result = 1;
	struct backend_request flush = {.op = BACKEND_FLUSH, .done = note, .opaque = &result};

	(void)state;
	fault = -ENODATA;
	backend_submit(&b, &flush);
	assert_int_equal(result, -EIO);
	assert_ptr_equal(flush.done, note);
	fault = 0;
	backend_submit(&b, &flush);
	assert_int_equal(result, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_errors_are_few),
		cmocka_unit_test(test_zeroes_in_memory_replace_no_read),
		cmocka_unit_test(test_what_a_device_cannot_do),
		cmocka_unit_test(test_wrong_requests_are_not_the_device_s_fault),
		cmocka_unit_test(test_a_failure_is_told_once),
		cmocka_unit_test(test_transfers_that_fail),
		cmocka_unit_test(test_fill),
		cmocka_unit_test(test_requests_can_be_used_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
