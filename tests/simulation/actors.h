/* SPDX-License-Identifier: BSD-3-Clause */
/* Volumes as they ought to be, and the processes that open them. */
#ifndef USERBLK_TESTS_SIMULATION_ACTORS_H
#define USERBLK_TESTS_SIMULATION_ACTORS_H

#include "backends/device.h"
#include "tests/simulation/model.h"
#include "tests/simulation/sim.h"

struct s3_config;

#define PREFIX	  "sim"
#define VOLUMES	  4
#define SNAPSHOTS 3 /* names */
#define KEYS	  4 /* for encrypted volumes */

/* A snapshot of a volume, which may or may not exist. */
struct snapshot {
	struct snapshot *older;
	char name[8];
	struct model_session *session; /* of which it is */
	uint64_t call, answer;	       /* of its creation; MODEL_NEVER: not answered well */
	uint64_t delete_call;	       /* MODEL_NEVER: nobody wants it deleted */
	bool required;		       /* created, and nobody wants it deleted */
	bool gone;		       /* deleted, or found not to be there */
	unsigned clones;	       /* that there may be */
	uint32_t *contents;	       /* once it has been read */
	uint32_t sectors;	       /* with contents */
};

struct volume {
	char name[16];
	bool exists, removed;
	uint32_t capacity;   /* sectors that the model has room for */
	uint32_t sectors;    /* size; 0: not certain */
	unsigned block_size; /* index of the parameter */
	bool compress, encrypted, chunked, maybe_logged;
	unsigned key;	  /* number of the newest that was given to it */
	bool keys_unsure; /* it may still have the one before it, or one of a writer beside it */
	struct model_session *current; /* the newest writer that knows what it found */
	struct snapshot *snapshots;    /* newest first */
	unsigned writers;	       /* processes that have begun to open it for writing */
	unsigned removers;
	bool shared;		  /* two processes have had it at once */
	uint64_t contended_until; /* ns: requests of one that was killed may take effect */
	char write_back[32];	  /* "": it has never had one */
	bool log_is_void;
	uint64_t log_bytes;	 /* of it */
	struct snapshot *origin; /* of a clone */
	bool lossy;		 /* something was opened that gives up what was flushed */
};

enum role { WRITER, READER, KEEPER_OF_SNAPSHOTS, REMOVER };

/* A process that opens a volume. */
struct life {
	struct sim_process *process;
	struct volume *volume;
	enum role role;
	bool final; /* nothing disturbs it */
	bool done;
	unsigned ops; /* device operations left */
	unsigned clients, clients_running;
	/* The opening. */
	struct params *params;
	struct backend *device;
	struct model_session *session;
	unsigned writer_number; /* of volume->writers */
	unsigned key;		/* with which it was opened */
	bool write_back, discard, aborted, weak, told_failed, told_in_use;
	bool contended;	    /* another one was opening it when this one began, or shortly before */
	uint64_t opened_at; /* of the model */
	uint64_t asked_at;  /* the tool, the last time */
	uint32_t *seen;	    /* of one that only reads */
	uint32_t sectors;
	struct sim_queue changed;
};

extern struct volume volumes[VOLUMES];
extern unsigned n_volumes;
extern uint32_t last_write; /* number of the newest operation */
extern unsigned operations; /* left, of all lives */
extern struct sim_queue life_changed;

/* What a schedule is like. */
struct plan {
	unsigned ops, lives;
	uint64_t largest; /* bytes of an operation */
	unsigned pattern; /* where they go */
	uint64_t think_ns;
	unsigned weight_flush, weight_trim, weight_zero, weight_read, weight_write;
	uint64_t retry_deadline;
	bool failing_disk, few_threads, full, chunked;
	void (*tune)(struct s3_config *c); /* parameters of a scene, or NULL */
	bool heavy; /* much data, batches that are large for one process and small for the next */
};
extern struct plan plan;

/* ---- open.c ---- */
/* Opens the device of a life, for role; snapshot: to be served, or NULL. 0 or negative errno. */
int life_open(struct life *l, const char *snapshot, bool create, struct backend **out);
struct s3_removal;
/* Its device is opened by a deletion, which learns where the log ends, as userblk-s3 does. */
void life_notes_end(struct life *l, struct s3_removal *removal);
/* Reads all of a device into out, one entry for each of n sectors. 0 or negative errno. */
int read_all(struct backend *b, uint32_t *out, uint32_t n, const char *where);
uint32_t device_sectors(struct backend *b);
/* May something fail just now without being a defect? A disk that fails is none to requests. */
bool may_fail(const struct life *l);
bool request_may_fail(const struct life *l);
/* A session begins: what was found has to go with what was there. */
int establish(struct life *l);
/* What snapshots may hold, from a list of the existing names. */
struct snapshot *snapshot_find(struct volume *v, const char *name);
void snapshot_check(struct volume *v, const char *name, const uint32_t *seen, uint32_t sectors);
/* Reads a snapshot. NULL: it could not be read. */
struct snapshot *snapshot_learn(struct life *l, const char *name);
/* Compares the names that an open volume lists with those that there have to be. */
int snapshots_compare(struct life *l);

/* ---- operations.c ---- */
/* Runs a client of a life's device until it has done all its operations. */
void *client_main(void *life);
/* What userblk-s3 asks of it, now and then. */
void *tool_main(void *life);
void run_gc(struct life *l);
/* What userblk-s3 asks for by name: its result. */
int ask_tool(struct life *l, const char *request, const char *name);
void run_check(struct life *l);
/* Key number of the volume as rekey wants it: hexadecimal digits. */
void key_digits(unsigned key, char digits[65]);
int run_snapshot(struct life *l, const char *name);
int run_delete_snapshot(struct life *l, const char *name);
int run_clone(struct life *l, const char *name);
int run_rollback(struct life *l, const char *name);

/* ---- final.c ---- */
/* Once everything is quiet: what a volume holds, and whether the store holds nothing else. */
void final_check(struct volume *v);
/* Does the store hold nothing of a volume that has been deleted? */
void final_removed(struct volume *v);

#endif
