/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What becomes of a volume whose store is full. Nothing that was acknowledged is given up: it stays
 * in memory and is put again and again. But without a single PUT nothing can be freed either: a
 * trim is an object of the log, behind those that wait, and a deletion needs two roots. So the
 * volume keeps a reserve, an object that means nothing, which is deleted then. From that moment
 * writes are refused, so that what it left is for trims, roots and compaction, until it can be
 * stored again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/space.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/object_table.h"

/* A volume has a reserve when it takes this many times its size. */
#define RESERVE_SHARE 8
/* Besides what waits in memory: for roots and relocations. It grows in steps of that. */
#define RESERVE_MORE (UINT64_C(1) << 20)
/* The reserve is the same bytes over and over. */
#define PATTERN (UINT64_C(64) << 10)
#define SECOND	UINT64_C(1000000000)
/* s that a request about the reserve may fail, and that it may take the line for a whole one. */
#define PATIENCE 30
/* Without a reserve it is put that often; over a line that is too slow for it, at last that often.
 */
#define PAUSE	   (60 * SECOND)
#define PAUSE_LAST (64 * PAUSE)
/* The first writes of a server wait for a decision, but no longer. */
#define DECISION (3 * SECOND)

static void reserve_key(const struct s3_volume *v, char *key)
{
	struct s3_name name = {.kind = S3_NAME_PROBE};

	/* Older programs know keys of this kind, and delete them with the volume. */
	memcpy(name.uuid, v->super.uuid, S3_UUID);
	s3_volume_key(v, &name, key);
}

void s3_space_tell(struct s3_volume *v, int r, const char *why)
{
	if (r == -ENOSPC)
		backend_error(&v->host,
			"volume=%s: %s; until then writes fail (ENOSPC), %s free space, and "
			"acknowledged data stays in memory",
			v->name, why,
			v->layout->has_log ? "trims and userblk-s3 gc" : "trims of whole chunks");
	else
		backend_error(&v->host,
			"volume=%s: %s; acknowledged data stays in memory and is sent again",
			v->name, why);
}

void s3_space_tell_again(struct s3_volume *v)
{
	backend_error(&v->host, "volume=%s: there is space in the store again", v->name);
}

bool s3_space_refused(struct s3_volume *v, int r)
{
	if (v->refused == -ENOSPC || v->refused == r)
		return false;
	v->refused_since = s3_now();
	v->refused = r;
	v->reserve.due = 0;
	v->refused_pause = SECOND / 2;
	return true;
}

/* Takes the reserve, which is about to be deleted. Under the lock. */
static bool take(struct s3_volume *v)
{
	if (v->reserve.state != S3_RESERVE_THERE && v->reserve.state != S3_RESERVE_UNKNOWN)
		return false;
	v->reserve.state = S3_RESERVE_DELETING;
	return true;
}

/* It is deleted, as far as is known: there may be space now. */
static void taken(struct s3_volume *v)
{
	pthread_mutex_lock(&v->lock);
	v->reserve.state = S3_RESERVE_GONE;
	v->reserve.bytes = 0;
	v->reserve.made++;
	v->retry_ns = 0;
	pthread_cond_broadcast(&v->sealer_work);
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
}

static void deleted(struct s3_request *req)
{
	taken(req->opaque);
}

unsigned s3_space_made(const struct s3_volume *v)
{
	return v->reserve.made;
}

bool s3_space_ask(struct s3_volume *v, unsigned made)
{
	if (v->reserve.state == S3_RESERVE_DELETING)
		return true;
	if (v->reserve.made != made) {
		/* It was refused before that. */
		v->retry_ns = 0;
		return true;
	}
	if (v->reserve.state == S3_RESERVE_PUTTING) {
		v->reserve.wanted = true;
		return true;
	}
	if (!take(v))
		return false;
	reserve_key(v, v->reserve.key);
	v->reserve.request = (struct s3_request){
		.op = S3_DELETE,
		.pool = S3_POOL_BACKGROUND,
		.key = v->reserve.key,
		.retry_deadline = PATIENCE,
		.done = deleted,
		.opaque = v,
	};
	if (s3_store_submit(v->store, &v->reserve.request) == 0)
		return true;
	v->reserve.state = S3_RESERVE_GONE;
	return false;
}

