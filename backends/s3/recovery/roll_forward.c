/* SPDX-License-Identifier: BSD-3-Clause */
/* The log after the root, read ahead and applied, up to its end. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/batch.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/recovery/internal.h"

#define FIRST_READ (16u << 10)

/* Windows full of headers without an end that make it likely that there is one at work. */
#define ENDLESS 16

static void look_done(struct s3_request *req)
{
	struct s3_window *w = ((struct s3_look *)req->opaque)->window;

	pthread_mutex_lock(&w->lock);
	if (--w->pending == 0)
		pthread_cond_signal(&w->done);
	pthread_mutex_unlock(&w->lock);
}

/* Asks for the beginnings of n log objects and waits for all answers. */
static int look_at(struct s3_volume *v, struct s3_window *w, uint64_t first, unsigned n)
{
	unsigned submitted;
	int r = 0;

	w->pending = n;
	for (submitted = 0; r == 0 && submitted < n; submitted++) {
		struct s3_look *l = &w->looks[submitted];

		l->window = w;
		l->iov = (struct iovec){w->memory + (size_t)submitted * FIRST_READ, FIRST_READ};
		s3_volume_object_key(v, first + submitted, l->key);
		l->req = (struct s3_request){
			.op = S3_GET,
			.pool = S3_POOL_BACKGROUND,
			.key = l->key,
			.iov = &l->iov,
			.iovcnt = 1,
			.allow_short = true,
			.retry_deadline = v->deadline,
			.done = look_done,
			.opaque = l,
		};
		r = s3_store_submit(v->store, &l->req);
		if (r)
			break;
	}
	pthread_mutex_lock(&w->lock);
	w->pending -= n - submitted;
	while (w->pending)
		pthread_cond_wait(&w->done, &w->lock);
	pthread_mutex_unlock(&w->lock);
	return r;
}

int s3_recovery_damaged(struct s3_volume *v, const char *key, const char *why)
{
	return s3_volume_refuse(v, -EIO,
		"volume=%s: %s %s; if the store lost power, delete this object to return to the "
		"state before it was written; otherwise restore the volume from a backup",
		v->name, key, why);
}

int s3_recovery_look_again(struct s3_volume *v, uint64_t seq, void **data,
	struct s3_object_header *header, struct s3_request *req)
{
	char key[S3_KEY_MAX + 1];
	enum s3_check check;
	int r = s3_volume_get_header(v, seq, data, header, &check, req);

	if (r)
		return r == -ENOENT || r == -ENOMEM ? r
						    : s3_volume_refuse(v, r, "%s", req->message);
	if (check == S3_GOOD && header->id != seq)
		check = S3_INVALID;
	if (check == S3_GOOD)
		return 0;
	free(*data);
	*data = NULL;
	/* With nothing of its own the super object is what is foreign here: it was restored. */
	if (check == S3_OTHER_VOLUME && v->conditional && v->applied)
		return S3_FOREIGN_OBJECT;
	s3_volume_object_key(v, seq, key);
	/* It may hold what was flushed: a program that knows the format can read it. */
	if (check == S3_NEWER || check == S3_UNKNOWN_FLAG)
		return s3_volume_refuse(
			v, -EIO, "volume=%s: %s %s", v->name, key, s3_check_text(check));
	return s3_recovery_damaged(v, key, s3_check_text(check));
}

/* The log ends here; besides S3_RECOVERY_AGAIN. */
#define END (S3_RECOVERY_AGAIN + 1)

/*
 * Applies what stands at seq, whose beginning has been read. END: nothing is there, or what a
 * fenced writer or one of another volume left. Also S3_RECOVERY_AGAIN.
 */
