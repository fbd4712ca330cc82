/* SPDX-License-Identifier: BSD-3-Clause */
/* A volume's life: created, opened, served by some threads, closed. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "backends/s3/chunked/chunked.h"
#include "backends/s3/base/failpoint.h"
#include "backends/s3/client/credentials.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/log/writeback.h"

/* Seconds after which a request of an open is given up, unless retry-deadline= says otherwise. */
#define OPEN_DEADLINE 20
/* Headers after the newest root for which it is worth writing another at the end. */
#define MANY_HEADERS 64
/* Batches' worth of memory that a round of compaction takes at most. */
#define COMPACT_BATCHES 16
/* s that a request is tried for that somebody waits for and that changes nothing, or deletes. */
#define WAITED_DEADLINE 60
/* What a GET of an object of unknown size asks for first. */
#define FIRST_GET (64u << 10)
/* And what one of a header asks for. */
#define FIRST_HEADER (16u << 10)

uint64_t s3_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void s3_volume_key(const struct s3_volume *v, const struct s3_name *name, char *key)
{
	strcpy(key, v->base);
	s3_name_format(name, key + strlen(key));
}

void s3_volume_object_key(const struct s3_volume *v, uint64_t id, char *key)
{
	strcpy(key, v->base);
	s3_name_object(id, key + strlen(key));
}

void s3_volume_origin_key(const struct s3_volume *v, uint8_t origin, uint64_t id, char *key)
{
	if (!origin) {
		s3_volume_object_key(v, id, key);
		return;
	}
	/* read_super() has seen to the room. */
	strcpy(key, v->super.parents[origin - 1].path);
	strcat(key, "/");
	s3_name_object(id, key + strlen(key));
}

const uint8_t *s3_volume_origin_uuid(const struct s3_volume *v, uint8_t origin)
{
	return origin ? v->super.parents[origin - 1].uuid : v->super.uuid;
}

uint64_t s3_volume_size(const struct s3_volume *v)
{
	return (v->map ? s3_map_blocks(v->map) : v->super.blocks) << v->shift;
}

/* ---- failure -------------------------------------------------------------------- */

int s3_volume_refuse(struct s3_volume *v, int r, const char *format, ...)
{
	char text[S3_MESSAGE_MAX + 128];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	backend_error(&v->host, "%s", text);
	return r;
}

int s3_volume_refuse_clients(struct s3_volume *v, const char *why)
{
	return s3_volume_refuse(v, -ESTALE,
		"volume=%s: %s, and its clients are still there, counting on writes that may be "
		"lost; take the disk away from all of them, then create it anew",
		v->name, why);
}

void s3_volume_fail(struct s3_volume *v, int r, const char *format, ...)
{
	char text[S3_MESSAGE_MAX + 128];
	va_list args;
	int none = 0;

	if (atomic_compare_exchange_strong(&v->failed, &none, r)) {
		va_start(args, format);
		vsnprintf(text, sizeof text, format, args);
		va_end(args);
		backend_error(&v->host,
			"volume=%s: %s; all writes fail from now on, and those that were not "
			"flushed "
			"may be lost; mend it and start again",
			v->name, text);
	}
	v->layout->give_up(v);
}

void s3_volume_fence(struct s3_volume *v, const char *what)
{
	atomic_store(&v->fenced, true);
	s3_volume_fail(v, -EIO, "%s", what);
}

/* ---- requests that are waited for ------------------------------------------------- */

/* Without which a request that never succeeds would hold up its thread for ever. */
static uint32_t waited_deadline(const struct s3_volume *v)
{
	return v->deadline ? v->deadline : WAITED_DEADLINE;
}

/* Puts, once more if the store is full and the reserve makes room. */
static int put_with_reserve(struct s3_volume *v, struct s3_request *req)
{
	int r = s3_store_call(v->store, req);

	if (r == -ENOSPC && s3_space_make(v, req->message))
		r = s3_store_call(v->store, req);
	return r;
}

int s3_volume_put(struct s3_volume *v, const char *key, const void *data, size_t length,
	bool if_none_match, struct s3_request *req)
{
	struct iovec iov = {(void *)data, length};

	*req = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.iov = &iov,
		.iovcnt = 1,
		.if_none_match = if_none_match,
		.retry_deadline = v->deadline,
	};
	return put_with_reserve(v, req);
}

