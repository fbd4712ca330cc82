/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An open volume: what the parts of the engine share. docs/s3.md explains it.
 *
 *   device/s3.c         parameters and the device's interface
 *   device/volume.c     create, open, close, threads, failure
 *   core/seal.c         the form in which data is stored: compressed, encrypted
 *   log/log.c           writes: open batch, uploads, frontier, flush
 *   log/writeback.c     the write-back log: what is not yet in the store, on a local disk
 *   read/read.c         reads and read-ahead, and the checksums they are checked with
 *   recovery/           from the store to the map; fencing
 *   keeper/keeper.c     the keeper's thread: checkpoints, garbage collection, deletion
 *   keeper/snapshot.c   snapshots, clones, the volume's size: what is asked of the keeper
 *   chunked/            layout=direct, which has none of these
 *   admin/verify.c      is everything in the store as it was written
 *   admin/delete.c      the end of a volume
 *   admin/control.c     the socket at which the one who serves it can be asked
 *
 * lock comes before those inside of map and table. done() of requests is called without it.
 */
#ifndef USERBLK_S3_VOLUME_H
#define USERBLK_S3_VOLUME_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backends/backend.h"
#include "backends/s3/state/cache.h"
#include "backends/s3/state/cachefile.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "backends/s3/state/readahead.h"
#include "backends/s3/client/client.h"
#include "backends/s3/format/transform.h"

#define S3_MAX_UPLOADS 64
/* Threads that seal, where data is transformed: zstd is slower than one upload after the other. */
#define S3_MAX_SEALERS 4
/* Sequence numbers that may be uncertain at once: all uploads and what is being filled. */
#define S3_WINDOW 128

enum s3_flush_mode { S3_FLUSH_DURABLE, S3_FLUSH_WEAK };
enum s3_fencing { S3_FENCING_AUTO, S3_FENCING_NONE };
enum s3_compress { S3_COMPRESS_OFF, S3_COMPRESS_ZSTD };

struct s3_config {
	struct s3_store_config store;
	char *volume, *prefix;
	char *snapshot;	      /* to be served, read-only; NULL: the volume as it is now */
	char *cache_file;     /* or NULL */
	char *write_back;     /* file, or NULL */
	char *control;	      /* path of a socket, or NULL */
	char *encryption_key; /* file, or NULL */
	bool create, readonly, write_back_discard;
	uint64_t size, batch_size, uploads, memory, checkpoint, gc_delay, chunk_size, cache_size;
	uint64_t close_timeout;
	uint64_t write_back_size;
	unsigned block_size; /* index; s3_config_block_size() */
	unsigned flush, fencing, layout, compress;
	/* No parameters: the tool's. */
	bool polite;	/* only if the last writer has closed the volume */
	bool exclusive; /* with create: only if there is none yet */
	bool hasty;	/* the deadline of requests is nobody's wish: an open need not take it */
};

uint32_t s3_config_block_size(const struct s3_config *config);

/* Where a full batch gets the form in which it is stored; empty in a volume without features. */
struct s3_stored {
	uint8_t *data;
	size_t room;
	struct s3_unit *units;
};

/* What of a batch is in the write-back log. */
struct s3_logged {
	size_t records; /* place in the header behind the last such record */
	uint32_t blocks;
};

/* Is what was written to a block in its batch? */
enum s3_copied { S3_COPIED_NOT_YET, S3_COPIED, S3_COPIED_NEVER };

/* A log object in memory, from its first write until it is in the cache and nobody reads it. */
struct s3_batch {
	struct s3_batch *next; /* of the queue to the sealer, or of the free ones */
	uint64_t seq;
	uint32_t slot;	 /* in the object table */
	uint32_t blocks; /* reserved */
	uint32_t n_records;
	uint64_t change;	  /* number of its last one, of s3_volume.changes */
	size_t records_end;	  /* in the header: where the last record ends; when closed */
	struct s3_logged logged;  /* of the write-back log's thread */
	unsigned refs;		  /* the log's, one of each reader; under the volume's lock */
	bool closed;		  /* takes nothing more */
	bool wanted;		  /* a flush waits for its end */
	bool relocates;		  /* holds RELOCATE records */
	_Atomic unsigned writers; /* copies under way, and 1 until it is closed */
	_Atomic uint8_t *ready;	  /* of each block: enum s3_copied */
	uint8_t *data, *header;
	uint32_t *crcs;
	struct s3_stored stored; /* reads are answered from data */
	uint64_t began;		 /* ns, monotonic */
	struct s3_record last;	 /* not yet in the header: may still grow */
	struct s3_header_writer writer;
	struct s3_object_header sealed; /* what it wrote, once that is complete */
	/* Upload. */
	struct s3_volume *volume;
	struct s3_request request;
	struct iovec iov[2];
	struct iovec probe; /* to look at what is there in its place */
	char key[S3_KEY_MAX + 1];
	char stale[S3_ETAG_MAX + 1]; /* of the object that is to be replaced; "": none */
};

