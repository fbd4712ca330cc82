/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * layout=direct: an object for each chunk of the volume, plain bytes, for the comparison with
 * the log. What others do so, CloudBD, s3backer and nbdkit's S3 plugin, is done as well as
 * it can be done without a log:
 *
 * - Writes go to chunks in memory and are answered at once (write-back, as s3backer). A chunk is
 *   stored when all of it has been written, when memory is short, after a second, or by a
 *   flush; what has not been written of it is then read first. So sequential writes cost a
 *   PUT per chunk, and random ones a GET and a PUT.
 * - Reads of what is not in memory are GETs of just that, straight into the caller's vector.
 * - Which chunks have an object is known from a listing at open: no request is made for those that
 *   have none, and one that went missing is noticed.
 * - A chunk is loaded, stored or deleted by one request at a time; changes wait meanwhile.
 *
 * What the log has and this has not: chunks arrive in any order, so a crash leaves a mixture of
 * what was flushed and what was not; there are no checksums of blocks; and another writer is
 * noticed by the epoch in the super object only when the next flush is answered.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "backends/s3/chunked/chunked.h"
#include "backends/s3/base/iov.h"
#include "backends/s3/core/volume.h"

/* A chunk that is not written any more is stored after that; and how often that is looked at. */
#define IDLE_NS UINT64_C(1000000000)
#define LOOK_NS UINT64_C(250000000)
/* Chunks in memory without which it cannot go on. */
#define LEAST_CHUNKS 4
/* How often a GET of an object that should be there is repeated. */
#define ATTEMPTS 3
/* How often the epoch is raised against others who open the volume just then. */
#define CLAIMS	  8
#define SUPER_MAX (64u << 10)

/* A request; io->pending counts its pieces and gets, and 1 until all of them have been made. */
struct piece {
	TAILQ_ENTRY(piece) link;
	struct io *io;
	uint64_t chunk;
	uint32_t from, bytes; /* in the chunk */
	uint64_t position;    /* in the request */
};

struct io {
	struct io *next;
	struct backend_request *request;
	unsigned pending;
	int result;
	uint64_t target; /* of a flush: what became dirty up to then is to be stored */
	struct piece only;
};

/* A read from the store. */
struct get {
	struct s3_direct *d;
	struct io *io;
	uint64_t chunk;
	unsigned attempts;
	struct s3_request request;
	char key[S3_KEY_MAX + 1];
	struct iovec iov[];
};

TAILQ_HEAD(pieces, piece);
TAILQ_HEAD(chunks, chunk);

enum state { IDLE, LOADING, STORING, DELETING };

/* A chunk that is in memory, or that something happens to. */
struct chunk {
	struct chunk *next; /* in its bucket */
	TAILQ_ENTRY(chunk) used, dirt, put;
	uint64_t index;
	enum state state;
	bool dirty;
	bool full;	   /* dirty, and all of it written */
	bool store_next;   /* it is loaded in order to be stored */
	uint64_t dirtied;  /* number, in the order in which chunks became dirty */
	uint64_t since;	   /* when; ns */
	uint8_t *data;	   /* NULL: nothing of it is in memory */
	uint8_t *known;	   /* of each block: data holds it */
	uint32_t n_known;  /* how many */
	struct piece *cut; /* the trim or zero that deletes it */
	struct pieces waiting;
	struct s3_direct *d;
	struct s3_request request;
	struct iovec *iov; /* of a load */
	struct iovec body;
	char key[S3_KEY_MAX + 1];
};

struct s3_direct {
	struct s3_volume *v;
	uint32_t chunk_blocks, chunk_bytes;
	uint64_t n_chunks; /* of the volume */
	unsigned uploads, max_buffers;
	struct chunk **buckets;
	size_t n_buckets; /* a power of two */
	uint8_t *sink;	  /* receives what is known already when the rest is loaded */

	pthread_mutex_t lock;
	/* Below: under lock. */
	uint8_t *present;    /* bit of each chunk: it has an object */
	struct chunks used;  /* with memory; the one used last is the last */
	struct chunks dirty; /* in the order in which they became so */
	struct chunks puts;  /* for the storer */
	struct pieces stalled;
	uint8_t *spare; /* buffers; each begins with the address of the next */
	unsigned n_buffers, n_dirty, storing;
	uint64_t number;     /* of the chunk that became dirty last */
	uint64_t want_up_to; /* what became dirty up to this is to be stored at once */
	struct io *ready;    /* to be answered when the lock is released */
	struct io *waiters;  /* flushes */
	struct io *checked;  /* flushes that wait for the epoch only */
	bool unchecked;	     /* something was stored since the epoch was looked at */
	bool checking, stopping;
	struct s3_request check;
	struct iovec check_iov;
	char super_key[S3_KEY_MAX + 1];
	uint64_t stored, stored_bytes, loaded, deleted, reads_memory, reads_store, stalls;
	pthread_cond_t work, quiet;
	pthread_t storer;
	_Atomic bool running;
};

static void settle(struct s3_direct *d);
static void run_piece(struct s3_direct *d, struct piece *p);

static uint32_t bytes_of(const struct s3_direct *d, uint64_t index)
{
	uint64_t left = s3_volume_size(d->v) - index * d->chunk_bytes;

	return left < d->chunk_bytes ? (uint32_t)left : d->chunk_bytes;
}

static uint32_t blocks_of(const struct s3_direct *d, uint64_t index)
{
	return bytes_of(d, index) >> d->v->shift;
}

