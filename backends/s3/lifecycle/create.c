/* SPDX-License-Identifier: BSD-3-Clause */
/* A new volume. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include <openssl/crypto.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/config.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/probe.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/super.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "backends/s3/lifecycle/internal.h"

/*
 * A process that ended while it opened the volume left a probe. A super object that has appeared
 * since we looked for it is found again when we put ours.
 */
static int meet_remains(void *opaque, const struct s3_listed *listed)
{
	struct s3_volume *v = opaque;
	struct s3_name name;

	if (strlen(listed->key) > strlen(v->base) &&
		s3_name_parse(listed->key + strlen(v->base), &name) &&
		(name.kind == S3_NAME_PROBE || name.kind == S3_NAME_SUPER))
		return 0;
	return s3_volume_refuse(v, -EEXIST,
		"volume=%s: the bucket holds %s, which does not belong to a volume; choose another "
		"name or prefix, or finish a deletion that was interrupted with userblk-s3 delete",
		v->name, listed->key);
}

/* Is there anything under the volume's name that is no volume? */
static int check_empty(struct s3_volume *v)
{
	struct s3_request req;
	int r = s3_volume_list(v, "", false, meet_remains, v, &req);

	return r && r == req.result ? s3_volume_refuse(v, r, "%s", req.message) : r;
}

int s3_volume_create(
	struct s3_volume *v, const struct s3_config *c, uint64_t size, const char *super_key)
{
	uint8_t wrapped[S3_WRAPPED(0)], volume_key[1][S3_KEY_BYTES];
	struct s3_super super = {.layout = c->layout};
	uint64_t most = S3_BLOCKS_MAX * s3_config_block_size(c);
	struct s3_buffer out = {0};
	struct s3_request req;
	int r;

	if (!size)
		return s3_volume_refuse(v, -EINVAL,
			"create=on: needs a size; give size= as well, such as size=100G");
	if (size % 4096)
		return s3_volume_refuse(v, -EINVAL,
			"size=%" PRIu64 ": not a multiple of 4096; round it to %" PRIu64, size,
			(size / 4096 + 1) * 4096);
	if (size > most)
		return s3_volume_refuse(v, -EINVAL,
			"size=%" PRIu64 ": too large for blocks of %" PRIu32
			" bytes; give at most %" PRIu64,
			size, s3_config_block_size(c), most);
	r = check_empty(v);
	if (r)
		return r;
	super.block_shift = (unsigned)__builtin_ctz(s3_config_block_size(c));
	super.blocks = size >> super.block_shift;
	if (super.layout == S3_LAYOUT_DIRECT)
		super.chunk_blocks = (uint32_t)(c->chunk_size >> super.block_shift);
	super.created = (uint64_t)time(NULL);
	r = s3_random(super.uuid);
	if (c->compress == S3_COMPRESS_ZSTD)
		super.features |= S3_FEATURE_ZSTD;
	if (r == 0 && c->encryption_key) {
		super.features |= S3_FEATURE_AES;
		super.wrapped = wrapped;
		r = s3_transform_key_check(v->key, super.uuid, super.key_check);
		if (r == 0)
			r = s3_transform_draw_key(volume_key[0]);
		if (r == 0)
			r = s3_transform_wrap_keys(v->key, &super, volume_key, wrapped);
		OPENSSL_cleanse(volume_key, sizeof volume_key);
	}
	if (r == 0)
		r = s3_volume_probe(v);
	if (r)
		return r;
	s3_super_encode(&super, &out);
	if (out.failed)
		return -ENOMEM;
	r = s3_volume_put(v, super_key, out.data, out.length, v->conditional, &req);
	s3_buffer_free(&out);
	/*
	 * It may be ours, because a reply was lost. If somebody else created it meanwhile, it is as
	 * good; what it is like is looked at.
	 */
	if (r == -EEXIST && (!c->exclusive || s3_super_look(v, super_key, super.uuid, NULL) == 0))
		r = 0;
	return r ? s3_volume_refuse(v, r, "%s", req.message) : 0;
}
