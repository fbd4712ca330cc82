/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/backend.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/snapstore.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/internal.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/log/log.h"
#include "backends/s3/recovery/recovery.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

/* A full root may cost this part of the log since the last one. */
#define FULL_SHARE 40
/* Summaries that a root names at most. */
#define MAX_SUMMARIES 4096
/* s that the PUT of a small part of a checkpoint is tried for. */
#define PART_DEADLINE 20
/* The pause after a root that failed, at first and, in a full store, at last. */
#define ROOT_PAUSE	UINT64_C(1000000000)
#define ROOT_PAUSE_LAST (600 * ROOT_PAUSE)

/* ---- checkpoint ----------------------------------------------------------------------- */

/* A checkpoint under way. */
struct checkpoint {
	uint64_t seq;
	const struct s3_checkpoint_step *step; /* NULL: none */
	bool full;
	struct s3_summary_writer summary;
	bool unknown; /* of some headers there is no summary */
	struct s3_buffer table;
	bool captured;
	bool stored;	 /* some of the regions are... */
	bool named;	 /* ...and a root may be that names them */
	uint32_t *dirty; /* regions */
	size_t n_dirty;
	uint64_t log_bytes; /* since the last full root, at its moment */
	struct s3_root_region *regions;
	uint32_t n_regions;
};

/* If several fail one after the other the first is reported. */
static void tell_failure(struct s3_volume *v, const char *why)
{
	if (!v->checkpoint_failing)
		backend_error(&v->host, "volume=%s: cannot write a checkpoint: %s; will try again",
			v->name, why);
	v->checkpoint_failing = true;
}

static int put(struct s3_volume *v, const char *key, const void *data, size_t length, bool creates)
{
	struct iovec iov = {(void *)data, length};
	struct s3_request req = {
		.op = S3_PUT,
		.pool = S3_POOL_BACKGROUND,
		/* A part of a checkpoint that was begun by the same writer and not finished is
		 * replaced. */
		.key = key,
		.iov = &iov,
		.iovcnt = 1,
		/* Writes may have to wait for it. At the end nobody does. */
		.retry_deadline = s3_keeper_is_stopping(v) ? 0 : PART_DEADLINE,
	};
	int r = creates ? s3_volume_put_without_reserve(v, &req)
			: s3_volume_put_with_reserve(v, &req);

	if (r == 0)
		atomic_fetch_add(&v->stats.checkpoint_bytes, length);
	else if (!creates || r != -ENOSPC) /* that is for the caller to say */
		tell_failure(v, req.message);
	return r;
}

/* Under pause: what the checkpoint will hold. */
static int capture(struct s3_volume *v, struct checkpoint *c)
{
	struct s3_objects_totals totals;
	uint64_t price, worth;

	s3_objects_totals(v->objects, &totals);
	/* A block written at random takes 8 bytes in memory and 6 in a region. */
	price = s3_map_memory(v->map) / 4 * 3 + totals.objects * 40;
	pthread_mutex_lock(&v->lock);
	c->summary = v->summary;
	v->summary = (struct s3_summary_writer){0};
	c->log_bytes = v->log_bytes_since_full;
	pthread_mutex_unlock(&v->lock);
	c->unknown = c->summary.failed;
	worth = c->summary.bits / 8;
	/* In a full store the smaller one has to do. */
	if (atomic_load(&v->refused) != -ENOSPC && worth < c->log_bytes / FULL_SHARE)
		worth = c->log_bytes / FULL_SHARE;
	c->full = c->step || v->full_wanted || c->unknown || price <= worth ||
		  (v->n_summaries >= MAX_SUMMARIES && atomic_load(&v->refused) != -ENOSPC);
	if (!c->full)
		return 0;

	int r = c->step && c->step->change ? c->step->change(c->step->opaque, v, c->seq) : 0;

	if (r)
		return r;
	s3_objects_encode(
		v->objects, c->step && c->step->without ? c->step->without->seq : 0, &c->table);
	if (c->table.failed)
		return -ENOMEM;
	r = s3_map_capture(v->map, !v->full, &c->dirty, &c->n_dirty);
	c->captured = r == 0;
	return r;
}

