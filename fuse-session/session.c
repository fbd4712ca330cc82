/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "asker.h"
#include "begin.h"
#include "session.h"
#include "programs/exit_codes.h"

/* What libfuse has room for before the data of a request. */
#define REQUEST_HEADER 4096

/* passthrough_hp 3.9.3, which the paper measured, keeps as many threads idle. */
#define IDLE_THREADS 10

/* How long io_uring may take to come up before it counts as refused. */
#define RINGS_SECONDS 3.0
#define POLL_USEC     20000

#define STATUS_LENGTH 1024

/* The kernel takes none above it. */
#define LARGEST_ERROR 511

struct session session;

static const struct session_program *served;

static bool in_background; /* complaints go to syslog */

void session_warn(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (in_background) {
		vsyslog(LOG_DAEMON | LOG_WARNING, format, args);
	} else {
		fprintf(stderr, "%s: ", session_name);
		vfprintf(stderr, format, args);
		fputc('\n', stderr);
	}
	va_end(args);
}

/* What libfuse has to say. */
static void log_libfuse(enum fuse_log_level level, const char *format, va_list args)
{
	if (in_background)
		vsyslog(LOG_DAEMON | (int)level, format, args);
	else
		vfprintf(stderr, format, args);
}

/* ---- what the kernel grants ---- */

static struct {
	unsigned protocol;
	unsigned max_write;
	bool wrote_back; /* was asked for */
	bool splice;
} granted;

static int status_fd = -1; /* where the status line goes; -1 once it is written */

bool session_want(struct fuse_conn_info *conn, unsigned long capability)
{
#if LIBFUSE_AT_LEAST(3, 17, 0)
	return fuse_set_feature_flag(conn, capability);
#else
	if (!(conn->capable & capability))
		return false;
	conn->want |= (unsigned)capability;
	return true;
#endif
}

static void do_not_want(struct fuse_conn_info *conn, unsigned long capability)
{
#if LIBFUSE_AT_LEAST(3, 17, 0)
	fuse_unset_feature_flag(conn, capability);
#else
	conn->want &= ~(unsigned)capability;
#endif
}

static void *announce(void *arg);
static pthread_t announcer;
static bool announcing;
static atomic_bool up;	  /* requests come */
static atomic_bool ended; /* no request is served any more */

/*
 * Whether a pipe can hold what a thread receives at most. Otherwise (SIZE is above
 * /proc/sys/fs/pipe-max-size, and CAP_SYS_RESOURCE is missing, as in many containers) libfuse makes
 * and closes a pipe for each request without using it, and then reads the request in the other way.
 */
static bool pipes_suffice(size_t size)
{
	int ends[2], kept;

	if (pipe2(ends, O_CLOEXEC) == -1)
		return false;
	kept = fcntl(ends[0], F_SETPIPE_SZ, (int)size);
	close(ends[0]);
	close(ends[1]);
	return kept != -1;
}

static void negotiate_splice(struct fuse_conn_info *conn)
{
	if (!session.splice) {
		do_not_want(conn, FUSE_CAP_SPLICE_READ);
		do_not_want(conn, FUSE_CAP_SPLICE_WRITE);
		do_not_want(conn, FUSE_CAP_SPLICE_MOVE);
		return;
	}
	granted.splice = session_want(conn, FUSE_CAP_SPLICE_WRITE);
	/* Pages moved into the kernel's cache stay single ones there, which are slower to read
	 * again. */
	do_not_want(conn, FUSE_CAP_SPLICE_MOVE);
	if (pipes_suffice(conn->max_write + REQUEST_HEADER))
		granted.splice = session_want(conn, FUSE_CAP_SPLICE_READ) && granted.splice;
	else
		do_not_want(conn, FUSE_CAP_SPLICE_READ);
	session.splice = granted.splice;
}

