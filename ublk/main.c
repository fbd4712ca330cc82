/* SPDX-License-Identifier: BSD-3-Clause */
/* userblk-ublk: serves, lists and removes disks of Linux's ublk driver. */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "programs/exit_codes.h"
#include "programs/standard_files.h"
#include "ublk/disk.h"
#include "ublk/options.h"
#include "ublk/process.h"
#include "ublk/record.h"
#include "ublk/show.h"
#include "ublk/stopping.h"

/* For how long a server that was killed may be seen as living. */
#define PATIENCE_MS 3000
#define STEP_MS	    20

/*
 * Seconds that the old server of a disk may take to answer what it has, and once more to die, and
 * how often the kernel is asked to end it.
 */
#define END_LIMIT 30
#define AGAIN_MS  100

/* Seconds that a request may take when a disk is written back before it is deleted. */
#define REQUEST_LIMIT 300

static time_t seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec;
}

static int open_control(struct ublk_control *c)
{
	int r = ublk_control_open(c);

	switch (-r) {
	case 0:
		return 0;
	case ENOENT:
	case ENXIO:
	case ENODEV:
		warnx(UBLK_CONTROL_PATH ": does not exist; run: modprobe ublk_drv");
		break;
	case EACCES:
	case EPERM:
		warnx(UBLK_CONTROL_PATH ": %s; run as root", strerror(-r));
		break;
	case ENOSYS:
		warnx("io_uring: not allowed by this machine or container; see the sysctl "
		      "kernel.io_uring_disabled");
		break;
	case EOPNOTSUPP:
		warnx(UBLK_CONTROL_PATH ": this kernel's ublk is too old; run Linux 6.5 or later");
		break;
	default:
		warnx(UBLK_CONTROL_PATH ": %s", strerror(-r));
	}
	return EXIT_FAILURE;
}

/* ---- the end of a disk --------------------------------------------------------------- */

static bool never(void *opaque)
{
	(void)opaque;
	return false;
}

/* Has the command just begun? That long, the device is taken to work on what it has. */
static bool is_early(void *opaque)
{
	const time_t *begun = opaque;

	return seconds() - *begun < REQUEST_LIMIT;
}

/* Writes back what the kernel has in memory; what cannot be is lost with --force only. An exit
 * code. */
static int write_back(const struct ublk_options *o, bool in_use, bool *lost)
{
	uint32_t id = (uint32_t)o->server.id;
	time_t begun = seconds();
	const struct ublk_patience patience = {
		.over = never,
		.works = o->force ? NULL : is_early,
		.opaque = &begun,
		.forced = o->force,
	};
	int r = ublk_disk_sync(id, in_use, &patience);

	*lost = r < 0;
	if (r == 0)
		return 0;
	if (o->force)
		warnx("/dev/ublkb%u: %s: %s", id, ublk_disk_loss(r), strerror(-r));
	else
		warnx("/dev/ublkb%u: not removed, because the last writes %s: "
		      "%s; fix the cause, or use --force",
			id, r == -ETIME ? "are not written back yet" : "cannot be written back",
			strerror(-r));
	return o->force ? 0 : EXIT_FAILURE;
}

/* Has the process ended, within the time? One that cannot be watched has. */
static bool has_ended(int pidfd, int timeout_ms)
{
	struct pollfd end = {.fd = pidfd, .events = POLLIN};

	return pidfd < 0 || poll(&end, 1, timeout_ms) > 0;
}

/* The process that serves a disk that lives, as ublk_process_with() has it. */
static int server_of(const struct ublksrv_ctrl_dev_info *info)
{
	char path[32];
	struct stat st;

	snprintf(path, sizeof path, "/dev/ublkc%u", info->dev_id);
	return stat(path, &st) < 0 ? -errno : ublk_process_with(info->ublksrv_pid, st.st_rdev);
}

