/* SPDX-License-Identifier: BSD-3-Clause */
#include "begin.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#include "programs/end_signals.h"

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

/* ---- signals ---- */

static const int signals[] = {SIGHUP, SIGINT, SIGTERM}; /* that end a session */
#define SIGNAL_COUNT (sizeof(signals) / sizeof(*signals))

/* A signal just before it begins to wait is lost: after this time, there is another one. */
#define SIGNAL_AGAIN_NS 100000000

static struct {
	void (*before)(void);
	void (*libfuse)(int); /* ends the session; for the thread that waits for its end */
	pthread_t waiting, ending;
	bool started;
	sem_t came; /* a signal, or the end */
	volatile sig_atomic_t first;
	struct timespec first_at;
	atomic_bool telling; /* the signals are our own */
	atomic_bool over;
} ending;

static void on_signal(int number)
{
	int error = errno;

	if (!ending.first) {
		clock_gettime(CLOCK_MONOTONIC, &ending.first_at);
		ending.first = number;
		sem_post(&ending.came);
	} else if (atomic_load(&ending.telling) || !is_of_one_cause(&ending.first_at)) {
		ending.libfuse(number);
	}
	errno = error;
}

void session_end_now(void)
{
	if (!ending.started)
		return;
	atomic_store(&ending.telling, true);
	pthread_kill(ending.waiting, SIGTERM);
}

static void *end_session(void *arg)
{
	struct timespec next;

	(void)arg;
	while (sem_wait(&ending.came) == -1)
		;
	if (ending.before && !atomic_load(&ending.over) && !atomic_load(&ending.telling))
		ending.before();
	atomic_store(&ending.telling, true);
	while (!atomic_load(&ending.over)) {
		pthread_kill(ending.waiting, ending.first);
		clock_gettime(CLOCK_REALTIME, &next);
		next.tv_nsec += SIGNAL_AGAIN_NS;
		next.tv_sec += next.tv_nsec / 1000000000;
		next.tv_nsec %= 1000000000;
		sem_timedwait(&ending.came, &next);
	}
	return NULL;
}

/* Puts on_signal() in the place of libfuse's handlers. Those signals are blocked. */
static int have_it_end(void (*before)(void))
{
	struct sigaction action;

	ending.before = before;
	ending.waiting = pthread_self();
	if (sem_init(&ending.came, 0, 0) == -1 ||
		pthread_create(&ending.ending, NULL, end_session, NULL) != 0)
		return -1;
	ending.started = true;
	for (size_t i = 0; i < SIGNAL_COUNT; i++) {
		sigaction(signals[i], NULL, &action);
		if (action.sa_handler == SIG_IGN) /* by nohup(1) */
			continue;
		ending.libfuse = action.sa_handler;
		action.sa_handler = on_signal;
		sigaction(signals[i], &action, NULL);
	}
	return 0;
}

/* In this thread; old: what was blocked before. */
static void block_signals(sigset_t *old)
{
	sigset_t all;

	sigemptyset(&all);
	for (size_t i = 0; i < SIGNAL_COUNT; i++)
		sigaddset(&all, signals[i]);
	pthread_sigmask(SIG_BLOCK, &all, old);
}

int session_set_signal_handlers(struct fuse_session *session, void (*before)(void))
{
	sigset_t old;
	int result;

	block_signals(&old);
	result = fuse_set_signal_handlers(session);
	if (result == 0)
		result = have_it_end(before);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return result;
}

void session_ignore_signals(void)
{
	for (size_t i = 0; i < SIGNAL_COUNT; i++)
		signal(signals[i], SIG_IGN);
}

void session_end_signals(void)
{
	if (!ending.started)
		return;
	atomic_store(&ending.over, true);
	sem_post(&ending.came);
	pthread_join(ending.ending, NULL);
}

/* ---- the mount ---- */

static dev_t own_device;   /* of the mount; 0: unknown */
static uint64_t own_mount; /* its number, which no other mount ever gets; 0: unknown */

/* Since Linux 6.8. */
#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x4000U
#endif

