/* SPDX-License-Identifier: BSD-3-Clause */
/* The end of the log: keeping other writers out, adding to it, and closing it cleanly. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/base/failpoint.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/probe.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/super.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/recovery/internal.h"
#include "backends/s3/recovery/recovery.h"
#include "backends/s3/recovery/writeback_open.h"

/* How often the log may grow while its end is looked for, before its writer is stopped... */
#define PATIENCE 2

/* How far behind the known end of the log it is stopped, at first and at most. */
#define AHEAD	  16
#define AHEAD_MAX (1u << 20)

/* Ours is in its place; besides S3_RECOVERY_AGAIN, which says that it is not. */
#define STORED (S3_RECOVERY_AGAIN + 1)

/* Is the volume's super object still there? As s3_super_look(). */
static int look_at_super(struct s3_volume *v)
{
	struct s3_name name = {.kind = S3_NAME_SUPER};
	char key[S3_KEY_MAX + 1];

	s3_volume_key(v, &name, key);
	return s3_super_look(v, key, v->super.uuid, NULL);
}

/* ---- the fence -------------------------------------------------------------------- */

/*
 * The same of an object of another volume. It was met before our super object is looked at: if that
 * is still there, it is not of a volume that has been given our name since.
 */
static int meet_foreign(struct s3_volume *v, struct s3_recovery *p, const char *key,
	const struct s3_request *req, char *stale)
{
	int r = look_at_super(v);

	if (r == -ENOENT || r == -ESTALE)
		return s3_volume_refuse(
			v, -ENOENT, "volume=%s: another process has deleted it meanwhile", v->name);
	if (r)
		return s3_volume_refuse(v, r, "volume=%s: %s", v->name, strerror(-r));
	if (!req->etag[0])
		return s3_recovery_damaged(v, key, "has no etag");
	memcpy(stale, req->etag, sizeof req->etag);
	return p->fenced ? 0 : s3_recovery_newer_root(v, p);
}

/*
 * What to do about an object that stands where one of ours of epoch belongs. 0: try again,
 * replacing that of etag stale (""; none). STORED: it is ours. Before the fence stands also
 * S3_RECOVERY_AGAIN.
 */
static int meet(struct s3_volume *v, struct s3_recovery *p, uint64_t seq, uint64_t epoch,
	const char *key, char *stale)
{
	struct s3_object_header header;
	struct s3_request req;
	void *data;
	int r = s3_recovery_look_again(v, seq, &data, &header, &req);

	*stale = 0;
	if (r == S3_FOREIGN_OBJECT)
		return meet_foreign(v, p, key, &req, stale);
	if (r)
		return r == -ENOENT ? 0 : r;
	if (header.epoch < p->last_epoch && req.etag[0]) {
		/*
		 * Its predecessor may be the fence of one who, like us, began with an old root, and
		 * stands where a collection made a hole; then this is an object of the log. But
		 * then there is a newer root by now, without which nothing is collected. Behind our
		 * own fence that has been settled, and a root that comes late changes nothing.
		 */
		r = p->fenced ? 0 : s3_recovery_newer_root(v, p);
		/* Not deleted: that might meet another writer's fence, put there meanwhile. */
		memcpy(stale, req.etag, sizeof req.etag);
	} else if (header.epoch < p->last_epoch) {
		r = s3_recovery_damaged(v, key, "has no etag");
	} else if (header.epoch == epoch && memcmp(header.instance, v->instance, S3_UUID) == 0) {
		r = STORED; /* its reply was lost */
	} else if (p->fenced) {
		r = s3_volume_refuse(v, -EBUSY,
			"volume=%s: another writer took it over while it was being opened; stop "
			"that one, and start again",
			v->name);
	} else {
		/* Another writer was at work up to now; or it is our fence ahead. */
		r = req.object_size == (uint64_t)header.header_bytes + header.data_bytes
			    ? s3_recovery_apply(p, &header)
			    : s3_recovery_damaged(
				      v, key, "has another length than its header says");
	}
	free(data);
	return r;
}

