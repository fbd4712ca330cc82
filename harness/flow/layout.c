/* SPDX-License-Identifier: BSD-3-Clause */
/* A fileset's tree on disk: made, looked at, removed. */
#include "fileset.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CHUNK	    (UINT64_C(1) << 20) /* bytes of one write */
#define BATCH	    32			/* files that a worker takes at a time */
#define MAX_WORKERS 32
#define SAMPLE	    64 /* files that fileset_verify() looks at */

/* What the workers that make files share. */
struct creation {
	struct fileset *fs;
	uint64_t seed;
	const char *data;      /* CHUNK bytes that every write takes */
	_Atomic uint64_t next; /* place in the shuffled order */
	_Atomic uint64_t files, bytes;
	_Atomic bool stop;

	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t done;
	unsigned running;
	bool failed;
	struct flow_error *error;
};

static double seconds_since(const struct timespec *start)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) / 1e9;
}

/* ---- removal ---- */

static bool our_name(const char *name)
{
	size_t n = strspn(name, "0123456789");

	return n >= 8 && name[n] == '\0';
}

static bool walk(int fd, const char *path, bool removes, struct flow_error *error);

/* What walk() does with a name of ours; path: of its directory. */
static bool walk_name(
	DIR *dir, const char *path, const struct dirent *e, bool removes, struct flow_error *error)
{
	if (removes && unlinkat(dirfd(dir), e->d_name, 0) == 0)
		return true;
	if (removes && errno != EISDIR)
		return flow_error_set(error, "%s/%s: unlink: %m", path, e->d_name);
	if (!removes && e->d_type != DT_DIR && e->d_type != DT_UNKNOWN)
		return true;

	int child = openat(dirfd(dir), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	char *below = NULL;

	if (child < 0)
		return (!removes && errno == ENOTDIR) ||
		       flow_error_set(error, "%s/%s: %m", path, e->d_name);
	if (asprintf(&below, "%s/%s", path, e->d_name) < 0) {
		close(child);
		return flow_error_set(error, "%s/%s: out of memory", path, e->d_name);
	}

	bool ok = walk(child, below, removes, error);

	free(below);
	if (ok && removes && unlinkat(dirfd(dir), e->d_name, AT_REMOVEDIR) < 0)
		ok = flow_error_set(error, "%s/%s: rmdir: %m", path, e->d_name);
	return ok;
}

/* Looks whether all that the directory holds is ours, or removes it; takes over fd. */
static bool walk(int fd, const char *path, bool removes, struct flow_error *error)
{
	DIR *dir = fdopendir(fd);

	if (dir == NULL) {
		flow_error_set(error, "%s: %m", path);
		close(fd);
		return false;
	}

	bool ok = true;

	while (ok) {
		errno = 0;

		struct dirent *e = readdir(dir);

		if (e == NULL) {
			if (errno != 0)
				ok = flow_error_set(error, "%s: %m", path);
			break;
		}
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		ok = our_name(e->d_name) ? walk_name(dir, path, e, removes, error)
					 : flow_error_set(error,
						   "%s holds '%s', which is not a file of a "
						   "fileset; remove it or choose another path",
						   path, e->d_name);
	}
	closedir(dir);
	return ok;
}

bool fileset_remove(const struct fileset *fs, struct flow_error *error)
{
	/* All of it is looked at before anything goes. */
	for (int removes = 0; removes < 2; removes++) {
		int fd = open(fs->root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

		if (fd < 0)
			return errno == ENOENT ||
			       flow_error_set(
				       error, "%s: %m; remove it or choose another path", fs->root);
		if (!walk(fd, fs->root, removes, error))
			return false;
	}
	if (rmdir(fs->root) < 0)
		return flow_error_set(error, "%s: rmdir: %m", fs->root);
	return true;
}

/* ---- creation ---- */

static bool create_directories(struct fileset *fs, struct flow_error *error)
{
	bool reuse = fs->spec.reuse;

	if (mkdir(fs->root, 0755) < 0 && !(errno == EEXIST && reuse))
		return flow_error_set(error,
			"fileset %s: mkdir %s: %m; path= must be an existing directory",
			fs->spec.name, fs->root);
	for (uint32_t i = 0; i < fs->directories; i++) {
		const char *path = fs->paths + fs->dirs[i].path;

		if (mkdir(path, 0755) < 0 && !(errno == EEXIST && reuse))
			return flow_error_set(
				error, "fileset %s: mkdir %s: %m", fs->spec.name, path);
	}
	return true;
}

/* Writes size bytes from the start of the file; 0 or an errno. */
static int fill(struct creation *c, int fd, uint64_t size)
{
	for (uint64_t at = 0; at < size;) {
		uint64_t n = size - at < CHUNK ? size - at : CHUNK;
		ssize_t done = write(fd, c->data, n);

		if (done < 0)
			return errno;
		at += (uint64_t)done;
		atomic_fetch_add_explicit(&c->bytes, (uint64_t)done, memory_order_relaxed);
		if (atomic_load_explicit(&c->stop, memory_order_relaxed))
			return ECANCELED;
	}
	return 0;
}

/* 0 or an errno. */
static int create_file(struct creation *c, uint32_t file, char *path)
{
	struct fileset *fs = c->fs;
	uint64_t size = fileset_size(fs, file), have = 0;
	bool reuse = fs->spec.reuse;
	struct stat st;

	fileset_file_path(fs, file, path);
	if (!(fileset_state(fs, file) & FILE_EXISTS))
		return reuse && unlink(path) < 0 && errno != ENOENT ? errno : 0;

	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);

	if (fd < 0)
		return errno;

	int result = 0;

	if (reuse && fstat(fd, &st) == 0)
		have = (uint64_t)st.st_size;
	if (have > size)
		result = ftruncate(fd, (off_t)size) < 0 ? errno : 0;
	else if (have < size)
		result = fill(c, fd, size);
	if (close(fd) < 0 && result == 0)
		result = errno;
	atomic_fetch_add_explicit(&c->files, 1, memory_order_relaxed);
	return result;
}

static void *create_files(void *arg)
{
	struct creation *c = arg;
	struct fileset *fs = c->fs;
	char path[FILESET_PATH];
	int result = 0;

	while (result == 0 && !atomic_load_explicit(&c->stop, memory_order_relaxed)) {
		/* Few large files are taken one by one, so that all workers have some. */
		uint64_t batch = fs->entries < BATCH * MAX_WORKERS ? 1 : BATCH;
		uint64_t at = atomic_fetch_add_explicit(&c->next, batch, memory_order_relaxed);

		if (at >= fs->entries)
			break;
		for (uint64_t end = at + batch; result == 0 && at < end && at < fs->entries; at++)
			result = create_file(c, (uint32_t)permute(at, fs->entries, c->seed), path);
	}

	pthread_mutex_lock(&c->lock);
	if (result != 0 && !c->failed) {
		c->failed = true;
		if (result == ECANCELED)
			flow_error_set(c->error, "fileset %s: interrupted", fs->spec.name);
		else
			flow_error_set(c->error,
				"fileset %s: create %s: %s; its files take %.1f MB in all",
				fs->spec.name, path, strerror(result),
				(double)fs->existing_bytes / 1e6);
		atomic_store(&c->stop, true);
	}
	c->running--;
	pthread_cond_signal(&c->done);
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* Waits for the workers, showing progress. */
static void watch(struct creation *c, fileset_progress *progress, const struct timespec *start)
{
	struct timespec wake = *start;

	pthread_mutex_lock(&c->lock);
	while (c->running > 0) {
		wake.tv_sec++;
		while (c->running > 0 && pthread_cond_timedwait(&c->done, &c->lock, &wake) == 0)
			;
		if (c->running > 0 && !progress(c->fs, atomic_load(&c->files),
					      atomic_load(&c->bytes), seconds_since(start)))
			atomic_store(&c->stop, true);
	}
	pthread_mutex_unlock(&c->lock);
}

static bool create_all(struct fileset *fs, uint64_t seed, const char *data,
	fileset_progress *progress, struct flow_error *error)
{
	struct creation c = {.fs = fs, .seed = seed, .data = data, .error = error};
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned wanted = cpus < 2 ? 4 : cpus * 2 > MAX_WORKERS ? MAX_WORKERS : (unsigned)cpus * 2;
	pthread_t workers[MAX_WORKERS];
	unsigned started = 0;
	pthread_condattr_t attr;
	struct timespec start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	pthread_mutex_init(&c.lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c.done, &attr);
	pthread_condattr_destroy(&attr);

	c.running = wanted;
	while (started < wanted && pthread_create(&workers[started], NULL, create_files, &c) == 0)
		started++;
	pthread_mutex_lock(&c.lock);
	c.running -= wanted - started;
	pthread_mutex_unlock(&c.lock);
	if (started == 0) {
		c.failed = true;
		flow_error_set(error, "fileset %s: cannot start a thread: %m", fs->spec.name);
	}
	watch(&c, progress, &start);
	for (unsigned i = 0; i < started; i++)
		pthread_join(workers[i], NULL);
	if (atomic_load(&c.stop) && !c.failed) {
		c.failed = true;
		flow_error_set(error, "fileset %s: interrupted", fs->spec.name);
	}
	pthread_cond_destroy(&c.done);
	pthread_mutex_destroy(&c.lock);
	return !c.failed;
}

/* Writes the tree back, so that this does not fall into the measurement. */
static bool sync_tree(const struct fileset *fs, struct flow_error *error)
{
	int fd = open(fs->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool ok = fd >= 0 && syncfs(fd) == 0;

	if (!ok)
		flow_error_set(error, "fileset %s: sync %s: %m", fs->spec.name, fs->root);
	if (fd >= 0)
		close(fd);
	return ok;
}

bool fileset_create(struct fileset *fs, uint64_t seed, bool zeros, fileset_progress *progress,
	struct flow_error *error)
{
	char *data = calloc(1, CHUNK);
	struct timespec start;
	bool ours = false, ok;

	if (data == NULL)
		return flow_error_set(error, "fileset %s: out of memory", fs->spec.name);
	if (!zeros) {
		struct rng rng;

		rng_seed(&rng, seed, UINT64_MAX);
		rng_fill(&rng, data, CHUNK);
	}
	ok = fs->spec.reuse || fileset_remove(fs, error);
	clock_gettime(CLOCK_MONOTONIC, &start);
	if (ok) {
		ours = !fs->spec.reuse && access(fs->root, F_OK) < 0;
		ok = create_directories(fs, error) && create_all(fs, seed, data, progress, error);
		fs->create_s = seconds_since(&start);
	}
	if (ok) {
		clock_gettime(CLOCK_MONOTONIC, &start);
		ok = sync_tree(fs, error);
		fs->sync_s = seconds_since(&start);
	}
	if (!ok && ours) {
		struct flow_error ignored;

		fileset_remove(fs, &ignored);
	}
	free(data);
	return ok;
}

/* What is wrong with a file, or NULL; its path in path. */
static const char *check_file(const struct fileset *fs, uint32_t file, char *path)
{
	bool wanted = fileset_state(fs, file) & FILE_EXISTS;
	uint32_t length = fileset_file_path(fs, file, path);
	struct stat st;

	if (stat(path, &st) < 0) {
		if (errno != ENOENT)
			return strerror(errno);
		/* The directory of a file that comes later must be there. */
		if (!wanted)
			path[length] = '\0';
		return wanted || access(path, W_OK | X_OK) < 0 ? "missing" : NULL;
	}
	if (!wanted)
		return "there already";
	return (uint64_t)st.st_size == fileset_size(fs, file) ? NULL : "of another size";
}

bool fileset_verify(struct fileset *fs, uint64_t seed, struct flow_error *error)
{
	char path[FILESET_PATH];
	uint64_t sample = fs->entries < SAMPLE ? fs->entries : SAMPLE;

	for (uint64_t i = 0; i < sample; i++) {
		uint32_t file = (uint32_t)permute(i, fs->entries, seed);
		const char *wrong = check_file(fs, file, path);

		if (wrong != NULL)
			return flow_error_set(error,
				"fileset %s: %s is not as expected (%s); create the files with the "
				"same "
				"workload, --seed and --set",
				fs->spec.name, path, wrong);
	}
	return true;
}
