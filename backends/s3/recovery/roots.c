/* SPDX-License-Identifier: BSD-3-Clause */
/* Roots, from which recovery begins. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/backend.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/recovery/internal.h"
#include "backends/s3/recovery/parts.h"
#include "backends/s3/recovery/recovery.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

/* For changes of the map that summaries bring: at most, of what the cache does not have yet. */
#define BATCH_BYTES (64u << 20)

/* Threads that load regions, for each so many bytes of them one. */
#define LOADERS	     4u
#define LOADER_BYTES (1u << 20)

static int by_age(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x < y) - (x > y);
}

/* Enters the sequence number that a prefix "<base>ckpt/<16 hex>/" holds. */
static int enter_root(struct s3_roots *roots, const char *text)
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
	struct s3_roots *roots = opaque;

	return listed->is_prefix ? enter_root(roots, listed->key + strlen(roots->v->base)) : 0;
}

int s3_recovery_list_roots(struct s3_volume *v, struct s3_roots *roots)
{
	struct s3_request req;
	int r = s3_volume_list(v, "ckpt/", true, enter_listed, roots, &req);

	if (r && r != -ENOMEM)
		return s3_volume_refuse(v, r, "%s", req.message);
	if (r == 0 && roots->n)
		qsort(roots->seqs, roots->n, sizeof *roots->seqs, by_age);
	return r;
}

int s3_is_outdated(struct s3_volume *v, uint64_t since)
{
	struct s3_roots roots = {.v = v};
	int r = s3_recovery_list_roots(v, &roots), there = S3_FOREIGN_ROOT;

	/* Newest first. It may be that of a root that is yet to come: its writer is at work. */
	for (size_t i = 0;
		r == 0 && there == S3_FOREIGN_ROOT && i < roots.n && roots.seqs[i] > since; i++) {
		there = s3_recovery_root_is_there(v, roots.seqs[i]);
		r = there < 0 ? there : there != S3_FOREIGN_ROOT;
	}
	free(roots.seqs);
	return r;
}

/* Reads something whose size is not known. -ENOENT and -ENOMEM are not reported, other errors are.
 */
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
	backend_debug(
		&v->host, "volume=%s: %s %s and is skipped", v->name, key, s3_check_text(check));
	return -ENOENT;
}

int s3_snapshot_read(struct s3_volume *v, const char *base, const uint8_t *uuid, const char *name,
	uint64_t seq, void **data, struct s3_root *root)
{
	struct s3_name n = {.kind = S3_NAME_SNAPSHOT, .number = seq};
	int r;

	strcpy(n.name, name);
	r = s3_root_read(v, base, uuid, &n, data, root);
	n.number = 0;
	if (r == -ENOENT)
		r = s3_root_read(v, base, uuid, &n, data, root);
	if (r || root->seq == seq)
		return r;
	s3_root_free(root);
	free(*data);
	return -ENOENT;
}

int s3_recovery_read_root(struct s3_volume *v, uint64_t seq, void **data, struct s3_root *root)
{
	struct s3_name name = {.kind = S3_NAME_ROOT, .number = seq};
	int r = s3_root_read(v, v->base, v->super.uuid, &name, data, root);

	if (r || root->seq == seq)
		return r;
	s3_root_free(root);
	free(*data);
	return -ENOENT;
}

struct s3_root_part *s3_recovery_parts_of(const struct s3_root *root, bool summaries)
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

