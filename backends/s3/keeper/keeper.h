/* SPDX-License-Identifier: BSD-3-Clause */
/* The keeper's thread: checkpoints, garbage collection, deletion. */
#ifndef USERBLK_S3_KEEPER_H
#define USERBLK_S3_KEEPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s3_root_snapshot;
struct s3_volume;

void *s3_keeper(void *volume);
/* Garbage collection, and what else may take long and is waited for by nothing. */
void *s3_collector(void *volume);
/* Frees the summaries that no root names. */
void s3_owed_drop(struct s3_volume *v);
/* A checkpoint of everything written so far. 0 or negative errno. By the keeper only. */
int s3_checkpoint(struct s3_volume *v);
/* Forgets which old roots should be deleted. */
void s3_prune_free(struct s3_volume *v);

/* What else a full checkpoint does. */
struct s3_checkpoint_step {
	/* Writes pause: changes what the checkpoint will hold. May be NULL. */
	int (*change)(void *opaque, struct s3_volume *v, uint64_t seq);
	/*
	 * The root is without that snapshot, which goes when the root is stored, or may be; if not,
	 * nothing has changed. May be NULL.
	 */
	const struct s3_root_snapshot *without;
	/*
	 * The root, as encoded, is about to be stored; everything it names is. named: something
	 * that names the same may be stored now. May be NULL.
	 */
	int (*root)(
		void *opaque, struct s3_volume *v, const void *data, size_t length, bool *named);
	/*
	 * It makes something new. A full store keeps its room for what frees some, so that it fails
	 * there; the caller takes the change back, and sees to full_wanted if that is named.
	 */
	bool creates;
	void *opaque;
};
/* The same at a sequence number of its own, with a step. After an error change() may have run. */
int s3_checkpoint_with(struct s3_volume *v, const struct s3_checkpoint_step *step);

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
 * there were at the beginning; false: stop. Any thread. 0 or negative errno; -ECANCELED: stopped.
 */
int s3_volume_gc(struct s3_volume *v, bool (*progress)(void *opaque, uint64_t done, uint64_t total),
	void *opaque);

#endif