/* An object that stands in the log behind everything and holds nothing. Its bytes, 0: error. */
static size_t build_mark(
	struct s3_volume *v, enum s3_type type, uint64_t seq, uint64_t epoch, uint8_t *buffer)
{
	struct s3_object_header header = {
		.type = type,
		.block_shift = v->shift,
		.id = seq,
		.epoch = epoch,
		.batch = seq,
		.frontier = v->applied,
		.checkpoint = v->checkpoint,
		.time = (uint64_t)time(NULL) * 1000000,
	};
	struct s3_header_writer writer;

	memcpy(header.uuid, v->super.uuid, S3_UUID);
	memcpy(header.instance, v->instance, S3_UUID);
	s3_header_begin(&writer, &header, buffer, S3_ALIGN);
	return s3_header_finish(&writer, NULL);
}

/* The last writer did not close: it may be alive. */
static int refuse_in_use(struct s3_volume *v)
{
	char when[80] = "";
	int64_t last = (int64_t)(v->last_time / 1000000), now = (int64_t)time(NULL);

	if (last > now)
		snprintf(when, sizeof when,
			" (it wrote when its clock was %" PRId64 " s ahead of this one)",
			last - now);
	else if (last)
		snprintf(when, sizeof when, " (it wrote %" PRId64 " s ago)", now - last);
	return s3_volume_refuse(v, -EBUSY,
		"volume=%s: its last writer did not close it%s and may be serving it; give the "
		"control= of that server, stop it, or use --take-over",
		v->name, when);
}

/* May we take over the volume? Its log has been read to the end. */
static int check_end(struct s3_volume *v)
{
	bool closed = s3_closed_cleanly(v);

	if (v->ours)
		return 0;
	if (v->host.previous_session && !closed)
		return s3_volume_refuse_clients(v, "its last server did not close it");
	if (v->host.previous_session && s3_session(v->predecessor) != v->host.previous_session)
		return s3_volume_refuse_clients(v, "another server has served it since then");
	return v->require_clean_close && !closed ? refuse_in_use(v) : 0;
}

/* The fence, with its header decoded. As s3_volume_put_at(). */
static int put_fence(struct s3_volume *v, uint64_t seq, uint64_t epoch, const char *stale,
	uint8_t *buffer, struct s3_object_header *header, struct s3_request *req)
{
	struct iovec iov = {buffer, build_mark(v, S3_TYPE_FENCE, seq, epoch, buffer)};
	char key[S3_KEY_MAX + 1];
	int r;

	if (s3_header_decode(buffer, iov.iov_len, v->super.uuid, header) != S3_GOOD)
		return s3_volume_refuse(
			v, -EINVAL, "volume=%s: its fence cannot be built", v->name);
	s3_volume_object_key(v, seq, key);
	s3_failpoint(S3_FAIL_FENCE_PUT_BEFORE);
	r = s3_volume_put_at(v, key, &iov, 1, *stale ? stale : NULL, v->deadline, req);
	if (r == 0)
		s3_failpoint(S3_FAIL_FENCE_PUT_AFTER);
	else if (r != -EEXIST && !(r == -ENOENT && *stale))
		s3_volume_refuse(v, r, "%s", req->message);
	return r;
}

/* The highest epoch that is known of, our fences ahead included. */
static uint64_t highest_epoch(const struct s3_volume *v, const struct s3_recovery *p)
{
	uint64_t highest = v->epoch > v->super.epoch ? v->epoch : v->super.epoch;

	return p->ahead > highest ? p->ahead : highest;
}

