/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/admin/verify.h"
#include "backends/s3/admin/verify_roots.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/snapstore.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/recovery/recovery.h"
#include "backends/s3/state/cache.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

/* Objects looked at at once. */
#define WORKERS 8
/* Bytes may have been changed on the way: so often an object is read before it counts as damaged.
 */
#define ATTEMPTS 3
/* Runs looked up at once. */
#define RUNS 64

/* One that is not as it was written. */
struct damaged {
	uint32_t slot; /* pinned */
	uint32_t blocks;
	bool *bad; /* of each block */
	bool other_size;
	bool always; /* to be reported although no block that is in use is concerned */
	bool own;    /* the newest root needs it */
	bool reported;
	char key[S3_KEY_MAX + 1];
	char reason[192];
};

struct candidate {
	uint64_t id;
	uint32_t bytes;
	uint8_t origin;
	const struct s3_verify_part *part; /* or NULL: an object with data */
};

struct run {
	struct s3_volume *v;
	struct s3_verify *verify;
	uint64_t frontier;
	struct candidate *candidates;
	size_t n, room;
	uint64_t total;	  /* bytes */
	uint64_t largest; /* of an object */
	uint64_t memory;  /* bytes that the cache has lent */

	pthread_mutex_t lock;
	pthread_cond_t freed;
	/* Below: under it. */
	size_t next;
	uint64_t done;
	uint64_t used; /* of the memory; one object may be larger */
	int result;
	struct damaged **damaged;
	size_t n_damaged;
};

static int enter(struct run *run, const struct candidate *candidate)
{
	if (run->n == run->room) {
		size_t room = run->room ? 2 * run->room : 1024;
		struct candidate *more = realloc(run->candidates, room * sizeof *more);

		if (!more)
			return -ENOMEM;
		run->candidates = more;
		run->room = room;
	}
	run->candidates[run->n++] = *candidate;
	run->total += candidate->bytes;
	if (run->largest < candidate->bytes)
		run->largest = candidate->bytes;
	return 0;
}

static int collect(void *opaque, uint32_t slot, const struct s3_object *o)
{
	struct run *run = opaque;

	(void)slot;
	/* The table of a snapshot also has what only older ones hold. */
	if (o->live == 0 && (o->held == 0 || run->v->of_snapshot))
		return 0;
	/* Not yet uploaded. */
	if (!o->origin && !(o->id & S3_GC) && o->id > run->frontier)
		return 0;
	return enter(run, &(struct candidate){.id = o->id, .bytes = o->bytes, .origin = o->origin});
}

/* ---- one object ------------------------------------------------------------------- */

/* Blocks that a checksum covers, from first on. */
static void mark(const struct damaged *d, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count && i < d->blocks; i++)
		d->bad[i] = true;
}

/* Compares what was read with its checksums, of blocks or units. How many differ. */
static uint32_t compare(const struct s3_volume *v, const struct damaged *d,
	const struct s3_object_header *h, const uint8_t *data, uint64_t length)
{
	uint32_t per_unit = h->flags ? S3_UNIT >> v->shift : 1, wrong = 0;
	uint64_t at = h->header_bytes;

	for (uint32_t i = 0; i < h->n_crc; i++) {
		struct s3_unit unit = {.bytes = v->block_size};

		if (h->flags)
			unit = s3_header_unit(h, i);
		else
			unit.crc = s3_header_crc(h, i);
		if (at + unit.bytes > length || s3_crc32c(0, data + at, unit.bytes) != unit.crc) {
			mark(d, i * per_unit, per_unit);
			wrong++;
		}
		at += unit.bytes;
	}
	return wrong;
}

/* Reads it from the store. 0; -ENOENT, which is d's reason; or what the store does not tell. */
static int fetch(
	struct s3_volume *v, struct damaged *d, void *data, size_t bytes, struct s3_request *req)
{
	int r = s3_volume_get(v, d->key, data, bytes, req);

	if (r == -ENOENT)
		snprintf(d->reason, sizeof d->reason, "is missing");
	else if (r)
		backend_error(
			&v->host, "volume=%s: cannot read %s: %s", v->name, d->key, req->message);
	return r;
}

/* That is damage, not an error. */
static bool is_missing(int *r)
{
	bool yes = *r == -ENOENT;

	*r = yes ? 0 : *r;
	return yes;
}

