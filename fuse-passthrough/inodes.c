/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Inodes, and which of them have a descriptor open. What inode.fd says of one, in a single word:
 *
 *   state    users  CLOSING  descriptor  becomes
 *   closed   0      no       none        in use: a user opens it again, by its handle
 *   idle     0      no       open        in use: a user comes; leaving: close_fd_of() chose it
 *   in use   1...   no       open        idle: the last user goes
 *   leaving  0      yes      open        closed: nobody came; in use: a user, who clears CLOSING
 *
 * One that was unlinked meanwhile, or has no handle, stays in leaving until it is used or chosen
 * again: no handle opens it, so that its descriptor is never closed before it is forgotten. A
 * descriptor that is not on the list (slot is NO_SLOT) is not chosen, as that of the root.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "identity.h"
#include "passthrough.h"

#define STRIPES	      64
#define FIRST_BUCKETS 64
#define NO_SLOT	      UINT32_MAX
/* How far one search for a victim goes, so that it never holds the others up for long. */
#define SEARCH_STEPS 128
#define EMERGENCY    64 /* descriptors closed at once when the process has no more */

/* inode.fd; CLOSING is set when a close is considered, and taken away by each new user. */
#define FD_MASK	 ((uint64_t)INT32_MAX)
#define CLOSING	 (UINT64_C(1) << 31)
#define ONE_USER (UINT64_C(1) << 32)

/* Known inodes, by hash. */
static struct stripe {
	pthread_mutex_t lock;
	struct inode **buckets;
	size_t bucket_count; /* a power of two */
	size_t count;
} stripes[STRIPES];

/* Open descriptors that may be closed: a clock, so that using one costs nothing. */
static struct {
	pthread_mutex_t lock;
	struct inode **inodes;
	uint32_t count, capacity, limit;
	uint32_t hand;
} open_fds = {.lock = PTHREAD_MUTEX_INITIALIZER};

/*
 * Until the first descriptor is closed, names are removed without a look at what
 * they name: the first to close one waits for the removals under way.
 */
static struct {
	pthread_rwlock_t lock;
	bool begun; /* written under open_fds.lock too; never taken back */
} closing = {.lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP};

static struct inode root;
static int root_fd = -1;
static bool have_handles;
static enum numbers numbers;
static atomic_uint_fast64_t last_generation;

static uint64_t hash(dev_t dev, ino_t ino)
{
	uint64_t h = (ino ^ (dev << 32)) * UINT64_C(0x9e3779b97f4a7c15);

	return h ^ (h >> 29);
}

/* With numbers that change, all are in one, whose lock guards the numbers. */
static struct stripe *stripe_of(dev_t dev, ino_t ino)
{
	return &stripes[numbers == NUMBERS_SHARED ? 0 : hash(dev, ino) % STRIPES];
}

/* The one that inode is in, without a look at numbers that another thread may change. */
static struct stripe *stripe_of_inode(const struct inode *inode)
{
	return numbers == NUMBERS_SHARED ? stripes : stripe_of(inode->dev, inode->ino);
}

static struct inode **bucket_of(struct stripe *stripe, dev_t dev, ino_t ino)
{
	return &stripe->buckets[(hash(dev, ino) / STRIPES) & (stripe->bucket_count - 1)];
}

/* ---- descriptors ---- */

static int fd_in(uint64_t state)
{
	return (int)(state & FD_MASK) - 1;
}

/* Whether inode has a descriptor, which then has one more user. */
static bool pin(struct inode *inode)
{
	uint64_t state = atomic_load(&inode->fd);

	do {
		if (fd_in(state) == -1)
			return false;
	} while (!atomic_compare_exchange_weak(&inode->fd, &state, (state & ~CLOSING) + ONE_USER));
	return true;
}

/* Takes a descriptor off the list. Its lock is held. */
static void unlist(struct inode *inode)
{
	struct inode *last = open_fds.inodes[--open_fds.count];

	open_fds.inodes[inode->slot] = last;
	last->slot = inode->slot;
	inode->slot = NO_SLOT;
}

