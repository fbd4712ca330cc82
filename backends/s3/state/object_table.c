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

#include "backends/s3/state/object_table.h"

#define CHUNK	 64u
#define CHUNKS	 (1u << 20)
#define HASH_MIN 1024u

#define STEPS 50u /* of use */
enum {
	LIST_NONE,
	LIST_DEAD, /* ascending by death */
	LIST_HELD, /* by the newest snapshot, or not ours: nothing to compact */
	LIST_USE,  /* + use */
	LIST_SMALL = LIST_USE + STEPS + 1, /* the same of small ones */
	LISTS = LIST_SMALL + STEPS + 1,
};

enum state {
	FREE,
	OPEN, /* its records are not all in the map */
	LISTED,
	TAKEN, /* by GC: in no list */
};

struct slot {
	uint64_t id, birth;
	_Atomic uint64_t death;
	_Atomic uint32_t bytes, blocks; /* of an open object they may still change */
	_Atomic uint32_t live;
	_Atomic uint32_t held;	/* by snapshots but the newest */
	_Atomic uint32_t fresh; /* by the newest */
	_Atomic uint32_t pins;
	uint32_t prev, next;
	_Atomic uint16_t header_units; /* of S3_ALIGN */
	uint8_t origin;
	uint8_t state;
	uint8_t list;
	bool dead;
};

_Static_assert(sizeof(struct slot) == 64, "what object_table.h promises");

struct held {
	uint32_t slot, count;
};

struct snapshot {
	uint64_t seq;
	/* What died while it was the newest: ascending by slot. Of the newest: slot.fresh. */
	struct held *held;
	size_t n_held;
};

struct s3_objects {
	uint32_t target;
	struct slot **chunks;	 /* CHUNKS */
	uint64_t *used;		 /* CHUNKS: a bit per slot */
	uint32_t n_chunks;	 /* those from here on were never used */
	uint32_t hint;		 /* chunks below have no free slot */
	_Atomic uint64_t newest; /* seq of the newest snapshot; 0: none */
	/* Of this volume's objects. */
	_Atomic uint64_t live, held;

	pthread_mutex_t lock; /* guards what follows, and in slots what is not atomic */
	bool disorder;	      /* the dead are about to be sorted */
	uint32_t heads[LISTS], tails[LISTS];
	uint32_t *hash; /* slots by origin and id; 0: empty */
	uint32_t hash_size;
	struct snapshot *snapshots; /* ascending */
	size_t n_snapshots;
	uint64_t objects, small, dead, bytes, blocks, dead_bytes, dead_blocks, allocated;
};

static struct slot *slot_of(const struct s3_objects *o, uint32_t n)
{
	return &o->chunks[n / CHUNK][n % CHUNK];
}

static uint32_t used_blocks(struct slot *s)
{
	return atomic_load(&s->live) + atomic_load(&s->held) + atomic_load(&s->fresh);
}

static bool is_small(const struct s3_objects *o, const struct slot *s)
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
	o->chunks = calloc(CHUNKS, sizeof(struct slot *));
	o->used = calloc(CHUNKS, sizeof *o->used);
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

static int chunk_make(struct s3_objects *o, uint32_t c)
{
	if (o->chunks[c])
		return 0;
	o->chunks[c] = aligned_alloc(64, CHUNK * sizeof(struct slot));
	if (!o->chunks[c])
		return -ENOMEM;
	memset(o->chunks[c], 0, CHUNK * sizeof(struct slot));
	o->allocated += CHUNK * sizeof(struct slot);
	if (c >= o->n_chunks)
		o->n_chunks = c + 1;
	return 0;
}

static void slot_use(struct s3_objects *o, uint32_t n)
{
	o->used[n / CHUNK] |= 1ull << n % CHUNK;
}

/* The lowest free slot; S3_NO_SLOT: no memory. */
static uint32_t slot_new(struct s3_objects *o)
{
	uint32_t c = o->hint, n;

	while (c < CHUNKS && (o->used[c] & slots_in(c)) == slots_in(c))
		c++;
	o->hint = c;
	if (c == CHUNKS || chunk_make(o, c))
		return S3_NO_SLOT;
	n = c * CHUNK + (uint32_t)__builtin_ctzll(~o->used[c] & slots_in(c));
	slot_use(o, n);
	memset(slot_of(o, n), 0, sizeof(struct slot));
	return n;
}

