/* SPDX-License-Identifier: BSD-3-Clause */
#include <rocksdb/c.h>
#include <stdio.h>

#include "store.h"

#define DB(name) rocksdb_##name
#define DB_NAME	 "rocksdb"
#define OPS	 store_rocksdb

#define FATAL_LEVEL 4 /* of rocksdb::InfoLogLevel, which the C interface does not name */

static void version(char *out)
{
	snprintf(out, VERSION_SIZE, "%s", ROCKSDB_VERSION);
}

/*
 * RocksDB writes what it does to a file LOG beside its data. With the assertions of Debian's
 * library, the second line that a full file system does not take ends the program: abort() in a
 * thread of the library's, instead of an error for us. So LOG stays empty.
 */
static void set_more(rocksdb_options_t *options)
{
	rocksdb_options_set_info_log_level(options, FATAL_LEVEL);
}

#include "sorted.h"