bool s3_space_make(struct s3_volume *v, unsigned made, const char *why)
{
	static const uint8_t unknown[S3_UUID];
	char key[S3_KEY_MAX + 1];
	bool tell, ours;

	/* A volume that is about to be made has none; that of another server is not a reader's. */
	if (v->super.layout == S3_LAYOUT_DIRECT || v->backend.readonly ||
		memcmp(v->super.uuid, unknown, S3_UUID) == 0)
		return false;
	pthread_mutex_lock(&v->lock);
	tell = s3_space_refused(v, -ENOSPC);
	while (v->reserve.made == made &&
		(v->reserve.state == S3_RESERVE_PUTTING || v->reserve.state == S3_RESERVE_DELETING))
		pthread_cond_wait(&v->quiet, &v->lock);
	ours = v->reserve.made == made && take(v);
	pthread_mutex_unlock(&v->lock);
	if (tell)
		s3_space_tell(v, -ENOSPC, why);
	if (ours) {
		struct s3_request req = {
			.op = S3_DELETE,
			.pool = S3_POOL_BACKGROUND,
			.key = key,
			.retry_deadline = PATIENCE,
		};

		reserve_key(v, key);
		s3_store_call(v->store, &req);
		taken(v);
	}
	return v->reserve.made != made;
}

/*
 * Puts a reserve of so many bytes. 0 or negative errno. One of more than a batch is not worth all
 * of a slow line, and an end waits for it.
 */
static int put_reserve(struct s3_volume *v, uint64_t bytes)
{
	size_t n = (size_t)((bytes + PATTERN - 1) / PATTERN);
	struct iovec *iov = calloc(n, sizeof *iov);
	uint8_t *pattern = malloc(PATTERN);
	uint64_t x = s3_now() | 1;
	char key[S3_KEY_MAX + 1];
	uint32_t crc32c = 0;
	int r = -ENOMEM;

	for (size_t i = 0; pattern && i < PATTERN; i++) {
		/* xorshift64: nothing that a store could compress. */
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		pattern[i] = (uint8_t)x;
	}
	for (size_t i = 0; iov && i < n; i++)
		iov[i] = (struct iovec){pattern, PATTERN};
	for (size_t i = 0; pattern && v->checksums && i < n; i++)
		crc32c = s3_crc32c(crc32c, pattern, PATTERN);
	if (iov && pattern) {
		struct s3_request req = {
			.op = S3_PUT,
			.pool = S3_POOL_BACKGROUND,
			.key = key,
			.iov = iov,
			.iovcnt = (int)n,
			.crc32c = v->checksums ? &crc32c : NULL,
			.retry_deadline = PATIENCE,
			.limit = bytes > v->batch_size ? PATIENCE : 0,
			.droppable = true,
		};

		reserve_key(v, key);
		r = s3_store_call(v->store, &req);
	}
	free(pattern);
	free(iov);
	return r;
}

static enum s3_reserve_state after_put(int r, enum s3_reserve_state before)
{
	if (r == 0)
		return S3_RESERVE_THERE;
	/* After any other error it may have arrived. */
	return r == -ENOSPC || r == -ENOMEM ? before : S3_RESERVE_UNKNOWN;
}

/* Somebody has waited for it while it was put. Under the lock. */
static void ask_again(struct s3_volume *v)
{
	if (!v->reserve.wanted)
		return;
	v->reserve.wanted = false;
	if (!s3_space_ask(v, v->reserve.made)) {
		/* Report the requests that the store refused again. */
		v->retry_ns = 0;
		pthread_cond_broadcast(&v->sealer_work);
	}
}

int s3_space_keep(struct s3_volume *v)
{
	enum s3_reserve_state before;
	uint64_t bytes;
	int r;

	pthread_mutex_lock(&v->lock);
	while (v->reserve.state == S3_RESERVE_DELETING)
		pthread_cond_wait(&v->quiet, &v->lock);
	if (v->reserve.state == S3_RESERVE_THERE) {
		pthread_mutex_unlock(&v->lock);
		return 0;
	}
	before = v->reserve.state;
	bytes = v->reserve.roots > RESERVE_MORE ? v->reserve.roots : RESERVE_MORE;
	v->reserve.state = S3_RESERVE_PUTTING;
	pthread_mutex_unlock(&v->lock);
	r = put_reserve(v, bytes);
	pthread_mutex_lock(&v->lock);
	v->reserve.state = after_put(r, before);
	if (r == 0)
		v->reserve.bytes = bytes;
	ask_again(v);
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
	return r;
}

/* Bytes of the reserve that is there; 0: none. 0, or negative errno: that is not known. */
static int look(struct s3_volume *v, uint64_t *bytes)
{
	char key[S3_KEY_MAX + 1];
	struct s3_request req = {
		.op = S3_HEAD,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.retry_deadline = PATIENCE,
	};
	int r;

	reserve_key(v, key);
	r = s3_store_call(v->store, &req);
	*bytes = r == 0 ? req.object_size : 0;
	return r == -ENOENT ? 0 : r;
}

/*
 * Bytes of a whole reserve in a volume that has room for so many: what may wait in memory, with a
 * record for each block, and twice what the next root has to tell of the log; rather less for that
 * than no reserve. 0: there is room for none. Under the lock.
 */
