/* SPDX-License-Identifier: BSD-3-Clause */
/* What a schedule, which has a process of its own, tells the one that runs them all. */
#ifndef USERBLK_TESTS_SIMULATION_RUNNER_H
#define USERBLK_TESTS_SIMULATION_RUNNER_H

#include <stdarg.h>
#include <stdint.h>

#define RUNNER_FAILED 3 /* exit status */

/* What schedules went through, to see that they go through everything. */
#define RUNNER_COUNTS(X)                                                                           \
	X(operations)                                                                              \
	X(opens)                                                                                   \
	X(refused_opens)                                                                           \
	X(failed_opens)                                                                            \
	X(closes)                                                                                  \
	X(kills)                                                                                   \
	X(crashes)                                                                                 \
	X(pauses)                                                                                  \
	X(takeovers)                                                                               \
	X(readers)                                                                                 \
	X(checks)                                                                                  \
	X(snapshots)                                                                               \
	X(deletions)                                                                               \
	X(rollbacks)                                                                               \
	X(clones)                                                                                  \
	X(rekeys)                                                                                  \
	X(resizes)                                                                                 \
	X(collections)                                                                             \
	X(verifies)                                                                                \
	X(removals)                                                                                \
	X(aborts)                                                                                  \
	X(flushes)                                                                                 \
	X(failed_requests)                                                                         \
	X(lost_writes)                                                                             \
	X(gc_objects)                                                                              \
	X(full_roots)                                                                              \
	X(light_roots)                                                                             \
	X(deleted)                                                                                 \
	X(orphans)                                                                                 \
	X(write_backs)                                                                             \
	X(replayed_entries)                                                                        \
	X(cache_files)                                                                             \
	X(transformed)                                                                             \
	X(direct)

enum runner_count {
#define X(name) COUNT_##name,
	RUNNER_COUNTS(X)
#undef X
		COUNTS
};

void runner_count(enum runner_count count, uint64_t n);
void runner_report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void runner_vreport(const char *format, va_list args) __attribute__((format(printf, 1, 0)));
/* A return address, with the name of its function where that is known. */
void runner_print_address(const void *address);
/* The schedule ends here. */
_Noreturn void runner_failed(const char *kind);

#endif
