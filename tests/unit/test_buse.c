/* SPDX-License-Identifier: BSD-3-Clause */
/* The sequential server over a socket pair, with this file in the place of the kernel's driver. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/nbd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "buse/guard.h"
#include "buse/holder.h"
#include "buse/serve.h"
#include "programs/process_state.h"
#include "tests/unit/support.h"

#define MIB  (1u << 20)
#define SIZE (4 * MIB)

struct connection {
	struct device device;
	pthread_t thread;
	int sockets[2]; /* ours, the server's */
	int result;
};

static void *run_server(void *opaque)
{
	struct connection *c = opaque;

	c->result = serve(c->device.backend, c->sockets[1]);
	shutdown(c->sockets[1], SHUT_RDWR);
	return NULL;
}

static void begin(struct connection *c, const char *parameters)
{
	device_open(&c->device, &passthrough_backend, "%s;file=%s", parameters,
		scratch_file("disk", SIZE));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, c->sockets), 0);
	assert_int_equal(pthread_create(&c->thread, NULL, run_server, c), 0);
}

/* What serve() returned. */
static int end(struct connection *c)
{
	pthread_join(c->thread, NULL);
	close(c->sockets[0]);
	close(c->sockets[1]);
	device_close(&c->device);
	return c->result;
}

static void put(struct connection *c, const void *bytes, size_t length)
{
	for (size_t done = 0; done < length;) {
		ssize_t n = send(
			c->sockets[0], (const char *)bytes + done, length - done, MSG_NOSIGNAL);

		assert_true(n > 0);
		done += (size_t)n;
	}
}

static void get(struct connection *c, void *bytes, size_t length)
{
	assert_int_equal(recv(c->sockets[0], bytes, length, MSG_WAITALL), length);
}

static void ask(struct connection *c, uint32_t type, uint64_t offset, uint32_t length)
{
	struct serve_request request = {
		.magic = htobe32(NBD_REQUEST_MAGIC),
		.type = htobe32(type),
		.cookie = 0x1122334455667788 + offset,
		.offset = htobe64(offset),
		.length = htobe32(length),
	};

	put(c, &request, sizeof request);
}

/* The error in the answer to the request for offset. */
static uint32_t answer(struct connection *c, uint64_t offset)
{
	struct serve_reply reply;

	get(c, &reply, sizeof reply);
	assert_int_equal(be32toh(reply.magic), NBD_REPLY_MAGIC);
	assert_true(reply.cookie == 0x1122334455667788 + offset);
	return be32toh(reply.error);
}

static void test_layout_is_that_of_the_protocol(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct serve_request), 28);
	assert_int_equal(sizeof(struct serve_reply), 16);
	assert_int_equal(sizeof(struct serve_request), sizeof(struct nbd_request));
	assert_int_equal(sizeof(struct serve_reply), sizeof(struct nbd_reply));
}

static void test_data_comes_back(void **state)
{
	static char written[MIB], read[MIB];
	struct connection c;

	(void)state;
	begin(&c, "direct=off");
	for (size_t i = 0; i < sizeof written; i++)
		written[i] = (char)(i * 7 + i / 4096);
	/* Three are under way before the first answer is taken, as the kernel does it. */
	ask(&c, SERVE_WRITE, 4096, 4096);
	put(&c, written, 4096);
	ask(&c, SERVE_WRITE | SERVE_FUA, 8192, 512);
	put(&c, written + 4096, 512);
	ask(&c, SERVE_READ, 4096, 4608);
	assert_int_equal(answer(&c, 4096), 0);
	assert_int_equal(answer(&c, 8192), 0);
	assert_int_equal(answer(&c, 4096), 0);
	get(&c, read, 4608);
	assert_memory_equal(read, written, 4608);
	/* More than the socket holds. */
	ask(&c, SERVE_WRITE, MIB, MIB);
	put(&c, written, MIB);
	assert_int_equal(answer(&c, MIB), 0);
	ask(&c, SERVE_READ, MIB, MIB);
	assert_int_equal(answer(&c, MIB), 0);
	get(&c, read, MIB);
	assert_memory_equal(read, written, MIB);
	ask(&c, SERVE_FLUSH, 0, 0);
	assert_int_equal(answer(&c, 0), 0);
	ask(&c, SERVE_DISCONNECT, 0, 0);
	assert_int_equal(end(&c), SERVE_GOODBYE);
}

static bool is_zero(const char *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i])
			return false;
	return true;
}

