/* SPDX-License-Identifier: BSD-3-Clause */
/* Queues of requests, and how a request ends or is tried again. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/client/client.h"
#include "backends/s3/client/internal.h"

/* Pauses between attempts double from the first to the last of these. */
#define BACKOFF_FIRST (S3_SECOND / 10)
#define BACKOFF_LAST  (10 * S3_SECOND)

void s3_queue_add(struct s3_queue *q, struct s3_request *req)
{
	req->next = NULL;
	*q->tail = req;
	q->tail = &req->next;
}

struct s3_request *s3_queue_take(struct s3_queue *q)
{
	struct s3_request *req = q->head;

	if (req) {
		q->head = req->next;
		if (!q->head)
			q->tail = &q->head;
	}
	return req;
}

static void count(struct s3_connections *p, const struct s3_request *req)
{
	struct s3_counters *c = &p->ops[req->op];
	uint64_t ns = s3_client_now() - req->began;

	s3_count_add(&c->requests, 1);
	s3_count_add(&c->busy_ns, ns);
	/* This thread is the only one that writes. */
	if (ns > atomic_load_explicit(&c->max_ns, memory_order_relaxed))
		atomic_store_explicit(&c->max_ns, ns, memory_order_relaxed);
	s3_count_add(&c->histogram[s3_histogram_entry(ns)], 1);
	if (req->result && req->result != -ENOENT && req->result != -EEXIST)
		s3_count_add(&c->errors, 1);
}

void s3_request_finish(struct s3_connections *p, struct s3_request *req, int result)
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

void s3_request_finish_stopped(struct s3_connections *p, struct s3_request *req)
{
	s3_store_say(req, "the store is being closed");
	s3_request_finish(p, req, -ESHUTDOWN);
}

static uint64_t random_below(struct s3_connections *p, uint64_t n)
{
	/* xorshift64: it only keeps clients from coming back all at once. */
	p->random ^= p->random << 13;
	p->random ^= p->random >> 7;
	p->random ^= p->random << 17;
	return p->random % n;
}

void s3_request_retry(struct s3_connections *p, struct s3_request *req, uint64_t retry_after)
{
	unsigned doublings = req->retries < 16 ? req->retries : 16;
	uint64_t pause = BACKOFF_FIRST << doublings;

	s3_store_note_failure(p->store, req);
	if (pause > BACKOFF_LAST)
		pause = BACKOFF_LAST;
	pause = pause / 2 + random_below(p, pause / 2);
	if (retry_after > 30)
		retry_after = 30;
	if (pause < retry_after * S3_SECOND)
		pause = retry_after * S3_SECOND;
	req->due = s3_client_now() + pause;
	req->failing = true;
	if ((req->deadline && req->due >= req->deadline) ||
		(req->limit && req->due >= req->began + req->limit * S3_SECOND)) {
		size_t used = strlen(req->message);

		snprintf(req->message + used, sizeof req->message - used,
			" (given up after %" PRIu64 " s)",
			(s3_client_now() - req->began) / S3_SECOND);
		req->expired = true;
		s3_request_finish(p, req, -EIO);
		return;
	}
	req->retries++;
	s3_count_add(&p->ops[req->op].retries, 1);
	req->next = p->delayed;
	p->delayed = req;
}
