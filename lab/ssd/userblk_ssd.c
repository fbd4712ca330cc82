// SPDX-License-Identifier: BSD-3-Clause
/*
 * userblk_ssd: block devices whose data is in memory and whose requests complete when model.h says,
 * by a timer's interrupt. Made for the lab, where the guest's clock counts instructions: what a
 * disk costs is then the same in every run.
 *
 *   insmod userblk_ssd.ko disks="name=ssd0 serial=X bytes=2147483648 channels=8 ...;name=ssd1 ..."
 *
 * Every parameter of struct ssd_parameters is a word NAME=NUMBER; beside them are name, serial,
 * bytes, queues (hardware queues), depth (of each) and max_kib (of a request). Blocks that were
 * never written, or were discarded, read as zeroes and take as long as others. Linux 5.10 to 7.x.
 */
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/highmem.h>
#include <linux/hrtimer.h>
#include <linux/idr.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <linux/vmalloc.h>

#include "model.h"

#define OLD_QUEUES	(LINUX_VERSION_CODE < KERNEL_VERSION(5, 14, 0)) /* no blk_mq_alloc_disk() */
#define DISCARD_SECTORS (64 << 20 >> SECTOR_SHIFT) /* so many pages are freed at once */
#define NEW_LIMITS	(LINUX_VERSION_CODE >= KERNEL_VERSION(6, 9, 0)) /* limits at allocation */

struct ssd {
	struct list_head list;
	char name[DISK_NAME_LEN], serial[32];
	u64 bytes, queues, depth, max_kib;
	struct page **pages;
	spinlock_t lock; /* guards model */
	struct ssd_model model;
	struct blk_mq_tag_set tags;
	struct gendisk *disk;
};

struct ssd_command {
	struct hrtimer timer;
	blk_status_t status;
	bool to_move; /* a read that is not yet on the link */
};

static char *disks;
module_param(disks, charp, 0444);
MODULE_PARM_DESC(disks, "NAME=VALUE words of each disk, disks separated by ;");

static LIST_HEAD(all);
static int major;

/* ---- data ------------------------------------------------------------------- */

static void free_late(struct rcu_head *head)
{
	__free_page(container_of(head, struct page, rcu_head));
}

/* Once the last request that found them has left them. */
static void free_pages_of(struct ssd *d, u64 first, u64 end)
{
	for (; first < end; first++) {
		struct page *page = xchg(&d->pages[first], NULL);

		if (page)
			call_rcu(&page->rcu_head, free_late);
	}
}

/* A page to be written; NULL: there is no memory. Two requests may need the same one at once. */
static struct page *page_for(struct ssd *d, u64 index)
{
	struct page *page = READ_ONCE(d->pages[index]), *other;

	if (page)
		return page;
	page = alloc_page(GFP_ATOMIC | __GFP_ZERO);
	if (!page)
		return NULL;
	other = cmpxchg(&d->pages[index], NULL, page);
	if (!other)
		return page;
	__free_page(page);
	return other;
}

static blk_status_t move_data(struct ssd *d, struct request *rq)
{
	u64 at = (u64)blk_rq_pos(rq) << SECTOR_SHIFT;
	bool write = req_op(rq) == REQ_OP_WRITE;
	struct req_iterator iterator;
	struct bio_vec part;

	rq_for_each_segment(part, rq, iterator)
	{
		unsigned done = 0;

		while (done < part.bv_len) {
			u64 index = at >> PAGE_SHIFT;
			unsigned within = at & ~PAGE_MASK;
			unsigned n = min_t(unsigned, part.bv_len - done, PAGE_SIZE - within);
			struct page *page = write ? page_for(d, index) : READ_ONCE(d->pages[index]);
			char *theirs, *ours;

			if (write && !page)
				return BLK_STS_IOERR; /* the guest has too little memory */
			theirs = kmap_atomic(part.bv_page);
			ours = page ? kmap_atomic(page) : NULL;
			if (write)
				memcpy(ours + within, theirs + part.bv_offset + done, n);
			else if (page)
				memcpy(theirs + part.bv_offset + done, ours + within, n);
			else
				memset(theirs + part.bv_offset + done, 0, n);
			if (ours)
				kunmap_atomic(ours);
			kunmap_atomic(theirs);
			done += n;
			at += n;
		}
	}
	return BLK_STS_OK;
}

