/* SPDX-License-Identifier: BSD-3-Clause */
/* The keys of what a volume stores. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/s3/format/format.h"

static void format_uuid(const uint8_t *uuid, char *text)
{
	for (size_t i = 0; i < S3_UUID; i++)
		sprintf(text + 2 * i, "%02x", uuid[i]);
}

void s3_name_format(const struct s3_name *name, char *key)
{
	char uuid[2 * S3_UUID + 1];
	uint64_t number = name->number & ~S3_GC;
	unsigned low = number & 0xff;
	const char *room = NULL;

	switch (name->kind) {
	case S3_NAME_SUPER:
		strcpy(key, "super");
		break;
	case S3_NAME_DELETED:
		strcpy(key, "deleted");
		break;
	case S3_NAME_LOG:
		room = "log";
		break;
	case S3_NAME_GC:
		room = "gc";
		break;
	case S3_NAME_CHUNK:
		room = "chunk";
		break;
	case S3_NAME_ROOT:
		snprintf(key, S3_KEY_ROOM, "ckpt/%016" PRIx64 "/root", number);
		break;
	case S3_NAME_REGION:
		snprintf(key, S3_KEY_ROOM, "ckpt/%016" PRIx64 "/%04" PRIx32, number,
			name->region & 0xffff);
		break;
	case S3_NAME_SUMMARY:
		snprintf(key, S3_KEY_ROOM, "ckpt/%016" PRIx64 "/summary", number);
		break;
	case S3_NAME_SNAPSHOT:
		if (number)
			snprintf(key, S3_KEY_ROOM, "snap/%s/root-%016" PRIx64, name->name, number);
		else
			snprintf(key, S3_KEY_ROOM, "snap/%s/root", name->name);
		break;
	case S3_NAME_CHILD:
		format_uuid(name->uuid, uuid);
		snprintf(key, S3_KEY_ROOM, "snap/%s/child/%s", name->name, uuid);
		break;
	case S3_NAME_PROBE:
		format_uuid(name->uuid, uuid);
		snprintf(key, S3_KEY_ROOM, "probe/%s", uuid);
		break;
	}
	if (room)
		snprintf(key, S3_KEY_ROOM, "%s/%02x/%016" PRIx64, room, low, number);
}

void s3_name_object(uint64_t id, char *key)
{
	struct s3_name name = {.kind = id & S3_GC ? S3_NAME_GC : S3_NAME_LOG, .number = id};

	s3_name_format(&name, key);
}

bool s3_name_valid(const char *name)
{
	size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-");

	return length >= 1 && length <= S3_NAME_MAX && !name[length] && !strchr("._-", name[0]);
}

/* Takes digits lower-case hexadecimal digits; NULL: there are not as many. */
static const char *parse_hex(const char *text, unsigned digits, uint64_t *number)
{
	*number = 0;
	for (unsigned i = 0; i < digits; i++, text++) {
		if (*text >= '0' && *text <= '9')
			*number = *number << 4 | (uint64_t)(*text - '0');
		else if (*text >= 'a' && *text <= 'f')
			*number = *number << 4 | (uint64_t)(*text - 'a' + 10);
		else
			return NULL;
	}
	return text;
}

static const char *parse_uuid(const char *text, uint8_t *uuid)
{
	for (size_t i = 0; text && i < S3_UUID; i++) {
		uint64_t byte;

		text = parse_hex(text, 2, &byte);
		uuid[i] = (uint8_t)byte;
	}
	return text;
}

static const char *after(const char *text, const char *start)
{
	size_t length = strlen(start);

	return strncmp(text, start, length) ? NULL : text + length;
}

/* What follows "ckpt/". */
static bool parse_checkpoint(const char *p, struct s3_name *name)
{
	uint64_t region;

	p = parse_hex(p, 16, &name->number);
	if (!p || *p++ != '/')
		return false;
	if (!strcmp(p, "root")) {
		name->kind = S3_NAME_ROOT;
		return true;
	}
	if (!strcmp(p, "summary")) {
		name->kind = S3_NAME_SUMMARY;
		return true;
	}
	name->kind = S3_NAME_REGION;
	p = parse_hex(p, 4, &region);
	name->region = (uint32_t)region;
	return p && !*p;
}

/* What follows "snap/". */
static bool parse_snapshot(const char *p, struct s3_name *name)
{
	size_t length = strcspn(p, "/");

	if (!length || length > S3_NAME_MAX || !p[length])
		return false;
	memcpy(name->name, p, length);
	p += length;
	if (!s3_name_valid(name->name))
		return false;
	name->kind = S3_NAME_SNAPSHOT;
	if (!strcmp(p, "/root"))
		return true;
	if (after(p, "/root-")) {
		p = parse_hex(after(p, "/root-"), 16, &name->number);
		return p && !*p && name->number;
	}
	name->kind = S3_NAME_CHILD;
	p = after(p, "/child/");
	p = p ? parse_uuid(p, name->uuid) : NULL;
	return p && !*p;
}

static bool parse_any(const char *key, struct s3_name *name)
{
	static const struct {
		const char *start;
		enum s3_name_kind kind;
	} numbered[] = {{"log/", S3_NAME_LOG}, {"gc/", S3_NAME_GC}, {"chunk/", S3_NAME_CHUNK}};
	const char *p;

	memset(name, 0, sizeof *name);
	if (!strcmp(key, "super")) {
		name->kind = S3_NAME_SUPER;
		return true;
	}
	if (!strcmp(key, "deleted")) {
		name->kind = S3_NAME_DELETED;
		return true;
	}
	for (size_t i = 0; i < sizeof numbered / sizeof numbered[0]; i++) {
		uint64_t low;

		p = after(key, numbered[i].start);
		if (!p)
			continue;
		p = parse_hex(p, 2, &low);
		p = p ? after(p, "/") : NULL;
		p = p ? parse_hex(p, 16, &name->number) : NULL;
		if (!p || *p || low != (name->number & 0xff) || name->number & S3_GC)
			return false;
		name->kind = numbered[i].kind;
		if (name->kind == S3_NAME_GC)
			name->number |= S3_GC;
		return true;
	}
	if ((p = after(key, "ckpt/")))
		return parse_checkpoint(p, name);
	if ((p = after(key, "snap/")))
		return parse_snapshot(p, name);
	if ((p = after(key, "probe/"))) {
		name->kind = S3_NAME_PROBE;
		p = parse_uuid(p, name->uuid);
		return p && !*p;
	}
	return false;
}

bool s3_name_is_mark(const struct s3_name *name)
{
	static const uint8_t zero[S3_UUID / 2];

	return memcmp(name->uuid, zero, sizeof zero) == 0;
}

bool s3_name_parse(const char *key, struct s3_name *name)
{
	return parse_any(key, name) && !(name->kind != S3_NAME_GC && name->number & S3_GC);
}
