/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * userblk-passthrough: what its parts share. The session is that of fuse-session/.
 *
 *   main.c        what it asks of the kernel
 *   options.c     its options
 *   inodes.c      which files the kernel knows, and descriptors for them
 *   caller.c      acting as the requesting user
 *   operations.c  names, links
 *   attributes.c  getattr, statx, setattr
 *   extended_attributes.c  extended attributes, ACLs
 *   directory.c   opendir, readdir, readdirplus
 *   file.c        open, create, release, kernel passthrough
 *   data.c        the data of open files: read, write, copy, space
 *   inode_flags.c lsattr and chattr
 *
 * Operations answer a request exactly once, by fuse_reply_*(), and return
 * nothing. Helpers return a descriptor or 0, or a negative errno.
 */
#ifndef USERBLK_FUSE_PASSTHROUGH_H
#define USERBLK_FUSE_PASSTHROUGH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <fuse_lowlevel.h>

#include "fuse-session/session.h"
#include "inodes.h"

/* Whether two names in a directory that differ in case name one file. */
enum names { NAMES_UNKNOWN, NAMES_WITH_CASE, NAMES_WITHOUT_CASE };

/* The one file system of this process. Set up by main.c, constant once the session runs. */
struct filesystem {
	bool passthrough;     /* as asked for; turned off when the kernel does not have it */
	bool stacked;	      /* the source may be upon another file system */
	bool is_root;	      /* files can be given to the requesting user */
	bool owns_all;	      /* and the rights of root hold for files of any owner */
	bool killpriv_v2;     /* the kernel says when set-id bits must go */
	bool direct_mmap;     /* O_DIRECT files may bypass the kernel's cache and still be mapped */
	bool plain_close;     /* close(2) does nothing to a file of the source */
	bool extends_in_part; /* an allocation that fails may extend a file of the source */
	bool seeks_back;      /* a place in a directory stays one when names come and go */
	enum names names;     /* of all directories; unknown: of each its own */
	bool flags_checked; /* the kernel has looked who sets inode flags: Linux 5.14 surely does */
	bool direct_drops_pages; /* a direct write leaves none of what it has overwritten in the
				    cache */
	/* Inodes whose data went through the daemon although passthrough is on. */
	atomic_uint_fast64_t passthrough_refused;
	pthread_mutex_t synced_lock;	/* held while synced is changed, or looked up */
	_Atomic(struct inode *) synced; /* at the end: what session_looks_up() means; or NULL */
};
extern struct filesystem fs;

/*
 * Between these two, new files, made with mode, belong to the user who sent
 * req, under the user's umask. The calling thread only; capabilities stay.
 * caller_prepare() is called once, before there are threads: 0 or a negative
 * errno.
 */
int caller_prepare(void);
/* Whether the kernel would do I/O for this process: as root of the machine, not of a user
 * namespace. */
bool caller_may_pass_through(void);
/* Whether every user and group exists here, which root then has rights over: not as root of a user
 * namespace with some of them. */
bool caller_knows_all(void);
void caller_begin(fuse_req_t req, mode_t mode);
void caller_end(fuse_req_t req);

/*
 * With caller_lose_setid(), the calling thread is without CAP_FSETID until
 * caller_keep_setid(): what the kernel does with its credentials clears set-id
 * bits. So every operation that may clear them begins with the latter, as
 * caller_begin() does for a mode with one. Nothing changes for daemons that
 * never had it.
 */
void caller_lose_setid(void);
void caller_keep_setid(void);

/*
 * Whether the sender of req is in group, by its groups as /proc shows them.
 * False when they cannot be read.
 */
bool caller_in_group(fuse_req_t req, gid_t group);
/*
 * The mode of a new file in dir. Before Linux 6.0, the kernel leaves it to the source to take the
 * set-group-ID bit from programs of a group that the user is not in, and the source would look at
 * the daemon's rights.
 */
mode_t caller_file_mode(fuse_req_t req, int dir, mode_t mode);

/*
 * Finds name below parent and counts a lookup of it. Fills entry completely.
 * Returns 0 or a negative errno: EXDEV for a mount point below the source.
 */
int lookup_name(struct inode *parent, const char *name, struct fuse_entry_param *entry);

/* Fills entry for fd, an O_PATH descriptor that it takes over, and counts a lookup. */
int lookup_fd(int fd, struct fuse_entry_param *entry);

/*
 * Removes name below parent again, by unlinkat(2) with flags: it was made, but cannot be answered,
 * and the kernel goes on to remember that there is none. Not if it is another file than fd by now,
 * unless fd is -1: there is none to compare it with.
 */