/* What changes had noted is free: those that waited for that go on. */
static void wake_stalled(struct s3_volume *v)
{
	pthread_mutex_lock(&v->lock);
	pthread_cond_signal(&v->sealer_work);
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
}

static void end_capture(struct s3_volume *v, bool committed)
{
	s3_map_capture_end(v->map, committed);
	wake_stalled(v);
}

static int store_region(struct s3_volume *v, struct checkpoint *c, uint32_t region)
{
	struct s3_name name = {.kind = S3_NAME_REGION, .number = c->seq, .region = region};
	struct s3_buffer out = {0};
	char key[S3_KEY_MAX + 1];
	int r = s3_map_capture_region(v->map, region, &out);

	if (r == 0 && out.failed)
		r = -ENOMEM;
	if (r == 0 && out.length) {
		s3_volume_key(v, &name, key);
		r = put(v, key, out.data, out.length, c->step && c->step->creates);
		c->stored |= r == 0;
		s3_failpoint(S3_FAIL_CKPT_REGION_AFTER);
		c->regions[c->n_regions++] = (struct s3_root_region){
			.region = region,
			.seq = c->seq,
			.bytes = (uint32_t)out.length,
			.crc = s3_crc32c(0, out.data, out.length),
		};
	}
	s3_buffer_free(&out);
	wake_stalled(v);
	return r;
}

/* The regions that have changed, and those of the last full root that have not. */
static int store_regions(struct s3_volume *v, struct checkpoint *c)
{
	size_t old = 0, dirty = 0;
	int r = 0;

	c->regions = calloc(v->n_regions + c->n_dirty + 1, sizeof *c->regions);
	if (!c->regions)
		return -ENOMEM;
	while (r == 0 && (old < v->n_regions || dirty < c->n_dirty)) {
		if (dirty == c->n_dirty ||
			(old < v->n_regions && v->regions[old].region < c->dirty[dirty])) {
			c->regions[c->n_regions++] = v->regions[old++];
			continue;
		}
		if (old < v->n_regions && v->regions[old].region == c->dirty[dirty])
			old++;
		r = store_region(v, c, c->dirty[dirty++]);
	}
	return r;
}

/*
 * Gives back what a root in a full store was to name, which only another full root would do. The
 * next root has another number, so that a late DELETE meets nothing. If nothing was stored it has
 * the same one: what may arrive of this attempt is then replaced.
 */
static void delete_regions(struct s3_volume *v, const struct checkpoint *c)
{
	struct s3_request req;
	int r = 0;

	v->root_in_doubt = true;
	for (uint32_t i = 0; r == 0 && i < c->n_regions; i++) {
		struct s3_name name = {
			.kind = S3_NAME_REGION, .number = c->seq, .region = c->regions[i].region};
		char key[S3_KEY_MAX + 1];

		if (c->regions[i].seq != c->seq)
			continue;
		s3_volume_key(v, &name, key);
		r = s3_volume_delete(v, key, &req);
	}
}

void s3_owed_drop(struct s3_volume *v)
{
	for (unsigned i = 0; i < v->n_owed; i++)
		s3_buffer_free(&v->owed[i].data);
	v->n_owed = 0;
}

/* The log up to here is known from roots and from summaries that are yet to be stored. */
static uint64_t summarized(const struct s3_volume *v)
{
	return v->n_owed ? v->owed[v->n_owed - 1].part.last : v->checkpoint;
}

/*
 * Keeps what the headers hold until a root names it. If that is not possible, or has been too much
 * for long, c->unknown says so: only a full root can follow.
 */
