/* SPDX-License-Identifier: BSD-3-Clause */
#include "wml_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct attr_row {
	const char *name, *synonym;
	unsigned objects; /* bit per wml_object_kind */
};

#define ON(kind) (1u << (kind))
#define FILES	 (ON(WML_FILESET) | ON(WML_FILE))

static const struct attr_row attr_rows[ATTR_COUNT] = {
	[ATTR_NAME] = {"name", NULL, FILES | ON(WML_PROCESS) | ON(WML_THREAD) | ON(WML_FLOWOP)},
	[ATTR_PATH] = {"path", NULL, FILES},
	[ATTR_ENTRIES] = {"entries", NULL, ON(WML_FILESET)},
	[ATTR_SIZE] = {"size", "filesize", FILES},
	[ATTR_PREALLOC] = {"prealloc", NULL, FILES},
	[ATTR_PARALLOC] = {"paralloc", NULL, FILES},
	[ATTR_REUSE] = {"reuse", NULL, FILES},
	[ATTR_READONLY] = {"readonly", NULL, FILES},
	[ATTR_WRITEONLY] = {"writeonly", NULL, FILES},
	[ATTR_DIRWIDTH] = {"dirwidth", NULL, ON(WML_FILESET)},
	[ATTR_DIRGAMMA] = {"dirgamma", NULL, ON(WML_FILESET)},
	[ATTR_INSTANCES] = {"instances", NULL, ON(WML_PROCESS) | ON(WML_THREAD)},
	[ATTR_MEMSIZE] = {"memsize", NULL, ON(WML_THREAD)},
	[ATTR_FILESET] = {"filesetname", "filename", ON(WML_FLOWOP)},
	[ATTR_FD] = {"fd", NULL, ON(WML_FLOWOP)},
	[ATTR_SRCFD] = {"srcfd", NULL, ON(WML_FLOWOP)},
	[ATTR_IOSIZE] = {"iosize", NULL, ON(WML_FLOWOP)},
	[ATTR_WORKINGSET] = {"workingset", NULL, ON(WML_FLOWOP)},
	[ATTR_RANDOM] = {"random", NULL, ON(WML_FLOWOP)},
	[ATTR_ITERS] = {"iters", NULL, ON(WML_FLOWOP)},
	[ATTR_VALUE] = {"value", NULL, ON(WML_FLOWOP)},
	[ATTR_TARGET] = {"target", NULL, ON(WML_FLOWOP)},
	[ATTR_DSYNC] = {"dsync", NULL, ON(WML_FLOWOP)},
	[ATTR_DIRECTIO] = {"directio", NULL, ON(WML_FLOWOP)},
	[ATTR_INDEXED] = {"indexed", NULL, ON(WML_FLOWOP)},
	[ATTR_NOREADAHEAD] = {"noreadahead", NULL, ON(WML_FLOWOP)},
	[ATTR_OPENNEXT] = {"opennext", NULL, ON(WML_FLOWOP)},
	[ATTR_HIGHWATER] = {"highwater", NULL, ON(WML_FLOWOP)},
	[ATTR_BLOCKING] = {"blocking", NULL, ON(WML_FLOWOP)},
	[ATTR_USEISM] = {"useism", NULL, ON(WML_THREAD)},
};

static const char *const object_names[] = {
	[WML_FILESET] = "fileset",
	[WML_FILE] = "file",
	[WML_PROCESS] = "process",
	[WML_THREAD] = "thread",
	[WML_FLOWOP] = "flowop",
};

static const char *const flowop_names[FLOWOP_TYPES] = {
	[FLOWOP_CREATEFILE] = "createfile",
	[FLOWOP_OPENFILE] = "openfile",
	[FLOWOP_CLOSEFILE] = "closefile",
	[FLOWOP_DELETEFILE] = "deletefile",
	[FLOWOP_STATFILE] = "statfile",
	[FLOWOP_FSYNC] = "fsync",
	[FLOWOP_READWHOLEFILE] = "readwholefile",
	[FLOWOP_WRITEWHOLEFILE] = "writewholefile",
	[FLOWOP_APPENDFILE] = "appendfile",
	[FLOWOP_APPENDFILERAND] = "appendfilerand",
	[FLOWOP_READ] = "read",
	[FLOWOP_WRITE] = "write",
	[FLOWOP_FINISHONCOUNT] = "finishoncount",
	[FLOWOP_FINISHONBYTES] = "finishonbytes",
	[FLOWOP_AIOWRITE] = "aiowrite",
	[FLOWOP_AIOWAIT] = "aiowait",
	[FLOWOP_HOG] = "hog",
	[FLOWOP_SEMBLOCK] = "semblock",
	[FLOWOP_SEMPOST] = "sempost",
	[FLOWOP_EVENTLIMIT] = "eventlimit",
};

