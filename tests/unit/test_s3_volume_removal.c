/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The deletion of whole S3 volumes over a store in this process: what stays of one, and who still
 * serves it, is no harm to the next volume of that name.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backends/s3/admin/delete.h"
#include "tests/unit/s3_writers.h"

/*
 * Two delete a volume, one of which stops at a request; the other one ends, and a new volume gets
 * the name: the first one leaves it alone.
 */
static void delete_late(enum s3_op op, const char *part)
{
	struct device a, b, c;
	struct job late;
	uint8_t block[BLOCK];

	create_with_a_write(&a);
	device_close(&a);
	fake_store_hold_answers(op, part, false);
	start_job(&late, &b, delete_volume);
	fake_store_wait_held(op, part);
	assert_int_equal(delete_volume(&c), 0);
	device_open(&a, &s3_backend, COMMON "create=on;size=64M");
	assert_int_equal(write_block(&a, 0, 2), 0);
	fake_store_release(op, NULL);
	assert_int_equal(end_job(&late), -ENOENT);
	assert_holds(b.reported.error, "another process has deleted it meanwhile");
	device_close(&a);
	open_volume(&a);
	assert_int_equal(device_read(&a, block, BLOCK, 0), 0);
	assert_int_equal(block[0], 2);
	device_close(&a);
	fake_store_reset();
}

static void test_late_deletion_of_a_volume(void **state)
{
	(void)state;
	delete_late(S3_LIST, "/v/snap/");
	delete_late(S3_DELETE, "/super");
}

/* The volume is taken over and deleted, and gives its name to another one. */
static void make_anew(void)
{
	struct device b;

	open_volume(&b);
	device_close(&b);
	assert_int_equal(delete_volume(&b), 0);
	device_open(&b, &s3_backend, COMMON "create=on;size=64M");
	assert_int_equal(write_block(&b, 0, 2), 0);
	assert_int_equal(write_block(&b, 1, 3), 0);
	device_close(&b);
}

/* A writer whose volume that happens to. */
static void delete_behind(struct device *a, unsigned writes)
{
	create_with_a_write(a);
	for (unsigned i = 1; i < writes; i++)
		assert_int_equal(write_block(a, 0, i), 0);
	make_anew();
}

static void check_new_volume(void)
{
	uint8_t block[BLOCK];
	struct device b;

	if (device_try(&b, &s3_backend, 0, COMMON))
		fail_msg("cannot open: %s", b.reported.error);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(device_read(&b, block, BLOCK, (uint64_t)i * BLOCK), 0);
		assert_int_equal(block[0], i + 2);
	}
	/* Past all numbers that the old one may have stored something at. */
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(write_block(&b, 2, i), 0);
	/* The old one's root may stand in its place: the next one has another number. */
	if (try_checkpoint(&b))
		assert_int_equal(try_checkpoint(&b), 0);
	device_close(&b);
	if (device_try(&b, &s3_backend, 0, COMMON))
		fail_msg("cannot open: %s", b.reported.error);
	assert_int_equal(device_read(&b, block, BLOCK, 2 * BLOCK), 0);
	assert_int_equal(block[0], 19);
	device_close(&b);
}

/* After a pause a writer finds out that its volume was deleted, before it acknowledges anything. */
static void test_a_writer_whose_volume_was_deleted(void **state)
{
	struct device a;
	unsigned puts;

	(void)state;
	delete_behind(&a, 9);
	volume_of(&a)->uploaded_ns = 0;
	puts = fake_store_requests(S3_PUT, "/v/");
	assert_int_equal(write_block(&a, 0, 9), -EIO);
	assert_holds(a.reported.error, "it has been deleted");
	device_close(&a);
	assert_int_equal(fake_store_requests(S3_PUT, "/v/"), puts);
	check_new_volume();
	/* Without one it leaves an object, which the new volume replaces, but no root and no end.
	 */
	delete_behind(&a, 9);
	puts = fake_store_requests(S3_PUT, "/v/");
	assert_int_equal(write_block(&a, 0, 9), 0);
	assert_int_equal(fake_store_requests(S3_PUT, "/v/"), puts + 1);
	device_close(&a);
	assert_holds(a.reported.error, "it has been deleted");
	assert_int_equal(fake_store_requests(S3_PUT, "/v/"), puts + 1);
	check_new_volume();
	fake_store_reset();
}

static int write_to_delete(struct device *d)
{
	return write_block(d, 1, 9);
}

