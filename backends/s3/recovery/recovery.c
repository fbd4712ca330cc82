/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * From the store to the map: the newest root, then the log after it up to the
 * first object that is not there. The state is what was acknowledged up to some
 * moment, and holds everything that was flushed. Then the fence: an object of
 * the log with a higher epoch, after which no older writer can complete a flush.
 * Then the roots are looked at once more: a writer at work deletes what only older ones need.
 *
 * Only a store's own "no such key" ends the log. Every other failure ends the
 * open. So does an object behind that end which was built when what is missing
 * there had been stored: nothing is then lost in silence that had been flushed.
 * An object of a lower epoch than its predecessor was left by a writer
 * that had been fenced: it counts as absent, and gives way when its number is used.
 *
 * A snapshot is there when its own root is. One that no root of the volume knows, although it is
 * younger, is taken when the log has been replayed up to it; one that is older was being deleted.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backends/s3/base/failpoint.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/log/writeback.h"
#include "backends/s3/recovery/parts.h"

/* Headers asked for at once, and how much of each object first. */
#define WINDOW	   64
#define FIRST_READ (16u << 10)
/* For changes of the map that summaries bring: at most, of what the cache does not have yet. */
#define BATCH_BYTES (64u << 20)
/* Seconds that a volume that is closed takes to say so. */
#define CLEAN_DEADLINE 5

/* Threads that load regions, for each so many bytes of them one. */
#define LOADERS	     4u
#define LOADER_BYTES (1u << 20)

/* How often the log may grow while its end is looked for, before its writer is stopped... */
#define PATIENCE 2
/* ...and windows full of headers without an end that make it likely that there is one at work. */
#define ENDLESS 16
/* How far behind the known end of the log it is stopped, at first and at most. */
#define AHEAD	  16
#define AHEAD_MAX (1u << 20)

/* What attempt() and its parts answer besides errors: begin with another root. */
#define AGAIN 1

/* ---- records ---------------------------------------------------------------------- */

struct s3_recovery {
	struct s3_volume *v;
	uint32_t slot; /* of the log object whose records are applied */
	/* GC objects that it has brought: as many as its header has room for. */
	uint32_t *gc;
	size_t n_gc, room_gc;
	uint64_t last_epoch;
	bool clean;	      /* the last object says that nothing comes after it */
	uint64_t newest_root; /* frontier of the newest one that is there, usable or not */
	uint64_t blocks;      /* that the root said the volume had */
	/* Snapshots to be taken on the way. */
	struct s3_root_snapshot *adopt;
	size_t n_adopt;
	struct s3_chain chain;
	struct s3_map_batch *batch; /* takes the changes of the map; NULL: it is changed at once */
	bool fenced;		    /* the end of the log is ours */
	bool mine;		    /* the last object is our fence */
	/* Below: of all attempts. */
	bool readonly;
	uint64_t epoch; /* of our fence, which may be there; 0: none yet */
	uint64_t ahead; /* of our fences ahead; 0: none */
	struct window *window;
};

static void seal_objects(struct s3_recovery *p, uint64_t seq)
{
	if (p->slot != S3_NO_SLOT)
		s3_objects_seal(p->v->objects, p->slot, seq);
	for (size_t i = 0; i < p->n_gc; i++)
		s3_objects_seal(p->v->objects, p->gc[i], seq);
	p->slot = S3_NO_SLOT;
	p->n_gc = 0;
}

static int apply_header(void *opaque, const struct s3_object_header *header)
{
	struct s3_recovery *p = opaque;
	struct s3_volume *v = p->v;

	seal_objects(p, v->applied);
	v->log_bytes_since_full += header->header_bytes + header->data_bytes;
	p->last_epoch = header->epoch;
	p->clean = header->type == S3_TYPE_CLEAN;
	p->mine = header->epoch == p->epoch && memcmp(header->instance, v->instance, S3_UUID) == 0;
	v->applied = header->id;
	v->last_type = header->type;
	if (header->type != S3_TYPE_DATA)
		return 0;
	if (!s3_seal_fits(v, header))
		return -EINVAL;
	p->slot = s3_objects_add(
		v->objects, &(struct s3_object){
				    .id = header->id,
				    .birth = header->id,
				    .bytes = header->header_bytes + header->data_bytes,
				    .header_bytes = header->header_bytes,
				    .blocks = header->blocks,
			    });
	return p->slot == S3_NO_SLOT ? -ENOMEM : 0;
}

static int add_gc_object(struct s3_recovery *p, uint64_t seq, const struct s3_record *record)
{
	struct s3_volume *v = p->v;
	uint32_t slot;

	if (record->object >= v->next_gc)
		v->next_gc = record->object + 1;
	if (s3_objects_find(v->objects, 0, record->object) != S3_NO_SLOT)
		return 0;
	if (p->n_gc == p->room_gc) {
		size_t room = p->room_gc ? 2 * p->room_gc : 64;
		uint32_t *gc = realloc(p->gc, room * sizeof *gc);

		if (!gc)
			return -ENOMEM;
		p->gc = gc;
		p->room_gc = room;
	}
	slot = s3_objects_add(v->objects, &(struct s3_object){
						  .id = record->object,
						  .birth = seq,
						  .bytes = record->bytes,
						  .header_bytes = record->header_bytes,
						  .blocks = record->blocks,
					  });
	if (slot == S3_NO_SLOT)
		return -ENOMEM;
	p->gc[p->n_gc++] = slot;
	return 0;
}

static int apply_record(
	void *opaque, const struct s3_object_header *header, const struct s3_record *record)
{
	struct s3_recovery *p = opaque;
	struct s3_volume *v = p->v;
	uint32_t from, to;
	int r;

	switch (record->op) {
	case S3_RECORD_WRITE:
		if (p->batch)
			return s3_map_batch_update(p->batch, header->id, record->lba, record->count,
				p->slot, record->offset);
		return s3_map_update(
			v->map, header->id, record->lba, record->count, p->slot, record->offset);
	case S3_RECORD_ZERO:
	case S3_RECORD_DISCARD:
		if (p->batch)
			return s3_map_batch_punch(p->batch, header->id, record->lba, record->count);
		return s3_map_punch(v->map, header->id, record->lba, record->count);
	case S3_RECORD_GC_OBJECT:
		return add_gc_object(p, header->id, record);
	case S3_RECORD_RELOCATE:
		from = s3_objects_find(v->objects, 0, record->source);
		to = s3_objects_find(v->objects, 0, record->object);
		if (from == S3_NO_SLOT || to == S3_NO_SLOT)
			return -EINVAL;
		if (p->batch)
			return s3_map_batch_relocate(p->batch, header->id, record->lba,
				record->count, from, record->source_offset, to, record->offset);
		return s3_map_relocate(v->map, header->id, record->lba, record->count, from,
			record->source_offset, to, record->offset, NULL);
	case S3_RECORD_RESET:
		r = p->batch ? s3_map_batch_apply(p->batch) : 0;
		return r ? r : s3_restore(v, record->seq);
	}
	return -EOPNOTSUPP;
}

/* Takes the snapshots that are of seq, up to which everything has been applied. */
static int adopt(struct s3_recovery *p, uint64_t seq)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < p->n_adopt; i++)
		if (p->adopt[i].seq == seq) {
			r = s3_snapshot_enter(p->v, &p->adopt[i]);
			p->v->full_wanted = true;
		}
	return r;
}

