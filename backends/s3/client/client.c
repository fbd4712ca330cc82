/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A pool is a thread that runs libcurl's transfers by its socket interface over
 * epoll: what an idle connection costs then does not depend on how many there are.
 * Requests come by a queue and an eventfd; easy handles are kept and used again.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <curl/curl.h>
#include <openssl/evp.h>

#include "backends/s3/client/keyring.h"
#include "backends/s3/client/names.h"
#include "backends/s3/client/reply.h"
#include "backends/s3/client/sigv4.h"
#include "backends/s3/client/client.h"

#define SECOND UINT64_C(1000000000)

/* Pauses between attempts double from the first to the last of these. */
#define BACKOFF_FIRST (SECOND / 10)
#define BACKOFF_LAST  (10 * SECOND)
/* Replies that are not what was asked for, before a request is given up. */
#define MISMATCHES_MAX 6
/* A clock that differs more than this, in seconds, is what a refusal may be about. */
#define CLOCK_OFF 60
/* The user is told of a store out of reach after this time. */
#define OUTAGE_TOLD (5 * SECOND)

#define CONNECT_TIMEOUT 10L /* seconds; less if the timeout is */
/* Bytes a second under which a transfer makes no progress. */
#define PROGRESS_LEAST 1024L
/* libcurl's buffers, in bytes: what is moved by one system call. */
#define BUFFER_SMALL (16L << 10)
#define BUFFER_LARGE (512L << 10)
/* A body that is not an object's: an error, or a listing of 1000 keys. */
#define TEXT_MAX (16u << 20)
/* One PUT may be no larger at any store: 5 GiB. */
#define PUT_MAX (UINT64_C(5) << 30)

const char *const s3_addressing_names[] = {"path", "virtual", NULL};

/* What is counted, by the pool's thread; read by any. */
struct counters {
	_Atomic uint64_t requests, errors, retries, sent, received, busy_ns, max_ns;
	_Atomic uint64_t histogram[32];
};

struct queue {
	struct s3_request *head, **tail;
};

struct pool;

/* An easy handle and the request on it. */
struct transfer {
	CURL *easy;
	struct pool *pool;
	struct transfer *next; /* idle ones */
	struct s3_request *req;
	struct curl_slist *headers;
	uint64_t generation; /* of the credentials it is signed with */
	int vector;	     /* where in the request's vectors it is */
	size_t in_vector;
	uint64_t moved; /* bytes of the object */
	unsigned sends; /* how often libcurl sent it */
	char error[CURL_ERROR_SIZE];
	/* The reply. */
	long status;
	bool has_range, has_length, mismatch;
	uint64_t first, last, object_size; /* of Content-Range */
	uint64_t length;		   /* Content-Length */
	char etag[S3_ETAG_MAX + 1];
	char region[64];
	time_t date;	  /* the store's; -1: not told */
	time_t signed_at; /* what the signature says that the time is */
	char *text;	  /* a body that is not an object's */
	size_t text_length, text_room;
};

struct pool {
	struct s3_store *store;
	pthread_mutex_t lock; /* guards the next three */
	struct queue incoming;
	bool running, ending;

	pthread_t thread;
	int wake_fd, epoll_fd;
	/* The thread's own. */
	CURLM *multi;
	uint64_t timer; /* when libcurl wants to be called; 0: not at all */
	struct queue ready;
	struct s3_request *delayed; /* to be tried again when due */
	struct transfer *transfers; /* one per connection */
	struct transfer *idle;
	unsigned busy;
	struct s3_credentials credentials;
	struct s3_signer signer;
	uint64_t generation; /* of these; 0: none yet */
	uint64_t random;

	struct counters ops[S3_OPS];
	_Atomic uint64_t connections;
};

struct s3_store {
	struct backend_host host;
	struct s3_endpoint endpoint;
	char *endpoint_text, *region, *bucket, *ca_file;
	char authority[340]; /* the header Host */
	bool path_addressing, tls_verify;
	unsigned connections;
	long timeout; /* seconds */
	uint64_t retry_deadline;

	struct s3_keyring *keyring;
	_Atomic bool stopping;
	_Atomic uint64_t in_flight; /* accepted, and done() has not returned */
	pthread_mutex_t idle_lock;
	pthread_cond_t idle;	      /* nothing in flight */
	_Atomic bool known;	      /* it has answered as an S3 store does */
	_Atomic int64_t clock_offset; /* s to be added to this host's time for a signature */
	/* An outage: since when nothing but failures, and whether the user knows. */
	pthread_mutex_t outage_lock;
	_Atomic uint64_t failing_since;
	bool outage_told;

	struct pool pools[S3_POOLS];
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static void add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void queue_init(struct queue *q)
{
	q->head = NULL;
	q->tail = &q->head;
}

static void queue_add(struct queue *q, struct s3_request *req)
{
	req->next = NULL;
	*q->tail = req;
	q->tail = &req->next;
}

static struct s3_request *queue_take(struct queue *q)
{
	struct s3_request *req = q->head;