static void owe_summary(struct s3_volume *v, struct checkpoint *c)
{
	struct s3_owed *owed = &v->owed[v->n_owed];
	struct s3_summary summary = {
		.epoch = v->epoch, .first = c->summary.first, .last = c->summary.last};
	uint64_t bytes = 0;

	if (!summary.first && !c->unknown && summarized(v) == c->seq)
		return; /* an attempt before was about the same */
	if (v->n_owed == S3_OWED_MAX || summary.first != summarized(v) + 1 ||
		summary.last != c->seq)
		c->unknown = true;
	if (!c->unknown) {
		memcpy(summary.uuid, v->super.uuid, S3_UUID);
		*owed = (struct s3_owed){.part = {.first = summary.first, .last = summary.last}};
		s3_summary_finish(&c->summary, &summary, &owed->data);
		owed->part.bytes = (uint32_t)owed->data.length;
		c->unknown = owed->data.failed;
		if (c->unknown)
			s3_buffer_free(&owed->data);
		else
			owed->part.crc = s3_crc32c(0, owed->data.data, owed->data.length);
		v->n_owed += !c->unknown;
	}
	for (unsigned i = 0; i < v->n_owed; i++)
		bytes += v->owed[i].data.length;
	c->unknown |= bytes > v->waiting_memory / 2;
	if (c->unknown)
		s3_owed_drop(v);
}

/* Stores the summaries that no root names yet. */
static int store_summaries(struct s3_volume *v)
{
	char key[S3_KEY_MAX + 1];
	int r = 0;

	for (unsigned i = 0; r == 0 && i < v->n_owed; i++) {
		struct s3_owed *owed = &v->owed[i];
		struct s3_name name = {.kind = S3_NAME_SUMMARY, .number = owed->part.last};

		if (owed->stored)
			continue;
		s3_volume_key(v, &name, key);
		r = put(v, key, owed->data.data, owed->data.length, false);
		owed->stored = r == 0;
		s3_failpoint(S3_FAIL_CKPT_REGION_AFTER);
	}
	return r;
}

int s3_keeper_meet_root(struct s3_volume *v, struct s3_root *root, void *data)
{
	bool ours = memcmp(root->instance, v->instance, S3_UUID) == 0;
	int r;

	s3_root_free(root);
	free(data);
	if (ours)
		return 0;
	r = s3_check_not_fenced(v);
	return r ? r : -EEXIST;
}

/* Something stands in place of a root: as s3_keeper_meet_root(). */
static int look_at_root(struct s3_volume *v, const struct s3_name *name)
{
	struct s3_root root;
	void *data;
	int r = s3_root_read(v, v->base, v->super.uuid, name, &data, &root);

	return r ? r : s3_keeper_meet_root(v, &root, data);
}

/* Those that a root lists: all, but the one that goes with it. NULL: no memory. */
static struct s3_root_snapshot *list_snapshots(
	const struct s3_volume *v, const struct s3_root_snapshot *without, uint32_t *n)
{
	struct s3_root_snapshot *list = calloc(v->n_snapshots + 1, sizeof *list);

	*n = 0;
	for (uint32_t i = 0; list && i < v->n_snapshots; i++)
		if (!without || strcmp(v->snapshots[i].name, without->name) != 0)
			list[(*n)++] = v->snapshots[i];
	return list;
}

