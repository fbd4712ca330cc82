/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "backends/backend.h"

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

/* Has the device as many bytes as the framework demands? */
static int check_size(const struct backend_host *host, uint64_t size, uint64_t have)
{
	if (size <= have)
		return 0;
	backend_error(host, "size=%llu: the device has only %llu bytes; ask for no more than that",
		(unsigned long long)size, (unsigned long long)have);
	return -EINVAL;
}

int backend_open(const struct params *params, uint64_t size, const struct backend_host *host,
	struct backend **out)
{
	const struct backend_ops *ops = params_ops(params);
	struct backend *b;
	int r = ops->open(params_config(params), size, host, &b);

	if (r)
		return r;
	b->ops = ops;
	b->host = *host;

	r = check_size(host, size, atomic_load(&b->size));
	if (r) {
		ops->close(b);
		return r;
	}
	if (size)
		atomic_store(&b->size, size);
	*out = b;
	return 0;
}

void backend_close(struct backend *b)
{
	if (b)
		b->ops->close(b);
}

int backend_info(struct backend *b, struct backend_info *info)
{
	*info = (struct backend_info){0};

	int r = b->ops->info(b, info);

	info->size = atomic_load(&b->size);
	info->readonly = b->readonly;
	return r;
}

int backend_resize(struct backend *b, uint64_t size)
{
	uint64_t have = size;
	int r = b->ops->available ? b->ops->available(b, &have) : 0;

	if (r == 0)
		r = check_size(&b->host, size, have);
	if (r == 0)
		atomic_store(&b->size, size);
	return r;
}

/* Are length bytes at offset inside the device? */
static bool inside(struct backend *b, uint64_t offset, uint64_t length)
{
	uint64_t size = atomic_load_explicit(&b->size, memory_order_relaxed);

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

int backend_readv(struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset)
{
	uint64_t length;

	if (!vector_length(iov, iovcnt, &length) || !inside(b, offset, length))
		return -EINVAL;
	return length ? b->ops->readv(b, iov, iovcnt, offset) : 0;
}

/* What all calls that change the device have in common. */
static int check_change(struct backend *b, const void *op, unsigned flags, unsigned allowed)
{
	if (flags & ~allowed)
		return -EINVAL;
	if (b->readonly)
		return -EROFS;
	return op ? 0 : -EOPNOTSUPP;
}

int backend_writev(
	struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset, unsigned flags)
{
	int r = check_change(b, (const void *)b->ops->writev, flags, BACKEND_FUA);
	uint64_t length;

	if (r)
		return r;
	if (!vector_length(iov, iovcnt, &length))
		return -EINVAL;
	if (!inside(b, offset, length))
		return -ENOSPC;
	return length ? b->ops->writev(b, iov, iovcnt, offset, flags) : 0;
}

int backend_flush(struct backend *b)
{
	return b->ops->flush ? b->ops->flush(b) : 0;
}

int backend_trim(struct backend *b, uint64_t offset, uint64_t length, unsigned flags)
{
	int r = check_change(b, (const void *)b->ops->trim, flags, BACKEND_FUA);

	if (r)
		return r;
	if (!inside(b, offset, length))
		return -EINVAL;
	return length ? b->ops->trim(b, offset, length, flags) : 0;
}

int backend_zero(struct backend *b, uint64_t offset, uint64_t length, unsigned flags)
{
	int r = check_change(b, (const void *)b->ops->zero, flags,
		BACKEND_FUA | BACKEND_MAY_TRIM | BACKEND_FAST_ZERO);

	if (r)
		return r;
	if (!inside(b, offset, length))
		return -ENOSPC;
	return length ? b->ops->zero(b, offset, length, flags) : 0;
}

int backend_extents(struct backend *b, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque)
{
	if (flags & ~BACKEND_REQ_ONE || !inside(b, offset, length))
		return -EINVAL;
	if (!b->ops->extents)
		return -EOPNOTSUPP;
	return length ? b->ops->extents(b, offset, length, flags, fn, opaque) : 0;
}

size_t backend_counters(struct backend *b, struct backend_counter *counters, size_t max)
{
	return b->ops->counters ? b->ops->counters(b, counters, max) : 0;
}
