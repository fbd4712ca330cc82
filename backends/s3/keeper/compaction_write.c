/* SPDX-License-Identifier: BSD-3-Clause */
/* Compaction writes what is alive into new objects, and moves the map to them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/base/failpoint.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "backends/s3/keeper/compaction.h"
#include "backends/s3/keeper/internal.h"
#include "backends/s3/log/log.h"
#include "backends/s3/read/read.h"
#include "backends/s3/state/object_table.h"

/* Objects written at once. */
#define GC_TARGETS 4
/* Blocks of an object that compaction writes, however little memory there is. */
#define GC_BLOCKS_LEAST 16u

static int by_lba(const void *a, const void *b)
{
	const struct s3_gc_piece *x = a, *y = b;

	return (x->lba > y->lba) - (x->lba < y->lba);
}

/* A GC object that is being put together, or on its way. */
struct target {
	struct s3_header_writer writer;
	struct s3_object_header sealed;
	uint8_t *header, *data;
	size_t room;
	uint32_t *crcs; /* not used where data is transformed */
	struct s3_stored stored;
	struct s3_record *records;
	size_t n_records;
	uint32_t blocks, blocks_max;
	struct s3_gc_flight *flight;
	bool sent, landed;
	struct iovec iov[2];
	uint32_t crc32c;
	struct s3_request req;
	char key[S3_KEY_MAX + 1];
};

/* Is the GC object that stands there already ours, from an attempt whose reply was lost? 0: yes. */
static int meet_target(struct s3_volume *v, uint64_t id)
{
	struct s3_object_header there;
	struct s3_request req;
	enum s3_check check;
	void *data;
	int r = s3_volume_get_header(v, id, &data, &there, &check, &req);

	if (r)
		return r;
	/* Its writer gives a number once. */
	r = check == S3_GOOD && there.id == id && memcmp(there.instance, v->instance, S3_UUID) == 0
		    ? 0
		    : -EEXIST;
	free(data);
	return r;
}

static void target_stored(struct s3_request *req)
{
	struct target *t = req->opaque;
	struct s3_gc_flight *f = t->flight;

	pthread_mutex_lock(&f->lock);
	t->landed = true;
	f->n--;
	pthread_cond_broadcast(&f->landed);
	pthread_mutex_unlock(&f->lock);
}

/* Begins to store an object. 0 or negative errno. */
static int send_target(struct s3_volume *v, struct target *t)
{
	int r;

	t->writer.header.blocks = t->blocks;
	r = s3_seal(v, &t->writer, t->data, t->crcs, &t->stored, t->iov, &t->sealed);
	if (r)
		return r;
	if (v->checksums)
		t->crc32c = s3_seal_crc32c(v, t->iov, t->crcs);
	s3_volume_object_key(v, t->sealed.id, t->key);
	t->req = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_BACKGROUND,
		.key = t->key,
		.iov = t->iov,
		.iovcnt = 2,
		.crc32c = v->checksums ? &t->crc32c : NULL,
		.if_none_match = v->conditional,
		.retry_deadline = S3_GC_DEADLINE,
		.droppable = true,
		.done = target_stored,
		.opaque = t,
	};
	t->landed = false;
	s3_gc_take_off(t->flight);
	r = s3_store_submit(v->store, &t->req);
	if (r)
		s3_gc_land(t->flight);
	t->sent = r == 0;
	return r;
}

/* Waits for it and moves the map to it. Its failure leaves an object that nobody knows. */
static int enter_target(struct s3_volume *v, struct target *t)
{
	struct s3_object object = {.blocks = t->blocks};
	int r;

	if (!t->sent)
		return 0;
	pthread_mutex_lock(&t->flight->lock);
	while (!t->landed)
		pthread_cond_wait(&t->flight->landed, &t->flight->lock);
	pthread_mutex_unlock(&t->flight->lock);
	t->sent = false;
	r = t->req.result;
	if (r == -EEXIST)
		r = meet_target(v, t->sealed.id);
	if (r)
		return r;
	object.id = t->sealed.id;
	object.header_bytes = t->sealed.header_bytes;
	object.bytes = t->sealed.header_bytes + t->sealed.data_bytes;
	s3_failpoint(S3_FAIL_RELOCATE_PUT_AFTER);
	r = s3_log_relocate(v, &object, t->records, t->n_records);
	if (r)
		return r;
	s3_crc_cache_add(v->crcs, &t->sealed);
	atomic_fetch_add(&v->stats.gc_objects, 1);
	atomic_fetch_add(&v->stats.gc_bytes, object.bytes);
	return 0;
}

static void begin_target(struct s3_volume *v, struct target *t)
{
	struct s3_object_header header = {
		.type = S3_TYPE_GC,
		.block_shift = v->shift,
		/* One that exists is of an attempt before: the next time another number is used. */
		.id = atomic_fetch_add(&v->next_gc, 1),
		.epoch = v->epoch,
		.time = (uint64_t)time(NULL) * 1000000,
	};

	memcpy(header.uuid, v->super.uuid, S3_UUID);
	memcpy(header.instance, v->instance, S3_UUID);
	s3_header_begin(&t->writer, &header, t->header, t->room);
	t->n_records = 0;
	t->blocks = 0;
}

