/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backends/s3/state/cache.h"

/* Fewer pages than that are no cache. */
#define PAGES_LEAST 64
/* The small queue has this part of all pages, */
#define SMALL_SHARE 10
/* and what was read ahead at most this one. */
#define AHEAD_SHARE 2
/* A line that was asked for again so often is not more precious than others. */
#define USES_MAX 3

enum queue_name { SMALL, MAIN, AHEAD, QUEUES };

/* Why pages are claimed. */
enum purpose { DEMAND, READ_AHEAD, INSERT };

struct s3_line {
	struct s3_line *in_bucket;
	struct s3_line *older, *newer; /* in its queue */
	struct s3_page_waiter *waiters;
	uint64_t id;
	uint64_t born; /* when it was read ahead, in pages claimed ever */
	uint32_t number;
	uint8_t origin, queue, uses;
	uint16_t valid, filling;
	uint16_t asked;	       /* served since they are there */
	uint16_t ahead;	       /* read ahead, and not requested since */
	_Atomic unsigned refs; /* of who copies from it */
	uint32_t frames[S3_LINE_PAGES];
};

struct queue {
	struct s3_line *oldest, *newest;
	uint32_t pages;
};

struct s3_cache {
	uint8_t *memory; /* pages */
	struct s3_line *lines;
	uint32_t pages;
	pthread_mutex_t lock;
	/* Below: under lock. */
	uint32_t *free_frames;
	uint32_t n_free_frames, fresh_frames; /* frames and lines from fresh_ on were never used */
	struct s3_line *free_lines;
	uint32_t fresh_lines;
	struct s3_line **buckets;
	uint32_t mask;
	struct queue queues[QUEUES];
	/* Lines that left the small queue unasked-for: a mark of each, and when. */
	struct ghost {
		uint32_t mark, when;
	} * ghosts;
	uint32_t ghost_clock;
	uint64_t claimed; /* pages, ever */
	uint32_t *lent;	  /* frames */
	uint32_t n_lent;
	struct s3_cache_counters counters;
};

static unsigned count(uint16_t pages)
{
	return (unsigned)__builtin_popcount(pages);
}

struct s3_cache *s3_cache_new(uint64_t bytes)
{
	/* A page may have a line of its own. */
	uint64_t pages = bytes / (S3_PAGE + sizeof(struct s3_line) + 2 * sizeof(uint32_t) +
					 2 * sizeof(struct s3_line *) + sizeof(struct ghost));
	struct s3_cache *c;
	uint32_t buckets = 1;