/* What an object of the log says of the writer that the super object names. */
static void follow_chain(struct s3_recovery *p, const struct s3_object_header *header)
{
	struct s3_chain *chain = &p->chain;

	if (memcmp(header->instance, p->v->super.write_back, S3_UUID) == 0)
		*chain = (struct s3_chain){
			.last = header->id, .closed = header->type == S3_TYPE_CLEAN};
	else if (header->type == S3_TYPE_DATA && header->cache_record)
		chain->replayed = header->cache_record;
	else if (header->type == S3_TYPE_DATA)
		chain->foreign = true;
}

static int newer_root(struct s3_volume *v, const struct s3_recovery *p);

/* Applies a header of the log. It is the next one. */
static int apply(struct s3_recovery *p, const struct s3_object_header *header)
{
	struct s3_volume *v = p->v;
	struct s3_record record;
	size_t cursor = 0;
	int r = apply_header(p, header);

	while (r == 0 && s3_header_next(header, &cursor, &record))
		r = apply_record(p, header, &record);
	if (r == -ENOENT) {
		r = newer_root(v, p); /* which need not know how it came to that */
		return r ? r
			 : s3_volume_refuse(v, -EIO,
				   "volume=%s: the snapshot at object %" PRIu64
				   ", to which it was rolled back, is damaged or gone; restore the "
				   "volume from a backup",
				   v->name, record.seq);
	}
	if (r) {
		char key[S3_KEY_MAX + 1];

		s3_volume_object_key(v, header->id, key);
		return r == -ENOMEM
			       ? r
			       : s3_volume_refuse(v, -EIO,
					 "volume=%s: %s contradicts the log before it; restore "
					 "the volume from a backup",
					 v->name, key);
	}
	seal_objects(p, header->id);
	if (s3_summary_add(&v->summary, header) < 0)
		v->full_wanted = true;
	v->frontier = header->id;
	v->last_time = header->time;
	if (header->epoch > v->epoch)
		v->epoch = header->epoch;
	if (memcmp(header->instance, v->instance, S3_UUID))
		memcpy(v->predecessor, header->instance, S3_UUID);
	follow_chain(p, header);
	atomic_fetch_add(&v->stats.replayed, 1);
	return adopt(p, header->id);
}

/* ---- roots ------------------------------------------------------------------------ */

/* Frontiers of all roots that there may be. */
struct roots {
	const struct s3_volume *v;
	uint64_t *seqs;
	size_t n;
};

static int by_age(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x < y) - (x > y);
}

/* Enters the sequence number that a prefix "<base>ckpt/<16 hex>/" holds. */
static int enter_root(struct roots *roots, const char *text)
{
	struct s3_name name;
	char key[S3_KEY_ROOM];
	uint64_t *seqs;

	if (snprintf(key, sizeof key, "%sroot", text) >= (int)sizeof key ||
		!s3_name_parse(key, &name) || name.kind != S3_NAME_ROOT)
		return 0;
	seqs = realloc(roots->seqs, (roots->n + 1) * sizeof *seqs);
	if (!seqs)
		return -ENOMEM;
	seqs[roots->n++] = name.number;
	roots->seqs = seqs;
	return 0;
}

static int enter_listed(void *opaque, const struct s3_listed *listed)
{
	struct roots *roots = opaque;

	return listed->is_prefix ? enter_root(roots, listed->key + strlen(roots->v->base)) : 0;
}

/* Newest first. Errors are told. */
static int list_roots(struct s3_volume *v, struct roots *roots)
{
	struct s3_request req;
	int r = s3_volume_list(v, "ckpt/", true, enter_listed, roots, &req);

	if (r && r != -ENOMEM)
		return s3_volume_refuse(v, r, "%s", req.message);
	if (r == 0 && roots->n)
		qsort(roots->seqs, roots->n, sizeof *roots->seqs, by_age);
	return r;
}

/* Reads something whose size is not known. -ENOENT and -ENOMEM are not told, other errors are. */
static int read_whole(struct s3_volume *v, const char *base, const struct s3_name *name, char *key,
	void **data, size_t *length)
{
	struct s3_request req;
	int r;

	strcpy(key, base);
	s3_name_format(name, key + strlen(key));
	r = s3_volume_get_all(v, key, data, length, &req);
	return r && r != -ENOENT && r != -ENOMEM ? s3_volume_refuse(v, r, "%s", req.message) : r;
}

int s3_root_read(struct s3_volume *v, const char *base, const uint8_t *uuid,
	const struct s3_name *name, void **data, struct s3_root *root)
{
	char key[S3_KEY_MAX + 1];
	enum s3_check check;
	size_t length;
	int r = read_whole(v, base, name, key, data, &length);

	if (r)
		return r;
	check = s3_root_decode(*data, length, uuid, root);
	if (check == S3_GOOD)
		return 0;
	free(*data);
	*data = NULL;
	if (check == S3_NEWER || check == S3_UNKNOWN_FLAG || check == S3_NO_MEMORY)
		return s3_volume_refuse(v, check == S3_NO_MEMORY ? -ENOMEM : -EOPNOTSUPP,
			"volume=%s: %s %s", v->name, key, s3_check_text(check));
	backend_debug(&v->host, "volume=%s: %s %s and is passed over", v->name, key,
		s3_check_text(check));
	return -ENOENT;
}

/* The volume's own at seq. -ENOENT: no such root, or a damaged one. */
static int read_root(struct s3_volume *v, uint64_t seq, void **data, struct s3_root *root)
{
	struct s3_name name = {.kind = S3_NAME_ROOT, .number = seq};
	int r = s3_root_read(v, v->base, v->super.uuid, &name, data, root);

	if (r || root->seq == seq)
		return r;
	s3_root_free(root);
	free(*data);
	return -ENOENT;
}

/* What is got of a root: its regions, or its summaries. NULL: no memory. */
static struct s3_root_part *parts_of(const struct s3_root *root, bool summaries)
{
	uint32_t n = summaries ? root->n_summaries : root->n_regions;
	struct s3_root_part *parts = calloc(n + (size_t)1, sizeof *parts);

	for (uint32_t i = 0; parts && i < n; i++) {
		if (summaries)
			parts[i] = (struct s3_root_part){
				.name = {.kind = S3_NAME_SUMMARY,
					.number = root->summaries[i].last},
				.bytes = root->summaries[i].bytes,
				.crc = root->summaries[i].crc,
			};
		else
			parts[i] = (struct s3_root_part){
				.name = {.kind = S3_NAME_REGION,
					.number = root->regions[i].seq,
					.region = root->regions[i].region},
				.bytes = root->regions[i].bytes,
				.crc = root->regions[i].crc,
			};
	}
	return parts;
}

/* The regions of a root on their way into a map, by several threads. */
struct regions {
	struct s3_parts *parts;
	const struct s3_root *root;
	struct s3_map *map;
	_Atomic int error;
};

static int check_error(enum s3_check check)
{
	return check == S3_GOOD ? 0 : check == S3_NO_MEMORY ? -ENOMEM : -ENOENT;
}

