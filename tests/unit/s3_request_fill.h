/* SPDX-License-Identifier: BSD-3-Clause */
/* What the stores in the tests' own process have in common. */
#ifndef USERBLK_S3_REQUEST_FILL_H
#define USERBLK_S3_REQUEST_FILL_H

#include <errno.h>
#include <string.h>

#include "backends/s3/client/client.h"

/* Answers a GET with an object's bytes. -ERANGE: it has too few of them, and req is not content
 * with fewer. */
static inline int s3_request_fill(struct s3_request *req, const uint8_t *data, size_t length)
{
	uint64_t offset = req->offset;

	for (int i = 0; i < req->iovcnt; i++) {
		size_t n = req->iov[i].iov_len;

		if (offset + n > length) {
			if (!req->allow_short)
				return -ERANGE;
			n = offset < length ? length - offset : 0;
		}
		if (n)
			memcpy(req->iov[i].iov_base, data + offset, n);
		offset += n;
		req->bytes += n;
	}
	return 0;
}

#endif