static void key_of(const struct s3_direct *d, uint64_t index, char *key)
{
	s3_volume_key(d->v, &(struct s3_name){.kind = S3_NAME_CHUNK, .number = index}, key);
}

static bool is_present(const struct s3_direct *d, uint64_t index)
{
	return d->present[index / 8] >> index % 8 & 1;
}

static void set_present(struct s3_direct *d, uint64_t index, bool present)
{
	uint8_t bit = (uint8_t)(1u << index % 8);

	if (present)
		d->present[index / 8] |= bit;
	else
		d->present[index / 8] &= (uint8_t)~bit;
}

/* ---- requests and their ends ------------------------------------------------------ */

/* Releases the lock and answers what became ready under it. */
static void leave(struct s3_direct *d)
{
	struct io *io = d->ready;

	d->ready = NULL;
	pthread_mutex_unlock(&d->lock);
	while (io) {
		struct io *next = io->next;
		struct backend_request *request = io->request;
		int result = io->result;

		/* Another writer's data may be newer than what was read or written. */
		if (result == 0 && atomic_load(&d->v->fenced))
			result = -EIO;
		free(io);
		request->done(request, result);
		io = next;
	}
}

static void push(struct io **list, struct io *io)
{
	io->next = *list;
	*list = io;
}

/* A part of a request has ended. */
static void end_part(struct s3_direct *d, struct io *io, int result)
{
	const struct backend_request *request = io->request;

	if (result && !io->result)
		io->result = result;
	if (--io->pending)
		return;
	if (io->result == 0 && request->op != BACKEND_READ && request->flags & BACKEND_FUA &&
		d->v->flush_mode == S3_FLUSH_DURABLE) {
		io->target = d->number;
		push(&d->waiters, io);
	} else {
		push(&d->ready, io);
	}
}

static void end_piece(struct s3_direct *d, struct piece *p, int result)
{
	struct io *io = p->io;

	if (p != &io->only)
		free(p);
	end_part(d, io, result);
}

static struct io *make_io(struct backend_request *request)
{
	struct io *io = calloc(1, sizeof *io);

	if (!io) {
		request->done(request, -ENOMEM);
		return NULL;
	}
	io->request = request;
	io->pending = 1;
	return io;
}

/* ---- chunks ----------------------------------------------------------------------- */

static struct chunk **bucket(struct s3_direct *d, uint64_t index)
{
	return &d->buckets[index & (d->n_buckets - 1)];
}

static struct chunk *find(struct s3_direct *d, uint64_t index)
{
	struct chunk *c = *bucket(d, index);

	while (c && c->index != index)
		c = c->next;
	return c;
}

/* A chunk's entry, which is made if there is none. NULL: no memory. */
static struct chunk *entry(struct s3_direct *d, uint64_t index)
{
	struct chunk *c = find(d, index);

	if (c)
		return c;
	c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->index = index;
	c->d = d;
	TAILQ_INIT(&c->waiting);
	key_of(d, index, c->key);
	c->next = *bucket(d, index);
	*bucket(d, index) = c;
	return c;
}

static void free_chunk(struct chunk *c)
{
	free(c->data);
	free(c->known);
	free(c->iov);
	free(c);
}

/* Forgets an entry that is for nothing any more. */
static void drop_idle(struct s3_direct *d, struct chunk *c)
{
	struct chunk **link = bucket(d, c->index);

	if (c->state != IDLE || c->data || !TAILQ_EMPTY(&c->waiting))
		return;
	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	free_chunk(c);
}

static void mark_dirty(struct s3_direct *d, struct chunk *c)
{
	if (!c->dirty) {
		c->dirty = true;
		c->dirtied = ++d->number;
		c->since = s3_now();
		TAILQ_INSERT_TAIL(&d->dirty, c, dirt);
		if (d->n_dirty++ == 0)
			pthread_cond_signal(&d->work); /* it has to look at the clock now */
	}
	c->full = c->n_known == blocks_of(d, c->index);
}

static void mark_clean(struct s3_direct *d, struct chunk *c)
{
	if (!c->dirty)
		return;
	c->dirty = c->full = false;
	TAILQ_REMOVE(&d->dirty, c, dirt);
	d->n_dirty--;
	pthread_cond_broadcast(&d->quiet);
}

/* What the chunk has in memory is worth nothing any more. */
static void release_memory(struct s3_direct *d, struct chunk *c)
{
	mark_clean(d, c);
	if (!c->data)
		return;
	TAILQ_REMOVE(&d->used, c, used);
	memcpy(c->data, &d->spare, sizeof d->spare);
	d->spare = c->data;
	c->data = NULL;
	c->n_known = 0;
}

static struct chunk *evictable(struct s3_direct *d)
{
	struct chunk *c;

	TAILQ_FOREACH(c, &d->used, used)
	if (c->state == IDLE && !c->dirty && TAILQ_EMPTY(&c->waiting))
		return c;
	return NULL;
}

static bool memory_left(struct s3_direct *d)
{
	return d->spare || d->n_buffers < d->max_buffers || evictable(d);
}

static void touch(struct s3_direct *d, struct chunk *c)
{
	TAILQ_REMOVE(&d->used, c, used);
	TAILQ_INSERT_TAIL(&d->used, c, used);
}