static const struct {
	const char *word;
	enum wml_command command;
} commands[] = {
	{"set", CMD_SET},
	{"define", CMD_DEFINE},
	{"create", CMD_CREATE},
	{"run", CMD_RUN},
	{"psrun", CMD_PSRUN},
	{"sleep", CMD_SLEEP},
	{"system", CMD_SYSTEM},
	{"echo", CMD_ECHO},
	{"eventgen", CMD_EVENTGEN},
	{"quit", CMD_QUIT},
};
#define COMMANDS (sizeof commands / sizeof *commands)

bool flow_error_set(struct flow_error *error, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(error->text, sizeof error->text, format, ap);
	va_end(ap);
	return false;
}

const char *flowop_type_name(enum flowop_type type)
{
	return flowop_names[type];
}

const char *wml_attr_name(enum wml_attr attr)
{
	return attr_rows[attr].name;
}

static bool expected(struct parser *p, const char *what)
{
	const struct token *t = &p->token;

	if (t->kind == TOKEN_END)
		return flow_error_set(p->error, "%s:%d: expected %s, found the end of the file",
			p->wml->file, t->line, what);
	return flow_error_set(p->error, "%s:%d: expected %s, found %s%s%s", p->wml->file, t->line,
		what,
		t->kind == TOKEN_VARIABLE ? "'$"
		: t->kind == TOKEN_STRING ? "\""
					  : "'",
		t->text, t->kind == TOKEN_STRING ? "\"" : "'");
}

static bool is_word(const struct parser *p, const char *word)
{
	return p->token.kind == TOKEN_WORD && strcmp(p->token.text, word) == 0;
}

static bool is_punctuation(const struct parser *p, char c)
{
	return p->token.kind == TOKEN_PUNCTUATION && p->token.text[0] == c;
}

static bool take_punctuation(struct parser *p, char c, const char *what)
{
	if (!is_punctuation(p, c))
		return expected(p, what);
	return wml_next(p);
}

static struct wml_variable *variable(struct wml *wml, const char *name)
{
	struct wml_variable *v = wml_find_variable(wml, name, strlen(name));

	if (v == NULL) {
		v = wml_alloc(wml, sizeof *v);
		v->name = name;
		v->next = wml->variables;
		wml->variables = v;
	}
	return v;
}

/* An argument of cvar(): a number, whole or not. */
static bool parse_double(struct parser *p, const char *text, double *out)
{
	char *end;

	*out = strtod(text, &end);
	if (end == text || *end != '\0' || !(*out >= 0) || *out > 0x1p62)
		return expected(p, "a number not below 0");
	return true;
}

/* mean:X;gamma:Y */
static bool parse_cvar_parameters(struct parser *p, struct cvar *cvar)
{
	char copy[256], *save = NULL;

	if ((p->token.kind != TOKEN_WORD && p->token.kind != TOKEN_STRING) ||
		strlen(p->token.text) >= sizeof copy)
		return expected(p, "mean:NUMBER;gamma:NUMBER");
	strcpy(copy, p->token.text);
	for (char *item = strtok_r(copy, ";", &save); item != NULL;
		item = strtok_r(NULL, ";", &save)) {
		double *out = strncmp(item, "mean:", 5) == 0	? &cvar->mean
			      : strncmp(item, "gamma:", 6) == 0 ? &cvar->gamma
								: NULL;

		if (out == NULL)
			return expected(p, "mean:NUMBER;gamma:NUMBER");
		if (!parse_double(p, strchr(item, ':') + 1, out))
			return false;
	}
	return true;
}

