/* SPDX-License-Identifier: BSD-3-Clause */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "programs/exit_codes.h"
#include "programs/other_files.h"
#include "ublk/notify.h"
#include "ublk/process.h"
#include "ublk/show.h"
#include "ublk/start.h"

#define STEP_MS 20

/* Says to the keeper how far it is. */
static void tell_keeper(const struct ublk_start *start, unsigned char what)
{
	if (start->keeper && write(start->outcome, &what, 1) != 1)
		warnx("ublk%u: the process that keeps its old server's place does not listen",
			start->id);
}

/* The new server is there, or the old one stays. */
static void dismiss_keeper(struct ublk_start *start)
{
	const unsigned char done = 0;

	if (!start->keeper)
		return;
	if (write(start->outcome, &done, 1) != 1)
		kill(start->keeper, SIGKILL);
	close(start->outcome);
	waitpid(start->keeper, NULL, 0);
	start->keeper = 0;
}

/*
 * Leaves what the disk is served with to those who come after. While users write to the new device,
 * nobody may find the old one.
 */
static int record(void *opaque, uint32_t id)
{
	struct ublk_start *start = opaque;
	int r = ublk_record_write(id, start->cookie, start->directory, start->argv);

	start->recorded = true;
	start->id = id;
	if (r < 0 && start->replaces) {
		warnx(UBLK_RECORD_DIRECTORY "/%u: %s; make it possible to write it", id,
			strerror(-r));
		return r;
	}
	if (r < 0) {
		warnx(UBLK_RECORD_DIRECTORY "/%u: %s; the disk cannot be recovered without it", id,
			strerror(-r));
		ublk_record_remove(id, start->cookie);
	}
	tell_keeper(start, UBLK_TAKING);
	return 0;
}

/* What others had recorded is in its place again. */
static void missed(void *opaque, uint32_t id)
{
	const struct ublk_start *start = opaque;

	if (start->before)
		ublk_record_write(id, start->cookie, start->before->directory, start->before->argv);
}

static void taken(void *opaque)
{
	tell_keeper(opaque, UBLK_TAKEN);
}

static void ready(void *opaque, uint32_t id)
{
	struct ublk_start *start = opaque;
	struct ublksrv_ctrl_dev_info info;
	unsigned char code = (unsigned char)start->code;
	int null;

	dismiss_keeper(start);
	if (start->code)
		warnx("ublk%u: continues as before", id);
	if (start->options->json && ublk_control_info(start->control, id, &info) == 0) {
		ublk_show_disk(&info, true);
		printf("\n");
	} else {
		printf("/dev/ublkb%u\n", id);
	}
	fflush(stdout);
	if (start->report < 0) {
		ublk_notify("READY=1"); /* of a unit of Type=notify */
		return;
	}
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) {
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		close(null);
	}
	if (chdir("/") < 0)
		syslog(LOG_WARNING, "/: %s", strerror(errno));
	/* Interrupted, so that nobody knows of the disk: an orderly end. */
	if (write(start->report, &code, 1) != 1 && start->adds)
		raise(SIGTERM);
	close(start->report);
	start->report = -1;
}

static struct ublk_server_user user_of(struct ublk_start *start)
{
	return (struct ublk_server_user){.taking = record,
		.missed = missed,
		.taken = taken,
		.ready = ready,
		.opaque = start,
		.returns = start->returns,
		.watch = start->watch};
}

/* After the end of service: a disk that is gone needs no record. code is passed through. */
static int forget(const struct ublk_start *start, int code)
{
	struct ublksrv_ctrl_dev_info info;

	if (start->recorded && ublk_control_info(start->control, start->id, &info) == -ENODEV)
		ublk_record_remove(start->id, start->cookie);
	return code;
}

/*
 * Goes to the background: returns in the child, with the pipe on which it is to
 * report. The parent exits with the code that was reported, or with the child's.
 */
static int go_to_background(void)
{
	unsigned char code;
	int ends[2], status;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) < 0 || (child = fork()) < 0) {
		warnx("cannot start a process: %s", strerror(errno));
		exit(EXIT_FAILURE);
	}
	if (child == 0) {
		setsid();
		/* A unit of systemd that starts us and goes on is not ours. */
		unsetenv("NOTIFY_SOCKET");
		/* Nor are the caller's locks, and pipes that somebody reads to their end. We have
		 * nothing else open yet. */
		close_other_files(STDERR_FILENO + 1, ends[1], -1);
		return ends[1];
	}
	close(ends[1]);
	if (read(ends[0], &code, 1) == 1)
		_exit(code);
	if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status))
		_exit(WEXITSTATUS(status));
	warnx("the server died before the disk was ready");
	_exit(EXIT_FAILURE);
}

int ublk_add(const struct ublk_options *o, char *const *argv)
{
	struct ublk_control c;
	struct ublk_start start = {
		.control = &c, .options = o, .argv = argv, .adds = true, .report = -1, .watch = -1};
	int r;

	if (!o->foreground)
		start.report = go_to_background();
	openlog("userblk-ublk", LOG_PID, LOG_DAEMON);
	r = ublk_open_control(&c);
	if (r)
		return r;
	while (start.cookie < UBLK_FIRST_COOKIE) {
		if (getrandom(&start.cookie, sizeof start.cookie, 0) != sizeof start.cookie) {
			warnx("cannot get random numbers: %s", strerror(errno));
			return EXIT_FAILURE;
		}
	}
	const struct ublk_server_user user = user_of(&start);

	return forget(&start, ublk_server_add(&c, o->params, &o->server, start.cookie, &user));
}

