/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * From the store to the map: the newest root, then the log after it up to the
 * first object that is not there. The state is what was acknowledged up to some
 * moment, and holds everything that was flushed. Then the fence: an object of
 * the log with a higher epoch, after which no older writer can complete a flush.
 *
 * Only a store's own "no such key" ends the log. Every other failure ends the
 * open. An object of a lower epoch than its predecessor was left by a writer
 * that had been fenced: it counts as absent, and gives way when its number is used.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/failpoint.h"
#include "backends/s3/volume.h"

/* Headers asked for at once, and how much of each object first. */
#define WINDOW	   64
#define FIRST_READ (16u << 10)

/* ---- records ---------------------------------------------------------------------- */

struct replay {
	struct s3_volume *v;
	uint32_t slot;		/* of the log object whose records are applied */
	uint32_t gc[S3_WINDOW]; /* GC objects that it has brought */
	unsigned n_gc;
	uint64_t last_epoch;
	uint64_t newest_root; /* frontier of the newest one that is there, usable or not */
};

static void seal_objects(struct replay *p, uint64_t seq)
{
	if (p->slot != S3_NO_SLOT)
		s3_objects_seal(p->v->objects, p->slot, seq);
	for (unsigned i = 0; i < p->n_gc; i++)
		s3_objects_seal(p->v->objects, p->gc[i], seq);
	p->slot = S3_NO_SLOT;
	p->n_gc = 0;
}

