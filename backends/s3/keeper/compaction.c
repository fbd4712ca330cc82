/* SPDX-License-Identifier: BSD-3-Clause */
/* Garbage: what is alive in sparse and small objects moves into new ones. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/backend.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "backends/s3/keeper/internal.h"
#include "backends/s3/log/log.h"
#include "backends/s3/read/read.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

/* Objects compacted in one go, and written at once. */
#define GC_OBJECTS 32
#define GC_TARGETS 4
/* Blocks of an object that compaction writes, however little memory there is. */
#define GC_BLOCKS_LEAST 16u
/* Objects that cannot be read are left alone that long. */
#define PASSED_NS UINT64_C(600000000000)
/* Compaction begins when less than this part of what is stored is used, in percent. */
#define GC_USED 70

/* Small objects that may be there besides one for each full object. */
#define GC_SMALL 64

/* ---- garbage: sparse and small objects ---------------------------------------------------- */

/* A run of blocks that are to move. */
struct piece {
	uint64_t lba;
	uint32_t count, source; /* index in the round */
	uint32_t offset;	/* block in the source's data */
};

/* An object, all of which is in memory, or a window of it if it is larger than what there is. */
struct source {
	uint32_t slot;
	struct s3_object object;
	uint8_t *raw; /* as stored, which header points into: all of it, or the header */
	size_t length;
	uint8_t *window;   /* what of the data is at hand, if not all; else NULL */
	uint8_t *plain;	   /* blocks of the window; NULL: they are stored as they are */
	uint32_t from, to; /* the window, in blocks of the data */
	struct s3_object_header header;
	struct iovec iov;
	struct s3_request req;
	char key[S3_KEY_MAX + 1];
};

/* Requests of a round that are under way. */
struct flight {
	pthread_mutex_t lock;
	pthread_cond_t landed;
	unsigned n;
};

struct round {
	struct source sources[GC_OBJECTS];
	size_t n_sources;
	struct piece *pieces;
	size_t n_pieces, room;
	uint64_t memory; /* bytes that it may take, half of them for what is read */
	struct flight reads, writes;
};

static void take_off(struct flight *f)
{
	pthread_mutex_lock(&f->lock);
	f->n++;
	pthread_mutex_unlock(&f->lock);
}

static void land(struct flight *f)
{
	pthread_mutex_lock(&f->lock);
	f->n--;
	pthread_cond_broadcast(&f->landed);
	pthread_mutex_unlock(&f->lock);
}

static void wait_all(struct flight *f)
{
	pthread_mutex_lock(&f->lock);
	while (f->n)
		pthread_cond_wait(&f->landed, &f->lock);
	pthread_mutex_unlock(&f->lock);
}

static int add_piece(struct round *round, const struct piece *piece)
{
	if (round->n_pieces == round->room) {
		size_t room = round->room ? 2 * round->room : 256;
		struct piece *pieces = realloc(round->pieces, room * sizeof *pieces);

		if (!pieces)
			return -ENOMEM;
		round->pieces = pieces;
		round->room = room;
	}
	round->pieces[round->n_pieces++] = *piece;
	return 0;
}

/* Finds the blocks of a source's window that are alive, through the records that wrote them. */
static int find_live(struct s3_volume *v, struct round *round, uint32_t index)
{
	struct source *s = &round->sources[index];
	struct s3_record record;
	size_t cursor = 0;
	int r = 0;

	while (r == 0 && s3_header_next(&s->header, &cursor, &record)) {
		uint64_t from = record.offset, to = record.offset + record.count;
		uint64_t lba, end;

		if (record.op != S3_RECORD_WRITE)
			continue;
		from = from > s->from ? from : s->from;
		to = to < s->to ? to : s->to;
		if (from >= to)
			continue;
		lba = record.lba + (from - record.offset);
		end = record.lba + (to - record.offset);
		while (r == 0 && lba < end) {
			struct s3_run run;

			s3_map_lookup(v->map, lba, end - lba, false, &run, 1);
			/* Where this record put it, and nowhere else: an object may hold a block
			 * twice. */
			if (run.slot == s->slot && run.offset == record.offset + (lba - record.lba))
				r = add_piece(round, &(struct piece){.lba = lba,
							     .count = (uint32_t)run.count,
							     .source = index,
							     .offset = run.offset});
			lba += run.count;
		}
	}
	return r;
}

static const uint8_t *source_block(
	const struct s3_volume *v, const struct source *s, uint32_t block)
{
	const uint8_t *data = s->plain	  ? s->plain
			      : s->window ? s->window
					  : s->raw + s->header.header_bytes;

	return data + ((size_t)(block - s->from) << v->shift);
}

