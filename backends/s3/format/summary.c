/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/checkpoint_head.h"

static const uint8_t summary_magic[8] = "USERBLKS";

/*
 * first | last | columns: that of the headers, then S3_SUMMARY_PLANES of addresses. A column: its
 * bytes | bytes it is stored in | these: a frame of zstd's, or if that is no shorter the column.
 *
 * The headers, each: type | flags | block shift | epoch | checkpoint | blocks | header
 * bytes / S3_ALIGN | data bytes | checksums | instance 16 bytes, only where it is another than
 * before (flag) | records; per record: op | its fields, addresses as the distance from where the
 * record before ended. The distances of lba are not there: column n has byte n of each.
 *
 * Without CHECKPOINT_PACKED: first | last | the headers, uncompressed, with the distances of lba.
 *
 * Data that shrinks to nearly nothing makes a log that is nearly only headers. To compress the
 * addresses, which at random cannot be, apart from the rest, which can, makes of a random block's
 * 16 bytes in a header the 3.6 that its address takes (of 1 TiB).
 */
#define NEW_INSTANCE 0x80u
/* zstd's own default. */
#define LEVEL 3
/* Bytes of a column: more than the headers between two checkpoints have. */
#define COLUMN_MAX (256u << 20)

_Static_assert(S3_BLOCKS_MAX <= 1ull << (8 * S3_SUMMARY_PLANES - 2), "a distance fits the planes");

/* What the next record is encoded relative to. */
struct context {
	uint64_t lba, offset, source, source_offset;
};

/* Small numbers of either sign are small. */
static uint64_t zigzag(int64_t v)
{
	return (uint64_t)v << 1 ^ (v < 0 ? UINT64_MAX : 0);
}

/* Where the distances of a header's records go. */
struct addresses {
	uint8_t *planes[S3_SUMMARY_PLANES];
	size_t n;
	uint64_t bits;
};

static void put_distance(struct addresses *to, int64_t distance)
{
	uint64_t v = zigzag(distance);

	for (unsigned i = 0; i < S3_SUMMARY_PLANES; i++)
		to->planes[i][to->n] = (uint8_t)(v >> 8 * i);
	to->n++;
	to->bits += v ? 64 - (unsigned)__builtin_clzll(v) : 0;
}

static void put_record(
	struct s3_buffer *out, struct addresses *to, const struct s3_record *rec, struct context *c)
{
	s3_buffer_varint(out, rec->op);
	if (rec->op == S3_RECORD_RESET) {
		s3_buffer_varint(out, rec->seq);
		return;
	}
	if (rec->op == S3_RECORD_GC_OBJECT) {
		s3_buffer_varint(out, rec->object & ~S3_GC);
		s3_buffer_varint(out, rec->bytes);
		s3_buffer_varint(out, rec->blocks);
		s3_buffer_varint(out, rec->header_bytes / S3_ALIGN);
		return;
	}
	put_distance(to, (int64_t)(rec->lba - c->lba));
	s3_buffer_varint(out, rec->count);
	c->lba = rec->lba + rec->count;
	if (rec->op == S3_RECORD_ZERO || rec->op == S3_RECORD_DISCARD)
		return;
	s3_buffer_signed(out, (int64_t)(rec->offset - c->offset));
	c->offset = rec->offset + rec->count;
	if (rec->op != S3_RECORD_RELOCATE)
		return;
	s3_buffer_varint(out, rec->object & ~S3_GC);
	s3_buffer_number(out, rec->source_origin, 1);
	s3_buffer_number(out, rec->source & S3_GC ? 1 : 0, 1);
	s3_buffer_signed(out, (int64_t)((rec->source & ~S3_GC) - c->source));
	s3_buffer_signed(out, (int64_t)(rec->source_offset - c->source_offset));
	to->bits += 32; /* seldom in a row */
	c->source = rec->source & ~S3_GC;
	c->source_offset = rec->source_offset + rec->count;
}

