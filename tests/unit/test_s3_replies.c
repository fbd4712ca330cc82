/* SPDX-License-Identifier: BSD-3-Clause */
/* What the S3 client understands of the replies of a store. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/client/client.h"
#include "backends/s3/client/reply.h"
#include "tests/unit/support.h"

#define XML "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"

static void parses_errors(void **state)
{
	static const char text[] = XML
		"<Error><Code>NoSuchKey</Code><Message>The specified key\ndoes not exist.</Message>"
		"<Key>a</Key><Region>eu-west-1</Region><Nested><Code>No</Code></Nested>"
		"<ActualObjectSize>12</ActualObjectSize></Error>";
	struct s3_error_reply e;

	(void)state;
	assert_int_equal(s3_parse_error(text, strlen(text), &e), 0);
	assert_string_equal(e.code, "NoSuchKey");
	assert_string_equal(e.message, "The specified key does not exist.");
	assert_string_equal(e.region, "eu-west-1");
	assert_int_equal(e.object_size, 12);
	/* Half a document, HTML, nothing, no code, a document type. */
	for (size_t cut = 0; cut < strlen(text); cut++)
		assert_int_equal(s3_parse_error(text, cut, &e), -EPROTO);
	assert_int_equal(s3_parse_error("<html><Code>NoSuchKey</Code></html>", 35, &e), -EPROTO);
	assert_int_equal(s3_parse_error(NULL, 0, &e), -EPROTO);
	assert_int_equal(s3_parse_error("<Error/>", 8, &e), -EPROTO);
	assert_int_equal(s3_parse_error("<a/>", 4, &e), -EPROTO);

	static const char entities[] =
		"<!DOCTYPE e [<!ENTITY a \"NoSuchKey\">]><Error><Code>&a;</Code></Error>";

	assert_int_equal(s3_parse_error(entities, strlen(entities), &e), -EPROTO);
	assert_string_equal(e.code, "");
}

static int parse_list(const char *text, struct s3_listing *l)
{
	return s3_parse_listing(text, strlen(text), "", l);
}

#define LIST(inside)                                                                               \
	XML "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">" inside          \
	    "</ListBucketResult>"
#define ITEM(key, size)                                                                            \
	"<Contents><Key>" key "</Key><LastModified>2013-05-24T00:00:01.000Z</LastModified>"        \
	"<ETag>&quot;x&quot;</ETag><Size>" size "</Size><Owner><ID>1</ID></Owner></Contents>"

static void parses_listings(void **state)
{
	struct s3_listing l;

	(void)state;
	assert_int_equal(
		parse_list(LIST("<IsTruncated>true</IsTruncated><Prefix>p</Prefix>"
				"<EncodingType>url</EncodingType>" ITEM(
					"a%2Fb%20c+d%zz%00", "7") ITEM("b&amp;c",
					"18446744073709551615") "<CommonPrefixes><Prefix>v%2F</"
								"Prefix></CommonPrefixes>"
								"<NextContinuationToken>t+/=</"
								"NextContinuationToken>"),
			&l),
		0);
	assert_int_equal(l.n_objects, 3);
	assert_string_equal(l.objects[0].key, "a/b c d%zz%00");
	assert_int_equal(l.objects[0].size, 7);
	assert_int_equal(l.objects[0].modified, 1369353601);
	assert_int_equal(l.objects[0].tag, s3_etag_tag("\"x\""));
	assert_int_equal(l.objects[0].tag, s3_etag_tag("x"));
	assert_int_not_equal(l.objects[0].tag, s3_etag_tag("y"));
	assert_int_equal(l.objects[2].tag, 0);
	assert_false(l.objects[0].is_prefix);
	assert_string_equal(l.objects[1].key, "b&c");
	assert_true(l.objects[1].size == UINT64_MAX);
	assert_string_equal(l.objects[2].key, "v/");
	assert_true(l.objects[2].is_prefix);
	assert_string_equal(l.token, "t+/=");
	s3_listing_free(&l);

	/* Not encoded: as it stands. Many, so that the array grows. */
	assert_int_equal(parse_list(LIST("<IsTruncated>false</IsTruncated>"
					 "<NextContinuationToken>t</NextContinuationToken>" ITEM(
						 "a%2F+", "0")),
				 &l),
		0);
	assert_string_equal(l.objects[0].key, "a%2F+");
	assert_null(l.token);
	s3_listing_free(&l);
	assert_int_equal(parse_list(LIST("<IsTruncated>false</IsTruncated>"), &l), 0);
	assert_int_equal(l.n_objects, 0);
	s3_listing_free(&l);
}