/* Closes one descriptor if that is possible without losing the file. The list's lock is held. */
static bool close_fd_of(struct inode *inode)
{
	uint64_t state = atomic_load(&inode->fd);
	int fd = fd_in(state);
	struct stat st;

	if (state >= ONE_USER || atomic_exchange(&inode->used, false))
		return false;
	/*
	 * An unlinked file lives by its descriptors alone. A removal may begin and
	 * end after the look at the links, so no user may have come since.
	 */
	if (!atomic_compare_exchange_strong(&inode->fd, &state, state | CLOSING))
		return false;
	state |= CLOSING;
	if (fstat(fd, &st) == -1 || st.st_nlink == 0)
		return false;
	if (!inode->handle) {
		inode->handle = handle_of(fd);
		if (!inode->handle)
			return false;
	}
	if (!atomic_compare_exchange_strong(&inode->fd, &state, 0))
		return false;
	close(fd);
	unlist(inode);
	return true;
}

/*
 * Closes up to wanted descriptors, of at most so many inodes, and returns how many. The list's lock
 * is held, and without it nothing sets closing.begun.
 */
static uint32_t close_some(uint32_t wanted, uint32_t steps)
{
	uint32_t done = 0;

	if (!closing.begun) {
		pthread_rwlock_wrlock(&closing.lock);
		closing.begun = true;
		pthread_rwlock_unlock(&closing.lock);
	}
	for (uint32_t step = 0; step < steps && done < wanted; step++) {
		if (open_fds.count == 0)
			break;
		if (open_fds.hand >= open_fds.count)
			open_fds.hand = 0;
		if (close_fd_of(open_fds.inodes[open_fds.hand]))
			done++; /* the last one of the list is in its place now */
		else
			open_fds.hand++;
	}
	return done;
}

/* Puts inode, whose descriptor is new, on the list of those that may be closed. */
static void list_fd(struct inode *inode)
{
	if (!have_handles)
		return;
	pthread_mutex_lock(&open_fds.lock);
	if (open_fds.count >= open_fds.limit)
		close_some(1, SEARCH_STEPS);
	if (open_fds.count == open_fds.capacity) {
		uint32_t capacity = open_fds.capacity ? 2 * open_fds.capacity : 1024;
		struct inode **inodes = reallocarray(open_fds.inodes, capacity, sizeof(*inodes));

		if (!inodes) { /* not listed, so it just stays open */
			pthread_mutex_unlock(&open_fds.lock);
			return;
		}
		open_fds.inodes = inodes;
		open_fds.capacity = capacity;
	}
	inode->slot = open_fds.count;
	open_fds.inodes[open_fds.count++] = inode;
	pthread_mutex_unlock(&open_fds.lock);
}

/* Gives inode the descriptor fd, or closes it when it has one already. It has one more user. */
static void install(struct inode *inode, int fd)
{
	uint64_t state = atomic_load(&inode->fd);

	for (;;) {
		if (fd_in(state) != -1) {
			if (atomic_compare_exchange_weak(
				    &inode->fd, &state, (state & ~CLOSING) + ONE_USER)) {
				close(fd);
				return;
			}
		} else if (atomic_compare_exchange_weak(
				   &inode->fd, &state, state + ONE_USER + (uint64_t)fd + 1)) {
			list_fd(inode);
			return;
		}
	}
}

int inode_get(struct inode *inode)
{
	int fd;

	if (!atomic_load_explicit(&inode->used, memory_order_relaxed))
		atomic_store_explicit(&inode->used, true, memory_order_relaxed);
	if (!pin(inode)) {
		do
			fd = open_by_handle_at(root_fd, inode->handle, O_PATH | O_CLOEXEC);
		while (fd == -1 && fds_freed());
		if (fd == -1)
			return -errno;
		install(inode, fd);
	}
	return fd_in(atomic_load(&inode->fd));
}

static void unpin(struct inode *inode)
{
	atomic_fetch_sub(&inode->fd, ONE_USER);
}

