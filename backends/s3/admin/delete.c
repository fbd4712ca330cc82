/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/admin/delete.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/lifecycle/lifecycle.h"

/* Called for each key below a prefix; name is NULL for one that is not of a volume. */
typedef int (*key_fn)(void *opaque, const struct s3_listed *listed, const struct s3_name *name);

struct walk {
	struct s3_volume *v;
	key_fn fn;
	void *opaque;
};

static int meet(void *opaque, const struct s3_listed *listed)
{
	struct walk *w = opaque;
	struct s3_name name;
	bool ours = s3_name_parse(listed->key + strlen(w->v->base), &name);

	return w->fn(w->opaque, listed, ours ? &name : NULL);
}

/* Walks all keys below the volume's name that begin with part. What fn answers has been reported.
 */
static int walk(struct s3_volume *v, const char *part, key_fn fn, void *opaque)
{
	struct walk w = {.v = v, .fn = fn, .opaque = opaque};
	struct s3_request req;
	int r = s3_volume_list(v, part, false, meet, &w, &req);

	return r == req.result && r ? s3_volume_refuse(v, r, "%s", req.message) : r;
}

/* ---- clones ------------------------------------------------------------------------- */

static bool is_marker(const struct s3_name *name)
{
	return name && name->kind == S3_NAME_CHILD && !s3_name_is_mark(name);
}

static int refuse_clones(struct s3_volume *v, const struct s3_name *marker)
{
	return s3_volume_refuse(v, -EBUSY,
		"volume=%s: its snapshot %s has clones, which need its data; delete them first",
		v->name, marker->name);
}

/* Clones that have to be asked about. */
struct clones {
	struct s3_volume *v;
	int64_t now; /* by the store's clock; 0: that is not known */
	bool exists; /* a clone */
};

/* The mark of a clone alone does not tell: its creation may have been interrupted. */
static int meet_clone(void *opaque, const struct s3_listed *listed, const struct s3_name *name)
{
	struct clones *c = opaque;
	enum s3_clone clone;

	if (!is_marker(name))
		return 0;
	clone = s3_snapshot_clone_of(c->v, listed, name->uuid, c->now);
	if (clone == S3_CLONE_NONE)
		return 0;
	c->exists = clone == S3_CLONE_EXISTS;
	if (c->exists)
		return refuse_clones(c->v, name);
	/* Before anything is changed there is nothing by which the store would tell the time. */
	return !c->now ? 0
		       : s3_volume_refuse(c->v, -EBUSY,
				 "volume=%s: a clone of its snapshot %s may just be created; try "
				 "again in ten minutes",
				 c->v->name, name->name);
}

static int meet_time(void *opaque, const struct s3_listed *listed, const struct s3_name *name)
{
	struct clones *c = opaque;

	if (name && name->kind == S3_NAME_DELETED)
		c->now = listed->modified;
	return 0;
}

/* Learns the store's time, which is that of the copy. */
static int learn_time(struct s3_volume *v, struct clones *c)
{
	int r = walk(v, "deleted", meet_time, c);

	return r || c->now ? r
			   : s3_volume_refuse(v, -EBUSY,
				     "volume=%s: another process is deleting it, or has been; try "
				     "again",
				     v->name);
}

int s3_volume_may_remove(struct s3_volume *v, void *opaque)
{
	struct s3_removal *removal = opaque;
	struct clones c = {.v = v};

	if (removal)
		memcpy(removal->uuid, v->super.uuid, S3_UUID);
	return walk(v, "snap/", meet_clone, &c);
}

void s3_volume_note_end(struct s3_volume *v, void *opaque)
{
	struct s3_removal *removal = opaque;

	removal->end = v->applied + 1;
	removal->epoch = v->epoch;
}

static int refuse_opened(struct s3_volume *v)
{
	return s3_volume_refuse(v, -EBUSY,
		"volume=%s: another process has opened it since the deletion did; stop its "
		"server, and delete the volume again",
		v->name);
}

/*
 * Has nobody opened the volume since the deletion closed it? Otherwise a fence stands behind the
 * end of the log, for fences are not collected. What a writer that had been fenced before left
 * there is older. 0, or negative errno, reported.
 */
static int check_closed(struct s3_volume *v, const struct s3_removal *removal)
{
	struct s3_object_header header;
	struct s3_request req;
	enum s3_check check;
	void *data;
	int r = removal->end
			? s3_volume_get_header(v, removal->end + 1, &data, &header, &check, &req)
			: -ENOENT;

	if (r)
		return r == -ENOENT   ? 0
		       : r == -ENOMEM ? r
				      : s3_volume_refuse(v, r, "%s", req.message);
	free(data);
	if (check == S3_OTHER_VOLUME || (check == S3_GOOD && header.epoch < removal->epoch))
		return 0;
	return refuse_opened(v);
}

