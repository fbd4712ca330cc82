/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backends/backend.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/base/localfile.h"
#include "backends/s3/core/batch.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/log/log.h"
#include "backends/s3/log/writeback.h"
#include "backends/s3/log/writeback_file.h"

#define VERSION 1u

#define STATE_CRC (S3_WRITEBACK_BLOCK - 4)

/* Besides 0 and errors: there is no room in the ring. */
#define FULL 1

const uint8_t s3_writeback_nobody[S3_UUID];

const struct s3_localfile_kind s3_writeback_kind = {
	.parameter = "write-back",
	.size_parameter = "write-back-size",
	.content = "a write-back log",
	.own = "a write-back log of its own",
	.magic = {'u', 'b', 'S', '3', 'w', 'b', 'l', 'g'},
	.size_default = UINT64_C(1) << 30,
	.size_least = S3_WRITEBACK_LEAST,
	.keeps_size = true,
};
static const uint8_t state_magic[8] = {'u', 'b', 'S', '3', 'w', 'b', 's', 't'};

/* ---- the file ------------------------------------------------------------------------ */

static void encode_state(const struct s3_writeback_stored *s, uint8_t *p)
{
	memset(p, 0, S3_WRITEBACK_BLOCK);
	memcpy(p, state_magic, sizeof state_magic);
	s3_le_store(p + 8, VERSION, 4);
	s3_le_store(p + 12, s->live, 4);
	s3_le_store(p + 16, s->generation, 8);
	memcpy(p + 24, s->uuid, S3_UUID);
	memcpy(p + 40, s->owner, S3_UUID);
	memcpy(p + 56, s->next, S3_UUID);
	s3_le_store(p + 72, s->epoch, 8);
	s3_le_store(p + 80, s->ring, 8);
	s3_le_store(p + 88, s->tail, 8);
	s3_le_store(p + 96, s->entry, 8);
	s3_le_store(p + 104, s->frontier, 8);
	s3_le_store(p + STATE_CRC, s3_crc32c(0, p, STATE_CRC), 4);
}

/* Magic and version are in one sector: a torn state has those of one that was written. */
static bool is_newer(const uint8_t *p)
{
	return memcmp(p, state_magic, sizeof state_magic) == 0 && s3_le_load(p + 8, 4) > VERSION;
}

static bool decode_state(const uint8_t *p, struct s3_writeback_stored *s)
{
	if (memcmp(p, state_magic, sizeof state_magic) || s3_le_load(p + 8, 4) != VERSION ||
		s3_le_load(p + STATE_CRC, 4) != s3_crc32c(0, p, STATE_CRC))
		return false;
	*s = (struct s3_writeback_stored){
		.live = s3_le_load(p + 12, 4),
		.generation = s3_le_load(p + 16, 8),
		.epoch = s3_le_load(p + 72, 8),
		.ring = s3_le_load(p + 80, 8),
		.tail = s3_le_load(p + 88, 8),
		.entry = s3_le_load(p + 96, 8),
		.frontier = s3_le_load(p + 104, 8),
	};
	memcpy(s->uuid, p + 24, S3_UUID);
	memcpy(s->owner, p + 40, S3_UUID);
	memcpy(s->next, p + 56, S3_UUID);
	return s->generation && s->entry && s->tail % S3_WRITEBACK_BLOCK == 0 && s->ring &&
	       s->ring % S3_WRITEBACK_BLOCK == 0;
}

/* The newer one of those that are whole. */
static int read_state(struct s3_writeback *w)
{
	struct s3_writeback_stored found;
	unsigned written = 0;

	for (uint64_t i = 0; i < S3_WRITEBACK_STATES; i++) {
		int r = s3_localfile_transfer(&w->file, false, w->block, S3_WRITEBACK_BLOCK,
			S3_WRITEBACK_BLOCK * (1 + i));

		if (r)
			return s3_localfile_refuse_errno(&w->file, r, "give another path");
		if (is_newer(w->block))
			return s3_localfile_refuse(&w->file, -EINVAL, s3_check_text(S3_NEWER));
		if (decode_state(w->block, &found) && found.generation > w->state.generation)
			w->state = found;
		for (uint32_t at = 0; at < S3_WRITEBACK_BLOCK; at++)
			if (w->block[at]) {
				written++;
				break;
			}
	}
	/* The first one names a writer before its log is used, the second one begins it: if only
	 * one was ever written, and a crash tore it, the log held nothing. */
	w->damaged = written == S3_WRITEBACK_STATES && !w->state.generation;
	return 0;
}