	if (req) {
		q->head = req->next;
		if (!q->head)
			q->tail = &q->head;
	}
	return req;
}

/* ---- messages ------------------------------------------------------------------ */

static const char *const op_names[S3_OPS] = {"GET", "HEAD", "PUT", "DELETE", "DELETE_MANY", "LIST"};

static void say(struct s3_request *req, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void say(struct s3_request *req, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(req->message, sizeof req->message, format, args);
	va_end(args);
}

static bool is_tls_error(CURLcode code)
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

/* Says why no answer came. */
static void say_no_answer(const struct transfer *t, CURLcode code)
{
	const struct s3_store *s = t->pool->store;
	const char *detail = t->error[0] ? t->error : curl_easy_strerror(code);

	if (code == CURLE_SSL_CACERT_BADFILE)
		say(t->req, "ca-file=%s: %s; name a readable file of certificates (PEM)",
			s->ca_file ? s->ca_file : "", detail);
	else if (code == CURLE_PEER_FAILED_VERIFICATION)
		say(t->req,
			"endpoint=%s: its certificate is not trusted: %s; give ca-file=FILE with "
			"the "
			"certificate of its issuer, or the name it was issued for",
			s->endpoint_text, detail);
	else if (is_tls_error(code))
		say(t->req,
			"endpoint=%s: TLS fails: %s; correct it, or use http:// if it has no TLS",
			s->endpoint_text, detail);
	else if (code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT)
		say(t->req,
			"endpoint=%s: cannot connect: %s; start the store or correct the endpoint",
			s->endpoint_text, detail);
	else
		say(t->req,
			"endpoint=%s: %s of %s was not answered: %s; look at the store and the "
			"network%s",
			s->endpoint_text, op_names[t->req->op], t->req->key ? t->req->key : "keys",
			detail,
			s->endpoint.tls || atomic_load(&s->known)
				? ""
				: ", or write https:// if it has TLS");
}

static void say_credentials(
	const struct transfer *t, const struct s3_error_reply *e, struct s3_request *req)
{
	const struct s3_store *s = t->pool->store;
	const struct s3_credentials *c = &t->pool->credentials;

	if (strcmp(e->code, "RequestTimeTooSkewed") == 0) {
		char off[64] = "";

		if (t->date != -1)
			snprintf(
				off, sizeof off, " by %lld s", (long long)(t->signed_at - t->date));
		say(req, "endpoint=%s: this host's clock differs from the store's%s; set the clock",
			s->endpoint_text, off);
	} else if (strcmp(e->code, "InvalidAccessKeyId") == 0 ||
		   strcmp(e->code, "XAdminUserNotFound") == 0) {
		say(req,
			"%s: the store does not know the access key ID %s; give one that it issued",
			c->source, c->access_key);
	} else if (strcmp(e->code, "SignatureDoesNotMatch") == 0) {
		say(req, "%s: the secret access key is not that of access key ID %s; correct it",
			c->source, c->access_key);
	} else if (strcmp(e->code, "ExpiredToken") == 0 ||
		   strcmp(e->code, "TokenRefreshRequired") == 0) {
		say(req, "%s: the session token has expired; renew it there", c->source);
	} else if (strcmp(e->code, "InvalidToken") == 0) {
		say(req,
			"%s: the store does not accept the session token; renew it or leave it out",
			c->source);
	} else {
		say(req,
			"bucket=%s: access key ID %s (%s) may not %s %s: %s; allow it to get, put, "
			"delete and list there",
			s->bucket, c->access_key, c->source, op_names[req->op],
			req->key ? req->key : "objects", e->message[0] ? e->message : e->code);
	}
}

/* Says what an answer means. */
static void say_answer(
	const struct transfer *t, const struct s3_error_reply *e, struct s3_verdict verdict)
{
	const struct s3_store *s = t->pool->store;
	struct s3_request *req = t->req;
	const char *region = e->region[0] ? e->region : t->region;

	if (verdict.action == S3_NOT_S3 && !e->code[0]) {
		say(req,
			"endpoint=%s: what answers there (HTTP status %ld) is no S3 store; correct "
			"the endpoint",
			s->endpoint_text, t->status);
		return;
	}
	switch (verdict.result) {
	case -ENOENT:
		say(req, "%s: no such object in bucket %s", req->key, s->bucket);
		break;
	case -EEXIST:
		say(req, "%s: changed or made by someone else in bucket %s", req->key, s->bucket);
		break;
	case -ERANGE:
		say(req, "%s: ends before byte %" PRIu64, req->key, req->offset + req->length);
		break;
	case -ENXIO:
		say(req, "bucket=%s: no such bucket at %s; create it or name another", s->bucket,
			s->endpoint_text);
		break;
	case -EACCES:
		say_credentials(t, e, req);
		break;
	case -EREMCHG:
		if (region[0] && strcmp(region, s->region) != 0)
			say(req,
				"region=%s: bucket %s is in region %s; give region=%s and its "
				"endpoint",
				s->region, s->bucket, region, region);
		else if (e->endpoint[0])
			say(req, "endpoint=%s: bucket %s is at %s; give that endpoint",
				s->endpoint_text, s->bucket, e->endpoint);
		else
			say(req,
				"region=%s: not that of bucket %s: %s; give its region and "
				"endpoint",
				s->region, s->bucket, e->message[0] ? e->message : e->code);
		break;
	case -ENOSPC:
		say(req, "bucket=%s: the store is full: %s; free space there or raise the quota",
			s->bucket, e->message[0] ? e->message : e->code);
		break;
	case -EOPNOTSUPP:
		say(req, "endpoint=%s: the store does not support %s: %s; use another store",
			s->endpoint_text, op_names[req->op], e->message[0] ? e->message : e->code);
		break;
	default:
		say(req, "endpoint=%s: %s of %s: HTTP status %ld %s%s%s; look at the store",
			s->endpoint_text, op_names[req->op], req->key ? req->key : "keys",
			t->status, e->code, e->message[0] ? ": " : "", e->message);
	}
}

/* ---- outages ------------------------------------------------------------------- */

static void note_failure(struct s3_store *s, const struct s3_request *req)
{
	uint64_t now = now_ns();
	bool tell = false;

	backend_debug(&s->host, "s3: attempt %u of %s %s: %s", req->retries + 1, op_names[req->op],
		req->key ? req->key : "", req->message);
	pthread_mutex_lock(&s->outage_lock);
	if (!atomic_load(&s->failing_since))
		atomic_store(&s->failing_since, now);
	else if (!s->outage_told && now - atomic_load(&s->failing_since) >= OUTAGE_TOLD)
		tell = s->outage_told = true;
	pthread_mutex_unlock(&s->outage_lock);
	if (tell)
		backend_error(&s->host, "%s (it is being tried again)", req->message);
}

static void note_success(struct s3_store *s)
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
			s->endpoint_text, (now_ns() - since) / SECOND);
}

/* ---- the end of a request ------------------------------------------------------ */

static void count(struct pool *p, const struct s3_request *req)
{
	struct counters *c = &p->ops[req->op];
	uint64_t ns = now_ns() - req->began;

	add(&c->requests, 1);
	add(&c->busy_ns, ns);
	/* This thread is the only one that writes. */
	if (ns > atomic_load_explicit(&c->max_ns, memory_order_relaxed))
		atomic_store_explicit(&c->max_ns, ns, memory_order_relaxed);
	add(&c->histogram[s3_histogram_entry(ns)], 1);
	if (req->result && req->result != -ENOENT && req->result != -EEXIST)
		add(&c->errors, 1);
}

