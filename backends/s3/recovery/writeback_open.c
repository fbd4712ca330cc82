/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening a volume with its write-back log: is it the right one, and whose is it? */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/base/localfile.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/core/super.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/log/log.h"
#include "backends/s3/log/writeback_file.h"
#include "backends/s3/recovery/internal.h"
#include "backends/s3/recovery/recovery.h"
#include "backends/s3/recovery/writeback_open.h"

/* ---- is it the volume's ------------------------------------------------------------------- */

/* What to do about the log. */
enum verdict { TAKE, REPLAY };

/* It is smaller than what its entries were written to. */
static int refuse_smaller(struct s3_volume *v, bool last)
{
	const struct s3_writeback *w = v->writeback;

	return s3_writeback_refuse_loss(v, last,
		"write-back=%s: is smaller than when it was written; give it %" PRIu64
		" bytes again (by write-back-size=, if it is a device)",
		w->file.path, S3_WRITEBACK_RING + w->state.ring);
}

/*
 * TAKE: there is nothing in it that the store lacks; REPLAY: there may be; negative errno. last:
 * the volume has been fenced.
 */
static int examine(struct s3_volume *v, const struct s3_chain *chain, bool last)
{
	const struct s3_writeback *w = v->writeback;
	const struct s3_writeback_stored *s = w ? &w->state : NULL;
	const uint8_t *mark = v->super.write_back;
	bool named = memcmp(mark, s3_writeback_nobody, S3_UUID) != 0,
	     marked = named && !chain->closed;
	bool ours = s && s->generation && memcmp(s->uuid, v->super.uuid, S3_UUID) == 0;
	int r;

	if (s && s->generation && !ours && s->live)
		return s3_localfile_refuse(&w->file, -EBUSY,
			"belongs to another volume, and may hold what that volume lacks; give each "
			"volume a write-back log of its own");
	if (w && w->damaged)
		return s3_writeback_refuse_loss(v, last,
			"write-back=%s: has a damaged record of its owner; remove it if the volume "
			"was closed",
			w->file.path);
	if (ours && named && memcmp(s->next, mark, S3_UUID) == 0)
		return TAKE;
	if (ours && named && memcmp(s->owner, mark, S3_UUID) == 0) {
		if (!s->live || chain->closed)
			return TAKE;
		if (!chain->last || chain->foreign)
			return s3_writeback_refuse_loss(v, last,
				"write-back=%s: another writer has changed volume=%s since; remove "
				"the file",
				w->file.path, v->name);
		/* What is there is replayed, as with other damage. A larger one holds all. */
		r = s->ring <= w->ring ? 0 : refuse_smaller(v, last);
		return r ? r : REPLAY;
	}
	if (marked)
		return s3_writeback_refuse_loss(v, last,
			"volume=%s: its last writer had a write-back log, which %s and may hold "
			"what was flushed; give that file as write-back=",
			v->name, w ? "is not this one" : "is not given");
	if (ours && s->live)
		return s3_writeback_refuse_loss(v, last,
			"write-back=%s: is older than what volume=%s holds: another writer has "
			"taken it over since, or the disk of the log had failed; remove the file",
			w->file.path, v->name);
	return TAKE;
}

int s3_writeback_check(struct s3_volume *v, const struct s3_chain *chain)
{
	int r = examine(v, chain, false);

	return r == REPLAY ? s3_writeback_whole(v, chain) : r;
}

/* ---- open and close ----------------------------------------------------------------------- */

struct mark {
	uint8_t writer[S3_UUID];
	bool again; /* the object is stored although it names that one already */
};

/* Names the writer whose log may hold what the store lacks. */
static int change_mark(void *opaque, struct s3_volume *v, struct s3_super *super)
{
	const struct mark *mark = opaque;

	/* As it is behind our fence: it may have been resized since it was read first. */
	v->super.blocks = super->blocks;
	/* Without conditions another object keeps no request off, and this one, late, would take
	 * back what is changed meanwhile. */
	if (memcmp(super->write_back, mark->writer, S3_UUID) == 0)
		return mark->again && v->conditional && super->epoch < v->epoch;
	/* Ours may be there although the request had no answer. */
	if (memcmp(super->write_back, v->super.write_back, S3_UUID) != 0 &&
		memcmp(super->write_back, v->instance, S3_UUID) != 0)
		return s3_volume_refuse(v, -EBUSY,
			"volume=%s: another writer opened or closed it meanwhile; stop that one, "
			"and start again",
			v->name);
	memcpy(super->write_back, mark->writer, S3_UUID);
	return 1;
}

static int set_mark_as(struct s3_volume *v, const uint8_t *writer, bool again)
{
	struct mark mark = {.again = again};
	int r;

	memcpy(mark.writer, writer, S3_UUID);
	r = s3_volume_change_super(v, change_mark, &mark, NULL);
	if (r == 0)
		memcpy(v->super.write_back, mark.writer, S3_UUID);
	return r;
}