/* Serves an existing disk. */
int ublk_take_over(struct ublk_start *start, const struct ublk_options *o)
{
	const struct ublk_server_user user = user_of(start);

	return forget(start, ublk_server_recover(start->control, o->params, &o->server, &user));
}

/*
 * Goes to the directory of relative paths. Where it is gone, to one that is gone as well: they lead
 * nowhere there, and others lead where they did. 0 or negative errno.
 */
static int enter(const char *directory)
{
	static const char gone[] = UBLK_RECORD_DIRECTORY "/gone";
	int r = chdir(directory) < 0 ? -errno : 0;

	if (r == -ENOENT && (mkdir(gone, 0700) == 0 || errno == EEXIST)) {
		r = chdir(gone) < 0 ? -errno : 0;
		rmdir(gone);
	}
	return r;
}

/* What a disk was served with. An exit code. */
int ublk_parse_record(const struct ublk_record *record, uint32_t id, struct ublk_options *o)
{
	struct params_error error;
	int r = enter(record->directory);

	if (r < 0) {
		warnx("%s: %s", record->directory, strerror(-r));
		return EXIT_USAGE;
	}

	/* The parser takes the program's name first, and changes the order. */
	char **argv = calloc((size_t)record->count + 2, sizeof *argv);

	if (!argv)
		return EXIT_FAILURE;
	argv[0] = "userblk-ublk";
	memcpy(argv + 1, record->argv, (size_t)record->count * sizeof *argv);
	r = ublk_options_parse(record->count + 1, argv, o, &error);
	free(argv);
	if (r < 0) {
		warnx("%s", error.text);
		return EXIT_USAGE;
	}
	o->server.id = id;
	return 0;
}

/* Serves a disk with what was recorded. */
int ublk_serve_record(
	struct ublk_start *start, const struct ublk_record *record, const struct ublk_options *o)
{
	start->directory = record->directory;
	start->argv = record->argv;
	return ublk_take_over(start, o);
}

/* What the driver has of a disk that is to outlive its server. An exit code. */
int ublk_examine_survivor(struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info)
{
	int r = ublk_examine(c, id, info);

	if (r)
		return r;
	if (!(info->flags & UBLK_F_USER_RECOVERY))
		warnx("ublk%u: was added with --recovery=none, so that it ends with its server; "
		      "delete it",
			id);
	else if (info->state == UBLK_S_DEV_DEAD)
		warnx("ublk%u: is dead: its server ended before the disk was added, or after it "
		      "was removed; delete it",
			id);
	else
		return 0;
	return EXIT_USAGE;
}

/* Starts a server for an existing disk. */
int ublk_begin_server(struct ublk_start *start, struct ublksrv_ctrl_dev_info *info)
{
	int r;

	if (!start->options->foreground)
		start->report = go_to_background();
	openlog("userblk-ublk", LOG_PID, LOG_DAEMON);
	r = ublk_open_control(start->control);
	return r ? r
		 : ublk_examine_survivor(start->control, (uint32_t)start->options->server.id, info);
}

int ublk_recover(const struct ublk_options *o)
{
	struct ublk_control c;
	struct ublksrv_ctrl_dev_info info;
	struct ublk_start start = {.control = &c, .options = o, .report = -1, .watch = -1};
	struct ublk_record record;
	struct ublk_options old;
	int pidfd, r = ublk_begin_server(&start, &info);

	if (r)
		return r;
	/* A server that was killed may be about to go. */
	for (int waited = 0; info.state == UBLK_S_DEV_LIVE; waited += STEP_MS) {
		if (waited >= UBLK_DEATH_LIMIT_MS) {
			pidfd = ublk_process_of_disk(&info);
			if (pidfd >= 0)
				close(pidfd);
			if (info.ublksrv_pid <= 0)
				warnx("ublk%u: its server is still ending, or runs where it cannot "
				      "be seen from here, such as outside of this container; try "
				      "again, or run this there",
					info.dev_id);
			else if (pidfd == -ESRCH)
				warnx("ublk%u: its server is still ending; try again", info.dev_id);
			else
				warnx("ublk%u: has a server (process %d); stop it first, or use "
				      "replace",
					info.dev_id, info.ublksrv_pid);
			return EXIT_USAGE;
		}
		nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000}, NULL);
		r = ublk_examine_survivor(&c, info.dev_id, &info);
		if (r)
			return r;
	}
	start.cookie = info.ublksrv_flags;
	if (ublk_record_read(info.dev_id, start.cookie, &record) < 0) {
		warnx("ublk%u: its parameters are unknown; use replace or delete", info.dev_id);
		return EXIT_USAGE;
	}
	r = ublk_parse_record(&record, info.dev_id, &old);
	return r ? r : ublk_serve_record(&start, &record, &old);
}
