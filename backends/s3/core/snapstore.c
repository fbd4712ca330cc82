/* SPDX-License-Identifier: BSD-3-Clause */
/* What is stored of snapshots, and what the volume knows of them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/snapstore.h"
#include "backends/s3/core/super.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/object_table.h"

/* ns until marks that the store did not delete are tried again, each time after a root. */
#define UNMARK_PAUSE (600 * UINT64_C(1000000000))

void s3_snapshot_root_key(const struct s3_volume *v, const char *name, uint64_t seq, char *key)
{
	struct s3_name n = {.kind = S3_NAME_SNAPSHOT, .number = seq};

	strcpy(n.name, name);
	s3_volume_key(v, &n, key);
}

void s3_snapshot_child_key(
	const char *base, const char *name, const uint8_t uuid[S3_UUID], char *key)
{
	struct s3_name n = {.kind = S3_NAME_CHILD};

	strcpy(n.name, name);
	memcpy(n.uuid, uuid, S3_UUID);
	strcpy(key, base);
	s3_name_format(&n, key + strlen(key));
}

/* Half of it zeroes, the writer's epoch, then something random, for there may be several. */
int s3_snapshot_mark_key(const struct s3_volume *v, const char *name, char *key)
{
	uint8_t uuid[S3_UUID];
	int r = s3_random(uuid);

	s3_le_store(uuid, 0, S3_UUID / 2);
	s3_le_store(uuid + S3_UUID / 2, v->epoch, 4);
	s3_snapshot_child_key(v->base, name, uuid, key);
	return r;
}

void s3_snapshot_marks_prefix(const char *name, char prefix[S3_KEY_ROOM])
{
	snprintf(prefix, S3_KEY_ROOM, "snap/%s/child/%0*d", name, S3_UUID, 0);
}

static int set_numbered(void *opaque, struct s3_volume *v, struct s3_super *super)
{
	(void)opaque;
	(void)v;
	if (super->numbered)
		return 0;
	super->numbered = true;
	return 1;
}

int s3_snapshot_keep_older_out(struct s3_volume *v)
{
	int r = v->super.numbered ? 0 : s3_volume_change_super(v, set_numbered, NULL, NULL);

	if (r == 0)
		v->super.numbered = true;
	return r;
}

int s3_snapshot_enter(struct s3_volume *v, const struct s3_root_snapshot *snapshot)
{
	struct s3_root_snapshot *list;
	int r = -ENOMEM;

	pthread_mutex_lock(&v->lock);
	list = realloc(v->snapshots, (v->n_snapshots + 1) * sizeof *list);
	if (list) {
		v->snapshots = list;
		r = s3_objects_snapshot(v->objects, snapshot->seq);
	}
	if (r == 0)
		list[v->n_snapshots++] = *snapshot;
	pthread_mutex_unlock(&v->lock);
	return r;
}

int s3_snapshot_drop(struct s3_volume *v, uint64_t seq, uint64_t now)
{
	uint32_t i = 0;
	int r;

	pthread_mutex_lock(&v->lock);
	r = s3_objects_snapshot_delete(v->objects, seq, now);
	while (i < v->n_snapshots && v->snapshots[i].seq != seq)
		i++;
	if (r == 0 && i < v->n_snapshots) {
		v->n_snapshots--;
		memmove(&v->snapshots[i], &v->snapshots[i + 1],
			(v->n_snapshots - i) * sizeof *v->snapshots);
	}
	pthread_mutex_unlock(&v->lock);
	return r;
}

struct look {
	struct s3_volume *v;
	struct s3_name *names;
	size_t n;
};

static int look_at(void *opaque, const struct s3_listed *listed)
{
	struct look *l = opaque;
	struct s3_name name, *names;

	if (!s3_name_parse(listed->key + strlen(l->v->base), &name) ||
		(name.kind != S3_NAME_SNAPSHOT && name.kind != S3_NAME_CHILD))
		return 0;
	names = realloc(l->names, (l->n + 1) * sizeof *names);
	if (!names)
		return -ENOMEM;
	l->names = names;
	names[l->n++] = name;
	return 0;
}

int s3_snapshot_look(struct s3_volume *v, struct s3_name **names, size_t *n, struct s3_request *req)
{
	struct look l = {.v = v};
	int r = s3_volume_list(v, "snap/", false, look_at, &l, req);

	if (r) {
		free(l.names);
		return r;
	}
	*names = l.names;
	*n = l.n;
	return 0;
}

/* Not that of a next writer, who may have begun a deletion while this one was paused. */
static int delete_mark(void *opaque, const struct s3_listed *listed)
{
	struct s3_volume *v = opaque;
	struct s3_request req;
	struct s3_name name;

	if (!s3_name_parse(listed->key + strlen(v->base), &name) || !s3_name_is_mark(&name) ||
		s3_le_load(name.uuid + S3_UUID / 2, 4) > v->epoch)
		return 0;
	return s3_volume_delete(v, listed->key, &req);
}

int s3_snapshot_unmark(struct s3_volume *v, const char *name)
{
	char prefix[S3_KEY_ROOM];
	struct s3_request req;

	s3_snapshot_marks_prefix(name, prefix);
	return s3_volume_list(v, prefix, false, delete_mark, v, &req);
}

void s3_snapshot_unmark_all(struct s3_volume *v)
{
	struct s3_name *names;
	struct s3_request req;
	char key[S3_KEY_MAX + 1];
	size_t n;
	int r = s3_snapshot_look(v, &names, &n, &req);

	if (r) {
		atomic_store(&v->unmark_due, s3_now() + UNMARK_PAUSE);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		/* Not those of this writer: what it is about to do takes its own away. */
		if (names[i].kind != S3_NAME_CHILD || !s3_name_is_mark(&names[i]) ||
			s3_le_load(names[i].uuid + S3_UUID / 2, 4) >= v->epoch)
			continue;
		s3_volume_key(v, &names[i], key);
		if (s3_volume_delete(v, key, &req))
			r = -EIO;
	}
	free(names);
	if (r == 0)
		atomic_store(&v->marked, false);
	else
		atomic_store(&v->unmark_due, s3_now() + UNMARK_PAUSE);
}

/*
 * However late the deletions arrive: nobody makes the same names again. The root's has the number
 * that the snapshot has in the log, a mark's the epoch of its writer and something random, and
 * older programs, which had one name for all roots and one for all marks, have been kept out.
 */
int s3_snapshot_erase(struct s3_volume *v, const char *name, uint64_t seq)
{
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r = s3_check_not_fenced(v);

	if (r == 0)
		r = s3_snapshot_keep_older_out(v);
	s3_snapshot_root_key(v, name, seq, key);
	if (r == 0)
		r = s3_volume_delete(v, key, &req);
	s3_snapshot_root_key(v, name, 0, key);
	if (r == 0)
		r = s3_volume_delete(v, key, &req);
	if (r == 0) {
		s3_failpoint(S3_FAIL_SNAP_DELETE_AFTER);
		r = s3_snapshot_unmark(v, name);
	}
	return r;
}

void s3_roots_forget(struct s3_volume *v)
{
	free(v->regions);
	v->regions = NULL;
	v->n_regions = 0;
	v->full = 0; /* without one all regions are stored, not only those that have changed */
	v->full_wanted = v->rolled_back = true;
}
