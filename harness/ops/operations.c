/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "ops.h"

#define CHUNK	   (1 << 20) /* bytes of a write that prepares */
#define SYNC_EVERY 4	     /* appends of ADPS and ADSS */
#define TREE_DEPTH 5
#define SMALL_FILE 1024 /* bytes */

static int sys(long result)
{
	return result == -1 ? -errno : 0;
}

/* path: a printf format and arguments; leaves it in w->path. */
#define PATH(w, ...) ((void)snprintf((w)->path, sizeof((w)->path), __VA_ARGS__))

/* ---- preparation ---- */

static int prepare_nothing(struct worker *w)
{
	(void)w;
	return 0;
}

static int make_below(struct worker *w, const char *name)
{
	PATH(w, "%s/%s", w->home, name);
	return make_directory(w->path);
}

/* An empty directory for names. */
static int prepare_directory(struct worker *w)
{
	return make_below(w, "files");
}

static int make_file(const char *path, const char *data, size_t size)
{
	int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644), result = 0;

	if (fd == -1)
		return -errno;
	if (size > 0 && write(fd, data, size) != (ssize_t)size)
		result = errno ? -errno : -ENOSPC;
	return close(fd) == -1 && result == 0 ? -errno : result;
}

static void name_own(struct worker *w, uint64_t number)
{
	PATH(w, "%s/files/%u-%" PRIu64, w->home, w->index, number);
}

static int make_names(struct worker *w, size_t size)
{
	int result = prepare_directory(w);

	for (uint64_t i = 0; i < w->options->files && result == 0; i++) {
		name_own(w, i);
		result = make_file(w->path, w->buffer, size);
	}
	return result;
}

static int prepare_names(struct worker *w)
{
	return make_names(w, 0);
}

static int prepare_small_files(struct worker *w)
{
	return make_names(w, SMALL_FILE);
}

static int prepare_moves(struct worker *w)
{
	int result = make_below(w, "moved");

	return result == 0 ? prepare_small_files(w) : result;
}

/* Directories 1/2/.../depth below home; their path is in w->path. */
static int make_depth(struct worker *w, unsigned depth)
{
	size_t length = (size_t)snprintf(w->path, sizeof(w->path), "%s", w->home);
	int result = 0;

	for (unsigned i = 1; i <= depth && result == 0; i++) {
		length += (size_t)snprintf(w->path + length, sizeof(w->path) - length, "/%u", i);
		result = make_directory(w->path);
	}
	return result;
}

/* The file of begin_one_of_5() or begin_one_of_7(): below depth directories. */
static int make_one(struct worker *w, unsigned depth)
{
	int result = make_depth(w, depth);
	size_t length = strlen(w->path);

	if (result < 0)
		return result;
	snprintf(w->path + length, sizeof(w->path) - length, "/file-%u", w->index);
	return make_file(w->path, NULL, 0);
}

static int prepare_one_of_5(struct worker *w)
{
	return make_one(w, 4);
}

static int prepare_one_of_7(struct worker *w)
{
	return make_one(w, 6);
}

/* Names in a directory 6 deep; those that share one make it once. */
static int prepare_deep_names(struct worker *w)
{
	int result = make_depth(w, 6);
	size_t length = strlen(w->path);

	for (uint64_t i = 0; i < w->options->files && result == 0; i++) {
		snprintf(w->path + length, sizeof(w->path) - length, "/%" PRIu64, i);
		result = make_file(w->path, NULL, 0);
	}
	return result;
}

static int make_tree(struct worker *w, size_t length, unsigned depth)
{
	int result = 0;

	for (unsigned i = 0; i < w->options->fan_out && result == 0; i++) {
		size_t more =
			(size_t)snprintf(w->path + length, sizeof(w->path) - length, "/%u", i);

		result = depth == 1 ? make_file(w->path, NULL, 0) : make_directory(w->path);
		if (result == 0 && depth > 1)
			result = make_tree(w, length + more, depth - 1);
	}
	return result;
}

