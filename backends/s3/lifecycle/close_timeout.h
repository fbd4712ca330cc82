/* SPDX-License-Identifier: BSD-3-Clause */
/* The end of a volume whose store is gone. */
#ifndef USERBLK_S3_CLOSE_TIMEOUT_H
#define USERBLK_S3_CLOSE_TIMEOUT_H

#include <stdbool.h>
#include <stdint.h>

struct s3_closing;
struct s3_volume;

/* From here on an outage of close_timeout_ns ends all waiting. NULL: nothing ends it. */
struct s3_closing *s3_closing_begin(struct s3_volume *v);
void s3_closing_end(struct s3_closing *c);
/* For how long (ns) the store has refused something and taken nothing; 0: it refuses nothing. */
uint64_t s3_closing_refused(struct s3_volume *v);
/* Why waiting was ended; NULL: it was not. */
const char *s3_closing_why(struct s3_closing *c);
/*
 * Something that the end tries since then (ns, monotonic) has failed: waits a second. False: it is
 * not to be tried again.
 */
bool s3_closing_pause(const struct s3_volume *v, uint64_t since);

#endif
