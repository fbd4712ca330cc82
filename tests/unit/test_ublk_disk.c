/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How long the write-back of a ublk disk is waited for, and what it covers. The kernel's counters
 * and mounts are the test's, and so is what writes, a script: what it is to do lies in a file.
 */
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backends/disk_nodes.h"
#include "tests/unit/support.h"
#include "ublk/disk.h"
#include "ublk/process.h"
#include "ublk/syncing.h"

bool __wrap_disk_nodes(const char *disk, size_t spare, glob_t *nodes);
FILE *__wrap_setmntent(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout);
int __wrap_ublk_process_spawn(const char *program, char *const *argv, int input, pid_t *child);
int __wrap_statx(int at, const char *path, int flags, unsigned mask, struct statx *s);

static char directory[] = "/tmp/userblk-test-ublk-disk-XXXXXX";
static const char *mounts;    /* lines of /proc/self/mounts */
static const char *claimed;   /* the node that is */
static const char *hidden;    /* the mount point that is, by another mount */
static unsigned long looks;   /* at the disk's counters */
static unsigned long flushes; /* looks until one has ended; 0: none does */

static const char script[] = "#!/bin/sh\n"
			     "cd \"$(dirname \"$0\")\"\n"
			     "echo \"$*\" >>log\n"
			     "case \"$*\" in\n"
			     "'') . ./all ;;\n"
			     "--file-system*) . ./mounted ;;\n"
			     "*) . ./nodes ;;\n"
			     "esac\n";

static void write_file(const char *name, const char *text)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof path, "%s/%s", directory, name);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fchmod(fileno(file), 0700);
	fclose(file);
}

/* What that was called with, in lines. */
static const char *log_text(void)
{
	static char text[512];
	char path[128];
	ssize_t length;
	int fd;

	snprintf(path, sizeof path, "%s/log", directory);
	fd = open(path, O_RDONLY);
	length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
	assert_true(length >= 0);
	text[length] = 0;
	if (fd >= 0)
		close(fd);
	return text;
}

/* The disk is /dev/null, and has a partition /dev/zero. */
bool __wrap_disk_nodes(const char *disk, size_t spare, glob_t *nodes)
{
	assert_string_equal(disk, "/dev/ublkb5");
	/* As glob(3) makes it; a sanitizer's stumbles over the empty places. */
	*nodes = (glob_t){.gl_offs = spare, .gl_pathc = 2};
	nodes->gl_pathv = calloc(spare + 3, sizeof(char *));
	nodes->gl_pathv[spare] = strdup("/dev/null");
	nodes->gl_pathv[spare + 1] = strdup("/dev/zero");
	return true;
}

FILE *__wrap_setmntent(const char *path, const char *mode)
{
	assert_string_equal(path, "/proc/self/mounts");
	return fmemopen((void *)(uintptr_t)mounts, strlen(mounts), mode);
}

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list more;

	if (flags & O_CREAT) {
		va_start(more, flags);
		mode = va_arg(more, mode_t);
		va_end(more);
	}
	if (flags & O_EXCL && claimed && strcmp(path, claimed) == 0) {
		errno = EBUSY;
		return -1;
	}
	return __real_open64(path, flags, mode);
}

static bool without_proc;

int __real_ublk_process_spawn(const char *program, char *const *argv, int input, pid_t *child);
int __wrap_ublk_process_spawn(const char *program, char *const *argv, int input, pid_t *child)
{
	if (strcmp(program, "/proc/self/exe") == 0) {
		assert_string_equal(argv[0], "userblk-ublk");
		/* Claims are made here then. */
		if (without_proc || strcmp(argv[1], "claim") == 0)
			return -ENOENT;
		argv++;
	}
	assert_string_equal(argv[0], "sync");
	return __real_ublk_process_spawn("sync", argv, input, child);
}

