/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * userblk-fuse-disk: a device as a regular file, through FUSE. The mount point is a
 * file itself, so that there is no directory and no other file in between.
 */
#include <err.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/program.h"
#include "fuse-disk/disk.h"
#include "fuse-session/begin.h"
#include "programs/exit_codes.h"
#include "programs/standard_files.h"

#define NAME "userblk-fuse-disk"

#define DEFAULT_THREADS 16 /* as under nbdkit and tcmu-runner */
#define MAX_THREADS	1024

/*
 * Requests of io_uring and libaio that the kernel lets come at once, as many as the queues of the
 * kernel's nbd and tcmu drivers hold; its default is 12.
 */
#define MAX_BACKGROUND 128

/* Since which protocol (Linux 6.2) the kernel lets direct writes to a file run side by side. */
#define PARALLEL_WRITES_PROTOCOL 38

struct options {
	const char *mount_point;
	bool clone_fd;
	long threads;
	struct params *params;
	struct fuse_args session; /* options for libfuse */
};

/* The session's user data. */
struct server {
	struct disk disk; /* first: see operations.c */
	const struct options *options;
};

/* ---- options ---------------------------------------------------------------------- */

static void print_help(void)
{
	printf("Usage: " NAME " [OPTION]... MOUNTPOINT DEVICE [KEY=VALUE]...\n"
	       "Shows a block device as the regular file MOUNTPOINT, through FUSE, until a signal "
	       "ends it.\n"
	       "\nOptions:\n"
	       "    --max-threads=N\n        at most N threads (default: %d)\n"
	       "    --clone-fd\n        give each thread its own connection to the kernel\n"
	       "    -o OPTION[,...]\n        options of mount(8) and libfuse, such as allow_other\n"
	       "    --help\n        show this text\n"
	       "    --version\n        show the version\n",
		DEFAULT_THREADS);
	params_print_devices();
}

/* The options for libfuse. False: out of memory. */
static bool add(struct options *o, const char *option)
{
	return fuse_opt_add_arg(&o->session, "-o") == 0 &&
	       fuse_opt_add_arg(&o->session, option) == 0;
}

/* False: MOUNTPOINT cannot be one, which was reported. */
static bool check_mount_point(const char *path)
{
	struct stat st;

	if (!path)
		warnx("MOUNTPOINT: missing; name a regular file to mount on");
	else if (stat(path, &st) < 0)
		warnx("%s: %s; %s", path, strerror(errno),
			errno == ENOTCONN ? "unmount the leftover mount of a killed server"
					  : "MOUNTPOINT must be a regular file");
	else if (!S_ISREG(st.st_mode))
		warnx("%s: not a regular file; name one to mount on", path);
	else
		return true;
	return false;
}