struct s3_waiter; /* a flush, or a write that is to be durable */
struct s3_write;  /* a write, trim or zero under way */
struct s3_crc_cache;
struct s3_order; /* something that the keeper is to do between two rounds of its own work */
struct s3_passed;
struct s3_control;
struct s3_closing;
struct s3_writeback;
struct s3_recovery; /* under way */
struct s3_prune;

/* The regions that the root of a snapshot names. */
struct s3_kept {
	struct s3_kept *next;
	uint64_t seq; /* of the snapshot */
	struct s3_root_region *regions;
	uint32_t n_regions;
	bool unknown; /* its root is damaged or gone: it may name any region */
};

/* Of one kind of request to the device; the histogram as in struct s3_op_counters. */
struct s3_device_counters {
	_Atomic uint64_t requests, errors, bytes, busy_ns, max_ns, histogram[32];
};

/* A summary that no root names yet. */
#define S3_OWED_MAX 16
struct s3_owed {
	struct s3_root_summary part;
	struct s3_buffer data;
	bool stored;
};

/* Values that counters show. */
struct s3_stats {
	_Atomic uint64_t log_objects, log_bytes, gc_objects, gc_bytes, checkpoint_bytes;
	_Atomic uint64_t reads_memory, reads_store, crc_retries, stalls, deleted;
	_Atomic uint64_t full_roots, light_roots, replayed, orphans;
	/* Bytes that the cache was asked for, and that were got for it. */
	_Atomic uint64_t served, fetched;
	struct s3_device_counters device[BACKEND_ZERO + 1]; /* by enum backend_op */
};

/* What a volume has in the store to be deleted when that is full. */
enum s3_reserve_state { S3_RESERVE_UNKNOWN, S3_RESERVE_THERE, S3_RESERVE_BUSY, S3_RESERVE_GONE };

struct s3_reserve {
	enum s3_reserve_state state;
	uint64_t bytes;		   /* 0: none, or not known */
	uint64_t due;		   /* when it may be put next, ns, monotonic */
	struct s3_request request; /* that deletes it */
	char key[S3_KEY_MAX + 1];
};

struct s3_volume;

/* What differs between the layouts, and what the parts below ask of those above them. */
struct s3_layout_ops {
	const char *name; /* as in layout= */
	bool has_log;	  /* or else no part of it: log, map, checkpoints, snapshots */
	/* As the device's calls of the same name. */
	void (*submit)(struct s3_volume *v, struct backend_request *request);
	int (*extents)(struct s3_volume *v, uint64_t offset, uint64_t length, unsigned flags,
		backend_extent_fn fn, void *opaque);
	size_t (*counters)(struct s3_volume *v, struct backend_counter *counters, size_t max);
	/* Corrects what holds for the log. May be NULL. */
	void (*info)(const struct s3_volume *v, struct backend_info *info);
	/* Makes the threads when the first request comes: a fork may follow open. 0 or negative
	 * errno. */
	int (*start)(struct s3_volume *v);
	/* Stores what is in memory and ends the threads. */
	void (*stop)(struct s3_volume *v);
	/* Answers everything that waits, after a failure. */
	void (*give_up)(struct s3_volume *v);
	void (*free)(struct s3_volume *v);
};

