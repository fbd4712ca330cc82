/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of the client share. client.h is for the others. */
#ifndef USERBLK_S3_CLIENT_INTERNAL_H
#define USERBLK_S3_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <curl/curl.h>

#include "backends/backend.h"
#include "backends/s3/client/client.h"
#include "backends/s3/client/credentials.h"
#include "backends/s3/client/names.h"
#include "backends/s3/client/reply.h"
#include "backends/s3/client/sigv4.h"

struct s3_keyring;

#define S3_SECOND	UINT64_C(1000000000)
#define S3_BUFFER_LARGE (512L << 10)

/* What is counted, by the pool's thread; read by any. */
struct s3_counters {
	_Atomic uint64_t requests, errors, retries, sent, received, busy_ns, max_ns;
	_Atomic uint64_t histogram[32];
};

struct s3_queue {
	struct s3_request *head, **tail;
};

/* An easy handle and the request on it. */
struct s3_transfer {
	CURL *easy;
	struct s3_connections *pool;
	struct s3_transfer *next; /* idle ones */
	struct s3_request *req;
	struct curl_slist *headers;
	uint64_t generation; /* of the credentials it is signed with */
	int vector;	     /* where in the request's vectors it is */
	size_t in_vector;
	uint64_t moved; /* bytes of the object */
	unsigned sends; /* how often libcurl sent it */
	/* For GETs that may be hedged: */
	uint64_t started;	  /* monotonic ns */
	struct s3_transfer *twin; /* the other attempt at the same request, or NULL */
	bool hedge;		  /* it is the second one */
	bool answered;		  /* the object's first byte has come */
	bool lost;		  /* the twin's came sooner */
	char error[CURL_ERROR_SIZE];
	/* The reply. */
	long status;
	bool has_range, has_length, mismatch;
	uint64_t first, last, object_size; /* of Content-Range */
	uint64_t length;		   /* Content-Length */
	char etag[S3_ETAG_MAX + 1];
	char region[64];
	time_t date;	  /* the store's; -1: unknown */
	time_t signed_at; /* what the signature says that the time is */
	char *text;	  /* a body that is not an object's */
	size_t text_length, text_room;
};

#define S3_HEDGE_CLASSES 6
#define S3_HEDGE_BUCKETS 168

/* What GETs of about one size took until the first byte came. */
struct s3_latencies {
	uint16_t buckets[S3_HEDGE_BUCKETS];
	uint32_t n;
	uint64_t late; /* ns after which one is late; 0: not known yet */
};

struct s3_hedging {
	struct s3_latencies classes[S3_HEDGE_CLASSES];
	unsigned credit; /* what hedges are paid with */
	bool starved;	 /* something is late, and could not be paid */
	uint64_t next;	 /* when something will be late; 0: nothing */
};

struct s3_connections {
	struct s3_store *store;
	pthread_mutex_t lock; /* guards the next three */
	struct s3_queue incoming;
	bool running, ending;

	pthread_t thread;
	int wake_fd, epoll_fd;
	/* The thread's own. */
	CURLM *multi;
	uint64_t timer; /* when libcurl wants to be called; 0: not at all */
	struct s3_queue ready;
	struct s3_request *delayed;    /* to be tried again when due */
	struct s3_transfer *transfers; /* one per connection */
	struct s3_transfer *idle;
	unsigned busy;
	struct s3_credentials credentials;
	struct s3_signer signer;
	uint64_t generation; /* of these; 0: none yet */
	uint64_t random;

	struct s3_hedging hedging;

	struct s3_counters ops[S3_OPS];
	_Atomic uint64_t connections, hedges, hedges_won;
};

struct s3_store {
	struct backend_host host;
	struct s3_endpoint endpoint;
	char *endpoint_text, *region, *bucket, *ca_file;
	char authority[340]; /* the header Host */
	bool path_addressing, tls_verify;
	unsigned connections;
	long timeout; /* seconds */
	uint64_t retry_deadline;
	uint64_t hedge; /* percentile; 0: none */

	struct s3_keyring *keyring;
	_Atomic bool stopping, dropping;
	_Atomic uint64_t in_flight; /* accepted, and done() has not returned */
	pthread_mutex_t idle_lock;
	pthread_cond_t idle;	      /* nothing in flight */
	_Atomic bool known;	      /* it has answered as an S3 store does */
	_Atomic int64_t clock_offset; /* s to be added to this host's time for a signature */
	/* An outage: since when nothing but failures, and whether the user knows. */
	pthread_mutex_t outage_lock;
	_Atomic uint64_t failing_since;
	bool outage_told;

	struct s3_connections pools[S3_POOLS];
};

/* ---- transfer.c ---- */

