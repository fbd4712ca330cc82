/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * userblk-buse: the architecture that the BDUS paper measures as BUSE, a server
 * at one end of a socket pair, Linux's nbd driver at the other, and one request at
 * a time.
 */
#include <err.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "backends/program.h"
#include "buse/disk.h"
#include "buse/serve.h"
#include "programs/end_signals.h"
#include "programs/exit_codes.h"
#include "programs/standard_files.h"

#define MAX_TIMEOUT 86400

struct options {
	const char *disk;
	unsigned timeout;
	bool json;
	struct params *params;
};

/* What the thread that serves needs, and how it ended. */
struct server {
	struct backend *device;
	int socket;
	pthread_t main; /* gets SIGUSR1 then */
	_Atomic bool ended;
	int result;
};

static void print_help(void)
{
	printf("Usage: userblk-buse [OPTION]... DEVICE [KEY=VALUE]...\n"
	       "Serves a block device as /dev/nbdN, one request at a time, until a signal "
	       "ends it.\n"
	       "\nOptions:\n"
	       "    --disk=/dev/nbdN\n        the disk (default: the first free one, or a new "
	       "one)\n"
	       "    --timeout=S\n        seconds after which the kernel aborts a request "
	       "(default: 0, never)\n"
	       "    --json\n        print JSON once the disk can be used\n"
	       "    --help\n        show this text\n"
	       "    --version\n        show the version\n");
	params_print_devices();
}

/* Is it "/dev/nbdN"? */
static bool names_disk(const char *path)
{
	static const char prefix[] = "/dev/nbd";
	size_t length = strlen(prefix);

	return strncmp(path, prefix, length) == 0 && path[length] && strlen(path) < 24 &&
	       strspn(path + length, "0123456789") == strlen(path + length);
}

/* -1: go on; else an exit code. */
static int parse(int argc, char **argv, struct options *o)
{
	static const struct option table[] = {
		{"disk", required_argument, NULL, 'd'},
		{"timeout", required_argument, NULL, 't'},
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{0},
	};
	struct params_error error;
	long seconds;
	int got;

	opterr = 0;
	while ((got = getopt_long(argc, argv, ":", table, NULL)) != -1) {
		switch (got) {
		case 'd':
			if (!names_disk(optarg)) {
				warnx("--disk=%s: not a disk of the nbd driver; name /dev/nbdN",
					optarg);
				return EXIT_USAGE;
			}
			o->disk = optarg;
			break;
		case 't':
			if (!program_number("timeout", optarg, 0, MAX_TIMEOUT, &seconds))
				return EXIT_USAGE;
			o->timeout = (unsigned)seconds;
			break;
		case 'j':
			o->json = true;
			break;
		case 'h':
			print_help();
			return 0;
		case 'V':
			printf("userblk-buse %s\n", USERBLK_VERSION);
			return 0;
		default:
			return program_wrong_option(got, argv[optind - 1]);
		}
	}
	o->params = params_from_argv(argv + optind, &error);
	if (!o->params) {
		warnx("%s", error.text);
		return EXIT_USAGE;
	}
	return -1;
}

static void *run(void *opaque)
{
	struct server *s = opaque;

	s->result = serve(s->device, s->socket);
	/* Requests that are still to come fail at once. */
	shutdown(s->socket, SHUT_RDWR);
	s->ended = true;
	pthread_kill(s->main, SIGUSR1);
	return NULL;
}

/* set: those to wait for. */
static void block_signals(sigset_t *set)
{
	/* An ignored one, which is inherited, tells of no end of a process. */
	signal(SIGCHLD, SIG_DFL);
	end_signals(set);
	sigaddset(set, SIGUSR1);
	sigaddset(set, SIGCHLD);
	pthread_sigmask(SIG_BLOCK, set, NULL);
}

