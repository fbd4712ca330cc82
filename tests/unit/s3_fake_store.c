/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/client/client.h"
#include "tests/unit/s3_fake_objects.h"
#include "tests/unit/s3_fake_store.h"

struct s3_store {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread;
	struct s3_request *queue;
	unsigned queued, random;
	bool started, ending, stopped, dropping;
	uint64_t retry_deadline;
};

static struct {
	enum s3_op op;
	char key[S3_KEY_MAX + 1];
	uint32_t deadline;
	uint64_t stored; /* bytes */
} * asked;
static size_t n_asked;
static struct {
	enum s3_op op;
	char part[64];
	int result;
	unsigned left, met;
	bool late, early;
} fault;
/* What happens to a held request before it waits, and when it is let go. */
enum how { NOTHING, ANSWER, EFFECT_AGAIN };
static struct {
	enum s3_op op;
	char part[64];
	enum how how;
	bool on, met;
	const struct s3_request
		*one; /* that took effect: of those held by their answers only one */
} holds[8];
static uint64_t latency; /* ns */

/* ---- what tests see ------------------------------------------------------------------ */

void fake_store_reset(void)
{
	fake_objects_reset();
	free(asked);
	asked = NULL;
	n_asked = 0;
	fault.left = fault.met = 0;
	fake_store_release(S3_GET, NULL);
	latency = 0;
}

unsigned fake_store_requests(enum s3_op op, const char *part)
{
	unsigned n = 0;

	pthread_mutex_lock(&fake_objects_lock);
	for (size_t i = 0; i < n_asked; i++)
		n += asked[i].op == op && strstr(asked[i].key, part);
	pthread_mutex_unlock(&fake_objects_lock);
	return n;
}

uint64_t fake_store_put_bytes(const char *part)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&fake_objects_lock);
	for (size_t i = 0; i < n_asked; i++)
		bytes += strstr(asked[i].key, part) ? asked[i].stored : 0;
	pthread_mutex_unlock(&fake_objects_lock);
	return bytes;
}

uint32_t fake_store_deadline(enum s3_op op, const char *part)
{
	uint32_t deadline = UINT32_MAX;

	pthread_mutex_lock(&fake_objects_lock);
	for (size_t i = 0; i < n_asked; i++)
		if (asked[i].op == op && strstr(asked[i].key, part))
			deadline = asked[i].deadline;
	pthread_mutex_unlock(&fake_objects_lock);
	return deadline;
}

static void fail(enum s3_op op, const char *part, int result, unsigned n, bool late)
{
	pthread_mutex_lock(&fake_objects_lock);
	fault.op = op;
	snprintf(fault.part, sizeof fault.part, "%s", part);
	fault.result = result;
	fault.left = n;
	fault.late = late;
	fault.early = false;
	pthread_mutex_unlock(&fake_objects_lock);
}

void fake_store_fail(enum s3_op op, const char *part, int result, unsigned n)
{
	fail(op, part, result, n, false);
}

void fake_store_mismatch(enum s3_op op, const char *part, unsigned n)
{
	fail(op, part, -EIO, n, false);
	pthread_mutex_lock(&fake_objects_lock);
	fault.early = true;
	pthread_mutex_unlock(&fake_objects_lock);
}

void fake_store_fail_late(const char *part, int result, unsigned n)
{
	fail(S3_PUT, part, result, n, true);
}

unsigned fake_store_failed(void)
{
	unsigned n;

	pthread_mutex_lock(&fake_objects_lock);
	n = fault.met;
	pthread_mutex_unlock(&fake_objects_lock);
	return n;
}

static void hold(enum s3_op op, const char *part, enum how how)
{
	size_t i = 0;

	pthread_mutex_lock(&fake_objects_lock);
	while (holds[i].one ||
		(holds[i].on && (holds[i].op != op || strcmp(holds[i].part, part) != 0)))
		if (++i == sizeof holds / sizeof holds[0])
			abort();
	holds[i].op = op;
	snprintf(holds[i].part, sizeof holds[i].part, "%s", part);
	holds[i].how = how;
	holds[i].on = true;
	holds[i].met = false;
	holds[i].one = NULL;
	pthread_mutex_unlock(&fake_objects_lock);
}

void fake_store_latency(unsigned ms)
{
	pthread_mutex_lock(&fake_objects_lock);
	latency = ms * UINT64_C(1000000);
	pthread_mutex_unlock(&fake_objects_lock);
}

void fake_store_hold(enum s3_op op, const char *part)
{
	if (part)
		hold(op, part, NOTHING);
	else
		fake_store_release(op, NULL);
}

