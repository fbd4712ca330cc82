/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A regular file or a block device of this machine in which the device keeps something, and which
 * nobody else may use meanwhile. What holds anything else is never touched.
 */
#ifndef USERBLK_S3_LOCALFILE_H
#define USERBLK_S3_LOCALFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/backend.h"

/* What is kept in it; strings are parts of messages. */
struct s3_localfile_kind {
	const char *parameter, *size_parameter; /* "cache-file", "cache-size" */
	const char *content;			/* "a cache" */
	const char *own;			/* "a cache file of its own" */
	uint8_t magic[8];			/* with which it begins */
	uint64_t size_default;			/* bytes of a file; a device is used to its end */
	uint64_t size_least;			/* whole MiB */
	bool keeps_size;			/* a file that has a size has it for good */
};

struct s3_localfile {
	const struct s3_localfile_kind *kind;
	struct backend_host host;
	char *path;
	int fd;
	uint64_t size;	      /* bytes that it has, or that were asked for of a device */
	bool was_empty;	      /* it has nothing but the magic now */
	uint64_t former_size; /* as it was found, if it was empty */
	bool made;
};

/*
 * Opens path, or makes it, reserves its space (asked bytes; 0: the default) and writes the magic to
 * one that is empty. 0, or negative errno, reported to host in one line; then as after
 * s3_localfile_close().
 */
int s3_localfile_open(struct s3_localfile *f, const struct s3_localfile_kind *kind,
	const char *path, uint64_t asked, const struct backend_host *host);
/* used: false if nothing came of it: what was made is removed, what was empty is so again. */
void s3_localfile_close(struct s3_localfile *f, bool used);
/* Makes its name in its directory as durable as fdatasync() makes what is in it. 0 or negative
 * errno. */
int s3_localfile_sync_name(const struct s3_localfile *f);
/* All of length bytes. 0 or negative errno. */
int s3_localfile_transfer(
	const struct s3_localfile *f, bool write, void *memory, size_t length, uint64_t at);
/* Report the mistake, and return r: "PARAMETER=PATH: WHAT", "PARAMETER=PATH: ERRNO; REMEDY". */
int s3_localfile_refuse(const struct s3_localfile *f, int r, const char *what);
int s3_localfile_refuse_errno(const struct s3_localfile *f, int r, const char *remedy);

#endif
