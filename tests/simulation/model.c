/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulation/model.h"
#include "tests/simulation/sim.h"

static uint64_t clock_now = 1;

uint64_t model_tick(void)
{
	return ++clock_now;
}

uint64_t model_time(void)
{
	return clock_now;
}

/* ---- contents ------------------------------------------------------------------------------- */

static void fill_one(uint64_t *words, uint32_t id, uint32_t sector)
{
	uint64_t seed = ((uint64_t)id << 32 | sector) * 0x9e3779b97f4a7c15u;

	words[0] = (uint64_t)id << 32 | sector;
	/* Every second one can be compressed. */
	for (unsigned i = 1; i < SECTOR / 8; i++)
		words[i] = id & 1 ? seed : (seed ^ i) * 0xd6e8feb86659fd93u;
}

void model_fill(uint8_t *data, uint32_t id, uint32_t first, uint32_t n)
{
	uint64_t words[SECTOR / 8];

	for (uint32_t i = 0; i < n; i++) {
		fill_one(words, id, first + i);
		memcpy(data + (size_t)i * SECTOR, words, SECTOR);
	}
}

uint32_t model_read(const uint8_t *data, uint32_t sector, const char *where)
{
	static const uint8_t zeroes[SECTOR];
	uint64_t words[SECTOR / 8], first;

	memcpy(&first, data, sizeof first);
	if (first == 0 && memcmp(data, zeroes, SECTOR) == 0)
		return 0;
	if ((uint32_t)first != sector)
		sim_fail("content", "%s: sector %u holds what is no sector of its own: %016llx",
			where, sector, (unsigned long long)first);
	fill_one(words, (uint32_t)(first >> 32), sector);
	if (memcmp(words, data, SECTOR) != 0)
		sim_fail("content", "%s: sector %u holds a torn write %u", where, sector,
			(unsigned)(first >> 32));
	return (uint32_t)(first >> 32);
}

/* ---- history ----------------------------------------------------------------------------------
 */

struct model_session *model_session_new(uint32_t sectors, struct model_session *older)
{
	struct model_session *s = calloc(1, sizeof *s);

	if (!s)
		abort();
	s->older = older;
	s->base = calloc(sectors, sizeof *s->base);
	s->nodes = calloc(sectors, sizeof(struct model_node *));
	s->lost_answer = MODEL_NEVER;
	if (!s->base || !s->nodes)
		abort();
	return s;
}

struct model_op *model_begin(
	struct model_session *s, uint32_t id, uint32_t first, uint32_t n, const uint32_t *contents)
{
	struct model_op *op = calloc(1, sizeof *op);
	struct model_node *nodes = calloc(n, sizeof *nodes);

	if (!op || !nodes)
		abort();
	*op = (struct model_op){.id = id,
		.first = first,
		.n = n,
		.contents = contents,
		.call = model_tick(),
		.answer = MODEL_NEVER,
		/* Zeroing blocks that were zero already has no visible effect. */
		.lost = s->superseded && id};
	for (uint32_t i = 0; i < n; i++) {
		nodes[i] = (struct model_node){.older = s->nodes[first + i], .op = op};
		s->nodes[first + i] = &nodes[i];
	}
	return op;
}

static uint32_t value(const struct model_op *op, uint32_t sector)
{
	return op->contents ? op->contents[sector] : op->id;
}

/*
 * Is there an operation on the sector that was called after from, and answered before until or, if
 * that matters, for good?
 */
static bool between(
	const struct model_session *s, uint32_t sector, uint64_t from, uint64_t until, bool durable)
{
	for (const struct model_node *n = s->nodes[sector]; n; n = n->older)
		if (n->op->call > from &&
			(n->op->answer < until || (durable && n->op->durable && !s->given_up)))
			return true;
	return false;
}

/*
 * The soonest call of an operation after which the sector may hold id, 0: the beginning; all that
 * was answered before floor is there, nothing that was called after limit. MODEL_NEVER: none.
 */
static uint64_t soonest(const struct model_session *s, uint32_t sector, uint32_t id, uint64_t floor,
	uint64_t limit, bool durable)
{
	uint64_t best = MODEL_NEVER;

	if (s->base[sector] == id && !between(s, sector, 0, floor, durable))
		return 0;
	for (const struct model_node *n = s->nodes[sector]; n; n = n->older)
		if (value(n->op, sector) == id && n->op->call < best && n->op->call < limit &&
			!between(s, sector, n->op->answer, floor, durable))
			best = n->op->call;
	return best;
}

/* The first blocks of a write under way are there, the others not. */
static bool is_head_of_writes(
	const struct model_session *s, const uint32_t *seen, uint32_t n, uint32_t *bad)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct model_node *node = s->nodes[i];

		for (; node; node = node->older)
			if (node->op->id && node->op->id == seen[i] && !node->op->contents)
				break;
		/* Only where the next sector is the same write's no more. */
		if (!node || (i + 1 < n && i + 1 < node->op->first + node->op->n &&
				     seen[i + 1] == seen[i]))
			continue;
		for (uint32_t k = node->op->first; k < i; k++) {
			bool newer = seen[k] == node->op->id;

			for (const struct model_node *x = s->nodes[k]; x && !newer; x = x->older)
				newer = value(x->op, k) == seen[k] &&
					x->op->answer > node->op->call;
			if (!newer) {
				*bad = k;
				return false;
			}
		}
	}
	return true;
}

bool model_is_prefix(const struct model_session *s, const uint32_t *seen, uint32_t n,
	uint64_t floor, uint64_t limit, bool unordered, uint32_t *bad, const char **why)
{
	bool durable = floor != 0 && limit == MODEL_NEVER;
	uint64_t reached = floor;
	bool again = true;

	while (again) {
		again = false;
		for (uint32_t i = 0; i < n; i++) {
			uint64_t call;

			if (!s->nodes[i] && s->base[i] == seen[i])
				continue;
			call = soonest(s, i, seen[i], reached, limit, durable);
			*bad = i;
			if (call == MODEL_NEVER) {
				*why = soonest(s, i, seen[i], 0, MODEL_NEVER, false) == MODEL_NEVER
					       ? "is not of its history"
				       : soonest(s, i, seen[i], floor, limit, durable) ==
						       MODEL_NEVER
					       ? "is older than a flush that was answered, or too "
						 "new"
					       : "is older than others that are there";
				return false;
			}
			if (!unordered && call > reached) {
				reached = call;
				again = true;
			}
		}
	}
	*why = "is older than the end of a write whose end is there";
	return unordered || is_head_of_writes(s, seen, n, bad);
}

bool model_may_read(const struct model_session *s, uint32_t sector, uint32_t id, uint64_t call)
{
	return soonest(s, sector, id, call, MODEL_NEVER, false) != MODEL_NEVER;
}

unsigned model_supersede(struct model_session *s, const uint32_t *seen, uint32_t n)
{
	unsigned lost = 0;

	s->superseded = true;
	for (uint32_t i = 0; i < n; i++) {
		for (struct model_node *node = s->nodes[i]; node; node = node->older) {
			struct model_op *op = node->op;
			bool newer = false;

			if (op->lost || value(op, i) == seen[i])
				continue;
			for (const struct model_node *x = s->nodes[i]; x && !newer; x = x->older)
				newer = x->op != op && value(x->op, i) == seen[i] &&
					x->op->answer > op->call;
			if (newer)
				continue;
			op->lost = true;
			lost++;
			if (op->answer < s->lost_answer)
				s->lost_answer = op->answer;
		}
	}
	return lost;
}
