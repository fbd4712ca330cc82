/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/base/localfile.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/cache.h"
#include "backends/s3/state/cachefile.h"

#define BLOCK	4096u
#define VERSION 2u
#define ENTRY	128u
#define ENTRIES (BLOCK / ENTRY) /* of a block of the index */
#define SALT	16
/* In the first sector, which is there as a whole or not at all after a crash. */
#define HEADER_CRC (512 - 4)
#define ENTRY_CRC  (ENTRY - 4)
#define THREADS	   4
/* Lines that wait to be written. */
#define WRITES_MAX 256
/* Blocks of the index that wait to be written. */
#define DIRTY_MAX 64
#define NONE	  UINT32_MAX

static const struct s3_localfile_kind kind = {
	.parameter = "cache-file",
	.size_parameter = "cache-size",
	.content = "a cache",
	.own = "a cache file of its own",
	.magic = {'u', 'b', 'S', '3', 'c', 'a', 'c', 'h'},
	.size_default = UINT64_C(1) << 30,
	.size_least = UINT64_C(16) << 20,
};

/* A place for a line. */
struct slot {
	uint64_t id;
	uint32_t number;
	uint8_t origin;
	bool used; /* since the hand passed */
	uint16_t valid;
	uint32_t jobs; /* that are at it */
	uint32_t in_bucket;
	uint32_t crc[S3_LINE_PAGES];
};

struct jobs {
	struct s3_disk_job *head, **tail;
	unsigned n;
};

struct s3_cachefile {
	struct s3_localfile file;
	bool attached;
	uint8_t salt[SALT];
	uint64_t data; /* where lines begin */
	uint32_t n_slots, n_blocks;
	pthread_mutex_t lock;
	/* Below: under lock. */
	pthread_cond_t work;
	struct slot *slots;
	uint32_t *buckets;
	uint32_t mask;
	uint32_t hand;	/* of the clock */
	uint8_t *dirty; /* a byte for each block of the index */
	uint32_t n_dirty;
	bool flushing;
	struct jobs reads, writes;
	pthread_t threads[THREADS];
	unsigned n_threads;
	bool stopping, failed;
	struct s3_cachefile_counters counters;
};

/* ---- slots, under the lock ----------------------------------------------------------- */

static uint32_t *bucket(struct s3_cachefile *f, const struct s3_line_key *key)
{
	uint64_t h = (key->id * 0x9e3779b97f4a7c15u) ^ ((uint64_t)key->number << 8 | key->origin);

	h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
	return &f->buckets[(h ^ h >> 32) & f->mask];
}

static struct s3_line_key key_of(const struct slot *s)
{
	return (struct s3_line_key){.id = s->id, .number = s->number, .origin = s->origin};
}

static struct slot *find(struct s3_cachefile *f, const struct s3_line_key *key)
{
	uint32_t i = *bucket(f, key);

	while (i != NONE && (f->slots[i].id != key->id || f->slots[i].number != key->number ||
				    f->slots[i].origin != key->origin))
		i = f->slots[i].in_bucket;
	return i == NONE ? NULL : &f->slots[i];
}

static void enter(struct s3_cachefile *f, struct slot *s, const struct s3_line_key *key)
{
	uint32_t *head = bucket(f, key);

	s->id = key->id;
	s->number = key->number;
	s->origin = key->origin;
	s->in_bucket = *head;
	*head = (uint32_t)(s - f->slots);
}

static void forget(struct s3_cachefile *f, struct slot *s)
{
	struct s3_line_key key = key_of(s);
	uint32_t *link = bucket(f, &key), i = (uint32_t)(s - f->slots);

	while (*link != i)
		link = &f->slots[*link].in_bucket;
	*link = s->in_bucket;
	s->id = 0;
	s->valid = 0;
}

/* A slot for another line; NULL: all are busy. */
static struct slot *take_slot(struct s3_cachefile *f)
{
	for (uint64_t i = 0; i < 2ull * f->n_slots; i++) {
		struct slot *s = &f->slots[f->hand];

		f->hand = f->hand + 1 == f->n_slots ? 0 : f->hand + 1;
		if (s->jobs)
			continue;
		if (s->id && s->used) {
			s->used = false;
			continue;
		}
		if (s->id) {
			forget(f, s);
			f->counters.evictions++;
		}
		return s;
	}
	return NULL;
}

