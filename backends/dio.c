/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backends/dio.h"
#include "backends/transfer.h"

#define CACHE_LINE 64
/* Threads beyond this number share slots, which only costs a search. */
#define SLOTS 64
/* One lock per MiB of the file, modulo LOCKS (one bit each of a uint64_t). */
#define LOCKS	    64
#define LOCK_REGION (1u << 20)
/* Vectors of one system call when some of them are bounced. */
#define PLAN_VECTORS 64

/*
 * A thread's aligned buffer and counters. The buffers belong to the device and
 * not to the thread: nothing is left to free when a thread ends or when the
 * plugin that holds this code has been unloaded before the thread ends.
 */
struct slot {
	alignas(CACHE_LINE) _Atomic(char *) buffer; /* NULL: none yet, or in use */
	_Atomic uint64_t bounced_requests;
	_Atomic uint64_t bounced_bytes;
	_Atomic uint64_t read_modify_writes;
};

/*
 * A shared lock that serves in order of arrival. pthread_rwlock_t starves
 * either side: a stream of whole-block writes would keep a partial one waiting
 * forever, or the other way round.
 */
struct lock {
	alignas(CACHE_LINE) pthread_mutex_t mutex;
	pthread_cond_t changed;
	unsigned shared;	  /* holders */
	bool exclusive;		  /* held */
	uint64_t arrived, served; /* numbers of those who had to wait */
};

struct direct {
	int fd;
	uint32_t block;
	uint32_t memory;
	struct slot slots[SLOTS];
	struct lock locks[LOCKS];
};

struct direct *direct_new(int fd, uint32_t block, uint32_t memory)
{
	struct direct *d = aligned_alloc(CACHE_LINE, sizeof *d);

	if (!d)
		return NULL;
	memset(d, 0, sizeof *d);
	d->fd = fd;
	d->block = block;
	d->memory = memory;
	for (size_t i = 0; i < LOCKS; i++) {
		pthread_mutex_init(&d->locks[i].mutex, NULL);
		pthread_cond_init(&d->locks[i].changed, NULL);
	}
	return d;
}

void direct_free(struct direct *d)
{
	if (!d)
		return;
	for (size_t i = 0; i < LOCKS; i++) {
		pthread_cond_destroy(&d->locks[i].changed);
		pthread_mutex_destroy(&d->locks[i].mutex);
	}
	for (size_t i = 0; i < SLOTS; i++)
		free(atomic_load(&d->slots[i].buffer));
	free(d);
}

/* ---- buffers ---------------------------------------------------------------- */

static struct slot *own_slot(struct direct *d)
{
	static _Atomic unsigned threads;
	static _Thread_local unsigned number; /* from 1; 0: not numbered yet */

	if (!number)
		number = 1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
	return &d->slots[number % SLOTS];
}

static void count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* An aligned buffer of DIRECT_BUFFER_SIZE for this request; NULL: out of memory. */
static char *buffer_get(struct direct *d)
{
	struct slot *own = own_slot(d);
	char *buffer = atomic_exchange_explicit(&own->buffer, NULL, memory_order_acquire);
	size_t align = d->block > 4096 ? d->block : 4096;

	for (size_t i = 0; !buffer && i < SLOTS; i++)
		/* Looked at before it is written: the slot belongs to another thread. */
		if (atomic_load_explicit(&d->slots[i].buffer, memory_order_relaxed))
			buffer = atomic_exchange_explicit(
				&d->slots[i].buffer, NULL, memory_order_acquire);
	return buffer ? buffer : aligned_alloc(align, DIRECT_BUFFER_SIZE);
}

static void buffer_put(struct direct *d, char *buffer)
{
	struct slot *own = own_slot(d);

	for (size_t i = 0; i < SLOTS; i++) {
		struct slot *slot = &d->slots[(size_t)(own - d->slots + i) % SLOTS];
		char *none = NULL;

		if (atomic_compare_exchange_strong_explicit(&slot->buffer, &none, buffer,
			    memory_order_release, memory_order_relaxed))
			return;
	}
	free(buffer);
}

