/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What every FUSE file system here does alike: a mounted session of libfuse with one or many
 * threads, splicing, io_uring; the background; and a status line that says what was granted.
 *
 *   options.c  the options for that
 *   begin.c    how it begins and ends
 *   session.c  the session, complaints, the status line
 *   asker.c    a process that uses the mount, as others do
 *   rings.c    requests through io_uring
 */
#ifndef USERBLK_FUSE_SESSION_H
#define USERBLK_FUSE_SESSION_H

#include <stdatomic.h>

#include "options.h"
#include "rings.h"

/* Called for a file; path: for messages. */
typedef void session_visit(const char *path);

/* A file system. */
struct session_program {
	struct fuse_lowlevel_ops operations; /* but init */
	/* Asks for what only this one wants, and turns off what that excludes. */
	void (*negotiate)(struct fuse_conn_info *conn);
	/* Writes its own words of the status line, a space before each, like snprintf(). */
	int (*tell)(char *text, size_t size);
	const struct rings_files *files; /* NULL: rings do no file I/O */
	/*
	 * Without write-back, it finds the end of the file by itself for each request that appends.
	 * So the kernel must not send the parts of a long write at once, which it does of direct
	 * I/O.
	 */
	bool finds_end;
	/*
	 * Calls visit for each file of which the kernel's cache may hold what was written, while
	 * requests are served. Meanwhile, a lookup for which session_looks_up() finds that file.
	 * NULL: there is none. False: out of memory, so that some may be left out.
	 */
	bool (*each_written)(session_visit *visit);
};

/* The one session of this process. Set up by session_run(), constant once requests come. */
struct session {
	struct fuse_session *fuse;
	const struct session_options *options;
	/* As asked for; what the kernel does not have is turned off before the first request. */
	bool writeback;
	bool splice;
	double timeout; /* seconds that the kernel may cache names and attributes; 0: not at all */

	bool own_rings;	   /* io_uring is served by rings.c, not by libfuse */
	atomic_bool rings; /* a request came through io_uring */
};
extern struct session session;

/* What the program is called, defined by it. */
extern const char session_name[];

/* One line for the user, like printf, without newline: stderr, or syslog in the background. */
void session_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whether options.mount_point is a directory, by an absolute path from then on; tells when not. */
bool session_check_mount_point(struct session_options *options);

/* Asks for a capability if the kernel has it, and says whether. */
bool session_want(struct fuse_conn_info *conn, unsigned long capability);

/* on when granted, off when not asked for; otherwise the kernel or libfuse refused. */
const char *session_state(bool asked, bool on);

/*
 * RWF_DSYNC, RWF_SYNC or 0 for the write fi. The flags are those of this write: where it does not
 * go to the cache, the kernel leaves it to the program to make it durable, and the program's own
 * descriptor has only what the file was opened with.
 */
int session_write_flags(const struct fuse_file_info *fi);

/*
 * Whether direct I/O of a file that is opened for it may go past the kernel's code for cached files
 * (FOPEN_DIRECT_IO), without which direct writes to one file wait for each other. With write-back,
 * the kernel alone knows when a file was modified and where it ends, and only that code looks:
 * past it, a read of a hole behind which pages are dirty meets the end of the server's file.
 */
bool session_direct_io(const struct fuse_file_info *fi);

/*
 * The kernel takes what an answer to a read lacks for zeroes, or for what lies past the end of the
 * file. So a read that an error has ended early must be answered with the error, and what has come
 * by then is of no use. Reads end in the middle of a page only where the file ends.
 */
#define SESSION_PAGE 4096
static inline bool session_read_may_go_on(size_t size, off_t offset, size_t length)
{
	return length < size && ((size_t)offset + length) % SESSION_PAGE == 0;
}

/* Goes on to read, of which length bytes have come. All, or up to the file's end; negative errno.
 */
ssize_t session_read(int fd, char *memory, size_t size, off_t offset, size_t length);

/*
 * What to answer for error, an errno that the source has given, or 0. The kernel takes no answer
 * with one above 511, such as ENOTSUPP, which some file systems give to programs, too, and the
 * caller would wait forever: it is EIO. ENOSYS would be taken for what this program lacks, and turn
 * the operation off for the whole mount: fsync(2) would do nothing, and open(2) not come here.
 */
int session_error(int error);

/* Answers with session_error(error). Returns what fuse_reply_err() does. */
int session_reply_error(fuse_req_t req, int error);

/* Answers a lookup of a name that does not exist, which the kernel may remember like a name. */
void session_reply_absent(fuse_req_t req);
/* Answers forget_multi: calls forget for each of them. */
void session_forget_multi(fuse_req_t req, size_t count, const struct fuse_forget_data *forgets,
	void (*forget)(fuse_ino_t ino, uint64_t times));

/*
 * Whether this lookup in the root is for the file that each_written() is at: a file may be found by
 * no path that is known, and be at another one in the next moment.
 */
bool session_looks_up(fuse_req_t req, const char *name);

/* For the operation statfs: the first to come, which tells how requests come. */
void session_note_statfs(fuse_req_t req);

/*
 * Mounts and serves until it is unmounted or gets a signal, in the background unless options say
 * foreground.
 * options have been checked; source is what mount(8) shows. Returns the exit status: in the parent
 * when the file system is up, and in the process that serves it when that ends.
 */
int session_run(struct fuse_args *args, const struct session_options *options, const char *source,
	const struct session_program *program);

#endif
