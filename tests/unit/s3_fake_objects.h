/* SPDX-License-Identifier: BSD-3-Clause */
/* The objects of tests/unit/s3_fake_store.h, and what a request does with them. */
#ifndef USERBLK_TESTS_UNIT_S3_FAKE_OBJECTS_H
#define USERBLK_TESTS_UNIT_S3_FAKE_OBJECTS_H

#include <pthread.h>

struct s3_request;

extern pthread_mutex_t fake_objects_lock;

/* Under the lock. What the request is answered. */
int fake_objects_get(struct s3_request *req);
int fake_objects_put(struct s3_request *req);
void fake_objects_delete(const char *key);
void fake_objects_list(struct s3_request *req);
/* Keeps a PUT for fake_store_arrive(). */
void fake_objects_keep(const struct s3_request *req);
/* Without the lock, when no store is open. */
void fake_objects_reset(void);

#endif
