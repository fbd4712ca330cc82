/* SPDX-License-Identifier: BSD-3-Clause */
/* The adapter for tcmu-runner with threads of its own; also run under the thread sanitizer. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <scsi/scsi.h>

#include "tests/unit/tcmu_disk.h"

#define MANY 64

static struct command commands[MANY];
static char blocks[MANY][BLOCK];
static struct iovec iovs[MANY];

/* Opens the disk again, with threads of its own. */
static void open_with_threads(const char *options)
{
	if (dev.own)
		registered->close(&dev);
	prepare("");
	snprintf(dev.cfgstring, sizeof dev.cfgstring, "userblk_threads_test/%s;direct=off%s",
		disk_file, options);
	assert_int_equal(registered_with_threads->open(&dev, false), 0);
}

/* As the runner's one thread of the ring gives it; TCMU_STS_OK: an answer comes later. */
static void start_write(int i)
{
	iovs[i] = (struct iovec){blocks[i], BLOCK};
	memset(blocks[i], i + 1, BLOCK);
	assert_int_equal(registered_with_threads->write(&dev, command(&commands[i], WRITE_10, 0),
				 &iovs[i], 1, BLOCK, i * (off_t)BLOCK),
		TCMU_STS_OK);
}

static void start_read(uint64_t offset)
{
	iovs[0] = (struct iovec){blocks[0], BLOCK};
	assert_int_equal(registered_with_threads->read(&dev, command(&commands[0], READ_10, 0),
				 &iovs[0], 1, BLOCK, (off_t)offset),
		TCMU_STS_OK);
}

static void wait_for(int count)
{
	while (completions < count)
		usleep(100);
	assert_int_equal(completions, count);
}

static void test_parameter(void **state)
{
	static const char *const wrong[] = {"0", "257", "-1", "x", "", "4x"};
	char text[512], *reason;

	(void)state;
	assert_int_equal(registered->nr_threads, 16);
	assert_int_equal(registered_with_threads->nr_threads, 0);
	assert_holds(registered->cfg_desc, "threads=<N>");
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		snprintf(text, sizeof text, "userblk_threads_test/%s;threads=%s;direct=off",
			disk_file, wrong[i]);
		assert_false(registered_with_threads->check_config(text, &reason));
		assert_holds(reason, "use 1 to 256");
		free(reason);
	}
	/* Where it would mean nothing. */
	snprintf(text, sizeof text, "userblk_test/%s;threads=4", disk_file);
	assert_false(registered->check_config(text, &reason));
	assert_holds(reason, "threads=4: ");
	assert_holds(reason, "userblk_threads_test/");
	free(reason);
	/* In any place, but once. */
	snprintf(text, sizeof text, "userblk_threads_test/threads=4;file=%s",
		scratch_file("accepted", 1 << 20));
	assert_true(registered_with_threads->check_config(text, &reason));
	snprintf(text, sizeof text, "userblk_threads_test/%s;threads=4;threads=5;direct=on",
		disk_file);
	assert_false(registered_with_threads->check_config(text, &reason));
	assert_string_equal(reason, "threads=5: given twice; leave one out");
	free(reason);
}

/* How many copies of texts succeed before one fails; -1: none fails. */
static atomic_int copies_left = -1;

char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t length);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t length);

static bool no_memory(void)
{
	if (copies_left < 0)
		return false;
	return copies_left-- == 0;
}

char *__wrap_strdup(const char *text)
{
	return no_memory() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t length)
{
	return no_memory() ? NULL : __real_strndup(text, length);
}

/* A disk has the threads that were asked for, or it is not opened and the log says why. */
static void test_out_of_memory(void **state)
{
	(void)state;
	registered->close(&dev);
	prepare("");
	/* One too many, which shows that it was looked at. */
	snprintf(dev.cfgstring, sizeof dev.cfgstring,
		"userblk_threads_test/%s;direct=off;threads=257", disk_file);
	for (int copies = 0; copies_left < 0; copies++) {
		copies_left = copies;
		logged[0] = 0;
		assert_true(registered_with_threads->open(&dev, false) < 0);
		assert_holds(logged, copies_left < 0 ? "out of memory" : "threads=257: ");
	}
	copies_left = -1;
}

static atomic_int inside;
static atomic_bool released;

static void wait_inside(void)
{
	inside++;
	while (!released)
		usleep(100);
}

/* As many at once as there are threads; the ring's thread waits for none. */
static void test_at_once(void **state)
{
	(void)state;
	open_with_threads(";threads=4");
	inside = 0;
	released = false;
	during_write = wait_inside;
	for (int i = 0; i < MANY; i++)
		start_write(i);
	while (inside < 4)
		usleep(100);
	usleep(20000);
	assert_int_equal(inside, 4);
	assert_int_equal(completions, 0);
	released = true;
	wait_for(MANY);
	during_write = NULL;
	for (int i = 0; i < MANY; i++) {
		completions = 0;
		start_read((uint64_t)i * BLOCK);
		wait_for(1);
		assert_int_equal(completed_status, TCMU_STS_OK);
		assert_int_equal(blocks[0][0], i + 1);
		assert_int_equal(blocks[0][BLOCK - 1], i + 1);
	}
}

