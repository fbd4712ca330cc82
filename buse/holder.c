/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/disk_nodes.h"
#include "buse/child.h"
#include "buse/holder.h"

/* How often an order is given to a process that is killed. */
#define ATTEMPTS 2

struct order {
	bool sync; /* false: only open it */
	char path[256];
};

/* ---- the process ----------------------------------------------------------------- */

static int sync_nodes(const char *path, int whole)
{
	int r = 0, node;
	glob_t nodes;

	if (disk_nodes(path, 0, &nodes))
		for (size_t i = 0; i < nodes.gl_pathc; i++) {
			node = open(nodes.gl_pathv[i], O_RDONLY | O_CLOEXEC);
			/* The kernel has written back a partition that it has dropped; in a
			 * static /dev its node stays. */
			if (node < 0 && (errno == ENXIO || errno == ENOENT))
				continue;
			if (node < 0 || fsync(node) < 0)
				r = -errno;
			if (node >= 0)
				close(node);
		}
	globfree(&nodes);
	/* Last: it has been open from the beginning, and so has seen all errors. */
	return fsync(whole) < 0 ? -errno : r;
}

static int carry_out(const struct order *order, int *node)
{
	if (*node < 0)
		*node = open(order->path, O_RDONLY | O_CLOEXEC);
	if (*node < 0)
		return -errno;
	return order->sync ? sync_nodes(order->path, *node) : 0;
}

/* The signals that end a server are blocked, which it has done. */
static _Noreturn void hold(int control)
{
	struct order order;
	int node = -1, r;

	child_settle("buse-holder", control, -1);
	while (recv(control, &order, sizeof order, 0) == sizeof order) {
		r = carry_out(&order, &node);
		send(control, &r, sizeof r, MSG_NOSIGNAL);
	}
	_exit(0);
}

/* ---- in the server ----------------------------------------------------------------- */

int holder_start(struct holder *h)
{
	int control[2], r;

	h->pid = 0;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) < 0)
		return -errno;
	h->pid = fork();
	if (h->pid == 0)
		hold(control[1]);
	r = h->pid < 0 ? -errno : 0;
	close(control[1]);
	h->control = control[0];
	if (r < 0) {
		h->pid = 0;
		close(h->control);
	}
	return r;
}

static int ask(struct holder *h, bool sync, const char *path)
{
	struct order order = {.sync = sync};
	int r;

	snprintf(order.path, sizeof order.path, "%s", path);
	for (int i = 0; i < ATTEMPTS; i++) {
		r = h->pid ? 0 : holder_start(h);
		if (r < 0)
			return r;
		if (send(h->control, &order, sizeof order, MSG_NOSIGNAL) == sizeof order &&
			recv(h->control, &r, sizeof r, 0) == sizeof r)
			return r;
		holder_end(h);
	}
	return -ECHILD;
}

int holder_open(struct holder *h, const char *path)
{
	return ask(h, false, path);
}

int holder_sync(struct holder *h, const char *path)
{
	return ask(h, true, path);
}

void holder_end(struct holder *h)
{
	if (!h->pid)
		return;
	close(h->control);
	while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR)
		;
	h->pid = 0;
}
