/* SPDX-License-Identifier: BSD-3-Clause */
/* A map of the S3 device with its table of objects, and a flat array that both must agree with. */
#ifndef USERBLK_TESTS_UNIT_S3_MAP_WORLD_H
#define USERBLK_TESTS_UNIT_S3_MAP_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "tests/unit/support.h"

/* Random numbers (splitmix64), from SEED= in the environment or a constant, which seed() prints. */
uint64_t seed(void);
uint64_t draw(void);
uint64_t below(uint64_t n);

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
/* Blocks of a world in which all can be compared after each step. */
#define SMALL_WORLD 3000u

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

void world_init(struct world *w, uint64_t blocks);
void world_free(struct world *w);

/* NULL: there is none, or it is gone. */
struct model_object *model_find(struct world *w, uint64_t id);
/* An object with that number and so many blocks, in the table and in the model. */
struct model_object *object_add(struct world *w, uint64_t id, uint64_t birth, uint32_t blocks);
/* Takes what the range shows out of the model's counts. */
void model_displace(struct world *w, uint64_t lba, uint64_t count);

/* Both write blocks to the map and to the array: data of m from its block offset on, or a hole. */
void do_write(
	struct world *w, uint64_t lba, uint32_t count, struct model_object *m, uint32_t offset);
void do_punch(struct world *w, uint64_t lba, uint64_t count);

/* The range as the map shows it is that of the model; runs are joined and complete. */
void compare(struct world *w, uint64_t lba, uint64_t count);

#endif
