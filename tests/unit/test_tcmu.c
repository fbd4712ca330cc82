/* SPDX-License-Identifier: BSD-3-Clause */
/* The adapter for tcmu-runner with the runner's real headers; tests/lab has the real daemon. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <scsi/scsi.h>

#include <tcmu-runner.h>
#include <libtcmu.h>
#include <tcmur_device.h>

#include "tcmu-handlers/tcmu_adapter.h"
#include "tests/unit/fake_tcmu_runner.h"
#include "tests/unit/support.h"

#define BLOCK  512u
#define BLOCKS 8192u /* 4 MiB */
#define MIB    (1u << 20)

/* ---- the device: passthrough, with faults ----------------------------------------- */

/* One of these may be set: what the next calls of that kind answer without doing anything. */
static int fault_read, fault_write, fault_flush, fault_trim, fault_zero;
static unsigned write_flags, zero_flags; /* of the last call */
static int flushes, zeroes;
static void (*during_write)(void);

static struct backend_ops ops;

const struct handler_identity handler_identity = {
	.ops = &ops,
	.subtype = "userblk_test",
	.name = "device under test",
};

static struct backend_host last_host;

static int watched_open(
	const void *config, uint64_t size, const struct backend_host *host, struct backend **out)
{
	int r = passthrough_backend.open(config, size, host, out);

	last_host = *host;
	if (r == 0)
		(*out)->session = 7;
	return r;
}

static int faulty_readv(struct backend *b, const struct iovec *iov, int n, uint64_t offset)
{
	return fault_read ? fault_read : passthrough_backend.readv(b, iov, n, offset);
}

static int faulty_writev(
	struct backend *b, const struct iovec *iov, int n, uint64_t offset, unsigned flags)
{
	write_flags = flags;
	if (during_write)
		during_write();
	return fault_write ? fault_write : passthrough_backend.writev(b, iov, n, offset, flags);
}

static int faulty_flush(struct backend *b)
{
	flushes++;
	return fault_flush ? fault_flush : passthrough_backend.flush(b);
}

static int faulty_trim(struct backend *b, uint64_t offset, uint64_t length, unsigned flags)
{
	return fault_trim ? fault_trim : passthrough_backend.trim(b, offset, length, flags);
}

static int faulty_zero(struct backend *b, uint64_t offset, uint64_t length, unsigned flags)
{
	zeroes++;
	zero_flags = flags;
	return fault_zero ? fault_zero : passthrough_backend.zero(b, offset, length, flags);
}

/* ---- set-up ------------------------------------------------------------------------- */

static struct tcmu_device dev;
static char *file;

/* One command: cdb byte 0 and 1, data. */
struct command {
	uint8_t cdb[16];
	struct tcmulib_cmd lib;
	struct tcmur_cmd cmd;
};

static struct tcmur_cmd *command(struct command *c, uint8_t opcode, uint8_t byte1)
{
	memset(c, 0, sizeof *c);
	c->cdb[0] = opcode;
	c->cdb[1] = byte1;
	c->lib.cdb = c->cdb;
	c->cmd.lib_cmd = &c->lib;
	return &c->cmd;
}

static void prepare(const char *options)
{
	memset(&dev, 0, sizeof dev);
	snprintf(dev.cfgstring, sizeof dev.cfgstring, "userblk_test/%s%s", file, options);
	dev.blocks = BLOCKS;
	dev.block_size = BLOCK;
	dev.max_transfer = 128;
	dev.unmap = true;
	logged[0] = 0;
}