/* The same of one that was suspended while an upload was on its way: that ends late. */
static void test_a_writer_whose_upload_ends_late(void **state)
{
	struct device a;
	struct job upload;
	unsigned puts;

	(void)state;
	create_with_a_write(&a);
	for (unsigned i = 0; i < 9; i++)
		assert_int_equal(write_block(&a, 1, i), 0);
	fake_store_hold_answers(S3_PUT, "/v/log/", false);
	start_job(&upload, &a, write_to_delete);
	fake_store_wait_held(S3_PUT, "/v/log/");
	make_anew();
	nanosleep(&(struct timespec){.tv_sec = 10, .tv_nsec = 500000000}, NULL);
	fake_store_release(S3_PUT, NULL);
	assert_int_equal(end_job(&upload), 0);
	puts = fake_store_requests(S3_PUT, "/v/");
	assert_int_equal(write_block(&a, 0, 9), -EIO);
	assert_holds(a.reported.error, "it has been deleted");
	device_close(&a);
	assert_int_equal(fake_store_requests(S3_PUT, "/v/"), puts);
	check_new_volume();
	fake_store_reset();
}

/* Its upload meets one of the new volume: that stays. */
static void test_a_writer_that_meets_the_new_volume(void **state)
{
	struct device a;

	(void)state;
	delete_behind(&a, 1);
	assert_int_equal(write_block(&a, 0, 9), -EIO);
	assert_holds(a.reported.error, "it has been deleted");
	device_close(&a);
	check_new_volume();
	fake_store_reset();
}

/* What a server stored that had looked before: a root, and objects where the new log comes to. */
static void test_remains_of_a_deleted_volume(void **state)
{
	static uint8_t root[1 << 20], object[1 << 20];
	size_t root_bytes, object_bytes;
	struct device a, b;
	uint64_t seq, end;
	char key[80];

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(try_checkpoint(&a), 0);
	seq = volume_of(&a)->checkpoint;
	snprintf(key, sizeof key, "/ckpt/%016llx/root", (unsigned long long)seq);
	root_bytes = fake_store_object(key, root, sizeof root);
	object_bytes = fake_store_object(log_key(seq), object, sizeof object);
	assert_in_range(root_bytes, 1, sizeof root);
	assert_in_range(object_bytes, 1, sizeof object);
	crash(&a);
	for (unsigned i = 1; i < 12; i++) {
		assert_int_equal(delete_volume(&b), 0);
		device_open(&b, &s3_backend, COMMON "create=on;size=64M");
		assert_int_equal(write_block(&b, 0, 2), 0);
		assert_int_equal(write_block(&b, 1, 3), 0);
		end = volume_of(&b)->frontier;
		/* i = 1: where its last object belongs; i = 2: where the next fence does. */
		snprintf(key, sizeof key, "userblk/v/ckpt/%016llx/root",
			(unsigned long long)(end + 2 * i));
		fake_store_set(key, root, root_bytes);
		snprintf(key, sizeof key, "userblk/v/%s", log_key(end + i) + 1);
		fake_store_set(key, object, object_bytes);
		device_close(&b);
		check_new_volume();
	}
	/* If there is nothing but these, it is the super object that does not belong here. */
	assert_int_equal(delete_volume(&b), 0);
	device_open(&b, &s3_backend, COMMON "create=on;size=64M");
	end = volume_of(&b)->frontier;
	device_close(&b);
	for (uint64_t i = 1; i <= end + 1; i++) {
		snprintf(key, sizeof key, "userblk/v/%s", log_key(i) + 1);
		fake_store_set(key, NULL, 0);
	}
	fake_store_set("userblk/v/ckpt/0000000000000009/root", root, root_bytes);
	assert_int_not_equal(device_try(&b, &s3_backend, 0, COMMON), 0);
	assert_holds(b.reported.error, "belongs to another volume");
	fake_store_reset();
}

static int create_again(struct device *d)
{
	return device_try(d, &s3_backend, 0, COMMON "create=on;size=64M");
}

/*
 * The first one goes on before the new volume has its super object, whose creation had looked for
 * remains before the copy of the old one was put again.
 */