static void parses_a_full_page(void **state)
{
	char *text = NULL;
	size_t size;
	FILE *stream = open_memstream(&text, &size);
	struct s3_listing l;

	(void)state;
	fputs(XML "<ListBucketResult><IsTruncated>false</IsTruncated>", stream);
	for (int i = 0; i < 1000; i++)
		fprintf(stream, "<Contents><Key>k%d</Key><Size>%d</Size></Contents>", i, i);
	fputs("</ListBucketResult>", stream);
	fclose(stream);
	assert_int_equal(s3_parse_listing(text, size, "k", &l), 0);
	assert_int_equal(l.n_objects, 1000);
	assert_string_equal(l.objects[999].key, "k999");
	s3_listing_free(&l);
	/* Cut anywhere, it is refused, and nothing leaks. */
	for (size_t cut = 0; cut < size; cut += 499)
		assert_int_equal(s3_parse_listing(text, cut, "k", &l), -EPROTO);
	free(text);
}

/* Keys that were not asked for may be another's: with a signature of ours they would be deleted. */
static void refuses_foreign_keys(void **state)
{
	static const char *const pages[] = {
		LIST("<IsTruncated>false</IsTruncated>" ITEM("v/a", "1") ITEM("w/b", "1")),
		LIST("<IsTruncated>false</IsTruncated>" ITEM("v", "1")),
		LIST("<IsTruncated>false</IsTruncated>" ITEM("", "1")),
		LIST("<IsTruncated>false</IsTruncated><CommonPrefixes><Prefix>w/"
		     "</Prefix></CommonPrefixes>"),
		LIST("<IsTruncated>false</IsTruncated><EncodingType>url</EncodingType>" ITEM(
			"v%2", "1")),
	};
	static const char own[] = LIST("<IsTruncated>false</IsTruncated>"
				       "<EncodingType>url</EncodingType>" ITEM("v%2Fa", "1"));
	struct s3_listing l;

	(void)state;
	for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
		assert_int_equal(s3_parse_listing(pages[i], strlen(pages[i]), "v/", &l), -EPROTO);
		assert_int_equal(l.n_objects, 0);
	}
	assert_int_equal(s3_parse_listing(own, strlen(own), "v/", &l), 0);
	s3_listing_free(&l);
}

/* What is not known to be whole, or not to be followed by more, is refused. */
static void refuses_doubtful_listings(void **state)
{
	struct s3_listing l;
	char *text;

	(void)state;
	assert_int_equal(parse_list(LIST(""), &l), -EPROTO);
	assert_int_equal(parse_list(LIST("<IsTruncated>maybe</IsTruncated>"), &l), -EPROTO);
	assert_int_equal(parse_list(LIST("<IsTruncated>true</IsTruncated>"), &l), -EPROTO);
	assert_int_equal(parse_list(LIST("<IsTruncated>true</IsTruncated>"
					 "<NextContinuationToken></NextContinuationToken>"),
				 &l),
		-EPROTO);
#define END "<IsTruncated>false</IsTruncated>"
	assert_int_equal(parse_list(LIST(END "<Contents><Key>a</Key></Contents>"), &l), -EPROTO);
	assert_int_equal(parse_list(LIST(END "<Contents><Size>1</Size></Contents>"), &l), -EPROTO);
	assert_int_equal(parse_list(LIST(END ITEM("a", "-1")), &l), -EPROTO);
	assert_int_equal(parse_list(LIST(END ITEM("a", "1 ")), &l), -EPROTO);
	assert_int_equal(parse_list(LIST(END ITEM("a", "18446744073709551616")), &l), -EPROTO);
	assert_int_equal(parse_list(LIST(END "<CommonPrefixes/>"), &l), -EPROTO);
	assert_int_equal(parse_list("<html/>", &l), -EPROTO);

	/* A key that is too long is not another, shorter one. */
	assert_true(
		asprintf(&text, LIST(END "<Contents><Key>%09999d</Key><Size>1</Size></Contents>"),
			1) > 0);
	assert_int_equal(parse_list(text, &l), -EPROTO);
	free(text);
}

