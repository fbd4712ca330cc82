/* SPDX-License-Identifier: BSD-3-Clause */
/* A device behind /dev/ublkbN, from its creation to its end. */
#ifndef USERBLK_UBLK_SERVER_H
#define USERBLK_UBLK_SERVER_H

#include <stdbool.h>

#include "backends/params.h"
#include "ublk/control.h"
#include "ublk/queue.h"

/* Bytes of the largest request. */
#define UBLK_MAX_REQUEST (1u << 20)

enum ublk_zero_copy { UBLK_ZERO_COPY_AUTO, UBLK_ZERO_COPY_ON, UBLK_ZERO_COPY_OFF };

/* What becomes of requests when the server dies. */
enum ublk_recovery {
	UBLK_RECOVERY_AUTO, /* on the command line only: reissue, or none where that loses writes */
	UBLK_RECOVERY_REISSUE,	/* all wait for the next server */
	UBLK_RECOVERY_FAIL,	/* those that it had fail, others wait */
	UBLK_RECOVERY_FAIL_ALL, /* all fail until there is the next server */
	UBLK_RECOVERY_NONE,	/* all fail, and the disk goes */
};

enum ublk_flush { UBLK_FLUSH_STRICT, UBLK_FLUSH_WEAK };

struct ublk_server_options {
	int64_t id; /* N of /dev/ublkbN; -1: the kernel chooses */
	unsigned queues, depth, threads;
	enum ublk_mode mode;
	enum ublk_zero_copy zero_copy;
	enum ublk_recovery recovery;
	enum ublk_flush flush;
};

/* The program around a server. */
struct ublk_server_user {
	/*
	 * The disk is about to get this server, which has opened the device. Negative errno,
	 * reported, for an existing one: it does not.
	 */
	int (*taking)(void *opaque, uint32_t id);
	void (*missed)(void *opaque, uint32_t id); /* an existing one has not got it after all */
	void (*taken)(void *opaque);		   /* it has all queues of that disk */
	void (*ready)(void *opaque, uint32_t id);  /* the disk can be used */
	void *opaque;
	bool returns; /* it serves the existing disk as a moment ago */
	int watch;    /* of an existing disk's device: backend_watch(); negative: none */
};

/*
 * Creates the device and serves it until the kernel takes it away or SIGTERM,
 * SIGINT or SIGHUP comes, which removes it: at once after what was written has
 * arrived, or when it is no longer in use, or at a second signal.
 * cookie: kept by the kernel, and readable by all. An exit code; errors are reported
 * on standard error, and after ready() by syslog if nobody reads them there.
 */
int ublk_server_add(struct ublk_control *c, const struct params *params,
	const struct ublk_server_options *o, uint64_t cookie, const struct ublk_server_user *user);
/* The same for a device that waits for a server: mode and threads may be others than before. */
int ublk_server_recover(struct ublk_control *c, const struct params *params,
	const struct ublk_server_options *o, const struct ublk_server_user *user);

/* Can a disk of another program, which has these features of ublk, be served? */
bool ublk_server_knows(uint64_t flags);

#endif
