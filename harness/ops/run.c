/* SPDX-License-Identifier: BSD-3-Clause */
#include <err.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "crew.h"
#include "ops.h"

static const char *const kinds[] = {"operation"};

/* What a step returned, for the crew. */
static enum crew_step step_of(struct crew_worker *c, int result)
{
	const struct worker *w = c->own;

	if (result < 0)
		snprintf(c->why, sizeof(c->why), "%s: %s", w->path, strerror(-result));
	return result < 0 ? CREW_FAILED : result == OUT_OF_WORK ? CREW_OUT_OF_WORK : CREW_DONE;
}

static enum crew_step begin(struct crew_worker *c)
{
	const struct options *o = c->task;
	struct worker *w = malloc(sizeof(*w));

	if (!w)
		abort();
	c->own = w;
	worker_init(w, o, c->index);
	return step_of(c, o->operation->begin(w));
}

static enum crew_step step(struct crew_worker *c)
{
	const struct options *o = c->task;
	struct worker *w = c->own;
	int result;

	w->done = c->done;
	w->bytes = 0;
	result = o->operation->step(w);
	c->bytes = w->bytes;
	return step_of(c, result);
}

static void end(struct crew_worker *c)
{
	worker_end(c->own);
	free(c->own);
}

static bool write_json(const struct options *o, const struct crew *crew,
	const struct crew_results *r, const char *left_behind)
{
	char *head = NULL;
	bool ok;

	if (asprintf(&head,
		    "\"operation\": \"%s\", \"seed\": %" PRIu64
		    ", \"variables\": {\"files\": %" PRIu64 ", \"size\": %" PRIu64
		    ", \"fan-out\": %u, \"count\": %" PRIu64 "},%s",
		    o->operation->name, o->common.seed, o->files, o->size, o->fan_out,
		    o->common.count, left_behind) == -1)
		abort();
	ok = crew_write(crew, r, o->common.json, head);
	free(head);
	return ok;
}

static bool report(const struct options *o, const struct crew *crew, const struct crew_results *r)
{
	char left_behind[128] = "";
	uint64_t expected, found;
	bool ok = true;

	if (o->operation->trace != TRACE_NONE) {
		ok = operations_trace(o, r->total.ops, &expected, &found);
		if (ok && expected != found)
			warnx("%s: %" PRIu64 " operations leave %" PRIu64
			      ", but there are %" PRIu64,
				o->operation->name, r->total.ops, expected, found);
		if (ok)
			snprintf(left_behind, sizeof(left_behind),
				"\n  \"left_behind\": {\"expected\": %" PRIu64
				", \"found\": %" PRIu64 "},",
				expected, found);
		ok = ok && expected == found;
	}
	crew_print(crew, r);
	if (o->common.json)
		ok = write_json(o, crew, r, left_behind) && ok;
	return ok;
}

int run(const struct options *o)
{
	static struct crew_results results;
	const struct crew crew = {
		.name = o->operation->name,
		.task = o,
		.workers = o->workers,
		.threads = o->threads,
		.unpinned = o->unpinned,
		.seconds = o->common.seconds,
		.interval = o->common.interval,
		.count = o->common.count,
		.kinds = kinds,
		.kind_count = 1,
		.begin = begin,
		.step = step,
		.end = end,
	};
	bool ok = crew_run(&crew, &results) && report(o, &crew, &results);

	free(results.intervals);
	return crew_status(&results, ok);
}
