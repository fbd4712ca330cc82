// SPDX-License-Identifier: BSD-3-Clause
/*
 * userblk_wakeup: the time that an idle CPU takes to wake up, on a guest with one CPU.
 *
 *   insmod userblk_wakeup.ko machines="labsata 4 2,20,100 2,10,33;labnvme 72 2,20,600 2,10,133"
 *   echo labnvme > /sys/module/userblk_wakeup/parameters/machine
 *
 * On a machine with idle CPUs, a thread that another thread wakes up starts on a CPU of its own,
 * which first has to leave its idle state: the deepest one that it was idle long enough for. One
 * CPU that serves all threads is awake whenever one of them wakes up another. So the wake-up
 * happens here that much later, by a timer.
 *
 * A machine has a name, so many CPUs, and for each idle state, from the lightest, how long a CPU
 * must be idle for it and how long it takes to leave it, in microseconds. The guest is the first
 * one until another one is named. idle_cpus.h says on which CPU a thread wakes up. CPUs are a
 * matter of idle times only: the threads run on the guest's one.
 *
 * It happens at once
 * - from an interrupt: a disk's latency is calibrated from a machine whose CPU had to wake up;
 * - if the thread belongs to this CPU (kworker/0:1, ksoftirqd/0) or does not sleep yet.
 *
 * A writer that waits for a semaphore of the kernel sleeps while the semaphore is handed over to
 * the first one that waits. The kernel lets it try again and again, because the first one is about
 * to run on another CPU. Here, the first one could not run before the time slice of the other one
 * ends.
 *
 * Linux 5.10 to 7.x. For one CPU only: disabled interrupts are the lock.
 */
#include <linux/hrtimer.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/rwsem.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/tracepoint.h>
#include <linux/version.h>
#include <linux/wait.h>

#include "idle_cpus.h"

#define MACHINES 4
#define SLOTS	 4096U /* threads by number; two with the same slot: the second wakes up at once */

static struct idle_machine machine[MACHINES];
static struct idle_model model;

static char *machines;
module_param(machines, charp, 0444);
MODULE_PARM_DESC(machines, "NAME CPUS RESIDENCY_US,... EXIT_US,...;...");

static struct slot {
	struct hrtimer timer;
	struct task_struct *thread; /* that will wake up, or NULL */
	unsigned int states;	    /* of a thread that may be woken up from them */
	struct idle_thread on;	    /* a modelled CPU: the slot's thread */
} slots[SLOTS];

static struct slot *slot_of(const struct task_struct *thread)
{
	return &slots[(unsigned)thread->pid % SLOTS];
}

static unsigned int state_of(const struct task_struct *thread)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 14, 0)
	return READ_ONCE(thread->state);
#else
	return READ_ONCE(thread->__state);
#endif
}

/* What try_to_wake_up() returns. */
static noinline int woken_up(void)
{
	return 1;
}

static noinline int awake_already(void)
{
	return 0;
}

/* The guest is this machine from now on, with its threads spread over the CPUs by number. */
static void become(const struct idle_machine *new)
{
	unsigned long flags;
	unsigned int i;

	local_irq_save(flags);
	idle_become(&model, new, local_clock());
	for (i = 0; i < SLOTS; i++)
		idle_move(&model, &slots[i].on, i);
	local_irq_restore(flags);
}

static int set_machine(const char *text, const struct kernel_param *parameter)
{
	unsigned int i;

	for (i = 0; i < MACHINES && machine[i].cpus; i++)
		if (sysfs_streq(text, machine[i].name)) {
			become(&machine[i]);
			return 0;
		}
	return -EINVAL;
}

static int get_machine(char *text, const struct kernel_param *parameter)
{
	return sysfs_emit(text, "%s\n", model.machine->name);
}

static const struct kernel_param_ops machine_operations = {.set = set_machine, .get = get_machine};
module_param_cb(machine, &machine_operations, NULL, 0600);
MODULE_PARM_DESC(machine, "NAME of the machine that the guest is");

