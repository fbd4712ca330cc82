/* SPDX-License-Identifier: BSD-3-Clause */
/* What is left when everything is quiet. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/object_table.h"
#include "tests/simulation/actors.h"
#include "tests/simulation/runner.h"
#include "tests/simulation/store.h"

#define ROOTS 32u

struct walk {
	struct volume *v;
	struct s3_volume *engine;
	size_t base;
	struct s3_root roots[ROOTS]; /* also of snapshots */
	unsigned n_roots, full;
	unsigned old_light; /* before the newest full one */
	uint64_t oldest_full, newest_full;
};

/* ---- checkpoints: what the existing roots and snapshots name ----------------------------
 */

static void note_root(void *opaque, const char *key, const uint8_t *data, size_t length, bool late)
{
	struct walk *w = opaque;
	struct s3_name name;
	struct s3_root root;

	if (!s3_name_parse(key + w->base, &name) ||
		(name.kind != S3_NAME_ROOT && name.kind != S3_NAME_SNAPSHOT) ||
		s3_root_decode(data, length, w->engine->super.uuid, &root) != S3_GOOD)
		return;
	if (root.base != root.seq)
		return;
	if (name.kind == S3_NAME_ROOT) {
		w->full += !late;
		if (w->oldest_full == 0 || root.seq < w->oldest_full)
			w->oldest_full = root.seq;
		if (!late && root.seq > w->newest_full)
			w->newest_full = root.seq;
	}
	if (w->n_roots < ROOTS)
		w->roots[w->n_roots++] = root;
}

static void count_light(
	void *opaque, const char *key, const uint8_t *data, size_t length, bool late)
{
	struct walk *w = opaque;
	struct s3_name name;
	struct s3_root root;

	if (!late && s3_name_parse(key + w->base, &name) && name.kind == S3_NAME_ROOT &&
		name.number < w->newest_full &&
		s3_root_decode(data, length, w->engine->super.uuid, &root) == S3_GOOD)
		w->old_light += root.base != root.seq;
}

static bool is_named(const struct walk *w, const struct s3_name *name)
{
	for (unsigned i = 0; i < w->n_roots; i++)
		for (uint32_t k = 0; k < w->roots[i].n_regions; k++)
			if (w->roots[i].regions[k].region == name->region &&
				w->roots[i].regions[k].seq == name->number)
				return true;
	return w->n_roots == ROOTS;
}

static bool is_snapshot(const struct s3_volume *v, const char *name, uint64_t seq, bool any)
{
	for (uint32_t i = 0; i < v->n_snapshots; i++)
		if (strcmp(v->snapshots[i].name, name) == 0 && (any || v->snapshots[i].seq == seq))
			return true;
	return false;
}

static void look_at_other(const struct walk *w, const char *key, const struct s3_name *name)
{
	const struct s3_volume *v = w->engine;
	bool fine = false;

	switch (name->kind) {
	case S3_NAME_SUPER:
		fine = true;
		break;
	case S3_NAME_ROOT:
		/*
		 * The newest full one and the one before it, and what is between them that was the
		 * newest then. Light ones that follow stay until the next full one.
		 */
		fine = name->number > w->newest_full || (w->old_light <= 1 && w->full <= 2);
		break;
	case S3_NAME_REGION:
		fine = is_named(w, name);
		break;
	case S3_NAME_SUMMARY:
		fine = name->number > w->oldest_full;
		break;
	case S3_NAME_SNAPSHOT:
		fine = is_snapshot(v, name->name, name->number, false);
		break;
	case S3_NAME_CHILD:
		fine = is_snapshot(v, name->name, 0, true);
		break;
	case S3_NAME_PROBE: /* a process that is killed in an open, or may not delete it, leaves it
			     */
		fine = true;
		break;
	default:
		break;
	}
	if (!fine)
		sim_fail("leak", "%s is in the store, and nothing needs it", key);
}

