/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The line between the clients and the simulated store: so many bytes a second in each direction,
 * which the bodies that are on their way share evenly.
 */
#include <stdlib.h>

#include "tests/simulation/store_internal.h"

/* What is on its way in one direction. */
struct body {
	struct body *next;
	struct flight *flight;
	void (*carried)(void *opaque, uint64_t unused);
	void *opaque;
	uint64_t left; /* bytes */
};

static struct line {
	struct body *bodies;
	uint64_t n, at,
		number; /* at: when what is left was true; number: of the event that counts */
} lines[2];

static void look(void *line, uint64_t number);

static uint64_t rate(void)
{
	return faults.line ? faults.line : UINT64_C(1) << 40;
}

/* Brings what is left up to date. A sender that was killed sends nothing more. */
static void settle(struct line *l)
{
	unsigned __int128 elapsed = sim_now() - l->at;
	uint64_t each = l->n ? (uint64_t)(elapsed * rate() / SIM_SECOND / l->n) : 0;

	l->at = sim_now();
	for (struct body *b = l->bodies; b; b = b->next)
		b->left = b->flight->store->process->dead || b->left < each ? 0 : b->left - each;
}

/* Plans when the next one has been carried. */
static void plan_next(struct line *l)
{
	uint64_t least = UINT64_MAX;
	unsigned __int128 ns;

	for (struct body *b = l->bodies; b; b = b->next)
		least = b->left < least ? b->left : least;
	if (!l->bodies)
		return;
	ns = (unsigned __int128)least * l->n * SIM_SECOND + rate() - 1;
	sim_at(sim_now() + (uint64_t)(ns / rate()), look, l, ++l->number);
}

static void take_out(struct line *l, struct body **link)
{
	struct body *b = *link;

	*link = b->next;
	l->n--;
	b->carried(b->opaque, 0);
	free(b);
}

static void look(void *line, uint64_t number)
{
	struct line *l = line;
	struct body **link = &l->bodies;

	if (number != l->number)
		return;
	settle(l);
	while (*link)
		if ((*link)->left == 0)
			take_out(l, link);
		else
			link = &(*link)->next;
	plan_next(l);
}

void line_carry(struct flight *f, bool down, uint64_t bytes,
	void (*carried)(void *opaque, uint64_t unused), void *opaque)
{
	struct line *l = &lines[down];
	struct body *b = calloc(1, sizeof *b);

	if (!b)
		abort();
	settle(l);
	*b = (struct body){l->bodies, f, carried, opaque, bytes};
	l->bodies = b;
	l->n++;
	plan_next(l);
}

void line_drop(const struct flight *f)
{
	for (int down = 0; down < 2; down++) {
		struct line *l = &lines[down];

		for (struct body *b = l->bodies; b; b = b->next)
			if (b->flight == f) {
				settle(l);
				b->left = 0;
				plan_next(l);
			}
	}
}

void line_change(uint64_t bytes_per_s)
{
	for (int down = 0; down < 2; down++)
		settle(&lines[down]);
	faults.line = bytes_per_s;
	for (int down = 0; down < 2; down++)
		plan_next(&lines[down]);
}
