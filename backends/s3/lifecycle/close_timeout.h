/* SPDX-License-Identifier: BSD-3-Clause */
/* The end of a volume whose store is gone. */
#ifndef USERBLK_S3_CLOSE_TIMEOUT_H
#define USERBLK_S3_CLOSE_TIMEOUT_H

struct s3_closing;
struct s3_volume;

/* From here on an outage of close_timeout_ns ends all waiting. NULL: nothing ends it. */
struct s3_closing *s3_closing_begin(struct s3_volume *v);
void s3_closing_end(struct s3_closing *c);

#endif