static void slot_free(struct s3_objects *o, uint32_t n)
{
	uint32_t c = n / CHUNK;

	slot_of(o, n)->state = FREE;
	o->used[c] &= ~(1ull << n % CHUNK);
	if (c < o->hint)
		o->hint = c;
	/* Nobody has a slot of it: who looks at one has a pin or a block of it in the map. */
	if (!o->used[c]) {
		free(o->chunks[c]);
		o->chunks[c] = NULL;
		o->allocated -= CHUNK * sizeof(struct slot);
	}
}

/* The first slot in use from n on; S3_NO_SLOT: none. */
static uint32_t slot_after(const struct s3_objects *o, uint32_t n)
{
	for (uint32_t c = n / CHUNK; c < o->n_chunks; c++, n = c * CHUNK) {
		uint64_t bits = o->used[c] & UINT64_MAX << n % CHUNK;

		if (bits)
			return c * CHUNK + (uint32_t)__builtin_ctzll(bits);
	}
	return S3_NO_SLOT;
}

#define for_each_slot(o, n) for (uint32_t n = slot_after(o, 1); n; n = slot_after(o, n + 1))

/* ---- by number ----------------------------------------------------------------- */

static uint32_t hash_of(const struct s3_objects *o, uint8_t origin, uint64_t id)
{
	uint64_t h = (id ^ (uint64_t)origin << 55) * 0x9e3779b97f4a7c15u;

	return (uint32_t)(h >> 32) & (o->hash_size - 1);
}

/* Where it is, or where it would be. */
static uint32_t hash_place(const struct s3_objects *o, uint8_t origin, uint64_t id)
{
	uint32_t i = hash_of(o, origin, id);

	for (; o->hash[i]; i = (i + 1) & (o->hash_size - 1)) {
		const struct slot *s = slot_of(o, o->hash[i]);

		if (s->id == id && s->origin == origin)
			break;
	}
	return i;
}

static void hash_add(struct s3_objects *o, uint32_t n)
{
	const struct slot *s = slot_of(o, n);

	o->hash[hash_place(o, s->origin, s->id)] = n;
}

/* Enters all slots anew into a table of size. */
static int hash_rebuild(struct s3_objects *o, uint32_t size)
{
	uint32_t *hash = calloc(size, sizeof *hash);

	if (!hash)
		return -ENOMEM;
	free(o->hash);
	o->hash = hash;
	o->hash_size = size;
	for_each_slot(o, n) hash_add(o, n);
	return 0;
}

