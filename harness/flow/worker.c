/* SPDX-License-Identifier: BSD-3-Clause */
/* A thread of a workload: what it owns, and the loop over its flowops. */
#include "database.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Zeroed memory of its own pages, so that what is never touched costs nothing. */
static void *map(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

bool worker_init(struct worker *w, uint64_t seed)
{
	const struct thread_def *def = w->def;

	rng_seed(&w->rng, seed, (uint64_t)w->number + 1);
	for (unsigned i = 0; i < FLOW_FDS; i++)
		w->slots[i].fd = -1;
	w->flows = map(def->count * sizeof *w->flows);
	if (w->flows == NULL)
		return flow_error_set(
			&w->error, "thread %s: out of memory; lower instances=", def->name);
	for (unsigned i = 0; i < def->count; i++) {
		const struct flowop *op = &def->flowops[i];

		stats_live_init(&w->stats[i]);
		w->flows[i].value = number_sample(&op->value, &w->rng);
		w->flows[i].workingset = number_sample(&op->workingset, &w->rng);
	}
	if (def->memsize > 0) {
		w->room = (def->memsize + PAGE - 1) / PAGE * PAGE;
		w->buffer = aligned_alloc(PAGE, w->room);
		if (w->buffer == NULL)
			return flow_error_set(&w->error,
				"thread %s: out of memory; lower memsize=%" PRIu64 " or instances=",
				def->name, def->memsize);
		if (w->control->original)
			memset(w->buffer, 0, w->room);
		else
			rng_fill(&w->rng, w->buffer, w->room);
	}
	return true;
}

enum step worker_run(struct worker *w)
{
	const struct thread_def *def = w->def;

	for (;;) {
		for (unsigned i = 0; i < def->count; i++) {
			const struct flowop *op = &def->flowops[i];
			uint64_t iters = number_sample(&op->iters, &w->rng);

			do {
				if (flowop_stopped(w))
					return STEP_STOPPED;

				enum step step = flowop_functions[op->type](w, i);

				if (step != STEP_OK)
					return step;
				if (def->counted)
					flowop_tell(w);
			} while (iters-- > 1);
		}
	}
}

bool worker_destroy(struct worker *w)
{
	bool ok = database_end(w);

	for (unsigned i = 0; i < FLOW_FDS; i++)
		if (w->slots[i].fd >= 0)
			close(w->slots[i].fd);
	free(w->buffer);
	if (w->flows != NULL)
		munmap(w->flows, w->def->count * sizeof *w->flows);
	return ok;
}
