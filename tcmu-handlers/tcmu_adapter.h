/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What one tcmu-runner handler adds to the adapter in tcmu.c: each
 * tcmu-handlers/NAME.c defines handler_identity, and is linked with the adapter and
 * the backends.
 */
#ifndef USERBLK_TCMU_ADAPTER_H
#define USERBLK_TCMU_ADAPTER_H

#include "backends/backend.h"

struct handler_identity {
	const struct backend_ops *ops;
	/*
	 * "userblk_null": part of a D-Bus object path, so letters, digits and '_' only. None may
	 * be the beginning of another: the runner compares no more than the shorter one has.
	 */
	const char *subtype;
	/*
	 * The same with threads of ours, which has to be another handler: the runner has its number
	 * of threads with the handler, not with the disk.
	 */
	const char *threads_subtype;
	const char *name; /* one line */
};

extern const struct handler_identity handler_identity;

/* Called by tcmu-runner when it loads the handler. 0, or -1: not registered. */
int handler_init(void);

#endif
