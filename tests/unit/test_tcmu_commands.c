/* SPDX-License-Identifier: BSD-3-Clause */
/* The SCSI commands that the adapter for tcmu-runner gets, and what it answers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <scsi/scsi.h>

#include "tests/unit/tcmu_disk.h"

static int write_same(uint8_t byte1, const char *block, uint64_t offset, uint64_t length)
{
	struct command c;
	struct iovec iov = {(void *)block, BLOCK};

	return registered->writesame(
		&dev, command(&c, WRITE_SAME_16, byte1), offset, length, &iov, 1);
}

static void assert_filled(uint64_t offset, size_t length, char byte)
{
	char *data = malloc(length);

	assert_int_equal(read_bytes(data, length, offset), TCMU_STS_OK);
	for (size_t i = 0; i < length; i++)
		assert_int_equal(data[i], byte);
	free(data);
}

static void fill(uint64_t offset, size_t length, char byte)
{
	char *data = malloc(length);

	memset(data, byte, length);
	assert_int_equal(write_bytes(WRITE_16, 0, data, length, offset), TCMU_STS_OK);
	free(data);
}

static void test_data(void **state)
{
	char out[2 * BLOCK], in[2 * BLOCK];
	struct iovec parts[3] = {{out, 100}, {out + 100, 0}, {out + 100, sizeof out - 100}};
	struct command c;

	(void)state;
	for (size_t i = 0; i < sizeof out; i++)
		out[i] = (char)(i * 7);
	assert_int_equal(
		registered->write(&dev, command(&c, WRITE_10, 0), parts, 3, sizeof out, 3 * BLOCK),
		TCMU_STS_OK);
	/* The runner uses the vector again in compound commands. */
	assert_ptr_equal(parts[0].iov_base, out);
	assert_int_equal(parts[0].iov_len, 100);
	assert_int_equal(read_bytes(in, sizeof in, 3 * BLOCK), TCMU_STS_OK);
	assert_memory_equal(in, out, sizeof in);
}

static void test_fua(void **state)
{
	static const struct {
		uint8_t opcode, byte1;
		bool fua;
	} cases[] = {
		{WRITE_6, 0x1f, false}, /* that is a part of the address */
		{WRITE_10, 0, false},
		{WRITE_16, 0, false},
		{COMPARE_AND_WRITE, 0, false},
		{WRITE_VERIFY, 0, true},
		{WRITE_VERIFY_16, 0, true},
		{EXTENDED_COPY, 0x08, false},
	};
	char block[BLOCK] = "";

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		assert_int_equal(
			write_bytes(cases[i].opcode, cases[i].byte1, block, BLOCK, 0), TCMU_STS_OK);
		assert_int_equal(write_flags, cases[i].fua ? BACKEND_FUA : 0);
	}
}

static int unmap(uint64_t offset, uint64_t length)
{
	struct command c;

	return registered->unmap(&dev, command(&c, UNMAP, 0), offset, length);
}

static void turn_cache_off(void)
{
	assert_int_equal(set_write_cache(false), 0);
}

static void test_write_cache(void **state)
{
	char block[BLOCK] = "x";

	(void)state;
	/* What was acknowledged before is made durable. */
	assert_int_equal(set_write_cache(false), 0);
	assert_false(dev.write_cache);
	assert_int_equal(flushes, 1);
	assert_int_equal(write_bytes(WRITE_10, 0, block, BLOCK, 0), TCMU_STS_OK);
	assert_int_equal(write_flags, BACKEND_FUA);
	memset(block, 0, sizeof block);
	assert_int_equal(write_same(0, block, 0, BLOCK), TCMU_STS_OK);
	assert_int_equal(zero_flags, BACKEND_FUA);
	assert_int_equal(write_same(0x08, block, 0, BLOCK), TCMU_STS_OK);
	assert_int_equal(zero_flags, BACKEND_FUA | BACKEND_MAY_TRIM);
	assert_int_equal(unmap(0, BLOCK), TCMU_STS_OK);
	assert_int_equal(zero_flags, BACKEND_FUA | BACKEND_MAY_TRIM | BACKEND_FAST_ZERO);
	assert_int_equal(set_write_cache(true), 0);
	assert_true(dev.write_cache);
	assert_int_equal(write_bytes(WRITE_10, 0, block, BLOCK, 0), TCMU_STS_OK);
	assert_int_equal(write_flags, 0);

	/* Turned off while a write without FUA was under way: flushed before the answer. */
	flushes = 0;
	during_write = turn_cache_off;
	assert_int_equal(write_bytes(WRITE_10, 0, block, BLOCK, 0), TCMU_STS_OK);
	assert_int_equal(write_flags, 0);
	assert_int_equal(flushes, 2);
	assert_int_equal(set_write_cache(true), 0);
	flushes = 0;
	assert_int_equal(unmap(0, BLOCK), TCMU_STS_OK);
	assert_int_equal(zero_flags, BACKEND_MAY_TRIM | BACKEND_FAST_ZERO);
	assert_int_equal(flushes, 2);
	/* Where nothing was unmapped, there is nothing to flush. */
	assert_int_equal(set_write_cache(true), 0);
	flushes = 0;
	fault_zero = -EOPNOTSUPP;
	assert_int_equal(unmap(0, BLOCK), TCMU_STS_OK);
	assert_int_equal(flushes, 1);
	fault_zero = 0;
	during_write = NULL;
	/* Where it cannot be turned off, nothing has changed. */
	for (int on = 1; on >= 0; on--) {
		fault_flush = 0;
		assert_int_equal(set_write_cache(on), 0);
		fault_flush = -EIO;
		assert_int_equal(set_write_cache(false), -EIO);
		assert_int_equal(dev.write_cache, on);
		assert_int_equal(write_bytes(WRITE_10, 0, block, BLOCK, 0), TCMU_STS_OK);
		assert_int_equal(write_flags, on ? 0 : BACKEND_FUA);
	}
}