/* Sees to memory for the chunk. 0, -EAGAIN: something must be stored first, or -ENOMEM. */
static int want_memory(struct s3_direct *d, struct chunk *c)
{
	struct chunk *old;

	if (c->data) {
		touch(d, c);
		return 0;
	}
	if (!c->known)
		c->known = malloc(d->chunk_blocks);
	if (!c->known)
		return -ENOMEM;
	if (!d->spare && d->n_buffers < d->max_buffers) {
		c->data = malloc(d->chunk_bytes);
		if (c->data)
			d->n_buffers++;
	}
	if (!c->data && !d->spare && (old = evictable(d))) {
		release_memory(d, old);
		drop_idle(d, old);
	}
	if (!c->data && d->spare) {
		c->data = d->spare;
		memcpy(&d->spare, c->data, sizeof d->spare);
	}
	if (!c->data)
		return d->n_buffers ? -EAGAIN : -ENOMEM;
	memset(c->known, 0, d->chunk_blocks);
	c->n_known = 0;
	TAILQ_INSERT_TAIL(&d->used, c, used);
	return 0;
}

static void set_known(struct chunk *c, uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i++) {
		c->n_known += !c->known[i];
		c->known[i] = 1;
	}
}

/* The end of the run of blocks that are as known as the first; at most end. */
static uint32_t run_end(const struct chunk *c, uint32_t first, uint32_t end)
{
	const uint8_t *p = memchr(c->known + first, !c->known[first], end - first);

	return p ? (uint32_t)(p - c->known) : end;
}

/* What is not known of a chunk without an object is zeroes. */
static void fill_with_zeroes(struct s3_direct *d, struct chunk *c, uint32_t first, uint32_t end)
{
	for (uint32_t i = first, next; i < end; i = next) {
		next = run_end(c, i, end);
		if (!c->known[i])
			memset(c->data + ((size_t)i << d->v->shift), 0,
				(size_t)(next - i) << d->v->shift);
	}
	set_known(c, first, end);
}

/* Those who waited for the chunk, until one of them makes it busy again. */
static void run_waiting(struct s3_direct *d, struct chunk *c)
{
	struct piece *p;

	while (c->state == IDLE && (p = TAILQ_FIRST(&c->waiting))) {
		bool last = !TAILQ_NEXT(p, link);

		TAILQ_REMOVE(&c->waiting, p, link);
		run_piece(d, p);
		if (last)
			return; /* it may be gone */
	}
	drop_idle(d, c);
}

/* ---- loading, storing, deleting ----------------------------------------------------- */

/*
 * A request about a chunk has ended in an error. Nothing can be stored any more. To be called
 * without the lock.
 */
static void fail(struct s3_direct *d, const struct s3_request *req)
{
	if (req->result == -ESHUTDOWN)
		s3_volume_fail(d->v, -EIO, "closed before everything was stored");
	else
		s3_volume_fail(d->v, -EIO, "%s: %s", req->key, req->message);
}

static void store_done(struct s3_request *req)
{
	struct chunk *c = req->opaque;
	struct s3_direct *d = c->d;

	if (req->result)
		fail(d, req);
	pthread_mutex_lock(&d->lock);
	c->state = IDLE;
	d->storing--;
	if (req->result == 0) {
		mark_clean(d, c);
		set_present(d, c->index, req->op == S3_PUT);
		d->unchecked = true;
		d->stored += req->op == S3_PUT;
		d->deleted += req->op == S3_DELETE;
		d->stored_bytes += req->op == S3_PUT ? bytes_of(d, c->index) : 0;
	}
	run_waiting(d, c);
	settle(d);
	leave(d);
}

static bool is_zero(const uint8_t *data, size_t length)
{
	return data[0] == 0 && memcmp(data, data + 1, length - 1) == 0;
}

/* Gives a complete chunk to the store. By the storer without the lock: a digest takes its time. */
static void put_chunk(struct s3_direct *d, struct chunk *c)
{
	uint32_t bytes = bytes_of(d, c->index);
	int r;

	c->body = (struct iovec){c->data, bytes};
	c->request = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_LOG,
		.key = c->key,
		.iov = &c->body,
		.iovcnt = 1,
		.done = store_done,
		.opaque = c,
	};
	/* Zeroes are no object. Deleting one that is not there is no error. */
	if (is_zero(c->data, bytes)) {
		c->request.op = S3_DELETE;
		c->request.iovcnt = 0;
	}
	r = s3_store_submit(d->v->store, &c->request);
	if (r) {
		c->request.result = -EIO;
		strcpy(c->request.message, "cannot be stored: out of memory");
		store_done(&c->request);
	}
}

static void queue_put(struct s3_direct *d, struct chunk *c)
{
	c->state = STORING;
	TAILQ_INSERT_TAIL(&d->puts, c, put);
	pthread_cond_signal(&d->work);
}

static void load_done(struct s3_request *req)
{
	struct chunk *c = req->opaque;
	struct s3_direct *d = c->d;
	struct s3_volume *v = d->v;
	int r = req->result;
	struct piece *p;

	if (r == 0 && req->object_size != bytes_of(d, c->index)) {
		r = req->result = -EIO;
		snprintf(req->message, sizeof req->message,
			"has %" PRIu64 " bytes instead of %" PRIu32 "; restore it from a backup",
			req->object_size, bytes_of(d, c->index));
	}
	if (r && !c->store_next && r != -ESHUTDOWN)
		backend_error(&v->host, "volume=%s: %s: %s", v->name, c->key, req->message);
	if (r && c->store_next)
		fail(d, req); /* what has been answered can be stored no more */
	pthread_mutex_lock(&d->lock);
	free(c->iov);
	c->iov = NULL;
	c->state = IDLE;
	d->loaded++;
	if (r == 0)
		set_known(c, 0, blocks_of(d, c->index));
	if (r == 0 && c->store_next) {
		queue_put(d, c);
	} else {
		d->storing -= c->store_next;
		while (r && (p = TAILQ_FIRST(&c->waiting))) {
			TAILQ_REMOVE(&c->waiting, p, link);
			end_piece(d, p, -EIO);
		}
		run_waiting(d, c);
	}
	settle(d);
	leave(d);
}

