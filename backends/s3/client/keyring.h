/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The credentials that a store's requests are signed with, and where others come from when these
 * are no longer accepted. Those of a file are read again at once; those of a role are renewed
 * in time by a thread, so that no request ever waits for the service that gives them.
 */
#ifndef USERBLK_S3_KEYRING_H
#define USERBLK_S3_KEYRING_H

#include "backends/s3/client/credentials.h"

struct s3_keyring;

/* Loads the credentials, as s3_credentials_load() does; a failure is reported to host. */
int s3_keyring_open(const char *file, const char *profile, const struct backend_host *host,
	struct s3_keyring **out);
void s3_keyring_close(struct s3_keyring *k); /* NULL is fine */
/* Starts the thread if these credentials need one and there is none. 0 or negative errno. */
int s3_keyring_start(struct s3_keyring *k);
/* Ends the thread, so that a fork may follow. It may take some seconds. */
void s3_keyring_park(struct s3_keyring *k);
/* Number of the credentials, from 1 on. */
uint64_t s3_keyring_generation(const struct s3_keyring *k);
/* Replaces *c by a copy of the credentials, of that generation. 0 or -ENOMEM: then *c is empty. */
int s3_keyring_copy(struct s3_keyring *k, struct s3_credentials *c, uint64_t *generation);
/*
 * Those of this generation were not accepted, for a request for the first time at refused (ns,
 * monotonic). Are there others now, or perhaps soon?
 */
bool s3_keyring_other(struct s3_keyring *k, uint64_t generation, uint64_t refused);

#endif
