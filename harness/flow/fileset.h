/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A fileset: the tree of files that flowops work on, in memory and on disk.
 *
 * Memory per file: 4 bytes of state, 4 of directory and one bit of existence,
 * and 8 bytes of size only if sizes vary: 8.125 or 16.125 bytes. A directory
 * takes 16 bytes and its path.
 *
 * Threads take files without a lock. The state word of a file is the truth: a
 * thread owns the file while it has set FILE_BUSY there. The bits of existence
 * are an index for the search of the next file and may lag behind by a moment.
 * Processes that are forked later share all that changes.
 */
#ifndef FLOW_FILESET_H
#define FLOW_FILESET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "random.h"
#include "wml.h"

#define FILE_BUSY    (UINT32_C(1) << 31)
#define FILE_EXISTS  (UINT32_C(1) << 30)
#define FILE_OPENERS (FILE_EXISTS - 1)
#define FILESET_PATH 4096
#define NO_FILE	     UINT32_MAX

struct fileset_spec {
	const char *name, *path; /* the tree is path/name */
	uint64_t entries;
	struct number size;
	unsigned prealloc; /* per cent of the files that exist at the start */
	unsigned dirwidth; /* mean files or directories per directory, at least 2 */
	double dirgamma;   /* shape of its gamma distribution; 0: constant */
	bool reuse, readonly, writeonly;
};

struct directory {
	uint32_t first;	 /* file in it, if any */
	uint32_t length; /* of its path */
	uint64_t path;	 /* offset in paths */
};

struct fileset {
	struct fileset_spec spec;
	char *root;
	uint32_t entries;
	uint32_t directories; /* without root */
	struct directory *dirs;
	char *paths;
	uint64_t paths_size, paths_room;
	uint32_t dirs_room;
	uint32_t *parent;     /* of a file: index in dirs */
	uint64_t *sizes;      /* NULL: all spec.size.value */
	uint64_t state_bytes; /* memory that all this takes */
	uint64_t existing;    /* files and their bytes at the start */
	uint64_t existing_bytes;
	double create_s, sync_s; /* time it took to create the tree, to write it back */

	_Atomic uint32_t *state;
	_Atomic uint64_t *exists;
	/* The rotors, each alone in its cache line: [true] of files that exist. */
	struct {
		_Alignas(128) _Atomic uint32_t next;
	} rotor[2];
	/* Threads that wait for a file that is busy. */
	_Alignas(128) _Atomic uint32_t waiters;
	_Atomic uint32_t turn;
};

/* Builds the tree in memory. NULL with a line in error. */
struct fileset *fileset_new(
	const struct fileset_spec *spec, uint64_t seed, struct flow_error *error);
void fileset_free(struct fileset *fs);

static inline uint64_t fileset_size(const struct fileset *fs, uint32_t file)
{
	return fs->sizes != NULL ? fs->sizes[file] : fs->spec.size.value;
}

/* The path of a file and the length of its directory's, buffer of FILESET_PATH bytes. */
uint32_t fileset_file_path(const struct fileset *fs, uint32_t file, char *buffer);

enum pick {
	PICK_ABSENT,
	PICK_EXISTING,
	PICK_CLOSED, /* exists and nobody has it open */
};

/*
 * Takes the file whose turn it is, busy from then on; waits while all there are
 * are busy. index NO_FILE goes by rotation, else the search starts there.
 * NO_FILE: there is none, or *stop was set. For PICK_CLOSED also when every
 * file is open.
 */
uint32_t fileset_pick(struct fileset *fs, enum pick pick, uint32_t index, const _Atomic bool *stop);
/* Waits until the file is not busy and takes it; before: its state. False: *stop was set. */
bool fileset_take(struct fileset *fs, uint32_t file, uint32_t *before, const _Atomic bool *stop);
/* Gives a file back: state is what it has become, without FILE_BUSY. */
void fileset_give(struct fileset *fs, uint32_t file, uint32_t state);
/* Makes waiting threads look at *stop again. */
void fileset_wake(struct fileset *fs);

static inline uint32_t fileset_state(const struct fileset *fs, uint32_t file)
{
	return atomic_load_explicit(&fs->state[file], memory_order_acquire) & ~FILE_BUSY;
}

/* Called about once a second while the tree is made; false stops it. */
typedef bool fileset_progress(
	const struct fileset *fs, uint64_t files, uint64_t bytes, double seconds);

/*
 * Makes the tree on disk with the files that exist at the start, by several
 * threads in an order that the seed shuffles, and writes it back. What stood
 * there before goes, unless the fileset is reused; what is not a tree of
 * ours is left alone and is an error. A tree that cannot be finished is removed.
 */
bool fileset_create(struct fileset *fs, uint64_t seed, bool zeros, fileset_progress *progress,
	struct flow_error *error);
/* Looks whether the tree on disk is this one, by a sample of its files. */
bool fileset_verify(struct fileset *fs, uint64_t seed, struct flow_error *error);
/* Removes path/name if it is a tree of ours. */
bool fileset_remove(const struct fileset *fs, struct flow_error *error);

#endif
