/* SPDX-License-Identifier: BSD-3-Clause */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <expat.h>

#include "backends/s3/client/client.h"
#include "backends/s3/client/reply.h"

/* ---- XML ---------------------------------------------------------------------- */

/* Longer texts of one element are cut, which a key, percent-encoded, never is. */
#define TEXT_MAX    8192
#define DEPTH_MAX   8
#define ELEMENT_MAX 32

struct document;

/* An element has ended; parent is "" for the root. It may set d->result. */
typedef void element_fn(struct document *d, const char *parent, const char *name, const char *text);

struct document {
	XML_Parser parser;
	element_fn *element;
	const char *root; /* that the document must have */
	void *opaque;
	int result;
	unsigned depth;
	char names[DEPTH_MAX][ELEMENT_MAX];
	char text[TEXT_MAX];
	size_t length;
	bool cut;
};

static void stop(struct document *d, int result)
{
	d->result = result;
	XML_StopParser(d->parser, XML_FALSE);
}

static const char *local_name(const char *name)
{
	const char *colon = strrchr(name, ':');

	return colon ? colon + 1 : name;
}

static void XMLCALL on_start(void *opaque, const char *name, const char **attributes)
{
	struct document *d = opaque;

	(void)attributes;
	name = local_name(name);
	if (d->result)
		return;
	if (d->depth == DEPTH_MAX || (d->depth == 0 && strcmp(name, d->root) != 0)) {
		stop(d, -EPROTO);
		return;
	}
	snprintf(d->names[d->depth++], ELEMENT_MAX, "%s", name);
	d->length = 0;
	d->cut = false;
}

static void XMLCALL on_end(void *opaque, const char *name)
{
	struct document *d = opaque;

	(void)name;
	/* A stopped parser still tells the end of "<a/>". */
	if (d->result)
		return;
	d->depth--;
	d->text[d->length] = '\0';
	d->element(d, d->depth ? d->names[d->depth - 1] : "", d->names[d->depth], d->text);
	d->length = 0;
	d->cut = false;
}

static void XMLCALL on_text(void *opaque, const char *text, int length)
{
	struct document *d = opaque;
	size_t room = sizeof d->text - 1 - d->length;
	size_t n = (size_t)length < room ? (size_t)length : room;

	memcpy(d->text + d->length, text, n);
	d->length += n;
	d->cut |= n < (size_t)length;
}

/* No store sends a document type; entities could only do harm. */
static void XMLCALL on_doctype(
	void *opaque, const char *name, const char *system, const char *public, int has_internal)
{
	(void)name, (void)system, (void)public, (void)has_internal;
	stop(opaque, -EPROTO);
}

static int parse(
	const char *xml, size_t length, const char *root, element_fn *element, void *opaque)
{
	struct document d = {.root = root, .element = element, .opaque = opaque};

	d.parser = XML_ParserCreate(NULL);
	if (!d.parser)
		return -ENOMEM;
	XML_SetUserData(d.parser, &d);
	XML_SetElementHandler(d.parser, on_start, on_end);
	XML_SetCharacterDataHandler(d.parser, on_text);
	XML_SetStartDoctypeDeclHandler(d.parser, on_doctype);
	if (length > INT32_MAX || XML_Parse(d.parser, xml, (int)length, XML_TRUE) != XML_STATUS_OK)
		if (d.result == 0)
			d.result = XML_GetErrorCode(d.parser) == XML_ERROR_NO_MEMORY ? -ENOMEM
										     : -EPROTO;
	XML_ParserFree(d.parser);
	return d.result;
}

static bool is(const char *parent, const char *name, const char *want_parent, const char *want)
{
	return strcmp(parent, want_parent) == 0 && strcmp(name, want) == 0;
}

/* Digits only. */
static bool parse_u64(const char *text, uint64_t *number)
{
	char *end;

	if (!isdigit((unsigned char)*text))
		return false;
	errno = 0;
	*number = strtoull(text, &end, 10);
	return errno == 0 && !*end;
}

/* ---- errors ------------------------------------------------------------------- */

/* Cut to room, and one printable line. */
static void copy_line(char *out, size_t room, const char *text)
{
	snprintf(out, room, "%s", text);
	for (char *c = out; *c; c++)
		if (iscntrl((unsigned char)*c))
			*c = ' ';
}

