/* SPDX-License-Identifier: BSD-3-Clause */
/* A volume's life: opened, served, closed. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/crypto.h>

#include "backends/backend.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/chunked/chunked.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/lifecycle/close_timeout.h"
#include "backends/s3/lifecycle/internal.h"
#include "backends/s3/lifecycle/lifecycle.h"
#include "backends/s3/log/log.h"
#include "backends/s3/log/writeback.h"
#include "backends/s3/log/writeback_file.h"
#include "backends/s3/read/read.h"
#include "backends/s3/recovery/recovery.h"
#include "backends/s3/recovery/writeback_open.h"
#include "backends/s3/state/cache.h"
#include "backends/s3/state/cachefile.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "backends/s3/state/readahead.h"

/* Seconds after which a request of an open is given up, unless retry-deadline= says otherwise. */
#define OPEN_DEADLINE 20
/* Seconds of each request that takes a failed open back, and of those that nobody has to know of.
 */
#define CLEAN_DEADLINE 5
/* Headers after the newest root for which it is worth writing another at the end. */
#define MANY_HEADERS 64

/* Reads and checks the super object; creates it if that is asked for. */
static int read_super(struct s3_volume *v, const struct s3_config *c, uint64_t size)
{
	struct s3_name name = {.kind = S3_NAME_SUPER};
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	enum s3_check check;
	void *data;
	size_t length;
	int r;

	s3_volume_key(v, &name, key);
	r = s3_volume_get_all(v, key, &data, &length, &req);
	if (r == 0 && c->exclusive) {
		free(data);
		return s3_volume_refuse(
			v, -EEXIST, "volume=%s: exists already; choose another name", v->name);
	}
	if (r == -ENOENT && v->host.previous_session)
		return s3_volume_refuse_clients(v, "is gone");
	if (r == -ENOENT && c->create) {
		r = s3_volume_create(v, c, c->size ? c->size : size, key);
		if (r)
			return r;
		r = s3_volume_get_all(v, key, &data, &length, &req);
	}
	if (r == -ENOENT)
		return s3_volume_refuse(v, r,
			"volume=%s: not found under prefix=%s; correct the name, or create it "
			"with "
			"create=on and size=",
			v->name, c->prefix);
	if (r == -ENOMEM)
		return r;
	if (r)
		return s3_volume_refuse(v, r, "%s", req.message);
	check = s3_super_decode(data, length, &v->super);
	free(data);
	if (check != S3_GOOD)
		return s3_volume_refuse(v, check == S3_NO_MEMORY ? -ENOMEM : -EINVAL,
			"volume=%s: %s %s", v->name, key, s3_check_text(check));
	r = s3_volume_check_features(v, c);
	if (r)
		return r;
	if (c->layout == S3_LAYOUT_DIRECT && v->super.layout != S3_LAYOUT_DIRECT)
		return s3_volume_refuse(v, -EEXIST,
			"layout=direct: the volume exists and is a log; leave layout= out, or use "
			"another name");
	if (c->snapshot && v->super.layout == S3_LAYOUT_DIRECT)
		return s3_volume_refuse(v, -EOPNOTSUPP,
			"snapshot=%s: volume %s has layout=direct, which has no snapshots; leave "
			"snapshot= out",
			c->snapshot, v->name);
	for (unsigned i = 0; i < v->super.n_parents; i++)
		if (strlen(v->super.parents[i].path) + 1 + S3_KEY_ROOM > S3_KEY_MAX)
			return s3_volume_refuse(v, -EINVAL,
				"volume=%s: the name of the parent in %s is too long", v->name,
				key);
	v->shift = v->super.block_shift;
	v->block_size = 1u << v->shift;
	if (c->size && !c->snapshot && c->size != v->super.blocks << v->shift)
		return s3_volume_refuse(v, -EEXIST,
			"size=%" PRIu64 ": the volume exists with %" PRIu64
			" bytes; leave size= out, or resize it",
			c->size, v->super.blocks << v->shift);
	return 0;
}

static void init_locks(struct s3_volume *v)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&v->starting, NULL);
	pthread_mutex_init(&v->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&v->sealer_work, &attr);
	pthread_cond_init(&v->keeper_work, &attr);
	pthread_cond_init(&v->collector_work, &attr);
	pthread_cond_init(&v->quiet, &attr);
	pthread_condattr_destroy(&attr);
	v->stalled_tail = &v->stalled;
	v->sealing_tail = &v->sealing;
	v->orders_tail = &v->orders;
	v->collections_tail = &v->collections;
}

