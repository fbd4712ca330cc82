/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backends/params.h"
#include "backends/s3/admin/delete.h"
#include "backends/s3/keeper/snapshot.h"
#include "tests/unit/s3_writers.h"

void create_volume(struct device *d, const char *more)
{
	fake_store_reset();
	device_open(d, &s3_backend, COMMON "create=on;%s", more);
}

void open_volume(struct device *d)
{
	device_open(d, &s3_backend, COMMON);
}

int write_block(struct device *d, unsigned i, unsigned value)
{
	uint8_t block[BLOCK];

	memset(block, (int)value, BLOCK);
	return device_write(d, block, BLOCK, (uint64_t)i * BLOCK, BACKEND_FUA);
}

void create_with_a_write(struct device *d)
{
	create_volume(d, "size=64M");
	assert_int_equal(write_block(d, 0, 1), 0);
}

void check_snapshot(unsigned value)
{
	uint8_t block[BLOCK];
	struct device d;

	device_open(&d, &s3_backend, COMMON "snapshot=s");
	assert_int_equal(device_read(&d, block, BLOCK, 0), 0);
	assert_int_equal(block[0], value);
	device_close(&d);
}

static void *run_job(void *opaque)
{
	struct job *job = opaque;

	job->result = job->run(job->d);
	return NULL;
}

void start_job(struct job *job, struct device *d, int (*what)(struct device *d))
{
	*job = (struct job){.d = d, .run = what};
	assert_int_equal(pthread_create(&job->thread, NULL, run_job, job), 0);
}

void start_held_job(struct job *job, struct device *d, int (*what)(struct device *d), enum s3_op op,
	const char *text)
{
	fake_store_hold(op, text);
	start_job(job, d, what);
	fake_store_wait_held(op, text);
}

int end_job(struct job *job)
{
	pthread_join(job->thread, NULL);
	return job->result;
}

int create_snapshot(struct device *d)
{
	return s3_snapshot_create(volume_of(d), "s");
}

int open_in_job(struct device *d)
{
	open_volume(d);
	return 0;
}

const char *log_key(uint64_t seq)
{
	static char key[32];

	snprintf(key, sizeof key, "/log/%02x/%016llx", (unsigned)(seq & 0xff),
		(unsigned long long)seq);
	return key;
}

static void keep_error(void *opaque, const char *message)
{
	struct device *d = opaque;

	snprintf(d->reported.error, sizeof d->reported.error, "%s", message);
}

int remove_volume(struct device *d, struct s3_removal *removal)
{
	struct params *params = params_new(&s3_backend);
	struct params_error error;
	int r;

	*d = (struct device){0};
	assert_int_equal(params_set_string(params, COMMON, &error), 0);
	assert_int_equal(params_complete(params, false, &error), 0);
	r = s3_volume_remove(params_config(params),
		&(struct backend_host){.opaque = d, .error = keep_error}, removal);
	params_free(params);
	return r;
}

int delete_volume(struct device *d)
{
	struct s3_removal removal = {0};

	return remove_volume(d, &removal);
}
