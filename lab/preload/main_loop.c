// SPDX-License-Identifier: BSD-3-Clause
/*
 * QEMU's main loop runs only while its CPU waits: LD_PRELOAD names this library where a guest has
 * to do the same each time (-icount, one CPU).
 *
 * Each expired timer wakes the main loop. It looks whether the CPU is halted, and if so moves the
 * guest's clock on to the next timer. A CPU that has just executed HLT says so before the
 * instructions since it was started last are added to the clock, which then goes too far by these:
 * seen in one of five blocks of Table 1, by 74 ns. So the main loop, once it has something to do,
 * waits here until the CPU's thread waits to be woken. Nobody but the main loop wakes it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int (*real_wait)(pthread_cond_t *, pthread_mutex_t *);
static int (*real_broadcast)(pthread_cond_t *);
static int (*real_ppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);

enum { RUNS, RUNS_AWAITED, WAITS };
static atomic_int cpu; /* what its thread does */
static pthread_cond_t *_Atomic waits_for;

__attribute__((constructor)) static void find(void)
{
	/* Without a version it would be that of before 2003, with other conditions. */
	real_wait = dlvsym(RTLD_NEXT, "pthread_cond_wait", "GLIBC_2.3.2");
	real_broadcast = dlvsym(RTLD_NEXT, "pthread_cond_broadcast", "GLIBC_2.3.2");
	real_ppoll = dlsym(RTLD_NEXT, "ppoll");
}

static bool in_main_thread(void)
{
	static _Thread_local int is; /* -1: no, 1: yes */

	if (!is)
		is = syscall(SYS_gettid) == getpid() ? 1 : -1;
	return is > 0;
}

/* Only the CPU's thread waits without a limit of time, besides the main one. */
int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
	if (!in_main_thread()) {
		waits_for = condition;
		if (atomic_exchange(&cpu, WAITS) == RUNS_AWAITED)
			syscall(SYS_futex, &cpu, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	}
	return real_wait(condition, mutex);
}

/* From here on it runs: it may do so before the main loop gets on. */
int pthread_cond_broadcast(pthread_cond_t *condition)
{
	if (condition == waits_for) {
		int waits = WAITS;

		atomic_compare_exchange_strong(&cpu, &waits, RUNS);
	}
	return real_broadcast(condition);
}

static int await(int ready)
{
	int seen;

	if (!in_main_thread())
		return ready;
	while ((seen = atomic_load(&cpu)) != WAITS)
		if (seen == RUNS_AWAITED ||
			atomic_compare_exchange_strong(&cpu, &seen, RUNS_AWAITED))
			syscall(SYS_futex, &cpu, FUTEX_WAIT_PRIVATE, RUNS_AWAITED, NULL, NULL, 0);
	return ready;
}

int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *limit, const sigset_t *mask)
{
	return await(real_ppoll(fds, n, limit, mask));
}

/* What a program calls that was compiled with _FORTIFY_SOURCE. */
int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *limit, const sigset_t *mask,
	size_t size);
int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *limit, const sigset_t *mask,
	size_t size)
{
	(void)size;
	return ppoll(fds, n, limit, mask);
}
