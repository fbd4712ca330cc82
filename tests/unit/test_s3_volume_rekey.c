/* SPDX-License-Identifier: BSD-3-Clause */
/* Another encryption-key= for a volume of the S3 device, over a store in this process. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/snapshot.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

#define BLOCK 4096u
/* clang-format off */
#define COMMON "endpoint=http://127.0.0.1;bucket=abc;uploads=2;batch-size=1M;memory=32M;"
/* clang-format on */

/* The user's keys: key(n) is the file of number n. */
static uint8_t keys[4][S3_KEY_BYTES];

static const char *key(unsigned n)
{
	static const char *const names[] = {"key0", "key1", "key2", "key3"};
	const char *path = scratch_path(names[n]);
	FILE *file = fopen(path, "w");

	memset(keys[n], (int)n + 1, sizeof keys[n]);
	assert_non_null(file);
	assert_int_equal(fwrite(keys[n], 1, sizeof keys[n], file), sizeof keys[n]);
	assert_int_equal(fclose(file), 0);
	return path;
}

static void open_with(struct device *d, const char *name, unsigned n, const char *more)
{
	device_open(d, &s3_backend, COMMON "volume=%s;encryption-key=%s;%s", name, key(n), more);
}

static void refused(const char *name, unsigned n, const char *message)
{
	struct device d;

	assert_int_not_equal(
		device_try(&d, &s3_backend, 0, COMMON "volume=%s;encryption-key=%s", name, key(n)),
		0);
	assert_holds(d.reported.error, message);
	assert_null(strchr(d.reported.error, '\n'));
}

static void write_block(struct device *d, unsigned number, uint8_t value)
{
	uint8_t data[BLOCK];

	memset(data, value, sizeof data);
	assert_int_equal(device_write(d, data, BLOCK, number * BLOCK, BACKEND_FUA), 0);
}

static void check_block(struct device *d, unsigned number, uint8_t value)
{
	uint8_t data[BLOCK];

	assert_int_equal(device_read(d, data, BLOCK, number * BLOCK), 0);
	for (unsigned i = 0; i < BLOCK; i++)
		assert_int_equal(data[i], value);
}

/* Opens the volume with key n and more; its first blocks hold these bytes ('0': zeroes). */
static void holds(const char *name, unsigned n, const char *more, const char *blocks)
{
	struct device d;

	open_with(&d, name, n, more);
	for (unsigned i = 0; blocks[i]; i++)
		check_block(&d, i, blocks[i] == '0' ? 0 : (uint8_t)blocks[i]);
	device_close(&d);
}

static void read_super(const char *name, struct s3_super *super)
{
	char end[64], data[4096];
	size_t n;

	snprintf(end, sizeof end, "/%s/super", name);
	n = fake_store_object(end, data, sizeof data);
	assert_true(n <= sizeof data);
	assert_int_equal(s3_super_decode(data, n, super), S3_GOOD);
}

static void write_super(const char *name, struct s3_super *super)
{
	struct s3_buffer out = {0};
	char at[64];

	snprintf(at, sizeof at, "userblk/%s/super", name);
	s3_super_encode(super, &out);
	fake_store_set(at, out.data, out.length);
	s3_buffer_free(&out);
	s3_super_free(super);
}

/* Makes the volume, with nothing in it, one of a program that wrapped no keys. */
static void make_old(const char *name)
{
	struct s3_super super;

	read_super(name, &super);
	assert_non_null(super.wrapped);
	free(super.wrapped);
	super.wrapped = NULL;
	write_super(name, &super);
}

/* The old key no longer opens anything, and the new one opens everything; no block is written
 * again. */
static void test_rekey(void **state)
{
	uint64_t stored;
	struct device d;
	bool derived;

	(void)state;
	fake_store_reset();
	open_with(&d, "v", 0, "create=on;size=64M");
	write_block(&d, 0, 'a');
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	assert_int_equal(s3_volume_clone(volume_of(&d), "s", "userblk", "before"), 0);
	write_block(&d, 1, 'b');
	stored = fake_store_put_bytes("/log/");
	assert_int_equal(s3_volume_rekey(volume_of(&d), (key(1), keys[1]), &derived), 0);
	assert_false(derived);
	assert_true(fake_store_put_bytes("/log/") == stored);
	/* It goes on as it was, and what it makes has the new key. */
	write_block(&d, 2, 'c');
	check_block(&d, 0, 'a');
	assert_int_equal(s3_volume_clone(volume_of(&d), "s", "userblk", "after"), 0);
	device_close(&d);

	refused("v", 0, "is not the key of volume=v; give the one that it was created with, or");
	holds("v", 1, "", "abc");
	holds("v", 1, "snapshot=s", "a0");
	/* A clone has the key that its parent had when it was made, until it is given another. */
	refused("before", 1, "is not the key of volume=before");
	open_with(&d, "before", 0, "");
	check_block(&d, 0, 'a');
	write_block(&d, 1, 'x');
	assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), 0);
	assert_int_equal(s3_volume_rekey(volume_of(&d), (key(2), keys[2]), &derived), 0);
	assert_int_equal(s3_volume_clone(volume_of(&d), "t", "userblk", "grandchild"), 0);
	device_close(&d);
	for (unsigned i = 0; i < 2; i++) {
		holds(i ? "grandchild" : "before", 2, "", "ax");
	}
	refused("after", 0, "is not the key of volume=after");
	holds("after", 1, "", "a");
	fake_store_reset();
}

