/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/capability.h>
#include <linux/securebits.h>

#include "passthrough.h"

/* By PROC_USER_INIT_INO, which is the same in every kernel. */
#define MACHINE_NAMESPACE "user:[4026531837]"

/* The umask of this thread, once it has one of its own. */
static _Thread_local bool own_umask;
static _Thread_local mode_t thread_umask;

/* Those of the calling thread, for capget() and capset(). */
struct capabilities {
	struct __user_cap_header_struct header;
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
};

static bool get_capabilities(struct capabilities *own)
{
	own->header = (struct __user_cap_header_struct){.version = _LINUX_CAPABILITY_VERSION_3};
	return syscall(SYS_capget, &own->header, own->data) == 0;
}

static bool has_capability(unsigned number)
{
	struct capabilities own;

	return get_capabilities(&own) && (own.data[number / 32].effective & (1u << number % 32));
}

/* Whether a map of a user namespace, or of the machine, has all. */
static bool is_whole(const char *path)
{
	unsigned first = 1, below = 0, count = 0;
	FILE *map = fopen(path, "re");
	bool whole;

	if (!map)
		return errno == ENOENT; /* a kernel without user namespaces */
	whole = fscanf(map, "%u %u %u", &first, &below, &count) == 3 && count == UINT32_MAX;
	fclose(map);
	return whole;
}

/* Whether this is the user namespace of the machine: another one may have all users, too. */
static bool is_machine(void)
{
	char name[32] = "";

	if (readlink("/proc/self/ns/user", name, sizeof(name) - 1) == -1)
		return errno == ENOENT;
	return strcmp(name, MACHINE_NAMESPACE) == 0;
}

bool caller_knows_all(void)
{
	return is_whole("/proc/self/uid_map") && is_whole("/proc/self/gid_map");
}

bool caller_may_pass_through(void)
{
	return is_machine() && has_capability(CAP_SYS_ADMIN);
}

int caller_prepare(void)
{
	/* Threads that cannot part from each other would share the umask of one's caller. */
	if (unshare(CLONE_FS) == -1)
		return -errno;
	if (!fs.is_root)
		return 0;
	/*
	 * The kernel has checked permissions with the caller's own credentials
	 * (default_permissions), so that only the owner of new files is to
	 * change here, not what the daemon may do: a directory that a
	 * supplementary group opens to the caller needs no look at the groups.
	 */
	if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == -1)
		return -errno;
	/* setfsuid() reports no error; and no user but root may exist here (user_namespaces(7)). */
	return has_capability(CAP_SETUID) && has_capability(CAP_SETGID) ? 0 : -EPERM;
}

void caller_begin(fuse_req_t req, mode_t mode)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	/* Without it the kernel takes the bit from files for groups that the daemon is not in. */
	if (mode & S_ISGID)
		caller_keep_setid();
	/*
	 * The kernel leaves the umask to us, because a default ACL of the
	 * directory overrides it. A thread begins with that of the thread that
	 * started it, and shares it until they part.
	 */
	if (!own_umask || thread_umask != ctx->umask) {
		own_umask = own_umask || unshare(CLONE_FS) == 0; /* as in caller_prepare() */
		umask(ctx->umask);
		thread_umask = ctx->umask;
	}
	if (fs.is_root && ctx->gid != 0)
		setfsgid(ctx->gid);
	if (fs.is_root && ctx->uid != 0)
		setfsuid(ctx->uid);
}

void caller_end(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	if (fs.is_root && ctx->uid != 0)
		setfsuid(0);
	if (fs.is_root && ctx->gid != 0)
		setfsgid(0);
}

/*
 * A system call or two for each change, so it is made when the other state is
 * needed: many opens in a row cost none. A thread begins with the credentials
 * of the one that started it, in either state.
 */
static _Thread_local enum { FSETID_UNKNOWN, FSETID_HELD, FSETID_LOST } fsetid;

static void set_fsetid(bool on)
{
	struct capabilities own;

	if (!fs.is_root || !get_capabilities(&own))
		return;
	if (on)
		own.data[0].effective |= own.data[0].permitted & (1u << CAP_FSETID);
	else
		own.data[0].effective &= ~(1u << CAP_FSETID);
	if (syscall(SYS_capset, &own.header, own.data) == 0)
		fsetid = on ? FSETID_HELD : FSETID_LOST;
}

void caller_lose_setid(void)
{
	if (fsetid != FSETID_LOST)
		set_fsetid(false);
}

void caller_keep_setid(void)
{
	if (fs.passthrough && fsetid != FSETID_HELD)
		set_fsetid(true);
}

bool caller_in_group(fuse_req_t req, gid_t group)
{
	gid_t some[64], *groups = some;
	bool found = fuse_req_ctx(req)->gid == group;
	int count;

	if (found)
		return true;
	count = fuse_req_getgroups(req, 64, some);
	if (count > 64) {
		groups = calloc((size_t)count, sizeof(*groups));
		if (!groups)
			return false;
		/* There may be more by now; those are not looked at. */
		int again = fuse_req_getgroups(req, count, groups);

		count = again < count ? again : count;
	}
	for (int i = 0; i < count && !found; i++)
		found = groups[i] == group;
	if (groups != some)
		free(groups);
	return found;
}

mode_t caller_file_mode(fuse_req_t req, int dir, mode_t mode)
{
	const mode_t both = S_ISGID | S_IXGRP;
	struct stat st;

	if ((mode & both) == both && fs.is_root && fuse_req_ctx(req)->uid != 0 &&
		fstat(dir, &st) == 0 && (st.st_mode & S_ISGID) && !caller_in_group(req, st.st_gid))
		mode &= ~(mode_t)S_ISGID;
	return mode;
}
