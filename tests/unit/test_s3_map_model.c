/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The map of the S3 device and its table of objects against a flat array: random changes,
 * compaction, checkpoints and snapshots.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/format.h"
#include "tests/unit/s3_map_world.h"

/* Counts of objects and totals are what a recount finds. */
static void compare_objects(struct world *w)
{
	struct s3_objects_totals totals;
	uint64_t live = 0, objects = 0, dead = 0;

	for (size_t i = 0; i < w->n_all; i++) {
		const struct model_object *m = &w->all[i];
		struct s3_object object;

		if (m->gone)
			continue;
		assert_int_equal(s3_objects_find(w->objects, 0, m->id), m->slot);
		s3_objects_get(w->objects, m->slot, &object);
		assert_int_equal(object.id, m->id);
		assert_int_equal(object.live, m->live);
		if (!m->live)
			assert_int_equal(object.death, m->death);
		live += m->live;
		dead += !m->live;
		objects++;
	}
	s3_objects_totals(w->objects, &totals);
	assert_int_equal(totals.live, live);
	assert_int_equal(totals.objects, objects);
	assert_int_equal(totals.dead, dead);
	assert_int_equal(s3_map_mapped(w->map), live);
}

/* ---- what a volume does ------------------------------------------------------------- */

/* Forgets the objects that nobody can need, as GC does. */
static void collect(struct world *w, uint64_t limit)
{
	uint32_t slots[64];
	size_t n = s3_objects_take_dead(w->objects, limit, slots, 64);

	for (size_t i = 0; i < n; i++) {
		struct s3_object object;
		struct model_object *m;

		s3_objects_get(w->objects, slots[i], &object);
		m = model_find(w, object.id);
		assert_non_null(m);
		assert_int_equal(m->live, 0);
		assert_true(m->death <= limit);
		assert_int_equal(s3_objects_remove(w->objects, slots[i]), 0);
		m->gone = true;
	}
	/* The model forgets, too. */
	if (w->n_all > MAX_OBJECTS / 2) {
		size_t kept = 0;

		for (size_t i = 0; i < w->n_all; i++)
			if (!w->all[i].gone)
				w->all[kept++] = w->all[i];
		w->n_all = kept;
	}
}

/* A batch: writes of different shapes, holes, all in one object. */
static void batch(struct world *w, unsigned shape, unsigned writes)
{
	struct model_object *m = object_add(w, w->seq + 1, w->seq + 1, TARGET);
	uint32_t used = 0;

	w->seq++;
	for (unsigned i = 0; i < writes && used < TARGET; i++) {
		uint32_t most = shape == 0 ? 1 : shape == 1 ? 16 : shape == 2 ? 300 : 1024;
		uint32_t count = 1 + (uint32_t)below(most);
		uint64_t lba = below(w->blocks);

		if (count > TARGET - used)
			count = TARGET - used;
		if (shape == 3)
			lba &= ~511ull; /* whole leaves */
		if (count > w->blocks - lba)
			count = (uint32_t)(w->blocks - lba);
		if (below(8) == 0) {
			do_punch(w, lba,
				below(16) || 8 * count > w->blocks - lba ? count : 8 * count);
			continue;
		}
		do_write(w, lba, count, m, used);
		compare(w, lba > 600 ? lba - 600 : 0,
			lba + count + 600 < w->blocks ? count + (lba > 600 ? 1200 : lba) : 1);
		used += count;
	}
	s3_objects_seal(w->objects, m->slot, w->seq);
	if (!m->live)
		m->death = w->seq;
}

/* Moves what lives of sparse objects into one, as GC does; a part of it is overwritten meanwhile.
 */