static void set_error_field(struct s3_error_reply *error, const char *name, const char *text)
{
	if (strcmp(name, "Code") == 0)
		copy_line(error->code, sizeof error->code, text);
	else if (strcmp(name, "Message") == 0)
		copy_line(error->message, sizeof error->message, text);
	else if (strcmp(name, "Region") == 0)
		copy_line(error->region, sizeof error->region, text);
	else if (strcmp(name, "Endpoint") == 0)
		copy_line(error->endpoint, sizeof error->endpoint, text);
	else if (strcmp(name, "ActualObjectSize") == 0)
		parse_u64(text, &error->object_size);
}

static void error_element(
	struct document *d, const char *parent, const char *name, const char *text)
{
	if (strcmp(parent, "Error") == 0)
		set_error_field(d->opaque, name, text);
}

int s3_parse_error(const char *xml, size_t length, struct s3_error_reply *error)
{
	int r;

	*error = (struct s3_error_reply){0};
	r = parse(xml, length, "Error", error_element, error);
	if (r == 0 && !error->code[0])
		r = -EPROTO;
	if (r)
		error->code[0] = '\0';
	return r;
}

/* ---- listings ----------------------------------------------------------------- */

struct listing_state {
	struct s3_listing *listing;
	struct s3_listed now; /* what is being read */
	bool has_size;
	size_t room;
	bool url_encoded;
	bool has_truncated, truncated;
};

