/* SPDX-License-Identifier: BSD-3-Clause */
/* The client of the simulated store: requests, their attempts, and what becomes of these. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/client/names.h"
#include "backends/s3/client/reply.h"
#include "tests/simulation/memory.h"
#include "tests/simulation/store_internal.h"
#include "tests/unit/s3_request_fill.h"

/* As in the real client. */
#define BACKOFF_FIRST (SIM_SECOND / 10)
#define BACKOFF_LAST  (10 * SIM_SECOND)

static unsigned on_their_way; /* attempts that are still to take effect */

bool store_busy(void)
{
	return on_their_way > 0;
}

static void drop_flight(struct flight *f)
{
	if (--f->refs)
		return;
	let_go(f->body);
	free(f->key);
	free(f->if_match);
	for (size_t i = 0; i < f->n_keys; i++)
		free(f->keys[i]);
	free(f->keys);
	free(f);
}

static void *pool_main(void *opaque)
{
	struct pool *p = opaque;

	for (;;) {
		struct s3_request *req = p->done;

		if (req) {
			p->done = req->next;
			if (!p->done)
				p->done_tail = &p->done;
			req->done(req);
			sim_point("done", NULL);
			p->in_flight--;
			if (--p->store->in_flight == 0)
				sim_wake_all(&p->store->idle);
			continue;
		}
		if (p->ending && !p->in_flight)
			break;
		sim_wait(&p->work, SIM_NEVER, "wait for replies", p);
	}
	p->running = false;
	sim_wake_all(&p->joiners);
	return NULL;
}

static void count(struct s3_store *s, const struct s3_request *req)
{
	struct s3_op_counters *c = &s->counters.ops[req->op];
	uint64_t ns = sim_now() - req->began;

	c->requests++;
	c->retries += req->retries;
	c->busy_ns += ns;
	c->histogram[s3_histogram_entry(ns)]++;
	if (ns > c->max_ns)
		c->max_ns = ns;
	if (req->result && req->result != -ENOENT && req->result != -EEXIST)
		c->errors++;
	*(req->op == S3_PUT ? &c->sent : &c->received) += req->bytes;
}

static void start_ready(struct pool *p);

/* The request ends. In an event, or of the thread that stops the store. */
static void finish(struct flight *f, int result)
{
	struct s3_store *s = f->store;
	struct s3_request *req = f->req;
	struct pool *p = &s->pools[f->pool];
	struct flight **link = &s->flights;

	f->req = NULL;
	req->result = result;
	if (result == 0)
		req->message[0] = 0;
	while (*link != f)
		link = &(*link)->next;
	*link = f->next;
	if (f->connected)
		p->busy--;
	f->connected = false;
	line_drop(f);
	count(s, req);
	sim_trace("%s %s ends: %s%s%s", op_names[f->op], f->key, result ? strerror(-result) : "ok",
		req->retries ? ", tried again" : "", result == -ESHUTDOWN ? " (stopped)" : "");
	req->next = NULL;
	*p->done_tail = req;
	p->done_tail = &req->next;
	sim_wake_all(&p->work);
	start_ready(p);
	drop_flight(f);
}

static void start_attempt(struct flight *f);

static void let_start(void *pool, uint64_t unused)
{
	struct pool *p = pool;

	(void)unused;
	p->held = false;
	if (!p->store->process->dead)
		start_ready(p);
}

static void start_ready(struct pool *p)
{
	if (p->store->process->paused) {
		if (!p->held)
			sim_at(sim_now() + 20 * SIM_MS, let_start, p, 0);
		p->held = true;
		return;
	}
	while (p->ready && p->busy < p->store->connections) {
		struct flight *f = p->ready;

		p->ready = f->next_ready;
		if (!p->ready)
			p->ready_tail = &p->ready;
		if (f->req) {
			p->busy++;
			f->connected = true;
			start_attempt(f);
		}
		drop_flight(f);
	}
}

