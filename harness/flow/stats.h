/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Counters and latency histograms.
 *
 * A histogram has the bins of fio's json+ output (FIO_IO_U_PLAT_BITS 6): a bin
 * for every nanosecond below 128, then 64 bins for every power of two, the last
 * one open: from 136 s on, not from 17 s on as in fio, since requests of an open
 * loop that a device does not keep up with wait as long as it runs. A bin is named by the value fio
 * names it by, so the "bins" object of a fio json+ file is a histogram of ours as
 * it stands.
 */
#ifndef FLOW_STATS_H
#define FLOW_STATS_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#define STATS_GROUPS	 32 /* as many as bits in stats_live.groups */
#define STATS_GROUP_BINS 64
#define STATS_BINS	 (STATS_GROUPS * STATS_GROUP_BINS)

/*
 * What one thread counts for one of its flowops: written by that thread only,
 * read by the sampler at any time, hence atomic but without read-modify-write.
 * All but the bins is in one cache line, and of the bins only the groups in use
 * are ever touched, so that pages of the rest cost nothing.
 */
struct stats_live {
	_Alignas(64) uint64_t ops; /* for the thread itself */
	_Atomic uint64_t bytes;
	_Atomic uint64_t sum_ns;
	_Atomic uint64_t min_ns, max_ns; /* min is UINT64_MAX before the first */
	_Atomic uint32_t groups;	 /* bit per group of 64 bins in use */
	_Atomic uint64_t bins[STATS_BINS];
};

/* A sum over threads, or the difference of two. */
struct stats {
	uint64_t ops, bytes, sum_ns;
	uint64_t min_ns, max_ns; /* 0 and 0 without operations */
	uint64_t bins[STATS_BINS];
};

static inline unsigned stats_bin(uint64_t ns)
{
	if (ns < 2 * STATS_GROUP_BINS)
		return (unsigned)ns;

	unsigned group = 57 - (unsigned)__builtin_clzll(ns); /* values per bin: 2^group */
	unsigned bin = (group << 6) + (unsigned)(ns >> group);

	return bin < STATS_BINS ? bin : STATS_BINS - 1;
}

/* fio's name of a bin: the middle of the values in it, in ns. */
uint64_t stats_bin_value(unsigned bin);

void stats_live_init(struct stats_live *live);

/* One operation; its own thread only. */
static inline void stats_record(struct stats_live *live, uint64_t ns, uint64_t bytes)
{
	const memory_order relaxed = memory_order_relaxed;
	unsigned bin = stats_bin(ns);
	uint32_t groups = atomic_load_explicit(&live->groups, relaxed);
	uint32_t group = UINT32_C(1) << (bin / STATS_GROUP_BINS);

	live->ops++;
	if (!(groups & group))
		atomic_store_explicit(&live->groups, groups | group, relaxed);
	atomic_store_explicit(
		&live->bins[bin], atomic_load_explicit(&live->bins[bin], relaxed) + 1, relaxed);
	atomic_store_explicit(
		&live->sum_ns, atomic_load_explicit(&live->sum_ns, relaxed) + ns, relaxed);
	if (bytes > 0)
		atomic_store_explicit(
			&live->bytes, atomic_load_explicit(&live->bytes, relaxed) + bytes, relaxed);
	if (ns < atomic_load_explicit(&live->min_ns, relaxed))
		atomic_store_explicit(&live->min_ns, ns, relaxed);
	if (ns > atomic_load_explicit(&live->max_ns, relaxed))
		atomic_store_explicit(&live->max_ns, ns, relaxed);
}

/* Adds what a thread has counted so far; operations are counted from the bins. */
void stats_add_live(struct stats *sum, struct stats_live *live);
void stats_add(struct stats *sum, const struct stats *more);
/* "NAME": {...}, as it is in the results. */
void stats_print(FILE *f, const char *name, const struct stats *s);
/* What came between two sums; min and max are then those of the bins. */
void stats_difference(struct stats *out, const struct stats *now, const struct stats *before);

#endif