static void session_init(void *data, struct fuse_conn_info *conn)
{
	(void)data;
	/* Its first version does not tell who writes: set-id bits would survive. */
	do_not_want(conn, FUSE_CAP_HANDLE_KILLPRIV);
	served->negotiate(conn);
#if HAVE_LIBFUSE_RINGS
	if (session.own_rings)
		do_not_want(conn, FUSE_CAP_OVER_IO_URING);
#endif
	negotiate_splice(conn);
	/*
	 * Otherwise the kernel has us truncate with the open, before it looks whether the file
	 * is being executed, and says ETXTBSY of a program that is gone.
	 */
	do_not_want(conn, FUSE_CAP_ATOMIC_O_TRUNC);
	granted.wrote_back = session.writeback;
	session.writeback = session.writeback && session_want(conn, FUSE_CAP_WRITEBACK_CACHE);
	if (served->finds_end && !session.writeback)
		do_not_want(conn, FUSE_CAP_ASYNC_DIO);
#if HAVE_OWN_RINGS
	/* Otherwise the kernel keeps all but 12 of those that nobody waits for to itself. */
	if (session.own_rings)
		conn->max_background = rings_capacity();
#endif
	granted.protocol = conn->proto_minor;
	conn->max_read = session.options->read_limit; /* which libfuse wants to hear twice */
	if (session.options->write_limit && session.options->write_limit < conn->max_write)
		conn->max_write = session.options->write_limit;
	granted.max_write = conn->max_write;
	atomic_store(&up, true);
	announcing = pthread_create(&announcer, NULL, announce, NULL) == 0;
	if (!announcing)
		session_warn("out of memory: no status line");
}

static bool came_by_ring(fuse_req_t req)
{
#if HAVE_LIBFUSE_RINGS
	if (fuse_req_is_uring(req))
		return true;
#endif
	(void)req;
#if HAVE_OWN_RINGS
	return rings_serve_this();
#else
	return false;
#endif
}

int session_write_flags(const struct fuse_file_info *fi)
{
	if (fi->writepage || !(fi->flags & O_DSYNC))
		return 0;
	return (fi->flags & O_SYNC) == O_SYNC ? RWF_SYNC : RWF_DSYNC;
}

bool session_direct_io(const struct fuse_file_info *fi)
{
	return (fi->flags & O_DIRECT) && !session.writeback;
}

ssize_t session_read(int fd, char *memory, size_t size, off_t offset, size_t length)
{
	ssize_t more;

	do {
		more = pread(fd, memory + length, size - length, offset + (off_t)length);
		if (more == -1)
			return -errno;
		length += (size_t)more;
	} while (more > 0 && session_read_may_go_on(size, offset, length));
	return (ssize_t)length;
}

int session_error(int error)
{
	if (error == ENOSYS)
		return EOPNOTSUPP;
	return error > LARGEST_ERROR ? EIO : error;
}

int session_reply_error(fuse_req_t req, int error)
{
	return fuse_reply_err(req, session_error(error));
}

void session_reply_absent(fuse_req_t req)
{
	const struct fuse_entry_param absent = {.entry_timeout = session.timeout};

	if (session.timeout > 0)
		fuse_reply_entry(req, &absent);
	else
		session_reply_error(req, ENOENT);
}