/* The root: from here on the checkpoint counts. */
static int store_root(struct s3_volume *v, struct checkpoint *c, struct s3_root *root)
{
	const struct s3_checkpoint_step *step = c->step;
	struct s3_name name = {.kind = S3_NAME_ROOT, .number = root->seq};
	struct s3_buffer out = {0};
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r = 0;

	memcpy(root->uuid, v->super.uuid, S3_UUID);
	memcpy(root->instance, v->instance, S3_UUID);
	root->epoch = v->epoch;
	root->blocks = v->super.blocks;
	root->next_gc = v->next_gc;
	root->time = (uint64_t)time(NULL);
	root->snapshots = list_snapshots(v, step ? step->without : NULL, &root->n_snapshots);
	if (root->snapshots)
		s3_root_encode(root, &out);
	if (!root->snapshots || out.failed)
		r = -ENOMEM;
	free(root->snapshots);
	if (r == 0 && step && step->root) {
		r = step->root(step->opaque, v, out.data, out.length, &c->named);
		v->root_in_doubt |= c->named; /* it has regions of this number */
	}
	if (r) {
		s3_buffer_free(&out);
		return r;
	}
	s3_volume_key(v, &name, key);
	s3_failpoint(S3_FAIL_CKPT_ROOT_BEFORE);
	r = s3_volume_put(v, key, out.data, out.length, v->conditional, &req);
	if (r == 0)
		s3_failpoint(S3_FAIL_CKPT_ROOT_AFTER);
	if (r == -EEXIST)
		r = look_at_root(v, &name);
	else if (r)
		tell_failure(v, req.message);
	/* One that is there may be ours although nobody can say so. */
	c->named |= r == 0 || req.result == -EEXIST || s3_may_arrive(&req);
	v->checkpoint_failing &= r != 0;
	v->root_in_doubt = r != 0;
	if (r == 0)
		atomic_fetch_add(&v->stats.checkpoint_bytes, out.length);
	s3_buffer_free(&out);
	return r;
}

static int store_light(struct s3_volume *v, struct checkpoint *c)
{
	struct s3_root_summary *all =
		realloc(v->summaries, (v->n_summaries + v->n_owed) * sizeof *v->summaries);
	struct s3_root root = {.seq = c->seq, .base = v->full, .packed = true};
	int r;

	if (!all)
		return -ENOMEM;
	v->summaries = all;
	r = store_summaries(v);
	if (r)
		return r;
	for (unsigned i = 0; i < v->n_owed; i++)
		all[v->n_summaries + i] = v->owed[i].part;
	root.summaries = all;
	root.n_summaries = v->n_summaries + v->n_owed;
	r = store_root(v, c, &root);
	if (r == 0) {
		v->n_summaries = root.n_summaries;
		s3_owed_drop(v);
		atomic_fetch_add(&v->stats.light_roots, 1);
	}
	return r;
}

/*
 * The root without a snapshot is stored, or may be. Until then the snapshot is there: a full store
 * that has no room for that root goes on with light ones, which build upon the one before.
 */
static void drop_snapshot(struct s3_volume *v, const struct s3_root_snapshot *snapshot)
{
	uint64_t now = s3_log_pause(v);
	int r = s3_snapshot_drop(v, snapshot->seq, now);

	s3_log_resume(v);
	if (r)
		s3_volume_fail(v, r, "out of memory for its snapshots");
}

static int store_full(struct s3_volume *v, struct checkpoint *c)
{
	struct s3_root root = {.seq = c->seq, .base = c->seq};
	int r = store_regions(v, c);

	if (r == 0) {
		root.regions = c->regions;
		root.n_regions = c->n_regions;
		root.table = c->table.data;
		root.table_bytes = c->table.length;
		r = store_root(v, c, &root);
	}
	end_capture(v, r == 0);
	/* Changes need not wait for that. */
	if (r == -ENOSPC && c->stored && !c->named)
		delete_regions(v, c);
	if (c->named && c->step && c->step->without) {
		drop_snapshot(v, c->step->without);
		/* The table without it only a full root holds. */
		v->full_wanted = true;
	}
	if (r)
		return r;
	free(v->regions);
	v->regions = c->regions;
	v->n_regions = c->n_regions;
	c->regions = NULL;
	v->full = c->seq;
	free(v->summaries);
	v->summaries = NULL;
	v->n_summaries = 0;
	s3_owed_drop(v);
	v->full_wanted = false;
	pthread_mutex_lock(&v->lock);
	v->log_bytes_since_full -= c->log_bytes;
	pthread_mutex_unlock(&v->lock);
	atomic_fetch_add(&v->stats.full_roots, 1);
	return 0;
}

/* ---- a checkpoint ---------------------------------------------------------------------- */

