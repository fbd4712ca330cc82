/* SPDX-License-Identifier: BSD-3-Clause */
#include <err.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "backends/s3/admin/control.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/lifecycle/lifecycle.h"
#include "userblk-s3/session.h"

/* A server that says nothing for that long is opening its volume, or hangs. */
#define PATIENCE_S 10
/* Seconds after which the tool gives a request up, unless retry-deadline= says otherwise. */
#define RETRY_DEADLINE 60

static void host_error(void *opaque, const char *message)
{
	struct answer *answer = opaque;

	if (answer)
		progress_clear(&answer->progress);
	warnx("%s", message);
}

static void host_keep(void *opaque, const char *message)
{
	static const char progress[] = "(trying again)";
	struct params_error *kept = opaque, before = *kept;
	size_t length = strlen(message);

	if (length >= strlen(progress) &&
		strcmp(message + length - strlen(progress), progress) == 0) {
		warnx("%s", message);
		return;
	}
	/* What failed, then what it means for the next open. */
	params_error_set(kept, "%s%s%s", before.text, *before.text ? "; " : "", message);
}

struct backend_host session_host(struct answer *answer)
{
	return (struct backend_host){.opaque = answer, .error = host_error};
}

/* ---- the server -------------------------------------------------------------------------- */

/* A connection to the server at control=, of any volume; *fd is -1 if there is none. Negative
 * errno, reported.
 */
static int connect_server(const struct options *o, int *fd)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int r;

	*fd = -1;
	if (!o->config.control)
		return 0;
	strcpy(address.sun_path, o->config.control);
	*fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (*fd >= 0 && connect(*fd, (struct sockaddr *)&address, sizeof address) == 0)
		return 0;
	r = -errno;
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	if (r == -ENOENT || r == -ECONNREFUSED)
		return 0;
	warnx("control=%s: %s; name the socket of the volume's server, and run as its user",
		o->config.control, strerror(-r));
	return r;
}

static void set_patience(int fd, int seconds)
{
	const struct timeval time = {.tv_sec = seconds};

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
}

/* The first line tells that it is one of ours, the last one how it ended. */
static int take_answer(const struct options *o, FILE *stream, bool slow, struct answer *answer)
{
	char *line = NULL;
	size_t room = 0;
	bool greeted = false;
	int r = 1;

	while (r == 1 && (errno = 0, getline(&line, &room, stream) > 0)) {
		int code, start = 0;

		line[strcspn(line, "\n")] = 0;
		if (!greeted) {
			greeted = strncmp(line, "userblk-s3 ", 11) == 0;
			if (!greeted)
				break;
			if (slow)
				set_patience(fileno(stream), 0);
		} else if (strcmp(line, "ok") == 0) {
			r = 0;
		} else if (sscanf(line, "error %d %n", &code, &start) == 1 && start) {
			progress_clear(&answer->progress);
			warnx("%s", line + start);
			r = code > 0 ? -code : -EIO;
		} else {
			answer_line(answer, line);
		}
	}
	if (r == 1) {
		r = errno == EAGAIN ? -ETIMEDOUT : -EPIPE;
		progress_clear(&answer->progress);
		if (r == -ETIMEDOUT)
			warnx("control=%s: no answer in %d s; the server may still be opening "
			      "its volume",
				o->config.control, PATIENCE_S);
		else
			warnx("control=%s: the server ended before it had answered",
				o->config.control);
	}
	free(line);
	return r;
}

static int ask_server(int fd, const struct options *o, const char *request, struct answer *answer)
{
	bool slow = strcmp(request, "info") != 0 && strcmp(request, "stats") != 0;
	FILE *stream = fdopen(fd, "r");
	char *line;
	int r, length;

	if (!stream) {
		close(fd);
		return -ENOMEM;
	}
	length = asprintf(&line, "userblk-s3 %d %s\n", S3_CONTROL_VERSION, request);
	if (length < 0) {
		fclose(stream);
		return -ENOMEM;
	}
	set_patience(fd, PATIENCE_S);
	/* If it cannot be sent, the answer says why, or there is none, which is reported. */
	(void)send(fd, line, (size_t)length, MSG_NOSIGNAL);
	free(line);
	r = take_answer(o, stream, slow, answer);
	fclose(stream);
	return r;
}

