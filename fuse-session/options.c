/* SPDX-License-Identifier: BSD-3-Clause */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

/* passthrough_hp 3.9.3, which the paper measured, starts a thread whenever all are busy. */
#define DEFAULT_MAX_THREADS 1000
#define LIBFUSE_MAX_THREADS 100000
#define LEAST_LIMIT	    4096 /* of one read or write */
#define MOST_LIMIT	    1048576
#define KERNEL_READ	    131072  /* what it reads at once unless told otherwise: 32 pages */
#define DEFAULT_TIMEOUT	    86400.0 /* seconds */

static const char help_modes[] =
	"    --no-writeback       write through at once\n"
	"    --nocache            cache nothing: the same as --timeout=0\n"
	"    --nosplice           copy data through memory instead of pipes\n"
	"    --clone-fd           give each thread its own connection to the kernel\n"
	"    --max-threads=N      at most N threads (1000)\n"
	"    --timeout=SECONDS    how long names and attributes are cached (86400);\n"
	"                         with 0, writes go through at once\n"
	"    --max-write=BYTES    most bytes of one write request (1048576)\n"
	"    --io-uring           exchange requests and answers through io_uring\n";

static const char help_rest[] =
	"    -o OPTION[,...]      an option above without dashes, or of mount(8)\n"
	"    -f, --foreground     stay in the foreground\n"
	"    -d, --debug          stay in the foreground, and show every request\n"
	"    -h, --help           show this text\n"
	"    -V, --version        show the version\n";

static int take_operand(const char *arg, char **const operands[], const char *names)
{
	for (; *operands; operands++)
		if (!**operands)
			return fuse_opt_add_opt(*operands, arg);
	session_warn("%s: one argument too many; give %s only", arg, names);
	return -1;
}

/*
 * Whether it is for who mounts and not for the file system, or what the kernel does anyway.
 * mount(8) takes most of them away; a line of fstab(5) or of /proc/mounts has them all.
 */
static bool means_nothing_here(const char *option)
{
	static const char *const whole[] = {
		"defaults", "auto", "noauto", "nouser", "nofail", "_netdev", "relatime"};
	static const char *const beginnings[] = {"x-", "X-", "comment="};

	for (size_t i = 0; i < sizeof(whole) / sizeof(*whole); i++)
		if (strcmp(option, whole[i]) == 0)
			return true;
	for (size_t i = 0; i < sizeof(beginnings) / sizeof(*beginnings); i++)
		if (strncmp(option, beginnings[i], strlen(beginnings[i])) == 0)
			return true;
	return false;
}

int session_option_rest(const char *arg, int key, char **const operands[], const char *names)
{
	if (key == FUSE_OPT_KEY_NONOPT)
		return take_operand(arg, operands, names);
	if (means_nothing_here(arg))
		return 0;
	/* Options of mount(8) and libfuse come without dash; with one, it is a mistake. */
	if (arg[0] != '-')
		return 1;
	session_warn("%s: no such option; see %s --help", arg, session_name);
	return -1;
}

/* A number of seconds, or -1. */
static double parse_seconds(const char *text)
{
	char *end;
	double value = strtod(text, &end);

	return end == text || *end || !isfinite(value) || value < 0 || value > 1e9 ? -1 : value;
}

/* The bytes of the option name=text, or 0, which has been reported. */
static unsigned parse_limit(const char *name, const char *text)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (end != text && !*end && !strchr(text, '-') && value >= LEAST_LIMIT &&
		value <= MOST_LIMIT && value % LEAST_LIMIT == 0)
		return (unsigned)value;
	session_warn("%s=%s: give bytes from %d to %d, a multiple of %d", name, text, LEAST_LIMIT,
		MOST_LIMIT, LEAST_LIMIT);
	return 0;
}

static bool check_write_limit(struct session_options *o)
{
	if (!o->max_write)
		return true;
	o->write_limit = parse_limit("max-write", o->max_write);
	if (!o->write_limit)
		return false;
	if (o->io_uring) {
		session_warn(
			"max-write=%s: contradicts io-uring; leave one of them out", o->max_write);
		return false;
	}
	if (!session_limits_reads(o))
		return true;
	if (!HAVE_WRITE_LIMIT) {
		session_warn("max-write=%s: this program was built with libfuse %d.%d; give %d or "
			     "more, or build it with 3.14 or later",
			o->max_write, FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION, KERNEL_READ);
		return false;
	}
	if (!o->nosplice) {
		session_warn("max-write=%s: needs nosplice below %d; add it, or give more",
			o->max_write, KERNEL_READ);
		return false;
	}
	return true;
}

bool session_limits_reads(const struct session_options *o)
{
	return o->write_limit && o->write_limit < KERNEL_READ;
}

static bool check_read_limit(struct session_options *o)
{
	if (o->max_read)
		o->read_limit = parse_limit("max_read", o->max_read);
	return !o->max_read || o->read_limit;
}

bool session_options_check(struct session_options *o)
{
	o->foreground = o->foreground || o->debug;
	o->timeout_seconds = o->nocache ? 0 : DEFAULT_TIMEOUT;
	if (o->timeout) {
		o->timeout_seconds = parse_seconds(o->timeout);
		if (o->timeout_seconds < 0) {
			session_warn("timeout=%s: give seconds from 0 to 1000000000", o->timeout);
			return false;
		}
		if (o->nocache && o->timeout_seconds > 0) {
			session_warn("timeout=%s: contradicts nocache; leave one of them out",
				o->timeout);
			return false;
		}
	}
	o->thread_count = HAVE_THREAD_LIMIT ? DEFAULT_MAX_THREADS : 0;
	if (o->max_threads && !HAVE_THREAD_LIMIT) {
		session_warn(
			"max-threads=%s: this program was built with libfuse %d.%d; build it with "
			"3.12 or later",
			o->max_threads, FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION);
		return false;
	}
	if (o->max_threads) {
		char *end;
		unsigned long value = strtoul(o->max_threads, &end, 10);

		if (end == o->max_threads || *end || strchr(o->max_threads, '-') || value < 1 ||
			value > LIBFUSE_MAX_THREADS) {
			session_warn("max-threads=%s: give a number from 1 to %d", o->max_threads,
				LIBFUSE_MAX_THREADS);
			return false;
		}
		o->thread_count = (unsigned)value;
	}
	if (!check_write_limit(o) || !check_read_limit(o))
		return false;
	if (o->io_uring && !HAVE_OWN_RINGS && !HAVE_LIBFUSE_RINGS) {
		session_warn("io-uring: this program was built with libfuse %d.%d and without "
			     "liburing; install liburing-dev and build it again",
			FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION);
		return false;
	}
	return true;
}

void session_print_help(const char *before, const char *own)
{
	fputs(before, stdout);
	fputs(help_modes, stdout);
	fputs(own, stdout);
	fputs(help_rest, stdout);
}

void session_print_version(void)
{
	printf("%s " USERBLK_VERSION "\nlibfuse %s\n", session_name, fuse_pkgversion());
}

void session_options_free(struct session_options *o)
{
	free(o->mount_point);
	free(o->max_threads);
	free(o->timeout);
	free(o->max_write);
	free(o->max_read);
}