int s3_volume_put_at(struct s3_volume *v, const char *key, const struct iovec *iov, int iovcnt,
	const char *etag, uint32_t deadline, struct s3_request *req)
{
	*req = (struct s3_request){
		.op = S3_PUT,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.iov = iov,
		.iovcnt = iovcnt,
		.if_none_match = v->conditional && !etag,
		.if_match = v->conditional ? etag : NULL,
		.retry_deadline = deadline,
	};
	return put_with_reserve(v, req);
}

int s3_volume_get(
	struct s3_volume *v, const char *key, void *data, size_t length, struct s3_request *req)
{
	struct iovec iov = {data, length};

	*req = (struct s3_request){
		.op = S3_GET,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.iov = &iov,
		.iovcnt = 1,
		.allow_short = true,
		.retry_deadline = waited_deadline(v),
	};
	return s3_store_call(v->store, req);
}

int s3_volume_get_all(
	struct s3_volume *v, const char *key, void **data, size_t *length, struct s3_request *req)
{
	size_t room = FIRST_GET;
	int r;

	for (;;) {
		*data = malloc(room);
		if (!*data)
			return -ENOMEM;
		r = s3_volume_get(v, key, *data, room, req);
		if (r == 0 && req->object_size <= room) {
			*length = req->bytes;
			return 0;
		}
		free(*data);
		*data = NULL;
		if (r)
			return r;
		room = req->object_size;
	}
}

int s3_volume_get_header(struct s3_volume *v, uint64_t seq, void **data,
	struct s3_object_header *header, enum s3_check *check, struct s3_request *req)
{
	char key[S3_KEY_MAX + 1];
	size_t length = FIRST_HEADER;

	s3_volume_object_key(v, seq, key);
	for (;;) {
		int r;

		*data = malloc(length);
		if (!*data)
			return -ENOMEM;
		r = s3_volume_get(v, key, *data, length, req);
		if (r) {
			free(*data);
			return r;
		}
		*check = s3_header_decode(*data, req->bytes, v->super.uuid, header);
		if (*check != S3_SHORT || header->header_bytes <= length ||
			req->object_size < header->header_bytes)
			return 0;
		length = header->header_bytes;
		free(*data);
	}
}

int s3_volume_delete(struct s3_volume *v, const char *key, struct s3_request *req)
{
	*req = (struct s3_request){
		.op = S3_DELETE,
		.pool = S3_POOL_BACKGROUND,
		.key = key,
		.retry_deadline = waited_deadline(v),
	};
	return s3_store_call(v->store, req);
}

int s3_volume_list(struct s3_volume *v, const char *prefix, bool delimiter,
	int (*fn)(void *opaque, const struct s3_listed *listed), void *opaque,
	struct s3_request *req)
{
	char start[S3_KEY_MAX + 1], *token = NULL;
	int r;

	snprintf(start, sizeof start, "%s%s", v->base, prefix);
	do {
		*req = (struct s3_request){
			.op = S3_LIST,
			.pool = S3_POOL_BACKGROUND,
			.key = start,
			.token = token,
			.delimiter = delimiter,
			.retry_deadline = waited_deadline(v),
		};
		r = s3_store_call(v->store, req);
		free(token);
		token = NULL;
		if (r)
			return r;
		for (size_t i = 0; r == 0 && i < req->listing.n_objects; i++)
			r = fn(opaque, &req->listing.objects[i]);
		if (r == 0 && req->listing.token) {
			token = strdup(req->listing.token);
			r = token ? 0 : -ENOMEM;
		}
		s3_listing_free(&req->listing);
	} while (token);
	return r;
}

int s3_volume_any(struct s3_volume *v, const char *prefix, struct s3_request *req)
{
	int r;

	*req = (struct s3_request){
		.op = S3_LIST,
		.pool = S3_POOL_BACKGROUND,
		.key = prefix,
		.max_keys = 1,
		.retry_deadline = waited_deadline(v),
	};
	r = s3_store_call(v->store, req);
	if (r)
		return r;
	r = req->listing.n_objects > 0;
	if (r)
		snprintf(req->message, sizeof req->message, "%s", req->listing.objects[0].key);
	s3_listing_free(&req->listing);
	return r;
}

