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
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <scsi/scsi.h>

#include <tcmu-runner.h>
#include <libtcmu.h>
#include <tcmur_device.h>

#include "tcmu-handlers/tcmu_adapter.h"

/*
 * Worker threads of each device, and how an experiment changes that. A device
 * that answers later needs none: see submit().
 */
#define DEFAULT_THREADS	 16
#define MAX_THREADS	 256
#define THREADS_VARIABLE "USERBLK_TCMU_THREADS"

/* The runner multiplies the largest transfer by the block size in 32 bits. */
#define MAX_TRANSFER (32u << 20)

/* Bits of CDB byte 1. */
#define CDB_UNMAP   0x08 /* WRITE SAME */
#define CDB_PROTECT 0xe0 /* READ, WRITE: protection information */
#define CDB_DPO	    0x10 /* the same, WRITE AND VERIFY */
#define CDB_FUA	    0x08 /* READ, WRITE */

/*
 * The runner turns WRITE SAME with UNMAP into unmap calls if address and length
 * are multiples of this (0, its default, ends the daemon by SIGFPE), and then
 * loses their errors, although it announces that unmapped blocks read as
 * zeroes. So the alignment is one that no length has; see handle_cmd(). The
 * field is one of 31 bits, so that initiators see 0, which is true.
 */
#define UNMAP_ALIGNMENT (1u << 31)

/*
 * Of the backstore in configfs, as the library's ways to its attributes and
 * actions find them: how many LUNs of any fabric it is exported by; and a text
 * that means nothing to the kernel, which keeps backend_session() as long as
 * the backstore and its initiators are there.
 */
#define EXPORTS "../statistics/scsi_dev/ports"
#define SESSION "../alias"

struct device {
	struct params *params;
	struct backend *backend;
	_Atomic bool write_cache; /* off: a write is durable when it is acknowledged */
};

static struct tcmur_handler handler;

/* ---- configuration ---------------------------------------------------------- */

/* Removes ";tcmur_cmd_time_out=N", which the runner takes out before open, but not for
 * check_config. */
static void remove_runner_options(char *text)
{
	static const char option[] = ";tcmur_cmd_time_out=";
	char *found;

	while ((found = strstr(text, option))) {
		const char *end = strchrnul(found + 1, ';');

		memmove(found, end, strlen(end) + 1);
	}
}

/* The part after "subtype/". NULL: not ours. */
static const char *own_part(const char *cfgstring)
{
	size_t length = strlen(handler_identity.subtype);

	if (strncmp(cfgstring, handler_identity.subtype, length) || cfgstring[length] != '/')
		return NULL;
	return cfgstring + length + 1;
}

/* Parses a whole cfgstring. NULL: error says why. */
static struct params *parse(const char *cfgstring, struct params_error *error)
{
	const char *own = own_part(cfgstring);
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
	remove_runner_options(text);
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
 * that both say the same. size: bytes that LIO wants, 0: not known yet. All
 * errors go to host. 0 or negative errno.
 */
static int open_device(const char *cfgstring, uint64_t size, const struct backend_host *host,
	struct params **params, struct backend **backend)
{
	struct params_error error;
	int r;

	*params = parse(cfgstring, &error);
	if (!*params) {
		host->error(host->opaque, error.text);
		return -EINVAL;
	}
	*backend = NULL;
	/* With size= the open may create the file: not before LIO's size is known. */
	if (size == 0 && (params_given(*params, "size") ||
				 backend_kind(handler_identity.ops).open_takes_over))
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

	*reason = NULL;
	if (open_device(cfgstring, 0, &host, &params, &backend) < 0)
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

/* The kernel's disk has the size that configfs says; who changed the device's changes that too. */
static void log_resized(void *opaque, uint64_t size)
{
	tcmu_dev_info((struct tcmu_device *)opaque,
		"the device has %" PRIu64 " bytes by now; the disk gets them when they are written "
		"to its attrib/dev_size\n",
		size);
}

/* Tells the runner what to announce to initiators. */
static void announce(struct tcmu_device *dev, const struct backend_info *info)
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
	tcmu_dev_set_write_cache_enabled(dev, true);
	tcmu_dev_set_solid_state_media(dev, !info->rotational);

