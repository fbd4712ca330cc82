/* SPDX-License-Identifier: BSD-3-Clause */
/* What userblk-kv draws, and what it makes of records. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/kv/record.h"
#include "harness/kv/ycsb.h"
#include "tests/unit/support.h"

#define DRAWS 400000

static struct rng rng;

static int seed(void **state)
{
	(void)state;
	rng_seed(&rng, 7, 1);
	return 0;
}

static const struct mix *mix(const char *name)
{
	for (unsigned i = 0; i < ycsb_mix_count; i++)
		if (strcmp(ycsb_mixes[i].name, name) == 0)
			return &ycsb_mixes[i];
	return NULL;
}

/* Five standard errors of a share of DRAWS. */
static void assert_share(unsigned found, double expected)
{
	double off = fabs((double)found / DRAWS - expected);

	assert_true(off <= 5 * sqrt(expected * (1 - expected) / DRAWS) + 1e-9);
}

static void test_the_hash_is_fnv(void **state)
{
	(void)state;
	assert_int_equal(ycsb_hash(0), UINT64_C(12161962213042174405));
	assert_int_equal(ycsb_hash(1), UINT64_C(9929646806074584996));
	assert_int_equal(ycsb_hash((UINT64_C(1) << 40) + 7), UINT64_C(6089181255519459853));
}

/* Shares of kinds as YCSB's paper has them. */
static void test_mixes(void **state)
{
	static const struct {
		const char *name;
		double read, update, insert, scan, rmw;
		enum distribution distribution;
	} paper[] = {
		{"a", 0.5, 0.5, 0, 0, 0, ZIPFIAN},
		{"b", 0.95, 0.05, 0, 0, 0, ZIPFIAN},
		{"c", 1, 0, 0, 0, 0, ZIPFIAN},
		{"d", 0.95, 0, 0.05, 0, 0, LATEST},
		{"e", 0, 0, 0.05, 0.95, 0, ZIPFIAN},
		{"f", 0.5, 0, 0, 0, 0.5, ZIPFIAN},
		{"fillseq", 0, 0, 1, 0, 0, ZIPFIAN},
		{"fillrandom", 0, 0, 1, 0, 0, ZIPFIAN},
	};

	(void)state;
	assert_int_equal(ycsb_mix_count, sizeof paper / sizeof *paper);
	for (unsigned i = 0; i < ycsb_mix_count; i++) {
		const struct mix *m = mix(paper[i].name);
		unsigned found[KINDS] = {0};
		struct chooser c;

		assert_non_null(m);
		assert_int_equal(m->distribution, paper[i].distribution);
		chooser_init(&c, m, m->distribution, 1000);
		for (unsigned k = 0; k < DRAWS; k++)
			found[choose_kind(&c, &rng)]++;
		assert_share(found[KIND_READ], paper[i].read);
		assert_share(found[KIND_UPDATE], paper[i].update);
		assert_share(found[KIND_INSERT], paper[i].insert);
		assert_share(found[KIND_SCAN], paper[i].scan);
		assert_share(found[KIND_RMW], paper[i].rmw);
	}
}

/* The first two ranks exactly, the others as Gray's approximation has them. */
static void test_zipf_frequencies(void **state)
{
	enum { ITEMS = 1000 };
	unsigned found[ITEMS] = {0}, beyond = 0;
	const double theta = 0.99;
	double zeta = 0, tail = 0;
	struct zipf z;

	(void)state;
	for (int i = 1; i <= ITEMS; i++)
		zeta += 1 / pow(i, theta);
	for (int i = 101; i <= ITEMS; i++)
		tail += 1 / pow(i, theta) / zeta;
	zipf_init(&z, ITEMS);
	for (unsigned k = 0; k < DRAWS; k++) {
		uint64_t drawn = zipf_draw(&z, &rng);

		assert_in_range(drawn, 0, ITEMS - 1);
		found[drawn]++;
		beyond += drawn >= 100;
	}
	assert_share(found[0], 1 / zeta);
	assert_share(found[1], pow(0.5, theta) / zeta);
	assert_true(fabs((double)beyond / DRAWS - tail) < 0.02);
}

