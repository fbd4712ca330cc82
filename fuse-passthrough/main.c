/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "options.h"
#include "passthrough.h"
#include "rings.h"

/* Exit statuses. */
#define EXIT_USAGE 2

/* What libfuse has room for before the data of a request. */
#define REQUEST_HEADER 4096

/* passthrough_hp 3.9.3, which the paper measured, keeps as many threads idle. */
#define IDLE_THREADS 10

/* How long io_uring may take to come up before it counts as refused. */
#define RINGS_SECONDS 3.0
#define POLL_USEC     20000

struct filesystem fs;

static bool in_background; /* complaints go to syslog */

void complain(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (in_background) {
		vsyslog(LOG_DAEMON | LOG_WARNING, format, args);
	} else {
		fprintf(stderr, NAME ": ");
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
	bool splice, readdirplus, acl;
} granted;

static int status_fd = -1; /* where the status line goes; -1 once it is written */

/* Asks for a capability if the kernel has it, and says whether. */
static bool want(struct fuse_conn_info *conn, unsigned long capability)
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

static void negotiate_privileges(struct fuse_conn_info *conn)
{
	/* Its first version does not tell who writes: set-id bits would survive. */
	do_not_want(conn, FUSE_CAP_HANDLE_KILLPRIV);
#if HAVE_KILLPRIV_V2
	int major = 0, minor = 0, fix = 0;

	/* The library at run time may be older than its headers were. */
	sscanf(fuse_pkgversion(), "%d.%d.%d", &major, &minor, &fix);
	if (major * 1000000 + minor * 1000 + fix >= 3018003)
		fs.killpriv_v2 = want(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
#endif
	/* ACLs, and with them the umask, are ours to apply. */
	granted.acl = want(conn, FUSE_CAP_POSIX_ACL);
	want(conn, FUSE_CAP_DONT_MASK);
}

static void *announce(void *arg);
static pthread_t announcer;
static bool announcing;

/*
 * Whether a pipe can hold what a thread receives at most. Otherwise (SIZE is above
 * /proc/sys/fs/pipe-max-size, and CAP_SYS_RESOURCE is missing, as in many containers) libfuse makes
 * and closes a pipe in vain for each request, before it reads that all the same.
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

static void fs_init(void *data, struct fuse_conn_info *conn)
{
	(void)data;
	negotiate_privileges(conn);
#if HAVE_LIBFUSE_RINGS
	if (fs.own_rings)
		do_not_want(conn, FUSE_CAP_OVER_IO_URING);
#endif
	if (fs.splice) {
		granted.splice = want(conn, FUSE_CAP_SPLICE_WRITE);
		granted.splice = want(conn, FUSE_CAP_SPLICE_MOVE) && granted.splice;
		if (pipes_suffice(conn->max_write + REQUEST_HEADER))
			granted.splice = want(conn, FUSE_CAP_SPLICE_READ) && granted.splice;
		else
			do_not_want(conn, FUSE_CAP_SPLICE_READ);
		fs.splice = granted.splice;
	} else {
		do_not_want(conn, FUSE_CAP_SPLICE_READ);
		do_not_want(conn, FUSE_CAP_SPLICE_WRITE);
		do_not_want(conn, FUSE_CAP_SPLICE_MOVE);
	}
#if HAVE_PASSTHROUGH
	fs.passthrough = fs.passthrough && want(conn, FUSE_CAP_PASSTHROUGH);
	if (fs.passthrough)
		conn->max_backing_stack_depth = 1;
#endif
	/*
	 * Otherwise the kernel has us truncate with the open, before it looks whether the file
	 * is being executed, and says ETXTBSY of a program that is gone.
	 */
	do_not_want(conn, FUSE_CAP_ATOMIC_O_TRUNC);
	/* Both cannot be: who passes writes through has nothing to write back. */
	fs.writeback = fs.writeback && !fs.passthrough && want(conn, FUSE_CAP_WRITEBACK_CACHE);
#if HAVE_PARALLEL_WRITES
	fs.direct_mmap = want(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	/* A handle of this mount would not survive it. */
	want(conn, FUSE_CAP_NO_EXPORT_SUPPORT);
#endif
#if HAVE_OWN_RINGS
	/* Otherwise the kernel keeps all but 12 of those that nobody waits for to itself. */
	if (fs.own_rings)
		conn->max_background = rings_capacity();
#endif
	granted.readdirplus = conn->capable & FUSE_CAP_READDIRPLUS;
	granted.protocol = conn->proto_minor;
	fs.flags_checked = conn->proto_minor >= 34;
	if (options.write_limit && options.write_limit < conn->max_write)
		conn->max_write = options.write_limit;
	granted.max_write = conn->max_write;
	announcing = pthread_create(&announcer, NULL, announce, NULL) == 0;
	if (!announcing)
		complain("out of memory: no status line");
}

/* Rings of our own have no use for it: there is one for each CPU anyway. */
static bool clones_fd(void)
{
	return options.clone_fd && !fs.own_rings;
}

/* on when granted, off when not asked for; otherwise the kernel or libfuse refused. */
static const char *state(bool asked, bool on)
{
	return on ? "on" : asked ? "refused" : "off";
}

/* Leaves the terminal and the parent, who has the status line now. */
static void go_to_background(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	openlog(NAME, LOG_PID, LOG_DAEMON);
	in_background = true;
	if (null == -1)
		return;
	for (int fd = 0; fd <= 2; fd++)
		dup2(null, fd);
	close(null);
}

/*
 * Whether the mount answers: 0 or an errno. Another process asks, which holds
 * nothing of ours: a thread that waits in the kernel for an answer that we owe
 * cannot be killed, and would keep the connection of a killed daemon alive.
 */
static int ask_mount(void)
{
	struct statvfs st;
	int status;
	pid_t child = fork();

	if (child == -1)
		return errno;
	if (child == 0) {
		if (syscall(__NR_close_range, 0, ~0U, 0) == -1)
			_exit(errno);
		_exit(statvfs(options.mount_point, &st) == -1 ? errno : 0);
	}
	while (waitpid(child, &status, 0) == -1)
		if (errno != EINTR)
			return errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
}

/*
 * Has the mount used as by anybody, to see how requests arrive, and writes the
 * status line. A thread of its own: the session must run meanwhile.
 */
static void *announce(void *arg)
{
	double waited = 0;
	int failed;

	(void)arg;
	for (;;) {
		failed = ask_mount();
		if (!failed && (!options.io_uring || atomic_load(&fs.rings)))
			break;
		if (waited >= RINGS_SECONDS)
			break;
		usleep(POLL_USEC);
		waited += POLL_USEC / 1e6;
	}
	if (failed)
		complain(
			"%s: the mount does not answer: %s", options.mount_point, strerror(failed));
	dprintf(status_fd,
		NAME ": ready libfuse=%s protocol=7.%u writeback=%s timeout=%g splice=%s "
		     "clone-fd=%s max-threads=%u passthrough=%s io-uring=%s async-io=%s "
		     "killpriv-v2=%s acl=%s readdirplus=%s handles=%s ownership=%s max-write=%u\n",
		fuse_pkgversion(), granted.protocol,
		state(!options.no_writeback && fs.timeout > 0 && !fs.passthrough, fs.writeback),
		fs.timeout, state(!options.nosplice && !options.io_uring, granted.splice),
		state(options.clone_fd, clones_fd()), options.thread_count,
		state(options.passthrough, fs.passthrough),
		state(options.io_uring, atomic_load(&fs.rings)),
		state(options.io_uring, fs.own_rings && atomic_load(&fs.rings)),
		state(false, fs.killpriv_v2), state(true, granted.acl),
		state(true, granted.readdirplus), state(true, inodes_have_handles()),
		fs.is_root ? "caller" : "daemon", granted.max_write);
	if (!options.foreground)
		go_to_background();
	if (status_fd > 2)
		close(status_fd);
	status_fd = -1;
	return NULL;
}

/* ---- the session ---- */

static void fill_operations(struct fuse_lowlevel_ops *ops)
{
	operations_namespace(ops);
	ops->init = fs_init;
	ops->open = fs_open;
	ops->create = fs_create;
#if HAVE_TMPFILE
	ops->tmpfile = fs_tmpfile;
#endif
	ops->release = fs_release;
	ops->read = fs_read;
	ops->write_buf = fs_write_buf;
	ops->flush = fs_flush;
	ops->fsync = fs_fsync;
	ops->fallocate = fs_fallocate;
	ops->lseek = fs_lseek;
	ops->copy_file_range = fs_copy_file_range;
	ops->ioctl = fs_ioctl;
	ops->opendir = fs_opendir;
	ops->readdir = fs_readdir;
	ops->readdirplus = fs_readdirplus;
	ops->releasedir = fs_releasedir;
	ops->fsyncdir = fs_fsyncdir;
}

/* The limit of open files, raised as far as it goes. */
static size_t raise_open_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == -1)
		return 1024;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	return limit.rlim_cur == RLIM_INFINITY ? SIZE_MAX : limit.rlim_cur;
}

