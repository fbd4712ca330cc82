/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Slots are in chunks of 64, one page, which come and go; the lowest free slot is used
 * first, so that the table shrinks when objects do. Counts are atomic; everything else
 * changes under one lock, which a change of a count takes only when the object moves to another
 * list: dead, held by a snapshot, or a step of 2 percent of use, apart for small objects.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/format/format.h"
#include "backends/s3/state/object_internal.h"
#include "backends/s3/state/object_table.h"

#define HASH_MIN 1024u
/* One slot in 64 is kept for objects without new data. */
#define OBJECTS_OF_DATA (S3_TABLE_CHUNKS * (S3_TABLE_CHUNK - 1))

static bool is_small(const struct s3_objects *o, const struct s3_slot *s)
{
	return s->blocks < o->target / 2;
}

/* ---- slots ------------------------------------------------------------------- */

struct s3_objects *s3_objects_new(uint32_t target_blocks)
{
	struct s3_objects *o = calloc(1, sizeof *o);

	if (!o)
		return NULL;
	o->target = target_blocks;
	pthread_mutex_init(&o->lock, NULL);
	/* Not touched before they are needed: the kernel gives pages then. */
	o->chunks = calloc(S3_TABLE_CHUNKS, sizeof(struct s3_slot *));
	o->used = calloc(S3_TABLE_CHUNKS, sizeof *o->used);
	o->hash = calloc(HASH_MIN, sizeof *o->hash);
	o->hash_size = HASH_MIN;
	if (!o->chunks || !o->used || !o->hash) {
		s3_objects_free(o);
		return NULL;
	}
	return o;
}

void s3_objects_free(struct s3_objects *o)
{
	if (!o)
		return;
	for (uint32_t i = 0; i < o->n_chunks; i++)
		free(o->chunks[i]);
	for (size_t i = 0; i < o->n_snapshots; i++)
		free(o->snapshots[i].held);
	free(o->snapshots);
	free(o->chunks);
	free(o->used);
	free(o->hash);
	pthread_mutex_destroy(&o->lock);
	free(o);
}

/* Bits of slots that exist: slot 0 does not. */
static uint64_t slots_in(uint32_t chunk)
{
	return chunk ? UINT64_MAX : UINT64_MAX - 1;
}

int s3_objects_chunk_make(struct s3_objects *o, uint32_t c)
{
	if (o->chunks[c])
		return 0;
	o->chunks[c] = aligned_alloc(64, S3_TABLE_CHUNK * sizeof(struct s3_slot));
	if (!o->chunks[c])
		return -ENOMEM;
	memset(o->chunks[c], 0, S3_TABLE_CHUNK * sizeof(struct s3_slot));
	o->allocated += S3_TABLE_CHUNK * sizeof(struct s3_slot);
	if (c >= o->n_chunks)
		o->n_chunks = c + 1;
	return 0;
}

void s3_objects_slot_use(struct s3_objects *o, uint32_t n)
{
	o->used[n / S3_TABLE_CHUNK] |= 1ull << n % S3_TABLE_CHUNK;
}

/* The lowest free slot; S3_NO_SLOT: no memory. */
static uint32_t slot_new(struct s3_objects *o)
{
	uint32_t c = o->hint, n;

	while (c < S3_TABLE_CHUNKS && (o->used[c] & slots_in(c)) == slots_in(c))
		c++;
	o->hint = c;
	if (c == S3_TABLE_CHUNKS || s3_objects_chunk_make(o, c))
		return S3_NO_SLOT;
	n = c * S3_TABLE_CHUNK + (uint32_t)__builtin_ctzll(~o->used[c] & slots_in(c));
	s3_objects_slot_use(o, n);
	memset(s3_objects_slot(o, n), 0, sizeof(struct s3_slot));
	return n;
}

static void slot_free(struct s3_objects *o, uint32_t n)
{
	uint32_t c = n / S3_TABLE_CHUNK;

	s3_objects_slot(o, n)->state = S3_SLOT_FREE;
	o->used[c] &= ~(1ull << n % S3_TABLE_CHUNK);
	if (c < o->hint)
		o->hint = c;
	/* No slot of it is in use: a thread that looks at one has a pin or a block of it in the
	 * map. */
	if (!o->used[c]) {
		free(o->chunks[c]);
		o->chunks[c] = NULL;
		o->allocated -= S3_TABLE_CHUNK * sizeof(struct s3_slot);
	}
}

/* ---- by number ----------------------------------------------------------------- */

