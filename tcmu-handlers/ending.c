/* SPDX-License-Identifier: BSD-3-Clause */
/* "The runner" is tcmu-runner 1.5.4, as in tcmu.c. */
#include "tcmu-handlers/ending.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <libtcmu.h>
#include <tcmu-runner.h>
#include <tcmur_device.h>

#include "backends/backend.h"

/*
 * How often in succession, once a second, a disk must be found blocked. While the runner opens a
 * disk that the daemon before it had, that is blocked, too, and an administrator may block one for
 * a moment.
 */
#define LOOKS 5

struct ending {
	struct ending *next;
	struct tcmu_device *dev;
	struct backend *backend; /* NULL: being closed */
	int action;		 /* an O_PATH descriptor of action/block_dev; negative: none */
	int looks;		 /* that found it blocked */
	bool stopped;
	bool over;
};

/* The devices of this process. Only the thread takes any out. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t added;
	struct ending *first;
	bool runs;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .added = PTHREAD_COND_INITIALIZER};

/*
 * Is the disk blocked, which the runner does when it ends, before it waits? By the descriptor: a
 * lookup of the name would wait for an rmdir of the backstore, which waits for the runner.
 */
static bool is_blocked(int action)
{
	static const char blocked[] = "blocked";
	char path[32], text[sizeof blocked] = "";
	ssize_t got = -1;
	int fd;

	snprintf(path, sizeof path, "/proc/self/fd/%d", action);
	fd = action < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		got = read(fd, text, sizeof blocked - 1);
		close(fd);
	}
	return got == sizeof blocked - 1 && strcmp(text, blocked) == 0;
}

/* The runner sets it when the disk is removed, before it waits. */
static bool is_removed(const struct ending *e)
{
	const struct tcmur_device *runners = tcmu_dev_get_private(e->dev);

	return __atomic_load_n(&runners->flags, __ATOMIC_RELAXED) & TCMUR_DEV_FLAG_STOPPING;
}

static bool waits(const struct ending *e)
{
	return e->backend && !e->stopped && backend_stalled(e->backend);
}

static bool some_wait(void)
{
	for (struct ending *e = all.first; e; e = e->next)
		if (waits(e))
			return true;
	return false;
}

/* Is the runner ending? It blocks one disk at a time. Without the lock while it looks. */
static bool daemon_ends(void)
{
	bool ends = false;

	for (struct ending *e = all.first; e; e = e->next) {
		pthread_mutex_unlock(&all.lock);

		bool blocked = is_blocked(e->action);

		pthread_mutex_lock(&all.lock);
		e->looks = blocked ? e->looks + 1 : 0;
		ends = ends || e->looks >= LOOKS;
	}
	return ends;
}

static void forget_looks(void)
{
	for (struct ending *e = all.first; e; e = e->next)
		e->looks = 0;
}

static void stop_waiting(bool all_end)
{
	for (struct ending *e = all.first; e; e = e->next)
		if (waits(e) && (all_end || is_removed(e))) {
			e->stopped = true;
			backend_stop(e->backend);
		}
}

static void free_closed(void)
{
	for (struct ending **link = &all.first, *e = *link; e; e = *link) {
		if (!e->over) {
			link = &e->next;
			continue;
		}
		*link = e->next;
		if (e->action >= 0)
			close(e->action);
		free(e);
	}
}

static void *watch(void *opaque)
{
	pthread_mutex_lock(&all.lock);
	for (;;) {
		free_closed();
		while (!all.first)
			pthread_cond_wait(&all.added, &all.lock);
		pthread_mutex_unlock(&all.lock);
		nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
		pthread_mutex_lock(&all.lock);
		if (some_wait())
			stop_waiting(daemon_ends());
		else
			forget_looks();
	}
	return opaque;
}

/* The thread stays for as long as the process does. */
static bool start(void)
{
	sigset_t signals, before;
	pthread_t thread;

	if (all.runs)
		return true;
	sigfillset(&signals);
	pthread_sigmask(SIG_SETMASK, &signals, &before);
	all.runs = pthread_create(&thread, NULL, watch, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (all.runs)
		pthread_detach(thread);
	return all.runs;
}

/*
 * In configfs. The name of the UIO device has the HBA, name and cfgstring of its disk. The device
 * is known by its descriptor: the runner tells its name from 1.5.3 on.
 */
static int open_action(struct tcmu_device *dev)
{
	char path[512], hba[32], name[160];
	struct stat uio;
	FILE *file;
	int found;

	if (fstat(tcmu_dev_get_fd(dev), &uio) < 0)
		return -1;
	snprintf(path, sizeof path, "/sys/dev/char/%u:%u/name", major(uio.st_rdev),
		minor(uio.st_rdev));
	file = fopen(path, "re");
	if (!file)
		return -1;
	found = fscanf(file, "tcm-user/%31[^/]/%159[^/]/", hba, name);
	fclose(file);
	if (found != 2)
		return -1;
	snprintf(path, sizeof path, "/sys/kernel/config/target/core/user_%s/%s/action/block_dev",
		hba, name);
	return open(path, O_PATH | O_CLOEXEC);
}

struct ending *ending_watch(struct tcmu_device *dev, struct backend *backend)
{
	struct ending *e = malloc(sizeof *e);
	bool runs;

	if (!e)
		return NULL;
	*e = (struct ending){.dev = dev, .backend = backend, .action = open_action(dev)};
	pthread_mutex_lock(&all.lock);
	runs = start();
	if (runs) {
		e->next = all.first;
		all.first = e;
		pthread_cond_signal(&all.added);
	}
	pthread_mutex_unlock(&all.lock);
	if (runs)
		return e;
	if (e->action >= 0)
		close(e->action);
	free(e);
	return NULL;
}

void ending_begin(struct ending *e)
{
	if (!e)
		return;
	pthread_mutex_lock(&all.lock);
	e->backend = NULL;
	pthread_mutex_unlock(&all.lock);
}

void ending_over(struct ending *e)
{
	if (!e)
		return;
	pthread_mutex_lock(&all.lock);
	e->over = true;
	pthread_mutex_unlock(&all.lock);
}
