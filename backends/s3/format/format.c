/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/format/format.h"
#include "backends/s3/client/names.h"

#define VERSION 1

const char *s3_check_text(enum s3_check check)
{
	static const char *const texts[] = {
		[S3_GOOD] = "is good",
		[S3_SHORT] = "is damaged: it ends too early",
		[S3_NOT_OURS] = "is no object of userblk",
		[S3_CHECKSUM] = "is damaged: its checksum does not match",
		[S3_NEWER] = "has a newer format; use a newer userblk",
		[S3_UNKNOWN_FLAG] =
			"uses a feature that this userblk does not know; use a newer one",
		[S3_OTHER_VOLUME] = "belongs to another volume",
		[S3_INVALID] = "is damaged: it contradicts itself",
		[S3_NO_MEMORY] = "does not fit into memory",
	};

	return texts[check];
}

/* ---- names ------------------------------------------------------------------- */

static void format_uuid(const uint8_t *uuid, char *text)
{
	for (size_t i = 0; i < S3_UUID; i++)
		sprintf(text + 2 * i, "%02x", uuid[i]);
}

void s3_name_format(const struct s3_name *name, char *key)
{
	char uuid[2 * S3_UUID + 1];
	uint64_t number = name->number & ~S3_GC;
	unsigned low = number & 0xff;
	const char *room = NULL;

	switch (name->kind) {
	case S3_NAME_SUPER:
		strcpy(key, "super");
		break;
	case S3_NAME_DELETED:
		strcpy(key, "deleted");
		break;
	case S3_NAME_LOG:
		room = "log";
		break;
	case S3_NAME_GC:
		room = "gc";
		break;
	case S3_NAME_CHUNK:
		room = "chunk";
		break;
	case S3_NAME_ROOT:
		snprintf(key, S3_KEY_ROOM, "ckpt/%016" PRIx64 "/root", number);
		break;
	case S3_NAME_REGION:
		snprintf(key, S3_KEY_ROOM, "ckpt/%016" PRIx64 "/%04" PRIx32, number,
			name->region & 0xffff);
		break;
	case S3_NAME_SUMMARY:
		snprintf(key, S3_KEY_ROOM, "ckpt/%016" PRIx64 "/summary", number);
		break;
	case S3_NAME_SNAPSHOT:
		snprintf(key, S3_KEY_ROOM, "snap/%s/root", name->name);
		break;
	case S3_NAME_CHILD:
		format_uuid(name->uuid, uuid);
		snprintf(key, S3_KEY_ROOM, "snap/%s/child/%s", name->name, uuid);
		break;
	case S3_NAME_PROBE:
		format_uuid(name->uuid, uuid);
		snprintf(key, S3_KEY_ROOM, "probe/%s", uuid);
		break;
	}
	if (room)
		snprintf(key, S3_KEY_ROOM, "%s/%02x/%016" PRIx64, room, low, number);
}

void s3_name_object(uint64_t id, char *key)
{
	struct s3_name name = {.kind = id & S3_GC ? S3_NAME_GC : S3_NAME_LOG, .number = id};

	s3_name_format(&name, key);
}

bool s3_name_valid(const char *name)
{
	size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-");

	return length >= 1 && length <= S3_NAME_MAX && !name[length] && !strchr("._-", name[0]);
}

/* Takes digits lower-case hexadecimal digits; NULL: there are not as many. */
static const char *parse_hex(const char *text, unsigned digits, uint64_t *number)
{
	*number = 0;
	for (unsigned i = 0; i < digits; i++, text++) {
		if (*text >= '0' && *text <= '9')
			*number = *number << 4 | (uint64_t)(*text - '0');
		else if (*text >= 'a' && *text <= 'f')
			*number = *number << 4 | (uint64_t)(*text - 'a' + 10);
		else
			return NULL;
	}
	return text;
}

