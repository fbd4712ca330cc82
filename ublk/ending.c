/* SPDX-License-Identifier: BSD-3-Clause */
#include "ublk/ending.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "programs/end_signals.h"
#include "ublk/control.h"
#include "ublk/disk.h"

/* How often it is looked whether a disk is still in use. */
#define IN_USE_STEP_NS 100000000
/* For how long the kernel may look for its partitions until the log says so. */
#define CLAIM_LIMIT_MS 10000

static void all_signals(sigset_t *set)
{
	end_signals(set);
	sigaddset(set, SIGUSR1);
}

void ublk_ending_block(void)
{
	sigset_t set;

	all_signals(&set);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

bool ublk_ending_wait(struct ublk_ending *e)
{
	sigset_t set;
	int got;

	all_signals(&set);
	do
		while (sigwait(&set, &got) != 0)
			;
	while (got == SIGUSR1 && !e->ended(e->opaque));
	clock_gettime(CLOCK_MONOTONIC, &e->counted);
	return got != SIGUSR1;
}

/* Has a signal of another cause come, within the time, or the end? */
static bool hurry(struct ublk_ending *e, long ns)
{
	sigset_t set;
	int got;

	all_signals(&set);
	got = sigtimedwait(&set, NULL, &(struct timespec){.tv_nsec = ns});
	if (got == SIGUSR1) {
		e->gone = e->ended(e->opaque);
	} else if (got > 0 && !is_of_one_cause(&e->counted)) {
		clock_gettime(CLOCK_MONOTONIC, &e->counted);
		e->hurried = true;
	}
	return e->gone || e->hurried;
}

static bool hurried(void *opaque)
{
	return hurry(opaque, 0);
}

static bool works(void *opaque)
{
	struct ublk_ending *e = opaque;

	return e->works(e->opaque);
}

/* Why the disk stays: what ublk_disk_claim() and ublk_disk_sync() answered. */
static void tell_why(struct ublk_ending *e, int claim, int synced)
{
	char line[512], users[256];

	ublk_disk_users(e->id, users, sizeof users);
	if (ublk_disk_may_be_used(claim) && claim != -EBUSY)
		snprintf(line, sizeof line,
			"cannot be opened: %s, so that it is not known whether it is in use; it "
			"will be removed after a second signal",
			claim == -ETIME ? "no answer" : strerror(-claim));
	else if (claim == -EBUSY)
		snprintf(line, sizeof line,
			"is in use%s%s; it will be removed once it is unmounted and released, or "
			"after a second signal",
			users[0] ? " by " : "", users);
	else
		snprintf(line, sizeof line,
			"cannot be written back: sync: %s; it will be removed once that is "
			"possible, or after a second signal",
			strerror(-synced));
	e->log(e->opaque, line);
}

/* Claims the disk. False: it is in use, or may be. */
static bool claims(struct ublk_ending *e, struct ublk_claim *claim, int timeout_ms, int *r)
{
	const struct ublk_claim_limits limits = {
		.timeout_ms = timeout_ms, .over = hurried, .opaque = e};

	*r = ublk_disk_claim(e->id, claim, &limits);
	return !ublk_disk_may_be_used(*r);
}

int ublk_ending_release(struct ublk_ending *e, struct ublk_claim *claim)
{
	struct ublk_sync_limits limits = {.over = hurried, .works = works, .opaque = e};
	bool told = false, forced = false;
	int r = 0;

	for (;;) {
		int answer;
		bool ours = claims(e, claim, CLAIM_LIMIT_MS, &answer);
		int again = ublk_disk_sync(e->id, !ours, &limits);

		/* What the disk refused the kernel drops; what takes long is written next time. */
		r = r == -EIO ? r : again;
		if (forced || e->gone)
			break;
		if (!hurry(e, 0)) {
			ours = claims(e, claim, CLAIM_LIMIT_MS, &answer);
			if (ours && !ublk_disk_unsynced(again))
				break;
			if (!told && answer != -ECANCELED) {
				tell_why(e, answer, again);
				told = true;
			}
			/* Others may use it until it can be written back. */
			if (ours)
				ublk_claim_release(claim);
			while (!hurry(e, IN_USE_STEP_NS) && !claims(e, claim, 0, &answer))
				;
		}
		if (e->gone)
			break;
		limits.forced = forced = e->hurried;
		e->hurried = false;
	}
	return r;
}

bool ublk_ending_gives_up(void *opaque)
{
	struct ublk_ending *e = opaque;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	hurry(e, 0);
	if (!e->stopping)
		e->stopping = now.tv_sec;
	if (now.tv_sec - e->stopping <= UBLK_CONTROL_LIMIT) {
		e->hurried = false;
		return false;
	}
	if (!e->told && !e->gone)
		e->log(e->opaque, "waits for its device, which has requests; another signal ends "
				  "it without them");
	e->told = true;
	return e->gone || e->hurried;
}
