/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * userblk-openloop: random requests that begin when a Poisson process says so, whatever became of
 * those before.
 *
 * A latency is from the moment at which a request was due, not from that at which it was
 * issued: what waited because the device, or this program, was late has waited. As many requests
 * are under way as it takes. fio has an open loop, too (io_submit_mode=offload), with a thread for
 * each request under way; it hangs before fio 3.42, and with rate_iops alone fio waits for all
 * requests under way before it sleeps until the next.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <liburing.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "harness/flow/random.h"
#include "harness/flow/results.h"
#include "harness/flow/stats.h"
#include "programs/exit_codes.h"

#define SECOND	      UINT64_C(1000000000) /* ns */
#define QUEUE	      4096
#define COMPLETIONS   65536
#define BUFFERS	      256
#define FIRST_SLOTS   4096
#define LONGEST_SLEEP (SECOND / 10)

static const char usage[] =
	"Usage: userblk-openloop OPTION... FILE\n"
	"Read or write blocks of FILE at random, at times that do not depend on how long they "
	"take.\n"
	"\n"
	"      --rw=MODE         randread (default) or randwrite, which destroys what is in FILE\n"
	"      --bs=BYTES        size of a block\n"
	"      --size=BYTES      use the first BYTES of FILE\n"
	"      --rate=N          requests a second, on average: a Poisson process\n"
	"      --ramp=SECONDS    discard the first SECONDS (default 0)\n"
	"      --runtime=SECONDS measure for SECONDS after that\n"
	"      --threads=N       N threads share the rate (default 1)\n"
	"      --seed=N          seed of times and places (default 1)\n"
	"      --json=FILE       write the results to FILE\n"
	"      --help            show this text\n"
	"      --version         show the version\n"
	"\n"
	"See userblk-openloop(1).\n";

struct options {
	const char *file, *json;
	bool write;
	double block_size, size, rate, ramp, runtime, threads, seed;
};

/* A request under way: when it was due. Those that are free are a list. */
struct slot {
	uint64_t intended;
	unsigned next;
};

#define NONE UINT32_MAX

struct worker {
	const struct options *options;
	uint64_t begin, from, end; /* ns: of all, of what is measured, of the last start */
	unsigned number;
	pthread_t thread;
	int fd;
	struct io_uring ring;
	char *buffers;
	struct rng rng;
	struct slot *slots;
	unsigned slot_count, free, in_flight, most_in_flight;
	uint64_t issued, completed, left, errors;
	int error;		   /* the first, or of the program's own */
	bool out_of_memory;	   /* the program itself */
	struct stats_live latency; /* of requests that were due while measured */
	struct stats_live lag;	   /* of those, how much later each was issued */
};

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
}

/* Until the next arrival, ns: exponentially distributed. */
static uint64_t gap(struct worker *w)
{
	double rate = w->options->rate / w->options->threads;

	return (uint64_t)(-log1p(-rng_unit(&w->rng)) / rate * 1e9);
}

static bool more_slots(struct worker *w)
{
	unsigned count = w->slot_count ? 2 * w->slot_count : FIRST_SLOTS;
	struct slot *slots = realloc(w->slots, count * sizeof(*slots));

	if (!slots)
		return false;
	for (unsigned i = w->slot_count; i < count; i++)
		slots[i].next = i + 1 < count ? i + 1 : NONE;
	w->free = w->slot_count;
	w->slots = slots;
	w->slot_count = count;
	return true;
}