static int set_up(void **state)
{
	(void)state;
	fault_read = fault_write = fault_flush = fault_trim = fault_zero = 0;
	write_flags = zero_flags = 0;
	flushes = zeroes = completions = 0;
	during_write = NULL;
	unsetenv("USERBLK_TCMU_THREADS");
	ops = passthrough_backend;
	ops.readv = faulty_readv;
	ops.writev = faulty_writev;
	ops.flush = faulty_flush;
	ops.trim = faulty_trim;
	ops.zero = faulty_zero;
	assert_int_equal(handler_init(), 0);
	file = strdup(scratch_file("disk", (uint64_t)BLOCKS * BLOCK));
	prepare(";direct=off");
	assert_int_equal(registered->open(&dev, false), 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	if (dev.own)
		registered->close(&dev);
	free((char *)registered->cfg_desc);
	free(file);
	return 0;
}

static int write_bytes(
	uint8_t opcode, uint8_t byte1, const void *data, size_t length, uint64_t offset)
{
	struct command c;
	struct iovec iov = {(void *)data, length};

	return registered->write(&dev, command(&c, opcode, byte1), &iov, 1, length, (off_t)offset);
}

static int read_bytes(void *data, size_t length, uint64_t offset)
{
	struct command c;
	struct iovec iov = {data, length};

	return registered->read(&dev, command(&c, READ_10, 0), &iov, 1, length, (off_t)offset);
}

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

/* ---- tests ----------------------------------------------------------------------------- */

static void test_threads(void **state)
{
	static const char *const wrong[] = {"", "x", "-1", "4 ", "257", "99999999999999999999"};

	(void)state;
	assert_int_equal(registered->nr_threads, 16);
	free((char *)registered->cfg_desc);
	setenv("USERBLK_TCMU_THREADS", "3", 1);
	assert_int_equal(handler_init(), 0);
	assert_int_equal(registered->nr_threads, 3);
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		setenv("USERBLK_TCMU_THREADS", wrong[i], 1);
		logged[0] = 0;
		assert_int_equal(handler_init(), -1);
		assert_holds(logged, "USERBLK_TCMU_THREADS=");
		assert_holds(logged, "use 0 to 256");
	}
	assert_holds(registered->cfg_desc, "direct=");
	assert_holds(registered->cfg_desc, "value of file alone");
}

/* Without threads the runner takes success for a promise to complete later. */
static void test_no_threads(void **state)
{
	char block[BLOCK];

	(void)state;
	free((char *)registered->cfg_desc);
	setenv("USERBLK_TCMU_THREADS", "0", 1);
	assert_int_equal(handler_init(), 0);
	assert_int_equal(read_bytes(block, BLOCK, 0), TCMU_STS_OK);
	assert_int_equal(completions, 1);
	assert_int_equal(completed_status, TCMU_STS_OK);
	fault_read = -EIO;
	assert_int_equal(read_bytes(block, BLOCK, 0), TCMU_STS_RD_ERR);
	assert_int_equal(completions, 1);
}

static void test_announced(void **state)
{
	(void)state;
	assert_true(dev.write_cache);
	assert_true(dev.unmap);
	assert_false(dev.split);
	assert_true(dev.granularity >= 1);
	assert_int_equal(dev.max_transfer, 128);
	assert_int_equal(dev.xcopy, 128);
	/* The runner divides by it, and announces the lower 31 bits. */
	assert_int_equal(dev.alignment, 1u << 31);
	assert_int_equal(dev.max_unmap, 1u << 20);
	registered->close(&dev);

	/* The runner multiplies it by the block size in 32 bits. */
	prepare(";direct=off");
	dev.max_transfer = 1u << 23;
	assert_int_equal(registered->open(&dev, true), 0);
	assert_int_equal(dev.max_transfer, 65536);
	registered->close(&dev);

	prepare(";direct=off;readonly=on");
	assert_int_equal(registered->open(&dev, false), 0);
	assert_false(dev.unmap);
	assert_int_equal(dev.granularity, 1);
}

/* check_config and open say the same, once each. */
static void refused_by_both(const char *cfgstring, const char *message)
{
	char *reason;

	registered->close(&dev);
	prepare("");
	snprintf(dev.cfgstring, sizeof dev.cfgstring, "%s", cfgstring);
	assert_false(registered->check_config(dev.cfgstring, &reason));
	assert_non_null(reason);
	assert_holds(reason, message);
	assert_null(strchr(reason, '\n'));
	assert_true(registered->open(&dev, false) < 0);
	assert_null(dev.own);
	assert_holds(logged, reason);
	free(reason);
	prepare(";direct=off");
	assert_int_equal(registered->open(&dev, false), 0);
}

static void test_refusals(void **state)
{
	char text[512];

	(void)state;
	refused_by_both("userblk_test/", "file: missing");
	refused_by_both("userblk_test/;direct=on", "file: missing");
	refused_by_both("userblk_test//nonexistent/file", "file=/nonexistent/file: No such file");
	refused_by_both("userblk_test//dev/zero", "file=/dev/zero: neither a block device");
	refused_by_both("userblk_tes/x", "begin it with userblk_test/");
	refused_by_both("userblk_testx/x", "begin it with userblk_test/");
	snprintf(text, sizeof text, "userblk_test/%s;direct=maybe", file);
	refused_by_both(text, "direct=maybe:");
	snprintf(text, sizeof text, "userblk_test/%s;colour=red", file);
	refused_by_both(text, "colour");
	snprintf(text, sizeof text, "userblk_test/%s;config=/nonexistent", file);
	refused_by_both(text, "config=/nonexistent");
}

