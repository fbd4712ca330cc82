/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests to the store that are waited for. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/space.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"

/* s that a request is tried for that somebody waits for and that changes nothing, or deletes. */
#define WAITED_DEADLINE 60
/* What a GET of an object of unknown size asks for first. */
#define FIRST_GET (64u << 10)
/* And what one of a header asks for. */
#define FIRST_HEADER (16u << 10)

/* Without which a request that never succeeds would hold up its thread forever. */
static uint32_t waited_deadline(const struct s3_volume *v)
{
	return v->deadline ? v->deadline : WAITED_DEADLINE;
}

int s3_volume_put_with_reserve(struct s3_volume *v, struct s3_request *req)
{
	unsigned made = s3_space_made(v), retries;
	int r = s3_store_call(v->store, req);

	if (r == -ENOSPC && s3_space_make(v, made, req->message)) {
		retries = req->retries;
		r = s3_store_call(v->store, req);
		req->retries += retries;
	}
	return r;
}

int s3_volume_put_without_reserve(struct s3_volume *v, struct s3_request *req)
{
	if (atomic_load(&v->refused) != -ENOSPC)
		return s3_store_call(v->store, req);
	snprintf(req->message, sizeof req->message, "the store is full");
	return -ENOSPC;
}

/* iov: stays until the request has ended. */
static void fill_put(struct s3_volume *v, const char *key, const struct iovec *iov,
	bool if_none_match, struct s3_request *req)
{
	*req = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.iov = iov,
		.iovcnt = 1,
		.if_none_match = if_none_match,
		.retry_deadline = v->deadline,
	};
}

int s3_volume_put(struct s3_volume *v, const char *key, const void *data, size_t length,
	bool if_none_match, struct s3_request *req)
{
	struct iovec iov = {(void *)data, length};

	fill_put(v, key, &iov, if_none_match, req);
	return s3_volume_put_with_reserve(v, req);
}

int s3_volume_put_new(struct s3_volume *v, const char *key, const void *data, size_t length,
	bool if_none_match, struct s3_request *req)
{
	struct iovec iov = {(void *)data, length};

	fill_put(v, key, &iov, if_none_match, req);
	return s3_volume_put_without_reserve(v, req);
}

int s3_volume_put_at(struct s3_volume *v, const char *key, const struct iovec *iov, int iovcnt,
	const char *etag, uint32_t deadline, struct s3_request *req)
{
	*req = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.iov = iov,
		.iovcnt = iovcnt,
		.if_none_match = v->conditional && !etag,
		.if_match = v->conditional ? etag : NULL,
		.retry_deadline = deadline,
	};
	return s3_volume_put_with_reserve(v, req);
}

int s3_volume_get(
	struct s3_volume *v, const char *key, void *data, size_t length, struct s3_request *req)
{
	struct iovec iov = {data, length};

	*req = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.iov = &iov,
		.iovcnt = 1,
		.allow_short = true,
		.retry_deadline = waited_deadline(v),
	};
	return s3_store_call(v->store, req);
}

int s3_volume_get_all(
	struct s3_volume *v, const char *key, void **data, size_t *length, struct s3_request *req)
{
	size_t room = FIRST_GET;
	int r;

	for (;;) {
		*data = malloc(room);
		if (!*data)
			return -ENOMEM;
		r = s3_volume_get(v, key, *data, room, req);
		if (r == 0 && req->object_size <= room) {
			*length = req->bytes;
			return 0;
		}
		free(*data);
		*data = NULL;
		if (r)
			return r;
		room = req->object_size;
	}
}

int s3_volume_get_header(struct s3_volume *v, uint64_t seq, void **data,
	struct s3_object_header *header, enum s3_check *check, struct s3_request *req)
{
	char key[S3_KEY_MAX + 1];
	size_t length = FIRST_HEADER;

	s3_volume_object_key(v, seq, key);
	for (;;) {
		int r;

		*data = malloc(length);
		if (!*data)
			return -ENOMEM;
		r = s3_volume_get(v, key, *data, length, req);
		if (r) {
			free(*data);
			return r;
		}
		*check = s3_header_decode(*data, req->bytes, v->super.uuid, header);
		if (*check != S3_SHORT || header->header_bytes <= length ||
			req->object_size < header->header_bytes)
			return 0;
		length = header->header_bytes;
		free(*data);
	}
}

int s3_volume_head(struct s3_volume *v, const char *key, struct s3_request *req)
{
	*req = (struct s3_request){
		.op = S3_HEAD,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.retry_deadline = waited_deadline(v),
	};
	return s3_store_call(v->store, req);
}

int s3_volume_delete(struct s3_volume *v, const char *key, struct s3_request *req)
{
	*req = (struct s3_request){
		.op = S3_DELETE,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.retry_deadline = waited_deadline(v),
	};
	return s3_store_call(v->store, req);
}

int s3_volume_list(struct s3_volume *v, const char *prefix, bool delimiter,
	int (*fn)(void *opaque, const struct s3_listed *listed), void *opaque,
	struct s3_request *req)
{
	char start[S3_KEY_MAX + 1], *token = NULL;
	int r;

	snprintf(start, sizeof start, "%s%s", v->base, prefix);
	do {
		*req = (struct s3_request){
			.op = S3_LIST,
			.pool = S3_POOL_BACKGROUND,
			.key = start,
			.token = token,
			.delimiter = delimiter,
			.retry_deadline = waited_deadline(v),
		};
		r = s3_store_call(v->store, req);
		free(token);
		token = NULL;
		if (r)
			return r;
		for (size_t i = 0; r == 0 && i < req->listing.n_objects; i++)
			r = fn(opaque, &req->listing.objects[i]);
		if (r == 0 && req->listing.token) {
			token = strdup(req->listing.token);
			r = token ? 0 : -ENOMEM;
		}
		s3_listing_free(&req->listing);
	} while (token);
	return r;
}

/* The first object below a prefix of the bucket: 1, and the caller frees req->listing; 0; errno. */
static int find_first(struct s3_volume *v, const char *prefix, struct s3_request *req)
{
	char *token = NULL;
	int r;

	/* A page may be empty although others follow: what it covers has been deleted. */
	do {
		*req = (struct s3_request){
			.op = S3_LIST,
			.pool = S3_POOL_BACKGROUND,
			.key = prefix,
			.token = token,
			.max_keys = 1,
			.retry_deadline = waited_deadline(v),
		};
		r = s3_store_call(v->store, req);
		free(token);
		if (r)
			return r;
		r = req->listing.n_objects > 0;
		if (r)
			return r;
		token = req->listing.token;
		req->listing.token = NULL;
		s3_listing_free(&req->listing);
	} while (token);
	return r;
}

int s3_volume_any(struct s3_volume *v, const char *prefix, struct s3_request *req)
{
	int r = find_first(v, prefix, req);

	if (r == 1) {
		snprintf(req->message, sizeof req->message, "%s", req->listing.objects[0].key);
		s3_listing_free(&req->listing);
	}
	return r;
}

int s3_volume_modified(
	struct s3_volume *v, const char *key, int64_t *modified, struct s3_request *req)
{
	int r = find_first(v, key, req);

	if (r < 0)
		return r;
	if (r == 1) {
		const struct s3_listed *first = &req->listing.objects[0];

		r = strcmp(first->key, key) == 0;
		*modified = first->modified;
		s3_listing_free(&req->listing);
	}
	return r ? 0 : -ENOENT;
}
