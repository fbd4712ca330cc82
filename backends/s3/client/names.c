/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "backends/s3/client/client.h"
#include "backends/s3/client/names.h"

const char *const s3_addressing_names[] = {"path", "virtual", NULL};

static bool is_key_character(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c && strchr("/._-", c));
}

static bool valid(const char *key, bool is_prefix)
{
	const char *segment = key;

	for (const char *c = key;; c++) {
		if (c - key > S3_KEY_MAX)
			return false;
		if (*c && *c != '/') {
			if (!is_key_character(*c))
				return false;
			continue;
		}

		size_t length = (size_t)(c - segment);

		/* The unfinished last segment of a prefix may be anything. */
		if (!*c && is_prefix)
			return true;
		if (length == 0 || (length <= 2 && strncmp(segment, "..", length) == 0))
			return false;
		if (!*c)
			return true;
		segment = c + 1;
	}
}

bool s3_key_valid(const char *key)
{
	return valid(key, false);
}

bool s3_prefix_valid(const char *prefix)
{
	return valid(prefix, true);
}

bool s3_bucket_valid(const char *bucket)
{
	size_t length = strlen(bucket);

	if (length < 3 || length > 63)
		return false;
	for (const char *c = bucket; *c; c++) {
		bool at_end = c == bucket || !c[1];

		if (!islower((unsigned char)*c) && !isdigit((unsigned char)*c) &&
			(at_end || (*c != '-' && *c != '.')))
			return false;
		if (*c == '.' && c[1] == '.')
			return false;
	}
	return true;
}

/* The number of a port, 1 to 65535; 0: text is not one. */
static unsigned parse_port(const char *text)
{
	unsigned long port = 0;
	size_t n = strspn(text, "0123456789");

	if (n == 0 || n > 5 || text[n])
		return 0;
	port = strtoul(text, NULL, 10);
	return port <= 65535 ? (unsigned)port : 0;
}

bool s3_endpoint_parse(const char *url, struct s3_endpoint *endpoint)
{
	char text[320];
	char *port_text, *end;
	unsigned port = 0;
	size_t length;

	*endpoint = (struct s3_endpoint){0};
	if (strncasecmp(url, "https://", 8) == 0) {
		endpoint->tls = true;
		url += 8;
	} else if (strncasecmp(url, "http://", 7) == 0) {
		url += 7;
	} else {
		return false;
	}
	length = strlen(url);
	if (length && url[length - 1] == '/')
		length--;
	if (length == 0 || length >= sizeof endpoint->host)
		return false;
	memcpy(text, url, length);
	text[length] = '\0';
	for (char *c = text; *c; c++)
		*c = (char)tolower((unsigned char)*c);

	if (text[0] == '[') {
		struct in6_addr address;

		end = strchr(text, ']');
		if (!end)
			return false;
		*end = '\0';
		if (inet_pton(AF_INET6, text + 1, &address) != 1)
			return false;
		*end++ = ']';
		endpoint->is_address = true;
		port_text = *end == ':' ? end : NULL;
		if (*end && !port_text)
			return false;
	} else {
		struct in_addr address;

		port_text = strchr(text, ':');
		end = port_text ? port_text : text + strlen(text);
		if (end == text)
			return false;
		for (const char *c = text; c < end; c++)
			if (!isalnum((unsigned char)*c) && !strchr("-._", *c))
				return false;
		*end = '\0';
		endpoint->is_address = inet_pton(AF_INET, text, &address) == 1;
		if (port_text)
			*end = ':';
	}
	if (port_text) {
		port = parse_port(port_text + 1);
		if (!port)
			return false;
		*port_text = '\0';
	}
	memcpy(endpoint->host, text, strlen(text) + 1);
	if (port == 0 || port == (endpoint->tls ? 443 : 80))
		snprintf(endpoint->authority, sizeof endpoint->authority, "%s", endpoint->host);
	else
		snprintf(endpoint->authority, sizeof endpoint->authority, "%s:%u", endpoint->host,
			port);
	return true;
}

/* Decimal digits at *text, which moves behind them. */
static bool take_number(const char **text, uint64_t *number)
{
	char *end;

	if (!isdigit((unsigned char)**text))
		return false;
	errno = 0;
	*number = strtoull(*text, &end, 10);
	*text = end;
	return errno == 0;
}

bool s3_content_range_parse(
	const char *value, uint64_t *first, uint64_t *last, uint64_t *object_size)
{
	if (strncasecmp(value, "bytes ", 6) != 0)
		return false;
	value += 6;
	if (!take_number(&value, first) || *value++ != '-' || !take_number(&value, last) ||
		*value++ != '/' || !take_number(&value, object_size) || *value)
		return false;
	return *first <= *last && *last < *object_size;
}
