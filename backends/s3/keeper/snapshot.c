/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Snapshots, clones, the volume's size.
 *
 * A snapshot is a full root, stored twice: snap/<name>/root first, which makes it, then as a root
 * of the volume, which lists it from then on. Deletion goes the other way: a root
 * without it, then its own root. So whatever a crash leaves can be told apart at the next open: an
 * own root that is younger than the volume's is taken over, one that is older goes.
 *
 * A clone puts its marker below the snapshot, looks whether that is being deleted, and only then
 * comes into being. A deletion puts a mark, looks for clones, and only then begins. Of the two
 * at least one sees the other.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/crypto.h>

#include "backends/s3/base/failpoint.h"
#include "backends/s3/client/names.h"
#include "backends/s3/core/volume.h"

/* Seconds within which a clone comes into being after its marker, or not at all... */
#define CLONE_DEADLINE 60
/* ...and after which a marker whose clone is not there is one of a creation that was cut short. */
#define MARKER_STALE 600
/* A volume's size in bytes, as the parameter size= has it. */
#define SMALLEST (UINT64_C(1) << 20)
#define LARGEST	 (UINT64_C(1) << 50)

/* ---- requests --------------------------------------------------------------------------- */

static int put(struct s3_volume *v, const char *key, const void *data, size_t length,
	const char *etag, uint32_t deadline, struct s3_request *req)
{
	struct iovec iov = {(void *)data, length};

	return s3_volume_put_at(v, key, &iov, 1, etag, deadline, req);
}

static int head(struct s3_volume *v, const char *key, struct s3_request *req)
{
	*req = (struct s3_request){
		.op = S3_HEAD,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.retry_deadline = v->deadline,
	};
	return s3_store_call(v->store, req);
}

static void root_key(const struct s3_volume *v, const char *name, char *key)
{
	struct s3_name n = {.kind = S3_NAME_SNAPSHOT};

	strcpy(n.name, name);
	s3_volume_key(v, &n, key);
}

/* uuid: the clone's; all zero: the mark that the snapshot is being deleted. */
static void child_key(const char *base, const char *name, const uint8_t uuid[S3_UUID], char *key)
{
	struct s3_name n = {.kind = S3_NAME_CHILD};

	strcpy(n.name, name);
	memcpy(n.uuid, uuid, S3_UUID);
	strcpy(key, base);
	s3_name_format(&n, key + strlen(key));
}

static const uint8_t no_uuid[S3_UUID];

static int check_name(struct s3_volume *v, const char *name)
{
	if (s3_name_valid(name))
		return 0;
	return s3_volume_refuse(v, -EINVAL,
		"snapshot=%s: not a name of a snapshot; use 1 to 63 of a-z, 0-9, '.', '_' and '-', "
		"a "
		"letter or digit first",
		name);
}

/* ---- what the volume knows ---------------------------------------------------------------- */

static bool find(struct s3_volume *v, const char *name, struct s3_root_snapshot *snapshot)
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

