/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * AWS Signature Version 4 for requests in headers.
 * https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
 */
#ifndef USERBLK_S3_SIGV4_H
#define USERBLK_S3_SIGV4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define S3_SHA256_HEX	     65 /* with its NUL */
#define S3_SIGN_HEADERS	     16 /* that a request may have signed */
#define S3_AUTHORIZATION_MAX 1024
#define S3_UNSIGNED_PAYLOAD  "UNSIGNED-PAYLOAD"
#define S3_TIMESTAMP	     17 /* "20130524T000000Z" and its NUL */

/* The identity that signs. The key of the day is kept until the day or the secret changes. */
struct s3_signer {
	const char *access_key;
	const char *secret_key;
	const char *region;
	const char *service;
	char day[9]; /* that key is of; "": none yet */
	uint8_t key[32];
};

/* A header of a request: name in lower case, value without space around it. */
struct s3_header {
	const char *name;
	const char *value;
};

/* SHA-256 of what the caller adds. */
void s3_sha256(const void *data, size_t length, uint8_t digest[32]);
void s3_hex(const uint8_t *bytes, size_t n, char *out); /* 2 n characters and a NUL */

/*
 * Percent-encodes text as the signature wants it: all but A-Z a-z 0-9 - . _ ~ and,
 * with keep_slash, '/'. Length without the NUL; at most room - 1 are written.
 */
size_t s3_uri_encode(const char *text, bool keep_slash, char *out, size_t room);

/* The time as in x-amz-date. */
void s3_timestamp(time_t now, char out[S3_TIMESTAMP]);

/*
 * Writes the value of the header Authorization. path is percent-encoded and begins
 * with '/'; query is sorted and encoded ("a=1&b="), "" for none; headers hold at
 * least host and x-amz-date (timestamp), and are sorted in place; payload is the
 * body's digest in hexadecimal or S3_UNSIGNED_PAYLOAD. 0, -EINVAL: does not fit.
 */
int s3_sign(struct s3_signer *signer, const char *timestamp, const char *method, const char *path,
	const char *query, struct s3_header *headers, size_t n_headers, const char *payload,
	char *authorization, size_t room);

#endif
