/* SPDX-License-Identifier: BSD-3-Clause */
/* A volume of the S3 device over a store in this process that is full, or refuses for a while. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backends/params.h"
#include "backends/s3/admin/control.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/lifecycle/lifecycle.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_mib_volume.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

/* Until the store is full, for the volume, or is not. */
static void wait_full(struct device *d, bool full)
{
	WAIT_UNTIL(device_counter(d, "store_full") == full, "store_full stays %d", !full);
}

/* Bytes of the reserve. */
static uint64_t device_reserve(const struct device *d)
{
	struct s3_volume *v = volume_of(d);
	uint64_t bytes;

	pthread_mutex_lock(&v->lock);
	bytes = v->reserve.state == S3_RESERVE_THERE ? v->reserve.bytes : 0;
	pthread_mutex_unlock(&v->lock);
	return bytes;
}

/* ---- a full store ---------------------------------------------------------------------------- */

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

/* A volume with so many MiB whose store has room for nothing but what the reserve makes. */
static void open_full(struct device *d, unsigned uploads, unsigned written)
{
	char config[256];

	fake_store_reset();
	snprintf(
		config, sizeof config, COMMON "uploads=%u;memory=16M;create=on;size=128M", uploads);
	device_open(d, &s3_backend, config);
	for (unsigned n = 0; n < written; n++)
		assert_int_equal(write_mib(d, n, n), 0);
	assert_int_equal(backend_flush(d->backend), 0);
	/* The reserve, of which nobody knows when it is put. */
	WAIT_UNTIL(device_reserve(d) >= MIB, "there is no reserve");
	fake_store_limit(fake_store_bytes());
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

/* Nor does a clone that is made of what the server has, beside it. */
static void test_a_clone_beside_a_server(void **state)
{
	struct device d, reader;
	uint64_t full;

	(void)state;
	open_full(&d, 1, 48);
	fake_store_limit(0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	full = fake_store_bytes();
	fake_store_limit(full);
	device_open(&reader, &s3_backend, COMMON "uploads=1;memory=16M;readonly=on");
	assert_int_equal(s3_volume_clone(volume_of(&reader), "s", "userblk", "c"), -ENOSPC);
	device_close(&reader);
	assert_int_equal(fake_store_bytes(), full);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* Nor does a server make any, or a snapshot, of the room that is there to free some. */
static void test_no_snapshot_in_a_full_store(void **state)
{
	unsigned n = 48, snaps, parts;
	struct device d;

	(void)state;
	open_full(&d, 1, 48);
	fake_store_limit(0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	fake_store_limit(fake_store_bytes());
	while (write_mib(&d, n, n) == 0)
		n++;
	assert_int_equal(backend_flush(d.backend), 0);
	snaps = fake_store_requests(S3_PUT, "/snap/");
	parts = fake_store_requests(S3_PUT, "/ckpt/");
	assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), -ENOSPC);
	assert_holds(d.reported.error, "snapshot=t: the store of volume v is full; ");
	assert_int_equal(s3_volume_clone(volume_of(&d), "s", "userblk", "c"), -ENOSPC);
	assert_int_equal(fake_store_requests(S3_PUT, "/snap/"), snaps);
	assert_int_equal(fake_store_requests(S3_PUT, "/ckpt/"), parts);
	assert_int_equal(s3_snapshot_delete(volume_of(&d), "s"), 0);
	fake_store_limit(0);
	wait_full(&d, false);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), 0);
	device_close(&d);
	fake_store_reset();
}