/* -1: go on; else an exit code. */
static int parse(int argc, char **argv, struct options *o)
{
	static const struct option table[] = {
		{"max-threads", required_argument, NULL, 't'},
		{"clone-fd", no_argument, NULL, 'c'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{0},
	};
	struct params_error error;
	int got;

	opterr = 0;
	while ((got = getopt_long(argc, argv, ":o:", table, NULL)) != -1) {
		switch (got) {
		case 't':
			if (!program_number("max-threads", optarg, 1, MAX_THREADS, &o->threads))
				return EXIT_USAGE;
			break;
		case 'c':
			o->clone_fd = true;
			break;
		case 'o':
			if (!add(o, optarg))
				return EXIT_FAILURE;
			break;
		case 'h':
			print_help();
			return 0;
		case 'V':
			printf(NAME " %s\nlibfuse %s\n", USERBLK_VERSION, fuse_pkgversion());
			return 0;
		default:
			return program_wrong_option(got, argv[optind - 1]);
		}
	}
	o->mount_point = argv[optind];
	if (!check_mount_point(o->mount_point))
		return EXIT_USAGE;
	o->params = params_from_argv(argv + optind + 1, &error);
	if (!o->params) {
		warnx("%s", error.text);
		return EXIT_USAGE;
	}
	return -1;
}

/* ---- the session ------------------------------------------------------------------ */

static const char *state(bool granted)
{
	return granted ? "on" : "refused";
}

/* The mount is there; its users wait until this was answered. */
static void disk_init(void *opaque, struct fuse_conn_info *conn)
{
	const struct server *s = opaque;

	conn->max_background = MAX_BACKGROUND;
	dprintf(STDOUT_FILENO,
		NAME ": ready libfuse=%s protocol=7.%u size=%" PRIu64 " readonly=%s clone-fd=%s "
		     "max-threads=%ld parallel-writes=%s async-dio=%s max-background=%d "
		     "max-write=%u\n",
		fuse_pkgversion(), conn->proto_minor, s->disk.info.size,
		s->disk.info.readonly ? "on" : "off", s->options->clone_fd ? "on" : "off",
		s->options->threads, state(conn->proto_minor >= PARALLEL_WRITES_PROTOCOL),
		state(conn->capable & FUSE_CAP_ASYNC_DIO), MAX_BACKGROUND, conn->max_write);
}

/* Serves the mounted session until it ends: 0, a signal, or a negative errno. */
static int loop(struct fuse_session *session, const struct options *o)
{
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	int r;

	if (!config)
		return -ENOMEM;
	fuse_loop_cfg_set_clone_fd(config, o->clone_fd);
	fuse_loop_cfg_set_max_threads(config, (unsigned)o->threads);
	r = fuse_session_loop_mt(session, config);
	fuse_loop_cfg_destroy(config);
	return r;
}

/* Serves an open device until it is unmounted. Returns an exit code. */
static int mount_and_serve(
	struct fuse_session *session, const struct options *o, struct backend *device)
{
	int r;

	if (session_set_signal_handlers(session, NULL) != 0) {
		warnx("cannot handle signals");
		return EXIT_FAILURE;
	}
	/* libfuse tells why not. */
	if (session_mount(session, o->mount_point) != 0)
		return EXIT_FAILURE;
	backend_start(device);
	r = session_unmount(session, o->mount_point, loop(session, o));
	if (r < 0)
		warnx("%s: the connection to the kernel failed: %s", o->mount_point, strerror(-r));
	return r < 0 ? EXIT_FAILURE : 0; /* a signal is a way to end */
}

/* An exit code. */
static int serve(struct options *o)
{
	struct server server = {.options = o};
	struct disk *disk = &server.disk;
	struct fuse_lowlevel_ops ops = {.init = disk_init};
	struct fuse_session *session;
	int r = disk_prepare(disk, &ops);

	if (r < 0) {
		warnx("cannot start: %s", strerror(-r));
		return EXIT_FAILURE;
	}
	/* Before the device, which may make a file: a mistake of -o makes none. */
	session = session_begin(NAME, &o->session, &ops, &server, NULL);
	if (!session)
		return EXIT_USAGE;
	r = program_open(o->params, &disk->device);
	if (r == 0) {
		r = backend_info(disk->device, &disk->info);
		if (r < 0) {
			warnx("cannot examine the device: %s", strerror(-r));
			r = EXIT_FAILURE;
		} else {
			r = mount_and_serve(session, o, disk->device);
			program_tell_counters(disk->device);
		}
	}
	session_ignore_signals(); /* if it was never mounted */
	fuse_session_destroy(session);
	session_end_signals();
	if (disk->device && backend_close(disk->device) < 0)
		r = EXIT_FAILURE;
	return r;
}

int main(int argc, char **argv)
{
	struct options o = {.threads = DEFAULT_THREADS, .session = FUSE_ARGS_INIT(0, NULL)};
	int r = EXIT_FAILURE;

	open_standard_files();
	if (fuse_opt_add_arg(&o.session, NAME) == 0 &&
		add(&o, "fsname=" NAME ",subtype=" NAME ",default_permissions"))
		r = parse(argc, argv, &o);
	if (r < 0)
		r = serve(&o);
	params_free(o.params);
	fuse_opt_free_args(&o.session);
	return r;
}
