/* SPDX-License-Identifier: BSD-3-Clause */
/* The trace of a schedule: its last lines, and a hash of all that happened. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tests/simulation/runner.h"
#include "tests/simulation/sched.h"

#define TRACE_LINES 400
#define TRACE_WIDTH 200

static char lines[TRACE_LINES][TRACE_WIDTH];
static uint64_t n_lines, hash = 1;

static uint64_t mixed(uint64_t h, uint64_t word)
{
	h = (h ^ word) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

void sim_hash(const void *data, size_t length)
{
	const uint8_t *p = data;
	uint64_t word[4] = {0}, lanes[4] = {1, 2, 3, 4};

	/* Four at a time, which do not wait for each other. */
	for (; length >= sizeof word; p += sizeof word, length -= sizeof word) {
		memcpy(word, p, sizeof word);
		for (unsigned i = 0; i < 4; i++)
			lanes[i] = mixed(lanes[i], word[i]);
	}
	memset(word, 0, sizeof word);
	memcpy(word, p, length);
	for (unsigned i = 0; i < 4; i++)
		hash = mixed(mixed(hash, lanes[i]), word[i]);
}

void sim_hash_word(uint64_t word)
{
	hash = mixed(hash, word);
}

uint64_t sim_trace_hash(void)
{
	return hash;
}

void sim_trace(const char *format, ...)
{
	char *line = lines[n_lines++ % TRACE_LINES];
	uint64_t us = (sim_now() + 500) / 1000;
	va_list args;
	int n;

	if (sim_current)
		n = snprintf(line, TRACE_WIDTH, "%5" PRIu64 ".%06" PRIu64 " p%u.%u ", us / 1000000,
			us % 1000000, sim_current->process->id, sim_current->number);
	else
		n = snprintf(line, TRACE_WIDTH, "%5" PRIu64 ".%06" PRIu64 " -    ", us / 1000000,
			us % 1000000);
	va_start(args, format);
	vsnprintf(line + n, TRACE_WIDTH - (size_t)n, format, args);
	va_end(args);
	sim_hash(line, strlen(line));
	if (sim_options.trace)
		fprintf(stderr, "%s\n", line);
}

void sim_print_trace(void)
{
	for (uint64_t i = n_lines > TRACE_LINES ? n_lines - TRACE_LINES : 0; i < n_lines; i++)
		runner_report("%s\n", lines[i % TRACE_LINES]);
}
