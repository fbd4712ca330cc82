/* SPDX-License-Identifier: BSD-3-Clause */
/* A volume of the S3 device over a store in this process: what it asks of the store. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/keeper/snapshot.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

#define BLOCK  4096u
#define COMMON "endpoint=http://127.0.0.1;bucket=abc;uploads=2;memory=64M;"
#define SIZE   (UINT64_C(1) << 40)

static unsigned random_number(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(*state >> 33);
}

/* ---- checkpoints --------------------------------------------------------------------------- */

static void checkpoint(struct device *d)
{
	assert_int_equal(try_checkpoint(d), 0);
}

/* Blocks far from each other, so that the map is large: block number i holds i. */
static uint64_t place_of(unsigned i)
{
	return i * (UINT64_C(12345677) * BLOCK) % SIZE;
}

static void write_blocks(struct device *d, unsigned from, unsigned to)
{
	unsigned block[BLOCK / sizeof(unsigned)];

	for (unsigned i = from; i < to; i++) {
		for (unsigned j = 0; j < BLOCK / sizeof(unsigned); j++)
			block[j] = i;
		assert_int_equal(device_write(d, block, BLOCK, place_of(i), 0), 0);
	}
}

static void check_blocks(struct device *d, unsigned to)
{
	unsigned block[BLOCK / sizeof(unsigned)];

	for (unsigned i = 0; i < to; i++) {
		assert_int_equal(device_read(d, block, BLOCK, place_of(i)), 0);
		for (unsigned j = 0; j < BLOCK / sizeof(unsigned); j++)
			assert_int_equal(block[j], i);
	}
}

/*
 * What checkpoints cost against the log, in percent, when blocks are written at random that each
 * shrink to little more than so many bytes.
 */
static double checkpoint_percent(unsigned bytes)
{
	uint64_t random = 1, blocks = SIZE / BLOCK;
	uint8_t block[BLOCK] = {0};
	struct device d;
	double percent;

	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;compress=zstd;create=on;size=1T");
	for (unsigned i = 1; i <= 256 * 1024; i++) {
		uint64_t lba =
			((uint64_t)random_number(&random) << 31 | random_number(&random)) % blocks;

		for (unsigned j = 0; j < bytes; j++)
			block[j] = (uint8_t)random_number(&random);
		assert_int_equal(device_write(&d, block, BLOCK, lba * BLOCK, 0), 0);
		if (i % (32 * 1024) == 0)
			checkpoint(&d);
	}
	assert_int_equal(device_counter(&d, "light_roots"), 8);
	device_close(&d);
	percent = 100.0 * (double)fake_store_put_bytes("/ckpt/") /
		  (double)fake_store_put_bytes("/log/");
	print_message("%u bytes a block: %.1f %%\n", bytes, percent);
	fake_store_reset();
	return percent;
}

static void test_checkpoints_cost_a_tenth_of_the_log(void **state)
{
	(void)state;
	assert_true(checkpoint_percent(40) <= 10);
}

/* An address of 28 bits is stored twice: with 18 bytes or so in the log, then in a checkpoint. */
static void test_checkpoints_of_headers_alone(void **state)
{
	(void)state;
	assert_true(checkpoint_percent(0) <= 18);
}

/* Where a full root costs much there are light ones from the first one on. */
static void test_light_roots_from_the_beginning(void **state)
{
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=1T");
	for (unsigned i = 0; i < 3; i++) {
		write_blocks(&d, 100 * i, 100 * (i + 1));
		checkpoint(&d);
	}
	assert_int_equal(device_counter(&d, "full_roots"), 0);
	assert_int_equal(device_counter(&d, "light_roots"), 3);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "volume=v");
	assert_int_equal(device_counter(&d, "replayed"), 1); /* its fence */
	check_blocks(&d, 300);
	/* The first full one holds everything. */
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	assert_int_equal(device_counter(&d, "full_roots"), 1);
	write_blocks(&d, 300, 400);
	checkpoint(&d);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "volume=v");
	check_blocks(&d, 400);
	device_close(&d);
	fake_store_reset();
}

/* What was written since the last full one counts, by any writer. */
static void test_full_root_after_many_sessions(void **state)
{
	static uint8_t data[128 * BLOCK];
	uint64_t full = 0;
	struct device d;

	(void)state;
	fake_store_reset();
	for (unsigned i = 0; i < 12; i++) {
		device_open(&d, &s3_backend, COMMON "volume=v;%s",
			i ? "create=off" : "create=on;size=64M");
		memset(data, (int)i + 1, sizeof data);
		assert_int_equal(device_write(&d, data, sizeof data, 0, 0), 0);
		checkpoint(&d);
		full += device_counter(&d, "full_roots");
		if (i % 2)
			crash(&d);
		else
			device_close(&d);
	}
	assert_int_equal(full, 1);
	fake_store_reset();
}

