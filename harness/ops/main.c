/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ops.h"

#define EXIT_USAGE  2
#define MAX_WORKERS 1024

static const char usage[] =
	"Usage: " NAME " [OPTION]... --op OPERATION DIRECTORY\n"
	"Repeat an operation on files, in workers that begin together.\n"
	"\n"
	"      --op OPERATION    what to repeat: one of those below\n"
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

void complain(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs(NAME ": ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
}

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
	complain("--op %s: no such operation; see " NAME " --help", name);
	return NULL;
}

static bool take_number(
	const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 10);
	if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && !errno && *out >= least &&
		*out <= most)
		return true;
	complain("--%s %s: give a whole number from %ju to %ju", option, text, (uintmax_t)least,
		(uintmax_t)most);
	return false;
}

static bool take_seconds(const char *option, const char *text, double least, double *out)
{
	char *end;

	*out = strtod(text, &end);
	if (end != text && *end == '\0' && isfinite(*out) && *out >= least && *out <= 86400)
		return true;
	complain("--%s %s: give seconds from %g to 86400", option, text, least);
	return false;
}

static bool take_phase(const char *text, enum phase *out)
{
	static const char *const phases[] = {
		[PHASE_ALL] = "all", [PHASE_PREPARE] = "prepare", [PHASE_RUN] = "run"};

	for (unsigned i = 0; i < sizeof phases / sizeof *phases; i++)
		if (strcmp(text, phases[i]) == 0) {
			*out = (enum phase)i;
			return true;
		}
	complain("--phase %s: give all, prepare or run", text);
	return false;
}

/* What belongs together, and the directory. */
static bool check(struct options *o, const char *directory, bool files_given, bool size_given)
{
	const struct operation *operation = o->operation;
	struct stat st;

	if (!operation)
		complain("--op is missing; name an operation, see " NAME " --help");
	else if (!directory)
		complain("DIRECTORY is missing; name one that the files can be made in");
	else if (files_given && operation->files == 0)
		complain("--files: %s has none; leave it out", operation->name);
	else if (size_given && operation->size == 0)
		complain("--size: %s has no data; leave it out", operation->name);
	else if (o->seconds <= 0 && o->count == 0)
		complain("--seconds 0: needs --count; add it");
	else if (stat(directory, &st) == -1)
		complain("%s: %s; DIRECTORY is to be there", directory, strerror(errno));
	else if (!S_ISDIR(st.st_mode))
		complain("%s: no directory; name one", directory);
	else if (snprintf(o->top, sizeof(o->top), "%s/ops", directory) >= PATH_MAX - 256)
		complain("%s: too long; name a shorter one", directory);
	else if (o->phase != PHASE_RUN && access(o->top, F_OK) == 0)
		complain("%s: is there; remove it, or use what is in it with --phase run", o->top);
	else if (o->phase == PHASE_RUN && access(o->top, F_OK) == -1)
		complain("%s: is not there; make it with --phase prepare", o->top);
	else
		return true;
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
		OPTION_SECONDS,
		OPTION_COUNT,
		OPTION_FILES,
		OPTION_SIZE,
		OPTION_FAN_OUT,
		OPTION_PHASE,
		OPTION_INTERVAL,
		OPTION_SEED,
		OPTION_JSON,
		OPTION_HELP,
		OPTION_VERSION,
	};
	static const struct option table[] = {
		{"op", required_argument, NULL, OPTION_OP},
		{"workers", required_argument, NULL, OPTION_WORKERS},
		{"threads", no_argument, NULL, OPTION_THREADS},
		{"unpinned", no_argument, NULL, OPTION_UNPINNED},
		{"seconds", required_argument, NULL, OPTION_SECONDS},
		{"count", required_argument, NULL, OPTION_COUNT},
		{"files", required_argument, NULL, OPTION_FILES},
		{"size", required_argument, NULL, OPTION_SIZE},
		{"fan-out", required_argument, NULL, OPTION_FAN_OUT},
		{"phase", required_argument, NULL, OPTION_PHASE},
		{"interval", required_argument, NULL, OPTION_INTERVAL},
		{"seed", required_argument, NULL, OPTION_SEED},
		{"json", required_argument, NULL, OPTION_JSON},
		{"help", no_argument, NULL, OPTION_HELP},
		{"version", no_argument, NULL, OPTION_VERSION},
		{NULL, 0, NULL, 0},
	};
	uint64_t workers = 1, fan_out = 8, files = 0, size = 0;
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
			ok = take_number("workers", optarg, 1, MAX_WORKERS, &workers);
			break;
		case OPTION_THREADS:
			o->threads = true;
			break;
		case OPTION_UNPINNED:
			o->unpinned = true;
			break;
		case OPTION_SECONDS:
			ok = take_seconds("seconds", optarg, 0, &o->seconds);
			break;
		case OPTION_COUNT:
			ok = take_number("count", optarg, 1, UINT32_MAX, &o->count);
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
			ok = take_phase(optarg, &o->phase);
			break;
		case OPTION_INTERVAL:
			ok = take_seconds("interval", optarg, 0.01, &o->interval);
			break;
		case OPTION_SEED:
			ok = take_number("seed", optarg, 0, UINT64_MAX, &o->seed);
			break;
		case OPTION_JSON:
			o->json = optarg;
			break;
		case OPTION_HELP:
			print_help();
			return 0;
		case OPTION_VERSION:
			puts(NAME " " USERBLK_VERSION);
			return 0;
		case ':':
			complain("%s: needs a value; see " NAME " --help", argv[optind - 1]);
			ok = false;
			break;
		default:
			complain("%s: no such option; see " NAME " --help", argv[optind - 1]);
			ok = false;
		}
	}
	if (ok && optind + 1 < argc) {
		complain("%s: one argument too many; DIRECTORY is enough", argv[optind + 1]);
		ok = false;
	}
	if (!ok || !check(o, argv[optind], files > 0, size > 0))
		return EXIT_USAGE;
	o->workers = (unsigned)workers;
	o->fan_out = (unsigned)fan_out;
	o->files = files ? files : o->operation->files;
	o->size = size ? size : o->operation->size;
	return -1;
}

int main(int argc, char **argv)
{
	struct options o = {.seconds = 30, .interval = 1, .seed = 1};
	int status = parse(argc, argv, &o);

	if (status != -1)
		return status;
	if (o.phase != PHASE_RUN && operations_prepare(&o) < 0)
		return 1;
	return o.phase == PHASE_PREPARE ? 0 : run(&o);
}
