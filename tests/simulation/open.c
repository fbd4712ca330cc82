/* SPDX-License-Identifier: BSD-3-Clause */
/* How volumes are opened, and what has to be found. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/params.h"
#include "backends/s3/admin/delete.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/log/writeback_file.h"
#include "tests/simulation/actors.h"
#include "tests/simulation/runner.h"
#include "tests/simulation/store.h"

#define READ_BYTES (256u << 10)

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

/* ---- what the device tells ------------------------------------------------------------------- */

static void on_error(void *opaque, const char *message)
{
	static const char *const alarming[] = {"restore", "damaged", "backup", "is missing"};
	struct life *l = opaque;

	sim_trace("error: %s", message);
	/* Lossy, or what said whose it is was not synced by a disk that fails to. */
	l->volume->log_is_void |= strstr(message, "is older than what volume") &&
				  (l->volume->lossy || plan.failing_disk);
	/* It was shut down in an outage. */
	l->aborted |= strstr(message, "close-timeout=") != NULL;
	l->told_in_use |= strstr(message, "use --take-over with userblk-s3") != NULL;
	/* A disk that does not sync loses both states in a crash; what was flushed is in the store.
	 */
	if (plan.failing_disk && strstr(message, "has a damaged record of its owner")) {
		l->volume->log_is_void = true;
		return;
	}
	if (plan.failing_disk && strstr(message, "replace the disk"))
		return;
	/* One that only reads may come too late for what it reads; so may a writer overtaken. */
	if (l->role == READER || l->volume->writers > l->writer_number || l->volume->lossy)
		return;
	for (unsigned i = 0; i < sizeof alarming / sizeof *alarming; i++)
		if (strstr(message, alarming[i]) && !strstr(message, "if it is damaged"))
			sim_fail("alarm", "nothing was damaged, but the message to the user is: %s",
				message);
}

bool request_may_fail(const struct life *l)
{
	const struct volume *v = l->volume;

	/* Another one, even a dead one, whose fence may be on its way. */
	return l->aborted || v->writers > l->writer_number || l->contended || v->removers ||
	       plan.retry_deadline || plan.full || plan.few_threads;
}

bool may_fail(const struct life *l)
{
	return request_may_fail(l) || plan.failing_disk;
}

/* ---- parameters
 * ---------------------------------------------------------------------------------- */

static void set(struct params *p, const char *key, const char *value)
{
	struct params_error error;

	if (params_set(p, key, value, &error))
		sim_fail("simulation", "%s", error.text);
}

static void set_number(struct params *p, const char *key, uint64_t value)
{
	char text[32];

	snprintf(text, sizeof text, "%" PRIu64, value);
	set(p, key, text);
}

/*
 * Sizes below what the parameter table takes, so that a small volume goes through all that a large
 * one does: their proportions are those that it takes.
 */
static void draw_sizes(struct s3_config *c, const struct life *l)
{
	static const uint64_t batches[] = {16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10};
	bool change = sim_with(SIM_PARAMETERS);
	struct volume *v = l->volume;
	uint64_t buffers, least, larger;

	c->batch_size = change ? batches[draw(5)] : batches[2];
	if (plan.heavy && change)
		c->batch_size = batches[4 * (v->writers % 2)];
	c->uploads = change ? 1 + draw(one_in(3) ? 16 : 4) : 4;
	buffers = (c->uploads + 2) * c->batch_size;
	least = (v->compress || v->encrypted ? 4 : 2) * buffers + (512 << 10);
	c->memory = change ? sim_log_between(SIM_PLAN, least, least * 4) : 2 * least;
	if (v->chunked)
		c->memory += 8 << 20;
	c->checkpoint = change ? sim_log_between(SIM_PLAN, 4, 64) : 8;
	c->gc_delay = change ? draw(2) * draw(10) : 0;
	c->store.connections = change ? sim_log_between(SIM_PLAN, 2, 64) : 32;
	c->cache_size = c->cache_file ? 2 << 20 : 0;
	if (!c->write_back)
		return;
	/* Another opener may have drawn the size that it has now. */
	if (one_in(2) && change && !l->contended) {
		larger = sim_file_extend(c->write_back, 4096 * (1 + draw(512)));
		v->log_bytes = larger ? larger : v->log_bytes;
	}
	c->write_back_size = v->log_bytes;
}

