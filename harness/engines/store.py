# SPDX-License-Identifier: BSD-3-Clause
"""fio jobs of the suite over a store, and the figures in what fio writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..model.config import Figure, Profile, Suite, SystemConfig, Workload
from ..model.parts import ENGINES, Engine, Kind
from ..model.tables import Table, block_size, counts
from . import LEAST_RUNTIME, WorkloadError
from .base import FIO_MODES
from .fio import read_report

FILL_BLOCK, FILL_DEPTH = 1 << 20, 16
FILL_LIMIT = 7200.0  # s
FILL_BYTES_PER_S = 60_000_000  # of filling a volume: for the estimate only
FIGURE_AXES = ("block_size", "jobs")


def fill_argv(target: Sequence[str], size: int) -> list[str]:
    """Writes all of a volume, and flushes."""
    argv = ["fio", "--name=fill", *target, "--rw=write", f"--bs={FILL_BLOCK}", f"--iodepth={FILL_DEPTH}"]
    return [*argv, f"--size={size}", "--end_fsync=1", "--eta=never"]


def argv(workload: Workload, runtime_s: int, size: int, target: Sequence[str], seed: int, directory: Path) -> list[str]:
    """Closed loop for the whole time; sequential jobs have a part of the volume each. Writes end with a flush."""
    random = workload.rw.startswith("rand")
    part = size if random else size // workload.threads // workload.block_size * workload.block_size
    return [
        "fio",
        f"--name={workload.id}",
        *target,
        f"--rw={workload.rw}",
        f"--bs={workload.block_size}",
        f"--iodepth={workload.depth}",
        f"--numjobs={workload.threads}",
        f"--size={part}",
        *([] if random else [f"--offset_increment={part}"]),
        "--time_based",
        f"--runtime={runtime_s}",
        "--norandommap",
        "--randrepeat=0",
        f"--randseed={seed}",
        *(["--end_fsync=1"] if workload.writes else []),
        "--group_reporting=1",
        "--eta=never",
        "--output-format=json+",
        f"--output={directory / 'fio.json'}",
    ]


@dataclass(frozen=True)
class StoreResult:
    """Result of the whole run: throughput of writes is until all was flushed. problems: why it may not be used."""

    throughput_kops: float
    throughput_mbps: float
    latency_us: float
    duration_s: float
    version: str
    problems: tuple[str, ...]


def parse(path: Path, workload: Workload, later: float) -> StoreResult:
    """
    later: seconds from fio's end until all was stored. fio's runtime of writes goes on until its last flush; what it
    takes to start and to end is not of the load. Raises WorkloadError.
    """
    try:
        report = read_report(path)
        (job,) = report["jobs"]
        side = job["write" if workload.writes else "read"]
        operations, done, latency = side["total_ios"], side["io_bytes"], side["lat_ns"]["mean"]
        span = side["runtime"] / 1e3 + later * workload.writes
        problems = [f"fio reports error {job['error']}"] if job["error"] else []
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkloadError(f"{path.name} cannot be read: {error}") from None
    if not operations or span < LEAST_RUNTIME:
        problems.append(f"fio completed {operations} operations in {span:.2f} s")
        span = max(span, LEAST_RUNTIME)
    return StoreResult(
        throughput_kops=operations / span / 1e3,
        throughput_mbps=done / span / 1e6,
        latency_us=latency / 1e3,
        duration_s=span,
        version=str(report.get("fio version", "")),
        problems=tuple(problems),
    )


def latencies_of(table: Table) -> tuple[int, ...]:
    """How far the suite's stores are away, in ms."""
    latencies = []
    for value in table.array("latencies_ms"):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10000:
            raise table.error("latencies_ms", value, "must be a whole number of milliseconds, 0 to 10000")
        latencies.append(value)
    return tuple(latencies)


def _suite(table: Table, name: str, profile: str, systems: tuple[str, ...]) -> Suite:
    """Its figures share workloads."""
    latencies = latencies_of(table)
    items = table.array("figure")
    table.end(("name", "engine", "latencies_ms", "figure"))
    figures = []
    workloads: dict[str, Workload] = {}
    for number, item in enumerate(items, 1):
        one = Table(table.file, item if isinstance(item, dict) else {}, f"figure {number}: ")
        title, x = one.text("title"), one.text("x", FIGURE_AXES)
        modes = one.table("modes")
        points = one.table(profile)
        for other in list(one.values):  # of other profiles
            one.table(other)
        sizes = points.array("block_sizes")
        depths = counts(points, "depths")
        jobs = counts(points, "jobs")
        points.end(("block_sizes", "depths", "jobs"))
        ids = []
        for mode in list(modes.values):
            rw = modes.text(mode, FIO_MODES)
            for depth in depths:
                for count in jobs:
                    for size in sizes:
                        one_id = f"{mode}-{count}th-{size}-d{depth}"
                        size_bytes = block_size(points, "block_sizes", size)
                        workloads[one_id] = Workload(one_id, rw, count, size_bytes, name, "store", depth=depth)
                        ids.append(one_id)
        figures.append(Figure(title, x, tuple(ids)))
    return Suite(name, tuple(workloads.values()), systems, latencies, tuple(figures))


class OverStore(Engine):
    """fio on a volume over a store; the runner of stores runs it."""

    name = "store"
    own_report = True
    measures = "store"
    runner = "userblk.harness.running.store_runner"
    lab_mib = 8192  # the store is in memory
    has_ramp = False
    tables_so_far = False  # a figure says little before it is complete

    def check_device(self, profile: Profile, device: str) -> None:
        """Accept any device: no workload of this engine uses an area of it."""

    def repetitions(self, profile: Profile) -> int | None:
        return profile.store.repetitions

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        return _suite(table, name, profile, systems)

    def fits(self, workload: Workload, system: SystemConfig, kind: Kind) -> bool:
        return kind.of_store

    def used_bytes(self, profile: Profile, device: str) -> int:
        return 0

    def start_s(self, profile: Profile) -> float:
        return profile.bring_up_s + profile.store.size / FILL_BYTES_PER_S

    def duration_s(self, workload: Workload, profile: Profile) -> float:
        return profile.store.runtime_s

    def overhead_s(self, profile: Profile) -> float:
        return profile.store.overhead_s

    def written(self, workload: Workload, profile: Profile, device: str) -> int:
        return 0


ENGINES.add(OverStore())
