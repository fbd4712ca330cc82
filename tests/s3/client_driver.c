/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The S3 client for tests: takes its parameters as arguments and commands on standard
 * input, and answers each with a line of JSON. Earlier errors are reported on
 * standard error, with exit status 2.
 *
 *   put KEY SIZE SEED [none-match] [match=ETAG] [digest]
 *   get KEY OFFSET LENGTH [short]	  head KEY	  delete KEY
 *   delete-many KEY...
 *   list PREFIX [delimiter] [after=KEY] [token=TOKEN] [max=N]
 *   parallel N COMMAND	   N times at once; a '%' in the key is its number
 *   abort N COMMAND	   the same, and closes the store at once: the last command
 *   drop N COMMAND	   the same, of which every other one can be dropped, and is at once
 *   counters	   park
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/device.h"
#include "backends/s3/client/client.h"
#include "backends/s3/client/sigv4.h"

struct config {
	struct s3_store_config store;
};

static const struct param table[] = {S3_STORE_PARAMS(struct config, store), {.name = NULL}};
static const struct backend_ops options = {
	.name = "client_driver", .params = table, .config_size = sizeof(struct config)};

/* Vectors of odd lengths: bodies do not come in one piece. */
#define VECTORS	  5
#define WORDS_MAX 1100

struct command {
	struct s3_request req;
	struct iovec iov[VECTORS];
	char *buffer;
	char key[S3_KEY_MAX + 2];
	const char *keys[S3_DELETE_MAX];
	int key_results[S3_DELETE_MAX];
	uint8_t digest[32];
	char *words[WORDS_MAX];
	char *line;
	int called; /* times of done() */
};

static struct s3_store *store;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static size_t in_flight;

static void on_error(void *opaque, const char *message)
{
	(void)opaque;
	fprintf(stderr, "%s\n", message);
}

static void die(const char *what)
{
	fprintf(stderr, "client_driver: %s\n", what);
	exit(2);
}

static void print_string(const char *text)
{
	putchar('"');
	for (const unsigned char *c = (const unsigned char *)text; *c; c++)
		if (*c == '"' || *c == '\\')
			printf("\\%c", *c);
		else if (*c < ' ')
			printf("\\u%04x", *c);
		else
			putchar(*c);
	putchar('"');
}

static void done(struct s3_request *req)
{
	struct command *c = req->opaque;

	pthread_mutex_lock(&lock);
	c->called++;
	in_flight--;
	pthread_cond_signal(&changed);
	pthread_mutex_unlock(&lock);
}

