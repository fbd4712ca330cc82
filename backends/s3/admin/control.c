/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The thread of the socket answers at once what it can; what takes long is done by another one,
 * one such request at a time, so that counters can be read meanwhile and the volume can be given
 * up.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "backends/s3/admin/control.h"
#include "backends/s3/admin/verify.h"

/* More counters than there are. */
#define MAX_COUNTERS 128
/* Words of a request: the command and its operands. */
#define MAX_WORDS 4
/* A client that sends or takes nothing for that long is left alone. */
#define REQUEST_S 2
#define REPLY_S	  10
/* Nanoseconds between two lines of progress. */
#define PROGRESS_NS UINT64_C(100000000)

/* ---- answers ---------------------------------------------------------------------- */

/* A request under way. */
struct call {
	struct s3_volume *v;
	const char *words[MAX_WORDS];
	const _Atomic bool *stop;
	s3_control_line line;
	void *opaque;
	_Atomic bool cancel; /* stop, or nobody listens any more */
	uint64_t told;	     /* when progress was, ns */
};

static void say(struct call *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(struct call *c, const char *format, ...)
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

static void say_text(struct call *c, const char *name, const char *text)
{
	char value[S3_KEY_MAX + 16];

	say(c, "%s %s", name, quoted(text, value, sizeof value));
}

static void say_number(struct call *c, const char *name, uint64_t value)
{
	say(c, "%s %" PRIu64, name, value);
}

static void say_bool(struct call *c, const char *name, bool value)
{
	say(c, "%s %s", name, value ? "true" : "false");
}

static void say_uuid(struct call *c, const char *name, const uint8_t *uuid)
{
	char text[2 * S3_UUID + 1];

	for (int i = 0; i < S3_UUID; i++)
		sprintf(text + 2 * i, "%02x", uuid[i]);
	say_text(c, name, text);
}

static void progress(void *opaque, uint64_t done, uint64_t total)
{
	struct call *c = opaque;
	uint64_t now = s3_now();

	if (c->stop && atomic_load(c->stop))
		atomic_store(&c->cancel, true);
	if (done < total && now - c->told < PROGRESS_NS)
		return;
	c->told = now;
	say(c, "progress [%" PRIu64 ", %" PRIu64 "]", done, total);
}

/* ---- info --------------------------------------------------------------------------- */

/* What only the log has. */
static void say_log(struct call *c)
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

static int info(struct call *c)
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
static void say_requests(struct call *c, const char *kind, const struct s3_op_counters *o)
{
	static const unsigned percents[] = {50, 90, 99};

	say(c, "%s_requests %" PRIu64, kind, o->requests);
	say(c, "%s_errors %" PRIu64, kind, o->errors);
	say(c, "%s_mean_us %" PRIu64, kind, o->requests ? o->busy_ns / o->requests / 1000 : 0);
	for (size_t i = 0; i < sizeof percents / sizeof percents[0]; i++)
		say(c, "%s_p%u_us %" PRIu64, kind, percents[i], percentile(o, percents[i]));
	say(c, "%s_max_us %" PRIu64, kind, o->max_ns / 1000);
}

static void say_device(struct call *c)
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

static void say_store(struct call *c)
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
	say_number(c, "store_connections", all.connections);
	say_number(c, "store_in_flight", all.in_flight);
}

static void say_lag(struct call *c)
{
	uint64_t now = s3_now();
	struct s3_lag lag;

	s3_log_lag(c->v, &lag);
	say_number(c, "lag_objects", lag.objects);
	say_number(c, "lag_bytes", lag.bytes);
	say_number(c, "lag_us", lag.oldest && now > lag.oldest ? (now - lag.oldest) / 1000 : 0);
}

static void say_garbage(struct call *c)
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

static int stats(struct call *c)
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

static int check(struct call *c)
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

static int snapshot_list(struct call *c)
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

static int snapshot_create(struct call *c)
{
	return s3_snapshot_create(c->v, c->words[1]);
}

