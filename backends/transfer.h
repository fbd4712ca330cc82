/* SPDX-License-Identifier: BSD-3-Clause */
/* preadv and pwritev that transfer everything or say why not. */
#ifndef USERBLK_TRANSFER_H
#define USERBLK_TRANSFER_H

#include <stdint.h>
#include <sys/uio.h>

/* The file ends inside the range: someone made it smaller. */
#define TRANSFER_EOF 1

/*
 * Fill the vector from, or write it to, fd at offset (bytes). unit: bytes that
 * the file transfers at least, 1 when it is not open for direct I/O; a partial
 * transfer is continued on a multiple of it. rwf: RWF_ flags of pwritev2.
 * EINTR is retried, any number of vectors is accepted. 0, negative errno, or
 * TRANSFER_EOF (read only).
 */
int transfer_readv(int fd, const struct iovec *iov, int iovcnt, uint64_t offset, uint32_t unit);
int transfer_writev(
	int fd, const struct iovec *iov, int iovcnt, uint64_t offset, uint32_t unit, int rwf);

#endif
