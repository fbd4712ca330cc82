/* SPDX-License-Identifier: BSD-3-Clause */
/* What goes wrong, reported and remembered. */
#ifndef USERBLK_S3_FAILURE_H
#define USERBLK_S3_FAILURE_H

#include <stdint.h>

struct s3_request;
struct s3_volume;

/* No change is accepted from now on. r: negative errno. Tells the reason once. */
void s3_volume_fail(struct s3_volume *v, int r, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* As s3_volume_fail(); reads fail too. */
void s3_volume_fence(struct s3_volume *v, const char *what);

/* Tells the user that a request of open failed: the store's message. Answers r. */
int s3_volume_refuse(struct s3_volume *v, int r, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same of one whose clients remain (backend.h). why: what is known of the volume. */
int s3_volume_refuse_clients(struct s3_volume *v, const char *why);

#endif