/* ---- opening
 * ------------------------------------------------------------------------------------------ */

void key_digits(unsigned key, char digits[65])
{
	memset(digits, '1' + (int)key, 64);
	digits[64] = 0;
}

/* The file with key number key. */
static void give_key(struct params *p, unsigned key)
{
	char path[16], digits[65];
	uint8_t bytes[32];

	snprintf(path, sizeof path, "/sim/key%u", key);
	key_digits(key, digits);
	memset(bytes, (digits[0] - '0') * 0x11, sizeof bytes);
	sim_file_make(path, bytes, sizeof bytes);
	set(p, "encryption-key", path);
}

static int open_with(
	struct life *l, unsigned key, const char *snapshot, bool create, struct backend **out)
{
	struct volume *v = l->volume;
	struct params *p = params_new(&s3_backend);
	struct backend_host host = {.opaque = l, .error = on_error};
	bool readonly = l->role == READER || snapshot;
	struct params_error error;
	struct s3_config *c;
	uint64_t began, memory;
	int r;

	set(p, "volume", v->name);
	set(p, "prefix", PREFIX);
	set(p, "endpoint", "http://simulation");
	set(p, "bucket", "bucket");
	if (create) {
		set(p, "create", "on");
		set_number(p, "size", (uint64_t)v->sectors * SECTOR);
		set(p, "block-size", v->block_size ? "4096" : "512");
		if (v->compress)
			set(p, "compress", "zstd");
		if (v->chunked)
			set(p, "layout", "direct");
		if (v->chunked)
			set(p, "chunk-size", "64K");
	}
	if (v->encrypted)
		give_key(p, key);
	if (snapshot)
		set(p, "snapshot", snapshot);
	else if (readonly)
		set(p, "readonly", "on");
	if (l->write_back)
		set(p, "write-back", v->write_back);
	if (l->discard)
		set(p, "write-back-discard", "on");
	if (l->weak)
		set(p, "flush", "weak");
	if (!plan.tune && !readonly && !v->encrypted && !v->chunked && drawn(SIM_CACHEFILE, 4)) {
		set(p, "cache-file", "/sim/cache");
		runner_count(COUNT_cache_files, 1);
	}
	if (params_complete(p, false, &error))
		sim_fail("simulation", "%s", error.text);
	c = (struct s3_config *)(uintptr_t)params_config(p);
	draw_sizes(c, l);
	if (plan.tune)
		plan.tune(c);
	c->store.retry_deadline = plan.retry_deadline;
	sim_trace("%s %s%s%s batch-size=%" PRIu64 " uploads=%" PRIu64 " memory=%" PRIu64
		  " checkpoint=%" PRIu64 " gc-delay=%" PRIu64 " connections=%" PRIu64 "%s%s%s%s",
		create ? "create" : "open", v->name, snapshot ? " snapshot=" : "",
		snapshot ? snapshot : "", c->batch_size, c->uploads, c->memory, c->checkpoint,
		c->gc_delay, c->store.connections, readonly ? " readonly" : "",
		l->write_back ? " write-back" : "", l->discard ? " discard" : "",
		l->weak ? " flush=weak" : "");
	v->maybe_logged |= l->write_back;
	runner_count(COUNT_write_backs, l->write_back);
	runner_count(COUNT_transformed, v->compress || v->encrypted);
	runner_count(COUNT_direct, v->chunked);
	began = sim_now();
	/* Headers, twice, for each batch; map, tables, requests; an object that is checked. */
	memory = c->memory + (c->uploads + 2) * (400 << 10) + (4 << 20);
	sim_self()->memory_limit += memory;
	r = backend_open(p, 0, &host, out);
	if (r)
		sim_self()->memory_limit -= memory;
	sim_trace("opened %s: %s", v->name, r ? strerror(-r) : "ok");
	/* A request of an open has 20 s; there are some dozens at most that follow each other. */
	if (l->final && sim_now() - began > 300 * SIM_SECOND)
		sim_fail("slow", "an open took %.1f s", (double)(sim_now() - began) / 1e9);
	runner_count(COUNT_opens, 1);
	if (!snapshot)
		l->params = p;
	/* A process gave up what it held, and was killed: it must be removed. */
	if (v->log_is_void)
		snprintf(v->write_back, sizeof v->write_back, "/sim/log%u", v->writers);
	if (r && v->log_is_void) {
		v->log_is_void = false;
		return open_with(l, key, snapshot, create, out);
	}
	if (!snapshot)
		l->key = key;
	if (r) {
		runner_count(COUNT_failed_opens, 1);
		return r;
	}
	if (readonly)
		return 0;
	if (((struct s3_volume *)*out)->writeback)
		runner_count(COUNT_replayed_entries,
			((struct s3_volume *)*out)->writeback->counters.replayed);
	backend_start(*out);
	return 0;
}

