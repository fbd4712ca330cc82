/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/device.h"

/* Counters that are reported; of a device with more, the first ones. */
#define MAX_COUNTERS 48

#define MAX_DEVICES 8

/* Bytes of a pattern that are written at once. */
#define FILL_PIECE (1u << 20)

/* In the order of their names, whatever order they were linked in; the last is NULL. */
static const struct backend_ops *devices[MAX_DEVICES + 1];

void backend_register(const struct backend_ops *ops)
{
	size_t count = 0, at;

	while (devices[count])
		count++;
	if (count == MAX_DEVICES)
		abort();
	for (at = count; at > 0 && strcmp(devices[at - 1]->name, ops->name) > 0; at--)
		devices[at] = devices[at - 1];
	devices[at] = ops;
}

const struct backend_ops *const *backend_devices(void)
{
	return devices;
}

struct backend_kind backend_kind(const struct backend_ops *ops)
{
	return (struct backend_kind){
		.name = ops->name,
		.summary = ops->summary,
		.main_param = ops->main_param,
		.has_sessions = ops->has_sessions,
		.answers_later = ops->submit != NULL,
	};
}

static void tell(void (*sink)(void *, const char *), void *opaque, const char *format, va_list args)
	__attribute__((format(printf, 3, 0)));

static void tell(void (*sink)(void *, const char *), void *opaque, const char *format, va_list args)
{
	char line[1024];

	vsnprintf(line, sizeof line, format, args);
	sink(opaque, line);
}

void backend_error(const struct backend_host *host, const char *format, ...)
{
	int saved = errno;
	va_list args;

	va_start(args, format);
	tell(host->error, host->opaque, format, args);
	va_end(args);
	errno = saved;
}

void backend_debug(const struct backend_host *host, const char *format, ...)
{
	int saved = errno;
	va_list args;

	if (!host->debug)
		return;
	va_start(args, format);
	tell(host->debug, host->opaque, format, args);
	va_end(args);
	errno = saved;
}

/* Has the device as many bytes as the framework demands? continues: for clients that it has. */
static int check_size(const struct backend_host *host, uint64_t size, uint64_t have, bool continues)
{
	if (size <= have)
		return 0;
	if (continues)
		backend_error(host,
			"the device has only %llu bytes, the disk has %llu; give one that is large "
			"enough",
			(unsigned long long)have, (unsigned long long)size);
	else
		backend_error(host, "size=%llu: the device has only %llu bytes; give at most that",
			(unsigned long long)size, (unsigned long long)have);
	return -EINVAL;
}

int backend_open(const struct params *params, uint64_t size, const struct backend_host *host,
	struct backend **out)
{
	const struct backend_ops *ops = params_ops(params);
	struct backend *b;
	int r;

	/* A limit of file sizes (ulimit -f) is an error of a request, and not the server's end. */
	signal(SIGXFSZ, SIG_IGN);
	r = ops->open(params_config(params), size, host, &b);
	if (r)
		return r;
	b->ops = ops;
	b->host = *host;

	r = check_size(host, size, atomic_load(&b->size), host->previous_session != 0);
	if (r) {
		ops->close(b);
		return r;
	}
	if (size) {
		atomic_store(&b->size, size);
		atomic_store(&b->size_demanded, true);
	}
	*out = b;
	return 0;
}

void backend_start(struct backend *b)
{
	if (b->ops->start)
		b->ops->start(b);
}

void backend_stop(struct backend *b)
{
	if (b->ops->stop)
		b->ops->stop(b);
}

int backend_watch(const struct params *params)
{
	const struct backend_ops *ops = params_ops(params);

	return ops->watch ? ops->watch(params_config(params)) : -EOPNOTSUPP;
}

void backend_heed(struct backend *b, int watch)
{
	if (b->ops->heed)
		b->ops->heed(b, watch);
}

bool backend_stalled(struct backend *b)
{
	return b->ops->stalled && b->ops->stalled(b);
}

int backend_close(struct backend *b)
{
	return b ? b->ops->close(b) : 0;
}

uint32_t backend_session(const struct backend *b)
{
	return b->session;
}

int backend_info(struct backend *b, struct backend_info *info)
{
	*info = (struct backend_info){0};

	int r = b->ops->info(b, info);

	info->size = atomic_load(&b->size);
	info->readonly = b->readonly;
	info->answers_later = b->ops->submit != NULL;
	info->can_stall = b->ops->stop != NULL;
	info->reads_zeroes = b->reads_zeroes;
	return r;
}

