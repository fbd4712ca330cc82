/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The one interface between devices and frameworks.
 *
 * A device (null, passthrough, ...) implements struct backend_ops (device.h) and knows
 * no framework. A framework (nbdkit, tcmu-runner, ...) has one adapter that calls
 * the backend_*() functions below and knows no device.
 *
 * Order of a device's life:
 *   struct params *p = params_new(ops);      params.h: collect key=value
 *   params_set(p, ...);                      any number of times
 *   params_complete(p, ...);                 validates; before the framework forks
 *   backend_open(p, ...);                    once per process; makes no threads, so a
 *                                            fork may follow
 *   backend_start();                         no fork follows from here on
 *   backend_readv() ... backend_zero()       any number of threads at once
 *   backend_submit()                         the same without waiting
 *   backend_close();                         no call in flight
 *   params_free(p);
 *
 * Units: offsets, lengths and sizes are bytes. Data calls return 0 or a
 * negative errno and transfer everything or report an error: there is no short
 * transfer.
 *
 * Errors of data calls: a device answers what it likes; the core tells the host
 * of it, and makes it one of these for the framework, which only translates:
 *   EIO         the data cannot be read or kept
 *   ENOSPC      no room below, or beyond the end
 *   EROFS       not to be written
 *   ENODEV      the device is gone
 *   ENOMEM      to be tried again
 *   EINVAL      beyond the end, or unknown flags: the request itself is wrong
 *   EOPNOTSUPP  zero: write zeroes instead; others: the device has no such call
 * A trim that a device cannot do is done: it is advice.
 */
#ifndef USERBLK_BACKEND_H
#define USERBLK_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "params.h"

/* Flags of data calls. Each call accepts those named in its comment. */
#define BACKEND_FUA	  (1u << 0) /* durable before the call returns */
#define BACKEND_MAY_TRIM  (1u << 1) /* zero: the range may be deallocated */
#define BACKEND_FAST_ZERO (1u << 2) /* zero: -EOPNOTSUPP at once rather than slowly */
#define BACKEND_REQ_ONE	  (1u << 3) /* extents: the first extent is enough */
#define BACKEND_ZEROED	  (1u << 4) /* read: the memory holds zeroes already */

/* What the framework does for a device. Every function may be called from any thread. */
struct backend_host {
	void *opaque;
	/* One line without newline, for the user. Precedes every error that a user can fix. */
	void (*error)(void *opaque, const char *message);
	/* The same, shown only when the framework's debugging is on. May be NULL. */
	void (*debug)(void *opaque, const char *message);
	/* Announces the new size of the device, in bytes. NULL: the framework cannot use it. */
	void (*resized)(void *opaque, uint64_t size);
	/*
	 * The backend_session() of the ended process that served the same clients, or
	 * BACKEND_SESSION_UNKNOWN; 0: the clients are new. Clients that are not new rely on what
	 * that process acknowledged: the device does not open with a new, empty place for it, and a
	 * device with sessions refuses to open for writing if some of it may be lost, or if there
	 * was another session since then.
	 */
	uint32_t previous_session;
};

#define BACKEND_SESSION_UNKNOWN UINT32_MAX

/* What a device tells about itself once it is open. Constant except size. */
struct backend_info {
	uint64_t size;		 /* bytes */
	uint32_t block_size;	 /* smallest unit served without read-modify-write; power of two */
	uint32_t preferred_size; /* request size that performs well; power of two >= block_size */
	uint32_t max_request;	 /* largest request in bytes that is not split inside the device */
	uint32_t trim_granularity; /* bytes; 0 when trim is absent */
	uint64_t max_trim;	   /* largest trim in bytes in one step below; 0: no limit known */
	bool readonly;
	bool rotational;
	bool can_flush;
	bool can_fua; /* BACKEND_FUA is native, not write + flush */
	bool can_trim;
	bool can_zero;	    /* zero() exists; it may still answer -EOPNOTSUPP for some requests */
	bool can_fast_zero; /* BACKEND_FAST_ZERO is understood */
	bool can_extents;
	bool can_multi_conn; /* after flush or FUA on one connection all others see the data */
	bool never_waits;    /* no call waits for anything: fit for a thread that may not */
	bool answers_later;  /* backend_submit() does not wait for the device */
	bool can_stall;	     /* may wait for something out of reach: see backend_stop() */
	/* What a transfer writes may not change meanwhile: checksums are computed of it */
	bool stable_writes;
	bool reads_zeroes; /* all that it reads is zeroes: see BACKEND_ZEROED */
};