static int delete_disk(struct ublk_control *c, const struct ublk_options *o)
{
	uint32_t id = (uint32_t)o->server.id;
	struct ublksrv_ctrl_dev_info info;
	bool live, in_use = false, lost = false;
	int claim = -1, pidfd = -1, r = ublk_examine(c, id, &info);
	char users[256];

	if (r)
		return r;
	ublk_disk_users(id, users, sizeof users);
	/* Only a live one: with others, the open may wait for a server. */
	live = info.state == UBLK_S_DEV_LIVE;
	if (live)
		claim = ublk_disk_claim(id);
	/* A dead one has nothing to lose. */
	in_use = live ? ublk_disk_may_be_used(claim) : users[0] && info.state != UBLK_S_DEV_DEAD;
	if (live && in_use && claim != -EBUSY && !o->force) {
		warnx("/dev/ublkb%u: cannot be opened: %s; it may be in use; make it possible to "
		      "open it, or use --force",
			id, strerror(-claim));
		return EXIT_USAGE;
	}
	if (in_use && !o->force) {
		warnx("/dev/ublkb%u: in use%s%s; unmount or release it first, or use --force", id,
			users[0] ? " by " : "", users);
		return EXIT_USAGE;
	}
	if (live) {
		pidfd = server_of(&info);
		r = write_back(o, in_use, &lost);
	}
	if (r == 0) {
		r = ublk_control_stop(c, id, NULL, NULL);
		if (claim >= 0)
			close(claim); /* the kernel waits for it */
		if (r == 0 || r == -ENODEV)
			r = ublk_control_delete(c, id);
		r = r == -ENODEV ? 0 : r;
		if (r < 0) {
			warnx("ublk%u: cannot be removed: %s", id, strerror(-r));
			return EXIT_FAILURE;
		}
		ublk_record_remove(id, info.ublksrv_flags);
		if (!has_ended(pidfd, UBLK_CONTROL_LIMIT * 1000)) {
			warnx("ublk%u: removed, but its server (process %d) is still writing to "
			      "its device; the system log will have what comes of it",
				id, info.ublksrv_pid);
			return EXIT_FAILURE;
		}
		if (ublk_record_take_failure(id, info.ublksrv_flags)) {
			warnx("ublk%u: removed, but its server could not keep all that was "
			      "written; see the system log",
				id);
			return EXIT_FAILURE;
		}
		printf("/dev/ublkb%u: %s%s\n", id,
			!live  ? "removed; it had no server to write back to"
			: lost ? "removed"
			       : "written back and removed",
			in_use ? " while in use" : "");
	}
	return r;
}

/* ---- service -------------------------------------------------------------------------- */

/* What a server of ours does with its disk. */
struct start {
	struct ublk_control *control;
	const struct ublk_options *options;
	uint64_t cookie;
	const char *directory; /* of the arguments, NULL: this one */
	char *const *argv;
	bool replaces; /* it must be recorded, or another server takes its place */
	bool recorded;
	uint32_t id; /* of the disk, once it is recorded */
	int report;  /* pipe to the process that the user waits for, or -1 */
	int code;    /* its exit code */
	/* The process that serves the disk as before if this one does not, and how it learns that.
	 */
	pid_t keeper;
	int outcome;
	int watch; /* backend_watch() of the device, since before the old server's end; or negative
		    */
};

/* The new server is there, or the old one stays. */
static void dismiss_keeper(struct start *start)
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

/* sd_notify(3): a unit of Type=notify has been started. Does nothing for other parents. */
static void notify_ready(void)
{
	static const char message[] = "READY=1";
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	size_t length = path ? strlen(path) : 0;
	int fd;

	if (length == 0 || length >= sizeof to.sun_path)
		return;
	memcpy(to.sun_path, path, length);
	if (to.sun_path[0] == '@')
		to.sun_path[0] = 0;
	length += offsetof(struct sockaddr_un, sun_path);
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || sendto(fd, message, sizeof message - 1, MSG_NOSIGNAL, (struct sockaddr *)&to,
			      (socklen_t)length) < 0)
		warnx("NOTIFY_SOCKET=%s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
}

/*
 * Leaves what the disk is served with to those who come after. While users write to the new device,
 * nobody may find the old one.
 */
static int record(void *opaque, uint32_t id)
{
	struct start *start = opaque;
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
	return 0;
}

static void ready(void *opaque, uint32_t id)
{
	struct start *start = opaque;
	struct ublksrv_ctrl_dev_info info;
	unsigned char code = (unsigned char)start->code;
	int null;

	if (!start->recorded)
		record(start, id);
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
		notify_ready();
		return;
	}
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) {
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		close(null);
	}
	if (chdir("/") == 0 && write(start->report, &code, 1) == 1)
		close(start->report);
	start->report = -1;
}

