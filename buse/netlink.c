/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <linux/genetlink.h>
#include <linux/nbd-netlink.h>
#include <netlink/errno.h>
#include <netlink/genl/ctrl.h>
#include <netlink/genl/genl.h>
#include <netlink/socket.h>
#include <string.h>

#include "buse/netlink.h"
#include "buse/sysfs.h"

/* Newer than some of the kernel's headers; kernels that do not know it ignore it. */
#define ATTR_BACKEND_IDENTIFIER 10

#define NO_ANSWER 1

int netlink_open(struct netlink *netlink)
{
	int r = 0;

	netlink->socket = nl_socket_alloc();
	if (!netlink->socket)
		return -ENOMEM;
	if (genl_connect(netlink->socket) < 0)
		r = -EPROTONOSUPPORT;
	if (r == 0)
		netlink->family = genl_ctrl_resolve(netlink->socket, NBD_GENL_FAMILY_NAME);
	if (r == 0 && netlink->family < 0)
		r = netlink->family == -NLE_OBJ_NOTFOUND ? -ENODEV : -EIO;
	if (r < 0)
		netlink_close(netlink);
	return r;
}

void netlink_close(struct netlink *netlink)
{
	nl_socket_free(netlink->socket);
	netlink->socket = NULL;
}

static int take_index(struct nl_msg *message, void *opaque)
{
	struct nlattr *found = nlmsg_find_attr(nlmsg_hdr(message), GENL_HDRLEN, NBD_ATTR_INDEX);

	if (found)
		*(int *)opaque = (int)nla_get_u32(found);
	return NL_OK;
}

static int take_success(struct nl_msg *message, void *opaque)
{
	(void)message;
	*(int *)opaque = 0;
	return NL_STOP;
}

/* The library's numbers of errors are fewer than the kernel's. */
static int take_error(struct sockaddr_nl *from, struct nlmsgerr *error, void *opaque)
{
	(void)from;
	*(int *)opaque = error->error;
	return NL_STOP;
}

/* Sends a message, which it frees, and waits for the answer: 0 or negative errno. index: of a disk
 * that it names. */
static int ask(struct netlink *netlink, struct nl_msg *message, int *index)
{
	int answer = NO_ANSWER, r = nl_send_auto(netlink->socket, message);

	nlmsg_free(message);
	nl_socket_modify_cb(netlink->socket, NL_CB_VALID, NL_CB_CUSTOM, take_index, index);
	nl_socket_modify_cb(netlink->socket, NL_CB_ACK, NL_CB_CUSTOM, take_success, &answer);
	nl_socket_modify_err_cb(netlink->socket, NL_CB_CUSTOM, take_error, &answer);
	while (r >= 0 && answer == NO_ANSWER)
		r = nl_recvmsgs_default(netlink->socket);
	return answer == NO_ANSWER ? -EIO : answer;
}

/* NULL: no memory. */
static struct nl_msg *begin(const struct netlink *netlink, uint8_t command)
{
	struct nl_msg *message = nlmsg_alloc();

	if (message && !genlmsg_put(message, NL_AUTO_PORT, NL_AUTO_SEQ, netlink->family, 0, 0,
			       command, NBD_GENL_VERSION)) {
		nlmsg_free(message);
		return NULL;
	}
	return message;
}

static bool put_socket(struct nl_msg *message, int socket)
{
	struct nlattr *sockets = nla_nest_start(message, NBD_ATTR_SOCKETS);
	struct nlattr *item = sockets ? nla_nest_start(message, NBD_SOCK_ITEM) : NULL;

	if (!item || nla_put_u32(message, NBD_SOCK_FD, (uint32_t)socket) < 0)
		return false;
	nla_nest_end(message, item);
	nla_nest_end(message, sockets);
	return true;
}

int netlink_connect(struct netlink *netlink, const struct netlink_disk *disk, int socket)
{
	struct nl_msg *message = begin(netlink, NBD_CMD_CONNECT);
	int index = disk->index, r;

	if (!message)
		return -ENOMEM;
	if ((index >= 0 && nla_put_u32(message, NBD_ATTR_INDEX, (uint32_t)index) < 0) ||
		nla_put_u64(message, NBD_ATTR_SIZE_BYTES, disk->size) < 0 ||
		nla_put_u64(message, NBD_ATTR_BLOCK_SIZE_BYTES, disk->block) < 0 ||
		nla_put_u64(message, NBD_ATTR_SERVER_FLAGS, disk->flags) < 0 ||
		/* Also 0: the node may have had one before. */
		nla_put_u64(message, NBD_ATTR_TIMEOUT, disk->timeout) < 0 ||
		nla_put_string(message, ATTR_BACKEND_IDENTIFIER, disk->identity) < 0 ||
		!put_socket(message, socket)) {
		nlmsg_free(message);
		return -ENOMEM;
	}
	r = ask(netlink, message, &index);
	return r < 0 ? r : index;
}

int netlink_disconnect(struct netlink *netlink, int index)
{
	struct nl_msg *message = begin(netlink, NBD_CMD_DISCONNECT);

	if (!message)
		return -ENOMEM;
	if (nla_put_u32(message, NBD_ATTR_INDEX, (uint32_t)index) < 0) {
		nlmsg_free(message);
		return -ENOMEM;
	}
	return ask(netlink, message, &index);
}

bool netlink_is(int index, const char *identity)
{
	char of[sizeof((struct netlink_disk *)0)->identity];

	return sysfs_text(index, "backend", of, sizeof of) && strcmp(of, identity) == 0;
}