static int load(struct s3_volume *v, const struct s3_config *c, uint64_t size)
{
	bool readonly = c->readonly || c->snapshot;
	int r = 0;

	v->batch_size = c->batch_size;
	v->uploads = (unsigned)c->uploads;
	/* One that is filled and one that is sealed. */
	v->max_batches = v->uploads + 2;
	v->flush_mode = c->flush;
	v->conditional = c->fencing == S3_FENCING_AUTO;
	v->wants_checksums = c->payload_signing == S3_PAYLOAD_CRC32C;
	v->checkpoint_every = c->checkpoint;
	v->gc_delay_ns = c->gc_delay * 1000000000;
	v->next_gc = S3_GC | 1;
	v->require_clean_close = c->require_clean_close;
	v->write_back_discard = c->write_back_discard;
	v->before_change = c->before_change;
	v->before_change_opaque = c->before_change_opaque;
	v->when_closed = c->when_closed;
	if (c->encryption_key)
		r = s3_volume_read_key(v, c->encryption_key);
	if (r == 0)
		r = s3_random(v->instance);
	if (r == 0)
		r = s3_failpoint_choose(&v->host);
	if (r == 0 && c->cache_file)
		r = s3_cachefile_open(c->cache_file, c->cache_size, &v->host, &v->cachefile);
	/* A reader sees what is in the store. */
	if (r == 0 && c->write_back && !readonly)
		r = s3_writeback_open(c->write_back, c->write_back_size, &v->host, &v->writeback);
	if (r == 0)
		r = read_super(v, c, size);
	if (r == 0)
		r = s3_volume_make_transforms(v);
	if (r == 0 && v->cachefile && v->super.features & S3_FEATURE_AES)
		r = s3_volume_refuse(v, -EOPNOTSUPP,
			"cache-file=%s: would hold the data of an encrypted volume as plain text; "
			"leave it out",
			c->cache_file);
	if (r == 0 && v->cachefile && v->super.layout == S3_LAYOUT_DIRECT)
		r = s3_volume_refuse(v, -EINVAL,
			"cache-file=%s: volume=%s has layout=direct, which has no cache; leave it "
			"out",
			c->cache_file, v->name);
	if (r == 0 && v->writeback && v->super.layout == S3_LAYOUT_DIRECT)
		r = s3_volume_refuse(v, -EINVAL,
			"write-back=%s: volume=%s has layout=direct, which has no log; leave it "
			"out",
			c->write_back, v->name);
	if (r)
		return r;
	if (v->super.layout == S3_LAYOUT_DIRECT && !c->readonly && c->require_clean_close &&
		!c->create)
		r = s3_volume_refuse(v, -EBUSY,
			"volume=%s: has layout=direct, which does not record whether a server has "
			"it; make sure that none has, and use --take-over",
			v->name);
	else if (v->super.layout == S3_LAYOUT_DIRECT && !c->readonly && v->host.previous_session)
		r = s3_volume_refuse_clients(
			v, "has layout=direct, which does not record how its last server ended");
	else if (v->super.layout == S3_LAYOUT_DIRECT && !c->readonly && c->before_change)
		r = c->before_change(v, c->before_change_opaque);
	if (r == 0)
		r = v->super.layout == S3_LAYOUT_DIRECT ? s3_direct_open(v, c) : s3_log_open(v, c);
	if (r)
		return r;
	v->backend.size = s3_volume_size(v);
	v->backend.readonly = readonly;
	if (!readonly && v->layout->has_log)
		v->backend.session = s3_session(v->instance);
	v->deadline = 0;
	v->opened = s3_now();
	s3_store_park(v->store);
	return 0;
}

/*
 * If everything that was acknowledged is stored: says that nobody has the volume open. 0 or
 * negative errno, as s3_close_cleanly().
 */
static int leave(struct s3_volume *v, struct s3_request *req)
{
	int r = atomic_load(&v->failed);

	if (!s3_is_drained(v))
		return r ? r : -EBUSY;
	r = s3_close_cleanly(v, req);
	if (r == 0 && v->when_closed)
		v->when_closed(v, v->before_change_opaque);
	if (r == 0 && v->whole) {
		v->deadline = CLEAN_DEADLINE;
		s3_writeback_unmark(v);
	}
	return r;
}

/* The volume counts as in use: reports what happened, how to open it, and why ("": that is known).
 */
static void tell_in_use(struct s3_volume *v, const char *what, const char *why)
{
	bool named = memcmp(v->super.write_back, s3_writeback_nobody, S3_UUID) != 0;
	const char *path = v->writeback && named ? v->writeback->file.path : NULL;

	backend_error(&v->host,
		"volume=%s: %s; next time %s%s%suse --take-over with userblk-s3%s%s", v->name, what,
		path ? "give write-back=" : "", path ? path : "", path ? ", and " : "",
		*why ? ": " : "", why);
}

/* Says that nobody has it as long as that may take. 0, or negative errno, reported. */
static int end(struct s3_volume *v)
{
	struct s3_request req = {0};
	uint64_t since = s3_now();
	struct s3_lag lag;
	const char *why;
	char timeout[128];
	int r;

	v->deadline = 0;
	if (s3_is_drained(v))
		s3_writeback_empty(v);
	do
		r = leave(v, &req);
	while (r && r != -ESTALE && s3_closing_pause(v, since));
	/* It is the other one's now. */
	if (r == 0 || r == -ESTALE || atomic_load(&v->fenced))
		return 0;
	if (atomic_load(&v->failed))
		r = atomic_load(&v->failed);
	s3_log_lag(v, &lag);
	if (lag.changes)
		return r; /* reported */
	why = s3_closing_why(v->closing);
	if (why)
		snprintf(timeout, sizeof timeout, "%s for close-timeout=%" PRIu64, why,
			v->close_timeout_ns / 1000000000);
	tell_in_use(v, "all data is stored, but not that it was closed",
		why			  ? timeout
		: atomic_load(&v->failed) ? ""
		: *req.message		  ? req.message
					  : strerror(-r));
	return r;
}