static const char *parse_uuid(const char *text, uint8_t *uuid)
{
	for (size_t i = 0; text && i < S3_UUID; i++) {
		uint64_t byte;

		text = parse_hex(text, 2, &byte);
		uuid[i] = (uint8_t)byte;
	}
	return text;
}

static const char *after(const char *text, const char *start)
{
	size_t length = strlen(start);

	return strncmp(text, start, length) ? NULL : text + length;
}

/* What follows "ckpt/". */
static bool parse_checkpoint(const char *p, struct s3_name *name)
{
	uint64_t region;

	p = parse_hex(p, 16, &name->number);
	if (!p || *p++ != '/')
		return false;
	if (!strcmp(p, "root")) {
		name->kind = S3_NAME_ROOT;
		return true;
	}
	if (!strcmp(p, "summary")) {
		name->kind = S3_NAME_SUMMARY;
		return true;
	}
	name->kind = S3_NAME_REGION;
	p = parse_hex(p, 4, &region);
	name->region = (uint32_t)region;
	return p && !*p;
}

/* What follows "snap/". */
static bool parse_snapshot(const char *p, struct s3_name *name)
{
	size_t length = strcspn(p, "/");

	if (!length || length > S3_NAME_MAX || !p[length])
		return false;
	memcpy(name->name, p, length);
	p += length;
	if (!s3_name_valid(name->name))
		return false;
	if (!strcmp(p, "/root")) {
		name->kind = S3_NAME_SNAPSHOT;
		return true;
	}
	name->kind = S3_NAME_CHILD;
	p = after(p, "/child/");
	p = p ? parse_uuid(p, name->uuid) : NULL;
	return p && !*p;
}

static bool parse_any(const char *key, struct s3_name *name)
{
	static const struct {
		const char *start;
		enum s3_name_kind kind;
	} numbered[] = {{"log/", S3_NAME_LOG}, {"gc/", S3_NAME_GC}, {"chunk/", S3_NAME_CHUNK}};
	const char *p;

	memset(name, 0, sizeof *name);
	if (!strcmp(key, "super")) {
		name->kind = S3_NAME_SUPER;
		return true;
	}
	if (!strcmp(key, "deleted")) {
		name->kind = S3_NAME_DELETED;
		return true;
	}
	for (size_t i = 0; i < sizeof numbered / sizeof numbered[0]; i++) {
		uint64_t low;

		p = after(key, numbered[i].start);
		if (!p)
			continue;
		p = parse_hex(p, 2, &low);
		p = p ? after(p, "/") : NULL;
		p = p ? parse_hex(p, 16, &name->number) : NULL;
		if (!p || *p || low != (name->number & 0xff) || name->number & S3_GC)
			return false;
		name->kind = numbered[i].kind;
		if (name->kind == S3_NAME_GC)
			name->number |= S3_GC;
		return true;
	}
	if ((p = after(key, "ckpt/")))
		return parse_checkpoint(p, name);
	if ((p = after(key, "snap/")))
		return parse_snapshot(p, name);
	if ((p = after(key, "probe/"))) {
		name->kind = S3_NAME_PROBE;
		p = parse_uuid(p, name->uuid);
		return p && !*p;
	}
	return false;
}

bool s3_name_parse(const char *key, struct s3_name *name)
{
	return parse_any(key, name) && !(name->kind != S3_NAME_GC && name->number & S3_GC);
}

/* ---- super ------------------------------------------------------------------- */

/*
 * magic 8 | version 2 | zero 2 | features 4 | length 4 | CRC32C 4 (over everything, itself zero) |
 * uuid 16 | layout 1 | block shift 1 | parents 2 | chunk blocks 4 | blocks 8 | epoch 8 |
 * created 8 | checkpoint 8 | key check 16; per parent: uuid 16 | last seq 8 | name 1 + n | path 2 +
 * n; with S3_FEATURE_WRITE_BACK: instance 16; with S3_FEATURE_WRAPPED: keys S3_WRAPPED(parents)
 */
static const uint8_t super_magic[8] = "USERBLKV";

