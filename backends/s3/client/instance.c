/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <curl/curl.h>
#include <openssl/crypto.h>

#include "backends/s3/client/credentials.h"
#include "backends/s3/client/instance.h"
#include "backends/s3/client/json.h"

#define INSTANCES  "http://169.254.169.254"
#define CONTAINERS "http://169.254.170.2"
#define ROLES	   "/latest/meta-data/iam/security-credentials/"

#define TOKEN_MS                                                                                   \
	1000L		 /* for the first answer: where there is no service nobody refuses, either \
			  */
#define REPLY_MS 3000L	 /* for the others */
#define TEXT_MAX 65536	 /* bytes of a reply */
#define TOKEN_S	 "21600" /* that a token of the instances' service is good for: its most */

/* Environment variables that are set and not empty. */
static const char *environment(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

/* ---- requests ------------------------------------------------------------------------------ */

struct reply {
	long status;
	size_t length;
	char text[TEXT_MAX + 1];
};

static size_t keep(char *data, size_t size, size_t n, void *opaque)
{
	struct reply *reply = opaque;

	if (size * n > TEXT_MAX - reply->length)
		return 0;
	memcpy(reply->text + reply->length, data, size * n);
	reply->length += size * n;
	reply->text[reply->length] = '\0';
	return size * n;
}

/* One request, with a header (or NULL). 0 with reply->status, or negative errno: error says why. */
static int ask(const char *method, const char *url, const char *header, long timeout_ms,
	struct reply *reply, struct params_error *error)
{
	CURL *e = curl_easy_init();
	struct curl_slist *headers = header ? curl_slist_append(NULL, header) : NULL;
	char detail[CURL_ERROR_SIZE] = "";
	CURLcode code = CURLE_OUT_OF_MEMORY;

	reply->status = 0;
	reply->length = 0;
	reply->text[0] = '\0';
	if (e && (headers || !header)) {
		code = curl_easy_setopt(e, CURLOPT_URL, url);
		code |= curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, method);
		code |= curl_easy_setopt(e, CURLOPT_HTTPHEADER, headers);
		code |= curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
		code |= curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
		code |= curl_easy_setopt(e, CURLOPT_PROXY, ""); /* it is of this machine alone */
		code |= curl_easy_setopt(e, CURLOPT_USERAGENT, "userblk/" USERBLK_VERSION);
		code |= curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, timeout_ms);
		code |= curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, TOKEN_MS);
		code |= curl_easy_setopt(e, CURLOPT_ERRORBUFFER, detail);
		code |= curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, keep);
		code |= curl_easy_setopt(e, CURLOPT_WRITEDATA, reply);
		if (code == CURLE_OK)
			code = curl_easy_perform(e);
		if (code == CURLE_OK)
			curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &reply->status);
	}
	curl_slist_free_all(headers);
	curl_easy_cleanup(e);
	if (code == CURLE_OK)
		return 0;
	params_error_set(error, "%s: %s", url, detail[0] ? detail : curl_easy_strerror(code));
	return code == CURLE_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

/* ---- what they answer ---------------------------------------------------------------------- */

/* Seconds since 1970; 0: no time. */
static int64_t parse_time(const char *text)
{
	struct tm tm = {0};
	const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);

	return end && (*end == 'Z' || *end == '.' || *end == '+') ? timegm(&tm) : 0;
}

/* Takes the credentials out of a reply; url is where it is from. */
static int take_credentials(const char *url, const struct reply *reply, struct s3_credentials *c,
	struct params_error *error)
{
	static const char *const names[] = {
		"AccessKeyId", "SecretAccessKey", "Token", "Expiration", "Code", "Message"};
	char *values[sizeof names / sizeof names[0]] = {NULL};
	int r = s3_json_strings(
		reply->text, reply->length, names, values, sizeof names / sizeof names[0]);

	if (r == -EBADMSG)
		params_error_set(error,
			"%s: the answer is not a JSON object; correct the address, or give "
			"credentials=FILE",
			url);
	else if (r == 0 && values[4] && strcmp(values[4], "Success") != 0)
		r = -EACCES,
		params_error_set(error,
			"%s: %s%s%s; check the role of this machine, or give credentials=FILE", url,
			values[4], values[5] ? ": " : "", values[5] ? values[5] : "");
	else if (r == 0 && (!values[0] || !values[1] || !s3_credential_valid(values[0]) ||
				   !s3_credential_valid(values[1]) ||
				   (values[2] && !s3_credential_valid(values[2]))))
		r = -EBADMSG,
		params_error_set(error,
			"%s: the answer holds no AccessKeyId and SecretAccessKey; correct "
			"the address, or give credentials=FILE",
			url);
	if (r == 0) {
		c->access_key = values[0];
		c->secret_key = values[1];
		c->token = values[2];
		c->expires = values[3] ? parse_time(values[3]) : 0;
		c->of_role = true;
		values[0] = values[1] = values[2] = NULL;
	}
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		if (values[i])
			OPENSSL_cleanse(values[i], strlen(values[i]));
		free(values[i]);
	}
	return r;
}

