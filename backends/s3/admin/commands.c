/* SPDX-License-Identifier: BSD-3-Clause */
/* The commands of the control socket: questions to an open volume, and orders. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include "backends/backend.h"
#include "backends/s3/admin/control.h"
#include "backends/s3/admin/internal.h"
#include "backends/s3/admin/verify.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/lifecycle/lifecycle.h"
#include "backends/s3/log/log.h"
#include "backends/s3/recovery/recovery.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

/* More counters than there are. */
#define MAX_COUNTERS 128

/* Nanoseconds between two lines of progress. */
#define PROGRESS_NS UINT64_C(100000000)

/* ---- answers ---------------------------------------------------------------------- */

static void say(struct s3_call *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(struct s3_call *c, const char *format, ...)
{
	char text[S3_CONTROL_LINE_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text - 1, format, args);
	va_end(args);
	if (c->line(c->opaque, text) < 0)
		atomic_store(&c->cancel, true);
}

/* JSON (RFC 8259): a string, cut to what room holds. */
static const char *quoted(const char *text, char *out, size_t room)
{
	size_t n = 0;

	out[n++] = '"';
	for (; *text && n + 8 < room; text++) {
		unsigned char byte = (unsigned char)*text;

		if (byte == '"' || byte == '\\') {
			out[n++] = '\\';
			out[n++] = (char)byte;
		} else if (byte < 0x20) {
			n += (size_t)sprintf(out + n, "\\u%04x", byte);
		} else {
			out[n++] = (char)byte;
		}
	}
	out[n++] = '"';
	out[n] = 0;
	return out;
}

static void say_text(struct s3_call *c, const char *name, const char *text)
{
	char value[S3_KEY_MAX + 16];

	say(c, "%s %s", name, quoted(text, value, sizeof value));
}

static void say_number(struct s3_call *c, const char *name, uint64_t value)
{
	say(c, "%s %" PRIu64, name, value);
}

static void say_bool(struct s3_call *c, const char *name, bool value)
{
	say(c, "%s %s", name, value ? "true" : "false");
}

static void say_uuid(struct s3_call *c, const char *name, const uint8_t *uuid)
{
	char text[2 * S3_UUID + 1];

	for (int i = 0; i < S3_UUID; i++)
		sprintf(text + 2 * i, "%02x", uuid[i]);
	say_text(c, name, text);
}

static void progress(void *opaque, uint64_t done, uint64_t total)
{
	struct s3_call *c = opaque;
	uint64_t now = s3_now();

	if (c->stop && atomic_load(c->stop))
		atomic_store(&c->cancel, true);
	if (done < total && now - c->reported < PROGRESS_NS)
		return;
	c->reported = now;
	say(c, "progress [%" PRIu64 ", %" PRIu64 "]", done, total);
}

/* ---- info --------------------------------------------------------------------------- */

/* What only the log has. */
static void say_log(struct s3_call *c)
{
	struct s3_volume *v = c->v;
	struct s3_objects_totals totals;
	uint64_t applied, frontier, checkpoint;

	pthread_mutex_lock(&v->lock);
	applied = v->applied;
	frontier = v->frontier;
	checkpoint = v->checkpoint;
	pthread_mutex_unlock(&v->lock);
	s3_objects_totals(v->objects, &totals);
	if (v->backend.readonly)
		say_bool(c, "was_closed", s3_closed_cleanly(v));
	if (v->last_time)
		say_number(c, "last_log_time", v->last_time / 1000000);
	say_number(c, "epoch", v->epoch);
	say_number(c, "log_end", applied);
	say_number(c, "log_durable", frontier);
	say_number(c, "checkpoint", checkpoint);
	say_number(c, "mapped_bytes", s3_map_mapped(v->map) << v->shift);
	say_number(c, "stored_bytes", totals.bytes);
	say_number(c, "objects", totals.objects);
}

static int info(struct s3_call *c)
{
	struct s3_volume *v = c->v;
	const struct s3_super *super = &v->super;

	say_text(c, "volume", v->name);
	say(c, "keys \"%s\"", v->base);
	say_uuid(c, "uuid", super->uuid);
	say_text(c, "layout", v->layout->name);
	say_number(c, "size_bytes", s3_volume_size(v));
	say_number(c, "block_bytes", v->block_size);
	say_bool(c, "compressed", super->features & S3_FEATURE_ZSTD);
	say_bool(c, "encrypted", super->features & S3_FEATURE_AES);
	say_number(c, "created_time", super->created);
	if (super->n_parents) {
		say_text(c, "parent", super->parents[0].path);
		say_text(c, "parent_snapshot", super->parents[0].snapshot);
	}
	if (v->control) /* by a server; without one, this program has opened it */
		say_bool(c, "readonly", v->backend.readonly);
	say_bool(c, "write_back", memcmp(super->write_back, (uint8_t[S3_UUID]){0}, S3_UUID) != 0);
	if (v->layout->has_log)
		say_log(c);
	return 0;
}

/* ---- stats -------------------------------------------------------------------------- */

/* An estimate: within an entry of the histogram times are taken as evenly spread. */
static uint64_t percentile(const struct s3_op_counters *o, unsigned percent)
{
	uint64_t total = 0, before = 0, wanted, max = o->max_ns / 1000;

	for (int i = 0; i < 32; i++)
		total += o->histogram[i];
	wanted = (total * percent + 99) / 100;
	for (int i = 0; i < 32 && wanted; i++) {
		uint64_t low = i ? UINT64_C(1) << (i - 1) : 0, high = UINT64_C(1) << i, value;

		if (before + o->histogram[i] < wanted) {
			before += o->histogram[i];
			continue;
		}
		value = low + (high - low) * (wanted - before) / o->histogram[i];
		return value < max ? value : max;
	}
	return 0;
}

/* What store and device have in common. kind: "store_put". */
static void say_requests(struct s3_call *c, const char *kind, const struct s3_op_counters *o)
{
	static const unsigned percents[] = {50, 90, 99};

	say(c, "%s_requests %" PRIu64, kind, o->requests);
	say(c, "%s_errors %" PRIu64, kind, o->errors);
	say(c, "%s_mean_us %" PRIu64, kind, o->requests ? o->busy_ns / o->requests / 1000 : 0);
	for (size_t i = 0; i < sizeof percents / sizeof percents[0]; i++)
		say(c, "%s_p%u_us %" PRIu64, kind, percents[i], percentile(o, percents[i]));
	say(c, "%s_max_us %" PRIu64, kind, o->max_ns / 1000);
}

static void say_device(struct s3_call *c)
{
	static const char *const kinds[] = {
		[BACKEND_READ] = "device_read",
		[BACKEND_WRITE] = "device_write",
		[BACKEND_FLUSH] = "device_flush",
		[BACKEND_TRIM] = "device_trim",
		[BACKEND_ZERO] = "device_zero",
	};

	for (size_t op = 0; op < sizeof kinds / sizeof kinds[0]; op++) {
		struct s3_device_counters *d = &c->v->stats.device[op];
		struct s3_op_counters o = {
			.requests = d->requests,
			.errors = d->errors,
			.busy_ns = d->busy_ns,
			.max_ns = d->max_ns,
		};

		for (int i = 0; i < 32; i++)
			o.histogram[i] = d->histogram[i];
		say_requests(c, kinds[op], &o);
		if (op != BACKEND_FLUSH)
			say(c, "%s_bytes %" PRIu64, kinds[op], (uint64_t)d->bytes);
	}
}

static void say_store(struct s3_call *c)
{
	static const char *const kinds[S3_OPS] = {
		[S3_GET] = "store_get",
		[S3_HEAD] = "store_head",
		[S3_PUT] = "store_put",
		[S3_DELETE] = "store_delete",
		[S3_DELETE_MANY] = "store_delete_many",
		[S3_LIST] = "store_list",
	};
	struct s3_store_counters all;

	s3_store_counters(c->v->store, &all);
	for (int op = 0; op < S3_OPS; op++) {
		say_requests(c, kinds[op], &all.ops[op]);
		say(c, "%s_retries %" PRIu64, kinds[op], all.ops[op].retries);
		say(c, "%s_sent_bytes %" PRIu64, kinds[op], all.ops[op].sent);
		say(c, "%s_received_bytes %" PRIu64, kinds[op], all.ops[op].received);
	}
	say_number(c, "store_get_hedges", all.hedges);
	say_number(c, "store_get_hedges_won", all.hedges_won);
	say_number(c, "store_connections", all.connections);
	say_number(c, "store_in_flight", all.in_flight);
}

static void say_lag(struct s3_call *c)
{
	uint64_t now = s3_now();
	struct s3_lag lag;

	s3_log_lag(c->v, &lag);
	say_number(c, "lag_objects", lag.objects);
	say_number(c, "lag_bytes", lag.bytes);
	say_number(c, "lag_us", lag.oldest && now > lag.oldest ? (now - lag.oldest) / 1000 : 0);
}

static void say_garbage(struct s3_call *c)
{
	struct s3_volume *v = c->v;
	struct s3_objects_totals t;
	uint64_t used;

	s3_objects_totals(v->objects, &t);
	used = (t.live + t.held) << v->shift;
	say_number(c, "live_bytes", t.live << v->shift);
	say_number(c, "dead_objects", t.dead);
	say_number(c, "dead_bytes", t.dead_bytes);
	say_number(c, "garbage_bytes",
		t.blocks > t.live + t.held ? (t.blocks - t.live - t.held) << v->shift : 0);
	say_number(c, "small_objects", t.small);
	say(c, "space_amplification %.3f", used ? (double)t.bytes / (double)used : 0.0);
}

static int stats(struct s3_call *c)
{
	struct s3_volume *v = c->v;
	struct backend_counter counters[MAX_COUNTERS];
	size_t n = s3_volume_counters(v, counters, MAX_COUNTERS);

	say_text(c, "volume", v->name);
	say(c, "uptime_seconds %.3f", (double)(s3_now() - v->opened) / 1e9);
	say_bool(c, "failed", atomic_load(&v->failed) != 0);
	say_bool(c, "fenced", atomic_load(&v->fenced));
	say_device(c);
	say_store(c);
	if (v->layout->has_log) {
		say_lag(c);
		say_garbage(c);
	}
	for (size_t i = 0; i < n && i < MAX_COUNTERS; i++)
		say_number(c, counters[i].name, counters[i].value);
	return 0;
}

/* ---- check -------------------------------------------------------------------------- */

static void damage(void *opaque, const struct s3_damage *d)
{
	char key[S3_KEY_MAX + 16], reason[256];

	say(opaque, "damage [%" PRIu64 ", %" PRIu64 ", %s, %s]", d->offset, d->length,
		quoted(d->key, key, sizeof key), quoted(d->reason, reason, sizeof reason));
}

static int check(struct s3_call *c)
{
	struct s3_verify verify = {
		.progress = progress,
		.damage = damage,
		.opaque = c,
		.stop = &c->cancel,
	};
	int r = s3_verify(c->v, &verify);

	if (r)
		return r;
	say_number(c, "objects", verify.objects);
	say_number(c, "checked_bytes", verify.bytes);
	say_number(c, "damaged_objects", verify.damaged_objects);
	say_number(c, "damaged_bytes", verify.damaged_bytes);
	return 0;
}

/* ---- snapshots, clones, size, garbage ------------------------------------------------- */

static int snapshot_list(struct s3_call *c)
{
	struct s3_snapshot_info *list;
	size_t n;
	int r = s3_snapshot_list(c->v, &list, &n);

	if (r)
		return r;
	for (size_t i = 0; i < n; i++)
		say(c, "snapshot [\"%s\", %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu32 "]",
			list[i].name, list[i].seq, list[i].time, list[i].blocks << c->v->shift,
			list[i].children);
	free(list);
	return 0;
}

