/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/unit/fake_tcmu_runner.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <libtcmu.h>
#include <tcmur_device.h>

#include "tests/unit/support.h"

struct tcmur_handler *registered, *registered_with_threads;
char logged[4096];
atomic_int completions, completed_status;
void (*on_completion)(struct tcmu_device *dev);

int tcmur_register_handler(struct tcmur_handler *handler)
{
	if (strncmp(handler->subtype, "userblk_threads_", 16) == 0)
		registered_with_threads = handler;
	else
		registered = handler;
	return 0;
}

void tcmur_cmd_complete(struct tcmu_device *dev, void *data, int rc)
{
	(void)data;
	completed_status = rc;
	completions++;
	if (on_completion)
		on_completion(dev);
}

void tcmur_dev_set_private(struct tcmu_device *dev, void *own)
{
	dev->own = own;
}

void *tcmur_dev_get_private(struct tcmu_device *dev)
{
	return dev->own;
}

void *tcmu_dev_get_private(struct tcmu_device *dev)
{
	return &dev->runners;
}

int tcmu_dev_get_fd(struct tcmu_device *dev)
{
	return dev->uio;
}

char *tcmu_dev_get_cfgstring(struct tcmu_device *dev)
{
	return dev->cfgstring;
}

uint64_t tcmu_dev_get_num_lbas(struct tcmu_device *dev)
{
	return dev->blocks;
}

uint32_t tcmu_dev_get_block_size(struct tcmu_device *dev)
{
	return dev->block_size;
}

uint64_t tcmu_lba_to_byte(struct tcmu_device *dev, uint64_t lba)
{
	return lba * dev->block_size;
}

int tcmu_cfgfs_dev_get_attr_int(struct tcmu_device *dev, const char *name)
{
	assert_false(dev->reconfigured);
	if (strcmp(name, "../alias") == 0)
		return dev->session;
	if (strcmp(name, "../enable") == 0)
		return dev->enabled;
	if (strcmp(name, "emulate_write_cache") == 0)
		return dev->cache;
	assert_string_equal(name, "../statistics/scsi_dev/ports");
	return dev->exports;
}

int tcmu_cfgfs_dev_exec_action(struct tcmu_device *dev, const char *name, uint32_t val)
{
	bool is_cache = strcmp(name, "../attrib/emulate_write_cache") == 0;
	int *attribute = is_cache ? &dev->cache : &dev->session;

	assert_false(dev->reconfigured);
	if (is_cache)
		assert_false(dev->enabled); /* it would ask the handler, who is busy */
	else
		assert_string_equal(name, "../alias");
	if (*attribute < 0)
		return *attribute;
	*attribute = (int)val;
	return 0;
}

uint32_t tcmu_dev_get_max_xfer_len(struct tcmu_device *dev)
{
	return dev->max_transfer;
}

void tcmu_dev_set_max_xfer_len(struct tcmu_device *dev, uint32_t len)
{
	dev->max_transfer = len;
}

void tcmu_dev_set_opt_xcopy_rw_len(struct tcmu_device *dev, uint32_t len)
{
	dev->xcopy = len;
}

void tcmu_dev_set_opt_unmap_gran(struct tcmu_device *dev, uint32_t len, bool split)
{
	dev->granularity = len;
	dev->split = split;
}

void tcmu_dev_set_unmap_gran_align(struct tcmu_device *dev, uint32_t len)
{
	dev->alignment = len;
}

void tcmu_dev_set_max_unmap_len(struct tcmu_device *dev, uint32_t len)
{
	dev->max_unmap = len;
}

/* There is no ring. */
char *tcmu_dev_get_memory_info(struct tcmu_device *dev, void **base, size_t *len, off_t *offset)
{
	(void)dev, (void)base, (void)len, (void)offset;
	return NULL;
}

void tcmu_dev_set_unmap_enabled(struct tcmu_device *dev, bool enabled)
{
	dev->unmap = enabled;
}

void tcmu_dev_set_write_cache_enabled(struct tcmu_device *dev, bool enabled)
{
	dev->write_cache = enabled;
}

void tcmu_dev_set_solid_state_media(struct tcmu_device *dev, bool solid_state)
{
	dev->solid_state = solid_state;
}

static void append_log(const char *format, va_list args) __attribute__((format(printf, 1, 0)));

static void append_log(const char *format, va_list args)
{
	size_t used = strlen(logged);

	vsnprintf(logged + used, sizeof logged - used, format, args);
}

#define LOGGER(name)                                                                               \
	void name(struct tcmu_device *dev, const char *function, int line, const char *fmt, ...)   \
	{                                                                                          \
		va_list args;                                                                      \
                                                                                                   \
		(void)dev, (void)function, (void)line;                                             \
		va_start(args, fmt);                                                               \
		append_log(fmt, args);                                                             \
		va_end(args);                                                                      \
	}

LOGGER(tcmu_err_message)
LOGGER(tcmu_warn_message)
LOGGER(tcmu_info_message)
LOGGER(tcmu_dbg_message)
