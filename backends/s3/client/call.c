/* SPDX-License-Identifier: BSD-3-Clause */
/* A request that its thread waits for, over whichever client s3_store_submit() belongs to. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "backends/s3/client/client.h"

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
		snprintf(req->message, sizeof req->message, "%s %s: %s",
			r == -EINVAL ? "malformed request for" : "cannot send a request for",
			req->key ? req->key : "objects", strerror(-r));
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
