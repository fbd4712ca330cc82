/* SPDX-License-Identifier: BSD-3-Clause */
/* How a ublk disk is claimed by another process, whose open may wait in the kernel. The opens are
 * the test's. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/support.h"
#include "ublk/claiming.h"
#include "ublk/process.h"

int __wrap_open64(const char *path, int flags, ...);
int __wrap_ublk_process_spawn(const char *program, char *const *argv, int input, pid_t *child);

/* What the processes share. */
static struct {
	_Atomic int refused; /* errno of the opens */
	_Atomic bool hangs;
	_Atomic unsigned opens;
} * disk;

static enum { SPAWNS, ENDS, FAILS, HAS_NO_PROC } spawner;
static unsigned spawned;

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
	if (strcmp(path, "/dev/ublkb5") != 0)
		return __real_open64(path, flags, 0);
	assert_true(flags & O_EXCL);
	disk->opens++;
	while (disk->hangs)
		poll(NULL, 0, 1);
	errno = disk->refused;
	return disk->refused ? -1 : __real_open64("/dev/null", O_RDONLY | O_CLOEXEC);
}

int __wrap_ublk_process_spawn(const char *program, char *const *argv, int input, pid_t *child)
{
	assert_string_equal(program, "/proc/self/exe");
	assert_string_equal(argv[1], UBLK_CLAIM_COMMAND);
	assert_null(argv[2]);
	if (spawner == FAILS || spawner == HAS_NO_PROC)
		return spawner == FAILS ? -EAGAIN : -ENOENT;
	spawned++;
	*child = fork();
	if (*child != 0)
		return *child < 0 ? -errno : 0;
	if (spawner == ENDS)
		_exit(127);
	dup2(input, STDIN_FILENO);
	close_range(STDERR_FILENO + 1, ~0u, 0);
	_exit(ublk_claim_for_parent());
}

static bool at_once(void *opaque)
{
	(void)opaque;
	return true;
}

static const struct ublk_claim_limits patient = {.timeout_ms = 600000}, brief = {.timeout_ms = 20},
				      none = {.timeout_ms = 600000, .over = at_once};

static int set_up(void **state)
{
	(void)state;
	disk->refused = 0;
	disk->hangs = false;
	disk->opens = 0;
	spawner = SPAWNS;
	spawned = 0;
	return 0;
}

static int claim_disk(struct ublk_claim *claim, const struct ublk_claim_limits *limits)
{
	return ublk_claim(claim, "/dev/ublkb5", limits);
}

static void test_a_disk_is_claimed_until_it_is_released(void **state)
{
	struct ublk_claim claim = UBLK_NO_CLAIM;
	pid_t child;

	(void)state;
	assert_int_equal(claim_disk(&claim, &patient), 0);
	assert_true(claim.held);
	child = claim.child;
	assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
	assert_int_equal(claim_disk(&claim, &patient), 0);
	assert_int_equal(disk->opens, 1);
	ublk_claim_release(&claim);
	assert_false(claim.held);
	assert_int_equal(waitpid(child, NULL, WNOHANG), -1); /* it has ended */
	ublk_claim_release(&claim);
	assert_int_equal(claim_disk(&claim, &patient), 0);
	assert_int_equal(spawned, 2);
	ublk_claim_release(&claim);
}

/* While the disk is mounted it is asked ten times per second. */
static void test_one_process_is_asked_again(void **state)
{
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	disk->refused = EBUSY;
	assert_int_equal(claim_disk(&claim, &patient), -EBUSY);
	assert_false(claim.held);
	assert_int_equal(claim_disk(&claim, &patient), -EBUSY);
	disk->refused = 0;
	assert_int_equal(claim_disk(&claim, &patient), 0);
	assert_int_equal(disk->opens, 3);
	assert_int_equal(spawned, 1);
	ublk_claim_release(&claim);
}

static void test_an_open_that_waits_keeps_nobody(void **state)
{
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	disk->hangs = true;
	assert_int_equal(claim_disk(&claim, &brief), -ETIME);
	assert_int_equal(claim_disk(&claim, &none), -ECANCELED);
	disk->hangs = false;
	assert_int_equal(claim_disk(&claim, &patient), 0);
	assert_int_equal(disk->opens, 1);
	assert_int_equal(spawned, 1);
	ublk_claim_release(&claim);
}

static void test_it_is_not_waited_for_at_the_release(void **state)
{
	struct ublk_claim claim = UBLK_NO_CLAIM;
	pid_t child;

	(void)state;
	disk->hangs = true;
	assert_int_equal(claim_disk(&claim, &brief), -ETIME);
	child = claim.child;
	ublk_claim_release(&claim);
	assert_int_equal(claim.fd, -1);
	disk->hangs = false;
	assert_int_equal(waitpid(child, NULL, 0), child); /* although it has the disk then */
}

/* Its open could wait in the kernel, and with it a server that has to answer the disk. */
static void test_this_process_claims_only_without_proc(void **state)
{
	struct ublk_claim claim = UBLK_NO_CLAIM;

	(void)state;
	spawner = HAS_NO_PROC;
	disk->refused = EBUSY;
	assert_int_equal(claim_disk(&claim, &patient), -EBUSY);
	disk->refused = 0;
	assert_int_equal(claim_disk(&claim, &patient), 0);
	assert_true(claim.held);
	ublk_claim_release(&claim);
	disk->opens = 0;
	/* As when the loader no longer finds a library. */
	for (spawner = ENDS; spawner <= FAILS; spawner++) {
		assert_int_equal(
			claim_disk(&claim, &patient), spawner == FAILS ? -EAGAIN : -ECHILD);
		assert_false(claim.held);
		assert_int_equal(claim.fd, -1);
	}
	assert_int_equal(disk->opens, 0);
	/* The next one may be able to. */
	spawner = SPAWNS;
	assert_int_equal(claim_disk(&claim, &patient), 0);
	ublk_claim_release(&claim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_a_disk_is_claimed_until_it_is_released, set_up),
		cmocka_unit_test_setup(test_one_process_is_asked_again, set_up),
		cmocka_unit_test_setup(test_an_open_that_waits_keeps_nobody, set_up),
		cmocka_unit_test_setup(test_it_is_not_waited_for_at_the_release, set_up),
		cmocka_unit_test_setup(test_this_process_claims_only_without_proc, set_up),
	};

	disk = mmap(NULL, sizeof *disk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(disk != MAP_FAILED);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
