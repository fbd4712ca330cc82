/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Another encryption-key= for a volume: its own key, with which data is encrypted, is wrapped
 * again. That is one conditional PUT of the super object, so that the volume has either the old key
 * or the new one whenever this is cut short.
 */
#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/failpoint.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/super.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/keeper/snapshot.h"

/* Makes the super object that of the new key, unless it is already: then a reply was lost. */
static int change_key(void *opaque, struct s3_volume *v, struct s3_super *super)
{
	const uint8_t *key = opaque;
	uint8_t before[sizeof super->key_check], after[sizeof super->key_check];
	int r = s3_transform_key_check(v->key, super->uuid, before);

	if (r == 0)
		r = s3_transform_key_check(key, super->uuid, after);
	if (r || memcmp(super->key_check, after, sizeof after) == 0)
		return r;
	if (memcmp(super->key_check, before, sizeof before) != 0)
		return s3_volume_refuse(v, -EACCES,
			"volume=%s: another process has changed its key; open it again with the "
			"new key as encryption-key=",
			v->name);
	if (!super->wrapped)
		super->wrapped = malloc(S3_WRAPPED(super->n_parents));
	if (!super->wrapped)
		return -ENOMEM;
	r = s3_transform_wrap_keys(
		key, super, (const uint8_t(*)[S3_KEY_BYTES])v->volume_keys, super->wrapped);
	if (r)
		return s3_volume_refuse(
			v, r, "volume=%s: cannot encrypt its key: %s", v->name, strerror(-r));
	memcpy(super->key_check, after, sizeof after);
	return 1;
}

/* Is one of the volume's keys, or of its ancestors', computed from the user's? */
static int are_derived(const struct s3_volume *v, bool *derived)
{
	uint8_t key[S3_KEY_BYTES];
	int r = 0;

	*derived = false;
	for (unsigned i = 0; r == 0 && i <= v->super.n_parents; i++) {
		r = s3_transform_derive_key(
			v->key, i ? v->super.parents[i - 1].uuid : v->super.uuid, key);
		*derived |= r == 0 && CRYPTO_memcmp(key, v->volume_keys[i], sizeof key) == 0;
	}
	OPENSSL_cleanse(key, sizeof key);
	return r;
}

static int rekey(struct s3_volume *v, void *opaque)
{
	const uint8_t *key = opaque;
	int r;

	s3_failpoint(S3_FAIL_REKEY_SUPER_BEFORE);
	r = s3_volume_change_super(v, change_key, opaque,
		"the key may be changed all the same; keep both files until one has opened the "
		"volume");
	if (r)
		return r;
	s3_failpoint(S3_FAIL_REKEY_SUPER_AFTER);
	/* Clones that are made from now on have the new key as well. */
	memcpy(v->key, key, S3_KEY_BYTES);
	return 0;
}

int s3_volume_may_rekey(struct s3_volume *v, const uint8_t key[S3_KEY_BYTES])
{
	if (!v->volume_keys)
		return s3_volume_refuse(v, -EINVAL,
			"volume=%s: is not encrypted, which is decided when it is created; copy "
			"it to a volume that is",
			v->name);
	if (CRYPTO_memcmp(key, v->key, S3_KEY_BYTES) == 0)
		return s3_volume_refuse(v, -EINVAL,
			"volume=%s: already has this key; give another one as --new-encryption-key",
			v->name);
	return 0;
}

int s3_volume_rekey(struct s3_volume *v, const uint8_t key[S3_KEY_BYTES], bool *derived)
{
	uint8_t copy[S3_KEY_BYTES];
	int r = s3_volume_may_rekey(v, key);

	if (r)
		return r;
	r = are_derived(v, derived);
	if (r)
		return r;
	memcpy(copy, key, sizeof copy);
	r = s3_keeper_call(v, rekey, copy);
	OPENSSL_cleanse(copy, sizeof copy);
	return r;
}
