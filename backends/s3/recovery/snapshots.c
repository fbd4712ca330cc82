/* SPDX-License-Identifier: BSD-3-Clause */
/* The map of a snapshot, and the snapshots that a crash has left half made or half deleted. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/snapstore.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/recovery/internal.h"
#include "backends/s3/recovery/parts.h"
#include "backends/s3/recovery/recovery.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

struct restore {
	struct s3_volume *v;
	struct s3_objects *objects;   /* the snapshot's table */
	bool look;		      /* change nothing */
	char missing[S3_KEY_MAX + 1]; /* what -ENOENT is about */
};

/* Enters a run of the snapshot's map. Its table may have other slots than the volume's. */
static int restore_run(void *opaque, const struct s3_run *run)
{
	struct restore *c = opaque;
	struct s3_volume *v = c->v;
	struct s3_object object;
	uint32_t slot;

	s3_objects_get(c->objects, run->slot, &object);
	slot = s3_objects_find(v->objects, object.origin, object.id);
	if (slot == S3_NO_SLOT) {
		if (object.origin <= v->super.n_parents)
			s3_volume_origin_key(v, object.origin, object.id, c->missing);
		return -ENOENT;
	}
	if (c->look)
		return 0;
	return s3_map_update(v->map, v->applied, run->lba, run->count, slot, run->offset);
}

/* 1, or negative errno. */
static int restore_region(struct restore *c, const struct s3_root *root, size_t i, const void *data)
{
	struct s3_map *map = s3_map_new(c->objects, root->blocks);
	int r = map ? s3_recovery_check_error(s3_map_load(
			      map, root->regions[i].region, data, root->regions[i].bytes))
		    : -ENOMEM;

	if (r == 0)
		r = s3_map_walk(map, restore_run, c);
	s3_map_free(map);
	return r ? r : 1;
}

/* Takes the map over, or looks at it, a region after the other. */
static int restore_regions(struct restore *c, const struct s3_root *root)
{
	struct s3_volume *v = c->v;
	struct s3_root_part *parts;
	struct s3_parts *fetched;
	int r = 0;

	c->objects = s3_objects_new(v->batch_blocks);
	if (!c->objects)
		r = -ENOMEM;
	else
		r = s3_recovery_check_error(
			s3_objects_decode(c->objects, root->table, root->table_bytes));
	parts = r ? NULL : s3_recovery_parts_of(root, false);
	fetched = parts ? s3_parts_new(v, v->base, parts, root->n_regions) : NULL;
	if (r == 0)
		r = fetched ? 1 : -ENOMEM;
	while (r == 1) {
		size_t i = 0;
		void *data;

		r = s3_parts_next(fetched, &i, &data);
		if (r == 1) {
			r = restore_region(c, root, i, data);
			free(data);
		}
		if (r == -ENOENT && !c->missing[0])
			s3_volume_key(v, &parts[i].name, c->missing);
	}
	s3_parts_free(fetched);
	free(parts);
	s3_objects_free(c->objects);
	return r;
}

int s3_restore_check(struct s3_volume *v, const struct s3_root_snapshot *snapshot)
{
	struct restore c = {.v = v, .look = true};
	struct s3_root root;
	void *data;
	int r = s3_snapshot_read(
		v, v->base, v->super.uuid, snapshot->name, snapshot->seq, &data, &root);

	if (r == 0) {
		r = root.base == root.seq ? restore_regions(&c, &root) : -ENOENT;
		s3_root_free(&root);
		free(data);
	}
	if (r == -ENOENT && !c.missing[0])
		s3_snapshot_root_key(v, snapshot->name, snapshot->seq, c.missing);
	if (r == -ENOENT)
		return s3_volume_refuse(v, -EIO,
			"snapshot=%s: %s is damaged or gone; the volume stays as it is",
			snapshot->name, c.missing);
	return r == -ENOMEM ? s3_volume_refuse(v, r, "snapshot=%s: out of memory", snapshot->name)
			    : r;
}

