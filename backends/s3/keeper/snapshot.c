/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Snapshots, clones, the volume's size.
 *
 * A snapshot is a full root, stored twice: under snap/<name>/ first, which makes it, then as a root
 * of the volume, which lists it from then on. Deletion goes the other way: a root
 * without it, then its own root. The next open can therefore distinguish what a crash left: it
 * takes over an own root that is younger than the volume's, and deletes one that is older.
 *
 * A clone puts its marker below the snapshot, looks whether that is being deleted, and only then
 * comes into being. A deletion puts a mark, looks for clones, and only then begins. At least
 * one of the two sees the other.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/backend.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/client/client.h"
#include "backends/s3/client/names.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/snapstore.h"
#include "backends/s3/core/super.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/internal.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/keeper/snapshot_internal.h"
#include "backends/s3/log/log.h"
#include "backends/s3/recovery/recovery.h"

/* ...and after which a marker whose clone is not there is one of a creation that was cut short. */
#define MARKER_STALE 600

/* ---- requests --------------------------------------------------------------------------- */

int s3_snapshot_put(struct s3_volume *v, const char *key, const void *data, size_t length,
	const char *etag, uint32_t deadline, struct s3_request *req)
{
	struct iovec iov = {(void *)data, length};

	return s3_volume_put_at(v, key, &iov, 1, etag, deadline, req);
}

int s3_snapshot_check_name(struct s3_volume *v, const char *name)
{
	if (s3_name_valid(name))
		return 0;
	return s3_volume_refuse(v, -EINVAL,
		"snapshot=%s: not a valid name for a snapshot; use 1 to 63 of a-z, 0-9, '.', '_' "
		"and '-', beginning with a letter or digit",
		name);
}

/* ---- what the volume knows ---------------------------------------------------------------- */

bool s3_snapshot_find(struct s3_volume *v, const char *name, struct s3_root_snapshot *snapshot)
{
	bool found = false;

	pthread_mutex_lock(&v->lock);
	for (uint32_t i = 0; !found && i < v->n_snapshots; i++)
		if (strcmp(v->snapshots[i].name, name) == 0) {
			*snapshot = v->snapshots[i];
			found = true;
		}
	pthread_mutex_unlock(&v->lock);
	return found;
}

int s3_snapshot_refuse_unknown(struct s3_volume *v, const char *name)
{
	return s3_volume_refuse(v, -ENOENT,
		"snapshot=%s: volume %s has no such snapshot; userblk-s3 snapshot list shows "
		"those that it has",
		name, v->name);
}

static int refuse_existing(struct s3_volume *v, const char *name)
{
	return s3_volume_refuse(v, -EEXIST,
		"snapshot=%s: volume %s has a snapshot of that name; choose another name, or "
		"delete it",
		name, v->name);
}

/* A root that could not be stored may have been to tell of another snapshot: that first. */
static int settle(struct s3_volume *v)
{
	return v->full_wanted ? s3_checkpoint(v) : 0;
}

/* ---- what is stored ------------------------------------------------------------------------ */

int s3_snapshot_list(struct s3_volume *v, struct s3_snapshot_info **list, size_t *n)
{
	struct s3_name *names;
	struct s3_snapshot_info *all;
	struct s3_request req;
	size_t n_names;
	int r = s3_snapshot_look(v, &names, &n_names, &req);

	if (r)
		return r == -ENOMEM ? r : s3_volume_refuse(v, r, "%s", req.message);
	pthread_mutex_lock(&v->lock);
	all = calloc(v->n_snapshots + 1, sizeof *all);
	for (uint32_t i = 0; all && i < v->n_snapshots; i++) {
		const struct s3_root_snapshot *s = &v->snapshots[i];

		all[i] = (struct s3_snapshot_info){
			.seq = s->seq, .time = s->time, .blocks = s->blocks};
		strcpy(all[i].name, s->name);
		for (size_t j = 0; j < n_names; j++)
			all[i].children += names[j].kind == S3_NAME_CHILD &&
					   !s3_name_is_mark(&names[j]) &&
					   strcmp(names[j].name, s->name) == 0;
	}
	*n = v->n_snapshots;
	pthread_mutex_unlock(&v->lock);
	*list = all;
	free(names);
	return all ? 0 : -ENOMEM;
}

