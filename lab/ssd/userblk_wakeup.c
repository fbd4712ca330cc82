// SPDX-License-Identifier: BSD-3-Clause
/*
 * userblk_wakeup: the time that an idle CPU takes to wake up, on a guest with one CPU.
 *
 *   insmod userblk_wakeup.ko residency_us=2,20,600 exit_us=2,10,133
 *
 * On a machine with idle CPUs, a thread that another thread wakes up starts on a CPU of its own.
 * That CPU has slept since the thread did, in the deepest idle state for which that was long
 * enough (residency_us), and takes exit_us to leave it. One CPU that serves all threads is awake
 * whenever one of them wakes up another. So the wake-up happens here that much later, by a timer.
 *
 * Other threads that wait for this CPU make no difference: the modelled machine has more CPUs than
 * a run has threads, and what observes a run would change its result.
 *
 * It happens at once
 * - from an interrupt: a disk's latency is calibrated from a machine whose CPU had to wake up;
 * - if the thread belongs to this CPU (kworker/0:1, ksoftirqd/0) or does not sleep yet.
 * Linux 5.10 to 7.x. For one CPU only: disabled interrupts are the lock.
 */
#include <linux/hrtimer.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/sched/task.h>
#include <linux/tracepoint.h>
#include <linux/version.h>
#include <linux/wait.h>

#define STATES 8
#define SLOTS  4096U /* threads by number; two with the same slot: the second wakes up at once */

static unsigned int residency_us[STATES], exit_us[STATES];
static int residencies, exits;
module_param_array(residency_us, uint, &residencies, 0444);
MODULE_PARM_DESC(residency_us, "how long a CPU must be idle for each idle state, rising");
module_param_array(exit_us, uint, &exits, 0444);
MODULE_PARM_DESC(exit_us, "how long it takes to leave each state");

static struct slot {
	struct hrtimer timer;
	struct task_struct *thread; /* that will wake up, or NULL */
	unsigned int states;	    /* of a thread that may be woken up from them */
	u64 slept_at;		    /* when a thread of the slot left the CPU, local_clock() */
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

static u64 exit_ns(u64 idle_ns)
{
	int state = exits - 1;

	while (state >= 0 && idle_ns < residency_us[state] * 1000ULL)
		state--;
	return state < 0 ? 0 : exit_us[state] * 1000ULL;
}

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
		latency = exit_ns(local_clock() - slot->slept_at);
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
static void after_wake_up(struct kprobe *probe, struct pt_regs *regs, unsigned long flags)
{
}

static struct kprobe wake_up_probe = {
	.symbol_name = "try_to_wake_up",
	.pre_handler = on_wake_up,
	.post_handler = after_wake_up,
};

static void on_switch(void *data, bool preempted, struct task_struct *from, struct task_struct *to
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 18, 0)
	,
	unsigned int from_state
#endif
)
{
	slot_of(from)->slept_at = local_clock();
}

static struct tracepoint *switches;

static void find_switches(struct tracepoint *point, void *data)
{
	if (!strcmp(point->name, "sched_switch"))
		switches = point;
}

static int __init begin(void)
{
	unsigned int i;
	int r;

	if (!exits || exits != residencies)
		return -EINVAL;
	if (num_possible_cpus() != 1)
		return -ENODEV;
	for_each_kernel_tracepoint(find_switches, NULL);
	if (!switches)
		return -ENOENT;
	for (i = 0; i < SLOTS; i++) {
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
		hrtimer_init(&slots[i].timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
		slots[i].timer.function = wake_up_late;
#else
		hrtimer_setup(&slots[i].timer, wake_up_late, CLOCK_MONOTONIC,
			HRTIMER_MODE_REL_PINNED_HARD);
#endif
		slots[i].slept_at = local_clock();
	}
	r = tracepoint_probe_register(switches, on_switch, NULL);
	if (r)
		return r;
	r = register_kprobe(&wake_up_probe);
	if (r)
		tracepoint_probe_unregister(switches, on_switch, NULL);
	return r;
}

static void __exit end(void)
{
	unsigned int i;

	unregister_kprobe(&wake_up_probe);
	for (i = 0; i < SLOTS; i++) /* what is left wakes up by itself */
		while (READ_ONCE(slots[i].thread))
			schedule_timeout_uninterruptible(1);
	tracepoint_probe_unregister(switches, on_switch, NULL);
	tracepoint_synchronize_unregister();
}

module_init(begin);
module_exit(end);
MODULE_DESCRIPTION("Wake-up latency of idle CPUs, for userblk's lab");
MODULE_LICENSE("Dual BSD/GPL");
