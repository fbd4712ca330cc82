/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Asynchronous client of an S3-compatible object store, on libcurl. It knows
 * objects and keys, and nothing of volumes.
 *
 * Each pool has its own thread and its own connections, so that background work
 * or a slow upload never holds up a read. A request is a struct of the caller's:
 * filled, given to s3_store_submit() and left alone until its done() is called,
 * exactly once, by the pool's thread. Bodies are sent from and received into the
 * caller's vectors.
 *
 * Retries are inside: connection errors, timeouts, 5xx, 429, 409 and replies
 * that are not what was asked for (cut short, another range) are tried again
 * with a fresh signature after a jittered and capped pause, until the deadline.
 * That is about failure: it counts from when the request has last moved before
 * its first attempt failed, and no attempt that moves is cut off, however slow
 * the line is, or many share it. What done() tells is final. Only a store's own
 * "NoSuchKey" is -ENOENT.
 *
 * Keys hold [a-z0-9/._-] only, without empty, "." or ".." segments.
 */
#ifndef USERBLK_S3_CLIENT_H
#define USERBLK_S3_CLIENT_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "backends/backend.h"

#define S3_KEY_MAX     512  /* bytes of a key, without its NUL */
#define S3_ETAG_MAX    128  /* bytes of an entity tag with its quotes, without its NUL */
#define S3_DELETE_MAX  1000 /* keys of one S3_DELETE_MANY */
#define S3_MESSAGE_MAX 512  /* bytes of a message with its NUL */

enum s3_op { S3_GET, S3_HEAD, S3_PUT, S3_DELETE, S3_DELETE_MANY, S3_LIST, S3_OPS };
enum s3_pool { S3_POOL_READ, S3_POOL_LOG, S3_POOL_BACKGROUND, S3_POOLS };
enum s3_addressing { S3_ADDRESSING_PATH, S3_ADDRESSING_VIRTUAL };

/* Filled by the rows of S3_STORE_PARAMS. Strings are the params'; the store copies them. */
struct s3_store_config {
	char *endpoint; /* http[s]://host[:port] */
	char *region;	/* "us-east-1" */
	char *bucket;
	unsigned addressing; /* enum s3_addressing */
	char *credentials;   /* file, or NULL: environment, else AWS's shared files */
	char *profile;	     /* of AWS's shared files, or NULL */
	char *ca_file;	     /* of certificates to trust, or NULL: the system's */
	bool tls_verify;
	uint64_t connections;	 /* of each pool */
	uint64_t timeout;	 /* seconds without progress before an attempt is given up */
	uint64_t retry_deadline; /* seconds that a request may fail; 0: forever */
	uint64_t hedge;		 /* percentile of latencies; 0: none */
};

extern const char *const s3_addressing_names[];

