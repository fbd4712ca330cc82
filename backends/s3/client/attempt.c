/* SPDX-License-Identifier: BSD-3-Clause */
/* One attempt at a request: address, headers and signature. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <curl/curl.h>
#include <openssl/evp.h>

#include "backends/backend.h"
#include "backends/s3/client/client.h"
#include "backends/s3/client/credentials.h"
#include "backends/s3/client/internal.h"
#include "backends/s3/client/keyring.h"
#include "backends/s3/client/reply.h"
#include "backends/s3/client/sigv4.h"

/* A clock that differs more than this, in seconds, is what a refusal may be about. */
#define CLOCK_OFF 60

/* libcurl's buffers, in bytes: what is moved by one system call. */
#define BUFFER_SMALL (16L << 10)

#define CONNECT_TIMEOUT 10L /* seconds; less if the timeout is */
/* Bytes a second under which an attempt makes no progress. */
#define PROGRESS_LEAST 1024L

/* ---- an attempt ------------------------------------------------------------------ */

/* Takes the store's credentials over if they are others by now. 0 or -ENOMEM. */
static int use_credentials(struct s3_connections *p)
{
	struct s3_store *s = p->store;
	int r;

	if (p->generation == s3_keyring_generation(s->keyring))
		return 0;
	r = s3_keyring_copy(s->keyring, &p->credentials, &p->generation);
	if (r)
		p->generation = 0;
	p->signer = (struct s3_signer){
		.access_key = p->credentials.access_key,
		.secret_key = p->credentials.secret_key,
		.region = s->region,
		.service = "s3",
	};
	return r;
}

/* Adds "&name=value", encoded, to a query. */
static void add_query(FILE *stream, const char *name, const char *value)
{
	fprintf(stream, "%s%s=", ftell(stream) ? "&" : "", name);
	for (; *value; value++) {
		char code[4];

		s3_uri_encode((char[]){*value, '\0'}, false, code, sizeof code);
		fputs(code, stream);
	}
}

/* The query of a request in the signature's order; NULL: no memory. Caller frees. */
static char *make_query(const struct s3_request *req)
{
	char *query = NULL, number[16];
	size_t size;
	FILE *stream = open_memstream(&query, &size);

	if (!stream)
		return NULL;
	if (req->op == S3_DELETE_MANY) {
		add_query(stream, "delete", "");
	} else if (req->op == S3_LIST) {
		snprintf(number, sizeof number, "%u", req->max_keys ? req->max_keys : 1000);
		if (req->token)
			add_query(stream, "continuation-token", req->token);
		if (req->delimiter)
			add_query(stream, "delimiter", "/");
		add_query(stream, "encoding-type", "url");
		add_query(stream, "list-type", "2");
		add_query(stream, "max-keys", number);
		add_query(stream, "prefix", req->key);
		if (req->start_after && !req->token)
			add_query(stream, "start-after", req->start_after);
	}
	if (fclose(stream)) {
		free(query);
		return NULL;
	}
	return query;
}

/* The headers of a request while it is put together. */
struct headers {
	struct s3_header list[S3_SIGN_HEADERS];
	size_t n;
};

static void add_header(struct headers *h, const char *name, const char *value)
{
	h->list[h->n++] = (struct s3_header){name, value};
}

/* Gives libcurl "name: value". 0 or -ENOMEM. */
static int append(struct s3_transfer *t, const char *name, const char *separator, const char *value)
{
	struct curl_slist *longer;
	char *line;

	if (asprintf(&line, "%s%s%s", name, separator, value) < 0)
		return -ENOMEM;
	longer = curl_slist_append(t->headers, line);
	free(line);
	if (!longer)
		return -ENOMEM;
	t->headers = longer;
	return 0;
}

bool s3_transfer_protected(const struct s3_store *s)
{
	return s->endpoint.tls && s->tls_verify;
}

bool s3_transfer_summed(const struct s3_request *req)
{
	return req->op == S3_PUT && req->crc32c;
}

static const char *const methods[S3_OPS] = {"GET", "GET", "PUT", "DELETE", "POST", "GET"};

