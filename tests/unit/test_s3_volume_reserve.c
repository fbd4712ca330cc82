/* SPDX-License-Identifier: BSD-3-Clause */
/* The reserve of a volume of the S3 device, by which a full store can be freed. */
#include <errno.h>
#include <pthread.h>

#include "backends/s3/base/clock.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_mib_volume.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

/* An error says nothing of the reserve: a PUT of it would need room for a second one. */
static void test_a_reserve_that_is_not_seen(void **state)
{
	struct device d;

	(void)state;
	open_full(&d, 1, 48);
	fake_store_limit(0);
	device_close(&d);
	device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M");
	/* No object is replaced, either. */
	fake_store_limit(fake_store_bytes() - MIB);
	fake_store_fail(S3_HEAD, "/probe/", -EIO, 1);
	/* It has begun, without an object of the log. */
	assert_int_equal(backend_trim(d.backend, 100 * MIB, MIB, 0), 0);
	WAIT_UNTIL(fake_store_failed() == 1, "it does not look");
	pause_ms(500);
	assert_int_equal(device_counter(&d, "store_full"), 0);
	WAIT_UNTIL(device_reserve(&d) >= MIB, "the reserve is not seen");
	assert_int_equal(device_counter(&d, "store_full"), 0);
	fake_store_limit(0);
	put_mib(&d, 64, 64);
	device_close(&d);
	fake_store_reset();
}

