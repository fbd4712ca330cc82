/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "backends/s3/base/slab.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   __asan_poison_memory_region(p, n)
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define POISON(p, n)   ((void)0)
#define UNPOISON(p, n) ((void)0)
#endif

#define PAGE	    4096u
#define ARENA	    (64u << 20) /* address space taken at once, and its alignment */
#define ARENA_PAGES (ARENA / PAGE)
#define MAX_ARENAS  16384u /* 1 TiB of pieces */
/* Empty pages that are kept for the next piece: a part of those in use, and some. */
#define KEEP_SHARE 128u
#define KEEP	   64u

#define NONE 0u	  /* number of no page; a page's is its arena's times ARENA_PAGES plus its index */
#define END  255u /* of the free pieces of a page */

/* Bytes of the pieces of a page: multiples of 24 hold whole runs, and whole words. */
static const uint16_t sizes[] = {
	4096, 2040, 1344, 1008, 816, 672, 504, 408, 336, 264, 216, 168, 120, 96, 72, 48, 24};

#define SIZES (sizeof sizes / sizeof sizes[0])

struct page {
	uint32_t next, previous; /* of its size with room, or empty */
	uint8_t used, free;	 /* pieces; the first free one, whose first byte tells the next */
	uint8_t size;		 /* index */
};

/* The descriptors stand in the arena's first pages. */
struct arena {
	uint32_t number;
	struct page pages[ARENA_PAGES];
};

#define FIRST_PAGE ((uint32_t)((sizeof(struct arena) + PAGE - 1) / PAGE))

struct s3_slab {
	pthread_mutex_t lock;
	struct arena **arenas; /* MAX_ARENAS */
	uint32_t n_arenas;
	uint32_t unused;	 /* index of the first page of the newest that was never used */
	uint32_t partial[SIZES]; /* pages with free pieces */
	uint32_t warm, cold;	 /* empty pages: still ours, given back */
	uint64_t in_use, n_warm;
};

static unsigned size_for(size_t bytes)
{
	unsigned size = SIZES - 1;

	while (sizes[size] < bytes)
		size--;
	return size;
}

static struct page *page_at(const struct s3_slab *s, uint32_t number)
{
	return &s->arenas[number / ARENA_PAGES]->pages[number % ARENA_PAGES];
}

static uint8_t *memory_of(const struct s3_slab *s, uint32_t number)
{
	return (uint8_t *)s->arenas[number / ARENA_PAGES] + (size_t)(number % ARENA_PAGES) * PAGE;
}

static void push(struct s3_slab *s, uint32_t *list, uint32_t number)
{
	struct page *page = page_at(s, number);

	page->previous = NONE;
	page->next = *list;
	if (*list)
		page_at(s, *list)->previous = number;
	*list = number;
}

static void unlink_page(struct s3_slab *s, uint32_t *list, uint32_t number)
{
	const struct page *page = page_at(s, number);

	*(page->previous ? &page_at(s, page->previous)->next : list) = page->next;
	if (page->next)
		page_at(s, page->next)->previous = page->previous;
}

struct s3_slab *s3_slab_new(void)
{
	struct s3_slab *s = calloc(1, sizeof *s);

	if (!s)
		return NULL;
	s->arenas = calloc(MAX_ARENAS, sizeof *s->arenas);
	if (!s->arenas) {
		free(s);
		return NULL;
	}
	pthread_mutex_init(&s->lock, NULL);
	return s;
}

void s3_slab_free(struct s3_slab *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; i < s->n_arenas; i++) {
		UNPOISON(s->arenas[i], ARENA);
		munmap(s->arenas[i], ARENA);
	}
	pthread_mutex_destroy(&s->lock);
	free(s->arenas);
	free(s);
}

/* ---- pages, under the lock --------------------------------------------------------- */