static void make_dirty(struct s3_cachefile *f, const struct slot *s)
{
	uint32_t block = (uint32_t)(s - f->slots) / ENTRIES;

	f->n_dirty += !f->dirty[block];
	f->dirty[block] = 1;
}

/* ---- what is stored -------------------------------------------------------------------- */

/* Bound to this making of the file and to the entry's place. */
static uint32_t entry_crc(const struct s3_cachefile *f, uint32_t index, const uint8_t *entry)
{
	uint8_t place[4];
	uint32_t crc = s3_crc32c(0, f->salt, SALT);

	s3_le_store(place, index, 4);
	crc = s3_crc32c(crc, place, sizeof place);
	return s3_crc32c(crc, entry, ENTRY_CRC);
}

static void encode_entry(const struct s3_cachefile *f, uint32_t index, uint8_t *entry)
{
	const struct slot *s = &f->slots[index];

	if (!s->id)
		return;
	s3_le_store(entry, s->id, 8);
	s3_le_store(entry + 8, s->number, 4);
	entry[12] = s->origin;
	s3_le_store(entry + 14, s->valid, 2);
	for (unsigned i = 0; i < S3_LINE_PAGES; i++)
		s3_le_store(entry + 16 + (size_t)i * 4, s->crc[i], 4);
	s3_le_store(entry + ENTRY_CRC, entry_crc(f, index, entry), 4);
}

/* False: there is no such line. */
static bool decode_entry(struct s3_cachefile *f, uint32_t index, const uint8_t *entry)
{
	struct slot *s = &f->slots[index];
	struct s3_line_key key = {
		.id = s3_le_load(entry, 8),
		.number = (uint32_t)s3_le_load(entry + 8, 4),
		.origin = entry[12],
	};

	if (!key.id || s3_le_load(entry + ENTRY_CRC, 4) != entry_crc(f, index, entry) ||
		find(f, &key))
		return false;
	s->valid = (uint16_t)s3_le_load(entry + 14, 2);
	for (unsigned i = 0; i < S3_LINE_PAGES; i++)
		s->crc[i] = (uint32_t)s3_le_load(entry + 16 + (size_t)i * 4, 4);
	enter(f, s, &key);
	return true;
}

static void encode_header(
	const struct s3_cachefile *f, const struct s3_cachefile_volume *volume, uint8_t *header)
{
	memset(header, 0, BLOCK);
	memcpy(header, kind.magic, sizeof kind.magic);
	s3_le_store(header + 8, VERSION, 4);
	s3_le_store(header + 12, f->n_slots, 4);
	memcpy(header + 16, volume->uuid, S3_UUID);
	memcpy(header + 32, volume->now, S3_UUID);
	memcpy(header + 48, f->salt, SALT);
	s3_le_store(header + HEADER_CRC, s3_crc32c(0, header, HEADER_CRC), 4);
}

/* Was it made for this volume, in this size, and last used with its last writer? */
static bool header_fits(
	struct s3_cachefile *f, const struct s3_cachefile_volume *volume, const uint8_t *header)
{
	if (memcmp(header, kind.magic, sizeof kind.magic) || s3_le_load(header + 8, 4) != VERSION ||
		s3_le_load(header + 12, 4) != f->n_slots ||
		memcmp(header + 16, volume->uuid, S3_UUID) ||
		memcmp(header + 32, volume->before, S3_UUID) ||
		s3_le_load(header + HEADER_CRC, 4) != s3_crc32c(0, header, HEADER_CRC))
		return false;
	memcpy(f->salt, header + 48, SALT);
	return true;
}

/* buffer: BLOCK bytes, aligned. */
static void encode_block(const struct s3_cachefile *f, uint32_t block, uint8_t *buffer)
{
	memset(buffer, 0, BLOCK);
	for (uint32_t i = 0; i < ENTRIES && block * ENTRIES + i < f->n_slots; i++)
		encode_entry(f, block * ENTRIES + i, buffer + (size_t)i * ENTRY);
}

static int store_block(struct s3_cachefile *f, uint32_t block, uint8_t *buffer)
{
	return s3_localfile_transfer(&f->file, true, buffer, BLOCK, (uint64_t)BLOCK * (block + 1));
}

/* ---- open -------------------------------------------------------------------------------- */

