/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * LevelDB and RocksDB, whose C interfaces differ in their prefix only. A file that includes this
 * one defines DB(name), a name with that prefix, DB_NAME, version(), set_more(), which sets the
 * library's own options, and OPS, the name of the store_ops that result.
 *
 * A record is one value. To change a field is to read it, and to write it with that field changed,
 * as YCSB's own binding of RocksDB does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

struct sorted {
	DB(t) * db;
	DB(options_t) * options;
	DB(readoptions_t) * reading;
	DB(writeoptions_t) * writing;
};

/* 0, or -1 with the library's own words in why. */
static int failed(char *error, char *why)
{
	if (!error)
		return 0;
	snprintf(why, WHY, "%s", error);
	DB(free)(error);
	return -1;
}

static void close_store(void *store)
{
	struct sorted *s = store;

	if (s->db)
		DB(close)(s->db);
	DB(options_destroy)(s->options);
	DB(readoptions_destroy)(s->reading);
	DB(writeoptions_destroy)(s->writing);
	free(s);
}

static void *open_store(const struct store_options *options, char *why)
{
	struct sorted *s = malloc(sizeof(*s));
	char *error = NULL;

	if (!s)
		abort();
	*s = (struct sorted){
		NULL, DB(options_create)(), DB(readoptions_create)(), DB(writeoptions_create)()};
	DB(options_set_create_if_missing)(s->options, options->create);
	DB(options_set_error_if_exists)(s->options, options->create);
	if (options->write_buffer)
		DB(options_set_write_buffer_size)(s->options, options->write_buffer);
	DB(writeoptions_set_sync)(s->writing, options->sync);
	set_more(s->options);
	s->db = DB(open)(s->options, options->path, &error);
	if (failed(error, why) == 0)
		return s;
	s->db = NULL;
	close_store(s);
	return NULL;
}

static bool begin_session(struct session *session)
{
	(void)session;
	return true;
}

static void end_session(struct session *session)
{
	(void)session;
}

/* 0, or -1: no record. */
static int take(struct session *session, const char *value, size_t length, struct record *out)
{
	if (length != RECORD_SIZE) {
		snprintf(session->why, WHY, "has %zu bytes instead of %d", length, RECORD_SIZE);
		return -1;
	}
	memcpy(out, value, RECORD_SIZE);
	return 0;
}

static int get(struct session *session, const char *key, struct record *out)
{
	struct sorted *s = session->store;
	char *error = NULL, *value;
	size_t length;
	int result;

	value = DB(get)(s->db, s->reading, key, KEY_SIZE, &length, &error);
	if (failed(error, session->why) == -1)
		return -1;
	if (!value) {
		snprintf(session->why, WHY, MISSING);
		return -1;
	}
	result = take(session, value, length, out);
	DB(free)(value);
	return result;
}

static int put(struct session *session, const char *key, const struct record *record)
{
	struct sorted *s = session->store;
	char *error = NULL;

	DB(put)(s->db, s->writing, key, KEY_SIZE, record->fields[0], RECORD_SIZE, &error);
	return failed(error, session->why);
}

static int update(struct session *session, const char *key, unsigned field, const char *value)
{
	struct record record;

	if (get(session, key, &record) == -1)
		return -1;
	memcpy(record.fields[field], value, FIELD_SIZE);
	return put(session, key, &record);
}

static int scan(
	struct session *session, const char *key, unsigned count, store_visit *visit, void *context)
{
	struct sorted *s = session->store;
	DB(iterator_t) *at = DB(create_iterator)(s->db, s->reading);
	struct record record;
	char *error = NULL;
	int result = 0;

	if (key)
		DB(iter_seek)(at, key, KEY_SIZE);
	else
		DB(iter_seek_to_first)(at);
	for (; DB(iter_valid)(at) && (!key || count > 0); count--) {
		size_t length, key_length;
		const char *value = DB(iter_value)(at, &length);
		const char *found = DB(iter_key)(at, &key_length);

		result = take(session, value, length, &record);
		if (result == -1 || !visit(context, found, key_length, &record))
			break;
		DB(iter_next)(at);
	}
	DB(iter_get_error)(at, &error);
	if (failed(error, session->why) == -1)
		result = -1;
	DB(iter_destroy)(at);
	return result;
}

static int batch(struct session *session, bool begin)
{
	(void)session;
	(void)begin;
	return 0;
}

const struct store_ops OPS = {
	.name = DB_NAME,
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
