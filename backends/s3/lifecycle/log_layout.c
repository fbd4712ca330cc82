/* SPDX-License-Identifier: BSD-3-Clause */
/* layout=log: opened, served by some threads, ended. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/batch.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/space.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/lifecycle/internal.h"
#include "backends/s3/log/log.h"
#include "backends/s3/log/writeback.h"
#include "backends/s3/read/read.h"
#include "backends/s3/recovery/recovery.h"
#include "backends/s3/state/cache.h"
#include "backends/s3/state/cachefile.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "backends/s3/state/readahead.h"

/* Batches' worth of memory that a round of compaction takes at most. */
#define COMPACT_BATCHES 16

/*
 * What memory there is besides the batches: a quarter for checksums, a sixteenth for checkpoints
 * that wait, the rest for data, of which compaction may borrow up to half.
 */
static int make_caches(struct s3_volume *v, uint64_t bytes, uint64_t connections)
{
	uint64_t crcs = bytes / 4, most = COMPACT_BATCHES * v->batch_size;

	v->waiting_memory = bytes / 16;
	bytes -= v->waiting_memory;
	v->compact_memory = (bytes - crcs) / 2 < most ? (bytes - crcs) / 2 : most;
	v->crcs = s3_crc_cache_new(crcs);
	v->cache_bytes = bytes - crcs;
	v->cache = s3_cache_new(v->cache_bytes);
	if (!v->crcs || !v->cache)
		return -ENOMEM;
	v->streams = s3_streams_new(s3_cache_ahead_limit(v->cache));
	/* The others are for who waits. */
	v->ahead_max = (unsigned)(connections - connections / 4);
	return v->streams ? 0 : -ENOMEM;
}

/*
 * found: newest object of the log before a replay. What the replay has put behind it is not what
 * the file may have from there: objects of the last writer that were stored behind a gap.
 */
static int attach_cachefile(struct s3_volume *v, const struct s3_config *c, uint64_t found)
{
	struct s3_cachefile_volume volume = {.last_log = found, .next_gc = v->next_gc};

	if (!v->cachefile)
		return 0;
	memcpy(volume.uuid, v->super.uuid, S3_UUID);
	memcpy(volume.before, v->predecessor, S3_UUID);
	memcpy(volume.now, c->readonly || c->snapshot ? v->predecessor : v->instance, S3_UUID);
	return s3_cachefile_attach(v->cachefile, &volume);
}

int s3_log_open(struct s3_volume *v, const struct s3_config *c)
{
	uint64_t buffers = v->max_batches * v->batch_size, found;
	int r;

	if (v->transforms) {
		/* What is stored of a batch is beside it until it has been uploaded. */
		if (c->memory < 3 * buffers)
			return s3_volume_refuse(v, -EINVAL,
				"memory=%" PRIu64 ": too little for uploads=%" PRIu64
				" of batch-size=%" PRIu64
				" of a volume with compression or encryption; give %" PRIu64
				" or more",
				c->memory, c->uploads, c->batch_size, 3 * buffers);
		buffers += (v->max_batches + (v->writeback != NULL)) *
			   s3_transform_room(v->batch_size);
	}
	v->batch_blocks = (uint32_t)(v->batch_size >> v->shift);
	r = make_caches(v, c->memory - buffers, c->store.connections);
	if (r == 0 && c->snapshot) {
		r = s3_recover_snapshot(v, c->snapshot);
		found = v->applied;
	} else if (r == 0) {
		r = s3_recover(v, c->readonly, &found);
	}
	return r ? r : attach_cachefile(v, c, found);
}

/* ---- threads and close ------------------------------------------------------------- */

/* Under the lock. 0 or a positive errno. */
static int make_threads(struct s3_volume *v)
{
	unsigned made = 0;
	int r = 0;

	while (r == 0 && made < v->n_sealers) {
		r = pthread_create(&v->sealers[made], NULL, s3_sealer, v);
		made += r == 0;
	}
	if (r == 0)
		r = s3_writeback_start(v);
	if (r == 0)
		r = pthread_create(&v->keeper, NULL, s3_keeper, v);
	if (r == 0) {
		r = pthread_create(&v->collector, NULL, s3_collector, v);
		if (r == 0)
			return 0;
		v->keeper_stopping = true;
		pthread_cond_broadcast(&v->keeper_work);
		pthread_mutex_unlock(&v->lock);
		pthread_join(v->keeper, NULL);
		pthread_mutex_lock(&v->lock);
		v->keeper_stopping = false;
	}
	v->stopping = true;
	pthread_cond_broadcast(&v->sealer_work);
	pthread_mutex_unlock(&v->lock);
	s3_writeback_stop(v);
	while (made)
		pthread_join(v->sealers[--made], NULL);
	pthread_mutex_lock(&v->lock);
	v->stopping = false;
	return r;
}