static bool parse_cvar(struct parser *p, struct cvar *cvar)
{
	static const char what[] = "type=cvar-gamma, parameters=, min=, max= or round=";

	*cvar = (struct cvar){.mean = 4096, .gamma = 1.5};
	if (!wml_next(p) || !take_punctuation(p, '(', "'(' after cvar"))
		return false;
	for (;;) {
		const char *key = p->token.text;
		int line = p->token.line;

		if (p->token.kind != TOKEN_WORD)
			return expected(p, what);

		double *out = strcmp(key, "min") == 0	  ? &cvar->min
			      : strcmp(key, "max") == 0	  ? &cvar->max
			      : strcmp(key, "round") == 0 ? &cvar->round
							  : NULL;

		if (out == NULL && strcmp(key, "type") != 0 && strcmp(key, "parameters") != 0)
			return expected(p, what);
		if (!wml_next(p) || !take_punctuation(p, '=', "'='"))
			return false;
		if (out != NULL) {
			if (p->token.kind != TOKEN_INT || p->token.integer < 0)
				return expected(p, "a number not below 0");
			*out = (double)p->token.integer;
		} else if (strcmp(key, "type") == 0) {
			if (!is_word(p, "cvar-gamma"))
				return expected(p, "cvar-gamma, the one type");
		} else if (!parse_cvar_parameters(p, cvar)) {
			return false;
		}
		if (!wml_next(p))
			return false;
		if (is_punctuation(p, ')')) {
			if (cvar->mean <= 0 || cvar->gamma <= 0)
				return flow_error_set(p->error,
					"%s:%d: expected mean and gamma of a cvar above 0",
					p->wml->file, line);
			return wml_next(p);
		}
		if (!take_punctuation(p, ',', "',' or ')'"))
			return false;
	}
}

/* What `set` takes. */
static bool parse_value(struct parser *p, struct wml_value *value)
{
	*value = (struct wml_value){0};
	if (p->token.kind == TOKEN_INT) {
		value->kind = WML_INT;
		value->integer = p->token.integer;
	} else if (is_word(p, "true") || is_word(p, "false")) {
		value->kind = WML_BOOL;
		value->integer = is_word(p, "true");
	} else if (is_word(p, "cvar")) {
		value->kind = WML_CVAR;
		return parse_cvar(p, &value->cvar);
	} else if (p->token.kind == TOKEN_WORD || p->token.kind == TOKEN_STRING) {
		value->kind = WML_STRING;
		value->string = p->token.text;
	} else {
		return expected(p, "a value: number, true, false, word, \"string\" or cvar(...)");
	}
	return wml_next(p);
}

static bool parse_expr(struct parser *p, struct wml_expr *expr)
{
	expr->line = p->token.line;
	if (p->token.kind == TOKEN_VARIABLE) {
		expr->variable = variable(p->wml, p->token.text);
		return wml_next(p);
	}
	return parse_value(p, &expr->value);
}

/* The attributes of an object as a list for a message. */
static const char *attr_list(enum wml_object_kind kind, char *buffer, size_t size)
{
	size_t n = (size_t)snprintf(buffer, size, "an attribute of %s:", object_names[kind]);
	const char *comma = " ";

	for (int i = 0; i < ATTR_COUNT && n < size; i++)
		if (attr_rows[i].objects & ON(kind)) {
			n += (size_t)snprintf(
				buffer + n, size - n, "%s%s", comma, attr_rows[i].name);
			comma = ", ";
		}
	return buffer;
}

/*
 * Filebench's lexer takes words of the language for keywords wherever they
 * stand, also those of parts that are not taken here.
 */
static bool is_keyword(const char *text)
{
	static const char *const more[] = {"files", "file", "fileset", "process", "thread",
		"flowop", "mode", "timeout", "alldone", "firstdone", "true", "false", "cvar",
		"randvar", "type", "min", "max", "round", "parameters", "seed", "mean", "gamma",
		"uniform", "tabular", "randsrc", "randtable", "rate", "list", "debug", "enable",
		"multi", "lathist", "version", "client", "nice", "ioprio", "leafdirs", "trusttree",
		"dirdepthrv"};

	for (size_t i = 0; i < ATTR_COUNT; i++)
		if (strcmp(text, attr_rows[i].name) == 0 ||
			(attr_rows[i].synonym != NULL && strcmp(text, attr_rows[i].synonym) == 0))
			return true;
	for (size_t i = 0; i < COMMANDS; i++)
		if (strcmp(text, commands[i].word) == 0)
			return true;
	for (size_t i = 0; i < sizeof more / sizeof *more; i++)
		if (strcmp(text, more[i]) == 0)
			return true;
	return false;
}