static void test_late_deletion_beside_a_creation(void **state)
{
	struct device a, b, c;
	struct job late, creation;
	uint8_t block[BLOCK];

	(void)state;
	create_with_a_write(&a);
	device_close(&a);
	fake_store_hold_answers(S3_LIST, "/v/snap/", false);
	start_job(&late, &b, delete_volume);
	fake_store_wait_held(S3_LIST, "/v/snap/");
	assert_int_equal(delete_volume(&c), 0);
	start_held_job(&creation, &a, create_again, S3_PUT, "/v/super");
	fake_store_hold_answers(S3_DELETE, "/v/super", false);
	fake_store_release(S3_LIST, "/v/snap/");
	fake_store_wait_held(S3_DELETE, "/v/super");
	fake_store_release(S3_PUT, "/v/super");
	assert_int_equal(end_job(&creation), 0);
	assert_int_equal(write_block(&a, 0, 2), 0);
	fake_store_release(S3_DELETE, NULL);
	assert_int_equal(end_job(&late), -ENOENT);
	assert_holds(b.reported.error, "another process has deleted it meanwhile");
	assert_int_not_equal(fake_store_object("/v/deleted", NULL, 0), SIZE_MAX);
	device_close(&a);
	open_volume(&a);
	assert_int_equal(device_read(&a, block, BLOCK, 0), 0);
	assert_int_equal(block[0], 2);
	device_close(&a);
	fake_store_reset();
}

/*
 * Nothing keeps one that stops right before it deletes the super object from deleting the new
 * volume's, but then it stops.
 */
static void test_late_deletion_of_a_super_object(void **state)
{
	uint8_t super[4096], block[BLOCK];
	struct device a, b, c;
	struct job late;
	size_t length;

	(void)state;
	create_with_a_write(&a);
	device_close(&a);
	fake_store_hold_answers(S3_LIST, "/v/snap/", false);
	start_job(&late, &b, delete_volume);
	fake_store_wait_held(S3_LIST, "/v/snap/");
	fake_store_hold_answers(S3_LIST, "/v/deleted", false);
	fake_store_release(S3_LIST, "/v/snap/");
	fake_store_wait_held(S3_LIST, "/v/deleted");
	assert_int_equal(delete_volume(&c), 0);
	assert_int_equal(create_again(&a), 0);
	assert_int_equal(write_block(&a, 0, 2), 0);
	device_close(&a);
	length = fake_store_object("/v/super", super, sizeof super);
	fake_store_release(S3_LIST, NULL);
	assert_int_equal(end_job(&late), -ENOENT);
	assert_holds(b.reported.error, "another process has deleted it meanwhile");
	fake_store_set("userblk/v/super", super, length);
	open_volume(&a);
	assert_int_equal(device_read(&a, block, BLOCK, 0), 0);
	assert_int_equal(block[0], 2);
	device_close(&a);
	fake_store_reset();
}

/* One that finds its copy gone, so that it does not know how old marks of clones are, stops. */
static void test_a_deletion_whose_copy_goes(void **state)
{
	struct device a, b;
	struct job late;

	(void)state;
	create_with_a_write(&a);
	device_close(&a);
	fake_store_hold(S3_LIST, "/v/deleted");
	start_job(&late, &b, delete_volume);
	fake_store_wait_held(S3_LIST, "/v/deleted");
	fake_store_set("userblk/v/deleted", NULL, 0);
	fake_store_release(S3_LIST, NULL);
	assert_int_equal(end_job(&late), -EBUSY);
	assert_holds(b.reported.error, "another process is deleting it");
	open_volume(&a);
	device_close(&a);
	fake_store_reset();
}

/* A deletion that has fenced a volume, or seen none, leaves one alone that has the name since. */
static void test_deletion_of_the_volume_that_was_seen(void **state)
{
	struct s3_removal removal = {.only = true}, none = {.only = true};
	struct device a, c;

	(void)state;
	create_with_a_write(&a);
	assert_int_equal(s3_volume_may_remove(volume_of(&a), &removal), 0);
	device_close(&a);
	assert_int_equal(delete_volume(&c), 0);
	assert_int_equal(create_again(&a), 0);
	assert_int_equal(write_block(&a, 0, 2), 0);
	assert_int_equal(remove_volume(&c, &removal), -ENOENT);
	assert_holds(c.reported.error, "another process has deleted it meanwhile");
	assert_int_equal(remove_volume(&c, &none), -EBUSY);
	assert_holds(c.reported.error, "was not opened before its deletion; nothing was deleted");
	assert_int_equal(write_block(&a, 0, 3), 0);
	assert_int_equal(s3_volume_may_remove(volume_of(&a), &removal), 0);
	device_close(&a);
	open_volume(&a);
	device_close(&a);
	assert_int_equal(remove_volume(&c, &removal), -EBUSY);
	assert_holds(c.reported.error, "another process has opened it since the deletion did");
	open_volume(&a);
	device_close(&a);
	fake_store_reset();
}

