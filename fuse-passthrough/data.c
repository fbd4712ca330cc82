/* SPDX-License-Identifier: BSD-3-Clause */
/* The data of open files: read, write, copy, allocate, seek, flush. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <linux/fs.h>

#include "passthrough.h"

/* Memory of this alignment is good for direct I/O on any block device. */
#define DIRECT_ALIGNMENT 4096

/* The most that a request copies block by block. */
#define COPY_SIZE (8 << 20)
/* How long no part of a write is counted until the next one counts as missing. */
#define PART_USEC 100000
/* The most that one waits for others, since a user may keep that up. */
#define PARTS_USEC     10000000
#define PART_STEP_USEC 100
/* Clones begin and end at blocks; no file system has larger ones. */
#define CLONE_ALIGNMENT (64 << 10)

/* ---- memory of a thread ---- */

static pthread_key_t memory_key;
static pthread_once_t memory_once = PTHREAD_ONCE_INIT;
static _Thread_local size_t memory_size;

static void make_memory_key(void)
{
	pthread_key_create(&memory_key, free);
}

/* Aligned memory of the calling thread, of that size at least, until the next call. NULL: none. */
static void *thread_memory(size_t size)
{
	void *memory;

	pthread_once(&memory_once, make_memory_key);
	memory = pthread_getspecific(memory_key);
	if (size <= memory_size)
		return memory;
	free(memory);
	memory_size = 0;
	if (posix_memalign(&memory, DIRECT_ALIGNMENT, size) != 0)
		memory = NULL;
	if (pthread_setspecific(memory_key, memory) != 0) {
		free(memory);
		return NULL;
	}
	memory_size = memory ? size : 0;
	return memory;
}

/* ---- a pipe of a thread ---- */

static pthread_key_t pipe_key;
static pthread_once_t pipe_once = PTHREAD_ONCE_INIT;

/* Empty between two requests. */
struct pipe {
	int ends[2];
	size_t size;
};

static void pipe_free(void *opaque)
{
	struct pipe *p = opaque;

	close(p->ends[0]);
	close(p->ends[1]);
	free(p);
}

static void make_pipe_key(void)
{
	pthread_key_create(&pipe_key, pipe_free);
}

/* The calling thread's pipe, for size bytes at least. NULL: none, or the kernel allows no such. */
static struct pipe *thread_pipe(size_t size)
{
	struct pipe *p;
	int got;

	pthread_once(&pipe_once, make_pipe_key);
	p = pthread_getspecific(pipe_key);
	if (!p) {
		p = calloc(1, sizeof(*p));
		if (!p || pipe2(p->ends, O_CLOEXEC) == -1) {
			free(p);
			return NULL;
		}
		if (pthread_setspecific(pipe_key, p) != 0) {
			pipe_free(p);
			return NULL;
		}
	}
	if (p->size < size) {
		got = fcntl(p->ends[1], F_SETPIPE_SZ, (int)size);
		if (got == -1)
			return NULL;
		p->size = (size_t)got;
	}
	return p;
}

/* What is in it belongs to nobody. */
static void drop_pipe(struct pipe *p)
{
	pthread_setspecific(pipe_key, NULL);
	pipe_free(p);
}

bool close_thread_pipe(void)
{
	struct pipe *p;

	pthread_once(&pipe_once, make_pipe_key);
	p = pthread_getspecific(pipe_key);
	if (p)
		drop_pipe(p);
	return p != NULL;
}

/* ---- reads ---- */

/* libfuse would allocate memory for each read, which is a new mapping each time. */
static void read_through_memory(fuse_req_t req, int fd, size_t size, off_t offset)
{
	void *memory = thread_memory(size);
	ssize_t length = -ENOMEM;

	if (memory)
		length = session_read(fd, memory, size, offset, 0);
	if (length < 0)
		session_reply_error(req, (int)-length);
	else
		fuse_reply_buf(req, memory, (size_t)length);
}

/*
 * Answers a read without a copy. Through a pipe of ours: from the file itself, libfuse would answer
 * with what comes before an error. False: there is an error, or nothing, or no pipe.
 */
static bool read_through_pipe(fuse_req_t req, int fd, size_t size, off_t offset)
{
	struct pipe *p = thread_pipe(size + (size_t)offset % SESSION_PAGE);
	struct fuse_bufvec data = FUSE_BUFVEC_INIT(0);
	off_t at = offset;
	ssize_t length;

	if (!p)
		return false;
	length = splice(fd, &at, p->ends[1], NULL, size, SPLICE_F_NONBLOCK);
	if (length <= 0)
		return false;
	if (session_read_may_go_on(size, offset, (size_t)length)) {
		drop_pipe(p);
		return false;
	}
	data.buf[0].size = (size_t)length;
	data.buf[0].flags = FUSE_BUF_IS_FD;
	data.buf[0].fd = p->ends[0];
	fuse_reply_data(req, &data, FUSE_BUF_SPLICE_MOVE);
	if (data.idx < data.count)
		drop_pipe(p);
	return true;
}

