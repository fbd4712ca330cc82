/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the S3 client alone can move, which no device on top of it will exceed:
 * parallel PUTs and GETs of whole objects and ranged GETs of blocks, against a real
 * store, as rates and as processor time of this process. A line of JSON per row.
 *
 *   s3_client_bench endpoint=URL bucket=NAME credentials=FILE [row=put] [depth=N] [seconds=N] ...
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "backends/device.h"
#include "backends/s3/client/client.h"

struct config {
	struct s3_store_config store;
	uint64_t depth, seconds, object, block, objects;
	unsigned row; /* index of row_choices */
};

enum row { ROW_PUT, ROW_GET, ROW_GET_BLOCK, ROWS };
static const char *const row_names[ROWS] = {"put", "get", "get-range"};
static const char *const row_choices[] = {"put", "get", "get-range", "all", NULL};

static const struct param table[] = {
	S3_STORE_PARAMS(struct config, store),
	{.name = "row",
		.type = PARAM_CHOICE,
		.offset = offsetof(struct config, row),
		.default_value = "all",
		.choices = row_choices,
		.help = "what is measured"},
	{.name = "depth",
		.type = PARAM_UINT,
		.offset = offsetof(struct config, depth),
		.default_value = "16",
		.min = 1,
		.max = 1024,
		.help = "requests in flight"},
	{.name = "seconds",
		.type = PARAM_UINT,
		.offset = offsetof(struct config, seconds),
		.default_value = "5",
		.min = 1,
		.max = 3600,
		.help = "duration of a row"},
	{.name = "object",
		.type = PARAM_SIZE,
		.offset = offsetof(struct config, object),
		.default_value = "4M",
		.min = 4096,
		.max = 1u << 30,
		.help = "bytes of an object"},
	{.name = "block",
		.type = PARAM_SIZE,
		.offset = offsetof(struct config, block),
		.default_value = "4K",
		.min = 1,
		.max = 1u << 30,
		.help = "bytes of a ranged GET"},
	{.name = "objects",
		.type = PARAM_UINT,
		.offset = offsetof(struct config, objects),
		.default_value = "64",
		.min = 1,
		.max = S3_DELETE_MAX,
		.help = "how many objects there are"},
	{.name = NULL},
};

static const struct backend_ops options = {
	.name = "s3_client_bench", .params = table, .config_size = sizeof(struct config)};

struct slot {
	struct s3_request req;
	struct iovec iov;
	char key[48];
	struct slot *next;
};

static const struct config *config;
static struct s3_store *store;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct slot *idle;
static uint64_t in_flight, answered, next_object;
static double ends;
static char failure[S3_MESSAGE_MAX];
static enum row row;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void on_error(void *opaque, const char *message)
{
	(void)opaque;
	fprintf(stderr, "s3_client_bench: %s\n", message);
}

static void key_of(char *key, size_t room, uint64_t n)
{
	snprintf(key, room, "userblk-bench/%06" PRIu64, n);
}

static void done(struct s3_request *req);

/* Fills the slot in for the row and submits it. Without the lock: a digest takes its time. */
static void submit(struct slot *s)
{
	void *buffer = s->iov.iov_base;
	uint64_t n;
	int r;

	pthread_mutex_lock(&lock);
	n = next_object++;
	in_flight++;
	pthread_mutex_unlock(&lock);
	key_of(s->key, sizeof s->key, n % config->objects);
	s->req = (struct s3_request){
		.op = row == ROW_PUT ? S3_PUT : S3_GET,
		.pool = row == ROW_PUT ? S3_POOL_LOG : S3_POOL_READ,
		.key = s->key,
		.iov = &s->iov,
		.iovcnt = 1,
		.done = done,
		.opaque = s,
	};
	s->iov.iov_len = row == ROW_GET_BLOCK ? config->block : config->object;
	if (row == ROW_GET_BLOCK)
		s->req.offset = n * 7919 % (config->object / config->block) * config->block;
	if (row == ROW_PUT)
		memcpy(buffer, &n, sizeof n);
	r = s3_store_submit(store, &s->req);
	if (r) {
		pthread_mutex_lock(&lock);
		in_flight--;
		snprintf(failure, sizeof failure, "%s", strerror(-r));
		pthread_mutex_unlock(&lock);
	}
}

