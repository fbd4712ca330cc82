/* SPDX-License-Identifier: BSD-3-Clause */
/* What the libfuse at hand knows. Debian 11 has 3.10, Debian 12 has 3.14, Debian 13 has 3.17. */
#ifndef USERBLK_FUSE_LIBRARY_H
#define USERBLK_FUSE_LIBRARY_H

#include <fuse_lowlevel.h>

#define LIBFUSE_AT_LEAST(major, minor, fix)                                                        \
	(FUSE_VERSION > FUSE_MAKE_VERSION(major, minor) ||                                         \
		(FUSE_VERSION == FUSE_MAKE_VERSION(major, minor) && LIBFUSE_FIX >= (fix)))
#ifdef FUSE_HOTFIX_VERSION
#define LIBFUSE_FIX FUSE_HOTFIX_VERSION
#else
#define LIBFUSE_FIX 0
#endif

#define HAVE_NOFLUSH	     LIBFUSE_AT_LEAST(3, 11, 0)
#define HAVE_THREAD_LIMIT    LIBFUSE_AT_LEAST(3, 12, 0)
#define HAVE_WRITE_LIMIT     LIBFUSE_AT_LEAST(3, 14, 0) /* custom I/O, which passes answers by */
#define HAVE_PARALLEL_WRITES LIBFUSE_AT_LEAST(3, 17, 0) /* with FOPEN_DIRECT_IO and mmap */
#define HAVE_PASSTHROUGH     LIBFUSE_AT_LEAST(3, 17, 0)
#define HAVE_TMPFILE	     LIBFUSE_AT_LEAST(3, 17, 0)
#define HAVE_STATX	     LIBFUSE_AT_LEAST(3, 18, 0)
#ifdef HAVE_LIBURING
#define HAVE_OWN_RINGS 1
#else
#define HAVE_OWN_RINGS 0
#endif
#define HAVE_LIBFUSE_RINGS LIBFUSE_AT_LEAST(3, 18, 3) /* earlier ones lose requests */
#define HAVE_KILLPRIV_V2   LIBFUSE_AT_LEAST(3, 18, 3) /* earlier ones lose its flags */

#endif
