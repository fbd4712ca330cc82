/* SPDX-License-Identifier: BSD-3-Clause */
/* The faults of the simulated store: what comes of an attempt, and when. */
#include <string.h>

#include "tests/simulation/store_internal.h"

#define LINE_LEAST (UINT64_C(32) << 10)
#define LINE_MOST  (UINT64_C(64) << 20)
/* When all is calm. */
#define LINE_GOOD (UINT64_C(4) << 20)

struct store_faults faults;

static void draw_episode(struct episode *e)
{
	static const char *const parts[] = {
		"", "/log/", "/gc/", "/ckpt/", "/snap/", "super", "root", "/log/", "/gc/"};

	e->from = sim_below(SIM_STORE, 20 * SIM_SECOND);
	e->until = sim_once_in(SIM_STORE, 4)
			   ? SIM_NEVER
			   : e->from + sim_log_between(SIM_STORE, 100 * SIM_MS, 60 * SIM_SECOND);
	e->kind = sim_below(SIM_STORE, 3);
	e->before = 5 * SIM_SECOND;
	e->after = 0;
	e->ops = sim_once_in(SIM_STORE, 3) ? ~0u : 1u << sim_below(SIM_STORE, S3_OPS);
	e->part = parts[sim_below(SIM_STORE, sizeof parts / sizeof *parts)];
	e->one_of = sim_once_in(SIM_STORE, 2) ? sim_log_between(SIM_STORE, 2, 30) : 0;
	/* One object of the log that cannot be read is worth more than chance gives it. */
	if (sim_once_in(SIM_STORE, 3)) {
		e->ops = 1u << S3_GET | 1u << S3_HEAD;
		e->part = "/log/";
		e->one_of = sim_log_between(SIM_STORE, 2, 30);
	}
	/* Nobody asks for what never comes. */
	if (e->until == SIM_NEVER && !e->one_of && !*e->part)
		e->until = e->from + 30 * SIM_SECOND;
}

void store_draw(void)
{
	static const uint64_t latencies[] = {50000, SIM_MS, 20 * SIM_MS, 200 * SIM_MS};
	bool bad = sim_below(SIM_STORE, 3) != 0;

	faults.base_ns = latencies[sim_below(SIM_STORE, 4)];
	faults.tail = sim_log_between(SIM_STORE, 5, 200);
	faults.far = sim_log_between(SIM_STORE, 50, 2000);
	faults.late_ns = sim_log_between(SIM_STORE, 100 * SIM_MS, 100 * SIM_SECOND);
	faults.silence_ns = sim_once_in(SIM_STORE, 2) ? 30 * SIM_SECOND : SIM_SECOND;
	faults.lost_request = sim_log_between(SIM_STORE, 5, 300);
	faults.lost_reply = sim_log_between(SIM_STORE, 5, 300);
	faults.late = sim_log_between(SIM_STORE, 5, 300);
	faults.refused = sim_log_between(SIM_STORE, 4, 300);
	faults.failed_after = sim_log_between(SIM_STORE, 10, 500);
	faults.missing_is_412 = sim_once_in(SIM_STORE, 2);
	faults.full_code = sim_once_in(SIM_STORE, 2);
	faults.room = sim_once_in(SIM_STORE, 8) ? sim_log_between(SIM_STORE, 1 << 20, 16 << 20) : 0;
	faults.n_episodes = sim_once_in(SIM_STORE, 2) ? 1 + (unsigned)sim_below(SIM_STORE, 4) : 0;
	for (unsigned i = 0; i < EPISODES; i++)
		draw_episode(&faults.episodes[i]);
	faults.repeated = sim_log_between(SIM_STORE, 3, 300);
	faults.empty_pages = sim_once_in(SIM_STORE, 8);
	if (!bad || !sim_with(SIM_LOST))
		faults.lost_request = faults.lost_reply = faults.failed_after = faults.repeated = 0;
	if (!bad || !sim_with(SIM_LATE))
		faults.late = 0;
	if (!bad || !sim_with(SIM_REFUSE))
		faults.refused = faults.n_episodes = 0;
	if (!sim_with(SIM_FULL))
		faults.room = 0;
	faults.hostile = bad && sim_with(SIM_REFUSE) && sim_once_in(SIM_STORE, 8);
	if (sim_with(SIM_LINE) && sim_once_in(SIM_STORE, 4)) {
		faults.line = sim_log_between(SIM_STORE, LINE_LEAST, LINE_MOST);
		faults.line_changes =
			sim_once_in(SIM_STORE, 2) ? sim_log_between(SIM_STORE, 10, 1000) : 0;
	}
}