static struct ublk_server_user user_of(struct start *start)
{
	return (struct ublk_server_user){
		.taking = record, .ready = ready, .opaque = start, .watch = start->watch};
}

/* After the end of service: a disk that is gone needs no record. code is passed through. */
static int forget(const struct start *start, int code)
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
		close(ends[0]);
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

static int add(const struct ublk_options *o, char *const *argv)
{
	struct ublk_control c;
	struct start start = {.control = &c, .options = o, .argv = argv, .report = -1, .watch = -1};
	int r;

	if (!o->foreground)
		start.report = go_to_background();
	openlog("userblk-ublk", LOG_PID, LOG_DAEMON);
	r = open_control(&c);
	if (r)
		return r;
	if (getrandom(&start.cookie, sizeof start.cookie, 0) != sizeof start.cookie) {
		warnx("cannot get random numbers: %s", strerror(errno));
		return EXIT_FAILURE;
	}
	const struct ublk_server_user user = user_of(&start);

	return forget(&start, ublk_server_add(&c, o->params, &o->server, start.cookie, &user));
}

/* Serves an existing disk. */
static int take_over(struct start *start, const struct ublk_options *o)
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
static int parse_record(const struct ublk_record *record, uint32_t id, struct ublk_options *o)
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
static int serve_record(
	struct start *start, const struct ublk_record *record, const struct ublk_options *o)
{
	start->directory = record->directory;
	start->argv = record->argv;
	return take_over(start, o);
}

/* What the driver has of a disk that is to outlive its server. An exit code. */
static int examine_survivor(struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info)
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
static int begin_server(struct start *start, struct ublksrv_ctrl_dev_info *info)
{
	int r;

	if (!start->options->foreground)
		start->report = go_to_background();
	openlog("userblk-ublk", LOG_PID, LOG_DAEMON);
	r = open_control(start->control);
	return r ? r : examine_survivor(start->control, (uint32_t)start->options->server.id, info);
}