void session_forget_multi(fuse_req_t req, size_t count, const struct fuse_forget_data *forgets,
	void (*forget)(fuse_ino_t ino, uint64_t times))
{
	for (size_t i = 0; i < count; i++)
		forget(forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

void session_note_statfs(fuse_req_t req)
{
	if (came_by_ring(req))
		atomic_store(&session.rings, true);
}

/* Rings of our own have no use for it: there is one for each CPU anyway. */
static bool clones_fd(void)
{
	return session.options->clone_fd && !session.own_rings;
}

const char *session_state(bool asked, bool on)
{
	return on ? "on" : asked ? "refused" : "off";
}

/* Leaves the terminal and the parent, who has the status line now. */
static void go_to_background(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	openlog(session_name, LOG_PID, LOG_DAEMON);
	in_background = true;
	if (null == -1)
		return;
	for (int fd = 0; fd <= 2; fd++)
		dup2(null, fd);
	close(null);
}

/*
 * Has the mount used as by anybody, to see how requests arrive, and writes the
 * status line. A thread of its own: the session must run meanwhile.
 */
static void *announce(void *arg)
{
	const struct session_options *o = session.options;
	char line[STATUS_LENGTH];
	double waited = 0;
	int failed, length;

	(void)arg;
	for (;;) {
		failed = asker_ask(ASK_ANSWERS, o->mount_point);
		if (atomic_load(&ended))
			break;
		if (!failed && (!session.options->io_uring || atomic_load(&session.rings)))
			break;
		if (waited >= RINGS_SECONDS)
			break;
		usleep(POLL_USEC);
		waited += POLL_USEC / 1e6;
	}
	if (!served->each_written) /* nor is there anything to do at the end */
		asker_stop();
	/* What answered was not the mount, which is gone. */
	if (atomic_load(&ended)) {
		if (status_fd > 2)
			close(status_fd);
		return NULL;
	}
	if (failed)
		session_warn("%s: the mount does not answer: %s", o->mount_point, strerror(failed));
	length = snprintf(line, sizeof(line),
		"%s: ready libfuse=%s protocol=7.%u writeback=%s timeout=%g splice=%s "
		"clone-fd=%s max-threads=%u io-uring=%s async-io=%s max-write=%u",
		session_name, fuse_pkgversion(), granted.protocol,
		session_state(granted.wrote_back, session.writeback), session.timeout,
		session_state(!o->nosplice && !o->io_uring, granted.splice),
		session_state(o->clone_fd, clones_fd()), o->thread_count,
		session_state(o->io_uring, atomic_load(&session.rings)),
		session_state(o->io_uring && served->files,
			served->files && session.own_rings && atomic_load(&session.rings)),
		granted.max_write);
	served->tell(line + length, sizeof(line) - (size_t)length);
	/* At once, because its reader may look at any time. */
	if (dprintf(status_fd, "%s\n", line) < 0 && !o->foreground)
		kill(getpid(), SIGTERM); /* the starter was interrupted, and expects no mount */
	if (!o->foreground)
		go_to_background();
	if (status_fd > 2)
		close(status_fd);
	status_fd = -1;
	return NULL;
}

/* ---- the end ---- */

static atomic_bool lost; /* data that was written to the cache could not be written to its file */

static void note_loss(const char *path, int error)
{
	/* The user has given it up, and this is how all hear of it who use the mount. */
	if (atomic_load(&ended) || fuse_session_exited(session.fuse) ||
		session_is_cut_off(session.fuse))
		return;
	session_warn(
		"%s: what was written last is not all in the source: %s", path, strerror(error));
	atomic_store(&lost, true);
}

/*
 * The number in the name by which the asker looks up the file to sync. A new one for each file: a
 * user who watches the root sees the name when the file is open, and the kernel must not have a
 * file, or the lack of one, of that name from anybody else.
 */
static atomic_uint_fast64_t sought;

#define SOUGHT_NAME sizeof(".userblk-0123456789abcdef")

static void write_sought(char name[SOUGHT_NAME])
{
	snprintf(name, SOUGHT_NAME, ".userblk-%016jx", (uintmax_t)atomic_load(&sought));
}

static void sync_file(const char *path)
{
	char name[SOUGHT_NAME];
	uint64_t number;
	int error = EIO;

	if (getrandom(&number, sizeof(number), 0) == sizeof(number)) {
		atomic_store(&sought, number);
		write_sought(name);
		error = asker_ask(ASK_SYNC, name);
	}
	if (error)
		note_loss(path, error);
}

static void report_file(const char *path)
{
	note_loss(path, ENOTCONN);
}

bool session_looks_up(fuse_req_t req, const char *name)
{
	char wanted[SOUGHT_NAME];

	if (!asker_is(fuse_req_ctx(req)->pid))
		return false;
	write_sought(wanted);
	return strcmp(name, wanted) == 0;
}

/*
 * After a signal, while the session still serves: has the kernel write what files that are open
 * hold in its cache; what is closed has been written. First all at once, for which the kernel does
 * not wait, then file by file.
 */
static void write_back(void)
{
	const char *place;
	bool found;

	if (!atomic_load(&up) || !served->each_written)
		return;
	place = session_place(session.options->mount_point);
	found = place && asker_ask(ASK_WRITE, place) == 0;
	if (!served->each_written(found ? sync_file : report_file))
		note_loss(session.options->mount_point, ENOMEM);
}

/* ---- the session ---- */

bool session_check_mount_point(struct session_options *o)
{
	static const char passed_on[] = "/dev/fd/";
	struct stat st = {0};
	char *path;

	errno = ENOTDIR; /* unless stat() has a reason of its own */
	if (stat(o->mount_point, &st) == 0 && S_ISDIR(st.st_mode)) {
		path = realpath(o->mount_point, NULL);
		if (path) {
			free(o->mount_point);
			o->mount_point = path;
			return true;
		}
	}
	/*
	 * mount.fuse3(8) has mounted by itself, without default_permissions, so that all that this
	 * process may do would be open to every user of the mount; nor could it unmount at its end.
	 */
	if (S_ISCHR(st.st_mode) && strncmp(o->mount_point, passed_on, strlen(passed_on)) == 0)
		session_warn("%s: mount.fuse3(8) has mounted it with drop_privileges, which is not "
			     "supported; unmount it, and leave the option out",
			o->mount_point);
	else
		session_warn(
			"%s: %s; MOUNTPOINT must be a directory", o->mount_point, strerror(errno));
	return false;
}

static bool add_session_options(struct fuse_args *args, const char *source)
{
	const char *rings = session.options->io_uring && HAVE_LIBFUSE_RINGS ? ",io_uring" : "";
	char *text = NULL, limit[32];
	bool ok;

	/* Commas and backslashes in the name of the source are libfuse's separators. */
	if (asprintf(&text, "fsname=%s,subtype=%s,default_permissions%s", source, session_name,
		    rings) == -1)
		return false;
	if (strpbrk(source, ",\\")) {
		free(text);
		if (asprintf(&text, "subtype=%s,default_permissions%s", session_name, rings) == -1)
			return false;
	}
	ok = fuse_opt_insert_arg(args, 1, "-o") == 0 && fuse_opt_insert_arg(args, 2, text) == 0;
	free(text);
	if (session.options->read_limit) {
		snprintf(limit, sizeof(limit), "-omax_read=%u", session.options->read_limit);
		ok = ok && fuse_opt_add_arg(args, limit) == 0;
	}
	return ok && (!session.options->debug || fuse_opt_add_arg(args, "-odebug") == 0);
}

#if HAVE_WRITE_LIMIT
static ssize_t read_request(int fd, void *buffer, size_t size, void *data)
{
	(void)data;
	return read(fd, buffer, size);
}

/*
 * libfuse answers the first request with as many pages as a write may have, which limits reads,
 * too. Without a number the kernel takes 32, as it did before there was one.
 */
static ssize_t write_answer(int fd, struct iovec *iov, int count, void *data)
{
	static atomic_bool past_init;

	(void)data;
	if (!atomic_exchange(&past_init, true) && count == 2 &&
		iov[1].iov_len >= sizeof(struct fuse_init_out))
		((struct fuse_init_out *)iov[1].iov_base)->flags &= ~(unsigned)FUSE_MAX_PAGES;
	return writev(fd, iov, count);
}
#endif

/* Has writes be as small as asked for, and reads as large as ever. */
static bool limit_writes(void)
{
#if HAVE_WRITE_LIMIT
	static const struct fuse_custom_io io = {.read = read_request, .writev = write_answer};

	/* Mounting sets the descriptor that counts. */
	if (session_limits_reads(session.options) &&
		fuse_session_custom_io(session.fuse, &io, STDIN_FILENO) != 0) {
		session_warn("max-write: libfuse %s does not support it; leave it out",
			fuse_pkgversion());
		return false;
	}
#endif
	return true;
}

/* Finds out who can serve io_uring, if it is wanted: rings.c, libfuse, or nobody. */
static bool choose_rings(void)
{
	int result = -ENOTSUP;

	if (!session.options->io_uring)
		return true;
#if HAVE_OWN_RINGS
	result = rings_offer(session.fuse, served->files);
	session.own_rings = result == 0;
#endif
	if (session.own_rings || HAVE_LIBFUSE_RINGS)
		return true;
	session_warn("io-uring: libfuse %s: %s; build it with -Denable-custom-io=true",
		fuse_pkgversion(), strerror(-result));
	return false;
}

/* Serves the mounted session until it ends: 0, a signal, or a negative errno. */
static int serve_session(void)
{
#if HAVE_THREAD_LIMIT
	struct fuse_loop_config *loop = fuse_loop_cfg_create();
	int result;

	if (!loop) {
		session_warn("cannot start: out of memory");
		return -ENOMEM;
	}
	fuse_loop_cfg_set_clone_fd(loop, clones_fd());
	fuse_loop_cfg_set_max_threads(loop, session.options->thread_count);
	fuse_loop_cfg_set_idle_threads(loop, IDLE_THREADS);
	result = fuse_session_loop_mt(session.fuse, loop);
	fuse_loop_cfg_destroy(loop);
	return result;
#else
	struct fuse_loop_config loop = {
		.clone_fd = clones_fd(),
		.max_idle_threads = IDLE_THREADS,
	};

	return fuse_session_loop_mt(session.fuse, &loop);
#endif
}

/* Mounts and serves. Returns the exit status. */
static int serve(struct fuse_args *args)
{
	struct fuse_lowlevel_ops ops = served->operations;
	int result = -1, error;

	ops.init = session_init;
	session.fuse = session_begin(session_name, args, &ops, NULL, log_libfuse);
	if (!session.fuse)
		return EXIT_USAGE;
	if (!choose_rings() || !limit_writes()) {
		fuse_session_destroy(session.fuse);
		return EXIT_USAGE;
	}
	if ((error = asker_start()) != 0) {
		session_warn("cannot start: %s", strerror(error));
		fuse_session_destroy(session.fuse);
		return EXIT_FAILURE;
	}
	if (session_set_signal_handlers(session.fuse, write_back) != 0) {
		session_warn("cannot start: out of memory");
	} else if (session_mount(session.fuse, session.options->mount_point) == 0) {
		result = serve_session();
#if HAVE_OWN_RINGS
		rings_stop();
#endif
		atomic_store(&ended, true);
		result = session_unmount(session.fuse, session.options->mount_point, result);
	}
	session_ignore_signals(); /* if it was never mounted */
	fuse_session_destroy(session.fuse);
	/* Nobody waits for its answer any more. */
	asker_stop();
	if (announcing)
		pthread_join(announcer, NULL);
	session_end_signals();
	return result < 0 || lost ? EXIT_FAILURE : EXIT_SUCCESS; /* a signal is a way to end */
}

/*
 * In the parent: hands the status line on, and returns the exit status when
 * the file system is up or has failed. In the child: returns -1.
 */
static int fork_to_background(void)
{
	char line[STATUS_LENGTH];
	ssize_t length, total = 0;
	int ends[2], status;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) == -1 || (child = fork()) == -1) {
		session_warn("cannot go to the background: %s", strerror(errno));
		return EXIT_FAILURE;
	}
	if (child == 0) {
		close(ends[0]);
		status_fd = ends[1];
		setsid();
		/* Whatever it was started in can be unmounted. Before there are threads. */
		if (chdir("/") == -1)
			session_warn("/: %s", strerror(errno));
		return -1;
	}
	close(ends[1]);
	while ((length = read(ends[0], line, sizeof(line))) > 0) {
		total += length;
		if (write(STDOUT_FILENO, line, (size_t)length) != length)
			session_warn("standard output: %s", strerror(errno));
	}
	if (total > 0)
		return EXIT_SUCCESS;
	if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) != 0)
		return WEXITSTATUS(status);
	session_warn("ended before it was ready");
	return EXIT_FAILURE;
}

int session_run(struct fuse_args *args, const struct session_options *o, const char *source,
	const struct session_program *program)
{
	int status;

	fuse_set_log_func(log_libfuse);
	/* A limit of file sizes (ulimit -f) is an error of a write, as it is for its caller. */
	signal(SIGXFSZ, SIG_IGN);
	served = program;
	session.options = o;
	session.timeout = o->timeout_seconds;
	session.writeback = !o->no_writeback && session.timeout > 0;
	session.splice = !o->nosplice && !o->io_uring; /* rings have memory, no pipes */
	if (!add_session_options(args, source)) {
		session_warn("out of memory");
		return EXIT_FAILURE;
	}
	if (o->foreground)
		status_fd = STDOUT_FILENO;
	else if ((status = fork_to_background()) != -1)
		return status;
	return serve(args);
}
