/* SPDX-License-Identifier: BSD-3-Clause */
/* The leaves of the map: runs and entries of 128 blocks. */
#include <errno.h>
#include <malloc.h>
#include <string.h>

#include "backends/s3/base/slab.h"
#include "backends/s3/state/map_internal.h"

/*
 * An array of more runs would take a page, as a flat leaf does. A flat one becomes an array when it
 * has so few: the distance keeps a leaf from going to and fro.
 */
#define RUNS_MAX  170u
#define RUNS_BACK 128u

/* ---- leaves ------------------------------------------------------------------- */

static struct s3_packed pack(struct s3_leaf_piece p)
{
	return (struct s3_packed){(uint32_t)p.entry, (uint32_t)(p.entry >> 32), p.start, p.count};
}

static struct s3_leaf_piece unpack(struct s3_packed r)
{
	return (struct s3_leaf_piece){(s3_leaf_entry)r.high << 32 | r.low, r.start, r.count};
}

static unsigned end_of(struct s3_packed r)
{
	return r.start + r.count;
}

/* The first of n runs that ends beyond a. */
static size_t find_run(const struct s3_packed *runs, size_t n, unsigned a)
{
	size_t low = 0;

	while (low < n) {
		size_t middle = (low + n) / 2;

		if (end_of(runs[middle]) > a)
			n = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* The part of p inside [a, b). */
static struct s3_leaf_piece clip(struct s3_leaf_piece p, unsigned a, unsigned b)
{
	unsigned end = p.start + p.count;

	if (p.start < a) {
		p.entry += a - p.start;
		p.start = (uint16_t)a;
	}
	p.count = (uint16_t)((end < b ? end : b) - p.start);
	return p;
}

size_t s3_leaf_pieces_of(
	const struct s3_leaf *l, unsigned a, unsigned b, struct s3_leaf_piece out[S3_LEAF_BLOCKS])
{
	size_t n = 0;

	switch (l->kind) {
	case S3_LEAF_RUN:
		if (l->start < b && l->start + l->count > a)
			out[n++] = clip((struct s3_leaf_piece){l->entry, l->start, l->count}, a, b);
		break;
	case S3_LEAF_RUNS:
		for (size_t i = find_run(l->runs, l->start, a);
			i < l->start && l->runs[i].start < b; i++)
			out[n++] = clip(unpack(l->runs[i]), a, b);
		break;
	case S3_LEAF_FLAT:
		for (unsigned i = a; i < b; i++) {
			if (!l->flat[i])
				continue;
			if (n && out[n - 1].start + out[n - 1].count == i &&
				s3_leaf_continues(out[n - 1].entry, out[n - 1].count, l->flat[i]))
				out[n - 1].count++;
			else
				out[n++] = (struct s3_leaf_piece){l->flat[i], (uint16_t)i, 1};
		}
		break;
	}
	return n;
}

unsigned s3_leaf_count_starts(const s3_leaf_entry *flat, unsigned a, unsigned b)
{
	unsigned n = 0;

	for (unsigned i = a; i <= b && i < S3_LEAF_BLOCKS; i++)
		n += flat[i] && !(i && s3_leaf_continues(flat[i - 1], 1, flat[i]));
	return n;
}

void s3_leaf_drop(struct s3_map *m, struct s3_leaf *l)
{
	if (l->kind == S3_LEAF_RUNS)
		s3_slab_give(m->slab, l->runs);
	else if (l->kind == S3_LEAF_FLAT)
		s3_slab_give(m->slab, l->flat);
	l->kind = S3_LEAF_EMPTY;
}

static struct s3_packed *take_runs(struct s3_map *m, size_t n, uint16_t *room)
{
	size_t bytes = 0;
	struct s3_packed *runs = s3_slab_take(m->slab, n * sizeof *runs, &bytes);

	*room = (uint16_t)(bytes / sizeof *runs);
	return runs;
}

static struct s3_leaf one_run(const struct s3_leaf_piece *piece)
{
	return (struct s3_leaf){.entry = piece->entry,
		.start = piece->start,
		.count = piece->count,
		.kind = S3_LEAF_RUN};
}

void s3_leaf_shrink(struct s3_map *m, struct s3_leaf *l)
{
	struct s3_leaf_piece pieces[S3_LEAF_BLOCKS];
	struct s3_packed *runs;
	uint16_t room;
	size_t n;

	if (l->start > RUNS_BACK)
		return;
	n = s3_leaf_pieces_of(l, 0, S3_LEAF_BLOCKS, pieces);
	if (n < 2) {
		s3_leaf_drop(m, l);
		if (n)
			*l = one_run(&pieces[0]);
		return;
	}
	runs = take_runs(m, n, &room);
	if (!runs)
		return;
	for (size_t i = 0; i < n; i++)
		runs[i] = pack(pieces[i]);
	s3_leaf_drop(m, l);
	*l = (struct s3_leaf){
		.runs = runs, .start = (uint16_t)n, .count = room, .kind = S3_LEAF_RUNS};
}

int s3_leaf_build(struct s3_map *m, struct s3_leaf *l, const struct s3_leaf_piece *pieces, size_t n)
{
	struct s3_packed *runs = l->runs;
	uint16_t room = l->count;
	size_t bytes;

	if (n < 2) {
		s3_leaf_drop(m, l);
		*l = (struct s3_leaf){.kind = S3_LEAF_EMPTY};
		if (n)
			*l = one_run(&pieces[0]);
	} else if (n > RUNS_MAX) {
		s3_leaf_entry *flat =
			l->kind == S3_LEAF_FLAT
				? l->flat
				: s3_slab_take(m->slab, S3_LEAF_BLOCKS * sizeof *flat, &bytes);

		if (!flat)
			return -ENOMEM;
		memset(flat, 0, S3_LEAF_BLOCKS * sizeof *flat);
		for (size_t i = 0; i < n; i++)
			s3_leaf_fill(flat, pieces[i]);
		if (l->kind != S3_LEAF_FLAT)
			s3_leaf_drop(m, l);
		*l = (struct s3_leaf){.flat = flat, .start = (uint16_t)n, .kind = S3_LEAF_FLAT};
	} else {
		if (l->kind != S3_LEAF_RUNS || n > room || n < room / 2u) {
			runs = take_runs(m, n, &room);
			if (!runs)
				return -ENOMEM;
			s3_leaf_drop(m, l);
		}
		for (size_t i = 0; i < n; i++)
			runs[i] = pack(pieces[i]);
		*l = (struct s3_leaf){
			.runs = runs, .start = (uint16_t)n, .count = room, .kind = S3_LEAF_RUNS};
	}
	return 0;
}

static int leaf_flatten(struct s3_map *m, struct s3_leaf *l)
{
	size_t room;
	s3_leaf_entry *flat = s3_slab_take(m->slab, S3_LEAF_BLOCKS * sizeof *flat, &room);
	unsigned n = l->start;

	if (!flat)
		return -ENOMEM;
	memset(flat, 0, S3_LEAF_BLOCKS * sizeof *flat);
	for (unsigned i = 0; i < n; i++)
		s3_leaf_fill(flat, unpack(l->runs[i]));
	s3_leaf_drop(m, l);
	*l = (struct s3_leaf){.flat = flat, .start = (uint16_t)n, .kind = S3_LEAF_FLAT};
	return 0;
}

/* Adds p to out, joined with the last one if it continues that. */
static size_t append(struct s3_packed *out, size_t n, struct s3_leaf_piece p)
{
	if (n && end_of(out[n - 1]) == p.start &&
		s3_leaf_continues(unpack(out[n - 1]).entry, out[n - 1].count, p.entry))
		out[n - 1].count = (uint16_t)(out[n - 1].count + p.count);
	else
		out[n++] = pack(p);
	return n;
}

int s3_leaf_runs_set(struct s3_map *m, struct s3_leaf *l, struct s3_leaf_piece p)
{
	struct s3_packed one = pack((struct s3_leaf_piece){l->entry, l->start, l->count});
	struct s3_packed *runs = l->kind == S3_LEAF_RUNS ? l->runs : &one;
	size_t n = l->kind == S3_LEAF_RUNS ? l->start : l->kind == S3_LEAF_RUN;
	unsigned a = p.start, b = a + p.count;
	struct s3_packed middle[3];
	size_t i, j, n_middle = 0, total;

	/* Runs i to j - 1 overlap [a, b), or touch it and may join. */
	i = find_run(runs, n, a);
	if (i && end_of(runs[i - 1]) == a)
		i--;
	for (j = i; j < n && runs[j].start <= b; j++)
		;
	if (i < j && runs[i].start < a)
		n_middle = append(middle, n_middle, clip(unpack(runs[i]), 0, a));
	if (p.entry)
		n_middle = append(middle, n_middle, p);
	if (i < j && end_of(runs[j - 1]) > b)
		n_middle = append(middle, n_middle, clip(unpack(runs[j - 1]), b, S3_LEAF_BLOCKS));
	total = n - (j - i) + n_middle;
	if (total > RUNS_MAX) {
		/* Only an array can have become so long. */
		int r = leaf_flatten(m, l);

		if (!r)
			s3_leaf_flat_set(m, l, p);
		return r;
	}
	if (total < 2) {
		struct s3_packed last = n_middle ? middle[0] : i ? runs[0] : runs[n - 1];

		s3_leaf_drop(m, l);
		if (total)
			*l = (struct s3_leaf){.entry = unpack(last).entry,
				.start = last.start,
				.count = last.count,
				.kind = S3_LEAF_RUN};
		return 0;
	}
	if (l->kind != S3_LEAF_RUNS || total > l->count || total < l->count / 2u) {
		uint16_t room;
		struct s3_packed *larger = take_runs(m, total, &room);

		if (!larger)
			return -ENOMEM;
		memcpy(larger, runs, i * sizeof *runs);
		memcpy(larger + i, middle, n_middle * sizeof *runs);
		memcpy(larger + i + n_middle, runs + j, (n - j) * sizeof *runs);
		s3_leaf_drop(m, l);
		*l = (struct s3_leaf){.runs = larger, .count = room, .kind = S3_LEAF_RUNS};
	} else {
		memmove(runs + i + n_middle, runs + j, (n - j) * sizeof *runs);
		memcpy(runs + i, middle, n_middle * sizeof *runs);
	}
	l->start = (uint16_t)total;
	return 0;
}