static bool add_arena(struct s3_slab *s)
{
	uint8_t *p, *start;
	size_t before;

	if (s->n_arenas == MAX_ARENAS)
		return false;
	p = mmap(NULL, 2 * (size_t)ARENA, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return false;
	before = -(uintptr_t)p & (ARENA - 1);
	start = p + before;
	if (before)
		munmap(p, before);
	munmap(start + ARENA, ARENA - before);
	/* A huge page would bring back what is given back page by page. */
	madvise(start, ARENA, MADV_NOHUGEPAGE);
	s->arenas[s->n_arenas] = (struct arena *)start;
	s->arenas[s->n_arenas]->number = s->n_arenas;
	s->n_arenas++;
	s->unused = FIRST_PAGE;
	return true;
}

/* An empty page; NONE: no memory. */
static uint32_t take_page(struct s3_slab *s)
{
	uint32_t number;

	if ((number = s->warm)) {
		unlink_page(s, &s->warm, number);
		s->n_warm--;
	} else if ((number = s->cold)) {
		unlink_page(s, &s->cold, number);
	} else {
		if ((!s->n_arenas || s->unused == ARENA_PAGES) && !add_arena(s))
			return NONE;
		number = (s->n_arenas - 1) * ARENA_PAGES + s->unused++;
	}
	s->in_use++;
	return number;
}

static void give_page(struct s3_slab *s, uint32_t number)
{
	s->in_use--;
	if (s->n_warm < s->in_use / KEEP_SHARE + KEEP) {
		push(s, &s->warm, number);
		s->n_warm++;
		return;
	}
	madvise(memory_of(s, number), PAGE, MADV_DONTNEED);
	push(s, &s->cold, number);
}

/* ---- pieces ------------------------------------------------------------------------ */

void *s3_slab_take(struct s3_slab *s, size_t bytes, size_t *room)
{
	unsigned size = size_for(bytes), n = PAGE / sizes[size];
	uint8_t *memory, *piece = NULL;
	struct page *page;
	uint32_t number;

	pthread_mutex_lock(&s->lock);
	number = s->partial[size];
	if (!number && (number = take_page(s))) {
		memory = memory_of(s, number);
		*page_at(s, number) = (struct page){.size = (uint8_t)size};
		UNPOISON(memory, PAGE);
		for (unsigned i = 0; i < n; i++)
			memory[i * sizes[size]] = i + 1 < n ? (uint8_t)(i + 1) : END;
		POISON(memory, PAGE);
		push(s, &s->partial[size], number);
	}
	if (number) {
		page = page_at(s, number);
		piece = memory_of(s, number) + (size_t)page->free * sizes[size];
		UNPOISON(piece, sizes[size]);
		page->used++;
		page->free = *piece;
		if (page->free == END)
			unlink_page(s, &s->partial[size], number);
		*room = sizes[size];
	}
	pthread_mutex_unlock(&s->lock);
	return piece;
}

void s3_slab_give(struct s3_slab *s, void *p)
{
	struct arena *arena = (struct arena *)((uintptr_t)p & ~(uintptr_t)(ARENA - 1));
	uint8_t *piece = p;
	uint32_t index, number;
	struct page *page;

	if (!p)
		return;
	index = (uint32_t)((size_t)(piece - (uint8_t *)arena) / PAGE);
	pthread_mutex_lock(&s->lock);
	number = arena->number * ARENA_PAGES + index;
	page = &arena->pages[index];
	if (page->free == END)
		push(s, &s->partial[page->size], number);
	*piece = page->free;
	POISON(piece, sizes[page->size]);
	page->free = (uint8_t)((size_t)(piece - (uint8_t *)arena) % PAGE / sizes[page->size]);
	if (--page->used == 0) {
		unlink_page(s, &s->partial[page->size], number);
		give_page(s, number);
	}
	pthread_mutex_unlock(&s->lock);
}

uint64_t s3_slab_memory(struct s3_slab *s)
{
	uint64_t bytes = sizeof *s;

	pthread_mutex_lock(&s->lock);
	bytes += (s->in_use + s->n_warm) * PAGE;
	/* Descriptors are touched in the order of the pages. */
	if (s->n_arenas)
		bytes += (uint64_t)(s->n_arenas - 1) * FIRST_PAGE * PAGE +
			 sizeof(struct page) * s->unused;
	pthread_mutex_unlock(&s->lock);
	return bytes;
}