/* A volume of an older program, and a clone of it. */
static void test_derived_keys(void **state)
{
	struct device d;
	bool derived;

	(void)state;
	fake_store_reset();
	open_with(&d, "v", 0, "create=on;size=64M");
	device_close(&d);
	make_old("v");
	open_with(&d, "v", 0, "");
	write_block(&d, 0, 'a');
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	assert_int_equal(s3_volume_clone(volume_of(&d), "s", "userblk", "clone"), 0);
	device_close(&d);
	make_old("clone");
	open_with(&d, "clone", 0, "");
	check_block(&d, 0, 'a');
	write_block(&d, 1, 'b');
	assert_int_equal(s3_volume_rekey(volume_of(&d), (key(1), keys[1]), &derived), 0);
	assert_true(derived); /* a holder of the first key needs no super object */
	device_close(&d);
	open_with(&d, "v", 0, "");
	check_block(&d, 0, 'a');
	assert_int_equal(s3_volume_rekey(volume_of(&d), (key(2), keys[2]), &derived), 0);
	assert_true(derived);
	assert_int_equal(s3_volume_rekey(volume_of(&d), (key(3), keys[3]), &derived), 0);
	assert_false(derived);
	device_close(&d);
	refused("clone", 0, "is not the key of volume=clone");
	holds("clone", 1, "", "ab");
	refused("v", 0, "is not the key of volume=v");
	refused("v", 2, "is not the key of volume=v");
	holds("v", 3, "", "a");
	fake_store_reset();
}

/* The super object changes under the rekey, or cannot be stored. */
static void test_other_changes(void **state)
{
	struct s3_super super;
	struct device d;
	bool derived;

	(void)state;
	fake_store_reset();
	open_with(&d, "v", 0, "create=on;size=64M");
	write_block(&d, 0, 'a');
	fake_store_fail(S3_PUT, "/super", -EIO, 1);
	assert_int_equal(s3_volume_rekey(volume_of(&d), (key(1), keys[1]), &derived), -EIO);
	read_super("v", &super);
	assert_memory_equal(super.key_check, volume_of(&d)->super.key_check, 16);
	s3_super_free(&super);
	/* Somebody else changes another thing meanwhile. */
	fake_store_fail(S3_PUT, "/super", -EEXIST, 1);
	assert_int_equal(s3_volume_rekey(volume_of(&d), (key(1), keys[1]), &derived), 0);
	/* A second change finds the first one in the store, and so does a change of the size. */
	assert_int_equal(s3_volume_resize(volume_of(&d), 128 << 20), 0);
	assert_int_equal(s3_volume_rekey(volume_of(&d), (key(2), keys[2]), &derived), 0);
	read_super("v", &super);
	assert_int_equal(super.blocks, (128 << 20) / BLOCK);
	/* Another program gave it a key that we do not know. */
	super.key_check[0] ^= 1;
	write_super("v", &super);
	assert_int_equal(s3_volume_rekey(volume_of(&d), (key(3), keys[3]), &derived), -EACCES);
	assert_holds(d.reported.error, "volume=v: another process has changed its key; ");
	read_super("v", &super);
	super.key_check[0] ^= 1;
	write_super("v", &super);
	device_close(&d);
	open_with(&d, "v", 2, "");
	check_block(&d, 0, 'a');
	assert_int_equal(s3_volume_rekey(volume_of(&d), (key(2), keys[2]), &derived), -EINVAL);
	assert_holds(d.reported.error, "volume=v: already has this key; ");
	device_close(&d);
	/* What is wrapped is damaged, though the check of the user's key is not. */
	read_super("v", &super);
	super.wrapped[20] ^= 1;
	write_super("v", &super);
	refused("v", 2, "volume=v: the keys in userblk/v/super are damaged; ");
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=64M");
	assert_int_equal(s3_volume_rekey(volume_of(&d), keys[1], &derived), -EINVAL);
	assert_holds(d.reported.error, "volume=v: is not encrypted, ");
	device_close(&d);
	fake_store_reset();
}

/* The store refuses the change, and an earlier attempt, which had no answer, makes it. */
static void test_change_that_comes_though_it_was_refused(void **state)
{
	struct device d;
	bool derived;

	(void)state;
	fake_store_reset();
	open_with(&d, "v", 0, "create=on;size=64M");
	write_block(&d, 0, 'a');
	fake_store_fail_late("/super", -EACCES, 1);
	assert_int_equal(s3_volume_rekey(volume_of(&d), (key(1), keys[1]), &derived), -EACCES);
	assert_holds(d.reported.error, "the key may be changed all the same; keep both files ");
	assert_null(strchr(d.reported.error, '\n'));
	fake_store_fail(S3_PUT, "/super", -EACCES, 1);
	assert_int_equal(s3_volume_rekey(volume_of(&d), keys[1], &derived), -EACCES);
	assert_null(strstr(d.reported.error, "may be changed"));
	fake_store_arrive();
	device_close(&d);
	refused("v", 0, "is not the key of volume=v");
	holds("v", 1, "", "a");
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rekey),
		cmocka_unit_test(test_derived_keys),
		cmocka_unit_test(test_other_changes),
		cmocka_unit_test(test_change_that_comes_though_it_was_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
