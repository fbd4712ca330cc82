/* SPDX-License-Identifier: BSD-3-Clause */
/* Coroutines: their stacks, and the switch from one to another. */
#include <errno.h>
#include <string.h>

#include "tests/simulation/memory.h"
#include "tests/simulation/sched.h"
#include "tests/simulation/sim.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

struct sim_thread *sim_current;

void sim_switch(void **from, void *to);

#if defined(__x86_64__)
__asm__(".text\n"
	".globl sim_switch\n"
	".type sim_switch, @function\n"
	"sim_switch:\n"
	"	pushq %rbp\n	pushq %rbx\n	pushq %r12\n"
	"	pushq %r13\n	pushq %r14\n	pushq %r15\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rsp\n"
	"	popq %r15\n	popq %r14\n	popq %r13\n"
	"	popq %r12\n	popq %rbx\n	popq %rbp\n"
	"	ret\n"
	".size sim_switch, .-sim_switch\n");
#define SAVED 6
#elif defined(__aarch64__)
__asm__(".text\n"
	".globl sim_switch\n"
	".type sim_switch, %function\n"
	"sim_switch:\n"
	"	sub sp, sp, #176\n"
	"	stp x19, x20, [sp]\n	stp x21, x22, [sp, #16]\n	stp x23, x24, [sp, #32]\n"
	"	stp x25, x26, [sp, #48]\n	stp x27, x28, [sp, #64]\n	stp x29, x30, [sp, "
	"#80]\n"
	"	stp d8, d9, [sp, #96]\n	stp d10, d11, [sp, #112]\n	stp d12, d13, [sp, #128]\n"
	"	stp d14, d15, [sp, #144]\n"
	"	mov x9, sp\n	str x9, [x0]\n	mov sp, x1\n"
	"	ldp x19, x20, [sp]\n	ldp x21, x22, [sp, #16]\n	ldp x23, x24, [sp, #32]\n"
	"	ldp x25, x26, [sp, #48]\n	ldp x27, x28, [sp, #64]\n	ldp x29, x30, [sp, "
	"#80]\n"
	"	ldp d8, d9, [sp, #96]\n	ldp d10, d11, [sp, #112]\n	ldp d12, d13, [sp, #128]\n"
	"	ldp d14, d15, [sp, #144]\n"
	"	add sp, sp, #176\n	ret\n"
	".size sim_switch, .-sim_switch\n");
#else
#error "a switch of coroutines is written for x86-64 and aarch64 only"
#endif

struct sim_thread sim_root;
static uint8_t *free_stacks;
static unsigned n_stacks;

static uint8_t *new_stack(void)
{
	uint8_t *stack = free_stacks;

	if (!stack)
		return sim_memory_stack(n_stacks++);
	memcpy(&free_stacks, stack + SIM_GUARD, sizeof free_stacks);
	return stack;
}

static struct sim_thread *ended; /* its stack is free as soon as nobody stands on it */

static void reap(void)
{
	struct sim_thread *t = ended;

	ended = NULL;
	if (!t || !t->stack)
		return;
#if defined(__SANITIZE_ADDRESS__)
	/* The poison of frames that were never left. */
	__asan_unpoison_memory_region(t->stack + SIM_GUARD, SIM_STACK - SIM_GUARD);
#endif
	memcpy(t->stack + SIM_GUARD, &free_stacks, sizeof free_stacks);
	free_stacks = t->stack;
	t->stack = NULL;
}

void sim_switch_to(struct sim_thread *to)
{
	struct sim_thread *from = sim_current ? sim_current : &sim_root;

	from->error = errno;
	sim_current = to == &sim_root ? NULL : to;
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_start_switch_fiber(from->state == SIM_ENDED ? NULL : &from->fake,
		to == &sim_root ? sim_root.stack : to->stack,
		to == &sim_root ? sim_root.size : SIM_STACK);
	sim_switch(&from->sp, to->sp);
	__sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#else
	sim_switch(&from->sp, to->sp);
#endif
	errno = from->error;
	reap();
}

void sim_arrive(void)
{
#if defined(__SANITIZE_ADDRESS__)
	const void *bottom;
	size_t size;

	__sanitizer_finish_switch_fiber(NULL, &bottom, &size);
	if (!sim_root.stack) {
		sim_root.stack = (uint8_t *)(uintptr_t)bottom;
		sim_root.size = size;
	}
#endif
	reap();
	errno = 0;
}

void sim_leave_stack(struct sim_thread *t)
{
	ended = t;
}

void sim_give_stack(struct sim_thread *t, void (*entry)(void))
{
	void **sp;

	t->stack = new_stack();
	sp = (void **)(void *)(t->stack + SIM_STACK);
#if defined(__x86_64__)
	*--sp = NULL; /* whence it would return */
	*--sp = (void *)(uintptr_t)entry;
	for (int i = 0; i < SAVED; i++)
		*--sp = NULL;
#else
	sp -= 22;
	memset(sp, 0, 22 * sizeof *sp);
	sp[11] = (void *)(uintptr_t)entry;
#endif
	t->sp = sp;
}