static void parses_deletes(void **state)
{
	static const char text[] = XML
		"<DeleteResult><Deleted><Key>b</Key></Deleted><Error><Key>c</Key>"
		"<Code>AccessDenied</Code><Message>no</Message></Error><Deleted><Key>a</Key>"
		"</Deleted><Error><Key>d</Key><Code>NoSuchKey</Code></Error>"
		"<Error><Key>e</Key><Code>Strange</Code></Error><Deleted><Key>zzz</Key></Deleted>"
		"</DeleteResult>";
	static const char *const keys[] = {"a", "b", "c", "d", "e", "f"};
	int results[] = {9, 9, 9, 9, 9, 9};
	struct s3_error_reply first;

	(void)state;
	assert_int_equal(s3_parse_deleted(text, strlen(text), keys, 6, results, &first), 0);
	assert_int_equal(results[0], 0);
	assert_int_equal(results[1], 0);
	assert_int_equal(results[2], -EACCES);
	assert_int_equal(results[3], 0);
	assert_int_equal(results[4], -EIO);
	assert_int_equal(results[5], 9);
	assert_string_equal(first.code, "AccessDenied");
	assert_string_equal(first.message, "no");
	assert_int_equal(s3_parse_deleted(text, 60, keys, 6, results, &first), -EPROTO);
}

static void judges_answers(void **state)
{
	static const struct {
		long status;
		const char *code;
		bool conditional;
		enum s3_action action;
		int result;
	} answers[] = {
		{404, "NoSuchKey", false, S3_FINAL, -ENOENT},
		/* Absent is only what the store itself says is absent. */
		{404, "", false, S3_NOT_S3, -EPROTO},
		{404, "NoSuchBucket", false, S3_FINAL, -ENXIO},
		{404, "NoSuchUpload", false, S3_NOT_S3, -EPROTO},
		{403, "NoSuchKey", false, S3_MISMATCH, -EIO},
		{500, "NoSuchKey", false, S3_RETRY, -EIO},
		{503, "", false, S3_RETRY, -EIO},
		{503, "SlowDown", false, S3_RETRY, -EIO},
		{500, "InternalError", true, S3_RETRY, -EIO},
		{502, "", true, S3_RETRY, -EIO},
		{429, "", false, S3_RETRY, -EIO},
		{409, "ConditionalRequestConflict", true, S3_RETRY, -EIO},
		{400, "RequestTimeout", false, S3_RETRY, -EIO},
		{400, "BadDigest", false, S3_RETRY, -EIO},
		{400, "XAmzContentChecksumMismatch", false, S3_RETRY, -EIO},
		{412, "PreconditionFailed", true, S3_FINAL, -EEXIST},
		{412, "", true, S3_FINAL, -EEXIST},
		{412, "PreconditionFailed", false, S3_FINAL, -EINVAL},
		{416, "InvalidRange", false, S3_FINAL, -ERANGE},
		{403, "AccessDenied", false, S3_REAUTHENTICATE, -EACCES},
		{403, "", false, S3_NOT_S3, -EPROTO},
		{403, "Whatever", false, S3_REAUTHENTICATE, -EACCES},
		{403, "InvalidAccessKeyId", false, S3_REAUTHENTICATE, -EACCES},
		{400, "ExpiredToken", false, S3_REAUTHENTICATE, -EACCES},
		{403, "RequestTimeTooSkewed", false, S3_FINAL, -EACCES},
		{403, "InvalidObjectState", false, S3_FINAL, -EINVAL},
		{301, "PermanentRedirect", false, S3_FINAL, -EREMCHG},
		{400, "AuthorizationHeaderMalformed", false, S3_FINAL, -EREMCHG},
		{301, "", false, S3_NOT_S3, -EPROTO},
		{501, "NotImplemented", false, S3_FINAL, -EOPNOTSUPP},
		{507, "", false, S3_FINAL, -ENOSPC},
		{403, "QuotaExceeded", false, S3_FINAL, -ENOSPC},
		{400, "InvalidRequest", false, S3_FINAL, -EINVAL},
		{400, "", false, S3_NOT_S3, -EPROTO},
	};

	(void)state;
	for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
		struct s3_error_reply e = {0};
		struct s3_verdict v;

		snprintf(e.code, sizeof e.code, "%s", answers[i].code);
		v = s3_judge(answers[i].status, &e, answers[i].conditional);
		if (v.action != answers[i].action || v.result != answers[i].result)
			fail_msg("%ld %s: action %d, result %d", answers[i].status, answers[i].code,
				(int)v.action, v.result);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parses_errors),
		cmocka_unit_test(parses_listings),
		cmocka_unit_test(parses_a_full_page),
		cmocka_unit_test(refuses_foreign_keys),
		cmocka_unit_test(refuses_doubtful_listings),
		cmocka_unit_test(parses_deletes),
		cmocka_unit_test(judges_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
