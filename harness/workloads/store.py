# SPDX-License-Identifier: BSD-3-Clause
"""fio jobs of the suite over a store, and the figures in what fio writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import Workload
from . import LEAST_RUNTIME, WorkloadError
from .fio import read_report

FILL_BLOCK, FILL_DEPTH = 1 << 20, 16
FILL_LIMIT = 7200.0  # s


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
    """Of the whole run: throughput of writes is until all was flushed. problems: why it may not be used."""

    throughput_kops: float
    throughput_mbps: float
    latency_us: float
    duration_s: float
    version: str
    problems: tuple[str, ...]


def parse(path: Path, workload: Workload, seconds: float) -> StoreResult:
    """seconds: until all was flushed, of which fio's own figures know nothing. Raises WorkloadError."""
    try:
        report = read_report(path)
        (job,) = report["jobs"]
        side = job["write" if workload.writes else "read"]
        operations, done, latency = side["total_ios"], side["io_bytes"], side["lat_ns"]["mean"]
        span = seconds if workload.writes else side["runtime"] / 1e3
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