/* Reads what is not known of a chunk that has an object. False: no memory. */
static bool load(struct s3_direct *d, struct chunk *c, bool store_next)
{
	unsigned shift = d->v->shift;
	uint32_t first = 0, end = blocks_of(d, c->index), next;
	int n = 0;

	first = c->known[0] ? run_end(c, 0, end) : 0;
	while (c->known[end - 1])
		end--;
	for (uint32_t i = first; i < end; i = run_end(c, i, end))
		n++;
	c->iov = malloc((size_t)n * sizeof *c->iov);
	if (!c->iov)
		return false;
	n = 0;
	for (uint32_t i = first; i < end; i = next) {
		next = run_end(c, i, end);
		c->iov[n++] = (struct iovec){
			c->known[i] ? d->sink : c->data + ((size_t)i << shift),
			(size_t)(next - i) << shift,
		};
	}
	c->state = LOADING;
	c->store_next = store_next;
	c->request = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_BACKGROUND,
		.key = c->key,
		.iov = c->iov,
		.iovcnt = n,
		.offset = (uint64_t)first << shift,
		.done = load_done,
		.opaque = c,
	};
	if (s3_store_submit(d->v->store, &c->request) == 0)
		return true;
	c->state = IDLE;
	free(c->iov);
	c->iov = NULL;
	return false;
}

/* Stores a dirty chunk that nothing else happens to. */
static void begin_store(struct s3_direct *d, struct chunk *c)
{
	uint32_t blocks = blocks_of(d, c->index);

	if (c->n_known < blocks && is_present(d, c->index)) {
		d->storing += load(d, c, true); /* without memory: another time */
		return;
	}
	if (c->n_known < blocks)
		fill_with_zeroes(d, c, 0, blocks);
	d->storing++;
	queue_put(d, c);
}

/* Starts to store what is due, the oldest first. */
static void begin_stores(struct s3_direct *d)
{
	uint64_t now = s3_now();
	struct chunk *c;

	if (atomic_load(&d->v->failed))
		return;
	TAILQ_FOREACH(c, &d->dirty, dirt)
	{
		bool pressed =
			!TAILQ_EMPTY(&d->stalled) || d->n_dirty - d->storing > d->max_buffers / 2;

		if (d->storing >= d->uploads)
			return;
		if (c->state == IDLE && (pressed || c->full || c->dirtied <= d->want_up_to ||
						now >= c->since + IDLE_NS))
			begin_store(d, c);
	}
}

static void delete_done(struct s3_request *req)
{
	struct chunk *c = req->opaque;
	struct s3_direct *d = c->d;
	struct piece *p = c->cut;

	if (req->result)
		fail(d, req);
	pthread_mutex_lock(&d->lock);
	c->state = IDLE;
	if (req->result == 0) {
		set_present(d, c->index, false);
		d->unchecked = true;
		d->deleted++;
	}
	end_piece(d, p, req->result ? -EIO : 0);
	run_waiting(d, c);
	settle(d);
	leave(d);
}

/* All of a chunk becomes zeroes. */
static void cut(struct s3_direct *d, struct chunk *c, struct piece *p)
{
	release_memory(d, c);
	if (!is_present(d, c->index)) {
		end_piece(d, p, 0);
		drop_idle(d, c);
		return;
	}
	c->state = DELETING;
	c->cut = p;
	c->request = (struct s3_request){
		.op = S3_DELETE,
		.pool = S3_POOL_LOG,
		.key = c->key,
		.done = delete_done,
		.opaque = c,
	};
	if (s3_store_submit(d->v->store, &c->request)) {
		/* What was in memory is gone, and was to go; what is stored stays. */
		c->state = IDLE;
		end_piece(d, p, -ENOMEM);
		drop_idle(d, c);
	}
}

/* ---- changes ------------------------------------------------------------------------ */

/* Blocks of which a piece changes a part only are there, or can be filled. False: to be read. */
static bool have_edges(struct s3_direct *d, struct chunk *c, const struct piece *p)
{
	unsigned shift = d->v->shift;
	uint32_t mask = d->v->block_size - 1, end = p->from + p->bytes;
	uint32_t edges[2], n = 0;

	if (p->from & mask)
		edges[n++] = p->from >> shift;
	if (end & mask)
		edges[n++] = end >> shift;
	for (uint32_t i = 0; i < n; i++) {
		if (c->known[edges[i]])
			continue;
		if (is_present(d, c->index))
			return false;
		fill_with_zeroes(d, c, edges[i], edges[i] + 1);
	}
	return true;
}

