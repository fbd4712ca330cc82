/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The adapter between tcmu-runner (handler API of 1.5.4, or of 1.5.2 without
 * WRITE SAME) and backends/. It translates and knows no device. In the order in
 * which the runner calls it.
 * "The runner" below is tcmu-runner 1.5.4, whose source is the reason for much
 * of what follows.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "programs/io_flusher.h"
#include "tcmu-handlers/commands.h"
#include "tcmu-handlers/ending.h"

/*
 * How an experiment changes the number of threads. A device that answers later needs none: see
 * commands.c.
 */
#define MAX_THREADS	 256
#define THREADS_VARIABLE "USERBLK_TCMU_THREADS"
#define THREADS_KEY	 "threads"

/* The runner multiplies the largest transfer by the block size in 32 bits. */
#define MAX_TRANSFER (32u << 20)

/*
 * What configfs says of the backstore, as the library's ways to its attributes and
 * actions find them: whether the kernel has made it; how many LUNs of any fabric it is
 * exported by; whether it has a write cache; and a text that means nothing to the kernel,
 * which keeps backend_session() as long as the backstore and its initiators are there.
 * Not to be used in reconfig: beside an rmdir of the backstore it would wait for the
 * rmdir, which waits for the writer of the attribute, who waits for reconfig's answer.
 */
#define MADE	    "../enable"
#define EXPORTS	    "../statistics/scsi_dev/ports"
#define WRITE_CACHE "emulate_write_cache"
#define SESSION	    "../alias"

/* ---- configuration ---------------------------------------------------------- */

/*
 * Removes ";tcmur_cmd_time_out=N", which the runner takes out before open, but not for
 * check_config. It takes the ';' behind it, too, and so joins what stands before and behind.
 * 0 or -EINVAL.
 */
static int remove_runner_option(char *text, struct params_error *error)
{
	static const char option[] = ";tcmur_cmd_time_out=";
	char *found = strstr(text, option), *end;

	if (!found)
		return 0;
	end = strchrnul(found + 1, ';');
	if (*end) {
		*end = '\0';
		params_error_set(error,
			"%s: not the last; tcmu-runner takes it at the end of the cfgstring only",
			found + 1);
		return -EINVAL;
	}
	*found = '\0';
	return 0;
}

/* The part after "subtype/". NULL: another subtype. */
static const char *part_after(const char *subtype, const char *cfgstring)
{
	size_t length = strlen(subtype);

	if (strncmp(cfgstring, subtype, length) || cfgstring[length] != '/')
		return NULL;
	return cfgstring + length + 1;
}

/* The item KEY=VALUE of text and, in *end, where it ends. NULL: text has none. */
static char *find_item(char *text, const char *key, char **end)
{
	size_t length = strlen(key);

	for (char *item = text; *item; item = **end ? *end + 1 : *end) {
		*end = strchrnul(item, ';');
		if (strncmp(item, key, length) == 0 && item[length] == '=')
			return item;
	}
	return NULL;
}

/* A number of threads, or -1. */
static int parse_threads(const char *text, long min)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(text, &end, 10);
	return errno || end == text || *end || n < min || n > MAX_THREADS ? -1 : (int)n;
}

/* Takes the number of threads of ours out of text. 0: none; -1: error says why. */
static int take_threads(char *text, bool ours, struct params_error *error)
{
	char *end, *item = find_item(text, THREADS_KEY, &end);
	const char *rest, *value;
	int n = -1;

	if (!item)
		return ours ? DEFAULT_THREADS : 0;
	rest = *end ? end + 1 : end;
	*end = '\0';
	value = item + strlen(THREADS_KEY "=");
	if (!ours)
		params_error_set(error,
			THREADS_KEY "=%s: the threads of this disk are tcmu-runner's; begin the "
				    "cfgstring with %s/ for threads of its own",
			value, handler_identity.threads_subtype);
	else if ((n = parse_threads(value, 1)) < 0)
		params_error_set(error, THREADS_KEY "=%s: not a number of threads; use 1 to %d",
			value, MAX_THREADS);
	memmove(item, rest, strlen(rest) + 1);
	item = n > 0 ? find_item(text, THREADS_KEY, &end) : NULL;
	if (item) {
		*end = '\0';
		params_error_set(error, "%s: given twice; leave one out", item);
		n = -1;
	}
	return n;
}

/* Parses a whole cfgstring. threads: of ours, 0: none. NULL: error says why. */
static struct params *parse(const char *cfgstring, int *threads, struct params_error *error)
{
	const char *plain = part_after(handler_identity.subtype, cfgstring);
	const char *own = plain ? plain : part_after(handler_identity.threads_subtype, cfgstring);
	struct params *params;
	char *text;
	int r;