#define SUPER_CRC    20
#define SUPER_HEAD   24
#define SUPER_LENGTH (SUPER_HEAD + 72)

/* CRC32C of data in which the 4 bytes at hole count as zero. */
static uint32_t crc_around(const uint8_t *data, size_t length, size_t hole)
{
	static const uint8_t zero[4];
	uint32_t crc = s3_crc32c(0, data, hole);

	crc = s3_crc32c(crc, zero, 4);
	return s3_crc32c(crc, data + hole + 4, length - hole - 4);
}

static const uint8_t no_write_back[S3_UUID];

void s3_super_encode(const struct s3_super *super, struct s3_buffer *out)
{
	bool write_back = memcmp(super->write_back, no_write_back, S3_UUID) != 0;
	size_t start = out->length;

	s3_buffer_bytes(out, super_magic, sizeof super_magic);
	s3_buffer_number(out, VERSION, 2);
	s3_buffer_number(out, 0, 2);
	s3_buffer_number(out,
		super->features | (write_back ? S3_FEATURE_WRITE_BACK : 0) |
			(super->wrapped ? S3_FEATURE_WRAPPED : 0),
		4);
	s3_buffer_number(out, 0, 8); /* length and CRC, below */
	s3_buffer_bytes(out, super->uuid, S3_UUID);
	s3_buffer_number(out, super->layout, 1);
	s3_buffer_number(out, super->block_shift, 1);
	s3_buffer_number(out, super->n_parents, 2);
	s3_buffer_number(out, super->chunk_blocks, 4);
	s3_buffer_number(out, super->blocks, 8);
	s3_buffer_number(out, super->epoch, 8);
	s3_buffer_number(out, super->created, 8);
	s3_buffer_number(out, super->checkpoint, 8);
	s3_buffer_bytes(out, super->key_check, sizeof super->key_check);
	for (unsigned i = 0; i < super->n_parents; i++) {
		const struct s3_parent *parent = &super->parents[i];
		size_t name = strlen(parent->snapshot), path = strlen(parent->path);

		s3_buffer_bytes(out, parent->uuid, S3_UUID);
		s3_buffer_number(out, parent->last_seq, 8);
		s3_buffer_number(out, name, 1);
		s3_buffer_bytes(out, parent->snapshot, name);
		s3_buffer_number(out, path, 2);
		s3_buffer_bytes(out, parent->path, path);
	}
	if (write_back)
		s3_buffer_bytes(out, super->write_back, S3_UUID);
	if (super->wrapped)
		s3_buffer_bytes(out, super->wrapped, S3_WRAPPED(super->n_parents));
	if (out->failed)
		return;
	s3_put(out->data + start + SUPER_CRC - 4, out->length - start, 4);
	s3_put(out->data + start + SUPER_CRC,
		crc_around(out->data + start, out->length - start, SUPER_CRC), 4);
}

void s3_super_free(struct s3_super *super)
{
	for (unsigned i = 0; i < super->n_parents; i++)
		free(super->parents[i].path);
	free(super->parents);
	free(super->wrapped);
	memset(super, 0, sizeof *super);
}

/* Takes bytes of text with a NUL behind them; false: it holds one itself. */
static bool read_text(struct s3_reader *r, size_t length, char *text)
{
	const uint8_t *p = s3_read_bytes(r, length);

	if (!p || memchr(p, 0, length))
		return false;
	memcpy(text, p, length);
	text[length] = '\0';
	return true;
}

