/* SPDX-License-Identifier: BSD-3-Clause */
/* Scenes of two who have, read or delete a volume at once, and of deletions that come late. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/admin/delete.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/keeper/snapshot.h"
#include "tests/simulation/actors.h"
#include "tests/simulation/runner.h"
#include "tests/simulation/scenes.h"
#include "tests/simulation/store.h"

#define TAKEOVER_MOST	(10 * SIM_SECOND) /* what is promised */
#define TAKEOVER_UNFAIR (30 * SIM_SECOND)

/* ---- takeover: of a writer that writes as fast as it can ---- */

static void tune_takeover(struct s3_config *c)
{
	c->batch_size = 16 * KIB;
	c->uploads = 8;
	c->memory = 4 * MIB;
	c->checkpoint = 64;
	c->gc_delay = 0;
	c->store.connections = 64;
}

static void *busy_client(void *opaque)
{
	struct life *l = opaque;

	while (scene_put(l, draw(200) * 4 * KIB, 4 * KIB) == 0 && backend_flush(l->device) == 0)
		;
	if (--l->clients_running == 0)
		sim_wake_all(&l->changed);
	return NULL;
}

#define SNAPSHOTS_MOST 40

static unsigned made; /* s0 and so on: they have been acknowledged */

static void *busy_tool(void *opaque)
{
	struct life *l = opaque;
	char name[16];

	for (made = 0; made < SNAPSHOTS_MOST; made++) {
		snprintf(name, sizeof name, "s%u", made);
		if (ask_tool(l, "snapshot-create", name))
			break;
	}
	if (--l->clients_running == 0)
		sim_wake_all(&l->changed);
	return NULL;
}

static void look_for_snapshots(struct life *l)
{
	struct s3_snapshot_info *list;
	size_t n;
	int r = s3_snapshot_list((struct s3_volume *)l->device, &list, &n);

	if (r)
		sim_fail("error", "snapshots cannot be listed: %s", strerror(-r));
	for (unsigned i = 0; i < made; i++) {
		bool there = false;
		char name[16];

		snprintf(name, sizeof name, "s%u", i);
		for (size_t k = 0; k < n; k++)
			there |= strcmp(list[k].name, name) == 0;
		if (!there)
			sim_fail("snapshot", "%s was acknowledged, and the next writer has none",
				name);
	}
	free(list);
}

static void *take_over(void *opaque)
{
	struct life *l = opaque;

	scene_open(l, false);
	l->done = true;
	sim_wake_all(&l->changed);
	return NULL;
}

void meet_takeover(void)
{
	struct life *busy = scene_newcomer(), *next;
	/* On one slow processor the writers may leave little to who takes over. */
	uint64_t most = sim_is_fair() ? TAKEOVER_MOST : TAKEOVER_UNFAIR;

	scene_set_up(1 * MIB);
	plan.tune = tune_takeover;
	scene_open(busy, true);
	busy->clients_running = 17;
	sim_spawn(sim_self(), "busy tool", busy_tool, busy);
	for (unsigned i = 0; i < 16; i++)
		sim_spawn(sim_self(), "busy client", busy_client, busy);
	sim_sleep(draw(1000) * SIM_MS);
	next = scene_newcomer();
	sim_spawn(sim_self(), "next writer", take_over, next);
	if (!next->done)
		sim_wait(&next->changed, sim_now() + most, "wait for a takeover", next);
	if (!next->done)
		sim_fail("starved", "a takeover has not ended after %u s",
			(unsigned)(most / SIM_SECOND));
	/* Its next flush fails at the latest. */
	while (busy->clients_running)
		sim_wait(&busy->changed, SIM_NEVER, "wait for the first writer", busy);
	look_for_snapshots(next);
	backend_stop(busy->device);
	backend_close(busy->device);
	scene_end(next);
}

/* ---- a snapshot whose root comes late is not acknowledged to who has been overtaken ---- */

static void tune_late_snapshot(struct s3_config *c)
{
	c->batch_size = 16 * KIB;
	c->uploads = 2 + draw(7);
	c->memory = 4 * MIB;
	c->checkpoint = 64;
	c->gc_delay = 0;
}

static void *create_late(void *opaque)
{
	struct life *l = opaque;

	made = ask_tool(l, "snapshot-create", "s0") == 0;
	if (--l->clients_running == 0)
		sim_wake_all(&l->changed);
	return NULL;
}

static void *write_beside(void *opaque)
{
	struct life *l = opaque;

	if (scene_put(l, 0, 4 * KIB) == 0)
		backend_flush(l->device);
	if (--l->clients_running == 0)
		sim_wake_all(&l->changed);
	return NULL;
}

