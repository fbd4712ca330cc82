/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Scenes: what schedules drawn freely seldom come to, and what they cannot
 * judge. One process, no other faults than those of the scene; its proportions
 * are drawn.
 */
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
#include "tests/simulation/store.h"
#include "tests/simulation/world.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
/* Objects of the log after a root, besides those that checkpoint= says: it
 * takes its time. */
#define RESTART_MOST	 400
#define TAKEOVER_MOST	 (10 * SIM_SECOND) /* what is promised */
#define TAKEOVER_UNFAIR	 (30 * SIM_SECOND)
#define STORE_LEAST_ROOM (2 * MIB)

static uint64_t draw(uint64_t n)
{
	return sim_below(SIM_PLAN, n);
}

/* A volume without anything that makes it slow or odd, and somebody who opens
 * it. */
static struct life *newcomer(void)
{
	struct life *l = calloc(1, sizeof *l);

	if (!l)
		abort();
	*l = (struct life){.process = sim_self(), .volume = &volumes[0], .role = WRITER};
	l->writer_number = ++l->volume->writers;
	return l;
}

static void set_up(uint64_t bytes)
{
	struct volume *v = &volumes[0];

	v->sectors = (uint32_t)(bytes / SECTOR);
	v->block_size = 1;
	v->compress = v->encrypted = v->chunked = false;
	*v->write_back = 0;
	plan.retry_deadline = 0;
	plan.full = plan.failing_disk = plan.few_threads = false;
	sim_files_fail(0, 0);
	sim_threads_fail(0);
}

static void open_it(struct life *l, bool create)
{
	int r = life_open(l, NULL, create, &l->device);

	if (r)
		sim_fail("open", "%s cannot be opened: %s", l->volume->name, strerror(-r));
	l->volume->exists = true;
}

static int put(struct life *l, uint64_t offset, size_t length)
{
	static uint8_t data[256 << 10];
	struct iovec iov = {data, length};

	/* What is written does not matter, but that it is not all the same. */
	memset(data, (int)(1 + draw(255)), length);
	return backend_writev(l->device, &iov, 1, offset, 0);
}

static void put_all(struct life *l, uint64_t offset, size_t length)
{
	int r = put(l, offset, length);

	if (r == 0)
		r = backend_flush(l->device);
	if (r)
		sim_fail("error", "a write fails for no reason: %s", strerror(-r));
}

static void end(struct life *l)
{
	int r;

	backend_stop(l->device);
	r = backend_close(l->device);
	if (r)
		sim_fail("close", "%s: %s", l->volume->name, strerror(-r));
}

/* ---- memory: what a collection takes besides what there is stays below
 * memory= ------------- */

static void tune_memory(struct s3_config *c)
{
	c->batch_size = 256 * KIB;
	c->uploads = 1 + draw(2);
	c->memory = (c->uploads + 2) * c->batch_size * 2 + 512 * KIB;
	c->checkpoint = 8 + draw(24);
	c->gc_delay = 0;
}

static void check_memory(const struct life *l, const char *of)
{
	uint64_t limit = ((const struct s3_config *)params_config(l->params))->memory;
	uint64_t most = store_watched();

	if (most > limit)
		sim_fail("memory",
			"%" PRIu64 " bytes were allocated by %s, where %" PRIu64 " are the limit",
			most, of, limit);
}

static void meet_memory(void)
{
	uint64_t size = 16 * MIB, piece = 256 * KIB;
	struct life *l = newcomer();

	set_up(size);
	plan.tune = tune_memory;
	open_it(l, true);
	/* The second time all that is made once is there. */
	for (unsigned turn = 0; turn < 2; turn++) {
		for (uint64_t at = 0; at < size; at += piece)
			put_all(l, at, piece);
		/* What is left is more than half of each, so that nobody has cleaned up
		 * before. */
		for (uint64_t at = 0; at < size; at += piece)
			put_all(l, at + draw(16) * 4 * KIB, (32 + draw(16)) * 4 * KIB);
		if (turn)
			store_watch();
		run_gc(l);
	}
	check_memory(l, "a collection");
	end(l);
}

/* ---- memory: writes wait for a store that does not take them
 * -------------------------------- */

static bool outage;

static void *write_in_outage(void *opaque)
{
	struct life *l = opaque;

	while (outage && put(l, draw(64) * 256 * KIB, 256 * KIB) == 0)
		sim_sleep(draw(100) * SIM_MS);
	if (--l->clients_running == 0)
		sim_wake_all(&l->changed);
	return NULL;
}

