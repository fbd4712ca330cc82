/* SPDX-License-Identifier: BSD-3-Clause */
/* Garbage: objects that are dead, and orphans; and collecting all of it on demand. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/backend.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/space.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/internal.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/log/log.h"
#include "backends/s3/state/object_table.h"

/* Orphans are looked for that often. */
#define SWEEP_NS UINT64_C(86400000000000)

/* ---- garbage: dead objects -------------------------------------------------------------- */

/* The work on a dead object is done. */
static void forget(struct s3_volume *v, uint32_t slot, bool gone)
{
	if (!gone || s3_objects_remove(v->objects, slot))
		s3_objects_put_back(v->objects, slot);
}

/* If several deletions fail one after the other the first is reported. */
static void tell_failure(struct s3_volume *v, int r, const char *why)
{
	if (r && !v->deletion_failing && !atomic_load(&v->failed) && !s3_keeper_is_stopping(v))
		backend_error(&v->host,
			"volume=%s: cannot delete objects that are no longer needed: %s; will try "
			"again",
			v->name, *why ? why : strerror(-r));
	v->deletion_failing = r != 0;
}

/* Deletes n objects whose slots are ours; an ancestor's is only forgotten. 0 or negative errno. */
static int delete_objects(struct s3_volume *v, const uint32_t *slots, size_t n)
{
	char(*text)[S3_KEY_MAX + 1] = calloc(n, sizeof *text);
	const char **keys = calloc(n, sizeof *keys);
	int *results = calloc(n, sizeof *results);
	uint32_t *own = calloc(n, sizeof *own);
	struct s3_request req = {
		.op = S3_DELETE_MANY,
		.pool = S3_POOL_BACKGROUND,
		.keys = keys,
		.key_results = results,
		.retry_deadline = S3_GC_DEADLINE,
		.droppable = true,
	};
	int r = text && keys && results && own ? s3_check_not_fenced(v) : -ENOMEM;

	for (size_t i = 0; i < n; i++) {
		struct s3_object object;

		s3_objects_get(v->objects, slots[i], &object);
		if (r || object.origin) {
			forget(v, slots[i], r == 0);
			continue;
		}
		own[req.n_keys] = slots[i];
		s3_volume_object_key(v, object.id, text[req.n_keys]);
		keys[req.n_keys] = text[req.n_keys];
		results[req.n_keys++] = -EIO;
	}
	if (req.n_keys) {
		s3_failpoint(S3_FAIL_DELETE_BEFORE);
		r = s3_store_call(v->store, &req);
		s3_failpoint(S3_FAIL_DELETE_AFTER);
	}
	for (size_t i = 0; i < req.n_keys; i++) {
		forget(v, own[i], results[i] == 0);
		if (results[i] == 0)
			atomic_fetch_add(&v->stats.deleted, 1);
		r = r ? r : results[i];
	}
	tell_failure(v, r, req.message);
	free(own);
	free(results);
	free(keys);
	free(text);
	return r;
}

int s3_gc_collect_dead(struct s3_volume *v, size_t *taken)
{
	uint32_t slots[S3_DELETE_MAX];
	size_t n;

	pthread_mutex_lock(&v->lock);
	if (v->next_delete_ns && s3_now() >= v->next_delete_ns) {
		v->delete_limit = v->next_delete_limit;
		v->next_delete_ns = 0;
		if (v->delete_limit < v->previous) {
			v->next_delete_limit = v->previous;
			v->next_delete_ns = s3_now() + v->gc_delay_ns;
		}
	}
	pthread_mutex_unlock(&v->lock);
	n = s3_objects_take_dead(v->objects, v->delete_limit, slots, S3_DELETE_MAX);
	*taken = n;
	return n ? delete_objects(v, slots, n) : 0;
}

/* ---- garbage: orphans -------------------------------------------------------------------------
 */

struct sweep {
	struct s3_volume *v;
	int64_t before; /* what was stored later is left alone; s since 1970 */
};

/*
 * Deletes an object in gc/ that no log and no root knows: a round of ours, or of a writer before
 * us, ended between storing and entering it. No round is running: this is its thread. However late
 * the deletion arrives, nobody makes another object under that number, which has the epoch of who
 * made it.
 */