static void change(struct s3_direct *d, struct chunk *c, struct piece *p)
{
	const struct backend_request *request = p->io->request;
	unsigned shift = d->v->shift;
	uint32_t mask = d->v->block_size - 1;

	if (request->op == BACKEND_WRITE)
		s3_iov_copy(request->iov, p->position, c->data + p->from, p->bytes);
	else
		memset(c->data + p->from, 0, p->bytes);
	set_known(c, p->from >> shift, (p->from + p->bytes + mask) >> shift);
	mark_dirty(d, c);
	end_piece(d, p, 0);
}

/* Does what a piece asks for, or has it wait. */
static void run_piece(struct s3_direct *d, struct piece *p)
{
	enum backend_op op = p->io->request->op;
	int r = atomic_load(&d->v->failed);
	struct chunk *c;

	if (r) {
		end_piece(d, p, r);
		return;
	}
	c = entry(d, p->chunk);
	if (!c) {
		end_piece(d, p, -ENOMEM);
		return;
	}
	if (c->state != IDLE) {
		TAILQ_INSERT_TAIL(&c->waiting, p, link);
		return;
	}
	if (op != BACKEND_WRITE && p->bytes == bytes_of(d, c->index)) {
		cut(d, c, p);
		return;
	}
	if (op == BACKEND_TRIM || (op == BACKEND_ZERO && !c->data && !is_present(d, c->index))) {
		end_piece(d, p, 0); /* a part of a chunk is kept; or is zeroes already */
		drop_idle(d, c);
		return;
	}
	r = want_memory(d, c);
	if (r == 0 && !have_edges(d, c, p)) {
		if (load(d, c, false)) {
			TAILQ_INSERT_HEAD(&c->waiting, p, link);
			return;
		}
		r = -ENOMEM;
	}
	if (r == 0) {
		change(d, c, p);
		return;
	}
	drop_idle(d, c);
	if (r == -EAGAIN) {
		d->stalls++;
		TAILQ_INSERT_TAIL(&d->stalled, p, link);
	} else {
		end_piece(d, p, r);
	}
}

/* ---- flush -------------------------------------------------------------------------- */

static void start_check(struct s3_direct *d);

/* Moves what fulfils the condition of a flush from waiters to checked or ready. */
static void look_at_flushes(struct s3_direct *d)
{
	const struct chunk *oldest = TAILQ_FIRST(&d->dirty);
	struct io **link = &d->waiters;
	bool check = d->unchecked && d->v->conditional;
	int r = atomic_load(&d->v->failed);

	if (d->checking && r == 0)
		return;
	while (*link) {
		struct io *io = *link;

		if (r) {
			*link = io->next;
			io->result = r;
			push(&d->ready, io);
			continue;
		}
		if (oldest && oldest->dirtied <= io->target) {
			if (io->target > d->want_up_to)
				d->want_up_to = io->target;
			link = &io->next;
			continue;
		}
		*link = io->next;
		push(check ? &d->checked : &d->ready, io);
	}
	if (d->checked && !d->checking)
		start_check(d);
}

static void check_done(struct s3_request *req)
{
	struct s3_direct *d = req->opaque;
	struct s3_volume *v = d->v;
	int r = req->result;
	struct s3_super super;

	if (r == 0) {
		if (s3_super_decode(d->check_iov.iov_base, req->bytes, &super) != S3_GOOD)
			super = (struct s3_super){0};
		if (super.epoch != v->epoch || memcmp(super.uuid, v->super.uuid, S3_UUID))
			s3_volume_fence(v, "another writer took the volume over");
		s3_super_free(&super);
	} else {
		fail(d, req);
	}
	pthread_mutex_lock(&d->lock);
	d->checking = false;
	while (d->checked) {
		struct io *io = d->checked;

		d->checked = io->next;
		io->result = atomic_load(&v->failed);
		push(&d->ready, io);
	}
	settle(d);
	leave(d);
}

/* Is the epoch in the super object still ours, now that all of it is stored? */
static void start_check(struct s3_direct *d)
{
	d->checking = true;
	d->unchecked = false;
	d->check = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_LOG,
		.key = d->super_key,
		.iov = &d->check_iov,
		.iovcnt = 1,
		.allow_short = true,
		.done = check_done,
		.opaque = d,
	};
	if (s3_store_submit(d->v->store, &d->check) == 0)
		return;
	d->checking = false;
	d->unchecked = true;
	while (d->checked) {
		struct io *io = d->checked;

		d->checked = io->next;
		io->result = -ENOMEM;
		push(&d->ready, io);
	}
}

/* After any event: those who wait for memory, chunks that are due, flushes that are done. */
static void settle(struct s3_direct *d)
{
	struct piece *p;

	while ((p = TAILQ_FIRST(&d->stalled)) && memory_left(d)) {
		TAILQ_REMOVE(&d->stalled, p, link);
		run_piece(d, p);
	}
	look_at_flushes(d);
	if (!TAILQ_EMPTY(&d->dirty))
		begin_stores(d);
}

static void give_up(struct s3_volume *v)
{
	struct s3_direct *d = v->direct;
	int r = atomic_load(&v->failed);
	struct piece *p;

	pthread_mutex_lock(&d->lock);
	while ((p = TAILQ_FIRST(&d->stalled))) {
		TAILQ_REMOVE(&d->stalled, p, link);
		end_piece(d, p, r);
	}
	look_at_flushes(d);
	pthread_cond_broadcast(&d->quiet);
	leave(d);
}

/* ---- reads -------------------------------------------------------------------------- */

static void got(struct s3_request *req);