	if (!own) {
		params_error_set(error, "cfgstring=%s: not for this handler; begin it with %s/",
			cfgstring, handler_identity.subtype);
		return NULL;
	}
	text = strdup(own);
	if (!text) {
		params_error_set(error, "out of memory");
		return NULL;
	}
	*threads = -1;
	if (remove_runner_option(text, error) == 0)
		*threads = take_threads(text, !plain, error);
	if (*threads < 0) {
		free(text);
		return NULL;
	}
	params = params_new(handler_identity.ops);
	r = params_set_string(params, text, error);
	free(text);
	if (r == 0)
		r = params_complete(params, true, error);
	if (r < 0) {
		params_free(params);
		return NULL;
	}
	return params;
}

/*
 * Opens what a cfgstring describes: the one way in for check_config and open, so
 * that both say the same. size: bytes that LIO wants, 0: not known yet. threads:
 * of ours that it asks for. All errors go to host. 0 or negative errno.
 */
static int open_device(const char *cfgstring, uint64_t size, const struct backend_host *host,
	struct params **params, int *threads, struct backend **backend)
{
	struct params_error error;
	int r;

	*params = parse(cfgstring, threads, &error);
	if (!*params) {
		host->error(host->opaque, error.text);
		return -EINVAL;
	}
	*backend = NULL;
	/* With size= the open may create the file: not before LIO's size is known. */
	if (size == 0 &&
		(params_given(*params, "size") || backend_kind(handler_identity.ops).has_sessions))
		return 0;
	r = backend_open(*params, size, host, backend);
	if (r < 0) {
		backend_error(host, "cannot open the %s device: %s",
			backend_kind(handler_identity.ops).name, strerror(-r));
		params_free(*params);
		*params = NULL;
	}
	return r;
}

static void close_device(struct params *params, struct backend *backend)
{
	backend_close(backend);
	params_free(params);
}

/* Keeps the first line: the reason; what follows is its consequence. */
static void keep_first(void *opaque, const char *message)
{
	char **reason = opaque;

	if (!*reason)
		*reason = strdup(message);
}

/* Called for targetcli, and by the runner itself before each open. */
static bool adapter_check_config(const char *cfgstring, char **reason)
{
	const struct backend_host host = {.opaque = reason, .error = keep_first};
	struct params *params;
	struct backend *backend;
	int threads;

	*reason = NULL;
	if (open_device(cfgstring, 0, &host, &params, &threads, &backend) < 0)
		return false;
	close_device(params, backend);
	return true;
}

/* ---- open and close --------------------------------------------------------- */

static void log_error(void *opaque, const char *message)
{
	tcmu_dev_err((struct tcmu_device *)opaque, "%s\n", message);
}

static void log_debug(void *opaque, const char *message)
{
	tcmu_dev_dbg((struct tcmu_device *)opaque, "%s\n", message);
}

/* The kernel's disk has the size in configfs; a user who changes the device's changes that too. */
static void log_resized(void *opaque, uint64_t size)
{
	tcmu_dev_info((struct tcmu_device *)opaque,
		"the device now has %" PRIu64
		" bytes; to resize the disk, write that number to its "
		"attrib/dev_size\n",
		size);
}

/* Tells the runner what to announce to initiators. */
static void announce(struct tcmu_device *dev, const struct backend_info *info, bool write_cache)
{
	uint32_t block_size = tcmu_dev_get_block_size(dev);
	uint32_t max_blocks = MAX_TRANSFER / block_size;
	uint32_t granularity = info->trim_granularity / block_size;

	if (info->block_size > block_size)
		tcmu_dev_warn(dev,
			"the device has blocks of %" PRIu32 " bytes and the LUN of %" PRIu32
			": smaller requests cost a read and a write; "
			"create it with control=hw_block_size=%" PRIu32 "\n",
			info->block_size, block_size, info->block_size);
	if (tcmu_dev_get_max_xfer_len(dev) > max_blocks)
		tcmu_dev_set_max_xfer_len(dev, max_blocks);
	tcmu_dev_set_opt_xcopy_rw_len(dev, tcmu_dev_get_max_xfer_len(dev));

	/* Without it no initiator would send SYNCHRONIZE CACHE. */
	tcmu_dev_set_write_cache_enabled(dev, write_cache);
	tcmu_dev_set_solid_state_media(dev, !info->rotational);

	tcmu_dev_set_unmap_enabled(dev, info->can_trim);
	tcmu_dev_set_opt_unmap_gran(dev, granularity ? granularity : 1, false);
	tcmu_dev_set_unmap_gran_align(dev, UNMAP_ALIGNMENT);
	tcmu_dev_set_max_unmap_len(dev, MAX_UNMAP);
}