/* clang-format off */
/* Rows of a device's parameter table; MEMBER is the struct s3_store_config in its CONFIG. */
#define S3_STORE_PARAMS(CONFIG, MEMBER) \
{ \
	.name = "endpoint", \
	.alias = "endpoint-url", \
	.type = PARAM_STRING, \
	.offset = offsetof(CONFIG, MEMBER.endpoint), \
	.required = true, \
	.metavar = "URL", \
	.help = "the store, as http[s]://host[:port]", \
}, { \
	.name = "region", \
	.type = PARAM_STRING, \
	.offset = offsetof(CONFIG, MEMBER.region), \
	.default_value = "us-east-1", \
	.metavar = "NAME", \
	.help = "region that the bucket is in", \
}, { \
	.name = "bucket", \
	.type = PARAM_STRING, \
	.offset = offsetof(CONFIG, MEMBER.bucket), \
	.required = true, \
	.metavar = "NAME", \
	.help = "bucket that holds the volume; it must exist", \
}, { \
	.name = "addressing", \
	.type = PARAM_CHOICE, \
	.offset = offsetof(CONFIG, MEMBER.addressing), \
	.default_value = "path", \
	.choices = s3_addressing_names, \
	.help = "where requests name the bucket: in the path or in the host name", \
}, { \
	.name = "credentials", \
	.type = PARAM_PATH, \
	.offset = offsetof(CONFIG, MEMBER.credentials), \
	.metavar = "FILE", \
	.help = "file with access-key-id= and secret-access-key= lines, or in the " \
		"format of ~/.aws/credentials; without it the environment " \
		"(AWS_ACCESS_KEY_ID, ...), then ~/.aws/credentials, then the role of this " \
		"container or machine", \
}, { \
	.name = "profile", \
	.type = PARAM_STRING, \
	.offset = offsetof(CONFIG, MEMBER.profile), \
	.metavar = "NAME", \
	.help = "section of a file in the format of ~/.aws/credentials", \
}, { \
	.name = "ca-file", \
	.type = PARAM_PATH, \
	.offset = offsetof(CONFIG, MEMBER.ca_file), \
	.metavar = "FILE", \
	.help = "certificates to trust instead of the system's (PEM)", \
}, { \
	.name = "tls-verify", \
	.type = PARAM_BOOL, \
	.offset = offsetof(CONFIG, MEMBER.tls_verify), \
	.default_value = "on", \
	.help = "check the store's certificate", \
}, { \
	.name = "connections", \
	.type = PARAM_UINT, \
	.offset = offsetof(CONFIG, MEMBER.connections), \
	.default_value = "32", \
	.min = 1, \
	.max = 1024, \
	.metavar = "N", \
	.help = "connections to the store, each for reads, log and background work", \
}, { \
	.name = "timeout", \
	.type = PARAM_UINT, \
	.offset = offsetof(CONFIG, MEMBER.timeout), \
	.default_value = "30", \
	.min = 1, \
	.max = 3600, \
	.metavar = "SECONDS", \
	.help = "time without progress after which a request is repeated", \
}, { \
	.name = "retry-deadline", \
	.type = PARAM_UINT, \
	.offset = offsetof(CONFIG, MEMBER.retry_deadline), \
	.default_value = "0", \
	.max = 31536000, \
	.metavar = "SECONDS", \
	.help = "time after which a failing request ends with an error; 0: never, except 20 s " \
		"while opening the volume", \
}, { \
	.name = "hedge", \
	.type = PARAM_UINT, \
	.offset = offsetof(CONFIG, MEMBER.hedge), \
	.default_value = "0", \
	.max = 99, \
	.metavar = "PERCENTILE", \
	.help = "percentile of the recent latencies of reads, such as 95, after which a late " \
		"read is sent a second time; 0: never", \
}
/* clang-format on */

/* An object of a listing. */
struct s3_listed {
	char *key;
	uint64_t size;	  /* bytes */
	int64_t modified; /* seconds since 1970 */
	uint32_t tag;	  /* s3_etag_tag(); 0: the store does not tell */
	bool is_prefix;	  /* not an object: what several keys begin with, up to the delimiter */
};

/* A page of a listing, in the order of the keys (objects and prefixes apart). */
struct s3_listing {
	struct s3_listed *objects;
	size_t n_objects;
	char *token; /* for the next page; NULL: this was the last one */
};

void s3_listing_free(struct s3_listing *listing); /* what it holds, not the struct */

/* A digest (FNV-1a) of an etag, with or without its quotes; 0: of none. */
static inline uint32_t s3_etag_tag(const char *etag)
{
	uint32_t tag = 2166136261;

	if (!*etag)
		return 0;
	for (etag += etag[0] == 'W' && etag[1] == '/' ? 2 : 0; *etag; etag++)
		if (*etag != '"')
			tag = (tag ^ (uint8_t)*etag) * 16777619;
	return tag ? tag : 1;
}

