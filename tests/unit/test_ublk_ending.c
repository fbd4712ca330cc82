/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How a ublk disk ends whose server gets signals. The disk and the clock are the test's: signals
 * come while it is written back, while it is waited for, and while the kernel stops it.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/unit/support.h"
#include "ublk/control.h"
#include "ublk/disk.h"
#include "ublk/ending.h"

int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_ublk_disk_sync(uint32_t id, bool in_use, const struct ublk_sync_limits *limits);
int __wrap_ublk_disk_claim(
	uint32_t id, struct ublk_claim *claim, const struct ublk_claim_limits *limits);
void __wrap_ublk_claim_release(struct ublk_claim *claim);
void __wrap_ublk_disk_users(uint32_t id, char *text, size_t size);

static struct timespec now;

/* One write-back: what happens meanwhile, and what comes of it. */
struct pass {
	int signals[3]; /* each a second and a half after the one before */
	int together;	/* one more, at once */
	int result;	/* if over() does not end it */
};

static struct pass passes[4];
static unsigned synced, lines, sent;
static bool synced_in_use[4], synced_forced[4];
static bool in_use, is_gone;
static int closed_to_us;  /* errno of each open of the disk */
static int signal_in_use; /* that comes while the disk is waited for */
static char last_line[512];

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
	(void)clock;
	*out = now;
	return 0;
}

static void raise_signal(int number)
{
	assert_int_equal(pthread_kill(pthread_self(), number), 0);
	sent++;
}

int __wrap_ublk_disk_sync(uint32_t id, bool used, const struct ublk_sync_limits *limits)
{
	const struct pass *pass = &passes[synced];

	assert_int_equal(id, 5);
	assert_true(synced < 4);
	synced_forced[synced] = limits->forced;
	synced_in_use[synced++] = used;
	if (pass->together) {
		raise_signal(pass->together);
		if (limits->over(limits->opaque))
			return -ECANCELED;
	}
	for (size_t i = 0; i < 3 && pass->signals[i]; i++) {
		now.tv_nsec += 500000000;
		now.tv_sec += 1 + now.tv_nsec / 1000000000;
		now.tv_nsec %= 1000000000;
		raise_signal(pass->signals[i]);
		if (limits->over(limits->opaque))
			return -ECANCELED;
	}
	return pass->result;
}

/* It is released once it was waited for. */
int __wrap_ublk_disk_claim(
	uint32_t id, struct ublk_claim *claim, const struct ublk_claim_limits *limits)
{
	int r = claim->held ? 0 : closed_to_us ? -closed_to_us : in_use ? -EBUSY : 0;

	assert_int_equal(id, 5);
	if (lines && signal_in_use) {
		now.tv_sec += 2;
		raise_signal(signal_in_use);
		signal_in_use = 0;
	} else if (lines) {
		in_use = false;
	}
	if (limits->over(limits->opaque))
		return -ECANCELED;
	claim->held = r == 0;
	return r;
}

void __wrap_ublk_claim_release(struct ublk_claim *claim)
{
	*claim = UBLK_NO_CLAIM;
}

void __wrap_ublk_disk_users(uint32_t id, char *text, size_t size)
{
	(void)id;
	snprintf(text, size, "dm-0 (vg-lv)");
}

static bool ended(void *opaque)
{
	(void)opaque;
	return is_gone;
}

static bool works(void *opaque)
{
	(void)opaque;
	return false;
}

static void log_line(void *opaque, const char *line)
{
	(void)opaque;
	lines++;
	snprintf(last_line, sizeof last_line, "%s", line);
}

static struct ublk_ending new_ending(void)
{
	memset(passes, 0, sizeof passes);
	now = (struct timespec){.tv_sec = 1000};
	synced = lines = sent = 0;
	in_use = is_gone = false;
	signal_in_use = closed_to_us = 0;
	last_line[0] = 0;
	return (struct ublk_ending){.id = 5, .ended = ended, .works = works, .log = log_line};
}

/* SIGTERM has come. */
static int release(struct ublk_ending *e, struct ublk_claim *claim)
{
	raise_signal(SIGTERM);
	assert_true(ublk_ending_wait(e));
	return ublk_ending_release(e, claim);
}

static int set_up(void **state)
{
	(void)state;
	ublk_ending_block();
	return 0;
}