static void finish(struct pool *p, struct s3_request *req, int result)
{
	struct s3_store *s = p->store;

	req->result = result;
	if (result == 0)
		req->message[0] = '\0';
	free(req->body);
	req->body = NULL;
	count(p, req);
	req->done(req);
	/* Only now: done() may have submitted others. */
	if (atomic_fetch_sub(&s->in_flight, 1) == 1 && atomic_load(&s->stopping)) {
		pthread_mutex_lock(&s->idle_lock);
		pthread_cond_signal(&s->idle);
		pthread_mutex_unlock(&s->idle_lock);
	}
}

static void finish_stopped(struct pool *p, struct s3_request *req)
{
	say(req, "the store is being closed");
	finish(p, req, -ESHUTDOWN);
}

static uint64_t random_below(struct pool *p, uint64_t n)
{
	/* xorshift64: it only keeps clients from coming back all at once. */
	p->random ^= p->random << 13;
	p->random ^= p->random >> 7;
	p->random ^= p->random << 17;
	return p->random % n;
}

/* Tries req again after a pause (retry_after: seconds that the store asks for), or gives it up. */
static void retry(struct pool *p, struct s3_request *req, uint64_t retry_after)
{
	unsigned doublings = req->retries < 16 ? req->retries : 16;
	uint64_t pause = BACKOFF_FIRST << doublings;

	note_failure(p->store, req);
	if (pause > BACKOFF_LAST)
		pause = BACKOFF_LAST;
	pause = pause / 2 + random_below(p, pause / 2);
	if (retry_after > 30)
		retry_after = 30;
	if (pause < retry_after * SECOND)
		pause = retry_after * SECOND;
	req->due = now_ns() + pause;
	if (req->deadline && req->due >= req->deadline) {
		size_t used = strlen(req->message);

		snprintf(req->message + used, sizeof req->message - used,
			" (given up after %" PRIu64 " s)", (now_ns() - req->began) / SECOND);
		finish(p, req, -EIO);
		return;
	}
	req->retries++;
	add(&p->ops[req->op].retries, 1);
	req->next = p->delayed;
	p->delayed = req;
}

/* ---- libcurl's callbacks -------------------------------------------------------- */

/* Copies between the request's vectors, from where the transfer is, and a buffer. */
static size_t move(struct transfer *t, char *buffer, size_t length, bool into_vectors)
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

static void rewind_body(struct transfer *t)
{
	t->vector = 0;
	t->in_vector = 0;
	t->moved = 0;
}

static size_t on_read(char *buffer, size_t size, size_t n, void *opaque)
{
	struct transfer *t = opaque;

	return move(t, buffer, size * n, false);
}

/* libcurl sends the body again: a kept connection had died. */
static int on_seek(void *opaque, curl_off_t offset, int origin)
{
	struct transfer *t = opaque;

	if (offset != 0 || origin != SEEK_SET)
		return CURL_SEEKFUNC_CANTSEEK;
	rewind_body(t);
	return CURL_SEEKFUNC_OK;
}

/* Just before each time that libcurl sends the request, which it may do twice by itself. */
static int on_send(void *opaque, char *local, char *remote, int local_port, int remote_port)
{
	struct transfer *t = opaque;

	(void)local, (void)remote, (void)local_port, (void)remote_port;
	if (t->sends++) {
		t->req->retries++;
		add(&t->pool->ops[t->req->op].retries, 1);
	}
	return CURL_PREREQFUNC_OK;
}

static void forget_reply(struct transfer *t)
{
	t->status = 0;
	t->has_range = t->has_length = t->mismatch = false;
	t->first = t->last = t->object_size = t->length = 0;
	t->etag[0] = t->region[0] = '\0';
	t->date = -1;
	t->text_length = 0;
}

/* The value of a header line if it is name's, in room bytes; lines that do not fit are none. */
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

static size_t on_header(char *line, size_t size, size_t n, void *opaque)
{
	struct transfer *t = opaque;
	size_t length = size * n;
	char value[256];

	/* Another block follows one of status 1xx. */
	if (length > 5 && memcmp(line, "HTTP/", 5) == 0) {
		forget_reply(t);
		curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->status);
	} else if (header_value(line, length, "content-range", value, sizeof value)) {
		t->has_range = s3_content_range_parse(value, &t->first, &t->last, &t->object_size);
		/* That of a range behind the end: the size alone. */
		if (!t->has_range && strncmp(value, "bytes */", 8) == 0)
			t->object_size = strtoull(value + 8, NULL, 10);
	} else if (header_value(line, length, "content-length", value, sizeof value)) {
		t->has_length = true;
		t->length = strtoull(value, NULL, 10);
	} else if (header_value(line, length, "etag", value, sizeof value)) {
		if (strlen(value) <= S3_ETAG_MAX)
			memcpy(t->etag, value, strlen(value) + 1);
	} else if (header_value(line, length, "x-amz-bucket-region", value, sizeof value)) {
		if (strlen(value) < sizeof t->region)
			memcpy(t->region, value, strlen(value) + 1);
	} else if (header_value(line, length, "date", value, sizeof value)) {
		t->date = curl_getdate(value, NULL);
	}
	return length;
}

/* Is the reply to a GET about the bytes that were asked for? */
static bool range_fits(const struct transfer *t)
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

static size_t keep_text(struct transfer *t, const char *data, size_t length)
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

static size_t on_write(char *data, size_t size, size_t n, void *opaque)
{
	struct transfer *t = opaque;
	const struct s3_request *req = t->req;
	size_t length = size * n;

	if ((req->op != S3_GET && req->op != S3_HEAD) || t->status >= 300)
		return keep_text(t, data, length);
	/* Never let a byte of something else into the caller's buffers. */
	if (!range_fits(t) || t->moved + length > t->last - t->first + 1) {
		t->mismatch = true;
		return 0;
	}
	if (req->op == S3_HEAD) {
		t->moved += length;
		return length;
	}
	return move(t, data, length, true);
}

/* ---- an attempt ------------------------------------------------------------------ */