static void meet_outage(void)
{
	struct life *l = newcomer();

	set_up(16 * MIB);
	plan.tune = tune_memory;
	open_it(l, true);
	put_all(l, 0, 256 * KIB);
	store_watch();
	store_refuses(S3_PUT, "/log/");
	outage = true;
	l->clients_running = 8;
	for (unsigned i = 0; i < l->clients_running; i++)
		sim_spawn(sim_self(), "client", write_in_outage, l);
	sim_sleep(60 * SIM_SECOND);
	outage = false;
	check_memory(l, "writes in an outage");
	store_calm();
	while (l->clients_running)
		sim_wait(&l->changed, SIM_NEVER, "wait for writes", l);
	end(l);
}

/* ---- restart: compaction that is stuck holds up no checkpoint
 * ------------------------------ */

static void tune_restart(struct s3_config *c)
{
	c->batch_size = 64 * KIB;
	c->uploads = 1 + draw(4);
	c->memory = 4 * MIB;
	c->checkpoint = 8;
	c->gc_delay = 0;
}

static void meet_restart(void)
{
	struct life *l = newcomer();
	struct s3_volume *v;

	set_up(1 * MIB);
	plan.tune = tune_restart;
	open_it(l, true);
	v = (struct s3_volume *)l->device;
	store_refuses(draw(2) ? S3_PUT : S3_GET, draw(2) ? "/gc/" : "/gc/00/");
	for (unsigned i = 0; i < 900; i++) {
		put_all(l, draw(224) * 4 * KIB, (1 + draw(16)) * 4 * KIB);
		sim_sleep(draw(20) * SIM_MS);
		if (v->frontier - v->checkpoint > RESTART_MOST)
			sim_fail("restart", "%" PRIu64 " objects of the log follow the newest root",
				v->frontier - v->checkpoint);
	}
	store_calm();
	end(l);
	l = newcomer();
	open_it(l, false);
	end(l);
}

/* ---- takeover: of a writer that writes as fast as it can
 * ----------------------------------- */

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

	while (put(l, draw(200) * 4 * KIB, 4 * KIB) == 0 && backend_flush(l->device) == 0)
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

	open_it(l, false);
	l->done = true;
	sim_wake_all(&l->changed);
	return NULL;
}

static void meet_takeover(void)
{
	struct life *busy = newcomer(), *next;
	/* On one slow processor the writers may leave little to who takes over. */
	uint64_t most = sim_is_fair() ? TAKEOVER_MOST : TAKEOVER_UNFAIR;

	set_up(1 * MIB);
	plan.tune = tune_takeover;
	open_it(busy, true);
	busy->clients_running = 17;
	sim_spawn(sim_self(), "busy tool", busy_tool, busy);
	for (unsigned i = 0; i < 16; i++)
		sim_spawn(sim_self(), "busy client", busy_client, busy);
	sim_sleep(draw(1000) * SIM_MS);
	next = newcomer();
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
	end(next);
}

/* ---- a snapshot whose root comes late is not acknowledged to who has been
 * overtaken ---------- */

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

	if (put(l, 0, 4 * KIB) == 0)
		backend_flush(l->device);
	if (--l->clients_running == 0)
		sim_wake_all(&l->changed);
	return NULL;
}

/* What the first writer finds behind its frontier is its own, and the fence is
 * behind that. */
static void meet_late_snapshot(void)
{
	struct life *first = newcomer(), *next;
	char key[24];

	set_up(1 * MIB);
	plan.tune = tune_late_snapshot;
	open_it(first, true);
	put_all(first, 0, 4 * KIB);
	store_slows(S3_PUT, "/snap/s0/root", draw(10 * SIM_SECOND), 0);
	first->clients_running = 2;
	sim_spawn(sim_self(), "late tool", create_late, first);
	sim_sleep(500 * SIM_MS + draw(SIM_SECOND));
	snprintf(key, sizeof key, "/%016" PRIx64, ((struct s3_volume *)first->device)->next_seq);
	store_slows(S3_PUT, key, 0, draw(20 * SIM_SECOND));
	sim_spawn(sim_self(), "writer beside", write_beside, first);
	sim_sleep(draw(2 * SIM_SECOND));
	next = newcomer();
	open_it(next, false);
	while (first->clients_running)
		sim_wait(&first->changed, SIM_NEVER, "wait for the first writer", first);
	look_for_snapshots(next);
	backend_stop(first->device);
	backend_close(first->device);
	end(next);
}

