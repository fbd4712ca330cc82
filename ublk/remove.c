/* SPDX-License-Identifier: BSD-3-Clause */
#include <err.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "programs/exit_codes.h"
#include "ublk/disk.h"
#include "ublk/process.h"
#include "ublk/record.h"
#include "ublk/remove.h"
#include "ublk/show.h"
#include "ublk/stopping.h"

/* Seconds that a request may take when a disk is written back before it is deleted. */
#define REQUEST_LIMIT 300

/* For how long the kernel may look for the disk's partitions before it can be claimed. */
#define CLAIM_LIMIT_MS 10000

/* For how long a disk has no server while another one takes it over. */
#define TAKEOVER_LIMIT 10

struct deletion {
	struct ublk_control *c;
	uint32_t id;
	time_t begun;  /* when the disk was first written back */
	time_t asked;  /* when the kernel was last asked for the server */
	time_t served; /* when it last had one */
};

/* Has its server died? What is written back would wait for another one. */
static bool is_without_server(void *opaque)
{
	struct deletion *d = opaque;
	struct ublksrv_ctrl_dev_info info;
	time_t now = ublk_seconds();

	if (now != d->asked) {
		d->asked = now;
		if (ublk_control_info(d->c, d->id, &info) < 0 || info.state == UBLK_S_DEV_LIVE)
			d->served = now;
	}
	return now - d->served > TAKEOVER_LIMIT;
}

/* Has the command just begun? That long, the device is taken to work on what it has. */
static bool is_early(void *opaque)
{
	const struct deletion *d = opaque;

	return ublk_seconds() - d->begun < REQUEST_LIMIT;
}

/* Has the driver had the time that a command may take? */
static bool is_late(void *opaque)
{
	const time_t *begun = opaque;

	return ublk_seconds() - *begun > UBLK_CONTROL_LIMIT;
}

/* Writes back what the kernel has in memory; what cannot be is lost with --force only. An exit
 * code. */
static int write_back(struct ublk_control *c, const struct ublk_options *o, bool in_use, bool *lost)
{
	uint32_t id = (uint32_t)o->server.id;
	time_t now = ublk_seconds();
	struct deletion deletion = {.c = c, .id = id, .begun = now, .served = now};
	const struct ublk_sync_limits limits = {
		.over = is_without_server,
		.works = o->force ? NULL : is_early,
		.opaque = &deletion,
		.forced = o->force,
	};
	int r = ublk_disk_sync(id, in_use, &limits);

	*lost = r < 0;
	if (r == 0)
		return 0;
	if (o->force)
		warnx("/dev/ublkb%u: %s: %s", id, ublk_disk_loss(r),
			r == -ECANCELED ? "its server has died" : strerror(-r));
	else if (r == -ECANCELED)
		warnx("/dev/ublkb%u: not removed, because its server died while the last writes "
		      "were being written back; recover it, or delete the disk again without them",
			id);
	else
		warnx("/dev/ublkb%u: not removed, because the last writes %s: "
		      "%s; fix the cause, or use --force",
			id, r == -ETIME ? "are not written back yet" : "cannot be written back",
			strerror(-r));
	return o->force ? 0 : EXIT_FAILURE;
}

/* pidfd was the server's; another one may have taken the disk over since. As ublk_process_of_disk()
 * has it. */
static int last_server(struct ublk_control *c, struct ublksrv_ctrl_dev_info *info, int pidfd)
{
	struct ublksrv_ctrl_dev_info now;

	if (ublk_control_info(c, info->dev_id, &now) < 0 ||
		now.ublksrv_flags != info->ublksrv_flags || now.ublksrv_pid == info->ublksrv_pid)
		return pidfd;
	if (pidfd >= 0)
		close(pidfd);
	*info = now;
	return ublk_process_of_disk(info);
}

/*
 * Would its server's record of a failure be found here? Not if the server has another /run, or
 * could write no record of the disk, either. Servers of other programs leave none.
 */
static bool would_tell(const struct ublksrv_ctrl_dev_info *info)
{
	struct ublk_record record;
	int r = ublk_record_read(info->dev_id, info->ublksrv_flags, &record);

	ublk_record_free(&record);
	return r != -ENOENT || info->ublksrv_flags < UBLK_FIRST_COOKIE;
}

