/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A volume of the S3 device for tests, with what no framework offers. Takes the device's
 * parameters as arguments and commands on standard input, each of which runs in a thread of its
 * own:
 *
 *   TAG COMMAND WORD...		  then, for write, LENGTH bytes
 *   TAG RESULT LENGTH			  the answer, then LENGTH bytes
 *
 *   write OFFSET LENGTH   read OFFSET LENGTH   trim OFFSET LENGTH   flush
 *   size   session   counters
 *   create NAME   delete NAME   rollback NAME   list
 *   clone SNAPSHOT PREFIX VOLUME   resize SIZE   rekey KEY (in hexadecimal digits)   gc
 *
 * An argument --clients-of=SESSION says that it has those of an earlier server; 0: of which
 * is not known.
 *
 * TAG 0 is answered when the volume is open. It is closed at the end of the input; exit status 1:
 * not all that was written is stored. Earlier errors are reported on standard error, with exit
 * status 2.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/admin/control.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/keeper/snapshot.h"

#define WORDS	     6
#define MAX_COUNTERS 64

static struct backend *device;
static struct s3_volume *volume;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, output = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static size_t running;

struct command {
	char *line;
	char *words[WORDS];
	char *data; /* of write and read; what the answer brings */
	size_t length;
};

static void on_error(void *opaque, const char *message)
{
	(void)opaque;
	fprintf(stderr, "%s\n", message);
}

static void on_resized(void *opaque, uint64_t size)
{
	(void)opaque;
	fprintf(stderr, "resized to %" PRIu64 "\n", size);
}

static void answer(const char *tag, int result, const char *data, size_t length)
{
	pthread_mutex_lock(&output);
	printf("%s %d %zu\n", tag, result, length);
	if (length)
		fwrite(data, 1, length, stdout);
	fflush(stdout);
	pthread_mutex_unlock(&output);
}

static int list(struct command *c)
{
	struct s3_snapshot_info *all;
	size_t n;
	FILE *out;
	int r = s3_snapshot_list(volume, &all, &n);

	if (r)
		return r;
	out = open_memstream(&c->data, &c->length);
	for (size_t i = 0; i < n; i++)
		fprintf(out, "%s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu32 "\n", all[i].name,
			all[i].seq, all[i].time, all[i].blocks, all[i].children);
	fclose(out);
	free(all);
	return 0;
}

static int counters(struct command *c)
{
	struct backend_counter all[MAX_COUNTERS];
	size_t n = backend_counters(device, all, MAX_COUNTERS);
	FILE *out = open_memstream(&c->data, &c->length);

	for (size_t i = 0; i < n && i < MAX_COUNTERS; i++)
		fprintf(out, "%s %" PRIu64 "\n", all[i].name, all[i].value);
	fclose(out);
	return 0;
}

static int size(struct command *c)
{
	struct backend_info info;
	int r = backend_info(device, &info);
	FILE *out = open_memstream(&c->data, &c->length);

	fprintf(out, "%" PRIu64, info.size);
	fclose(out);
	return r;
}

static int session(struct command *c)
{
	FILE *out = open_memstream(&c->data, &c->length);

	fprintf(out, "%" PRIu32, backend_session(device));
	fclose(out);
	return 0;
}

struct reported {
	uint64_t done, total, calls;
};

static bool tell(void *opaque, uint64_t done, uint64_t total)
{
	struct reported *reported = opaque;

	reported->done = done;
	reported->total = total;
	reported->calls++;
	return true;
}

static int ignore_line(void *opaque, const char *line)
{
	(void)opaque, (void)line;
	return 0;
}

static int rekey(const char *key)
{
	char request[256];

	snprintf(request, sizeof request, "rekey %s", key);
	return s3_control_perform(volume, request, NULL, ignore_line, NULL);
}

static int collect(struct command *c)
{
	struct reported reported = {0};
	int r = s3_volume_gc(volume, tell, &reported);
	FILE *out = open_memstream(&c->data, &c->length);

	fprintf(out, "%" PRIu64 " %" PRIu64 " %" PRIu64, reported.done, reported.total,
		reported.calls);
	fclose(out);
	return r;
}

static uint64_t number(const char *word)
{
	return word ? strtoull(word, NULL, 10) : 0;
}