/* One attempt. -EEXIST: somebody else has changed it meanwhile. */
static int try_change_super(struct s3_volume *v, const char *key,
	int (*change)(void *opaque, struct s3_volume *v, struct s3_super *super), void *opaque,
	struct s3_request *req)
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
				s3_volume_refuse(v, r, "%s", req->message);
		}
		s3_buffer_free(&out);
	}
	s3_super_free(&super);
	return r == -ESTALE ? -EIO : r;
}

int s3_volume_change_super(struct s3_volume *v,
	int (*change)(void *opaque, struct s3_volume *v, struct s3_super *super), void *opaque)
{
	struct s3_name name = {.kind = S3_NAME_SUPER};
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	int r = -EEXIST;

	s3_volume_key(v, &name, key);
	/* Again if somebody else has changed it meanwhile, or our own attempt had arrived. */
	for (int i = 0; r == -EEXIST && i < 3; i++)
		r = try_change_super(v, key, change, opaque, &req);
	return r == -EEXIST ? s3_volume_refuse(v, -EIO, "volume=%s: %s", v->name, req.message) : r;
}

/* ---- create and open -------------------------------------------------------------- */

int s3_random(uint8_t uuid[S3_UUID])
{
	return getrandom(uuid, S3_UUID, 0) == S3_UUID ? 0 : -EIO;
}

/* A probe was left by one who ended while he opened the volume. */
static int meet_remains(void *opaque, const struct s3_listed *listed)
{
	struct s3_volume *v = opaque;
	struct s3_name name;

	if (strlen(listed->key) > strlen(v->base) &&
		s3_name_parse(listed->key + strlen(v->base), &name) && name.kind == S3_NAME_PROBE)
		return 0;
	return s3_volume_refuse(v, -EEXIST,
		"volume=%s: the bucket holds %s, which is not of a volume; choose another name or "
		"prefix, or finish a deletion that was interrupted with userblk-s3 delete",
		v->name, listed->key);
}

/* Is there anything under the volume's name that is no volume? */
static int check_empty(struct s3_volume *v)
{
	struct s3_request req;
	int r = s3_volume_list(v, "", false, meet_remains, v, &req);

	return r && r == req.result ? s3_volume_refuse(v, r, "%s", req.message) : r;
}

static int create(
	struct s3_volume *v, const struct s3_config *c, uint64_t size, const char *super_key)
{
	uint8_t wrapped[S3_WRAPPED(0)], volume_key[1][S3_KEY_BYTES];
	struct s3_super super = {.layout = c->layout};
	struct s3_buffer out = {0};
	struct s3_request req;
	int r;

	if (!size)
		return s3_volume_refuse(v, -EINVAL,
			"create=on: of what size? give size= as well, such as size=100G");
	if (size % 4096)
		return s3_volume_refuse(v, -EINVAL,
			"size=%" PRIu64 ": not a multiple of 4096; round it to %" PRIu64, size,
			(size / 4096 + 1) * 4096);
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
	if (r)
		return r;
	s3_super_encode(&super, &out);
	if (out.failed)
		return -ENOMEM;
	r = s3_volume_put(v, super_key, out.data, out.length, v->conditional, &req);
	s3_buffer_free(&out);
	/* If somebody else created it meanwhile, it is as good; what it is like is looked at. */
	if (r == -EEXIST && !c->exclusive)
		r = 0;
	return r ? s3_volume_refuse(v, r, "%s", req.message) : 0;
}

/* The tag of no object: the digest of an empty one, which the probe is not. */
#define OTHER_ETAG "\"d41d8cd98f00b204e9800998ecf8427e\""

/* Puts what is not to replace the probe. 1: the store did so, or knows no such condition. */
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
 * Does the store refuse to replace an object when told so? Without If-None-Match two writers could
 * put the same object of the log; without If-Match what a fenced writer left behind could not be
 * replaced without meeting the fence of the next one. Either makes two who both acknowledge.
 */
