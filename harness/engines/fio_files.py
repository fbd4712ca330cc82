# SPDX-License-Identifier: BSD-3-Clause
"""fio on a file system: a file for each thread. What reads finds its files made, what writes makes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..model import tables
from ..model.config import Parameter, Profile, Suite, Workload
from ..model.parts import ENGINES, FILL_BYTES_PER_S, History
from ..model.tables import ConfigError, Table
from . import Result, fio
from .base import FIO_MODES, Run, paper_of, times_in
from .flow import Flow, values_of

SYNCED = "fdatasync"
SYNCS = (fio.END_FSYNC, SYNCED)  # options of fio that a mode may have
LAYOUT_BLOCK = 1 << 20


def argv(workload: Workload, device: str, directory: Path, *options: str) -> list[str]:
    """What both phases have: buffered, closed loop, one outstanding operation a thread."""
    size = workload.variables[device]["size"] // workload.threads // workload.block_size * workload.block_size
    return [
        "fio",
        "--name=data",
        f"--directory={directory}",
        "--ioengine=psync",
        "--direct=0",
        "--thread=1",
        f"--numjobs={workload.threads}",
        f"--size={size}",
        "--fallocate=none",  # which not every file system can: all lay their files out in the same way
        "--invalidate=0",  # the caches were dropped
        "--group_reporting=1",
        "--eta=never",
        *options,
    ]


def as_on_a_device(profile: Profile, workload: Workload) -> Profile:
    """
    With the times of files where those of devices are. All writers of a run in virtual time are measured in one window
    there, too.
    """
    files = profile.files
    fixed = profile.fixed_warm_up or (profile.virtual and fio.through_write_back(workload))
    times = {"ramp_s": files.ramp_s, "runtime_s": files.seconds(workload)}
    return dataclasses.replace(profile, **times, fixed_warm_up=fixed)


def _workloads(suite: str, table: Table, profile: str) -> Iterator[Workload]:
    """Workloads from the rest of a suite's table: each mode with each number of threads."""
    parameters, threads = paper_of(table), tables.counts(table, "threads")
    timing, modes = times_in(table, profile), table.table("modes")
    table.end(("name", "engine", "systems", "parameters", "threads", "modes", "timing"))
    for mode in list(modes.values):
        one = modes.table(mode)
        rw, size = one.text("rw", FIO_MODES), one.text("block_size")
        fixed = {key: one.integer(key, 0) for key in SYNCS if key in one.values}
        one.end(("rw", "block_size", *SYNCS))
        for count in threads:
            yield Workload(
                f"{mode}-{count}th-{size}",
                rw,
                count,
                tables.block_size(one, "block_size", size),
                suite,
                "fio-files",
                fixed=fixed,
                parameters=parameters,
                timing=timing,
            )


class FioFiles(Flow):
    """fio on a new ext4, or on a file system over it."""

    name = "fio-files"
    operation = ""
    results = "fio"
    history = History((fio.REPORT, fio.IOPS_LOG), fio.read_history, lambda profile: fio.logged_s(profile["files"]))

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        return Suite(name, tuple(_workloads(name, table, profile)), systems)

    def with_values(
        self, workload: Workload, profile: Profile, parameters: Sequence[Parameter], devices: Sequence[str]
    ) -> Workload:
        """size: bytes of all files together. Raises ConfigError."""
        values = {device: values_of(workload, profile, parameters, device) for device in devices}
        for device, found in values.items():
            if "size" not in found:
                paper = f"configs/papers/{workload.parameters}/parameters.toml"
                raise ConfigError(f"{paper}: size of {workload.id} on {device} is missing; add it")
        return dataclasses.replace(workload, variables=values)

    def written(self, workload: Workload, profile: Profile, device: str) -> int:
        """Its files, once; what is synced after each write goes to the journal, too, as long as it runs."""
        files = min(workload.variables[device]["size"], profile.files.size[device])
        journalled = self.duration_s(workload, profile) * FILL_BYTES_PER_S if SYNCED in workload.fixed else 0
        return self.new_bytes(profile, device) + files + int(journalled)

    def programs(self, build: str) -> list[str]:
        return ["fio"]

    def create(self, run: Run, program: Path, directory: Path) -> list[str]:
        if run.workload.writes:
            return []
        return argv(
            run.workload,
            run.entry.device,
            directory,
            "--rw=write",
            f"--bs={min(LAYOUT_BLOCK, run.workload.block_size)}",
            "--end_fsync=1",
            "--output-format=terse",
        )

    def measured(self, run: Run, program: Path, directory: Path, results: Path) -> list[str]:
        workload, timed = run.workload, as_on_a_device(run.profile, run.workload)
        ramp_s, runtime_s = fio.fio_times(workload, timed)
        return argv(
            workload,
            run.entry.device,
            directory,
            f"--rw={workload.rw}",
            f"--bs={workload.block_size}",
            "--norandommap=1",
            *(f"--{name}={value}" for name, value in workload.fixed.items()),
            f"--allow_file_create={int(workload.writes)}",
            f"--ramp_time={fio.fio_time(ramp_s)}",
            f"--runtime={fio.fio_time(runtime_s)}",
            "--randrepeat=0",
            f"--randseed={run.entry.seed}",
            *fio.log_options(run.profile, results.parent),
        )

    def read_results(self, run: Run, results: Path) -> Result:
        result = fio.parse(results, run.workload, as_on_a_device(run.profile, run.workload))
        if SYNCED not in run.workload.fixed or not result.throughput_kops:
            return result
        # fio's latencies are of the writes alone, which on a page cache cost nothing beside the sync that follows.
        each = run.workload.threads * 1e3 / result.throughput_kops
        return dataclasses.replace(result, latency_us=each, metrics={})


ENGINES.add(FioFiles())