static void *load_some_regions(void *opaque)
{
	struct regions *g = opaque;
	int r = 0;

	while (r == 0 && !atomic_load(&g->error)) {
		size_t i;
		void *data;

		r = s3_parts_next(g->parts, &i, &data);
		if (r == 0)
			break;
		if (r < 0)
			continue;
		r = check_error(s3_map_load(
			g->map, g->root->regions[i].region, data, g->root->regions[i].bytes));
		free(data);
	}
	if (r)
		atomic_store(&g->error, r);
	return NULL;
}

static int load_regions(
	struct s3_volume *v, const char *base, const struct s3_root *root, struct s3_map *map)
{
	struct s3_root_part *parts = parts_of(root, false);
	struct regions g = {.root = root, .map = map};
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	pthread_t threads[LOADERS - 1];
	unsigned n = 0;
	uint64_t bytes = 0;

	g.parts = parts ? s3_parts_new(v, base, parts, root->n_regions) : NULL;
	if (!g.parts)
		g.error = -ENOMEM;
	for (uint32_t i = 0; i < root->n_regions; i++)
		bytes += root->regions[i].bytes;
	while (!g.error && n + 1 < LOADERS && n + 1 < cpus && n < bytes / LOADER_BYTES &&
		pthread_create(&threads[n], NULL, load_some_regions, &g) == 0)
		n++;
	load_some_regions(&g);
	while (n)
		pthread_join(threads[--n], NULL);
	s3_parts_free(g.parts);
	free(parts);
	return atomic_load(&g.error);
}

static int load_summary(const struct s3_root_summary *part, const void *data, struct s3_recovery *p)
{
	const struct s3_summary_visitor visitor = {
		.header = apply_header, .record = apply_record, .opaque = p};
	struct s3_summary summary;
	enum s3_check check;
	int stopped = 0;

	check = s3_summary_decode(
		data, part->bytes, p->v->super.uuid, &visitor, &summary, &stopped);
	if (stopped)
		return stopped == -ENOMEM ? stopped : -ENOENT;
	if (check != S3_GOOD || summary.first != part->first || summary.last != part->last)
		return check == S3_NO_MEMORY ? -ENOMEM : -ENOENT;
	seal_objects(p, part->last);
	return 0;
}

static int load_summaries(struct s3_volume *v, const struct s3_root *root, struct s3_recovery *p)
{
	struct s3_root_part *all;
	struct s3_parts *parts;
	int r = 1;

	if (!root->n_summaries)
		return 0;
	all = parts_of(root, true);
	parts = all ? s3_parts_new(v, v->base, all, root->n_summaries) : NULL;
	p->batch = s3_map_batch_new(
		v->map, v->cache_bytes < BATCH_BYTES ? v->cache_bytes : BATCH_BYTES);
	if (!parts || !p->batch)
		r = -ENOMEM;
	while (r == 1) {
		void *data;
		size_t i;

		r = s3_parts_next(parts, &i, &data);
		if (r != 1)
			break;
		r = load_summary(&root->summaries[i], data, p);
		free(data);
		r = r ? r : 1;
	}
	s3_parts_free(parts);
	free(all);
	if (r == 0)
		r = s3_map_batch_apply(p->batch);
	s3_map_batch_free(p->batch);
	p->batch = NULL;
	if (r == 0)
		s3_objects_settle(v->objects, root->seq);
	return r;
}

/* An empty map again; of any size, until it is known what has to fit. */
static int reset(struct s3_volume *v)
{
	s3_map_free(v->map);
	s3_objects_free(v->objects);
	v->map = NULL;
	v->objects = s3_objects_new(v->batch_blocks);
	if (v->objects)
		v->map = s3_map_new(v->objects, S3_BLOCKS_MAX);
	free(v->snapshots);
	v->snapshots = NULL;
	v->n_snapshots = 0;
	v->next_gc = S3_GC | 1;
	v->applied = 0;
	return v->map ? 0 : -ENOMEM;
}

/* Forgets all that recovery has found. */
static int start_over(struct s3_volume *v)
{
	free(v->regions);
	v->regions = NULL;
	v->n_regions = 0;
	free(v->summaries);
	v->summaries = NULL;
	v->n_summaries = 0;
	v->full = v->checkpoint = v->frontier = 0;
	s3_summary_abandon(&v->summary);
	v->log_bytes_since_full = 0;
	v->full_wanted = v->rolled_back = false;
	v->last_type = 0;
	return reset(v);
}

/* Takes over what a later checkpoint needs to know of this one. */
static void keep_root(struct s3_volume *v, struct s3_root *full, struct s3_root *root)
{
	if (!v->rolled_back) {
		v->regions = full->regions;
		v->n_regions = full->n_regions;
		full->regions = NULL;
		full->n_regions = 0;
	}
	v->full = full->seq;
	v->checkpoint = root->seq;
	if (root != full) {
		v->summaries = root->summaries;
		v->n_summaries = root->n_summaries;
		root->summaries = NULL;
		root->n_summaries = 0;
	}
}

/* Map, table and snapshots of a full root of a volume under base. -ENOENT: it cannot be used. */
static int load_full(struct s3_volume *v, const char *base, struct s3_root *root)
{
	enum s3_check check;
	int r = reset(v);

	if (r || root->base != root->seq)
		return r ? r : -ENOENT;
	check = s3_objects_decode(v->objects, root->table, root->table_bytes);
	if (check != S3_GOOD)
		return check == S3_NO_MEMORY ? -ENOMEM : -ENOENT;
	r = load_regions(v, base, root, v->map);
	if (r)
		return r;
	s3_objects_settle(v->objects, root->seq);
	v->snapshots = root->snapshots;
	v->n_snapshots = root->n_snapshots;
	root->snapshots = NULL;
	root->n_snapshots = 0;
	return 0;
}

/* What a clone begins with: its parent's snapshot, of which all objects are an ancestor's. */
static int load_parent(struct s3_volume *v)
{
	const struct s3_parent *parent = &v->super.parents[0];
	struct s3_name name = {.kind = S3_NAME_SNAPSHOT};
	char base[S3_KEY_MAX + 1];
	struct s3_root root;
	void *data;
	int r;

	snprintf(base, sizeof base, "%s/", parent->path);
	strcpy(name.name, parent->snapshot);
	r = s3_root_read(v, base, parent->uuid, &name, &data, &root);
	if (r == 0) {
		r = root.seq == parent->last_seq ? load_full(v, base, &root) : -ENOENT;
		s3_root_free(&root);
		free(data);
	}
	if (r == 0)
		r = s3_objects_inherit(v->objects);
	if (r == -ENOENT || r == -ERANGE)
		return s3_volume_refuse(v, -EIO,
			"volume=%s: is a clone of snapshot %s of %s, which is damaged or gone; "
			"restore that",
			v->name, parent->snapshot, parent->path);
	if (r)
		return r;
	free(v->snapshots); /* the parent's */
	v->snapshots = NULL;
	v->n_snapshots = 0;
	return 0;
}

/* What a volume is before its log begins. */
static int load_beginning(struct s3_volume *v)
{
	return v->super.n_parents ? load_parent(v) : reset(v);
}

