/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/simulation/memory.h"
#include "tests/simulation/sim.h"
#include "tests/simulation/wrap.h"

#if defined(__SANITIZE_ADDRESS__)
size_t __sanitizer_get_current_allocated_bytes(void);
#endif

/* Address space; the kernel gives memory when it is touched. */
#define SMALL_ROOM (UINT64_C(2) << 30)
#define POOL_ROOM  (UINT64_C(1) << 37)
#define LARGE_ROOM (3 * POOL_ROOM)
#define SLOT	   (UINT64_C(32) << 20)
#define STACKS	   (1u << 15)
#define FILES	   64u

#define PAGE   4096u
#define FINE   64u /* classes of 16 bytes each; then four to a doubling */
#define COARSE 64u
/* What a block holds that nobody has written to: the same in each schedule. */
#define FRESH 0xa5
/* Processes share an entry only if there are more than that in a schedule; 0: free. */
#define OWNERS 64u
/* From here on zeroes come from the kernel, for what is touched here and there only. */
#define ZEROED_LARGE (128u << 10)

/* What stays when a schedule ends. */
struct kept {
	uint8_t *small, *large, *stacks, *files;
	unsigned stacks_made;
	size_t image_bytes;
	uint8_t image[];
};

extern uint8_t __data_start[], _end[];

static struct kept *kept; /* NULL: nothing has begun */
static uint8_t *reserve(uint64_t bytes)
{
	uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		abort();
	return p;
}

void sim_memory_begin(void)
{
	size_t bytes = SIM_KEEPS_MEMORY ? (size_t)(_end - __data_start) : 0;
	struct kept *k = (struct kept *)(void *)reserve(sizeof *k + bytes);

	k->stacks = reserve((uint64_t)STACKS * SIM_STACK);
	k->files = reserve((uint64_t)FILES * SIM_ROOM);
	if (SIM_KEEPS_MEMORY) {
		k->small = reserve(SMALL_ROOM);
		madvise(k->small, SMALL_ROOM, MADV_HUGEPAGE);
		k->large = reserve(LARGE_ROOM);
	}
	kept = k;
	k->image_bytes = bytes;
	memcpy(k->image, __data_start, bytes);
}

uint8_t *sim_memory_stack(unsigned i)
{
	uint8_t *stack = kept->stacks + (uint64_t)i * SIM_STACK;

	if (i >= STACKS)
		sim_fail("threads", "too many threads");
	if (i < kept->stacks_made)
		return stack;
	if (mprotect(stack, SIM_GUARD, PROT_NONE))
		abort();
	kept->stacks_made = i + 1;
	return stack;
}

uint8_t *sim_memory_file(unsigned i)
{
	if (i >= FILES)
		sim_fail("simulation", "too many files");
	return kept->files + (uint64_t)i * SIM_ROOM;
}

#if defined(__SANITIZE_ADDRESS__)

void sim_memory_reset(void)
{
	abort();
}

void *sim_memory_raw(size_t bytes)
{
	void *p = malloc(bytes);

	if (!p)
		abort();
	return p;
}

uint64_t sim_memory_used(void)
{
	return __sanitizer_get_current_allocated_bytes();
}

uint64_t sim_memory_of(const struct sim_process *p)
{
	(void)p;
	return 0;
}

#else

/* In front of what malloc() returns. */
struct header {
	uint16_t class;
	bool taken;	 /* large: it has not been given back */
	uint8_t owner;	 /* of a process */
	uint32_t before; /* bytes from the beginning of the block */
	uint64_t bytes;
};
_Static_assert(sizeof(struct header) == 16, "what malloc() returns is aligned");

/* Large blocks: what was mapped, of which many pages are touched, what was allocated, of which
 * few are, and what has no room in a slot. */
enum pool { MAPPED, ALLOCATED, HUGE };
static const size_t staying[HUGE] = {512, 16}; /* pages of a slot */

static uint64_t small_used, slots_used[HUGE + 1];
static void *free_slots[HUGE]; /* lead to the next one */
static void *free_blocks[FINE + COARSE];
static uint64_t used;
static uint64_t used_by[OWNERS]; /* of what is small */

static bool is_small(const void *p)
{
	return kept && (const uint8_t *)p - kept->small >= 0 &&
	       (uint64_t)((const uint8_t *)p - kept->small) < SMALL_ROOM;
}

static bool is_large(const void *p)
{
	return kept && (const uint8_t *)p - kept->large >= 0 &&
	       (uint64_t)((const uint8_t *)p - kept->large) < LARGE_ROOM;
}

