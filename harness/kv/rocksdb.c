/* SPDX-License-Identifier: BSD-3-Clause */
#include <rocksdb/c.h>
#include <stdio.h>

#include "store.h"

#define DB(name) rocksdb_##name
#define DB_NAME	 "rocksdb"
#define OPS	 store_rocksdb

static void version(char *out)
{
	snprintf(out, VERSION_SIZE, "%s", ROCKSDB_VERSION);
}

#include "sorted.h"
