/* SPDX-License-Identifier: BSD-3-Clause */
#include <leveldb/c.h>
#include <stdio.h>

#include "store.h"

#define DB(name) leveldb_##name
#define DB_NAME	 "leveldb"
#define OPS	 store_leveldb

static void version(char *out)
{
	snprintf(out, VERSION_SIZE, "%d.%d", leveldb_major_version(), leveldb_minor_version());
}

static void set_more(leveldb_options_t *options)
{
	(void)options;
}

#include "sorted.h"
