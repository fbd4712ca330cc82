/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * SQLite: YCSB's table, in the mode with a log. Without sync its log is synced where it goes into
 * the table, as far as the two others are durable without.
 */
#include <inttypes.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

#define LOCK_LIMIT_MS 60000 /* for another thread's write */
#define PAGE	      4096
#define COLUMNS	      "field0, field1, field2, field3, field4, field5, field6, field7, field8, field9"

enum statement { GET, PUT, SCAN, ALL, UPDATE, STATEMENTS = UPDATE + FIELDS };

static const char *const texts[] = {
	[GET] = "SELECT ycsb_key, " COLUMNS " FROM usertable WHERE ycsb_key = ?1",
	/* The records of a further run are there already; LevelDB and RocksDB replace them, too. */
	[PUT] = "INSERT OR REPLACE INTO usertable VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, "
		"?11)",
	[SCAN] = "SELECT ycsb_key, " COLUMNS
		 " FROM usertable WHERE ycsb_key >= ?1 ORDER BY ycsb_key LIMIT ?2",
	[ALL] = "SELECT ycsb_key, " COLUMNS " FROM usertable ORDER BY ycsb_key",
};

struct connection {
	sqlite3 *db;
	sqlite3_stmt *statements[STATEMENTS];
};

struct place {
	struct store_options options;
	char path[PATH_MAX];
};

static void version(char *out)
{
	snprintf(out, VERSION_SIZE, "%s", sqlite3_libversion());
}

/* -1, with the library's own words in why. */
static int failed(sqlite3 *db, char *why)
{
	snprintf(why, WHY, "%s", sqlite3_errmsg(db));
	return -1;
}

static int execute(sqlite3 *db, const char *text, char *why)
{
	return sqlite3_exec(db, text, NULL, NULL, NULL) == SQLITE_OK ? 0 : failed(db, why);
}

static void disconnect(struct connection *c)
{
	for (unsigned i = 0; i < STATEMENTS; i++)
		sqlite3_finalize(c->statements[i]);
	sqlite3_close(c->db);
	free(c);
}

static bool settings(const struct place *place, struct connection *c, char *why)
{
	char text[128];

	sqlite3_busy_timeout(c->db, LOCK_LIMIT_MS);
	snprintf(text, sizeof(text), "PRAGMA synchronous=%s",
		place->options.sync ? "FULL" : "NORMAL");
	if (execute(c->db, text, why) == -1)
		return false;
	if (!place->options.write_buffer)
		return true;
	snprintf(text, sizeof(text), "PRAGMA wal_autocheckpoint=%" PRIu64,
		1 + place->options.write_buffer / PAGE);
	return execute(c->db, text, why) == 0;
}

static struct connection *connect_to(const struct place *place, int flags, char *why)
{
	struct connection *c = calloc(1, sizeof(*c));
	int result;

	if (!c)
		abort();
	result = sqlite3_open_v2(
		place->path, &c->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | flags, NULL);
	if (result != SQLITE_OK)
		failed(c->db, why);
	else if (settings(place, c, why))
		return c;
	disconnect(c);
	return NULL;
}

static bool prepare(struct connection *c, char *why)
{
	char text[64];

	for (unsigned i = 0; i < STATEMENTS; i++) {
		if (i >= UPDATE)
			snprintf(text, sizeof(text),
				"UPDATE usertable SET field%u = ?2 WHERE ycsb_key = ?1",
				i - UPDATE);
		if (sqlite3_prepare_v2(c->db, i >= UPDATE ? text : texts[i], -1, &c->statements[i],
			    NULL) != SQLITE_OK) {
			failed(c->db, why);
			return false;
		}
	}
	return true;
}

static void *open_store(const struct store_options *options, char *why)
{
	struct place *place = malloc(sizeof(*place));
	struct connection *c;
	bool ok;

	if (!place)
		abort();
	place->options = *options;
	snprintf(place->path, sizeof(place->path), "%s/data", options->path);
	c = connect_to(place, options->create ? SQLITE_OPEN_CREATE : 0, why);
	ok = c && (!options->create ||
			  (execute(c->db, "PRAGMA journal_mode=WAL", why) == 0 &&
				  execute(c->db,
					  "CREATE TABLE usertable (ycsb_key VARCHAR(255) PRIMARY "
					  "KEY, " COLUMNS ")",
					  why) == 0));
	if (c)
		disconnect(c);
	if (ok)
		return place;
	free(place);
	return NULL;
}

