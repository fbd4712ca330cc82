/* SPDX-License-Identifier: BSD-3-Clause */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "programs/exit_codes.h"
#include "ublk/process.h"
#include "ublk/replace.h"
#include "ublk/show.h"
#include "ublk/start.h"

#define STEP_MS 20

/*
 * Seconds that the old server of a disk may take to answer what it has, and once more to die, and
 * how often the kernel is asked to end it.
 */
#define END_LIMIT 30
#define AGAIN_MS  100

/*
 * Would another server cost requests of a disk that lives, or is there no way back? An exit code;
 * 0: neither, and record and old are what it was served with so far.
 */
static int check_replaceable(const struct ublksrv_ctrl_dev_info *info, struct ublk_record *record,
	struct ublk_options *old)
{
	int here, r;

	if (ublk_record_read(info->dev_id, info->ublksrv_flags, record) < 0) {
		warnx("ublk%u: its parameters are unknown, so that it could not be served as "
		      "before; end its server (process %d) first if this program has added it",
			info->dev_id, info->ublksrv_pid);
		return EXIT_USAGE;
	}
	/* The new one's paths are absolute already; its record has this directory. */
	here = open(".", O_PATH | O_CLOEXEC);
	r = ublk_parse_record(record, info->dev_id, old);
	if (here >= 0 && fchdir(here) < 0 && r == 0)
		r = EXIT_FAILURE;
	if (here >= 0)
		close(here);
	if (r)
		return r;
	if (info->flags & UBLK_F_USER_RECOVERY_REISSUE)
		return 0;
	if (info->flags & UBLK_F_USER_RECOVERY_FAIL_IO)
		warnx("ublk%u: was added with --recovery=fail-all, so that its requests would fail "
		      "meanwhile; replace needs --recovery=reissue",
			info->dev_id);
	else if (!(info->flags & UBLK_F_QUIESCE))
		warnx("ublk%u: this kernel would fail the requests under way; "
		      "replace needs --recovery=reissue",
			info->dev_id);
	else
		return 0;
	return EXIT_USAGE;
}

/*
 * The server of a disk that lives, in *pidfd; negative: the disk no longer lives. Its number is
 * what it told the kernel, which before Linux 6.16 may be that of another process: in a container
 * processes have numbers of their own. An exit code.
 */
static int find_server(struct ublk_control *c, struct ublksrv_ctrl_dev_info *info, int *pidfd)
{
	for (int waited = 0;; waited += STEP_MS) {
		int r;

		*pidfd = ublk_process_of_disk(info);
		if (*pidfd >= 0 || info->state != UBLK_S_DEV_LIVE)
			return 0;
		/* One that is just ending has closed its files before; once it has ended, its
		 * io_uring may still wait for requests. */
		if (waited >= (*pidfd == -ESRCH ? END_LIMIT * 1000 : UBLK_DEATH_LIMIT_MS)) {
			if (*pidfd != -ESRCH && *pidfd != -ENXIO)
				warnx("ublk%u: its server (process %d) cannot be looked for: %s",
					info->dev_id, info->ublksrv_pid, strerror(-*pidfd));
			else if (info->ublksrv_pid <= 0)
				warnx("ublk%u: its server has ended, but the kernel still waits "
				      "for what it had, or runs where it cannot be seen from here, "
				      "such as outside of this container; try again, or run this "
				      "there",
					info->dev_id);
			else
				warnx("ublk%u: its server is not found: it called itself process "
				      "%d, and no process of that number has the disk here; if it "
				      "is just ending, try again, otherwise run this where the "
				      "server runs, such as in its container",
					info->dev_id, info->ublksrv_pid);
			return EXIT_USAGE;
		}
		nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000}, NULL);
		r = ublk_examine_survivor(c, info->dev_id, info);
		if (r)
			return r;
	}
}

/*
 * Has the server of a disk that lives end, which answers what it has before, and waits for that;
 * patient: for as long as it takes. One that cannot be told (see ublk_control_quiesce(), and older
 * kernels) is killed, and so is one that takes long: what it had is issued again. 0 or an exit
 * code.
 */
static int end_server(
	struct ublk_control *c, const struct ublksrv_ctrl_dev_info *info, int pidfd, bool patient)
{
	bool reissues = info->flags & UBLK_F_USER_RECOVERY_REISSUE, killed = false;
	time_t begun = ublk_seconds();

	for (int wait = 0; !ublk_process_has_ended(pidfd, wait); wait = AGAIN_MS) {
		time_t waited = ublk_seconds() - begun;
		int r = 0;

		if (!patient && waited >= 2 * END_LIMIT) {
			warnx("ublk%u: its server (process %d) does not end", info->dev_id,
				info->ublksrv_pid);
			return EXIT_FAILURE;
		}
		if (!killed)
			r = info->flags & UBLK_F_QUIESCE ? ublk_control_quiesce(c, info->dev_id)
							 : -EOPNOTSUPP;
		if (r == -ENODEV) {
			warnx("ublk%u: no such disk", info->dev_id);
			return EXIT_FAILURE;
		}
		if ((r < 0 && reissues) || (waited >= END_LIMIT && (r < 0 || reissues))) {
			syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
			killed = true;
		}
	}
	return 0;
}

