/* SPDX-License-Identifier: BSD-3-Clause */
#include <err.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "harness/ops/command.h"
#include "harness/ops/crew.h"

#include "kv.h"

#define BATCH	       1000 /* records that are loaded at once */
#define VERSION_SHIFT  40   /* versions of a thread are apart from the others' */
#define CHOICES_STREAM 1    /* of random numbers */

static uint64_t id_of(const struct mix *mix, uint64_t number)
{
	return mix->in_order ? number : ycsb_hash(number);
}

/* ---- an open store ---- */

static void *open_store(const struct options *o, bool create)
{
	const struct store_options options = {o->place, create, o->sync, o->write_buffer};
	char why[WHY] = "";
	void *store;

	if (create && mkdir(o->place, 0755) == -1) {
		warnx("%s: %s", o->place, strerror(errno));
		return NULL;
	}
	store = o->store->open(&options, why);
	if (!store)
		warnx("%s: %s: %s", o->store->name, o->place, why);
	return store;
}

static bool begin_session(const struct options *o, void *store, struct session *s)
{
	*s = (struct session){.ops = o->store, .store = store};
	return s->ops->begin(s);
}

/* ---- loading ---- */

static bool load(const struct options *o, struct session *s)
{
	char key[KEY_SIZE + 1];
	struct record record;

	for (uint64_t i = 0; i < o->records; i++) {
		uint64_t id = id_of(o->mix, i);

		if (i % BATCH == 0 && s->ops->batch(s, true) == -1)
			return false;
		record_key(id, key);
		record_fill(id, 0, &record);
		if (s->ops->put(s, key, &record) == -1)
			return false;
		if (((i + 1) % BATCH == 0 || i + 1 == o->records) && s->ops->batch(s, false) == -1)
			return false;
	}
	return true;
}

int bench_load(const struct options *o)
{
	void *store = open_store(o, true);
	struct session s;
	bool ok;

	if (!store)
		return 1;
	ok = begin_session(o, store, &s) && load(o, &s);
	if (!ok)
		warnx("%s: loading: %s", o->store->name, s.why);
	s.ops->end(&s);
	o->store->close(store);
	return ok ? 0 : 1;
}

/* ---- looking through it ---- */

struct look {
	uint64_t records;
	uint64_t bytes;
	const char *first; /* the first key of a scan */
	char last[KEY_SIZE + 1], why[WHY];
};

/* Is it what was written, and behind the one before? */
static bool look_at(void *context, const char *key, size_t key_length, const struct record *record)
{
	struct look *look = context;
	unsigned field;
	uint64_t id;

	if (!record_id(key, key_length, &id)) {
		snprintf(look->why, WHY, "a key of %zu bytes was not written", key_length);
		return false;
	}
	if (look->records > 0 ? memcmp(look->last, key, KEY_SIZE) >= 0
			      : look->first && memcmp(look->first, key, KEY_SIZE) != 0) {
		snprintf(look->why, WHY, "%.*s is not in its place", KEY_SIZE, key);
		return false;
	}
	field = record_check(id, record);
	if (field < FIELDS) {
		snprintf(look->why, WHY, "%.*s: field %u is not what was written", KEY_SIZE, key,
			field);
		return false;
	}
	memcpy(look->last, key, KEY_SIZE);
	look->records++;
	look->bytes += RECORD_SIZE;
	return true;
}

int bench_check(const struct options *o)
{
	void *store = open_store(o, false);
	struct look look = {.records = 0};
	struct session s;
	bool ok;

	if (!store)
		return 1;
	ok = begin_session(o, store, &s) && s.ops->scan(&s, NULL, 0, look_at, &look) == 0;
	if (!ok || look.why[0])
		warnx("%s: %s", o->store->name, ok ? look.why : s.why);
	else
		printf("%s: %" PRIu64 " records, all as they were written\n", o->store->name,
			look.records);
	s.ops->end(&s);
	o->store->close(store);
	return ok && !look.why[0] ? 0 : 1;
}

/* ---- the threads that work ---- */

struct bench {
	const struct options *options;
	void *store;
	struct numbers *numbers;
};

struct thread {
	struct session session;
	struct chooser chooser;
	struct rng rng;
	char key[KEY_SIZE + 1];
	uint64_t version;
};

static enum crew_step begin(struct crew_worker *w)
{
	const struct bench *bench = w->task;
	const struct options *o = bench->options;
	struct thread *t = calloc(1, sizeof(*t));

	if (!t)
		abort();
	w->own = t;
	chooser_init(&t->chooser, o->mix, o->distribution, o->records);
	rng_seed(&t->rng, o->common.seed, CHOICES_STREAM + w->index);
	t->version = (uint64_t)(w->index + 1) << VERSION_SHIFT;
	if (begin_session(o, bench->store, &t->session))
		return CREW_DONE;
	snprintf(w->why, sizeof(w->why), "%s", t->session.why);
	return CREW_FAILED;
}

static void end(struct crew_worker *w)
{
	struct thread *t = w->own;

	t->session.ops->end(&t->session);
	free(t);
}