/* ---- create -------------------------------------------------------------------------------- */

struct creation {
	const char *name;
	struct s3_root_snapshot snapshot;
	bool entered; /* the volume knows it */
	bool tried;   /* its own root may be stored... */
	bool stored;  /* ...is */
};

static int enter(void *opaque, struct s3_volume *v, uint64_t seq)
{
	struct creation *c = opaque;
	int r;

	c->snapshot.seq = seq;
	c->snapshot.time = (uint64_t)time(NULL);
	c->snapshot.blocks = v->super.blocks;
	strcpy(c->snapshot.name, c->name);
	r = s3_snapshot_enter(v, &c->snapshot);
	c->entered = r == 0;
	return r;
}

/* Is what stands in place of the snapshot's own root this very one, whose reply was lost? 0: yes.
 */
static int meet_root(struct s3_volume *v, const struct creation *c)
{
	struct s3_root root;
	void *data;
	int r = s3_snapshot_read(v, v->base, v->super.uuid, c->name, c->snapshot.seq, &data, &root);

	return r ? r : s3_keeper_meet_root(v, &root, data);
}

static int store_own_root(
	void *opaque, struct s3_volume *v, const void *data, size_t length, bool *named)
{
	struct creation *c = opaque;
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r;

	s3_snapshot_root_key(v, c->name, c->snapshot.seq, key);
	s3_failpoint(S3_FAIL_SNAP_ROOT_BEFORE);
	r = s3_volume_put_new(v, key, data, length, v->conditional, &req);
	*named = c->tried = r == 0 || r == -EEXIST || s3_may_arrive(&req);
	if (r == -ENOSPC && !c->tried)
		return r; /* for the caller to say */
	if (r == -EEXIST)
		r = meet_root(v, c);
	if (r)
		return s3_volume_refuse(v, r == -EEXIST ? -EIO : r, "snapshot=%s: %s", c->name,
			req.message[0] ? req.message : strerror(-r));
	s3_failpoint(S3_FAIL_SNAP_ROOT_AFTER);
	c->stored = true;
	return 0;
}

static int refuse_full(struct s3_volume *v, const char *name)
{
	return s3_volume_refuse(v, -ENOSPC,
		"snapshot=%s: the store of volume %s is full; free space, or add some, and try "
		"again",
		name, v->name);
}

int s3_snapshot_check_space(struct s3_volume *v, const char *name)
{
	return atomic_load(&v->refused) == -ENOSPC ? refuse_full(v, name) : 0;
}

static int create(struct s3_volume *v, void *opaque)
{
	struct creation *c = opaque;
	const struct s3_checkpoint_step step = {
		.change = enter, .root = store_own_root, .creates = true, .opaque = c};
	char mark[S3_KEY_MAX + 1];
	struct s3_request req;
	int r = s3_snapshot_check_space(v, c->name);

	if (r == 0)
		r = settle(v);
	if (r == 0 && s3_snapshot_find(v, c->name, &c->snapshot))
		return refuse_existing(v, c->name);
	if (r == 0)
		r = s3_snapshot_keep_older_out(v);
	if (r == 0)
		r = s3_snapshot_mark_key(v, c->name, mark);
	if (r)
		return r;
	/* No clone before it is certain that who takes over has it. */
	r = s3_volume_put_new(v, mark, "creating\n", 9, false, &req);
	if (r == -ENOSPC)
		return refuse_full(v, c->name);
	if (r)
		return s3_volume_refuse(v, r, "snapshot=%s: %s", c->name, req.message);
	r = s3_checkpoint_with(v, &step);
	/* That root may be stored: the next one has to tell of it, or that it does not count. */
	v->full_wanted |= r && c->tried;
	if (c->stored) {
		/* It is there, whether the root of the volume could be stored or comes later; but
		 * not if another writer had begun before. */
		if (r == 0)
			s3_failpoint(S3_FAIL_SNAP_LIVE_AFTER);
		r = s3_check_not_fenced(v);
		if (r == 0)
			s3_snapshot_unmark(v, c->name);
		return r == -ESTALE ? -EIO : r;
	}
	if (r == -ENOSPC && !c->tried)
		refuse_full(v, c->name);
	if (c->entered && atomic_load(&v->failed) == 0) {
		uint64_t now = s3_log_pause(v);

		v->full_wanted |= s3_snapshot_drop(v, c->snapshot.seq, now) != 0;
		s3_log_resume(v);
		if (c->tried)
			s3_snapshot_erase(v, c->name, c->snapshot.seq);
	}
	if (!c->tried && atomic_load(&v->failed) == 0)
		s3_snapshot_unmark(v, c->name);
	return r;
}

