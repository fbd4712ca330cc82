/* SPDX-License-Identifier: BSD-3-Clause */
/* What clients of a device do, and what userblk-s3 asks of it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/admin/control.h"
#include "backends/s3/core/volume.h"
#include "tests/simulation/actors.h"
#include "tests/simulation/memory.h"
#include "tests/simulation/runner.h"
#include "tests/simulation/store.h"

static uint64_t draw(uint64_t n)
{
	return sim_below(SIM_PLAN, n);
}

static bool one_in(uint64_t n)
{
	return sim_once_in(SIM_PLAN, n);
}

/* ---- the answers ----------------------------------------------------------------------------- */

/* Only another writer, an abort and retry-deadline= end a volume. */
static bool may_end(const struct life *l)
{
	const struct volume *v = l->volume;

	return l->aborted || v->writers > l->writer_number || l->contended || v->removers ||
	       plan.retry_deadline;
}

static void unexpected(struct life *l, const char *what, int r)
{
	struct s3_volume *v = (struct s3_volume *)l->device;

	l->told_failed |= atomic_load(&v->failed) != 0;
	if (l->told_failed && !may_end(l))
		sim_fail("ended", "%s has ended for no reason; %s answers: %s", l->volume->name,
			what, strerror(-r));
	runner_count(COUNT_failed_requests, 1);
	if (!request_may_fail(l))
		sim_fail("error", "%s of %s fails for no reason: %s", what, l->volume->name,
			strerror(-r));
}

/* Everything that was answered before call is promised to last now; stored: without any file. */
static void promise(struct life *l, uint64_t call, bool stored, const char *what)
{
	struct model_session *s = l->session;

	if (s->weak)
		return;
	if (s->superseded && s->lost_answer < call && !s->logged && !l->volume->chunked)
		sim_fail("fence",
			"%s: %s was answered well by a writer of epoch %" PRIu64
			", although a later one has not seen what it covers",
			l->volume->name, what, s->epoch);
	if (call > s->floor)
		s->floor = call;
	if (stored && call > s->stored)
		s->stored = call;
}

/* A change has been answered. */
static void answered(struct life *l, struct model_op *op, int r, bool durable)
{
	if (r)
		return;
	op->answer = model_tick();
	op->durable = durable && !l->session->weak;
	if (op->lost) {
		if (op->answer < l->session->lost_answer)
			l->session->lost_answer = op->answer;
		if (op->durable && !l->session->logged && !l->volume->chunked &&
			l->session->superseded)
			sim_fail("fence",
				"%s: a durable write was answered well by a writer of "
				"epoch %" PRIu64 ", and a later one has not seen it",
				l->volume->name, l->session->epoch);
	}
	/* What changes nothing is answered at once, and promises nothing of others. */
	if (op->durable && !op->lost && op->id)
		promise(l, op->call, !l->session->logged, "a durable write");
}

/* ---- device operations --------------------------------------------------------------------------
 */

/* Where an operation goes, in sectors. */
static void draw_range(const struct life *l, uint32_t *first, uint32_t *n)
{
	static uint32_t next;
	uint32_t sectors = l->volume->sectors ? l->volume->sectors : l->sectors;
	uint64_t most = plan.largest / SECTOR < sectors ? plan.largest / SECTOR : sectors;

	*n = (uint32_t)sim_log_between(SIM_PLAN, 1, most);
	if (plan.heavy)
		*n = (uint32_t)most / 2 + (uint32_t)draw(most / 2);
	if (one_in(2))
		*n = (*n + 7) & ~7u;
	if (*n > sectors)
		*n = sectors;
	switch (plan.pattern) {
	case 0: /* in order */
		*first = next + *n > sectors ? 0 : next;
		next = *first + *n;
		break;
	case 1: /* mostly a small part */
		*first = one_in(4) ? (uint32_t)draw(sectors - *n + 1)
				   : (uint32_t)draw((sectors - *n) / 8 + 1);
		break;
	default:
		*first = (uint32_t)draw(sectors - *n + 1);
	}
	if (one_in(2))
		*first &= ~7u;
}

