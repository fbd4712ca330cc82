/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pages of the cache that a read needs: from memory, from the cache file, or from the store,
 * neighbours together in one GET.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/read/internal.h"
#include "backends/s3/state/cache.h"
#include "backends/s3/state/cachefile.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "backends/s3/state/readahead.h"

/* Pages fetched by one request, and lines that they can touch. */
#define FILL_PAGES (S3_AHEAD_STEP / S3_PAGE)
#define FILL_LINES (FILL_PAGES / S3_LINE_PAGES + 1)
/*
 * A request also fetches pages between those that are needed, if they are few. It may fetch more of
 * them, up to the number of needed pages, or when reading ahead: a stream may reach them.
 */
#define GAP_SMALL 4
#define GAP_LARGE 16
/*
 * Both that and reading ahead stop when they do not pay: when the bytes fetched exceed the bytes
 * requested by this factor, and are at least this many. Only recent requests count.
 */
#define WASTE_RATIO 2
#define WASTE_LEAST (UINT64_C(64) << 20)
#define WASTE_LAST  (UINT64_C(1) << 30)

/* ---- lines of the cache ------------------------------------------------------------- */

/* A ranged GET into pages. */
struct fill {
	struct s3_get get; /* first */
	bool ahead;
	uint32_t first_line;
	unsigned n_lines;
	struct fill_line {
		struct s3_line *line; /* held; NULL: nothing of it is claimed here */
		uint16_t pages, good;
	} lines[FILL_LINES];
	struct iovec iov[];
};

/* A part of a read that waits for pages of one line. */
struct part {
	struct s3_page_waiter waiter; /* first */
	struct s3_read *read;
	struct s3_run run; /* pinned */
};

uint16_t s3_fill_pages_of(const struct s3_volume *v, uint32_t offset, uint64_t count)
{
	uint64_t first = ((uint64_t)offset << v->shift) % S3_LINE;
	uint64_t end = first + (count << v->shift);
	uint32_t below = (1u << first / S3_PAGE) - 1;

	return (uint16_t)(((1u << (end + S3_PAGE - 1) / S3_PAGE) - 1) & ~below);
}

/* All pages of a line that lie in blocks or units of which there is one among these. */
static uint16_t widen(const struct s3_volume *v, uint16_t pages)
{
	unsigned group = v->transforms ? S3_LINE_PAGES : v->block_size / S3_PAGE;
	uint16_t all = 0;

	if (group <= 1)
		return pages;
	for (unsigned i = 0; i < S3_LINE_PAGES; i++)
		if ((pages >> (i / group * group)) & ((1u << group) - 1))
			all |= (uint16_t)(1u << i);
	return all;
}

uint16_t s3_fill_whole_blocks(
	const struct s3_volume *v, const struct s3_object *object, uint32_t number, uint16_t pages)
{
	uint64_t left = ((uint64_t)object->blocks << v->shift) - (uint64_t)number * S3_LINE;
	uint64_t n = (left + S3_PAGE - 1) / S3_PAGE;

	return widen(v, pages) & (uint16_t)(n < S3_LINE_PAGES ? (1u << n) - 1 : UINT16_MAX);
}

bool s3_fill_next_in_line(const struct s3_volume *v, struct s3_run *rest, struct s3_run *part)
{
	uint64_t in_line = S3_LINE - ((uint64_t)rest->offset << v->shift) % S3_LINE;

	if (rest->count == 0)
		return false;
	*part = *rest;
	if (part->count > in_line >> v->shift)
		part->count = in_line >> v->shift;
	rest->lba += part->count;
	rest->offset += (uint32_t)part->count;
	rest->count -= part->count;
	return true;
}

struct s3_line_key s3_line_key_of(
	const struct s3_volume *v, const struct s3_object *object, const struct s3_run *part)
{
	return (struct s3_line_key){
		.id = object->id,
		.number = (uint32_t)(((uint64_t)part->offset << v->shift) / S3_LINE),
		.origin = object->origin,
	};
}

