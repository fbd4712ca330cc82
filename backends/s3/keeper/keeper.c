/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two threads: the keeper's makes checkpoints, which bound recovery; the collector's garbage
 * collection, which bounds what is stored. Whatever becomes of a request of the second, the
 * first goes on.
 *
 * A light root costs the addresses that the headers since the last one hold, a full root those
 * regions of the map that have changed, and the table. A full one is written when it is cheap
 * against the log since the last full one, which keeps both together below a tenth of a log that
 * holds data: docs/s3.md. Until then light ones build upon what the volume began with.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/base/failpoint.h"
#include "backends/s3/core/volume.h"

/* A full root may cost this part of the log since the last one. */
#define FULL_SHARE 40
/* Summaries that a root names at most. */
#define MAX_SUMMARIES 4096

/* Objects compacted in one go, and written at once. */
#define GC_OBJECTS 32
#define GC_TARGETS 4
/* Blocks of an object that compaction writes, however little memory there is. */
#define GC_BLOCKS_LEAST 16u
/* s that a request of garbage collection is tried for. */
#define GC_DEADLINE 60
/* Objects that cannot be read are left alone that long. */
#define PASSED_NS UINT64_C(600000000000)
/* Compaction begins when less than this part of what is stored is used, in percent... */
#define GC_USED 70
/* ...with objects that are used less than that. */
#define GC_SPARSE 70
/* Small objects that may be there besides one for each full object. */
#define GC_SMALL 64
/* A round of compaction is followed by a pause of this many times its own duration. */
#define GC_PAUSE       3
#define GC_INTERVAL_NS UINT64_C(1000000000)

/* Orphans in gc/ are looked for that often. */
#define SWEEP_NS UINT64_C(86400000000000)

/* ---- may anything be deleted? -------------------------------------------------------- */

/* Where the next object of ours is to be, if there is no other writer's behind our frontier. */
static uint64_t behind_frontier(struct s3_volume *v, uint64_t *applied)
{
	uint64_t next;

	pthread_mutex_lock(&v->lock);
	next = v->frontier + 1;
	if (applied)
		*applied = v->applied;
	pthread_mutex_unlock(&v->lock);
	return next;
}

/*
 * The fence of whoever took over stands behind the last object of ours that arrived before it. The
 * frontier lags behind that: of what is uploaded now some may be there already, and what stands
 * behind the frontier be our own. Then the fence may be behind that, so it is looked for there.
 * This ends: what was begun after it (behind applied) cannot be stored, and so not pass the
 * frontier, if there was a fence when it began.
 */
int s3_check_not_fenced(struct s3_volume *v)
{
	struct s3_object_header header;
	struct s3_request req;
	enum s3_check check;
	uint64_t applied, seq = behind_frontier(v, &applied);
	void *data;
	int r;

	for (;;) {
		uint64_t next;

		r = atomic_load(&v->failed);
		if (r)
			return r;
		r = s3_volume_get_header(v, seq, &data, &header, &check, &req);
		if (r)
			return r == -ENOENT ? 0 : r;
		free(data);
		if (check != S3_GOOD)
			return -EIO;
		if (header.epoch < v->epoch)
			return 0; /* left by one that we had fenced: for all others it is absent */
		if (header.epoch > v->epoch || memcmp(header.instance, v->instance, S3_UUID) != 0)
			break;
		next = behind_frontier(v, NULL);
		if (next > applied + 1)
			return 0;
		seq = next > seq + 1 ? next : seq + 1;
	}
	s3_volume_fence(v, "another writer took the volume over");
	return -ESTALE;
}

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
	uint32_t *dirty; /* regions */
	size_t n_dirty;
	uint64_t log_bytes; /* since the last full root, at its moment */
	struct s3_root_region *regions;
	uint32_t n_regions;
};

static int put(struct s3_volume *v, const char *key, const void *data, size_t length)
{
	struct s3_request req;
	/* A part of a checkpoint that was begun by the same writer and not finished is replaced. */
	int r = s3_volume_put(v, key, data, length, false, &req);

	if (r)
		backend_error(&v->host, "volume=%s: checkpoint: %s", v->name, req.message);
	else
		atomic_fetch_add(&v->stats.checkpoint_bytes, length);
	return r;
}

/* Under pause: what the checkpoint will hold. */
static int capture(struct s3_volume *v, struct checkpoint *c)
{
	struct s3_objects_totals totals;
	uint64_t price;

	s3_objects_totals(v->objects, &totals);
	/* Of the 8 bytes that a block written at random takes in memory a region has 6. */
	price = s3_map_memory(v->map) / 4 * 3 + totals.objects * 40;
	pthread_mutex_lock(&v->lock);
	c->summary = v->summary;
	v->summary = (struct s3_summary_writer){0};
	c->log_bytes = v->log_bytes_since_full;
	pthread_mutex_unlock(&v->lock);
	c->unknown = c->summary.failed;
	c->full = c->step || v->full_wanted || c->unknown || v->n_summaries >= MAX_SUMMARIES ||
		  price <= c->summary.bits / 8 || price <= c->log_bytes / FULL_SHARE;
	if (!c->full)
		return 0;

	int r = c->step && c->step->change ? c->step->change(c->step->opaque, v, c->seq) : 0;

	if (r)
		return r;
	s3_objects_encode(v->objects, &c->table);
	if (c->table.failed)
		return -ENOMEM;
	r = s3_map_capture(v->map, !v->full, &c->dirty, &c->n_dirty);
	c->captured = r == 0;
	return r;
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
		r = put(v, key, out.data, out.length);
		s3_failpoint(S3_FAIL_CKPT_REGION_AFTER);
		c->regions[c->n_regions++] = (struct s3_root_region){
			.region = region,
			.seq = c->seq,
			.bytes = (uint32_t)out.length,
			.crc = s3_crc32c(0, out.data, out.length),
		};
	}
	s3_buffer_free(&out);
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
		r = put(v, key, owed->data.data, owed->data.length);
		owed->stored = r == 0;
		s3_failpoint(S3_FAIL_CKPT_REGION_AFTER);
	}
	return r;
}

