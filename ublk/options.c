/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ublk/devices.h"
#include "ublk/options.h"

#define DEFAULT_DEPTH	128
#define DEFAULT_THREADS 16 /* as under nbdkit and tcmu-runner */
#define MAX_THREADS	256
#define MAX_QUEUES	4096		/* UBLK_MAX_NR_QUEUES */
#define MAX_NUMBER	((1 << 20) - 1) /* MINORBITS */

static const char *const mode_names[] = {"workers", "uring", NULL};
static const char *const zero_copy_names[] = {"auto", "on", "off", NULL};
static const char *const flush_names[] = {"strict", "weak", NULL};
static const char *const recovery_names[] = {"auto", "reissue", "fail", "fail-all", "none", NULL};

#define FOR(command) (1u << UBLK_COMMAND_##command)

/* What an option is, and the commands that take it. */
static const struct rule {
	const char *name;
	unsigned commands;
	const char *const *choices; /* NULL: a number from min to max, or a flag if max is 0 */
	long min, max;
	const char *help;
} rules[] = {
	{"mode", FOR(ADD) | FOR(REPLACE), mode_names, 0, 0,
		"workers: threads call the device; uring: the thread of the queue serves the "
		"requests "
		"that never wait (default: workers)"},
	{"threads", FOR(ADD) | FOR(REPLACE), NULL, 1, MAX_THREADS, "worker threads (default: 16)"},
	{"queues", FOR(ADD), NULL, 1, MAX_QUEUES, "hardware queues (default: one per CPU)"},
	{"depth", FOR(ADD), NULL, 1, UBLK_MAX_QUEUE_DEPTH, "requests per queue (default: 128)"},
	{"zero-copy", FOR(ADD), zero_copy_names, 0, 0,
		"in uring mode, transfer data directly from and to the client's pages (default: "
		"auto, if the kernel and the device support it)"},
	{"recovery", FOR(ADD), recovery_names, 0, 0,
		"when the server dies, requests wait for a new server (reissue), those in progress "
		"fail (fail), all fail until a new server starts (fail-all), or the disk is "
		"removed "
		"(none) (default: auto, which means none for s3, else reissue)"},
	{"flush", FOR(ADD) | FOR(REPLACE), flush_names, 0, 0,
		"weak: flushes and FUA keep the order of writes, but make nothing durable (unsafe) "
		"(default: strict)"},
	{"number", FOR(ADD), NULL, 0, MAX_NUMBER, "N of /dev/ublkbN (default: the first free one)"},
	{"foreground", FOR(ADD) | FOR(RECOVER) | FOR(REPLACE), NULL, 0, 0,
		"do not go to the background"},
	{"json", FOR(ADD) | FOR(RECOVER) | FOR(REPLACE) | FOR(LIST) | FOR(INFO) | FOR(FEATURES),
		NULL, 0, 0, "print JSON"},
	{"force", FOR(DELETE), NULL, 0, 0, "delete the disk even while it is in use"},
};
#define RULES (sizeof rules / sizeof rules[0])

static const struct {
	const char *name;
	enum ublk_command command;
	const char *usage; /* NULL: not for users */
} commands[] = {
	{"add", UBLK_COMMAND_ADD, "add DEVICE KEY=VALUE...       serve a new disk"},
	{"replace", UBLK_COMMAND_REPLACE,
		"replace N DEVICE KEY=VALUE... replace the disk's server by a new one"},
	{"recover", UBLK_COMMAND_RECOVER,
		"recover N                     serve a disk whose server died"},
	{"delete", UBLK_COMMAND_DELETE, "delete N                      remove the disk"},
	{"stop-for-server", UBLK_COMMAND_STOP, NULL},
	{"list", UBLK_COMMAND_LIST, "list                          list the disks"},
	{"info", UBLK_COMMAND_INFO, "info N                        show the properties of a disk"},
	{"features", UBLK_COMMAND_FEATURES,
		"features                      show what this kernel's ublk supports"},
};
#define COMMANDS (sizeof commands / sizeof commands[0])

