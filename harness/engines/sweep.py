# SPDX-License-Identifier: BSD-3-Clause
"""fio with io_uring past the page cache: over jobs, depths and block sizes, and, where a suite says so, over CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ..model.config import Profile, Suite, Workload
from ..model.parts import ENGINES, FILL_BYTES_PER_S
from ..model.tables import Table, block_size, counts
from . import rounds
from .base import FIO_MODES, Job, Run, times
from .fio import Direct


def _workloads(suite: str, table: Table, profile: str) -> Iterator[Workload]:
    """Workloads from the rest of a suite's table."""
    part, points = table.table("modes"), table.table("points")
    scaling, timing = table.table("scaling", optional=True), times(table)
    modes = {mode: part.text(mode, FIO_MODES) for mode in list(part.values)}
    grid = points.table(profile)
    for other in list(points.values):  # of other profiles
        points.table(other)
    jobs, depths = counts(grid, "jobs"), counts(grid, "depths")
    sizes = [(str(size), block_size(grid, "block_sizes", size)) for size in grid.array("block_sizes")]
    grid.end(("jobs", "depths", "block_sizes"))
    depth, size, cpus = 0, 0, []
    if scaling.values:
        depth, size = scaling.integer("depth", 1), block_size(scaling, "block_size", scaling.text("block_size"))
        cpus = counts(scaling, "cpus")
        scaling.end(("depth", "block_size", "cpus"))
    table.end(("name", "engine", "systems", "modes", "points", "scaling", "timing"))
    for mode, rw in modes.items():
        for count in jobs:
            for at_once in depths:
                for text, block in sizes:
                    name = f"{mode}-{count}j-{at_once}d-{text}"
                    yield Workload(name, rw, count, block, suite, "sweep", depth=at_once, timing=timing)
        for count in cpus:
            yield Workload(
                f"{mode}-{count}cpu", rw, count, size, suite, "sweep", depth=depth, cpus=count, timing=timing
            )


class Sweep(Direct):
    name = "sweep"
    own_report = True
    in_rounds = True

    def modelled(self, workload: Workload) -> bool:
        """Those with the times of the profile: longer ones of a suite's own have not been tried there."""
        return not workload.timing

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        return Suite(name, tuple(_workloads(name, table, profile)), systems)

    def duration_s(self, workload: Workload, profile: Profile) -> float:
        """At most, where it is repeated until it is steady."""
        return super().duration_s(workload, profile) * profile.rounds.get("most", 1)

    def written(self, workload: Workload, profile: Profile, device: str) -> int:
        return super().written(workload, profile, device) + profile.rounds.get("passes", 0) * profile.area[device]

    def overhead_s(self, profile: Profile) -> float:
        passes = profile.rounds.get("passes", 0)
        return super().overhead_s(profile) + passes * max(profile.area.values()) / FILL_BYTES_PER_S

    def prepare(self, run: Run) -> tuple[Job, dict[str, object]]:
        return rounds.prepare(run) if run.profile.rounds else super().prepare(run)


ENGINES.add(Sweep())
