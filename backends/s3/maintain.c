/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The keeper's thread: checkpoints, which bound recovery, and garbage
 * collection, which bounds what is stored.
 *
 * A light root costs the headers since the last one, a full root those regions of the map that
 * have changed, and the table. A full one is written when it is cheap against the log since
 * the last full one, which keeps both together below a tenth of the log.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/failpoint.h"
#include "backends/s3/volume.h"

/* A full root may cost this part of the log since the last one. */
#define FULL_SHARE 20
/* A full root this small is written at once. */
#define SMALL_MAP (64u << 10)
/* Summaries that a root names at most. */
#define MAX_SUMMARIES 4096

/* Objects compacted in one go. */
#define GC_OBJECTS 32
/* Compaction begins when less than this part of what is stored is used, in percent... */
#define GC_USED 70
/* ...with objects that are used less than that. */
#define GC_SPARSE 70
/* Small objects that may be there besides one for each full object. */
#define GC_SMALL 64
/* A round of compaction is followed by a pause of this many times its own duration. */
#define GC_PAUSE       3
#define GC_INTERVAL_NS UINT64_C(1000000000)

/* ---- may anything be deleted? -------------------------------------------------------- */

/*
 * Has another writer taken over? Whoever did stands right behind our frontier. 0: no. To be asked
 * before each deletion; a fence that lands afterwards is of a writer that has not yet read
 * what it would need.
 */
static int check_not_fenced(struct s3_volume *v)
{
	struct s3_object_header header;
	struct s3_request req;
	enum s3_check check;
	uint64_t next;
	void *data;
	int r;

	pthread_mutex_lock(&v->lock);
	next = v->frontier + 1;
	pthread_mutex_unlock(&v->lock);
	r = atomic_load(&v->failed);
	if (r)
		return r;
	r = s3_volume_get_header(v, next, &data, &header, &check, &req);
	if (r)
		return r == -ENOENT ? 0 : r;
	free(data);
	if (check != S3_GOOD || header.epoch <= v->epoch)
		return 0;
	s3_volume_fence(v, "another writer took the volume over");
	return -ESTALE;
}

/* ---- checkpoint ----------------------------------------------------------------------- */

/* A checkpoint under way. */
struct checkpoint {
	uint64_t seq;
	bool full;
	struct s3_summary_writer summary;
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
	uint64_t price, light;

	s3_objects_totals(v->objects, &totals);
	price = s3_map_memory(v->map) / 2 + totals.objects * 40;
	pthread_mutex_lock(&v->lock);
	c->summary = v->summary;
	v->summary = (struct s3_summary_writer){0};
	c->log_bytes = v->log_bytes_since_full;
	pthread_mutex_unlock(&v->lock);
	light = c->summary.body.length;
	c->full = v->full_wanted || !v->full || c->summary.body.failed ||
		  v->n_summaries >= MAX_SUMMARIES || price <= SMALL_MAP + light ||
		  price <= c->log_bytes / FULL_SHARE;
	if (!c->full)
		return 0;
	s3_objects_encode(v->objects, &c->table);
	if (c->table.failed)
		return -ENOMEM;

