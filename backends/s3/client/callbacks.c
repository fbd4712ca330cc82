/* SPDX-License-Identifier: BSD-3-Clause */
/* The bytes of a transfer, and the head of its reply, as libcurl brings and takes them. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>

#include "backends/s3/client/client.h"
#include "backends/s3/client/internal.h"
#include "backends/s3/client/names.h"

/* A body that is not an object's: an error, or a listing of 1000 keys. */
#define TEXT_MAX (16u << 20)

void s3_request_progressed(struct s3_request *req)
{
	if (req->deadline && !req->failing)
		req->deadline = s3_client_now() + req->patience;
}

/* Copies between the request's vectors, from where the transfer is, and a buffer. */
static size_t move(struct s3_transfer *t, char *buffer, size_t length, bool into_vectors)
{
	const struct s3_request *req = t->req;
	size_t done = 0;

	while (done < length && t->vector < req->iovcnt) {
		const struct iovec *v = &req->iov[t->vector];
		size_t n = v->iov_len - t->in_vector;
		char *at = (char *)v->iov_base + t->in_vector;

		if (n > length - done)
			n = length - done;
		if (into_vectors)
			memcpy(at, buffer + done, n);
		else
			memcpy(buffer + done, at, n);
		done += n;
		t->in_vector += n;
		if (t->in_vector == v->iov_len) {
			t->vector++;
			t->in_vector = 0;
		}
	}
	t->moved += done;
	return done;
}

void s3_transfer_rewind_body(struct s3_transfer *t)
{
	t->vector = 0;
	t->in_vector = 0;
	t->moved = 0;
}

size_t s3_transfer_on_read(char *buffer, size_t size, size_t n, void *opaque)
{
	struct s3_transfer *t = opaque;

	s3_request_progressed(t->req);
	return move(t, buffer, size * n, false);
}

int s3_transfer_on_seek(void *opaque, curl_off_t offset, int origin)
{
	struct s3_transfer *t = opaque;

	if (offset != 0 || origin != SEEK_SET)
		return CURL_SEEKFUNC_CANTSEEK;
	s3_transfer_rewind_body(t);
	return CURL_SEEKFUNC_OK;
}

int s3_transfer_on_send(void *opaque, char *local, char *remote, int local_port, int remote_port)
{
	struct s3_transfer *t = opaque;

	(void)local, (void)remote, (void)local_port, (void)remote_port;
	if (t->sends++) {
		t->req->retries++;
		s3_count_add(&t->pool->ops[t->req->op].retries, 1);
	}
	return CURL_PREREQFUNC_OK;
}

void s3_transfer_forget_reply(struct s3_transfer *t)
{
	t->status = 0;
	t->has_range = t->has_length = t->mismatch = false;
	t->first = t->last = t->object_size = t->length = 0;
	t->etag[0] = t->region[0] = '\0';
	t->date = -1;
	t->text_length = 0;
}

/* The value of a header line if it is name's, in room bytes; lines that do not fit are ignored. */
static bool header_value(
	const char *line, size_t length, const char *name, char *value, size_t room)
{
	size_t n = strlen(name);

	if (length <= n || strncasecmp(line, name, n) != 0 || line[n] != ':')
		return false;
	line += n + 1;
	length -= n + 1;
	while (length && (*line == ' ' || *line == '\t'))
		line++, length--;
	while (length && strchr(" \t\r\n", line[length - 1]))
		length--;
	if (length == 0 || length >= room || memchr(line, '\0', length))
		return false;
	memcpy(value, line, length);
	value[length] = '\0';
	return true;
}

size_t s3_transfer_on_header(char *line, size_t size, size_t n, void *opaque)
{
	struct s3_transfer *t = opaque;
	size_t length = size * n;
	char value[256];

	s3_request_progressed(t->req);
	/* Another block follows one of status 1xx. */
	if (length > 5 && memcmp(line, "HTTP/", 5) == 0) {
		s3_transfer_forget_reply(t);
		curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->status);
	} else if (header_value(line, length, "content-range", value, sizeof value)) {
		t->has_range = s3_content_range_parse(value, &t->first, &t->last, &t->object_size);
		/* That of a range past the end: the size alone. */
		if (!t->has_range && strncmp(value, "bytes */", 8) == 0)
			t->object_size = strtoull(value + 8, NULL, 10);
	} else if (header_value(line, length, "content-length", value, sizeof value)) {
		t->has_length = true;
		t->length = strtoull(value, NULL, 10);
	} else if (header_value(line, length, "etag", value, sizeof value)) {
		/* A proxy that changes the encoding marks it as weak. The store compares its own.
		 */
		const char *etag = strncmp(value, "W/", 2) == 0 ? value + 2 : value;

		if (strlen(etag) <= S3_ETAG_MAX)
			memcpy(t->etag, etag, strlen(etag) + 1);
	} else if (header_value(line, length, "x-amz-bucket-region", value, sizeof value)) {
		if (strlen(value) < sizeof t->region)
			memcpy(t->region, value, strlen(value) + 1);
	} else if (header_value(line, length, "date", value, sizeof value)) {
		t->date = curl_getdate(value, NULL);
	}
	return length;
}

bool s3_transfer_range_fits(const struct s3_transfer *t)
{
	const struct s3_request *req = t->req;
	uint64_t length = req->op == S3_HEAD ? 1 : req->length;
	uint64_t last = req->offset + length - 1;

	if (t->status != 206 || !t->has_range)
		return false;
	if (last >= t->object_size)
		last = t->object_size - 1;
	return t->first == req->offset && t->last == last;
}

static size_t keep_text(struct s3_transfer *t, const char *data, size_t length)
{
	if (t->text_length + length > TEXT_MAX) {
		t->mismatch = true;
		return 0;
	}
	if (t->text_length + length > t->text_room) {
		size_t room = 2 * (t->text_length + length);
		char *text = realloc(t->text, room);

		if (!text)
			return 0;
		t->text = text;
		t->text_room = room;
	}
	memcpy(t->text + t->text_length, data, length);
	t->text_length += length;
	return length;
}

size_t s3_transfer_on_write(char *data, size_t size, size_t n, void *opaque)
{
	struct s3_transfer *t = opaque;
	const struct s3_request *req = t->req;
	size_t length = size * n;

	s3_request_progressed(t->req);
	if ((req->op != S3_GET && req->op != S3_HEAD) || t->status >= 300)
		return keep_text(t, data, length);
	/* Never let a byte of something else into the caller's buffers. */
	if (!s3_transfer_range_fits(t) || t->moved + length > t->last - t->first + 1) {
		t->mismatch = true;
		return 0;
	}
	if (req->op == S3_HEAD) {
		t->moved += length;
		return length;
	}
	return s3_hedge_claim(t) ? move(t, data, length, true) : 0;
}