/* Kernel threads of one CPU are named for it: kworker/0:1H, ksoftirqd/0; unbound: kworker/u4:1. */
static bool belongs_to_cpu(const struct task_struct *thread)
{
	const char *slash;

	if (!(thread->flags & PF_KTHREAD))
		return false;
	slash = strnchr(thread->comm, TASK_COMM_LEN, '/');
	return slash && slash[1] >= '0' && slash[1] <= '9';
}

static enum hrtimer_restart wake_up_late(struct hrtimer *timer)
{
	struct slot *slot = container_of(timer, struct slot, timer);
	struct wait_queue_entry entry = {.private = slot->thread};
	struct task_struct *thread = slot->thread;

	slot->thread = NULL;
	default_wake_function(&entry, slot->states, 0, NULL);
	put_task_struct(thread);
	return HRTIMER_NORESTART;
}

/* Before try_to_wake_up(thread, states, flags). 1: returns instead, to where regs->ip says. */
static int on_wake_up(struct kprobe *probe, struct pt_regs *regs)
{
	struct task_struct *thread = (struct task_struct *)regs->di;
	unsigned int states = regs->si;
	struct slot *slot = slot_of(thread);
	unsigned long flags;
	u64 latency;
	int returns = 0;

	local_irq_save(flags);
	if (slot->thread == thread && states & state_of(thread)) {
		slot->states |= states;
		regs->ip = (unsigned long)awake_already;
		returns = 1;
	} else if (!slot->thread && in_task() && states & state_of(thread) & TASK_NORMAL &&
		   !READ_ONCE(thread->on_rq) && !READ_ONCE(thread->on_cpu) &&
		   !belongs_to_cpu(thread)) {
		latency = idle_awaken(&model, &slot->on, local_clock());
		if (latency) {
			get_task_struct(thread);
			slot->thread = thread;
			slot->states = states;
			hrtimer_start(
				&slot->timer, ns_to_ktime(latency), HRTIMER_MODE_REL_PINNED_HARD);
			regs->ip = (unsigned long)woken_up;
			returns = 1;
		}
	}
	local_irq_restore(flags);
	return returns;
}

/* Without a handler like this, the kernel does not let a probe change regs->ip. */
static void after(struct kprobe *probe, struct pt_regs *regs, unsigned long flags)
{
}

static struct kprobe wake_up_probe = {
	.symbol_name = "try_to_wake_up",
	.pre_handler = on_wake_up,
	.post_handler = after,
};

#define RWSEM_FLAG_HANDOFF                                                                         \
	4UL /* of kernel/locking/rwsem.c: only the first that waits may take it */
#define OWNER_NONSPINNABLE 8

/* What rwsem_spin_on_owner() returns if a waiter is to sleep. */
static noinline int not_spinnable(void)
{
	return OWNER_NONSPINNABLE;
}

/* Before rwsem_spin_on_owner(semaphore). What takes the semaphore later wakes up those that sleep.
 */
static int on_spin(struct kprobe *probe, struct pt_regs *regs)
{
	struct rw_semaphore *semaphore = (struct rw_semaphore *)regs->di;

	if (atomic_long_read(&semaphore->owner) ||
		!(atomic_long_read(&semaphore->count) & RWSEM_FLAG_HANDOFF))
		return 0;
	regs->ip = (unsigned long)not_spinnable;
	return 1;
}

static struct kprobe spin_probe = {
	.symbol_name = "rwsem_spin_on_owner",
	.pre_handler = on_spin,
	.post_handler = after,
};

static void on_switch(void *data, bool preempted, struct task_struct *from, struct task_struct *to
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 18, 0)
	,
	unsigned int from_state
#endif
)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 18, 0)
	unsigned int from_state = state_of(from);
