/* SPDX-License-Identifier: BSD-3-Clause */
/* What scenes share, and those of memory, space and sizes. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/core/config.h"
#include "backends/s3/core/volume.h"
#include "tests/simulation/actors.h"
#include "tests/simulation/runner.h"
#include "tests/simulation/scenes.h"
#include "tests/simulation/store.h"
#include "tests/simulation/world.h"

/* Objects of the log after a root, besides those that checkpoint= says: it
 * takes its time. */
#define RESTART_MOST	 400
#define STORE_LEAST_ROOM (2 * MIB)

/* A volume without anything that makes it slow or odd, and somebody who opens
 * it. */
struct life *scene_newcomer(void)
{
	struct life *l = calloc(1, sizeof *l);

	if (!l)
		abort();
	*l = (struct life){.process = sim_self(), .volume = &volumes[0], .role = WRITER};
	l->writer_number = ++l->volume->writers;
	return l;
}

void scene_set_up(uint64_t bytes)
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

void scene_open(struct life *l, bool create)
{
	int r = life_open(l, NULL, create, &l->device);

	if (r)
		sim_fail("open", "%s cannot be opened: %s", l->volume->name, strerror(-r));
	l->volume->exists = true;
}

int scene_put(struct life *l, uint64_t offset, size_t length)
{
	static uint8_t data[2 << 20];
	struct iovec iov = {data, length};

	/* What is written does not matter, but that it is not all the same. */
	memset(data, (int)(1 + draw(255)), length);
	return backend_writev(l->device, &iov, 1, offset, 0);
}

void scene_put_all(struct life *l, uint64_t offset, size_t length)
{
	int r = scene_put(l, offset, length);

	if (r == 0)
		r = backend_flush(l->device);
	if (r)
		sim_fail("error", "a write fails for no reason: %s", strerror(-r));
}

void scene_end(struct life *l)
{
	int r;

	backend_stop(l->device);
	r = backend_close(l->device);
	if (r)
		sim_fail("close", "%s: %s", l->volume->name, strerror(-r));
}

void scene_ask(struct life *l, const char *request)
{
	int r = ask_tool(l, request, "s0");

	if (r)
		sim_fail("error", "%s s0 fails for no reason: %s", request, strerror(-r));
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

unsigned scene_objects(const char *prefix)
{
	unsigned n = 0;

	store_each(prefix, count_object, &n);
	return n;
}

/* ---- memory: what a collection takes besides what there is stays below memory= ---- */

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
	struct life *l = scene_newcomer();

	scene_set_up(size);
	plan.tune = tune_memory;
	scene_open(l, true);
	/* The second time all that is made once is there. */
	for (unsigned turn = 0; turn < 2; turn++) {
		for (uint64_t at = 0; at < size; at += piece)
			scene_put_all(l, at, piece);
		/* What is left is more than half of each, so that nobody has cleaned up
		 * before. */
		for (uint64_t at = 0; at < size; at += piece)
			scene_put_all(l, at + draw(16) * 4 * KIB, (32 + draw(16)) * 4 * KIB);
		if (turn)
			store_watch();
		run_gc(l);
	}
	check_memory(l, "a collection");
	scene_end(l);
}

/* ---- memory: writes wait for a store that does not take them ---- */

static bool outage;

static void *write_in_outage(void *opaque)
{
	struct life *l = opaque;

	while (outage && scene_put(l, draw(64) * 256 * KIB, 256 * KIB) == 0)
		sim_sleep(draw(100) * SIM_MS);
	if (--l->clients_running == 0)
		sim_wake_all(&l->changed);
	return NULL;
}

static void meet_outage(void)
{
	struct life *l = scene_newcomer();

	scene_set_up(16 * MIB);
	plan.tune = tune_memory;
	scene_open(l, true);
	scene_put_all(l, 0, 256 * KIB);
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
	scene_end(l);
}

/* ---- restart: compaction that is stuck holds up no checkpoint ---- */

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
	struct life *l = scene_newcomer();
	struct s3_volume *v;

	scene_set_up(1 * MIB);
	plan.tune = tune_restart;
	scene_open(l, true);
	v = (struct s3_volume *)l->device;
	store_refuses(draw(2) ? S3_PUT : S3_GET, draw(2) ? "/gc/" : "/gc/00/");
	for (unsigned i = 0; i < 900; i++) {
		scene_put_all(l, draw(224) * 4 * KIB, (1 + draw(16)) * 4 * KIB);
		sim_sleep(draw(20) * SIM_MS);
		if (v->frontier - v->checkpoint > RESTART_MOST)
			sim_fail("restart", "%" PRIu64 " objects of the log follow the newest root",
				v->frontier - v->checkpoint);
	}
	store_calm();
	scene_end(l);
	l = scene_newcomer();
	scene_open(l, false);
	scene_end(l);
}