/* The root is stored: what died before the one that it replaces may go, after a while. */
static void committed(struct s3_volume *v, uint64_t seq)
{
	pthread_mutex_lock(&v->lock);
	v->previous = v->checkpoint;
	v->checkpoint = seq;
	if (v->next_delete_ns == 0) {
		v->next_delete_limit = v->previous;
		v->next_delete_ns = s3_now() + v->gc_delay_ns;
	}
	pthread_mutex_unlock(&v->lock);
}

/*
 * When a root is tried again after that result. left: the attempt leaves something behind, an
 * object of the log for the number of the next one, which would fill a full store, or it was a full
 * root, which takes the line and holds up changes.
 */
static void pause_roots(struct s3_volume *v, int r, bool left)
{
	pthread_mutex_lock(&v->lock);
	if (r == 0 || v->refused != -ENOSPC)
		v->root_pause = 0;
	else if (left)
		v->root_pause = v->root_pause ? 2 * v->root_pause : ROOT_PAUSE;
	if (v->root_pause > ROOT_PAUSE_LAST)
		v->root_pause = ROOT_PAUSE_LAST;
	v->root_due = r == 0 ? 0 : s3_now() + (left && v->root_pause ? v->root_pause : ROOT_PAUSE);
	pthread_mutex_unlock(&v->lock);
}

/* While the store refuses the log none can end. 0 or negative errno. */
static int may_begin(struct s3_volume *v)
{
	int r;

	pthread_mutex_lock(&v->lock);
	r = v->blocked ? atomic_load(&v->refused) : 0;
	pthread_mutex_unlock(&v->lock);
	return r;
}

static int make_root(struct s3_volume *v, const struct s3_checkpoint_step *step)
{
	struct checkpoint c = {.step = step};
	struct s3_prune *prune = NULL;
	/* What failed may yet arrive, and must not be taken for another root of its number. */
	int r = v->root_in_doubt ? s3_log_mark(v, NULL) : 0;

	if (r)
		return r;
	c.seq = s3_log_pause(v);
	r = atomic_load(&v->failed);
	if (r == 0 && c.seq > v->checkpoint)
		r = capture(v, &c);
	else
		c.seq = 0;
	s3_log_resume(v);
	if (r == 0 && c.seq == 0)
		return 0;
	if (c.seq)
		owe_summary(v, &c);
	if (r == 0)
		r = c.full || !c.unknown ? s3_log_wait(v, c.seq) : -ENOMEM;
	/* What the root before this one names is not known after a rollback: the next time. */
	if (r == 0 && c.full && !v->rolled_back)
		prune = s3_prune_prepare(v);
	/* A new volume of the same name must not meet a root of ours, nor have its parts replaced.
	 */
	if (r == 0 && s3_check_not_deleted(v) == -ESTALE)
		r = -ESTALE;
	if (r == 0)
		r = c.full ? store_full(v, &c) : store_light(v, &c);
	else if (c.captured)
		end_capture(v, false);
	if (r) {
		v->full_wanted |= c.unknown;
	} else {
		committed(v, c.seq);
		if (atomic_load(&v->marked))
			s3_snapshot_unmark_all(v);
		if (c.full && !v->rolled_back) {
			s3_prune_plan(v, prune);
			prune = NULL;
		}
		if (c.full)
			v->rolled_back = false;
	}
	s3_summary_abandon(&c.summary);
	s3_buffer_free(&c.table);
	s3_prune_drop(prune);
	free(c.dirty);
	free(c.regions);
	return r;
}

static int checkpoint(struct s3_volume *v, const struct s3_checkpoint_step *step)
{
	int r = may_begin(v);
	bool begun = r == 0;

	if (begun)
		r = make_root(v, step);
	pause_roots(v, r, begun && (v->root_in_doubt || (r == -ENOSPC && v->full_wanted)));
	return r;
}

int s3_checkpoint(struct s3_volume *v)
{
	return checkpoint(v, NULL);
}

int s3_checkpoint_with(struct s3_volume *v, const struct s3_checkpoint_step *step)
{
	int r = s3_log_mark(v, NULL);

	return r ? r : checkpoint(v, step);
}