static int start_threads(struct s3_volume *v)
{
	sigset_t all, before;
	int r = 0;

	if (atomic_load_explicit(&v->started, memory_order_acquire))
		return 0;
	/* Signals are the framework's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_mutex_lock(&v->starting);
	pthread_mutex_lock(&v->lock);
	if (v->stopping) {
		r = ESHUTDOWN;
	} else if (!v->started) {
		s3_space_begin(v);
		r = make_threads(v);
		if (r == 0)
			atomic_store_explicit(&v->started, true, memory_order_release);
	}
	pthread_mutex_unlock(&v->lock);
	pthread_mutex_unlock(&v->starting);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

/* Ends the keeper, makes everything durable, leaves a checkpoint for a quick start. */
static void stop_threads(struct s3_volume *v)
{
	uint64_t seq;

	/* A command may just be about to start them: from here on it cannot. */
	pthread_mutex_lock(&v->starting);
	pthread_mutex_lock(&v->lock);
	v->stopping = !v->started;
	pthread_mutex_unlock(&v->lock);
	pthread_mutex_unlock(&v->starting);
	if (!v->started)
		return;
	/* Nothing can be saved now, so requests under way are not waited for either. */
	if (atomic_load(&v->failed))
		s3_store_stop(v->store);
	pthread_mutex_lock(&v->lock);
	v->keeper_stopping = true;
	pthread_cond_broadcast(&v->keeper_work);
	pthread_cond_broadcast(&v->collector_work);
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
	/* The line is for the data. */
	s3_store_drop(v->store);
	pthread_join(v->collector, NULL);
	pthread_join(v->keeper, NULL);
	if (s3_log_drain(v) == 0) {
		pthread_mutex_lock(&v->lock);
		seq = v->applied;
		pthread_mutex_unlock(&v->lock);
		if (seq > v->checkpoint + 1 || v->rolled_back || v->full_wanted ||
			atomic_load(&v->marked))
			s3_checkpoint(v);
	}
	pthread_mutex_lock(&v->lock);
	v->stopping = true;
	pthread_cond_broadcast(&v->sealer_work);
	pthread_mutex_unlock(&v->lock);
	for (unsigned i = 0; i < v->n_sealers; i++)
		pthread_join(v->sealers[i], NULL);
	s3_writeback_stop(v);
}

static size_t log_counters(struct s3_volume *v, struct backend_counter *counters, size_t max)
{
	struct s3_objects_totals totals;
	struct s3_cache_counters cache;
	struct s3_cachefile_counters disk = {0};
	struct s3_writeback_counters back;
	struct s3_stats *s = &v->stats;
	size_t n;

	s3_objects_totals(v->objects, &totals);
	s3_cache_counters(v->cache, &cache);
	if (v->cachefile)
		s3_cachefile_counters(v->cachefile, &disk);
	s3_writeback_counters(v, &back);
	const struct backend_counter all[] = {
		{"log_objects", s->log_objects},
		{"log_bytes", s->log_bytes},
		{"checkpoint_bytes", s->checkpoint_bytes},
		{"full_roots", s->full_roots},
		{"light_roots", s->light_roots},
		{"replayed", s->replayed},
		{"gc_objects", s->gc_objects},
		{"gc_bytes", s->gc_bytes},
		{"deleted", s->deleted},
		{"orphans", s->orphans},
		{"held_bytes", totals.held << v->shift},
		{"reads_memory", s->reads_memory},
		{"reads_store", s->reads_store},
		{"crc_retries", s->crc_retries},
		{"stalls", s->stalls},
		{"store_full", atomic_load(&v->refused) == -ENOSPC},
		{"objects", totals.objects},
		{"stored_bytes", totals.bytes},
		{"map_bytes", s3_map_memory(v->map) + totals.memory},
		{"checkpoint_notes_bytes", s3_map_notes(v->map)},
		{"compaction_bytes", cache.lent},
		{"cache_hit_bytes", cache.hits},
		{"cache_miss_bytes", cache.misses},
		{"cache_bytes", cache.bytes},
		{"cache_evictions", cache.evictions},
		{"read_ahead_used_bytes", cache.ahead_used},
		{"read_ahead_wasted_bytes", cache.ahead_wasted},
		{"cache_file_read_bytes", disk.read},
		{"cache_file_written_bytes", disk.written},
		{"cache_file_damaged", disk.damaged},
		{"cache_file_kept", disk.kept},
		{"write_back_entries", back.entries},
		{"write_back_bytes", back.bytes},
		{"write_back_syncs", back.syncs},
		{"write_back_used_bytes", back.used},
		{"write_back_full", back.full},
		{"write_back_failed", back.failed},
		{"write_back_replayed", back.replayed},
	};

	n = sizeof all / sizeof all[0];
	memcpy(counters, all, (n < max ? n : max) * sizeof *all);
	return n;
}

/* ---- layout=log ------------------------------------------------------------------------- */

static void log_submit(struct s3_volume *v, struct backend_request *request)
{
	/* Once it has been answered the request is its owner's again. */
	uint64_t offset = request->offset, length = request->length;

	switch (request->op) {
	case BACKEND_READ:
		s3_read(v, request);
		s3_read_ahead(v, offset, length);
		return;
	case BACKEND_WRITE:
	case BACKEND_TRIM:
	case BACKEND_ZERO:
		s3_write(v, request);
		return;
	case BACKEND_FLUSH:
		s3_flush(v, request);
		return;
	}
}

const struct s3_layout_ops s3_log_layout = {
	.name = "log",
	.has_log = true,
	.submit = log_submit,
	.extents = s3_read_extents,
	.counters = log_counters,
	.start = start_threads,
	.stop = stop_threads,
	.give_up = s3_log_give_up,
	.free = s3_batches_free,
};
