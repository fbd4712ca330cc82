/* SPDX-License-Identifier: BSD-3-Clause */
/* The S3 device's cache file: what is kept is right, whatever becomes of the file. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/s3/format/format.h"
#include "backends/s3/state/cache.h"
#include "backends/s3/state/cachefile.h"
#include "tests/unit/support.h"

#define SIZE (16u << 20) /* the least */
#define ALL  0xffffu

static const struct s3_cachefile_volume volume = {
	.uuid = "volume of test",
	.before = "writer one",
	.now = "writer one",
	.last_log = 1000,
	.next_gc = S3_GC | 1000,
};

static struct reported reported;

static void on_error(void *opaque, const char *message)
{
	(void)opaque;
	reported.errors++;
	snprintf(reported.error, sizeof reported.error, "%s", message);
}

static const struct backend_host host = {.error = on_error};

/* What another server does between the opening of a file and its lock, once. */
static void (*between)(void);

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
int __wrap_flock(int fd, int operation)
{
	void (*other)(void) = between;

	between = NULL;
	if (other)
		other();
	return __real_flock(fd, operation);
}

static int try_open(const char *path, uint64_t size, struct s3_cachefile **f)
{
	reported = (struct reported){0};
	return s3_cachefile_open(path, size, &host, f);
}

static struct s3_cachefile *open_as(const char *path, const struct s3_cachefile_volume *of)
{
	struct s3_cachefile *f;

	assert_int_equal(try_open(path, SIZE, &f), 0);
	assert_int_equal(s3_cachefile_attach(f, of), 0);
	assert_int_equal(reported.errors, 0);
	return f;
}

static struct s3_cachefile_counters counters(struct s3_cachefile *f)
{
	struct s3_cachefile_counters now;

	s3_cachefile_counters(f, &now);
	return now;
}

/* A job that is waited for. */
struct call {
	struct s3_disk_job job; /* first */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool ended;
	uint16_t good;
	uint8_t *memory;
};

static void on_done(struct s3_disk_job *job, uint16_t good)
{
	struct call *c = (struct call *)job;

	pthread_mutex_lock(&c->lock);
	c->ended = true;
	c->good = good;
	pthread_cond_signal(&c->cond);
	pthread_mutex_unlock(&c->lock);
}

