/* SPDX-License-Identifier: BSD-3-Clause */
#include "begin.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
