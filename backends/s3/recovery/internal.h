/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of recovery share. recovery.h is for the others. */
#ifndef USERBLK_S3_RECOVERY_INTERNAL_H
#define USERBLK_S3_RECOVERY_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "backends/s3/client/client.h"
#include "backends/s3/format/format.h"
#include "backends/s3/recovery/recovery.h"

struct s3_map_batch;
struct s3_root;
struct s3_root_part;
struct s3_root_snapshot;
struct s3_volume;

/* Headers asked for at once, and how much of each object first. */
#define S3_RECOVERY_WINDOW 64

/* What attempt() and its parts answer besides errors: begin with another root. */
#define S3_RECOVERY_AGAIN 1
/*
 * A root that a server of another volume stored here, which was deleted and gave its name to this
 * one: it says nothing about this one.
 */
#define S3_FOREIGN_ROOT	  3
#define S3_FOREIGN_OBJECT 4

struct s3_recovery {
	struct s3_volume *v;
	uint32_t slot; /* of the log object whose records are applied */
	/* GC objects that it has brought: as many as its header has room for. */
	uint32_t *gc;
	size_t n_gc, room_gc;
	uint64_t last_epoch;
	bool clean;	       /* the last object says that nothing comes after it */
	uint64_t newest_root;  /* frontier of the newest one that is there, usable or not */
	uint64_t foreign_root; /* of the newest one that is another volume's; 0: none */
	uint64_t blocks;       /* that the root said the volume had */
	/* Snapshots to be taken on the way. */
	struct s3_root_snapshot *adopt;
	size_t n_adopt;
	struct s3_chain chain;
	struct s3_map_batch *batch; /* takes the changes of the map; NULL: it is changed at once */
	bool fenced;		    /* the end of the log is ours */
	bool mine;		    /* the last object is our fence */
	bool stopped;		    /* a fence ahead has been put */
	uint64_t horizon;	    /* what was flushed before is below that; 0: not looked for */
	/* Below: of all attempts. */
	bool readonly;
	unsigned attempts; /* of one that only reads */
	uint64_t epoch;	   /* of our fence, which may be there; 0: none yet */
	bool put;	   /* it is there, or may arrive */
	/* Its number, while it is known to be the end of the log and nothing is put behind it; or
	 * 0. */
	uint64_t end;
	uint64_t ahead; /* of our fences ahead; 0: none */
	struct s3_window *window;
};

/* Frontiers of all roots that there may be. */
struct s3_roots {
	const struct s3_volume *v;
	uint64_t *seqs;
	size_t n;
};

/* One of a window of headers. */
struct s3_look {
	struct s3_request req;
	struct iovec iov;
	char key[S3_KEY_MAX + 1];
	struct s3_window *window;
};

struct s3_window {
	pthread_mutex_t lock;
	pthread_cond_t done;
	unsigned pending;
	struct s3_look looks[S3_RECOVERY_WINDOW];
	uint8_t *memory;
};

/* ---- apply.c ---- */

/* No more records come for the object that was applied last: seals it and what it brought. */
void s3_recovery_seal_objects(struct s3_recovery *p, uint64_t seq);
/* Enters the object of a header; the records that follow are its. 0 or negative errno. */
int s3_recovery_apply_header(void *opaque, const struct s3_object_header *header);
/* Applies a record of that object. 0 or negative errno. */
int s3_recovery_apply_record(
	void *opaque, const struct s3_object_header *header, const struct s3_record *record);
/* Applies a header of the log. It is the next one. */
int s3_recovery_apply(struct s3_recovery *p, const struct s3_object_header *header);

/* ---- replay.c: what of a write-back log the store lacks ---- */

