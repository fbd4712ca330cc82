/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * layout=direct: an object for each chunk of the volume, plain bytes, for the comparison with
 * the log. What others do so, CloudBD, s3backer and nbdkit's S3 plugin, is done as well as
 * it can be done without a log:
 *
 * - Writes go to chunks in memory and are answered at once (write-back, as s3backer). A chunk is
 *   stored when all of it has been written, when memory is short, after a second, or by a
 *   flush; what has not been written of it is then read first. So sequential writes cost a
 *   PUT per chunk, and random ones a GET and a PUT.
 * - Reads of what is not in memory are GETs of just that, straight into the caller's vector.
 * - Which chunks have an object is known from a listing at open: no request is made for those that
 *   have none, and one that went missing is noticed.
 * - A reader serves the chunks that were listed. A writer changes them in their place: what is no
 *   longer as it was cannot be read, so that nobody gets a mixture.
 * - A chunk is loaded, stored or deleted by one request at a time; changes wait meanwhile.
 *
 * What the log has and this has not: chunks arrive in any order, so a crash leaves a mixture of
 * what was flushed and what was not; there are no checksums of blocks; and another writer is
 * noticed by the epoch in the super object only when the next flush is answered, or at the end.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "backends/backend.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/chunked/chunked.h"
#include "backends/s3/chunked/internal.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/probe.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"

#define LOOK_NS UINT64_C(250000000)
/* Chunks in memory without which it cannot go on. */
#define LEAST_CHUNKS 4

/* How often the epoch is raised against others who open the volume just then. */
#define CLAIMS	  8
#define SUPER_MAX (64u << 10)

/* ---- the device's interface ----------------------------------------------------------- */

/* Is there anything to do for a trim or zero? */
static bool concerns(struct s3_direct *d, uint64_t chunk)
{
	return s3_chunk_is_present(d, chunk) || s3_chunk_find(d, chunk);
}

/* Takes a request apart into what it asks of each chunk. */
static void split(struct s3_direct *d, struct s3_io *io)
{
	const struct backend_request *request = io->request;
	uint64_t offset = request->offset, end = offset + request->length;
	bool data = request->op == BACKEND_READ || request->op == BACKEND_WRITE;
	struct s3_chunk_piece *p = &io->only;

	while (offset < end) {
		uint64_t chunk = offset / d->chunk_bytes;
		uint32_t from = (uint32_t)(offset % d->chunk_bytes);
		uint64_t bytes = d->chunk_bytes - from;
		uint64_t position = offset - request->offset;

		if (bytes > end - offset)
			bytes = end - offset;
		offset += bytes;
		if (request->op == BACKEND_READ) {
			s3_chunk_read(d, io, chunk, from, (uint32_t)bytes, position);
			continue;
		}
		if (!data && !concerns(d, chunk))
			continue;
		io->pending++;
		if (!p)
			p = malloc(sizeof *p);
		if (!p) {
			s3_io_end_part(d, io, -ENOMEM);
			break;
		}
		*p = (struct s3_chunk_piece){.io = io,
			.chunk = chunk,
			.from = from,
			.bytes = (uint32_t)bytes,
			.position = position};
		s3_io_run_piece(d, p);
		p = NULL;
	}
	s3_io_end_part(d, io, 0);
}

static void *storer(void *opaque);

