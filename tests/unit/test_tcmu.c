/* SPDX-License-Identifier: BSD-3-Clause */
/* The adapter for tcmu-runner with the runner's real headers: opening, options, sessions, sizes,
 * devices that answer later. tests/lab has the real daemon. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <scsi/scsi.h>

#include "tcmu-handlers/tcmu_adapter.h"
#include "tests/unit/tcmu_disk.h"

/* ---- the device: passthrough, with faults ----------------------------------------- */

static struct backend_host last_host;

static int watched_open(
	const void *config, uint64_t size, const struct backend_host *host, struct backend **out)
{
	int r = passthrough_backend.open(config, size, host, out);

	last_host = *host;
	if (r == 0)
		(*out)->session = 7;
	return r;
}

static void test_threads(void **state)
{
	static const char *const wrong[] = {"", "x", "-1", "4 ", "257", "99999999999999999999"};

	(void)state;
	assert_int_equal(registered->nr_threads, 16);
	free((char *)registered->cfg_desc);
	setenv("USERBLK_TCMU_THREADS", "3", 1);
	assert_int_equal(handler_init(), 0);
	assert_int_equal(registered->nr_threads, 3);
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		setenv("USERBLK_TCMU_THREADS", wrong[i], 1);
		logged[0] = 0;
		assert_int_equal(handler_init(), -1);
		assert_holds(logged, "USERBLK_TCMU_THREADS=");
		assert_holds(logged, "use 0 to 256");
	}
	assert_holds(registered->cfg_desc, "direct=");
	assert_holds(registered->cfg_desc, "value of file alone");
}

/* Without threads the runner takes success for a promise to complete later. */
static void test_no_threads(void **state)
{
	char block[BLOCK];

	(void)state;
	free((char *)registered->cfg_desc);
	setenv("USERBLK_TCMU_THREADS", "0", 1);
	assert_int_equal(handler_init(), 0);
	assert_int_equal(read_bytes(block, BLOCK, 0), TCMU_STS_OK);
	assert_int_equal(completions, 1);
	assert_int_equal(completed_status, TCMU_STS_OK);
	fault_read = -EIO;
	assert_int_equal(read_bytes(block, BLOCK, 0), TCMU_STS_RD_ERR);
	assert_int_equal(completions, 1);
}

static void test_announced(void **state)
{
	(void)state;
	assert_true(dev.write_cache);
	assert_true(dev.unmap);
	assert_false(dev.split);
	assert_true(dev.granularity >= 1);
	assert_int_equal(dev.max_transfer, 128);
	assert_int_equal(dev.xcopy, 128);
	/* The runner divides by it, and announces the lower 31 bits. */
	assert_int_equal(dev.alignment, 1u << 31);
	assert_int_equal(dev.max_unmap, 1u << 20);
	registered->close(&dev);

	/* The runner multiplies it by the block size in 32 bits. */
	prepare(";direct=off");
	dev.max_transfer = 1u << 23;
	assert_int_equal(registered->open(&dev, true), 0);
	assert_int_equal(dev.max_transfer, 65536);
	registered->close(&dev);

	prepare(";direct=off;readonly=on");
	assert_int_equal(registered->open(&dev, false), 0);
	assert_false(dev.unmap);
	assert_int_equal(dev.granularity, 1);
}

/* check_config and open say the same, once each. */
static void refused_by_both(const char *cfgstring, const char *message)
{
	char *reason;

	registered->close(&dev);
	prepare("");
	snprintf(dev.cfgstring, sizeof dev.cfgstring, "%s", cfgstring);
	assert_false(registered->check_config(dev.cfgstring, &reason));
	assert_non_null(reason);
	assert_holds(reason, message);
	assert_null(strchr(reason, '\n'));
	assert_true(registered->open(&dev, false) < 0);
	assert_null(dev.own);
	assert_holds(logged, reason);
	free(reason);
	prepare(";direct=off");
	assert_int_equal(registered->open(&dev, false), 0);
}

