/* SPDX-License-Identifier: BSD-3-Clause */
/* Log and GC objects: header and records. */
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/internal.h"

/*
 * magic 8 | version 2 | flags 2 | type 1 | block shift 1 | zero 2 | header bytes 4 | CRC32C 4 (over
 * header bytes, itself zero) | uuid 16 | id 8 | epoch 8 | instance 16 | batch 8 | frontier 8 |
 * checkpoint 8 | cache record 8 | time 8 | salt 16 | blocks 4 | data bytes 4 | records 4 | bytes
 * of records 4 | checksums 4 | zero 12; the records; the checksums, 4 each, or the units, 8 each:
 * bytes, the top bit set when raw, and CRC32C; zeroes up to header bytes.
 */
static const uint8_t object_magic[8] = "USERBLKO";

#define HEAD	 160
#define HEAD_CRC 20
#define UNIT_RAW (1u << 31)

/*
 * Records are made of pieces of 16 bytes: op 1 | origin of source 1 | lba 6 | then
 *   WRITE               count 4 | offset 4
 *   ZERO, DISCARD       count 8
 *   GC_OBJECT           bytes 4 | blocks 4;  object 8 | header bytes 4 | zero 4
 *   RELOCATE            count 4 | offset 4;  source 8 | object 8;  source offset 4 | zero 12
 *   RESET               seq 8
 */
#define PIECE	  16u
#define PIECE_MAX (3 * PIECE)

_Static_assert(S3_BATCH_MAX >> S3_BLOCK_MIN <= S3_OBJECT_MAX && S3_BATCH_MAX <= S3_DATA_MAX,
	"every batch is an object");
_Static_assert(
	HEAD + S3_RECORDS_MAX * PIECE_MAX + (S3_BATCH_MAX >> S3_BLOCK_MIN) * 4 <= S3_HEADER_MAX,
	"every batch has a header");

static size_t record_bytes(enum s3_record_op op)
{
	switch (op) {
	case S3_RECORD_WRITE:
	case S3_RECORD_ZERO:
	case S3_RECORD_DISCARD:
	case S3_RECORD_RESET:
		return PIECE;
	case S3_RECORD_GC_OBJECT:
		return 2 * PIECE;
	case S3_RECORD_RELOCATE:
		return 3 * PIECE;
	}
	return 0;
}

static void encode_record(const struct s3_record *rec, uint8_t *p)
{
	memset(p, 0, record_bytes(rec->op));
	p[0] = (uint8_t)rec->op;
	switch (rec->op) {
	case S3_RECORD_RELOCATE:
		p[1] = rec->source_origin;
		s3_le_store(p + 16, rec->source, 8);
		s3_le_store(p + 24, rec->object, 8);
		s3_le_store(p + 32, rec->source_offset, 4);
		/* fall through */
	case S3_RECORD_WRITE:
		s3_le_store(p + 2, rec->lba, 6);
		s3_le_store(p + 8, rec->count, 4);
		s3_le_store(p + 12, rec->offset, 4);
		break;
	case S3_RECORD_ZERO:
	case S3_RECORD_DISCARD:
		s3_le_store(p + 2, rec->lba, 6);
		s3_le_store(p + 8, rec->count, 8);
		break;
	case S3_RECORD_GC_OBJECT:
		s3_le_store(p + 8, rec->bytes, 4);
		s3_le_store(p + 12, rec->blocks, 4);
		s3_le_store(p + 16, rec->object, 8);
		s3_le_store(p + 24, rec->header_bytes, 4);
		break;
	case S3_RECORD_RESET:
		s3_le_store(p + 8, rec->seq, 8);
		break;
	}
}

static void decode_record(const uint8_t *p, struct s3_record *rec)
{
	*rec = (struct s3_record){.op = p[0]};
	switch (rec->op) {
	case S3_RECORD_RELOCATE:
		rec->source_origin = p[1];
		rec->source = s3_le_load(p + 16, 8);
		rec->object = s3_le_load(p + 24, 8);
		rec->source_offset = (uint32_t)s3_le_load(p + 32, 4);
		/* fall through */
	case S3_RECORD_WRITE:
		rec->lba = s3_le_load(p + 2, 6);
		rec->count = s3_le_load(p + 8, 4);
		rec->offset = (uint32_t)s3_le_load(p + 12, 4);
		break;
	case S3_RECORD_ZERO:
	case S3_RECORD_DISCARD:
		rec->lba = s3_le_load(p + 2, 6);
		rec->count = s3_le_load(p + 8, 8);
		break;
	case S3_RECORD_GC_OBJECT:
		rec->bytes = (uint32_t)s3_le_load(p + 8, 4);
		rec->blocks = (uint32_t)s3_le_load(p + 12, 4);
		rec->object = s3_le_load(p + 16, 8);
		rec->header_bytes = (uint32_t)s3_le_load(p + 24, 4);
		break;
	case S3_RECORD_RESET:
		rec->seq = s3_le_load(p + 8, 8);
		break;
	}
}

