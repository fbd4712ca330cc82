/* SPDX-License-Identifier: BSD-3-Clause */
#include "fileset.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared.h"

/* ---- the tree in memory ---- */

/* While the tree grows; depth and width follow from the spec as Filebench defines them. */
struct builder {
	struct fileset *fs;
	struct rng shape, size;
	double mean_depth;
	bool failed; /* a path became too long, or memory ran out */
	char path[FILESET_PATH];
};

/* Two digits. */
static char *append_pair(char *out, uint32_t n)
{
	static const char pairs[] = "00010203040506070809101112131415161718192021222324"
				    "25262728293031323334353637383940414243444546474849"
				    "50515253545556575859606162636465666768697071727374"
				    "75767778798081828384858687888990919293949596979899";

	memcpy(out, pairs + n * 2, 2);
	return out + 2;
}

/* "/%08u": by hand, as snprintf() would be the dearest part of an operation. */
static char *append_serial(char *out, uint32_t serial)
{
	uint32_t high = serial / 10000, low = serial % 10000;

	*out++ = '/';
	if (high >= 10000)
		return out + sprintf(out, "%" PRIu32, serial);
	out = append_pair(out, high / 100);
	out = append_pair(out, high % 100);
	out = append_pair(out, low / 100);
	return append_pair(out, low % 100);
}

static bool grow(void **memory, uint64_t *room, uint64_t need, size_t size)
{
	if (need <= *room)
		return true;

	uint64_t more = *room * 2 > need ? *room * 2 : need + 1024;
	void *new = realloc(*memory, more * size);

	if (new == NULL)
		return false;
	*memory = new;
	*room = more;
	return true;
}

/* Adds the directory at the builder's path. */
static bool add_directory(struct builder *b, uint32_t length)
{
	struct fileset *fs = b->fs;
	uint64_t room = fs->dirs_room;

	if (!grow((void **)&fs->dirs, &room, (uint64_t)fs->directories + 1, sizeof *fs->dirs) ||
		!grow((void **)&fs->paths, &fs->paths_room, fs->paths_size + length + 1, 1))
		return false;
	fs->dirs_room = (uint32_t)room;
	fs->dirs[fs->directories++] =
		(struct directory){.first = fs->entries, .length = length, .path = fs->paths_size};
	memcpy(fs->paths + fs->paths_size, b->path, length + 1);
	fs->paths_size += length + 1;
	return true;
}

static void add_file(struct builder *b, uint32_t dir)
{
	struct fileset *fs = b->fs;
	uint32_t file = fs->entries++;

	fs->parent[file] = dir;
	if (fs->sizes != NULL)
		fs->sizes[file] = cvar_sample(&fs->spec.size.cvar, &b->size);
	if (rng_below(&b->size, 100) < fs->spec.prealloc) {
		atomic_init(&fs->state[file], FILE_EXISTS);
		fs->exists[file / 64] |= UINT64_C(1) << (file % 64);
		fs->existing++;
		fs->existing_bytes += fileset_size(fs, file);
	}
}

/* Fills a directory whose path, of the given length, is in the builder. */
static void populate(struct builder *b, uint32_t length, unsigned depth)
{
	struct fileset *fs = b->fs;
	double gamma = fs->spec.dirgamma, drawn = b->mean_depth, width = fs->spec.dirwidth;
	bool root = depth == 1;

	/* Both draws are made for every directory, the root included. */
	if (gamma > 0) {
		drawn = rng_gamma(&b->shape, gamma) * drawn / gamma;
		width = rng_gamma(&b->shape, gamma) * width / gamma;
	}

	unsigned leaf_depth = drawn < 1 ? 1 : (unsigned)drawn;
	double children = width > 0 ? ceil(width) : 1;
	bool leaf = !root && depth >= leaf_depth;

	if (!root) {
		if (!add_directory(b, length)) {
			b->failed = true;
			return;
		}
		if (leaf) {
			uint32_t dir = fs->directories - 1;

			for (uint32_t i = 0; i < children && fs->entries < fs->spec.entries; i++)
				add_file(b, dir);
			return;
		}
	}

	/* The root takes directories until all files have a place. */
	for (uint32_t i = 1; (root || i <= children) && fs->entries < fs->spec.entries; i++) {
		if (length + 32 > sizeof b->path) {
			b->failed = true;
			return;
		}

		char *end = append_serial(b->path + length, i);

		*end = '\0';
		populate(b, (uint32_t)(end - b->path), depth + 1);
		b->path[length] = '\0';
		if (b->failed)
			return;
	}
}

/* A fileset draws from streams of its own, so that it does not depend on others in the file. */
static uint64_t name_stream(const char *name, uint64_t salt)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325) + salt;

	for (; *name != '\0'; name++)
		hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	return hash;
}

