/* SPDX-License-Identifier: BSD-3-Clause */
/* A volume of the S3 device over a store in this process: what it asks of the store. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/volume.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/support.h"

#define BLOCK 4096u
#define COMMON "endpoint=http://127.0.0.1;bucket=abc;volume=v;uploads=2;"

static unsigned random_number(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(*state >> 33);
}

/* ---- checkpoints --------------------------------------------------------------------------- */

static int checkpoint(struct s3_volume *v, void *opaque)
{
	(void)opaque;
	return s3_checkpoint(v);
}

/*
 * What checkpoints cost against the log, in percent, when blocks are written at random that each
 * shrink to little more than so many bytes.
 */
static double checkpoint_percent(uint64_t size, unsigned bytes)
{
	uint64_t random = 1, blocks = size / BLOCK;
	uint8_t block[BLOCK] = {0};
	struct device d;
	double percent;

	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "memory=64M;compress=zstd;create=on;size=%llu",
		(unsigned long long)size);
	for (unsigned i = 1; i <= 256 * 1024; i++) {
		uint64_t lba =
			((uint64_t)random_number(&random) << 31 | random_number(&random)) % blocks;

		for (unsigned j = 0; j < bytes; j++)
			block[j] = (uint8_t)random_number(&random);
		assert_int_equal(device_write(&d, block, BLOCK, lba * BLOCK, 0), 0);
		if (i % (32 * 1024) == 0)
			assert_int_equal(
				s3_keeper_call((struct s3_volume *)d.backend, checkpoint, NULL), 0);
	}
	assert_int_equal(device_counter(&d, "light_roots"), 7);
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
	assert_true(checkpoint_percent(UINT64_C(1) << 40, 40) <= 10);
}

/* An address of 28 bits is stored twice: with 17 bytes or so in the log, then in a checkpoint. */
static void test_checkpoints_of_headers_alone(void **state)
{
	(void)state;
	assert_true(checkpoint_percent(UINT64_C(1) << 40, 0) <= 20);
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

/* What was written is at hand from then on: nothing of it is ever got from the store. */
static void test_what_was_written_is_not_got(void **state)
{
	uint8_t block[BLOCK];
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "memory=64M;batch-size=1M;create=on;size=64M");
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

	device_open(&d, &s3_backend, COMMON "memory=64M;%s", more);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_checkpoints_cost_a_tenth_of_the_log),
		cmocka_unit_test(test_checkpoints_of_headers_alone),
		cmocka_unit_test(test_what_was_written_is_not_got),
		cmocka_unit_test(test_deadline_of_an_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