/* ---- locks ------------------------------------------------------------------ */

static bool lock_is_free(const struct lock *l, bool exclusive)
{
	return !l->exclusive && !(exclusive && l->shared);
}

static void lock_take(struct lock *l, bool exclusive)
{
	pthread_mutex_lock(&l->mutex);
	if (l->arrived != l->served || !lock_is_free(l, exclusive)) {
		uint64_t number = l->arrived++;

		while (l->served != number || !lock_is_free(l, exclusive))
			pthread_cond_wait(&l->changed, &l->mutex);
		/* The next one may be let in beside this one. */
		if (++l->served != l->arrived)
			pthread_cond_broadcast(&l->changed);
	}
	if (exclusive)
		l->exclusive = true;
	else
		l->shared++;
	pthread_mutex_unlock(&l->mutex);
}

static void lock_release(struct lock *l)
{
	pthread_mutex_lock(&l->mutex);
	if (l->exclusive)
		l->exclusive = false;
	else
		l->shared--;
	if (l->arrived != l->served)
		pthread_cond_broadcast(&l->changed);
	pthread_mutex_unlock(&l->mutex);
}

/* A bit for each lock that the range needs. */
static uint64_t lock_set(uint64_t offset, uint64_t length)
{
	uint64_t first = offset / LOCK_REGION, last = (offset + length - 1) / LOCK_REGION;
	uint64_t held = 0;

	if (last - first >= LOCKS)
		return UINT64_MAX;
	for (uint64_t region = first; region <= last; region++)
		held |= UINT64_C(1) << (region % LOCKS);
	return held;
}

uint64_t direct_lock(struct direct *d, uint64_t offset, uint64_t length)
{
	uint64_t held = lock_set(offset, length);

	/* Always in ascending order, so that two ranges cannot wait for each other. */
	for (uint64_t rest = held; rest; rest &= rest - 1)
		lock_take(&d->locks[__builtin_ctzll(rest)], false);
	return held;
}

void direct_unlock(struct direct *d, uint64_t held)
{
	for (uint64_t rest = held; rest; rest &= rest - 1)
		lock_release(&d->locks[__builtin_ctzll(rest)]);
}

/* ---- vectors ---------------------------------------------------------------- */

/* A place in the caller's vector. */
struct cursor {
	const struct iovec *iov;
	size_t done; /* bytes of *iov */
};

/* Where the cursor stands and how many bytes lie together there. There must be one. */
static char *cursor_here(struct cursor *c, size_t *available)
{
	while (c->done == c->iov->iov_len) {
		c->iov++;
		c->done = 0;
	}
	*available = c->iov->iov_len - c->done;
	return (char *)c->iov->iov_base + c->done;
}

/* Copies length bytes out of (writing) or into the vector and moves on; buffer NULL: only moves. */
static void cursor_copy(struct cursor *c, char *buffer, size_t length, bool writing)
{
	while (length > 0) {
		size_t n;
		char *here = cursor_here(c, &n);

		if (n > length)
			n = length;
		if (buffer) {
			if (writing)
				memcpy(buffer, here, n);
			else
				memcpy(here, buffer, n);
			buffer += n;
		}
		c->done += n;
		length -= n;
	}
}

static bool is_aligned(const struct direct *d, const void *address)
{
	return ((uintptr_t)address & (d->memory - 1)) == 0;
}

/* May the kernel take the vector as it is? */
static bool vector_is_direct(const struct direct *d, const struct iovec *iov, int iovcnt)
{
	for (int i = 0; i < iovcnt; i++)
		if (!is_aligned(d, iov[i].iov_base) || iov[i].iov_len & (d->block - 1))
			return false;
	return true;
}

static uint64_t vector_length(const struct iovec *iov, int iovcnt)
{
	uint64_t length = 0;

	for (int i = 0; i < iovcnt; i++)
		length += iov[i].iov_len;
	return length;
}

