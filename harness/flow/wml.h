/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The subset of Filebench's workload language that userblk-flow runs: lexer,
 * parser and the values of attributes. docs/flow.md describes the language.
 *
 * An attribute that names a variable refers to it: its value is that of the
 * variable when it is asked for, not when it was written.
 */
#ifndef FLOW_WML_H
#define FLOW_WML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "random.h"

/* One line that a user can act on: "FILE:LINE: what is wrong; remedy". */
struct flow_error {
	char text[1024];
};

/* Writes the line and returns false, so that a caller can return it. */
bool flow_error_set(struct flow_error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

enum wml_kind {
	WML_INT,
	WML_BOOL,
	WML_STRING,
	WML_CVAR,
};

struct wml_value {
	enum wml_kind kind;
	int64_t integer; /* INT and BOOL */
	const char *string;
	struct cvar cvar;
};

struct wml_variable {
	struct wml_variable *next;
	const char *name;
	bool assigned; /* the file sets it somewhere */
	bool defined;  /* it has a value now */
	bool pinned;   /* the command line gave it one, which `set` does not change */
	struct wml_value value;
};

/* Right side of an attribute, or an argument of a command. */
struct wml_expr {
	int line;		       /* 0: absent */
	struct wml_variable *variable; /* NULL: value */
	struct wml_value value;
};

enum wml_attr {
	ATTR_NAME,
	ATTR_PATH,
	ATTR_ENTRIES,
	ATTR_SIZE,
	ATTR_PREALLOC,
	ATTR_PARALLOC,
	ATTR_REUSE,
	ATTR_READONLY,
	ATTR_WRITEONLY,
	ATTR_DIRWIDTH,
	ATTR_DIRGAMMA,
	ATTR_INSTANCES,
	ATTR_MEMSIZE,
	ATTR_FILESET,
	ATTR_FD,
	ATTR_SRCFD,
	ATTR_IOSIZE,
	ATTR_WORKINGSET,
	ATTR_RANDOM,
	ATTR_ITERS,
	ATTR_VALUE,
	ATTR_TARGET,
	ATTR_DSYNC,
	ATTR_DIRECTIO,
	ATTR_INDEXED,
	ATTR_NOREADAHEAD,
	ATTR_OPENNEXT,
	ATTR_HIGHWATER,
	ATTR_BLOCKING,
	ATTR_USEISM,
	ATTR_COUNT,
};

enum wml_object_kind {
	WML_FILESET,
	WML_FILE,
	WML_PROCESS,
	WML_THREAD,
	WML_FLOWOP,
};

enum flowop_type {
	FLOWOP_CREATEFILE,
	FLOWOP_OPENFILE,
	FLOWOP_CLOSEFILE,
	FLOWOP_DELETEFILE,
	FLOWOP_STATFILE,
	FLOWOP_FSYNC,
	FLOWOP_READWHOLEFILE,
	FLOWOP_WRITEWHOLEFILE,
	FLOWOP_APPENDFILE,
	FLOWOP_APPENDFILERAND,
	FLOWOP_READ,
	FLOWOP_WRITE,
	FLOWOP_AIOWRITE,
	FLOWOP_AIOWAIT,
	FLOWOP_FINISHONCOUNT, /* these and what follows: no operations of the summary */
	FLOWOP_FINISHONBYTES,
	FLOWOP_HOG,
	FLOWOP_SEMBLOCK,
	FLOWOP_SEMPOST,
	FLOWOP_EVENTLIMIT,
	FLOWOP_TYPES,
};

struct wml_object {
	struct wml_object *next;     /* in order of definition */
	struct wml_object *children; /* threads of a process, flowops of a thread */
	enum wml_object_kind kind;
	enum flowop_type type; /* FLOWOP */
	int line;
	struct wml_expr attr[ATTR_COUNT];
};

enum wml_mode {
	MODE_TIMEOUT,
	MODE_ALLDONE,
	MODE_FIRSTDONE,
};

enum wml_command {
	CMD_SET,
	CMD_MODE,
	CMD_DEFINE, /* object */
	CMD_CREATE,
	CMD_RUN,      /* args[0]: seconds */
	CMD_PSRUN,    /* args[0]: period, args[1]: seconds */
	CMD_SLEEP,    /* args[0]: seconds */
	CMD_SYSTEM,   /* args[0] */
	CMD_ECHO,     /* args[0] */
	CMD_EVENTGEN, /* args[0]: events per second */
	CMD_QUIT,
};

struct wml_statement {
	struct wml_statement *next;
	enum wml_command command;
	int line;
	struct wml_variable *variable; /* SET */
	struct wml_value value;	       /* SET */
	enum wml_mode mode;	       /* MODE */
	struct wml_object *object;     /* DEFINE */
	struct wml_expr args[2];
};

struct wml {
	const char *file; /* as the user named it, for messages */
	struct wml_statement *statements;
	struct wml_variable *variables;
	struct wml_block *blocks; /* everything above */
};

/* The word for a flowop, such as "openfile". */
const char *flowop_type_name(enum flowop_type type);

/*
 * Reads a workload file, or the text of one: name is what messages call it.
 * NULL and a line in error when it cannot be read or is not in the language.
 */
struct wml *wml_load(const char *path, struct flow_error *error);
struct wml *wml_parse(const char *name, const char *text, struct flow_error *error);
void wml_free(struct wml *wml);

/* Gives a variable of the file the value that "NAME=VALUE" states, for good. */
bool wml_pin(struct wml *wml, const char *assignment, struct flow_error *error);
/* Carries out a CMD_SET. */
void wml_assign(struct wml_variable *variable, const struct wml_value *value);
/* Forgets what `set` gave variables, so that the statements can be run again. */
void wml_reset(struct wml *wml);
/* A value as text; 256 bytes hold all but long strings, which are cut. */
void wml_print(const struct wml_value *value, char *buffer, size_t size);
/* A copy of text, for the caller to free, with $name, ${name} and $(name) replaced. */
char *wml_interpolate(const struct wml *wml, const char *text, int line, struct flow_error *error);

/*
 * The value of an attribute or argument, what naming it in messages; out is
 * left as it was when the expression is absent. False with a line in error if
 * the variable has no value, the kind is wrong or the integer is outside
 * min..max.
 */
bool wml_int(const struct wml *wml, const struct wml_expr *expr, const char *what, int64_t min,
	int64_t max, int64_t *out, struct flow_error *error);
bool wml_bool(const struct wml *wml, const struct wml_expr *expr, const char *what, bool *out,
	struct flow_error *error);
bool wml_string(const struct wml *wml, const struct wml_expr *expr, const char *what,
	const char **out, struct flow_error *error);
bool wml_number(const struct wml *wml, const struct wml_expr *expr, const char *what,
	struct number *out, struct flow_error *error);
/* As the language spells the attribute. */
const char *wml_attr_name(enum wml_attr attr);

#endif