/* What a summary is read from. */
struct source {
	struct s3_reader r; /* the headers */
	struct s3_buffer
		columns[1 + S3_SUMMARY_PLANES]; /* decompressed; empty without CHECKPOINT_PACKED */
	size_t next, n;				/* distance, of all */
	bool packed;
};

static int64_t read_distance(struct source *s)
{
	uint64_t v = 0;

	if (!s->packed)
		return s3_read_signed(&s->r);
	if (s->next == s->n) {
		s->r.bad = true;
		return 0;
	}
	for (unsigned i = 0; i < S3_SUMMARY_PLANES; i++)
		v |= (uint64_t)s->columns[1 + i].data[s->next] << 8 * i;
	s->next++;
	return (int64_t)(v >> 1 ^ (v & 1 ? UINT64_MAX : 0));
}

static void read_record(struct source *s, struct s3_record *rec, struct context *c)
{
	struct s3_reader *r = &s->r;

	*rec = (struct s3_record){.op = s3_read_number(r, 1)};
	switch (rec->op) {
	case S3_RECORD_RESET:
		rec->seq = s3_read_varint(r);
		return;
	case S3_RECORD_GC_OBJECT:
		rec->object = s3_read_varint(r) | S3_GC;
		rec->bytes = s3_checkpoint_u32(r, s3_read_varint(r));
		rec->blocks = s3_checkpoint_u32(r, s3_read_varint(r));
		rec->header_bytes = s3_checkpoint_u32(r, s3_read_varint(r)) * S3_ALIGN;
		return;
	case S3_RECORD_WRITE:
	case S3_RECORD_ZERO:
	case S3_RECORD_DISCARD:
	case S3_RECORD_RELOCATE:
		break;
	default:
		r->bad = true;
		return;
	}
	rec->lba = c->lba + (uint64_t)read_distance(s);
	rec->count = s3_read_varint(r);
	c->lba = rec->lba + rec->count;
	if (rec->op == S3_RECORD_ZERO || rec->op == S3_RECORD_DISCARD)
		return;
	rec->offset = s3_checkpoint_u32(r, c->offset + (uint64_t)s3_read_signed(r));
	c->offset = rec->offset + rec->count;
	if (rec->op != S3_RECORD_RELOCATE)
		return;
	rec->object = s3_read_varint(r) | S3_GC;
	rec->source_origin = (uint8_t)s3_read_number(r, 1);
	if (s3_read_number(r, 1))
		rec->source = S3_GC;
	c->source += (uint64_t)s3_read_signed(r);
	rec->source |= c->source;
	rec->source_offset = s3_checkpoint_u32(r, c->source_offset + (uint64_t)s3_read_signed(r));
	c->source_offset = rec->source_offset + rec->count;
}

static int add_header(struct s3_summary_writer *w, const struct s3_object_header *h)
{
	struct s3_buffer *b = &w->body;
	struct addresses to = {.n = 0};
	struct context c = {0};
	struct s3_record rec;
	size_t cursor = 0;
	bool other = !w->first || memcmp(w->instance, h->instance, S3_UUID);

	if (h->id & S3_GC || (w->first && h->id != w->last + 1))
		return -EINVAL;
	for (unsigned i = 0; i < S3_SUMMARY_PLANES; i++) {
		to.planes[i] = h->n_records ? s3_buffer_grow(&w->planes[i], h->n_records) : NULL;
		if (w->planes[i].failed)
			return -ENOMEM;
	}
	s3_buffer_number(b, h->type | (other ? NEW_INSTANCE : 0), 1);
	s3_buffer_number(b, h->flags, 1);
	s3_buffer_number(b, h->block_shift, 1);
	s3_buffer_varint(b, h->epoch);
	s3_buffer_varint(b, h->checkpoint);
	s3_buffer_varint(b, h->blocks);
	s3_buffer_varint(b, h->header_bytes / S3_ALIGN);
	s3_buffer_varint(b, h->data_bytes);
	s3_buffer_varint(b, h->n_crc);
	if (other)
		s3_buffer_bytes(b, h->instance, S3_UUID);
	s3_buffer_varint(b, h->n_records);
	while (s3_header_next(h, &cursor, &rec))
		put_record(b, &to, &rec, &c);
	/* Some records have no address. */
	for (unsigned i = 0; i < S3_SUMMARY_PLANES; i++)
		w->planes[i].length -= h->n_records - to.n;
	if (b->failed)
		return -ENOMEM;
	if (b->length > COLUMN_MAX)
		return -EINVAL;
	w->bits += to.bits + 64;
	memcpy(w->instance, h->instance, S3_UUID);
	if (!w->first)
		w->first = h->id;
	w->last = h->id;
	return 0;
}

