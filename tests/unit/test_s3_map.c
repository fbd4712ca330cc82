/* SPDX-License-Identifier: BSD-3-Clause */
/* The map of the S3 device and its table of objects against a flat array. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "tests/unit/support.h"

static uint64_t random_state;

/* splitmix64 */
static uint64_t draw(void)
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static uint64_t below(uint64_t n)
{
	return draw() % n;
}

static uint64_t seed(void)
{
	const char *given = getenv("SEED");

	random_state = given ? strtoull(given, NULL, 0) : 20261121;
	print_message("SEED=%llu\n", (unsigned long long)random_state);
	return random_state;
}

/* ---- a map and its model ----------------------------------------------------------- */

#define TARGET	    1024u
#define MAX_OBJECTS 4096u

/* A block as the model sees it. */
struct block {
	uint64_t id; /* 0: a hole */
	uint32_t offset;
};

struct model_object {
	uint64_t id, birth, death;
	uint32_t slot, blocks, live;
	bool gone;
};

/* The model's first block: where two regions of the map meet is 1000 blocks on. */
#define BLOCKS 40000u
#define BASE   (S3_REGION_BLOCKS - 1000u)

struct world {
	struct s3_objects *objects;
	struct s3_map *map;
	uint64_t blocks;
	struct block *flat;
	uint64_t seq, gc, steps;
	/* The model's objects, in the order in which they came. */
	struct model_object *all;
	size_t n_all;
};

static void world_init(struct world *w, uint64_t blocks)
{
	memset(w, 0, sizeof *w);
	w->blocks = blocks;
	w->objects = s3_objects_new(TARGET);
	w->map = s3_map_new(w->objects, BASE + blocks);
	w->flat = calloc(blocks, sizeof *w->flat);
	w->all = calloc(MAX_OBJECTS, sizeof *w->all);
	assert_non_null(w->map);
}

static void world_free(struct world *w)
{
	s3_map_free(w->map);
	s3_objects_free(w->objects);
	free(w->flat);
	free(w->all);
}

/* From the end, where what is looked for mostly is. */
static struct model_object *model_find(struct world *w, uint64_t id)
{
	for (size_t i = w->n_all; i--;)
		if (w->all[i].id == id && !w->all[i].gone)
			return &w->all[i];
	return NULL;
}

static struct model_object *object_add(
	struct world *w, uint64_t id, uint64_t birth, uint32_t blocks)
{
	struct model_object *m = &w->all[w->n_all++];

	assert_true(w->n_all < MAX_OBJECTS);
	*m = (struct model_object){.id = id, .birth = birth, .blocks = blocks};
	m->slot = s3_objects_add(w->objects, &(struct s3_object){.id = id,
						     .birth = birth,
						     .bytes = 4096 + blocks * 4096,
						     .header_bytes = 4096,
						     .blocks = blocks});
	assert_int_not_equal(m->slot, S3_NO_SLOT);
	return m;
}

/* Takes what the range shows out of the model's counts. */
static void model_displace(struct world *w, uint64_t lba, uint64_t count)
{
	for (uint64_t i = lba; i < lba + count; i++) {
		struct model_object *m;

		if (!w->flat[i].id)
			continue;
		m = model_find(w, w->flat[i].id);
		assert_non_null(m);
		if (!--m->live)
			m->death = w->seq;
		w->flat[i].id = 0;
	}
}

static void do_write(
	struct world *w, uint64_t lba, uint32_t count, struct model_object *m, uint32_t offset)
{
	w->steps++;
	m->live += count;
	assert_int_equal(s3_map_update(w->map, w->seq, BASE + lba, count, m->slot, offset), 0);
	model_displace(w, lba, count);
	for (uint32_t i = 0; i < count; i++)
		w->flat[lba + i] = (struct block){m->id, offset + i};
}

static void do_punch(struct world *w, uint64_t lba, uint64_t count)
{
	w->steps++;
	assert_int_equal(s3_map_punch(w->map, w->seq, BASE + lba, count), 0);
	model_displace(w, lba, count);
}

