# SPDX-License-Identifier: BSD-3-Clause
"""Workload files for userblk-flow, and the figures in the results that it writes (docs/flow.md)."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from userblk.analysis.histogram import tails

from .. import steady
from ..config import Profile, Workload
from ..paths import CONFIGS
from ..steady import Interval
from . import LEAST_RUNTIME, Result, WorkloadError

SCHEMA = 1
RAMP_SHARE = 0.2  # of a run whose work is done, at most, is discarded as its ramp
CREATE_LIMIT = 36000.0  # s: four million files through a slow system


def argv(
    program: Path, workload: Workload, device: str, directory: Path, seed: int, phase: str, *options: str
) -> list[str]:
    """The command line of one phase. directory: where the files are made, on the file system."""
    words = [f"--set=dir={directory}"]
    words += [f"--set={name}={value}" for name, value in workload.variables[device].items()]
    file = CONFIGS / "workloads" / f"{workload.id}.f"
    return [str(program), "--quiet", f"--phase={phase}", f"--seed={seed}", *words, *options, str(file)]


def run_options(profile: Profile, results: Path) -> list[str]:
    """Of the measured phase."""
    return [f"--interval={profile.series_ms / 1e3:g}", f"--json={results}"]


def _measured(intervals: Sequence[dict[str, Any]], ramp: float, interval: float) -> Sequence[dict[str, Any]]:
    """The intervals after the ramp; one that begins a little before its end counts, as clocks of samplers go."""
    least = max(ramp - interval / 2, min(ramp, interval) / 2)
    return [one for one in intervals if one["start_s"] >= least]


def _series(measured: Sequence[dict[str, Any]], begin: float, length: float) -> list[Interval]:
    """The intervals, counted from begin; the last one may be cut short, and its rate says little then."""
    return [
        Interval(one["start_s"] - begin, one["end_s"] - begin, one["ops"], one["latency_ns"]["sum"] / 1e3)
        for one in measured
        if one["end_s"] - one["start_s"] > length / 2
    ]


def parse(path: Path, workload: Workload, profile: Profile) -> Result:
    """Raises WorkloadError if there is nothing to read."""
    try:
        report = json.loads(path.read_text())
        if report["schema"] != SCHEMA:
            raise WorkloadError(f"{path.name}: schema {report['schema']} instead of {SCHEMA}")
        return _result(report, workload, profile)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkloadError(f"{path.name} cannot be read: {type(error).__name__} {error}") from None


def _result(report: dict[str, Any], workload: Workload, profile: Profile) -> Result:
    full, planned = profile.files.ramp_s, profile.files.seconds(workload)
    done = report["end"] not in ("time", "early", "interrupted")
    # A fast device may be through all files before the ramp is over, and more files would be more than memory holds.
    ramp = min(full, RAMP_SHARE * report["duration_s"]) if done and not profile.fixed_warm_up else full
    measured = _measured(report["intervals"], ramp, profile.series_ms / 1e3)
    begin = measured[0]["start_s"] if measured else report["duration_s"]
    warm_up = steady.find(_series(measured, begin, profile.series_ms / 1e3), profile.fixed_warm_up)
    measured = [one for one in measured if one["start_s"] - begin >= warm_up.cut_s - profile.series_ms / 2e3]
    seconds = sum(one["end_s"] - one["start_s"] for one in measured)
    operations = sum(one["ops"] for one in measured)
    bins: Counter[int] = Counter()
    flowops: Counter[str] = Counter()
    for one in measured:
        bins.update({int(name): count for name, count in one["latency_ns"]["bins"].items()})
        flowops.update(one["flowops"])
    types = {row["name"]: row["type"] for row in report["flowops"]}
    span = seconds or 1.0
    files = sum(count for name, count in flowops.items() if types[name] == workload.files)

    problems, warnings = [], []
    end, lost = report["end"], report["threads_without_file"]
    ran = f"after {report['duration_s']:.1f} s of {full + planned} s"
    if end == "early":
        problems.append(f"{ran} {lost} threads found no file any more; give it more files")
    elif end == "interrupted":
        problems.append(f"interrupted {ran}")
    elif done and report["duration_s"] < full + 0.9 * planned:
        instead = f", of which {begin:.1f} s were discarded instead of {full}" if ramp < full else ""
        warnings.append(f"early end: {ran} its files were done{instead}")
    elif end == "time" and lost:
        warnings.append(f"idle threads: {lost} of {report['threads']} had no file left before the end")
    if report["original"]:
        problems.append("ran with --original")
    if not operations:
        problems.append(f"no operation was completed after the ramp; it ran for {report['duration_s']:.1f} s")
    elif seconds < LEAST_RUNTIME:
        problems.append(f"measured for {seconds:.2f} s only; give it more files")
    return Result(
        throughput_kops=operations / span / 1e3,
        throughput_mbps=sum(one["bytes"] for one in measured) / span / 1e6,
        latency_us=sum(one["latency_ns"]["sum"] for one in measured) / max(1, operations) / 1e3,
        duration_s=seconds,
        operations=operations,
        warm_up=warm_up,
        measured_from=report["started_monotonic_s"] + begin,
        version=str(report["program"]),
        problems=tuple(problems),
        warnings=tuple(warnings),
        ramp_s=ramp,
        metrics={
            "files_kops": files / span / 1e3 if workload.files else None,
            **tails(bins),
        },
        settings={
            "end": end,
            "threads": report["threads"],
            "threads_without_file": lost,
            "variables": report["variables"],
            "filesets": report["filesets"],
            "operations": {name: count for name, count in flowops.items() if count},
        },
    )


def write_series(results: Path, path: Path) -> None:
    """The interval series as CSV: time_s counts from the start of the threads. Raises WorkloadError."""
    try:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["time_s", "kops", "mbps", "latency_us"])
            for one in json.loads(results.read_text())["intervals"]:
                span = one["end_s"] - one["start_s"] or 1.0
                values = [one["end_s"], one["ops"] / span / 1e3, one["bytes"] / span / 1e6]
                writer.writerow([f"{value:.6f}" for value in [*values, one["latency_ns"]["mean"] / 1e3]])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkloadError(f"{results.name} cannot be read: {error}") from None