/*
 * Stops a writer that stores objects faster than we follow: a fence ahead of it, at a number H that
 * none of its uploads has come to. The first number that is free when we ask is that of an upload
 * under way, so that the fence itself, which has to stand at the end, would always come too late.
 *
 * - The other writer ends at H: its object does not replace ours, so that its frontier stays below
 *   H, and what it had acknowledged is below H. We have to follow it at most up to there.
 * - The fence ahead decides nothing. Our fence is put at the end of the log as always, and only the
 *   writer that stores it there has the volume. By then, all objects below have been applied, and
 *   no older writer acknowledges anything after it: the same as without a fence ahead.
 * - If the log has come to H before our fence stood, the fence ahead is an object of the log, which
 *   holds nothing. Our fence then stands right behind it. What the other writer had under way
 *   behind H is of a lower epoch, and so absent: its predecessor H was never its own, so none of
 *   it was acknowledged.
 * - If not, our fence is below H, and has a higher epoch than the one at H, which is then absent to
 *   everybody, as what a fenced writer left behind is, and replaced when the log comes there.
 * - If we end before our fence stands, the next writer either finds H at the end of the log and
 *   continues behind it, or puts its fence below H. A fence has an even epoch, a fence ahead an odd
 *   one, and each is the next one to the highest that its writer knew. So the fence of the next
 *   writer has a higher epoch: H is absent for it and for all writers after it. (If the log holds
 *   odd epochs of older programs or of a fence ahead, its epoch can be lower: then it ends when it
 *   reaches H, as after a takeover.)
 */
static int fence_ahead(struct s3_volume *v, struct s3_recovery *p)
{
	uint64_t known = v->epoch > v->super.epoch ? v->epoch : v->super.epoch;
	uint8_t *buffer = aligned_alloc(S3_ALIGN, S3_ALIGN);
	int r = buffer ? -EEXIST : -ENOMEM;

	/*
	 * The fence ahead of an earlier attempt may stand in a hole that the writer has left far
	 * behind. It is not counted, because the next writer need not have seen it.
	 */
	if (p->ahead <= known)
		p->ahead = (known + 1) | 1;
	p->stopped = true;
	/* A writer that is ahead by so many objects stored them while we read as many: soon we
	 * overtake it. */
	for (uint64_t by = AHEAD; r == -EEXIST && by <= AHEAD_MAX; by *= 2) {
		struct s3_object_header header;
		struct s3_request req;

		r = put_fence(v, v->applied + by, p->ahead, "", buffer, &header, &req);
	}
	free(buffer);
	return r == -EEXIST ? 0 : r; /* it is only followed, then */
}

int s3_recovery_stop_writer(struct s3_volume *v, struct s3_recovery *p)
{
	int r;

	if (p->stopped || !v->conditional)
		return 0;
	r = s3_writeback_check(v, &p->chain);
	if (r == 0)
		r = check_end(v);
	if (r == 0)
		r = s3_volume_probe(v);
	return r ? r : fence_ahead(v, p);
}

int s3_recovery_fence(struct s3_volume *v, struct s3_recovery *p)
{
	char key[S3_KEY_MAX + 1], stale[S3_ETAG_MAX + 1] = "";
	uint8_t *buffer = aligned_alloc(S3_ALIGN, S3_ALIGN);
	struct s3_object_header header;
	unsigned missed = 0;
	int r = !buffer ? -ENOMEM : p->mine ? STORED : 0;

	if (!p->mine)
		p->end = 0;
	while (r == 0) {
		uint64_t seq = v->applied + 1;
		struct s3_request req = {0};

		r = check_end(v);
		if (r == 0)
			r = s3_volume_probe(v);
		if (r)
			break;
		/* The next even one, see fence_ahead(). */
		p->epoch = (highest_epoch(v, p) + 2) & ~UINT64_C(1);
		if (p->epoch > S3_EPOCH_MAX) {
			r = s3_volume_refuse(v, -EOVERFLOW,
				"volume=%s: has been opened too often; copy it into a new one",
				v->name);
			break;
		}
		r = put_fence(v, seq, p->epoch, stale, buffer, &header, &req);
		if (r == -EEXIST || (r == -ENOENT && *stale)) {
			s3_volume_object_key(v, seq, key);
			r = meet(v, p, seq, p->epoch, key, stale);
			if (r == 0 && ++missed >= PATIENCE)
				r = s3_recovery_stop_writer(v, p);
			if (r == 0 && missed >= PATIENCE && !*stale)
				r = s3_recovery_follow(v, p, S3_RECOVERY_WINDOW);
			continue;
		}
		p->put |= r == 0 || s3_may_arrive(&req);
		if (r == 0)
			r = STORED;
	}
	p->put |= r == STORED;
	/* It may have been there already when this attempt began. */
	if (r == STORED)
		r = p->mine ? 0 : s3_recovery_apply(p, &header);
	if (r == 0) {
		v->epoch = p->epoch;
		v->ours = p->fenced = true;
		/* Numbers that no other writer uses: its deletions may be late. */
		if (v->next_gc < S3_GC_FIRST(v->epoch))
			v->next_gc = S3_GC_FIRST(v->epoch);
	}
	free(buffer);
	return r;
}