/* ---- a full store: usable again after a little more quota, a trim and a collection ---- */

static void tune_full(struct s3_config *c)
{
	c->batch_size = 64 * KIB;
	c->uploads = 1 + draw(4);
	c->memory = 4 * MIB;
	c->checkpoint = 4 + draw(16);
	c->gc_delay = 0;
}

/* All that can be freed is freed by a collection: there is room for a write then. */
static void put_in_the_end(struct life *l)
{
	int r = -ENOSPC;

	for (unsigned i = 0; r && i < 60; i++) {
		if (i)
			sim_sleep(SIM_SECOND);
		r = ask_tool(l, "gc", "");
		if (r == 0)
			r = scene_put(l, 0, 64 * KIB);
		if (r == 0)
			r = backend_flush(l->device);
	}
	if (r)
		sim_fail("full", "much was trimmed and collected, and a flush answers: %s",
			strerror(-r));
}

static void meet_full_store(void)
{
	struct life *l = scene_newcomer();
	uint64_t size = 8 * MIB, room = STORE_LEAST_ROOM + draw(4 * MIB);
	int r = 0;

	scene_set_up(size);
	plan.tune = tune_full;
	scene_open(l, true);
	store_room(room);
	for (unsigned i = 0; r == 0 && i < 400; i++) {
		r = scene_put(l, draw(size / (64 * KIB)) * 64 * KIB, 64 * KIB);
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
	put_in_the_end(l);
	scene_end(l);
}

/* ---- the reserve: what was acknowledged is flushed, and trimmed, in a store that is full ---- */

static void tune_reserve(struct s3_config *c)
{
	c->batch_size = 64 * KIB;
	c->uploads = 1 + draw(4);
	c->memory = 4 * MIB;
	c->checkpoint = 1000;
	c->gc_delay = draw(2) * 60;
}

static void flush_by_reserve(struct life *l, const char *what)
{
	int r = backend_flush(l->device);

	if (r)
		sim_fail("full",
			"the store is full, there was a reserve, and a flush %s answers: %s", what,
			strerror(-r));
}

#define RESERVED_SIZE (24 * MIB)

/* A volume that is large enough for a reserve, and has one; how far it was written. */
static uint64_t open_with_reserve(struct life *l)
{
	const struct s3_volume *v;
	uint64_t at = 0;
	int r = 0;

	scene_set_up(RESERVED_SIZE);
	plan.tune = tune_reserve;
	scene_open(l, true);
	v = (const struct s3_volume *)l->device;
	for (; r == 0 && at < 12 * MIB; at += 64 * KIB)
		r = scene_put(l, at, 64 * KIB);
	if (r == 0)
		r = backend_flush(l->device);
	if (r)
		sim_fail("error", "a write fails for no reason: %s", strerror(-r));
	for (unsigned i = 0; v->reserve.state != S3_RESERVE_THERE; i++) {
		if (i == 200)
			sim_fail("full", "no reserve is put");
		sim_sleep(SIM_SECOND);
	}
	return at;
}

static void meet_reserve(void)
{
	struct life *l = scene_newcomer();
	uint64_t at = open_with_reserve(l), length, objects, bytes;
	const struct s3_volume *v = (const struct s3_volume *)l->device;
	uint64_t reserve = v->reserve.bytes;
	int r = 0;

	store_totals(&objects, &bytes);
	store_room(bytes + draw(4) * 48 * KIB);
	for (; r == 0 && at < RESERVED_SIZE; at += length) {
		if (draw(8) == 0)
			flush_by_reserve(l, "of writes");
		/* Also one that waits for memory when the store is full. */
		length = draw(8) ? 64 * KIB : (1 + draw(32)) * 64 * KIB;
		if (length > RESERVED_SIZE - at)
			length = RESERVED_SIZE - at;
		r = scene_put(l, at, length);
	}
	if (r != -ENOSPC)
		sim_fail("full", "the store is full, and a write answers: %s", strerror(-r));
	flush_by_reserve(l, "of the last writes");
	sim_sleep(draw(3) * SIM_SECOND);
	r = backend_trim(l->device, 0, 8 * MIB, 0);
	if (r)
		sim_fail("full", "a trim on a full store answers: %s", strerror(-r));
	flush_by_reserve(l, "of a trim");
	/* However long it is full, there is room for another one. */
	sim_sleep(draw(300) * SIM_SECOND);
	r = backend_trim(l->device, 12 * MIB - 512 * KIB, 512 * KIB, 0);
	if (r)
		sim_fail("full", "a trim on a full store answers: %s", strerror(-r));
	flush_by_reserve(l, "of a trim after a while");
	/* From now on there is room for the reserve, or for what is put while it is
	 * not there. */
	store_totals(&objects, &bytes);
	store_room(bytes + reserve + draw(4) * KIB);
	for (unsigned i = 0; i < 8; i++) {
		for (unsigned j = 0; j < 3000 && v->reserve.state != S3_RESERVE_PUTTING; j++)
			sim_sleep(SIM_SECOND / 1000);
		r = backend_trim(l->device, (8 + i / 2) * MIB, 512 * KIB, 0);
		if (r)
			sim_fail("full", "a trim on a full store answers: %s", strerror(-r));
		flush_by_reserve(l, "beside the PUT of the reserve");
	}
	scene_end(l);
}

/* ---- a full store: a server that ended there is followed by another one, which frees it ---- */

static bool killed;

static void *fill_store(void *opaque)
{
	struct life *l = opaque;
	uint64_t at = open_with_reserve(l), objects, bytes;
	int r = 0;

	store_totals(&objects, &bytes);
	store_room(bytes);
	if (draw(2)) {
		for (; r == 0 && at < RESERVED_SIZE; at += 64 * KIB)
			r = scene_put(l, at, 64 * KIB);
		flush_by_reserve(l, "of writes");
	}
	if (!killed)
		scene_end(l);
	l->done = true;
	sim_wake_all(&l->changed);
	while (killed)
		sim_sleep(SIM_SECOND);
	return NULL;
}

static void meet_full_open(void)
{
	struct life *l = scene_newcomer();
	int r;

	killed = draw(2);
	l->process = sim_process_new();
	sim_spawn(l->process, "first", fill_store, l);
	while (!l->done)
		sim_wait(&l->changed, SIM_NEVER, "wait for a full store", l);
	if (killed)
		sim_kill(l->process);
	l = scene_newcomer();
	scene_open(l, false);
	r = backend_trim(l->device, 0, 8 * MIB, 0);
	if (r)
		sim_fail("full", "a trim on a full store answers: %s", strerror(-r));
	flush_by_reserve(l, "of a trim");
	put_in_the_end(l);
	scene_end(l);
}

/* ---- a slow line: that there is space again is seen although the reserve takes too long ---- */

static void meet_slow_reserve(void)
{
	struct life *l = scene_newcomer();
	uint64_t at = open_with_reserve(l), objects, bytes;
	int r = 0;

	store_totals(&objects, &bytes);
	store_room(bytes);
	for (; r == 0 && at < RESERVED_SIZE; at += 64 * KIB)
		r = scene_put(l, at, 64 * KIB);
	if (r != -ENOSPC)
		sim_fail("full", "the store is full, and a write answers: %s", strerror(-r));
	store_line((16 + draw(16)) * KIB);
	store_room(0);
	for (unsigned i = 0; (r = scene_put(l, 0, 64 * KIB)) != 0; i++) {
		if (r != -ENOSPC || i == 300)
			sim_fail("full", "there is space again, and a write answers: %s",
				strerror(-r));
		sim_sleep(SIM_SECOND);
	}
	scene_end(l);
}

/* ---- limits: objects of large batches are collected by one that has small ones ---- */

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
	struct life *l = scene_newcomer();

	scene_set_up(size);
	plan.tune = tune_limits;
	batch_size = 8 * MIB;
	scene_open(l, true);
	for (uint64_t at = 0; at < size; at += piece)
		if (scene_put(l, at, piece))
			sim_fail("error", "a write fails for no reason");
	scene_put_all(l, 0, 4 * KIB);
	for (uint64_t at = 0; at < size; at += piece)
		if (scene_put(l, at, piece / 4 + draw(16) * 4 * KIB))
			sim_fail("error", "a write fails for no reason");
	scene_end(l);
	batch_size = (16 << draw(2)) * KIB;
	l = scene_newcomer();
	scene_open(l, false);
	run_gc(l);
	scene_end(l);
	l = scene_newcomer();
	scene_open(l, false);
	scene_end(l);
}

void scene_run(void)
{
	static void (*const scenes[])(void) = {meet_memory, meet_outage, meet_restart,
		meet_takeover, meet_late_snapshot, meet_unreadable, meet_full_store, meet_reserve,
		meet_full_open, meet_slow_reserve, meet_limits, meet_late_deletions, meet_new_name,
		meet_stopped_clone, meet_failed_open, meet_slow_end, meet_refused_end,
		meet_lost_log};

	store_serves();
	sim_calm();
	scenes[draw(sizeof scenes / sizeof *scenes)]();
}
