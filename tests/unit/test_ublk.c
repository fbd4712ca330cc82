/* SPDX-License-Identifier: BSD-3-Clause */
/* userblk-ublk, as far as it goes without the kernel's driver. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/support.h"
#include "ublk/notify.h"
#include "ublk/options.h"
#include "ublk/process.h"
#include "ublk/queue.h"
#include "ublk/parameters.h"
#include "ublk/server.h"

#define WORDS 16

/* Parses a command line, which may be changed. */
static int parse(struct ublk_options *o, struct params_error *error, const char *line)
{
	static char text[512];
	char *argv[WORDS] = {"userblk-ublk"};
	int argc = 1;

	snprintf(text, sizeof text, "%s", line);
	for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
		argv[argc++] = word;
	argv[argc] = NULL;
	error->text[0] = 0;
	return ublk_options_parse(argc, argv, o, error);
}

static void test_add_is_parsed(void **state)
{
	struct params_error error;
	struct ublk_options o;

	(void)state;
	assert_int_equal(
		parse(&o, &error, "add --mode=uring --depth 7 null --queues=3 size=1M --json"), 0);
	assert_int_equal(o.command, UBLK_COMMAND_ADD);
	assert_int_equal(o.server.mode, UBLK_MODE_URING);
	assert_int_equal(o.server.depth, 7);
	assert_int_equal(o.server.queues, 3);
	assert_int_equal(o.server.threads, 16);
	assert_int_equal(o.server.id, -1);
	assert_int_equal(o.server.recovery, UBLK_RECOVERY_REISSUE);
	assert_int_equal(o.server.flush, UBLK_FLUSH_STRICT);
	assert_true(o.json);
	assert_false(o.foreground);
	assert_ptr_equal(params_ops(o.params), &null_backend);
	params_free(o.params);
}

static void test_main_parameter_needs_no_key(void **state)
{
	struct params_error error;
	struct ublk_options o;

	(void)state;
	assert_int_equal(parse(&o, &error, "add null 1M"), 0);
	assert_true(params_given(o.params, "size"));
	params_free(o.params);
}

static void test_disks_have_three_names(void **state)
{
	(void)state;
	assert_int_equal(ublk_options_disk("3"), 3);
	assert_int_equal(ublk_options_disk("ublkb12"), 12);
	assert_int_equal(ublk_options_disk("/dev/ublkb0"), 0);
	assert_int_equal(ublk_options_disk(""), -1);
	assert_int_equal(ublk_options_disk("-1"), -1);
	assert_int_equal(ublk_options_disk("3x"), -1);
	assert_int_equal(ublk_options_disk("/dev/nbd3"), -1);
	assert_int_equal(ublk_options_disk("ublkb"), -1);
	assert_int_equal(
		ublk_options_disk("1048575"), 1048575); /* the kernel's last minor number */
	assert_int_equal(ublk_options_disk("1048576"), -1);
	assert_int_equal(ublk_options_disk("99999999999999999999"), -1);
}

static void test_replace_takes_a_disk_and_a_device(void **state)
{
	struct params_error error;
	struct ublk_options o;

	(void)state;
	assert_int_equal(parse(&o, &error, "replace --flush=weak /dev/ublkb5 null size=1M"), 0);
	assert_int_equal(o.server.flush, UBLK_FLUSH_WEAK);
	assert_int_equal(o.command, UBLK_COMMAND_REPLACE);
	assert_int_equal(o.server.id, 5);
	params_free(o.params);
}