/* A clone need not store its parent's map before it has written much itself. */
static void test_light_roots_of_a_clone(void **state)
{
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=1T");
	write_blocks(&d, 0, 300);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	assert_int_equal(s3_volume_clone(volume_of(&d), "s", "userblk", "clone"), 0);
	device_close(&d);
	for (unsigned i = 3; i < 6; i++) {
		device_open(&d, &s3_backend, COMMON "volume=clone");
		check_blocks(&d, 100 * i);
		write_blocks(&d, 100 * i, 100 * (i + 1));
		checkpoint(&d);
		assert_int_equal(device_counter(&d, "full_roots"), 0);
		crash(&d);
	}
	/* Its first full one holds what is the parent's as well. */
	device_open(&d, &s3_backend, COMMON "volume=clone");
	check_blocks(&d, 600);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), 0);
	crash(&d);
	fake_store_fail(S3_GET, "userblk/v/snap/", -EIO, 1000);
	device_open(&d, &s3_backend, COMMON "volume=clone");
	check_blocks(&d, 600);
	device_close(&d);
	fake_store_reset();
}

/*
 * A root that could not be stored may be there later: the next one has another number, although
 * nothing was written meanwhile.
 */
static void test_failed_root_keeps_its_number(void **state)
{
	struct s3_volume *v;
	struct device d;
	char key[64];

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=1T");
	v = volume_of(&d);
	write_blocks(&d, 0, 10);
	fake_store_fail(S3_PUT, "/root", -EIO, 1);
	assert_int_equal(try_checkpoint(&d), -EIO);
	snprintf(key, sizeof key, "userblk/v/ckpt/%016llx/root", (unsigned long long)v->applied);
	fake_store_set(key, "late", 4);
	checkpoint(&d);
	assert_int_equal(fake_store_requests(S3_PUT, key), 1);
	assert_int_equal(fake_store_requests(S3_PUT, "/root"), 2);
	/* That is enough. */
	checkpoint(&d);
	assert_int_equal(fake_store_requests(S3_PUT, "/root"), 2);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "volume=v");
	check_blocks(&d, 10);
	device_close(&d);
	fake_store_reset();
}

/* ---- reads of what was just written ---------------------------------------------------------- */

/* A flush that is followed by a read at once, in the thread that answers it. */
struct sequel {
	struct device *d;
	struct backend_request flush, read;
	struct iovec iov;
	uint8_t data[BLOCK];
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done;
	int result;
};