#endif

	/* Also a CPU's own: a kernel thread gets its name after it has begun. */
	if (from_state && !preempted && from->pid)
		idle_fall_asleep(&model, &slot_of(from)->on, from->in_iowait, local_clock());
	if (to->pid && !belongs_to_cpu(to))
		idle_awaken(&model, &slot_of(to)->on, local_clock()); /* by an interrupt */
}

static void on_new_thread(void *data, struct task_struct *thread)
{
	struct slot *slot = slot_of(thread);
	unsigned long flags;

	local_irq_save(flags);
	if (!slot->thread)
		idle_begin(&model, &slot->on, &slot_of(current)->on);
	local_irq_restore(flags);
}

static struct tracepoint *switches, *new_threads;

static void find_tracepoint(struct tracepoint *point, void *data)
{
	if (!strcmp(point->name, "sched_switch"))
		switches = point;
	if (!strcmp(point->name, "sched_wakeup_new"))
		new_threads = point;
}

/* text: NAME CPUS RESIDENCY_US,... EXIT_US,... */
static int __init add(struct idle_machine *m, const char *text)
{
	char residencies[64], exits[64];

	if (sscanf(text, "%31s %u %63s %63s", m->name, &m->cpus, residencies, exits) != 4)
		return -EINVAL;
	get_options(residencies, 1 + IDLE_STATES, m->residency_us);
	get_options(exits, 1 + IDLE_STATES, m->exit_us);
	if (!m->cpus || m->cpus % 2 || m->cpus > IDLE_CPUS)
		return -EINVAL;
	if (!m->residency_us[0] || m->residency_us[0] != m->exit_us[0])
		return -EINVAL;
	return 0;
}

static int __init add_all(void)
{
	char *copy = kstrdup(machines ? machines : "", GFP_KERNEL), *rest = copy, *text;
	struct idle_machine *m = machine;
	int r = copy ? 0 : -ENOMEM;

	while (!r && (text = strsep(&rest, ";")))
		r = m < machine + MACHINES ? add(m++, text) : -EINVAL;
	kfree(copy);
	return r;
}

static int __init begin(void)
{
	unsigned int i;
	int r = add_all();

	if (r)
		return r;
	if (num_possible_cpus() != 1)
		return -ENODEV;
	for_each_kernel_tracepoint(find_tracepoint, NULL);
	if (!switches || !new_threads)
		return -ENOENT;
	for (i = 0; i < SLOTS; i++) {
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
		hrtimer_init(&slots[i].timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
		slots[i].timer.function = wake_up_late;
#else
		hrtimer_setup(&slots[i].timer, wake_up_late, CLOCK_MONOTONIC,
			HRTIMER_MODE_REL_PINNED_HARD);
#endif
	}
	become(machine);
	r = tracepoint_probe_register(switches, on_switch, NULL);
	if (r)
		return r;
	r = tracepoint_probe_register(new_threads, on_new_thread, NULL);
	if (r)
		goto forget_switches;
	r = register_kprobe(&spin_probe);
	if (r)
		goto forget_new_threads;
	r = register_kprobe(&wake_up_probe);
	if (!r)
		return 0;
	unregister_kprobe(&spin_probe);
forget_new_threads:
	tracepoint_probe_unregister(new_threads, on_new_thread, NULL);
forget_switches:
	tracepoint_probe_unregister(switches, on_switch, NULL);
	return r;
}

static void __exit end(void)
{
	unsigned int i;

	unregister_kprobe(&wake_up_probe);
	unregister_kprobe(&spin_probe);
	for (i = 0; i < SLOTS; i++) /* what is left wakes up by itself */
		while (READ_ONCE(slots[i].thread))
			schedule_timeout_uninterruptible(1);
	tracepoint_probe_unregister(new_threads, on_new_thread, NULL);
	tracepoint_probe_unregister(switches, on_switch, NULL);
	tracepoint_synchronize_unregister();
}

module_init(begin);
module_exit(end);
MODULE_DESCRIPTION("Wake-up latency of idle CPUs, for userblk's lab");
MODULE_LICENSE("Dual BSD/GPL");