static void do_write(struct life *l, uint32_t first, uint32_t n)
{
	struct iovec iov = {sim_memory_raw((size_t)n * SECTOR), (size_t)n * SECTOR};
	bool fua = one_in(16);
	uint32_t id = ++last_write;
	struct model_op *op;
	int r;

	model_fill(iov.iov_base, id, first, n);
	op = model_begin(l->session, id, first, n, NULL);
	sim_trace("write %u: %u sectors at %u%s", id, n, first, fua ? ", durable" : "");
	r = backend_writev(l->device, &iov, 1, (uint64_t)first * SECTOR, fua ? BACKEND_FUA : 0);
	answered(l, op, r, fua);
	sim_trace("write %u: %s", id, r ? strerror(-r) : "ok");
	if (r && !(r == -ENOSPC && first + n > l->volume->sectors))
		unexpected(l, "write", r);
	free(iov.iov_base);
}

/* A trim leaves parts of blocks alone, a zero does not. */
static void do_zeroes(struct life *l, uint32_t first, uint32_t n, bool trim)
{
	uint32_t block = l->volume->block_size ? 8 : 1, from = first, end = first + n;
	unsigned flags = one_in(16) ? BACKEND_FUA : 0;
	struct model_op *op;
	int r;

	if (l->volume->chunked && trim)
		block = (64 << 10) / SECTOR;
	if (trim) {
		from = (first + block - 1) / block * block;
		end = (first + n) / block * block;
	}
	op = model_begin(
		l->session, 0, from < end ? from : first, from < end ? end - from : 0, NULL);
	sim_trace("%s %u sectors at %u", trim ? "trim" : "zero", n, first);
	if (trim)
		r = backend_trim(l->device, (uint64_t)first * SECTOR, (uint64_t)n * SECTOR, flags);
	else
		r = backend_zero(l->device, (uint64_t)first * SECTOR, (uint64_t)n * SECTOR,
			flags | (one_in(2) ? BACKEND_MAY_TRIM : 0));
	answered(l, op, r, flags != 0);
	sim_trace("%s: %s", trim ? "trim" : "zero", r ? strerror(-r) : "ok");
	if (r && !(end > l->volume->sectors && (r == -ENOSPC || r == -EINVAL)))
		unexpected(l, trim ? "trim" : "zero", r);
}

static void do_flush(struct life *l)
{
	uint64_t call = model_tick();
	int r;

	sim_trace("flush");
	r = backend_flush(l->device);
	sim_trace("flush: %s", r ? strerror(-r) : "ok");
	runner_count(COUNT_flushes, 1);
	if (r == 0)
		promise(l, call, !l->session->logged, "a flush");
	else
		unexpected(l, "flush", r);
}

static void do_read(struct life *l, uint32_t first, uint32_t n)
{
	struct iovec iov = {sim_memory_raw((size_t)n * SECTOR), (size_t)n * SECTOR};
	uint64_t call = model_tick();
	int r;

	memset(iov.iov_base, 0xee, iov.iov_len);
	r = backend_readv(l->device, &iov, 1, (uint64_t)first * SECTOR);
	if (r && !(r == -EINVAL && first + n > l->volume->sectors))
		unexpected(l, "read", r);
	for (uint32_t i = 0; r == 0 && i < n; i++) {
		uint32_t id = model_read(
			(uint8_t *)iov.iov_base + (size_t)i * SECTOR, first + i, l->volume->name);

		if (!model_may_read(l->session, first + i, id, call))
			sim_fail("read", "%s: sector %u reads as %u at %" PRIu64, l->volume->name,
				first + i, id, call);
	}
	free(iov.iov_base);
}

static int on_extent(void *opaque, const struct backend_extent *extent)
{
	uint64_t *next = opaque;

	if (extent->offset != *next || !extent->length)
		sim_fail("extents", "they leave gaps");
	*next += extent->length;
	return 0;
}

static void do_extents(struct life *l, uint32_t first, uint32_t n)
{
	uint64_t next = (uint64_t)first * SECTOR;
	int r = backend_extents(
		l->device, (uint64_t)first * SECTOR, (uint64_t)n * SECTOR, 0, on_extent, &next);

	if (r == 0 && next < (uint64_t)(first + n) * SECTOR)
		sim_fail("extents", "they end too early");
	if (r && r != -EINVAL)
		unexpected(l, "extents", r);
}

