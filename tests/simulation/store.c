/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/client/client.h"
#include "backends/s3/client/names.h"
#include "backends/s3/client/reply.h"
#include "tests/simulation/memory.h"
#include "tests/simulation/store.h"

/* As in the real client. */
#define BACKOFF_FIRST (SIM_SECOND / 10)
#define BACKOFF_LAST  (10 * SIM_SECOND)
#define PAGE	      7 /* objects of a listing: few, so that there are more pages */
#define EPISODES      8
/* Keys of the volumes, and of what a hostile store lists in their place. */
#define OURS	"sim/v"
#define FOREIGN "sim/w"

static const char *const op_names[S3_OPS] = {"GET", "HEAD", "PUT", "DELETE", "DELETE_MANY", "LIST"};

/* ---- objects --------------------------------------------------------------------------------- */

struct blob {
	unsigned refs;
	size_t length;
	uint8_t data[];
};

struct object {
	char *key;
	struct blob *blob;
	uint64_t tag;
	int64_t modified;
	bool late;
};

static struct object *objects; /* by key */
static size_t n_objects, objects_room;
static uint64_t tags, stored_bytes;
static uint64_t blob_bytes; /* be they stored or on their way */
static uint64_t watched_from, watched_most;
static bool ignores_if_none_match, ignores_if_match, missing_is_412;

static void let_go(struct blob *b)
{
	if (!b || --b->refs)
		return;
	blob_bytes -= b->length;
	free(b);
}