/* The root: from here on the checkpoint counts. */
static int store_root(
	struct s3_volume *v, struct s3_root *root, const struct s3_checkpoint_step *step)
{
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
	root->snapshots = v->snapshots;
	root->n_snapshots = v->n_snapshots;
	s3_root_encode(root, &out);
	if (out.failed)
		r = -ENOMEM;
	else if (step && step->root)
		r = step->root(step->opaque, v, out.data, out.length);
	if (r) {
		s3_buffer_free(&out);
		return r;
	}
	s3_volume_key(v, &name, key);
	s3_failpoint(S3_FAIL_CKPT_ROOT_BEFORE);
	r = s3_volume_put(v, key, out.data, out.length, v->conditional, &req);
	if (r == 0)
		s3_failpoint(S3_FAIL_CKPT_ROOT_AFTER);
	if (r == -EEXIST && req.retries) {
		/* Ours, whose reply was lost, or another writer's: then it has fenced us. */
		r = s3_check_not_fenced(v);
	} else if (r == -EEXIST) {
		r = s3_check_not_fenced(v);
		if (r == 0)
			r = -EEXIST;
	} else if (r) {
		backend_error(&v->host, "volume=%s: checkpoint: %s", v->name, req.message);
	}
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
	r = store_root(v, &root, NULL);
	if (r == 0) {
		v->n_summaries = root.n_summaries;
		s3_owed_drop(v);
		atomic_fetch_add(&v->stats.light_roots, 1);
	}
	return r;
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
		r = store_root(v, &root, c->step);
	}
	s3_map_capture_end(v->map, r == 0);
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

/* ---- roots that are not needed any more ------------------------------------------------ */

/*
 * The two newest roots of some moment. What neither they nor the snapshots need may go, gc-delay=
 * after that: who opens the volume may have begun with what was there before.
 */
struct s3_prune {
	uint64_t due; /* ns, monotonic */
	uint64_t newest, newest_full, previous, previous_full;
	struct s3_root_region *regions, *previous_regions;
	uint32_t n_regions, n_previous_regions;
};

static bool names_region(
	const struct s3_root_region *regions, uint32_t n, const struct s3_name *name)
{
	for (uint32_t i = 0; i < n; i++)
		if (regions[i].region == name->region && regions[i].seq == name->number)
			return true;
	return false;
}

static bool snapshot_names_region(const struct s3_kept *kept, const struct s3_name *name)
{
	for (; kept; kept = kept->next)
		if ((kept->unknown && name->number <= kept->seq) ||
			names_region(kept->regions, kept->n_regions, name))
			return true;
	return false;
}

static bool needed(const struct s3_volume *v, const struct s3_prune *k, const struct s3_name *name)
{
	/* Not yet a part of anything, or another writer's. */
	if (name->number > k->newest)
		return true;
	switch (name->kind) {
	case S3_NAME_ROOT:
		return name->number == k->newest || name->number == k->newest_full ||
		       name->number == k->previous || name->number == k->previous_full;
	case S3_NAME_SUMMARY:
		return name->number > k->previous_full;
	case S3_NAME_REGION:
		return names_region(k->regions, k->n_regions, name) ||
		       names_region(k->previous_regions, k->n_previous_regions, name) ||
		       snapshot_names_region(v->kept, name);
	default:
		return true;
	}
}

static bool is_kept(const struct s3_volume *v, uint64_t seq)
{
	for (const struct s3_kept *kept = v->kept; kept; kept = kept->next)
		if (kept->seq == seq)
			return true;
	return false;
}

/* Reads which regions a snapshot needs. */
static int keep_snapshot(struct s3_volume *v, const struct s3_root_snapshot *snapshot)
{
	struct s3_name name = {.kind = S3_NAME_SNAPSHOT};
	struct s3_kept *kept = calloc(1, sizeof *kept);
	struct s3_root root;
	void *data;
	int r;

	if (!kept)
		return -ENOMEM;
	strcpy(name.name, snapshot->name);
	kept->seq = snapshot->seq;
	r = s3_root_read(v, v->base, v->super.uuid, &name, &data, &root);
	if (r && r != -ENOENT) {
		free(kept);
		return r;
	}
	kept->unknown = r || root.seq != snapshot->seq;
	if (r == 0) {
		kept->regions = root.regions;
		kept->n_regions = root.n_regions;
		root.regions = NULL;
		s3_root_free(&root);
		free(data);
	}
	kept->next = v->kept;
	v->kept = kept;
	return 0;
}

static bool is_snapshot(const struct s3_volume *v, uint64_t seq)
{
	for (uint32_t i = 0; i < v->n_snapshots; i++)
		if (v->snapshots[i].seq == seq)
			return true;
	return false;
}

/* Makes v->kept what the snapshots need. */
static int keep_snapshots(struct s3_volume *v)
{
	struct s3_kept **link = &v->kept;
	int r = 0;

	while (*link) {
		struct s3_kept *kept = *link;

		if (is_snapshot(v, kept->seq)) {
			link = &kept->next;
			continue;
		}
		*link = kept->next;
		free(kept->regions);
		free(kept);
	}
	for (uint32_t i = 0; r == 0 && i < v->n_snapshots; i++)
		if (!is_kept(v, v->snapshots[i].seq))
			r = keep_snapshot(v, &v->snapshots[i]);
	return r;
}

struct pruning {
	struct s3_volume *v;
	const struct s3_prune *prune;
};

static int delete_unless_needed(void *opaque, const struct s3_listed *listed)
{
	const struct pruning *p = opaque;
	struct s3_request req;
	struct s3_name name;

	if (!s3_name_parse(listed->key + strlen(p->v->base), &name) ||
		needed(p->v, p->prune, &name))
		return 0;
	return s3_volume_delete(p->v, listed->key, &req);
}

static void free_prune(struct s3_prune *prune)
{
	if (prune) {
		free(prune->regions);
		free(prune->previous_regions);
	}
	free(prune);
}

void s3_prune_free(struct s3_volume *v)
{
	free_prune(v->prune);
	free_prune(v->next_prune);
}

/*
 * Deletes what no root needs that recovery may start from, and no snapshot, when it is time.
 * Nothing depends on it.
 */
static void delete_old_roots(struct s3_volume *v)
{
	struct pruning pruning = {.v = v, .prune = v->prune};
	struct s3_request req;

	if (!v->prune || s3_now() < v->prune->due)
		return;
	if (s3_check_not_fenced(v) == 0 && keep_snapshots(v) == 0)
		s3_volume_list(v, "ckpt/", false, delete_unless_needed, &pruning, &req);
	free_prune(v->prune);
	v->prune = v->next_prune;
	v->next_prune = NULL;
}

/* A copy of regions; NULL: no memory. */
static struct s3_root_region *copy_regions(const struct s3_root_region *regions, uint32_t n)
{
	struct s3_root_region *copy = calloc(n ? n : 1, sizeof *copy);

	if (copy && n)
		memcpy(copy, regions, n * sizeof *copy);
	return copy;
}