/* Mount points: /mnt/gone is not there, and /mnt/btrfs has a number of its own. */
int __wrap_statx(int at, const char *path, int flags, unsigned mask, struct statx *s)
{
	(void)at;
	(void)mask;
	assert_true(flags & AT_STATX_DONT_SYNC);
	if (strcmp(path, "/mnt/gone") == 0) {
		errno = ENOENT;
		return -1;
	}
	memset(s, 0, sizeof *s);
	s->stx_dev_major = 1;
	s->stx_dev_minor = strcmp(path, "/mnt/part") == 0 ? 5 : 3;
	if (strcmp(path, "/mnt/btrfs") == 0 || (hidden && strcmp(path, hidden) == 0))
		s->stx_dev_major = 0;
	return 0;
}

FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode)
{
	static char text[128];

	if (strcmp(path, "/sys/block/ublkb5/stat") != 0)
		return __real_fopen64(path, mode);
	looks++;
	snprintf(text, sizeof text, "1 0 8 0 10 0 80 0 0 0 0 0 0 0 0 %lu 0\n",
		flushes ? looks / flushes : 0);
	return fmemopen(text, strlen(text), "r");
}

/* Time goes faster: nanoseconds of a millisecond. */
static long tempo;

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout)
{
	(void)fds;
	(void)count;
	nanosleep(&(struct timespec){.tv_nsec = timeout * tempo}, NULL);
	return 0;
}

static bool patient, asked;

static bool never(void *opaque)
{
	(void)opaque;
	return false;
}

static bool works(void *opaque)
{
	(void)opaque;
	asked = true;
	return patient;
}

static const struct ublk_sync_limits limits = {.over = never, .works = works};

static int set_up(void **state)
{
	char path[128];

	(void)state;
	if (snprintf(path, sizeof path, "%s/log", directory) < 0)
		return -1;
	unlink(path);
	write_file("all", "");
	write_file("mounted", "");
	write_file("nodes", "");
	mounts = "/dev/null /mnt/a\\040b ext4 rw 0 0\nproc /proc proc rw 0 0\n"
		 "/dev/full /mnt/other ext4 rw 0 0\n/dev/zero /mnt/part ext4 rw 0 0\n";
	claimed = hidden = NULL;
	looks = flushes = 0;
	without_proc = false;
	patient = asked = false;
	tempo = 30000;
	return 0;
}

static void test_what_is_mounted_comes_first(void **state)
{
	(void)state;
	assert_int_equal(ublk_disk_sync(5, true, NULL), 0);
	assert_string_equal(
		log_text(), "--file-system /mnt/a b /mnt/part\n\n/dev/null /dev/zero\n");
}

/* syncfs(2) would fail there, or write another file system. */
static void test_mounts_that_are_not_reached_are_no_error(void **state)
{
	(void)state;
	mounts = "/dev/null /mnt/gone ext4 rw 0 0\n/dev/null /mnt/hidden ext4 rw 0 0\n"
		 "/dev/zero /mnt/btrfs btrfs rw 0 0\n";
	hidden = "/mnt/hidden";
	assert_int_equal(ublk_disk_sync(5, true, NULL), 0);
	assert_string_equal(log_text(), "--file-system /mnt/btrfs\n\n/dev/null /dev/zero\n");
}

static void test_a_disk_that_nobody_uses_is_all(void **state)
{
	(void)state;
	assert_int_equal(ublk_disk_sync(5, false, NULL), 0);
	assert_string_equal(log_text(), "/dev/null /dev/zero\n");
	write_file("log", "");
	without_proc = true;
	assert_int_equal(ublk_disk_sync(5, false, NULL), 0);
	assert_string_equal(log_text(), "/dev/null /dev/zero\n");
}

/* sync(2) waits for all disks, also for those that hang. */
static void test_another_disk_that_takes_long_keeps_nothing_from_ours(void **state)
{
	(void)state;
	write_file("all", "exec sleep 600\n");
	patient = true; /* it works for those who read from our disk, maybe */
	assert_int_equal(ublk_disk_sync(5, true, &limits), 0);
	assert_string_equal(
		log_text(), "--file-system /mnt/a b /mnt/part\n\n/dev/null /dev/zero\n");
}

/* Writes to our mounts do not end, and say nothing of the other disk. */
static void test_nor_does_it_while_ours_is_written_to(void **state)
{
	(void)state;
	write_file("all", "exec sleep 600\n");
	flushes = 1;
	assert_int_equal(ublk_disk_sync(5, true, &limits), 0);
	assert_true(looks < 3000); /* half a minute by this clock */
}

