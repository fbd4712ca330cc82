/* SPDX-License-Identifier: BSD-3-Clause */
/* Helpers of the tests of the passthrough device on real files. */
#ifndef USERBLK_TESTS_UNIT_PASSTHROUGH_FILE_H
#define USERBLK_TESTS_UNIT_PASSTHROUGH_FILE_H

#include <stddef.h>

#include "tests/unit/support.h"

#define KIB  1024u
#define MIB  (1u << 20)
#define SIZE (3 * MIB) /* of the files and disks of most tests */

/* Bytes that differ with the seed and with their place. */
void fill(void *buffer, size_t length, unsigned seed);

/* Skips the test without root. */
void need_root(const char *for_what);

/* Fails the test unless opening text fails with that negative errno and part in its one message. */
void refused(int expected, const char *part, const char *text);

#endif