/* What was written is in the device, and the disk goes. False: not all of it is. */
static bool end_disk(struct disk *disk)
{
	int r = disk_sync(disk);

	if (r < 0)
		warnx("%s: the last writes are lost: %s", disk->path, strerror(-r));
	disk_disconnect(disk);
	return r == 0;
}

/* Waits until the disk is gone, by us or by another program. Returns 0 or an exit code. */
static int wait_for_end(struct disk *disk, struct server *server, const sigset_t *set)
{
	int code = 0, number;
	bool asked = false;

	while (!server->ended) {
		/* A disk that is being disconnected answers no flush. */
		if (sigwait(set, &number) != 0 || number == SIGUSR1 || asked)
			continue;
		if (number == SIGCHLD) {
			if (!guard_has_died(&disk->guard))
				continue;
			warnx("%s: the process that would remove it after a kill of this one was "
			      "itself killed; the disk is written back and removed",
				disk->path);
			code = EXIT_FAILURE;
		}
		asked = true;
		if (!end_disk(disk))
			code = EXIT_FAILURE;
	}
	return asked || server->result == SERVE_GOODBYE ? code : EXIT_FAILURE;
}

/* From the connected disk to its end. An exit code. */
static int serve_disk(
	struct disk *disk, struct server *server, const struct options *o, const sigset_t *set)
{
	int code;

	if (disk_open(disk, &program_host) < 0)
		return EXIT_FAILURE;
	if (o->json)
		printf("{\"disk\": \"%s\", \"size\": %" PRIu64 "}\n", disk->path, disk->size);
	else
		printf("%s\n", disk->path);
	fflush(stdout);
	code = wait_for_end(disk, server, set);
	if (code && server->result == SERVE_HUNG_UP && disk->index >= 0)
		warnx("%s: the kernel closed the disk%s", disk->path,
			o->timeout ? ": a request took longer than --timeout" : "");
	return code;
}

/* From the open device to its end. An exit code. */
static int serve_device(
	struct disk *disk, struct backend *device, const struct options *o, const sigset_t *set)
{
	struct server server = {
		.device = device, .socket = disk->sockets[1], .main = pthread_self()};
	struct backend_info info;
	pthread_t thread;
	int code, r = backend_info(device, &info);

	if (r < 0) {
		warnx("cannot examine the device: %s", strerror(-r));
		return EXIT_FAILURE;
	}
	r = disk_connect(disk, o->disk, o->timeout, &info, &program_host);
	if (r < 0)
		return r == -EBUSY || r == -EINVAL || r == -ENOTTY ? EXIT_USAGE : EXIT_FAILURE;
	backend_start(device);
	r = -pthread_create(&thread, NULL, run, &server);
	if (r < 0) {
		warnx("cannot start a thread: %s", strerror(-r));
		/* The disk goes without waiting for a server. */
		shutdown(server.socket, SHUT_RDWR);
		return EXIT_FAILURE;
	}
	code = serve_disk(disk, &server, o, set);
	disk_disconnect(disk);
	pthread_join(thread, NULL);
	program_tell_counters(device);
	return server.result < 0 ? EXIT_FAILURE : code;
}

int main(int argc, char **argv)
{
	struct options o = {0};
	struct backend *device;
	struct disk disk;
	sigset_t set;
	int r;

	open_standard_files();
	r = parse(argc, argv, &o);
	if (r >= 0)
		return r;
	/* The disk must not end with the reader of its messages. */
	signal(SIGPIPE, SIG_IGN);
	/* Both before there are threads, which inherit the one and would not be in the other. */
	block_signals(&set);
	r = disk_prepare(&disk);
	if (r < 0) {
		warnx("cannot start a process: %s", strerror(-r));
		r = EXIT_FAILURE;
	} else {
		r = program_open(o.params, &device);
	}
	if (r == 0) {
		r = serve_device(&disk, device, &o, &set);
		disk_close(&disk);
		if (backend_close(device) < 0)
			r = EXIT_FAILURE;
	}
	disk_close(&disk);
	params_free(o.params);
	return r;
}
