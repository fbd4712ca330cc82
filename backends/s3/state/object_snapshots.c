/* SPDX-License-Identifier: BSD-3-Clause */
/* Which objects the snapshots hold. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/format/format.h"
#include "backends/s3/state/object_internal.h"
#include "backends/s3/state/object_table.h"

void s3_objects_set_newest(struct s3_objects *o)
{
	atomic_store(&o->newest, o->n_snapshots ? o->snapshots[o->n_snapshots - 1].seq : 0);
}

/* What the newest snapshot holds, as a list. */
static int list_fresh(struct s3_objects *o, struct s3_held **list, size_t *n_list)
{
	size_t n = 0;

	s3_for_each_slot(o, i) n += atomic_load(&s3_objects_slot(o, i)->fresh) > 0;
	*list = malloc((n ? n : 1) * sizeof **list);
	if (!*list)
		return -ENOMEM;
	*n_list = 0;
	s3_for_each_slot(o, i)
	{
		uint32_t fresh = atomic_load(&s3_objects_slot(o, i)->fresh);

		if (fresh)
			(*list)[(*n_list)++] = (struct s3_held){i, fresh};
	}
	return 0;
}

int s3_objects_snapshot(struct s3_objects *o, uint64_t seq)
{
	struct s3_objects_snapshot_entry *snapshots;
	struct s3_held *list = NULL;
	size_t n = 0;
	int r = 0;

	pthread_mutex_lock(&o->lock);
	snapshots = realloc(o->snapshots, (o->n_snapshots + 1) * sizeof *snapshots);
	if (snapshots)
		o->snapshots = snapshots;
	if (!snapshots)
		r = -ENOMEM;
	else if (seq < atomic_load(&o->newest) || !seq)
		r = -EINVAL;
	else if (o->n_snapshots)
		r = list_fresh(o, &list, &n);
	if (!r) {
		for (size_t i = 0; i < n; i++) {
			struct s3_slot *s = s3_objects_slot(o, list[i].slot);

			atomic_fetch_add(&s->held, list[i].count);
			atomic_store(&s->fresh, 0);
		}
		if (o->n_snapshots) {
			snapshots[o->n_snapshots - 1].held = list;
			snapshots[o->n_snapshots - 1].n_held = n;
		}
		snapshots[o->n_snapshots++] = (struct s3_objects_snapshot_entry){.seq = seq};
		s3_objects_set_newest(o);
		s3_objects_relist_all(o, 0);
	}
	pthread_mutex_unlock(&o->lock);
	return r;
}

/* What two lists hold together, into room for both. */
static size_t merge(const struct s3_objects_snapshot_entry *a,
	const struct s3_objects_snapshot_entry *b, struct s3_held *list)
{
	size_t i = 0, j = 0, n = 0;

	while (i < a->n_held || j < b->n_held) {
		if (j == b->n_held || (i < a->n_held && a->held[i].slot < b->held[j].slot)) {
			list[n++] = a->held[i++];
		} else if (i == a->n_held || b->held[j].slot < a->held[i].slot) {
			list[n++] = b->held[j++];
		} else {
			list[n] = a->held[i++];
			list[n++].count += b->held[j++].count;
		}
	}
	return n;
}

size_t s3_objects_find_snapshot(const struct s3_objects *o, uint64_t seq)
{
	size_t k = o->n_snapshots;

	/* From the end: of several at one seq the last, whose blocks then go to the others. */
	while (k && o->snapshots[k - 1].seq != seq)
		k--;
	return k ? k - 1 : o->n_snapshots;
}

/* What the snapshot of an index holds, as an entry with a list of its own. */
static int copy_held(struct s3_objects *o, size_t i, struct s3_objects_snapshot_entry *copy)
{
	const struct s3_objects_snapshot_entry *s = &o->snapshots[i];

	*copy = (struct s3_objects_snapshot_entry){.seq = s->seq, .n_held = s->n_held};
	if (i == o->n_snapshots - 1)
		return list_fresh(o, &copy->held, &copy->n_held);
	copy->held = malloc((s->n_held ? s->n_held : 1) * sizeof *copy->held);
	if (!copy->held)
		return -ENOMEM;
	if (s->n_held)
		memcpy(copy->held, s->held, s->n_held * sizeof *copy->held);
	return 0;
}

int s3_objects_list_held(
	struct s3_objects *o, size_t i, size_t gone, struct s3_held **list, size_t *n_list)
{
	struct s3_objects_snapshot_entry own, next = {0};
	size_t n = 0;
	int r = copy_held(o, i, &own);

	if (r == 0 && i + 1 == gone && gone < o->n_snapshots)
		r = copy_held(o, gone, &next);
	for (size_t j = 0; r == 0 && j < next.n_held; j++)
		if (s3_objects_slot(o, next.held[j].slot)->birth <= own.seq)
			next.held[n++] = next.held[j];
	next.n_held = n;
	*list = NULL;
	if (r == 0)
		*list = malloc((own.n_held + n + 1) * sizeof **list);
	if (*list)
		*n_list = merge(&own, &next, *list);
	free(own.held);
	free(next.held);
	return *list ? 0 : -ENOMEM;
}