static int submit_get(struct get *g, uint64_t offset, uint64_t bytes)
{
	g->request = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_READ,
		.key = g->key,
		.iov = g->iov,
		.iovcnt = s3_iov_slice(g->iov, 0, bytes, NULL),
		.offset = offset,
		.done = got,
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

static void got(struct s3_request *req)
{
	struct get *g = req->opaque;
	struct s3_direct *d = g->d;
	struct s3_volume *v = d->v;
	const char *message = req->message;
	bool present = true;
	int r = req->result;

	if (r == 0 && req->object_size != bytes_of(d, g->chunk)) {
		r = -EIO;
		message = "is damaged: it has another size than the volume's chunks";
	}
	if (r == -ENOENT) {
		pthread_mutex_lock(&d->lock);
		present = is_present(d, g->chunk);
		pthread_mutex_unlock(&d->lock);
		/* It may have been deleted and stored again meanwhile. */
		if (present && ++g->attempts < ATTEMPTS &&
			submit_get(g, req->offset, iov_bytes(req)) == 0)
			return;
	}
	if (!present) {
		s3_iov_fill(req->iov, 0, NULL, iov_bytes(req));
		r = 0;
	} else if (r) {
		backend_error(&v->host, "volume=%s: cannot read %s: %s", v->name, g->key, message);
		r = r == -EACCES ? -EACCES : -EIO;
	}
	pthread_mutex_lock(&d->lock);
	end_part(d, g->io, r);
	free(g);
	leave(d);
}

/* Reads bytes of a chunk into the request, from position on. */
static void get_bytes(struct s3_direct *d, struct io *io, uint64_t chunk, uint32_t from,
	uint32_t bytes, uint64_t position)
{
	const struct iovec *iov = io->request->iov;
	int n = s3_iov_slice(iov, position, bytes, NULL);
	struct get *g;

	if (!is_present(d, chunk)) {
		s3_iov_fill(iov, position, NULL, bytes);
		return;
	}
	io->pending++;
	g = calloc(1, sizeof *g + (size_t)n * sizeof *g->iov);
	if (!g) {
		end_part(d, io, -ENOMEM);
		return;
	}
	g->d = d;
	g->io = io;
	g->chunk = chunk;
	s3_iov_slice(iov, position, bytes, g->iov);
	key_of(d, chunk, g->key);
	d->reads_store++;
	if (submit_get(g, from, bytes)) {
		free(g);
		end_part(d, io, -ENOMEM);
	}
}

static void read_chunk(struct s3_direct *d, struct io *io, uint64_t chunk, uint32_t from,
	uint32_t bytes, uint64_t position)
{
	struct chunk *c = find(d, chunk);
	unsigned shift = d->v->shift;
	uint32_t end = from + bytes;

	if (!c || !c->data) {
		get_bytes(d, io, chunk, from, bytes, position);
		return;
	}
	touch(d, c);
	while (from < end) {
		uint32_t stop = run_end(c, from >> shift, blocks_of(d, chunk)) << shift;

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

/* ---- the device's interface ----------------------------------------------------------- */

/* Is there anything to do for a trim or zero? */
static bool concerns(struct s3_direct *d, uint64_t chunk)
{
	return is_present(d, chunk) || find(d, chunk);
}

/* Takes a request apart into what it asks of each chunk. */
static void split(struct s3_direct *d, struct io *io)
{
	const struct backend_request *request = io->request;
	uint64_t offset = request->offset, end = offset + request->length;
	bool data = request->op == BACKEND_READ || request->op == BACKEND_WRITE;
	struct piece *p = &io->only;

	while (offset < end) {
		uint64_t chunk = offset / d->chunk_bytes;
		uint32_t from = (uint32_t)(offset % d->chunk_bytes);
		uint64_t bytes = d->chunk_bytes - from;
		uint64_t position = offset - request->offset;

		if (bytes > end - offset)
			bytes = end - offset;
		offset += bytes;
		if (request->op == BACKEND_READ) {
			read_chunk(d, io, chunk, from, (uint32_t)bytes, position);
			continue;
		}
		if (!data && !concerns(d, chunk))
			continue;
		io->pending++;
		if (!p)
			p = malloc(sizeof *p);
		if (!p) {
			end_part(d, io, -ENOMEM);
			break;
		}
		*p = (struct piece){.io = io,
			.chunk = chunk,
			.from = from,
			.bytes = (uint32_t)bytes,
			.position = position};
		run_piece(d, p);
		p = NULL;
	}
	end_part(d, io, 0);
}

static void *storer(void *opaque);

/* Makes the thread with the first change: a fork may follow open. 0 or negative errno. */
static int start(struct s3_volume *v)
{
	struct s3_direct *d = v->direct;
	sigset_t all, before;
	int r = 0;

	if (atomic_load_explicit(&d->running, memory_order_acquire))
		return 0;
	/* Signals are the framework's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_mutex_lock(&d->lock);
	if (!d->running) {
		r = pthread_create(&d->storer, NULL, storer, d);
		if (r == 0)
			atomic_store_explicit(&d->running, true, memory_order_release);
	}
	pthread_mutex_unlock(&d->lock);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

static void submit(struct s3_volume *v, struct backend_request *request)
{
	struct s3_direct *d = v->direct;
	struct io *io;
	int r = 0;
	bool idle = request->op == BACKEND_FLUSH &&
		    (v->backend.readonly || v->flush_mode == S3_FLUSH_WEAK);

	if (request->op == BACKEND_READ)
		r = atomic_load(&v->fenced) ? -EIO : 0;
	else if (!idle && (r = start(v)) == 0)
		r = atomic_load(&v->failed);
	if (r || idle) {
		request->done(request, r);
		return;
	}
	io = make_io(request);
	if (!io)
		return;
	pthread_mutex_lock(&d->lock);
	if (request->op == BACKEND_FLUSH) {
		io->target = d->number;
		push(&d->waiters, io);
	} else {
		split(d, io);
	}
	settle(d);
	leave(d);
}

/* Waits for work, or until it is time to look what has been dirty for long. */
static void wait_for_work(struct s3_direct *d)
{
	struct timespec until;
	uint64_t due = s3_now() + LOOK_NS;

	if (TAILQ_EMPTY(&d->dirty)) {
		pthread_cond_wait(&d->work, &d->lock);
		return;
	}
	until.tv_sec = (time_t)(due / 1000000000);
	until.tv_nsec = (long)(due % 1000000000);
	pthread_cond_timedwait(&d->work, &d->lock, &until);
}

static void *storer(void *opaque)
{
	struct s3_direct *d = opaque;
	struct chunk *c;

	pthread_mutex_lock(&d->lock);
	while (!d->stopping) {
		c = TAILQ_FIRST(&d->puts);
		if (!c) {
			wait_for_work(d);
			begin_stores(d);
			continue;
		}
		TAILQ_REMOVE(&d->puts, c, put);
		pthread_mutex_unlock(&d->lock);
		put_chunk(d, c);
		pthread_mutex_lock(&d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

static int extents(struct s3_volume *v, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque)
{
	struct s3_direct *d = v->direct;
	uint64_t end = offset + length;

	while (offset < end) {
		uint64_t chunk = offset / d->chunk_bytes, stop;
		struct backend_extent extent = {.offset = offset};
		int r;

		pthread_mutex_lock(&d->lock);
		extent.hole = extent.zero = !concerns(d, chunk);
		do
			stop = ++chunk * d->chunk_bytes;
		while (stop < end && !concerns(d, chunk) == extent.hole);
		pthread_mutex_unlock(&d->lock);
		extent.length = (stop < end ? stop : end) - offset;
		offset = stop;
		r = fn(opaque, &extent);
		if (r || flags & BACKEND_REQ_ONE)
			return r;
	}
	return 0;
}

static void set_info(const struct s3_volume *v, struct backend_info *info)
{
	info->max_request = v->direct->chunk_bytes;
	info->trim_granularity = v->direct->chunk_bytes;
}

static size_t count(struct s3_volume *v, struct backend_counter *counters, size_t max)
{
	struct s3_direct *d = v->direct;
	uint64_t present = 0;
	size_t n;

	pthread_mutex_lock(&d->lock);
	for (uint64_t i = 0; i < (d->n_chunks + 7) / 8; i++)
		present += (unsigned)__builtin_popcount(d->present[i]);
	const struct backend_counter all[] = {
		{"chunks", present},
		{"chunks_stored", d->stored},
		{"bytes_stored", d->stored_bytes},
		{"chunks_loaded", d->loaded},
		{"deleted", d->deleted},
		{"reads_memory", d->reads_memory},
		{"reads_store", d->reads_store},
		{"stalls", d->stalls},
		{"memory_bytes", (uint64_t)d->n_buffers * d->chunk_bytes},
	};
	pthread_mutex_unlock(&d->lock);

	n = sizeof all / sizeof all[0];
	memcpy(counters, all, (n < max ? n : max) * sizeof *all);
	return n;
}

uint64_t s3_direct_memory(uint64_t chunk_bytes)
{
	return LEAST_CHUNKS * chunk_bytes;
}

/* ---- open and close ------------------------------------------------------------------- */

/* Notes which chunks have an object. */
static int list_chunks(struct s3_direct *d)
{
	struct s3_volume *v = d->v;
	char prefix[sizeof v->base + 8];
	char *token = NULL;
	int r;

	snprintf(prefix, sizeof prefix, "%schunk/", v->base);
	do {
		struct s3_request req = {
			.op = S3_LIST,
			.pool = S3_POOL_BACKGROUND,
			.key = prefix,
			.token = token,
			.retry_deadline = v->deadline,
		};

		r = s3_store_call(v->store, &req);
		free(token);
		token = NULL;
		if (r)
			return s3_volume_refuse(v, r, "%s", req.message);
		for (size_t i = 0; r == 0 && i < req.listing.n_objects; i++) {
			const struct s3_listed *o = &req.listing.objects[i];
			struct s3_name name;

			if (!s3_name_parse(o->key + strlen(v->base), &name) ||
				name.number >= d->n_chunks || o->size != bytes_of(d, name.number))
				r = s3_volume_refuse(v, -EINVAL,
					"volume=%s: %s of %" PRIu64
					" bytes is no chunk of it; move it away, or restore the "
					"volume from a backup",
					v->name, o->key, o->size);
			else
				set_present(d, name.number, true);
		}
		if (r == 0 && req.listing.token)
			r = (token = strdup(req.listing.token)) ? 0 : -ENOMEM;
		s3_listing_free(&req.listing);
	} while (r == 0 && token);
	return r;
}

/* Raises the epoch in the super object, so that another writer notices. */
static int claim(struct s3_direct *d)
{
	struct s3_volume *v = d->v;

	for (int i = 0; i < CLAIMS; i++) {
		struct s3_super super;
		struct s3_buffer out = {0};
		struct s3_request req;
		struct iovec iov;
		enum s3_check check;
		void *data;
		size_t length;
		char etag[S3_ETAG_MAX + 1];
		int r = s3_volume_get_all(v, d->super_key, &data, &length, &req);

		if (r)
			return r == -ENOMEM ? r : s3_volume_refuse(v, r, "%s", req.message);
		check = s3_super_decode(data, length, &super);
		free(data);
		if (check != S3_GOOD)
			return s3_volume_refuse(v, -EINVAL, "volume=%s: %s %s", v->name,
				d->super_key, s3_check_text(check));
		memcpy(etag, req.etag, sizeof etag);
		v->epoch = ++super.epoch;
		s3_super_encode(&super, &out);
		s3_super_free(&super);
		if (out.failed)
			return -ENOMEM;
		iov = (struct iovec){out.data, out.length};
		req = (struct s3_request){
			.op = S3_PUT,
			.pool = S3_POOL_BACKGROUND,
			.key = d->super_key,
			.iov = &iov,
			.iovcnt = 1,
			.if_match = v->conditional && etag[0] ? etag : NULL,
			.retry_deadline = v->deadline,
		};
		r = s3_store_call(v->store, &req);
		s3_buffer_free(&out);
		if (r == 0)
			return 0;
		/* Another one was quicker, or this very PUT whose reply was lost. */
		if (r != -EEXIST)
			return s3_volume_refuse(v, r, "%s", req.message);
	}
	return s3_volume_refuse(v, -EAGAIN,
		"volume=%s: others open it again and again at this moment; end them first",
		v->name);
}

static int set_up(struct s3_direct *d, const struct s3_config *c)
{
	struct s3_volume *v = d->v;
	pthread_condattr_t attr;
	int r;

	pthread_mutex_init(&d->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&d->work, &attr);
	pthread_cond_init(&d->quiet, &attr);
	pthread_condattr_destroy(&attr);
	TAILQ_INIT(&d->used);
	TAILQ_INIT(&d->dirty);
	TAILQ_INIT(&d->puts);
	TAILQ_INIT(&d->stalled);
	d->chunk_blocks = v->super.chunk_blocks;
	d->chunk_bytes = d->chunk_blocks << v->shift;
	d->n_chunks = (s3_volume_size(v) + d->chunk_bytes - 1) / d->chunk_bytes;
	d->uploads = v->uploads;
	d->max_buffers = (unsigned)(c->memory / d->chunk_bytes);
	if (c->memory < s3_direct_memory(d->chunk_bytes))
		return s3_volume_refuse(v, -EINVAL,
			"memory=%" PRIu64 ": too little for chunks of %" PRIu32
			" bytes; give %" PRIu64 " or more",
			c->memory, d->chunk_bytes, s3_direct_memory(d->chunk_bytes));
	d->n_buckets = 64;
	while (d->n_buckets < d->max_buffers)
		d->n_buckets *= 2;
	d->buckets = calloc(d->n_buckets, sizeof *d->buckets);
	d->present = calloc(1, d->n_chunks / 8 + 1);
	d->sink = malloc(d->chunk_bytes);
	d->check_iov.iov_base = malloc(SUPER_MAX);
	d->check_iov.iov_len = SUPER_MAX;
	if (!d->buckets || !d->present || !d->sink || !d->check_iov.iov_base)
		return -ENOMEM;
	s3_volume_key(v, &(struct s3_name){.kind = S3_NAME_SUPER}, d->super_key);
	r = c->readonly ? 0 : claim(d);
	return r ? r : list_chunks(d);
}

static void stop(struct s3_volume *v)
{
	struct s3_direct *d = v->direct;

	if (!d->running)
		return;
	/* Nothing can be saved any more: not even what is under way is waited for. */
	if (atomic_load(&v->failed))
		s3_store_stop(v->store);
	pthread_mutex_lock(&d->lock);
	d->want_up_to = d->number;
	settle(d);
	while (!TAILQ_EMPTY(&d->dirty) && atomic_load(&v->failed) == 0)
		pthread_cond_wait(&d->quiet, &d->lock);
	d->stopping = true;
	pthread_cond_broadcast(&d->work);
	leave(d);
	pthread_join(d->storer, NULL);
}

static void free_direct(struct s3_volume *v)
{
	struct s3_direct *d = v->direct;

	for (size_t i = 0; d->buckets && i < d->n_buckets; i++)
		while (d->buckets[i]) {
			struct chunk *c = d->buckets[i];

			d->buckets[i] = c->next;
			free_chunk(c);
		}
	while (d->spare) {
		uint8_t *buffer = d->spare;

		memcpy(&d->spare, buffer, sizeof d->spare);
		free(buffer);
	}
	free(d->buckets);
	free(d->present);
	free(d->sink);
	free(d->check_iov.iov_base);
	pthread_cond_destroy(&d->quiet);
	pthread_cond_destroy(&d->work);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

static const struct s3_layout_ops layout = {
	.name = "direct",
	.submit = submit,
	.extents = extents,
	.counters = count,
	.info = set_info,
	.start = start,
	.stop = stop,
	.give_up = give_up,
	.free = free_direct,
};

int s3_direct_open(struct s3_volume *v, const struct s3_config *config)
{
	v->direct = calloc(1, sizeof *v->direct);
	if (!v->direct)
		return -ENOMEM;
	v->direct->v = v;
	v->layout = &layout;
	return set_up(v->direct, config);
}