/* Puts one into the queue. False if it has no room, or no memory is left. */
static bool issue(struct worker *w, uint64_t intended)
{
	const struct options *o = w->options;
	uint64_t block = (uint64_t)o->block_size, offset;
	struct io_uring_sqe *sqe;
	unsigned slot;

	if (w->free == NONE && !more_slots(w)) {
		w->out_of_memory = true;
		w->error = ENOMEM;
		return false;
	}
	sqe = io_uring_get_sqe(&w->ring);
	if (!sqe)
		return false;
	slot = w->free;
	w->free = w->slots[slot].next;
	w->slots[slot].intended = intended;
	offset = rng_below(&w->rng, (uint64_t)o->size / block) * block;
	char *buffer = w->buffers + slot % BUFFERS * block;

	if (o->write)
		io_uring_prep_write(sqe, w->fd, buffer, (unsigned)block, offset);
	else
		io_uring_prep_read(sqe, w->fd, buffer, (unsigned)block, offset);
	io_uring_sqe_set_data64(sqe, slot);
	if (++w->in_flight > w->most_in_flight)
		w->most_in_flight = w->in_flight;
	if (intended >= w->from) {
		uint64_t now = clock_ns();

		w->issued++;
		stats_record(&w->lag, now > intended ? now - intended : 0, 0);
	}
	return true;
}

static void completed(struct worker *w, unsigned slot, int result)
{
	uint64_t intended = w->slots[slot].intended, now = clock_ns();

	w->slots[slot].next = w->free;
	w->free = slot;
	w->in_flight--;
	if (result != (int)w->options->block_size) {
		w->errors++;
		if (!w->error)
			w->error = result < 0 ? -result : EIO;
	}
	w->completed += now >= w->from && now < w->end;
	if (intended >= w->from)
		stats_record(&w->latency, now - intended, (uint64_t)w->options->block_size);
}

static void reap(struct worker *w)
{
	struct io_uring_cqe *cqe;
	unsigned head, count = 0;

	io_uring_for_each_cqe(&w->ring, head, cqe)
	{
		completed(w, (unsigned)io_uring_cqe_get_data64(cqe), cqe->res);
		count++;
	}
	io_uring_cq_advance(&w->ring, count);
}

/* Submits what is queued, and waits for a completion until a time at most. False: the ring is of no
 * use. */
static bool submit(struct worker *w, uint64_t until)
{
	uint64_t now = clock_ns(), left = until > now ? until - now : 0;
	struct __kernel_timespec ts = {
		.tv_sec = (long long)(left / SECOND), .tv_nsec = (long long)(left % SECOND)};
	struct io_uring_cqe *cqe;
	int r;

	if (left)
		r = io_uring_submit_and_wait_timeout(&w->ring, &cqe, 1, &ts, NULL);
	else
		r = io_uring_submit(&w->ring);
	/* EBUSY and EAGAIN: completions have to be reaped first. */
	if (r >= 0 || r == -ETIME || r == -EINTR || r == -EBUSY || r == -EAGAIN)
		return true;
	w->error = -r;
	return false;
}

static void *run(void *argument)
{
	struct worker *w = argument;
	uint64_t next = w->begin + gap(w);
	bool ended = false;

	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	while (next < w->end || w->in_flight) {
		uint64_t now = clock_ns();

		while (next <= now && next < w->end && issue(w, next))
			next += gap(w);
		if (w->out_of_memory)
			break;
		if (!submit(w, next < w->end ? next : now + LONGEST_SLEEP))
			break;
		reap(w);
		if (!ended && clock_ns() >= w->end) {
			ended = true;
			w->left = w->in_flight;
		}
	}
	return NULL;
}

/* Returns 0 or an error number. */
static int prepare(struct worker *w)
{
	const struct options *o = w->options;
	struct io_uring_params params = {
		.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP, .cq_entries = COMPLETIONS};
	size_t bytes = BUFFERS * (size_t)o->block_size;
	void *buffers;
	int r;

	rng_seed(&w->rng, (uint64_t)o->seed, w->number);
	stats_live_init(&w->latency);
	stats_live_init(&w->lag);
	w->free = NONE;
	r = posix_memalign(&buffers, 4096, bytes);
	if (r)
		return r;
	w->buffers = buffers;
	rng_fill(&w->rng, buffers, bytes); /* what is written must not compress */
	if (!more_slots(w))
		return ENOMEM;
	return -io_uring_queue_init_params(QUEUE, &w->ring, &params);
}

