/* SPDX-License-Identifier: BSD-3-Clause */
/* The devices, all of them: their tables of parameters, and that the manual pages have every one.
 */
#include <stdio.h>
#include <string.h>

#include "backends/params.h"
#include "tests/unit/support.h"

/* By name, whatever order they were linked in. */
static const struct backend_ops *const all[] = {
	&null_backend, &passthrough_backend, &s3_backend, NULL};

static void test_all_are_there(void **state)
{
	const struct backend_ops *const *devices = backend_devices();

	(void)state;
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		assert_ptr_equal(devices[i], all[i]);
}

/* Defaults parse, the main parameter exists, help is one sentence. */
static void test_tables(void **state)
{
	(void)state;
	for (size_t i = 0; all[i]; i++) {
		bool main_found = false;

		for (const struct param *row = all[i]->params; row->name; row++) {
			assert_non_null(row->help);
			assert_true(row->help[strlen(row->help) - 1] != '.');
			main_found |= strcmp(row->name, all[i]->main_param) == 0;
			if (row->default_value) {
				struct params *p = params_new(all[i]);
				struct params_error error;

				if (params_set(p, row->name, row->default_value, &error))
					fail_msg("%s: %s", all[i]->name, error.text);
				params_free(p);
			}
		}
		assert_true(main_found);
	}
}

/* The page, in a static buffer. Tests run in the checkout's top directory. */
static const char *page(const char *path)
{
	static char text[1 << 17];
	FILE *f = fopen(path, "r");

	assert_non_null(f);
	text[fread(text, 1, sizeof text - 1, f)] = 0;
	fclose(f);
	return text;
}

/* Fails the test unless each parameter has an entry between the two. */
static void has_entries(const char *begin, const char *end, const struct backend_ops *device)
{
	for (const struct param *p = device->params; p->name; p++) {
		char item[64];
		const char *found;

		snprintf(item, sizeof item, ".It Cm %s Ns = Ns ", p->name);
		found = strstr(begin, item);
		if (!found || found > end)
			fail_msg("%s: no entry of %s=", device->name, p->name);
	}
}

static void test_manuals_of_the_plugins(void **state)
{
	(void)state;
	for (size_t i = 0; all[i]; i++) {
		char path[64];
		const char *text;

		snprintf(path, sizeof path, "plugins/nbdkit-userblk-%s-plugin.1", all[i]->name);
		text = page(path);
		has_entries(text, text + strlen(text), all[i]);
	}
}

/* It names the plugin's page for the parameters of the S3 device. */
static void test_manual_of_the_handlers(void **state)
{
	const char *text = page("tcmu-handlers/tcmu-userblk-handlers.8");

	(void)state;
	for (size_t i = 0; all[i]; i++) {
		char heading[64];
		const char *section, *end;

		snprintf(heading, sizeof heading, ".Ss userblk_%s\n", all[i]->name);
		section = strstr(text, heading);
		if (!section) {
			fail_msg("no section of %s", all[i]->name);
			return;
		}
		end = strstr(section + 1, "\n.S");
		assert_non_null(end);
		if (all[i] == &s3_backend) {
			const char *other = strstr(section, ".Xr nbdkit-userblk-s3-plugin 1");

			assert_true(other && other < end);
		} else {
			has_entries(section, end, all[i]);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_are_there),
		cmocka_unit_test(test_tables),
		cmocka_unit_test(test_manuals_of_the_plugins),
		cmocka_unit_test(test_manual_of_the_handlers),
	};

	return cmocka_run_group_tests_name("devices", tests, NULL, NULL);
}