static void test_accepted(void **state)
{
	const char *config = scratch_path("config");
	char text[1024], *reason = NULL;
	FILE *f = fopen(config, "w");

	(void)state;
	fprintf(f, "# a comment\nfile=%s\ndirect=off\n", file);
	fclose(f);
	snprintf(text, sizeof text, "userblk_test/config=%s", config);
	assert_true(registered->check_config(text, &reason));
	/* The runner's own option: it takes it out before open only. */
	snprintf(text, sizeof text, "userblk_test/%s;tcmur_cmd_time_out=5;direct=off", file);
	assert_true(registered->check_config(text, &reason));
	snprintf(text, sizeof text, "userblk_test/%s;direct=off;tcmur_cmd_time_out=5", file);
	assert_true(registered->check_config(text, &reason));
	assert_null(reason);

	/* Nor does it open a device that this would take away from another server. */
	ops.has_sessions = true;
	snprintf(text, sizeof text, "userblk_test/%s", scratch_path("absent"));
	assert_true(registered->check_config(text, &reason));
	ops.has_sessions = false;
	assert_false(registered->check_config(text, &reason));
	free(reason);
	reason = NULL;

	/* What a check must not do: create the file. */
	snprintf(text, sizeof text, "userblk_test/%s;size=1m;direct=off", scratch_path("new"));
	assert_true(registered->check_config(text, &reason));
	assert_int_equal(access(scratch_path("new"), F_OK), -1);
}

static void test_too_small(void **state)
{
	(void)state;
	registered->close(&dev);
	prepare(";direct=off");
	dev.blocks = BLOCKS + 1;
	assert_true(registered->open(&dev, false) < 0);
	assert_null(dev.own);
	assert_holds(logged, "4194816");
	assert_holds(logged, "4194304");
	dev.blocks = 0;
	assert_true(registered->open(&dev, false) < 0);
	assert_holds(logged, "size=0");
}

/* Opens and closes the disk, with initiators or without, that configfs has a session of. */
static int open_exported(int exports, int session)
{
	int r;

	prepare(";direct=off");
	dev.exports = exports;
	dev.session = session;
	r = registered->open(&dev, false);
	if (r == 0)
		registered->close(&dev);
	return r;
}

