/* SPDX-License-Identifier: BSD-3-Clause */
/* The file with the results of a run, of all engines: it gets its name when it is complete. */
#ifndef FLOW_RESULTS_H
#define FLOW_RESULTS_H

#include <stdbool.h>
#include <stdio.h>

/*
 * Why no results can be written to path, NULL if they can. To be asked before anything is done,
 * since a run whose results cannot be written is lost.
 */
const char *results_refused(const char *path);

/* PATH.partial, for writing. NULL with errno. */
FILE *results_open(const char *path);
/* Gives it its name. False with errno: it is gone, and what had the name before still has it. */
bool results_close(FILE *f, const char *path);

#endif
