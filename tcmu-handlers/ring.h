/* SPDX-License-Identifier: BSD-3-Clause */
/* The ring that the kernel shares with tcmu-runner. The kernel's header has a struct iovec of its
 * own, which libc's would contradict. */
#ifndef USERBLK_TCMU_RING_H
#define USERBLK_TCMU_RING_H

#define iovec kernel_iovec
#include <linux/target_core_user.h>
#undef iovec

#endif
