/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An open volume: what the parts of the device share. docs/s3-format.md explains it.
 *
 * lock comes before those inside of map and table. done() of requests is called without it.
 */
#ifndef USERBLK_S3_VOLUME_H
#define USERBLK_S3_VOLUME_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/device.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/batch.h"
#include "backends/s3/core/config.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/cache.h"

struct s3_cache;
struct s3_cachefile;
struct s3_closing;
struct s3_control;
struct s3_crc_cache;
struct s3_direct;
struct s3_map;
struct s3_objects;
struct s3_order;
struct s3_passed;
struct s3_prune;
struct s3_store;
struct s3_streams;
struct s3_transform;
struct s3_waiter;
struct s3_write;
struct s3_writeback;

/* Threads that seal, where data is transformed: zstd is slower than one upload after the other. */
#define S3_MAX_SEALERS 4

/* Is what was written to a block in its batch? */
enum s3_copied { S3_COPIED_NOT_YET, S3_COPIED, S3_COPIED_NEVER };

/* The regions that the root of a snapshot names. */
struct s3_kept {
	struct s3_kept *next;
	uint64_t seq; /* of the snapshot */
	struct s3_root_region *regions;
	uint32_t n_regions;
	bool unknown; /* its root is damaged or gone: it may name any region */
};

/* One kind of request to the device; the histogram as in struct s3_op_counters. */
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
	/* Bytes requested from the cache, and bytes fetched for it. */
	_Atomic uint64_t served, fetched;
	struct s3_device_counters device[BACKEND_ZERO + 1]; /* by enum backend_op */
};

/* What a volume has in the store to be deleted when that is full. */
enum s3_reserve_state {
	S3_RESERVE_UNKNOWN,
	S3_RESERVE_THERE,
	S3_RESERVE_PUTTING, /* takes space by now, as far as is known */
	S3_RESERVE_DELETING,
	S3_RESERVE_GONE
};

