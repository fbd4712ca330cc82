/* SPDX-License-Identifier: BSD-3-Clause */
/* What is stored of snapshots, and what the volume knows of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/failpoint.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/snapstore.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/object_table.h"

void s3_snapshot_root_key(const struct s3_volume *v, const char *name, char *key)
{
	struct s3_name n = {.kind = S3_NAME_SNAPSHOT};

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

const uint8_t s3_no_uuid[S3_UUID];

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
	else if (memcmp(name.uuid, s3_no_uuid, S3_UUID) == 0)
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

	s3_snapshot_child_key(v->base, name, s3_no_uuid, key);
	return s3_volume_delete(v, key, &req);
}

int s3_snapshot_erase(struct s3_volume *v, const char *name)
{
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r = s3_check_not_fenced(v);

	s3_snapshot_root_key(v, name, key);
	if (r == 0)
		r = s3_volume_delete(v, key, &req);
	if (r == 0) {
		s3_failpoint(S3_FAIL_SNAP_DELETE_AFTER);
		r = s3_snapshot_unmark(v, name);
	}
	return r;
}