static enum s3_check decode_parents(struct s3_reader *r, unsigned n, struct s3_super *super)
{
	if (!n)
		return S3_GOOD;
	super->parents = calloc(n, sizeof *super->parents);
	if (!super->parents)
		return S3_NO_MEMORY;
	for (unsigned i = 0; i < n; i++) {
		struct s3_parent *parent = &super->parents[i];
		const uint8_t *uuid = s3_read_bytes(r, S3_UUID);
		size_t length;

		if (!uuid)
			return S3_INVALID;
		memcpy(parent->uuid, uuid, S3_UUID);
		parent->last_seq = s3_read_number(r, 8);
		length = s3_read_number(r, 1);
		if (length > S3_NAME_MAX || !read_text(r, length, parent->snapshot) ||
			!s3_name_valid(parent->snapshot))
			return S3_INVALID;
		length = s3_read_number(r, 2);
		if (r->bad || length > S3_PATH_MAX)
			return S3_INVALID;
		parent->path = malloc(length + 1);
		if (!parent->path)
			return S3_NO_MEMORY;
		super->n_parents = i + 1; /* s3_super_free() frees so many paths */
		if (!read_text(r, length, parent->path) || !s3_key_valid(parent->path))
			return S3_INVALID;
	}
	return S3_GOOD;
}

static enum s3_check decode_write_back(struct s3_reader *r, struct s3_super *super)
{
	const uint8_t *instance = s3_read_bytes(r, S3_UUID);

	if (!instance || memcmp(instance, no_write_back, S3_UUID) == 0)
		return S3_INVALID;
	memcpy(super->write_back, instance, S3_UUID);
	return S3_GOOD;
}

static enum s3_check decode_wrapped(struct s3_reader *r, struct s3_super *super)
{
	const uint8_t *wrapped = s3_read_bytes(r, S3_WRAPPED(super->n_parents));

	if (!wrapped || !(super->features & S3_FEATURE_AES))
		return S3_INVALID;
	super->wrapped = malloc(S3_WRAPPED(super->n_parents));
	if (!super->wrapped)
		return S3_NO_MEMORY;
	memcpy(super->wrapped, wrapped, S3_WRAPPED(super->n_parents));
	return S3_GOOD;
}

static bool super_consistent(const struct s3_super *s)
{
	if (s->block_shift < S3_BLOCK_MIN || s->block_shift > S3_BLOCK_MAX || !s->blocks ||
		s->blocks > S3_BLOCKS_MAX)
		return false;
	if (s->layout == S3_LAYOUT_LOG)
		return !s->chunk_blocks;
	return s->layout == S3_LAYOUT_DIRECT && s->chunk_blocks &&
	       s->chunk_blocks <= S3_DATA_MAX >> s->block_shift &&
	       !(s->chunk_blocks & (s->chunk_blocks - 1)) && !s->n_parents && !s->features &&
	       memcmp(s->write_back, no_write_back, S3_UUID) == 0;
}

/* Magic and version of data of which 12 bytes are there. */
static enum s3_check check_kind(const uint8_t *data, const uint8_t magic[8])
{
	uint64_t version = s3_get(data + 8, 2);

	if (memcmp(data, magic, 8))
		return S3_NOT_OURS;
	if (version > VERSION)
		return S3_NEWER;
	return version == VERSION ? S3_GOOD : S3_INVALID;
}

enum s3_check s3_super_decode(const void *data, size_t length, struct s3_super *super)
{
	const uint8_t *p = data;
	struct s3_super s = {0};
	struct s3_reader r;
	enum s3_check check;
	unsigned n_parents;
	bool write_back, wrapped;