static void test_a_disk_that_nobody_uses_is_claimed(void **state)
{
	struct ublk_ending e = new_ending();
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	assert_int_equal(release(&e, &claim), 0);
	assert_true(claim.held);
	assert_int_equal(synced, 1);
	assert_int_equal(lines, 0);
}

/* systemd ends the scope of a login with SIGTERM and SIGHUP. The mounted disk must stay. */
static void test_signals_of_one_cause_are_one(void **state)
{
	struct ublk_ending e = new_ending();
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	in_use = true;
	passes[0].together = SIGHUP;
	assert_int_equal(release(&e, &claim), 0);
	assert_true(claim.held); /* which comes after the disk was unmounted */
	assert_int_equal(synced, 2);
	assert_true(synced_in_use[0]);
	assert_false(synced_in_use[1]);
}

static void test_the_user_of_a_disk_is_named(void **state)
{
	struct ublk_ending e = new_ending();
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	in_use = true;
	assert_int_equal(release(&e, &claim), 0);
	assert_int_equal(lines, 1);
	assert_non_null(strstr(last_line, "is in use by dm-0 (vg-lv); it will be removed once"));
}

static void test_a_disk_that_cannot_be_opened_may_be_in_use(void **state)
{
	struct ublk_ending e = new_ending();
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	closed_to_us = EPERM;
	signal_in_use = SIGTERM;
	assert_int_equal(release(&e, &claim), 0);
	assert_int_equal(sent, 2);
	assert_int_equal(synced, 2);
	assert_int_equal(lines, 1);
	assert_non_null(strstr(last_line, "it is not known whether it is in use"));
	assert_false(claim.held);
}

static void test_a_disk_that_is_gone_is_not_in_use(void **state)
{
	struct ublk_ending e = new_ending();
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	assert_true(ublk_disk_may_be_used(-EBUSY));
	assert_true(ublk_disk_may_be_used(-ENOENT));
	assert_false(ublk_disk_may_be_used(-ENODEV));
	closed_to_us = ENXIO;
	assert_int_equal(release(&e, &claim), 0);
	assert_int_equal(lines, 0);
}

/* There is no sync(1), or no memory for it. */
static void test_a_disk_that_nobody_could_write_back_stays(void **state)
{
	struct ublk_ending e = new_ending();
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	passes[0].result = -ENOMEM;
	assert_int_equal(release(&e, &claim), 0);
	assert_true(claim.held);
	assert_int_equal(synced, 2);
	assert_int_equal(lines, 1);
	assert_non_null(strstr(last_line, "cannot be written back: sync: Cannot allocate memory"));

	e = new_ending();
	passes[0].result = -ENOENT;
	passes[1].signals[0] = SIGTERM;
	passes[1].result = passes[2].result = -ENOENT;
	assert_int_equal(release(&e, &claim), -ENOENT);
	assert_int_equal(synced, 3);
	assert_int_equal(lines, 1);
	assert_true(claim.held); /* nobody uses it */
}

/* It is what the manual says of it, although the first write-back has not ended. */
static void test_a_second_signal_writes_back_once_more(void **state)
{
	struct ublk_ending e = new_ending();
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	in_use = true;
	passes[0].signals[0] = SIGTERM;
	assert_int_equal(release(&e, &claim), 0);
	assert_int_equal(synced, 2);
	assert_true(synced_in_use[1]);
	assert_false(claim.held);
	/* Another disk of the machine that hangs holds the first one up, and not the second. */
	assert_false(synced_forced[0]);
	assert_true(synced_forced[1]);
}

static void test_a_second_signal_ends_the_wait(void **state)
{
	struct ublk_ending e = new_ending();
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	in_use = true;
	signal_in_use = SIGINT;
	assert_int_equal(release(&e, &claim), 0);
	assert_int_equal(lines, 1);
	assert_int_equal(synced, 2);
	assert_false(claim.held);
}

/* The second cause has two signals, too. */
static void test_a_third_signal_ends_the_write_back(void **state)
{
	struct ublk_ending e = new_ending();
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	in_use = true;
	passes[0].signals[0] = SIGTERM;
	passes[1].together = SIGHUP;
	passes[1].signals[0] = SIGTERM;
	assert_int_equal(release(&e, &claim), -ECANCELED);
	assert_int_equal(sent, 4);
	assert_int_equal(synced, 2);
	assert_false(claim.held);
}

