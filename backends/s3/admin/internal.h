/* SPDX-License-Identifier: BSD-3-Clause */
/* What commands and socket share. control.h is for the others. */
#ifndef USERBLK_S3_ADMIN_INTERNAL_H
#define USERBLK_S3_ADMIN_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backends/s3/admin/control.h"

struct s3_volume;

/* Words of a request: the command and its operands. */
#define S3_MAX_WORDS 4

/* A request under way. */
struct s3_call {
	struct s3_volume *v;
	const char *words[S3_MAX_WORDS];
	const _Atomic bool *stop;
	s3_control_line line;
	void *opaque;
	_Atomic bool cancel; /* stop, because the client has gone or the server ends */
	uint64_t reported;   /* when progress was, ns */
};

struct s3_command {
	const char *name;
	int operands;
	bool changes;			/* the volume */
	bool slow;			/* also what layout=direct does not have */
	int (*look)(struct s3_call *c); /* what can be refused before the fence; or NULL */
	int (*run)(struct s3_call *c);
};

/* ---- commands.c ---- */

/* Takes a request apart, in place. NULL: there is no such one. */
const struct s3_command *s3_control_parse(char *text, const char **words);

#endif