/* The deletion of a volume, as the tool has opened and closed it before. */
static struct s3_removal of_closed;

static void close_for_deletion(struct device *d)
{
	of_closed = (struct s3_removal){.only = true};
	assert_int_equal(s3_volume_may_remove(volume_of(d), &of_closed), 0);
	volume_of(d)->before_change_opaque = &of_closed;
	volume_of(d)->when_closed = s3_volume_note_end;
	device_close(d);
	assert_true(of_closed.end > 0);
}

static int delete_closed(struct device *d)
{
	return remove_volume(d, &of_closed);
}

/* A server opens the volume while the deletion has it open, which then finds a later fence. */
static void test_deletion_that_was_fenced_before_it_closed(void **state)
{
	struct s3_removal removal = {.only = true};
	struct device a, b, c;
	uint8_t block[BLOCK];

	(void)state;
	create_with_a_write(&a);
	device_close(&a);
	open_volume(&a);
	assert_int_equal(s3_volume_may_remove(volume_of(&a), &removal), 0);
	volume_of(&a)->before_change_opaque = &removal;
	volume_of(&a)->when_closed = s3_volume_note_end;
	open_volume(&b);
	assert_int_equal(write_block(&b, 0, 9), 0);
	device_close(&a);
	assert_int_equal(removal.end, 0);
	assert_int_equal(remove_volume(&c, &removal), -EBUSY);
	assert_holds(c.reported.error, "another process has opened it since the deletion did");
	assert_int_equal(write_block(&b, 1, 8), 0);
	device_close(&b);
	open_volume(&b);
	assert_int_equal(device_read(&b, block, BLOCK, 0), 0);
	assert_int_equal(block[0], 9);
	device_close(&b);
	fake_store_reset();
}

/* A server opens the volume before a request of the deletion, and acknowledges what it writes. */
static void test_deletion_of_a_volume_that_is_opened_meanwhile(void **state)
{
	static const struct {
		enum s3_op op;
		const char *part;
	} stops[] = {{S3_PUT, "/v/deleted"}, {S3_DELETE, "/v/super"}};
	struct device a, b;
	struct job deletion;
	uint8_t block[BLOCK];

	(void)state;
	for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
		create_with_a_write(&a);
		close_for_deletion(&a);
		start_held_job(&deletion, &b, delete_closed, stops[i].op, stops[i].part);
		open_volume(&a);
		assert_int_equal(write_block(&a, 0, 9), 0);
		fake_store_release(stops[i].op, stops[i].part);
		assert_int_equal(end_job(&deletion), -EBUSY);
		assert_holds(b.reported.error, "another process has opened it since the deletion");
		assert_int_not_equal(fake_store_object("/v/deleted", NULL, 0), SIZE_MAX);
		device_close(&a);
		open_volume(&a);
		assert_int_equal(device_read(&a, block, BLOCK, 0), 0);
		assert_int_equal(block[0], 9);
		close_for_deletion(&a);
		assert_int_equal(delete_closed(&b), 0);
		assert_int_equal(fake_store_object("/v/super", NULL, 0), SIZE_MAX);
	}
	fake_store_reset();
}

static int try_in_job(struct device *d)
{
	return device_try(d, &s3_backend, 0, COMMON);
}

/* The super object that an open raises the epoch in is another volume's by then. */
static void test_a_chunked_volume_that_is_made_anew_during_its_open(void **state)
{
	static const char direct[] = COMMON "create=on;size=64M;layout=direct;batch-size=1M";
	struct device a, b;
	struct job late;

	(void)state;
	fake_store_reset();
	device_open(&a, &s3_backend, direct);
	device_close(&a);
	fake_store_hold_answers(S3_DELETE, "/probe/", false);
	start_job(&late, &a, try_in_job);
	fake_store_wait_held(S3_DELETE, "/probe/");
	assert_int_equal(delete_volume(&b), 0);
	device_open(&b, &s3_backend, direct);
	assert_int_equal(write_block(&b, 0, 2), 0);
	fake_store_release(S3_DELETE, "/probe/");
	assert_int_equal(end_job(&late), -EIO);
	assert_holds(a.reported.error, "was deleted, and created again, while it was opened");
	/* Its server is still the one that has it. */
	assert_int_equal(write_block(&b, 0, 3), 0);
	device_close(&b);
	assert_string_equal(b.reported.error, "");
	fake_store_reset();
}

/*
 * One whose fence comes when the super object is gone acknowledges nothing, and what it has stored
 * can be deleted.
 */