bool fds_freed(void)
{
	int error = errno;
	bool freed = false;

	if (error == EMFILE) {
		pthread_mutex_lock(&open_fds.lock);
		/* In the first round it may find that each has just been used. */
		freed = close_some(EMERGENCY, 2 * open_fds.count) > 0;
		pthread_mutex_unlock(&open_fds.lock);
		freed = freed || close_thread_pipe();
	}
	errno = error;
	return freed;
}

/* ---- the table ---- */

/* The first inode of a chain that has the numbers, or NULL. The stripe's lock is held. */
static struct inode *find_in(struct inode *chain, dev_t dev, ino_t ino)
{
	while (chain && (chain->ino != ino || chain->dev != dev))
		chain = chain->next;
	return chain;
}

/* The same in the table. */
static struct inode *find(struct stripe *stripe, dev_t dev, ino_t ino)
{
	return find_in(*bucket_of(stripe, dev, ino), dev, ino);
}

/* Puts inode into the table. The stripe's lock is held. */
static void enter(struct stripe *stripe, struct inode *inode)
{
	struct inode **bucket = bucket_of(stripe, inode->dev, inode->ino);

	inode->next = *bucket;
	*bucket = inode;
	stripe->count++;
}

/* Takes inode out of the table, if it is there. The stripe's lock is held. */
static void leave(struct stripe *stripe, struct inode *inode)
{
	struct inode **at = bucket_of(stripe, inode->dev, inode->ino);

	if (inode->next == inode)
		return;
	while (*at != inode)
		at = &(*at)->next;
	*at = inode->next;
	inode->next = inode; /* marks it as out of the table */
	stripe->count--;
}

int inodes_init(int fd, size_t max_fds, const struct inodes_source *source)
{
	struct stat st;
	int test;

	numbers = source->numbers;
	test = identity_init(numbers);
	if (test < 0)
		return test;
	for (size_t i = 0; i < STRIPES; i++) {
		pthread_mutex_init(&stripes[i].lock, NULL);
		stripes[i].bucket_count = FIRST_BUCKETS;
		stripes[i].buckets = calloc(FIRST_BUCKETS, sizeof(*stripes[i].buckets));
		if (!stripes[i].buckets)
			return -ENOMEM;
	}
	if (fstat(fd, &st) == -1)
		return -errno;

	root_fd = fd;
	root.dev = st.st_dev;
	root.ino = st.st_ino;
	root.slot = NO_SLOT;
	root.lookups = 1; /* never forgotten */
	atomic_store(&root.fd, ONE_USER + (uint64_t)fd + 1);
	/* In the table as well: a bind mount can show the root again below itself. */
	enter(stripe_of_inode(&root), &root);

	root.handle = source->handles_last ? handle_of(fd) : NULL;
	if (root.handle) {
		test = open_by_handle_at(fd, root.handle, O_PATH | O_CLOEXEC);
		have_handles = test != -1;
		if (test != -1)
			close(test);
	}
	open_fds.limit = max_fds > UINT32_MAX / 2 ? UINT32_MAX / 2 : (uint32_t)max_fds;
	return 0;
}

static void inode_free(struct inode *inode)
{
	int fd = fd_in(atomic_load(&inode->fd));

	if (fd != -1)
		close(fd);
	free(inode->handle);
	if (inode != &root)
		free(inode);
}

void inodes_destroy(void)
{
	for (size_t i = 0; i < STRIPES; i++) {
		for (size_t b = 0; stripes[i].buckets && b < stripes[i].bucket_count; b++) {
			struct inode *inode = stripes[i].buckets[b];

			while (inode) {
				struct inode *next = inode->next;

				inode_free(inode);
				inode = next;
			}
		}
		free(stripes[i].buckets);
		stripes[i].buckets = NULL;
	}
	free(open_fds.inodes);
	open_fds.inodes = NULL;
	identity_end();
}

bool inodes_have_handles(void)
{
	return have_handles;
}

struct inode *inode_of(fuse_ino_t ino)
{
	return ino == FUSE_ROOT_ID ? &root : (struct inode *)(uintptr_t)ino;
}

fuse_ino_t inode_number(const struct inode *inode)
{
	return inode == &root ? FUSE_ROOT_ID : (fuse_ino_t)(uintptr_t)inode;
}