/* ---- an object of the log that cannot be read is not the log's end
 * --------------------------- */

static void meet_unreadable(void)
{
	unsigned n = 4 + (unsigned)draw(40);
	struct life *l = newcomer(), *reader;
	static uint8_t block[4 * KIB];
	char key[24];
	int r = 0;

	set_up(1 * MIB);
	plan.tune = tune_late_snapshot;
	open_it(l, true);
	for (unsigned i = 0; i < n; i++)
		put_all(l, i * 4 * KIB, 4 * KIB);
	snprintf(key, sizeof key, "/%016" PRIx64,
		((struct s3_volume *)l->device)->frontier - draw(n));
	store_refuses(S3_GET, key);
	reader = newcomer();
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
	end(l);
}

/* ---- a full store: usable again after a little more quota, a trim and a
 * collection ----------- */

static void tune_full(struct s3_config *c)
{
	c->batch_size = 64 * KIB;
	c->uploads = 1 + draw(4);
	c->memory = 4 * MIB;
	c->checkpoint = 4 + draw(16);
	c->gc_delay = 0;
}

static void meet_full_store(void)
{
	struct life *l = newcomer();
	uint64_t size = 8 * MIB, room = STORE_LEAST_ROOM + draw(4 * MIB);
	int r = 0;

	set_up(size);
	plan.tune = tune_full;
	open_it(l, true);
	store_room(room);
	for (unsigned i = 0; r == 0 && i < 400; i++) {
		r = put(l, draw(size / (64 * KIB)) * 64 * KIB, 64 * KIB);
		if (r == 0)
			r = backend_flush(l->device);
	}
	if (r != -ENOSPC)
		sim_fail("full", "the store is full, and a flush answers: %s", strerror(-r));
	/* For the record of a trim, and for a root. */
	store_room(room + MIB / 2);
	r = backend_trim(l->device, 0, size, 0);
	if (r)
		sim_fail("full", "a trim on a full store answers: %s", strerror(-r));
	for (unsigned i = 0; i < 60; i++) {
		r = ask_tool(l, "gc", "");
		if (r == 0)
			r = put(l, 0, 64 * KIB);
		if (r == 0)
			r = backend_flush(l->device);
		if (r == 0)
			break;
		sim_sleep(SIM_SECOND);
	}
	if (r)
		sim_fail("full", "all was trimmed and collected, and a flush answers: %s",
			strerror(-r));
	end(l);
}

/* ---- the reserve: what was acknowledged is flushed, and trimmed, in a store
 * that is full ----- */

static void tune_reserve(struct s3_config *c)
{
	c->batch_size = 64 * KIB;
	c->uploads = 1 + draw(4);
	c->memory = 4 * MIB;
	c->checkpoint = 1000;
	c->gc_delay = 0;
}

static void flush_by_reserve(struct life *l, const char *what)
{
	int r = backend_flush(l->device);

	if (r)
		sim_fail("full",
			"the store is full, there was a reserve, and a flush %s answers: %s", what,
			strerror(-r));
}

static void meet_reserve(void)
{
	struct life *l = newcomer();
	uint64_t size = 24 * MIB, at = 0, objects, bytes;
	const struct s3_volume *v;
	int r = 0;

	set_up(size);
	plan.tune = tune_reserve;
	open_it(l, true);
	v = (const struct s3_volume *)l->device;
	for (; r == 0 && at < 12 * MIB; at += 64 * KIB)
		r = put(l, at, 64 * KIB);
	if (r == 0)
		r = backend_flush(l->device);
	if (r)
		sim_fail("error", "a write fails for no reason: %s", strerror(-r));
	for (unsigned i = 0; v->reserve.state != S3_RESERVE_THERE; i++) {
		if (i == 200)
			sim_fail("full", "no reserve is put");
		sim_sleep(SIM_SECOND);
	}
	store_totals(&objects, &bytes);
	store_room(bytes + draw(4) * 48 * KIB);
	for (; r == 0 && at < size; at += 64 * KIB) {
		if (draw(8) == 0)
			flush_by_reserve(l, "of writes");
		r = put(l, at, 64 * KIB);
	}
	if (r != -ENOSPC)
		sim_fail("full", "the store is full, and a write answers: %s", strerror(-r));
	flush_by_reserve(l, "of the last writes");
	sim_sleep(draw(3) * SIM_SECOND);
	r = backend_trim(l->device, 0, 8 * MIB, 0);
	if (r)
		sim_fail("full", "a trim on a full store answers: %s", strerror(-r));
	flush_by_reserve(l, "of a trim");
	/* From now on there is room for the reserve, or for what is put while it is
	 * not there. */
	store_totals(&objects, &bytes);
	store_room(bytes + v->max_batches * v->batch_size + MIB + draw(4) * KIB);
	for (unsigned i = 0; i < 8; i++) {
		for (unsigned j = 0; j < 3000 && v->reserve.state != S3_RESERVE_PUTTING; j++)
			sim_sleep(SIM_SECOND / 1000);
		r = backend_trim(l->device, (8 + i / 2) * MIB, 512 * KIB, 0);
		if (r)
			sim_fail("full", "a trim on a full store answers: %s", strerror(-r));
		flush_by_reserve(l, "beside the PUT of the reserve");
	}
	end(l);
}

