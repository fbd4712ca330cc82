/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"

/* zstd's own default for speed; a volume's data is compressed while it is being written. */
#define LEVEL 1
#define NONCE 12

struct s3_transform {
	uint32_t features;
	uint8_t uuid[S3_UUID];
	uint8_t key[S3_KEY_BYTES]; /* of the volume */
};

static bool hmac(const uint8_t *key, const void *data, size_t length, uint8_t out[32])
{
	unsigned n = 0;

	return HMAC(EVP_sha256(), key, S3_KEY_BYTES, data, length, out, &n) && n == 32;
}

/* HMAC of purpose and uuid with the user's key: keys for different purposes have nothing in
 * common. */
static bool derive(const uint8_t *key, const char *purpose, const uint8_t *uuid, uint8_t out[32])
{
	uint8_t text[64] = {0};
	size_t length = strlen(purpose);

	memcpy(text, purpose, length);
	memcpy(text + length, uuid, S3_UUID);
	return hmac(key, text, length + S3_UUID, out);
}

int s3_transform_new(
	uint32_t features, const uint8_t *key, const uint8_t *uuid, struct s3_transform **out)
{
	struct s3_transform *t = calloc(1, sizeof *t);

	if (!t)
		return -ENOMEM;
	t->features = features;
	memcpy(t->uuid, uuid, S3_UUID);
	if (features & S3_FEATURE_AES)
		memcpy(t->key, key, S3_KEY_BYTES);
	*out = t;
	return 0;
}

void s3_transform_free(struct s3_transform *t)
{
	if (!t)
		return;
	OPENSSL_cleanse(t->key, sizeof t->key);
	free(t);
}

int s3_transform_read_key(const char *path, uint8_t *key)
{
	uint8_t data[S3_KEY_BYTES + 1];
	size_t length = 0;
	ssize_t n = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC), r = 0;

	if (fd < 0)
		return -errno;
	while (length < sizeof data && (n = read(fd, data + length, sizeof data - length)) > 0)
		length += (size_t)n;
	if (n < 0)
		r = -errno;
	else if (length != S3_KEY_BYTES)
		r = -EINVAL;
	else
		memcpy(key, data, S3_KEY_BYTES);
	OPENSSL_cleanse(data, sizeof data);
	close(fd);
	return r;
}

int s3_transform_key_check(const uint8_t *key, const uint8_t *uuid, uint8_t check[16])
{
	uint8_t out[32];

	if (!derive(key, "userblk s3 key check", uuid, out))
		return -EIO;
	memcpy(check, out, 16);
	return 0;
}

size_t s3_transform_room(size_t length)
{
	return length + (size_t)s3_transform_units(length) * S3_TAG;
}

/* ---- encryption ------------------------------------------------------------------ */

static bool object_key(
	const struct s3_transform *t, const struct s3_object_header *h, uint8_t key[32])
{
	uint8_t text[sizeof h->salt + 8];

	memcpy(text, h->salt, sizeof h->salt);
	s3_le_store(text + sizeof h->salt, h->id, 8);
	return hmac(t->key, text, sizeof text, key);
}

/* What a key is used with once. */
struct associated {
	uint8_t nonce[NONCE];
	uint8_t data[S3_UUID + 8 + 4 + 1];
};

/* Authenticate raw, too. Otherwise an attacker could change it, and with it the result. */
static struct associated associate(
	const struct s3_transform *t, uint64_t id, uint32_t index, bool raw)
{
	struct associated a = {{0}, {0}};

	s3_le_store(a.nonce, index, 4);
	memcpy(a.data, t->uuid, S3_UUID);
	s3_le_store(a.data + S3_UUID, id, 8);
	s3_le_store(a.data + S3_UUID + 8, index, 4);
	a.data[S3_UUID + 12] = raw;
	return a;
}

/* Encrypts in place; the tag goes behind. */
static bool seal(EVP_CIPHER_CTX *c, const uint8_t *key, const uint8_t nonce[NONCE],
	const void *associated, size_t n_associated, uint8_t *data, uint32_t length)
{
	int n = 0;

	return EVP_EncryptInit_ex(c, EVP_aes_256_gcm(), NULL, key, nonce) == 1 &&
	       EVP_EncryptUpdate(c, NULL, &n, associated, (int)n_associated) == 1 &&
	       EVP_EncryptUpdate(c, data, &n, data, (int)length) == 1 &&
	       EVP_EncryptFinal_ex(c, data + n, &n) == 1 &&
	       EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, S3_TAG, data + length) == 1;
}

