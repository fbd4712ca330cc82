/* SPDX-License-Identifier: BSD-3-Clause */
/* Uploads of sealed batches, several at once, and the frontier: up to where all have arrived. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/clock.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/batch.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/space.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/log/internal.h"
#include "backends/s3/log/log.h"
#include "backends/s3/log/writeback.h"
#include "backends/s3/read/read.h"
#include "backends/s3/state/cache.h"

/* The longest pause before what the store refused is put again. */
#define PAUSE_LAST (10 * UINT64_C(1000000000))
/*
 * After such a pause, or before the first upload, the fence of a deletion may have been missed: it
 * goes with all the rest.
 */
#define PAUSE_LOOK (10 * UINT64_C(1000000000))
/* Bytes of a super object, at most. */
#define SUPER_ROOM (256u << 10)

/*
 * A batch is in the store: moves the frontier and answers those who waited. What was written may
 * soon be read: it is in memory until it is in the cache.
 */
static void uploaded(struct s3_batch *b)
{
	struct s3_volume *v = b->volume;
	struct s3_waiter *ready;
	int r;

	s3_failpoint(S3_FAIL_LOG_PUT_AFTER);
	if (b->relocates)
		s3_failpoint(S3_FAIL_RELOCATE_LOG_AFTER);
	s3_crc_cache_add(v->crcs, &b->sealed);
	pthread_mutex_lock(&v->lock);
	v->uploaded[b->seq % S3_WINDOW] = true;
	v->in_flight--;
	v->blocked = false;
	v->n_refused -= b->refused;
	b->refused = false;
	/* This says little about a full store, which s3_space_tend() looks after. */
	if (v->refused && v->refused != -ENOSPC && !v->n_refused)
		v->refused = 0;
	/* An end waits for a store that takes one after the other. */
	v->refused_since = s3_now();
	/* One that took long may have been sent again after the deletion. */
	if (s3_now_suspended() - b->put_ns < PAUSE_LOOK && b->put_ns > v->uploaded_ns)
		v->uploaded_ns = b->put_ns;
	if (v->writeback) {
		/* Recovery does not see it as long as an earlier one is missing. */
		v->kept_batches[b->seq % S3_WINDOW] = b;
		b->refs++;
	}
	while (v->uploaded[(v->frontier + 1) % S3_WINDOW]) {
		struct s3_batch **kept;

		v->frontier++;
		v->uploaded[v->frontier % S3_WINDOW] = false;
		kept = &v->kept_batches[v->frontier % S3_WINDOW];
		if (*kept)
			s3_batch_release(v, *kept);
		*kept = NULL;
	}
	if (v->writeback)
		s3_writeback_advance(v);
	/* After another writer's fence nothing may be acknowledged, even if it arrived. */
	r = atomic_load(&v->failed);
	ready = r ? NULL : s3_log_take_waiters(v, v->frontier, 0);
	if (v->open && v->open->wanted && v->in_flight < v->uploads)
		s3_log_close_batch(v);
	pthread_cond_signal(&v->sealer_work);
	pthread_cond_signal(&v->keeper_work);
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
	s3_log_answer_waiters(ready, 0);
	s3_cache_insert(v->cache, 0, b->seq, b->data, (size_t)b->blocks << v->shift);
	pthread_mutex_lock(&v->lock);
	v->resident[b->seq % S3_WINDOW] = NULL;
	s3_batch_release(v, b);
	/* Its place is free even if somebody still reads it. */
	if (v->stalled)
		pthread_cond_signal(&v->sealer_work);
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
}

bool s3_log_is_blocked(const struct s3_volume *v)
{
	return v->blocked && !v->keeper_stopping;
}

/* The flushes that wait for the store, for seq or something newer, out of the list, under the lock.
 */
static struct s3_waiter *take_waiters_from(struct s3_volume *v, uint64_t seq)
{
	struct s3_waiter *taken = NULL, **link = &v->waiters;

	while (*link) {
		struct s3_waiter *w = *link;

		if (w->seq < seq || !s3_writeback_lacks(v, w->change)) {
			link = &w->next;
			continue;
		}
		*link = w->next;
		w->next = taken;
		taken = w;
	}
	return taken;
}

/* The writes with data that wait for memory, out of the queue, under the lock. */
static struct s3_write *take_stalled_writes(struct s3_volume *v)
{
	struct s3_write *taken = NULL, **link = &v->stalled;

	while (*link) {
		struct s3_write *w = *link;

		if (!s3_log_has_data(w)) {
			link = &w->next;
			continue;
		}
		*link = w->next;
		w->next = taken;
		taken = w;
	}
	v->stalled_tail = link;
	return taken;
}