static uint32_t hash_of(const struct s3_objects *o, uint8_t origin, uint64_t id)
{
	uint64_t h = (id ^ (uint64_t)origin << 55) * 0x9e3779b97f4a7c15u;

	return (uint32_t)(h >> 32) & (o->hash_size - 1);
}

uint32_t s3_objects_hash_place(const struct s3_objects *o, uint8_t origin, uint64_t id)
{
	uint32_t i = hash_of(o, origin, id);

	for (; o->hash[i]; i = (i + 1) & (o->hash_size - 1)) {
		const struct s3_slot *s = s3_objects_slot(o, o->hash[i]);

		if (s->id == id && s->origin == origin)
			break;
	}
	return i;
}

static void hash_add(struct s3_objects *o, uint32_t n)
{
	const struct s3_slot *s = s3_objects_slot(o, n);

	o->hash[s3_objects_hash_place(o, s->origin, s->id)] = n;
}

int s3_objects_hash_rebuild(struct s3_objects *o, uint32_t size)
{
	uint32_t *hash = calloc(size, sizeof *hash);

	if (!hash)
		return -ENOMEM;
	free(o->hash);
	o->hash = hash;
	o->hash_size = size;
	s3_for_each_slot(o, n) hash_add(o, n);
	return 0;
}

/* Takes an entry out and closes the gap, so that no walk ends before what it looks for. */
static void hash_remove(struct s3_objects *o, const struct s3_slot *s)
{
	uint32_t mask = o->hash_size - 1;
	uint32_t gap = s3_objects_hash_place(o, s->origin, s->id);

	for (uint32_t i = (gap + 1) & mask; o->hash[i]; i = (i + 1) & mask) {
		const struct s3_slot *other = s3_objects_slot(o, o->hash[i]);
		uint32_t home = hash_of(o, other->origin, other->id);

		if (((i - home) & mask) >= ((i - gap) & mask)) {
			o->hash[gap] = o->hash[i];
			gap = i;
		}
	}
	o->hash[gap] = 0;
}

uint32_t s3_objects_find(struct s3_objects *o, uint8_t origin, uint64_t id)
{
	uint32_t n;

	pthread_mutex_lock(&o->lock);
	n = o->hash[s3_objects_hash_place(o, origin, id)];
	pthread_mutex_unlock(&o->lock);
	return n;
}

/* ---- lists ------------------------------------------------------------------- */

static void unlist(struct s3_objects *o, uint32_t n)
{
	struct s3_slot *s = s3_objects_slot(o, n);

	if (s->list == S3_LIST_NONE)
		return;
	o->small -= s->list >= S3_LIST_SMALL;
	*(s->prev ? &s3_objects_slot(o, s->prev)->next : &o->heads[s->list]) = s->next;
	*(s->next ? &s3_objects_slot(o, s->next)->prev : &o->tails[s->list]) = s->prev;
	s->list = S3_LIST_NONE;
	s->prev = s->next = 0;
}

/* Puts n behind after, 0: at the front. */
static void enlist(struct s3_objects *o, uint32_t n, unsigned list, uint32_t after)
{
	struct s3_slot *s = s3_objects_slot(o, n);

	o->small += list >= S3_LIST_SMALL;
	s->list = (uint8_t)list;
	s->prev = after;
	s->next = after ? s3_objects_slot(o, after)->next : o->heads[list];
	*(s->prev ? &s3_objects_slot(o, s->prev)->next : &o->heads[list]) = n;
	*(s->next ? &s3_objects_slot(o, s->next)->prev : &o->tails[list]) = n;
}

/* Step of use of a live object; -1: nothing is used. */
static int step_of(uint32_t used, uint32_t blocks)
{
	return used ? (int)((uint64_t)used * S3_USE_STEPS / blocks) : -1;
}

static bool is_held(struct s3_objects *o, const struct s3_slot *s)
{
	uint64_t newest = atomic_load(&o->newest);

	return newest && s->birth <= newest;
}

void s3_objects_set_dead(struct s3_objects *o, struct s3_slot *s, bool dead)
{
	int64_t change = dead ? 1 : -1;

	if (s->dead == dead)
		return;
	s->dead = dead;
	o->dead += change;
	o->deaths += dead && s->blocks;
	if (!s->origin) {
		o->dead_bytes += change * s->bytes;
		o->dead_blocks += change * s->blocks;
	}
}

struct mortal {
	uint64_t death;
	uint32_t slot;
};

