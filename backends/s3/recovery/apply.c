/* SPDX-License-Identifier: BSD-3-Clause */
/* Records of the log, applied to the map and the table of objects. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/core/snapstore.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/recovery/internal.h"
#include "backends/s3/recovery/recovery.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

void s3_recovery_seal_objects(struct s3_recovery *p, uint64_t seq)
{
	if (p->slot != S3_NO_SLOT)
		s3_objects_seal(p->v->objects, p->slot, seq);
	for (size_t i = 0; i < p->n_gc; i++)
		s3_objects_seal(p->v->objects, p->gc[i], seq);
	p->slot = S3_NO_SLOT;
	p->n_gc = 0;
}

int s3_recovery_apply_header(void *opaque, const struct s3_object_header *header)
{
	struct s3_recovery *p = opaque;
	struct s3_volume *v = p->v;

	s3_recovery_seal_objects(p, v->applied);
	v->log_bytes_since_full += header->header_bytes + header->data_bytes;
	p->last_epoch = header->epoch;
	p->clean = header->type == S3_TYPE_CLEAN;
	p->mine = header->epoch == p->epoch && memcmp(header->instance, v->instance, S3_UUID) == 0;
	v->applied = header->id;
	v->last_type = header->type;
	if (header->type != S3_TYPE_DATA)
		return 0;
	if (!s3_seal_fits(v, header))
		return -EINVAL;
	p->slot = s3_objects_add(
		v->objects, &(struct s3_object){
				    .id = header->id,
				    .birth = header->id,
				    .bytes = header->header_bytes + header->data_bytes,
				    .header_bytes = header->header_bytes,
				    .blocks = header->blocks,
			    });
	return p->slot == S3_NO_SLOT ? -ENOMEM : 0;
}

static int add_gc_object(struct s3_recovery *p, uint64_t seq, const struct s3_record *record)
{
	struct s3_volume *v = p->v;
	uint32_t slot;

	if (record->object >= v->next_gc)
		v->next_gc = record->object + 1;
	if (s3_objects_find(v->objects, 0, record->object) != S3_NO_SLOT)
		return 0;
	if (p->n_gc == p->room_gc) {
		size_t room = p->room_gc ? 2 * p->room_gc : 64;
		uint32_t *gc = realloc(p->gc, room * sizeof *gc);

		if (!gc)
			return -ENOMEM;
		p->gc = gc;
		p->room_gc = room;
	}
	slot = s3_objects_add(v->objects, &(struct s3_object){
						  .id = record->object,
						  .birth = seq,
						  .bytes = record->bytes,
						  .header_bytes = record->header_bytes,
						  .blocks = record->blocks,
					  });
	if (slot == S3_NO_SLOT)
		return -ENOMEM;
	p->gc[p->n_gc++] = slot;
	return 0;
}

int s3_recovery_apply_record(
	void *opaque, const struct s3_object_header *header, const struct s3_record *record)
{
	struct s3_recovery *p = opaque;
	struct s3_volume *v = p->v;
	uint32_t from, to;
	int r;

	switch (record->op) {
	case S3_RECORD_WRITE:
		if (p->batch)
			return s3_map_batch_update(p->batch, header->id, record->lba, record->count,
				p->slot, record->offset);
		return s3_map_update(
			v->map, header->id, record->lba, record->count, p->slot, record->offset);
	case S3_RECORD_ZERO:
	case S3_RECORD_DISCARD:
		if (p->batch)
			return s3_map_batch_punch(p->batch, header->id, record->lba, record->count);
		return s3_map_punch(v->map, header->id, record->lba, record->count);
	case S3_RECORD_GC_OBJECT:
		return add_gc_object(p, header->id, record);
	case S3_RECORD_RELOCATE:
		from = s3_objects_find(v->objects, 0, record->source);
		to = s3_objects_find(v->objects, 0, record->object);
		if (from == S3_NO_SLOT || to == S3_NO_SLOT)
			return -EINVAL;
		if (p->batch)
			return s3_map_batch_relocate(p->batch, header->id, record->lba,
				record->count, from, record->source_offset, to, record->offset);
		return s3_map_relocate(v->map, header->id, record->lba, record->count, from,
			record->source_offset, to, record->offset, NULL);
	case S3_RECORD_RESET:
		r = p->batch ? s3_map_batch_apply(p->batch) : 0;
		return r ? r : s3_restore(v, record->seq);
	}
	return -EOPNOTSUPP;
}

/* Takes the snapshots that are of seq, up to which everything has been applied. */
static int adopt(struct s3_recovery *p, uint64_t seq)
{
	struct s3_volume *v = p->v;
	int r = 0;

	for (size_t i = 0; r == 0 && i < p->n_adopt; i++) {
		const struct s3_root_snapshot *snapshot = &p->adopt[i];

		if (snapshot->seq != seq)
			continue;
		/* One of the same name that the root knew had been deleted before. */
		for (uint32_t j = 0; r == 0 && j < v->n_snapshots; j++)
			if (strcmp(v->snapshots[j].name, snapshot->name) == 0)
				r = s3_snapshot_drop(v, v->snapshots[j--].seq, seq);
		if (r == 0)
			r = s3_snapshot_enter(v, snapshot);
		v->full_wanted = true;
	}
	return r;
}

/* What an object of the log says of the writer that the super object names. */
static void follow_chain(struct s3_recovery *p, const struct s3_object_header *header)
{
	struct s3_chain *chain = &p->chain;

	if (memcmp(header->instance, p->v->super.write_back, S3_UUID) == 0)
		*chain = (struct s3_chain){
			.last = header->id, .closed = header->type == S3_TYPE_CLEAN};
	else if (header->type == S3_TYPE_DATA && header->cache_record)
		chain->replayed = header->cache_record;
	else if (header->type == S3_TYPE_DATA)
		chain->foreign = true;
}

int s3_recovery_apply(struct s3_recovery *p, const struct s3_object_header *header)
{
	struct s3_volume *v = p->v;
	struct s3_record record;
	size_t cursor = 0;
	int r = s3_recovery_apply_header(p, header);

	while (r == 0 && s3_header_next(header, &cursor, &record))
		r = s3_recovery_apply_record(p, header, &record);
	if (r == -ENOENT) {
		/* A newer one need not know how it came to that. Behind our fence there is none. */
		r = p->fenced ? 0 : s3_recovery_newer_root(v, p);
		return r ? r
			 : s3_volume_refuse(v, -EIO,
				   "volume=%s: the snapshot at object %" PRIu64
				   ", to which it was rolled back, is damaged or gone; restore the "
				   "volume from a backup",
				   v->name, record.seq);
	}
	if (r) {
		char key[S3_KEY_MAX + 1];

		s3_volume_object_key(v, header->id, key);
		return r == -ENOMEM
			       ? r
			       : s3_volume_refuse(v, -EIO,
					 "volume=%s: %s contradicts the log before it; restore "
					 "the volume from a backup",
					 v->name, key);
	}
	s3_recovery_seal_objects(p, header->id);
	if (s3_summary_add(&v->summary, header) < 0)
		v->full_wanted = true;
	v->frontier = header->id;
	v->last_time = header->time;
	if (header->epoch > v->epoch)
		v->epoch = header->epoch;
	if (memcmp(header->instance, v->instance, S3_UUID))
		memcpy(v->predecessor, header->instance, S3_UUID);
	follow_chain(p, header);
	atomic_fetch_add(&v->stats.replayed, 1);
	return adopt(p, header->id);
}