static void operate(struct life *l)
{
	unsigned all = plan.weight_read + plan.weight_write + plan.weight_flush + plan.weight_trim +
		       plan.weight_zero;
	uint64_t which = draw(all + 1);
	uint32_t first, n;

	draw_range(l, &first, &n);
	runner_count(COUNT_operations, 1);
	if (which < plan.weight_read)
		do_read(l, first, n);
	else if ((which -= plan.weight_read) < plan.weight_write)
		do_write(l, first, n);
	else if ((which -= plan.weight_write) < plan.weight_flush)
		do_flush(l);
	else if ((which -= plan.weight_flush) < plan.weight_trim)
		do_zeroes(l, first, n, true);
	else if (which - plan.weight_trim < plan.weight_zero)
		do_zeroes(l, first, n, false);
	else
		do_extents(l, first, n);
}

void *client_main(void *opaque)
{
	struct life *l = opaque;

	while (l->ops && !l->told_failed) {
		l->ops--;
		operate(l);
		if (plan.think_ns)
			sim_sleep(sim_below(SIM_PLAN, plan.think_ns));
	}
	l->clients_running--;
	sim_wake_all(&l->changed);
	return NULL;
}

/* ---- what userblk-s3 does
 * -------------------------------------------------------------------------- */

/* What is not for clients is given up after a while, and may be asked for again. */
static bool may_give_up(const struct life *l)
{
	return may_fail(l) || store_troubled(l->asked_at);
}

/* Answers of check: damage, where nothing was damaged. */
static int on_line(void *opaque, const char *line)
{
	struct life *l = opaque;

	if (strncmp(line, "damage ", 7) == 0 && !(l->volume->writers > l->writer_number))
		sim_fail("damage", "%s: %s", l->volume->name, line);
	return 0;
}

static int ask(struct life *l, const char *format, const char *a, const char *b, const char *c)
{
	_Atomic bool stop = false;
	char request[128];
	int r;

	snprintf(request, sizeof request, format, a, b, c);
	l->asked_at = sim_now();
	sim_trace("%s: %s", l->volume->name, request);
	r = s3_control_perform((struct s3_volume *)l->device, request, &stop, on_line, l);
	sim_trace("%s: %s: %s", l->volume->name, request, r ? strerror(-r) : "ok");
	return r;
}

int ask_tool(struct life *l, const char *request, const char *name)
{
	return ask(l, "%s%s%s", request, *name ? " " : "", name);
}

void run_gc(struct life *l)
{
	int r = ask(l, "gc", "", "", "");

	runner_count(COUNT_collections, 1);
	/* What stands where an object belongs is its own. */
	if (r && (r == -EEXIST ? !may_fail(l) : !may_give_up(l)))
		sim_fail(
			"error", "gc of %s fails for no reason: %s", l->volume->name, strerror(-r));
}

void run_check(struct life *l)
{
	int r = ask(l, "check", "", "", "");

	runner_count(COUNT_verifies, 1);
	if (r && l->final)
		sim_fail("error", "check of %s fails for no reason: %s", l->volume->name,
			strerror(-r));
}

int run_snapshot(struct life *l, const char *name)
{
	struct volume *v = l->volume;
	struct snapshot *s = calloc(1, sizeof *s);
	bool maybe = snapshot_find(v, name) != NULL;
	int r;

	*s = (struct snapshot){.older = v->snapshots,
		.session = l->session,
		.call = model_tick(),
		.answer = MODEL_NEVER,
		.delete_call = MODEL_NEVER};
	snprintf(s->name, sizeof s->name, "%s", name);
	v->snapshots = s;
	r = ask(l, "snapshot-create %s", name, "", "");
	runner_count(COUNT_snapshots, r == 0);
	if (r == 0) {
		/* Whatever had that name is no longer there. */
		for (struct snapshot *x = s->older; x; x = x->older)
			x->gone |= strcmp(x->name, name) == 0;
		s->answer = model_tick();
		/* Somebody may have asked for its deletion meanwhile. */
		s->required = s->delete_call == MODEL_NEVER;
		promise(l, s->call, true, "a snapshot");
	} else if (r == -EEXIST && maybe) {
		s->gone = true;
	} else if (!may_give_up(l)) {
		sim_fail("error", "snapshot of %s fails for no reason: %s", v->name, strerror(-r));
	}
	return r;
}