int s3_writeback_write_state(struct s3_writeback *w, const struct s3_writeback_stored *next)
{
	struct s3_writeback_stored state = *next;
	int r;

	state.generation = w->state.generation + 1;
	state.ring = w->ring;
	encode_state(&state, w->block);
	r = s3_localfile_transfer(&w->file, true, w->block, S3_WRITEBACK_BLOCK,
		S3_WRITEBACK_BLOCK * (1 + state.generation % S3_WRITEBACK_STATES));
	if (r == 0 && fdatasync(w->file.fd))
		r = -errno;
	if (r == 0)
		w->state = state;
	return r;
}

int s3_writeback_open(
	const char *path, uint64_t size, const struct backend_host *host, struct s3_writeback **out)
{
	struct s3_writeback *w = calloc(1, sizeof *w);
	int r;

	if (!w)
		return -ENOMEM;
	pthread_cond_init(&w->work, NULL);
	r = s3_localfile_open(&w->file, &s3_writeback_kind, path, size, host);
	if (r == 0) {
		w->ring = (w->file.size - S3_WRITEBACK_RING) / S3_WRITEBACK_BLOCK *
			  S3_WRITEBACK_BLOCK;
		w->block = aligned_alloc(S3_WRITEBACK_BLOCK, S3_WRITEBACK_BLOCK);
		r = w->block ? read_state(w) : -ENOMEM;
	}
	if (r) {
		s3_writeback_close(w);
		return r;
	}
	*out = w;
	return 0;
}

void s3_writeback_close(struct s3_writeback *w)
{
	if (!w)
		return;
	s3_localfile_close(&w->file, w->used || w->state.generation || w->damaged);
	free(w->block);
	free(w->header);
	free(w->crcs);
	s3_stored_free(&w->stored);
	pthread_cond_destroy(&w->work);
	free(w);
}

/* Where in the ring an entry of bytes goes that must be at position or later. */
static uint64_t place(const struct s3_writeback *w, uint64_t position, uint64_t bytes)
{
	uint64_t at = position % w->ring;

	return at + bytes > w->ring ? position + w->ring - at : position;
}

/* ---- writing entries --------------------------------------------------------------------- */

/* What a part is stored as; iov. 1: as nothing, because it is not a change by the user. */
static int build(struct s3_volume *v, struct s3_part *part, struct iovec iov[2])
{
	struct s3_writeback *w = v->writeback;
	struct s3_object_header header = {
		.type = S3_TYPE_DATA,
		.block_shift = v->shift,
		.id = part->records.id,
		.epoch = v->epoch,
		.batch = part->records.id,
		.frontier = part->records.frontier,
		.checkpoint = w->synced,
		.cache_record = w->entry,
		.time = (uint64_t)time(NULL) * 1000000,
		.blocks = part->count,
	};
	uint8_t *data = part->batch->data + ((size_t)part->first << v->shift);
	struct s3_header_writer writer;
	struct s3_record record;
	size_t cursor = part->position;

	memcpy(header.uuid, v->super.uuid, S3_UUID);
	memcpy(header.instance, v->instance, S3_UUID);
	s3_header_begin(&writer, &header, w->header, s3_log_header_room(v));
	while (s3_header_next(&part->records, &cursor, &record)) {
		/* Where data is stored, and what becomes of a rollback, is the store's. */
		if (record.op == S3_RECORD_WRITE)
			record.offset -= part->first;
		else if (record.op != S3_RECORD_ZERO)
			continue;
		s3_header_add(&writer, &record);
	}
	if (!writer.n_records)
		return 1;
	s3_log_wait_copied(part->batch, part->first, part->count);
	if (!v->transforms)
		for (uint32_t i = 0; i < part->count; i++)
			w->crcs[i] = s3_crc32c(0, data + ((size_t)i << v->shift), v->block_size);
	return s3_seal(v, &writer, data, w->crcs, &w->stored, iov, &header);
}

