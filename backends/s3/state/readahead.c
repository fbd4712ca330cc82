/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <stdlib.h>

#include "backends/s3/state/readahead.h"

/* Streams looked for, and of those found how many are kept. */
#define CANDIDATES 64
#define FOUND_MAX  32
/* Requests in flight together: so many, but no further apart than that. */
#define REORDER_READS 32
#define REORDER	      (4u << 20)
/* It is a stream after so many requests and bytes, */
#define PROOF_READS 3
#define PROOF_BYTES (64u << 10)
/* if no more than this part of the way was left out. Looked at again after so many bytes. */
#define HOLES_SHARE 4
#define PROOF_WAY   (2 * REORDER)
/* It has ended when so many other reads came meanwhile. */
#define FORGOTTEN 4096
/* Bytes first read ahead. */
#define FIRST_WINDOW (256u << 10)

struct stream {
	uint64_t next;	/* end of what was read; 0: none */
	uint64_t start; /* of the way that is looked at */
	uint64_t bytes; /* read on it by requests that were the furthest */
	uint64_t holes; /* bytes passed over, and not read since by requests that were overtaken */
	uint64_t ahead; /* up to where it has been read ahead */
	uint64_t window;
	uint64_t used; /* when */
	unsigned reads;
	bool found;
};

struct s3_streams {
	pthread_mutex_t lock;
	uint64_t limit;
	uint64_t clock; /* reads noted */
	unsigned n_found;
	struct stream streams[CANDIDATES];
};

struct s3_streams *s3_streams_new(uint64_t limit)
{
	struct s3_streams *s = calloc(1, sizeof *s);

	if (!s)
		return NULL;
	pthread_mutex_init(&s->lock, NULL);
	s->limit = limit;
	return s;
}

void s3_streams_free(struct s3_streams *s)
{
	if (!s)
		return;
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static void forget(struct s3_streams *s, struct stream *t)
{
	s->n_found -= t->found;
	*t = (struct stream){0};
}

static uint64_t distance(uint64_t a, uint64_t b)
{
	return a < b ? b - a : a - b;
}

/* The stream that a read goes on with: the nearest. Or a place for a new one. */
static struct stream *find(struct s3_streams *s, uint64_t offset, uint64_t length)
{
	uint64_t reach = REORDER_READS * length < REORDER ? REORDER_READS * length : REORDER;
	struct stream *best = NULL, *oldest = NULL;

	for (unsigned i = 0; i < CANDIDATES; i++) {
		struct stream *t = &s->streams[i];

		if (t->found && s->clock - t->used > FORGOTTEN)
			forget(s, t);
		if (t->next && distance(offset, t->next) <= reach &&
			(!best || distance(offset, t->next) < distance(offset, best->next)))
			best = t;
		/* Those that have been found stay: they are at most half. */
		if (!t->found && (!oldest || t->used < oldest->used))
			oldest = t;
	}
	if (best)
		return best;
	*oldest = (struct stream){.next = offset, .start = offset, .ahead = offset};
	return oldest;
}

static bool is_dense(const struct stream *t)
{
	return t->holes * HOLES_SHARE <= t->next - t->start;
}

/* Adds one that has been found; if there are too many, it replaces the one used least recently. */
static void keep(struct s3_streams *s, struct stream *t)
{
	struct stream *oldest = NULL;

	t->found = true;
	t->window = FIRST_WINDOW;
	if (++s->n_found <= FOUND_MAX)
		return;
	for (unsigned i = 0; i < CANDIDATES; i++) {
		struct stream *other = &s->streams[i];

		if (other != t && other->found && (!oldest || other->used < oldest->used))
			oldest = other;
	}
	forget(s, oldest);
}

/* What to read ahead of a stream now, if anything. */
static bool advance(
	const struct s3_streams *s, struct stream *t, uint64_t size, struct s3_ahead *ahead)
{
	uint64_t most = s->limit / s->n_found, window, step, to;

	if (most > S3_AHEAD_MAX)
		most = S3_AHEAD_MAX;
	window = t->window < most ? t->window : most;
	step = (window / 2 < S3_AHEAD_STEP ? window / 2 : S3_AHEAD_STEP) / 4096 * 4096;
	if (step == 0)
		return false;
	if (t->ahead < t->next)
		t->ahead = t->next;
	to = t->next + window;
	/* Large parts, at places where those of an object may begin. */
	if (to / step * step > t->ahead)
		to = to / step * step;
	if (to > size)
		to = size;
	if (to <= t->ahead || (to - t->ahead < step && to < size))
		return false;
	*ahead =
		(struct s3_ahead){.from = t->ahead, .to = to, .stream = (unsigned)(t - s->streams)};
	t->ahead = to;
	if (t->window < S3_AHEAD_MAX)
		t->window *= 2;
	return true;
}

/* Takes a read in: is the stream, now or still, to be read ahead? */
static bool proceed(struct s3_streams *s, struct stream *t, uint64_t offset, uint64_t length)
{
	t->used = s->clock;
	if (offset + length <= t->next) {
		/* It was overtaken, or goes backwards. */
		t->holes -= t->holes < length ? t->holes : length;
		return false;
	}
	if (offset > t->next)
		t->holes += offset - t->next;
	t->next = offset + length;
	t->bytes += length;
	t->reads++;
	if (!t->found && t->reads >= PROOF_READS && t->bytes >= PROOF_BYTES && is_dense(t))
		keep(s, t);
	if (t->next - t->start > PROOF_WAY) {
		if (t->found && !is_dense(t)) {
			s->n_found--;
			t->found = false;
		}
		t->start = t->next;
		t->bytes = 0;
		t->reads = 0;
	}
	return t->found;
}

bool s3_streams_note(struct s3_streams *s, uint64_t offset, uint64_t length, uint64_t size,
	struct s3_ahead *ahead)
{
	struct stream *t;
	bool more;

	pthread_mutex_lock(&s->lock);
	s->clock++;
	t = find(s, offset, length);
	more = proceed(s, t, offset, length) && advance(s, t, size, ahead);
	pthread_mutex_unlock(&s->lock);
	return more;
}

void s3_streams_cut(struct s3_streams *s, const struct s3_ahead *ahead, uint64_t reached)
{
	struct stream *t = &s->streams[ahead->stream];

	pthread_mutex_lock(&s->lock);
	if (t->ahead == ahead->to && reached < ahead->to)
		t->ahead = reached;
	pthread_mutex_unlock(&s->lock);
}
