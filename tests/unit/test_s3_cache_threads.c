/* SPDX-License-Identifier: BSD-3-Clause */
/* The S3 device's cache while many ask at once: each gets what it asked for, once. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/state/cache.h"
#include "tests/unit/support.h"

#define THREADS 4
#define ROUNDS	20000u
#define OBJECTS 60u /* more than fit */

struct crowd {
	struct s3_cache *cache;
	_Atomic uint32_t getting[OBJECTS]; /* pages of each that somebody is getting */
	_Atomic unsigned wrong, answered, hits, failed;
};

struct member {
	struct crowd *crowd;
	uint64_t random;
	pthread_t thread;
};

struct wait {
	struct s3_page_waiter wait; /* first */
	struct crowd *crowd;
};

static uint64_t draw(struct member *m)
{
	m->random ^= m->random << 13;
	m->random ^= m->random >> 7;
	m->random ^= m->random << 17;
	return m->random;
}

static uint8_t content(uint64_t id, unsigned page)
{
	return (uint8_t)(id * 37 + page);
}

static void check(struct crowd *c, const struct s3_line *line, uint16_t pages)
{
	uint64_t id = s3_cache_key(line).id;

	for (unsigned i = 0; i < S3_LINE_PAGES; i++) {
		uint8_t copy[S3_PAGE];

		if (!(pages & 1u << i))
			continue;
		memcpy(copy, s3_cache_page(c->cache, line, i), S3_PAGE);
		if (copy[0] != content(id, i) || copy[S3_PAGE - 1] != content(id, i))
			atomic_fetch_add(&c->wrong, 1);
	}
}

static void on_ready(struct s3_page_waiter *waiter, struct s3_line *line, uint16_t valid, int error)
{
	struct wait *w = (struct wait *)waiter;
	struct crowd *c = w->crowd;

	check(c, line, valid);
	if (valid != waiter->pages)
		atomic_fetch_add(&c->failed, 1);
	if (error && error != -EIO)
		atomic_fetch_add(&c->wrong, 1);
	s3_cache_release(line);
	atomic_fetch_add(&c->answered, 1);
	free(w);
}

/* Fetches what was claimed; now and then the fetch fails. */
static void get(struct member *m, const struct s3_line_key *key, const struct s3_claim *claim)
{
	struct crowd *c = m->crowd;
	uint16_t good = draw(m) % 16 ? claim->claimed : (uint16_t)draw(m) & claim->claimed;

	if (atomic_fetch_or(&c->getting[key->id], claim->claimed) & claim->claimed)
		atomic_fetch_add(&c->wrong, 1);
	for (unsigned i = 0; i < S3_LINE_PAGES; i++)
		if (claim->claimed & 1u << i)
			memset(s3_cache_page(c->cache, claim->line, i), content(key->id, i),
				S3_PAGE);
	atomic_fetch_and(&c->getting[key->id], ~(uint32_t)claim->claimed);
	s3_cache_settle(
		c->cache, claim->line, claim->claimed, good, good == claim->claimed ? 0 : -EIO);
}

static void *ask(void *opaque)
{
	struct member *m = opaque;
	struct crowd *c = m->crowd;

	for (unsigned i = 0; i < ROUNDS; i++) {
		struct s3_line_key key = {.id = draw(m) % OBJECTS};
		uint16_t pages = (uint16_t)(draw(m) | 1u << draw(m) % S3_LINE_PAGES);
		bool ahead = draw(m) % 4 == 0;
		struct s3_line *line = ahead ? NULL : s3_cache_lookup(c->cache, &key, pages);
		struct s3_claim claim;
		struct wait *w;

		if (line) {
			check(c, line, pages);
			s3_cache_release(line);
			atomic_fetch_add(&c->hits, 1);
			atomic_fetch_add(&c->answered, !ahead);
			continue;
		}
		w = ahead ? NULL : calloc(1, sizeof *w);
		if (w)
			*w = (struct wait){.wait = {.ready = on_ready}, .crowd = c};
		s3_cache_claim(c->cache, &key, pages, pages, w ? &w->wait : NULL, &claim);
		if (claim.line && claim.claimed)
			get(m, &key, &claim);
		if (w && (!claim.line || claim.valid == pages)) {
			if (claim.line)
				check(c, claim.line, pages);
			free(w);
			atomic_fetch_add(&c->answered, 1);
		}
		if (claim.line)
			s3_cache_release(claim.line);
		if (ahead)
			atomic_fetch_add(&c->answered, 1);
	}
	return NULL;
}

static void test_all_at_once(void **state)
{
	struct crowd c = {.cache = s3_cache_new(1u << 20)};
	struct member members[THREADS];

	(void)state;
	for (unsigned i = 0; i < THREADS; i++) {
		members[i] = (struct member){.crowd = &c, .random = 88172645463325252u + i};
		assert_int_equal(pthread_create(&members[i].thread, NULL, ask, &members[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(members[i].thread, NULL);
	print_message("%u hits, %u could not be fetched\n", c.hits, c.failed);
	assert_int_equal(c.wrong, 0);
	assert_int_equal(c.answered, THREADS * ROUNDS);
	assert_true(c.hits > 0 && c.failed > 0);
	s3_cache_free(c.cache);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
