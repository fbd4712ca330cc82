/* SPDX-License-Identifier: BSD-3-Clause */
#include <unistd.h>

#include "tests/unit/passthrough_file.h"
#include "tests/unit/support.h"

void fill(void *buffer, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		((unsigned char *)buffer)[i] = (unsigned char)(seed + i * 7 + (i >> 8));
}

void need_root(const char *for_what)
{
	if (geteuid() != 0)
		skip_test("root is needed for %s", for_what);
}

void refused(int expected, const char *part, const char *text)
{
	struct device d;

	assert_int_equal(device_try(&d, &passthrough_backend, 0, "%s", text), expected);
	assert_int_equal(d.reported.errors, 1);
	assert_holds(d.reported.error, part);
}
