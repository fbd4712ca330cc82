/* SPDX-License-Identifier: BSD-3-Clause */
/* The parameter parser: values, sources, messages and help, on a table that has every type. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/passthrough.h"
#include "tests/unit/support.h"

struct config {
	uint64_t size;
	uint64_t count;
	bool fast;
	unsigned mode;
	char *label;
	char *file;
};

static const char *const modes[] = {"read", "write", NULL};

static const struct param table[] = {
	{.name = "size",
		.type = PARAM_SIZE,
		.offset = offsetof(struct config, size),
		.required = true,
		.min = 512,
		.max = 1u << 20,
		.metavar = "SIZE",
		.help = "how large"},
	{.name = "count",
		.alias = "number",
		.type = PARAM_UINT,
		.offset = offsetof(struct config, count),
		.default_value = "7",
		.min = 1,
		.help = "how many"},
	{.name = "fast",
		.type = PARAM_BOOL,
		.offset = offsetof(struct config, fast),
		.default_value = "on",
		.help = "how fast"},
	{.name = "mode",
		.type = PARAM_CHOICE,
		.offset = offsetof(struct config, mode),
		.default_value = "write",
		.choices = modes,
		.help = "what to do"},
	{.name = "label",
		.type = PARAM_STRING,
		.offset = offsetof(struct config, label),
		.metavar = "TEXT",
		.help = "what it is called"},
	{.name = "file",
		.type = PARAM_PATH,
		.offset = offsetof(struct config, file),
		.metavar = "FILE",
		.help = "where it is"},
	{.name = NULL},
};

static int check(const void *config, struct params_error *error)
{
	const struct config *c = config;

	if (c->count != 13)
		return 0;
	params_error_set(error, "count=13: unlucky; take 12");
	return -EINVAL;
}

static const struct backend_ops ops = {
	.name = "sample",
	.params = table,
	.main_param = "file",
	.config_size = sizeof(struct config),
	.check = check,
};

static struct params_error error;

/* The text's fate: 0 or an errno with the message in error. */
static int parse(struct params **p, const char *text, bool size_given)
{
	int r;

	*p = params_new(&ops);
	r = params_set_string(*p, text, &error);
	return r ? r : params_complete(*p, size_given, &error);
}

static void refused(const char *text, const char *message)
{
	struct params *p;

	assert_int_equal(parse(&p, text, false), -EINVAL);
	assert_string_equal(error.text, message);
	params_free(p);
}

static const struct config *accepted(struct params **p, const char *text)
{
	if (parse(p, text, false))
		fail_msg("%s: %s", text, error.text);
	return params_config(*p);
}

static void test_sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t value;
	} good[] = {
		{"512", 512},
		{"512b", 512},
		{"512B", 512},
		{"1k", 1024},
		{"1K", 1024},
		{"3s", 1536},
		{"3S", 1536},
		{"1m", 1 << 20},
		{"1048576", 1 << 20},
	};

	(void)state;
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		char text[64];
		struct params *p;

		snprintf(text, sizeof text, "size=%s", good[i].text);
		assert_int_equal(accepted(&p, text)->size, good[i].value);
		params_free(p);
	}
}

static void test_large_sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t value;
	} good[] = {
		{"1g", UINT64_C(1) << 30},
		{"1T", UINT64_C(1) << 40},
		{"1p", UINT64_C(1) << 50},
		{"7E", UINT64_C(7) << 60},
		{"9223372036854775807", INT64_MAX},
	};
	static const char *const too_large[] = {"8E", "9223372036854775808", "18446744073709551616",
		"99999999999999999999", "9007199254740992k"};
	static const struct param large[] = {{.name = "size",
						     .type = PARAM_SIZE,
						     .offset = offsetof(struct config, size),
						     .min = 4096},
		{.name = NULL}};
	static const struct backend_ops large_ops = {
		.name = "large", .params = large, .config_size = sizeof(struct config)};

	(void)state;
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		struct params *p = params_new(&large_ops);

		assert_int_equal(params_set(p, "size", good[i].text, &error), 0);
		assert_true(((const struct config *)params_config(p))->size == good[i].value);
		params_free(p);
	}
	for (size_t i = 0; i < sizeof too_large / sizeof too_large[0]; i++) {
		struct params *p = params_new(&large_ops);

		assert_int_equal(params_set(p, "size", too_large[i], &error), -EINVAL);
		assert_holds(error.text, "out of range; it may be 4K to 9223372036854775807");
		params_free(p);
	}

	struct params *p = params_new(&large_ops);

	assert_int_equal(params_set(p, "size", "1k", &error), -EINVAL);
	assert_holds(error.text, "size=1k: out of range; it must be at least 4K");
	params_free(p);
}