static void test_nor_does_it_where_the_user_wants_an_end(void **state)
{
	const struct ublk_sync_limits forced = {.over = never, .forced = true};

	(void)state;
	mounts = "proc /proc proc rw 0 0\n";
	write_file("all", "exec sleep 600\n");
	flushes = 1;
	tempo = 1000;
	assert_int_equal(ublk_disk_sync(5, true, &forced), -ETIME);
	assert_string_equal(log_text(), "\n/dev/null /dev/zero\n");
}

/* A volume is on the partition, or another namespace has mounted it. */
static void test_what_is_used_elsewhere_may_not_be_written(void **state)
{
	(void)state;
	mounts = "/dev/null /mnt/a ext4 rw 0 0\n";
	write_file("all", "exec sleep 600\n");
	claimed = "/dev/zero";
	assert_int_equal(ublk_disk_sync(5, true, NULL), -ETIME);
	mounts = "/dev/zero /mnt/part ext4 rw 0 0\n";
	claimed = "/dev/null";
	assert_int_equal(ublk_disk_sync(5, true, NULL), -ETIME);
	claimed = "/dev/zero";
	assert_int_equal(ublk_disk_sync(5, true, NULL), 0);
}

static void test_nor_what_another_mount_hides(void **state)
{
	(void)state;
	mounts = "/dev/null /mnt/hidden ext4 rw 0 0\n/dev/zero /mnt/part ext4 rw 0 0\n";
	claimed = "/dev/null";
	hidden = "/mnt/hidden";
	write_file("all", "exec sleep 600\n");
	assert_int_equal(ublk_disk_sync(5, true, NULL), -ETIME);
}

/* Then sync(2) is the only one who may have written it. */
static void test_file_systems_that_are_not_seen_may_not_be_written(void **state)
{
	(void)state;
	mounts = "proc /proc proc rw 0 0\n";
	write_file("all", "exec sleep 600\n");
	assert_int_equal(ublk_disk_sync(5, true, NULL), -ETIME);
	assert_string_equal(log_text(), "\n/dev/null /dev/zero\n");
}

static void test_errors(void **state)
{
	(void)state;
	/* As when memory is short: what is dirty may still be written. */
	write_file("mounted", "kill -KILL $$\n");
	assert_true(ublk_disk_unsynced(ublk_disk_sync(5, true, NULL)));
	/* As the loader does when a library is no longer found. */
	write_file("mounted", "exit 127\n");
	assert_true(ublk_disk_unsynced(ublk_disk_sync(5, true, NULL)));
	write_file("mounted", "exit 1\n");
	assert_int_equal(ublk_disk_sync(5, true, NULL), -EIO);
	write_file("mounted", "exec sleep 600\n");
	write_file("nodes", "exit 1\n");
	assert_int_equal(ublk_disk_sync(5, true, NULL), -EIO);
	assert_string_equal(ublk_disk_loss(-EIO), "the last writes are lost");
	assert_string_equal(ublk_disk_loss(-ETIME), "the last writes may be lost");
}

/* What the process does. A partition may go at any time. */
static void test_what_cannot_be_opened_is_no_lost_write(void **state)
{
	char file[128], pipe[128], none[128];
	char *written[] = {file, none, NULL}, *missing[] = {none, file, NULL};
	char *refused[] = {none, pipe, NULL}, *all[] = {NULL};
	char option[] = UBLK_SYNC_FILE_SYSTEMS;
	char *mounted[] = {option, directory, NULL}, *unmounted[] = {option, directory, none, NULL};

	(void)state;
	snprintf(file, sizeof file, "%s/all", directory);
	snprintf(pipe, sizeof pipe, "%s/pipe", directory);
	snprintf(none, sizeof none, "%s/none", directory);
	assert_int_equal(mkfifo(pipe, 0600), 0);
	assert_int_equal(ublk_sync_result(ublk_sync_for_parent(written)), 0);
	assert_int_equal(ublk_sync_result(ublk_sync_for_parent(missing)), -ENXIO);
	assert_true(ublk_disk_unsynced(-ENXIO));
	/* fsync(2) fails with EINVAL. */
	assert_int_equal(ublk_sync_result(ublk_sync_for_parent(refused)), -EIO);
	assert_int_equal(ublk_sync_result(ublk_sync_for_parent(mounted)), 0);
	assert_int_equal(ublk_sync_result(ublk_sync_for_parent(unmounted)), -ENXIO);
	assert_int_equal(ublk_sync_for_parent(all), 0);
	unlink(pipe);
}

