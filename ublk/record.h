/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a disk was added with, for those who come after its server: a file per
 * disk. It counts only with the cookie that the kernel keeps for the disk, so
 * that one that was left behind is never taken for another disk's.
 */
#ifndef USERBLK_UBLK_RECORD_H
#define USERBLK_UBLK_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#define UBLK_RECORD_DIRECTORY "/run/userblk-ublk"

/*
 * The cookies of this program's disks are not less. Other programs keep a few flags there, the same
 * for all of their disks: such a cookie tells nobody which disk it is.
 */
#define UBLK_FIRST_COOKIE (1ull << 32)

struct ublk_record {
	char *directory; /* in which they were given */
	char **argv;	 /* of the command line; ends with NULL */
	int count;
	char *text; /* what the others point into */
};

/* directory NULL: this one. 0 or negative errno: what was there, if anything, stays. */
int ublk_record_write(uint32_t id, uint64_t cookie, const char *directory, char *const *argv);
/* -ENOENT: there is none for that cookie, which is UBLK_FIRST_COOKIE at least. */
int ublk_record_read(uint32_t id, uint64_t cookie, struct ublk_record *record);
void ublk_record_free(struct ublk_record *record);
/* Only if it is that cookie's. */
void ublk_record_remove(uint32_t id, uint64_t cookie);

/* For the program that removes the disk: its server could not keep all that was acknowledged. */
void ublk_record_leave_failure(uint32_t id, uint64_t cookie);
/* Was that left? It no longer is. */
bool ublk_record_take_failure(uint32_t id, uint64_t cookie);

#endif
