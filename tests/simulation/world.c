/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/params.h"
#include "backends/s3/admin/delete.h"
#include "backends/s3/core/volume.h"
#include "tests/simulation/actors.h"
#include "tests/simulation/runner.h"
#include "tests/simulation/store.h"
#include "tests/simulation/world.h"

#define LIVES_AT_ONCE 3

struct volume volumes[VOLUMES];
unsigned n_volumes;
uint32_t last_write;
struct plan plan;

static struct life *alive[LIVES_AT_ONCE];
static struct sim_queue life_ended;

static uint64_t draw(uint64_t n)
{
	return sim_below(SIM_PLAN, n);
}

static bool one_in(uint64_t n)
{
	return sim_once_in(SIM_PLAN, n);
}

/* The same of what --without may take away: which leaves all other draws as they are. */
static bool drawn(enum sim_class class, uint64_t n)
{
	return one_in(n) && sim_with(class);
}

static unsigned lives_now(const struct volume *v)
{
	unsigned n = 0;

	for (unsigned i = 0; i < LIVES_AT_ONCE; i++)
		n += alive[i] && (!v || alive[i]->volume == v);
	return n;
}

/* ---- the life of a process ------------------------------------------------------------------- */

static void end_life(struct life *l)
{
	l->done = true;
	for (unsigned i = 0; i < LIVES_AT_ONCE; i++)
		if (alive[i] == l)
			alive[i] = NULL;
	sim_wake_all(&life_ended);
}

static void on_kill(struct sim_process *p)
{
	struct life *l = p->opaque;

	runner_count(COUNT_kills, 1);
	if (!l->session)
		l->volume->contended_until = sim_now() + 300 * SIM_SECOND;
	if (p->crash) {
		runner_count(COUNT_crashes, 1);
		if (*l->volume->write_back)
			sim_files_crash(l->volume->write_back, p);
		sim_files_crash("/sim/cache", p);
	}
	end_life(l);
}

static void serve(struct life *l)
{
	static const char *const names[] = {"client 1", "client 2", "client 3", "client 4"};
	bool tool = !l->volume->chunked && drawn(SIM_TOOL, 2);

	l->clients_running = l->clients + tool;
	for (unsigned i = 0; i < l->clients; i++)
		sim_spawn(l->process, names[i], client_main, l);
	if (tool)
		sim_spawn(l->process, "tool", tool_main, l);
	while (l->clients_running)
		sim_wait(&l->changed, SIM_NEVER, "wait for clients", NULL);
}

static void count_work(const struct life *l)
{
	struct s3_volume *v = (struct s3_volume *)l->device;

	runner_count(COUNT_gc_objects, v->stats.gc_objects);
	runner_count(COUNT_full_roots, v->stats.full_roots);
	runner_count(COUNT_light_roots, v->stats.light_roots);
	runner_count(COUNT_deleted, v->stats.deleted);
	runner_count(COUNT_orphans, v->stats.orphans);
}

static void close_writer(struct life *l)
{
	uint64_t call = model_tick(), since = sim_now();
	int r;

	backend_stop(l->device);
	count_work(l);
	r = backend_close(l->device);
	sim_trace("closed %s: %s", l->volume->name, r ? strerror(-r) : "ok");
	runner_count(COUNT_closes, 1);
	/* All is stored, but what the store has in the place of the end cannot be read. */
	if (r && !may_fail(l) && !l->told_failed && !(l->told_in_use && store_troubled(since)))
		sim_fail("close", "%s: %s", l->volume->name, strerror(-r));
	if (r || !l->session || l->volume->chunked)
		return;
	if (l->session->superseded && l->session->lost_answer < call && !l->session->logged &&
		!l->session->weak)
		sim_fail("fence",
			"%s was closed as if all were stored by a writer of epoch %" PRIu64
			", and a later one has not seen all",
			l->volume->name, l->session->epoch);
	l->session->floor = l->session->stored = call;
}