int ublk_delete(struct ublk_control *c, const struct ublk_options *o)
{
	uint32_t id = (uint32_t)o->server.id;
	struct ublksrv_ctrl_dev_info info;
	const struct ublk_claim_limits limits = {.timeout_ms = CLAIM_LIMIT_MS};
	struct ublk_claim claim = UBLK_NO_CLAIM;
	bool live, in_use = false, lost = false, tells;
	int answer = -ENXIO, pidfd = -1, r = ublk_examine(c, id, &info);
	char users[256];
	time_t begun;

	if (r)
		return r;
	live = info.state == UBLK_S_DEV_LIVE;
	tells = would_tell(&info); /* at once: a server that ends removes it */
	ublk_disk_users(id, users, sizeof users);
	/* A dead one has nothing to lose. */
	if (info.state != UBLK_S_DEV_DEAD) {
		answer = ublk_disk_claim(id, &claim, &limits);
		if (answer == -ECHILD) /* its process was killed */
			answer = ublk_disk_claim(id, &claim, &limits);
		/* Without a server, an open that the kernel does not refuse may wait for one. */
		in_use = live ? ublk_disk_may_be_used(answer) : users[0] || answer == -EBUSY;
	}
	if (in_use && !o->force) {
		ublk_claim_release(&claim);
		if (live && answer != -EBUSY)
			warnx("/dev/ublkb%u: cannot be opened: %s; it may be in use; make it "
			      "possible to open it, or use --force",
				id, answer == -ETIME ? "no answer" : strerror(-answer));
		else
			warnx("/dev/ublkb%u: in use%s%s; unmount or release it first, or use "
			      "--force",
				id, users[0] ? " by " : "", users);
		return EXIT_USAGE;
	}
	if (live) {
		pidfd = ublk_process_of_disk(&info);
		r = write_back(c, o, in_use, &lost);
		pidfd = last_server(c, &info, pidfd);
	}
	if (r == 0) {
		begun = ublk_seconds();
		r = ublk_stop_elsewhere(c, id, info.ublksrv_flags, is_late, &begun);
		ublk_claim_release(&claim); /* the kernel waits for it */
		if (r == -ECANCELED) {
			warnx("ublk%u: is being removed, but its device does not answer; it goes "
			      "when the device does",
				id);
			return EXIT_FAILURE;
		}
		if (r == 0 || r == -ENODEV)
			r = ublk_control_delete(c, id, info.ublksrv_flags);
		r = r == -ENODEV ? 0 : r;
		if (r < 0) {
			warnx("ublk%u: cannot be removed: %s", id, strerror(-r));
			return EXIT_FAILURE;
		}
		if (!ublk_process_has_ended(pidfd, UBLK_CONTROL_LIMIT * 1000)) {
			ublk_record_remove(id, info.ublksrv_flags);
			warnx("ublk%u: removed, but its server (process %d) is still writing to "
			      "its device; the system log will have what comes of it",
				id, info.ublksrv_pid);
			return EXIT_FAILURE;
		}
		/* The server may have made it into what tells of a failure. */
		ublk_record_remove(id, info.ublksrv_flags);
		if (ublk_record_take_failure(id, info.ublksrv_flags)) {
			warnx("ublk%u: removed, but its server could not keep all that was "
			      "written; see the system log",
				id);
			return EXIT_FAILURE;
		}
		if (live && (pidfd < 0 || !tells)) {
			warnx("ublk%u: removed, but its server %s, such as in another container; "
			      "the system log where it runs has whether it could keep all that was "
			      "written",
				id,
				pidfd < 0 ? "cannot be seen from here"
					  : "has no record in " UBLK_RECORD_DIRECTORY
					    " that can be seen from here");
			return EXIT_FAILURE;
		}
		printf("/dev/ublkb%u: %s%s\n", id,
			!live  ? "removed; it had no server to write back to"
			: lost ? "removed"
			       : "written back and removed",
			in_use ? " while in use" : "");
	}
	/* A disk that stays is free when we end, and not a moment later. */
	ublk_claim_release(&claim);
	return r;
}
