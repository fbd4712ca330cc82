/* SPDX-License-Identifier: BSD-3-Clause */
/* The checksums in the headers of the objects that were read and written last. */
#include <stdlib.h>
#include <string.h>

#include "backends/s3/format/format.h"
#include "backends/s3/read/internal.h"
#include "backends/s3/read/read.h"

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

static uint64_t cost(const struct s3_crcs *e)
{
	return sizeof *e + (uint64_t)e->n * (e->units ? sizeof *e->units : sizeof *e->crc);
}

struct s3_crcs *s3_crcs_find(struct s3_crc_cache *c, uint64_t id)
{
	struct s3_crcs *e = *s3_crcs_bucket(c, id);

	while (e && e->id != id)
		e = e->next;
	return e;
}

void s3_crcs_unlink(struct s3_crc_cache *c, struct s3_crcs *e)
{
	*(e->newer ? &e->newer->older : &c->newest) = e->older;
	*(e->older ? &e->older->newer : &c->oldest) = e->newer;
}

void s3_crcs_link_newest(struct s3_crc_cache *c, struct s3_crcs *e)
{
	e->newer = NULL;
	e->older = c->newest;
	*(c->newest ? &c->newest->newer : &c->oldest) = e;
	c->newest = e;
}

void s3_crcs_drop(struct s3_crc_cache *c, struct s3_crcs *e)
{
	struct s3_crcs **link = s3_crcs_bucket(c, e->id);

	while (*link != e)
		link = &(*link)->next;
	*link = e->next;
	s3_crcs_unlink(c, e);
	c->bytes -= cost(e);
	free(e->crc);
	free(e->units);
	free(e);
}

void s3_crcs_shrink(struct s3_crc_cache *c)
{
	struct s3_crcs *e = c->oldest;

	while (e && c->bytes > c->limit) {
		struct s3_crcs *newer = e->newer;

		if (e->refs == 0)
			s3_crcs_drop(c, e);
		e = newer;
	}
}

struct s3_crcs *s3_crcs_insert(struct s3_crc_cache *c, uint64_t id, uint32_t n, bool transformed)
{
	struct s3_crcs *e = calloc(1, sizeof *e);
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
	e->next = *s3_crcs_bucket(c, id);
	*s3_crcs_bucket(c, id) = e;
	s3_crcs_link_newest(c, e);
	c->bytes += cost(e);
	return e;
}

void s3_crcs_fill_in(struct s3_crcs *e, const struct s3_object_header *header)
{
	uint32_t at = 0;

	e->flags = header->flags;
	memcpy(e->salt, header->salt, sizeof e->salt);
	for (uint32_t i = 0; i < e->n; i++) {
		if (e->crc) {
			e->crc[i] = s3_header_crc(header, i);
			continue;
		}
		e->units[i] = (struct s3_placed){.unit = s3_header_unit(header, i), .at = at};
		at += e->units[i].unit.bytes;
	}
}

void s3_crc_cache_add(struct s3_crc_cache *c, const struct s3_object_header *header)
{
	struct s3_crcs *e;

	pthread_mutex_lock(&c->lock);
	if (!s3_crcs_find(c, header->id) &&
		(e = s3_crcs_insert(c, header->id, header->n_crc, header->flags != 0)))
		s3_crcs_fill_in(e, header);
	s3_crcs_shrink(c);
	pthread_mutex_unlock(&c->lock);
}

void s3_crc_cache_free(struct s3_crc_cache *c)
{
	if (!c)
		return;
	while (c->buckets && c->oldest)
		s3_crcs_drop(c, c->oldest);
	free(c->buckets);
	pthread_mutex_destroy(&c->lock);
	free(c);
}
