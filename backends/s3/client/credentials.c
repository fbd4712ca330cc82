/* SPDX-License-Identifier: BSD-3-Clause */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <openssl/crypto.h>

#include "backends/params.h"
#include "backends/s3/client/credentials.h"
#include "backends/s3/client/instance.h"

/* Longest of a key or token, so that a request's headers have an end. */
#define VALUE_LONGEST 8192

static void clear_text(char **text)
{
	if (*text)
		OPENSSL_cleanse(*text, strlen(*text));
	free(*text);
	*text = NULL;
}

void s3_credentials_clear(struct s3_credentials *c)
{
	clear_text(&c->access_key);
	clear_text(&c->secret_key);
	clear_text(&c->token);
	clear_text(&c->source);
}

static bool same(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

bool s3_credentials_equal(const struct s3_credentials *a, const struct s3_credentials *b)
{
	return same(a->access_key, b->access_key) && same(a->secret_key, b->secret_key) &&
	       same(a->token, b->token);
}

/* They go into headers: printable, without space, not endless. */
bool s3_credential_valid(const char *value)
{
	if (!*value || strlen(value) > VALUE_LONGEST)
		return false;
	for (const char *c = value; *c; c++)
		if (!isgraph((unsigned char)*c))
			return false;
	return true;
}

static int set(char **field, const char *value)
{
	clear_text(field);
	*field = strdup(value);
	return *field ? 0 : -ENOMEM;
}

/* The field that a key of our own, or of Amazon's files, means; NULL: none. */
static char **field_of(struct s3_credentials *c, const char *key, bool amazon)
{
	static const char *const names[][3] = {
		{"access-key-id", "secret-access-key", "session-token"},
		{"aws_access_key_id", "aws_secret_access_key", "aws_session_token"},
	};
	const char *const *row = names[amazon];

	if (strcasecmp(key, row[0]) == 0)
		return &c->access_key;
	if (strcasecmp(key, row[1]) == 0)
		return &c->secret_key;
	return strcasecmp(key, row[2]) == 0 ? &c->token : NULL;
}

/* What a file is read with. */
struct reading {
	const char *label; /* "credentials=FILE", for messages */
	const char *section;
	bool amazon; /* there are [sections] */
	bool in_section;
	bool seen_section;
	struct s3_credentials *credentials;
	struct params_error *error;
};

/* One line, trimmed. Never repeats it in a message: it may hold a secret. */
static int take_line(struct reading *r, char *line, size_t number, bool first)
{
	char *equals, *key, *value, **field;

	if (line[0] == '[') {
		char *end = strchr(line, ']');

		if (!end || (!first && !r->amazon)) {
			params_error_set(r->error,
				"%s: line %zu: no section; write [NAME], and one before the "
				"first key",
				r->label, number);
			return -EINVAL;
		}
		*end = '\0';
		r->amazon = true;
		r->in_section = strcmp(params_trim(line + 1), r->section) == 0;
		r->seen_section |= r->in_section;
		return 0;
	}
	equals = strchr(line, '=');
	if (!equals) {
		/* Nested settings belong to other tools. */
		if (r->amazon)
			return 0;
		params_error_set(r->error, "%s: line %zu: not key=value; write one pair per line",
			r->label, number);
		return -EINVAL;
	}
	if (r->amazon && !r->in_section)
		return 0;
	*equals = '\0';
	key = params_trim(line);
	value = params_trim(equals + 1);
	field = field_of(r->credentials, key, r->amazon);
	if (!field) {
		if (r->amazon)
			return 0;
		params_error_set(r->error,
			"%s: line %zu: %s: unknown; there are access-key-id=, "
			"secret-access-key=, session-token=",
			r->label, number, key);
		return -EINVAL;
	}
	if (!s3_credential_valid(value)) {
		params_error_set(r->error,
			"%s: line %zu: %s: empty, or contains invalid characters; copy it as it "
			"was issued",
			r->label, number, key);
		return -EINVAL;
	}
	return set(field, value);
}

void s3_warn_if_public(const struct stat *st, const char *label, const struct backend_host *host)
{
	if (S_ISREG(st->st_mode) && st->st_mode & (S_IROTH | S_IWOTH))
		backend_error(host, "%s: every user may %s it; chmod 600 it", label,
			st->st_mode & S_IWOTH ? "change" : "read");
}

/* Reads path. -ENODATA: there is no such section. */
static int read_file(const char *path, struct reading *r, const struct backend_host *host)
{
	FILE *file = fopen(path, "re");
	struct stat st;
	char *line = NULL;
	size_t room = 0, number = 0;
	bool first = true;
	int result = 0;

	if (!file) {
		result = -errno;
		params_error_set(
			r->error, "%s: %s; name a readable file", r->label, strerror(-result));
		return result;
	}
	if (host && fstat(fileno(file), &st) == 0)
		s3_warn_if_public(&st, r->label, host);
	while (result == 0 && (errno = 0, getline(&line, &room, file) >= 0)) {
		char *item = params_trim(line);

		number++;
		if (!*item || *item == '#' || *item == ';')
			continue;
		result = take_line(r, item, number, first);
		first = false;
	}
	if (result == 0 && ferror(file)) {
		result = errno ? -errno : -EIO;
		params_error_set(
			r->error, "%s: %s; name a readable file", r->label, strerror(-result));
	}
	if (line)
		OPENSSL_cleanse(line, room);
	free(line);
	fclose(file);
	if (result == 0 && r->amazon && !r->seen_section) {
		params_error_set(r->error,
			"%s: no section [%s]; add it or name another profile=", r->label,
			r->section);
		return -ENODATA;
	}
	return result;
}

/* Both keys must be there. */
static int check_complete(const struct s3_credentials *c, bool amazon, struct params_error *error)
{
	const char *missing = NULL;

	if (!c->access_key)
		missing = amazon ? "aws_access_key_id" : "access-key-id";
	else if (!c->secret_key)
		missing = amazon ? "aws_secret_access_key" : "secret-access-key";
	if (!missing)
		return 0;
	params_error_set(error, "%s: no %s there; add it", c->source, missing);
	return -EINVAL;
}

static int from_file(const char *path, const char *profile, const char *label_format,
	const struct backend_host *host, struct s3_credentials *c, struct params_error *error)
{
	struct reading r = {
		.section = profile ? profile : "default", .credentials = c, .error = error};
	int result;

	if (asprintf(&c->source, label_format, path) < 0) {
		c->source = NULL;
		return -ENOMEM;
	}
	r.label = c->source;
	result = read_file(path, &r, host);
	return result ? result : check_complete(c, r.amazon, error);
}

static int from_environment(struct s3_credentials *c, struct params_error *error)
{
	static const char *const names[] = {
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"};
	char **fields[] = {&c->access_key, &c->secret_key, &c->token};

	for (size_t i = 0; i < 3; i++) {
		const char *value = getenv(names[i]);

		if ((!value || !*value) && i == 2)
			continue;
		if (!value || !s3_credential_valid(value)) {
			params_error_set(error, "%s: %s; set it, or give credentials=FILE",
				names[i],
				value ? "empty, or contains invalid characters"
				      : "not set, though AWS_ACCESS_KEY_ID is");
			return -EINVAL;
		}

		int r = set(fields[i], value);

		if (r)
			return r;
	}
	return set(&c->source, names[0]);
}

/* A shared file: what variable names, else name below the home directory. Caller frees. */
static char *shared_path(const char *variable, const char *name)
{
	const char *path = getenv(variable), *home = getenv("HOME");
	char *text;

	if (path && *path)
		return strdup(path);
	if (!home || asprintf(&text, "%s/.aws/%s", home, name) < 0)
		return NULL;
	return text;
}

/* ~/.aws/credentials, then ~/.aws/config, where sections are called "profile NAME". */
static int from_shared(const char *profile, const struct backend_host *host,
	struct s3_credentials *c, struct params_error *error)
{
	char *path = shared_path("AWS_SHARED_CREDENTIALS_FILE", "credentials");
	char section[256];
	int r = -ENOENT;

	if (path)
		r = from_file(path, profile, "%s", host, c, error);
	free(path);
	if (r != -ENOENT && r != -ENODATA)
		return r;

	struct s3_credentials other = {0};
	struct params_error other_error;
	int other_r = -ENOENT;

	snprintf(section, sizeof section, "%s%s", strcmp(profile, "default") ? "profile " : "",
		profile);
	path = shared_path("AWS_CONFIG_FILE", "config");
	if (path)
		other_r = from_file(path, section, "%s", host, &other, &other_error);
	free(path);
	/* A config file without keys is an ordinary one. */
	if (other_r) {
		s3_credentials_clear(&other);
		return r;
	}
	s3_credentials_clear(c);
	*c = other;
	return 0;
}

/* Nothing was given: those of a role, if there is one. */
static int from_role(struct s3_credentials *c, struct params_error *error)
{
	struct params_error why = {""};
	int r;

	s3_credentials_clear(c);
	r = s3_instance_credentials(c, &why);
	if (r == -ENOENT)
		params_error_set(error,
			"credentials: none found, nor a role (%s); give credentials=FILE, or set "
			"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials",
			why.text);
	else if (r && why.text[0])
		*error = why;
	return r;
}

int s3_credentials_load(const char *file, const char *profile, const struct backend_host *host,
	struct s3_credentials *c, struct params_error *error)
{
	int r;

	*c = (struct s3_credentials){0};
	params_error_set(error, "credentials: %s", strerror(ENOMEM));
	if (file) {
		r = from_file(file, profile, "credentials=%s", host, c, error);
	} else if (profile) {
		r = from_shared(profile, host, c, error);
		if (r == -ENOENT)
			params_error_set(error,
				"profile=%s: no ~/.aws/credentials to look in; create it or give "
				"credentials=FILE",
				profile);
	} else if (getenv("AWS_ACCESS_KEY_ID")) {
		r = from_environment(c, error);
	} else {
		const char *wanted = getenv("AWS_PROFILE");

		r = from_shared(wanted && *wanted ? wanted : "default", host, c, error);
		if (r == -ENOENT || (r == -ENODATA && !(wanted && *wanted)))
			r = from_role(c, error);
	}
	if (r)
		s3_credentials_clear(c);
	return r == -ENODATA ? -EINVAL : r;
}