/* The range as the map shows it is that of the model; runs are joined and complete. */
static void compare(struct world *w, uint64_t lba, uint64_t count)
{
	struct s3_run runs[64];
	uint64_t end = lba + count;

	while (lba < end) {
		size_t n = s3_map_lookup(w->map, BASE + lba, end - lba, false, runs, 64);

		assert_in_range(n, 1, 64);
		for (size_t i = 0; i < n; i++) {
			struct s3_object object = {0};

			assert_int_equal(runs[i].lba, BASE + lba);
			assert_in_range(runs[i].count, 1, end - lba);
			if (runs[i].slot)
				s3_objects_get(w->objects, runs[i].slot, &object);
			if (i) {
				const struct s3_run *before = &runs[i - 1];

				assert_false(before->slot == runs[i].slot &&
					     (!before->slot || before->offset + before->count ==
								       runs[i].offset));
			}
			for (uint64_t j = 0; j < runs[i].count; j++) {
				const struct block *b = &w->flat[lba + j];

				if (b->id != object.id ||
					(b->id && b->offset != runs[i].offset + j))
					fail_msg("block %llu: map %llx:%llu, model %llx:%u",
						(unsigned long long)(lba + j),
						(unsigned long long)object.id,
						(unsigned long long)(runs[i].offset + j),
						(unsigned long long)b->id, b->offset);
			}
			lba += runs[i].count;
		}
	}
}

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
	s3_objects_encode(w->objects, &next.table);
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
#define SMALL_WORLD   3000u

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