static void reopen(void)
{
	registered->close(&dev);
	assert_int_equal(registered->open(&dev, false), 0);
}

/* Initiators that were told of no write cache send no flush, whichever daemon serves the disk. */
static void test_write_cache_after_a_restart(void **state)
{
	char block[BLOCK] = "x";

	(void)state;
	for (int sessions = 0; sessions < 2; sessions++) {
		ops.has_sessions = sessions;
		dev.enabled = 0;
		dev.cache = 0;
		reopen();
		assert_true(dev.write_cache);
		assert_int_equal(dev.cache, 1);
		dev.enabled = 1;
		assert_int_equal(set_write_cache(false), 0);
		reopen();
		assert_false(dev.write_cache);
		assert_int_equal(write_bytes(WRITE_10, 0, block, BLOCK, 0), TCMU_STS_OK);
		assert_int_equal(write_flags, BACKEND_FUA);
		assert_int_equal(set_write_cache(true), 0);
		reopen();
		assert_true(dev.write_cache);
		assert_int_equal(write_bytes(WRITE_10, 0, block, BLOCK, 0), TCMU_STS_OK);
		assert_int_equal(write_flags, 0);
	}
	/* Where it is not known, there is none. */
	dev.cache = -EIO;
	reopen();
	assert_false(dev.write_cache);
	dev.cache = 1;
	dev.enabled = -EIO;
	reopen();
	assert_false(dev.write_cache);
	/* It is a new disk's also if that cannot be kept. */
	dev.enabled = 0;
	dev.cache = -EIO;
	reopen();
	assert_true(dev.write_cache);
	assert_holds(logged, "cannot record that there is a write cache");
}

static void test_flush(void **state)
{
	struct command c;

	(void)state;
	assert_int_equal(registered->flush(&dev, command(&c, SYNCHRONIZE_CACHE, 0)), TCMU_STS_OK);
	assert_int_equal(flushes, 1);
	fault_flush = -EIO;
	assert_int_equal(
		registered->flush(&dev, command(&c, SYNCHRONIZE_CACHE, 0)), TCMU_STS_WR_ERR);
}

static void test_write_same(void **state)
{
	char zero[BLOCK] = "", pattern[BLOCK];
	size_t length = 2 * MIB + 3 * BLOCK;

	(void)state;
	memset(pattern, 'p', sizeof pattern);

	assert_int_equal(write_same(0, pattern, BLOCK, length), TCMU_STS_OK);
	assert_int_equal(zeroes, 0);
	assert_filled(0, BLOCK, 0);
	assert_filled(BLOCK, length, 'p');
	assert_filled(BLOCK + length, BLOCK, 0);

	assert_int_equal(write_same(0x08, zero, 2 * BLOCK, BLOCK), TCMU_STS_OK);
	assert_int_equal(zero_flags, BACKEND_MAY_TRIM);
	assert_int_equal(write_same(0, zero, 4 * BLOCK, BLOCK), TCMU_STS_OK);
	assert_int_equal(zero_flags, 0);
	assert_filled(BLOCK, BLOCK, 'p');
	assert_filled(2 * BLOCK, BLOCK, 0);
	assert_filled(3 * BLOCK, BLOCK, 'p');
	assert_filled(4 * BLOCK, BLOCK, 0);
	assert_filled(5 * BLOCK, BLOCK, 'p');

	/* Zero but for the last byte is a pattern. */
	zeroes = 0;
	zero[BLOCK - 1] = 'z';
	assert_int_equal(write_same(0x08, zero, 0, BLOCK), TCMU_STS_OK);
	assert_int_equal(zeroes, 0);
	zero[BLOCK - 1] = 0;

	/* Where the device cannot zero, zeroes are written. */
	fault_zero = -EOPNOTSUPP;
	assert_int_equal(write_same(0x08, zero, 0, length), TCMU_STS_OK);
	assert_int_equal(zeroes, 1);
	assert_filled(0, length, 0);

	/* An error is not hidden by writing. */
	fault_zero = -EIO;
	assert_int_equal(write_same(0, zero, 0, BLOCK), TCMU_STS_WR_ERR);
	fault_write = -EIO;
	assert_int_equal(write_same(0, pattern, 0, BLOCK), TCMU_STS_WR_ERR);
}