bool s3_record_valid(const struct s3_record *rec, const struct s3_object_header *h)
{
	switch (rec->op) {
	case S3_RECORD_RELOCATE:
		if (h->type != S3_TYPE_DATA || !(rec->object & S3_GC) || !(rec->source & ~S3_GC) ||
			rec->count > S3_OBJECT_MAX || rec->offset > S3_OBJECT_MAX - rec->count ||
			rec->source_offset > S3_OBJECT_MAX - rec->count)
			return false;
		break;
	case S3_RECORD_WRITE:
		if (rec->count > h->blocks || rec->offset > h->blocks - rec->count)
			return false;
		break;
	case S3_RECORD_ZERO:
	case S3_RECORD_DISCARD:
		if (h->type != S3_TYPE_DATA)
			return false;
		break;
	case S3_RECORD_GC_OBJECT:
		return h->type == S3_TYPE_DATA && rec->object & S3_GC && rec->blocks &&
		       rec->blocks <= S3_OBJECT_MAX && rec->header_bytes &&
		       rec->header_bytes % S3_ALIGN == 0 && rec->header_bytes <= S3_HEADER_MAX &&
		       rec->bytes > rec->header_bytes;
	case S3_RECORD_RESET:
		return h->type == S3_TYPE_DATA && rec->seq < h->id;
	default:
		return false;
	}
	return rec->count && rec->count <= S3_BLOCKS_MAX && rec->lba <= S3_BLOCKS_MAX - rec->count;
}

static uint32_t checksums_of(uint32_t blocks, unsigned block_shift, uint32_t flags)
{
	uint64_t bytes = (uint64_t)blocks << block_shift;

	return flags ? (uint32_t)((bytes + S3_UNIT - 1) / S3_UNIT) : blocks;
}

static size_t align_up(size_t n)
{
	return (n + S3_ALIGN - 1) & ~(size_t)(S3_ALIGN - 1);
}

size_t s3_header_room(size_t n_records, uint32_t blocks, unsigned block_shift, uint32_t flags)
{
	return align_up(HEAD + n_records * PIECE_MAX +
			(size_t)checksums_of(blocks, block_shift, flags) * (flags ? 8 : 4));
}

void s3_header_begin(struct s3_header_writer *w, const struct s3_object_header *header,
	void *buffer, size_t room)
{
	*w = (struct s3_header_writer){
		.header = *header,
		.buffer = buffer,
		.room = room < S3_HEADER_MAX ? room : S3_HEADER_MAX,
		.length = HEAD,
		.overflow = room < HEAD,
	};
}

void s3_header_add(struct s3_header_writer *w, const struct s3_record *record)
{
	size_t bytes = record_bytes(record->op);

	if (w->overflow || bytes > w->room - w->length) {
		w->overflow = true;
		return;
	}
	encode_record(record, w->buffer + w->length);
	w->length += bytes;
	w->n_records++;
}

/* The rest of the header, once the checksums are there. */
static size_t finish(struct s3_header_writer *w, size_t records_bytes)
{
	struct s3_object_header *h = &w->header;
	size_t total = align_up(w->length);
	uint8_t *p = w->buffer;

	if (w->overflow || total > w->room)
		return 0;
	h->header_bytes = (uint32_t)total;
	h->n_records = w->n_records;
	h->n_crc = checksums_of(h->blocks, h->block_shift, h->flags);
	memset(p + w->length, 0, total - w->length);
	memset(p, 0, HEAD);
	memcpy(p, object_magic, sizeof object_magic);
	s3_le_store(p + 8, S3_FORMAT_VERSION, 2);
	s3_le_store(p + 10, h->flags, 2);
	p[12] = (uint8_t)h->type;
	p[13] = (uint8_t)h->block_shift;
	s3_le_store(p + 16, h->header_bytes, 4);
	memcpy(p + 24, h->uuid, S3_UUID);
	s3_le_store(p + 40, h->id, 8);
	s3_le_store(p + 48, h->epoch, 8);
	memcpy(p + 56, h->instance, S3_UUID);
	s3_le_store(p + 72, h->batch, 8);
	s3_le_store(p + 80, h->frontier, 8);
	s3_le_store(p + 88, h->checkpoint, 8);
	s3_le_store(p + 96, h->cache_record, 8);
	s3_le_store(p + 104, h->time, 8);
	memcpy(p + 112, h->salt, sizeof h->salt);
	s3_le_store(p + 128, h->blocks, 4);
	s3_le_store(p + 132, h->data_bytes, 4);
	s3_le_store(p + 136, h->n_records, 4);
	s3_le_store(p + 140, records_bytes, 4);
	s3_le_store(p + 144, h->n_crc, 4);
	s3_le_store(p + HEAD_CRC, s3_crc_around(p, total, HEAD_CRC), 4);
	return total;
}

