/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdbool.h>
#include <string.h>

#include "backends/s3/base/iov.h"

/* Takes the next piece of length bytes from position on; false: there is none left. */
static bool next_piece(
	const struct iovec **iov, uint64_t *position, uint64_t *length, struct iovec *piece)
{
	uint64_t bytes;

	if (!*length)
		return false;
	for (; *position >= (*iov)->iov_len; (*iov)++)
		*position -= (*iov)->iov_len;
	bytes = (*iov)->iov_len - *position;
	if (bytes > *length)
		bytes = *length;
	*piece = (struct iovec){(uint8_t *)(*iov)->iov_base + *position, bytes};
	*position += bytes;
	*length -= bytes;
	return true;
}

int s3_iov_slice(const struct iovec *iov, uint64_t position, uint64_t length, struct iovec *out)
{
	struct iovec piece;
	int n = 0;

	for (; next_piece(&iov, &position, &length, &piece); n++)
		if (out)
			out[n] = piece;
	return n;
}

void s3_iov_copy(const struct iovec *iov, uint64_t position, void *to, uint64_t length)
{
	uint8_t *out = to;
	struct iovec piece;

	while (next_piece(&iov, &position, &length, &piece)) {
		memcpy(out, piece.iov_base, piece.iov_len);
		out += piece.iov_len;
	}
}

void s3_iov_fill(const struct iovec *iov, uint64_t position, const uint8_t *data, uint64_t length)
{
	struct iovec piece;

	while (next_piece(&iov, &position, &length, &piece)) {
		if (data) {
			memcpy(piece.iov_base, data, piece.iov_len);
			data += piece.iov_len;
		} else {
			memset(piece.iov_base, 0, piece.iov_len);
		}
	}
}