/* Takes an entry out and closes the gap, so that no walk ends before what it looks for. */
static void hash_remove(struct s3_objects *o, const struct slot *s)
{
	uint32_t mask = o->hash_size - 1;
	uint32_t gap = hash_place(o, s->origin, s->id);

	for (uint32_t i = (gap + 1) & mask; o->hash[i]; i = (i + 1) & mask) {
		const struct slot *other = slot_of(o, o->hash[i]);
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
	n = o->hash[hash_place(o, origin, id)];
	pthread_mutex_unlock(&o->lock);
	return n;
}

/* ---- lists ------------------------------------------------------------------- */

static void unlist(struct s3_objects *o, uint32_t n)
{
	struct slot *s = slot_of(o, n);

	if (s->list == LIST_NONE)
		return;
	o->small -= s->list >= LIST_SMALL;
	*(s->prev ? &slot_of(o, s->prev)->next : &o->heads[s->list]) = s->next;
	*(s->next ? &slot_of(o, s->next)->prev : &o->tails[s->list]) = s->prev;
	s->list = LIST_NONE;
	s->prev = s->next = 0;
}

/* Puts n behind after, 0: at the front. */
static void enlist(struct s3_objects *o, uint32_t n, unsigned list, uint32_t after)
{
	struct slot *s = slot_of(o, n);

	o->small += list >= LIST_SMALL;
	s->list = (uint8_t)list;
	s->prev = after;
	s->next = after ? slot_of(o, after)->next : o->heads[list];
	*(s->prev ? &slot_of(o, s->prev)->next : &o->heads[list]) = n;
	*(s->next ? &slot_of(o, s->next)->prev : &o->tails[list]) = n;
}

/* Step of use of a live object; -1: nothing is used. */
static int step_of(uint32_t used, uint32_t blocks)
{
	return used ? (int)((uint64_t)used * STEPS / blocks) : -1;
}

static bool is_held(struct s3_objects *o, const struct slot *s)
{
	uint64_t newest = atomic_load(&o->newest);

	return newest && s->birth <= newest;
}

static void set_dead(struct s3_objects *o, struct slot *s, bool dead)
{
	int64_t change = dead ? 1 : -1;

	if (s->dead == dead)
		return;
	s->dead = dead;
	o->dead += change;
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
	struct slot *s = slot_of(o, n);
	uint32_t used = used_blocks(s);
	unsigned list = LIST_HELD;
	uint32_t after;

	if (used)
		atomic_store(&s->death, 0);
	else if (seq > atomic_load(&s->death))
		atomic_store(&s->death, seq);
	if (s->state == FREE || s->state == OPEN)
		return;
	set_dead(o, s, !used);
	if (s->state == TAKEN)
		return;
	if (!used)
		list = LIST_DEAD;
	else if (!s->origin && !is_held(o, s))
		list = (is_small(o, s) ? LIST_SMALL : LIST_USE) +
		       (unsigned)step_of(used, s->blocks);
	if (s->list == list && list != LIST_DEAD)
		return;
	unlist(o, n);
	after = o->tails[list];
	/* Batches are applied in their order, so that this seldom takes a step. */
	if (list == LIST_DEAD && !o->disorder)
		while (after && slot_of(o, after)->death > s->death)
			after = slot_of(o, after)->prev;
	enlist(o, n, list, after);
}

/* Puts the dead in order. */
static void sort_dead(struct s3_objects *o, struct mortal *all)
{
	size_t n = 0;

	for (uint32_t i = o->heads[LIST_DEAD]; i; i = slot_of(o, i)->next)
		all[n++] = (struct mortal){slot_of(o, i)->death, i};
	qsort(all, n, sizeof *all, by_death);
	for (size_t i = 0; i < n; i++) {
		unlist(o, all[i].slot);
		enlist(o, all[i].slot, LIST_DEAD, o->tails[LIST_DEAD]);
	}
}

/*
 * seq: when those died that are found dead. In the order of the slots many would each take a walk
 * to their place, so they are sorted afterwards, if there is memory for that.
 */
static void relist_all(struct s3_objects *o, uint64_t seq)
{
	struct mortal *all = malloc((o->objects + 1) * sizeof *all);

	o->disorder = all != NULL;
	for_each_slot(o, n) relist(o, n, slot_of(o, n)->death ? 0 : seq);
	if (all)
		sort_dead(o, all);
	o->disorder = false;
	free(all);
}

/* ---- objects ------------------------------------------------------------------- */

/* Enters an object into slot n. */
static void fill(struct s3_objects *o, uint32_t n, const struct s3_object *object)
{
	struct slot *s = slot_of(o, n);

	s->id = object->id;
	s->birth = object->birth;
	s->origin = object->origin;
	s->bytes = object->bytes;
	s->header_units = (uint16_t)(object->header_bytes / S3_ALIGN);
	s->blocks = object->blocks;
	s->state = OPEN;
	o->objects++;
	if (!s->origin) {
		o->bytes += s->bytes;
		o->blocks += s->blocks;
	}
	hash_add(o, n);
}

/* Room in the hash for one more. */
static int make_room(struct s3_objects *o)
{
	if (o->objects < o->hash_size / 4 * 3)
		return 0;
	return hash_rebuild(o, o->hash_size * 2);
}

uint32_t s3_objects_add(struct s3_objects *o, const struct s3_object *object)
{
	uint32_t n = S3_NO_SLOT;

	pthread_mutex_lock(&o->lock);
	if (!o->hash[hash_place(o, object->origin, object->id)] && !make_room(o))
		n = slot_new(o);
	if (n)
		fill(o, n, object);
	pthread_mutex_unlock(&o->lock);
	return n;
}

void s3_objects_size(
	struct s3_objects *o, uint32_t slot, uint32_t bytes, uint32_t header_bytes, uint32_t blocks)
{
	struct slot *s = slot_of(o, slot);

	pthread_mutex_lock(&o->lock);
	assert(s->state == OPEN && blocks >= atomic_load(&s->live));
	o->bytes += (uint64_t)bytes - s->bytes;
	o->blocks += (uint64_t)blocks - s->blocks;
	s->bytes = bytes;
	s->blocks = blocks;
	s->header_units = (uint16_t)(header_bytes / S3_ALIGN);
	pthread_mutex_unlock(&o->lock);
}

/* Makes an open object one that may be listed. */
static void seal(struct slot *s)
{
	assert(s->state == OPEN);
	s->state = LISTED;
}

void s3_objects_seal(struct s3_objects *o, uint32_t slot, uint64_t seq)
{
	pthread_mutex_lock(&o->lock);
	seal(slot_of(o, slot));
	relist(o, slot, seq);
	pthread_mutex_unlock(&o->lock);
}

static void describe(struct slot *s, struct s3_object *object)
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
	describe(slot_of(o, slot), object);
}