struct s3_reserve {
	enum s3_reserve_state state;
	bool wanted;		   /* while it is put: must be deleted at once */
	bool undecided;		   /* it may be gone since the store was full before */
	uint64_t decide_by;	   /* ns, until when data writes wait for that; 0: none does */
	_Atomic unsigned made;	   /* times that it was deleted and made room */
	uint64_t bytes;		   /* 0: none, or not known */
	uint64_t roots;		   /* of these for roots and relocations, at most up to now */
	uint64_t due;		   /* when it may be put next, ns, monotonic */
	uint64_t pause;		   /* ns after a PUT that took too long; 0: there was none */
	struct s3_request request; /* that deletes it */
	char key[S3_KEY_MAX + 1];
};

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
	bool conditional;     /* PUTs carry If-None-Match */
	bool wants_checksums; /* payload-signing=crc32c */
	bool checksums;	      /* PUTs of data carry a CRC32C, which the store checks */
	bool probed;	      /* the store can do what these need */
	uint8_t instance[S3_UUID];
	uint8_t predecessor[S3_UUID]; /* of the last writer before; zero: none */
	uint64_t epoch;
	uint32_t deadline;	    /* s of requests; 0, once it is open: the store's */
	uint64_t close_timeout_ns;  /* 0: the end waits forever */
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
	uint64_t opened;	  /* ns, monotonic */
	bool require_clean_close; /* recovery refuses what the last writer did not close */
	bool ours;		  /* the fence is stored; after a failed open: or may be */
	bool whole;		  /* and behind it all that a write-back log held */
	bool endable;		  /* nothing is on its way behind applied: it may be the end */
	/* As in struct s3_config. */
	int (*before_change)(struct s3_volume *v, void *opaque);
	void *before_change_opaque;
	void (*when_closed)(struct s3_volume *v, void *opaque);
	bool write_back_discard; /* what only a write-back log holds may be lost */
	/* The newest object of the log when it was opened; 0: covered by a root. */
	enum s3_type last_type;
	uint64_t last_time; /* us since 1970 */

	/* Before lock, which who makes the threads releases to end those that are too few. */
	pthread_mutex_t starting;
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
	bool scarce; /* there was no memory for another one: one of them has to become free */
	unsigned in_flight; /* closed and not uploaded */
	unsigned unsealed;  /* closed and not yet given to the store */
	uint64_t changes;   /* writes, trims and zeroes that the log has received */
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

	/* For a store that refuses what the log puts (space.c), under lock: */
	_Atomic int refused; /* negative errno with which it does; 0: it does not */
	bool blocked;	     /* and nothing more can be done about it: no thread may wait for it */
	_Atomic uint64_t refused_since;	  /* ns, or since it took something last */
	uint64_t refused_pause;		  /* ns, until the next attempt */
	uint64_t retry_ns;		  /* when that is */
	struct s3_batch *refused_batches; /* to be put again then */
	/* When the log began the newest PUT that soon ended, by s3_now_suspended(); 0: none yet. */
	_Atomic uint64_t uploaded_ns;
	unsigned n_refused; /* of those and of those that are being put again */
	struct s3_reserve reserve;

	_Atomic int failed;  /* negative errno: changes are no longer accepted */
	_Atomic bool fenced; /* another writer took over: requests are no longer answered */

	/* The checkpoints, under lock: */
	uint64_t checkpoint;		  /* frontier of the newest root, 0: none */
	struct s3_summary_writer summary; /* of the headers after the newest root */
	uint64_t log_bytes_since_full;
	uint64_t root_due;   /* ns, when one that failed is tried again by itself */
	uint64_t root_pause; /* ns, after those that a full store refused; 0: none */
	struct s3_order *orders, **orders_tail;		  /* for the keeper */
	struct s3_order *collections, **collections_tail; /* for the collector */
	/* Ascending by age; changed by the keeper only (before it runs: recovery). */
	uint64_t newest_root; /* that was in the store at the open, though it may be damaged */
	struct s3_root_snapshot *snapshots;
	uint32_t n_snapshots;
	bool of_snapshot; /* it is open as the last of them, read-only */
	/* A reader's: the log is missing what followed its end, which that later object shows. */
	uint64_t witness; /* its number; 0: nothing is missing, as far as is known */

	/* The keeper's own (before it runs: recovery's; after it ended: close's). */
	struct s3_root_region *regions; /* of the newest full root, ascending */
	uint32_t n_regions;
	uint64_t full;			   /* its frontier, 0: none yet */
	struct s3_root_summary *summaries; /* of the log from there to the newest root */
	uint32_t n_summaries;
	uint64_t previous; /* frontier of the root before the newest, 0: none */
	uint64_t previous_full;
	bool checkpoint_failing; /* which has been reported */
	bool full_wanted;	 /* the next root has to be a full one */
	bool root_in_doubt;	 /* the last one could not be stored, as far as is known */
	bool rolled_back;	 /* regions are not those of the newest root */
	/* There are marks of deletions that were cut short, to go when a root of ours is stored. */
	_Atomic bool marked;
	_Atomic uint64_t unmark_due; /* ns, when they are tried next, if the store kept them */
	_Atomic uint64_t next_gc;    /* number of the next GC object, with S3_GC */
	struct s3_kept *kept;	     /* of the snapshots whose root has been read */
	struct s3_prune *prune, *next_prune; /* the old roots to delete, or NULL */
	uint64_t next_sweep_ns;
	/* Summaries that the next light root must name, in the order of the log. */
	struct s3_owed owed[S3_OWED_MAX];
	unsigned n_owed;
	uint64_t waiting_memory; /* bytes that a checkpoint that waits for the store may take */

	/* The collector's own. */
	uint64_t compact_memory; /* bytes that a round may take, of the cache's */
	struct s3_room {
		uint8_t *memory; /* compact_memory bytes of addresses, or NULL */
		uint64_t bytes;	 /* that the cache has lent for it */
		size_t used;
	} room;
	struct s3_passed *passed; /* objects that are left alone */
	size_t n_passed;
	bool deletion_failing; /* which has been reported */
	/*
	 * Recovery may start from either of the two newest roots: what died later is needed. Under
	 * lock.
	 */
	uint64_t delete_limit, next_delete_limit, next_delete_ns;
	uint64_t gc_delay_ns;
	uint64_t checkpoint_every; /* objects of the log */
};

#endif
