/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "buse/child.h"
#include "buse/guard.h"
#include "programs/end_signals.h"
#include "programs/io_flusher.h"
#include "programs/process_state.h"

/* In memory that both processes have. */
struct life {
	pthread_mutex_t held; /* by a thread of the server, for as long as it lives */
	sem_t begun;
};

/* ---- the process ----------------------------------------------------------------- */

static pid_t server;

/* The kernel shows our number as that of the disk's process, and we have the server's command
 * line: signals to us may be meant for it. */
static void pass_on(int number)
{
	if (getppid() == server)
		kill(server, number);
}

/* It must outlive what kills the server. */
static void settle(int control, int socket)
{
	struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
	sigset_t ends;
	int file;

	child_settle("buse-guard", control, socket);
	become_io_flusher();
	file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (file >= 0) {
		if (write(file, "-1000", 5) < 0)
			errno = 0; /* not in each container */
		close(file);
	}
	end_signals(&ends);
	for (int number = 1; number < NSIG; number++)
		if (sigismember(&ends, number) == 1)
			sigaction(number, &action, NULL);
	pthread_sigmask(SIG_UNBLOCK, &ends, NULL);
}

/* Carries out orders until the disk is connected. False: the server has ended before. */
static bool obey(struct netlink *netlink, int control, int socket, struct netlink_disk *disk)
{
	int r;

	do {
		if (recv(control, disk, sizeof *disk, 0) != sizeof *disk)
			return false;
		r = netlink->socket ? 0 : netlink_open(netlink);
		if (r == 0)
			r = netlink_connect(netlink, disk, socket);
		if (r >= 0)
			disk->index = r;
		send(control, &r, sizeof r, MSG_NOSIGNAL);
	} while (r < 0);
	return true;
}

static _Noreturn void guard(int control, int socket, struct life *life)
{
	struct netlink netlink = {0};
	struct netlink_disk disk;
	bool shown;

	settle(control, socket);
	if (!obey(&netlink, control, socket, &disk))
		_exit(0);
	shown = netlink_is(disk.index, disk.identity);
	pthread_mutex_lock(&life->held);
	/* First: what is being sent would wait for a server's thread that hangs in the kernel, and
	 * our call, and with it all of generic netlink, for that. */
	shutdown(socket, SHUT_RDWR);
	/* Not if somebody has disconnected it, and another has connected it since. */
	if (!shown || netlink_is(disk.index, disk.identity))
		netlink_disconnect(&netlink, disk.index);
	_exit(0);
}

/* ---- in the server ----------------------------------------------------------------- */

/*
 * A mutex tells of the death of its thread before the files of the process are closed, which may
 * wait for the disk, and while other threads of it still wait for the disk.
 */
static void *live(void *opaque)
{
	struct life *life = opaque;

	pthread_mutex_lock(&life->held);
	sem_post(&life->begun);
	for (;;)
		pause();
	return NULL;
}

static struct life *new_life(void)
{
	struct life *life =
		mmap(NULL, sizeof *life, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t attributes;

	if (life == MAP_FAILED)
		return NULL;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&life->held, &attributes);
	pthread_mutexattr_destroy(&attributes);
	sem_init(&life->begun, 0, 0);
	return life;
}

int guard_start(struct guard *g, int socket)
{
	struct life *life = new_life();
	int control[2], r;
	pthread_t thread;

	g->pid = 0;
	if (!life)
		return -ENOMEM;
	/* A thread that dumps core first waits for the others, which may hang, and gives up its
	 * mutex after that. */
	prctl(PR_SET_DUMPABLE, 0);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) < 0)
		return -errno;
	server = getpid();
	g->pid = fork();
	if (g->pid == 0)
		guard(control[1], socket, life);
	r = g->pid < 0 ? -errno : 0;
	close(control[1]);
	g->control = control[0];
	if (r < 0) {
		g->pid = 0;
		close(g->control);
		return r;
	}
	r = -pthread_create(&thread, NULL, live, life);
	if (r < 0) {
		guard_dismiss(g);
		return r;
	}
	pthread_detach(thread);
	while (sem_wait(&life->begun) < 0)
		;
	return 0;
}

int guard_connect(struct guard *g, const struct netlink_disk *disk)
{
	int r;

	if (send(g->control, disk, sizeof *disk, MSG_NOSIGNAL) != sizeof *disk ||
		recv(g->control, &r, sizeof r, 0) != sizeof r)
		return -ECHILD;
	return r;
}

bool guard_has_died(struct guard *g)
{
	if (g->pid && waitpid(g->pid, NULL, WNOHANG) == g->pid) {
		close(g->control);
		g->pid = 0;
	}
	return !g->pid;
}

void guard_dismiss(struct guard *g)
{
	if (!g->pid)
		return;
	kill(g->pid, SIGKILL);
	while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR)
		;
	close(g->control);
	g->pid = 0;
}

/* ---- identities ------------------------------------------------------------------ */

/* Numbers of processes are those of a namespace; 0: unknown. */
static unsigned long namespace(void)
{
	struct stat file;

	return stat("/proc/self/ns/pid", &file) == 0 ? (unsigned long)file.st_ino : 0;
}

void guard_identity(const struct guard *g, char *text, size_t size)
{
	snprintf(text, size, "userblk-buse %d %d %lu", (int)getpid(), (int)g->pid, namespace());
}

/*
 * One that has only not been waited for has ended: it has closed its files. Not so if only its
 * first thread has ended: another one may hang in the kernel, and has the files of both.
 */
static bool lives(int pid)
{
	const struct dirent *entry;
	bool found = false;
	char path[32];
	DIR *tasks;

	if (pid <= 0 || (kill(pid, 0) < 0 && errno == ESRCH))
		return false;
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	tasks = opendir(path);
	if (!tasks)
		return errno != ENOENT;
	while (!found && (entry = readdir(tasks)) != NULL) {
		int thread = atoi(entry->d_name);
		char state = thread > 0 ? process_state(thread) : 0;

		found = state && state != 'Z' && state != 'X';
	}
	closedir(tasks);
	return found;
}

enum guard_owner guard_owner(const char *identity)
{
	unsigned long space;
	int of_server, of_guard;

	if (sscanf(identity, "userblk-buse %d %d %lu", &of_server, &of_guard, &space) != 3 ||
		!space || space != namespace())
		return GUARD_STRANGER;
	if (lives(of_server))
		return GUARD_SERVED;
	return lives(of_guard) ? GUARD_ENDING : GUARD_LEFT;
}