/* For a deletion that may only finish another one. */
static const uint8_t nobody[S3_UUID];

/* ---- the super object and its copy --------------------------------------------------- */

/* Reads it from under a name. -ENOENT: not there; other errors are reported. */
static int read_copy(struct s3_volume *v, enum s3_name_kind kind, void **data, size_t *length)
{
	struct s3_name name = {.kind = kind};
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	enum s3_check check;
	int r;

	s3_volume_key(v, &name, key);
	r = s3_volume_get_all(v, key, data, length, &req);
	if (r)
		return r == -ENOENT || r == -ENOMEM ? r : s3_volume_refuse(v, r, "%s", req.message);
	check = s3_super_decode(*data, *length, &v->super);
	if (check == S3_GOOD)
		return 0;
	free(*data);
	r = check == S3_NO_MEMORY ? -ENOMEM : -EINVAL;
	s3_volume_refuse(
		v, r, "volume=%s: %s %s; nothing was deleted", v->name, key, s3_check_text(check));
	return r;
}

/*
 * Is a copy there, and still this volume's? Another process may have ended the deletion while this
 * one was stopped, and somebody made a volume of the same name. 0: it is; -ENOENT: there is none;
 * -ESTALE: another volume's; other errors are reported.
 */
static int look_at_copy(struct s3_volume *v, enum s3_name_kind kind)
{
	struct s3_name name = {.kind = kind};
	char key[S3_KEY_MAX + 1];
	struct s3_super super;
	struct s3_request req;
	enum s3_check check;
	size_t length;
	void *data;
	int r;

	s3_volume_key(v, &name, key);
	r = s3_volume_get_all(v, key, &data, &length, &req);
	if (r)
		return r == -ENOENT || r == -ENOMEM ? r : s3_volume_refuse(v, r, "%s", req.message);
	check = s3_super_decode(data, length, &super);
	free(data);
	if (check != S3_GOOD)
		return check == S3_NO_MEMORY ? -ENOMEM
					     : s3_volume_refuse(v, -EIO, "volume=%s: %s %s",
						       v->name, key, s3_check_text(check));
	r = memcmp(super.uuid, v->super.uuid, S3_UUID) ? -ESTALE : 0;
	s3_super_free(&super);
	return r;
}

static int refuse_deleted(struct s3_volume *v)
{
	return s3_volume_refuse(
		v, -ENOENT, "volume=%s: another process has deleted it meanwhile", v->name);
}

static int put_copy(struct s3_volume *v, enum s3_name_kind kind, const void *data, size_t length)
{
	struct s3_name name = {.kind = kind};
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r;

	s3_volume_key(v, &name, key);
	r = s3_volume_put(v, key, data, length, false, &req);
	return r ? s3_volume_refuse(v, r, "%s", req.message) : 0;
}

static int delete_key(struct s3_volume *v, const char *key)
{
	struct s3_request req;
	int r = s3_volume_delete(v, key, &req);

	return r ? s3_volume_refuse(v, r, "%s", req.message) : 0;
}

static int delete_name(struct s3_volume *v, enum s3_name_kind kind)
{
	struct s3_name name = {.kind = kind};
	char key[S3_KEY_MAX + 1];

	s3_volume_key(v, &name, key);
	return delete_key(v, key);
}

/* With the copy there nobody gives the name to another volume. Was that done before? */
static int check_super(struct s3_volume *v)
{
	int r = look_at_copy(v, S3_NAME_SUPER);

	if (r == -ESTALE)
		return refuse_deleted(v);
	return r == -ENOENT ? 0 : r;
}

static int refuse_unseen(struct s3_volume *v)
{
	return s3_volume_refuse(v, -EBUSY,
		"volume=%s: exists, but was not opened before its deletion; nothing was deleted",
		v->name);
}

/*
 * From a copy back to a volume. The copy stays, as with every refusal: another deletion may rely
 * on it by the time that its DELETE arrives. Garbage collection deletes it later, except with
 * layout=direct, which has none.
 */
static void remake(struct s3_volume *v, const void *data, size_t length)
{
	put_copy(v, S3_NAME_SUPER, data, length);
}

