/* SPDX-License-Identifier: BSD-3-Clause */
/* Has another writer taken over? */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/super.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"

/* Where our next object belongs, if no other writer's stands behind our frontier. */
static uint64_t behind_frontier(struct s3_volume *v, uint64_t *applied)
{
	uint64_t next;

	pthread_mutex_lock(&v->lock);
	next = v->frontier + 1;
	if (applied)
		*applied = v->applied;
	pthread_mutex_unlock(&v->lock);
	return next;
}

/*
 * If the volume was deleted, its last fence was, too, and what has our keys may be a new volume's.
 */
int s3_check_not_deleted(struct s3_volume *v)
{
	struct s3_name name = {.kind = S3_NAME_SUPER};
	char key[S3_KEY_MAX + 1];
	int r;

	s3_volume_key(v, &name, key);
	r = s3_super_look(v, key, v->super.uuid, NULL);
	if (r != -ENOENT && r != -ESTALE)
		return r;
	s3_volume_fence(v, "it has been deleted");
	return -ESTALE;
}

/*
 * The fence of a writer that took over stands behind the last object of ours that arrived before
 * it. The frontier lags behind that: of what is uploaded now some may be there already, and what
 * stands behind the frontier be our own. Then the fence may be behind that, so it is looked for
 * there. This ends: what was begun after it (behind applied) cannot be stored, and so not pass the
 * frontier, if there was a fence when it began.
 */
int s3_check_not_fenced(struct s3_volume *v)
{
	struct s3_object_header header;
	struct s3_request req;
	enum s3_check check;
	uint64_t applied, seq = behind_frontier(v, &applied);
	void *data;
	int r;

	for (;;) {
		uint64_t next;

		r = atomic_load(&v->failed);
		if (r)
			return r;
		r = s3_volume_get_header(v, seq, &data, &header, &check, &req);
		if (r)
			return r == -ENOENT ? s3_check_not_deleted(v) : r;
		free(data);
		if (check == S3_OTHER_VOLUME) /* the new one's; or as absent as the next case */
			return s3_check_not_deleted(v);
		if (check != S3_GOOD)
			return -EIO;
		if (header.epoch < v->epoch)
			return 0; /* left by one that we had fenced: for all others it is absent */
		if (header.epoch > v->epoch || memcmp(header.instance, v->instance, S3_UUID) != 0)
			break;
		next = behind_frontier(v, NULL);
		if (next > applied + 1)
			return 0;
		seq = next > seq + 1 ? next : seq + 1;
	}
	s3_volume_fence(v, "another writer took the volume over");
	return -ESTALE;
}