/* Where the bytes of a READ or WRITE lie in a file: see backend_get_backing(). */
struct backend_backing {
	int fd;
	uint64_t offset;	   /* in the file */
	uint32_t memory_alignment; /* bytes that addresses must be aligned to */
	int rwf;		   /* RWF_ flags, as of pwritev2(2) */
	bool is_scheduled;	   /* by an I/O scheduler of the disk, when it was opened */
};

/* One run of equal state, as backend_extents() reports it. */
struct backend_extent {
	uint64_t offset;
	uint64_t length;
	bool hole; /* not allocated */
	bool zero; /* reads as zeroes */
};

/*
 * Receives extents in ascending order without gaps; a non-zero answer ends the
 * walk and is returned.
 */
typedef int (*backend_extent_fn)(void *opaque, const struct backend_extent *extent);

/* A named counter of a device, for logs and the harness. */
struct backend_counter {
	const char *name; /* such as "bounced_requests" */
	uint64_t value;
};

struct backend; /* open device; each device embeds it as its first member */

enum backend_op {
	BACKEND_READ,
	BACKEND_WRITE,
	BACKEND_FLUSH,
	BACKEND_TRIM,
	BACKEND_ZERO,
};
#define BACKEND_OPS (BACKEND_ZERO + 1) /* how many there are */

/*
 * One data call that is answered later. The caller owns the request, its vector
 * and the memory behind it, and leaves all of them alone until done() is called.
 */
struct backend_request {
	enum backend_op op;
	unsigned flags;		 /* as for the call of the same name */
	const struct iovec *iov; /* READ and WRITE */
	int iovcnt;
	uint64_t offset; /* all but FLUSH */
	uint64_t length; /* TRIM and ZERO: bytes; READ and WRITE: set by the core */
	/*
	 * Called once, from any thread, also before backend_submit() has returned.
	 * result: 0 or negative errno. May submit, may free the request; may not block.
	 */
	void (*done)(struct backend_request *request, int result);
	void *opaque; /* the caller's */
	/* The device's own, until it calls done(). */
	void *device;
	void (*answer)(struct backend_request *request, int result);
	uint64_t began;
	/* The core's. */
	struct backend *backend;
	void (*caller_done)(struct backend_request *request, int result);
};

/*
 * A kind of device, before one is open. What is in it is the core's and the device's:
 * backends/device.h.
 */
struct backend_ops;

extern const struct backend_ops null_backend;
extern const struct backend_ops passthrough_backend;
extern const struct backend_ops s3_backend;

/* The kinds of device that are linked in, by name; ends with NULL. */
const struct backend_ops *const *backend_devices(void);

/* What a framework plans by before a device is open. */
struct backend_kind {
	const char *name;	/* "passthrough" */
	const char *summary;	/* one sentence, for --help and man pages */
	const char *main_param; /* parameter that may stand without its key, or NULL */
	bool has_sessions;	/* see backend_session() */
	bool answers_later;	/* backend_submit() does not wait for the device */
};
struct backend_kind backend_kind(const struct backend_ops *ops);

/*
 * Opens the device described by params (params_complete() must have succeeded).
 * size: bytes that the framework demands (targetcli's size=), or 0 when the
 * device tells; a device that is smaller is refused. Errors are reported through
 * host->error. 0 or negative errno.
 */
int backend_open(const struct params *params, uint64_t size, const struct backend_host *host,
	struct backend **out);
/*
 * For a process that takes a device over from another one, which may die while it makes data
 * durable: the kernel then has told that process of a failure, and tells nobody else. Before the
 * other one is ended: a descriptor that hears of it as well, which the caller closes; negative:
 * there is none.
 */
int backend_watch(const struct params *params);
/* The device is open, and the other process has ended: what the descriptor has heard of meanwhile
 * is a failure of this one's flush. One of another device has heard of nothing. */
void backend_heed(struct backend *b, int watch);
/*
 * The process that serves is this one: to be called once, before the first request. A device that
 * is closed without it leaves no file that it has created.
 */
