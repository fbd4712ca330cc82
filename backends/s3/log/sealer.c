/* SPDX-License-Identifier: BSD-3-Clause */
/* The threads that seal closed batches and go on with writes that waited for memory. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "backends/s3/base/clock.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/core/batch.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/core/space.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/log/internal.h"
#include "backends/s3/log/log.h"
#include "backends/s3/state/object_table.h"

/* Bytes of a summary that grows until a root names it: what 512 objects may have, and then some. */
#define SUMMARY_MOST (UINT64_C(8) << 20)

/* A batch that nobody closes is closed after that. */
#define IDLE_NS UINT64_C(1000000000)

/* Brings a batch that no longer changes into the form in which it is stored. */
static int complete(struct s3_volume *v, struct s3_batch *b)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	b->writer.header.blocks = b->blocks;
	b->writer.header.time = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
	return s3_seal(v, &b->writer, b->data, b->crcs, &b->stored, b->iov, &b->sealed);
}

/* Uploads a batch. Several threads may be at it; the summary gets the batches in their order. */
static void seal(struct s3_volume *v, struct s3_batch *b)
{
	uint64_t bytes = 0;
	int r = complete(v, b);

	if (r) {
		s3_volume_fail(v, r == -ENOMEM ? r : -EIO, "object %llu cannot be built: %s",
			(unsigned long long)b->seq, strerror(-r));
	} else {
		if (v->checksums)
			b->crc32c = s3_seal_crc32c(v, b->iov, b->crcs);
		bytes = b->sealed.header_bytes + b->sealed.data_bytes;
		s3_volume_object_key(v, b->seq, b->key);
		s3_objects_size(
			v->objects, b->slot, (uint32_t)bytes, b->sealed.header_bytes, b->blocks);
		s3_objects_seal(v->objects, b->slot, b->seq);
	}
	pthread_mutex_lock(&v->lock);
	while (v->sealed + 1 != b->seq)
		pthread_cond_wait(&v->quiet, &v->lock);
	v->sealed = b->seq;
	/* If it cannot, or they wait for a root for too long, the next one is a full one. */
	if (r == 0 && s3_summary_add(&v->summary, &b->sealed) == 0 &&
		v->summary.bits / 8 > SUMMARY_MOST + v->waiting_memory / 4)
		s3_summary_fail(&v->summary);
	v->log_bytes_since_full += bytes;
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
	if (r)
		return;
	atomic_fetch_add(&v->stats.log_objects, 1);
	atomic_fetch_add(&v->stats.log_bytes, bytes);
	if (atomic_load(&v->failed) == 0) {
		s3_failpoint(S3_FAIL_LOG_PUT_BEFORE);
		s3_log_upload(b);
	}
}

/* The oldest closed batch, once all have copied what they write into it. Under the lock. */
static struct s3_batch *next_to_seal(struct s3_volume *v)
{
	struct s3_batch *b = v->sealing;

	if (!b || atomic_load(&b->writers))
		return NULL;
	v->sealing = b->next;
	if (!v->sealing)
		v->sealing_tail = &v->sealing;
	return b;
}

/* Could a write that waits get its memory now? Under the lock. */
static bool can_resume(struct s3_volume *v)
{
	if (!v->stalled ||
		((s3_log_has_to_wait(v) || s3_space_undecided(v)) && !atomic_load(&v->failed)))
		return false;
	if (atomic_load(&v->failed) || v->open)
		return true;
	return !s3_log_window_full(v) &&
	       (v->free_batches || (v->n_batches < v->max_batches && !v->scarce));
}

/* The writes that wait, in order, until one has to wait again. */
static void resume_stalled(struct s3_volume *v)
{
	struct s3_write *w = v->stalled;

	v->stalled = w->next;
	if (!v->stalled)
		v->stalled_tail = &v->stalled;
	pthread_mutex_unlock(&v->lock);
	s3_write_run(w);
	pthread_mutex_lock(&v->lock);
}

/* Waits for work, or until the open batch has been idle for long. Under the lock. */
static void wait_for_work(struct s3_volume *v)
{
	struct timespec until;
	uint64_t due = UINT64_MAX, decided = v->stalled ? s3_space_undecided(v) : 0;

	/* One that is too old waits for an upload to end. */
	if (v->open && s3_now() < v->open->began + IDLE_NS)
		due = v->open->began + IDLE_NS;
	if (v->refused_batches && v->retry_ns < due)
		due = v->retry_ns;
	if (decided && decided < due)
		due = decided;
	if (due == UINT64_MAX) {
		pthread_cond_wait(&v->sealer_work, &v->lock);
		return;
	}
	until.tv_sec = (time_t)(due / 1000000000);
	until.tv_nsec = (long)(due % 1000000000);
	pthread_cond_timedwait(&v->sealer_work, &v->lock, &until);
}

void *s3_sealer(void *volume)
{
	struct s3_volume *v = volume;
	struct s3_batch *b;

	pthread_mutex_lock(&v->lock);
	while (!v->stopping) {
		if ((b = next_to_seal(v))) {
			b->writer.header.frontier = v->frontier;
			b->writer.header.checkpoint = v->checkpoint;
			pthread_mutex_unlock(&v->lock);
			seal(v, b);
			pthread_mutex_lock(&v->lock);
			v->unsealed--;
			pthread_cond_broadcast(&v->quiet);
		} else if (can_resume(v)) {
			resume_stalled(v);
		} else if (v->open && !v->barrier && s3_now() >= v->open->began + IDLE_NS &&
			   v->in_flight < v->uploads) {
			s3_log_close_batch(v);
		} else if (v->refused_batches && s3_now() >= v->retry_ns) {
			s3_log_put_refused(v);
		} else {
			wait_for_work(v);
		}
	}
	pthread_mutex_unlock(&v->lock);
	return NULL;
}