/* Before a full root is stored: keeps what is known of the one before it. NULL: no memory. */
static struct s3_prune *prepare_prune(const struct s3_volume *v)
{
	struct s3_prune *prune = calloc(1, sizeof *prune);

	if (!prune)
		return NULL;
	prune->previous = v->checkpoint;
	prune->previous_full = v->full;
	prune->n_previous_regions = v->n_regions;
	prune->previous_regions = copy_regions(v->regions, v->n_regions);
	return prune;
}

/* The full root is stored: has old ones deleted in time. Takes prune, which may be NULL. */
static void plan_prune(struct s3_volume *v, struct s3_prune *prune)
{
	if (prune) {
		prune->newest = prune->newest_full = v->full;
		prune->n_regions = v->n_regions;
		prune->regions = copy_regions(v->regions, v->n_regions);
	}
	if (!prune || !prune->regions || !prune->previous_regions) {
		free_prune(prune); /* the next one deletes more */
		return;
	}
	prune->due = s3_now() + v->gc_delay_ns;
	if (!v->prune) {
		v->prune = prune;
	} else {
		/* Of those in between none is waited for: they go with the others. */
		free_prune(v->next_prune);
		v->next_prune = prune;
	}
	delete_old_roots(v);
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

/* While the store refuses the log none can end. 0 or negative errno. */
static int may_begin(struct s3_volume *v)
{
	int r;

	pthread_mutex_lock(&v->lock);
	r = v->blocked ? atomic_load(&v->refused) : 0;
	pthread_mutex_unlock(&v->lock);
	return r;
}

static int checkpoint(struct s3_volume *v, const struct s3_checkpoint_step *step)
{
	struct checkpoint c = {.step = step};
	struct s3_prune *prune = NULL;
	int r = may_begin(v);

	/* What failed may yet arrive, and must not be taken for another root of its number. */
	if (r == 0 && v->root_in_doubt)
		r = s3_log_mark(v, NULL);
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
		prune = prepare_prune(v);
	if (r == 0)
		r = c.full ? store_full(v, &c) : store_light(v, &c);
	else if (c.captured)
		s3_map_capture_end(v->map, false);
	if (r) {
		/* What a step has changed only a full root holds. */
		v->full_wanted |= c.unknown || step;
	} else {
		committed(v, c.seq);
		if (c.full && !v->rolled_back) {
			plan_prune(v, prune);
			prune = NULL;
		}
		if (c.full)
			v->rolled_back = false;
	}
	s3_summary_abandon(&c.summary);
	s3_buffer_free(&c.table);
	free_prune(prune);
	free(c.dirty);
	free(c.regions);
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

/* ---- garbage: dead objects -------------------------------------------------------------- */

/* What was to be done with a dead object has been done. */
static void forget(struct s3_volume *v, uint32_t slot, bool gone)
{
	if (!gone || s3_objects_remove(v->objects, slot))
		s3_objects_put_back(v->objects, slot);
}

/* Deletes n objects whose slots are ours; an ancestor's is only forgotten. */
static void delete_objects(struct s3_volume *v, const uint32_t *slots, size_t n)
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
		s3_store_call(v->store, &req);
		s3_failpoint(S3_FAIL_DELETE_AFTER);
	}
	for (size_t i = 0; i < req.n_keys; i++) {
		forget(v, own[i], results[i] == 0);
		if (results[i] == 0)
			atomic_fetch_add(&v->stats.deleted, 1);
	}
	free(own);
	free(results);
	free(keys);
	free(text);
}

/* How many there were to delete. */
static size_t collect_dead(struct s3_volume *v)
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
	if (n)
		delete_objects(v, slots, n);
	return n;
}

/* ---- garbage: sparse and small objects ---------------------------------------------------- */

/* A run of blocks that are to move. */
struct piece {
	uint64_t lba;
	uint32_t count, source; /* index in the round */
	uint32_t offset;	/* block in the source's data */
};

/* An object, all of which is in memory, or a window of it if it is larger than what there is. */
struct source {
	uint32_t slot;
	struct s3_object object;
	uint8_t *raw; /* as stored, which header points into: all of it, or the header */
	size_t length;
	uint8_t *window;   /* what of the data is at hand, if not all; else NULL */
	uint8_t *plain;	   /* blocks of the window; NULL: they are stored as they are */
	uint32_t from, to; /* the window, in blocks of the data */
	struct s3_object_header header;
	struct iovec iov;
	struct s3_request req;
	char key[S3_KEY_MAX + 1];
};

/* Requests of a round that are under way. */
struct flight {
	pthread_mutex_t lock;
	pthread_cond_t landed;
	unsigned n;
};

struct round {
	struct source sources[GC_OBJECTS];
	size_t n_sources;
	struct piece *pieces;
	size_t n_pieces, room;
	uint64_t memory; /* bytes that it may take, half of them for what is read */
	struct flight reads, writes;
};

static void take_off(struct flight *f)
{
	pthread_mutex_lock(&f->lock);
	f->n++;
	pthread_mutex_unlock(&f->lock);
}

static void land(struct flight *f)
{
	pthread_mutex_lock(&f->lock);
	f->n--;
	pthread_cond_broadcast(&f->landed);
	pthread_mutex_unlock(&f->lock);
}

static void wait_all(struct flight *f)
{
	pthread_mutex_lock(&f->lock);
	while (f->n)
		pthread_cond_wait(&f->landed, &f->lock);
	pthread_mutex_unlock(&f->lock);
}

static int add_piece(struct round *round, const struct piece *piece)
{
	if (round->n_pieces == round->room) {
		size_t room = round->room ? 2 * round->room : 256;
		struct piece *pieces = realloc(round->pieces, room * sizeof *pieces);

		if (!pieces)
			return -ENOMEM;
		round->pieces = pieces;
		round->room = room;
	}
	round->pieces[round->n_pieces++] = *piece;
	return 0;
}

/* Finds the blocks of a source's window that are alive, through the records that wrote them. */
static int find_live(struct s3_volume *v, struct round *round, uint32_t index)
{
	struct source *s = &round->sources[index];
	struct s3_record record;
	size_t cursor = 0;
	int r = 0;

	while (r == 0 && s3_header_next(&s->header, &cursor, &record)) {
		uint64_t from = record.offset, to = record.offset + record.count;
		uint64_t lba, end;

		if (record.op != S3_RECORD_WRITE)
			continue;
		from = from > s->from ? from : s->from;
		to = to < s->to ? to : s->to;
		if (from >= to)
			continue;
		lba = record.lba + (from - record.offset);
		end = record.lba + (to - record.offset);
		while (r == 0 && lba < end) {
			struct s3_run run;

			s3_map_lookup(v->map, lba, end - lba, false, &run, 1);
			/* Where this record put it, and nowhere else: an object may hold a block
			 * twice. */
			if (run.slot == s->slot && run.offset == record.offset + (lba - record.lba))
				r = add_piece(round, &(struct piece){.lba = lba,
							     .count = (uint32_t)run.count,
							     .source = index,
							     .offset = run.offset});
			lba += run.count;
		}
	}
	return r;
}

