/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of the S3 client that need no store: signer, names, credentials, replies. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/s3/client/client.h"
#include "backends/s3/client/credentials.h"
#include "backends/s3/client/names.h"
#include "backends/s3/client/reply.h"
#include "backends/s3/client/sigv4.h"
#include "tests/unit/support.h"

#define EMPTY_DIGEST "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* ---- signer ------------------------------------------------------------------- */

/* From the examples in "Signature Calculations for the Authorization Header" of Amazon's S3 API. */
static struct s3_signer s3_example(void)
{
	return (struct s3_signer){
		.access_key = "AKIAIOSFODNN7EXAMPLE",
		.secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
		.region = "us-east-1",
		.service = "s3",
	};
}

/* Signs and compares the signature; and the names of what is signed, if they are given. */
static void check_signature(struct s3_signer *signer, const char *timestamp, const char *method,
	const char *path, const char *query, struct s3_header *headers, size_t n,
	const char *payload, const char *names, const char *signature)
{
	char authorization[S3_AUTHORIZATION_MAX], expected[S3_AUTHORIZATION_MAX];

	assert_int_equal(s3_sign(signer, timestamp, method, path, query, headers, n, payload,
				 authorization, sizeof authorization),
		0);
	snprintf(expected, sizeof expected,
		"AWS4-HMAC-SHA256 Credential=%s/%.8s/%s/%s/aws4_request,SignedHeaders=%s,"
		"Signature=%s",
		signer->access_key, timestamp, signer->region, signer->service, names, signature);
	assert_string_equal(authorization, expected);
}

