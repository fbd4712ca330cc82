# SPDX-License-Identifier: BSD-3-Clause
"""fio jobs of the block suite and the figures in what fio writes."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ..config import Profile, Workload
from . import LEAST_RUNTIME, Result, WorkloadError


def subrange(workload: Workload, area: int) -> int:
    """Bytes of each thread's part of the area."""
    return area // workload.threads // workload.block_size * workload.block_size


def argv(workload: Workload, profile: Profile, area: int, device: str, seed: int, directory: Path) -> list[str]:
    """The command line. Buffered, closed loop, one outstanding operation a thread, each thread on its own part.

    There is no time_based: a run ends early when its parts are done, as in the paper, since a second pass
    would read from the page cache. A workload with a depth goes past that, and on for the whole time.
    """
    size = subrange(workload, area)
    log = directory / "fio"
    engine = ["--ioengine=psync", "--iodepth=1", "--direct=0"]
    if workload.depth:
        engine = ["--ioengine=io_uring", f"--iodepth={workload.depth}", "--direct=1", "--time_based=1"]
        engine += ["--end_fsync=1"] * workload.writes
    return [
        "fio",
        f"--name={workload.id}",
        f"--filename={device}",
        *engine,
        "--thread=1",
        f"--numjobs={workload.threads}",
        f"--rw={workload.rw}",
        f"--bs={workload.block_size}",
        f"--size={size}",
        f"--offset_increment={size}",
        "--invalidate=1",
        "--allow_file_create=0",
        f"--ramp_time={profile.ramp_s}",
        f"--runtime={profile.runtime_s}",
        "--randrepeat=0",
        f"--randseed={seed}",
        "--group_reporting=1",
        f"--write_bw_log={log}",
        f"--write_iops_log={log}",
        f"--write_lat_log={log}",
        f"--log_avg_msec={profile.interval_ms}",
        "--per_job_logs=0",
        "--eta=never",
        "--output-format=json+",
        f"--output={directory / 'fio.json'}",
    ]


def parse(path: Path, workload: Workload, profile: Profile) -> Result:
    """Raises WorkloadError if there is nothing to read."""
    try:
        report = json.loads(path.read_text())
        job = report["jobs"][0]
        side = job["write" if workload.writes else "read"]
        other = job["read" if workload.writes else "write"]
        seconds = side["runtime"] / 1e3
        operations = side["total_ios"]
        result_bytes = side["io_bytes"]
        latency = side["lat_ns"]
        job_start = job.get("job_start", 0) / 1e3  # s since 1970, of the end of the ramp; an old fio does not tell
        errors = [j["error"] for j in report["jobs"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkloadError(f"{path.name} cannot be read: {error}") from None
    problems = [f"fio reports error {error}" for error in errors if error]
    warnings = []
    if len(report["jobs"]) != 1:
        problems.append(f"fio reports {len(report['jobs'])} groups instead of one")
    if not operations or not latency["N"]:
        problems.append("fio completed no operation after the ramp")
    if other["total_ios"]:
        problems.append("fio did operations of the other direction")
    if seconds < LEAST_RUNTIME:
        problems.append(f"measured for {seconds:.2f} s only; use a larger area")
    elif seconds < 0.9 * profile.runtime_s:
        warnings.append(f"early end: after {seconds:.1f} s of {profile.runtime_s} s its area was done")
    span = seconds or 1.0
    return Result(
        throughput_kops=operations / span / 1e3,
        throughput_mbps=result_bytes / span / 1e6,
        latency_us=latency["mean"] / 1e3,
        duration_s=seconds,
        measured_from=job_start - time.time() + time.monotonic() if job_start else 0.0,
        version=str(report.get("fio version", "")),
        problems=tuple(problems),
        warnings=tuple(warnings),
    )
