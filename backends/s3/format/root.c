/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/checkpoint_head.h"

static const uint8_t root_magic[8] = "USERBLKC";

/*
 * instance 16 bytes | seq | base | blocks | next GC object | time | regions | summaries |
 * snapshots; per region: region - last one | seq | bytes | CRC 4 bytes; per summary: headers |
 * bytes | CRC 4 bytes; per snapshot: seq - last one | time | blocks | length of the name | name;
 * length of the table | table.
 */
void s3_root_encode(const struct s3_root *root, struct s3_buffer *out)
{
	size_t start = out->length;

	s3_checkpoint_head_put(
		out, root_magic, root->packed ? CHECKPOINT_PACKED : 0, root->uuid, root->epoch);
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
	s3_checkpoint_seal(out, start);
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
		region->bytes = s3_checkpoint_u32(r, s3_read_varint(r));
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
		summary->bytes = s3_checkpoint_u32(r, s3_read_varint(r));
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
	struct s3_reader r = {.next = p + CHECKPOINT_HEAD, .end = p + length};
	struct s3_root decoded = {0};
	enum s3_check check = s3_checkpoint_head_check(p, length, root_magic, uuid);

	if (check)
		return check;
	memcpy(decoded.uuid, p + 24, S3_UUID);
	decoded.epoch = s3_le_load(p + 40, 8);
	decoded.packed = s3_le_load(p + CHECKPOINT_FLAGS, 2) & CHECKPOINT_PACKED;
	check = decode_root(&r, &decoded);
	if (check)
		s3_root_free(&decoded);
	else
		*root = decoded;
	return check;
}