static void test_refusals(void **state)
{
	char text[512];

	(void)state;
	refused_by_both("userblk_test/", "file: missing");
	refused_by_both("userblk_test/;direct=on", "file: missing");
	refused_by_both("userblk_test//nonexistent/file", "file=/nonexistent/file: No such file");
	refused_by_both("userblk_test//dev/zero", "file=/dev/zero: neither a block device");
	refused_by_both("userblk_tes/x", "begin it with userblk_test/");
	refused_by_both("userblk_testx/x", "begin it with userblk_test/");
	snprintf(text, sizeof text, "userblk_test/%s;direct=maybe", disk_file);
	refused_by_both(text, "direct=maybe:");
	snprintf(text, sizeof text, "userblk_test/%s;colour=red", disk_file);
	refused_by_both(text, "colour");
	/* The runner would leave "FILEdirect=off" of it. */
	snprintf(text, sizeof text, "userblk_test/%s;tcmur_cmd_time_out=5;direct=off", disk_file);
	refused_by_both(text, "tcmur_cmd_time_out=5: not the last");
	snprintf(text, sizeof text, "userblk_test/%s;config=/nonexistent", disk_file);
	refused_by_both(text, "config=/nonexistent");
}

static void test_accepted(void **state)
{
	const char *file = scratch_file("accepted", 1 << 20);
	const char *config = scratch_path("config");
	char text[1024], *reason = NULL;
	FILE *f = fopen(config, "w");

	(void)state;
	fprintf(f, "# a comment\nfile=%s\ndirect=off\n", file);
	fclose(f);
	snprintf(text, sizeof text, "userblk_test/config=%s", config);
	assert_true(registered->check_config(text, &reason));
	/* The runner's own option: it takes it out before open only. */
	snprintf(text, sizeof text, "userblk_test/%s;direct=off;tcmur_cmd_time_out=5", file);
	assert_true(registered->check_config(text, &reason));
	assert_null(reason);
	/* Another disk writes to it. */
	snprintf(text, sizeof text, "userblk_test/%s", disk_file);
	assert_false(registered->check_config(text, &reason));
	assert_holds(reason, "in use");
	free(reason);

	/* Nor does it open a device that this would take away from another server. */
	ops.has_sessions = true;
	snprintf(text, sizeof text, "userblk_test/%s", scratch_path("absent"));
	assert_true(registered->check_config(text, &reason));
	ops.has_sessions = false;
	assert_false(registered->check_config(text, &reason));
	free(reason);
	reason = NULL;

	/* What a check must not do: create the file. */
	snprintf(text, sizeof text, "userblk_test/%s;size=1m;direct=off", scratch_path("new"));
	assert_true(registered->check_config(text, &reason));
	assert_int_equal(access(scratch_path("new"), F_OK), -1);
}

static void test_too_small(void **state)
{
	(void)state;
	registered->close(&dev);
	prepare(";direct=off");
	dev.blocks = BLOCKS + 1;
	assert_true(registered->open(&dev, false) < 0);
	assert_null(dev.own);
	assert_holds(logged, "4194816");
	assert_holds(logged, "4194304");
	dev.blocks = 0;
	assert_true(registered->open(&dev, false) < 0);
	assert_holds(logged, "size=0");
}

/* Opens and closes the disk, with initiators or without, that configfs has a session of. */
static int open_exported(int exports, int session)
{
	int r;

	prepare(";direct=off");
	dev.exports = exports;
	dev.session = session;
	r = registered->open(&dev, false);
	if (r == 0)
		registered->close(&dev);
	return r;
}

