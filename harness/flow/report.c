/* SPDX-License-Identifier: BSD-3-Clause */
#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "results.h"

#define MIB 1048576.0
#define MS  1e6 /* ns */

/* ---- text ---- */

static uint64_t log_start;

void report_start(void)
{
	log_start = flow_now();
}

void report_log(const char *format, ...)
{
	va_list ap;

	printf("%.3f: ", (double)(flow_now() - log_start) / 1e9);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

static double ratio(double a, double b)
{
	return b > 0 ? a / b : 0;
}

void report_breakdown(const struct workload *w, const struct stats *rows, double seconds)
{
	struct run_summary s;

	report_log("Per-Operation Breakdown");
	/* Last one first, as Filebench prints them. */
	for (unsigned i = w->row_count; i-- > 0;) {
		const struct stats *row = &rows[i];

		printf("%-20s %" PRIu64
		       "ops %8.0lfops/s %5.1lfmb/s %8.3fms/op [%.3fms - %5.3fms]\n",
			w->rows[i].name, row->ops, ratio((double)row->ops, seconds),
			ratio((double)row->bytes / MIB, seconds),
			ratio((double)row->sum_ns / MS, (double)row->ops), (double)row->min_ns / MS,
			(double)row->max_ns / MS);
	}
	run_summarize(w, rows, &s);
	report_log("IO Summary: %5" PRIu64
		   " ops %5.3lf ops/s %0.0lf/%0.0lf rd/wr %5.1lfmb/s %5.3fms/op",
		s.total.ops, ratio((double)s.total.ops, seconds), ratio((double)s.reads, seconds),
		ratio((double)s.writes, seconds), ratio((double)s.total.bytes / MIB, seconds),
		ratio((double)s.total.sum_ns / MS, (double)s.total.ops));
}

/* ---- JSON ---- */

static void json_string(FILE *f, const char *text)
{
	putc('"', f);
	for (; *text != '\0'; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else if (c < 0x20)
			fprintf(f, "\\u%04x", c);
		else
			putc(c, f);
	}
	putc('"', f);
}

/* "KEY": "TEXT", with a comma behind. */
static void json_pair(FILE *f, const char *key, const char *text)
{
	fprintf(f, "\"%s\": ", key);
	json_string(f, text);
	fprintf(f, ", ");
}

static void json_variables(FILE *f, const struct wml *wml)
{
	const char *comma = "";

	fprintf(f, "  \"variables\": {");
	for (const struct wml_variable *v = wml->variables; v != NULL; v = v->next) {
		char text[256];

		if (!v->defined)
			continue;
		wml_print(&v->value, text, sizeof text);
		fprintf(f, "%s", comma);
		json_string(f, v->name);
		fprintf(f, ": ");
		if (v->value.kind == WML_INT || v->value.kind == WML_BOOL)
			fprintf(f, "%s", text);
		else
			json_string(f, v->value.kind == WML_STRING ? v->value.string : text);
		comma = ", ";
	}
	fprintf(f, "},\n");
}

static void json_filesets(FILE *f, const struct workload *w)
{
	fprintf(f, "  \"filesets\": [");
	for (unsigned i = 0; i < w->file_count; i++) {
		const struct fileset *fs = w->files[i].fs;

		fprintf(f, "%s\n    {", i > 0 ? "," : "");
		json_pair(f, "name", fs->spec.name);
		json_pair(f, "path", fs->root);
		fprintf(f,
			"\"entries\": %" PRIu32 ", \"directories\": %" PRIu32
			", \"preallocated\": %" PRIu64 ", \"preallocated_bytes\": %" PRIu64
			", \"state_bytes\": %" PRIu64 ", \"create_s\": %.3f, \"sync_s\": %.3f}",
			fs->entries, fs->directories, fs->existing, fs->existing_bytes,
			fs->state_bytes, fs->create_s, fs->sync_s);
	}
	fprintf(f, "\n  ],\n");
}

static void json_summary(FILE *f, const struct workload *w, const struct run_result *r)
{
	struct run_summary s;

	run_summarize(w, r->rows, &s);
	fprintf(f,
		"  \"summary\": {\"ops\": %" PRIu64 ", \"ops_per_s\": %.3f, \"reads\": %" PRIu64
		", \"writes\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"read_bytes\": %" PRIu64
		", \"written_bytes\": %" PRIu64 ", \"unfinished_writes\": %" PRIu64
		", \"unfinished_bytes\": %" PRIu64 ", \"user_s\": %.6f, \"system_s\": %.6f,\n    ",
		s.total.ops, ratio((double)s.total.ops, r->seconds), s.reads, s.writes,
		s.total.bytes, s.read_bytes, s.written_bytes, r->unfinished_writes,
		r->unfinished_bytes, r->user_s, r->system_s);
	stats_print(f, "latency_ns", &s.total);
	fprintf(f, "},\n");
}

static void json_flowops(FILE *f, const struct workload *w, const struct run_result *r)
{
	fprintf(f, "  \"flowops\": [");
	for (unsigned i = 0; i < w->row_count; i++) {
		fprintf(f, "%s\n    {", i > 0 ? "," : "");
		json_pair(f, "name", w->rows[i].name);
		json_pair(f, "type", flowop_type_name(w->rows[i].type));
		fprintf(f,
			"\"in_summary\": %s, \"ops\": %" PRIu64
			", \"ops_per_s\": %.3f, \"bytes\": %" PRIu64 ",\n     ",
			flowop_is_io(w->rows[i].type) ? "true" : "false", r->rows[i].ops,
			ratio((double)r->rows[i].ops, r->seconds), r->rows[i].bytes);
		stats_print(f, "latency_ns", &r->rows[i]);
		fprintf(f, "}");
	}
	fprintf(f, "\n  ],\n");
}

static void json_intervals(FILE *f, const struct workload *w, const struct run_result *r)
{
	fprintf(f, "  \"intervals\": [");
	for (unsigned i = 0; i < r->interval_count; i++) {
		const struct run_interval *v = &r->intervals[i];

		fprintf(f,
			"%s\n    {\"start_s\": %.6f, \"end_s\": %.6f, \"ops\": %" PRIu64
			", \"bytes\": %" PRIu64 ", \"flowops\": {",
			i > 0 ? "," : "", v->start, v->end, v->ops, v->bytes);
		for (unsigned j = 0; j < w->row_count; j++) {
			fprintf(f, "%s", j > 0 ? ", " : "");
			json_string(f, w->rows[j].name);
			fprintf(f, ": %" PRIu64, v->row_ops[j]);
		}
		fprintf(f,
			"},\n     \"latency_ns\": {\"sum\": %" PRIu64
			", \"mean\": %.1f, \"bins\": {",
			v->sum_ns, ratio((double)v->sum_ns, (double)v->ops));
		for (unsigned j = 0; j < v->bin_count; j++)
			fprintf(f, "%s\"%" PRIu64 "\": %" PRIu64, j > 0 ? ", " : "",
				stats_bin_value(v->bins[j].bin), v->bins[j].count);
		fprintf(f, "}}}");
	}
	fprintf(f, "\n  ]\n");
}

static void json_results(FILE *f, const struct workload *w, const struct run_options *options,
	const struct run_result *r)
{
	static const char *const modes[] = {
		[MODE_TIMEOUT] = "timeout",
		[MODE_ALLDONE] = "alldone",
		[MODE_FIRSTDONE] = "firstdone",
	};
	static const char *const ends[] = {
		[RUN_TIME] = "time",
		[RUN_ALL_DONE] = "all-done",
		[RUN_FIRST_DONE] = "first-done",
		[RUN_EARLY] = "early",
		[RUN_INTERRUPTED] = "interrupted",
	};
	char started[64];
	struct tm tm;

	strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%S", gmtime_r(&r->started.tv_sec, &tm));
	fprintf(f, "{\n  \"schema\": 1,\n  ");
	json_pair(f, "program", "userblk-flow " USERBLK_VERSION);
	json_pair(f, "workload", w->wml->file);
	fprintf(f, "\"seed\": %" PRIu64 ", \"original\": %s,\n  ", options->seed,
		options->original ? "true" : "false");
	json_pair(f, "mode", modes[options->mode]);
	fprintf(f, "\"threads\": %u,\n", r->threads);
	json_variables(f, w->wml);
	json_filesets(f, w);
	fprintf(f,
		"  \"started\": \"%s.%03ldZ\", \"started_monotonic_s\": %.6f, \"duration_s\": "
		"%.6f,\n  ",
		started, r->started.tv_nsec / 1000000, (double)r->started_ns / 1e9, r->seconds);
	json_pair(f, "end", ends[r->end]);
	fprintf(f, "\"threads_finished\": %u, \"threads_without_file\": %u,\n", r->finished,
		r->no_file);
	json_summary(f, w, r);
	json_flowops(f, w, r);
	json_intervals(f, w, r);
	fprintf(f, "}\n");
}

bool report_json(const char *path, const struct workload *w, const struct run_options *options,
	const struct run_result *result, struct flow_error *error)
{
	FILE *f = results_open(path);

	if (f != NULL) {
		json_results(f, w, options, result);
		if (results_close(f, path))
			return true;
	}
	return flow_error_set(error, "--json %s: %m", path);
}
