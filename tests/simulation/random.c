/* SPDX-License-Identifier: BSD-3-Clause */
/* Random numbers of the simulation: a stream of splitmix64 for each purpose. */
#include "tests/simulation/sched.h"

static uint64_t streams[SIM_STREAMS];

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

void sim_seed(uint64_t seed)
{
	for (unsigned i = 0; i < SIM_STREAMS; i++)
		streams[i] = mix(seed * SIM_STREAMS + i + 1);
}

uint64_t sim_random(enum sim_stream stream)
{
	streams[stream] += 0x9e3779b97f4a7c15u;
	return mix(streams[stream]);
}

uint64_t sim_below(enum sim_stream stream, uint64_t n)
{
	return n ? (uint64_t)(((unsigned __int128)sim_random(stream) * n) >> 64) : 0;
}

bool sim_once_in(enum sim_stream stream, uint64_t n)
{
	return n && sim_below(stream, n) == 0;
}

uint64_t sim_log_between(enum sim_stream stream, uint64_t low, uint64_t high)
{
	unsigned doublings = 0;
	uint64_t from;

	while (low << doublings << 1 <= high)
		doublings++;
	from = low << sim_below(stream, doublings + 1);
	return from + sim_below(stream, from * 2 <= high ? from : high - from + 1);
}