static void prepare(struct call *c, struct s3_line_key key, uint16_t pages)
{
	*c = (struct call){.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
	c->memory = aligned_alloc(S3_PAGE, S3_LINE);
	memset(c->memory, 0, S3_LINE);
	c->job.key = key;
	c->job.pages = pages;
	c->job.done = on_done;
	for (unsigned i = 0; i < S3_LINE_PAGES; i++)
		c->job.memory[i] = c->memory + (size_t)i * S3_PAGE;
}

static uint16_t wait_for(struct call *c)
{
	pthread_mutex_lock(&c->lock);
	while (!c->ended)
		pthread_cond_wait(&c->cond, &c->lock);
	pthread_mutex_unlock(&c->lock);
	return c->good;
}

static void make_page(uint8_t *page, const struct s3_line_key *key, unsigned i)
{
	char text[64];
	int n = snprintf(text, sizeof text, "<%llx %u %u %u>", (unsigned long long)key->id,
		key->number, key->origin, i);

	for (unsigned at = 0; at < S3_PAGE; at++)
		page[at] = (uint8_t)text[at % (unsigned)n];
}

static void put(struct s3_cachefile *f, struct s3_line_key key, uint16_t pages)
{
	struct call c;

	prepare(&c, key, pages);
	for (unsigned i = 0; i < S3_LINE_PAGES; i++)
		make_page(c.job.memory[i], &key, i);
	assert_true(s3_cachefile_write(f, &c.job));
	wait_for(&c);
	free(c.memory);
}

/* Reads pages: those that come must be right. Which. */
static uint16_t get(struct s3_cachefile *f, struct s3_line_key key, uint16_t pages)
{
	uint8_t page[S3_PAGE];
	struct call c;
	uint16_t good;

	prepare(&c, key, pages);
	assert_true(s3_cachefile_read(f, &c.job));
	good = wait_for(&c);
	assert_int_equal(good & ~pages, 0);
	for (unsigned i = 0; i < S3_LINE_PAGES; i++) {
		make_page(page, &key, i);
		if (good & 1u << i)
			assert_memory_equal(c.job.memory[i], page, S3_PAGE);
	}
	free(c.memory);
	return good;
}

static struct s3_line_key key(uint64_t id, uint32_t number)
{
	return (struct s3_line_key){.id = id, .number = number};
}

/* Changes a byte of the file where text stands, at distance from it. */
static void damage(const char *path, const char *text, long distance)
{
	uint8_t *data = malloc(SIZE), *at;
	int fd = open(path, O_RDWR);

	assert_int_equal(pread(fd, data, SIZE, 0), SIZE);
	at = memmem(data, SIZE, text, strlen(text));
	assert_non_null(at);
	at[distance] ^= 0x40;
	assert_int_equal(pwrite(fd, at + distance, 1, at + distance - data), 1);
	close(fd);
	free(data);
}

static char *new_path(void)
{
	static char path[256];
	static int n;

	snprintf(path, sizeof path, "%s/cache%d", scratch(), n++);
	return path;
}

static void test_there_and_back(void **state)
{
	struct s3_cachefile *f = open_as(new_path(), &volume);

	(void)state;
	assert_int_equal(s3_cachefile_find(f, &(struct s3_line_key){.id = 1}, ALL), 0);
	assert_int_equal(get(f, key(1, 0), ALL), 0);
	put(f, key(1, 0), 0x00f1);
	put(f, key(1, 1), ALL);
	put(f, key(2, 0), 0x8000);
	assert_int_equal(s3_cachefile_find(f, &(struct s3_line_key){.id = 1}, ALL), 0x00f1);
	assert_int_equal(get(f, key(1, 0), ALL), 0x00f1);
	assert_int_equal(get(f, key(1, 0), 0x0011), 0x0011);
	/* Others are added to those that are there. */
	put(f, key(1, 0), 0x0f03);
	assert_int_equal(get(f, key(1, 0), ALL), 0x0ff3);
	assert_int_equal(get(f, key(1, 1), ALL), ALL);
	assert_int_equal(get(f, key(2, 0), ALL), 0x8000);
	assert_int_equal(get(f, (struct s3_line_key){.id = 2, .origin = 1}, ALL), 0);
	assert_int_equal(counters(f).damaged, 0);
	s3_cachefile_close(f);
}

static void test_survives_a_restart(void **state)
{
	const char *path = new_path();
	struct s3_cachefile *f = open_as(path, &volume);
	struct s3_cachefile_volume next = volume;

	(void)state;
	for (uint64_t id = 1; id <= 100; id++)
		put(f, key(id, 2), (uint16_t)(id | 1));
	put(f, key(S3_GC | 7, 0), ALL);
	put(f, (struct s3_line_key){.id = 5000, .origin = 1}, ALL);
	s3_cachefile_close(f);
	/* By a new writer, then again. */
	memcpy(next.now, "writer two", 11);
	for (int i = 0; i < 2; i++) {
		f = open_as(path, &next);
		assert_int_equal(counters(f).kept, 102);
		for (uint64_t id = 1; id <= 100; id++)
			assert_int_equal(get(f, key(id, 2), ALL), id | 1);
		assert_int_equal(get(f, key(S3_GC | 7, 0), ALL), ALL);
		assert_int_equal(get(f, (struct s3_line_key){.id = 5000, .origin = 1}, ALL), ALL);
		s3_cachefile_close(f);
		memcpy(next.before, next.now, S3_UUID);
	}
}

/* Numbers may hold other data by now, if anybody else wrote to the volume. */
static void test_dropped_after_another_writer(void **state)
{
	static const struct {
		const char *uuid, *before;
	} others[] = {{"volume of test", "writer two"}, {"other volume", "writer one"}};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		const char *path = new_path();
		struct s3_cachefile *f = open_as(path, &volume);
		struct s3_cachefile_volume other = volume;

		put(f, key(1, 0), ALL);
		s3_cachefile_close(f);
		snprintf((char *)other.uuid, S3_UUID, "%s", others[i].uuid);
		snprintf((char *)other.before, S3_UUID, "%s", others[i].before);
		f = open_as(path, &other);
		assert_int_equal(counters(f).kept, 0);
		assert_int_equal(get(f, key(1, 0), ALL), 0);
		s3_cachefile_close(f);
		/* They do not come back. */
		f = open_as(path, &volume);
		assert_int_equal(get(f, key(1, 0), ALL), 0);
		s3_cachefile_close(f);
	}
}