/* With the key that it has; a process that does not know which one tries one after the other. */
int life_open(struct life *l, const char *snapshot, bool create, struct backend **out)
{
	struct volume *v = l->volume;
	unsigned first = v->key;
	int r = open_with(l, first, snapshot, create, out);

	for (unsigned i = 1; r == -EACCES && v->keys_unsure && i < KEYS; i++)
		r = open_with(l, (first + i) % KEYS, snapshot, create, out);
	if (r == -EACCES && !may_fail(l))
		sim_fail("key", "%s cannot be opened with any key that it was given", v->name);
	return r;
}

void life_notes_end(struct life *l, struct s3_removal *removal)
{
	struct s3_volume *open = (struct s3_volume *)l->device;

	open->before_change_opaque = removal;
	open->when_closed = s3_volume_note_end;
}

uint32_t device_sectors(struct backend *b)
{
	struct backend_info info;

	backend_info(b, &info);
	return (uint32_t)(info.size / SECTOR);
}

int read_all(struct backend *b, uint32_t *out, uint32_t n, const char *where)
{
	uint8_t *data = malloc(READ_BYTES);
	int r = 0;

	if (!data)
		abort();
	for (uint32_t first = 0; r == 0 && first < n; first += READ_BYTES / SECTOR) {
		uint32_t count = n - first < READ_BYTES / SECTOR ? n - first : READ_BYTES / SECTOR;
		struct iovec iov = {data, (size_t)count * SECTOR};

		r = backend_readv(b, &iov, 1, (uint64_t)first * SECTOR);
		for (uint32_t i = 0; r == 0 && i < count; i++)
			out[first + i] = model_read(data + (size_t)i * SECTOR, first + i, where);
	}
	free(data);
	return r;
}

/* ---- what has to be there
 * --------------------------------------------------------------------------------- */

static void describe(const struct model_session *s, uint32_t sector, char *text, size_t room)
{
	size_t n = (size_t)snprintf(text, room, "it had %u;", s->base[sector]);

	for (const struct model_node *x = s->nodes[sector]; x && n + 60 < room; x = x->older)
		n += (size_t)snprintf(text + n, room - n,
			" %u called %" PRIu64 " answered %" PRId64 "%s,",
			x->op->contents ? x->op->contents[sector] : x->op->id, x->op->call,
			(int64_t)x->op->answer, x->op->durable ? " durable" : "");
}