int run_delete_snapshot(struct life *l, const char *name)
{
	struct volume *v = l->volume;
	struct snapshot *s = snapshot_find(v, name);
	bool clones = false, still = false;
	uint64_t call = model_tick();
	int r;

	for (struct snapshot *x = s; x; x = x->older)
		if (!x->gone && strcmp(x->name, name) == 0) {
			/* One before, of which nobody knows what came of it, may have done it. */
			if (x->delete_call == MODEL_NEVER)
				x->delete_call = call;
			x->required = false;
			clones |= x->clones > 0;
		}
	r = ask(l, "snapshot-delete %s", name, "", "");
	runner_count(COUNT_deletions, r == 0);
	for (struct snapshot *x = s; x; x = x->older)
		still |= !x->gone && strcmp(x->name, name) == 0 && x->clones > 0;
	if (r == 0 && clones && still)
		sim_fail("clone", "%s of %s was deleted, and had clones", name, v->name);
	/* The next open may have ended a deletion before, which was never answered. */
	if (r == -ENOENT && s && s->answer != MODEL_NEVER && s->delete_call == call && !may_fail(l))
		sim_fail("snapshot", "%s of %s is gone", name, v->name);
	if (r == 0 || (r == -ENOENT && !may_fail(l))) {
		for (struct snapshot *x = s; x; x = x->older)
			if (strcmp(x->name, name) == 0 && x->delete_call != MODEL_NEVER)
				x->gone = true;
	} else if (r == -EBUSY || r == -ENOENT) {
		/* It has done nothing; one that was overtaken may not know it. */
		for (struct snapshot *x = s; x; x = x->older)
			if (!x->gone && x->delete_call == call) {
				x->delete_call = MODEL_NEVER;
				x->required = x->answer != MODEL_NEVER;
			}
	} else if (!may_give_up(l) && r != -EBUSY) {
		sim_fail("error", "deletion of a snapshot of %s fails for no reason: %s", v->name,
			strerror(-r));
	}
	return r;
}

int run_clone(struct life *l, const char *name)
{
	struct volume *parent = l->volume, *v = &volumes[n_volumes];
	struct snapshot *s;
	int r;

	if (n_volumes == VOLUMES || parent->chunked)
		return 0;
	s = snapshot_learn(l, name);
	if (!s || s->delete_call != MODEL_NEVER || n_volumes == VOLUMES)
		return 0;
	v = &volumes[n_volumes++];
	*v = (struct volume){.capacity = parent->capacity,
		.sectors = s->sectors,
		.block_size = parent->block_size,
		.compress = parent->compress,
		.encrypted = parent->encrypted,
		.key = l->key,
		.keys_unsure = parent->keys_unsure || may_fail(l)};
	snprintf(v->name, sizeof v->name, "v%u", n_volumes - 1);
	v->current = model_session_new(v->capacity, NULL);
	memcpy(v->current->base, s->contents, v->capacity * sizeof *s->contents);
	v->current->based = true;
	v->origin = s;
	r = ask(l, "clone %s %s %s", name, PREFIX, v->name);
	runner_count(COUNT_clones, r == 0);
	if (r == 0) {
		v->exists = true;
		s->clones++;
	}
	/* A snapshot whose creation was cut short shows only after a root of the next writer. */
	if (r == -EBUSY && s->answer == MODEL_NEVER)
		return r;
	if (r && !may_give_up(l) && r != -ENOENT)
		sim_fail(
			"error", "clone of %s fails for no reason: %s", parent->name, strerror(-r));
	return r;
}

