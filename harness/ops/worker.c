/* SPDX-License-Identifier: BSD-3-Clause */
/* Workers, what is made before they begin, and what they leave behind. */
#include <err.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "ops.h"

#define DATA_STREAM  1 /* of random numbers */
#define WORKER_SHIFT 8 /* their streams are apart from that */

int make_directory(const char *path)
{
	return mkdir(path, 0755) == -1 && errno != EEXIST ? -errno : 0;
}

void worker_init(struct worker *w, const struct options *options, unsigned index)
{
	*w = (struct worker){.options = options, .index = index, .fd = -1};
	if (options->operation->shared)
		snprintf(w->home, sizeof(w->home), "%.*s/shared", PATH_MAX - 16, options->top);
	else
		snprintf(w->home, sizeof(w->home), "%.*s/w%u", PATH_MAX - 16, options->top, index);
	rng_seed(&w->rng, options->common.seed, DATA_STREAM + ((uint64_t)index << WORKER_SHIFT));
	/* As direct I/O would need it, so that no mount sees another alignment. */
	w->buffer = aligned_alloc(UNIT, UNIT);
	if (!w->buffer)
		abort();
	rng_fill(&w->rng, w->buffer, UNIT);
}

void worker_end(struct worker *w)
{
	if (w->fd != -1)
		close(w->fd);
	if (w->directory)
		closedir(w->directory);
	free(w->buffer);
}

int operations_prepare(const struct options *options)
{
	int result = 0;

	if (mkdir(options->top, 0755) == -1) {
		warnx("%s: %s", options->top, strerror(errno));
		return -errno;
	}
	for (unsigned i = 0; i < options->workers && result == 0; i++) {
		struct worker w;

		worker_init(&w, options, i);
		snprintf(w.path, sizeof(w.path), "%s", w.home);
		result = make_directory(w.path);
		if (result == 0)
			result = options->operation->prepare(&w);
		if (result < 0)
			warnx("%s: %s", w.path, strerror(-result));
		worker_end(&w);
	}
	return result;
}

/* ---- what is left behind ---- */

/* How many names a directory has. -1: cannot be read. */
static int64_t count_names(const char *path)
{
	DIR *directory = opendir(path);
	int64_t count = -2; /* . and .. */

	if (!directory)
		return -1;
	errno = 0;
	while (readdir(directory))
		count++;
	if (errno)
		count = -1;
	closedir(directory);
	return count;
}

bool operations_trace(
	const struct options *options, uint64_t total, uint64_t *expected, uint64_t *found)
{
	const struct operation *o = options->operation;
	const char *name = o->trace == TRACE_MOVED   ? "moved"
			   : o->trace == TRACE_GROWN ? "data"
						     : "files";
	char path[MAX_PATH];

	*found = 0;
	for (unsigned i = 0; i < (o->shared ? 1 : options->workers); i++) {
		struct worker w;
		struct stat st;
		int64_t here;

		worker_init(&w, options, i);
		snprintf(path, sizeof(path), "%s/%s", w.home, name);
		worker_end(&w);
		if (o->trace == TRACE_GROWN)
			here = stat(path, &st) == -1 ? -1 : (int64_t)st.st_size;
		else
			here = count_names(path);
		if (here == -1) {
			warnx("%s: %s", path, strerror(errno));
			return false;
		}
		*found += (uint64_t)here;
	}
	*expected = o->trace == TRACE_GROWN	? total * UNIT
		    : o->trace == TRACE_REMOVED ? options->files * options->workers - total
						: total;
	return true;
}
