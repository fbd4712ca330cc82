/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A GET of blocks of one object, checked with the checksums in its header: those in the cache of
 * them, or else the header is fetched as well. For data that is transformed it fetches the units
 * that hold the blocks, once the header has shown where they are.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/base/iov.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "backends/s3/read/internal.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

/* A GET whose bytes are not what was written is repeated: they may have been changed on the way. */
#define ATTEMPTS 6

void s3_read_end_part(struct s3_read *r, int result)
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

void s3_get_free(struct s3_get *g)
{
	struct s3_volume *v = g->v;

	if (g->crcs) {
		pthread_mutex_lock(&v->crcs->lock);
		g->crcs->refs--;
		s3_crcs_shrink(v->crcs);
		pthread_mutex_unlock(&v->crcs->lock);
	}
	s3_objects_unpin(v->objects, g->slot);
	free(g->stored.iov_base);
	free(g->header);
	free(g);
}

static void end_get(struct s3_get *g, int result)
{
	struct s3_read *r = g->read;

	s3_get_free(g);
	s3_read_end_part(r, result);
}

/* The first block whose bytes are not what was written; count: none. */
static uint32_t first_damaged(const struct s3_get *g)
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
static void place(const struct s3_get *g, uint64_t position, const uint8_t *data, uint64_t length)
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

void s3_get_units_of(const struct s3_get *g, uint32_t *first, uint32_t *end)
{
	unsigned shift = g->v->shift;

	*first = (uint32_t)(((uint64_t)g->first << shift) / S3_UNIT);
	*end = s3_transform_units((size_t)(g->first + g->count) << shift);
}

int s3_get_restore_unit(const struct s3_get *g, uint32_t i)
{
	const struct s3_volume *v = g->v;
	const struct s3_crcs *e = g->crcs;
	struct s3_object_header header = {.id = g->object.id, .flags = e->flags};
	uint64_t position = (uint64_t)i * S3_UNIT;
	uint64_t left = ((uint64_t)g->object.blocks << v->shift) - position;
	uint8_t plain[S3_UNIT];
	uint32_t first, end;
	int r;

	memcpy(header.salt, e->salt, sizeof header.salt);
	s3_get_units_of(g, &first, &end);
	/* All of the object was fetched before its header said how long it has to be. */
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

/* Restores all; bad: the first block of the unit that cannot be. As s3_get_restore_unit(). */
static int restore(const struct s3_get *g, uint32_t *bad)
{
	uint32_t first, end;
	int r = 0;

	s3_get_units_of(g, &first, &end);
	for (uint32_t i = first; r == 0 && i < end; i++) {
		*bad = (uint32_t)((uint64_t)i * S3_UNIT >> g->v->shift);
		r = s3_get_restore_unit(g, i);
	}
	return r;
}

/*
 * An object is not what was written. True: because another writer has taken over, or may have,
 * which is reported. It replaces only objects that it has not seen, and none of them is durable
 * here.
 */
static bool is_overtaken(struct s3_volume *v, uint8_t origin, uint64_t id, const char *key)
{
	uint64_t durable;

	if (atomic_load(&v->fenced))
		return true;
	pthread_mutex_lock(&v->lock);
	durable = v->frontier;
	pthread_mutex_unlock(&v->lock);
	if (origin || id & S3_GC || id <= durable)
		return false;
	backend_error(&v->host,
		"volume=%s: object %s is not what was written; check whether another server has "
		"taken the volume over",
		v->name, key);
	return true;
}

static void submit_get(struct s3_get *g);

/* Data, or checksums, or both are there. */
static void end_get_part(struct s3_get *g, int result)
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
		s3_fill_end(g, result);
		return;
	}
	if (result) {
		end_get(g, result == -EACCES ? -EACCES : -EIO);
		return;
	}
	if (g->transformed) {
		result = restore(g, &bad);
	} else if (s3_get_has_sums(g)) {
		bad = g->first + first_damaged(g);
		result = bad == g->first + g->count ? 0 : -EBADMSG;
	} else {
		result = -EBADMSG;
	}
	if (result != -EBADMSG) {
		end_get(g, result);
		return;
	}
	if (++g->attempts < ATTEMPTS && s3_get_has_sums(g)) {
		atomic_fetch_add(&v->stats.crc_retries, 1);
		atomic_store(&g->parts, 1);
		submit_get(g);
		return;
	}
	if (!is_overtaken(v, g->object.origin, g->object.id, g->key))
		backend_error(&v->host,
			"volume=%s: block %" PRIu32 " of the data of object %s is damaged; run a "
			"check and restore it from a backup",
			v->name, bad, g->key);
	end_get(g, -EIO);
}

static void load_done(struct s3_crcs *e, int result);
static void submit_load(struct s3_crcs *e);
static void check_header(struct s3_crcs *e);

/* A get that is the load of its checksums, too, has come as far as it will. */
static void end_own_load(struct s3_get *g, int result)
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
static void end_data(struct s3_get *g, int result)
{
	if (g->loads)
		end_own_load(g, result);
	end_get_part(g, result);
}

static void fetched(struct s3_request *req)
{
	struct s3_get *g = req->opaque;

	/* A fill reports it if somebody waits for it. */
	if (req->result && g->read)
		backend_error(&g->v->host, "volume=%s: cannot read %s: %s", g->v->name, g->key,
			req->message);
	end_data(g, req->result);
}

