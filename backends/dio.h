/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Requests of any alignment on a file that is open with O_DIRECT.
 *
 * Memory that the kernel would refuse goes through an aligned buffer; only the
 * unaligned vectors of a request do, and one system call still serves them all.
 * Writes to parts of a block read the block, change it and write it back, and
 * exclude every other change of that block meanwhile: whole-block writes take
 * the same lock shared, so that they never wait for each other.
 */
#ifndef USERBLK_DIO_H
#define USERBLK_DIO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "backends/backend.h"

/* Bytes of one aligned buffer, and so the most that is copied per system call. */
#define DIRECT_BUFFER_SIZE (1u << 20)

struct direct;

/*
 * fd: stays the caller's. block: bytes that offsets and lengths must be
 * multiples of, memory: bytes that addresses must be; powers of two. NULL:
 * out of memory.
 */
struct direct *direct_new(int fd, uint32_t block, uint32_t memory);
void direct_free(struct direct *d);

/* As transfer_readv() and transfer_writev(). The file's size is a multiple of the block. */
int direct_readv(struct direct *d, const struct iovec *iov, int iovcnt, uint64_t offset);
int direct_writev(struct direct *d, const struct iovec *iov, int iovcnt, uint64_t offset, int rwf);

/*
 * Around any other change of the range (trim, zero): keeps read-modify-write
 * out. Ranges may be held by several threads at once. Returns what
 * direct_unlock() needs.
 */
uint64_t direct_lock(struct direct *d, uint64_t offset, uint64_t length);
void direct_unlock(struct direct *d, uint64_t held);

/* bounced_requests, bounced_bytes, read_modify_writes; as backend_ops.counters. */
size_t direct_counters(struct direct *d, struct backend_counter *counters, size_t max);

#endif