/* Each mistake is one line that names what is wrong. */
static void test_mistakes_are_named(void **state)
{
	static const struct {
		const char *line, *part;
	} mistakes[] = {
		{"", "no command"},
		{"frobnicate", "frobnicate: no such command"},
		{"add", "DEVICE: missing; name one of null, passthrough"},
		{"add zero", "zero: no such device"},
		{"add null", "size"},
		{"add null size=1M color=red", "color"},
		{"add null size=1M size=2M", "size"},
		{"add null size=1000", "not a multiple"},
		{"add --depth=0 null size=1M", "--depth=0: must be a number from 1 to 4096"},
		{"add --depth=4097 null size=1M", "--depth=4097: must be"},
		{"add --queues=two null size=1M", "--queues=two: must be"},
		{"add --threads=1x null size=1M", "--threads=1x: must be"},
		{"add --number=1048576 null size=1M", "must be a number from 0 to 1048575"},
		{"add --mode=fast null size=1M", "--mode=fast: must be one of workers, uring"},
		{"add --mode", "--mode: needs a value"},
		{"add --nonsense null size=1M", "--nonsense: no such option"},
		{"add --force null size=1M", "--force: not an option of this command"},
		{"replace --depth=4 0 null size=1M", "--depth: not an option of this command"},
		{"delete", "N: missing"},
		{"delete sda", "sda: no disk of ublk"},
		{"info 1 2", "2: too many arguments"},
		{"list 1", "1: too many arguments"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
		struct params_error error;
		struct ublk_options o;

		assert_int_equal(parse(&o, &error, mistakes[i].line), -EINVAL);
		assert_holds(error.text, mistakes[i].part);
		assert_null(strchr(error.text, '\n'));
	}
}

/* Writes that only the server had must not be forgotten while the disk goes on. */
static void test_devices_that_hold_writes_end_with_their_server(void **state)
{
	const char *s3 = "s3 volume=v endpoint=http://127.0.0.1:1 bucket=bucket region=r "
			 "credentials=/nowhere";
	struct params_error error;
	struct ublk_options o;
	char line[256];

	(void)state;
	snprintf(line, sizeof line, "add %s", s3);
	assert_int_equal(parse(&o, &error, line), 0);
	assert_int_equal(o.server.recovery, UBLK_RECOVERY_NONE);
	params_free(o.params);
	snprintf(line, sizeof line, "add --recovery=reissue %s", s3);
	assert_int_equal(parse(&o, &error, line), -EINVAL);
	assert_holds(error.text, "--recovery=reissue: the s3 device holds writes");
	snprintf(line, sizeof line, "replace 0 %s", s3);
	assert_int_equal(parse(&o, &error, line), -EINVAL);
	assert_holds(error.text, "delete the disk and add it");
}

static void test_help_needs_nothing_else(void **state)
{
	struct params_error error;
	struct ublk_options o;

	(void)state;
	assert_int_equal(parse(&o, &error, "--help"), 0);
	assert_int_equal(o.command, UBLK_COMMAND_HELP);
	assert_int_equal(parse(&o, &error, "add --help"), 0);
	assert_int_equal(o.command, UBLK_COMMAND_HELP);
	assert_int_equal(parse(&o, &error, "--version"), 0);
	assert_int_equal(o.command, UBLK_COMMAND_VERSION);
}

static void test_requests_are_translated(void **state)
{
	static const struct {
		uint32_t op_flags;
		enum backend_op op;
		unsigned flags;
	} cases[] = {
		{UBLK_IO_OP_READ, BACKEND_READ, 0},
		/* A device refuses flags that it does not know, and a read has none. */
		{UBLK_IO_OP_READ | UBLK_IO_F_FUA | UBLK_IO_F_FAILFAST_DEV, BACKEND_READ, 0},
		{UBLK_IO_OP_WRITE, BACKEND_WRITE, 0},
		{UBLK_IO_OP_WRITE | UBLK_IO_F_META | UBLK_IO_F_SWAP, BACKEND_WRITE, 0},
		{UBLK_IO_OP_WRITE | UBLK_IO_F_FUA, BACKEND_WRITE, BACKEND_FUA},
		{UBLK_IO_OP_FLUSH, BACKEND_FLUSH, 0},
		{UBLK_IO_OP_DISCARD, BACKEND_TRIM, 0},
		{UBLK_IO_OP_WRITE_ZEROES, BACKEND_ZERO, BACKEND_MAY_TRIM},
		{UBLK_IO_OP_WRITE_ZEROES | UBLK_IO_F_NOUNMAP, BACKEND_ZERO, 0},
		{UBLK_IO_OP_WRITE_ZEROES | UBLK_IO_F_NOUNMAP | UBLK_IO_F_FUA, BACKEND_ZERO,
			BACKEND_FUA},
	};
	struct backend_request r;

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const struct ublksrv_io_desc d = {.op_flags = cases[i].op_flags,
			.start_sector = 1ull << 40,
			.nr_sectors = 1u << 22};

		assert_int_equal(ublk_queue_translate(&d, &r), 0);
		assert_int_equal(r.op, cases[i].op);
		assert_int_equal(r.flags, cases[i].flags);
		assert_true(r.offset == 1ull << 49);
		assert_true(r.length == 1ull << 31);
	}
	assert_int_equal(ublk_queue_translate(
				 &(struct ublksrv_io_desc){.op_flags = UBLK_IO_OP_WRITE_SAME}, &r),
		-EOPNOTSUPP);
}