/* length without the tag. 0, -EBADMSG or -EIO. */
static int unseal(EVP_CIPHER_CTX *c, const uint8_t *key, const uint8_t nonce[NONCE],
	const void *associated, size_t n_associated, const uint8_t *data, uint32_t length,
	uint8_t *out)
{
	uint8_t tag[S3_TAG];
	int n = 0;

	memcpy(tag, data + length, S3_TAG);
	if (EVP_DecryptInit_ex(c, EVP_aes_256_gcm(), NULL, key, nonce) != 1 ||
		EVP_DecryptUpdate(c, NULL, &n, associated, (int)n_associated) != 1 ||
		EVP_DecryptUpdate(c, out, &n, data, (int)length) != 1 ||
		EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, S3_TAG, tag) != 1)
		return -EIO;
	return EVP_DecryptFinal_ex(c, out + n, &n) == 1 ? 0 : -EBADMSG;
}

/* ---- keys of volumes -------------------------------------------------------------- */

int s3_transform_draw_key(uint8_t key[S3_KEY_BYTES])
{
	return RAND_bytes(key, S3_KEY_BYTES) == 1 ? 0 : -EIO;
}

int s3_transform_derive_key(const uint8_t *user_key, const uint8_t *uuid, uint8_t key[S3_KEY_BYTES])
{
	return derive(user_key, "userblk s3 data", uuid, key) ? 0 : -EIO;
}

/* Wraps (data: salt, keys, tag; the salt is drawn, the keys are encrypted in place) or unwraps. */
static int wrap(const uint8_t *user_key, const struct s3_super *super, bool encrypt, uint8_t *data)
{
	static const uint8_t nonce[NONCE]; /* the key is used once */
	size_t n_keys = 1 + super->n_parents, n_uuids = n_keys * S3_UUID;
	uint32_t length = (uint32_t)(n_keys * S3_KEY_BYTES);
	uint8_t *uuids = malloc(n_uuids), of_volume[32], key[32];
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
	int r = uuids && c ? 0 : -ENOMEM;

	for (size_t i = 0; r == 0 && i < n_keys; i++)
		memcpy(uuids + i * S3_UUID, i ? super->parents[i - 1].uuid : super->uuid, S3_UUID);
	if (r == 0 && encrypt && RAND_bytes(data, S3_SALT) != 1)
		r = -EIO;
	if (r == 0 && (!derive(user_key, "userblk s3 wrap", super->uuid, of_volume) ||
			      !hmac(of_volume, data, S3_SALT, key)))
		r = -EIO;
	if (r == 0 && encrypt)
		r = seal(c, key, nonce, uuids, n_uuids, data + S3_SALT, length) ? 0 : -EIO;
	else if (r == 0)
		r = unseal(c, key, nonce, uuids, n_uuids, data + S3_SALT, length, data + S3_SALT);
	OPENSSL_cleanse(of_volume, sizeof of_volume);
	OPENSSL_cleanse(key, sizeof key);
	EVP_CIPHER_CTX_free(c);
	free(uuids);
	return r;
}

int s3_transform_wrap_keys(const uint8_t *user_key, const struct s3_super *super,
	const uint8_t (*keys)[S3_KEY_BYTES], uint8_t *wrapped)
{
	int r;

	memcpy(wrapped + S3_SALT, keys, (1 + (size_t)super->n_parents) * S3_KEY_BYTES);
	r = wrap(user_key, super, true, wrapped);
	if (r)
		OPENSSL_cleanse(wrapped, S3_WRAPPED(super->n_parents));
	return r;
}

int s3_transform_volume_keys(
	const uint8_t *user_key, const struct s3_super *super, uint8_t (*keys)[S3_KEY_BYTES])
{
	size_t n_keys = 1 + super->n_parents;
	uint8_t *data;
	int r = 0;

	if (!super->wrapped) {
		for (size_t i = 0; r == 0 && i < n_keys; i++)
			r = s3_transform_derive_key(
				user_key, i ? super->parents[i - 1].uuid : super->uuid, keys[i]);
		return r;
	}
	data = malloc(S3_WRAPPED(super->n_parents));
	if (!data)
		return -ENOMEM;
	memcpy(data, super->wrapped, S3_WRAPPED(super->n_parents));
	r = wrap(user_key, super, false, data);
	if (r == 0)
		memcpy(keys, data + S3_SALT, n_keys * S3_KEY_BYTES);
	OPENSSL_cleanse(data, S3_WRAPPED(super->n_parents));
	free(data);
	return r;
}

