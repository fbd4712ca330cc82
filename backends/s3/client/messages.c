/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages to the user: a request that failed, a store out of reach. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <curl/curl.h>

#include "backends/backend.h"
#include "backends/s3/client/client.h"
#include "backends/s3/client/credentials.h"
#include "backends/s3/client/internal.h"
#include "backends/s3/client/reply.h"

/* A store out of reach is reported after this time. */
#define OUTAGE_REPORTED (5 * S3_SECOND)

/* ---- messages ------------------------------------------------------------------ */

const char *const s3_store_op_names[S3_OPS] = {
	"GET", "HEAD", "PUT", "DELETE", "DELETE_MANY", "LIST"};

void s3_store_say(struct s3_request *req, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(req->message, sizeof req->message, format, args);
	va_end(args);
}

bool s3_is_tls_error(CURLcode code)
{
	switch (code) {
	case CURLE_SSL_CONNECT_ERROR:
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CERTPROBLEM:
	case CURLE_SSL_CIPHER:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_ISSUER_ERROR:
	case CURLE_SSL_INVALIDCERTSTATUS:
		return true;
	default:
		return false;
	}
}

void s3_store_say_no_answer(const struct s3_transfer *t, CURLcode code)
{
	const struct s3_store *s = t->pool->store;
	const char *detail = t->error[0] ? t->error : curl_easy_strerror(code);

	if (code == CURLE_SSL_CACERT_BADFILE)
		s3_store_say(t->req, "ca-file=%s: %s; name a readable file of certificates (PEM)",
			s->ca_file ? s->ca_file : "", detail);
	else if (code == CURLE_PEER_FAILED_VERIFICATION)
		s3_store_say(t->req,
			"endpoint=%s: its certificate is not trusted: %s; give ca-file=FILE with "
			"the "
			"certificate of its issuer, or the name it was issued for",
			s->endpoint_text, detail);
	else if (s3_is_tls_error(code))
		s3_store_say(t->req,
			"endpoint=%s: TLS fails: %s; correct it, or use http:// if it has no TLS",
			s->endpoint_text, detail);
	else if (code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT)
		s3_store_say(t->req,
			"endpoint=%s: cannot connect: %s; start the store or correct the endpoint",
			s->endpoint_text, detail);
	else
		s3_store_say(t->req,
			"endpoint=%s: %s of %s was not answered: %s; check the store and the "
			"network%s",
			s->endpoint_text, s3_store_op_names[t->req->op],
			t->req->key ? t->req->key : "keys", detail,
			s->endpoint.tls || atomic_load(&s->known)
				? ""
				: ", or write https:// if it has TLS");
}

static void say_credentials(
	const struct s3_transfer *t, const struct s3_error_reply *e, struct s3_request *req)
{
	const struct s3_store *s = t->pool->store;
	const struct s3_credentials *c = &t->pool->credentials;

	if (strcmp(e->code, "RequestTimeTooSkewed") == 0) {
		char off[64] = "";

		if (t->date != -1)
			snprintf(
				off, sizeof off, " by %lld s", (long long)(t->signed_at - t->date));
		s3_store_say(req,
			"endpoint=%s: this host's clock differs from the store's%s; set the clock",
			s->endpoint_text, off);
	} else if (strcmp(e->code, "InvalidAccessKeyId") == 0 ||
		   strcmp(e->code, "XAdminUserNotFound") == 0) {
		s3_store_say(req,
			"%s: the store does not know the access key ID %s; give one that it issued",
			c->source, c->access_key);
	} else if (strcmp(e->code, "SignatureDoesNotMatch") == 0) {
		s3_store_say(req,
			"%s: the secret access key is not that of access key ID %s; correct it",
			c->source, c->access_key);
	} else if (strcmp(e->code, "ExpiredToken") == 0 ||
		   strcmp(e->code, "TokenRefreshRequired") == 0) {
		s3_store_say(req, "%s: the session token has expired; renew it there", c->source);
	} else if (strcmp(e->code, "InvalidToken") == 0) {
		s3_store_say(req,
			"%s: the store does not accept the session token; renew it or leave it out",
			c->source);
	} else {
		s3_store_say(req,
			"bucket=%s: access key ID %s (%s) may not %s %s: %s; allow it to get, put, "
			"delete and list there",
			s->bucket, c->access_key, c->source, s3_store_op_names[req->op],
			req->key ? req->key : "objects", e->message[0] ? e->message : e->code);
	}
}