static int may_create(struct s3_call *c)
{
	return s3_snapshot_may_create(c->v, c->words[1]);
}

static int may_delete(struct s3_call *c)
{
	return s3_snapshot_may_delete(c->v, c->words[1]);
}

static int may_roll_back(struct s3_call *c)
{
	return s3_snapshot_may_rollback(c->v, c->words[1]);
}

static int snapshot_create(struct s3_call *c)
{
	return s3_snapshot_create(c->v, c->words[1]);
}

static int snapshot_delete(struct s3_call *c)
{
	return s3_snapshot_delete(c->v, c->words[1]);
}

static int snapshot_rollback(struct s3_call *c)
{
	if (c->v->control)
		return s3_volume_refuse(c->v, -EBUSY,
			"volume=%s: is being served, and would change under its users; stop the "
			"server first",
			c->v->name);
	return s3_snapshot_rollback(c->v, c->words[1]);
}

static int make_clone(struct s3_call *c)
{
	return s3_volume_clone(c->v, c->words[1], c->words[2], c->words[3]);
}

static int parse_size(struct s3_call *c, uint64_t *size)
{
	char *end;

	errno = 0;
	*size = strtoull(c->words[1], &end, 10);
	if (errno || *end || c->words[1][0] == '-')
		return s3_volume_refuse(c->v, -EINVAL, "%s: not a number of bytes", c->words[1]);
	return 0;
}