static void compact(struct world *w)
{
	uint32_t slots[4];
	size_t n = s3_objects_take_sparse(w->objects, 30, true, slots, 4);
	struct move {
		uint64_t lba, source;
		uint32_t source_slot, source_offset, to, count;
	} *moves = calloc(w->blocks, sizeof *moves);
	struct model_object *m;
	size_t n_moves = 0;
	uint32_t to = 0;

	for (size_t i = 0; i < n; i++) {
		struct s3_object object;

		s3_objects_get(w->objects, slots[i], &object);
		for (uint64_t lba = 0; lba < w->blocks && to < TARGET; lba++) {
			struct block *b = &w->flat[lba];
			struct move *last = n_moves ? &moves[n_moves - 1] : NULL;

			if (b->id != object.id)
				continue;
			if (last && last->source == b->id && last->lba + last->count == lba &&
				last->source_offset + last->count == b->offset)
				last->count++;
			else
				moves[n_moves++] =
					(struct move){lba, b->id, slots[i], b->offset, to, 1};
			to++;
		}
	}
	if (!to)
		goto out;
	batch(w, 1, 8);
	w->seq++;
	m = object_add(w, S3_GC | ++w->gc, w->seq, to);
	for (size_t i = 0; i < n_moves; i++) {
		const struct move *v = &moves[i];
		uint64_t moved, expected = 0;

		for (uint32_t j = 0; j < v->count; j++) {
			struct block *b = &w->flat[v->lba + j];

			if (b->id != v->source || b->offset != v->source_offset + j)
				continue;
			model_displace(w, v->lba + j, 1);
			*b = (struct block){m->id, v->to + j};
			m->live++;
			expected++;
		}
		assert_int_equal(s3_map_relocate(w->map, w->seq, BASE + v->lba, v->count,
					 v->source_slot, v->source_offset, m->slot, v->to, &moved),
			0);
		assert_int_equal(moved, expected);
		compare(w, v->lba, v->count);
		w->steps++;
	}
	s3_objects_seal(w->objects, m->slot, w->seq);
	if (!m->live)
		m->death = w->seq;
out:
	for (size_t i = 0; i < n; i++)
		s3_objects_put_back(w->objects, slots[i]);
	free(moves);
}

/* ---- checkpoints --------------------------------------------------------------------- */

#define MAX_REGIONS 8

/* What a store holds of a volume. */
struct stored {
	struct s3_buffer regions[MAX_REGIONS];
	struct s3_buffer table;
	uint64_t seq;
};

static void stored_free(struct stored *s)
{
	for (size_t i = 0; i < MAX_REGIONS; i++)
		s3_buffer_free(&s->regions[i]);
	s3_buffer_free(&s->table);
}

/* Opens what is stored, and compares it with a model of then. */
static void check_stored(struct world *w, const struct stored *s, const struct block *then)
{
	struct world again = *w;

	again.objects = s3_objects_new(TARGET);
	again.map = s3_map_new(again.objects, BASE + w->blocks);
	again.flat = (struct block *)(uintptr_t)then;
	assert_int_equal(s3_objects_decode(again.objects, s->table.data, s->table.length), S3_GOOD);
	for (uint32_t i = 0; i < MAX_REGIONS; i++)
		if (s->regions[i].length)
			assert_int_equal(
				s3_map_load(again.map, i, s->regions[i].data, s->regions[i].length),
				S3_GOOD);
	s3_objects_settle(again.objects, s->seq);
	compare(&again, 0, w->blocks);
	s3_map_free(again.map);
	s3_objects_free(again.objects);
}

/* A checkpoint; between its regions the volume goes on. */
static void checkpoint(struct world *w, struct stored *s, bool commit)
{
	struct block *then = malloc(w->blocks * sizeof *then);
	struct stored next = {.seq = w->seq};
	uint32_t *regions;
	size_t n;

	memcpy(then, w->flat, w->blocks * sizeof *then);
	s3_objects_encode(w->objects, 0, &next.table);
	assert_int_equal(s3_map_capture(w->map, !s->seq, &regions, &n), 0);
	for (size_t i = 0; i < n; i++) {
		for (unsigned rounds = (unsigned)below(4); rounds; rounds--)
			batch(w, (unsigned)below(4), 20);
		if (!commit && i == n / 2)
			break;
		assert_int_equal(
			s3_map_capture_region(w->map, regions[i], &next.regions[regions[i]]), 0);
		if (!commit)
			continue;
		s3_buffer_free(&s->regions[regions[i]]);
		s->regions[regions[i]] = next.regions[regions[i]];
		next.regions[regions[i]] = (struct s3_buffer){0};
	}
	s3_map_capture_end(w->map, commit);
	if (commit) {
		s3_buffer_free(&s->table);
		s->table = next.table;
		s->seq = next.seq;
		next.table = (struct s3_buffer){0};
		check_stored(w, s, then);
		collect(w, s->seq);
	}
	stored_free(&next);
	free(regions);
	free(then);
}