static void end(struct sequel *s, int result)
{
	pthread_mutex_lock(&s->lock);
	s->result = result;
	s->done = true;
	pthread_cond_signal(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

static void read_done(struct backend_request *request, int result)
{
	end(request->opaque, result);
}

static void flushed(struct backend_request *request, int result)
{
	struct sequel *s = request->opaque;

	if (result)
		end(s, result);
	else
		backend_submit(s->d->backend, &s->read);
}

/* Written data stays in memory from then on: none of it is ever fetched from the store. */
static void test_what_was_written_is_not_got(void **state)
{
	uint8_t block[BLOCK];
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=64M");
	for (unsigned i = 0; i < 32; i++) {
		struct sequel s = {
			.d = &d,
			.flush = {.op = BACKEND_FLUSH, .done = flushed},
			.read = {.op = BACKEND_READ,
				.offset = i * BLOCK,
				.length = BLOCK,
				.iovcnt = 1,
				.done = read_done},
			.lock = PTHREAD_MUTEX_INITIALIZER,
			.changed = PTHREAD_COND_INITIALIZER,
		};

		s.iov = (struct iovec){s.data, BLOCK};
		s.read.iov = &s.iov;
		s.flush.opaque = s.read.opaque = &s;
		memset(block, (int)i + 1, BLOCK);
		assert_int_equal(device_write(&d, block, BLOCK, i * BLOCK, 0), 0);
		backend_submit(d.backend, &s.flush);
		pthread_mutex_lock(&s.lock);
		while (!s.done)
			pthread_cond_wait(&s.changed, &s.lock);
		pthread_mutex_unlock(&s.lock);
		assert_int_equal(s.result, 0);
		assert_memory_equal(s.data, block, BLOCK);
	}
	assert_int_equal(device_counter(&d, "reads_store"), 0);
	device_close(&d);
	fake_store_reset();
}

/* ---- deadlines ------------------------------------------------------------------------------- */

static uint32_t deadline(const char *more)
{
	uint32_t seconds;
	struct device d;

	device_open(&d, &s3_backend, COMMON "volume=v;%s", more);
	seconds = fake_store_deadline(S3_GET, "/super");
	assert_int_equal(fake_store_deadline(S3_PUT, "/log/"), seconds); /* the fence */
	/* Then it is the store's own. */
	assert_int_equal(device_write(&d, "x", 1, 0, BACKEND_FUA), 0);
	assert_int_equal(fake_store_deadline(S3_PUT, "/log/"), 0);
	device_close(&d);
	return seconds;
}

static void test_deadline_of_an_open(void **state)
{
	(void)state;
	fake_store_reset();
	assert_int_equal(deadline("create=on;size=64M"), 20);
	assert_int_equal(deadline("retry-deadline=0"), 20);
	assert_int_equal(deadline("retry-deadline=5"), 5);
	assert_int_equal(deadline("retry-deadline=600"), 600);
	fake_store_reset();
}

/* The store of these tests takes whatever checksum. */
static void test_checksums_that_the_store_does_not_check(void **state)
{
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=64M;payload-signing=crc32c");
	assert_holds(
		d.reported.error, "payload-signing=crc32c: this store does not check a CRC32C");
	assert_false(volume_of(&d)->checksums);
	assert_int_equal(fake_store_requests(S3_DELETE, "/probe/"), 2); /* and of conditions */
	assert_int_equal(device_write(&d, "x", 1, 0, BACKEND_FUA), 0);
	device_close(&d);
	fake_store_reset();
}

/* ---- the socket ------------------------------------------------------------------------------ */

static int ask(const char *path, const char *request)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
	assert_true(dprintf(fd, "userblk-s3 1 %s\n", request) > 0);
	return fd;
}

/* A new volume whose control socket is at path, of 256 bytes. */
static void open_with_control(struct device *d, char *path)
{
	char config[512];

	fake_store_reset();
	snprintf(path, 256, "%s", scratch_path("control"));
	snprintf(config, sizeof config, COMMON "volume=v;create=on;size=64M;control=%s", path);
	device_open(d, &s3_backend, config);
}

/* All that comes, to the end of the connection. */
static void read_answer(int fd, char *text, size_t room)
{
	size_t n = 0;
	ssize_t got;

	while ((got = read(fd, text + n, room - 1 - n)) > 0)
		n += (size_t)got;
	text[n] = '\0';
	close(fd);
}

/* Another request while a long one that has failed is still cleaning up. */
static void test_a_failure_is_told_beside_other_requests(void **state)
{
	char path[256], text[8192];
	struct device d;
	int slow;

	(void)state;
	open_with_control(&d, path);
	fake_store_fail(S3_PUT, "/snap/s/root", -EACCES, 1);
	fake_store_hold(S3_DELETE, "/snap/s/");
	slow = ask(path, "snapshot-create s");
	fake_store_wait_held(S3_DELETE, "/snap/s/");
	read_answer(ask(path, "info"), text, sizeof text);
	assert_holds(text, "ok\n");
	fake_store_release(S3_DELETE, NULL);
	read_answer(slow, text, sizeof text);
	assert_holds(text, "error 13 snapshot=s: ");
	device_close(&d);
	fake_store_reset();
}

static _Atomic unsigned slow_ends; /* so many ends of answers are sent and take a while */

ssize_t __real_send(int fd, const void *data, size_t length, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t length, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t length, int flags)
{
	bool slow = length == 3 && memcmp(data, "ok\n", 3) == 0 && slow_ends;
	ssize_t n = __real_send(fd, data, length, flags);

	if (slow) {
		slow_ends--;
		usleep(300000);
	}
	return n;
}

/* A client that sees the end of a long command may ask for the next one at once. */
static void test_commands_one_after_the_other(void **state)
{
	char path[256], text[8192], request[64];
	struct device d;

	(void)state;
	open_with_control(&d, path);
	slow_ends = 4;
	for (unsigned i = 0; i < 5; i++) {
		int fd;
		size_t n = 0;

		snprintf(request, sizeof request, "snapshot-create s%u", i);
		fd = ask(path, request);
		do {
			ssize_t got = read(fd, text + n, sizeof text - 1 - n);

			assert_true(got > 0);
			n += (size_t)got;
			text[n] = '\0';
		} while (!strstr(text, "\nok\n") && !strstr(text, "\nerror "));
		assert_holds(text, "ok\n");
		close(fd);
	}
	device_close(&d);
	fake_store_reset();
}

/* A key is not in the memory of the socket when the command has been performed. */
static void test_a_key_that_was_sent_is_forgotten(void **state)
{
	char path[256], text[8192], request[128], key[65];
	struct device d;

	(void)state;
	open_with_control(&d, path);
	memset(key, 'a', 64);
	key[64] = '\0';
	snprintf(request, sizeof request, "rekey %s", key);
	read_answer(ask(path, request), text, sizeof text);
	assert_holds(text, "error "); /* it is not encrypted */
	assert_null(memmem(volume_of(&d)->control, malloc_usable_size(volume_of(&d)->control), key,
		sizeof key - 1));
	device_close(&d);
	fake_store_reset();
}

/* ---- an end ---------------------------------------------------------------------------------- */

static const char *socket_path;

ssize_t __real_pwritev64(int fd, const struct iovec *iov, int n, off_t at);
ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int n, off_t at);
/* That of the cache file, which fails when the socket is gone. */
ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int n, off_t at)
{
	if (!socket_path)
		return __real_pwritev64(fd, iov, n, at);
	while (access(socket_path, F_OK) == 0)
		usleep(1000);
	usleep(100000);
	errno = EIO;
	return -1;
}