static int refuse_unknown(struct s3_volume *v, const char *name)
{
	return s3_volume_refuse(
		v, -ENOENT, "snapshot=%s: volume %s has none of that name", name, v->name);
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

/* A root that could not be stored may have been to tell of another snapshot: that first. */
static int settle(struct s3_volume *v)
{
	return v->full_wanted ? s3_checkpoint(v) : 0;
}

/* ---- what is stored ------------------------------------------------------------------------ */

struct look {
	struct s3_volume *v;
	struct s3_snapshot_files *files;
	size_t n;
};

static int look_at(void *opaque, const struct s3_listed *listed)
{
	struct look *l = opaque;
	struct s3_snapshot_files *files;
	struct s3_name name;

	if (!s3_name_parse(listed->key + strlen(l->v->base), &name) ||
		(name.kind != S3_NAME_SNAPSHOT && name.kind != S3_NAME_CHILD))
		return 0;
	if (!l->n || strcmp(l->files[l->n - 1].name, name.name) != 0) {
		files = realloc(l->files, (l->n + 1) * sizeof *files);
		if (!files)
			return -ENOMEM;
		l->files = files;
		files[l->n] = (struct s3_snapshot_files){0};
		strcpy(files[l->n++].name, name.name);
	}
	files = &l->files[l->n - 1];
	if (name.kind == S3_NAME_SNAPSHOT)
		files->root = true;
	else if (memcmp(name.uuid, no_uuid, S3_UUID) == 0)
		files->deleting = true;
	else
		files->children++;
	return 0;
}

int s3_snapshot_look(
	struct s3_volume *v, struct s3_snapshot_files **files, size_t *n, struct s3_request *req)
{
	struct look l = {.v = v};
	int r = s3_volume_list(v, "snap/", false, look_at, &l, req);

	if (r) {
		free(l.files);
		return r;
	}
	*files = l.files;
	*n = l.n;
	return 0;
}

int s3_snapshot_unmark(struct s3_volume *v, const char *name)
{
	char key[S3_KEY_MAX + 1];
	struct s3_request req;

	child_key(v->base, name, no_uuid, key);
	return s3_volume_delete(v, key, &req);
}

int s3_snapshot_erase(struct s3_volume *v, const char *name)
{
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r = s3_check_not_fenced(v);

	root_key(v, name, key);
	if (r == 0)
		r = s3_volume_delete(v, key, &req);
	if (r == 0) {
		s3_failpoint(S3_FAIL_SNAP_DELETE_AFTER);
		r = s3_snapshot_unmark(v, name);
	}
	return r;
}

int s3_snapshot_list(struct s3_volume *v, struct s3_snapshot_info **list, size_t *n)
{
	struct s3_snapshot_files *files;
	struct s3_snapshot_info *all;
	struct s3_request req;
	size_t n_files;
	int r = s3_snapshot_look(v, &files, &n_files, &req);

	if (r)
		return r == -ENOMEM ? r : s3_volume_refuse(v, r, "%s", req.message);
	pthread_mutex_lock(&v->lock);
	all = calloc(v->n_snapshots + 1, sizeof *all);
	for (uint32_t i = 0; all && i < v->n_snapshots; i++) {
		const struct s3_root_snapshot *s = &v->snapshots[i];

		all[i] = (struct s3_snapshot_info){
			.seq = s->seq, .time = s->time, .blocks = s->blocks};
		strcpy(all[i].name, s->name);
		for (size_t j = 0; j < n_files; j++)
			if (strcmp(files[j].name, s->name) == 0)
				all[i].children = files[j].children;
	}
	*n = v->n_snapshots;
	pthread_mutex_unlock(&v->lock);
	*list = all;
	free(files);
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

/*
 * Something stands where the snapshot's own root is to be: this very one, whose reply was lost;
 * what a deletion left, which gives way (not deleted first: that might meet the root of the next
 * writer); or another writer's.
 */
static int replace(struct s3_volume *v, const struct creation *c, const char *key, const void *data,
	size_t length, struct s3_request *req)
{
	char etag[S3_ETAG_MAX + 1];
	struct s3_root root;
	void *there;
	size_t n;
	int r = s3_volume_get_all(v, key, &there, &n, req);

	if (r)
		return r == -ENOENT ? put(v, key, data, length, NULL, v->deadline, req) : r;
	strcpy(etag, req->etag);
	if (s3_root_decode(there, n, v->super.uuid, &root) == S3_GOOD) {
		bool ours = root.seq == c->snapshot.seq &&
			    memcmp(root.instance, v->instance, S3_UUID) == 0;

		s3_root_free(&root);
		if (ours) {
			free(there);
			return 0;
		}
	}
	free(there);
	r = s3_check_not_fenced(v);
	return r ? r : put(v, key, data, length, etag, v->deadline, req);
}

static int store_own_root(void *opaque, struct s3_volume *v, const void *data, size_t length)
{
	struct creation *c = opaque;
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r;

	root_key(v, c->name, key);
	s3_failpoint(S3_FAIL_SNAP_ROOT_BEFORE);
	c->tried = true;
	r = put(v, key, data, length, NULL, v->deadline, &req);
	if (r == -EEXIST)
		r = replace(v, c, key, data, length, &req);
	if (r)
		return s3_volume_refuse(v, r == -EEXIST ? -EIO : r, "snapshot=%s: %s", c->name,
			req.message[0] ? req.message : strerror(-r));
	s3_failpoint(S3_FAIL_SNAP_ROOT_AFTER);
	c->stored = true;
	return 0;
}

static int create(struct s3_volume *v, void *opaque)
{
	struct creation *c = opaque;
	const struct s3_checkpoint_step step = {
		.change = enter, .root = store_own_root, .opaque = c};
	int r = settle(v);

	if (r == 0 && find(v, c->name, &c->snapshot))
		return s3_volume_refuse(v, -EEXIST,
			"snapshot=%s: volume %s has one of that name; choose another, or delete it",
			c->name, v->name);
	if (r == 0)
		r = s3_checkpoint_with(v, &step);
	if (c->stored) {
		/* It is there, whether the root of the volume could be stored or comes later; but
		 * not if another writer had begun before. */
		if (r == 0)
			s3_failpoint(S3_FAIL_SNAP_LIVE_AFTER);
		r = s3_check_not_fenced(v);
		s3_snapshot_unmark(v, c->name);
		return r == -ESTALE ? -EIO : r;
	}
	if (c->entered && atomic_load(&v->failed) == 0) {
		uint64_t now = s3_log_pause(v);

		s3_snapshot_drop(v, c->snapshot.seq, now);
		s3_log_resume(v);
		if (c->tried)
			s3_snapshot_erase(v, c->name);
	}
	return r;
}

int s3_snapshot_create(struct s3_volume *v, const char *name)
{
	struct creation c = {.name = name};
	int r = check_name(v, name);

	return r ? r : s3_keeper_call(v, create, &c);
}

/* ---- delete -------------------------------------------------------------------------------- */

struct children {
	struct s3_volume *v;
	int64_t now; /* when the mark was put, by the store's clock */
	uint32_t n;
	char first[S3_KEY_MAX + 1]; /* path of the one that was found first */
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

/* Is the clone of a marker missing? Not in doubt. */
static bool clone_is_missing(struct s3_volume *v, const char *path, const uint8_t uuid[S3_UUID])
{
	char key[S3_KEY_MAX + 1];
	struct s3_super super;
	struct s3_request req;
	bool missing = false;
	void *data;
	size_t n;
	int r;

	snprintf(key, sizeof key, "%s/super", path);
	r = s3_volume_get_all(v, key, &data, &n, &req);
	if (r)
		return r == -ENOENT;
	if (s3_super_decode(data, n, &super) == S3_GOOD) {
		missing = memcmp(super.uuid, uuid, S3_UUID) != 0;
		s3_super_free(&super);
	}
	free(data);
	return missing;
}

/* The mark comes first: its number is zero. */
static int count_child(void *opaque, const struct s3_listed *listed)
{
	struct children *c = opaque;
	char path[S3_KEY_MAX + 1];
	struct s3_request req;
	struct s3_name name;
	bool readable;

	if (!s3_name_parse(listed->key + strlen(c->v->base), &name) || name.kind != S3_NAME_CHILD)
		return 0;
	if (memcmp(name.uuid, no_uuid, S3_UUID) == 0) {
		c->now = listed->modified;
		return 0;
	}
	readable = read_marker(c->v, listed->key, path);
	if (readable && c->now - listed->modified > MARKER_STALE &&
		clone_is_missing(c->v, path, name.uuid))
		return s3_volume_delete(c->v, listed->key, &req);
	if (!c->n++)
		strcpy(c->first, readable ? path : listed->key);
	return 0;
}

static int check_childless(struct s3_volume *v, const char *name)
{
	struct children c = {.v = v};
	char prefix[S3_KEY_ROOM];
	struct s3_request req;
	int r;

	snprintf(prefix, sizeof prefix, "snap/%s/child/", name);
	r = s3_volume_list(v, prefix, false, count_child, &c, &req);
	if (r)
		return r == -ENOMEM ? r : s3_volume_refuse(v, r, "%s", req.message);
	if (!c.n)
		return 0;
	return s3_volume_refuse(v, -EBUSY,
		"snapshot=%s: has %" PRIu32 " clone%s, such as %s; delete %s first", name, c.n,
		c.n > 1 ? "s" : "", c.first, c.n > 1 ? "them" : "it");
}

static int drop(void *opaque, struct s3_volume *v, uint64_t seq)
{
	const struct s3_root_snapshot *snapshot = opaque;

	return s3_snapshot_drop(v, snapshot->seq, seq);
}

static int delete (struct s3_volume *v, void *opaque)
{
	const char *name = opaque;
	struct s3_root_snapshot snapshot;
	const struct s3_checkpoint_step step = {.change = drop, .opaque = &snapshot};
	char mark[S3_KEY_MAX + 1];
	struct s3_request req;
	int r;

	if (!find(v, name, &snapshot))
		return refuse_unknown(v, name);
	r = settle(v);
	if (r)
		return r;
	child_key(v->base, name, no_uuid, mark);
	r = s3_volume_put(v, mark, "deleting\n", 9, false, &req);
	if (r)
		return s3_volume_refuse(v, r, "snapshot=%s: %s", name, req.message);
	s3_failpoint(S3_FAIL_SNAP_MARK_AFTER);
	r = check_childless(v, name);
	if (r) {
		s3_snapshot_unmark(v, name);
		return r;
	}
	r = s3_checkpoint_with(v, &step);
	if (r)
		return r; /* the next root is without it, or this writer ends and it stays */
	s3_failpoint(S3_FAIL_SNAP_DELETE_BEFORE);
	/* What stays because of an error goes when the volume is opened next. */
	s3_snapshot_erase(v, name);
	return 0;
}

int s3_snapshot_delete(struct s3_volume *v, const char *name)
{
	int r = check_name(v, name);

	return r ? r : s3_keeper_call(v, delete, (void *)name);
}

/* ---- size ---------------------------------------------------------------------------------- */

static int change_size(void *opaque, struct s3_volume *v, struct s3_super *super)
{
	uint64_t blocks = *(const uint64_t *)opaque;

	(void)v;
	if (super->blocks == blocks)
		return 0;
	super->blocks = blocks;
	return 1;
}

/* Has the super object tell another size: from then on it is the volume's. */
static int store_size(struct s3_volume *v, uint64_t blocks)
{
	int r;

	s3_failpoint(S3_FAIL_RESIZE_SUPER_BEFORE);
	r = s3_volume_change_super(v, change_size, &blocks);
	if (r)
		return r;
	s3_failpoint(S3_FAIL_RESIZE_SUPER_AFTER);
	v->super.blocks = blocks;
	return 0;
}

static int grow(struct s3_volume *v, uint64_t blocks)
{
	int r = store_size(v, blocks);

	if (r == 0)
		r = s3_map_resize(v->map, blocks);
	return r;
}

/*
 * Only of what is empty: a size with a digit missing must not cost any data, and who means it
 * trims first (blkdiscard). The end moves while writes wait; those behind it fail.
 */
static int cut(struct s3_volume *v, uint64_t blocks)
{
	uint64_t before = v->super.blocks;
	bool empty;
	int r;

	s3_log_pause(v);
	empty = s3_map_is_hole(v->map, blocks, before - blocks);
	if (empty)
		s3_map_resize(v->map, blocks);
	s3_log_resume(v);
	if (!empty)
		return s3_volume_refuse(v, -ENOTEMPTY,
			"size=%" PRIu64 ": there is data behind that; trim it first (blkdiscard "
			"--offset %" PRIu64 ")",
			blocks << v->shift, blocks << v->shift);
	/* Emptied for good. */
	r = s3_log_drain(v);
	if (r == 0)
		r = store_size(v, blocks);
	if (r)
		s3_map_resize(v->map, before);
	return r;
}

static int resize(struct s3_volume *v, void *opaque)
{
	uint64_t blocks = *(const uint64_t *)opaque >> v->shift;
	int r = 0;

	if (blocks > v->super.blocks)
		r = grow(v, blocks);
	else if (blocks < v->super.blocks)
		r = cut(v, blocks);
	if (r == 0)
		backend_resized(&v->backend, blocks << v->shift);
	return r;
}

int s3_volume_resize(struct s3_volume *v, uint64_t size)
{
	uint64_t most = S3_BLOCKS_MAX << v->shift;

	if (most > LARGEST)
		most = LARGEST;
	if (size % 4096 || size < SMALLEST || size > most)
		return s3_volume_refuse(v, -EINVAL,
			"size=%" PRIu64 ": give a multiple of 4096 from %" PRIu64 " to %" PRIu64,
			size, SMALLEST, most);
	return s3_keeper_call(v, resize, &size);
}

/* ---- roll back ----------------------------------------------------------------------------- */

static int roll_back(struct s3_volume *v, void *opaque)
{
	const char *name = opaque;
	struct s3_root_snapshot snapshot;
	int r;

	if (!find(v, name, &snapshot))
		return refuse_unknown(v, name);
	if (v->snapshots[v->n_snapshots - 1].seq != snapshot.seq)
		return s3_volume_refuse(v, -EBUSY,
			"snapshot=%s: there are younger ones, the last is %s; delete them first",
			name, v->snapshots[v->n_snapshots - 1].name);
	r = settle(v);
	if (r == 0 && snapshot.blocks > v->super.blocks) {
		r = grow(v, snapshot.blocks);
		if (r == 0)
			backend_resized(&v->backend, snapshot.blocks << v->shift);
	}
	if (r == 0)
		r = s3_log_mark(v, &(struct s3_record){.op = S3_RECORD_RESET, .seq = snapshot.seq});
	/* When that is in the log it has happened: a crash from here on replays it. */
	if (r == 0)
		r = s3_log_drain(v);
	if (r)
		return r;
	s3_failpoint(S3_FAIL_ROLLBACK_LOG_AFTER);
	s3_log_pause(v);
	r = s3_restore(v, snapshot.seq);
	s3_log_resume(v);
	if (r) {
		s3_volume_fail(v, -EIO,
			"it was rolled back to snapshot %s, but that cannot be read now", name);
		return -EIO;
	}
	return s3_checkpoint(v);
}

/* By the collector: the objects that it looks at change. */
static int order_rollback(struct s3_volume *v, void *opaque)
{
	return s3_keeper_call(v, roll_back, opaque);
}

int s3_snapshot_rollback(struct s3_volume *v, const char *name)
{
	int r = check_name(v, name);

	return r ? r : s3_collector_call(v, order_rollback, (void *)name);
}

/* ---- clones -------------------------------------------------------------------------------- */

/*
 * Is the snapshot still there, and neither it nor its volume about to go? To be asked when the
 * marker is stored.
 */
static int check_not_going(struct s3_volume *parent, const char *snapshot)
{
	struct s3_name super = {.kind = S3_NAME_SUPER};
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r;

	child_key(parent->base, snapshot, no_uuid, key);
	r = head(parent, key, &req);
	if (r == 0)
		return s3_volume_refuse(
			parent, -EBUSY, "snapshot=%s: is being deleted; choose another", snapshot);
	if (r == -ENOENT) {
		root_key(parent, snapshot, key);
		r = head(parent, key, &req);
	}
	if (r == 0) {
		s3_volume_key(parent, &super, key);
		r = head(parent, key, &req);
	}
	if (r == -ENOENT)
		return refuse_unknown(parent, snapshot);
	return r ? s3_volume_refuse(parent, r, "%s", req.message) : 0;
}

/* Marks the snapshot as having the clone, and makes that. path: the clone's. */
static int store_clone(struct s3_volume *parent, const char *snapshot, const char *path,
	const uint8_t uuid[S3_UUID], const struct s3_buffer *super)
{
	char marker[S3_KEY_MAX + 1], key[S3_KEY_MAX + 1], text[S3_KEY_MAX + 2];
	struct s3_request req, last;
	int r;

	child_key(parent->base, snapshot, uuid, marker);
	snprintf(text, sizeof text, "%s\n", path);
	snprintf(key, sizeof key, "%s/super", path);
	r = put(parent, marker, text, strlen(text), NULL, CLONE_DEADLINE, &req);
	if (r == -EEXIST && req.retries)
		r = 0; /* ours: nobody else has this number */
	if (r)
		return s3_volume_refuse(parent, r, "%s", req.message);
	s3_failpoint(S3_FAIL_CLONE_CHILD_AFTER);
	r = check_not_going(parent, snapshot);
	if (r == 0) {
		r = put(parent, key, super->data, super->length, NULL, CLONE_DEADLINE, &req);
		if (r == -EEXIST && req.retries && !clone_is_missing(parent, path, uuid))
			r = 0;
		if (r == -EEXIST)
			s3_volume_refuse(parent, r, "clone: %s exists; choose another name", path);
		else if (r)
			s3_volume_refuse(parent, r, "%s", req.message);
	}
	if (r == 0)
		s3_failpoint(S3_FAIL_CLONE_SUPER_AFTER);
	else if (r != -EIO && r != -ESHUTDOWN) /* then it may be there all the same */
		s3_volume_delete(parent, marker, &last);
	return r;
}

/*
 * Gives the clone a key of its own, and the parent's keys, all wrapped: whatever key the parent is
 * given later, the clone needs only that of its own super object.
 */
static int wrap_clone_keys(const struct s3_volume *parent, struct s3_super *super)
{
	size_t bytes = (1 + (size_t)super->n_parents) * S3_KEY_BYTES;
	uint8_t(*keys)[S3_KEY_BYTES] = malloc(bytes);
	int r = keys ? s3_transform_draw_key(keys[0]) : -ENOMEM;

	super->wrapped = malloc(S3_WRAPPED(super->n_parents));
	if (!super->wrapped)
		r = -ENOMEM;
	if (r == 0) {
		memcpy(keys + 1, parent->volume_keys, bytes - S3_KEY_BYTES);
		r = s3_transform_wrap_keys(
			parent->key, super, (const uint8_t(*)[S3_KEY_BYTES])keys, super->wrapped);
	}
	if (r == 0)
		r = s3_transform_key_check(parent->key, super->uuid, super->key_check);
	if (keys)
		OPENSSL_cleanse(keys, bytes);
	free(keys);
	return r;
}

int s3_volume_clone(struct s3_volume *parent, const char *snapshot, const char *new_prefix,
	const char *new_volume)
{
	const struct s3_super *from = &parent->super;
	struct s3_super super = {
		.features = from->features,
		.layout = from->layout,
		.block_shift = from->block_shift,
		.created = (uint64_t)time(NULL),
		.n_parents = from->n_parents + 1,
	};
	char path[272], own[272], start[sizeof path + 1];
	struct s3_root_snapshot found;
	struct s3_buffer out = {0};
	struct s3_request req;
	int r = check_name(parent, snapshot);

	if (r)
		return r;
	if (!s3_name_valid(new_volume) || !s3_key_valid(new_prefix) || strlen(new_prefix) > 200)
		return s3_volume_refuse(parent, -EINVAL,
			"clone: %s/%s: not a prefix and the name of a volume", new_prefix,
			new_volume);
	if (!find(parent, snapshot, &found))
		return refuse_unknown(parent, snapshot);
	if (super.n_parents > S3_PARENTS_MAX)
		return s3_volume_refuse(parent, -EMLINK,
			"clone: volume %s is the %dth of a chain of clones, the last possible; "
			"copy it "
			"into a new volume",
			parent->name, S3_PARENTS_MAX);
	snprintf(path, sizeof path, "%s/%s", new_prefix, new_volume);
	snprintf(start, sizeof start, "%s/", path);
	r = s3_volume_any(parent, start, &req);
	if (r)
		return r < 0 ? s3_volume_refuse(parent, r, "%s", req.message)
			     : s3_volume_refuse(parent, -EEXIST,
				       "clone: the bucket holds %s; choose another name",
				       req.message);
	super.blocks = found.blocks;
	super.parents = calloc(super.n_parents, sizeof *super.parents);
	r = super.parents ? s3_random(super.uuid) : -ENOMEM;
	if (r == 0) {
		struct s3_parent *nearest = &super.parents[0];

		if (from->n_parents)
			memcpy(nearest + 1, from->parents, from->n_parents * sizeof *nearest);
		memcpy(nearest->uuid, from->uuid, S3_UUID);
		nearest->last_seq = found.seq;
		strcpy(nearest->snapshot, found.name);
		strcpy(own, parent->base);
		own[strlen(own) - 1] = '\0';
		nearest->path = own;
		if (super.features & S3_FEATURE_AES)
			r = wrap_clone_keys(parent, &super);
	}
	if (r == 0) {
		s3_super_encode(&super, &out);
		r = out.failed ? -ENOMEM : store_clone(parent, snapshot, path, super.uuid, &out);
	}
	s3_buffer_free(&out);
	free(super.wrapped);
	free(super.parents); /* their paths are not ours */
	return r;
}
