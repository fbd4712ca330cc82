/* SPDX-License-Identifier: BSD-3-Clause */
/* userblk-ublk's command line. */
#ifndef USERBLK_UBLK_OPTIONS_H
#define USERBLK_UBLK_OPTIONS_H

#include <stdbool.h>
#include <sys/types.h>

#include "backends/params.h"
#include "ublk/server.h"

enum ublk_command {
	UBLK_COMMAND_HELP,
	UBLK_COMMAND_VERSION,
	UBLK_COMMAND_ADD,
	UBLK_COMMAND_RECOVER,
	UBLK_COMMAND_REPLACE,
	UBLK_COMMAND_DELETE,
	UBLK_COMMAND_STOP, /* a server's own: ublk/stopping.h */
	UBLK_COMMAND_LIST,
	UBLK_COMMAND_INFO,
	UBLK_COMMAND_FEATURES,
};

struct ublk_options {
	enum ublk_command command;
	struct ublk_server_options server; /* its id also for the commands that name a disk */
	struct params *params;		   /* add, replace: complete; the caller frees */
	uint64_t cookie;		   /* stop-for-server: of the disk */
	pid_t parent;			   /* stop-for-server: of its server */
	bool foreground, json, force;
};

/*
 * Parses the arguments after the program's name. -EINVAL: error has the line to
 * print. argv is permuted.
 */
int ublk_options_parse(int argc, char **argv, struct ublk_options *o, struct params_error *error);

/* "3", "ublkb3" or "/dev/ublkb3". -1: none of these. */
int64_t ublk_options_disk(const char *text);

void ublk_options_help(void);

#endif