/* The log was cut off at a gap: what came after it is gone, and its numbers are used again. */
static void test_dropped_behind_the_end_of_the_log(void **state)
{
	const char *path = new_path();
	struct s3_cachefile *f = open_as(path, &volume);
	struct s3_cachefile_volume cut = volume;

	(void)state;
	for (uint64_t id = 95; id <= 105; id++) {
		put(f, key(id, 0), ALL);
		put(f, key(S3_GC | id, 0), ALL);
		put(f, (struct s3_line_key){.id = id, .origin = 2}, ALL);
	}
	s3_cachefile_close(f);
	cut.last_log = 100;
	cut.next_gc = S3_GC | 103;
	for (int i = 0; i < 2; i++) {
		f = open_as(path, &cut);
		for (uint64_t id = 95; id <= 105; id++) {
			assert_int_equal(get(f, key(id, 0), ALL), id <= 100 ? ALL : 0);
			assert_int_equal(get(f, key(S3_GC | id, 0), ALL), id < 103 ? ALL : 0);
			/* An ancestor's log is no longer cut off. */
			assert_int_equal(
				get(f, (struct s3_line_key){.id = id, .origin = 2}, ALL), ALL);
		}
		s3_cachefile_close(f);
		/* When the log has grown past it again, they are still gone. */
		cut = volume;
	}
}

static void test_damage_is_never_returned(void **state)
{
	const char *path = new_path();
	struct s3_cachefile *f = open_as(path, &volume);

	(void)state;
	for (uint64_t id = 1; id <= 3; id++)
		put(f, key(id, 0), ALL);
	s3_cachefile_close(f);
	damage(path, "<2 0 0 5>", 1000);
	f = open_as(path, &volume);
	assert_int_equal(counters(f).kept, 3);
	assert_int_equal(get(f, key(1, 0), ALL), ALL);
	assert_int_equal(get(f, key(2, 0), ALL), ALL & ~(1u << 5));
	assert_int_equal(counters(f).damaged, 1);
	/* It is not tried again, but may be written again. */
	assert_int_equal(
		s3_cachefile_find(f, &(struct s3_line_key){.id = 2}, ALL), ALL & ~(1u << 5));
	put(f, key(2, 0), 1u << 5);
	assert_int_equal(get(f, key(2, 0), ALL), ALL);
	assert_int_equal(get(f, key(3, 0), ALL), ALL);
	s3_cachefile_close(f);
}

/* The index has an entry of 128 bytes for each line from 4096 on. */
static void test_damaged_index(void **state)
{
	const char *path = new_path();
	struct s3_cachefile *f = open_as(path, &volume);
	uint8_t entry[128], byte;
	int fd;

	(void)state;
	for (uint64_t id = 1; id <= 3; id++)
		put(f, key(id, 0), ALL);
	s3_cachefile_close(f);
	fd = open(path, O_RDWR);
	/* A flipped bit in one entry; another one in a wrong place. */
	assert_int_equal(pread(fd, &byte, 1, 4096 + 14), 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, 4096 + 14), 1);
	assert_int_equal(pread(fd, entry, sizeof entry, 4096 + 128), sizeof entry);
	assert_int_equal(pwrite(fd, entry, sizeof entry, 4096 + 3 * 128), sizeof entry);
	memset(entry, 0, sizeof entry);
	assert_int_equal(pwrite(fd, entry, sizeof entry, 4096 + 128), sizeof entry);
	close(fd);
	f = open_as(path, &volume);
	assert_int_equal(counters(f).kept, 1);
	assert_int_equal(get(f, key(1, 0), ALL), 0);
	assert_int_equal(get(f, key(2, 0), ALL), 0);
	assert_int_equal(get(f, key(3, 0), ALL), ALL);
	s3_cachefile_close(f);
}

static void test_more_than_fits(void **state)
{
	const char *path = new_path();
	struct s3_cachefile *f = open_as(path, &volume);
	unsigned left = 0, hot = 0;
	struct stat st;

	(void)state;
	for (uint64_t id = 1; id <= 600; id++) {
		put(f, key(id, 0), ALL);
		/* The first ones are asked for all the time. */
		for (uint64_t i = 1; id > 10 && i <= 10; i++)
			get(f, key(i, 0), 1);
	}
	for (uint64_t id = 1; id <= 600; id++) {
		uint16_t good = get(f, key(id, 0), ALL);

		assert_true(good == ALL || good == 0);
		left += good == ALL;
		hot += good == ALL && id <= 10;
	}
	assert_in_range(left, 250, 256);
	assert_int_equal(hot, 10);
	assert_int_equal(counters(f).evictions, 600 - left);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, SIZE);
	s3_cachefile_close(f);
	f = open_as(path, &volume);
	assert_int_equal(counters(f).kept, left);
	assert_int_equal(counters(f).damaged, 0);
	s3_cachefile_close(f);
}

