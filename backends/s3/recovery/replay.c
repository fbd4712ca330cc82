/* SPDX-License-Identifier: BSD-3-Clause */
/* What of a write-back log the store lacks, and its replay. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/backend.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/base/localfile.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/log/writeback_file.h"
#include "backends/s3/recovery/internal.h"
#include "backends/s3/recovery/recovery.h"

/* Besides 0, 1 and errors: a newer program has written the entry. */
#define NEWER 2

/* Looked through at once for what follows a damaged entry. */
#define SCAN_BYTES (1u << 20)

/* ---- reading entries -------------------------------------------------------------------- */

/* An entry that has been read; to be freed with forget(). */
struct entry {
	uint64_t number, position, bytes;
	struct s3_object_header header; /* points into memory */
	enum s3_check check;
	uint8_t *memory;
	size_t room;
};

static void forget(struct entry *e)
{
	free(e->memory);
}

static int grow(struct entry *e, size_t bytes)
{
	uint8_t *more;

	if (bytes <= e->room)
		return 0;
	more = realloc(e->memory, bytes);
	if (!more)
		return -ENOMEM;
	e->memory = more;
	e->room = bytes;
	return 0;
}

/*
 * How much of the ring that the entries were written to is there. The file or device may have been
 * made larger or smaller since.
 */
static uint64_t ring_there(const struct s3_writeback *w)
{
	return w->state.ring < w->ring ? w->state.ring : w->ring;
}

/*
 * Has the owner, a newer program, written what was read in place of an entry? Data of the user may
 * look like that, but they do not know the owner.
 */
static bool is_newer(const struct s3_writeback *w, enum s3_check check, const void *data)
{
	return (check == S3_NEWER || check == S3_UNKNOWN_FLAG) &&
	       s3_header_names(data, S3_WRITEBACK_BLOCK, w->state.uuid, w->state.owner);
}

/* The header of an entry of the owner at position. 1: there is none; or NEWER. */
static int read_header(struct s3_writeback *w, uint64_t position, struct entry *e)
{
	uint64_t at = position % w->state.ring, end = ring_there(w);
	size_t length = S3_WRITEBACK_BLOCK;
	enum s3_check check = S3_SHORT;

	if (at + length > end)
		return 1;
	for (int i = 0; i < 2 && check == S3_SHORT; i++) {
		int r = grow(e, length);

		if (r == 0)
			r = s3_localfile_transfer(
				&w->file, false, e->memory, length, S3_WRITEBACK_RING + at);
		if (r)
			return r;
		check = s3_header_decode(e->memory, length, w->state.uuid, &e->header);
		length = e->header.header_bytes;
		if (check == S3_SHORT && (!length || at + length > end))
			return 1;
	}
	e->check = check;
	if (is_newer(w, check, e->memory))
		return NEWER;
	e->position = position;
	e->number = e->header.cache_record;
	e->bytes = e->header.header_bytes + s3_writeback_align(e->header.data_bytes);
	return check != S3_GOOD || e->header.type != S3_TYPE_DATA || !e->number ||
	       e->header.epoch != w->state.epoch || at + e->bytes > end ||
	       memcmp(e->header.instance, w->state.owner, S3_UUID) != 0;
}

/* The header of that entry, at position or at the next beginning of the ring. 1: there is none; or
 * NEWER.
 */
static int find_entry(struct s3_writeback *w, uint64_t position, uint64_t number, struct entry *e)
{
	uint64_t at = position % w->state.ring;
	int r = read_header(w, position, e);

	if ((r == 1 || (r == 0 && e->number != number)) && at)
		r = read_header(w, position + w->state.ring - at, e);
	return r == 0 && e->number != number ? 1 : r;
}