/* Loads the root at seq. -ENOENT: it cannot be used. */
static int load_root(struct s3_volume *v, uint64_t seq, struct s3_recovery *p)
{
	struct s3_root root, base = {0}, *full = &root;
	void *data, *base_data = NULL;
	int r = read_root(v, seq, &data, &root);

	if (r)
		return r;
	if (root.base != root.seq) {
		full = &base;
		if (root.base)
			r = read_root(v, root.base, &base_data, &base);
	}
	if (r == 0)
		r = root.base ? load_full(v, v->base, full) : load_beginning(v);
	if (r == 0) {
		if (v->next_gc < full->next_gc)
			v->next_gc = full->next_gc;
		v->applied = full->seq;
		r = load_summaries(v, &root, p);
	}
	if (r == 0) {
		if (v->next_gc < root.next_gc)
			v->next_gc = root.next_gc;
		v->applied = v->frontier = root.seq;
		v->epoch = root.epoch;
		memcpy(v->predecessor, root.instance, S3_UUID);
		/* Its writer had put a fence before it: what is older than that does not count. */
		p->last_epoch = root.epoch;
		p->blocks = root.blocks;
		if (memcmp(root.instance, v->super.write_back, S3_UUID) == 0)
			p->chain.last = root.seq;
		keep_root(v, full, &root);
	}
	s3_root_free(&base);
	s3_root_free(&root);
	free(base_data);
	free(data);
	return r;
}

static void begin(struct s3_recovery *p)
{
	*p = (struct s3_recovery){.v = p->v,
		.adopt = p->adopt,
		.n_adopt = p->n_adopt,
		.gc = p->gc,
		.room_gc = p->room_gc,
		.readonly = p->readonly,
		.epoch = p->epoch,
		.ahead = p->ahead,
		.window = p->window};
}

static int load_newest_root(struct s3_volume *v, struct s3_recovery *p)
{
	struct roots roots = {.v = v};
	int r = list_roots(v, &roots);
	size_t i;

	if (r == 0)
		r = start_over(v);
	begin(p);
	for (i = 0; r == 0 && i < roots.n; i++) {
		r = load_root(v, roots.seqs[i], p);
		if (r == 0)
			break;
		if (r == -ENOENT)
			r = start_over(v);
		begin(p);
	}
	if (r == 0 && i == roots.n)
		r = load_beginning(v);
	p->newest_root = roots.n ? roots.seqs[0] : 0;
	free(roots.seqs);
	return r;
}

/* ---- snapshots -------------------------------------------------------------------- */

struct restore {
	struct s3_volume *v;
	struct s3_objects *objects; /* the snapshot's table */
};

/* Enters a run of the snapshot's map. Its table may have other slots than the volume's. */
static int restore_run(void *opaque, const struct s3_run *run)
{
	struct restore *c = opaque;
	struct s3_volume *v = c->v;
	struct s3_object object;
	uint32_t slot;

	s3_objects_get(c->objects, run->slot, &object);
	slot = s3_objects_find(v->objects, object.origin, object.id);
	if (slot == S3_NO_SLOT)
		return -ENOENT;
	return s3_map_update(v->map, v->applied, run->lba, run->count, slot, run->offset);
}

/* 1, or negative errno. */
static int restore_region(struct restore *c, const struct s3_root *root, size_t i, const void *data)
{
	struct s3_map *map = s3_map_new(c->objects, root->blocks);
	int r = map ? check_error(s3_map_load(
			      map, root->regions[i].region, data, root->regions[i].bytes))
		    : -ENOMEM;

	if (r == 0)
		r = s3_map_walk(map, restore_run, c);
	s3_map_free(map);
	return r ? r : 1;
}

/* Takes the map over, a region after the other. */
static int restore_regions(struct s3_volume *v, const struct s3_root *root)
{
	struct restore c = {.v = v, .objects = s3_objects_new(v->batch_blocks)};
	struct s3_root_part *parts;
	struct s3_parts *fetched;
	int r = c.objects ? 0 : -ENOMEM;

	if (r == 0 && s3_objects_decode(c.objects, root->table, root->table_bytes) != S3_GOOD)
		r = -ENOENT;
	parts = r ? NULL : parts_of(root, false);
	fetched = parts ? s3_parts_new(v, v->base, parts, root->n_regions) : NULL;
	if (r == 0)
		r = fetched ? 1 : -ENOMEM;
	while (r == 1) {
		size_t i;
		void *data;

		r = s3_parts_next(fetched, &i, &data);
		if (r == 1) {
			r = restore_region(&c, root, i, data);
			free(data);
		}
	}
	s3_parts_free(fetched);
	free(parts);
	s3_objects_free(c.objects);
	return r;
}

int s3_restore(struct s3_volume *v, uint64_t seq)
{
	struct s3_name name = {.kind = S3_NAME_SNAPSHOT};
	struct s3_root root;
	void *data;
	int r = -ENOENT;

	/* The younger ones have been deleted, although the root that was loaded may not know. */
	while (v->n_snapshots && v->snapshots[v->n_snapshots - 1].seq > seq)
		if (s3_snapshot_drop(v, v->snapshots[v->n_snapshots - 1].seq, v->applied))
			return -ENOMEM;
	if (v->n_snapshots && v->snapshots[v->n_snapshots - 1].seq == seq) {
		strcpy(name.name, v->snapshots[v->n_snapshots - 1].name);
		r = s3_root_read(v, v->base, v->super.uuid, &name, &data, &root);
	}
	if (r == 0) {
		r = root.seq == seq && root.base == seq ? s3_objects_rollback(v->objects, seq)
							: -ENOENT;
		if (r == 0) {
			s3_map_clear(v->map);
			r = restore_regions(v, &root);
		}
		s3_root_free(&root);
		free(data);
	}
	if (r)
		return r;
	s3_objects_settle(v->objects, v->applied);
	/* All regions that hold anything have changed. */
	free(v->regions);
	v->regions = NULL;
	v->n_regions = 0;
	v->full_wanted = v->rolled_back = true;
	return 0;
}

static bool is_known(const struct s3_root_snapshot *snapshots, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(snapshots[i].name, name) == 0)
			return true;
	return false;
}

/* A snapshot whose own root is there, while the volume does not know it. */
static int look_at_snapshot(struct s3_volume *v, struct s3_recovery *p,
	const struct s3_snapshot_files *files, bool *again)
{
	struct s3_name name = {.kind = S3_NAME_SNAPSHOT};
	struct s3_root_snapshot *list, found = {0};
	struct s3_root root;
	bool known;
	void *data;
	int r;

	strcpy(name.name, files->name);
	r = s3_root_read(v, v->base, v->super.uuid, &name, &data, &root);
	if (r)
		return r == -ENOENT ? 0 : r;
	/* Not that of another writer, who takes over: we shall see. */
	if (root.n_snapshots && root.epoch <= v->epoch)
		found = root.snapshots[root.n_snapshots - 1];
	known = found.seq == root.seq && strcmp(found.name, files->name) == 0;
	s3_root_free(&root);
	free(data);
	if (!known)
		return 0;
	if (found.seq <= v->checkpoint) {
		s3_snapshot_erase(v, files->name);
		return 0;
	}
	if (found.seq > v->applied)
		return s3_volume_refuse(v, -EIO,
			"volume=%s: the log ends before snapshot %s, at object %" PRIu64
			"; restore the volume from a backup",
			v->name, files->name, v->applied);
	list = realloc(p->adopt, (p->n_adopt + 1) * sizeof *list);
	if (!list)
		return -ENOMEM;
	list[p->n_adopt++] = found;
	p->adopt = list;
	*again = true;
	return 0;
}

