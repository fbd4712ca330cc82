/* SPDX-License-Identifier: BSD-3-Clause */
/* Names in an object store: keys, buckets, endpoints, and the ranges of replies. */
#ifndef USERBLK_S3_NAMES_H
#define USERBLK_S3_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * May it be a key? 1 to S3_KEY_MAX of [a-z0-9/._-], no empty, "." or ".." segment:
 * such a key needs no encoding, and no proxy takes it for another one.
 */
bool s3_key_valid(const char *key);
/* The same for what keys begin with: also "", and with '/' at its end. */
bool s3_prefix_valid(const char *prefix);
/* As Amazon has it: 3 to 63 of [a-z0-9.-], letter or digit at both ends. */
bool s3_bucket_valid(const char *bucket);

/* An endpoint, taken apart. */
struct s3_endpoint {
	bool tls;
	char host[256];	     /* in lower case; an IPv6 address in its brackets */
	char authority[264]; /* host[:port], without the scheme's own port: the header Host */
	bool is_address;     /* host is an IP address */
};

/* Takes "http[s]://host[:port][/]" apart. False: text is not one. */
bool s3_endpoint_parse(const char *url, struct s3_endpoint *endpoint);

/* Parses the value of Content-Range: "bytes 0-9/100". False: text is not one, or contradicts
 * itself. */
bool s3_content_range_parse(
	const char *value, uint64_t *first, uint64_t *last, uint64_t *object_size);

#endif
