/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A volume is opened with a write-back log: it is replayed over whatever the store has by then, and
 * none is taken for one that it is not.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/log/log.h"
#include "backends/s3/state/cache.h"
#include "tests/unit/s3_write_back.h"

/* Changes a byte of the file. */
static void damage(const char *path, uint64_t at)
{
	int fd = open(path, O_RDWR);
	uint8_t byte;

	assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
	byte ^= 0x40;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	close(fd);
}

/* Where in the ring the entry of that number is; its bytes. */
static uint64_t entry_at(const char *path, uint64_t number)
{
	uint8_t *data = whole(path);
	uint64_t at = RING, found = 0;

	for (; at < LOG && !found; at += BLOCK) {
		struct s3_object_header h;

		if (s3_header_decode(data + at, LOG - at, NULL, &h) == S3_GOOD &&
			h.cache_record == number)
			found = at;
	}
	free(data);
	assert_int_not_equal(found, 0);
	return found;
}

static void test_a_crash_in_the_middle_of_the_replay(void **state)
{
	const char *path = new_path();
	uint64_t all;
	struct device d;

	(void)state;
	create(&d, path, "");
	fake_store_hold(S3_PUT, "/log/");
	for (unsigned i = 0; i < 12; i++) {
		change(&d, i * 256 * KIB, 256 * KIB, i);
		change(&d, 0, BLOCK, 100 + i); /* what is replayed twice would show */
		flush(&d);
	}
	crash_with_log(&d);
	/* Behind the fences are 1 and 2, the entries from 3 on. */
	fake_store_fail(S3_PUT, "log/04/", -EIO, 1);
	assert_int_not_equal(attempt(&d, "v", path, ""), 0);
	assert_holds(d.reported.error, "counts as in use now, although nobody has it; next time "
				       "give write-back=");
	/* A reader sees a state in between. */
	reopen(&d, NULL, "readonly=on");
	assert_int_equal(device_read(&d, there, SIZE, 0), 0);
	assert_memory_equal(there + BLOCK, model + BLOCK, 256 * KIB - BLOCK);
	device_close(&d);
	reopen(&d, path, "");
	all = device_counter(&d, "write_back_replayed");
	assert_in_range(all, 1, 11); /* not the first ones again */
	holds_model(&d);
	device_close(&d);
	fake_store_reset();
}

/* An opening beside the test. */
struct opening {
	pthread_t thread;
	const char *path;
	struct device d;
	int result;
};

static void *open_it(void *opaque)
{
	struct opening *o = opaque;

	o->result = attempt(&o->d, "v", o->path, "");
	return NULL;
}