/* A device learns whether another daemon acknowledged writes to initiators. */
static void test_clients_that_remain(void **state)
{
	(void)state;
	registered->close(&dev);
	ops.open = watched_open;
	assert_int_equal(open_exported(0, 5), 0);
	assert_int_equal(last_host.previous_session, 0);
	assert_int_equal(open_exported(1, 0), 0);
	assert_int_equal(last_host.previous_session, BACKEND_SESSION_UNKNOWN);
	assert_int_equal(open_exported(1, 5), 0);
	assert_int_equal(dev.session, 5);
	ops.has_sessions = true;
	assert_int_equal(open_exported(0, 5), 0);
	assert_int_equal(last_host.previous_session, 0);
	assert_int_equal(dev.session, 7);
	for (int exports = 1; exports < 3; exports++) {
		assert_int_equal(open_exported(exports, 5), 0);
		assert_int_equal(last_host.previous_session, 5);
		assert_int_equal(dev.session, 7);
	}
	/* A session that cannot be read is unknown. If exports cannot be counted, open fails. */
	assert_int_equal(open_exported(1, 0), 0);
	assert_int_equal(last_host.previous_session, BACKEND_SESSION_UNKNOWN);
	assert_int_equal(open_exported(1, -EIO), 0);
	assert_int_equal(last_host.previous_session, BACKEND_SESSION_UNKNOWN);
	assert_holds(logged, "cannot record who serves the disk");
	assert_int_equal(open_exported(-ENOENT, 0), -ENOENT);
	assert_null(dev.own);
	assert_holds(logged, "cannot determine whether the disk is exported: No such file");
}

/* Initiators of an earlier daemon get their file or an error, and new ones a new file. */
static void test_a_lost_file_is_not_created_again(void **state)
{
	(void)state;
	registered->close(&dev);
	for (int exports = 1; exports >= 0; exports--) {
		unlink(disk_file);
		prepare(";direct=off;size=4m");
		dev.exports = exports;
		assert_int_equal(registered->open(&dev, false), exports ? -ENOENT : 0);
		assert_int_equal(access(disk_file, F_OK), exports ? -1 : 0);
	}
}

static int resize(uint64_t bytes)
{
	struct tcmulib_cfg_info cfg = {.type = TCMULIB_CFG_DEV_SIZE, .data.dev_size = bytes};
	int r = registered->reconfig(&dev, &cfg);

	if (r == 0)
		dev.blocks = bytes / BLOCK;
	return r;
}

static void test_resize(void **state)
{
	char block[BLOCK] = "", *new_config;
	uint64_t size = (uint64_t)BLOCKS * BLOCK;
	struct tcmulib_cfg_info cfg;

	(void)state;
	assert_int_equal(read_bytes(block, BLOCK, size), TCMU_STS_RANGE);
	logged[0] = 0;
	assert_int_equal(resize(2 * size), -EINVAL);
	assert_holds(logged, "8388608");
	assert_holds(logged, "4194304");
	assert_int_equal(truncate(disk_file, (off_t)(2 * size)), 0);
	assert_int_equal(resize(2 * size), 0);
	assert_int_equal(read_bytes(block, BLOCK, size), TCMU_STS_OK);
	assert_int_equal(resize(size / 2), 0);
	assert_int_equal(read_bytes(block, BLOCK, size / 2), TCMU_STS_RANGE);
	assert_int_equal(read_bytes(block, BLOCK, size / 2 - BLOCK), TCMU_STS_OK);

	new_config = strdup("userblk_test//other");
	cfg.type = TCMULIB_CFG_DEV_CFGSTR;
	cfg.data.dev_cfgstring = new_config;
	logged[0] = 0;
	assert_int_equal(registered->reconfig(&dev, &cfg), -EOPNOTSUPP);
	assert_holds(logged, "userblk_test//other");
	free(new_config);
}

/* ---- a device that answers later -------------------------------------------------- */

#define QUEUE 128

static struct backend_request *queue[QUEUE];
static int queued;

static void keep_request(struct backend *b, struct backend_request *request)
{
	(void)b;
	assert_true(queued < QUEUE);
	queue[queued++] = request;
}

static void answer(int i, int result)
{
	queue[i]->done(queue[i], result);
}