/* ---- containers ---------------------------------------------------------------------------- */

/* May we request credentials at that address? No other host may see the token. */
static bool is_near(const char *url)
{
	static const unsigned char eks[16] = {0xfd, 0, 0x0e, 0xc2, [15] = 0x23}; /* fd00:ec2::23 */
	CURLU *u = curl_url();
	char *scheme = NULL, *host = NULL, address[64] = "";
	unsigned char bytes[16];
	bool near = false;

	if (u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
		curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
		curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK) {
		size_t n = strlen(host);

		if (host[0] == '[' && n - 2 < sizeof address)
			snprintf(address, sizeof address, "%.*s", (int)n - 2, host + 1);
		else
			snprintf(address, sizeof address, "%s", host);
		near = strcasecmp(host, "localhost") == 0 ||
		       (inet_pton(AF_INET, address, bytes) == 1 && bytes[0] == 127) ||
		       strcmp(address, "169.254.170.2") == 0 ||
		       strcmp(address, "169.254.170.23") == 0 ||
		       (inet_pton(AF_INET6, address, bytes) == 1 &&
			       (memcmp(bytes, &in6addr_loopback, sizeof bytes) == 0 ||
				       memcmp(bytes, eks, sizeof bytes) == 0));
		near = strcmp(scheme, "https") == 0 || (near && strcmp(scheme, "http") == 0);
	}
	curl_free(scheme);
	curl_free(host);
	curl_url_cleanup(u);
	return near;
}

/* Frees a header that holds a token, and leaves no copy of it in memory. */
static void drop_header(char *header)
{
	if (header)
		OPENSSL_cleanse(header, strlen(header));
	free(header);
}

/* The header with the token that the environment or its file holds; *header NULL: there is none. */
static int container_token(char **header, struct params_error *error)
{
	const char *path = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	const char *token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
	char text[8192] = "";
	size_t n;

	*header = NULL;
	if (path) {
		FILE *file = fopen(path, "re");

		if (!file) {
			int r = -errno;

			params_error_set(error,
				"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=%s: %s; name a readable "
				"file",
				path, strerror(-r));
			return r;
		}
		n = fread(text, 1, sizeof text - 1, file);
		text[n] = '\0';
		fclose(file);
		while (n && isspace((unsigned char)text[n - 1]))
			text[--n] = '\0';
		token = text;
	}
	if (!token)
		return 0;
	for (const char *c = token; *c; c++)
		if (!isprint((unsigned char)*c)) {
			params_error_set(error,
				"AWS_CONTAINER_AUTHORIZATION_TOKEN%s: contains characters that a "
				"header cannot have; copy it as it was issued",
				path ? "_FILE" : "");
			return -EINVAL;
		}
	return asprintf(header, "Authorization: %s", token) < 0 ? -ENOMEM : 0;
}

static int from_containers(
	struct reply *reply, struct s3_credentials *c, struct params_error *error)
{
	const char *relative = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	char *header = NULL, url[2048];
	int r;

	snprintf(url, sizeof url, "%s%s", relative ? CONTAINERS : "", relative ? relative : full);
	if (relative ? relative[0] != '/' : !is_near(url)) {
		params_error_set(error, "AWS_CONTAINER_CREDENTIALS_%s=%s: %s",
			relative ? "RELATIVE_URI" : "FULL_URI", relative ? relative : full,
			relative ? "not a path; begin it with /"
				 : "neither https nor an address of this machine or of ECS or EKS; "
				   "use https://, or unset it");
		return -EINVAL;
	}
	r = container_token(&header, error);
	if (r == 0)
		r = ask("GET", url, header, REPLY_MS, reply, error);
	if (r == 0 && reply->status != 200) {
		r = -EACCES;
		params_error_set(error,
			"%s: HTTP status %ld; check the role of this container%s, or give "
			"credentials=FILE",
			url, reply->status,
			header ? " and to AWS_CONTAINER_AUTHORIZATION_TOKEN" : "");
	}
	if (r == 0)
		r = take_credentials(url, reply, c, error);
	if (r == 0 && asprintf(&c->source, "role of this container (%s)", url) < 0) {
		c->source = NULL;
		r = -ENOMEM;
	}
	drop_header(header);
	return r;
}

