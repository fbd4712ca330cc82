/* SPDX-License-Identifier: BSD-3-Clause */
#include <err.h>
#include <getopt.h>
#include <string.h>

#include "command.h"
#include "crew.h"
#include "ops.h"
#include "programs/exit_codes.h"

const char command_name[] = NAME;

static const char usage[] =
	"Usage: " NAME " [OPTION]... --op OPERATION DIRECTORY\n"
	"Repeat an operation on files, in workers that begin together.\n"
	"\n"
	"      --op OPERATION    operation to repeat, from the list\n"
	"      --workers N       N processes, each on a CPU of its own (default 1)\n"
	"      --threads         workers are threads of one process instead\n"
	"      --unpinned        workers run on any CPU\n"
	"      --seconds S       end after this time (default 30); 0: after --count\n"
	"      --count N         end after N operations of each worker\n"
	"      --files N         files of each worker, or names in a directory\n"
	"      --size BYTES      size of a file of data\n"
	"      --fan-out N       names in each directory of a tree of 5 levels (default 8)\n"
	"      --phase PHASE     all: make the files and run (default); prepare: make the\n"
	"                        files only; run: use those that prepare has made\n"
	"      --interval S      seconds per interval of the series (default 1)\n"
	"      --seed N          seed of data and random choices (default 1)\n"
	"      --json FILE       write the results to FILE\n"
	"      --help            show this text\n"
	"      --version         show the version\n"
	"\n"
	"Operations:\n";

static void print_help(void)
{
	fputs(usage, stdout);
	for (unsigned i = 0; i < operation_count; i++)
		printf("    %-10s %s\n", operations[i].name, operations[i].what);
	printf("\nSee " NAME "(1).\n");
}

static const struct operation *find_operation(const char *name)
{
	for (unsigned i = 0; i < operation_count; i++)
		if (strcmp(operations[i].name, name) == 0)
			return &operations[i];
	warnx("--op %s: no such operation; see " NAME " --help", name);
	return NULL;
}

static const char *const phases[] = {
	[PHASE_ALL] = "all", [PHASE_PREPARE] = "prepare", [PHASE_RUN] = "run"};

/* What belongs together, and the directory. */
static bool check(struct options *o, const char *directory, bool files_given, bool size_given)
{
	const struct operation *operation = o->operation;

	if (!operation)
		warnx("--op is missing; name an operation, see " NAME " --help");
	else if (files_given && operation->files == 0)
		warnx("--files: %s has none; leave it out", operation->name);
	else if (size_given && operation->size == 0)
		warnx("--size: %s has no data; leave it out", operation->name);
	else if (o->common.seconds <= 0 && o->common.count == 0)
		warnx("--seconds 0: needs --count; add it");
	else
		return take_place(directory, "ops", o->phase == PHASE_RUN, "prepare", o->top);
	return false;
}

/* -1: go on; else an exit status. */
static int parse(int argc, char **argv, struct options *o)
{
	enum {
		OPTION_OP = 256,
		OPTION_WORKERS,
		OPTION_THREADS,
		OPTION_UNPINNED,
		OPTION_FILES,
		OPTION_SIZE,
		OPTION_FAN_OUT,
		OPTION_PHASE,
		OPTION_HELP,
		OPTION_VERSION,
	};
	static const struct option table[] = {
		{"op", required_argument, NULL, OPTION_OP},
		{"workers", required_argument, NULL, OPTION_WORKERS},
		{"threads", no_argument, NULL, OPTION_THREADS},
		{"unpinned", no_argument, NULL, OPTION_UNPINNED},
		{"files", required_argument, NULL, OPTION_FILES},
		{"size", required_argument, NULL, OPTION_SIZE},
		{"fan-out", required_argument, NULL, OPTION_FAN_OUT},
		{"phase", required_argument, NULL, OPTION_PHASE},
		COMMON_ROWS,
		{"help", no_argument, NULL, OPTION_HELP},
		{"version", no_argument, NULL, OPTION_VERSION},
		{NULL, 0, NULL, 0},
	};
	uint64_t workers = 1, fan_out = 8, files = 0, size = 0;
	unsigned phase = PHASE_ALL;
	bool ok = true;
	int c;

	opterr = 0;
	while (ok && (c = getopt_long(argc, argv, ":", table, NULL)) != -1) {
		switch (c) {
		case OPTION_OP:
			o->operation = find_operation(optarg);
			ok = o->operation != NULL;
			break;
		case OPTION_WORKERS:
			ok = take_number("workers", optarg, 1, CREW_MAX, &workers);
			break;
		case OPTION_THREADS:
			o->threads = true;
			break;
		case OPTION_UNPINNED:
			o->unpinned = true;
			break;
		case OPTION_FILES:
			ok = take_number("files", optarg, 1, UINT32_MAX, &files);
			break;
		case OPTION_SIZE:
			ok = take_number("size", optarg, UNIT, (uint64_t)1 << 50, &size);
			break;
		case OPTION_FAN_OUT:
			ok = take_number("fan-out", optarg, 1, 64, &fan_out);
			break;
		case OPTION_PHASE:
			ok = take_word("phase", optarg, phases, 3, &phase);
			o->phase = (enum phase)phase;
			break;
		case OPTION_HELP:
			print_help();
			return 0;
		case OPTION_VERSION:
			puts(NAME " " USERBLK_VERSION);
			return 0;
		default:
			ok = take_common(c, argv, &o->common);
		}
	}
	if (!ok || !take_at_most_one(argc, argv) || !check(o, argv[optind], files > 0, size > 0))
		return EXIT_USAGE;
	o->workers = (unsigned)workers;
	o->fan_out = (unsigned)fan_out;
	o->files = files ? files : o->operation->files;
	o->size = size ? size : o->operation->size;
	return -1;
}

int main(int argc, char **argv)
{
	struct options o = {.common = COMMON_DEFAULTS};
	int status = parse(argc, argv, &o);

	if (status != -1)
		return status;
	if (o.phase != PHASE_RUN && operations_prepare(&o) < 0)
		return 1;
	return o.phase == PHASE_PREPARE ? 0 : run(&o);
}
