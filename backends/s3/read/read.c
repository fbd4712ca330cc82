/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reads: each run that the map tells is zeroes, a copy from a batch in memory,
 * or pages of the cache. Those that are not there are got from the store, neighbours together, or
 * from the cache file; where there is no room for them, by one GET straight into the caller's
 * vector. What a GET brings is checked block by block with the checksums in the object's header,
 * which are kept for the objects read and written last. Of data that is transformed the units are
 * got that hold the blocks, once the header has told where they are.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/iov.h"
#include "backends/s3/core/volume.h"

/* Runs looked up at once, and bytes that they cover at most. */
#define RUNS  256
#define PIECE (4u << 20)
/* Lines that these can touch. */
#define WANTS (PIECE / S3_LINE + 2 * RUNS)
/* Pages got at once, and lines that they can touch. */
#define FILL_PAGES (S3_AHEAD_STEP / S3_PAGE)
#define FILL_LINES (FILL_PAGES / S3_LINE_PAGES + 1)
/*
 * Pages that nobody asked for are got along when they lie between others, if there are few of them;
 * or not quite so few, but no more than of the others, or if it is read ahead: a stream may well
 * come to them.
 */
#define GAP_SMALL 4
#define GAP_LARGE 16
/*
 * Neither that nor reading ahead is done when it did not pay so far: when more was got than this
 * many times what was asked for, and that many bytes. Only the last of them count.
 */
#define WASTE_RATIO 2
#define WASTE_LEAST (UINT64_C(64) << 20)
#define WASTE_LAST  (UINT64_C(1) << 30)
/* A GET whose bytes are not what was written is repeated: they may have been changed on the way. */
#define ATTEMPTS 6

/* ---- checksums of objects --------------------------------------------------------- */

struct get;

/* A unit of transformed data. */
struct placed {
	struct s3_unit unit;
	uint32_t at; /* bytes of the stored data before it */
};

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
	uint32_t *crc;	     /* of each block */
	/* Instead of that, if the data is transformed: */
	struct placed *units;
	uint32_t flags;
	uint8_t salt[sizeof((struct s3_object_header *)0)->salt];
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
	return sizeof *e + (uint64_t)e->n * (e->units ? sizeof *e->units : sizeof *e->crc);
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
	free(e->units);
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

/* n: of checksums. */
static struct crcs *insert(struct s3_crc_cache *c, uint64_t id, uint32_t n, bool transformed)
{
	struct crcs *e = calloc(1, sizeof *e);
	size_t room = n ? n : 1;

