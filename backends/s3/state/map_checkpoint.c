/* SPDX-License-Identifier: BSD-3-Clause */
/* The map as a checkpoint stores it: captured while writes go on, encoded, loaded. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/map_internal.h"
#include "backends/s3/state/object_table.h"

int s3_map_capture(struct s3_map *m, bool all, uint32_t **regions, size_t *n)
{
	uint32_t *list;
	size_t room = 0, count = 0;

	if (m->captured)
		return -EBUSY;
	for (uint32_t i = 0; i < m->top; i++)
		room += m->regions[i] != NULL;
	*regions = malloc((room + 1) * sizeof *list);
	m->captured = malloc((room + 1) * sizeof *list);
	m->scratch = calloc(S3_REGION_BLOCKS, sizeof *m->scratch);
	if (!*regions || !m->captured || !m->scratch) {
		free(*regions);
		free(m->captured);
		free(m->scratch);
		*regions = m->captured = NULL;
		m->scratch = NULL;
		return -ENOMEM;
	}
	atomic_fetch_add(&m->memory, s3_map_weight(m->scratch));
	list = m->captured;
	for (uint32_t i = 0; i < m->top; i++) {
		struct s3_region *region = m->regions[i];

		if (!region || (!all && !region->changed))
			continue;
		memset(region->copied, 0, sizeof region->copied);
		region->changed = false;
		region->capturing = true;
		list[count++] = i;
	}
	memcpy(*regions, list, count * sizeof *list);
	*n = m->n_captured = count;
	return 0;
}

/* Ends the noting of a region: its notes are the caller's. */
static struct s3_leaf *take_notes(struct s3_map *m, struct s3_region *region, size_t *n)
{
	struct s3_leaf *notes;

	pthread_mutex_lock(&region->lock);
	atomic_store(&region->capturing, false);
	notes = region->notes;
	*n = region->n_notes;
	region->notes = NULL;
	region->n_notes = region->notes_room = 0;
	atomic_fetch_sub(&m->notes, region->notes_bytes);
	region->notes_bytes = 0;
	pthread_mutex_unlock(&region->lock);
	return notes;
}

/* Takes back what happened since the capture. */
static void apply_notes(
	const struct s3_leaf *notes, size_t n, s3_leaf_entry *scratch, bool *touched)
{
	struct s3_leaf_piece pieces[S3_LEAF_BLOCKS];

	while (n--) {
		const struct s3_leaf *l = &notes[n];
		s3_leaf_entry *flat = scratch + (size_t)l->index * S3_LEAF_BLOCKS;
		size_t n_pieces;

		touched[l->index] = true;
		if (!l->whole) {
			s3_leaf_fill(flat, (struct s3_leaf_piece){l->entry, l->start, l->count});
			continue;
		}
		memset(flat, 0, S3_LEAF_BLOCKS * sizeof *flat);
		n_pieces = s3_leaf_pieces_of(l, 0, S3_LEAF_BLOCKS, pieces);
		for (size_t i = 0; i < n_pieces; i++)
			s3_leaf_fill(flat, pieces[i]);
	}
}

/*
 * A region: magic 8 | version 2 | zero 2 | region 4 | runs 4 | CRC32C 4 (over everything, itself
 * zero); per run, in varints: (count - 1) << 2 | 2 when there is a gap before it | 1 when it is in
 * the object of the run before; gap - 1; slot - last slot (signed), not with 1; block in the
 * object, with 1 minus where the run before ended (signed).
 */
static const uint8_t region_magic[8] = "USERBLKR";

#define REGION_VERSION 1
#define REGION_HEAD    24
#define REGION_RUNS    16
#define REGION_CRC     20

struct region_writer {
	struct s3_buffer *out;
	struct piece_long {
		s3_leaf_entry entry;
		uint32_t start, count;
	} last;	      /* not written yet; count 0: none */
	uint32_t end; /* of what is written */
	uint32_t slot, offset;
	uint32_t n;
};

static void write_run(struct region_writer *w)
{
	uint32_t slot = s3_leaf_slot(w->last.entry), offset = (uint32_t)(w->last.entry & 0xffff);
	uint32_t gap = w->last.start - w->end;
	bool same = slot == w->slot;

	if (!w->last.count)
		return;
	s3_buffer_varint(w->out, (uint64_t)(w->last.count - 1) << 2 | (gap ? 2 : 0) | same);
	if (gap)
		s3_buffer_varint(w->out, gap - 1);
	if (same) {
		s3_buffer_signed(w->out, (int64_t)offset - w->offset);
	} else {
		s3_buffer_signed(w->out, (int64_t)slot - w->slot);
		s3_buffer_varint(w->out, offset);
	}
	w->end = w->last.start + w->last.count;
	w->slot = slot;
	w->offset = offset + w->last.count;
	w->n++;
}

