/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reads: each run that the map tells is zeroes, a copy from a batch in memory,
 * or one GET straight into the caller's vector. What a GET brings is checked
 * block by block with the checksums in the object's header, which are kept for
 * the objects read and written last.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/iov.h"
#include "backends/s3/volume.h"

/* Runs looked up at once. */
#define RUNS 64
/* A GET whose bytes are not what was written is repeated: they may have been changed on the way. */
#define ATTEMPTS 6

/* ---- checksums of objects --------------------------------------------------------- */

struct get;

/* Those of one object. */
struct crcs {
	struct crcs *next;	    /* in its bucket */
	struct crcs *newer, *older; /* by use */
	uint64_t id;		    /* tag_of() it */
	uint8_t origin;
	uint32_t n;
	unsigned refs; /* gets that use it, and the load */
	bool loading;
	int result;	     /* of the load */
	struct get *waiting; /* for the load */
	uint32_t *crc;
	/* The load. */
	struct s3_volume *volume;
	struct s3_request request;
	struct iovec iov;
	unsigned attempts;
	char key[S3_KEY_MAX + 1];
};

struct s3_crc_cache {
	pthread_mutex_t lock;
	struct crcs **buckets;
	size_t n_buckets; /* a power of two */
	struct crcs *newest, *oldest;
	uint64_t bytes, limit;
};

struct s3_crc_cache *s3_crc_cache_new(uint64_t bytes)
{
	struct s3_crc_cache *c = calloc(1, sizeof *c);

	if (!c)
		return NULL;
	pthread_mutex_init(&c->lock, NULL);
	c->limit = bytes;
	c->n_buckets = 1024;
	while (c->n_buckets < bytes / 4096)
		c->n_buckets *= 2;
	c->buckets = calloc(c->n_buckets, sizeof *c->buckets);
	if (!c->buckets) {
		s3_crc_cache_free(c);
		return NULL;
	}
	return c;
}

/* What tells the objects of a volume and its ancestors apart: no number has come to these bits. */
static uint64_t tag_of(uint8_t origin, uint64_t id)
{
	return id ^ (uint64_t)origin << 55;
}

static uint64_t cost(const struct crcs *e)
{
	return sizeof *e + (uint64_t)e->n * sizeof *e->crc;
}

static struct crcs **bucket(struct s3_crc_cache *c, uint64_t id)
{
	return &c->buckets[(id ^ id >> 40) & (c->n_buckets - 1)];
}

static struct crcs *find(struct s3_crc_cache *c, uint64_t id)
{
	struct crcs *e = *bucket(c, id);

	while (e && e->id != id)
		e = e->next;
	return e;
}

static void unlink_use(struct s3_crc_cache *c, struct crcs *e)
{
	*(e->newer ? &e->newer->older : &c->newest) = e->older;
	*(e->older ? &e->older->newer : &c->oldest) = e->newer;
}

static void link_newest(struct s3_crc_cache *c, struct crcs *e)
{
	e->newer = NULL;
	e->older = c->newest;
	*(c->newest ? &c->newest->newer : &c->oldest) = e;
	c->newest = e;
}

static void drop(struct s3_crc_cache *c, struct crcs *e)
{
	struct crcs **link = bucket(c, e->id);

	while (*link != e)
		link = &(*link)->next;
	*link = e->next;
	unlink_use(c, e);
	c->bytes -= cost(e);
	free(e->crc);
	free(e);
}

/* Drops what was not used for longest, above the limit. */
static void shrink(struct s3_crc_cache *c)
{
	struct crcs *e = c->oldest;

	while (e && c->bytes > c->limit) {
		struct crcs *newer = e->newer;

		if (e->refs == 0)
			drop(c, e);
		e = newer;
	}
}

static struct crcs *insert(struct s3_crc_cache *c, uint64_t id, uint32_t n)
{
	struct crcs *e = calloc(1, sizeof *e);

	if (!e)
		return NULL;
	e->crc = malloc((n ? n : 1) * sizeof *e->crc);
	if (!e->crc) {
		free(e);
		return NULL;
	}
	e->id = id;
	e->n = n;
	e->next = *bucket(c, id);
	*bucket(c, id) = e;
	link_newest(c, e);
	c->bytes += cost(e);
	return e;
}

void s3_crc_cache_add(struct s3_crc_cache *c, uint64_t id, const uint32_t *crc, uint32_t n)
{
	struct crcs *e;

	pthread_mutex_lock(&c->lock);
	if (!find(c, id) && (e = insert(c, id, n)))
		memcpy(e->crc, crc, n * sizeof *crc);
	shrink(c);
	pthread_mutex_unlock(&c->lock);
}

