/* SPDX-License-Identifier: BSD-3-Clause */
/* What a store has to be able to do. */
#include <errno.h>

#include "backends/backend.h"
#include "backends/s3/base/bytes.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/probe.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"

/* The tag of no object: the digest of an empty one, which the probe is not. */
#define OTHER_ETAG "\"d41d8cd98f00b204e9800998ecf8427e\""

/* Puts an object that must not replace the probe. 1: the store did so, or knows no such condition.
 */
static int try_replace(struct s3_volume *v, const char *key, const char *etag)
{
	struct iovec iov = {(void *)"another", 7};
	struct s3_request req;
	int r = s3_volume_put_at(v, key, &iov, 1, etag, v->deadline, &req);

	if (r == 0 || r == -EOPNOTSUPP)
		return 1;
	return r == -EEXIST ? 0 : s3_volume_refuse(v, r, "%s", req.message);
}

/*
 * Does the store honour If-None-Match and If-Match? Without the first, two writers could put the
 * same object of the log. Without the second, replacing what a fenced writer left could also
 * replace the fence of the next writer. In both cases two writers would acknowledge writes.
 */
static int probe_conditions(struct s3_volume *v)
{
	static const char *const lacks[] = {
		NULL, "If-None-Match", "If-Match", "If-None-Match and If-Match"};
	struct s3_name name = {.kind = S3_NAME_PROBE};
	char key[S3_KEY_MAX + 1];
	struct s3_request req, last;
	int r = s3_random(name.uuid), none_match, match = 0;

	if (r)
		return r;
	s3_volume_key(v, &name, key);
	r = s3_volume_put(v, key, "probe", 5, true, &req);
	/* The number is random, so an object of that name is from an attempt whose reply was lost.
	 */
	if (r && r != -EEXIST && r != -EOPNOTSUPP)
		return s3_volume_refuse(v, r, "%s", req.message);
	none_match = r == -EOPNOTSUPP ? 1 : try_replace(v, key, NULL);
	if (r == -EOPNOTSUPP) /* for If-Match there has to be one */
		s3_volume_put(v, key, "probe", 5, false, &req);
	if (none_match >= 0)
		match = try_replace(v, key, OTHER_ETAG);
	s3_volume_delete(v, key, &last);
	if (none_match < 0 || match < 0)
		return none_match < 0 ? none_match : match;
	if (!none_match && !match)
		return 0;
	return s3_volume_refuse(v, -EOPNOTSUPP,
		"fencing=auto: this store ignores %s and cannot keep a second writer out; use "
		"another store, fencing=none if you ensure that there is only one writer, or "
		"readonly=on",
		lacks[none_match + 2 * match]);
}

/* Sets v->checksums if the store refuses data that does not fit its checksum; says if it does not.
 */
static int probe_checksums(struct s3_volume *v)
{
	struct s3_name name = {.kind = S3_NAME_PROBE};
	struct iovec iov = {(void *)"probe", 5};
	uint32_t wrong = ~s3_crc32c(0, iov.iov_base, iov.iov_len);
	char key[S3_KEY_MAX + 1];
	struct s3_request last, req = {
					.op = S3_PUT,
					.pool = S3_POOL_BACKGROUND,
					.key = key,
					.iov = &iov,
					.iovcnt = 1,
					.crc32c = &wrong,
					.crc32c_once = true,
					.retry_deadline = v->deadline,
				};
	int r = s3_random(name.uuid);

	if (r)
		return r;
	s3_volume_key(v, &name, key);
	r = s3_volume_put_with_reserve(v, &req);
	v->checksums = r == -EBADMSG;
	if (v->checksums)
		return 0;
	if (r && r != -EINVAL && r != -EOPNOTSUPP)
		return s3_volume_refuse(v, r, "%s", req.message);
	if (r == 0)
		s3_volume_delete(v, key, &last);
	backend_error(&v->host,
		"payload-signing=crc32c: this store does not check a CRC32C; what is uploaded is "
		"signed with SHA-256 instead; leave payload-signing= out");
	return 0;
}

int s3_volume_probe(struct s3_volume *v)
{
	int r = 0;

	if (v->probed)
		return 0;
	if (v->conditional)
		r = probe_conditions(v);
	if (r == 0 && v->wants_checksums)
		r = probe_checksums(v);
	v->probed = r == 0;
	return r;
}
