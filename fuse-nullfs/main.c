/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "names.h"
#include "nullfs.h"
#include "programs/exit_codes.h"
#include "programs/standard_files.h"

#define NAME	     "userblk-nullfs"
#define MAX_SIZE     (1LL << 60)
#define DEFAULT_SIZE (1LL << 30)

const char session_name[] = NAME;

static struct options {
	struct session_options session;
	char *files;
	char *size;
	/* What they say. */
	unsigned long file_count;
	off_t file_size;
} options;

static_assert(offsetof(struct options, session) == 0, "SESSION_OPTION_TABLE counts on it");

static const struct fuse_opt option_table[] = {
	SESSION_OPTION_TABLE,
	OPTION_VALUE(struct options, "files", files),
	OPTION_VALUE(struct options, "size", size),
	FUSE_OPT_END,
};

static const char help_before[] = "usage: " NAME " [options] MOUNTPOINT\n"
				  "\n"
				  "Mounts a file system that stores names but no data: reads "
				  "return zeroes, writes are discarded.\n"
				  "\n";

static const char help_own[] =
	"    --files=N            start with N files, file-0, file-1, ... (0)\n"
	"    --size=BYTES         size of each of these, with K, M, G or T (1G)\n";

static int take_argument(void *data, const char *arg, int key, struct fuse_args *rest)
{
	struct options *o = data;
	char **const operands[] = {&o->session.mount_point, NULL};

	(void)rest;
	return session_option_rest(arg, key, operands, "MOUNTPOINT");
}

/* A number of bytes, or -1. */
static long long parse_size(const char *text)
{
	static const char units[] = "KMGT";
	const char *unit;
	char *end;
	long long value;

	if (!isdigit((unsigned char)text[0]))
		return -1;
	errno = 0;
	value = strtoll(text, &end, 10);
	unit = *end ? strchr(units, *end) : NULL;
	if (errno || (*end && (!unit || end[1])))
		return -1;
	for (ptrdiff_t i = unit ? unit - units : -1; i >= 0; i--) {
		if (value > MAX_SIZE >> 10)
			return -1;
		value <<= 10;
	}
	return value > MAX_SIZE ? -1 : value;
}

static bool check_options(struct options *o)
{
	char *end;

	if (!session_options_check(&o->session))
		return false;
	o->file_count = o->files ? strtoul(o->files, &end, 10) : 0;
	if (o->files &&
		(!isdigit((unsigned char)o->files[0]) || *end || o->file_count > MAX_FILES)) {
		session_warn("files=%s: give a number from 0 to %d", o->files, MAX_FILES);
		return false;
	}
	o->file_size = o->size ? parse_size(o->size) : DEFAULT_SIZE;
	if (o->file_size < 0) {
		session_warn("size=%s: give bytes up to 2^60, as in 4096, 64K or 1G", o->size);
		return false;
	}
	if (!o->session.mount_point) {
		session_warn("MOUNTPOINT is missing; see " NAME " --help");
		return false;
	}
	return true;
}

static void negotiate(struct fuse_conn_info *conn)
{
#if HAVE_PARALLEL_WRITES
	nullfs.direct_mmap = session_want(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	/* A handle of this mount would not survive it. */
	session_want(conn, FUSE_CAP_NO_EXPORT_SUPPORT);
#else
	(void)conn;
#endif
}

static int tell(char *text, size_t size)
{
	return snprintf(text, size, " files=%lu size=%lld", options.file_count,
		(long long)options.file_size);
}

int main(int argc, char *argv[])
{
	struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
	struct session_program program = {.negotiate = negotiate, .tell = tell};
	int status = EXIT_USAGE, result = 0;

	open_standard_files();
	if (fuse_opt_parse(&args, &options, option_table, take_argument) == -1)
		goto out;
	if (options.session.help || options.session.version) {
		if (options.session.help)
			session_print_help(help_before, help_own);
		else
			session_print_version();
		status = EXIT_SUCCESS;
		goto out;
	}
	if (!check_options(&options) || !session_check_mount_point(&options.session))
		goto out;
	result = files_make(options.file_count, options.file_size);
	if (result == 0)
		result = files_open();
	if (result < 0) {
		session_warn("cannot start: %s", strerror(-result));
		status = EXIT_FAILURE;
		goto out;
	}
	files_operations(&program.operations);
	status = session_run(&args, &options.session, NAME, &program);
out:
	names_destroy();
	fuse_opt_free_args(&args);
	session_options_free(&options.session);
	free(options.files);
	free(options.size);
	return status;
}