static int sweep_object(void *opaque, const struct s3_listed *listed)
{
	const struct sweep *s = opaque;
	struct s3_volume *v = s->v;
	struct s3_object_header header;
	struct s3_request req;
	enum s3_check check;
	struct s3_name name;
	void *data;
	int r;

	if (!s3_name_parse(listed->key + strlen(v->base), &name) || name.kind != S3_NAME_GC ||
		listed->modified > s->before ||
		s3_objects_find(v->objects, 0, name.number) != S3_NO_SLOT)
		return 0;
	r = s3_volume_get_header(v, name.number, &data, &header, &check, &req);
	if (r)
		return r == -ENOENT ? 0 : r;
	free(data);
	if (check != S3_GOOD || header.id != name.number || header.epoch > v->epoch)
		return 0;
	r = s3_check_not_fenced(v);
	if (r)
		return r;
	s3_failpoint(S3_FAIL_ORPHAN_DELETE_BEFORE);
	r = s3_volume_delete(v, listed->key, &req);
	if (r == 0)
		atomic_fetch_add(&v->stats.orphans, 1);
	return r;
}

/*
 * Deletes the copy of the super object that an interrupted deletion left. The volume exists and is
 * in use: a new deletion would have fenced us first, and a deletion that began before we opened the
 * volume has ended by now.
 */
static int sweep_copy(void *opaque, const struct s3_listed *listed)
{
	const struct sweep *s = opaque;
	struct s3_volume *v = s->v;
	struct s3_request req;
	struct s3_name name;
	int r;

	if (!s3_name_parse(listed->key + strlen(v->base), &name) || name.kind != S3_NAME_DELETED ||
		listed->modified > s->before)
		return 0;
	r = s3_check_not_fenced(v);
	return r ? r : s3_volume_delete(v, listed->key, &req);
}

void s3_gc_sweep(struct s3_volume *v)
{
	struct sweep s = {.v = v, .before = time(NULL) - (int64_t)(v->gc_delay_ns / 1000000000)};
	struct s3_request req;

	s3_volume_list(v, "gc/", false, sweep_object, &s, &req);
	s3_volume_list(v, "deleted", false, sweep_copy, &s, &req);
	v->next_sweep_ns = s3_now() + SWEEP_NS;
}

/* ---- garbage: on demand -----------------------------------------------------------------------
 */

struct collection {
	bool (*progress)(void *opaque, uint64_t done, uint64_t total);
	void *opaque;
	uint64_t total;	 /* bytes of garbage at the beginning */
	uint64_t mark;	 /* what died up to then is deleted */
	uint64_t stored; /* bytes of all objects before */
	bool full;	 /* the store had no space for more compaction */
	bool done;
};

static uint64_t garbage_bytes(struct s3_volume *v)
{
	struct s3_objects_totals t;

	s3_objects_totals(v->objects, &t);
	return (t.blocks - t.live - t.held) << v->shift;
}

/* False: stop. */
static bool tell_progress(struct s3_volume *v, const struct collection *c)
{
	uint64_t left = garbage_bytes(v);

	return !c->progress ||
	       c->progress(c->opaque, left < c->total ? c->total - left : 0, c->total);
}

bool s3_checkpoint_due(const struct s3_volume *v)
{
	return v->frontier - v->checkpoint >= v->checkpoint_every ||
	       (atomic_load(&v->marked) && s3_now() >= atomic_load(&v->unmark_due) &&
		       v->frontier > v->checkpoint);
}

static bool checkpoint_due_now(struct s3_volume *v)
{
	bool due;

	pthread_mutex_lock(&v->lock);
	due = s3_checkpoint_due(v);
	pthread_mutex_unlock(&v->lock);
	return due;
}

static int order_checkpoint(struct s3_volume *v, void *opaque)
{
	(void)opaque;
	return s3_checkpoint(v);
}

/*
 * A checkpoint that covers more than the last one; after an empty object of the log only if there
 * is nothing else, since those of a full store that fail would fill what is left of it.
 */
static int order_new_checkpoint(struct s3_volume *v, void *opaque)
{
	bool covered;
	int r;

	pthread_mutex_lock(&v->lock);
	covered = v->applied == v->checkpoint;
	pthread_mutex_unlock(&v->lock);
	r = covered ? s3_log_mark(v, NULL) : 0;
	(void)opaque;
	return r ? r : s3_checkpoint(v);
}