size_t s3_header_finish(struct s3_header_writer *w, const uint32_t *crcs)
{
	size_t records_bytes = w->length - HEAD;

	if (w->overflow || (size_t)w->header.blocks * 4 > w->room - w->length)
		return 0;
	for (uint32_t i = 0; i < w->header.blocks; i++, w->length += 4)
		s3_le_store(w->buffer + w->length, crcs[i], 4);
	w->header.data_bytes = w->header.blocks << w->header.block_shift;
	return finish(w, records_bytes);
}

size_t s3_header_finish_units(struct s3_header_writer *w, const struct s3_unit *units)
{
	size_t records_bytes = w->length - HEAD;
	struct s3_object_header *h = &w->header;
	uint32_t n = checksums_of(h->blocks, h->block_shift, h->flags);

	if (w->overflow || (size_t)n * 8 > w->room - w->length)
		return 0;
	h->data_bytes = 0;
	for (uint32_t i = 0; i < n; i++, w->length += 8) {
		s3_le_store(
			w->buffer + w->length, units[i].bytes | (units[i].raw ? UNIT_RAW : 0), 4);
		s3_le_store(w->buffer + w->length + 4, units[i].crc, 4);
		h->data_bytes += units[i].bytes;
	}
	return finish(w, records_bytes);
}

bool s3_header_names(const void *data, size_t length, const uint8_t *uuid, const uint8_t *instance)
{
	const uint8_t *p = data;

	return length >= HEAD && memcmp(p + 24, uuid, S3_UUID) == 0 &&
	       memcmp(p + 56, instance, S3_UUID) == 0;
}

bool s3_header_next(const struct s3_object_header *header, size_t *cursor, struct s3_record *record)
{
	if (*cursor == header->records_bytes)
		return false;
	decode_record(header->records + *cursor, record);
	*cursor += record_bytes(record->op);
	return true;
}

uint32_t s3_header_crc(const struct s3_object_header *header, uint32_t index)
{
	return (uint32_t)s3_le_load(header->crcs + (size_t)index * 4, 4);
}

struct s3_unit s3_header_unit(const struct s3_object_header *header, uint32_t index)
{
	const uint8_t *p = header->crcs + (size_t)index * 8;
	uint32_t bytes = (uint32_t)s3_le_load(p, 4);

	return (struct s3_unit){
		.bytes = bytes & ~UNIT_RAW,
		.raw = bytes & UNIT_RAW,
		.crc = (uint32_t)s3_le_load(p + 4, 4),
	};
}

static bool zeroes(const uint8_t *p, const uint8_t *end)
{
	while (p < end)
		if (*p++)
			return false;
	return true;
}

/* Every record is whole, known, sensible, and the one encoding of what it says. */
static bool records_valid(const struct s3_object_header *h)
{
	size_t cursor = 0;
	uint32_t n = 0;

	for (; cursor < h->records_bytes; n++) {
		const uint8_t *p = h->records + cursor;
		size_t bytes = record_bytes(p[0]);
		uint8_t again[PIECE_MAX];
		struct s3_record rec;

		if (!bytes || bytes > h->records_bytes - cursor)
			return false;
		decode_record(p, &rec);
		encode_record(&rec, again);
		if (!s3_record_valid(&rec, h) || memcmp(p, again, bytes))
			return false;
		if (h->type == S3_TYPE_GC && rec.op != S3_RECORD_WRITE)
			return false;
		cursor += bytes;
	}
	return n == h->n_records;
}