static void test_unmap(void **state)
{
	(void)state;
	fill(0, MIB, 'u');
	assert_int_equal(unmap(0, MIB / 2), TCMU_STS_OK);
	assert_filled(0, MIB / 2, 0);
	assert_filled(MIB / 2, MIB / 2, 'u');

	/* What is unmapped reads as zeroes, which trims do not promise. */
	fault_trim = -EIO;
	assert_int_equal(unmap(MIB / 2, MIB / 2), TCMU_STS_OK);
	assert_filled(MIB / 2, MIB / 2, 0);

	/* The runner drops the status: it must be in the log. */
	fault_zero = -EIO;
	logged[0] = 0;
	assert_int_equal(unmap(0, MIB), TCMU_STS_WR_ERR);
	assert_holds(logged, "zero of 1048576 bytes at 0");
	/* Doing nothing is allowed, and said once. Inside a page, the device may do nothing. */
	fault_zero = -EOPNOTSUPP;
	logged[0] = 0;
	assert_int_equal(unmap(0, BLOCK), TCMU_STS_OK);
	assert_string_equal(logged, "");
	assert_int_equal(unmap(0, MIB), TCMU_STS_OK);
	assert_holds(logged, "the device has no command for zeroes: UNMAP has no effect");
	logged[0] = 0;
	assert_int_equal(unmap(0, MIB), TCMU_STS_OK);
	assert_string_equal(logged, "");
}

static void test_refused_commands(void **state)
{
	struct command c;
	struct tcmur_cmd *cmd;

	(void)state;
	assert_int_equal(
		registered->handle_cmd(&dev, command(&c, FORMAT_UNIT, 0)), TCMU_STS_INVALID_CMD);
	static const uint8_t transfers[] = {
		READ_10, READ_12, READ_16, WRITE_10, WRITE_12, WRITE_16, COMPARE_AND_WRITE};

	/* RDPROTECT or WRPROTECT, DPO and FUA, which are not announced. */
	for (size_t i = 0; i < sizeof transfers; i++)
		for (unsigned bit = 0; bit < 8; bit++)
			assert_int_equal(registered->handle_cmd(&dev,
						 command(&c, transfers[i], (uint8_t)(1u << bit))),
				bit >= 3 ? TCMU_STS_INVALID_CDB : TCMU_STS_NOT_HANDLED);
	cmd = command(&c, WRITE_VERIFY, 0x20);
	assert_int_equal(registered->handle_cmd(&dev, cmd), TCMU_STS_INVALID_CDB);
	cmd = command(&c, WRITE_VERIFY_16, 0x10);
	assert_int_equal(registered->handle_cmd(&dev, cmd), TCMU_STS_INVALID_CDB);
	cmd = command(&c, WRITE_VERIFY_16, 0x02);
	assert_int_equal(registered->handle_cmd(&dev, cmd), TCMU_STS_NOT_HANDLED);
	for (unsigned bit = 0; bit < 8; bit++) {
		int expected = bit == 3 ? TCMU_STS_NOT_HANDLED : TCMU_STS_INVALID_CDB;
		uint8_t byte1 = (uint8_t)(1u << bit);

		cmd = command(&c, WRITE_SAME, byte1);
		assert_int_equal(registered->handle_cmd(&dev, cmd), expected);
		cmd = command(&c, WRITE_SAME_16, byte1);
		assert_int_equal(registered->handle_cmd(&dev, cmd), expected);
	}
	/* The one length that the runner would take for aligned, and unmap. */
	cmd = command(&c, WRITE_SAME_16, 0x08);
	c.cdb[10] = 0x80;
	assert_int_equal(registered->handle_cmd(&dev, cmd), TCMU_STS_INVALID_CDB);
	/* The most that is announced, and a block more. */
	cmd = command(&c, WRITE_SAME_16, 0);
	c.cdb[12] = 0x80;
	assert_int_equal(registered->handle_cmd(&dev, cmd), TCMU_STS_NOT_HANDLED);
	c.cdb[13] = 1;
	assert_int_equal(registered->handle_cmd(&dev, cmd), TCMU_STS_INVALID_CDB);
	/* A parameter list that uses its identifier in an undefined way. */
	char list[16] = {0, 0x08};
	struct iovec iov = {list, sizeof list};

	cmd = command(&c, EXTENDED_COPY, 0);
	c.cdb[13] = sizeof list;
	c.lib.iovec = &iov;
	c.lib.iov_cnt = 1;
	assert_int_equal(registered->handle_cmd(&dev, cmd), TCMU_STS_INVALID_PARAM_LIST);
}

