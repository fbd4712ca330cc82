/* SPDX-License-Identifier: BSD-3-Clause */
/* The S3 device's cache in memory: hits, which reader fetches a miss, and eviction. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/state/cache.h"
#include "tests/unit/support.h"

#define ALL   0xffffu
#define SMALL (1u << 20) /* bytes of a cache of a few lines */

/* A waiter, and the result it received. */
struct waiter {
	struct s3_page_waiter wait; /* first */
	int calls, error;
	uint16_t valid;
};

static void on_ready(struct s3_page_waiter *w, struct s3_line *line, uint16_t valid, int error)
{
	struct waiter *waiter = (struct waiter *)w;

	waiter->calls++;
	waiter->valid = valid;
	waiter->error = error;
	s3_cache_release(line);
}

static struct s3_line_key key(uint64_t id, uint32_t number)
{
	return (struct s3_line_key){.id = id, .number = number};
}

static uint8_t content(const struct s3_line_key *k, unsigned page)
{
	return (uint8_t)(k->id * 31 + k->number * 7 + k->origin * 3 + page);
}

/* Fills claimed pages as a GET would. */
static void fill(struct s3_cache *c, const struct s3_claim *claim)
{
	struct s3_line_key k = s3_cache_key(claim->line);

	for (unsigned i = 0; i < S3_LINE_PAGES; i++)
		if (claim->claimed & 1u << i)
			memset(s3_cache_page(c, claim->line, i), content(&k, i), S3_PAGE);
}

static struct s3_claim claim(
	struct s3_cache *c, struct s3_line_key k, uint16_t pages, struct waiter *waiter)
{
	struct s3_claim result;

	if (waiter)
		*waiter = (struct waiter){.wait = {.ready = on_ready}};
	s3_cache_claim(c, &k, pages, pages, waiter ? &waiter->wait : NULL, &result);
	return result;
}

/* Fills what was claimed, and gives the line back. False: there is none. */
static bool settle(struct s3_cache *c, struct s3_claim got)
{
	if (!got.line)
		return false;
	fill(c, &got);
	if (got.claimed)
		s3_cache_settle(c, got.line, got.claimed, got.claimed, 0);
	s3_cache_release(got.line);
	return true;
}

/* Gets pages of a line because somebody asks for them. False: no memory. */
static bool get(struct s3_cache *c, struct s3_line_key k, uint16_t pages)
{
	struct waiter w;

	return settle(c, claim(c, k, pages, &w));
}

/* Are pages there, and what they should be? */
static bool there(struct s3_cache *c, struct s3_line_key k, uint16_t pages)
{
	struct s3_line *line = s3_cache_lookup(c, &k, pages);

	if (!line)
		return false;
	for (unsigned i = 0; i < S3_LINE_PAGES; i++) {
		const uint8_t *page = s3_cache_page(c, line, i);

		if (!(pages & 1u << i))
			continue;
		assert_int_equal(page[0], content(&k, i));
		assert_int_equal(page[S3_PAGE - 1], content(&k, i));
	}
	s3_cache_release(line);
	return true;
}

static struct s3_cache_counters counters(struct s3_cache *c)
{
	struct s3_cache_counters now;

	s3_cache_counters(c, &now);
	return now;
}

static void test_pages_come_one_by_one(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);

	(void)state;
	assert_false(there(c, key(1, 0), 1));
	assert_true(get(c, key(1, 0), 0x00f0));
	assert_true(there(c, key(1, 0), 0x00f0));
	assert_true(there(c, key(1, 0), 0x0020));
	/* All of what is asked for, or nothing. */
	assert_false(there(c, key(1, 0), 0x01f0));
	assert_true(get(c, key(1, 0), 0x0f00));
	assert_true(there(c, key(1, 0), 0x0ff0));
	/* Other objects, lines and origins are other data. */
	assert_false(there(c, key(2, 0), 0x0010));
	assert_false(there(c, key(1, 1), 0x0010));
	assert_false(there(c, (struct s3_line_key){.id = 1, .origin = 1}, 0x0010));
	assert_true(get(c, (struct s3_line_key){.id = 1, .origin = 1}, 0x0010));
	assert_true(there(c, (struct s3_line_key){.id = 1, .origin = 1}, 0x0010));
	assert_true(there(c, key(1, 0), 0x0010));
	assert_int_equal(counters(c).bytes, 9 * S3_PAGE);
	s3_cache_free(c);
}

