/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <unistd.h>

#include "backends/transfer.h"

/* One system call; one vector needs no vector call, which is a little faster. */
static inline ssize_t step(
	int fd, bool writing, const struct iovec *iov, int iovcnt, off_t offset, int rwf)
{
	if (!writing)
		return iovcnt == 1 ? pread(fd, iov->iov_base, iov->iov_len, offset)
				   : preadv(fd, iov, iovcnt, offset);
	if (rwf)
		return pwritev2(fd, iov, iovcnt, offset, rwf);
	return iovcnt == 1 ? pwrite(fd, iov->iov_base, iov->iov_len, offset)
			   : pwritev(fd, iov, iovcnt, offset);
}

static inline int transfer(int fd, bool writing, const struct iovec *iov, int iovcnt,
	uint64_t offset, uint32_t unit, int rwf)
{
	size_t done = 0; /* bytes of *iov that are behind us */

	for (;;) {
		while (iovcnt > 0 && done >= iov->iov_len) {
			done -= iov->iov_len;
			iov++;
			iovcnt--;
		}
		if (iovcnt == 0)
			return 0;

		/* After a partial transfer, the rest of that vector goes alone. */
		struct iovec rest;
		const struct iovec *next = iov;
		int count = iovcnt < IOV_MAX ? iovcnt : IOV_MAX;

		if (done) {
			rest.iov_base = (char *)iov->iov_base + done;
			rest.iov_len = iov->iov_len - done;
			next = &rest;
			count = 1;
		}

		ssize_t r = step(fd, writing, next, count, (off_t)offset, rwf);

		if (r < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		r -= r % unit;
		if (r == 0)
			return writing ? -EIO : TRANSFER_EOF;
		offset += (uint64_t)r;
		done += (size_t)r;
	}
}

int transfer_readv(int fd, const struct iovec *iov, int iovcnt, uint64_t offset, uint32_t unit)
{
	return transfer(fd, false, iov, iovcnt, offset, unit, 0);
}

int transfer_writev(
	int fd, const struct iovec *iov, int iovcnt, uint64_t offset, uint32_t unit, int rwf)
{
	return transfer(fd, true, iov, iovcnt, offset, unit, rwf);
}