static void test_zeroes_and_trim(void **state)
{
	static char data[2 * MIB];
	struct connection c;

	(void)state;
	begin(&c, "direct=off");
	for (uint32_t flags = 0; flags <= SERVE_NO_HOLE; flags += SERVE_NO_HOLE) {
		memset(data, 'x', sizeof data);
		ask(&c, SERVE_WRITE, 0, sizeof data);
		put(&c, data, sizeof data);
		assert_int_equal(answer(&c, 0), 0);
		ask(&c, SERVE_WRITE_ZEROES | flags, 512, sizeof data - 1024);
		assert_int_equal(answer(&c, 512), 0);
		ask(&c, SERVE_READ, 0, sizeof data);
		assert_int_equal(answer(&c, 0), 0);
		get(&c, data, sizeof data);
		assert_int_equal(data[511], 'x');
		assert_true(is_zero(data + 512, sizeof data - 1024));
		assert_int_equal(data[sizeof data - 512], 'x');
	}
	ask(&c, SERVE_TRIM, 0, MIB);
	assert_int_equal(answer(&c, 0), 0);
	ask(&c, SERVE_READ, 0, MIB);
	assert_int_equal(answer(&c, 0), 0);
	get(&c, data, MIB);
	assert_true(is_zero(data, MIB));
	close(c.sockets[0]); /* hanging up is an end like another */
	c.sockets[0] = -1;
	assert_int_equal(end(&c), SERVE_HUNG_UP);
}

static void test_errors_are_answered(void **state)
{
	char block[512] = {1};
	struct connection c;

	(void)state;
	begin(&c, "direct=off;readonly=on");
	ask(&c, SERVE_WRITE, 0, sizeof block);
	put(&c, block, sizeof block);
	assert_int_equal(answer(&c, 0), EPERM);
	ask(&c, SERVE_READ, SIZE, sizeof block); /* no data follows */
	assert_int_equal(answer(&c, SIZE), EINVAL);
	ask(&c, 5, 0, 0);
	assert_int_equal(answer(&c, 0), EINVAL);
	ask(&c, SERVE_READ, 0, sizeof block);
	assert_int_equal(answer(&c, 0), 0);
	get(&c, block, sizeof block);
	assert_true(is_zero(block, sizeof block));
	ask(&c, SERVE_DISCONNECT, 0, 0);
	assert_int_equal(end(&c), SERVE_GOODBYE);
}

static void test_what_is_no_request_ends_it(void **state)
{
	struct serve_request request = {.magic = htobe32(NBD_REPLY_MAGIC)};
	struct connection c;

	(void)state;
	begin(&c, "direct=off");
	put(&c, &request, sizeof request);
	assert_int_equal(end(&c), -EPROTO);

	begin(&c, "direct=off");
	ask(&c, SERVE_WRITE, 0, SERVE_MAX_TRANSFER + 512);
	assert_int_equal(end(&c), -EMSGSIZE);

	begin(&c, "direct=off");
	ask(&c, SERVE_WRITE, 0, 512);
	put(&c, &request, sizeof request);
	shutdown(c.sockets[0], SHUT_WR);
	assert_int_equal(end(&c), SERVE_HUNG_UP);
}

/* The kernel has dropped the partition, so that nothing is kept for it any more; its name is left.
 */
static void test_a_partition_that_is_gone_loses_nothing(void **state)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "diskp1"};
	int socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
	const char *disk = scratch_file("disk", SIZE);
	struct holder holder = {0};
	char directory[512];

	(void)state;
	assert_true(socket_fd >= 0);
	assert_int_equal(holder_start(&holder), 0);
	assert_non_null(getcwd(directory, sizeof directory));
	assert_int_equal(chdir(scratch()), 0);
	/* open(2) of it fails with ENXIO, as of a device that is not there. */
	assert_int_equal(bind(socket_fd, (struct sockaddr *)&name, sizeof name), 0);
	assert_int_equal(holder_sync(&holder, disk), 0);
	assert_int_equal(unlink("diskp1"), 0);
	/* One that is there. */
	assert_int_equal(symlink("diskp1", "diskp1"), 0);
	assert_int_equal(holder_sync(&holder, disk), -ELOOP);
	assert_int_equal(unlink("diskp1"), 0);
	assert_int_equal(chdir(directory), 0);
	holder_end(&holder);
	close(socket_fd);
}

static void test_who_holds_a_disk_is_replaced(void **state)
{
	const char *disk = scratch_file("disk", SIZE);
	struct holder holder = {0};
	pid_t before;

	(void)state;
	assert_int_equal(holder_start(&holder), 0);
	assert_int_equal(holder_open(&holder, scratch_path("missing")), -ENOENT);
	assert_int_equal(holder_open(&holder, disk), 0);
	before = holder.pid;
	assert_int_equal(holder_open(&holder, disk), 0);
	assert_int_equal(holder.pid, before);
	assert_int_equal(kill(before, SIGKILL), 0);
	assert_int_equal(holder_sync(&holder, disk), 0);
	assert_int_not_equal(holder.pid, before);
	assert_int_equal(kill(before, 0), -1);
	holder_end(&holder);
	holder_end(&holder);
}

