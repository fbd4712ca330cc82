/* SPDX-License-Identifier: BSD-3-Clause */
#include <err.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "harness/ops/crew.h"

#include "kv.h"
#include "programs/exit_codes.h"

const char command_name[] = NAME;

#define MOST_RECORDS UINT64_C(10000000000) /* of what YCSB draws from */

/* What this program was built with. */
static const struct store_ops *const stores[] = {
#ifdef ROCKSDB_VERSION
	&store_rocksdb,
#endif
#ifdef HAVE_LEVELDB
	&store_leveldb,
#endif
#ifdef HAVE_SQLITE
	&store_sqlite,
#endif
	NULL,
};

/* All of them, and Debian's packages that a build needs for them. */
static const char *const packages[][2] = {
	{"rocksdb", "librocksdb-dev"},
	{"leveldb", "libleveldb-dev"},
	{"sqlite", "libsqlite3-dev"},
};

static const char *const phases[PHASES] = {
	[PHASE_ALL] = "all", [PHASE_LOAD] = "load", [PHASE_RUN] = "run", [PHASE_CHECK] = "check"};

static const char usage[] =
	"Usage: " NAME " [OPTION]... --store LIBRARY --workload NAME DIRECTORY\n"
	"Run YCSB's workloads on a library that holds keys and values in files.\n"
	"\n"
	"      --store LIBRARY   library to use: rocksdb, leveldb or sqlite\n"
	"      --workload NAME   name of the workload, from the list\n"
	"      --phase PHASE     all: load the records and run (default); load: the first\n"
	"                        only; run: on those that load has made; check: read all\n"
	"                        existing records\n"
	"      --records N       records, of 10 fields of 100 bytes (default 1000)\n"
	"      --threads N       threads that work (default 1)\n"
	"      --seconds S       end after this time (default 30); 0: after --count\n"
	"      --count N         end after N operations of each thread\n"
	"      --distribution D  which records: zipfian, latest or uniform (default: the\n"
	"                        workload's own)\n"
	"      --sync            each write is durable when it returns\n"
	"      --write-buffer B  bytes that are written before they go into tables\n"
	"                        (default: the library's)\n"
	"      --interval S      seconds per interval of the series (default 1)\n"
	"      --seed N          seed of random choices (default 1)\n"
	"      --json FILE       write the results to FILE\n"
	"      --help            show this text\n"
	"      --version         show the version, and those of the libraries\n"
	"\n"
	"Operations:\n";

static void print_help(void)
{
	fputs(usage, stdout);
	for (unsigned i = 0; i < ycsb_mix_count; i++)
		printf("    %-10s %s\n", ycsb_mixes[i].name, ycsb_mixes[i].what);
	printf("\nSee " NAME "(1).\n");
}

static void print_version(void)
{
	char version[VERSION_SIZE];

	puts(NAME " " USERBLK_VERSION);
	for (unsigned i = 0; stores[i]; i++) {
		stores[i]->version(version);
		printf("%s %s\n", stores[i]->name, version);
	}
}

static const struct store_ops *find_store(const char *name)
{
	for (unsigned i = 0; stores[i]; i++)
		if (strcmp(stores[i]->name, name) == 0)
			return stores[i];
	for (unsigned i = 0; i < sizeof packages / sizeof *packages; i++)
		if (strcmp(packages[i][0], name) == 0) {
			warnx("--store %s: this program was built without it; install %s and "
			      "build it again (make kv)",
				name, packages[i][1]);
			return NULL;
		}
	warnx("--store %s: give rocksdb, leveldb or sqlite", name);
	return NULL;
}

static const struct mix *find_mix(const char *name)
{
	for (unsigned i = 0; i < ycsb_mix_count; i++)
		if (strcmp(ycsb_mixes[i].name, name) == 0)
			return &ycsb_mixes[i];
	warnx("--workload %s: no such workload; see " NAME " --help", name);
	return NULL;
}

