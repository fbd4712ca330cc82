/* SPDX-License-Identifier: BSD-3-Clause */
#include "stats.h"

#include <inttypes.h>

uint64_t stats_bin_value(unsigned bin)
{
	if (bin < 2 * STATS_GROUP_BINS)
		return bin;

	unsigned group = bin / STATS_GROUP_BINS - 1;
	uint64_t base = UINT64_C(1) << (group + 6), within = bin % STATS_GROUP_BINS;

	return base + (within << group) + (UINT64_C(1) << group) / 2;
}

void stats_live_init(struct stats_live *live)
{
	atomic_store_explicit(&live->min_ns, UINT64_MAX, memory_order_relaxed);
}

/* Widens the extremes of a sum that counts operations already. */
static void widen(struct stats *sum, uint64_t ops, uint64_t min, uint64_t max)
{
	if (ops == 0)
		return;
	if (sum->ops == 0 || min < sum->min_ns)
		sum->min_ns = min;
	if (max > sum->max_ns)
		sum->max_ns = max;
	sum->ops += ops;
}

void stats_add_live(struct stats *sum, struct stats_live *live)
{
	const memory_order relaxed = memory_order_relaxed;
	uint32_t groups = atomic_load_explicit(&live->groups, relaxed);
	uint64_t ops = 0;

	for (unsigned group = 0; groups != 0; group++, groups >>= 1) {
		if (!(groups & 1))
			continue;
		for (unsigned i = 0; i < STATS_GROUP_BINS; i++) {
			unsigned bin = group * STATS_GROUP_BINS + i;
			uint64_t n = atomic_load_explicit(&live->bins[bin], relaxed);

			sum->bins[bin] += n;
			ops += n;
		}
	}
	sum->bytes += atomic_load_explicit(&live->bytes, relaxed);
	sum->sum_ns += atomic_load_explicit(&live->sum_ns, relaxed);

	/* A thread writes the bin first: its extremes may lag one operation behind. */
	uint64_t min = atomic_load_explicit(&live->min_ns, relaxed);

	if (min != UINT64_MAX)
		widen(sum, ops, min, atomic_load_explicit(&live->max_ns, relaxed));
	else
		sum->ops += ops;
}

void stats_add(struct stats *sum, const struct stats *more)
{
	for (unsigned i = 0; i < STATS_BINS; i++)
		sum->bins[i] += more->bins[i];
	sum->bytes += more->bytes;
	sum->sum_ns += more->sum_ns;
	widen(sum, more->ops, more->min_ns, more->max_ns);
}

void stats_difference(struct stats *out, const struct stats *now, const struct stats *before)
{
	*out = (struct stats){
		.ops = now->ops - before->ops,
		.bytes = now->bytes - before->bytes,
		.sum_ns = now->sum_ns - before->sum_ns,
	};
	for (unsigned i = 0; i < STATS_BINS; i++) {
		out->bins[i] = now->bins[i] - before->bins[i];
		if (out->bins[i] == 0)
			continue;
		if (out->max_ns == 0)
			out->min_ns = stats_bin_value(i);
		out->max_ns = stats_bin_value(i);
	}
}

void stats_print(FILE *f, const char *name, const struct stats *s)
{
	const char *comma = "";

	fprintf(f,
		"\"%s\": {\"sum\": %" PRIu64 ", \"mean\": %.1f, \"min\": %" PRIu64
		", \"max\": %" PRIu64 ", \"bins\": {",
		name, s->sum_ns, s->ops > 0 ? (double)s->sum_ns / (double)s->ops : 0, s->min_ns,
		s->max_ns);
	for (unsigned i = 0; i < STATS_BINS; i++) {
		if (s->bins[i] == 0)
			continue;
		fprintf(f, "%s\"%" PRIu64 "\": %" PRIu64, comma, stats_bin_value(i), s->bins[i]);
		comma = ", ";
	}
	fprintf(f, "}}");
}
