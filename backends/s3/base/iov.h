/* SPDX-License-Identifier: BSD-3-Clause */
/* Parts of vectors of memory. position and length are bytes, and lie inside of the vector. */
#ifndef USERBLK_S3_IOV_H
#define USERBLK_S3_IOV_H

#include <stdint.h>
#include <sys/uio.h>

/* The part from position on, length bytes, as a vector; out NULL: only how many entries. */
int s3_iov_slice(const struct iovec *iov, uint64_t position, uint64_t length, struct iovec *out);
/* Copies that part to a buffer. */
void s3_iov_copy(const struct iovec *iov, uint64_t position, void *to, uint64_t length);
/* Fills that part from data; NULL: with zeroes. */
void s3_iov_fill(const struct iovec *iov, uint64_t position, const uint8_t *data, uint64_t length);

#endif