static int recover(const struct ublk_options *o)
{
	struct ublk_control c;
	struct ublksrv_ctrl_dev_info info;
	struct start start = {.control = &c, .options = o, .report = -1, .watch = -1};
	struct ublk_record record;
	struct ublk_options old;
	int r = begin_server(&start, &info);

	if (r)
		return r;
	/* A server that was killed may be about to go. */
	for (int waited = 0; info.state == UBLK_S_DEV_LIVE; waited += STEP_MS) {
		if (waited >= PATIENCE_MS) {
			if (info.ublksrv_pid <= 0)
				warnx("ublk%u: its server is still ending; try again", info.dev_id);
			else
				warnx("ublk%u: has a server (process %d); stop it first, or use "
				      "replace",
					info.dev_id, info.ublksrv_pid);
			return EXIT_USAGE;
		}
		nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000}, NULL);
		r = examine_survivor(&c, info.dev_id, &info);
		if (r)
			return r;
	}
	start.cookie = info.ublksrv_flags;
	if (ublk_record_read(info.dev_id, start.cookie, &record) < 0) {
		warnx("ublk%u: its parameters are unknown; use replace or delete", info.dev_id);
		return EXIT_USAGE;
	}
	r = parse_record(&record, info.dev_id, &old);
	return r ? r : serve_record(&start, &record, &old);
}

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
	r = parse_record(record, info->dev_id, old);
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

		*pidfd = server_of(info);
		if (*pidfd >= 0 || info->state != UBLK_S_DEV_LIVE)
			return 0;
		/* One that is just ending has closed its files before; once it has ended, its
		 * io_uring may still wait for requests. */
		if (waited >= (*pidfd == -ESRCH ? END_LIMIT * 1000 : PATIENCE_MS)) {
			if (info->ublksrv_pid <= 0)
				warnx("ublk%u: its server has ended, but the kernel still waits "
				      "for what it had; try again",
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
		r = examine_survivor(c, info->dev_id, info);
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
	time_t begun = seconds();

	for (int wait = 0; !has_ended(pidfd, wait); wait = AGAIN_MS) {
		time_t waited = seconds() - begun;
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

/*
 * Forks a process that serves the disk as before, as record has it, if this one does not tell, by
 * its end of the pipe, that the new server is there: also when it is killed. The old server has to
 * end first, however long that takes: it may have been told to. report: where it says that it
 * serves.
 */
static pid_t keep_the_old(struct start *start, const struct ublksrv_ctrl_dev_info *info,
	const struct ublk_record *record, const struct ublk_options *o, int pidfd,
	const int outcome[2], int report)
{
	struct start old = {.options = start->options,
		.cookie = start->cookie,
		.report = report,
		.watch = backend_watch(o->params)};
	struct ublk_control c;
	unsigned char code = EXIT_FAILURE;
	pid_t child = fork();
	int r;

	if (child != 0 && old.watch >= 0)
		close(old.watch);
	if (child != 0)
		return child;
	setsid();
	close(outcome[1]);
	ublk_control_close(start->control); /* the other's */
	if (read(outcome[0], &code, 1) == 1 && code == 0)
		_exit(0);
	close(outcome[0]);
	old.control = &c;
	old.code = code;
	if (open_control(&c) != 0)
		_exit(EXIT_FAILURE);
	r = end_server(&c, info, pidfd, true);
	_exit(r ? r : serve_record(&old, record, o));
}

static int replace(const struct ublk_options *o, char *const *argv)
{
	struct ublk_control c;
	struct ublksrv_ctrl_dev_info info;
	struct start start = {.control = &c,
		.options = o,
		.argv = argv,
		.replaces = true,
		.report = -1,
		.watch = -1};
	struct ublk_record record;
	struct ublk_options old;
	int outcome[2], ends[2] = {-1, -1}, pidfd, r = begin_server(&start, &info);
	unsigned char code;

	if (r)
		return r;
	start.cookie = info.ublksrv_flags;
	if (info.state != UBLK_S_DEV_LIVE) {
		if (ublk_record_read(info.dev_id, start.cookie, &record) < 0 &&
			!ublk_server_knows(info.flags)) {
			warnx("ublk%u: has features of ublk that only the program that added it "
			      "can serve; use that program",
				info.dev_id);
			return EXIT_USAGE;
		}
		return take_over(&start, o);
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
		r = take_over(&start, o);
	if (!start.keeper)
		return r;
	code = (unsigned char)r;
	if (write(start.outcome, &code, 1) == 1 && o->foreground && read(ends[0], &code, 1) != 1)
		warnx("ublk%u: has no server; use recover", info.dev_id);
	return r;
}

/* ---- main --------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
	/* As they were given: the parser changes the order. */
	char **given = calloc((size_t)argc + 1, sizeof *given);
	struct params_error error;
	struct ublk_options o;
	struct ublk_control c;
	int r;

	if (!given)
		return EXIT_FAILURE;
	open_standard_files();
	/* A disk must not end with the reader of its messages, nor with who waits for it. */
	signal(SIGPIPE, SIG_IGN);
	/* We wait for processes, which an ignored signal would take from us. */
	signal(SIGCHLD, SIG_DFL);
	for (int i = 1; i < argc; i++)
		given[i - 1] = argv[i];
	if (ublk_options_parse(argc, argv, &o, &error) < 0) {
		warnx("%s", error.text);
		return EXIT_USAGE;
	}
	switch (o.command) {
	case UBLK_COMMAND_HELP:
		ublk_options_help();
		return 0;
	case UBLK_COMMAND_VERSION:
		printf("userblk-ublk %s\n", USERBLK_VERSION);
		return 0;
	case UBLK_COMMAND_ADD:
		return add(&o, given);
	case UBLK_COMMAND_RECOVER:
		return recover(&o);
	case UBLK_COMMAND_REPLACE:
		return replace(&o, given);
	default:
		break;
	}
	r = open_control(&c);
	if (r)
		return r;
	if (o.command == UBLK_COMMAND_LIST)
		r = ublk_show_list(&c, o.json);
	else if (o.command == UBLK_COMMAND_INFO)
		r = ublk_show_info(&c, &o);
	else if (o.command == UBLK_COMMAND_DELETE)
		r = delete_disk(&c, &o);
	else if (o.command == UBLK_COMMAND_STOP)
		r = ublk_stop_for_parent(&c, (uint32_t)o.server.id);
	else
		r = ublk_show_features(&c, o.json);
	ublk_control_close(&c);
	return r;
}