static int by_death(const void *a, const void *b)
{
	const struct mortal *x = a, *y = b;

	return x->death != y->death ? (x->death > y->death) - (x->death < y->death)
				    : (x->slot > y->slot) - (x->slot < y->slot);
}

/* Puts an object where its counts say, which have changed through seq. */
static void relist(struct s3_objects *o, uint32_t n, uint64_t seq)
{
	struct s3_slot *s = s3_objects_slot(o, n);
	uint32_t used = s3_objects_used_blocks(s);
	unsigned list = S3_LIST_HELD;
	uint32_t after;

	if (used)
		atomic_store(&s->death, 0);
	else if (seq > atomic_load(&s->death))
		atomic_store(&s->death, seq);
	if (s->state == S3_SLOT_FREE || s->state == S3_SLOT_OPEN)
		return;
	s3_objects_set_dead(o, s, !used);
	if (s->state == S3_SLOT_TAKEN)
		return;
	if (!used)
		list = S3_LIST_DEAD;
	else if (!s->origin && !is_held(o, s))
		list = (is_small(o, s) ? S3_LIST_SMALL : S3_LIST_USE) +
		       (unsigned)step_of(used, s->blocks);
	if (s->list == list && list != S3_LIST_DEAD)
		return;
	unlist(o, n);
	after = o->tails[list];
	/* Batches are applied in their order, so that this seldom takes a step. */
	if (list == S3_LIST_DEAD && !o->disorder)
		while (after && s3_objects_slot(o, after)->death > s->death)
			after = s3_objects_slot(o, after)->prev;
	enlist(o, n, list, after);
}

/* Puts the dead in order. */
static void sort_dead(struct s3_objects *o, struct mortal *all)
{
	size_t n = 0;

	for (uint32_t i = o->heads[S3_LIST_DEAD]; i; i = s3_objects_slot(o, i)->next)
		all[n++] = (struct mortal){s3_objects_slot(o, i)->death, i};
	qsort(all, n, sizeof *all, by_death);
	for (size_t i = 0; i < n; i++) {
		unlist(o, all[i].slot);
		enlist(o, all[i].slot, S3_LIST_DEAD, o->tails[S3_LIST_DEAD]);
	}
}

void s3_objects_relist_all(struct s3_objects *o, uint64_t seq)
{
	struct mortal *all = malloc((o->objects + 1) * sizeof *all);

	o->disorder = all != NULL;
	s3_for_each_slot(o, n) relist(o, n, s3_objects_slot(o, n)->death ? 0 : seq);
	if (all)
		sort_dead(o, all);
	o->disorder = false;
	free(all);
}

/* ---- objects ------------------------------------------------------------------- */

void s3_objects_fill(struct s3_objects *o, uint32_t n, const struct s3_object *object)
{
	struct s3_slot *s = s3_objects_slot(o, n);

	s->id = object->id;
	s->birth = object->birth;
	s->origin = object->origin;
	s->bytes = object->bytes;
	s->header_units = (uint16_t)(object->header_bytes / S3_ALIGN);
	s->blocks = object->blocks;
	s->state = S3_SLOT_OPEN;
	o->objects++;
	if (!s->origin) {
		o->bytes += s->bytes;
		o->blocks += s->blocks;
	}
	hash_add(o, n);
}

int s3_objects_make_room(struct s3_objects *o)
{
	if (o->objects < o->hash_size / 4 * 3)
		return 0;
	return s3_objects_hash_rebuild(o, o->hash_size * 2);
}

uint32_t s3_objects_add(struct s3_objects *o, const struct s3_object *object)
{
	uint32_t n = S3_NO_SLOT;

	pthread_mutex_lock(&o->lock);
	if (!o->hash[s3_objects_hash_place(o, object->origin, object->id)] &&
		!s3_objects_make_room(o))
		n = slot_new(o);
	if (n)
		s3_objects_fill(o, n, object);
	pthread_mutex_unlock(&o->lock);
	return n;
}

void s3_objects_size(
	struct s3_objects *o, uint32_t slot, uint32_t bytes, uint32_t header_bytes, uint32_t blocks)
{
	struct s3_slot *s = s3_objects_slot(o, slot);

	pthread_mutex_lock(&o->lock);
	assert(s->state == S3_SLOT_OPEN && blocks >= atomic_load(&s->live));
	o->bytes += (uint64_t)bytes - s->bytes;
	o->blocks += (uint64_t)blocks - s->blocks;
	s->bytes = bytes;
	s->blocks = blocks;
	s->header_units = (uint16_t)(header_bytes / S3_ALIGN);
	pthread_mutex_unlock(&o->lock);
}