/* Where key is, or is to be. */
static size_t place(const char *key)
{
	size_t low = 0, high = n_objects;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (strcmp(objects[middle].key, key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct object *find(const char *key)
{
	size_t i = place(key);

	return i < n_objects && strcmp(objects[i].key, key) == 0 ? &objects[i] : NULL;
}

static void put_object(const char *key, struct blob *blob, bool late)
{
	size_t i = place(key);
	struct object *o = find(key);

	if (!o) {
		if (n_objects == objects_room) {
			objects_room = objects_room ? 2 * objects_room : 256;
			objects = realloc(objects, objects_room * sizeof *objects);
			if (!objects)
				abort();
		}
		o = &objects[i];
		memmove(o + 1, o, (n_objects - i) * sizeof *o);
		n_objects++;
		*o = (struct object){.key = strdup(key)};
	} else {
		stored_bytes -= o->blob->length;
		let_go(o->blob);
	}
	blob->refs++;
	o->blob = blob;
	o->tag = ++tags;
	o->modified = sim_wall(NULL) / 1000000000;
	o->late = late;
	stored_bytes += blob->length;
}

static void delete_object(const char *key)
{
	struct object *o = find(key);

	if (strncmp(key, FOREIGN, strlen(FOREIGN)) == 0)
		sim_fail("foreign", "%s is deleted, which is no object of the volume's", key);
	if (!o)
		return;
	stored_bytes -= o->blob->length;
	let_go(o->blob);
	free(o->key);
	n_objects--;
	memmove(o, o + 1, (n_objects - (size_t)(o - objects)) * sizeof *o);
}

void store_each(const char *prefix,
	void (*fn)(void *opaque, const char *key, const uint8_t *data, size_t length, bool late),
	void *opaque)
{
	for (size_t i = 0; i < n_objects; i++)
		if (strncmp(objects[i].key, prefix, strlen(prefix)) == 0)
			fn(opaque, objects[i].key, objects[i].blob->data, objects[i].blob->length,
				objects[i].late);
}

void store_hash(void)
{
	for (size_t i = 0; i < n_objects; i++) {
		sim_hash(objects[i].key, strlen(objects[i].key));
		sim_hash(objects[i].blob->data, objects[i].blob->length);
	}
}

void store_totals(uint64_t *number, uint64_t *bytes)
{
	*number = n_objects;
	*bytes = stored_bytes;
}

void store_ignores(bool if_none_match, bool if_match)
{
	ignores_if_none_match = if_none_match;
	ignores_if_match = if_match;
}

/* ---- memory that is not the store's ------------------------------------------------------------
 */

static uint64_t allocated(void)
{
	return sim_memory_used() - blob_bytes;
}

static void watch(void)
{
	uint64_t now;

	if (!watched_from)
		return;
	now = allocated();
	if (now > watched_from + watched_most)
		watched_most = now - watched_from;
}

void store_watch(void)
{
	watched_from = allocated();
}

uint64_t store_watched(void)
{
	watch();
	return watched_most;
}

/* ---- faults ------------------------------------------------------------------------------------
 */

/* What comes of an attempt besides its effect. */
enum outcome { FINE, REQUEST_LOST, REPLY_LOST, LATE, REFUSED, FAILED_AFTER };

/* A time in which requests of one kind fail. */
struct episode {
	uint64_t from, until;
	enum { EPISODE_503, EPISODE_SILENT, EPISODE_SLOW } kind;
	unsigned ops;		/* bits of enum s3_op */
	const char *part;	/* of the key; "" all */
	uint64_t one_of;	/* one key of so many; 0: all of them */
	uint64_t before, after; /* EPISODE_SLOW: ns until the effect, and from there to the reply */
};

static struct {
	bool calm;
	uint64_t calm_at;      /* since when */
	uint64_t given_up_at;  /* a request that began before, for the last time */
	uint64_t base_ns;      /* latency */
	uint64_t tail, far;    /* once in so many requests it is 10 or 100 times that */
	uint64_t lost_request; /* once in so many; 0: never */
	uint64_t lost_reply, late, refused, failed_after;
	uint64_t late_ns, silence_ns;
	uint64_t room; /* bytes that the store takes while it is not calm; 0: any */
	bool full_code;
	uint64_t late_deletions;
	bool hostile;  /* listings have keys that were not asked for */
	bool in_order; /* nothing of a killed sender's takes effect any more */
	unsigned n_episodes;
	struct episode episodes[EPISODES];
} faults;

static void draw_episode(struct episode *e)
{
	static const char *const parts[] = {
		"", "/log/", "/gc/", "/ckpt/", "/snap/", "super", "root", "/log/", "/gc/"};

	e->from = sim_below(SIM_STORE, 20 * SIM_SECOND);
	e->until = sim_once_in(SIM_STORE, 4)
			   ? SIM_NEVER
			   : e->from + sim_log_between(SIM_STORE, 100 * SIM_MS, 60 * SIM_SECOND);
	e->kind = sim_below(SIM_STORE, 3);
	e->before = 5 * SIM_SECOND;
	e->after = 0;
	e->ops = sim_once_in(SIM_STORE, 3) ? ~0u : 1u << sim_below(SIM_STORE, S3_OPS);
	e->part = parts[sim_below(SIM_STORE, sizeof parts / sizeof *parts)];
	e->one_of = sim_once_in(SIM_STORE, 2) ? sim_log_between(SIM_STORE, 2, 30) : 0;
	/* One object of the log that cannot be read is worth more than chance gives it. */
	if (sim_once_in(SIM_STORE, 3)) {
		e->ops = 1u << S3_GET | 1u << S3_HEAD;
		e->part = "/log/";
		e->one_of = sim_log_between(SIM_STORE, 2, 30);
	}
	/* Nobody asks for what never comes. */
	if (e->until == SIM_NEVER && !e->one_of && !*e->part)
		e->until = e->from + 30 * SIM_SECOND;
}

void store_draw(void)
{
	static const uint64_t latencies[] = {50000, SIM_MS, 20 * SIM_MS, 200 * SIM_MS};
	bool bad = sim_below(SIM_STORE, 3) != 0;

	faults.base_ns = latencies[sim_below(SIM_STORE, 4)];
	faults.tail = sim_log_between(SIM_STORE, 5, 200);
	faults.far = sim_log_between(SIM_STORE, 50, 2000);
	faults.late_ns = sim_log_between(SIM_STORE, 100 * SIM_MS, 100 * SIM_SECOND);
	faults.silence_ns = sim_once_in(SIM_STORE, 2) ? 30 * SIM_SECOND : SIM_SECOND;
	faults.lost_request = sim_log_between(SIM_STORE, 5, 300);
	faults.lost_reply = sim_log_between(SIM_STORE, 5, 300);
	faults.late = sim_log_between(SIM_STORE, 5, 300);
	faults.refused = sim_log_between(SIM_STORE, 4, 300);
	faults.failed_after = sim_log_between(SIM_STORE, 10, 500);
	missing_is_412 = sim_once_in(SIM_STORE, 2);
	faults.full_code = sim_once_in(SIM_STORE, 2);
	faults.room = sim_once_in(SIM_STORE, 8) ? sim_log_between(SIM_STORE, 1 << 20, 16 << 20) : 0;
	faults.n_episodes = sim_once_in(SIM_STORE, 2) ? 1 + (unsigned)sim_below(SIM_STORE, 4) : 0;
	for (unsigned i = 0; i < EPISODES; i++)
		draw_episode(&faults.episodes[i]);
	if (!bad || !sim_with(SIM_LOST))
		faults.lost_request = faults.lost_reply = faults.failed_after = 0;
	if (!bad || !sim_with(SIM_LATE))
		faults.late = 0;
	if (!bad || !sim_with(SIM_REFUSE))
		faults.refused = faults.n_episodes = 0;
	if (!sim_with(SIM_FULL))
		faults.room = 0;
	faults.hostile = bad && sim_with(SIM_REFUSE) && sim_once_in(SIM_STORE, 8);
}

void store_serves(void)
{
	if (faults.base_ns > 20 * SIM_MS)
		faults.base_ns = 20 * SIM_MS;
	faults.lost_request = faults.lost_reply = faults.late = faults.refused = 0;
	faults.failed_after = faults.room = faults.n_episodes = 0;
	faults.tail = faults.far = 0;
	faults.hostile = false;
}

void store_room(uint64_t bytes)
{
	faults.room = bytes;
}

void store_refuses(enum s3_op op, const char *part_of_key)
{
	faults.episodes[0] = (struct episode){
		.until = SIM_NEVER, .kind = EPISODE_503, .ops = 1u << op, .part = part_of_key};
	faults.n_episodes = 1;
}

void store_slows(enum s3_op op, const char *part_of_key, uint64_t before, uint64_t after)
{
	faults.episodes[faults.n_episodes++] = (struct episode){.until = SIM_NEVER,
		.kind = EPISODE_SLOW,
		.ops = 1u << op,
		.part = part_of_key,
		.before = before,
		.after = after};
}

void store_in_order(void)
{
	faults.late = 0;
	faults.in_order = true;
}

bool store_may_be_full(void)
{
	return faults.room != 0;
}

bool store_troubled(uint64_t since)
{
	bool fails = faults.n_episodes || faults.refused || faults.lost_request || faults.late;

	/* A lost request is given up long after faults have ceased. */
	return fails && (!faults.calm || since < faults.calm_at || since <= faults.given_up_at);
}

void store_calm(void)
{
	if (!faults.calm)
		faults.calm_at = sim_now();
	faults.calm = true;
}

static uint64_t key_hash(const char *key)
{
	uint64_t h = 14695981039346656037u;

	while (*key)
		h = (h ^ (uint8_t)*key++) * 1099511628211u;
	return h ^ h >> 31;
}

static const struct episode *episode_of(enum s3_op op, const char *key)
{
	for (unsigned i = 0; i < faults.n_episodes && !faults.calm; i++) {
		const struct episode *e = &faults.episodes[i];

		if (sim_now() >= e->from && sim_now() < e->until && e->ops >> op & 1 &&
			strstr(key, e->part) && (!e->one_of || key_hash(key) % e->one_of == 0))
			return e;
	}
	return NULL;
}

static uint64_t latency(void)
{
	uint64_t ns = faults.base_ns / 2 + sim_below(SIM_STORE, faults.base_ns);

	if (sim_once_in(SIM_STORE, faults.tail))
		ns *= 10;
	else if (sim_once_in(SIM_STORE, faults.far))
		ns *= 100;
	return ns;
}

static enum outcome draw_outcome(void)
{
	if (faults.calm)
		return FINE;
	if (sim_once_in(SIM_STORE, faults.refused))
		return REFUSED;
	if (sim_once_in(SIM_STORE, faults.lost_request))
		return REQUEST_LOST;
	if (sim_once_in(SIM_STORE, faults.lost_reply))
		return REPLY_LOST;
	if (sim_once_in(SIM_STORE, faults.late))
		return LATE;
	if (sim_once_in(SIM_STORE, faults.failed_after))
		return FAILED_AFTER;
	return FINE;
}

void store_deletes_late(uint64_t once_in, uint64_t ns)
{
	faults.late_deletions = once_in;
	faults.late_ns = ns;
}

/* ---- the client: requests and attempts
 * -------------------------------------------------------------- */

struct flight;

struct pool {
	struct s3_store *store;
	struct s3_request *done, **done_tail; /* whose done() is to be called */
	struct flight *ready, **ready_tail;   /* wait for a connection */
	struct sim_queue work, joiners;
	unsigned busy, in_flight;
	bool running, ending, held; /* held: its process is paused */
};

struct s3_store {
	struct sim_process *process;
	struct backend_host host;
	struct pool pools[S3_POOLS];
	struct flight *flights; /* newest first */
	struct sim_queue idle;
	unsigned connections, in_flight;
	uint64_t retry_deadline, failing_since;
	struct s3_store_counters counters;
	bool stopping;
	unsigned watched;
};

/* A request as the network sees it: it may outlive the sender's. */
struct flight {
	struct flight *next; /* of the store's */
	struct flight *next_ready;
	unsigned refs;
	struct s3_store *store;
	struct s3_request *req; /* NULL: it has been answered */
	enum s3_op op;
	enum s3_pool pool;
	char *key;
	struct blob *body;
	bool if_none_match;
	char *if_match;
	char **keys;
	size_t n_keys;
	unsigned attempt; /* the one that is waited for */
	bool connected;	  /* that has a connection */
};

/* What the store answered to an attempt. */
struct attempt {
	struct flight *flight;
	unsigned refs, number;
	enum outcome outcome;
	bool postponed;
	long status; /* 0: not looked at by the store, 200: done */
	const char *code;
	struct blob *blob;
	uint64_t tag;
};

static unsigned on_their_way; /* attempts that are still to take effect */

bool store_busy(void)
{
	return on_their_way > 0;
}

static void drop_flight(struct flight *f)
{
	if (--f->refs)
		return;
	let_go(f->body);
	free(f->key);
	free(f->if_match);
	for (size_t i = 0; i < f->n_keys; i++)
		free(f->keys[i]);
	free(f->keys);
	free(f);
}

static void *pool_main(void *opaque)
{
	struct pool *p = opaque;

	for (;;) {
		struct s3_request *req = p->done;

		if (req) {
			p->done = req->next;
			if (!p->done)
				p->done_tail = &p->done;
			req->done(req);
			sim_point("done", NULL);
			p->in_flight--;
			if (--p->store->in_flight == 0)
				sim_wake_all(&p->store->idle);
			continue;
		}
		if (p->ending && !p->in_flight)
			break;
		sim_wait(&p->work, SIM_NEVER, "wait for replies", p);
	}
	p->running = false;
	sim_wake_all(&p->joiners);
	return NULL;
}

static void count(struct s3_store *s, const struct s3_request *req)
{
	struct s3_op_counters *c = &s->counters.ops[req->op];
	uint64_t ns = sim_now() - req->began;

	c->requests++;
	c->retries += req->retries;
	c->busy_ns += ns;
	c->histogram[s3_histogram_entry(ns)]++;
	if (ns > c->max_ns)
		c->max_ns = ns;
	if (req->result && req->result != -ENOENT && req->result != -EEXIST)
		c->errors++;
	*(req->op == S3_PUT ? &c->sent : &c->received) += req->bytes;
}

static void start_ready(struct pool *p);

/* The request ends. In an event, or of the thread that stops the store. */
static void finish(struct flight *f, int result)
{
	struct s3_store *s = f->store;
	struct s3_request *req = f->req;
	struct pool *p = &s->pools[f->pool];
	struct flight **link = &s->flights;

	f->req = NULL;
	req->result = result;
	if (result == 0)
		req->message[0] = 0;
	while (*link != f)
		link = &(*link)->next;
	*link = f->next;
	if (f->connected)
		p->busy--;
	f->connected = false;
	count(s, req);
	sim_trace("%s %s ends: %s%s%s", op_names[f->op], f->key, result ? strerror(-result) : "ok",
		req->retries ? ", tried again" : "", result == -ESHUTDOWN ? " (stopped)" : "");
	req->next = NULL;
	*p->done_tail = req;
	p->done_tail = &req->next;
	sim_wake_all(&p->work);
	start_ready(p);
	drop_flight(f);
}

static void start_attempt(struct flight *f);

static void let_start(void *pool, uint64_t unused)
{
	struct pool *p = pool;

	(void)unused;
	p->held = false;
	if (!p->store->process->dead)
		start_ready(p);
}

static void start_ready(struct pool *p)
{
	if (p->store->process->paused) {
		if (!p->held)
			sim_at(sim_now() + 20 * SIM_MS, let_start, p, 0);
		p->held = true;
		return;
	}
	while (p->ready && p->busy < p->store->connections) {
		struct flight *f = p->ready;

		p->ready = f->next_ready;
		if (!p->ready)
			p->ready_tail = &p->ready;
		if (f->req) {
			p->busy++;
			f->connected = true;
			start_attempt(f);
		}
		drop_flight(f);
	}
}

static void make_ready(struct flight *f)
{
	struct pool *p = &f->store->pools[f->pool];

	f->refs++;
	f->next_ready = NULL;
	*p->ready_tail = f;
	p->ready_tail = &f->next_ready;
	start_ready(p);
}

static void due_again(void *opaque, uint64_t attempt)
{
	struct flight *f = opaque;

	if (f->req && f->attempt == attempt && !f->store->process->dead)
		make_ready(f);
	drop_flight(f);
}

static void retry(struct flight *f, const char *why)
{
	struct s3_request *req = f->req;
	struct s3_store *s = f->store;
	uint64_t pause = BACKOFF_FIRST << (req->retries < 16 ? req->retries : 16);

	if (!s->failing_since)
		s->failing_since = sim_now() ? sim_now() : 1;
	if (pause > BACKOFF_LAST)
		pause = BACKOFF_LAST;
	pause = pause / 2 + sim_below(SIM_STORE, pause / 2);
	snprintf(req->message, sizeof req->message, "endpoint=simulation: %s of %s: %s",
		op_names[f->op], f->key, why);
	if (req->deadline && sim_now() + pause >= req->deadline) {
		if (faults.calm && req->began <= faults.calm_at)
			faults.given_up_at = sim_now();
		finish(f, -EIO);
		return;
	}
	sim_trace("%s %s fails: %s", op_names[f->op], f->key, why);
	req->retries++;
	f->attempt++;
	if (f->connected)
		s->pools[f->pool].busy--;
	f->connected = false;
	f->refs++;
	sim_at(sim_now() + pause, due_again, f, f->attempt);
	start_ready(&s->pools[f->pool]);
}

/* ---- what the store does
 * --------------------------------------------------------------------------- */

static void refuse(struct attempt *a, long status, const char *code)
{
	a->status = status;
	a->code = code;
}

static bool tag_fits(const struct object *o, const char *etag)
{
	char tag[32];

	snprintf(tag, sizeof tag, "\"%" PRIu64 "\"", o->tag);
	return strcmp(tag, etag) == 0;
}

static void serve_put(struct attempt *a)
{
	struct flight *f = a->flight;
	struct object *o = find(f->key);
	bool late = !f->req || f->attempt != a->number || f->store->process->dead;

	if (f->if_none_match && o && !ignores_if_none_match) {
		refuse(a, 412, "PreconditionFailed");
		return;
	}
	if (f->if_match && !ignores_if_match && (!o || !tag_fits(o, f->if_match))) {
		if (o || missing_is_412)
			refuse(a, 412, "PreconditionFailed");
		else
			refuse(a, 404, "NoSuchKey");
		return;
	}
	if (faults.room && !faults.calm && stored_bytes + f->body->length > faults.room) {
		refuse(a, faults.full_code ? 507 : 403, faults.full_code ? "" : "QuotaExceeded");
		return;
	}
	put_object(f->key, f->body, late);
	a->tag = tags;
}

/* At the store, at this moment. */
static void serve(struct attempt *a)
{
	struct flight *f = a->flight;
	struct object *o = f->key ? find(f->key) : NULL;

	a->status = 200;
	switch (f->op) {
	case S3_GET:
	case S3_HEAD:
		if (!o) {
			refuse(a, 404, "NoSuchKey");
			break;
		}
		a->blob = o->blob;
		a->blob->refs++;
		a->tag = o->tag;
		break;
	case S3_PUT:
		serve_put(a);
		break;
	case S3_DELETE:
		delete_object(f->key);
		break;
	case S3_DELETE_MANY:
		for (size_t i = 0; i < f->n_keys; i++)
			delete_object(f->keys[i]);
		break;
	case S3_LIST:
	case S3_OPS:
		break; /* with the reply */
	}
	sim_trace("  %s %s at the store: %ld%s%s", op_names[f->op], f->key, a->status,
		f->req && f->attempt == a->number ? "" : ", LATE",
		f->store->process->dead ? ", its sender is dead" : "");
}

/* Bytes into the caller's vectors, as the client's thread does. 0 or the error of the request. */
static int receive(struct s3_request *req, const struct attempt *a)
{
	uint64_t offset = req->offset;
	const struct blob *b = a->blob;

	req->object_size = b->length;
	snprintf(req->etag, sizeof req->etag, "\"%" PRIu64 "\"", a->tag);
	if (req->op == S3_HEAD)
		return 0;
	if (offset >= b->length && !(offset == 0 && req->allow_short))
		return -ERANGE;
	for (int i = 0; i < req->iovcnt; i++) {
		size_t n = req->iov[i].iov_len;

		if (offset + n > b->length) {
			if (!req->allow_short)
				return -ERANGE;
			n = offset < b->length ? b->length - offset : 0;
		}
		if (n)
			memcpy(req->iov[i].iov_base, b->data + offset, n);
		offset += n;
		req->bytes += n;
	}
	return 0;
}

/* Up to where keys are one entry of a listing. */
static size_t entry_length(const struct s3_request *req, const char *key)
{
	const char *slash = req->delimiter ? strchr(key + strlen(req->key), '/') : NULL;

	return slash ? (size_t)(slash - key) + 1 : strlen(key);
}

/* An entry of a listing as a store writes it. */
static void write_entry(FILE *out, const struct object *o, size_t length, bool foreign)
{
	char key[S3_KEY_MAX + 1], time[32];
	time_t modified = (time_t)o->modified;
	struct tm tm;

	snprintf(key, sizeof key, "%.*s", (int)length, o->key);
	if (foreign && strncmp(key, OURS, strlen(OURS)) == 0)
		memcpy(key, FOREIGN, strlen(FOREIGN));
	if (length < strlen(o->key)) {
		fprintf(out, "<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>", key);
		return;
	}
	gmtime_r(&modified, &tm);
	strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S.000Z", &tm);
	fprintf(out,
		"<Contents><Key>%s</Key><LastModified>%s</LastModified><Size>%zu</Size></Contents>",
		key, time, o->blob->length);
}

/* A page of a listing, as XML, for the real parser. 0 or its error. */
static int list(struct s3_request *req)
{
	const char *last = req->token ? req->token : req->start_after;
	unsigned page = req->max_keys && req->max_keys < PAGE ? req->max_keys : PAGE, n = 0;
	bool foreign = faults.hostile && !faults.calm && sim_once_in(SIM_STORE, 4);
	bool truncated = false;
	char *xml, *end = NULL;
	size_t length;
	FILE *out = open_memstream(&xml, &length);
	int r;

	if (!out)
		abort();
	fprintf(out, "<ListBucketResult>");
	for (size_t i = place(req->key); i < n_objects && !truncated; i++) {
		const struct object *o = &objects[i];
		size_t entry;

		if (strncmp(o->key, req->key, strlen(req->key)) != 0)
			break;
		entry = entry_length(req, o->key);
		if (last && strncmp(o->key, last, entry) <= 0)
			continue;
		truncated = n == page;
		if (truncated) {
			fprintf(out, "<NextContinuationToken>%s</NextContinuationToken>", last);
			break;
		}
		n++;
		free(end);
		last = end = strndup(o->key, entry);
		write_entry(out, o, entry, foreign);
	}
	fprintf(out, "<IsTruncated>%s</IsTruncated></ListBucketResult>",
		truncated ? "true" : "false");
	fclose(out);
	r = s3_parse_listing(xml, length, req->key, &req->listing);
	free(end);
	free(xml);
	return r;
}

/* ---- events of an attempt
 * ------------------------------------------------------------------------------ */

static void drop_attempt(struct attempt *a)
{
	if (--a->refs)
		return;
	let_go(a->blob);
	drop_flight(a->flight);
	free(a);
}

static void effect(void *opaque, uint64_t unused)
{
	struct attempt *a = opaque;
	struct flight *f = a->flight;

	(void)unused;
	on_their_way--;
	if (f->store->process->dead && !a->postponed && a->outcome != LATE &&
		(sim_with(SIM_LATE) || faults.in_order)) {
		/* What a killed sender had under way: gone, as it was, or much later. */
		uint64_t fate = faults.in_order ? 0 : sim_below(SIM_STORE, 3);

		a->postponed = true;
		if (fate == 2 && !faults.calm) {
			a->refs++;
			on_their_way++;
			sim_at(sim_now() + sim_below(SIM_STORE, faults.late_ns), effect, a, 0);
		}
		if (fate == 1 || (fate == 2 && faults.calm))
			serve(a);
		drop_attempt(a);
		return;
	}
	serve(a);
	drop_attempt(a);
}

/* What the client makes of an error of the store: its result; *again: it tries again. */
static int judge(const struct attempt *a, bool *again)
{
	struct s3_error_reply error = {.code = ""};
	const struct flight *f = a->flight;
	struct s3_verdict v;

	snprintf(error.code, sizeof error.code, "%s", a->code);
	v = s3_judge(a->status, &error, f->if_none_match || f->if_match);
	*again = v.action != S3_FINAL;
	return v.result;
}

static void reply(void *opaque, uint64_t unused)
{
	static const char *const failures[] = {[REQUEST_LOST] = "no connection",
		[REPLY_LOST] = "the connection was closed",
		[LATE] = "no answer",
		[REFUSED] = "HTTP status 503 SlowDown",
		[FAILED_AFTER] = "HTTP status 500 InternalError"};
	struct attempt *a = opaque;
	struct flight *f = a->flight;
	struct s3_store *s = f->store;
	struct s3_request *req = f->req;
	bool again = false;
	int r = 0;

	(void)unused;
	if (!req || f->attempt != a->number || s->process->dead) {
		drop_attempt(a);
		return;
	}
	if (a->outcome != FINE) {
		retry(f, failures[a->outcome]);
		drop_attempt(a);
		return;
	}
	if (a->status >= 300)
		r = judge(a, &again);
	if (again) {
		char why[64];

		snprintf(why, sizeof why, "HTTP status %ld %s", a->status, a->code);
		retry(f, why);
		drop_attempt(a);
		return;
	}
	s->failing_since = 0;
	if (r) {
		snprintf(req->message, sizeof req->message,
			"endpoint=simulation: %s of %s: HTTP status %ld %s", op_names[f->op],
			f->key, a->status, a->code);
	} else if (f->op == S3_GET || f->op == S3_HEAD) {
		r = receive(req, a);
	} else if (f->op == S3_PUT) {
		req->bytes = f->body->length;
		snprintf(req->etag, sizeof req->etag, "\"%" PRIu64 "\"", a->tag);
	} else if (f->op == S3_LIST) {
		if (list(req)) {
			retry(f, "the store's listing is none");
			drop_attempt(a);
			return;
		}
	} else if (f->op == S3_DELETE_MANY) {
		memset(req->key_results, 0, req->n_keys * sizeof *req->key_results);
	}
	finish(f, r);
	drop_attempt(a);
}

static void start_attempt(struct flight *f)
{
	struct attempt *a = calloc(1, sizeof *a);
	const struct episode *e = episode_of(f->op, f->key);
	uint64_t there = sim_now() + latency(), back = there + latency();

	if (!a)
		abort();
	f->refs++;
	*a = (struct attempt){.flight = f,
		.refs = 1,
		.number = f->attempt,
		.outcome = draw_outcome(),
		.code = ""};
	if ((f->op == S3_DELETE || f->op == S3_DELETE_MANY) && f->attempt == 0 && !faults.calm &&
		sim_once_in(SIM_STORE, faults.late_deletions))
		a->outcome = LATE;
	if (e && e->kind == EPISODE_SLOW) {
		there += e->before;
		back = there + e->after + latency();
	} else if (e) {
		a->outcome = e->kind == EPISODE_503 ? REFUSED : REQUEST_LOST;
	}
	if (a->outcome == REQUEST_LOST || a->outcome == REPLY_LOST || a->outcome == LATE)
		back = there + sim_below(SIM_STORE, faults.silence_ns);
	if (a->outcome == LATE)
		there += sim_below(SIM_STORE, faults.late_ns);
	if (a->outcome != REFUSED && a->outcome != REQUEST_LOST) {
		a->refs++;
		on_their_way++;
		sim_at(there, effect, a, 0);
	}
	sim_at(back, reply, a, 0);
}

/* ---- the client's interface
 * --------------------------------------------------------------------------------- */

int s3_store_check(const struct s3_store_config *config, struct params_error *error)
{
	(void)config;
	(void)error;
	return 0;
}

int s3_store_open(const struct s3_store_config *config, const struct backend_host *host,
	struct s3_store **out)
{
	struct s3_store *s = calloc(1, sizeof *s);

	if (!s)
		return -ENOMEM;
	s->process = sim_self();
	s->host = *host;
	s->connections = (unsigned)config->connections;
	s->retry_deadline = config->retry_deadline;
	for (int i = 0; i < S3_POOLS; i++) {
		struct pool *p = &s->pools[i];

		p->store = s;
		p->done_tail = &p->done;
		p->ready_tail = &p->ready;
	}
	*out = s;
	return 0;
}

static void start_pool(struct pool *p)
{
	p->ending = false;
	if (p->running)
		return;
	p->running = true;
	sim_spawn(p->store->process, "client", pool_main, p);
}

int s3_store_start(struct s3_store *s)
{
	for (int i = 0; i < S3_POOLS; i++)
		start_pool(&s->pools[i]);
	return 0;
}

void s3_store_park(struct s3_store *s)
{
	for (int i = 0; i < S3_POOLS; i++) {
		struct pool *p = &s->pools[i];

		p->ending = true;
		sim_wake_all(&p->work);
		while (p->running)
			sim_wait(&p->joiners, SIM_NEVER, "park the client", p);
	}
}

static bool well_formed(const struct s3_request *req)
{
	uint64_t length = 0;

	for (int i = 0; i < req->iovcnt; i++)
		length += req->iov[i].iov_len;
	if (req->op == S3_DELETE_MANY) {
		for (size_t i = 0; i < req->n_keys; i++)
			if (!s3_key_valid(req->keys[i]))
				return false;
		return req->n_keys >= 1 && req->n_keys <= S3_DELETE_MAX;
	}
	if (req->op == S3_LIST)
		return s3_prefix_valid(req->key);
	return s3_key_valid(req->key) && !(req->op == S3_GET && length == 0);
}

static void cancel(void *opaque, uint64_t unused)
{
	struct flight *f = opaque;

	(void)unused;
	if (f->req && !f->store->process->dead) {
		snprintf(f->req->message, sizeof f->req->message, "the store is being closed");
		finish(f, -ESHUTDOWN);
	}
	drop_flight(f);
}

/* Now and then: to look costs some system calls. */
static void watch_process(struct s3_store *s)
{
	const struct sim_process *p = s->process;
	uint64_t bytes;

	if (!p->id || !p->memory_limit || s->watched++ % 32)
		return;
	bytes = sim_memory_of(p);
	if (bytes > p->memory_limit)
		sim_fail("memory", "a process has %" PRIu64 " bytes, and %" PRIu64 " are its limit",
			bytes, p->memory_limit);
}

static struct blob *body_of(const struct s3_request *req)
{
	size_t length = 0;
	struct blob *b;

	for (int i = 0; i < req->iovcnt; i++)
		length += req->iov[i].iov_len;
	b = sim_memory_raw(sizeof *b + length);
	*b = (struct blob){.refs = 1, .length = length};
	blob_bytes += length;
	length = 0;
	for (int i = 0; i < req->iovcnt; i++) {
		if (req->iov[i].iov_len)
			memcpy(b->data + length, req->iov[i].iov_base, req->iov[i].iov_len);
		length += req->iov[i].iov_len;
	}
	return b;
}

int s3_store_submit(struct s3_store *s, struct s3_request *req)
{
	struct pool *p = &s->pools[req->pool];
	uint64_t seconds = req->retry_deadline ? req->retry_deadline : s->retry_deadline;
	struct flight *f;

	if (!well_formed(req))
		return -EINVAL;
	f = calloc(1, sizeof *f);
	if (!f)
		return -ENOMEM;
	req->result = 0;
	req->bytes = req->object_size = 0;
	req->etag[0] = req->message[0] = '\0';
	req->listing = (struct s3_listing){0};
	req->retries = 0;
	req->began = sim_now();
	req->deadline = seconds ? req->began + seconds * SIM_SECOND : 0;
	*f = (struct flight){.next = s->flights,
		.refs = 1,
		.store = s,
		.req = req,
		.op = req->op,
		.pool = req->pool,
		.key = strdup(req->op == S3_DELETE_MANY ? req->keys[0] : req->key),
		.body = req->op == S3_PUT ? body_of(req) : NULL,
		.if_none_match = req->if_none_match,
		.if_match = req->if_match ? strdup(req->if_match) : NULL};
	if (req->op == S3_DELETE_MANY) {
		f->n_keys = req->n_keys;
		f->keys = calloc(f->n_keys, sizeof *f->keys);
		for (size_t i = 0; i < f->n_keys; i++)
			f->keys[i] = strdup(req->keys[i]);
	}
	s->flights = f;
	if (req->op == S3_PUT)
		watch();
	watch_process(s);
	sim_trace("%s %s%s%s %zu", op_names[f->op], f->key, f->if_none_match ? " if none" : "",
		f->if_match ? " if match" : "", f->body ? f->body->length : (size_t)req->offset);
	if (f->body)
		sim_hash(f->body->data, f->body->length);
	s->in_flight++;
	p->in_flight++;
	start_pool(p);
	if (s->stopping) {
		f->refs++;
		sim_at(sim_now(), cancel, f, 0);
	} else {
		make_ready(f);
	}
	sim_point("submit", req);
	return 0;
}

void s3_store_stop(struct s3_store *s)
{
	s->stopping = true;
	for (struct flight *f = s->flights; f; f = f->next) {
		f->refs++;
		sim_at(sim_now(), cancel, f, 0);
	}
	sim_point("stop", s);
}

/* It stays in memory: attempts may still be on their way. */
void s3_store_close(struct s3_store *s)
{
	if (!s)
		return;
	s3_store_stop(s);
	while (s->in_flight)
		sim_wait(&s->idle, SIM_NEVER, "wait for the last requests", s);
	s3_store_park(s);
}

void s3_store_counters(struct s3_store *s, struct s3_store_counters *counters)
{
	*counters = s->counters;
	counters->in_flight = s->in_flight;
}

uint64_t s3_store_outage(const struct s3_store *s)
{
	return s->failing_since ? sim_now() - s->failing_since : 0;
}