static void live_as_writer(struct life *l)
{
	struct volume *v = l->volume;
	bool create = !v->exists;
	int r;

	l->writer_number = ++v->writers;
	l->contended = lives_now(v) > 1 || sim_now() < v->contended_until;
	if (*v->write_back && !one_in(6))
		l->write_back = true;
	else if (v->maybe_logged)
		l->discard = one_in(2);
	l->weak = drawn(SIM_PARAMETERS, 12) && !l->write_back;
	v->lossy |= l->discard;
	r = life_open(l, NULL, create, &l->device);
	l->contended |= sim_now() < v->contended_until;
	if (r) {
		/* It is refused without the log that it must have. */
		if (!may_fail(l) && r != -EIO && r != -EBUSY && r != -ENOENT &&
			!(v->maybe_logged && !l->write_back))
			sim_fail("open", "%s cannot be opened: %s", v->name, strerror(-r));
		return;
	}
	v->exists = true;
	/* Its log is useless now, and the store reports that to a process that has it open. */
	if (l->discard && *v->write_back)
		snprintf(v->write_back, sizeof v->write_back, "/sim/log%u", v->writers);
	if (establish(l) == 0) {
		snapshots_compare(l);
		if (l->role == KEEPER_OF_SNAPSHOTS) {
			char name[8];

			snprintf(name, sizeof name, "s%u", (unsigned)draw(SNAPSHOTS));
			if (one_in(2)) {
				run_clone(l, name);
			} else {
				run_rollback(l, name);
				/* Answered or not: what is made durable now stands behind it. */
				if (one_in(2))
					serve(l);
			}
		} else {
			serve(l);
		}
	}
	close_writer(l);
}

static void live_as_reader(struct life *l)
{
	struct volume *v = l->volume;
	struct model_session *newest = v->current;
	uint64_t floor = newest->weak ? 0 : newest->stored;
	uint32_t *seen, bad;
	struct backend *b;
	const char *why;
	bool fits = false;
	int r;

	runner_count(COUNT_readers, 1);
	l->writer_number = v->writers;
	if (!v->exists)
		return;
	if (v->snapshots && one_in(3)) {
		snapshot_learn(l, v->snapshots->name);
		return;
	}
	r = life_open(l, NULL, false, &b);
	if (r)
		return;
	seen = calloc(v->capacity, sizeof *seen);
	l->sectors = device_sectors(b);
	if (l->sectors > v->capacity)
		sim_fail("size", "%s has %u sectors", v->name, l->sectors);
	r = read_all(b, seen, l->sectors, "a reader");
	/* What the writer at the beginning wrote, or one that came meanwhile. */
	for (struct model_session *s = v->current; r == 0 && s; s = s->older) {
		fits |= model_is_prefix(s, seen, v->capacity, s == newest ? floor : 0,
			MODEL_NEVER - 1, v->chunked, &bad, &why);
		if (s == newest)
			break;
	}
	/* A log that was given up may be replayed by one that had begun before that. */
	if (r == 0 && !fits && !(v->lossy && v->shared))
		sim_fail("contents", "a reader of %s sees sector %u as %u, which %s", v->name, bad,
			seen[bad], why);
	free(seen);
	backend_close(b);
}

static void live_as_remover(struct life *l)
{
	struct s3_removal removal = {0};
	struct backend_host host;
	struct volume *v = l->volume;
	int r;

	l->writer_number = ++v->writers;
	l->write_back = *v->write_back;
	r = life_open(l, NULL, false, &l->device);
	if (r)
		return;
	host = l->device->host;
	life_notes_end(l, &removal);
	backend_close(l->device);
	r = s3_volume_remove(params_config(l->params), &host, &removal);
	sim_trace("remove %s: %s", v->name, r ? strerror(-r) : "ok");
	runner_count(COUNT_removals, r == 0);
	if (r)
		return;
	v->removed = true;
	for (struct snapshot *x = v->snapshots; x; x = x->older)
		if (x->clones && !x->gone)
			sim_fail("clone", "%s was deleted, and its snapshot %s had clones", v->name,
				x->name);
	if (v->origin)
		v->origin->clones--;
}