static int meet_remains(void *opaque, const struct s3_listed *listed, const struct s3_name *name)
{
	const bool *all = opaque;

	(void)listed;
	return name && (*all || name->kind != S3_NAME_PROBE);
}

/*
 * There is neither the super object nor its copy: a server that had not noticed the deletion may
 * have stored something after its end. A copy of its own makes that the rest of a volume.
 */
static int adopt_remains(struct s3_volume *v, const struct s3_removal *removal)
{
	struct s3_super super = {.layout = S3_LAYOUT_LOG, .block_shift = 12, .blocks = 1};
	struct s3_buffer out = {0};
	bool all = removal->remains; /* a reserve may be all that came late */
	int r = walk(v, "", meet_remains, &all);

	if (r < 0)
		return r;
	if (r == 0)
		return s3_volume_refuse(
			v, -ENOENT, "volume=%s: not found; correct the name or prefix", v->name);
	if (!removal->remains)
		return s3_volume_refuse(v, -ENOENT,
			"volume=%s: is no volume, but the bucket has objects that a server stored "
			"after its deletion; make sure that no server has it, and use --take-over "
			"to delete them",
			v->name);
	r = s3_random(super.uuid);
	if (r)
		return r;
	s3_super_encode(&super, &out);
	r = out.failed ? -ENOMEM : put_copy(v, S3_NAME_DELETED, out.data, out.length);
	s3_buffer_free(&out);
	return r;
}

/*
 * Goes on with a deletion that was interrupted. It may have ended before it looked for a clone that
 * was made in the last moment; a marker alone does not tell, since after that all else may be gone.
 */
static int unmake_again(struct s3_volume *v, const struct s3_removal *removal)
{
	struct clones i = {.v = v};
	size_t length;
	void *data;
	int r = read_copy(v, S3_NAME_DELETED, &data, &length);

	if (r == -ENOENT) {
		r = adopt_remains(v, removal);
		if (r)
			return r;
		r = read_copy(v, S3_NAME_DELETED, &data, &length);
	}
	if (r)
		return r == -ENOENT ? refuse_deleted(v) : r;
	if (removal->only && memcmp(removal->uuid, nobody, S3_UUID) != 0 &&
		memcmp(removal->uuid, v->super.uuid, S3_UUID) != 0) {
		free(data);
		return refuse_deleted(v);
	}
	r = put_copy(v, S3_NAME_DELETED, data, length); /* its time is the store's */
	if (r == 0)
		r = check_super(v);
	if (r == 0)
		r = learn_time(v, &i);
	if (r == 0)
		r = walk(v, "snap/", meet_clone, &i);
	if (i.exists)
		remake(v, data, length);
	free(data);
	return r;
}

/* Has the volume no clones, and nobody opened it? 0, or negative errno, reported. */
static int check_unused(struct s3_volume *v, const struct s3_removal *removal, struct clones *c)
{
	int r = walk(v, "snap/", meet_clone, c);

	return r ? r : check_closed(v, removal);
}

/* From a volume to what is left of one. */
static int unmake(struct s3_volume *v, struct s3_removal *removal)
{
	struct clones c = {.v = v};
	size_t length;
	void *data;
	int r = read_copy(v, S3_NAME_SUPER, &data, &length);

	if (r == -ENOENT)
		return unmake_again(v, removal);
	if (r)
		return r;
	if (removal->only && memcmp(removal->uuid, v->super.uuid, S3_UUID) != 0) {
		free(data);
		if (memcmp(removal->uuid, nobody, S3_UUID) != 0)
			return refuse_deleted(v);
		removal->unseen = true;
		return refuse_unseen(v);
	}
	/* The deletion has opened it, but was fenced before it could close it. */
	if (removal->only && !removal->end && v->super.layout == S3_LAYOUT_LOG) {
		free(data);
		return refuse_opened(v);
	}
	r = walk(v, "snap/", meet_clone, &c);
	if (r == 0)
		r = put_copy(v, S3_NAME_DELETED, data, length);
	if (r == 0)
		r = check_super(v);
	/* The time of the copy is the store's. */
	if (r == 0)
		r = learn_time(v, &c);
	if (r == 0)
		r = check_unused(v, removal, &c);
	if (r == 0)
		r = delete_name(v, S3_NAME_SUPER);
	/*
	 * A clone that was made in the last moment keeps its parent, as one that may be; and so
	 * does a server, which misses the super object if its fence comes after this.
	 */
	if (r == 0 && (r = check_unused(v, removal, &c)) == -EBUSY)
		remake(v, data, length);
	free(data);
	return r;
}