uint64_t backend_size(const struct backend *b)
{
	return atomic_load_explicit(&b->size, memory_order_relaxed);
}

const struct backend_host *backend_host(const struct backend *b)
{
	return &b->host;
}

int backend_resize(struct backend *b, uint64_t size)
{
	uint64_t have = size;
	int r = b->ops->available ? b->ops->available(b, &have) : 0;

	if (r == 0)
		r = check_size(&b->host, size, have, false);
	if (r == 0) {
		atomic_store(&b->size, size);
		atomic_store(&b->size_demanded, true);
	}
	return r;
}

void backend_resized(struct backend *b, uint64_t size)
{
	if (!atomic_load(&b->size_demanded) || size < atomic_load(&b->size))
		atomic_store(&b->size, size);
	if (b->host.resized)
		b->host.resized(b->host.opaque, size);
}

/* Are length bytes at offset inside the device? */
static bool inside(struct backend *b, uint64_t offset, uint64_t length)
{
	uint64_t size = backend_size(b);

	return offset <= size && length <= size - offset;
}

/* Adds up the vector. False on a negative count or an overflow. */
static bool vector_length(const struct iovec *iov, int iovcnt, uint64_t *length)
{
	*length = 0;
	if (iovcnt < 0)
		return false;
	for (int i = 0; i < iovcnt; i++)
		if (__builtin_add_overflow(*length, iov[i].iov_len, length))
			return false;
	return true;
}

/* The flags that each kind of request accepts. */
static const unsigned allowed_flags[] = {
	[BACKEND_READ] = BACKEND_ZEROED,
	[BACKEND_WRITE] = BACKEND_FUA,
	[BACKEND_FLUSH] = 0,
	[BACKEND_TRIM] = BACKEND_FUA,
	[BACKEND_ZERO] = BACKEND_FUA | BACKEND_MAY_TRIM | BACKEND_FAST_ZERO,
};

/* Has the device what the request needs? */
static bool offered(const struct backend_ops *ops, enum backend_op op)
{
	if (ops->submit)
		return true;
	switch (op) {
	case BACKEND_WRITE:
		return ops->writev != NULL;
	case BACKEND_TRIM:
		return ops->trim != NULL;
	case BACKEND_ZERO:
		return ops->zero != NULL;
	default:
		return true;
	}
}

/* Checks a request and sets its length. *nothing: it is done already. 0 or negative errno. */
static int check_request(struct backend *b, struct backend_request *r, bool *nothing)
{
	bool changes = r->op == BACKEND_WRITE || r->op == BACKEND_TRIM || r->op == BACKEND_ZERO;

	*nothing = false;
	if (r->flags & ~allowed_flags[r->op])
		return -EINVAL;
	if (changes && b->readonly)
		return -EROFS;
	if (!offered(b->ops, r->op))
		return -EOPNOTSUPP;
	if (r->op == BACKEND_FLUSH) {
		*nothing = !b->ops->submit && !b->ops->flush;
		return 0;
	}
	if ((r->op == BACKEND_READ || r->op == BACKEND_WRITE) &&
		!vector_length(r->iov, r->iovcnt, &r->length))
		return -EINVAL;
	if (!inside(b, r->offset, r->length))
		return r->op == BACKEND_WRITE || r->op == BACKEND_ZERO ? -ENOSPC : -EINVAL;
	*nothing = r->length == 0 || (r->flags & BACKEND_ZEROED && b->reads_zeroes);
	return 0;
}

/* For a device without submit. */
static int call(struct backend *b, const struct backend_request *r)
{
	switch (r->op) {
	case BACKEND_READ:
		return b->ops->readv(b, r->iov, r->iovcnt, r->offset);
	case BACKEND_WRITE:
		return b->ops->writev(b, r->iov, r->iovcnt, r->offset, r->flags);
	case BACKEND_FLUSH:
		return b->ops->flush(b);
	case BACKEND_TRIM:
		return b->ops->trim(b, r->offset, r->length, r->flags);
	case BACKEND_ZERO:
		return b->ops->zero(b, r->offset, r->length, r->flags);
	}
	return -EINVAL;
}