/* The number of what is mounted at path, or 0. dead: nobody serves it any more. */
static uint64_t number_at(const char *path, bool *dead)
{
	struct statx stx;

	*dead = false;
	if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, STATX_MNT_ID_UNIQUE, &stx) == 0)
		return stx.stx_mask & STATX_MNT_ID_UNIQUE ? stx.stx_mnt_id : 0;
	*dead = errno == ENOTCONN || errno == ECONNABORTED;
	return 0;
}

/* Whether it is our own that is mounted at path, or one whose connection has ended. */
static bool is_own_or_dead(const char *path)
{
	bool dead;
	uint64_t number = number_at(path, &dead);

	return dead || (number && number == own_mount);
}

/*
 * The device of what is mounted at path, or 0. Asks nobody who serves it: that may be this process,
 * which does not at the time. One whose connection has ended is taken for our own.
 */
static dev_t device_at(const char *path)
{
	struct statx stx;

	if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, 0, &stx) == -1)
		return errno == ENOTCONN || errno == ECONNABORTED ? own_device : 0;
	return makedev(stx.stx_dev_major, stx.stx_dev_minor);
}

int session_mount(struct fuse_session *session, const char *mount_point)
{
	sigset_t old;
	bool dead;
	int result;

	/* libfuse may wait for mount(8), and gives up when a signal comes. */
	block_signals(&old);
	result = fuse_session_mount(session, mount_point);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	own_device = result == 0 ? device_at(mount_point) : 0;
	own_mount = result == 0 ? number_at(mount_point, &dead) : 0;
	return result;
}

/* Replaces what mountinfo writes as a backslash and three octal digits. */
static void unescape(char *text)
{
	char *to = text;

	for (const char *from = text; *from; to++) {
		if (*from == '\\' && strspn(from + 1, "01234567") >= 3) {
			*to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
			from += 4;
		} else {
			*to = *from++;
		}
	}
	*to = '\0';
}

/* Whether a line of mountinfo is of a mount of own_device as a whole, and nothing is upon it. */
static bool is_place(const char *line, char place[PATH_MAX])
{
	unsigned major, minor;
	int end;

	if (sscanf(line, "%*s %*s %u:%u %4095s %n", &major, &minor, place, &end) != 3 ||
		strcmp(place, "/") != 0 ||
		sscanf(line + end, "%4095s", place) != 1) /* PATH_MAX - 1 */
		return false;
	unescape(place);
	return makedev(major, minor) == own_device && device_at(place) == own_device;
}

const char *session_place(const char *mount_point)
{
	static _Thread_local char place[PATH_MAX];
	FILE *mounts;
	char *line = NULL;
	size_t size = 0;
	bool found = false;

	if (own_device == 0 || device_at(mount_point) == own_device)
		return mount_point;
	mounts = fopen("/proc/self/mountinfo", "re");
	while (mounts && !found && getline(&line, &size, mounts) > 0)
		found = is_place(line, place);
	free(line);
	if (mounts)
		fclose(mounts);
	return found ? place : NULL;
}

bool session_is_cut_off(struct fuse_session *session)
{
	struct pollfd device = {.fd = fuse_session_fd(session)};

	return poll(&device, 1, 0) == 1 && (device.revents & POLLERR);
}

int session_unmount(struct fuse_session *session, const char *mount_point, int result)
{
	const char *place;
	bool cut_off = session_is_cut_off(session);

	/* Before it unmounts: libfuse may wait for umount(8), and gives up when a signal comes. */
	session_ignore_signals();
	place = session_place(mount_point);
	if (place == mount_point)
		fuse_session_unmount(session);
	/*
	 * Which leaves one whose connection others have ended where it is. By then, the number of
	 * its device can be another mount's.
	 */
	if (place && (cut_off ? is_own_or_dead(place) : place != mount_point))
		umount2(place, MNT_DETACH | UMOUNT_NOFOLLOW);
	fuse_remove_signal_handlers(session);
	/* To a thread that took a request at that moment, the kernel says this of an unmount. */
	return result == -ECONNABORTED ? 0 : result;
}