int establish(struct life *l)
{
	struct volume *v = l->volume;
	struct s3_volume *engine = (struct s3_volume *)l->device;
	struct model_session *old, *s;
	uint32_t *seen = calloc(v->capacity, sizeof *seen), bad;
	const char *why;
	bool prefix;
	int r;

	if (!seen)
		abort();
	l->sectors = device_sectors(l->device);
	if (l->sectors > v->capacity || (v->sectors && l->sectors != v->sectors && !may_fail(l)))
		sim_fail("size", "%s has %u sectors, not %u", v->name, l->sectors, v->sectors);
	r = read_all(l->device, seen, l->sectors, v->name);
	if (r) {
		if (!request_may_fail(l))
			sim_fail("read", "%s cannot be read: %s", v->name, strerror(-r));
		free(seen);
		return r;
	}
	runner_count(COUNT_checks, 1);
	/* The newest writer before this one that knows what it found. */
	for (old = v->current; old->epoch >= engine->epoch && old->older; old = old->older)
		;
	old->given_up = old->logged && (l->discard || v->lossy);
	prefix = model_is_prefix(old, seen, v->capacity,
		old->weak		      ? 0
		: l->discard || old->given_up ? old->stored
					      : old->floor,
		MODEL_NEVER, v->chunked, &bad, &why);
	/*
	 * It may be there again, though: an opener that had begun before it was given up replays
	 * it, until the one who gave it up has flushed.
	 */
	for (const struct model_session *o = old; !prefix && v->lossy && o->older && !o->stored;
		o = o->older) {
		uint32_t other;
		const char *reason;

		prefix = model_is_prefix(o->older, seen, v->capacity, o->older->stored, MODEL_NEVER,
			v->chunked, &other, &reason);
	}
	if (!prefix) {
		char text[400];

		describe(old, bad, text, sizeof text);
		sim_fail("contents",
			"%s: sector %u holds %u, which %s (%s flush called %" PRIu64 ")", v->name,
			bad, seen[bad], why, text, old->floor);
	}
	s = model_session_new(v->capacity, NULL);
	memcpy(s->base, seen, v->capacity * sizeof *seen);
	s->epoch = engine->epoch;
	s->based = true;
	s->weak = l->weak;
	s->logged = l->write_back;
	l->session = s;
	if (v->current == old) {
		unsigned lost = model_supersede(old, seen, v->capacity);

		runner_count(COUNT_lost_writes, lost);
		sim_trace("%s: epoch %" PRIu64 " follows %" PRIu64 ", %u operations are lost",
			v->name, s->epoch, old->epoch, lost);
		s->older = old;
		v->current = s;
		/* One who took over beside a resize may know the size before it. */
		if (!v->sectors && !may_fail(l))
			v->sectors = l->sectors;
	} else {
		/* Overtaken while it read: nothing that it writes will last. */
		s->older = old;
		s->superseded = true;
	}
	free(seen);
	l->opened_at = model_tick();
	return 0;
}

/* ---- snapshots
 * ------------------------------------------------------------------------------------------------
 */

struct snapshot *snapshot_find(struct volume *v, const char *name)
{
	struct snapshot *s = v->snapshots;

	while (s && (s->gone || strcmp(s->name, name) != 0))
		s = s->older;
	return s;
}

/* The end of its creation, for the model: one that was never answered ended somewhere. */
static uint64_t end_of(const struct snapshot *s)
{
	return s->answer == MODEL_NEVER ? MODEL_NEVER - 1 : s->answer;
}

/* Is seen what it may hold? */
static bool fits(const struct volume *v, const struct snapshot *s, const uint32_t *seen)
{
	const char *why;
	uint32_t bad;

	if (s->contents)
		return memcmp(s->contents, seen, v->capacity * sizeof *seen) == 0;
	return model_is_prefix(
		s->session, seen, v->capacity, s->call, end_of(s), false, &bad, &why);
}

