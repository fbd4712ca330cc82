/* SPDX-License-Identifier: BSD-3-Clause */
/* For how long a device is waited for whose ublk server ends. Its queue is the test's, and so is
 * the disk below. */
#include "tests/unit/support.h"
#include "ublk/disk.h"
#include "ublk/progress.h"
#include "ublk/queue.h"

bool __wrap_ublk_queue_serves(const struct ublk_queue *q);
uint64_t __wrap_ublk_queue_written(const struct ublk_queue *q);
uint64_t __wrap_ublk_disk_writes_below(int fd);
bool __wrap_backend_stalled(struct backend *b);

static struct ublk_queue *const queue[1];
static bool serves, stalled;
static uint64_t written, written_below;

bool __wrap_ublk_queue_serves(const struct ublk_queue *q)
{
	assert_null(q);
	return serves;
}

uint64_t __wrap_ublk_queue_written(const struct ublk_queue *q)
{
	assert_null(q);
	return written;
}

uint64_t __wrap_ublk_disk_writes_below(int fd)
{
	assert_int_equal(fd, 7);
	return written_below;
}

bool __wrap_backend_stalled(struct backend *b)
{
	assert_null(b);
	return stalled;
}

static const struct ublk_work remote = {.can_stall = true,
				      .below = -1,
				      .queues = queue,
				      .count = 1},
			      file = {.below = 7, .queues = queue, .count = 1};

static int set_up(void **state)
{
	(void)state;
	serves = stalled = false;
	written = written_below = 0;
	return 0;
}

static void test_what_is_written_is_work(void **state)
{
	struct ublk_seen seen = {0};

	(void)state;
	stalled = true;
	assert_false(ublk_works_since(&remote, &seen));
	written = 1;
	assert_true(ublk_works_since(&remote, &seen));
	assert_false(ublk_works_since(&remote, &seen));
}

static void test_a_device_knows_what_is_out_of_reach(void **state)
{
	struct ublk_seen seen = {0};

	(void)state;
	assert_false(ublk_works_since(&remote, &seen));
	serves = true;
	assert_true(ublk_works_since(&remote, &seen));
	stalled = true;
	assert_false(ublk_works_since(&remote, &seen));
}

static void test_the_disk_below_shows_a_long_flush(void **state)
{
	struct ublk_seen seen = {0};

	(void)state;
	written_below = 1;
	assert_false(ublk_works_since(&file, &seen)); /* it is not ours */
	serves = true;
	assert_true(ublk_works_since(&file, &seen));
	assert_false(ublk_works_since(&file, &seen));
	assert_false(ublk_stops_since(&file, &seen));
	assert_false(ublk_closes_since(&file, &seen));
	written_below = 2;
	assert_true(ublk_closes_since(&file, &seen));
}

/* The kernel may not stop the disk for a reason of its own, and that has no end. */
static void test_a_stop_waits_for_requests_only(void **state)
{
	struct ublk_seen seen = {0};

	(void)state;
	stalled = true;
	assert_false(ublk_stops_since(&remote, &seen));
	serves = true;
	assert_true(ublk_stops_since(&remote, &seen));
	assert_true(ublk_stops_since(&remote, &seen));
}

/* It stores the last data, when there are no requests any longer. */
static void test_a_device_that_may_stall_ends_by_itself(void **state)
{
	struct ublk_seen seen = {0};

	(void)state;
	stalled = true;
	assert_true(ublk_closes_since(&remote, &seen));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_what_is_written_is_work, set_up),
		cmocka_unit_test_setup(test_a_device_knows_what_is_out_of_reach, set_up),
		cmocka_unit_test_setup(test_the_disk_below_shows_a_long_flush, set_up),
		cmocka_unit_test_setup(test_a_stop_waits_for_requests_only, set_up),
		cmocka_unit_test_setup(test_a_device_that_may_stall_ends_by_itself, set_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