/* Opens SOURCE and checks MOUNTPOINT. */
static bool open_directories(void)
{
	struct stat st;
	int fd, result;

	errno = ENOTDIR; /* unless stat() has a reason of its own */
	if (stat(options.mount_point, &st) == -1 || !S_ISDIR(st.st_mode)) {
		complain("%s: %s; MOUNTPOINT is to be a directory", options.mount_point,
			strerror(errno));
		return false;
	}
	fs.is_root = geteuid() == 0;
	umask(0);
	result = caller_prepare();
	if (result < 0) {
		complain("cannot act for other users: %s; CAP_SETUID, CAP_SETGID and CAP_SETPCAP "
			 "are needed",
			strerror(-result));
		return false;
	}
	fd = open(options.source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd == -1) {
		complain("%s: %s; SOURCE is to be a directory", options.source, strerror(errno));
		return false;
	}
	/* Half for inodes, half for open files. */
	result = inodes_init(fd, raise_open_files() / 2);
	if (result < 0)
		complain("%s: %s", options.source, strerror(-result));
	return result == 0;
}

static bool add_session_options(struct fuse_args *args)
{
	const char *rings = options.io_uring && HAVE_LIBFUSE_RINGS ? ",io_uring" : "";
	char *text = NULL;
	bool ok;

	/* Commas and backslashes in the name of the source are libfuse's separators. */
	if (asprintf(&text, "fsname=%s,subtype=" NAME ",default_permissions%s", options.source,
		    rings) == -1)
		return false;
	if (strpbrk(options.source, ",\\")) {
		free(text);
		if (asprintf(&text, "subtype=" NAME ",default_permissions%s", rings) == -1)
			return false;
	}
	ok = fuse_opt_insert_arg(args, 1, "-o") == 0 && fuse_opt_insert_arg(args, 2, text) == 0;
	free(text);
	return ok && (!options.debug || fuse_opt_add_arg(args, "-odebug") == 0);
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
	if (options.write_limit && fuse_session_custom_io(fs.session, &io, STDIN_FILENO) != 0) {
		complain(
			"max-write: libfuse %s does not let answers be changed", fuse_pkgversion());
		return false;
	}
#endif
	return true;
}

