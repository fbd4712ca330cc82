/* SPDX-License-Identifier: BSD-3-Clause */
/* The super object: whose is it, and its changes while the volume is open. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/fence.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/super.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"

int s3_super_look(
	struct s3_volume *v, const char *key, const uint8_t uuid[S3_UUID], uint32_t *epoch)
{
	struct s3_super super;
	struct s3_request req;
	enum s3_check check;
	void *data;
	size_t n;
	int r = s3_volume_get_all(v, key, &data, &n, &req);

	if (r)
		return r;
	check = s3_super_decode(data, n, &super);
	free(data);
	if (check != S3_GOOD)
		return check == S3_NO_MEMORY ? -ENOMEM : -EIO;
	r = memcmp(super.uuid, uuid, S3_UUID) ? -ESTALE : 0;
	if (epoch)
		*epoch = super.epoch;
	s3_super_free(&super);
	return r;
}

/* Reports that it was not stored. */
static int refuse_change(struct s3_volume *v, int r, const char *late, const struct s3_request *req)
{
	if (late && s3_may_arrive(req))
		return s3_volume_refuse(v, r, "%s; %s", req->message, late);
	return s3_volume_refuse(v, r, "%s", req->message);
}

/* One attempt. -EEXIST: somebody else has changed it meanwhile. */
static int try_change_super(struct s3_volume *v, const char *key,
	int (*change)(void *opaque, struct s3_volume *v, struct s3_super *super), void *opaque,
	const char *late, struct s3_request *req)
{
	struct s3_buffer out = {0};
	char etag[S3_ETAG_MAX + 1];
	struct s3_super super;
	enum s3_check check;
	void *data;
	size_t n;
	int r = s3_volume_get_all(v, key, &data, &n, req);

	if (r == -EEXIST)
		r = -EIO;
	if (r)
		return r == -ENOMEM ? r : s3_volume_refuse(v, r, "%s", req->message);
	strcpy(etag, req->etag);
	check = s3_super_decode(data, n, &super);
	free(data);
	if (check == S3_GOOD && memcmp(super.uuid, v->super.uuid, S3_UUID) != 0) {
		s3_super_free(&super);
		check = S3_OTHER_VOLUME;
	}
	if (check != S3_GOOD)
		return check == S3_NO_MEMORY ? -ENOMEM
					     : s3_volume_refuse(v, -EIO, "volume=%s: %s %s",
						       v->name, key, s3_check_text(check));
	r = change(opaque, v, &super);
	if (r == 1) {
		super.epoch = v->epoch;
		s3_super_encode(&super, &out);
		r = out.failed ? -ENOMEM : s3_check_not_fenced(v);
		if (r && r != -ENOMEM && r != -ESTALE)
			s3_volume_refuse(v, r, "volume=%s: %s", v->name, strerror(-r));
		if (r == 0) {
			struct iovec iov = {out.data, out.length};

			r = s3_volume_put_at(v, key, &iov, 1, etag, v->deadline, req);
			if (r && r != -EEXIST)
				refuse_change(v, r, late, req);
		}
		s3_buffer_free(&out);
	}
	s3_super_free(&super);
	return r == -ESTALE ? -EIO : r;
}

int s3_volume_change_super(struct s3_volume *v,
	int (*change)(void *opaque, struct s3_volume *v, struct s3_super *super), void *opaque,
	const char *late)
{
	struct s3_name name = {.kind = S3_NAME_SUPER};
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r = -EEXIST;

	s3_volume_key(v, &name, key);
	/* Again if somebody else has changed it meanwhile, or our own attempt had arrived. */
	for (int i = 0; r == -EEXIST && i < 3; i++)
		r = try_change_super(v, key, change, opaque, late, &req);
	return r == -EEXIST ? s3_volume_refuse(v, -EIO, "volume=%s: %s", v->name, req.message) : r;
}