/* Takes the store's credentials over if they are others by now. 0 or -ENOMEM. */
static int use_credentials(struct pool *p)
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
static int append(struct transfer *t, const char *name, const char *separator, const char *value)
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

/* Can nobody but the store itself have a part in what is sent? */
static bool protected(const struct s3_store *s)
{
	return s->endpoint.tls && s->tls_verify;
}

static const char *const methods[S3_OPS] = {"GET", "GET", "PUT", "DELETE", "POST", "GET"};

/* Puts the headers together, signed. 0 or negative errno. */
static int sign_request(struct transfer *t, const char *path, const char *query)
{
	const struct s3_store *s = t->pool->store;
	const struct s3_request *req = t->req;
	const struct s3_credentials *c = &t->pool->credentials;
	char timestamp[S3_TIMESTAMP], payload[S3_SHA256_HEX], range[64];
	char authorization[S3_AUTHORIZATION_MAX];
	struct headers h = {.n = 0};
	int r;

	t->signed_at = time(NULL) + (time_t)atomic_load(&s->clock_offset);
	s3_timestamp(t->signed_at, timestamp);
	/* What TLS protects needs no digest; elsewhere it shows what others did on the way. */
	if (protected(s))
		snprintf(payload, sizeof payload, S3_UNSIGNED_PAYLOAD);
	else
		s3_hex(req->digest, sizeof req->digest, payload);

	add_header(&h, "host", s->authority);
	add_header(&h, "x-amz-content-sha256", payload);
	add_header(&h, "x-amz-date", timestamp);
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
		add_header(&h, "content-md5", req->md5);
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

/* Tells libcurl what to do. 0 or negative errno. */
static int prepare(struct transfer *t)
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
		buffer = BUFFER_LARGE;
	}
	code |= curl_easy_setopt(e, CURLOPT_BUFFERSIZE, buffer);
	code |= curl_easy_setopt(e, CURLOPT_URL, url);
	code |= curl_easy_setopt(e, CURLOPT_HTTPHEADER, t->headers);
	if (req->deadline) {
		uint64_t now = now_ns();

		code |= curl_easy_setopt(e, CURLOPT_TIMEOUT_MS,
			now < req->deadline ? (long)((req->deadline - now) / 1000000) + 1 : 1L);
	} else {
		code |= curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, 0L);
	}
	if (code != CURLE_OK)
		r = -ENOMEM;
out:
	free(query);
	free(url);
	return r;
}

static void release(struct transfer *t)
{
	struct pool *p = t->pool;

	t->req = NULL;
	t->next = p->idle;
	p->idle = t;
	p->busy--;
}

static void start(struct pool *p, struct s3_request *req)
{
	struct transfer *t = p->idle;

	p->idle = t->next;
	p->busy++;
	t->req = req;
	t->sends = 0;
	t->error[0] = '\0';
	rewind_body(t);
	forget_reply(t);
	if (prepare(t) || curl_multi_add_handle(p->multi, t->easy) != CURLM_OK) {
		release(t);
		say(req, "out of memory for a request to the store");
		retry(p, req, 0);
	}
}

/* ---- what came of it --------------------------------------------------------------- */

/*
 * Was the request refused for its time? Then the next ones are signed with the store's: the clock
 * of this host has been stepped, or was never set.
 */