static void test_nothing_is_got_twice_at_once(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);
	struct waiter first, second, third, fourth;
	struct s3_claim a, b, d, e;

	(void)state;
	a = claim(c, key(1, 0), 0x000f, &first);
	assert_int_equal(a.claimed, 0x000f);
	assert_int_equal(a.valid, 0);
	b = claim(c, key(1, 0), 0x0003, &second);
	assert_ptr_equal(b.line, a.line);
	assert_int_equal(b.claimed, 0);
	/* Half of it is on its way. */
	d = claim(c, key(1, 0), 0x003c, &third);
	assert_int_equal(d.claimed, 0x0030);
	fill(c, &a);
	assert_int_equal(s3_cache_settle(c, a.line, a.claimed, a.claimed, 0), 2);
	assert_int_equal(first.calls, 1);
	assert_int_equal(first.valid, 0x000f);
	assert_int_equal(second.calls, 1);
	assert_int_equal(second.valid, 0x0003);
	assert_int_equal(third.calls, 0);
	/* Nobody waits for what is there. */
	e = claim(c, key(1, 0), 0x0005, &fourth);
	assert_int_equal(e.valid, 0x0005);
	assert_int_equal(e.claimed, 0);
	fill(c, &d);
	assert_int_equal(s3_cache_settle(c, d.line, d.claimed, d.claimed, 0), 1);
	assert_int_equal(third.valid, 0x003c);
	assert_int_equal(fourth.calls, 0);
	for (int i = 0; i < 4; i++)
		s3_cache_release(a.line);
	assert_true(there(c, key(1, 0), 0x003f));
	s3_cache_free(c);
}

static void test_what_could_not_be_got_is_absent(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);
	struct waiter first, second;
	struct s3_claim a;

	(void)state;
	a = claim(c, key(1, 0), 0x000f, &first);
	claim(c, key(1, 0), 0x0001, &second);
	fill(c, &a);
	s3_cache_settle(c, a.line, a.claimed, 0x0005, 0); /* the others were damaged */
	assert_int_equal(first.valid, 0x0005);
	assert_int_equal(first.error, 0);
	assert_int_equal(second.valid, 0x0001);
	s3_cache_release(a.line);
	s3_cache_release(a.line);
	assert_false(there(c, key(1, 0), 0x000f));
	assert_true(there(c, key(1, 0), 0x0005));
	a = claim(c, key(2, 0), 0x0001, &first);
	s3_cache_settle(c, a.line, a.claimed, 0, -EIO);
	assert_int_equal(first.error, -EIO);
	assert_int_equal(first.valid, 0);
	s3_cache_release(a.line);
	assert_int_equal(counters(c).bytes, 2 * S3_PAGE);
	/* The next one tries again. */
	assert_true(get(c, key(2, 0), 0x0001));
	assert_true(there(c, key(2, 0), 0x0001));
	s3_cache_free(c);
}

static void test_pages_that_go_together(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);
	struct waiter w = {.wait = {.ready = on_ready}};
	struct s3_line_key k = key(1, 0);
	struct s3_claim got;

	(void)state;
	s3_cache_claim(c, &k, 0x0002, 0x000f, &w.wait, &got);
	assert_int_equal(got.claimed, 0x000f);
	fill(c, &got);
	s3_cache_settle(c, got.line, got.claimed, got.claimed, 0);
	s3_cache_release(got.line);
	assert_int_equal(w.valid, 0x0002);
	assert_true(there(c, k, 0x000f));
	/* No neighbouring pages are fetched when there is nothing to fetch. */
	s3_cache_claim(c, &k, 0x0001, 0x00ff, &w.wait, &got);
	assert_int_equal(got.claimed, 0);
	s3_cache_release(got.line);
	s3_cache_free(c);
}

static void test_memory_is_bounded(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);
	unsigned left = 0;

	(void)state;
	for (uint64_t id = 1; id <= 500; id++)
		assert_true(get(c, key(id, 0), id % 2 ? ALL : 0x0101));
	assert_in_range(counters(c).bytes, SMALL / 2, SMALL);
	for (uint64_t id = 1; id <= 500; id++)
		left += there(c, key(id, 0), id % 2 ? ALL : 0x0101);
	assert_in_range(left, 10, 60);
	assert_true(there(c, key(499, 0), ALL));
	assert_false(there(c, key(1, 0), ALL));
	assert_in_range(counters(c).evictions, 440, 490);
	s3_cache_free(c);
}