static void make_ready(struct flight *f)
{
	struct pool *p = &f->store->pools[f->pool];

	f->refs++;
	f->next_ready = NULL;
	*p->ready_tail = f;
	p->ready_tail = &f->next_ready;
	start_ready(p);
}

static void due_again(void *opaque, uint64_t attempt)
{
	struct flight *f = opaque;

	if (f->req && f->attempt == attempt && !f->store->process->dead)
		make_ready(f);
	drop_flight(f);
}

/* As in the real client: it has its patience again, unless an attempt has failed before. */
static void progressed(struct flight *f)
{
	struct s3_request *req = f->req;

	if (req->deadline && !f->failing)
		req->deadline = sim_now() + req->patience;
}

static void at_limit(void *flight, uint64_t unused)
{
	struct flight *f = flight;

	(void)unused;
	if (f->req && !f->store->process->dead) {
		snprintf(f->req->message, sizeof f->req->message, "its time is over");
		f->req->expired = true;
		finish(f, -EIO);
	}
	drop_flight(f);
}

static void retry(struct flight *f, const char *why)
{
	struct s3_request *req = f->req;
	struct s3_store *s = f->store;
	uint64_t pause = BACKOFF_FIRST << (req->retries < 16 ? req->retries : 16);

	if (!s->failing_since)
		s->failing_since = sim_now() ? sim_now() : 1;
	if (pause > BACKOFF_LAST)
		pause = BACKOFF_LAST;
	pause = pause / 2 + sim_below(SIM_STORE, pause / 2);
	snprintf(req->message, sizeof req->message, "endpoint=simulation: %s of %s: %s",
		op_names[f->op], f->key, why);
	f->failing = true;
	if (req->deadline && sim_now() + pause >= req->deadline) {
		if (faults.calm && req->began <= faults.calm_at)
			faults.given_up_at = sim_now();
		req->expired = true;
		finish(f, -EIO);
		return;
	}
	sim_trace("%s %s fails: %s", op_names[f->op], f->key, why);
	req->retries++;
	f->attempt++;
	if (f->connected)
		s->pools[f->pool].busy--;
	f->connected = false;
	f->refs++;
	sim_at(sim_now() + pause, due_again, f, f->attempt);
	start_ready(&s->pools[f->pool]);
}

/* Bytes into the caller's vectors, as the client's thread does. 0 or the error of the request. */
static int receive(struct s3_request *req, const struct attempt *a)
{
	const struct blob *b = a->blob;

	req->object_size = b->length;
	snprintf(req->etag, sizeof req->etag, "\"%" PRIu64 "\"", a->tag);
	if (req->op == S3_HEAD)
		return 0;
	if (req->offset >= b->length && !(req->offset == 0 && req->allow_short))
		return -ERANGE;
	return s3_request_fill(req, b->data, b->length);
}

/* ---- events of an attempt
 * ------------------------------------------------------------------------------ */

static void drop_attempt(struct attempt *a)
{
	if (--a->refs)
		return;
	let_go(a->blob);
	drop_flight(a->flight);
	free(a);
}

static void effect(void *opaque, uint64_t unused)
{
	struct attempt *a = opaque;
	struct flight *f = a->flight;

	(void)unused;
	on_their_way--;
	if (f->store->process->dead && !a->postponed && a->outcome != LATE &&
		(sim_with(SIM_LATE) || faults.in_order)) {
		/* What a killed sender had under way: gone, as it was, or much later. */
		uint64_t fate = faults.in_order ? 0 : sim_below(SIM_STORE, 3);

		a->postponed = true;
		if (fate == 2 && !faults.calm) {
			a->refs++;
			on_their_way++;
			sim_at(sim_now() + sim_below(SIM_STORE, faults.late_ns), effect, a, 0);
		}
		if (fate == 1 || (fate == 2 && faults.calm))
			serve(a);
		drop_attempt(a);
		return;
	}
	serve(a);
	/* Without an answer in its time, so that the second answer counts. */
	if (f->op == S3_PUT && faults.repeated && !faults.calm &&
		sim_once_in(SIM_STORE, faults.repeated))
		serve(a);
	drop_attempt(a);
}

