/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <scsi/scsi.h>

#include "tcmu-handlers/tcmu_adapter.h"
#include "tests/unit/tcmu_disk.h"

int fault_read, fault_write, fault_flush, fault_trim, fault_zero;
_Atomic unsigned write_flags, zero_flags;
atomic_int flushes, zeroes;
void (*during_write)(void);

struct backend_ops ops;

const struct handler_identity handler_identity = {
	.ops = &ops,
	.subtype = "userblk_test",
	.threads_subtype = "userblk_threads_test",
	.name = "device under test",
};

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
	if (during_write)
		during_write();
	return fault_zero ? fault_zero : passthrough_backend.zero(b, offset, length, flags);
}

struct tcmu_device dev;
char *disk_file;

struct tcmur_cmd *command(struct command *c, uint8_t opcode, uint8_t byte1)
{
	memset(c, 0, sizeof *c);
	c->cdb[0] = opcode;
	c->cdb[1] = byte1;
	c->lib.cdb = c->cdb;
	c->cmd.lib_cmd = &c->lib;
	return &c->cmd;
}

void prepare(const char *options)
{
	memset(&dev, 0, sizeof dev);
	snprintf(dev.cfgstring, sizeof dev.cfgstring, "userblk_test/%s%s", disk_file, options);
	dev.blocks = BLOCKS;
	dev.block_size = BLOCK;
	dev.max_transfer = 128;
	dev.unmap = true;
	dev.uio = -1;
	logged[0] = 0;
}

int set_up(void **state)
{
	(void)state;
	fault_read = fault_write = fault_flush = fault_trim = fault_zero = 0;
	write_flags = zero_flags = 0;
	flushes = zeroes = completions = 0;
	during_write = NULL;
	on_completion = NULL;
	unsetenv("USERBLK_TCMU_THREADS");
	ops = passthrough_backend;
	ops.readv = faulty_readv;
	ops.writev = faulty_writev;
	ops.flush = faulty_flush;
	ops.trim = faulty_trim;
	ops.zero = faulty_zero;
	assert_int_equal(handler_init(), 0);
	disk_file = strdup(scratch_file("disk", (uint64_t)BLOCKS * BLOCK));
	prepare(";direct=off");
	assert_int_equal(registered->open(&dev, false), 0);
	return 0;
}

int tear_down(void **state)
{
	(void)state;
	if (dev.own)
		registered->close(&dev);
	free((char *)registered->cfg_desc);
	free(disk_file);
	return 0;
}

int write_bytes(uint8_t opcode, uint8_t byte1, const void *data, size_t length, uint64_t offset)
{
	struct command c;
	struct iovec iov = {(void *)data, length};

	return registered->write(&dev, command(&c, opcode, byte1), &iov, 1, length, (off_t)offset);
}

int read_bytes(void *data, size_t length, uint64_t offset)
{
	struct command c;
	struct iovec iov = {data, length};

	return registered->read(&dev, command(&c, READ_10, 0), &iov, 1, length, (off_t)offset);
}

int set_write_cache(bool on)
{
	struct tcmulib_cfg_info cfg = {.type = TCMULIB_CFG_WRITE_CACHE, .data.write_cache = on};
	int r;

	dev.reconfigured = true;
	r = registered->reconfig(&dev, &cfg);
	dev.reconfigured = false;
	if (r == 0)
		dev.cache = on;
	return r;
}