int s3_volume_load(struct s3_volume *v, const struct s3_config *c, uint64_t size)
{
	int r = load(v, c, size), left = -EBUSY;
	struct s3_request req;

	if (r && v->endable) {
		v->deadline = CLEAN_DEADLINE;
		if (s3_is_drained(v))
			s3_writeback_empty(v);
		left = leave(v, &req);
	}
	if (r && v->ours && left && left != -ESTALE && !atomic_load(&v->fenced))
		tell_in_use(v, "counts as in use now, although nobody has it", "");
	return r;
}

void s3_volume_detach(struct s3_volume *v)
{
	s3_store_close(v->store);
	v->layout->free(v);
	s3_cachefile_close(v->cachefile);
	s3_writeback_close(v->writeback);
	s3_cache_free(v->cache);
	s3_streams_free(v->streams);
	s3_map_free(v->map);
	s3_objects_free(v->objects);
	s3_crc_cache_free(v->crcs);
	s3_summary_abandon(&v->summary);
	for (unsigned i = 0; v->transforms && i <= v->super.n_parents; i++)
		s3_transform_free(v->transforms[i]);
	free(v->transforms);
	OPENSSL_cleanse(v->key, sizeof v->key);
	if (v->volume_keys)
		OPENSSL_cleanse(v->volume_keys, (1 + v->super.n_parents) * sizeof *v->volume_keys);
	free(v->volume_keys);
	s3_super_free(&v->super);
	s3_owed_drop(v);
	free(v->passed);
	free(v->regions);
	free(v->summaries);
	free(v->snapshots);
	s3_prune_free(v);
	while (v->kept) {
		struct s3_kept *next = v->kept->next;

		free(v->kept->regions);
		free(v->kept);
		v->kept = next;
	}
	free(v->name);
	pthread_cond_destroy(&v->quiet);
	pthread_cond_destroy(&v->collector_work);
	pthread_cond_destroy(&v->keeper_work);
	pthread_cond_destroy(&v->sealer_work);
	pthread_mutex_destroy(&v->lock);
	pthread_mutex_destroy(&v->starting);
	free(v);
}

int s3_volume_attach(
	const struct s3_config *c, const struct backend_host *host, struct s3_volume **out)
{
	struct s3_volume *v = calloc(1, sizeof *v);
	int r;

	if (!v)
		return -ENOMEM;
	v->host = *host;
	v->layout = &s3_log_layout;
	init_locks(v);
	snprintf(v->base, sizeof v->base, "%s/%s/", c->prefix, c->volume);
	v->name = strdup(c->volume);
	/* Report an error to the user who starts a server, unless they asked for patience. */
	v->deadline = c->store.retry_deadline && !c->use_default_deadline
			      ? (uint32_t)c->store.retry_deadline
			      : OPEN_DEADLINE;
	v->close_timeout_ns = c->close_timeout * 1000000000;
	r = v->name ? s3_store_open(&c->store, &v->host, &v->store) : -ENOMEM;
	if (r) {
		s3_volume_detach(v);
		return r;
	}
	*out = v;
	return 0;
}

int s3_volume_open(const struct s3_config *config, uint64_t size, const struct backend_host *host,
	struct s3_volume **out)
{
	struct s3_volume *v;
	int r = s3_volume_attach(config, host, &v);

	if (r)
		return r;
	r = s3_volume_load(v, config, size);
	if (r) {
		s3_volume_detach(v);
		return r;
	}
	*out = v;
	return 0;
}

void s3_volume_stop(struct s3_volume *v)
{
	if (!v->closing)
		v->closing = s3_closing_begin(v);
}

int s3_volume_finish(struct s3_volume *v)
{
	struct s3_lag lag = {0};
	int r = 0;

	/* Fences add up where a volume is often opened and not written; marks wait for a root. */
	if (v->layout->has_log && !v->started && !v->backend.readonly &&
		(v->applied - v->checkpoint > MANY_HEADERS || atomic_load(&v->marked)))
		v->layout->start(v);
	s3_volume_stop(v);
	v->layout->stop(v);
	if (v->layout->has_log && !v->backend.readonly)
		r = end(v);
	s3_closing_end(v->closing);
	if (v->layout->has_log)
		s3_log_lag(v, &lag);
	return !v->layout->has_log || lag.changes ? atomic_load(&v->failed) : r;
}

int s3_volume_close(struct s3_volume *v)
{
	int r = s3_volume_finish(v);

	s3_volume_detach(v);
	return r;
}

size_t s3_volume_counters(struct s3_volume *v, struct backend_counter *counters, size_t max)
{
	return v->layout->counters(v, counters, max);
}