static int probe_conditional_put(struct s3_volume *v)
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
	/* The number is random: what is there is of an attempt whose reply was lost. */
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
		"fencing=auto: this store ignores %s, so that a second writer could not be kept "
		"out; use another store, or fencing=none if you see to it that there is one "
		"writer, or readonly=on",
		lacks[none_match + 2 * match]);
}

/* ---- compression and encryption ------------------------------------------------------ */

static int read_key(struct s3_volume *v, const char *path)
{
	int r = s3_transform_read_key(path, v->key);

	if (r == -EINVAL)
		return s3_volume_refuse(v, r,
			"encryption-key=%s: has not exactly %d bytes; make a key with head -c %d "
			"/dev/urandom",
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

/* Do the parameters go with the volume, which knows by itself how its data is stored? */
static int check_features(struct s3_volume *v, const struct s3_config *c)
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

static int make_transforms(struct s3_volume *v)
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

/* ---- open ----------------------------------------------------------------------------- */

/* Reads and checks the super object; creates it if that is asked for. */
static int read_super(struct s3_volume *v, const struct s3_config *c, uint64_t size)
{
	struct s3_name name = {.kind = S3_NAME_SUPER};
	char key[S3_KEY_MAX + 1];
	struct s3_request req;
	enum s3_check check;
	void *data;
	size_t length;
	int r;

	s3_volume_key(v, &name, key);
	r = s3_volume_get_all(v, key, &data, &length, &req);
	if (r == 0 && c->exclusive) {
		free(data);
		return s3_volume_refuse(v, -EEXIST,
			"volume=%s: there is one already; choose another name", v->name);
	}
	if (r == -ENOENT && v->host.clients_remain)
		return s3_volume_refuse_clients(v, "is gone");
	if (r == -ENOENT && c->create) {
		r = create(v, c, c->size ? c->size : size, key);
		if (r)
			return r;
		r = s3_volume_get_all(v, key, &data, &length, &req);
	}
	if (r == -ENOENT)
		return s3_volume_refuse(v, r,
			"volume=%s: there is none under prefix=%s; correct the name, or create it "
			"with "
			"create=on and size=",
			v->name, c->prefix);
	if (r == -ENOMEM)
		return r;
	if (r)
		return s3_volume_refuse(v, r, "%s", req.message);
	check = s3_super_decode(data, length, &v->super);
	free(data);
	if (check != S3_GOOD)
		return s3_volume_refuse(v, check == S3_NO_MEMORY ? -ENOMEM : -EINVAL,
			"volume=%s: %s %s", v->name, key, s3_check_text(check));
	r = check_features(v, c);
	if (r)
		return r;
	if (c->layout == S3_LAYOUT_DIRECT && v->super.layout != S3_LAYOUT_DIRECT)
		return s3_volume_refuse(v, -EEXIST,
			"layout=direct: the volume exists and is a log; leave layout= out, or use "
			"another name");
	if (c->snapshot && v->super.layout == S3_LAYOUT_DIRECT)
		return s3_volume_refuse(v, -EOPNOTSUPP,
			"snapshot=%s: volume %s has layout=direct, which has no snapshots; leave "
			"snapshot= out",
			c->snapshot, v->name);
	for (unsigned i = 0; i < v->super.n_parents; i++)
		if (strlen(v->super.parents[i].path) + 1 + S3_KEY_ROOM > S3_KEY_MAX)
			return s3_volume_refuse(v, -EINVAL,
				"volume=%s: %s has a parent of too long a name", v->name, key);
	v->shift = v->super.block_shift;
	v->block_size = 1u << v->shift;
	if (c->size && !c->snapshot && c->size != v->super.blocks << v->shift)
		return s3_volume_refuse(v, -EEXIST,
			"size=%" PRIu64 ": the volume exists with %" PRIu64
			" bytes; leave size= out, or resize it",
			c->size, v->super.blocks << v->shift);
	return 0;
}

static void init_locks(struct s3_volume *v)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&v->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&v->sealer_work, &attr);
	pthread_cond_init(&v->keeper_work, &attr);
	pthread_cond_init(&v->collector_work, &attr);
	pthread_cond_init(&v->quiet, &attr);
	pthread_condattr_destroy(&attr);
	v->stalled_tail = &v->stalled;
	v->sealing_tail = &v->sealing;
	v->orders_tail = &v->orders;
	v->collections_tail = &v->collections;
}

