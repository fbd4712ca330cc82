/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What one nbdkit plugin adds to the adapter in nbdkit.c: each plugins/NAME.c
 * defines plugin_identity, and is linked with nbdkit.o and the backends.
 */
#ifndef USERBLK_NBDKIT_ADAPTER_H
#define USERBLK_NBDKIT_ADAPTER_H

#include "backends/backend.h"

struct plugin_identity {
	const struct backend_ops *ops;
	const char *name;     /* "userblk-null": nbdkit's own plugins have the plain names */
	const char *longname; /* one line, shown by --help */
};

extern const struct plugin_identity plugin_identity;

#endif