static void close_store(void *store)
{
	free(store);
}

static bool begin_session(struct session *s)
{
	struct connection *c = connect_to(s->store, 0, s->why);

	s->handle = c;
	if (c && prepare(c, s->why))
		return true;
	if (c)
		disconnect(c);
	s->handle = NULL;
	return false;
}

static void end_session(struct session *s)
{
	if (s->handle)
		disconnect(s->handle);
}

static void bind_key(sqlite3_stmt *statement, const char *key)
{
	sqlite3_bind_text(statement, 1, key, KEY_SIZE, SQLITE_STATIC);
}

/* Resets a statement. 0 if it ended as expected. */
static int finish(struct session *s, sqlite3_stmt *statement, int result, int wanted)
{
	struct connection *c = s->handle;

	if (result != wanted)
		failed(c->db, s->why);
	sqlite3_reset(statement);
	return result == wanted ? 0 : -1;
}

static int take(struct session *s, sqlite3_stmt *statement, struct record *out)
{
	for (int i = 0; i < FIELDS; i++) {
		int length = sqlite3_column_bytes(statement, i + 1);

		if (length != FIELD_SIZE) {
			snprintf(s->why, WHY, "field %d has %d bytes instead of %d", i, length,
				FIELD_SIZE);
			return -1;
		}
		memcpy(out->fields[i], sqlite3_column_blob(statement, i + 1), FIELD_SIZE);
	}
	return 0;
}

static int get(struct session *s, const char *key, struct record *out)
{
	struct connection *c = s->handle;
	sqlite3_stmt *statement = c->statements[GET];
	int result;

	bind_key(statement, key);
	result = sqlite3_step(statement);
	if (result == SQLITE_DONE) {
		sqlite3_reset(statement);
		snprintf(s->why, WHY, MISSING);
		return -1;
	}
	if (result == SQLITE_ROW && take(s, statement, out) == -1) {
		sqlite3_reset(statement);
		return -1;
	}
	return finish(s, statement, result, SQLITE_ROW);
}

static int put(struct session *s, const char *key, const struct record *record)
{
	struct connection *c = s->handle;
	sqlite3_stmt *statement = c->statements[PUT];

	bind_key(statement, key);
	for (int i = 0; i < FIELDS; i++)
		sqlite3_bind_blob(statement, i + 2, record->fields[i], FIELD_SIZE, SQLITE_STATIC);
	return finish(s, statement, sqlite3_step(statement), SQLITE_DONE);
}

static int update(struct session *s, const char *key, unsigned field, const char *value)
{
	struct connection *c = s->handle;
	sqlite3_stmt *statement = c->statements[UPDATE + field];

	bind_key(statement, key);
	sqlite3_bind_blob(statement, 2, value, FIELD_SIZE, SQLITE_STATIC);
	if (finish(s, statement, sqlite3_step(statement), SQLITE_DONE) == -1)
		return -1;
	if (sqlite3_changes(c->db) == 1)
		return 0;
	snprintf(s->why, WHY, MISSING);
	return -1;
}

static int scan(
	struct session *s, const char *key, unsigned count, store_visit *visit, void *context)
{
	struct connection *c = s->handle;
	sqlite3_stmt *statement = c->statements[key ? SCAN : ALL];
	struct record record;
	int result;

	if (key) {
		bind_key(statement, key);
		sqlite3_bind_int64(statement, 2, count);
	}
	while ((result = sqlite3_step(statement)) == SQLITE_ROW) {
		if (take(s, statement, &record) == -1) {
			sqlite3_reset(statement);
			return -1;
		}
		if (!visit(context, (const char *)sqlite3_column_text(statement, 0),
			    (size_t)sqlite3_column_bytes(statement, 0), &record)) {
			result = SQLITE_DONE;
			break;
		}
	}
	return finish(s, statement, result, SQLITE_DONE);
}

static int batch(struct session *s, bool begin)
{
	struct connection *c = s->handle;

	return execute(c->db, begin ? "BEGIN" : "COMMIT", s->why);
}

const struct store_ops store_sqlite = {
	.name = "sqlite",
	.version = version,
	.open = open_store,
	.close = close_store,
	.begin = begin_session,
	.end = end_session,
	.get = get,
	.put = put,
	.update = update,
	.scan = scan,
	.batch = batch,
};