static int take(struct s3_volume *v, struct s3_recovery *p, uint64_t seq, struct s3_look *l)
{
	struct s3_object_header header;
	struct s3_request again;
	uint64_t size = l->req.object_size;
	void *data = NULL;
	int r;

	if (l->req.result == -ENOENT)
		return END;
	if (l->req.result)
		return s3_volume_refuse(v, l->req.result, "%s", l->req.message);
	if (s3_header_decode(l->iov.iov_base, l->req.bytes, v->super.uuid, &header) != S3_GOOD ||
		header.id != seq) {
		r = s3_recovery_look_again(v, seq, &data, &header, &again);
		if (r)
			return r == -ENOENT || r == S3_FOREIGN_OBJECT ? END : r;
		size = again.object_size;
	}
	if (header.epoch < p->last_epoch)
		r = END;
	else if (size != (uint64_t)header.header_bytes + header.data_bytes)
		r = s3_recovery_damaged(v, l->key, "has another length than its header says");
	else
		r = s3_recovery_apply(p, &header);
	free(data);
	return r;
}

/* Is the volume taken whatever the end of its log may say? */
static bool takes_any(const struct s3_volume *v)
{
	static const uint8_t nobody[S3_UUID];

	return !v->require_clean_close && !v->host.previous_session && !v->writeback &&
	       memcmp(v->super.write_back, nobody, S3_UUID) == 0;
}

/*
 * Finds a number that the log has not come to. All that has been flushed by now is below it: who
 * comes to it follows a writer at work, maybe without end.
 */
static int find_horizon(struct s3_volume *v, struct s3_recovery *p)
{
	struct s3_look *l = &p->window->looks[0];
	uint64_t by = S3_RECOVERY_WINDOW;
	int r;

	do {
		by *= 2;
		r = look_at(v, p->window, v->applied + by, 1);
	} while (r == 0 && l->req.result == 0);
	if (r == 0 && l->req.result != -ENOENT)
		r = s3_volume_refuse(v, l->req.result, "%s", l->req.message);
	p->horizon = v->applied + by;
	return r;
}

int s3_recovery_follow(struct s3_volume *v, struct s3_recovery *p, unsigned n)
{
	struct s3_window *w = p->window;
	int r = 0;

	for (unsigned windows = 1; r == 0; windows++) {
		uint64_t first = v->applied + 1;

		r = look_at(v, w, first, n);
		for (unsigned i = 0; r == 0 && i < n; i++)
			r = take(v, p, first + i, &w->looks[i]);
		n = S3_RECOVERY_WINDOW;
		if (r == 0 && windows == ENDLESS && !p->horizon)
			r = find_horizon(v, p);
		if (r == 0 && windows == ENDLESS && !p->readonly && takes_any(v))
			r = s3_recovery_stop_writer(v, p);
		if (r || !p->horizon || v->applied < p->horizon)
			continue;
		/* A reader has seen enough; a writer that may not take over refuses. */
		r = p->readonly ? END : s3_recovery_stop_writer(v, p);
	}
	return r == END ? 0 : r;
}

/* Was the object at seq, which has been looked at, built when that at gap was in the store? 1: yes.
 */
static int witnesses(struct s3_volume *v, const struct s3_recovery *p, uint64_t gap, uint64_t seq,
	const struct s3_look *l)
{
	struct s3_object_header header;
	struct s3_request again;
	void *data = NULL;
	enum s3_check check;
	int r = l->req.result;

	if (r)
		return r == -ENOENT ? 0 : s3_volume_refuse(v, r, "%s", l->req.message);
	check = s3_header_decode(l->iov.iov_base, l->req.bytes, v->super.uuid, &header);
	if (check == S3_SHORT) {
		r = s3_volume_get_header(v, seq, &data, &header, &check, &again);
		if (r == -ENOENT || r == -ENOMEM)
			return r == -ENOENT ? 0 : r;
		if (r)
			return s3_volume_refuse(v, r, "%s", again.message);
	}
	/* One of a lower epoch counts for nothing: its writer knew another end of the log. */
	r = check == S3_GOOD && header.id == seq && header.epoch >= p->last_epoch &&
	    header.frontier >= gap;
	free(data);
	return r;
}

