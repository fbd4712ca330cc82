/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What volumes may hold: the history of each opening for writing, and whether what is read goes
 * with it. The unit is a sector of 512 bytes, whose content tells which operation wrote it.
 *
 * Contents are a prefix of a history if there is a set of its operations which holds, with each
 * one, all that had been answered before that began, and all that an answered flush covers, and
 * which leads to these contents in some order that does not contradict the answers.
 */
#ifndef USERBLK_TESTS_SIMULATION_MODEL_H
#define USERBLK_TESTS_SIMULATION_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SECTOR 512u

/* A point in the order of all calls and answers; MODEL_NEVER: it was never answered well. */
#define MODEL_NEVER UINT64_MAX

struct model_op {
	uint32_t id;		  /* what its sectors hold; 0: zeroes */
	uint32_t first, n;	  /* sectors */
	const uint32_t *contents; /* of all sectors, after a rollback; else NULL */
	uint64_t call, answer;
	bool durable; /* answered, and not to be lost */
	bool lost;    /* a later writer has not seen it */
};

struct model_node {
	struct model_node *older;
	struct model_op *op;
};

/* An opening for writing. */
struct model_session {
	struct model_session *older; /* of its volume */
	uint64_t epoch;
	uint32_t *base;		   /* what it found, by sector */
	struct model_node **nodes; /* of each sector, newest first */
	uint64_t floor;		   /* calls of the newest answered flush */
	uint64_t stored;	   /* the same of what does not rest on a write-back log */
	bool based;		   /* base is known, it may write */
	bool superseded;	   /* another writer has taken over */
	uint64_t lost_answer;	   /* soonest answer of a write that the next one has not seen */
	bool weak;		   /* its flushes promise nothing about the store */
	bool logged;		   /* nor without its write-back log */
	bool given_up;		   /* that log is: what only it held is no longer promised */
};

uint64_t model_tick(void);
uint64_t model_time(void);

/* Fills sectors as operation id writes them; compressible ones for some ids. */
void model_fill(uint8_t *data, uint32_t id, uint32_t first, uint32_t n);
/* Which operation wrote a sector; fails if none did. where: for the message. */
uint32_t model_read(const uint8_t *data, uint32_t sector, const char *where);

struct model_session *model_session_new(uint32_t sectors, struct model_session *older);
/* Begins an operation; answered with model_tick() in answer. contents: see struct model_op. */
struct model_op *model_begin(
	struct model_session *s, uint32_t id, uint32_t first, uint32_t n, const uint32_t *contents);

/*
 * Could seen (of n sectors) be what is left of s? floor: everything answered before that is there;
 * limit: nothing called after that; MODEL_NEVER: it is all that was left, with what was
 * durable. unordered: each sector by itself, without any order. If not, bad
 * tells the first sector and why.
 */
bool model_is_prefix(const struct model_session *s, const uint32_t *seen, uint32_t n,
	uint64_t floor, uint64_t limit, bool unordered, uint32_t *bad, const char **why);
/* May a read that was called then see id in a sector? */
bool model_may_read(const struct model_session *s, uint32_t sector, uint32_t id, uint64_t call);
/* A writer after s has found seen: marks what of s is lost. Operations that are. */
unsigned model_supersede(struct model_session *s, const uint32_t *seen, uint32_t n);

#endif