/* The kernel takes a short answer for a short transfer: it is all or an error. */
static void test_answers_are_whole(void **state)
{
	struct backend_request r = {.op = BACKEND_READ, .length = 1u << 20};

	(void)state;
	assert_int_equal(ublk_queue_answer(&r, 0), 1 << 20);
	assert_int_equal(ublk_queue_answer(&r, -EIO), -EIO);
	r.op = BACKEND_WRITE;
	assert_int_equal(ublk_queue_answer(&r, 0), 1 << 20);
	r.op = BACKEND_TRIM;
	assert_int_equal(ublk_queue_answer(&r, 0), 0);
	r.op = BACKEND_FLUSH;
	assert_int_equal(ublk_queue_answer(&r, -EIO), -EIO);
}

/* An error of the sync comes once, and the write that is repeated does not show it. */
static void test_failed_durable_writes_stay_failed(void **state)
{
	struct backend_request r = {.op = BACKEND_WRITE, .flags = BACKEND_FUA};

	(void)state;
	assert_int_equal(ublk_queue_repeated(&r, 0, 0), 0);
	assert_int_equal(ublk_queue_repeated(&r, -EIO, 0), -EIO);
	assert_int_equal(ublk_queue_repeated(&r, -EIO, -ENOSPC), -ENOSPC);
	/* The file has no RWF_DSYNC, or no memory for the transfer. */
	assert_int_equal(ublk_queue_repeated(&r, -EOPNOTSUPP, 0), 0);
	assert_int_equal(ublk_queue_repeated(&r, -ENOMEM, 0), 0);
	r.flags = 0;
	assert_int_equal(ublk_queue_repeated(&r, -EIO, 0), 0);
}

/* A read of zeroes may leave a buffer alone only if nothing has been put there since it held
 * zeroes. */
static void test_buffers_are_zeroes_until_something_is_put_there(void **state)
{
	static const struct {
		enum backend_op op;
		uint64_t length;
		int result;
		uint64_t dirty; /* after it */
	} steps[] = {
		{BACKEND_READ, 1u << 20, 0, 0},
		{BACKEND_WRITE, 4096, 0, 4096},
		{BACKEND_WRITE, 512, 0, 4096},
		{BACKEND_WRITE, 131072, -EIO, 131072}, /* the data had come before it failed */
		{BACKEND_READ, 4096, 0, 131072},       /* the rest is as before */
		{BACKEND_FLUSH, 0, 0, 131072},
		{BACKEND_ZERO, 1ull << 31, 0, 131072}, /* of the disk, not of the buffer */
		{BACKEND_TRIM, 1ull << 31, 0, 131072},
		{BACKEND_READ, 131072, 0, 0},
		{BACKEND_READ, 4096, -EIO, 4096}, /* half done */
		{BACKEND_READ, 131072, -EIO, 131072},
		{BACKEND_READ, 1u << 20, 0, 0},
	};
	uint64_t dirty = 0;

	(void)state;
	for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
		const struct backend_request r = {.op = steps[i].op, .length = steps[i].length};

		dirty = ublk_queue_dirty(&r, steps[i].result, dirty);
		assert_int_equal(dirty, steps[i].dirty);
	}
}

static void count_end(void *opaque)
{
	++*(int *)opaque;
}