void fake_store_hold_answers(enum s3_op op, const char *part, bool twice)
{
	hold(op, part, twice ? EFFECT_AGAIN : ANSWER);
}

void fake_store_release(enum s3_op op, const char *part)
{
	pthread_mutex_lock(&fake_objects_lock);
	for (size_t i = 0; i < sizeof holds / sizeof holds[0]; i++)
		if (!part || (holds[i].op == op && strcmp(holds[i].part, part) == 0))
			holds[i].on = false;
	pthread_mutex_unlock(&fake_objects_lock);
}

void fake_store_wait_held(enum s3_op op, const char *part)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	bool met = false;

	for (int i = 0; !met && i < 20000; i++) {
		pthread_mutex_lock(&fake_objects_lock);
		for (size_t j = 0; j < sizeof holds / sizeof holds[0]; j++)
			met |= holds[j].on && holds[j].met && holds[j].op == op &&
			       strcmp(holds[j].part, part) == 0;
		pthread_mutex_unlock(&fake_objects_lock);
		nanosleep(&pause, NULL);
	}
	if (!met) {
		fprintf(stderr, "fake store: no request %d of %s was held\n", (int)op, part);
		abort();
	}
}

/* That by which it is known: of many the first. */
static const char *key_of(const struct s3_request *req)
{
	return req->op == S3_DELETE_MANY ? req->keys[0] : req->key;
}

/* Counts a request of a key. */
static void note(const struct s3_request *req, const char *key)
{
	asked = realloc(asked, (n_asked + 1) * sizeof *asked);
	if (!asked)
		abort();
	asked[n_asked].op = req->op;
	asked[n_asked].deadline = req->retry_deadline;
	asked[n_asked].stored = 0;
	snprintf(asked[n_asked++].key, sizeof asked->key, "%s", key);
}

static int serve(struct s3_request *req)
{
	int r = 0;

	pthread_mutex_lock(&fake_objects_lock);
	if (req->op != S3_DELETE_MANY)
		note(req, req->key);
	if (fault.left && fault.op == req->op && strstr(key_of(req), fault.part)) {
		fault.left--;
		fault.met++;
		r = fault.result;
		if (r == -EIO && req->op == S3_GET && !fault.early)
			req->expired = true;
		if (fault.late) {
			fake_objects_keep(req);
			req->retries = 1;
			fault.late = false;
		}
	} else if (req->op == S3_GET || req->op == S3_HEAD) {
		r = fake_objects_get(req);
	} else if (req->op == S3_PUT) {
		r = fake_objects_put(req);
		asked[n_asked - 1].stored = r ? 0 : req->bytes;
	} else if (req->op == S3_DELETE) {
		fake_objects_delete(req->key);
	} else if (req->op == S3_LIST) {
		fake_objects_list(req);
	} else {
		for (size_t i = 0; i < req->n_keys; i++) {
			note(req, req->keys[i]);
			fake_objects_delete(req->keys[i]);
			req->key_results[i] = 0;
		}
	}
	pthread_mutex_unlock(&fake_objects_lock);
	return r;
}

/* ---- the store ---------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* The store's own mark of a request that has taken effect and is not answered. */
static bool *served(struct s3_request *req)
{
	return (bool *)req->digest;
}

/* Does the store no longer do it? */
static bool is_over(const struct s3_store *s, const struct s3_request *req)
{
	return s->stopped || (s->dropping && req->droppable);
}

/* Is it to wait now, before it takes effect (after false) or before it is answered? */
static bool is_held(const struct s3_store *s, struct s3_request *req, bool after)
{
	bool yes = false;

	if (is_over(s, req))
		return false;
	if (req->due > now_ns())
		return true;
	pthread_mutex_lock(&fake_objects_lock);
	for (size_t i = 0; i < sizeof holds / sizeof holds[0]; i++)
		if (holds[i].on && holds[i].op == req->op && strstr(key_of(req), holds[i].part) &&
			after == (holds[i].how != NOTHING) &&
			(!holds[i].one || holds[i].one == req)) {
			yes = true;
			/* A test that waits for it relies on its effect. */
			holds[i].met |= after == *served(req);
			holds[i].one = after ? req : NULL;
		}
	pthread_mutex_unlock(&fake_objects_lock);
	return yes;
}

/* Is a request that has taken effect and is let go to do so once more? */
static bool is_repeated(const struct s3_request *req)
{
	bool yes = false;

	pthread_mutex_lock(&fake_objects_lock);
	for (size_t i = 0; i < sizeof holds / sizeof holds[0]; i++)
		if (holds[i].one == req) {
			yes |= holds[i].how == EFFECT_AGAIN;
			holds[i].one = NULL;
		}
	pthread_mutex_unlock(&fake_objects_lock);
	return yes;
}

