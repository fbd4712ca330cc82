/* SPDX-License-Identifier: BSD-3-Clause */
#include "results.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* NULL with errno. */
static char *partial_of(const char *path)
{
	char *partial;

	if (path[0] == '\0') {
		errno = ENOENT;
		return NULL;
	}
	if (asprintf(&partial, "%s.partial", path) < 0) {
		errno = ENOMEM;
		return NULL;
	}
	return partial;
}

FILE *results_open(const char *path)
{
	char *partial = partial_of(path);
	FILE *f = partial != NULL ? fopen(partial, "we") : NULL;

	free(partial);
	return f;
}

bool results_close(FILE *f, const char *path)
{
	char *partial = partial_of(path);
	bool ok = fflush(f) == 0 && !ferror(f);

	ok = fclose(f) == 0 && ok;
	ok = ok && partial != NULL && rename(partial, path) == 0;
	if (!ok && partial != NULL) {
		int error = errno;

		unlink(partial);
		errno = error;
	}
	free(partial);
	return ok;
}

const char *results_refused(const char *path)
{
	struct stat st;

	/* A name that something else has, such as the link /dev/stdout, would be taken away from
	 * it. */
	if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return "not a regular file";

	FILE *f = results_open(path);

	if (f == NULL)
		return strerror(errno);
	fclose(f);

	char *partial = partial_of(path);

	if (partial != NULL)
		unlink(partial);
	free(partial);
	return NULL;
}
