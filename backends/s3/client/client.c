/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests as others make them, and the life of a store. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <curl/curl.h>
#include <openssl/evp.h>

#include "backends/backend.h"
#include "backends/params.h"
#include "backends/s3/client/client.h"
#include "backends/s3/client/internal.h"
#include "backends/s3/client/keyring.h"
#include "backends/s3/client/names.h"
#include "backends/s3/client/sigv4.h"

/* One PUT may be no larger at any store: 5 GiB. */
#define PUT_MAX (UINT64_C(5) << 30)

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

/* The body of DeleteObjects and its digests. Keys need no quoting. */
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
	if (fclose(stream)) {
		free(req->body);
		req->body = NULL;
		return -ENOMEM;
	}
	req->md5[0] = '\0';
	/* In FIPS mode it fails. */
	if (EVP_Digest(req->body, size, md5, NULL, EVP_md5(), NULL))
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
	struct s3_connections *p;
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
	req->began = s3_client_now();
	seconds = req->retry_deadline ? req->retry_deadline : (uint32_t)s->retry_deadline;
	req->patience = seconds * S3_SECOND;
	req->deadline = seconds ? req->began + req->patience : 0;
	req->failing = req->expired = false;
	req->refused = 0;

	/* Here, in the caller's thread, rather than where it would hold up other requests. */
	if (req->op == S3_DELETE_MANY) {
		for (size_t i = 0; i < req->n_keys; i++)
			req->key_results[i] = -EIO; /* until the store says otherwise */
		r = make_delete_body(req);
	} else if (s3_transfer_summed(req)) {
		/* which the caller has */
	} else if (!s3_transfer_protected(s) && req->op == S3_PUT && req->sha256)
		memcpy(req->digest, req->sha256, sizeof req->digest);
	else if (!s3_transfer_protected(s) && req->op == S3_PUT)
		digest_vectors(req->iov, req->iovcnt, req->digest);
	else if (!s3_transfer_protected(s))
		memcpy(req->digest, digest_of_nothing, sizeof req->digest);
	if (r)
		return r;

	pthread_mutex_lock(&p->lock);
	r = s3_pool_start(p);
	if (r == 0) {
		atomic_fetch_add(&s->in_flight, 1);
		was_empty = !p->incoming.head;
		s3_queue_add(&p->incoming, req);
		/* Once for all that come until it looks. */
		if (was_empty)
			eventfd_write(p->wake_fd, 1);
	}
	pthread_mutex_unlock(&p->lock);
	if (r)
		free(req->body);
	return r;
}

/* ---- the store --------------------------------------------------------------------------- */

int s3_store_check(const struct s3_store_config *c, struct params_error *error)
{
	struct s3_endpoint endpoint;

	if (!s3_endpoint_parse(c->endpoint, &endpoint)) {
		params_error_set(error,
			"endpoint=%s: not the address of a store; write http[s]://host[:port]",
			c->endpoint);
		return -EINVAL;
	}
	if (!s3_bucket_valid(c->bucket)) {
		params_error_set(error,
			"bucket=%s: not a valid bucket name; use 3 to 63 of a-z 0-9 . -, with a "
			"letter or digit at both ends",
			c->bucket);
		return -EINVAL;
	}
	for (const char *r = c->region; *r; r++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_",
			    *r) ||
			r - c->region >= 63) {
			params_error_set(error,
				"region=%s: not a valid region name; use letters, digits and -",
				c->region);
			return -EINVAL;
		}
	if (c->addressing == S3_ADDRESSING_VIRTUAL && endpoint.is_address) {
		params_error_set(error,
			"addressing=virtual: the endpoint %s is an IP address, to which no bucket "
			"name can be prefixed; use addressing=path",
			endpoint.host);
		return -EINVAL;
	}
	if (c->hedge && c->hedge < 50) {
		params_error_set(error,
			"hedge=%" PRIu64
			": too many reads would be late; give a percentile from 50 "
			"to 99, such as 95, or 0",
			c->hedge);
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

/*
 * The soft limit of open files is for programs that use select(2). A store raises it by what it may
 * need, as far as it can: a process may have several.
 */
static void allow_sockets(uint64_t connections)
{
	rlim_t more = (rlim_t)connections * S3_POOLS;
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur == RLIM_INFINITY)
		return;
	files.rlim_cur =
		files.rlim_max - files.rlim_cur > more ? files.rlim_cur + more : files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
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
	allow_sockets(c->connections);
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
	s->hedge = c->hedge;
	snprintf(s->authority, sizeof s->authority, "%s%s%s", s->path_addressing ? "" : c->bucket,
		s->path_addressing ? "" : ".", s->endpoint.authority);
	pthread_mutex_init(&s->outage_lock, NULL);
	pthread_mutex_init(&s->idle_lock, NULL);
	pthread_cond_init(&s->idle, NULL);
	for (int i = 0; i < S3_POOLS; i++) {
		struct s3_connections *p = &s->pools[i];

		p->store = s;
		pthread_mutex_init(&p->lock, NULL);
		s3_queue_init(&p->incoming);
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

void s3_store_park(struct s3_store *s)
{
	for (int i = 0; i < S3_POOLS; i++)
		s3_pool_end(&s->pools[i]);
	s3_keyring_park(s->keyring);
}

/* Has the pools look at what must end. */
static void wake_pools(struct s3_store *s)
{
	for (int i = 0; i < S3_POOLS; i++) {
		struct s3_connections *p = &s->pools[i];

		pthread_mutex_lock(&p->lock);
		if (p->running)
			eventfd_write(p->wake_fd, 1);
		pthread_mutex_unlock(&p->lock);
	}
}

void s3_store_stop(struct s3_store *s)
{
	atomic_store(&s->stopping, true);
	wake_pools(s);
}

void s3_store_drop(struct s3_store *s)
{
	atomic_store(&s->dropping, true);
	wake_pools(s);
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

	return since ? s3_client_now() - since : 0;
}

void s3_store_counters(struct s3_store *s, struct s3_store_counters *out)
{
	*out = (struct s3_store_counters){.in_flight = s->in_flight};
	for (int i = 0; i < S3_POOLS; i++) {
		struct s3_connections *p = &s->pools[i];

		out->connections += p->connections;
		out->hedges += p->hedges;
		out->hedges_won += p->hedges_won;
		for (int op = 0; op < S3_OPS; op++) {
			struct s3_counters *c = &p->ops[op];
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