/*
 * Have initiators the disk that is about to be opened? LIO exports none before
 * its handler has opened it, so that they had it from a daemon that ended. 0 or
 * negative errno, which is logged: that is unknown.
 */
static int look_for_clients(struct tcmu_device *dev, struct backend_host *host)
{
	int exports = tcmu_cfgfs_dev_get_attr_int(dev, EXPORTS);
	int session = 0;

	if (exports > 0 && backend_kind(handler_identity.ops).has_sessions)
		session = tcmu_cfgfs_dev_get_attr_int(dev, SESSION);
	if (exports < 0) {
		tcmu_dev_err(dev, "cannot determine whether the disk is exported: %s\n",
			strerror(-exports));
		return exports;
	}
	if (exports > 0)
		host->previous_session = session > 0 ? (uint32_t)session : BACKEND_SESSION_UNKNOWN;
	return 0;
}

/* For the next daemon. The runner itself looks into configfs right before open() and after it. */
static void keep_session(struct tcmu_device *dev, const struct backend *b)
{
	int r = tcmu_cfgfs_dev_exec_action(dev, SESSION, backend_session(b));

	if (r < 0)
		tcmu_dev_warn(dev,
			"cannot record who serves the disk: %s; a restarted daemon will refuse "
			"it\n",
			strerror(-r));
}

/*
 * Initiators that were told of no write cache do not flush, nor do they ask the next daemon again.
 * The attribute, which the kernel keeps for it, says no until somebody says yes: we do while the
 * backstore is being made. Later the kernel would ask us, and wait.
 */
static bool has_write_cache(struct tcmu_device *dev)
{
	int made = tcmu_cfgfs_dev_get_attr_int(dev, MADE), r;

	if (made) /* or that is not known: then there is none */
		return made > 0 && tcmu_cfgfs_dev_get_attr_int(dev, WRITE_CACHE) > 0;
	r = tcmu_cfgfs_dev_exec_action(dev, "../attrib/" WRITE_CACHE, 1);
	if (r < 0)
		tcmu_dev_warn(dev,
			"cannot record that there is a write cache: %s; after a restart of the "
			"daemon there will be none\n",
			strerror(-r));
	return true;
}

/* NULL: it is unknown, as with version 1.5.2. */
static struct tcmu_mailbox *ring_of(struct tcmu_device *dev)
{
	void *ring = NULL;

#ifdef HAVE_MEMORY_INFO
	free(tcmu_dev_get_memory_info(dev, &ring, NULL, NULL));
#else
	(void)dev;
#endif
	return ring;
}

static int adapter_open(struct tcmu_device *dev, bool reopen)
{
	struct backend_host host = {
		.opaque = dev,
		.error = log_error,
		.debug = log_debug,
		.resized = log_resized,
	};
	uint64_t size = tcmu_lba_to_byte(dev, tcmu_dev_get_num_lbas(dev));
	struct backend_info info;
	struct device *d;
	int r, threads;

	(void)reopen;
	if (size == 0) {
		log_error(dev, "size=0: nothing to serve; create the device with a larger size");
		return -EINVAL;
	}
	r = look_for_clients(dev, &host);
	if (r < 0)
		return r;
	d = calloc(1, sizeof *d);
	if (!d) {
		log_error(dev, "out of memory");
		return -ENOMEM;
	}
	r = open_device(
		tcmu_dev_get_cfgstring(dev), size, &host, &d->params, &threads, &d->backend);
	if (r < 0) {
		free(d);
		return r;
	}
	r = backend_info(d->backend, &info);
	if (r < 0) {
		backend_error(&host, "cannot examine the device: %s", strerror(-r));
		close_device(d->params, d->backend);
		free(d);
		return r;
	}
	if (threads) {
		d->workers = workers_new((unsigned)threads);
		if (!d->workers) {
			backend_error(&host, "cannot start %d threads", threads);
			close_device(d->params, d->backend);
			free(d);
			return -ENOMEM;
		}
	}
	atomic_store(&d->write_cache, has_write_cache(dev));
	announce(dev, &info, d->write_cache);
	if (backend_kind(handler_identity.ops).has_sessions)
		keep_session(dev, d->backend);
	backend_start(d->backend);
	d->ring = ring_of(dev);
	if (info.can_stall)
		d->ending = ending_watch(dev, d->backend);
	tcmur_dev_set_private(dev, d);
	return 0;
}

