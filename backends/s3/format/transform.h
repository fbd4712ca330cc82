/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Compression (zstd) and encryption (AES-256-GCM) of an object's data, in units of S3_UNIT bytes
 * so that a part can be read.
 *
 * A nonce never repeats: each object is encrypted with a key of its own, HMAC-SHA256(volume's
 * key, salt, object's number), where the salt is 128 random bits drawn each time that an object is
 * built, and the nonce is the index of the unit. So it does not matter that a sequence number
 * may be built twice with different data: by a writer that has been fenced and its successor, or
 * after recovery cut off what came after a gap. A repeated PUT sends the same bytes. Associated
 * data (uuid, object's number, index of the unit) ties each unit to its place.
 *
 * A volume's key is random. The super object holds it, and those of the ancestors of a clone,
 * wrapped: encrypted (AES-256-GCM) with HMAC-SHA256(HMAC-SHA256(user's key, uuid), salt), the
 * salt drawn each time, with all uuids as associated data. So the user's key can be changed
 * without touching data, and volumes may share a key file. The key of a volume that an older
 * program made is HMAC-SHA256(user's key, uuid).
 */
#ifndef USERBLK_S3_TRANSFORM_H
#define USERBLK_S3_TRANSFORM_H

#include <stddef.h>
#include <stdint.h>

#include "backends/s3/format/format.h"

struct s3_transform;

/*
 * features: S3_FEATURE_; key: the volume's, S3_KEY_BYTES, NULL without S3_FEATURE_AES. uuid: of
 * the volume that the objects belong to; a clone needs one for each ancestor. May be used by any
 * number of threads.
 * 0, -ENOMEM, -EIO (a library failed).
 */
int s3_transform_new(
	uint32_t features, const uint8_t *key, const uint8_t *uuid, struct s3_transform **out);
void s3_transform_free(struct s3_transform *t);

/* Reads a key file: exactly S3_KEY_BYTES bytes. 0; -EINVAL: another length; other errno. */
int s3_transform_read_key(const char *path, uint8_t *key);
/* What the super keeps (key_check): tells a wrong key at open. 0 or -EIO. */
int s3_transform_key_check(const uint8_t *key, const uint8_t *uuid, uint8_t check[16]);
/* Draws a volume's key. 0 or -EIO. */
int s3_transform_draw_key(uint8_t key[S3_KEY_BYTES]);
/* The key that a volume of an older program has by the user's key. 0 or -EIO. */
int s3_transform_derive_key(
	const uint8_t *user_key, const uint8_t *uuid, uint8_t key[S3_KEY_BYTES]);
/*
 * Wraps keys, 1 + super->n_parents of them, the volume's first, into S3_WRAPPED(super->n_parents)
 * bytes. Only the uuids of super are read. 0, -ENOMEM or -EIO.
 */
int s3_transform_wrap_keys(const uint8_t *user_key, const struct s3_super *super,
	const uint8_t (*keys)[S3_KEY_BYTES], uint8_t *wrapped);
/* The keys of the super's volume and its ancestors, unwrapped or derived. 0; -EBADMSG: they were
 * not wrapped with user_key, or are damaged; -ENOMEM, -EIO. */
int s3_transform_volume_keys(
	const uint8_t *user_key, const struct s3_super *super, uint8_t (*keys)[S3_KEY_BYTES]);

/* Bytes that data of length bytes may take when stored. */
size_t s3_transform_room(size_t length);
/* Units of data of length bytes. */
static inline uint32_t s3_transform_units(size_t length)
{
	return (uint32_t)((length + S3_UNIT - 1) / S3_UNIT);
}

/*
 * Transforms length bytes into out (s3_transform_room() bytes). Draws header->salt; header->id is
 * set. units: s3_transform_units(length) of them. stored: bytes of out. 0, -ENOMEM or -EIO.
 */
int s3_transform_encode(struct s3_transform *t, struct s3_object_header *header, const void *data,
	size_t length, void *out, struct s3_unit *units, size_t *stored);
/*
 * Restores unit index of the object of header (decoded): unit->bytes bytes at data into length
 * bytes (S3_UNIT, less for the last one) at out. -EBADMSG: damaged or forged; -ENOMEM, -EIO.
 */
int s3_transform_decode(struct s3_transform *t, const struct s3_object_header *header,
	uint32_t index, const struct s3_unit *unit, const void *data, void *out, size_t length);

#endif