/* ---- limits: objects of large batches are collected by one that has small
 * ones --------------- */

static uint64_t batch_size;

static void tune_limits(struct s3_config *c)
{
	c->batch_size = batch_size;
	c->uploads = 1;
	c->memory = 80 * MIB;
	c->checkpoint = 4 + draw(60);
	c->gc_delay = 0;
}

static void meet_limits(void)
{
	uint64_t size = 16 * MIB, piece = 256 * KIB;
	struct life *l = newcomer();

	set_up(size);
	plan.tune = tune_limits;
	batch_size = 8 * MIB;
	open_it(l, true);
	for (uint64_t at = 0; at < size; at += piece)
		if (put(l, at, piece))
			sim_fail("error", "a write fails for no reason");
	put_all(l, 0, 4 * KIB);
	for (uint64_t at = 0; at < size; at += piece)
		if (put(l, at, piece / 4 + draw(16) * 4 * KIB))
			sim_fail("error", "a write fails for no reason");
	end(l);
	batch_size = (16 << draw(2)) * KIB;
	l = newcomer();
	open_it(l, false);
	run_gc(l);
	end(l);
	l = newcomer();
	open_it(l, false);
	end(l);
}

/* ---- late deletions: nobody makes again what one is about
 * ------------------------------------ */

static void tune_late(struct s3_config *c)
{
	c->batch_size = 64 * KIB;
	c->uploads = 2;
	c->memory = 4 * MIB;
	c->checkpoint = 4 + draw(16);
	c->gc_delay = 0;
}

static void ask_for(struct life *l, const char *request)
{
	int r = ask_tool(l, request, "s0");

	if (r)
		sim_fail("error", "%s s0 fails for no reason: %s", request, strerror(-r));
}

static void meet_late_deletions(void)
{
	unsigned turns = 1 + (unsigned)draw(3);
	struct life *l;
	int r;

	set_up(1 * MIB);
	plan.tune = tune_late;
	store_deletes_late(2, 20 * SIM_SECOND);
	for (unsigned turn = 0; turn < turns; turn++) {
		l = newcomer();
		open_it(l, turn == 0);
		for (unsigned i = 0; i < 16; i++)
			put_all(l, draw(224) * 4 * KIB, (1 + draw(16)) * 4 * KIB);
		if (turn)
			ask_for(l, "snapshot-delete");
		ask_for(l, "snapshot-create");
		run_gc(l);
		ask_for(l, "snapshot-delete");
		ask_for(l, "snapshot-create");
		end(l);
	}
	store_calm();
	sim_sleep(30 * SIM_SECOND);
	l = newcomer();
	l->role = READER;
	r = life_open(l, "s0", false, &l->device);
	if (r)
		sim_fail("snapshot", "s0 was acknowledged, and cannot be opened: %s", strerror(-r));
	backend_close(l->device);
	l = newcomer();
	open_it(l, false);
	run_check(l);
	end(l);
}

/* ---- a name that a new volume gets while two delete the old one, which a
 * server still has ---- */

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

static void count_object(
	void *opaque, const char *key, const uint8_t *data, size_t length, bool late)
{
	(void)key;
	(void)data;
	(void)length;
	(void)late;
	++*(unsigned *)opaque;
}

static unsigned objects_of(const char *prefix)
{
	unsigned n = 0;

	store_each(prefix, count_object, &n);
	return n;
}