/*
 * A request. Zero it, fill in the first part, submit it; it, and everything it
 * points at, stays untouched until done().
 *
 * GET	       length(iov) bytes at offset. An object that ends before that is an error
 *	       (-ERANGE) unless allow_short; then bytes tells how many there were.
 *	       object_size and etag are filled.
 * HEAD	       fills object_size and etag, or is -ENOENT. (Asks for the first byte, since
 *	       only the reply to a GET tells why there is nothing.)
 * PUT	       iov is the whole object; iovcnt may be 0. With if_none_match (*) or
 *	       if_match (an etag) it is -EEXIST when the condition does not hold. Fills etag.
 * DELETE      0 also when there was no such object.
 * DELETE_MANY the keys; 0 when all are gone, else the first one's error, and
 *	       key_results tells of each (0 or negative errno).
 * LIST	       one page of at most max_keys keys that begin with key (may be "") and come
 *	       after start_after (may be NULL), or that follow the page which gave
 *	       token; with delimiter those that hold a '/' after key are listed once, as
 *	       prefixes. Fills listing, which is the caller's to free.
 */
struct s3_request {
	enum s3_op op;
	enum s3_pool pool;
	const char *key; /* LIST: the prefix */
	const struct iovec *iov;
	int iovcnt;
	uint64_t offset;  /* GET: bytes */
	bool allow_short; /* GET */
	bool if_none_match;
	const char *if_match;  /* etag with its quotes, or NULL */
	const uint8_t *sha256; /* PUT: the body's digest (32 bytes) if at hand, or NULL */
	/* PUT: its CRC32C, signed, for the store to check the body by instead of a digest; or NULL
	 */
	const uint32_t *crc32c;
	bool crc32c_once; /* PUT: a body that it does not fit is -EBADMSG, and not tried again */
	const char *const *keys; /* DELETE_MANY */
	int *key_results;	 /* DELETE_MANY */
	size_t n_keys;		 /* DELETE_MANY: 1 to S3_DELETE_MAX */
	const char *start_after; /* LIST */
	const char *token;	 /* LIST */
	bool delimiter;		 /* LIST */
	unsigned max_keys;	 /* LIST: 0: 1000 */
	/* Seconds of failure after which it ends, in which none of it moves; 0: the store's */
	uint32_t retry_deadline;
	uint32_t limit; /* seconds after which it ends even if it moves; 0: none */
	bool droppable; /* s3_store_drop() ends it */
	/* Called once by the pool's thread, which it must not keep waiting; it may submit and may
	 * free the request. */
	void (*done)(struct s3_request *req);
	void *opaque;

	/*
	 * Filled before done().
	 * 0
	 * -ENOENT	no such object (and never anything else)
	 * -EEXIST	the condition of a PUT does not hold. With retries > 0 the object may be
	 *		this very one, from an attempt whose reply was lost: look at it.
	 * -ERANGE	GET: the object ends before the range does
	 * -EACCES	credentials are wrong or expired, may not do it, or the clock is off
	 * -ENXIO	no such bucket
	 * -EREMCHG	the bucket is in another region or at another endpoint
	 * -ENOSPC	the store is full
	 * -EOPNOTSUPP	the store does not know this kind of request
	 * -EBADMSG	PUT with crc32c_once: the body does not fit it
	 * -EPROTO	what answers is no S3 store, or its certificate is not trusted
	 * -EINVAL	the store found the request wrong in another way
	 * -EIO		still failing at the deadline (expired), or again and again with a reply to
	 *		something else
	 * -ESHUTDOWN	the store is being stopped, or no longer does what can be dropped
	 * A PUT or DELETE that ends in an error may happen all the same: s3_may_arrive().
	 */
	int result;
	uint64_t bytes;	      /* of body received (GET) or sent (PUT) */
	uint64_t object_size; /* GET, HEAD: bytes of the whole object */
	char etag[S3_ETAG_MAX + 1];
	struct s3_listing listing;
	unsigned retries;	      /* attempts before the last one */
	bool expired;		      /* it was still failing at the deadline */
	char message[S3_MESSAGE_MAX]; /* on error: one line, "PARAMETER=VALUE: what; remedy" */