static bool correct_clock(const struct transfer *t, const struct s3_error_reply *e)
{
	struct s3_store *s = t->pool->store;
	int64_t offset = (int64_t)(t->date - time(NULL)), off = (int64_t)(t->date - t->signed_at);
	bool tell;

	if (strcmp(e->code, "RequestTimeTooSkewed") != 0 || t->date == -1 ||
		(off < CLOCK_OFF && off > -CLOCK_OFF))
		return false;
	/* Many requests find out at the same time; the user is told of each step once. */
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

static bool needs_key(enum s3_op op)
{
	return op != S3_LIST && op != S3_DELETE_MANY;
}

/* The answers of several keys in one. */
static struct s3_verdict judge_deleted(struct transfer *t, struct s3_error_reply *e)
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
static struct s3_verdict judge_success(struct transfer *t, struct s3_error_reply *e)
{
	static const struct s3_verdict fine = {S3_FINAL, 0}, mismatch = {S3_MISMATCH, -EIO},
				       not_s3 = {S3_NOT_S3, -EPROTO};
	struct s3_request *req = t->req;
	int r;

	switch (req->op) {
	case S3_HEAD:
		/* Of an empty object there is no first byte. */
		if (t->status == 200 && t->has_length && t->length == 0)
			return fine;
		if (!range_fits(t) || t->moved != 1)
			return mismatch;
		req->object_size = t->object_size;
		return fine;
	case S3_GET:
		if (!range_fits(t) || t->moved != t->last - t->first + 1)
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

static struct s3_verdict judge_answer(struct transfer *t, struct s3_error_reply *e)
{
	struct s3_request *req = t->req;
	struct s3_verdict v;

	if (t->status >= 200 && t->status < 300)
		return judge_success(t, e);
	if (s3_parse_error(t->text, t->text_length, e))
		e->code[0] = '\0';
	v = s3_judge(t->status, e, req->op == S3_PUT && (req->if_none_match || req->if_match));
	/* The keys of an absent bucket are absent, but so might be what was never a bucket. */
	if (v.result == -ENOENT && !needs_key(req->op))
		return (struct s3_verdict){S3_NOT_S3, -EPROTO};
	if (v.result == -ERANGE &&
		(req->op == S3_HEAD || (req->op == S3_GET && req->allow_short))) {
		req->object_size = t->object_size ? t->object_size : e->object_size;
		req->bytes = 0;
		v.result = 0;
	}
	return v;
}

static struct s3_verdict judge_failure(const struct transfer *t, CURLcode code)
{
	if (is_tls_error(code))
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
static void act(struct pool *p, struct s3_request *req, struct s3_verdict v, uint64_t generation,
	bool expired, uint64_t retry_after)
{
	struct s3_store *s = p->store;

	switch (v.action) {
	case S3_FINAL:
		if (v.result == 0 || v.result == -ENOENT || v.result == -EEXIST)
			note_success(s);
		finish(p, req, v.result);
		return;
	case S3_REAUTHENTICATE:
		/* Credentials that ran out on a store in use may be renewed a little late. */
		if (s3_keyring_other(s->keyring, generation) || (expired && atomic_load(&s->known)))
			retry(p, req, 0);
		else
			finish(p, req, v.result);
		return;
	case S3_MISMATCH:
		if (++req->mismatches < MISMATCHES_MAX)
			retry(p, req, 0);
		else
			finish(p, req, -EIO);
		return;
	case S3_NOT_S3:
		if (atomic_load(&s->known))
			retry(p, req, 0);
		else
			finish(p, req, v.result);
		return;
	case S3_RETRY:
		retry(p, req, retry_after);
		return;
	}
}

/* The transfer has ended, well or not. */
static void complete(struct transfer *t, CURLcode code)
{
	struct pool *p = t->pool;
	struct s3_request *req = t->req;
	struct counters *c = &p->ops[req->op];
	struct s3_error_reply e = {0};
	curl_off_t sent = 0, received = 0, retry_after = 0;
	struct s3_verdict v;
	long connects = 0;
	bool expired;

	curl_easy_getinfo(t->easy, CURLINFO_NUM_CONNECTS, &connects);
	curl_easy_getinfo(t->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
	curl_easy_getinfo(t->easy, CURLINFO_SIZE_DOWNLOAD_T, &received);
	curl_easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &retry_after);
	add(&p->connections, (uint64_t)connects);
	add(&c->sent, (uint64_t)sent);
	add(&c->received, (uint64_t)received);

	if (code == CURLE_OK) {
		v = judge_answer(t, &e);
		if (v.result)
			say_answer(t, &e, v);
		if (v.result == -EACCES && correct_clock(t, &e))
			v = (struct s3_verdict){S3_RETRY, -EIO};
	} else {
		v = judge_failure(t, code);
		say_no_answer(t, code);
	}
	if (v.action == S3_MISMATCH)
		say(req,
			"endpoint=%s: the reply to %s of %s is not what was asked for (HTTP status "
			"%ld); look at the store and what is in front of it",
			p->store->endpoint_text, op_names[req->op], req->key ? req->key : "keys",
			t->status);
	if (v.result == 0)
		memcpy(req->etag, t->etag, sizeof req->etag);
	expired = strcmp(e.code, "ExpiredToken") == 0;
	release(t);
	act(p, req, v, t->generation, expired, (uint64_t)retry_after);
}

/* ---- the loop of a pool ------------------------------------------------------------- */

static int on_timer(CURLM *multi, long ms, void *opaque)
{
	struct pool *p = opaque;

	(void)multi;
	p->timer = ms < 0 ? 0 : now_ns() + (uint64_t)ms * 1000000;
	return 0;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *opaque, void *registered)
{
	struct pool *p = opaque;
	struct epoll_event event = {.data.fd = fd};

	(void)easy;
	if (what == CURL_POLL_REMOVE) {
		epoll_ctl(p->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
		return 0;
	}
	if (what & CURL_POLL_IN)
		event.events |= EPOLLIN;
	if (what & CURL_POLL_OUT)
		event.events |= EPOLLOUT;
	if (epoll_ctl(p->epoll_fd, registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) < 0)
		return -1;
	if (!registered)
		curl_multi_assign(p->multi, fd, p);
	return 0;
}

/* Ends what libcurl is through with. Anything? */
static bool collect(struct pool *p)
{
	bool any = false;
	CURLMsg *message;
	int left;

	while ((message = curl_multi_info_read(p->multi, &left))) {
		struct transfer *t;
		CURLcode code = message->data.result;

		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &t);
		curl_multi_remove_handle(p->multi, t->easy);
		complete(t, code);
		any = true;
	}
	return any;
}

/* Moves what was submitted to the ready ones. Is the thread to end? */
static bool take_incoming(struct pool *p)
{
	bool ending;

	pthread_mutex_lock(&p->lock);
	if (p->incoming.head) {
		*p->ready.tail = p->incoming.head;
		p->ready.tail = p->incoming.tail;
		queue_init(&p->incoming);
	}
	ending = p->ending;
	pthread_mutex_unlock(&p->lock);
	return ending;
}

static void cancel_all(struct pool *p)
{
	struct s3_request *req;

	for (unsigned i = 0; i < p->store->connections; i++) {
		struct transfer *t = &p->transfers[i];

		req = t->req;
		if (!req)
			continue;
		curl_multi_remove_handle(p->multi, t->easy);
		release(t);
		finish_stopped(p, req);
	}
	while ((req = queue_take(&p->ready)))
		finish_stopped(p, req);
	while ((req = p->delayed)) {
		p->delayed = req->next;
		finish_stopped(p, req);
	}
}

/* Moves what is due to the ready ones. When the next one is; 0: none. */
static uint64_t promote_delayed(struct pool *p)
{
	struct s3_request **link = &p->delayed;
	uint64_t next = 0, now = p->delayed ? now_ns() : 0;

	while (*link) {
		struct s3_request *req = *link;

		if (req->due <= now) {
			*link = req->next;
			queue_add(&p->ready, req);
		} else {
			if (!next || req->due < next)
				next = req->due;
			link = &req->next;
		}
	}
	return next;
}

static bool timer_due(const struct pool *p)
{
	return p->timer && p->timer <= now_ns();
}

/* Milliseconds until the sooner of the two, either of which may be 0: none. */
static int wait_time(uint64_t a, uint64_t b)
{
	uint64_t now = now_ns(), soon = a && (!b || a < b) ? a : b;

	if (!soon)
		return -1;
	return soon <= now ? 0 : (int)((soon - now + 999999) / 1000000);
}

static void *pool_main(void *opaque)
{
	struct pool *p = opaque;
	bool ending;

	for (;;) {
		struct epoll_event events[64];
		uint64_t next_due;
		int n, running;

		ending = take_incoming(p);
		if (atomic_load(&p->store->stopping))
			cancel_all(p);
		next_due = promote_delayed(p);
		while (p->idle && p->ready.head)
			start(p, queue_take(&p->ready));
		if (timer_due(p)) {
			p->timer = 0;
			curl_multi_socket_action(p->multi, CURL_SOCKET_TIMEOUT, 0, &running);
		}
		if (collect(p))
			continue;
		if (ending) /* and nothing in flight */
			break;

		n = epoll_wait(p->epoll_fd, events, 64, wait_time(p->timer, next_due));
		for (int i = 0; i < n; i++) {
			int fd = events[i].data.fd, action = 0;
			eventfd_t unused;

			if (fd == p->wake_fd) {
				eventfd_read(fd, &unused);
				continue;
			}
			if (events[i].events & EPOLLIN)
				action |= CURL_CSELECT_IN;
			if (events[i].events & EPOLLOUT)
				action |= CURL_CSELECT_OUT;
			if (events[i].events & (EPOLLERR | EPOLLHUP))
				action |= CURL_CSELECT_ERR;
			curl_multi_socket_action(p->multi, fd, action, &running);
		}
		collect(p);
	}
	return NULL;
}

/* ---- the life of a pool --------------------------------------------------------------- */

/* What does not change between requests. */
static int set_up_easy(struct transfer *t)
{
	const struct s3_store *s = t->pool->store;
	CURL *e = curl_easy_init();
	CURLcode code = CURLE_OK;

	t->easy = e;
	if (!e)
		return -ENOMEM;
	code |= curl_easy_setopt(e, CURLOPT_PRIVATE, t);
	code |= curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
	code |= curl_easy_setopt(e, CURLOPT_ERRORBUFFER, t->error);
	code |= curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, s->endpoint.tls ? "https" : "http");
	code |= curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	code |= curl_easy_setopt(e, CURLOPT_USERAGENT, "userblk/" USERBLK_VERSION);
	code |= curl_easy_setopt(e, CURLOPT_PATH_AS_IS, 1L);
	code |= curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
	code |= curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT,
		s->timeout < CONNECT_TIMEOUT ? s->timeout : CONNECT_TIMEOUT);
	code |= curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, PROGRESS_LEAST);
	code |= curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, s->timeout);
	code |= curl_easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER_LARGE);
	code |= curl_easy_setopt(e, CURLOPT_READFUNCTION, on_read);
	code |= curl_easy_setopt(e, CURLOPT_READDATA, t);
	code |= curl_easy_setopt(e, CURLOPT_SEEKFUNCTION, on_seek);
	code |= curl_easy_setopt(e, CURLOPT_SEEKDATA, t);
	code |= curl_easy_setopt(e, CURLOPT_PREREQFUNCTION, on_send);
	code |= curl_easy_setopt(e, CURLOPT_PREREQDATA, t);
	code |= curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
	code |= curl_easy_setopt(e, CURLOPT_HEADERDATA, t);
	code |= curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_write);
	code |= curl_easy_setopt(e, CURLOPT_WRITEDATA, t);
	if (s->endpoint.tls) {
		code |= curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, s->tls_verify ? 1L : 0L);
		code |= curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, s->tls_verify ? 2L : 0L);
		if (s->ca_file) {
			code |= curl_easy_setopt(e, CURLOPT_CAINFO, s->ca_file);
			code |= curl_easy_setopt(e, CURLOPT_CAPATH, NULL);
		}
	}
	return code == CURLE_OK ? 0 : -ENOMEM;
}