/* The reader of a result must know of bounced requests. */
static void log_counters(struct tcmu_device *dev, struct backend *backend)
{
	char line[2048];

	if (backend_counters_text(backend, line, sizeof line))
		tcmu_dev_info(dev, "counters:%s\n", line);
}

static void adapter_close(struct tcmu_device *dev)
{
	struct device *d = tcmur_dev_get_private(dev);

	/* The last command is complete, but its thread may not have left the runner's code yet. */
	workers_free(d->workers);
	workers_free(d->same);
	tcmur_dev_set_private(dev, NULL);
	log_counters(dev, d->backend);
	ending_begin(d->ending);
	close_device(d->params, d->backend);
	ending_over(d->ending);
	free(d);
}

/* ---- reconfiguration --------------------------------------------------------- */

static int set_write_cache(struct tcmu_device *dev, struct device *d, bool on)
{
	bool before = atomic_exchange(&d->write_cache, on);
	/* After that: what was acknowledged without being durable becomes so now. */
	int r = on ? 0 : backend_flush(d->backend);

	/* The attribute, which the next daemon reads, does not change either then. */
	if (r < 0)
		atomic_store(&d->write_cache, before);
	else
		tcmu_dev_set_write_cache_enabled(dev, on);
	return r;
}

/* From the runner's main thread while requests are in flight. 0 or negative errno. */
static int adapter_reconfig(struct tcmu_device *dev, struct tcmulib_cfg_info *cfg)
{
	struct device *d = tcmur_dev_get_private(dev);

	switch (cfg->type) {
	case TCMULIB_CFG_DEV_SIZE:
		return backend_resize(d->backend, cfg->data.dev_size);
	case TCMULIB_CFG_WRITE_CACHE:
		return set_write_cache(dev, d, cfg->data.write_cache);
	case TCMULIB_CFG_DEV_CFGSTR:
		tcmu_dev_err(dev,
			"dev_config=%s: cannot be changed while the device exists; "
			"delete it and create it again\n",
			cfg->data.dev_cfgstring);
		return -EOPNOTSUPP;
	}
	return -EOPNOTSUPP;
}

/* ---- registration --------------------------------------------------------------- */

struct tcmur_handler tcmu_handler = {
	.check_config = adapter_check_config,
	.open = adapter_open,
	.close = adapter_close,
	.reconfig = adapter_reconfig,
	.handle_cmd = command_look,
	.read = command_read,
	.write = command_write,
	.flush = command_flush,
	.unmap = command_unmap,
#ifdef HAVE_WRITESAME
	.writesame = command_writesame,
#endif
};

/* The number of threads, -1: the environment's value is wrong, which is logged. */
static int threads_wanted(void)
{
	const char *text = getenv(THREADS_VARIABLE);
	int n;

	if (!text)
		return backend_kind(handler_identity.ops).answers_later ? 0 : DEFAULT_THREADS;
	n = parse_threads(text, 0);
	if (n < 0)
		tcmu_err("%s=%s: not a number of threads; use 0 to %d\n", THREADS_VARIABLE, text,
			MAX_THREADS);
	return n;
}

/* What targetcli shows about the cfgstring. NULL: out of memory. */
static char *describe(void)
{
	const struct backend_kind kind = backend_kind(handler_identity.ops);
	char *help = params_help(handler_identity.ops);
	char *text;

	if (asprintf(&text,
		    "%s\n"
		    "KEY=VALUE pairs with ';' between them; the first may be the value of %s "
		    "alone.\n"
		    "The size is that of the backstore.\n%s"
		    "    %-24s Threads of %s, from 1 to %d (default %d).\n",
		    kind.summary, kind.main_param, help, THREADS_KEY "=<N>",
		    handler_identity.threads_subtype, MAX_THREADS, DEFAULT_THREADS) < 0)
		text = NULL;
	free(help);
	return text;
}

__attribute__((visibility("default"))) int handler_init(void)
{
	static char *description; /* the runner keeps these pointers forever */
	static struct tcmur_handler with_threads;
	int r;

	tcmu_handler.nr_threads = threads_wanted();
	if (tcmu_handler.nr_threads < 0)
		return -1;
	/* The runner makes the threads of its disks later, which may be disks of this machine. */
	become_io_flusher();
	tcmu_handler.name = handler_identity.name;
	tcmu_handler.subtype = handler_identity.subtype;
	description = describe();
	tcmu_handler.cfg_desc =
		description ? description : backend_kind(handler_identity.ops).summary;
	r = tcmur_register_handler(&tcmu_handler);
	if (r)
		return r;
	with_threads = tcmu_handler;
	with_threads.nr_threads = 0; /* of the runner's */
	with_threads.subtype = handler_identity.threads_subtype;
	return tcmur_register_handler(&with_threads);
}