/* Are the blocks of a piece what was written? */
static int check_piece(const struct s3_volume *v, const struct source *s, const struct piece *p)
{
	for (uint32_t b = p->offset; b < p->offset + p->count; b++)
		if (s3_crc32c(0, source_block(v, s, b), v->block_size) !=
			s3_header_crc(&s->header, b))
			return -EIO;
	return 0;
}

/* Restores what the pieces need of a source whose data is transformed, which checks it. */
static int restore_source(
	struct s3_volume *v, struct source *s, const struct piece *pieces, size_t n)
{
	bool *wanted = calloc(s->header.n_crc, sizeof *wanted);
	uint32_t first = (uint32_t)(((uint64_t)s->from << v->shift) / S3_UNIT);
	int r = -ENOMEM;

	s->plain = s3_room_take(v, (size_t)(s->to - s->from) << v->shift);
	if (wanted && s->plain) {
		for (size_t i = 0; i < n; i++) {
			uint64_t from = (uint64_t)pieces[i].offset << v->shift;
			uint64_t end = from + ((uint64_t)pieces[i].count << v->shift);

			for (uint64_t u = from / S3_UNIT; u * S3_UNIT < end; u++)
				wanted[u] = true;
		}
		r = s3_unseal(v, s->object.origin, &s->header, first,
			s->window ? s->window : s->raw + s->header.header_bytes, wanted, s->plain);
	}
	free(wanted);
	return r == -EBADMSG ? -EIO : r;
}

static void source_read(struct s3_request *req)
{
	land(req->opaque);
}

/* Begins to read length bytes of a source into memory of its own, *to. 0 or negative errno. */
static int begin_read(struct s3_volume *v, struct round *round, struct source *s, uint8_t **to,
	uint64_t offset, size_t length)
{
	int r;

	*to = s3_room_take(v, length);
	if (!*to)
		return -ENOMEM;
	s->iov = (struct iovec){*to, length};
	s3_volume_object_key(v, s->object.id, s->key);
	s->req = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_BACKGROUND,
		.key = s->key,
		.iov = &s->iov,
		.iovcnt = 1,
		.offset = offset,
		.retry_deadline = S3_GC_DEADLINE,
		.done = source_read,
		.opaque = &round->reads,
	};
	take_off(&round->reads);
	r = s3_store_submit(v->store, &s->req);
	if (r)
		land(&round->reads);
	return r;
}

/* Is what was read of a source the object that it is to be? */
static int check_source(const struct s3_volume *v, struct source *s)
{
	if (s3_header_decode(s->raw, s->length, v->super.uuid, &s->header) != S3_GOOD ||
		s->header.id != s->object.id || s->header.blocks != s->object.blocks ||
		s->object.bytes != (uint64_t)s->header.header_bytes + s->header.data_bytes ||
		!s3_seal_fits(v, &s->header))
		return -EIO;
	return 0;
}

/* Finds what is alive in a source's window, and checks it. */
static int use_source(struct s3_volume *v, struct round *round, uint32_t index)
{
	struct source *s = &round->sources[index];
	size_t first = round->n_pieces;
	int r = find_live(v, round, index);

	if (r == 0 && s->header.flags && round->n_pieces > first)
		r = restore_source(v, s, round->pieces + first, round->n_pieces - first);
	for (size_t i = first; r == 0 && !s->plain && i < round->n_pieces; i++)
		r = check_piece(v, s, &round->pieces[i]);
	if (r)
		round->n_pieces = first;
	return r;
}

static int by_lba(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

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
	struct flight *flight;
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
	struct flight *f = t->flight;

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
		.done = target_stored,
		.opaque = t,
	};
	t->landed = false;
	take_off(t->flight);
	r = s3_store_submit(v->store, &t->req);
	if (r)
		land(t->flight);
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
static uint32_t add_to_target(
	struct s3_volume *v, struct round *round, struct target *t, const struct piece *p)
{
	const struct source *s = &round->sources[p->source];
	uint32_t n = t->blocks_max - t->blocks;