/*
 * Bytes from the cursor that have to be bounced together: up to the next place
 * where a block of the file begins in aligned memory. Not more than limit, a
 * multiple of the block.
 */
static size_t bounce_length(const struct direct *d, struct cursor c, size_t limit)
{
	size_t length = 0;

	while (length < limit) {
		size_t n;
		char *here = cursor_here(&c, &n);
		size_t into_block = length & (d->block - 1);

		if (!into_block && is_aligned(d, here) && n >= d->block)
			break;
		/* Finish a begun block first: alignment is looked at where one begins. */
		if (into_block && n > d->block - into_block)
			n = d->block - into_block;
		/* Whole blocks of an unaligned vector at once. */
		else if (!into_block && n >= d->block)
			n -= n & (d->block - 1);
		if (n > limit - length)
			n = limit - length;
		length += n;
		c.done += n;
	}
	return length;
}

/*
 * Transfers length bytes at offset, both multiples of the block, between the
 * file and the vector. Memory that must be bounced is, the rest is not, and
 * both go in one system call.
 */
static int transfer_blocks(struct direct *d, struct cursor *c, uint64_t offset, uint64_t length,
	bool writing, int rwf, char *buffer)
{
	uint64_t bounced = 0;
	int r = 0;

	while (r == 0 && length > 0) {
		struct iovec plan[PLAN_VECTORS];
		bool is_bounced[PLAN_VECTORS];
		struct cursor begin = *c;
		size_t used = 0; /* bytes of buffer */
		uint64_t planned = 0;
		int n = 0;

		while (n < PLAN_VECTORS && planned < length) {
			size_t available, take;
			char *here = cursor_here(c, &available);
			uint64_t left = length - planned;

			if (is_aligned(d, here) && available >= d->block) {
				take = available - (available & (d->block - 1));
				if (take > left)
					take = left;
				is_bounced[n] = false;
				plan[n] = (struct iovec){here, take};
				cursor_copy(c, NULL, take, writing);
			} else {
				size_t capacity = DIRECT_BUFFER_SIZE - used;

				if (capacity == 0)
					break;
				take = bounce_length(d, *c, left < capacity ? left : capacity);
				is_bounced[n] = true;
				plan[n] = (struct iovec){buffer + used, take};
				cursor_copy(c, writing ? buffer + used : NULL, take, writing);
				used += take;
			}
			planned += take;
			n++;
		}
		r = writing ? transfer_writev(d->fd, plan, n, offset, d->block, rwf)
			    : transfer_readv(d->fd, plan, n, offset, d->block);
		if (r == 0 && !writing)
			for (int i = 0; i < n; i++)
				cursor_copy(&begin, is_bounced[i] ? plan[i].iov_base : NULL,
					plan[i].iov_len, false);
		bounced += used;
		offset += planned;
		length -= planned;
	}
	count(&own_slot(d)->bounced_bytes, bounced);
	return r;
}

/* ---- requests --------------------------------------------------------------- */

/* Reads a range that does not consist of whole blocks: everything is copied. */
static int read_unaligned(
	struct direct *d, struct cursor *c, uint64_t offset, uint64_t length, char *buffer)
{
	uint64_t end = offset + length;
	int r = 0;

	count(&own_slot(d)->bounced_bytes, length);
	while (r == 0 && offset < end) {
		uint64_t start = offset & ~(uint64_t)(d->block - 1);
		uint64_t stop = (end + d->block - 1) & ~(uint64_t)(d->block - 1);

		if (stop - start > DIRECT_BUFFER_SIZE)
			stop = start + DIRECT_BUFFER_SIZE;
		r = transfer_readv(
			d->fd, &(struct iovec){buffer, stop - start}, 1, start, d->block);
		if (stop > end)
			stop = end;
		if (r == 0)
			cursor_copy(c, buffer + (offset - start), stop - offset, false);
		offset = stop;
	}
	return r;
}

