/* SPDX-License-Identifier: BSD-3-Clause */
/* Batches in memory, which readers hold and the log lets go. */
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "backends/s3/core/batch.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/object_table.h"

void s3_batch_free(struct s3_volume *v, struct s3_batch *b)
{
	if (b->data)
		munmap(b->data, v->batch_size);
	free(b->header);
	free((void *)b->ready);
	free(b->crcs);
	s3_stored_free(&b->stored);
	free(b);
}

void s3_batch_release(struct s3_volume *v, struct s3_batch *b)
{
	if (--b->refs)
		return;
	b->next = v->free_batches;
	v->free_batches = b;
	v->scarce = false;
	if (v->stalled)
		pthread_cond_signal(&v->sealer_work);
	pthread_cond_broadcast(&v->quiet);
}

struct s3_batch *s3_log_hold(struct s3_volume *v, uint32_t slot)
{
	struct s3_object object;
	struct s3_batch *b;

	s3_objects_get(v->objects, slot, &object);
	if (object.id & S3_GC || object.origin)
		return NULL;
	pthread_mutex_lock(&v->lock);
	b = v->resident[object.id % S3_WINDOW];
	if (b && b->seq == object.id)
		b->refs++;
	else
		b = NULL;
	pthread_mutex_unlock(&v->lock);
	return b;
}

void s3_log_release(struct s3_volume *v, struct s3_batch *b)
{
	pthread_mutex_lock(&v->lock);
	s3_batch_release(v, b);
	pthread_mutex_unlock(&v->lock);
}

/* A copy takes microseconds, unless its thread is not running. */
bool s3_log_wait_copied(struct s3_batch *b, uint32_t first, uint32_t count)
{
	bool all = true;

	for (uint32_t i = first; i < first + count; i++) {
		enum s3_copied copied;

		while (!(copied = atomic_load_explicit(&b->ready[i], memory_order_acquire)))
			sched_yield();
		all &= copied == S3_COPIED;
	}
	return all;
}

void s3_batches_free(struct s3_volume *v)
{
	for (unsigned i = 0; i < S3_WINDOW; i++) {
		if (v->resident[i])
			s3_batch_free(v, v->resident[i]);
		if (v->kept_batches[i])
			s3_batch_free(v, v->kept_batches[i]);
	}
	while (v->free_batches) {
		struct s3_batch *b = v->free_batches;

		v->free_batches = b->next;
		s3_batch_free(v, b);
	}
}
