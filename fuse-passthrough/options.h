/* SPDX-License-Identifier: BSD-3-Clause */
/* What the command line says. */
#ifndef USERBLK_FUSE_OPTIONS_H
#define USERBLK_FUSE_OPTIONS_H

#include <stdbool.h>

#include "passthrough.h"

#define NAME "userblk-passthrough"

extern struct options {
	struct session_options session;
	char *source;
	char *passthrough_when;
	int passthrough;
	int noatime, nodiratime;
} options;

/*
 * Reads the arguments; what is libfuse's stays in args. What they mean is in options afterwards,
 * except with help or version, which leave the rest unchecked. false: a mistake, which has been
 * reported.
 */
bool options_read(struct fuse_args *args);

/* --help and --version. */
void options_print_help(void);

/* Frees what options_read() has allocated. */
void options_free(void);

#endif
