/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory that the processes of a run share, since it is mapped before they are
 * forked, and waiting for what changes in it.
 */
#ifndef FLOW_SHARED_H
#define FLOW_SHARED_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Zeroed; pages that are never touched cost nothing. NULL: out of memory. */
static inline void *shared_map(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static inline void shared_unmap(void *memory, size_t size)
{
	if (memory != NULL)
		munmap(memory, size);
}

/* Sleeps while the word has this value, until it is woken or a signal comes. */
static inline void shared_wait(_Atomic uint32_t *word, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAIT, value, NULL, NULL, 0);
}

/* Wakes all that sleep on the word. */
static inline void shared_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

#endif