/* The blocks of an entry as they were written. 1: it is damaged. */
static int restore(struct s3_volume *v, struct entry *e, uint8_t *data)
{
	const struct s3_object_header *h = &e->header;
	uint64_t at = S3_WRITEBACK_RING + e->position % v->writeback->state.ring + h->header_bytes;
	size_t used = h->header_bytes;
	uint8_t *stored;
	bool *wanted;
	int r;

	if (!s3_seal_fits(v, h) || (uint64_t)h->blocks << v->shift > S3_BATCH_MAX ||
		h->block_shift != v->shift)
		return 1;
	/* The header points to where it was. */
	r = grow(e, used + h->data_bytes);
	if (r == 0 && s3_header_decode(e->memory, used, v->super.uuid, &e->header) != S3_GOOD)
		r = 1;
	stored = e->memory + used;
	if (r == 0)
		r = s3_localfile_transfer(&v->writeback->file, false, stored, h->data_bytes, at);
	if (r)
		return r;
	if (!h->flags) {
		for (uint32_t i = 0; i < h->blocks; i++)
			if (s3_crc32c(0, stored + ((size_t)i << v->shift), v->block_size) !=
				s3_header_crc(h, i))
				return 1;
		memcpy(data, stored, h->data_bytes);
		return 0;
	}
	wanted = malloc(h->n_crc * sizeof *wanted);
	if (!wanted)
		return -ENOMEM;
	memset(wanted, 1, h->n_crc * sizeof *wanted);
	r = s3_unseal(v, 0, h, 0, stored, wanted, data);
	free(wanted);
	return r == -EBADMSG ? 1 : r;
}

/*
 * Is there an entry that was written when the one of this number had been synced? Then that had
 * been whole. 1: yes; or NEWER, of e.
 */
static int find_later(struct s3_writeback *w, uint64_t number, struct entry *e)
{
	uint64_t end = ring_there(w);
	uint8_t *memory = malloc(SCAN_BYTES);
	int r = memory ? 0 : -ENOMEM;

	for (uint64_t at = 0; r == 0 && at < end; at += SCAN_BYTES) {
		size_t length = end - at < SCAN_BYTES ? end - at : SCAN_BYTES;

		r = s3_localfile_transfer(&w->file, false, memory, length, S3_WRITEBACK_RING + at);
		for (size_t i = 0; r == 0 && i < length; i += S3_WRITEBACK_BLOCK) {
			struct s3_object_header h;
			enum s3_check check =
				s3_header_decode(memory + i, S3_WRITEBACK_BLOCK, w->state.uuid, &h);

			/* Most positions hold no entry, as their first bytes show. */
			if (check != S3_GOOD && !h.header_bytes && !is_newer(w, check, memory + i))
				continue;
			r = read_header(w, at + i, e);
			if (r == 0)
				r = e->number > number && e->header.checkpoint >= number;
			else if (r == 1)
				r = 0;
		}
	}
	free(memory);
	return r;
}

/* ---- what the store lacks ---------------------------------------------------------------- */

int s3_writeback_refuse_loss(struct s3_volume *v, bool last, const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	if (!v->write_back_discard)
		return s3_volume_refuse(v, -EBUSY,
			"%s, or open it with write-back-discard=on to lose the writes that only "
			"that log holds",
			text);
	if (last)
		backend_error(&v->host,
			"volume=%s: the writes that only its write-back log held are lost, because "
			"of write-back-discard=on",
			v->name);
	return 0;
}

/* For each entry that the store lacks. data: its blocks. */
typedef int (*entry_fn)(void *opaque, const struct entry *e, const uint8_t *data);

/* The entries that the store lacks, in order. fn tells its errors; NULL: are they whole? */
static int walk(
	struct s3_volume *v, const struct s3_chain *chain, bool last, entry_fn fn, void *opaque)
{
	struct s3_writeback *w = v->writeback;
	uint64_t position = w->state.tail, number = w->state.entry, id = 0;
	uint8_t *data = malloc(S3_BATCH_MAX);
	struct entry e = {0};
	bool lacks = w->state.frontier > chain->last;
	int r = data ? 0 : -ENOMEM, stopped = 0;

