/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The names and attributes of a file system in memory, whose files have a size and no data.
 *
 * The tree locks itself. A node lives as long as it has a name or the kernel knows it; its address
 * is its number with the kernel. Functions return 0, or a negative errno.
 */
#ifndef USERBLK_NULLFS_NAMES_H
#define USERBLK_NULLFS_NAMES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct node;

/* Makes the root, which the user of this process owns. */
int names_init(void);
void names_destroy(void);

struct node *names_root(void);

/* The owner of a new node, and its kind. */
struct maker {
	uid_t uid;
	gid_t gid;
	mode_t mode; /* with its type: a directory or a regular file */
	off_t size;
};

/* Makes a node. With known, the kernel knows it once. */
int names_make(struct node *parent, const char *name, const struct maker *maker, bool known,
	struct node **node, struct stat *st);

/* Finds one; the kernel knows it once more. */
int names_find(struct node *parent, const char *name, struct node **node, struct stat *st);

/* The kernel forgets it, times over. */
void names_forget(struct node *node, uint64_t times);

/* Removes a name: of a directory, which must be empty, or of anything else. */
int names_remove(struct node *parent, const char *name, bool directory);

/* As rename(2); with keep, the new name must not exist. */
int names_rename(struct node *parent, const char *name, struct node *new_parent,
	const char *new_name, bool keep);

void names_stat(struct node *node, struct stat *st);

/* Sets what the FUSE_SET_ATTR_* in which say. */
void names_set(struct node *node, const struct stat *wanted, int which, struct stat *st);

/* A write that ends there. */
void names_grow(struct node *node, off_t end);

off_t names_size(const struct node *node);

/*
 * The name at place of a directory or after it: copied to name, of NAME_MAX + 1 bytes. Returns the
 * place after it, 0 at the end. A name that is there all the time is seen once.
 */
off_t names_list(struct node *directory, off_t place, char *name, struct stat *st);

/* How many nodes there are. */
uint64_t names_count(void);

#endif
