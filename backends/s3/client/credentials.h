/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where the keys to a store come from: a file of our own or of Amazon's form, the
 * environment, Amazon's shared files, or the role that this machine or container has there.
 * Never a command line, which everyone can read.
 */
#ifndef USERBLK_S3_CREDENTIALS_H
#define USERBLK_S3_CREDENTIALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "backends/backend.h"

struct s3_credentials {
	char *access_key;
	char *secret_key;
	char *token; /* of a session; NULL: none */
	/* Where they are from, for messages: "credentials=FILE", "AWS_ACCESS_KEY_ID". */
	char *source;
	bool of_role;	 /* from a service that gives others in time */
	int64_t expires; /* seconds since 1970; 0: not known */
};

/*
 * Looks in file (credentials=), in the section profile of Amazon's shared files, in
 * AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, in the section
 * AWS_PROFILE (or "default") of the shared files, and asks for those of a role (instance.h),
 * which may take some seconds; the first of these that is there counts. 0; -EINVAL, or the errno of
 * the file: error says why. Warns through host, which may be NULL, of a file that everyone may
 * read.
 */
int s3_credentials_load(const char *file, const char *profile, const struct backend_host *host,
	struct s3_credentials *credentials, struct params_error *error);
/* Frees what it holds and overwrites the secrets. */
void s3_credentials_clear(struct s3_credentials *credentials);
/* Warns of a file with a secret, named as "PARAMETER=FILE", that everyone may read or change. */
void s3_warn_if_public(const struct stat *st, const char *label, const struct backend_host *host);
/* Is it a key or token that can stand in a header? */
bool s3_credential_valid(const char *value);
/* Are they the same keys? */
bool s3_credentials_equal(const struct s3_credentials *a, const struct s3_credentials *b);

#endif
