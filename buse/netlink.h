/* SPDX-License-Identifier: BSD-3-Clause */
/* Disks of Linux's nbd driver by generic netlink: nobody has to stay in the kernel for them. */
#ifndef USERBLK_BUSE_NETLINK_H
#define USERBLK_BUSE_NETLINK_H

#include <stdbool.h>
#include <stdint.h>

struct nl_sock;

struct netlink {
	struct nl_sock *socket; /* NULL: not open */
	int family;
};

/* A disk as it is asked for. */
struct netlink_disk {
	int index;	   /* N of /dev/nbdN; negative: the first that nobody uses */
	uint32_t block;	   /* bytes */
	uint64_t size;	   /* bytes */
	uint64_t flags;	   /* NBD_FLAG_ of the server */
	uint64_t timeout;  /* s; 0: none */
	char identity[64]; /* shown as "backend" in sysfs, since Linux 5.14 */
};

/* 0 or negative errno; -ENODEV: the kernel has no driver, not even one that it could load. */
int netlink_open(struct netlink *netlink);
/* The number of the new disk, whose requests come from now on to the other end of the socket;
 * or negative errno, -EBUSY: somebody has that disk connected, or only open. */
int netlink_connect(struct netlink *netlink, const struct netlink_disk *disk, int socket);
/* Requests to the disk fail from now on, and it goes with its last user. 0 or negative errno; also
 * 0 if it was not connected. */
int netlink_disconnect(struct netlink *netlink, int index);
/* Does the kernel show that the disk of this number has this identity? */
bool netlink_is(int index, const char *identity);
void netlink_close(struct netlink *netlink);

#endif