/* Copies a part from its line, in which its pages are valid. */
static void copy_part(struct s3_read *r, const struct s3_run *part, const struct s3_line *line)
{
	uint64_t at = ((uint64_t)part->offset << r->v->shift) % S3_LINE;
	uint64_t left = part->count << r->v->shift, position = s3_read_position(r, part);

	while (left) {
		uint64_t n = S3_PAGE - at % S3_PAGE;

		if (n > left)
			n = left;
		s3_read_deliver(r, position,
			s3_cache_page(r->v->cache, line, at / S3_PAGE) + at % S3_PAGE, n);
		at += n;
		position += n;
		left -= n;
	}
}

/* The pages that a part waited for have arrived, or could not be fetched. */
static void part_ready(
	struct s3_page_waiter *waiter, struct s3_line *line, uint16_t valid, int error)
{
	struct part *p = (struct part *)waiter;
	struct s3_read *r = p->read;

	if (valid == waiter->pages) {
		copy_part(r, &p->run, line);
		error = 0;
	} else if (!error) {
		/* Damaged: once more, by itself, and as often as that is done. */
		s3_get_start(r, &p->run);
	}
	s3_cache_release(line);
	s3_objects_unpin(r->v->objects, p->run.slot);
	free(p);
	s3_read_end_part(r, error);
}

bool s3_fill_read_part(struct s3_plan *plan, struct s3_read *r, const struct s3_run *run,
	const struct s3_object *object)
{
	struct s3_volume *v = r->v;
	struct s3_line_key key = s3_line_key_of(v, object, run);
	uint16_t pages = s3_fill_pages_of(v, run->offset, run->count);
	struct part *p = malloc(sizeof *p);
	struct s3_claim claim = {0};

	if (p) {
		*p = (struct part){.waiter = {.ready = part_ready}, .read = r, .run = *run};
		/* It may be ready before the claim returns. */
		s3_objects_pin(v->objects, run->slot);
		atomic_fetch_add(&r->pending, 1);
		s3_cache_claim(v->cache, &key, pages,
			s3_fill_whole_blocks(v, object, key.number, pages), &p->waiter, &claim);
	}
	if (claim.line && claim.valid != pages) {
		if (claim.claimed)
			plan->wants[plan->n++] = (struct s3_want){
				*object, run->slot, key.number, claim.line, claim.claimed};
		else
			s3_cache_release(claim.line);
		return true;
	}
	if (claim.line) {
		copy_part(r, run, claim.line);
		s3_cache_release(claim.line);
	}
	if (p) {
		free(p);
		s3_objects_unpin(v->objects, run->slot);
		atomic_fetch_sub(&r->pending, 1); /* s3_read() has one more */
	}
	return claim.line != NULL;
}

void s3_fill_read_cached(struct s3_read *r, struct s3_run *rest, const struct s3_object *object)
{
	struct s3_run next = *rest, part;

	while (s3_fill_next_in_line(r->v, &next, &part)) {
		struct s3_line_key key = s3_line_key_of(r->v, object, &part);
		struct s3_line *line = s3_cache_lookup(
			r->v->cache, &key, s3_fill_pages_of(r->v, part.offset, part.count));

		if (!line)
			return;
		copy_part(r, &part, line);
		s3_cache_release(line);
		*rest = next;
	}
}

/* ---- from the cache file -------------------------------------------------------------- */

struct disk_transfer {
	struct s3_disk_job job; /* first */
	struct s3_volume *v;
	struct s3_line *line; /* held */
};

static void disk_read_done(struct s3_disk_job *job, uint16_t good)
{
	struct disk_transfer *t = (struct disk_transfer *)job;

	/* What is not there is fetched in whole blocks. */
	good &= (uint16_t)~widen(t->v, job->pages & (uint16_t)~good);
	s3_cache_settle(t->v->cache, t->line, job->pages, good, 0);
	s3_cache_release(t->line);
	free(t);
}

static void disk_written(struct s3_disk_job *job, uint16_t good)
{
	struct disk_transfer *t = (struct disk_transfer *)job;

	(void)good;
	s3_cache_release(t->line);
	free(t);
}