struct s3_volume {
	struct backend backend;
	struct backend_host host; /* of errors before the device is open, too */
	struct s3_store *store;
	const struct s3_layout_ops *layout; /* the log's, until the super object says otherwise */
	struct s3_direct *direct;	    /* layout=direct; then nothing of the log is used */
	char *name;			    /* for messages */
	char base[272];			    /* "<prefix>/<volume>/" */
	struct s3_super super;
	uint8_t key[S3_KEY_BYTES]; /* the user's, with S3_FEATURE_AES */
	/* The volume's and its ancestors', 1 + super.n_parents; NULL: without S3_FEATURE_AES. */
	uint8_t (*volume_keys)[S3_KEY_BYTES];
	/* By origin of the object, 1 + super.n_parents; NULL: data is stored as it is. */
	struct s3_transform **transforms;
	uint32_t block_size;
	unsigned shift; /* log2 of it */
	uint64_t batch_size;
	uint32_t batch_blocks;
	unsigned uploads, max_batches;
	enum s3_flush_mode flush_mode;
	bool conditional; /* PUTs carry If-None-Match */
	uint8_t instance[S3_UUID];
	uint8_t predecessor[S3_UUID]; /* of the last writer before; zero: none */
	uint64_t epoch;
	uint32_t deadline;	    /* s of requests; 0, once it is open: the store's */
	uint64_t close_timeout_ns;  /* 0: the end waits for ever */
	struct s3_closing *closing; /* the end has begun; NULL: not, or nothing bounds it */
	struct s3_map *map;
	struct s3_objects *objects;
	struct s3_crc_cache *crcs;
	struct s3_cache *cache;
	uint64_t cache_bytes;		/* that it may have */
	struct s3_cachefile *cachefile; /* or NULL */
	struct s3_streams *streams;
	unsigned ahead_max;		/* GETs that may read ahead at once */
	_Atomic unsigned ahead_now;	/* that do */
	uint8_t unwanted[S3_PAGE];	/* what comes along with pages and is there already */
	struct s3_control *control;	/* or NULL */
	struct s3_writeback *writeback; /* or NULL */
	struct s3_stats stats;
	uint64_t opened;	 /* ns, monotonic */
	bool polite;		 /* recovery refuses what the last writer did not close */
	bool ours;		 /* the fence is stored */
	bool write_back_discard; /* what only a write-back log holds may be lost */
	/* Of the newest object of the log when it was opened; 0: covered by a root. */
	enum s3_type last_type;
	uint64_t last_time; /* us since 1970 */

	pthread_mutex_t lock;
	/* Below: under lock. */
	struct s3_batch *open;	  /* takes writes; holds at least one record */
	uint64_t next_seq;	  /* of the next batch */
	uint64_t frontier;	  /* everything up to it is in the store */
	uint64_t applied;	  /* newest sequence number that is in the map */
	bool uploaded[S3_WINDOW]; /* [seq % S3_WINDOW], of those past the frontier */
	/* [seq % S3_WINDOW], until what it holds is in the cache: reads are answered from here. */
	struct s3_batch *resident[S3_WINDOW];
	struct s3_batch *free_batches;
	unsigned n_batches; /* made */
	unsigned in_flight; /* closed and not uploaded */
	unsigned unsealed;  /* closed and not yet given to the store */
	uint64_t changes;   /* writes, trims and zeroes that the log has got */
	/* [seq % S3_WINDOW], uploaded before an earlier one, for the write-back log. */
	struct s3_batch *kept_batches[S3_WINDOW];
	struct s3_waiter *waiters;
	struct s3_write *stalled, **stalled_tail; /* wait for memory, in order */
	bool barrier; /* a checkpoint is about to capture the map: writes wait */
	struct s3_batch *sealing, **sealing_tail;
	uint64_t sealed; /* newest sequence number that is in the summary */
	_Atomic bool started;
	bool stopping, keeper_stopping;
	pthread_cond_t sealer_work, keeper_work, collector_work, quiet;
	pthread_t sealers[S3_MAX_SEALERS], keeper, collector;
	unsigned n_sealers;

	/* Of a store that refuses what the log puts (space.c), under lock: */
	_Atomic int refused; /* negative errno with which it does; 0: it does not */
	bool blocked;	     /* and nothing more can be done about it: nobody is to wait for it */
	uint64_t refused_since, refused_pause; /* ns; since when, until the next attempt */
	uint64_t retry_ns;		       /* when that is */
	struct s3_batch *refused_batches;      /* to be put again then */
	struct s3_reserve reserve;

	_Atomic int failed;  /* negative errno: no change is accepted any more */
	_Atomic bool fenced; /* another writer took over: nothing is answered any more */