static void *live(void *opaque)
{
	struct life *l = opaque;

	switch (l->role) {
	case WRITER:
	case KEEPER_OF_SNAPSHOTS:
		live_as_writer(l);
		break;
	case READER:
		live_as_reader(l);
		break;
	case REMOVER:
		live_as_remover(l);
		break;
	}
	l->process->kill_at = SIM_NEVER;
	end_life(l);
	return NULL;
}

/* ---- the plan
 * ------------------------------------------------------------------------------------------- */

/* Its wall clock is set, by up to a day. */
static void jump(void *process, uint64_t by)
{
	struct sim_process *p = process;

	p->skew += (int64_t)(by % (2 * 86400 * SIM_SECOND)) - (int64_t)(86400 * SIM_SECOND);
	sim_trace("the clock of process %u jumps", p->id);
}

static void draw_fate(struct sim_process *p)
{
	if (drawn(SIM_KILL, 2)) {
		p->kill_at = sim_log_between(SIM_PLAN, 10, 100000);
		p->crash = drawn(SIM_CRASH, 2);
	}
	if (drawn(SIM_PAUSE, 4)) {
		p->pause_at = sim_log_between(SIM_PLAN, 10, 50000);
		p->pause_ns = sim_log_between(SIM_PLAN, SIM_MS, 100 * SIM_SECOND);
		runner_count(COUNT_pauses, 1);
	}
	if (drawn(SIM_CLOCK, 4))
		p->skew = (int64_t)draw(2 * 86400 * SIM_SECOND) - (int64_t)(86400 * SIM_SECOND);
	if (drawn(SIM_CLOCK, 8))
		sim_at(sim_now() + sim_log_between(SIM_PLAN, SIM_MS, 60 * SIM_SECOND), jump, p,
			sim_random(SIM_PLAN));
	p->cpus = 1 + (unsigned)draw(4);
}

static struct life *begin(struct volume *v, enum role role, unsigned ops)
{
	struct life *l = calloc(1, sizeof *l);
	unsigned place = 0;

	while (alive[place])
		place++;
	*l = (struct life){.process = sim_process_new(),
		.volume = v,
		.role = role,
		.ops = ops,
		.clients = 1 + (unsigned)draw(4)};
	l->process->opaque = l;
	l->process->on_kill = on_kill;
	alive[place] = l;
	v->removers += role == REMOVER;
	v->shared |= lives_now(v) > 1;
	draw_fate(l->process);
	sim_trace("process %u: %s of %s, %u operations", l->process->id,
		role == WRITER	  ? "writer"
		: role == READER  ? "reader"
		: role == REMOVER ? "remover"
				  : "rollback or clone",
		v->name, ops);
	sim_spawn(l->process, "main", live, l);
	return l;
}

/* Waits until there is a place, or none of a volume (or of any: NULL) is alive. */
static void wait_for_lives(const struct volume *v, unsigned at_most, uint64_t until)
{
	while (lives_now(v) > at_most)
		if (!sim_wait(&life_ended, until, "wait for processes", NULL))
			return;
}

static enum role draw_role(const struct volume *v)
{
	if (drawn(SIM_READER, 5) && v->exists)
		return READER;
	if (drawn(SIM_CLONE, v == volumes ? 40 : 4) && v->exists && !lives_now(v))
		return REMOVER;
	if (drawn(SIM_CLONE, 2) && v->exists && v->snapshots && !lives_now(v))
		return KEEPER_OF_SNAPSHOTS;
	return WRITER;
}