/* What the first writer finds behind its frontier is its own, and the fence is
 * behind that. */
void meet_late_snapshot(void)
{
	struct life *first = scene_newcomer(), *next;
	char key[24];

	scene_set_up(1 * MIB);
	plan.tune = tune_late_snapshot;
	scene_open(first, true);
	scene_put_all(first, 0, 4 * KIB);
	store_slows(S3_PUT, "/snap/s0/root", draw(10 * SIM_SECOND), 0);
	first->clients_running = 2;
	sim_spawn(sim_self(), "late tool", create_late, first);
	sim_sleep(500 * SIM_MS + draw(SIM_SECOND));
	snprintf(key, sizeof key, "/%016" PRIx64, ((struct s3_volume *)first->device)->next_seq);
	store_slows(S3_PUT, key, 0, draw(20 * SIM_SECOND));
	sim_spawn(sim_self(), "writer beside", write_beside, first);
	sim_sleep(draw(2 * SIM_SECOND));
	next = scene_newcomer();
	scene_open(next, false);
	while (first->clients_running)
		sim_wait(&first->changed, SIM_NEVER, "wait for the first writer", first);
	look_for_snapshots(next);
	backend_stop(first->device);
	backend_close(first->device);
	scene_end(next);
}

/* ---- an object of the log that cannot be read is not the log's end ---- */

void meet_unreadable(void)
{
	unsigned n = 4 + (unsigned)draw(40);
	struct life *l = scene_newcomer(), *reader;
	static uint8_t block[4 * KIB];
	char key[24];
	int r = 0;

	scene_set_up(1 * MIB);
	plan.tune = tune_late_snapshot;
	scene_open(l, true);
	for (unsigned i = 0; i < n; i++)
		scene_put_all(l, i * 4 * KIB, 4 * KIB);
	snprintf(key, sizeof key, "/%016" PRIx64,
		((struct s3_volume *)l->device)->frontier - draw(n));
	store_refuses(S3_GET, key);
	reader = scene_newcomer();
	reader->role = READER;
	if (life_open(reader, NULL, false, &reader->device) == 0) {
		for (unsigned i = 0; r == 0 && i < n; i++) {
			struct iovec iov = {block, sizeof block};

			r = backend_readv(reader->device, &iov, 1, i * 4 * KIB);
			if (r == 0 && !block[0])
				sim_fail("contents", "a reader misses what had been flushed");
		}
		backend_close(reader->device);
	}
	store_calm();
	scene_end(l);
}

/* ---- late deletions: nobody makes again what one is about ---- */

static void tune_late(struct s3_config *c)
{
	c->batch_size = 64 * KIB;
	c->uploads = 2;
	c->memory = 4 * MIB;
	c->checkpoint = 4 + draw(16);
	c->gc_delay = 0;
}

void meet_late_deletions(void)
{
	unsigned turns = 1 + (unsigned)draw(3);
	struct life *l;
	int r;

	scene_set_up(1 * MIB);
	plan.tune = tune_late;
	store_deletes_late(2, 20 * SIM_SECOND);
	for (unsigned turn = 0; turn < turns; turn++) {
		l = scene_newcomer();
		scene_open(l, turn == 0);
		for (unsigned i = 0; i < 16; i++)
			scene_put_all(l, draw(224) * 4 * KIB, (1 + draw(16)) * 4 * KIB);
		if (turn)
			scene_ask(l, "snapshot-delete");
		scene_ask(l, "snapshot-create");
		run_gc(l);
		scene_ask(l, "snapshot-delete");
		scene_ask(l, "snapshot-create");
		scene_end(l);
	}
	store_calm();
	sim_sleep(30 * SIM_SECOND);
	l = scene_newcomer();
	l->role = READER;
	r = life_open(l, "s0", false, &l->device);
	if (r)
		sim_fail("snapshot", "s0 was acknowledged, and cannot be opened: %s", strerror(-r));
	backend_close(l->device);
	l = scene_newcomer();
	scene_open(l, false);
	run_check(l);
	scene_end(l);
}

/* ---- a name that a new volume gets while two delete the old one, which a server still has ---- */

#define REMOVERS   2
#define NEW_BLOCKS 12

static bool only_new;
static unsigned removers_running;

struct remover {
	struct life *life;
	struct s3_removal removal;
};

static void tune_new_name(struct s3_config *c)
{
	c->batch_size = 64 * KIB;
	c->uploads = 2;
	c->memory = 4 * MIB;
	c->checkpoint = 4 + draw(16);
	c->gc_delay = draw(20);
	c->exclusive = only_new;
}

