/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * usage: metadata DIRECTORY THREADS FILES MILLISECONDS
 *
 * How many files of 4 KiB are created, looked up (stat), read (open, read,
 * close) and unlinked a second, each thread in a directory of its own below
 * DIRECTORY, which is left as it was. Lookups and reads go on in passes over
 * all FILES until they have taken MILLISECONDS, each pass beginning with empty
 * caches of names, attributes and contents. Needs root, for those. Prints
 * "NAME OPERATIONS-PER-SECOND" for each; exit status 1 after any failure.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES  4096
#define MAX_THREADS 1024
/* The kernel tells the file system later which inodes it has dropped. */
#define SETTLE_USEC 50000

typedef void operation(int dir, const char *name);

static const char *top;
static unsigned threads, files; /* files: of each thread */
static int dirs[MAX_THREADS];
static operation *current;
static pthread_barrier_t barrier;
static char content[FILE_BYTES];

static void fail(const char *what)
{
	fprintf(stderr, "metadata: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void create_one(int dir, const char *name)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL, 0644);

	if (fd == -1 || write(fd, content, FILE_BYTES) != FILE_BYTES || close(fd) == -1)
		fail("create");
}

static void stat_one(int dir, const char *name)
{
	struct stat st;

	if (fstatat(dir, name, &st, 0) == -1 || st.st_size != FILE_BYTES)
		fail("stat");
}

static void read_one(int dir, const char *name)
{
	char data[FILE_BYTES];
	int fd = openat(dir, name, O_RDONLY);

	if (fd == -1 || read(fd, data, FILE_BYTES) != FILE_BYTES || close(fd) == -1)
		fail("open, read, close");
}

static void unlink_one(int dir, const char *name)
{
	if (unlinkat(dir, name, 0) == -1)
		fail("unlink");
}

static void *work(void *arg)
{
	int dir = *(int *)arg;
	char name[16];

	for (;;) {
		pthread_barrier_wait(&barrier);
		if (!current)
			return NULL;
		for (unsigned i = 0; i < files; i++) {
			snprintf(name, sizeof(name), "%08u", i);
			current(dir, name);
		}
		pthread_barrier_wait(&barrier);
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void drop_caches(void)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY);

	if (syncfs(dirs[0]) == -1) /* what is dirty stays */
		fail("syncfs");
	if (fd == -1 || write(fd, "3", 1) != 1 || close(fd) == -1)
		fail("/proc/sys/vm/drop_caches");
	usleep(SETTLE_USEC);
}

/* One pass over all files, in seconds. */
static double pass(operation *op)
{
	double began;

	current = op;
	began = now();
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	return now() - began;
}

static void report(const char *name, unsigned passes, double seconds)
{
	printf("%s %.1f\n", name, (double)threads * files * passes / seconds);
}

/* Passes of op with empty caches until they have taken so many seconds. */
static void repeat(const char *name, operation *op, double seconds)
{
	double taken = 0;
	unsigned passes = 0;

	while (taken < seconds) {
		drop_caches();
		taken += pass(op);
		passes++;
	}
	report(name, passes, taken);
}

static unsigned number(const char *name, const char *text, unsigned most)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*end || end == text || text[0] == '-' || value < 1 || value > most) {
		fprintf(stderr, "metadata: %s=%s: give a number from 1 to %u\n", name, text, most);
		exit(2);
	}
	return (unsigned)value;
}

static void make_directories(void)
{
	char path[4096];

	for (unsigned t = 0; t < threads; t++) {
		snprintf(path, sizeof(path), "%s/metadata-%u", top, t);
		if (mkdir(path, 0755) == -1)
			fail(path);
		dirs[t] = open(path, O_RDONLY | O_DIRECTORY);
		if (dirs[t] == -1)
			fail(path);
	}
}

static void remove_directories(void)
{
	char path[4096];

	for (unsigned t = 0; t < threads; t++) {
		close(dirs[t]);
		snprintf(path, sizeof(path), "%s/metadata-%u", top, t);
		if (rmdir(path) == -1)
			fail(path);
	}
}

int main(int argc, char **argv)
{
	pthread_t thread[MAX_THREADS];
	double seconds;

	if (argc != 5) {
		fprintf(stderr, "usage: metadata DIRECTORY THREADS FILES MILLISECONDS\n");
		return 2;
	}
	top = argv[1];
	threads = number("THREADS", argv[2], MAX_THREADS);
	files = number("FILES", argv[3], 10000000) / threads;
	seconds = number("MILLISECONDS", argv[4], 1000000) / 1e3;
	if (files == 0) {
		fprintf(stderr, "metadata: FILES=%s: give one for each thread\n", argv[3]);
		return 2;
	}
	memset(content, 'x', FILE_BYTES);
	make_directories();
	pthread_barrier_init(&barrier, NULL, threads + 1);
	for (unsigned t = 0; t < threads; t++)
		if (pthread_create(&thread[t], NULL, work, &dirs[t]) != 0)
			fail("pthread_create");
	report("create", 1, pass(create_one));
	repeat("stat", stat_one, seconds);
	repeat("open", read_one, seconds);
	report("unlink", 1, pass(unlink_one));
	current = NULL;
	pthread_barrier_wait(&barrier);
	for (unsigned t = 0; t < threads; t++)
		pthread_join(thread[t], NULL);
	remove_directories();
	return 0;
}