/* Unless it has been deleted, or another process was faster. */
static void tell_without_server(struct ublk_control *c, uint32_t id)
{
	struct ublksrv_ctrl_dev_info info;

	if (ublk_control_info(c, id, &info) == 0 && info.state != UBLK_S_DEV_LIVE)
		warnx("ublk%u: has no server; use recover", id);
}

/*
 * Forks a process that serves the disk as before, as record has it, if this one does not tell, by
 * its end of the pipe, that the new server is there: also when it is killed. The old server has to
 * end first, however long that takes: it may have been told to. report: where it says that it
 * serves.
 */
static pid_t keep_the_old(struct ublk_start *start, const struct ublksrv_ctrl_dev_info *info,
	const struct ublk_record *record, const struct ublk_options *o, int pidfd,
	const int outcome[2], int report)
{
	struct ublk_start old = {.options = start->options,
		.cookie = start->cookie,
		.report = report,
		.returns = true,
		.watch = backend_watch(o->params)};
	struct ublk_control c;
	unsigned char code = EXIT_FAILURE;
	bool taking = false;
	pid_t child = fork();
	int r;

	if (child != 0 && old.watch >= 0)
		close(old.watch);
	if (child != 0)
		return child;
	setsid();
	close(outcome[1]);
	ublk_control_close(start->control); /* the other's */
	while (read(outcome[0], &code, 1) == 1) {
		if (code == 0)
			_exit(0);
		taking = code == UBLK_TAKING;
		if (code != UBLK_TAKING && code != UBLK_TAKEN)
			break;
	}
	/* Another server would make the driver fall over what is left of this one's queues. */
	if (taking && !(info->flags & UBLK_F_QUIESCE)) {
		warnx("ublk%u: its new server died in the moment in which it took over; before "
		      "Linux 6.16 no server can have the disk then: restart the machine",
			info->dev_id);
		_exit(EXIT_FAILURE);
	}
	if (code == UBLK_TAKEN || code == UBLK_TAKING)
		code = EXIT_FAILURE;
	close(outcome[0]);
	old.control = &c;
	old.code = code;
	if (ublk_open_control(&c) != 0)
		_exit(EXIT_FAILURE);
	r = end_server(&c, info, pidfd, true);
	if (r == 0)
		r = ublk_serve_record(&old, record, o);
	/* Otherwise the process that waits for this one says so. */
	if (r && !start->options->foreground)
		tell_without_server(&c, info->dev_id);
	_exit(r);
}

int ublk_replace(const struct ublk_options *o, char *const *argv)
{
	struct ublk_control c;
	struct ublksrv_ctrl_dev_info info;
	struct ublk_start start = {.control = &c,
		.options = o,
		.argv = argv,
		.replaces = true,
		.report = -1,
		.watch = -1};
	struct ublk_record record;
	struct ublk_options old;
	int outcome[2], ends[2] = {-1, -1}, pidfd, r = ublk_begin_server(&start, &info);
	unsigned char code;

	if (r)
		return r;
	start.cookie = info.ublksrv_flags;
	if (info.state != UBLK_S_DEV_LIVE) {
		if (ublk_record_read(info.dev_id, start.cookie, &record) == 0) {
			start.before = &record;
		} else if (!ublk_server_knows(info.flags)) {
			warnx("ublk%u: has features of ublk that only the program that added it "
			      "can serve; use that program",
				info.dev_id);
			return EXIT_USAGE;
		}
		return ublk_take_over(&start, o);
	}
	r = check_replaceable(&info, &record, &old);
	if (r == 0)
		r = find_server(&c, &info, &pidfd);
	if (r)
		return r;
	if (pipe2(outcome, O_CLOEXEC) < 0 || (o->foreground && pipe2(ends, O_CLOEXEC) < 0) ||
		(start.keeper = keep_the_old(&start, &info, &record, &old, pidfd, outcome,
			 o->foreground ? ends[1] : start.report)) < 0) {
		warnx("cannot start a process: %s", strerror(errno));
		return EXIT_FAILURE;
	}
	close(outcome[0]);
	if (o->foreground)
		close(ends[1]);
	start.outcome = outcome[1];
	start.watch = backend_watch(o->params);
	r = end_server(&c, &info, pidfd, false);
	if (pidfd >= 0)
		close(pidfd);
	if (r == 0)
		r = ublk_take_over(&start, o);
	if (!start.keeper)
		return r;
	code = (unsigned char)r;
	if (write(start.outcome, &code, 1) == 1 && o->foreground && read(ends[0], &code, 1) != 1)
		tell_without_server(&c, info.dev_id);
	return r;
}