void backend_start(struct backend *b);
/* Called once at most, when the framework has to end and requests may be in flight. */
void backend_stop(struct backend *b);
/* Does the device wait for something that is out of reach now, or takes nothing? */
bool backend_stalled(struct backend *b);
/*
 * 0, or negative errno, reported already: something that was acknowledged could not be kept, or the
 * next opening needs to know how this one ended.
 */
int backend_close(struct backend *b);
/*
 * The number of this opening's session: 1 to 2^31 - 1; 0: it has none. A device with sessions has
 * one server at a time: opening the device ends the session of another server. Writes that were
 * acknowledged but not flushed are lost with the process. A framework whose clients outlive its
 * process keeps the number with them, as previous_session of the next process.
 */
uint32_t backend_session(const struct backend *b);
int backend_info(struct backend *b, struct backend_info *info);
/* Its size in bytes now, at little cost. */
uint64_t backend_size(const struct backend *b);
/* Where it reports errors. */
const struct backend_host *backend_host(const struct backend *b);
/*
 * The framework demands another size in bytes of the open device. -EINVAL, reported
 * through host->error: the device has less. Requests may be in flight.
 */
int backend_resize(struct backend *b, uint64_t size);

/* Reads length(iov) bytes at offset. -EINVAL: beyond the end. */
int backend_readv(struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset);
/* Writes length(iov) bytes at offset. -ENOSPC: beyond the end; -EROFS: read-only. */
int backend_writev(
	struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset, unsigned flags);
/* Makes every write that completed before the call durable. Once that failed, it fails forever,
 * unless the device still has all of it and a later call makes it durable. */
int backend_flush(struct backend *b);
/* Tells that the range's content is no longer needed; parts smaller than the granularity stay.
 * -EINVAL: beyond the end; -EROFS; -EOPNOTSUPP: the device has no such call. */
int backend_trim(struct backend *b, uint64_t offset, uint64_t length, unsigned flags);
/* Makes the range read as zeroes. -EOPNOTSUPP: the caller must write zeroes itself;
 * -ENOSPC: beyond the end; -EROFS. */
int backend_zero(struct backend *b, uint64_t offset, uint64_t length, unsigned flags);
/*
 * Fills the range with copies of size bytes, of which its length is a multiple: by backend_zero()
 * where they are zeroes and the device can, else by writes. flags: FUA; MAY_TRIM is for zeroes
 * only. -EINVAL: no such multiple; -ENOMEM; others as backend_zero() and backend_writev().
 */
int backend_fill(struct backend *b, const void *pattern, size_t size, uint64_t offset,
	uint64_t length, unsigned flags);
/* Does what the call of the request's name does, and waits for it. done and opaque are not used. */
int backend_perform(struct backend *b, struct backend_request *request);
/*
 * Does what the call of the same name does and answers through request->done().
 * A device without submit has it done before this returns.
 */
void backend_submit(struct backend *b, struct backend_request *request);
int backend_extents(struct backend *b, uint64_t offset, uint64_t length, unsigned flags,
	backend_extent_fn fn, void *opaque);
/*
 * For a framework that transfers by itself, with its own buffers: where the
 * bytes of a READ or WRITE (op, flags, offset, length; no vector) lie. It may do
 * so until backend_close(), and any part of it; a transfer that fails or ends
 * early must be repeated by backend_readv() or backend_writev(), where there
 * are buffers for it, for the device to know, and else be reported by
 * backend_transfer_failed(). A framework that maps writes sends all its requests in
 * whole blocks of block_size bytes.
 * -EOPNOTSUPP: make the call of that name; others as that call.
 */
int backend_get_backing(
	struct backend *b, struct backend_request *request, struct backend_backing *backing);
/* result: negative errno. What the framework is to answer, which the host was told of. */
int backend_transfer_failed(struct backend *b, const struct backend_request *request, int result);
size_t backend_counters(struct backend *b, struct backend_counter *counters, size_t max);
/* " NAME=VALUE NAME=VALUE" of all counters, cut at capacity bytes. False: there are none. */
bool backend_counters_text(struct backend *b, char *text, size_t capacity);

/* printf to host->error / host->debug; lines over 1 KiB are cut. */
BACKEND_EXPORTED void backend_error(const struct backend_host *host, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
BACKEND_EXPORTED void backend_debug(const struct backend_host *host, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