void fs_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
	int fd = data_fd(fi);

	(void)ino;
	if (!session.splice || !read_through_pipe(req, fd, size, offset))
		read_through_memory(req, fd, size, offset);
}

/* ---- writes ---- */

/* What a request has written, and the negative errno, or 0, that ended it before all of it. */
struct written {
	size_t length;
	int error;
};

static struct written write_copy(int fd, struct fuse_bufvec *in, size_t size, off_t offset, int rwf)
{
	struct fuse_bufvec copy = FUSE_BUFVEC_INIT(size);
	struct written done = {0};
	char *memory = thread_memory(size);
	ssize_t result;

	if (!memory)
		return (struct written){.error = -ENOMEM};
	copy.buf[0].mem = memory;
	result = fuse_buf_copy(&copy, in, FUSE_BUF_NO_SPLICE);
	if (result < 0)
		return (struct written){.error = (int)result};
	size = (size_t)result;
	while (!done.error && done.length < size) {
		const struct iovec rest = {memory + done.length, size - done.length};

		result = pwritev2(fd, &rest, 1, offset + (off_t)done.length, rwf);
		if (result <= 0)
			done.error = result == 0 ? -EIO : -errno;
		else
			done.length += (size_t)result;
	}
	return done;
}

static struct written write_plain(int fd, struct fuse_bufvec *in, size_t size, off_t offset)
{
	struct fuse_bufvec out = FUSE_BUFVEC_INIT(size);
	struct written done = {0};
	ssize_t result;

	out.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	out.buf[0].fd = fd;
	out.buf[0].pos = offset;
	while (!done.error && done.length < size) {
		result = fuse_buf_copy(
			&out, in, session.splice ? FUSE_BUF_SPLICE_MOVE : FUSE_BUF_NO_SPLICE);
		if (result <= 0)
			done.error = result == 0 ? -EIO : (int)result;
		else
			done.length += (size_t)result;
	}
	return done;
}

static bool is_aligned(const struct fuse_bufvec *in)
{
	const struct fuse_buf *buf = &in->buf[in->idx];

	return (buf->flags & FUSE_BUF_IS_FD) ||
	       ((uintptr_t)buf->mem + in->off) % DIRECT_ALIGNMENT == 0;
}

/* Whether the sender of req may change a file and leave its set-id bits, as far as we can tell. */
static bool keeps_setid(fuse_req_t req)
{
	return fuse_req_ctx(req)->uid == 0;
}

/*
 * Whether a write takes set-id bits away. The kernel says so, or has looked after them by itself,
 * but only where it caches what is written.
 */
static bool write_kills_setid(fuse_req_t req, const struct fuse_file_info *fi)
{
#if HAVE_KILLPRIV_V2
	if (fs.killpriv_v2)
		return fi->kill_suidgid;
#endif
	return !fi->writepage && !keeps_setid(req);
}

/*
 * Waits until the parts of a long append before this one are in the file: the kernel sends all of
 * an asynchronous one at once. They have been taken before, so that this waits for threads that do
 * not wait for it. What the kernel's cache has before offset, or a part that failed, does not come.
 */
static void begin_part(struct inode *inode, int fd, off_t offset)
{
	int waited = 0, idle = 0;
	struct stat st;
	off_t end = 0;

	while (idle < PART_USEC && waited < PARTS_USEC && fstat(fd, &st) == 0 &&
		st.st_size < offset) {
		usleep(PART_STEP_USEC);
		waited += PART_STEP_USEC;
		idle += PART_STEP_USEC;
		/* The next one needs a moment to see that it may go on. */
		if (st.st_size != end || atomic_load(&inode->appending) > 0)
			idle = 0;
		end = st.st_size;
	}
	atomic_fetch_add(&inode->appending, 1);
}

static void end_part(struct inode *inode)
{
	atomic_fetch_sub(&inode->appending, 1);
}

/* ---- capabilities (setcap(8)) ---- */

/* As it lies in an extended attribute, with the namespace that it is of. */
struct capability {
	char value[24];
	ssize_t length;
};

/* Not the inode's lock, which lookups take: the source may take long to write. */
static pthread_mutex_t capability_locks[] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
	PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};

static pthread_mutex_t *capability_lock(const struct inode *inode)
{
	const size_t count = sizeof(capability_locks) / sizeof(*capability_locks);

	return &capability_locks[(uintptr_t)inode / sizeof(*inode) % count];
}

