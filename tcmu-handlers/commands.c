/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * SCSI commands as calls of the device, and what becomes of their errors. "The runner" is
 * tcmu-runner 1.5.4, as in tcmu.c.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <scsi/scsi.h>

#include "tcmu-handlers/commands.h"

/* Bits of CDB byte 1. */
#define CDB_UNMAP   0x08 /* WRITE SAME */
#define CDB_PROTECT 0xe0 /* READ, WRITE: protection information */
#define CDB_DPO	    0x10 /* the same, WRITE AND VERIFY */
#define CDB_FUA	    0x08 /* READ, WRITE */

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
	if (tcmu_handler.nr_threads == 0 && status == TCMU_STS_OK)
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

/*
 * Sees each command before the runner does: refuses those that the runner would
 * acknowledge without having done them, or with bits that it does not look at
 * and does not announce. Runs in the thread that serves the device's whole queue,
 * so it does no more than that.
 */
int command_look(struct tcmu_device *dev, struct tcmur_cmd *cmd)
{
	uint8_t *cdb = cmd->lib_cmd->cdb;

	switch (cdb[0]) {
	case FORMAT_UNIT:
		/* Errors of all writes but the last are lost; above 2^32 blocks it never ends. */
		return TCMU_STS_INVALID_CMD;
	case INQUIRY:
		conform_inquiry(tcmur_dev_get_private(dev), cmd->lib_cmd);
		return TCMU_STS_NOT_HANDLED;
	case EXTENDED_COPY:
		return conform_copy(cmd->lib_cmd);
	case UNMAP:
		conform_unmap(cmd->lib_cmd);
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
		/* Also the one length that the runner would take for aligned, and unmap. */
		if (tcmu_cdb_get_xfer_length(cdb) > MAX_SAME)
			return TCMU_STS_INVALID_CDB;
#ifndef HAVE_WRITESAME
		/* It would become an UNMAP, which may leave blocks as they were. */
		cdb[1] &= (uint8_t)~CDB_UNMAP;
#endif
		return TCMU_STS_NOT_HANDLED;
	default:
		return TCMU_STS_NOT_HANDLED;
	}
}

/* Does the runner call from the one thread of the device's queue, which nothing may hold up? */
static bool answers_later(const struct device *d)
{
	return d->workers ||
	       (tcmu_handler.nr_threads == 0 && backend_kind(handler_identity.ops).answers_later);
}

/* A shorter one may be refused because it lies inside a page, whatever the device below can do. */
#define LONG_UNMAP (128u << 10)

/* The result of an UNMAP that was refused, which is advice: success. */
static int leave_mapped(struct tcmu_device *dev, uint64_t length)
{
	struct device *d = tcmur_dev_get_private(dev);

	if (length >= LONG_UNMAP && !atomic_exchange(&d->unmap_told, true))
		tcmu_dev_warn(dev,
			"the device has no command for zeroes: UNMAP has no effect, and what it "
			"names stays allocated\n");
	return 0;
}

/* A command under way in a device that answers later, or in a thread of ours. */
struct job {
	struct work work;
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
		result = leave_mapped(job->dev, request->length);
	tcmur_cmd_complete(job->dev, job->cmd, to_status(job->cmd, result, job->medium_error));
	free(job);
}

static void run_job(struct work *work)
{
	struct job *job = (struct job *)work;
	struct device *d = tcmur_dev_get_private(job->dev);

	backend_submit(d->backend, &job->request);
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
		.work.run = run_job,
		.request = *request,
		.dev = dev,
		.cmd = cmd,
		.medium_error = medium_error,
		.advice = advice,
		.was_write = (request->op == BACKEND_WRITE || request->op == BACKEND_ZERO) &&
			     !(request->flags & BACKEND_FUA),
	};
	job->request.done = job_done;
	job->request.opaque = job;
	state = begin();
	if (d->workers)
		workers_push(d->workers, &job->work);
	else
		backend_submit(d->backend, &job->request);
	pthread_setcancelstate(state, NULL);
	return TCMU_STS_OK;
}

int command_read(struct tcmu_device *dev, struct tcmur_cmd *cmd, struct iovec *iov, size_t iov_cnt,
	size_t length, off_t offset)
{
	struct device *d = tcmur_dev_get_private(dev);

	if (answers_later(d))
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
int command_write(struct tcmu_device *dev, struct tcmur_cmd *cmd, struct iovec *iov, size_t iov_cnt,
	size_t length, off_t offset)
{
	struct device *d = tcmur_dev_get_private(dev);
	unsigned flags = write_flags(d, cmd->lib_cmd->cdb);

	if (answers_later(d))
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

int command_flush(struct tcmu_device *dev, struct tcmur_cmd *cmd)
{
	struct device *d = tcmur_dev_get_private(dev);

	if (answers_later(d))
		return submit(dev, cmd, &(struct backend_request){.op = BACKEND_FLUSH},
			TCMU_STS_WR_ERR, false);

	int state = begin();
	int r = backend_flush(d->backend);

	return finish(dev, cmd, state, to_status(cmd, r, TCMU_STS_WR_ERR));
}

/*
 * UNMAP. The runner announces that what is unmapped reads as zeroes (LBPRZ), which a trim does not
 * promise: it is a write of zeroes, and as durable. Where zeroes would have to be written, nothing
 * is unmapped.
 */
int command_unmap(struct tcmu_device *dev, struct tcmur_cmd *cmd, uint64_t offset, uint64_t length)
{
	struct device *d = tcmur_dev_get_private(dev);
	const unsigned flags =
		BACKEND_MAY_TRIM | BACKEND_FAST_ZERO | write_flags(d, cmd->lib_cmd->cdb);

	if (answers_later(d))
		return submit(dev, cmd,
			&(struct backend_request){.op = BACKEND_ZERO,
				.flags = flags,
				.offset = offset,
				.length = length},
			TCMU_STS_WR_ERR, true);

	int state = begin();
	int r = backend_zero(d->backend, offset, length, flags);

	r = keep_durable(d, flags, r);
	if (r == -EOPNOTSUPP)
		r = leave_mapped(dev, length);
	return finish(dev, cmd, state, to_status(cmd, r, TCMU_STS_WR_ERR));
}

/* A runner that does not ask for it writes the block again and again, 1 MiB at a time. */
#ifdef HAVE_WRITESAME

/* A WRITE SAME. */
struct same {
	struct work work;
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

static void run_same(struct work *work)
{
	struct same *same = (struct same *)work;

	tcmur_cmd_complete(same->dev, same->cmd, write_same(same));
	free(same);
}

/*
 * There are many steps. Where there are no threads of ours, the first WRITE SAME makes some, in the
 * one thread of the device's queue: it is rare.
 */
static int submit_same(struct device *d, const struct same *same)
{
	struct same *copy;

	if (!d->workers && !d->same)
		d->same = workers_new(DEFAULT_THREADS);
	copy = d->workers || d->same ? malloc(sizeof *copy) : NULL;
	if (!copy)
		return TCMU_STS_NO_RESOURCE;
	*copy = *same;
	copy->work.run = run_same;
	workers_push(d->workers ? d->workers : d->same, &copy->work);
	return TCMU_STS_OK;
}

/* The runner has checked that iov is one block. */
int command_writesame(struct tcmu_device *dev, struct tcmur_cmd *cmd, uint64_t offset,
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
	if (answers_later(d))
		return submit_same(d, &same);

	int state = begin();

	return finish(dev, cmd, state, write_same(&same));
}

#endif