static int hex_value(char c)
{
	if (isdigit((unsigned char)c))
		return c - '0';
	c = (char)tolower((unsigned char)c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Undoes encoding-type=url in place. */
static void decode(char *text)
{
	char *out = text;

	for (const char *c = text; *c; c++) {
		int high = *c == '%' ? hex_value(c[1]) : -1;
		int low = high >= 0 ? hex_value(c[2]) : -1;

		if (low >= 0 && high + low > 0) {
			*out++ = (char)(high * 16 + low);
			c += 2;
		} else {
			*out++ = *c == '+' ? ' ' : *c;
		}
	}
	*out = '\0';
}

/* "2013-05-24T00:00:00.000Z" */
static bool parse_time(const char *text, int64_t *seconds)
{
	struct tm tm = {0};
	const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);

	if (!end || (*end != '.' && *end != 'Z'))
		return false;
	*seconds = timegm(&tm);
	return true;
}

static void add_listed(struct document *d, struct listing_state *s)
{
	struct s3_listing *l = s->listing;

	if (l->n_objects == s->room) {
		size_t room = s->room ? 2 * s->room : 64;
		struct s3_listed *more = reallocarray(l->objects, room, sizeof *more);

		if (!more) {
			stop(d, -ENOMEM);
			return;
		}
		l->objects = more;
		s->room = room;
	}
	l->objects[l->n_objects++] = s->now;
	s->now = (struct s3_listed){0};
	s->has_size = false;
}

static void set_text(struct document *d, char **field, const char *text)
{
	free(*field);
	*field = strdup(text);
	if (!*field)
		stop(d, -ENOMEM);
	else if (d->cut)
		stop(d, -EPROTO);
}

static void listing_element(
	struct document *d, const char *parent, const char *name, const char *text)
{
	struct listing_state *s = d->opaque;

	if (is(parent, name, "Contents", "Key") || is(parent, name, "CommonPrefixes", "Prefix")) {
		set_text(d, &s->now.key, text);
	} else if (is(parent, name, "Contents", "Size")) {
		s->has_size = parse_u64(text, &s->now.size);
	} else if (is(parent, name, "Contents", "LastModified")) {
		if (!parse_time(text, &s->now.modified))
			stop(d, -EPROTO);
	} else if (is(parent, name, "Contents", "ETag")) {
		s->now.tag = s3_etag_tag(text);
	} else if (is(parent, name, "ListBucketResult", "Contents")) {
		if (s->now.key && s->has_size)
			add_listed(d, s);
		else
			stop(d, -EPROTO);
	} else if (is(parent, name, "ListBucketResult", "CommonPrefixes")) {
		s->now.is_prefix = true;
		if (s->now.key)
			add_listed(d, s);
		else
			stop(d, -EPROTO);
	} else if (is(parent, name, "ListBucketResult", "EncodingType")) {
		s->url_encoded = strcmp(text, "url") == 0;
	} else if (is(parent, name, "ListBucketResult", "NextContinuationToken")) {
		set_text(d, &s->listing->token, text);
	} else if (is(parent, name, "ListBucketResult", "IsTruncated")) {
		s->truncated = strcmp(text, "true") == 0;
		s->has_truncated = s->truncated || strcmp(text, "false") == 0;
	}
}

/* The keys as they are; false: one is not what was asked for. */
static bool settle_keys(struct s3_listing *l, bool url_encoded, const char *prefix)
{
	size_t length = strlen(prefix);

	for (size_t i = 0; i < l->n_objects; i++) {
		if (url_encoded)
			decode(l->objects[i].key);
		if (strncmp(l->objects[i].key, prefix, length) != 0)
			return false;
	}
	return true;
}

int s3_parse_listing(const char *xml, size_t length, const char *prefix, struct s3_listing *listing)
{
	struct listing_state s = {.listing = listing};
	int r;

	*listing = (struct s3_listing){0};
	r = parse(xml, length, "ListBucketResult", listing_element, &s);
	/* Whether something follows must be known: a part must not be taken for the whole. */
	if (r == 0 && (!s.has_truncated || (s.truncated && !(listing->token && *listing->token))))
		r = -EPROTO;
	free(s.now.key);
	if (r == 0 && !settle_keys(listing, s.url_encoded, prefix))
		r = -EPROTO;
	if (r) {
		s3_listing_free(listing);
		return r;
	}
	if (!s.truncated) {
		free(listing->token);
		listing->token = NULL;
	}
	return 0;
}

void s3_listing_free(struct s3_listing *listing)
{
	for (size_t i = 0; i < listing->n_objects; i++)
		free(listing->objects[i].key);
	free(listing->objects);
	free(listing->token);
	*listing = (struct s3_listing){0};
}

/* ---- deletes ------------------------------------------------------------------ */

struct deleted_state {
	const char *const *keys;
	size_t n_keys;
	int *results;
	size_t next; /* where the next key is looked for first: replies keep the order */
	char key[S3_KEY_MAX + 1];
	struct s3_error_reply now, *first;
};

static void set_result(struct deleted_state *s, int result)
{
	for (size_t i = 0; i < s->n_keys; i++) {
		size_t at = (s->next + i) % s->n_keys;

		if (strcmp(s->keys[at], s->key) != 0)
			continue;
		s->results[at] = result;
		s->next = at + 1;
		break;
	}
	s->key[0] = '\0';
}

static void deleted_element(
	struct document *d, const char *parent, const char *name, const char *text)
{
	struct deleted_state *s = d->opaque;
	bool temporary;

	if (is(parent, name, "Deleted", "Key") || is(parent, name, "Error", "Key")) {
		snprintf(s->key, sizeof s->key, "%s", text);
	} else if (strcmp(parent, "Error") == 0) {
		set_error_field(&s->now, name, text);
	} else if (is(parent, name, "DeleteResult", "Deleted")) {
		set_result(s, 0);
	} else if (is(parent, name, "DeleteResult", "Error")) {
		int r = s3_code_result(s->now.code, &temporary);

		/* It is absent, as it should be. */
		set_result(s, r == -ENOENT ? 0 : r);
		if (r != -ENOENT && !s->first->code[0])
			*s->first = s->now;
		s->now = (struct s3_error_reply){0};
	}
}

int s3_parse_deleted(const char *xml, size_t length, const char *const *keys, size_t n_keys,
	int *key_results, struct s3_error_reply *first)
{
	struct deleted_state s = {
		.keys = keys, .n_keys = n_keys, .results = key_results, .first = first};

	*first = (struct s3_error_reply){0};
	return parse(xml, length, "DeleteResult", deleted_element, &s);
}

/* ---- verdicts ----------------------------------------------------------------- */

/* Codes that say more than, or other than, the status they come with. */
static const struct {
	const char *code;
	enum s3_action action;
	int result;
} codes[] = {
	{"NoSuchKey", S3_FINAL, -ENOENT},
	{"NoSuchBucket", S3_FINAL, -ENXIO},
	{"PreconditionFailed", S3_FINAL, -EEXIST},
	{"InvalidRange", S3_FINAL, -ERANGE},
	{"NotImplemented", S3_FINAL, -EOPNOTSUPP},
	{"MethodNotAllowed", S3_FINAL, -EOPNOTSUPP},
	/* credentials */
	{"AccessDenied", S3_REAUTHENTICATE, -EACCES},
	{"InvalidAccessKeyId", S3_REAUTHENTICATE, -EACCES},
	{"XAdminUserNotFound", S3_REAUTHENTICATE, -EACCES}, /* versitygw's, with status 404 */
	{"SignatureDoesNotMatch", S3_REAUTHENTICATE, -EACCES},
	{"ExpiredToken", S3_REAUTHENTICATE, -EACCES},
	{"InvalidToken", S3_REAUTHENTICATE, -EACCES},
	{"TokenRefreshRequired", S3_REAUTHENTICATE, -EACCES},
	{"RequestTimeTooSkewed", S3_FINAL, -EACCES},
	{"AllAccessDisabled", S3_FINAL, -EACCES},
	{"AccountProblem", S3_FINAL, -EACCES},
	/* archived; with status 403, although nobody refuses anything */
	{"InvalidObjectState", S3_FINAL, -EINVAL},
	/* another region */
	{"AuthorizationHeaderMalformed", S3_FINAL, -EREMCHG},
	{"PermanentRedirect", S3_FINAL, -EREMCHG},
	{"TemporaryRedirect", S3_FINAL, -EREMCHG},
	{"IllegalLocationConstraintException", S3_FINAL, -EREMCHG},
	/* full */
	{"XMinioStorageFull", S3_FINAL, -ENOSPC},
	{"XMinioAdminBucketQuotaExceeded", S3_FINAL, -ENOSPC},
	{"QuotaExceeded", S3_FINAL, -ENOSPC},
	{"StorageQuotaExceeded", S3_FINAL, -ENOSPC},
	{"InsufficientStorage", S3_FINAL, -ENOSPC},
	/* temporary, some of them with a status of 4xx */
	{"InternalError", S3_RETRY, -EIO},
	{"SlowDown", S3_RETRY, -EIO},
	{"SlowDownRead", S3_RETRY, -EIO},
	{"SlowDownWrite", S3_RETRY, -EIO},
	{"ServiceUnavailable", S3_RETRY, -EIO},
	{"Throttling", S3_RETRY, -EIO},
	{"RequestLimitExceeded", S3_RETRY, -EIO},
	{"BandwidthLimitExceeded", S3_RETRY, -EIO},
	{"RequestTimeout", S3_RETRY, -EIO},
	{"OperationAborted", S3_RETRY, -EIO},
	{"ConditionalRequestConflict", S3_RETRY, -EIO},
	{"IncompleteBody", S3_RETRY, -EIO},
	{"BadDigest", S3_RETRY, -EIO},
	{"XAmzContentChecksumMismatch", S3_RETRY, -EIO}, /* MinIO's, of a checksum */
	{"XAmzContentSHA256Mismatch", S3_RETRY, -EIO},
};

static bool verdict_of_code(const char *code, struct s3_verdict *verdict)
{
	for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
		if (strcmp(code, codes[i].code) == 0) {
			*verdict = (struct s3_verdict){codes[i].action, codes[i].result};
			return true;
		}
	return false;
}

struct s3_verdict s3_judge(long status, const struct s3_error_reply *error, bool conditional)
{
	struct s3_verdict v;

	/* Whatever stands in the body: the condition was looked at. */
	if (status == 412 && conditional)
		return (struct s3_verdict){S3_FINAL, -EEXIST};
	if (status == 507)
		return (struct s3_verdict){S3_FINAL, -ENOSPC};
	if (status >= 500 && status != 501)
		return (struct s3_verdict){S3_RETRY, -EIO};
	if (status == 429 || status == 408 || status == 409) {
		/* BucketNotEmpty and the like are not met here: what conflicts passes. */
		return (struct s3_verdict){S3_RETRY, -EIO};
	}
	/* A proxy's "not found" says nothing about the object, nor its "forbidden" of the key. */
	if (!error->code[0])
		return (struct s3_verdict){S3_NOT_S3, -EPROTO};
	if (verdict_of_code(error->code, &v)) {
		/* "Absent" only if both say so. */
		if (v.result == -ENOENT && status != 404)
			return (struct s3_verdict){S3_MISMATCH, -EIO};
		if (v.result == -EEXIST && !conditional)
			v.result = -EINVAL;
		return v;
	}
	switch (status) {
	case 301:
	case 302:
	case 307:
	case 308:
		return (struct s3_verdict){S3_FINAL, -EREMCHG};
	case 401:
	case 403:
		return (struct s3_verdict){S3_REAUTHENTICATE, -EACCES};
	case 404:
		return (struct s3_verdict){S3_NOT_S3, -EPROTO};
	case 416:
		return (struct s3_verdict){S3_FINAL, -ERANGE};
	case 405:
	case 501:
		return (struct s3_verdict){S3_FINAL, -EOPNOTSUPP};
	default:
		return (struct s3_verdict){S3_FINAL, -EINVAL};
	}
}

int s3_code_result(const char *code, bool *temporary)
{
	struct s3_verdict v;

	*temporary = false;
	if (!verdict_of_code(code, &v))
		return -EIO;
	*temporary = v.action == S3_RETRY;
	return v.result;
}
