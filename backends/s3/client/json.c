/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/client/json.h"

#define DEPTH_MAX 32 /* of values in values */

struct json {
	const char *next, *end;
};

static void skip_space(struct json *j)
{
	while (j->next < j->end && memchr(" \t\r\n", *j->next, 4))
		j->next++;
}

/* Takes c, with space before it. */
static bool take(struct json *j, char c)
{
	skip_space(j);
	if (j->next == j->end || *j->next != c)
		return false;
	j->next++;
	return true;
}

/* The four digits of a \u. -1: they are not digits, or are half of a character. */
static int32_t take_code(struct json *j)
{
	static const char digits[] = "0123456789abcdef";
	int32_t code = 0;

	for (int i = 0; i < 4; i++, j->next++) {
		const char *digit;

		if (j->next == j->end || !*j->next)
			return -1;
		digit = strchr(
			digits, *j->next >= 'A' && *j->next <= 'F' ? *j->next | 0x20 : *j->next);
		if (!digit)
			return -1;
		code = code << 4 | (int32_t)(digit - digits);
	}
	return code == 0 || (code >= 0xd800 && code < 0xe000) ? -1 : code;
}

/* A character behind a backslash, as up to three bytes at out. Bytes, or -1. */
static int take_escape(struct json *j, char *out)
{
	static const char names[] = "\"\\/bfnrt", characters[] = "\"\\/\b\f\n\r\t";
	const char *name;
	int32_t code;

	if (j->next == j->end)
		return -1;
	if (*j->next == 'u') {
		j->next++;
		code = take_code(j);
		if (code < 0)
			return -1;
		if (code < 0x80) {
			out[0] = (char)code;
			return 1;
		}
		if (code < 0x800) {
			out[0] = (char)(0xc0 | code >> 6);
			out[1] = (char)(0x80 | (code & 0x3f));
			return 2;
		}
		out[0] = (char)(0xe0 | code >> 12);
		out[1] = (char)(0x80 | (code >> 6 & 0x3f));
		out[2] = (char)(0x80 | (code & 0x3f));
		return 3;
	}
	name = *j->next ? strchr(names, *j->next) : NULL;
	if (!name)
		return -1;
	j->next++;
	out[0] = characters[name - names];
	return 1;
}

/* A string, into what the caller frees. 0, -EBADMSG or -ENOMEM. */
static int take_string(struct json *j, char **out)
{
	size_t room, n = 0;
	bool good = true;
	char *text;

	if (!take(j, '"'))
		return -EBADMSG;
	/* It never gets longer: an escape takes twice the bytes that it stands for. */
	room = (size_t)(j->end - j->next) + 1;
	text = malloc(room);
	if (!text)
		return -ENOMEM;
	while (good && j->next < j->end && *j->next != '"') {
		unsigned char c = (unsigned char)*j->next++;
		int bytes = 1;

		if (c == '\\')
			bytes = take_escape(j, text + n);
		else
			text[n] = (char)c;
		good = bytes > 0 && c >= ' ';
		n += good ? (size_t)bytes : 0;
	}
	text[n] = '\0';
	if (good && take(j, '"')) {
		*out = text;
		return 0;
	}
	explicit_bzero(text, n);
	free(text);
	return -EBADMSG;
}

/* A value that is of no interest. */
static int skip_value(struct json *j, int depth)
{
	char *text = NULL, close;
	int r;

	skip_space(j);
	if (j->next == j->end || depth > DEPTH_MAX)
		return -EBADMSG;
	if (*j->next == '"') {
		r = take_string(j, &text);
		free(text);
		return r;
	}
	if (*j->next != '{' && *j->next != '[') {
		/* A number, true, false or null: whichever. */
		size_t n = 0;

		while (j->next < j->end && memchr("+-.0123456789Eaeflnrstu", *j->next, 23)) {
			j->next++;
			n++;
		}
		return n ? 0 : -EBADMSG;
	}
	close = *j->next++ == '{' ? '}' : ']';
	if (take(j, close))
		return 0;
	do {
		if (close == '}') {
			r = take_string(j, &text);
			if (r)
				return r;
			free(text);
			text = NULL;
			if (!take(j, ':'))
				return -EBADMSG;
		}
		r = skip_value(j, depth + 1);
		if (r)
			return r;
	} while (take(j, ','));
	return take(j, close) ? 0 : -EBADMSG;
}

/* A member of the object: its value if it is one of names. */
static int take_member(struct json *j, const char *const *names, char **values, size_t n)
{
	char *name = NULL, **value = NULL;
	int r = take_string(j, &name);

	for (size_t i = 0; r == 0 && i < n; i++)
		if (strcmp(name, names[i]) == 0)
			value = &values[i];
	free(name);
	if (r == 0 && !take(j, ':'))
		r = -EBADMSG;
	if (r)
		return r;
	skip_space(j);
	if (!value || j->next == j->end || *j->next != '"')
		return skip_value(j, 1);
	free(*value);
	*value = NULL;
	return take_string(j, value);
}

int s3_json_strings(
	const char *text, size_t length, const char *const *names, char **values, size_t n)
{
	struct json j = {text, text + length};
	int r = 0;

	if (!take(&j, '{'))
		return -EBADMSG;
	if (!take(&j, '}')) {
		do
			r = take_member(&j, names, values, n);
		while (r == 0 && take(&j, ','));
		if (r == 0 && !take(&j, '}'))
			r = -EBADMSG;
	}
	skip_space(&j);
	return r == 0 && j.next != j.end ? -EBADMSG : r;
}
