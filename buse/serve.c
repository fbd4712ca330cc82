/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/nbd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "buse/serve.h"

/* 1: all of it; 0: the other end hung up before the first byte; or negative errno. */
static int receive(int socket, void *buffer, size_t length)
{
	size_t done = 0;

	while (done < length) {
		ssize_t n = recv(socket, (char *)buffer + done, length - done, MSG_WAITALL);

		if (n == 0)
			return done ? -ECONNRESET : 0;
		if (n > 0)
			done += (size_t)n;
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

/* One request. 1: go on; 0: the end; or negative errno. */
static int serve_one(struct backend *device, int socket, void *buffer)
{
	struct serve_request request;
	struct serve_reply reply = {.magic = htobe32(NBD_REPLY_MAGIC)};
	uint32_t type, length;
	bool reads;
	int r = receive(socket, &request, sizeof request);

	if (r <= 0)
		return r;
	type = be32toh(request.type);
	length = be32toh(request.length);
	if (be32toh(request.magic) != NBD_REQUEST_MAGIC)
		return -EPROTO;
	if ((type & 0xffff) == SERVE_DISCONNECT)
		return 0;
	reads = (type & 0xffff) == SERVE_READ;
	if (reads || (type & 0xffff) == SERVE_WRITE) {
		if (length > SERVE_MAX_TRANSFER)
			return -EMSGSIZE;
		r = reads ? 1 : receive(socket, buffer, length);
		if (r <= 0)
			return r ? r : -ECONNRESET;
	}
	r = perform(device, type, be64toh(request.offset), length, buffer);
	reply.error = htobe32(wire_error(r));
	reply.cookie = request.cookie;

	struct iovec iov[] = {{&reply, sizeof reply}, {buffer, length}};

	r = send_all(socket, iov, reads && !reply.error ? 2 : 1);
	return r < 0 ? r : 1;
}

int serve(struct backend *device, int socket)
{
	/* Page-aligned, as O_DIRECT needs; pages come with the first request that needs them. */
	void *buffer = mmap(NULL, SERVE_MAX_TRANSFER, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int r = buffer == MAP_FAILED ? -errno : 1;

	while (r > 0)
		r = serve_one(device, socket, buffer);
	if (buffer != MAP_FAILED)
		munmap(buffer, SERVE_MAX_TRANSFER);
	if (r < 0)
		backend_error(backend_host(device), "the connection to the kernel failed: %s",
			strerror(-r));
	return r;
}
