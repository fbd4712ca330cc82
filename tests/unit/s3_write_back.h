/* SPDX-License-Identifier: BSD-3-Clause */
/* A volume with a write-back log over a store in this process, and what it should hold. */
#ifndef USERBLK_TESTS_UNIT_S3_WRITE_BACK_H
#define USERBLK_TESTS_UNIT_S3_WRITE_BACK_H

#include <stddef.h>
#include <stdint.h>

#include "tests/unit/s3_fake_store.h"
#include "tests/unit/support.h"

#define KIB   1024u
#define MIB   (1024u * KIB)
#define SIZE  (4 * MIB) /* of a volume */
#define BLOCK 4096u
#define LOG   (8 * MIB) /* of the write-back log */
#define RING  (3 * BLOCK)
/* clang-format off */
#define COMMON "endpoint=http://127.0.0.1;bucket=abc;"
#define USUAL  "memory=64M;batch-size=1M;uploads=4;"
/* clang-format on */

/* What the volume should hold, and what it was found to hold. */
extern uint8_t model[SIZE], there[SIZE];

/* Path of a log that is not there yet. */
const char *new_path(void);
/* Opens a volume with the log at path (NULL: without) and more parameters: 0 or negative errno. */
int attempt(struct device *d, const char *volume, const char *path, const char *more);
/* Opens the volume "v", and fails the test if that fails. */
void reopen(struct device *d, const char *path, const char *more);
/* Creates the volume "v" in an empty store, and opens it. */
void create(struct device *d, const char *path, const char *more);
/* Fails the test unless opening fails with why in its one message, and changes nothing. */
void refused(const char *volume, const char *path, const char *more, const char *why);
/* Ends a server as a crash does: nothing more is stored, nor what was still on its way. */
void crash_with_log(struct device *d);
/* Creates the volume, whose store takes no object of the log, and flushes a write: block 0. */
void create_with_a_write(struct device *d, const char *path);
/* The same of a server that then crashes. */
void crash_after_a_write(const char *path);
/* Opens the volume, fails the test unless it holds the model, closes it, and empties the store. */
void reopen_and_check(const char *path, const char *more);

/* Bytes that are not zero, by the seed. */
void fill(uint8_t *data, size_t length, unsigned seed);
/* Writes to the volume and to the model. */
void change(struct device *d, uint64_t offset, size_t length, unsigned seed);
void flush(struct device *d);
/* Fails the test unless the volume holds what the model does. */
void holds_model(struct device *d);

/* All LOG bytes of a log, which the caller frees. */
uint8_t *whole(const char *path);

#endif
