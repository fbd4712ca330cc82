/* SPDX-License-Identifier: BSD-3-Clause */
/* What the kernel shows of a disk of the nbd driver. */
#ifndef USERBLK_BUSE_SYSFS_H
#define USERBLK_BUSE_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first line of an attribute. False: there is none. */
bool sysfs_text(int index, const char *name, char *text, size_t size);
/* 0 also if there is none. */
uint64_t sysfs_number(int index, const char *name);

#endif
