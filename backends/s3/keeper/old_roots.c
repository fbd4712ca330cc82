/* SPDX-License-Identifier: BSD-3-Clause */
/* The roots, and parts of them, that are no longer needed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/clock.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/internal.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/recovery/recovery.h"

/* What cannot be deleted yet is looked at again after that. */
#define PRUNE_PAUSE_NS UINT64_C(1000000000)

static bool names_region(
	const struct s3_root_region *regions, uint32_t n, const struct s3_name *name)
{
	for (uint32_t i = 0; i < n; i++)
		if (regions[i].region == name->region && regions[i].seq == name->number)
			return true;
	return false;
}

static bool snapshot_names_region(const struct s3_kept *kept, const struct s3_name *name)
{
	for (; kept; kept = kept->next)
		if ((kept->unknown && name->number <= kept->seq) ||
			names_region(kept->regions, kept->n_regions, name))
			return true;
	return false;
}

static bool needed(const struct s3_volume *v, const struct s3_prune *k, const struct s3_name *name)
{
	/* Not yet a part of anything, or another writer's. */
	if (name->number > k->newest)
		return true;
	switch (name->kind) {
	case S3_NAME_ROOT:
		return name->number == k->newest || name->number == k->newest_full ||
		       name->number == k->previous || name->number == k->previous_full;
	case S3_NAME_SUMMARY:
		return name->number > k->previous_full;
	case S3_NAME_REGION:
		return names_region(k->regions, k->n_regions, name) ||
		       names_region(k->previous_regions, k->n_previous_regions, name) ||
		       snapshot_names_region(v->kept, name);
	default:
		return true;
	}
}

static bool is_kept(const struct s3_volume *v, uint64_t seq)
{
	for (const struct s3_kept *kept = v->kept; kept; kept = kept->next)
		if (kept->seq == seq)
			return true;
	return false;
}

/* Reads which regions a snapshot needs. */
static int keep_snapshot(struct s3_volume *v, const struct s3_root_snapshot *snapshot)
{
	struct s3_kept *kept = calloc(1, sizeof *kept);
	struct s3_root root;
	void *data;
	int r;

	if (!kept)
		return -ENOMEM;
	kept->seq = snapshot->seq;
	r = s3_snapshot_read(
		v, v->base, v->super.uuid, snapshot->name, snapshot->seq, &data, &root);
	if (r && r != -ENOENT) {
		free(kept);
		return r;
	}
	kept->unknown = r != 0;
	if (r == 0) {
		kept->regions = root.regions;
		kept->n_regions = root.n_regions;
		root.regions = NULL;
		s3_root_free(&root);
		free(data);
	}
	kept->next = v->kept;
	v->kept = kept;
	return 0;
}

static bool is_snapshot(const struct s3_volume *v, uint64_t seq)
{
	for (uint32_t i = 0; i < v->n_snapshots; i++)
		if (v->snapshots[i].seq == seq)
			return true;
	return false;
}

/* Makes v->kept what the snapshots need. */
static int keep_snapshots(struct s3_volume *v)
{
	struct s3_kept **link = &v->kept;
	int r = 0;

	while (*link) {
		struct s3_kept *kept = *link;

		if (is_snapshot(v, kept->seq)) {
			link = &kept->next;
			continue;
		}
		*link = kept->next;
		free(kept->regions);
		free(kept);
	}
	for (uint32_t i = 0; r == 0 && i < v->n_snapshots; i++)
		if (!is_kept(v, v->snapshots[i].seq))
			r = keep_snapshot(v, &v->snapshots[i]);
	return r;
}

struct pruning {
	struct s3_volume *v;
	const struct s3_prune *prune;
};

static int delete_unless_needed(void *opaque, const struct s3_listed *listed)
{
	const struct pruning *p = opaque;
	struct s3_request req;
	struct s3_name name;

	if (!s3_name_parse(listed->key + strlen(p->v->base), &name) ||
		needed(p->v, p->prune, &name))
		return 0;
	return s3_volume_delete(p->v, listed->key, &req);
}

void s3_prune_drop(struct s3_prune *prune)
{
	if (prune) {
		free(prune->regions);
		free(prune->previous_regions);
	}
	free(prune);
}

void s3_prune_free(struct s3_volume *v)
{
	s3_prune_drop(v->prune);
	s3_prune_drop(v->next_prune);
}

void s3_keeper_delete_old_roots(struct s3_volume *v)
{
	struct pruning pruning = {.v = v, .prune = v->prune};
	struct s3_request req;

	if (!v->prune || s3_now() < v->prune->due)
		return;
	/* The newest root may have a snapshot that will be deleted with the next one. */
	if (v->full_wanted) {
		v->prune->due = s3_now() + PRUNE_PAUSE_NS;
		return;
	}
	if (s3_check_not_fenced(v) == 0 && keep_snapshots(v) == 0)
		s3_volume_list(v, "ckpt/", false, delete_unless_needed, &pruning, &req);
	s3_prune_drop(v->prune);
	v->prune = v->next_prune;
	v->next_prune = NULL;
}

/* A copy of regions; NULL: no memory. */
static struct s3_root_region *copy_regions(const struct s3_root_region *regions, uint32_t n)
{
	struct s3_root_region *copy = calloc(n ? n : 1, sizeof *copy);

	if (copy && n)
		memcpy(copy, regions, n * sizeof *copy);
	return copy;
}

struct s3_prune *s3_prune_prepare(const struct s3_volume *v)
{
	struct s3_prune *prune = calloc(1, sizeof *prune);

	if (!prune)
		return NULL;
	prune->previous = v->checkpoint;
	prune->previous_full = v->full;
	prune->n_previous_regions = v->n_regions;
	prune->previous_regions = copy_regions(v->regions, v->n_regions);
	return prune;
}

void s3_prune_plan(struct s3_volume *v, struct s3_prune *prune)
{
	if (prune) {
		prune->newest = prune->newest_full = v->full;
		prune->n_regions = v->n_regions;
		prune->regions = copy_regions(v->regions, v->n_regions);
	}
	if (!prune || !prune->regions || !prune->previous_regions) {
		s3_prune_drop(prune); /* the next one deletes more */
		return;
	}
	prune->due = s3_now() + v->gc_delay_ns;
	if (!v->prune) {
		v->prune = prune;
	} else {
		/* Nothing waits for those in between: they go with the others. */
		s3_prune_drop(v->next_prune);
		v->next_prune = prune;
	}
	s3_keeper_delete_old_roots(v);
}