int s3_snapshot_create(struct s3_volume *v, const char *name)
{
	struct creation c = {.name = name};
	int r = s3_snapshot_check_name(v, name);

	return r ? r : s3_keeper_call(v, create, &c);
}

/* ---- delete -------------------------------------------------------------------------------- */

struct children {
	struct s3_volume *v;
	bool look;   /* change nothing: markers of clones that are missing do not count */
	int64_t now; /* when the mark was put, by the store's clock */
	uint32_t n;
	bool exist;		    /* not all of them are yet to be made, or never will be */
	char first[S3_KEY_MAX + 1]; /* path of the one that was found first */
	struct s3_request deletion; /* the last one */
};

/* Path of the clone that put a marker. False: it cannot be read. */
static bool read_marker(struct s3_volume *v, const char *key, char path[S3_KEY_MAX + 1])
{
	struct s3_request req;

	if (s3_volume_get(v, key, path, S3_KEY_MAX, &req))
		return false;
	path[req.bytes] = '\0';
	path[strcspn(path, "\n")] = '\0';
	return s3_key_valid(path) && strlen(path) + 1 + S3_KEY_ROOM <= S3_KEY_MAX;
}

/* Is there no super object of that UUID in an object? Not in doubt. */
static bool holds_no_super(struct s3_volume *v, const char *key, const uint8_t uuid[S3_UUID])
{
	int r = s3_super_look(v, key, uuid, NULL);

	return r == -ENOENT || r == -ESTALE;
}

/*
 * One that is being deleted has a copy of its super object, and gets that back if it has a clone
 * itself: the copy is put before the other one goes, and goes after that has been put back.
 */
static bool clone_is_missing(struct s3_volume *v, const char *path, const uint8_t uuid[S3_UUID])
{
	char super[S3_KEY_MAX + 1], copy[S3_KEY_MAX + 1];

	snprintf(super, sizeof super, "%s/super", path);
	snprintf(copy, sizeof copy, "%s/deleted", path);
	return holds_no_super(v, super, uuid) && holds_no_super(v, copy, uuid) &&
	       holds_no_super(v, super, uuid);
}

enum s3_clone s3_snapshot_clone_of(struct s3_volume *v, const struct s3_listed *marker,
	const uint8_t uuid[S3_UUID], int64_t now)
{
	char path[S3_KEY_MAX + 1];

	if (!read_marker(v, marker->key, path))
		return S3_CLONE_UNKNOWN;
	if (!clone_is_missing(v, path, uuid))
		return S3_CLONE_EXISTS;
	return now - marker->modified > MARKER_STALE ? S3_CLONE_NONE : S3_CLONE_UNKNOWN;
}

/* The marks come first: their numbers begin with zeroes. */
static int count_child(void *opaque, const struct s3_listed *listed)
{
	struct children *c = opaque;
	char path[S3_KEY_MAX + 1];
	struct s3_name name;
	bool readable, missing;

	if (!s3_name_parse(listed->key + strlen(c->v->base), &name) || name.kind != S3_NAME_CHILD)
		return 0;
	if (s3_name_is_mark(&name)) {
		if (c->now < listed->modified)
			c->now = listed->modified;
		return 0;
	}
	readable = read_marker(c->v, listed->key, path);
	missing = readable && clone_is_missing(c->v, path, name.uuid);
	if (c->look && missing)
		return 0;
	if (missing && c->now - listed->modified > MARKER_STALE)
		return s3_volume_delete(c->v, listed->key, &c->deletion);
	c->exist |= !missing;
	if (!c->n++)
		strcpy(c->first, readable ? path : listed->key);
	return 0;
}

