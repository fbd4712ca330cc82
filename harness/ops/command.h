/* SPDX-License-Identifier: BSD-3-Clause */
/* What the programs that repeat operations have in common on their command lines. */
#ifndef OPS_COMMAND_H
#define OPS_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

/* The name of the program, which its main.c defines. */
extern const char command_name[];

/* The value of an option. False: reported. */
bool take_number(
	const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *out);
/* One of count words, by its number. */
bool take_word(const char *option, const char *text, const char *const *words, unsigned count,
	unsigned *out);

/* The options that all of these programs have. */
struct common_options {
	double seconds; /* 0: no limit */
	double interval;
	uint64_t count; /* operations of each worker; 0: no limit */
	uint64_t seed;
	const char *json; /* or NULL */
};

#define COMMON_DEFAULTS                                                                            \
	{                                                                                          \
		.seconds = 30, .interval = 1, .seed = 1                                            \
	}

enum common_option {
	COMMON_SECONDS = 1000,
	COMMON_COUNT,
	COMMON_INTERVAL,
	COMMON_SEED,
	COMMON_JSON,
};

/* Rows of the table for getopt_long(). */
#define COMMON_ROWS                                                                                \
	{"seconds", required_argument, NULL, COMMON_SECONDS},                                      \
		{"count", required_argument, NULL, COMMON_COUNT},                                  \
		{"interval", required_argument, NULL, COMMON_INTERVAL},                            \
		{"seed", required_argument, NULL, COMMON_SEED},                                    \
	{                                                                                          \
		"json", required_argument, NULL, COMMON_JSON                                       \
	}

/*
 * What getopt_long() returned and the program itself does not know, after it has stopped at
 * argv[optind - 1]: one of the common options, or a mistake. False: reported.
 */
bool take_common(int returned, char **argv, struct common_options *out);
/* Not more than one argument after the options. False: reported. */
bool take_at_most_one(int argc, char **argv);

/* DIRECTORY/NAME as the place of what a program makes: there already if it is only used, else
 * not. False: reported. */
bool take_place(const char *directory, const char *name, bool used, const char *maker, char *out);

#endif