static bool units_valid(const struct s3_object_header *h)
{
	uint64_t total = 0, left = (uint64_t)h->blocks << h->block_shift;

	for (uint32_t i = 0; i < h->n_crc; i++) {
		struct s3_unit unit = s3_header_unit(h, i);
		uint32_t plain = left < S3_UNIT ? (uint32_t)left : S3_UNIT;

		/* A unit that did not shrink is stored raw, so that none grows but by its tag. */
		if (!unit.bytes || unit.bytes > plain + S3_TAG)
			return false;
		total += unit.bytes;
		left -= plain;
	}
	return total == h->data_bytes;
}

bool s3_header_valid(const struct s3_object_header *h)
{
	bool gc = h->id & S3_GC;

	if (h->block_shift < S3_BLOCK_MIN || h->block_shift > S3_BLOCK_MAX || !(h->id & ~S3_GC) ||
		h->blocks > S3_OBJECT_MAX || (uint64_t)h->blocks << h->block_shift > S3_DATA_MAX)
		return false;
	switch (h->type) {
	case S3_TYPE_DATA:
		return !gc;
	case S3_TYPE_GC:
		return gc && h->blocks && h->n_records;
	case S3_TYPE_FENCE:
	case S3_TYPE_CLEAN:
		return !gc && !h->blocks && !h->n_records && !h->flags;
	}
	return false;
}

enum s3_check s3_header_decode(
	const void *data, size_t length, const uint8_t *uuid, struct s3_object_header *header)
{
	const uint8_t *p = data;
	struct s3_object_header h = {0};
	size_t table, used;
	enum s3_check check;

	header->header_bytes = 0;
	if (length < HEAD)
		return length >= 8 && memcmp(p, object_magic, 8) ? S3_NOT_OURS : S3_SHORT;
	check = s3_check_kind(p, object_magic);
	if (check)
		return check;
	h.header_bytes = (uint32_t)s3_le_load(p + 16, 4);
	if (!h.header_bytes || h.header_bytes % S3_ALIGN || h.header_bytes > S3_HEADER_MAX)
		return S3_CHECKSUM;
	if (length < h.header_bytes) {
		header->header_bytes = h.header_bytes;
		return S3_SHORT;
	}
	if (s3_crc_around(p, h.header_bytes, HEAD_CRC) != s3_le_load(p + HEAD_CRC, 4))
		return S3_CHECKSUM;
	h.flags = (uint32_t)s3_le_load(p + 10, 2);
	if (h.flags & ~S3_FEATURES)
		return S3_UNKNOWN_FLAG;
	if (uuid && memcmp(p + 24, uuid, S3_UUID))
		return S3_OTHER_VOLUME;
	h.type = p[12];
	h.block_shift = p[13];
	memcpy(h.uuid, p + 24, S3_UUID);
	h.id = s3_le_load(p + 40, 8);
	h.epoch = s3_le_load(p + 48, 8);
	memcpy(h.instance, p + 56, S3_UUID);
	h.batch = s3_le_load(p + 72, 8);
	h.frontier = s3_le_load(p + 80, 8);
	h.checkpoint = s3_le_load(p + 88, 8);
	h.cache_record = s3_le_load(p + 96, 8);
	h.time = s3_le_load(p + 104, 8);
	memcpy(h.salt, p + 112, sizeof h.salt);
	h.blocks = (uint32_t)s3_le_load(p + 128, 4);
	h.data_bytes = (uint32_t)s3_le_load(p + 132, 4);
	h.n_records = (uint32_t)s3_le_load(p + 136, 4);
	h.records_bytes = s3_le_load(p + 140, 4);
	h.n_crc = (uint32_t)s3_le_load(p + 144, 4);
	if (!s3_header_valid(&h) || h.n_crc != checksums_of(h.blocks, h.block_shift, h.flags))
		return S3_INVALID;
	table = (size_t)h.n_crc * (h.flags ? 8 : 4);
	if (h.records_bytes > h.header_bytes - HEAD ||
		table > h.header_bytes - HEAD - h.records_bytes)
		return S3_INVALID;
	h.records = p + HEAD;
	h.crcs = h.records + h.records_bytes;
	used = HEAD + h.records_bytes + table;
	if (align_up(used) != h.header_bytes || !zeroes(p + used, p + h.header_bytes) ||
		!zeroes(p + 14, p + 16) || !zeroes(p + 148, p + HEAD) || !records_valid(&h))
		return S3_INVALID;
	if (h.flags ? !units_valid(&h) : h.data_bytes != h.blocks << h.block_shift)
		return S3_INVALID;
	*header = h;
	return S3_GOOD;
}
