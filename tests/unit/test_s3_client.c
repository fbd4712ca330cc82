/* SPDX-License-Identifier: BSD-3-Clause */
/* What the S3 client computes by itself: signatures and names; and what it sends without MD5. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "backends/s3/client/client.h"
#include "backends/s3/client/names.h"
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

/* ---- a store ------------------------------------------------------------------------------- */

int __real_EVP_Digest(const void *data, size_t count, unsigned char *digest, unsigned int *size,
	const EVP_MD *type, ENGINE *engine);
int __wrap_EVP_Digest(const void *data, size_t count, unsigned char *digest, unsigned int *size,
	const EVP_MD *type, ENGINE *engine);
/* As on a host in FIPS mode. */
int __wrap_EVP_Digest(const void *data, size_t count, unsigned char *digest, unsigned int *size,
	const EVP_MD *type, ENGINE *engine)
{
	return EVP_MD_is_a(type, "MD5")
		       ? 0
		       : __real_EVP_Digest(data, count, digest, size, type, engine);
}

/* A store that takes one request, which deletes "a". */
struct deleting {
	int listener;
	char request[4096];
};

static void *serve_one(void *opaque)
{
	static const char body[] = "<DeleteResult><Deleted><Key>a</Key></Deleted></DeleteResult>";
	struct deleting *s = opaque;
	int fd = accept(s->listener, NULL, NULL);
	size_t length = 0;
	char answer[256];
	ssize_t n = 1;

	while (n > 0 && !strstr(s->request, "</Delete>")) {
		n = read(fd, s->request + length, sizeof s->request - 1 - length);
		length += n > 0 ? (size_t)n : 0;
	}
	snprintf(answer, sizeof answer, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s",
		sizeof body - 1, body);
	n = write(fd, answer, strlen(answer));
	while (read(fd, answer, sizeof answer) > 0)
		;
	close(fd);
	return NULL;
}

static void ignore_error(void *opaque, const char *message)
{
	(void)opaque, (void)message;
}

/* Where there is no MD5 the store checks the keys to delete by another digest. */
static void deletes_without_md5(void **state)
{
	static const char lines[] = "access-key-id=abc\nsecret-access-key=def\n";
	static const char *const keys[] = {"a"};
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct backend_host host = {.error = ignore_error};
	struct deleting server = {.listener = socket(AF_INET, SOCK_STREAM, 0)};
	int fd = open(scratch_path("credentials"), O_WRONLY | O_CREAT, 0600), result = 1;
	struct s3_request req = {.op = S3_DELETE_MANY,
		.pool = S3_POOL_BACKGROUND,
		.keys = keys,
		.key_results = &result,
		.n_keys = 1};
	char endpoint[64], expected[128];
	struct s3_store_config config = {.endpoint = endpoint,
		.region = "us-east-1",
		.bucket = "abc",
		.credentials = (char *)scratch_path("credentials"),
		.connections = 1,
		.timeout = 30};
	socklen_t length = sizeof address;
	struct s3_store *store;
	uint8_t digest[32];
	pthread_t thread;

	(void)state;
	assert_int_equal(write(fd, lines, sizeof lines - 1), sizeof lines - 1);
	close(fd);
	assert_int_equal(bind(server.listener, (struct sockaddr *)&address, length), 0);
	assert_int_equal(listen(server.listener, 1), 0);
	getsockname(server.listener, (struct sockaddr *)&address, &length);
	snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", ntohs(address.sin_port));
	assert_int_equal(pthread_create(&thread, NULL, serve_one, &server), 0);
	assert_int_equal(s3_store_open(&config, &host, &store), 0);
	assert_int_equal(s3_store_call(store, &req), 0);
	assert_int_equal(result, 0);
	s3_store_close(store);
	pthread_join(thread, NULL);
	close(server.listener);
	s3_sha256(strstr(server.request, "<?xml"), strlen(strstr(server.request, "<?xml")), digest);
	strcpy(expected, "x-amz-checksum-sha256: ");
	EVP_EncodeBlock((unsigned char *)expected + strlen(expected), digest, sizeof digest);
	assert_holds(server.request, expected);
	assert_holds(server.request, ";x-amz-checksum-sha256;");
}

/* As many connections as are asked for can be made where the limit of files is low, but can be
 * raised.
 */
static void allows_its_connections(void **state)
{
	struct rlimit before, low, raised;
	struct backend_host host = {.error = ignore_error};
	struct s3_store_config config = {.endpoint = "http://127.0.0.1:1",
		.region = "us-east-1",
		.bucket = "abc",
		.credentials = (char *)scratch_path("credentials"),
		.connections = 300,
		.timeout = 30};
	struct s3_store *store;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	low = before;
	low.rlim_cur = 256;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	assert_int_equal(s3_store_open(&config, &host, &store), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &raised), 0);
	s3_store_close(store);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_in_range(raised.rlim_cur, 3 * 300 + 1, before.rlim_max);
}

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
		cmocka_unit_test(deletes_without_md5),
		cmocka_unit_test(allows_its_connections),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
