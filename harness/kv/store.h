/* SPDX-License-Identifier: BSD-3-Clause */
/* The libraries that hold the records, as the workloads see them. */
#ifndef KV_STORE_H
#define KV_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "record.h"

#define WHY	     256
#define VERSION_SIZE 32

struct store_options {
	const char *path; /* a directory that is ours alone */
	bool create;
	bool sync;	       /* each write is durable when it returns */
	uint64_t write_buffer; /* bytes; 0: as the library has it */
};

/* What one thread does with an open store. handle: the library's; why: of a failure. */
struct session {
	const struct store_ops *ops;
	void *store, *handle;
	char why[WHY];
};

/* What is called for each record of a scan: whether to go on. */
typedef bool store_visit(
	void *context, const char *key, size_t key_length, const struct record *record);

struct store_ops {
	const char *name;
	/* The library's: out has VERSION_SIZE bytes. */
	void (*version)(char *out);
	/* NULL: why says why. */
	void *(*open)(const struct store_options *options, char *why);
	void (*close)(void *store);
	/* A session's own handle, where it needs one; false: why says why. */
	bool (*begin)(struct session *s);
	void (*end)(struct session *s);
	/* These return 0, or -1 with why. Keys end with a zero. */
	int (*get)(struct session *s, const char *key, struct record *out);
	/* In place of the record with this key, if there is one. */
	int (*put)(struct session *s, const char *key, const struct record *record);
	/* One field of a record that is there. */
	int (*update)(struct session *s, const char *key, unsigned field, const char *value);
	/* From the first that is not below key; NULL: all. */
	int (*scan)(struct session *s, const char *key, unsigned count, store_visit *visit,
		void *context);
	/* What is put until the end of it may be made durable at once. */
	int (*batch)(struct session *s, bool begin);
};

#define MISSING "is missing"

extern const struct store_ops store_leveldb, store_rocksdb, store_sqlite;

#endif