static int snapshot_delete(struct call *c)
{
	return s3_snapshot_delete(c->v, c->words[1]);
}

static int snapshot_rollback(struct call *c)
{
	if (c->v->control)
		return s3_volume_refuse(c->v, -EBUSY,
			"volume=%s: is being served, and would change under its users; end the "
			"server first",
			c->v->name);
	return s3_snapshot_rollback(c->v, c->words[1]);
}

static int make_clone(struct call *c)
{
	return s3_volume_clone(c->v, c->words[1], c->words[2], c->words[3]);
}

static int resize(struct call *c)
{
	char *end;
	uint64_t size;
	int r;

	errno = 0;
	size = strtoull(c->words[1], &end, 10);
	if (errno || *end || c->words[1][0] == '-')
		return s3_volume_refuse(c->v, -EINVAL, "%s: not a number of bytes", c->words[1]);
	r = s3_volume_resize(c->v, size);
	if (r == 0)
		say_number(c, "size_bytes", size);
	return r;
}

/* The operand is the key in hexadecimal digits: the server may not be able to read the user's file.
 */
static int rekey(struct call *c)
{
	uint8_t key[S3_KEY_BYTES];
	bool derived;
	int r = -EINVAL;

	if (strspn(c->words[1], "0123456789abcdef") == 2 * sizeof key &&
		!c->words[1][2 * sizeof key]) {
		for (size_t i = 0; i < sizeof key; i++)
			sscanf(c->words[1] + 2 * i, "%2hhx", &key[i]);
		r = s3_volume_rekey(c->v, key, &derived);
		OPENSSL_cleanse(key, sizeof key);
	} else {
		s3_volume_refuse(c->v, r, "rekey: not %zu hexadecimal digits", 2 * sizeof key);
	}
	if (r == 0)
		say_bool(c, "old_key_opens_data", derived);
	return r;
}

static int gc(struct call *c)
{
	struct s3_objects_totals before, after;
	int r;

	s3_objects_totals(c->v->objects, &before);
	r = s3_volume_gc(c->v, progress, c);
	s3_objects_totals(c->v->objects, &after);
	if (r)
		return r;
	say_number(c, "stored_bytes_before", before.bytes);
	say_number(c, "stored_bytes", after.bytes);
	say_number(c, "objects_before", before.objects);
	say_number(c, "objects", after.objects);
	return 0;
}

/* Nothing that was not uploaded can be saved any more, and nobody waits for it. */
static int give_up(struct call *c)
{
	s3_volume_fail(c->v, -EIO, "given up by userblk-s3 abort");
	s3_store_stop(c->v->store);
	return 0;
}

/* ---- requests ----------------------------------------------------------------------- */

static const struct command {
	const char *name;
	int operands;
	bool changes; /* the volume */
	bool slow;    /* also what layout=direct does not have */
	int (*run)(struct call *c);
} commands[] = {
	{"info", 0, false, false, info},
	{"stats", 0, false, false, stats},
	{"check", 0, false, true, check},
	{"snapshot-list", 0, false, true, snapshot_list},
	{"snapshot-create", 1, true, true, snapshot_create},
	{"snapshot-delete", 1, true, true, snapshot_delete},
	{"snapshot-rollback", 1, true, true, snapshot_rollback},
	{"clone", 3, false, true, make_clone},
	{"resize", 1, true, true, resize},
	{"rekey", 1, true, true, rekey},
	{"gc", 0, true, true, gc},
	{"abort", 0, false, false, give_up},
};
#define COMMANDS (sizeof commands / sizeof commands[0])

/* Takes a request apart, in place. NULL: there is no such one. */
static const struct command *parse(char *text, const char **words)
{
	char *rest = text;
	int n = 0;

	while (rest && n < MAX_WORDS)
		words[n++] = strsep(&rest, " ");
	for (size_t i = 0; !rest && i < COMMANDS; i++)
		if (strcmp(words[0], commands[i].name) == 0 && n == commands[i].operands + 1)
			return &commands[i];
	return NULL;
}