static void test_what_is_in_use_stays(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);
	struct s3_line_key k = key(7, 3);
	struct s3_line *held;
	struct s3_claim filling;
	struct waiter w;

	(void)state;
	assert_true(get(c, k, ALL));
	held = s3_cache_lookup(c, &k, ALL);
	filling = claim(c, key(8, 0), ALL, &w);
	fill(c, &filling);
	for (uint64_t id = 100; id < 600; id++)
		assert_true(get(c, key(id, 0), ALL));
	assert_true(there(c, k, ALL));
	s3_cache_settle(c, filling.line, filling.claimed, filling.claimed, 0);
	assert_true(there(c, key(8, 0), ALL));
	s3_cache_release(filling.line);
	s3_cache_release(held);
	s3_cache_free(c);
}

static void test_all_memory_in_use(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);
	struct s3_claim claims[64], none;
	struct waiter waiters[64], w;
	unsigned n = 0;

	(void)state;
	for (; n < 64; n++) {
		claims[n] = claim(c, key(n + 1, 0), ALL, &waiters[n]);
		if (!claims[n].line)
			break;
	}
	assert_in_range(n, 10, 16);
	none = claim(c, key(99, 0), ALL, &w);
	assert_null(none.line);
	assert_int_equal(none.claimed, 0);
	for (unsigned i = 0; i < n; i++) {
		fill(c, &claims[i]);
		s3_cache_settle(c, claims[i].line, ALL, ALL, 0);
		s3_cache_release(claims[i].line);
		assert_int_equal(waiters[i].calls, 1);
	}
	assert_true(get(c, key(99, 0), ALL));
	assert_true(there(c, key(99, 0), ALL));
	s3_cache_free(c);
}

static void test_a_scan_does_not_evict_what_is_used(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);

	(void)state;
	for (uint64_t id = 1; id <= 5; id++)
		assert_true(get(c, key(id, 0), ALL));
	for (uint64_t id = 1; id <= 5; id++)
		assert_true(there(c, key(id, 0), ALL));
	for (uint64_t id = 100; id < 1000; id++)
		assert_true(get(c, key(id, 0), ALL));
	for (uint64_t id = 1; id <= 5; id++)
		assert_true(there(c, key(id, 0), ALL));
	s3_cache_free(c);
}

/* A scan in small steps touches a line many times, yet no page of it twice. */
static void test_small_steps_are_no_reuse(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);

	(void)state;
	assert_true(get(c, key(1, 0), ALL));
	assert_true(there(c, key(1, 0), ALL));
	for (uint64_t id = 100; id < 400; id++)
		for (unsigned page = 0; page < S3_LINE_PAGES; page++)
			assert_true(get(c, key(id, 0), (uint16_t)(1u << page)));
	assert_true(there(c, key(1, 0), ALL));
	s3_cache_free(c);
}

/* What is asked for again soon after it had to go stays longer the next time. */
static void test_second_chance(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);

	(void)state;
	assert_true(get(c, key(1, 0), ALL));
	for (uint64_t id = 100; id < 130; id++)
		assert_true(get(c, key(id, 0), ALL));
	assert_false(there(c, key(1, 0), ALL));
	assert_true(get(c, key(1, 0), ALL));
	for (uint64_t id = 200; id < 240; id++)
		assert_true(get(c, key(id, 0), ALL));
	assert_true(there(c, key(1, 0), ALL));
	s3_cache_free(c);
}

/* Reads a line ahead; false: not now. */
static bool read_ahead(struct s3_cache *c, struct s3_line_key k)
{
	return settle(c, claim(c, k, ALL, NULL));
}