/*
 * What memory there is besides the batches: a quarter for checksums, a sixteenth for checkpoints
 * that wait, the rest for data, of which compaction may borrow up to half.
 */
static int make_caches(struct s3_volume *v, uint64_t bytes, uint64_t connections)
{
	uint64_t crcs = bytes / 4, most = COMPACT_BATCHES * v->batch_size;

	v->waiting_memory = bytes / 16;
	bytes -= v->waiting_memory;
	v->compact_memory = (bytes - crcs) / 2 < most ? (bytes - crcs) / 2 : most;
	v->crcs = s3_crc_cache_new(crcs);
	v->cache_bytes = bytes - crcs;
	v->cache = s3_cache_new(v->cache_bytes);
	if (!v->crcs || !v->cache)
		return -ENOMEM;
	v->streams = s3_streams_new(s3_cache_ahead_limit(v->cache));
	/* The others are for who waits. */
	v->ahead_max = (unsigned)(connections - connections / 4);
	return v->streams ? 0 : -ENOMEM;
}

static int attach_cachefile(struct s3_volume *v, const struct s3_config *c)
{
	struct s3_cachefile_volume volume = {.last_log = v->applied, .next_gc = v->next_gc};

	if (!v->cachefile)
		return 0;
	memcpy(volume.uuid, v->super.uuid, S3_UUID);
	memcpy(volume.before, v->predecessor, S3_UUID);
	memcpy(volume.now, c->readonly || c->snapshot ? v->predecessor : v->instance, S3_UUID);
	return s3_cachefile_attach(v->cachefile, &volume);
}

/* What layout=log has. */
static int open_log(struct s3_volume *v, const struct s3_config *c)
{
	uint64_t buffers = v->max_batches * v->batch_size;
	int r;

	if (v->transforms) {
		/* What is stored of a batch is beside it until it has been uploaded. */
		if (c->memory < 3 * buffers)
			return s3_volume_refuse(v, -EINVAL,
				"memory=%" PRIu64 ": too little for uploads=%" PRIu64
				" of batch-size=%" PRIu64
				" of a volume with compression or encryption; give %" PRIu64
				" or more",
				c->memory, c->uploads, c->batch_size, 3 * buffers);
		buffers += (v->max_batches + (v->writeback != NULL)) *
			   s3_transform_room(v->batch_size);
	}
	v->batch_blocks = (uint32_t)(v->batch_size >> v->shift);
	r = make_caches(v, c->memory - buffers, c->store.connections);
	if (r == 0)
		r = c->snapshot ? s3_recover_snapshot(v, c->snapshot) : s3_recover(v, c->readonly);
	return r ? r : attach_cachefile(v, c);
}