static int may_resize(struct s3_call *c)
{
	uint64_t size;
	int r = parse_size(c, &size);

	return r ? r : s3_volume_may_resize(c->v, size);
}

static int resize(struct s3_call *c)
{
	uint64_t size;
	int r = parse_size(c, &size);

	if (r == 0)
		r = s3_volume_resize(c->v, size);
	if (r == 0)
		say_number(c, "size_bytes", size);
	return r;
}

/* The operand is the key in hexadecimal digits: the server may not be able to read the user's file.
 */
static int parse_key(struct s3_call *c, uint8_t key[S3_KEY_BYTES])
{
	if (strspn(c->words[1], "0123456789abcdef") != 2 * S3_KEY_BYTES ||
		c->words[1][2 * S3_KEY_BYTES])
		return s3_volume_refuse(
			c->v, -EINVAL, "rekey: not %d hexadecimal digits", 2 * S3_KEY_BYTES);
	for (size_t i = 0; i < S3_KEY_BYTES; i++)
		sscanf(c->words[1] + 2 * i, "%2hhx", &key[i]);
	return 0;
}

static int may_rekey(struct s3_call *c)
{
	uint8_t key[S3_KEY_BYTES];
	int r = parse_key(c, key);

	if (r == 0)
		r = s3_volume_may_rekey(c->v, key);
	OPENSSL_cleanse(key, sizeof key);
	return r;
}