static void test_bad_numbers(void **state)
{
	static const char *const bad[] = {"", "-1", "+1", " ", "1x", "1kb", "k", "0x200", "1.5k"};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		char text[64], message[128];

		snprintf(text, sizeof text, "size=%s", bad[i]);
		snprintf(message, sizeof message,
			"size=%s: not a size; write digits and perhaps a suffix b, s (512), K, M, "
			"G, T, P or E",
			strcmp(bad[i], " ") ? bad[i] : "");
		refused(text, message);
	}
	refused("size=1k;count=1k", "count=1k: not a number; write decimal digits only");
	refused("size=511", "size=511: out of range; it may be 512 to 1M");
	refused("size=2m", "size=2m: out of range; it may be 512 to 1M");
	refused("size=1k;count=0", "count=0: out of range; it may be 1 to 18446744073709551615");
	refused("size=1k;count=18446744073709551616",
		"count=18446744073709551616: out of range; it may be 1 to 18446744073709551615");
}

static void test_bools_and_choices(void **state)
{
	static const char *const words[2][6] = {{"off", "false", "no", "0", "OFF", "False"},
		{"on", "true", "yes", "1", "ON", "Yes"}};
	struct params *p;

	(void)state;
	for (int on = 0; on < 2; on++)
		for (size_t i = 0; i < 6; i++) {
			char text[64];

			snprintf(text, sizeof text, "size=1k;fast=%s", words[on][i]);
			assert_int_equal(accepted(&p, text)->fast, on);
			params_free(p);
		}
	refused("size=1k;fast=perhaps", "fast=perhaps: neither on nor off; write on or off");
	assert_int_equal(accepted(&p, "size=1k;mode=read")->mode, 0);
	params_free(p);
	refused("size=1k;mode=erase", "mode=erase: no such choice; write mode=read|write");
	refused("size=1k;mode=Read", "mode=Read: no such choice; write mode=read|write");
}

static void test_defaults_and_required(void **state)
{
	struct params *p;
	const struct config *c = accepted(&p, "size=1k");

	(void)state;
	assert_int_equal(c->count, 7);
	assert_true(c->fast);
	assert_int_equal(c->mode, 1);
	assert_null(c->label);
	assert_true(params_given(p, "size"));
	assert_false(params_given(p, "count"));
	assert_false(params_given(p, "config"));
	assert_false(params_given(p, "nonsense"));
	assert_ptr_equal(params_ops(p), &ops);
	params_free(p);

	refused("", "size: missing; give size=SIZE, how large");
	assert_int_equal(parse(&p, "", true), 0); /* the framework tells the size */
	assert_int_equal(((const struct config *)params_config(p))->size, 0);
	params_free(p);
	refused("size=1k;count=13", "count=13: unlucky; take 12");
}

static void test_string_of_pairs(void **state)
{
	struct params *p;
	const struct config *c;

	(void)state;
	c = accepted(&p, "/dev/sda;size=1k; label = two words ;;count=9;");
	assert_string_equal(c->file, "/dev/sda");
	assert_string_equal(c->label, "two words");
	assert_int_equal(c->count, 9);
	params_free(p);
	/* A path that holds a '='; a value that does. */
	c = accepted(&p, "/dev/disk/by-id/a=b;size=1k;label=x=y");
	assert_string_equal(c->file, "/dev/disk/by-id/a=b");
	assert_string_equal(c->label, "x=y");
	params_free(p);
	refused("size=1k;/dev/sda", "/dev/sda: not key=value; write pairs with ';' between them");
	refused(";/dev/sda", "/dev/sda: not key=value; write pairs with ';' between them");
	refused("colour=red", "colour: unknown parameter of sample; there are size=, count= (or "
			      "number=), fast=, mode=, label=, file=, config=");
	refused("size=1k;size=1k", "size=1k: given twice; leave one out");
	refused("/dev/sda;file=/dev/sdb", "file=/dev/sdb: given twice; leave one out");
	refused("size=1k;label=", "label=: empty; give a TEXT");
	refused("size=1k;file=", "file=: empty; give a FILE");
}