/* False with errno. */
static bool write_results(const struct options *o, struct worker *workers)
{
	static struct stats latency, lag;
	uint64_t issued = 0, done = 0, left = 0, errors = 0, most = 0;
	FILE *out = results_open(o->json);

	if (!out)
		return false;
	for (unsigned i = 0; i < (unsigned)o->threads; i++) {
		struct worker *w = &workers[i];

		stats_add_live(&latency, &w->latency);
		stats_add_live(&lag, &w->lag);
		issued += w->issued;
		done += w->completed;
		left += w->left;
		errors += w->errors;
		most += w->most_in_flight;
	}
	fprintf(out,
		"{\"version\": \"%s\", \"rate\": %.3f, \"runtime_s\": %.3f, \"measured_from\": "
		"%.6f,\n"
		" \"issued\": %" PRIu64 ", \"completed\": %" PRIu64 ", \"left\": %" PRIu64
		", \"errors\": %" PRIu64 ", \"most_in_flight\": %" PRIu64 ",\n ",
		USERBLK_VERSION, o->rate, o->runtime, (double)workers->from / 1e9, issued, done,
		left, errors, most);
	stats_print(out, "latency_ns", &latency);
	fputs(",\n ", out);
	stats_print(out, "lag_ns", &lag);
	fputs("}\n", out);
	return results_close(out, o->json);
}

static int fail(const char *what, int error)
{
	fprintf(stderr, "userblk-openloop: %s: %s\n", what, strerror(error));
	return EXIT_FAILURE;
}

/* Requests beyond its end would fail, or make it larger. False: it does not fit, which was
 * reported. */
static bool fits(const struct options *o, int fd)
{
	off_t size = lseek(fd, 0, SEEK_END);

	if (size >= 0 && o->size <= (double)size)
		return true;
	fprintf(stderr, "userblk-openloop: --size=%.0f: %s has %jd bytes; use at most these\n",
		o->size, o->file, (intmax_t)size);
	return false;
}