static int rekey(struct s3_call *c)
{
	uint8_t key[S3_KEY_BYTES];
	bool derived;
	int r = parse_key(c, key);

	if (r == 0)
		r = s3_volume_rekey(c->v, key, &derived);
	OPENSSL_cleanse(key, sizeof key);
	if (r == 0)
		say_bool(c, "old_key_opens_data", derived);
	return r;
}

static bool gc_progress(void *opaque, uint64_t done, uint64_t total)
{
	struct s3_call *c = opaque;

	progress(c, done, total);
	return !atomic_load(&c->cancel);
}

static int gc(struct s3_call *c)
{
	struct s3_objects_totals before, after;
	int r;

	s3_objects_totals(c->v->objects, &before);
	r = s3_volume_gc(c->v, gc_progress, c);
	s3_objects_totals(c->v->objects, &after);
	if (r == -ENOSPC)
		return s3_volume_refuse(c->v, r,
			"volume=%s: the store has no space, not even to free some; free space "
			"there or raise the quota, then collect again",
			c->v->name);
	if (r)
		return r;
	say_number(c, "stored_bytes_before", before.bytes);
	say_number(c, "stored_bytes", after.bytes);
	say_number(c, "objects_before", before.objects);
	say_number(c, "objects", after.objects);
	return 0;
}