int s3_control_perform(struct s3_volume *v, const char *request, const _Atomic bool *stop,
	s3_control_line line, void *opaque)
{
	struct call c = {.v = v, .stop = stop, .line = line, .opaque = opaque};
	char text[S3_CONTROL_LINE_MAX];
	const struct command *command;
	int r;

	if (snprintf(text, sizeof text, "%s", request) >= (int)sizeof text)
		return -EINVAL;
	command = parse(text, c.words);
	if (!command)
		return s3_volume_refuse(v, -EINVAL, "%s: no such request", request);
	if (command->slow && !v->layout->has_log)
		return s3_volume_refuse(v, -EOPNOTSUPP,
			"volume=%s: has layout=direct, which has no %s; copy it to a volume with a "
			"log",
			v->name, command->name);
	if (command->changes && v->backend.readonly)
		return s3_volume_refuse(v, -EROFS,
			"volume=%s: is served with readonly=on; serve it without", v->name);
	r = command->changes ? v->layout->start(v) : 0;
	return r ? r : command->run(&c);
}

/* ---- the socket ---------------------------------------------------------------------- */

struct s3_control {
	struct s3_volume *v;
	struct backend_host outer; /* what the volume told its errors to */
	struct sockaddr_un address;
	dev_t device; /* the socket's own */
	ino_t inode;
	int listener, wake;
	pthread_t thread;
	bool running;
	_Atomic bool stop; /* what takes long is to end */

	pthread_mutex_t lock;
	/* Below: under it. */
	char error[1024]; /* the last one of the volume since a request began */
	bool ending;	  /* nothing that takes long begins any more */
	bool job_made;	  /* its thread is to be joined */
	bool job_runs;
	pthread_t job;
	int job_fd;
	char job_request[S3_CONTROL_LINE_MAX];
};

static void host_error(void *opaque, const char *message)
{
	struct s3_control *c = opaque;

	pthread_mutex_lock(&c->lock);
	snprintf(c->error, sizeof c->error, "%s", message);
	pthread_mutex_unlock(&c->lock);
	c->outer.error(c->outer.opaque, message);
}

static void host_debug(void *opaque, const char *message)
{
	struct s3_control *c = opaque;

	if (c->outer.debug)
		c->outer.debug(c->outer.opaque, message);
}