/* The kernel names the queue's CPUs, present or not: an offline one, or one of another cpuset. */
static void test_a_queue_starts_without_its_cpus(void **state)
{
	int ended = 0, fd = open(scratch_file("char", 1u << 20), O_RDONLY | O_CLOEXEC);
	struct ublk_dev dev = {
		.fd = fd,
		.depth = 1,
		.buffer_size = 4096,
		.ended = count_end,
		.opaque = &ended,
	};
	struct ublk_queue *queue;
	cpu_set_t cpus;

	(void)state;
	CPU_ZERO(&cpus);
	CPU_SET(CPU_SETSIZE - 1, &cpus);
	assert_int_equal(sched_setaffinity(0, sizeof cpus, &cpus), -1);
	assert_int_equal(ublk_queue_new(&dev, 0, &cpus, &queue), 0);
	assert_int_equal(ublk_queue_start(queue), 0);
	/* The file knows no commands. */
	ublk_queue_join(queue);
	ublk_queue_free(queue);
	assert_int_equal(ended, 1);
	/* One that is given up has no end to tell of. */
	assert_int_equal(ublk_queue_new(&dev, 0, &cpus, &queue), 0);
	ublk_queue_join(queue);
	ublk_queue_free(queue);
	assert_int_equal(ended, 1);
	close(fd);
}

static const struct backend_info usual = {
	.size = (1u << 30) + 4096 + 512,
	.block_size = 4096,
	.preferred_size = 65536,
	.trim_granularity = 512,
	.can_flush = true,
	.can_fua = true,
	.can_trim = true,
	.can_zero = true,
};

/* Those of a disk that another program has added. */
static void test_disks_with_other_features_are_not_served(void **state)
{
	(void)state;
	assert_true(ublk_server_knows(UBLK_F_CMD_IOCTL_ENCODE | UBLK_F_URING_CMD_COMP_IN_TASK |
				      UBLK_F_USER_RECOVERY | UBLK_F_USER_RECOVERY_REISSUE |
				      UBLK_F_AUTO_BUF_REG | UBLK_F_SAFE_STOP_DEV));
	assert_false(ublk_server_knows(UBLK_F_SUPPORT_ZERO_COPY));
	assert_false(ublk_server_knows(UBLK_F_NEED_GET_DATA));
	assert_false(ublk_server_knows(UBLK_F_USER_RECOVERY | UBLK_F_BATCH_IO));
	assert_false(ublk_server_knows(1ULL << 63));
}

static void test_parameters_are_announced(void **state)
{
	struct ublk_params_sent p;
	struct backend_info info = usual;

	(void)state;
	assert_int_equal(ublk_parameters(&info, 1, 1u << 20, &p), 0);
	assert_int_equal(p.types, UBLK_PARAM_TYPE_BASIC | UBLK_PARAM_TYPE_DISCARD);
	assert_int_equal(p.basic.attrs, UBLK_ATTR_VOLATILE_CACHE | UBLK_ATTR_FUA);
	assert_int_equal(p.basic.logical_bs_shift, 12);
	assert_int_equal(p.basic.io_opt_shift, 16);
	assert_int_equal(p.basic.max_sectors, 2048);
	/* Whole blocks. */
	assert_true(p.basic.dev_sectors == ((1u << 30) + 4096) / 512);
	assert_int_equal(p.discard.discard_granularity, 4096);
	assert_int_equal(p.discard.max_discard_sectors, (1u << 31) / 512);
	assert_int_equal(p.discard.max_discard_segments, 1);

	info.block_size = 1;
	info.max_trim = 1000000;
	info.readonly = info.rotational = true;
	assert_int_equal(ublk_parameters(&info, 512, 1u << 20, &p), 0);
	assert_int_equal(p.basic.logical_bs_shift, 9);
	assert_int_equal(p.discard.max_discard_sectors, 1000000 / 512);
	assert_int_equal(p.basic.attrs, UBLK_ATTR_READ_ONLY | UBLK_ATTR_ROTATIONAL |
						UBLK_ATTR_VOLATILE_CACHE | UBLK_ATTR_FUA);
	assert_true(p.types & UBLK_PARAM_TYPE_DMA_ALIGN);
	assert_int_equal(p.dma_alignment, 511);

	info.can_trim = false;
	assert_int_equal(ublk_parameters(&info, 1, 1u << 20, &p), 0);
	assert_int_equal(p.discard.max_discard_sectors, 0);
	assert_true(p.discard.max_write_zeroes_sectors > 0);
	info.can_zero = false;
	assert_int_equal(ublk_parameters(&info, 1, 1u << 20, &p), 0);
	assert_int_equal(p.types, UBLK_PARAM_TYPE_BASIC);

	info.block_size = 8192;
	assert_int_equal(ublk_parameters(&info, 1, 1u << 20, &p), -EINVAL);
}

