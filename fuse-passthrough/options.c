/* SPDX-License-Identifier: BSD-3-Clause */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

/* passthrough_hp 3.9.3, which the paper measured, starts a thread whenever all are busy. */
#define DEFAULT_MAX_THREADS 1000
#define LIBFUSE_MAX_THREADS 100000
#define LEAST_WRITE	    4096
#define MOST_WRITE	    1048576
#define DEFAULT_TIMEOUT	    86400.0 /* seconds */

struct options options;

#define OPTION(name, member)                                                                       \
	{"--" name, offsetof(struct options, member), 1},                                          \
	{                                                                                          \
		name, offsetof(struct options, member), 1                                          \
	}
#define VALUE(name, member)                                                                        \
	{"--" name "=%s", offsetof(struct options, member), 0},                                    \
	{                                                                                          \
		name "=%s", offsetof(struct options, member), 0                                    \
	}

/* Each as --NAME, and as -o NAME for mount(8) and fstab(5). */
static const struct fuse_opt option_table[] = {
	OPTION("no-writeback", no_writeback),
	OPTION("nocache", nocache),
	OPTION("nosplice", nosplice),
	OPTION("clone-fd", clone_fd),
	OPTION("passthrough", passthrough),
	VALUE("passthrough", passthrough_when),
	OPTION("io-uring", io_uring),
	VALUE("max-threads", max_threads),
	VALUE("timeout", timeout),
	VALUE("max-write", max_write),
	{"-f", offsetof(struct options, foreground), 1},
	{"--foreground", offsetof(struct options, foreground), 1},
	{"-d", offsetof(struct options, debug), 1},
	{"--debug", offsetof(struct options, debug), 1},
	{"-h", offsetof(struct options, help), 1},
	{"--help", offsetof(struct options, help), 1},
	{"-V", offsetof(struct options, version), 1},
	{"--version", offsetof(struct options, version), 1},
	FUSE_OPT_END,
};

static const char help_text[] =
	"usage: " NAME " [options] SOURCE MOUNTPOINT\n"
	"\n"
	"Shows the directory SOURCE at MOUNTPOINT, through FUSE.\n"
	"\n"
	"    --no-writeback       write through to SOURCE at once\n"
	"    --nocache            cache nothing: the same as --timeout=0\n"
	"    --nosplice           copy data through memory instead of pipes\n"
	"    --clone-fd           a connection to the kernel for each thread\n"
	"    --max-threads=N      at most N threads (1000)\n"
	"    --timeout=SECONDS    how long names and attributes are cached (86400);\n"
	"                         with 0, writes go through at once\n"
	"    --max-write=BYTES    write at most so much with one request (1048576)\n"
	"    --passthrough        the kernel reads and writes SOURCE itself\n"
	"    --passthrough=auto   the same where it is granted\n"
	"    --io-uring           requests and answers through io_uring\n"
	"    -o OPTION[,...]      the same without dashes, or an option of mount(8)\n"
	"    -f, --foreground     stay in the foreground\n"
	"    -d, --debug          the same, and show every request\n"
	"    -h, --help           this text\n"
	"    -V, --version        the version\n";

static int take_argument(void *data, const char *arg, int key, struct fuse_args *rest)
{
	struct options *o = data;

	(void)rest;
	if (key != FUSE_OPT_KEY_NONOPT) {
		/* Options of mount(8) and libfuse come without dash; with one, it is a mistake. */
		if (arg[0] != '-')
			return 1;
		complain("%s: no such option; see " NAME " --help", arg);
		return -1;
	}
	if (!o->source)
		return fuse_opt_add_opt(&o->source, arg);
	if (!o->mount_point)
		return fuse_opt_add_opt(&o->mount_point, arg);
	complain("%s: one argument too many; SOURCE and MOUNTPOINT are enough", arg);
	return -1;
}

/* A number of seconds, or -1. */
static double parse_seconds(const char *text)
{
	char *end;
	double value = strtod(text, &end);

	return end == text || *end || !isfinite(value) || value < 0 || value > 1e9 ? -1 : value;
}