/* What was not uploaded can no longer be saved, and nobody waits for it. */
static int give_up(struct s3_call *c)
{
	s3_volume_fail(c->v, -EIO, "aborted by userblk-s3 abort");
	s3_store_stop(c->v->store);
	return 0;
}

/* ---- requests ----------------------------------------------------------------------- */

static const struct s3_command commands[] = {
	{"info", 0, false, false, NULL, info},
	{"stats", 0, false, false, NULL, stats},
	{"check", 0, false, true, NULL, check},
	{"snapshot-list", 0, false, true, NULL, snapshot_list},
	{"snapshot-create", 1, true, true, may_create, snapshot_create},
	{"snapshot-delete", 1, true, true, may_delete, snapshot_delete},
	{"snapshot-rollback", 1, true, true, may_roll_back, snapshot_rollback},
	{"clone", 3, false, true, NULL, make_clone},
	{"resize", 1, true, true, may_resize, resize},
	{"rekey", 1, true, true, may_rekey, rekey},
	{"gc", 0, true, true, NULL, gc},
	{"abort", 0, false, false, NULL, give_up},
};
#define COMMANDS (sizeof commands / sizeof commands[0])

const struct s3_command *s3_control_parse(char *text, const char **words)
{
	char *rest = text;
	int n = 0;

	while (rest && n < S3_MAX_WORDS)
		words[n++] = strsep(&rest, " ");
	for (size_t i = 0; !rest && i < COMMANDS; i++)
		if (strcmp(words[0], commands[i].name) == 0 && n == commands[i].operands + 1)
			return &commands[i];
	return NULL;
}

/* Parses a request, and refuses what the volume does not support. */
static int begin(struct s3_call *c, const char *request, char text[S3_CONTROL_LINE_MAX],
	const struct s3_command **command)
{
	struct s3_volume *v = c->v;

	if (snprintf(text, S3_CONTROL_LINE_MAX, "%s", request) >= S3_CONTROL_LINE_MAX)
		return -EINVAL;
	*command = s3_control_parse(text, c->words);
	if (!*command)
		return s3_volume_refuse(v, -EINVAL, "%s: no such request", request);
	if ((*command)->slow && v->super.layout == S3_LAYOUT_DIRECT)
		return s3_volume_refuse(v, -EOPNOTSUPP,
			"volume=%s: has layout=direct, which has no %s; copy it to a volume with a "
			"log",
			v->name, (*command)->name);
	return 0;
}

int s3_control_look(struct s3_volume *v, const char *request)
{
	struct s3_call c = {.v = v};
	char text[S3_CONTROL_LINE_MAX];
	const struct s3_command *command;
	int r = begin(&c, request, text, &command);

	if (r == 0 && command->look)
		r = command->look(&c);
	OPENSSL_cleanse(text, sizeof text);
	return r;
}

int s3_control_perform(struct s3_volume *v, const char *request, const _Atomic bool *stop,
	s3_control_line line, void *opaque)
{
	struct s3_call c = {.v = v, .stop = stop, .line = line, .opaque = opaque};
	char text[S3_CONTROL_LINE_MAX];
	const struct s3_command *command;
	int r = begin(&c, request, text, &command);

	if (r == 0 && command->changes && v->backend.readonly)
		r = s3_volume_refuse(v, -EROFS,
			"volume=%s: is served with readonly=on; serve it without", v->name);
	if (r == 0 && command->changes)
		r = v->layout->start(v);
	if (r == 0)
		r = command->run(&c);
	OPENSSL_cleanse(text, sizeof text);
	return r;
}