/* Reads pages of a held line from the cache file, or writes them there. False: not done. */
static bool disk_transfer(struct s3_volume *v, struct s3_line *line, uint16_t pages, bool write)
{
	struct disk_transfer *t = calloc(1, sizeof *t);
	bool accepted;

	if (!t)
		return false;
	t->v = v;
	t->line = line;
	t->job.key = s3_cache_key(line);
	t->job.pages = pages;
	t->job.done = write ? disk_written : disk_read_done;
	for (unsigned i = 0; i < S3_LINE_PAGES; i++)
		if (pages & 1u << i)
			t->job.memory[i] = s3_cache_page(v->cache, line, i);
	s3_cache_hold(line);
	accepted = write ? s3_cachefile_write(v->cachefile, &t->job)
			 : s3_cachefile_read(v->cachefile, &t->job);
	if (!accepted) {
		s3_cache_release(line);
		free(t);
	}
	return accepted;
}

/* Takes from a plan what the cache file has. */
static void read_from_disk(struct s3_plan *plan)
{
	for (unsigned i = 0; i < plan->n; i++) {
		struct s3_want *w = &plan->wants[i];
		struct s3_line_key key = s3_cache_key(w->line);
		uint16_t there = s3_cachefile_find(plan->v->cachefile, &key, w->pages);

		/* The rest has to be whole blocks. */
		if (s3_fill_whole_blocks(
			    plan->v, &w->object, w->number, w->pages & (uint16_t)~there) &
			there)
			there = 0;
		if (there && disk_transfer(plan->v, w->line, there, false))
			w->pages &= (uint16_t)~there;
	}
}

/* ---- from the store --------------------------------------------------------------------- */

/* Consecutive pages of an object's data. */
struct span {
	uint32_t first, end;
};

/* A unit is a line. */
_Static_assert(S3_UNIT == S3_LINE, "units are restored line by line");

/* Restores the pages of a fill: those of a unit that cannot be are not good. */
static void restore_fill(struct fill *f)
{
	uint32_t first, end;

	s3_get_units_of(&f->get, &first, &end);
	for (uint32_t i = first; i < end; i++) {
		struct fill_line *l = &f->lines[i - f->first_line];

		if (l->good && s3_get_restore_unit(&f->get, i))
			l->good = 0;
	}
}

/* Checks the pages of a fill: what is not what was written is not good. */
static void check_fill(struct fill *f)
{
	const struct s3_get *g = &f->get;
	const struct s3_volume *v = g->v;

	for (uint32_t b = g->first; b < g->first + g->count; b++) {
		uint64_t at = (uint64_t)b << v->shift, end = at + v->block_size;
		struct fill_line *l = &f->lines[at / S3_LINE - f->first_line];
		uint16_t pages = s3_fill_pages_of(v, b, 1);
		uint32_t crc = 0;

		if ((l->good & pages) != pages)
			continue;
		while (at < end) {
			uint64_t n = S3_PAGE - at % S3_PAGE;

			if (n > end - at)
				n = end - at;
			crc = s3_crc32c(crc,
				s3_cache_page(v->cache, l->line, at % S3_LINE / S3_PAGE) +
					at % S3_PAGE,
				n);
			at += n;
		}
		if (crc != g->crcs->crc[b])
			l->good &= (uint16_t)~pages;
	}
}

void s3_fill_end(struct s3_get *g, int result)
{
	struct fill *f = (struct fill *)g;
	struct s3_volume *v = g->v;
	bool damaged = false;
	unsigned waited = 0;
	/* Is the object's end not there? Who waits asks for what it needs, which may be. */
	int error = result == 0 || result == -ERANGE ? 0 : result == -EACCES ? -EACCES : -EIO;

	for (unsigned i = 0; i < f->n_lines; i++)
		f->lines[i].good = result || !s3_get_has_sums(g) ? 0 : f->lines[i].pages;
	if (result == 0 && g->transformed)
		restore_fill(f);
	else if (result == 0 && s3_get_has_sums(g))
		check_fill(f);
	if (f->ahead)
		atomic_fetch_sub(&v->ahead_now, 1);
	for (unsigned i = 0; i < f->n_lines; i++) {
		struct fill_line *l = &f->lines[i];

		if (!l->line)
			continue;
		damaged |= result == 0 && l->good != l->pages;
		waited += s3_cache_settle(v->cache, l->line, l->pages, l->good, error);
		if (l->good && v->cachefile)
			disk_transfer(v, l->line, l->good, true);
		s3_cache_release(l->line);
	}
	if (damaged)
		atomic_fetch_add(&v->stats.crc_retries, 1);
	if (waited && error && g->request.result)
		backend_error(&v->host, "volume=%s: cannot read %s: %s", v->name, g->key,
			g->request.message);
	s3_get_free(g);
}

