/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/nbd.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "buse/serve.h"

/* 1: all of it; 0: the other end has hung up; or negative errno. */
static int receive(int socket, void *buffer, size_t length)
{
	size_t done = 0;

	while (done < length) {
		ssize_t n = recv(socket, (char *)buffer + done, length - done, MSG_WAITALL);

		if (n > 0)
			done += (size_t)n;
		else if (n == 0 || errno == ECONNRESET) /* with answers that it has not read */
			return 0;
		else if (errno != EINTR)
			return -errno;
	}
	return 1;
}

/* 0 or negative errno. The vector is used up. */
static int send_all(int socket, struct iovec *iov, size_t count)
{
	while (count) {
		struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};
		ssize_t n = sendmsg(socket, &message, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		while (count && (size_t)n >= iov->iov_len) {
			n -= (ssize_t)iov->iov_len;
			iov++;
			count--;
		}
		if (count) {
			iov->iov_base = (char *)iov->iov_base + n;
			iov->iov_len -= (size_t)n;
		}
	}
	return 0;
}

/* Has the device do it. 0 or negative errno. */
static int perform(
	struct backend *device, uint32_t type, uint64_t offset, uint32_t length, void *buffer)
{
	struct iovec iov = {buffer, length};
	unsigned fua = type & SERVE_FUA ? BACKEND_FUA : 0;

	switch (type & 0xffff) {
	case SERVE_READ:
		return backend_readv(device, &iov, 1, offset);
	case SERVE_WRITE:
		return backend_writev(device, &iov, 1, offset, fua);
	case SERVE_FLUSH:
		return backend_flush(device);
	case SERVE_TRIM:
		return backend_trim(device, offset, length, fua);
	case SERVE_WRITE_ZEROES:
		return backend_fill(device, "", 1, offset, length,
			fua | (type & SERVE_NO_HOLE ? 0 : BACKEND_MAY_TRIM));
	}
	return -EINVAL;
}

/* The errors that NBD knows have Linux's numbers. */
static uint32_t wire_error(int r)
{
	switch (-r) {
	case 0:
	case EPERM:
	case EIO:
	case ENOMEM:
	case EINVAL:
	case ENOSPC:
	case EOPNOTSUPP:
		return (uint32_t)-r;
	case EROFS:
		return EPERM;
	}
	return EIO;
}

/* What goes on until the end. */
struct session {
	struct backend *device;
	int socket;
	void *buffer;
	bool deaf; /* the driver takes no more answers, but may have said goodbye */
	int result;
};

static bool end(struct session *s, int result)
{
	s->result = result;
	return false;
}

/* One request. False: it was the last one. */
static bool serve_one(struct session *s)
{
	struct serve_request request;
	struct serve_reply reply = {.magic = htobe32(NBD_REPLY_MAGIC)};
	uint32_t type, length;
	bool reads;
	int r = receive(s->socket, &request, sizeof request);

	if (r <= 0)
		return end(s, r ? r : SERVE_HUNG_UP);
	type = be32toh(request.type);
	length = be32toh(request.length);
	if (be32toh(request.magic) != NBD_REQUEST_MAGIC)
		return end(s, -EPROTO);
	if ((type & 0xffff) == SERVE_DISCONNECT)
		return end(s, SERVE_GOODBYE);
	reads = (type & 0xffff) == SERVE_READ;
	if (reads || (type & 0xffff) == SERVE_WRITE) {
		if (length > SERVE_MAX_TRANSFER)
			return end(s, -EMSGSIZE);
		r = reads ? 1 : receive(s->socket, s->buffer, length);
		if (r <= 0)
			return end(s, r ? r : SERVE_HUNG_UP);
	}
	/* The kernel has failed it; the next server of the device may have begun. */
	if (s->deaf)
		return true;
	r = perform(s->device, type, be64toh(request.offset), length, s->buffer);
	reply.error = htobe32(wire_error(r));
	reply.cookie = request.cookie;

	struct iovec iov[] = {{&reply, sizeof reply}, {s->buffer, length}};

	r = send_all(s->socket, iov, reads && !reply.error ? 2 : 1);
	s->deaf = r == -EPIPE;
	return r == 0 || s->deaf || end(s, r);
}

int serve(struct backend *device, int socket)
{
	/* Page-aligned, as O_DIRECT needs; pages come with the first request that needs them. */
	void *buffer = mmap(NULL, SERVE_MAX_TRANSFER, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct session s = {device, socket, buffer, .result = -errno};

	if (buffer != MAP_FAILED) {
		while (serve_one(&s))
			;
		munmap(buffer, SERVE_MAX_TRANSFER);
	}
	if (s.result < 0)
		backend_error(backend_host(device), "the connection to the kernel failed: %s",
			strerror(-s.result));
	return s.result;
}