int s3_gc_cover(struct s3_volume *v)
{
	int r = 0;

	for (int i = 0; r == 0 && i < 2; i++)
		r = s3_keeper_call(v, order_new_checkpoint, NULL);
	return r;
}

/* Compacts as long as it makes less of it, and has two roots cover what died of it. */
static int compact_all(struct s3_volume *v, void *opaque)
{
	struct collection *c = opaque;
	uint64_t blocks = UINT64_MAX, objects = UINT64_MAX;
	int r = s3_log_drain(v); /* what is only in memory cannot be moved */
	bool drained = true;

	if (r)
		return r;
	c->total = c->total ? c->total : garbage_bytes(v);
	s3_gc_readmit(v, true);
	/* What is dead makes space first, if there is little. */
	while (!c->full || c->stored) {
		struct s3_objects_totals t;
		uint64_t alive;

		if (!tell_progress(v, c))
			return -ECANCELED;
		s3_objects_totals(v->objects, &t);
		if (blocks == UINT64_MAX)
			c->stored = t.bytes; /* when it began */
		alive = t.blocks - t.dead_blocks;
		if (alive >= blocks && t.objects - t.dead >= objects) {
			if (drained)
				break;
			/* An open batch counts as a full one. */
			r = s3_log_drain(v);
			if (r)
				return r;
			drained = true;
			continue;
		}
		blocks = alive;
		objects = t.objects - t.dead;
		/* Without room for the roots that cover it, it would free nothing. */
		r = atomic_load(&v->refused) == -ENOSPC ? s3_space_keep(v) : 0;
		if (r == 0)
			r = s3_keeper_is_stopping(v) ? -ESHUTDOWN
						     : s3_gc_compact(v, S3_GC_SPARSE, t.small > 1);
		c->full = r == -ENOSPC;
		if (c->full) {
			s3_space_make(v, s3_space_made(v),
				"the store has no space for a compaction; free space "
				"there or raise the quota");
			break;
		}
		if (r < 0)
			return r;
		if (r == 0)
			break;
		drained = false;
		r = checkpoint_due_now(v) ? s3_keeper_call(v, order_checkpoint, NULL) : 0;
		if (r)
			return r;
	}
	s3_room_leave(v);
	r = c->full ? 0 : s3_log_drain(v);
	if (r)
		return r;
	s3_gc_sweep(v);
	r = s3_gc_cover(v);
	if (r)
		return r;
	pthread_mutex_lock(&v->lock);
	c->mark = v->previous;
	v->next_delete_limit = v->previous;
	v->next_delete_ns = s3_now() + v->gc_delay_ns;
	pthread_mutex_unlock(&v->lock);
	return 0;
}

static int collect_marked(struct s3_volume *v, void *opaque)
{
	struct collection *c = opaque;
	size_t n;
	int r = s3_gc_collect_dead(v, &n);

	c->done = n < S3_DELETE_MAX && v->delete_limit >= c->mark;
	if (!tell_progress(v, c))
		return -ECANCELED;
	if (r && r != -ESTALE)
		return s3_volume_refuse(v, r,
			"volume=%s: objects that are no longer needed cannot be deleted: %s; "
			"collect again when the store deletes them",
			v->name, strerror(-r));
	return r ? -EIO : 0;
}

int s3_volume_gc(struct s3_volume *v, bool (*progress)(void *opaque, uint64_t done, uint64_t total),
	void *opaque)
{
	const struct timespec pause = {.tv_nsec = 100000000};
	struct collection c = {
		.progress = progress,
		.opaque = opaque,
		.full = atomic_load(&v->refused) == -ENOSPC,
	};
	unsigned idle = 0; /* rounds in succession that freed nothing */
	uint64_t before;
	int r;

	/*
	 * Where there was no space for all of it there is some when what has died is gone; or when
	 * the reserve is, which may have come back meanwhile.
	 */
	do {
		before = c.stored;
		r = s3_collector_call(v, compact_all, &c);
		c.done = false;
		while (r == 0 && !c.done) {
			r = s3_collector_call(v, collect_marked, &c);
			if (r == 0 && !c.done)
				nanosleep(&pause, NULL);
		}
		if (!c.stored)
			c.stored = UINT64_MAX;
		idle = before && c.stored >= before ? idle + 1 : 0;
	} while (r == 0 && c.full && idle < 2);
	return r;
}