/* What belongs together, and the directory. */
static bool check(struct options *o, const char *directory)
{
	bool makes = o->phase == PHASE_ALL || o->phase == PHASE_LOAD ||
		     (o->mix && o->mix->fills && o->phase == PHASE_RUN);

	if (!o->store)
		warnx("--store is missing; give rocksdb, leveldb or sqlite");
	else if (!o->mix && o->phase != PHASE_CHECK)
		warnx("--workload is missing; name one, see " NAME " --help");
	else if (o->mix && o->mix->fills && o->phase == PHASE_LOAD)
		warnx("--phase load: %s measures the loading itself; leave it out", o->mix->name);
	else if (o->common.seconds <= 0 && o->common.count == 0 && !(o->mix && o->mix->fills))
		warnx("--seconds 0: needs --count; add it");
	else
		return take_place(directory, "kv", !makes, "load", o->place);
	return false;
}

/* -1: go on; else an exit status. */
static int parse(int argc, char **argv, struct options *o)
{
	enum {
		OPTION_STORE = 256,
		OPTION_WORKLOAD,
		OPTION_PHASE,
		OPTION_RECORDS,
		OPTION_THREADS,
		OPTION_DISTRIBUTION,
		OPTION_SYNC,
		OPTION_WRITE_BUFFER,
		OPTION_HELP,
		OPTION_VERSION,
	};
	static const struct option table[] = {
		{"store", required_argument, NULL, OPTION_STORE},
		{"workload", required_argument, NULL, OPTION_WORKLOAD},
		{"phase", required_argument, NULL, OPTION_PHASE},
		{"records", required_argument, NULL, OPTION_RECORDS},
		{"threads", required_argument, NULL, OPTION_THREADS},
		{"distribution", required_argument, NULL, OPTION_DISTRIBUTION},
		{"sync", no_argument, NULL, OPTION_SYNC},
		{"write-buffer", required_argument, NULL, OPTION_WRITE_BUFFER},
		COMMON_ROWS,
		{"help", no_argument, NULL, OPTION_HELP},
		{"version", no_argument, NULL, OPTION_VERSION},
		{NULL, 0, NULL, 0},
	};
	unsigned phase = PHASE_ALL, distribution = DISTRIBUTIONS;
	uint64_t threads = 1;
	bool ok = true;
	int c;

	opterr = 0;
	while (ok && (c = getopt_long(argc, argv, ":", table, NULL)) != -1) {
		switch (c) {
		case OPTION_STORE:
			o->store = find_store(optarg);
			ok = o->store != NULL;
			break;
		case OPTION_WORKLOAD:
			o->mix = find_mix(optarg);
			ok = o->mix != NULL;
			break;
		case OPTION_PHASE:
			ok = take_word("phase", optarg, phases, PHASES, &phase);
			o->phase = (enum phase)phase;
			break;
		case OPTION_RECORDS:
			ok = take_number("records", optarg, 2, MOST_RECORDS / 2, &o->records);
			break;
		case OPTION_THREADS:
			ok = take_number("threads", optarg, 1, CREW_MAX, &threads);
			break;
		case OPTION_DISTRIBUTION:
			ok = take_word("distribution", optarg, ycsb_distributions, DISTRIBUTIONS,
				&distribution);
			break;
		case OPTION_SYNC:
			o->sync = true;
			break;
		case OPTION_WRITE_BUFFER:
			ok = take_number(
				"write-buffer", optarg, 65536, UINT64_C(1) << 36, &o->write_buffer);
			break;
		case OPTION_HELP:
			print_help();
			return 0;
		case OPTION_VERSION:
			print_version();
			return 0;
		default:
			ok = take_common(c, argv, &o->common);
		}
	}
	if (!ok || !take_at_most_one(argc, argv) || !check(o, argv[optind]))
		return EXIT_USAGE;
	o->threads = (unsigned)threads;
	if (o->mix)
		o->distribution = distribution == DISTRIBUTIONS ? o->mix->distribution
								: (enum distribution)distribution;
	return -1;
}

int main(int argc, char **argv)
{
	struct options o = {.records = 1000, .common = COMMON_DEFAULTS};
	int status = parse(argc, argv, &o);

	if (status != -1)
		return status;
	if (o.phase == PHASE_CHECK)
		return bench_check(&o);
	if (o.phase != PHASE_RUN && !o.mix->fills)
		status = bench_load(&o);
	if (status > 0 || o.phase == PHASE_LOAD)
		return status;
	return bench_run(&o);
}
