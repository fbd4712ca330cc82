/* SPDX-License-Identifier: BSD-3-Clause */
/* The super object, and what is wrong with something that was read. */
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/client/names.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/internal.h"

const char *s3_check_text(enum s3_check check)
{
	static const char *const texts[] = {
		[S3_GOOD] = "is good",
		[S3_SHORT] = "is damaged: it ends too early",
		[S3_NOT_OURS] = "is not an object of userblk",
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

uint32_t s3_crc_around(const uint8_t *data, size_t length, size_t hole)
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
	s3_buffer_number(out, S3_FORMAT_VERSION, 2);
	s3_buffer_number(out, 0, 2);
	s3_buffer_number(out,
		super->features | (write_back ? S3_FEATURE_WRITE_BACK : 0) |
			(super->wrapped ? S3_FEATURE_WRAPPED : 0) |
			(super->numbered ? S3_FEATURE_NUMBERED : 0),
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
	s3_le_store(out->data + start + SUPER_CRC - 4, out->length - start, 4);
	s3_le_store(out->data + start + SUPER_CRC,
		s3_crc_around(out->data + start, out->length - start, SUPER_CRC), 4);
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

enum s3_check s3_check_kind(const uint8_t *data, const uint8_t magic[8])
{
	uint64_t version = s3_le_load(data + 8, 2);

	if (memcmp(data, magic, 8))
		return S3_NOT_OURS;
	if (version > S3_FORMAT_VERSION)
		return S3_NEWER;
	return version == S3_FORMAT_VERSION ? S3_GOOD : S3_INVALID;
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
	check = s3_check_kind(p, super_magic);
	if (check)
		return check;
	if (length < SUPER_LENGTH || length < s3_le_load(p + SUPER_CRC - 4, 4))
		return S3_SHORT;
	if (length != s3_le_load(p + SUPER_CRC - 4, 4) ||
		s3_crc_around(p, length, SUPER_CRC) != s3_le_load(p + SUPER_CRC, 4))
		return S3_CHECKSUM;
	s.features = (uint32_t)s3_le_load(p + 12, 4);
	if (s.features &
		~(S3_FEATURES | S3_FEATURE_WRITE_BACK | S3_FEATURE_WRAPPED | S3_FEATURE_NUMBERED))
		return S3_UNKNOWN_FLAG;
	write_back = s.features & S3_FEATURE_WRITE_BACK;
	wrapped = s.features & S3_FEATURE_WRAPPED;
	s.numbered = s.features & S3_FEATURE_NUMBERED;
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
	check = n_parents > S3_PARENTS_MAX || s3_le_load(p + 10, 2)
			? S3_INVALID
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