/* Puts a request at the end. */
void s3_queue_add(struct s3_queue *q, struct s3_request *req);
/* Takes the first request out; NULL: there is none. */
struct s3_request *s3_queue_take(struct s3_queue *q);
/* The request has ended with result: counts and calls done(). */
void s3_request_finish(struct s3_connections *p, struct s3_request *req, int result);
/* The same of one that the end of the store has overtaken. */
void s3_request_finish_stopped(struct s3_connections *p, struct s3_request *req);
/* Tries req again after a pause (retry_after: seconds that the store asks for), or gives it up. */
void s3_request_retry(struct s3_connections *p, struct s3_request *req, uint64_t retry_after);

/* ---- messages.c ---- */

extern const char *const s3_store_op_names[S3_OPS];
/* Writes the message of a request. */
void s3_store_say(struct s3_request *req, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Did the attempt fail because of TLS? */
bool s3_is_tls_error(CURLcode code);
/* Says why no answer came. */
void s3_store_say_no_answer(const struct s3_transfer *t, CURLcode code);
/* Says what an answer means. */
void s3_store_say_answer(
	const struct s3_transfer *t, const struct s3_error_reply *e, struct s3_verdict verdict);
/* An attempt failed: tells the user, once, of an outage that lasts. */
void s3_store_note_failure(struct s3_store *s, const struct s3_request *req);
/* The store has answered: the end of an outage. */
void s3_store_note_success(struct s3_store *s);

/* ---- callbacks.c ---- */

/* A request makes progress: it has its patience again, unless an attempt has failed before. */
void s3_request_progressed(struct s3_request *req);
/* The body is sent, or received, from its beginning again. */
void s3_transfer_rewind_body(struct s3_transfer *t);
/* As CURLOPT_READFUNCTION. */
size_t s3_transfer_on_read(char *buffer, size_t size, size_t n, void *opaque);
/* As CURLOPT_SEEKFUNCTION. */
int s3_transfer_on_seek(void *opaque, curl_off_t offset, int origin);
/* Just before each time that libcurl sends the request, which it may do twice by itself. */
int s3_transfer_on_send(void *opaque, char *local, char *remote, int local_port, int remote_port);
/* The reply to an attempt before this one is not this one's. */
void s3_transfer_forget_reply(struct s3_transfer *t);
/* As CURLOPT_HEADERFUNCTION. */
size_t s3_transfer_on_header(char *line, size_t size, size_t n, void *opaque);
/* Is the reply to a GET about the bytes that were asked for? */
bool s3_transfer_range_fits(const struct s3_transfer *t);
/* As CURLOPT_WRITEFUNCTION. */
size_t s3_transfer_on_write(char *data, size_t size, size_t n, void *opaque);

/* ---- attempt.c ---- */

/* Can nobody but the store itself have a part in what is sent? */
bool s3_transfer_protected(const struct s3_store *s);
/* Does a CRC32C stand for the body? */
bool s3_transfer_summed(const struct s3_request *req);
/* The transfer no longer has a request: puts it among the idle ones. */
void s3_transfer_release(struct s3_transfer *t);
/* Begins an attempt at a request, on an idle transfer. NULL: no memory. */
struct s3_transfer *s3_transfer_begin(struct s3_connections *p, struct s3_request *req);
/* The same of a request's only one; without memory the request is tried again later. */
void s3_transfer_start(struct s3_connections *p, struct s3_request *req);
/*
 * Was the request refused for its time? Then the next ones are signed with the store's: the clock
 * of this host has been stepped, or was never set.
 */
bool s3_transfer_correct_clock(const struct s3_transfer *t, const struct s3_error_reply *e);

/* ---- outcome.c ---- */

/* The transfer has ended, well or not. */
void s3_transfer_complete(struct s3_transfer *t, CURLcode code);

/* ---- hedge.c ---- */

/* The first attempt at a request has begun. */
void s3_hedge_began(struct s3_transfer *t);
/* A byte of the object has come. Is it to be taken? False: the other attempt was sooner. */
bool s3_hedge_claim(struct s3_transfer *t);
/* From now on only the other one of two attempts is left. */
void s3_hedge_part(struct s3_transfer *t);
/* Gives up the other attempt, if there is one. */
void s3_hedge_cancel_twin(struct s3_transfer *t);
/* Begins the second attempts that are due. When to look again, monotonic ns; 0: no need. */
uint64_t s3_hedge_look(struct s3_connections *p);

/* ---- pool.c ---- */

/* Starts the thread if there is none; lock is held. 0 or negative errno. */
int s3_pool_start(struct s3_connections *p);
/* Ends the thread of a pool. */
void s3_pool_end(struct s3_connections *p);

/* ns, monotonic. */
static inline uint64_t s3_client_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * S3_SECOND + (uint64_t)t.tv_nsec;
}

/* Adds to a counter that only this thread changes. */
static inline void s3_count_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* An empty queue. */
static inline void s3_queue_init(struct s3_queue *q)
{
	q->head = NULL;
	q->tail = &q->head;
}

#endif