void take_back(struct inode *parent, const char *name, int flags, int fd);

/* Called after each call that may change the names below parent, and before its answer. */
static inline void names_changed(struct inode *parent)
{
	atomic_fetch_add(&parent->changes, 1);
}

/*
 * inode_put() after a call that may have moved the file to the upper layer of an overlayfs, in a
 * request that does not answer with attributes and for which the caller keeps the inode. There it
 * has other ones, its number and a single name among them, for which the kernel would not ask
 * again. Whether it has moved is not looked at: another request may have noticed before.
 */
void inode_put_changed(struct inode *inode);

/*
 * How long the kernel may use the attributes of a file of that mode, in seconds. It does not see
 * when a write clears set-id bits here, so it must not keep them; nor when a store to a mapping
 * that it passes through changes times.
 */
double attr_timeout(struct inode *inode, mode_t mode);

/* Clears the set-id bits of fd that a write by the sender of req, who is not privileged, takes
 * away. */
int clear_setid(fuse_req_t req, int fd);
/* The extended attribute of setcap(8). */
#define CAPABILITY "security.capability"
enum capability_state {
	CAPABILITY_UNSEEN, /* nobody has looked */
	CAPABILITY_STAYS, /* it may have one, which data from the kernel's cache do not take away */
	CAPABILITY_GOES,  /* with any write, if it has one */
};
/* Looks whether a file has it that is opened for writing as fd, unless it was written before. */
void find_capability(struct inode *inode, int fd);
/* Called before what takes it away from a file, so that nothing brings it back. */
void lose_capability(struct inode *inode);
/* Around the call that gives it to a file. */
void begin_capability(struct inode *inode);
void end_capability(struct inode *inode);

/* The path of descriptor fd, for calls that take no O_PATH descriptor. */
#define FD_PATHS "/proc/self/fd"
struct fd_path {
	char path[32];
};
struct fd_path fd_path(int fd);

/* Opens path with flags, again after descriptors have been closed. A descriptor or a negative
 * errno. */
int open_retrying(const char *path, int flags);

/* Closes the pipe that the calling thread keeps for reads; false: it has none. Not during a read.
 */
bool close_thread_pipe(void);

/* Descriptor of an open file, as file.c packs it into fi->fh. */
int file_fd(const struct fuse_file_info *fi);

/* The one to read and write by: fi->flags are those that the file has at the time of the request.
 */
int data_fd(const struct fuse_file_info *fi);

/*
 * Whether its descriptors write to the end of the file, whatever the offset: the file may only
 * grow (chattr(1) +a).
 */
bool only_appends(const struct fuse_file_info *fi);

/* The one to copy to: it puts data where they shall be. -1: the file may still only grow. */
int range_fd(const struct fuse_file_info *fi);

/* The one to write by, for the write fi to inode. -1: none could put it where it belongs. */
int write_fd(struct inode *inode, const struct fuse_file_info *fi, off_t offset);

/*
 * Whether the kernel has found the end for a write, but the descriptor finds it again: a file that
 * may only grow, with write-back.
 */
bool appends_twice(const struct fuse_file_info *fi);

/* Whether a write goes to the end of the file, wherever that is by now, and not to its offset. */
bool appends(const struct fuse_file_info *fi);

/* Whether inode may have mappings through which the source changes without the kernel's seeing it.
 */
bool changes_unseen(struct inode *inode);

/* Whether the kernel may hold data of inode that the source does not have yet. */
bool may_hold_data(struct inode *inode);

void fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	struct fuse_file_info *fi);
#if HAVE_TMPFILE
void fs_tmpfile(fuse_req_t req, fuse_ino_t parent, mode_t mode, struct fuse_file_info *fi);
#endif
void fs_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi);
void fs_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in, off_t offset,
	struct fuse_file_info *fi);
void fs_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void fs_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
	struct fuse_file_info *fi);
void fs_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, struct fuse_file_info *fi);
void fs_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
	struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
	struct fuse_file_info *fi_out, size_t len, int flags);
void fs_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg,
	struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_size, size_t out_size);

void fs_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_readdir(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi);
void fs_readdirplus(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi);
void fs_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);

/* Fills in the operations of operations.c. */
void operations_namespace(struct fuse_lowlevel_ops *ops);
/* Those of attributes.c. */
void operations_attributes(struct fuse_lowlevel_ops *ops);
/* Those of extended_attributes.c. */
void operations_extended_attributes(struct fuse_lowlevel_ops *ops);

#endif