/* Refuses to open, or, if what is lost may be lost, says so: last is the last time. 0 or -EBUSY. */
int s3_writeback_refuse_loss(struct s3_volume *v, bool last, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Is it whole? 0 or negative errno, reported. */
int s3_writeback_whole(struct s3_volume *v, const struct s3_chain *chain);
/* Puts it behind the log in the store. 0 or negative errno, reported. */
int s3_writeback_replay(
	struct s3_volume *v, const struct s3_chain *chain, struct s3_recovery *recovery);

/* ---- roots.c ---- */

/* Newest first. Errors are reported. */
int s3_recovery_list_roots(struct s3_volume *v, struct s3_roots *roots);
/* The volume's own at seq. -ENOENT: no such root, or a damaged one. */
int s3_recovery_read_root(struct s3_volume *v, uint64_t seq, void **data, struct s3_root *root);
/* What to fetch of a root: its regions, or its summaries. NULL: no memory. */
struct s3_root_part *s3_recovery_parts_of(const struct s3_root *root, bool summaries);
/* 0, -ENOMEM, or -ENOENT: what was read cannot be used. */
int s3_recovery_check_error(enum s3_check check);
/* Map, table and snapshots of a full root of a volume under base. -ENOENT: it cannot be used. */
int s3_recovery_load_full(struct s3_volume *v, const char *base, struct s3_root *root);
/* Begins with the newest root that can be used, or with nothing. 0 or negative errno, reported. */
int s3_recovery_load_newest_root(struct s3_volume *v, struct s3_recovery *p);
/* Is the root at seq in the store? 1: yes; S3_FOREIGN_ROOT; errors are reported. */
int s3_recovery_root_is_there(struct s3_volume *v, uint64_t seq);

/* ---- snapshots.c ---- */

/*
 * Compares the snapshots that the volume knows with those that are stored. again: there is one
 * to be taken on the way.
 */
int s3_recovery_look_at_snapshots(struct s3_volume *v, struct s3_recovery *p, bool *again);

/* ---- roll_forward.c ---- */

/* Why what stands at a number of the log cannot be used. */
int s3_recovery_damaged(struct s3_volume *v, const char *key, const char *why);
/*
 * What stands in the log at seq. 0, -ENOENT, or negative errno, which has been reported; or
 * S3_FOREIGN_OBJECT: what a server of another volume stored here, which was deleted and gave its
 * name to this one. It is absent, and replaced if this one's super object is still there.
 */
int s3_recovery_look_again(struct s3_volume *v, uint64_t seq, void **data,
	struct s3_object_header *header, struct s3_request *req);
/* Follows the log to where nothing stands; n: how many are asked for first. */
int s3_recovery_follow(struct s3_volume *v, struct s3_recovery *p, unsigned n);
/*
 * Looks for an object past the end of the log whose writer says that what ends it had been
 * stored; witness: its number, 0: none. Without damage no writer has stored anything as far behind
 * what it had not.
 */
int s3_recovery_find_witness(struct s3_volume *v, const struct s3_recovery *p, uint64_t *witness);
/* Something that had been stored is missing. A reader may see the state before it. */
int s3_recovery_tell_lost(struct s3_volume *v, uint64_t witness, bool readonly);
/* Frees the window; no GET of it is under way. */
void s3_recovery_free_window(struct s3_window *w);
/* Where headers go that are fetched ahead. NULL: no memory. */
struct s3_window *s3_recovery_make_window(void);
/* S3_RECOVERY_AGAIN: there is a root now that is newer than those that this attempt began with. */
int s3_recovery_newer_root(struct s3_volume *v, const struct s3_recovery *p);
/*
 * A root says that the log was whole up to it. Objects that the two newest roots do not need are
 * deleted, so that the log behind an older one has gaps, which look like its end. A writer at work
 * may have stored newer ones meanwhile, and deleted what those that we know of need.
 */
int s3_recovery_check_reached(struct s3_volume *v, const struct s3_recovery *p);

/* ---- fence.c ---- */

/* Stops a writer at work, once for each attempt, if we may take over. */
int s3_recovery_stop_writer(struct s3_volume *v, struct s3_recovery *p);
/* Keeps other writers out: stores a mark behind the log. 0, S3_RECOVERY_AGAIN, or negative errno.
 */
int s3_recovery_fence(struct s3_volume *v, struct s3_recovery *p);
/* Follows the log to its end, and makes sure that it is the end. Also
 * S3_RECOVERY_AGAIN. */
int s3_recovery_roll_forward(struct s3_volume *v, struct s3_recovery *p);

/* Such an object on its way, beside others. */
struct s3_recovery_put {
	struct s3_request request;
	const struct s3_object_header *header;
	char key[S3_KEY_MAX + 1];
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool landed;
};
/*
 * Put an object, complete and with its header decoded, behind the log, which has been fenced, and
 * apply it, in two steps: what iov and header point at stays until the second, of which there is
 * one for each first that answered 0, in their order. After an error of one the others only wait.
 * 0 or negative errno, reported.
 */
int s3_recovery_add_begin(struct s3_recovery *p, struct s3_recovery_put *put,
	const struct iovec *iov, int iovcnt, const struct s3_object_header *header);
int s3_recovery_add_end(struct s3_recovery *p, struct s3_recovery_put *put, bool failed);

#endif
