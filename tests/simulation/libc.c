/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads, locks, clocks and random numbers of simulated processes, in place of the C library's. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/simulation/sched.h"
#include "tests/simulation/wrap.h"

/* What stands in the memory of the C library's types. All zero: as initialised. */
struct mutex {
	struct sim_thread *owner;
	struct sim_queue waiters;
};
struct condition {
	struct sim_queue waiters;
	clockid_t clock;
};
struct semaphore {
	struct sim_queue waiters;
	unsigned value;
};
_Static_assert(sizeof(struct mutex) <= sizeof(pthread_mutex_t), "no room");
_Static_assert(sizeof(struct condition) <= sizeof(pthread_cond_t), "no room");
_Static_assert(sizeof(struct semaphore) <= sizeof(sem_t), "no room");

/* ---- locks ----------------------------------------------------------------------------------- */

static void acquire(struct mutex *m)
{
	while (m->owner) {
		if (m->owner == sim_current)
			sim_fail("lock", "a thread locks what it has locked");
		sim_wait(&m->waiters, SIM_NEVER, "lock", m);
	}
	m->owner = sim_current;
}

static void release(struct mutex *m)
{
	if (m->owner != sim_current)
		sim_fail("lock", "a thread unlocks what it has not locked");
	m->owner = NULL;
	sim_wake(&m->waiters);
}

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr)
{
	(void)attr;
	memset(mutex, 0, sizeof *mutex);
	return 0;
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
	struct mutex *m = (struct mutex *)mutex;

	if (m->owner || m->waiters.head)
		sim_fail("lock", "a mutex in use is destroyed");
	return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
	sim_point("lock", mutex);
	acquire((struct mutex *)mutex);
	return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
	struct mutex *m = (struct mutex *)mutex;

	sim_point("trylock", mutex);
	if (m->owner)
		return EBUSY;
	m->owner = sim_current;
	return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	release((struct mutex *)mutex);
	sim_point("unlock", mutex);
	return 0;
}

int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr)
{
	struct condition *c = (struct condition *)cond;

	memset(cond, 0, sizeof *cond);
	if (attr)
		pthread_condattr_getclock(attr, &c->clock);
	return 0;
}

int __wrap_pthread_cond_destroy(pthread_cond_t *cond)
{
	struct condition *c = (struct condition *)cond;

	if (c->waiters.head)
		sim_fail("lock", "a condition somebody waits for is destroyed");
	return 0;
}

static int wait_for(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t until)
{
	struct condition *c = (struct condition *)cond;
	bool woken = true;

	release((struct mutex *)mutex);
	if (!sim_wait_spurious())
		woken = sim_wait(&c->waiters, until, "wait for a condition", cond);
	else
		sim_point("spurious wake", cond);
	acquire((struct mutex *)mutex);
	return woken ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	return wait_for(cond, mutex, SIM_NEVER);
}

int __wrap_pthread_cond_timedwait(
	pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
	const struct condition *c = (const struct condition *)cond;
	int64_t when = (int64_t)until->tv_sec * 1000000000 + until->tv_nsec;

	if (c->clock == CLOCK_REALTIME)
		when -= sim_wall(sim_self()) - (int64_t)sim_now();
	return wait_for(cond, mutex, when < 0 ? 0 : (uint64_t)when);
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
	sim_wake(&((struct condition *)cond)->waiters);
	sim_point("signal", cond);
	return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
	sim_wake_all(&((struct condition *)cond)->waiters);
	sim_point("broadcast", cond);
	return 0;
}

int __wrap_sem_init(sem_t *sem, int shared, unsigned value)
{
	(void)shared;
	memset(sem, 0, sizeof *sem);
	((struct semaphore *)sem)->value = value;
	return 0;
}

int __wrap_sem_destroy(sem_t *sem)
{
	(void)sem;
	return 0;
}

int __wrap_sem_post(sem_t *sem)
{
	struct semaphore *s = (struct semaphore *)sem;

	s->value++;
	sim_wake(&s->waiters);
	sim_point("post", NULL); /* the one who waited may be gone with it */
	return 0;
}

int __wrap_sem_wait(sem_t *sem)
{
	struct semaphore *s = (struct semaphore *)sem;

	sim_point("sem_wait", sem);
	while (!s->value)
		sim_wait(&s->waiters, SIM_NEVER, "wait for a semaphore", sem);
	s->value--;
	return 0;
}

/* ---- threads -----------------------------------------------------------------------------------
 */

static unsigned failing_threads;

void sim_threads_fail(unsigned n)
{
	failing_threads = n;
}

int __wrap_pthread_create(
	pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *opaque)
{
	(void)attr;
	if (sim_once_in(SIM_DISK, failing_threads)) {
		sim_trace("no thread can be made");
		return EAGAIN;
	}
	*thread = (pthread_t)(uintptr_t)sim_spawn(sim_self(), "thread", run, opaque);
	sim_point("create", NULL);
	return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
	struct sim_thread *t = (struct sim_thread *)(uintptr_t)thread;

	sim_point("join", t);
	while (t->state != SIM_ENDED)
		sim_wait(&t->joiners, SIM_NEVER, "join", t);
	if (result)
		*result = t->result;
	return 0;
}

int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
	(void)how;
	(void)set;
	if (old)
		sigemptyset(old);
	return 0;
}

int __wrap_sched_yield(void)
{
	sim_yield();
	return 0;
}

long __wrap_sysconf(int name)
{
	return name == _SC_NPROCESSORS_ONLN && sim_self() ? (long)sim_self()->cpus
							  : __real_sysconf(name);
}

/* ---- clocks ------------------------------------------------------------------------------------
 */

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
	int64_t ns;

	if (!sim_self())
		return __real_clock_gettime(clock, out);
	sim_point("clock", NULL);
	ns = clock == CLOCK_REALTIME ? sim_wall(sim_self()) : (int64_t)sim_now();
	*out = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
	return 0;
}

time_t __wrap_time(time_t *out)
{
	time_t seconds = (time_t)(sim_wall(sim_self()) / 1000000000);

	sim_point("clock", NULL);
	if (out)
		*out = seconds;
	return seconds;
}

int __wrap_nanosleep(const struct timespec *length, struct timespec *left)
{
	(void)left;
	sim_sleep((uint64_t)length->tv_sec * SIM_SECOND + (uint64_t)length->tv_nsec);
	return 0;
}

int __wrap_usleep(unsigned us)
{
	sim_sleep(UINT64_C(1000) * us);
	return 0;
}

/* ---- random numbers
 * -------------------------------------------------------------------------------- */

static void fill(void *data, size_t length)
{
	uint8_t *p = data;

	while (length) {
		uint64_t word = sim_random(SIM_BYTES);
		size_t n = length < sizeof word ? length : sizeof word;

		memcpy(p, &word, n);
		p += n;
		length -= n;
	}
}

ssize_t __wrap_getrandom(void *data, size_t length, unsigned flags)
{
	(void)flags;
	fill(data, length);
	return (ssize_t)length;
}

int __wrap_RAND_bytes(unsigned char *data, int length)
{
	fill(data, (size_t)length);
	return 1;
}
