/* SPDX-License-Identifier: BSD-3-Clause */
/* The socket at which an open volume can be asked. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "backends/backend.h"
#include "backends/s3/admin/control.h"
#include "backends/s3/admin/internal.h"
#include "backends/s3/core/volume.h"

/* A client that sends or takes nothing for that long is left alone. */
#define REQUEST_S 2
#define REPLY_S	  10

/* The answer to a command that comes at the end, or that the end stops. */
#define ENDING "the server is ending"

/* ---- the socket ---------------------------------------------------------------------- */

struct s3_control {
	struct s3_volume *v;
	struct backend_host outer; /* where the volume reported its errors */
	struct sockaddr_un address;
	dev_t device; /* the socket's own */
	ino_t inode;
	int listener, wake;
	pthread_t thread;
	bool running;
	_Atomic bool stop; /* long commands must end */

	pthread_mutex_t lock;
	/* Below: under it. */
	/* The last ones of the volume since a request began: of the socket's thread, which answers
	 * at once, and of all others, of which one may be a job. */
	char quick_error[1024], error[1024];
	bool ending;	 /* no long command begins from now on */
	bool performing; /* a long command; then only the end of its answer is sent */
	bool job_made;	 /* there is a thread of the last long command, which must be joined */
	pthread_t job;
	bool earlier_made; /* and of the one before it, which the thread of the last one joins */
	pthread_t earlier;
	int job_fd;
	char job_request[S3_CONTROL_LINE_MAX];
};

static _Thread_local bool in_socket_thread;

static void host_error(void *opaque, const char *message)
{
	struct s3_control *c = opaque;

	pthread_mutex_lock(&c->lock);
	snprintf(in_socket_thread ? c->quick_error : c->error, sizeof c->error, "%s", message);
	pthread_mutex_unlock(&c->lock);
	c->outer.error(c->outer.opaque, message);
}

static void host_debug(void *opaque, const char *message)
{
	struct s3_control *c = opaque;

	if (c->outer.debug)
		c->outer.debug(c->outer.opaque, message);
}

