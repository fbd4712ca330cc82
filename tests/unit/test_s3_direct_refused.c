/* SPDX-License-Identifier: BSD-3-Clause */
/* layout=direct over a store that is full, refuses or fails: nothing is lost, and no request ends
 * the volume. */
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "backends/s3/client/client.h"
#include "backends/s3/lifecycle/lifecycle.h"
#include "tests/unit/s3_direct_volume.h"

/* What was acknowledged waits in memory, and is stored when there is space. */
static void test_nothing_is_lost_in_a_full_store(void **state)
{
	struct device d;
	int errors;

	(void)state;
	create(&d, "");
	pattern(model, 12 * MIB, 10);
	assert_int_equal(device_write(&d, model, MIB, 0, BACKEND_FUA), 0);
	errors = d.reported.errors;
	fake_store_limit(fake_store_bytes());
	pattern(model + 4096, 4096, 11);
	assert_int_equal(device_write(&d, model + MIB, 2 * MIB, MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	assert_int_equal(device_write(&d, model + 4096, 4096, 4096, 0), -ENOSPC);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	assert_int_equal(device_counter(&d, "store_full"), 1);
	expect(&d, MIB, 2 * MIB);
	expect(&d, 8192, MIB - 8192);
	assert_int_equal(d.reported.errors, errors + 1);
	fake_store_limit(0);
	device_flush_at_last(&d);
	assert_int_equal(d.reported.errors, errors + 2);
	assert_int_equal(device_counter(&d, "store_full"), 0);
	/* More than memory holds, on a full store: some are refused, the others are there. */
	assert_int_equal(device_write(&d, model + 4096, 4096, 4096, BACKEND_FUA), 0);
	fake_store_limit(fake_store_bytes());
	for (unsigned i = 3; i < 12; i++)
		if (device_write(&d, model + i * MIB, MIB, i * MIB, 0))
			memset(model + i * MIB, 0, MIB);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	fake_store_limit(0);
	device_flush_at_last(&d);
	device_close(&d);
	reopen(&d);
	expect(&d, 0, 12 * MIB);
	device_close(&d);
	fake_store_reset();
}

static void test_a_trim_frees_a_full_store(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	pattern(model, 6 * MIB, 12);
	assert_int_equal(device_write(&d, model, 4 * MIB, 0, BACKEND_FUA), 0);
	fake_store_limit(fake_store_bytes());
	assert_int_equal(device_write(&d, model + 4 * MIB, MIB, 4 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	assert_int_equal(backend_trim(d.backend, MIB, MIB, 0), 0);
	memset(model + MIB, 0, MIB);
	device_flush_at_last(&d);
	assert_int_equal(fake_store_object(CHUNK("04"), there, MIB), MIB);
	/* A store does not stay full because nothing is put: what waits is cut. */
	assert_int_equal(device_write(&d, model + 5 * MIB, MIB, 5 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	assert_int_equal(backend_trim(d.backend, 5 * MIB, MIB, 0), 0);
	memset(model + 5 * MIB, 0, MIB);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(device_counter(&d, "store_full"), 0);
	pattern(model, 4096, 13);
	assert_int_equal(device_write(&d, model, 4096, 0, BACKEND_FUA), 0);
	fake_store_limit(0);
	device_close(&d);
	reopen(&d);
	expect(&d, 0, 6 * MIB);
	device_close(&d);
	fake_store_reset();
}

/* A new chunk for which a full store has no room does not hold up others, which replace theirs. */
static void test_a_chunk_that_does_not_fit(void **state)
{
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend,
		"volume=v;endpoint=http://127.0.0.1;bucket=abc;memory=8M;batch-size=1M;uploads=1;"
		"create=on;size=%u;layout=direct;chunk-size=1M",
		SIZE);
	assert_int_equal(device_write(&d, pattern(model, MIB, 22), MIB, 0, BACKEND_FUA), 0);
	fake_store_limit(fake_store_bytes());
	pattern(model, 4096, 23);
	pattern(model + 5 * MIB, 4096, 24);
	/* Parts of chunks, which wait for a flush. */
	assert_int_equal(device_write(&d, model + 5 * MIB, 4096, 5 * MIB, 0), 0);
	assert_int_equal(device_write(&d, model, 4096, 0, 0), 0);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	for (unsigned i = 0; i < PATIENCE * 10 && memcmp(there, model, MIB) != 0; i++) {
		usleep(100000);
		fake_store_object(CHUNK("00"), there, MIB);
	}
	assert_memory_equal(there, model, MIB);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	fake_store_limit(0);
	device_flush_at_last(&d);
	device_close(&d);
	reopen(&d);
	expect(&d, 0, MIB);
	expect(&d, 5 * MIB, 4096);
	device_close(&d);
	fake_store_reset();
}

/* What can be changed where the store is changes its answer: no reason to end. */
static void test_a_refusal_is_not_the_end(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	fake_store_fail(S3_PUT, "chunk/", -EACCES, 2);
	assert_int_equal(device_write(&d, pattern(model, 2 * MIB, 14), 2 * MIB, 0, 0), 0);
	assert_int_equal(backend_flush(d.backend), -EIO);
	device_flush_at_last(&d);
	assert_int_equal(device_write(&d, model, 4096, 3 * MIB, BACKEND_FUA), 0);
	memcpy(model + 3 * MIB, model, 4096);
	device_close(&d);
	reopen(&d);
	expect(&d, 0, 2 * MIB);
	expect(&d, 3 * MIB, 4096);
	device_close(&d);
	fake_store_reset();
}

static _Atomic bool no_threads; /* for requests */

int __real_s3_store_submit(struct s3_store *s, struct s3_request *req);
int __wrap_s3_store_submit(struct s3_store *s, struct s3_request *req);

int __wrap_s3_store_submit(struct s3_store *s, struct s3_request *req)
{
	if (!no_threads || req->op != S3_PUT)
		return __real_s3_store_submit(s, req);
	return -EAGAIN;
}

/* Nor are replies to something else, of which a request ends long before its deadline. */
static void test_replies_that_do_not_match(void **state)
{
	struct device d;

	(void)state;
	create(&d, ";retry-deadline=60");
	fake_store_mismatch(S3_PUT, "chunk/", 1);
	assert_int_equal(device_write(&d, pattern(model, MIB, 20), MIB, 0, 0), 0);
	if (backend_flush(d.backend))
		device_flush_at_last(&d);
	assert_int_equal(fake_store_failed(), 1);
	device_close(&d);
	reopen(&d);
	expect(&d, 0, MIB);
	device_close(&d);
	fake_store_reset();
}

/* Nor is a request that cannot even be made, whatever retry-deadline= says. */
static void test_a_request_that_cannot_be_made(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	no_threads = true;
	assert_int_equal(device_write(&d, pattern(model, MIB, 19), MIB, 0, 0), 0);
	assert_int_equal(backend_flush(d.backend), -EIO);
	no_threads = false;
	device_flush_at_last(&d);
	device_close(&d);
	reopen(&d);
	expect(&d, 0, MIB);
	device_close(&d);
	fake_store_reset();
}

/* Nor is the rest of a chunk that the store does not give: it is read again. */
static void test_a_rest_that_is_refused(void **state)
{
	struct device d;

	(void)state;
	create(&d, "");
	assert_int_equal(device_write(&d, pattern(model, MIB, 17), MIB, 0, BACKEND_FUA), 0);
	device_close(&d);
	reopen(&d);
	fake_store_fail(S3_GET, "chunk/", -EACCES, 2);
	assert_int_equal(device_write(&d, pattern(model, 4096, 18), 4096, 0, 0), 0);
	assert_int_equal(backend_flush(d.backend), -EIO);
	assert_int_equal(device_write(&d, model, 4096, MIB, 0), 0);
	memcpy(model + MIB, model, 4096);
	device_flush_at_last(&d);
	device_close(&d);
	reopen(&d);
	expect(&d, 0, MIB + 4096);
	device_close(&d);
	fake_store_reset();
}

/* Nor is a deletion that the store refuses: the chunk stays as it was, flushed or not. */
static void test_a_deletion_that_is_refused(void **state)
{
	struct device d;
	int errors;

	(void)state;
	create(&d, "");
	assert_int_equal(device_write(&d, pattern(model, 2 * MIB, 15), 2 * MIB, 0, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(device_write(&d, pattern(model, 4096, 16), 4096, 0, 0), 0);
	errors = d.reported.errors;
	fake_store_fail(S3_DELETE, "chunk/", -EACCES, 3);
	assert_int_equal(backend_trim(d.backend, 0, MIB, 0), -EIO);
	assert_holds(d.reported.error, "cannot be deleted: ");
	assert_int_equal(backend_zero(d.backend, MIB, MIB, 0), -EIO);
	assert_int_equal(backend_trim(d.backend, 0, MIB, 0), -EIO);
	assert_int_equal(d.reported.errors, errors + 1);
	expect(&d, 0, 2 * MIB);
	assert_int_equal(backend_flush(d.backend), 0);
	device_close(&d);
	reopen(&d);
	expect(&d, 0, 2 * MIB);
	assert_int_equal(backend_trim(d.backend, 0, MIB, 0), 0);
	memset(model, 0, MIB);
	expect(&d, 0, 2 * MIB);
	device_close(&d);
	fake_store_reset();
}

static int close_volume(struct device *d)
{
	params_free(d->params);
	return s3_volume_close(volume_of(d));
}

/* It answers all the time, and takes nothing. */
static void test_a_store_that_refuses_holds_up_no_end(void **state)
{
	struct device d;

	(void)state;
	for (unsigned full = 0; full < 2; full++) {
		create(&d, ";close-timeout=1");
		if (full)
			fake_store_limit(fake_store_bytes());
		else
			fake_store_fail(S3_PUT, "chunk/", -EACCES, UINT_MAX);
		assert_int_equal(device_write(&d, pattern(model, MIB, 20), MIB, 0, 0), 0);
		assert_int_equal(close_volume(&d), -EIO);
		assert_holds(d.reported.error, "close-timeout=1");
	}
	fake_store_reset();
}

/* To a framework, it is as far away as one that does not answer. */
static void test_a_store_that_refuses_is_waited_for(void **state)
{
	struct device d;
	int waited = 0;

	(void)state;
	create(&d, "");
	fake_store_fail(S3_PUT, "chunk/", -EACCES, UINT_MAX);
	assert_int_equal(device_write(&d, pattern(model, MIB, 20), MIB, 0, 0), 0);
	for (; waited < PATIENCE && !backend_stalled(d.backend); waited++)
		sleep(1);
	assert_true(backend_stalled(d.backend));
	fake_store_fail(S3_PUT, "chunk/", 0, 0);
	device_flush_at_last(&d);
	assert_false(backend_stalled(d.backend));
	device_close(&d);
	fake_store_reset();
}

/* Nor is one given up that takes one chunk after the other since there is space. */
static void test_an_end_waits_for_what_is_stored_slowly(void **state)
{
	struct device d;

	(void)state;
	create(&d, ";close-timeout=3");
	fake_store_limit(fake_store_bytes());
	assert_int_equal(device_write(&d, pattern(model, 7 * MIB, 21), 7 * MIB, 0, 0), 0);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	fake_store_limit(0);
	fake_store_latency(600);
	assert_int_equal(close_volume(&d), 0);
	fake_store_latency(0);
	reopen(&d);
	expect(&d, 0, 7 * MIB);
	device_close(&d);
	fake_store_reset();
}

/* Whether another writer took over cannot be read for a while. */
static void test_a_check_that_fails_is_made_again(void **state)
{
	static const int results[] = {-EIO, -EACCES};
	struct device d;

	(void)state;
	create(&d, "");
	for (unsigned i = 0; i < 2; i++) {
		int errors = d.reported.errors;

		fake_store_fail(S3_GET, "/super", results[i], 2);
		assert_int_equal(device_write(&d, pattern(model, 4096, i), 4096, 0, 0), 0);
		assert_int_equal(backend_flush(d.backend), -EIO);
		assert_int_equal(backend_flush(d.backend), -EIO);
		assert_int_equal(d.reported.errors, errors + 1);
		assert_int_equal(backend_flush(d.backend), 0);
	}
	fake_store_fail(S3_GET, "/super", -ENOENT, 1);
	assert_int_equal(device_write(&d, model, 4096, 4096, BACKEND_FUA), -EIO);
	assert_int_equal(device_write(&d, model, 4096, 4096, 0), -EIO);
	device_close(&d);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_is_lost_in_a_full_store),
		cmocka_unit_test(test_a_trim_frees_a_full_store),
		cmocka_unit_test(test_a_chunk_that_does_not_fit),
		cmocka_unit_test(test_a_refusal_is_not_the_end),
		cmocka_unit_test(test_replies_that_do_not_match),
		cmocka_unit_test(test_a_request_that_cannot_be_made),
		cmocka_unit_test(test_a_rest_that_is_refused),
		cmocka_unit_test(test_a_deletion_that_is_refused),
		cmocka_unit_test(test_a_store_that_refuses_holds_up_no_end),
		cmocka_unit_test(test_a_store_that_refuses_is_waited_for),
		cmocka_unit_test(test_an_end_waits_for_what_is_stored_slowly),
		cmocka_unit_test(test_a_check_that_fails_is_made_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
