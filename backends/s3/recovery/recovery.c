/* SPDX-License-Identifier: BSD-3-Clause */
/* From the store to the map. */
#include <errno.h>
#include <stdlib.h>

#include "backends/s3/core/failure.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/recovery/internal.h"
#include "backends/s3/recovery/recovery.h"
#include "backends/s3/recovery/writeback_open.h"
#include "backends/s3/state/map.h"

/* The super object contains the size, but data beyond it is never cut off. */
static int settle_size(struct s3_volume *v, uint64_t blocks)
{
	uint64_t *size = &v->super.blocks;

	if (!s3_map_is_hole(v->map, *size, S3_BLOCKS_MAX - *size) && blocks > *size)
		*size = blocks;
	if (!s3_map_is_hole(v->map, *size, S3_BLOCKS_MAX - *size))
		return s3_volume_refuse(v, -EIO,
			"volume=%s: holds data beyond its end; restore the volume from a backup",
			v->name);
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
	/* After the fence: until then a writer before us may take or delete one. */
	if (r == 0)
		r = s3_recovery_look_at_snapshots(v, p, &again);
	return r == 0 && again ? S3_RECOVERY_AGAIN : r;
}

int s3_recover(struct s3_volume *v, bool readonly)
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
	if (r == 0 && !readonly)
		r = s3_writeback_attach(v, &p->chain, p);
	if (r == 0)
		r = settle_size(v, p->blocks);
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
