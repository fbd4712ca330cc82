/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests to the store that are waited for. */
#ifndef USERBLK_S3_REQUESTS_H
#define USERBLK_S3_REQUESTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "backends/s3/format/format.h"

struct s3_listed;
struct s3_request;
struct s3_volume;

/* Any PUT, made once more if the store is full and the reserve makes room. */
int s3_volume_put_with_reserve(struct s3_volume *v, struct s3_request *req);
/* One of something new: -ENOSPC in a full store, which keeps its room for others. */
int s3_volume_put_without_reserve(struct s3_volume *v, struct s3_request *req);
/*
 * Requests of the pool for background work, waited for. req has the outcome. PUT replaces
 * what is there if if_none_match is false. The answer is req->result.
 */
int s3_volume_put(struct s3_volume *v, const char *key, const void *data, size_t length,
	bool if_none_match, struct s3_request *req);
/* The same of something new, without the reserve. */
int s3_volume_put_new(struct s3_volume *v, const char *key, const void *data, size_t length,
	bool if_none_match, struct s3_request *req);
/* As s3_volume_put() in place of the object of etag, or where there is none (NULL). deadline: s. */
int s3_volume_put_at(struct s3_volume *v, const char *key, const struct iovec *iov, int iovcnt,
	const char *etag, uint32_t deadline, struct s3_request *req);

/* Up to length bytes of the beginning; req->bytes tells how many. */
int s3_volume_get(
	struct s3_volume *v, const char *key, void *data, size_t length, struct s3_request *req);
/* The whole object, to be freed. Also -ENOMEM. */
int s3_volume_get_all(
	struct s3_volume *v, const char *key, void **data, size_t *length, struct s3_request *req);
/*
 * The whole header of the object of the log at seq. If the answer is 0, check says what it is
 * worth; the caller frees data, which header points into. Also -ENOMEM.
 */
int s3_volume_get_header(struct s3_volume *v, uint64_t seq, void **data,
	struct s3_object_header *header, enum s3_check *check, struct s3_request *req);
/* Is there an object? 0, -ENOENT, or negative errno of the store. */
int s3_volume_head(struct s3_volume *v, const char *key, struct s3_request *req);
int s3_volume_delete(struct s3_volume *v, const char *key, struct s3_request *req);
/*
 * Calls fn for what is listed under a prefix below the volume's, in order of the keys, until it
 * answers non-zero, which is returned. Otherwise 0, or negative errno of the store.
 */
int s3_volume_list(struct s3_volume *v, const char *prefix, bool delimiter,
	int (*fn)(void *opaque, const struct s3_listed *listed), void *opaque,
	struct s3_request *req);
/* Is there any key that begins with prefix (of the bucket)? 1, 0 or negative errno. */
int s3_volume_any(struct s3_volume *v, const char *prefix, struct s3_request *req);
/* When the object was stored, s since 1970 by the store's clock. 0, -ENOENT or negative errno. */
int s3_volume_modified(
	struct s3_volume *v, const char *key, int64_t *modified, struct s3_request *req);

#endif