static bool parse_attr(struct parser *p, struct wml_object *object)
{
	char list[512];
	int attr = 0;

	for (; attr < ATTR_COUNT; attr++)
		if ((attr_rows[attr].objects & ON(object->kind)) &&
			(is_word(p, attr_rows[attr].name) ||
				(attr_rows[attr].synonym != NULL &&
					is_word(p, attr_rows[attr].synonym))))
			break;
	if (attr == ATTR_COUNT)
		return expected(p, attr_list(object->kind, list, sizeof list));

	struct wml_expr *expr = &object->attr[attr];

	if (expr->line != 0)
		return flow_error_set(p->error, "%s:%d: expected attribute %s once, found it again",
			p->wml->file, p->token.line, attr_rows[attr].name);
	*expr = (struct wml_expr){
		.line = p->token.line, .value = {.kind = WML_BOOL, .integer = true}};
	if (!wml_next(p))
		return false;
	if (!is_punctuation(p, '='))
		return true;
	if (!wml_next(p))
		return false;
	if (attr == ATTR_NAME && p->token.kind == TOKEN_WORD && is_keyword(p->token.text))
		return expected(p, "a name that is not a keyword of the language");
	return parse_expr(p, expr);
}

/* KIND was taken; TYPE for a flowop, then attributes. */
static bool parse_object(struct parser *p, enum wml_object_kind kind, struct wml_object **out)
{
	struct wml_object *object = wml_alloc(p->wml, sizeof *object);

	object->kind = kind;
	object->line = p->token.line;
	if (kind == WML_FLOWOP) {
		char list[512] = "a flowop:";
		int type = 0;

		while (type < FLOWOP_TYPES && !is_word(p, flowop_names[type]))
			type++;
		if (type == FLOWOP_TYPES) {
			for (type = 0; type < FLOWOP_TYPES; type++)
				snprintf(list + strlen(list), sizeof list - strlen(list), "%s %s",
					type == 0 ? "" : ",", flowop_names[type]);
			return expected(p, list);
		}
		object->type = (enum flowop_type)type;
		if (!wml_next(p))
			return false;
	}
	for (;;) {
		if (!parse_attr(p, object))
			return false;
		if (!is_punctuation(p, ','))
			break;
		if (!wml_next(p))
			return false;
	}

	bool files = kind == WML_FILESET || kind == WML_FILE;

	if (object->attr[ATTR_NAME].line == 0 || (files && object->attr[ATTR_PATH].line == 0))
		return flow_error_set(p->error,
			"%s:%d: expected attribute %s of %s, which it must have", p->wml->file,
			object->line, object->attr[ATTR_NAME].line == 0 ? "name" : "path",
			object_names[kind]);
	*out = object;
	return true;
}

/* '{' CHILD... '}' of a process or a thread. */
static bool parse_children(struct parser *p, struct wml_object *parent)
{
	enum wml_object_kind kind = parent->kind == WML_PROCESS ? WML_THREAD : WML_FLOWOP;
	struct wml_object **tail = &parent->children;
	char what[64];

	snprintf(what, sizeof what, "',' or '{' and the %ss of the %s", object_names[kind],
		object_names[parent->kind]);
	if (!take_punctuation(p, '{', what))
		return false;
	snprintf(
		what, sizeof what, "%s%s", object_names[kind], kind == WML_THREAD ? "" : " or '}'");
	do {
		if (!is_word(p, object_names[kind]))
			return expected(p, what);
		if (!wml_next(p) || !parse_object(p, kind, tail))
			return false;
		if (kind == WML_THREAD && !parse_children(p, *tail))
			return false;
		tail = &(*tail)->next;
		snprintf(what, sizeof what, "%s or '}'", object_names[kind]);
	} while (!is_punctuation(p, '}'));
	return wml_next(p);
}

