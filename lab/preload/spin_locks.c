// SPDX-License-Identifier: BSD-3-Clause
/*
 * Spin locks of programs (pthread_spin_lock(3)) that sleep, for a guest with one CPU:
 * /etc/ld.so.preload names this library there. A thread that waits for one would use its whole time
 * slice up while the thread that holds it cannot run. With several CPUs, as the machine has that
 * the lab stands for, it waits some nanoseconds. tcmu-runner takes one for each command.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FREE, HELD, AWAITED };

int pthread_spin_init(pthread_spinlock_t *lock, int shared)
{
	(void)shared; /* the futexes below are */
	*lock = FREE;
	return 0;
}

int pthread_spin_destroy(pthread_spinlock_t *lock)
{
	(void)lock;
	return 0;
}

int pthread_spin_trylock(pthread_spinlock_t *lock)
{
	int expected = FREE;

	return __atomic_compare_exchange_n(
		       lock, &expected, HELD, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)
		       ? 0
		       : EBUSY;
}

int pthread_spin_lock(pthread_spinlock_t *lock)
{
	if (!pthread_spin_trylock(lock))
		return 0;
	while (__atomic_exchange_n(lock, AWAITED, __ATOMIC_ACQUIRE) != FREE)
		syscall(SYS_futex, lock, FUTEX_WAIT, AWAITED, NULL, NULL, 0);
	return 0;
}

int pthread_spin_unlock(pthread_spinlock_t *lock)
{
	if (__atomic_exchange_n(lock, FREE, __ATOMIC_RELEASE) == AWAITED)
		syscall(SYS_futex, lock, FUTEX_WAKE, 1, NULL, NULL, 0);
	return 0;
}
