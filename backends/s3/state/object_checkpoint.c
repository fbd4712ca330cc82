/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of objects as a checkpoint stores it. */
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/object_internal.h"
#include "backends/s3/state/object_table.h"

/*
 * objects; per object: slot - last slot | flags | id - last id (signed) | birth, unless its flag
 * says that it is the number itself | bytes | header units | blocks | with its flag: origin, death
 * (older programs stored 0 of an ancestor's that the clone began without). Then snapshots; per
 * snapshot: seq - last seq | entries; per entry: slot - last slot | count. All varints.
 */
#define FLAG_GC	    1u
#define FLAG_ORIGIN 2u
#define FLAG_DEAD   4u
#define FLAG_SAME   8u /* birth is the number itself */
#define FLAGS	    15u

/* The snapshots without the one of index gone; n_snapshots: all. */
static void encode_snapshots(struct s3_objects *o, size_t gone, struct s3_buffer *out)
{
	uint64_t last_seq = 0;

	s3_buffer_varint(out, o->n_snapshots - (gone < o->n_snapshots));
	for (size_t i = 0; i < o->n_snapshots; i++) {
		struct s3_held *held;
		uint32_t last = 0;
		size_t n_held;

		if (i == gone)
			continue;
		if (s3_objects_list_held(o, i, gone, &held, &n_held)) {
			out->failed = true;
			return;
		}
		s3_buffer_varint(out, o->snapshots[i].seq - last_seq);
		last_seq = o->snapshots[i].seq;
		s3_buffer_varint(out, n_held);
		for (size_t j = 0; j < n_held; j++) {
			s3_buffer_varint(out, held[j].slot - last);
			s3_buffer_varint(out, held[j].count);
			last = held[j].slot;
		}
		free(held);
	}
}

void s3_objects_encode(struct s3_objects *o, uint64_t gone, struct s3_buffer *out)
{
	uint64_t last_id = 0;
	uint32_t last = 0;
	size_t n_sealed = 0;

	pthread_mutex_lock(&o->lock);
	s3_for_each_slot(o, n) n_sealed += s3_objects_slot(o, n)->state != S3_SLOT_OPEN;
	s3_buffer_varint(out, n_sealed);
	s3_for_each_slot(o, n)
	{
		struct s3_slot *s = s3_objects_slot(o, n);
		uint64_t id = s->id & ~S3_GC;
		unsigned flags;

		if (s->state == S3_SLOT_OPEN)
			continue;
		flags = (s->id & S3_GC ? FLAG_GC : 0) | (s->origin ? FLAG_ORIGIN : 0) |
			(s->dead ? FLAG_DEAD : 0) | (s->birth == id ? FLAG_SAME : 0);
		s3_buffer_varint(out, n - last);
		s3_buffer_varint(out, flags);
		s3_buffer_signed(out, (int64_t)(id - last_id));
		if (!(flags & FLAG_SAME))
			s3_buffer_varint(out, s->birth);
		s3_buffer_varint(out, s->bytes);
		s3_buffer_varint(out, s->header_units);
		s3_buffer_varint(out, s->blocks);
		if (flags & FLAG_ORIGIN)
			s3_buffer_varint(out, s->origin);
		if (flags & FLAG_DEAD)
			s3_buffer_varint(out, s->death);
		last = n;
		last_id = id;
	}
	encode_snapshots(o, s3_objects_find_snapshot(o, gone), out);
	pthread_mutex_unlock(&o->lock);
}

/* One object of the table; last: slot and number of the one before. */
static enum s3_check decode_object(
	struct s3_objects *o, struct s3_reader *r, uint32_t *last, uint64_t *last_id)
{
	uint64_t gap = s3_read_varint(r), flags = s3_read_varint(r);
	uint64_t id = *last_id + (uint64_t)s3_read_signed(r);
	uint64_t birth = flags & FLAG_SAME ? id : s3_read_varint(r);
	uint64_t bytes = s3_read_varint(r), units = s3_read_varint(r);
	uint64_t blocks = s3_read_varint(r);
	uint64_t origin = flags & FLAG_ORIGIN ? s3_read_varint(r) : 0;
	uint64_t death = flags & FLAG_DEAD ? s3_read_varint(r) : 0;
	struct s3_object object;
	struct s3_slot *s;
	uint32_t n;

