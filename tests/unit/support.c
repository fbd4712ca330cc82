/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/support.h"

static void on_error(void *opaque, const char *message)
{
	struct reported *reported = opaque;

	/* The core's, of every failed request; the device's own say why. */
	if (strncmp(message, "flush: ", 7) == 0 || strstr(message, " bytes at "))
		return;
	reported->errors++;
	snprintf(reported->error, sizeof reported->error, "%s", message);
}

static void on_debug(void *opaque, const char *message)
{
	struct reported *reported = opaque;

	snprintf(reported->debug, sizeof reported->debug, "%s", message);
}

static int try_open(struct device *d, const struct backend_ops *ops, uint64_t size,
	uint32_t previous_session, const char *format, va_list args)
{
	char text[2048];
	struct params_error error;
	int r;

	*d = (struct device){.params = params_new(ops)};
	vsnprintf(text, sizeof text, format, args);
	r = params_set_string(d->params, text, &error);
	if (r == 0)
		r = params_complete(d->params, size != 0, &error);
	if (r)
		on_error(&d->reported, error.text);
	else
		r = backend_open(d->params, size,
			&(struct backend_host){.opaque = &d->reported,
				.error = on_error,
				.debug = on_debug,
				.previous_session = previous_session},
			&d->backend);
	if (r == 0) {
		backend_start(d->backend);
	} else {
		params_free(d->params);
		d->params = NULL;
	}
	return r;
}

int device_try(
	struct device *d, const struct backend_ops *ops, uint64_t size, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int r = try_open(d, ops, size, 0, format, args);
	va_end(args);
	return r;
}

int device_try_again(
	struct device *d, const struct backend_ops *ops, uint64_t size, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int r = try_open(d, ops, size, BACKEND_SESSION_UNKNOWN, format, args);
	va_end(args);
	return r;
}

void device_open(struct device *d, const struct backend_ops *ops, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int r = try_open(d, ops, 0, 0, format, args);
	va_end(args);
	if (r)
		fail_msg("cannot open: %s (%s)", d->reported.error, strerror(-r));
}

void device_close(struct device *d)
{
	backend_close(d->backend);
	params_free(d->params);
}

uint64_t device_counter(struct device *d, const char *name)
{
	struct backend_counter counters[64];
	size_t n = backend_counters(d->backend, counters, 64);

	for (size_t i = 0; i < n && i < 64; i++)
		if (strcmp(counters[i].name, name) == 0)
			return counters[i].value;
	fail_msg("no counter %s", name);
	return 0;
}

int device_read(struct device *d, void *buffer, size_t length, uint64_t offset)
{
	return backend_readv(d->backend, &(struct iovec){buffer, length}, 1, offset);
}

int device_write(
	struct device *d, const void *buffer, size_t length, uint64_t offset, unsigned flags)
{
	return backend_writev(
		d->backend, &(struct iovec){(void *)buffer, length}, 1, offset, flags);
}

void assert_holds(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" does not hold \"%s\"", text, part);
}

/* ---- files ------------------------------------------------------------------ */

static char directory[256];
static pid_t owner;

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

static void remove_scratch(void)
{
	if (getpid() == owner)
		nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

const char *scratch(void)
{
	if (!directory[0]) {
		const char *base = getenv("TMPDIR");

		snprintf(directory, sizeof directory, "%s/userblk-unit-XXXXXX",
			base ? base : "/tmp");
		if (!mkdtemp(directory)) {
			perror(directory);
			exit(2);
		}
		owner = getpid();
		atexit(remove_scratch);
	}
	return directory;
}

const char *scratch_path(const char *name)
{
	static char paths[4][512];
	static unsigned next;
	char *path = paths[next++ % 4];

	snprintf(path, sizeof paths[0], "%s/%s", scratch(), name);
	return path;
}

const char *scratch_file(const char *name, uint64_t size)
{
	const char *path = scratch_path(name);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
		fail_msg("%s: %s", path, strerror(errno));
	close(fd);
	return path;
}

/* ---- programs and loop devices ---------------------------------------------- */

/* What is still attached when a test has failed; the kernel detaches it when a killed test's
 * descriptor goes. */
static char attached_device[64];
static int attached_fd = -1;

static void detach_at_exit(void)
{
	if (attached_device[0] && getpid() == owner)
		loop_detach(attached_device);
}

int run(const char *const *argv)
{
	pid_t pid = fork();
	int status;

	if (pid < 0)
		return -1;
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		dup2(null, 1);
		dup2(null, 2);
		execvp(argv[0], (char *const *)argv);
		_exit(127);
	}
	if (waitpid(pid, &status, 0) < 0 || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}

void skip_test(const char *why, ...)
{
	const char *ci = getenv("CI");
	char reason[400];
	va_list args;

	va_start(args, why);
	vsnprintf(reason, sizeof reason, why, args);
	va_end(args);
	if (ci && strcmp(ci, "true") == 0 && strncmp(reason, "kernel: ", 8) != 0)
		fail_msg("CI=true, and this was skipped: %s", reason);
	print_message("SKIPPED [1] %s\n", reason);
	skip();
	abort(); /* not reached: skip() does not return, but does not say so */
}

void loop_attach(const char *file, unsigned sector, char *device, size_t room)
{
	static bool registered;
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	int backing = open(file, O_RDWR | O_CLOEXEC);
	const char *why = "/dev/loop-control and root are needed";
	bool attached = false;

	if (!registered)
		atexit(detach_at_exit);
	registered = true;
	if (attached_device[0]) /* by a test that failed */
		loop_detach(attached_device);
	/* Another program may take the free number first. */
	for (int try = 0; control >= 0 && backing >= 0 && !attached && try < 10; try++) {
		struct loop_config config = {.fd = (uint32_t)backing,
			.block_size = sector,
			.info.lo_flags = LO_FLAGS_AUTOCLEAR};
		int number = ioctl(control, LOOP_CTL_GET_FREE);
		int fd;

		if (number < 0)
			break;
		snprintf(device, room, "/dev/loop%d", number);
		fd = open(device, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			break;
		attached = ioctl(fd, LOOP_CONFIGURE, &config) == 0;
		if (!attached)
			why = strerror(errno);
		if (attached)
			attached_fd = fd;
		else
			close(fd);
	}
	if (control >= 0)
		close(control);
	if (backing >= 0)
		close(backing);
	if (!attached)
		skip_test("no loop device with %u-byte sectors: %s", sector, why);
	snprintf(attached_device, sizeof attached_device, "%s", device);
}

void loop_detach(const char *device)
{
	int writable = 0;
	int fd = open(device, O_RDONLY | O_CLOEXEC);

	/* The number outlives the device, and so would a read-only flag. */
	if (fd >= 0)
		ioctl(fd, BLKROSET, &writable);
	close(attached_fd);
	attached_fd = -1;
	if (fd < 0 || ioctl(fd, LOOP_CLR_FD) < 0)
		print_message("%s: not detached: %s\n", device, strerror(errno));
	if (fd >= 0)
		close(fd);
	attached_device[0] = '\0';
}