/* 0, or -1 with why. */
static int read_one(struct thread *t, uint64_t id)
{
	struct record record;
	unsigned field;

	if (t->session.ops->get(&t->session, t->key, &record) == -1)
		return -1;
	field = record_check(id, &record);
	if (field == FIELDS)
		return 0;
	snprintf(t->session.why, WHY, "field %u is not what was written", field);
	return -1;
}

static int update_one(struct thread *t, uint64_t id)
{
	unsigned field = (unsigned)rng_below(&t->rng, FIELDS);
	char value[FIELD_SIZE];

	record_fill_field(id, field, t->version++, value);
	return t->session.ops->update(&t->session, t->key, field, value);
}

static int insert_one(struct thread *t, uint64_t id)
{
	struct record record;

	record_fill(id, t->version++, &record);
	return t->session.ops->put(&t->session, t->key, &record);
}

static int scan_one(struct thread *t, uint64_t *bytes)
{
	struct look look = {.first = t->key};
	int result =
		t->session.ops->scan(&t->session, t->key, choose_length(&t->rng), look_at, &look);

	*bytes = look.bytes;
	if (result == 0 && !look.why[0] && look.records == 0)
		snprintf(look.why, WHY, MISSING);
	if (look.why[0])
		memcpy(t->session.why, look.why, WHY);
	return look.why[0] ? -1 : result;
}

static int operate(struct crew_worker *w, uint64_t id)
{
	struct thread *t = w->own;

	w->bytes = RECORD_SIZE;
	switch ((enum kind)w->kind) {
	case KIND_READ:
		return read_one(t, id);
	case KIND_UPDATE:
		w->bytes = FIELD_SIZE;
		return update_one(t, id);
	case KIND_INSERT:
		return insert_one(t, id);
	case KIND_SCAN:
		return scan_one(t, &w->bytes);
	case KIND_RMW:
		w->bytes = RECORD_SIZE + FIELD_SIZE;
		return read_one(t, id) == -1 ? -1 : update_one(t, id);
	case KINDS:
		break;
	}
	abort();
}

static enum crew_step step(struct crew_worker *w)
{
	const struct bench *bench = w->task;
	const struct mix *mix = bench->options->mix;
	struct thread *t = w->own;
	uint64_t number;

	w->kind = choose_kind(&t->chooser, &t->rng);
	if (w->kind == KIND_INSERT) {
		number = numbers_take(bench->numbers);
		if (number == NO_NUMBER || (mix->fills && number >= bench->options->records))
			return CREW_OUT_OF_WORK;
	} else {
		number = choose_record(&t->chooser, bench->numbers, &t->rng);
	}
	record_key(id_of(mix, number), t->key);
	if (operate(w, id_of(mix, number)) == -1) {
		snprintf(w->why, sizeof(w->why), "%s: %s: %s", ycsb_kinds[w->kind], t->key,
			t->session.why);
		if (w->kind == KIND_INSERT)
			numbers_fail(bench->numbers);
		return CREW_FAILED;
	}
	if (w->kind == KIND_INSERT)
		numbers_add(bench->numbers, number);
	return CREW_DONE;
}

static bool write_json(
	const struct options *o, const struct crew *crew, const struct crew_results *r)
{
	char *head = NULL, version[VERSION_SIZE];
	bool ok;

	o->store->version(version);
	if (asprintf(&head,
		    "\"store\": \"%s\", \"library\": \"%s %s\", \"workload\": \"%s\", "
		    "\"distribution\": \"%s\", \"sync\": %s, \"seed\": %" PRIu64
		    ",\n  \"variables\": {\"records\": %" PRIu64 ", \"write-buffer\": %" PRIu64
		    ", \"count\": %" PRIu64 "},",
		    o->store->name, o->store->name, version, o->mix->name,
		    ycsb_distributions[o->distribution], o->sync ? "true" : "false", o->common.seed,
		    o->records, o->write_buffer, o->common.count) == -1)
		abort();
	ok = crew_write(crew, r, o->common.json, head);
	free(head);
	return ok;
}

static bool work(const struct bench *bench, struct crew_results *results)
{
	const struct options *o = bench->options;
	char name[64];
	const struct crew crew = {
		.name = name,
		.task = bench,
		.workers = o->threads,
		.threads = true,
		.unpinned = true,
		.seconds = o->common.seconds,
		.interval = o->common.interval,
		.count = o->common.count,
		.kinds = ycsb_kinds,
		.kind_count = KINDS,
		.begin = begin,
		.step = step,
		.end = end,
	};

	snprintf(name, sizeof(name), "%s %s", o->store->name, o->mix->name);
	if (!crew_run(&crew, results))
		return false;
	crew_print(&crew, results);
	return !o->common.json || write_json(o, &crew, results);
}

int bench_run(const struct options *o)
{
	static struct crew_results results;
	struct bench bench = {.options = o, .store = open_store(o, o->mix->fills)};
	bool ok;

	if (!bench.store)
		return 1;
	bench.numbers = malloc(sizeof(*bench.numbers));
	if (!bench.numbers)
		abort();
	numbers_init(bench.numbers, o->mix->fills ? 0 : o->records);
	ok = work(&bench, &results);
	o->store->close(bench.store);
	free(bench.numbers);
	free(results.intervals);
	return crew_status(&results, ok);
}
