/* SPDX-License-Identifier: BSD-3-Clause */
#include "record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "harness/flow/random.h"

#define PREFIX "user"

void record_key(uint64_t id, char *out)
{
	snprintf(out, KEY_SIZE + 1, PREFIX "%020" PRIu64, id);
}

bool record_id(const char *key, size_t length, uint64_t *id)
{
	uint64_t found = 0;

	if (length != KEY_SIZE || memcmp(key, PREFIX, sizeof(PREFIX) - 1) != 0)
		return false;
	for (size_t i = sizeof(PREFIX) - 1; i < KEY_SIZE; i++) {
		unsigned digit = (unsigned)(unsigned char)key[i] - '0';

		if (digit > 9 || __builtin_mul_overflow(found, 10, &found) ||
			__builtin_add_overflow(found, digit, &found))
			return false;
	}
	*id = found;
	return true;
}

void record_fill_field(uint64_t id, unsigned field, uint64_t version, char *out)
{
	struct rng rng;

	rng_seed(&rng, id, version * FIELDS + field);
	memcpy(out, &version, sizeof(version));
	rng_fill(&rng, out + sizeof(version), FIELD_SIZE - sizeof(version));
}

void record_fill(uint64_t id, uint64_t version, struct record *out)
{
	for (unsigned i = 0; i < FIELDS; i++)
		record_fill_field(id, i, version, out->fields[i]);
}

unsigned record_check(uint64_t id, const struct record *record)
{
	char expected[FIELD_SIZE];
	uint64_t version;
	unsigned i;

	for (i = 0; i < FIELDS; i++) {
		memcpy(&version, record->fields[i], sizeof(version));
		record_fill_field(id, i, version, expected);
		if (memcmp(record->fields[i], expected, FIELD_SIZE) != 0)
			break;
	}
	return i;
}