/* All of the runner's queue is carried by its one thread, and answered in any order. */
static void test_submit(void **state)
{
	static struct command commands[QUEUE];
	char block[BLOCK] = "";
	struct iovec iov = {block, BLOCK};
	struct command c;

	(void)state;
	free((char *)registered->cfg_desc);
	ops.submit = keep_request;
	assert_int_equal(handler_init(), 0);
	assert_int_equal(registered->nr_threads, 0);
	queued = 0;
	for (int i = 0; i < QUEUE; i++)
		assert_int_equal(registered->write(&dev, command(&commands[i], WRITE_10, 0), &iov,
					 1, BLOCK, i * (off_t)BLOCK),
			TCMU_STS_OK);
	assert_int_equal(queued, QUEUE);
	assert_int_equal(completions, 0);
	for (int i = QUEUE - 1; i >= 0; i--) {
		assert_int_equal(queue[i]->op, BACKEND_WRITE);
		assert_int_equal(queue[i]->offset, i * BLOCK);
		assert_int_equal(queue[i]->length, BLOCK);
		answer(i, i ? 0 : -EIO);
		assert_int_equal(completions, QUEUE - i);
		assert_int_equal(completed_status, i ? TCMU_STS_OK : TCMU_STS_WR_ERR);
	}

	/* What the core refuses is an answer, too. */
	completions = queued = 0;
	assert_int_equal(read_bytes(block, BLOCK, (uint64_t)BLOCKS * BLOCK), TCMU_STS_OK);
	assert_int_equal(queued, 0);
	assert_int_equal(completions, 1);
	assert_int_equal(completed_status, TCMU_STS_RANGE);

	/* The write cache is turned off while a write is under way: flushed before the answer. */
	completions = queued = 0;
	assert_int_equal(
		registered->write(&dev, command(&c, WRITE_10, 0), &iov, 1, BLOCK, 0), TCMU_STS_OK);
	ops.submit = NULL;
	assert_int_equal(set_write_cache(false), 0);
	ops.submit = keep_request;
	answer(0, 0);
	assert_int_equal(completions, 0);
	assert_int_equal(queued, 2);
	assert_int_equal(queue[1]->op, BACKEND_FLUSH);
	answer(1, -EIO);
	assert_int_equal(completions, 1);
	assert_int_equal(completed_status, TCMU_STS_WR_ERR);

	/* With FUA from the beginning, once. */
	completions = queued = 0;
	assert_int_equal(
		registered->write(&dev, command(&c, WRITE_10, 0), &iov, 1, BLOCK, 0), TCMU_STS_OK);
	assert_int_equal(queue[0]->flags, BACKEND_FUA);
	answer(0, 0);
	assert_int_equal(completions, 1);

	completions = queued = 0;
	logged[0] = 0;
	assert_int_equal(registered->unmap(&dev, command(&c, UNMAP, 0), 0, MIB), TCMU_STS_OK);
	assert_int_equal(queue[0]->flags, BACKEND_FUA | BACKEND_MAY_TRIM | BACKEND_FAST_ZERO);
	answer(0, -EIO);
	assert_holds(logged, "zero of 1048576 bytes at 0");
	assert_int_equal(completed_status, TCMU_STS_WR_ERR);

	/* As for a write, but nothing is flushed where nothing was unmapped. */
	for (int refused = 0; refused < 2; refused++) {
		assert_int_equal(set_write_cache(true), 0);
		completions = queued = 0;
		assert_int_equal(
			registered->unmap(&dev, command(&c, UNMAP, 0), 0, MIB), TCMU_STS_OK);
		ops.submit = NULL;
		assert_int_equal(set_write_cache(false), 0);
		ops.submit = keep_request;
		answer(0, refused ? -EOPNOTSUPP : 0);
		assert_int_equal(completions, refused);
		assert_int_equal(queued, refused ? 1 : 2);
		if (!refused)
			answer(1, 0);
		assert_int_equal(completed_status, TCMU_STS_OK);
	}
}

#ifdef HAVE_WRITESAME
static void answer_at_once(struct backend *b, struct backend_request *request)
{
	(void)b;
	request->done(request, 0);
}

static _Atomic bool has_left;

static void leave_late(struct tcmu_device *disk)
{
	(void)disk;
	usleep(100000);
	has_left = true;
}

/*
 * A WRITE SAME has a thread also where other commands need none. The runner closes the disk when
 * the command is complete, and frees what the thread uses after that.
 */