/* After a power failure any part of the file may be older than the rest. */
static void test_older_parts(void **state)
{
	const char *path = new_path();
	struct s3_cachefile *f = open_as(path, &volume);
	uint8_t *old = malloc(SIZE), *new = malloc(SIZE);
	int fd;

	(void)state;
	for (uint64_t id = 1; id <= 250; id++)
		put(f, key(id, 0), ALL);
	s3_cachefile_close(f);
	fd = open(path, O_RDWR);
	assert_int_equal(pread(fd, old, SIZE, 0), SIZE);
	f = open_as(path, &volume);
	for (uint64_t id = 301; id <= 550; id++)
		put(f, key(id, 0), ALL);
	s3_cachefile_close(f);
	assert_int_equal(pread(fd, new, SIZE, 0), SIZE);
	for (size_t at = 4096; at < SIZE; at += 4096)
		if (at / 4096 * 7 % 3 == 0)
			assert_int_equal(pwrite(fd, old + at, 4096, (off_t)at), 4096);
	close(fd);
	f = open_as(path, &volume);
	for (uint64_t id = 1; id <= 550; id++)
		get(f, key(id, 0), ALL);
	assert_true(counters(f).damaged > 0);
	s3_cachefile_close(f);
	free(old);
	free(new);
}

static void test_other_size(void **state)
{
	const char *path = new_path();
	struct s3_cachefile *f = open_as(path, &volume);
	struct stat st;

	(void)state;
	put(f, key(1, 0), ALL);
	s3_cachefile_close(f);
	assert_int_equal(try_open(path, 2 * SIZE, &f), 0);
	assert_int_equal(s3_cachefile_attach(f, &volume), 0);
	assert_int_equal(get(f, key(1, 0), ALL), 0);
	s3_cachefile_close(f);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 2 * SIZE);
}

static void test_refused(void **state)
{
	const char *path = scratch_file("foreign", 4096);
	struct s3_cachefile *f, *second;
	struct stat st;
	int fd = open(path, O_WRONLY);

	(void)state;
	assert_int_equal(pwrite(fd, "precious", 8, 0), 8);
	close(fd);
	assert_int_equal(try_open(path, SIZE, &f), -EEXIST);
	assert_holds(reported.error, "cache-file=");
	assert_holds(reported.error, "remove it");
	assert_int_equal(reported.errors, 1);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 4096);
	/* Nor a file that only begins with zeroes. */
	assert_int_equal(try_open(scratch_file("zeroes", 4096), SIZE, &f), -EEXIST);
	assert_int_equal(try_open(scratch(), SIZE, &f), -EINVAL);
	assert_holds(reported.error, "neither a regular file nor a block device");
	assert_int_equal(try_open("/nonexistent/cache", SIZE, &f), -ENOENT);
	assert_int_equal(reported.errors, 1);
	path = new_path();
	assert_int_equal(try_open(path, UINT64_C(1) << 60, &f), -ENOSPC);
	assert_holds(reported.error, "lower cache-size=");
	assert_int_equal(stat(path, &st), -1);
	/* One volume, one file. */
	f = open_as(path, &volume);
	assert_int_equal(try_open(path, SIZE, &second), -EBUSY);
	assert_holds(reported.error, "in use by another server");
	s3_cachefile_close(f);
}

/* If the volume then cannot be opened, nothing is left behind. */
static void test_never_attached(void **state)
{
	const char *path = new_path();
	struct s3_cachefile *f;
	struct stat st;

	(void)state;
	assert_int_equal(try_open(path, SIZE, &f), 0);
	s3_cachefile_close(f);
	assert_int_equal(stat(path, &st), -1);
	path = scratch_file("empty", 0);
	assert_int_equal(try_open(path, SIZE, &f), 0);
	s3_cachefile_close(f);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 0);
	f = open_as(path, &volume);
	put(f, key(1, 0), ALL);
	s3_cachefile_close(f);
	assert_int_equal(try_open(path, SIZE, &f), 0);
	s3_cachefile_close(f);
	f = open_as(path, &volume);
	assert_int_equal(get(f, key(1, 0), ALL), ALL);
	s3_cachefile_close(f);
}

