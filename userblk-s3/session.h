/* SPDX-License-Identifier: BSD-3-Clause */
/* The way to a volume: its server's control socket, or the store. */
#ifndef USERBLK_S3_SESSION_H
#define USERBLK_S3_SESSION_H

#include "backends/s3/core/config.h"
#include "userblk-s3/answer.h"

/* How a volume that is not served is opened. */
enum way {
	WAY_READ,
	WAY_WRITE, /* fences others, if the last writer closed it or with --take-over */
	WAY_NONE,  /* it is not: only a server can answer */
};

/*
 * Has a request performed, and its answer taken. 0 or negative errno, which has been reported on
 * standard error in one line.
 */
int session_perform(
	const struct options *o, enum way way, const char *request, struct answer *answer);

/* Is there a server at control=? 1, 0, or negative errno, which has been reported. */
int session_is_served(const struct options *o);

/*
 * Opens a volume, has a request (may be NULL) performed, and closes it again. kept: takes an error
 * that must not be reported; may be NULL.
 */
int session_open(const struct options *o, const struct s3_config *config, const char *request,
	struct answer *answer, struct params_error *kept);

/* Writes what the engine says to standard error; opaque is an answer, whose bar is removed before,
 * or NULL. */
struct backend_host session_host(struct answer *answer);

#endif
