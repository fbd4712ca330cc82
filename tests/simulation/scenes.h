/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Scenes: what schedules drawn freely seldom come to, and what they cannot
 * judge. One process, no other faults than those of the scene; its proportions
 * are drawn.
 */
#ifndef USERBLK_TESTS_SIMULATION_SCENES_H
#define USERBLK_TESTS_SIMULATION_SCENES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/simulation/actors.h"
#include "tests/simulation/sim.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

static inline uint64_t draw(uint64_t n)
{
	return sim_below(SIM_PLAN, n);
}

/* ---- scenes.c ---- */

/* A volume without anything that makes it slow or odd, and somebody who opens it. */
struct life *scene_newcomer(void);
void scene_set_up(uint64_t bytes);
/* Opens the volume, which must succeed. */
void scene_open(struct life *l, bool create);
/* Writes, 0 or negative errno; the same and flushes, which must succeed. */
int scene_put(struct life *l, uint64_t offset, size_t length);
void scene_put_all(struct life *l, uint64_t offset, size_t length);
/* Closes the volume, which must succeed. */
void scene_end(struct life *l);
/* A request about the snapshot s0, which must succeed. */
void scene_ask(struct life *l, const char *request);
/* How many objects have keys that begin with prefix? */
unsigned scene_objects(const char *prefix);

/* ---- scenes_writers.c ---- */

void meet_takeover(void);
void meet_late_snapshot(void);
void meet_unreadable(void);
void meet_late_deletions(void);
void meet_new_name(void);

/* ---- scenes_clones.c ---- */

void meet_stopped_clone(void);

/* ---- scenes_ends.c ---- */

void meet_failed_open(void);
void meet_slow_end(void);
void meet_refused_end(void);
void meet_lost_log(void);

#endif
