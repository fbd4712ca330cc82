/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "tests/unit/s3_map_world.h"

static uint64_t random_state;

uint64_t draw(void)
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

uint64_t below(uint64_t n)
{
	return draw() % n;
}

uint64_t seed(void)
{
	const char *given = getenv("SEED");

	random_state = given ? strtoull(given, NULL, 0) : 20261121;
	print_message("SEED=%llu\n", (unsigned long long)random_state);
	return random_state;
}

void world_init(struct world *w, uint64_t blocks)
{
	memset(w, 0, sizeof *w);
	w->blocks = blocks;
	w->objects = s3_objects_new(TARGET);
	w->map = s3_map_new(w->objects, BASE + blocks);
	w->flat = calloc(blocks, sizeof *w->flat);
	w->all = calloc(MAX_OBJECTS, sizeof *w->all);
	assert_non_null(w->map);
}

void world_free(struct world *w)
{
	s3_map_free(w->map);
	s3_objects_free(w->objects);
	free(w->flat);
	free(w->all);
}

/* From the end, where what is looked for mostly is. */
struct model_object *model_find(struct world *w, uint64_t id)
{
	for (size_t i = w->n_all; i--;)
		if (w->all[i].id == id && !w->all[i].gone)
			return &w->all[i];
	return NULL;
}

struct model_object *object_add(struct world *w, uint64_t id, uint64_t birth, uint32_t blocks)
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

void model_displace(struct world *w, uint64_t lba, uint64_t count)
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

void do_write(
	struct world *w, uint64_t lba, uint32_t count, struct model_object *m, uint32_t offset)
{
	w->steps++;
	m->live += count;
	assert_int_equal(s3_map_update(w->map, w->seq, BASE + lba, count, m->slot, offset), 0);
	model_displace(w, lba, count);
	for (uint32_t i = 0; i < count; i++)
		w->flat[lba + i] = (struct block){m->id, offset + i};
}

void do_punch(struct world *w, uint64_t lba, uint64_t count)
{
	w->steps++;
	assert_int_equal(s3_map_punch(w->map, w->seq, BASE + lba, count), 0);
	model_displace(w, lba, count);
}

void compare(struct world *w, uint64_t lba, uint64_t count)
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