static void test_what_took_long_is_not_lost_once_it_is_written(void **state)
{
	struct ublk_ending e = new_ending();
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	in_use = true;
	passes[0].result = -ETIME;
	assert_int_equal(release(&e, &claim), 0);
	assert_int_equal(synced, 2);
}

/* The kernel tells of it once. */
static void test_what_the_disk_refused_stays_lost(void **state)
{
	struct ublk_ending e = new_ending();
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	in_use = true;
	passes[0].result = -EIO;
	assert_int_equal(release(&e, &claim), -EIO);
	assert_int_equal(synced, 2);
}

static void test_a_device_that_is_gone_is_waited_for_no_longer(void **state)
{
	struct ublk_ending e = new_ending();
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	in_use = is_gone = true;
	passes[0].together = SIGUSR1;
	release(&e, &claim);
	assert_true(e.gone);
	assert_int_equal(synced, 1);
	raise_signal(SIGUSR1);
	assert_false(ublk_ending_wait(&e));
}

/* By nohup(1). Blocked, it would come all the same. */
static void test_an_ignored_hang_up_stays_ignored(void **state)
{
	struct ublk_ending e = new_ending();
	sigset_t hang_up;
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	sigemptyset(&hang_up);
	sigaddset(&hang_up, SIGHUP);
	pthread_sigmask(SIG_UNBLOCK, &hang_up, NULL);
	signal(SIGHUP, SIG_IGN);
	ublk_ending_block();
	in_use = true;
	passes[0].signals[0] = SIGHUP;
	assert_int_equal(release(&e, &claim), 0);
	assert_true(claim.held);
	signal(SIGHUP, SIG_DFL);
	ublk_ending_block();
}

/* The device keeps what it has acknowledged for as long as it is waited for. */
static void test_a_stop_is_waited_for_until_another_signal(void **state)
{
	struct ublk_ending e = new_ending();

	(void)state;
	raise_signal(SIGTERM);
	assert_true(ublk_ending_wait(&e));
	assert_false(ublk_ending_gives_up(&e));
	now.tv_sec += UBLK_CONTROL_LIMIT - 1;
	raise_signal(SIGTERM); /* that has been waited for too short to be given up */
	assert_false(ublk_ending_gives_up(&e));
	assert_int_equal(lines, 0);
	for (int i = 0; i < 3; i++) {
		now.tv_sec += 600;
		assert_false(ublk_ending_gives_up(&e));
	}
	assert_int_equal(lines, 1);
	assert_non_null(strstr(last_line, "another signal"));
	raise_signal(SIGTERM);
	assert_true(ublk_ending_gives_up(&e));
}

static void test_a_stop_of_a_device_that_is_gone_is_given_up(void **state)
{
	struct ublk_ending e = new_ending();

	(void)state;
	raise_signal(SIGTERM);
	assert_true(ublk_ending_wait(&e));
	is_gone = true;
	raise_signal(SIGUSR1);
	assert_false(ublk_ending_gives_up(&e)); /* the kernel is about to answer */
	now.tv_sec += UBLK_CONTROL_LIMIT + 1;
	assert_true(ublk_ending_gives_up(&e));
	assert_int_equal(lines, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_disk_that_nobody_uses_is_claimed),
		cmocka_unit_test(test_signals_of_one_cause_are_one),
		cmocka_unit_test(test_the_user_of_a_disk_is_named),
		cmocka_unit_test(test_a_disk_that_cannot_be_opened_may_be_in_use),
		cmocka_unit_test(test_a_disk_that_is_gone_is_not_in_use),
		cmocka_unit_test(test_a_disk_that_nobody_could_write_back_stays),
		cmocka_unit_test(test_a_second_signal_writes_back_once_more),
		cmocka_unit_test(test_a_second_signal_ends_the_wait),
		cmocka_unit_test(test_a_third_signal_ends_the_write_back),
		cmocka_unit_test(test_what_took_long_is_not_lost_once_it_is_written),
		cmocka_unit_test(test_what_the_disk_refused_stays_lost),
		cmocka_unit_test(test_a_device_that_is_gone_is_waited_for_no_longer),
		cmocka_unit_test(test_an_ignored_hang_up_stays_ignored),
		cmocka_unit_test(test_a_stop_is_waited_for_until_another_signal),
		cmocka_unit_test(test_a_stop_of_a_device_that_is_gone_is_given_up),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