int run_rollback(struct life *l, const char *name)
{
	struct volume *v = l->volume;
	struct snapshot *s = snapshot_learn(l, name);
	struct model_op *op;
	uint32_t before = v->sectors;
	int r;

	if (!s)
		return 0;
	/* It keeps its size, but for one that is smaller than the snapshot's. */
	v->sectors = s->sectors > before ? 0 : before;
	op = model_begin(l->session, 0, 0, v->capacity, s->contents);
	r = ask(l, "snapshot-rollback %s", name, "", "");
	answered(l, op, r, false);
	runner_count(COUNT_rollbacks, r == 0);
	if (r == 0) {
		promise(l, op->answer + 1, true, "a rollback");
		v->sectors = device_sectors(l->device);
	} else if (!may_give_up(l) && r != -EBUSY) {
		sim_fail("error", "rollback of %s fails for no reason: %s", v->name, strerror(-r));
	}
	return r;
}

static void run_resize(struct life *l)
{
	struct volume *v = l->volume;
	uint32_t before = v->sectors, wanted = (uint32_t)draw(v->capacity / 8) * 8 + 8;
	char bytes[32];
	int r;

	if (!before || wanted * (uint64_t)SECTOR < (1 << 20))
		return;
	/* What is cut off must be empty, which it seldom is by itself. */
	if (wanted < before && !one_in(4))
		do_zeroes(l, wanted, before - wanted, true);
	snprintf(bytes, sizeof bytes, "%" PRIu64, (uint64_t)wanted * SECTOR);
	v->sectors = 0; /* for those who look meanwhile */
	r = ask(l, "resize %s", bytes, "", "");
	runner_count(COUNT_resizes, r == 0);
	/* The answer of one that may have been overtaken says nothing about the volume. */
	if (r == 0)
		v->sectors = may_fail(l) ? 0 : wanted;
	else if (r == -ENOTEMPTY || r == -EINVAL)
		v->sectors = may_fail(l) ? 0 : before;
	else if (!may_give_up(l))
		sim_fail("error", "resize of %s fails for no reason: %s", v->name, strerror(-r));
}

/* Another key; whose request ends without an answer does not know which one there is. */
static void run_rekey(struct life *l)
{
	struct volume *v = l->volume;
	unsigned key = (l->key + 1 + (unsigned)draw(KEYS - 1)) % KEYS;
	bool unsure = v->keys_unsure;
	char digits[65];
	int r;

	v->keys_unsure = true; /* for those who look meanwhile */
	key_digits(key, digits);
	r = ask(l, "rekey %s", digits, "", "");
	runner_count(COUNT_rekeys, r == 0);
	if (r == 0) {
		l->key = v->key = key;
		v->keys_unsure = may_fail(l);
	} else if (r == -EACCES ? !may_fail(l) && !unsure : !may_give_up(l)) {
		sim_fail("error", "rekey of %s fails for no reason: %s", v->name, strerror(-r));
	}
}

static void name_of(char name[8])
{
	snprintf(name, 8, "s%u", (unsigned)draw(SNAPSHOTS));
}

void *tool_main(void *opaque)
{
	struct life *l = opaque;
	unsigned least = (unsigned)draw(6);
	char name[8];

	/* Some, although the other clients have gone. */
	for (unsigned i = 0; (i < least || l->clients_running > 1) && !l->told_failed; i++) {
		sim_sleep(sim_log_between(SIM_PLAN, 10000, SIM_SECOND));
		name_of(name);
		if (one_in(15)) {
			l->aborted = true;
			runner_count(COUNT_aborts, 1);
			ask(l, "abort", "", "", "");
		}
		switch (draw(sim_with(SIM_CLONE) ? 10 : 8)) {
		case 0:
		case 1:
			run_gc(l);
			break;
		case 2:
			run_check(l);
			break;
		case 3:
		case 4:
			run_snapshot(l, name);
			break;
		case 5:
		case 6:
			run_delete_snapshot(l, name);
			break;
		case 7:
			if (l->volume->encrypted && one_in(2))
				run_rekey(l);
			else
				run_resize(l);
			break;
		default:
			run_clone(l, name);
		}
	}
	l->clients_running--;
	sim_wake_all(&l->changed);
	return NULL;
}