void s3_crc_cache_free(struct s3_crc_cache *c)
{
	if (!c)
		return;
	while (c->buckets && c->oldest)
		drop(c, c->oldest);
	free(c->buckets);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

/* ---- reads ------------------------------------------------------------------------ */

struct read {
	struct s3_volume *v;
	struct backend_request *request;
	_Atomic unsigned pending; /* gets, and 1 until all have been started */
	_Atomic int result;
	/* Where whole blocks go: the request's vector, or a buffer if it does not end at blocks. */
	const struct iovec *iov;
	uint64_t base; /* byte address of the vector's beginning */
	struct iovec whole;
};

/* One run from the store. */
struct get {
	struct read *read;
	struct get *next; /* waits for the same checksums */
	struct s3_object object;
	uint32_t slot, first, count; /* blocks in the object's data */
	_Atomic unsigned parts;	     /* data, checksums */
	_Atomic int result;
	unsigned attempts;
	struct crcs *crcs; /* held */
	struct s3_request request;
	char key[S3_KEY_MAX + 1];
	struct iovec iov[];
};

static void end_part(struct read *r, int result)
{
	struct backend_request *request = r->request;
	int none = 0;

	if (result)
		atomic_compare_exchange_strong(&r->result, &none, result);
	if (atomic_fetch_sub(&r->pending, 1) != 1)
		return;
	result = atomic_load(&r->result);
	/* Another writer's data may be newer than what was read. */
	if (result == 0 && atomic_load(&r->v->fenced))
		result = -EIO;
	if (result == 0 && r->whole.iov_base) {
		const uint8_t *from =
			(const uint8_t *)r->whole.iov_base + (request->offset - r->base);

		for (int i = 0; i < request->iovcnt; i++) {
			if (request->iov[i].iov_len)
				memcpy(request->iov[i].iov_base, from, request->iov[i].iov_len);
			from += request->iov[i].iov_len;
		}
	}
	free(r->whole.iov_base);
	free(r);
	request->done(request, result);
}

/* Fills a part of the read's memory from data; NULL: with zeroes. */
static void fill(struct read *r, uint64_t lba, const uint8_t *data, uint64_t length)
{
	s3_iov_fill(r->iov, (lba << r->v->shift) - r->base, data, length);
}

static void end_get(struct get *g, int result)
{
	struct s3_volume *v = g->read->v;
	struct read *r = g->read;

	if (g->crcs) {
		pthread_mutex_lock(&v->crcs->lock);
		g->crcs->refs--;
		shrink(v->crcs);
		pthread_mutex_unlock(&v->crcs->lock);
	}
	s3_objects_unpin(v->objects, g->slot);
	free(g);
	end_part(r, result);
}

/* The first block whose bytes are not what was written; count: none. */
static uint32_t first_damaged(const struct get *g)
{
	uint32_t size = g->read->v->block_size;
	const struct iovec *iov = g->iov;
	size_t used = 0;

	for (uint32_t i = 0; i < g->count; i++) {
		uint32_t crc = 0, left = size;

		while (left) {
			size_t n = iov->iov_len - used;

			if (n > left)
				n = left;
			crc = s3_crc32c(crc, (const uint8_t *)iov->iov_base + used, n);
			left -= (uint32_t)n;
			used += n;
			if (used == iov->iov_len) {
				iov++;
				used = 0;
			}
		}
		if (crc != g->crcs->crc[g->first + i])
			return i;
	}
	return g->count;
}

static void submit_get(struct get *g);

/* Data, or checksums, or both are there. */
static void end_get_part(struct get *g, int result)
{
	struct s3_volume *v = g->read->v;
	int none = 0;
	uint32_t bad;

	if (result)
		atomic_compare_exchange_strong(&g->result, &none, result);
	if (atomic_fetch_sub(&g->parts, 1) != 1)
		return;
	result = atomic_load(&g->result);
	if (result) {
		end_get(g, result == -EACCES ? -EACCES : -EIO);
		return;
	}
	bad = g->crcs->n < g->first + g->count ? 0 : first_damaged(g);
	if (bad == g->count) {
		end_get(g, 0);
		return;
	}
	if (++g->attempts < ATTEMPTS && g->crcs->n >= g->first + g->count) {
		atomic_fetch_add(&v->stats.crc_retries, 1);
		atomic_store(&g->parts, 1);
		submit_get(g);
		return;
	}
	backend_error(&v->host,
		"volume=%s: block %" PRIu32 " of the data of object %s is damaged; run a check and "
		"restore it from a backup",
		v->name, g->first + bad, g->key);
	end_get(g, -EIO);
}

static void got(struct s3_request *req)
{
	struct get *g = req->opaque;

	if (req->result)
		backend_error(&g->read->v->host, "volume=%s: cannot read %s: %s", g->read->v->name,
			g->key, req->message);
	end_get_part(g, req->result);
}

static void submit_get(struct get *g)
{
	struct s3_volume *v = g->read->v;
	int r;

	g->request = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_READ,
		.key = g->key,
		.iov = g->iov,
		.iovcnt = s3_iov_slice(g->iov, 0, (uint64_t)g->count << v->shift, NULL),
		.offset = g->object.header_bytes + ((uint64_t)g->first << v->shift),
		.done = got,
		.opaque = g,
	};
	r = s3_store_submit(v->store, &g->request);
	if (r)
		end_get_part(g, r);
}