/*
 * The store refuses a batch for now. The batch stays in memory and is sent again; a flush fails,
 * unless the write-back log takes the batch. r: negative errno; why: one line.
 */
static void refuse(struct s3_batch *b, int r, const char *why)
{
	struct s3_volume *v = b->volume;
	struct s3_waiter *waiters = NULL;
	struct s3_write *writes = NULL;
	char text[S3_MESSAGE_MAX];
	bool tell;

	/* It may be that of the batch's request, which is another one's soon. */
	snprintf(text, sizeof text, "%s", why);
	pthread_mutex_lock(&v->lock);
	b->next = v->refused_batches;
	v->refused_batches = b;
	v->n_refused += !b->refused;
	b->refused = true;
	tell = s3_space_refused(v, r);
	v->retry_ns = s3_now() + v->refused_pause;
	if (r != -ENOSPC || !s3_space_ask(v, b->made)) {
		v->blocked = true;
		waiters = take_waiters_from(v, b->seq);
		if (r == -ENOSPC)
			writes = take_stalled_writes(v);
	}
	pthread_cond_broadcast(&v->sealer_work);
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
	if (tell)
		s3_space_tell(v, r, text);
	s3_log_answer_waiters(waiters, r == -ENOSPC ? r : -EIO);
	while (writes) {
		struct s3_write *next = writes->next;

		s3_write_finish(writes, -ENOSPC);
		writes = next;
	}
}

static void put_done(struct s3_request *req);
static void look(struct s3_batch *b, size_t length);
static void look_at_super(struct s3_batch *b);

static void put(struct s3_batch *b)
{
	struct s3_volume *v = b->volume;
	int r;

	b->made = s3_space_made(v);
	b->put_ns = s3_now_suspended();
	b->request = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_LOG,
		.key = b->key,
		.iov = b->iov,
		.iovcnt = b->iov[1].iov_len ? 2 : 1,
		.crc32c = v->checksums ? &b->crc32c : NULL,
		.if_none_match = v->conditional && !b->stale[0],
		.if_match = b->stale[0] ? b->stale : NULL,
		.done = put_done,
		.opaque = b,
	};
	r = s3_store_submit(v->store, &b->request);
	if (r)
		refuse(b, r, "cannot upload: out of memory or threads");
}

void s3_log_upload(struct s3_batch *b)
{
	uint64_t last = atomic_load(&b->volume->uploaded_ns);

	b->met[0] = 0;
	if (last && s3_now_suspended() - last < PAUSE_LOOK)
		put(b);
	else
		look_at_super(b);
}

void s3_log_put_refused(struct s3_volume *v)
{
	struct s3_batch *b = v->refused_batches;

	v->refused_batches = NULL;
	v->refused_pause = v->refused_pause < PAUSE_LAST ? 2 * v->refused_pause : PAUSE_LAST;
	pthread_mutex_unlock(&v->lock);
	while (b) {
		struct s3_batch *next = b->next;

		if (atomic_load(&v->failed) == 0)
			s3_log_upload(b);
		b = next;
	}
	pthread_mutex_lock(&v->lock);
}

/* A request about a batch has ended in an error. */
static void not_put(struct s3_batch *b, const struct s3_request *req)
{
	if (req->result == -ESHUTDOWN)
		s3_volume_fail(b->volume, -EIO, "closed before everything was uploaded");
	else if (req->result == -EIO && req->expired)
		s3_volume_fail(b->volume, -EIO, "%s", req->message);
	else
		refuse(b, req->result, req->message);
}

/* Puts a batch in the place of the object with that etag, unless that has been tried just now. */
static void replace(struct s3_batch *b, const char *etag)
{
	char why[S3_KEY_MAX + 128];

	if (strcmp(b->stale, etag) != 0) {
		strcpy(b->stale, etag);
		put(b);
		return;
	}
	snprintf(why, sizeof why,
		"%s is not replaced, although it has the ETag that the store gave; check what is "
		"in front of the store",
		b->key);
	b->stale[0] = 0;
	refuse(b, -EIO, why);
}