static int check_childless(struct s3_volume *v, const char *name, bool look)
{
	struct children c = {.v = v, .look = look};
	char prefix[S3_KEY_ROOM];
	struct s3_request req;
	int r;

	snprintf(prefix, sizeof prefix, "snap/%s/child/", name);
	r = s3_volume_list(v, prefix, false, count_child, &c, &req);
	if (r)
		return r == -ENOMEM ? r
				    : s3_volume_refuse(v, r, "%s",
					      c.deletion.result ? c.deletion.message : req.message);
	if (!c.n)
		return 0;
	if (!c.exist)
		return s3_volume_refuse(v, -EBUSY,
			"snapshot=%s: a clone of it, %s, may just be created; try again in ten "
			"minutes",
			name, c.first);
	return s3_volume_refuse(v, -EBUSY,
		"snapshot=%s: has %" PRIu32 " clone%s, such as %s; delete %s first", name, c.n,
		c.n > 1 ? "s" : "", c.first, c.n > 1 ? "them" : "it");
}

/*
 * Stores the map, so that the root without the snapshot takes little: if a full store has no room
 * for it, nothing was changed, and light roots go on.
 */
static int store_map(struct s3_volume *v, const char *name)
{
	const struct s3_checkpoint_step step = {0};
	int r = s3_checkpoint_with(v, &step);

	return r == -ENOSPC ? refuse_full(v, name) : r;
}

static int delete (struct s3_volume *v, void *opaque)
{
	const char *name = opaque;
	struct s3_root_snapshot snapshot;
	const struct s3_checkpoint_step step = {.without = &snapshot};
	char mark[S3_KEY_MAX + 1];
	struct s3_request req;
	int r;

	if (!s3_snapshot_find(v, name, &snapshot))
		return s3_snapshot_refuse_unknown(v, name);
	/* The look that counts is behind the mark. A clone that is there spares the map. */
	r = check_childless(v, name, true);
	if (r == 0)
		r = store_map(v, name);
	if (r == 0)
		r = s3_snapshot_keep_older_out(v);
	if (r == 0)
		r = s3_snapshot_mark_key(v, name, mark);
	if (r)
		return r;
	r = s3_volume_put(v, mark, "deleting\n", 9, false, &req);
	if (r)
		return s3_volume_refuse(v, r, "snapshot=%s: %s", name, req.message);
	s3_failpoint(S3_FAIL_SNAP_MARK_AFTER);
	r = check_childless(v, name, false);
	if (r) {
		s3_snapshot_unmark(v, name);
		return r;
	}
	r = s3_checkpoint_with(v, &step);
	/* It has not begun, and nothing else would take away the mark, which keeps clones off. */
	if (r && atomic_load(&v->failed) == 0 && s3_snapshot_find(v, name, &snapshot)) {
		s3_snapshot_unmark(v, name);
		return r == -ENOSPC ? refuse_full(v, name) : r;
	}
	if (r)
		return r; /* the next root is without it, or this writer ends and it stays */
	s3_failpoint(S3_FAIL_SNAP_DELETE_BEFORE);
	/* Another writer that had begun before does not know of it. */
	r = s3_check_not_fenced(v);
	if (r)
		return r == -ESTALE ? -EIO : r;
	/* What stays because of an error goes when the volume is opened next. */
	s3_snapshot_erase(v, name, snapshot.seq);
	return 0;
}

int s3_snapshot_delete(struct s3_volume *v, const char *name)
{
	int r = s3_snapshot_check_name(v, name);

	return r ? r : s3_keeper_call(v, delete, (void *)name);
}

/* ---- roll back ----------------------------------------------------------------------------- */