int s3_restore(struct s3_volume *v, uint64_t seq)
{
	struct s3_root root;
	void *data;
	int r = -ENOENT;

	/* The younger ones have been deleted, although the root that was loaded may not know. */
	while (v->n_snapshots && v->snapshots[v->n_snapshots - 1].seq > seq)
		if (s3_snapshot_drop(v, v->snapshots[v->n_snapshots - 1].seq, v->applied))
			return -ENOMEM;
	/* Once the volume is open it has been rolled back: it is waited for the store. */
	if (v->n_snapshots && v->snapshots[v->n_snapshots - 1].seq == seq)
		do
			r = s3_snapshot_read(v, v->base, v->super.uuid,
				v->snapshots[v->n_snapshots - 1].name, seq, &data, &root);
		while (r == -EIO && !v->deadline && !atomic_load(&v->failed));
	if (r == 0) {
		r = root.base == seq ? s3_objects_rollback(v->objects, seq) : -ENOENT;
		if (r == 0) {
			s3_map_clear(v->map);
			r = restore_regions(&(struct restore){.v = v}, &root);
		}
		s3_root_free(&root);
		free(data);
	}
	if (r)
		return r;
	s3_objects_settle(v->objects, v->applied);
	/* All regions that hold anything have changed. */
	s3_roots_forget(v);
	return 0;
}

/* NULL: none of that name, and of that number if it is not 0. */
static const struct s3_root_snapshot *find_known(
	const struct s3_root_snapshot *snapshots, size_t n, const char *name, uint64_t number)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(snapshots[i].name, name) == 0 && (!number || snapshots[i].seq == number))
			return &snapshots[i];
	return NULL;
}

/* A snapshot's own root, of which the volume knows nothing. */
static int look_at_snapshot(
	struct s3_volume *v, struct s3_recovery *p, const struct s3_name *name, bool *again)
{
	struct s3_root_snapshot *list, found = {0};
	struct s3_root root;
	bool known;
	void *data;
	int r;

	r = s3_root_read(v, v->base, v->super.uuid, name, &data, &root);
	if (r)
		return r == -ENOENT ? 0 : r;
	/* Not that of another writer, who takes over: we shall see. */
	if (root.n_snapshots && root.epoch <= v->epoch)
		found = root.snapshots[root.n_snapshots - 1];
	known = found.seq == root.seq && strcmp(found.name, name->name) == 0 &&
		(!name->number || name->number == found.seq);
	s3_root_free(&root);
	free(data);
	if (!known)
		return 0;
	if (found.seq <= v->checkpoint) {
		s3_snapshot_erase(v, name->name, found.seq);
		return 0;
	}
	if (found.seq > v->applied)
		return s3_volume_refuse(v, -EIO,
			"volume=%s: the log ends before snapshot %s, at object %" PRIu64
			"; restore the volume from a backup",
			v->name, name->name, v->applied);
	list = realloc(p->adopt, (p->n_adopt + 1) * sizeof *list);
	if (!list)
		return -ENOMEM;
	list[p->n_adopt++] = found;
	p->adopt = list;
	*again = true;
	return 0;
}

int s3_recovery_look_at_snapshots(struct s3_volume *v, struct s3_recovery *p, bool *again)
{
	struct s3_name *names;
	struct s3_request req;
	size_t n;
	int r = s3_snapshot_look(v, &names, &n, &req);

	if (r)
		return r == -ENOMEM ? r : s3_volume_refuse(v, r, "%s", req.message);
	for (size_t i = 0; r == 0 && i < n; i++) {
		bool known =
			find_known(v->snapshots, v->n_snapshots, names[i].name, names[i].number);

		/*
		 * The mark of a creation or deletion that was cut short stays until a root of ours
		 * is there: that of the writer before us, with or without the snapshot, may still
		 * arrive, and be the newest when we end before that. Until then there must be no
		 * clone.
		 */
		if (names[i].kind == S3_NAME_CHILD && s3_name_is_mark(&names[i]))
			atomic_store(&v->marked, true);
		else if (names[i].kind == S3_NAME_SNAPSHOT && !known)
			r = look_at_snapshot(v, p, &names[i], again);
	}
	free(names);
	return r;
}

