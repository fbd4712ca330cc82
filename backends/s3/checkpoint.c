/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/checkpoint.h"
#include "backends/s3/map.h"

/*
 * Both begin with: magic 8 | version 2 | zero 2 | CRC32C 4 (over everything, itself zero) |
 * length 8 | uuid 16 | epoch 8; the rest is numbers (varints) in the order of the fields.
 */
static const uint8_t summary_magic[8] = "USERBLKS";
static const uint8_t root_magic[8] = "USERBLKC";

#define VERSION 1
#define CRC	12
#define LENGTH	16
#define HEAD	48

static uint32_t crc_of(const uint8_t *p, size_t length)
{
	static const uint8_t zero[4];
	uint32_t crc = s3_crc32c(0, p, CRC);

	crc = s3_crc32c(crc, zero, sizeof zero);
	return s3_crc32c(crc, p + CRC + 4, length - CRC - 4);
}

static void put_head(
	struct s3_buffer *out, const uint8_t magic[8], const uint8_t *uuid, uint64_t epoch)
{
	s3_buffer_bytes(out, magic, 8);
	s3_buffer_number(out, VERSION, 2);
	s3_buffer_number(out, 0, 2);
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
	s3_put(out->data + start + LENGTH, length, 8);
	s3_put(out->data + start + CRC, crc_of(out->data + start, length), 4);
}

static enum s3_check check_head(
	const uint8_t *p, size_t length, const uint8_t magic[8], const uint8_t *uuid)
{
	if (length < HEAD)
		return length >= 8 && memcmp(p, magic, 8) ? S3_NOT_OURS : S3_SHORT;
	if (memcmp(p, magic, 8))
		return S3_NOT_OURS;
	if (s3_get(p + 8, 2) > VERSION)
		return S3_NEWER;
	if (length < s3_get(p + LENGTH, 8))
		return S3_SHORT;
	if (length != s3_get(p + LENGTH, 8) || crc_of(p, length) != s3_get(p + CRC, 4))
		return S3_CHECKSUM;
	if (s3_get(p + 10, 2))
		return S3_UNKNOWN_FLAG;
	if (s3_get(p + 8, 2) != VERSION)
		return S3_INVALID;
	if (uuid && memcmp(p + 24, uuid, S3_UUID))
		return S3_OTHER_VOLUME;
	return S3_GOOD;
}

/* ---- summary ------------------------------------------------------------------- */

/*
 * first | last; per header: type | flags | block shift | epoch | checkpoint | blocks | header
 * bytes / S3_ALIGN | data bytes | checksums | instance 16 bytes, only where it is another than
 * before (flag) | records; per record: op | its fields, addresses as the distance from where the
 * record before ended.
 */
#define NEW_INSTANCE 0x80u

/* What the next record is told relative to. */
struct context {
	uint64_t lba, offset, source, source_offset;
};

static void put_record(struct s3_buffer *out, const struct s3_record *rec, struct context *c)
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
	s3_buffer_signed(out, (int64_t)(rec->lba - c->lba));
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
	c->source = rec->source & ~S3_GC;
	c->source_offset = rec->source_offset + rec->count;
}

/* Numbers of 32 bits: more than that makes the reader bad. */
static uint32_t read_u32(struct s3_reader *r, uint64_t v)
{
	if (v > UINT32_MAX)
		r->bad = true;
	return (uint32_t)v;
}

static void read_record(struct s3_reader *r, struct s3_record *rec, struct context *c)
{
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
	rec->lba = c->lba + (uint64_t)s3_read_signed(r);
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

int s3_summary_add(struct s3_summary_writer *w, const struct s3_object_header *h)
{
	struct s3_buffer *b = &w->body;
	struct context c = {0};
	struct s3_record rec;
	size_t cursor = 0;
	bool other = !w->first || memcmp(w->instance, h->instance, S3_UUID);

	if (h->id & S3_GC || (w->first && h->id != w->last + 1))
		return -EINVAL;
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
		put_record(b, &rec, &c);
	if (b->failed)
		return -ENOMEM;
	memcpy(w->instance, h->instance, S3_UUID);
	if (!w->first)
		w->first = h->id;
	w->last = h->id;
	return 0;
}

void s3_summary_finish(
	struct s3_summary_writer *w, const struct s3_summary *summary, struct s3_buffer *out)
{
	size_t start = out->length;

	put_head(out, summary_magic, summary->uuid, summary->epoch);
	s3_buffer_varint(out, w->first);
	s3_buffer_varint(out, w->last);
	s3_buffer_bytes(out, w->body.data, w->body.length);
	seal(out, start);
	s3_summary_abandon(w);
}

void s3_summary_abandon(struct s3_summary_writer *w)
{
	s3_buffer_free(&w->body);
	memset(w, 0, sizeof *w);
}

/* One header and its records. */
static enum s3_check decode_header(struct s3_reader *r, struct s3_object_header *h,
	const struct s3_summary_visitor *visitor, int *stopped)
{
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

		read_record(r, &rec, &c);
		if (r->bad || !s3_record_valid(&rec, h))
			return S3_INVALID;
		*stopped = visitor->record(visitor->opaque, h, &rec);
	}
	return S3_GOOD;
}

enum s3_check s3_summary_decode(const void *data, size_t length, const uint8_t *uuid,
	const struct s3_summary_visitor *visitor, struct s3_summary *summary, int *stopped)
{
	const uint8_t *p = data;
	struct s3_reader r = {.next = p + HEAD, .end = p + length};
	struct s3_object_header header = {0};
	struct s3_summary s = {0};
	enum s3_check check = check_head(p, length, summary_magic, uuid);

	*stopped = 0;
	if (check)
		return check;
	memcpy(s.uuid, p + 24, S3_UUID);
	s.epoch = s3_get(p + 40, 8);
	s.first = s3_read_varint(&r);
	s.last = s3_read_varint(&r);
	/* A header takes 10 bytes and more. */
	if (r.bad || !s.first || s.last & S3_GC || s.last < s.first ||
		s.last - s.first > length / 10)
		return S3_INVALID;
	memcpy(header.uuid, s.uuid, S3_UUID);
	for (uint64_t id = s.first; !check && !*stopped && id <= s.last; id++) {
		header.id = id;
		check = decode_header(&r, &header, visitor, stopped);
	}
	if (!check && !*stopped && s3_read_left(&r))
		check = S3_INVALID;
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

	put_head(out, root_magic, root->uuid, root->epoch);
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
	if (r->bad || root->seq & S3_GC || root->base > root->seq || !root->blocks ||
		root->blocks > S3_BLOCKS_MAX || (root->base < root->seq && n_regions))
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
	if (r->bad || s3_read_left(r) || (root->base == root->seq) != (root->table_bytes > 0))
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
	decoded.epoch = s3_get(p + 40, 8);
	check = decode_root(&r, &decoded);
	if (check)
		s3_root_free(&decoded);
	else
		*root = decoded;
	return check;
}
