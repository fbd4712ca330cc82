/* SPDX-License-Identifier: BSD-3-Clause */
/* The open batch: made, filled with records, closed. All of it under the lock of the volume. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backends/s3/base/clock.h"
#include "backends/s3/core/batch.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/log/internal.h"
#include "backends/s3/log/log.h"
#include "backends/s3/state/object_table.h"

static uint32_t max_records(const struct s3_volume *v)
{
	return v->batch_blocks + S3_EXTRA_RECORDS;
}

size_t s3_log_header_room(const struct s3_volume *v)
{
	size_t room = s3_header_room(max_records(v), v->batch_blocks, v->shift, v->super.features);

	return (room + S3_ALIGN - 1) / S3_ALIGN * S3_ALIGN;
}

static struct s3_batch *make_batch(struct s3_volume *v)
{
	struct s3_batch *b = calloc(1, sizeof *b);
	size_t room = s3_log_header_room(v);

	if (!b)
		return NULL;
	b->data = mmap(
		NULL, v->batch_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->data == MAP_FAILED)
		b->data = NULL;
	b->header = aligned_alloc(S3_ALIGN, room);
	b->ready = malloc(v->batch_blocks);
	b->crcs = malloc(v->batch_blocks * sizeof *b->crcs);
	b->volume = v;
	if (!b->data || !b->header || !b->ready || !b->crcs ||
		s3_stored_init(v, &b->stored, v->batch_size)) {
		s3_batch_free(v, b);
		return NULL;
	}
	return b;
}

bool s3_log_window_full(const struct s3_volume *v)
{
	return v->next_seq - v->frontier >= S3_WINDOW || v->resident[v->next_seq % S3_WINDOW];
}

/* A new open batch. DONE, STALLED: an upload must end first, or negative errno. */
static int open_batch(struct s3_volume *v)
{
	struct s3_batch *b = v->free_batches;
	struct s3_object_header header = {
		.type = S3_TYPE_DATA,
		.block_shift = v->shift,
		.id = v->next_seq,
		.epoch = v->epoch,
		.batch = v->next_seq,
	};

	if (s3_log_window_full(v))
		return S3_LOG_STALLED;
	if (b) {
		v->free_batches = b->next;
	} else {
		if (v->n_batches >= v->max_batches)
			return S3_LOG_STALLED;
		b = make_batch(v);
		v->scarce = !b && v->n_batches;
		if (!b)
			return v->n_batches ? S3_LOG_STALLED : -ENOMEM;
		v->n_batches++;
	}
	/* Its size is reported when it is sealed. */
	b->slot = s3_objects_add(v->objects,
		&(struct s3_object){
			.id = v->next_seq, .birth = v->next_seq, .blocks = v->batch_blocks});
	if (b->slot == S3_NO_SLOT) {
		b->next = v->free_batches;
		v->free_batches = b;
		return -ENOMEM;
	}
	memcpy(header.uuid, v->super.uuid, S3_UUID);
	memcpy(header.instance, v->instance, S3_UUID);
	s3_header_begin(&b->writer, &header, b->header, s3_log_header_room(v));
	memset((void *)b->ready, 0, v->batch_blocks);
	b->next = NULL;
	b->seq = v->next_seq++;
	b->blocks = b->n_records = 0;
	b->last.count = 0;
	b->change = 0;
	b->logged = (struct s3_logged){.records = b->writer.length};
	b->closed = b->wanted = b->relocates = false;
	b->stale[0] = '\0';
	b->refs = 1;
	b->writers = 1;
	b->began = s3_now();
	v->resident[b->seq % S3_WINDOW] = b;
	v->open = b;
	v->applied = b->seq;
	pthread_cond_signal(&v->sealer_work); /* it now has to look at the clock */
	return S3_LOG_DONE;
}

void s3_log_settle_last(struct s3_batch *b)
{
	if (b->last.count)
		s3_header_add(&b->writer, &b->last);
	b->last.count = 0;
}

void s3_log_add_record(struct s3_batch *b, const struct s3_record *record)
{
	struct s3_record *last = &b->last;

	b->change = ++b->volume->changes;
	if (last->count && last->op == record->op && last->lba + last->count == record->lba &&
		((record->op == S3_RECORD_WRITE && last->offset + last->count == record->offset) ||
			record->op == S3_RECORD_ZERO)) {
		last->count += record->count;
		return;
	}
	s3_log_settle_last(b);
	*last = *record;
	b->n_records++;
}

void s3_log_close_batch(struct s3_volume *v)
{
	struct s3_batch *b = v->open;

	s3_log_settle_last(b);
	b->records_end = b->writer.length;
	b->closed = true;
	v->open = NULL;
	v->in_flight++;
	v->unsealed++;
	b->next = NULL;
	*v->sealing_tail = b;
	v->sealing_tail = &b->next;
	if (s3_batch_drop_writer(b))
		pthread_cond_signal(&v->sealer_work);
}

void s3_log_close_for_flush(struct s3_volume *v)
{
	if (v->in_flight < v->uploads)
		s3_log_close_batch(v);
	else
		v->open->wanted = true;
}

bool s3_log_has_to_wait(const struct s3_volume *v)
{
	return v->barrier || s3_map_notes(v->map) > v->waiting_memory / 2;
}

int s3_log_make_room(struct s3_volume *v, bool data, uint32_t records)
{
	struct s3_batch *b = v->open;
	int r = atomic_load(&v->failed);

	if (r)
		return r;
	if (s3_log_has_to_wait(v))
		return S3_LOG_STALLED;
	if (b &&
		((data && b->blocks == v->batch_blocks) || b->n_records + records > max_records(v)))
		s3_log_close_batch(v);
	if (v->open)
		return S3_LOG_DONE;
	return data && s3_objects_crowded(v->objects) ? -ENOSPC : open_batch(v);
}