static void signs_the_get_of_amazons_example(void **state)
{
	struct s3_signer signer = s3_example();
	struct s3_header headers[] = {{"x-amz-date", "20130524T000000Z"},
		{"x-amz-content-sha256", EMPTY_DIGEST}, {"range", "bytes=0-9"},
		{"host", "examplebucket.s3.amazonaws.com"}};

	(void)state;
	check_signature(&signer, "20130524T000000Z", "GET", "/test.txt", "", headers, 4,
		EMPTY_DIGEST, "host;range;x-amz-content-sha256;x-amz-date",
		"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

static void signs_the_put_of_amazons_example(void **state)
{
	static const char body[] = "Welcome to Amazon S3.";
	struct s3_signer signer = s3_example();
	char path[64], payload[S3_SHA256_HEX];
	uint8_t digest[32];

	(void)state;
	s3_sha256(body, strlen(body), digest);
	s3_hex(digest, sizeof digest, payload);
	s3_uri_encode("/test$file.text", true, path, sizeof path);

	struct s3_header headers[] = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
		{"host", "examplebucket.s3.amazonaws.com"}, {"x-amz-content-sha256", payload},
		{"x-amz-date", "20130524T000000Z"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};

	check_signature(&signer, "20130524T000000Z", "PUT", path, "", headers, 5, payload,
		"date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
		"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

static void signs_the_lifecycle_of_amazons_example(void **state)
{
	struct s3_signer signer = s3_example();
	struct s3_header headers[] = {{"host", "examplebucket.s3.amazonaws.com"},
		{"x-amz-content-sha256", EMPTY_DIGEST}, {"x-amz-date", "20130524T000000Z"}};

	(void)state;
	check_signature(&signer, "20130524T000000Z", "GET", "/", "lifecycle=", headers, 3,
		EMPTY_DIGEST, "host;x-amz-content-sha256;x-amz-date",
		"fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

static void signs_the_listing_of_amazons_example(void **state)
{
	struct s3_signer signer = s3_example();
	struct s3_header headers[] = {{"host", "examplebucket.s3.amazonaws.com"},
		{"x-amz-content-sha256", EMPTY_DIGEST}, {"x-amz-date", "20130524T000000Z"}};

	(void)state;
	check_signature(&signer, "20130524T000000Z", "GET", "/", "max-keys=2&prefix=J", headers, 3,
		EMPTY_DIGEST, "host;x-amz-content-sha256;x-amz-date",
		"34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

/* From the "Signature Version 4 Test Suite": get-vanilla and get-vanilla-query-order-key-case. */
static void signs_amazons_test_suite(void **state)
{
	struct s3_signer signer = {
		.access_key = "AKIDEXAMPLE",
		.secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
		.region = "us-east-1",
		.service = "service",
	};
	struct s3_header headers[] = {
		{"x-amz-date", "20150830T123600Z"}, {"host", "example.amazonaws.com"}};

	(void)state;
	check_signature(&signer, "20150830T123600Z", "GET", "/", "", headers, 2, EMPTY_DIGEST,
		"host;x-amz-date",
		"5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
	check_signature(&signer, "20150830T123600Z", "GET", "/", "Param1=value1&Param2=value2",
		headers, 2, EMPTY_DIGEST, "host;x-amz-date",
		"b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
	check_signature(&signer, "20150830T123600Z", "POST", "/", "", headers, 2, EMPTY_DIGEST,
		"host;x-amz-date",
		"5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
}

/* The key is that of the day: another day's signature needs another one. */
static void key_follows_the_day(void **state)
{
	struct s3_signer signer = s3_example();
	struct s3_header headers[] = {{"host", "examplebucket.s3.amazonaws.com"},
		{"x-amz-content-sha256", EMPTY_DIGEST}, {"x-amz-date", "20130524T000000Z"}};
	char authorization[S3_AUTHORIZATION_MAX];

	(void)state;
	assert_int_equal(s3_sign(&signer, "20130523T235959Z", "GET", "/", "", headers, 3,
				 EMPTY_DIGEST, authorization, sizeof authorization),
		0);
	check_signature(&signer, "20130524T000000Z", "GET", "/", "lifecycle=", headers, 3,
		EMPTY_DIGEST, "host;x-amz-content-sha256;x-amz-date",
		"fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

static void refuses_to_cut_a_signature(void **state)
{
	struct s3_signer signer = s3_example();
	struct s3_header headers[] = {{"host", "h"}, {"x-amz-date", "20130524T000000Z"}};
	char authorization[64];

	(void)state;
	assert_int_equal(s3_sign(&signer, "20130524T000000Z", "GET", "/", "", headers, 2,
				 EMPTY_DIGEST, authorization, sizeof authorization),
		-EINVAL);
}

static void encodes_uris(void **state)
{
	char text[64];

	(void)state;
	assert_int_equal(s3_uri_encode("a/B+c=d e\xc3\xa4~-._", false, text, sizeof text), 27);
	assert_string_equal(text, "a%2FB%2Bc%3Dd%20e%C3%A4~-._");
	s3_uri_encode("a/b$", true, text, sizeof text);
	assert_string_equal(text, "a/b%24");
	/* Never half a code. */
	assert_int_equal(s3_uri_encode("ab/", false, text, 5), 5);
	assert_string_equal(text, "ab");
	assert_int_equal(s3_uri_encode("", false, text, sizeof text), 0);
	assert_string_equal(text, "");
}

static void tells_the_time(void **state)
{
	char text[S3_TIMESTAMP];

	(void)state;
	s3_timestamp(1369353600, text);
	assert_string_equal(text, "20130524T000000Z");
}

/* ---- names -------------------------------------------------------------------- */

static void knows_keys(void **state)
{
	static const char *const good[] = {
		"a", "vol/log/0f/00000000000000aa", "a.b-c_d/0", ".a", "..a", "a/...", "a/.b"};
	static const char *const bad[] = {"", "/a", "a/", "a//b", ".", "..", "a/./b", "a/../b",
		"../a", "a/..", "A", "a b", "a+b", "a=b", "a%2fb", "\xc3\xa4", "a\n", "a?b", "a#b"};
	char key[S3_KEY_MAX + 2];

	(void)state;
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
		if (!s3_key_valid(good[i]))
			fail_msg("%s", good[i]);
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		if (s3_key_valid(bad[i]))
			fail_msg("%s", bad[i]);
	memset(key, 'a', sizeof key);
	key[S3_KEY_MAX + 1] = '\0';
	assert_false(s3_key_valid(key));
	key[S3_KEY_MAX] = '\0';
	assert_true(s3_key_valid(key));
}

static void knows_prefixes(void **state)
{
	(void)state;
	assert_true(s3_prefix_valid(""));
	assert_true(s3_prefix_valid("a/"));
	assert_true(s3_prefix_valid("a/."));
	assert_true(s3_prefix_valid("a/b"));
	assert_false(s3_prefix_valid("/"));
	assert_false(s3_prefix_valid("a//"));
	assert_false(s3_prefix_valid("a/../"));
	assert_false(s3_prefix_valid("A"));
}

static void knows_buckets(void **state)
{
	(void)state;
	assert_true(s3_bucket_valid("abc"));
	assert_true(s3_bucket_valid("my-bucket.9"));
	assert_false(s3_bucket_valid("ab"));
	assert_false(s3_bucket_valid("-ab"));
	assert_false(s3_bucket_valid("ab-"));
	assert_false(s3_bucket_valid("a..b"));
	assert_false(s3_bucket_valid("a/b"));
	assert_false(s3_bucket_valid("Abc"));
	assert_false(s3_bucket_valid(
		"a123456789012345678901234567890123456789012345678901234567890123"));
}

static void takes_endpoints_apart(void **state)
{
	static const char *const bad[] = {"", "localhost", "ftp://a", "http://", "https:///",
		"http://a:", "http://a:0", "http://a:65536", "http://a:1x", "http://a/b",
		"http://u@a", "http://a?b", "http://[::1", "http://[::g]", "http://[::1]x",
		"http://a b", "http://a//"};
	struct s3_endpoint e;

	(void)state;
	assert_true(s3_endpoint_parse("http://LocalHost:7070/", &e));
	assert_false(e.tls);
	assert_string_equal(e.host, "localhost");
	assert_string_equal(e.authority, "localhost:7070");
	assert_false(e.is_address);
	/* As libcurl sends it, or the signature is another's. */
	assert_true(s3_endpoint_parse("HTTPS://s3.example.org:443", &e));
	assert_true(e.tls);
	assert_string_equal(e.authority, "s3.example.org");
	assert_true(s3_endpoint_parse("http://10.0.0.1:443", &e));
	assert_true(e.is_address);
	assert_string_equal(e.authority, "10.0.0.1:443");
	assert_true(s3_endpoint_parse("http://[::1]:80", &e));
	assert_true(e.is_address);
	assert_string_equal(e.authority, "[::1]");
	assert_true(s3_endpoint_parse("http://[fe80::1]:81", &e));
	assert_string_equal(e.authority, "[fe80::1]:81");
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		if (s3_endpoint_parse(bad[i], &e))
			fail_msg("%s", bad[i]);
}

static void parses_content_ranges(void **state)
{
	static const char *const bad[] = {"", "bytes", "bytes 0-9", "bytes 0-9/", "bytes 0-9/*",
		"bytes */100", "bytes 9-0/100", "bytes 0-100/100", "bytes 0-9/9", "bytes -9/100",
		"bytes 0-9/100x", "bytes 0-9/99999999999999999999999", "items 0-9/100",
		"bytes 0- 9/100", "bytes +0-9/100"};
	uint64_t first, last, size;

	(void)state;
	assert_true(s3_content_range_parse("bytes 0-9/10", &first, &last, &size));
	assert_int_equal(first, 0);
	assert_int_equal(last, 9);
	assert_int_equal(size, 10);
	assert_true(s3_content_range_parse(
		"Bytes 4294967296-4294967297/9223372036854775808", &first, &last, &size));
	assert_int_equal(first, 4294967296);
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		if (s3_content_range_parse(bad[i], &first, &last, &size))
			fail_msg("%s", bad[i]);
}

/* ---- credentials ---------------------------------------------------------------- */

static struct s3_credentials credentials;
static struct params_error error;
static struct reported reported;

static void tell_error(void *opaque, const char *message)
{
	(void)opaque;
	reported.errors++;
	snprintf(reported.error, sizeof reported.error, "%s", message);
}

static const struct backend_host host = {.error = tell_error};

static const char *write_file(const char *name, mode_t mode, const char *text)
{
	const char *path = scratch_path(name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(fchmod(fd, mode), 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	return path;
}

static int no_environment(void **state)
{
	static const char *const names[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
		"AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE",
		"AWS_CONFIG_FILE"};

	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		unsetenv(names[i]);
	setenv("HOME", scratch_path("no-home"), 1);
	reported = (struct reported){0};
	return 0;
}

static int forget_credentials(void **state)
{
	(void)state;
	s3_credentials_clear(&credentials);
	return 0;
}

static void assert_keys(const char *access, const char *secret, const char *token)
{
	assert_string_equal(credentials.access_key, access);
	assert_string_equal(credentials.secret_key, secret);
	if (token)
		assert_string_equal(credentials.token, token);
	else
		assert_null(credentials.token);
}

static void reads_own_file(void **state)
{
	const char *path = write_file("own", 0600,
		"# comment\n\n access-key-id = AK \nsecret-access-key=s/e+c=\r\nsession-token=T\n");

	(void)state;
	assert_int_equal(s3_credentials_load(path, NULL, &host, &credentials, &error), 0);
	assert_keys("AK", "s/e+c=", "T");
	assert_holds(credentials.source, "credentials=");
	assert_int_equal(reported.errors, 0);
}

static void reads_amazons_file(void **state)
{
	const char *path = write_file("aws", 0640,
		"[default]\naws_access_key_id = D\naws_secret_access_key = DS\nregion = x\n"
		"s3 =\n  max_concurrent_requests = 2\n"
		"[other]\naws_access_key_id=O\naws_secret_access_key=OS\naws_session_token=OT\n");

	(void)state;
	assert_int_equal(s3_credentials_load(path, NULL, &host, &credentials, &error), 0);
	assert_keys("D", "DS", NULL);
	s3_credentials_clear(&credentials);
	assert_int_equal(s3_credentials_load(path, "other", &host, &credentials, &error), 0);
	assert_keys("O", "OS", "OT");
	s3_credentials_clear(&credentials);
	assert_int_equal(s3_credentials_load(path, "third", &host, &credentials, &error), -EINVAL);
	assert_holds(error.text, "no section [third]");
	assert_null(credentials.access_key);
}

static void reads_the_environment(void **state)
{
	(void)state;
	setenv("AWS_ACCESS_KEY_ID", "E", 1);
	assert_int_equal(s3_credentials_load(NULL, NULL, &host, &credentials, &error), -EINVAL);
	assert_holds(error.text, "AWS_SECRET_ACCESS_KEY: not set");
	setenv("AWS_SECRET_ACCESS_KEY", "ES", 1);
	setenv("AWS_SESSION_TOKEN", "ET", 1);
	assert_int_equal(s3_credentials_load(NULL, NULL, &host, &credentials, &error), 0);
	assert_keys("E", "ES", "ET");
	assert_string_equal(credentials.source, "AWS_ACCESS_KEY_ID");
}

static void reads_the_shared_files(void **state)
{
	char home[512], path[560];

	(void)state;
	snprintf(home, sizeof home, "%s", scratch_path("home"));
	setenv("HOME", home, 1);
	setenv("AWS_EC2_METADATA_DISABLED", "true", 1); /* this machine may have a role */
	mkdir(home, 0700);
	snprintf(path, sizeof path, "%s/.aws", home);
	mkdir(path, 0700);
	write_file("home/.aws/config", 0600,
		"[default]\nregion = eu-west-1\n[profile conf]\naws_access_key_id=C\n"
		"aws_secret_access_key=CS\n");
	assert_int_equal(s3_credentials_load(NULL, NULL, &host, &credentials, &error), -ENOENT);
	assert_holds(error.text, "credentials: none found, nor a role");

	write_file("home/.aws/credentials", 0600,
		"[default]\naws_access_key_id=H\naws_secret_access_key=HS\n"
		"[work]\naws_access_key_id=W\naws_secret_access_key=WS\n");
	assert_int_equal(s3_credentials_load(NULL, NULL, &host, &credentials, &error), 0);
	assert_keys("H", "HS", NULL);
	s3_credentials_clear(&credentials);
	setenv("AWS_PROFILE", "work", 1);
	assert_int_equal(s3_credentials_load(NULL, NULL, &host, &credentials, &error), 0);
	assert_keys("W", "WS", NULL);
	s3_credentials_clear(&credentials);
	/* A profile that is asked for wins over the environment's keys. */
	setenv("AWS_ACCESS_KEY_ID", "E", 1);
	setenv("AWS_SECRET_ACCESS_KEY", "ES", 1);
	assert_int_equal(s3_credentials_load(NULL, "conf", &host, &credentials, &error), 0);
	assert_keys("C", "CS", NULL);
	s3_credentials_clear(&credentials);
	setenv("AWS_SHARED_CREDENTIALS_FILE",
		write_file("elsewhere", 0600,
			"[conf]\naws_access_key_id=X\naws_secret_access_key=XS\n"),
		1);
	assert_int_equal(s3_credentials_load(NULL, "conf", &host, &credentials, &error), 0);
	assert_keys("X", "XS", NULL);
}

static void warns_of_a_public_file(void **state)
{
	const char *path =
		write_file("public", 0644, "access-key-id=AK\nsecret-access-key=S3CRET\n");

	(void)state;
	assert_int_equal(s3_credentials_load(path, NULL, &host, &credentials, &error), 0);
	assert_int_equal(reported.errors, 1);
	assert_holds(reported.error, "every user may read it; chmod 600 it");
}

static void tells_mistakes_without_secrets(void **state)
{
	static const struct {
		const char *text, *message;
	} files[] = {
		{"", "no access-key-id there"},
		{"access-key-id=A\n", "no secret-access-key there"},
		{"access-key-id=A\nsecret-access-key=\n", "line 2: secret-access-key: empty"},
		{"access-key-id=A\nsecret-access-key=S3CRET S3CRET\n", "line 2: secret-access-key"},
		{"access-key-id=A\nS3CRET\n", "line 2: not key=value"},
		{"access-key=A\n", "line 1: access-key: unknown; there are access-key-id="},
		{"access-key-id=A\n[default]\n", "line 2: no section"},
		{"[default]\naws_access_key_id=A\n", "no aws_secret_access_key there"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
		const char *path = write_file("bad", 0600, files[i].text);

		assert_int_equal(
			s3_credentials_load(path, NULL, &host, &credentials, &error), -EINVAL);
		assert_holds(error.text, files[i].message);
		assert_null(strstr(error.text, "S3CRET"));
		assert_null(credentials.access_key);
		assert_null(credentials.source);
	}
	assert_int_equal(
		s3_credentials_load(scratch_path("none"), NULL, &host, &credentials, &error),
		-ENOENT);
	assert_holds(error.text, "No such file or directory; name a readable file");
}

/* ---- replies ------------------------------------------------------------------- */

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
	/* Cut anywhere it is none, and nothing leaks. */
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

#define credentials_test(f) cmocka_unit_test_setup_teardown(f, no_environment, forget_credentials)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(signs_the_get_of_amazons_example),
		cmocka_unit_test(signs_the_put_of_amazons_example),
		cmocka_unit_test(signs_the_lifecycle_of_amazons_example),
		cmocka_unit_test(signs_the_listing_of_amazons_example),
		cmocka_unit_test(signs_amazons_test_suite),
		cmocka_unit_test(key_follows_the_day),
		cmocka_unit_test(refuses_to_cut_a_signature),
		cmocka_unit_test(encodes_uris),
		cmocka_unit_test(tells_the_time),
		cmocka_unit_test(knows_keys),
		cmocka_unit_test(knows_prefixes),
		cmocka_unit_test(knows_buckets),
		cmocka_unit_test(takes_endpoints_apart),
		cmocka_unit_test(parses_content_ranges),
		credentials_test(reads_own_file),
		credentials_test(reads_amazons_file),
		credentials_test(reads_the_environment),
		credentials_test(reads_the_shared_files),
		credentials_test(warns_of_a_public_file),
		credentials_test(tells_mistakes_without_secrets),
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
