/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Little-endian numbers, checksums and byte streams of everything the S3 device
 * stores. Readers never pass the end of what they were given.
 */
#ifndef USERBLK_S3_BYTES_H
#define USERBLK_S3_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline void s3_le_store(uint8_t *p, uint64_t v, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

static inline uint64_t s3_le_load(const uint8_t *p, size_t bytes)
{
	uint64_t v = 0;

	for (size_t i = 0; i < bytes; i++)
		v |= (uint64_t)p[i] << 8 * i;
	return v;
}

/* CRC32C (Castagnoli) of length bytes; crc: of what precedes them, 0 at the beginning. */
uint32_t s3_crc32c(uint32_t crc, const void *data, size_t length);
/* What s3_crc32c_join() needs to know of a length. */
uint32_t s3_crc32c_shift(size_t length);
/* The CRC32C of two pieces in a row, from that of each; shift: of the second one's length. */
uint32_t s3_crc32c_join(uint32_t first, uint32_t second, uint32_t shift);

/* A buffer that grows. After a failed allocation it stays failed and takes nothing more. */
struct s3_buffer {
	uint8_t *data;
	size_t length, room;
	bool failed;
};

void s3_buffer_free(struct s3_buffer *b);
/* length more bytes, not initialised; NULL: no memory. Valid until the next call. */
uint8_t *s3_buffer_grow(struct s3_buffer *b, size_t length);
void s3_buffer_number(struct s3_buffer *b, uint64_t v, size_t bytes);
void s3_buffer_bytes(struct s3_buffer *b, const void *data, size_t length);
/* 7 bits in a byte, the lowest first: 1 to 10 bytes. */
void s3_buffer_varint(struct s3_buffer *b, uint64_t v);
void s3_buffer_signed(struct s3_buffer *b, int64_t v);

/* Reads on from next. Once it ran over the end it is bad and yields zeroes. */
struct s3_reader {
	const uint8_t *next, *end;
	bool bad;
};

uint64_t s3_read_number(struct s3_reader *r, size_t bytes);
const uint8_t *s3_read_bytes(struct s3_reader *r, size_t length);
uint64_t s3_read_varint(struct s3_reader *r);
int64_t s3_read_signed(struct s3_reader *r);

static inline size_t s3_read_left(const struct s3_reader *r)
{
	return (size_t)(r->end - r->next);
}

#endif
