/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of the simulated store share: its objects, its faults, and requests on their way.
 */
#ifndef USERBLK_TESTS_SIMULATION_STORE_INTERNAL_H
#define USERBLK_TESTS_SIMULATION_STORE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/simulation/store.h"

#define EPISODES 8

extern const char *const op_names[S3_OPS];

/* ---- store_faults.c ---------------------------------------------------------------------------
 */

/* What comes of an attempt besides its effect. */
enum outcome { FINE, REQUEST_LOST, REPLY_LOST, LATE, REFUSED, FAILED_AFTER };

/* A time in which requests of one kind fail. */
struct episode {
	uint64_t from, until;
	enum { EPISODE_503, EPISODE_SILENT, EPISODE_SLOW } kind;
	unsigned ops;		/* bits of enum s3_op */
	const char *part;	/* of the key; "" all */
	uint64_t one_of;	/* one key of so many; 0: all of them */
	uint64_t before, after; /* EPISODE_SLOW: ns until the effect, and from there to the reply */
};

extern struct store_faults {
	bool calm;
	uint64_t calm_at;      /* since when */
	uint64_t given_up_at;  /* a request that began before, for the last time */
	uint64_t base_ns;      /* latency */
	uint64_t tail, far;    /* once in so many requests it is 10 or 100 times that */
	uint64_t lost_request; /* once in so many; 0: never */
	uint64_t lost_reply, late, refused, failed_after;
	uint64_t repeated; /* once in so many PUTs, which a proxy sends again */
	uint64_t late_ns, silence_ns;
	uint64_t room; /* bytes that the store takes while it is not calm; 0: any */
	bool full_code;
	bool missing_is_412; /* an If-Match for an object that is not there: 412, or 404 */
	uint64_t late_deletions;
	const char *refused_again; /* part of the keys of PUTs whose second attempt is; or NULL */
	bool hostile;		   /* listings have keys that were not asked for */
	bool empty_pages;	   /* listings begin with a page without keys */
	bool in_order;		   /* requests of a killed sender no longer take effect */
	uint64_t line;		   /* bytes a second in each direction; 0: any */
	uint64_t line_changes;	   /* once in so many attempts */
	unsigned n_episodes;
	struct episode episodes[EPISODES];
} faults;

/* The episode that a request falls into now, or NULL. */
const struct episode *episode_of(enum s3_op op, const char *key);
/* ns from the client to the store, or back. */
uint64_t draw_latency(void);
enum outcome draw_outcome(void);
/* An attempt begins: the line may be another one from now on. */
void line_may_change(void);

/* ---- store_line.c -----------------------------------------------------------------------------
 */

struct flight;

/* Calls carried when so many bytes of a flight have been, or it was dropped, or its sender killed.
 */
void line_carry(struct flight *f, bool down, uint64_t bytes,
	void (*carried)(void *opaque, uint64_t unused), void *opaque);
/* Nothing more of it needs the line. */
void line_drop(const struct flight *f);
void line_change(uint64_t bytes_per_s);

/* ---- store_client.c ---------------------------------------------------------------------------
 */

struct pool {
	struct s3_store *store;
	struct s3_request *done, **done_tail; /* whose done() must be called */
	struct flight *ready, **ready_tail;   /* wait for a connection */
	struct sim_queue work, joiners;
	unsigned busy, in_flight;
	bool running, ending, held; /* held: its process is paused */
};

struct s3_store {
	struct sim_process *process;
	struct backend_host host;
	struct pool pools[S3_POOLS];
	struct flight *flights; /* newest first */
	struct sim_queue idle;
	unsigned connections, in_flight;
	uint64_t retry_deadline, failing_since;
	struct s3_store_counters counters;
	bool stopping, dropping;
	unsigned watched;
};

/* A request as the network sees it: it may outlive the sender's. */
struct flight {
	struct flight *next; /* of the store's */
	struct flight *next_ready;
	unsigned refs;
	struct s3_store *store;
	struct s3_request *req; /* NULL: it has been answered */
	enum s3_op op;
	enum s3_pool pool;
	char *key;
	struct blob *body;
	bool if_none_match;
	char *if_match;
	char **keys;
	size_t n_keys;
	unsigned attempt; /* the one that is waited for */
	bool connected;	  /* that has a connection */
	bool failing;	  /* an attempt has failed: its deadline stays */
};

/* What the store answered to an attempt. */
struct attempt {
	struct flight *flight;
	unsigned refs, number;
	enum outcome outcome;
	bool postponed, received, refused;
	uint64_t there, back; /* ns from when the body has been sent to the effect and the reply */
	long status;	      /* 0: not looked at by the store, 200: done */
	const char *code;
	struct blob *blob;
	uint64_t tag;
};

/* ---- store.c ----------------------------------------------------------------------------------
 */

struct blob {
	unsigned refs;
	size_t length;
	uint8_t data[];
};

/* A blob with one reference, whose data the caller fills. */
struct blob *new_blob(size_t length);
void let_go(struct blob *b);
/* Notes what memory is allocated besides the store's, if store_watch() asked for it. */
void note_memory(void);
/* What the store does with an attempt, at this moment. */
void serve(struct attempt *a);
/* A page of a listing, as XML, for the real parser. 0 or its error. */
int list(struct s3_request *req);

#endif
