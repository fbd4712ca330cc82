/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/recovery/parts.h"

/* Parts that are on their way or wait to be taken, and their bytes, of half of the memory that the
 * cache does not have yet; one may be longer. */
#define AHEAD	    16u
#define AHEAD_BYTES (32u << 20)

struct slot {
	struct s3_parts *parts;
	struct s3_request req;
	struct iovec iov;
	char key[S3_KEY_MAX + 1];
	bool used, done;
};

struct s3_parts {
	struct s3_volume *v;
	char base[S3_KEY_MAX + 1];
	const struct s3_root_part *all;
	size_t n, sent, taken;
	pthread_mutex_t lock; /* guards all but what a request that is under way has */
	pthread_cond_t changed;
	uint64_t bytes;		  /* of the slots in use */
	unsigned under_way;	  /* requests */
	int error;		  /* of what could not be sent */
	struct slot slots[AHEAD]; /* of part i: i % AHEAD */
};

struct s3_parts *s3_parts_new(
	struct s3_volume *v, const char *base, const struct s3_root_part *parts, size_t n)
{
	struct s3_parts *p = calloc(1, sizeof *p);

	if (!p)
		return NULL;
	p->v = v;
	snprintf(p->base, sizeof p->base, "%s", base);
	p->all = parts;
	p->n = n;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->changed, NULL);
	return p;
}

static void part_done(struct s3_request *req)
{
	struct slot *slot = req->opaque;
	struct s3_parts *p = slot->parts;

	pthread_mutex_lock(&p->lock);
	slot->done = true;
	p->under_way--;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

/* Asks for one more part. Under the lock. */
static int send_part(struct s3_parts *p)
{
	struct slot *slot = &p->slots[p->sent % AHEAD];
	const struct s3_root_part *part = &p->all[p->sent];
	int r;

	slot->parts = p;
	slot->iov = (struct iovec){malloc(part->bytes), part->bytes};
	if (!slot->iov.iov_base)
		return -ENOMEM;
	strcpy(slot->key, p->base);
	s3_name_format(&part->name, slot->key + strlen(slot->key));
	slot->req = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_BACKGROUND,
		.key = slot->key,
		.iov = &slot->iov,
		.iovcnt = 1,
		.allow_short = true,
		.retry_deadline = p->v->deadline,
		.done = part_done,
		.opaque = slot,
	};
	r = s3_store_submit(p->v->store, &slot->req);
	if (r) {
		free(slot->iov.iov_base);
		return r;
	}
	slot->used = true;
	slot->done = false;
	p->sent++;
	p->under_way++;
	p->bytes += part->bytes;
	return 0;
}

/* Asks for as much as may be on its way. Under the lock. */
static void send_parts(struct s3_parts *p)
{
	uint64_t most = p->v->cache_bytes / 2 < AHEAD_BYTES ? p->v->cache_bytes / 2 : AHEAD_BYTES;

	while (!p->error && p->sent < p->n && !p->slots[p->sent % AHEAD].used &&
		(!p->bytes || p->bytes + p->all[p->sent].bytes <= most))
		p->error = send_part(p);
}

/* What came of a request. 0: the part is as the root says. */
static int check_part(struct s3_parts *p, const struct slot *slot, const struct s3_root_part *part)
{
	const struct s3_request *req = &slot->req;

	if (req->result == -ENOENT)
		return -ENOENT;
	if (req->result)
		return s3_volume_refuse(p->v, req->result, "%s", req->message);
	if (req->object_size == part->bytes && req->bytes == part->bytes &&
		s3_crc32c(0, slot->iov.iov_base, part->bytes) == part->crc)
		return 0;
	backend_debug(&p->v->host, "volume=%s: %s is damaged; an older checkpoint is used",
		p->v->name, slot->key);
	return -ENOENT;
}

int s3_parts_next(struct s3_parts *p, size_t *index, void **data)
{
	struct slot *slot;
	size_t i;
	int r;

	pthread_mutex_lock(&p->lock);
	if (p->taken == p->n) {
		pthread_mutex_unlock(&p->lock);
		return 0;
	}
	i = p->taken++;
	slot = &p->slots[i % AHEAD];
	for (;;) {
		send_parts(p);
		if (i < p->sent && slot->done)
			break;
		if (i >= p->sent && p->error)
			break;
		pthread_cond_wait(&p->changed, &p->lock);
	}
	r = i < p->sent ? 0 : p->error;
	pthread_mutex_unlock(&p->lock);
	if (r)
		return r;
	/* Nobody else looks at the slot before it is free. */
	r = check_part(p, slot, &p->all[i]);
	if (r)
		free(slot->iov.iov_base);
	*data = r ? NULL : slot->iov.iov_base;
	*index = i;
	pthread_mutex_lock(&p->lock);
	slot->used = slot->done = false;
	p->bytes -= p->all[i].bytes;
	send_parts(p);
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
	return r ? r : 1;
}

void s3_parts_free(struct s3_parts *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	while (p->under_way)
		pthread_cond_wait(&p->changed, &p->lock);
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; i < AHEAD; i++)
		if (p->slots[i].used)
			free(p->slots[i].iov.iov_base);
	pthread_cond_destroy(&p->changed);
	pthread_mutex_destroy(&p->lock);
	free(p);
}