static int set_mark(struct s3_volume *v, const uint8_t *writer)
{
	return set_mark_as(v, writer, false);
}

/* Memory of the thread's. */
static int allocate(struct s3_volume *v)
{
	struct s3_writeback *w = v->writeback;
	int r = s3_stored_init(v, &w->stored, v->batch_size);

	w->header = aligned_alloc(S3_ALIGN, s3_log_header_room(v));
	w->crcs = malloc(v->batch_blocks * sizeof *w->crcs);
	return r == 0 && w->header && w->crcs ? 0 : -ENOMEM;
}

/* The log becomes this writer's. At each moment the super object names one that it knows. */
static int adopt(struct s3_volume *v)
{
	struct s3_writeback *w = v->writeback;
	/* Everything is in the store. */
	struct s3_writeback_stored state = {.entry = 1};
	uint8_t before[S3_UUID]; /* the writer that was about to take it over */
	int r = allocate(v);

	memcpy(before, w->state.next, S3_UUID);
	/* Its request may still arrive, and the log can name one only: we make the request void. */
	if (r == 0 && memcmp(w->state.uuid, v->super.uuid, S3_UUID) == 0 &&
		memcmp(before, s3_writeback_nobody, S3_UUID) != 0)
		r = set_mark(v, before);
	if (r)
		return r;
	memcpy(state.uuid, v->super.uuid, S3_UUID);
	memcpy(state.owner, v->super.write_back, S3_UUID);
	memcpy(state.next, v->instance, S3_UUID);
	w->used = true;
	/* A device begins with nothing so far. */
	memcpy(w->block, s3_writeback_kind.magic, sizeof s3_writeback_kind.magic);
	r = s3_localfile_transfer(&w->file, true, w->block, sizeof s3_writeback_kind.magic, 0);
	/* A server that was killed may have made the file. */
	if (r == 0)
		r = s3_localfile_sync_name(&w->file);
	if (r == 0)
		r = s3_writeback_write_state(w, &state);
	if (r)
		return s3_localfile_refuse_errno(&w->file, r, "give another path");
	s3_failpoint(S3_FAIL_WB_MARK_BEFORE);
	r = set_mark(v, v->instance);
	if (r)
		return r;
	s3_failpoint(S3_FAIL_WB_MARK_AFTER);
	/* A writer that took over before the super object named us does not know of the log:
	 * nothing may be expected of it. */
	r = s3_check_not_fenced(v);
	if (r == -ESTALE)
		return -EIO; /* reported */
	if (r)
		return s3_volume_refuse(v, r, "volume=%s: %s", v->name, strerror(-r));
	state.live = true;
	state.epoch = v->epoch;
	state.frontier = v->frontier;
	memcpy(state.owner, v->instance, S3_UUID);
	memcpy(state.next, s3_writeback_nobody, S3_UUID);
	r = s3_writeback_write_state(w, &state);
	if (r)
		return s3_localfile_refuse_errno(&w->file, r, "give another path");
	w->entry = 1;
	w->freed = (struct s3_writeback_end){.seq = v->frontier, .entry = 1};
	return 0;
}

int s3_writeback_attach(
	struct s3_volume *v, const struct s3_chain *chain, struct s3_recovery *recovery)
{
	int r = examine(v, chain, true);

	/* Behind our fence: a writer that has given the log up since has changed its mark. */
	if (r == REPLAY) {
		uint8_t mark[S3_UUID];

		memcpy(mark, v->super.write_back, S3_UUID);
		r = set_mark(v, mark);
		if (r == 0) {
			/* Objects of it may stand behind a gap, and one in the gap would join them
			 * to the log. */
			recovery->end = 0;
			r = s3_writeback_replay(v, chain, recovery);
		}
	}
	if (r < 0)
		return r;
	v->whole = true;
	/*
	 * Nobody else's opening may have gone unnoticed, so this is done without a log, too. One
	 * that failed or was killed, however long ago, may have asked to be named: its request
	 * finds another object. The end of the log says nothing of that.
	 */
	return v->writeback ? adopt(v) : set_mark_as(v, s3_writeback_nobody, true);
}

void s3_writeback_empty(struct s3_volume *v)
{
	struct s3_writeback *w = v->writeback;
	struct s3_writeback_stored state;

	if (!w || !w->used)
		return;
	state = w->state;
	state.live = false;
	if (s3_writeback_write_state(w, &state) == 0)
		s3_failpoint(S3_FAIL_WB_EMPTY_AFTER);
}

void s3_writeback_unmark(struct s3_volume *v)
{
	/* Otherwise the log would have to be given, although the end in the store makes it void. */
	if (v->writeback && !v->writeback->state.live)
		set_mark_as(v, s3_writeback_nobody, true);
}

void s3_writeback_give_up(struct s3_volume *v)
{
	/* First in the log, if that can be: otherwise it seems to be needed and to be too old. */
	s3_writeback_empty(v);
	set_mark(v, s3_writeback_nobody);
}