/* An object of the volume that can no longer be reached. */
static void look(void *opaque, const char *key, const uint8_t *data, size_t length, bool late)
{
	struct walk *w = opaque;
	struct s3_volume *v = w->engine;
	struct s3_object_header header;
	struct s3_name name;

	(void)length;
	if (late)
		return;
	if (!s3_name_parse(key + w->base, &name))
		sim_fail("leak", "%s is no name of a volume's", key);
	if (name.kind != S3_NAME_LOG && name.kind != S3_NAME_GC) {
		look_at_other(w, key, &name);
		return;
	}
	if (s3_objects_find(v->objects, 0, name.number) != S3_NO_SLOT)
		return;
	if (s3_header_decode(data, length, v->super.uuid, &header) == S3_GOOD &&
		(header.type != S3_TYPE_DATA ||
			(name.kind == S3_NAME_LOG &&
				(name.number > v->applied ||
					(w->v->shared && header.epoch < v->epoch)))))
		return; /* fences stay, and what a fenced writer left */
	sim_fail("leak", "%s of %zu bytes is in the store, and nothing needs it", key, length);
}

void final_removed(struct volume *v);

static void count_key(void *opaque, const char *key, const uint8_t *data, size_t length, bool late)
{
	(void)data;
	(void)length;
	/* A process that is killed while it opens a missing volume leaves a probe. */
	if (late || strstr(key, "/probe/"))
		return;
	sim_trace("left: %s", key);
	++*(unsigned *)opaque;
}

void final_removed(struct volume *v)
{
	char prefix[64];
	unsigned left = 0;

	snprintf(prefix, sizeof prefix, PREFIX "/%s/", v->name);
	store_each(prefix, count_key, &left);
	if (left)
		sim_fail("leak", "%u objects of %s are left after its deletion", left, v->name);
}

/* Makes it store a full root and another one, and waits until what they replace has gone. */
static void prune(struct life *l)
{
	for (unsigned i = 0; i < 2; i++) {
		int r = ask_tool(l, "snapshot-create", "last");

		if (r == 0)
			r = ask_tool(l, "snapshot-delete", "last");
		if (r)
			sim_fail("error", "a snapshot of %s fails for no reason: %s",
				l->volume->name, strerror(-r));
		/* More than gc-delay=. */
		sim_sleep(20 * SIM_SECOND);
	}
	run_gc(l);
}

void final_check(struct volume *v)
{
	struct life l = {.process = sim_self(), .volume = v, .role = WRITER, .final = true};
	struct walk w = {.v = v, .engine = NULL};
	char prefix[64];
	uint64_t began = sim_now();
	int r;

	l.writer_number = ++v->writers;
	l.write_back = *v->write_back;
	r = life_open(&l, NULL, false, &l.device);
	if (r == -EBUSY && (v->lossy || plan.failing_disk)) {
		/* Which of its logs is the one is not known after all that, or its disk has lost
		 * it. */
		l.write_back = false;
		l.discard = true;
		r = life_open(&l, NULL, false, &l.device);
		snprintf(v->write_back, sizeof v->write_back, "/sim/log-last");
	}
	if (r)
		sim_fail("open", "%s cannot be opened once everything is quiet: %s", v->name,
			strerror(-r));
	establish(&l);
	snapshots_compare(&l);
	for (unsigned i = 0; i < SNAPSHOTS && !v->chunked; i++) {
		char name[8];

		snprintf(name, sizeof name, "s%u", i);
		if (snapshot_find(v, name))
			snapshot_learn(&l, name);
	}
	if (!v->chunked) {
		w.engine = (struct s3_volume *)l.device;
		w.base = (size_t)snprintf(prefix, sizeof prefix, PREFIX "/%s/", v->name);
		run_gc(&l);
		run_check(&l);
		prune(&l);
		store_each(prefix, note_root, &w);
		store_each(prefix, count_light, &w);
		store_each(prefix, look, &w);
	}
	r = backend_close(l.device);
	if (r)
		sim_fail("close", "%s: %s", v->name, strerror(-r));
	runner_count(COUNT_closes, 1);
	/* A store that takes half a second for each of thousands of requests is no defect. */
	if (sim_now() - began > 6000 * SIM_SECOND)
		sim_fail("slow", "the end took %.1f s", (double)(sim_now() - began) / 1e9);
	/* What it left is what the next one finds. */
	l = (struct life){.process = sim_self(), .volume = v, .role = WRITER, .final = true};
	l.write_back = *v->write_back;
	l.writer_number = ++v->writers;
	r = life_open(&l, NULL, false, &l.device);
	if (r)
		sim_fail("open", "%s cannot be opened again: %s", v->name, strerror(-r));
	establish(&l);
	backend_close(l.device);
}