int s3_summary_add(struct s3_summary_writer *w, const struct s3_object_header *header)
{
	int r = w->failed ? -EINVAL : add_header(w, header);

	if (r)
		s3_summary_fail(w);
	return r;
}

void s3_summary_fail(struct s3_summary_writer *w)
{
	s3_summary_abandon(w);
	w->failed = true;
}

static void put_column(struct s3_buffer *out, const struct s3_buffer *column)
{
	uint8_t *shrunk = malloc(column->length);
	size_t n = 0;

	if (shrunk && column->length > 1)
		n = ZSTD_compress(shrunk, column->length - 1, column->data, column->length, LEVEL);
	if (ZSTD_isError(n))
		n = 0; /* no room: it does not shrink */
	s3_buffer_varint(out, column->length);
	s3_buffer_varint(out, n ? n : column->length);
	s3_buffer_bytes(out, n ? shrunk : column->data, n ? n : column->length);
	free(shrunk);
}

void s3_summary_finish(
	struct s3_summary_writer *w, const struct s3_summary *summary, struct s3_buffer *out)
{
	size_t start = out->length;

	s3_checkpoint_head_put(
		out, summary_magic, CHECKPOINT_PACKED, summary->uuid, summary->epoch);
	s3_buffer_varint(out, w->first);
	s3_buffer_varint(out, w->last);
	put_column(out, &w->body);
	for (unsigned i = 0; i < S3_SUMMARY_PLANES; i++)
		put_column(out, &w->planes[i]);
	s3_checkpoint_seal(out, start);
	s3_summary_abandon(w);
}

void s3_summary_abandon(struct s3_summary_writer *w)
{
	s3_buffer_free(&w->body);
	for (unsigned i = 0; i < S3_SUMMARY_PLANES; i++)
		s3_buffer_free(&w->planes[i]);
	memset(w, 0, sizeof *w);
}

/* A column of at most so many bytes. */
static enum s3_check read_column(struct s3_reader *r, struct s3_buffer *column, size_t most)
{
	uint64_t length = s3_read_varint(r), stored = s3_read_varint(r);
	const uint8_t *p = s3_read_bytes(r, stored);
	uint8_t *to;

	if (!p || stored > length || length > most ||
		(stored < length && ZSTD_getFrameContentSize(p, stored) != length))
		return S3_INVALID;
	if (!length)
		return S3_GOOD;
	to = s3_buffer_grow(column, length);
	if (!to)
		return S3_NO_MEMORY;
	if (stored == length)
		memcpy(to, p, length);
	else if (ZSTD_decompress(to, length, p, stored) != length)
		return S3_INVALID;
	return S3_GOOD;
}

/* Decompresses the columns, which are all that is left. */
static enum s3_check read_columns(struct source *s)
{
	enum s3_check check = read_column(&s->r, &s->columns[0], COLUMN_MAX);

	/* Each record has more than a byte among the headers. */
	for (unsigned i = 1; !check && i <= S3_SUMMARY_PLANES; i++)
		check = read_column(&s->r, &s->columns[i], s->columns[0].length);
	for (unsigned i = 2; !check && i <= S3_SUMMARY_PLANES; i++)
		if (s->columns[i].length != s->columns[1].length)
			check = S3_INVALID;
	if (!check && (s3_read_left(&s->r) || !s->columns[0].length))
		check = S3_INVALID;
	if (check)
		return check;
	s->n = s->columns[1].length;
	s->r = (struct s3_reader){
		.next = s->columns[0].data, .end = s->columns[0].data + s->columns[0].length};
	return S3_GOOD;
}

