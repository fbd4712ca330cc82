/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/s3_fake_objects.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_request_fill.h"

#define PAGE 3 /* objects of a listing: few, so that there are more pages */

struct object {
	struct object *next;
	char key[S3_KEY_MAX + 1];
	uint8_t *data;
	size_t length;
	unsigned tag;
	int64_t modified; /* s of the store's clock */
};

pthread_mutex_t fake_objects_lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects; /* by key */
static unsigned last_tag;
static bool ignores_none_match, ignores_match;
static uint64_t stored, limit;	  /* bytes */
static uint64_t line;		  /* bytes a second; 0: any */
static int64_t seconds = 1000000; /* the store's clock */
static unsigned page = PAGE;
static bool begins_empty;
/* A PUT that is still under way although its request has ended; without a key: none. */
static struct {
	char key[S3_KEY_MAX + 1], if_match[S3_ETAG_MAX + 1];
	bool if_none_match;
	uint8_t *data;
	size_t length;
} late;

static struct object **place(const char *key)
{
	struct object **link = &objects;

	while (*link && strcmp((*link)->key, key) < 0)
		link = &(*link)->next;
	return link;
}

static struct object *find(const char *key)
{
	struct object *o = *place(key);

	return o && strcmp(o->key, key) == 0 ? o : NULL;
}

static void set(const char *key, uint8_t *data, size_t length)
{
	struct object **link = place(key), *o = find(key);

	stored += (data ? length : 0) - (o ? o->length : 0);
	if (o && !data) {
		*link = o->next;
		free(o->data);
		free(o);
		return;
	}
	if (!data)
		return;
	if (!o) {
		o = calloc(1, sizeof *o);
		if (!o)
			abort();
		strcpy(o->key, key);
		o->next = *link;
		*link = o;
	}
	free(o->data);
	o->data = data;
	o->length = length;
	o->tag = ++last_tag;
	o->modified = seconds;
}

void fake_objects_delete(const char *key)
{
	set(key, NULL, 0);
}

void fake_store_set(const char *key, const void *data, size_t length)
{
	uint8_t *copy = data ? malloc(length + 1) : NULL;

	if (copy)
		memcpy(copy, data, length);
	pthread_mutex_lock(&fake_objects_lock);
	set(key, copy, length);
	pthread_mutex_unlock(&fake_objects_lock);
}

int fake_objects_get(struct s3_request *req)
{
	const struct object *o = find(req->key);

	if (!o)
		return -ENOENT;
	req->object_size = o->length;
	snprintf(req->etag, sizeof req->etag, "\"%u\"", o->tag);
	return req->op == S3_GET ? s3_request_fill(req, o->data, o->length) : 0;
}

/* The body of a PUT, to be freed. */
static uint8_t *gather(const struct s3_request *req, size_t *length)
{
	uint8_t *data;

	*length = 0;
	for (int i = 0; i < req->iovcnt; i++)
		*length += req->iov[i].iov_len;
	data = malloc(*length + 1);
	if (!data)
		abort();
	*length = 0;
	for (int i = 0; i < req->iovcnt; i++) {
		memcpy(data + *length, req->iov[i].iov_base, req->iov[i].iov_len);
		*length += req->iov[i].iov_len;
	}
	return data;
}

int fake_objects_put(struct s3_request *req)
{
	const struct object *o = find(req->key);
	char tag[16] = "";
	size_t length = 0;
	uint8_t *data;

	if (o)
		snprintf(tag, sizeof tag, "\"%u\"", o->tag);
	if (req->if_none_match && o && !ignores_none_match)
		return -EEXIST;
	if (req->if_match && strcmp(req->if_match, tag) != 0 && !ignores_match)
		return o ? -EEXIST : -ENOENT;
	for (int i = 0; i < req->iovcnt; i++)
		length += req->iov[i].iov_len;
	if (line && req->limit && length > line * req->limit)
		return -EIO;
	if (limit && stored + length - (o ? o->length : 0) > limit)
		return -ENOSPC;
	data = gather(req, &length);
	req->bytes = length;
	set(req->key, data, length);
	snprintf(req->etag, sizeof req->etag, "\"%u\"", last_tag);
	return 0;
}

void fake_objects_keep(const struct s3_request *req)
{
	snprintf(late.key, sizeof late.key, "%s", req->key);
	snprintf(late.if_match, sizeof late.if_match, "%s", req->if_match ? req->if_match : "");
	late.if_none_match = req->if_none_match;
	free(late.data);
	late.data = gather(req, &late.length);
}

