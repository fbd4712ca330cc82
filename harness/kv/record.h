/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A record: a key and ten fields of 100 bytes. The bytes of a field say which write they are of,
 * and follow from that and the key, so that whatever is read can be judged.
 */
#ifndef KV_RECORD_H
#define KV_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FIELDS	    10
#define FIELD_SIZE  100
#define RECORD_SIZE (FIELDS * FIELD_SIZE)
#define KEY_SIZE    24 /* "user" and 20 digits, as text */

struct record {
	char fields[FIELDS][FIELD_SIZE];
};

/* The key of the record with this number in it; out has KEY_SIZE + 1 bytes. */
void record_key(uint64_t id, char *out);
/* The number in a key. False: it is not one of our keys. */
bool record_id(const char *key, size_t length, uint64_t *id);

void record_fill_field(uint64_t id, unsigned field, uint64_t version, char *out);
void record_fill(uint64_t id, uint64_t version, struct record *out);
/* The first field that is not as it was written; FIELDS: all are. */
unsigned record_check(uint64_t id, const struct record *record);

#endif
