/* SPDX-License-Identifier: BSD-3-Clause */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "backends/device.h"
#include "backends/params.h"

/* Where a value came from: a later source only replaces a weaker one. */
enum source { SOURCE_NONE, SOURCE_FILE, SOURCE_DIRECT };

struct params {
	const struct backend_ops *ops;
	char *config;	      /* ops->config_size bytes */
	enum source *sources; /* one per row of ops->params */
	bool config_given;
};

/* The key that every device has and no table lists. */
#define CONFIG_KEY "config"

static void *alloc_or_abort(size_t size)
{
	void *p = calloc(1, size ? size : 1);

	if (!p)
		abort();
	return p;
}

static char *format_or_abort(const char *format, ...) __attribute__((format(printf, 1, 2)));

static char *format_or_abort(const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		abort();
	va_end(args);
	return text;
}

void params_error_set(struct params_error *error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(error->text, sizeof error->text, format, args);
	va_end(args);
	/* It must stay one line, whatever the user typed. */
	for (char *c = error->text; *c; c++)
		if (iscntrl((unsigned char)*c))
			*c = '?';
}

struct params *params_new(const struct backend_ops *ops)
{
	struct params *p = alloc_or_abort(sizeof *p);
	size_t rows = 0;

	while (ops->params[rows].name)
		rows++;
	p->ops = ops;
	p->config = alloc_or_abort(ops->config_size);
	p->sources = alloc_or_abort(rows * sizeof *p->sources);
	return p;
}

void params_free(struct params *p)
{
	if (!p)
		return;
	for (const struct param *row = p->ops->params; row->name; row++)
		if (row->type == PARAM_STRING || row->type == PARAM_PATH)
			free(*(char **)(p->config + row->offset));
	free(p->config);
	free(p->sources);
	free(p);
}

/* The names of ops' parameters, for messages. Caller frees. */
static char *known_names(const struct backend_ops *ops)
{
	char *names = format_or_abort("%s", "");

	for (const struct param *row = ops->params; row->name; row++) {
		char *longer = row->alias ? format_or_abort("%s%s= (or %s=), ", names, row->name,
						    row->alias)
					  : format_or_abort("%s%s=, ", names, row->name);

		free(names);
		names = longer;
	}
	char *all = format_or_abort("%s" CONFIG_KEY "=", names);

	free(names);
	return all;
}

/* "on|off" or "512|4096": what may stand behind the key. Caller frees. */
static char *value_syntax(const struct param *row)
{
	if (row->type == PARAM_BOOL)
		return format_or_abort("on|off");
	if (row->type != PARAM_CHOICE)
		return format_or_abort("%s", row->metavar ? row->metavar : "VALUE");

	char *text = format_or_abort("%s", row->choices[0]);

	for (size_t i = 1; row->choices[i]; i++) {
		char *longer = format_or_abort("%s|%s", text, row->choices[i]);

		free(text);
		text = longer;
	}
	return text;
}

/* A number of digits and, for sizes, a suffix. 0, -EINVAL or -ERANGE. */
static int parse_number(const char *value, bool is_size, uint64_t *out)
{
	static const char suffixes[] = "bkmgtpe";
	uint64_t number, unit = 1;
	char *end;

	if (!isdigit((unsigned char)value[0]))
		return -EINVAL;
	errno = 0;
	number = strtoull(value, &end, 10);
	if (errno)
		return -ERANGE;
	if (is_size && *end) {
		const char *suffix = strchr(suffixes, tolower((unsigned char)*end));

		if (suffix)
			unit = UINT64_C(1) << (10 * (suffix - suffixes));
		else if (*end == 's' || *end == 'S')
			unit = 512;
		else
			return -EINVAL;
		end++;
	}
	if (*end)
		return -EINVAL;
	if (__builtin_mul_overflow(number, unit, out) || (is_size && *out > INT64_MAX))
		return -ERANGE;
	return 0;
}

/* A number as a user writes it: a size with the largest suffix that leaves it whole. */
static const char *number_text(uint64_t number, bool is_size, char text[static 24])
{
	static const char suffixes[] = {0, 'K', 'M', 'G', 'T', 'P', 'E', 0};
	const char *suffix = suffixes;

	for (; is_size && number && number % 1024 == 0; number /= 1024)
		suffix++;
	snprintf(text, 24, "%llu%.1s", (unsigned long long)number, suffix);
	return text;
}