static void test_words_of_a_command_line(void **state)
{
	char device[] = "passthrough", path[] = "/dev/disk/by-id/a=b", direct[] = "direct=off";
	char *argv[] = {device, direct, path, NULL};
	const struct passthrough_config *c;
	struct params *p;

	(void)state;
	p = params_from_argv(argv, &error);
	if (!p)
		fail_msg("%s", error.text);
	c = params_config(p);
	assert_string_equal(c->file, "/dev/disk/by-id/a=b");
	assert_false(c->direct);
	assert_string_equal(direct, "direct=off"); /* as before */
	params_free(p);

	char typo[] = "diret=off";

	argv[1] = typo;
	assert_null(params_from_argv(argv, &error));
	assert_holds(error.text, "diret: unknown parameter of passthrough");
}

static void test_paths_become_absolute(void **state)
{
	char directory[512], expected[600];
	struct params *p;

	(void)state;
	assert_non_null(getcwd(directory, sizeof directory));
	snprintf(expected, sizeof expected, "%s/some file", directory);
	assert_string_equal(accepted(&p, "size=1k;file=some file")->file, expected);
	params_free(p);
	assert_int_equal(chdir("/"), 0);
	assert_string_equal(accepted(&p, "size=1k;file=dev/sda")->file, "/dev/sda");
	assert_int_equal(chdir(directory), 0);
	params_free(p);
}

static const char *write_config(const char *text)
{
	const char *path = scratch_path("config");
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fputs(text, file);
	assert_int_equal(fclose(file), 0);
	return path;
}

/* A file that was written, with byte instead of each of. */
static void replace_in_file(const char *path, char of, char byte)
{
	FILE *file = fopen(path, "r+");
	int c;

	assert_non_null(file);
	while ((c = getc(file)) != EOF) {
		if (c == of) {
			fseek(file, -1, SEEK_CUR);
			putc(byte, file);
			fflush(file);
		}
	}
	assert_int_equal(fclose(file), 0);
}

static void test_config_file(void **state)
{
	const char *path = write_config("# a comment\n\n  size = 4k \r\ncount=5\nlabel=in file");
	char text[600];
	struct params *p;
	const struct config *c;

	(void)state;
	/* What is given directly wins, before and after the file. */
	for (int after = 0; after < 2; after++) {
		snprintf(
			text, sizeof text, after ? "config=%s;count=6" : "count=6;config=%s", path);
		c = accepted(&p, text);
		assert_int_equal(c->size, 4096);
		assert_int_equal(c->count, 6);
		assert_string_equal(c->label, "in file");
		assert_true(params_given(p, "config"));
		assert_true(params_given(p, "label"));
		params_free(p);
	}
	snprintf(text, sizeof text, "label=direct;config=%s", path);
	assert_string_equal(accepted(&p, text)->label, "direct");
	params_free(p);
	snprintf(text, sizeof text, "config=%s;config=%s", path, path);
	assert_int_equal(parse(&p, text, false), -EINVAL);
	assert_holds(error.text, ": given twice; leave one out");
	params_free(p);
}

/* Another program's name of a parameter: the same value, and messages name what was written. */
static void test_alias(void **state)
{
	char text[600];
	struct params *p;

	(void)state;
	assert_int_equal(accepted(&p, "size=1k;number=9")->count, 9);
	assert_true(params_given(p, "count"));
	assert_true(params_given(p, "number"));
	params_free(p);
	refused("size=1k;count=9;number=9",
		"number=9: given twice (count= is the same parameter); leave one out");
	refused("size=1k;number=9;count=9",
		"count=9: given twice (number= is the same parameter); leave one out");
	refused("size=1k;number=0", "number=0: out of range; it may be 1 to 18446744073709551615");
	/* Given directly, either name wins over either of the file. */
	snprintf(text, sizeof text, "size=1k;number=6;config=%s", write_config("count=5\n"));
	assert_int_equal(accepted(&p, text)->count, 6);
	params_free(p);
}