static void test_zipf_grows_as_if_it_had_begun_so(void **state)
{
	struct zipf grown, whole;

	(void)state;
	zipf_init(&grown, 100);
	zipf_grow(&grown, 101);
	zipf_grow(&grown, 5000);
	zipf_init(&whole, 5000);
	assert_true(fabs(grown.zeta - whole.zeta) < 1e-9 && fabs(grown.eta - whole.eta) < 1e-12);
}

static void draw(const char *name, enum distribution distribution, uint64_t records,
	struct numbers *n, unsigned *found)
{
	struct chooser c;

	chooser_init(&c, mix(name), distribution, records);
	for (unsigned k = 0; k < DRAWS; k++)
		found[choose_record(&c, n, &rng)]++;
}

/* The most popular records lie anywhere, and have the shares of Zipf's first. */
static void test_zipfian_is_scrambled(void **state)
{
	enum { RECORDS = 10000 };
	unsigned *found = calloc(RECORDS, sizeof(*found)), most = 0;
	struct numbers *n = malloc(sizeof(*n));

	(void)state;
	numbers_init(n, RECORDS);
	draw("a", ZIPFIAN, RECORDS, n, found);
	for (unsigned i = 0; i < RECORDS; i++)
		most = found[i] > found[most] ? i : most;
	assert_int_equal(most, ycsb_hash(0) % RECORDS);
	assert_true(fabs((double)found[most] / DRAWS - 1 / 26.46902820178302) < 0.002);
	assert_true(fabs((double)found[ycsb_hash(1) % RECORDS] / DRAWS -
			    pow(0.5, YCSB_THETA) / 26.46902820178302) < 0.002);
	free(found);
	free(n);
}

/* What is popular stays so while records are inserted. */
static void test_inserts_do_not_move_what_is_popular(void **state)
{
	enum { RECORDS = 1000, MORE = 1500 };
	unsigned before[MORE] = {0}, after[MORE] = {0};
	struct numbers *n = malloc(sizeof(*n));
	uint64_t hot = ycsb_hash(0) % (2 * RECORDS);
	unsigned inserted = 0;

	(void)state;
	numbers_init(n, RECORDS);
	draw("e", ZIPFIAN, RECORDS, n, before);
	for (unsigned i = RECORDS; i < MORE; i++)
		assert_int_equal(before[i], 0);
	for (unsigned i = RECORDS; i < MORE; i++)
		numbers_add(n, numbers_take(n));
	draw("e", ZIPFIAN, RECORDS, n, after);
	for (unsigned i = RECORDS; i < MORE; i++)
		inserted += after[i];
	assert_true(hot < MORE && after[hot] > DRAWS / 40);
	assert_true(inserted > DRAWS / 20);
	free(n);
}

/* The last record is read as often as Zipf's first, and so it is after another insert. */
static void test_latest_follows_inserts(void **state)
{
	enum { RECORDS = 1000 };
	unsigned found[RECORDS + 1] = {0};
	struct numbers *n = malloc(sizeof(*n));
	double zeta = 0;

	(void)state;
	for (int i = 1; i <= RECORDS + 1; i++)
		zeta += 1 / pow(i, YCSB_THETA);
	numbers_init(n, RECORDS);
	numbers_add(n, numbers_take(n));
	draw("d", LATEST, RECORDS, n, found);
	assert_share(found[RECORDS], 1 / zeta);
	assert_share(found[RECORDS - 1], pow(0.5, YCSB_THETA) / zeta);
	free(n);
}

