/* SPDX-License-Identifier: BSD-3-Clause */
/* What a ublk disk was added with. The file is the test's. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/support.h"
#include "ublk/record.h"

FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);

static char text[64];
static size_t length;

FILE *__wrap_fopen64(const char *path, const char *mode)
{
	if (strncmp(path, UBLK_RECORD_DIRECTORY, strlen(UBLK_RECORD_DIRECTORY)) != 0)
		return __real_fopen64(path, mode);
	return fmemopen(text, length, "r");
}

/* Reads what is there with the cookie that is recorded. */
static int read_record(uint64_t cookie, struct ublk_record *record)
{
	length = (size_t)snprintf(text, sizeof text, "%016llx%c/%cadd%cnull%csize=1M",
			 (unsigned long long)cookie, 0, 0, 0, 0) +
		 1;
	return ublk_record_read(7, cookie, record);
}

static void test_a_record_is_read(void **state)
{
	struct ublk_record record;

	(void)state;
	assert_int_equal(read_record(0x1234567800000001u, &record), 0);
	assert_string_equal(record.directory, "/");
	assert_int_equal(record.count, 3);
	assert_string_equal(record.argv[2], "size=1M");
	ublk_record_free(&record);
	assert_int_equal(ublk_record_read(7, 0x1234567800000002u, &record), -ENOENT);
}

/* Other programs give all their disks the same: a record of one would serve another one. */
static void test_a_mark_of_other_programs_is_no_mark(void **state)
{
	static const uint64_t cookies[] = {0, 1, 0xffffffff};
	struct ublk_record record;

	(void)state;
	for (size_t i = 0; i < sizeof cookies / sizeof cookies[0]; i++) {
		assert_int_equal(read_record(cookies[i], &record), -ENOENT);
		assert_null(record.argv);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_record_is_read),
		cmocka_unit_test(test_a_mark_of_other_programs_is_no_mark),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
