/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * userblk-kv: YCSB's workloads on libraries that hold keys and values in files.
 *
 *   main.c     options
 *   ycsb.c     the workloads, and what they draw
 *   record.c   records, of which each byte can be judged
 *   sorted.h   LevelDB and RocksDB; sqlite.c: SQLite
 *   bench.c    loading, the threads that work, looking through all of it
 */
#ifndef USERBLK_KV_H
#define USERBLK_KV_H

#include <limits.h>

#include "harness/ops/command.h"

#include "store.h"
#include "ycsb.h"

#define NAME "userblk-kv"

enum phase { PHASE_ALL, PHASE_LOAD, PHASE_RUN, PHASE_CHECK, PHASES };

struct options {
	const struct store_ops *store;
	const struct mix *mix;
	enum distribution distribution;
	enum phase phase;
	char place[PATH_MAX]; /* a directory that is ours alone */
	struct common_options common;
	uint64_t records, write_buffer;
	unsigned threads;
	bool sync;
};

/* Each returns an exit status; what is wrong was reported. */
int bench_load(const struct options *o);
int bench_run(const struct options *o);
/* Reads all records there are. */
int bench_check(const struct options *o);

#endif