void fake_store_arrive(void)
{
	struct iovec iov = {late.data, late.length};
	struct s3_request req = {.op = S3_PUT,
		.key = late.key,
		.iov = &iov,
		.iovcnt = 1,
		.if_none_match = late.if_none_match,
		.if_match = *late.if_match ? late.if_match : NULL};

	pthread_mutex_lock(&fake_objects_lock);
	if (*late.key)
		fake_objects_put(&req);
	*late.key = '\0';
	free(late.data);
	late.data = NULL;
	pthread_mutex_unlock(&fake_objects_lock);
}

/* Up to where keys are one entry of a listing. */
static size_t entry_length(const struct s3_request *req, const char *key)
{
	const char *slash = req->delimiter ? strchr(key + strlen(req->key), '/') : NULL;

	return slash ? (size_t)(slash - key) + 1 : strlen(key);
}

void fake_objects_list(struct s3_request *req)
{
	struct s3_listing *l = &req->listing;
	const char *last = req->token;

	if (begins_empty && !last) {
		/* Before what may be the only key. */
		l->token = strndup(req->key, strlen(req->key) - 1);
		return;
	}
	l->objects = calloc(page, sizeof *l->objects);
	for (struct object *o = objects; o; o = o->next) {
		size_t length = entry_length(req, o->key);
		char *key, etag[16];

		if (strncmp(o->key, req->key, strlen(req->key)) != 0 ||
			(last && strncmp(o->key, last, length) <= 0))
			continue;
		if (l->n_objects == page) {
			l->token = strdup(last);
			return;
		}
		last = key = strndup(o->key, length);
		snprintf(etag, sizeof etag, "%u", o->tag);
		l->objects[l->n_objects++] = (struct s3_listed){.key = key,
			.size = o->length,
			.modified = o->modified,
			.tag = s3_etag_tag(etag),
			.is_prefix = length < strlen(o->key)};
	}
}

void fake_objects_reset(void)
{
	while (objects)
		set(objects->key, NULL, 0);
	free(late.data);
	late.data = NULL;
	*late.key = '\0';
	fake_store_ignore(false, false);
	limit = line = 0;
	seconds = 1000000;
	page = PAGE;
	begins_empty = false;
}

/* ---- what tests see ------------------------------------------------------------------ */

void fake_store_limit(uint64_t bytes)
{
	pthread_mutex_lock(&fake_objects_lock);
	limit = bytes;
	pthread_mutex_unlock(&fake_objects_lock);
}

void fake_store_line(uint64_t bytes_per_s)
{
	pthread_mutex_lock(&fake_objects_lock);
	line = bytes_per_s;
	pthread_mutex_unlock(&fake_objects_lock);
}

uint64_t fake_store_bytes(void)
{
	uint64_t bytes;

	pthread_mutex_lock(&fake_objects_lock);
	bytes = stored;
	pthread_mutex_unlock(&fake_objects_lock);
	return bytes;
}

void fake_store_pass(unsigned s)
{
	pthread_mutex_lock(&fake_objects_lock);
	seconds += s;
	pthread_mutex_unlock(&fake_objects_lock);
}

void fake_store_page(unsigned n)
{
	pthread_mutex_lock(&fake_objects_lock);
	page = n;
	pthread_mutex_unlock(&fake_objects_lock);
}

void fake_store_begin_empty(void)
{
	pthread_mutex_lock(&fake_objects_lock);
	begins_empty = true;
	pthread_mutex_unlock(&fake_objects_lock);
}

void fake_store_ignore(bool if_none_match, bool if_match)
{
	ignores_none_match = if_none_match;
	ignores_match = if_match;
}

size_t fake_store_object(const char *end, void *data, size_t room)
{
	size_t length = SIZE_MAX;

	pthread_mutex_lock(&fake_objects_lock);
	for (struct object *o = objects; o; o = o->next)
		if (strlen(o->key) >= strlen(end) &&
			strcmp(o->key + strlen(o->key) - strlen(end), end) == 0) {
			length = o->length;
			if (data)
				memcpy(data, o->data, length < room ? length : room);
		}
	pthread_mutex_unlock(&fake_objects_lock);
	return length;
}

bool fake_store_find(const char *part, char *key, size_t room)
{
	const struct object *o;

	pthread_mutex_lock(&fake_objects_lock);
	o = objects;
	while (o && !strstr(o->key, part))
		o = o->next;
	if (o)
		snprintf(key, room, "%s", o->key);
	pthread_mutex_unlock(&fake_objects_lock);
	return o != NULL;
}