/*
 * kind: a backend_op, or TOLD_EXTENTS. One line a second for each, so that a device that is gone
 * fills no log.
 */
static void tell_failure(
	struct backend *b, unsigned kind, uint64_t offset, uint64_t length, int result)
{
	static const char *const names[TOLD_KINDS] = {
		"read", "write", "flush", "trim", "zero", "search for extents"};
	struct timespec now;
	char range[64] = "", more[64] = "";
	unsigned long long untold;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (atomic_exchange(&b->failure_told[kind], now.tv_sec + 1) == now.tv_sec + 1) {
		atomic_fetch_add(&b->failures_untold[kind], 1);
		return;
	}
	untold = atomic_exchange(&b->failures_untold[kind], 0);
	if (kind != BACKEND_FLUSH)
		snprintf(range, sizeof range, " of %" PRIu64 " bytes at %" PRIu64, length, offset);
	if (untold)
		snprintf(more, sizeof more, " (and %llu more before it)", untold);
	backend_error(&b->host, "%s%s: %s%s", names[kind], range, strerror(-result), more);
}

/* From what a device answered to one of the few errors that frameworks get. */
static int to_common(int result)
{
	switch (-result) {
	case 0:
	case EIO:
	case ENODEV:
	case ENOMEM:
	case ENOSPC:
	case EOPNOTSUPP:
	case EROFS:
		return result;
	case EDQUOT:
	case EFBIG:
		return -ENOSPC;
	case EACCES:
	case EPERM:
		return -EROFS;
	case ENOMEDIUM:
	case ENXIO:
		return -ENODEV;
	default:
		return -EIO;
	}
}

/* What the framework gets for the device's answer to a request that the core let through. */
static int settle(struct backend *b, const struct backend_request *r, int result)
{
	if (result == 0)
		return 0;
	if (result == -EOPNOTSUPP && r->op == BACKEND_ZERO)
		return result; /* the caller writes zeroes */
	if (result == -EOPNOTSUPP && r->op == BACKEND_TRIM)
		return 0; /* advice, which may be left alone */
	tell_failure(b, r->op, r->offset, r->length, result);
	return result == -EOPNOTSUPP ? -EIO : to_common(result);
}

/* The device's answer to a request that was submitted. */
static void settle_done(struct backend_request *r, int result)
{
	r->done = r->caller_done;
	r->done(r, settle(r->backend, r, result));
}

static void submit(struct backend *b, struct backend_request *r)
{
	r->backend = b;
	r->caller_done = r->done;
	r->done = settle_done;
	b->ops->submit(b, r);
}

/* A thread that waits for its request. */
struct waiter {
	sem_t done;
	int result;
};

static void wake(struct backend_request *r, int result)
{
	struct waiter *w = r->opaque;

	w->result = result;
	sem_post(&w->done);
}

int backend_perform(struct backend *b, struct backend_request *r)
{
	struct waiter w;
	bool nothing;
	int result = check_request(b, r, &nothing);

	if (result || nothing)
		return result;
	if (!b->ops->submit)
		return settle(b, r, call(b, r));
	sem_init(&w.done, 0, 0);
	r->done = wake;
	r->opaque = &w;
	submit(b, r);
	while (sem_wait(&w.done) < 0)
		; /* EINTR */
	sem_destroy(&w.done);
	return w.result;
}

void backend_submit(struct backend *b, struct backend_request *request)
{
	bool nothing;
	int result = check_request(b, request, &nothing);

	if (result || nothing)
		request->done(request, result);
	else if (b->ops->submit)
		submit(b, request);
	else
		request->done(request, settle(b, request, call(b, request)));
}

int backend_readv(struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset)
{
	return backend_perform(
		b, &(struct backend_request){
			   .op = BACKEND_READ, .iov = iov, .iovcnt = iovcnt, .offset = offset});
}

int backend_writev(
	struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset, unsigned flags)
{
	return backend_perform(b, &(struct backend_request){.op = BACKEND_WRITE,
					  .flags = flags,
					  .iov = iov,
					  .iovcnt = iovcnt,
					  .offset = offset});
}

int backend_flush(struct backend *b)
{
	return backend_perform(b, &(struct backend_request){.op = BACKEND_FLUSH});
}

int backend_trim(struct backend *b, uint64_t offset, uint64_t length, unsigned flags)
{
	return backend_perform(
		b, &(struct backend_request){
			   .op = BACKEND_TRIM, .flags = flags, .offset = offset, .length = length});
}