static void test_bad_config_file(void **state)
{
	static const struct {
		const char *text, *message;
	} bad[] = {
		{"size=1k\nsize=2k\n", "line 2: size=2k: given twice; leave one out"},
		{"\n#\nsize\n", "line 3: not key=value; write one pair per line"},
		{"config=/x\n", "line 1: config=/x: not allowed in a file; copy its lines here"},
		{"size=big\n", "line 1: size=big: not a size; "},
		/* Overridden on the command line, wrong all the same. */
		{"count=many\n", "line 1: count=many: not a number; "},
		{"colour=red\n", "line 1: colour: unknown parameter of sample; "},
	};
	char text[600], expected[800];
	struct params *p;

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		const char *path = write_config(bad[i].text);

		snprintf(text, sizeof text, "count=1;config=%s", path);
		snprintf(expected, sizeof expected, "config=%s: %s", path, bad[i].message);
		assert_int_equal(parse(&p, text, false), -EINVAL);
		assert_holds(error.text, expected);
		params_free(p);
	}
	/* What follows it would be left out. */
	snprintf(text, sizeof text, "count=1;config=%s", write_config("\nsize=1k@readonly=on\n"));
	replace_in_file(strstr(text, "config=") + strlen("config="), '@', 0);
	assert_int_equal(parse(&p, text, false), -EINVAL);
	assert_holds(
		error.text, ": line 2: contains a byte of value 0; write the file again as text");
	params_free(p);
	assert_int_equal(parse(&p, "config=/does/not/exist", false), -ENOENT);
	assert_string_equal(error.text, "config=/does/not/exist: No such file or directory; "
					"name a readable file of key=value lines");
	params_free(p);
	assert_int_equal(parse(&p, "config=/", false), -EISDIR);
	assert_holds(error.text, "config=/: Is a directory; ");
	params_free(p);
}

static void test_errors_are_one_line(void **state)
{
	char *value = malloc(4000);
	struct params *p = params_new(&ops);

	(void)state;
	memset(value, 'x', 3999);
	value[3999] = '\0';
	assert_int_equal(params_set(p, "size", value, &error), -EINVAL);
	assert_int_equal(strlen(error.text), sizeof error.text - 1);
	assert_int_equal(params_set(p, "size", "1\n2\x1b[0m", &error), -EINVAL);
	assert_holds(error.text, "size=1?2?[0m: not a size; ");
	params_free(p);
	free(value);
}

static void test_help(void **state)
{
	char *help = params_help(&ops);

	(void)state;
	assert_string_equal(help,
		"    size=<SIZE>              (required) how large.\n"
		"    count=<VALUE>            (default 7) how many; number= is the same.\n"
		"    fast=<on|off>            (default on) how fast.\n"
		"    mode=<read|write>        (default write) what to do.\n"
		"    label=<TEXT>             what it is called.\n"
		"    file=<FILE>              where it is.\n"
		"    config=<FILE>            read further key=value lines from FILE.\n");
	free(help);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_large_sizes),
		cmocka_unit_test(test_bad_numbers),
		cmocka_unit_test(test_bools_and_choices),
		cmocka_unit_test(test_defaults_and_required),
		cmocka_unit_test(test_string_of_pairs),
		cmocka_unit_test(test_alias),
		cmocka_unit_test(test_words_of_a_command_line),
		cmocka_unit_test(test_paths_become_absolute),
		cmocka_unit_test(test_config_file),
		cmocka_unit_test(test_bad_config_file),
		cmocka_unit_test(test_errors_are_one_line),
		cmocka_unit_test(test_help),
	};

	return cmocka_run_group_tests_name("params", tests, NULL, NULL);
}
