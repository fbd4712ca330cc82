/* SPDX-License-Identifier: BSD-3-Clause */
/* Scenes of opens and ends that fail, or take long. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/admin/control.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/state/object_table.h"
#include "tests/simulation/actors.h"
#include "tests/simulation/runner.h"
#include "tests/simulation/scenes.h"
#include "tests/simulation/store.h"

static bool careful; /* as userblk-s3 is without --take-over */

/*
 * ---- an open that fails: a volume that was closed still counts as closed, or it was told that it
 * does not, and is opened without its write-back log next; one whose server was killed holds all
 * that was flushed
 */

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
	c->require_clean_close = careful;
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

	scene_open(l, true);
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
		scene_end(l);
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
		{S3_PUT, "/log/"}, {S3_LIST, "/snap/"}};
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
	scene_end(l);
	return true;
}

void meet_failed_open(void)
{
	struct volume *v = &volumes[0];
	struct life *l = scene_newcomer();
	unsigned turns = 1 + (unsigned)draw(4);

	scene_set_up(1 * MIB);
	strcpy(v->write_back, "/sim/log");
	v->log_bytes = 2 * MIB;
	memset(held, 0, sizeof held);
	careful = false;
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
		l = scene_newcomer();
		l->write_back = draw(8) > 0;
		killed &= !open_in_trouble(l);
		if (killed && turn + 1 < turns)
			continue;
		careful = !killed && !l->told_in_use;
		l = scene_newcomer();
		l->write_back = killed;
		scene_open(l, false);
		careful = false;
		expect_held(l);
		scene_end(l);
	}
}

/* ---- an end waits for a full store that takes one object after the other ---- */

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

void meet_slow_end(void)
{
	struct life *l = scene_newcomer();
	uint64_t objects, bytes;

	scene_set_up(4 * MIB);
	plan.tune = tune_slow_end;
	scene_open(l, true);
	scene_put_all(l, 0, 64 * KIB);
	store_totals(&objects, &bytes);
	store_room(bytes);
	for (unsigned i = 0; i < 6 && scene_put(l, i * 64 * KIB, 64 * KIB) == 0; i++)
		;
	sim_spawn(sim_self(), "room", give_room, NULL);
	scene_end(l);
	l = scene_newcomer();
	scene_open(l, false);
	run_check(l);
	scene_end(l);
}

/* ---- an end that the store does not note is tried again, and then told ---------------------- */

#define SOON (15 * SIM_SECOND)

static uint64_t served_after;

static void tune_refused_end(struct s3_config *c)
{
	c->batch_size = 64 * KIB;
	c->uploads = 2 + draw(3);
	c->memory = 4 * MIB;
	c->close_timeout = 40;
	c->require_clean_close = careful;
}

static void *serve_again(void *unused)
{
	(void)unused;
	sim_sleep(served_after);
	store_serves();
	return NULL;
}

static void meet_refused_end_of(struct life *l)
{
	uint64_t objects, bytes;
	int r;

	if (draw(2)) {
		store_refuses(S3_PUT, "/log/");
	} else {
		store_totals(&objects, &bytes);
		store_room(bytes);
	}
	served_after = draw(2) ? draw(SOON) : 0;
	if (served_after)
		sim_spawn(sim_self(), "store", serve_again, NULL);
	backend_stop(l->device);
	r = backend_close(l->device);
	store_serves();
	if (r && served_after)
		sim_fail("close", "the store has noted the end in time: %s", strerror(-r));
	if (r && !l->told_in_use)
		sim_fail("close", "nobody was told that the end was not noted");
	careful = true;
	l = scene_newcomer();
	if (r == 0 || life_open(l, NULL, false, &l->device)) {
		careful = r == 0;
		scene_open(l, false);
	}
	scene_end(l);
	careful = false;
}

void meet_refused_end(void)
{
	struct life *l = scene_newcomer();

	scene_set_up(1 * MIB);
	careful = false;
	plan.tune = tune_refused_end;
	scene_open(l, true);
	for (unsigned i = 0; i < 4; i++)
		scene_put_all(l, draw(200) * 4 * KIB, 4 * KIB);
	meet_refused_end_of(l);
}

/* ---- the store loses what only the next open needs: a check of the server finds it ---- */

static void tune_lost_log(struct s3_config *c)
{
	c->batch_size = 64 * KIB;
	c->uploads = 2 + draw(3);
	c->memory = 4 * MIB;
	c->checkpoint = 4 + draw(60);
}

/* A log object behind the newest checkpoint without a block in use. False: there is none. */
static bool lose_log_object(struct s3_volume *v)
{
	uint64_t n = v->frontier - v->checkpoint, first = draw(n + 1);

	for (uint64_t i = 0; i < n; i++) {
		uint64_t seq = v->checkpoint + 1 + (first + i) % n;
		uint32_t slot = s3_objects_find(v->objects, 0, seq);
		struct s3_object object = {0};
		char key[S3_KEY_MAX + 1];

		if (slot != S3_NO_SLOT)
			s3_objects_get(v->objects, slot, &object);
		if (object.live || object.held)
			continue;
		s3_volume_object_key(v, seq, key);
		sim_trace("%s is lost", key);
		store_loses(key);
		return true;
	}
	return false;
}

static int count_damage(void *opaque, const char *line)
{
	*(unsigned *)opaque += strncmp(line, "damage ", 7) == 0;
	return 0;
}

static void *serve_lost_log(void *opaque)
{
	struct life *l = opaque;
	unsigned n = 2 + (unsigned)draw(20), found = 0;
	_Atomic bool stop = false;
	bool lost;
	int r;

	scene_open(l, true);
	for (unsigned i = 0; i < n; i++) {
		put_known(l);
		backend_flush(l->device);
	}
	lost = lose_log_object((struct s3_volume *)l->device);
	r = s3_control_perform((struct s3_volume *)l->device, "check", &stop, count_damage, &found);
	if (r)
		sim_fail("error", "a check fails for no reason: %s", strerror(-r));
	/* A checkpoint may have come between. */
	if (found > lost)
		sim_fail("damage", "%u objects are lost, and a check finds %u", lost, found);
	l->done = true;
	sim_wake_all(&l->changed);
	for (;;)
		sim_sleep(SIM_SECOND);
	return NULL;
}

void meet_lost_log(void)
{
	struct life *l = scene_newcomer();

	scene_set_up(1 * MIB);
	plan.tune = tune_lost_log;
	memset(held, 0, sizeof held);
	l->process = sim_process_new();
	sim_spawn(l->process, "first", serve_lost_log, l);
	while (!l->done)
		sim_wait(&l->changed, SIM_NEVER, "wait for the first writer", l);
	sim_kill(l->process);
	l = scene_newcomer();
	scene_open(l, false);
	expect_held(l);
	run_check(l);
	scene_end(l);
}