	int r = s3_map_capture(v->map, !v->full, &c->dirty, &c->n_dirty);

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

static int store_summary(struct s3_volume *v, struct checkpoint *c, struct s3_root_summary *part)
{
	struct s3_name name = {.kind = S3_NAME_SUMMARY, .number = c->seq};
	struct s3_buffer out = {0};
	char key[S3_KEY_MAX + 1];
	uint64_t first = c->summary.first, last = c->summary.last;
	struct s3_summary summary = {.epoch = v->epoch, .first = first, .last = last};
	int r;

	memcpy(summary.uuid, v->super.uuid, S3_UUID);
	s3_summary_finish(&c->summary, &summary, &out);
	if (out.failed || last != c->seq) {
		s3_buffer_free(&out);
		return out.failed ? -ENOMEM : -EINVAL;
	}
	s3_volume_key(v, &name, key);
	r = put(v, key, out.data, out.length);
	s3_failpoint(S3_FAIL_CKPT_REGION_AFTER);
	*part = (struct s3_root_summary){
		.first = first,
		.last = last,
		.bytes = (uint32_t)out.length,
		.crc = s3_crc32c(0, out.data, out.length),
	};
	s3_buffer_free(&out);
	return r;
}

/* The root: from here on the checkpoint counts. */
static int store_root(struct s3_volume *v, struct s3_root *root)
{
	struct s3_name name = {.kind = S3_NAME_ROOT, .number = root->seq};
	struct s3_buffer out = {0};
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r;

	memcpy(root->uuid, v->super.uuid, S3_UUID);
	memcpy(root->instance, v->instance, S3_UUID);
	root->epoch = v->epoch;
	root->blocks = v->super.blocks;
	root->next_gc = v->next_gc;
	root->time = (uint64_t)time(NULL);
	s3_root_encode(root, &out);
	if (out.failed) {
		s3_buffer_free(&out);
		return -ENOMEM;
	}
	s3_volume_key(v, &name, key);
	s3_failpoint(S3_FAIL_CKPT_ROOT_BEFORE);
	r = s3_volume_put(v, key, out.data, out.length, v->conditional, &req);
	if (r == 0)
		s3_failpoint(S3_FAIL_CKPT_ROOT_AFTER);
	if (r == -EEXIST && req.retries) {
		/* Ours, whose reply was lost, or another writer's: then it has fenced us. */
		r = check_not_fenced(v);
	} else if (r == -EEXIST) {
		r = check_not_fenced(v);
		if (r == 0)
			r = -EEXIST;
	} else if (r) {
		backend_error(&v->host, "volume=%s: checkpoint: %s", v->name, req.message);
	}
	if (r == 0)
		atomic_fetch_add(&v->stats.checkpoint_bytes, out.length);
	s3_buffer_free(&out);
	return r;
}

static int store_light(struct s3_volume *v, struct checkpoint *c)
{
	struct s3_root_summary *all =
		realloc(v->summaries, (v->n_summaries + 1) * sizeof *v->summaries);
	struct s3_root root = {.seq = c->seq, .base = v->full};
	int r;

	if (!all)
		return -ENOMEM;
	v->summaries = all;
	r = store_summary(v, c, &all[v->n_summaries]);
	if (r)
		return r;
	root.summaries = all;
	root.n_summaries = v->n_summaries + 1;
	r = store_root(v, &root);
	if (r == 0) {
		v->n_summaries++;
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
		r = store_root(v, &root);
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
	v->full_wanted = false;
	pthread_mutex_lock(&v->lock);
	v->log_bytes_since_full -= c->log_bytes;
	pthread_mutex_unlock(&v->lock);
	atomic_fetch_add(&v->stats.full_roots, 1);
	return 0;
}

/* ---- roots that are not needed any more ------------------------------------------------ */

/* Of the newest two roots and what they need, is the key a part? */
struct keep {
	uint64_t newest, newest_full, previous, previous_full;
	const struct s3_root_region *regions, *previous_regions;
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

static bool needed(const struct keep *k, const struct s3_name *name)
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
		       names_region(k->previous_regions, k->n_previous_regions, name);
	default:
		return true;
	}
}

/* Deletes what no root needs that recovery may start from. Nothing depends on it. */
static void delete_old_roots(struct s3_volume *v, const struct keep *k)
{
	char prefix[S3_KEY_MAX + 1], *token = NULL;
	int r = check_not_fenced(v);

	snprintf(prefix, sizeof prefix, "%sckpt/", v->base);
	do {
		struct s3_request req = {
			.op = S3_LIST,
			.pool = S3_POOL_BACKGROUND,
			.key = prefix,
			.token = token,
		};

		if (r == 0)
			r = s3_store_call(v->store, &req);
		free(token);
		token = NULL;
		if (r)
			return;
		for (size_t i = 0; r == 0 && i < req.listing.n_objects; i++) {
			const char *key = req.listing.objects[i].key;
			struct s3_request del;
			struct s3_name name;

			if (s3_name_parse(key + strlen(v->base), &name) && !needed(k, &name))
				r = s3_volume_delete(v, key, &del);
		}
		token = req.listing.token ? strdup(req.listing.token) : NULL;
		s3_listing_free(&req.listing);
	} while (token);
}

/* ---- a checkpoint ---------------------------------------------------------------------- */

/* The root is stored: what died before the one that it replaces may go, after a while. */
static void committed(struct s3_volume *v, uint64_t seq)
{
	pthread_mutex_lock(&v->lock);
	v->previous = v->checkpoint;
	v->checkpoint = seq;
	pthread_mutex_unlock(&v->lock);
	if (v->next_delete_ns == 0) {
		v->next_delete_limit = v->previous;
		v->next_delete_ns = s3_now() + v->gc_delay_ns;
	}
}

int s3_checkpoint(struct s3_volume *v)
{
	struct checkpoint c = {0};
	struct s3_root_region *old_regions = NULL;
	uint64_t old_full = v->full, old_root = v->checkpoint;
	uint32_t n_old = 0;
	int r;

	c.seq = s3_log_pause(v);
	r = atomic_load(&v->failed);
	if (r == 0 && c.seq > v->checkpoint)
		r = capture(v, &c);
	else
		c.seq = 0;
	s3_log_resume(v);
	if (r == 0 && c.seq == 0)
		return 0;
	if (r == 0)
		r = s3_log_wait(v, c.seq);
	if (r == 0 && c.full && v->n_regions) {
		n_old = v->n_regions;
		old_regions = malloc(n_old * sizeof *old_regions);
		if (old_regions)
			memcpy(old_regions, v->regions, n_old * sizeof *old_regions);
		else
			r = -ENOMEM;
	}
	if (r == 0)
		r = c.full ? store_full(v, &c) : store_light(v, &c);
	else if (c.captured)
		s3_map_capture_end(v->map, false);
	if (r) {
		v->full_wanted = true; /* the headers are gone */
	} else {
		committed(v, c.seq);
		if (c.full)
			delete_old_roots(v, &(struct keep){
						    .newest = c.seq,
						    .newest_full = v->full,
						    .previous = old_root,
						    .previous_full = old_full,
						    .regions = v->regions,
						    .n_regions = v->n_regions,
						    .previous_regions = old_regions,
						    .n_previous_regions = n_old,
					    });
	}
	s3_summary_abandon(&c.summary);
	s3_buffer_free(&c.table);
	free(old_regions);
	free(c.dirty);
	free(c.regions);
	return r;
}

/* ---- garbage: dead objects -------------------------------------------------------------- */

/* Deletes n objects whose slots are ours. */
static void delete_objects(struct s3_volume *v, const uint32_t *slots, size_t n)
{
	char(*text)[S3_KEY_MAX + 1] = calloc(n, sizeof *text);
	const char **keys = calloc(n, sizeof *keys);
	int *results = calloc(n, sizeof *results);
	struct s3_request req = {
		.op = S3_DELETE_MANY,
		.pool = S3_POOL_BACKGROUND,
		.keys = keys,
		.key_results = results,
		.n_keys = n,
	};
	int r = text && keys && results ? check_not_fenced(v) : -ENOMEM;

	for (size_t i = 0; r == 0 && i < n; i++) {
		struct s3_object object;

		s3_objects_get(v->objects, slots[i], &object);
		s3_volume_object_key(v, object.id, text[i]);
		keys[i] = text[i];
		results[i] = -EIO;
	}
	if (r == 0) {
		s3_failpoint(S3_FAIL_DELETE_BEFORE);
		s3_store_call(v->store, &req);
		s3_failpoint(S3_FAIL_DELETE_AFTER);
	}
	for (size_t i = 0; i < n; i++) {
		if (r == 0 && results[i] == 0 && s3_objects_remove(v->objects, slots[i]) == 0)
			atomic_fetch_add(&v->stats.deleted, 1);
		else
			s3_objects_put_back(v->objects, slots[i]);
	}
	free(results);
	free(keys);
	free(text);
}

static void collect_dead(struct s3_volume *v)
{
	uint32_t slots[S3_DELETE_MAX];
	size_t n;

	if (v->next_delete_ns && s3_now() >= v->next_delete_ns) {
		v->delete_limit = v->next_delete_limit;
		v->next_delete_ns = 0;
		if (v->delete_limit < v->previous) {
			v->next_delete_limit = v->previous;
			v->next_delete_ns = s3_now() + v->gc_delay_ns;
		}
	}
	n = s3_objects_take_dead(v->objects, v->delete_limit, slots, S3_DELETE_MAX);
	if (n)
		delete_objects(v, slots, n);
}

/* ---- garbage: sparse and small objects ---------------------------------------------------- */

/* A run of blocks that are to move. */
struct piece {
	uint64_t lba;
	uint32_t count, source; /* index in the round */
	uint32_t offset;	/* block in the source's data */
};

struct source {
	uint32_t slot;
	struct s3_object object;
	void *data; /* the whole object */
	size_t length;
	struct s3_object_header header;
};

struct round {
	struct source sources[GC_OBJECTS];
	size_t n_sources;
	struct piece *pieces;
	size_t n_pieces, room;
};

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

/* Finds the blocks of a source that are alive, through the records that wrote them. */
static int find_live(struct s3_volume *v, struct round *round, uint32_t index)
{
	struct source *s = &round->sources[index];
	struct s3_record record;
	size_t cursor = 0;
	int r = 0;

	while (r == 0 && s3_header_next(&s->header, &cursor, &record)) {
		uint64_t lba = record.lba, end = record.lba + record.count;

		if (record.op != S3_RECORD_WRITE)
			continue;
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

/* Reads a source, and checks all of it that is alive. A damaged one is left alone. */
static int read_source(struct s3_volume *v, struct round *round, uint32_t index)
{
	struct source *s = &round->sources[index];
	size_t first = round->n_pieces;
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r;

	s3_volume_object_key(v, s->object.id, key);
	r = s3_volume_get_all(v, key, &s->data, &s->length, &req);
	if (r)
		return r;
	if (s3_header_decode(s->data, s->length, v->super.uuid, &s->header) != S3_GOOD ||
		s->header.id != s->object.id ||
		s->length != (uint64_t)s->header.header_bytes + s->header.data_bytes)
		return -EIO;
	r = find_live(v, round, index);
	for (size_t i = first; r == 0 && i < round->n_pieces; i++) {
		const struct piece *p = &round->pieces[i];

		for (uint32_t b = p->offset; r == 0 && b < p->offset + p->count; b++)
			if (s3_crc32c(0,
				    (uint8_t *)s->data + s->header.header_bytes +
					    ((size_t)b << v->shift),
				    v->block_size) != s3_header_crc(&s->header, b))
				r = -EIO;
	}
	if (r == -EIO)
		backend_error(&v->host,
			"volume=%s: %s is damaged; run a check and restore it from a backup",
			v->name, key);
	return r;
}

static int by_lba(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	return (x->lba > y->lba) - (x->lba < y->lba);
}

/* A GC object that is being put together. */
struct target {
	struct s3_header_writer writer;
	uint8_t *header, *data;
	size_t room;
	uint32_t *crcs;
	struct s3_record *records;
	size_t n_records;
	uint32_t blocks;
};

/* Stores the object, then moves the map to it. Its failure leaves an object that nobody knows. */
static int store_target(struct s3_volume *v, struct target *t)
{
	struct s3_object object = {.blocks = t->blocks};
	struct iovec iov[2];
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	size_t bytes;
	int r;

	t->writer.header.blocks = t->blocks;
	bytes = s3_header_finish(&t->writer, t->crcs);
	if (bytes == 0)
		return -EINVAL;
	iov[0] = (struct iovec){t->header, bytes};
	iov[1] = (struct iovec){t->data, (size_t)t->blocks << v->shift};
	object.id = t->writer.header.id;
	object.header_bytes = (uint32_t)bytes;
	object.bytes = (uint32_t)(bytes + iov[1].iov_len);
	s3_volume_object_key(v, object.id, key);
	req = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.iov = iov,
		.iovcnt = 2,
		.if_none_match = v->conditional,
	};
	r = s3_store_call(v->store, &req);
	if (r)
		return r;
	s3_failpoint(S3_FAIL_RELOCATE_PUT_AFTER);
	r = s3_log_relocate(v, &object, t->records, t->n_records);
	if (r)
		return r;
	s3_crc_cache_add(v->crcs, object.id, t->crcs, t->blocks);
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
		.id = v->next_gc++,
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
	uint32_t n = v->batch_blocks - t->blocks;

	if (n > p->count)
		n = p->count;
	memcpy(t->data + ((size_t)t->blocks << v->shift),
		(uint8_t *)s->data + s->header.header_bytes + ((size_t)p->offset << v->shift),
		(size_t)n << v->shift);
	for (uint32_t i = 0; i < n; i++)
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

/* Writes all pieces into new objects, in the order of the volume's blocks. */
static int move_pieces(struct s3_volume *v, struct round *round)
{
	struct target t = {.room = s3_header_room(v->batch_blocks, v->batch_blocks, v->shift, 0)};
	int r = 0;

	t.room = (t.room + S3_ALIGN - 1) / S3_ALIGN * S3_ALIGN;
	t.header = aligned_alloc(S3_ALIGN, t.room);
	t.data = malloc(v->batch_size);
	t.crcs = malloc(v->batch_blocks * sizeof *t.crcs);
	t.records = malloc(v->batch_blocks * sizeof *t.records);
	if (!t.header || !t.data || !t.crcs || !t.records)
		r = -ENOMEM;
	else
		begin_target(v, &t);
	for (size_t i = 0; r == 0 && i < round->n_pieces; i++) {
		struct piece p = round->pieces[i];

		while (r == 0 && p.count) {
			uint32_t n = add_to_target(v, round, &t, &p);

			p.lba += n;
			p.offset += n;
			p.count -= n;
			if (t.blocks == v->batch_blocks) {
				r = store_target(v, &t);
				begin_target(v, &t);
			}
		}
	}
	if (r == 0 && t.blocks)
		r = store_target(v, &t);
	free(t.records);
	free(t.crcs);
	free(t.data);
	free(t.header);
	return r;
}

/* Moves what is alive in some sparse or small objects into new ones. How many objects. */
static size_t compact(struct s3_volume *v, unsigned percent, bool small)
{
	uint32_t slots[GC_OBJECTS];
	struct round *round = calloc(1, sizeof *round);
	size_t n =
		round ? s3_objects_take_sparse(v->objects, percent, small, slots, GC_OBJECTS) : 0;
	int r = check_not_fenced(v);

	for (size_t i = 0; r == 0 && i < n; i++) {
		struct source *s = &round->sources[round->n_sources];

		s->slot = slots[i];
		s3_objects_get(v->objects, s->slot, &s->object);
		r = read_source(v, round, (uint32_t)round->n_sources++);
	}
	if (r == 0 && n) {
		qsort(round->pieces, round->n_pieces, sizeof *round->pieces, by_lba);
		r = move_pieces(v, round);
	}
	for (size_t i = 0; i < n; i++)
		s3_objects_put_back(v->objects, slots[i]);
	for (size_t i = 0; round && i < round->n_sources; i++)
		free(round->sources[i].data);
	if (round)
		free(round->pieces);
	free(round);
	return r ? 0 : n;
}

/* Compacts if too much of what is stored is garbage, or there are too many objects. */
static bool compact_if_needed(struct s3_volume *v)
{
	struct s3_objects_totals t;
	bool small, sparse;

	s3_objects_totals(v->objects, &t);
	small = t.small > GC_SMALL + 2 * t.live / v->batch_blocks;
	/* What is dead goes without our help. */
	sparse = t.live * 100 < (t.blocks - (t.dead_bytes >> v->shift)) * GC_USED;
	return (small || sparse) && compact(v, sparse ? GC_SPARSE : 0, small) > 0;
}

/* ---- the thread ---------------------------------------------------------------------------- */

static bool checkpoint_due(const struct s3_volume *v)
{
	return v->frontier - v->checkpoint >= v->checkpoint_every;
}

/* Under the lock. */
static void wait_until(struct s3_volume *v, uint64_t due)
{
	struct timespec until = {
		.tv_sec = (time_t)(due / 1000000000), .tv_nsec = (long)(due % 1000000000)};

	while (!v->keeper_stopping && !checkpoint_due(v))
		if (pthread_cond_timedwait(&v->keeper_work, &v->lock, &until) == ETIMEDOUT)
			break;
}

void *s3_keeper(void *volume)
{
	struct s3_volume *v = volume;
	uint64_t next_gc = s3_now() + GC_INTERVAL_NS;

	pthread_mutex_lock(&v->lock);
	while (!v->keeper_stopping) {
		bool failed = atomic_load(&v->failed) != 0;

		if (!failed && checkpoint_due(v)) {
			pthread_mutex_unlock(&v->lock);
			if (s3_checkpoint(v))
				next_gc = s3_now() + GC_INTERVAL_NS;
			pthread_mutex_lock(&v->lock);
			if (checkpoint_due(v) && !v->keeper_stopping && v->full_wanted) {
				/* It failed: not again at once. */
				struct timespec until;
				uint64_t due = s3_now() + GC_INTERVAL_NS;

				until.tv_sec = (time_t)(due / 1000000000);
				until.tv_nsec = (long)(due % 1000000000);
				pthread_cond_timedwait(&v->keeper_work, &v->lock, &until);
			}
		} else if (!failed && s3_now() >= next_gc) {
			uint64_t began = s3_now();

			pthread_mutex_unlock(&v->lock);
			collect_dead(v);
			compact_if_needed(v);
			next_gc = s3_now() + (s3_now() - began) * GC_PAUSE + GC_INTERVAL_NS / 10;
			pthread_mutex_lock(&v->lock);
		} else if (failed) {
			pthread_cond_wait(&v->keeper_work, &v->lock);
		} else {
			wait_until(v, next_gc);
		}
	}
	pthread_mutex_unlock(&v->lock);
	return NULL;
}