static const uint8_t *source_block(
	const struct s3_volume *v, const struct source *s, uint32_t block)
{
	const uint8_t *data = s->plain	  ? s->plain
			      : s->window ? s->window
					  : s->raw + s->header.header_bytes;

	return data + ((size_t)(block - s->from) << v->shift);
}

/* Are the blocks of a piece what was written? */
static int check_piece(const struct s3_volume *v, const struct source *s, const struct piece *p)
{
	for (uint32_t b = p->offset; b < p->offset + p->count; b++)
		if (s3_crc32c(0, source_block(v, s, b), v->block_size) !=
			s3_header_crc(&s->header, b))
			return -EIO;
	return 0;
}

/* Restores what the pieces need of a source whose data is transformed, which checks it. */
static int restore_source(
	const struct s3_volume *v, struct source *s, const struct piece *pieces, size_t n)
{
	bool *wanted = calloc(s->header.n_crc, sizeof *wanted);
	uint32_t first = (uint32_t)(((uint64_t)s->from << v->shift) / S3_UNIT);
	int r = -ENOMEM;

	s->plain = malloc((size_t)(s->to - s->from) << v->shift);
	if (wanted && s->plain) {
		for (size_t i = 0; i < n; i++) {
			uint64_t from = (uint64_t)pieces[i].offset << v->shift;
			uint64_t end = from + ((uint64_t)pieces[i].count << v->shift);

			for (uint64_t u = from / S3_UNIT; u * S3_UNIT < end; u++)
				wanted[u] = true;
		}
		r = s3_unseal(v, s->object.origin, &s->header, first,
			s->window ? s->window : s->raw + s->header.header_bytes, wanted, s->plain);
	}
	free(wanted);
	return r == -EBADMSG ? -EIO : r;
}

static void source_read(struct s3_request *req)
{
	land(req->opaque);
}

/* Begins to read length bytes of a source into memory of its own, *to. 0 or negative errno. */
static int begin_read(struct s3_volume *v, struct round *round, struct source *s, uint8_t **to,
	uint64_t offset, size_t length)
{
	int r;

	*to = malloc(length);
	if (!*to)
		return -ENOMEM;
	s->iov = (struct iovec){*to, length};
	s3_volume_object_key(v, s->object.id, s->key);
	s->req = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_BACKGROUND,
		.key = s->key,
		.iov = &s->iov,
		.iovcnt = 1,
		.offset = offset,
		.retry_deadline = GC_DEADLINE,
		.done = source_read,
		.opaque = &round->reads,
	};
	take_off(&round->reads);
	r = s3_store_submit(v->store, &s->req);
	if (r)
		land(&round->reads);
	return r;
}

/* Is what was read of a source the object that it is to be? */
static int check_source(const struct s3_volume *v, struct source *s)
{
	if (s3_header_decode(s->raw, s->length, v->super.uuid, &s->header) != S3_GOOD ||
		s->header.id != s->object.id || s->header.blocks != s->object.blocks ||
		s->object.bytes != (uint64_t)s->header.header_bytes + s->header.data_bytes ||
		!s3_seal_fits(v, &s->header))
		return -EIO;
	return 0;
}

/* Finds what is alive in a source's window, and checks it. */
static int use_source(struct s3_volume *v, struct round *round, uint32_t index)
{
	struct source *s = &round->sources[index];
	size_t first = round->n_pieces;
	int r = find_live(v, round, index);

	if (r == 0 && s->header.flags && round->n_pieces > first)
		r = restore_source(v, s, round->pieces + first, round->n_pieces - first);
	for (size_t i = first; r == 0 && !s->plain && i < round->n_pieces; i++)
		r = check_piece(v, s, &round->pieces[i]);
	if (r)
		round->n_pieces = first;
	return r;
}

static int by_lba(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	return (x->lba > y->lba) - (x->lba < y->lba);
}

/* A GC object that is being put together, or on its way. */
struct target {
	struct s3_header_writer writer;
	struct s3_object_header sealed;
	uint8_t *header, *data;
	size_t room;
	uint32_t *crcs; /* not used where data is transformed */
	struct s3_stored stored;
	struct s3_record *records;
	size_t n_records;
	uint32_t blocks, blocks_max;
	struct flight *flight;
	bool sent, landed;
	struct iovec iov[2];
	struct s3_request req;
	char key[S3_KEY_MAX + 1];
};

/* Is the GC object that stands there already ours, from an attempt whose reply was lost? 0: yes. */
static int meet_target(struct s3_volume *v, uint64_t id)
{
	struct s3_object_header there;
	struct s3_request req;
	enum s3_check check;
	void *data;
	int r = s3_volume_get_header(v, id, &data, &there, &check, &req);

	if (r)
		return r;
	/* Its writer gives a number once. */
	r = check == S3_GOOD && there.id == id && memcmp(there.instance, v->instance, S3_UUID) == 0
		    ? 0
		    : -EEXIST;
	free(data);
	return r;
}

static void target_stored(struct s3_request *req)
{
	struct target *t = req->opaque;
	struct flight *f = t->flight;

	pthread_mutex_lock(&f->lock);
	t->landed = true;
	f->n--;
	pthread_cond_broadcast(&f->landed);
	pthread_mutex_unlock(&f->lock);
}

/* Begins to store an object. 0 or negative errno. */
static int send_target(struct s3_volume *v, struct target *t)
{
	int r;

	t->writer.header.blocks = t->blocks;
	r = s3_seal(v, &t->writer, t->data, t->crcs, &t->stored, t->iov, &t->sealed);
	if (r)
		return r;
	s3_volume_object_key(v, t->sealed.id, t->key);
	t->req = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_BACKGROUND,
		.key = t->key,
		.iov = t->iov,
		.iovcnt = 2,
		.if_none_match = v->conditional,
		.retry_deadline = GC_DEADLINE,
		.done = target_stored,
		.opaque = t,
	};
	t->landed = false;
	take_off(t->flight);
	r = s3_store_submit(v->store, &t->req);
	if (r)
		land(t->flight);
	t->sent = r == 0;
	return r;
}