	tcmu_dev_set_unmap_enabled(dev, info->can_trim);
	tcmu_dev_set_opt_unmap_gran(dev, granularity ? granularity : 1, false);
	tcmu_dev_set_unmap_gran_align(dev, UNMAP_ALIGNMENT);
}

/*
 * Have initiators the disk that is about to be opened? LIO exports none before
 * its handler has opened it, so that they had it from a daemon that ended. 0 or
 * negative errno, which is logged: that cannot be told.
 */
static int look_for_clients(struct tcmu_device *dev, struct backend_host *host)
{
	int exports = tcmu_cfgfs_dev_get_attr_int(dev, EXPORTS);
	int session = exports > 0 ? tcmu_cfgfs_dev_get_attr_int(dev, SESSION) : 0;

	if (exports < 0) {
		tcmu_dev_err(
			dev, "cannot tell whether the disk is exported: %s\n", strerror(-exports));
		return exports;
	}
	host->clients_remain = exports > 0;
	host->clients_session = session < 0 ? 0 : (uint32_t)session;
	return 0;
}

/* For the next daemon. The runner itself looks into configfs right before open() and after it. */
static void keep_session(struct tcmu_device *dev, const struct backend *b)
{
	int r = tcmu_cfgfs_dev_exec_action(dev, SESSION, backend_session(b));

	if (r < 0)
		tcmu_dev_warn(dev,
			"cannot note who serves the disk: %s; a daemon that is started again "
			"will refuse it\n",
			strerror(-r));
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
	int r;

	(void)reopen;
	if (size == 0) {
		log_error(dev, "size=0: nothing to serve; create the device with a larger size");
		return -EINVAL;
	}
	if (backend_kind(handler_identity.ops).holds_writes) {
		r = look_for_clients(dev, &host);
		if (r < 0)
			return r;
	}
	d = calloc(1, sizeof *d);
	if (!d)
		return -ENOMEM;
	r = open_device(tcmu_dev_get_cfgstring(dev), size, &host, &d->params, &d->backend);
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
	announce(dev, &info);
	if (backend_kind(handler_identity.ops).holds_writes)
		keep_session(dev, d->backend);
	backend_start(d->backend);
	atomic_store(&d->write_cache, true);
	tcmur_dev_set_private(dev, d);
	return 0;
}

/* Whoever reads a result must know of bounced requests. */
static void log_counters(struct tcmu_device *dev, struct backend *backend)
{
	char line[2048];

	if (backend_counters_text(backend, line, sizeof line))
		tcmu_dev_info(dev, "counters:%s\n", line);
}

static void adapter_close(struct tcmu_device *dev)
{
	struct device *d = tcmur_dev_get_private(dev);

	tcmur_dev_set_private(dev, NULL);
	log_counters(dev, d->backend);
	close_device(d->params, d->backend);
	free(d);
}

/* ---- reconfiguration --------------------------------------------------------- */

static int set_write_cache(struct tcmu_device *dev, struct device *d, bool on)
{
	tcmu_dev_set_write_cache_enabled(dev, on);
	atomic_store(&d->write_cache, on);
	/* After the store: what was acknowledged without being durable becomes so now. */
	return on ? 0 : backend_flush(d->backend);
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

/* ---- commands ----------------------------------------------------------------- */

/*
 * A worker that is cancelled inside a command, when the device is removed, would
 * keep the backend's locks and leave the command without an end: the runner
 * would wait for it forever.
 */
static int begin(void)
{
	int state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	return state;
}

/* Ends what begin() began and hands the status to the runner. */
static int finish(struct tcmu_device *dev, struct tcmur_cmd *cmd, int state, int status)
{
	pthread_setcancelstate(state, NULL);
	/* Without threads, success means "will be completed later". */
	if (handler.nr_threads == 0 && status == TCMU_STS_OK)
		tcmur_cmd_complete(dev, cmd, status);
	return status;
}

static int data_protect(struct tcmur_cmd *cmd, uint16_t code)
{
	tcmu_sense_set_data(cmd->lib_cmd->sense_buf, DATA_PROTECT, code);
	return TCMU_STS_PASSTHROUGH_ERR;
}

/* r: 0 or negative errno; medium_error: for errors of the device itself. */
static int to_status(struct tcmur_cmd *cmd, int r, int medium_error)
{
	switch (-r) {
	case 0:
		return TCMU_STS_OK;
	case ENOMEM:
		return TCMU_STS_NO_RESOURCE; /* the initiator tries again */
	case EINVAL:
		return TCMU_STS_RANGE;
	case EROFS:
		return data_protect(cmd, 0x2700); /* write protected */
	case ENOSPC:
		return data_protect(cmd, 0x2707); /* space allocation failed */
	case ENODEV:
		return TCMU_STS_HW_ERR;
	case EOPNOTSUPP:
		return TCMU_STS_INVALID_CMD;
	default:
		return medium_error;
	}
}

/* The runner fills the beginning of an answer, and the initiator gets all of the memory. */
static void clear_answer(const struct tcmur_cmd *cmd)
{
	const struct tcmulib_cmd *lib = cmd->lib_cmd;

	for (size_t i = 0; i < lib->iov_cnt; i++)
		memset(lib->iovec[i].iov_base, 0, lib->iovec[i].iov_len);
}

/*
 * Sees each command before the runner does: refuses those that the runner would
 * acknowledge without having done them, or with bits that it does not look at
 * and does not announce. Runs in the thread that serves the device's whole queue,
 * so it does no more than that.
 */
static int adapter_handle_cmd(struct tcmu_device *dev, struct tcmur_cmd *cmd)
{
	uint8_t *cdb = cmd->lib_cmd->cdb;

	(void)dev;
	switch (cdb[0]) {
	case FORMAT_UNIT:
		/* Errors of all writes but the last are lost; above 2^32 blocks it never ends. */
		return TCMU_STS_INVALID_CMD;
	case INQUIRY:
		clear_answer(cmd);
		return TCMU_STS_NOT_HANDLED;
	case READ_10:
	case READ_12:
	case READ_16:
	case WRITE_10:
	case WRITE_12:
	case WRITE_16:
	case COMPARE_AND_WRITE:
		return cdb[1] & (CDB_PROTECT | CDB_DPO | CDB_FUA) ? TCMU_STS_INVALID_CDB
								  : TCMU_STS_NOT_HANDLED;
	case WRITE_VERIFY:
	case WRITE_VERIFY_16:
		return cdb[1] & (CDB_PROTECT | CDB_DPO) ? TCMU_STS_INVALID_CDB
							: TCMU_STS_NOT_HANDLED;
	case WRITE_SAME:
	case WRITE_SAME_16:
		/* Other bits change what is written, and the runner does not look at them. */
		if (cdb[1] & ~CDB_UNMAP)
			return TCMU_STS_INVALID_CDB;
		if (cdb[1] & CDB_UNMAP && tcmu_cdb_get_xfer_length(cdb) == UNMAP_ALIGNMENT)
			return TCMU_STS_INVALID_CDB;
		return TCMU_STS_NOT_HANDLED;
	default:
		return TCMU_STS_NOT_HANDLED;
	}
}

/* Does the runner call from the one thread of the device's queue, which nothing may hold up? */
static bool answers_later(void)
{
	return handler.nr_threads == 0 && backend_kind(handler_identity.ops).answers_later;
}

/* A command under way in a device that answers later. */
struct job {
	struct backend_request request;
	struct tcmu_device *dev;
	struct tcmur_cmd *cmd;
	int medium_error; /* the status of an error of the device itself */
	bool was_write;	  /* without FUA */
	bool advice;	  /* may be left alone */
};

static void job_done(struct backend_request *request, int result)
{
	struct job *job = request->opaque;
	struct device *d = tcmur_dev_get_private(job->dev);

	/* As keep_durable() does it. */
	if (result == 0 && job->was_write && !atomic_load(&d->write_cache)) {
		job->was_write = false;
		job->request = (struct backend_request){
			.op = BACKEND_FLUSH, .done = job_done, .opaque = job};
		backend_submit(d->backend, &job->request);
		return;
	}
	if (job->advice && result == -EOPNOTSUPP)
		result = 0;
	tcmur_cmd_complete(job->dev, job->cmd, to_status(job->cmd, result, job->medium_error));
	free(job);
}

/* Starts a command that job_done() ends. */
static int submit(struct tcmu_device *dev, struct tcmur_cmd *cmd,
	const struct backend_request *request, int medium_error, bool advice)
{
	struct device *d = tcmur_dev_get_private(dev);
	struct job *job = malloc(sizeof *job);
	int state;

	if (!job)
		return TCMU_STS_NO_RESOURCE;
	*job = (struct job){
		.request = *request,
		.dev = dev,
		.cmd = cmd,
		.medium_error = medium_error,
		.advice = advice,
		.was_write = !advice &&
			     (request->op == BACKEND_WRITE || request->op == BACKEND_ZERO) &&
			     !(request->flags & BACKEND_FUA),
	};
	job->request.done = job_done;
	job->request.opaque = job;
	state = begin();
	backend_submit(d->backend, &job->request);
	pthread_setcancelstate(state, NULL);
	return TCMU_STS_OK;
}

static int adapter_read(struct tcmu_device *dev, struct tcmur_cmd *cmd, struct iovec *iov,
	size_t iov_cnt, size_t length, off_t offset)
{
	struct device *d = tcmur_dev_get_private(dev);

	if (answers_later())
		return submit(dev, cmd,
			&(struct backend_request){.op = BACKEND_READ,
				.iov = iov,
				.iovcnt = (int)iov_cnt,
				.offset = (uint64_t)offset},
			TCMU_STS_RD_ERR, false);

	int state = begin();
	int r = backend_readv(d->backend, iov, (int)iov_cnt, (uint64_t)offset);

	(void)length; /* the runner has checked that it is the vector's */
	return finish(dev, cmd, state, to_status(cmd, r, TCMU_STS_RD_ERR));
}

/* BACKEND_FUA if the command, or the absence of a write cache, demands it. */
static unsigned write_flags(const struct device *d, const uint8_t *cdb)
{
	/* What is verified is what is on the medium. */
	bool verified = cdb[0] == WRITE_VERIFY || cdb[0] == WRITE_VERIFY_16;
	bool cached = atomic_load_explicit(&d->write_cache, memory_order_relaxed);

	return verified || !cached ? BACKEND_FUA : 0;
}

/* The write cache may have been turned off, and flushed, while this write was under way. */
static int keep_durable(struct device *d, unsigned flags, int r)
{
	if (r == 0 && !(flags & BACKEND_FUA) && !atomic_load(&d->write_cache))
		r = backend_flush(d->backend);
	return r;
}

/* Also called for COMPARE AND WRITE, WRITE AND VERIFY and EXTENDED COPY. */
static int adapter_write(struct tcmu_device *dev, struct tcmur_cmd *cmd, struct iovec *iov,
	size_t iov_cnt, size_t length, off_t offset)
{
	struct device *d = tcmur_dev_get_private(dev);
	unsigned flags = write_flags(d, cmd->lib_cmd->cdb);

	if (answers_later())
		return submit(dev, cmd,
			&(struct backend_request){.op = BACKEND_WRITE,
				.flags = flags,
				.iov = iov,
				.iovcnt = (int)iov_cnt,
				.offset = (uint64_t)offset},
			TCMU_STS_WR_ERR, false);

	int state = begin();
	int r = backend_writev(d->backend, iov, (int)iov_cnt, (uint64_t)offset, flags);

	(void)length;
	r = keep_durable(d, flags, r);
	return finish(dev, cmd, state, to_status(cmd, r, TCMU_STS_WR_ERR));
}

static int adapter_flush(struct tcmu_device *dev, struct tcmur_cmd *cmd)
{
	struct device *d = tcmur_dev_get_private(dev);

	if (answers_later())
		return submit(dev, cmd, &(struct backend_request){.op = BACKEND_FLUSH},
			TCMU_STS_WR_ERR, false);

	int state = begin();
	int r = backend_flush(d->backend);

	return finish(dev, cmd, state, to_status(cmd, r, TCMU_STS_WR_ERR));
}

/*
 * UNMAP. The runner announces that what is unmapped reads as zeroes (LBPRZ), which a trim does not
 * promise. Where zeroes would have to be written, nothing is unmapped.
 */
static int adapter_unmap(
	struct tcmu_device *dev, struct tcmur_cmd *cmd, uint64_t offset, uint64_t length)
{
	const unsigned flags = BACKEND_MAY_TRIM | BACKEND_FAST_ZERO;
	struct device *d = tcmur_dev_get_private(dev);

	if (answers_later())
		return submit(dev, cmd,
			&(struct backend_request){.op = BACKEND_ZERO,
				.flags = flags,
				.offset = offset,
				.length = length},
			TCMU_STS_WR_ERR, true);

	int state = begin();
	int r = backend_zero(d->backend, offset, length, flags);

	return finish(dev, cmd, state, to_status(cmd, r == -EOPNOTSUPP ? 0 : r, TCMU_STS_WR_ERR));
}

/* A runner that does not ask for it writes the block again and again, 1 MiB at a time. */
#ifdef HAVE_WRITESAME

/* A WRITE SAME. */
struct same {
	struct tcmu_device *dev;
	struct tcmur_cmd *cmd;
	struct iovec block;
	uint64_t offset, length;
	unsigned flags;
};

/* Waits. */
static int write_same(const struct same *same)
{
	struct device *d = tcmur_dev_get_private(same->dev);
	unsigned trim = same->cmd->lib_cmd->cdb[1] & CDB_UNMAP ? BACKEND_MAY_TRIM : 0;
	int r = backend_fill(d->backend, same->block.iov_base, same->block.iov_len, same->offset,
		same->length, same->flags | trim);

	r = keep_durable(d, same->flags, r);
	return to_status(same->cmd, r, TCMU_STS_WR_ERR);
}

static void *same_thread(void *opaque)
{
	struct same *same = opaque;

	tcmur_cmd_complete(same->dev, same->cmd, write_same(same));
	free(same);
	return NULL;
}

/* In a thread of its own: there are many steps, and it is rare. */
static int submit_same(const struct same *same)
{
	struct same *copy = malloc(sizeof *copy);
	pthread_t thread;

	if (!copy)
		return TCMU_STS_NO_RESOURCE;
	*copy = *same;
	if (pthread_create(&thread, NULL, same_thread, copy)) {
		free(copy);
		return TCMU_STS_NO_RESOURCE;
	}
	pthread_detach(thread);
	return TCMU_STS_OK;
}

/* The runner has checked that iov is one block. */
static int adapter_writesame(struct tcmu_device *dev, struct tcmur_cmd *cmd, uint64_t offset,
	uint64_t length, struct iovec *iov, size_t iov_cnt)
{
	struct device *d = tcmur_dev_get_private(dev);
	const struct same same = {
		.dev = dev,
		.cmd = cmd,
		.block = *iov,
		.offset = offset,
		.length = length,
		.flags = write_flags(d, cmd->lib_cmd->cdb),
	};

	(void)iov_cnt;
	if (answers_later())
		return submit_same(&same);

	int state = begin();

	return finish(dev, cmd, state, write_same(&same));
}

#endif

/* ---- registration --------------------------------------------------------------- */

static struct tcmur_handler handler = {
	.check_config = adapter_check_config,
	.open = adapter_open,
	.close = adapter_close,
	.reconfig = adapter_reconfig,
	.handle_cmd = adapter_handle_cmd,
	.read = adapter_read,
	.write = adapter_write,
	.flush = adapter_flush,
	.unmap = adapter_unmap,
#ifdef HAVE_WRITESAME
	.writesame = adapter_writesame,
#endif
};

/* The number of threads, -1: the environment's value is wrong, which is logged. */
static int threads_wanted(void)
{
	const char *text = getenv(THREADS_VARIABLE);
	char *end;
	long n;

	if (!text)
		return backend_kind(handler_identity.ops).answers_later ? 0 : DEFAULT_THREADS;
	errno = 0;
	n = strtol(text, &end, 10);
	if (errno || end == text || *end || n < 0 || n > MAX_THREADS) {
		tcmu_err("%s=%s: not a number of threads; use 0 to %d\n", THREADS_VARIABLE, text,
			MAX_THREADS);
		return -1;
	}
	return (int)n;
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
		    "The size is that of the backstore.\n%s",
		    kind.summary, kind.main_param, help) < 0)
		text = NULL;
	free(help);
	return text;
}

__attribute__((visibility("default"))) int handler_init(void)
{
	static char *description; /* the runner keeps the pointer forever */

	handler.nr_threads = threads_wanted();
	if (handler.nr_threads < 0)
		return -1;
	handler.name = handler_identity.name;
	handler.subtype = handler_identity.subtype;
	description = describe();
	handler.cfg_desc = description ? description : backend_kind(handler_identity.ops).summary;
	return tcmur_register_handler(&handler);
}
