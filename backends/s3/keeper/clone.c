/* SPDX-License-Identifier: BSD-3-Clause */
/* Clones: a new volume that begins as a snapshot is. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/crypto.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/client/client.h"
#include "backends/s3/client/names.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/snapstore.h"
#include "backends/s3/core/super.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/keeper/snapshot_internal.h"
#include "backends/s3/recovery/recovery.h"

/* Seconds after which the request for a clone's marker, and that for the clone, fails. */
#define CLONE_DEADLINE 60
/* Seconds, by the store's clock, within which a clone comes into being after its marker... */
#define CLONE_LATEST 300

/*
 * Is the snapshot still there, and neither it nor its volume about to go? To be asked when the
 * marker is stored.
 */
static int check_not_going(struct s3_volume *parent, const struct s3_root_snapshot *snapshot)
{
	struct s3_name super = {.kind = S3_NAME_SUPER};
	char key[S3_KEY_MAX + 1], prefix[S3_KEY_ROOM];
	struct s3_request req;
	uint64_t stored;
	int r;

	s3_snapshot_marks_prefix(snapshot->name, prefix);
	snprintf(key, sizeof key, "%s%s", parent->base, prefix);
	r = s3_volume_any(parent, key, &req);
	if (r == 1)
		return s3_volume_refuse(parent, -EBUSY,
			"snapshot=%s: is being created or deleted; choose another, or try again",
			snapshot->name);
	/*
	 * A writer that has taken over since need not have it: its mark is deleted when there is a
	 * root of the new writer, which shows whether it does.
	 */
	if (r == 0) {
		r = s3_snapshot_find_stored(parent, snapshot->name, &stored);
		if (r)
			return r;
		if (stored != snapshot->seq)
			return s3_snapshot_refuse_unknown(parent, snapshot->name);
	}
	if (r == 0) {
		s3_snapshot_root_key(parent, snapshot->name, snapshot->seq, key);
		r = s3_volume_head(parent, key, &req);
	}
	if (r == -ENOENT) {
		s3_snapshot_root_key(parent, snapshot->name, 0, key);
		r = s3_volume_head(parent, key, &req);
	}
	if (r == 0) {
		s3_volume_key(parent, &super, key);
		r = s3_volume_head(parent, key, &req);
	}
	if (r == -ENOENT)
		return s3_snapshot_refuse_unknown(parent, snapshot->name);
	return r ? s3_volume_refuse(parent, r, "%s", req.message) : 0;
}

/* Has a writer opened the clone? 1, 0, or negative errno. */
static int is_opened(struct s3_volume *parent, const char *path)
{
	char log[S3_KEY_MAX + 1];
	struct s3_request req;

	snprintf(log, sizeof log, "%s/log/", path);
	return s3_volume_any(parent, log, &req);
}

/*
 * Deletes the clone's super object, unless a writer has opened the clone: 1. One whose fence comes
 * too late to be seen misses the super object before it stores anything. 0, 1, or negative errno,
 * also if there is none, or another volume's.
 */
static int take_back(struct s3_volume *parent, const char *path, const char *key,
	const uint8_t uuid[S3_UUID], const struct s3_buffer *super)
{
	struct s3_request req;
	uint32_t epoch = 0;
	int r = s3_super_look(parent, key, uuid, &epoch), opened;

	if (r == 0)
		r = epoch ? 1 : is_opened(parent, path);
	if (r)
		return r;
	r = s3_volume_delete(parent, key, &req);
	opened = r ? 0 : is_opened(parent, path);
	if (opened)
		r = s3_snapshot_put(
			parent, key, super->data, super->length, NULL, CLONE_DEADLINE, &req);
	return r ? r : opened;
}

/*
 * Did the clone come so long after its marker, since this process or the network had stopped, that
 * a deletion of the snapshot may have found the marker alone and gone on? Then it is taken back,
 * unless the name has been given to another volume since, or a writer has the clone already. 0, or
 * negative errno, reported.
 */