static void test_replacements_must_fit(void **state)
{
	struct ublk_params_sent old, new;
	struct backend_info info = usual;

	(void)state;
	assert_int_equal(ublk_parameters(&info, 512, 1u << 20, &old), 0);
	assert_null(ublk_parameters_mismatch(&old, &old));
	info.size *= 2;
	info.block_size = 512;
	info.rotational = true;
	assert_int_equal(ublk_parameters(&info, 1, 1u << 20, &new), 0);
	assert_null(ublk_parameters_mismatch(&old, &new));
	assert_holds(ublk_parameters_mismatch(&new, &old), "smaller");
	info = usual;
	info.block_size = 512;
	assert_int_equal(ublk_parameters(&info, 512, 1u << 20, &new), 0);
	assert_null(ublk_parameters_mismatch(&old, &new));
	new.basic.dev_sectors = old.basic.dev_sectors;
	assert_holds(ublk_parameters_mismatch(&new, &old), "blocks");
	info = usual;
	info.can_fua = false;
	assert_int_equal(ublk_parameters(&info, 512, 1u << 20, &new), 0);
	assert_holds(ublk_parameters_mismatch(&old, &new), "FUA");
	info = usual;
	info.readonly = true;
	assert_int_equal(ublk_parameters(&info, 512, 1u << 20, &new), 0);
	assert_holds(ublk_parameters_mismatch(&old, &new), "read-only");
	assert_int_equal(ublk_parameters(&usual, 4096, 1u << 20, &new), 0);
	assert_holds(ublk_parameters_mismatch(&old, &new), "aligned");
	/* A disk that announces none has the kernel's, which is 4 bytes. */
	assert_int_equal(ublk_parameters(&usual, 1, 1u << 20, &old), 0);
	assert_int_equal(ublk_parameters(&usual, 8, 1u << 20, &new), 0);
	assert_holds(ublk_parameters_mismatch(&old, &new), "aligned");
	assert_int_equal(ublk_parameters(&usual, 4, 1u << 20, &new), 0);
	assert_null(ublk_parameters_mismatch(&old, &new));
	assert_null(ublk_parameters_mismatch(&new, &old));
}

