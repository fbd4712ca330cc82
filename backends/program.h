/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What programs share that serve one device in the foreground: their complaints,
 * numbers among their options, the device's beginning and its end.
 */
#ifndef USERBLK_PROGRAM_H
#define USERBLK_PROGRAM_H

#include "backends/backend.h"

/* A device's host which tells errors on standard error, as warnx(3) does. */
extern const struct backend_host program_host;

/* For getopt_long() when it answers ':' or '?'; word: what it stopped at. Returns EXIT_USAGE. */
int program_wrong_option(int option, const char *word);
/* The value of --OPTION, a number from min to max. False: text is not such a number; reported. */
bool program_number(const char *option, const char *text, long min, long max, long *value);

/* Opens the device of params. 0, or an exit code after an error message. */
int program_open(const struct params *params, struct backend **device);
/* At the end, so that the reader of a result knows of bounced requests and the like. */
void program_tell_counters(struct backend *device);

#endif