static void make_volume(void)
{
	struct volume *v = &volumes[n_volumes++];
	static const uint32_t mebibytes[] = {1, 1, 2, 4, 8};

	*v = (struct volume){
		.sectors = (plan.heavy ? 8 : mebibytes[draw(5)]) * ((1 << 20) / SECTOR),
		.block_size = (unsigned)draw(2),
		.compress = drawn(SIM_TRANSFORM, 5),
		.encrypted = drawn(SIM_TRANSFORM, 6)};
	if (plan.chunked)
		v->compress = v->encrypted = !(v->chunked = true);
	v->log_bytes = mebibytes[draw(5)] << 20;
	if (!v->chunked && drawn(SIM_WRITEBACK, 4))
		snprintf(v->write_back, sizeof v->write_back, "/sim/log");
	v->capacity = 2 * v->sectors;
	snprintf(v->name, sizeof v->name, "v%u", n_volumes - 1);
	v->current = model_session_new(v->capacity, NULL);
	v->current->based = true;
}

static void draw_plan(void)
{
	plan.ops = sim_options.ops ? sim_options.ops : 200;
	plan.lives = sim_options.lives ? sim_options.lives : 2 + (unsigned)draw(7);
	plan.largest = sim_log_between(SIM_PLAN, 4096, 512 << 10);
	plan.pattern = (unsigned)draw(3);
	plan.think_ns = one_in(2) ? sim_log_between(SIM_PLAN, 1000, SIM_SECOND) : 0;
	plan.weight_read = (unsigned)draw(6);
	plan.weight_write = 1 + (unsigned)draw(12);
	plan.weight_flush = (unsigned)draw(5);
	plan.weight_trim = (unsigned)draw(3);
	plan.weight_zero = (unsigned)draw(3);
	plan.heavy = one_in(12);
	if (plan.heavy) {
		plan.largest = 256 << 10;
		plan.weight_write = 12;
		plan.weight_read = plan.weight_trim = plan.weight_zero = 0;
		plan.weight_flush = 1;
		plan.pattern = 2;
	}
	plan.chunked = !plan.heavy && drawn(SIM_DIRECT, 16);
	plan.failing_disk = drawn(SIM_WRITEBACK, 16);
	sim_files_fail(plan.failing_disk ? 10 : 0,
		plan.failing_disk ? (unsigned)sim_log_between(SIM_DISK, 10, 1000) : 0);
	plan.few_threads = sim_once_in(SIM_DISK, 16) && sim_with(SIM_THREADS);
	sim_threads_fail(plan.few_threads ? (unsigned)sim_log_between(SIM_DISK, 2, 30) : 0);
	/* Its fence is weak, and what a killed writer had under way may arrive after the next one.
	 */
	if (plan.chunked)
		store_in_order();
	plan.full = store_may_be_full();
	plan.retry_deadline = drawn(SIM_REFUSE, 8) ? 5 + draw(60) : 0;
}

/* There is a place for another process, or (alone) no process: what does not end by itself is
 * killed.
 */
static void make_place(bool alone)
{
	wait_for_lives(NULL, alone ? 0 : LIVES_AT_ONCE - 1, sim_now() + 1000 * SIM_SECOND);
	for (unsigned i = 0; i < LIVES_AT_ONCE; i++)
		if (alive[i] && (alone || lives_now(NULL) == LIVES_AT_ONCE))
			sim_kill(alive[i]->process);
}