static bool slot_used(const struct s3_objects *o, uint64_t n)
{
	return n / CHUNK < o->n_chunks && o->used[n / CHUNK] >> n % CHUNK & 1;
}

bool s3_objects_count(struct s3_objects *o, uint64_t slot, uint64_t offset, uint32_t count)
{
	struct slot *s;

	if (!slot_used(o, slot))
		return false;
	s = slot_of(o, (uint32_t)slot);
	if (count > s->blocks || offset > s->blocks - count ||
		count > s->blocks - atomic_fetch_add(&s->live, count))
		return false;
	return true;
}

uint32_t s3_objects_find_pinned(struct s3_objects *o, uint8_t origin, uint64_t id)
{
	uint32_t n;

	pthread_mutex_lock(&o->lock);
	n = o->hash[hash_place(o, origin, id)];
	/* GC looks for pins under the lock. */
	if (n != S3_NO_SLOT)
		s3_objects_pin(o, n);
	pthread_mutex_unlock(&o->lock);
	return n;
}

void s3_objects_pin(struct s3_objects *o, uint32_t slot)
{
	atomic_fetch_add(&slot_of(o, slot)->pins, 1);
}

void s3_objects_unpin(struct s3_objects *o, uint32_t slot)
{
	uint32_t pins = atomic_fetch_sub(&slot_of(o, slot)->pins, 1);

	assert(pins);
	(void)pins;
}

void s3_objects_live(struct s3_objects *o, uint32_t slot, int32_t delta, uint64_t seq)
{
	struct slot *s = slot_of(o, slot);
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
	struct slot *s = slot_of(o, slot);
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
	slot_of(o, n)->state = TAKEN;
}