/* One look. False: as it should be. *r: not 0 when the store does not tell. */
static bool look(struct s3_volume *v, const struct s3_object *o, const uint8_t *uuid,
	struct damaged *d, void *data, int *r)
{
	struct s3_object_header header;
	struct s3_request req;
	enum s3_check check;
	uint32_t wrong;

	*r = fetch(v, d, data, o->bytes, &req);
	if (*r) {
		mark(d, 0, d->blocks);
		return is_missing(r);
	}
	check = s3_header_decode(data, req.bytes, uuid, &header);
	if (check == S3_GOOD && (header.id != o->id || header.blocks != d->blocks))
		check = S3_INVALID;
	if (check != S3_GOOD) {
		mark(d, 0, d->blocks);
		snprintf(d->reason, sizeof d->reason, "%s", s3_check_text(check));
		return true;
	}
	wrong = compare(v, d, &header, data, req.bytes);
	d->other_size = req.object_size != o->bytes;
	if (d->other_size)
		snprintf(d->reason, sizeof d->reason, "has %" PRIu64 " bytes instead of %" PRIu32,
			req.object_size, o->bytes);
	else if (wrong)
		snprintf(d->reason, sizeof d->reason, "has wrong checksums: %" PRIu32, wrong);
	return wrong || d->other_size;
}

static void free_damaged(struct s3_volume *v, struct damaged *d)
{
	if (d->slot != S3_NO_SLOT)
		s3_objects_unpin(v->objects, d->slot);
	free(d->bad);
	free(d);
}

/* Keeps d, which is freed otherwise. */
static int keep(struct run *run, struct damaged *d)
{
	struct damaged **more;
	int r = -ENOMEM;

	pthread_mutex_lock(&run->lock);
	more = realloc(run->damaged, (run->n_damaged + 1) * sizeof(*more));
	if (more) {
		run->damaged = more;
		more[run->n_damaged++] = d;
		r = 0;
	}
	pthread_mutex_unlock(&run->lock);
	if (r)
		free_damaged(run->v, d);
	return r;
}

/* Checks the object in slot, which is pinned, and unpins it. */
static int verify_object(struct run *run, uint32_t slot, const struct s3_object *o)
{
	struct s3_volume *v = run->v;
	struct damaged *d = calloc(1, sizeof *d);
	const uint8_t *uuid = s3_volume_origin_uuid(v, o->origin);
	void *data = malloc(o->bytes);
	bool bad = false;
	int r = 0;

	if (!d) {
		free(data);
		s3_objects_unpin(v->objects, slot);
		return -ENOMEM;
	}
	d->slot = slot;
	d->blocks = o->blocks;
	d->bad = calloc(o->blocks ? o->blocks : 1, sizeof *d->bad);
	if (!data || !d->bad)
		r = -ENOMEM;
	s3_volume_origin_key(v, o->origin, o->id, d->key);
	for (int i = 0; r == 0 && i < ATTEMPTS && (i == 0 || bad); i++) {
		memset(d->bad, 0, o->blocks * sizeof *d->bad);
		bad = look(v, o, uuid, d, data, &r);
	}
	free(data);
	/* Snapshots, or recovery, may stumble over it. */
	d->always = o->held || d->other_size;
	if (r == 0 && bad)
		return keep(run, d);
	free_damaged(v, d);
	return r;
}

/* ---- what the map is made of ---------------------------------------------------------- */

/* Something of the map that is damaged. NULL: no memory. */
static struct damaged *new_damaged(bool own)
{
	struct damaged *d = calloc(1, sizeof *d);

	if (d) {
		d->slot = S3_NO_SLOT;
		d->always = true;
		d->own = own;
	}
	return d;
}

/* One look at a region or summary, into data. False: as it should be. *r: as look()'s. */
static bool look_at_part(
	struct s3_volume *v, const struct s3_root_part *part, struct damaged *d, void *data, int *r)
{
	struct s3_request req;

	*r = fetch(v, d, data, part->bytes, &req);
	if (*r)
		return is_missing(r);
	if (req.object_size != part->bytes)
		snprintf(d->reason, sizeof d->reason, "has %" PRIu64 " bytes instead of %" PRIu32,
			req.object_size, part->bytes);
	else if (s3_crc32c(0, data, part->bytes) != part->crc)
		snprintf(d->reason, sizeof d->reason, "has a wrong checksum");
	else
		return false;
	return true;
}

