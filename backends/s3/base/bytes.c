/* SPDX-License-Identifier: BSD-3-Clause */
#include <isa-l/crc.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"

/* ISA-L takes int lengths and neither inverts before nor after. */
uint32_t s3_crc32c(uint32_t crc, const void *data, size_t length)
{
	const unsigned char *p = data;

	crc = ~crc;
	while (length) {
		size_t n = length < INT_MAX ? length : INT_MAX;

		crc = crc32_iscsi((unsigned char *)p, (int)n, crc);
		p += n;
		length -= n;
	}
	return ~crc;
}

/* In this polynomial's field, bits reversed: the highest bit is the constant term. */
#define POLYNOMIAL 0x82f63b78u

static uint32_t multiply(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (; a; a <<= 1) {
		product ^= b & -(a >> 31);
		b = (b >> 1) ^ (POLYNOMIAL & -(b & 1));
	}
	return product;
}

uint32_t s3_crc32c_shift(size_t length)
{
	uint32_t power = 1u << 23, shift = 1u << 31; /* x^8, and 1 */

	for (; length; length >>= 1) {
		if (length & 1)
			shift = multiply(shift, power);
		power = multiply(power, power);
	}
	return shift;
}

uint32_t s3_crc32c_join(uint32_t first, uint32_t second, uint32_t shift)
{
	return multiply(first, shift) ^ second;
}

/* ---- writing ------------------------------------------------------------------- */

void s3_buffer_free(struct s3_buffer *b)
{
	free(b->data);
	memset(b, 0, sizeof *b);
}

uint8_t *s3_buffer_grow(struct s3_buffer *b, size_t length)
{
	if (b->failed)
		return NULL;
	if (length > b->room - b->length) {
		size_t room = b->room + b->room / 2;
		uint8_t *data;

		if (room < b->length + length)
			room = b->length + length;
		if (room < 256)
			room = 256;
		data = realloc(b->data, room);
		if (!data) {
			b->failed = true;
			return NULL;
		}
		b->data = data;
		b->room = room;
	}
	b->length += length;
	return b->data + b->length - length;
}

void s3_buffer_number(struct s3_buffer *b, uint64_t v, size_t bytes)
{
	uint8_t *p = s3_buffer_grow(b, bytes);

	if (p)
		s3_le_store(p, v, bytes);
}

void s3_buffer_bytes(struct s3_buffer *b, const void *data, size_t length)
{
	uint8_t *p = s3_buffer_grow(b, length);

	if (p && length)
		memcpy(p, data, length);
}

void s3_buffer_varint(struct s3_buffer *b, uint64_t v)
{
	uint8_t bytes[10];
	size_t n = 0;

	do {
		bytes[n] = (uint8_t)(v & 0x7f);
		v >>= 7;
		if (v)
			bytes[n] |= 0x80;
		n++;
	} while (v);
	s3_buffer_bytes(b, bytes, n);
}

/* Zigzag: small numbers of either sign are short. */
void s3_buffer_signed(struct s3_buffer *b, int64_t v)
{
	s3_buffer_varint(b, (uint64_t)v << 1 ^ (v < 0 ? UINT64_MAX : 0));
}

/* ---- reading ------------------------------------------------------------------- */

const uint8_t *s3_read_bytes(struct s3_reader *r, size_t length)
{
	const uint8_t *p = r->next;

	if (r->bad || length > s3_read_left(r)) {
		r->bad = true;
		return NULL;
	}
	r->next += length;
	return p;
}

uint64_t s3_read_number(struct s3_reader *r, size_t bytes)
{
	const uint8_t *p = s3_read_bytes(r, bytes);

	return p ? s3_le_load(p, bytes) : 0;
}

/* Only the shortest form of a number is accepted, so that what is decoded has one encoding. */
uint64_t s3_read_varint(struct s3_reader *r)
{
	uint64_t v = 0;

	for (unsigned shift = 0; shift < 64; shift += 7) {
		const uint8_t *p = s3_read_bytes(r, 1);
		uint64_t part;

		if (!p)
			return 0;
		part = *p & 0x7f;
		if (shift == 63 && part > 1)
			break;
		v |= part << shift;
		if (!(*p & 0x80)) {
			if (!part && shift)
				break;
			return v;
		}
	}
	r->bad = true;
	return 0;
}

int64_t s3_read_signed(struct s3_reader *r)
{
	uint64_t v = s3_read_varint(r);

	return (int64_t)(v >> 1 ^ (v & 1 ? UINT64_MAX : 0));
}