/* What the client makes of an error of the store: its result; *again: it tries again. */
static int judge(const struct attempt *a, bool *again)
{
	struct s3_error_reply error = {.code = ""};
	const struct flight *f = a->flight;
	struct s3_verdict v;

	snprintf(error.code, sizeof error.code, "%s", a->code);
	v = s3_judge(a->status, &error, f->if_none_match || f->if_match);
	*again = v.action != S3_FINAL;
	return v.result;
}

static void reply(void *opaque, uint64_t unused)
{
	static const char *const failures[] = {[REQUEST_LOST] = "no connection",
		[REPLY_LOST] = "the connection was closed",
		[LATE] = "no answer",
		[REFUSED] = "HTTP status 503 SlowDown",
		[FAILED_AFTER] = "HTTP status 500 InternalError"};
	struct attempt *a = opaque;
	struct flight *f = a->flight;
	struct s3_store *s = f->store;
	struct s3_request *req = f->req;
	bool again = false;
	int r = 0;

	(void)unused;
	if (!req || f->attempt != a->number || s->process->dead) {
		drop_attempt(a);
		return;
	}
	if (a->blob && faults.line && !a->received) {
		uint64_t bytes = 0;

		for (int i = 0; i < req->iovcnt; i++)
			bytes += req->iov[i].iov_len;
		a->received = true;
		line_carry(f, true, bytes < a->blob->length ? bytes : a->blob->length, reply, a);
		return;
	}
	if (a->received)
		progressed(f);
	if (a->outcome != FINE) {
		retry(f, failures[a->outcome]);
		drop_attempt(a);
		return;
	}
	if (a->status >= 300)
		r = judge(a, &again);
	if (again) {
		char why[64];

		snprintf(why, sizeof why, "HTTP status %ld %s", a->status, a->code);
		retry(f, why);
		drop_attempt(a);
		return;
	}
	s->failing_since = 0;
	if (r) {
		snprintf(req->message, sizeof req->message,
			"endpoint=simulation: %s of %s: HTTP status %ld %s", op_names[f->op],
			f->key, a->status, a->code);
	} else if (f->op == S3_GET || f->op == S3_HEAD) {
		r = receive(req, a);
	} else if (f->op == S3_PUT) {
		req->bytes = f->body->length;
		snprintf(req->etag, sizeof req->etag, "\"%" PRIu64 "\"", a->tag);
	} else if (f->op == S3_LIST) {
		if (list(req)) {
			retry(f, "the store's listing is none");
			drop_attempt(a);
			return;
		}
	} else if (f->op == S3_DELETE_MANY) {
		memset(req->key_results, 0, req->n_keys * sizeof *req->key_results);
	}
	finish(f, r);
	drop_attempt(a);
}

/* What it sends has been sent. */
static void sent(void *opaque, uint64_t unused)
{
	struct attempt *a = opaque;
	struct flight *f = a->flight;

	(void)unused;
	/* The end of it was not: it has no effect. */
	if (f->body && (f->store->process->dead || !f->req)) {
		drop_attempt(a);
		return;
	}
	progressed(f);
	if (a->outcome != REFUSED && a->outcome != REQUEST_LOST) {
		a->refs++;
		on_their_way++;
		sim_at(sim_now() + a->there, effect, a, 0);
	}
	sim_at(sim_now() + a->back, reply, a, 0);
}

