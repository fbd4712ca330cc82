/* SPDX-License-Identifier: BSD-3-Clause */
/* userblk-s3's command line. */
#ifndef USERBLK_S3_OPTIONS_H
#define USERBLK_S3_OPTIONS_H

#include <stdbool.h>

#include "backends/params.h"
#include "backends/s3/core/config.h"

enum command {
	COMMAND_HELP,
	COMMAND_VERSION,
	COMMAND_CREATE,
	COMMAND_INFO,
	COMMAND_LIST,
	COMMAND_CHECK,
	COMMAND_SNAPSHOT_CREATE,
	COMMAND_SNAPSHOT_LIST,
	COMMAND_SNAPSHOT_DELETE,
	COMMAND_SNAPSHOT_ROLLBACK,
	COMMAND_CLONE,
	COMMAND_RESIZE,
	COMMAND_REKEY,
	COMMAND_GC,
	COMMAND_DELETE,
	COMMAND_STATS,
	COMMAND_ABORT,
};

struct options {
	enum command command;
	bool json, prometheus, take_over;
	const char *confirm;	     /* or NULL */
	const char *new_key;	     /* file, or NULL */
	const char *to_prefix;	     /* of a clone; NULL: its parent's */
	double price_put, price_get; /* of 1000 requests */
	const char *operands[2];     /* in front of the parameters */
	struct params *params;	     /* complete, unless it is help or version; the caller frees */
	/* A copy, to be changed; the strings are the params'. */
	struct s3_config config;
};

/*
 * Parses the arguments after the program's name. -EINVAL: error has the line to print. argv is
 * permuted.
 */
int options_parse(int argc, char **argv, struct options *o, struct params_error *error);

void options_help(void);

#endif