/* The wanted pages of a line; NULL: none are. The plan is sorted. */
static const struct s3_want *find_want(const struct s3_plan *plan, unsigned from, uint32_t number)
{
	const struct s3_want *w = &plan->wants[from];

	for (unsigned i = from; i < plan->n && w->slot == plan->wants[from].slot; i++, w++)
		if (w->number == number)
			return w;
	return NULL;
}

/* The line's part of a span; what is in it and not wanted is claimed, too. */
static void claim_line(const struct s3_plan *plan, unsigned from, const struct span *span,
	uint32_t number, struct fill_line *l)
{
	struct s3_cache *cache = plan->v->cache;
	const struct s3_want *w = find_want(plan, from, number);
	struct s3_line_key key = {.id = plan->wants[from].object.id,
		.number = number,
		.origin = plan->wants[from].object.origin};
	uint16_t inside = 0, between;
	struct s3_claim claim = {0};

	for (unsigned i = 0; i < S3_LINE_PAGES; i++) {
		uint32_t page = number * S3_LINE_PAGES + i;

		if (page >= span->first && page < span->end)
			inside |= (uint16_t)(1u << i);
	}
	*l = (struct fill_line){0};
	if (w) {
		l->line = w->line;
		l->pages = w->pages & inside;
	}
	between = inside & (uint16_t)~l->pages;
	if (between)
		s3_cache_claim(cache, &key, between, between, NULL, &claim);
	if (claim.line) {
		l->line = claim.line;
		l->pages |= claim.claimed;
	}
	if (l->pages)
		s3_cache_hold(l->line);
	else
		l->line = NULL;
	if (claim.line)
		s3_cache_release(claim.line);
}

/* Adds memory to a vector; what follows the last entry lengthens it. */
static void add_iov(struct s3_get *g, uint8_t *memory, size_t length)
{
	struct iovec *last = g->iovcnt ? &g->iov[g->iovcnt - 1] : NULL;

	if (last && (uint8_t *)last->iov_base + last->iov_len == memory)
		last->iov_len += length;
	else
		g->iov[g->iovcnt++] = (struct iovec){memory, length};
}

/* Gives the claimed pages of a span up. error: for who waits; 0: they get what they need alone.
 */
static void abandon(const struct s3_plan *plan, unsigned from, const struct span *span, int error)
{
	for (uint32_t n = span->first / S3_LINE_PAGES; n * S3_LINE_PAGES < span->end; n++) {
		struct fill_line l;

		claim_line(plan, from, span, n, &l);
		if (!l.line)
			continue;
		s3_cache_settle(plan->v->cache, l.line, l.pages, 0, error);
		s3_cache_release(l.line);
	}
}

/* Gets a span of the object of the want at from, which is the first in it. */
static void start_fill(const struct s3_plan *plan, unsigned from, const struct span *span)
{
	struct s3_volume *v = plan->v;
	const struct s3_want *w = &plan->wants[from];
	uint64_t data = (uint64_t)w->object.blocks << v->shift,
		 at = (uint64_t)span->first * S3_PAGE;
	uint64_t end = (uint64_t)span->end * S3_PAGE;
	struct fill *f = calloc(1, sizeof *f + (1 + span->end - span->first) * sizeof *f->iov);

	if (end > data)
		end = data;
	/* Only whole blocks can be checked. */
	if (!f || at % v->block_size || end % v->block_size) {
		abandon(plan, from, span, f ? 0 : -ENOMEM);
		free(f);
		return;
	}
	f->ahead = plan->ahead;
	f->first_line = span->first / S3_LINE_PAGES;
	f->n_lines = (span->end - 1) / S3_LINE_PAGES - f->first_line + 1;
	for (unsigned i = 0; i < f->n_lines; i++)
		claim_line(plan, from, span, f->first_line + i, &f->lines[i]);
	f->get.v = v;
	f->get.object = w->object;
	f->get.slot = w->slot;
	f->get.first = (uint32_t)(at >> v->shift);
	f->get.count = (uint32_t)((end - at) >> v->shift);
	f->get.iov = f->iov + 1;
	atomic_fetch_add(&v->stats.fetched, end - at);
	for (; at < end; at += S3_PAGE) {
		const struct fill_line *l = &f->lines[at / S3_LINE - f->first_line];
		unsigned page = at % S3_LINE / S3_PAGE;
		uint64_t n = end - at < S3_PAGE ? end - at : S3_PAGE;
		uint8_t *memory = l->pages & 1u << page ? s3_cache_page(v->cache, l->line, page)
							: v->unwanted;

		add_iov(&f->get, memory, n);
		/* It is kept, and checked, as a whole. */
		memset(memory + n, 0, memory == v->unwanted ? 0 : S3_PAGE - n);
	}
	s3_objects_pin(v->objects, w->slot);
	if (f->ahead)
		atomic_fetch_add(&v->ahead_now, 1);
	s3_get_begin(&f->get);
}