static bool has_super(void)
{
	return objects_of("sim/v0/super") > 0;
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
static void meet_new_name(void)
{
	static const struct {
		enum s3_op op;
		const char *part;
	} slow[] = {{S3_LIST, "/v0/"}, {S3_GET, "/super"}, {S3_GET, "/deleted"},
		{S3_PUT, "/deleted"}, {S3_DELETE, "/deleted"}};
	static struct remover removers[REMOVERS];
	struct life *old = newcomer(), *fresh;
	unsigned chosen = (unsigned)draw(sizeof slow / sizeof *slow), written = 0;
	bool lost = false;
	int r = -EEXIST;

	set_up(1 * MIB);
	plan.tune = tune_new_name;
	only_new = false;
	open_it(old, true);
	for (unsigned i = 0; i < 24; i++)
		put_all(old, draw(16) * 4 * KIB, 4 * KIB);
	for (unsigned i = 0; i < REMOVERS; i++) {
		struct remover *x = &removers[i];

		*x = (struct remover){.life = newcomer(), .removal = {.only = true}};
		open_it(x->life, false);
		s3_volume_may_remove((struct s3_volume *)x->life->device, &x->removal);
		end(x->life);
	}
	only_new = true;
	volumes[0].removers = removers_running = REMOVERS;
	store_slows(slow[chosen].op, slow[chosen].part, draw(10 * SIM_SECOND), 0);
	sim_spawn(sim_self(), "remover", remove_late, &removers[0]);
	sim_sleep(draw(2 * SIM_SECOND));
	store_calm();
	sim_spawn(sim_self(), "remover", remove_late, &removers[1]);
	fresh = newcomer();
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
	if (objects_of("sim/v0/log/") < written)
		sim_fail("new name", "objects of the new volume are gone");
	if (written && has_super()) {
		struct life *next = newcomer();

		only_new = false;
		open_it(next, false);
		for (unsigned i = 0; i < written; i++)
			if (new_block(next, i, false))
				sim_fail("new name", "block %u of the new volume is gone", i);
		run_check(next);
		end(next);
	}
	if (fresh->device) {
		backend_stop(fresh->device);
		backend_close(fresh->device);
	}
	backend_stop(old->device);
	backend_close(old->device);
}

/* ---- an open that fails: a volume that was closed is opened without its
 * write-back log next, and one whose server was killed holds all that was
 * flushed ---------------------------------------------------------------- */

#define BLOCKS 256u

static const char *troubled;
static enum s3_op troubled_op;
static bool killed;
static bool filling;
static uint8_t held[BLOCKS]; /* what each block of 4 KiB was filled with last */

/* The first one has memory for all that the store does not take. */
static void tune_failed_open(struct s3_config *c)
{
	c->batch_size = filling ? 64 * KIB : (16 * KIB) << draw(4);
	c->uploads = filling ? 16 : 1 + draw(4);
	c->memory = 8 * MIB;
	c->checkpoint = 8;
	c->gc_delay = 0;
	if (draw(2)) {
		c->cache_file = strdup("/sim/cache");
		c->cache_size = 2 * MIB;
	}
}

static void put_known(struct life *l)
{
	static uint8_t data[16 * 4 * KIB];
	unsigned first = (unsigned)draw(BLOCKS - 16), n = 1 + (unsigned)draw(16);
	struct iovec iov = {data, n * 4 * KIB};
	uint8_t value = (uint8_t)(1 + draw(255));
	int r;

	memset(data, value, sizeof data);
	memset(held + first, value, n);
	r = backend_writev(l->device, &iov, 1, first * 4 * KIB, 0);
	if (r)
		sim_fail("error", "a write fails for no reason: %s", strerror(-r));
}

static void expect_held(struct life *l)
{
	static uint8_t data[BLOCKS * 4 * KIB];
	struct iovec iov = {data, sizeof data};
	int r = backend_readv(l->device, &iov, 1, 0);

	if (r)
		sim_fail("read", "%s cannot be read: %s", l->volume->name, strerror(-r));
	for (size_t i = 0; i < sizeof data; i++)
		if (data[i] != held[i / (4 * KIB)])
			sim_fail("contents", "block %zu holds %u, and %u was flushed",
				i / (size_t)(4 * KIB), data[i], held[i / (4 * KIB)]);
}

/* Writes, and closes the volume; or fills its write-back log in an outage, and waits. */
static void *write_known(void *opaque)
{
	struct life *l = opaque;

	open_it(l, true);
	for (unsigned turn = 0; turn <= killed; turn++) {
		if (turn)
			store_refuses(S3_PUT, "/log/");
		for (unsigned i = 0; i < 12; i++) {
			put_known(l);
			if (draw(2) || i == 11)
				backend_flush(l->device);
		}
	}
	if (!killed)
		end(l);
	l->done = true;
	sim_wake_all(&l->changed);
	while (killed)
		sim_sleep(SIM_SECOND);
	return NULL;
}

static void *make_trouble(void *unused)
{
	(void)unused;
	sim_sleep(sim_log_between(SIM_PLAN, SIM_MS, 3 * SIM_SECOND));
	if (!troubled)
		return NULL;
	store_refuses(troubled_op, troubled);
	store_refuses_one_in(draw(4));
	sim_sleep(sim_log_between(SIM_PLAN, 10 * SIM_SECOND, 40 * SIM_SECOND));
	if (troubled)
		store_serves();
	return NULL;
}

/* Opens the volume while something goes wrong. Has it been closed then? */
static bool open_in_trouble(struct life *l)
{
	static const struct {
		enum s3_op op;
		const char *part;
	} requests[] = {{S3_PUT, "/super"}, {S3_GET, "/super"}, {S3_GET, "/log/"}, {S3_LIST, ""},
		{S3_PUT, "/log/"}};
	unsigned chosen = (unsigned)draw(sizeof requests / sizeof *requests);
	int r;

	plan.failing_disk = draw(2);
	troubled_op = requests[chosen].op;
	troubled = plan.failing_disk ? NULL : requests[chosen].part;
	if (plan.failing_disk)
		sim_files_fail_once(1 + draw(killed ? 60 : 20));
	else
		sim_spawn(sim_self(), "trouble", make_trouble, NULL);
	r = life_open(l, NULL, false, &l->device);
	sim_files_fail_once(0);
	plan.failing_disk = false;
	troubled = NULL;
	store_serves();
	if (r)
		return false;
	expect_held(l);
	end(l);
	return true;
}

static void meet_failed_open(void)
{
	struct volume *v = &volumes[0];
	struct life *l = newcomer();
	unsigned turns = 1 + (unsigned)draw(4);

	set_up(1 * MIB);
	strcpy(v->write_back, "/sim/log");
	v->log_bytes = 2 * MIB;
	memset(held, 0, sizeof held);
	l->write_back = true;
	plan.tune = tune_failed_open;
	l->process = sim_process_new();
	killed = draw(2);
	filling = true;
	sim_spawn(l->process, "first", write_known, l);
	while (!l->done)
		sim_wait(&l->changed, SIM_NEVER, "wait for the first writer", l);
	if (killed)
		sim_kill(l->process);
	filling = false;
	store_serves();
	for (unsigned turn = 0; turn < turns; turn++) {
		l = newcomer();
		l->write_back = draw(8) > 0;
		killed &= !open_in_trouble(l);
		if (killed && turn + 1 < turns)
			continue;
		l = newcomer();
		l->write_back = killed;
		open_it(l, false);
		expect_held(l);
		end(l);
	}
}

/* ---- an end waits for a full store that takes one object after the other
 * ---------------------- */

#define ROOM_EVERY (12 * SIM_SECOND)

static void tune_slow_end(struct s3_config *c)
{
	c->batch_size = 64 * KIB;
	c->uploads = 2 + draw(3);
	c->memory = 4 * MIB;
	/* What is refused is put again every 10 s. */
	c->close_timeout = 30;
}

static void *give_room(void *unused)
{
	uint64_t objects, bytes;

	(void)unused;
	for (unsigned i = 0; i < 8; i++) {
		sim_sleep(ROOM_EVERY);
		store_totals(&objects, &bytes);
		store_room(bytes + 80 * KIB);
	}
	store_room(0);
	return NULL;
}

static void meet_slow_end(void)
{
	struct life *l = newcomer();
	uint64_t objects, bytes;

	set_up(4 * MIB);
	plan.tune = tune_slow_end;
	open_it(l, true);
	put_all(l, 0, 64 * KIB);
	store_totals(&objects, &bytes);
	store_room(bytes);
	for (unsigned i = 0; i < 6 && put(l, i * 64 * KIB, 64 * KIB) == 0; i++)
		;
	sim_spawn(sim_self(), "room", give_room, NULL);
	end(l);
	l = newcomer();
	open_it(l, false);
	run_check(l);
	end(l);
}

void scene_run(void)
{
	static void (*const scenes[])(void) = {meet_memory, meet_outage, meet_restart,
		meet_takeover, meet_late_snapshot, meet_unreadable, meet_full_store, meet_reserve,
		meet_limits, meet_late_deletions, meet_new_name, meet_failed_open, meet_slow_end};

	store_serves();
	sim_calm();
	scenes[draw(sizeof scenes / sizeof *scenes)]();
}