static int verify_part(struct run *run, const struct s3_verify_part *part)
{
	struct damaged *d = new_damaged(part->own);
	void *data = malloc(part->part.bytes);
	int r = d && data ? 0 : -ENOMEM;
	bool bad = false;

	if (d)
		s3_verify_part_key(run->v, part, d->key);
	for (int i = 0; r == 0 && i < ATTEMPTS && (i == 0 || bad); i++)
		bad = look_at_part(run->v, &part->part, d, data, &r);
	free(data);
	if (r == 0 && bad)
		return keep(run, d);
	free(d);
	return r;
}

static int lose_root(void *opaque, const char *key, const char *reason, bool own)
{
	struct damaged *d = new_damaged(own);

	if (!d)
		return -ENOMEM;
	strcpy(d->key, key);
	snprintf(d->reason, sizeof d->reason, "%s", reason);
	return keep(opaque, d);
}

/* What has been found of a part. NULL: nothing. */
static struct damaged *find_part(const struct run *run, const struct s3_verify_part *part)
{
	char key[S3_KEY_MAX + 1];

	s3_verify_part_key(run->v, part, key);
	for (size_t i = 0; i < run->n_damaged; i++)
		if (strcmp(run->damaged[i]->key, key) == 0)
			return run->damaged[i];
	return NULL;
}

static void add_reason(struct damaged *d, const char *text, const char *name)
{
	size_t used = strlen(d->reason);

	snprintf(d->reason + used, sizeof d->reason - used, "; %s%s", text, name);
}

static void need_part_again(void *opaque, const struct s3_verify_part *part, const char *snapshot)
{
	struct damaged *d = find_part(opaque, part);

	if (d)
		add_reason(d, "and snapshot ", snapshot);
}

/* ---- all of them -------------------------------------------------------------------- */

static int verify_candidate(struct run *run, const struct candidate *c)
{
	struct s3_volume *v = run->v;
	uint32_t slot;
	struct s3_object object;

	if (c->part)
		return verify_part(run, c->part);
	slot = s3_objects_find_pinned(v->objects, c->origin, c->id);
	if (slot == S3_NO_SLOT)
		return 0;
	s3_objects_get(v->objects, slot, &object);
	/* It died meanwhile. */
	if (object.live == 0 && object.held == 0) {
		s3_objects_unpin(v->objects, slot);
		return 0;
	}
	return verify_object(run, slot, &object);
}

static void *worker(void *opaque)
{
	struct run *run = opaque;
	struct s3_verify *verify = run->verify;

	pthread_mutex_lock(&run->lock);
	while (run->result == 0 && run->next < run->n) {
		const struct candidate *c = &run->candidates[run->next++];
		int r = verify->stop && atomic_load(verify->stop) ? -ECANCELED : 0;

		while (run->used && run->used + c->bytes > run->memory)
			pthread_cond_wait(&run->freed, &run->lock);
		run->used += c->bytes;
		pthread_mutex_unlock(&run->lock);
		if (r == 0)
			r = verify_candidate(run, c);
		pthread_mutex_lock(&run->lock);
		run->used -= c->bytes;
		pthread_cond_broadcast(&run->freed);
		if (run->result == 0)
			run->result = r;
		if (r)
			break;
		run->done += c->bytes;
		verify->objects++;
		verify->bytes += c->bytes;
		if (verify->progress)
			verify->progress(verify->opaque, run->done, run->total);
	}
	pthread_mutex_unlock(&run->lock);
	return NULL;
}

static int by_slot(const void *a, const void *b)
{
	const struct damaged *x = *(struct damaged *const *)a, *y = *(struct damaged *const *)b;

	return (x->slot > y->slot) - (x->slot < y->slot);
}

static struct damaged *find(const struct run *run, uint32_t slot)
{
	struct damaged key = {.slot = slot}, *p = &key, **found;

	if (slot == S3_NO_SLOT)
		return NULL;
	found = bsearch(&p, run->damaged, run->n_damaged, sizeof(p), by_slot);
	return found ? *found : NULL;
}

/* Tells a range; those that touch become one. A NULL d ends the last one. */
static void tell(struct run *run, struct s3_damage *range, struct damaged *d, uint64_t offset,
	uint64_t length)
{
	if (d && range->length && range->key == d->key && range->offset + range->length == offset) {
		range->length += length;
		return;
	}
	if (range->length) {
		run->verify->damaged_bytes += range->length;
		run->verify->damage(run->verify->opaque, range);
	}
	*range = (struct s3_damage){.offset = offset, .length = d ? length : 0};
	if (d) {
		d->reported = true;
		range->key = d->key;
		range->reason = d->reason;
	}
}