static void test_an_inquiry_shows_no_other_command_s_data(void **state)
{
	char answer[96];
	struct iovec iov[] = {{answer, 40}, {answer + 40, 56}};
	struct command c;
	struct tcmur_cmd *cmd = command(&c, INQUIRY, 0);

	(void)state;
	memset(answer, 'x', sizeof answer);
	c.lib.iovec = iov;
	c.lib.iov_cnt = 2;
	assert_int_equal(registered->handle_cmd(&dev, cmd), TCMU_STS_NOT_HANDLED);
	for (size_t i = 0; i < sizeof answer; i++)
		assert_int_equal(answer[i], i == 4 ? 91 : 0); /* the rest of 96 */
}

/* Sense key, additional code and its qualifier of the last failed command. */
static void assert_sense(const struct command *c, uint8_t key, uint8_t code, uint8_t qualifier)
{
	assert_int_equal(c->lib.sense_buf[2] & 0x0f, key);
	assert_int_equal(c->lib.sense_buf[12], code);
	assert_int_equal(c->lib.sense_buf[13], qualifier);
}

static void test_errors(void **state)
{
	static const struct {
		int error, status;
		uint8_t code, qualifier;
	} cases[] = {
		{-ENOMEM, TCMU_STS_NO_RESOURCE, 0, 0},
		{-EINVAL, TCMU_STS_WR_ERR, 0, 0}, /* the device's: the range was right */
		{-ENODATA, TCMU_STS_WR_ERR, 0, 0},
		{-EROFS, TCMU_STS_PASSTHROUGH_ERR, 0x27, 0x00},
		{-EPERM, TCMU_STS_PASSTHROUGH_ERR, 0x27, 0x00},
		{-ENOSPC, TCMU_STS_PASSTHROUGH_ERR, 0x27, 0x07},
		{-ENODEV, TCMU_STS_HW_ERR, 0, 0},
		{-ENXIO, TCMU_STS_HW_ERR, 0, 0},
		{-EOPNOTSUPP, TCMU_STS_WR_ERR, 0, 0},
		{-EIO, TCMU_STS_WR_ERR, 0, 0},
		{-ETIMEDOUT, TCMU_STS_WR_ERR, 0, 0},
	};
	char block[BLOCK] = "";
	struct iovec iov = {block, BLOCK};
	struct command c;

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		fault_write = cases[i].error;
		assert_int_equal(
			registered->write(&dev, command(&c, WRITE_10, 0), &iov, 1, BLOCK, 0),
			cases[i].status);
		if (cases[i].code)
			assert_sense(&c, DATA_PROTECT, cases[i].code, cases[i].qualifier);
	}
	fault_read = -EIO;
	logged[0] = 0;
	assert_int_equal(read_bytes(block, BLOCK, 0), TCMU_STS_RD_ERR);
	assert_holds(logged, "read of 512 bytes at 0: Input/output error");
	assert_int_equal(read_bytes(block, BLOCK, INT64_MAX / BLOCK * BLOCK), TCMU_STS_RANGE);

	registered->close(&dev);
	prepare(";direct=off;readonly=on");
	assert_int_equal(registered->open(&dev, false), 0);
	fault_write = 0;
	assert_int_equal(registered->write(&dev, command(&c, WRITE_10, 0), &iov, 1, BLOCK, 0),
		TCMU_STS_PASSTHROUGH_ERR);
	assert_sense(&c, DATA_PROTECT, 0x27, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_data),
		TEST(test_fua),
		TEST(test_write_cache),
		TEST(test_write_cache_after_a_restart),
		TEST(test_flush),
		TEST(test_write_same),
		TEST(test_unmap),
		TEST(test_refused_commands),
		TEST(test_an_inquiry_shows_no_other_command_s_data),
		TEST(test_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
