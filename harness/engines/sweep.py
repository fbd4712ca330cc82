# SPDX-License-Identifier: BSD-3-Clause
"""fio with io_uring past the page cache: over jobs, depths and block sizes, and over CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..model.config import Suite, Workload
from ..model.parts import ENGINES
from ..model.tables import Table, block_size, counts
from .base import FIO_MODES
from .fio import Fio


def _workloads(suite: str, table: Table, profile: str) -> Iterator[Workload]:
    """Of the rest of a suite's table."""
    part, points, scaling = table.table("modes"), table.table("points"), table.table("scaling")
    modes = {mode: part.text(mode, FIO_MODES) for mode in list(part.values)}
    grid = points.table(profile)
    for other in list(points.values):  # of other profiles
        points.table(other)
    jobs, depths = counts(grid, "jobs"), counts(grid, "depths")
    sizes = [(str(size), block_size(grid, "block_sizes", size)) for size in grid.array("block_sizes")]
    grid.end(("jobs", "depths", "block_sizes"))
    depth, size = scaling.integer("depth", 1), block_size(scaling, "block_size", scaling.text("block_size"))
    cpus = counts(scaling, "cpus")
    scaling.end(("depth", "block_size", "cpus"))
    table.end(("name", "engine", "systems", "modes", "points", "scaling"))
    for mode, rw in modes.items():
        for count in jobs:
            for at_once in depths:
                for text, block in sizes:
                    name = f"{mode}-{count}j-{at_once}d-{text}"
                    yield Workload(name, rw, count, block, suite, "sweep", depth=at_once)
        for count in cpus:
            yield Workload(f"{mode}-{count}cpu", rw, count, size, suite, "sweep", depth=depth, cpus=count)


class Sweep(Fio):
    name = "sweep"
    modelled = False
    buffered = False

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        return Suite(name, tuple(_workloads(name, table, profile)), systems)

    def fills(self, workload: Workload) -> bool:
        return False

    def done_in_ramp(self, problems: Sequence[str]) -> bool:
        return False


ENGINES.add(Sweep())
