/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/s3_volume_device.h"
#include "tests/unit/s3_write_back.h"

uint8_t model[SIZE], there[SIZE];

const char *new_path(void)
{
	static char path[256];
	static int n;

	snprintf(path, sizeof path, "%s/write-back%d", scratch(), n++);
	return path;
}

int attempt(struct device *d, const char *volume, const char *path, const char *more)
{
	const char *usual = strstr(more, "batch-size=") ? "" : USUAL;

	if (!path)
		return device_try(d, &s3_backend, 0, COMMON "%svolume=%s;%s", usual, volume, more);
	return device_try(d, &s3_backend, 0, COMMON "%svolume=%s;write-back=%s;%s", usual, volume,
		path, more);
}

void reopen(struct device *d, const char *path, const char *more)
{
	if (attempt(d, "v", path, more))
		fail_msg("cannot open: %s", d->reported.error);
}

void create(struct device *d, const char *path, const char *more)
{
	char text[512];

	fake_store_reset();
	memset(model, 0, sizeof model);
	snprintf(text, sizeof text, "create=on;size=%u;write-back-size=%u;%s", SIZE, LOG, more);
	reopen(d, path, text);
}

void refused(const char *volume, const char *path, const char *more, const char *why)
{
	unsigned puts =
		fake_store_requests(S3_PUT, "/log/") + fake_store_requests(S3_PUT, "/super");
	struct device d;

	assert_int_not_equal(attempt(&d, volume, path, more), 0);
	assert_holds(d.reported.error, why);
	assert_int_equal(d.reported.errors, 1);
	assert_int_equal(
		fake_store_requests(S3_PUT, "/log/") + fake_store_requests(S3_PUT, "/super"), puts);
}

void crash_with_log(struct device *d)
{
	crash(d);
	fake_store_hold(S3_PUT, NULL);
}

void fill(uint8_t *data, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		data[i] = (uint8_t)((seed = seed * 1103515245 + 12345) >> 16) | 1;
}

void change(struct device *d, uint64_t offset, size_t length, unsigned seed)
{
	fill(model + offset, length, seed);
	assert_int_equal(device_write(d, model + offset, length, offset, 0), 0);
}

void flush(struct device *d)
{
	assert_int_equal(backend_flush(d->backend), 0);
}

void holds_model(struct device *d)
{
	assert_int_equal(device_read(d, there, SIZE, 0), 0);
	assert_memory_equal(there, model, SIZE);
}

void create_with_a_write(struct device *d, const char *path)
{
	create(d, path, "");
	fake_store_hold(S3_PUT, "/log/");
	change(d, 0, BLOCK, 1);
	flush(d);
}

void crash_after_a_write(const char *path)
{
	struct device d;

	create_with_a_write(&d, path);
	crash_with_log(&d);
}

void reopen_and_check(const char *path, const char *more)
{
	struct device d;

	reopen(&d, path, more);
	holds_model(&d);
	device_close(&d);
	fake_store_reset();
}

uint8_t *whole(const char *path)
{
	uint8_t *data = malloc(LOG);
	int fd = open(path, O_RDONLY);

	assert_non_null(data);
	assert_int_equal(pread(fd, data, LOG, 0), LOG);
	close(fd);
	return data;
}
