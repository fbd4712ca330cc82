/* SPDX-License-Identifier: BSD-3-Clause */
/* Compaction reads sparse and small objects, and finds what is alive in them. */
#include <errno.h>
#include <stdlib.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "backends/s3/keeper/compaction.h"
#include "backends/s3/keeper/internal.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

void s3_gc_take_off(struct s3_gc_flight *f)
{
	pthread_mutex_lock(&f->lock);
	f->n++;
	pthread_mutex_unlock(&f->lock);
}

void s3_gc_land(struct s3_gc_flight *f)
{
	pthread_mutex_lock(&f->lock);
	f->n--;
	pthread_cond_broadcast(&f->landed);
	pthread_mutex_unlock(&f->lock);
}

void s3_gc_wait_all(struct s3_gc_flight *f)
{
	pthread_mutex_lock(&f->lock);
	while (f->n)
		pthread_cond_wait(&f->landed, &f->lock);
	pthread_mutex_unlock(&f->lock);
}

static int add_piece(struct s3_gc_round *round, const struct s3_gc_piece *piece)
{
	if (round->n_pieces == round->room) {
		size_t room = round->room ? 2 * round->room : 256;
		struct s3_gc_piece *pieces = realloc(round->pieces, room * sizeof *pieces);

		if (!pieces)
			return -ENOMEM;
		round->pieces = pieces;
		round->room = room;
	}
	round->pieces[round->n_pieces++] = *piece;
	return 0;
}

/* Finds the blocks of a source's window that are alive, through the records that wrote them. */
static int find_live(struct s3_volume *v, struct s3_gc_round *round, uint32_t index)
{
	struct s3_gc_source *s = &round->sources[index];
	struct s3_record record;
	size_t cursor = 0;
	int r = 0;

	while (r == 0 && s3_header_next(&s->header, &cursor, &record)) {
		uint64_t from = record.offset, to = record.offset + record.count;
		uint64_t lba, end;

		if (record.op != S3_RECORD_WRITE)
			continue;
		from = from > s->from ? from : s->from;
		to = to < s->to ? to : s->to;
		if (from >= to)
			continue;
		lba = record.lba + (from - record.offset);
		end = record.lba + (to - record.offset);
		while (r == 0 && lba < end) {
			struct s3_run run;

			s3_map_lookup(v->map, lba, end - lba, false, &run, 1);
			/* Where this record put it, and nowhere else: an object may hold a block
			 * twice. */
			if (run.slot == s->slot && run.offset == record.offset + (lba - record.lba))
				r = add_piece(round, &(struct s3_gc_piece){.lba = lba,
							     .count = (uint32_t)run.count,
							     .source = index,
							     .offset = run.offset});
			lba += run.count;
		}
	}
	return r;
}

const uint8_t *s3_gc_source_block(
	const struct s3_volume *v, const struct s3_gc_source *s, uint32_t block)
{
	const uint8_t *data = s->plain	  ? s->plain
			      : s->window ? s->window
					  : s->raw + s->header.header_bytes;

	return data + ((size_t)(block - s->from) << v->shift);
}

/* Are the blocks of a piece what was written? */
static int check_piece(
	const struct s3_volume *v, const struct s3_gc_source *s, const struct s3_gc_piece *p)
{
	for (uint32_t b = p->offset; b < p->offset + p->count; b++)
		if (s3_crc32c(0, s3_gc_source_block(v, s, b), v->block_size) !=
			s3_header_crc(&s->header, b))
			return -EIO;
	return 0;
}

/* Restores what the pieces need of a source whose data is transformed, which checks it. */
static int restore_source(
	struct s3_volume *v, struct s3_gc_source *s, const struct s3_gc_piece *pieces, size_t n)
{
	bool *wanted = calloc(s->header.n_crc, sizeof *wanted);
	uint32_t first = (uint32_t)(((uint64_t)s->from << v->shift) / S3_UNIT);
	int r = -ENOMEM;