/* A cache file that fails last of all tells it, although nobody can ask the volume any more. */
static void test_a_cache_file_that_fails_at_the_end(void **state)
{
	char config[512], path[256];
	uint8_t block[BLOCK] = {1};
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=64M");
	assert_int_equal(device_write(&d, block, BLOCK, 0, 0), 0);
	device_close(&d);
	snprintf(path, sizeof path, "%s", scratch_path("control"));
	snprintf(config, sizeof config, COMMON "volume=v;control=%s;cache-file=%s;cache-size=16M",
		path, scratch_path("cache"));
	device_open(&d, &s3_backend, config);
	assert_int_equal(access(path, F_OK), 0);
	socket_path = path;
	assert_int_equal(device_read(&d, block, BLOCK, 0), 0);
	device_close(&d);
	socket_path = NULL;
	assert_int_equal(d.reported.errors, 1);
	assert_holds(d.reported.error, "cannot be written, and is not used");
	fake_store_reset();
}

/* What a snapshot's cache file has of objects that compaction made is kept, too. */
static void test_a_cache_file_of_a_compacted_snapshot(void **state)
{
	uint8_t block[BLOCK] = {1};
	char config[512];
	struct device d;
	uint64_t kept;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=64M;gc-delay=0");
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(
			device_write(&d, block, BLOCK, i * (uint64_t)BLOCK, BACKEND_FUA), 0);
	assert_int_equal(s3_volume_gc(volume_of(&d), NULL, NULL), 0);
	assert_true(device_counter(&d, "gc_objects") > 0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	device_close(&d);
	snprintf(config, sizeof config, COMMON "volume=v;snapshot=s;cache-file=%s;cache-size=16M",
		scratch_path("cache"));
	device_open(&d, &s3_backend, config);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(device_read(&d, block, BLOCK, i * (uint64_t)BLOCK), 0);
	device_close(&d);
	assert_true(fake_store_requests(S3_GET, "/gc/") > 0);
	device_open(&d, &s3_backend, config);
	kept = device_counter(&d, "cache_file_kept");
	device_close(&d);
	assert_true(kept > 0);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_checkpoints_cost_a_tenth_of_the_log),
		cmocka_unit_test(test_checkpoints_of_headers_alone),
		cmocka_unit_test(test_light_roots_from_the_beginning),
		cmocka_unit_test(test_full_root_after_many_sessions),
		cmocka_unit_test(test_light_roots_of_a_clone),
		cmocka_unit_test(test_failed_root_keeps_its_number),
		cmocka_unit_test(test_what_was_written_is_not_got),
		cmocka_unit_test(test_deadline_of_an_open),
		cmocka_unit_test(test_checksums_that_the_store_does_not_check),
		cmocka_unit_test(test_a_failure_is_told_beside_other_requests),
		cmocka_unit_test(test_commands_one_after_the_other),
		cmocka_unit_test(test_a_key_that_was_sent_is_forgotten),
		cmocka_unit_test(test_a_cache_file_that_fails_at_the_end),
		cmocka_unit_test(test_a_cache_file_of_a_compacted_snapshot),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