/* What is there in place of a batch? */
static void looked(struct s3_request *req)
{
	struct s3_batch *b = req->opaque;
	struct s3_volume *v = b->volume;
	struct s3_object_header there;
	enum s3_check check;
	int r = req->result;
	uint64_t bytes = req->bytes;

	if (r == -ENOENT) {
		free(b->probe.iov_base);
		b->stale[0] = 0;
		put(b);
		return;
	}
	if (r == -ESHUTDOWN) {
		free(b->probe.iov_base);
		not_put(b, req);
		return;
	}
	if (r) {
		/* Nothing is decided by that, not even at a deadline: it is put, and met, again. */
		free(b->probe.iov_base);
		b->stale[0] = 0;
		refuse(b, r, req->message);
		return;
	}
	check = s3_header_decode(b->probe.iov_base, bytes, v->super.uuid, &there);
	if (check == S3_SHORT && bytes == b->probe.iov_len && there.header_bytes > bytes) {
		/* Its writer had larger batches. */
		free(b->probe.iov_base);
		look(b, there.header_bytes);
		return;
	}
	if (check == S3_GOOD && there.epoch == v->epoch && there.batch == b->seq &&
		memcmp(there.instance, v->instance, S3_UUID) == 0) {
		/* An attempt whose reply was lost had arrived. */
		free(b->probe.iov_base);
		uploaded(b);
		return;
	}
	if (check == S3_GOOD && there.epoch < v->epoch && req->etag[0]) {
		/*
		 * Left by a writer that our fence had stopped: nobody ever counted on it. It is
		 * replaced as it is: a deletion might meet the fence of the next writer, who has
		 * made room for it here meanwhile.
		 */
		free(b->probe.iov_base);
		replace(b, req->etag);
		return;
	}
	free(b->probe.iov_base);
	if (check == S3_OTHER_VOLUME && v->conditional && req->etag[0]) {
		strcpy(b->met, req->etag);
		look_at_super(b);
		return;
	}
	s3_volume_fence(v, check == S3_GOOD ? "another writer took the volume over"
					    : "the log contains a foreign object");
}

/* Gets so many bytes of what is there in place of a batch. */
static void look(struct s3_batch *b, size_t length)
{
	struct s3_volume *v = b->volume;
	int r;

	b->probe = (struct iovec){malloc(length), length};
	if (!b->probe.iov_base) {
		refuse(b, -ENOMEM, "cannot upload: out of memory");
		return;
	}
	b->request = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_LOG,
		.key = b->key,
		.iov = &b->probe,
		.iovcnt = 1,
		.allow_short = true,
		.done = looked,
		.opaque = b,
	};
	r = s3_store_submit(v->store, &b->request);
	if (r) {
		free(b->probe.iov_base);
		refuse(b, r, "cannot upload: out of memory or threads");
	}
}

/*
 * Is the volume still there? If so, what was met before that is not of a new volume of its name,
 * but was left by a server of an old one: it is replaced as it is.
 */
static void looked_at_super(struct s3_request *req)
{
	struct s3_batch *b = req->opaque;
	struct s3_volume *v = b->volume;
	struct s3_super super;
	bool gone = req->result == -ENOENT, there = false;

	if (req->result == 0 && s3_super_decode(b->probe.iov_base, req->bytes, &super) == S3_GOOD) {
		there = memcmp(super.uuid, v->super.uuid, S3_UUID) == 0;
		gone = !there;
		s3_super_free(&super);
	}
	free(b->probe.iov_base);
	if (gone)
		s3_volume_fence(v, "it has been deleted");
	else if (req->result == -ESHUTDOWN || (req->result == -EIO && req->expired && !b->met[0]))
		not_put(b, req);
	else if (!b->met[0])
		put(b); /* what cannot be read says nothing */
	else if (there)
		replace(b, b->met);
	else
		refuse(b, req->result ? req->result : -EIO,
			req->result ? req->message : "the super object cannot be read");
}

static void look_at_super(struct s3_batch *b)
{
	struct s3_volume *v = b->volume;
	struct s3_name name = {.kind = S3_NAME_SUPER};
	int r;

	b->probe = (struct iovec){malloc(SUPER_ROOM), SUPER_ROOM};
	if (!b->probe.iov_base) {
		refuse(b, -ENOMEM, "cannot upload: out of memory");
		return;
	}
	s3_volume_key(v, &name, b->super_key);
	b->request = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_LOG,
		.key = b->super_key,
		.iov = &b->probe,
		.iovcnt = 1,
		.allow_short = true,
		.done = looked_at_super,
		.opaque = b,
	};
	r = s3_store_submit(v->store, &b->request);
	if (r) {
		free(b->probe.iov_base);
		refuse(b, r, "cannot upload: out of memory or threads");
	}
}

static void put_done(struct s3_request *req)
{
	struct s3_batch *b = req->opaque;
	struct s3_volume *v = b->volume;
	int r = req->result;

	if (r == 0) {
		uploaded(b);
		return;
	}
	/* The object to replace is gone, or is another one by now: look again. */
	if (r != -EEXIST && !(r == -ENOENT && b->stale[0])) {
		not_put(b, req);
		return;
	}
	look(b, s3_log_header_room(v));
}