int backend_zero(struct backend *b, uint64_t offset, uint64_t length, unsigned flags)
{
	return backend_perform(
		b, &(struct backend_request){
			   .op = BACKEND_ZERO, .flags = flags, .offset = offset, .length = length});
}

static bool is_zero(const char *bytes, size_t size)
{
	return bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0;
}

int backend_fill(struct backend *b, const void *pattern, size_t size, uint64_t offset,
	uint64_t length, unsigned flags)
{
	uint64_t most = size ? FILL_PIECE / size * size : 0;
	size_t piece = (size_t)(length < most ? length : most);
	char *buffer;
	int r;

	if (most == 0 || length % size || flags & ~(BACKEND_FUA | BACKEND_MAY_TRIM))
		return -EINVAL;
	if (is_zero(pattern, size)) {
		r = backend_zero(b, offset, length, flags);
		if (r != -EOPNOTSUPP)
			return r;
	}
	/* For direct I/O. The size of an aligned allocation must be a multiple of the alignment. */
	buffer = aligned_alloc(4096, (piece + 4095) / 4096 * 4096);
	if (!buffer)
		return -ENOMEM;
	/* Twice as much each time: the pattern may be a single byte. */
	for (size_t done = 0, more = size; done < piece; done += more, more = done) {
		if (more > piece - done)
			more = piece - done;
		memcpy(buffer + done, done ? buffer : pattern, more);
	}
	for (r = 0; r == 0 && length > 0;) {
		const struct iovec iov = {buffer, length < piece ? (size_t)length : piece};

		r = backend_writev(b, &iov, 1, offset, flags & BACKEND_FUA);
		offset += iov.iov_len;
		length -= iov.iov_len;
	}
	free(buffer);
	return r;
}

/* A walk through extents: an answer of the framework's own is no error of the device. */
struct walk {
	backend_extent_fn fn;
	void *opaque;
	int answer;
};

static int step(void *opaque, const struct backend_extent *extent)
{
	struct walk *w = opaque;

	w->answer = w->fn(w->opaque, extent);
	return w->answer;
}

int backend_extents(struct backend *b, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque)
{
	struct walk w = {fn, opaque, 0};
	int r;

	if (flags & ~BACKEND_REQ_ONE || !inside(b, offset, length))
		return -EINVAL;
	if (!b->ops->extents)
		return -EOPNOTSUPP;
	r = length ? b->ops->extents(b, offset, length, flags, step, &w) : 0;
	if (w.answer)
		return w.answer;
	if (r && r != -EOPNOTSUPP)
		tell_failure(b, TOLD_EXTENTS, offset, length, r);
	return to_common(r);
}

int backend_get_backing(
	struct backend *b, struct backend_request *request, struct backend_backing *backing)
{
	struct iovec whole = {.iov_len = request->length};
	bool nothing;
	int r;

	if (!b->ops->get_backing || (request->op != BACKEND_READ && request->op != BACKEND_WRITE))
		return -EOPNOTSUPP;
	request->iov = &whole;
	request->iovcnt = 1;
	r = check_request(b, request, &nothing);
	request->iov = NULL;
	request->iovcnt = 0;
	if (r || nothing)
		return r ? r : -EOPNOTSUPP;
	r = b->ops->get_backing(b, request, backing);
	return r == -EOPNOTSUPP ? r : settle(b, request, r);
}

int backend_transfer_failed(struct backend *b, const struct backend_request *request, int result)
{
	if (b->ops->transfer_failed)
		result = b->ops->transfer_failed(b, result);
	return settle(b, request, result);
}

size_t backend_counters(struct backend *b, struct backend_counter *counters, size_t max)
{
	return b->ops->counters ? b->ops->counters(b, counters, max) : 0;
}

bool backend_counters_text(struct backend *b, char *text, size_t capacity)
{
	struct backend_counter counters[MAX_COUNTERS];
	size_t used = 0, n = backend_counters(b, counters, MAX_COUNTERS);

	for (size_t i = 0; i < n && i < MAX_COUNTERS && used < capacity; i++)
		used += (size_t)snprintf(text + used, capacity - used, " %s=%" PRIu64,
			counters[i].name, counters[i].value);
	return n > 0;
}