static void done(struct s3_request *req)
{
	struct slot *s = req->opaque;
	bool again;

	pthread_mutex_lock(&lock);
	in_flight--;
	answered++;
	if (req->result)
		snprintf(failure, sizeof failure, "%s", req->message);
	again = row != ROW_PUT && !failure[0] && now() < ends;
	if (!again) {
		s->next = idle;
		idle = s;
		pthread_cond_signal(&changed);
	}
	pthread_mutex_unlock(&lock);
	if (again)
		submit(s);
}

/* One row; silent: just that there are objects for the next one. False: it failed. */
static bool measure(enum row which, bool silent)
{
	double began = now(), cpu = cpu_seconds(), seconds;
	uint64_t bytes;

	pthread_mutex_lock(&lock);
	row = which;
	answered = 0;
	ends = silent ? began : began + (double)config->seconds;
	for (;;) {
		/* Every object must be there for the next row. */
		bool more = !failure[0] &&
			    (now() < ends ||
				    (row == ROW_PUT && answered + in_flight < config->objects));
		struct slot *s = more ? idle : NULL;

		if (s) {
			idle = s->next;
			pthread_mutex_unlock(&lock);
			submit(s);
			pthread_mutex_lock(&lock);
		} else if (!more && !in_flight) {
			break;
		} else {
			pthread_cond_wait(&changed, &lock);
		}
	}
	pthread_mutex_unlock(&lock);
	seconds = now() - began;
	cpu = cpu_seconds() - cpu;
	if (failure[0]) {
		on_error(NULL, failure);
		return false;
	}
	if (silent)
		return true;
	bytes = answered * (which == ROW_GET_BLOCK ? config->block : config->object);
	printf("{\"row\": \"%s\", \"bytes\": %" PRIu64 ", \"depth\": %" PRIu64
	       ", \"requests\": %" PRIu64 ", \"seconds\": %.3f, \"per_second\": %.1f, "
	       "\"mb_per_second\": %.1f, \"cpu_seconds_per_gb\": %.3f, \"cpu_us_per_request\": "
	       "%.1f}\n",
		row_names[which], which == ROW_GET_BLOCK ? config->block : config->object,
		config->depth, answered, seconds, (double)answered / seconds,
		1e-6 * (double)bytes / seconds, 1e9 * cpu / (double)bytes,
		1e6 * cpu / (double)answered);
	fflush(stdout);
	return true;
}

static void clean_up(void)
{
	static char keys[S3_DELETE_MAX][48];
	const char *list[S3_DELETE_MAX];
	int results[S3_DELETE_MAX];
	struct s3_request req = {.op = S3_DELETE_MANY,
		.pool = S3_POOL_BACKGROUND,
		.keys = list,
		.key_results = results,
		.n_keys = config->objects};

	for (uint64_t i = 0; i < config->objects; i++) {
		key_of(keys[i], sizeof keys[i], i);
		list[i] = keys[i];
	}
	if (s3_store_call(store, &req))
		on_error(NULL, req.message);
}

int main(int argc, char **argv)
{
	static const struct backend_host host = {.error = on_error};
	struct params *params = params_new(&options);
	struct params_error error;
	struct slot *slots;
	bool fine = true;
	int r = 0;

	for (int i = 1; r == 0 && i < argc; i++)
		r = params_set_string(params, argv[i], &error);
	if (r == 0)
		r = params_complete(params, false, &error);
	config = params_config(params);
	if (r == 0)
		r = s3_store_check(&config->store, &error);
	if (r) {
		on_error(NULL, error.text);
		return 2;
	}
	if (s3_store_open(&config->store, &host, &store))
		return 2;

	slots = calloc(config->depth, sizeof *slots);
	for (uint64_t i = 0; slots && i < config->depth; i++) {
		uint64_t room = config->object > config->block ? config->object : config->block;
		char *buffer = malloc(room);

		if (!buffer)
			abort();
		for (uint64_t b = 0; b < room; b++)
			buffer[b] = (char)(b * 2654435761u >> 13);
		slots[i].iov.iov_base = buffer;
		slots[i].next = idle;
		idle = &slots[i];
	}
	for (int i = 0; fine && i < ROWS; i++) {
		bool wanted = config->row == ROWS || config->row == (unsigned)i;

		if (wanted || i == ROW_PUT)
			fine = measure((enum row)i, !wanted);
	}
	clean_up();
	s3_store_close(store);
	for (uint64_t i = 0; slots && i < config->depth; i++)
		free(slots[i].iov.iov_base);
	free(slots);
	params_free(params);
	return fine ? 0 : 1;
}