/* ---- instances ------------------------------------------------------------------------------- */

/* A token, without which the service answers nothing. */
static int instance_token(
	const char *base, struct reply *reply, char **header, struct params_error *error)
{
	char url[512];
	int r;

	snprintf(url, sizeof url, "%s/latest/api/token", base);
	r = ask("PUT", url, "X-aws-ec2-metadata-token-ttl-seconds: " TOKEN_S, TOKEN_MS, reply,
		error);
	if (r)
		return r == -EIO ? -ENOENT : r;
	while (reply->length && isspace((unsigned char)reply->text[reply->length - 1]))
		reply->text[--reply->length] = '\0';
	if (reply->status != 200 || !s3_credential_valid(reply->text)) {
		params_error_set(error, "%s: HTTP status %ld and no token", url, reply->status);
		return -ENOENT;
	}
	drop_header(*header);
	if (asprintf(header, "X-aws-ec2-metadata-token: %s", reply->text) < 0) {
		*header = NULL;
		return -ENOMEM;
	}
	return 0;
}

/* GET with the token, which is drawn again if it is not accepted (401). */
static int instance_get(const char *base, const char *url, struct reply *reply, char **header,
	struct params_error *error)
{
	int r = ask("GET", url, *header, REPLY_MS, reply, error);

	if (r == 0 && reply->status == 401) {
		r = instance_token(base, reply, header, error);
		if (r == 0)
			r = ask("GET", url, *header, REPLY_MS, reply, error);
	}
	if (r == 0 && reply->status != 200) {
		r = reply->status == 404 ? -ENOENT : -EACCES;
		params_error_set(error, "%s: HTTP status %ld%s", url, reply->status,
			r == -ENOENT ? ": this machine has no role"
				     : "; try again later, or give credentials=FILE");
	}
	return r;
}

static int from_instances(struct reply *reply, struct s3_credentials *c, struct params_error *error)
{
	const char *base = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	char *header = NULL, url[1024], role[256] = "";
	size_t n;
	int r;

	if (!base)
		base = INSTANCES;
	n = strlen(base);
	if (n > 256 || strncmp(base, "http", 4) != 0) {
		params_error_set(error,
			"AWS_EC2_METADATA_SERVICE_ENDPOINT=%s: not an address; write "
			"http://host[:port]",
			base);
		return -EINVAL;
	}
	char root[260];

	snprintf(root, sizeof root, "%.*s", (int)(n && base[n - 1] == '/' ? n - 1 : n), base);
	r = instance_token(root, reply, &header, error);
	if (r == 0) {
		snprintf(url, sizeof url, "%s" ROLES, root);
		r = instance_get(root, url, reply, &header, error);
	}
	if (r == 0) {
		n = strcspn(reply->text, "\r\n");
		reply->text[n] = '\0';
		if (n == 0 || n >= sizeof role || !s3_credential_valid(reply->text) ||
			strchr(reply->text, '/')) {
			params_error_set(error, "%s: the answer is not the name of a role", url);
			r = -ENOENT;
		} else {
			memcpy(role, reply->text, n + 1);
			snprintf(url, sizeof url, "%s" ROLES "%s", root, role);
			r = instance_get(root, url, reply, &header, error);
		}
	}
	if (r == 0)
		r = take_credentials(url, reply, c, error);
	if (r == 0 && asprintf(&c->source, "role %s of this machine (%s)", role, root) < 0) {
		c->source = NULL;
		r = -ENOMEM;
	}
	drop_header(header);
	return r;
}

int s3_instance_credentials(struct s3_credentials *c, struct params_error *error)
{
	const char *disabled = environment("AWS_EC2_METADATA_DISABLED");
	struct reply *reply;
	int r;

	if (!environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") &&
		!environment("AWS_CONTAINER_CREDENTIALS_FULL_URI") && disabled &&
		strcasecmp(disabled, "true") == 0) {
		params_error_set(error, "AWS_EC2_METADATA_DISABLED=%s", disabled);
		return -ENOENT;
	}
	reply = malloc(sizeof *reply);
	if (!reply)
		return -ENOMEM;
	if (environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") ||
		environment("AWS_CONTAINER_CREDENTIALS_FULL_URI"))
		r = from_containers(reply, c, error);
	else
		r = from_instances(reply, c, error);
	OPENSSL_cleanse(reply, sizeof *reply);
	free(reply);
	return r;
}
