/* SPDX-License-Identifier: BSD-3-Clause */
/* The log as its users see it: wait, drain, mark, pause, relocate; and what a write-back log gets.
 */
#include <errno.h>

#include "backends/s3/core/batch.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/log/internal.h"
#include "backends/s3/log/log.h"
#include "backends/s3/log/writeback.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

/* ---- for the others ---------------------------------------------------------------- */

void s3_log_give_up(struct s3_volume *v)
{
	struct s3_waiter *waiters;
	struct s3_write *stalled;
	int r = atomic_load(&v->failed);

	pthread_mutex_lock(&v->lock);
	waiters = s3_log_take_waiters(v, UINT64_MAX, 0);
	stalled = v->stalled;
	v->stalled = NULL;
	v->stalled_tail = &v->stalled;
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
	s3_log_answer_waiters(waiters, r);
	while (stalled) {
		struct s3_write *next = stalled->next;

		s3_write_finish(stalled, r);
		stalled = next;
	}
}

/* Under the lock. */
static void measure(const struct s3_volume *v, struct s3_lag *lag)
{
	*lag = (struct s3_lag){0};
	lag->objects = v->applied - v->frontier;
	for (uint64_t seq = v->frontier + 1; seq <= v->applied; seq++) {
		const struct s3_batch *b = v->resident[seq % S3_WINDOW];

		lag->changes += !b || b->change;
		if (!b || v->uploaded[seq % S3_WINDOW])
			continue; /* an earlier one is not */
		lag->bytes += (uint64_t)b->blocks << v->shift;
		if (!lag->oldest || b->began < lag->oldest)
			lag->oldest = b->began;
	}
	lag->kept = s3_writeback_holds(v, v->changes);
}

void s3_log_lag(struct s3_volume *v, struct s3_lag *lag)
{
	pthread_mutex_lock(&v->lock);
	measure(v, lag);
	pthread_mutex_unlock(&v->lock);
}

void s3_log_end(struct s3_volume *v, struct s3_lag *lag)
{
	int none = 0;

	pthread_mutex_lock(&v->lock);
	measure(v, lag);
	if (!lag->changes || lag->kept)
		atomic_compare_exchange_strong(&v->failed, &none, -EIO);
	pthread_mutex_unlock(&v->lock);
	if (!lag->changes || lag->kept)
		s3_log_give_up(v);
}

/* patient: also for a store that refuses it. */
static int wait_for(struct s3_volume *v, uint64_t seq, bool patient)
{
	int r;

	pthread_mutex_lock(&v->lock);
	if (v->open && v->open->seq <= seq)
		s3_log_close_for_flush(v);
	while ((r = atomic_load(&v->failed)) == 0 && v->frontier < seq) {
		if (!patient && s3_log_is_blocked(v)) {
			r = v->refused;
			break;
		}
		pthread_cond_wait(&v->quiet, &v->lock);
	}
	pthread_mutex_unlock(&v->lock);
	return r;
}

static uint64_t newest(struct s3_volume *v)
{
	uint64_t seq;

	pthread_mutex_lock(&v->lock);
	seq = v->applied;
	pthread_mutex_unlock(&v->lock);
	return seq;
}

int s3_log_wait(struct s3_volume *v, uint64_t seq)
{
	return wait_for(v, seq, false);
}

int s3_log_drain(struct s3_volume *v)
{
	return wait_for(v, newest(v), false);
}

int s3_log_drain_at_last(struct s3_volume *v)
{
	return wait_for(v, newest(v), true);
}

/* Adds a record that the next one cannot continue. */
static void add_alone(struct s3_batch *b, const struct s3_record *record)
{
	s3_log_settle_last(b);
	s3_header_add(&b->writer, record);
	b->n_records++;
}

/* As s3_log_make_room() for records alone, but waits for it; under the lock. 0 or negative errno.
 */
static int wait_for_room(struct s3_volume *v, uint32_t records)
{
	int r;

	while ((r = s3_log_make_room(v, false, records)) == S3_LOG_STALLED) {
		if (s3_log_is_blocked(v))
			return v->refused;
		pthread_cond_wait(&v->quiet, &v->lock);
	}
	return r;
}