/* ---- the end of the log --------------------------------------------------------------- */

int s3_recovery_roll_forward(struct s3_volume *v, struct s3_recovery *p)
{
	uint64_t witness = 0;
	unsigned grown = 0;
	int r = 0;

	while (r == 0) {
		uint64_t before = v->applied;

		/* After an orderly end there is nothing. */
		r = s3_recovery_follow(v, p, 4);
		if (r == 0)
			r = s3_recovery_check_reached(v, p);
		if (r || p->clean || (p->readonly && p->horizon && v->applied >= p->horizon))
			break;
		if (witness && v->applied == before) {
			r = s3_recovery_newer_root(v, p);
			if (r == 0)
				r = s3_recovery_tell_lost(v, witness, p->readonly);
			break;
		}
		/* A log may grow forever. A reader sees one of its states. */
		grown += witness != 0;
		if (grown == PATIENCE && p->readonly)
			break;
		if (grown == PATIENCE)
			r = s3_recovery_stop_writer(v, p);
		/* What a writer at work stored while we looked is there now, so look again. */
		if (r == 0)
			r = s3_recovery_find_witness(v, p, &witness);
		if (!witness)
			break;
	}
	return r;
}

uint32_t s3_session(const uint8_t instance[S3_UUID])
{
	uint32_t number;

	memcpy(&number, instance, sizeof number);
	number &= INT32_MAX;
	return number ? number : 1;
}

bool s3_closed_cleanly(const struct s3_volume *v)
{
	return v->applied == 0 || v->last_type == S3_TYPE_CLEAN;
}

/* Puts the object, in the place of what a fenced writer left there, and applies it. */
static int add_now(struct s3_recovery *p, const struct iovec *iov, int iovcnt,
	const struct s3_object_header *header)
{
	struct s3_volume *v = p->v;
	char key[S3_KEY_MAX + 1], stale[S3_ETAG_MAX + 1] = "";
	int r = 0;

	s3_volume_object_key(v, header->id, key);
	while (r == 0) {
		struct s3_request req;

		r = s3_volume_put_at(v, key, iov, iovcnt, *stale ? stale : NULL, v->deadline, &req);
		if (r == 0)
			r = STORED;
		else if (r == -EEXIST || (r == -ENOENT && *stale))
			r = meet(v, p, header->id, v->epoch, key, stale);
		else
			s3_volume_refuse(v, r, "%s", req.message);
	}
	return r == STORED ? s3_recovery_apply(p, header) : r;
}

static void put_landed(struct s3_request *req)
{
	struct s3_recovery_put *put = req->opaque;

	pthread_mutex_lock(&put->lock);
	put->landed = true;
	pthread_cond_signal(&put->changed);
	pthread_mutex_unlock(&put->lock);
}

