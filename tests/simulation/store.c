/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulated store: its objects, and what it does with a request. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/client/names.h"
#include "backends/s3/client/reply.h"
#include "tests/simulation/memory.h"
#include "tests/simulation/store_internal.h"

#define PAGE 7 /* objects of a listing: few, so that there are more pages */
/* Keys of the volumes, and of what a hostile store lists in their place. */
#define OURS	"sim/v"
#define FOREIGN "sim/w"

const char *const op_names[S3_OPS] = {"GET", "HEAD", "PUT", "DELETE", "DELETE_MANY", "LIST"};

/* ---- objects --------------------------------------------------------------------------------- */

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
static uint64_t blob_bytes; /* stored, or on their way */
static uint64_t watched_from, watched_most;
static bool ignores_if_none_match, ignores_if_match;

struct blob *new_blob(size_t length)
{
	struct blob *b = sim_memory_raw(sizeof *b + length);

	*b = (struct blob){.refs = 1, .length = length};
	blob_bytes += length;
	return b;
}

void let_go(struct blob *b)
{
	if (!b || --b->refs)
		return;
	blob_bytes -= b->length;
	free(b);
}

/* Where key is, or belongs. */
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

void store_loses(const char *key)
{
	delete_object(key);
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

void note_memory(void)
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
	note_memory();
	return watched_most;
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

	if (a->refused) {
		refuse(a, 507, "");
		return;
	}
	if (f->if_none_match && o && !ignores_if_none_match) {
		refuse(a, 412, "PreconditionFailed");
		return;
	}
	if (f->if_match && !ignores_if_match && (!o || !tag_fits(o, f->if_match))) {
		if (o || faults.missing_is_412)
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

void serve(struct attempt *a)
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
		"<Contents><Key>%s</Key><LastModified>%s</LastModified><ETag>&quot;%" PRIu64
		"&quot;</ETag><Size>%zu</Size></Contents>",
		key, time, o->tag, o->blob->length);
}

int list(struct s3_request *req)
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
	/* Before what may be the only key. */
	if (faults.empty_pages && !last) {
		fprintf(out, "<NextContinuationToken>%.*s</NextContinuationToken>",
			(int)strlen(req->key) - 1, req->key);
		truncated = true;
	}
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