/* Makes the thread with the first change: a fork may follow open. 0 or negative errno. */
static int start(struct s3_volume *v)
{
	struct s3_direct *d = v->direct;
	sigset_t all, before;
	int r = 0;

	if (atomic_load_explicit(&d->running, memory_order_acquire))
		return 0;
	/* Signals are the framework's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_mutex_lock(&d->lock);
	if (!d->running) {
		r = pthread_create(&d->storer, NULL, storer, d);
		if (r == 0)
			atomic_store_explicit(&d->running, true, memory_order_release);
	}
	pthread_mutex_unlock(&d->lock);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

static void submit(struct s3_volume *v, struct backend_request *request)
{
	struct s3_direct *d = v->direct;
	struct s3_io *io;
	int r = 0;
	bool idle = request->op == BACKEND_FLUSH &&
		    (v->backend.readonly || v->flush_mode == S3_FLUSH_WEAK);

	if (request->op == BACKEND_READ)
		r = atomic_load(&v->fenced) ? -EIO : 0;
	else if (!idle && (r = start(v)) == 0)
		r = atomic_load(&v->failed);
	if (r == 0 && request->op == BACKEND_WRITE && atomic_load(&v->refused) == -ENOSPC)
		r = -ENOSPC;
	if (r || idle) {
		request->done(request, r);
		return;
	}
	io = s3_io_make(request);
	if (!io)
		return;
	pthread_mutex_lock(&d->lock);
	if (request->op == BACKEND_FLUSH) {
		io->target = d->number;
		s3_io_push(&d->waiters, io);
	} else {
		split(d, io);
	}
	s3_direct_settle(d);
	s3_direct_leave(d);
}

/* Waits for work, or until it is time to look what has been dirty for long. */
static void wait_for_work(struct s3_direct *d)
{
	struct timespec until;
	uint64_t due = s3_now() + LOOK_NS;

	if (TAILQ_EMPTY(&d->dirty)) {
		pthread_cond_wait(&d->work, &d->lock);
		return;
	}
	until.tv_sec = (time_t)(due / 1000000000);
	until.tv_nsec = (long)(due % 1000000000);
	pthread_cond_timedwait(&d->work, &d->lock, &until);
}

static void *storer(void *opaque)
{
	struct s3_direct *d = opaque;
	struct s3_chunk *c;

	pthread_mutex_lock(&d->lock);
	while (!d->stopping) {
		c = TAILQ_FIRST(&d->puts);
		if (!c) {
			wait_for_work(d);
			s3_direct_begin_stores(d);
			continue;
		}
		TAILQ_REMOVE(&d->puts, c, put);
		pthread_mutex_unlock(&d->lock);
		s3_chunk_put(d, c);
		pthread_mutex_lock(&d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

static int extents(struct s3_volume *v, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque)
{
	struct s3_direct *d = v->direct;
	uint64_t end = offset + length;

	while (offset < end) {
		uint64_t chunk = offset / d->chunk_bytes, stop;
		struct backend_extent extent = {.offset = offset};
		int r;

		pthread_mutex_lock(&d->lock);
		extent.hole = extent.zero = !concerns(d, chunk);
		do
			stop = ++chunk * d->chunk_bytes;
		while (stop < end && !concerns(d, chunk) == extent.hole);
		pthread_mutex_unlock(&d->lock);
		extent.length = (stop < end ? stop : end) - offset;
		offset = stop;
		r = fn(opaque, &extent);
		if (r || flags & BACKEND_REQ_ONE)
			return r;
	}
	return 0;
}

static void set_info(const struct s3_volume *v, struct backend_info *info)
{
	info->max_request = v->direct->chunk_bytes;
	info->trim_granularity = v->direct->chunk_bytes;
}

static size_t count(struct s3_volume *v, struct backend_counter *counters, size_t max)
{
	struct s3_direct *d = v->direct;
	uint64_t present = 0;
	size_t n;

	pthread_mutex_lock(&d->lock);
	for (uint64_t i = 0; i < (d->n_chunks + 7) / 8; i++)
		present += (unsigned)__builtin_popcount(d->present[i]);
	const struct backend_counter all[] = {
		{"chunks", present},
		{"chunks_stored", d->stored},
		{"bytes_stored", d->stored_bytes},
		{"chunks_loaded", d->loaded},
		{"deleted", d->deleted},
		{"reads_memory", d->reads_memory},
		{"reads_store", d->reads_store},
		{"stalls", d->stalls},
		{"store_full", atomic_load(&v->refused) == -ENOSPC},
		{"memory_bytes", (uint64_t)d->n_buffers * d->chunk_bytes},
	};
	pthread_mutex_unlock(&d->lock);

	n = sizeof all / sizeof all[0];
	memcpy(counters, all, (n < max ? n : max) * sizeof *all);
	return n;
}

uint64_t s3_direct_memory(uint64_t chunk_bytes)
{
	return LEAST_CHUNKS * chunk_bytes;
}

/* ---- open and close ------------------------------------------------------------------- */

static void note_listed(struct s3_direct *d, uint64_t chunk, const struct s3_listed *listed)
{
	s3_chunk_set_present(d, chunk, true);
	if (d->tags)
		d->tags[chunk] = listed->tag;
}

/* Notes which chunks have an object. */
static int list_chunks(struct s3_direct *d)
{
	struct s3_volume *v = d->v;
	char prefix[sizeof v->base + 8];
	char *token = NULL;
	int r;

	snprintf(prefix, sizeof prefix, "%schunk/", v->base);
	do {
		struct s3_request req = {
			.op = S3_LIST,
			.pool = S3_POOL_BACKGROUND,
			.key = prefix,
			.token = token,
			.retry_deadline = v->deadline,
		};

		r = s3_store_call(v->store, &req);
		free(token);
		token = NULL;
		if (r)
			return s3_volume_refuse(v, r, "%s", req.message);
		for (size_t i = 0; r == 0 && i < req.listing.n_objects; i++) {
			const struct s3_listed *o = &req.listing.objects[i];
			struct s3_name name;

			if (!s3_name_parse(o->key + strlen(v->base), &name) ||
				name.number >= d->n_chunks ||
				o->size != s3_chunk_bytes(d, name.number))
				r = s3_volume_refuse(v, -EINVAL,
					"volume=%s: %s of %" PRIu64
					" bytes is not a chunk of it; move it away, or restore the "
					"volume from a backup",
					v->name, o->key, o->size);
			else
				note_listed(d, name.number, o);
		}
		if (r == 0 && req.listing.token)
			r = (token = strdup(req.listing.token)) ? 0 : -ENOMEM;
		s3_listing_free(&req.listing);
	} while (r == 0 && token);
	return r;
}

/* Raises the epoch in the super object, so that another writer notices. */
static int claim(struct s3_direct *d)
{
	struct s3_volume *v = d->v;

	for (int i = 0; i < CLAIMS; i++) {
		struct s3_super super;
		struct s3_buffer out = {0};
		struct s3_request req;
		struct iovec iov;
		enum s3_check check;
		void *data;
		size_t length;
		char etag[S3_ETAG_MAX + 1];
		int r = s3_volume_get_all(v, d->super_key, &data, &length, &req);

		if (r)
			return r == -ENOMEM ? r : s3_volume_refuse(v, r, "%s", req.message);
		check = s3_super_decode(data, length, &super);
		free(data);
		if (check != S3_GOOD)
			return s3_volume_refuse(v, -EINVAL, "volume=%s: %s %s", v->name,
				d->super_key, s3_check_text(check));
		if (memcmp(super.uuid, v->super.uuid, S3_UUID) != 0) {
			s3_super_free(&super);
			return s3_volume_refuse(v, -EIO,
				"volume=%s: was deleted, and created again, while it was opened; "
				"open it again",
				v->name);
		}
		memcpy(etag, req.etag, sizeof etag);
		v->epoch = ++super.epoch;
		s3_super_encode(&super, &out);
		s3_super_free(&super);
		if (out.failed)
			return -ENOMEM;
		iov = (struct iovec){out.data, out.length};
		req = (struct s3_request){
			.op = S3_PUT,
			.pool = S3_POOL_BACKGROUND,
			.key = d->super_key,
			.iov = &iov,
			.iovcnt = 1,
			.if_match = v->conditional && etag[0] ? etag : NULL,
			.retry_deadline = v->deadline,
		};
		r = s3_store_call(v->store, &req);
		s3_buffer_free(&out);
		if (r == 0)
			return 0;
		/* Another one was quicker, or this very PUT whose reply was lost. */
		if (r != -EEXIST)
			return s3_volume_refuse(v, r, "%s", req.message);
	}
	return s3_volume_refuse(
		v, -EAGAIN, "volume=%s: other processes keep opening it; stop them first", v->name);
}

static int set_up(struct s3_direct *d, const struct s3_config *c)
{
	struct s3_volume *v = d->v;
	pthread_condattr_t attr;
	int r;

	pthread_mutex_init(&d->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&d->work, &attr);
	pthread_cond_init(&d->quiet, &attr);
	pthread_condattr_destroy(&attr);
	TAILQ_INIT(&d->used);
	TAILQ_INIT(&d->dirty);
	TAILQ_INIT(&d->puts);
	TAILQ_INIT(&d->stalled);
	d->chunk_blocks = v->super.chunk_blocks;
	d->chunk_bytes = d->chunk_blocks << v->shift;
	d->n_chunks = (s3_volume_size(v) + d->chunk_bytes - 1) / d->chunk_bytes;
	d->uploads = v->uploads;
	d->max_buffers = (unsigned)(c->memory / d->chunk_bytes);
	if (c->memory < s3_direct_memory(d->chunk_bytes))
		return s3_volume_refuse(v, -EINVAL,
			"memory=%" PRIu64 ": too little for chunks of %" PRIu32
			" bytes; give %" PRIu64 " or more",
			c->memory, d->chunk_bytes, s3_direct_memory(d->chunk_bytes));
	d->n_buckets = 64;
	while (d->n_buckets < d->max_buffers)
		d->n_buckets *= 2;
	d->buckets = calloc(d->n_buckets, sizeof *d->buckets);
	d->present = calloc(1, d->n_chunks / 8 + 1);
	d->sink = malloc(d->chunk_bytes);
	/* Memory is used for chunks that there are. */
	if (c->readonly)
		d->tags = calloc(d->n_chunks, sizeof *d->tags);
	d->check_iov.iov_base = malloc(SUPER_MAX);
	d->check_iov.iov_len = SUPER_MAX;
	if (!d->buckets || !d->present || !d->sink || (c->readonly && !d->tags) ||
		!d->check_iov.iov_base)
		return -ENOMEM;
	s3_volume_key(v, &(struct s3_name){.kind = S3_NAME_SUPER}, d->super_key);
	r = c->readonly ? 0 : s3_volume_probe(v);
	if (r == 0 && !c->readonly)
		r = claim(d);
	return r ? r : list_chunks(d);
}

/* Are the last chunks stored for a volume that is still ours? Until the store tells. */
static void check_end(struct s3_direct *d)
{
	const struct s3_volume *v = d->v;
	uint64_t since = s3_now();

	while (d->unchecked && atomic_load(&v->failed) == 0) {
		struct timespec until;

		s3_direct_look_at_epoch(d);
		if (!d->unchecked ||
			(v->close_timeout_ns && s3_now() - since >= v->close_timeout_ns))
			return;
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec++;
		if (atomic_load(&v->failed) == 0)
			pthread_cond_timedwait(&d->quiet, &d->lock, &until);
	}
}

static void stop(struct s3_volume *v)
{
	struct s3_direct *d = v->direct;
	bool unknown;

	if (!d->running)
		return;
	/* Nothing can be saved now, so requests under way are not waited for either. */
	if (atomic_load(&v->failed))
		s3_store_stop(v->store);
	pthread_mutex_lock(&d->lock);
	/* They would replace what another writer has stored since it took over. */
	if (v->conditional && !TAILQ_EMPTY(&d->dirty))
		s3_direct_look_at_epoch(d);
	d->want_up_to = d->number;
	s3_direct_settle(d);
	while (!TAILQ_EMPTY(&d->dirty) && atomic_load(&v->failed) == 0)
		pthread_cond_wait(&d->quiet, &d->lock);
	if (v->conditional)
		check_end(d);
	unknown = v->conditional && d->unchecked && atomic_load(&v->failed) == 0;
	d->stopping = true;
	pthread_cond_broadcast(&d->work);
	s3_direct_leave(d);
	pthread_join(d->storer, NULL);
	if (unknown)
		s3_volume_fail(v, -EIO, "whether another writer took it over cannot be read");
}

static void free_direct(struct s3_volume *v)
{
	struct s3_direct *d = v->direct;

	for (size_t i = 0; d->buckets && i < d->n_buckets; i++)
		while (d->buckets[i]) {
			struct s3_chunk *c = d->buckets[i];

			d->buckets[i] = c->next;
			s3_chunk_free(c);
		}
	while (d->spare) {
		uint8_t *buffer = d->spare;

		memcpy(&d->spare, buffer, sizeof d->spare);
		free(buffer);
	}
	free(d->buckets);
	free(d->present);
	free(d->tags);
	free(d->sink);
	free(d->check_iov.iov_base);
	pthread_cond_destroy(&d->quiet);
	pthread_cond_destroy(&d->work);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

static const struct s3_layout_ops layout = {
	.name = "direct",
	.submit = submit,
	.extents = extents,
	.counters = count,
	.info = set_info,
	.start = start,
	.stop = stop,
	.give_up = s3_direct_give_up,
	.free = free_direct,
};

int s3_direct_open(struct s3_volume *v, const struct s3_config *config)
{
	v->direct = calloc(1, sizeof *v->direct);
	if (!v->direct)
		return -ENOMEM;
	v->direct->v = v;
	v->layout = &layout;
	return set_up(v->direct, config);
}