/* Frees what set_up_pool() made, whole or not. */
static void tear_down_pool(struct pool *p)
{
	for (unsigned i = 0; p->transfers && i < p->store->connections; i++) {
		struct transfer *t = &p->transfers[i];

		curl_easy_cleanup(t->easy);
		curl_slist_free_all(t->headers);
		free(t->text);
	}
	if (p->multi)
		curl_multi_cleanup(p->multi);
	if (p->epoll_fd >= 0)
		close(p->epoll_fd);
	if (p->wake_fd >= 0)
		close(p->wake_fd);
	free(p->transfers);
	s3_credentials_clear(&p->credentials);
	OPENSSL_cleanse(&p->signer, sizeof p->signer);
	p->transfers = p->idle = NULL;
	p->multi = NULL;
	p->epoll_fd = p->wake_fd = -1;
	p->generation = 0;
}

static int set_up_pool(struct pool *p)
{
	unsigned n = p->store->connections;
	struct epoll_event event = {.events = EPOLLIN};
	int r = 0;

	queue_init(&p->ready);
	p->delayed = NULL;
	p->busy = 0;
	p->timer = 0;
	p->random = now_ns() ^ ((uint64_t)getpid() << 32) ^ (uint64_t)(uintptr_t)p;
	p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	p->wake_fd = p->epoll_fd < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->wake_fd < 0) {
		r = -errno;
		goto fail;
	}
	event.data.fd = p->wake_fd;
	if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, p->wake_fd, &event) < 0) {
		r = -errno;
		goto fail;
	}
	r = -ENOMEM;
	p->multi = curl_multi_init();
	p->transfers = calloc(n, sizeof *p->transfers);
	if (!p->multi || !p->transfers)
		goto fail;
	curl_multi_setopt(p->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
	curl_multi_setopt(p->multi, CURLMOPT_SOCKETDATA, p);
	curl_multi_setopt(p->multi, CURLMOPT_TIMERFUNCTION, on_timer);
	curl_multi_setopt(p->multi, CURLMOPT_TIMERDATA, p);
	curl_multi_setopt(p->multi, CURLMOPT_MAXCONNECTS, (long)n);
	for (unsigned i = 0; i < n; i++) {
		struct transfer *t = &p->transfers[i];

		t->pool = p;
		if (set_up_easy(t))
			goto fail;
		t->next = p->idle;
		p->idle = t;
	}
	return 0;
fail:
	tear_down_pool(p);
	return r;
}