int s3_log_mark(struct s3_volume *v, const struct s3_record *record)
{
	int r;

	pthread_mutex_lock(&v->lock);
	r = wait_for_room(v, 1);
	if (r == 0 && record)
		add_alone(v->open, record);
	pthread_mutex_unlock(&v->lock);
	return r;
}

uint64_t s3_log_pause(struct s3_volume *v)
{
	uint64_t seq;

	pthread_mutex_lock(&v->lock);
	v->barrier = true;
	if (v->open)
		s3_log_close_batch(v);
	while (v->unsealed)
		pthread_cond_wait(&v->quiet, &v->lock);
	seq = v->applied;
	pthread_mutex_unlock(&v->lock);
	return seq;
}

void s3_log_resume(struct s3_volume *v)
{
	pthread_mutex_lock(&v->lock);
	v->barrier = false;
	pthread_cond_signal(&v->sealer_work);
	pthread_cond_broadcast(&v->quiet); /* wait_for_room() */
	pthread_mutex_unlock(&v->lock);
}

int s3_log_relocate(struct s3_volume *v, const struct s3_object *object,
	const struct s3_record *records, size_t n)
{
	struct s3_object copy = *object;
	struct s3_batch *b = NULL;
	uint32_t slot = S3_NO_SLOT;
	uint64_t moved;
	bool torn = false;
	int r;

	pthread_mutex_lock(&v->lock);
	r = wait_for_room(v, (uint32_t)n + 1);
	if (r == 0) {
		b = v->open;
		copy.birth = b->seq;
		slot = s3_objects_add(v->objects, &copy);
		if (slot == S3_NO_SLOT)
			r = -ENOMEM;
	}
	if (r == 0)
		add_alone(b, &(struct s3_record){.op = S3_RECORD_GC_OBJECT,
				     .object = object->id,
				     .bytes = object->bytes,
				     .blocks = object->blocks,
				     .header_bytes = object->header_bytes});
	for (size_t i = 0; r == 0 && i < n; i++) {
		const struct s3_record *record = &records[i];
		uint32_t source = s3_objects_find(v->objects, 0, record->source);

		r = s3_map_relocate(v->map, b->seq, record->lba, record->count, source,
			record->source_offset, slot, record->offset, &moved);
		torn = r != 0;
		if (r == 0 && moved) {
			s3_header_add(&b->writer, record);
			b->n_records++;
			b->relocates = true;
		}
	}
	if (r == 0)
		s3_objects_seal(v->objects, slot, b->seq);
	pthread_mutex_unlock(&v->lock);
	if (torn)
		s3_volume_fail(v, r, "out of memory for the map");
	return r;
}

/* ---- for the write-back log ---------------------------------------------------------- */

bool s3_log_take(struct s3_volume *v, struct s3_part *part)
{
	for (uint64_t seq = v->frontier + 1; seq <= v->applied; seq++) {
		struct s3_batch *b = v->kept_batches[seq % S3_WINDOW];

		if (!b)
			b = v->resident[seq % S3_WINDOW];
		if (!b->closed)
			s3_log_settle_last(b);
		*part = (struct s3_part){
			.batch = b,
			.records = {.id = seq,
				.frontier = v->frontier,
				.records = b->header,
				.records_bytes = b->closed ? b->records_end : b->writer.length},
			.position = b->logged.records,
			.first = b->logged.blocks,
			.count = b->blocks - b->logged.blocks,
			.change = b->change,
		};
		if (part->position < part->records.records_bytes) {
			b->refs++;
			return true;
		}
	}
	return false;
}

void s3_log_put(struct s3_volume *v, struct s3_part *part, bool logged)
{
	if (logged)
		part->batch->logged = (struct s3_logged){.records = part->records.records_bytes,
			.blocks = part->first + part->count};
	s3_batch_release(v, part->batch);
}

void s3_log_push(struct s3_volume *v)
{
	if (v->open)
		s3_log_close_for_flush(v);
}

void s3_log_answer(struct s3_volume *v, uint64_t change)
{
	struct s3_waiter *ready = NULL;

	pthread_mutex_lock(&v->lock);
	if (atomic_load(&v->failed) == 0)
		ready = s3_log_take_waiters(v, v->frontier, change);
	pthread_mutex_unlock(&v->lock);
	s3_log_answer_waiters(ready, 0);
}
