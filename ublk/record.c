/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ublk/record.h"

static void path_of(uint32_t id, const char *suffix, char path[64])
{
	snprintf(path, 64, UBLK_RECORD_DIRECTORY "/%" PRIu32 "%s", id, suffix);
}

/* A whole file with a zero byte behind it. */
static char *slurp(const char *path, size_t *length)
{
	FILE *file = fopen(path, "re");
	char *text = NULL;
	size_t capacity = 0;

	*length = 0;
	if (!file)
		return NULL;
	do {
		char *more = realloc(text, capacity + 4096 + 1);

		if (!more)
			break;
		text = more;
		*length += fread(text + capacity, 1, 4096, file);
		capacity += 4096;
	} while (*length == capacity);
	fclose(file);
	if (text)
		text[*length] = 0;
	return text;
}

/* The file is the cookie, the directory and the arguments, each ended by a zero byte. NULL: no
 * memory. The caller frees it. */
static char *compose(uint64_t cookie, const char *directory, char *const *argv, size_t *length)
{
	char *text = NULL;
	FILE *file = open_memstream(&text, length);
	bool whole;

	if (!file)
		return NULL;
	fprintf(file, "%016" PRIx64 "%c%s%c", cookie, 0, directory, 0);
	for (; *argv; argv++)
		fprintf(file, "%s%c", *argv, 0);
	whole = !ferror(file);
	if (fclose(file) == 0 && whole)
		return text;
	free(text);
	return NULL;
}

static bool is_written(const char *path, const char *text, size_t length)
{
	size_t there;
	char *old = slurp(path, &there);
	bool same = old && there == length && memcmp(old, text, length) == 0;

	free(old);
	return same;
}

/* In the place of the one that is there, if any, or not at all. 0 or negative errno. */
static int replace_file(const char *path, const char *temporary, const char *text, size_t length)
{
	FILE *file;
	int fd, r = 0;

	/* It may hold secrets, as the command line may. */
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	file = fd < 0 ? NULL : fdopen(fd, "w");
	if (!file)
		return -errno;
	if (fwrite(text, 1, length, file) != length)
		r = -EIO;
	if (fclose(file) != 0)
		r = -errno;
	if (r == 0 && rename(temporary, path) < 0)
		r = -errno;
	if (r < 0)
		unlink(temporary);
	return r;
}

int ublk_record_write(uint32_t id, uint64_t cookie, const char *directory, char *const *argv)
{
	char path[64], temporary[64];
	char *own = NULL, *text;
	size_t length;
	int r = 0;

	if (!directory)
		directory = own = getcwd(NULL, 0);
	if (!directory)
		return -errno;
	path_of(id, "", path);
	path_of(id, ".new", temporary);
	text = compose(cookie, directory, argv, &length);
	free(own);
	if (!text)
		return -ENOMEM;
	if (mkdir(UBLK_RECORD_DIRECTORY, 0755) < 0 && errno != EEXIST)
		r = -errno;
	else if (!is_written(path, text, length))
		r = replace_file(path, temporary, text, length);
	free(text);
	/* An earlier disk's, whose end nobody waited for. */
	path_of(id, ".failed", path);
	unlink(path);
	return r;
}

int ublk_record_read(uint32_t id, uint64_t cookie, struct ublk_record *record)
{
	char path[64], expected[17];
	size_t length, used;
	int fields = 0;

	*record = (struct ublk_record){0};
	if (cookie < UBLK_FIRST_COOKIE)
		return -ENOENT;
	path_of(id, "", path);
	record->text = slurp(path, &length);
	if (!record->text)
		return -ENOENT;
	snprintf(expected, sizeof expected, "%016" PRIx64, cookie);
	for (used = 0; used < length; used += strlen(record->text + used) + 1)
		fields++;
	if (strcmp(record->text, expected) != 0 || fields < 3) {
		ublk_record_free(record);
		return -ENOENT;
	}
	record->argv = calloc((size_t)fields, sizeof *record->argv);
	if (!record->argv) {
		ublk_record_free(record);
		return -ENOMEM;
	}
	used = strlen(record->text) + 1;
	record->directory = record->text + used;
	for (used += strlen(record->directory) + 1; used < length;
		used += strlen(record->text + used) + 1)
		record->argv[record->count++] = record->text + used;
	return 0;
}

void ublk_record_free(struct ublk_record *record)
{
	free(record->argv);
	free(record->text);
	*record = (struct ublk_record){0};
}

/* Is a file that cookie's, which is text? */
static bool begins_with(uint32_t id, const char *suffix, const char *cookie)
{
	char path[64];
	size_t length;
	char *text;
	bool same;

	path_of(id, suffix, path);
	text = slurp(path, &length);
	same = text && strcmp(text, cookie) == 0;
	free(text);
	return same;
}

/* Removes a file if it is that cookie's. */
static void remove_file(uint32_t id, const char *suffix, uint64_t cookie)
{
	char path[64], expected[17];

	snprintf(expected, sizeof expected, "%016" PRIx64, cookie);
	path_of(id, suffix, path);
	if (begins_with(id, suffix, expected))
		unlink(path);
}

void ublk_record_remove(uint32_t id, uint64_t cookie)
{
	remove_file(id, "", cookie);
	remove_file(id, ".new", cookie); /* of a server that was killed while it wrote it */
}

void ublk_record_leave_failure(uint32_t id, uint64_t cookie)
{
	char path[64], temporary[64], text[17];
	int length = snprintf(text, sizeof text, "%016" PRIx64, cookie);

	path_of(id, ".failed", path);
	path_of(id, ".failed.new", temporary); /* not that of a record */
	if (replace_file(path, temporary, text, (size_t)length) < 0 && begins_with(id, "", text)) {
		/* Where there is no room, the disk's record becomes it. */
		path_of(id, "", temporary);
		rename(temporary, path);
	}
}

bool ublk_record_take_failure(uint32_t id, uint64_t cookie)
{
	char path[64], expected[17];

	snprintf(expected, sizeof expected, "%016" PRIx64, cookie);
	path_of(id, ".failed", path);
	return begins_with(id, ".failed", expected) && unlink(path) == 0;
}