	/* Of the checkpoints, under lock: */
	uint64_t checkpoint;		  /* frontier of the newest root, 0: none */
	struct s3_summary_writer summary; /* of the headers after the newest root */
	uint64_t log_bytes_since_full;
	struct s3_order *orders, **orders_tail;		  /* for the keeper */
	struct s3_order *collections, **collections_tail; /* for the collector */
	/* Ascending by age; changed by the keeper only (before it runs: recovery). */
	struct s3_root_snapshot *snapshots;
	uint32_t n_snapshots;

	/* The keeper's own (before it runs: recovery's; after it ended: close's). */
	struct s3_root_region *regions; /* of the newest full root, ascending */
	uint32_t n_regions;
	uint64_t full;			   /* its frontier, 0: none yet */
	struct s3_root_summary *summaries; /* of the log from there to the newest root */
	uint32_t n_summaries;
	uint64_t previous; /* frontier of the root before the newest, 0: none */
	uint64_t previous_full;
	bool full_wanted;	  /* the next root has to be a full one */
	bool root_in_doubt;	  /* the last one could not be stored, as far as is known */
	bool rolled_back;	  /* regions are not those of the newest root */
	_Atomic uint64_t next_gc; /* number of the next GC object, with S3_GC */
	struct s3_kept *kept;	  /* of the snapshots whose root has been read */
	struct s3_prune *prune, *next_prune; /* what old roots are to be deleted, or NULL */
	uint64_t next_sweep_ns;
	/* Summaries that are to be named by the next light root, in the order of the log. */
	struct s3_owed owed[S3_OWED_MAX];
	unsigned n_owed;
	uint64_t waiting_memory; /* bytes that a checkpoint that waits for the store may take */

	/* The collector's own. */
	uint64_t compact_memory;  /* bytes that a round may take, of the cache's */
	struct s3_passed *passed; /* objects that are left alone */
	size_t n_passed;
	/*
	 * Recovery may start from either of the two newest roots: what died later is needed. Under
	 * lock.
	 */
	uint64_t delete_limit, next_delete_limit, next_delete_ns;
	uint64_t gc_delay_ns;
	uint64_t checkpoint_every; /* objects of the log */
};

/* ---- volume.c ---- */
int s3_volume_open(const struct s3_config *config, uint64_t size, const struct backend_host *host,
	struct s3_volume **out);
/* The end begins: an outage of close-timeout= ends all waiting. */
void s3_volume_stop(struct s3_volume *v);
/* 0, or negative errno if something that was acknowledged is not in the store. */
int s3_volume_close(struct s3_volume *v);
/*
 * The same in two steps, for those that need the volume before it is read or after its end:
 * s3_volume_attach() and s3_volume_load(), s3_volume_finish() and s3_volume_detach().
 */
int s3_volume_load(struct s3_volume *v, const struct s3_config *config, uint64_t size);
int s3_volume_finish(struct s3_volume *v);
/*
 * Name and store of a volume of which nothing is read: for those that look at keys alone. Errors
 * are told. To be ended with s3_volume_detach().
 */
int s3_volume_attach(
	const struct s3_config *config, const struct backend_host *host, struct s3_volume **out);