static void test_remains_of_a_server_that_came_too_late(void **state)
{
	struct s3_removal removal = {.only = true};
	struct device a, b;
	struct job opening;

	(void)state;
	create_with_a_write(&a);
	close_for_deletion(&a);
	start_held_job(&opening, &a, try_in_job, S3_PUT, "/v/log/");
	assert_int_equal(delete_closed(&b), 0);
	fake_store_release(S3_PUT, "/v/log/");
	if (end_job(&opening) == 0) {
		assert_int_equal(write_block(&a, 0, 9), -EIO);
		device_close(&a);
	}
	assert_int_equal(create_again(&a), -EEXIST);
	assert_int_equal(remove_volume(&b, &removal), -ENOENT);
	assert_holds(b.reported.error, "use --take-over");
	removal.remains = true;
	assert_int_equal(remove_volume(&b, &removal), 0);
	assert_true(removal.deleted > 0);
	assert_int_equal(remove_volume(&b, &removal), -ENOENT);
	assert_holds(b.reported.error, "not found; correct the name");
	assert_int_equal(create_again(&a), 0);
	device_close(&a);
	fake_store_reset();
}

/* The deletion of one that has been put back because it has a clone deletes nothing of it. */
static void test_deletion_of_what_was_put_back(void **state)
{
	uint8_t super[4096], block[BLOCK];
	struct device a, b;
	struct job late;
	size_t length;

	(void)state;
	create_with_a_write(&a);
	device_close(&a);
	length = fake_store_object("/v/super", super, sizeof super);
	fake_store_hold_answers(S3_DELETE, "/v/super", false);
	start_job(&late, &b, delete_volume);
	fake_store_wait_held(S3_DELETE, "/v/super");
	fake_store_set("userblk/v/super", super, length);
	fake_store_release(S3_DELETE, NULL);
	assert_int_equal(end_job(&late), -EBUSY);
	assert_holds(b.reported.error, "another process has put it back");
	open_volume(&a);
	assert_int_equal(device_read(&a, block, BLOCK, 0), 0);
	assert_int_equal(block[0], 1);
	device_close(&a);
	fake_store_reset();
}

/*
 * A server does not notice that its volume was taken over, deleted, and its name given to another
 * one, where nothing stands in its way: it deletes nothing of that.
 */
static void test_a_deleted_volume_deletes_nothing(void **state)
{
	struct device a, b, c;
	uint8_t block[BLOCK];

	(void)state;
	create_volume(&a, "size=64M;gc-delay=3");
	for (unsigned i = 0; i < 24; i++) {
		assert_int_equal(write_block(&a, 0, i), 0);
		if (i >= 22)
			assert_int_equal(try_checkpoint(&a), 0);
	}
	open_volume(&b);
	device_close(&b);
	assert_int_equal(delete_volume(&c), 0);
	assert_int_equal(create_again(&b), 0);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(write_block(&b, i, i + 1), 0);
	device_close(&b);
	/* It is about to delete what had died. */
	for (unsigned i = 0; i < 1000 && !volume_of(&a)->fenced; i++)
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	open_volume(&b);
	for (unsigned i = 0; i < 8; i++) {
		assert_int_equal(device_read(&b, block, BLOCK, i * (uint64_t)BLOCK), 0);
		assert_int_equal(block[0], i + 1);
	}
	device_close(&b);
	assert_holds(a.reported.error, "has been deleted");
	device_close(&a);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_writer_whose_volume_was_deleted),
		cmocka_unit_test(test_a_writer_whose_upload_ends_late),
		cmocka_unit_test(test_a_writer_that_meets_the_new_volume),
		cmocka_unit_test(test_remains_of_a_deleted_volume),
		cmocka_unit_test(test_late_deletion_of_a_volume),
		cmocka_unit_test(test_late_deletion_beside_a_creation),
		cmocka_unit_test(test_late_deletion_of_a_super_object),
		cmocka_unit_test(test_a_deletion_whose_copy_goes),
		cmocka_unit_test(test_deletion_of_the_volume_that_was_seen),
		cmocka_unit_test(test_deletion_that_was_fenced_before_it_closed),
		cmocka_unit_test(test_deletion_of_a_volume_that_is_opened_meanwhile),
		cmocka_unit_test(test_a_chunked_volume_that_is_made_anew_during_its_open),
		cmocka_unit_test(test_remains_of_a_server_that_came_too_late),
		cmocka_unit_test(test_deletion_of_what_was_put_back),
		cmocka_unit_test(test_a_deleted_volume_deletes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
