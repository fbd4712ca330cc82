/* SPDX-License-Identifier: BSD-3-Clause */
/* `userblk-ublk delete`: what stays claimed after it. The driver and the disk are the test's. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "programs/exit_codes.h"
#include "tests/unit/support.h"
#include "ublk/disk.h"
#include "ublk/process.h"
#include "ublk/record.h"
#include "ublk/remove.h"
#include "ublk/show.h"
#include "ublk/stopping.h"

int __wrap_ublk_examine(struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info);
int __wrap_ublk_control_info(
	struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info);
int __wrap_ublk_control_delete(struct ublk_control *c, uint32_t id, uint64_t cookie);
int __wrap_ublk_process_of_disk(const struct ublksrv_ctrl_dev_info *info);
int __wrap_ublk_disk_claim(
	uint32_t id, struct ublk_claim *claim, const struct ublk_claim_limits *limits);
void __wrap_ublk_claim_release(struct ublk_claim *claim);
int __wrap_ublk_disk_sync(uint32_t id, bool in_use, const struct ublk_sync_limits *limits);
void __wrap_ublk_disk_users(uint32_t id, char *text, size_t size);
int __wrap_ublk_stop_elsewhere(struct ublk_control *c, uint32_t id, uint64_t cookie,
	bool (*over)(void *opaque), void *opaque);

int __wrap_ublk_record_read(uint32_t id, uint64_t cookie, struct ublk_record *record);
void __wrap_ublk_record_remove(uint32_t id, uint64_t cookie);
bool __wrap_ublk_record_take_failure(uint32_t id, uint64_t cookie);

#define COOKIE 0x1234567800000001u

static int claimed, synced, stopped; /* what is answered */
static bool held, stops;
static uint64_t cookie_of_disk;
static bool seen;     /* its server */
static bool recorded; /* until the disk is stopped */

static int fill_info(struct ublksrv_ctrl_dev_info *info)
{
	memset(info, 0, sizeof *info);
	info->dev_id = 5;
	info->state = UBLK_S_DEV_LIVE;
	info->ublksrv_flags = cookie_of_disk;
	return 0;
}

int __wrap_ublk_examine(struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info)
{
	(void)c;
	(void)id;
	return fill_info(info);
}

int __wrap_ublk_control_info(
	struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info)
{
	(void)c;
	(void)id;
	return fill_info(info);
}

int __wrap_ublk_control_delete(struct ublk_control *c, uint32_t id, uint64_t cookie)
{
	(void)c;
	(void)id;
	(void)cookie;
	return 0;
}

int __wrap_ublk_process_of_disk(const struct ublksrv_ctrl_dev_info *info)
{
	int ends[2];

	(void)info;
	if (!seen)
		return -ESRCH;
	assert_int_equal(pipe(ends), 0);
	close(ends[1]); /* as if it had ended */
	return ends[0];
}

int __wrap_ublk_disk_claim(
	uint32_t id, struct ublk_claim *claim, const struct ublk_claim_limits *limits)
{
	(void)id;
	(void)limits;
	held = claimed == 0;
	claim->held = held;
	return claimed;
}

void __wrap_ublk_claim_release(struct ublk_claim *claim)
{
	held = false;
	*claim = UBLK_NO_CLAIM;
}

int __wrap_ublk_disk_sync(uint32_t id, bool in_use, const struct ublk_sync_limits *limits)
{
	(void)id;
	(void)in_use;
	(void)limits;
	return synced;
}

void __wrap_ublk_disk_users(uint32_t id, char *text, size_t size)
{
	(void)id;
	(void)size;
	text[0] = 0;
}

int __wrap_ublk_stop_elsewhere(struct ublk_control *c, uint32_t id, uint64_t cookie,
	bool (*over)(void *opaque), void *opaque)
{
	(void)c;
	(void)id;
	(void)cookie;
	(void)over;
	(void)opaque;
	stops = true;
	recorded = false; /* the server has removed it */
	return stopped;
}

int __wrap_ublk_record_read(uint32_t id, uint64_t cookie, struct ublk_record *record)
{
	assert_int_equal(id, 5);
	assert_true(cookie == cookie_of_disk);
	*record = (struct ublk_record){0};
	return recorded ? 0 : -ENOENT;
}

void __wrap_ublk_record_remove(uint32_t id, uint64_t cookie)
{
	(void)id;
	(void)cookie;
}

bool __wrap_ublk_record_take_failure(uint32_t id, uint64_t cookie)
{
	(void)id;
	(void)cookie;
	return false;
}

static int delete_disk(int claim, int sync, int stop)
{
	struct ublk_options o = {.server.id = 5};
	struct ublk_control c = {0};

	claimed = claim;
	synced = sync;
	stopped = stop;
	stops = false;
	return ublk_delete(&c, &o);
}

/* `delete 5 || mount /dev/ublkb5 /mnt` must find the disk free. */
static void test_a_disk_that_stays_is_claimed_no_longer(void **state)
{
	(void)state;
	assert_int_equal(delete_disk(-EPERM, 0, 0), EXIT_USAGE);
	assert_false(held);
	assert_int_equal(delete_disk(0, -EIO, 0), EXIT_FAILURE);
	assert_false(stops);
	assert_false(held);
	assert_int_equal(delete_disk(0, 0, -ECANCELED), EXIT_FAILURE);
	assert_true(stops);
	assert_false(held);
}

/* It could have told nobody here what it could not keep. */
static void test_a_server_without_a_record_here_may_have_lost_something(void **state)
{
	(void)state;
	cookie_of_disk = COOKIE;
	seen = recorded = true;
	assert_int_equal(delete_disk(0, 0, 0), 0);
	recorded = false;
	assert_int_equal(delete_disk(0, 0, 0), EXIT_FAILURE);
	seen = false;
	recorded = true;
	assert_int_equal(delete_disk(0, 0, 0), EXIT_FAILURE);
	/* Another program's server has none anywhere. */
	cookie_of_disk = 1;
	seen = true;
	assert_int_equal(delete_disk(0, 0, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_disk_that_stays_is_claimed_no_longer),
		cmocka_unit_test(test_a_server_without_a_record_here_may_have_lost_something),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