void ublk_options_help(void)
{
	printf("Usage: userblk-ublk COMMAND [OPTION]...\n"
	       "Serves block devices as /dev/ublkbN, with Linux's ublk driver.\n\nCommands:\n");
	for (size_t i = 0; i < COMMANDS; i++)
		if (commands[i].usage)
			printf("    %s\n", commands[i].usage);
	printf("\nOptions:\n");
	for (size_t i = 0; i < RULES; i++) {
		printf("    --%s", rules[i].name);
		for (size_t j = 0; rules[i].choices && rules[i].choices[j]; j++)
			printf("%c%s", j ? '|' : '=', rules[i].choices[j]);
		printf("%s", rules[i].max ? "=N" : "");
		for (size_t j = 0, count = 0; j < COMMANDS; j++)
			if (rules[i].commands & 1u << commands[j].command)
				printf("%s%s", count++ ? ", " : " (", commands[j].name);
		printf(")\n        %s\n", rules[i].help);
	}
	printf("    --help\n        show this text\n    --version\n        show the version\n");
	ublk_devices_load_unless(NULL);
	params_print_devices();
}

int64_t ublk_options_disk(const char *text)
{
	static const char *const prefixes[] = {"/dev/ublkb", "ublkb"};
	char *end;
	long n;

	for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
		if (strncmp(text, prefixes[i], strlen(prefixes[i])) == 0) {
			text += strlen(prefixes[i]);
			break;
		}
	if (*text < '0' || *text > '9')
		return -1;
	n = strtol(text, &end, 10);
	return *end || n > MAX_NUMBER ? -1 : n;
}

/* The value of a rule: the index of a choice, or a number. False: error says why. */
static bool parse_value(
	const struct rule *rule, const char *text, long *value, struct params_error *error)
{
	char *end;

	if (rule->choices) {
		char all[128] = "";

		for (*value = 0; rule->choices[*value]; ++*value) {
			if (strcmp(text, rule->choices[*value]) == 0)
				return true;
			strncat(all, ", ", sizeof all - strlen(all) - 1);
			strncat(all, rule->choices[*value], sizeof all - strlen(all) - 1);
		}
		params_error_set(error, "--%s=%s: must be one of%s", rule->name, text, all + 1);
		return false;
	}
	errno = 0;
	*value = strtol(text, &end, 10);
	if (end == text || *end || errno || *value < rule->min || *value > rule->max) {
		params_error_set(error, "--%s=%s: must be a number from %ld to %ld", rule->name,
			text, rule->min, rule->max);
		return false;
	}
	return true;
}

static void store(struct ublk_options *o, const char *name, long value)
{
	if (strcmp(name, "mode") == 0)
		o->server.mode = (enum ublk_mode)value;
	else if (strcmp(name, "threads") == 0)
		o->server.threads = (unsigned)value;
	else if (strcmp(name, "queues") == 0)
		o->server.queues = (unsigned)value;
	else if (strcmp(name, "depth") == 0)
		o->server.depth = (unsigned)value;
	else if (strcmp(name, "zero-copy") == 0)
		o->server.zero_copy = (enum ublk_zero_copy)value;
	else if (strcmp(name, "recovery") == 0)
		o->server.recovery = (enum ublk_recovery)value;
	else if (strcmp(name, "flush") == 0)
		o->server.flush = (enum ublk_flush)value;
	else if (strcmp(name, "number") == 0)
		o->server.id = value;
	else if (strcmp(name, "foreground") == 0)
		o->foreground = true;
	else if (strcmp(name, "json") == 0)
		o->json = true;
	else if (strcmp(name, "force") == 0)
		o->force = true;
}

static bool parse_command(const char *word, struct ublk_options *o, struct params_error *error)
{
	if (!word) {
		params_error_set(error, "no command; see userblk-ublk --help");
		return false;
	}
	for (size_t i = 0; i < COMMANDS; i++)
		if (strcmp(word, commands[i].name) == 0) {
			o->command = commands[i].command;
			return true;
		}
	params_error_set(error, "%s: no such command; see userblk-ublk --help", word);
	return false;
}

/*
 * A disk that continues after the death of its server must not lose acknowledged data, because no
 * client would notice.
 */
