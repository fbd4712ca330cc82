/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The room of compaction: memory that the cache lends, in one piece, kept from round to round. To
 * take and give it each time costs more than what a round does in it: the kernel clears each page.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/internal.h"
#include "backends/s3/state/cache.h"

uint64_t s3_room_enter(struct s3_volume *v)
{
	struct s3_room *room = &v->room;

	/* What the cache could not spare before may be free by now. */
	if (room->bytes < v->compact_memory)
		room->bytes += s3_cache_lend(v->cache, v->compact_memory - room->bytes);
	if (!room->memory) {
		room->memory = mmap(NULL, v->compact_memory, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (room->memory == MAP_FAILED)
			room->memory = NULL;
	}
	room->used = 0;
	return room->bytes;
}

void s3_room_leave(struct s3_volume *v)
{
	struct s3_room *room = &v->room;

	if (room->memory)
		munmap(room->memory, v->compact_memory);
	s3_cache_return(v->cache, room->bytes);
	*room = (struct s3_room){0};
}

void *s3_room_take(struct s3_volume *v, size_t bytes)
{
	struct s3_room *room = &v->room;
	size_t whole = (bytes + S3_ALIGN - 1) / S3_ALIGN * S3_ALIGN;

	if (!room->memory || room->bytes - room->used < whole)
		return malloc(bytes);
	room->used += whole;
	return room->memory + room->used - whole;
}

void s3_room_give(const struct s3_volume *v, void *memory)
{
	const struct s3_room *room = &v->room;
	uint8_t *p = memory;

	if (!room->memory || p < room->memory || p >= room->memory + room->bytes)
		free(p);
}
