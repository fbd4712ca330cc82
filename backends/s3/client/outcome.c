/* SPDX-License-Identifier: BSD-3-Clause */
/* What came of an attempt: done, to be tried again, or a failure. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

#include "backends/s3/client/client.h"
#include "backends/s3/client/internal.h"
#include "backends/s3/client/keyring.h"
#include "backends/s3/client/reply.h"

/* Replies that are not what was asked for, before a request is given up. */
#define MISMATCHES_MAX 6

static bool needs_key(enum s3_op op)
{
	return op != S3_LIST && op != S3_DELETE_MANY;
}

/* The answers of several keys in one. */
static struct s3_verdict judge_deleted(struct s3_transfer *t, struct s3_error_reply *e)
{
	struct s3_request *req = t->req;
	bool temporary = false;
	int result = 0;

	/* A key that the reply does not name is not known to be gone. */
	for (size_t i = 0; i < req->n_keys; i++)
		req->key_results[i] = -EIO;
	if (s3_parse_deleted(
		    t->text, t->text_length, req->keys, req->n_keys, req->key_results, e)) {
		if (s3_parse_error(t->text, t->text_length, e))
			return (struct s3_verdict){S3_NOT_S3, -EPROTO};
		return s3_judge(t->status, e, false);
	}
	for (size_t i = 0; i < req->n_keys && !result; i++)
		result = req->key_results[i];
	if (e->code[0])
		s3_code_result(e->code, &temporary);
	if (temporary)
		return (struct s3_verdict){S3_RETRY, -EIO};
	if (result && !e->code[0])
		return (struct s3_verdict){S3_MISMATCH, -EIO};
	return (struct s3_verdict){S3_FINAL, result};
}

/* A status of 2xx. */
static struct s3_verdict judge_success(struct s3_transfer *t, struct s3_error_reply *e)
{
	static const struct s3_verdict fine = {S3_FINAL, 0}, mismatch = {S3_MISMATCH, -EIO},
				       not_s3 = {S3_NOT_S3, -EPROTO};
	struct s3_request *req = t->req;
	int r;

	switch (req->op) {
	case S3_HEAD:
		/* An empty object has no first byte. */
		if (t->status == 200 && t->has_length && t->length == 0)
			return fine;
		if (!s3_transfer_range_fits(t) || t->moved != 1)
			return mismatch;
		req->object_size = t->object_size;
		return fine;
	case S3_GET:
		if (!s3_transfer_range_fits(t) || t->moved != t->last - t->first + 1)
			return mismatch;
		req->object_size = t->object_size;
		req->bytes = t->moved;
		if (t->moved < req->length && !req->allow_short)
			return (struct s3_verdict){S3_FINAL, -ERANGE};
		return fine;
	case S3_PUT:
		/* A proxy's or a captive portal's 200 has none: nothing was stored there. */
		if (!t->etag[0])
			return not_s3;
		if (t->moved != req->length)
			return mismatch;
		req->bytes = t->moved;
		return fine;
	case S3_DELETE:
		return t->status == 204 || (t->status == 200 && !t->text_length) ? fine : not_s3;
	case S3_DELETE_MANY:
		return judge_deleted(t, e);
	case S3_LIST:
		r = s3_parse_listing(t->text, t->text_length, req->key, &req->listing);
		if (r == -ENOMEM)
			return (struct s3_verdict){S3_RETRY, -EIO};
		return r ? not_s3 : fine;
	default:
		abort();
	}
}

static struct s3_verdict judge_answer(struct s3_transfer *t, struct s3_error_reply *e)
{
	struct s3_request *req = t->req;
	struct s3_verdict v;

	if (t->status >= 200 && t->status < 300)
		return judge_success(t, e);
	if (s3_parse_error(t->text, t->text_length, e))
		e->code[0] = '\0';
	if (req->crc32c_once && t->status == 400 &&
		(strcmp(e->code, "BadDigest") == 0 ||
			strcmp(e->code, "XAmzContentChecksumMismatch") == 0))
		return (struct s3_verdict){S3_FINAL, -EBADMSG};
	v = s3_judge(t->status, e, req->op == S3_PUT && (req->if_none_match || req->if_match));
	/* The keys of an absent bucket are absent, but so might be what was never a bucket. */
	if (v.result == -ENOENT && !needs_key(req->op))
		return (struct s3_verdict){S3_NOT_S3, -EPROTO};
	/* As it should be; most stores do not tell. */
	if (v.result == -ENOENT && req->op == S3_DELETE)
		v.result = 0;
	if (v.result == -ERANGE &&
		(req->op == S3_HEAD || (req->op == S3_GET && req->allow_short))) {
		req->object_size = t->object_size ? t->object_size : e->object_size;
		req->bytes = 0;
		v.result = 0;
	}
	return v;
}