/* Whole pages go; what a discard covers of others keeps its data, as the standard allows. */
static void discard(struct ssd *d, struct request *rq)
{
	u64 start = (u64)blk_rq_pos(rq) << SECTOR_SHIFT;

	free_pages_of(
		d, DIV_ROUND_UP_ULL(start, PAGE_SIZE), (start + blk_rq_bytes(rq)) >> PAGE_SHIFT);
}

/* ---- requests ----------------------------------------------------------------- */

static enum hrtimer_restart on_time(struct hrtimer *timer)
{
	struct ssd_command *command = container_of(timer, struct ssd_command, timer);
	struct request *rq = blk_mq_rq_from_pdu(command);
	struct ssd *d = rq->q->queuedata;
	unsigned long flags;
	u64 end;

	if (!command->to_move) {
		blk_mq_complete_request(rq);
		return HRTIMER_NORESTART;
	}
	command->to_move = false;
	spin_lock_irqsave(&d->lock, flags);
	end = ssd_move(&d->model, blk_rq_bytes(rq), ktime_to_ns(hrtimer_get_expires(timer)));
	spin_unlock_irqrestore(&d->lock, flags);
	hrtimer_set_expires(timer, ns_to_ktime(end));
	return HRTIMER_RESTART;
}

static void on_complete(struct request *rq)
{
	struct ssd_command *command = blk_mq_rq_to_pdu(rq);

	blk_mq_end_request(rq, command->status);
}

