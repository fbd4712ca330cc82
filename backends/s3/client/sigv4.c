/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "backends/s3/client/sigv4.h"

#define ALGORITHM "AWS4-HMAC-SHA256"

void s3_sha256(const void *data, size_t length, uint8_t digest[32])
{
	/* Fails only when OpenSSL has no SHA-256 or no memory for its state. */
	if (!EVP_Digest(data, length, digest, NULL, EVP_sha256(), NULL))
		abort();
}

static void hmac(const void *key, size_t key_length, const char *text, uint8_t out[32])
{
	if (!HMAC(EVP_sha256(), key, (int)key_length, (const uint8_t *)text, strlen(text), out,
		    NULL))
		abort();
}

void s3_hex(const uint8_t *bytes, size_t n, char *out)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < n; i++) {
		*out++ = digits[bytes[i] >> 4];
		*out++ = digits[bytes[i] & 15];
	}
	*out = '\0';
}

size_t s3_uri_encode(const char *text, bool keep_slash, char *out, size_t room)
{
	static const char digits[] = "0123456789ABCDEF";
	size_t n = 0;

	for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
		char code[3] = {'%', digits[*c >> 4], digits[*c & 15]};
		bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
			     (*c >= '0' && *c <= '9') || strchr("-._~", *c) ||
			     (keep_slash && *c == '/');
		size_t length = plain ? 1 : 3;

		/* Never half a code. */
		if (n + length < room) {
			memcpy(out + n, plain ? (const char *)c : code, length);
			out[n + length] = '\0';
		}
		n += length;
	}
	if (n == 0 && room)
		out[0] = '\0';
	return n;
}

void s3_timestamp(time_t now, char out[S3_TIMESTAMP])
{
	struct tm tm;

	gmtime_r(&now, &tm);
	if (strftime(out, S3_TIMESTAMP, "%Y%m%dT%H%M%SZ", &tm) != S3_TIMESTAMP - 1)
		abort();
}

static void use_key_of_day(struct s3_signer *signer, const char *day)
{
	char first[512];
	uint8_t key[32];

	if (strcmp(signer->day, day) == 0)
		return;

	int n = snprintf(first, sizeof first, "AWS4%s", signer->secret_key);

	hmac(first, (size_t)n < sizeof first ? (size_t)n : sizeof first - 1, day, key);
	hmac(key, sizeof key, signer->region, key);
	hmac(key, sizeof key, signer->service, key);
	hmac(key, sizeof key, "aws4_request", signer->key);
	OPENSSL_cleanse(first, sizeof first);
	OPENSSL_cleanse(key, sizeof key);
	memcpy(signer->day, day, sizeof signer->day);
}

static void sort(struct s3_header *headers, size_t n)
{
	for (size_t i = 1; i < n; i++) {
		struct s3_header h = headers[i];
		size_t j = i;

		for (; j > 0 && strcmp(headers[j - 1].name, h.name) > 0; j--)
			headers[j] = headers[j - 1];
		headers[j] = h;
	}
}

int s3_sign(struct s3_signer *signer, const char *timestamp, const char *method, const char *path,
	const char *query, struct s3_header *headers, size_t n_headers, const char *payload,
	char *authorization, size_t room)
{
	char names[256], day[9], scope[160], hex[S3_SHA256_HEX], to_sign[320];
	size_t used = 0, size = 0;
	uint8_t digest[32];
	char *canonical;
	FILE *stream;

	sort(headers, n_headers);
	for (size_t i = 0; i < n_headers; i++) {
		int n = snprintf(
			names + used, sizeof names - used, "%s%s", i ? ";" : "", headers[i].name);

		used += (size_t)n;
		if (used >= sizeof names)
			return -EINVAL;
	}
	snprintf(day, sizeof day, "%.8s", timestamp);
	if ((size_t)snprintf(scope, sizeof scope, "%s/%s/%s/aws4_request", day, signer->region,
		    signer->service) >= sizeof scope)
		return -EINVAL;

	stream = open_memstream(&canonical, &size);
	if (!stream)
		return -ENOMEM;
	fprintf(stream, "%s\n%s\n%s\n", method, path, query);
	for (size_t i = 0; i < n_headers; i++)
		fprintf(stream, "%s:%s\n", headers[i].name, headers[i].value);
	fprintf(stream, "\n%s\n%s", names, payload);
	if (fclose(stream)) {
		free(canonical);
		return -ENOMEM;
	}
	s3_sha256(canonical, size, digest);
	free(canonical);
	s3_hex(digest, sizeof digest, hex);
	snprintf(to_sign, sizeof to_sign, ALGORITHM "\n%s\n%s\n%s", timestamp, scope, hex);

	use_key_of_day(signer, day);
	hmac(signer->key, sizeof signer->key, to_sign, digest);
	s3_hex(digest, sizeof digest, hex);
	if ((size_t)snprintf(authorization, room,
		    ALGORITHM " Credential=%s/%s,SignedHeaders=%s,Signature=%s", signer->access_key,
		    scope, names, hex) >= room)
		return -EINVAL;
	return 0;
}
