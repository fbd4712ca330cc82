/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a device is to the core: for devices, the core and their tests. Frameworks know
 * backends/backend.h only.
 */
#ifndef USERBLK_DEVICE_H
#define USERBLK_DEVICE_H

#include <stdatomic.h>

#include "backends/backend.h"

/*
 * A device. open, close, info and one of readv and submit are mandatory; a call
 * that is NULL is answered by the core with -EOPNOTSUPP (flush: 0). A device with
 * submit gets all requests through it: readv to zero are not looked at, and
 * what it does not offer it answers itself. All calls are thread-safe.
 * Vectors are the caller's; a device may not change them. The core has checked
 * that ranges lie inside the device and that flags are allowed.
 */
struct backend_ops {
	const char *name;	    /* "passthrough"; letters and digits only */
	const char *summary;	    /* one sentence, for --help and man pages */
	const struct param *params; /* ends with a NULL name */
	const char *main_param;	    /* parameter that may stand without its key, or NULL */
	size_t config_size;	    /* bytes of the struct that the params point into */
	/* See backend_session(). open() looks at the host's previous_session and sets session. */
	bool has_sessions;
	/* Checks what one parameter alone cannot tell. No side effects; called before fork. */
	int (*check)(const void *config, struct params_error *error);
	/* Opens the device. size: bytes that the framework demands, 0: the device tells. */
	int (*open)(const void *config, uint64_t size, const struct backend_host *host,
		struct backend **out);
	/* May start threads that run before the first request. */
	void (*start)(struct backend *b);
	/*
	 * The framework is shutting down and waits for the requests in flight. Requests that wait
	 * for something unreachable must end soon, with an error if necessary. NULL: none waits.
	 */
	void (*stop)(struct backend *b);
	bool (*stalled)(struct backend *b); /* as backend_stalled(); with stop */
	/* backend_watch() and backend_heed(). NULL: nothing is lost in that way. */
	int (*watch)(const void *config);
	void (*heed)(struct backend *b, int watch);
	/* 0, or negative errno if something that was acknowledged could not be kept. */
	int (*close)(struct backend *b);
	int (*info)(struct backend *b, struct backend_info *info);
	/* The size now, in bytes, which may have grown. NULL: as large as was asked for. */
	int (*available)(struct backend *b, uint64_t *size);
	int (*readv)(struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset);
	int (*writev)(struct backend *b, const struct iovec *iov, int iovcnt, uint64_t offset,
		unsigned flags); /* FUA */
	int (*flush)(struct backend *b);
	int (*trim)(struct backend *b, uint64_t offset, uint64_t length, unsigned flags); /* FUA */
	int (*zero)(struct backend *b, uint64_t offset, uint64_t length,
		unsigned flags); /* FUA, MAY_TRIM, FAST_ZERO */
	/*
	 * Starts a request and returns without waiting for it, except for memory that
	 * the device must get back first. Never one of length 0 but FLUSH.
	 */
	void (*submit)(struct backend *b, struct backend_request *request);
	int (*extents)(struct backend *b, uint64_t offset, uint64_t length, unsigned flags,
		backend_extent_fn fn, void *opaque); /* REQ_ONE */
	int (*get_backing)(struct backend *b, const struct backend_request *request,
		struct backend_backing *backing);
	/* What the failure of a framework's own transfer means, as readv and writev answer it.
	 * NULL: what it says. */
	int (*transfer_failed)(struct backend *b, int result);
	/* Fills up to max counters, returns how many there are. */
	size_t (*counters)(struct backend *b, struct backend_counter *counters, size_t max);
};

/* What the log counts apart: failures of each backend_op, and of this. */
#define TOLD_EXTENTS BACKEND_OPS
#define TOLD_KINDS   (TOLD_EXTENTS + 1)

struct backend {
	const struct backend_ops *ops;
	struct backend_host host;
	/* Size in bytes that requests are checked against; a device that resizes itself calls
	 * backend_resized(). */
	_Atomic uint64_t size;
	/* The framework's: it demanded a size, and will itself when it wants another. */
	_Atomic bool size_demanded;
	/* Set by open(); the core then refuses every change with -EROFS. */
	bool readonly;
	/* Set by open(): all reads are zeroes. The core leaves memory alone that holds them
	 * already. */
	bool reads_zeroes;
	/* Set by open() of a device with sessions: see backend_session(). */
	uint32_t session;
	/* The core's: when a failed request of the kind was reported, and how many were not. */
	_Atomic int64_t failure_told[TOLD_KINDS];
	_Atomic uint64_t failures_untold[TOLD_KINDS];
};

/*
 * Called by a device: it has another size in bytes by now. A framework that demanded a size keeps
 * it as long as the device has that much. Requests may be in flight.
 */
BACKEND_EXPORTED void backend_resized(struct backend *b, uint64_t size);

/* Puts a kind of device among backend_devices(); before main(). */
BACKEND_EXPORTED void backend_register(const struct backend_ops *ops);
/* The same, in the file that defines it, for all that it is linked into. */
#define BACKEND_REGISTER(ops)                                                                      \
	__attribute__((constructor)) static void register_device(void)                             \
	{                                                                                          \
		backend_register(&(ops));                                                          \
	}

#endif
