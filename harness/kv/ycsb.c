/* SPDX-License-Identifier: BSD-3-Clause */
#include "ycsb.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* What YCSB scrambles: so many items, and the sum over them, which takes minutes. */
#define SCRAMBLED_ITEMS UINT64_C(10000000000)
#define SCRAMBLED_ZETA	26.46902820178302

#define PAUSE_NS 50000 /* until it is seen whether a slow insert is done */

#define SPARE 2 /* times as many records as at first may there be before new ones are not read */

const struct mix ycsb_mixes[] = {
	{"a", "50 % reads, 50 % updates", {50, 50, 0, 0, 0}, ZIPFIAN, false, false},
	{"b", "95 % reads, 5 % updates", {95, 5, 0, 0, 0}, ZIPFIAN, false, false},
	{"c", "reads", {100, 0, 0, 0, 0}, ZIPFIAN, false, false},
	{"d", "95 % reads of the latest, 5 % inserts", {95, 0, 5, 0, 0}, LATEST, false, false},
	{"e", "95 % scans of up to 100, 5 % inserts", {0, 0, 5, 95, 0}, ZIPFIAN, false, false},
	{"f", "50 % reads, 50 % read-modify-writes", {50, 0, 0, 0, 50}, ZIPFIAN, false, false},
	{"fillseq", "inserts in the order of keys", {0, 0, 100, 0, 0}, ZIPFIAN, true, true},
	{"fillrandom", "inserts in random order", {0, 0, 100, 0, 0}, ZIPFIAN, true, false},
};
const unsigned ycsb_mix_count = sizeof ycsb_mixes / sizeof *ycsb_mixes;

const char *const ycsb_kinds[KINDS] = {
	[KIND_READ] = "read",
	[KIND_UPDATE] = "update",
	[KIND_INSERT] = "insert",
	[KIND_SCAN] = "scan",
	[KIND_RMW] = "read-modify-write",
};

const char *const ycsb_distributions[DISTRIBUTIONS] = {
	[ZIPFIAN] = "zipfian",
	[LATEST] = "latest",
	[UNIFORM] = "uniform",
};

uint64_t ycsb_hash(uint64_t number)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (int i = 0; i < 8; i++, number >>= 8)
		hash = (hash ^ (number & 0xff)) * UINT64_C(1099511628211);
	return hash;
}

/* ---- Zipf ---- */

static double zeta(double from, uint64_t begin, uint64_t end)
{
	for (uint64_t i = begin; i < end; i++)
		from += 1 / pow((double)i + 1, YCSB_THETA);
	return from;
}

static void set_eta(struct zipf *z)
{
	z->eta = (1 - pow(2.0 / (double)z->items, 1 - YCSB_THETA)) / (1 - zeta(0, 0, 2) / z->zeta);
}

void zipf_init(struct zipf *z, uint64_t items)
{
	*z = (struct zipf){.items = 0};
	zipf_grow(z, items);
}

void zipf_grow(struct zipf *z, uint64_t items)
{
	z->zeta = zeta(z->zeta, z->items, items);
	z->items = items;
	set_eta(z);
}

uint64_t zipf_draw(const struct zipf *z, struct rng *rng)
{
	double u = rng_unit(rng), rank = u * z->zeta;
	uint64_t drawn;

	if (rank < 1)
		return 0;
	if (rank < 1 + pow(0.5, YCSB_THETA))
		return 1;
	drawn = (uint64_t)((double)z->items * pow(z->eta * u - z->eta + 1, 1 / (1 - YCSB_THETA)));
	return drawn < z->items ? drawn : z->items - 1;
}

/* ---- existing records ---- */

void numbers_init(struct numbers *n, uint64_t there)
{
	memset((void *)n, 0, sizeof(*n));
	atomic_store(&n->next, there);
	atomic_store(&n->there, there);
}

/* A thread that finds another advancing leaves it to that one, or to the next. */
static void advance(struct numbers *n)
{
	uint64_t there;

	if (atomic_flag_test_and_set(&n->advancing))
		return;
	there = atomic_load(&n->there);
	while (atomic_load(&n->done[there % YCSB_WINDOW])) {
		atomic_store(&n->done[there % YCSB_WINDOW], false);
		atomic_store(&n->there, ++there);
	}
	atomic_flag_clear(&n->advancing);
}

uint64_t numbers_take(struct numbers *n)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	uint64_t number = atomic_fetch_add(&n->next, 1);

	while (number - atomic_load(&n->there) >= YCSB_WINDOW) {
		if (atomic_load(&n->failed))
			return NO_NUMBER;
		advance(n); /* it may have been left to the next, and all are here */
		nanosleep(&pause, NULL);
	}
	return number;
}

void numbers_add(struct numbers *n, uint64_t number)
{
	atomic_store(&n->done[number % YCSB_WINDOW], true);
	advance(n);
}

void numbers_fail(struct numbers *n)
{
	atomic_store(&n->failed, true);
}

/* ---- what is drawn ---- */

void chooser_init(
	struct chooser *c, const struct mix *mix, enum distribution distribution, uint64_t records)
{
	*c = (struct chooser){.mix = mix, .distribution = distribution};
	/* As popular as before they stay, however many are inserted. */
	c->range = mix->percent[KIND_INSERT] > 0 ? SPARE * records : records;
	if (distribution == LATEST) {
		zipf_init(&c->zipf, records);
	} else if (distribution == ZIPFIAN) {
		c->zipf = (struct zipf){.items = SCRAMBLED_ITEMS, .zeta = SCRAMBLED_ZETA};
		set_eta(&c->zipf);
	}
}

enum kind choose_kind(const struct chooser *c, struct rng *rng)
{
	unsigned drawn = (unsigned)rng_below(rng, 100), kind = 0;

	while (drawn >= c->mix->percent[kind])
		drawn -= c->mix->percent[kind++];
	return (enum kind)kind;
}

uint64_t choose_record(struct chooser *c, struct numbers *n, struct rng *rng)
{
	uint64_t there = atomic_load(&n->there), drawn;

	if (c->distribution == UNIFORM)
		return rng_below(rng, there);
	if (c->distribution == LATEST) {
		if (there > c->zipf.items)
			zipf_grow(&c->zipf, there);
		return there - 1 - zipf_draw(&c->zipf, rng);
	}
	do
		drawn = ycsb_hash(zipf_draw(&c->zipf, rng)) % c->range;
	while (drawn >= there);
	return drawn;
}

unsigned choose_length(struct rng *rng)
{
	return 1 + (unsigned)rng_below(rng, YCSB_SCAN_MAX);
}