static int choose_recovery(struct ublk_options *o, struct params_error *error)
{
	const struct backend_kind kind = backend_kind(params_ops(o->params));
	enum ublk_recovery *recovery = &o->server.recovery;

	if (*recovery == UBLK_RECOVERY_AUTO)
		*recovery = kind.has_sessions ? UBLK_RECOVERY_NONE : UBLK_RECOVERY_REISSUE;
	if (!kind.has_sessions ||
		(o->command == UBLK_COMMAND_ADD && *recovery == UBLK_RECOVERY_NONE))
		return 0;
	if (o->command == UBLK_COMMAND_ADD)
		params_error_set(error,
			"--recovery=%s: the %s device holds writes in memory, which the disk would "
			"lose; use none",
			recovery_names[*recovery], kind.name);
	else
		params_error_set(error,
			"%s: holds writes in memory, which a replaced disk would lose; delete the "
			"disk and add it again",
			kind.name);
	params_free(o->params);
	o->params = NULL;
	return -EINVAL;
}

static int parse_arguments(char **argv, struct ublk_options *o, struct params_error *error)
{
	bool names_disk = FOR(REPLACE) & 1u << o->command || FOR(RECOVER) & 1u << o->command ||
			  FOR(DELETE) & 1u << o->command || FOR(STOP) & 1u << o->command ||
			  FOR(INFO) & 1u << o->command;

	if (names_disk) {
		o->server.id = *argv ? ublk_options_disk(*argv) : -1;
		if (o->server.id < 0) {
			params_error_set(error, "%s: %s; give the N of /dev/ublkbN",
				*argv ? *argv : "N", *argv ? "no disk of ublk" : "missing");
			return -EINVAL;
		}
		argv++;
	}
	if (o->command == UBLK_COMMAND_STOP && *argv)
		o->cookie = strtoull(*argv++, NULL, 16);
	if (o->command == UBLK_COMMAND_STOP && *argv)
		o->parent = (pid_t)strtol(*argv++, NULL, 10);
	if (o->command == UBLK_COMMAND_ADD || o->command == UBLK_COMMAND_REPLACE) {
		ublk_devices_load_unless(*argv);
		o->params = params_from_argv(argv, error);
		return o->params ? choose_recovery(o, error) : -EINVAL;
	}
	if (*argv) {
		params_error_set(error, "%s: too many arguments; see userblk-ublk --help", *argv);
		return -EINVAL;
	}
	return 0;
}

int ublk_options_parse(int argc, char **argv, struct ublk_options *o, struct params_error *error)
{
	struct option table[RULES + 3] = {{0}};
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int got, index;

	*o = (struct ublk_options){
		.server = {.id = -1,
			.queues = cpus > 0 ? (unsigned)cpus : 1,
			.depth = DEFAULT_DEPTH,
			.threads = DEFAULT_THREADS},
	};
	for (size_t i = 0; i < RULES; i++)
		table[i] = (struct option){rules[i].name,
			rules[i].choices || rules[i].max ? required_argument : no_argument, NULL,
			'o'};
	table[RULES] = (struct option){"help", no_argument, NULL, 'h'};
	table[RULES + 1] = (struct option){"version", no_argument, NULL, 'V'};

	if (argc > 1 && argv[1][0] != '-') {
		if (!parse_command(argv[1], o, error))
			return -EINVAL;
		argv++;
		argc--;
	} else {
		o->command = UBLK_COMMAND_HELP; /* only --help and --version stand alone */
	}
	opterr = 0;
	optind = 0; /* again */
	while ((got = getopt_long(argc, argv, ":", table, &index)) != -1) {
		const struct rule *rule;
		long value = 1;

		if (got == 'h' || got == 'V') {
			o->command = got == 'h' ? UBLK_COMMAND_HELP : UBLK_COMMAND_VERSION;
			return 0;
		}
		if (got != 'o') {
			params_error_set(error, "%s: %s; see userblk-ublk --help", argv[optind - 1],
				got == ':' ? "needs a value" : "no such option");
			return -EINVAL;
		}
		rule = &rules[index];
		if (!(rule->commands & 1u << o->command)) {
			params_error_set(error, "--%s: not an option of this command; leave it out",
				rule->name);
			return -EINVAL;
		}
		if (table[index].has_arg && !parse_value(rule, optarg, &value, error))
			return -EINVAL;
		store(o, rule->name, value);
	}
	if (o->command == UBLK_COMMAND_HELP)
		return parse_command(NULL, o, error) ? 0 : -EINVAL;
	return parse_arguments(argv + optind, o, error);
}