/*
 * Compares the snapshots that the volume knows with those that are stored. again: there is one
 * to be taken on the way.
 */
static int look_at_snapshots(struct s3_volume *v, struct s3_recovery *p, bool *again)
{
	struct s3_snapshot_files *files;
	struct s3_request req;
	size_t n;
	int r = s3_snapshot_look(v, &files, &n, &req);

	if (r)
		return r == -ENOMEM ? r : s3_volume_refuse(v, r, "%s", req.message);
	for (size_t i = 0; r == 0 && i < n; i++) {
		bool known = is_known(v->snapshots, v->n_snapshots, files[i].name);

		if (known && files[i].deleting)
			s3_snapshot_unmark(v, files[i].name);
		else if (!known && files[i].root)
			r = look_at_snapshot(v, p, &files[i], again);
		else if (!known && files[i].deleting)
			s3_snapshot_erase(v, files[i].name);
	}
	free(files);
	return r;
}

/* Does the newest root that can be read know the snapshot, or has it not yet come to that? */
static int is_deleted(struct s3_volume *v, const char *snapshot, uint64_t seq)
{
	struct roots roots = {.v = v};
	int r = list_roots(v, &roots), deleted = 0;

	for (size_t i = 0; r == 0 && i < roots.n; i++) {
		struct s3_root root;
		void *data;

		r = read_root(v, roots.seqs[i], &data, &root);
		if (r == 0) {
			deleted = root.seq >= seq &&
				  !is_known(root.snapshots, root.n_snapshots, snapshot);
			s3_root_free(&root);
			free(data);
			break;
		}
		if (r == -ENOENT)
			r = 0;
	}
	free(roots.seqs);
	return r ? r : deleted;
}

static int refuse_snapshot(struct s3_volume *v, const char *snapshot)
{
	struct s3_snapshot_files *files;
	char names[256] = "";
	struct s3_request req;
	size_t n, used = 0;
	int r = s3_snapshot_look(v, &files, &n, &req);

	if (r)
		return r == -ENOMEM ? r : s3_volume_refuse(v, r, "%s", req.message);
	for (size_t i = 0; i < n && used < sizeof names; i++)
		if (files[i].root && !files[i].deleting)
			used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
				used ? ", " : "", files[i].name);
	free(files);
	return s3_volume_refuse(v, -ENOENT, "snapshot=%s: volume %s has none of that name; %s%s",
		snapshot, v->name, used ? "there are " : "it has no snapshot at all", names);
}

int s3_recover_snapshot(struct s3_volume *v, const char *snapshot)
{
	struct s3_name name = {.kind = S3_NAME_SNAPSHOT};
	struct s3_root root;
	void *data;
	int r;

	strcpy(name.name, snapshot);
	r = s3_root_read(v, v->base, v->super.uuid, &name, &data, &root);
	if (r)
		return r == -ENOENT ? refuse_snapshot(v, snapshot) : r;
	r = is_deleted(v, snapshot, root.seq);
	if (r == 1) {
		r = refuse_snapshot(v, snapshot);
	} else if (r == 0) {
		r = load_full(v, v->base, &root);
		if (r == -ENOENT)
			r = s3_volume_refuse(v, -EIO,
				"snapshot=%s: a part of its map is damaged or gone; restore the "
				"volume "
				"from a backup",
				snapshot);
	}
	if (r == 0) {
		v->epoch = root.epoch;
		memcpy(v->predecessor, root.instance, S3_UUID);
		v->applied = v->frontier = root.seq;
		v->next_seq = root.seq + 1;
		r = s3_map_resize(v->map, root.blocks);
	}
	s3_root_free(&root);
	free(data);
	return r;
}

/* ---- the log ---------------------------------------------------------------------- */

/* One of a window of headers. */
struct look {
	struct s3_request req;
	struct iovec iov;
	char key[S3_KEY_MAX + 1];
	struct window *window;
};

struct window {
	pthread_mutex_t lock;
	pthread_cond_t done;
	unsigned pending;
	struct look looks[WINDOW];
	uint8_t *memory;
};

static void look_done(struct s3_request *req)
{
	struct window *w = ((struct look *)req->opaque)->window;

	pthread_mutex_lock(&w->lock);
	if (--w->pending == 0)
		pthread_cond_signal(&w->done);
	pthread_mutex_unlock(&w->lock);
}

/* Asks for the beginnings of n log objects and waits for all answers. */
static int look_at(struct s3_volume *v, struct window *w, uint64_t first, unsigned n)
{
	unsigned submitted;
	int r = 0;

	w->pending = n;
	for (submitted = 0; r == 0 && submitted < n; submitted++) {
		struct look *l = &w->looks[submitted];

		l->window = w;
		l->iov = (struct iovec){w->memory + (size_t)submitted * FIRST_READ, FIRST_READ};
		s3_volume_object_key(v, first + submitted, l->key);
		l->req = (struct s3_request){
			.op = S3_GET,
			.pool = S3_POOL_BACKGROUND,
			.key = l->key,
			.iov = &l->iov,
			.iovcnt = 1,
			.allow_short = true,
			.retry_deadline = v->deadline,
			.done = look_done,
			.opaque = l,
		};
		r = s3_store_submit(v->store, &l->req);
		if (r)
			break;
	}
	pthread_mutex_lock(&w->lock);
	w->pending -= n - submitted;
	while (w->pending)
		pthread_cond_wait(&w->done, &w->lock);
	pthread_mutex_unlock(&w->lock);
	return r;
}

/* Why what stands at a number of the log cannot be used. */
static int damaged(struct s3_volume *v, const char *key, const char *why)
{
	return s3_volume_refuse(v, -EIO,
		"volume=%s: %s %s; if the store lost power, delete this object to go back to the "
		"moment before it was written; otherwise restore the volume from a backup",
		v->name, key, why);
}

/* What stands in the log at seq. 0, -ENOENT, or negative errno, which has been told. */
static int look_again(struct s3_volume *v, uint64_t seq, void **data,
	struct s3_object_header *header, struct s3_request *req)
{
	char key[S3_KEY_MAX + 1];
	enum s3_check check;
	int r = s3_volume_get_header(v, seq, data, header, &check, req);

	if (r)
		return r == -ENOENT || r == -ENOMEM ? r
						    : s3_volume_refuse(v, r, "%s", req->message);
	if (check == S3_GOOD && header->id != seq)
		check = S3_INVALID;
	if (check == S3_GOOD)
		return 0;
	free(*data);
	s3_volume_object_key(v, seq, key);
	return damaged(v, key, s3_check_text(check));
}

/*
 * Applies what stands at seq, whose beginning has been read. 1: it is the end of the
 * log: nothing there, or left by a fenced writer.
 */
