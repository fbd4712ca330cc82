# SPDX-License-Identifier: BSD-3-Clause
"""userblk-ops: single operations on files, by workers that begin together. Results are read as userblk-flow's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..model.config import VIRTUAL, Parameter, Profile, Suite, SystemConfig, Workload
from ..model.parts import ENGINES, FILL_BYTES_PER_S, Kind
from ..model.tables import Table, counts
from ..systems.base import built
from .base import Run, both_sizes_of, paper_of, times_in
from .fio import logged_s
from .flow import Flow, history_in, run_options

UNIT = 4096  # bytes of a read or write
WRITERS = "WA"  # overwrites and appends go on as long as the run, and come to the dirty limit


def argv(program: Path, workload: Workload, seed: int, phase: str, directory: Path, *options: str) -> list[str]:
    """The command line of one phase. Workers have their files, and the bytes of all, in equal parts."""
    values = dict(workload.fixed)
    if "bytes" in values:
        values["size"] = values.pop("bytes") // workload.threads // UNIT * UNIT
    if "files" in values:
        values["files"] //= workload.threads
    words = [f"--{name}={value}" for name, value in values.items()]
    words += [f"--op={workload.file}", f"--workers={workload.threads}", f"--seed={seed}", f"--phase={phase}"]
    return [str(program), *words, *options, str(directory)]


def _value(table: Table, key: str) -> int:
    return table.size(key, 1) if key in ("bytes", "size") else table.integer(key, 1)


def _sizes(table: Table, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """What the table says of each operation."""
    found = {name: table.table(name, optional=True) for name in names}
    values = {name: {key: _value(one, key) for key in list(one.values)} for name, one in found.items()}
    table.end(names)
    return values


def _workloads(suite: str, table: Table, profile: str) -> Iterator[Workload]:
    """Workloads from the rest of a suite's table: each operation with each number of workers."""
    workers, operations, paper = counts(table, "workers"), table.array("operations"), paper_of(table)
    timing = times_in(table, profile)
    known = [str(name) for name in operations]
    values, virtual = (_sizes(sizes, known) for sizes in both_sizes_of(table, profile))
    table.end(("name", "engine", "systems", "parameters", "workers", "operations", "sizes", "timing"))
    for name in known:
        for count in workers:
            yield Workload(
                f"{name.lower()}-{count}w",
                rw="write" * (name[0] in WRITERS),
                threads=count,
                suite=suite,
                engine="ops",
                file=name,
                fixed=values[name],
                timing=timing,
                variables={VIRTUAL: virtual[name]},  # until it is known which clock and devices there are
                parameters=paper,
            )


class Ops(Flow):
    """Single operations on a new ext4, on a file system over it, or on one that has nothing below."""

    name = "ops"
    operation = (
        "An operation is what its name stands for (userblk-ops --help), once, by workers that begin together; -code: as"
        " the program in the paper's artefact does it."
    )
    history = history_in("ops.json", lambda profile: logged_s(profile["files"]))
    bytes_per_inode = 4096  # many files without data

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        return Suite(name, tuple(_workloads(name, table, profile)), systems)

    def fits(self, workload: Workload, system: SystemConfig, kind: Kind) -> bool:
        return kind.own_files or super().fits(workload, system, kind)

    def beyond(self, workload: Workload, cpus: int) -> str:
        if workload.threads <= cpus:
            return ""
        return f"{workload.threads} workers on CPUs of their own need more than the {cpus} of this machine"

    def with_values(
        self, workload: Workload, profile: Profile, parameters: Sequence[Parameter], devices: Sequence[str]
    ) -> Workload:
        fixed = {**workload.fixed, **(workload.variables.get(VIRTUAL, {}) if profile.virtual else {})}
        return dataclasses.replace(workload, fixed=fixed, variables={device: fixed for device in devices})

    def written(self, workload: Workload, profile: Profile, device: str) -> int:
        """What overwrites and appends may write as long as it runs; the others make files, once."""
        seconds = self.duration_s(workload, profile) if workload.writes else 0.0
        return profile.files.size[device] + int(seconds * FILL_BYTES_PER_S)

    def programs(self, build: str) -> list[str]:
        return [str(built(build, "ops", "userblk-ops"))]

    def create(self, run: Run, program: Path, directory: Path) -> list[str]:
        if not run.plan.systems[run.entry.system].uses_device:
            return []
        return argv(program, run.workload, run.entry.seed, "prepare", directory)

    def measured(self, run: Run, program: Path, directory: Path, results: Path) -> list[str]:
        phase = "run" if run.plan.systems[run.entry.system].uses_device else "all"
        options = run_options(run.workload, run.profile, results)
        return argv(program, run.workload, run.entry.seed, phase, directory, *options)


ENGINES.add(Ops())