ino_t shown_ino(dev_t dev, ino_t ino)
{
	return ino ^ (ino_t)(dev ^ root.dev) << 32;
}

void inode_renumber(struct inode *inode)
{
	struct stat st;

	if (numbers != NUMBERS_SHARED)
		return;
	pthread_mutex_lock(&stripes->lock);
	if (fstat(fd_in(atomic_load(&inode->fd)), &st) == 0 &&
		(st.st_ino != inode->ino || st.st_dev != inode->dev)) {
		leave(stripes, inode);
		inode->dev = st.st_dev;
		inode->ino = st.st_ino;
		enter(stripes, inode);
	}
	pthread_mutex_unlock(&stripes->lock);
}

void inode_put(struct inode *inode)
{
	inode_renumber(inode);
	unpin(inode);
}

bool inodes_change_numbers(void)
{
	return numbers == NUMBERS_SHARED;
}

/* Doubles the buckets when they get full. Without memory the chains just grow longer. */
static void grow(struct stripe *stripe)
{
	size_t old_count = stripe->bucket_count;
	struct inode **old = stripe->buckets;
	struct inode **new;

	if (stripe->count < old_count)
		return;
	new = calloc(2 * old_count, sizeof(*new));
	if (!new)
		return;
	stripe->buckets = new;
	stripe->bucket_count = 2 * old_count;
	stripe->count = 0;
	for (size_t b = 0; b < old_count; b++) {
		struct inode *inode = old[b];

		while (inode) {
			struct inode *next = inode->next;

			enter(stripe, inode);
			inode = next;
		}
	}
	free(old);
}

/*
 * Whether the known inode, which has the numbers of the file that is open as fd, is that file: 1 or
 * 0, or a negative errno. If it is, it has a descriptor with one more user, and fd is closed or its
 * own.
 */
static int is_same_file(struct inode *inode, int fd)
{
	int same;

	if (pin(inode)) {
		same = are_same_file(numbers, fd, fd_in(atomic_load(&inode->fd)));
		if (same > 0)
			close(fd);
		else
			unpin(inode);
		return same;
	}
	same = has_handle(fd, inode->handle);
	if (same)
		install(inode, fd);
	return same;
}

int inode_learn(int fd, struct stat *st, struct inode **result)
{
	struct stripe *stripe = stripe_of(st->st_dev, st->st_ino);
	struct inode *inode;
	int same = 0;

	pthread_mutex_lock(&stripe->lock);
	/* The file may have got another number since, by which the inode is found now. */
	if (numbers == NUMBERS_SHARED && fstat(fd, st) == -1)
		same = -errno;
	inode = same < 0 ? NULL : find(stripe, st->st_dev, st->st_ino);
	while (inode && (same = is_same_file(inode, fd)) == 0) {
		struct inode *other = inode;

		inode = find_in(inode->next, st->st_dev, st->st_ino);
		/* The source recycled the number. The kernel may still hold the dead one. */
		if (numbers == NUMBERS_OF_ONE || numbers == NUMBERS_RECYCLED)
			leave(stripe, other);
	}
	if (same < 0) {
		pthread_mutex_unlock(&stripe->lock);
		close(fd);
		return same;
	}
	if (inode) {
		inode->lookups++;
		pthread_mutex_unlock(&stripe->lock);
		unpin(inode);
		*result = inode;
		return 0;
	}
	inode = calloc(1, sizeof(*inode));
	if (!inode) {
		pthread_mutex_unlock(&stripe->lock);
		close(fd);
		return -ENOMEM;
	}
	inode->dev = st->st_dev;
	inode->ino = st->st_ino;
	inode->generation = atomic_fetch_add(&last_generation, 1) + 1;
	inode->lookups = 1;
	inode->slot = NO_SLOT;
	atomic_store(&inode->fd, (uint64_t)fd + 1);
	grow(stripe);
	enter(stripe, inode);
	pthread_mutex_unlock(&stripe->lock);
	list_fd(inode);
	*result = inode;
	return 0;
}

