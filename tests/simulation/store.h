/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The object store and its client in the simulation, behind the interface of the real client
 * (s3_store_...). Objects are in memory. A request is one or more attempts, each of which takes
 * effect at the store at one moment, or not, and is answered later, or not; the client tries again
 * as the real one does, and takes what the real one makes of a reply from reply.c.
 */
#ifndef USERBLK_TESTS_SIMULATION_STORE_H
#define USERBLK_TESTS_SIMULATION_STORE_H

#include "backends/s3/client/client.h"
#include "tests/simulation/sim.h"

/* Draws latencies and faults. */
void store_draw(void);
/* Nothing takes effect after its sender was killed, or was given up. */
void store_in_order(void);
/* Is there a limit to what the store takes? */
bool store_may_be_full(void);
/* May a request since then have failed for longer than its deadline? */
bool store_troubled(uint64_t since);
/* No faults from now on; what is under way goes on. */
void store_calm(void);
/* Are there attempts, even of senders that have ended, that have not taken effect yet? */
bool store_busy(void);
/* Conditions that it ignores, as some stores do. */
void store_ignores(bool if_none_match, bool if_match);
/* For scenes: no faults but these. A store of so many bytes; requests that it always refuses. */
void store_serves(void);
void store_room(uint64_t bytes);
/* A line of so many bytes a second in each direction. */
void store_line(uint64_t bytes_per_s);
void store_refuses(enum s3_op op, const char *part_of_key);
/* Those of one key in so many only. 0: all. */
void store_refuses_one_in(uint64_t n);
/* Also requests that take effect so many ns later, and are answered so many after that. */
void store_slows(enum s3_op op, const char *part_of_key, uint64_t before, uint64_t after);
/* The first attempt of PUTs of such keys has no answer and takes effect up to so much later; the
 * next ones are refused, as by a full store. */
void store_refuses_again(const char *part_of_key, uint64_t ns);
/* Once in so many times the first attempt of a deletion takes effect up to so much later. */
void store_deletes_late(uint64_t once_in, uint64_t ns);
/* Notes what memory is allocated, besides the store's, at each PUT from now on; most of it up to
 * now. */
void store_watch(void);
uint64_t store_watched(void);
/* Calls fn for each object whose key begins with prefix. late: put by an attempt that had been
 * given up, or whose sender was gone. */
void store_each(const char *prefix,
	void (*fn)(void *opaque, const char *key, const uint8_t *data, size_t length, bool late),
	void *opaque);
/* An object is gone, and nobody has deleted it. */
void store_loses(const char *key);
void store_hash(void);
/* Objects, and bytes in them. */
void store_totals(uint64_t *objects, uint64_t *bytes);

#endif