	if (pages < PAGES_LEAST)
		return NULL;
	c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->pages = pages < UINT32_MAX / 4 ? (uint32_t)pages : UINT32_MAX / 4;
	while (buckets < c->pages)
		buckets *= 2;
	c->mask = buckets - 1;
	pthread_mutex_init(&c->lock, NULL);
	/* The kernel gives memory when it is touched. */
	c->memory = mmap(NULL, (size_t)c->pages * S3_PAGE, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (c->memory == MAP_FAILED)
		c->memory = NULL;
	c->lines = calloc(c->pages, sizeof *c->lines);
	c->free_frames = calloc(c->pages, sizeof *c->free_frames);
	c->lent = calloc(c->pages, sizeof *c->lent);
	c->buckets = calloc(buckets, sizeof(struct s3_line *));
	c->ghosts = calloc(buckets, sizeof *c->ghosts);
	if (!c->memory || !c->lines || !c->free_frames || !c->lent || !c->buckets || !c->ghosts) {
		s3_cache_free(c);
		return NULL;
	}
	return c;
}

void s3_cache_free(struct s3_cache *c)
{
	if (!c)
		return;
	if (c->memory)
		munmap(c->memory, (size_t)c->pages * S3_PAGE);
	free(c->lines);
	free(c->free_frames);
	free(c->lent);
	free(c->buckets);
	free(c->ghosts);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

uint64_t s3_cache_ahead_limit(const struct s3_cache *c)
{
	return (uint64_t)c->pages / AHEAD_SHARE * S3_PAGE;
}

uint8_t *s3_cache_page(const struct s3_cache *c, const struct s3_line *line, unsigned page)
{
	return c->memory + (size_t)line->frames[page] * S3_PAGE;
}

struct s3_line_key s3_cache_key(const struct s3_line *line)
{
	return (struct s3_line_key){.id = line->id, .number = line->number, .origin = line->origin};
}

/* ---- lines, under the lock --------------------------------------------------------- */

static uint64_t hash(uint64_t id, uint32_t number, uint8_t origin)
{
	uint64_t h = (id * 0x9e3779b97f4a7c15u) ^ ((uint64_t)number << 8 | origin);

	h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
	return h ^ h >> 32;
}

static struct s3_line **bucket(struct s3_cache *c, uint64_t h)
{
	return &c->buckets[h & c->mask];
}

static struct s3_line *find(struct s3_cache *c, const struct s3_line_key *key)
{
	struct s3_line *l = *bucket(c, hash(key->id, key->number, key->origin));

	while (l && (l->id != key->id || l->number != key->number || l->origin != key->origin))
		l = l->in_bucket;
	return l;
}

static void enqueue(struct s3_cache *c, struct s3_line *l, enum queue_name name)
{
	struct queue *q = &c->queues[name];

	l->queue = (uint8_t)name;
	l->newer = NULL;
	l->older = q->newest;
	*(q->newest ? &q->newest->newer : &q->oldest) = l;
	q->newest = l;
	q->pages += count(l->valid | l->filling);
}

static void dequeue(struct s3_cache *c, struct s3_line *l)
{
	struct queue *q = &c->queues[l->queue];

	*(l->older ? &l->older->newer : &q->oldest) = l->newer;
	*(l->newer ? &l->newer->older : &q->newest) = l->older;
	q->pages -= count(l->valid | l->filling);
}

static void move(struct s3_cache *c, struct s3_line *l, enum queue_name name)
{
	dequeue(c, l);
	enqueue(c, l, name);
}

/* The pages are no longer valid or filling. */
static void give_back(struct s3_cache *c, struct s3_line *l, uint16_t pages)
{
	c->queues[l->queue].pages -= count(pages);
	for (unsigned i = 0; i < S3_LINE_PAGES; i++)
		if (pages & 1u << i)
			c->free_frames[c->n_free_frames++] = l->frames[i];
	c->counters.ahead_wasted += (uint64_t)count(l->ahead & pages) * S3_PAGE;
	l->ahead &= (uint16_t)~pages;
	l->asked &= (uint16_t)~pages;
}

static void drop(struct s3_cache *c, struct s3_line *l)
{
	struct s3_line **link = bucket(c, hash(l->id, l->number, l->origin));
	uint16_t pages = l->valid;

	dequeue(c, l);
	while (*link != l)
		link = &(*link)->in_bucket;
	*link = l->in_bucket;
	c->queues[l->queue].pages += count(pages);
	l->valid = 0;
	give_back(c, l, pages);
	l->in_bucket = c->free_lines;
	c->free_lines = l;
}

static bool busy(struct s3_line *l)
{
	return l->filling || atomic_load_explicit(&l->refs, memory_order_acquire);
}

/* ---- eviction, under the lock -------------------------------------------------------- */

static struct ghost *ghost_of(struct s3_cache *c, uint64_t h)
{
	return &c->ghosts[h & c->mask];
}

/* Remembers that a line was there and was of no use a second time. */
static void remember(struct s3_cache *c, const struct s3_line *l)
{
	uint64_t h = hash(l->id, l->number, l->origin);

	*ghost_of(c, h) = (struct ghost){.mark = (uint32_t)(h >> 32) | 1, .when = ++c->ghost_clock};
}

/* Was it dropped not long ago? Then it was too early. */
static bool recall(struct s3_cache *c, const struct s3_line_key *key)
{
	uint64_t h = hash(key->id, key->number, key->origin);
	struct ghost *g = ghost_of(c, h);
	bool there = g->mark == ((uint32_t)(h >> 32) | 1) && c->ghost_clock - g->when <= c->mask;

	if (there)
		g->mark = 0;
	return there;
}

/* Lines that were not requested while the cache fetched as much as it can hold. */
static bool stale(const struct s3_cache *c, const struct s3_line *l)
{
	return c->claimed - l->born > c->pages;
}

/* Evicts a line, or moves one on its way there. False: there is none. */
static bool step(struct s3_cache *c)
{
	const struct queue *q = c->queues;
	struct s3_line *l;

	if (q[AHEAD].oldest && stale(c, q[AHEAD].oldest))
		l = q[AHEAD].oldest;
	else if (q[SMALL].oldest && (q[SMALL].pages > c->pages / SMALL_SHARE || !q[MAIN].oldest))
		l = q[SMALL].oldest;
	else if (q[MAIN].oldest)
		l = q[MAIN].oldest;
	else
		l = q[AHEAD].oldest;
	if (!l)
		return false;
	if (busy(l)) {
		l->born = c->claimed;
		move(c, l, l->queue);
	} else if (l->queue == SMALL && l->uses) {
		l->uses = 0;
		move(c, l, MAIN);
	} else if (l->queue == MAIN && l->uses) {
		l->uses--;
		move(c, l, MAIN);
	} else {
		if (l->queue == SMALL)
			remember(c, l);
		drop(c, l);
		c->counters.evictions++;
	}
	return true;
}

/* Sees to n free frames, and to a free line. */
static bool make_room(struct s3_cache *c, unsigned n, bool line)
{
	/* Every line may be moved up, and come down again. */
	uint64_t steps = 2ull * (c->fresh_lines + 1) * (USES_MAX + 1);

	while (c->n_free_frames + (c->pages - c->fresh_frames) < n ||
		(line && !c->free_lines && c->fresh_lines == c->pages))
		if (!steps-- || !step(c))
			return false;
	return true;
}

static uint32_t take_frame(struct s3_cache *c)
{
	return c->n_free_frames ? c->free_frames[--c->n_free_frames] : c->fresh_frames++;
}

/* A line without pages, in no queue yet. There is a free one. */
static struct s3_line *new_line(struct s3_cache *c, const struct s3_line_key *key)
{
	struct s3_line **head = bucket(c, hash(key->id, key->number, key->origin));
	struct s3_line *l = c->free_lines;

	if (l)
		c->free_lines = l->in_bucket;
	else
		l = &c->lines[c->fresh_lines++];
	l->id = key->id;
	l->number = key->number;
	l->origin = key->origin;
	l->valid = l->filling = l->asked = l->ahead = 0;
	l->uses = 0;
	l->waiters = NULL;
	l->in_bucket = *head;
	*head = l;
	return l;
}

/* Somebody asks for pages that are there or on their way. */
static void use(struct s3_cache *c, struct s3_line *l, uint16_t pages)
{
	c->counters.ahead_used += (uint64_t)count(l->ahead & pages) * S3_PAGE;
	l->ahead &= (uint16_t)~pages;
	if (l->queue == AHEAD)
		move(c, l, SMALL);
	/* A sequence of small reads of a line is one use of it. */
	if (l->asked & pages && l->uses < USES_MAX)
		l->uses++;
	l->asked |= pages;
}

/* ---- the interface ---------------------------------------------------------------------- */

/* The kernel has them back. */
static void release_frames(const struct s3_cache *c, uint32_t first, uint32_t end)
{
	if (first < end)
		madvise(c->memory + (size_t)first * S3_PAGE, (size_t)(end - first) * S3_PAGE,
			MADV_DONTNEED);
}

uint64_t s3_cache_lend(struct s3_cache *c, uint64_t bytes)
{
	uint32_t first = 0, end = 0; /* frames in a row */
	uint64_t lent = 0;

	pthread_mutex_lock(&c->lock);
	/* Half of it stays a cache. */
	while (lent * S3_PAGE < bytes && c->n_lent < c->pages / 2 && make_room(c, 1, false)) {
		uint32_t frame = take_frame(c);

		c->lent[c->n_lent++] = frame;
		lent++;
		/* Those of a line come one after the other, from its end or from its beginning. */
		if (frame + 1 == first) {
			first = frame;
			continue;
		}
		if (frame == end) {
			end++;
			continue;
		}
		release_frames(c, first, end);
		first = frame;
		end = frame + 1;
	}
	release_frames(c, first, end);
	pthread_mutex_unlock(&c->lock);
	return lent * S3_PAGE;
}

void s3_cache_return(struct s3_cache *c, uint64_t bytes)
{
	pthread_mutex_lock(&c->lock);
	for (uint64_t n = bytes / S3_PAGE; n; n--)
		c->free_frames[c->n_free_frames++] = c->lent[--c->n_lent];
	pthread_mutex_unlock(&c->lock);
}

struct s3_line *s3_cache_lookup(struct s3_cache *c, const struct s3_line_key *key, uint16_t pages)
{
	struct s3_line *l;

	pthread_mutex_lock(&c->lock);
	l = find(c, key);
	if (l && (l->valid & pages) != pages)
		l = NULL;
	if (l) {
		use(c, l, pages);
		c->counters.hits += (uint64_t)count(pages) * S3_PAGE;
		s3_cache_hold(l);
	}
	pthread_mutex_unlock(&c->lock);
	return l;
}

/* May still more be read ahead? */
static bool may_read_ahead(struct s3_cache *c)
{
	const struct queue *q = &c->queues[AHEAD];

	while (q->pages >= c->pages / AHEAD_SHARE) {
		if (!stale(c, q->oldest))
			return false;
		step(c);
	}
	return true;
}

/* Frames for absent pages, which are then filling. The line, or NULL. */
static struct s3_line *add_pages(struct s3_cache *c, struct s3_line *l,
	const struct s3_line_key *key, uint16_t absent, enum purpose purpose)
{
	bool room;

	if (l)
		s3_cache_hold(l); /* room is not made of itself */
	room = (purpose != READ_AHEAD || may_read_ahead(c)) && make_room(c, count(absent), !l);
	if (l)
		s3_cache_release(l);
	if (!room)
		return NULL;
	if (!l) {
		l = new_line(c, key);
		l->born = c->claimed;
		enqueue(c, l, purpose == READ_AHEAD ? AHEAD : recall(c, key) ? MAIN : SMALL);
	}
	for (unsigned i = 0; i < S3_LINE_PAGES; i++)
		if (absent & 1u << i)
			l->frames[i] = take_frame(c);
	l->filling |= absent;
	c->queues[l->queue].pages += count(absent);
	c->claimed += count(absent);
	if (purpose == READ_AHEAD)
		l->ahead |= absent;
	return l;
}

static void claim(struct s3_cache *c, const struct s3_line_key *key, uint16_t pages, uint16_t with,
	enum purpose purpose, struct s3_page_waiter *waiter, struct s3_claim *out)
{
	struct s3_line *l = find(c, key);
	uint16_t there = l ? l->valid | l->filling : 0;
	uint16_t absent = pages & (uint16_t)~there ? with & (uint16_t)~there : 0;

	*out = (struct s3_claim){0};
	if (absent)
		l = add_pages(c, l, key, absent, purpose);
	if (!l)
		return;
	out->line = l;
	out->claimed = absent;
	out->valid = l->valid & pages;
	if (purpose == DEMAND) {
		use(c, l, pages);
		c->counters.hits += (uint64_t)count(pages & there) * S3_PAGE;
		c->counters.misses += (uint64_t)count(pages & absent) * S3_PAGE;
	}
	if (waiter && out->valid != pages) {
		waiter->pages = pages;
		waiter->next = l->waiters;
		l->waiters = waiter;
	}
	s3_cache_hold(l);
}

void s3_cache_claim(struct s3_cache *c, const struct s3_line_key *key, uint16_t pages,
	uint16_t with, struct s3_page_waiter *waiter, struct s3_claim *out)
{
	pthread_mutex_lock(&c->lock);
	claim(c, key, pages, with, waiter ? DEMAND : READ_AHEAD, waiter, out);
	pthread_mutex_unlock(&c->lock);
}

/* Takes those out of the line who wait for nothing more; holds the line for each. Under the lock.
 */
static struct s3_page_waiter *take_ready(struct s3_line *l)
{
	struct s3_page_waiter *ready = NULL, **link = &l->waiters;

	while (*link) {
		struct s3_page_waiter *w = *link;

		if (w->pages & l->filling) {
			link = &w->next;
			continue;
		}
		*link = w->next;
		w->next = ready;
		ready = w;
		s3_cache_hold(l);
	}
	return ready;
}

unsigned s3_cache_settle(
	struct s3_cache *c, struct s3_line *l, uint16_t claimed, uint16_t good, int error)
{
	struct s3_page_waiter *ready;
	uint16_t valid;
	unsigned n = 0;

	pthread_mutex_lock(&c->lock);
	l->filling &= (uint16_t)~claimed;
	l->valid |= claimed & good;
	give_back(c, l, claimed & (uint16_t)~good);
	valid = l->valid;
	ready = take_ready(l);
	/* Nothing is left of it, and nobody looks at it. */
	if (!valid && !busy(l))
		drop(c, l);
	pthread_mutex_unlock(&c->lock);
	while (ready) {
		struct s3_page_waiter *next = ready->next;

		ready->ready(ready, l, valid & ready->pages, error);
		ready = next;
		n++;
	}
	return n;
}

void s3_cache_hold(struct s3_line *line)
{
	atomic_fetch_add_explicit(&line->refs, 1, memory_order_relaxed);
}

/* A line that has become empty meanwhile goes when its turn comes. */
void s3_cache_release(struct s3_line *line)
{
	atomic_fetch_sub_explicit(&line->refs, 1, memory_order_release);
}

void s3_cache_insert(
	struct s3_cache *c, uint8_t origin, uint64_t id, const void *data, size_t length)
{
	struct s3_line_key key = {.id = id, .origin = origin};

	for (size_t done = 0; done < length; done += S3_LINE, key.number++) {
		size_t bytes = length - done < S3_LINE ? length - done : S3_LINE;
		unsigned pages = (unsigned)((bytes + S3_PAGE - 1) / S3_PAGE);
		uint16_t all = (uint16_t)((1u << pages) - 1);
		struct s3_claim got;

		pthread_mutex_lock(&c->lock);
		claim(c, &key, all, all, INSERT, NULL, &got);
		pthread_mutex_unlock(&c->lock);
		if (!got.line)
			return;
		for (unsigned i = 0; i < pages; i++) {
			size_t n = bytes - (size_t)i * S3_PAGE;
			uint8_t *page;

			if (!(got.claimed & 1u << i))
				continue;
			if (n > S3_PAGE)
				n = S3_PAGE;
			page = s3_cache_page(c, got.line, i);
			memcpy(page, (const uint8_t *)data + done + (size_t)i * S3_PAGE, n);
			memset(page + n, 0, S3_PAGE - n);
		}
		if (got.claimed)
			s3_cache_settle(c, got.line, got.claimed, got.claimed, 0);
		s3_cache_release(got.line);
	}
}

void s3_cache_counters(struct s3_cache *c, struct s3_cache_counters *counters)
{
	pthread_mutex_lock(&c->lock);
	*counters = c->counters;
	counters->lent = (uint64_t)c->n_lent * S3_PAGE;
	counters->bytes = (uint64_t)(c->fresh_frames - c->n_free_frames) * S3_PAGE - counters->lent;
	pthread_mutex_unlock(&c->lock);
}