/* The class of blocks that have room for so many bytes, and that room. */
static uint32_t class_of(size_t bytes, size_t *room)
{
	uint32_t class = FINE;
	size_t step = FINE * 16 / 4;

	if (bytes <= FINE * 16) {
		class = bytes ? (uint32_t)((bytes - 1) / 16) : 0;
		*room = (class + 1) * 16;
		return class;
	}
	while (bytes > step * 8) {
		step *= 2;
		class += 4;
	}
	class += (uint32_t)((bytes - 1) / step) - 4;
	*room = ((bytes - 1) / step + 1) * step;
	return class;
}

/* The process that allocates. The first one is the simulation's own. */
static uint8_t owner(void)
{
	const struct sim_process *p = sim_self();

	return p ? (uint8_t)(p->id % OWNERS) : 0;
}

static struct header *header_of(void *p)
{
	return (struct header *)p - 1;
}

static uint8_t *slot_of(enum pool pool, uint64_t i)
{
	return kept->large + pool * POOL_ROOM + i * SLOT;
}

/* Zeroed pages, with a header before them, at the beginning of a slot of the address space, so that
 * those that each schedule touches are mostly the same. */
static void *take_large(size_t bytes, enum pool pool)
{
	uint64_t slots = (PAGE + bytes + SLOT - 1) / SLOT;
	uint8_t *p = free_slots[pool];

	if (slots > 1)
		pool = HUGE;
	if (pool != HUGE && p) {
		memcpy(&free_slots[pool], p, sizeof(void *));
		memset(p, 0, sizeof(void *));
	} else {
		if ((slots_used[pool] + slots) * SLOT > POOL_ROOM)
			return NULL;
		p = slot_of(pool, slots_used[pool]) + PAGE;
		slots_used[pool] += slots;
	}
	*header_of(p) = (struct header){.taken = true, .owner = owner(), .bytes = bytes};
	return p;
}

/* Makes pages that have been touched zero; most of them stay at most, and the kernel has the
 * others. */
static void clear_pages(uint8_t *p, size_t bytes, size_t most)
{
	unsigned char resident[SLOT / PAGE];
	size_t touched = 0;

	bytes = (bytes + PAGE - 1) / PAGE * PAGE;
	if (bytes > SLOT || mincore(p, bytes, resident)) {
		__real_madvise(p, bytes, MADV_DONTNEED);
		return;
	}
	for (size_t i = 0; i < bytes / PAGE; i++) {
		const uint8_t *next = memchr(resident + i, 1, bytes / PAGE - i);

		if (!next)
			return;
		i = (size_t)(next - resident);
		if (touched++ == most) {
			__real_madvise(p + i * PAGE, bytes - i * PAGE, MADV_DONTNEED);
			return;
		}
		memset(p + i * PAGE, 0, PAGE);
	}
}

/* Bytes of the pages of a slot that hold anything. */
static uint64_t used_of(uint8_t *slot)
{
	uint64_t pages = (header_of(slot + PAGE)->bytes + PAGE - 1) / PAGE, n = 0;
	unsigned char resident[SLOT / PAGE];

	if (!header_of(slot + PAGE)->taken)
		return 0;
	if (mincore(slot + PAGE, pages * PAGE, resident))
		abort();
	for (uint64_t i = 0; i < pages; i++) {
		const uint8_t *p = slot + (1 + i) * PAGE;

		if (resident[i] & 1 && (*p || memcmp(p, p + 1, PAGE - 1) != 0))
			n += PAGE;
	}
	return n;
}

uint64_t sim_memory_used(void)
{
	uint64_t n = used;

	for (uint64_t i = 0; i < slots_used[ALLOCATED]; i++)
		n += used_of(slot_of(ALLOCATED, i));
	return n;
}

uint64_t sim_memory_of(const struct sim_process *p)
{
	uint64_t n = used_by[p->id % OWNERS];

	for (enum pool pool = 0; pool < HUGE; pool++)
		for (uint64_t i = 0; i < slots_used[pool]; i++)
			if (header_of(slot_of(pool, i) + PAGE)->owner == p->id % OWNERS)
				n += used_of(slot_of(pool, i));
	return n;
}

void sim_memory_reset(void)
{
	for (enum pool pool = 0; pool < HUGE; pool++)
		for (uint64_t i = 0; i < slots_used[pool]; i++) {
			uint8_t *p = slot_of(pool, i) + PAGE;

			if (header_of(p)->taken)
				clear_pages(p, header_of(p)->bytes, staying[pool]);
			else
				memset(p, 0, sizeof(void *));
		}
	__real_madvise(slot_of(HUGE, 0), slots_used[HUGE] * SLOT, MADV_DONTNEED);
	memcpy(__data_start, kept->image, kept->image_bytes);
}