static void start_attempt(struct flight *f)
{
	struct attempt *a = calloc(1, sizeof *a);
	const struct episode *e = episode_of(f->op, f->key);
	uint64_t there = draw_latency(), back = there + draw_latency();

	if (!a)
		abort();
	f->refs++;
	*a = (struct attempt){.flight = f,
		.refs = 1,
		.number = f->attempt,
		.outcome = draw_outcome(),
		.code = ""};
	if ((f->op == S3_DELETE || f->op == S3_DELETE_MANY) && f->attempt == 0 && !faults.calm &&
		sim_once_in(SIM_STORE, faults.late_deletions))
		a->outcome = LATE;
	if (f->op == S3_PUT && faults.refused_again && !faults.calm &&
		strstr(f->key, faults.refused_again)) {
		a->outcome = f->attempt ? FINE : LATE;
		a->refused = f->attempt > 0;
	}
	if (e && e->kind == EPISODE_SLOW) {
		there += e->before;
		back = there + e->after + draw_latency();
	} else if (e) {
		a->outcome = e->kind == EPISODE_503 ? REFUSED : REQUEST_LOST;
	}
	if (a->outcome == REQUEST_LOST || a->outcome == REPLY_LOST || a->outcome == LATE)
		back = there + sim_below(SIM_STORE, faults.silence_ns);
	if (a->outcome == LATE)
		there += sim_below(SIM_STORE, faults.late_ns);
	a->there = there;
	a->back = back;
	line_may_change();
	if (faults.line && f->body)
		line_carry(f, false, f->body->length, sent, a);
	else
		sent(a, 0);
}

/* ---- the client's interface
 * --------------------------------------------------------------------------------- */

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

	if (!s)
		return -ENOMEM;
	s->process = sim_self();
	s->host = *host;
	s->connections = (unsigned)config->connections;
	s->retry_deadline = config->retry_deadline;
	for (int i = 0; i < S3_POOLS; i++) {
		struct pool *p = &s->pools[i];

		p->store = s;
		p->done_tail = &p->done;
		p->ready_tail = &p->ready;
	}
	*out = s;
	return 0;
}

static void start_pool(struct pool *p)
{
	p->ending = false;
	if (p->running)
		return;
	p->running = true;
	sim_spawn(p->store->process, "client", pool_main, p);
}

void s3_store_park(struct s3_store *s)
{
	for (int i = 0; i < S3_POOLS; i++) {
		struct pool *p = &s->pools[i];

		p->ending = true;
		sim_wake_all(&p->work);
		while (p->running)
			sim_wait(&p->joiners, SIM_NEVER, "park the client", p);
	}
}

static bool well_formed(const struct s3_request *req)
{
	uint64_t length = 0;

	for (int i = 0; i < req->iovcnt; i++)
		length += req->iov[i].iov_len;
	if (req->op == S3_DELETE_MANY) {
		for (size_t i = 0; i < req->n_keys; i++)
			if (!s3_key_valid(req->keys[i]))
				return false;
		return req->n_keys >= 1 && req->n_keys <= S3_DELETE_MAX;
	}
	if (req->op == S3_LIST)
		return s3_prefix_valid(req->key);
	return s3_key_valid(req->key) && !(req->op == S3_GET && length == 0);
}

static void cancel(void *opaque, uint64_t unused)
{
	struct flight *f = opaque;

	(void)unused;
	if (f->req && !f->store->process->dead) {
		snprintf(f->req->message, sizeof f->req->message, "the store is being closed");
		finish(f, -ESHUTDOWN);
	}
	drop_flight(f);
}

/* Now and then: to look costs some system calls. */
static void watch_process(struct s3_store *s)
{
	const struct sim_process *p = s->process;
	uint64_t bytes;

	if (!p->id || !p->memory_limit || s->watched++ % 32)
		return;
	bytes = sim_memory_of(p);
	if (bytes > p->memory_limit)
		sim_fail("memory", "a process has %" PRIu64 " bytes, and %" PRIu64 " are its limit",
			bytes, p->memory_limit);
}

static struct blob *body_of(const struct s3_request *req)
{
	size_t length = 0;
	struct blob *b;

