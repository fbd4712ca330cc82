/* SPDX-License-Identifier: BSD-3-Clause */
/* The options that every file system here has. */
#ifndef USERBLK_FUSE_SESSION_OPTIONS_H
#define USERBLK_FUSE_SESSION_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "library.h"

/* The program's struct of options begins with this one. Zeroed, and freed by the functions below.
 */
struct session_options {
	char *mount_point;
	char *max_threads;
	char *timeout;
	char *max_write;
	char *max_read;
	int no_writeback, nocache, nosplice, clone_fd, io_uring;
	int foreground, debug, help, version;
	/* What they say. */
	unsigned thread_count;
	double timeout_seconds;
	unsigned write_limit, read_limit; /* bytes; 0: the kernel's */
};

/* Entries of a table for fuse_opt_parse(): each as --NAME, and as -o NAME for mount(8) and
 * fstab(5).
 */
#define OPTION_FLAG(type, name, member)                                                            \
	{"--" name, offsetof(type, member), 1},                                                    \
	{                                                                                          \
		name, offsetof(type, member), 1                                                    \
	}
#define OPTION_VALUE(type, name, member)                                                           \
	{"--" name "=%s", offsetof(type, member), 0},                                              \
	{                                                                                          \
		name "=%s", offsetof(type, member), 0                                              \
	}

/* Those of struct session_options. */
#define SESSION_OPTION_TABLE                                                                       \
	OPTION_FLAG(struct session_options, "no-writeback", no_writeback),                         \
		OPTION_FLAG(struct session_options, "nocache", nocache),                           \
		OPTION_FLAG(struct session_options, "nosplice", nosplice),                         \
		OPTION_FLAG(struct session_options, "clone-fd", clone_fd),                         \
		OPTION_FLAG(struct session_options, "io-uring", io_uring),                         \
		OPTION_VALUE(struct session_options, "max-threads", max_threads),                  \
		OPTION_VALUE(struct session_options, "timeout", timeout),                          \
		OPTION_VALUE(struct session_options, "max-write", max_write),                      \
		{"max_read=%s", offsetof(struct session_options, max_read), 0},                    \
		{"-f", offsetof(struct session_options, foreground), 1},                           \
		{"--foreground", offsetof(struct session_options, foreground), 1},                 \
		{"-d", offsetof(struct session_options, debug), 1},                                \
		{"--debug", offsetof(struct session_options, debug), 1},                           \
		{"-h", offsetof(struct session_options, help), 1},                                 \
		{"--help", offsetof(struct session_options, help), 1},                             \
		{"-V", offsetof(struct session_options, version), 1},                              \
	{                                                                                          \
		"--version", offsetof(struct session_options, version), 1                          \
	}

/*
 * What to do with an argument that the table does not have: as a fuse_opt_proc_t. What fstab(5) has
 * for others than the file system is dropped. One without dash is for the first of operands that
 * has no value yet; NULL is their end. names: all of them, for a message.
 */
int session_option_rest(const char *arg, int key, char **const operands[], const char *names);

/* Looks at the values and fills in what they say. False: a mistake, which has been reported. */
bool session_options_check(struct session_options *o);

/* Whether libfuse's way to limit writes would make reads smaller, too, so that its custom I/O is
 * needed. */
bool session_limits_reads(const struct session_options *o);

/* --help with the program's own lines, which are before and after those of the options here. */
void session_print_help(const char *before, const char *own);

/* --version. */
void session_print_version(void);

void session_options_free(struct session_options *o);

#endif