/* Puts the headers together, signed. 0 or negative errno. */
static int sign_request(struct s3_transfer *t, const char *path, const char *query)
{
	const struct s3_store *s = t->pool->store;
	const struct s3_request *req = t->req;
	const struct s3_credentials *c = &t->pool->credentials;
	char timestamp[S3_TIMESTAMP], payload[S3_SHA256_HEX], range[64], sum[45];
	char authorization[S3_AUTHORIZATION_MAX];
	struct headers h = {.n = 0};
	int r;

	t->signed_at = time(NULL) + (time_t)atomic_load(&s->clock_offset);
	s3_timestamp(t->signed_at, timestamp);
	/* What TLS protects needs no digest; elsewhere it shows what others did on the way. */
	if (s3_transfer_protected(s) || s3_transfer_summed(req))
		snprintf(payload, sizeof payload, S3_UNSIGNED_PAYLOAD);
	else
		s3_hex(req->digest, sizeof req->digest, payload);

	add_header(&h, "host", s->authority);
	add_header(&h, "x-amz-content-sha256", payload);
	add_header(&h, "x-amz-date", timestamp);
	if (s3_transfer_summed(req)) {
		uint8_t bytes[4] = {(uint8_t)(*req->crc32c >> 24), (uint8_t)(*req->crc32c >> 16),
			(uint8_t)(*req->crc32c >> 8), (uint8_t)*req->crc32c};

		EVP_EncodeBlock((unsigned char *)sum, bytes, sizeof bytes);
		add_header(&h, "x-amz-checksum-crc32c", sum);
	}
	if (c->token)
		add_header(&h, "x-amz-security-token", c->token);
	if (req->op == S3_GET || req->op == S3_HEAD) {
		uint64_t length = req->op == S3_HEAD ? 1 : req->length;

		snprintf(range, sizeof range, "bytes=%" PRIu64 "-%" PRIu64, req->offset,
			req->offset + length - 1);
		add_header(&h, "range", range);
	}
	if (req->op == S3_PUT) {
		add_header(&h, "content-type", "application/octet-stream");
		if (req->if_none_match)
			add_header(&h, "if-none-match", "*");
		if (req->if_match)
			add_header(&h, "if-match", req->if_match);
	}
	if (req->op == S3_DELETE_MANY) {
		add_header(&h, "content-type", "application/xml");
		/* Every store knows MD5, which this host may not. */
		EVP_EncodeBlock((unsigned char *)sum, req->digest, sizeof req->digest);
		add_header(&h, req->md5[0] ? "content-md5" : "x-amz-checksum-sha256",
			req->md5[0] ? req->md5 : sum);
	}
	r = s3_sign(&t->pool->signer, timestamp, methods[req->op], path, query, h.list, h.n,
		payload, authorization, sizeof authorization);

	curl_slist_free_all(t->headers);
	t->headers = NULL;
	for (size_t i = 0; r == 0 && i < h.n; i++)
		r = append(t, h.list[i].name, ": ", h.list[i].value);
	if (r == 0)
		r = append(t, "authorization", ": ", authorization);
	/*
	 * Without it libcurl holds a body back until the store has answered "100
	 * Continue": a round trip, or a second where that answer never comes. A store that
	 * refuses does so in the middle of the body.
	 */
	if (r == 0)
		r = append(t, "Expect", ":", "");
	return r;
}

/* s until then, at least 1 and at most most. */
static long seconds_until(uint64_t deadline, uint64_t now, long most)
{
	uint64_t seconds = now < deadline ? (deadline - now + S3_SECOND - 1) / S3_SECOND : 1;

	return seconds < (uint64_t)most ? (long)seconds : most;
}

/* When libcurl ends an attempt: one that moves only at a limit. */
static CURLcode set_times(CURL *e, const struct s3_store *s, const struct s3_request *req)
{
	uint64_t now = s3_client_now(), end = req->began + req->limit * S3_SECOND;
	long stalled = s->timeout, limit = 0;
	CURLcode code = CURLE_OK;

	if (req->deadline)
		stalled = seconds_until(req->deadline, now, stalled);
	if (req->limit)
		limit = now < end ? (long)((end - now) / 1000000) + 1 : 1;
	code |= curl_easy_setopt(
		e, CURLOPT_CONNECTTIMEOUT, stalled < CONNECT_TIMEOUT ? stalled : CONNECT_TIMEOUT);
	code |= curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, PROGRESS_LEAST);
	code |= curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, stalled);
	code |= curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, limit);
	return code;
}

