/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/admin/verify.h"
#include "backends/s3/admin/verify_damage.h"
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
/* What a look at a header takes of the memory, unless the header is larger. */
#define HEADER_BYTES (16u << 10)

struct candidate {
	uint64_t id;
	uint32_t bytes;
	uint8_t origin;
	bool header;			   /* only that is looked at: of an object of the log */
	const struct s3_verify_part *part; /* or NULL */
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
	bool log_damaged; /* where the next open needs it */
	struct s3_damaged_list damaged;
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
static void mark(const struct s3_damaged *d, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count && i < d->blocks; i++)
		d->bad[i] = true;
}

/* Compares what was read with its checksums, of blocks or units. How many differ. */
static uint32_t compare(const struct s3_volume *v, const struct s3_damaged *d,
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

/* Notes how a GET has ended: -ENOENT is d's reason, other errors the store's. */
static int note_get(struct s3_volume *v, struct s3_damaged *d, int r, const struct s3_request *req)
{
	if (r == -ENOENT)
		snprintf(d->reason, sizeof d->reason, "is missing");
	else if (r && r != -ENOMEM)
		backend_error(
			&v->host, "volume=%s: cannot read %s: %s", v->name, d->key, req->message);
	return r;
}

/* Reads it from the store. 0; -ENOENT, which is d's reason; or what the store does not tell. */
static int fetch(
	struct s3_volume *v, struct s3_damaged *d, void *data, size_t bytes, struct s3_request *req)
{
	return note_get(v, d, s3_volume_get(v, d->key, data, bytes, req), req);
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
	struct s3_damaged *d, void *data, int *r)
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

/* Checks the object in slot, which is pinned, and unpins it. */
static int verify_object(struct run *run, uint32_t slot, const struct s3_object *o)
{
	struct s3_volume *v = run->v;
	struct s3_damaged *d = calloc(1, sizeof *d);
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
		return s3_damaged_keep_object(&run->damaged, d, o);
	s3_damaged_free(v, d);
	return r;
}

/* ---- what the map is made of ---------------------------------------------------------- */

/* Something of the map that is damaged. NULL: no memory. */
static struct s3_damaged *new_damaged(bool own)
{
	struct s3_damaged *d = calloc(1, sizeof *d);

	if (d) {
		d->slot = S3_NO_SLOT;
		d->always = true;
		d->own = own;
	}
	return d;
}

/* One look at a region or summary, into data. False: as it should be. *r: as look()'s. */
static bool look_at_part(struct s3_volume *v, const struct s3_root_part *part, struct s3_damaged *d,
	void *data, int *r)
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
	struct s3_damaged *d = new_damaged(part->own);
	void *data = malloc(part->part.bytes);
	int r = d && data ? 0 : -ENOMEM;
	bool bad = false;

	if (d)
		s3_verify_part_key(run->v, part, d->key);
	for (int i = 0; r == 0 && i < ATTEMPTS && (i == 0 || bad); i++)
		bad = look_at_part(run->v, &part->part, d, data, &r);
	free(data);
	if (r == 0 && bad)
		return s3_damaged_keep(&run->damaged, d);
	free(d);
	return r;
}

static int lose_root(void *opaque, const char *key, const char *reason, bool own)
{
	struct s3_damaged *d = new_damaged(own);

	if (!d)
		return -ENOMEM;
	strcpy(d->key, key);
	snprintf(d->reason, sizeof d->reason, "%s", reason);
	return s3_damaged_keep(&((struct run *)opaque)->damaged, d);
}

/* ---- the log behind the newest root --------------------------------------------------- */

/* One look at the header of a log object. As look_at_part(). */
static bool look_at_header(struct s3_volume *v, uint64_t seq, struct s3_damaged *d, int *r)
{
	struct s3_object_header header;
	struct s3_request req;
	enum s3_check check;
	void *data;

	*r = note_get(v, d, s3_volume_get_header(v, seq, &data, &header, &check, &req), &req);
	if (*r)
		return is_missing(r);
	free(data);
	if (check == S3_GOOD && header.id != seq)
		check = S3_INVALID;
	if (check != S3_GOOD)
		snprintf(d->reason, sizeof d->reason, "%s", s3_check_text(check));
	else if (req.object_size != (uint64_t)header.header_bytes + header.data_bytes)
		snprintf(d->reason, sizeof d->reason, "has another length than its header says");
	else
		return false;
	return true;
}

/* What the table knows of a log object; of one without data, which is not in it, nothing. */
static struct s3_object known_of(struct s3_volume *v, uint64_t seq)
{
	struct s3_object object = {0};
	uint32_t slot = s3_objects_find_pinned(v->objects, 0, seq);

	if (slot != S3_NO_SLOT) {
		s3_objects_get(v->objects, slot, &object);
		s3_objects_unpin(v->objects, slot);
	}
	return object;
}