static int lay_out(struct s3_cachefile *f, uint64_t size)
{
	uint64_t n = (size - BLOCK - S3_LINE) / (S3_LINE + ENTRY);
	uint32_t buckets = 1;

	if (n > NONE / 2)
		n = NONE / 2;
	f->n_slots = (uint32_t)n;
	f->n_blocks = (uint32_t)((n + ENTRIES - 1) / ENTRIES);
	f->data = ((uint64_t)BLOCK * (f->n_blocks + 1) + S3_LINE - 1) / S3_LINE * S3_LINE;
	while (f->data + (uint64_t)f->n_slots * S3_LINE > size)
		f->n_slots--;
	while (buckets < f->n_slots)
		buckets *= 2;
	f->mask = buckets - 1;
	f->slots = calloc(f->n_slots, sizeof *f->slots);
	f->dirty = calloc(f->n_blocks, 1);
	f->buckets = malloc(buckets * sizeof *f->buckets);
	if (!f->slots || !f->dirty || !f->buckets)
		return -ENOMEM;
	memset(f->buckets, 0xff, buckets * sizeof *f->buckets);
	return 0;
}

/* Reads the index. What the volume no longer has is removed from it, durably. */
static int load(struct s3_cachefile *f, const struct s3_cachefile_volume *volume, uint8_t *buffer)
{
	bool dropped = false;
	int r = 0;

	for (uint32_t block = 0; r == 0 && block < f->n_blocks; block++) {
		bool changed = false;

		r = s3_localfile_transfer(
			&f->file, false, buffer, BLOCK, (uint64_t)BLOCK * (block + 1));
		for (uint32_t i = 0; r == 0 && i < ENTRIES; i++) {
			uint32_t index = block * ENTRIES + i;
			struct slot *s = &f->slots[index];

			if (index >= f->n_slots ||
				!decode_entry(f, index, buffer + (size_t)i * ENTRY))
				continue;
			if (!s->origin && (s->id & S3_GC ? s->id >= volume->next_gc
							 : s->id > volume->last_log)) {
				forget(f, s);
				changed = true;
			} else {
				f->counters.kept++;
			}
		}
		if (r == 0 && changed) {
			encode_block(f, block, buffer);
			r = store_block(f, block, buffer);
		}
		dropped |= changed;
	}
	if (r == 0 && dropped && fdatasync(f->file.fd))
		r = -errno;
	return r;
}

int s3_cachefile_open(const char *path, uint64_t asked, const struct backend_host *host,
	struct s3_cachefile **out)
{
	struct s3_cachefile *f = calloc(1, sizeof *f);
	int r;

	if (!f)
		return -ENOMEM;
	f->reads.tail = &f->reads.head;
	f->writes.tail = &f->writes.head;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->work, NULL);
	r = s3_localfile_open(&f->file, &kind, path, asked, host);
	if (r == 0)
		r = lay_out(f, f->file.size);
	if (r) {
		s3_cachefile_close(f);
		return r;
	}
	/* Pages are cached above already. Not every file system can do without its own cache. */
	fcntl(f->file.fd, F_SETFL, O_DIRECT);
	*out = f;
	return 0;
}

int s3_cachefile_attach(struct s3_cachefile *f, const struct s3_cachefile_volume *volume)
{
	uint8_t *buffer = aligned_alloc(BLOCK, BLOCK);
	int r = buffer ? s3_localfile_transfer(&f->file, false, buffer, BLOCK, 0) : -ENOMEM;

	if (r == 0 && header_fits(f, volume, buffer))
		r = load(f, volume, buffer);
	else if (r == 0 && getrandom(f->salt, SALT, 0) != SALT)
		r = -EIO;
	if (r == 0) {
		encode_header(f, volume, buffer);
		r = s3_localfile_transfer(&f->file, true, buffer, BLOCK, 0);
	}
	/* From now on lines are of this writer. */
	if (r == 0 && fdatasync(f->file.fd))
		r = -errno;
	free(buffer);
	f->attached = r == 0;
	return r ? s3_localfile_refuse_errno(&f->file, r, "give another path") : 0;
}

/* ---- jobs -------------------------------------------------------------------------------- */