	if (length < 12)
		return length >= 8 && memcmp(p, super_magic, 8) ? S3_NOT_OURS : S3_SHORT;
	check = check_kind(p, super_magic);
	if (check)
		return check;
	if (length < SUPER_LENGTH || length < s3_get(p + SUPER_CRC - 4, 4))
		return S3_SHORT;
	if (length != s3_get(p + SUPER_CRC - 4, 4) ||
		crc_around(p, length, SUPER_CRC) != s3_get(p + SUPER_CRC, 4))
		return S3_CHECKSUM;
	s.features = (uint32_t)s3_get(p + 12, 4);
	if (s.features & ~(S3_FEATURES | S3_FEATURE_WRITE_BACK | S3_FEATURE_WRAPPED))
		return S3_UNKNOWN_FLAG;
	write_back = s.features & S3_FEATURE_WRITE_BACK;
	wrapped = s.features & S3_FEATURE_WRAPPED;
	s.features &= S3_FEATURES;
	r = (struct s3_reader){.next = p + SUPER_HEAD, .end = p + length};
	memcpy(s.uuid, s3_read_bytes(&r, S3_UUID), S3_UUID);
	s.layout = s3_read_number(&r, 1);
	s.block_shift = (unsigned)s3_read_number(&r, 1);
	n_parents = (unsigned)s3_read_number(&r, 2);
	s.chunk_blocks = (uint32_t)s3_read_number(&r, 4);
	s.blocks = s3_read_number(&r, 8);
	s.epoch = s3_read_number(&r, 8);
	s.created = s3_read_number(&r, 8);
	s.checkpoint = s3_read_number(&r, 8);
	memcpy(s.key_check, s3_read_bytes(&r, sizeof s.key_check), sizeof s.key_check);
	check = n_parents > S3_PARENTS_MAX || s3_get(p + 10, 2) ? S3_INVALID
								: decode_parents(&r, n_parents, &s);
	if (!check && write_back)
		check = decode_write_back(&r, &s);
	if (!check && wrapped)
		check = decode_wrapped(&r, &s);
	if (!check && (r.bad || s3_read_left(&r) || !super_consistent(&s)))
		check = S3_INVALID;
	if (check)
		s3_super_free(&s);
	else
		*super = s;
	return check;
}

/* ---- log and GC objects --------------------------------------------------------- */

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
		s3_put(p + 16, rec->source, 8);
		s3_put(p + 24, rec->object, 8);
		s3_put(p + 32, rec->source_offset, 4);
		/* fall through */
	case S3_RECORD_WRITE:
		s3_put(p + 2, rec->lba, 6);
		s3_put(p + 8, rec->count, 4);
		s3_put(p + 12, rec->offset, 4);
		break;
	case S3_RECORD_ZERO:
	case S3_RECORD_DISCARD:
		s3_put(p + 2, rec->lba, 6);
		s3_put(p + 8, rec->count, 8);
		break;
	case S3_RECORD_GC_OBJECT:
		s3_put(p + 8, rec->bytes, 4);
		s3_put(p + 12, rec->blocks, 4);
		s3_put(p + 16, rec->object, 8);
		s3_put(p + 24, rec->header_bytes, 4);
		break;
	case S3_RECORD_RESET:
		s3_put(p + 8, rec->seq, 8);
		break;
	}
}