static void test_close_after_write_same(void **state)
{
	char block[BLOCK] = "x";
	struct iovec iov = {block, BLOCK};
	struct command c;

	(void)state;
	free((char *)registered->cfg_desc);
	ops.submit = answer_at_once;
	assert_int_equal(handler_init(), 0);
	assert_int_equal(registered->nr_threads, 0);
	on_completion = leave_late;
	assert_int_equal(
		registered->writesame(&dev, command(&c, WRITE_SAME_16, 0), 0, MIB, &iov, 1),
		TCMU_STS_OK);
	while (!completions)
		usleep(100);
	registered->close(&dev);
	assert_true(has_left);
	assert_int_equal(completions, 1);
	assert_int_equal(completed_status, TCMU_STS_OK);
}
#endif

static void *write_until_cancelled(void *opaque)
{
	_Atomic int *done = opaque;
	char block[BLOCK] = "";

	while (*done < 1000) {
		if (write_bytes(WRITE_10, 0, block, BLOCK, 0) == TCMU_STS_OK)
			(*done)++;
		pthread_testcancel();
	}
	return NULL;
}

static _Atomic bool inside, cancelled;

static void wait_for_cancel(void)
{
	inside = true;
	while (!cancelled)
		usleep(1000); /* a cancellation point */
}

/* The runner cancels workers when a device is removed: not in the middle of a command. */
static void test_cancel(void **state)
{
	_Atomic int done = 0;
	pthread_t thread;
	void *result;

	(void)state;
	during_write = wait_for_cancel;
	assert_int_equal(pthread_create(&thread, NULL, write_until_cancelled, &done), 0);
	while (!inside)
		usleep(1000);
	assert_int_equal(pthread_cancel(thread), 0);
	cancelled = true;
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	assert_int_equal(done, 1);
}

/* ---- a device that waits for something out of reach -------------------------------- */

#define LIMIT_MS 10000
#define STEP_MS	 50
#define LOOK_MS	 2500 /* in which it is looked at, at least once */

static atomic_int stops;
static atomic_bool waits;

static void count_stop(struct backend *b)
{
	(void)b;
	stops++;
}

static bool is_waiting(struct backend *b)
{
	(void)b;
	return waits;
}

static void pause_ms(unsigned ms)
{
	usleep(ms * 1000);
}

/* The runner says so before it waits for the commands; and only such a device is stopped. */
static void test_removed_while_it_waits(void **state)
{
	(void)state;
	registered->close(&dev);
	ops.stop = count_stop;
	ops.stalled = is_waiting;
	prepare("");
	assert_int_equal(registered->open(&dev, false), 0);
	stops = 0;
	waits = true;
	pause_ms(LOOK_MS);
	assert_int_equal(stops, 0);
	waits = false;
	__atomic_store_n(&dev.runners.flags, TCMUR_DEV_FLAG_STOPPING, __ATOMIC_RELAXED);
	pause_ms(LOOK_MS);
	assert_int_equal(stops, 0);
	waits = true;
	for (unsigned ms = 0; ms < LIMIT_MS && !stops; ms += STEP_MS)
		pause_ms(STEP_MS);
	pause_ms(LOOK_MS);
	assert_int_equal(stops, 1);
	registered->close(&dev);
}

static void test_counters(void **state)
{
	(void)state;
	registered->close(&dev);
	prepare("");
	assert_int_equal(registered->open(&dev, false), 0);
	logged[0] = 0;
	registered->close(&dev);
	assert_holds(logged, "counters: ");
	assert_null(dev.own);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_threads),
		TEST(test_no_threads),
		TEST(test_announced),
		TEST(test_refusals),
		TEST(test_accepted),
		TEST(test_too_small),
		TEST(test_clients_that_remain),
		TEST(test_a_lost_file_is_not_created_again),
		TEST(test_resize),
		TEST(test_submit),
#ifdef HAVE_WRITESAME
		TEST(test_close_after_write_same),
#endif
		TEST(test_cancel),
		TEST(test_removed_while_it_waits),
		TEST(test_counters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