static blk_status_t queue_request(struct blk_mq_hw_ctx *queue, const struct blk_mq_queue_data *data)
{
	struct request *rq = data->rq;
	struct ssd *d = queue->queue->queuedata;
	struct ssd_command *command = blk_mq_rq_to_pdu(rq);
	u64 now = ktime_get_ns(), end;
	enum ssd_operation operation;
	unsigned long flags;

	switch (req_op(rq)) {
	case REQ_OP_READ:
		operation = SSD_READ;
		break;
	case REQ_OP_WRITE:
		operation = SSD_WRITE;
		break;
	case REQ_OP_FLUSH:
		operation = SSD_FLUSH;
		break;
	case REQ_OP_DISCARD:
		operation = SSD_DISCARD;
		break;
	default:
		return BLK_STS_NOTSUPP;
	}
	blk_mq_start_request(rq);
	/* The time that copying takes is the model's transfer: the arrival was before it. */
	spin_lock_irqsave(&d->lock, flags);
	end = ssd_arrive(
		&d->model, operation, (u64)blk_rq_pos(rq) << SECTOR_SHIFT, blk_rq_bytes(rq), now);
	spin_unlock_irqrestore(&d->lock, flags);
	command->status = BLK_STS_OK;
	command->to_move = operation == SSD_READ;
	rcu_read_lock();
	if (operation == SSD_DISCARD)
		discard(d, rq);
	else if (operation != SSD_FLUSH)
		command->status = move_data(d, rq);
	rcu_read_unlock();
	hrtimer_start(&command->timer, ns_to_ktime(end), HRTIMER_MODE_ABS);
	return BLK_STS_OK;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
typedef int node_number;
#else
typedef unsigned node_number;
#endif

static int init_request(
	struct blk_mq_tag_set *set, struct request *rq, unsigned queue, node_number node)
{
	struct ssd_command *command = blk_mq_rq_to_pdu(rq);

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 15, 0)
	hrtimer_setup(&command->timer, on_time, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
#else
	hrtimer_init(&command->timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
	command->timer.function = on_time;
#endif
	return 0;
}

static const struct blk_mq_ops queue_operations = {
	.queue_rq = queue_request,
	.complete = on_complete,
	.init_request = init_request,
};

/* ---- disks -------------------------------------------------------------------- */

static const struct block_device_operations operations = {.owner = THIS_MODULE};

static ssize_t serial_show(struct device *dev, struct device_attribute *attribute, char *text)
{
	struct ssd *d = dev_to_disk(dev)->private_data;

	return sprintf(text, "%s\n", d->serial);
}
static DEVICE_ATTR_RO(serial);

/* What the disk writes in the long run. */
static ssize_t write_bytes_per_s_show(
	struct device *dev, struct device_attribute *attribute, char *text)
{
	struct ssd *d = dev_to_disk(dev)->private_data;

	return sprintf(
		text, "%llu\n", div64_u64(1000000000000ULL, max_t(u64, d->model.p.drain_ps, 1)));
}
static DEVICE_ATTR_RO(write_bytes_per_s);

static struct attribute *ssd_attrs[] = {
	&dev_attr_serial.attr, &dev_attr_write_bytes_per_s.attr, NULL};
ATTRIBUTE_GROUPS(ssd);

/* Words NAME=VALUE of one disk. */
static int parse(struct ssd *d, char *text)
{
	struct ssd_parameters *p = &d->model.p;
	const struct {
		const char *name;
		u64 *value;
	} numbers[] = {
		{"bytes", &d->bytes},
		{"queues", &d->queues},
		{"depth", &d->depth},
		{"max_kib", &d->max_kib},
		{"channels", &p->channels},
		{"command_ns", &p->command_ns},
		{"read_ns", &p->read_ns},
		{"read_ps", &p->read_ps},
		{"stream_ns", &p->stream_ns},
		{"stream_ps", &p->stream_ps},
		{"read_link_ps", &p->read_link_ps},
		{"write_link_ps", &p->write_link_ps},
		{"duplex", &p->duplex},
		{"write_ns", &p->write_ns},
		{"buffer_bytes", &p->buffer_bytes},
		{"drain_ps", &p->drain_ps},
		{"flush_ns", &p->flush_ns},
		{"discard_ns", &p->discard_ns},
	};
	char *word;

	while ((word = strsep(&text, " "))) {
		char *value = word;
		unsigned i;

		if (!*word)
			continue;
		word = strsep(&value, "=");
		if (!value)
			goto unknown;
		if (!strcmp(word, "name")) {
			strscpy(d->name, value, sizeof d->name);
			continue;
		}
		if (!strcmp(word, "serial")) {
			strscpy(d->serial, value, sizeof d->serial);
			continue;
		}
		for (i = 0; i < ARRAY_SIZE(numbers); i++)
			if (!strcmp(word, numbers[i].name))
				break;
		if (i == ARRAY_SIZE(numbers) || kstrtou64(value, 10, numbers[i].value))
			goto unknown;
	}
	if (!d->name[0] || !d->bytes || d->bytes % PAGE_SIZE || !d->queues || !d->depth ||
		d->max_kib < 4 || !p->channels || p->channels > SSD_CHANNELS) {
		pr_err("userblk_ssd: %s: name, bytes, queues, depth, max_kib and channels (at most "
		       "%d) are needed\n",
			d->name, SSD_CHANNELS);
		return -EINVAL;
	}
	return 0;
unknown:
	pr_err("userblk_ssd: %s: no such parameter, or no number\n", word);
	return -EINVAL;
}

static void remove(struct ssd *d)
{
	if (d->disk) {
		del_gendisk(d->disk);
#if OLD_QUEUES
		blk_cleanup_queue(d->disk->queue);
#elif LINUX_VERSION_CODE < KERNEL_VERSION(6, 0, 0)
		blk_cleanup_disk(d->disk);
#endif
#if OLD_QUEUES || LINUX_VERSION_CODE >= KERNEL_VERSION(6, 0, 0)
		put_disk(d->disk);
#endif
	}
	if (d->tags.ops)
		blk_mq_free_tag_set(&d->tags);
	if (d->pages) {
		free_pages_of(d, 0, d->bytes >> PAGE_SHIFT);
		vfree(d->pages);
	}
	kfree(d);
}

static int make_disk(struct ssd *d)
{
	struct gendisk *disk;
	int minor = list_empty(&all)
			    ? 0
			    : list_last_entry(&all, struct ssd, list)->disk->first_minor + 16;
#if NEW_LIMITS
	struct queue_limits limits = {
		.logical_block_size = 512,
		.physical_block_size = 4096,
		.max_hw_sectors = d->max_kib * 2,
		.max_segments = 256,
		.max_hw_discard_sectors = DISCARD_SECTORS,
		.discard_granularity = PAGE_SIZE,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
		.features = BLK_FEAT_WRITE_CACHE,
#endif
	};

	disk = blk_mq_alloc_disk(&d->tags, &limits, d);
	if (IS_ERR(disk))
		return PTR_ERR(disk);
#else
	struct request_queue *queue;
#if OLD_QUEUES
	queue = blk_mq_init_queue(&d->tags);
	if (IS_ERR(queue))
		return PTR_ERR(queue);
	queue->queuedata = d;
	disk = alloc_disk(16);
	if (!disk) {
		blk_cleanup_queue(queue);
		return -ENOMEM;
	}
	disk->queue = queue;
#else
	disk = blk_mq_alloc_disk(&d->tags, d);
	if (IS_ERR(disk))
		return PTR_ERR(disk);
	queue = disk->queue;
#endif
	blk_queue_logical_block_size(queue, 512);
	blk_queue_physical_block_size(queue, 4096);
	blk_queue_max_hw_sectors(queue, d->max_kib * 2);
	blk_queue_max_segments(queue, 256);
	blk_queue_max_discard_sectors(queue, DISCARD_SECTORS);
	queue->limits.discard_granularity = PAGE_SIZE;
	blk_queue_flag_set(QUEUE_FLAG_NONROT, queue);
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 19, 0)
	blk_queue_flag_set(QUEUE_FLAG_DISCARD, queue);
#endif
#endif
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 11, 0)
	blk_queue_write_cache(disk->queue, true, false);
#endif
	disk->major = major;
	disk->first_minor = minor;
	disk->minors = 16;
	disk->fops = &operations;
	disk->private_data = d;
	strscpy(disk->disk_name, d->name, sizeof disk->disk_name);
	set_capacity(disk, d->bytes >> SECTOR_SHIFT);
	d->disk = disk;
#if OLD_QUEUES
	device_add_disk(NULL, disk, ssd_groups);
	return 0;
#else
	{
		int r = device_add_disk(NULL, disk, ssd_groups);

		if (r) {
			put_disk(disk);
			d->disk = NULL;
		}
		return r;
	}
#endif
}