void s3_volume_detach(struct s3_volume *v);
size_t s3_volume_counters(struct s3_volume *v, struct backend_counter *counters, size_t max);
/* Of layout=log. */
extern const struct s3_layout_ops s3_log_layout;
/* No change is accepted from now on. r: negative errno. Tells the reason once. */
void s3_volume_fail(struct s3_volume *v, int r, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* As s3_volume_fail(); reads fail too. */
void s3_volume_fence(struct s3_volume *v, const char *what);
/* Bytes that the volume, or its snapshot that is served, has now. */
uint64_t s3_volume_size(const struct s3_volume *v);
/* Full keys; key has S3_KEY_MAX + 1 bytes. */
void s3_volume_key(const struct s3_volume *v, const struct s3_name *name, char *key);
void s3_volume_object_key(const struct s3_volume *v, uint64_t id, char *key);
/* The same of an object that may be an ancestor's; origin as in object_table.h. */
void s3_volume_origin_key(const struct s3_volume *v, uint8_t origin, uint64_t id, char *key);
/* The volume that objects of origin belong to. */
const uint8_t *s3_volume_origin_uuid(const struct s3_volume *v, uint8_t origin);
/*
 * Requests of the pool for background work, waited for. req tells what came of it. PUT replaces
 * what is there if if_none_match is false. The answer is req->result.
 */
int s3_volume_put(struct s3_volume *v, const char *key, const void *data, size_t length,
	bool if_none_match, struct s3_request *req);
/* The same in place of the object of etag, or where there is none (NULL). deadline: seconds. */
int s3_volume_put_at(struct s3_volume *v, const char *key, const struct iovec *iov, int iovcnt,
	const char *etag, uint32_t deadline, struct s3_request *req);
/*
 * Rewrites the super object, unless another writer took over. change() gets it as it is now, maybe
 * more than once, and answers 1: it has changed it, 0: it need not, or negative errno, which it
 * has told. 0 or negative errno, told.
 */
int s3_volume_change_super(struct s3_volume *v,
	int (*change)(void *opaque, struct s3_volume *v, struct s3_super *super), void *opaque);
/* Up to length bytes of the beginning; req->bytes tells how many. */
int s3_volume_get(
	struct s3_volume *v, const char *key, void *data, size_t length, struct s3_request *req);
/* The whole object, to be freed. Also -ENOMEM. */
int s3_volume_get_all(
	struct s3_volume *v, const char *key, void **data, size_t *length, struct s3_request *req);
/*
 * The whole header of the object of the log at seq. If the answer is 0, check tells what it is
 * worth; data, which header points into, is to be freed. Also -ENOMEM.
 */
int s3_volume_get_header(struct s3_volume *v, uint64_t seq, void **data,
	struct s3_object_header *header, enum s3_check *check, struct s3_request *req);
int s3_volume_delete(struct s3_volume *v, const char *key, struct s3_request *req);
/*
 * Calls fn for what is listed under a prefix below the volume's, in order of the keys, until it
 * answers non-zero, which is returned. Otherwise 0, or negative errno of the store.
 */
int s3_volume_list(struct s3_volume *v, const char *prefix, bool delimiter,
	int (*fn)(void *opaque, const struct s3_listed *listed), void *opaque,
	struct s3_request *req);
/* Is there any key that begins with prefix (of the bucket)? 1, 0 or negative errno. */
int s3_volume_any(struct s3_volume *v, const char *prefix, struct s3_request *req);
/* Random bytes for a uuid. 0 or -EIO. */
int s3_random(uint8_t uuid[S3_UUID]);
/* Tells the user that a request of open failed: the store's message. Answers r. */
int s3_volume_refuse(struct s3_volume *v, int r, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same of one whose clients remain (backend.h). why: what is known of the volume. */
int s3_volume_refuse_clients(struct s3_volume *v, const char *why);
uint64_t s3_now(void); /* ns, monotonic */

/* ---- seal.c ---- */
/* For data of up to length bytes. 0 or -ENOMEM. */
int s3_stored_init(const struct s3_volume *v, struct s3_stored *s, size_t length);
void s3_stored_free(struct s3_stored *s);
/*
 * Completes an object of this volume, whose records w holds, over data of w->header.blocks blocks:
 * iov is what is to be stored. crcs: of the blocks; not looked at where data is transformed.
 * header: decoded, points into w's memory. Many threads may do it at once. 0, -ENOMEM, -EIO (a
 * library failed), -EINVAL (the records make no header).
 */
int s3_seal(const struct s3_volume *v, struct s3_header_writer *w, void *data, const uint32_t *crcs,
	struct s3_stored *s, struct iovec iov[2], struct s3_object_header *header);
/* Has the object's data the form that this volume's objects have? Else it is not of this device. */
bool s3_seal_fits(const struct s3_volume *v, const struct s3_object_header *header);
/*
 * Restores units of transformed data (stored: from unit first on) into the places that they have in
 * the object's blocks at data, which begin with that unit; wanted: which, of header->n_crc. 0,
 * -EBADMSG: damaged; -ENOMEM, -EIO.
 */
int s3_unseal(const struct s3_volume *v, uint8_t origin, const struct s3_object_header *header,
	uint32_t first, const uint8_t *stored, const bool *wanted, uint8_t *data);

/* ---- log.c ---- */
void s3_write(struct s3_volume *v, struct backend_request *request);
void s3_flush(struct s3_volume *v, struct backend_request *request);
void *s3_sealer(void *volume);
/* What was acknowledged and would be lost with this process. */
struct s3_lag {
	uint64_t objects, bytes;
	uint64_t oldest; /* when the first of it was written, ns, monotonic; 0: nothing */
};
void s3_log_lag(struct s3_volume *v, struct s3_lag *lag);
/*
 * Waits until all that was written is in the store, or has failed; while the keeper runs not for a
 * store that refuses it. 0 or negative errno.
 */
int s3_log_drain(struct s3_volume *v);
/* Answers everything that waits, after a failure. */
void s3_log_give_up(struct s3_volume *v);
/*
 * Closes the open batch and stops writes until s3_log_resume(); waits until all batches are
 * sealed. Answers the newest sequence number in the map.
 */
uint64_t s3_log_pause(struct s3_volume *v);
void s3_log_resume(struct s3_volume *v);
/*
 * Enters a GC object that is in the store: puts RELOCATE records into the log and the map, as
 * one step. Those whose source has changed meanwhile do nothing. 0 or negative errno.
 */
int s3_log_relocate(struct s3_volume *v, const struct s3_object *object,
	const struct s3_record *records, size_t n);
/*
 * Makes the log longer by an object, be it an empty one, with a record (NULL: none) in it. 0 or
 * negative errno.
 */
int s3_log_mark(struct s3_volume *v, const struct s3_record *record);
/* The same up to seq. */
int s3_log_wait(struct s3_volume *v, uint64_t seq);
/* The batch in memory of an object, held; NULL: it is in the store. */
struct s3_batch *s3_log_hold(struct s3_volume *v, uint32_t slot);
void s3_log_release(struct s3_volume *v, struct s3_batch *b);
/*
 * Waits for writers that are still copying blocks into a held batch. False: to some of them nothing
 * will ever be copied, since the map had no memory for all of a write, which failed the volume.
 */
bool s3_log_wait_copied(struct s3_batch *b, uint32_t first, uint32_t count);
void s3_batches_free(struct s3_volume *v);
/* Bytes that the header of a batch may take. */
size_t s3_log_header_room(const struct s3_volume *v);

/* A part of a batch that the write-back log is to get; the batch is held. */
struct s3_part {
	struct s3_batch *batch;
	struct s3_object_header records; /* to be walked from position on; else empty */
	size_t position;
	uint32_t first, count; /* blocks of data, which may still be copied */
	uint64_t change;       /* with it everything up to this change has been taken */
};
/*
 * Under the lock: the oldest part that neither the store has nor *part, got from here before, tells
 * to be logged. False: there is nothing more.
 */
bool s3_log_take(struct s3_volume *v, struct s3_part *part);
/* Under the lock: it is in the write-back log, or (logged false) not. The batch is let go. */
void s3_log_put(struct s3_volume *v, struct s3_part *part, bool logged);
/* Under the lock: flushes wait for the store now. */
void s3_log_push(struct s3_volume *v);
/* Answers the flushes of what is in the write-back log up to change. */
void s3_log_answer(struct s3_volume *v, uint64_t change);

/* ---- space.c ---- */
/*
 * Under the lock: the store refuses what is put with r. True if that is news, to be told by
 * s3_space_tell() without the lock.
 */
bool s3_space_refused(struct s3_volume *v, int r);
/* why: the store's message. */
void s3_space_tell(struct s3_volume *v, int r, const char *why);
/*
 * Under the lock: has the reserve deleted, after which refused batches are put again. False: there
 * is none any more.
 */
bool s3_space_ask(struct s3_volume *v);
/* The same, waited for, of a PUT outside of the log that found the store full. True: try again. */
bool s3_space_make(struct s3_volume *v, const char *why);
/* Puts the reserve when there is space for it, which ends a time without; by the collector. */
void s3_space_tend(struct s3_volume *v);

/* ---- read.c ---- */
void s3_read(struct s3_volume *v, struct backend_request *request);
/* Reads ahead what a read of length bytes at offset, which has been begun, may be followed by. */
void s3_read_ahead(struct s3_volume *v, uint64_t offset, uint64_t length);
int s3_read_extents(struct s3_volume *v, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque);
/* bytes: what the checksums of objects may take. */
struct s3_crc_cache *s3_crc_cache_new(uint64_t bytes);
void s3_crc_cache_free(struct s3_crc_cache *cache);
/* Remembers the checksums in a decoded header. */
void s3_crc_cache_add(struct s3_crc_cache *cache, const struct s3_object_header *header);

/* ---- recovery.c ---- */
/* Fills map and table from the store; unless readonly, keeps all other writers out. */
int s3_recover(struct s3_volume *v, bool readonly);
/* The same with what a snapshot holds, to be read only. */
int s3_recover_snapshot(struct s3_volume *v, const char *name);
/*
 * The map becomes that of a snapshot, the newest one. No other call meanwhile; after an error the
 * map must not be used. Told through the host.
 */
int s3_restore(struct s3_volume *v, uint64_t seq);
/*
 * Reads a root of a volume under base ("<prefix>/<volume>/") with that uuid. -ENOENT: there is no
 * such object, or a damaged one, or no root. Other errors are told. data outlives root.
 */
int s3_root_read(struct s3_volume *v, const char *base, const uint8_t *uuid,
	const struct s3_name *name, void **data, struct s3_root *root);
/* backend_session() of a writer. */
uint32_t s3_session(const uint8_t instance[S3_UUID]);
/* Has the last writer said that it is done? Nobody has to be driven away then. */
bool s3_closed_cleanly(const struct s3_volume *v);
/* Is everything in the store, and may be ended? */
bool s3_is_drained(struct s3_volume *v);
/* Says so, behind everything else. False: it cannot, of which nobody has to know. */
bool s3_close_cleanly(struct s3_volume *v);

/* What the store's log says of the writer that super.write_back names. */
struct s3_chain {
	uint64_t last;	   /* newest object of the log that is its, 0: none */
	uint64_t replayed; /* entry of its write-back log up to which they are in objects of others
			    */
	bool closed;	   /* it says that nothing comes after it */
	bool foreign;	   /* others have written something else since */
};
/*
 * Puts an object, complete and with its header decoded, behind the log, which has been fenced, and
 * applies it. 0 or negative errno, told.
 */
int s3_recovery_add(struct s3_recovery *p, const struct iovec *iov, int iovcnt,
	const struct s3_object_header *header);

/* ---- keeper.c ---- */
void *s3_keeper(void *volume);
/* Garbage collection, and what else may take long and is waited for by nothing. */
void *s3_collector(void *volume);
/* Frees the summaries that no root names. */
void s3_owed_drop(struct s3_volume *v);
/* A checkpoint of everything written so far. 0 or negative errno. By the keeper only. */
int s3_checkpoint(struct s3_volume *v);
/* Forgets which old roots were to be deleted. */
void s3_prune_free(struct s3_volume *v);

/* What else a full checkpoint does. */
struct s3_checkpoint_step {
	/* Writes pause: changes what the checkpoint is to hold. */
	int (*change)(void *opaque, struct s3_volume *v, uint64_t seq);
	/* The root, as encoded, is about to be stored; everything it names is. May be NULL. */
	int (*root)(void *opaque, struct s3_volume *v, const void *data, size_t length);
	void *opaque;
};
/* The same at a sequence number of its own, with a step. After an error change() may have run. */
int s3_checkpoint_with(struct s3_volume *v, const struct s3_checkpoint_step *step);
/*
 * Has another writer taken over? Whoever did stands right behind our frontier. 0: no. To be asked
 * before each deletion; a fence that lands afterwards is of a writer that has not yet read
 * what it would need.
 */
int s3_check_not_fenced(struct s3_volume *v);
/* Has the keeper do something and waits for it. Any thread but the keeper's. Its result;
 * -ESHUTDOWN: the volume is being closed; -EOPNOTSUPP: it has another layout; negative errno of one
 * that has failed. */
int s3_keeper_call(
	struct s3_volume *v, int (*run)(struct s3_volume *v, void *opaque), void *opaque);
/* The same of the collector, which may call the keeper; no round is running then. */
int s3_collector_call(
	struct s3_volume *v, int (*run)(struct s3_volume *v, void *opaque), void *opaque);
/*
 * Compacts until nothing is worth it, makes that durable, and waits until the store is rid of what
 * was freed, which takes gc-delay= as well. progress (may be NULL): bytes of garbage gone, of those
 * there were at the beginning. Any thread. 0 or negative errno.
 */
int s3_volume_gc(struct s3_volume *v, void (*progress)(void *opaque, uint64_t done, uint64_t total),
	void *opaque);

/* ---- snapshot.c ---- */

/*
 * Any thread may call these, while the volume is served but for the rollback. They take as long
 * as the store does. What a user can mend is told through the host as well.
 */

/*
 * A snapshot of the volume as it is now, everything that was acknowledged before included, which
 * is durable with it. -EEXIST; -EINVAL: not a name (s3_name_valid()); -EROFS.
 */
int s3_snapshot_create(struct s3_volume *v, const char *name);
/* -ENOENT; -EBUSY: it has clones; -EROFS. */
int s3_snapshot_delete(struct s3_volume *v, const char *name);
/*
 * The volume becomes what the snapshot holds, which stays. The volume must not be served. Its
 * size stays, but for a smaller one than the snapshot's. -ENOENT; -EBUSY: there are younger
 * snapshots, to be deleted first; -EROFS.
 */
int s3_snapshot_rollback(struct s3_volume *v, const char *name);

struct s3_snapshot_info {
	char name[S3_NAME_MAX + 1];
	uint64_t seq, time, blocks; /* time: s since 1970; blocks: size of the volume then */
	uint32_t children;	    /* clones */
};
/* The oldest first; list is to be freed. */
int s3_snapshot_list(struct s3_volume *v, struct s3_snapshot_info **list, size_t *n);

/*
 * A new volume <new_prefix>/<new_volume> in the same bucket that begins as the snapshot is, and
 * reads what it has not overwritten from where it is. The snapshot cannot be deleted as long as
 * there is its marker, snap/<snapshot>/child/<uuid of the clone>, which whoever deletes the clone
 * deletes last. parent may be open read-only, or served elsewhere. -ENOENT; -EEXIST: the name is
 * taken; -EMLINK: the parent is the 255th in its chain; -EBUSY: the snapshot is being deleted;
 * -EINVAL: not a name or prefix.
 */
int s3_volume_clone(struct s3_volume *parent, const char *snapshot, const char *new_prefix,
	const char *new_volume);
/*
 * Another size in bytes, a multiple of 4096. -ENOTEMPTY: what would be cut off is not empty: it has
 * to be trimmed first; -EINVAL: too small or large; -EROFS.
 */
int s3_volume_resize(struct s3_volume *v, uint64_t size);
/*
 * Wraps the volume's key, and those of its ancestors, with another key of the user's, which then is
 * the only one that opens the volume. Data, snapshots and clones stay as they are; a clone has a
 * user's key of its own. *derived: whether the old key can still be used to compute the key of
 * data, since that was derived from it by an older program. -EINVAL: the volume is not encrypted,
 * or has this key; -EACCES: somebody else has changed the key; -EIO: the change failed or, told so,
 * may have happened.
 */
int s3_volume_rekey(struct s3_volume *v, const uint8_t key[S3_KEY_BYTES], bool *derived);

/* Below: of the keeper, or recovery. */

/* What is stored of a snapshot. */
struct s3_snapshot_files {
	char name[S3_NAME_MAX + 1];
	bool root, deleting; /* its own root; the mark that it is being deleted */
	uint32_t children;
};
/* All of them, by name; files is to be freed. 0 or negative errno, of the store (req) or -ENOMEM.
 */
int s3_snapshot_look(
	struct s3_volume *v, struct s3_snapshot_files **files, size_t *n, struct s3_request *req);
/* Deletes a snapshot's own root and its mark; and the mark alone. 0 or negative errno. */
int s3_snapshot_erase(struct s3_volume *v, const char *name);
int s3_snapshot_unmark(struct s3_volume *v, const char *name);
/* The head is a snapshot, now: enters it. No change of the map meanwhile. 0 or -ENOMEM. */
int s3_snapshot_enter(struct s3_volume *v, const struct s3_root_snapshot *snapshot);
/* Forgets that at seq; now: newest sequence number applied. As s3_objects_snapshot_delete(). */
int s3_snapshot_drop(struct s3_volume *v, uint64_t seq, uint64_t now);

/* ---- close_timeout.c ---- */
/* From here on an outage of close_timeout_ns ends all waiting. NULL: nothing ends it. */
struct s3_closing *s3_closing_begin(struct s3_volume *v);
void s3_closing_end(struct s3_closing *c);

#endif