static int refuse_snapshot(struct s3_volume *v, const char *snapshot)
{
	char text[256] = "", deleted[S3_NAME_MAX + 1] = "";
	struct s3_name *names;
	struct s3_request req;
	size_t n, used = 0;
	int r = s3_snapshot_look(v, &names, &n, &req);

	if (r)
		return r == -ENOMEM ? r : s3_volume_refuse(v, r, "%s", req.message);
	for (size_t i = 0; i < n && used < sizeof text; i++) {
		if (names[i].kind == S3_NAME_CHILD && s3_name_is_mark(&names[i]))
			strcpy(deleted, names[i].name);
		else if (names[i].kind == S3_NAME_SNAPSHOT && strcmp(names[i].name, deleted) != 0)
			used += (size_t)snprintf(text + used, sizeof text - used, "%s%s",
				used ? ", " : "", names[i].name);
	}
	free(names);
	return s3_volume_refuse(v, -ENOENT, "snapshot=%s: volume %s has no such snapshot; %s%s",
		snapshot, v->name, used ? "there are " : "it has no snapshot at all", text);
}

int s3_snapshot_find_stored(struct s3_volume *v, const char *snapshot, uint64_t *seq)
{
	struct s3_roots roots = {.v = v};
	int r = s3_recovery_list_roots(v, &roots);
	struct s3_name *names = NULL;
	struct s3_request req;
	uint64_t newest = 0;
	size_t n = 0;

	*seq = 0;
	for (size_t i = 0; r == 0 && i < roots.n && !newest; i++) {
		const struct s3_root_snapshot *known;
		struct s3_root root;
		void *data;

		r = s3_recovery_read_root(v, roots.seqs[i], &data, &root);
		if (r == 0) {
			newest = root.seq;
			known = find_known(root.snapshots, root.n_snapshots, snapshot, 0);
			if (known)
				*seq = known->seq;
			s3_root_free(&root);
			free(data);
		}
		if (r == -ENOENT)
			r = 0;
	}
	free(roots.seqs);
	if (r || *seq)
		return r;
	r = s3_snapshot_look(v, &names, &n, &req);
	if (r && r != -ENOMEM)
		return s3_volume_refuse(v, r, "%s", req.message);
	for (size_t i = 0; r == 0 && i < n; i++) {
		uint64_t number = names[i].number;

		if (names[i].kind != S3_NAME_SNAPSHOT || strcmp(names[i].name, snapshot) != 0)
			continue;
		if (!number) {
			struct s3_root root;
			void *data;

			r = s3_root_read(v, v->base, v->super.uuid, &names[i], &data, &root);
			if (r == 0) {
				number = root.seq;
				s3_root_free(&root);
				free(data);
			}
			r = r == -ENOENT ? 0 : r;
		}
		if (number > newest)
			*seq = number;
	}
	free(names);
	return r;
}

int s3_recover_snapshot(struct s3_volume *v, const char *snapshot)
{
	struct s3_root root;
	uint64_t seq;
	void *data;
	int r = s3_snapshot_find_stored(v, snapshot, &seq);

	if (r == 0)
		r = seq ? s3_snapshot_read(v, v->base, v->super.uuid, snapshot, seq, &data, &root)
			: -ENOENT;
	if (r)
		return r == -ENOENT ? refuse_snapshot(v, snapshot) : r;
	r = s3_recovery_load_full(v, v->base, &root);
	if (r == -ENOENT)
		r = s3_volume_refuse(v, -EIO,
			"snapshot=%s: a part of its map is damaged or gone; restore the volume "
			"from a backup",
			snapshot);
	if (r == 0) {
		v->of_snapshot = true;
		v->epoch = root.epoch;
		v->next_gc = root.next_gc;
		memcpy(v->predecessor, root.instance, S3_UUID);
		v->applied = v->frontier = root.seq;
		v->next_seq = root.seq + 1;
		r = s3_map_resize(v->map, root.blocks);
	}
	s3_root_free(&root);
	free(data);
	return r;
}