	while (r == 0 && !lacks && !stopped) {
		r = find_entry(w, position, number, &e);
		if (r == 0 && e.header.id < id)
			r = 1;
		if (r == 0 && e.header.id > chain->last) {
			lacks = e.header.frontier > chain->last;
			if (!lacks)
				r = restore(v, &e, data);
			if (r == 0 && !lacks && fn && number > chain->replayed)
				stopped = fn(opaque, &e, data);
		}
		if (r)
			break;
		id = e.header.id;
		position = e.position + e.bytes;
		number++;
	}
	/* That a part is not there has been told. */
	if (r == 1)
		r = w->state.ring > w->ring ? 0 : find_later(w, number, &e);
	if (r == 1)
		r = s3_writeback_refuse_loss(v, last,
			"write-back=%s: entry %" PRIu64 " is damaged, and flushes that came after "
			"it cannot be replayed; restore the file",
			w->file.path, number);
	else if (r == NEWER)
		r = s3_localfile_refuse(&w->file, -EINVAL, s3_check_text(e.check));
	else if (r == 0 && lacks)
		r = s3_writeback_refuse_loss(v, last,
			"volume=%s: the log in the store ends at object %" PRIu64
			", although more had been stored according to the write-back log; restore "
			"the store",
			v->name, chain->last);
	else if (r < 0 && r != -ENOMEM)
		s3_localfile_refuse_errno(&w->file, r, "replace the disk, and restore the file");
	forget(&e);
	free(data);
	return stopped ? stopped : r;
}

int s3_writeback_whole(struct s3_volume *v, const struct s3_chain *chain)
{
	return walk(v, chain, false, NULL, NULL);
}

/* ---- replay ---------------------------------------------------------------------------- */

/* An object that is made of entries. */
struct parcel {
	struct s3_header_writer writer;
	struct s3_object_header sealed;
	uint8_t *header, *data;
	size_t room; /* of the header */
	uint32_t *crcs;
	struct s3_stored stored;
	struct iovec iov[2];
	uint32_t blocks, records;
	bool sent;
	struct s3_recovery_put put;
};

/* Some are on their way while the next one is put together. */
struct replay {
	struct s3_volume *v;
	struct s3_recovery *recovery;
	struct parcel *parcels; /* a ring */
	unsigned n, now;	/* the one that is filled */
	uint64_t next;		/* number of the next object */
	uint64_t last;		/* entry */
	bool failed;
};

static void free_parcel(struct parcel *p)
{
	s3_stored_free(&p->stored);
	free(p->header);
	free(p->data);
	free(p->crcs);
}

/* What a parcel has room for, but for an entry that is larger. */
static uint32_t max_records(const struct s3_volume *v)
{
	return v->batch_blocks + S3_EXTRA_RECORDS;
}

/* Gives a parcel, of which nothing is on its way, memory for so much in place of what it has. */
static int size_parcel(
	const struct s3_volume *v, struct parcel *p, uint32_t blocks, uint32_t records)
{
	size_t bytes = (size_t)blocks << v->shift;
	int r;

	free_parcel(p);
	r = s3_stored_init(v, &p->stored, bytes);
	p->room = s3_header_room(records, blocks, v->shift, v->super.features);
	p->header = aligned_alloc(S3_ALIGN, p->room);
	p->data = malloc(bytes);
	p->crcs = malloc(blocks * sizeof *p->crcs);
	return r || !p->header || !p->data || !p->crcs ? -ENOMEM : 0;
}

static void begin(struct replay *c)
{
	const struct s3_volume *v = c->v;
	struct parcel *p = &c->parcels[c->now];
	struct s3_object_header header = {
		.type = S3_TYPE_DATA,
		.block_shift = v->shift,
		.id = c->next,
		.epoch = v->epoch,
		.batch = c->next++,
		/* What is on its way may never arrive. */
		.frontier = v->applied,
		.checkpoint = v->checkpoint,
	};

	memcpy(header.uuid, v->super.uuid, S3_UUID);
	memcpy(header.instance, v->instance, S3_UUID);
	s3_header_begin(&p->writer, &header, p->header, p->room);
	p->blocks = p->records = 0;
}

/* Waits until a parcel that was sent is in the store. After a failure nothing more comes of it. */
static int arrive(struct replay *c, struct parcel *p)
{
	int r;

	if (!p->sent)
		return 0;
	p->sent = false;
	r = s3_recovery_add_end(c->recovery, &p->put, c->failed);
	c->failed |= r != 0;
	if (r == 0)
		s3_failpoint(S3_FAIL_WB_REPLAY_PUT_AFTER);
	return r;
}

