/* SPDX-License-Identifier: BSD-3-Clause */
/* The form in which data is stored, and back: compressed, encrypted, or as it is. */
#ifndef USERBLK_S3_SEAL_H
#define USERBLK_S3_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct s3_header_writer;
struct s3_object_header;
struct s3_unit;
struct s3_volume;

/* Where a full batch gets the form in which it is stored; empty in a volume without features. */
struct s3_stored {
	uint8_t *data;
	size_t room;
	struct s3_unit *units;
};

/* For data of up to length bytes. 0 or -ENOMEM. */
int s3_stored_init(const struct s3_volume *v, struct s3_stored *s, size_t length);
void s3_stored_free(struct s3_stored *s);
/*
 * Completes an object of this volume, whose records w holds, over data of w->header.blocks blocks:
 * iov is what must be stored. crcs: of the blocks; not looked at where data is transformed.
 * header: decoded, points into w's memory. Many threads may do it at once. 0, -ENOMEM, -EIO (a
 * library failed), -EINVAL (the records make no header).
 */
int s3_seal(const struct s3_volume *v, struct s3_header_writer *w, void *data, const uint32_t *crcs,
	struct s3_stored *s, struct iovec iov[2], struct s3_object_header *header);
/* The CRC32C of what s3_seal() has made, of the same crcs. */
uint32_t s3_seal_crc32c(const struct s3_volume *v, const struct iovec iov[2], const uint32_t *crcs);
/* Has the object's data the form that this volume's objects have? Else it is not of this device. */
bool s3_seal_fits(const struct s3_volume *v, const struct s3_object_header *header);
/*
 * Restores units of transformed data (stored: from unit first on) into the places that they have in
 * the object's blocks at data, which begin with that unit; wanted: which, of header->n_crc. 0,
 * -EBADMSG: damaged; -ENOMEM, -EIO.
 */
int s3_unseal(const struct s3_volume *v, uint8_t origin, const struct s3_object_header *header,
	uint32_t first, const uint8_t *stored, const bool *wanted, uint8_t *data);

#endif