/* The newest snapshot goes: what it held is held by the one before, or nobody. */
static void delete_newest(struct s3_objects *o, struct s3_objects_snapshot_entry *older)
{
	s3_for_each_slot(o, n)
	{
		struct s3_slot *s = s3_objects_slot(o, n);
		uint32_t fresh = atomic_load(&s->fresh);

		if (!fresh || (older && s->birth <= older->seq))
			continue;
		if (!s->origin)
			atomic_fetch_sub(&o->held, fresh);
		atomic_store(&s->fresh, 0);
	}
	if (!older)
		return;
	for (size_t i = 0; i < older->n_held; i++) {
		struct s3_slot *s = s3_objects_slot(o, older->held[i].slot);

		atomic_fetch_sub(&s->held, older->held[i].count);
		atomic_fetch_add(&s->fresh, older->held[i].count);
	}
	free(older->held);
	older->held = NULL;
	older->n_held = 0;
}

/* The same of another one. */
static int delete_older(struct s3_objects *o, struct s3_objects_snapshot_entry *gone,
	struct s3_objects_snapshot_entry *older)
{
	struct s3_objects_snapshot_entry kept = {.held = gone->held};
	struct s3_held *merged = NULL;

	if (older) {
		merged = malloc((older->n_held + gone->n_held + 1) * sizeof *merged);
		if (!merged)
			return -ENOMEM;
	}
	for (size_t i = 0; i < gone->n_held; i++) {
		struct s3_held h = gone->held[i];
		struct s3_slot *s = s3_objects_slot(o, h.slot);

		if (older && s->birth <= older->seq) {
			kept.held[kept.n_held++] = h;
			continue;
		}
		atomic_fetch_sub(&s->held, h.count);
		if (!s->origin)
			atomic_fetch_sub(&o->held, h.count);
	}
	if (older) {
		older->n_held = merge(older, &kept, merged);
		free(older->held);
		older->held = merged;
	}
	free(gone->held);
	return 0;
}

int s3_objects_snapshot_delete(struct s3_objects *o, uint64_t seq, uint64_t now)
{
	size_t k;
	int r = 0;

	pthread_mutex_lock(&o->lock);
	k = s3_objects_find_snapshot(o, seq);
	if (k == o->n_snapshots) {
		r = -ENOENT;
	} else {
		struct s3_objects_snapshot_entry *older = k ? &o->snapshots[k - 1] : NULL;

		if (k == o->n_snapshots - 1)
			delete_newest(o, older);
		else
			r = delete_older(o, &o->snapshots[k], older);
	}
	if (!r) {
		o->n_snapshots--;
		memmove(&o->snapshots[k], &o->snapshots[k + 1],
			(o->n_snapshots - k) * sizeof *o->snapshots);
		s3_objects_set_newest(o);
		s3_objects_relist_all(o, now);
	}
	pthread_mutex_unlock(&o->lock);
	return r;
}

int s3_objects_rollback(struct s3_objects *o, uint64_t seq)
{
	int r = -EINVAL;

	pthread_mutex_lock(&o->lock);
	if (seq && seq == atomic_load(&o->newest)) {
		r = 0;
		s3_for_each_slot(o, n)
		{
			struct s3_slot *s = s3_objects_slot(o, n);
			uint32_t fresh = atomic_load(&s->fresh);

			/* What died since then lives again; the map of the snapshot counts it. */
			atomic_store(&s->fresh, 0);
			atomic_store(&s->live, 0);
			if (!s->origin)
				atomic_fetch_sub(&o->held, fresh);
		}
		atomic_store(&o->live, 0);
	}
	pthread_mutex_unlock(&o->lock);
	return r;
}

void s3_objects_settle(struct s3_objects *o, uint64_t now)
{
	uint64_t live = 0;

	pthread_mutex_lock(&o->lock);
	s3_objects_relist_all(o, now);
	s3_for_each_slot(o, n) live +=
		s3_objects_slot(o, n)->origin ? 0 : s3_objects_slot(o, n)->live;
	atomic_store(&o->live, live);
	pthread_mutex_unlock(&o->lock);
}

int s3_objects_inherit(struct s3_objects *o)
{
	int r = 0;

	pthread_mutex_lock(&o->lock);
	s3_for_each_slot(o, n) if (s3_objects_slot(o, n)->origin == S3_PARENTS_MAX) r = -ERANGE;
	if (!r) {
		while (o->n_snapshots)
			free(o->snapshots[--o->n_snapshots].held);
		s3_objects_set_newest(o);
		s3_for_each_slot(o, n)
		{
			struct s3_slot *s = s3_objects_slot(o, n);

			s3_objects_set_dead(o, s, false);
			s->origin++;
			s->birth = 0;
			atomic_store(&s->held, 0);
			atomic_store(&s->death, 0);
			atomic_store(&s->fresh, 0);
		}
		o->bytes = o->blocks = 0;
		atomic_store(&o->live, 0);
		atomic_store(&o->held, 0);
		/* What the clone begins without is dead with its first object. */
		s3_objects_relist_all(o, 1);
		r = s3_objects_hash_rebuild(o, o->hash_size);
	}
	pthread_mutex_unlock(&o->lock);
	return r;
}