static int measure(const struct options *o)
{
	unsigned count = (unsigned)o->threads;
	struct worker *workers;
	int fd = open(o->file, (o->write ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC);
	int error = 0;

	if (fd < 0)
		return fail(o->file, errno);
	if (!fits(o, fd))
		return EXIT_USAGE;
	workers = aligned_alloc(_Alignof(struct worker), count * sizeof(*workers));
	if (!workers)
		return fail("workers", ENOMEM);
	memset(workers, 0, count * sizeof(*workers));
	for (unsigned i = 0; i < count && !error; i++) {
		workers[i].options = o;
		workers[i].fd = fd;
		workers[i].number = i;
		error = prepare(&workers[i]);
	}
	if (error)
		return fail("io_uring", error);

	uint64_t begin = clock_ns() + SECOND / 100;
	unsigned started = 0;

	for (; started < count && !error; started++) {
		struct worker *w = &workers[started];

		w->begin = begin;
		w->from = begin + (uint64_t)(o->ramp * 1e9);
		w->end = w->from + (uint64_t)(o->runtime * 1e9);
		error = pthread_create(&w->thread, NULL, run, w);
	}
	if (error) /* the others end with the process */
		return fail("thread", error);
	for (unsigned i = 0; i < count; i++)
		pthread_join(workers[i].thread, NULL);
	for (unsigned i = 0; i < count && !error; i++)
		error = workers[i].error;
	if (!write_results(o, workers))
		return fail(o->json, errno);
	return error ? fail(o->file, error) : 0;
}

/* A number between two limits, a whole one if it has to be. False: text is not such a number;
 * reported.
 */
static bool number(
	const char *name, const char *text, double least, double most, bool whole, double *value)
{
	char *end;

	*value = strtod(text, &end);
	if (end != text && !*end && *value >= least && *value <= most &&
		(!whole || floor(*value) == *value))
		return true;
	fprintf(stderr, "userblk-openloop: --%s=%s: must be a%s number from %.16g to %.16g\n", name,
		text, whole ? " whole" : "", least, most);
	return false;
}

enum {
	OPTION_RW = 256,
	OPTION_BS,
	OPTION_SIZE,
	OPTION_RATE,
	OPTION_RAMP,
	OPTION_RUNTIME,
	OPTION_THREADS,
	OPTION_SEED,
	OPTION_JSON,
	OPTION_HELP,
	OPTION_VERSION
};

static const struct option words[] = {
	{"rw", required_argument, NULL, OPTION_RW},
	{"bs", required_argument, NULL, OPTION_BS},
	{"size", required_argument, NULL, OPTION_SIZE},
	{"rate", required_argument, NULL, OPTION_RATE},
	{"ramp", required_argument, NULL, OPTION_RAMP},
	{"runtime", required_argument, NULL, OPTION_RUNTIME},
	{"threads", required_argument, NULL, OPTION_THREADS},
	{"seed", required_argument, NULL, OPTION_SEED},
	{"json", required_argument, NULL, OPTION_JSON},
	{"help", no_argument, NULL, OPTION_HELP},
	{"version", no_argument, NULL, OPTION_VERSION},
	{NULL, 0, NULL, 0},
};

/* False: it is wrong, which was reported. word: the last one that was read. */
static bool take(struct options *o, int option, const char *text, const char *word)
{
	const char *refused;

	switch (option) {
	case OPTION_RW:
		o->write = !strcmp(text, "randwrite");
		if (o->write || !strcmp(text, "randread"))
			return true;
		fprintf(stderr, "userblk-openloop: --rw=%s: must be randread or randwrite\n", text);
		return false;
	case OPTION_BS:
		return number("bs", text, 512, 1 << 24, true, &o->block_size);
	case OPTION_SIZE:
		return number("size", text, 512, 0x1p53, true, &o->size);
	case OPTION_RATE:
		return number("rate", text, 0.001, 1e8, false, &o->rate);
	case OPTION_RAMP:
		return number("ramp", text, 0, 1e6, false, &o->ramp);
	case OPTION_RUNTIME:
		return number("runtime", text, 0.001, 1e6, false, &o->runtime);
	case OPTION_THREADS:
		return number("threads", text, 1, 1024, true, &o->threads);
	case OPTION_SEED:
		return number("seed", text, 0, 0x1p53, true, &o->seed);
	case OPTION_JSON:
		o->json = text;
		refused = results_refused(text);
		if (!refused)
			return true;
		fprintf(stderr,
			"userblk-openloop: --json=%s: %s; name a file that can be written\n", text,
			refused);
		return false;
	default:
		fprintf(stderr, "userblk-openloop: %s: %s; see userblk-openloop --help\n", word,
			option == ':' ? "needs a value" : "no such option");
		return false;
	}
}

int main(int argc, char **argv)
{
	struct options o = {.threads = 1, .seed = 1};
	const char *missing;
	struct stat st;
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, ":", words, NULL)) != -1) {
		if (option == OPTION_HELP) {
			fputs(usage, stdout);
			return 0;
		}
		if (option == OPTION_VERSION) {
			puts("userblk-openloop " USERBLK_VERSION);
			return 0;
		}
		if (!take(&o, option, optarg, argv[optind - 1]))
			return EXIT_USAGE;
	}
	missing = optind == argc      ? "FILE"
		  : o.block_size == 0 ? "--bs"
		  : o.size == 0	      ? "--size"
		  : o.rate == 0	      ? "--rate"
		  : o.runtime == 0    ? "--runtime"
		  : !o.json	      ? "--json"
				      : NULL;
	if (missing || optind + 1 < argc) {
		fprintf(stderr, "userblk-openloop: %s: %s; see userblk-openloop --help\n",
			missing ? missing : argv[optind + 1],
			missing ? "missing" : "one argument too many");
		return EXIT_USAGE;
	}
	if (o.size < o.block_size) {
		fprintf(stderr, "userblk-openloop: --size=%.0f: is less than --bs=%.0f\n", o.size,
			o.block_size);
		return EXIT_USAGE;
	}
	o.file = argv[optind];
	if (stat(o.file, &st)) {
		fprintf(stderr,
			"userblk-openloop: %s: %s; name a block device or file that exists\n",
			o.file, strerror(errno));
		return EXIT_USAGE;
	}
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode)) {
		fprintf(stderr,
			"userblk-openloop: %s: neither a block device nor a regular file; name "
			"one\n",
			o.file);
		return EXIT_USAGE;
	}
	return measure(&o);
}