struct fileset *fileset_new(
	const struct fileset_spec *spec, uint64_t seed, struct flow_error *error)
{
	struct fileset *fs = shared_map(sizeof *fs);
	struct builder *b = malloc(sizeof *b);
	uint64_t words = (spec->entries + 63) / 64;

	if (fs == NULL || b == NULL)
		goto no_memory;
	fs->spec = *spec;
	if (asprintf(&fs->root, "%s/%s", spec->path, spec->name) < 0) {
		fs->root = NULL;
		goto no_memory;
	}
	if (strlen(fs->root) + 64 > FILESET_PATH) {
		flow_error_set(error, "fileset %s: path %s is too long; choose a shorter one",
			spec->name, spec->path);
		goto fail;
	}
	fs->state = shared_map(spec->entries * sizeof *fs->state);
	fs->exists = shared_map(words * sizeof *fs->exists);
	fs->parent = calloc(spec->entries, sizeof *fs->parent);
	fs->sizes = spec->size.varies ? calloc(spec->entries, sizeof *fs->sizes) : NULL;
	if (fs->state == NULL || fs->exists == NULL || fs->parent == NULL ||
		(spec->size.varies && fs->sizes == NULL))
		goto no_memory;

	b->fs = fs;
	b->failed = false;
	rng_seed(&b->shape, seed, name_stream(spec->name, 0));
	rng_seed(&b->size, seed, name_stream(spec->name, 1));
	b->mean_depth = log((double)spec->entries) / log(spec->dirwidth);
	strcpy(b->path, fs->root);
	populate(b, (uint32_t)strlen(b->path), 1);
	if (b->failed) {
		flow_error_set(error,
			"fileset %s: the tree of %" PRIu64
			" entries needs too much memory or too long paths; raise dirwidth=%u",
			spec->name, spec->entries, spec->dirwidth);
		goto fail;
	}
	fs->state_bytes = spec->entries * (sizeof *fs->state + sizeof *fs->parent +
						  (fs->sizes != NULL ? sizeof *fs->sizes : 0)) +
			  words * sizeof *fs->exists + fs->directories * sizeof *fs->dirs +
			  fs->paths_size;
	free(b);
	return fs;

no_memory:
	flow_error_set(error, "fileset %s: out of memory; lower entries=%" PRIu64, spec->name,
		spec->entries);
fail:
	free(b);
	fileset_free(fs);
	return NULL;
}

void fileset_free(struct fileset *fs)
{
	if (fs == NULL)
		return;
	free(fs->root);
	free(fs->dirs);
	free(fs->paths);
	free(fs->parent);
	free(fs->sizes);
	shared_unmap((void *)fs->state, fs->spec.entries * sizeof *fs->state);
	shared_unmap((void *)fs->exists, (fs->spec.entries + 63) / 64 * sizeof *fs->exists);
	shared_unmap(fs, sizeof *fs);
}

uint32_t fileset_file_path(const struct fileset *fs, uint32_t file, char *buffer)
{
	const struct directory *dir = &fs->dirs[fs->parent[file]];

	memcpy(buffer, fs->paths + dir->path, dir->length);
	*append_serial(buffer + dir->length, file - dir->first + 1) = '\0';
	return dir->length;
}

/* ---- picking ---- */

/* The first file at or after start, wrapping once, that exists or not as wanted; NO_FILE: none. */
static uint32_t search(const struct fileset *fs, bool exists, uint32_t start)
{
	uint32_t words = (fs->entries + 63) / 64, word = start / 64;
	uint64_t mask = UINT64_MAX << (start % 64);

	/* One word more than there are: the first one is looked at in two parts. */
	for (uint32_t i = 0; i <= words; i++) {
		uint64_t bits = atomic_load_explicit(&fs->exists[word], memory_order_relaxed);

		if (!exists)
			bits = ~bits;
		bits &= mask;
		mask = UINT64_MAX;
		if (bits != 0) {
			uint32_t file = word * 64 + (uint32_t)__builtin_ctzll(bits);

			if (file < fs->entries)
				return file;
		}
		word = word + 1 == words ? 0 : word + 1;
	}
	return NO_FILE;
}

static bool matches(uint32_t state, enum pick pick)
{
	switch (pick) {
	case PICK_ABSENT:
		return !(state & FILE_EXISTS);
	case PICK_EXISTING:
		return state & FILE_EXISTS;
	default:
		return (state & FILE_EXISTS) && !(state & FILE_OPENERS);
	}
}

enum taken {
	TAKEN,
	TAKEN_BUSY,
	TAKEN_OTHER, /* not what was looked for */
};