/* Begins to store what has been collected. */
static int put(struct replay *c)
{
	struct s3_volume *v = c->v;
	struct parcel *p = &c->parcels[c->now];
	int r;

	if (!p->records)
		return 0;
	if (!v->transforms)
		for (uint32_t i = 0; i < p->blocks; i++)
			p->crcs[i] = s3_crc32c(0, p->data + ((size_t)i << v->shift), v->block_size);
	p->writer.header.blocks = p->blocks;
	p->writer.header.cache_record = c->last;
	p->writer.header.time = (uint64_t)time(NULL) * 1000000;
	r = s3_seal(v, &p->writer, p->data, p->crcs, &p->stored, p->iov, &p->sealed);
	if (r)
		return s3_volume_refuse(v, r, "volume=%s: object %" PRIu64 " cannot be built: %s",
			v->name, p->writer.header.id, strerror(-r));
	s3_failpoint(S3_FAIL_WB_REPLAY_PUT_BEFORE);
	r = s3_recovery_add_begin(
		c->recovery, &p->put, p->iov, p->iov[1].iov_len ? 2 : 1, &p->sealed);
	p->sent = r == 0;
	c->now = (c->now + 1) % c->n;
	if (r == 0)
		r = arrive(c, &c->parcels[c->now]);
	/* Otherwise the next one may still be on its way. */
	if (r == 0)
		begin(c);
	return r;
}

/* Waits for all that was sent, in order. */
static int arrive_all(struct replay *c)
{
	int r = 0;

	for (unsigned i = 0; i < c->n; i++) {
		int arrived = arrive(c, &c->parcels[(c->now + i) % c->n]);

		r = r ? r : arrived;
	}
	return r;
}

/* The parcel that is filled next, which is empty, gets room for so much. */
static int resize(struct replay *c, uint32_t blocks, uint32_t records)
{
	int r = size_parcel(c->v, &c->parcels[c->now], blocks, records);

	if (r)
		return r;
	c->next--;
	begin(c);
	return 0;
}

static int collect(void *opaque, const struct entry *e, const uint8_t *data)
{
	struct replay *c = opaque;
	struct s3_volume *v = c->v;
	struct parcel *p = &c->parcels[c->now];
	const struct s3_object_header *h = &e->header;
	bool large = h->blocks > v->batch_blocks || h->n_records > max_records(v);
	struct s3_record record;
	size_t cursor = 0;
	int r = 0;

	if (p->records && (p->blocks + h->blocks > v->batch_blocks ||
				  p->records + h->n_records > max_records(v)))
		r = put(c);
	/*
	 * Batches larger than ours, which memory= does not provide for, go alone. One of many
	 * trims has no blocks, and malloc(0) may be NULL.
	 */
	if (r == 0 && large)
		r = arrive_all(c);
	if (r == 0 && large)
		r = resize(c, h->blocks ? h->blocks : 1, h->n_records);
	if (r)
		return r;
	p = &c->parcels[c->now];
	memcpy(p->data + ((size_t)p->blocks << v->shift), data, (size_t)h->blocks << v->shift);
	while (s3_header_next(h, &cursor, &record)) {
		if (record.op == S3_RECORD_WRITE)
			record.offset += p->blocks;
		s3_header_add(&p->writer, &record);
	}
	p->blocks += h->blocks;
	p->records += h->n_records;
	c->last = e->number;
	v->writeback->counters.replayed++;
	if (!large)
		return 0;
	r = put(c);
	if (r == 0)
		r = arrive_all(c);
	return r ? r : size_parcel(v, p, v->batch_blocks, max_records(v));
}

int s3_writeback_replay(
	struct s3_volume *v, const struct s3_chain *chain, struct s3_recovery *recovery)
{
	struct replay c = {
		.v = v,
		.recovery = recovery,
		/* As many as batches would be: their memory is not yet in use. */
		.n = v->uploads + 1,
		.next = v->applied + 1,
	};
	int r = 0, arrived;

	c.parcels = calloc(c.n, sizeof *c.parcels);
	if (!c.parcels)
		return -ENOMEM;
	for (unsigned i = 0; r == 0 && i < c.n; i++)
		r = size_parcel(v, &c.parcels[i], v->batch_blocks, max_records(v));
	if (r == 0) {
		begin(&c);
		r = walk(v, chain, true, collect, &c);
	}
	if (r == 0)
		r = put(&c);
	c.failed |= r != 0;
	arrived = arrive_all(&c);
	for (unsigned i = 0; i < c.n; i++)
		free_parcel(&c.parcels[i]);
	free(c.parcels);
	return r ? r : arrived;
}