static void test_uniform(void **state)
{
	enum { RECORDS = 100 };
	unsigned found[RECORDS] = {0};
	struct numbers *n = malloc(sizeof(*n));

	(void)state;
	numbers_init(n, RECORDS);
	draw("a", UNIFORM, RECORDS, n, found);
	for (unsigned i = 0; i < RECORDS; i++)
		assert_share(found[i], 1.0 / RECORDS);
	free(n);
}

static void test_scans_are_of_1_to_100(void **state)
{
	unsigned found[YCSB_SCAN_MAX + 1] = {0};

	(void)state;
	for (unsigned k = 0; k < DRAWS; k++) {
		unsigned length = choose_length(&rng);

		assert_in_range(length, 1, YCSB_SCAN_MAX);
		found[length]++;
	}
	for (unsigned i = 1; i <= YCSB_SCAN_MAX; i++)
		assert_share(found[i], 1.0 / YCSB_SCAN_MAX);
}

/* A record counts once all before it are there. */
static void test_records_are_there_in_order(void **state)
{
	struct numbers *n = malloc(sizeof(*n));

	(void)state;
	numbers_init(n, 10);
	assert_int_equal(numbers_take(n), 10);
	assert_int_equal(numbers_take(n), 11);
	assert_int_equal(numbers_take(n), 12);
	numbers_add(n, 11);
	assert_int_equal(atomic_load(&n->there), 10);
	numbers_add(n, 10);
	assert_int_equal(atomic_load(&n->there), 12);
	numbers_add(n, 12);
	assert_int_equal(atomic_load(&n->there), 13);
	free(n);
}

static void test_keys(void **state)
{
	char key[KEY_SIZE + 1];
	uint64_t id = 0;

	(void)state;
	record_key(UINT64_MAX, key);
	assert_string_equal(key, "user18446744073709551615");
	assert_true(record_id(key, KEY_SIZE, &id) && id == UINT64_MAX);
	record_key(42, key);
	assert_true(record_id(key, KEY_SIZE, &id) && id == 42);
	assert_false(record_id(key, KEY_SIZE - 1, &id));
	assert_false(record_id("user18446744073709551616", KEY_SIZE, &id));
	assert_false(record_id("user0000000000000000004x", KEY_SIZE, &id));
	assert_false(record_id("uses00000000000000000042", KEY_SIZE, &id));
}

/* Each byte counts, and a field that is another record's, or another field. */
static void test_a_wrong_field_is_found(void **state)
{
	struct record record, other;

	(void)state;
	record_fill(5, 3, &record);
	assert_int_equal(record_check(5, &record), FIELDS);
	record_fill_field(5, 7, 99, record.fields[7]);
	assert_int_equal(record_check(5, &record), FIELDS);
	for (unsigned i = 0; i < RECORD_SIZE; i++) {
		record.fields[i / FIELD_SIZE][i % FIELD_SIZE] ^= 1;
		assert_int_equal(record_check(5, &record), i / FIELD_SIZE);
		record.fields[i / FIELD_SIZE][i % FIELD_SIZE] ^= 1;
	}
	assert_int_equal(record_check(6, &record), 0);
	other = record;
	memcpy(other.fields[4], record.fields[3], FIELD_SIZE);
	assert_int_equal(record_check(5, &other), 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_hash_is_fnv),
		cmocka_unit_test_setup(test_mixes, seed),
		cmocka_unit_test_setup(test_zipf_frequencies, seed),
		cmocka_unit_test(test_zipf_grows_as_if_it_had_begun_so),
		cmocka_unit_test_setup(test_zipfian_is_scrambled, seed),
		cmocka_unit_test_setup(test_inserts_do_not_move_what_is_popular, seed),
		cmocka_unit_test_setup(test_latest_follows_inserts, seed),
		cmocka_unit_test_setup(test_uniform, seed),
		cmocka_unit_test_setup(test_scans_are_of_1_to_100, seed),
		cmocka_unit_test(test_records_are_there_in_order),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_a_wrong_field_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