/* Objects of a replay are on their way side by side. */
static void test_a_replay_does_not_wait_for_each_object(void **state)
{
	struct opening opening = {.path = new_path()};
	struct device d;

	(void)state;
	create(&d, opening.path, "");
	fake_store_hold(S3_PUT, "/log/");
	for (unsigned i = 0; i < 4; i++) {
		change(&d, i * MIB, 768 * KIB, i);
		flush(&d);
	}
	crash_with_log(&d);
	/* The fence is 2. While the first object waits the others are stored. */
	fake_store_hold(S3_PUT, NULL);
	fake_store_hold(S3_PUT, "/log/03/");
	assert_int_equal(pthread_create(&opening.thread, NULL, open_it, &opening), 0);
	fake_store_wait_held(S3_PUT, "/log/03/");
	for (unsigned i = 0; fake_store_object("/log/04/0000000000000004", NULL, 0) == SIZE_MAX ||
			     fake_store_object("/log/05/0000000000000005", NULL, 0) == SIZE_MAX;
		i++) {
		if (i == 20000)
			fail_msg("the second and the third wait for the first");
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	fake_store_hold(S3_PUT, NULL);
	pthread_join(opening.thread, NULL);
	assert_int_equal(opening.result, 0);
	assert_true(device_counter(&opening.d, "write_back_replayed") >= 3);
	holds_model(&opening.d);
	device_close(&opening.d);
	fake_store_reset();
}

/*
 * Objects that the previous writer left behind the fence stand where a replay puts its own, and a
 * root of that writer arrives late. Each object replaces one of these.
 */
static void test_a_late_root_beside_a_replay(void **state)
{
	struct opening opening = {.path = new_path()};
	struct device d;

	(void)state;
	create(&d, opening.path, "");
	fake_store_hold(S3_PUT, "/log/02/");
	for (unsigned i = 0; i < 4; i++) {
		change(&d, i * MIB, 768 * KIB, i);
		flush(&d);
	}
	while (fake_store_object("/log/03/0000000000000003", NULL, 0) == SIZE_MAX)
		usleep(1000);
	crash_with_log(&d);
	fake_store_release(S3_PUT, NULL);
	fake_store_hold(S3_PUT, "/log/03/");
	assert_int_equal(pthread_create(&opening.thread, NULL, open_it, &opening), 0);
	fake_store_wait_held(S3_PUT, "/log/03/");
	fake_store_set("userblk/v/ckpt/0000000000000001/root", "late", 4);
	fake_store_release(S3_PUT, NULL);
	pthread_join(opening.thread, NULL);
	assert_int_equal(opening.result, 0);
	holds_model(&opening.d);
	crash_with_log(&opening.d);
	fake_store_release(S3_PUT, NULL);
	reopen_and_check(opening.path, "");
}

/* Waits until the object of the log is in the cache, and has other data push it out of that. */
static void forget_object(struct device *d, uint64_t seq)
{
	struct s3_volume *v = (struct s3_volume *)d->backend;
	bool cached = false;

	while (!cached) {
		usleep(1000);
		pthread_mutex_lock(&v->lock);
		cached = v->uploaded[seq % S3_WINDOW] && !v->resident[seq % S3_WINDOW];
		pthread_mutex_unlock(&v->lock);
	}
	for (uint64_t id = 1000; id < 1100; id++)
		s3_cache_insert(v->cache, 0, id, there, MIB);
}

/*
 * What was stored behind a gap, read, and so put into the cache file is another object than that
 * which a replay stores under its number.
 */
static void test_a_cache_file_beside_a_replay(void **state)
{
	char path[256], more[320];
	struct device d;

	(void)state;
	strcpy(path, new_path());
	snprintf(more, sizeof more, "cache-file=%s;cache-size=16M", new_path());
	create(&d, path, more);
	/* The fence is 1. The first object never arrives, the second one does. */
	fake_store_hold(S3_PUT, "/log/02/");
	for (unsigned i = 0; i < 3; i++)
		change(&d, i * MIB, MIB, i);
	flush(&d);
	forget_object(&d, 3);
	assert_int_equal(device_read(&d, there, MIB, MIB), 0);
	for (unsigned i = 0; device_counter(&d, "cache_file_written_bytes") < MIB; i++) {
		if (i == 20000)
			fail_msg("what was read is not in the cache file");
		usleep(1000);
	}
	crash_with_log(&d);
	reopen(&d, path, more);
	assert_true(device_counter(&d, "write_back_replayed") > 0);
	holds_model(&d);
	device_close(&d);
	fake_store_reset();
}

/* Puts the file's bytes back to what they were. */
static void put_back(const char *path, uint8_t *data)
{
	int fd = open(path, O_WRONLY);

	assert_int_equal(pwrite(fd, data, LOG, 0), LOG);
	close(fd);
	free(data);
}

/*
 * A server wants to be named in the super object after another one, without a log, has taken the
 * volume over and closed it: it is refused, and its log holds nothing that later ones lack.
 */
static void test_named_after_a_takeover(void **state)
{
	struct opening late = {.path = new_path()};
	struct device d;

	(void)state;
	create(&d, late.path, "");
	change(&d, 0, MIB, 1);
	device_close(&d);
	/* Its fence; then it reads the super object again, to be named. */
	fake_store_hold_answers(S3_PUT, "/log/04/", false);
	assert_int_equal(pthread_create(&late.thread, NULL, open_it, &late), 0);
	fake_store_wait_held(S3_PUT, "/log/04/");
	fake_store_hold_answers(S3_GET, "/v/super", false);
	fake_store_release(S3_PUT, "/log/04/");
	fake_store_wait_held(S3_GET, "/v/super");
	reopen(&d, NULL, "");
	change(&d, MIB, MIB, 2);
	device_close(&d);
	fake_store_release(S3_GET, NULL);
	pthread_join(late.thread, NULL);
	assert_int_equal(late.result, -EIO);
	reopen_and_check(late.path, "");
}

/* The name of a server that was never open arrives when others have the volume without its log. */
static void test_a_name_that_arrives_for_nobody(void **state)
{
	const char *path = new_path();
	struct device d, late;

	(void)state;
	/*
	 * It is killed; so, and the next one fails; it fails, and does not reach the super object
	 * any more; it fails, and stores that again.
	 */
	for (unsigned i = 0; i < 4; i++) {
		create(&d, path, "");
		change(&d, 0, MIB, 1);
		device_close(&d);
		fake_store_fail_late("/v/super", -EIO, i < 3 ? 2 : 1);
		assert_int_equal(attempt(&late, "v", path, ""), -EIO);
		/* Its fence is 4. One that is killed stores no end. */
		if (i < 2)
			fake_store_set("userblk/v/log/05/0000000000000005", NULL, 0);
		if (i == 1) {
			fake_store_fail(S3_PUT, "/v/super", -EIO, 1);
			assert_int_equal(attempt(&late, "v", NULL, ""), -EIO);
		}
		reopen(&d, NULL, "");
		change(&d, MIB, MIB, 2);
		fake_store_arrive();
		device_close(&d);
		reopen(&d, NULL, "");
		holds_model(&d);
		device_close(&d);
		fake_store_reset();
	}
}

/*
 * Without conditions a late request would take back what the super object has become since: none
 * is sent that changes nothing.
 */
static void test_a_late_request_without_fencing(void **state)
{
	struct device d;

	(void)state;
	fake_store_reset();
	memset(model, 0, sizeof model);
	reopen(&d, NULL, "create=on;size=4M;fencing=none");
	change(&d, 0, MIB, 1);
	device_close(&d);
	fake_store_fail_late("/v/super", -EIO, 1);
	if (attempt(&d, "v", NULL, "fencing=none") == 0)
		device_close(&d);
	fake_store_fail(S3_PUT, "/v/super", 0, 0);
	reopen(&d, NULL, "fencing=none");
	assert_int_equal(s3_volume_resize((struct s3_volume *)d.backend, 2 * SIZE), 0);
	device_close(&d);
	fake_store_arrive();
	reopen(&d, NULL, "fencing=none");
	assert_int_equal(d.backend->size, 2 * SIZE);
	holds_model(&d);
	device_close(&d);
	fake_store_reset();
}

/* Two servers are killed when they have asked to be named, and only the first is, in the end. */
static void test_the_first_of_two_names_arrives(void **state)
{
	struct opening first = {.path = new_path()}, second = {.path = first.path};
	uint8_t before[KIB], named[KIB], *file;
	size_t length_before, length_named;
	struct device d;

	(void)state;
	create(&d, first.path, "");
	change(&d, 0, MIB, 1);
	device_close(&d);
	length_before = fake_store_object("/v/super", before, sizeof before);
	fake_store_hold_answers(S3_PUT, "/v/super", false);
	assert_int_equal(pthread_create(&first.thread, NULL, open_it, &first), 0);
	fake_store_wait_held(S3_PUT, "/v/super");
	file = whole(first.path);
	length_named = fake_store_object("/v/super", named, sizeof named);
	fake_store_release(S3_PUT, NULL);
	pthread_join(first.thread, NULL);
	assert_int_equal(first.result, 0);
	crash_with_log(&first.d);
	put_back(first.path, file);
	fake_store_set("userblk/v/super", before, length_before);

	fake_store_hold_answers(S3_PUT, "/v/super", false);
	assert_int_equal(pthread_create(&second.thread, NULL, open_it, &second), 0);
	fake_store_wait_held(S3_PUT, "/v/super");
	file = whole(second.path);
	fake_store_release(S3_PUT, NULL);
	pthread_join(second.thread, NULL);
	crash_with_log(&second.d);
	put_back(second.path, file);
	fake_store_set("userblk/v/super", named, length_named);
	reopen_and_check(first.path, "");
}

/*
 * A server is killed when it has asked to be named in the super object, and is named only while the
 * next one is about to be, who has to see that.
 */
static void test_a_name_that_arrives_late(void **state)
{
	struct opening killed = {.path = new_path()}, next = {.path = killed.path};
	uint8_t before[KIB], named[KIB], *file;
	size_t length_before, length_named;
	struct device d;

	(void)state;
	create(&d, killed.path, "");
	change(&d, 0, MIB, 1);
	device_close(&d);
	length_before = fake_store_object("/v/super", before, sizeof before);
	assert_in_range(length_before, 1, sizeof before);

	fake_store_hold_answers(S3_PUT, "/v/super", false);
	assert_int_equal(pthread_create(&killed.thread, NULL, open_it, &killed), 0);
	fake_store_wait_held(S3_PUT, "/v/super");
	file = whole(killed.path);
	length_named = fake_store_object("/v/super", named, sizeof named);
	assert_in_range(length_named, 1, sizeof named);
	assert_memory_not_equal(named, before, length_before);
	fake_store_release(S3_PUT, NULL);
	pthread_join(killed.thread, NULL);
	assert_int_equal(killed.result, 0);
	crash_with_log(&killed.d);
	put_back(killed.path, file);
	fake_store_set("userblk/v/super", before, length_before);

	fake_store_hold(S3_PUT, "/v/super");
	assert_int_equal(pthread_create(&next.thread, NULL, open_it, &next), 0);
	fake_store_wait_held(S3_PUT, "/v/super");
	fake_store_set("userblk/v/super", named, length_named);
	fake_store_release(S3_PUT, NULL);
	pthread_join(next.thread, NULL);
	assert_int_equal(next.result, 0);
	holds_model(&next.d);
	device_close(&next.d);

	reopen_and_check(killed.path, "");
}

/*
 * A server has read the super object, and before it goes on another one gives the log up: what was
 * given up does not come back.
 */
static void test_given_up_while_it_is_opened(void **state)
{
	struct opening late = {.path = new_path()};
	struct device d;

	(void)state;
	crash_after_a_write(late.path);
	fake_store_hold_answers(S3_GET, "/v/super", false);
	assert_int_equal(pthread_create(&late.thread, NULL, open_it, &late), 0);
	fake_store_wait_held(S3_GET, "/v/super");
	reopen(&d, NULL, "write-back-discard=on");
	assert_holds(d.reported.error, "are lost, because of write-back-discard=on");
	device_close(&d);
	fake_store_release(S3_GET, NULL);
	pthread_join(late.thread, NULL);
	assert_int_not_equal(late.result, 0);
	reopen(&d, NULL, "");
	memset(model, 0, sizeof model);
	holds_model(&d);
	device_close(&d);
	fake_store_reset();
}

static void test_a_torn_tail_is_cut_off(void **state)
{
	const char *path = new_path();
	struct device d;

	(void)state;
	create_with_a_write(&d, path);
	assert_int_equal(device_write(&d, there, 3 * BLOCK, BLOCK, BACKEND_FUA), 0);
	crash_with_log(&d);
	damage(path, entry_at(path, 2) + 2 * BLOCK);
	reopen(&d, path, "");
	assert_int_equal(device_counter(&d, "write_back_replayed"), 1);
	holds_model(&d);
	device_close(&d);
	fake_store_reset();
}

static void test_damage_before_the_tail_is_refused(void **state)
{
	const char *path = new_path();
	struct device d;

	(void)state;
	for (int header = 0; header < 2; header++) {
		create_with_a_write(&d, path);
		fill(there, BLOCK, 2);
		for (int i = 0; i < 3; i++)
			assert_int_equal(device_write(&d, there, BLOCK, i * BLOCK, BACKEND_FUA), 0);
		crash_with_log(&d);
		damage(path, entry_at(path, 2) + (header ? 30 : BLOCK));
		refused("v", path, "", "entry 2 is damaged");
		/* What comes before it is not lost. */
		reopen(&d, path, "write-back-discard=on");
		assert_holds(d.reported.error, "are lost, because of write-back-discard=on");
		holds_model(&d);
		device_close(&d);
		path = new_path();
	}
	fake_store_reset();
}

static void test_damaged_states(void **state)
{
	const char *path = new_path();

	(void)state;
	crash_after_a_write(path);
	/* The older one is of before its owner. */
	damage(path, BLOCK + 100);
	damage(path, 2 * BLOCK + 100);
	refused("v", path, "", "has a damaged record of its owner");
	damage(path, BLOCK + 100);
	damage(path, 2 * BLOCK + 100);
	reopen_and_check(path, "");
}

/* A machine that crashed while the first state of a new log was written: nothing was in it. */
static void test_a_torn_first_state(void **state)
{
	const char *path = new_path();
	struct device d;
	int fd;

	(void)state;
	create(&d, new_path(), "");
	change(&d, 0, BLOCK, 1);
	device_close(&d);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	assert_int_equal(ftruncate(fd, LOG), 0);
	assert_int_equal(pwrite(fd, "ubS3wblg", 8, 0), 8);
	assert_int_equal(pwrite(fd, "ubS3wbst", 8, 2 * BLOCK), 8);
	close(fd);
	reopen_and_check(path, "");
}

static void test_it_is_not_opened_without_the_log(void **state)
{
	const char *path = new_path();
	char other[256];
	struct device d;

	(void)state;
	strcpy(other, path);
	path = new_path();
	crash_after_a_write(path);
	refused("v", NULL, "", "write-back log, which is not given");
	refused("v", other, "", "write-back log, which is not this one");
	assert_int_equal(access(other, F_OK), -1); /* nor is one left behind */
	/* A reader sees what is in the store. */
	reopen(&d, path, "readonly=on");
	assert_int_equal(device_read(&d, there, BLOCK, 0), 0);
	assert_int_equal(there[0], 0);
	device_close(&d);
	reopen(&d, NULL, "write-back-discard=on");
	assert_holds(d.reported.error, "are lost, because of write-back-discard=on");
	change(&d, 0, SIZE, 2);
	device_close(&d);
	/* Now it is too late for the log. */
	refused("v", path, "", "is older than what volume=v holds");
	reopen_and_check(path, "write-back-discard=on");
}

static void test_a_writer_that_was_overtaken(void **state)
{
	struct device a, b;
	char old[256];
	const char *path;

	(void)state;
	strcpy(old, new_path());
	path = new_path();
	create(&a, old, "");
	change(&a, 0, BLOCK, 1);
	flush(&a);
	fake_store_hold(S3_PUT, "/log/");
	refused("v", NULL, "", "write-back log, which is not given");
	refused("v", old, "", "in use by another server");
	fake_store_hold(S3_PUT, NULL);
	reopen(&b, path, "write-back-discard=on");
	fill(there, BLOCK, 3);
	device_write(&a, there, BLOCK, 0, BACKEND_FUA); /* into its own log */
	change(&b, 0, 2 * BLOCK, 2);
	flush(&b);
	assert_int_not_equal(s3_log_drain((struct s3_volume *)a.backend), 0);
	assert_int_not_equal(device_write(&a, there, BLOCK, 0, BACKEND_FUA), 0);
	device_close(&a);
	crash_with_log(&b);
	refused("v", old, "", "write-back log, which is not this one");
	reopen(&b, path, "");
	holds_model(&b);
	device_close(&b);
	fake_store_reset();
}

static void test_another_volume_s_log(void **state)
{
	const char *path = new_path();
	struct device d;

	(void)state;
	create(&d, path, "");
	device_close(&d);
	assert_int_equal(attempt(&d, "w", NULL, "create=on;size=4M"), 0);
	device_close(&d);
	reopen(&d, path, "");
	fake_store_hold(S3_PUT, "/log/");
	change(&d, 0, BLOCK, 1);
	flush(&d);
	crash_with_log(&d);
	refused("w", path, "", "belongs to another volume");
	refused("w", path, "write-back-discard=on", "belongs to another volume");
	reopen(&d, path, "");
	holds_model(&d);
	device_close(&d);
	/* Once it is empty, any volume may use it. */
	assert_int_equal(attempt(&d, "w", path, ""), 0);
	device_close(&d);
	fake_store_reset();
}

/* That a closed volume no longer needs its log is said to the store for a while only. */
static void test_an_end_does_not_wait_for_its_name(void **state)
{
	struct device d;

	(void)state;
	create(&d, new_path(), "");
	change(&d, 0, BLOCK, 1);
	device_close(&d);
	assert_in_range(fake_store_deadline(S3_PUT, "/super"), 1, 60);
	fake_store_reset();
}

/* Is there an object with that number in the log? The CLEAN object of who has nothing else. */
static bool in_log(unsigned seq)
{
	char end[32];

	snprintf(end, sizeof end, "/%016x", seq);
	return fake_store_object(end, NULL, 0) != SIZE_MAX;
}

/* One that fails behind its fence takes it back: the volume counts as closed, as it was. */
static void test_an_open_that_fails_behind_its_fence(void **state)
{
	const char *path = new_path();
	struct device d;

	(void)state;
	create(&d, path, "");
	device_close(&d);
	assert_true(in_log(2));
	fake_store_fail(S3_LIST, "snap/", -EIO, 1);
	assert_int_equal(attempt(&d, "v", NULL, ""), -EIO);
	assert_int_equal(d.reported.errors, 1);
	assert_true(in_log(4));
	unlink(path);
	/* That of a killed server keeps the name of its log, from which the rest comes. */
	crash_after_a_write(path);
	fake_store_hold(S3_PUT, NULL);
	fake_store_fail(S3_LIST, "snap/", -EIO, 1);
	assert_int_equal(attempt(&d, "v", path, ""), -EIO);
	assert_int_equal(d.reported.errors, 1);
	assert_true(in_log(3));
	refused("v", NULL, "", "write-back log, which is not given");
	reopen_and_check(path, "");
}

/* The next one has to know. */
static void test_an_open_that_fails_and_cannot_say_so(void **state)
{
	const char *path = new_path();
	struct device d;

	(void)state;
	create(&d, path, "");
	device_close(&d);
	fake_store_fail(S3_PUT, "/log/", -EIO, 1000);
	assert_int_equal(attempt(&d, "v", path, ""), -EIO);
	assert_holds(d.reported.error, "use --take-over with userblk-s3");
	fake_store_fail(S3_PUT, "/log/", 0, 0);
	reopen_and_check(path, "");
}

/* What a server that gives the store up has in its log is not lost. */
static void test_an_end_that_leaves_all_to_the_log(void **state)
{
	const char *path = new_path();
	struct device d;

	(void)state;
	for (int flushed = 0; flushed < 2; flushed++) {
		create(&d, path, "close-timeout=1");
		fake_store_hold(S3_PUT, "/log/");
		change(&d, 0, BLOCK, 1);
		flush(&d);
		if (!flushed)
			change(&d, BLOCK, BLOCK, 2);
		memset(model + BLOCK, 0, BLOCK);
		assert_int_equal(backend_close(d.backend), -EIO);
		params_free(d.params);
		assert_int_equal(d.reported.errors, 1);
		assert_holds(d.reported.error, flushed ? "holds all of it" : "what was flushed");
		assert_holds(d.reported.error, path);
		fake_store_hold(S3_PUT, NULL);
		reopen_and_check(path, "");
		unlink(path);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_crash_in_the_middle_of_the_replay),
		cmocka_unit_test(test_a_replay_does_not_wait_for_each_object),
		cmocka_unit_test(test_a_late_root_beside_a_replay),
		cmocka_unit_test(test_a_cache_file_beside_a_replay),
		cmocka_unit_test(test_a_name_that_arrives_late),
		cmocka_unit_test(test_named_after_a_takeover),
		cmocka_unit_test(test_a_name_that_arrives_for_nobody),
		cmocka_unit_test(test_a_late_request_without_fencing),
		cmocka_unit_test(test_the_first_of_two_names_arrives),
		cmocka_unit_test(test_given_up_while_it_is_opened),
		cmocka_unit_test(test_a_torn_tail_is_cut_off),
		cmocka_unit_test(test_damage_before_the_tail_is_refused),
		cmocka_unit_test(test_damaged_states),
		cmocka_unit_test(test_a_torn_first_state),
		cmocka_unit_test(test_it_is_not_opened_without_the_log),
		cmocka_unit_test(test_a_writer_that_was_overtaken),
		cmocka_unit_test(test_another_volume_s_log),
		cmocka_unit_test(test_an_end_does_not_wait_for_its_name),
		cmocka_unit_test(test_an_open_that_fails_behind_its_fence),
		cmocka_unit_test(test_an_open_that_fails_and_cannot_say_so),
		cmocka_unit_test(test_an_end_that_leaves_all_to_the_log),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