/* Puts as much of a piece into the target as it can take; how many blocks. */
static uint32_t add_to_target(struct s3_volume *v, struct s3_gc_round *round, struct target *t,
	const struct s3_gc_piece *p)
{
	const struct s3_gc_source *s = &round->sources[p->source];
	uint32_t n = t->blocks_max - t->blocks;

	if (n > p->count)
		n = p->count;
	memcpy(t->data + ((size_t)t->blocks << v->shift), s3_gc_source_block(v, s, p->offset),
		(size_t)n << v->shift);
	for (uint32_t i = 0; !s->plain && i < n; i++)
		t->crcs[t->blocks + i] = s3_header_crc(&s->header, p->offset + i);
	s3_header_add(&t->writer,
		&(struct s3_record){
			.op = S3_RECORD_WRITE, .lba = p->lba, .count = n, .offset = t->blocks});
	t->records[t->n_records++] = (struct s3_record){
		.op = S3_RECORD_RELOCATE,
		.lba = p->lba,
		.count = n,
		.source = s->object.id,
		.source_offset = p->offset,
		.object = t->writer.header.id,
		.offset = t->blocks,
	};
	t->blocks += n;
	return n;
}

/* Bytes that a target of so many blocks takes. */
static uint64_t target_bytes(const struct s3_volume *v, uint32_t blocks)
{
	uint64_t data = (uint64_t)blocks << v->shift;

	return data + (v->transforms ? s3_transform_room(data) : 0) +
	       s3_header_room(blocks, blocks, v->shift, v->super.features) +
	       blocks * (sizeof(uint32_t) + sizeof(struct s3_record));
}

static int make_target(struct s3_volume *v, struct target *t, uint32_t blocks)
{
	size_t bytes = (size_t)blocks << v->shift;

	t->blocks_max = blocks;
	t->room = s3_header_room(blocks, blocks, v->shift, v->super.features);
	t->room = (t->room + S3_ALIGN - 1) / S3_ALIGN * S3_ALIGN;
	t->header = aligned_alloc(S3_ALIGN, t->room);
	t->data = s3_room_take(v, bytes);
	t->crcs = malloc(blocks * sizeof *t->crcs);
	t->records = malloc(blocks * sizeof *t->records);
	if (s3_stored_init(v, &t->stored, bytes) || !t->header || !t->data || !t->crcs ||
		!t->records)
		return -ENOMEM;
	return 0;
}

static void free_target(const struct s3_volume *v, struct target *t)
{
	s3_stored_free(&t->stored);
	free(t->records);
	free(t->crcs);
	s3_room_give(v, t->data);
	free(t->header);
}

int s3_gc_move_pieces(struct s3_volume *v, struct s3_gc_round *round)
{
	struct target targets[GC_TARGETS] = {0}, *t = &targets[0];
	uint32_t blocks = v->batch_blocks;
	unsigned n = 0, next = 0;
	size_t used = v->room.used;
	uint64_t left = 0;
	int r = 0;

	if (!round->n_pieces)
		return 0;
	qsort(round->pieces, round->n_pieces, sizeof *round->pieces, by_lba);
	for (size_t i = 0; i < round->n_pieces; i++)
		left += round->pieces[i].count;
	while (blocks > GC_BLOCKS_LEAST && target_bytes(v, blocks) > round->memory / 2)
		blocks = (blocks + 1) / 2;
	while (r == 0 && n < GC_TARGETS &&
		(n == 0 || (n < (left + blocks - 1) / blocks &&
				   (n + 1) * target_bytes(v, blocks) <= round->memory / 2))) {
		targets[n].flight = &round->writes;
		r = make_target(v, &targets[n++], blocks);
	}
	if (r == 0)
		begin_target(v, t);
	for (size_t i = 0; r == 0 && i < round->n_pieces; i++) {
		struct s3_gc_piece p = round->pieces[i];

		while (r == 0 && p.count) {
			uint32_t added = add_to_target(v, round, t, &p);

			p.lba += added;
			p.offset += added;
			p.count -= added;
			left -= added;
			if (t->blocks < blocks && left)
				continue;
			r = send_target(v, t);
			next = (next + 1) % n;
			t = &targets[next];
			if (r == 0)
				r = enter_target(v, t);
			if (r == 0 && left)
				begin_target(v, t);
		}
	}
	/* In the order in which they were sent. */
	for (unsigned i = 0; i < n; i++) {
		int entered = enter_target(v, &targets[(next + i) % n]);

		r = r ? r : entered;
	}
	for (unsigned i = 0; i < n; i++)
		free_target(v, &targets[i]);
	v->room.used = used;
	return r;
}