static uint64_t whole_reserve(struct s3_volume *v, uint64_t most)
{
	uint64_t header =
		s3_header_room(v->batch_blocks, v->batch_blocks, v->shift, v->super.features);
	uint64_t batches = v->max_batches * (v->batch_size + header), more;

	more = (1 + 2 * (v->summary.bits / 8) / RESERVE_MORE) * RESERVE_MORE;
	if (more > v->reserve.roots)
		v->reserve.roots = more;
	more = v->reserve.roots;
	if (most < batches + RESERVE_MORE)
		return 0;
	if (most < batches + more)
		more = (most - batches) / RESERVE_MORE * RESERVE_MORE;
	return batches + more;
}

void s3_space_begin(struct s3_volume *v)
{
	struct s3_objects_totals totals;

	s3_objects_totals(v->objects, &totals);
	v->reserve.undecided = !v->backend.readonly && !v->refused &&
			       v->reserve.state == S3_RESERVE_UNKNOWN &&
			       whole_reserve(v, totals.bytes / RESERVE_SHARE);
	v->reserve.decide_by = 0;
}

uint64_t s3_space_undecided(struct s3_volume *v)
{
	if (!v->reserve.undecided)
		return 0;
	if (!v->reserve.decide_by) {
		v->reserve.decide_by = s3_now() + DECISION;
		pthread_cond_signal(&v->collector_work);
	}
	return s3_now() < v->reserve.decide_by ? v->reserve.decide_by : 0;
}

/* Data writes that waited for it go on, or fail. Under the lock. */
static void decide(struct s3_volume *v)
{
	if (!v->reserve.undecided)
		return;
	v->reserve.undecided = false;
	pthread_cond_broadcast(&v->sealer_work);
}

void s3_space_tend(struct s3_volume *v)
{
	uint64_t whole, bytes, there = 0;
	enum s3_reserve_state before;
	struct s3_objects_totals totals;
	bool full, due, put, looked = false, found = false, reported = false;
	int r = 0;

	s3_objects_totals(v->objects, &totals);
	pthread_mutex_lock(&v->lock);
	whole = bytes = whole_reserve(v, totals.bytes / RESERVE_SHARE);
	full = v->refused == -ENOSPC;
	before = v->reserve.state;
	/* Shows that there is space, also over a line on which a whole one has taken too long. */
	if (full && (!bytes || v->reserve.pause))
		bytes = v->batch_size;
	due = before != S3_RESERVE_DELETING && !v->n_refused &&
	      (full || bytes > v->reserve.bytes) && s3_now() >= v->reserve.due;
	if (due) {
		v->reserve.due = s3_now() + (full ? SECOND : PAUSE);
		v->reserve.state = S3_RESERVE_PUTTING;
	} else {
		decide(v);
	}
	pthread_mutex_unlock(&v->lock);
	if (!due)
		return;
	put = full || before != S3_RESERVE_UNKNOWN;
	if (!put) {
		r = look(v, &there);
		looked = r == 0;
		put = looked && there < bytes;
		/* With any of it the store is not taken for full, and without an answer it may not
		 * be. */
		if (r || there) {
			pthread_mutex_lock(&v->lock);
			decide(v);
			pthread_mutex_unlock(&v->lock);
		}
	}
	if (put)
		r = put_reserve(v, bytes);
	pthread_mutex_lock(&v->lock);
	v->reserve.state = after_put(r, before);
	if (looked)
		v->reserve.bytes = there;
	if (r == 0 && put)
		v->reserve.bytes = bytes;
	/* Not put over one that may be there, for which a store may have to have room for both. */
	if (r && !put)
		v->reserve.due = s3_now() + SECOND;
	/* It was full before this server, or is about to be: what is left is the reserve. */
	if (r == -ENOSPC && put && !full && !v->reserve.bytes)
		found = s3_space_refused(v, r);
	decide(v);
	/* The line is for the data. */
	if (r == 0 && bytes == whole) {
		v->reserve.pause = 0;
	} else if (r == -EIO && put && bytes == whole) {
		v->reserve.pause = v->reserve.pause ? 2 * v->reserve.pause : 2 * PAUSE;
		if (v->reserve.pause > PAUSE_LAST)
			v->reserve.pause = PAUSE_LAST;
		if (v->refused != -ENOSPC)
			v->reserve.due = s3_now() + v->reserve.pause;
	}
	/* What was refused again meanwhile knows better. */
	if (r == 0 && full && !v->n_refused) {
		v->refused = 0;
		v->reserve.due = s3_now() + v->reserve.pause;
		/* Waiting threads wait for what is put now, which is not stored yet. */
		v->blocked = false;
		v->root_due = v->root_pause = 0;
		pthread_cond_signal(&v->keeper_work);
		reported = true;
		pthread_cond_broadcast(&v->sealer_work);
	}
	ask_again(v);
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
	if (found)
		s3_space_tell(v, -ENOSPC, "the store has no space for the reserve of the volume");
	if (reported)
		s3_space_tell_again(v);
}