size_t s3_objects_take_dead(struct s3_objects *o, uint64_t limit, uint32_t *slots, size_t max)
{
	size_t taken = 0;
	uint32_t next;

	pthread_mutex_lock(&o->lock);
	for (uint32_t n = o->heads[LIST_DEAD]; n && taken < max; n = next) {
		struct slot *s = slot_of(o, n);

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
	for (unsigned step = 0; step <= STEPS; step++)
		for (unsigned apart = 0; apart < 2; apart++) {
			unsigned list = (apart ? LIST_SMALL : LIST_USE) + step;

			if (step * (100 / STEPS) >= percent && !(small && apart))
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
	assert(slot_of(o, slot)->state == TAKEN);
	slot_of(o, slot)->state = LISTED;
	relist(o, slot, 0);
	pthread_mutex_unlock(&o->lock);
}

int s3_objects_remove(struct s3_objects *o, uint32_t slot)
{
	struct slot *s = slot_of(o, slot);
	int r = -EBUSY;

	pthread_mutex_lock(&o->lock);
	if (!used_blocks(s) && !atomic_load(&s->pins)) {
		r = 0;
		set_dead(o, s, false);
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
			sizeof *o->snapshots + o->snapshots[i].n_held * sizeof(struct held);
	pthread_mutex_unlock(&o->lock);
}

/* ---- snapshots ----------------------------------------------------------------- */

static void set_newest(struct s3_objects *o)
{
	atomic_store(&o->newest, o->n_snapshots ? o->snapshots[o->n_snapshots - 1].seq : 0);
}

/* What the newest snapshot holds, as a list. */
static int list_fresh(struct s3_objects *o, struct held **list, size_t *n_list)
{
	size_t n = 0;

	for_each_slot(o, i) n += atomic_load(&slot_of(o, i)->fresh) > 0;
	*list = malloc((n ? n : 1) * sizeof **list);
	if (!*list)
		return -ENOMEM;
	*n_list = 0;
	for_each_slot(o, i)
	{
		uint32_t fresh = atomic_load(&slot_of(o, i)->fresh);

		if (fresh)
			(*list)[(*n_list)++] = (struct held){i, fresh};
	}
	return 0;
}

int s3_objects_snapshot(struct s3_objects *o, uint64_t seq)
{
	struct snapshot *snapshots;
	struct held *list = NULL;
	size_t n = 0;
	int r = 0;

	pthread_mutex_lock(&o->lock);
	snapshots = realloc(o->snapshots, (o->n_snapshots + 1) * sizeof *snapshots);
	if (snapshots)
		o->snapshots = snapshots;
	if (!snapshots)
		r = -ENOMEM;
	else if (seq < atomic_load(&o->newest) || !seq)
		r = -EINVAL;
	else if (o->n_snapshots)
		r = list_fresh(o, &list, &n);
	if (!r) {
		for (size_t i = 0; i < n; i++) {
			struct slot *s = slot_of(o, list[i].slot);

			atomic_fetch_add(&s->held, list[i].count);
			atomic_store(&s->fresh, 0);
		}
		if (o->n_snapshots) {
			snapshots[o->n_snapshots - 1].held = list;
			snapshots[o->n_snapshots - 1].n_held = n;
		}
		snapshots[o->n_snapshots++] = (struct snapshot){.seq = seq};
		set_newest(o);
		relist_all(o, 0);
	}
	pthread_mutex_unlock(&o->lock);
	return r;
}

/* What two lists hold together, into room for both. */
static size_t merge(const struct snapshot *a, const struct snapshot *b, struct held *list)
{
	size_t i = 0, j = 0, n = 0;

	while (i < a->n_held || j < b->n_held) {
		if (j == b->n_held || (i < a->n_held && a->held[i].slot < b->held[j].slot)) {
			list[n++] = a->held[i++];
		} else if (i == a->n_held || b->held[j].slot < a->held[i].slot) {
			list[n++] = b->held[j++];
		} else {
			list[n] = a->held[i++];
			list[n++].count += b->held[j++].count;
		}
	}
	return n;
}

/* The newest snapshot goes: what it held is held by the one before, or nobody. */
static void delete_newest(struct s3_objects *o, struct snapshot *older)
{
	for_each_slot(o, n)
	{
		struct slot *s = slot_of(o, n);
		uint32_t fresh = atomic_load(&s->fresh);

		if (!fresh || (older && s->birth <= older->seq))
			continue;
		if (!s->origin)
			atomic_fetch_sub(&o->held, fresh);
		atomic_store(&s->fresh, 0);
	}
	if (!older)
		return;
	for (size_t i = 0; i < older->n_held; i++) {
		struct slot *s = slot_of(o, older->held[i].slot);

		atomic_fetch_sub(&s->held, older->held[i].count);
		atomic_fetch_add(&s->fresh, older->held[i].count);
	}
	free(older->held);
	older->held = NULL;
	older->n_held = 0;
}

/* The same of another one. */
static int delete_older(struct s3_objects *o, struct snapshot *gone, struct snapshot *older)
{
	struct snapshot kept = {.held = gone->held};
	struct held *merged = NULL;

	if (older) {
		merged = malloc((older->n_held + gone->n_held + 1) * sizeof *merged);
		if (!merged)
			return -ENOMEM;
	}
	for (size_t i = 0; i < gone->n_held; i++) {
		struct held h = gone->held[i];
		struct slot *s = slot_of(o, h.slot);

		if (older && s->birth <= older->seq) {
			kept.held[kept.n_held++] = h;
			continue;
		}
		atomic_fetch_sub(&s->held, h.count);
		if (!s->origin)
			atomic_fetch_sub(&o->held, h.count);
	}
	if (older) {
		older->n_held = merge(older, &kept, merged);
		free(older->held);
		older->held = merged;
	}
	free(gone->held);
	return 0;
}

int s3_objects_snapshot_delete(struct s3_objects *o, uint64_t seq, uint64_t now)
{
	size_t k;
	int r = 0;

	pthread_mutex_lock(&o->lock);
	k = o->n_snapshots;
	/* From the end: of several at one seq the last, whose blocks then go to the others. */
	while (k && o->snapshots[k - 1].seq != seq)
		k--;
	if (!k--) {
		r = -ENOENT;
	} else {
		struct snapshot *older = k ? &o->snapshots[k - 1] : NULL;

		if (k == o->n_snapshots - 1)
			delete_newest(o, older);
		else
			r = delete_older(o, &o->snapshots[k], older);
	}
	if (!r) {
		o->n_snapshots--;
		memmove(&o->snapshots[k], &o->snapshots[k + 1],
			(o->n_snapshots - k) * sizeof *o->snapshots);
		set_newest(o);
		relist_all(o, now);
	}
	pthread_mutex_unlock(&o->lock);
	return r;
}

int s3_objects_rollback(struct s3_objects *o, uint64_t seq)
{
	int r = -EINVAL;

	pthread_mutex_lock(&o->lock);
	if (seq && seq == atomic_load(&o->newest)) {
		r = 0;
		for_each_slot(o, n)
		{
			struct slot *s = slot_of(o, n);
			uint32_t fresh = atomic_load(&s->fresh);

			/* What died since then lives again; the map of the snapshot counts it. */
			atomic_store(&s->fresh, 0);
			atomic_store(&s->live, 0);
			if (!s->origin)
				atomic_fetch_sub(&o->held, fresh);
		}
		atomic_store(&o->live, 0);
	}
	pthread_mutex_unlock(&o->lock);
	return r;
}

void s3_objects_settle(struct s3_objects *o, uint64_t now)
{
	uint64_t live = 0;

	pthread_mutex_lock(&o->lock);
	relist_all(o, now);
	for_each_slot(o, n) live += slot_of(o, n)->origin ? 0 : slot_of(o, n)->live;
	atomic_store(&o->live, live);
	pthread_mutex_unlock(&o->lock);
}

int s3_objects_inherit(struct s3_objects *o)
{
	int r = 0;

	pthread_mutex_lock(&o->lock);
	for_each_slot(o, n) if (slot_of(o, n)->origin == S3_PARENTS_MAX) r = -ERANGE;
	if (!r) {
		while (o->n_snapshots)
			free(o->snapshots[--o->n_snapshots].held);
		set_newest(o);
		for_each_slot(o, n)
		{
			struct slot *s = slot_of(o, n);

			set_dead(o, s, false);
			s->origin++;
			s->birth = 0;
			atomic_store(&s->held, 0);
			atomic_store(&s->death, 0);
			atomic_store(&s->fresh, 0);
		}
		o->bytes = o->blocks = 0;
		atomic_store(&o->live, 0);
		atomic_store(&o->held, 0);
		/* What the clone begins without is dead with its first object. */
		relist_all(o, 1);
		r = hash_rebuild(o, o->hash_size);
	}
	pthread_mutex_unlock(&o->lock);
	return r;
}

/* ---- checkpoint ------------------------------------------------------------------ */

/*
 * objects; per object: slot - last slot | flags | id - last id (signed) | birth - id (signed, but 0
 * of an ancestor's and the number of a GC object) | bytes | header units | blocks | with its flag:
 * origin, death (older programs stored 0 of an ancestor's that the clone began without). Then
 * snapshots; per snapshot: seq - last seq | entries; per entry: slot - last slot | count. All
 * varints.
 */
#define FLAG_GC	    1u
#define FLAG_ORIGIN 2u
#define FLAG_DEAD   4u
#define FLAG_SAME   8u /* birth is the number itself */
#define FLAGS	    15u

void s3_objects_encode(struct s3_objects *o, struct s3_buffer *out)
{
	uint64_t last_id = 0;
	uint32_t last = 0;
	size_t n_sealed = 0;

	pthread_mutex_lock(&o->lock);
	for_each_slot(o, n) n_sealed += slot_of(o, n)->state != OPEN;
	s3_buffer_varint(out, n_sealed);
	for_each_slot(o, n)
	{
		struct slot *s = slot_of(o, n);
		uint64_t id = s->id & ~S3_GC;
		unsigned flags;

		if (s->state == OPEN)
			continue;
		flags = (s->id & S3_GC ? FLAG_GC : 0) | (s->origin ? FLAG_ORIGIN : 0) |
			(s->dead ? FLAG_DEAD : 0) | (s->birth == id ? FLAG_SAME : 0);
		s3_buffer_varint(out, n - last);
		s3_buffer_varint(out, flags);
		s3_buffer_signed(out, (int64_t)(id - last_id));
		if (!(flags & FLAG_SAME))
			s3_buffer_varint(out, s->birth);
		s3_buffer_varint(out, s->bytes);
		s3_buffer_varint(out, s->header_units);
		s3_buffer_varint(out, s->blocks);
		if (flags & FLAG_ORIGIN)
			s3_buffer_varint(out, s->origin);
		if (flags & FLAG_DEAD)
			s3_buffer_varint(out, s->death);
		last = n;
		last_id = id;
	}
	s3_buffer_varint(out, o->n_snapshots);
	for (size_t i = 0; i < o->n_snapshots; i++) {
		const struct snapshot *snapshot = &o->snapshots[i];
		struct held *held = snapshot->held;
		size_t n_held = snapshot->n_held;

		s3_buffer_varint(out, snapshot->seq - (i ? snapshot[-1].seq : 0));
		if (i == o->n_snapshots - 1 && list_fresh(o, &held, &n_held)) {
			out->failed = true;
			break;
		}
		s3_buffer_varint(out, n_held);
		last = 0;
		for (size_t j = 0; j < n_held; j++) {
			s3_buffer_varint(out, held[j].slot - last);
			s3_buffer_varint(out, held[j].count);
			last = held[j].slot;
		}
		if (held != snapshot->held)
			free(held);
	}
	pthread_mutex_unlock(&o->lock);
}

/* One object of the table; last: slot and number of the one before. */
static enum s3_check decode_object(
	struct s3_objects *o, struct s3_reader *r, uint32_t *last, uint64_t *last_id)
{
	uint64_t gap = s3_read_varint(r), flags = s3_read_varint(r);
	uint64_t id = *last_id + (uint64_t)s3_read_signed(r);
	uint64_t birth = flags & FLAG_SAME ? id : s3_read_varint(r);
	uint64_t bytes = s3_read_varint(r), units = s3_read_varint(r);
	uint64_t blocks = s3_read_varint(r);
	uint64_t origin = flags & FLAG_ORIGIN ? s3_read_varint(r) : 0;
	uint64_t death = flags & FLAG_DEAD ? s3_read_varint(r) : 0;
	struct s3_object object;
	struct slot *s;
	uint32_t n;

	if (r->bad || !gap || gap > (uint64_t)CHUNKS * CHUNK - 1 - *last ||
		flags & ~(uint64_t)FLAGS || !id || id & S3_GC || bytes > UINT32_MAX || !units ||
		units > S3_HEADER_MAX / S3_ALIGN || bytes < units * S3_ALIGN ||
		blocks > S3_OBJECT_MAX || origin > S3_PARENTS_MAX ||
		(flags & FLAG_ORIGIN && !origin) || (flags & FLAG_DEAD && !death && !origin) ||
		(!(flags & FLAG_SAME) && birth == id))
		return S3_INVALID;
	n = *last + (uint32_t)gap;
	*last = n;
	*last_id = id;
	object = (struct s3_object){
		.id = flags & FLAG_GC ? id | S3_GC : id,
		.birth = birth,
		.origin = (uint8_t)origin,
		.bytes = (uint32_t)bytes,
		.header_bytes = (uint32_t)units * S3_ALIGN,
		.blocks = (uint32_t)blocks,
	};
	if (o->hash[hash_place(o, object.origin, object.id)])
		return S3_INVALID;
	if (make_room(o) || chunk_make(o, n / CHUNK))
		return S3_NO_MEMORY;
	slot_use(o, n);
	fill(o, n, &object);
	s = slot_of(o, n);
	atomic_store(&s->death, death);
	seal(s);
	return S3_GOOD;
}

static enum s3_check decode_held(
	struct s3_objects *o, struct s3_reader *r, struct snapshot *snapshot, bool newest)
{
	uint64_t n = s3_read_varint(r);
	uint32_t last = 0;

	/* An entry has two bytes at least: what is allocated is bounded by what there is. */
	if (r->bad || n > s3_read_left(r) / 2)
		return S3_INVALID;
	if (!newest) {
		snapshot->held = malloc((n ? n : 1) * sizeof *snapshot->held);
		if (!snapshot->held)
			return S3_NO_MEMORY;
	}
	for (uint64_t i = 0; i < n; i++) {
		uint64_t gap = s3_read_varint(r), count = s3_read_varint(r);
		uint64_t slot = last + gap;
		struct slot *s;

		if (r->bad || !gap || gap > (uint64_t)CHUNKS * CHUNK || !slot_used(o, slot))
			return S3_INVALID;
		last = (uint32_t)slot;
		s = slot_of(o, last);
		if (!count || count > s->blocks - used_blocks(s) || s->birth > snapshot->seq)
			return S3_INVALID;
		if (newest)
			atomic_store(&s->fresh, (uint32_t)count);
		else
			atomic_fetch_add(&s->held, (uint32_t)count);
		if (!s->origin)
			atomic_fetch_add(&o->held, count);
		if (!newest)
			snapshot->held[snapshot->n_held++] = (struct held){last, (uint32_t)count};
	}
	return S3_GOOD;
}

static enum s3_check decode(struct s3_objects *o, struct s3_reader *r)
{
	uint64_t n_objects = s3_read_varint(r), n_snapshots, last_id = 0;
	enum s3_check check = S3_GOOD;
	uint32_t last = 0;

	for (uint64_t i = 0; !check && i < n_objects; i++)
		check = decode_object(o, r, &last, &last_id);
	if (check)
		return check;
	n_snapshots = s3_read_varint(r);
	if (r->bad || n_snapshots > s3_read_left(r) / 2)
		return S3_INVALID;
	o->snapshots = calloc(n_snapshots ? n_snapshots : 1, sizeof *o->snapshots);
	if (!o->snapshots)
		return S3_NO_MEMORY;
	for (uint64_t i = 0; !check && i < n_snapshots; i++) {
		struct snapshot *snapshot = &o->snapshots[o->n_snapshots];
		uint64_t gap = s3_read_varint(r);

		snapshot->seq = (i ? snapshot[-1].seq : 0) + gap;
		if (r->bad || !snapshot->seq || snapshot->seq < gap || snapshot->seq & S3_GC)
			return S3_INVALID;
		o->n_snapshots++; /* s3_objects_free() frees what it has */
		check = decode_held(o, r, snapshot, i == n_snapshots - 1);
	}
	if (!check && (r->bad || s3_read_left(r)))
		check = S3_INVALID;
	return check;
}

enum s3_check s3_objects_decode(struct s3_objects *o, const void *data, size_t length)
{
	struct s3_reader r = {.next = data, .end = (const uint8_t *)data + length};
	enum s3_check check;

	pthread_mutex_lock(&o->lock);
	check = decode(o, &r);
	set_newest(o);
	pthread_mutex_unlock(&o->lock);
	return check;
}

int s3_objects_walk(struct s3_objects *o,
	int (*fn)(void *opaque, uint32_t slot, const struct s3_object *object), void *opaque)
{
	int r = 0;

	for (uint32_t n = 0; !r;) {
		struct s3_object object;

		pthread_mutex_lock(&o->lock);
		n = slot_after(o, n + 1);
		if (n)
			describe(slot_of(o, n), &object);
		pthread_mutex_unlock(&o->lock);
		if (!n)
			break;
		r = fn(opaque, n, &object);
	}
	return r;
}