/* Sends all of it. Negative: the client is gone. */
static int send_all(int fd, const char *data, size_t length)
{
	while (length) {
		ssize_t n = send(fd, data, length, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -EPIPE;
		data += n;
		length -= (size_t)n;
	}
	return 0;
}

static int send_line(void *opaque, const char *line)
{
	char text[S3_CONTROL_LINE_MAX + 2];
	int n = snprintf(text, sizeof text, "%s\n", line);

	return send_all(*(int *)opaque, text, (size_t)n);
}

static void send_end(int fd, int r, const char *why)
{
	char text[S3_CONTROL_LINE_MAX];

	if (r)
		snprintf(text, sizeof text, "error %d %s", -r, why);
	else
		snprintf(text, sizeof text, "ok");
	send_line(&fd, text);
}

/* Performs a request and sends the whole answer. */
static void answer(struct s3_control *c, int fd, const char *request)
{
	char why[sizeof c->error];
	int r;

	pthread_mutex_lock(&c->lock);
	c->error[0] = 0;
	pthread_mutex_unlock(&c->lock);
	r = s3_control_perform(c->v, request, &c->stop, send_line, &fd);
	pthread_mutex_lock(&c->lock);
	snprintf(why, sizeof why, "%s", c->error[0] ? c->error : strerror(-r));
	pthread_mutex_unlock(&c->lock);
	send_end(fd, r, why);
	close(fd);
}

static void *job(void *opaque)
{
	struct s3_control *c = opaque;

	answer(c, c->job_fd, c->job_request);
	pthread_mutex_lock(&c->lock);
	c->job_runs = false;
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* Begins what takes long. 0 or negative errno, *why says it. */
static int start_job(struct s3_control *c, int fd, const char *request, const char **why)
{
	int r = 0;

	pthread_mutex_lock(&c->lock);
	if (c->ending) {
		r = -ESHUTDOWN;
		*why = "the server is ending";
	} else if (c->job_runs) {
		r = -EBUSY;
		*why = "the server is busy with another command; wait for it";
	} else {
		if (c->job_made)
			pthread_join(c->job, NULL);
		c->job_fd = fd;
		snprintf(c->job_request, sizeof c->job_request, "%s", request);
		r = -pthread_create(&c->job, NULL, job, c);
		c->job_made = c->job_runs = r == 0;
		*why = strerror(-r);
	}
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* Reads a line, without its newline. 0 or negative errno. */
static int receive_line(int fd, char *line, size_t room)
{
	size_t n = 0;

	while (n + 1 < room) {
		ssize_t got = recv(fd, line + n, room - 1 - n, 0);
		char *end;

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return -EPIPE;
		end = memchr(line + n, '\n', (size_t)got);
		n += (size_t)got;
		if (end) {
			*end = 0;
			return 0;
		}
	}
	return -EMSGSIZE;
}

/* A client has connected. */
static void converse(struct s3_control *c, int fd)
{
	const struct timeval request_time = {.tv_sec = REQUEST_S}, reply_time = {.tv_sec = REPLY_S};
	char line[S3_CONTROL_LINE_MAX], copy[sizeof line];
	const struct command *command = NULL;
	const char *words[MAX_WORDS], *why = "";
	unsigned version = 0;
	int r, start = 0;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &request_time, sizeof request_time);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &reply_time, sizeof reply_time);
	r = receive_line(fd, line, sizeof line);
	if (r == -EMSGSIZE) {
		why = "the request is too long";
	} else if (r == 0 && (sscanf(line, "userblk-s3 %u %n", &version, &start) != 1 || !start)) {
		r = -EPROTO;
		why = "write userblk-s3 1 REQUEST";
	} else if (r == 0 && version != S3_CONTROL_VERSION) {
		r = -EPROTO;
		why = "this server speaks version 1; use the userblk-s3 of its release";
	} else if (r == 0) {
		strcpy(copy, line + start);
		command = parse(copy, words);
		why = command ? "" : "no such request";
		r = command ? 0 : -EINVAL;
	}
	if (r == -EPIPE) {
		close(fd);
		return;
	}
	snprintf(copy, sizeof copy, "userblk-s3 %d", S3_CONTROL_VERSION);
	send_line(&fd, copy);
	if (r == 0 && command->slow)
		r = start_job(c, fd, line + start, &why);
	else if (r == 0)
		answer(c, fd, line + start);
	if (r == 0)
		return;
	send_end(fd, r, why);
	close(fd);
}

static void *serve(void *opaque)
{
	struct s3_control *c = opaque;
	struct pollfd fds[] = {
		{.fd = c->listener, .events = POLLIN}, {.fd = c->wake, .events = POLLIN}};

	for (;;) {
		int fd;

		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			break;
		if (fds[1].revents)
			break;
		fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0)
			converse(c, fd);
		else if (errno == EMFILE || errno == ENFILE)
			usleep(100000); /* not to wait for it at full speed */
	}
	return NULL;
}

/* ---- where the socket is --------------------------------------------------------------- */

/* Locks the directory of the path against others who make or remove sockets. -1: no lock. */
static int lock_directory(const char *path)
{
	char directory[sizeof((struct sockaddr_un *)0)->sun_path];
	char *slash;
	int fd;

	strcpy(directory, path);
	slash = strrchr(directory, '/');
	slash[slash == directory] = 0;
	fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0)
		flock(fd, LOCK_EX);
	return fd;
}