void s3_objects_seal_slot(struct s3_slot *s)
{
	assert(s->state == S3_SLOT_OPEN);
	s->state = S3_SLOT_LISTED;
}

void s3_objects_seal(struct s3_objects *o, uint32_t slot, uint64_t seq)
{
	pthread_mutex_lock(&o->lock);
	s3_objects_seal_slot(s3_objects_slot(o, slot));
	relist(o, slot, seq);
	pthread_mutex_unlock(&o->lock);
}

bool s3_objects_crowded(struct s3_objects *o)
{
	bool crowded;

	pthread_mutex_lock(&o->lock);
	crowded = o->objects >= OBJECTS_OF_DATA;
	pthread_mutex_unlock(&o->lock);
	return crowded;
}

void s3_objects_describe(struct s3_slot *s, struct s3_object *object)
{
	*object = (struct s3_object){
		.id = s->id,
		.birth = s->birth,
		.death = atomic_load(&s->death),
		.origin = s->origin,
		.bytes = s->bytes,
		.header_bytes = s->header_units * S3_ALIGN,
		.blocks = s->blocks,
		.live = atomic_load(&s->live),
		.held = atomic_load(&s->held) + atomic_load(&s->fresh),
	};
}

void s3_objects_get(struct s3_objects *o, uint32_t slot, struct s3_object *object)
{
	s3_objects_describe(s3_objects_slot(o, slot), object);
}

bool s3_objects_count(struct s3_objects *o, uint64_t slot, uint64_t offset, uint32_t count)
{
	struct s3_slot *s;

	if (!s3_objects_slot_used(o, slot))
		return false;
	s = s3_objects_slot(o, (uint32_t)slot);
	if (count > s->blocks || offset > s->blocks - count ||
		count > s->blocks - atomic_fetch_add(&s->live, count))
		return false;
	return true;
}

void s3_objects_prefetch(const struct s3_objects *o, uint32_t slot)
{
	if (slot / S3_TABLE_CHUNK < o->n_chunks && o->chunks[slot / S3_TABLE_CHUNK])
		__builtin_prefetch(s3_objects_slot(o, slot), 1);
}

uint32_t s3_objects_find_pinned(struct s3_objects *o, uint8_t origin, uint64_t id)
{
	uint32_t n;

	pthread_mutex_lock(&o->lock);
	n = o->hash[s3_objects_hash_place(o, origin, id)];
	/* GC looks for pins under the lock. */
	if (n != S3_NO_SLOT)
		s3_objects_pin(o, n);
	pthread_mutex_unlock(&o->lock);
	return n;
}

void s3_objects_pin(struct s3_objects *o, uint32_t slot)
{
	atomic_fetch_add(&s3_objects_slot(o, slot)->pins, 1);
}

void s3_objects_unpin(struct s3_objects *o, uint32_t slot)
{
	uint32_t pins = atomic_fetch_sub(&s3_objects_slot(o, slot)->pins, 1);

	assert(pins);
	(void)pins;
}

void s3_objects_live(struct s3_objects *o, uint32_t slot, int32_t delta, uint64_t seq)
{
	struct s3_slot *s = s3_objects_slot(o, slot);
	bool held = is_held(o, s);
	uint32_t before, now;

	/*
	 * Pinned, because as soon as live is 0 another thread that is further down here may
	 * list the object as dead, and GC then give its slot to a new one.
	 */
	s3_objects_pin(o, slot);
	/* Held before it is gone: it is never too little that is used. */
	if (held && delta < 0) {
		atomic_fetch_add(&s->fresh, (uint32_t)-delta);
		if (!s->origin)
			atomic_fetch_add(&o->held, (uint64_t)-delta);
	}
	before = atomic_fetch_add(&s->live, (uint32_t)delta);
	now = before + (uint32_t)delta;
	assert(now <= s->blocks);
	if (!s->origin)
		atomic_fetch_add(&o->live, (uint64_t)delta);
	if (!held && step_of(before, s->blocks) != step_of(now, s->blocks)) {
		pthread_mutex_lock(&o->lock);
		relist(o, slot, seq);
		pthread_mutex_unlock(&o->lock);
	}
	s3_objects_unpin(o, slot);
}