static void delete_snapshot(struct history *h, size_t k)
{
	uint64_t seq = h->pasts[k].seq;

	assert_int_equal(s3_objects_snapshot_delete(h->w.objects, seq, h->w.seq), 0);
	past_free(&h->pasts[k]);
	h->n--;
	memmove(&h->pasts[k], &h->pasts[k + 1], (h->n - k) * sizeof *h->pasts);
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

/* Stores everything and opens it again. */
static void reopen(struct history *h)
{
	struct world *w = &h->w;
	struct s3_buffer regions[MAX_REGIONS] = {0}, table = {0};

	s3_objects_encode(w->objects, &table);
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
			reopen(&h);
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

/* An object that snapshots hold is not worth moving; one that is small is, when that is asked. */
static void test_sparse(void **state)
{
	struct world w;
	struct model_object *large, *small, *full;
	uint32_t slots[8];

	(void)state;
	world_init(&w, SMALL_WORLD);
	w.seq = 1;
	large = object_add(&w, 1, 1, TARGET);
	do_write(&w, 0, 200, large, 0);
	s3_objects_seal(w.objects, large->slot, 1);
	w.seq = 2;
	small = object_add(&w, 2, 2, 1);
	do_write(&w, 2000, 1, small, 0);
	s3_objects_seal(w.objects, small->slot, 2);
	w.seq = 3;
	full = object_add(&w, 3, 3, TARGET);
	do_write(&w, 1000, TARGET - 200, full, 0);
	do_write(&w, 2100, 200, full, TARGET - 200);
	s3_objects_seal(w.objects, full->slot, 3);
	assert_int_equal(s3_objects_take_sparse(w.objects, 18, false, slots, 8), 0);
	assert_int_equal(s3_objects_take_sparse(w.objects, 30, false, slots, 8), 1);
	assert_int_equal(slots[0], large->slot);
	/* It is taken. */
	assert_int_equal(s3_objects_take_sparse(w.objects, 30, false, slots, 8), 0);
	s3_objects_put_back(w.objects, large->slot);
	assert_int_equal(s3_objects_take_sparse(w.objects, 30, true, slots, 8), 2);
	assert_int_equal(slots[1], small->slot);
	s3_objects_put_back(w.objects, large->slot);
	s3_objects_put_back(w.objects, small->slot);
	assert_int_equal(s3_objects_snapshot(w.objects, 3), 0);
	assert_int_equal(s3_objects_take_sparse(w.objects, 100, true, slots, 8), 0);
	world_free(&w);
}

/* A read that is under way keeps its object; a dead one that nobody reads goes. */
static void test_pins(void **state)
{
	struct world w;
	struct model_object *m;
	struct s3_run run;
	uint32_t slot;

	(void)state;
	world_init(&w, SMALL_WORLD);
	w.seq = 1;
	m = object_add(&w, 1, 1, TARGET);
	do_write(&w, 0, 10, m, 0);
	s3_objects_seal(w.objects, m->slot, 1);
	assert_int_equal(s3_map_lookup(w.map, BASE, 10, true, &run, 1), 1);
	w.seq = 2;
	do_punch(&w, 0, 10);
	assert_int_equal(s3_objects_take_dead(w.objects, 2, &slot, 1), 0);
	assert_int_equal(s3_objects_remove(w.objects, m->slot), -EBUSY);
	s3_objects_unpin(w.objects, run.slot);
	assert_int_equal(s3_objects_take_dead(w.objects, 1, &slot, 1), 0);
	assert_int_equal(s3_objects_take_dead(w.objects, 2, &slot, 1), 1);
	assert_int_equal(s3_objects_remove(w.objects, slot), 0);
	assert_int_equal(s3_objects_find(w.objects, 0, 1), S3_NO_SLOT);
	world_free(&w);
}

/* A clone's table: everything is the parent's, and may be forgotten but not deleted. */
/* A clone begins without what its parent's snapshot knew as dead, and can be read again all the
 * same. */
static void test_inherit_dead(void **state)
{
	struct world w;
	struct s3_objects *again = s3_objects_new(TARGET);
	struct s3_buffer out = {0};
	struct s3_object object;
	uint32_t slot;

	(void)state;
	world_init(&w, SMALL_WORLD);
	w.seq = 7;
	slot = object_add(&w, 7, 7, 0)->slot; /* it made a number for the snapshot */
	s3_objects_seal(w.objects, slot, 7);
	assert_int_equal(s3_objects_inherit(w.objects), 0);
	s3_objects_get(w.objects, slot, &object);
	assert_int_equal(object.death, 1);
	s3_objects_encode(w.objects, &out);
	assert_int_equal(s3_objects_decode(again, out.data, out.length), S3_GOOD);
	s3_objects_settle(again, 9);
	s3_objects_get(again, slot, &object);
	assert_int_equal(object.death, 1);
	s3_objects_free(again);
	/* As older programs stored it. */
	again = s3_objects_new(TARGET);
	assert_int_equal(out.data[out.length - 2], 1);
	out.data[out.length - 2] = 0;
	assert_int_equal(s3_objects_decode(again, out.data, out.length), S3_GOOD);
	s3_objects_settle(again, 9);
	s3_objects_get(again, slot, &object);
	assert_int_equal(object.death, 9);
	s3_objects_free(again);
	s3_buffer_free(&out);
	world_free(&w);
}

static void test_inherit(void **state)
{
	struct world w;
	struct model_object *m;
	struct s3_object object;
	struct s3_objects_totals totals;
	uint32_t slot;

	(void)state;
	world_init(&w, SMALL_WORLD);
	w.seq = 7;
	m = object_add(&w, 7, 7, TARGET);
	do_write(&w, 0, 10, m, 0);
	s3_objects_seal(w.objects, m->slot, 7);
	assert_int_equal(s3_objects_snapshot(w.objects, 7), 0);
	assert_int_equal(s3_objects_inherit(w.objects), 0);
	assert_int_equal(s3_objects_find(w.objects, 1, 7), m->slot);
	s3_objects_totals(w.objects, &totals);
	assert_int_equal(totals.bytes + totals.blocks + totals.live + totals.small, 0);
	assert_int_equal(totals.objects, 1);
	/* A number of the clone's own. */
	w.seq = 1;
	assert_int_equal(s3_map_punch(w.map, 1, BASE, 10), 0);
	assert_int_equal(s3_objects_take_dead(w.objects, 1, &slot, 1), 1);
	s3_objects_get(w.objects, slot, &object);
	assert_int_equal(object.origin, 1);
	assert_int_equal(s3_objects_remove(w.objects, slot), 0);
	world_free(&w);
}

/* ---- size ----------------------------------------------------------------------------- */

/* Writes all blocks in extents of count at random places (1: each once), objects of 4 MiB. */
static double mib_per_tib(uint64_t blocks, uint32_t count, bool in_order)
{
	struct s3_objects *objects = s3_objects_new(TARGET);
	struct s3_map *map = s3_map_new(objects, blocks);
	struct s3_objects_totals totals;
	uint64_t extents = blocks / count, seq = 0;
	uint32_t used = TARGET, slot = 0;
	double bytes = 0;

	for (uint64_t i = 0; i < extents; i++) {
		/* An odd factor meets every extent of a power of two of them once. */
		uint64_t lba = (in_order ? i : (i * 0x9e3779b1u) % extents) * count;
		uint32_t done = 0;

		while (done < count) {
			uint32_t n;

			if (used == TARGET) {
				double now = (double)s3_map_memory(map);

				bytes = now > bytes ? now : bytes;
				if (slot)
					s3_objects_seal(objects, slot, seq);
				seq++;
				slot = s3_objects_add(objects, &(struct s3_object){.id = seq,
								       .birth = seq,
								       .bytes = 4 << 20,
								       .header_bytes = 4096,
								       .blocks = TARGET});
				used = 0;
				/* Sequential writes begin anywhere in a leaf. */
				if (in_order && seq == 1)
					used = 100;
			}
			n = count - done < TARGET - used ? count - done : TARGET - used;
			assert_int_equal(s3_map_update(map, seq, lba + done, n, slot, used), 0);
			done += n;
			used += n;
		}
	}
	s3_objects_totals(objects, &totals);
	assert_int_equal(s3_map_mapped(map), blocks);
	if ((double)s3_map_memory(map) > bytes)
		bytes = (double)s3_map_memory(map);
	bytes += (double)totals.memory;
	s3_map_free(map);
	s3_objects_free(objects);
	return bytes / (1 << 20) * ((double)(1ull << 28) / (double)blocks);
}

/* At 1/64 of the scale, 16 GiB, of which what does not grow with it is left out. */
static void test_memory(void **state)
{
	struct s3_objects *objects = s3_objects_new(TARGET);
	struct s3_map *map = s3_map_new(objects, 1ull << 32);
	struct s3_objects_totals totals;
	double random, sequential;

	(void)state;
	s3_objects_totals(objects, &totals);
	/* 16 TiB, nothing written. */
	assert_true(s3_map_memory(map) + totals.memory < 256 << 10);
	s3_map_free(map);
	s3_objects_free(objects);
	random = mib_per_tib(1 << 22, 1, false);
	sequential = mib_per_tib(1 << 22, 1024, true);
	print_message("MiB per TiB: %.1f written at random in 4 KiB, %.1f sequentially\n", random,
		sequential);
	assert_true(random <= 2.1 * 1024);
	assert_true(sequential <= 50);
}

/* A block that was written again within its object is not where it was; nor is what an aborted
 * checkpoint left out written. */
static void test_moved_and_aborted(void **state)
{
	struct world w;
	struct model_object *m, *gc;
	uint32_t *list;
	uint64_t moved;
	size_t n;

	(void)state;
	world_init(&w, SMALL_WORLD);
	w.seq = 1;
	m = object_add(&w, 1, 1, TARGET);
	gc = object_add(&w, S3_GC | 1, 2, TARGET);
	do_write(&w, 0, 1, m, 0);
	do_write(&w, 0, 1, m, 1);
	assert_int_equal(s3_map_relocate(w.map, 2, BASE, 1, m->slot, 0, gc->slot, 0, &moved), 0);
	assert_int_equal(moved, 0);
	compare(&w, 0, 10);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(s3_map_capture(w.map, false, &list, &n), 0);
		assert_int_equal(n, 1);
		free(list);
		s3_map_capture_end(w.map, i == 1);
	}
	assert_int_equal(s3_map_capture(w.map, false, &list, &n), 0);
	assert_int_equal(n, 0);
	free(list);
	s3_map_capture_end(w.map, true);
	world_free(&w);
}

/* The last block of the largest object is not followed by the first of the next slot. */
static void test_slots_apart(void **state)
{
	struct s3_objects *objects = s3_objects_new(TARGET);
	struct s3_map *map = s3_map_new(objects, S3_REGION_BLOCKS);
	struct s3_object object = {
		.id = 1, .birth = 1, .header_bytes = 4096, .blocks = S3_OBJECT_MAX};
	uint32_t first = s3_objects_add(objects, &object), second;
	struct s3_run runs[2];

	(void)state;
	object.id = 2;
	second = s3_objects_add(objects, &object);
	assert_int_equal(second, first + 1);
	assert_int_equal(s3_map_update(map, 1, 0, 1, first, S3_OBJECT_MAX - 1), 0);
	assert_int_equal(s3_map_update(map, 2, 1, 1, second, 0), 0);
	assert_int_equal(s3_map_punch(map, 3, 0, 1), 0);
	assert_int_equal(s3_map_lookup(map, 1, 1, false, runs, 2), 1);
	assert_int_equal(s3_map_update(map, 4, 0, 1, first, S3_OBJECT_MAX - 1), 0);
	assert_int_equal(s3_map_punch(map, 5, 1, 1), 0);
	assert_int_equal(s3_map_update(map, 6, 1, 1, second, 0), 0);
	assert_int_equal(s3_map_lookup(map, 0, 2, false, runs, 2), 2);
	assert_int_equal(runs[1].slot, second);
	/* The object of each, not two blocks of the first. */
	assert_int_equal(s3_map_punch(map, 7, 0, 2), 0);
	s3_map_free(map);
	s3_objects_free(objects);
}

/* The whole of 16 TiB at once, of which some is written at both ends. */
static void test_discard_all(void **state)
{
	const uint64_t blocks = 1ull << 32;
	struct s3_objects *objects = s3_objects_new(TARGET);
	struct s3_map *map = s3_map_new(objects, blocks);
	uint32_t slot = s3_objects_add(objects,
		&(struct s3_object){
			.id = 1, .birth = 1, .bytes = 8192, .header_bytes = 4096, .blocks = 8});
	struct s3_run run;

	(void)state;
	assert_int_equal(s3_map_update(map, 1, 0, 4, slot, 0), 0);
	assert_int_equal(s3_map_update(map, 1, blocks - 4, 4, slot, 4), 0);
	s3_objects_seal(objects, slot, 1);
	assert_int_equal(s3_map_lookup(map, 0, blocks, false, &run, 1), 1);
	assert_int_equal(run.count, 4);
	assert_int_equal(s3_map_punch(map, 2, 0, blocks), 0);
	assert_int_equal(s3_map_lookup(map, 0, blocks, false, &run, 1), 1);
	assert_true(run.count == blocks && !run.slot);
	assert_int_equal(s3_objects_take_dead(objects, 2, &slot, 1), 1);
	s3_map_free(map);
	s3_objects_free(objects);
}

/* A region of one run, at the end of a leaf and in the next, loaded beside an object of blocks. */
static enum s3_check load_beside(uint32_t blocks, uint32_t slot_of_object)
{
	struct s3_object object = {
		.id = 1, .birth = 1, .bytes = 8192, .header_bytes = 4096, .blocks = 10};
	struct s3_objects *objects = s3_objects_new(TARGET);
	struct s3_map *map = s3_map_new(objects, 4096);
	struct s3_buffer region = {0};
	enum s3_check check;
	uint32_t *list, slot = 0;
	size_t n;

	for (uint32_t i = 0; i < slot_of_object; i++) {
		object.id = i + 1;
		slot = s3_objects_add(objects, &object);
	}
	assert_int_equal(s3_map_update(map, 1, 508, 10, slot, 0), 0);
	assert_int_equal(s3_map_capture(map, true, &list, &n), 0);
	assert_int_equal(s3_map_capture_region(map, list[0], &region), 0);
	s3_map_capture_end(map, true);
	free(list);
	s3_map_free(map);
	s3_objects_free(objects);

	objects = s3_objects_new(TARGET);
	map = s3_map_new(objects, 4096);
	object.id = 1;
	object.blocks = blocks;
	assert_int_equal(s3_objects_add(objects, &object), 1);
	check = s3_map_load(map, 0, region.data, region.length);
	s3_buffer_free(&region);
	s3_map_free(map);
	s3_objects_free(objects);
	return check;
}

static void test_load_of_what_no_object_has(void **state)
{
	(void)state;
	assert_int_equal(load_beside(10, 1), S3_GOOD);
	assert_int_equal(load_beside(9, 1), S3_INVALID); /* the last leaf */
	assert_int_equal(load_beside(3, 1), S3_INVALID);
	assert_int_equal(load_beside(10, 2), S3_INVALID);
	assert_int_equal(load_beside(10, 100), S3_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_snapshots),
		cmocka_unit_test(test_sparse),
		cmocka_unit_test(test_pins),
		cmocka_unit_test(test_inherit),
		cmocka_unit_test(test_inherit_dead),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_moved_and_aborted),
		cmocka_unit_test(test_slots_apart),
		cmocka_unit_test(test_discard_all),
		cmocka_unit_test(test_load_of_what_no_object_has),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