/* Finds a place for an entry, in which nothing is needed. 0, FULL or negative errno. */
static int make_room(struct s3_volume *v, uint64_t bytes, uint64_t *position)
{
	struct s3_writeback *w = v->writeback;
	struct s3_writeback_stored state = w->state;
	int r;

	*position = place(w, w->head, bytes);
	if (*position + bytes - state.tail <= w->ring)
		return 0;
	pthread_mutex_lock(&v->lock);
	state.tail = w->freed.position;
	state.entry = w->freed.entry;
	state.frontier = v->frontier;
	pthread_mutex_unlock(&v->lock);
	if (*position + bytes - state.tail > w->ring)
		return FULL;
	/* Recovery must not begin with what is overwritten. */
	s3_failpoint(S3_FAIL_WB_FREE_BEFORE);
	r = s3_writeback_write_state(w, &state);
	if (r == 0)
		s3_failpoint(S3_FAIL_WB_FREE_AFTER);
	return r;
}

/* Writes a part of a batch as an entry. 0, FULL or negative errno. */
static int append(struct s3_volume *v, struct s3_part *part)
{
	struct s3_writeback *w = v->writeback;
	uint64_t position, bytes, at, seq = part->records.id;
	struct iovec iov[2];
	int r = build(v, part, iov);

	if (r)
		return r == 1 ? 0 : r;
	bytes = iov[0].iov_len + s3_writeback_align(iov[1].iov_len);
	r = make_room(v, bytes, &position);
	if (r)
		return r;
	at = S3_WRITEBACK_RING + position % w->ring;
	r = s3_localfile_transfer(&w->file, true, iov[0].iov_base, iov[0].iov_len, at);
	if (r == 0)
		r = s3_localfile_transfer(
			&w->file, true, iov[1].iov_base, iov[1].iov_len, at + iov[0].iov_len);
	if (r)
		return r;
	pthread_mutex_lock(&v->lock);
	w->head = position + bytes;
	w->entry++;
	w->newest = seq;
	w->ends[seq % S3_WINDOW] =
		(struct s3_writeback_end){.seq = seq, .position = w->head, .entry = w->entry};
	if (seq <= v->frontier)
		w->freed = w->ends[seq % S3_WINDOW];
	w->counters.entries++;
	w->counters.bytes += bytes;
	pthread_mutex_unlock(&v->lock);
	return 0;
}

/* The log can no longer be used. Under the lock, which it releases for a time. */
static void give_up(struct s3_volume *v, int r)
{
	struct s3_writeback *w = v->writeback;

	w->failed = true;
	s3_log_push(v);
	pthread_cond_signal(&v->keeper_work);
	pthread_mutex_unlock(&v->lock);
	backend_error(&v->host,
		"write-back=%s: cannot be written: %s; from now on flushes wait for the store; "
		"close the volume, and replace the disk",
		w->file.path, strerror(-r));
	pthread_mutex_lock(&v->lock);
}

/* Writes everything that exists now to the log, and syncs it. Under the lock, which it releases for
 * a time. */