static int take(struct s3_volume *v, struct s3_recovery *p, uint64_t seq, struct look *l)
{
	struct s3_object_header header;
	struct s3_request again;
	uint64_t size = l->req.object_size;
	void *data = NULL;
	int r;

	if (l->req.result == -ENOENT)
		return 1;
	if (l->req.result)
		return s3_volume_refuse(v, l->req.result, "%s", l->req.message);
	if (s3_header_decode(l->iov.iov_base, l->req.bytes, v->super.uuid, &header) != S3_GOOD ||
		header.id != seq) {
		r = look_again(v, seq, &data, &header, &again);
		if (r)
			return r == -ENOENT ? 1 : r;
		size = again.object_size;
	}
	if (header.epoch < p->last_epoch)
		r = 1;
	else if (size != (uint64_t)header.header_bytes + header.data_bytes)
		r = damaged(v, l->key, "is not as long as it says");
	else
		r = apply(p, &header);
	free(data);
	return r;
}

static int stop_writer(struct s3_volume *v, struct s3_recovery *p);

/* Is the volume taken whatever the end of its log may say? */
static bool takes_any(const struct s3_volume *v)
{
	static const uint8_t nobody[S3_UUID];

	return !v->polite && !v->host.clients_remain && !v->writeback &&
	       memcmp(v->super.write_back, nobody, S3_UUID) == 0;
}

/* Follows the log to where nothing stands; n: how many are asked for first. */
static int follow(struct s3_volume *v, struct s3_recovery *p, unsigned n)
{
	struct window *w = p->window;
	int r = 0;

	for (unsigned windows = 1; r == 0; windows++) {
		uint64_t first = v->applied + 1;

		r = look_at(v, w, first, n);
		for (unsigned i = 0; r == 0 && i < n; i++)
			r = take(v, p, first + i, &w->looks[i]);
		n = WINDOW;
		if (r == 0 && windows == ENDLESS && !p->readonly && takes_any(v))
			r = stop_writer(v, p);
	}
	return r == 1 ? 0 : r;
}

/* Was the object at seq, which has been looked at, built when that at gap was in the store? 1: yes.
 */
static int witnesses(struct s3_volume *v, const struct s3_recovery *p, uint64_t gap, uint64_t seq,
	const struct look *l)
{
	struct s3_object_header header;
	struct s3_request again;
	void *data = NULL;
	enum s3_check check;
	int r = l->req.result;

	if (r)
		return r == -ENOENT ? 0 : s3_volume_refuse(v, r, "%s", l->req.message);
	check = s3_header_decode(l->iov.iov_base, l->req.bytes, v->super.uuid, &header);
	if (check == S3_SHORT) {
		r = s3_volume_get_header(v, seq, &data, &header, &check, &again);
		if (r == -ENOENT || r == -ENOMEM)
			return r == -ENOENT ? 0 : r;
		if (r)
			return s3_volume_refuse(v, r, "%s", again.message);
	}
	/* One of a lower epoch counts for nothing: its writer knew another end of the log. */
	r = check == S3_GOOD && header.id == seq && header.epoch >= p->last_epoch &&
	    header.frontier >= gap;
	free(data);
	return r;
}

/*
 * Looks for an object behind the end of the log whose writer says that what ends it had been
 * stored; witness: its number, 0: none. Without damage no writer has stored anything as far behind
 * what it had not.
 */
static int find_witness(struct s3_volume *v, const struct s3_recovery *p, uint64_t *witness)
{
	struct window *w = p->window;
	uint64_t gap = v->applied + 1;
	int r = 0;

	*witness = 0;
	for (uint64_t first = gap + 1; r == 0 && first <= gap + S3_WINDOW; first += WINDOW) {
		r = look_at(v, w, first, WINDOW);
		for (unsigned i = 0; r == 0 && i < WINDOW; i++) {
			r = witnesses(v, p, gap, first + i, &w->looks[i]);
			if (r == 1)
				*witness = first + i;
		}
	}
	return r == 1 ? 0 : r;
}

/* Something that had been stored is missing. Who only reads may see what was before it. */
static int tell_lost(struct s3_volume *v, uint64_t witness, bool readonly)
{
	char key[S3_KEY_MAX + 1], later[S3_KEY_MAX + 1];

	s3_volume_object_key(v, v->applied + 1, key);
	s3_volume_object_key(v, witness, later);
	if (!readonly)
		return s3_volume_refuse(v, -EIO,
			"volume=%s: %s is missing, although it had been stored before %s was "
			"written; restore it from a backup, look at the moment before it with "
			"readonly=on, or delete all objects of the log after it to go back to that",
			v->name, key, later);
	backend_error(&v->host,
		"volume=%s: %s is missing, although it had been stored before %s was written; the "
		"moment before it is served",
		v->name, key, later);
	return 0;
}

static void free_window(struct window *w)
{
	pthread_cond_destroy(&w->done);
	pthread_mutex_destroy(&w->lock);
	free(w->memory);
	free(w);
}

static struct window *make_window(void)
{
	struct window *w = calloc(1, sizeof *w);

	if (!w)
		return NULL;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->done, NULL);
	w->memory = malloc((size_t)WINDOW * FIRST_READ);
	if (w->memory)
		return w;
	free_window(w);
	return NULL;
}

/* AGAIN: there is a root now that is newer than those that this attempt began with. */
static int newer_root(struct s3_volume *v, const struct s3_recovery *p)
{
	struct roots roots = {.v = v};
	int r = list_roots(v, &roots);

	if (r == 0 && roots.n && roots.seqs[0] > p->newest_root)
		r = AGAIN;
	free(roots.seqs);
	return r;
}

/*
 * A root says that the log was whole up to it. Objects that the two newest roots do not need are
 * deleted, so that the log behind an older one has gaps, which look like its end. A writer at work
 * may have stored newer ones meanwhile, and deleted what those that we know of need.
 */
static int check_reached(struct s3_volume *v, const struct s3_recovery *p)
{
	struct s3_name name = {.kind = S3_NAME_ROOT, .number = p->newest_root};
	char key[S3_KEY_MAX + 1];
	int r;

	if (v->applied >= p->newest_root)
		return 0;
	r = newer_root(v, p);
	if (r)
		return r;
	s3_volume_key(v, &name, key);
	return s3_volume_refuse(v, -EIO,
		"volume=%s: %s or a part of it is damaged or missing, and the log ends before it, "
		"at object %" PRIu64 "; restore the volume from a backup",
		v->name, key, v->applied);
}

/* ---- the fence -------------------------------------------------------------------- */

/*
 * What to do about an object that stands where one of ours of epoch is to be. 0: try again,
 * replacing that of etag stale (""; none). 1: it is ours.
 */
static int meet(struct s3_volume *v, struct s3_recovery *p, uint64_t seq, uint64_t epoch,
	const char *key, char *stale)
{
	struct s3_object_header header;
	struct s3_request req;
	void *data;
	int r = look_again(v, seq, &data, &header, &req);

	*stale = 0;
	if (r)
		return r == -ENOENT ? 0 : r;
	if (header.epoch < p->last_epoch && req.etag[0]) {
		/* Not deleted: that might meet another writer's fence, put there meanwhile. */
		memcpy(stale, req.etag, sizeof req.etag);
	} else if (header.epoch < p->last_epoch) {
		r = damaged(v, key, "comes without an etag");
	} else if (header.epoch == epoch && memcmp(header.instance, v->instance, S3_UUID) == 0) {
		r = 1; /* its reply was lost */
	} else if (p->fenced) {
		r = s3_volume_refuse(v, -EBUSY,
			"volume=%s: another writer took it over while it was opened; end that one, "
			"and start again",
			v->name);
	} else {
		/* Another writer was at work up to now; or it is our fence ahead. */
		r = req.object_size == (uint64_t)header.header_bytes + header.data_bytes
			    ? apply(p, &header)
			    : damaged(v, key, "is not as long as it says");
	}
	free(data);
	return r;
}

