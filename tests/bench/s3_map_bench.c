/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the S3 device's map costs: memory per TiB written in extents of several sizes, and the CPU
 * time of an update, a lookup, a checkpoint and loading it. s3_map_bench [GIB], 1024 without.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

#define TARGET 1024u

/* CPU time, so that other programs do not count. */
static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void fail(const char *what)
{
	fprintf(stderr, "s3_map_bench: %s failed\n", what);
	exit(1);
}

/* MiB that the kernel has given: what /proc/self/status says of field. */
static double resident(const char *field)
{
	char line[128];
	double mib = 0;
	FILE *file = fopen("/proc/self/status", "r");

	while (file && fgets(line, sizeof line, file))
		if (strncmp(line, field, strlen(field)) == 0) {
			mib = strtod(line + strlen(field), NULL);
			break;
		}
	if (file)
		fclose(file);
	return mib / 1024;
}

struct volume {
	struct s3_objects *objects;
	struct s3_map *map;
	uint64_t blocks, seq;
	uint32_t slot, used;
};

static void write_extent(struct volume *v, uint64_t lba, uint32_t count)
{
	while (count) {
		uint32_t n;

		if (v->used == TARGET) {
			if (v->slot)
				s3_objects_seal(v->objects, v->slot, v->seq);
			v->seq++;
			v->used = 0;
			v->slot = s3_objects_add(v->objects, &(struct s3_object){.id = v->seq,
								     .birth = v->seq,
								     .bytes = 4u << 20,
								     .header_bytes = 4096,
								     .blocks = TARGET});
		}
		n = count < TARGET - v->used ? count : TARGET - v->used;
		if (!v->slot || s3_map_update(v->map, v->seq, lba, n, v->slot, v->used))
			fail("update");
		v->used += n;
		lba += n;
		count -= n;
	}
}

static void checkpoint(struct volume *v)
{
	struct s3_objects *objects = s3_objects_new(TARGET);
	struct s3_map *map = s3_map_new(objects, v->blocks);
	struct s3_buffer table = {0}, region = {0};
	uint32_t *regions;
	double start = now(), paused, captured = 0, loaded = 0;
	uint64_t bytes = 0;
	size_t n;

	s3_objects_seal(v->objects, v->slot, v->seq);
	s3_objects_encode(v->objects, &table);
	if (s3_map_capture(v->map, true, &regions, &n))
		fail("capture");
	paused = now() - start;
	if (s3_objects_decode(objects, table.data, table.length))
		fail("decode");
	for (size_t i = 0; i < n; i++) {
		region.length = 0;
		start = now();
		if (s3_map_capture_region(v->map, regions[i], &region))
			fail("capture");
		captured += now() - start;
		bytes += region.length;
		start = now();
		if (s3_map_load(map, regions[i], region.data, region.length))
			fail("load");
		loaded += now() - start;
	}
	s3_map_capture_end(v->map, true);
	s3_objects_settle(objects, v->seq);
	if (s3_map_mapped(map) != s3_map_mapped(v->map))
		fail("comparison");
	printf("  checkpoint: %.1f ms paused, %.2f s, %.1f MiB of regions, %.1f of table; "
	       "loaded in %.2f s\n",
		paused * 1e3, captured, (double)bytes / (1 << 20), (double)table.length / (1 << 20),
		loaded);
	free(regions);
	s3_buffer_free(&region);
	s3_buffer_free(&table);
	s3_map_free(map);
	s3_objects_free(objects);
}

static void run(uint64_t gib, uint32_t count, bool in_order)
{
	struct volume v = {.blocks = gib << 18, .used = TARGET};
	uint64_t extents = v.blocks / count, lookups = 1u << 22, random = 88172645463325252u;
	double before = resident("RssAnon:"), highest = resident("VmHWM:"), start, updated,
	       looked_up, again;
	struct s3_objects_totals totals;
	struct s3_run runs[64];
	double mib, scale = 1024.0 / (double)gib;

	v.objects = s3_objects_new(TARGET);
	v.map = s3_map_new(v.objects, v.blocks);
	if (!v.objects || !v.map)
		fail("memory");
	start = now();
	for (uint64_t i = 0; i < extents; i++)
		write_extent(&v, (in_order ? i : i * 0x9e3779b1u % extents) * count, count);
	updated = now() - start;
	s3_objects_totals(v.objects, &totals);
	mib = (double)(s3_map_memory(v.map) + totals.memory) / (1 << 20);
	printf("%s %u KiB: %.0f MiB per TiB counted, %.0f resident, at most %.0f; update %.0f "
	       "ns\n",
		in_order ? "in order" : "random", count * 4, mib * scale,
		(resident("RssAnon:") - before) * scale, (resident("VmHWM:") - highest) * scale,
		updated / (double)extents * 1e9);
	start = now();
	for (uint64_t i = 0; i < lookups; i++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		if (s3_map_lookup(v.map, random % v.blocks, 1, true, runs, 64) != 1)
			fail("lookup");
		s3_objects_unpin(v.objects, runs[0].slot);
	}
	looked_up = now() - start;
	printf("  lookup of a random block, pinned: %.0f ns\n", looked_up / (double)lookups * 1e9);
	checkpoint(&v);
	v.used = TARGET;
	v.slot = 0;
	start = now();
	for (uint64_t i = 0; i < lookups / 4; i++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		write_extent(&v, random % v.blocks, 1);
	}
	again = now() - start;
	s3_objects_seal(v.objects, v.slot, v.seq);
	printf("  overwriting a random block: %.0f ns\n", again / ((double)lookups / 4) * 1e9);
	start = now();
	if (s3_map_punch(v.map, v.seq + 1, 0, v.blocks))
		fail("punch");
	printf("  discard of all: %.2f s\n", now() - start);
	fflush(stdout);
	s3_map_free(v.map);
	s3_objects_free(v.objects);
}

/* In a process of its own, whose memory is that of this run alone. */
static void run_apart(uint64_t gib, uint32_t count, bool in_order)
{
	pid_t child = fork();
	int status = 0;

	if (!child) {
		run(gib, count, in_order);
		exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		fail("run");
}

int main(int argc, char **argv)
{
	uint64_t gib = argc > 1 ? strtoull(argv[1], NULL, 0) : 1024;

	if (argc > 2 || !gib || gib & (gib - 1)) {
		fprintf(stderr, "s3_map_bench: GIB=%s: has to be a power of two\n",
			argc > 1 ? argv[1] : "");
		return 2;
	}
	run_apart(gib, 1, false);
	run_apart(gib, 4, false);
	run_apart(gib, 16, false);
	run_apart(gib, TARGET, true);
	return 0;
}
