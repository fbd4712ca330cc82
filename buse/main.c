/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * userblk-buse: the architecture that the BDUS paper measures as BUSE, a server
 * at one end of a socket pair, Linux's nbd driver at the other, and one request at
 * a time.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "buse/disk.h"
#include "buse/serve.h"

/* Exit codes: of a mistake that a user can mend, and of what the kernel or the machine refuses. */
#define EXIT_USAGE  2
#define EXIT_FAILED 1

#define MAX_TIMEOUT 86400

static const struct backend_ops *const devices[] = {&null_backend, &passthrough_backend, NULL};

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
	int result;
};

static void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void complain(const char *format, ...)
{
	va_list args;

	fputs("userblk-buse: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

static _Atomic bool error_told;

static void host_error(void *opaque, const char *message)
{
	(void)opaque;
	error_told = true;
	complain("%s", message);
}

static void print_help(void)
{
	printf("Usage: userblk-buse [OPTION]... DEVICE [KEY=VALUE]...\n"
	       "Serves a block device as /dev/nbdN, one request at a time, until it is told to "
	       "end.\n"
	       "\nOptions:\n"
	       "    --disk=/dev/nbdN\n        the disk (default: the first free one)\n"
	       "    --timeout=S\n        seconds after which the kernel gives a request up "
	       "(default: 0, never)\n"
	       "    --json\n        print JSON once the disk can be used\n"
	       "    --help\n        this text\n"
	       "    --version\n        the version\n");
	params_print_devices(devices);
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
	char *end;
	long seconds;
	int got;

	opterr = 0;
	while ((got = getopt_long(argc, argv, ":", table, NULL)) != -1) {
		switch (got) {
		case 'd':
			if (!names_disk(optarg)) {
				complain("--disk=%s: no disk of the nbd driver; name /dev/nbdN",
					optarg);
				return EXIT_USAGE;
			}
			o->disk = optarg;
			break;
		case 't':
			errno = 0;
			seconds = strtol(optarg, &end, 10);
			if (end == optarg || *end || errno || seconds < 0 ||
				seconds > MAX_TIMEOUT) {
				complain("--timeout=%s: must be a number from 0 to %d", optarg,
					MAX_TIMEOUT);
				return EXIT_USAGE;
			}
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
			complain("%s: %s; see userblk-buse --help", argv[optind - 1],
				got == ':' ? "needs a value" : "no such option");
			return EXIT_USAGE;
		}
	}
	o->params = params_from_words(devices, argv + optind, &error);
	if (!o->params) {
		complain("%s", error.text);
		return EXIT_USAGE;
	}
	return -1;
}

static void *run(void *opaque)
{
	struct server *s = opaque;

	s->result = serve(s->device, s->socket);
	/* The kernel sees the end of the disk by this. */
	shutdown(s->socket, SHUT_RDWR);
	return NULL;
}

static void block_signals(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGHUP);
	sigaddset(set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, set, NULL);
}

/* Until the disk has ended, by whomever. 0 or an exit code. */
static int wait_for_end(const struct disk *disk, const sigset_t *set)
{
	int code = 0, number;

	while (!disk->ended) {
		int r;

		if (sigwait(set, &number) != 0 || number == SIGUSR1)
			continue;
		r = disk_sync(disk);
		if (r < 0) {
			complain("%s: the last writes are lost: %s", disk->path, strerror(-r));
			code = EXIT_FAILED;
		}
		disk_disconnect(disk);
	}
	return code;
}

/* From the open device to its end. An exit code. */
static int serve_device(struct backend *device, const struct options *o, const sigset_t *set)
{
	const struct backend_host host = {.error = host_error};
	struct server server = {.device = device};
	struct backend_info info;
	struct disk disk;
	pthread_t thread;
	char counters[1024];
	int code, r = backend_info(device, &info);

	if (r < 0) {
		complain("cannot examine the device: %s", strerror(-r));
		return EXIT_FAILED;
	}
	r = disk_attach(&disk, o->disk, o->timeout, &info, &host);
	if (r < 0)
		return r == -EBUSY || r == -EINVAL ? EXIT_USAGE : EXIT_FAILED;
	server.socket = disk.sockets[1];
	r = -pthread_create(&thread, NULL, run, &server);
	if (r < 0) {
		complain("cannot start a thread: %s", strerror(-r));
		shutdown(disk.sockets[1], SHUT_RDWR);
		disk_detach(&disk);
		return EXIT_FAILED;
	}
	if (o->json)
		printf("{\"disk\": \"%s\", \"size\": %" PRIu64 "}\n", disk.path, disk.size);
	else
		printf("%s\n", disk.path);
	fflush(stdout);
	code = wait_for_end(&disk, set);
	pthread_join(thread, NULL);
	disk_detach(&disk);
	if (disk.result < 0)
		complain("%s: the kernel gave the disk up: %s", disk.path, strerror(-disk.result));
	if (backend_counters_text(device, counters, sizeof counters))
		complain("counters:%s", counters);
	return server.result < 0 || disk.result < 0 ? EXIT_FAILED : code;
}

int main(int argc, char **argv)
{
	const struct backend_host host = {.error = host_error};
	struct options o = {0};
	struct backend *device;
	sigset_t set;
	int r = parse(argc, argv, &o);

	if (r >= 0)
		return r;
	/* Before there are threads, which inherit both. */
	block_signals(&set);
	/* Its memory must not be freed by writing to its own disk: prctl(2). Needs privileges. */
	prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
	r = backend_open(o.params, 0, &host, &device);
	if (r == 0) {
		backend_start(device);
		r = serve_device(device, &o, &set);
		if (backend_close(device) < 0)
			r = EXIT_FAILED;
	} else {
		/* A device tells what a user can mend, and only that. */
		if (!error_told)
			complain("cannot open the %s device: %s", params_ops(o.params)->name,
				strerror(-r));
		r = error_told ? EXIT_USAGE : EXIT_FAILED;
	}
	params_free(o.params);
	return r;
}