/* An object that stands in the log behind everything and holds nothing. Its bytes, 0: error. */
static size_t build_mark(
	struct s3_volume *v, enum s3_type type, uint64_t seq, uint64_t epoch, uint8_t *buffer)
{
	struct s3_object_header header = {
		.type = type,
		.block_shift = v->shift,
		.id = seq,
		.epoch = epoch,
		.batch = seq,
		.frontier = v->applied,
		.checkpoint = v->checkpoint,
		.time = (uint64_t)time(NULL) * 1000000,
	};
	struct s3_header_writer writer;

	memcpy(header.uuid, v->super.uuid, S3_UUID);
	memcpy(header.instance, v->instance, S3_UUID);
	s3_header_begin(&writer, &header, buffer, S3_ALIGN);
	return s3_header_finish(&writer, NULL);
}

/* The last writer did not close: it may be alive. */
static int refuse_in_use(struct s3_volume *v)
{
	char when[64] = "";
	time_t last = (time_t)(v->last_time / 1000000);

	if (last)
		snprintf(when, sizeof when, " (it wrote %" PRId64 " s ago)",
			(int64_t)(time(NULL) - last));
	return s3_volume_refuse(v, -EBUSY,
		"volume=%s: its last writer did not close it%s and may be serving it; give the "
		"control= of that server, end it, or use --take-over",
		v->name, when);
}

/* May the volume be had as it is, which then is known up to its end? */
static int check_end(struct s3_volume *v)
{
	bool closed = s3_closed_cleanly(v);

	if (v->ours)
		return 0;
	if (v->host.clients_remain && !closed)
		return s3_volume_refuse_clients(v, "its last server did not close it");
	if (v->host.clients_remain && s3_session(v->predecessor) != v->host.clients_session)
		return s3_volume_refuse_clients(v, "another server has had it since its last one");
	return v->polite && !closed ? refuse_in_use(v) : 0;
}

/* The fence, with its header decoded. As s3_volume_put_at(). */
static int put_fence(struct s3_volume *v, uint64_t seq, uint64_t epoch, const char *stale,
	uint8_t *buffer, struct s3_object_header *header, struct s3_request *req)
{
	struct iovec iov = {buffer, build_mark(v, S3_TYPE_FENCE, seq, epoch, buffer)};
	char key[S3_KEY_MAX + 1];
	int r;

	if (s3_header_decode(buffer, iov.iov_len, v->super.uuid, header) != S3_GOOD)
		return s3_volume_refuse(
			v, -EINVAL, "volume=%s: its fence cannot be built", v->name);
	s3_volume_object_key(v, seq, key);
	s3_failpoint(S3_FAIL_FENCE_PUT_BEFORE);
	r = s3_volume_put_at(v, key, &iov, 1, *stale ? stale : NULL, v->deadline, req);
	if (r == 0)
		s3_failpoint(S3_FAIL_FENCE_PUT_AFTER);
	else if (r != -EEXIST && !(r == -ENOENT && *stale))
		s3_volume_refuse(v, r, "%s", req->message);
	return r;
}

/* The highest epoch that is known of, our fences ahead included. */
static uint64_t highest_epoch(const struct s3_volume *v, const struct s3_recovery *p)
{
	uint64_t highest = v->epoch > v->super.epoch ? v->epoch : v->super.epoch;

	return p->ahead > highest ? p->ahead : highest;
}

/*
 * Stops a writer that stores objects faster than we follow: a fence ahead of it, at a number H that
 * none of its uploads has come to. The first number that is free when we ask is that of an upload
 * under way, so that the fence itself, which has to stand at the end, would always come too late.
 *
 * - The other writer ends at H: his object does not replace ours, so that his frontier stays below
 *   H, and what he had acknowledged is below H. He has to be followed for at most so far.
 * - Nothing is decided by it. Our fence is put as ever, where the log ends, and only who got it in
 *   there has the volume. All objects below that have been applied by then, and no older writer
 *   acknowledges anything behind it: the same as without a fence ahead.
 * - If the log has come to H before our fence stood, the fence ahead is an object of the log, which
 *   holds nothing. Our fence then stands right behind it. What the other writer had under way
 *   behind H is of a lower epoch, and so absent: its predecessor H never was his, so that none of
 *   it was acknowledged.
 * - If not, our fence is below H, and has a higher epoch than the one at H, which is then absent to
 *   everybody, as what a fenced writer left behind is, and replaced when the log comes there.
 * - If we end before our fence stands, a next writer either finds H at the end of the log and goes
 *   on behind it; or he puts his fence below H. A fence has an even epoch, a fence ahead an odd
 *   one, and each the next one to the highest that its writer knew of. So his is higher: H is
 *   absent to him and to who comes after him. (Where the log holds odd epochs of older programs or
 *   of a fence ahead it can be lower: he then ends when he comes to H, as after a takeover.)
 */
static int fence_ahead(struct s3_volume *v, struct s3_recovery *p)
{
	uint8_t *buffer = aligned_alloc(S3_ALIGN, S3_ALIGN);
	int r = buffer ? -EEXIST : -ENOMEM;

	p->ahead = (highest_epoch(v, p) + 1) | 1;
	/* Who is ahead by so many objects has stored them while we read as many: soon we overtake.
	 */
	for (uint64_t by = AHEAD; r == -EEXIST && by <= AHEAD_MAX; by *= 2) {
		struct s3_object_header header;
		struct s3_request req;

		r = put_fence(v, v->applied + by, p->ahead, "", buffer, &header, &req);
	}
	free(buffer);
	return r == -EEXIST ? 0 : r; /* it is only followed, then */
}

/* Stops a writer at work, once, if he may be driven away. */
static int stop_writer(struct s3_volume *v, struct s3_recovery *p)
{
	int r;

	if (p->ahead || !v->conditional)
		return 0;
	r = s3_writeback_check(v, &p->chain);
	if (r == 0)
		r = check_end(v);
	return r ? r : fence_ahead(v, p);
}

/* Puts the fence at the end of the log, wherever that has moved to. */
static int fence(struct s3_volume *v, struct s3_recovery *p)
{
	char key[S3_KEY_MAX + 1], stale[S3_ETAG_MAX + 1] = "";
	uint8_t *buffer = aligned_alloc(S3_ALIGN, S3_ALIGN);
	struct s3_object_header header;
	unsigned missed = 0;
	int r = !buffer ? -ENOMEM : p->mine;

	while (r == 0) {
		uint64_t seq = v->applied + 1;
		struct s3_request req;

		r = check_end(v);
		if (r)
			break;
		/* The next even one, see fence_ahead(). */
		p->epoch = (highest_epoch(v, p) + 2) & ~UINT64_C(1);
		r = put_fence(v, seq, p->epoch, stale, buffer, &header, &req);
		if (r == -EEXIST || (r == -ENOENT && *stale)) {
			s3_volume_object_key(v, seq, key);
			r = meet(v, p, seq, p->epoch, key, stale);
			if (r == 0 && ++missed >= PATIENCE)
				r = stop_writer(v, p);
			if (r == 0 && missed >= PATIENCE && !*stale)
				r = follow(v, p, WINDOW);
			continue;
		}
		if (r == 0)
			r = 1;
	}
	/* It may have been there already when this attempt began. */
	if (r == 1 && !p->mine)
		r = apply(p, &header);
	else if (r == 1)
		r = 0;
	if (r == 0) {
		v->epoch = p->epoch;
		v->ours = p->fenced = true;
	}
	free(buffer);
	return r;
}

