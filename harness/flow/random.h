/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Random numbers of userblk-flow. Every stream is derived from the seed that
 * the user gave (and that the results record) and a stream number, so that a
 * file tree and the choices of every thread can be repeated.
 */
#ifndef FLOW_RANDOM_H
#define FLOW_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* xoshiro256** of Blackman and Vigna; one owner, no lock. */
struct rng {
	uint64_t s[4];
};

/* A gamma distribution as the language's cvar-gamma describes it. */
struct cvar {
	double mean, gamma;
	double min, max; /* max 0: none */
	double round;	 /* to its nearest multiple; 0: not at all */
};

/* An integer of the workload: a constant, or drawn again at each use. */
struct number {
	bool varies;
	uint64_t value;
	struct cvar cvar;
};

void rng_seed(struct rng *rng, uint64_t seed, uint64_t stream);

static inline uint64_t rng_next(struct rng *rng)
{
	uint64_t *s = rng->s, x = s[1] * 5, t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = (s[3] << 45) | (s[3] >> 19);
	return ((x << 7) | (x >> 57)) * 9;
}

/* Uniform in [0, n), n > 0; the bias of the multiplication is below n / 2^64. */
static inline uint64_t rng_below(struct rng *rng, uint64_t n)
{
	return (uint64_t)(((unsigned __int128)rng_next(rng) * n) >> 64);
}

/* Uniform in [0, 1). */
static inline double rng_unit(struct rng *rng)
{
	return (double)(rng_next(rng) >> 11) * 0x1p-53;
}

/* Gamma distribution with the given shape and scale 1 (mean = shape), shape > 0. */
double rng_gamma(struct rng *rng, double shape);
void rng_fill(struct rng *rng, void *buffer, size_t bytes);

/* A draw, rounded and limited as the cvar says, truncated to an integer. */
uint64_t cvar_sample(const struct cvar *cvar, struct rng *rng);

static inline uint64_t number_sample(const struct number *n, struct rng *rng)
{
	return n->varies ? cvar_sample(&n->cvar, rng) : n->value;
}

/*
 * The i-th element, i < n, of a permutation of [0, n) that the seed chooses;
 * computed, not stored, so that millions of files need no table.
 */
uint64_t permute(uint64_t i, uint64_t n, uint64_t seed);

#endif