static void *take_small(size_t align, size_t bytes, uint8_t owner)
{
	size_t room, before = sizeof(struct header);
	uint32_t class = class_of(bytes + (align > 16 ? align : 0) + before, &room);
	uint8_t *block = free_blocks[class];

	if (block) {
		memcpy(&free_blocks[class], block, sizeof(void *));
	} else {
		if (small_used + room > SMALL_ROOM)
			return NULL;
		block = kept->small + small_used;
		small_used += room;
	}
	if (align > 16)
		before += -(uintptr_t)(block + before) & (align - 1);
	*header_of(block + before) = (struct header){.class = (uint16_t) class,
		.owner = owner,
		.before = (uint32_t)before,
		.bytes = bytes};
	used += bytes;
	used_by[owner] += bytes;
	return block + before;
}

/* It may be a part of several slots; such slots are used once. */
static void give_large(void *p, size_t bytes)
{
	enum pool pool = (enum pool)((uint64_t)((uint8_t *)p - kept->large) / POOL_ROOM);

	clear_pages(p, bytes, pool == HUGE ? 0 : staying[pool]);
	if (pool == HUGE)
		return;
	header_of(p)->taken = false;
	memcpy(p, &free_slots[pool], sizeof(void *));
	free_slots[pool] = p;
}

static void give(void *p)
{
	struct header h = *header_of(p);

	if (is_large(p)) {
		give_large(p, h.bytes);
		return;
	}
	used -= h.bytes;
	used_by[h.owner] -= h.bytes;
	p = (uint8_t *)p - h.before;
	memcpy(p, &free_blocks[h.class], sizeof(void *));
	free_blocks[h.class] = p;
}

static void *take(size_t align, size_t bytes, bool zeroed)
{
	uint8_t *p;
	bool large = bytes >= (zeroed ? ZEROED_LARGE : 4 * SIM_LARGE);

	p = large ? take_large(bytes, ALLOCATED) : take_small(align, bytes, owner());
	if (!p)
		return NULL;
	if (!large)
		memset(p, zeroed ? 0 : FRESH, bytes);
	return p;
}

void *sim_memory_raw(size_t bytes)
{
	void *p = take_small(16, bytes, 0);

	if (!p)
		abort();
	return p;
}

void *__wrap_malloc(size_t bytes)
{
	return kept ? take(16, bytes, false) : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
	if (!kept)
		return __real_calloc(n, bytes);
	if (__builtin_mul_overflow(n, bytes, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	return take(16, bytes, true);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
	return kept ? take(align, bytes, false) : __real_aligned_alloc(align, bytes);
}

void __wrap_free(void *p)
{
	if (is_small(p) || is_large(p))
		give(p);
	else
		__real_free(p);
}

void *__wrap_realloc(void *old, size_t bytes)
{
	void *p;

	if (old && !is_small(old) && !is_large(old))
		return __real_realloc(old, bytes);
	p = __wrap_malloc(bytes);
	if (p && old) {
		memcpy(p, old, bytes < header_of(old)->bytes ? bytes : header_of(old)->bytes);
		give(old);
	}
	return p;
}

size_t __wrap_malloc_usable_size(void *p)
{
	if (!p || (!is_small(p) && !is_large(p)))
		return __real_malloc_usable_size(p);
	return (header_of(p)->bytes + 15) / 16 * 16;
}

void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	void *p;

	if (!kept || !(flags & MAP_ANONYMOUS))
		return __real_mmap64(at, bytes, protection, flags, fd, offset);
	if (bytes < SIM_LARGE) {
		p = take_small(PAGE, bytes, owner());
		if (p)
			memset(p, 0, bytes);
	} else {
		p = take_large(bytes, MAPPED);
	}
	return p ? p : MAP_FAILED;
}

int __wrap_munmap(void *p, size_t bytes)
{
	if (is_small(p))
		give(p);
	else if (is_large(p))
		give_large(p, bytes);
	else
		return __real_munmap(p, bytes);
	return 0;
}

/* What the kernel would take away and give again: zeroes. */
int __wrap_madvise(void *p, size_t bytes, int advice)
{
	if (advice == MADV_DONTNEED)
		clear_pages(p, bytes, staying[MAPPED]);
	return 0;
}

#endif