void store_serves(void)
{
	if (faults.base_ns > 20 * SIM_MS)
		faults.base_ns = 20 * SIM_MS;
	faults.lost_request = faults.lost_reply = faults.late = faults.refused = 0;
	faults.failed_after = faults.repeated = faults.room = faults.n_episodes = 0;
	faults.tail = faults.far = 0;
	faults.hostile = faults.empty_pages = false;
	store_line(0);
}

void store_line(uint64_t bytes_per_s)
{
	faults.line_changes = 0;
	line_change(bytes_per_s);
}

void line_may_change(void)
{
	if (faults.line && !faults.calm && sim_once_in(SIM_STORE, faults.line_changes))
		line_change(sim_log_between(SIM_STORE, LINE_LEAST, LINE_MOST));
}

void store_room(uint64_t bytes)
{
	faults.room = bytes;
}

void store_refuses(enum s3_op op, const char *part_of_key)
{
	faults.episodes[0] = (struct episode){
		.until = SIM_NEVER, .kind = EPISODE_503, .ops = 1u << op, .part = part_of_key};
	faults.n_episodes = 1;
}

void store_refuses_one_in(uint64_t n)
{
	faults.episodes[0].one_of = n;
}

void store_slows(enum s3_op op, const char *part_of_key, uint64_t before, uint64_t after)
{
	faults.episodes[faults.n_episodes++] = (struct episode){.until = SIM_NEVER,
		.kind = EPISODE_SLOW,
		.ops = 1u << op,
		.part = part_of_key,
		.before = before,
		.after = after};
}

void store_in_order(void)
{
	faults.late = 0;
	faults.in_order = true;
}

bool store_may_be_full(void)
{
	return faults.room != 0;
}

bool store_troubled(uint64_t since)
{
	bool fails = faults.n_episodes || faults.refused || faults.lost_request || faults.late;

	/* A lost request is given up long after faults have ceased. */
	return fails && (!faults.calm || since < faults.calm_at || since <= faults.given_up_at);
}

void store_calm(void)
{
	if (!faults.calm)
		faults.calm_at = sim_now();
	faults.calm = true;
	if (faults.line && faults.line < LINE_GOOD)
		line_change(LINE_GOOD);
}

static uint64_t key_hash(const char *key)
{
	uint64_t h = 14695981039346656037u;

	while (*key)
		h = (h ^ (uint8_t)*key++) * 1099511628211u;
	return h ^ h >> 31;
}

const struct episode *episode_of(enum s3_op op, const char *key)
{
	for (unsigned i = 0; i < faults.n_episodes && !faults.calm; i++) {
		const struct episode *e = &faults.episodes[i];

		if (sim_now() >= e->from && sim_now() < e->until && e->ops >> op & 1 &&
			strstr(key, e->part) && (!e->one_of || key_hash(key) % e->one_of == 0))
			return e;
	}
	return NULL;
}

uint64_t draw_latency(void)
{
	uint64_t ns = faults.base_ns / 2 + sim_below(SIM_STORE, faults.base_ns);

	if (sim_once_in(SIM_STORE, faults.tail))
		ns *= 10;
	else if (sim_once_in(SIM_STORE, faults.far))
		ns *= 100;
	return ns;
}

enum outcome draw_outcome(void)
{
	if (faults.calm)
		return FINE;
	if (sim_once_in(SIM_STORE, faults.refused))
		return REFUSED;
	if (sim_once_in(SIM_STORE, faults.lost_request))
		return REQUEST_LOST;
	if (sim_once_in(SIM_STORE, faults.lost_reply))
		return REPLY_LOST;
	if (sim_once_in(SIM_STORE, faults.late))
		return LATE;
	if (sim_once_in(SIM_STORE, faults.failed_after))
		return FAILED_AFTER;
	return FINE;
}

void store_refuses_again(const char *part_of_key, uint64_t ns)
{
	faults.refused_again = part_of_key;
	faults.late_ns = ns;
}

void store_deletes_late(uint64_t once_in, uint64_t ns)
{
	faults.late_deletions = once_in;
	faults.late_ns = ns;
}