/* The next open needs it even if nobody needs its blocks. Those that are needed tell of it. */
static int verify_header(struct run *run, uint64_t seq)
{
	struct s3_volume *v = run->v;
	struct s3_damaged *d = new_damaged(true);
	struct s3_object object = known_of(v, seq);
	bool bad = false;
	int r = d ? 0 : -ENOMEM;

	if (d)
		s3_volume_object_key(v, seq, d->key);
	for (int i = 0; r == 0 && i < ATTEMPTS && (i == 0 || bad); i++)
		bad = look_at_header(v, seq, d, &r);
	if (r == 0 && bad) {
		pthread_mutex_lock(&run->lock);
		run->log_damaged = true;
		pthread_mutex_unlock(&run->lock);
	}
	if (r == 0 && bad && object.live == 0 && object.held == 0)
		return s3_damaged_keep_object(&run->damaged, d, &object);
	free(d);
	return r;
}

/* What a reader missed when it opened the volume. */
static int lose_end(struct run *run)
{
	struct s3_damaged *d = new_damaged(true);

	if (!d)
		return -ENOMEM;
	s3_volume_object_key(run->v, run->v->applied + 1, d->key);
	snprintf(d->reason, sizeof d->reason,
		"is missing, although it had been stored before object %" PRIu64
		" of the log was written; no server can open the volume",
		run->v->witness);
	return s3_damaged_keep(&run->damaged, d);
}

/* ---- what has been found --------------------------------------------------------------- */

/* What has been found of a part. NULL: nothing. */
static struct s3_damaged *find_part(const struct run *run, const struct s3_verify_part *part)
{
	char key[S3_KEY_MAX + 1];

	s3_verify_part_key(run->v, part, key);
	for (size_t i = 0; i < run->damaged.n; i++)
		if (strcmp(run->damaged.all[i]->key, key) == 0)
			return run->damaged.all[i];
	return NULL;
}

static void add_reason(struct s3_damaged *d, const char *text, const char *name)
{
	size_t used = strlen(d->reason);

	snprintf(d->reason + used, sizeof d->reason - used, "; %s%s", text, name);
}

static void need_part_again(void *opaque, const struct s3_verify_part *part, const char *snapshot)
{
	struct s3_damaged *d = find_part(opaque, part);

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
	if (c->header)
		return verify_header(run, c->id);
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
		verify->objects += !c->header;
		verify->bytes += c->header ? 0 : c->bytes;
		if (verify->progress)
			verify->progress(verify->opaque, run->done, run->total);
	}
	pthread_mutex_unlock(&run->lock);
	return NULL;
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
	size_t objects = run->n, before = run->damaged.n;
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

		if (!part->looked && run->damaged.n > before)
			part->damaged = find_part(run, part) != NULL;
		part->looked = true;
	}
	run->n = objects;
	run->next = 0;
	return r;
}

/* The headers that an open applies to the newest root. */
static int look_at_log(struct run *run)
{
	size_t objects = run->n;
	int r = 0;

	run->next = run->n;
	for (uint64_t seq = run->v->checkpoint + 1; r == 0 && seq <= run->frontier; seq++) {
		uint32_t bytes = known_of(run->v, seq).header_bytes;

		bytes = bytes > HEADER_BYTES ? bytes : HEADER_BYTES;
		r = enter(run, &(struct candidate){.id = seq, .bytes = bytes, .header = true});
	}
	if (r == 0)
		r = look_at_all(run);
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
	for (size_t i = 0; i < run->damaged.n; i++)
		if (run->damaged.all[i]->own)
			add_reason(run->damaged.all[i], outcome, "");
}

/* The newest root, and the log behind it. */
static int check_own_map(struct s3_volume *v, void *opaque)
{
	struct maps *m = opaque;
	bool own;
	int r = s3_verify_own_parts(v, &m->parts);

	if (r == 0)
		r = look_at_parts(m);
	if (r == 0 && !v->of_snapshot)
		r = look_at_log(m->run);
	if (r == 0 && v->witness)
		r = lose_end(m->run);
	own = m->run->log_damaged;
	for (size_t i = 0; i < m->run->damaged.n; i++)
		own |= m->run->damaged.all[i]->own;
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
		.freed = PTHREAD_COND_INITIALIZER,
		.damaged = {.v = v, .verify = verify, .lock = PTHREAD_MUTEX_INITIALIZER}};

	pthread_mutex_lock(&v->lock);
	run.frontier = v->frontier;
	pthread_mutex_unlock(&v->lock);
	run.result = s3_objects_walk(v->objects, collect, &run);
	if (run.result == 0)
		run.result = check_maps(&run);
	if (run.result == 0)
		look_at_all(&run);
	/* What another writer has deleted or replaced since it took over is not damaged. */
	if (run.result == 0 && run.damaged.n && !v->backend.readonly) {
		s3_check_not_fenced(v);
		if (atomic_load(&v->fenced))
			run.result = -EIO;
	}
	if (run.result == 0 && run.damaged.n && v->backend.readonly)
		run.result = check_outdated(v);
	if (run.result == 0 && run.damaged.n)
		s3_damaged_tell(&run.damaged);
	s3_damaged_drop(&run.damaged);
	free(run.candidates);
	if (run.result == -ENOMEM || run.result == -EAGAIN)
		backend_error(&v->host, "volume=%s: %s", v->name, strerror(-run.result));
	return run.result;
}