static void on_removal_error(void *opaque, const char *message)
{
	(void)opaque;
	sim_trace("error: %s", message);
}

static void *remove_late(void *opaque)
{
	static const struct backend_host host = {.error = on_removal_error};
	struct remover *x = opaque;
	int r = s3_volume_remove(params_config(x->life->params), &host, &x->removal);

	sim_trace("remove: %s", r ? strerror(-r) : "ok");
	removers_running--;
	return NULL;
}

static bool has_super(void)
{
	return scene_objects("sim/v0/super") > 0;
}

/* A block of the new volume is written, or is as it was written. */
static int new_block(struct life *l, unsigned i, bool write)
{
	uint8_t block[4 * KIB], wanted[sizeof block];
	struct iovec iov = {block, sizeof block};
	int r;

	memset(wanted, (int)i + 100, sizeof wanted);
	memcpy(block, wanted, sizeof block);
	if (write)
		return backend_writev(l->device, &iov, 1, i * 4 * KIB, BACKEND_FUA);
	memset(block, 0, sizeof block);
	r = backend_readv(l->device, &iov, 1, i * 4 * KIB);
	if (r == 0 && memcmp(block, wanted, sizeof block) != 0)
		sim_fail("new name", "block %u of the new volume is not what was written", i);
	return r;
}

/*
 * One stops before a look, and then sees what has happened. What it deletes
 * right after a look may meet the new volume, which no condition prevents; of
 * that only the super object is not excluded here.
 */
void meet_new_name(void)
{
	static const struct {
		enum s3_op op;
		const char *part;
	} slow[] = {{S3_LIST, "/v0/"}, {S3_GET, "/super"}, {S3_GET, "/deleted"},
		{S3_PUT, "/deleted"}, {S3_DELETE, "/deleted"}};
	static struct remover removers[REMOVERS];
	struct life *old = scene_newcomer(), *fresh;
	unsigned chosen = (unsigned)draw(sizeof slow / sizeof *slow), written = 0;
	bool lost = false;
	int r = -EEXIST;

	scene_set_up(1 * MIB);
	plan.tune = tune_new_name;
	only_new = false;
	scene_open(old, true);
	for (unsigned i = 0; i < 24; i++)
		scene_put_all(old, draw(16) * 4 * KIB, 4 * KIB);
	for (unsigned i = 0; i < REMOVERS; i++) {
		struct remover *x = &removers[i];

		*x = (struct remover){.life = scene_newcomer(), .removal = {.only = true}};
		scene_open(x->life, false);
		s3_volume_may_remove((struct s3_volume *)x->life->device, &x->removal);
		life_notes_end(x->life, &x->removal);
		scene_end(x->life);
	}
	only_new = true;
	volumes[0].removers = removers_running = REMOVERS;
	store_slows(slow[chosen].op, slow[chosen].part, draw(10 * SIM_SECOND), 0);
	sim_spawn(sim_self(), "remover", remove_late, &removers[0]);
	sim_sleep(draw(2 * SIM_SECOND));
	store_calm();
	sim_spawn(sim_self(), "remover", remove_late, &removers[1]);
	fresh = scene_newcomer();
	for (unsigned i = 0; r && i < 600; i++) {
		sim_sleep(draw(200) * SIM_MS);
		r = life_open(fresh, NULL, true, &fresh->device);
		lost |= r == -ENOENT; /* its super object */
	}
	if (r && !lost)
		sim_fail("new name", "it cannot be given to a new volume: %s", strerror(-r));
	while (r == 0 && written < NEW_BLOCKS) {
		r = new_block(fresh, written, true);
		written += r == 0;
		sim_sleep(draw(SIM_SECOND));
	}
	if (r && !lost && has_super())
		sim_fail("new name", "the new volume does not take a write: %s", strerror(-r));
	for (unsigned i = 0; i < 600 && removers_running; i++)
		sim_sleep(SIM_SECOND);
	/* Until the old one's server has deleted all that it may. */
	sim_sleep(40 * SIM_SECOND);
	if (scene_objects("sim/v0/log/") < written)
		sim_fail("new name", "objects of the new volume are gone");
	if (written && has_super()) {
		struct life *next = scene_newcomer();

		only_new = false;
		scene_open(next, false);
		for (unsigned i = 0; i < written; i++)
			if (new_block(next, i, false))
				sim_fail("new name", "block %u of the new volume is gone", i);
		run_check(next);
		scene_end(next);
	}
	if (fresh->device) {
		backend_stop(fresh->device);
		backend_close(fresh->device);
	}
	backend_stop(old->device);
	backend_close(old->device);
}
