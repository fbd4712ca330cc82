/* SPDX-License-Identifier: BSD-3-Clause */
/* A volume of the S3 device over a store in this process that is full, or refuses for a while. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "backends/params.h"
#include "backends/s3/admin/control.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/lifecycle/lifecycle.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_mib_volume.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

/* What was acknowledged waits in memory, and is stored when there is space. */
static void test_nothing_is_lost_in_a_full_store(void **state)
{
	struct device d;
	int errors;

	(void)state;
	create_volume(&d);
	put_mib(&d, 0, 1);
	assert_int_equal(write_mib(&d, 1, 2), 0);
	errors = d.reported.errors;
	fake_store_limit(fake_store_bytes() + 4096);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	assert_int_equal(device_counter(&d, "store_full"), 1);
	assert_int_equal(d.reported.errors, errors + 1);
	assert_int_equal(write_mib(&d, 2, 3), -ENOSPC);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	check_mib(&d, 0, 1);
	check_mib(&d, 1, 2);
	assert_int_equal(d.reported.errors, errors + 1);
	fake_store_limit(0);
	device_flush_at_last(&d);
	wait_full(&d, false);
	put_mib(&d, 2, 3);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M");
	for (unsigned i = 0; i < 3; i++)
		check_mib(&d, i, i + 1);
	device_close(&d);
	fake_store_reset();
}

/* A trim and a collection free a store in which there is no room for a single object more. */
static void test_a_full_store_is_freed(void **state)
{
	unsigned n = 48, written = 48;
	uint64_t full;
	struct device d;

	(void)state;
	open_full(&d, 1, written);
	full = fake_store_bytes();
	/* As much as goes into memory: the reserve is used up for it. */
	while (n < 128 && write_mib(&d, n, n) == 0)
		n++;
	assert_in_range(n, written + 1, 127);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(device_counter(&d, "store_full"), 1);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 24 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), 0);
	assert_true(fake_store_bytes() < full - 16 * MIB);
	wait_full(&d, false);
	put_mib(&d, 127, 127);
	fake_store_limit(0);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M");
	for (unsigned i = 0; i < n; i++)
		if (i < 8 || i >= 32)
			check_mib(&d, i, i);
	check_mib(&d, 127, 127);
	device_close(&d);
	fake_store_reset();
}

/* A server that has ended in a full store starts again, and frees it. */
static void test_a_full_store_is_opened(void **state)
{
	struct device d;
	uint64_t full;

	(void)state;
	for (unsigned closed = 0; closed < 2; closed++) {
		open_full(&d, 1, 48);
		full = fake_store_bytes();
		if (closed)
			device_close(&d);
		else
			crash(&d);
		device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M");
		/* An end takes the reserve for its root, and leaves some of it. */
		assert_int_equal(device_counter(&d, "store_full"), !closed);
		if (!closed)
			assert_int_equal(write_mib(&d, 64, 64), -ENOSPC);
		assert_int_equal(backend_trim(d.backend, 8 * MIB, 24 * MIB, 0), 0);
		assert_int_equal(backend_flush(d.backend), 0);
		assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), 0);
		assert_true(fake_store_bytes() < full - 16 * MIB);
		wait_full(&d, false);
		put_mib(&d, 127, 127);
		for (unsigned i = 0; i < 48; i++)
			if (i < 8 || i >= 32)
				check_mib(&d, i, i);
		device_close(&d);
	}
	fake_store_reset();
}