/* Where in the volume is what is damaged? */
static void tell_ranges(struct run *run)
{
	struct s3_volume *v = run->v;
	uint64_t blocks = s3_map_blocks(v->map), lba = 0;
	struct s3_damage range = {0};
	struct s3_run runs[RUNS];

	qsort(run->damaged, run->n_damaged, sizeof(*run->damaged), by_slot);
	while (lba < blocks) {
		size_t n = s3_map_lookup(v->map, lba, blocks - lba, false, runs, RUNS);

		for (size_t i = 0; i < n; i++) {
			struct damaged *d = find(run, runs[i].slot);

			for (uint64_t b = 0; d && b < runs[i].count; b++)
				if (d->bad[runs[i].offset + b])
					tell(run, &range, d, (runs[i].lba + b) << v->shift,
						v->block_size);
		}
		lba = runs[n - 1].lba + runs[n - 1].count;
	}
	tell(run, &range, NULL, 0, 0);
	for (size_t i = 0; i < run->n_damaged; i++) {
		struct damaged *d = run->damaged[i];

		if (!d->reported && d->always) {
			d->reported = true;
			run->verify->damage(run->verify->opaque,
				&(struct s3_damage){.key = d->key, .reason = d->reason});
		}
		/* Otherwise only data that is no longer needed is damaged. */
		run->verify->damaged_objects += d->reported;
	}
}

/* What a reader has found may be what a writer has deleted since it opened the volume. Reported. */
static int check_outdated(struct s3_volume *v)
{
	const struct s3_root_snapshot *last =
		v->n_snapshots ? &v->snapshots[v->n_snapshots - 1] : NULL;
	uint64_t seq = 0;
	int r;

	if (v->of_snapshot) {
		r = s3_snapshot_find_stored(v, last->name, &seq);
		if (r || seq == last->seq)
			return r;
		return s3_volume_refuse(v, -ENOENT,
			"snapshot=%s: has been deleted since it was opened", last->name);
	}
	r = s3_is_outdated(v, v->newest_root);
	return r <= 0 ? r
		      : s3_volume_refuse(v, -EBUSY,
				"volume=%s: a server has changed it since this check began, and "
				"may have deleted what was missing; give control= of that server, "
				"or stop it, and check again",
				v->name);
}

/* Looks at what has been entered, by several threads. */
static int look_at_all(struct run *run)
{
	struct s3_volume *v = run->v;
	pthread_t threads[WORKERS];
	/* As much again is left for compaction. */
	uint64_t wanted = WORKERS * run->largest < v->cache_bytes / 4 ? WORKERS * run->largest
								      : v->cache_bytes / 4;
	size_t n = 0, left = run->n - run->next;
	int r = 0;

	run->memory = s3_cache_lend(v->cache, wanted);
	while (r == 0 && n < WORKERS && n < left) {
		r = pthread_create(&threads[n], NULL, worker, run);
		n += r == 0;
	}
	if (r > 0 && n == 0)
		run->result = -r;
	while (n)
		pthread_join(threads[--n], NULL);
	s3_cache_return(v->cache, run->memory);
	return run->result;
}

/* ---- the maps: a root after the other, so that checkpoints and commands come between --------- */

struct maps {
	struct run *run;
	struct s3_verify_parts parts;
	struct s3_root_snapshot *snapshots;
	uint32_t n_snapshots;
	uint32_t next; /* of them */
};

static bool is_stopped(const struct run *run)
{
	return run->verify->stop && atomic_load(run->verify->stop);
}

/* Looks at the parts that have come. */
static int look_at_parts(struct maps *m)
{
	struct run *run = m->run;
	size_t objects = run->n, before = run->n_damaged;
	int r = 0;

	run->next = run->n;
	for (size_t i = 0; r == 0 && i < m->parts.n; i++) {
		struct s3_verify_part *part = &m->parts.all[i];

		if (!part->looked)
			r = enter(
				run, &(struct candidate){.part = part, .bytes = part->part.bytes});
	}
	if (r == 0)
		r = look_at_all(run);
	for (size_t i = 0; r == 0 && i < m->parts.n; i++) {
		struct s3_verify_part *part = &m->parts.all[i];

		if (!part->looked && run->n_damaged > before)
			part->damaged = find_part(run, part) != NULL;
		part->looked = true;
	}
	run->n = objects;
	run->next = 0;
	return r;
}

