/* SPDX-License-Identifier: BSD-3-Clause */
/* The plan of a schedule: volumes, and the processes that open them. */
#ifndef USERBLK_TESTS_SIMULATION_WORLD_H
#define USERBLK_TESTS_SIMULATION_WORLD_H

/* All of a schedule; it fails by sim_fail(). */
void world_run(void *unused);

/* scenes.c: one of them, in place of a schedule drawn freely. */
void scene_run(void);

#endif