static uint32_t region_crc(const uint8_t *p, size_t length)
{
	static const uint8_t zero[4];
	uint32_t crc = s3_crc32c(0, p, REGION_CRC);

	crc = s3_crc32c(crc, zero, sizeof zero);
	return s3_crc32c(crc, p + REGION_HEAD, length - REGION_HEAD);
}

/* Writes the region in the scratch, and clears that. */
static void write_region(
	struct s3_map *m, uint32_t index, const bool *touched, struct s3_buffer *out)
{
	size_t start = out->length;
	struct region_writer w = {.out = out};

	s3_buffer_bytes(out, region_magic, sizeof region_magic);
	s3_buffer_number(out, REGION_VERSION, 2);
	s3_buffer_number(out, 0, 2);
	s3_buffer_number(out, index, 4);
	s3_buffer_number(out, 0, 8);
	for (uint32_t leaf = 0; leaf < S3_LEAVES; leaf++) {
		s3_leaf_entry *flat = m->scratch + (size_t)leaf * S3_LEAF_BLOCKS;

		if (!touched[leaf])
			continue;
		for (uint32_t i = 0; i < S3_LEAF_BLOCKS; i++) {
			uint32_t at = leaf * S3_LEAF_BLOCKS + i;

			if (!flat[i])
				continue;
			if (w.last.count && w.last.start + w.last.count == at &&
				s3_leaf_continues(w.last.entry, w.last.count, flat[i])) {
				w.last.count++;
				continue;
			}
			write_run(&w);
			w.last = (struct piece_long){flat[i], at, 1};
		}
		memset(flat, 0, S3_LEAF_BLOCKS * sizeof *flat);
	}
	write_run(&w);
	if (out->failed)
		return;
	if (!w.n) {
		out->length = start;
		return;
	}
	s3_le_store(out->data + start + REGION_RUNS, w.n, 4);
	s3_le_store(out->data + start + REGION_CRC,
		region_crc(out->data + start, out->length - start), 4);
}

int s3_map_capture_region(struct s3_map *m, uint32_t index, struct s3_buffer *out)
{
	struct s3_region *region = m->regions[index];
	bool touched[S3_LEAVES];
	struct s3_leaf *notes;
	size_t n_notes;

	for (unsigned i = 0; i < S3_LEAVES; i++) {
		struct s3_leaf_piece pieces[S3_LEAF_BLOCKS];
		uint64_t lba = ((uint64_t)index << S3_REGION_SHIFT) + (uint64_t)i * S3_LEAF_BLOCKS;
		pthread_mutex_t *lock = s3_map_lock_of(m, lba);
		size_t n;

		pthread_mutex_lock(lock);
		n = s3_leaf_pieces_of(&region->leaves[i], 0, S3_LEAF_BLOCKS, pieces);
		region->copied[i] = true;
		pthread_mutex_unlock(lock);
		touched[i] = n > 0;
		for (size_t j = 0; j < n; j++)
			s3_leaf_fill(m->scratch + (size_t)i * S3_LEAF_BLOCKS, pieces[j]);
	}
	/* Changes of this region need no longer be noted: every leaf has been copied. */
	notes = take_notes(m, region, &n_notes);
	apply_notes(notes, n_notes, m->scratch, touched);
	s3_map_drop_notes(m, notes, n_notes);
	write_region(m, index, touched, out);
	return out->failed ? -ENOMEM : 0;
}

uint64_t s3_map_notes(const struct s3_map *m)
{
	return atomic_load_explicit(&m->notes, memory_order_relaxed);
}

void s3_map_capture_end(struct s3_map *m, bool committed)
{
	for (size_t i = 0; i < m->n_captured; i++) {
		struct s3_region *region = m->regions[m->captured[i]];
		size_t n;
		struct s3_leaf *notes = take_notes(m, region, &n);

		s3_map_drop_notes(m, notes, n);
		if (!committed)
			atomic_store(&region->changed, true);
	}
	free(m->captured);
	s3_leaf_give(m, m->scratch);
	m->captured = NULL;
	m->scratch = NULL;
	m->n_captured = 0;
}

/* What is being loaded of a leaf. */
struct loading {
	struct s3_map *m;
	struct s3_region *region;
	unsigned leaf;
	size_t n;
	struct s3_leaf_piece pieces[S3_LEAF_BLOCKS];
};

/* The leaf is complete. */
static enum s3_check load_leaf(struct loading *g)
{
	struct s3_leaf *l = &g->region->leaves[g->leaf];
	size_t n = g->n;

	g->n = 0;
	for (size_t i = 0; i < n; i++) {
		s3_leaf_entry e = g->pieces[i].entry;

		if (!s3_objects_count(
			    g->m->objects, s3_leaf_slot(e), (uint16_t)e, g->pieces[i].count))
			return S3_INVALID;
	}
	return n && s3_leaf_build(g->m, l, g->pieces, n) ? S3_NO_MEMORY : S3_GOOD;
}