int s3_recovery_find_witness(struct s3_volume *v, const struct s3_recovery *p, uint64_t *witness)
{
	struct s3_window *w = p->window;
	uint64_t gap = v->applied + 1;
	int r = 0;

	*witness = 0;
	for (uint64_t first = gap + 1; r == 0 && first <= gap + S3_WINDOW;
		first += S3_RECOVERY_WINDOW) {
		r = look_at(v, w, first, S3_RECOVERY_WINDOW);
		for (unsigned i = 0; r == 0 && i < S3_RECOVERY_WINDOW; i++) {
			r = witnesses(v, p, gap, first + i, &w->looks[i]);
			if (r == 1)
				*witness = first + i;
		}
	}
	return r == 1 ? 0 : r;
}

int s3_recovery_tell_lost(struct s3_volume *v, uint64_t witness, bool readonly)
{
	char key[S3_KEY_MAX + 1], later[S3_KEY_MAX + 1];

	s3_volume_object_key(v, v->applied + 1, key);
	s3_volume_object_key(v, witness, later);
	if (!readonly)
		return s3_volume_refuse(v, -EIO,
			"volume=%s: %s is missing, although it had been stored before %s was "
			"written; restore it from a backup, serve the state before it with "
			"readonly=on, or delete all objects of the log after it to return to that "
			"state",
			v->name, key, later);
	backend_error(&v->host,
		"volume=%s: %s is missing, although it had been stored before %s was written; the "
		"state before it is served",
		v->name, key, later);
	v->witness = witness;
	return 0;
}

void s3_recovery_free_window(struct s3_window *w)
{
	pthread_cond_destroy(&w->done);
	pthread_mutex_destroy(&w->lock);
	free(w->memory);
	free(w);
}

struct s3_window *s3_recovery_make_window(void)
{
	struct s3_window *w = calloc(1, sizeof *w);

	if (!w)
		return NULL;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->done, NULL);
	w->memory = malloc((size_t)S3_RECOVERY_WINDOW * FIRST_READ);
	if (w->memory)
		return w;
	s3_recovery_free_window(w);
	return NULL;
}

int s3_recovery_newer_root(struct s3_volume *v, const struct s3_recovery *p)
{
	struct s3_roots roots = {.v = v};
	int r = s3_recovery_list_roots(v, &roots);

	for (size_t i = 0; r == 0 && i < roots.n && roots.seqs[i] > p->newest_root; i++) {
		r = s3_recovery_root_is_there(v, roots.seqs[i]);
		if (r == 1)
			r = S3_RECOVERY_AGAIN;
		else if (r == S3_FOREIGN_ROOT)
			r = 0;
	}
	free(roots.seqs);
	return r;
}

int s3_recovery_check_reached(struct s3_volume *v, const struct s3_recovery *p)
{
	struct s3_name name = {.kind = S3_NAME_ROOT, .number = p->newest_root};
	char key[S3_KEY_MAX + 1];
	int r;

	/* With nothing of its own the super object is what is foreign here: it was restored. */
	if (!v->applied && !p->newest_root && p->foreign_root) {
		name.number = p->foreign_root;
		s3_volume_key(v, &name, key);
		return s3_volume_refuse(v, -EIO,
			"volume=%s: %s belongs to another volume, and nothing is stored of this "
			"one; restore the volume from a backup",
			v->name, key);
	}
	if (v->applied >= p->newest_root)
		return 0;
	r = s3_recovery_newer_root(v, p);
	if (r)
		return r;
	s3_volume_key(v, &name, key);
	return s3_volume_refuse(v, -EIO,
		"volume=%s: %s or a part of it is damaged or missing, and the log ends before it, "
		"at object %" PRIu64 "; restore the volume from a backup",
		v->name, key, v->applied);
}
