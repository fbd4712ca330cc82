/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads of what is not in memory. */
#include <errno.h>
#include <stdlib.h>

#include "backends/backend.h"
#include "backends/s3/base/iov.h"
#include "backends/s3/chunked/internal.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/volume.h"

/* How often a GET of an object that should be there is repeated. */
#define ATTEMPTS 3

#define CHANGED "it has been changed since the volume was opened; open the volume again"

/* A read from the store. */
struct get {
	struct s3_direct *d;
	struct s3_io *io;
	uint64_t chunk;
	unsigned attempts;
	struct s3_request request;
	char key[S3_KEY_MAX + 1];
	struct iovec iov[];
};

static void fetched(struct s3_request *req);

static int submit_get(struct get *g, uint64_t offset, uint64_t bytes)
{
	g->request = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_READ,
		.key = g->key,
		.iov = g->iov,
		.iovcnt = s3_iov_slice(g->iov, 0, bytes, NULL),
		.offset = offset,
		.done = fetched,
		.opaque = g,
	};
	return s3_store_submit(g->d->v->store, &g->request);
}

static uint64_t iov_bytes(const struct s3_request *req)
{
	uint64_t bytes = 0;

	for (int i = 0; i < req->iovcnt; i++)
		bytes += req->iov[i].iov_len;
	return bytes;
}

/* Is the chunk's object on its way out? It may be gone before that is answered. */
static bool is_being_deleted(struct s3_direct *d, uint64_t chunk)
{
	const struct s3_chunk *c = s3_chunk_find(d, chunk);

	return c && (c->state == S3_CHUNK_DELETING ||
			    (c->state == S3_CHUNK_STORING && c->request.op == S3_DELETE));
}

/* Is a reader's chunk no longer the one that it has listed? */
static bool has_changed(const struct get *g)
{
	uint32_t listed = g->d->tags ? g->d->tags[g->chunk] : 0;
	uint32_t tag = s3_etag_tag(g->request.etag);

	return listed && tag && tag != listed;
}

static void fetched(struct s3_request *req)
{
	struct get *g = req->opaque;
	struct s3_direct *d = g->d;
	struct s3_volume *v = d->v;
	const char *message = req->message;
	bool present = true;
	int r = req->result;

	if (r == 0 && has_changed(g)) {
		r = -EIO;
		message = CHANGED;
	} else if (r == 0 && req->object_size != s3_chunk_bytes(d, g->chunk)) {
		r = -EIO;
		message = "is damaged: it has another size than the volume's chunks";
	}
	if (r == -ENOENT) {
		pthread_mutex_lock(&d->lock);
		present = s3_chunk_is_present(d, g->chunk) && !is_being_deleted(d, g->chunk);
		pthread_mutex_unlock(&d->lock);
		/* It may have been deleted and stored again meanwhile. */
		if (present && ++g->attempts < ATTEMPTS &&
			submit_get(g, req->offset, iov_bytes(req)) == 0)
			return;
		message = d->tags ? CHANGED : message;
	}
	if (!present) {
		s3_iov_fill(req->iov, 0, NULL, iov_bytes(req));
		r = 0;
	} else if (r) {
		backend_error(&v->host, "volume=%s: cannot read %s: %s", v->name, g->key, message);
		r = r == -EACCES ? -EACCES : -EIO;
	}
	pthread_mutex_lock(&d->lock);
	s3_io_end_part(d, g->io, r);
	free(g);
	s3_direct_leave(d);
}

/* Reads bytes of a chunk into the request, from position on. */
static void get_bytes(struct s3_direct *d, struct s3_io *io, uint64_t chunk, uint32_t from,
	uint32_t bytes, uint64_t position)
{
	const struct iovec *iov = io->request->iov;
	int n = s3_iov_slice(iov, position, bytes, NULL);
	struct get *g;

	/* What is on its way out may be older than what was in memory of it. */
	if (!s3_chunk_is_present(d, chunk) || is_being_deleted(d, chunk)) {
		s3_iov_fill(iov, position, NULL, bytes);
		return;
	}
	io->pending++;
	g = calloc(1, sizeof *g + (size_t)n * sizeof *g->iov);
	if (!g) {
		s3_io_end_part(d, io, -ENOMEM);
		return;
	}
	g->d = d;
	g->io = io;
	g->chunk = chunk;
	s3_iov_slice(iov, position, bytes, g->iov);
	s3_chunk_key(d, chunk, g->key);
	d->reads_store++;
	if (submit_get(g, from, bytes)) {
		free(g);
		s3_io_end_part(d, io, -ENOMEM);
	}
}

void s3_chunk_read(struct s3_direct *d, struct s3_io *io, uint64_t chunk, uint32_t from,
	uint32_t bytes, uint64_t position)
{
	struct s3_chunk *c = s3_chunk_find(d, chunk);
	unsigned shift = d->v->shift;
	uint32_t end = from + bytes;

	if (!c || !c->data) {
		get_bytes(d, io, chunk, from, bytes, position);
		return;
	}
	s3_chunk_touch(d, c);
	while (from < end) {
		uint32_t stop = s3_chunk_run_end(c, from >> shift, s3_chunk_blocks(d, chunk))
				<< shift;

		if (stop > end)
			stop = end;
		if (c->known[from >> shift]) {
			s3_iov_fill(io->request->iov, position, c->data + from, stop - from);
			d->reads_memory++;
		} else {
			get_bytes(d, io, chunk, from, stop - from, position);
		}
		position += stop - from;
		from = stop;
	}
}