	if (r->bad || !gap || gap > (uint64_t)S3_TABLE_CHUNKS * S3_TABLE_CHUNK - 1 - *last ||
		flags & ~(uint64_t)FLAGS || !id || id & S3_GC || bytes > UINT32_MAX || !units ||
		units > S3_HEADER_MAX / S3_ALIGN || bytes < units * S3_ALIGN ||
		blocks > S3_OBJECT_MAX || origin > S3_PARENTS_MAX ||
		(flags & FLAG_ORIGIN && !origin) || (flags & FLAG_DEAD && !death && !origin) ||
		(!(flags & FLAG_SAME) && birth == id))
		return S3_INVALID;
	n = *last + (uint32_t)gap;
	*last = n;
	*last_id = id;
	object = (struct s3_object){
		.id = flags & FLAG_GC ? id | S3_GC : id,
		.birth = birth,
		.origin = (uint8_t)origin,
		.bytes = (uint32_t)bytes,
		.header_bytes = (uint32_t)units * S3_ALIGN,
		.blocks = (uint32_t)blocks,
	};
	if (o->hash[s3_objects_hash_place(o, object.origin, object.id)])
		return S3_INVALID;
	if (s3_objects_make_room(o) || s3_objects_chunk_make(o, n / S3_TABLE_CHUNK))
		return S3_NO_MEMORY;
	s3_objects_slot_use(o, n);
	s3_objects_fill(o, n, &object);
	s = s3_objects_slot(o, n);
	atomic_store(&s->death, death);
	s3_objects_seal_slot(s);
	return S3_GOOD;
}

static enum s3_check decode_held(struct s3_objects *o, struct s3_reader *r,
	struct s3_objects_snapshot_entry *snapshot, bool newest)
{
	uint64_t n = s3_read_varint(r);
	uint32_t last = 0;

	/* An entry has two bytes at least: what is allocated is bounded by what there is. */
	if (r->bad || n > s3_read_left(r) / 2)
		return S3_INVALID;
	if (!newest) {
		snapshot->held = malloc((n ? n : 1) * sizeof *snapshot->held);
		if (!snapshot->held)
			return S3_NO_MEMORY;
	}
	for (uint64_t i = 0; i < n; i++) {
		uint64_t gap = s3_read_varint(r), count = s3_read_varint(r);
		uint64_t slot = last + gap;
		struct s3_slot *s;

		if (r->bad || !gap || gap > (uint64_t)S3_TABLE_CHUNKS * S3_TABLE_CHUNK ||
			!s3_objects_slot_used(o, slot))
			return S3_INVALID;
		last = (uint32_t)slot;
		s = s3_objects_slot(o, last);
		if (!count || count > s->blocks - s3_objects_used_blocks(s) ||
			s->birth > snapshot->seq)
			return S3_INVALID;
		if (newest)
			atomic_store(&s->fresh, (uint32_t)count);
		else
			atomic_fetch_add(&s->held, (uint32_t)count);
		if (!s->origin)
			atomic_fetch_add(&o->held, count);
		if (!newest)
			snapshot->held[snapshot->n_held++] =
				(struct s3_held){last, (uint32_t)count};
	}
	return S3_GOOD;
}

static enum s3_check decode(struct s3_objects *o, struct s3_reader *r)
{
	uint64_t n_objects = s3_read_varint(r), n_snapshots, last_id = 0;
	enum s3_check check = S3_GOOD;
	uint32_t last = 0;

	for (uint64_t i = 0; !check && i < n_objects; i++)
		check = decode_object(o, r, &last, &last_id);
	if (check)
		return check;
	n_snapshots = s3_read_varint(r);
	if (r->bad || n_snapshots > s3_read_left(r) / 2)
		return S3_INVALID;
	o->snapshots = calloc(n_snapshots ? n_snapshots : 1, sizeof *o->snapshots);
	if (!o->snapshots)
		return S3_NO_MEMORY;
	for (uint64_t i = 0; !check && i < n_snapshots; i++) {
		struct s3_objects_snapshot_entry *snapshot = &o->snapshots[o->n_snapshots];
		uint64_t gap = s3_read_varint(r);

		snapshot->seq = (i ? snapshot[-1].seq : 0) + gap;
		if (r->bad || !snapshot->seq || snapshot->seq < gap || snapshot->seq & S3_GC)
			return S3_INVALID;
		o->n_snapshots++; /* s3_objects_free() frees what it has */
		check = decode_held(o, r, snapshot, i == n_snapshots - 1);
	}
	if (!check && (r->bad || s3_read_left(r)))
		check = S3_INVALID;
	return check;
}

enum s3_check s3_objects_decode(struct s3_objects *o, const void *data, size_t length)
{
	struct s3_reader r = {.next = data, .end = (const uint8_t *)data + length};
	enum s3_check check;

	pthread_mutex_lock(&o->lock);
	check = decode(o, &r);
	s3_objects_set_newest(o);
	pthread_mutex_unlock(&o->lock);
	return check;
}

int s3_objects_walk(struct s3_objects *o,
	int (*fn)(void *opaque, uint32_t slot, const struct s3_object *object), void *opaque)
{
	int r = 0;

	for (uint32_t n = 0; !r;) {
		struct s3_object object;

		pthread_mutex_lock(&o->lock);
		n = s3_objects_slot_after(o, n + 1);
		if (n)
			s3_objects_describe(s3_objects_slot(o, n), &object);
		pthread_mutex_unlock(&o->lock);
		if (!n)
			break;
		r = fn(opaque, n, &object);
	}
	return r;
}