/* Is the server's volume that of the command line? A file with both may be used for another one. */
static int recognize(int fd, const struct options *o)
{
	struct answer info = {.options = o};
	char keys[S3_KEY_MAX + 1];
	const char *theirs;
	int r = ask_server(fd, o, "info", &info);

	snprintf(keys, sizeof keys, "\"%s/%s/\"", o->config.prefix, o->config.volume);
	theirs = answer_value(&info, "keys");
	if (r == 0 && theirs && strcmp(theirs, keys) != 0) {
		warnx("control=%s: the server there serves %s, not %s; give the control= of the "
		      "right "
		      "server, or leave control= out",
			o->config.control, theirs, keys);
		r = -EINVAL;
	}
	answer_free(&info);
	return r;
}

/* A connection to the volume's server; *fd is -1 if there is none. Negative errno, reported. */
static int call_server(const struct options *o, int *fd)
{
	int r = connect_server(o, fd);

	if (r || *fd < 0)
		return r;
	r = recognize(*fd, o);
	*fd = -1;
	return r ? r : connect_server(o, fd);
}

int session_is_served(const struct options *o)
{
	int fd, r = call_server(o, &fd);

	if (r || fd < 0)
		return r;
	close(fd);
	return 1;
}

/* ---- the store ---------------------------------------------------------------------------- */

/* The user wants it to end. */
static _Atomic bool interrupted;

static void interrupt(int number)
{
	(void)number;
	atomic_store(&interrupted, true);
}

/*
 * A volume that is open for writing is closed before the program ends: otherwise it would count as
 * in use. A second signal ends the program at once.
 */
static void catch_signals(bool yes)
{
	static const int signals[] = {SIGHUP, SIGINT, SIGTERM};
	struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESETHAND | SA_RESTART};
	struct sigaction before;

	for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
		sigaction(signals[i], NULL, &before);
		if (before.sa_handler == SIG_IGN)
			continue; /* nohup */
		if (!yes)
			action = (struct sigaction){.sa_handler = SIG_DFL};
		sigaction(signals[i], &action, NULL);
	}
}

static int look(struct s3_volume *v, void *request)
{
	return s3_control_look(v, request);
}

int session_open(const struct options *o, const struct s3_config *config, const char *request,
	struct answer *answer, struct params_error *kept)
{
	struct s3_config c = *config;
	struct backend_host host = session_host(answer);
	struct s3_volume *v;
	int r, end;

	if (kept)
		host = (struct backend_host){.opaque = kept, .error = host_keep};
	c.use_default_deadline = !params_given(o->params, "retry-deadline");
	if (c.use_default_deadline)
		c.store.retry_deadline = RETRY_DEADLINE;
	/* The server's own. */
	c.control = c.cache_file = NULL;
	if (request && !c.create) {
		c.before_change = look;
		c.before_change_opaque = (void *)request;
	}
	catch_signals(!c.readonly);
	r = s3_volume_open(&c, 0, &host, &v);
	if (r == 0) {
		answer->opened = !c.readonly;
		if (atomic_load(&interrupted))
			r = -ECANCELED;
		else if (request)
			r = s3_control_perform(v, request, &interrupted, answer_line, answer);
		end = s3_volume_close(v);
		if (r == -ECANCELED)
			host_error(answer,
				end ? "interrupted" : "interrupted; the volume has been closed");
		r = r ? r : end;
	}
	catch_signals(false);
	return r;
}

int session_perform(
	const struct options *o, enum way way, const char *request, struct answer *answer)
{
	struct s3_config config = o->config;
	int fd, r = call_server(o, &fd);

	if (r)
		return r;
	if (fd >= 0) {
		answer->opened = true;
		return ask_server(fd, o, request, answer);
	}
	if (way == WAY_NONE) {
		warnx("control=%s: no server is there; name the socket of the volume's server",
			config.control);
		return -ENOENT;
	}
	/* Whatever the server's file says about serving it. */
	config.create = false;
	config.size = 0;
	config.readonly = way == WAY_READ;
	config.require_clean_close = !o->take_over;
	return session_open(o, &config, request, answer, NULL);
}
