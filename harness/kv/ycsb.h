/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The core workloads of YCSB (Cooper et al., SoCC 2010) and what they draw: kinds of operations,
 * records, lengths of scans. Numbers are those of YCSB's own generators.
 */
#ifndef KV_YCSB_H
#define KV_YCSB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "harness/flow/random.h"

#define YCSB_THETA    0.99
#define YCSB_SCAN_MAX 100 /* records */

enum kind { KIND_READ, KIND_UPDATE, KIND_INSERT, KIND_SCAN, KIND_RMW, KINDS };
enum distribution { ZIPFIAN, LATEST, UNIFORM, DISTRIBUTIONS };

struct mix {
	const char *name, *what;
	unsigned percent[KINDS];
	enum distribution distribution;
	bool fills;    /* makes its records itself */
	bool in_order; /* keys rise with the numbers of records; else they are hashed */
};

extern const struct mix ycsb_mixes[];
extern const unsigned ycsb_mix_count;
extern const char *const ycsb_kinds[KINDS], *const ycsb_distributions[DISTRIBUTIONS];

/* FNV-1a of the number's eight bytes: scrambles what is drawn, and names records. */
uint64_t ycsb_hash(uint64_t number);

/* Zipf's distribution over [0, items), by Gray et al. 1994. */
struct zipf {
	uint64_t items;
	double zeta, eta;
};

void zipf_init(struct zipf *z, uint64_t items);
/* More items than before, for the terms of these alone. */
void zipf_grow(struct zipf *z, uint64_t items);
uint64_t zipf_draw(const struct zipf *z, struct rng *rng);

/* The numbers of existing records, which all threads share. */
#define YCSB_WINDOW 65536 /* inserts that may be under way */
struct numbers {
	_Atomic uint64_t next;	/* to be inserted */
	_Atomic uint64_t there; /* all below are */
	atomic_flag advancing;
	atomic_bool failed;
	atomic_bool done[YCSB_WINDOW];
};

void numbers_init(struct numbers *n, uint64_t there);
/* Waits while all of the window is under way. NO_NUMBER: for an insert that has failed. */
#define NO_NUMBER UINT64_MAX
uint64_t numbers_take(struct numbers *n);
/* The record that was taken is there now. */
void numbers_add(struct numbers *n, uint64_t number);
/* A record that was taken will never be there. */
void numbers_fail(struct numbers *n);

/* What one thread draws of a mix. */
struct chooser {
	const struct mix *mix;
	enum distribution distribution;
	uint64_t range; /* of what is scrambled: more records than there will be */
	struct zipf zipf;
};

void chooser_init(
	struct chooser *c, const struct mix *mix, enum distribution distribution, uint64_t records);
enum kind choose_kind(const struct chooser *c, struct rng *rng);
/* A record that is there. */
uint64_t choose_record(struct chooser *c, struct numbers *n, struct rng *rng);
unsigned choose_length(struct rng *rng);

#endif
