/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/client/names.h"
#include "backends/s3/core/config.h"
#include "backends/s3/format/format.h"
#include "userblk-s3/options.h"

/* What Amazon asks for 1000 requests to S3 Standard in us-east-1, in USD. */
#define PRICE_PUT 0.005
#define PRICE_GET 0.0004

static const struct {
	const char *first, *second; /* words; second may be NULL */
	enum command command;
	int operands;
	const char *usage, *help;
} commands[] = {
	{"create", NULL, COMMAND_CREATE, 0, "create", "create a volume of size= bytes"},
	{"info", NULL, COMMAND_INFO, 0, "info", "show its properties and contents"},
	{"list", NULL, COMMAND_LIST, 0, "list", "list the volumes below prefix="},
	{"check", NULL, COMMAND_CHECK, 0, "check",
		"verify that all its data is in the store and undamaged"},
	{"snapshot", "create", COMMAND_SNAPSHOT_CREATE, 1, "snapshot create SNAPSHOT",
		"keep the present contents under the name SNAPSHOT"},
	{"snapshot", "list", COMMAND_SNAPSHOT_LIST, 0, "snapshot list", "list the snapshots"},
	{"snapshot", "delete", COMMAND_SNAPSHOT_DELETE, 1, "snapshot delete SNAPSHOT",
		"delete the snapshot"},
	{"snapshot", "rollback", COMMAND_SNAPSHOT_ROLLBACK, 1, "snapshot rollback SNAPSHOT",
		"restore the volume to its newest snapshot, SNAPSHOT"},
	{"clone", NULL, COMMAND_CLONE, 2, "clone SNAPSHOT NEW",
		"create the volume NEW from the snapshot"},
	{"resize", NULL, COMMAND_RESIZE, 0, "resize", "change its size to size="},
	{"rekey", NULL, COMMAND_REKEY, 0, "rekey",
		"change its encryption key; needs --new-encryption-key"},
	{"gc", NULL, COMMAND_GC, 0, "gc", "collect all garbage now"},
	{"delete", NULL, COMMAND_DELETE, 0, "delete",
		"delete it with all its data; needs --confirm"},
	{"stats", NULL, COMMAND_STATS, 0, "stats", "show the counters of its server"},
	{"abort", NULL, COMMAND_ABORT, 0, "abort",
		"make its server stop without waiting for uploads; needs --confirm"},
};
#define COMMANDS (sizeof commands / sizeof commands[0])

#define FOR(command) (1u << COMMAND_##command)
#define WRITERS                                                                                    \
	(FOR(SNAPSHOT_CREATE) | FOR(SNAPSHOT_DELETE) | FOR(SNAPSHOT_ROLLBACK) | FOR(RESIZE) |      \
		FOR(REKEY) | FOR(GC) | FOR(DELETE))

enum choice {
	OPTION_JSON,
	OPTION_TAKE_OVER,
	OPTION_CONFIRM,
	OPTION_TO_PREFIX,
	OPTION_NEW_KEY,
	OPTION_PROMETHEUS,
	OPTION_PRICE_PUT,
	OPTION_PRICE_GET,
	OPTIONS,
};

static const struct {
	const char *name, *metavar; /* metavar NULL: takes no value */
	unsigned commands;
	const char *help;
} rules[OPTIONS] = {
	[OPTION_JSON] = {"json", NULL, ~0u, "print JSON"},
	[OPTION_TAKE_OVER] = {"take-over", NULL, WRITERS,
		"open the volume although its last writer did not close it; fences a live writer"},
	[OPTION_CONFIRM] = {"confirm", "NAME", FOR(DELETE) | FOR(ABORT),
		"repeat the name of the volume"},
	[OPTION_TO_PREFIX] = {"to-prefix", "KEY", FOR(CLONE),
		"prefix= of the clone (default: that of its parent)"},
	[OPTION_NEW_KEY] = {"new-encryption-key", "FILE", FOR(REKEY),
		"file with the 32 bytes of the key that opens the volume from now on"},
	[OPTION_PROMETHEUS] = {"prometheus", NULL, FOR(STATS), "print Prometheus' text format"},
	[OPTION_PRICE_PUT] = {"price-put", "PRICE", FOR(STATS),
		"price of 1000 requests that write or list (default: 0.005, USD at Amazon S3 "
		"Standard in us-east-1)"},
	[OPTION_PRICE_GET] = {"price-get", "PRICE", FOR(STATS),
		"price of 1000 requests that read (default: 0.0004, from the same price list)"},
};

