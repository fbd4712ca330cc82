/* SPDX-License-Identifier: BSD-3-Clause */
/* The server's end of a connection with Linux's nbd driver: one request at a time. */
#ifndef USERBLK_BUSE_SERVE_H
#define USERBLK_BUSE_SERVE_H

#include "backends/backend.h"

/* Bytes of the largest read or write: the driver's own limit. */
#define SERVE_MAX_TRANSFER (32u << 20)

/* NBD's constants: the kernel's header has a part of them, by names that change. */
enum {
	SERVE_READ,
	SERVE_WRITE,
	SERVE_DISCONNECT,
	SERVE_FLUSH,
	SERVE_TRIM,
	SERVE_WRITE_ZEROES = 6,
};
#define SERVE_FUA     (1u << 16)
#define SERVE_NO_HOLE (1u << 17)

/* As they go over the socket, in network byte order but for the cookie, which is opaque. */
struct serve_request {
	uint32_t magic;
	uint32_t type; /* SERVE_ and flags */
	uint64_t cookie;
	uint64_t offset;
	uint32_t length;
} __attribute__((packed));

struct serve_reply {
	uint32_t magic;
	uint32_t error; /* 0 or errno */
	uint64_t cookie;
} __attribute__((packed));

/* What serve() returns besides errors. */
enum {
	SERVE_GOODBYE, /* somebody has disconnected the disk */
	SERVE_HUNG_UP, /* the driver has closed it by itself */
};

/*
 * Takes requests from a socket and answers each before it takes the next, until
 * the driver says goodbye or hangs up. Negative errno: the connection cannot go
 * on, which was reported through the device's host. What fails in the device is
 * answered.
 */
int serve(struct backend *device, int socket);

#endif
