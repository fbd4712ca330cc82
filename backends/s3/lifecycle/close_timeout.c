/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The end of a volume whose store is gone. A thread watches over it: when every attempt has failed
 * for close-timeout=, what could not be stored is reported, and given up.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "backends/s3/base/clock.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/lifecycle/close_timeout.h"
#include "backends/s3/log/log.h"
#include "backends/s3/log/writeback_file.h"

#define SECOND 1000000000

struct s3_closing {
	struct s3_volume *v;
	uint64_t began; /* ns, monotonic */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool over;
	_Atomic(const char *) why; /* it was given up; or NULL */
};

static void give_up(struct s3_closing *c)
{
	struct s3_volume *v = c->v;
	uint64_t seconds = v->close_timeout_ns / SECOND;
	const char *why = s3_store_outage(v->store) < v->close_timeout_ns
				  ? "the store has taken nothing"
				  : "no reply from the store";
	const char *path = v->writeback ? v->writeback->file.path : NULL;
	struct s3_lag lag = {0};

	atomic_store(&c->why, why);
	if (v->layout->has_log)
		s3_log_end(v, &lag);
	if (!v->layout->has_log)
		s3_volume_fail(
			v, -EIO, "shutdown timed out: %s for close-timeout=%" PRIu64, why, seconds);
	else if (lag.changes && lag.kept)
		backend_error(&v->host,
			"volume=%s: shutdown timed out: %s for close-timeout=%" PRIu64 ": %" PRIu64
			" objects of the log with %" PRIu64
			" bytes of writes are not in the store; write-back=%s holds all of it: "
			"open the volume with that file next",
			v->name, why, seconds, lag.changes, lag.bytes, path);
	else if (lag.changes)
		s3_volume_fail(v, -EIO,
			"shutdown timed out: %s for close-timeout=%" PRIu64 ": %" PRIu64
			" objects of the log with %" PRIu64 " bytes of writes are not stored%s%s%s",
			why, seconds, lag.changes, lag.bytes, path ? ", but write-back=" : "",
			path ? path : "",
			path ? " holds what was flushed: open the volume with that file next" : "");
	s3_store_stop(v->store);
}

uint64_t s3_closing_refused(struct s3_volume *v)
{
	uint64_t since;
	bool refusing;

	pthread_mutex_lock(&v->lock);
	refusing = v->layout->has_log ? v->n_refused > 0 : atomic_load(&v->refused) != 0;
	/* With layout=direct, both change without this lock: this one first. */
	since = atomic_load(&v->refused_since);
	pthread_mutex_unlock(&v->lock);
	return refusing ? s3_now() - since : 0;
}

/* ns until closing must be given up, from what is known now. */
static uint64_t left(const struct s3_closing *c)
{
	uint64_t waited = s3_now() - c->began, outage = s3_store_outage(c->v->store);
	uint64_t limit = c->v->close_timeout_ns, refused = s3_closing_refused(c->v);

	/* One that answers and takes nothing is of no more use. */
	if (refused > outage)
		outage = refused;
	if (outage < waited)
		waited = outage;
	return waited < limit ? limit - waited : 0;
}

static void *watch(void *opaque)
{
	struct s3_closing *c = opaque;

	pthread_mutex_lock(&c->lock);
	while (!c->over) {
		uint64_t wait = left(c), until = s3_now() + wait;
		struct timespec when = {(time_t)(until / SECOND), (long)(until % SECOND)};

		if (wait) {
			pthread_cond_timedwait(&c->changed, &c->lock, &when);
			continue;
		}
		pthread_mutex_unlock(&c->lock);
		give_up(c);
		return NULL;
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

struct s3_closing *s3_closing_begin(struct s3_volume *v)
{
	struct s3_closing *c = v->close_timeout_ns ? calloc(1, sizeof *c) : NULL;
	pthread_condattr_t monotonic;
	sigset_t all, before;
	int r;

	if (!c)
		return NULL;
	c->v = v;
	c->began = s3_now();
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&c->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	/* Signals are the framework's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&c->thread, NULL, watch, c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r == 0)
		return c;
	/* Then it waits as long as the store takes. */
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	free(c);
	return NULL;
}

const char *s3_closing_why(struct s3_closing *c)
{
	return c ? atomic_load(&c->why) : NULL;
}

bool s3_closing_pause(const struct s3_volume *v, uint64_t since)
{
	struct timespec second = {.tv_sec = 1};

	if (atomic_load(&v->failed) ||
		(v->close_timeout_ns && s3_now() - since >= v->close_timeout_ns))
		return false;
	nanosleep(&second, NULL);
	return !atomic_load(&v->failed);
}

void s3_closing_end(struct s3_closing *c)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	c->over = true;
	pthread_cond_signal(&c->changed);
	pthread_mutex_unlock(&c->lock);
	pthread_join(c->thread, NULL);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	free(c);
}