/* Reads or writes the pages of a slot that are set. The pages that were transferred. */
static uint16_t move_pages(
	struct s3_cachefile *f, const struct s3_disk_job *job, uint32_t slot, uint16_t pages)
{
	uint64_t base = f->data + (uint64_t)slot * S3_LINE;
	uint16_t moved = 0;

	for (unsigned i = 0; i < S3_LINE_PAGES;) {
		struct iovec iov[S3_LINE_PAGES];
		unsigned first = i;
		int n = 0;
		ssize_t done;

		while (i < S3_LINE_PAGES && pages & 1u << i)
			iov[n++] = (struct iovec){job->memory[i++], S3_PAGE};
		if (n == 0) {
			i++;
			continue;
		}
		done = job->write ? pwritev(f->file.fd, iov, n, (off_t)(base + first * S3_PAGE))
				  : preadv(f->file.fd, iov, n, (off_t)(base + first * S3_PAGE));
		for (int k = 0; k < n && done >= (ssize_t)(k + 1) * (ssize_t)S3_PAGE; k++)
			moved |= (uint16_t)(1u << (first + (unsigned)k));
	}
	return moved;
}

static void read_line(struct s3_cachefile *f, struct s3_disk_job *job)
{
	uint32_t crc[S3_LINE_PAGES] = {0}, index = 0;
	uint16_t pages = 0, good = 0;
	struct slot *s;

	pthread_mutex_lock(&f->lock);
	s = find(f, &job->key);
	if (s) {
		pages = s->valid & job->pages;
		index = (uint32_t)(s - f->slots);
		memcpy(crc, s->crc, sizeof crc);
		s->jobs++;
		s->used = true;
	}
	pthread_mutex_unlock(&f->lock);
	if (s) {
		uint16_t moved = move_pages(f, job, index, pages);

		for (unsigned i = 0; i < S3_LINE_PAGES; i++)
			if (moved & 1u << i && s3_crc32c(0, job->memory[i], S3_PAGE) == crc[i])
				good |= (uint16_t)(1u << i);
		pthread_mutex_lock(&f->lock);
		s->jobs--;
		f->counters.read += (uint64_t)__builtin_popcount(good) * S3_PAGE;
		f->counters.damaged += (uint64_t)__builtin_popcount(pages & ~good);
		if (good != pages) {
			s->valid &= (uint16_t) ~(pages & ~good);
			make_dirty(f, s);
		}
		pthread_mutex_unlock(&f->lock);
	}
	job->done(job, good);
}

/* Reports once that the cache is no longer used. */
static void give_up(struct s3_cachefile *f)
{
	bool reported;

	pthread_mutex_lock(&f->lock);
	reported = f->failed;
	f->failed = true;
	pthread_mutex_unlock(&f->lock);
	if (!reported)
		backend_error(&f->file.host,
			"cache-file=%s: cannot be written, and is not used until the next start; "
			"check the space there and the disk",
			f->file.path);
}

static void write_line(struct s3_cachefile *f, struct s3_disk_job *job)
{
	uint16_t pages = job->pages, moved = 0;
	uint32_t crc[S3_LINE_PAGES] = {0}, index = 0;
	struct slot *s;

	pthread_mutex_lock(&f->lock);
	s = find(f, &job->key);
	if (!s && (s = take_slot(f)))
		enter(f, s, &job->key);
	if (s) {
		pages &= (uint16_t)~s->valid;
		index = (uint32_t)(s - f->slots);
		s->jobs++;
	}
	pthread_mutex_unlock(&f->lock);
	if (s) {
		for (unsigned i = 0; i < S3_LINE_PAGES; i++)
			if (pages & 1u << i)
				crc[i] = s3_crc32c(0, job->memory[i], S3_PAGE);
		moved = move_pages(f, job, index, pages);
		pthread_mutex_lock(&f->lock);
		s->jobs--;
		for (unsigned i = 0; i < S3_LINE_PAGES; i++)
			if (moved & 1u << i)
				s->crc[i] = crc[i];
		s->valid |= moved;
		f->counters.written += (uint64_t)__builtin_popcount(moved) * S3_PAGE;
		make_dirty(f, s);
		pthread_mutex_unlock(&f->lock);
		if (moved != pages)
			give_up(f);
	}
	job->done(job, moved);
}

/* Writes what has changed in the index. By one thread at a time; under the lock, which it releases
 * for a time.
 */