static void load_done(struct crcs *e, int result)
{
	struct s3_crc_cache *c = e->volume->crcs;
	struct get *waiting;

	pthread_mutex_lock(&c->lock);
	free(e->iov.iov_base);
	e->iov.iov_base = NULL;
	e->loading = false;
	waiting = e->waiting;
	e->waiting = NULL;
	e->refs--;
	if (result) {
		/* Not found again: the next read tries anew. */
		struct crcs **link = bucket(c, e->id);

		while (*link != e)
			link = &(*link)->next;
		*link = e->next;
		e->id = 0;
		e->next = *bucket(c, 0);
		*bucket(c, 0) = e;
	}
	pthread_mutex_unlock(&c->lock);
	while (waiting) {
		struct get *next = waiting->next;

		end_get_part(waiting, result);
		waiting = next;
	}
}

static void submit_load(struct crcs *e);

static void loaded(struct s3_request *req)
{
	struct crcs *e = req->opaque;
	struct s3_volume *v = e->volume;
	struct s3_object_header header;
	enum s3_check check;

	if (req->result) {
		backend_error(
			&v->host, "volume=%s: cannot read %s: %s", v->name, e->key, req->message);
		load_done(e, req->result);
		return;
	}
	check = s3_header_decode(
		e->iov.iov_base, e->iov.iov_len, s3_volume_origin_uuid(v, e->origin), &header);
	if (check == S3_GOOD && (tag_of(e->origin, header.id) != e->id || header.n_crc != e->n))
		check = S3_INVALID;
	if (check == S3_GOOD) {
		for (uint32_t i = 0; i < e->n; i++)
			e->crc[i] = s3_header_crc(&header, i);
		load_done(e, 0);
	} else if (++e->attempts < ATTEMPTS) {
		atomic_fetch_add(&v->stats.crc_retries, 1);
		submit_load(e);
	} else {
		backend_error(&v->host,
			"volume=%s: object %s %s; run a check and restore it from a backup",
			v->name, e->key, s3_check_text(check));
		load_done(e, -EIO);
	}
}

static void submit_load(struct crcs *e)
{
	int r;

	e->request = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_READ,
		.key = e->key,
		.iov = &e->iov,
		.iovcnt = 1,
		.done = loaded,
		.opaque = e,
	};
	r = s3_store_submit(e->volume->store, &e->request);
	if (r)
		load_done(e, r);
}

/* Sees to the checksums of g's object: at hand (true), or end_get_part() will be called. */
static bool want_crcs(struct get *g)
{
	struct s3_volume *v = g->read->v;
	struct s3_crc_cache *c = v->crcs;
	uint64_t tag = tag_of(g->object.origin, g->object.id);
	struct crcs *e;
	bool load = false, there;

	pthread_mutex_lock(&c->lock);
	e = find(c, tag);
	if (e) {
		unlink_use(c, e);
		link_newest(c, e);
	} else {
		e = insert(c, tag, g->object.blocks);
		load = e != NULL;
		if (load) {
			e->iov.iov_base = malloc(g->object.header_bytes);
			e->iov.iov_len = g->object.header_bytes;
			e->loading = true;
			e->volume = v;
			e->origin = g->object.origin;
			e->refs = 1;
			strcpy(e->key, g->key);
			if (!e->iov.iov_base) {
				drop(c, e);
				e = NULL;
			}
		}
	}
	if (!e) {
		pthread_mutex_unlock(&c->lock);
		end_get_part(g, -ENOMEM);
		return false;
	}
	e->refs++;
	g->crcs = e;
	there = !e->loading;
	if (!there) {
		g->next = e->waiting;
		e->waiting = g;
	}
	pthread_mutex_unlock(&c->lock);
	if (load)
		submit_load(e);
	return there;
}