static void log_changes(struct s3_volume *v)
{
	struct s3_writeback *w = v->writeback;
	uint64_t target = v->changes, covered = w->logged, first = w->entry;
	struct s3_part part;
	int r = 0;

	while (r == 0 && covered < target) {
		if (!s3_log_take(v, &part)) {
			covered = target;
			break;
		}
		pthread_mutex_unlock(&v->lock);
		r = append(v, &part);
		pthread_mutex_lock(&v->lock);
		if (r == 0 && part.change > covered)
			covered = part.change;
		s3_log_put(v, &part, r == 0);
	}
	if (r >= 0 && w->entry != first) {
		uint64_t newest = w->entry - 1;

		pthread_mutex_unlock(&v->lock);
		s3_failpoint(S3_FAIL_WB_APPEND_AFTER);
		if (fdatasync(w->file.fd))
			r = -errno;
		else
			w->synced = newest;
		s3_failpoint(S3_FAIL_WB_SYNC_AFTER);
		pthread_mutex_lock(&v->lock);
		w->counters.syncs++;
	}
	if (r < 0) {
		give_up(v, r);
		return;
	}
	w->logged = covered;
	if (r == FULL) {
		w->full = true;
		w->counters.full++;
		s3_log_push(v);
	}
	pthread_mutex_unlock(&v->lock);
	s3_log_answer(v, covered);
	pthread_mutex_lock(&v->lock);
}

static void *work(void *opaque)
{
	struct s3_volume *v = opaque;
	struct s3_writeback *w = v->writeback;

	pthread_mutex_lock(&v->lock);
	while (!w->stopping) {
		if (w->wanted > w->logged && !w->failed && !w->full && !atomic_load(&v->failed))
			log_changes(v);
		else
			pthread_cond_wait(&w->work, &v->lock);
	}
	pthread_mutex_unlock(&v->lock);
	return NULL;
}

int s3_writeback_start(struct s3_volume *v)
{
	struct s3_writeback *w = v->writeback;
	int r;

	if (!w)
		return 0;
	r = pthread_create(&w->thread, NULL, work, v);
	w->running = r == 0;
	return r;
}

void s3_writeback_stop(struct s3_volume *v)
{
	struct s3_writeback *w = v->writeback;

	if (!w || !w->running)
		return;
	pthread_mutex_lock(&v->lock);
	w->stopping = true;
	pthread_cond_signal(&w->work);
	pthread_mutex_unlock(&v->lock);
	pthread_join(w->thread, NULL);
	w->running = w->stopping = false;
}

/* ---- for the log ------------------------------------------------------------------------- */

enum s3_writeback_state s3_writeback_want(struct s3_volume *v, uint64_t change)
{
	struct s3_writeback *w = v->writeback;

	if (change <= w->logged && !w->failed)
		return S3_WRITEBACK_NOW;
	if (change > w->wanted)
		w->wanted = change;
	if (w->failed || w->full)
		return S3_WRITEBACK_NEVER;
	pthread_cond_signal(&w->work);
	return S3_WRITEBACK_SOON;
}

bool s3_writeback_lacks(const struct s3_volume *v, uint64_t change)
{
	const struct s3_writeback *w = v->writeback;

	return !w || (change > w->logged && (w->failed || w->full));
}

bool s3_writeback_holds(const struct s3_volume *v, uint64_t change)
{
	const struct s3_writeback *w = v->writeback;

	return w && change <= w->logged && !w->failed;
}

bool s3_writeback_is_over(struct s3_volume *v)
{
	struct s3_writeback *w = v->writeback;

	/* Without conditions a late request would take the name out of the next writer's object. */
	if (!w || !w->failed || w->given_up || !v->conditional || v->frontier < w->newest)
		return false;
	w->given_up = true;
	return true;
}

void s3_writeback_advance(struct s3_volume *v)
{
	struct s3_writeback *w = v->writeback;

	for (uint64_t seq = w->freed.seq + 1; seq <= v->frontier; seq++)
		if (w->ends[seq % S3_WINDOW].seq == seq)
			w->freed = w->ends[seq % S3_WINDOW];
	w->freed.seq = v->frontier;
	if (w->full) {
		w->full = false;
		pthread_cond_signal(&w->work);
	}
}

void s3_writeback_counters(struct s3_volume *v, struct s3_writeback_counters *counters)
{
	struct s3_writeback *w = v->writeback;

	*counters = (struct s3_writeback_counters){0};
	if (!w)
		return;
	pthread_mutex_lock(&v->lock);
	*counters = w->counters;
	counters->used = w->head - w->freed.position;
	counters->failed = w->failed;
	pthread_mutex_unlock(&v->lock);
}