/* One header and its records. */
static enum s3_check decode_header(struct source *s, struct s3_object_header *h,
	const struct s3_summary_visitor *visitor, int *stopped)
{
	struct s3_reader *r = &s->r;
	struct context c = {0};
	unsigned type = (unsigned)s3_read_number(r, 1);

	h->type = type & ~NEW_INSTANCE;
	h->flags = (uint32_t)s3_read_number(r, 1);
	h->block_shift = (unsigned)s3_read_number(r, 1);
	h->epoch = s3_read_varint(r);
	h->checkpoint = s3_read_varint(r);
	h->blocks = s3_checkpoint_u32(r, s3_read_varint(r));
	h->header_bytes = s3_checkpoint_u32(r, s3_read_varint(r)) * S3_ALIGN;
	h->data_bytes = s3_checkpoint_u32(r, s3_read_varint(r));
	h->n_crc = s3_checkpoint_u32(r, s3_read_varint(r));
	if (type & NEW_INSTANCE) {
		const uint8_t *instance = s3_read_bytes(r, S3_UUID);

		if (instance)
			memcpy(h->instance, instance, S3_UUID);
	}
	h->n_records = s3_checkpoint_u32(r, s3_read_varint(r));
	if (r->bad || h->type == S3_TYPE_GC || h->flags & ~S3_FEATURES || !s3_header_valid(h) ||
		!h->header_bytes || h->header_bytes > S3_HEADER_MAX)
		return S3_INVALID;
	*stopped = visitor->header(visitor->opaque, h);
	for (uint32_t i = 0; !*stopped && i < h->n_records; i++) {
		struct s3_record rec;

		read_record(s, &rec, &c);
		if (r->bad || !s3_record_valid(&rec, h))
			return S3_INVALID;
		*stopped = visitor->record(visitor->opaque, h, &rec);
	}
	return S3_GOOD;
}

/* The headers of a summary, from s->r on; all of it. */
static enum s3_check decode_headers(struct source *s, const struct s3_summary *summary,
	const struct s3_summary_visitor *visitor, int *stopped)
{
	struct s3_object_header header = {0};
	enum s3_check check = S3_GOOD;

	/* A header takes 10 bytes and more. */
	if (summary->last - summary->first > s3_read_left(&s->r) / 10)
		return S3_INVALID;
	memcpy(header.uuid, summary->uuid, S3_UUID);
	for (uint64_t id = summary->first; !check && !*stopped && id <= summary->last; id++) {
		header.id = id;
		check = decode_header(s, &header, visitor, stopped);
	}
	if (!check && !*stopped && (s3_read_left(&s->r) || s->next != s->n))
		check = S3_INVALID;
	return check;
}

enum s3_check s3_summary_decode(const void *data, size_t length, const uint8_t *uuid,
	const struct s3_summary_visitor *visitor, struct s3_summary *summary, int *stopped)
{
	const uint8_t *p = data;
	struct source source = {.r = {.next = p + CHECKPOINT_HEAD, .end = p + length}};
	struct s3_summary s = {0};
	enum s3_check check = s3_checkpoint_head_check(p, length, summary_magic, uuid);

	*stopped = 0;
	if (check)
		return check;
	memcpy(s.uuid, p + 24, S3_UUID);
	s.epoch = s3_le_load(p + 40, 8);
	s.first = s3_read_varint(&source.r);
	s.last = s3_read_varint(&source.r);
	if (source.r.bad || !s.first || s.last & S3_GC || s.last < s.first)
		return S3_INVALID;
	source.packed = s3_le_load(p + CHECKPOINT_FLAGS, 2) & CHECKPOINT_PACKED;
	if (source.packed)
		check = read_columns(&source);
	if (!check)
		check = decode_headers(&source, &s, visitor, stopped);
	for (unsigned i = 0; i <= S3_SUMMARY_PLANES; i++)
		s3_buffer_free(&source.columns[i]);
	if (!check)
		*summary = s;
	return check;
}
