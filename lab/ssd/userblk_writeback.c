// SPDX-License-Identifier: BSD-3-Clause
/*
 * userblk_writeback: what the kernel knows of a disk after minutes of buffered writing, at once.
 *
 *   insmod userblk_writeback.ko
 *   echo "/dev/X BYTES_PER_S WRITERS" > /sys/module/userblk_writeback/parameters/estimate
 *
 * The kernel estimates how fast a disk writes, and lets each writer dirty its share of that once
 * the page cache holds the dirty limit (mm/page-writeback.c). It begins with 100 MB/s and comes to
 * the rate of an NVMe SSD within tens of seconds; until then writers sleep for as long as 0.2 s at
 * a time. A run of a fraction of a second would measure those sleeps. Linux 5.10 to 7.x.
 */
#include <linux/backing-dev.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/slab.h>

static int set_estimate(const char *text, const struct kernel_param *parameter)
{
	unsigned long bytes_per_s, pages_per_s;
	unsigned writers;
	char path[64];
	struct file *file;
	struct bdi_writeback *wb;

	if (sscanf(text, "%63s %lu %u", path, &bytes_per_s, &writers) != 3 || !writers)
		return -EINVAL;
	pages_per_s = bytes_per_s >> PAGE_SHIFT;
	if (pages_per_s < writers)
		return -EINVAL;
	file = filp_open(path, O_RDONLY | O_LARGEFILE, 0);
	if (IS_ERR(file))
		return PTR_ERR(file);
	wb = &inode_to_bdi(file->f_mapping->host)->wb;
	spin_lock(&wb->list_lock); /* guards the estimates in the kernel, too */
	if (wb_has_dirty_io(wb))   /* which the kernel has added to the disk's */
		atomic_long_add(
			pages_per_s - wb->avg_write_bandwidth, &wb->bdi->tot_write_bandwidth);
	WRITE_ONCE(wb->write_bandwidth, pages_per_s);
	WRITE_ONCE(wb->avg_write_bandwidth, pages_per_s);
	WRITE_ONCE(wb->dirty_ratelimit, pages_per_s / writers);
	WRITE_ONCE(wb->balanced_dirty_ratelimit, pages_per_s / writers);
	spin_unlock(&wb->list_lock);
	filp_close(file, NULL);
	return 0;
}

static const struct kernel_param_ops operations = {.set = set_estimate};
module_param_cb(estimate, &operations, NULL, 0200);
MODULE_PARM_DESC(estimate, "PATH BYTES_PER_S WRITERS: what write-back knows of the disk at PATH");

static int __init begin(void)
{
	return 0;
}

static void __exit end(void)
{
}

module_init(begin);
module_exit(end);
MODULE_DESCRIPTION("Estimates of write-back in a steady state, for userblk's lab");
MODULE_LICENSE("Dual BSD/GPL");
