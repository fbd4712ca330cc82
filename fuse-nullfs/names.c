/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>
#include <unistd.h>

#include <fuse_lowlevel.h>

#include "names.h"

#define FIRST_BUCKETS 1024 /* a power of two */
#define DOTS	      2	   /* places of a directory before those of its names: . and .. */
#define NO_SLOT	      SIZE_MAX
#define NO_FREE	      UINTPTR_MAX /* odd */

/* A directory has an array of slots, one for each name; those that are free are a list. */
union slot {
	struct node *node;
	uintptr_t next_free; /* as free_mark() makes it */
};

struct node {
	LIST_ENTRY(node) all;
	struct node *next; /* in its bucket */
	struct node *parent;
	char *name; /* NULL: it no longer has one */
	uint64_t known;
	ino_t number;
	mode_t mode;
	uid_t uid;
	gid_t gid;
	atomic_llong size;
	struct timespec atime, mtime, ctime;
	size_t slot; /* in its parent */
	/* For a directory. */
	union slot *slots;
	size_t used, capacity, names, directories;
	uintptr_t first_free; /* or NO_FREE */
};

static struct {
	pthread_mutex_t lock;
	struct node *root;
	struct node **buckets;
	size_t bucket_count;
	LIST_HEAD(, node) all; /* also those without a name */
	uint64_t count, made;
} tree = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct timespec now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_REALTIME_COARSE, &time);
	return time;
}

/* ---- by name: a table of all nodes that have one ---- */

static size_t bucket_of(const struct node *parent, const char *name)
{
	uint64_t hash = (uintptr_t)parent ^ 14695981039346656037ULL; /* FNV-1a */

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 1099511628211ULL;
	return (hash ^ hash >> 32) & (tree.bucket_count - 1);
}

static struct node *find(const struct node *parent, const char *name)
{
	struct node *node = tree.buckets[bucket_of(parent, name)];

	while (node && (node->parent != parent || strcmp(node->name, name) != 0))
		node = node->next;
	return node;
}

static void put_in_table(struct node *node)
{
	struct node **bucket = &tree.buckets[bucket_of(node->parent, node->name)];

	node->next = *bucket;
	*bucket = node;
}

static void take_from_table(struct node *node)
{
	struct node **place = &tree.buckets[bucket_of(node->parent, node->name)];

	while (*place != node)
		place = &(*place)->next;
	*place = node->next;
}

/* A table with fewer than a node in each bucket. As it is when there is no memory. */
static void grow_table(void)
{
	struct node **old = tree.buckets;
	size_t old_count = tree.bucket_count;
	struct node **buckets = calloc(2 * old_count, sizeof(struct node *));

	if (!buckets)
		return;
	tree.buckets = buckets;
	tree.bucket_count = 2 * old_count;
	for (size_t i = 0; i < old_count; i++)
		for (struct node *node = old[i], *next; node; node = next) {
			next = node->next;
			put_in_table(node);
		}
	free(old);
}

/* ---- by place in a directory ---- */

/* Odd, as no address is. */
static uintptr_t free_mark(size_t slot)
{
	return (uintptr_t)slot << 1 | 1;
}

static bool is_free(union slot slot)
{
	return slot.next_free & 1;
}

/* A slot of directory, or NO_SLOT: out of memory. */
static size_t take_slot(struct node *directory)
{
	if (directory->first_free != NO_FREE) {
		size_t slot = directory->first_free >> 1;

		directory->first_free = directory->slots[slot].next_free;
		return slot;
	}
	if (directory->used == directory->capacity) {
		size_t capacity = directory->capacity ? 2 * directory->capacity : 16;
		union slot *slots = realloc(directory->slots, capacity * sizeof(*slots));

		if (!slots)
			return NO_SLOT;
		directory->slots = slots;
		directory->capacity = capacity;
	}
	return directory->used++;
}

static void free_slot(struct node *directory, size_t slot)
{
	directory->slots[slot].next_free = directory->first_free;
	directory->first_free = free_mark(slot);
}

/* ---- nodes ---- */

static bool is_directory(const struct node *node)
{
	return S_ISDIR(node->mode);
}

static void drop(struct node *node)
{
	if (node->known || node->name)
		return;
	tree.count--;
	LIST_REMOVE(node, all);
	free(node->slots);
	free(node);
}