	if (n > p->count)
		n = p->count;
	memcpy(t->data + ((size_t)t->blocks << v->shift), source_block(v, s, p->offset),
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

/* Writes all pieces into new objects, in the order of the volume's blocks; some are on their way.
 */
static int move_pieces(struct s3_volume *v, struct round *round)
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
		struct piece p = round->pieces[i];

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

/* Puts back those that are not yet in the store. How many there are left. */
static size_t keep_stored(struct s3_volume *v, uint32_t *slots, size_t n)
{
	uint64_t frontier;
	size_t kept = 0;

	pthread_mutex_lock(&v->lock);
	frontier = v->frontier;
	pthread_mutex_unlock(&v->lock);
	for (size_t i = 0; i < n; i++) {
		struct s3_object object;

		s3_objects_get(v->objects, slots[i], &object);
		if (object.id & S3_GC || object.id <= frontier)
			slots[kept++] = slots[i];
		else
			s3_objects_put_back(v->objects, slots[i]);
	}
	return kept;
}

/* A single object that is only small becomes another one that is. */
static bool worth_moving(struct s3_volume *v, const uint32_t *slots, size_t n, unsigned percent)
{
	struct s3_object object;

	if (n != 1)
		return n > 0;
	s3_objects_get(v->objects, slots[0], &object);
	return (uint64_t)object.live * 100 < (uint64_t)object.blocks * percent;
}

/* What a source takes while it is read and moved, if all of it is in memory. */
static uint64_t source_bytes(const struct s3_volume *v, const struct s3_object *object)
{
	return object->bytes + (v->transforms ? (uint64_t)object->blocks << v->shift : 0) +
	       object->blocks * sizeof(struct piece);
}

static void free_source(const struct s3_volume *v, struct source *s)
{
	s3_room_give(v, s->raw);
	s3_room_give(v, s->window);
	s3_room_give(v, s->plain);
	s->raw = s->window = s->plain = NULL;
}

/*
 * Forgets what a source has had in memory of it behind the first used bytes of the room, and moves
 * its window on. False: that was all.
 */
static bool next_window(struct s3_volume *v, size_t used, struct source *s, uint32_t blocks)
{
	s3_room_give(v, s->window);
	s3_room_give(v, s->plain);
	v->room.used = used;
	s->window = s->plain = NULL;
	s->from = s->to;
	s->to = s->header.blocks - s->from > blocks ? s->from + blocks : s->header.blocks;
	return s->from < s->to;
}

/* Where the data of a block is stored, behind the header: the beginning of its unit. */
static uint64_t stored_at(const struct s3_volume *v, const struct source *s, uint32_t block)
{
	uint64_t at = (uint64_t)block << v->shift, stored = 0;

	if (!s->header.flags)
		return at;
	if (block == s->header.blocks)
		return s->header.data_bytes;
	for (uint32_t i = 0; i < at / S3_UNIT; i++)
		stored += s3_header_unit(&s->header, i).bytes;
	return stored;
}

/* ---- sources that cannot be read ----------------------------------------------------------- */

/* An object that is left alone for a while, taken out of the table's lists. */
struct s3_passed {
	uint32_t slot;
	uint64_t id;
	uint64_t until; /* ns, monotonic; 0: it may be tried */
};

/* Leaves a source alone that could not be read, which is reported once. False: put it back. */
static bool pass_over(struct s3_volume *v, const struct source *s, int r)
{
	struct s3_passed *passed;
	size_t i = 0;

	/* A store out of reach says nothing about the object. */
	if (r == -ENOMEM || r == -ESHUTDOWN || s3_check_not_fenced(v))
		return false;
	while (i < v->n_passed && v->passed[i].id != s->object.id)
		i++;
	if (i == v->n_passed) {
		passed = realloc(v->passed, (v->n_passed + 1) * sizeof *passed);
		if (!passed)
			return false;
		v->passed = passed;
		v->passed[v->n_passed++] = (struct s3_passed){.id = s->object.id};
		backend_error(&v->host,
			"volume=%s: %s %s; it is not compacted; run a check, and restore the "
			"volume from a backup if it is damaged",
			v->name, s->key,
			r == -EIO && !s->req.result ? "is damaged" : s->req.message);
	}
	v->passed[i].slot = s->slot;
	v->passed[i].until = s3_now() + PASSED_NS;
	return true;
}

void s3_gc_readmit(struct s3_volume *v, bool all)
{
	for (size_t i = 0; i < v->n_passed; i++) {
		struct s3_passed *p = &v->passed[i];

		if (p->until && (all || s3_now() >= p->until)) {
			p->until = 0;
			s3_objects_put_back(v->objects, p->slot);
		}
	}
}

/* ---- a round ------------------------------------------------------------------------------- */

static void init_flight(struct flight *f)
{
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->landed, NULL);
}

static void end_flight(struct flight *f)
{
	pthread_cond_destroy(&f->landed);
	pthread_mutex_destroy(&f->lock);
}

/* Reads all sources at once and moves what is alive of those that are as they should be. */
static int compact_sources(struct s3_volume *v, struct round *round, bool passed[])
{
	int r = 0, fenced;

	for (size_t i = 0; r == 0 && i < round->n_sources; i++) {
		struct source *s = &round->sources[i];

		s->length = s->object.bytes;
		r = begin_read(v, round, s, &s->raw, 0, s->length);
	}
	/* Meanwhile: nothing has been changed yet. */
	fenced = s3_check_not_fenced(v);
	wait_all(&round->reads);
	r = fenced ? fenced : r;
	for (size_t i = 0; r == 0 && i < round->n_sources; i++) {
		struct source *s = &round->sources[i];
		int read = s->req.result ? s->req.result : check_source(v, s);

		s->to = s->header.blocks;
		if (read == 0)
			read = use_source(v, round, (uint32_t)i);
		if (read) {
			passed[i] = pass_over(v, s, read);
			r = passed[i] ? 0 : read;
		}
	}
	return r ? r : move_pieces(v, round);
}

static int read_part(struct s3_volume *v, struct round *round, struct source *s, uint8_t **to,
	uint64_t offset, size_t length)
{
	int r = begin_read(v, round, s, to, offset, length);

	wait_all(&round->reads);
	return r ? r : s->req.result;
}

/* Moves an object that does not fit into the memory that there is, window by window. */
static int compact_large(struct s3_volume *v, struct round *round, bool *passed)
{
	struct source *s = &round->sources[0];
	uint64_t bytes = round->memory / 2 / (v->transforms ? 3 : 2);
	uint32_t blocks =
		(uint32_t)(bytes / S3_UNIT ? bytes / S3_UNIT : 1) * (uint32_t)(S3_UNIT >> v->shift);
	int r = s3_check_not_fenced(v);
	size_t used;

	if (r)
		return r;
	s->length = s->object.header_bytes;
	r = read_part(v, round, s, &s->raw, 0, s->length);
	used = v->room.used;
	if (r == 0)
		r = check_source(v, s);
	while (r == 0 && next_window(v, used, s, blocks)) {
		uint64_t from = stored_at(v, s, s->from), to = stored_at(v, s, s->to);
		int moved = 0;

		round->n_pieces = 0;
		if (to > from)
			r = read_part(v, round, s, &s->window, s->header.header_bytes + from,
				(size_t)(to - from));
		if (r == 0)
			r = use_source(v, round, 0);
		if (r == 0)
			moved = move_pieces(v, round);
		if (moved)
			return moved;
	}
	if (r)
		*passed = pass_over(v, s, r);
	return *passed ? 0 : r;
}

int s3_gc_compact(struct s3_volume *v, unsigned percent, bool small)
{
	uint32_t slots[GC_OBJECTS];
	bool passed[GC_OBJECTS] = {false}, worth;
	struct round *round = calloc(1, sizeof *round);
	size_t n =
		round ? s3_objects_take_sparse(v->objects, percent, small, slots, GC_OBJECTS) : 0;
	uint64_t bytes = 0;
	int r = 0;

	if (!round)
		return -ENOMEM;
	init_flight(&round->reads);
	init_flight(&round->writes);
	n = keep_stored(v, slots, n);
	worth = worth_moving(v, slots, n, percent);
	if (worth)
		round->memory = s3_room_enter(v);
	for (size_t i = 0; worth && i < n; i++) {
		struct source *s = &round->sources[round->n_sources];

		s->slot = slots[i];
		s3_objects_get(v->objects, s->slot, &s->object);
		bytes += source_bytes(v, &s->object);
		if (round->n_sources && bytes > round->memory / 2)
			break;
		round->n_sources++;
	}
	if (round->n_sources == 1 && bytes > round->memory / 2) {
		r = compact_large(v, round, passed);
	} else if (round->n_sources) {
		r = compact_sources(v, round, passed);
	}
	for (size_t i = 0; i < n; i++)
		if (!passed[i])
			s3_objects_put_back(v->objects, slots[i]);
	for (size_t i = 0; i < round->n_sources; i++)
		free_source(v, &round->sources[i]);
	n = round->n_sources;
	end_flight(&round->reads);
	end_flight(&round->writes);
	free(round->pieces);
	free(round);
	return r ? r : (int)n;
}

void s3_gc_compact_if_needed(struct s3_volume *v)
{
	struct s3_objects_totals t;
	bool small, sparse;

	s3_objects_totals(v->objects, &t);
	small = t.small > GC_SMALL + 2 * t.live / v->batch_blocks;
	/* What is dead goes without our help. */
	sparse = (t.live + t.held) * 100 < (t.blocks - t.dead_blocks) * GC_USED;
	if ((!small && !sparse) || s3_gc_compact(v, sparse ? S3_GC_SPARSE : 0, small) <= 0)
		s3_room_leave(v);
}
