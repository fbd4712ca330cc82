# SPDX-License-Identifier: BSD-3-Clause
"""The runner of `userblk explain`: each repetition of a run looks at it in another way, by perf.

Standard library only. What perf recorded is kept beside the run's summary, with what tells the sides apart.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..engines.base import Job, Run
from ..machine.durable import write_json
from ..model.plan import Entry
from .measuring import sides
from .runner import Runner, main

# The repetitions: as it is; where its instructions go; which steps its requests take.
PLAIN, SAMPLED, TRACED = 1, 2, 3
PASSES = (PLAIN, SAMPLED, TRACED)

DATA, KALLSYMS, SIDES = "perf.data", "kallsyms", "sides.json"  # in a run's directory
SCRATCH = Path("/tmp") / DATA  # in the guest's memory
BUFFER = "64M"  # so that perf does not have to run before the workload has ended
# ns, primes; a sample each 10 us in all. Requests may come to keep step with one or two timers, not with all of them.
PERIODS_NS = (58013, 62011, 66029, 70001, 74017, 78007, 82003)
EVENTS = (
    *("block:block_rq_issue", "block:block_rq_complete", "sched:sched_switch"),
    *("raw_syscalls:sys_enter", "raw_syscalls:sys_exit"),
)
# In kernels that have them (6.11 and later): a request to a FUSE server has no block device of its own.
FUSE_EVENTS = ("fuse:fuse_request_send", "fuse:fuse_request_end")
EVENT_FILES = Path("/sys/kernel/debug/tracing/events")


def perf_argv(repetition: int, fuse: bool) -> list[str]:
    """What stands before a workload's command line. fuse: the kernel has FUSE's trace points."""
    if repetition == PLAIN:
        return []
    argv = ["perf", "record", "--quiet", "--all-cpus", f"--output={SCRATCH}", f"--mmap-pages={BUFFER}"]
    argv += ["--clockid=CLOCK_MONOTONIC", "--no-buildid", "--no-buildid-cache"]
    if repetition == SAMPLED:
        argv += [f"--event=cpu-clock/period={period},name=clock{period}/" for period in PERIODS_NS] + ["-g"]
    else:
        argv += [f"--event={','.join((*EVENTS, *(FUSE_EVENTS if fuse else ())))}"]
    return [*argv, "--"]


class Explainer(Runner):
    """Runs each workload as it is, sampled and traced."""

    def command(self, entry: Entry, argv: Sequence[str]) -> Sequence[str]:
        fuse = (EVENT_FILES / FUSE_EVENTS[0].replace(":", "/")).exists()
        return [*perf_argv(entry.repetition, fuse), *argv]

    def measure(self, run: Run, job: Job, block: str, preparation: Mapping[str, object]) -> dict[str, object]:
        summary = super().measure(run, job, block, preparation)
        if run.entry.repetition != PLAIN:
            shutil.move(SCRATCH, run.directory / DATA)
            shutil.copyfile("/proc/kallsyms", run.directory / KALLSYMS)
            write_json(run.directory / SIDES, dataclasses.asdict(sides(job, run.running, run.device)))
        return summary


if __name__ == "__main__":
    sys.exit(main(kind=Explainer))