void s3_objects_live_unlisted(struct s3_objects *o, uint32_t slot, int32_t delta, uint64_t seq)
{
	struct s3_slot *s = s3_objects_slot(o, slot);
	uint64_t death = atomic_load(&s->death);
	uint32_t now;

	if (delta < 0 && is_held(o, s)) {
		atomic_fetch_add(&s->fresh, (uint32_t)-delta);
		if (!s->origin)
			atomic_fetch_add(&o->held, (uint64_t)-delta);
	}
	now = atomic_fetch_add(&s->live, (uint32_t)delta) + (uint32_t)delta;
	assert(now <= s->blocks);
	(void)now;
	/* When it died, should it be dead in the end. */
	while (delta < 0 && death < seq && !atomic_compare_exchange_weak(&s->death, &death, seq))
		;
}

/* ---- GC ---------------------------------------------------------------------- */

static void take(struct s3_objects *o, uint32_t n)
{
	unlist(o, n);
	s3_objects_slot(o, n)->state = S3_SLOT_TAKEN;
}

size_t s3_objects_take_dead(struct s3_objects *o, uint64_t limit, uint32_t *slots, size_t max)
{
	size_t taken = 0;
	uint32_t next;

	pthread_mutex_lock(&o->lock);
	for (uint32_t n = o->heads[S3_LIST_DEAD]; n && taken < max; n = next) {
		struct s3_slot *s = s3_objects_slot(o, n);

		next = s->next;
		if (s->death > limit)
			break;
		if (atomic_load(&s->pins))
			continue;
		take(o, n);
		slots[taken++] = n;
	}
	pthread_mutex_unlock(&o->lock);
	return taken;
}

size_t s3_objects_take_sparse(
	struct s3_objects *o, unsigned percent, bool small, uint32_t *slots, size_t max)
{
	size_t taken = 0;

	pthread_mutex_lock(&o->lock);
	for (unsigned step = 0; step <= S3_USE_STEPS; step++)
		for (unsigned apart = 0; apart < 2; apart++) {
			unsigned list = (apart ? S3_LIST_SMALL : S3_LIST_USE) + step;

			if (step * (100 / S3_USE_STEPS) >= percent && !(small && apart))
				continue;
			while (o->heads[list] && taken < max) {
				slots[taken++] = o->heads[list];
				take(o, o->heads[list]);
			}
		}
	pthread_mutex_unlock(&o->lock);
	return taken;
}

void s3_objects_put_back(struct s3_objects *o, uint32_t slot)
{
	pthread_mutex_lock(&o->lock);
	assert(s3_objects_slot(o, slot)->state == S3_SLOT_TAKEN);
	s3_objects_slot(o, slot)->state = S3_SLOT_LISTED;
	relist(o, slot, 0);
	pthread_mutex_unlock(&o->lock);
}

int s3_objects_remove(struct s3_objects *o, uint32_t slot)
{
	struct s3_slot *s = s3_objects_slot(o, slot);
	int r = -EBUSY;

	pthread_mutex_lock(&o->lock);
	if (!s3_objects_used_blocks(s) && !atomic_load(&s->pins)) {
		r = 0;
		s3_objects_set_dead(o, s, false);
		unlist(o, slot);
		hash_remove(o, s);
		o->objects--;
		if (!s->origin) {
			o->bytes -= s->bytes;
			o->blocks -= s->blocks;
		}
		slot_free(o, slot);
	}
	pthread_mutex_unlock(&o->lock);
	return r;
}

void s3_objects_totals(struct s3_objects *o, struct s3_objects_totals *totals)
{
	pthread_mutex_lock(&o->lock);
	*totals = (struct s3_objects_totals){
		.objects = o->objects,
		.small = o->small,
		.dead = o->dead,
		.bytes = o->bytes,
		.blocks = o->blocks,
		.live = atomic_load(&o->live),
		.held = atomic_load(&o->held),
		.dead_bytes = o->dead_bytes,
		.dead_blocks = o->dead_blocks,
		.memory = sizeof *o + o->allocated + o->hash_size * sizeof *o->hash +
			  o->n_chunks * (sizeof *o->chunks + sizeof *o->used),
	};
	for (size_t i = 0; i < o->n_snapshots; i++)
		totals->memory +=
			sizeof *o->snapshots + o->snapshots[i].n_held * sizeof(struct s3_held);
	pthread_mutex_unlock(&o->lock);
}

uint64_t s3_objects_deaths(struct s3_objects *o)
{
	uint64_t deaths;

	pthread_mutex_lock(&o->lock);
	deaths = o->deaths;
	pthread_mutex_unlock(&o->lock);
	return deaths;
}