int s3_volume_load(struct s3_volume *v, const struct s3_config *c, uint64_t size)
{
	bool readonly = c->readonly || c->snapshot;
	int r = 0;

	v->batch_size = c->batch_size;
	v->uploads = (unsigned)c->uploads;
	/* One that is filled and one that is sealed. */
	v->max_batches = v->uploads + 2;
	v->flush_mode = c->flush;
	v->conditional = c->fencing == S3_FENCING_AUTO;
	v->checkpoint_every = c->checkpoint;
	v->gc_delay_ns = c->gc_delay * 1000000000;
	v->next_gc = S3_GC | 1;
	v->polite = c->polite;
	v->write_back_discard = c->write_back_discard;
	if (c->encryption_key)
		r = read_key(v, c->encryption_key);
	if (r == 0)
		r = s3_random(v->instance);
	if (r == 0)
		r = s3_failpoint_choose(&v->host);
	if (r == 0 && c->cache_file)
		r = s3_cachefile_open(c->cache_file, c->cache_size, &v->host, &v->cachefile);
	/* Who only reads sees what is in the store. */
	if (r == 0 && c->write_back && !readonly)
		r = s3_writeback_open(c->write_back, c->write_back_size, &v->host, &v->writeback);
	if (r == 0 && !readonly && v->conditional)
		r = probe_conditional_put(v);
	if (r == 0)
		r = read_super(v, c, size);
	if (r == 0)
		r = make_transforms(v);
	if (r == 0 && v->cachefile && v->super.features & S3_FEATURE_AES)
		r = s3_volume_refuse(v, -EOPNOTSUPP,
			"cache-file=%s: would hold the data of an encrypted volume as plain text; "
			"leave it out",
			c->cache_file);
	if (r == 0 && v->cachefile && v->super.layout == S3_LAYOUT_DIRECT)
		r = s3_volume_refuse(v, -EINVAL,
			"cache-file=%s: volume=%s has layout=direct, which has no cache; leave it "
			"out",
			c->cache_file, v->name);
	if (r == 0 && v->writeback && v->super.layout == S3_LAYOUT_DIRECT)
		r = s3_volume_refuse(v, -EINVAL,
			"write-back=%s: volume=%s has layout=direct, which has no log; leave it "
			"out",
			c->write_back, v->name);
	if (r)
		return r;
	if (v->super.layout == S3_LAYOUT_DIRECT && !c->readonly && c->polite && !c->create)
		r = s3_volume_refuse(v, -EBUSY,
			"volume=%s: has layout=direct, which does not tell whether a server has "
			"it; "
			"see that none has, and use --take-over",
			v->name);
	else if (v->super.layout == S3_LAYOUT_DIRECT && !c->readonly && v->host.clients_remain)
		r = s3_volume_refuse_clients(
			v, "has layout=direct, which does not tell how its last server ended");
	else if (v->super.layout == S3_LAYOUT_DIRECT)
		r = s3_direct_open(v, c);
	else
		r = open_log(v, c);
	if (r)
		return r;
	v->backend.size = s3_volume_size(v);
	v->backend.readonly = readonly;
	if (!readonly && v->layout->has_log)
		v->backend.session = s3_session(v->instance);
	v->deadline = 0;
	v->opened = s3_now();
	s3_store_park(v->store);
	return 0;
}

void s3_volume_detach(struct s3_volume *v)
{
	s3_store_close(v->store);
	v->layout->free(v);
	s3_cachefile_close(v->cachefile);
	s3_writeback_close(v->writeback);
	s3_cache_free(v->cache);
	s3_streams_free(v->streams);
	s3_map_free(v->map);
	s3_objects_free(v->objects);
	s3_crc_cache_free(v->crcs);
	s3_summary_abandon(&v->summary);
	for (unsigned i = 0; v->transforms && i <= v->super.n_parents; i++)
		s3_transform_free(v->transforms[i]);
	free(v->transforms);
	OPENSSL_cleanse(v->key, sizeof v->key);
	if (v->volume_keys)
		OPENSSL_cleanse(v->volume_keys, (1 + v->super.n_parents) * sizeof *v->volume_keys);
	free(v->volume_keys);
	s3_super_free(&v->super);
	s3_owed_drop(v);
	free(v->passed);
	free(v->regions);
	free(v->summaries);
	free(v->snapshots);
	s3_prune_free(v);
	while (v->kept) {
		struct s3_kept *next = v->kept->next;

		free(v->kept->regions);
		free(v->kept);
		v->kept = next;
	}
	free(v->name);
	pthread_cond_destroy(&v->quiet);
	pthread_cond_destroy(&v->collector_work);
	pthread_cond_destroy(&v->keeper_work);
	pthread_cond_destroy(&v->sealer_work);
	pthread_mutex_destroy(&v->lock);
	free(v);
}

int s3_volume_attach(
	const struct s3_config *c, const struct backend_host *host, struct s3_volume **out)
{
	struct s3_volume *v = calloc(1, sizeof *v);
	int r;

	if (!v)
		return -ENOMEM;
	v->host = *host;
	v->layout = &s3_log_layout;
	init_locks(v);
	snprintf(v->base, sizeof v->base, "%s/%s/", c->prefix, c->volume);
	v->name = strdup(c->volume);
	/* Who starts a server is to be told what is wrong, if he did not ask for patience. */
	v->deadline = c->store.retry_deadline && !c->hasty ? (uint32_t)c->store.retry_deadline
							   : OPEN_DEADLINE;
	v->close_timeout_ns = c->close_timeout * 1000000000;
	r = v->name ? s3_store_open(&c->store, &v->host, &v->store) : -ENOMEM;
	if (r) {
		s3_volume_detach(v);
		return r;
	}
	*out = v;
	return 0;
}