static int set_number(
	const struct param *row, const char *value, uint64_t *field, struct params_error *error)
{
	bool is_size = row->type == PARAM_SIZE;
	uint64_t max = row->max ? row->max : is_size ? INT64_MAX : UINT64_MAX;
	char least[24], most[24];
	uint64_t number;
	int r = parse_number(value, is_size, &number);

	if (r == -EINVAL) {
		params_error_set(error, "%s=%s: not a %s; %s", row->name, value,
			is_size ? "size" : "number",
			is_size ? "write digits and perhaps a suffix b, s (512), K, M, G, T, P or E"
				: "write decimal digits only");
		return -EINVAL;
	}
	if (!r && number < row->min && is_size && !row->max) {
		params_error_set(error, "%s=%s: out of range; it must be at least %s", row->name,
			value, number_text(row->min, is_size, least));
		return -EINVAL;
	}
	if (r || number < row->min || number > max) {
		params_error_set(error, "%s=%s: out of range; it may be %s to %s", row->name, value,
			number_text(row->min, is_size, least), number_text(max, is_size, most));
		return -EINVAL;
	}
	*field = number;
	return 0;
}

static int set_bool(
	const struct param *row, const char *value, bool *field, struct params_error *error)
{
	static const char *const words[][2] = {
		{"off", "on"}, {"false", "true"}, {"no", "yes"}, {"0", "1"}};

	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
		for (int on = 0; on < 2; on++)
			if (strcasecmp(value, words[i][on]) == 0) {
				*field = on;
				return 0;
			}
	params_error_set(error, "%s=%s: neither on nor off; write on or off", row->name, value);
	return -EINVAL;
}

static int set_choice(
	const struct param *row, const char *value, unsigned *field, struct params_error *error)
{
	for (unsigned i = 0; row->choices[i]; i++)
		if (strcmp(value, row->choices[i]) == 0) {
			*field = i;
			return 0;
		}

	char *syntax = value_syntax(row);

	params_error_set(
		error, "%s=%s: no such choice; write %s=%s", row->name, value, row->name, syntax);
	free(syntax);
	return -EINVAL;
}

static int set_text(
	const struct param *row, const char *value, char **field, struct params_error *error)
{
	char *text;

	if (!*value) {
		params_error_set(error, "%s=: empty; give a %s", row->name,
			row->metavar ? row->metavar : "value");
		return -EINVAL;
	}
	if (row->type == PARAM_PATH && value[0] != '/') {
		char *directory = getcwd(NULL, 0);

		if (!directory) {
			int r = -errno;

			params_error_set(error,
				"%s=%s: the current directory is unknown: %s; give an absolute "
				"path",
				row->name, value, strerror(-r));
			return r;
		}
		text = format_or_abort(
			"%s/%s", strcmp(directory, "/") == 0 ? "" : directory, value);
		free(directory);
	} else {
		text = format_or_abort("%s", value);
	}
	free(*field);
	*field = text;
	return 0;
}

/* Parses value into row's field of config. */
static int set_field(
	const struct param *row, const char *value, char *config, struct params_error *error)
{
	void *field = config + row->offset;

	switch (row->type) {
	case PARAM_SIZE:
	case PARAM_UINT:
		return set_number(row, value, field, error);
	case PARAM_BOOL:
		return set_bool(row, value, field, error);
	case PARAM_CHOICE:
		return set_choice(row, value, field, error);
	case PARAM_STRING:
	case PARAM_PATH:
		return set_text(row, value, field, error);
	}
	abort();
}

static const struct param *find_row(const struct backend_ops *ops, const char *key)
{
	for (const struct param *row = ops->params; row->name; row++)
		if (strcmp(row->name, key) == 0 || (row->alias && strcmp(row->alias, key) == 0))
			return row;
	return NULL;
}

static int set_from(struct params *p, const char *key, const char *value, enum source source,
	struct params_error *error)
{
	const struct param *row = find_row(p->ops, key);

	if (!row) {
		char *names = known_names(p->ops);

		params_error_set(error, "%s: unknown parameter of %s; there are %s", key,
			p->ops->name, names);
		free(names);
		return -EINVAL;
	}

	enum source *have = &p->sources[row - p->ops->params];
	/* Messages name it as the user does. */
	struct param named = *row;