static int prepare_tree(struct worker *w)
{
	if (w->index > 0)
		return 0; /* it is that of all */
	return make_tree(w, (size_t)snprintf(w->path, sizeof(w->path), "%s", w->home), TREE_DEPTH);
}

static int prepare_data(struct worker *w)
{
	uint64_t size = w->options->size;
	int fd, result = 0;
	char *chunk;

	PATH(w, "%s/data", w->home);
	if (w->options->operation->shared && w->index > 0)
		return 0;
	chunk = malloc(CHUNK);
	fd = open(w->path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
	if (!chunk || fd == -1)
		result = chunk ? -errno : -ENOMEM;
	else
		rng_fill(&w->rng, chunk, CHUNK);
	for (uint64_t at = 0; at < size && result == 0; at += CHUNK) {
		size_t length = size - at < CHUNK ? (size_t)(size - at) : CHUNK;
		ssize_t written = write(fd, chunk, length);

		if (written != (ssize_t)length)
			result = written == -1 ? -errno : -ENOSPC;
	}
	if (fd != -1) {
		if (result == 0 && fsync(fd) == -1)
			result = -errno;
		close(fd);
	}
	free(chunk);
	return result;
}

/* ---- beginning ---- */

static int begin_nothing(struct worker *w)
{
	(void)w;
	return 0;
}

/* Looks at all names that will be worked on. */
static int begin_names(struct worker *w)
{
	struct stat st;

	for (uint64_t i = 0; i < w->options->files; i++) {
		name_own(w, i);
		if (stat(w->path, &st) == -1)
			return -errno;
	}
	return 0;
}

static int begin_listing(struct worker *w)
{
	PATH(w, "%s/files", w->home);
	w->directory = opendir(w->path);
	return w->directory ? 0 : -errno;
}

static int name_depth(struct worker *w, unsigned depth, bool file)
{
	size_t length = (size_t)snprintf(w->path, sizeof(w->path), "%s", w->home);

	for (unsigned i = 1; i <= depth; i++)
		length += (size_t)snprintf(w->path + length, sizeof(w->path) - length, "/%u", i);
	if (file)
		snprintf(w->path + length, sizeof(w->path) - length, "/file-%u", w->index);
	return 0;
}

static int begin_one_of_5(struct worker *w)
{
	return name_depth(w, 4, true);
}

static int begin_one_of_7(struct worker *w)
{
	return name_depth(w, 6, true);
}

static int begin_deep_names(struct worker *w)
{
	name_depth(w, 6, false);
	w->base = strlen(w->path);
	return 0;
}

/* A path in the tree, each name drawn again. */
static void draw_from_tree(struct worker *w)
{
	size_t length = (size_t)snprintf(w->path, sizeof(w->path), "%s", w->home);

	for (unsigned i = 0; i < TREE_DEPTH; i++)
		length += (size_t)snprintf(w->path + length, sizeof(w->path) - length, "/%u",
			(unsigned)rng_below(&w->rng, w->options->fan_out));
}

/* All have the same file. */
static int begin_hot(struct worker *w)
{
	size_t length = (size_t)snprintf(w->path, sizeof(w->path), "%s", w->home);

	for (unsigned i = 0; i < TREE_DEPTH; i++)
		length += (size_t)snprintf(w->path + length, sizeof(w->path) - length, "/0");
	return 0;
}

static int open_data(struct worker *w, int flags)
{
	PATH(w, "%s/data", w->home);
	w->fd = open(w->path, flags | O_CLOEXEC, 0644);
	return w->fd == -1 ? -errno : 0;
}

static int begin_reading(struct worker *w)
{
	return open_data(w, O_RDONLY);
}

/* With what will be read in the cache. */
static int begin_cached_reading(struct worker *w)
{
	int result = open_data(w, O_RDONLY);

	for (uint64_t at = 0; result == 0 && at < w->options->size; at += UNIT)
		result = sys(pread(w->fd, w->buffer, UNIT, (off_t)at));
	return result;
}

static int begin_writing(struct worker *w)
{
	return open_data(w, O_WRONLY);
}

static int begin_appending(struct worker *w)
{
	int result;

	if (w->options->operation->shared)
		return open_data(w, O_WRONLY | O_CREAT | O_APPEND);
	result = open_data(w, O_WRONLY | O_CREAT | O_TRUNC);
	return result;
}

/* ---- steps: names ---- */

static int create(struct worker *w, size_t size)
{
	int fd, result = 0;

	if (w->done == w->options->files)
		return OUT_OF_WORK;
	name_own(w, w->done);
	fd = open(w->path, O_CREAT | O_RDWR, 0644);
	if (fd == -1)
		return -errno;
	if (size > 0) {
		ssize_t written = write(fd, w->buffer, size);

		result = written == (ssize_t)size ? 0 : written == -1 ? -errno : -ENOSPC;
		w->bytes = size;
	}
	return close(fd) == -1 && result == 0 ? -errno : result;
}

static int step_create(struct worker *w)
{
	return create(w, 0);
}

static int step_create_with_data(struct worker *w)
{
	return create(w, UNIT);
}

static int step_unlink(struct worker *w)
{
	if (w->done == w->options->files)
		return OUT_OF_WORK;
	name_own(w, w->done);
	return sys(unlink(w->path));
}

static int step_rename(struct worker *w)
{
	if (w->done == w->options->files)
		return OUT_OF_WORK;
	name_own(w, w->done);
	snprintf(w->other, sizeof(w->other), "%s/moved/%u-%" PRIu64, w->home, w->index, w->done);
	return sys(rename(w->path, w->other));
}

static int step_open_close(struct worker *w)
{
	int fd = open(w->path, O_RDONLY);

	return fd == -1 ? -errno : sys(close(fd));
}

static int step_stat(struct worker *w)
{
	struct stat st;

	return sys(stat(w->path, &st));
}

static int step_open_close_any(struct worker *w)
{
	draw_from_tree(w);
	return step_open_close(w);
}

static int step_stat_any(struct worker *w)
{
	draw_from_tree(w);
	return step_stat(w);
}

/* The next name, from the first after the last. */
static int step_list(struct worker *w)
{
	errno = 0;
	if (readdir(w->directory))
		return 0;
	if (errno)
		return -errno;
	rewinddir(w->directory);
	return readdir(w->directory) ? 0 : errno ? -errno : OUT_OF_WORK;
}

/* The same as FxMark has it: after the last name, the end again and again. */
static int step_list_on(struct worker *w)
{
	errno = 0;
	return readdir(w->directory) || !errno ? 0 : -errno;
}

static int step_stat_all(struct worker *w)
{
	struct stat st;

	for (uint64_t i = 0; i < w->options->files; i++) {
		snprintf(w->path + w->base, sizeof(w->path) - w->base, "/%" PRIu64, i);
		if (stat(w->path, &st) == -1)
			return -errno;
	}
	return 0;
}

static int step_list_all(struct worker *w)
{
	DIR *directory = opendir(w->path);
	int result = 0;

	if (!directory)
		return -errno;
	errno = 0;
	while (readdir(directory))
		;
	result = errno ? -errno : 0;
	return closedir(directory) == -1 && result == 0 ? -errno : result;
}

/* ---- steps: data ---- */

static int moved(struct worker *w, ssize_t bytes)
{
	if (bytes == -1)
		return -errno;
	if (bytes == 0)
		return OUT_OF_WORK;
	w->bytes = (uint64_t)bytes;
	return 0;
}

static uint64_t units(const struct worker *w)
{
	return w->options->size / UNIT;
}

static int step_read_random(struct worker *w)
{
	uint64_t at = rng_below(&w->rng, units(w)) * UNIT;

	return moved(w, pread(w->fd, w->buffer, UNIT, (off_t)at));
}

static int step_read_around(struct worker *w)
{
	uint64_t at = w->done % units(w) * UNIT;

	return moved(w, pread(w->fd, w->buffer, UNIT, (off_t)at));
}

static int read_nth(struct worker *w, uint64_t n, uint64_t seed)
{
	if (n >= units(w))
		return OUT_OF_WORK;
	return moved(w, pread(w->fd, w->buffer, UNIT, (off_t)(permute(n, units(w), seed) * UNIT)));
}

/* Each unit of its file once, in an order of its own. */
static int step_read_each(struct worker *w)
{
	return read_nth(w, w->done, w->options->common.seed + w->index);
}

/* Each unit of the file of all once: what one has read is in the cache of all. */
static int step_read_share(struct worker *w)
{
	return read_nth(w, w->done * w->options->workers + w->index, w->options->common.seed);
}

static int step_read_on(struct worker *w)
{
	return moved(w, read(w->fd, w->buffer, UNIT));
}

static int step_write_around(struct worker *w)
{
	uint64_t at = w->done % units(w) * UNIT;

	return moved(w, pwrite(w->fd, w->buffer, UNIT, (off_t)at));
}

static int step_write_anywhere(struct worker *w)
{
	uint64_t at = rng_below(&w->rng, w->options->size - UNIT + 1);

	return moved(w, pwrite(w->fd, w->buffer, UNIT, (off_t)at));
}

static int step_write_random(struct worker *w)
{
	uint64_t at = rng_below(&w->rng, units(w)) * UNIT;

	return moved(w, pwrite(w->fd, w->buffer, UNIT, (off_t)at));
}

static int step_append(struct worker *w)
{
	if (w->done == units(w))
		return OUT_OF_WORK;
	return moved(w, write(w->fd, w->buffer, UNIT));
}

static int step_append_synced(struct worker *w)
{
	int result = step_append(w);

	if (result == 0 && (w->done + 1) % SYNC_EVERY == 0)
		result = sys(fdatasync(w->fd));
	return result;
}

/* ---- the table ---- */

#define KiB(n) ((uint64_t)(n) << 10)
#define MiB(n) ((uint64_t)(n) << 20)

/* For a private file or directory, and the same for that of all workers. */
#define BOTH(private_name, shared_name, text, trace, files, size, prepare, begin, step)            \
	{private_name, text ", private", false, trace, files, size, prepare, begin, step},         \
	{                                                                                          \
		shared_name, text ", shared", true, trace, files, size, prepare, begin, step       \
	}

const struct operation operations[] = {
	/* FxMark, as RFUSE's paper describes it; -code: as its program does it, where that differs.
	 */
	{"MWCL", "create an empty file, private directory", false, TRACE_MADE, 10000000, 0,
		prepare_directory, begin_nothing, step_create},
	{"MWCM", "create an empty file, shared directory", true, TRACE_MADE, 10000000, 0,
		prepare_directory, begin_nothing, step_create},
	{"MWCM-code", "create a file of 4 KiB, shared directory", true, TRACE_MADE, 10000000, 0,
		prepare_directory, begin_nothing, step_create_with_data},
	{"MRDL", "readdir of a private directory, again from its start at the end", false,
		TRACE_NONE, 10000, 0, prepare_names, begin_listing, step_list},
	{"MRDL-code", "readdir of a private directory, which stays at its end", false, TRACE_NONE,
		10000, 0, prepare_names, begin_listing, step_list_on},
	{"MRDM", "readdir of a shared directory, again from its start at the end", true, TRACE_NONE,
		10000, 0, prepare_names, begin_listing, step_list},
	{"MRDM-code", "readdir of a shared directory, which stays at its end", true, TRACE_NONE,
		10000, 0, prepare_names, begin_listing, step_list_on},
	{"MWUL", "unlink an empty file, private directory", false, TRACE_REMOVED, 100000, 0,
		prepare_names, begin_nothing, step_unlink},
	{"MWUM", "unlink an empty file, shared directory", true, TRACE_REMOVED, 100000, 0,
		prepare_names, begin_nothing, step_unlink},
	{"MRPL", "open and close a private file", false, TRACE_NONE, 0, 0, prepare_one_of_5,
		begin_one_of_5, step_open_close},
	{"MRPL-code", "stat of a private file", false, TRACE_NONE, 0, 0, prepare_one_of_5,
		begin_one_of_5, step_stat},
	{"MRPM", "open and close any file of a tree", true, TRACE_NONE, 0, 0, prepare_tree,
		begin_nothing, step_open_close_any},
	{"MRPM-code", "stat of any file of a tree", true, TRACE_NONE, 0, 0, prepare_tree,
		begin_nothing, step_stat_any},
	{"MRPH", "open and close the same file of a tree", true, TRACE_NONE, 0, 0, prepare_tree,
		begin_hot, step_open_close},
	{"MRPH-code", "stat of the same file of a tree", true, TRACE_NONE, 0, 0, prepare_tree,
		begin_hot, step_stat},
	/* uFS. */
	BOTH("RMPR", "RMSR", "pread at random, cached", TRACE_NONE, 0, KiB(64), prepare_data,
		begin_cached_reading, step_read_random),
	BOTH("RMPS", "RMSS", "pread in order, again from the start at the end, cached", TRACE_NONE,
		0, KiB(64), prepare_data, begin_cached_reading, step_read_around),
	{"RDPR", "pread each unit once in random order, private", false, TRACE_NONE, 0, MiB(2048),
		prepare_data, begin_reading, step_read_each},
	{"RDSR", "pread each unit once in random order, shared: workers have a part each", true,
		TRACE_NONE, 0, MiB(2048), prepare_data, begin_reading, step_read_share},
	BOTH("RDPS", "RDSS", "read in order", TRACE_NONE, 0, MiB(2048), prepare_data, begin_reading,
		step_read_on),
	BOTH("WMPS", "WMSS",
		"pwrite in order, again from the start at the end (uFS: kept in memory)",
		TRACE_NONE, 0, MiB(1024), prepare_data, begin_writing, step_write_around),
	BOTH("WDPS", "WDSS", "pwrite in order, again from the start at the end (uFS: written back)",
		TRACE_NONE, 0, MiB(1024), prepare_data, begin_writing, step_write_around),
	BOTH("WMPR", "WMSR", "pwrite at random, unaligned", TRACE_NONE, 0, MiB(1), prepare_data,
		begin_writing, step_write_anywhere),
	BOTH("WDPR", "WDSR", "pwrite at random", TRACE_NONE, 0, MiB(2048), prepare_data,
		begin_writing, step_write_random),
	BOTH("AMPS", "AMSS", "append", TRACE_GROWN, 0, MiB(1024), prepare_nothing, begin_appending,
		step_append),
	BOTH("ADPS", "ADSS", "append, fdatasync after each 4th", TRACE_GROWN, 0, MiB(1024),
		prepare_nothing, begin_appending, step_append_synced),
	BOTH("S1MP", "S1MS", "stat of one file, in a path of 7 names", TRACE_NONE, 0, 0,
		prepare_one_of_7, begin_one_of_7, step_stat),
	BOTH("SaMP", "SaMS", "stat of all files of a directory, in a path of 6 names", TRACE_NONE,
		1000, 0, prepare_deep_names, begin_deep_names, step_stat_all),
	BOTH("LsMP", "LsMS", "opendir, readdir of all names, closedir", TRACE_NONE, 1000, 0,
		prepare_deep_names, begin_deep_names, step_list_all),
	BOTH("CMP", "CMS", "create an empty file", TRACE_MADE, 60000, 0, prepare_directory,
		begin_nothing, step_create),
	BOTH("UMP", "UMS", "unlink a file of 1 KiB after stat", TRACE_REMOVED, 30000, 0,
		prepare_small_files, begin_names, step_unlink),
	BOTH("RMP", "RMS", "rename a file into another directory", TRACE_MOVED, 30000, 0,
		prepare_moves, begin_names, step_rename),
};
const unsigned operation_count = sizeof operations / sizeof *operations;
