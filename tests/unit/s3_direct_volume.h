/* SPDX-License-Identifier: BSD-3-Clause */
/* A volume with layout=direct over a store in this process, and what it holds. */
#ifndef USERBLK_TESTS_UNIT_S3_DIRECT_VOLUME_H
#define USERBLK_TESTS_UNIT_S3_DIRECT_VOLUME_H

#include <stddef.h>
#include <stdint.h>

#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

/* s that anything may take here. */
#define PATIENCE 60

#define MIB    (1u << 20)
#define CHUNKS 20u /* of a volume; memory holds 8 of them */
#define SIZE   (CHUNKS * MIB - 3 * 4096)

/* The key of the chunk with that number, up to 0xff. */
#define CHUNK(n) "chunk/" n "/00000000000000" n
/* clang-format off */
#define COMMON "volume=v;endpoint=http://127.0.0.1;bucket=abc;memory=8M;batch-size=1M;uploads=2;"
/* clang-format on */

/* What the volume should hold, and what was read of it. */
extern uint8_t model[CHUNKS * MIB], there[CHUNKS * MIB];

/* Creates the volume in an empty store. more: further parameters, each with a semicolon before it.
 */
void create(struct device *d, const char *more);

void reopen(struct device *d);

/* Fills data by the seed, without a zero. Returns data. */
uint8_t *pattern(uint8_t *data, size_t length, unsigned seed);

/* Fails the test unless these bytes of the volume are those of the model. */
void expect(struct device *d, uint32_t offset, uint32_t length);

#endif