/* Enters a run, which is behind all before it. */
static enum s3_check load_run(struct loading *g, uint64_t lba, uint32_t count, s3_leaf_entry e)
{
	uint64_t end = lba + count;
	enum s3_check check = S3_GOOD;

	/* It is counted when the leaf is complete. */
	s3_objects_prefetch(g->m->objects, s3_leaf_slot(e));
	while (!check && lba < end) {
		struct s3_map_part part = s3_map_part_at(lba, end);
		struct s3_leaf_piece *last = g->n ? &g->pieces[g->n - 1] : NULL;
		struct s3_leaf_piece p = {e, (uint16_t)part.a, (uint16_t)(part.b - part.a)};

		if (part.leaf != g->leaf) {
			check = load_leaf(g);
			last = NULL;
			g->leaf = part.leaf;
		}
		if (last && last->start + last->count == p.start &&
			s3_leaf_continues(last->entry, last->count, e))
			last->count = (uint16_t)(last->count + p.count);
		else
			g->pieces[g->n++] = p;
		lba += p.count;
		e += p.count;
	}
	return check;
}

enum s3_check s3_map_load(struct s3_map *m, uint32_t index, const void *data, size_t length)
{
	const uint8_t *p = data;
	uint64_t base = (uint64_t)index << S3_REGION_SHIFT, room, at = 0, n;
	struct s3_reader r = {.next = p + REGION_HEAD, .end = p + length};
	enum s3_check check = S3_GOOD;
	struct loading loading = {.m = m};
	uint64_t mapped = 0;
	const int64_t limit = UINT32_MAX; /* of differences that are taken at all */
	int64_t slot = 0, offset = 0;

	if (length < REGION_HEAD)
		return S3_SHORT;
	if (memcmp(p, region_magic, sizeof region_magic))
		return S3_NOT_OURS;
	if (s3_le_load(p + 8, 2) > REGION_VERSION)
		return S3_NEWER;
	if (region_crc(p, length) != s3_le_load(p + REGION_CRC, 4))
		return S3_CHECKSUM;
	if (s3_le_load(p + 8, 2) != REGION_VERSION || s3_le_load(p + 10, 2) ||
		s3_le_load(p + 12, 4) != index || base >= m->blocks)
		return S3_INVALID;
	loading.region = m->regions[index] ? m->regions[index] : s3_map_region_make(m, index);
	if (!loading.region)
		return S3_NO_MEMORY;
	room = m->blocks - base < S3_REGION_BLOCKS ? m->blocks - base : S3_REGION_BLOCKS;
	n = s3_le_load(p + REGION_RUNS, 4);
	for (uint64_t i = 0; !check && i < n; i++) {
		uint64_t token = s3_read_varint(&r), count = (token >> 2) + 1;
		uint64_t gap = token & 2 ? s3_read_varint(&r) : 0;

		if (gap > room || count > room || (token & 1 && !i))
			return S3_INVALID;
		at += gap + (token & 2 ? 1 : 0);
		if (token & 1) {
			int64_t by = s3_read_signed(&r);

			offset += by < -limit || by > limit ? -offset - 1 : by;
		} else {
			int64_t by = s3_read_signed(&r);
			uint64_t from = s3_read_varint(&r);

			slot += by < -limit || by > limit ? -slot : by;
			offset = from < S3_OBJECT_MAX ? (int64_t)from : -1;
		}
		if (r.bad || at + count > room || slot <= 0 || slot > limit || offset < 0 ||
			count > S3_OBJECT_MAX || offset > (int64_t)(S3_OBJECT_MAX - count))
			return S3_INVALID;
		check = load_run(&loading, base + at, (uint32_t)count,
			s3_leaf_entry_of((uint32_t)slot, (uint32_t)offset));
		at += count;
		offset += (int64_t)count;
		mapped += count;
	}
	if (!check)
		check = load_leaf(&loading);
	atomic_fetch_add(&m->mapped, mapped);
	if (!check && s3_read_left(&r))
		check = S3_INVALID;
	return check;
}

int s3_map_walk(struct s3_map *m, int (*fn)(void *opaque, const struct s3_run *run), void *opaque)
{
	struct s3_run runs[256];
	uint64_t lba = 0, blocks = m->blocks;
	int r = 0;

	while (!r && lba < blocks) {
		size_t n = s3_map_lookup(
			m, lba, blocks - lba, false, runs, sizeof runs / sizeof runs[0]);

		for (size_t i = 0; !r && i < n; i++)
			if (runs[i].slot)
				r = fn(opaque, &runs[i]);
		lba = runs[n - 1].lba + runs[n - 1].count;
	}
	return r;
}