/* ---- units ----------------------------------------------------------------------- */

/* Compresses if that saves something; else copies. */
static uint32_t shrink(const struct s3_transform *t, ZSTD_CCtx *z, const uint8_t *data,
	uint32_t length, uint8_t *out, bool *raw)
{
	size_t n = 0;

	if (t->features & S3_FEATURE_ZSTD) {
		n = ZSTD_compressCCtx(z, out, length - 1, data, length, LEVEL);
		if (ZSTD_isError(n))
			n = 0; /* no room: it does not shrink */
	}
	*raw = !n;
	if (*raw)
		memcpy(out, data, length);
	return n ? (uint32_t)n : length;
}

int s3_transform_encode(struct s3_transform *t, struct s3_object_header *header, const void *data,
	size_t length, void *out, struct s3_unit *units, size_t *stored)
{
	bool aes = t->features & S3_FEATURE_AES;
	EVP_CIPHER_CTX *c = aes ? EVP_CIPHER_CTX_new() : NULL;
	ZSTD_CCtx *z = t->features & S3_FEATURE_ZSTD ? ZSTD_createCCtx() : NULL;
	uint32_t n_units = s3_transform_units(length);
	uint8_t key[32] = {0}, *to = out;
	int r = 0;

	if ((aes && !c) || (t->features & S3_FEATURE_ZSTD && !z))
		r = -ENOMEM;
	else if (aes && (RAND_bytes(header->salt, sizeof header->salt) != 1 ||
				!object_key(t, header, key)))
		r = -EIO;
	header->flags = t->features;
	for (uint32_t i = 0; !r && i < n_units; i++) {
		const uint8_t *from = (const uint8_t *)data + (size_t)i * S3_UNIT;
		size_t left = length - (size_t)i * S3_UNIT;
		struct s3_unit *unit = &units[i];

		unit->bytes = shrink(
			t, z, from, left < S3_UNIT ? (uint32_t)left : S3_UNIT, to, &unit->raw);
		if (aes) {
			struct associated a = associate(t, header->id, i, unit->raw);

			if (!seal(c, key, a.nonce, a.data, sizeof a.data, to, unit->bytes))
				r = -EIO;
			unit->bytes += S3_TAG;
		}
		unit->crc = s3_crc32c(0, to, unit->bytes);
		to += unit->bytes;
	}
	*stored = (size_t)(to - (uint8_t *)out);
	OPENSSL_cleanse(key, sizeof key);
	EVP_CIPHER_CTX_free(c);
	ZSTD_freeCCtx(z);
	return r;
}

/* Decrypts a unit into out. */
static int decrypt(const struct s3_transform *t, const struct s3_object_header *h, uint32_t index,
	const struct s3_unit *unit, const uint8_t *data, uint8_t *out)
{
	struct associated a = associate(t, h->id, index, unit->raw);
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
	uint8_t key[32];
	int r = -EIO;

	if (!c)
		return -ENOMEM;
	if (object_key(t, h, key))
		r = unseal(c, key, a.nonce, a.data, sizeof a.data, data, unit->bytes - S3_TAG, out);
	OPENSSL_cleanse(key, sizeof key);
	EVP_CIPHER_CTX_free(c);
	return r;
}

int s3_transform_decode(struct s3_transform *t, const struct s3_object_header *header,
	uint32_t index, const struct s3_unit *unit, const void *data, void *out, size_t length)
{
	uint32_t tag = header->flags & S3_FEATURE_AES ? S3_TAG : 0;
	uint8_t plain[S3_UNIT];
	const uint8_t *from = data;

	/* What is not encrypted in an encrypted volume did not come from us. */
	if (header->flags != t->features || unit->bytes <= tag || unit->bytes - tag > length ||
		length > S3_UNIT || (unit->raw && unit->bytes - tag != length) ||
		(!unit->raw && !(header->flags & S3_FEATURE_ZSTD)) ||
		s3_crc32c(0, data, unit->bytes) != unit->crc)
		return -EBADMSG;
	if (tag) {
		int r = decrypt(t, header, index, unit, data, unit->raw ? out : plain);

		if (r || unit->raw)
			return r;
		from = plain;
	}
	if (unit->raw)
		memcpy(out, data, length);
	else if (ZSTD_decompress(out, length, from, unit->bytes - tag) != length)
		return -EBADMSG;
	return 0;
}
