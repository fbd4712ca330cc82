/* SPDX-License-Identifier: BSD-3-Clause */
/* What a store answers: its XML, and what an answer means for a request. */
#ifndef USERBLK_S3_REPLY_H
#define USERBLK_S3_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/client/client.h"

/* The body of an error. Texts are cut. */
struct s3_error_reply {
	char code[64]; /* "NoSuchKey"; "": the body is no error of an S3 store */
	char message[200];
	char region[64];
	char endpoint[128];
	uint64_t object_size; /* of a range past the end; 0: unknown */
};

/*
 * Parsers of untrusted bodies. 0, -EPROTO: not a complete document of that kind;
 * -ENOMEM.
 */
int s3_parse_error(const char *xml, size_t length, struct s3_error_reply *error);
/*
 * A page of ListObjectsV2: the keys that begin with prefix. The caller may rely on that for each.
 * -EPROTO: one does not. On an error the listing is empty.
 */
int s3_parse_listing(
	const char *xml, size_t length, const char *prefix, struct s3_listing *listing);
/*
 * The reply of DeleteObjects: sets key_results[i] to 0 or a negative errno for each
 * key that the reply names; other entries stay. first: the first error.
 */
int s3_parse_deleted(const char *xml, size_t length, const char *const *keys, size_t n_keys,
	int *key_results, struct s3_error_reply *first);

/* What the client does about an answer. */
enum s3_action {
	S3_FINAL,	   /* result is what done() gets */
	S3_RETRY,	   /* temporary */
	S3_REAUTHENTICATE, /* retry if there are other credentials by now, else final */
	S3_MISMATCH,	   /* not what was asked for: retry a few times */
	S3_NOT_S3, /* nothing that an S3 store answers: temporary if it ever answered as one */
};

struct s3_verdict {
	enum s3_action action;
	int result;
};

/* The meaning of an HTTP status of 300 and more, with the error in its body. */
struct s3_verdict s3_judge(long status, const struct s3_error_reply *error, bool conditional);
/* The errno of an error code of DeleteObjects; *temporary: try again. */
int s3_code_result(const char *code, bool *temporary);

#endif
