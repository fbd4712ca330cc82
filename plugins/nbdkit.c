/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The adapter between nbdkit (plugin API version 2) and backends/. It
 * translates and knows no device. In the order in which nbdkit calls it.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "plugins/nbdkit_adapter.h"
#include "programs/io_flusher.h"

/* What the nbdkit at hand calls. Debian 11 has 1.24. */
#define HAVE_CLEANUP	(NBDKIT_VERSION_MINOR >= 26)
#define HAVE_BLOCK_SIZE (NBDKIT_VERSION_MINOR >= 30)

/* One device per process, shared by all connections: O_EXCL refuses a second open. */
static struct params *params;
static struct backend *device;
static struct backend_info device_info; /* constant except size */
static _Atomic bool error_told;
static char *help;

#if !HAVE_CLEANUP
static _Atomic unsigned connections;
static void adapter_cleanup(void);
#endif

static void adapter_unload(void)
{
#if !HAVE_CLEANUP
	/* Requests may still be under way: then the device ends with the process, as in a crash. */
	if (connections)
		return;
	adapter_cleanup();
#endif
	params_free(params);
	params = NULL;
}

static int adapter_config(const char *key, const char *value)
{
	struct params_error error;

	if (!params)
		params = params_new(plugin_identity.ops);
	if (params_set(params, key, value, &error) < 0) {
		nbdkit_error("%s", error.text);
		return -1;
	}
	return 0;
}

static int adapter_config_complete(void)
{
	struct params_error error;

	if (!params)
		params = params_new(plugin_identity.ops);
	if (params_complete(params, false, &error) < 0) {
		nbdkit_error("%s", error.text);
		return -1;
	}
	return 0;
}

static void adapter_dump_plugin(void)
{
	char *names = params_names(plugin_identity.ops);

	printf("userblk_device=%s\n", backend_kind(plugin_identity.ops).name);
	printf("userblk_parameters=%s\n", names);
	free(names);
}

static void host_error(void *opaque, const char *message)
{
	(void)opaque;
	error_told = true;
	nbdkit_error("%s", message);
}

static void host_debug(void *opaque, const char *message)
{
	(void)opaque;
	nbdkit_debug("%s", message);
}

/*
 * nbdkit ends itself without a word to us if, between get_ready and after_fork, it cannot have its
 * socket, its user or a process in the background. The device would then be left as if it had been
 * killed, and its next server would have to wait or to take over.
 */
static bool serving; /* or that is another process's affair */

static void close_unserved(void)
{
	if (device && !serving)
		backend_close(device);
	device = NULL;
}

/* The parent leaves the device to its child. */
static void forked(void)
{
	serving = true;
}

/*
 * Opens the device. Not in after_fork: what goes wrong there is seen neither on
 * the terminal nor in the exit status, and the user may have been changed. The
 * open file description, and with it the exclusive claim on a block device,
 * passes to the child; the parent exits at once.
 */
static int adapter_get_ready(void)
{
	const struct backend_host host = {.error = host_error, .debug = host_debug};
	int r;

	r = backend_open(params, 0, &host, &device);
	if (r == 0)
		r = backend_info(device, &device_info);
	/* Now: what the device's libraries do at the end comes after it. */
	if (r == 0 && (atexit(close_unserved) || pthread_atfork(NULL, forked, NULL)))
		r = -ENOMEM;
	if (r == 0)
		return 0;
	/* A device reports what a user can fix, and only that. */
	if (!error_told)
		nbdkit_error("cannot open the %s device: %s",
			backend_kind(plugin_identity.ops).name, strerror(-r));
	return -1;
}

/*
 * nbdkit waits for the requests in flight before it calls .unload. A device that learns of the
 * shutdown earlier can end these requests.
 */
static struct {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool running, over;
} watcher = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *watch_for_end(void *opaque)
{
	(void)opaque;
	pthread_mutex_lock(&watcher.lock);
	while (!watcher.over) {
		struct timespec until;

		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec++;
		pthread_cond_timedwait(&watcher.changed, &watcher.lock, &until);
		/* Only then, since nbdkit has no other call that tells it, and calls it an error.
		 */
		if (!watcher.over && backend_stalled(device) && nbdkit_nanosleep(0, 0) < 0 &&
			errno == ESHUTDOWN) {
			backend_stop(device);
			break;
		}
	}
	pthread_mutex_unlock(&watcher.lock);
	return NULL;
}