/* Which take it. */
static void print_commands(unsigned set)
{
	const char *separator = " (";

	for (size_t i = 0; i < COMMANDS; i++)
		if (set & 1u << commands[i].command) {
			printf("%s%s%s%s", separator, commands[i].first,
				commands[i].second ? " " : "",
				commands[i].second ? commands[i].second : "");
			separator = ", ";
		}
	putchar(')');
}

void options_help(void)
{
	char *help = params_help(&s3_backend);

	printf("Usage: userblk-s3 COMMAND [OPTION]... [[volume=]VOLUME] KEY=VALUE...\n"
	       "Manages volumes of userblk's S3 device: through control= if a server has the\n"
	       "volume open, otherwise directly in the store.\n\nCommands:\n");
	for (size_t i = 0; i < COMMANDS; i++)
		printf("    %-20s%s%s\n", commands[i].usage,
			strlen(commands[i].usage) < 20 ? "" : "\n                        ",
			commands[i].help);
	printf("\nOptions:\n");
	for (size_t i = 0; i < OPTIONS; i++) {
		printf("    --%s%s%s", rules[i].name, rules[i].metavar ? "=" : "",
			rules[i].metavar ? rules[i].metavar : "");
		if (rules[i].commands == ~0u)
			printf(" (all)");
		else
			print_commands(rules[i].commands);
		printf("\n        %s\n", rules[i].help);
	}
	printf("    --help\n        show this text\n    --version\n        show the version\n");
	printf("\nParameters of the device:\n%s", help);
	free(help);
}

/* Finds the command in front of argv. How many words it takes, 0: error says why. */
static int parse_command(int argc, char **argv, struct options *o, struct params_error *error)
{
	const char *first = argc > 1 ? argv[1] : NULL, *second = argc > 2 ? argv[2] : NULL;
	bool known = false;

	if (!first) {
		params_error_set(error, "no command; see userblk-s3 --help");
		return 0;
	}
	for (size_t i = 0; i < COMMANDS; i++) {
		int words = commands[i].second ? 2 : 1;

		if (strcmp(first, commands[i].first) != 0)
			continue;
		known = true;
		if (commands[i].second && (!second || strcmp(second, commands[i].second) != 0))
			continue;
		o->command = commands[i].command;
		for (int n = 0; n < commands[i].operands; n++, words++) {
			/* A name has no '=': that is a parameter. */
			if (words + 1 >= argc || argv[words + 1][0] == '-' ||
				strchr(argv[words + 1], '=')) {
				params_error_set(error, "%s: an operand is missing; write: %s",
					first, commands[i].usage);
				return 0;
			}
			o->operands[n] = argv[words + 1];
		}
		return words;
	}
	if (known)
		params_error_set(
			error, "%s: write create, list, delete or rollback after it", first);
	else
		params_error_set(error, "%s: no such command; see userblk-s3 --help", first);
	return 0;
}

static int parse_price(
	const char *name, const char *text, double *price, struct params_error *error)
{
	char *end;

	*price = strtod(text, &end);
	if (end != text && !*end && *price >= 0 && *price < 1e6)
		return 0;
	params_error_set(error, "--%s=%s: not a price; write a number such as 0.005", name, text);
	return -EINVAL;
}

static int store(struct options *o, enum choice option, struct params_error *error)
{
	switch (option) {
	case OPTION_JSON:
		o->json = true;
		break;
	case OPTION_TAKE_OVER:
		o->take_over = true;
		break;
	case OPTION_CONFIRM:
		o->confirm = optarg;
		break;
	case OPTION_TO_PREFIX:
		o->to_prefix = optarg;
		break;
	case OPTION_NEW_KEY:
		o->new_key = optarg;
		break;
	case OPTION_PROMETHEUS:
		o->prometheus = true;
		break;
	case OPTION_PRICE_PUT:
		return parse_price("price-put", optarg, &o->price_put, error);
	case OPTION_PRICE_GET:
		return parse_price("price-get", optarg, &o->price_get, error);
	case OPTIONS:
		break;
	}
	return 0;
}

/* Does the word name the volume? */
static bool is_volume(const char *word)
{
	return !strchr(word, '=') || strncmp(word, "volume=", 7) == 0;
}

/* The parameters: all that is left on the command line. */
static int parse_parameters(char **argv, struct options *o, struct params_error *error)
{
	char device[] = "s3", all[] = "volume=all";
	char **line;
	size_t n = 0;

	while (argv[n])
		n++;
	line = calloc(n + 3, sizeof *line);
	if (!line)
		abort();
	n = 0;
	line[n++] = device;
	/* A list is of all volumes. */
	if (o->command == COMMAND_LIST)
		line[n++] = all;
	for (; *argv; argv++)
		if (o->command != COMMAND_LIST || !is_volume(*argv))
			line[n++] = *argv;
	o->params = params_from_argv(line, error);
	free(line);
	if (!o->params)
		return -EINVAL;
	o->config = *(const struct s3_config *)params_config(o->params);
	return 0;
}

