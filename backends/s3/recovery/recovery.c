/* SPDX-License-Identifier: BSD-3-Clause */
/* From the store to the map. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "backends/backend.h"
#include "backends/s3/core/super.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/recovery/internal.h"
#include "backends/s3/recovery/recovery.h"
#include "backends/s3/recovery/writeback_open.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

/* A resize counts in units of so many bytes. */
#define SIZE_UNIT 4096u

/* The end of what the map holds; start: if that is before it. */
static uint64_t end_of_data(struct s3_volume *v, uint64_t start)
{
	uint64_t lba = start, end = start;
	struct s3_run runs[64];

	while (lba < S3_BLOCKS_MAX) {
		size_t n = s3_map_lookup(v->map, lba, S3_BLOCKS_MAX - lba, false, runs, 64);

		for (size_t i = 0; i < n; i++) {
			lba = runs[i].lba + runs[i].count;
			end = runs[i].slot == S3_NO_SLOT ? end : lba;
		}
	}
	return end;
}

/* Changes nothing: the size may have become another one since it was read first. */
static int note_size(void *opaque, struct s3_volume *v, struct s3_super *super)
{
	(void)opaque;
	v->super.blocks = super->blocks;
	return 0;
}

/*
 * The super object contains the size, but data beyond it is never cut off. A reader may have read
 * it before the volume was made larger, and a writer whose resize had no answer may go on with the
 * size before, which its next root tells.
 */
static int settle_size(struct s3_volume *v, uint64_t blocks)
{
	uint64_t *size = &v->super.blocks, end = end_of_data(v, *size), stored;
	uint64_t unit = SIZE_UNIT >> v->shift ? SIZE_UNIT >> v->shift : 1;
	int r = end > *size ? s3_volume_change_super(v, note_size, NULL, NULL) : 0;

	if (r)
		return r;
	stored = *size;
	if (end > *size && blocks > *size)
		*size = blocks;
	if (end > *size) {
		*size = (end + unit - 1) / unit * unit;
		backend_error(&v->host,
			"volume=%s: its size is stored as %" PRIu64
			" bytes, and it holds data beyond that; it now has %" PRIu64
			" bytes; resize it to the size that it had",
			v->name, stored << v->shift, *size << v->shift);
	}
	return s3_map_resize(v->map, *size);
}

/* After so many a reader takes what it has: a writer may store roots faster than they are read. */
#define READER_ATTEMPTS 8

/* From the newest root to the end of the log, which then is ours unless readonly. Also
 * S3_RECOVERY_AGAIN. */
static int attempt(struct s3_volume *v, struct s3_recovery *p)
{
	bool again = false;
	int r = s3_recovery_load_newest_root(v, p);

	v->ours = false;
	v->witness = 0;
	if (r == 0)
		r = s3_recovery_roll_forward(v, p);
	/* So much of the log may have been deleted meanwhile that the rest is not seen. */
	if (r == 0 && p->readonly && ++p->attempts < READER_ATTEMPTS)
		return s3_recovery_newer_root(v, p);
	if (r || p->readonly)
		return r;
	/* Before anything is changed, in each attempt: it changes nothing itself. */
	r = s3_writeback_check(v, &p->chain);
	if (r == 0 && v->before_change)
		r = v->before_change(v, v->before_change_opaque);
	if (r == 0)
		r = s3_recovery_fence(v, p);
	/*
	 * Up to the fence the writer before us may have stored roots, and deleted what only those
	 * before them need: ours among it, which the next roots might name, and objects of the log,
	 * so that its end is another one. What it deletes later does not matter: before each
	 * deletion it looks whether there is a fence, and what it depends on is stored before that.
	 * So nothing is deleted from now on that one of the roots that we see needs.
	 */
	if (r == 0)
		r = s3_recovery_newer_root(v, p);
	if (r == 0)
		p->end = v->applied;
	/* After the fence: until then a writer before us may take or delete one. */
	if (r == 0)
		r = s3_recovery_look_at_snapshots(v, p, &again);
	return r == 0 && again ? S3_RECOVERY_AGAIN : r;
}

int s3_recover(struct s3_volume *v, bool readonly, uint64_t *found)
{
	struct s3_recovery *p = calloc(1, sizeof *p);
	int r = -ENOMEM;

	if (p) {
		p->v = v;
		p->readonly = readonly;
		p->window = s3_recovery_make_window();
	}
	if (p && p->window)
		do
			r = attempt(v, p);
		while (r == S3_RECOVERY_AGAIN);
	*found = v->applied;
	if (r == 0 && !readonly)
		r = s3_writeback_attach(v, &p->chain, p);
	if (r == 0)
		r = settle_size(v, p->blocks);
	v->ours = p && p->put;
	/* What fails here has changed nothing, so that the fence may be taken back. */
	if (r && p && p->end && !v->whole) {
		v->applied = p->end;
		v->epoch = p->epoch;
	}
	v->endable = v->whole || (r && p && p->end);
	v->next_seq = v->applied + 1;
	v->frontier = v->sealed = v->applied;
	if (p) {
		if (p->window)
			s3_recovery_free_window(p->window);
		free(p->adopt);
		free(p->gc);
	}
	free(p);
	return r;
}