/* One that is not held, NULL: there is none. */
static struct s3_request **choose(struct s3_store *s)
{
	struct s3_request **link = &s->queue;

	s->random = s->random * 1103515245 + 12345;
	for (unsigned skip = s->queued ? (s->random >> 16) % s->queued : 0; skip; skip--)
		link = &(*link)->next;
	for (unsigned i = 0; i < s->queued; i++) {
		if (!*link)
			link = &s->queue;
		if (!is_held(s, *link, *served(*link)))
			return link;
		link = &(*link)->next;
	}
	return NULL;
}

/* One request after the other, in an order that is not the one in which they came. */
static void *work(void *opaque)
{
	struct s3_store *s = opaque;

	pthread_mutex_lock(&s->lock);
	while (s->queue || !s->ending) {
		struct s3_request **link = choose(s), *req;
		bool over;

		if (!link) {
			struct timespec until;

			/* Nobody says when what was held is no longer held. */
			clock_gettime(CLOCK_REALTIME, &until);
			until.tv_nsec += latency ? 500000 : 10000000;
			until.tv_sec += until.tv_nsec / 1000000000;
			until.tv_nsec %= 1000000000;
			pthread_cond_timedwait(&s->changed, &s->lock, &until);
			continue;
		}
		req = *link;
		if (!*served(req) && is_held(s, req, true)) {
			req->result = serve(req);
			*served(req) = true;
			continue;
		}
		*link = req->next;
		s->queued--;
		over = is_over(s, req);
		pthread_mutex_unlock(&s->lock);
		if (over)
			req->result = -ESHUTDOWN;
		else if (!*served(req) || is_repeated(req))
			req->result = serve(req);
		if (req->result)
			snprintf(req->message, sizeof req->message, "fake: %s",
				strerror(-req->result));
		req->done(req);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

int s3_store_check(const struct s3_store_config *config, struct params_error *error)
{
	(void)config;
	(void)error;
	return 0;
}

int s3_store_open(const struct s3_store_config *config, const struct backend_host *host,
	struct s3_store **out)
{
	struct s3_store *s = calloc(1, sizeof *s);

	(void)host;
	if (!s)
		return -ENOMEM;
	s->retry_deadline = config->retry_deadline;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	s->random = 1;
	*out = s;
	return 0;
}

int s3_store_submit(struct s3_store *s, struct s3_request *req)
{
	req->result = 0;
	req->bytes = req->object_size = 0;
	req->etag[0] = req->message[0] = '\0';
	req->listing = (struct s3_listing){0};
	req->retries = 0;
	req->expired = false;
	req->began = now_ns();
	req->deadline = req->retry_deadline || s->retry_deadline;
	*served(req) = false;
	pthread_mutex_lock(&s->lock);
	if (!s->started) {
		s->ending = false;
		s->started = pthread_create(&s->thread, NULL, work, s) == 0;
	}
	req->next = s->queue;
	s->queue = req;
	s->queued++;
	pthread_mutex_lock(&fake_objects_lock);
	req->due = latency ? now_ns() + latency : 0;
	pthread_mutex_unlock(&fake_objects_lock);
	pthread_cond_signal(&s->changed);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

void s3_store_park(struct s3_store *s)
{
	pthread_mutex_lock(&s->lock);
	s->ending = true;
	pthread_cond_signal(&s->changed);
	pthread_mutex_unlock(&s->lock);
	if (s->started)
		pthread_join(s->thread, NULL);
	s->started = false;
}

void s3_store_stop(struct s3_store *s)
{
	pthread_mutex_lock(&s->lock);
	s->stopped = true;
	pthread_mutex_unlock(&s->lock);
}

void s3_store_drop(struct s3_store *s)
{
	pthread_mutex_lock(&s->lock);
	s->dropping = true;
	pthread_mutex_unlock(&s->lock);
}

void s3_store_close(struct s3_store *s)
{
	if (!s)
		return;
	s3_store_stop(s);
	s3_store_park(s);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

uint64_t s3_store_outage(const struct s3_store *s)
{
	uint64_t oldest = UINT64_MAX, now = now_ns();

	pthread_mutex_lock((pthread_mutex_t *)&s->lock);
	for (const struct s3_request *q = s->queue; q; q = q->next)
		oldest = q->began < oldest ? q->began : oldest;
	pthread_mutex_unlock((pthread_mutex_t *)&s->lock);
	return oldest < now ? now - oldest : 0;
}

void s3_store_counters(struct s3_store *s, struct s3_store_counters *counters)
{
	(void)s;
	*counters = (struct s3_store_counters){0}; /* fake_store_requests() counts */
}
