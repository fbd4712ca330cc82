/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/client/client.h"
#include "userblk-s3/answer.h"

#define COLUMNS 10

/* Rows that a command may answer, and what their columns are called. */
static const struct kind {
	enum command command;
	const char *line, *list; /* names of a line, and of all of them in JSON */
	const char *columns[COLUMNS + 1];
} kinds[] = {
	{COMMAND_LIST, "entry", "volumes",
		{"name", "state", "layout", "size_bytes", "block_bytes", "compressed", "encrypted",
			"parent", "created_time"}},
	{COMMAND_CHECK, "damage", "damages", {"offset", "length", "object", "reason"}},
	{COMMAND_SNAPSHOT_LIST, "snapshot", "snapshots",
		{"name", "log_end", "created_time", "size_bytes", "clones"}},
};

/* Kinds of requests, and what is known of each: they are printed as a table of their own. */
static const char *const requests[] = {"device_read", "device_write", "device_flush", "device_trim",
	"device_zero", "store_get", "store_head", "store_put", "store_delete", "store_delete_many",
	"store_list"};
static const char *const metrics[] = {"requests", "errors", "retries", "mean_us", "p50_us",
	"p90_us", "p99_us", "max_us", "bytes", "sent_bytes", "received_bytes"};
#define REQUESTS (sizeof requests / sizeof requests[0])
#define METRICS	 (sizeof metrics / sizeof metrics[0])

static const struct kind *kind_of(const struct answer *a)
{
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
		if (kinds[i].command == a->options->command)
			return &kinds[i];
	return NULL;
}

/* ---- collecting ----------------------------------------------------------------------- */

static void *grow(void *array, size_t n, size_t size)
{
	void *more = n & (n - 1) ? array : realloc(array, (n ? 2 * n : 1) * size);

	if (!more)
		abort();
	return more;
}

static char *copy(const char *text)
{
	char *out = strdup(text);

	if (!out)
		abort();
	return out;
}

int answer_line(void *opaque, const char *line)
{
	struct answer *a = opaque;
	const struct kind *kind = kind_of(a);
	const char *value = strchr(line, ' ');
	uint64_t done, total;

	if (!value++)
		return 0;
	if (sscanf(line, "progress [%" SCNu64 ", %" SCNu64 "]", &done, &total) == 2) {
		progress_show(&a->progress, done, total);
		return 0;
	}
	if (kind && strncmp(line, kind->line, strlen(kind->line)) == 0 && *value == '[') {
		a->rows = grow(a->rows, a->n_rows, sizeof *a->rows);
		a->rows[a->n_rows++] = copy(value);
		return 0;
	}
	a->items = grow(a->items, a->n_items, sizeof *a->items);
	a->items[a->n_items] = (struct item){.name = copy(line), .value = copy(value)};
	a->items[a->n_items].name[value - line - 1] = 0;
	a->n_items++;
	return 0;
}

const char *answer_value(const struct answer *a, const char *name)
{
	for (size_t i = 0; i < a->n_items; i++)
		if (strcmp(a->items[i].name, name) == 0)
			return a->items[i].value;
	return NULL;
}

double answer_number(const struct answer *a, const char *name)
{
	const char *value = answer_value(a, name);

	return value ? strtod(value, NULL) : 0;
}

void answer_free(struct answer *a)
{
	for (size_t i = 0; i < a->n_items; i++) {
		free(a->items[i].name);
		free(a->items[i].value);
	}
	for (size_t i = 0; i < a->n_rows; i++)
		free(a->rows[i]);
	free(a->items);
	free(a->rows);
}

/* ---- for people ------------------------------------------------------------------------- */

/* The next value of a JSON array without others in it; *p begins at its '['. False: the end. */
static bool next_value(const char **p, char *out, size_t room)
{
	const char *c = *p + strspn(*p, "[, "), *start = c;
	size_t n;

	if (!*c || *c == ']')
		return false;
	if (*c == '"') {
		for (c++; *c && *c != '"'; c++)
			if (*c == '\\' && c[1])
				c++;
		c += *c == '"';
	} else {
		c += strcspn(c, ",]");
	}
	n = (size_t)(c - start) < room ? (size_t)(c - start) : room - 1;
	memcpy(out, start, n);
	out[n] = 0;
	*p = c;
	return true;
}

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n >= m && strcmp(text + n - m, end) == 0;
}