/* A server is known by its device, and not by its number, which another process may have. */
static void test_a_process_is_known_by_its_device(void **state)
{
	struct stat full, zero;
	int device = open("/dev/full", O_RDWR | O_CLOEXEC), fd;
	pid_t child = fork();

	(void)state;
	if (child == 0)
		for (;;)
			pause();
	close(device);
	assert_int_equal(stat("/dev/full", &full), 0);
	assert_int_equal(stat("/dev/zero", &zero), 0);
	fd = ublk_process_with(child, full.st_rdev);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(ublk_process_with(child, zero.st_rdev), -ENXIO);
	assert_int_equal(ublk_process_with(getpid(), full.st_rdev), -ENXIO);
	/* What Linux 6.16 tells of a process that has gone. */
	assert_int_equal(ublk_process_with(-1, full.st_rdev), -ESRCH);
	assert_int_equal(kill(child, SIGKILL), 0);
	/* Its number is still there. */
	assert_int_equal(waitid(P_PID, (id_t)child, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
	assert_int_equal(ublk_process_with(child, full.st_rdev), -ESRCH);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(ublk_process_with(child, full.st_rdev), -ESRCH);
}

static void *wait_for_the_device_to_go(void *end)
{
	char byte;

	/* The first thread is not there to close them. */
	if (read(*(int *)end, &byte, 1) == 1)
		close_range(0, ~0u, 0);
	for (;;)
		pause();
	return NULL;
}

/* When a server is killed, a thread may stay in the kernel with what all had open, or without. */
static void test_a_process_that_is_dying_is_known(void **state)
{
	static int ends[2]; /* for a thread that outlives its parent's stack */
	struct stat full, zero;
	int device = open("/dev/full", O_RDWR | O_CLOEXEC), fd;
	char path[32], text[256] = "";
	pid_t child;

	(void)state;
	assert_int_equal(pipe(ends), 0);
	child = fork();
	if (child == 0) {
		pthread_t thread;

		alarm(60); /* if the test fails */
		pthread_create(&thread, NULL, wait_for_the_device_to_go, &ends[0]);
		syscall(SYS_exit, 0); /* this thread alone */
	}
	close(device);
	assert_int_equal(stat("/dev/full", &full), 0);
	assert_int_equal(stat("/dev/zero", &zero), 0);
	snprintf(path, sizeof path, "/proc/%d/stat", (int)child);
	while (!strstr(text, ") Z")) {
		fd = open(path, O_RDONLY);
		assert_true(read(fd, text, sizeof text - 1) > 0);
		close(fd);
	}
	fd = ublk_process_with(child, full.st_rdev);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(ublk_process_with(child, zero.st_rdev), -ENXIO);
	assert_int_equal(write(ends[1], "", 1), 1);
	for (fd = -1; fd < 0; usleep(1000))
		fd = ublk_process_with(child, zero.st_rdev);
	close(fd);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(ends[0]);
	close(ends[1]);
}

/* ---- the end of a server under systemd -------------------------------------------- */

static bool yes(void *opaque)
{
	(*(atomic_int *)opaque)++;
	return true;
}

static bool no(void *opaque)
{
	(*(atomic_int *)opaque)++;
	return false;
}

/* In the place of systemd. */
static int listen_as(const char *name)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	struct timeval limit = {.tv_sec = 60};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	strcpy(at.sun_path + 1, name + 1);
	assert_int_equal(
		bind(fd, (struct sockaddr *)&at,
			(socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
		0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	return fd;
}

/* As often as the device works, and no longer. */
static void test_systemd_waits_for_a_device_that_works(void **state)
{
	struct ublk_extension e = {0};
	atomic_int asked = 0;
	char name[64], got[64] = "";
	int fd;

	(void)state;
	unsetenv("NOTIFY_SOCKET");
	ublk_extension_begin(&e, yes, &asked);
	ublk_extension_follow(&e, no);
	ublk_extension_end(&e);
	assert_int_equal(asked, 0);
	snprintf(name, sizeof name, "@userblk-test-%d", getpid());
	fd = listen_as(name);
	setenv("NOTIFY_SOCKET", name, 1);
	ublk_extension_begin(&e, yes, &asked);
	for (int i = 0; i < 2; i++) {
		memset(got, 0, sizeof got);
		assert_true(recv(fd, got, sizeof got - 1, 0) > 0);
		assert_string_equal(got, "EXTEND_TIMEOUT_USEC=60000000");
	}
	ublk_extension_follow(&e, no);
	while (recv(fd, got, sizeof got, MSG_DONTWAIT) > 0)
		;
	for (int before = asked; asked < before + 2;)
		usleep(10000);
	assert_true(recv(fd, got, sizeof got, MSG_DONTWAIT) < 0);
	ublk_extension_end(&e);
	unsetenv("NOTIFY_SOCKET");
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_add_is_parsed),
		cmocka_unit_test(test_main_parameter_needs_no_key),
		cmocka_unit_test(test_disks_have_three_names),
		cmocka_unit_test(test_replace_takes_a_disk_and_a_device),
		cmocka_unit_test(test_mistakes_are_named),
		cmocka_unit_test(test_devices_that_hold_writes_end_with_their_server),
		cmocka_unit_test(test_help_needs_nothing_else),
		cmocka_unit_test(test_requests_are_translated),
		cmocka_unit_test(test_answers_are_whole),
		cmocka_unit_test(test_failed_durable_writes_stay_failed),
		cmocka_unit_test(test_buffers_are_zeroes_until_something_is_put_there),
		cmocka_unit_test(test_a_queue_starts_without_its_cpus),
		cmocka_unit_test(test_disks_with_other_features_are_not_served),
		cmocka_unit_test(test_parameters_are_announced),
		cmocka_unit_test(test_replacements_must_fit),
		cmocka_unit_test(test_a_process_is_known_by_its_device),
		cmocka_unit_test(test_a_process_that_is_dying_is_known),
		cmocka_unit_test(test_systemd_waits_for_a_device_that_works),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
