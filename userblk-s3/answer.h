/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a command found out: lines of a name and a JSON value, as the control socket has them, to be
 * printed as tables, as JSON or for Prometheus.
 */
#ifndef USERBLK_S3_ANSWER_H
#define USERBLK_S3_ANSWER_H

#include "userblk-s3/options.h"
#include "userblk-s3/progress.h"

struct answer {
	const struct options *options;
	struct progress progress;
	struct item {
		char *name, *value;
	} * items;
	size_t n_items;
	char **rows; /* JSON arrays, of the kind that the command has */
	size_t n_rows;
	bool opened; /* the volume was, for changes, by this program or a server */
};

/* Takes a line; of type s3_control_line, with the answer as opaque. */
int answer_line(void *answer, const char *line);
/* The JSON value of that name; NULL: there is none. */
const char *answer_value(const struct answer *a, const char *name);
/* The number of that name; 0: there is none. */
double answer_number(const struct answer *a, const char *name);
void answer_print(struct answer *a);
void answer_free(struct answer *a);

#endif
