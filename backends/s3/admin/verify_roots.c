/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/admin/verify_roots.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/recovery/recovery.h"

/* Bytes may have been changed on the way: so often a root is read before it counts as damaged. */
#define ATTEMPTS 3

#define LOST "is missing or damaged"

static void parent_base(const struct s3_volume *v, char base[S3_KEY_MAX + 1])
{
	snprintf(base, S3_KEY_MAX + 1, "%s/", v->super.parents[0].path);
}

void s3_verify_part_key(const struct s3_volume *v, const struct s3_verify_part *part, char *key)
{
	if (part->parent)
		parent_base(v, key);
	else
		strcpy(key, v->base);
	s3_name_format(&part->part.name, key + strlen(key));
}

static int by_name(const void *a, const void *b)
{
	const struct s3_verify_part *x = a, *y = b;
	const struct s3_name *m = &x->part.name, *n = &y->part.name;

	if (x->parent != y->parent)
		return x->parent - y->parent;
	if (m->kind != n->kind)
		return (m->kind > n->kind) - (m->kind < n->kind);
	if (m->number != n->number)
		return (m->number > n->number) - (m->number < n->number);
	return (m->region > n->region) - (m->region < n->region);
}

/* Parts of roots read before are sorted: the first ones. */
struct entry {
	struct s3_verify_parts *parts;
	size_t sorted;
	const char *snapshot; /* or NULL */
	bool own, parent;
};

static int enter(struct entry *e, const struct s3_root_part *root_part)
{
	struct s3_verify_part part = {.part = *root_part, .own = e->own, .parent = e->parent};
	struct s3_verify_parts *parts = e->parts;
	const struct s3_verify_part *known =
		e->sorted ? bsearch(&part, parts->all, e->sorted, sizeof part, by_name) : NULL;

	if (known && known->damaged && e->snapshot)
		parts->again(parts->opaque, known, e->snapshot);
	if (known)
		return 0;
	if (parts->n == parts->room) {
		size_t room = parts->room ? 2 * parts->room : 256;
		struct s3_verify_part *more = realloc(parts->all, room * sizeof *more);

		if (!more)
			return -ENOMEM;
		parts->all = more;
		parts->room = room;
	}
	parts->all[parts->n++] = part;
	return 0;
}

/* Enters what a root names. */
static int enter_root(struct entry *e, const struct s3_root *root)
{
	struct s3_verify_parts *parts = e->parts;
	int r = 0;

	parts->roots++;
	e->sorted = parts->n;
	for (uint32_t i = 0; r == 0 && root->base == root->seq && i < root->n_regions; i++) {
		const struct s3_root_region *region = &root->regions[i];

		r = enter(e, &(struct s3_root_part){
				     .name = {.kind = S3_NAME_REGION,
					     .number = region->seq,
					     .region = region->region},
				     .bytes = region->bytes,
				     .crc = region->crc,
			     });
	}
	for (uint32_t i = 0; r == 0 && i < root->n_summaries; i++) {
		const struct s3_root_summary *summary = &root->summaries[i];

		r = enter(e, &(struct s3_root_part){
				     .name = {.kind = S3_NAME_SUMMARY, .number = summary->last},
				     .bytes = summary->bytes,
				     .crc = summary->crc,
			     });
	}
	if (parts->n)
		qsort(parts->all, parts->n, sizeof *parts->all, by_name);
	return r;
}

/* The volume's own root at seq. */
static int add_own(struct s3_volume *v, struct s3_verify_parts *parts, uint64_t seq)
{
	struct s3_name name = {.kind = S3_NAME_ROOT, .number = seq};
	struct entry e = {.parts = parts, .own = true};
	char key[S3_KEY_MAX + 1];
	struct s3_root root;
	void *data;
	int r = -ENOENT;

	for (unsigned i = 0; i < ATTEMPTS && r == -ENOENT; i++)
		r = s3_root_read(v, v->base, v->super.uuid, &name, &data, &root);
	if (r == -ENOENT) {
		s3_volume_key(v, &name, key);
		return parts->lost(parts->opaque, key, LOST, true);
	}
	if (r)
		return r;
	r = enter_root(&e, &root);
	s3_root_free(&root);
	free(data);
	return r;
}

/* The root of a snapshot of this volume or of its parent. */
static int add_snapshot(struct s3_volume *v, struct entry *e, const char *base, const uint8_t *uuid,
	const char *snapshot, uint64_t seq)
{
	struct s3_name name = {.kind = S3_NAME_SNAPSHOT, .number = seq};
	struct s3_verify_parts *parts = e->parts;
	char key[S3_KEY_MAX + 1];
	struct s3_root root;
	void *data;
	int r = -ENOENT;

	for (unsigned i = 0; i < ATTEMPTS && r == -ENOENT; i++)
		r = s3_snapshot_read(v, base, uuid, snapshot, seq, &data, &root);
	if (r == -ENOENT) {
		strcpy(name.name, snapshot);
		strcpy(key, base);
		s3_name_format(&name, key + strlen(key));
		return parts->lost(parts->opaque, key, LOST, e->own);
	}
	if (r)
		return r;
	r = enter_root(e, &root);
	s3_root_free(&root);
	free(data);
	return r;
}

int s3_verify_own_parts(struct s3_volume *v, struct s3_verify_parts *parts)
{
	int r = 0;

	if (v->of_snapshot)
		return 0;
	/* The open has passed one over that it could not use. */
	if (v->newest_root > v->checkpoint) {
		struct s3_name name = {.kind = S3_NAME_ROOT, .number = v->newest_root};
		char key[S3_KEY_MAX + 1];

		s3_volume_key(v, &name, key);
		r = parts->lost(parts->opaque, key, "or a part of it is missing or damaged", true);
	}
	if (r == 0 && v->checkpoint)
		r = add_own(v, parts, v->checkpoint);
	if (r == 0 && v->full && v->full != v->checkpoint)
		r = add_own(v, parts, v->full);
	if (r == 0 && !v->full && !v->rolled_back && v->super.n_parents) {
		const struct s3_parent *parent = &v->super.parents[0];
		struct entry e = {.parts = parts, .own = true, .parent = true};
		char base[S3_KEY_MAX + 1];

		parent_base(v, base);
		r = add_snapshot(v, &e, base, parent->uuid, parent->snapshot, parent->last_seq);
	}
	return r;
}

int s3_verify_snapshot_parts(
	struct s3_volume *v, struct s3_verify_parts *parts, const struct s3_root_snapshot *snapshot)
{
	struct entry e = {.parts = parts, .snapshot = snapshot->name};

	return add_snapshot(v, &e, v->base, v->super.uuid, snapshot->name, snapshot->seq);
}