/* ---- everything else ------------------------------------------------------------------ */

struct sweep {
	struct s3_volume *v;
	struct s3_removal *removal;
	uint64_t total;
	size_t n;
	char (*text)[S3_KEY_MAX + 1]; /* S3_DELETE_MAX */
	const char *keys[S3_DELETE_MAX];
	int results[S3_DELETE_MAX];
};

static int count_key(void *opaque, const struct s3_listed *listed, const struct s3_name *name)
{
	struct sweep *s = opaque;

	(void)listed;
	s->total += name != NULL;
	return 0;
}

/*
 * Is there no volume of that name? As long as the copy is there it is given to no other one; but a
 * creation that looked before the copy was put may go on, and another deletion may have put the
 * volume back. What is about to be deleted was listed before, so that a new volume's super object
 * shows by now if anything of it was.
 */
static int check_name(struct s3_volume *v)
{
	int r = look_at_copy(v, S3_NAME_SUPER);

	if (r == 0)
		return s3_volume_refuse(v, -EBUSY,
			"volume=%s: another process has put it back, because it has clones or is "
			"being changed; try again",
			v->name);
	if (r == -ESTALE)
		return refuse_deleted(v);
	if (r != -ENOENT)
		return r;
	/* Another deletion has ended: what is there now may be of a volume whose super object we
	 * have deleted. */
	r = look_at_copy(v, S3_NAME_DELETED);
	return r == -ESTALE || r == -ENOENT ? refuse_deleted(v) : r;
}

static int delete_group(struct sweep *s)
{
	struct s3_volume *v = s->v;
	struct s3_request req = {
		.op = S3_DELETE_MANY,
		.pool = S3_POOL_BACKGROUND,
		.keys = s->keys,
		.key_results = s->results,
		.n_keys = s->n,
		.retry_deadline = v->deadline,
	};
	int r = s->n ? check_name(v) : 0;

	if (r)
		return r;
	r = s->n ? s3_store_call(v->store, &req) : 0;
	if (r)
		return s3_volume_refuse(v, r, "%s", req.message);
	s->removal->deleted += s->n;
	s->n = 0;
	if (s->removal->progress)
		s->removal->progress(s->removal->opaque, s->removal->deleted, s->total);
	return 0;
}

static int sweep_key(void *opaque, const struct s3_listed *listed, const struct s3_name *name)
{
	struct sweep *s = opaque;

	if (!name)
		s->removal->foreign++;
	if (!name || name->kind == S3_NAME_DELETED)
		return 0;
	snprintf(s->text[s->n], sizeof *s->text, "%s", listed->key);
	s->keys[s->n] = s->text[s->n];
	return ++s->n == S3_DELETE_MAX ? delete_group(s) : 0;
}

static int sweep(struct s3_volume *v, struct s3_removal *removal)
{
	struct sweep *s = calloc(1, sizeof *s);
	int r = -ENOMEM;

	if (s)
		s->text = calloc(S3_DELETE_MAX, sizeof *s->text);
	if (s && s->text) {
		s->v = v;
		s->removal = removal;
		r = walk(v, "", count_key, s);
		if (r == 0)
			r = walk(v, "", sweep_key, s);
		if (r == 0)
			r = delete_group(s);
	}
	if (s)
		free(s->text);
	free(s);
	return r;
}

/* The parent's snapshot is no longer needed by this clone. */
static int leave_parent(struct s3_volume *v)
{
	const struct s3_parent *parent = v->super.parents;
	struct s3_name name = {.kind = S3_NAME_CHILD};
	char key[S3_KEY_MAX + 1];
	int n;

	if (v->super.n_parents == 0)
		return 0;
	strcpy(name.name, parent->snapshot);
	memcpy(name.uuid, v->super.uuid, S3_UUID);
	n = snprintf(key, sizeof key, "%s/", parent->path);
	if (n + S3_KEY_ROOM > (int)sizeof key)
		return -ENAMETOOLONG;
	s3_name_format(&name, key + n);
	return delete_key(v, key);
}

int s3_volume_remove(
	const struct s3_config *config, const struct backend_host *host, struct s3_removal *removal)
{
	struct s3_volume *v;
	int r = s3_volume_attach(config, host, &v);

	if (r)
		return r;
	r = unmake(v, removal);
	if (r == 0)
		r = sweep(v, removal);
	if (r == 0)
		r = leave_parent(v);
	if (r == 0)
		r = delete_name(v, S3_NAME_DELETED);
	s3_volume_detach(v);
	return r;
}