	for (int i = 0; i < req->iovcnt; i++)
		length += req->iov[i].iov_len;
	b = new_blob(length);
	length = 0;
	for (int i = 0; i < req->iovcnt; i++) {
		if (req->iov[i].iov_len)
			memcpy(b->data + length, req->iov[i].iov_base, req->iov[i].iov_len);
		length += req->iov[i].iov_len;
	}
	return b;
}

int s3_store_submit(struct s3_store *s, struct s3_request *req)
{
	struct pool *p = &s->pools[req->pool];
	uint64_t seconds = req->retry_deadline ? req->retry_deadline : s->retry_deadline;
	struct flight *f;

	if (!well_formed(req))
		return -EINVAL;
	f = calloc(1, sizeof *f);
	if (!f)
		return -ENOMEM;
	req->result = 0;
	req->bytes = req->object_size = 0;
	req->etag[0] = req->message[0] = '\0';
	req->listing = (struct s3_listing){0};
	req->retries = 0;
	req->expired = false;
	req->began = sim_now();
	req->patience = seconds * SIM_SECOND;
	req->deadline = seconds ? req->began + req->patience : 0;
	*f = (struct flight){.next = s->flights,
		.refs = 1,
		.store = s,
		.req = req,
		.op = req->op,
		.pool = req->pool,
		.key = strdup(req->op == S3_DELETE_MANY ? req->keys[0] : req->key),
		.body = req->op == S3_PUT ? body_of(req) : NULL,
		.if_none_match = req->if_none_match,
		.if_match = req->if_match ? strdup(req->if_match) : NULL};
	if (req->op == S3_DELETE_MANY) {
		f->n_keys = req->n_keys;
		f->keys = calloc(f->n_keys, sizeof *f->keys);
		for (size_t i = 0; i < f->n_keys; i++)
			f->keys[i] = strdup(req->keys[i]);
	}
	s->flights = f;
	if (req->limit) {
		f->refs++;
		sim_at(sim_now() + req->limit * SIM_SECOND, at_limit, f, 0);
	}
	if (req->op == S3_PUT)
		note_memory();
	watch_process(s);
	sim_trace("%s %s%s%s %zu", op_names[f->op], f->key, f->if_none_match ? " if none" : "",
		f->if_match ? " if match" : "", f->body ? f->body->length : (size_t)req->offset);
	if (f->body)
		sim_hash(f->body->data, f->body->length);
	s->in_flight++;
	p->in_flight++;
	start_pool(p);
	if (s->stopping || (s->dropping && req->droppable)) {
		f->refs++;
		sim_at(sim_now(), cancel, f, 0);
	} else {
		make_ready(f);
	}
	sim_point("submit", req);
	return 0;
}

/* Ends all requests, or those that can be dropped. */
static void cancel_flights(struct s3_store *s, bool all)
{
	for (struct flight *f = s->flights; f; f = f->next)
		if (all || (f->req && f->req->droppable)) {
			f->refs++;
			sim_at(sim_now(), cancel, f, 0);
		}
}

void s3_store_stop(struct s3_store *s)
{
	s->stopping = true;
	cancel_flights(s, true);
	sim_point("stop", s);
}

void s3_store_drop(struct s3_store *s)
{
	s->dropping = true;
	cancel_flights(s, false);
	sim_point("drop", s);
}

/* It stays in memory: attempts may still be on their way. */
void s3_store_close(struct s3_store *s)
{
	if (!s)
		return;
	s3_store_stop(s);
	while (s->in_flight)
		sim_wait(&s->idle, SIM_NEVER, "wait for the last requests", s);
	s3_store_park(s);
}

void s3_store_counters(struct s3_store *s, struct s3_store_counters *counters)
{
	*counters = s->counters;
	counters->in_flight = s->in_flight;
}

uint64_t s3_store_outage(const struct s3_store *s)
{
	return s->failing_since ? sim_now() - s->failing_since : 0;
}