/* Starts the thread if there is none; lock is held. 0 or negative errno. */
static int start_pool(struct pool *p)
{
	sigset_t all, old;
	int r;

	if (p->running)
		return 0;
	r = s3_keyring_start(p->store->keyring);
	if (r == 0)
		r = set_up_pool(p);
	if (r)
		return r;
	p->ending = false;
	/* The process's signals are none of this thread's business. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	r = -pthread_create(&p->thread, NULL, pool_main, p);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r)
		tear_down_pool(p);
	else
		p->running = true;
	return r;
}

static void end_pool(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	if (!p->running) {
		pthread_mutex_unlock(&p->lock);
		return;
	}
	p->ending = true;
	eventfd_write(p->wake_fd, 1);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	tear_down_pool(p);
	p->running = false;
}

/* ---- requests --------------------------------------------------------------------------- */

/* Is the value one that a header can have? */
static bool header_valid(const char *value)
{
	if (strlen(value) > S3_ETAG_MAX)
		return false;
	for (; *value; value++)
		if (*value < ' ' || *value > '~')
			return false;
	return true;
}

static bool request_valid(struct s3_request *req)
{
	req->length = 0;
	if ((unsigned)req->op >= S3_OPS || (unsigned)req->pool >= S3_POOLS || !req->done ||
		req->iovcnt < 0)
		return false;
	for (int i = 0; i < req->iovcnt; i++)
		if (__builtin_add_overflow(req->length, req->iov[i].iov_len, &req->length))
			return false;
	switch (req->op) {
	case S3_LIST:
		return req->key && s3_prefix_valid(req->key);
	case S3_DELETE_MANY:
		if (req->n_keys < 1 || req->n_keys > S3_DELETE_MAX || !req->key_results)
			return false;
		for (size_t i = 0; i < req->n_keys; i++)
			if (!s3_key_valid(req->keys[i]))
				return false;
		return true;
	case S3_GET:
		if (req->length == 0 || req->offset > INT64_MAX - req->length)
			return false;
		break;
	case S3_HEAD:
		req->offset = 0;
		break;
	case S3_PUT:
		if (req->length > PUT_MAX || (req->if_match && !header_valid(req->if_match)))
			return false;
		break;
	default:
		break;
	}
	return req->key && s3_key_valid(req->key);
}

/* The body of DeleteObjects and its digest. Keys need no quoting. */
static int make_delete_body(struct s3_request *req)
{
	uint8_t md5[16];
	size_t size;
	FILE *stream = open_memstream(&req->body, &size);

	if (!stream)
		return -ENOMEM;
	fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>"
	      "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
		stream);
	for (size_t i = 0; i < req->n_keys; i++)
		fprintf(stream, "<Object><Key>%s</Key></Object>", req->keys[i]);
	fputs("</Delete>", stream);
	if (fclose(stream) || !EVP_Digest(req->body, size, md5, NULL, EVP_md5(), NULL)) {
		free(req->body);
		req->body = NULL;
		return -ENOMEM;
	}
	EVP_EncodeBlock((unsigned char *)req->md5, md5, sizeof md5);
	s3_sha256(req->body, size, req->digest);
	return 0;
}

/* SHA-256 of no bytes: of all requests but PUT and DELETE_MANY. */
static const uint8_t digest_of_nothing[32] = {0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a,
	0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c,
	0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55};

static void digest_vectors(const struct iovec *iov, int iovcnt, uint8_t digest[32])
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();

	if (!context || !EVP_DigestInit_ex(context, EVP_sha256(), NULL))
		abort();
	for (int i = 0; i < iovcnt; i++)
		EVP_DigestUpdate(context, iov[i].iov_base, iov[i].iov_len);
	EVP_DigestFinal_ex(context, digest, NULL);
	EVP_MD_CTX_free(context);
}

int s3_store_submit(struct s3_store *s, struct s3_request *req)
{
	struct pool *p;
	uint32_t seconds;
	bool was_empty;
	int r = 0;

	if (!request_valid(req))
		return -EINVAL;
	p = &s->pools[req->pool];
	req->result = 0;
	req->bytes = req->object_size = 0;
	req->etag[0] = req->message[0] = '\0';
	req->listing = (struct s3_listing){0};
	req->retries = req->mismatches = 0;
	req->body = NULL;
	req->began = now_ns();
	seconds = req->retry_deadline ? req->retry_deadline : (uint32_t)s->retry_deadline;
	req->deadline = seconds ? req->began + seconds * SECOND : 0;

	/* Here, in the caller's thread, rather than where it would hold up other requests. */
	if (req->op == S3_DELETE_MANY) {
		for (size_t i = 0; i < req->n_keys; i++)
			req->key_results[i] = -EIO; /* until the store says otherwise */
		r = make_delete_body(req);
	} else if (!protected(s) && req->op == S3_PUT && req->sha256)
		memcpy(req->digest, req->sha256, sizeof req->digest);
	else if (!protected(s) && req->op == S3_PUT)
		digest_vectors(req->iov, req->iovcnt, req->digest);
	else if (!protected(s))
		memcpy(req->digest, digest_of_nothing, sizeof req->digest);
	if (r)
		return r;

	pthread_mutex_lock(&p->lock);
	r = start_pool(p);
	if (r == 0) {
		atomic_fetch_add(&s->in_flight, 1);
		was_empty = !p->incoming.head;
		queue_add(&p->incoming, req);
		/* Once for all that come until it looks. */
		if (was_empty)
			eventfd_write(p->wake_fd, 1);
	}
	pthread_mutex_unlock(&p->lock);
	if (r)
		free(req->body);
	return r;
}

struct waiter {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done;
};

static void on_waited(struct s3_request *req)
{
	struct waiter *w = req->opaque;

	pthread_mutex_lock(&w->lock);
	w->done = true;
	pthread_cond_signal(&w->changed);
	pthread_mutex_unlock(&w->lock);
}

int s3_store_call(struct s3_store *s, struct s3_request *req)
{
	struct waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
	int r;

	req->done = on_waited;
	req->opaque = &w;
	r = s3_store_submit(s, req);
	if (r) {
		say(req, "malformed request for %s: %s", req->key ? req->key : "objects",
			strerror(-r));
		req->result = r;
		return r;
	}
	pthread_mutex_lock(&w.lock);
	while (!w.done)
		pthread_cond_wait(&w.changed, &w.lock);
	pthread_mutex_unlock(&w.lock);
	pthread_cond_destroy(&w.changed);
	pthread_mutex_destroy(&w.lock);
	return req->result;
}

/* ---- the store --------------------------------------------------------------------------- */

