/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "userblk-s3/progress.h"

#define WIDTH 30

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

const char *format_bytes(uint64_t bytes, char *out)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)bytes;
	size_t unit = 0;

	while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
		value /= 1024;
		unit++;
	}
	snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return out;
}

static const char *format_count(const struct progress *p, uint64_t n, char *out)
{
	if (p->bytes)
		return format_bytes(n, out);
	snprintf(out, 32, "%" PRIu64 " objects", n);
	return out;
}

void progress_show(struct progress *p, uint64_t done, uint64_t total)
{
	char bar[WIDTH + 1], eta[32] = "", some[32], all[32];
	double share;
	uint64_t now = now_ns();

	if (!p->terminal)
		p->terminal = isatty(STDERR_FILENO) ? 1 : -1;
	if (p->terminal < 0 || total == 0)
		return;
	if (!p->began) {
		p->began = now;
		p->first = done;
	}
	if (done > total)
		done = total;
	share = (double)done / (double)total;
	for (int i = 0; i < WIDTH; i++)
		bar[i] = i < (int)(share * WIDTH) ? '#' : '.';
	bar[WIDTH] = 0;
	if (done > p->first) {
		double seconds = (double)(now - p->began) / 1e9;
		uint64_t left =
			(uint64_t)(seconds * (double)(total - done) / (double)(done - p->first));

		snprintf(eta, sizeof eta, ", ETA %" PRIu64 ":%02" PRIu64, left / 60, left % 60);
	}
	fprintf(stderr, "\r%s [%s] %3.0f %%, %s of %s%s\033[K", p->what, bar, share * 100,
		format_count(p, done, some), format_count(p, total, all), eta);
	fflush(stderr);
	p->shown = true;
}

void progress_clear(struct progress *p)
{
	if (p->shown)
		fputs("\r\033[K", stderr);
	p->shown = false;
}
