/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * From blocks to what is stored of an object, and back: as they are, with a checksum of each, or
 * in units, compressed, encrypted, or both (transform.h). Which, is the volume's.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"

int s3_stored_init(const struct s3_volume *v, struct s3_stored *s, size_t length)
{
	*s = (struct s3_stored){0};
	if (!v->transforms)
		return 0;
	s->room = s3_transform_room(length);
	/* Pages that data which shrinks never reaches are never given. */
	s->data = mmap(NULL, s->room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (s->data == MAP_FAILED)
		s->data = NULL;
	s->units = malloc(s3_transform_units(length) * sizeof *s->units);
	if (s->data && s->units)
		return 0;
	s3_stored_free(s);
	return -ENOMEM;
}

void s3_stored_free(struct s3_stored *s)
{
	if (s->data)
		munmap(s->data, s->room);
	free(s->units);
	*s = (struct s3_stored){0};
}

int s3_seal(const struct s3_volume *v, struct s3_header_writer *w, void *data, const uint32_t *crcs,
	struct s3_stored *s, struct iovec iov[2], struct s3_object_header *header)
{
	size_t length = (size_t)w->header.blocks << v->shift, bytes;

	if (v->transforms && length) {
		int r = s3_transform_encode(
			v->transforms[0], &w->header, data, length, s->data, s->units, &length);

		if (r)
			return r;
		data = s->data;
		bytes = s3_header_finish_units(w, s->units);
	} else {
		bytes = s3_header_finish(w, crcs);
	}
	/* What nobody could read is not stored. */
	if (bytes == 0 || s3_header_decode(w->buffer, bytes, v->super.uuid, header) != S3_GOOD)
		return -EINVAL;
	iov[0] = (struct iovec){w->buffer, bytes};
	iov[1] = (struct iovec){data, length};
	return 0;
}

uint32_t s3_seal_crc32c(const struct s3_volume *v, const struct iovec iov[2], const uint32_t *crcs)
{
	uint32_t crc = s3_crc32c(0, iov[0].iov_base, iov[0].iov_len);
	uint32_t shift = s3_crc32c_shift(v->block_size);

	if (v->transforms)
		return s3_crc32c(crc, iov[1].iov_base, iov[1].iov_len);
	for (size_t i = 0; i < iov[1].iov_len >> v->shift; i++)
		crc = s3_crc32c_join(crc, crcs[i], shift);
	return crc;
}

bool s3_seal_fits(const struct s3_volume *v, const struct s3_object_header *header)
{
	return !header->blocks || header->flags == v->super.features;
}

int s3_unseal(const struct s3_volume *v, uint8_t origin, const struct s3_object_header *header,
	uint32_t first, const uint8_t *stored, const bool *wanted, uint8_t *data)
{
	size_t left = ((size_t)header->blocks << v->shift) - (size_t)first * S3_UNIT;
	int r = 0;

	for (uint32_t i = first; r == 0 && i < header->n_crc; i++) {
		struct s3_unit unit = s3_header_unit(header, i);
		size_t n = left < S3_UNIT ? left : S3_UNIT;

		if (wanted[i])
			r = s3_transform_decode(
				v->transforms[origin], header, i, &unit, stored, data, n);
		stored += unit.bytes;
		data += n;
		left -= n;
	}
	return r;
}