int s3_store_check(const struct s3_store_config *c, struct params_error *error)
{
	struct s3_endpoint endpoint;

	if (!s3_endpoint_parse(c->endpoint, &endpoint)) {
		params_error_set(error,
			"endpoint=%s: no address of a store; write http[s]://host[:port]",
			c->endpoint);
		return -EINVAL;
	}
	if (!s3_bucket_valid(c->bucket)) {
		params_error_set(error,
			"bucket=%s: no name of a bucket; it has 3 to 63 of a-z 0-9 . - and a "
			"letter or "
			"digit at both ends",
			c->bucket);
		return -EINVAL;
	}
	for (const char *r = c->region; *r; r++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_",
			    *r) ||
			r - c->region >= 63) {
			params_error_set(error,
				"region=%s: no name of a region; write letters, digits and -",
				c->region);
			return -EINVAL;
		}
	if (c->addressing == S3_ADDRESSING_VIRTUAL && endpoint.is_address) {
		params_error_set(error,
			"addressing=virtual: the endpoint %s is an IP address, which takes no "
			"bucket "
			"in front; use addressing=path",
			endpoint.host);
		return -EINVAL;
	}
	if (c->ca_file && !endpoint.tls) {
		params_error_set(error,
			"ca-file=%s: no certificates over http; use an https:// endpoint or leave "
			"it "
			"out",
			c->ca_file);
		return -EINVAL;
	}
	return 0;
}

/* strdup of what may be NULL; *failed says that there was no memory. */
static char *copy(const char *text, bool *failed)
{
	char *new = text ? strdup(text) : NULL;

	*failed |= text && !new;
	return new;
}

static void free_store(struct s3_store *s)
{
	for (int i = 0; i < S3_POOLS; i++)
		pthread_mutex_destroy(&s->pools[i].lock);
	pthread_mutex_destroy(&s->outage_lock);
	pthread_mutex_destroy(&s->idle_lock);
	pthread_cond_destroy(&s->idle);
	s3_keyring_close(s->keyring);
	free(s->endpoint_text);
	free(s->region);
	free(s->bucket);
	free(s->ca_file);
	free(s);
	curl_global_cleanup();
}

int s3_store_open(
	const struct s3_store_config *c, const struct backend_host *host, struct s3_store **out)
{
	struct params_error error;
	struct s3_store *s;
	bool failed = false;
	int r = s3_store_check(c, &error);

	if (r) {
		backend_error(host, "%s", error.text);
		return r;
	}
	s = calloc(1, sizeof *s);
	if (!s)
		return -ENOMEM;
	if (curl_global_init(CURL_GLOBAL_DEFAULT)) {
		free(s);
		return -ENOMEM;
	}
	s->host = *host;
	s3_endpoint_parse(c->endpoint, &s->endpoint);
	s->endpoint_text = copy(c->endpoint, &failed);
	s->region = copy(c->region, &failed);
	s->bucket = copy(c->bucket, &failed);
	s->ca_file = copy(c->ca_file, &failed);
	s->path_addressing = c->addressing == S3_ADDRESSING_PATH;
	s->tls_verify = c->tls_verify;
	s->connections = (unsigned)c->connections;
	s->timeout = (long)c->timeout;
	s->retry_deadline = c->retry_deadline;
	snprintf(s->authority, sizeof s->authority, "%s%s%s", s->path_addressing ? "" : c->bucket,
		s->path_addressing ? "" : ".", s->endpoint.authority);
	pthread_mutex_init(&s->outage_lock, NULL);
	pthread_mutex_init(&s->idle_lock, NULL);
	pthread_cond_init(&s->idle, NULL);
	for (int i = 0; i < S3_POOLS; i++) {
		struct pool *p = &s->pools[i];

		p->store = s;
		pthread_mutex_init(&p->lock, NULL);
		queue_init(&p->incoming);
		p->epoll_fd = p->wake_fd = -1;
	}
	if (failed) {
		free_store(s);
		return -ENOMEM;
	}
	r = s3_keyring_open(c->credentials, c->profile, host, &s->keyring);
	if (r) {
		free_store(s);
		return r;
	}
	*out = s;
	return 0;
}

int s3_store_start(struct s3_store *s)
{
	int r = 0;

	for (int i = 0; r == 0 && i < S3_POOLS; i++) {
		struct pool *p = &s->pools[i];

		pthread_mutex_lock(&p->lock);
		r = start_pool(p);
		pthread_mutex_unlock(&p->lock);
	}
	return r;
}

void s3_store_park(struct s3_store *s)
{
	for (int i = 0; i < S3_POOLS; i++)
		end_pool(&s->pools[i]);
	s3_keyring_park(s->keyring);
}

void s3_store_stop(struct s3_store *s)
{
	atomic_store(&s->stopping, true);
	for (int i = 0; i < S3_POOLS; i++) {
		struct pool *p = &s->pools[i];

		pthread_mutex_lock(&p->lock);
		if (p->running)
			eventfd_write(p->wake_fd, 1);
		pthread_mutex_unlock(&p->lock);
	}
}

void s3_store_close(struct s3_store *s)
{
	if (!s)
		return;
	s3_store_stop(s);
	/* A done() may submit to a pool whose thread would already be gone. */
	pthread_mutex_lock(&s->idle_lock);
	while (atomic_load(&s->in_flight))
		pthread_cond_wait(&s->idle, &s->idle_lock);
	pthread_mutex_unlock(&s->idle_lock);
	s3_store_park(s);
	free_store(s);
}

uint64_t s3_store_outage(const struct s3_store *s)
{
	uint64_t since = atomic_load(&s->failing_since);

	return since ? now_ns() - since : 0;
}

void s3_store_counters(struct s3_store *s, struct s3_store_counters *out)
{
	*out = (struct s3_store_counters){.in_flight = s->in_flight};
	for (int i = 0; i < S3_POOLS; i++) {
		struct pool *p = &s->pools[i];

		out->connections += p->connections;
		for (int op = 0; op < S3_OPS; op++) {
			struct counters *c = &p->ops[op];
			struct s3_op_counters *o = &out->ops[op];

			o->requests += c->requests;
			o->errors += c->errors;
			o->retries += c->retries;
			o->sent += c->sent;
			o->received += c->received;
			o->busy_ns += c->busy_ns;
			if (o->max_ns < c->max_ns)
				o->max_ns = c->max_ns;
			for (int b = 0; b < 32; b++)
				o->histogram[b] += c->histogram[b];
		}
	}
}