int s3_recovery_check_error(enum s3_check check)
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
		r = s3_recovery_check_error(s3_map_load(
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
	struct s3_root_part *parts = s3_recovery_parts_of(root, false);
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
	const struct s3_summary_visitor visitor = {.header = s3_recovery_apply_header,
		.record = s3_recovery_apply_record,
		.opaque = p};
	struct s3_summary summary;
	enum s3_check check;
	int stopped = 0;

	check = s3_summary_decode(
		data, part->bytes, p->v->super.uuid, &visitor, &summary, &stopped);
	if (stopped)
		return stopped == -ENOMEM ? stopped : -ENOENT;
	if (check != S3_GOOD || summary.first != part->first || summary.last != part->last)
		return check == S3_NO_MEMORY ? -ENOMEM : -ENOENT;
	s3_recovery_seal_objects(p, part->last);
	return 0;
}

static int load_summaries(struct s3_volume *v, const struct s3_root *root, struct s3_recovery *p)
{
	struct s3_root_part *all;
	struct s3_parts *parts;
	int r = 1;

	if (!root->n_summaries)
		return 0;
	all = s3_recovery_parts_of(root, true);
	parts = all ? s3_parts_new(v, v->base, all, root->n_summaries) : NULL;
	p->batch = s3_map_batch_new(
		v->map, v->cache_bytes / 2 < BATCH_BYTES ? v->cache_bytes / 2 : BATCH_BYTES);
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

int s3_recovery_load_full(struct s3_volume *v, const char *base, struct s3_root *root)
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
	char base[S3_KEY_MAX + 1];
	struct s3_root root;
	void *data;
	int r;

	snprintf(base, sizeof base, "%s/", parent->path);
	r = s3_snapshot_read(
		v, base, parent->uuid, parent->snapshot, parent->last_seq, &data, &root);
	if (r == 0) {
		r = s3_recovery_load_full(v, base, &root);
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
	int r = s3_recovery_read_root(v, seq, &data, &root);

	if (r)
		return r;
	if (root.base != root.seq) {
		full = &base;
		if (root.base)
			r = s3_recovery_read_root(v, root.base, &base_data, &base);
	}
	if (r == 0)
		r = root.base ? s3_recovery_load_full(v, v->base, full) : load_beginning(v);
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
		.attempts = p->attempts,
		.epoch = p->epoch,
		.put = p->put,
		.end = p->end,
		.ahead = p->ahead,
		.window = p->window};
}

/* Is the root that is there, and whole, another volume's? 1 or S3_FOREIGN_ROOT, or an error. */
static int look_whose(struct s3_volume *v, const struct s3_name *name)
{
	char key[S3_KEY_MAX + 1];
	enum s3_check check;
	struct s3_root root;
	size_t length;
	void *data;
	int r = read_whole(v, v->base, name, key, &data, &length);

	if (r)
		return r == -ENOENT ? 1 : r;
	check = s3_root_decode(data, length, v->super.uuid, &root);
	if (check == S3_GOOD)
		s3_root_free(&root);
	free(data);
	return check == S3_OTHER_VOLUME ? S3_FOREIGN_ROOT : 1;
}

int s3_recovery_root_is_there(struct s3_volume *v, uint64_t seq)
{
	struct s3_name name = {.kind = S3_NAME_ROOT, .number = seq};
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r;

	s3_volume_key(v, &name, key);
	r = s3_volume_any(v, key, &req);
	if (r < 0)
		return s3_volume_refuse(v, r, "%s", req.message);
	return r ? look_whose(v, &name) : 0;
}

/*
 * Loads the root at seq, or says why not: 0: it is not there, and may still come, for its parts
 * are stored before it; 1: it cannot be used; 2: it is loaded; S3_FOREIGN_ROOT.
 */
static int try_root(struct s3_volume *v, uint64_t seq, struct s3_recovery *p)
{
	int there = 0;

	/* Again if it has come meanwhile. */
	for (unsigned i = 0; i < 2; i++) {
		int r = load_root(v, seq, p);

		if (r != -ENOENT)
			return r ? r : 2;
		r = start_over(v);
		begin(p);
		there = r || i ? there : s3_recovery_root_is_there(v, seq);
		if (r || there != 1)
			return r ? r : there;
	}
	return there;
}

int s3_recovery_load_newest_root(struct s3_volume *v, struct s3_recovery *p)
{
	struct s3_roots roots = {.v = v};
	int r = s3_recovery_list_roots(v, &roots);
	uint64_t newest = 0, foreign = 0;

	if (r == 0)
		r = start_over(v);
	begin(p);
	for (size_t i = 0; (r == 0 || r == 1) && i < roots.n; i++) {
		r = try_root(v, roots.seqs[i], p);
		if (r == S3_FOREIGN_ROOT) {
			foreign = foreign ? foreign : roots.seqs[i];
			r = 0;
		} else if (r > 0 && !newest) {
			newest = roots.seqs[i];
		}
	}
	if (r == 0 || r == 1)
		r = load_beginning(v);
	p->newest_root = v->newest_root = newest;
	p->foreign_root = foreign;
	free(roots.seqs);
	return r < 0 ? r : 0;
}