/* Waits for it and moves the map to it. Its failure leaves an object that nobody knows. */
static int enter_target(struct s3_volume *v, struct target *t)
{
	struct s3_object object = {.blocks = t->blocks};
	int r;

	if (!t->sent)
		return 0;
	pthread_mutex_lock(&t->flight->lock);
	while (!t->landed)
		pthread_cond_wait(&t->flight->landed, &t->flight->lock);
	pthread_mutex_unlock(&t->flight->lock);
	t->sent = false;
	r = t->req.result;
	if (r == -EEXIST)
		r = meet_target(v, t->sealed.id);
	if (r)
		return r;
	object.id = t->sealed.id;
	object.header_bytes = t->sealed.header_bytes;
	object.bytes = t->sealed.header_bytes + t->sealed.data_bytes;
	s3_failpoint(S3_FAIL_RELOCATE_PUT_AFTER);
	r = s3_log_relocate(v, &object, t->records, t->n_records);
	if (r)
		return r;
	s3_crc_cache_add(v->crcs, &t->sealed);
	atomic_fetch_add(&v->stats.gc_objects, 1);
	atomic_fetch_add(&v->stats.gc_bytes, object.bytes);
	return 0;
}

static void begin_target(struct s3_volume *v, struct target *t)
{
	struct s3_object_header header = {
		.type = S3_TYPE_GC,
		.block_shift = v->shift,
		/* One that exists is of an attempt before: the next time another number is used. */
		.id = atomic_fetch_add(&v->next_gc, 1),
		.epoch = v->epoch,
		.time = (uint64_t)time(NULL) * 1000000,
	};

	memcpy(header.uuid, v->super.uuid, S3_UUID);
	memcpy(header.instance, v->instance, S3_UUID);
	s3_header_begin(&t->writer, &header, t->header, t->room);
	t->n_records = 0;
	t->blocks = 0;
}

/* Puts as much of a piece into the target as it can take; how many blocks. */
static uint32_t add_to_target(
	struct s3_volume *v, struct round *round, struct target *t, const struct piece *p)
{
	const struct source *s = &round->sources[p->source];
	uint32_t n = t->blocks_max - t->blocks;

	if (n > p->count)
		n = p->count;
	memcpy(t->data + ((size_t)t->blocks << v->shift), source_block(v, s, p->offset),
		(size_t)n << v->shift);
	for (uint32_t i = 0; !s->plain && i < n; i++)
		t->crcs[t->blocks + i] = s3_header_crc(&s->header, p->offset + i);
	s3_header_add(&t->writer,
		&(struct s3_record){
			.op = S3_RECORD_WRITE, .lba = p->lba, .count = n, .offset = t->blocks});
	t->records[t->n_records++] = (struct s3_record){
		.op = S3_RECORD_RELOCATE,
		.lba = p->lba,
		.count = n,
		.source = s->object.id,
		.source_offset = p->offset,
		.object = t->writer.header.id,
		.offset = t->blocks,
	};
	t->blocks += n;
	return n;
}

/* Bytes that a target of so many blocks takes. */
static uint64_t target_bytes(const struct s3_volume *v, uint32_t blocks)
{
	uint64_t data = (uint64_t)blocks << v->shift;

	return data + (v->transforms ? s3_transform_room(data) : 0) +
	       s3_header_room(blocks, blocks, v->shift, v->super.features) +
	       blocks * (sizeof(uint32_t) + sizeof(struct s3_record));
}

static int make_target(struct s3_volume *v, struct target *t, uint32_t blocks)
{
	size_t bytes = (size_t)blocks << v->shift;

	t->blocks_max = blocks;
	t->room = s3_header_room(blocks, blocks, v->shift, v->super.features);
	t->room = (t->room + S3_ALIGN - 1) / S3_ALIGN * S3_ALIGN;
	t->header = aligned_alloc(S3_ALIGN, t->room);
	t->data = malloc(bytes);
	t->crcs = malloc(blocks * sizeof *t->crcs);
	t->records = malloc(blocks * sizeof *t->records);
	if (s3_stored_init(v, &t->stored, bytes) || !t->header || !t->data || !t->crcs ||
		!t->records)
		return -ENOMEM;
	return 0;
}

static void free_target(struct target *t)
{
	s3_stored_free(&t->stored);
	free(t->records);
	free(t->crcs);
	free(t->data);
	free(t->header);
}

/* Writes all pieces into new objects, in the order of the volume's blocks; some are on their way.
 */
static int move_pieces(struct s3_volume *v, struct round *round)
{
	struct target targets[GC_TARGETS] = {0}, *t = &targets[0];
	uint32_t blocks = v->batch_blocks;
	unsigned n = 0, next = 0;
	uint64_t left = 0;
	int r = 0;

	if (!round->n_pieces)
		return 0;
	qsort(round->pieces, round->n_pieces, sizeof *round->pieces, by_lba);
	for (size_t i = 0; i < round->n_pieces; i++)
		left += round->pieces[i].count;
	while (blocks > GC_BLOCKS_LEAST && target_bytes(v, blocks) > round->memory / 2)
		blocks = (blocks + 1) / 2;
	while (r == 0 && n < GC_TARGETS &&
		(n == 0 || (n < (left + blocks - 1) / blocks &&
				   (n + 1) * target_bytes(v, blocks) <= round->memory / 2))) {
		targets[n].flight = &round->writes;
		r = make_target(v, &targets[n++], blocks);
	}
	if (r == 0)
		begin_target(v, t);
	for (size_t i = 0; r == 0 && i < round->n_pieces; i++) {
		struct piece p = round->pieces[i];

		while (r == 0 && p.count) {
			uint32_t added = add_to_target(v, round, t, &p);

			p.lba += added;
			p.offset += added;
			p.count -= added;
			left -= added;
			if (t->blocks < blocks && left)
				continue;
			r = send_target(v, t);
			next = (next + 1) % n;
			t = &targets[next];
			if (r == 0)
				r = enter_target(v, t);
			if (r == 0 && left)
				begin_target(v, t);
		}
	}
	/* In the order in which they were sent. */
	for (unsigned i = 0; i < n; i++) {
		int entered = enter_target(v, &targets[(next + i) % n]);

		r = r ? r : entered;
	}
	for (unsigned i = 0; i < n; i++)
		free_target(&targets[i]);
	return r;
}

