/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * key=value parameters: one table per device, one parser, one error style for
 * every framework.
 *
 * The three ways in are a pair (nbdkit's command line, a server's arguments), a
 * string of pairs separated by ';' (a TCMU cfgstring) and config=FILE (a pair a
 * line, '#' starts a comment line). A pair given on the command line or in a
 * cfgstring wins over the same key in the file; the same key twice in one
 * source is an error.
 *
 * An error is one line: "PARAMETER=VALUE: what is wrong; remedy".
 */
#ifndef USERBLK_PARAMS_H
#define USERBLK_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a device in a module of its own calls of the program that loads it. */
#define BACKEND_EXPORTED __attribute__((visibility("default")))

struct backend_ops;

enum param_type {
	PARAM_SIZE,   /* uint64_t: bytes, with suffix b s K M G T P E, as nbdkit takes it */
	PARAM_UINT,   /* uint64_t */
	PARAM_BOOL,   /* bool: on|off, true|false, yes|no, 1|0 */
	PARAM_CHOICE, /* unsigned: index into choices */
	PARAM_STRING, /* char *: owned by the params */
	PARAM_PATH,   /* char *: made absolute at once, since servers change directory */
};

/* A row of a device's parameter table. */
struct param {
	const char *name;
	const char *alias; /* another program's name for it, which is accepted too, or NULL */
	enum param_type type;
	size_t offset;		    /* of the value in the device's config struct */
	const char *default_value;  /* parsed like user input; NULL: zero/false/NULL when absent */
	bool required;		    /* unless the framework gives it: see params_complete() */
	uint64_t min, max;	    /* SIZE and UINT, inclusive; max 0: no limit */
	const char *const *choices; /* CHOICE: NULL-terminated */
	const char *metavar;	    /* "FILE", "SIZE", ... for help */
	const char *help;	    /* one sentence, no full stop */
};

/* One line that a user can act on. */
struct params_error {
	char text[1024];
};

/* Writes a line into error. */
BACKEND_EXPORTED void params_error_set(struct params_error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Cuts white space off both ends of text, in place; returns where the rest begins. */
BACKEND_EXPORTED char *params_trim(char *text);

struct params;

/* Never NULL: out of memory aborts, as it is called at start-up only. */
struct params *params_new(const struct backend_ops *ops);
void params_free(struct params *p);

/* Takes one pair; key "config" names a file of pairs. 0 or -EINVAL (or the errno of the file). */
int params_set(struct params *p, const char *key, const char *value, struct params_error *error);
/* Takes "key=value;key=value"; a first item without "key=" is the main parameter; empty items are
 * skipped. */
int params_set_string(struct params *p, const char *text, struct params_error *error);
/*
 * A device and its pairs as they stand on a command line: NAME [KEY=VALUE]...,
 * ended by NULL; a word without "KEY=" is the main parameter. The complete params; NULL: error says
 * why. argv is as before when it returns.
 */
struct params *params_from_argv(char *const *argv, struct params_error *error);
/*
 * Applies defaults, checks required parameters and the device's own check().
 * size_given: the framework tells the size (TCMU), so a required "size" may be absent.
 */
int params_complete(struct params *p, bool size_given, struct params_error *error);

const struct backend_ops *params_ops(const struct params *p);
/* The device's config struct, valid after params_complete() until params_free(). */
const void *params_config(const struct params *p);
/* Was the parameter named by the user? */
bool params_given(const struct params *p, const char *name);

/*
 * Help for --help: a line or more per parameter,
 * "    file=<FILE>   (required) what it is". Caller frees.
 */
char *params_help(const struct backend_ops *ops);
/* What --help of a program that serves several devices says of them. */
void params_print_devices(void);
/* "config file direct": the names of all parameters after config=, for a program to read. Caller
 * frees. */
char *params_names(const struct backend_ops *ops);

#endif