/* A device with sessions learns whether another daemon acknowledged writes to initiators. */
static void test_clients_that_remain(void **state)
{
	(void)state;
	registered->close(&dev);
	ops.open = watched_open;
	assert_int_equal(open_exported(1, 5), 0);
	assert_int_equal(last_host.previous_session, 0);
	assert_int_equal(dev.session, 5);
	ops.has_sessions = true;
	assert_int_equal(open_exported(0, 5), 0);
	assert_int_equal(last_host.previous_session, 0);
	assert_int_equal(dev.session, 7);
	for (int exports = 1; exports < 3; exports++) {
		assert_int_equal(open_exported(exports, 5), 0);
		assert_int_equal(last_host.previous_session, 5);
		assert_int_equal(dev.session, 7);
	}
	/* A session that cannot be read is unknown. If exports cannot be counted, open fails. */
	assert_int_equal(open_exported(1, 0), 0);
	assert_int_equal(last_host.previous_session, BACKEND_SESSION_UNKNOWN);
	assert_int_equal(open_exported(1, -EIO), 0);
	assert_int_equal(last_host.previous_session, BACKEND_SESSION_UNKNOWN);
	assert_holds(logged, "cannot record who serves the disk");
	assert_int_equal(open_exported(-ENOENT, 0), -ENOENT);
	assert_null(dev.own);
	assert_holds(logged, "cannot determine whether the disk is exported: No such file");
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

static int set_write_cache(bool on)
{
	struct tcmulib_cfg_info cfg = {.type = TCMULIB_CFG_WRITE_CACHE, .data.write_cache = on};

	return registered->reconfig(&dev, &cfg);
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
	fault_flush = -EIO;
	during_write = NULL;
	assert_int_equal(set_write_cache(true), 0);
	assert_int_equal(set_write_cache(false), -EIO);
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
	struct command c;

	(void)state;
	fill(0, MIB, 'u');
	assert_int_equal(registered->unmap(&dev, command(&c, UNMAP, 0), 0, MIB / 2), TCMU_STS_OK);
	assert_filled(0, MIB / 2, 0);
	assert_filled(MIB / 2, MIB / 2, 'u');

	/* What is unmapped reads as zeroes, which trims do not promise. */
	fault_trim = -EIO;
	assert_int_equal(
		registered->unmap(&dev, command(&c, UNMAP, 0), MIB / 2, MIB / 2), TCMU_STS_OK);
	assert_filled(MIB / 2, MIB / 2, 0);

	/* The runner drops the status: it must be in the log. */
	fault_zero = -EIO;
	logged[0] = 0;
	assert_int_equal(registered->unmap(&dev, command(&c, UNMAP, 0), 0, MIB), TCMU_STS_WR_ERR);
	assert_holds(logged, "zero of 1048576 bytes at 0");
	/* Doing nothing is allowed. */
	fault_zero = -EOPNOTSUPP;
	logged[0] = 0;
	assert_int_equal(registered->unmap(&dev, command(&c, UNMAP, 0), 0, MIB), TCMU_STS_OK);
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
	/* A parameter list whose identifier is used in a way that there is none. */
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

static int resize(uint64_t bytes)
{
	struct tcmulib_cfg_info cfg = {.type = TCMULIB_CFG_DEV_SIZE, .data.dev_size = bytes};
	int r = registered->reconfig(&dev, &cfg);

	if (r == 0)
		dev.blocks = bytes / BLOCK;
	return r;
}

static void test_resize(void **state)
{
	char block[BLOCK] = "", *new_config;
	uint64_t size = (uint64_t)BLOCKS * BLOCK;
	struct tcmulib_cfg_info cfg;

	(void)state;
	assert_int_equal(read_bytes(block, BLOCK, size), TCMU_STS_RANGE);
	logged[0] = 0;
	assert_int_equal(resize(2 * size), -EINVAL);
	assert_holds(logged, "8388608");
	assert_holds(logged, "4194304");
	assert_int_equal(truncate(file, (off_t)(2 * size)), 0);
	assert_int_equal(resize(2 * size), 0);
	assert_int_equal(read_bytes(block, BLOCK, size), TCMU_STS_OK);
	assert_int_equal(resize(size / 2), 0);
	assert_int_equal(read_bytes(block, BLOCK, size / 2), TCMU_STS_RANGE);
	assert_int_equal(read_bytes(block, BLOCK, size / 2 - BLOCK), TCMU_STS_OK);

	new_config = strdup("userblk_test//other");
	cfg.type = TCMULIB_CFG_DEV_CFGSTR;
	cfg.data.dev_cfgstring = new_config;
	logged[0] = 0;
	assert_int_equal(registered->reconfig(&dev, &cfg), -EOPNOTSUPP);
	assert_holds(logged, "userblk_test//other");
	free(new_config);
}

/* ---- a device that answers later -------------------------------------------------- */

#define QUEUE 128

static struct backend_request *queue[QUEUE];
static int queued;

static void keep_request(struct backend *b, struct backend_request *request)
{
	(void)b;
	assert_true(queued < QUEUE);
	queue[queued++] = request;
}

static void answer(int i, int result)
{
	queue[i]->done(queue[i], result);
}

/* All of the runner's queue is carried by its one thread, and answered in any order. */
static void test_submit(void **state)
{
	static struct command commands[QUEUE];
	char block[BLOCK] = "";
	struct iovec iov = {block, BLOCK};
	struct command c;

	(void)state;
	free((char *)registered->cfg_desc);
	ops.submit = keep_request;
	assert_int_equal(handler_init(), 0);
	assert_int_equal(registered->nr_threads, 0);
	queued = 0;
	for (int i = 0; i < QUEUE; i++)
		assert_int_equal(registered->write(&dev, command(&commands[i], WRITE_10, 0), &iov,
					 1, BLOCK, i * (off_t)BLOCK),
			TCMU_STS_OK);
	assert_int_equal(queued, QUEUE);
	assert_int_equal(completions, 0);
	for (int i = QUEUE - 1; i >= 0; i--) {
		assert_int_equal(queue[i]->op, BACKEND_WRITE);
		assert_int_equal(queue[i]->offset, i * BLOCK);
		assert_int_equal(queue[i]->length, BLOCK);
		answer(i, i ? 0 : -EIO);
		assert_int_equal(completions, QUEUE - i);
		assert_int_equal(completed_status, i ? TCMU_STS_OK : TCMU_STS_WR_ERR);
	}

	/* What the core refuses is an answer, too. */
	completions = queued = 0;
	assert_int_equal(read_bytes(block, BLOCK, (uint64_t)BLOCKS * BLOCK), TCMU_STS_OK);
	assert_int_equal(queued, 0);
	assert_int_equal(completions, 1);
	assert_int_equal(completed_status, TCMU_STS_RANGE);

	/* The write cache is turned off while a write is under way: flushed before the answer. */
	completions = queued = 0;
	assert_int_equal(
		registered->write(&dev, command(&c, WRITE_10, 0), &iov, 1, BLOCK, 0), TCMU_STS_OK);
	ops.submit = NULL;
	assert_int_equal(set_write_cache(false), 0);
	ops.submit = keep_request;
	answer(0, 0);
	assert_int_equal(completions, 0);
	assert_int_equal(queued, 2);
	assert_int_equal(queue[1]->op, BACKEND_FLUSH);
	answer(1, -EIO);
	assert_int_equal(completions, 1);
	assert_int_equal(completed_status, TCMU_STS_WR_ERR);

	/* With FUA from the beginning, once. */
	completions = queued = 0;
	assert_int_equal(
		registered->write(&dev, command(&c, WRITE_10, 0), &iov, 1, BLOCK, 0), TCMU_STS_OK);
	assert_int_equal(queue[0]->flags, BACKEND_FUA);
	answer(0, 0);
	assert_int_equal(completions, 1);

	completions = queued = 0;
	logged[0] = 0;
	assert_int_equal(registered->unmap(&dev, command(&c, UNMAP, 0), 0, MIB), TCMU_STS_OK);
	answer(0, -EIO);
	assert_holds(logged, "zero of 1048576 bytes at 0");
	assert_int_equal(completed_status, TCMU_STS_WR_ERR);
}

static void *write_until_cancelled(void *opaque)
{
	_Atomic int *done = opaque;
	char block[BLOCK] = "";

	while (*done < 1000) {
		if (write_bytes(WRITE_10, 0, block, BLOCK, 0) == TCMU_STS_OK)
			(*done)++;
		pthread_testcancel();
	}
	return NULL;
}

static _Atomic bool inside, cancelled;

static void wait_for_cancel(void)
{
	inside = true;
	while (!cancelled)
		usleep(1000); /* a cancellation point */
}

/* The runner cancels workers when a device is removed: not in the middle of a command. */
static void test_cancel(void **state)
{
	_Atomic int done = 0;
	pthread_t thread;
	void *result;

	(void)state;
	during_write = wait_for_cancel;
	assert_int_equal(pthread_create(&thread, NULL, write_until_cancelled, &done), 0);
	while (!inside)
		usleep(1000);
	assert_int_equal(pthread_cancel(thread), 0);
	cancelled = true;
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	assert_int_equal(done, 1);
}

static void test_counters(void **state)
{
	(void)state;
	registered->close(&dev);
	prepare("");
	assert_int_equal(registered->open(&dev, false), 0);
	logged[0] = 0;
	registered->close(&dev);
	assert_holds(logged, "counters: ");
	assert_null(dev.own);
}

/* The manual page has every parameter of the tables. Run in the checkout's top directory. */
static void test_manual(void **state)
{
	static const struct backend_ops *const devices[] = {&null_backend, &passthrough_backend};
	static char text[1 << 16];
	FILE *f = fopen("tcmu-handlers/tcmu-userblk-handlers.8", "r");

	(void)state;
	assert_non_null(f);
	text[fread(text, 1, sizeof text - 1, f)] = 0;
	fclose(f);
	for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
		char heading[64], item[64];
		char *section, *end;

		snprintf(heading, sizeof heading, ".Ss userblk_%s", devices[i]->name);
		section = strstr(text, heading);
		assert_non_null(section);
		end = strstr(section + 1, ".S");
		for (const struct param *p = devices[i]->params; p->name; p++) {
			snprintf(item, sizeof item, ".It Cm %s Ns = Ns ", p->name);
			char *found = strstr(section, item);

			assert_true(found && found < end);
		}
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_threads),
		TEST(test_no_threads),
		TEST(test_announced),
		TEST(test_refusals),
		TEST(test_accepted),
		TEST(test_too_small),
		TEST(test_clients_that_remain),
		TEST(test_data),
		TEST(test_fua),
		TEST(test_write_cache),
		TEST(test_flush),
		TEST(test_write_same),
		TEST(test_unmap),
		TEST(test_refused_commands),
		TEST(test_an_inquiry_shows_no_other_command_s_data),
		TEST(test_errors),
		TEST(test_resize),
		TEST(test_submit),
		TEST(test_cancel),
		TEST(test_counters),
		TEST(test_manual),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
