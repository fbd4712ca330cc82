/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What programs share that serve one device in the foreground: their complaints,
 * numbers among their options, the device's beginning and its end.
 */
#ifndef USERBLK_PROGRAM_H
#define USERBLK_PROGRAM_H

#include "backends/backend.h"

/* Exit codes: of a mistake that a user can fix, and of what the kernel or the machine refuses. */
#define EXIT_USAGE  2
#define EXIT_FAILED 1

/* A line on standard error behind the program's name, like printf, without newline. */
void program_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A device's host which tells errors like that. */
extern const struct backend_host program_host;

/* For getopt_long() when it answers ':' or '?'; word: what it stopped at. Returns EXIT_USAGE. */
int program_wrong_option(int got, const char *word);
/* The value of --OPTION, a number from min to max. False: text is none, which was reported. */
bool program_number(const char *option, const char *text, long min, long max, long *value);

/*
 * Opens the device of params and lets it start, so that no fork may follow. 0, or
 * an exit code after an error message.
 */
int program_open(const struct params *params, struct backend **device);
/* At the end, so that the reader of a result knows of bounced requests and the like. */
void program_tell_counters(struct backend *device);

#endif