/* The reserve has room for batches whose every block has a record and a checksum. */
static void test_a_reserve_for_headers(void **state)
{
	struct device d;

	(void)state;
	open_full(&d, 1, 48);
	assert_true(device_reserve(&d) >= 3 * (MIB + MIB / 4096 * (16 + 4)) + MIB);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* The reserve has room for a root that tells of a long log, as far as the volume is large enough.
 */
static void test_a_reserve_for_a_large_root(void **state)
{
	static const unsigned roots[] = {2, 10}, least[] = {6, 7};
	struct device d;
	struct s3_volume *v;
	uint64_t bits, bytes = 0;

	(void)state;
	open_full(&d, 1, 64);
	fake_store_limit(0);
	v = volume_of(&d);
	pthread_mutex_lock(&v->lock);
	bits = v->summary.bits;
	pthread_mutex_unlock(&v->lock);
	for (unsigned i = 0; i < 2; i++) {
		pthread_mutex_lock(&v->lock);
		v->summary.bits = 8 * (roots[i] * MIB / 2);
		v->reserve.due = 0;
		pthread_mutex_unlock(&v->lock);
		WAIT_UNTIL((bytes = device_reserve(&d)) >= least[i] * MIB,
			"the reserve has %lu bytes", (unsigned long)bytes);
		assert_true(bytes <= 8 * MIB + MIB / 4);
	}
	pthread_mutex_lock(&v->lock);
	v->summary.bits = bits;
	pthread_mutex_unlock(&v->lock);
	device_close(&d);
	fake_store_reset();
}

static void *release_probe(void *opaque)
{
	pause_ms(200);
	fake_store_release(S3_PUT, "/probe/");
	return opaque;
}

/* What is refused for the sake of a reserve that is being put back waits for it, and takes it. */
static void test_a_reserve_that_is_being_put(void **state)
{
	struct device d;
	pthread_t release;

	(void)state;
	open_full(&d, 1, 48);
	for (unsigned n = 48; write_mib(&d, n, n) == 0;)
		n++;
	assert_int_equal(backend_flush(d.backend), 0);
	fake_store_hold_answers(S3_PUT, "/probe/", false);
	fake_store_limit(0);
	fake_store_wait_held(S3_PUT, "/probe/");
	/* What else is deleted meanwhile makes no room. */
	fake_store_limit(fake_store_bytes() - MIB);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 24 * MIB, 0), 0);
	assert_int_equal(pthread_create(&release, NULL, release_probe, NULL), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	pthread_join(release, NULL);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* Lets an answer go when the batch behind it has arrived. */
static void *release_first(void *opaque)
{
	while (fake_store_put_bytes("/log/33/") == 0)
		pause_ms(1);
	fake_store_release(S3_PUT, "/log/32/");
	return opaque;
}

/* An end does not wait for it. */
static void test_an_end_beside_a_reserve(void **state)
{
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M;create=on;size=128M");
	fake_store_hold(S3_PUT, "/probe/");
	for (unsigned n = 0; n < 48; n++)
		assert_int_equal(write_mib(&d, n, n), 0);
	fake_store_wait_held(S3_PUT, "/probe/");
	device_close(&d);
	fake_store_reset();
}

/* A refusal from before the reserve made room, which is seen after that, is none. */
static void test_a_refusal_from_before_the_room(void **state)
{
	struct device d;
	pthread_t release;

	(void)state;
	open_full(&d, 2, 48);
	fake_store_fail(S3_PUT, "/probe/", -ENOSPC, 1000);
	fake_store_hold_answers(S3_PUT, "/log/32/", false);
	assert_int_equal(write_mib(&d, 48, 48), 0);
	assert_int_equal(write_mib(&d, 49, 49), 0);
	assert_int_equal(pthread_create(&release, NULL, release_first, NULL), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	pthread_join(release, NULL);
	assert_int_equal(device_counter(&d, "store_full"), 1);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* A reserve that takes too long is put more and more seldom: the line is for the data. */
static void test_a_reserve_over_a_slow_line(void **state)
{
	static const unsigned pauses[] = {120, 240, 480, 960, 1920, 3840, 3840};
	struct s3_volume *v;
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M;create=on;size=128M");
	v = volume_of(&d);
	fake_store_fail(S3_PUT, "/probe/", -EIO, 1000);
	for (unsigned n = 0; n < 48; n++)
		assert_int_equal(write_mib(&d, n, n), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	for (unsigned i = 0; i < sizeof pauses / sizeof pauses[0]; i++) {
		uint64_t seconds = 0;

		WAIT_UNTIL(fake_store_failed() == i + 1, "it is not put");
		while (!seconds) {
			pthread_mutex_lock(&v->lock);
			if (v->reserve.state != S3_RESERVE_PUTTING) {
				seconds = (v->reserve.due - s3_now()) / 1000000000;
				v->reserve.due = 0;
			}
			pthread_mutex_unlock(&v->lock);
		}
		assert_in_range(seconds, pauses[i] - 10, pauses[i]);
	}
	device_close(&d);
	fake_store_reset();
}

/* Over a line that is too slow for the reserve a store that has space again is seen all the same.
 */
static void test_space_over_a_slow_line(void **state)
{
	struct device d;
	struct s3_volume *v;
	uint64_t before;

	(void)state;
	open_full(&d, 1, 48);
	v = volume_of(&d);
	for (unsigned n = 48; write_mib(&d, n, n) == 0;)
		n++;
	assert_int_equal(backend_flush(d.backend), 0);
	fake_store_line(MIB / 16); /* a batch takes 16 s, and the reserve 64 s */
	fake_store_limit(0);
	wait_full(&d, false);
	put_mib(&d, 127, 127);
	/* The whole one is put again when the line is good, and no sooner than if it had never been
	 * full. */
	pthread_mutex_lock(&v->lock);
	assert_int_equal(v->reserve.bytes, MIB);
	assert_in_range((v->reserve.due - s3_now()) / 1000000000, 60, 120);
	v->reserve.due = 0;
	fake_store_line(0);
	before = fake_store_put_bytes("/probe/");
	pthread_mutex_unlock(&v->lock);
	WAIT_UNTIL(fake_store_put_bytes("/probe/") >= before + 4 * MIB, "there is no reserve");
	device_close(&d);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_reserve_that_is_not_seen),
		cmocka_unit_test(test_a_reserve_for_headers),
		cmocka_unit_test(test_a_reserve_for_a_large_root),
		cmocka_unit_test(test_a_reserve_that_is_being_put),
		cmocka_unit_test(test_an_end_beside_a_reserve),
		cmocka_unit_test(test_a_refusal_from_before_the_room),
		cmocka_unit_test(test_a_reserve_over_a_slow_line),
		cmocka_unit_test(test_space_over_a_slow_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