/* ---- the end of the log --------------------------------------------------------------- */

/* Follows the log to its end, and makes sure that it is the end. Also AGAIN. */
static int roll_forward(struct s3_volume *v, struct s3_recovery *p)
{
	uint64_t witness = 0;
	unsigned grown = 0;
	int r = 0;

	while (r == 0) {
		uint64_t before = v->applied;

		/* After an orderly end there is nothing. */
		r = follow(v, p, 4);
		if (r == 0)
			r = check_reached(v, p);
		if (r || p->clean)
			break;
		if (witness && v->applied == before) {
			r = newer_root(v, p);
			if (r == 0)
				r = tell_lost(v, witness, p->readonly);
			break;
		}
		/* A log that grows may do so for ever. Who only reads sees one of its moments. */
		grown += witness != 0;
		if (grown == PATIENCE && p->readonly)
			break;
		if (grown == PATIENCE)
			r = stop_writer(v, p);
		/* What a writer at work stored while we looked is there now, so look again. */
		if (r == 0)
			r = find_witness(v, p, &witness);
		if (!witness)
			break;
	}
	return r;
}

uint32_t s3_session(const uint8_t instance[S3_UUID])
{
	uint32_t number;

	memcpy(&number, instance, sizeof number);
	number &= INT32_MAX;
	return number ? number : 1;
}

bool s3_closed_cleanly(const struct s3_volume *v)
{
	return v->applied == 0 || v->last_type == S3_TYPE_CLEAN;
}

int s3_recovery_add(struct s3_recovery *p, const struct iovec *iov, int iovcnt,
	const struct s3_object_header *header)
{
	struct s3_volume *v = p->v;
	char key[S3_KEY_MAX + 1], stale[S3_ETAG_MAX + 1] = "";
	int r = 0;

	s3_volume_object_key(v, header->id, key);
	while (r == 0) {
		struct s3_request req;

		r = s3_volume_put_at(v, key, iov, iovcnt, *stale ? stale : NULL, v->deadline, &req);
		if (r == 0)
			r = 1;
		else if (r == -EEXIST || (r == -ENOENT && *stale))
			r = meet(v, p, header->id, v->epoch, key, stale);
		else
			s3_volume_refuse(v, r, "%s", req.message);
	}
	return r == 1 ? apply(p, header) : r;
}

bool s3_is_drained(struct s3_volume *v)
{
	return v->layout->has_log && !v->backend.readonly && !atomic_load(&v->failed) &&
	       v->frontier == v->applied;
}

/* Finds what a fenced writer left at seq. False: there is something else. */
static bool find_stale(struct s3_volume *v, uint64_t seq, char etag[S3_ETAG_MAX + 1])
{
	struct s3_object_header header;
	struct s3_request req;
	enum s3_check check;
	void *data;

	if (s3_volume_get_header(v, seq, &data, &header, &check, &req))
		return false;
	free(data);
	memcpy(etag, req.etag, sizeof req.etag);
	return check == S3_GOOD && header.epoch < v->epoch && *etag;
}

bool s3_close_cleanly(struct s3_volume *v)
{
	uint64_t seq = v->applied + 1;
	char key[S3_KEY_MAX + 1], stale[S3_ETAG_MAX + 1];
	uint32_t deadline = v->deadline;
	struct s3_request req;
	struct iovec iov;
	uint8_t *buffer;
	int r = -ENOMEM;

	if (!s3_is_drained(v))
		return false;
	v->deadline = CLEAN_DEADLINE;
	buffer = aligned_alloc(S3_ALIGN, S3_ALIGN);
	iov = (struct iovec){
		buffer, buffer ? build_mark(v, S3_TYPE_CLEAN, seq, v->epoch, buffer) : 0};
	s3_volume_object_key(v, seq, key);
	if (iov.iov_len)
		r = s3_volume_put_at(v, key, &iov, 1, NULL, v->deadline, &req);
	if (r == -EEXIST && find_stale(v, seq, stale))
		r = s3_volume_put_at(v, key, &iov, 1, stale, v->deadline, &req);
	v->deadline = deadline;
	free(buffer);
	return r == 0;
}

/* The super object tells the size; but nothing that is there is ever cut off. */
static int settle_size(struct s3_volume *v, uint64_t blocks)
{
	uint64_t *size = &v->super.blocks;

	if (!s3_map_is_hole(v->map, *size, S3_BLOCKS_MAX - *size) && blocks > *size)
		*size = blocks;
	if (!s3_map_is_hole(v->map, *size, S3_BLOCKS_MAX - *size))
		return s3_volume_refuse(v, -EIO,
			"volume=%s: holds data beyond its end; restore the volume from a backup",
			v->name);
	return s3_map_resize(v->map, *size);
}

/* From the newest root to the end of the log, which then is ours unless readonly. Also AGAIN. */
static int attempt(struct s3_volume *v, struct s3_recovery *p)
{
	bool again = false;
	int r = load_newest_root(v, p);

	v->ours = false;
	if (r == 0)
		r = roll_forward(v, p);
	if (r || p->readonly)
		return r;
	/* Before anything is changed. */
	r = s3_writeback_check(v, &p->chain);
	if (r == 0)
		r = fence(v, p);
	/*
	 * Up to the fence the writer before us may have stored roots, and deleted what only those
	 * before them need: ours among it, which the next roots might name, and objects of the log,
	 * so that its end is another one. What he deletes later does not matter: before each
	 * deletion he looks whether there is a fence, and what it depends on is stored before that.
	 * So from the roots that we see now on nothing goes that one of them needs.
	 */
	if (r == 0)
		r = newer_root(v, p);
	/* After the fence: until then a writer before us may take or delete one. */
	if (r == 0)
		r = look_at_snapshots(v, p, &again);
	return r == 0 && again ? AGAIN : r;
}

int s3_recover(struct s3_volume *v, bool readonly)
{
	struct s3_recovery *p = calloc(1, sizeof *p);
	int r = -ENOMEM;

	if (p) {
		p->v = v;
		p->readonly = readonly;
		p->window = make_window();
	}
	if (p && p->window)
		do
			r = attempt(v, p);
		while (r == AGAIN);
	if (r == 0 && !readonly)
		r = s3_writeback_attach(v, &p->chain, p);
	if (r == 0)
		r = settle_size(v, p->blocks);
	v->next_seq = v->applied + 1;
	v->frontier = v->sealed = v->applied;
	if (p) {
		if (p->window)
			free_window(p->window);
		free(p->adopt);
		free(p->gc);
	}
	free(p);
	return r;
}