/* Removes a socket that nobody listens at. 0; -EADDRINUSE: somebody does; -EEXIST: no socket. */
static int remove_stale(const struct sockaddr_un *address)
{
	struct stat st;
	int fd, r = 0;

	if (lstat(address->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* EAGAIN: it listens, and others wait already. */
	if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 || errno == EAGAIN)
		r = -EADDRINUSE;
	else if (errno != ECONNREFUSED)
		r = -errno;
	close(fd);
	if (r == 0 && unlink(address->sun_path) < 0)
		r = -errno;
	return r;
}

static int make_socket(struct s3_control *c)
{
	struct stat st;

	c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* Before it has a name, so that nobody else can ever connect. */
	if (c->listener < 0 || fchmod(c->listener, 0600) < 0 ||
		bind(c->listener, (struct sockaddr *)&c->address, sizeof c->address) < 0)
		return -errno;
	if (listen(c->listener, 16) < 0 || lstat(c->address.sun_path, &st) < 0) {
		int r = -errno;

		unlink(c->address.sun_path);
		return r;
	}
	c->device = st.st_dev;
	c->inode = st.st_ino;
	return 0;
}

static int refuse(const struct s3_control *c, int r)
{
	const char *path = c->address.sun_path;

	if (r == -EADDRINUSE)
		backend_error(&c->outer,
			"control=%s: a server is listening there; end it, or choose another path",
			path);
	else if (r == -EEXIST)
		backend_error(&c->outer, "control=%s: exists and is no socket; choose another path",
			path);
	else
		backend_error(&c->outer,
			"control=%s: cannot make a socket: %s; choose another path", path,
			strerror(-r));
	return r;
}

static void free_control(struct s3_control *c)
{
	if (c->listener >= 0)
		close(c->listener);
	if (c->wake >= 0)
		close(c->wake);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

int s3_control_open(struct s3_volume *v, const char *path)
{
	struct s3_control *c = calloc(1, sizeof *c);
	int directory, r;

	if (!c)
		return -ENOMEM;
	pthread_mutex_init(&c->lock, NULL);
	c->v = v;
	c->outer = v->host;
	c->listener = -1;
	c->address.sun_family = AF_UNIX;
	strcpy(c->address.sun_path, path);
	c->wake = eventfd(0, EFD_CLOEXEC);
	r = c->wake < 0 ? -errno : 0;
	directory = lock_directory(path);
	if (r == 0)
		r = remove_stale(&c->address);
	if (r == 0)
		r = make_socket(c);
	if (directory >= 0)
		close(directory);
	if (r) {
		refuse(c, r);
		free_control(c);
		return r;
	}
	v->host = (struct backend_host){.opaque = c, .error = host_error, .debug = host_debug};
	v->control = c;
	return 0;
}

void s3_control_start(struct s3_control *c)
{
	sigset_t all, before;
	int r;

	if (!c || c->running)
		return;
	/* Signals are the framework's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&c->thread, NULL, serve, c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	c->running = r == 0;
	if (r)
		backend_error(&c->outer, "control=%s: cannot make a thread: %s",
			c->address.sun_path, strerror(r));
}

void s3_control_end_jobs(struct s3_control *c)
{
	if (!c)
		return;
	atomic_store(&c->stop, true);
	pthread_mutex_lock(&c->lock);
	c->ending = true;
	pthread_mutex_unlock(&c->lock);
}

void s3_control_close(struct s3_control *c)
{
	struct stat st;
	int directory;

	if (!c)
		return;
	s3_control_end_jobs(c);
	/* What waits for the store may need an abort. */
	if (c->job_made)
		pthread_join(c->job, NULL);
	if (c->running) {
		eventfd_write(c->wake, 1);
		pthread_join(c->thread, NULL);
	}
	directory = lock_directory(c->address.sun_path);
	/* Not one that somebody else has put there since. */
	if (lstat(c->address.sun_path, &st) == 0 && st.st_dev == c->device && st.st_ino == c->inode)
		unlink(c->address.sun_path);
	if (directory >= 0)
		close(directory);
	c->v->host = c->outer;
	c->v->control = NULL;
	free_control(c);
}