int s3_volume_open(const struct s3_config *config, uint64_t size, const struct backend_host *host,
	struct s3_volume **out)
{
	struct s3_volume *v;
	int r = s3_volume_attach(config, host, &v);

	if (r)
		return r;
	r = s3_volume_load(v, config, size);
	if (r) {
		s3_volume_detach(v);
		return r;
	}
	*out = v;
	return 0;
}

/* ---- threads and close ------------------------------------------------------------- */

/* Under the lock. 0 or a positive errno. */
static int make_threads(struct s3_volume *v)
{
	unsigned made = 0;
	int r = 0;

	while (r == 0 && made < v->n_sealers) {
		r = pthread_create(&v->sealers[made], NULL, s3_sealer, v);
		made += r == 0;
	}
	if (r == 0)
		r = s3_writeback_start(v);
	if (r == 0)
		r = pthread_create(&v->keeper, NULL, s3_keeper, v);
	if (r == 0) {
		r = pthread_create(&v->collector, NULL, s3_collector, v);
		if (r == 0)
			return 0;
		v->keeper_stopping = true;
		pthread_cond_broadcast(&v->keeper_work);
		pthread_mutex_unlock(&v->lock);
		pthread_join(v->keeper, NULL);
		pthread_mutex_lock(&v->lock);
		v->keeper_stopping = false;
	}
	v->stopping = true;
	pthread_cond_broadcast(&v->sealer_work);
	pthread_mutex_unlock(&v->lock);
	s3_writeback_stop(v);
	while (made)
		pthread_join(v->sealers[--made], NULL);
	pthread_mutex_lock(&v->lock);
	v->stopping = false;
	return r;
}