/* Puts back those that are not yet in the store. How many there are left. */
static size_t keep_stored(struct s3_volume *v, uint32_t *slots, size_t n)
{
	uint64_t frontier;
	size_t kept = 0;

	pthread_mutex_lock(&v->lock);
	frontier = v->frontier;
	pthread_mutex_unlock(&v->lock);
	for (size_t i = 0; i < n; i++) {
		struct s3_object object;

		s3_objects_get(v->objects, slots[i], &object);
		if (object.id & S3_GC || object.id <= frontier)
			slots[kept++] = slots[i];
		else
			s3_objects_put_back(v->objects, slots[i]);
	}
	return kept;
}

/* A single object that is only small becomes another one that is. */
static bool worth_moving(struct s3_volume *v, const uint32_t *slots, size_t n, unsigned percent)
{
	struct s3_object object;

	if (n != 1)
		return n > 0;
	s3_objects_get(v->objects, slots[0], &object);
	return (uint64_t)object.live * 100 < (uint64_t)object.blocks * percent;
}

/* What a source takes while it is read and moved, if all of it is in memory. */
static uint64_t source_bytes(const struct s3_volume *v, const struct s3_object *object)
{
	return object->bytes + (v->transforms ? (uint64_t)object->blocks << v->shift : 0) +
	       object->blocks * sizeof(struct piece);
}

static void free_source(struct source *s)
{
	free(s->raw);
	free(s->window);
	free(s->plain);
	s->raw = s->window = s->plain = NULL;
}

/* Forgets what a source has had in memory of it, and moves its window on. False: that was all. */
static bool next_window(struct source *s, uint32_t blocks)
{
	free(s->window);
	free(s->plain);
	s->window = s->plain = NULL;
	s->from = s->to;
	s->to = s->header.blocks - s->from > blocks ? s->from + blocks : s->header.blocks;
	return s->from < s->to;
}

/* Where the data of a block is stored, behind the header: the beginning of its unit. */
static uint64_t stored_at(const struct s3_volume *v, const struct source *s, uint32_t block)
{
	uint64_t at = (uint64_t)block << v->shift, stored = 0;

	if (!s->header.flags)
		return at;
	if (block == s->header.blocks)
		return s->header.data_bytes;
	for (uint32_t i = 0; i < at / S3_UNIT; i++)
		stored += s3_header_unit(&s->header, i).bytes;
	return stored;
}

/* ---- sources that cannot be read ----------------------------------------------------------- */

/* An object that is left alone for a while, taken out of the table's lists. */
struct s3_passed {
	uint32_t slot;
	uint64_t id;
	uint64_t until; /* ns, monotonic; 0: it may be tried */
};

/* Leaves a source alone that could not be read, which is told once. False: put it back. */
static bool pass_over(struct s3_volume *v, const struct source *s, int r)
{
	struct s3_passed *passed;
	size_t i = 0;

	/* A store out of reach says nothing about the object. */
	if (r == -ENOMEM || r == -ESHUTDOWN || s3_check_not_fenced(v))
		return false;
	while (i < v->n_passed && v->passed[i].id != s->object.id)
		i++;
	if (i == v->n_passed) {
		passed = realloc(v->passed, (v->n_passed + 1) * sizeof *passed);
		if (!passed)
			return false;
		v->passed = passed;
		v->passed[v->n_passed++] = (struct s3_passed){.id = s->object.id};
		backend_error(&v->host,
			"volume=%s: %s %s; it is not compacted; run a check, and restore the "
			"volume from a backup if it is damaged",
			v->name, s->key,
			r == -EIO && !s->req.result ? "is damaged" : s->req.message);
	}
	v->passed[i].slot = s->slot;
	v->passed[i].until = s3_now() + PASSED_NS;
	return true;
}

/* Those whose time has come may be compacted again; all: every one. */
static void readmit(struct s3_volume *v, bool all)
{
	for (size_t i = 0; i < v->n_passed; i++) {
		struct s3_passed *p = &v->passed[i];

		if (p->until && (all || s3_now() >= p->until)) {
			p->until = 0;
			s3_objects_put_back(v->objects, p->slot);
		}
	}
}

/* ---- a round ------------------------------------------------------------------------------- */

static void init_flight(struct flight *f)
{
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->landed, NULL);
}

static void end_flight(struct flight *f)
{
	pthread_cond_destroy(&f->landed);
	pthread_mutex_destroy(&f->lock);
}

/* Reads all sources at once and moves what is alive of those that are as they should be. */
static int compact_sources(struct s3_volume *v, struct round *round, bool passed[])
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < round->n_sources; i++) {
		struct source *s = &round->sources[i];

		s->length = s->object.bytes;
		r = begin_read(v, round, s, &s->raw, 0, s->length);
	}
	wait_all(&round->reads);
	for (size_t i = 0; r == 0 && i < round->n_sources; i++) {
		struct source *s = &round->sources[i];
		int read = s->req.result ? s->req.result : check_source(v, s);

		s->to = s->header.blocks;
		if (read == 0)
			read = use_source(v, round, (uint32_t)i);
		if (read) {
			passed[i] = pass_over(v, s, read);
			r = passed[i] ? 0 : read;
		}
	}
	return r ? r : move_pieces(v, round);
}

static int read_part(struct s3_volume *v, struct round *round, struct source *s, uint8_t **to,
	uint64_t offset, size_t length)
{
	int r = begin_read(v, round, s, to, offset, length);

	wait_all(&round->reads);
	return r ? r : s->req.result;
}

/* Moves an object that does not fit into the memory that there is, window by window. */
static int compact_large(struct s3_volume *v, struct round *round, bool *passed)
{
	struct source *s = &round->sources[0];
	uint64_t bytes = round->memory / 2 / (v->transforms ? 3 : 2);
	uint32_t blocks =
		(uint32_t)(bytes / S3_UNIT ? bytes / S3_UNIT : 1) * (uint32_t)(S3_UNIT >> v->shift);
	int r;

	s->length = s->object.header_bytes;
	r = read_part(v, round, s, &s->raw, 0, s->length);
	if (r == 0)
		r = check_source(v, s);
	while (r == 0 && next_window(s, blocks)) {
		uint64_t from = stored_at(v, s, s->from), to = stored_at(v, s, s->to);
		int moved = 0;

		round->n_pieces = 0;
		if (to > from)
			r = read_part(v, round, s, &s->window, s->header.header_bytes + from,
				(size_t)(to - from));
		if (r == 0)
			r = use_source(v, round, 0);
		if (r == 0)
			moved = move_pieces(v, round);
		if (moved)
			return moved;
	}
	if (r)
		*passed = pass_over(v, s, r);
	return *passed ? 0 : r;
}

/*
 * Moves what is alive in some sparse or small objects into new ones. How many objects, or negative
 * errno.
 */
