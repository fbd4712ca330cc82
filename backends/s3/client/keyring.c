/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/s3/client/credentials.h"
#include "backends/s3/client/keyring.h"

/* Credentials are renewed when so much of their time is left, or a quarter if that is less. */
#define AHEAD_S 300
/* Seconds from a failed renewal to the next one. */
#define PAUSE_S 10
/* A refusal so soon after credentials were fetched is not for their age. */
#define FRESH_S 2

struct s3_keyring {
	char *file, *profile;
	struct backend_host host;
	_Atomic uint64_t generation; /* changes under the lock */

	pthread_mutex_t lock;
	pthread_cond_t changed; /* one of the next two */
	bool wanted, ending;
	bool running, reported; /* the thread; that a renewal failed */
	pthread_t thread;
	struct s3_credentials current;
	time_t loaded; /* by the monotonic clock */
};

static time_t now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

/* Seconds until credentials that were just fetched must be renewed; 0: when they are refused. */
static time_t renewal(const struct s3_credentials *c)
{
	time_t left = (time_t)c->expires - time(NULL);

	if (!c->expires)
		return 0;
	/* Late already, by this host's clock. */
	if (left <= 0)
		return PAUSE_S;
	left -= left / 4 < AHEAD_S ? left / 4 : AHEAD_S;
	return left ? left : 1;
}

/* Takes over what was loaded; lock is held. */
static void take(struct s3_keyring *k, struct s3_credentials *c)
{
	k->loaded = now_s();
	if (s3_credentials_equal(c, &k->current)) {
		k->current.expires = c->expires;
		s3_credentials_clear(c);
		return;
	}
	s3_credentials_clear(&k->current);
	k->current = *c;
	atomic_fetch_add(&k->generation, 1);
}

/* Fetches others without holding the lock, and takes them over. 0 or negative errno. */
static int renew(struct s3_keyring *k)
{
	struct s3_credentials c;
	struct params_error error;
	int r;

	pthread_mutex_unlock(&k->lock);
	r = s3_credentials_load(k->file, k->profile, NULL, &c, &error);
	pthread_mutex_lock(&k->lock);
	if (r == 0)
		take(k, &c);
	if (r && !k->reported)
		backend_error(&k->host, "%s (trying again)", error.text);
	else if (r == 0 && k->reported)
		backend_error(&k->host, "credentials: renewed");
	k->reported = r != 0;
	return r;
}

static void *keyring_main(void *opaque)
{
	struct s3_keyring *k = opaque;
	time_t pause;

	pthread_mutex_lock(&k->lock);
	pause = renewal(&k->current);
	while (!k->ending) {
		struct timespec due = {.tv_sec = now_s() + pause};
		int r = 0;

		while (!k->ending && !k->wanted && r != ETIMEDOUT)
			r = pause ? pthread_cond_timedwait(&k->changed, &k->lock, &due)
				  : pthread_cond_wait(&k->changed, &k->lock);
		if (k->ending)
			break;
		r = renew(k);
		k->wanted = false;
		pause = r ? PAUSE_S : renewal(&k->current);
	}
	pthread_mutex_unlock(&k->lock);
	return NULL;
}

/* Starts the thread if credentials must be renewed and there is none; lock is held. */
static int start(struct s3_keyring *k)
{
	sigset_t all, old;
	int r;

	if (!k->current.of_role || k->running)
		return 0;
	k->ending = false;
	/* Other threads handle the process's signals. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	r = -pthread_create(&k->thread, NULL, keyring_main, k);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	k->running = r == 0;
	return r;
}

int s3_keyring_start(struct s3_keyring *k)
{
	int r;

	pthread_mutex_lock(&k->lock);
	r = start(k);
	pthread_mutex_unlock(&k->lock);
	return r;
}

void s3_keyring_park(struct s3_keyring *k)
{
	bool running;

	pthread_mutex_lock(&k->lock);
	k->ending = true;
	running = k->running;
	k->running = false;
	pthread_cond_signal(&k->changed);
	pthread_mutex_unlock(&k->lock);
	if (running)
		pthread_join(k->thread, NULL);
}

uint64_t s3_keyring_generation(const struct s3_keyring *k)
{
	return atomic_load(&k->generation);
}

/* strdup() of what may be NULL; *failed says that there was no memory. */
static char *copy(const char *text, bool *failed)
{
	char *new = text ? strdup(text) : NULL;

	*failed |= text && !new;
	return new;
}

int s3_keyring_copy(struct s3_keyring *k, struct s3_credentials *c, uint64_t *generation)
{
	bool failed = false;

	s3_credentials_clear(c);
	pthread_mutex_lock(&k->lock);
	c->access_key = copy(k->current.access_key, &failed);
	c->secret_key = copy(k->current.secret_key, &failed);
	c->token = copy(k->current.token, &failed);
	c->source = copy(k->current.source, &failed);
	*generation = atomic_load(&k->generation);
	pthread_mutex_unlock(&k->lock);
	if (failed)
		s3_credentials_clear(c);
	return failed ? -ENOMEM : 0;
}

bool s3_keyring_other(struct s3_keyring *k, uint64_t generation, uint64_t refused)
{
	bool others;

	pthread_mutex_lock(&k->lock);
	if (atomic_load(&k->generation) == generation && !k->current.of_role) {
		struct s3_credentials c;
		struct params_error error;

		if (s3_credentials_load(k->file, k->profile, NULL, &c, &error) == 0)
			take(k, &c);
	}
	/* Those of a role may have replaced a file's; without memory it is tried again here. */
	start(k);
	others = atomic_load(&k->generation) != generation;
	/* Once for a request: those that the role has are the same, or no better. */
	if (!others && k->current.of_role && now_s() - k->loaded >= FRESH_S &&
		k->loaded <= (time_t)(refused / 1000000000)) {
		k->wanted = others = true;
		pthread_cond_signal(&k->changed);
	}
	pthread_mutex_unlock(&k->lock);
	return others;
}

int s3_keyring_open(const char *file, const char *profile, const struct backend_host *host,
	struct s3_keyring **out)
{
	struct s3_keyring *k = calloc(1, sizeof *k);
	struct params_error error;
	pthread_condattr_t attr;
	bool failed = false;
	int r;

	if (!k)
		return -ENOMEM;
	pthread_mutex_init(&k->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&k->changed, &attr);
	pthread_condattr_destroy(&attr);
	k->host = *host;
	k->file = copy(file, &failed);
	k->profile = copy(profile, &failed);
	k->generation = 1;
	r = failed ? -ENOMEM : s3_credentials_load(file, profile, host, &k->current, &error);
	if (r) {
		if (!failed)
			backend_error(host, "%s", error.text);
		s3_keyring_close(k);
		return r;
	}
	k->loaded = now_s();
	*out = k;
	return 0;
}

void s3_keyring_close(struct s3_keyring *k)
{
	if (!k)
		return;
	s3_keyring_park(k);
	s3_credentials_clear(&k->current);
	pthread_cond_destroy(&k->changed);
	pthread_mutex_destroy(&k->lock);
	free(k->file);
	free(k->profile);
	free(k);
}
