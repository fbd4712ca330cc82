/* SPDX-License-Identifier: BSD-3-Clause */
/* The scene of a clone whose creation stops for as long as it may, or is refused and comes late. */
#include <stdlib.h>
#include <string.h>

#include "backends/s3/core/config.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/keeper/snapshot.h"
#include "tests/simulation/actors.h"
#include "tests/simulation/runner.h"
#include "tests/simulation/scenes.h"
#include "tests/simulation/store.h"

#define STOPPED_MOST (1500 * SIM_SECOND)
#define LATE_MOST    (100 * SIM_SECOND)

static void tune(struct s3_config *c)
{
	c->batch_size = 64 * KIB;
	c->uploads = 2;
	c->memory = 4 * MIB;
	c->checkpoint = 4 + draw(16);
	c->gc_delay = 0;
}

static int cloned; /* what came of it; 1: nothing yet */
static bool refused;

/*
 * A process of its own, which is stopped once, somewhere in the creation or after it, or whose PUT
 * of the super object is refused while an attempt is under way.
 */
static void *make_clone(void *opaque)
{
	struct sim_process *p = sim_self();
	struct life *l = scene_newcomer();
	int r;

	(void)opaque;
	l->role = READER;
	r = life_open(l, NULL, false, &l->device);
	if (r)
		sim_fail("open", "a reader cannot open v0: %s", strerror(-r));
	p->pause_at = p->steps + draw(120);
	p->pause_ns = draw(STOPPED_MOST);
	p->pause_certain = !refused;
	if (refused) {
		p->pause_at = SIM_NEVER;
		store_refuses_again("v1/super", LATE_MOST);
	}
	r = s3_volume_clone((struct s3_volume *)l->device, "s0", PREFIX, "v1");
	sim_trace("clone: %s", r ? strerror(-r) : "ok");
	p->pause_at = SIM_NEVER;
	backend_close(l->device);
	cloned = r;
	return NULL;
}

/* Its snapshot is deleted meanwhile, or is not because there is the clone. */
void meet_stopped_clone(void)
{
	struct life *l = scene_newcomer(), *clone;
	bool exists, kept;

	scene_set_up(1 * MIB);
	plan.tune = tune;
	scene_open(l, true);
	for (unsigned i = 0; i < 8; i++)
		scene_put_all(l, draw(224) * 4 * KIB, 4 * KIB);
	scene_ask(l, "snapshot-create");
	cloned = 1;
	refused = draw(2);
	sim_spawn(sim_process_new(), "clone", make_clone, NULL);
	sim_sleep(draw(refused ? LATE_MOST : STOPPED_MOST));
	kept = ask_tool(l, "snapshot-delete", "s0") != 0;
	for (unsigned i = 0; i < 100 && cloned == 1; i++)
		sim_sleep(STOPPED_MOST / 50);
	/* Whatever is still under way comes. */
	if (refused)
		sim_sleep(2 * LATE_MOST);
	exists = scene_objects("sim/v1/super") > 0;
	if (cloned == 1)
		sim_fail("clone", "its creation does not end");
	if (cloned == 0 && !exists)
		sim_fail("clone", "v1 was made, and is not there");
	if (exists && (!kept || !scene_objects("sim/v0/snap/s0/child/")))
		sim_fail("clone", "v1 is there, and its snapshot %s",
			kept ? "does not know it" : "is not");
	if (cloned == 0) {
		if (ask_tool(l, "snapshot-delete", "s0") == 0)
			sim_fail("clone", "s0 was deleted, and has the clone v1");
		volumes[1] = volumes[0];
		strcpy(volumes[1].name, "v1");
		clone = scene_newcomer();
		clone->volume = &volumes[1];
		scene_open(clone, false);
		run_check(clone);
		scene_end(clone);
	}
	scene_end(l);
}