/* Tells libcurl what to do. 0 or negative errno. */
static int prepare(struct s3_transfer *t)
{
	const struct s3_store *s = t->pool->store;
	const struct s3_request *req = t->req;
	char path[S3_KEY_MAX + 80];
	char *query, *url = NULL;
	CURL *e = t->easy;
	CURLcode code = CURLE_OK;
	long buffer = BUFFER_SMALL;
	int r;

	/* Keys and buckets need no encoding. */
	snprintf(path, sizeof path, "%s%s/%s", s->path_addressing ? "/" : "",
		s->path_addressing ? s->bucket : "",
		req->op == S3_LIST || req->op == S3_DELETE_MANY ? "" : req->key);
	query = make_query(req);
	if (!query)
		return -ENOMEM;
	r = use_credentials(t->pool);
	if (r == 0)
		r = sign_request(t, path, query);
	if (r == 0 && asprintf(&url, "%s://%s%s%s%s", s->endpoint.tls ? "https" : "http",
			      s->authority, path, *query ? "?" : "", query) < 0) {
		url = NULL;
		r = -ENOMEM;
	}
	t->generation = t->pool->generation;
	if (r)
		goto out;

	/* Also undoes what the request before has set. */
	code |= curl_easy_setopt(e, CURLOPT_HTTPGET, 1L);
	code |= curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, NULL);
	if (req->op == S3_PUT) {
		code |= curl_easy_setopt(e, CURLOPT_UPLOAD, 1L);
		code |= curl_easy_setopt(e, CURLOPT_INFILESIZE_LARGE, (curl_off_t)req->length);
	} else if (req->op == S3_DELETE) {
		code |= curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, "DELETE");
	} else if (req->op == S3_DELETE_MANY) {
		code |= curl_easy_setopt(e, CURLOPT_POST, 1L);
		code |= curl_easy_setopt(e, CURLOPT_POSTFIELDS, req->body);
		code |= curl_easy_setopt(
			e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(req->body));
	} else if (req->op == S3_LIST || (req->op == S3_GET && req->length > BUFFER_SMALL)) {
		buffer = S3_BUFFER_LARGE;
	}
	/* Refused while there is a buffer, which a name that was not resolved leaves: that will do.
	 */
	curl_easy_setopt(e, CURLOPT_BUFFERSIZE, buffer);
	code |= curl_easy_setopt(e, CURLOPT_URL, url);
	code |= curl_easy_setopt(e, CURLOPT_HTTPHEADER, t->headers);
	code |= set_times(e, s, req);
	if (code != CURLE_OK)
		r = -ENOMEM;
out:
	free(query);
	free(url);
	return r;
}

void s3_transfer_release(struct s3_transfer *t)
{
	struct s3_connections *p = t->pool;

	s3_hedge_part(t);
	t->hedge = t->answered = t->lost = false;
	t->req = NULL;
	t->next = p->idle;
	p->idle = t;
	p->busy--;
}

struct s3_transfer *s3_transfer_begin(struct s3_connections *p, struct s3_request *req)
{
	struct s3_transfer *t = p->idle;

	p->idle = t->next;
	p->busy++;
	t->req = req;
	t->sends = 0;
	t->error[0] = '\0';
	s3_transfer_rewind_body(t);
	s3_transfer_forget_reply(t);
	if (prepare(t) == 0 && curl_multi_add_handle(p->multi, t->easy) == CURLM_OK)
		return t;
	s3_transfer_release(t);
	return NULL;
}

void s3_transfer_start(struct s3_connections *p, struct s3_request *req)
{
	struct s3_transfer *t;

	/* It has waited for a connection, while others succeeded. */
	if (!atomic_load(&p->store->failing_since))
		s3_request_progressed(req);
	t = s3_transfer_begin(p, req);
	if (t) {
		s3_hedge_began(t);
		return;
	}
	s3_store_say(req, "out of memory for a request to the store");
	s3_request_retry(p, req, 0);
}

/* ---- what came of it --------------------------------------------------------------- */

bool s3_transfer_correct_clock(const struct s3_transfer *t, const struct s3_error_reply *e)
{
	struct s3_store *s = t->pool->store;
	int64_t offset = (int64_t)(t->date - time(NULL)), off = (int64_t)(t->date - t->signed_at);
	bool tell;

	if (strcmp(e->code, "RequestTimeTooSkewed") != 0 || t->date == -1 ||
		(off < CLOCK_OFF && off > -CLOCK_OFF))
		return false;
	/* Many requests find out at the same time; each step is reported once. */
	pthread_mutex_lock(&s->outage_lock);
	tell = llabs(offset - atomic_load(&s->clock_offset)) >= CLOCK_OFF;
	atomic_store(&s->clock_offset, offset);
	pthread_mutex_unlock(&s->outage_lock);
	if (tell)
		backend_error(&s->host,
			"endpoint=%s: this host's clock is %lld s %s the store's, whose time is "
			"used for requests from now on; set the clock",
			s->endpoint_text, llabs(offset), offset > 0 ? "behind" : "ahead of");
	return true;
}