static int compact(struct s3_volume *v, unsigned percent, bool small)
{
	uint32_t slots[GC_OBJECTS];
	bool passed[GC_OBJECTS] = {false}, worth;
	struct round *round = calloc(1, sizeof *round);
	size_t n =
		round ? s3_objects_take_sparse(v->objects, percent, small, slots, GC_OBJECTS) : 0;
	uint64_t bytes = 0;
	int r;

	if (!round)
		return -ENOMEM;
	init_flight(&round->reads);
	init_flight(&round->writes);
	n = keep_stored(v, slots, n);
	worth = worth_moving(v, slots, n, percent);
	r = worth ? s3_check_not_fenced(v) : 0;
	if (r == 0 && worth)
		round->memory = s3_cache_lend(v->cache, v->compact_memory);
	for (size_t i = 0; r == 0 && worth && i < n; i++) {
		struct source *s = &round->sources[round->n_sources];

		s->slot = slots[i];
		s3_objects_get(v->objects, s->slot, &s->object);
		bytes += source_bytes(v, &s->object);
		if (round->n_sources && bytes > round->memory / 2)
			break;
		round->n_sources++;
	}
	if (round->n_sources == 1 && bytes > round->memory / 2) {
		r = compact_large(v, round, passed);
	} else if (round->n_sources) {
		r = compact_sources(v, round, passed);
	}
	for (size_t i = 0; i < n; i++)
		if (!passed[i])
			s3_objects_put_back(v->objects, slots[i]);
	for (size_t i = 0; i < round->n_sources; i++)
		free_source(&round->sources[i]);
	n = round->n_sources;
	s3_cache_return(v->cache, round->memory);
	end_flight(&round->reads);
	end_flight(&round->writes);
	free(round->pieces);
	free(round);
	return r ? r : (int)n;
}

/* Compacts if too much of what is stored is garbage, or there are too many objects. */
static void compact_if_needed(struct s3_volume *v)
{
	struct s3_objects_totals t;
	bool small, sparse;

	s3_objects_totals(v->objects, &t);
	small = t.small > GC_SMALL + 2 * t.live / v->batch_blocks;
	/* What is dead goes without our help. */
	sparse = (t.live + t.held) * 100 < (t.blocks - t.dead_blocks) * GC_USED;
	if (small || sparse)
		compact(v, sparse ? GC_SPARSE : 0, small);
}

/* ---- garbage: orphans -------------------------------------------------------------------------
 */

struct sweep {
	struct s3_volume *v;
	int64_t before; /* what was stored later is left alone; s since 1970 */
};

/*
 * Deletes an object in gc/ that no log and no root knows: a round of ours, or of a writer before
 * us, ended between storing and entering it. No round is running: this is its thread.
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
	/* A deletion that arrives late must not meet an object of ours. */
	if (name.number >= v->next_gc)
		v->next_gc = name.number + 1;
	r = s3_check_not_fenced(v);
	if (r)
		return r;
	s3_failpoint(S3_FAIL_ORPHAN_DELETE_BEFORE);
	r = s3_volume_delete(v, listed->key, &req);
	if (r == 0)
		atomic_fetch_add(&v->stats.orphans, 1);
	return r;
}

static void sweep(struct s3_volume *v)
{
	struct sweep s = {.v = v, .before = time(NULL) - (int64_t)(v->gc_delay_ns / 1000000000)};
	struct s3_request req;

	s3_volume_list(v, "gc/", false, sweep_object, &s, &req);
	v->next_sweep_ns = s3_now() + SWEEP_NS;
}

/* ---- garbage: on demand -----------------------------------------------------------------------
 */

struct collection {
	void (*progress)(void *opaque, uint64_t done, uint64_t total);
	void *opaque;
	uint64_t total;	 /* bytes of garbage at the beginning */
	uint64_t mark;	 /* what died up to then is to go */
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

static void tell_progress(struct s3_volume *v, const struct collection *c)
{
	uint64_t left = garbage_bytes(v);

	if (c->progress)
		c->progress(c->opaque, left < c->total ? c->total - left : 0, c->total);
}

/* Under the lock. */
static bool checkpoint_due(const struct s3_volume *v)
{
	return v->frontier - v->checkpoint >= v->checkpoint_every;
}

static bool checkpoint_due_now(struct s3_volume *v)
{
	bool due;

	pthread_mutex_lock(&v->lock);
	due = checkpoint_due(v);
	pthread_mutex_unlock(&v->lock);
	return due;
}

static int order_checkpoint(struct s3_volume *v, void *opaque)
{
	(void)opaque;
	return s3_checkpoint(v);
}

/* A checkpoint after an empty object of the log, so that there is something new. */
static int order_new_checkpoint(struct s3_volume *v, void *opaque)
{
	int r = s3_log_mark(v, NULL);

	(void)opaque;
	return r ? r : s3_checkpoint(v);
}

/* Has two roots cover what has died. */
static int cover(struct s3_volume *v)
{
	int r = 0;

	for (int i = 0; r == 0 && i < 2; i++)
		r = s3_keeper_call(v, order_new_checkpoint, NULL);
	return r;
}

static bool is_stopping(struct s3_volume *v)
{
	bool stopping;

	pthread_mutex_lock(&v->lock);
	stopping = v->keeper_stopping;
	pthread_mutex_unlock(&v->lock);
	return stopping;
}

/* Compacts as long as it makes less of it, and has two roots cover what died of it. */
static int compact_all(struct s3_volume *v, void *opaque)
{
	struct collection *c = opaque;
	uint64_t blocks = UINT64_MAX, objects = UINT64_MAX;
	int r = s3_log_drain(v); /* what is only in memory cannot be moved */

	if (r)
		return r;
	c->total = c->total ? c->total : garbage_bytes(v);
	readmit(v, true);
	/* What is dead makes space first, if there is little. */
	while (!c->full || c->stored) {
		struct s3_objects_totals t;
		uint64_t alive;

		tell_progress(v, c);
		s3_objects_totals(v->objects, &t);
		c->stored = t.bytes;
		alive = t.blocks - t.dead_blocks;
		if (alive >= blocks && t.objects - t.dead >= objects)
			break;
		blocks = alive;
		objects = t.objects - t.dead;
		r = is_stopping(v) ? -ESHUTDOWN : compact(v, GC_SPARSE, t.small > 1);
		c->full = r == -ENOSPC;
		if (c->full) {
			s3_space_make(v, "the store has no space for a compaction; free space "
					 "there or raise the quota");
			break;
		}
		if (r < 0)
			return r;
		if (r == 0)
			break;
		r = s3_log_drain(v);
		if (r == 0 && checkpoint_due_now(v))
			r = s3_keeper_call(v, order_checkpoint, NULL);
		if (r)
			return r;
	}
	sweep(v);
	r = cover(v);
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

	c->done = collect_dead(v) < S3_DELETE_MAX && v->delete_limit >= c->mark;
	tell_progress(v, c);
	return 0;
}

int s3_volume_gc(struct s3_volume *v, void (*progress)(void *opaque, uint64_t done, uint64_t total),
	void *opaque)
{
	const struct timespec pause = {.tv_nsec = 100000000};
	struct collection c = {
		.progress = progress,
		.opaque = opaque,
		.full = atomic_load(&v->refused) == -ENOSPC,
	};
	uint64_t before;
	int r;

	/* Where there was no space for all of it there is some when what has died is gone. */
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
	} while (r == 0 && c.full && (!before || c.stored < before));
	return r;
}