/* The processes, one after the other or beside each other. */
static void run_lives(void)
{
	unsigned ops = plan.ops;

	/* Nobody opens what is being deleted. */
	for (unsigned i = 0; i < plan.lives && !volumes[0].removers; i++) {
		struct volume *v = &volumes[draw(n_volumes)];
		unsigned share =
			i + 1 == plan.lives ? ops : (unsigned)draw(2 * ops / (plan.lives - i));
		enum role role;

		if (v->removers || (v != &volumes[0] && !v->exists))
			v = &volumes[0];
		role = draw_role(v);
		begin(v, role, role == WRITER ? share : 0);
		if (role == WRITER)
			ops -= share < ops ? share : ops;
		if (drawn(SIM_TAKEOVER, 3) && !v->chunked && v->exists) {
			sim_sleep(sim_log_between(SIM_PLAN, SIM_MS, 20 * SIM_SECOND));
			make_place(false);
			runner_count(COUNT_takeovers, lives_now(v) > 0);
		} else {
			wait_for_lives(v, 0, sim_now() + (v->chunked ? 2000 : 100) * SIM_SECOND);
			make_place(v->chunked);
		}
	}
	wait_for_lives(NULL, 0, sim_now() + 200 * SIM_SECOND);
}

/* A store that ignores conditions keeps no second writer out: it has to be refused. */
static void meet_odd_store(void)
{
	struct life l = {.process = sim_self(), .volume = &volumes[0], .role = WRITER};
	bool if_none_match = one_in(2), if_match = !if_none_match || one_in(2);
	int r;

	store_calm();
	sim_files_fail(0, 0);
	store_ignores(if_none_match, if_match);
	r = life_open(&l, NULL, true, &l.device);
	if (r != -EOPNOTSUPP)
		sim_fail("odd store", "a store that ignores%s%s is not refused: %s",
			if_none_match ? " If-None-Match" : "", if_match ? " If-Match" : "",
			r ? strerror(-r) : "it is opened");
	runner_count(COUNT_refused_opens, 1);
}

static void on_final_error(void *opaque, const char *message)
{
	(void)opaque;
	sim_trace("error: %s", message);
}

static const struct backend_host final_host = {.error = on_final_error};

/* A deletion that was interrupted is finished by another one. */
static void finish_removal(struct volume *v)
{
	struct s3_removal removal = {0};
	struct life l = {.process = sim_self(), .volume = v, .role = WRITER};
	int r;

	l.writer_number = ++v->writers;
	l.write_back = *v->write_back;
	r = life_open(&l, NULL, false, &l.device);
	if (r == 0)
		backend_close(l.device);
	if (r == 0 || (r == -EBUSY && (v->lossy || plan.failing_disk))) {
		/* It was not even begun, or it has clones. */
		final_check(v);
		return;
	}
	if (r != -ENOENT)
		sim_fail("open", "%s, whose deletion was begun, cannot be opened: %s", v->name,
			strerror(-r));
	r = s3_volume_remove(params_config(l.params), &final_host, &removal);
	if (r && r != -ENOENT)
		sim_fail("removal", "%s cannot be finished: %s", v->name, strerror(-r));
	final_removed(v);
}

void world_run(void *unused)
{
	(void)unused;
	store_draw();
	draw_plan();
	make_volume();
	if (drawn(SIM_ODD_STORE, 50)) {
		meet_odd_store();
		return;
	}
	if (sim_with(SIM_SCENES) && one_in(30)) {
		scene_run();
		return;
	}
	run_lives();
	/* Faults cease: what still goes on has to come to its end. */
	sim_trace("calm");
	store_calm();
	sim_calm();
	sim_files_fail(0, 0);
	sim_threads_fail(0);
	for (unsigned i = 0; i < LIVES_AT_ONCE; i++)
		if (alive[i])
			alive[i]->process->kill_at = SIM_NEVER;
	wait_for_lives(NULL, 0, sim_now() + 2000 * SIM_SECOND);
	if (lives_now(NULL))
		sim_fail("slow", "a process does not end in 2000 s, although all is well");
	while (store_busy())
		sim_sleep(SIM_SECOND);
	for (unsigned i = 0; i < n_volumes; i++)
		if (volumes[i].removed)
			final_removed(&volumes[i]);
		else if (volumes[i].removers)
			finish_removal(&volumes[i]);
		else if (volumes[i].exists)
			final_check(&volumes[i]);
	store_hash();
	sim_files_hash();
}
