/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "backends/s3/iov.h"

int s3_iov_slice(const struct iovec *iov, uint64_t position, uint64_t length, struct iovec *out)
{
	int n = 0;

	for (; length; iov++) {
		uint64_t bytes;

		if (position >= iov->iov_len) {
			position -= iov->iov_len;
			continue;
		}
		bytes = iov->iov_len - position;
		if (bytes > length)
			bytes = length;
		if (out)
			out[n] = (struct iovec){(uint8_t *)iov->iov_base + position, bytes};
		n++;
		length -= bytes;
		position = 0;
	}
	return n;
}

void s3_iov_copy(const struct iovec *iov, uint64_t position, void *to, uint64_t length)
{
	uint8_t *out = to;

	for (; length; iov++) {
		uint64_t n;

		if (position >= iov->iov_len) {
			position -= iov->iov_len;
			continue;
		}
		n = iov->iov_len - position;
		if (n > length)
			n = length;
		memcpy(out, (const uint8_t *)iov->iov_base + position, n);
		out += n;
		length -= n;
		position = 0;
	}
}

void s3_iov_fill(const struct iovec *iov, uint64_t position, const uint8_t *data, uint64_t length)
{
	for (; length; iov++) {
		uint64_t n;

		if (position >= iov->iov_len) {
			position -= iov->iov_len;
			continue;
		}
		n = iov->iov_len - position;
		if (n > length)
			n = length;
		if (data) {
			memcpy((uint8_t *)iov->iov_base + position, data, n);
			data += n;
		} else {
			memset((uint8_t *)iov->iov_base + position, 0, n);
		}
		length -= n;
		position = 0;
	}
}