static int run(struct command *c)
{
	char **w = c->words + 1;
	struct iovec iov = {c->data, c->length};

	if (strcmp(w[0], "write") == 0) {
		int r = backend_writev(device, &iov, 1, number(w[1]), 0);

		c->length = 0;
		return r;
	}
	if (strcmp(w[0], "read") == 0)
		return backend_readv(device, &iov, 1, number(w[1]));
	if (strcmp(w[0], "trim") == 0)
		return backend_trim(device, number(w[1]), number(w[2]), 0);
	if (strcmp(w[0], "flush") == 0)
		return backend_flush(device);
	if (strcmp(w[0], "size") == 0)
		return size(c);
	if (strcmp(w[0], "session") == 0)
		return session(c);
	if (strcmp(w[0], "counters") == 0)
		return counters(c);
	if (strcmp(w[0], "create") == 0)
		return s3_snapshot_create(volume, w[1]);
	if (strcmp(w[0], "delete") == 0)
		return s3_snapshot_delete(volume, w[1]);
	if (strcmp(w[0], "rollback") == 0)
		return s3_snapshot_rollback(volume, w[1]);
	if (strcmp(w[0], "list") == 0)
		return list(c);
	if (strcmp(w[0], "clone") == 0)
		return s3_volume_clone(volume, w[1], w[2], w[3]);
	if (strcmp(w[0], "resize") == 0)
		return s3_volume_resize(volume, number(w[1]));
	if (strcmp(w[0], "rekey") == 0)
		return rekey(w[1]);
	if (strcmp(w[0], "gc") == 0)
		return collect(c);
	return -ENOSYS;
}

static void *thread(void *opaque)
{
	struct command *c = opaque;
	int r = run(c);

	answer(c->words[0], r, c->data, r ? 0 : c->length);
	free(c->data);
	free(c->line);
	free(c);
	pthread_mutex_lock(&lock);
	running--;
	pthread_cond_signal(&changed);
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* Starts a command; takes line over. False: the input is none. */
static bool start(char *line)
{
	struct command *c = calloc(1, sizeof *c);
	char *rest = line;
	pthread_t id;
	bool data;

	if (!c)
		return false;
	c->line = line;
	for (int i = 0; i < WORDS - 1; i++)
		c->words[i] = strsep(&rest, " \n");
	if (!c->words[0] || !c->words[1])
		return false;
	data = strcmp(c->words[1], "write") == 0;
	if (data || strcmp(c->words[1], "read") == 0) {
		c->length = number(c->words[3]);
		c->data = malloc(c->length + 1);
		if (!c->data || (data && fread(c->data, 1, c->length, stdin) != c->length))
			return false;
	}
	pthread_mutex_lock(&lock);
	running++;
	pthread_mutex_unlock(&lock);
	if (pthread_create(&id, NULL, thread, c))
		return false;
	pthread_detach(id);
	return true;
}

int main(int argc, char **argv)
{
	static const char clients[] = "--clients-of=";
	struct backend_host host = {.error = on_error, .resized = on_resized};
	struct params *params = params_new(&s3_backend);
	struct params_error error;
	char *line = NULL;
	size_t room = 0;
	int r = 0;

	for (int i = 1; r == 0 && i < argc; i++)
		if (strncmp(argv[i], clients, strlen(clients)) == 0) {
			host.previous_session = (uint32_t)number(argv[i] + strlen(clients));
			if (host.previous_session == 0)
				host.previous_session = BACKEND_SESSION_UNKNOWN;
		} else {
			r = params_set_string(params, argv[i], &error);
		}
	if (r == 0)
		r = params_complete(params, false, &error);
	if (r) {
		on_error(NULL, error.text);
		params_free(params);
		return 2;
	}
	if (backend_open(params, 0, &host, &device)) {
		params_free(params);
		return 2;
	}
	volume = (struct s3_volume *)device;
	backend_start(device);
	answer("0", 0, NULL, 0);
	while (getline(&line, &room, stdin) > 0) {
		if (!start(line)) {
			on_error(NULL, "volume_driver: no command");
			return 2;
		}
		line = NULL;
		room = 0;
	}
	free(line);
	pthread_mutex_lock(&lock);
	while (running)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	r = backend_close(device);
	params_free(params);
	return r ? 1 : 0;
}
