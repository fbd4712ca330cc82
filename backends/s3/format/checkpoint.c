/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"

/*
 * Both begin with: magic 8 | version 2 | flags 2 | CRC32C 4 (over everything, itself zero) |
 * length 8 | uuid 16 | epoch 8; the rest is numbers (varints) in the order of the fields.
 */
static const uint8_t summary_magic[8] = "USERBLKS";
static const uint8_t root_magic[8] = "USERBLKC";

#define VERSION 1
#define FLAGS	10
#define CRC	12
#define LENGTH	16
#define HEAD	48
/* A summary: it is in columns. A light root: it names such, so that who knows none refuses it. */
#define PACKED 1u

static uint32_t crc_of(const uint8_t *p, size_t length)
{
	static const uint8_t zero[4];
	uint32_t crc = s3_crc32c(0, p, CRC);

	crc = s3_crc32c(crc, zero, sizeof zero);
	return s3_crc32c(crc, p + CRC + 4, length - CRC - 4);
}

static void put_head(struct s3_buffer *out, const uint8_t magic[8], unsigned flags,
	const uint8_t *uuid, uint64_t epoch)
{
	s3_buffer_bytes(out, magic, 8);
	s3_buffer_number(out, VERSION, 2);
	s3_buffer_number(out, flags, 2);
	s3_buffer_number(out, 0, 4); /* CRC and length: seal() */
	s3_buffer_number(out, 0, 8);
	s3_buffer_bytes(out, uuid, S3_UUID);
	s3_buffer_number(out, epoch, 8);
}

/* Completes what begins at start. */
static void seal(struct s3_buffer *out, size_t start)
{
	size_t length = out->length - start;

	if (out->failed)
		return;
	s3_le_store(out->data + start + LENGTH, length, 8);
	s3_le_store(out->data + start + CRC, crc_of(out->data + start, length), 4);
}

static enum s3_check check_head(
	const uint8_t *p, size_t length, const uint8_t magic[8], const uint8_t *uuid)
{
	if (length < HEAD)
		return length >= 8 && memcmp(p, magic, 8) ? S3_NOT_OURS : S3_SHORT;
	if (memcmp(p, magic, 8))
		return S3_NOT_OURS;
	if (s3_le_load(p + 8, 2) > VERSION)
		return S3_NEWER;
	if (length < s3_le_load(p + LENGTH, 8))
		return S3_SHORT;
	if (length != s3_le_load(p + LENGTH, 8) || crc_of(p, length) != s3_le_load(p + CRC, 4))
		return S3_CHECKSUM;
	if (s3_le_load(p + FLAGS, 2) & ~PACKED)
		return S3_UNKNOWN_FLAG;
	if (s3_le_load(p + 8, 2) != VERSION)
		return S3_INVALID;
	if (uuid && memcmp(p + 24, uuid, S3_UUID))
		return S3_OTHER_VOLUME;
	return S3_GOOD;
}

/* ---- summary ------------------------------------------------------------------- */

/*
 * first | last | columns: that of the headers, then S3_SUMMARY_PLANES of addresses. A column: its
 * bytes | bytes it is stored in | these: a frame of zstd's, or if that is no shorter the column.
 *
 * The headers, each: type | flags | block shift | epoch | checkpoint | blocks | header
 * bytes / S3_ALIGN | data bytes | checksums | instance 16 bytes, only where it is another than
 * before (flag) | records; per record: op | its fields, addresses as the distance from where the
 * record before ended. The distances of lba are not there: column n has byte n of each.
 *
 * Without PACKED: first | last | the headers, uncompressed, with the distances of lba.
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
	struct s3_reader r;				 /* the headers */
	struct s3_buffer columns[1 + S3_SUMMARY_PLANES]; /* decompressed; empty without PACKED */
	size_t next, n;					 /* distance, of all */
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

