/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/admin/verify.h"
#include "backends/s3/admin/verify_damage.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

/* Runs looked up at once. */
#define RUNS 64

void s3_damaged_free(struct s3_volume *v, struct s3_damaged *d)
{
	if (d->slot != S3_NO_SLOT)
		s3_objects_unpin(v->objects, d->slot);
	free(d->bad);
	free(d);
}

int s3_damaged_keep(struct s3_damaged_list *l, struct s3_damaged *d)
{
	struct s3_damaged **more;
	int r = -ENOMEM;

	pthread_mutex_lock(&l->lock);
	more = realloc(l->all, (l->n + 1) * sizeof(*more));
	if (more) {
		l->all = more;
		more[l->n++] = d;
		r = 0;
	}
	pthread_mutex_unlock(&l->lock);
	if (r)
		s3_damaged_free(l->v, d);
	return r;
}

int s3_damaged_keep_object(
	struct s3_damaged_list *l, struct s3_damaged *d, const struct s3_object *o)
{
	struct s3_volume *v = l->v;
	uint64_t bytes = sizeof *d;
	uint32_t bad = 0;
	bool full;

	for (uint32_t i = 0; i < d->blocks; i++)
		bad += d->bad[i];
	if (bad == d->blocks) {
		free(d->bad);
		d->bad = NULL;
	} else {
		bytes += d->blocks;
	}
	pthread_mutex_lock(&l->lock);
	full = l->kept + bytes > v->cache_bytes / 4;
	if (!full) {
		l->kept += bytes;
	} else {
		if (!l->unlisted++)
			strcpy(l->unlisted_key, d->key);
		l->verify->damaged_bytes += (uint64_t)(o->live < bad ? o->live : bad) << v->shift;
	}
	pthread_mutex_unlock(&l->lock);
	if (!full)
		return s3_damaged_keep(l, d);
	s3_damaged_free(v, d);
	return 0;
}

static int by_slot(const void *a, const void *b)
{
	const struct s3_damaged *x = *(struct s3_damaged *const *)a,
				*y = *(struct s3_damaged *const *)b;

	return (x->slot > y->slot) - (x->slot < y->slot);
}

static struct s3_damaged *find(const struct s3_damaged_list *l, uint32_t slot)
{
	struct s3_damaged key = {.slot = slot}, *p = &key, **found;

	if (slot == S3_NO_SLOT)
		return NULL;
	found = bsearch(&p, l->all, l->n, sizeof(p), by_slot);
	return found ? *found : NULL;
}

/* Tells a range; those that touch become one. A NULL d ends the last one. */
static void tell(struct s3_damaged_list *l, struct s3_damage *range, struct s3_damaged *d,
	uint64_t offset, uint64_t length)
{
	if (d && range->length && range->key == d->key && range->offset + range->length == offset) {
		range->length += length;
		return;
	}
	if (range->length) {
		l->verify->damaged_bytes += range->length;
		l->verify->damage(l->verify->opaque, range);
	}
	*range = (struct s3_damage){.offset = offset, .length = d ? length : 0};
	if (d) {
		d->reported = true;
		range->key = d->key;
		range->reason = d->reason;
	}
}

/* Where in the volume is what is damaged? */
static void tell_ranges(struct s3_damaged_list *l)
{
	struct s3_volume *v = l->v;
	uint64_t blocks = s3_map_blocks(v->map), lba = 0;
	struct s3_damage range = {0};
	struct s3_run runs[RUNS];

	qsort(l->all, l->n, sizeof(*l->all), by_slot);
	while (lba < blocks) {
		size_t n = s3_map_lookup(v->map, lba, blocks - lba, false, runs, RUNS);

		for (size_t i = 0; i < n; i++) {
			struct s3_damaged *d = find(l, runs[i].slot);

			for (uint64_t b = 0; d && b < runs[i].count; b++)
				if (!d->bad || d->bad[runs[i].offset + b])
					tell(l, &range, d, (runs[i].lba + b) << v->shift,
						v->block_size);
		}
		lba = runs[n - 1].lba + runs[n - 1].count;
	}
	tell(l, &range, NULL, 0, 0);
	for (size_t i = 0; i < l->n; i++) {
		struct s3_damaged *d = l->all[i];

		if (!d->reported && d->always) {
			d->reported = true;
			l->verify->damage(l->verify->opaque,
				&(struct s3_damage){.key = d->key, .reason = d->reason});
		}
		/* Otherwise only data that is no longer needed is damaged. */
		l->verify->damaged_objects += d->reported;
	}
}

/* What there was no memory for. Whether damaged blocks of an object are in use is not known then.
 */
static void tell_unlisted(struct s3_damaged_list *l)
{
	char reason[128];

	if (!l->unlisted)
		return;
	snprintf(reason, sizeof reason,
		"and %" PRIu64 " others are damaged and not listed; repair these first, or give "
		"more memory=",
		l->unlisted - 1);
	l->verify->damaged_objects += l->unlisted;
	l->verify->damage(
		l->verify->opaque, &(struct s3_damage){.key = l->unlisted_key, .reason = reason});
}

void s3_damaged_tell(struct s3_damaged_list *l)
{
	tell_ranges(l);
	tell_unlisted(l);
}

void s3_damaged_drop(struct s3_damaged_list *l)
{
	while (l->n)
		s3_damaged_free(l->v, l->all[--l->n]);
	free(l->all);
}