static void test_model(void **state)
{
	struct world w;
	struct stored stored = {0};
	const char *given = getenv("STEPS");
	uint64_t steps = given ? strtoull(given, NULL, 0) : 1000000;

	(void)state;
	seed();
	world_init(&w, BLOCKS);
	for (unsigned i = 0; w.steps < steps; i++) {
		unsigned what = (unsigned)below(100);

		if (what < 85)
			batch(&w, (unsigned)below(4), 1 + (unsigned)below(400));
		else if (what < 92)
			compact(&w);
		else
			checkpoint(&w, &stored, below(4) > 0);
		if (i % 8 == 0) {
			compare(&w, 0, w.blocks);
			compare_objects(&w);
		}
	}
	do_punch(&w, 0, w.blocks);
	w.seq++;
	compare(&w, 0, w.blocks);
	compare_objects(&w);
	stored_free(&stored);
	world_free(&w);
}

/* ---- snapshots ------------------------------------------------------------------------ */

#define MAX_SNAPSHOTS 6

struct past {
	uint64_t seq;
	struct block *flat;
	struct s3_buffer regions[MAX_REGIONS];
};

struct history {
	struct world w;
	struct past pasts[MAX_SNAPSHOTS];
	size_t n;
};

static void past_free(struct past *past)
{
	for (size_t i = 0; i < MAX_REGIONS; i++)
		s3_buffer_free(&past->regions[i]);
	free(past->flat);
}

struct mention {
	uint64_t id, offset;
	bool head;
};