/* Gives node, which has no name, this one. */
static int attach(struct node *node, struct node *parent, const char *name)
{
	size_t slot;

	if (strlen(name) > NAME_MAX)
		return -ENAMETOOLONG;
	/* A directory without a name gets no names, as on other file systems. */
	if (!parent->name)
		return -ENOENT;
	node->name = strdup(name);
	slot = node->name ? take_slot(parent) : NO_SLOT;
	if (slot == NO_SLOT) {
		free(node->name);
		node->name = NULL;
		return -ENOMEM;
	}
	node->parent = parent;
	node->slot = slot;
	parent->slots[slot].node = node;
	parent->names++;
	parent->directories += is_directory(node);
	parent->mtime = parent->ctime = now();
	put_in_table(node);
	return 0;
}

static void detach(struct node *node)
{
	struct node *parent = node->parent;

	take_from_table(node);
	free_slot(parent, node->slot);
	parent->names--;
	parent->directories -= is_directory(node);
	node->ctime = parent->mtime = parent->ctime = now();
	free(node->name);
	node->name = NULL;
}

static struct node *new_node(const struct maker *maker)
{
	struct node *node = calloc(1, sizeof(*node));

	if (!node)
		return NULL;
	node->number = ++tree.made;
	node->mode = maker->mode;
	node->uid = maker->uid;
	node->gid = maker->gid;
	node->first_free = NO_FREE;
	atomic_init(&node->size, maker->size);
	node->atime = node->mtime = node->ctime = now();
	tree.count++;
	LIST_INSERT_HEAD(&tree.all, node, all);
	return node;
}

static void fill(const struct node *node, struct stat *st)
{
	*st = (struct stat){
		.st_ino = node->number,
		.st_mode = node->mode,
		.st_nlink = is_directory(node) ? 2 + node->directories : node->name != NULL,
		.st_uid = node->uid,
		.st_gid = node->gid,
		.st_size = atomic_load(&node->size),
		.st_blksize = 4096,
		.st_blocks = (atomic_load(&node->size) + 511) / 512,
		.st_atim = node->atime,
		.st_mtim = node->mtime,
		.st_ctim = node->ctime,
	};
}

int names_init(void)
{
	const struct maker maker = {geteuid(), getegid(), S_IFDIR | 0755, 0};

	tree.bucket_count = FIRST_BUCKETS;
	tree.buckets = calloc(tree.bucket_count, sizeof(struct node *));
	tree.root = tree.buckets ? new_node(&maker) : NULL;
	if (!tree.root)
		return -ENOMEM;
	tree.root->name = strdup("/"); /* in no table: nobody asks for it */
	tree.root->parent = tree.root;
	return tree.root->name ? 0 : -ENOMEM;
}

void names_destroy(void)
{
	struct node *node;

	while ((node = LIST_FIRST(&tree.all))) {
		LIST_REMOVE(node, all);
		free(node->slots);
		free(node->name);
		free(node);
	}
	free(tree.buckets);
}

struct node *names_root(void)
{
	return tree.root;
}

uint64_t names_count(void)
{
	uint64_t count;

	pthread_mutex_lock(&tree.lock);
	count = tree.count;
	pthread_mutex_unlock(&tree.lock);
	return count;
}

/* ---- operations ---- */

static int make(struct node *parent, const char *name, const struct maker *maker, bool known,
	struct node **made, struct stat *st)
{
	struct node *node;
	int result;

	if (find(parent, name))
		return -EEXIST;
	node = new_node(maker);
	if (!node)
		return -ENOMEM;
	result = attach(node, parent, name);
	if (result < 0) {
		drop(node);
		return result;
	}
	if (parent->mode & S_ISGID) {
		node->gid = parent->gid;
		if (is_directory(node))
			node->mode |= S_ISGID;
	}
	node->known = known;
	if (tree.count > tree.bucket_count)
		grow_table();
	if (made)
		*made = node;
	if (st)
		fill(node, st);
	return 0;
}

int names_make(struct node *parent, const char *name, const struct maker *maker, bool known,
	struct node **node, struct stat *st)
{
	int result;

	pthread_mutex_lock(&tree.lock);
	result = make(parent, name, maker, known, node, st);
	pthread_mutex_unlock(&tree.lock);
	return result;
}

int names_find(struct node *parent, const char *name, struct node **node, struct stat *st)
{
	pthread_mutex_lock(&tree.lock);
	*node = find(parent, name);
	if (*node) {
		(*node)->known++;
		fill(*node, st);
	}
	pthread_mutex_unlock(&tree.lock);
	return *node ? 0 : -ENOENT;
}