	/* The store's own. */
	struct s3_request *next;
	uint64_t began, deadline, due; /* monotonic ns; deadline 0: none */
	uint64_t patience;	       /* ns from the last progress to the deadline */
	bool failing;		       /* an attempt has failed: the deadline stays */
	uint64_t length;	       /* bytes of iov */
	char *body;		       /* DELETE_MANY: XML */
	char md5[25];		       /* of body, in base64; "": there is no MD5 */
	uint8_t digest[32];	       /* SHA-256 of what is sent */
	unsigned mismatches;
	uint64_t refused; /* ns, when its credentials were for the first time; 0: not */
};

/*
 * May a PUT or DELETE that has ended in an error happen all the same? An attempt before the one
 * that was answered may have had no answer.
 */
static inline bool s3_may_arrive(const struct s3_request *req)
{
	return req->result == -EIO || req->result == -ESHUTDOWN || (req->result && req->retries);
}

struct s3_store;

/* Checks what one parameter alone cannot tell, without side effects. 0 or -EINVAL. */
int s3_store_check(const struct s3_store_config *config, struct params_error *error);
/*
 * Loads the credentials, for which a role's service may be asked; no threads. Errors are reported
 * through host->error. Later the store itself tells host->error when it is out of reach and when it
 * is back.
 */
int s3_store_open(const struct s3_store_config *config, const struct backend_host *host,
	struct s3_store **out);
/* Ends threads and connections until the next request, so that a fork may follow. No request may be
 * in flight. */
void s3_store_park(struct s3_store *store);
/*
 * Ends all requests, also those still to be submitted, with -ESHUTDOWN. Returns
 * at once: done() of those in flight is called by the threads.
 */
void s3_store_stop(struct s3_store *store);
/* The same of those requests alone that can be dropped. */
void s3_store_drop(struct s3_store *store);
/* s3_store_stop(), waits until every done() has returned, frees. NULL is fine. Not from a done().
 */
void s3_store_close(struct s3_store *store);

/*
 * Any thread. 0: accepted, done() will be called, always by the pool's thread, so
 * that the caller may hold locks. Otherwise it will not: -EINVAL: malformed (key,
 * vector); other negative errno: no thread can be made.
 */
int s3_store_submit(struct s3_store *store, struct s3_request *req);
/* Submits (done and opaque are overwritten) and waits. req->result. Not from a done(). */
int s3_store_call(struct s3_store *store, struct s3_request *req);

/* One kind of request, since the store was opened. */
struct s3_op_counters {
	uint64_t requests; /* answered, errors included */
	uint64_t errors; /* of these, those whose result was an error other than -ENOENT and -EEXIST
			  */
	uint64_t retries;
	uint64_t sent, received;  /* bytes of bodies, all attempts */
	uint64_t busy_ns, max_ns; /* from submit to done: sum and largest */
	uint64_t histogram[32];	  /* of the same: entry i counts those under 2^i microseconds */
};

/* The entry of such a histogram that counts what took ns. */
static inline unsigned s3_histogram_entry(uint64_t ns)
{
	uint64_t us = ns / 1000;
	unsigned entry = us ? 64 - (unsigned)__builtin_clzll(us) : 0;

	return entry < 32 ? entry : 31;
}

struct s3_store_counters {
	struct s3_op_counters ops[S3_OPS];
	uint64_t connections; /* made */
	uint64_t in_flight;   /* requests now */
	/* GETs that were sent twice, beside those in ops, and those of which the second was sooner
	 */
	uint64_t hedges, hedges_won;
};

void s3_store_counters(struct s3_store *store, struct s3_store_counters *counters);
/* For how long, in ns, every attempt has failed; 0: the last one that ended has not. */
uint64_t s3_store_outage(const struct s3_store *store);

#endif