/* Nor, if it is the first to find the store full, does it take that room. */
static void test_a_snapshot_finds_a_full_store(void **state)
{
	static const char *const parts[] = {"/snap/t/child/", "/ckpt/", "/snap/t/root"};
	struct device d;

	(void)state;
	for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++) {
		uint64_t full;

		open_full(&d, 1, 48);
		fake_store_limit(0);
		assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
		put_mib(&d, 48, 48);
		full = device_counter(&d, "full_roots");
		fake_store_fail(S3_PUT, parts[i], -ENOSPC, 1);
		assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), -ENOSPC);
		assert_int_equal(fake_store_failed(), 1);
		assert_holds(d.reported.error, "snapshot=t: ");
		assert_int_equal(device_counter(&d, "store_full"), 0);
		assert_true(device_reserve(&d) >= MIB);
		/* The next root needs no more room than without it, unless it may be stored. */
		put_mib(&d, 49, 49);
		assert_int_equal(try_checkpoint(&d), 0);
		assert_int_equal(device_counter(&d, "full_roots"), full + (i == 2));
		crash(&d);
		device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M");
		check_mib(&d, 48, 48);
		check_mib(&d, 49, 49);
		assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), 0);
		device_close(&d);
	}
	fake_store_reset();
}

/* Nor is it taken for a collection that nobody asked for, or for the ends of a zero. */
static void test_no_compaction_in_a_full_store(void **state)
{
	struct device d;
	uint64_t full;

	(void)state;
	open_full(&d, 1, 48);
	full = fake_store_bytes();
	for (unsigned i = 1; i < 45; i++)
		assert_int_equal(backend_trim(d.backend, i * MIB, MIB / 2, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(device_counter(&d, "store_full"), 1);
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

/* What has died in a full store is covered by roots as small as can be. */
static void test_roots_of_a_full_store(void **state)
{
	struct device d;
	uint64_t light, full;
	unsigned puts;

	(void)state;
	open_full(&d, 1, 48);
	full = device_counter(&d, "full_roots");
	light = device_counter(&d, "light_roots");
	/* One that does not fit leaves nothing behind, however often it is tried. */
	fake_store_fail(S3_PUT, "/ckpt/", -ENOSPC, 1000000);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 8 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	puts = fake_store_requests(S3_PUT, "/log/");
	WAIT_UNTIL(fake_store_failed() > 2, "no root is tried");
	assert_in_range(fake_store_requests(S3_PUT, "/log/"), puts, puts + 1);
	fake_store_fail(S3_PUT, "/ckpt/", 0, 0);
	WAIT_UNTIL(device_counter(&d, "light_roots") >= light + 2, "there are no light roots");
	assert_int_equal(device_counter(&d, "full_roots"), full);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* A root that is refused may yet arrive, so that the next one needs a number: it is tried seldom.
 */
static void test_a_root_that_is_refused(void **state)
{
	struct device d;
	unsigned puts;

	(void)state;
	open_full(&d, 1, 48);
	fake_store_fail(S3_PUT, "/root", -ENOSPC, 1000000);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 8 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	puts = fake_store_requests(S3_PUT, "/log/");
	pause_ms(6000);
	assert_in_range(fake_store_failed(), 2, 4);
	assert_in_range(fake_store_requests(S3_PUT, "/log/"), puts, puts + 4);
	fake_store_limit(0);
	fake_store_fail(S3_PUT, "/root", 0, 0);
	device_close(&d);
	fake_store_reset();
}

/* Nor are roots that are due for the length of the log tried more often. */
static void test_a_due_root_that_is_refused(void **state)
{
	struct s3_volume *v;
	struct device d;
	unsigned puts;

	(void)state;
	open_full(&d, 1, 48);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "uploads=1;memory=16M;checkpoint=8");
	fake_store_fail(S3_PUT, "/root", -ENOSPC, 1000000);
	for (unsigned i = 0; i < 9; i++) {
		assert_int_equal(backend_trim(d.backend, i * MIB, MIB, 0), 0);
		assert_int_equal(backend_flush(d.backend), 0);
	}
	puts = fake_store_requests(S3_PUT, "/log/");
	pause_ms(6000);
	assert_in_range(fake_store_failed(), 2, 5);
	assert_in_range(fake_store_requests(S3_PUT, "/log/"), puts, puts + 4);
	/* They are tried as soon as there is space. */
	v = volume_of(&d);
	pthread_mutex_lock(&v->lock);
	v->root_due = s3_now() + 600 * UINT64_C(1000000000);
	fake_store_fail(S3_PUT, "/root", 0, 0);
	puts = fake_store_requests(S3_PUT, "/root");
	pthread_mutex_unlock(&v->lock);
	fake_store_limit(0);
	WAIT_UNTIL(fake_store_requests(S3_PUT, "/root") > puts, "there is no root");
	device_close(&d);
	fake_store_reset();
}

/* An attempt that cannot begin leaves nothing behind, and is made again soon. */
static void test_roots_while_the_log_is_refused(void **state)
{
	struct s3_volume *v;
	struct device d;
	uint64_t due = 0, pause = 0;

	(void)state;
	open_full(&d, 1, 48);
	v = volume_of(&d);
	fake_store_fail(S3_PUT, "/log/", -ENOSPC, 1000000);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 8 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), -ENOSPC);
	for (unsigned attempts = 0; attempts < 4; attempts++) {
		uint64_t before = due;

		for (unsigned waited = 0; due == before && waited < 3000; waited++) {
			pause_ms(1);
			pthread_mutex_lock(&v->lock);
			due = v->root_due;
			pause = due > s3_now() ? due - s3_now() : 0;
			pthread_mutex_unlock(&v->lock);
		}
		assert_true(due != before);
		assert_in_range(pause, 0, 1000000000);
	}
	fake_store_fail(S3_PUT, "/log/", 0, 0);
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* What dies while as much is being deleted is covered, too. */
static void test_deaths_beside_deletions(void **state)
{
	struct device d;

	(void)state;
	open_full(&d, 1, 48);
	fake_store_hold_answers(S3_DELETE_MANY, "/log/", false);
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 8 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	fake_store_wait_held(S3_DELETE_MANY, "/log/");
	fake_store_limit(fake_store_bytes() + MIB / 8);
	assert_int_equal(backend_trim(d.backend, 16 * MIB, 8 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	fake_store_release(S3_DELETE_MANY, NULL);
	WAIT_UNTIL(device_counter(&d, "deleted") >= 16, "what has died stays");
	fake_store_limit(0);
	device_close(&d);
	fake_store_reset();
}

/* Once: a root that covers an earlier one says nothing of its own that would have to be covered. */
static void test_deaths_are_covered_once(void **state)
{
	unsigned roots;
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend,
		"endpoint=http://127.0.0.1;bucket=abc;batch-size=1M;volume=v;uploads=1;memory=16M;"
		"create=on;size=128M;gc-delay=600");
	for (unsigned n = 0; n < 48; n++)
		assert_int_equal(write_mib(&d, n, n), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	WAIT_UNTIL(device_reserve(&d) >= MIB, "there is no reserve");
	fake_store_limit(fake_store_bytes());
	roots = fake_store_requests(S3_PUT, "/root");
	assert_int_equal(backend_trim(d.backend, 8 * MIB, 8 * MIB, 0), 0);
	assert_int_equal(backend_flush(d.backend), 0);
	WAIT_UNTIL(fake_store_requests(S3_PUT, "/root") >= roots + 2, "there are no roots");
	pause_ms(2000);
	assert_in_range(fake_store_requests(S3_PUT, "/root"), roots + 2, roots + 4);
	fake_store_limit(0);
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

/* A snapshot that is stored, but not yet in a root of the volume, needs a full one. */
static void test_a_snapshot_without_a_root(void **state)
{
	struct device d;
	uint64_t full;

	(void)state;
	open_full(&d, 1, 48);
	fake_store_limit(0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	full = device_counter(&d, "full_roots");
	/* Nothing has changed, so that the root is all that this one puts there. */
	fake_store_fail(S3_PUT, "/ckpt/", -EIO, 1);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), 0);
	assert_int_equal(fake_store_failed(), 1);
	assert_int_equal(device_counter(&d, "full_roots"), full);
	put_mib(&d, 0, 1);
	assert_int_equal(try_checkpoint(&d), 0);
	assert_int_equal(device_counter(&d, "full_roots"), full + 1);
	assert_int_equal(s3_snapshot_rollback(volume_of(&d), "t"), 0);
	check_mib(&d, 0, 0);
	device_close(&d);
	fake_store_reset();
}

/* A rollback that is in the log waits for a store that is out of reach. */
static void test_a_rollback_waits_for_the_store(void **state)
{
	struct device d;

	(void)state;
	create_volume(&d);
	assert_int_equal(write_mib(&d, 0, 1), 0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	assert_int_equal(write_mib(&d, 0, 2), 0);
	fake_store_fail(S3_GET, "/snap/s/root", -EIO, 1);
	assert_int_equal(s3_snapshot_rollback(volume_of(&d), "s"), 0);
	check_mib(&d, 0, 1);
	assert_int_equal(write_mib(&d, 1, 3), 0);
	device_close(&d);
	fake_store_reset();
}

/* Nor does it end with an error while the store refuses its record, and happen after that. */
static void test_a_rollback_that_is_refused(void **state)
{
	struct device d;

	(void)state;
	create_volume(&d);
	put_mib(&d, 0, 1);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	put_mib(&d, 0, 2);
	fake_store_fail(S3_PUT, "/log/", -EACCES, 3);
	assert_int_equal(s3_snapshot_rollback(volume_of(&d), "s"), 0);
	assert_int_equal(fake_store_failed(), 3);
	check_mib(&d, 0, 1);
	put_mib(&d, 1, 3);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M");
	check_mib(&d, 0, 1);
	check_mib(&d, 1, 3);
	device_close(&d);
	fake_store_reset();
}

/* Nor while it refuses its root: what is in the log has happened. */
static void test_a_rollback_without_a_root(void **state)
{
	struct device d;

	(void)state;
	create_volume(&d);
	put_mib(&d, 0, 1);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	put_mib(&d, 0, 2);
	fake_store_fail(S3_PUT, "/ckpt/", -ENOSPC, 1000000);
	assert_int_equal(s3_snapshot_rollback(volume_of(&d), "s"), 0);
	assert_true(fake_store_failed() > 0);
	check_mib(&d, 0, 1);
	crash(&d);
	fake_store_fail(S3_PUT, "/ckpt/", 0, 0);
	device_open(&d, &s3_backend, COMMON "uploads=2;memory=16M");
	check_mib(&d, 0, 1);
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
		cmocka_unit_test(test_a_reserve_that_is_not_seen),
		cmocka_unit_test(test_a_refused_open_in_a_full_store),
		cmocka_unit_test(test_a_clone_beside_a_server),
		cmocka_unit_test(test_no_snapshot_in_a_full_store),
		cmocka_unit_test(test_a_snapshot_finds_a_full_store),
		cmocka_unit_test(test_no_compaction_in_a_full_store),
		cmocka_unit_test(test_roots_of_a_full_store),
		cmocka_unit_test(test_a_root_that_is_refused),
		cmocka_unit_test(test_a_due_root_that_is_refused),
		cmocka_unit_test(test_roots_while_the_log_is_refused),
		cmocka_unit_test(test_deaths_beside_deletions),
		cmocka_unit_test(test_deaths_are_covered_once),
		cmocka_unit_test(test_a_reserve_for_headers),
		cmocka_unit_test(test_a_reserve_for_a_large_root),
		cmocka_unit_test(test_a_write_that_waits_in_a_full_store),
		cmocka_unit_test(test_a_reserve_that_is_being_put),
		cmocka_unit_test(test_an_end_beside_a_reserve),
		cmocka_unit_test(test_a_refusal_from_before_the_room),
		cmocka_unit_test(test_a_reserve_over_a_slow_line),
		cmocka_unit_test(test_space_over_a_slow_line),
		cmocka_unit_test(test_no_space_for_a_collection),
		cmocka_unit_test(test_a_refusal_is_not_the_end),
		cmocka_unit_test(test_a_refusal_is_told_once),
		cmocka_unit_test(test_a_snapshot_without_a_root),
		cmocka_unit_test(test_a_rollback_waits_for_the_store),
		cmocka_unit_test(test_a_rollback_that_is_refused),
		cmocka_unit_test(test_a_rollback_without_a_root),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
