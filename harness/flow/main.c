/* SPDX-License-Identifier: BSD-3-Clause */
/* userblk-flow: options, and the statements of a workload file one after the other. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "report.h"
#include "results.h"
#include "run.h"
#include "wml.h"
#include "workload.h"
#include "programs/exit_codes.h"

#define MOST_FILES 1048576 /* the kernel's default */

static const char usage[] =
	"Usage: userblk-flow [OPTION]... FILE\n"
	"Run a Filebench workload file.\n"
	"\n"
	"  -s, --set NAME=VALUE  give a variable of the file another value\n"
	"      --phase PHASE     all: make the files and run (default); create: make the\n"
	"                        files only; run: use the files that create has made\n"
	"      --trust           with phase run: do not look at the files before the run\n"
	"      --seed N          seed of sizes, tree and choices (default 1)\n"
	"      --seconds S       end after this time, whatever run in the file says\n"
	"      --interval S      seconds per interval of the series (default 1, or psrun's)\n"
	"      --json FILE       write the results to FILE\n"
	"      --original        count, round and fill as Filebench does\n"
	"      --check           check the file and end\n"
	"  -q, --quiet           no progress on standard error\n"
	"      --help            show this text\n"
	"      --version         show the version\n"
	"\n"
	"See userblk-flow(1).\n";

enum phase {
	PHASE_ALL,
	PHASE_CREATE,
	PHASE_RUN,
};

struct program {
	struct wml *wml;
	struct workload workload;
	struct run_options options;
	double seconds, interval; /* as given; 0: not */
	enum phase phase;
	const char *json;
	bool trust; /* phase run: the files are there */
	bool check; /* evaluate everything, do nothing */
	bool done;  /* run or quit was met */
};

static bool quiet; /* of the progress callback, which has no argument for it */

static bool show_creation(const struct fileset *fs, uint64_t files, uint64_t bytes, double seconds)
{
	static uint64_t last;
	bool terminal = isatty(STDERR_FILENO);
	uint64_t now = flow_now();

	if (!quiet && now - last >= (terminal ? 1 : 10) * UINT64_C(1000000000)) {
		last = now;
		fprintf(stderr,
			"%suserblk-flow: fileset %s: %" PRIu64 " of %" PRIu64
			" files, %.0f files/s, %.1f MB/s%s",
			terminal ? "\r\033[K" : "", fs->spec.name, files, fs->existing,
			(double)files / seconds, (double)bytes / 1e6 / seconds,
			terminal ? "" : "\n");
	}
	return !run_interrupted();
}

/* Ends a progress line that a terminal shows. */
static void end_progress(void)
{
	if (!quiet && isatty(STDERR_FILENO))
		fprintf(stderr, "\r\033[K");
}

static bool create_fileset(struct program *p, struct file_def *def, struct flow_error *error)
{
	def->fs = fileset_new(&def->spec, p->options.seed, error);
	if (def->fs == NULL)
		return false;
	if (p->phase == PHASE_RUN)
		return p->trust || fileset_verify(def->fs, p->options.seed, error);

	run_block_signals(true);
	bool ok =
		fileset_create(def->fs, p->options.seed, p->options.original, show_creation, error);
	run_block_signals(false);
	end_progress();
	if (ok)
		report_log("%s populated: %" PRIu32 " files, %" PRIu32 " directories, %" PRIu64
			   " preallocated (%.3f MB) in %.3f s, written back in %.3f s",
			def->spec.name, def->fs->entries, def->fs->directories, def->fs->existing,
			(double)def->fs->existing_bytes / 1048576, def->fs->create_s,
			def->fs->sync_s);
	return ok;
}

/* Creates what is defined so far and was not created before. */
static bool create_files(struct program *p, struct flow_error *error)
{
	struct workload *w = &p->workload;

	if (!workload_bind_files(w, error))
		return false;
	/* Last one first, as Filebench does. */
	for (unsigned i = w->file_count; !p->check && i-- > 0;)
		if (w->files[i].fs == NULL && !create_fileset(p, &w->files[i], error))
			return false;
	return true;
}