/* Starts to read a run, whose object is pinned, from the store. */
static void start_get(struct read *r, const struct s3_run *run)
{
	struct s3_volume *v = r->v;
	uint64_t position = (run->lba << v->shift) - r->base, length = run->count << v->shift;
	int n = s3_iov_slice(r->iov, position, length, NULL);
	struct get *g = calloc(1, sizeof *g + (size_t)n * sizeof *g->iov);

	atomic_fetch_add(&r->pending, 1);
	if (!g) {
		s3_objects_unpin(v->objects, run->slot);
		end_part(r, -ENOMEM);
		return;
	}
	s3_iov_slice(r->iov, position, length, g->iov);
	g->read = r;
	g->slot = run->slot;
	g->first = run->offset;
	g->count = (uint32_t)run->count;
	g->parts = 2;
	s3_objects_get(v->objects, run->slot, &g->object);
	s3_volume_origin_key(v, g->object.origin, g->object.id, g->key);
	atomic_fetch_add(&v->stats.reads_store, 1);
	if (want_crcs(g)) {
		unsigned parts = 2;

		/* No other part is under way. */
		atomic_compare_exchange_strong(&g->parts, &parts, 1);
	}
	submit_get(g);
}

static void read_run(struct read *r, const struct s3_run *run)
{
	struct s3_volume *v = r->v;
	struct s3_batch *b;

	if (run->slot == S3_NO_SLOT) {
		fill(r, run->lba, NULL, run->count << v->shift);
		return;
	}
	b = s3_log_hold(v, run->slot);
	if (!b) {
		start_get(r, run);
		return;
	}
	s3_log_wait_copied(b, run->offset, (uint32_t)run->count);
	fill(r, run->lba, b->data + ((size_t)run->offset << v->shift), run->count << v->shift);
	s3_log_release(v, b);
	s3_objects_unpin(v->objects, run->slot);
	atomic_fetch_add(&v->stats.reads_memory, 1);
}

void s3_read(struct s3_volume *v, struct backend_request *request)
{
	uint64_t mask = v->block_size - 1;
	uint64_t lba = request->offset >> v->shift;
	uint64_t end = (request->offset + request->length + mask) >> v->shift;
	struct s3_run runs[RUNS];
	struct read *r;

	if (atomic_load(&v->fenced)) {
		request->done(request, -EIO);
		return;
	}
	r = calloc(1, sizeof *r);
	if (!r) {
		request->done(request, -ENOMEM);
		return;
	}
	r->v = v;
	r->request = request;
	r->pending = 1;
	r->base = lba << v->shift;
	r->iov = request->iov;
	if ((request->offset | request->length) & mask) {
		r->whole.iov_len = (end - lba) << v->shift;
		r->whole.iov_base = malloc(r->whole.iov_len);
		r->iov = &r->whole;
		if (!r->whole.iov_base) {
			free(r);
			request->done(request, -ENOMEM);
			return;
		}
	}
	while (lba < end) {
		size_t n = s3_map_lookup(v->map, lba, end - lba, true, runs, RUNS);

		for (size_t i = 0; i < n; i++)
			read_run(r, &runs[i]);
		lba = runs[n - 1].lba + runs[n - 1].count;
	}
	end_part(r, 0);
}

int s3_read_extents(struct s3_volume *v, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque)
{
	uint64_t mask = v->block_size - 1, end = offset + length;
	uint64_t lba = offset >> v->shift, last = (end + mask) >> v->shift;
	struct s3_run runs[RUNS];

	while (lba < last) {
		size_t n = s3_map_lookup(v->map, lba, last - lba, false, runs, RUNS);

		for (size_t i = 0; i < n; i++) {
			struct backend_extent extent = {
				.offset = runs[i].lba << v->shift,
				.hole = runs[i].slot == S3_NO_SLOT,
				.zero = runs[i].slot == S3_NO_SLOT,
			};
			uint64_t stop = (runs[i].lba + runs[i].count) << v->shift;
			int r;

			if (extent.offset < offset)
				extent.offset = offset;
			extent.length = (stop < end ? stop : end) - extent.offset;
			r = fn(opaque, &extent);
			if (r || flags & BACKEND_REQ_ONE)
				return r;
		}
		lba = runs[n - 1].lba + runs[n - 1].count;
	}
	return 0;
}