bool s3_fill_is_generous(struct s3_volume *v)
{
	uint64_t fetched = atomic_load(&v->stats.fetched), served = atomic_load(&v->stats.served);

	if (fetched + served > WASTE_LAST) {
		atomic_compare_exchange_strong(&v->stats.fetched, &fetched, fetched / 2);
		atomic_compare_exchange_strong(&v->stats.served, &served, served / 2);
	}
	return fetched <= served * WASTE_RATIO + WASTE_LEAST;
}

static int by_place(const void *a, const void *b)
{
	const struct s3_want *x = a, *y = b;

	if (x->slot != y->slot)
		return x->slot < y->slot ? -1 : 1;
	return (x->number > y->number) - (x->number < y->number);
}

/* Sorts the wants and makes one of those of the same line. */
static void tidy(struct s3_plan *plan)
{
	unsigned n = 0;

	qsort(plan->wants, plan->n, sizeof *plan->wants, by_place);
	for (unsigned i = 0; i < plan->n; i++) {
		struct s3_want *w = &plan->wants[i], *last = n ? &plan->wants[n - 1] : NULL;

		if (last && by_place(w, last) == 0) {
			last->pages |= w->pages;
			s3_cache_release(w->line);
		} else {
			plan->wants[n++] = *w;
		}
	}
	plan->n = n;
}

/* The next consecutive wanted pages from page on in the want at *from. False: there are no more. */
static bool next_span(const struct s3_plan *plan, unsigned *from, unsigned *page, struct span *span)
{
	for (; *from < plan->n; ++*from, *page = 0) {
		const struct s3_want *w = &plan->wants[*from];
		unsigned first = *page;

		while (first < S3_LINE_PAGES && !(w->pages & 1u << first))
			first++;
		if (first == S3_LINE_PAGES)
			continue;
		for (*page = first; *page < S3_LINE_PAGES && w->pages & 1u << *page;)
			++*page;
		span->first = w->number * S3_LINE_PAGES + first;
		span->end = w->number * S3_LINE_PAGES + *page;
		return true;
	}
	return false;
}

/* Is the next span worth getting together with one of which so many pages are wanted? */
static bool joins(const struct s3_plan *plan, const struct span *span, uint32_t wanted,
	const struct span *next)
{
	uint32_t gap = next->first - span->end, all = next->end - span->first;

	if (all > FILL_PAGES)
		return false;
	if (gap == 0)
		return true;
	return plan->generous &&
	       (gap <= GAP_SMALL ||
		       (gap <= GAP_LARGE &&
			       (plan->ahead || all <= 2 * (wanted + next->end - next->first))));
}

void s3_fill_carry_out(struct s3_plan *plan)
{
	struct s3_volume *v = plan->v;
	unsigned from = 0, page = 0;
	struct span span, next;
	bool more;

	if (plan->n == 0)
		return;
	plan->generous = s3_fill_is_generous(v);
	tidy(plan);
	if (v->cachefile)
		read_from_disk(plan);
	more = next_span(plan, &from, &page, &next);
	while (more) {
		unsigned first = from;
		uint32_t wanted = next.end - next.first;

		span = next;
		while ((more = next_span(plan, &from, &page, &next)) &&
			plan->wants[from].slot == plan->wants[first].slot &&
			joins(plan, &span, wanted, &next)) {
			wanted += next.end - next.first;
			span.end = next.end;
		}
		start_fill(plan, first, &span);
	}
	for (unsigned i = 0; i < plan->n; i++)
		s3_cache_release(plan->wants[i].line);
	plan->n = 0;
}
