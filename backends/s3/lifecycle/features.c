/* SPDX-License-Identifier: BSD-3-Clause */
/* Compression and encryption. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/s3/client/credentials.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "backends/s3/lifecycle/internal.h"

int s3_volume_read_key(struct s3_volume *v, const char *path)
{
	int r = s3_transform_read_key(path, v->key);

	if (r == -EINVAL)
		return s3_volume_refuse(v, r,
			"encryption-key=%s: does not have exactly %d bytes; create a key with head "
			"-c %d /dev/urandom",
			path, S3_KEY_BYTES, S3_KEY_BYTES);
	return r ? s3_volume_refuse(v, r,
			   "encryption-key=%s: cannot be read: %s; give the file with the key",
			   path, strerror(-r))
		 : 0;
}

static void warn_of_key(const struct s3_volume *v, const char *path)
{
	char label[PATH_MAX + 16];
	struct stat st;

	snprintf(label, sizeof label, "encryption-key=%s", path);
	if (stat(path, &st) == 0)
		s3_warn_if_public(&st, label, &v->host);
}

int s3_volume_check_features(struct s3_volume *v, const struct s3_config *c)
{
	bool aes = v->super.features & S3_FEATURE_AES;
	uint8_t check[sizeof v->super.key_check];
	int r = 0;

	if (aes && !c->encryption_key)
		return s3_volume_refuse(v, -EACCES,
			"volume=%s: is encrypted; give the file with its key as encryption-key=",
			v->name);
	if (!aes && c->encryption_key)
		return s3_volume_refuse(v, -EINVAL,
			"encryption-key=%s: volume=%s is not encrypted, which is decided when it "
			"is created; leave encryption-key= out, or copy it to one that is",
			c->encryption_key, v->name);
	if (aes)
		r = s3_transform_key_check(v->key, v->super.uuid, check);
	if (r == 0 && aes && memcmp(check, v->super.key_check, sizeof check))
		r = s3_volume_refuse(v, -EACCES,
			"encryption-key=%s: is not the key of volume=%s; give the one that it was "
			"created with, or that userblk-s3 rekey has given it since",
			c->encryption_key, v->name);
	if (r == 0 && c->compress == S3_COMPRESS_ZSTD && !(v->super.features & S3_FEATURE_ZSTD))
		r = s3_volume_refuse(v, -EINVAL,
			"compress=zstd: volume=%s is not compressed, which is decided when it is "
			"created; leave compress= out, or copy it to one that is",
			v->name);
	if (r == 0 && aes)
		warn_of_key(v, c->encryption_key);
	return r;
}

/* The keys that the volume's data and its ancestors' is encrypted with. */
static int open_volume_keys(struct s3_volume *v)
{
	int r;

	v->volume_keys = calloc(1 + v->super.n_parents, sizeof *v->volume_keys);
	if (!v->volume_keys)
		return -ENOMEM;
	r = s3_transform_volume_keys(v->key, &v->super, v->volume_keys);
	return r == -EBADMSG
		       ? s3_volume_refuse(v, -EINVAL,
				 "volume=%s: the keys in %ssuper are damaged; put back a copy "
				 "of that object",
				 v->name, v->base)
		       : r;
}

int s3_volume_make_transforms(struct s3_volume *v)
{
	const struct s3_super *s = &v->super;
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int r = 0;

	v->n_sealers = 1;
	if (!s->features)
		return 0;
	v->n_sealers = cpus < 1 ? 1 : cpus < S3_MAX_SEALERS ? (unsigned)cpus : S3_MAX_SEALERS;
	v->transforms = calloc(1 + s->n_parents, sizeof(struct s3_transform *));
	if (!v->transforms)
		return -ENOMEM;
	if (s->features & S3_FEATURE_AES)
		r = open_volume_keys(v);
	for (unsigned i = 0; r == 0 && i <= s->n_parents; i++)
		r = s3_transform_new(s->features, v->volume_keys ? v->volume_keys[i] : NULL,
			i ? s->parents[i - 1].uuid : s->uuid, &v->transforms[i]);
	return r;
}