/* Finds out who can serve io_uring, if it is wanted: rings.c, libfuse, or nobody. */
static bool choose_rings(void)
{
	int result = -ENOTSUP;

	if (!options.io_uring)
		return true;
#if HAVE_OWN_RINGS
	result = rings_offer(fs.session);
	fs.own_rings = result == 0;
#endif
	if (fs.own_rings || HAVE_LIBFUSE_RINGS)
		return true;
	complain("io-uring: libfuse %s: %s; build it with -Denable-custom-io=true",
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
		complain("cannot start: out of memory");
		return -ENOMEM;
	}
	fuse_loop_cfg_set_clone_fd(loop, clones_fd());
	fuse_loop_cfg_set_max_threads(loop, options.thread_count);
	fuse_loop_cfg_set_idle_threads(loop, IDLE_THREADS);
	result = fuse_session_loop_mt(fs.session, loop);
	fuse_loop_cfg_destroy(loop);
	return result;
#else
	struct fuse_loop_config loop = {
		.clone_fd = clones_fd(),
		.max_idle_threads = IDLE_THREADS,
	};

	return fuse_session_loop_mt(fs.session, &loop);
#endif
}

/* Mounts and serves until unmounted or told to end. Returns the exit status. */
static int serve(struct fuse_args *args)
{
	struct fuse_lowlevel_ops ops = {0};
	int result = -1;

	fill_operations(&ops);
	fs.session = fuse_session_new(args, &ops, sizeof(ops), NULL);
	if (!fs.session)
		return EXIT_USAGE; /* libfuse has said why */
	if (!choose_rings() || !limit_writes()) {
		fuse_session_destroy(fs.session);
		return EXIT_USAGE;
	}
	if (fuse_set_signal_handlers(fs.session) != 0) {
		complain("cannot start: out of memory");
	} else if (fuse_session_mount(fs.session, options.mount_point) == 0) {
		result = serve_session();
#if HAVE_OWN_RINGS
		rings_stop();
#endif
		fuse_session_unmount(fs.session);
		if (announcing)
			pthread_join(announcer, NULL);
		fuse_remove_signal_handlers(fs.session);
	}
	fuse_session_destroy(fs.session);
	if (atomic_load(&fs.passthrough_refused))
		complain("%ju inodes were not passed through by the kernel",
			(uintmax_t)atomic_load(&fs.passthrough_refused));
	return result < 0 ? EXIT_FAILURE : EXIT_SUCCESS; /* a signal is a way to end */
}