/* A process that has ended; it is waited for. */
static int dead(void)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	return pid;
}

static void *stay(void *opaque)
{
	(void)opaque;
	for (;;)
		pause();
	return NULL;
}

/* A process whose first thread has ended, and another one not. */
static pid_t headless(void)
{
	pthread_t thread;
	pid_t pid = fork();

	if (pid == 0) {
		alarm(60);
		if (pthread_create(&thread, NULL, stay, NULL) != 0)
			_exit(1);
		pthread_exit(NULL);
	}
	for (int i = 0; i < 1000 && process_state(pid) != 'Z'; i++)
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	assert_int_equal(process_state(pid), 'Z');
	return pid;
}

static void test_whose_disk_it_is(void **state)
{
	struct guard guard = {.pid = getppid()};
	struct netlink_disk disk;
	char *text = disk.identity, other[64];
	unsigned long space;
	int killed = dead();
	pid_t zombie = fork(), hanging;

	(void)state;
	if (zombie == 0)
		_exit(0);
	assert_int_equal(waitid(P_PID, (id_t)zombie, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
	guard_identity(&guard, text, sizeof disk.identity);
	assert_int_equal(guard_owner(text), GUARD_SERVED);
	assert_int_equal(sscanf(text, "userblk-buse %*d %*d %lu", &space), 1);
	snprintf(other, sizeof other, "userblk-buse %d %d %lu", killed, (int)getpid(), space);
	assert_int_equal(guard_owner(other), GUARD_ENDING);
	snprintf(other, sizeof other, "userblk-buse %d %d %lu", killed, killed, space);
	assert_int_equal(guard_owner(other), GUARD_LEFT);
	snprintf(other, sizeof other, "userblk-buse %d %d %lu", (int)zombie, killed, space);
	assert_int_equal(guard_owner(other), GUARD_LEFT);
	/* Its files are open. */
	hanging = headless();
	snprintf(other, sizeof other, "userblk-buse %d %d %lu", (int)hanging, killed, space);
	assert_int_equal(guard_owner(other), GUARD_SERVED);
	assert_int_equal(kill(hanging, SIGKILL), 0);
	assert_int_equal(waitpid(hanging, NULL, 0), hanging);
	/* Where numbers are those of other processes; and what others have connected. */
	snprintf(other, sizeof other, "userblk-buse %d %d %lu", killed, killed, space + 1);
	assert_int_equal(guard_owner(other), GUARD_STRANGER);
	assert_int_equal(guard_owner(""), GUARD_STRANGER);
	assert_int_equal(guard_owner("/srv/disk"), GUARD_STRANGER);
	assert_int_equal(waitpid(zombie, NULL, 0), zombie);
}

/* The driver disconnects the disk while a request is served. */
static void test_the_end_is_read_behind_what_is_not_answered(void **state)
{
	char block[512] = {1}, read_back[512];
	struct connection c;

	(void)state;
	begin(&c, "direct=off");
	assert_int_equal(shutdown(c.sockets[0], SHUT_RD), 0);
	ask(&c, SERVE_FLUSH, 0, 0);
	ask(&c, SERVE_WRITE, 0, sizeof block);
	put(&c, block, sizeof block);
	ask(&c, SERVE_DISCONNECT, 0, 0);
	pthread_join(c.thread, NULL);
	assert_int_equal(c.result, SERVE_GOODBYE);
	/* The kernel has failed the write. */
	struct iovec iov = {read_back, sizeof read_back};

	assert_int_equal(backend_readv(c.device.backend, &iov, 1, 0), 0);
	assert_true(is_zero(read_back, sizeof read_back));
	close(c.sockets[0]);
	close(c.sockets[1]);
	device_close(&c.device);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layout_is_that_of_the_protocol),
		cmocka_unit_test(test_data_comes_back),
		cmocka_unit_test(test_zeroes_and_trim),
		cmocka_unit_test(test_errors_are_answered),
		cmocka_unit_test(test_what_is_no_request_ends_it),
		cmocka_unit_test(test_a_partition_that_is_gone_loses_nothing),
		cmocka_unit_test(test_who_holds_a_disk_is_replaced),
		cmocka_unit_test(test_whose_disk_it_is),
		cmocka_unit_test(test_the_end_is_read_behind_what_is_not_answered),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