	named.name = key;
	if (*have == source) {
		const char *other = strcmp(key, row->name) == 0 ? row->alias : row->name;

		if (other)
			params_error_set(error,
				"%s=%s: given twice (%s= is the same parameter); leave one out",
				key, value, other);
		else
			params_error_set(error, "%s=%s: given twice; leave one out", key, value);
		return -EINVAL;
	}
	if (*have > source) {
		/* Overridden, but a mistake in it is still reported. */
		char *unused = alloc_or_abort(p->ops->config_size);
		int r = set_field(&named, value, unused, error);

		if (row->type == PARAM_STRING || row->type == PARAM_PATH)
			free(*(char **)(unused + row->offset));
		free(unused);
		return r;
	}

	int r = set_field(&named, value, p->config, error);

	if (r == 0)
		*have = source;
	return r;
}

char *params_trim(char *text)
{
	char *end = text + strlen(text);

	while (end > text && isspace((unsigned char)end[-1]))
		end--;
	*end = '\0';
	while (isspace((unsigned char)*text))
		text++;
	return text;
}

/* The '=' behind a key, or NULL. */
static char *find_equals(char *item)
{
	char *equals = strchr(item, '=');

	/* A path may hold a '='; a key holds neither '/' nor '.' nor space. */
	for (const char *c = item; equals && c < equals; c++)
		if (!isalnum((unsigned char)*c) && *c != '-' && *c != '_' && *c != ' ')
			return NULL;
	return equals;
}

/* Splits "key=value" in place. False when there is no key in front of a '='. */
static bool split_pair(char *item, char **key, char **value)
{
	char *equals = find_equals(item);

	if (!equals)
		return false;
	*equals = '\0';
	*key = params_trim(item);
	*value = params_trim(equals + 1);
	return true;
}

static int set_from_file(struct params *p, const char *path, struct params_error *error)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t capacity = 0, number = 0;
	ssize_t length;
	int r = 0;

	if (!file) {
		r = -errno;
		params_error_set(error,
			CONFIG_KEY "=%s: %s; name a readable file of key=value lines", path,
			strerror(-r));
		return r;
	}
	while (r == 0 && (errno = 0, length = getline(&line, &capacity, file)) >= 0) {
		/* What follows one would be left out: a power cut can leave a file of them. */
		bool zero = memchr(line, 0, (size_t)length);
		char *item = params_trim(line), *key, *value;
		struct params_error detail;

		number++;
		if (zero) {
			r = -EINVAL;
			params_error_set(&detail,
				"contains a byte of value 0; write the file again as text");
		} else if (!*item || *item == '#') {
			continue;
		} else if (!split_pair(item, &key, &value)) {
			r = -EINVAL;
			params_error_set(&detail, "not key=value; write one pair per line");
		} else if (strcmp(key, CONFIG_KEY) == 0) {
			r = -EINVAL;
			params_error_set(&detail,
				CONFIG_KEY "=%s: not allowed in a file; "
					   "copy its lines here",
				value);
		} else {
			r = set_from(p, key, value, SOURCE_FILE, &detail);
		}
		if (r)
			params_error_set(
				error, CONFIG_KEY "=%s: line %zu: %s", path, number, detail.text);
	}
	if (r == 0 && ferror(file)) {
		r = errno ? -errno : -EIO;
		params_error_set(error,
			CONFIG_KEY "=%s: %s; name a readable file of key=value lines", path,
			strerror(-r));
	}
	free(line);
	fclose(file);
	return r;
}

int params_set(struct params *p, const char *key, const char *value, struct params_error *error)
{
	if (strcmp(key, CONFIG_KEY) != 0)
		return set_from(p, key, value, SOURCE_DIRECT, error);
	if (p->config_given) {
		params_error_set(error, CONFIG_KEY "=%s: given twice; leave one out", value);
		return -EINVAL;
	}
	p->config_given = true;
	return set_from_file(p, value, error);
}