/*
 * The map in memory is whole, and becomes a full root that needs nothing of those before it: what
 * cannot be read of them is replaced.
 */
static void replace_map(struct run *run)
{
	struct s3_volume *v = run->v;
	const char *outcome = "the store takes nothing now: check again when it does";
	int r;

	if (s3_check_not_fenced(v))
		return;
	/* In a full store such a root would take the room of those that free some. */
	if (!atomic_load(&v->refused)) {
		s3_roots_forget(v);
		r = s3_checkpoint_with(v, NULL);
		outcome = r ? "the next checkpoint does not need it"
			    : "a new checkpoint does not need it";
	}
	for (size_t i = 0; i < run->n_damaged; i++)
		if (run->damaged[i]->own)
			add_reason(run->damaged[i], outcome, "");
}

/* The newest root. */
static int check_own_map(struct s3_volume *v, void *opaque)
{
	struct maps *m = opaque;
	bool own = false;
	int r = s3_verify_own_parts(v, &m->parts);

	if (r == 0)
		r = look_at_parts(m);
	for (size_t i = 0; i < m->run->n_damaged; i++)
		own |= m->run->damaged[i]->own;
	if (r == 0 && own && !v->backend.readonly && atomic_load(&v->failed) == 0)
		replace_map(m->run);
	if (r || !v->n_snapshots)
		return r;
	m->snapshots = calloc(v->n_snapshots, sizeof *m->snapshots);
	if (!m->snapshots)
		return -ENOMEM;
	m->n_snapshots = v->n_snapshots;
	memcpy(m->snapshots, v->snapshots, m->n_snapshots * sizeof *m->snapshots);
	/* Open as a snapshot it knows those before it, which may have been deleted since. */
	m->next = v->of_snapshot ? m->n_snapshots - 1 : 0;
	return 0;
}

/* The next snapshot, if there still is. */
static int check_snapshot_map(struct s3_volume *v, void *opaque)
{
	struct maps *m = opaque;
	const struct s3_root_snapshot *snapshot = &m->snapshots[m->next++];
	bool there = false;
	int r;

	for (uint32_t i = 0; i < v->n_snapshots; i++)
		there |= v->snapshots[i].seq == snapshot->seq;
	if (!there)
		return 0;
	r = s3_verify_snapshot_parts(v, &m->parts, snapshot);
	return r ? r : look_at_parts(m);
}

/* By the keeper, so that no checkpoint comes or goes meanwhile. A failed volume makes none. */
static int call(
	struct s3_volume *v, int (*check)(struct s3_volume *v, void *opaque), struct maps *m)
{
	if (is_stopped(m->run))
		return -ECANCELED;
	return v->backend.readonly || atomic_load(&v->failed) ? check(v, m)
							      : s3_keeper_call(v, check, m);
}

static int check_maps(struct run *run)
{
	struct maps m = {
		.run = run,
		.parts = {.lost = lose_root, .again = need_part_again, .opaque = run},
	};
	int r = call(run->v, check_own_map, &m);

	while (r == 0 && m.next < m.n_snapshots)
		r = call(run->v, check_snapshot_map, &m);
	run->verify->objects += m.parts.roots;
	free(m.snapshots);
	free(m.parts.all);
	return r;
}

int s3_verify(struct s3_volume *v, struct s3_verify *verify)
{
	struct run run = {.v = v,
		.verify = verify,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.freed = PTHREAD_COND_INITIALIZER};

	pthread_mutex_lock(&v->lock);
	run.frontier = v->frontier;
	pthread_mutex_unlock(&v->lock);
	run.result = s3_objects_walk(v->objects, collect, &run);
	if (run.result == 0)
		run.result = check_maps(&run);
	if (run.result == 0)
		look_at_all(&run);
	/* What another writer has deleted or replaced since it took over is not damaged. */
	if (run.result == 0 && run.n_damaged && !v->backend.readonly) {
		s3_check_not_fenced(v);
		if (atomic_load(&v->fenced))
			run.result = -EIO;
	}
	if (run.result == 0 && run.n_damaged && v->backend.readonly)
		run.result = check_outdated(v);
	if (run.result == 0 && run.n_damaged)
		tell_ranges(&run);
	while (run.n_damaged)
		free_damaged(v, run.damaged[--run.n_damaged]);
	free(run.damaged);
	free(run.candidates);
	if (run.result == -ENOMEM || run.result == -EAGAIN)
		backend_error(&v->host, "volume=%s: %s", v->name, strerror(-run.result));
	return run.result;
}
