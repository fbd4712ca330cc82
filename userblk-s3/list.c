/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/requests.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/lifecycle/lifecycle.h"
#include "userblk-s3/list.h"
#include "userblk-s3/session.h"

static void add_entry(struct answer *answer, const char *name, const char *state)
{
	char line[S3_KEY_MAX + 64];

	snprintf(line, sizeof line,
		"entry [\"%s\", \"%s\", null, null, null, null, null, null, null]", name, state);
	answer_line(answer, line);
}

static void add_volume(struct answer *answer, const char *name, const struct s3_super *s)
{
	char line[2 * S3_KEY_MAX + 256], parent[S3_KEY_MAX + 3] = "null";

	if (s->n_parents)
		snprintf(parent, sizeof parent, "\"%s\"", s->parents[0].path);
	snprintf(line, sizeof line,
		"entry [\"%s\", \"good\", \"%s\", %" PRIu64 ", %u, %s, %s, %s, %" PRIu64 "]", name,
		s->layout == S3_LAYOUT_LOG ? "log" : "direct", s->blocks << s->block_shift,
		1u << s->block_shift, s->features & S3_FEATURE_ZSTD ? "true" : "false",
		s->features & S3_FEATURE_AES ? "true" : "false", parent, s->created);
	answer_line(answer, line);
}

/* What is below "<prefix>/<name>/"? Nothing is added for what is no volume. */
static int look(struct s3_volume *v, const char *prefix, const char *name, struct answer *answer)
{
	static const enum s3_name_kind kinds[] = {S3_NAME_SUPER, S3_NAME_DELETED};

	for (int i = 0; i < 2; i++) {
		struct s3_name what = {.kind = kinds[i]};
		char key[S3_KEY_MAX + 1];
		struct s3_request req;
		struct s3_super super;
		enum s3_check check;
		size_t length;
		void *data;
		int n, r;

		n = snprintf(key, sizeof key, "%s/%s/", prefix, name);
		s3_name_format(&what, key + n);
		r = s3_volume_get_all(v, key, &data, &length, &req);
		if (r == -ENOENT)
			continue;
		if (r)
			return s3_volume_refuse(v, r, "%s", req.message);
		check = s3_super_decode(data, length, &super);
		free(data);
		if (i == 1)
			add_entry(answer, name, "half deleted");
		else if (check == S3_GOOD)
			add_volume(answer, name, &super);
		else
			add_entry(answer, name,
				check == S3_NEWER || check == S3_UNKNOWN_FLAG ? "newer format"
									      : "damaged");
		if (check == S3_GOOD)
			s3_super_free(&super);
		return 0;
	}
	return 0;
}

int list_volumes(const struct options *o, struct answer *answer)
{
	const char *prefix = o->config.prefix;
	struct backend_host host = session_host(answer);
	char top[S3_KEY_MAX + 1], *token = NULL;
	struct s3_volume *v;
	int r = s3_volume_attach(&o->config, &host, &v);

	if (r)
		return r;
	snprintf(top, sizeof top, "%s/", prefix);
	do {
		struct s3_request req = {
			.op = S3_LIST,
			.pool = S3_POOL_BACKGROUND,
			.key = top,
			.token = token,
			.delimiter = true,
			.retry_deadline = v->deadline,
		};

		r = s3_store_call(v->store, &req);
		free(token);
		token = NULL;
		if (r) {
			s3_volume_refuse(v, r, "%s", req.message);
			break;
		}
		for (size_t i = 0; r == 0 && i < req.listing.n_objects; i++) {
			char *name = req.listing.objects[i].key + strlen(top);

			name[strcspn(name, "/")] = 0;
			if (req.listing.objects[i].is_prefix && s3_name_valid(name))
				r = look(v, prefix, name, answer);
		}
		if (r == 0 && req.listing.token) {
			token = strdup(req.listing.token);
			r = token ? 0 : -ENOMEM;
		}
		s3_listing_free(&req.listing);
	} while (r == 0 && token);
	free(token);
	s3_volume_detach(v);
	return r;
}