void s3_store_say_answer(
	const struct s3_transfer *t, const struct s3_error_reply *e, struct s3_verdict verdict)
{
	const struct s3_store *s = t->pool->store;
	struct s3_request *req = t->req;
	const char *region = e->region[0] ? e->region : t->region;

	if (verdict.action == S3_NOT_S3 && !e->code[0]) {
		s3_store_say(req,
			"endpoint=%s: the server there (HTTP status %ld) is not an S3 store; "
			"correct the endpoint",
			s->endpoint_text, t->status);
		return;
	}
	if (strcmp(e->code, "InvalidObjectState") == 0) {
		s3_store_say(req,
			"bucket=%s: %s has been archived; restore it there, and remove the "
			"lifecycle rule that archives",
			s->bucket, req->key ? req->key : "an object");
		return;
	}
	switch (verdict.result) {
	case -ENOENT:
		s3_store_say(req, "%s: no such object in bucket %s", req->key, s->bucket);
		break;
	case -EEXIST:
		s3_store_say(req, "%s: changed or created by another program in bucket %s",
			req->key, s->bucket);
		break;
	case -ERANGE:
		s3_store_say(
			req, "%s: ends before byte %" PRIu64, req->key, req->offset + req->length);
		break;
	case -ENXIO:
		s3_store_say(req, "bucket=%s: no such bucket at %s; create it or name another",
			s->bucket, s->endpoint_text);
		break;
	case -EACCES:
		say_credentials(t, e, req);
		break;
	case -EREMCHG:
		if (region[0] && strcmp(region, s->region) != 0)
			s3_store_say(req,
				"region=%s: bucket %s is in region %s; give region=%s and its "
				"endpoint",
				s->region, s->bucket, region, region);
		else if (e->endpoint[0])
			s3_store_say(req, "endpoint=%s: bucket %s is at %s; give that endpoint",
				s->endpoint_text, s->bucket, e->endpoint);
		else
			s3_store_say(req,
				"region=%s: not that of bucket %s: %s; give its region and "
				"endpoint",
				s->region, s->bucket, e->message[0] ? e->message : e->code);
		break;
	case -ENOSPC:
		s3_store_say(req,
			"bucket=%s: the store is full: %s; free space there or raise the quota",
			s->bucket, e->message[0] ? e->message : e->code);
		break;
	case -EOPNOTSUPP:
		s3_store_say(req,
			"endpoint=%s: the store does not support %s: %s; use another store",
			s->endpoint_text, s3_store_op_names[req->op],
			e->message[0] ? e->message : e->code);
		break;
	default:
		s3_store_say(req, "endpoint=%s: %s of %s: HTTP status %ld %s%s%s; check the store",
			s->endpoint_text, s3_store_op_names[req->op], req->key ? req->key : "keys",
			t->status, e->code, e->message[0] ? ": " : "", e->message);
	}
}

/* ---- outages ------------------------------------------------------------------- */

void s3_store_note_failure(struct s3_store *s, const struct s3_request *req)
{
	uint64_t now = s3_client_now();
	bool tell = false;

	backend_debug(&s->host, "s3: attempt %u of %s %s: %s", req->retries + 1,
		s3_store_op_names[req->op], req->key ? req->key : "", req->message);
	pthread_mutex_lock(&s->outage_lock);
	if (!atomic_load(&s->failing_since))
		atomic_store(&s->failing_since, now);
	else if (!s->outage_told && now - atomic_load(&s->failing_since) >= OUTAGE_REPORTED)
		tell = s->outage_told = true;
	pthread_mutex_unlock(&s->outage_lock);
	if (tell)
		backend_error(&s->host, "%s (trying again)", req->message);
}

void s3_store_note_success(struct s3_store *s)
{
	uint64_t since;
	bool tell;

	if (!atomic_load_explicit(&s->known, memory_order_relaxed))
		atomic_store(&s->known, true);
	if (!atomic_load_explicit(&s->failing_since, memory_order_relaxed))
		return;
	pthread_mutex_lock(&s->outage_lock);
	since = atomic_exchange(&s->failing_since, 0);
	tell = s->outage_told;
	s->outage_told = false;
	pthread_mutex_unlock(&s->outage_lock);
	if (tell)
		backend_error(&s->host, "endpoint=%s: answers again after %" PRIu64 " s",
			s->endpoint_text, (s3_client_now() - since) / S3_SECOND);
}