void snapshot_check(struct volume *v, const char *name, const uint32_t *seen, uint32_t sectors)
{
	struct snapshot *newest = snapshot_find(v, name);

	/* One of a name of which it is not known which of them is there. */
	for (struct snapshot *s = newest; s; s = s->older) {
		if (s->gone || strcmp(s->name, name) != 0 || !fits(v, s, seen))
			continue;
		if (!s->contents) {
			s->contents = calloc(v->capacity, sizeof *seen);
			memcpy(s->contents, seen, v->capacity * sizeof *seen);
			s->sectors = sectors;
		}
		return;
	}
	for (uint32_t i = 0; newest && newest->contents && i < v->capacity; i++)
		if (newest->contents[i] != seen[i])
			sim_fail("snapshot", "%s of %s: sector %u holds %u, and held %u", name,
				v->name, i, seen[i], newest->contents[i]);
	if (newest) {
		const char *why = "?";
		uint32_t bad = 0;
		char text[400];

		model_is_prefix(newest->session, seen, v->capacity, newest->call, end_of(newest),
			false, &bad, &why);
		describe(newest->session, bad, text, sizeof text);
		sim_fail("snapshot",
			"%s of %s, called %" PRIu64 " answered %" PRId64
			": sector %u holds %u, which %s (%s)",
			name, v->name, newest->call, (int64_t)newest->answer, bad, seen[bad], why,
			text);
	}
	sim_fail("snapshot", "%s of %s is there, and nobody has made it", name, v->name);
}

struct snapshot *snapshot_learn(struct life *l, const char *name)
{
	struct volume *v = l->volume;
	struct snapshot *s = snapshot_find(v, name);
	uint64_t limit = sim_self()->memory_limit;
	enum role role = l->role;
	uint32_t *seen, sectors;
	struct backend *b;
	int r;

	if (!s)
		return NULL;
	l->role = READER;
	r = life_open(l, name, false, &b);
	l->role = role;
	if (r) {
		if (r == -ENOENT && l->final && s->required && !s->gone)
			sim_fail("snapshot", "%s of %s cannot be opened", name, v->name);
		return NULL;
	}
	seen = calloc(v->capacity, sizeof *seen);
	sectors = device_sectors(b);
	if (sectors > v->capacity)
		sim_fail("size", "a snapshot of %u sectors", sectors);
	r = read_all(b, seen, sectors, name);
	backend_close(b);
	sim_self()->memory_limit = limit;
	/* Deleted or made again while it was read: which, cannot be known. */
	if (r == 0 && snapshot_find(v, name) == s && s->delete_call == MODEL_NEVER)
		snapshot_check(v, name, seen, sectors);
	else if (r && l->final && s->required)
		sim_fail("snapshot", "%s of %s cannot be read: %s", name, v->name, strerror(-r));
	free(seen);
	return s->contents && !s->gone ? s : NULL;
}

int snapshots_compare(struct life *l)
{
	struct volume *v = l->volume;
	struct s3_snapshot_info *list;
	uint64_t before = model_tick();
	size_t n;
	int r;

	/* A writer that lost the volume does not know the newest. */
	if (v->chunked || (!l->final && (l->contended || v->writers > l->writer_number)))
		return 0;
	r = s3_snapshot_list((struct s3_volume *)l->device, &list, &n);
	if (r)
		return r;
	for (struct snapshot *s = v->snapshots; s; s = s->older) {
		bool there = false;

		for (size_t i = 0; i < n; i++)
			there |= strcmp(list[i].name, s->name) == 0;
		if (s->gone)
			continue;
		if (!there && s->required && s->answer < before && s->delete_call == MODEL_NEVER)
			sim_fail("snapshot", "%s of %s is gone", s->name, v->name);
	}
	for (size_t i = 0; i < n; i++)
		if (!snapshot_find(v, list[i].name))
			sim_fail("snapshot", "%s of %s is there, and should not", list[i].name,
				v->name);
	free(list);
	return 0;
}