static int apply_header(void *opaque, const struct s3_object_header *header)
{
	struct replay *p = opaque;
	struct s3_volume *v = p->v;

	seal_objects(p, v->applied);
	p->last_epoch = header->epoch;
	v->applied = header->id;
	if (header->type != S3_TYPE_DATA)
		return 0;
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

static int add_gc_object(struct replay *p, uint64_t seq, const struct s3_record *record)
{
	struct s3_volume *v = p->v;
	uint32_t slot;

	if (record->object >= v->next_gc)
		v->next_gc = record->object + 1;
	if (s3_objects_find(v->objects, 0, record->object) != S3_NO_SLOT)
		return 0;
	if (p->n_gc == S3_WINDOW)
		return -EINVAL;
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
	struct replay *p = opaque;
	struct s3_volume *v = p->v;
	uint32_t from, to;

	if (record->op != S3_RECORD_GC_OBJECT && record->op != S3_RECORD_RESET &&
		(record->lba >= v->super.blocks || record->count > v->super.blocks - record->lba))
		return -EINVAL;
	switch (record->op) {
	case S3_RECORD_WRITE:
		return s3_map_update(
			v->map, header->id, record->lba, record->count, p->slot, record->offset);
	case S3_RECORD_ZERO:
	case S3_RECORD_DISCARD:
		return s3_map_punch(v->map, header->id, record->lba, record->count);
	case S3_RECORD_GC_OBJECT:
		return add_gc_object(p, header->id, record);
	case S3_RECORD_RELOCATE:
		from = s3_objects_find(v->objects, 0, record->source);
		to = s3_objects_find(v->objects, 0, record->object);
		if (from == S3_NO_SLOT || to == S3_NO_SLOT)
			return -EINVAL;
		return s3_map_relocate(v->map, header->id, record->lba, record->count, from,
			record->source_offset, to, record->offset, NULL);
	case S3_RECORD_RESET:
		break;
	}
	return -EOPNOTSUPP;
}

/* Applies a header of the log. It is the next one. */
static int apply(struct replay *p, const struct s3_object_header *header)
{
	struct s3_volume *v = p->v;
	struct s3_record record;
	size_t cursor = 0;
	int r = apply_header(p, header);

	while (r == 0 && s3_header_next(header, &cursor, &record))
		r = apply_record(p, header, &record);
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
	v->log_bytes_since_full += header->header_bytes + header->data_bytes;
	v->frontier = header->id;
	if (header->epoch > v->epoch)
		v->epoch = header->epoch;
	atomic_fetch_add(&v->stats.replayed, 1);
	return 0;
}

/* ---- roots ------------------------------------------------------------------------ */

/* Frontiers of all roots that there may be. */
struct roots {
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

static int list_roots(struct s3_volume *v, struct roots *roots)
{
	char prefix[S3_KEY_MAX + 1], *token = NULL;
	int r = 0;

	snprintf(prefix, sizeof prefix, "%sckpt/", v->base);
	do {
		struct s3_request req = {
			.op = S3_LIST,
			.pool = S3_POOL_BACKGROUND,
			.key = prefix,
			.token = token,
			.delimiter = true,
			.retry_deadline = v->deadline,
		};

		r = s3_store_call(v->store, &req);
		free(token);
		if (r)
			return s3_volume_refuse(v, r, "%s", req.message);
		for (size_t i = 0; r == 0 && i < req.listing.n_objects; i++)
			if (req.listing.objects[i].is_prefix)
				r = enter_root(roots, req.listing.objects[i].key + strlen(v->base));
		token = req.listing.token ? strdup(req.listing.token) : NULL;
		s3_listing_free(&req.listing);
	} while (r == 0 && token);
	if (r)
		free(token);
	else if (roots->n)
		qsort(roots->seqs, roots->n, sizeof *roots->seqs, by_age);
	return r;
}

/* -ENOENT: no such root, or a damaged one. Other errors are told. data outlives root. */
static int read_root(struct s3_volume *v, uint64_t seq, void **data, struct s3_root *root)
{
	struct s3_name name = {.kind = S3_NAME_ROOT, .number = seq};
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	enum s3_check check;
	size_t length;
	int r;

	s3_volume_key(v, &name, key);
	r = s3_volume_get_all(v, key, data, &length, &req);
	if (r && r != -ENOENT && r != -ENOMEM)
		return s3_volume_refuse(v, r, "%s", req.message);
	if (r)
		return r;
	check = s3_root_decode(*data, length, v->super.uuid, root);
	if (check == S3_GOOD && (root->seq != seq || root->blocks != v->super.blocks)) {
		s3_root_free(root);
		check = S3_INVALID;
	}
	if (check == S3_GOOD)
		return 0;
	free(*data);
	*data = NULL;
	if (check == S3_NEWER || check == S3_UNKNOWN_FLAG || check == S3_NO_MEMORY)
		return s3_volume_refuse(v, check == S3_NO_MEMORY ? -ENOMEM : -EOPNOTSUPP,
			"volume=%s: %s %s", v->name, key, s3_check_text(check));
	backend_debug(&v->host, "volume=%s: %s %s; an older one is taken", v->name, key,
		s3_check_text(check));
	return -ENOENT;
}

/* A part of a checkpoint, whose checksum is known. As read_root(). */
static int read_part(
	struct s3_volume *v, const struct s3_name *name, uint32_t bytes, uint32_t crc, void **data)
{
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	size_t length;
	int r;

	s3_volume_key(v, name, key);
	r = s3_volume_get_all(v, key, data, &length, &req);
	if (r && r != -ENOENT && r != -ENOMEM)
		return s3_volume_refuse(v, r, "%s", req.message);
	if (r)
		return r;
	if (length == bytes && s3_crc32c(0, *data, length) == crc)
		return 0;
	backend_debug(
		&v->host, "volume=%s: %s is damaged; an older checkpoint is taken", v->name, key);
	free(*data);
	*data = NULL;
	return -ENOENT;
}

static int load_regions(struct s3_volume *v, const struct s3_root *root)
{
	for (uint32_t i = 0; i < root->n_regions; i++) {
		const struct s3_root_region *region = &root->regions[i];
		struct s3_name name = {
			.kind = S3_NAME_REGION, .number = region->seq, .region = region->region};
		enum s3_check check;
		void *data;
		int r = read_part(v, &name, region->bytes, region->crc, &data);

		if (r)
			return r;
		check = s3_map_load(v->map, region->region, data, region->bytes);
		free(data);
		if (check != S3_GOOD)
			return check == S3_NO_MEMORY ? -ENOMEM : -ENOENT;
	}
	return 0;
}

static int load_summaries(struct s3_volume *v, const struct s3_root *root, struct replay *p)
{
	const struct s3_summary_visitor visitor = {
		.header = apply_header, .record = apply_record, .opaque = p};

	for (uint32_t i = 0; i < root->n_summaries; i++) {
		const struct s3_root_summary *part = &root->summaries[i];
		struct s3_name name = {.kind = S3_NAME_SUMMARY, .number = part->last};
		struct s3_summary summary;
		enum s3_check check;
		int stopped = 0, r;
		void *data;

		r = read_part(v, &name, part->bytes, part->crc, &data);
		if (r)
			return r;
		check = s3_summary_decode(
			data, part->bytes, v->super.uuid, &visitor, &summary, &stopped);
		free(data);
		if (stopped)
			return stopped == -ENOMEM ? stopped : -ENOENT;
		if (check != S3_GOOD || summary.first != part->first || summary.last != part->last)
			return check == S3_NO_MEMORY ? -ENOMEM : -ENOENT;
		seal_objects(p, part->last);
	}
	return 0;
}

/* An empty map again. */
static int reset(struct s3_volume *v)
{
	s3_map_free(v->map);
	s3_objects_free(v->objects);
	v->map = NULL;
	v->objects = s3_objects_new(v->batch_blocks);
	if (v->objects)
		v->map = s3_map_new(v->objects, v->super.blocks);
	v->next_gc = S3_GC | 1;
	v->applied = 0;
	return v->map ? 0 : -ENOMEM;
}

/* Takes over what a later checkpoint needs to know of this one. */
static int keep_root(struct s3_volume *v, struct s3_root *full, struct s3_root *root)
{
	v->regions = full->regions;
	v->n_regions = full->n_regions;
	full->regions = NULL;
	full->n_regions = 0;
	v->full = full->seq;
	v->checkpoint = root->seq;
	if (root != full) {
		v->summaries = root->summaries;
		v->n_summaries = root->n_summaries;
		root->summaries = NULL;
		root->n_summaries = 0;
	}
	return 0;
}

/* Loads the root at seq. -ENOENT: it cannot be used. */
static int load_root(struct s3_volume *v, uint64_t seq, struct replay *p)
{
	struct s3_root root, base, *full = &root;
	void *data, *base_data = NULL;
	int r = read_root(v, seq, &data, &root);

	if (r)
		return r;
	if (root.base != root.seq) {
		r = read_root(v, root.base, &base_data, &base);
		if (r == 0)
			full = &base;
		else
			goto out;
	}
	r = reset(v);
	if (r == 0 && (full->base != full->seq || s3_objects_decode(v->objects, full->table,
							  full->table_bytes) != S3_GOOD))
		r = -ENOENT;
	if (r == 0)
		r = load_regions(v, full);
	if (r == 0) {
		if (v->next_gc < full->next_gc)
			v->next_gc = full->next_gc;
		v->applied = full->seq;
		s3_objects_settle(v->objects, full->seq);
		r = load_summaries(v, &root, p);
	}
	if (r == 0) {
		if (v->next_gc < root.next_gc)
			v->next_gc = root.next_gc;
		v->applied = v->frontier = root.seq;
		v->epoch = root.epoch;
		/* Its writer had put a fence before it: what is older than that does not count. */
		p->last_epoch = root.epoch;
		r = keep_root(v, full, &root);
	}
	if (full == &base)
		s3_root_free(&base);
out:
	s3_root_free(&root);
	free(base_data);
	free(data);
	return r;
}

static int load_newest_root(struct s3_volume *v, struct replay *p)
{
	struct roots roots = {0};
	int r = list_roots(v, &roots);
	size_t i;

	for (i = 0; r == 0 && i < roots.n; i++) {
		*p = (struct replay){.v = v};
		r = load_root(v, roots.seqs[i], p);
		if (r == 0)
			break;
		if (r == -ENOENT)
			r = reset(v);
	}
	if (r == 0 && i == roots.n)
		*p = (struct replay){.v = v};
	p->newest_root = roots.n ? roots.seqs[0] : 0;
	free(roots.seqs);
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
static int take(struct s3_volume *v, struct replay *p, uint64_t seq, struct look *l)
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

/* Follows the log to its end. */
static int roll_forward(struct s3_volume *v, struct replay *p)
{
	struct window *w = calloc(1, sizeof *w);
	unsigned n = 4; /* after a clean end there is nothing */
	int r = 0;

	if (!w)
		return -ENOMEM;
	w->memory = malloc((size_t)WINDOW * FIRST_READ);
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->done, NULL);
	if (!w->memory)
		r = -ENOMEM;
	while (r == 0) {
		uint64_t first = v->applied + 1;

		r = look_at(v, w, first, n);
		for (unsigned i = 0; r == 0 && i < n; i++)
			r = take(v, p, first + i, &w->looks[i]);
		n = WINDOW;
	}
	pthread_cond_destroy(&w->done);
	pthread_mutex_destroy(&w->lock);
	free(w->memory);
	free(w);
	return r == 1 ? 0 : r;
}

/* ---- the fence -------------------------------------------------------------------- */

/*
 * What to do about an object that stands where the fence is to be. 0: try again, replacing that of
 * etag stale (""; none). 1: it is ours.
 */
static int meet(struct s3_volume *v, struct replay *p, uint64_t seq, const char *key, char *stale)
{
	struct s3_object_header header;
	struct s3_request req;
	void *data;
	int r = look_again(v, seq, &data, &header, &req);

	*stale = 0;
	if (r)
		return r == -ENOENT ? 0 : r;
	if (memcmp(header.instance, v->instance, S3_UUID) == 0) {
		r = 1; /* its reply was lost */
	} else if (header.epoch >= p->last_epoch) {
		/* Another writer was at work up to now. */
		r = req.object_size == (uint64_t)header.header_bytes + header.data_bytes
			    ? apply(p, &header)
			    : damaged(v, key, "is not as long as it says");
	} else if (req.etag[0]) {
		/* Not deleted: that might meet another writer's fence, put there meanwhile. */
		memcpy(stale, req.etag, sizeof req.etag);
	} else {
		r = damaged(v, key, "comes without an etag");
	}
	free(data);
	return r;
}

/* Puts the fence where nothing is, or in place of the object of etag stale. */
static int put_fence(struct s3_volume *v, const char *key, void *data, size_t length,
	const char *stale, struct s3_request *req)
{
	struct iovec iov = {data, length};

	*req = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.iov = &iov,
		.iovcnt = 1,
		.if_none_match = v->conditional && !*stale,
		.if_match = v->conditional && *stale ? stale : NULL,
		.retry_deadline = v->deadline,
	};
	return s3_store_call(v->store, req);
}

static int fence(struct s3_volume *v, struct replay *p)
{
	char key[S3_KEY_MAX + 1], stale[S3_ETAG_MAX + 1] = "";
	uint8_t *buffer = aligned_alloc(S3_ALIGN, S3_ALIGN);
	uint64_t highest = v->epoch > v->super.epoch ? v->epoch : v->super.epoch;
	int r = buffer ? 0 : -ENOMEM;

	while (r == 0) {
		struct s3_object_header header = {
			.type = S3_TYPE_FENCE,
			.block_shift = v->shift,
			.id = v->applied + 1,
			.batch = v->applied + 1,
			.frontier = v->applied,
			.checkpoint = v->checkpoint,
			.time = (uint64_t)time(NULL) * 1000000,
		};
		struct s3_header_writer writer;
		struct s3_request req;
		size_t bytes;

		if (v->epoch > highest)
			highest = v->epoch;
		header.epoch = highest + 1;
		memcpy(header.uuid, v->super.uuid, S3_UUID);
		memcpy(header.instance, v->instance, S3_UUID);
		s3_header_begin(&writer, &header, buffer, S3_ALIGN);
		bytes = s3_header_finish(&writer, NULL);
		if (bytes == 0) {
			r = -EINVAL;
			break;
		}
		s3_volume_object_key(v, header.id, key);
		s3_failpoint(S3_FAIL_FENCE_PUT_BEFORE);
		r = put_fence(v, key, buffer, bytes, stale, &req);
		if (r == 0)
			s3_failpoint(S3_FAIL_FENCE_PUT_AFTER);
		if (r == -EEXIST || (r == -ENOENT && *stale))
			r = meet(v, p, header.id, key, stale);
		else if (r)
			s3_volume_refuse(v, r, "%s", req.message);
		else
			r = 1;
		if (r == 1 && s3_header_decode(buffer, bytes, v->super.uuid, &header) == S3_GOOD) {
			r = apply(p, &header);
			v->epoch = highest + 1;
			break;
		}
	}
	free(buffer);
	return r;
}

/*
 * A root says that the log was whole up to it. Objects that the two newest roots do not need are
 * deleted, so that the log behind an older one has gaps, which look like its end.
 */
static int check_reached(struct s3_volume *v, uint64_t newest_root)
{
	struct s3_name name = {.kind = S3_NAME_ROOT, .number = newest_root};
	char key[S3_KEY_MAX + 1];

	if (v->applied >= newest_root)
		return 0;
	s3_volume_key(v, &name, key);
	return s3_volume_refuse(v, -EIO,
		"volume=%s: %s or a part of it is damaged or missing, and the log ends before it, "
		"at "
		"object %" PRIu64 "; restore the volume from a backup",
		v->name, key, v->applied);
}

int s3_recover(struct s3_volume *v, bool readonly)
{
	struct replay *p = calloc(1, sizeof *p);
	int r = p ? load_newest_root(v, p) : -ENOMEM;

	if (r == 0)
		r = roll_forward(v, p);
	if (r == 0)
		r = check_reached(v, p->newest_root);
	if (r == 0 && !readonly)
		r = fence(v, p);
	v->next_seq = v->applied + 1;
	v->frontier = v->applied;
	free(p);
	return r;
}
