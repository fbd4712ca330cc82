/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The files that the kernel knows.
 *
 * An inode stands for one file of the source from its first lookup until the
 * kernel forgets it. It is found by (st_dev, st_ino) and owns an O_PATH
 * descriptor, so that renames cannot lead it astray. Descriptors are scarce and
 * inodes are not: where the source has file handles (name_to_handle_at(2)), the
 * descriptors that were not used lately are closed and opened again by handle;
 * those of unlinked files are kept, because nothing could open them again. An
 * inode number that the source recycles gets a new inode here: the handle tells
 * the two files apart.
 *
 * All functions may be called from any thread.
 */
#ifndef USERBLK_FUSE_INODES_H
#define USERBLK_FUSE_INODES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include <fuse_lowlevel.h>

struct inode {
	struct inode *next; /* in its bucket */
	dev_t dev;	    /* this and the next one change with NUMBERS_SHARED */
	ino_t ino;
	uint64_t generation;	    /* differs for every inode of this process */
	uint64_t lookups;	    /* the kernel's references and ours */
	atomic_uint_fast64_t fd;    /* users, a bit, descriptor + 1 (0: none): see inodes.c */
	struct file_handle *handle; /* constant once set, which is before fd goes */
	uint32_t slot;		    /* in the list of open descriptors */
	atomic_bool used;	    /* since the search for victims came by */
	atomic_uint writers;	    /* open files through which the kernel's cache gets new data */
	atomic_int plain_fd;	    /* descriptor + 1 of one of them, see file.c; 0: none */
	atomic_uint appending;	    /* requests that write to its end, see data.c */
	atomic_uint changes;	    /* of a directory: of its names, through the mount */
	atomic_uchar names;	    /* of a directory: enum names in passthrough.h */
	atomic_uchar capability;    /* enum capability_state in passthrough.h */
	atomic_bool mapped;	    /* perhaps, since it may be so that stores are not seen here */
	uint32_t opens;		    /* open files, under inode_lock() */
	int32_t backing_id;	    /* shared by them for kernel passthrough; 0: none */
};

/* What the number of a file of the source says while the file is open. */
enum numbers {
	NUMBERS_OF_ONE,		 /* no other file has it */
	NUMBERS_RECYCLED,	 /* another one may get it, and has another handle */
	NUMBERS_WITHOUT_HANDLES, /* another one may get it, as attributes may tell */
	NUMBERS_OF_SEVERAL,	 /* another one may have it all the time, with another handle */
	NUMBERS_SHARED, /* another one may have it until one of the two is changed, which changes it
			 */
};

/* How the file system of the source identifies files. */
struct inodes_source {
	bool handles_last; /* a handle finds its file for as long as that exists */
	enum numbers numbers;
};

/*
 * Begins with the root of the source: root_fd is an open directory (not
 * O_PATH), taken over. At most max_fds descriptors are kept where the source
 * has file handles, and these last. Returns 0 or a negative errno.
 */
int inodes_init(int root_fd, size_t max_fds, const struct inodes_source *source);

/* Closes everything. No request in flight. */
void inodes_destroy(void);

/* Whether the number of inodes is independent of the limit of open files. */
bool inodes_have_handles(void);

/* The inode that the kernel means. */
struct inode *inode_of(fuse_ino_t ino);

/* The number by which the kernel will call it. */
fuse_ino_t inode_number(const struct inode *inode);

/*
 * The inode number of a file that users see. All files of the mount have one device, while the
 * source can have several: subvolumes of Btrfs, layers of overlayfs. The numbers of the device of
 * the root itself stay.
 */
ino_t shown_ino(dev_t dev, ino_t ino);

/*
 * An O_PATH descriptor of inode (of the root: a readable one), good until
 * inode_put(); or a negative errno, ESTALE when the file is gone. What changes
 * the file of inode comes between the two, and a lookup of the file after them
 * or after inode_renumber().
 */
int inode_get(struct inode *inode);
void inode_put(struct inode *inode);

/*
 * Between the two, after such a change: lookups find inode by the number that its file has by now.
 */
void inode_renumber(struct inode *inode);

/* Whether a change of a file may change its number: NUMBERS_SHARED. */
bool inodes_change_numbers(void);

/*
 * The inode for fd, an O_PATH descriptor taken over whatever happens, whose
 * attributes are st, which are read again if they may change; counts one lookup. Returns 0 or a
 * negative errno.
 */
int inode_learn(int fd, struct stat *st, struct inode **result);

/*
 * Device and inode number of name below dir_fd; false: there is none. What is mounted on it is not
 * asked: it may be this file system, or an autofs.
 */
bool inode_identify(int dir_fd, const char *name, dev_t *dev, ino_t *ino);

/* Takes count lookups back; the inode is gone when none is left. */
void inode_forget(struct inode *inode, uint64_t count);

/*
 * Between the two, name below dir_fd may be removed: if the kernel knows its
 * inode, that has a descriptor by then, which stays. The first returns 0, or a
 * negative errno where there is no descriptor for it, and then the second is
 * not called.
 */
struct removal {
	struct inode *victim; /* with one more lookup and user; or NULL */
	bool all_open;	      /* no descriptor was ever closed, and none is until the end */
};
int removal_begin(struct removal *removal, int dir_fd, const char *name);
void removal_end(struct removal *removal);

/* Calls visit for each inode that has writers, without a lock. 0, or -ENOMEM: for some only. */
int inodes_each_written(void (*visit)(struct inode *inode, void *data), void *data);

/* Guards opens, backing_id and changes of plain_fd of inode, and of others. */
void inode_lock(struct inode *inode);
void inode_unlock(struct inode *inode);

/*
 * After a failed call that opens a descriptor: whether it is worth another
 * try, because errno was EMFILE and descriptors have been closed since. Keeps
 * errno.
 */
bool fds_freed(void);

#endif
