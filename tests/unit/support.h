/* SPDX-License-Identifier: BSD-3-Clause */
/* What the unit tests share: cmocka's headers in their order, devices opened from text, scratch
 * files. */
#ifndef USERBLK_TESTS_UNIT_SUPPORT_H
#define USERBLK_TESTS_UNIT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backends/device.h"

/* What a device reported to its host. */
struct reported {
	int errors;
	char error[1024]; /* the last one */
	char debug[1024];
};

struct device {
	struct params *params;
	struct backend *backend;
	struct reported reported;
};

/*
 * Opens ops with "key=value;..." (printf). size: what the framework demands.
 * Returns what backend_open() did, or the parameters' error (reported.error has it).
 */
int device_try(struct device *d, const struct backend_ops *ops, uint64_t size, const char *format,
	...) __attribute__((format(printf, 4, 5)));
/* The same for the clients of a process that has ended. */
int device_try_again(struct device *d, const struct backend_ops *ops, uint64_t size,
	const char *format, ...) __attribute__((format(printf, 4, 5)));
/* As device_try() of size 0, and fails the test when it cannot be opened. */
void device_open(struct device *d, const struct backend_ops *ops, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void device_close(struct device *d);

/* The value of a counter; fails the test when there is none of that name. */
uint64_t device_counter(struct device *d, const char *name);

/* Reads or writes one buffer; what backend_readv() and backend_writev() return. */
int device_read(struct device *d, void *buffer, size_t length, uint64_t offset);
int device_write(
	struct device *d, const void *buffer, size_t length, uint64_t offset, unsigned flags);

/* Fails the test unless text holds part. */
void assert_holds(const char *text, const char *part);

/* A scratch directory on a disk's file system (TMPDIR or /tmp), made at first use, removed at exit.
 */
const char *scratch(void);
/* "SCRATCH/name" in a static buffer for the next few calls. */
const char *scratch_path(const char *name);
/* Creates "SCRATCH/name" with size bytes (sparse) and returns its path. */
const char *scratch_file(const char *name, uint64_t size);

/* Runs argv (ends with NULL) with output to /dev/null; its exit status, -1 when it could not run.
 */
int run(const char *const *argv);

/*
 * Ends the running test as skipped, in a line that the summary of `make test` lists. With CI=true
 * only what the kernel lacks may be skipped ("kernel: ..."); anything else fails the test.
 */
__attribute__((noreturn, format(printf, 1, 2))) void skip_test(const char *why, ...);

/* Attaches a loop device with that sector size to file: its path in device. Skips the test if it
 * cannot. */
void loop_attach(const char *file, unsigned sector, char *device, size_t room);
void loop_detach(const char *device);

#endif