void inode_forget(struct inode *inode, uint64_t count)
{
	struct stripe *stripe = stripe_of_inode(inode);

	if (inode == &root)
		return;
	pthread_mutex_lock(&stripe->lock);
	assert(inode->lookups >= count);
	inode->lookups -= count;
	if (inode->lookups) {
		pthread_mutex_unlock(&stripe->lock);
		return;
	}
	leave(stripe, inode);
	pthread_mutex_unlock(&stripe->lock);

	pthread_mutex_lock(&open_fds.lock);
	if (inode->slot != NO_SLOT)
		unlist(inode);
	pthread_mutex_unlock(&open_fds.lock);
	inode_free(inode);
}

bool inode_identify(int dir_fd, const char *name, dev_t *dev, ino_t *ino)
{
	const int flags = AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT;
	struct statx stx;

	if (statx(dir_fd, name, flags, STATX_INO, &stx) == -1)
		return false;
	*dev = makedev(stx.stx_dev_major, stx.stx_dev_minor);
	*ino = stx.stx_ino;
	return true;
}

/*
 * Into *victim the known inode of name, with its descriptor, one more lookup and one more user; or
 * NULL. 0 or a negative errno.
 */
static int hold_victim(int dir_fd, const char *name, struct inode **victim)
{
	struct stripe *stripe;
	struct inode *inode;
	dev_t dev;
	ino_t ino;
	int fd;

	if (!inode_identify(dir_fd, name, &dev, &ino))
		return 0;
	stripe = stripe_of(dev, ino);
	pthread_mutex_lock(&stripe->lock);
	inode = find(stripe, dev, ino);
	if (inode)
		inode->lookups++;
	pthread_mutex_unlock(&stripe->lock);
	fd = inode ? inode_get(inode) : 0;
	if (fd < 0) {
		inode_forget(inode, 1);
		return fd == -ESTALE ? 0 : fd; /* a dead one whose number was recycled */
	}
	*victim = inode;
	return 0;
}

int removal_begin(struct removal *removal, int dir_fd, const char *name)
{
	*removal = (struct removal){.all_open = true};
	if (!have_handles)
		return 0;
	pthread_rwlock_rdlock(&closing.lock);
	if (!closing.begun)
		return 0;
	pthread_rwlock_unlock(&closing.lock);
	removal->all_open = false;
	return hold_victim(dir_fd, name, &removal->victim);
}

void removal_end(struct removal *removal)
{
	if (removal->all_open && have_handles)
		pthread_rwlock_unlock(&closing.lock);
	if (!removal->victim)
		return;
	inode_put(removal->victim);
	inode_forget(removal->victim, 1);
}

/* Fills held, unless it is NULL, with the stripe's inodes that have writers; each has one more
 * lookup. */
static size_t hold_written(struct stripe *stripe, struct inode **held)
{
	size_t count = 0;

	for (size_t b = 0; held && b < stripe->bucket_count; b++) {
		for (struct inode *inode = stripe->buckets[b]; inode; inode = inode->next) {
			if (atomic_load(&inode->writers) == 0)
				continue;
			inode->lookups++;
			held[count++] = inode;
		}
	}
	return count;
}

int inodes_each_written(void (*visit)(struct inode *inode, void *data), void *data)
{
	struct inode **held;
	size_t count;
	int result = 0;

	for (size_t i = 0; i < STRIPES; i++) {
		pthread_mutex_lock(&stripes[i].lock);
		held = calloc(stripes[i].count + 1, sizeof(struct inode *));
		count = hold_written(&stripes[i], held);
		pthread_mutex_unlock(&stripes[i].lock);
		result = held ? result : -ENOMEM;
		for (size_t k = 0; k < count; k++) {
			visit(held[k], data);
			inode_forget(held[k], 1);
		}
		free(held);
	}
	return result;
}

void inode_lock(struct inode *inode)
{
	pthread_mutex_lock(&stripe_of_inode(inode)->lock);
}

void inode_unlock(struct inode *inode)
{
	pthread_mutex_unlock(&stripe_of_inode(inode)->lock);
}