/* A value for people. out has room for it. */
static const char *human(const char *name, const char *value, char *out, size_t room)
{
	uint64_t number = strtoull(value, NULL, 10);
	size_t n = 0;

	if (strcmp(value, "null") == 0) {
		snprintf(out, room, "-");
	} else if (*value == '"') {
		for (value++; *value && *value != '"' && n + 1 < room; value++)
			out[n++] = *value == '\\' && value[1] ? *++value : *value;
		out[n] = 0;
	} else if (ends_with(name, "_bytes") || ends_with(name, "_bytes_before")) {
		format_bytes(number, out);
	} else if (ends_with(name, "_us")) {
		snprintf(out, room, number < 10000 ? "%.2f ms" : "%.0f ms", (double)number / 1000);
	} else if (ends_with(name, "_time")) {
		time_t seconds = (time_t)number;
		struct tm tm;

		/* A damaged object may name one that is in no calendar. */
		if (number > INT64_MAX || !gmtime_r(&seconds, &tm) ||
			!strftime(out, room, "%Y-%m-%d %H:%M:%S UTC", &tm))
			snprintf(out, room, "%s", value);
	} else if (strcmp(value, "true") == 0 || strcmp(value, "false") == 0) {
		snprintf(out, room, "%s", *value == 't' ? "yes" : "no");
	} else {
		snprintf(out, room, "%s", value);
	}
	return out;
}

/* A table: all columns but the last as wide as their widest cell. */
struct table {
	char **cells;
	size_t rows, columns;
};

static void add_cell(struct table *t, size_t index, const char *text)
{
	t->cells = grow(t->cells, index, sizeof *t->cells);
	t->cells[index] = copy(text);
}

static void free_table(struct table *t)
{
	for (size_t i = 0; i < t->rows * t->columns; i++)
		free(t->cells[i]);
	free(t->cells);
}

static void print_table(struct table *t)
{
	int widths[METRICS + COLUMNS] = {0};

	for (size_t i = 0; i < t->rows * t->columns; i++) {
		int n = (int)strlen(t->cells[i]);

		if (n > widths[i % t->columns])
			widths[i % t->columns] = n;
	}
	for (size_t i = 0; i < t->rows * t->columns; i++) {
		if ((i + 1) % t->columns)
			printf("%-*s  ", widths[i % t->columns], t->cells[i]);
		else
			printf("%s\n", t->cells[i]);
	}
	free_table(t);
}

static void print_rows(const struct answer *a, const struct kind *kind)
{
	struct table t = {.rows = 1};
	char value[S3_KEY_MAX + 16], text[sizeof value];
	size_t n = 0;

	if (a->n_rows == 0)
		return;
	while (t.columns < COLUMNS && kind->columns[t.columns])
		add_cell(&t, n++, kind->columns[t.columns++]);
	for (size_t i = 0; i < a->n_rows; i++, t.rows++) {
		const char *p = a->rows[i];

		for (size_t column = 0; column < t.columns; column++) {
			if (!next_value(&p, value, sizeof value))
				strcpy(value, "null");
			add_cell(&t, n++, human(kind->columns[column], value, text, sizeof text));
		}
	}
	print_table(&t);
}

static bool is_of_requests(const char *name)
{
	char other[64];

	for (size_t i = 0; i < REQUESTS; i++)
		for (size_t j = 0; j < METRICS; j++) {
			snprintf(other, sizeof other, "%s_%s", requests[i], metrics[j]);
			if (strcmp(name, other) == 0)
				return true;
		}
	return false;
}

