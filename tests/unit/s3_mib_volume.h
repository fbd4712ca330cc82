/* SPDX-License-Identifier: BSD-3-Clause */
/* A volume of the S3 device that tests write by the MiB, and wait for. */
#ifndef USERBLK_TESTS_UNIT_S3_MIB_VOLUME_H
#define USERBLK_TESTS_UNIT_S3_MIB_VOLUME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

#define MIB    (1u << 20)
#define COMMON "endpoint=http://127.0.0.1;bucket=abc;batch-size=1M;gc-delay=0;volume=v;"
/* s that anything may take here. */
#define PATIENCE 30

extern uint8_t buffer[MIB];

void pause_ms(unsigned ms);

/* Fails the test with the message if the condition does not hold within the patience. */
#define WAIT_UNTIL(condition, ...)                                                                 \
	do {                                                                                       \
		for (unsigned waited = 0; !(condition); waited++) {                                \
			if (waited == PATIENCE * 100)                                              \
				fail_msg(__VA_ARGS__);                                             \
			pause_ms(10);                                                              \
		}                                                                                  \
	} while (0)

/* Creates a volume of 64 MiB in an empty store. */
void create_volume(struct device *d);

void fill(uint8_t *data, size_t length, unsigned seed);

/* Writes the MiB with that number, its bytes by the seed: 0 or negative errno. */
int write_mib(struct device *d, unsigned number, unsigned seed);

/* The same, and flushes; fails the test if one of them does. */
void put_mib(struct device *d, unsigned number, unsigned seed);

/* Fails the test unless the MiB with that number holds what the seed gives. */
void check_mib(struct device *d, unsigned number, unsigned seed);

/* Until the store is full, for the volume, or is not. */
void wait_full(struct device *d, bool full);

/* Bytes of the reserve. */
uint64_t device_reserve(const struct device *d);

/* A volume with so many MiB whose store has room for nothing but what the reserve makes. */
void open_full(struct device *d, unsigned uploads, unsigned written);

#endif