static const char *shared_path;
static struct s3_cachefile *of_other;

static void other_locks(void)
{
	of_other = open_as(shared_path, &volume);
}

static void other_gives_up(void)
{
	s3_cachefile_close(of_other);
}

/* Two servers that begin at once: whichever has the file keeps it, under its name. */
static void test_two_make_the_file(void **state)
{
	struct s3_cachefile *f;
	struct stat st;

	(void)state;
	shared_path = new_path();
	between = other_locks;
	assert_int_equal(try_open(shared_path, SIZE, &f), -EBUSY);
	assert_holds(reported.error, "in use by another server");
	put(of_other, key(1, 0), ALL);
	s3_cachefile_close(of_other);
	f = open_as(shared_path, &volume);
	assert_int_equal(get(f, key(1, 0), ALL), ALL);
	s3_cachefile_close(f);

	/* The one that made it gives it up, and takes it away. */
	shared_path = new_path();
	assert_int_equal(try_open(shared_path, SIZE, &of_other), 0);
	between = other_gives_up;
	assert_int_equal(try_open(shared_path, SIZE, &f), -EBUSY);
	assert_holds(reported.error, "removed by another server just now; try again");
	assert_int_equal(stat(shared_path, &st), -1);
}

/* Killed before the volume was open: what is left is no foreign file. */
static void test_killed_before_it_was_attached(void **state)
{
	const char *path = new_path();
	struct s3_cachefile *f;
	pid_t child = fork();
	int status;

	(void)state;
	if (child == 0)
		_exit(try_open(path, SIZE, &f) ? 1 : 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	f = open_as(path, &volume);
	put(f, key(1, 0), ALL);
	assert_int_equal(get(f, key(1, 0), ALL), ALL);
	s3_cachefile_close(f);
}

/* The disk writes whole sectors: after a crash the header is there or not. */
static void test_the_header_is_in_one_sector(void **state)
{
	const char *path = new_path();
	struct s3_cachefile *f = open_as(path, &volume);
	uint8_t header[4096];
	int fd;

	(void)state;
	s3_cachefile_close(f);
	fd = open(path, O_RDONLY);
	assert_int_equal(pread(fd, header, sizeof header, 0), sizeof header);
	close(fd);
	assert_memory_equal(header, "ubS3cach", 8);
	for (size_t i = 512; i < sizeof header; i++)
		assert_int_equal(header[i], 0);
}

/* A machine that crashes leaves the size of a new file, and nothing in it. */
static void test_a_crash_left_nothing_in_it(void **state)
{
	static const char zeroes[3584];
	const char *path = scratch_file("blank", SIZE);
	struct s3_cachefile *f;
	int fd;

	(void)state;
	f = open_as(path, &volume);
	put(f, key(1, 0), ALL);
	assert_int_equal(get(f, key(1, 0), ALL), ALL);
	s3_cachefile_close(f);
	/* Nor if some sectors of its header were written, without the first. */
	path = scratch_file("torn", SIZE);
	fd = open(path, O_WRONLY);
	assert_int_equal(pwrite(fd, zeroes, sizeof zeroes, 512), sizeof zeroes);
	close(fd);
	f = open_as(path, &volume);
	s3_cachefile_close(f);
	path = scratch_file("image", SIZE);
	fd = open(path, O_WRONLY);
	assert_int_equal(pwrite(fd, "x", 1, SIZE - 1), 1);
	close(fd);
	assert_int_equal(try_open(path, SIZE, &f), -EEXIST);
	assert_holds(reported.error, "begins with zeroes, unlike ");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_survives_a_restart),
		cmocka_unit_test(test_dropped_after_another_writer),
		cmocka_unit_test(test_dropped_behind_the_end_of_the_log),
		cmocka_unit_test(test_damage_is_never_returned),
		cmocka_unit_test(test_damaged_index),
		cmocka_unit_test(test_more_than_fits),
		cmocka_unit_test(test_older_parts),
		cmocka_unit_test(test_other_size),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_never_attached),
		cmocka_unit_test(test_two_make_the_file),
		cmocka_unit_test(test_killed_before_it_was_attached),
		cmocka_unit_test(test_the_header_is_in_one_sector),
		cmocka_unit_test(test_a_crash_left_nothing_in_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