/* ---- the thread ---------------------------------------------------------------------------- */

struct s3_order {
	struct s3_order *next;
	int (*run)(struct s3_volume *v, void *opaque);
	void *opaque;
	int result;
	bool done;
};

/* Has the thread that takes orders from *tail do something, and waits for it. */
static int call(struct s3_volume *v, struct s3_order ***tail, pthread_cond_t *work,
	int (*run)(struct s3_volume *v, void *opaque), void *opaque)
{
	struct s3_order order = {.run = run, .opaque = opaque, .result = -ESHUTDOWN};
	int r;

	if (!v->layout->has_log)
		return s3_volume_refuse(v, -EOPNOTSUPP,
			"volume=%s: has layout=direct, which can do nothing of the kind; copy it "
			"into "
			"a volume without that",
			v->name);
	r = v->backend.readonly ? -EROFS : v->layout->start(v);
	if (r)
		return r;
	pthread_mutex_lock(&v->lock);
	if (!v->keeper_stopping) {
		**tail = &order;
		*tail = &order.next;
		pthread_cond_signal(work);
		while (!order.done)
			pthread_cond_wait(&v->quiet, &v->lock);
	}
	pthread_mutex_unlock(&v->lock);
	return order.result;
}

int s3_keeper_call(struct s3_volume *v, int (*run)(struct s3_volume *v, void *opaque), void *opaque)
{
	return call(v, &v->orders_tail, &v->keeper_work, run, opaque);
}

int s3_collector_call(
	struct s3_volume *v, int (*run)(struct s3_volume *v, void *opaque), void *opaque)
{
	return call(v, &v->collections_tail, &v->collector_work, run, opaque);
}

/* Does what was ordered first. Under the lock. */
static void run_order(struct s3_volume *v, struct s3_order **orders, struct s3_order ***tail)
{
	struct s3_order *order = *orders;
	int r = v->keeper_stopping ? -ESHUTDOWN : atomic_load(&v->failed);

	*orders = order->next;
	if (!*orders)
		*tail = orders;
	if (r == 0) {
		pthread_mutex_unlock(&v->lock);
		r = order->run(v, order->opaque);
		pthread_mutex_lock(&v->lock);
	}
	order->result = r;
	order->done = true;
	pthread_cond_broadcast(&v->quiet);
}

/* Waits for work until due, ns. Under the lock. */
static void wait_until(struct s3_volume *v, pthread_cond_t *work, uint64_t due)
{
	struct timespec until = {
		.tv_sec = (time_t)(due / 1000000000), .tv_nsec = (long)(due % 1000000000)};

	pthread_cond_timedwait(work, &v->lock, &until);
}

void *s3_keeper(void *volume)
{
	struct s3_volume *v = volume;
	uint64_t next = 0; /* after a failure: not again at once */

	pthread_mutex_lock(&v->lock);
	while (!v->keeper_stopping) {
		bool due = checkpoint_due(v) && !atomic_load(&v->failed);

		if (v->orders) {
			run_order(v, &v->orders, &v->orders_tail);
		} else if (due && s3_now() >= next) {
			int r;

			pthread_mutex_unlock(&v->lock);
			r = s3_checkpoint(v);
			pthread_mutex_lock(&v->lock);
			next = r ? s3_now() + GC_INTERVAL_NS : 0;
		} else if (due) {
			wait_until(v, &v->keeper_work, next);
		} else if (v->prune && s3_now() >= v->prune->due && !atomic_load(&v->failed)) {
			pthread_mutex_unlock(&v->lock);
			delete_old_roots(v);
			pthread_mutex_lock(&v->lock);
		} else if (v->prune && !atomic_load(&v->failed)) {
			wait_until(v, &v->keeper_work, v->prune->due);
		} else {
			pthread_cond_wait(&v->keeper_work, &v->lock);
		}
	}
	while (v->orders)
		run_order(v, &v->orders, &v->orders_tail);
	pthread_mutex_unlock(&v->lock);
	return NULL;
}

/*
 * In a full store nothing is written any more, so that no root comes by itself that would let go
 * what has died: by a trim, say. dead: how many objects there were the last time.
 */
static void cover_if_full(struct s3_volume *v, uint64_t *dead)
{
	struct s3_objects_totals t;

	if (atomic_load(&v->refused) != -ENOSPC)
		return;
	s3_objects_totals(v->objects, &t);
	if (t.dead > *dead && cover(v))
		return;
	*dead = t.dead;
}

void *s3_collector(void *volume)
{
	struct s3_volume *v = volume;
	uint64_t next = s3_now() + GC_INTERVAL_NS, dead = 0;

	v->next_sweep_ns = s3_now() + v->gc_delay_ns;
	pthread_mutex_lock(&v->lock);
	while (!v->keeper_stopping) {
		if (v->collections) {
			run_order(v, &v->collections, &v->collections_tail);
		} else if (atomic_load(&v->failed)) {
			pthread_cond_wait(&v->collector_work, &v->lock);
		} else if (s3_now() >= next) {
			uint64_t began = s3_now();

			pthread_mutex_unlock(&v->lock);
			s3_space_tend(v);
			collect_dead(v);
			readmit(v, false);
			compact_if_needed(v);
			if (s3_now() >= v->next_sweep_ns)
				sweep(v);
			cover_if_full(v, &dead);
			next = s3_now() + (s3_now() - began) * GC_PAUSE + GC_INTERVAL_NS / 10;
			pthread_mutex_lock(&v->lock);
		} else {
			wait_until(v, &v->collector_work, next);
		}
	}
	while (v->collections)
		run_order(v, &v->collections, &v->collections_tail);
	pthread_mutex_unlock(&v->lock);
	return NULL;
}
