/* SPDX-License-Identifier: BSD-3-Clause */
#include "random.h"

#include <math.h>
#include <string.h>

/* splitmix64: spreads seeds and hashes words. */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return x ^ (x >> 31);
}

void rng_seed(struct rng *rng, uint64_t seed, uint64_t stream)
{
	uint64_t x = mix(seed) ^ mix(stream + 0x632be59bd9b4e019);

	for (int i = 0; i < 4; i++)
		rng->s[i] = x = mix(x);
}

/* Standard normal by the polar method. */
static double rng_normal(struct rng *rng)
{
	double x, y, r;

	do {
		x = 2 * rng_unit(rng) - 1;
		y = 2 * rng_unit(rng) - 1;
		r = x * x + y * y;
	} while (r >= 1 || r == 0);
	return x * sqrt(-2 * log(r) / r);
}

/* Marsaglia and Tsang 2000; shapes below 1 by their boost. */
double rng_gamma(struct rng *rng, double shape)
{
	double boost = 1;

	if (shape < 1) {
		boost = pow(1 - rng_unit(rng), 1 / shape);
		shape += 1;
	}

	double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);

	for (;;) {
		double x = rng_normal(rng), v = 1 + c * x, u = 1 - rng_unit(rng);

		if (v <= 0)
			continue;
		v = v * v * v;
		if (log(u) < 0.5 * x * x + d - d * v + d * log(v))
			return boost * d * v;
	}
}

void rng_fill(struct rng *rng, void *buffer, size_t bytes)
{
	char *p = buffer;

	for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), p += sizeof(uint64_t)) {
		uint64_t x = rng_next(rng);

		memcpy(p, &x, sizeof x);
	}
	if (bytes > 0) {
		uint64_t x = rng_next(rng);

		memcpy(p, &x, bytes);
	}
}

uint64_t cvar_sample(const struct cvar *cvar, struct rng *rng)
{
	double x = rng_gamma(rng, cvar->gamma) * (cvar->mean / cvar->gamma);

	if (cvar->round > 0)
		x = round(x / cvar->round) * cvar->round;
	if (x < cvar->min)
		x = cvar->min;
	if (cvar->max > 0 && x > cvar->max)
		x = cvar->max;
	return x >= 0x1p63 ? (uint64_t)INT64_MAX : (uint64_t)x;
}

uint64_t permute(uint64_t i, uint64_t n, uint64_t seed)
{
	unsigned half = 1;

	while (half < 31 && (UINT64_C(1) << (2 * half)) < n)
		half++;

	/* A Feistel network permutes 4^half >= n values; walk its cycle until below n. */
	uint64_t mask = (UINT64_C(1) << half) - 1;

	do {
		uint64_t left = i >> half, right = i & mask;

		for (unsigned round = 0; round < 4; round++) {
			uint64_t next = left ^ (mix(right ^ mix(seed + round)) & mask);

			left = right;
			right = next;
		}
		i = left << half | right;
	} while (i >= n);
	return i;
}