/*
 * Any write to the source takes the file's capability away. What the kernel's cache holds was
 * written before it was set, or stored to a mapping, which natively takes nothing away: it is there
 * again afterwards. Everything else that takes it away comes here first, lose_capability(), so that
 * nobody keeps it on what they have changed since. (Who may write to a program can always change it
 * by stores to a mapping, natively as well.)
 */
static bool begin_keeping(struct inode *inode, int fd, struct capability *capability)
{
	if (atomic_load(&inode->capability) != CAPABILITY_STAYS)
		return false;
	pthread_mutex_lock(capability_lock(inode));
	capability->length =
		atomic_load(&inode->capability) == CAPABILITY_STAYS
			? fgetxattr(fd, CAPABILITY, capability->value, sizeof(capability->value))
			: 0;
	return true;
}

static void end_keeping(struct inode *inode, int fd, const struct capability *capability)
{
	if (capability->length > 0)
		fsetxattr(fd, CAPABILITY, capability->value, (size_t)capability->length, 0);
	pthread_mutex_unlock(capability_lock(inode));
}

void lose_capability(struct inode *inode)
{
	unsigned char unseen = CAPABILITY_UNSEEN;

	/* Nobody keeps one that nobody has seen. */
	if (atomic_compare_exchange_strong(&inode->capability, &unseen, CAPABILITY_GOES) ||
		unseen == CAPABILITY_GOES)
		return;
	pthread_mutex_lock(capability_lock(inode));
	atomic_store(&inode->capability, CAPABILITY_GOES);
	pthread_mutex_unlock(capability_lock(inode));
}

void find_capability(struct inode *inode, int fd)
{
	unsigned char unseen = CAPABILITY_UNSEEN;

	if (!fs.owns_all || atomic_load(&inode->capability) != CAPABILITY_UNSEEN)
		return;
	/* Not after a write has begun that takes away what was seen here. */
	atomic_compare_exchange_strong(&inode->capability, &unseen,
		fgetxattr(fd, CAPABILITY, NULL, 0) > 0 ? CAPABILITY_STAYS : CAPABILITY_GOES);
}

void begin_capability(struct inode *inode)
{
	/* Before it has it, since what the cache holds may just arrive. */
	atomic_store(&inode->capability, CAPABILITY_STAYS);
	/* A write that keeps an older one must not put that back afterwards. */
	pthread_mutex_lock(capability_lock(inode));
	atomic_store(&inode->capability, CAPABILITY_STAYS); /* find_capability() has not seen it */
}

void end_capability(struct inode *inode)
{
	pthread_mutex_unlock(capability_lock(inode));
}

void fs_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in, off_t offset,
	struct fuse_file_info *fi)
{
	struct inode *inode = inode_of(ino);
	size_t size = fuse_buf_size(in);
	int rwf = session_write_flags(fi), fd;
	bool part = appends_twice(fi), keeps = false;
	struct capability capability;
	struct written done = {0};

	if (!fi->writepage)
		lose_capability(inode);
	if (part)
		begin_part(inode, file_fd(fi), offset);
	fd = write_fd(inode, fi, offset);
	if (fd == -1)
		done.error = -EPERM;
	caller_keep_setid();
	if (done.error == 0 && write_kills_setid(req, fi))
		done.error = clear_setid(req, fd);
	if (appends(fi))
		rwf |= RWF_APPEND;
	if (done.error == 0 && fi->writepage)
		keeps = begin_keeping(inode, fd, &capability);
	/* libfuse has no flags for a write, and does not align its memory for direct I/O. */
	if (done.error == 0 && (rwf || (fd != file_fd(fi) && !is_aligned(in))))
		done = write_copy(fd, in, size, offset, rwf);
	else if (done.error == 0)
		done = write_plain(fd, in, size, offset);
	if (keeps)
		end_keeping(inode, fd, &capability);
	if (part)
		end_part(inode);
	/* A caller writes the rest itself. The kernel does not, whose cached pages these may be. */
	if (done.error && (done.length == 0 || fi->writepage))
		session_reply_error(req, -done.error);
	else
		fuse_reply_write(req, done.length);
}

/* Closes a copy of the descriptor, so that the source's file system acts and reports as for the
 * caller's close. */
void fs_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	int copy, result;

	(void)ino;
	do
		copy = dup(file_fd(fi));
	while (copy == -1 && fds_freed());
	/* close(2) must not fail because no descriptor is free: this takes longer and needs none.
	 */
	result = copy == -1 ? fdatasync(file_fd(fi)) : close(copy);
	session_reply_error(req, result == -1 ? errno : 0);
}

void fs_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	int fd = file_fd(fi);

	(void)ino;
	session_reply_error(req, (datasync ? fdatasync(fd) : fsync(fd)) == -1 ? errno : 0);
}