int s3_recovery_add_begin(struct s3_recovery *p, struct s3_recovery_put *put,
	const struct iovec *iov, int iovcnt, const struct s3_object_header *header)
{
	struct s3_volume *v = p->v;
	int r;

	*put = (struct s3_recovery_put){.header = header};
	s3_volume_object_key(v, header->id, put->key);
	pthread_mutex_init(&put->lock, NULL);
	pthread_cond_init(&put->changed, NULL);
	put->request = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_BACKGROUND,
		.key = put->key,
		.iov = iov,
		.iovcnt = iovcnt,
		.if_none_match = v->conditional,
		.retry_deadline = v->deadline,
		.done = put_landed,
		.opaque = put,
	};
	r = s3_store_submit(v->store, &put->request);
	return r ? s3_volume_refuse(v, r, "volume=%s: %s", v->name, strerror(-r)) : 0;
}

int s3_recovery_add_end(struct s3_recovery *p, struct s3_recovery_put *put, bool failed)
{
	struct s3_request *req = &put->request;

	pthread_mutex_lock(&put->lock);
	while (!put->landed)
		pthread_cond_wait(&put->changed, &put->lock);
	pthread_mutex_unlock(&put->lock);
	pthread_cond_destroy(&put->changed);
	pthread_mutex_destroy(&put->lock);
	if (failed)
		return -ECANCELED;
	if (req->result == 0)
		return s3_recovery_apply(p, put->header);
	/* Something stands there, or the store is full: one after the other. */
	if (req->result == -EEXIST || req->result == -ENOSPC)
		return add_now(p, req->iov, req->iovcnt, put->header);
	return s3_volume_refuse(p->v, req->result, "%s", req->message);
}

bool s3_is_drained(struct s3_volume *v)
{
	return v->layout->has_log && !v->backend.readonly && !atomic_load(&v->failed) &&
	       v->frontier == v->applied;
}

/*
 * What stands at seq, where our last object belongs? 0: what a fenced writer, or one of another
 * volume, left, of that etag.
 * STORED: our own, whose reply was lost. -ESTALE: another writer's. Or negative errno.
 */
static int look_at_end(
	struct s3_volume *v, uint64_t seq, char etag[S3_ETAG_MAX + 1], struct s3_request *req)
{
	struct s3_object_header header;
	enum s3_check check;
	void *data;
	int r = s3_volume_get_header(v, seq, &data, &header, &check, req);

	if (r)
		return r;
	free(data);
	if (check == S3_OTHER_VOLUME && v->conditional && req->etag[0]) {
		memcpy(etag, req->etag, sizeof req->etag);
		r = look_at_super(v);
		return r == -ENOENT ? -ESTALE : r;
	}
	if (check != S3_GOOD)
		return -EIO;
	memcpy(etag, req->etag, sizeof req->etag);
	if (header.epoch < v->epoch && *etag)
		return 0;
	return header.type == S3_TYPE_CLEAN && memcmp(header.instance, v->instance, S3_UUID) == 0
		       ? STORED
		       : -ESTALE;
}

int s3_close_cleanly(struct s3_volume *v, struct s3_request *req)
{
	uint64_t seq = v->applied + 1;
	uint8_t *buffer = aligned_alloc(S3_ALIGN, S3_ALIGN);
	struct iovec iov = {
		buffer, buffer ? build_mark(v, S3_TYPE_CLEAN, seq, v->epoch, buffer) : 0};
	char key[S3_KEY_MAX + 1], stale[S3_ETAG_MAX + 1];
	int r = -ENOMEM;

	*req = (struct s3_request){0};
	s3_volume_object_key(v, seq, key);
	if (s3_check_not_deleted(v) == -ESTALE)
		r = -ESTALE;
	else if (iov.iov_len)
		r = s3_volume_put_at(v, key, &iov, 1, NULL, v->deadline, req);
	if (r == -EEXIST) {
		r = look_at_end(v, seq, stale, req);
		if (r == 0)
			r = s3_volume_put_at(v, key, &iov, 1, stale, v->deadline, req);
	}
	free(buffer);
	return r == STORED ? 0 : r;
}