/* Sends all of it. Negative: the client is gone. */
static int send_all(int fd, const char *data, size_t length)
{
	while (length) {
		ssize_t n = send(fd, data, length, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -EPIPE;
		data += n;
		length -= (size_t)n;
	}
	return 0;
}

static int send_line(void *opaque, const char *line)
{
	char text[S3_CONTROL_LINE_MAX + 2];
	int n = snprintf(text, sizeof text, "%s\n", line);

	return send_all(*(int *)opaque, text, (size_t)n);
}

static void send_end(int fd, int r, const char *why)
{
	char text[S3_CONTROL_LINE_MAX];

	if (r)
		snprintf(text, sizeof text, "error %d %s", -r, why);
	else
		snprintf(text, sizeof text, "ok");
	send_line(&fd, text);
}

/* Performs a request and sends the whole answer. */
static void answer(struct s3_control *c, int fd, const char *request)
{
	char why[sizeof c->error], *error = in_socket_thread ? c->quick_error : c->error;
	int r;

	pthread_mutex_lock(&c->lock);
	error[0] = 0;
	pthread_mutex_unlock(&c->lock);
	r = s3_control_perform(c->v, request, &c->stop, send_line, &fd);
	pthread_mutex_lock(&c->lock);
	if (r == -ECANCELED && atomic_load(&c->stop)) {
		r = -ESHUTDOWN;
		snprintf(why, sizeof why, "%s", ENDING);
	} else {
		snprintf(why, sizeof why, "%s", error[0] ? error : strerror(-r));
	}
	/* Before the client knows: it may ask for the next one at once. */
	if (!in_socket_thread) {
		OPENSSL_cleanse(c->job_request, sizeof c->job_request); /* a key, perhaps */
		c->performing = false;
	}
	pthread_mutex_unlock(&c->lock);
	send_end(fd, r, why);
	close(fd);
}

static void *job(void *opaque)
{
	struct s3_control *c = opaque;
	pthread_t earlier;
	bool join;
	int fd;

	/* The next job may replace them as soon as this one's command has been performed. */
	pthread_mutex_lock(&c->lock);
	fd = c->job_fd;
	earlier = c->earlier;
	join = c->earlier_made;
	pthread_mutex_unlock(&c->lock);
	answer(c, fd, c->job_request);
	/* Its client may take the end of the answer slowly: the socket's thread does not wait for
	 * that. */
	if (join)
		pthread_join(earlier, NULL);
	return NULL;
}

/* Begins what takes long. 0 or negative errno, *why says it. */
static int start_job(struct s3_control *c, int fd, const char *request, const char **why)
{
	pthread_t thread;
	int r = 0;

	pthread_mutex_lock(&c->lock);
	if (c->ending) {
		r = -ESHUTDOWN;
		*why = ENDING;
	} else if (c->performing) {
		r = -EBUSY;
		*why = "the server is busy with another command; wait for it";
	} else {
		c->earlier = c->job;
		c->earlier_made = c->job_made;
		c->job_fd = fd;
		snprintf(c->job_request, sizeof c->job_request, "%s", request);
		r = -pthread_create(&thread, NULL, job, c);
		*why = strerror(-r);
	}
	if (r == 0) {
		c->job = thread;
		c->job_made = c->performing = true;
	}
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* Reads a line, without its newline. 0 or negative errno. */
static int receive_line(int fd, char *line, size_t room)
{
	size_t n = 0;

	while (n + 1 < room) {
		ssize_t got = recv(fd, line + n, room - 1 - n, 0);
		char *end;

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return -EPIPE;
		end = memchr(line + n, '\n', (size_t)got);
		n += (size_t)got;
		if (end) {
			*end = 0;
			return 0;
		}
	}
	return -EMSGSIZE;
}

/* A client has connected. */
static void converse(struct s3_control *c, int fd)
{
	const struct timeval request_time = {.tv_sec = REQUEST_S}, reply_time = {.tv_sec = REPLY_S};
	char line[S3_CONTROL_LINE_MAX], copy[sizeof line];
	const struct s3_command *command = NULL;
	const char *words[S3_MAX_WORDS], *why = "";
	unsigned version = 0;
	int r, start = 0;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &request_time, sizeof request_time);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &reply_time, sizeof reply_time);
	r = receive_line(fd, line, sizeof line);
	if (r == -EMSGSIZE) {
		why = "the request is too long";
	} else if (r == 0 && (sscanf(line, "userblk-s3 %u %n", &version, &start) != 1 || !start)) {
		r = -EPROTO;
		why = "write userblk-s3 1 REQUEST";
	} else if (r == 0 && version != S3_CONTROL_VERSION) {
		r = -EPROTO;
		why = "this server speaks version 1; use the userblk-s3 of its release";
	} else if (r == 0) {
		strcpy(copy, line + start);
		command = s3_control_parse(copy, words);
		why = command ? "" : "no such request";
		r = command ? 0 : -EINVAL;
	}
	if (r == -EPIPE) {
		close(fd);
		return;
	}
	snprintf(copy, sizeof copy, "userblk-s3 %d", S3_CONTROL_VERSION);
	send_line(&fd, copy);
	if (r == 0 && command->slow)
		r = start_job(c, fd, line + start, &why);
	else if (r == 0)
		answer(c, fd, line + start);
	OPENSSL_cleanse(line, sizeof line);
	OPENSSL_cleanse(copy, sizeof copy);
	if (r == 0)
		return;
	send_end(fd, r, why);
	close(fd);
}

static void *serve(void *opaque)
{
	struct s3_control *c = opaque;
	struct pollfd fds[] = {
		{.fd = c->listener, .events = POLLIN}, {.fd = c->wake, .events = POLLIN}};

	in_socket_thread = true;
	for (;;) {
		int fd;

		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			break;
		if (fds[1].revents)
			break;
		fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0)
			converse(c, fd);
		else if (errno == EMFILE || errno == ENFILE)
			usleep(100000); /* not to wait for it at full speed */
	}
	return NULL;
}

/* ---- where the socket is --------------------------------------------------------------- */

/* Locks the directory of the path against others who make or remove sockets. -1: no lock. */
static int lock_directory(const char *path)
{
	char directory[sizeof((struct sockaddr_un *)0)->sun_path];
	char *slash;
	int fd;

	strcpy(directory, path);
	slash = strrchr(directory, '/');
	slash[slash == directory] = 0;
	fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0)
		flock(fd, LOCK_EX);
	return fd;
}