static int start_threads(struct s3_volume *v)
{
	sigset_t all, before;
	int r = 0;

	if (atomic_load_explicit(&v->started, memory_order_acquire))
		return 0;
	/* Signals are the framework's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_mutex_lock(&v->lock);
	if (!v->started) {
		r = make_threads(v);
		if (r == 0)
			atomic_store_explicit(&v->started, true, memory_order_release);
	}
	pthread_mutex_unlock(&v->lock);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

/* Ends the keeper, makes everything durable, leaves a checkpoint for a quick start. */
static void stop_threads(struct s3_volume *v)
{
	uint64_t seq;

	if (!v->started)
		return;
	/* Nothing can be saved any more: not even what is under way is waited for. */
	if (atomic_load(&v->failed))
		s3_store_stop(v->store);
	pthread_mutex_lock(&v->lock);
	v->keeper_stopping = true;
	pthread_cond_broadcast(&v->keeper_work);
	pthread_cond_broadcast(&v->collector_work);
	pthread_cond_broadcast(&v->quiet);
	pthread_mutex_unlock(&v->lock);
	pthread_join(v->collector, NULL);
	pthread_join(v->keeper, NULL);
	if (s3_log_drain(v) == 0) {
		pthread_mutex_lock(&v->lock);
		seq = v->applied;
		pthread_mutex_unlock(&v->lock);
		if (seq > v->checkpoint + 1)
			s3_checkpoint(v);
	}
	pthread_mutex_lock(&v->lock);
	v->stopping = true;
	pthread_cond_broadcast(&v->sealer_work);
	pthread_mutex_unlock(&v->lock);
	for (unsigned i = 0; i < v->n_sealers; i++)
		pthread_join(v->sealers[i], NULL);
	s3_writeback_stop(v);
}

void s3_volume_stop(struct s3_volume *v)
{
	if (!v->closing)
		v->closing = s3_closing_begin(v);
}

int s3_volume_finish(struct s3_volume *v)
{
	int r;

	/* Fences add up where a volume is often opened and not written. */
	if (v->layout->has_log && !v->started && !v->backend.readonly &&
		v->applied - v->checkpoint > MANY_HEADERS)
		v->layout->start(v);
	s3_volume_stop(v);
	v->layout->stop(v);
	s3_closing_end(v->closing);
	if (s3_is_drained(v))
		s3_writeback_empty(v);
	if (s3_close_cleanly(v))
		s3_writeback_unmark(v);
	pthread_mutex_lock(&v->lock);
	r = !v->layout->has_log || v->frontier != v->applied ? atomic_load(&v->failed) : 0;
	pthread_mutex_unlock(&v->lock);
	return r;
}

int s3_volume_close(struct s3_volume *v)
{
	int r = s3_volume_finish(v);

	s3_volume_detach(v);
	return r;
}

static size_t log_counters(struct s3_volume *v, struct backend_counter *counters, size_t max)
{
	struct s3_objects_totals totals;
	struct s3_cache_counters cache;
	struct s3_cachefile_counters disk = {0};
	struct s3_writeback_counters back;
	struct s3_stats *s = &v->stats;
	size_t n;

	s3_objects_totals(v->objects, &totals);
	s3_cache_counters(v->cache, &cache);
	if (v->cachefile)
		s3_cachefile_counters(v->cachefile, &disk);
	s3_writeback_counters(v, &back);
	const struct backend_counter all[] = {
		{"log_objects", s->log_objects},
		{"log_bytes", s->log_bytes},
		{"checkpoint_bytes", s->checkpoint_bytes},
		{"full_roots", s->full_roots},
		{"light_roots", s->light_roots},
		{"replayed", s->replayed},
		{"gc_objects", s->gc_objects},
		{"gc_bytes", s->gc_bytes},
		{"deleted", s->deleted},
		{"orphans", s->orphans},
		{"held_bytes", totals.held << v->shift},
		{"reads_memory", s->reads_memory},
		{"reads_store", s->reads_store},
		{"crc_retries", s->crc_retries},
		{"stalls", s->stalls},
		{"store_full", atomic_load(&v->refused) == -ENOSPC},
		{"objects", totals.objects},
		{"stored_bytes", totals.bytes},
		{"map_bytes", s3_map_memory(v->map) + totals.memory},
		{"cache_hit_bytes", cache.hits},
		{"cache_miss_bytes", cache.misses},
		{"cache_bytes", cache.bytes},
		{"cache_evictions", cache.evictions},
		{"read_ahead_used_bytes", cache.ahead_used},
		{"read_ahead_wasted_bytes", cache.ahead_wasted},
		{"cache_file_read_bytes", disk.read},
		{"cache_file_written_bytes", disk.written},
		{"cache_file_damaged", disk.damaged},
		{"cache_file_kept", disk.kept},
		{"write_back_entries", back.entries},
		{"write_back_bytes", back.bytes},
		{"write_back_syncs", back.syncs},
		{"write_back_used_bytes", back.used},
		{"write_back_full", back.full},
		{"write_back_failed", back.failed},
		{"write_back_replayed", back.replayed},
	};

	n = sizeof all / sizeof all[0];
	memcpy(counters, all, (n < max ? n : max) * sizeof *all);
	return n;
}

size_t s3_volume_counters(struct s3_volume *v, struct backend_counter *counters, size_t max)
{
	return v->layout->counters(v, counters, max);
}

/* ---- layout=log ------------------------------------------------------------------------- */

static void log_submit(struct s3_volume *v, struct backend_request *request)
{
	/* Once it has been answered the request is its owner's again. */
	uint64_t offset = request->offset, length = request->length;

	switch (request->op) {
	case BACKEND_READ:
		s3_read(v, request);
		s3_read_ahead(v, offset, length);
		return;
	case BACKEND_WRITE:
	case BACKEND_TRIM:
	case BACKEND_ZERO:
		s3_write(v, request);
		return;
	case BACKEND_FLUSH:
		s3_flush(v, request);
		return;
	}
}

const struct s3_layout_ops s3_log_layout = {
	.name = "log",
	.has_log = true,
	.submit = log_submit,
	.extents = s3_read_extents,
	.counters = log_counters,
	.start = start_threads,
	.stop = stop_threads,
	.give_up = s3_log_give_up,
	.free = s3_batches_free,
};