static int add(char *text)
{
	struct ssd *d = kzalloc(sizeof *d, GFP_KERNEL);
	int r;

	if (!d)
		return -ENOMEM;
	spin_lock_init(&d->lock);
	r = parse(d, text);
	if (r == 0) {
		d->pages = vzalloc((d->bytes >> PAGE_SHIFT) * sizeof *d->pages);
		r = d->pages ? 0 : -ENOMEM;
	}
	if (r == 0) {
		d->tags.ops = &queue_operations;
		d->tags.nr_hw_queues = d->queues;
		d->tags.queue_depth = d->depth;
		d->tags.numa_node = NUMA_NO_NODE;
		d->tags.cmd_size = sizeof(struct ssd_command);
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
		d->tags.flags = BLK_MQ_F_SHOULD_MERGE; /* later kernels always do */
#endif
		r = blk_mq_alloc_tag_set(&d->tags);
		if (r)
			d->tags.ops = NULL;
	}
	if (r == 0)
		r = make_disk(d);
	if (r == 0)
		list_add_tail(&d->list, &all);
	else
		remove(d);
	return r;
}

static void end(void)
{
	struct ssd *d, *next;

	list_for_each_entry_safe(d, next, &all, list) remove(d);
	rcu_barrier();
	unregister_blkdev(major, "userblk_ssd");
}

static int __init begin(void)
{
	char *copy = kstrdup(disks ? disks : "", GFP_KERNEL), *rest = copy, *text;
	int r = 0;

	if (!copy)
		return -ENOMEM;
	major = register_blkdev(0, "userblk_ssd");
	if (major < 0) {
		kfree(copy);
		return major;
	}
	while (r == 0 && (text = strsep(&rest, ";")))
		if (*text)
			r = add(text);
	kfree(copy);
	if (r)
		end();
	return r;
}

module_init(begin);
module_exit(end);
MODULE_DESCRIPTION("SSDs modelled in memory, for userblk's lab");
MODULE_LICENSE("Dual BSD/GPL");