/* Numbers of 32 bits: more than that makes the reader bad. */
static uint32_t read_u32(struct s3_reader *r, uint64_t v)
{
	if (v > UINT32_MAX)
		r->bad = true;
	return (uint32_t)v;
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
		rec->bytes = read_u32(r, s3_read_varint(r));
		rec->blocks = read_u32(r, s3_read_varint(r));
		rec->header_bytes = read_u32(r, s3_read_varint(r)) * S3_ALIGN;
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
	rec->offset = read_u32(r, c->offset + (uint64_t)s3_read_signed(r));
	c->offset = rec->offset + rec->count;
	if (rec->op != S3_RECORD_RELOCATE)
		return;
	rec->object = s3_read_varint(r) | S3_GC;
	rec->source_origin = (uint8_t)s3_read_number(r, 1);
	if (s3_read_number(r, 1))
		rec->source = S3_GC;
	c->source += (uint64_t)s3_read_signed(r);
	rec->source |= c->source;
	rec->source_offset = read_u32(r, c->source_offset + (uint64_t)s3_read_signed(r));
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

	put_head(out, summary_magic, PACKED, summary->uuid, summary->epoch);
	s3_buffer_varint(out, w->first);
	s3_buffer_varint(out, w->last);
	put_column(out, &w->body);
	for (unsigned i = 0; i < S3_SUMMARY_PLANES; i++)
		put_column(out, &w->planes[i]);
	seal(out, start);
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
	h->blocks = read_u32(r, s3_read_varint(r));
	h->header_bytes = read_u32(r, s3_read_varint(r)) * S3_ALIGN;
	h->data_bytes = read_u32(r, s3_read_varint(r));
	h->n_crc = read_u32(r, s3_read_varint(r));
	if (type & NEW_INSTANCE) {
		const uint8_t *instance = s3_read_bytes(r, S3_UUID);

		if (instance)
			memcpy(h->instance, instance, S3_UUID);
	}
	h->n_records = read_u32(r, s3_read_varint(r));
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
	struct source source = {.r = {.next = p + HEAD, .end = p + length}};
	struct s3_summary s = {0};
	enum s3_check check = check_head(p, length, summary_magic, uuid);

	*stopped = 0;
	if (check)
		return check;
	memcpy(s.uuid, p + 24, S3_UUID);
	s.epoch = s3_le_load(p + 40, 8);
	s.first = s3_read_varint(&source.r);
	s.last = s3_read_varint(&source.r);
	if (source.r.bad || !s.first || s.last & S3_GC || s.last < s.first)
		return S3_INVALID;
	source.packed = s3_le_load(p + FLAGS, 2) & PACKED;
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

/* ---- root ---------------------------------------------------------------------- */

/*
 * instance 16 bytes | seq | base | blocks | next GC object | time | regions | summaries |
 * snapshots; per region: region - last one | seq | bytes | CRC 4 bytes; per summary: headers |
 * bytes | CRC 4 bytes; per snapshot: seq - last one | time | blocks | length of the name | name;
 * length of the table | table.
 */
void s3_root_encode(const struct s3_root *root, struct s3_buffer *out)
{
	size_t start = out->length;

	put_head(out, root_magic, root->packed ? PACKED : 0, root->uuid, root->epoch);
	s3_buffer_bytes(out, root->instance, S3_UUID);
	s3_buffer_varint(out, root->seq);
	s3_buffer_varint(out, root->base);
	s3_buffer_varint(out, root->blocks);
	s3_buffer_varint(out, root->next_gc & ~S3_GC);
	s3_buffer_varint(out, root->time);
	s3_buffer_varint(out, root->n_regions);
	s3_buffer_varint(out, root->n_summaries);
	s3_buffer_varint(out, root->n_snapshots);
	for (uint32_t i = 0; i < root->n_regions; i++) {
		const struct s3_root_region *region = &root->regions[i];

		s3_buffer_varint(out, region->region - (i ? region[-1].region : 0));
		s3_buffer_varint(out, region->seq);
		s3_buffer_varint(out, region->bytes);
		s3_buffer_number(out, region->crc, 4);
	}
	for (uint32_t i = 0; i < root->n_summaries; i++) {
		const struct s3_root_summary *summary = &root->summaries[i];

		s3_buffer_varint(out, summary->last - summary->first);
		s3_buffer_varint(out, summary->bytes);
		s3_buffer_number(out, summary->crc, 4);
	}
	for (uint32_t i = 0; i < root->n_snapshots; i++) {
		const struct s3_root_snapshot *snapshot = &root->snapshots[i];
		size_t length = strlen(snapshot->name);

		s3_buffer_varint(out, snapshot->seq - (i ? snapshot[-1].seq : 0));
		s3_buffer_varint(out, snapshot->time);
		s3_buffer_varint(out, snapshot->blocks);
		s3_buffer_number(out, length, 1);
		s3_buffer_bytes(out, snapshot->name, length);
	}
	s3_buffer_varint(out, root->table_bytes);
	s3_buffer_bytes(out, root->table, root->table_bytes);
	seal(out, start);
}

void s3_root_free(struct s3_root *root)
{
	free(root->regions);
	free(root->summaries);
	free(root->snapshots);
	memset(root, 0, sizeof *root);
}

/* n elements of which each takes at least bytes of what is left; NULL: that cannot be, or no
 * memory. */
static void *read_array(struct s3_reader *r, uint64_t n, size_t bytes, size_t size)
{
	if (r->bad || n > s3_read_left(r) / bytes || n > UINT32_MAX) {
		r->bad = true;
		return NULL;
	}
	return calloc(n ? n : 1, size);
}

static enum s3_check decode_regions(struct s3_reader *r, struct s3_root *root, uint64_t n)
{
	root->regions = read_array(r, n, 7, sizeof *root->regions);
	if (!root->regions)
		return r->bad ? S3_INVALID : S3_NO_MEMORY;
	for (uint64_t i = 0, last = 0; i < n; i++) {
		struct s3_root_region *region = &root->regions[root->n_regions++];
		uint64_t gap = s3_read_varint(r);

		last += gap;
		region->region = (uint32_t)last;
		region->seq = s3_read_varint(r);
		region->bytes = read_u32(r, s3_read_varint(r));
		region->crc = (uint32_t)s3_read_number(r, 4);
		if (r->bad || gap > S3_BLOCKS_MAX || (i && !gap) ||
			last > (root->blocks - 1) >> S3_REGION_SHIFT || !region->seq ||
			region->seq > root->base || !region->bytes)
			return S3_INVALID;
	}
	return S3_GOOD;
}

static enum s3_check decode_summaries(struct s3_reader *r, struct s3_root *root, uint64_t n)
{
	uint64_t last = root->base;

	root->summaries = read_array(r, n, 6, sizeof *root->summaries);
	if (!root->summaries)
		return r->bad ? S3_INVALID : S3_NO_MEMORY;
	for (uint64_t i = 0; i < n; i++) {
		struct s3_root_summary *summary = &root->summaries[root->n_summaries++];
		uint64_t more = s3_read_varint(r);

		summary->first = last + 1;
		summary->bytes = read_u32(r, s3_read_varint(r));
		summary->crc = (uint32_t)s3_read_number(r, 4);
		if (r->bad || last >= root->seq || more > root->seq - summary->first ||
			!summary->bytes)
			return S3_INVALID;
		last = summary->last = summary->first + more;
	}
	return last == root->seq ? S3_GOOD : S3_INVALID;
}

static enum s3_check decode_snapshots(struct s3_reader *r, struct s3_root *root, uint64_t n)
{
	uint64_t last = 0;

	root->snapshots = read_array(r, n, 5, sizeof *root->snapshots);
	if (!root->snapshots)
		return r->bad ? S3_INVALID : S3_NO_MEMORY;
	for (uint64_t i = 0; i < n; i++) {
		struct s3_root_snapshot *snapshot = &root->snapshots[root->n_snapshots++];
		uint64_t gap = s3_read_varint(r);
		const uint8_t *name;
		size_t length;

		snapshot->time = s3_read_varint(r);
		snapshot->blocks = s3_read_varint(r);
		length = s3_read_number(r, 1);
		name = s3_read_bytes(r, length);
		if (r->bad || gap > root->seq - last || length > S3_NAME_MAX ||
			memchr(name, 0, length))
			return S3_INVALID;
		memcpy(snapshot->name, name, length);
		last = snapshot->seq = last + gap;
		if (!last || !snapshot->blocks || snapshot->blocks > S3_BLOCKS_MAX ||
			!s3_name_valid(snapshot->name))
			return S3_INVALID;
	}
	return S3_GOOD;
}

static enum s3_check decode_root(struct s3_reader *r, struct s3_root *root)
{
	const uint8_t *instance = s3_read_bytes(r, S3_UUID);
	uint64_t n_regions, n_summaries, n_snapshots;
	enum s3_check check;

	if (instance)
		memcpy(root->instance, instance, S3_UUID);
	root->seq = s3_read_varint(r);
	root->base = s3_read_varint(r);
	root->blocks = s3_read_varint(r);
	root->next_gc = s3_read_varint(r) | S3_GC;
	root->time = s3_read_varint(r);
	n_regions = s3_read_varint(r);
	n_summaries = s3_read_varint(r);
	n_snapshots = s3_read_varint(r);
	/* A snapshot is a full root: before the first there is none. */
	if (r->bad || root->seq & S3_GC || root->base > root->seq || !root->blocks ||
		root->blocks > S3_BLOCKS_MAX || (root->base < root->seq && n_regions) ||
		(!root->base && n_snapshots))
		return S3_INVALID;
	check = decode_regions(r, root, n_regions);
	if (!check)
		check = decode_summaries(r, root, n_summaries);
	if (!check)
		check = decode_snapshots(r, root, n_snapshots);
	if (check)
		return check;
	root->table_bytes = s3_read_varint(r);
	root->table = s3_read_bytes(r, root->table_bytes);
	if (r->bad || s3_read_left(r) || (root->base == root->seq) != (root->table_bytes > 0) ||
		(root->packed && !root->n_summaries))
		return S3_INVALID;
	return S3_GOOD;
}

enum s3_check s3_root_decode(
	const void *data, size_t length, const uint8_t *uuid, struct s3_root *root)
{
	const uint8_t *p = data;
	struct s3_reader r = {.next = p + HEAD, .end = p + length};
	struct s3_root decoded = {0};
	enum s3_check check = check_head(p, length, root_magic, uuid);

	if (check)
		return check;
	memcpy(decoded.uuid, p + 24, S3_UUID);
	decoded.epoch = s3_le_load(p + 40, 8);
	decoded.packed = s3_le_load(p + FLAGS, 2) & PACKED;
	check = decode_root(&r, &decoded);
	if (check)
		s3_root_free(&decoded);
	else
		*root = decoded;
	return check;
}