/* run [SECONDS], psrun [PERIOD] [SECONDS] */
static bool run_arguments(
	struct program *p, const struct wml_statement *s, struct flow_error *error)
{
	struct run_options *o = &p->options;
	bool psrun = s->command == CMD_PSRUN;
	int64_t seconds = o->mode == MODE_TIMEOUT ? 60 : 0, period = psrun ? 10 : 0;

	if (psrun && !wml_int(p->wml, &s->args[0], "the period", -86400, 86400, &period, error))
		return false;
	if (!wml_int(p->wml, &s->args[psrun], "the run time", 0, INT32_MAX, &seconds, error))
		return false;
	if (psrun && period == 0)
		return flow_error_set(error, "%s:%d: expected a period of psrun other than 0",
			p->wml->file, s->line);
	if (seconds == 0 && o->mode == MODE_TIMEOUT)
		return flow_error_set(error,
			"%s:%d: expected a run time above 0 in mode timeout, found 0", p->wml->file,
			s->line);
	o->seconds = p->seconds > 0 ? p->seconds : (double)seconds;
	o->period = (double)llabs(period);
	o->clear = period < 0;
	o->interval = p->interval > 0 ? p->interval : psrun ? o->period : 1;
	return true;
}

static bool run_workload(struct program *p, const struct wml_statement *s, struct flow_error *error)
{
	struct workload *w = &p->workload;
	struct run_result result;

	p->done = true;
	if (!run_arguments(p, s, error) || !create_files(p, error))
		return false;
	if (w->process_count == 0)
		return flow_error_set(error,
			"%s:%d: expected a process to be defined before it runs", p->wml->file,
			s->line);
	if (!workload_bind_processes(w, error))
		return false;
	if (p->check || p->phase == PHASE_CREATE)
		return true;

	report_log("Running...");
	run_block_signals(true);
	bool ok = run_perform(w, &p->options, report_breakdown, &result, error);
	run_block_signals(false);
	end_progress();
	if (!ok)
		return false;
	report_log("Run took %.3f seconds...", result.seconds);
	report_breakdown(w, result.rows, result.seconds);
	if (result.end == RUN_EARLY)
		fprintf(stderr,
			"userblk-flow: the run ended early: a thread %s; "
			"to allow this, use `set mode quit alldone`\n",
			result.no_file > 0 ? "found no file to take" : "had finished");
	if (result.end == RUN_INTERRUPTED)
		fprintf(stderr, "userblk-flow: the run was interrupted\n");
	if (p->json != NULL)
		ok = report_json(p->json, w, &p->options, &result, error);
	if (ok && result.end == RUN_INTERRUPTED)
		ok = flow_error_set(error, "interrupted; the results are of the time until then");
	run_result_free(&result);
	return ok;
}

static bool do_eventgen(struct program *p, const struct wml_statement *s, struct flow_error *error)
{
	int64_t rate = 0;

	if (!wml_int(p->wml, &s->args[0], "the rate of eventgen", 0, INT32_MAX, &rate, error))
		return false;
	p->options.event_rate = (double)rate;
	return true;
}

