/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An object store in this process behind the interface of backends/s3/client/client.h, instead of
 * the real client: what devices do with a store, in any order of answers, without a network.
 * All stores that are opened share their objects.
 */
#ifndef USERBLK_TESTS_UNIT_S3_FAKE_STORE_H
#define USERBLK_TESTS_UNIT_S3_FAKE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/s3/client/client.h"

/* Forgets all objects, counts and faults. No store may be open. */
void fake_store_reset(void);
/* Requests of a kind whose key holds part, since the reset. */
unsigned fake_store_requests(enum s3_op op, const char *part);
/* Bytes that PUTs of keys that hold part have stored, since the reset. */
uint64_t fake_store_put_bytes(const char *part);
/* retry_deadline of the newest of such requests; UINT32_MAX: there was none. */
uint32_t fake_store_deadline(enum s3_op op, const char *part);
/* The next n such requests end with result (-EIO of a GET: at its deadline), and nothing else
 * happens. */
void fake_store_fail(enum s3_op op, const char *part, int result, unsigned n);
/* The same with -EIO, as after replies to something else: long before a deadline. */
void fake_store_mismatch(enum s3_op op, const char *part, unsigned n);
/*
 * The same of the next n PUTs; an earlier attempt of the first has had no answer: that one takes
 * effect with fake_store_arrive(), if its condition still holds.
 */
void fake_store_fail_late(const char *part, int result, unsigned n);
void fake_store_arrive(void);
/* How many have failed so, since the reset. */
unsigned fake_store_failed(void);
/* PUTs that would make all objects larger than that together end with -ENOSPC; 0: no limit. */
void fake_store_limit(uint64_t bytes);
/* Bytes of all objects. */
uint64_t fake_store_bytes(void);
/* PUTs with a limit that take longer than it at so many bytes a second end with -EIO; 0: none. */
void fake_store_line(uint64_t bytes_per_s);
/* Each request is answered so many ms after it was made, others meanwhile. */
void fake_store_latency(unsigned ms);
/* The store's clock, which stands still otherwise, goes on by s seconds. */
void fake_store_pass(unsigned s);
/* That many objects in a page of a listing, instead of a few. */
void fake_store_page(unsigned n);
/* Listings begin with a page without any, as where many have been deleted. */
void fake_store_begin_empty(void);
/* Such requests wait, until the store is stopped or, with part NULL, they are no longer held. */
void fake_store_hold(enum s3_op op, const char *part);
/*
 * The next such request takes effect, but its answer waits until fake_store_release(). twice: then
 * it takes effect once more, as one whose reply was lost does when it is sent again.
 */
void fake_store_hold_answers(enum s3_op op, const char *part, bool twice);
/* Lets go what was held by exactly this op and part; part NULL: everything. */
void fake_store_release(enum s3_op op, const char *part);
/* Waits until a request is held by this op and part; fails the test after 20 s. */
void fake_store_wait_held(enum s3_op op, const char *part);
/* The store takes no notice of such conditions of a PUT. */
void fake_store_ignore(bool if_none_match, bool if_match);
/* Bytes of an object whose key ends so, SIZE_MAX: there is none; copies up to room of them,
 * but to data NULL. */
size_t fake_store_object(const char *end, void *data, size_t room);
/* The key of the first object whose key holds part. False: there is none. */
bool fake_store_find(const char *part, char *key, size_t room);
/* Puts an object, or deletes it (data NULL), behind the device's back. */
void fake_store_set(const char *key, const void *data, size_t length);

#endif