static int check_newest(struct s3_volume *v, const struct s3_root_snapshot *snapshot)
{
	if (v->snapshots[v->n_snapshots - 1].seq == snapshot->seq)
		return 0;
	return s3_volume_refuse(v, -EBUSY,
		"snapshot=%s: there are newer snapshots, the last is %s; delete them first",
		snapshot->name, v->snapshots[v->n_snapshots - 1].name);
}

static int roll_back(struct s3_volume *v, void *opaque)
{
	const char *name = opaque;
	struct s3_root_snapshot snapshot;
	int r;

	if (!s3_snapshot_find(v, name, &snapshot))
		return s3_snapshot_refuse_unknown(v, name);
	r = check_newest(v, &snapshot);
	if (r == 0)
		r = settle(v);
	/* Every later open has to read it: one that cannot be read must not get into the log. */
	if (r == 0)
		r = s3_restore_check(v, &snapshot);
	if (r == 0 && snapshot.blocks > v->super.blocks) {
		r = s3_volume_grow(v, snapshot.blocks);
		if (r == 0)
			backend_resized(&v->backend, snapshot.blocks << v->shift);
	}
	if (r == 0)
		r = s3_log_mark(v, &(struct s3_record){.op = S3_RECORD_RESET, .seq = snapshot.seq});
	/*
	 * When that is in the log it has happened: a crash from here on replays it. It is on its
	 * way there, and cannot be taken back, whatever the store says meanwhile.
	 */
	if (r == 0)
		r = s3_log_drain_at_last(v);
	if (r)
		return r;
	s3_failpoint(S3_FAIL_ROLLBACK_LOG_AFTER);
	s3_log_pause(v);
	r = s3_restore(v, snapshot.seq);
	s3_log_resume(v);
	if (r) {
		s3_volume_fail(v, -EIO,
			"it was rolled back to snapshot %s, which cannot be read now", name);
		return -EIO;
	}
	/* The log has it, as what was flushed. A root that is refused is tried again. */
	r = s3_checkpoint(v);
	return atomic_load(&v->failed) ? r : 0;
}

/* By the collector: the objects that it looks at change. */
static int order_rollback(struct s3_volume *v, void *opaque)
{
	return s3_keeper_call(v, roll_back, opaque);
}

int s3_snapshot_rollback(struct s3_volume *v, const char *name)
{
	int r = s3_snapshot_check_name(v, name);

	return r ? r : s3_collector_call(v, order_rollback, (void *)name);
}

/* ---- before the volume is opened for a change --------------------------------------------------
 */

/*
 * Finds a snapshot. 0: known; 1: the root does not list it, but the store has one, which the fence
 * may bring in; -EINVAL or -ENOENT, reported.
 */
static int look_for(struct s3_volume *v, const char *name, struct s3_root_snapshot *snapshot)
{
	int r = s3_snapshot_check_name(v, name);
	struct s3_request req;
	struct s3_name *names;
	size_t n;

	if (r || s3_snapshot_find(v, name, snapshot))
		return r;
	if (s3_snapshot_look(v, &names, &n, &req))
		return 1;
	for (size_t i = 0; i < n && !r; i++)
		r = names[i].kind == S3_NAME_SNAPSHOT && strcmp(names[i].name, name) == 0;
	free(names);
	return r ? r : s3_snapshot_refuse_unknown(v, name);
}

int s3_snapshot_may_create(struct s3_volume *v, const char *name)
{
	struct s3_root_snapshot snapshot;
	int r = s3_snapshot_check_name(v, name);

	return r == 0 && s3_snapshot_find(v, name, &snapshot) ? refuse_existing(v, name) : r;
}

int s3_snapshot_may_delete(struct s3_volume *v, const char *name)
{
	struct s3_root_snapshot snapshot;
	int r = look_for(v, name, &snapshot);

	if (r == 0)
		return check_childless(v, name, true);
	return r > 0 ? 0 : r;
}

int s3_snapshot_may_rollback(struct s3_volume *v, const char *name)
{
	struct s3_root_snapshot snapshot;
	int r = look_for(v, name, &snapshot);

	if (r == 0)
		return check_newest(v, &snapshot);
	return r > 0 ? 0 : r;
}
