/* SPDX-License-Identifier: BSD-3-Clause */
/* userblk-ublk's command line. */
#ifndef USERBLK_UBLK_OPTIONS_H
#define USERBLK_UBLK_OPTIONS_H

#include <stdbool.h>

#include "backends/params.h"
#include "ublk/server.h"

enum command {
	COMMAND_HELP,
	COMMAND_VERSION,
	COMMAND_ADD,
	COMMAND_RECOVER,
	COMMAND_REPLACE,
	COMMAND_DELETE,
	COMMAND_LIST,
	COMMAND_INFO,
	COMMAND_FEATURES,
};

struct options {
	enum command command;
	struct server_options server; /* its id also for the commands that name a disk */
	struct params *params;	      /* add, replace: complete; the caller frees */
	bool foreground, json, force;
};

/*
 * Parses the arguments after the program's name. -EINVAL: error has the line to
 * print. argv is permuted.
 */
int options_parse(int argc, char **argv, struct options *o, struct params_error *error);

/* "3", "ublkb3" or "/dev/ublkb3". -1: none of these. */
int64_t options_disk(const char *text);

void options_help(void);

#endif