	s->plain = s3_room_take(v, (size_t)(s->to - s->from) << v->shift);
	if (wanted && s->plain) {
		for (size_t i = 0; i < n; i++) {
			uint64_t from = (uint64_t)pieces[i].offset << v->shift;
			uint64_t end = from + ((uint64_t)pieces[i].count << v->shift);

			for (uint64_t u = from / S3_UNIT; u * S3_UNIT < end; u++)
				wanted[u] = true;
		}
		r = s3_unseal(v, s->object.origin, &s->header, first,
			s->window ? s->window : s->raw + s->header.header_bytes, wanted, s->plain);
	}
	free(wanted);
	return r == -EBADMSG ? -EIO : r;
}

static void source_read(struct s3_request *req)
{
	s3_gc_land(req->opaque);
}

int s3_gc_begin_read(struct s3_volume *v, struct s3_gc_round *round, struct s3_gc_source *s,
	uint8_t **to, uint64_t offset, size_t length)
{
	int r;

	*to = s3_room_take(v, length);
	if (!*to)
		return -ENOMEM;
	s->iov = (struct iovec){*to, length};
	s3_volume_object_key(v, s->object.id, s->key);
	s->req = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_BACKGROUND,
		.key = s->key,
		.iov = &s->iov,
		.iovcnt = 1,
		.offset = offset,
		.retry_deadline = S3_GC_DEADLINE,
		.droppable = true,
		.done = source_read,
		.opaque = &round->reads,
	};
	s3_gc_take_off(&round->reads);
	r = s3_store_submit(v->store, &s->req);
	if (r)
		s3_gc_land(&round->reads);
	return r;
}

int s3_gc_check_source(const struct s3_volume *v, struct s3_gc_source *s)
{
	if (s3_header_decode(s->raw, s->length, v->super.uuid, &s->header) != S3_GOOD ||
		s->header.id != s->object.id || s->header.blocks != s->object.blocks ||
		s->object.bytes != (uint64_t)s->header.header_bytes + s->header.data_bytes ||
		!s3_seal_fits(v, &s->header))
		return -EIO;
	return 0;
}

int s3_gc_use_source(struct s3_volume *v, struct s3_gc_round *round, uint32_t index)
{
	struct s3_gc_source *s = &round->sources[index];
	size_t first = round->n_pieces;
	int r = find_live(v, round, index);

	if (r == 0 && s->header.flags && round->n_pieces > first)
		r = restore_source(v, s, round->pieces + first, round->n_pieces - first);
	for (size_t i = first; r == 0 && !s->plain && i < round->n_pieces; i++)
		r = check_piece(v, s, &round->pieces[i]);
	if (r)
		round->n_pieces = first;
	return r;
}

uint64_t s3_gc_source_bytes(const struct s3_volume *v, const struct s3_object *object)
{
	return object->bytes + (v->transforms ? (uint64_t)object->blocks << v->shift : 0) +
	       object->blocks * sizeof(struct s3_gc_piece);
}

void s3_gc_free_source(const struct s3_volume *v, struct s3_gc_source *s)
{
	s3_room_give(v, s->raw);
	s3_room_give(v, s->window);
	s3_room_give(v, s->plain);
	s->raw = s->window = s->plain = NULL;
}

bool s3_gc_next_window(struct s3_volume *v, size_t used, struct s3_gc_source *s, uint32_t blocks)
{
	s3_room_give(v, s->window);
	s3_room_give(v, s->plain);
	v->room.used = used;
	s->window = s->plain = NULL;
	s->from = s->to;
	s->to = s->header.blocks - s->from > blocks ? s->from + blocks : s->header.blocks;
	return s->from < s->to;
}

uint64_t s3_gc_stored_at(const struct s3_volume *v, const struct s3_gc_source *s, uint32_t block)
{
	uint64_t at = (uint64_t)block << v->shift, stored = 0;

	if (!s->header.flags)
		return at;
	if (block == s->header.blocks)
		return s->header.data_bytes;
	for (uint32_t i = 0; i < at / S3_UNIT; i++)
		stored += s3_header_unit(&s->header, i).bytes;
	return stored;
}
