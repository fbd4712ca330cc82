// SPDX-License-Identifier: BSD-3-Clause
/*
 * userblk_clock: the timer of a guest whose clock counts instructions. QEMU's HPET, adjusted to
 * the speed of the guest's time.
 *
 *   insmod userblk_clock.ko instructions_per_us=6000
 *
 * A device of QEMU counts a nanosecond an instruction, the guest instructions_per_us a microsecond.
 * The PIT, which the kernel would use, goes off after a fraction of the time that it is set to, and
 * again and again until that is over. Linux 5.10 to 7.x.
 *
 * /sys/module/userblk_clock/parameters/idle_us tells for how long the CPU has been idle: /proc/stat
 * gives hundredths of a second, and a run may be a few tenths long.
 */
#include <linux/acpi.h>
#include <linux/clockchips.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/kernel_stat.h> /* the times of idle CPUs, from Linux 7.x on */
#include <linux/module.h>
#include <linux/tick.h> /* before */

#define HPET_ADDRESS	  0xfed00000
#define HPET_HZ		  100000000U /* of QEMU's time */
#define HPET_PERIOD	  0x004	     /* fs */
#define HPET_CONFIG	  0x010
#define HPET_COUNTER	  0x0f0
#define TIMER_CONFIG	  0x100
#define TIMER_ROUTES	  0x104
#define TIMER_COMPARATOR  0x108
#define HPET_ENABLE	  1U
#define TIMER_ENABLE	  (1U << 2)
#define TIMER_32BIT	  (1U << 8)
#define TIMER_ROUTE_SHIFT 9
#define FIRST_PIN                                                                                  \
	16U /* those of PCI, which are free but for those in use; below are the old ones */
#define PINS	    24U
#define LEAST_TICKS 64 /* in which set_next() comes to its end */
/* As the PIT's: in an idle guest time goes on by such steps while it waits for a file of QEMU's. */
#define MOST_TICKS (HPET_HZ / 1000 * 27)

static unsigned int instructions_per_us;
module_param(instructions_per_us, uint, 0444);
MODULE_PARM_DESC(instructions_per_us, "of the guest's CPU");

/* Interrupts are not idle time. The kernel keeps idle time in which a thread waits for I/O apart.
 */
static int tell_idle(char *text, const struct kernel_param *parameter)
{
	u64 waiting = get_cpu_iowait_time_us(0, NULL);

	return sysfs_emit(text, "%llu\n", get_cpu_idle_time_us(0, NULL) + waiting);
}

static const struct kernel_param_ops idle_time = {.get = tell_idle};
module_param_cb(idle_us, &idle_time, NULL, 0444);
MODULE_PARM_DESC(idle_us, "us that the CPU has been idle since the boot");

static void __iomem *hpet;

static int set_next(unsigned long delta, struct clock_event_device *device)
{
	u32 at = readl(hpet + HPET_COUNTER) + (u32)delta;

	writel(at, hpet + TIMER_COMPARATOR);
	return (s32)(at - readl(hpet + HPET_COUNTER)) > 0 ? 0 : -ETIME;
}

static int shut_down(struct clock_event_device *device)
{
	writel(readl(hpet + TIMER_CONFIG) & ~TIMER_ENABLE, hpet + TIMER_CONFIG);
	return 0;
}

static int set_oneshot(struct clock_event_device *device)
{
	writel(readl(hpet + TIMER_CONFIG) | TIMER_ENABLE, hpet + TIMER_CONFIG);
	return 0;
}

static struct clock_event_device timer = {
	.name = "userblk_clock",
	.features = CLOCK_EVT_FEAT_ONESHOT,
	.rating = 400, /* above all others */
	.set_next_event = set_next,
	.set_state_shutdown = shut_down,
	.set_state_oneshot = set_oneshot,
};

static irqreturn_t on_interrupt(int number, void *data)
{
	timer.event_handler(&timer);
	return IRQ_HANDLED;
}

/* An interrupt of a free pin to which the timer can be wired. The pin, or PINS. */
static unsigned int request_pin(u32 routes)
{
	unsigned int pin;

	for (pin = FIRST_PIN; pin < PINS; pin++) {
		int irq;

		if (!(routes >> pin & 1))
			continue;
		irq = acpi_register_gsi(NULL, pin, ACPI_EDGE_SENSITIVE, ACPI_ACTIVE_HIGH);
		if (irq < 0)
			continue;
		timer.irq = irq;
		if (!request_irq(irq, on_interrupt, IRQF_TIMER | IRQF_NOBALANCING, "userblk_clock",
			    NULL))
			break;
	}
	return pin;
}

static int __init begin(void)
{
	unsigned int pin;
	int r = -ENODEV;

	if (!instructions_per_us)
		return -EINVAL;
	hpet = ioremap(HPET_ADDRESS, 1024);
	if (!hpet)
		return -ENOMEM;
	if (readl(hpet + HPET_PERIOD) != 1000000000U / (HPET_HZ / 1000000U))
		goto out;
	timer.cpumask = cpumask_of(0);
	pin = request_pin(readl(hpet + TIMER_ROUTES));
	r = -EBUSY;
	if (pin == PINS)
		goto out;
	writel(TIMER_32BIT | pin << TIMER_ROUTE_SHIFT, hpet + TIMER_CONFIG);
	writel(readl(hpet + HPET_CONFIG) | HPET_ENABLE, hpet + HPET_CONFIG);
	clockevents_config_and_register(
		&timer, HPET_HZ / 1000 * instructions_per_us, LEAST_TICKS, MOST_TICKS);
	return 0;
out:
	iounmap(hpet);
	return r;
}

/* It cannot be unloaded, as clock event devices cannot. */
module_init(begin);
MODULE_DESCRIPTION("Timer of a guest in virtual time, for userblk's lab");
MODULE_LICENSE("Dual BSD/GPL");