static void test_errors(void **state)
{
	(void)state;
	open_with_threads(";threads=2");
	fault_read = -EIO;
	start_read(0);
	wait_for(1);
	assert_int_equal(completed_status, TCMU_STS_RD_ERR);
	fault_read = 0;
	start_read((uint64_t)BLOCKS * BLOCK);
	wait_for(2);
	assert_int_equal(completed_status, TCMU_STS_RANGE);
	fault_write = -ENOSPC;
	start_write(0);
	wait_for(3);
	assert_int_equal(completed_status, TCMU_STS_PASSTHROUGH_ERR);
	fault_flush = -EIO;
	assert_int_equal(
		registered->flush(&dev, command(&commands[0], SYNCHRONIZE_CACHE, 0)), TCMU_STS_OK);
	wait_for(4);
	assert_int_equal(completed_status, TCMU_STS_WR_ERR);
	assert_int_equal(flushes, 1);
	/* Advice. */
	fault_zero = -EOPNOTSUPP;
	assert_int_equal(
		registered->unmap(&dev, command(&commands[0], UNMAP, 0), 0, MIB), TCMU_STS_OK);
	wait_for(5);
	assert_int_equal(completed_status, TCMU_STS_OK);
	assert_holds(logged, "UNMAP has no effect");
	fault_read = 0;
	start_read(0);
	wait_for(6);
	assert_int_equal(completed_status, TCMU_STS_OK);
}

#ifdef HAVE_WRITESAME
static void test_write_same(void **state)
{
	(void)state;
	open_with_threads(";threads=1");
	iovs[1] = (struct iovec){blocks[1], BLOCK};
	memset(blocks[1], 0x5a, BLOCK);
	assert_int_equal(registered->writesame(&dev, command(&commands[1], WRITE_SAME_16, 0), 0,
				 MIB, &iovs[1], 1),
		TCMU_STS_OK);
	wait_for(1);
	assert_int_equal(completed_status, TCMU_STS_OK);
	start_read(MIB - BLOCK);
	wait_for(2);
	assert_int_equal(blocks[0][BLOCK - 1], 0x5a);
	fault_write = -EIO;
	assert_int_equal(registered->writesame(&dev, command(&commands[1], WRITE_SAME_16, 0), 0,
				 MIB, &iovs[1], 1),
		TCMU_STS_OK);
	wait_for(3);
	assert_int_equal(completed_status, TCMU_STS_WR_ERR);
}
#endif

/* The write cache is turned off while a write is under way: flushed before the answer. */
static void test_write_cache(void **state)
{
	(void)state;
	open_with_threads(";threads=2");
	inside = 0;
	released = false;
	during_write = wait_inside;
	start_write(0);
	while (!inside)
		usleep(100);
	assert_int_equal(set_write_cache(false), 0);
	assert_int_equal(flushes, 1);
	released = true;
	wait_for(1);
	assert_int_equal(flushes, 2);
	during_write = NULL;
	start_write(0);
	wait_for(2);
	assert_int_equal(write_flags, BACKEND_FUA);
	assert_int_equal(flushes, 2);
}

static void slow_write(void)
{
	usleep(1000);
}

/*
 * The runner closes a disk when the last command is complete, which is before its thread has left
 * the runner's code; and it does not look again whether one is under way after a spurious wake-up.
 */
static void test_close(void **state)
{
	(void)state;
	for (int round = 0; round < 20; round++) {
		open_with_threads(";threads=3");
		completions = 0;
		during_write = slow_write;
		for (int i = 0; i < 8; i++)
			start_write(i);
		registered_with_threads->close(&dev);
		assert_int_equal(completions, 8);
		assert_null(dev.own);
	}
}

/* COMPARE AND WRITE and others go on in the thread that has completed the step before. */
static void next_step(struct tcmu_device *disk)
{
	(void)disk;
	if (completions < MANY)
		start_write((int)completions);
}

static void test_next_step(void **state)
{
	(void)state;
	open_with_threads(";threads=1");
	on_completion = next_step;
	start_write(0);
	wait_for(MANY);
}

/* Threads of ours do not change what the other disks of the same daemon do. */
static void test_both(void **state)
{
	char block[BLOCK];

	(void)state;
	assert_int_equal(read_bytes(block, BLOCK, 0), TCMU_STS_OK);
	assert_int_equal(completions, 0);
	open_with_threads("");
	start_read(0);
	wait_for(1);
	registered_with_threads->close(&dev);
	prepare(";direct=off");
	assert_int_equal(registered->open(&dev, false), 0);
	assert_int_equal(read_bytes(block, BLOCK, 0), TCMU_STS_OK);
	assert_int_equal(completions, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_parameter),
		TEST(test_out_of_memory),
		TEST(test_at_once),
		TEST(test_errors),
#ifdef HAVE_WRITESAME
		TEST(test_write_same),
#endif
		TEST(test_write_cache),
		TEST(test_close),
		TEST(test_next_step),
		TEST(test_both),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
