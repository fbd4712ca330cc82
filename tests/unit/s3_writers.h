/* SPDX-License-Identifier: BSD-3-Clause */
/* Writers of one S3 volume over a store in this process, and what each does beside the test. */
#ifndef USERBLK_TESTS_UNIT_S3_WRITERS_H
#define USERBLK_TESTS_UNIT_S3_WRITERS_H

#include <pthread.h>
#include <stdint.h>

#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

struct s3_removal;

#define BLOCK  4096u
#define COMMON "endpoint=http://127.0.0.1;bucket=abc;uploads=2;memory=64M;volume=v;"

/* Creates the volume in an empty store, with more parameters, and opens it. */
void create_volume(struct device *d, const char *more);
void open_volume(struct device *d);
/* Block i of the volume is made to hold value, durably. */
int write_block(struct device *d, unsigned i, unsigned value);
/* Creates a volume of 64 MiB in an empty store, opens it, and writes 1 to block 0. */
void create_with_a_write(struct device *d);
/* Fails the test unless block 0 of the snapshot "s" holds value. */
void check_snapshot(unsigned value);

/* Something that a writer does beside the test, in a thread of its own. */
struct job {
	pthread_t thread;
	struct device *d;
	int (*run)(struct device *d);
	int result;
};

void start_job(struct job *job, struct device *d, int (*what)(struct device *d));
/* Starts it, and waits until the store holds its request of that operation whose key has the text.
 */
void start_held_job(struct job *job, struct device *d, int (*what)(struct device *d), enum s3_op op,
	const char *text);
/* Waits for its end and returns what it returned. */
int end_job(struct job *job);

/* For a job: creates the snapshot "s". */
int create_snapshot(struct device *d);
/* For a job: opens the volume, and fails the test if that fails. */
int open_in_job(struct device *d);

/* Deletes the volume. d: what was reported. */
int remove_volume(struct device *d, struct s3_removal *removal);
/* The same for a job, of whichever volume has the name. */
int delete_volume(struct device *d);

/* End of the key of the log's object with that number, in a static buffer. */
const char *log_key(uint64_t seq);

#endif
