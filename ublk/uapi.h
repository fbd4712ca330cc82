/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The kernel's <linux/ublk_cmd.h>, and what headers older than the kernel lack:
 * Debian 12's is of 6.1. The values are the kernel's documented interface
 * (Documentation/block/ublk.rst); whether the running kernel knows them is
 * asked with GET_FEATURES.
 */
#ifndef USERBLK_UBLK_UAPI_H
#define USERBLK_UBLK_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#include <linux/ublk_cmd.h>

/* Commands in their ioctl encoding: 6.4, GET_FEATURES 6.5, DEL_DEV_ASYNC 6.7, QUIESCE_DEV 6.16. */
#ifndef UBLK_U_CMD_GET_DEV_INFO
#define UBLK_U_CMD_GET_QUEUE_AFFINITY                                                              \
	_IOR('u', UBLK_CMD_GET_QUEUE_AFFINITY, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_GET_DEV_INFO _IOR('u', UBLK_CMD_GET_DEV_INFO, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_ADD_DEV	_IOWR('u', UBLK_CMD_ADD_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_DEL_DEV	_IOWR('u', UBLK_CMD_DEL_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_START_DEV	_IOWR('u', UBLK_CMD_START_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_STOP_DEV	_IOWR('u', UBLK_CMD_STOP_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_SET_PARAMS	_IOWR('u', UBLK_CMD_SET_PARAMS, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_GET_PARAMS	_IOR('u', UBLK_CMD_GET_PARAMS, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_START_USER_RECOVERY                                                             \
	_IOWR('u', UBLK_CMD_START_USER_RECOVERY, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_END_USER_RECOVERY _IOWR('u', UBLK_CMD_END_USER_RECOVERY, struct ublksrv_ctrl_cmd)
#define UBLK_U_IO_FETCH_REQ	     _IOWR('u', UBLK_IO_FETCH_REQ, struct ublksrv_io_cmd)
#define UBLK_U_IO_COMMIT_AND_FETCH_REQ                                                             \
	_IOWR('u', UBLK_IO_COMMIT_AND_FETCH_REQ, struct ublksrv_io_cmd)
#endif
#ifndef UBLK_U_CMD_GET_FEATURES
#define UBLK_U_CMD_GET_FEATURES _IOR('u', 0x13, struct ublksrv_ctrl_cmd)
#define UBLK_FEATURES_LEN	8
#endif
#ifndef UBLK_U_CMD_DEL_DEV_ASYNC
#define UBLK_U_CMD_DEL_DEV_ASYNC _IOR('u', 0x14, struct ublksrv_ctrl_cmd)
#endif
#ifndef UBLK_U_CMD_QUIESCE_DEV
#define UBLK_U_CMD_QUIESCE_DEV _IOWR('u', 0x16, struct ublksrv_ctrl_cmd)
#endif

/* Features. */
#ifndef UBLK_F_CMD_IOCTL_ENCODE
#define UBLK_F_CMD_IOCTL_ENCODE (1ULL << 6)
#endif
#ifndef UBLK_F_USER_RECOVERY_FAIL_IO
#define UBLK_F_USER_RECOVERY_FAIL_IO (1ULL << 9)
#endif
#ifndef UBLK_F_AUTO_BUF_REG
#define UBLK_F_AUTO_BUF_REG (1ULL << 11)
#endif
#ifndef UBLK_F_QUIESCE
#define UBLK_F_QUIESCE (1ULL << 12)
#endif

/* Features of other programs' disks that this program can serve as well. */
#ifndef UBLK_F_UPDATE_SIZE
#define UBLK_F_UPDATE_SIZE (1ULL << 10)
#endif
#ifndef UBLK_F_PER_IO_DAEMON
#define UBLK_F_PER_IO_DAEMON (1ULL << 13)
#endif
#ifndef UBLK_F_BUF_REG_OFF_DAEMON
#define UBLK_F_BUF_REG_OFF_DAEMON (1ULL << 14)
#endif
#ifndef UBLK_F_NO_AUTO_PART_SCAN
#define UBLK_F_NO_AUTO_PART_SCAN (1ULL << 18)
#endif

/* Not used here, but shown by `features`: 6.3 to 7.1. */
#ifndef UBLK_F_UNPRIVILEGED_DEV
#define UBLK_F_UNPRIVILEGED_DEV (1ULL << 5)
#endif
#ifndef UBLK_F_USER_COPY
#define UBLK_F_USER_COPY (1ULL << 7)
#endif
#ifndef UBLK_F_ZONED
#define UBLK_F_ZONED (1ULL << 8)
#endif
#ifndef UBLK_F_BATCH_IO
#define UBLK_F_BATCH_IO (1ULL << 15)
#endif
#ifndef UBLK_F_INTEGRITY
#define UBLK_F_INTEGRITY (1ULL << 16)
#endif
#ifndef UBLK_F_SAFE_STOP_DEV
#define UBLK_F_SAFE_STOP_DEV (1ULL << 17)
#endif
#ifndef UBLK_F_SHMEM_ZC
#define UBLK_F_SHMEM_ZC (1ULL << 19)
#endif

#ifndef UBLK_S_DEV_FAIL_IO
#define UBLK_S_DEV_FAIL_IO 3
#endif

/* SET_PARAMS: the alignment of memory that requests must have, 6.15. */
#ifndef UBLK_PARAM_TYPE_DMA_ALIGN
#define UBLK_PARAM_TYPE_DMA_ALIGN (1 << 4)
#endif

/* struct ublk_params with all that is set here; the kernel takes any length. */
struct ublk_params_sent {
	__u32 len;
	__u32 types;
	struct ublk_param_basic basic;
	struct ublk_param_discard discard;
	__u32 devt[4];
	__u32 zoned[8];
	__u32 dma_alignment; /* a mask */
	__u32 dma_reserved;
};

#endif