static int refuse_name(
	const char *what, const char *of, const char *name, struct params_error *error)
{
	params_error_set(error,
		"%s=%s: not a valid name for a %s; use 1 to 63 of a-z, 0-9, '.', '_' and '-', "
		"beginning with a letter or digit",
		what, name, of);
	return -EINVAL;
}

/* Names that are made or looked for, before the volume is opened for them. */
static int check_operands(const struct options *o, struct params_error *error)
{
	const char *const *names = o->operands;

	if (names[0] && !s3_name_valid(names[0]))
		return refuse_name("snapshot", "snapshot", names[0], error);
	if (names[1] && !s3_name_valid(names[1]))
		return refuse_name("clone", "volume", names[1], error);
	if (o->to_prefix && !s3_key_valid(o->to_prefix)) {
		params_error_set(error,
			"--to-prefix=%s: not a valid prefix of keys; use a-z, 0-9, '.', '_', '-' "
			"and single '/' between them",
			o->to_prefix);
		return -EINVAL;
	}
	return 0;
}

/* What the commands want besides. */
static int check(const struct options *o, struct params_error *error)
{
	const char *volume = o->config.volume;

	if (FOR(DELETE) & 1u << o->command || FOR(ABORT) & 1u << o->command) {
		if (!o->confirm) {
			params_error_set(
				error, "--confirm: missing; repeat the name: --confirm=%s", volume);
			return -EINVAL;
		}
		if (strcmp(o->confirm, volume) != 0) {
			params_error_set(
				error, "--confirm=%s: the volume is %s", o->confirm, volume);
			return -EINVAL;
		}
	}
	if (check_operands(o, error))
		return -EINVAL;
	if ((o->command == COMMAND_CREATE || o->command == COMMAND_RESIZE) && !o->config.size) {
		params_error_set(error, "size: missing; give size=SIZE, size of the volume");
		return -EINVAL;
	}
	if (o->command == COMMAND_REKEY && !o->new_key) {
		params_error_set(error,
			"--new-encryption-key: missing; give --new-encryption-key=FILE, the file "
			"with the new key");
		return -EINVAL;
	}
	if ((o->command == COMMAND_STATS || o->command == COMMAND_ABORT) && !o->config.control) {
		params_error_set(
			error, "control: missing; give control=PATH, that of the volume's server");
		return -EINVAL;
	}
	if (o->json && o->prometheus) {
		params_error_set(error, "--prometheus: not together with --json; leave one out");
		return -EINVAL;
	}
	return 0;
}

int options_parse(int argc, char **argv, struct options *o, struct params_error *error)
{
	struct option table[OPTIONS + 3] = {{0}};
	int got, index, words, r;

	*o = (struct options){.price_put = PRICE_PUT, .price_get = PRICE_GET};
	for (int i = 0; i < OPTIONS; i++)
		table[i] = (struct option){rules[i].name,
			rules[i].metavar ? required_argument : no_argument, NULL, 'o'};
	table[OPTIONS] = (struct option){"help", no_argument, NULL, 'h'};
	table[OPTIONS + 1] = (struct option){"version", no_argument, NULL, 'V'};

	if (argc > 1 && argv[1][0] != '-') {
		words = parse_command(argc, argv, o, error);
		if (!words)
			return -EINVAL;
		argv += words;
		argc -= words;
	} else {
		o->command = COMMAND_HELP; /* only --help and --version stand alone */
	}
	opterr = 0;
	optind = 0; /* again */
	while ((got = getopt_long(argc, argv, ":", table, &index)) != -1) {
		if (got == 'h' || got == 'V') {
			o->command = got == 'h' ? COMMAND_HELP : COMMAND_VERSION;
			return 0;
		}
		if (got != 'o') {
			params_error_set(error, "%s: %s; see userblk-s3 --help", argv[optind - 1],
				got == ':' ? "needs a value" : "no such option");
			return -EINVAL;
		}
		if (!(rules[index].commands & 1u << o->command)) {
			params_error_set(error, "--%s: not an option of this command; leave it out",
				rules[index].name);
			return -EINVAL;
		}
		if (store(o, (enum choice)index, error) < 0)
			return -EINVAL;
	}
	if (o->command == COMMAND_HELP)
		return parse_command(0, NULL, o, error) ? 0 : -EINVAL;
	r = parse_parameters(argv + optind, o, error);
	if (r)
		return r;
	r = check(o, error);
	if (r)
		params_free(o->params);
	return r;
}