static void decode_record(const uint8_t *p, struct s3_record *rec)
{
	*rec = (struct s3_record){.op = p[0]};
	switch (rec->op) {
	case S3_RECORD_RELOCATE:
		rec->source_origin = p[1];
		rec->source = s3_get(p + 16, 8);
		rec->object = s3_get(p + 24, 8);
		rec->source_offset = (uint32_t)s3_get(p + 32, 4);
		/* fall through */
	case S3_RECORD_WRITE:
		rec->lba = s3_get(p + 2, 6);
		rec->count = s3_get(p + 8, 4);
		rec->offset = (uint32_t)s3_get(p + 12, 4);
		break;
	case S3_RECORD_ZERO:
	case S3_RECORD_DISCARD:
		rec->lba = s3_get(p + 2, 6);
		rec->count = s3_get(p + 8, 8);
		break;
	case S3_RECORD_GC_OBJECT:
		rec->bytes = (uint32_t)s3_get(p + 8, 4);
		rec->blocks = (uint32_t)s3_get(p + 12, 4);
		rec->object = s3_get(p + 16, 8);
		rec->header_bytes = (uint32_t)s3_get(p + 24, 4);
		break;
	case S3_RECORD_RESET:
		rec->seq = s3_get(p + 8, 8);
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
	s3_put(p + 8, VERSION, 2);
	s3_put(p + 10, h->flags, 2);
	p[12] = (uint8_t)h->type;
	p[13] = (uint8_t)h->block_shift;
	s3_put(p + 16, h->header_bytes, 4);
	memcpy(p + 24, h->uuid, S3_UUID);
	s3_put(p + 40, h->id, 8);
	s3_put(p + 48, h->epoch, 8);
	memcpy(p + 56, h->instance, S3_UUID);
	s3_put(p + 72, h->batch, 8);
	s3_put(p + 80, h->frontier, 8);
	s3_put(p + 88, h->checkpoint, 8);
	s3_put(p + 96, h->cache_record, 8);
	s3_put(p + 104, h->time, 8);
	memcpy(p + 112, h->salt, sizeof h->salt);
	s3_put(p + 128, h->blocks, 4);
	s3_put(p + 132, h->data_bytes, 4);
	s3_put(p + 136, h->n_records, 4);
	s3_put(p + 140, records_bytes, 4);
	s3_put(p + 144, h->n_crc, 4);
	s3_put(p + HEAD_CRC, crc_around(p, total, HEAD_CRC), 4);
	return total;
}

size_t s3_header_finish(struct s3_header_writer *w, const uint32_t *crcs)
{
	size_t records_bytes = w->length - HEAD;

	if (w->overflow || (size_t)w->header.blocks * 4 > w->room - w->length)
		return 0;
	for (uint32_t i = 0; i < w->header.blocks; i++, w->length += 4)
		s3_put(w->buffer + w->length, crcs[i], 4);
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
		s3_put(w->buffer + w->length, units[i].bytes | (units[i].raw ? UNIT_RAW : 0), 4);
		s3_put(w->buffer + w->length + 4, units[i].crc, 4);
		h->data_bytes += units[i].bytes;
	}
	return finish(w, records_bytes);
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
	return (uint32_t)s3_get(header->crcs + (size_t)index * 4, 4);
}

struct s3_unit s3_header_unit(const struct s3_object_header *header, uint32_t index)
{
	const uint8_t *p = header->crcs + (size_t)index * 8;
	uint32_t bytes = (uint32_t)s3_get(p, 4);

	return (struct s3_unit){
		.bytes = bytes & ~UNIT_RAW,
		.raw = bytes & UNIT_RAW,
		.crc = (uint32_t)s3_get(p + 4, 4),
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
	check = check_kind(p, object_magic);
	if (check)
		return check;
	h.header_bytes = (uint32_t)s3_get(p + 16, 4);
	if (!h.header_bytes || h.header_bytes % S3_ALIGN || h.header_bytes > S3_HEADER_MAX)
		return S3_CHECKSUM;
	if (length < h.header_bytes) {
		header->header_bytes = h.header_bytes;
		return S3_SHORT;
	}
	if (crc_around(p, h.header_bytes, HEAD_CRC) != s3_get(p + HEAD_CRC, 4))
		return S3_CHECKSUM;
	h.flags = (uint32_t)s3_get(p + 10, 2);
	if (h.flags & ~S3_FEATURES)
		return S3_UNKNOWN_FLAG;
	if (uuid && memcmp(p + 24, uuid, S3_UUID))
		return S3_OTHER_VOLUME;
	h.type = p[12];
	h.block_shift = p[13];
	memcpy(h.uuid, p + 24, S3_UUID);
	h.id = s3_get(p + 40, 8);
	h.epoch = s3_get(p + 48, 8);
	memcpy(h.instance, p + 56, S3_UUID);
	h.batch = s3_get(p + 72, 8);
	h.frontier = s3_get(p + 80, 8);
	h.checkpoint = s3_get(p + 88, 8);
	h.cache_record = s3_get(p + 96, 8);
	h.time = s3_get(p + 104, 8);
	memcpy(h.salt, p + 112, sizeof h.salt);
	h.blocks = (uint32_t)s3_get(p + 128, 4);
	h.data_bytes = (uint32_t)s3_get(p + 132, 4);
	h.n_records = (uint32_t)s3_get(p + 136, 4);
	h.records_bytes = s3_get(p + 140, 4);
	h.n_crc = (uint32_t)s3_get(p + 144, 4);
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