static bool parse_define(struct parser *p, struct wml_statement *s)
{
	enum wml_object_kind kind;

	s->command = CMD_DEFINE;
	if (is_word(p, "fileset"))
		kind = WML_FILESET;
	else if (is_word(p, "file"))
		kind = WML_FILE;
	else if (is_word(p, "process"))
		kind = WML_PROCESS;
	else
		return expected(p, "fileset, file or process");
	return wml_next(p) && parse_object(p, kind, &s->object) &&
	       (kind != WML_PROCESS || parse_children(p, s->object));
}

static bool parse_mode(struct parser *p, struct wml_statement *s)
{
	static const char *const modes[] = {
		[MODE_TIMEOUT] = "timeout",
		[MODE_ALLDONE] = "alldone",
		[MODE_FIRSTDONE] = "firstdone",
	};

	s->command = CMD_MODE;
	if (!is_word(p, "quit"))
		return expected(p, "quit after set mode");
	if (!wml_next(p))
		return false;
	for (int mode = MODE_TIMEOUT; mode <= MODE_FIRSTDONE; mode++)
		if (is_word(p, modes[mode])) {
			s->mode = (enum wml_mode)mode;
			return wml_next(p);
		}
	return expected(p, "timeout, alldone or firstdone");
}

static bool parse_set(struct parser *p, struct wml_statement *s)
{
	if (is_word(p, "mode"))
		return wml_next(p) && parse_mode(p, s);
	s->command = CMD_SET;
	if (p->token.kind != TOKEN_VARIABLE)
		return expected(p, "$variable or mode");
	s->variable = variable(p->wml, p->token.text);
	s->variable->assigned = true;
	if (!wml_next(p) || !take_punctuation(p, '=', "'='"))
		return false;
	return parse_value(p, &s->value);
}

/* rate = NUMBER */
static bool parse_rate(struct parser *p, struct wml_statement *s)
{
	if (!is_word(p, "rate"))
		return expected(p, "rate after eventgen");
	if (!wml_next(p) || !take_punctuation(p, '=', "'='"))
		return false;
	if (p->token.kind != TOKEN_INT && p->token.kind != TOKEN_VARIABLE)
		return expected(p, "a number of events per second");
	return parse_expr(p, &s->args[0]);
}

/* Up to n numbers or variables. */
static bool parse_numbers(struct parser *p, struct wml_expr *args, int n)
{
	for (int i = 0; i < n; i++) {
		if (p->token.kind != TOKEN_INT && p->token.kind != TOKEN_VARIABLE)
			return true;
		if (!parse_expr(p, &args[i]))
			return false;
	}
	return true;
}

static bool parse_text(struct parser *p, struct wml_statement *s)
{
	if (p->token.kind != TOKEN_STRING)
		return expected(p, "a \"string\"");
	return parse_expr(p, &s->args[0]);
}

static bool parse_statement(struct parser *p, struct wml_statement *s)
{
	size_t i = 0;

	s->line = p->token.line;
	while (i < COMMANDS && !is_word(p, commands[i].word))
		i++;
	if (i == COMMANDS)
		return expected(p, "a command: set, define, create, run, psrun, sleep, system, "
				   "echo, eventgen or "
				   "quit");
	s->command = commands[i].command;
	if (!wml_next(p))
		return false;
	switch (s->command) {
	case CMD_SET:
		return parse_set(p, s);
	case CMD_DEFINE:
		return parse_define(p, s);
	case CMD_CREATE:
		return is_word(p, "files") ? wml_next(p) : expected(p, "files after create");
	case CMD_RUN:
		return parse_numbers(p, s->args, 1);
	case CMD_PSRUN:
		return parse_numbers(p, s->args, 2);
	case CMD_SLEEP:
		return parse_numbers(p, s->args, 1) &&
		       (s->args[0].line != 0 || expected(p, "a number of seconds after sleep"));
	case CMD_SYSTEM:
	case CMD_ECHO:
		return parse_text(p, s);
	case CMD_EVENTGEN:
		return parse_rate(p, s);
	default:
		return true;
	}
}