static enum taken try_take(struct fileset *fs, uint32_t file, enum pick pick)
{
	uint32_t state = atomic_load(&fs->state[file]);

	while (!(state & FILE_BUSY)) {
		if (!matches(state, pick))
			return TAKEN_OTHER;
		if (atomic_compare_exchange_weak(&fs->state[file], &state, state | FILE_BUSY))
			return TAKEN;
	}
	return TAKEN_BUSY;
}

/* The next file by rotation, which moves on behind it. */
static uint32_t rotate(struct fileset *fs, bool exists)
{
	_Atomic uint32_t *rotor = &fs->rotor[exists].next;
	uint32_t at = atomic_load_explicit(rotor, memory_order_relaxed);

	for (;;) {
		uint32_t file = search(fs, exists, at);

		if (file == NO_FILE)
			return NO_FILE;

		uint32_t after = file + 1 == fs->entries ? 0 : file + 1;

		if (atomic_compare_exchange_weak_explicit(
			    rotor, &at, after, memory_order_relaxed, memory_order_relaxed))
			return file;
	}
}

/* Tries the candidates from first on, once round; *busy: there is one to wait for. */
static uint32_t take_from(struct fileset *fs, enum pick pick, uint32_t first, bool *busy)
{
	bool exists = pick != PICK_ABSENT;
	uint32_t file = first, passed = 0;

	*busy = false;
	for (;;) {
		switch (try_take(fs, file, pick)) {
		case TAKEN:
			return file;
		case TAKEN_BUSY:
			*busy = true;
			break;
		case TAKEN_OTHER:
			break;
		}

		uint32_t at = file + 1 == fs->entries ? 0 : file + 1;

		file = search(fs, exists, at);
		if (file == NO_FILE)
			return NO_FILE;
		/* Distance covered, this step included: more than a round is enough. */
		passed += file >= at ? file - at + 1 : fs->entries - at + file + 1;
		if (passed >= fs->entries)
			return NO_FILE;
	}
}

/*
 * Waits until a file was given back since turn was read. The first time it only announces that,
 * for a last look, so that who gives one back sees it.
 */
static void await_file(struct fileset *fs, uint32_t turn, bool *waiting)
{
	if (*waiting) {
		shared_wait(&fs->turn, turn);
		return;
	}
	atomic_fetch_add(&fs->waiters, 1);
	*waiting = true;
}

uint32_t fileset_pick(struct fileset *fs, enum pick pick, uint32_t index, const _Atomic bool *stop)
{
	bool exists = pick != PICK_ABSENT, waiting = false, busy;
	uint32_t file = NO_FILE;

	for (;;) {
		uint32_t turn = atomic_load(&fs->turn);
		uint32_t first = index == NO_FILE ? rotate(fs, exists) : search(fs, exists, index);

		if (first == NO_FILE)
			break;
		file = take_from(fs, pick, first, &busy);
		if (file != NO_FILE || !busy || atomic_load(stop))
			break;
		await_file(fs, turn, &waiting);
	}
	if (waiting)
		atomic_fetch_sub(&fs->waiters, 1);
	return file;
}

bool fileset_take(struct fileset *fs, uint32_t file, uint32_t *before, const _Atomic bool *stop)
{
	bool waiting = false, taken = false;

	for (;;) {
		uint32_t turn = atomic_load(&fs->turn);
		uint32_t state = atomic_load(&fs->state[file]);

		if (!(state & FILE_BUSY)) {
			if (atomic_compare_exchange_weak(
				    &fs->state[file], &state, state | FILE_BUSY)) {
				*before = state;
				taken = true;
				break;
			}
			continue;
		}
		if (atomic_load(stop))
			break;
		await_file(fs, turn, &waiting);
	}
	if (waiting)
		atomic_fetch_sub(&fs->waiters, 1);
	return taken;
}

void fileset_give(struct fileset *fs, uint32_t file, uint32_t state)
{
	uint32_t before = atomic_load_explicit(&fs->state[file], memory_order_relaxed);
	uint64_t bit = UINT64_C(1) << (file % 64);

	if ((before ^ state) & FILE_EXISTS) {
		if (state & FILE_EXISTS)
			atomic_fetch_or_explicit(&fs->exists[file / 64], bit, memory_order_relaxed);
		else
			atomic_fetch_and_explicit(
				&fs->exists[file / 64], ~bit, memory_order_relaxed);
	}
	atomic_store(&fs->state[file], state);
	if (atomic_load(&fs->waiters) > 0)
		fileset_wake(fs);
}

void fileset_wake(struct fileset *fs)
{
	atomic_fetch_add(&fs->turn, 1);
	shared_wake(&fs->turn);
}
