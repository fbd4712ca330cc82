/* SPDX-License-Identifier: BSD-3-Clause */
/* A newer program has written the write-back log, or what is in it: it is not taken for damage. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/internal.h"
#include "tests/unit/s3_write_back.h"

#define ENTRIES 3
/* In the header of an object. */
#define VERSION_AT 8
#define FLAGS_AT   10
#define CRC_AT	   20

static void put(const char *path, const uint8_t *data)
{
	int fd = open(path, O_WRONLY);

	assert_int_equal(pwrite(fd, data, LOG, 0), LOG);
	close(fd);
}

/* Where the entry of that number is. */
static size_t entry_in(const uint8_t *data, uint64_t number, struct s3_object_header *h)
{
	for (size_t at = RING; at < LOG; at += BLOCK)
		if (s3_header_decode(data + at, LOG - at, NULL, h) == S3_GOOD &&
			h->cache_record == number)
			return at;
	fail_msg("there is no such entry");
	return 0;
}

/* Flushes some writes, which are only in the log, and crashes. */
static void crash_after_writes(const char *path)
{
	struct device d;

	create(&d, path, "");
	fake_store_hold(S3_PUT, "/log/");
	for (unsigned i = 0; i < ENTRIES; i++) {
		change(&d, i * BLOCK, BLOCK, i);
		flush(&d);
	}
	crash_with_log(&d);
}

/* As it is, and whatever may be lost. */
static void is_refused(const char *path, const char *why)
{
	uint8_t *before = whole(path), *after;

	refused("v", path, "", why);
	refused("v", path, "write-back-discard=on", why);
	after = whole(path);
	assert_memory_equal(after, before, LOG);
	free(after);
	free(before);
}

static void test_a_newer_state(void **state)
{
	const char *path = new_path();
	uint8_t *good, *data;

	(void)state;
	crash_after_writes(path);
	good = whole(path);
	for (unsigned i = 0; i < 2; i++) {
		data = whole(path);
		data[(1 + i) * BLOCK + VERSION_AT]++;
		put(path, data);
		is_refused(path, "has a newer format; use a newer userblk");
		put(path, good);
		free(data);
	}
	free(good);
	reopen_and_check(path, "");
}

static void test_newer_entries(void **state)
{
	const char *path = new_path();
	uint8_t *good, *data;

	(void)state;
	crash_after_writes(path);
	good = whole(path);
	for (unsigned number = 1; number <= ENTRIES; number++) {
		struct s3_object_header h;
		size_t at;

		data = whole(path);
		at = entry_in(data, number, &h);
		data[at + VERSION_AT]++;
		put(path, data);
		is_refused(path, "has a newer format; use a newer userblk");
		data[at + VERSION_AT]--;
		data[at + FLAGS_AT + 1] = 0x80;
		s3_le_store(
			data + at + CRC_AT, s3_crc_around(data + at, h.header_bytes, CRC_AT), 4);
		put(path, data);
		is_refused(path, "uses a feature that this userblk does not know");
		put(path, good);
		free(data);
	}
	free(good);
	reopen_and_check(path, "");
}

/* What a user stores may look like the log of a newer program that is on this volume. */
static void test_data_that_look_like_newer_entries(void **state)
{
	const char *path = new_path();
	struct s3_object_header h;
	uint8_t *data;
	struct device d;
	size_t at;

	(void)state;
	crash_after_writes(path);
	data = whole(path);
	at = entry_in(data, 1, &h);
	data[at + VERSION_AT]++;
	data[at + 56] ^= 1; /* the instance of its writer */
	path = new_path();
	create(&d, path, "");
	fake_store_hold(S3_PUT, "/log/");
	for (unsigned i = 0; i < ENTRIES; i++) {
		memcpy(model + i * BLOCK, data + at, BLOCK);
		assert_int_equal(device_write(&d, data + at, BLOCK, i * BLOCK, 0), 0);
		flush(&d);
	}
	crash_with_log(&d);
	free(data);
	/* The last entry is torn, so that all of the ring is looked at. */
	data = whole(path);
	at = entry_in(data, ENTRIES, &h);
	data[at + BLOCK] ^= 1;
	memset(model + (ENTRIES - 1) * BLOCK, 0, BLOCK);
	put(path, data);
	free(data);
	reopen_and_check(path, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_newer_state),
		cmocka_unit_test(test_newer_entries),
		cmocka_unit_test(test_data_that_look_like_newer_entries),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