static bool check_write_limit(struct options *o)
{
	char *end;
	unsigned long value;

	if (!o->max_write)
		return true;
	if (!HAVE_WRITE_LIMIT) {
		complain("max-write=%s: this program was built with libfuse %d.%d; build it with "
			 "3.14 or later",
			o->max_write, FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION);
		return false;
	}
	value = strtoul(o->max_write, &end, 10);
	if (end == o->max_write || *end || strchr(o->max_write, '-') || value < LEAST_WRITE ||
		value > MOST_WRITE || value % LEAST_WRITE) {
		complain("max-write=%s: give bytes from %d to %d, a multiple of %d", o->max_write,
			LEAST_WRITE, MOST_WRITE, LEAST_WRITE);
		return false;
	}
	if (o->io_uring || !o->nosplice) {
		complain("max-write=%s: %s", o->max_write,
			o->io_uring ? "contradicts io-uring; leave one of them out"
				    : "needs nosplice; add it");
		return false;
	}
	o->write_limit = (unsigned)value;
	return true;
}

static bool check_options(struct options *o)
{
	o->timeout_seconds = o->nocache ? 0 : DEFAULT_TIMEOUT;
	if (o->timeout) {
		o->timeout_seconds = parse_seconds(o->timeout);
		if (o->timeout_seconds < 0) {
			complain("timeout=%s: give seconds from 0 to 1000000000", o->timeout);
			return false;
		}
		if (o->nocache && o->timeout_seconds > 0) {
			complain("timeout=%s: contradicts nocache; leave one of them out",
				o->timeout);
			return false;
		}
	}
	o->thread_count = HAVE_THREAD_LIMIT ? DEFAULT_MAX_THREADS : 0;
	if (o->max_threads && !HAVE_THREAD_LIMIT) {
		complain("max-threads=%s: this program was built with libfuse %d.%d; build it with "
			 "3.12 or later",
			o->max_threads, FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION);
		return false;
	}
	if (o->max_threads) {
		char *end;
		unsigned long value = strtoul(o->max_threads, &end, 10);

		if (end == o->max_threads || *end || strchr(o->max_threads, '-') || value < 1 ||
			value > LIBFUSE_MAX_THREADS) {
			complain("max-threads=%s: give a number from 1 to %d", o->max_threads,
				LIBFUSE_MAX_THREADS);
			return false;
		}
		o->thread_count = (unsigned)value;
	}
	if (!check_write_limit(o))
		return false;
	if (o->passthrough_when && strcmp(o->passthrough_when, "auto") != 0) {
		complain("passthrough=%s: give auto, or no value", o->passthrough_when);
		return false;
	}
	if (o->passthrough && !HAVE_PASSTHROUGH) {
		complain("passthrough: this program was built with libfuse %d.%d; build it with "
			 "3.17 or later",
			FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION);
		return false;
	}
	if (o->io_uring && !HAVE_OWN_RINGS && !HAVE_LIBFUSE_RINGS) {
		complain("io-uring: this program was built with libfuse %d.%d and without "
			 "liburing; install liburing-dev and build it again",
			FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION);
		return false;
	}
	if (!o->source || !o->mount_point) {
		complain("%s is missing; see " NAME " --help", o->source ? "MOUNTPOINT" : "SOURCE");
		return false;
	}
	return true;
}

bool options_read(struct fuse_args *args)
{
	if (fuse_opt_parse(args, &options, option_table, take_argument) == -1)
		return false;
	return options.help || options.version || check_options(&options);
}

void options_print_help(void)
{
	fputs(options.help ? help_text : NAME " " USERBLK_VERSION "\n", stdout);
	if (options.version && !options.help)
		printf("libfuse %s\n", fuse_pkgversion());
}

void options_free(void)
{
	free(options.source);
	free(options.mount_point);
	free(options.max_threads);
	free(options.timeout);
	free(options.max_write);
	free(options.passthrough_when);
}