static int by_block(const void *a, const void *b)
{
	const struct mention *x = a, *y = b;

	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Counts of every object are those of a recount: head, and what only snapshots hold. */
static void recount(struct history *h)
{
	struct world *w = &h->w;
	size_t room = (h->n + 1) * w->blocks, n = 0;
	struct mention *all = calloc(room, sizeof *all);
	struct s3_objects_totals totals;
	uint64_t total_held = 0;

	for (uint64_t i = 0; i < w->blocks; i++) {
		if (w->flat[i].id)
			all[n++] = (struct mention){w->flat[i].id, w->flat[i].offset, true};
		for (size_t k = 0; k < h->n; k++)
			if (h->pasts[k].flat[i].id)
				all[n++] = (struct mention){
					h->pasts[k].flat[i].id, h->pasts[k].flat[i].offset, false};
	}
	qsort(all, n, sizeof *all, by_block);
	for (size_t o = 0; o < w->n_all; o++) {
		const struct model_object *m = &w->all[o];
		uint32_t live = 0, held = 0;
		struct s3_object object;

		/* The first mention of the object, by halving. */
		size_t low = 0, high = n;

		while (low < high) {
			size_t middle = (low + high) / 2;

			if (all[middle].id < m->id)
				low = middle + 1;
			else
				high = middle;
		}
		for (size_t i = low; i < n && all[i].id == m->id;) {
			size_t next = i;
			bool head = false;

			for (; next < n && !by_block(&all[next], &all[i]); next++)
				head |= all[next].head;
			live += head;
			held += !head;
			i = next;
		}
		total_held += held;
		if (m->gone) {
			assert_int_equal(live + held, 0);
			continue;
		}
		s3_objects_get(w->objects, m->slot, &object);
		assert_true(object.id == m->id);
		assert_int_equal(object.live, live);
		assert_int_equal(object.held, held);
	}
	s3_objects_totals(w->objects, &totals);
	assert_int_equal(totals.held, total_held);
	free(all);
}

static void capture_all(struct world *w, struct s3_buffer regions[MAX_REGIONS])
{
	uint32_t *list;
	size_t n;

	assert_int_equal(s3_map_capture(w->map, true, &list, &n), 0);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(s3_map_capture_region(w->map, list[i], &regions[list[i]]), 0);
	s3_map_capture_end(w->map, true);
	free(list);
}

static void load_all(struct world *w, const struct s3_buffer regions[MAX_REGIONS])
{
	for (uint32_t i = 0; i < MAX_REGIONS; i++)
		if (regions[i].length)
			assert_int_equal(s3_map_load(w->map, i, regions[i].data, regions[i].length),
				S3_GOOD);
	s3_objects_settle(w->objects, w->seq);
}

static void take_snapshot(struct history *h)
{
	struct past *past = &h->pasts[h->n++];

	*past = (struct past){.seq = h->w.seq, .flat = malloc(h->w.blocks * sizeof *past->flat)};
	memcpy(past->flat, h->w.flat, h->w.blocks * sizeof *past->flat);
	capture_all(&h->w, past->regions);
	assert_int_equal(s3_objects_snapshot(h->w.objects, past->seq), 0);
}

static void model_recount_live(struct world *w)
{
	for (size_t i = 0; i < w->n_all; i++)
		w->all[i].live = 0;
	for (uint64_t i = 0; i < w->blocks; i++)
		if (w->flat[i].id)
			model_find(w, w->flat[i].id)->live++;
}

static void roll_back(struct history *h)
{
	struct past *past = &h->pasts[h->n - 1];

	if (h->n > 1)
		assert_int_equal(
			s3_objects_rollback(h->w.objects, h->pasts[h->n - 2].seq - 1), -EINVAL);
	h->w.seq++;
	assert_int_equal(s3_objects_rollback(h->w.objects, past->seq), 0);
	s3_map_clear(h->w.map);
	load_all(&h->w, past->regions);
	memcpy(h->w.flat, past->flat, h->w.blocks * sizeof *past->flat);
	model_recount_live(&h->w);
}

/* Stores everything, without the snapshot at gone (0: with all), and opens it again. */
static void reopen(struct history *h, uint64_t gone)
{
	struct world *w = &h->w;
	struct s3_buffer regions[MAX_REGIONS] = {0}, table = {0};

	s3_objects_encode(w->objects, gone, &table);
	capture_all(w, regions);
	s3_map_free(w->map);
	s3_objects_free(w->objects);
	w->objects = s3_objects_new(TARGET);
	w->map = s3_map_new(w->objects, BASE + w->blocks);
	assert_int_equal(s3_objects_decode(w->objects, table.data, table.length), S3_GOOD);
	load_all(w, regions);
	for (size_t i = 0; i < MAX_REGIONS; i++)
		s3_buffer_free(&regions[i]);
	s3_buffer_free(&table);
}

static void delete_snapshot(struct history *h, size_t k)
{
	uint64_t seq = h->pasts[k].seq;

	if (below(2))
		reopen(h, seq);
	else
		assert_int_equal(s3_objects_snapshot_delete(h->w.objects, seq, h->w.seq), 0);
	past_free(&h->pasts[k]);
	h->n--;
	memmove(&h->pasts[k], &h->pasts[k + 1], (h->n - k) * sizeof *h->pasts);
}

static void test_snapshots(void **state)
{
	struct history h = {0};

	(void)state;
	seed();
	world_init(&h.w, SMALL_WORLD);
	for (unsigned i = 0; i < 1500; i++) {
		unsigned what = (unsigned)below(100);

		if (what < 60)
			batch(&h.w, (unsigned)below(3), 1 + (unsigned)below(60));
		else if (what < 70)
			compact(&h.w);
		else if (what < 80 && h.n < MAX_SNAPSHOTS)
			take_snapshot(&h);
		else if (what < 88 && h.n)
			delete_snapshot(&h, (size_t)below(h.n));
		else if (what < 92 && h.n)
			roll_back(&h);
		else if (what < 95)
			reopen(&h, 0);
		else
			collect(&h.w, h.w.seq);
		recount(&h);
	}
	compare(&h.w, 0, h.w.blocks);
	while (h.n)
		delete_snapshot(&h, h.n - 1);
	recount(&h);
	world_free(&h.w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_snapshots),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