static void wait_for_all(void)
{
	pthread_mutex_lock(&lock);
	while (in_flight)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

/* Spreads length bytes over the vectors. */
static void set_body(struct command *c, size_t length)
{
	size_t at = 0;

	c->buffer = malloc(length ? length : 1);
	if (!c->buffer)
		die("out of memory");
	for (int i = 0; i < VECTORS; i++) {
		size_t n = i < VECTORS - 1 ? length / VECTORS / 3 * (size_t)i : length - at;

		c->iov[i] = (struct iovec){c->buffer + at, n};
		at += n;
	}
	c->req.iov = c->iov;
	c->req.iovcnt = length ? VECTORS : 0;
}

static void set_key(struct command *c, const char *word, size_t number)
{
	const char *percent = strchr(word, '%');

	if (percent)
		snprintf(c->key, sizeof c->key, "%.*s%zu%s", (int)(percent - word), word, number,
			percent + 1);
	else
		snprintf(c->key, sizeof c->key, "%s", word);
	c->req.key = c->key;
}

static const char *option(char **words, const char *name)
{
	size_t n = strlen(name);

	for (; *words; words++)
		if (strncmp(*words, name, n) == 0)
			return *words + n;
	return NULL;
}

/* Makes a request of a line. */
static struct command *parse(const char *line, size_t number)
{
	struct command *c = calloc(1, sizeof *c);
	char *rest, *word, **w;
	size_t n = 0;

	if (!c || !(c->line = strdup(line)))
		die("out of memory");
	rest = c->line;
	w = c->words;
	while (n < WORDS_MAX - 1 && (word = strsep(&rest, " ")))
		w[n++] = word;
	c->req.opaque = c;
	c->req.done = done;
	c->req.pool = S3_POOL_READ;
	if (strcmp(w[0], "put") == 0 && n >= 4) {
		size_t size = strtoull(w[2], NULL, 10);
		uint64_t x = strtoull(w[3], NULL, 10) * 2654435761u + 1;

		c->req.op = S3_PUT;
		c->req.pool = S3_POOL_LOG;
		set_key(c, w[1], number);
		set_body(c, size);
		for (size_t i = 0; i < size; i++) {
			x = x * 6364136223846793005u + 1442695040888963407u;
			c->buffer[i] = (char)(x >> 56);
		}
		c->req.if_none_match = option(w + 4, "none-match") != NULL;
		c->req.if_match = option(w + 4, "match=");
		if (option(w + 4, "digest")) {
			s3_sha256(c->buffer, size, c->digest);
			c->req.sha256 = c->digest;
		}
	} else if (strcmp(w[0], "get") == 0 && n >= 4) {
		c->req.op = S3_GET;
		set_key(c, w[1], number);
		c->req.offset = strtoull(w[2], NULL, 10);
		set_body(c, strtoull(w[3], NULL, 10));
		c->req.allow_short = option(w + 4, "short") != NULL;
	} else if (strcmp(w[0], "head") == 0 && n == 2) {
		c->req.op = S3_HEAD;
		set_key(c, w[1], number);
	} else if (strcmp(w[0], "delete") == 0 && n == 2) {
		c->req.op = S3_DELETE;
		set_key(c, w[1], number);
	} else if (strcmp(w[0], "delete-many") == 0) {
		c->req.op = S3_DELETE_MANY;
		c->req.pool = S3_POOL_BACKGROUND;
		c->req.keys = c->keys;
		c->req.key_results = c->key_results;
		c->req.n_keys = n - 1;
		for (size_t i = 1; i < n && i <= S3_DELETE_MAX; i++)
			c->keys[i - 1] = w[i];
	} else if (strcmp(w[0], "list") == 0 && n >= 2) {
		const char *max = option(w + 2, "max=");

		c->req.op = S3_LIST;
		c->req.pool = S3_POOL_BACKGROUND;
		set_key(c, w[1], number);
		c->req.delimiter = option(w + 2, "delimiter") != NULL;
		c->req.start_after = option(w + 2, "after=");
		c->req.token = option(w + 2, "token=");
		c->req.max_keys = max ? (unsigned)strtoul(max, NULL, 10) : 0;
	} else {
		die(line);
	}
	return c;
}

/* Submits; what is not accepted counts as done. */
static void submit(struct command *c)
{
	int r;

	pthread_mutex_lock(&lock);
	in_flight++;
	pthread_mutex_unlock(&lock);
	r = s3_store_submit(store, &c->req);
	if (r) {
		pthread_mutex_lock(&lock);
		in_flight--;
		pthread_mutex_unlock(&lock);
		c->called = 1;
		c->req.result = r;
	}
}

static void print_result(struct command *c)
{
	const struct s3_request *r = &c->req;
	uint8_t digest[32];
	char hex[S3_SHA256_HEX];

	printf("{\"result\": %d, \"called\": %d, \"retries\": %u, \"bytes\": %" PRIu64
	       ", \"object_size\": %" PRIu64 ", \"message\": ",
		r->result, c->called, r->retries, r->bytes, r->object_size);
	print_string(r->message);
	printf(", \"etag\": ");
	print_string(r->etag);
	if (c->buffer) {
		s3_sha256(c->buffer, r->op == S3_PUT ? r->length : r->bytes, digest);
		s3_hex(digest, sizeof digest, hex);
		printf(", \"sha256\": \"%s\"", hex);
	}
	if (r->op == S3_LIST) {
		printf(", \"objects\": [");
		for (size_t i = 0; i < r->listing.n_objects; i++) {
			const struct s3_listed *o = &r->listing.objects[i];

			printf("%s[", i ? ", " : "");
			print_string(o->key);
			printf(", %" PRIu64 ", %" PRId64 ", %s]", o->size, o->modified,
				o->is_prefix ? "true" : "false");
		}
		printf("], \"token\": ");
		if (r->listing.token)
			print_string(r->listing.token);
		else
			printf("null");
	}
	if (r->op == S3_DELETE_MANY) {
		printf(", \"key_results\": [");
		for (size_t i = 0; i < r->n_keys && i < S3_DELETE_MAX; i++)
			printf("%s%d", i ? ", " : "", r->key_results[i]);
		printf("]");
	}
	printf("}\n");
}

static void release(struct command *c)
{
	s3_listing_free(&c->req.listing);
	free(c->buffer);
	free(c->line);
	free(c);
}

/* N at once, and how many had which result. With closing, the store is closed under them. */
static void run_many(const char *line, bool closing, bool dropping)
{
	char *text;
	size_t n = strtoull(line, &text, 10);
	struct command **all = calloc(n, sizeof *all);
	int codes[64];
	size_t counts[64], n_codes = 0;
	uint64_t retries = 0;
	int worst = 1;
	const char *message = "";

	if (!all || *text++ != ' ')
		die(line);
	for (size_t i = 0; i < n; i++)
		all[i] = parse(text, i);
	for (size_t i = 0; i < n; i++) {
		all[i]->req.droppable = dropping && i % 2;
		submit(all[i]);
	}
	if (dropping)
		s3_store_drop(store);
	if (closing) {
		s3_store_close(store);
		store = NULL;
	} else {
		wait_for_all();
	}
	for (size_t i = 0; i < n; i++) {
		size_t at = 0;

		while (at < n_codes && codes[at] != all[i]->req.result)
			at++;
		if (at == n_codes) {
			codes[n_codes] = all[i]->req.result;
			counts[n_codes++] = 0;
		}
		counts[at]++;
		retries += all[i]->req.retries;
		if (all[i]->called != 1)
			worst = all[i]->called;
		if (all[i]->req.result)
			message = all[i]->req.message;
	}
	printf("{\"results\": {");
	for (size_t i = 0; i < n_codes; i++)
		printf("%s\"%d\": %zu", i ? ", " : "", codes[i], counts[i]);
	printf("}, \"called\": %d, \"in_flight\": %zu, \"retries\": %" PRIu64 ", \"message\": ",
		worst, in_flight, retries);
	print_string(message);
	printf("}\n");
	for (size_t i = 0; i < n; i++)
		release(all[i]);
	free(all);
}

static void print_counters(void)
{
	static const char *const names[S3_OPS] = {
		"get", "head", "put", "delete", "delete-many", "list"};
	struct s3_store_counters c;

	s3_store_counters(store, &c);
	printf("{\"connections\": %" PRIu64 ", \"hedges\": %" PRIu64 ", \"hedges_won\": %" PRIu64,
		c.connections, c.hedges, c.hedges_won);
	for (int i = 0; i < S3_OPS; i++) {
		const struct s3_op_counters *o = &c.ops[i];
		uint64_t sum = 0;

		for (int b = 0; b < 32; b++)
			sum += o->histogram[b];
		printf(", \"%s\": {\"requests\": %" PRIu64 ", \"errors\": %" PRIu64
		       ", \"retries\": %" PRIu64 ", \"sent\": %" PRIu64 ", \"received\": %" PRIu64
		       ", \"busy_ns\": %" PRIu64 ", \"max_ns\": %" PRIu64
		       ", \"histogram\": %" PRIu64 "}",
			names[i], o->requests, o->errors, o->retries, o->sent, o->received,
			o->busy_ns, o->max_ns, sum);
	}
	printf("}\n");
}

int main(int argc, char **argv)
{
	static const struct backend_host host = {.error = on_error};
	struct params *params = params_new(&options);
	const struct config *config = params_config(params);
	struct params_error error;
	char *line = NULL;
	size_t room = 0;
	ssize_t length;
	int r = 0;

	for (int i = 1; r == 0 && i < argc; i++)
		r = params_set_string(params, argv[i], &error);
	if (r == 0)
		r = params_complete(params, false, &error);
	if (r) {
		on_error(NULL, error.text);
		params_free(params);
		return 2;
	}
	if (s3_store_open(&config->store, &host, &store)) {
		params_free(params);
		return 2;
	}
	while (store && (length = getline(&line, &room, stdin)) > 0) {
		if (line[length - 1] == '\n')
			line[length - 1] = '\0';
		if (strncmp(line, "parallel ", 9) == 0) {
			run_many(line + 9, false, false);
		} else if (strncmp(line, "abort ", 6) == 0) {
			run_many(line + 6, true, false);
		} else if (strncmp(line, "drop ", 5) == 0) {
			run_many(line + 5, false, true);
		} else if (strcmp(line, "counters") == 0) {
			print_counters();
		} else if (strcmp(line, "park") == 0) {
			s3_store_park(store);
			printf("{}\n");
		} else {
			struct command *c = parse(line, 0);

			submit(c);
			wait_for_all();
			print_result(c);
			release(c);
		}
		fflush(stdout);
	}
	free(line);
	s3_store_close(store);
	params_free(params);
	return 0;
}