/* Removes a socket that nobody listens at. 0; -EADDRINUSE: somebody does; -EEXIST: no socket. */
static int remove_stale(const struct sockaddr_un *address)
{
	struct stat st;
	int fd, r = 0;

	if (lstat(address->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* EAGAIN: it listens, and others wait already. */
	if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 || errno == EAGAIN)
		r = -EADDRINUSE;
	else if (errno != ECONNREFUSED)
		r = -errno;
	close(fd);
	if (r == 0 && unlink(address->sun_path) < 0)
		r = -errno;
	return r;
}

static int make_socket(struct s3_control *c)
{
	struct stat st;

	c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* Before it has a name, so that nobody else can ever connect. */
	if (c->listener < 0 || fchmod(c->listener, 0600) < 0 ||
		bind(c->listener, (struct sockaddr *)&c->address, sizeof c->address) < 0)
		return -errno;
	if (listen(c->listener, 16) < 0 || lstat(c->address.sun_path, &st) < 0) {
		int r = -errno;

		unlink(c->address.sun_path);
		return r;
	}
	c->device = st.st_dev;
	c->inode = st.st_ino;
	return 0;
}

static int refuse(const struct s3_control *c, int r)
{
	const char *path = c->address.sun_path;

	if (r == -EADDRINUSE)
		backend_error(&c->outer,
			"control=%s: a server is listening there; stop it, or choose another path",
			path);
	else if (r == -EEXIST)
		backend_error(&c->outer,
			"control=%s: exists and is not a socket; choose another path", path);
	else
		backend_error(&c->outer,
			"control=%s: cannot make a socket: %s; choose another path", path,
			strerror(-r));
	return r;
}

void s3_control_free(struct s3_control *c)
{
	if (!c)
		return;
	if (c->listener >= 0)
		close(c->listener);
	if (c->wake >= 0)
		close(c->wake);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

int s3_control_open(struct s3_volume *v, const char *path)
{
	struct s3_control *c = calloc(1, sizeof *c);
	int directory, r;

	if (!c)
		return -ENOMEM;
	pthread_mutex_init(&c->lock, NULL);
	c->v = v;
	c->outer = v->host;
	c->listener = -1;
	c->address.sun_family = AF_UNIX;
	strcpy(c->address.sun_path, path);
	c->wake = eventfd(0, EFD_CLOEXEC);
	r = c->wake < 0 ? -errno : 0;
	directory = lock_directory(path);
	if (r == 0)
		r = remove_stale(&c->address);
	if (r == 0)
		r = make_socket(c);
	if (directory >= 0)
		close(directory);
	if (r) {
		refuse(c, r);
		s3_control_free(c);
		return r;
	}
	v->host = (struct backend_host){.opaque = c, .error = host_error, .debug = host_debug};
	v->control = c;
	return 0;
}

void s3_control_start(struct s3_control *c)
{
	sigset_t all, before;
	int r;

	if (!c || c->running)
		return;
	/* Signals are the framework's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&c->thread, NULL, serve, c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	c->running = r == 0;
	if (r)
		backend_error(&c->outer, "control=%s: cannot make a thread: %s",
			c->address.sun_path, strerror(r));
}

void s3_control_end_jobs(struct s3_control *c)
{
	if (!c)
		return;
	atomic_store(&c->stop, true);
	pthread_mutex_lock(&c->lock);
	c->ending = true;
	pthread_mutex_unlock(&c->lock);
}

void s3_control_finish_job(struct s3_control *c)
{
	if (c && c->job_made)
		pthread_join(c->job, NULL);
	if (c)
		c->job_made = false;
}

void s3_control_close(struct s3_control *c)
{
	struct stat st;
	int directory;

	if (!c)
		return;
	s3_control_end_jobs(c);
	/* What waits for the store may need an abort. */
	s3_control_finish_job(c);
	if (c->running) {
		eventfd_write(c->wake, 1);
		pthread_join(c->thread, NULL);
	}
	directory = lock_directory(c->address.sun_path);
	/* Not one that somebody else has put there since. */
	if (lstat(c->address.sun_path, &st) == 0 && st.st_dev == c->device && st.st_ino == c->inode)
		unlink(c->address.sun_path);
	if (directory >= 0)
		close(directory);
	close(c->listener);
	c->listener = -1;
	c->v->control = NULL;
}