static void print_requests(const struct answer *a)
{
	struct table t = {.rows = 1, .columns = METRICS + 1};
	char name[64], text[64];
	size_t n = 0;

	add_cell(&t, n++, "request");
	for (size_t j = 0; j < METRICS; j++) {
		char heading[32];

		snprintf(heading, sizeof heading, "%s", metrics[j]);
		if (ends_with(heading, "_us"))
			heading[strlen(heading) - 3] = 0;
		add_cell(&t, n++, heading);
	}
	for (size_t i = 0; i < REQUESTS; i++) {
		snprintf(name, sizeof name, "%s_requests", requests[i]);
		if (answer_number(a, name) == 0)
			continue;
		add_cell(&t, n++, requests[i]);
		for (size_t j = 0; j < METRICS; j++) {
			const char *value;

			snprintf(name, sizeof name, "%s_%s", requests[i], metrics[j]);
			value = answer_value(a, name);
			/* A heading "bytes" stands for a size, too. */
			if (value && strcmp(metrics[j], "bytes") == 0)
				add_cell(&t, n++, format_bytes(strtoull(value, NULL, 10), text));
			else
				add_cell(&t, n++,
					value ? human(name, value, text, sizeof text) : "-");
		}
		t.rows++;
	}
	if (t.rows > 1) {
		print_table(&t);
		printf("\n");
	} else {
		free_table(&t);
	}
}

static void print_human(const struct answer *a)
{
	const struct kind *kind = kind_of(a);
	char text[S3_KEY_MAX + 16];

	print_requests(a);
	for (size_t i = 0; i < a->n_items; i++)
		if (!is_of_requests(a->items[i].name))
			printf("%-22s  %s\n", a->items[i].name,
				human(a->items[i].name, a->items[i].value, text, sizeof text));
	if (kind)
		print_rows(a, kind);
}

/* ---- for programs ----------------------------------------------------------------------- */

static void print_row(const char *row, const struct kind *kind)
{
	char value[S3_KEY_MAX + 16];

	printf("{");
	for (size_t i = 0; kind->columns[i] && next_value(&row, value, sizeof value); i++)
		printf("%s\"%s\": %s", i ? ", " : "", kind->columns[i], value);
	printf("}");
}

static void print_json(const struct answer *a)
{
	const struct kind *kind = kind_of(a);

	printf("{");
	for (size_t i = 0; i < a->n_items; i++)
		printf("%s\"%s\": %s", i ? ", " : "", a->items[i].name, a->items[i].value);
	if (kind) {
		printf("%s\"%s\": [", a->n_items ? ", " : "", kind->list);
		for (size_t i = 0; i < a->n_rows; i++) {
			printf("%s", i ? ", " : "");
			print_row(a->rows[i], kind);
		}
		printf("]");
	}
	printf("}\n");
}

/* https://prometheus.io/docs/instrumenting/exposition_formats/ */
static void print_prometheus(const struct answer *a)
{
	for (size_t i = 0; i < a->n_items; i++) {
		const char *value = a->items[i].value;

		if (*value == '"' || strcmp(value, "null") == 0)
			continue;
		if (strcmp(value, "true") == 0)
			value = "1";
		else if (strcmp(value, "false") == 0)
			value = "0";
		printf("userblk_s3_%s{volume=\"%s\"} %s\n", a->items[i].name,
			a->options->config.volume, value);
	}
}

static void add(struct answer *a, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct answer *a, const char *format, ...)
{
	char line[128];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof line, format, args);
	va_end(args);
	answer_line(a, line);
}

/* Stores ask money for requests; those that delete are free at Amazon. */
static void add_cost(struct answer *a)
{
	static const char *const put[] = {"put", "list"}, *const get[] = {"get", "head"};
	double writes = 0, reads = 0, cost, uptime = answer_number(a, "uptime_seconds");
	char name[64];

	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof name, "store_%s_requests", put[i]);
		writes += answer_number(a, name);
		snprintf(name, sizeof name, "store_%s_retries", put[i]);
		writes += answer_number(a, name);
		snprintf(name, sizeof name, "store_%s_requests", get[i]);
		reads += answer_number(a, name);
		snprintf(name, sizeof name, "store_%s_retries", get[i]);
		reads += answer_number(a, name);
	}
	reads += answer_number(a, "store_get_hedges");
	cost = writes / 1000 * a->options->price_put + reads / 1000 * a->options->price_get;
	add(a, "request_cost %.6f", cost);
	if (uptime > 0)
		add(a, "request_cost_per_day %.6f", cost / uptime * 86400);
}

void answer_print(struct answer *a)
{
	progress_clear(&a->progress);
	if (a->options->command == COMMAND_STATS)
		add_cost(a);
	if (a->options->json)
		print_json(a);
	else if (a->options->prometheus)
		print_prometheus(a);
	else
		print_human(a);
}
