/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A disk of the adapter for tcmu-runner: passthrough with faults below it, set up and torn down
 * around each test, and commands to it as the runner gives them.
 */
#ifndef USERBLK_TESTS_UNIT_TCMU_DISK_H
#define USERBLK_TESTS_UNIT_TCMU_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tcmu-runner.h>
#include <libtcmu.h>
#include <tcmur_device.h>

#include "backends/device.h"
#include "tests/unit/fake_tcmu_runner.h"
#include "tests/unit/support.h"

#define BLOCK  512u
#define BLOCKS 8192u /* 4 MiB */
#define MIB    (1u << 20)

/* One of these may be set: what the next calls of that kind answer without doing anything. */
extern int fault_read, fault_write, fault_flush, fault_trim, fault_zero;
extern _Atomic unsigned write_flags, zero_flags; /* of the last call */
extern atomic_int flushes, zeroes;
extern void (*during_write)(void); /* and during zeroes */

extern struct backend_ops ops; /* of the device: passthrough's, with the faults above */
extern struct tcmu_device dev;
extern char *disk_file;

/* One command: cdb byte 0 and 1, data. */
struct command {
	uint8_t cdb[16];
	struct tcmulib_cmd lib;
	struct tcmur_cmd cmd;
};

struct tcmur_cmd *command(struct command *c, uint8_t opcode, uint8_t byte1);

/* Makes dev a disk of disk_file with these options (";key=value..."), which is not open yet. */
void prepare(const char *options);
/* Before each test: dev is open, without faults. */
int set_up(void **state);
int tear_down(void **state);

/* Each gives one command to the adapter and returns its TCMU_STS_*. */
int write_bytes(uint8_t opcode, uint8_t byte1, const void *data, size_t length, uint64_t offset);
int read_bytes(void *data, size_t length, uint64_t offset);
/* As the runner does for configfs: 0 or negative errno. */
int set_write_cache(bool on);

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
