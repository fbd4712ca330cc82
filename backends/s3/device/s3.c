/* SPDX-License-Identifier: BSD-3-Clause */
/* The S3 device as the frameworks see it. docs/s3.md. */

#include "backends/device.h"
#include "backends/s3/admin/control.h"
#include "backends/s3/base/clock.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/device/internal.h"
#include "backends/s3/lifecycle/close_timeout.h"
#include "backends/s3/lifecycle/lifecycle.h"

/*
 * ns for which a store that answers may refuse all that it is given before it counts as out of
 * reach. One that takes something now and then is seen as there by those who ask every second.
 */
#define REFUSALS (2 * UINT64_C(1000000000))

static int s3_open(
	const void *config, uint64_t size, const struct backend_host *host, struct backend **out)
{
	const struct s3_config *c = config;
	struct s3_control *control;
	struct s3_volume *v;
	int r = s3_volume_attach(c, host, &v);

	if (r)
		return r;
	/* Before anything is done to the volume: a process that listens there may be serving it. */
	if (c->control)
		r = s3_control_open(v, c->control);
	if (r == 0)
		r = s3_volume_load(v, c, size);
	if (r) {
		control = v->control;
		s3_control_close(control);
		s3_volume_detach(v);
		s3_control_free(control);
		return r;
	}
	*out = &v->backend;
	return 0;
}

static void s3_start(struct backend *b)
{
	struct s3_volume *v = (struct s3_volume *)b;

	/* A store that an open found full is looked after without a change, which would be refused:
	 * space may be added. If there are no threads for that, the first change tries again. */
	if (v->layout->has_log && !b->readonly && atomic_load(&v->refused))
		v->layout->start(v);
	s3_control_start(v->control);
}

static void s3_stop(struct backend *b)
{
	s3_volume_stop((struct s3_volume *)b);
}

static bool s3_stalled(struct backend *b)
{
	struct s3_volume *v = (struct s3_volume *)b;

	return s3_store_outage(v->store) != 0 || s3_closing_refused(v) > REFUSALS;
}

static int s3_close(struct backend *b)
{
	struct s3_volume *v = (struct s3_volume *)b;
	struct s3_control *control = v->control;
	int r;

	s3_control_end_jobs(control);
	if (b->readonly) {
		/* A clone that is being created waits for the store no longer than close-timeout=.
		 */
		s3_volume_stop(v);
		s3_control_finish_job(control);
	}
	r = s3_volume_finish(v);
	s3_control_close(control);
	s3_volume_detach(v);
	s3_control_free(control);
	return r;
}

static int s3_info(struct backend *b, struct backend_info *info)
{
	const struct s3_volume *v = (const struct s3_volume *)b;
	bool writable = !b->readonly;

	*info = (struct backend_info){
		.block_size = v->block_size,
		.preferred_size = 128 << 10,
		.max_request = (uint32_t)v->batch_size,
		.trim_granularity = v->block_size,
		.can_flush = true,
		.can_fua = true,
		.can_trim = writable,
		.can_zero = writable,
		.can_fast_zero = writable,
		.can_extents = true,
		.can_multi_conn = true, /* the log is the volume's, not a connection's */
	};
	if (v->layout->info)
		v->layout->info(v, info);
	return 0;
}

/* A request is answered: counts it. */
static void answer(struct backend_request *request, int result)
{
	struct s3_volume *v = request->device;
	struct s3_device_counters *c = &v->stats.device[request->op];
	uint64_t ns = s3_now() - request->began, max = atomic_load(&c->max_ns);

	atomic_fetch_add(&c->requests, 1);
	atomic_fetch_add(&c->busy_ns, ns);
	atomic_fetch_add(&c->histogram[s3_histogram_entry(ns)], 1);
	if (result)
		atomic_fetch_add(&c->errors, 1);
	else if (request->op != BACKEND_FLUSH)
		atomic_fetch_add(&c->bytes, request->length);
	while (ns > max && !atomic_compare_exchange_weak(&c->max_ns, &max, ns))
		;
	request->done = request->answer;
	request->done(request, result);
}

static void s3_submit(struct backend *b, struct backend_request *request)
{
	struct s3_volume *v = (struct s3_volume *)b;

	request->device = v;
	request->began = s3_now();
	request->answer = request->done;
	request->done = answer;
	v->layout->submit(v, request);
}

static int s3_extents(struct backend *b, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque)
{
	struct s3_volume *v = (struct s3_volume *)b;

	return v->layout->extents(v, offset, length, flags, fn, opaque);
}

static int s3_available(struct backend *b, uint64_t *size)
{
	*size = s3_volume_size((const struct s3_volume *)b);
	return 0;
}

static size_t s3_counters(struct backend *b, struct backend_counter *counters, size_t max)
{
	return s3_volume_counters((struct s3_volume *)b, counters, max);
}

const struct backend_ops s3_backend = {
	.name = "s3",
	.summary = "A disk that is a log of objects in an S3-compatible store",
	.params = s3_params,
	.main_param = "volume",
	.config_size = sizeof(struct s3_config),
	.has_sessions = true,
	.check = s3_check,
	.open = s3_open,
	.start = s3_start,
	.stop = s3_stop,
	.stalled = s3_stalled,
	.close = s3_close,
	.info = s3_info,
	.available = s3_available,
	.submit = s3_submit,
	.extents = s3_extents,
	.counters = s3_counters,
};

BACKEND_REGISTER(s3_backend)