void names_forget(struct node *node, uint64_t times)
{
	if (node == tree.root)
		return;
	pthread_mutex_lock(&tree.lock);
	node->known -= times;
	drop(node);
	pthread_mutex_unlock(&tree.lock);
}

static int may_remove(const struct node *node, bool directory)
{
	if (!node)
		return -ENOENT;
	if (directory != is_directory(node))
		return directory ? -ENOTDIR : -EISDIR;
	return node->names ? -ENOTEMPTY : 0;
}

int names_remove(struct node *parent, const char *name, bool directory)
{
	struct node *node;
	int result;

	pthread_mutex_lock(&tree.lock);
	node = find(parent, name);
	result = may_remove(node, directory);
	if (result == 0) {
		detach(node);
		drop(node);
	}
	pthread_mutex_unlock(&tree.lock);
	return result;
}

static int move(struct node *parent, const char *name, struct node *new_parent,
	const char *new_name, bool keep)
{
	struct node *node = find(parent, name), *other = find(new_parent, new_name);
	int result;

	if (!node)
		return -ENOENT;
	if (other && keep)
		return -EEXIST;
	if (other == node)
		return 0;
	result = other ? may_remove(other, is_directory(node)) : 0;
	if (result == 0 && !new_parent->name)
		result = -ENOENT;
	if (result < 0)
		return result;
	if (other)
		detach(other);
	detach(node);
	result = attach(node, new_parent, new_name);
	if (result < 0 && attach(node, parent, name) < 0)
		drop(node); /* no memory for either name */
	if (other)
		drop(other);
	return result;
}

int names_rename(struct node *parent, const char *name, struct node *new_parent,
	const char *new_name, bool keep)
{
	int result;

	pthread_mutex_lock(&tree.lock);
	result = move(parent, name, new_parent, new_name, keep);
	pthread_mutex_unlock(&tree.lock);
	return result;
}

void names_stat(struct node *node, struct stat *st)
{
	pthread_mutex_lock(&tree.lock);
	fill(node, st);
	pthread_mutex_unlock(&tree.lock);
}

void names_set(struct node *node, const struct stat *wanted, int which, struct stat *st)
{
	pthread_mutex_lock(&tree.lock);
	node->ctime = now();
	if (which & FUSE_SET_ATTR_MODE)
		node->mode = (node->mode & S_IFMT) | (wanted->st_mode & ~(mode_t)S_IFMT);
	if (which & FUSE_SET_ATTR_UID)
		node->uid = wanted->st_uid;
	if (which & FUSE_SET_ATTR_GID)
		node->gid = wanted->st_gid;
	if (which & FUSE_SET_ATTR_SIZE) {
		atomic_store(&node->size, wanted->st_size);
		node->mtime = node->ctime;
	}
	if (which & FUSE_SET_ATTR_ATIME)
		node->atime = which & FUSE_SET_ATTR_ATIME_NOW ? node->ctime : wanted->st_atim;
	if (which & FUSE_SET_ATTR_MTIME)
		node->mtime = which & FUSE_SET_ATTR_MTIME_NOW ? node->ctime : wanted->st_mtim;
	fill(node, st);
	pthread_mutex_unlock(&tree.lock);
}

/* Without the lock: writers of different files must not wait for each other. */
void names_grow(struct node *node, off_t end)
{
	long long size = atomic_load(&node->size);

	while (size < end && !atomic_compare_exchange_weak(&node->size, &size, end))
		;
}

off_t names_size(const struct node *node)
{
	return atomic_load(&node->size);
}

off_t names_list(struct node *directory, off_t place, char *name, struct stat *st)
{
	size_t slot = place < DOTS ? 0 : (size_t)(place - DOTS);
	const struct node *node = NULL;

	pthread_mutex_lock(&tree.lock);
	if (place < DOTS) {
		strcpy(name, place == 0 ? "." : "..");
		node = place == 1 && directory->name ? directory->parent : directory;
		place++;
	} else {
		while (slot < directory->used && is_free(directory->slots[slot]))
			slot++;
		if (slot < directory->used) {
			node = directory->slots[slot].node;
			strcpy(name, node->name); /* attach() has looked at its length */
			place = (off_t)slot + DOTS + 1;
		}
	}
	if (node)
		fill(node, st);
	pthread_mutex_unlock(&tree.lock);
	return node ? place : 0;
}
