/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "options.h"
#include "passthrough.h"
#include "programs/exit_codes.h"
#include "programs/standard_files.h"

/* Types that linux/magic.h lacks, or has not always had. */
#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif
#define BCACHEFS_MAGIC 0xca451a4eUL
#define EXFAT_MAGIC    0x2011bab0UL
#define NTFS_MAGIC     0x5346544eUL
#define NTFS3_MAGIC    0x7366746eUL
#define HFS_MAGIC      0x4244UL
#define HFSPLUS_MAGIC  0x482bUL
#define CIFS_MAGIC     0xff534d42UL
#define SMB2_MAGIC     0xfe534d42UL

struct filesystem fs = {.synced_lock = PTHREAD_MUTEX_INITIALIZER};

const char session_name[] = NAME;

/* ---- what the kernel grants ---- */

static struct {
	bool readdirplus, acl, noatime;
} granted;

static void negotiate_privileges(struct fuse_conn_info *conn)
{
#if HAVE_KILLPRIV_V2
	int major = 0, minor = 0, fix = 0;

	/* The library at run time may be older than its headers were. */
	sscanf(fuse_pkgversion(), "%d.%d.%d", &major, &minor, &fix);
	if (major * 1000000 + minor * 1000 + fix >= 3018003)
		fs.killpriv_v2 = session_want(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
#endif
	/* ACLs, and with them the umask, are ours to apply. */
	granted.acl = session_want(conn, FUSE_CAP_POSIX_ACL);
	session_want(conn, FUSE_CAP_DONT_MASK);
}

static void negotiate(struct fuse_conn_info *conn)
{
	negotiate_privileges(conn);
#if HAVE_PASSTHROUGH
	fs.passthrough = fs.passthrough && session_want(conn, FUSE_CAP_PASSTHROUGH);
	/* The kernel has two file systems upon another one at most: ours, and one above or below.
	 */
	if (fs.passthrough)
		conn->max_backing_stack_depth = fs.stacked ? 1 : 0;
#endif
	/* Not both: a program that passes writes through has nothing to write back. */
	session.writeback = session.writeback && !fs.passthrough;
#if HAVE_PARALLEL_WRITES
	fs.direct_mmap = session_want(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	/* A handle of this mount would not survive it. */
	session_want(conn, FUSE_CAP_NO_EXPORT_SUPPORT);
#endif
	granted.readdirplus = conn->capable & FUSE_CAP_READDIRPLUS;
	fs.flags_checked = conn->proto_minor >= 34;
	fs.direct_drops_pages = conn->proto_minor >= 39;
}

static int tell(char *text, size_t size)
{
	return snprintf(text, size,
		" passthrough=%s noatime=%s killpriv-v2=%s acl=%s readdirplus=%s handles=%s "
		"ownership=%s",
		session_state(options.passthrough, fs.passthrough),
		session_state(options.noatime || options.nodiratime, granted.noatime),
		session_state(false, fs.killpriv_v2), session_state(true, granted.acl),
		session_state(true, granted.readdirplus),
		session_state(true, inodes_have_handles()), fs.is_root ? "caller" : "daemon");
}

/* ---- the session ---- */

static void fill_operations(struct fuse_lowlevel_ops *ops)
{
	operations_namespace(ops);
	operations_attributes(ops);
	operations_extended_attributes(ops);
	ops->open = fs_open;
	ops->create = fs_create;
#if HAVE_TMPFILE
	ops->tmpfile = fs_tmpfile;
#endif
	ops->release = fs_release;
	ops->read = fs_read;
	ops->write_buf = fs_write_buf;
	ops->flush = fs_flush;
	ops->fsync = fs_fsync;
	ops->fallocate = fs_fallocate;
	ops->lseek = fs_lseek;
	ops->copy_file_range = fs_copy_file_range;
	ops->ioctl = fs_ioctl;
	ops->opendir = fs_opendir;
	ops->readdir = fs_readdir;
	ops->readdirplus = fs_readdirplus;
	ops->releasedir = fs_releasedir;
	ops->fsyncdir = fs_fsyncdir;
}

/* The limit of open files, raised as far as it goes. */
static size_t raise_open_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == -1)
		return 1024;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	return limit.rlim_cur == RLIM_INFINITY ? SIZE_MAX : limit.rlim_cur;
}

