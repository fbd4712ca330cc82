// SPDX-License-Identifier: BSD-3-Clause
/*
 * userblk_channel: what a guest says to its host, through memory that both see (QEMU's
 * ivshmem-plain). A write to /dev/userblk_port1 .. 4 is over once its bytes are copied: nothing
 * waits for the host, so that what the guest does cannot depend on when the host looks. Linux 5.10
 * to 7.x.
 *
 * The memory: a number of 8 bytes, how many follow from byte 4096 on. Those are messages: port and
 * length (8 bytes each), the bytes, zeroes up to a multiple of 8. Little-endian. It is never used
 * again from its beginning: a writer that has filled it gets ENOSPC.
 */
#include <linux/io.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/uaccess.h>

#define MEMORY_BAR 2
#define MESSAGES   4096 /* where they begin */
#define PORTS	   4

static u8 *memory;
static u64 room, used; /* bytes of messages */
static DEFINE_MUTEX(lock);

static ssize_t write_message(unsigned port, const char __user *data, size_t n)
{
	u64 head[2] = {cpu_to_le64(port), cpu_to_le64(n)}, whole = sizeof head + ALIGN(n, 8);
	u8 *at = memory + MESSAGES + used;

	if (whole > room - used)
		return -ENOSPC;
	memcpy(at, head, sizeof head);
	if (copy_from_user(at + sizeof head, data, n))
		return -EFAULT;
	used += whole;
	smp_wmb(); /* a reader that sees the new length sees the message */
	WRITE_ONCE(*(u64 *)memory, cpu_to_le64(used));
	return n;
}

static ssize_t port_write(struct file *file, const char __user *data, size_t n, loff_t *at);

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.write = port_write,
	.llseek = noop_llseek,
};

#define PORT(number)                                                                               \
	{                                                                                          \
		.minor = MISC_DYNAMIC_MINOR, .name = "userblk_port" #number, .fops = &operations   \
	}
static struct miscdevice ports[PORTS] = {PORT(1), PORT(2), PORT(3), PORT(4)};

static ssize_t port_write(struct file *file, const char __user *data, size_t n, loff_t *at)
{
	unsigned port = 0;
	ssize_t r;

	/* misc_open() puts the device there. */
	while (file->private_data != &ports[port])
		port++;
	mutex_lock(&lock);
	r = write_message(port + 1, data, n);
	mutex_unlock(&lock);
	return r;
}

static int probe(struct pci_dev *device, const struct pci_device_id *id)
{
	unsigned n;
	int r = pcim_enable_device(device);

	if (r)
		return r;
	if (memory || pci_resource_len(device, MEMORY_BAR) <= MESSAGES)
		return -ENODEV;
	memory = devm_memremap(&device->dev, pci_resource_start(device, MEMORY_BAR),
		pci_resource_len(device, MEMORY_BAR), MEMREMAP_WB);
	if (IS_ERR(memory))
		return PTR_ERR(memory);
	room = pci_resource_len(device, MEMORY_BAR) - MESSAGES;
	for (n = 0; n < PORTS; n++)
		if ((r = misc_register(&ports[n])))
			break;
	while (r && n)
		misc_deregister(&ports[--n]);
	return r;
}

static const struct pci_device_id ids[] = {{PCI_DEVICE(0x1af4, 0x1110)}, {}};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver driver = {.name = "userblk_channel", .id_table = ids, .probe = probe};

/* It cannot be unloaded: the guest speaks through it as long as it is up. */
static int __init begin(void)
{
	return pci_register_driver(&driver);
}

module_init(begin);
MODULE_DESCRIPTION("What a guest says to its host without waiting for it, for userblk's lab");
MODULE_LICENSE("Dual BSD/GPL");