static void flush_index(struct s3_cachefile *f, uint8_t *buffer)
{
	f->flushing = true;
	for (uint32_t block = 0; block < f->n_blocks && f->n_dirty; block++) {
		bool ok;

		if (!f->dirty[block])
			continue;
		f->dirty[block] = 0;
		f->n_dirty--;
		encode_block(f, block, buffer);
		pthread_mutex_unlock(&f->lock);
		ok = store_block(f, block, buffer) == 0;
		if (!ok)
			give_up(f);
		pthread_mutex_lock(&f->lock);
	}
	f->flushing = false;
}

static struct s3_disk_job *take_job(struct s3_cachefile *f)
{
	struct jobs *jobs = f->reads.head ? &f->reads : &f->writes;
	struct s3_disk_job *job = jobs->head;

	if (!job)
		return NULL;
	jobs->head = job->next;
	if (!jobs->head)
		jobs->tail = &jobs->head;
	jobs->n--;
	return job;
}

static void *work(void *file)
{
	struct s3_cachefile *f = file;
	uint8_t *buffer = aligned_alloc(BLOCK, BLOCK);
	struct s3_disk_job *job;

	pthread_mutex_lock(&f->lock);
	for (;;) {
		if (buffer && !f->flushing && !f->failed &&
			(f->n_dirty >= DIRTY_MAX ||
				(f->n_dirty && !f->reads.head && !f->writes.head))) {
			flush_index(f, buffer);
		} else if ((job = take_job(f))) {
			pthread_mutex_unlock(&f->lock);
			if (job->write)
				write_line(f, job);
			else
				read_line(f, job);
			pthread_mutex_lock(&f->lock);
		} else if (f->stopping) {
			break;
		} else {
			pthread_cond_wait(&f->work, &f->lock);
		}
	}
	pthread_mutex_unlock(&f->lock);
	free(buffer);
	return NULL;
}

/* Makes the threads with the first job: a fork may follow open. Under the lock. */
static bool start(struct s3_cachefile *f)
{
	sigset_t all, before;

	if (f->n_threads)
		return true;
	sigfillset(&all); /* signals are the framework's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (f->n_threads < THREADS &&
		pthread_create(&f->threads[f->n_threads], NULL, work, f) == 0)
		f->n_threads++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return f->n_threads > 0;
}

static bool submit(struct s3_cachefile *f, struct jobs *jobs, struct s3_disk_job *job)
{
	bool accepted;

	job->next = NULL;
	pthread_mutex_lock(&f->lock);
	accepted = !f->failed && (!job->write || jobs->n < WRITES_MAX) && start(f);
	if (accepted) {
		*jobs->tail = job;
		jobs->tail = &job->next;
		jobs->n++;
		pthread_cond_signal(&f->work);
	}
	pthread_mutex_unlock(&f->lock);
	return accepted;
}

bool s3_cachefile_read(struct s3_cachefile *f, struct s3_disk_job *job)
{
	job->write = false;
	return submit(f, &f->reads, job);
}

bool s3_cachefile_write(struct s3_cachefile *f, struct s3_disk_job *job)
{
	job->write = true;
	return submit(f, &f->writes, job);
}

uint16_t s3_cachefile_find(struct s3_cachefile *f, const struct s3_line_key *key, uint16_t pages)
{
	struct slot *s;
	uint16_t there = 0;

	pthread_mutex_lock(&f->lock);
	s = f->failed ? NULL : find(f, key);
	if (s)
		there = s->valid & pages;
	pthread_mutex_unlock(&f->lock);
	return there;
}

void s3_cachefile_close(struct s3_cachefile *f)
{
	if (!f)
		return;
	pthread_mutex_lock(&f->lock);
	f->stopping = true;
	pthread_cond_broadcast(&f->work);
	pthread_mutex_unlock(&f->lock);
	for (unsigned i = 0; i < f->n_threads; i++)
		pthread_join(f->threads[i], NULL);
	s3_localfile_close(&f->file, f->attached);
	free(f->slots);
	free(f->buckets);
	free(f->dirty);
	pthread_cond_destroy(&f->work);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

void s3_cachefile_counters(struct s3_cachefile *f, struct s3_cachefile_counters *counters)
{
	pthread_mutex_lock(&f->lock);
	*counters = f->counters;
	pthread_mutex_unlock(&f->lock);
}