/*
 * In the parent: hands the status line on, and returns the exit status when
 * the file system is up or has failed. In the child: returns -1.
 */
static int fork_to_background(void)
{
	char line[1024];
	ssize_t length, total = 0;
	int ends[2], status;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) == -1 || (child = fork()) == -1) {
		complain("cannot go to the background: %s", strerror(errno));
		return EXIT_FAILURE;
	}
	if (child == 0) {
		close(ends[0]);
		status_fd = ends[1];
		setsid();
		return -1;
	}
	close(ends[1]);
	while ((length = read(ends[0], line, sizeof(line))) > 0) {
		total += length;
		if (write(STDOUT_FILENO, line, (size_t)length) != length)
			complain("standard output: %s", strerror(errno));
	}
	if (total > 0)
		return EXIT_SUCCESS;
	if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) != 0)
		return WEXITSTATUS(status);
	complain("ended before it was ready");
	return EXIT_FAILURE;
}

int main(int argc, char *argv[])
{
	struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
	int status = EXIT_USAGE;

	fuse_set_log_func(log_libfuse);
	if (!options_read(&args))
		goto out;
	if (options.help || options.version) {
		options_print_help();
		status = EXIT_SUCCESS;
		goto out;
	}
	fs.timeout = options.timeout_seconds;
	fs.writeback = !options.no_writeback && fs.timeout > 0;
	fs.splice = !options.nosplice && !options.io_uring; /* rings have memory, no pipes */
	/* The kernel opens no file below for one who has no CAP_SYS_ADMIN. */
	fs.passthrough = options.passthrough ||
			 (options.passthrough_when && HAVE_PASSTHROUGH && geteuid() == 0);
	options.foreground = options.foreground || options.debug;
	if (!open_directories())
		goto out;
	status = EXIT_FAILURE;
	if (!add_session_options(&args)) {
		complain("out of memory");
		goto out;
	}
	if (options.foreground)
		status_fd = STDOUT_FILENO;
	else if ((status = fork_to_background()) != -1)
		goto out;
	status = serve(&args);
out:
	inodes_destroy();
	fuse_opt_free_args(&args);
	options_free();
	return status;
}
