/* SPDX-License-Identifier: BSD-3-Clause */
#include "begin.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define COMPLAINT_LENGTH 256

/* What libfuse complains of while it reads the options. */
static char complaint[COMPLAINT_LENGTH];

static void keep_complaint(enum fuse_log_level level, const char *format, va_list args)
{
	size_t length = strlen(complaint);

	if (level <= FUSE_LOG_ERR)
		vsnprintf(complaint + length, sizeof(complaint) - length, format, args);
	else
		vfprintf(stderr, format, args);
}

/*
 * libfuse has no function that names what it does not know, and frees the arguments when it fails:
 * only its complaint has it. One in other words than those below is passed on.
 */
static void tell(const char *name)
{
	static const char of_libfuse[] = "fuse: ", unknown[] = "unknown option(s): `-o ";
	const char *text = complaint;

	text += strncmp(text, of_libfuse, strlen(of_libfuse)) == 0 ? strlen(of_libfuse) : 0;
	if (strncmp(text, unknown, strlen(unknown)) == 0) {
		text += strlen(unknown);
		fprintf(stderr,
			"%s: %.*s: no such option; leave it out, or see %s --help and "
			"mount.fuse3(8)\n",
			name, (int)strcspn(text, "'\n"), text, name);
	} else {
		fprintf(stderr, "%s: %.*s; see %s --help and mount.fuse3(8)\n", name,
			(int)strcspn(text, "\n"), *text ? text : "libfuse cannot start", name);
	}
}

struct fuse_session *session_begin(const char *name, struct fuse_args *args,
	const struct fuse_lowlevel_ops *ops, void *data, fuse_log_func_t log)
{
	struct fuse_session *session;

	fuse_set_log_func(keep_complaint);
	session = fuse_session_new(args, ops, sizeof(*ops), data);
	fuse_set_log_func(log);
	if (session)
		fputs(complaint, stderr);
	else
		tell(name);
	return session;
}

static const int signals[] = {SIGHUP, SIGINT, SIGTERM}; /* that end a session */

int session_set_signal_handlers(struct fuse_session *session)
{
	sigset_t all, before;
	int result;

	sigemptyset(&all);
	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		sigaddset(&all, signals[i]);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	result = fuse_set_signal_handlers(session);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return result;
}

void session_ignore_signals(void)
{
	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		signal(signals[i], SIG_IGN);
}

static dev_t own_device; /* of the mount; 0: unknown */

/*
 * The device of what is mounted at mount_point, or 0. Asks nobody who serves it: that may be this
 * process, which does not at the time.
 */
static dev_t device_at(const char *mount_point)
{
	struct statx stx;

	if (statx(AT_FDCWD, mount_point, AT_STATX_DONT_SYNC, 0, &stx) == -1)
		return 0;
	return makedev(stx.stx_dev_major, stx.stx_dev_minor);
}

int session_mount(struct fuse_session *session, const char *mount_point)
{
	int result = fuse_session_mount(session, mount_point);

	own_device = result == 0 ? device_at(mount_point) : 0;
	return result;
}

int session_unmount(struct fuse_session *session, const char *mount_point, int result)
{
	/* Before it unmounts: libfuse may wait for umount(8), and gives up when a signal comes. */
	session_ignore_signals();
	if (own_device == 0 || device_at(mount_point) == own_device)
		fuse_session_unmount(session);
	fuse_remove_signal_handlers(session);
	/* To a thread that took a request at that moment, the kernel says this of an unmount. */
	return result == -ECONNABORTED ? 0 : result;
}