static int check_in_time(struct s3_volume *parent, const char *marker, const char *path,
	const char *key, const uint8_t uuid[S3_UUID], const struct s3_buffer *super)
{
	int64_t marked, made;
	struct s3_request req;
	bool there;
	int r = s3_volume_modified(parent, marker, &marked, &req);

	there = r == 0;
	if (r == 0)
		r = s3_volume_modified(parent, key, &made, &req);
	if (r == 0 && made - marked <= CLONE_LATEST)
		return 0;
	if (r && r != -ENOENT)
		return s3_volume_refuse(parent, r, "%s", req.message);
	r = take_back(parent, path, key, uuid, super);
	/* One that a writer has changed is younger than the clone. */
	if (r == 1)
		return there ? 0
			     : s3_volume_refuse(parent, -EIO,
				       "clone: %s lacks its marker, and somebody has opened it; "
				       "copy what it holds into another volume, and delete it",
				       key);
	/* A deletion that had no answer may yet meet the next one of that name. */
	if (r == 0 || r == -ENOENT || r == -ESTALE)
		return s3_volume_refuse(parent, -EIO,
			"clone: more than %d s passed while it was made, in which its snapshot "
			"may have been deleted; it was taken back; choose another name, or wait "
			"ten minutes",
			CLONE_LATEST);
	return s3_volume_refuse(parent, -EIO,
		"clone: %s may lack its marker, and could not be taken back: %s; delete "
		"it with userblk-s3 delete, and try again",
		key, strerror(-r));
}

/* Marks the snapshot as having the clone, and makes that. path: the clone's. */
static int store_clone(struct s3_volume *parent, const struct s3_root_snapshot *snapshot,
	const char *path, const uint8_t uuid[S3_UUID], const struct s3_buffer *super)
{
	char marker[S3_KEY_MAX + 1], key[S3_KEY_MAX + 1], text[S3_KEY_MAX + 2];
	struct s3_request req;
	int r;

	s3_snapshot_child_key(parent->base, snapshot->name, uuid, marker);
	snprintf(text, sizeof text, "%s\n", path);
	snprintf(key, sizeof key, "%s/super", path);
	r = s3_snapshot_put(parent, marker, text, strlen(text), NULL, CLONE_DEADLINE, &req);
	/* Ours: nobody else has this number. A proxy, too, sends again what had no answer. */
	if (r && r != -EEXIST)
		return s3_volume_refuse(parent, r, "%s", req.message);
	s3_failpoint(S3_FAIL_CLONE_CHILD_AFTER);
	r = check_not_going(parent, snapshot);
	if (r) {
		s3_volume_delete(parent, marker, &req);
		return r;
	}
	r = s3_snapshot_put(parent, key, super->data, super->length, NULL, CLONE_DEADLINE, &req);
	if (r == -EEXIST) {
		r = s3_super_look(parent, key, uuid, NULL);
		if (r)
			r = r == -ESTALE ? -EEXIST : -EIO;
	}
	if (r == 0) {
		s3_failpoint(S3_FAIL_CLONE_SUPER_AFTER);
		return check_in_time(parent, marker, path, key, uuid, super);
	}
	/* The marker stays: an attempt without an answer, also one of a proxy's, may yet arrive. */
	if (r != -EEXIST)
		return s3_volume_refuse(parent, r, "%s", req.message);
	if (!req.retries)
		s3_volume_delete(parent, marker, &req);
	return s3_volume_refuse(parent, r, "clone: %s exists; choose another name", path);
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
		.numbered = true,
		.n_parents = from->n_parents + 1,
	};
	char path[272], own[272], start[sizeof path + 1];
	struct s3_root_snapshot found;
	struct s3_buffer out = {0};
	struct s3_request req;
	int r = s3_snapshot_check_name(parent, snapshot);

	if (r)
		return r;
	if (!s3_name_valid(new_volume) || !s3_key_valid(new_prefix) || strlen(new_prefix) > 200)
		return s3_volume_refuse(parent, -EINVAL,
			"clone: %s/%s: not a prefix and the name of a volume", new_prefix,
			new_volume);
	if (!s3_snapshot_find(parent, snapshot, &found))
		return s3_snapshot_refuse_unknown(parent, snapshot);
	r = s3_snapshot_check_space(parent, snapshot);
	if (r)
		return r;
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
				       "clone: the bucket holds objects below %s/, such as %s; "
				       "choose "
				       "another name",
				       path, req.message);
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
		r = out.failed ? -ENOMEM : store_clone(parent, &found, path, super.uuid, &out);
	}
	s3_buffer_free(&out);
	free(super.wrapped);
	free(super.parents); /* their paths are not ours */
	return r;
}