/* What a get of transformed data asks for: where it begins in the stored data. -ENOMEM. */
static int choose_units(struct s3_get *g, uint64_t *at)
{
	const struct s3_placed *units = g->crcs->units;
	uint32_t first, end;
	void *memory;

	s3_get_units_of(g, &first, &end);
	*at = units[first].at;
	g->stored.iov_len = units[end - 1].at + units[end - 1].unit.bytes - *at;
	memory = realloc(g->stored.iov_base, g->stored.iov_len);
	if (!memory)
		return -ENOMEM;
	g->stored.iov_base = memory;
	return 0;
}

/* Asks for a part of the object, from byte offset on. */
static void submit(struct s3_get *g, const struct iovec *iov, int iovcnt, uint64_t offset)
{
	int r;

	g->request = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_READ,
		.key = g->key,
		.iov = iov,
		.iovcnt = iovcnt,
		.offset = offset,
		.done = fetched,
		.opaque = g,
	};
	r = s3_store_submit(g->v->store, &g->request);
	if (r)
		end_data(g, r);
}

/* Asks for all of the object: one request for its header and its data. */
static void submit_whole(struct s3_get *g)
{
	struct iovec *iov = g->transformed ? g->both : g->iov - 1;

	iov[0] = (struct iovec){
		g->loads ? g->crcs->iov.iov_base : g->header, g->object.header_bytes};
	if (g->transformed)
		iov[1] = g->stored;
	submit(g, iov, 1 + (g->transformed ? 1 : g->iovcnt), 0);
}

static void submit_get(struct s3_get *g)
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

static void load_done(struct s3_crcs *e, int result)
{
	struct s3_crc_cache *c = e->volume->crcs;
	struct s3_get *waiting;

	pthread_mutex_lock(&c->lock);
	free(e->iov.iov_base);
	e->iov.iov_base = NULL;
	e->loading = false;
	waiting = e->waiting;
	e->waiting = NULL;
	e->refs--;
	if (result) {
		/* Not found again: the next read tries again. */
		struct s3_crcs **link = s3_crcs_bucket(c, e->id);

		while (*link != e)
			link = &(*link)->next;
		*link = e->next;
		e->id = 0;
		e->next = *s3_crcs_bucket(c, 0);
		*s3_crcs_bucket(c, 0) = e;
	}
	pthread_mutex_unlock(&c->lock);
	while (waiting) {
		struct s3_get *next = waiting->next;

		end_get_part(waiting, result);
		waiting = next;
	}
}

/* The header is there: is it what was written? */
static void check_header(struct s3_crcs *e)
{
	struct s3_volume *v = e->volume;
	struct s3_object_header header;
	enum s3_check check;

	check = s3_header_decode(
		e->iov.iov_base, e->iov.iov_len, s3_volume_origin_uuid(v, e->origin), &header);
	/* Another one's, in place of ours. */
	if (check == S3_GOOD && v->ours && e->origin == 0 && header.epoch > v->epoch) {
		s3_volume_fence(v, "another writer took the volume over");
		load_done(e, -EIO);
		return;
	}
	if (check == S3_GOOD && (s3_crcs_tag(e->origin, header.id) != e->id ||
					header.n_crc != e->n || !s3_seal_fits(v, &header)))
		check = S3_INVALID;
	if (check == S3_GOOD) {
		s3_crcs_fill_in(e, &header);
		load_done(e, 0);
	} else if (++e->attempts < ATTEMPTS) {
		atomic_fetch_add(&v->stats.crc_retries, 1);
		submit_load(e);
	} else {
		/* The tag of an object of this volume is its number. */
		if (!is_overtaken(v, e->origin, e->id, e->key))
			backend_error(&v->host,
				"volume=%s: object %s %s; run a check and restore it from a backup",
				v->name, e->key, s3_check_text(check));
		load_done(e, -EIO);
	}
}

static void loaded(struct s3_request *req)
{
	struct s3_crcs *e = req->opaque;
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

static void submit_load(struct s3_crcs *e)
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
static int want_crcs(struct s3_get *g, bool *load)
{
	struct s3_volume *v = g->v;
	struct s3_crc_cache *c = v->crcs;
	uint64_t tag = s3_crcs_tag(g->object.origin, g->object.id);
	struct s3_crcs *e;
	bool there;

	*load = false;
	pthread_mutex_lock(&c->lock);
	e = s3_crcs_find(c, tag);
	if (e) {
		s3_crcs_unlink(c, e);
		s3_crcs_link_newest(c, e);
	} else {
		e = s3_crcs_insert(c, tag,
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
				s3_crcs_drop(c, e);
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
static bool prepare_whole(struct s3_get *g, bool load)
{
	if (g->first != 0 || g->count != g->object.blocks)
		return false;
	if (g->transformed) {
		/* A caller that knows where the data is asks for exactly that. */
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

void s3_get_begin(struct s3_get *g)
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

void s3_get_start(struct s3_read *r, const struct s3_run *run)
{
	struct s3_volume *v = r->v;
	uint64_t length = run->count << v->shift;
	int n = s3_iov_slice(r->iov, s3_read_position(r, run), length, NULL);
	struct s3_get *g = calloc(1, sizeof *g + (size_t)(1 + n) * sizeof *g->iov);

	atomic_fetch_add(&r->pending, 1);
	if (!g) {
		s3_read_end_part(r, -ENOMEM);
		return;
	}
	g->iov = (struct iovec *)(g + 1) + 1;
	g->iovcnt = s3_iov_slice(r->iov, s3_read_position(r, run), length, g->iov);
	g->v = v;
	g->read = r;
	g->slot = run->slot;
	g->first = run->offset;
	g->count = (uint32_t)run->count;
	s3_objects_pin(v->objects, run->slot);
	s3_objects_get(v->objects, run->slot, &g->object);
	s3_get_begin(g);
}