/* A variable that is used must be set somewhere. */
static bool check_expr(const struct wml *wml, const struct wml_expr *expr, struct flow_error *error)
{
	if (expr->line != 0 && expr->variable != NULL && !expr->variable->assigned)
		return flow_error_set(error,
			"%s:%d: expected a variable that the file sets, found '$%s'", wml->file,
			expr->line, expr->variable->name);
	return true;
}

static bool check_object(
	const struct wml *wml, const struct wml_object *o, struct flow_error *error)
{
	for (; o != NULL; o = o->next) {
		for (int i = 0; i < ATTR_COUNT; i++)
			if (!check_expr(wml, &o->attr[i], error))
				return false;
		if (!check_object(wml, o->children, error))
			return false;
	}
	return true;
}

struct wml *wml_parse(const char *name, const char *text, struct flow_error *error)
{
	struct wml *wml = calloc(1, sizeof *wml);
	struct parser p = {.wml = wml, .at = text, .line = 1, .error = error};

	if (wml == NULL)
		abort();
	wml->file = wml_text(wml, name, strlen(name));

	struct wml_statement **tail = &wml->statements;
	bool ok = wml_next(&p);

	while (ok && p.token.kind != TOKEN_END) {
		*tail = wml_alloc(wml, sizeof **tail);
		ok = parse_statement(&p, *tail);
		tail = &(*tail)->next;
	}
	for (struct wml_statement *s = wml->statements; ok && s != NULL; s = s->next)
		ok = check_expr(wml, &s->args[0], error) && check_expr(wml, &s->args[1], error) &&
		     check_object(wml, s->object, error);
	if (!ok) {
		wml_free(wml);
		return NULL;
	}
	return wml;
}

struct wml *wml_load(const char *path, struct flow_error *error)
{
	FILE *f = fopen(path, "re");
	char *text = NULL;
	size_t length = 0;

	if (f == NULL) {
		flow_error_set(error, "%s: %m; name a workload file", path);
		return NULL;
	}

	/* A text file holds no NUL, so this reads all of it. */
	ssize_t n = getdelim(&text, &length, '\0', f);
	bool failed = n < 0 && ferror(f);
	bool binary = n > 0 && text[n - 1] == '\0';
	int saved = errno;

	fclose(f);

	struct wml *wml = NULL;

	if (failed)
		flow_error_set(error, "%s: %s; name a workload file", path, strerror(saved));
	else if (binary)
		flow_error_set(error, "%s: not a text file; name a workload file", path);
	else
		wml = wml_parse(path, n < 0 ? "" : text, error);
	free(text);
	return wml;
}

bool wml_pin(struct wml *wml, const char *assignment, struct flow_error *error)
{
	const char *equals = strchr(assignment, '=');

	if (equals == NULL || equals == assignment)
		return flow_error_set(error, "--set %s: write NAME=VALUE", assignment);

	struct wml_variable *v = wml_find_variable(wml, assignment, (size_t)(equals - assignment));

	if (v == NULL || !v->assigned) {
		char names[512] = "";

		for (v = wml->variables; v != NULL; v = v->next)
			snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
				names[0] == '\0' ? "" : ", ", v->name);
		return flow_error_set(error, "--set %s: %s sets no such variable; it sets: %s",
			assignment, wml->file, names[0] == '\0' ? "none" : names);
	}

	/* The value is lexed like the file's; what is none of its tokens is a string. */
	const char *text = equals + 1;
	struct flow_error ignored;
	struct parser p = {.wml = wml, .at = text, .line = 1, .error = &ignored};
	struct wml_value value;

	if (!wml_next(&p) || !parse_value(&p, &value) ||
		(p.token.kind != TOKEN_END && !expected(&p, "the end of the value"))) {
		/* The message begins with file and line, unless a long path has pushed it out. */
		const char *place = strstr(ignored.text, ": ");

		if (strncmp(text, "cvar(", 5) == 0)
			return flow_error_set(error, "--set %s: %s", assignment,
				place != NULL ? place + 2 : ignored.text);
		value = (struct wml_value){
			.kind = WML_STRING, .string = wml_text(wml, text, strlen(text))};
	}
	v->value = value;
	v->defined = v->pinned = true;
	return true;
}