int params_set_string(struct params *p, const char *text, struct params_error *error)
{
	char *copy = format_or_abort("%s", text), *rest = copy, *item;
	bool first = true;
	int r = 0;

	while (r == 0 && (item = strsep(&rest, ";"))) {
		char *key, *value;

		item = params_trim(item);
		if (!*item) {
			/* Skipped; what follows is still not the first item. */
		} else if (split_pair(item, &key, &value)) {
			r = params_set(p, key, value, error);
		} else if (first && p->ops->main_param) {
			r = params_set(p, p->ops->main_param, item, error);
		} else {
			params_error_set(error,
				"%s: not key=value; write pairs with ';' between them", item);
			r = -EINVAL;
		}
		first = false;
	}
	free(copy);
	return r;
}

int params_complete(struct params *p, bool size_given, struct params_error *error)
{
	for (const struct param *row = p->ops->params; row->name; row++) {
		if (p->sources[row - p->ops->params] != SOURCE_NONE)
			continue;
		if (row->default_value) {
			int r = set_field(row, row->default_value, p->config, error);

			if (r)
				return r;
		} else if (row->required && !(size_given && strcmp(row->name, "size") == 0)) {
			char *syntax = value_syntax(row);

			params_error_set(error, "%s: missing; give %s=%s, %s", row->name, row->name,
				syntax, row->help);
			free(syntax);
			return -EINVAL;
		}
	}
	return p->ops->check ? p->ops->check(p->config, error) : 0;
}

struct params *params_from_argv(char *const *argv, struct params_error *error)
{
	const struct backend_ops *const *devices = backend_devices();
	const struct backend_ops *ops = NULL;
	char names[64] = "";
	struct params *p;
	int r = 0;

	for (size_t i = 0; devices[i]; i++) {
		if (*argv && strcmp(*argv, devices[i]->name) == 0)
			ops = devices[i];
		strncat(names, i ? ", " : "", sizeof names - strlen(names) - 1);
		strncat(names, devices[i]->name, sizeof names - strlen(names) - 1);
	}
	if (!ops) {
		params_error_set(error, "%s: %s; name one of %s", *argv ? *argv : "DEVICE",
			*argv ? "no such device" : "missing", names);
		return NULL;
	}
	p = params_new(ops);
	for (argv++; r == 0 && *argv; argv++) {
		char *equals = find_equals(*argv);

		if (equals) {
			*equals = 0;
			r = params_set(p, *argv, equals + 1, error);
			*equals = '=';
		} else {
			r = params_set(p, ops->main_param, *argv, error);
		}
	}
	if (r == 0)
		r = params_complete(p, false, error);
	if (r < 0) {
		params_free(p);
		return NULL;
	}
	return p;
}

const struct backend_ops *params_ops(const struct params *p)
{
	return p->ops;
}

const void *params_config(const struct params *p)
{
	return p->config;
}

bool params_given(const struct params *p, const char *name)
{
	const struct param *row = find_row(p->ops, name);

	if (!row)
		return strcmp(name, CONFIG_KEY) == 0 && p->config_given;
	return p->sources[row - p->ops->params] != SOURCE_NONE;
}

char *params_help(const struct backend_ops *ops)
{
	char *text = NULL;
	size_t length = 0;
	FILE *stream = open_memstream(&text, &length);

	if (!stream)
		abort();
	for (const struct param *row = ops->params; row->name; row++) {
		char *syntax = value_syntax(row);
		char *pair = format_or_abort("%s=<%s>", row->name, syntax);

		fprintf(stream, "    %-24s ", pair);
		if (row->required)
			fprintf(stream, "(required) ");
		else if (row->default_value)
			fprintf(stream, "(default %s) ", row->default_value);
		fprintf(stream, "%s", row->help);
		if (row->alias)
			fprintf(stream, "; %s= is the same", row->alias);
		fprintf(stream, ".\n");
		free(pair);
		free(syntax);
	}
	fprintf(stream, "    %-24s read further key=value lines from FILE.\n",
		CONFIG_KEY "=<FILE>");
	if (fclose(stream))
		abort();
	return text;
}

char *params_names(const struct backend_ops *ops)
{
	char *names = format_or_abort(CONFIG_KEY);

	for (const struct param *row = ops->params; row->name; row++) {
		char *longer = format_or_abort("%s %s", names, row->name);

		free(names);
		names = longer;
	}
	return names;
}

void params_print_devices(void)
{
	const struct backend_ops *const *devices = backend_devices();

	for (; *devices; devices++) {
		char *help = params_help(*devices);

		printf("\nDevice %s: %s\n%s", (*devices)->name, (*devices)->summary, help);
		free(help);
	}
}