int direct_readv(struct direct *d, const struct iovec *iov, int iovcnt, uint64_t offset)
{
	uint64_t length = vector_length(iov, iovcnt);
	bool whole_blocks = ((offset | length) & (d->block - 1)) == 0;

	if (whole_blocks && vector_is_direct(d, iov, iovcnt))
		return transfer_readv(d->fd, iov, iovcnt, offset, d->block);

	struct cursor c = {.iov = iov};
	char *buffer = buffer_get(d);
	int r;

	if (!buffer)
		return -ENOMEM;
	count(&own_slot(d)->bounced_requests, 1);
	if (whole_blocks)
		r = transfer_blocks(d, &c, offset, length, false, 0, buffer);
	else
		r = read_unaligned(d, &c, offset, length, buffer);
	buffer_put(d, buffer);
	return r;
}

/* Writes length bytes inside one block by reading, changing and writing it. */
static int write_part(
	struct direct *d, struct cursor *c, uint64_t offset, uint64_t length, int rwf, char *buffer)
{
	uint64_t start = offset & ~(uint64_t)(d->block - 1);
	struct iovec block = {buffer, d->block};
	/* The block lies in one region: regions are multiples of blocks. */
	struct lock *lock = &d->locks[__builtin_ctzll(lock_set(start, 1))];
	struct slot *slot = own_slot(d);
	int r;

	count(&slot->read_modify_writes, 1);
	count(&slot->bounced_bytes, length);
	lock_take(lock, true);
	r = transfer_readv(d->fd, &block, 1, start, d->block);
	if (r == 0) {
		cursor_copy(c, buffer + (offset - start), length, true);
		r = transfer_writev(d->fd, &block, 1, start, d->block, rwf);
	}
	lock_release(lock);
	return r;
}

/* Writes a range of any alignment through the buffer: part of a block, blocks, part of a block. */
static int write_bounced(
	struct direct *d, struct cursor *c, uint64_t offset, uint64_t length, int rwf, char *buffer)
{
	uint64_t head = -offset & (d->block - 1);
	uint64_t blocks, tail;
	int r = 0;

	if (head > length)
		head = length;
	tail = (length - head) & (d->block - 1);
	blocks = length - head - tail;
	if (head)
		r = write_part(d, c, offset, head, rwf, buffer);
	if (r == 0 && blocks) {
		uint64_t held = direct_lock(d, offset + head, blocks);

		r = transfer_blocks(d, c, offset + head, blocks, true, rwf, buffer);
		direct_unlock(d, held);
	}
	if (r == 0 && tail)
		r = write_part(d, c, offset + head + blocks, tail, rwf, buffer);
	return r;
}

int direct_writev(struct direct *d, const struct iovec *iov, int iovcnt, uint64_t offset, int rwf)
{
	uint64_t length = vector_length(iov, iovcnt);
	int r;

	if (((offset | length) & (d->block - 1)) == 0 && vector_is_direct(d, iov, iovcnt)) {
		uint64_t held = direct_lock(d, offset, length);

		r = transfer_writev(d->fd, iov, iovcnt, offset, d->block, rwf);
		direct_unlock(d, held);
		return r;
	}

	struct cursor c = {.iov = iov};
	char *buffer = buffer_get(d);

	if (!buffer)
		return -ENOMEM;
	count(&own_slot(d)->bounced_requests, 1);
	r = write_bounced(d, &c, offset, length, rwf, buffer);
	buffer_put(d, buffer);
	return r;
}

size_t direct_counters(struct direct *d, struct backend_counter *counters, size_t max)
{
	struct backend_counter all[] = {{.name = "bounced_requests"}, {.name = "bounced_bytes"},
		{.name = "read_modify_writes"}};
	size_t n = sizeof all / sizeof all[0];

	for (size_t i = 0; i < SLOTS; i++) {
		all[0].value += atomic_load(&d->slots[i].bounced_requests);
		all[1].value += atomic_load(&d->slots[i].bounced_bytes);
		all[2].value += atomic_load(&d->slots[i].read_modify_writes);
	}
	for (size_t i = 0; i < n && i < max; i++)
		counters[i] = all[i];
	return n;
}
