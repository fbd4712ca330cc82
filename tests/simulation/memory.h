/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory of the simulated machine. What the engine and the simulation allocate comes from a part of
 * the address space that each schedule of a process uses again, so that the kernel clears it once.
 */
#ifndef USERBLK_TESTS_SIMULATION_MEMORY_H
#define USERBLK_TESTS_SIMULATION_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Can a process have one schedule after the other? Not where a sanitizer has its own allocator. */
#if defined(__SANITIZE_ADDRESS__)
#define SIM_KEEPS_MEMORY false
#define SIM_STACK	 (1u << 20)
#else
#define SIM_KEEPS_MEMORY true
#define SIM_STACK	 (256u << 10)
#endif
#define SIM_GUARD 4096u	      /* below a stack, not allocated */
#define SIM_ROOM  (32u << 20) /* of a file */

/* Called once, in a process that will run schedules. */
void sim_memory_begin(void);
/* All that was allocated since then is free, and the program's variables have their values of then.
 */
void sim_memory_reset(void);
/* Bytes that are allocated and were not freed; of what is large, those of pages that hold anything.
 * What was mapped is not among them. */
uint64_t sim_memory_used(void);
struct sim_process;
/* The same of one process, and of what it mapped; 0 under sanitizers. */
uint64_t sim_memory_of(const struct sim_process *p);
/* malloc() for what is filled at once and is no process's; it ends the program if there is none. */
void *sim_memory_raw(size_t bytes);
/* Stack i of a thread: SIM_STACK bytes, of which the lowest SIM_GUARD are the guard. */
uint8_t *sim_memory_stack(unsigned i);
/* SIM_ROOM bytes, those of i; zero if nobody has written to them. They stay as they are. */
uint8_t *sim_memory_file(unsigned i);

#endif