/*
 * Some give a file that they cannot extend by all, for lack of space, the size of what they could,
 * and the kernel does not ask for it after an error. With FALLOC_FL_KEEP_SIZE, that fails before.
 * Only the last block then extends the file: it is there or not. It is not part of the first call,
 * since XFS (below an overlayfs) wants room for all of a call, whatever has been allocated.
 */
static int allocate(int fd, int mode, off_t offset, off_t length)
{
	off_t end = offset + length, last;
	struct stat st;

	if (fs.extends_in_part && !(mode & FALLOC_FL_KEEP_SIZE) && fstat(fd, &st) == 0 &&
		end > st.st_size) {
		last = (end - 1) / st.st_blksize * st.st_blksize;
		if (last > offset &&
			fallocate(fd, mode | FALLOC_FL_KEEP_SIZE, offset, last - offset) == 0)
			offset = last;
		else if (last > offset && (errno == ENOSPC || errno == EDQUOT))
			return -errno;
	}
	return fallocate(fd, mode, offset, end - offset) == -1 ? -errno : 0;
}

void fs_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
	struct fuse_file_info *fi)
{
	int fd = file_fd(fi), result = 0;

	caller_keep_setid();
	lose_capability(inode_of(ino));
	/* killpriv_v2 has no flag for this call and the next. */
	if (fs.killpriv_v2 && !keeps_setid(req))
		result = clear_setid(req, fd);
	if (result == 0)
		result = allocate(fd, mode, offset, length);
	/* It may have got blocks. This waits for nobody: the caller has the file open. */
	if (result < 0)
		fuse_lowlevel_notify_inval_inode(session.fuse, ino, -1, 0);
	session_reply_error(req, -result);
}

/*
 * The kernel asks without having written its cached pages back: the source would
 * call new data a hole, and cp(1) would lose it. EINVAL says that there is no such
 * search, and programs read the whole file. Nothing here may wait for the kernel to
 * write instead, see docs/fuse.md.
 */
void fs_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, struct fuse_file_info *fi)
{
	off_t result;

	if (may_hold_data(inode_of(ino))) {
		session_reply_error(req, EINVAL);
		return;
	}
	result = lseek(file_fd(fi), offset, whence);
	if (result == -1)
		session_reply_error(req, errno);
	else
		fuse_reply_lseek(req, result);
}

/* ---- copies ---- */

/*
 * Has out share the blocks of in, where their file system can: all of a clone is done at once, and
 * in parts it would take a transaction for each. Returns its length, or 0.
 */
static size_t clone_range(int in, off_t off_in, int out, off_t off_out, size_t len)
{
	struct file_clone_range range = {
		.src_fd = in, .src_offset = (uint64_t)off_in, .dest_offset = (uint64_t)off_out};
	struct stat st;

	if (fstat(in, &st) == -1 || st.st_size <= off_in)
		return 0;
	/* Only what goes up to the end of the file may end in a block. */
	range.src_length = (uint64_t)(st.st_size - off_in);
	if (range.src_length > len)
		range.src_length = len & ~(size_t)(CLONE_ALIGNMENT - 1);
	return ioctl(out, FICLONERANGE, &range) == 0 ? range.src_length : 0;
}

/*
 * A long copy is cloned, or made in parts, for which callers come again: it cannot be interrupted
 * here, other requests of a ring wait for it, and it holds locks of the kernel.
 */
static ssize_t copy_part(int in, off_t off_in, int out, off_t off_out, size_t len, unsigned flags)
{
	size_t length = 0;

	if (len > COPY_SIZE && flags == 0)
		length = clone_range(in, off_in, out, off_out, len);
	if (length > 0)
		return (ssize_t)length;
	return copy_file_range(
		in, &off_in, out, &off_out, len > COPY_SIZE ? COPY_SIZE : len, flags);
}

void fs_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
	struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
	struct fuse_file_info *fi_out, size_t len, int flags)
{
	/* The answer has 32 bits. */
	size_t most = len < INT_MAX ? len : INT_MAX & ~(CLONE_ALIGNMENT - 1);
	int out = range_fd(fi_out);
	ssize_t result = out == -1 ? -EPERM : 0;

	(void)ino_in;
	caller_keep_setid();
	lose_capability(inode_of(ino_out));
	if (result == 0 && fs.killpriv_v2 && !keeps_setid(req))
		result = clear_setid(req, out);
	if (result == 0) {
		result = copy_part(file_fd(fi_in), off_in, out, off_out, most, (unsigned)flags);
		result = result == -1 ? -errno : result;
	}
	if (result < 0)
		session_reply_error(req, (int)-result);
	else
		fuse_reply_write(req, (size_t)result);
}