/*
 * SOURCE with noatime or nodiratime, in a mount of its own that nobody else sees: the kernel then
 * leaves times of access alone, also where it passes files through. Returns its root, or -1 where
 * there is no right to mount.
 */
static int open_without_times(int source)
{
	int result = -1;
#ifdef MOUNT_ATTR_SIZE_VER0 /* of glibc 2.36 */
	struct mount_attr attr = {0};
	int tree = open_tree(source, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);

	if (tree == -1)
		return -1;
	if (options.noatime) {
		attr.attr_clr = MOUNT_ATTR__ATIME;
		attr.attr_set = MOUNT_ATTR_NOATIME;
	}
	if (options.nodiratime)
		attr.attr_set |= MOUNT_ATTR_NODIRATIME;
	if (mount_setattr(tree, "", AT_EMPTY_PATH, &attr, sizeof(attr)) == 0)
		result = openat(tree, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (result == -1)
		close(tree); /* otherwise the mount lasts as long as this is open */
#else
	(void)source;
#endif
	return result;
}

/* The type of the file system of fd, as statfs(2) has it; 0: unknown. */
static unsigned long type_of(int fd)
{
	struct statfs st;

	return fstatfs(fd, &st) == 0 ? (unsigned long)st.f_type : 0;
}

/* How it identifies files. */
static struct inodes_source source_of(unsigned long type)
{
	enum numbers numbers = NUMBERS_OF_ONE;

	/* Its server does not know what is open here, and another machine may remove it. */
	if (type == NFS_SUPER_MAGIC)
		numbers = NUMBERS_RECYCLED;
	/* Nor does that of these, which have no handles, and open nothing there for an O_PATH
	 * descriptor. */
	else if (type == SMB_SUPER_MAGIC || type == CIFS_MAGIC || type == SMB2_MAGIC ||
		 type == V9FS_MAGIC)
		numbers = NUMBERS_WITHOUT_HANDLES;
	/* Its server may show files of several file systems, all by one device. */
	else if (type == FUSE_SUPER_MAGIC)
		numbers = NUMBERS_OF_SEVERAL;
	/* The hard links of a lower layer are files of their own when they come to the upper one.
	 */
	else if (type == OVERLAYFS_SUPER_MAGIC)
		numbers = NUMBERS_SHARED;
	return (struct inodes_source){
		/* In these, a handle may find its file only while that is in memory. */
		.handles_last = type != MSDOS_SUPER_MAGIC && type != FUSE_SUPER_MAGIC,
		.numbers = numbers,
	};
}

/* Opens SOURCE, of that type, and checks MOUNTPOINT. */
static bool open_directories(unsigned long *type)
{
	struct inodes_source source;
	int fd, result;

	if (!session_check_mount_point(&options.session))
		return false;
	fs.is_root = geteuid() == 0;
	fs.owns_all = fs.is_root && caller_knows_all();
	umask(0);
	result = caller_prepare();
	if (result < 0) {
		session_warn("cannot act for other users: %s; as root, CAP_SETUID, CAP_SETGID and "
			     "CAP_SETPCAP are needed, and unshare(2) for all",
			strerror(-result));
		return false;
	}
	fd = open(options.source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd == -1) {
		session_warn("%s: %s; SOURCE must be a directory", options.source, strerror(errno));
		return false;
	}
	if (options.noatime || options.nodiratime) {
		/* The first descriptor stays open: what is in use is not unmounted. */
		result = open_without_times(fd);
		granted.noatime = result != -1;
		fd = granted.noatime ? result : fd;
	}
	/* What there is a descriptor of is opened through this. */
	if (access(FD_PATHS, F_OK) == -1) {
		session_warn(FD_PATHS ": %s; mount /proc", strerror(errno));
		return false;
	}
	*type = type_of(fd);
	source = source_of(*type);
	/* Half for inodes, half for open files. */
	result = inodes_init(fd, raise_open_files() / 2, &source);
	if (result == -EMFILE)
		session_warn("%s: no inotify; raise fs.inotify.max_user_instances", options.source);
	else if (result < 0)
		session_warn("%s: %s", options.source, strerror(-result));
	return result == 0;
}

/* Whether SOURCE is mounted with the flag of statvfs(3). */
static bool is_mounted(unsigned long flag)
{
	struct inode *root = inode_of(FUSE_ROOT_ID);
	struct statvfs st;
	bool known = fstatvfs(inode_get(root), &st) == 0;

	inode_put(root);
	return known && (st.f_flag & flag);
}

/* A lookup of the one before may be under way, if its asker was cut off. */
static void set_synced(struct inode *inode)
{
	pthread_mutex_lock(&fs.synced_lock);
	atomic_store(&fs.synced, inode);
	pthread_mutex_unlock(&fs.synced_lock);
}

/* One without a name is lost with its last user, as it is without a daemon. */
static void visit_written(struct inode *inode, void *visit)
{
	char path[PATH_MAX] = "";
	struct stat st = {.st_nlink = 1};
	int fd = inode_get(inode);

	if (fd >= 0) {
		fstat(fd, &st);
		if (readlink(fd_path(fd).path, path, sizeof(path) - 1) == -1)
			strcpy(path, "a file");
		inode_put(inode);
	}
	if (st.st_nlink == 0)
		return;
	set_synced(inode);
	(*(session_visit **)visit)(path);
	set_synced(NULL);
}

static bool each_written(session_visit *visit)
{
	return inodes_each_written(visit_written, &visit) == 0;
}

/* <sys/statvfs.h> of Debian 12 lacks it. */
#ifndef ST_NOSYMFOLLOW
#define ST_NOSYMFOLLOW 0x2000
#endif

/*
 * What the kernel is to know of the mount, whatever the user's options say, which come before. Not
 * nodiratime, which libfuse 3.14 does not know. If SOURCE is read-only, so is the mount: access(2)
 * and others ask the kernel, not the daemon. If writes to it are synchronous, the cache of the
 * kernel must not hold them back. Nor does the mount give more rights than SOURCE.
 */
static bool add_mount_options(struct fuse_args *args)
{
	static const struct {
		unsigned long flag;
		const char *option;
	} taken[] = {{ST_RDONLY, "-oro"}, {ST_SYNCHRONOUS, "-osync"}, {ST_NOEXEC, "-onoexec"},
		{ST_NOSUID, "-onosuid"}, {ST_NODEV, "-onodev"}, {ST_NOSYMFOLLOW, "-onosymfollow"}};

	size_t count = sizeof(taken) / sizeof(taken[0]);

	/* Debian 12's libfuse does not know the last one. */
	count -= fuse_version() < FUSE_MAKE_VERSION(3, 17);
	for (size_t i = 0; i < count; i++)
		if (is_mounted(taken[i].flag) && fuse_opt_add_arg(args, taken[i].option) == -1)
			return false;
	return !options.noatime || fuse_opt_add_arg(args, "-onoatime") == 0;
}

/* Is it in memory? Then reads do not wait, so rings do them at once. */
static bool in_memory(unsigned long type)
{
	return type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

/* May it be upon another one? */
static bool is_stacked(unsigned long type)
{
	return type == OVERLAYFS_SUPER_MAGIC || type == ECRYPTFS_SUPER_MAGIC ||
	       type == FUSE_SUPER_MAGIC;
}

/* Does it nothing when a file is closed? Others, such as NFS, write then, or report errors. */
static bool closes_plainly(unsigned long type)
{
	return in_memory(type) || type == EXT4_SUPER_MAGIC || type == XFS_SUPER_MAGIC ||
	       type == BTRFS_SUPER_MAGIC;
}

/*
 * May a failed allocation extend its files? ext4 and f2fs do that, and others may. XFS sees to the
 * room first, and what is in memory takes it back.
 */
static bool extends_in_part(unsigned long type)
{
	return type != XFS_SUPER_MAGIC && !in_memory(type);
}

/*
 * Does a seek in a directory lead to the same place after names have gone? Where places are counted
 * (ramfs, tmpfs before Linux 6.6), names would be left out.
 */
static bool seeks_back(unsigned long type)
{
	return type == EXT4_SUPER_MAGIC || type == XFS_SUPER_MAGIC || type == BTRFS_SUPER_MAGIC ||
	       type == F2FS_SUPER_MAGIC;
}

/*
 * Do its directories have names without case? Of the first group each one may (chattr(1) +F), all
 * of the second do, perhaps only because their server does.
 */
static enum names names_of(unsigned long type)
{
	static const unsigned long some[] = {
		EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, TMPFS_MAGIC, BCACHEFS_MAGIC};
	static const unsigned long all[] = {MSDOS_SUPER_MAGIC, EXFAT_MAGIC, NTFS_MAGIC, NTFS3_MAGIC,
		HFS_MAGIC, HFSPLUS_MAGIC, SMB_SUPER_MAGIC, CIFS_MAGIC, SMB2_MAGIC};

	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++)
		if (type == some[i])
			return NAMES_UNKNOWN;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (type == all[i])
			return NAMES_WITHOUT_CASE;
	return NAMES_WITH_CASE;
}

/*
 * The descriptor for a write for O_DIRECT, which waits for the device; -1 for all others, which end
 * in memory or need more than a write.
 */
static int ring_write_fd(const struct fuse_file_info *fi, fuse_ino_t ino, bool kill_setid)
{
	int fd = data_fd(fi);
	struct stat st;

	if (fd == file_fd(fi) || appends(fi) || only_appends(fi) || kill_setid ||
		atomic_load(&inode_of(ino)->capability) != CAPABILITY_GOES)
		return -1;
	/*
	 * Then nobody has said whether these bits must go; or the ring takes the credentials that
	 * the thread has when it submits, perhaps after a request that needs others.
	 */
	if ((!fs.killpriv_v2 || fs.passthrough) &&
		(fstat(fd, &st) == -1 || (st.st_mode & (S_ISUID | S_ISGID))))
		return -1;
	return fd;
}

int main(int argc, char *argv[])
{
	struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
	static struct rings_files files = {
		.read_fd = data_fd, .write_fd = ring_write_fd, .sync_fd = file_fd};
	struct session_program program = {.negotiate = negotiate,
		.tell = tell,
		.files = &files,
		.finds_end = true,
		.each_written = each_written};
	int status = EXIT_USAGE;
	unsigned long type;

	open_standard_files();
	if (!options_read(&args))
		goto out;
	if (options.session.help || options.session.version) {
		options_print_help();
		status = EXIT_SUCCESS;
		goto out;
	}
	fs.passthrough = HAVE_PASSTHROUGH && (options.passthrough || options.passthrough_when) &&
			 caller_may_pass_through();
	if (!open_directories(&type))
		goto out;
	if (!add_mount_options(&args))
		goto out;
	files.in_memory = in_memory(type);
	fs.plain_close = closes_plainly(type);
	fs.extends_in_part = extends_in_part(type);
	fs.seeks_back = seeks_back(type);
	fs.names = names_of(type);
	fs.stacked = is_stacked(type);
	/* With it, nothing could be upon the mount, which only who asks for it shall lose. */
	fs.passthrough = fs.passthrough && (options.passthrough || !fs.stacked);
	fill_operations(&program.operations);
	status = session_run(&args, &options.session, options.source, &program);
	if (atomic_load(&fs.passthrough_refused))
		session_warn("%ju inodes were not passed through by the kernel",
			(uintmax_t)atomic_load(&fs.passthrough_refused));
out:
	inodes_destroy();
	fuse_opt_free_args(&args);
	options_free();
	return status;
}