static bool all_begins(void *opaque)
{
	(void)opaque;
	return strstr(log_text(), "\n\n") != NULL;
}

/* The kernel tells of it once. */
static void test_an_error_stays_one_if_the_rest_is_given_up(void **state)
{
	const struct ublk_sync_limits until_all = {.over = all_begins};

	(void)state;
	write_file("mounted", "exit 1\n");
	write_file("all", "exec sleep 600\n");
	assert_int_equal(ublk_disk_sync(5, true, &until_all), -EIO);
	assert_string_equal(log_text(), "--file-system /mnt/a b /mnt/part\n\n");
	write_file("mounted", "");
	write_file("log", "");
	assert_int_equal(ublk_disk_sync(5, true, &until_all), -ECANCELED);
}

/* One flush that takes as long as the fsync(2), which is longer than the limit by this clock. */
static void test_a_request_that_the_device_works_on_is_waited_for(void **state)
{
	(void)state;
	write_file("nodes", "exec sleep 4\n");
	patient = true;
	assert_int_equal(ublk_disk_sync(5, false, &limits), 0);
	assert_true(asked);
}

static void test_a_request_that_hangs_is_not(void **state)
{
	(void)state;
	write_file("nodes", "exec sleep 600\n");
	assert_int_equal(ublk_disk_sync(5, false, &limits), -ETIME);
	assert_true(asked);
}

static void test_requests_that_end_are_waited_for(void **state)
{
	(void)state;
	write_file("nodes", "exec sleep 4\n");
	flushes = 100;
	assert_int_equal(ublk_disk_sync(5, false, NULL), 0);
}

/* The disk below a file is not known for one that is in memory. */
static void test_a_file_without_a_disk(void **state)
{
	int fd = memfd_create("file", 0);

	(void)state;
	assert_int_equal(ublk_disk_writes_below(fd), 0);
	close(fd);
	assert_int_equal(ublk_disk_writes_below(-1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_what_is_mounted_comes_first, set_up),
		cmocka_unit_test_setup(test_mounts_that_are_not_reached_are_no_error, set_up),
		cmocka_unit_test_setup(test_a_disk_that_nobody_uses_is_all, set_up),
		cmocka_unit_test_setup(
			test_another_disk_that_takes_long_keeps_nothing_from_ours, set_up),
		cmocka_unit_test_setup(
			test_file_systems_that_are_not_seen_may_not_be_written, set_up),
		cmocka_unit_test_setup(test_nor_does_it_while_ours_is_written_to, set_up),
		cmocka_unit_test_setup(test_nor_does_it_where_the_user_wants_an_end, set_up),
		cmocka_unit_test_setup(test_what_is_used_elsewhere_may_not_be_written, set_up),
		cmocka_unit_test_setup(test_nor_what_another_mount_hides, set_up),
		cmocka_unit_test_setup(test_errors, set_up),
		cmocka_unit_test_setup(test_what_cannot_be_opened_is_no_lost_write, set_up),
		cmocka_unit_test_setup(test_an_error_stays_one_if_the_rest_is_given_up, set_up),
		cmocka_unit_test_setup(
			test_a_request_that_the_device_works_on_is_waited_for, set_up),
		cmocka_unit_test_setup(test_a_request_that_hangs_is_not, set_up),
		cmocka_unit_test_setup(test_requests_that_end_are_waited_for, set_up),
		cmocka_unit_test_setup(test_a_file_without_a_disk, set_up),
	};
	char path[512], command[64];
	int failed;

	if (!mkdtemp(directory))
		return 1;
	write_file("sync", script);
	snprintf(path, sizeof path, "%s:%s", directory, getenv("PATH"));
	setenv("PATH", path, 1);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	snprintf(command, sizeof command, "rm -r %s", directory);
	return system(command) != 0 || failed;
}