static void test_read_ahead(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);
	uint64_t n = 0;

	(void)state;
	assert_true(get(c, key(1, 0), ALL));
	assert_true(there(c, key(1, 0), ALL));
	/* No more than half of the memory waits to be asked for. */
	while (n < 100 && read_ahead(c, key(100 + n, 0)))
		n++;
	assert_in_range(n * S3_LINE, SMALL / 2 - 2 * S3_LINE, SMALL / 2 + 2 * S3_LINE);
	assert_int_equal(counters(c).ahead_used, 0);
	/* It waits, also when others need memory, for a while. */
	for (uint64_t id = 200; id < 207; id++)
		assert_true(get(c, key(id, 0), ALL));
	for (uint64_t id = 100; id < 100 + n; id++)
		assert_true(there(c, key(id, 0), ALL));
	assert_int_equal(counters(c).ahead_used, n * S3_LINE);
	assert_int_equal(counters(c).ahead_wasted, 0);
	/* Then there is room for more; what nobody ever asks for goes. */
	assert_true(read_ahead(c, key(300, 0)));
	for (uint64_t id = 400; id < 500; id++)
		assert_true(get(c, key(id, 0), ALL));
	assert_false(there(c, key(300, 0), ALL));
	assert_int_equal(counters(c).ahead_wasted, S3_LINE);
	assert_true(there(c, key(1, 0), ALL));
	s3_cache_free(c);
}

static void test_counters(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);
	struct s3_claim ahead;
	struct waiter w;

	(void)state;
	assert_true(get(c, key(1, 0), 0x0003));
	assert_int_equal(counters(c).misses, 2 * S3_PAGE);
	assert_int_equal(counters(c).hits, 0);
	assert_true(there(c, key(1, 0), 0x0001));
	assert_false(there(c, key(1, 0), 0x0007));
	assert_true(get(c, key(1, 0), 0x0007));
	assert_int_equal(counters(c).hits, 3 * S3_PAGE);
	assert_int_equal(counters(c).misses, 3 * S3_PAGE);
	/* What is on its way when it is asked for was read ahead in time, or nearly. */
	ahead = claim(c, key(2, 0), ALL, NULL);
	s3_cache_release(claim(c, key(2, 0), 0x0001, &w).line);
	assert_int_equal(counters(c).ahead_used, S3_PAGE);
	assert_int_equal(counters(c).hits, 4 * S3_PAGE);
	fill(c, &ahead);
	s3_cache_settle(c, ahead.line, ahead.claimed, ahead.claimed, 0);
	s3_cache_release(ahead.line);
	assert_int_equal(w.calls, 1);
	s3_cache_free(c);
}

static void test_insert(void **state)
{
	struct s3_cache *c = s3_cache_new(SMALL);
	size_t length = S3_LINE + 3 * S3_PAGE + 512;
	uint8_t *data = malloc(length);
	struct s3_line_key k = {.id = 5, .number = 1, .origin = 2};
	struct s3_line *line;

	(void)state;
	memset(data, 0xaa, length);
	data[S3_LINE] = 0xbb;
	s3_cache_insert(c, 2, 5, data, length);
	line = s3_cache_lookup(c, &k, 0x000f);
	assert_non_null(line);
	assert_int_equal(s3_cache_page(c, line, 0)[0], 0xbb);
	assert_int_equal(s3_cache_page(c, line, 3)[511], 0xaa);
	assert_int_equal(s3_cache_page(c, line, 3)[512], 0);
	s3_cache_release(line);
	assert_null(s3_cache_lookup(c, &k, 0x0010));
	k.number = 0;
	line = s3_cache_lookup(c, &k, ALL);
	assert_non_null(line);
	s3_cache_release(line);
	/* More than there is memory for is cut short. */
	free(data);
	data = calloc(1, 4 * SMALL);
	s3_cache_insert(c, 0, 6, data, 4 * SMALL);
	assert_in_range(counters(c).bytes, SMALL / 2, SMALL);
	free(data);
	s3_cache_free(c);
}

static void test_too_small(void **state)
{
	(void)state;
	assert_null(s3_cache_new(0));
	assert_null(s3_cache_new(100000));
	s3_cache_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pages_come_one_by_one),
		cmocka_unit_test(test_nothing_is_got_twice_at_once),
		cmocka_unit_test(test_what_could_not_be_got_is_absent),
		cmocka_unit_test(test_pages_that_go_together),
		cmocka_unit_test(test_memory_is_bounded),
		cmocka_unit_test(test_what_is_in_use_stays),
		cmocka_unit_test(test_all_memory_in_use),
		cmocka_unit_test(test_a_scan_does_not_evict_what_is_used),
		cmocka_unit_test(test_small_steps_are_no_reuse),
		cmocka_unit_test(test_second_chance),
		cmocka_unit_test(test_read_ahead),
		cmocka_unit_test(test_counters),
		cmocka_unit_test(test_insert),
		cmocka_unit_test(test_too_small),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