static struct s3_verdict judge_failure(const struct s3_transfer *t, CURLcode code)
{
	if (s3_is_tls_error(code))
		return (struct s3_verdict){S3_NOT_S3, -EPROTO};
	switch (code) {
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_WEIRD_SERVER_REPLY:
		return (struct s3_verdict){S3_NOT_S3, -EPROTO};
	case CURLE_WRITE_ERROR:
		if (t->mismatch)
			return (struct s3_verdict){S3_MISMATCH, -EIO};
		/* fall through */
	default:
		return (struct s3_verdict){S3_RETRY, -EIO};
	}
}

/* Does what the verdict says. The transfer is free again. */
static void act(struct s3_connections *p, struct s3_request *req, struct s3_verdict v,
	uint64_t generation, bool expired, uint64_t retry_after)
{
	struct s3_store *s = p->store;

	switch (v.action) {
	case S3_FINAL:
		if (v.result == 0 || v.result == -ENOENT || v.result == -EEXIST)
			s3_store_note_success(s);
		s3_request_finish(p, req, v.result);
		return;
	case S3_REAUTHENTICATE:
		if (!req->refused)
			req->refused = s3_client_now();
		/* Credentials that ran out on a store in use may be renewed a little late. */
		if (s3_keyring_other(s->keyring, generation, req->refused) ||
			(expired && atomic_load(&s->known)))
			s3_request_retry(p, req, 0);
		else
			s3_request_finish(p, req, v.result);
		return;
	case S3_MISMATCH:
		if (++req->mismatches < MISMATCHES_MAX)
			s3_request_retry(p, req, 0);
		else
			s3_request_finish(p, req, -EIO);
		return;
	case S3_NOT_S3:
		if (atomic_load(&s->known))
			s3_request_retry(p, req, 0);
		else
			s3_request_finish(p, req, v.result);
		return;
	case S3_RETRY:
		s3_request_retry(p, req, retry_after);
		return;
	}
}

void s3_transfer_complete(struct s3_transfer *t, CURLcode code)
{
	struct s3_connections *p = t->pool;
	struct s3_request *req = t->req;
	struct s3_counters *c = &p->ops[req->op];
	struct s3_error_reply e = {0};
	curl_off_t sent = 0, received = 0, retry_after = 0;
	struct s3_verdict v;
	long connects = 0;
	bool expired;

	curl_easy_getinfo(t->easy, CURLINFO_NUM_CONNECTS, &connects);
	curl_easy_getinfo(t->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
	curl_easy_getinfo(t->easy, CURLINFO_SIZE_DOWNLOAD_T, &received);
	curl_easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &retry_after);
	/* A date that has passed by this host's clock: libcurl subtracts. */
	if (retry_after < 0)
		retry_after = 0;
	s3_count_add(&p->connections, (uint64_t)connects);
	s3_count_add(&c->sent, (uint64_t)sent);
	s3_count_add(&c->received, (uint64_t)received);

	if (t->lost) {
		s3_transfer_release(t);
		return;
	}
	if (code == CURLE_OK) {
		v = judge_answer(t, &e);
		if (v.result)
			s3_store_say_answer(t, &e, v);
		if (v.result == -EACCES && s3_transfer_correct_clock(t, &e))
			v = (struct s3_verdict){S3_RETRY, -EIO};
	} else {
		v = judge_failure(t, code);
		s3_store_say_no_answer(t, code);
	}
	/* The other attempt may fare better. */
	if (v.action != S3_FINAL && t->twin && !t->twin->lost) {
		t->twin->hedge = false;
		s3_transfer_release(t);
		return;
	}
	s3_hedge_cancel_twin(t);
	if (v.action == S3_MISMATCH)
		s3_store_say(req,
			"endpoint=%s: the reply to %s of %s does not match the request (HTTP "
			"status %ld); check the store and any proxy in front of it",
			p->store->endpoint_text, s3_store_op_names[req->op],
			req->key ? req->key : "keys", t->status);
	if (v.result == 0)
		memcpy(req->etag, t->etag, sizeof req->etag);
	expired = strcmp(e.code, "ExpiredToken") == 0;
	s3_transfer_release(t);
	act(p, req, v, t->generation, expired, (uint64_t)retry_after);
}