/* system and echo */
static bool do_text(struct program *p, const struct wml_statement *s, struct flow_error *error)
{
	char *text = wml_interpolate(p->wml, s->args[0].value.string, s->line, error);

	if (text == NULL)
		return false;
	if (p->check) {
		free(text);
		return true;
	}

	bool ok = true;

	if (s->command == CMD_ECHO) {
		report_log("%s", text);
	} else {
		int status = system(text); /* NOLINT(cert-env33-c): the language has this command */

		if (status == -1)
			ok = flow_error_set(error, "%s:%d: system: %m", p->wml->file, s->line);
		else if (status != 0)
			ok = flow_error_set(error, "%s:%d: system \"%s\": %s %d", p->wml->file,
				s->line, text, WIFEXITED(status) ? "exit status" : "signal",
				WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	}
	free(text);
	return ok;
}

static bool do_sleep(struct program *p, const struct wml_statement *s, struct flow_error *error)
{
	int64_t seconds = 0;

	if (!wml_int(p->wml, &s->args[0], "the seconds of sleep", 0, INT32_MAX, &seconds, error))
		return false;
	if (!p->check)
		sleep((unsigned)seconds);
	return true;
}

static bool files_follow(const struct wml_statement *s)
{
	for (s = s->next; s != NULL; s = s->next)
		if (s->command == CMD_DEFINE && s->object->kind != WML_PROCESS)
			return true;
	return false;
}

static bool do_statement(struct program *p, const struct wml_statement *s, struct flow_error *error)
{
	switch (s->command) {
	case CMD_SET:
		wml_assign(s->variable, &s->value);
		return true;
	case CMD_MODE:
		p->options.mode = s->mode;
		return true;
	case CMD_DEFINE:
		return workload_define(&p->workload, s->object, error);
	case CMD_CREATE:
		if (!create_files(p, error))
			return false;
		p->done = p->phase == PHASE_CREATE && !p->check && !files_follow(s);
		return true;
	case CMD_RUN:
	case CMD_PSRUN:
		return run_workload(p, s, error);
	case CMD_SLEEP:
		return do_sleep(p, s, error);
	case CMD_SYSTEM:
	case CMD_ECHO:
		return do_text(p, s, error);
	case CMD_EVENTGEN:
		return do_eventgen(p, s, error);
	case CMD_QUIT:
		p->done = true;
		return true;
	}
	return true;
}

/*
 * Carries the file out: first only to evaluate it, so that a mistake in its
 * last line is found before anything is touched.
 */
static bool execute(struct program *p, struct flow_error *error)
{
	bool check_only = p->check, ok = true;

	for (int pass = 0; ok && pass < (check_only ? 1 : 2); pass++) {
		const struct wml_statement *s = p->wml->statements;

		p->check = pass == 0;
		p->done = false;
		p->options.mode = MODE_TIMEOUT;
		p->options.event_rate = 0;
		p->workload = (struct workload){.wml = p->wml};
		wml_reset(p->wml);
		for (; ok && !p->done && s != NULL; s = s->next)
			ok = do_statement(p, s, error);
		if (ok && !p->done)
			ok = flow_error_set(error,
				"%s: expected run or psrun at the end of the file", p->wml->file);
		workload_free(&p->workload);
		if (pass == 0 && !ok)
			return false;
	}
	return ok;
}

/* Threads times descriptors may be many: as many as root may have, else as this user may. */
static void raise_file_limit(void)
{
	struct rlimit limit = {.rlim_cur = MOST_FILES, .rlim_max = MOST_FILES};

	if (setrlimit(RLIMIT_NOFILE, &limit) < 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int report_error(const struct flow_error *error, int status)
{
	fprintf(stderr, "userblk-flow: %s\n", error->text);
	return status;
}

/* A decimal seed; false if text is not one. */
static bool parse_seed(const char *text, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 10);
	return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
}

static bool parse_seconds(const char *text, double *out)
{
	char *end;

	*out = strtod(text, &end);
	return end != text && *end == '\0' && *out >= 0.01 && *out <= 86400;
}

static bool parse_phase(const char *text, enum phase *out)
{
	static const char *const phases[] = {"all", "create", "run"};

	for (int i = 0; i < 3; i++)
		if (strcmp(text, phases[i]) == 0) {
			*out = (enum phase)i;
			return true;
		}
	return false;
}

int main(int argc, char **argv)
{
	enum {
		OPTION_PHASE = 256,
		OPTION_TRUST,
		OPTION_SEED,
		OPTION_SECONDS,
		OPTION_INTERVAL,
		OPTION_JSON,
		OPTION_ORIGINAL,
		OPTION_CHECK,
		OPTION_HELP,
		OPTION_VERSION,
	};
	static const struct option options[] = {
		{"set", required_argument, NULL, 's'},
		{"phase", required_argument, NULL, OPTION_PHASE},
		{"trust", no_argument, NULL, OPTION_TRUST},
		{"seed", required_argument, NULL, OPTION_SEED},
		{"seconds", required_argument, NULL, OPTION_SECONDS},
		{"interval", required_argument, NULL, OPTION_INTERVAL},
		{"json", required_argument, NULL, OPTION_JSON},
		{"original", no_argument, NULL, OPTION_ORIGINAL},
		{"check", no_argument, NULL, OPTION_CHECK},
		{"quiet", no_argument, NULL, 'q'},
		{"help", no_argument, NULL, OPTION_HELP},
		{"version", no_argument, NULL, OPTION_VERSION},
		{NULL, 0, NULL, 0},
	};
	struct program p = {.options.seed = 1};
	struct flow_error error;
	const char **sets = calloc((size_t)argc, sizeof *sets);
	int set_count = 0, status = 0, c;

	if (sets == NULL)
		abort();
	opterr = 0;
	while ((c = getopt_long(argc, argv, ":s:q", options, NULL)) != -1) {
		const char *word = argv[optind - 1], *refused;
		bool ok = true;

		switch (c) {
		case 's':
			sets[set_count++] = optarg;
			break;
		case OPTION_PHASE:
			ok = parse_phase(optarg, &p.phase) ||
			     flow_error_set(&error, "--phase %s: write all, create or run", optarg);
			break;
		case OPTION_TRUST:
			p.trust = true;
			break;
		case OPTION_SEED:
			ok = parse_seed(optarg, &p.options.seed) ||
			     flow_error_set(&error, "--seed %s: write a number below 2^64", optarg);
			break;
		case OPTION_SECONDS:
			ok = parse_seconds(optarg, &p.seconds) ||
			     flow_error_set(&error,
				     "--seconds %s: write seconds from 0.01 to 86400", optarg);
			break;
		case OPTION_INTERVAL:
			ok = parse_seconds(optarg, &p.interval) ||
			     flow_error_set(&error,
				     "--interval %s: write seconds from 0.01 to 86400", optarg);
			break;
		case OPTION_JSON:
			p.json = optarg;
			refused = results_refused(optarg);
			ok = refused == NULL ||
			     flow_error_set(&error,
				     "--json %s: %s; name a file that can be written", optarg,
				     refused);
			break;
		case OPTION_ORIGINAL:
			p.options.original = true;
			break;
		case OPTION_CHECK:
			p.check = true;
			break;
		case 'q':
			p.options.quiet = quiet = true;
			break;
		case OPTION_HELP:
			fputs(usage, stdout);
			goto out;
		case OPTION_VERSION:
			puts("userblk-flow " USERBLK_VERSION);
			goto out;
		case ':':
			ok = flow_error_set(
				&error, "%s: needs a value; see userblk-flow --help", word);
			break;
		default:
			ok = flow_error_set(
				&error, "%s: no such option; see userblk-flow --help", word);
		}
		if (!ok) {
			status = report_error(&error, EXIT_USAGE);
			goto out;
		}
	}
	if (optind + 1 != argc) {
		flow_error_set(&error,
			"expected one workload file, found %d; see userblk-flow --help",
			argc - optind);
		status = report_error(&error, EXIT_USAGE);
		goto out;
	}

	p.wml = wml_load(argv[optind], &error);
	for (int i = 0; p.wml != NULL && i < set_count; i++)
		if (!wml_pin(p.wml, sets[i], &error)) {
			wml_free(p.wml);
			p.wml = NULL;
		}
	if (p.wml == NULL) {
		status = report_error(&error, EXIT_USAGE);
		goto out;
	}
	raise_file_limit();
	report_start();
	if (!execute(&p, &error))
		status = report_error(&error, p.check ? EXIT_USAGE : 1);
	wml_free(p.wml);
out:
	free(sets);
	return status;
}