	if (!e)
		return NULL;
	if (transformed)
		e->units = malloc(room * sizeof *e->units);
	else
		e->crc = malloc(room * sizeof *e->crc);
	if (!e->crc && !e->units) {
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

/* Takes over what the object's header says. */
static void fill_in(struct crcs *e, const struct s3_object_header *header)
{
	uint32_t at = 0;

	e->flags = header->flags;
	memcpy(e->salt, header->salt, sizeof e->salt);
	for (uint32_t i = 0; i < e->n; i++) {
		if (e->crc) {
			e->crc[i] = s3_header_crc(header, i);
			continue;
		}
		e->units[i] = (struct placed){.unit = s3_header_unit(header, i), .at = at};
		at += e->units[i].unit.bytes;
	}
}

void s3_crc_cache_add(struct s3_crc_cache *c, const struct s3_object_header *header)
{
	struct crcs *e;

	pthread_mutex_lock(&c->lock);
	if (!find(c, header->id) && (e = insert(c, header->id, header->n_crc, header->flags != 0)))
		fill_in(e, header);
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

/* One run from the store: of a read, or the first member of a fill. */
struct get {
	struct s3_volume *v;
	struct read *read; /* NULL: of a fill */
	struct get *next;  /* waits for the same checksums */
	struct s3_object object;
	uint32_t slot, first, count; /* blocks in the object's data */
	_Atomic unsigned parts;	     /* data, checksums */
	_Atomic int result;
	unsigned attempts;
	struct crcs *crcs; /* held */
	bool transformed;
	struct iovec stored;  /* of what is transformed: units, which hold the blocks */
	struct iovec both[2]; /* header and stored */
	bool loads;	      /* the header comes along: this is the load of crcs, too */
	void *header;	      /* where it goes if it comes along and is not needed */
	struct s3_request request;
	char key[S3_KEY_MAX + 1];
	struct iovec *iov; /* one before it is free, for the header */
	int iovcnt;
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

/* Fills a part of the read's memory, from position on, from data; NULL: with zeroes. */
static void deliver(struct read *r, uint64_t position, const uint8_t *data, uint64_t length)
{
	s3_iov_fill(r->iov, position, data, length);
}

/* Where a run's bytes go in the read's memory. */
static uint64_t position_of(const struct read *r, const struct s3_run *run)
{
	return (run->lba << r->v->shift) - r->base;
}

static void free_get(struct get *g)
{
	struct s3_volume *v = g->v;

	if (g->crcs) {
		pthread_mutex_lock(&v->crcs->lock);
		g->crcs->refs--;
		shrink(v->crcs);
		pthread_mutex_unlock(&v->crcs->lock);
	}
	s3_objects_unpin(v->objects, g->slot);
	free(g->stored.iov_base);
	free(g->header);
	free(g);
}

static void end_get(struct get *g, int result)
{
	struct read *r = g->read;

	free_get(g);
	end_part(r, result);
}

/* The first block whose bytes are not what was written; count: none. */
static uint32_t first_damaged(const struct get *g)
{
	uint32_t size = g->v->block_size;
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

/* Copies a part of the object's data, from byte position in it on, to where it is wanted. */
static void place(const struct get *g, uint64_t position, const uint8_t *data, uint64_t length)
{
	unsigned shift = g->v->shift;
	uint64_t start = (uint64_t)g->first << shift, end = start + ((uint64_t)g->count << shift);

	if (position < start) {
		data += start - position;
		length -= start - position;
		position = start;
	}
	if (position + length > end)
		length = end - position;
	s3_iov_fill(g->iov, position - start, data, length);
}

/* The units that hold the blocks of a get: the first, and the one after the last. */
static void units_of(const struct get *g, uint32_t *first, uint32_t *end)
{
	unsigned shift = g->v->shift;

	*first = (uint32_t)(((uint64_t)g->first << shift) / S3_UNIT);
	*end = s3_transform_units((size_t)(g->first + g->count) << shift);
}

/* Restores the blocks in unit i of what was got. 0; -EBADMSG: damaged; -ENOMEM, -EIO. */
static int restore_unit(const struct get *g, uint32_t i)
{
	const struct s3_volume *v = g->v;
	const struct crcs *e = g->crcs;
	struct s3_object_header header = {.id = g->object.id, .flags = e->flags};
	uint64_t position = (uint64_t)i * S3_UNIT;
	uint64_t left = ((uint64_t)g->object.blocks << v->shift) - position;
	uint8_t plain[S3_UNIT];
	uint32_t first, end;
	int r;

	memcpy(header.salt, e->salt, sizeof header.salt);
	units_of(g, &first, &end);
	/* All of the object was got before its header told how long it is to be. */
	if (e->units[i].at - e->units[first].at + e->units[i].unit.bytes > g->stored.iov_len)
		return -EBADMSG;
	if (left > S3_UNIT)
		left = S3_UNIT;
	r = s3_transform_decode(v->transforms[g->object.origin], &header, i, &e->units[i].unit,
		(uint8_t *)g->stored.iov_base + (e->units[i].at - e->units[first].at), plain, left);
	if (r == 0)
		place(g, position, plain, left);
	return r;
}

/* Restores all; bad: the first block of the unit that cannot be. As restore_unit(). */
static int restore(const struct get *g, uint32_t *bad)
{
	uint32_t first, end;
	int r = 0;

	units_of(g, &first, &end);
	for (uint32_t i = first; r == 0 && i < end; i++) {
		*bad = (uint32_t)((uint64_t)i * S3_UNIT >> g->v->shift);
		r = restore_unit(g, i);
	}
	return r;
}

/* Are there checksums for all that was asked for? */
static bool has_sums(const struct get *g)
{
	return g->transformed || g->crcs->n >= g->first + g->count;
}

static void submit_get(struct get *g);
static void end_fill(struct get *g, int result);

/* Data, or checksums, or both are there. */
static void end_get_part(struct get *g, int result)
{
	struct s3_volume *v = g->v;
	int none = 0;
	uint32_t bad = g->first;

	if (result)
		atomic_compare_exchange_strong(&g->result, &none, result);
	if (atomic_fetch_sub(&g->parts, 1) != 1)
		return;
	result = atomic_load(&g->result);
	if (result == 0 && g->transformed && !g->stored.iov_base) {
		/* Now it is known what to ask for. */
		atomic_store(&g->parts, 1);
		submit_get(g);
		return;
	}
	if (!g->read) {
		end_fill(g, result);
		return;
	}
	if (result) {
		end_get(g, result == -EACCES ? -EACCES : -EIO);
		return;
	}
	if (g->transformed) {
		result = restore(g, &bad);
	} else if (has_sums(g)) {
		bad = g->first + first_damaged(g);
		result = bad == g->first + g->count ? 0 : -EBADMSG;
	} else {
		result = -EBADMSG;
	}
	if (result != -EBADMSG) {
		end_get(g, result);
		return;
	}
	if (++g->attempts < ATTEMPTS && has_sums(g)) {
		atomic_fetch_add(&v->stats.crc_retries, 1);
		atomic_store(&g->parts, 1);
		submit_get(g);
		return;
	}
	backend_error(&v->host,
		"volume=%s: block %" PRIu32 " of the data of object %s is damaged; run a check and "
		"restore it from a backup",
		v->name, bad, g->key);
	end_get(g, -EIO);
}

static void load_done(struct crcs *e, int result);
static void submit_load(struct crcs *e);
static void check_header(struct crcs *e);

/* A get that is the load of its checksums, too, has come as far as it will. */
static void end_own_load(struct get *g, int result)
{
	g->loads = false;
	if (result == 0)
		check_header(g->crcs);
	else if (result == -ERANGE)
		submit_load(g->crcs); /* the object's end is not there, but its header may be */
	else
		load_done(g->crcs, result);
}

/* The data is there, or will not come. */
static void end_data(struct get *g, int result)
{
	if (g->loads)
		end_own_load(g, result);
	end_get_part(g, result);
}

static void got(struct s3_request *req)
{
	struct get *g = req->opaque;

	/* Of a fill it is told if somebody waits for it. */
	if (req->result && g->read)
		backend_error(&g->v->host, "volume=%s: cannot read %s: %s", g->v->name, g->key,
			req->message);
	end_data(g, req->result);
}

/* What a get of transformed data asks for: where it begins in the stored data. -ENOMEM. */
static int choose_units(struct get *g, uint64_t *at)
{
	const struct placed *units = g->crcs->units;
	uint32_t first, end;
	void *memory;

	units_of(g, &first, &end);
	*at = units[first].at;
	g->stored.iov_len = units[end - 1].at + units[end - 1].unit.bytes - *at;
	memory = realloc(g->stored.iov_base, g->stored.iov_len);
	if (!memory)
		return -ENOMEM;
	g->stored.iov_base = memory;
	return 0;
}

/* Asks for a part of the object, from byte offset on. */
static void submit(struct get *g, const struct iovec *iov, int iovcnt, uint64_t offset)
{
	int r;

	g->request = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_READ,
		.key = g->key,
		.iov = iov,
		.iovcnt = iovcnt,
		.offset = offset,
		.done = got,
		.opaque = g,
	};
	r = s3_store_submit(g->v->store, &g->request);
	if (r)
		end_data(g, r);
}

/* Asks for all of the object: one request for its header and its data. */
static void submit_whole(struct get *g)
{
	struct iovec *iov = g->transformed ? g->both : g->iov - 1;

	iov[0] = (struct iovec){
		g->loads ? g->crcs->iov.iov_base : g->header, g->object.header_bytes};
	if (g->transformed)
		iov[1] = g->stored;
	submit(g, iov, 1 + (g->transformed ? 1 : g->iovcnt), 0);
}

static void submit_get(struct get *g)
{
	uint64_t at = (uint64_t)g->first << g->v->shift;
	int r = g->transformed ? choose_units(g, &at) : 0;

	if (r)
		end_get_part(g, r);
	else if (g->transformed)
		submit(g, &g->stored, 1, g->object.header_bytes + at);
	else
		submit(g, g->iov, g->iovcnt, g->object.header_bytes + at);
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

/* The header is there: is it what was written? */
static void check_header(struct crcs *e)
{
	struct s3_volume *v = e->volume;
	struct s3_object_header header;
	enum s3_check check;

	check = s3_header_decode(
		e->iov.iov_base, e->iov.iov_len, s3_volume_origin_uuid(v, e->origin), &header);
	if (check == S3_GOOD && (tag_of(e->origin, header.id) != e->id || header.n_crc != e->n ||
					!s3_seal_fits(v, &header)))
		check = S3_INVALID;
	if (check == S3_GOOD) {
		fill_in(e, &header);
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

static void loaded(struct s3_request *req)
{
	struct crcs *e = req->opaque;
	struct s3_volume *v = e->volume;

	if (req->result) {
		if (req->result != -ESHUTDOWN)
			backend_error(&v->host, "volume=%s: cannot read %s: %s", v->name, e->key,
				req->message);
		load_done(e, req->result);
		return;
	}
	check_header(e);
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

/*
 * Takes hold of the checksums of g's object. 1: they are at hand; 0: end_get_part() will be called,
 * *load: after the caller has them loaded; -ENOMEM.
 */
static int want_crcs(struct get *g, bool *load)
{
	struct s3_volume *v = g->v;
	struct s3_crc_cache *c = v->crcs;
	uint64_t tag = tag_of(g->object.origin, g->object.id);
	struct crcs *e;
	bool there;

	*load = false;
	pthread_mutex_lock(&c->lock);
	e = find(c, tag);
	if (e) {
		unlink_use(c, e);
		link_newest(c, e);
	} else {
		e = insert(c, tag,
			g->transformed ? s3_transform_units((size_t)g->object.blocks << v->shift)
				       : g->object.blocks,
			g->transformed);
		if (e) {
			e->iov.iov_base = malloc(g->object.header_bytes);
			e->iov.iov_len = g->object.header_bytes;
			e->loading = true;
			e->volume = v;
			e->origin = g->object.origin;
			e->refs = 1;
			strcpy(e->key, g->key);
			*load = e->iov.iov_base != NULL;
			if (!*load) {
				drop(c, e);
				e = NULL;
			}
		}
	}
	if (!e) {
		pthread_mutex_unlock(&c->lock);
		return -ENOMEM;
	}
	e->refs++;
	g->crcs = e;
	there = !e->loading;
	if (!there) {
		g->next = e->waiting;
		e->waiting = g;
	}
	pthread_mutex_unlock(&c->lock);
	return there;
}

/* Makes g a get of all of the object, if that is what it needs and there is memory. */
static bool prepare_whole(struct get *g, bool load)
{
	if (g->first != 0 || g->count != g->object.blocks)
		return false;
	if (g->transformed) {
		/* Who knows where the data is asks for that. */
		if (!load)
			return false;
		g->stored.iov_len = g->object.bytes - g->object.header_bytes;
		g->stored.iov_base = malloc(g->stored.iov_len);
		if (!g->stored.iov_base)
			return false;
	} else if (!load) {
		g->header = malloc(g->object.header_bytes);
		if (!g->header)
			return false;
	}
	g->loads = load;
	return true;
}

/* Asks for the data, and for the checksums if they are not at hand. g is filled but for these. */
static void begin_get(struct get *g)
{
	struct s3_volume *v = g->v;
	bool load, data;
	int there;

	g->transformed = v->transforms != NULL;
	g->parts = g->transformed ? 1 : 2; /* its checksums tell where the data is */
	s3_volume_origin_key(v, g->object.origin, g->object.id, g->key);
	atomic_fetch_add(&v->stats.reads_store, 1);
	there = want_crcs(g, &load);
	if (there) /* nothing else is under way */
		g->parts = 1;
	if (there < 0) {
		end_get_part(g, there);
		return;
	}
	if (prepare_whole(g, load)) {
		if (load)
			g->parts = 2;
		submit_whole(g);
		return;
	}
	data = !g->transformed || there; /* asked now: the load may be the end of g */
	if (load)
		submit_load(g->crcs);
	if (data)
		submit_get(g);
}

/* Starts to read a run, whose object is pinned, from the store. */
static void start_get(struct read *r, const struct s3_run *run)
{
	struct s3_volume *v = r->v;
	uint64_t length = run->count << v->shift;
	int n = s3_iov_slice(r->iov, position_of(r, run), length, NULL);
	struct get *g = calloc(1, sizeof *g + (size_t)(1 + n) * sizeof *g->iov);

	atomic_fetch_add(&r->pending, 1);
	if (!g) {
		end_part(r, -ENOMEM);
		return;
	}
	g->iov = (struct iovec *)(g + 1) + 1;
	g->iovcnt = s3_iov_slice(r->iov, position_of(r, run), length, g->iov);
	g->v = v;
	g->read = r;
	g->slot = run->slot;
	g->first = run->offset;
	g->count = (uint32_t)run->count;
	s3_objects_pin(v->objects, run->slot);
	s3_objects_get(v->objects, run->slot, &g->object);
	begin_get(g);
}

/* ---- lines of the cache ------------------------------------------------------------- */

/* Pages of a line that have to be got. */
struct want {
	struct s3_object object;
	uint32_t slot;
	uint32_t number;
	struct s3_line *line; /* held */
	uint16_t pages;	      /* claimed */
};

/* What is to be got for a piece of a read, or of what is read ahead. */
struct plan {
	struct s3_volume *v;
	bool ahead, generous;
	unsigned n;
	struct want wants[WANTS];
};

/* A ranged GET into pages. */
struct fill {
	struct get get; /* first */
	bool ahead;
	uint32_t first_line;
	unsigned n_lines;
	struct fill_line {
		struct s3_line *line; /* held; NULL: nothing of it is claimed here */
		uint16_t pages, good;
	} lines[FILL_LINES];
	struct iovec iov[];
};

/* A part of a read that waits for pages of one line. */
struct part {
	struct s3_page_waiter waiter; /* first */
	struct read *read;
	struct s3_run run; /* pinned */
};

/* Pages in which blocks of an object's data that are all in one line lie. */
static uint16_t pages_of(const struct s3_volume *v, uint32_t offset, uint64_t count)
{
	uint64_t first = ((uint64_t)offset << v->shift) % S3_LINE;
	uint64_t end = first + (count << v->shift);
	uint32_t below = (1u << first / S3_PAGE) - 1;

	return (uint16_t)(((1u << (end + S3_PAGE - 1) / S3_PAGE) - 1) & ~below);
}

/* Pages that can only be got together with these: blocks, and units, are checked as a whole. */
static uint16_t whole_blocks(
	const struct s3_volume *v, const struct s3_object *object, uint32_t number, uint16_t pages)
{
	uint64_t left = ((uint64_t)object->blocks << v->shift) - (uint64_t)number * S3_LINE;
	unsigned group = v->transforms ? S3_LINE_PAGES : v->block_size / S3_PAGE;
	uint16_t all = 0;

	if (group <= 1)
		return pages;
	for (unsigned i = 0; i < S3_LINE_PAGES && i * S3_PAGE < left; i++)
		if ((pages >> (i / group * group)) & ((1u << group) - 1))
			all |= (uint16_t)(1u << i);
	return all;
}

/* Cuts what is in one line off the beginning of a run. False: nothing is left. */
static bool next_in_line(const struct s3_volume *v, struct s3_run *rest, struct s3_run *part)
{
	uint64_t in_line = S3_LINE - ((uint64_t)rest->offset << v->shift) % S3_LINE;

	if (rest->count == 0)
		return false;
	*part = *rest;
	if (part->count > in_line >> v->shift)
		part->count = in_line >> v->shift;
	rest->lba += part->count;
	rest->offset += (uint32_t)part->count;
	rest->count -= part->count;
	return true;
}

static struct s3_line_key key_of(
	const struct s3_volume *v, const struct s3_object *object, const struct s3_run *part)
{
	return (struct s3_line_key){
		.id = object->id,
		.number = (uint32_t)(((uint64_t)part->offset << v->shift) / S3_LINE),
		.origin = object->origin,
	};
}

/* Copies a part from its line, in which its pages are valid. */
static void copy_part(struct read *r, const struct s3_run *part, const struct s3_line *line)
{
	uint64_t at = ((uint64_t)part->offset << r->v->shift) % S3_LINE;
	uint64_t left = part->count << r->v->shift, position = position_of(r, part);

	while (left) {
		uint64_t n = S3_PAGE - at % S3_PAGE;

		if (n > left)
			n = left;
		deliver(r, position, s3_cache_page(r->v->cache, line, at / S3_PAGE) + at % S3_PAGE,
			n);
		at += n;
		position += n;
		left -= n;
	}
}

/* The pages that a part waited for are there, or could not be got. */
static void part_ready(
	struct s3_page_waiter *waiter, struct s3_line *line, uint16_t valid, int error)
{
	struct part *p = (struct part *)waiter;
	struct read *r = p->read;

	if (valid == waiter->pages) {
		copy_part(r, &p->run, line);
		error = 0;
	} else if (!error) {
		/* Damaged: once more, by itself, and as often as that is done. */
		start_get(r, &p->run);
	}
	s3_cache_release(line);
	s3_objects_unpin(r->v->objects, p->run.slot);
	free(p);
	end_part(r, error);
}

/* Reads a part of which something is not in memory. False: all memory is in use. */
static bool read_part(
	struct plan *plan, struct read *r, const struct s3_run *run, const struct s3_object *object)
{
	struct s3_volume *v = r->v;
	struct s3_line_key key = key_of(v, object, run);
	uint16_t pages = pages_of(v, run->offset, run->count);
	struct part *p = malloc(sizeof *p);
	struct s3_claim claim = {0};

	if (p) {
		*p = (struct part){.waiter = {.ready = part_ready}, .read = r, .run = *run};
		/* It may be ready before the claim returns. */
		s3_objects_pin(v->objects, run->slot);
		atomic_fetch_add(&r->pending, 1);
		s3_cache_claim(v->cache, &key, pages, whole_blocks(v, object, key.number, pages),
			&p->waiter, &claim);
	}
	if (claim.line && claim.valid != pages) {
		if (claim.claimed)
			plan->wants[plan->n++] = (struct want){
				*object, run->slot, key.number, claim.line, claim.claimed};
		else
			s3_cache_release(claim.line);
		return true;
	}
	if (claim.line) {
		copy_part(r, run, claim.line);
		s3_cache_release(claim.line);
	}
	if (p) {
		free(p);
		s3_objects_unpin(v->objects, run->slot);
		atomic_fetch_sub(&r->pending, 1); /* s3_read() has one more */
	}
	return claim.line != NULL;
}

/* Copies what is in memory off the beginning of a run. */
static void read_cached(struct read *r, struct s3_run *rest, const struct s3_object *object)
{
	struct s3_run next = *rest, part;

	while (next_in_line(r->v, &next, &part)) {
		struct s3_line_key key = key_of(r->v, object, &part);
		struct s3_line *line =
			s3_cache_lookup(r->v->cache, &key, pages_of(r->v, part.offset, part.count));

		if (!line)
			return;
		copy_part(r, &part, line);
		s3_cache_release(line);
		*rest = next;
	}
}

/* ---- from the cache file -------------------------------------------------------------- */

struct disk_transfer {
	struct s3_disk_job job; /* first */
	struct s3_volume *v;
	struct s3_line *line; /* held */
};

static void disk_read_done(struct s3_disk_job *job, uint16_t good)
{
	struct disk_transfer *t = (struct disk_transfer *)job;

	s3_cache_settle(t->v->cache, t->line, job->pages, good, 0);
	s3_cache_release(t->line);
	free(t);
}

static void disk_written(struct s3_disk_job *job, uint16_t good)
{
	struct disk_transfer *t = (struct disk_transfer *)job;

	(void)good;
	s3_cache_release(t->line);
	free(t);
}

/* Reads pages of a held line from the cache file, or writes them there. False: not done. */
static bool disk_transfer(struct s3_volume *v, struct s3_line *line, uint16_t pages, bool write)
{
	struct disk_transfer *t = calloc(1, sizeof *t);
	bool accepted;

	if (!t)
		return false;
	t->v = v;
	t->line = line;
	t->job.key = s3_cache_key(line);
	t->job.pages = pages;
	t->job.done = write ? disk_written : disk_read_done;
	for (unsigned i = 0; i < S3_LINE_PAGES; i++)
		if (pages & 1u << i)
			t->job.memory[i] = s3_cache_page(v->cache, line, i);
	s3_cache_hold(line);
	accepted = write ? s3_cachefile_write(v->cachefile, &t->job)
			 : s3_cachefile_read(v->cachefile, &t->job);
	if (!accepted) {
		s3_cache_release(line);
		free(t);
	}
	return accepted;
}

/* Takes from a plan what the cache file has. */
static void read_from_disk(struct plan *plan)
{
	for (unsigned i = 0; i < plan->n; i++) {
		struct want *w = &plan->wants[i];
		struct s3_line_key key = s3_cache_key(w->line);
		uint16_t there = s3_cachefile_find(plan->v->cachefile, &key, w->pages);

		/* The rest has to be whole blocks. */
		if (whole_blocks(plan->v, &w->object, w->number, w->pages & (uint16_t)~there) &
			there)
			there = 0;
		if (there && disk_transfer(plan->v, w->line, there, false))
			w->pages &= (uint16_t)~there;
	}
}

/* ---- from the store --------------------------------------------------------------------- */

/* Consecutive pages of an object's data. */
struct span {
	uint32_t first, end;
};

/* A unit is a line. */
_Static_assert(S3_UNIT == S3_LINE, "units are restored line by line");

/* Restores the pages of a fill: those of a unit that cannot be are not good. */
static void restore_fill(struct fill *f)
{
	uint32_t first, end;

	units_of(&f->get, &first, &end);
	for (uint32_t i = first; i < end; i++) {
		struct fill_line *l = &f->lines[i - f->first_line];

		if (l->good && restore_unit(&f->get, i))
			l->good = 0;
	}
}

/* Checks the pages of a fill: what is not what was written is not good. */
static void check_fill(struct fill *f)
{
	const struct get *g = &f->get;
	const struct s3_volume *v = g->v;

	for (uint32_t b = g->first; b < g->first + g->count; b++) {
		uint64_t at = (uint64_t)b << v->shift, end = at + v->block_size;
		struct fill_line *l = &f->lines[at / S3_LINE - f->first_line];
		uint16_t pages = pages_of(v, b, 1);
		uint32_t crc = 0;

		if ((l->good & pages) != pages)
			continue;
		while (at < end) {
			uint64_t n = S3_PAGE - at % S3_PAGE;

			if (n > end - at)
				n = end - at;
			crc = s3_crc32c(crc,
				s3_cache_page(v->cache, l->line, at % S3_LINE / S3_PAGE) +
					at % S3_PAGE,
				n);
			at += n;
		}
		if (crc != g->crcs->crc[b])
			l->good &= (uint16_t)~pages;
	}
}

/* All of a fill that will come has come. */
static void end_fill(struct get *g, int result)
{
	struct fill *f = (struct fill *)g;
	struct s3_volume *v = g->v;
	bool damaged = false;
	unsigned waited = 0;
	/* Is the object's end not there? Who waits asks for what it needs, which may be. */
	int error = result == 0 || result == -ERANGE ? 0 : result == -EACCES ? -EACCES : -EIO;

	for (unsigned i = 0; i < f->n_lines; i++)
		f->lines[i].good = result || !has_sums(g) ? 0 : f->lines[i].pages;
	if (result == 0 && g->transformed)
		restore_fill(f);
	else if (result == 0 && has_sums(g))
		check_fill(f);
	if (f->ahead)
		atomic_fetch_sub(&v->ahead_now, 1);
	for (unsigned i = 0; i < f->n_lines; i++) {
		struct fill_line *l = &f->lines[i];

		if (!l->line)
			continue;
		damaged |= result == 0 && l->good != l->pages;
		waited += s3_cache_settle(v->cache, l->line, l->pages, l->good, error);
		if (l->good && v->cachefile)
			disk_transfer(v, l->line, l->good, true);
		s3_cache_release(l->line);
	}
	if (damaged)
		atomic_fetch_add(&v->stats.crc_retries, 1);
	if (waited && error && g->request.result)
		backend_error(&v->host, "volume=%s: cannot read %s: %s", v->name, g->key,
			g->request.message);
	free_get(g);
}

/* The wanted pages of a line; NULL: none are. The plan is sorted. */
static const struct want *find_want(const struct plan *plan, unsigned from, uint32_t number)
{
	const struct want *w = &plan->wants[from];

	for (unsigned i = from; i < plan->n && w->slot == plan->wants[from].slot; i++, w++)
		if (w->number == number)
			return w;
	return NULL;
}

/* The line's part of a span; what is in it and not wanted is claimed, too. */
static void claim_line(const struct plan *plan, unsigned from, const struct span *span,
	uint32_t number, struct fill_line *l)
{
	struct s3_cache *cache = plan->v->cache;
	const struct want *w = find_want(plan, from, number);
	struct s3_line_key key = {.id = plan->wants[from].object.id,
		.number = number,
		.origin = plan->wants[from].object.origin};
	uint16_t inside = 0, between;
	struct s3_claim claim = {0};

	for (unsigned i = 0; i < S3_LINE_PAGES; i++) {
		uint32_t page = number * S3_LINE_PAGES + i;

		if (page >= span->first && page < span->end)
			inside |= (uint16_t)(1u << i);
	}
	*l = (struct fill_line){0};
	if (w) {
		l->line = w->line;
		l->pages = w->pages & inside;
	}
	between = inside & (uint16_t)~l->pages;
	if (between)
		s3_cache_claim(cache, &key, between, between, NULL, &claim);
	if (claim.line) {
		l->line = claim.line;
		l->pages |= claim.claimed;
	}
	if (l->pages)
		s3_cache_hold(l->line);
	else
		l->line = NULL;
	if (claim.line)
		s3_cache_release(claim.line);
}

/* Adds memory to a vector; what follows the last entry lengthens it. */
static void add_iov(struct get *g, uint8_t *memory, size_t length)
{
	struct iovec *last = g->iovcnt ? &g->iov[g->iovcnt - 1] : NULL;

	if (last && (uint8_t *)last->iov_base + last->iov_len == memory)
		last->iov_len += length;
	else
		g->iov[g->iovcnt++] = (struct iovec){memory, length};
}

/* Gives the claimed pages of a span up. */
static void abandon(const struct plan *plan, unsigned from, const struct span *span)
{
	for (uint32_t n = span->first / S3_LINE_PAGES; n * S3_LINE_PAGES < span->end; n++) {
		struct fill_line l;

		claim_line(plan, from, span, n, &l);
		if (!l.line)
			continue;
		s3_cache_settle(plan->v->cache, l.line, l.pages, 0, -ENOMEM);
		s3_cache_release(l.line);
	}
}

/* Gets a span of the object of the want at from, which is the first in it. */
static void start_fill(const struct plan *plan, unsigned from, const struct span *span)
{
	struct s3_volume *v = plan->v;
	const struct want *w = &plan->wants[from];
	uint64_t data = (uint64_t)w->object.blocks << v->shift,
		 at = (uint64_t)span->first * S3_PAGE;
	uint64_t end = (uint64_t)span->end * S3_PAGE;
	struct fill *f = calloc(1, sizeof *f + (1 + span->end - span->first) * sizeof *f->iov);

	if (!f) {
		abandon(plan, from, span);
		return;
	}
	if (end > data)
		end = data;
	f->ahead = plan->ahead;
	f->first_line = span->first / S3_LINE_PAGES;
	f->n_lines = (span->end - 1) / S3_LINE_PAGES - f->first_line + 1;
	for (unsigned i = 0; i < f->n_lines; i++)
		claim_line(plan, from, span, f->first_line + i, &f->lines[i]);
	f->get.v = v;
	f->get.object = w->object;
	f->get.slot = w->slot;
	f->get.first = (uint32_t)(at >> v->shift);
	f->get.count = (uint32_t)((end - at) >> v->shift);
	f->get.iov = f->iov + 1;
	atomic_fetch_add(&v->stats.fetched, end - at);
	for (; at < end; at += S3_PAGE) {
		const struct fill_line *l = &f->lines[at / S3_LINE - f->first_line];
		unsigned page = at % S3_LINE / S3_PAGE;
		uint64_t n = end - at < S3_PAGE ? end - at : S3_PAGE;
		uint8_t *memory = l->pages & 1u << page ? s3_cache_page(v->cache, l->line, page)
							: v->unwanted;

		add_iov(&f->get, memory, n);
		/* It is kept, and checked, as a whole. */
		memset(memory + n, 0, memory == v->unwanted ? 0 : S3_PAGE - n);
	}
	s3_objects_pin(v->objects, w->slot);
	if (f->ahead)
		atomic_fetch_add(&v->ahead_now, 1);
	begin_get(&f->get);
}

/* Did it pay so far to get more than what was asked for? */
static bool is_generous(struct s3_volume *v)
{
	uint64_t fetched = atomic_load(&v->stats.fetched), served = atomic_load(&v->stats.served);

	if (fetched + served > WASTE_LAST) {
		atomic_compare_exchange_strong(&v->stats.fetched, &fetched, fetched / 2);
		atomic_compare_exchange_strong(&v->stats.served, &served, served / 2);
	}
	return fetched <= served * WASTE_RATIO + WASTE_LEAST;
}

static int by_place(const void *a, const void *b)
{
	const struct want *x = a, *y = b;

	if (x->slot != y->slot)
		return x->slot < y->slot ? -1 : 1;
	return (x->number > y->number) - (x->number < y->number);
}

/* Sorts the wants and makes one of those of the same line. */
static void tidy(struct plan *plan)
{
	unsigned n = 0;

	qsort(plan->wants, plan->n, sizeof *plan->wants, by_place);
	for (unsigned i = 0; i < plan->n; i++) {
		struct want *w = &plan->wants[i], *last = n ? &plan->wants[n - 1] : NULL;

		if (last && by_place(w, last) == 0) {
			last->pages |= w->pages;
			s3_cache_release(w->line);
		} else {
			plan->wants[n++] = *w;
		}
	}
	plan->n = n;
}

/* The next consecutive wanted pages from page on in the want at *from. False: there are no more. */
static bool next_span(const struct plan *plan, unsigned *from, unsigned *page, struct span *span)
{
	for (; *from < plan->n; ++*from, *page = 0) {
		const struct want *w = &plan->wants[*from];
		unsigned first = *page;

		while (first < S3_LINE_PAGES && !(w->pages & 1u << first))
			first++;
		if (first == S3_LINE_PAGES)
			continue;
		for (*page = first; *page < S3_LINE_PAGES && w->pages & 1u << *page;)
			++*page;
		span->first = w->number * S3_LINE_PAGES + first;
		span->end = w->number * S3_LINE_PAGES + *page;
		return true;
	}
	return false;
}

/* Is the next span worth getting together with one of which so many pages are wanted? */
static bool joins(
	const struct plan *plan, const struct span *span, uint32_t wanted, const struct span *next)
{
	uint32_t gap = next->first - span->end, all = next->end - span->first;

	if (all > FILL_PAGES)
		return false;
	if (gap == 0)
		return true;
	return plan->generous &&
	       (gap <= GAP_SMALL ||
		       (gap <= GAP_LARGE &&
			       (plan->ahead || all <= 2 * (wanted + next->end - next->first))));
}

/* Gets what a plan wants; it is empty then. */
static void carry_out(struct plan *plan)
{
	struct s3_volume *v = plan->v;
	unsigned from = 0, page = 0;
	struct span span, next;
	bool more;

	if (plan->n == 0)
		return;
	plan->generous = is_generous(v);
	tidy(plan);
	if (v->cachefile)
		read_from_disk(plan);
	more = next_span(plan, &from, &page, &next);
	while (more) {
		unsigned first = from;
		uint32_t wanted = next.end - next.first;

		span = next;
		while ((more = next_span(plan, &from, &page, &next)) &&
			plan->wants[from].slot == plan->wants[first].slot &&
			joins(plan, &span, wanted, &next)) {
			wanted += next.end - next.first;
			span.end = next.end;
		}
		start_fill(plan, first, &span);
	}
	for (unsigned i = 0; i < plan->n; i++)
		s3_cache_release(plan->wants[i].line);
	plan->n = 0;
}

/* ---- reads ------------------------------------------------------------------------------- */

static void read_run(struct plan *plan, struct read *r, const struct s3_run *run)
{
	struct s3_volume *v = r->v;
	struct s3_run rest = *run, part;
	struct s3_object object;
	struct s3_batch *b;

	if (run->slot == S3_NO_SLOT) {
		deliver(r, position_of(r, run), NULL, run->count << v->shift);
		return;
	}
	s3_objects_get(v->objects, run->slot, &object);
	read_cached(r, &rest, &object);
	b = rest.count ? s3_log_hold(v, run->slot) : NULL;
	if (b) {
		int none = 0;

		if (s3_log_wait_copied(b, rest.offset, (uint32_t)rest.count))
			deliver(r, position_of(r, &rest),
				b->data + ((size_t)rest.offset << v->shift),
				rest.count << v->shift);
		else
			atomic_compare_exchange_strong(&r->result, &none, -EIO);
		s3_log_release(v, b);
		atomic_fetch_add(&v->stats.reads_memory, 1);
		return;
	}
	atomic_fetch_add(&v->stats.served, run->count << v->shift);
	/* Its size is known since it is not in memory any more. */
	if (rest.count)
		s3_objects_get(v->objects, run->slot, &object);
	while (next_in_line(v, &rest, &part)) {
		if (read_part(plan, r, &part, &object))
			continue;
		/* One GET for all that is left: one a line costs more than what is got twice. */
		part.count += rest.count;
		start_get(r, &part);
		return;
	}
}

/* The runs of some blocks from lba on, pinned; how many. */
static size_t look_up(struct s3_volume *v, uint64_t lba, uint64_t end, struct s3_run *runs)
{
	uint64_t most = PIECE >> v->shift;

	return s3_map_lookup(v->map, lba, end - lba < most ? end - lba : most, true, runs, RUNS);
}

static void unpin(struct s3_volume *v, const struct s3_run *runs, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (runs[i].slot != S3_NO_SLOT)
			s3_objects_unpin(v->objects, runs[i].slot);
}

void s3_read(struct s3_volume *v, struct backend_request *request)
{
	uint64_t mask = v->block_size - 1;
	uint64_t lba = request->offset >> v->shift;
	uint64_t end = (request->offset + request->length + mask) >> v->shift;
	struct s3_run runs[RUNS];
	struct plan plan;
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
	plan.v = v;
	plan.ahead = false;
	plan.n = 0;
	while (lba < end) {
		size_t n = look_up(v, lba, end, runs);

		for (size_t i = 0; i < n; i++)
			read_run(&plan, r, &runs[i]);
		carry_out(&plan);
		unpin(v, runs, n);
		lba = runs[n - 1].lba + runs[n - 1].count;
	}
	end_part(r, 0);
}

/* Claims what is absent of a run. False: there is no room to read more ahead. */
static bool plan_ahead(struct plan *plan, const struct s3_run *run)
{
	struct s3_volume *v = plan->v;
	struct s3_run rest = *run, part;
	struct s3_object object;
	struct s3_batch *b;

	if (run->slot == S3_NO_SLOT)
		return true;
	b = s3_log_hold(v, run->slot);
	if (b) {
		s3_log_release(v, b);
		return true;
	}
	s3_objects_get(v->objects, run->slot, &object);
	while (next_in_line(v, &rest, &part)) {
		struct s3_line_key key = key_of(v, &object, &part);
		uint16_t pages = pages_of(v, part.offset, part.count);
		struct s3_claim claim;

		s3_cache_claim(v->cache, &key, pages, whole_blocks(v, &object, key.number, pages),
			NULL, &claim);
		if (!claim.line)
			return false;
		if (claim.claimed)
			plan->wants[plan->n++] = (struct want){
				object, run->slot, key.number, claim.line, claim.claimed};
		else
			s3_cache_release(claim.line);
	}
	return true;
}

/* Is a run the first part of an object's data, which a GET could bring as a whole? */
static bool is_beginning(const struct s3_volume *v, const struct s3_run *run)
{
	struct s3_object object;

	if (run->slot == S3_NO_SLOT || run->offset != 0)
		return false;
	s3_objects_get(v->objects, run->slot, &object);
	return run->count < object.blocks && (uint64_t)object.blocks << v->shift <= S3_AHEAD_STEP;
}

void s3_read_ahead(struct s3_volume *v, uint64_t offset, uint64_t length)
{
	uint64_t size = s3_map_blocks(v->map) << v->shift, lba, start, end;
	struct s3_run runs[RUNS];
	struct s3_ahead ahead;
	struct plan plan;
	bool room = true;

	if (!s3_streams_note(v->streams, offset, length, size, &ahead))
		return;
	plan.v = v;
	plan.ahead = true;
	plan.n = 0;
	lba = start = ahead.from >> v->shift;
	end = ahead.to >> v->shift;
	while (room && lba < end && !atomic_load(&v->fenced) && is_generous(v) &&
		atomic_load(&v->ahead_now) < v->ahead_max) {
		size_t n = look_up(v, lba, end, runs), used = n;

		/* An object is best got as a whole: what it begins here waits for the rest. */
		if ((n > 1 || lba > start) && is_beginning(v, &runs[n - 1]))
			room = --used > 0;
		for (size_t i = 0; room && i < used; i++) {
			room = plan_ahead(&plan, &runs[i]);
			if (room)
				lba = runs[i].lba + runs[i].count;
		}
		carry_out(&plan);
		unpin(v, runs, n);
	}
	if (lba < end)
		s3_streams_cut(v->streams, &ahead, lba << v->shift);
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
