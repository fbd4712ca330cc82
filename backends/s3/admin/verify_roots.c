/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/admin/verify_roots.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/snapstore.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/recovery/recovery.h"

/* Bytes may have been changed on the way: so often a root is read before it counts as damaged. */
#define ATTEMPTS 3

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

static int add_part(struct s3_verify_parts *parts, const struct s3_verify_part *part)
{
	if (parts->n == parts->room) {
		size_t room = parts->room ? 2 * parts->room : 256;
		struct s3_verify_part *more = realloc(parts->all, room * sizeof *more);

		if (!more)
			return -ENOMEM;
		parts->all = more;
		parts->room = room;
	}
	parts->all[parts->n++] = *part;
	return 0;
}

/* Enters what a root names. */
static int add_root(
	struct s3_verify_parts *parts, const struct s3_root *root, bool own, bool of_parent)
{
	struct s3_verify_part part = {.own = own, .parent = of_parent};
	int r = 0;

	parts->roots++;

	for (uint32_t i = 0; r == 0 && root->base == root->seq && i < root->n_regions; i++) {
		const struct s3_root_region *region = &root->regions[i];

		part.part = (struct s3_root_part){
			.name = {.kind = S3_NAME_REGION,
				.number = region->seq,
				.region = region->region},
			.bytes = region->bytes,
			.crc = region->crc,
		};
		r = add_part(parts, &part);
	}
	for (uint32_t i = 0; r == 0 && i < root->n_summaries; i++) {
		const struct s3_root_summary *summary = &root->summaries[i];

		part.part = (struct s3_root_part){
			.name = {.kind = S3_NAME_SUMMARY, .number = summary->last},
			.bytes = summary->bytes,
			.crc = summary->crc,
		};
		r = add_part(parts, &part);
	}
	return r;
}

/* The volume's own root at seq. */
static int add_own(struct s3_volume *v, struct s3_verify_parts *parts, uint64_t seq)
{
	struct s3_name name = {.kind = S3_NAME_ROOT, .number = seq};
	char key[S3_KEY_MAX + 1];
	struct s3_root root;
	void *data;
	int r = -ENOENT;

	for (unsigned i = 0; i < ATTEMPTS && r == -ENOENT; i++)
		r = s3_root_read(v, v->base, v->super.uuid, &name, &data, &root);
	if (r == -ENOENT) {
		s3_volume_key(v, &name, key);
		return parts->lost(parts->opaque, key, true);
	}
	if (r)
		return r;
	r = add_root(parts, &root, true, false);
	s3_root_free(&root);
	free(data);
	return r;
}

/* The root of a snapshot of a volume, that is this one or its parent. */
static int add_snapshot(struct s3_volume *v, struct s3_verify_parts *parts, const char *base,
	const uint8_t *uuid, const char *snapshot, uint64_t seq)
{
	struct s3_name name = {.kind = S3_NAME_SNAPSHOT, .number = seq};
	bool of_parent = uuid != v->super.uuid;
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
		return parts->lost(parts->opaque, key, of_parent);
	}
	if (r)
		return r;
	r = add_root(parts, &root, of_parent, of_parent);
	s3_root_free(&root);
	free(data);
	return r;
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

/* Snapshots share regions with each other and with the newest root. */
static void remove_duplicates(struct s3_verify_parts *parts)
{
	size_t n = 0;

	if (parts->n)
		qsort(parts->all, parts->n, sizeof *parts->all, by_name);
	for (size_t i = 0; i < parts->n; i++)
		if (n && by_name(&parts->all[n - 1], &parts->all[i]) == 0)
			parts->all[n - 1].own |= parts->all[i].own;
		else
			parts->all[n++] = parts->all[i];
	parts->n = n;
}

int s3_verify_parts_collect(struct s3_volume *v, struct s3_verify_parts *parts)
{
	/* Open as a snapshot it knows those before it, which may have been deleted since. */
	bool snapshot = v->of_snapshot;
	char base[S3_KEY_MAX + 1];
	int r = 0;

	if (!snapshot && v->checkpoint)
		r = add_own(v, parts, v->checkpoint);
	if (r == 0 && v->full && v->full != v->checkpoint)
		r = add_own(v, parts, v->full);
	if (r == 0 && !snapshot && !v->full && !v->rolled_back && v->super.n_parents) {
		const struct s3_parent *parent = &v->super.parents[0];

		parent_base(v, base);
		r = add_snapshot(v, parts, base, parent->uuid, parent->snapshot, parent->last_seq);
	}
	for (uint32_t i = snapshot ? v->n_snapshots - 1 : 0; r == 0 && i < v->n_snapshots; i++)
		r = add_snapshot(v, parts, v->base, v->super.uuid, v->snapshots[i].name,
			v->snapshots[i].seq);
	if (r == 0)
		remove_duplicates(parts);
	return r;
}
