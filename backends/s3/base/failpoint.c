/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/s3/base/failpoint.h"

#define VARIABLE "USERBLK_S3_FAILPOINT"

static const char *const names[S3_FAIL_POINTS] = {
	[S3_FAIL_LOG_PUT_BEFORE] = "log-put-before",
	[S3_FAIL_LOG_PUT_AFTER] = "log-put-after",
	[S3_FAIL_FENCE_PUT_BEFORE] = "fence-put-before",
	[S3_FAIL_FENCE_PUT_AFTER] = "fence-put-after",
	[S3_FAIL_CKPT_REGION_AFTER] = "ckpt-region-after",
	[S3_FAIL_CKPT_ROOT_BEFORE] = "ckpt-root-before",
	[S3_FAIL_CKPT_ROOT_AFTER] = "ckpt-root-after",
	[S3_FAIL_RELOCATE_PUT_AFTER] = "relocate-put-after",
	[S3_FAIL_RELOCATE_LOG_AFTER] = "relocate-log-after",
	[S3_FAIL_DELETE_BEFORE] = "delete-before",
	[S3_FAIL_DELETE_AFTER] = "delete-after",
	[S3_FAIL_SNAP_ROOT_BEFORE] = "snap-root-before",
	[S3_FAIL_SNAP_ROOT_AFTER] = "snap-root-after",
	[S3_FAIL_SNAP_LIVE_AFTER] = "snap-live-after",
	[S3_FAIL_SNAP_MARK_AFTER] = "snap-mark-after",
	[S3_FAIL_SNAP_DELETE_BEFORE] = "snap-delete-before",
	[S3_FAIL_SNAP_DELETE_AFTER] = "snap-delete-after",
	[S3_FAIL_ROLLBACK_LOG_AFTER] = "rollback-log-after",
	[S3_FAIL_CLONE_CHILD_AFTER] = "clone-child-after",
	[S3_FAIL_CLONE_SUPER_AFTER] = "clone-super-after",
	[S3_FAIL_RESIZE_SUPER_BEFORE] = "resize-super-before",
	[S3_FAIL_RESIZE_SUPER_AFTER] = "resize-super-after",
	[S3_FAIL_REKEY_SUPER_BEFORE] = "rekey-super-before",
	[S3_FAIL_REKEY_SUPER_AFTER] = "rekey-super-after",
	[S3_FAIL_ORPHAN_DELETE_BEFORE] = "orphan-delete-before",
	[S3_FAIL_WB_MARK_BEFORE] = "wb-mark-before",
	[S3_FAIL_WB_MARK_AFTER] = "wb-mark-after",
	[S3_FAIL_WB_APPEND_AFTER] = "wb-append-after",
	[S3_FAIL_WB_SYNC_AFTER] = "wb-sync-after",
	[S3_FAIL_WB_FREE_BEFORE] = "wb-free-before",
	[S3_FAIL_WB_FREE_AFTER] = "wb-free-after",
	[S3_FAIL_WB_REPLAY_PUT_BEFORE] = "wb-replay-put-before",
	[S3_FAIL_WB_REPLAY_PUT_AFTER] = "wb-replay-put-after",
	[S3_FAIL_WB_EMPTY_AFTER] = "wb-empty-after",
};

_Atomic int s3_failpoint_chosen;
static _Atomic unsigned long passes_left = 1;

static int refuse(const struct backend_host *host, const char *text)
{
	char list[1024] = "";

	for (int i = 1; i < S3_FAIL_POINTS; i++) {
		strcat(list, i > 1 ? ", " : "");
		strcat(list, names[i]);
	}
	backend_error(host,
		VARIABLE "=%s: no such point; there are %s, each with :N for its N-th pass", text,
		list);
	return -EINVAL;
}

int s3_failpoint_choose(const struct backend_host *host)
{
	const char *text = getenv(VARIABLE);
	size_t length;
	unsigned long n = 1;
	char *end;

	if (!text)
		return 0;
	length = strcspn(text, ":");
	if (text[length]) {
		n = strtoul(text + length + 1, &end, 10);
		if (n == 0 || *end)
			return refuse(host, text);
	}
	for (int i = 1; i < S3_FAIL_POINTS; i++) {
		if (strlen(names[i]) == length && strncmp(names[i], text, length) == 0) {
			atomic_store(&passes_left, n);
			atomic_store(&s3_failpoint_chosen, i);
			return 0;
		}
	}
	return refuse(host, text);
}

void s3_failpoint_pass(void)
{
	if (atomic_fetch_sub(&passes_left, 1) == 1)
		kill(getpid(), SIGKILL);
}
