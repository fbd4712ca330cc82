/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Asking an open volume, and telling it what to do: by a Unix socket, or from the process
 * that has it open. docs/s3-format.md describes what is said; a request and its answer are the same
 * either way.
 */
#ifndef USERBLK_S3_CONTROL_H
#define USERBLK_S3_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/un.h>

#include "backends/s3/core/volume.h"

#define S3_CONTROL_VERSION  1
#define S3_CONTROL_PATH_MAX (sizeof((struct sockaddr_un *)0)->sun_path - 1)
#define S3_CONTROL_LINE_MAX 4096 /* bytes of a line with its newline */

/* Takes a line of an answer, without newline. Negative: nobody wants to hear more. */
typedef int (*s3_control_line)(void *opaque, const char *line);

/*
 * Performs a request, such as "info", and gives the lines of its answer to line, the last
 * one excepted, which says how it ended: that is what is returned, 0 or negative errno.
 * Errors are reported to the volume's host. stop ends what takes long; may be NULL.
 */
int s3_control_perform(struct s3_volume *v, const char *request, const _Atomic bool *stop,
	s3_control_line line, void *opaque);
/*
 * Would the request be refused, as far as can be known before the volume is opened for writing?
 * For before_change of struct s3_config. Changes nothing. 0 or negative errno, reported.
 */
int s3_control_look(struct s3_volume *v, const char *request);

struct s3_control;

/*
 * Makes v's socket at path, for the user alone; one that nobody listens at is replaced. Makes no
 * thread: a client that connects waits for s3_control_start(). 0 or negative errno, reported.
 */
int s3_control_open(struct s3_volume *v, const char *path);
/* All of these take NULL. From now on requests are answered. */
void s3_control_start(struct s3_control *c);
/* The volume is being closed: long commands end, and no new one starts. */
void s3_control_end_jobs(struct s3_control *c);
/* Waits until the long command that was begun has ended. No new one starts. */
void s3_control_finish_job(struct s3_control *c);
/* Nobody can ask the volume any more. What it reports still goes through c. */
void s3_control_close(struct s3_control *c);
/* The volume is gone. */
void s3_control_free(struct s3_control *c);

#endif