/* An end took the reserve: what it left is not for writes of the next server, either. */
static void test_a_store_that_was_full_before(void **state)
{
	struct device d;

	(void)state;
	open_full(&d, 1, 48);
	device_close(&d);
	device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M");
	assert_int_equal(backend_trim(d.backend, 0, MIB, 0), 0);
	wait_full(&d, true);
	assert_holds(d.reported.error, "the store has no space for the reserve of the volume; ");
	assert_int_equal(write_mib(&d, 64, 64), -ENOSPC);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 24 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	wait_full(&d, false);
	put_mib(&d, 64, 64);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* Nor before it has looked whether there is a reserve: what writes took then trims would lack. */
static void test_the_first_writes_in_a_full_store(void **state)
{
	struct device d;
	unsigned n = 64;

	(void)state;
	open_full(&d, 1, 48);
	device_close(&d);
	device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M");
	while (n < 128 && write_mib(&d, n, n) == 0)
		n++;
	assert_int_equal(n, 64);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 24 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	wait_full(&d, false);
	put_mib(&d, 64, 64);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* Writes go on as soon as there is an answer, and soon without one. */
static void test_the_first_writes_wait_for_an_answer(void **state)
{
	enum { ANSWERED, FAILED, NOT_ANSWERED, NOT_PUT, CASES };
	char key[S3_KEY_MAX + 1];
	struct s3_name name = {.kind = S3_NAME_PROBE};
	struct s3_volume *v;
	struct device d;
	bool undecided;

	(void)state;
	for (unsigned i = 0; i < CASES; i++) {
		open_full(&d, 1, 48);
		fake_store_limit(0);
		memcpy(name.uuid, volume_of(&d)->super.uuid, S3_UUID);
		s3_volume_key(volume_of(&d), &name, key);
		device_close(&d);
		device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M");
		if (i == FAILED)
			fake_store_fail(S3_HEAD, "/probe/", -EIO, 1);
		else if (i == NOT_ANSWERED)
			fake_store_hold(S3_HEAD, "/probe/");
		else if (i == NOT_PUT)
			fake_store_hold(S3_PUT, "/probe/");
		if (i == NOT_PUT)
			fake_store_set(key, NULL, 0);
		assert_int_equal(write_mib(&d, 64, 64), 0);
		assert_int_equal(write_mib(&d, 65, 65), 0);
		v = volume_of(&d);
		pthread_mutex_lock(&v->lock);
		undecided = v->reserve.undecided;
		pthread_mutex_unlock(&v->lock);
		assert_int_equal(undecided, i == NOT_ANSWERED || i == NOT_PUT);
		assert_int_equal(device_counter(&d, "stalls") > 0, true);
		fake_store_release(S3_HEAD, NULL);
		WAIT_UNTIL(device_reserve(&d) >= MIB, "there is no reserve");
		device_close(&d);
		device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M");
		check_mib(&d, 64, 64);
		check_mib(&d, 65, 65);
		device_close(&d);
	}
	fake_store_reset();
}

/* Space that is added beside a server which has only been read since its start is seen. */
static void test_space_for_an_idle_server(void **state)
{
	struct device d;

	(void)state;
	open_full(&d, 1, 48);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M");
	assert_int_equal(device_counter(&d, "store_full"), 1);
	check_mib(&d, 0, 0);
	fake_store_limit(0);
	wait_full(&d, false);
	put_mib(&d, 64, 64);
	device_close(&d);
	fake_store_reset();
}

static void ignore_error(void *opaque, const char *message)
{
	(void)opaque;
	(void)message;
}

/* An open that is refused takes nothing from the server that it met. */
static void test_a_refused_open_in_a_full_store(void **state)
{
	const struct backend_host host = {.error = ignore_error};
	struct s3_config config;
	struct s3_volume *v;
	struct device d;
	uint64_t full;

	(void)state;
	open_full(&d, 1, 48);
	full = fake_store_bytes();
	config = *(const struct s3_config *)params_config(d.params);
	config.create = false;
	config.size = 0;
	config.require_clean_close = true;
	assert_int_equal(s3_volume_open(&config, 0, &host, &v), -EBUSY);
	assert_int_equal(fake_store_bytes(), full);
	assert_int_equal(write_mib(&d, 48, 48), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* The reserve is not taken for a collection that nobody asked for, or for the ends of a zero. */
static void test_no_compaction_in_a_full_store(void **state)
{
	struct device d;
	uint64_t full;

	(void)state;
	open_full(&d, 1, 48);
	full = fake_store_bytes();
	/* It is known as full, so that no collection is under way. */
	assert_int_equal(write_mib(&d, 48, 48), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(device_counter(&d, "store_full"), 1);
	for (unsigned i = 1; i < 45; i++)
		assert_int_equal(backend_trim(d.backend, i * MIB, MIB / 2, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(backend_zero(d.backend, 100, 8192, 0), -ENOSPC);
	assert_int_equal(backend_zero(d.backend, 0, 8192, 0), 0);
	pause_ms(2000);
	assert_int_equal(fake_store_put_bytes("/gc/"), 0);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), 0);
	assert_true(fake_store_put_bytes("/gc/") > 0);
	assert_true(fake_store_bytes() < full - 12 * MIB);
	wait_full(&d, false);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* More than the memory of the volume takes at once, whose result it returns. */
static void *write_large(void *opaque)
{
	static uint8_t data[8 * MIB];

	return (void *)(intptr_t)device_write(opaque, data, sizeof data, 64 * MIB, 0);
}

/* A write that waits for memory when the store is full takes nothing of the reserve. */
static void test_a_write_that_waits_in_a_full_store(void **state)
{
	struct device d;
	pthread_t writer;
	void *result;

	(void)state;
	open_full(&d, 1, 48);
	/* All of them: the store must not be found full before it waits. */
	fake_store_hold(S3_PUT, "/log/");
	assert_int_equal(pthread_create(&writer, NULL, write_large, &d), 0);
	WAIT_UNTIL(device_counter(&d, "stalls") > 0, "it does not wait");
	fake_store_release(S3_PUT, NULL);
	pthread_join(writer, &result);
	assert_int_equal((intptr_t)result, -ENOSPC);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 24 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(device_counter(&d, "store_full"), 1);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

static int ignore_line(void *opaque, const char *line)
{
	(void)opaque;
	(void)line;
	return 0;
}

/* Without a reserve a collection cannot even begin, and says so. */
static void test_no_space_for_a_collection(void **state)
{
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M;create=on;size=128M");
	put_mib(&d, 0, 1);
	fake_store_limit(fake_store_bytes());
	assert_int_equal(s3_control_perform(volume_of(&d), "gc", NULL, ignore_line, NULL), -ENOSPC);
	assert_holds(d.reported.error, "volume=v: the store has no space, not even to free some; ");
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* What can be changed where the store is changes its answer: no reason to end. */
static void test_a_refusal_is_not_the_end(void **state)
{
	struct device d;

	(void)state;
	create_volume(&d);
	fake_store_fail(S3_PUT, "/log/", -EACCES, 2);
	assert_int_equal(write_mib(&d, 0, 1), 0);
	assert_int_equal(backend_flush(d.backend), -EIO);
	device_flush_at_last(&d);
	put_mib(&d, 1, 2);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M");
	check_mib(&d, 0, 1);
	check_mib(&d, 1, 2);
	device_close(&d);
	fake_store_reset();
}

/* One object that is refused, among others that are not, is reported once. */
static void test_a_refusal_is_told_once(void **state)
{
	struct device d;
	int errors;

	(void)state;
	create_volume(&d);
	errors = d.reported.errors;
	fake_store_fail(S3_PUT, "/log/02/", -EACCES, 2);
	assert_int_equal(write_mib(&d, 0, 1), 0);
	assert_int_equal(backend_flush(d.backend), -EIO);
	fake_store_hold(S3_PUT, "/log/02/");
	fake_store_wait_held(S3_PUT, "/log/02/");
	/* While it is put again the next one arrives. */
	assert_int_equal(write_mib(&d, 1, 2), 0);
	WAIT_UNTIL(fake_store_put_bytes("/log/03/") > 0, "the next one does not arrive");
	pause_ms(100);
	fake_store_release(S3_PUT, NULL);
	device_flush_at_last(&d);
	assert_int_equal(d.reported.errors, errors + 1);
	device_close(&d);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_is_lost_in_a_full_store),
		cmocka_unit_test(test_a_full_store_is_freed),
		cmocka_unit_test(test_a_full_store_is_opened),
		cmocka_unit_test(test_a_store_that_was_full_before),
		cmocka_unit_test(test_the_first_writes_in_a_full_store),
		cmocka_unit_test(test_the_first_writes_wait_for_an_answer),
		cmocka_unit_test(test_space_for_an_idle_server),
		cmocka_unit_test(test_a_refused_open_in_a_full_store),
		cmocka_unit_test(test_no_compaction_in_a_full_store),
		cmocka_unit_test(test_a_write_that_waits_in_a_full_store),
		cmocka_unit_test(test_no_space_for_a_collection),
		cmocka_unit_test(test_a_refusal_is_not_the_end),
		cmocka_unit_test(test_a_refusal_is_told_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