static void start_watcher(void)
{
	pthread_condattr_t monotonic;
	sigset_t all, before;

	if (!device_info.can_stall)
		return;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&watcher.changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	watcher.running = pthread_create(&watcher.thread, NULL, watch_for_end, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void end_watcher(void)
{
	if (!watcher.running)
		return;
	pthread_mutex_lock(&watcher.lock);
	watcher.over = true;
	pthread_cond_signal(&watcher.changed);
	pthread_mutex_unlock(&watcher.lock);
	pthread_join(watcher.thread, NULL);
}

/* In the process that serves. */
static int adapter_after_fork(void)
{
	serving = true;
	/* Before there are threads. The client may be the kernel of this machine. */
	become_io_flusher();
	backend_start(device);
	start_watcher();
	return 0;
}

/*
 * One line on standard error when the server ends, always: the reader of a
 * result must know of bounced requests, and -v would cost a line per request.
 * In the background, standard error is /dev/null.
 */
static void print_counters(void)
{
	char line[2048];

	/* In one write, so that nothing comes between. */
	if (backend_counters_text(device, line, sizeof line))
		fprintf(stderr, "%s: counters:%s\n", plugin_identity.name, line);
}

static void adapter_cleanup(void)
{
	int r;

	if (!device)
		return;
	end_watcher();
	print_counters();
	r = backend_close(device);
	device = NULL;
	/* nbdkit asks nobody how it went; it has nothing left to do but to free its memory. */
	if (r < 0)
		exit(EXIT_FAILURE);
}

/* All requests may run at once, on any number of connections. */
#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

static void *adapter_open(int readonly)
{
	(void)readonly; /* nbdkit itself refuses to write with -r */
#if !HAVE_CLEANUP
	connections++;
#endif
	return NBDKIT_HANDLE_NOT_NEEDED;
}

#if !HAVE_CLEANUP
static void adapter_close(void *handle)
{
	(void)handle;
	connections--;
}
#endif

static int64_t adapter_get_size(void *handle)
{
	struct backend_info info;
	int r;

	(void)handle;
	/* Asked again for each connection: the s3 device may have been resized. */
	r = backend_info(device, &info);
	if (r < 0) {
		errno = -r;
		nbdkit_error("cannot determine the size of the device: %m");
		return -1;
	}
	return (int64_t)info.size;
}

#if HAVE_BLOCK_SIZE
/*
 * The minimum is what the device serves without read-modify-write, which is what
 * clients should align to (the kernel's logical block size, qemu, nbdcopy); a
 * client that does not is served all the same. No request that nbdkit accepts
 * is too large.
 */
static int adapter_block_size(
	void *handle, uint32_t *minimum, uint32_t *preferred, uint32_t *maximum)
{
	(void)handle;
	*minimum = device_info.block_size;
	*preferred = device_info.preferred_size;
	*maximum = UINT32_MAX;
	return 0;
}
#endif

static int adapter_can_write(void *handle)
{
	(void)handle;
	return !device_info.readonly;
}

static int adapter_can_flush(void *handle)
{
	(void)handle;
	return device_info.can_flush;
}

static int adapter_is_rotational(void *handle)
{
	(void)handle;
	return device_info.rotational;
}

static int adapter_can_trim(void *handle)
{
	(void)handle;
	return device_info.can_trim;
}

static int adapter_can_zero(void *handle)
{
	(void)handle;
	return device_info.can_zero;
}

static int adapter_can_fast_zero(void *handle)
{
	(void)handle;
	return device_info.can_fast_zero;
}

static int adapter_can_extents(void *handle)
{
	(void)handle;
	return device_info.can_extents;
}

static int adapter_can_fua(void *handle)
{
	(void)handle;
	if (device_info.can_fua)
		return NBDKIT_FUA_NATIVE;
	return device_info.can_flush ? NBDKIT_FUA_EMULATE : NBDKIT_FUA_NONE;
}

static int adapter_can_multi_conn(void *handle)
{
	(void)handle;
	return device_info.can_multi_conn;
}

/* From the backends' answer to nbdkit's: -1 and errno. nbdkit turns errors that NBD lacks
 * into EINVAL. */
static int answer(int r)
{
	if (r == 0)
		return 0;
	errno = r == -ENODEV ? EIO : -r;
	return -1;
}

/* Only the flags that the device said it knows are ever passed by nbdkit. */
static unsigned backend_flags(uint32_t flags)
{
	unsigned result = 0;

	if (flags & NBDKIT_FLAG_FUA)
		result |= BACKEND_FUA;
	if (flags & NBDKIT_FLAG_MAY_TRIM)
		result |= BACKEND_MAY_TRIM;
	if (flags & NBDKIT_FLAG_FAST_ZERO)
		result |= BACKEND_FAST_ZERO;
	if (flags & NBDKIT_FLAG_REQ_ONE)
		result |= BACKEND_REQ_ONE;
	return result;
}

static int adapter_pread(void *handle, void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	const struct iovec iov = {.iov_base = buf, .iov_len = count};

	(void)handle;
	(void)flags;
	return answer(backend_readv(device, &iov, 1, offset));
}

static int adapter_pwrite(
	void *handle, const void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	/* struct iovec has no const; devices do not change the data that they write. */
	const struct iovec iov = {.iov_base = (void *)buf, .iov_len = count};

	(void)handle;
	return answer(backend_writev(device, &iov, 1, offset, backend_flags(flags)));
}

static int adapter_flush(void *handle, uint32_t flags)
{
	(void)handle;
	(void)flags;
	return answer(backend_flush(device));
}

static int adapter_trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	(void)handle;
	return answer(backend_trim(device, offset, count, backend_flags(flags)));
}

static int adapter_zero(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	(void)handle;
	/* EOPNOTSUPP: nbdkit writes zeroes, or tells the client that it is not fast. */
	return answer(backend_zero(device, offset, count, backend_flags(flags)));
}

static int add_extent(void *opaque, const struct backend_extent *extent)
{
	uint32_t type =
		(extent->hole ? NBDKIT_EXTENT_HOLE : 0) | (extent->zero ? NBDKIT_EXTENT_ZERO : 0);

	if (nbdkit_add_extent(opaque, extent->offset, extent->length, type) == -1)
		return -errno;
	return 0;
}

static int adapter_extents(void *handle, uint32_t count, uint64_t offset, uint32_t flags,
	struct nbdkit_extents *extents)
{
	(void)handle;
	return answer(
		backend_extents(device, offset, count, backend_flags(flags), add_extent, extents));
}

static struct nbdkit_plugin plugin = {
	.version = USERBLK_VERSION,
	.unload = adapter_unload,
	.config = adapter_config,
	.config_complete = adapter_config_complete,
	.dump_plugin = adapter_dump_plugin,
	.get_ready = adapter_get_ready,
	.after_fork = adapter_after_fork,
#if HAVE_CLEANUP
	.cleanup = adapter_cleanup,
#endif
	.open = adapter_open,
#if !HAVE_CLEANUP
	.close = adapter_close,
#endif
	.get_size = adapter_get_size,
#if HAVE_BLOCK_SIZE
	.block_size = adapter_block_size,
#endif
	.can_write = adapter_can_write,
	.can_flush = adapter_can_flush,
	.is_rotational = adapter_is_rotational,
	.can_trim = adapter_can_trim,
	.can_zero = adapter_can_zero,
	.can_fast_zero = adapter_can_fast_zero,
	.can_extents = adapter_can_extents,
	.can_fua = adapter_can_fua,
	.can_multi_conn = adapter_can_multi_conn,
	.pread = adapter_pread,
	.pwrite = adapter_pwrite,
	.flush = adapter_flush,
	.trim = adapter_trim,
	.zero = adapter_zero,
	.extents = adapter_extents,
	.errno_is_preserved = 1,
};

/*
 * nbdkit copies the struct before it calls anything in it, so what comes from
 * the identity and from the parameter table is filled in when the library is
 * loaded, and freed when it goes.
 */
__attribute__((constructor)) static void fill_in(void)
{
	const struct backend_kind kind = backend_kind(plugin_identity.ops);

	help = params_help(plugin_identity.ops);
	plugin.name = plugin_identity.name;
	plugin.longname = plugin_identity.longname;
	plugin.description = kind.summary;
	plugin.magic_config_key = kind.main_param;
	plugin.config_help = help;
}

__attribute__((destructor)) static void free_help(void)
{
	free(help);
}

/* Newer headers do not declare it, and older ones (1.24) do not export it. */
__attribute__((visibility("default"))) struct nbdkit_plugin *plugin_init(void);
NBDKIT_REGISTER_PLUGIN(plugin)
