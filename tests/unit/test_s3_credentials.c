/* SPDX-License-Identifier: BSD-3-Clause */
/* Where the S3 client takes its credentials from. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/s3/client/credentials.h"
#include "tests/unit/support.h"

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
	s3_credentials_clear(&credentials);
	/* Nobody could list a directory then. */
	assert_int_equal(s3_credentials_load("/usr", NULL, &host, &credentials, &error), -EISDIR);
	assert_int_equal(reported.errors, 1);
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

#define credentials_test(f) cmocka_unit_test_setup_teardown(f, no_environment, forget_credentials)

int main(void)
{
	const struct CMUnitTest tests[] = {
		credentials_test(reads_own_file),
		credentials_test(reads_amazons_file),
		credentials_test(reads_the_environment),
		credentials_test(reads_the_shared_files),
		credentials_test(warns_of_a_public_file),
		credentials_test(tells_mistakes_without_secrets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
