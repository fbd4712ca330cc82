# SPDX-License-Identifier: BSD-3-Clause
"""What figures need of the raw files of runs: throughput and latency over time, latency histograms.

Reading the raw files of thousands of runs takes long, so what was read is kept in CAMPAIGN/cache, a file per run, and
used again as long as size and time of change of the raw files are what they were.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from userblk.harness.engines import fio
from userblk.harness.observing.histogram import Bins, merged
from userblk.harness.observing.warmup import Interval
from userblk.harness.running.archive import CACHE

from .summaries import Campaign, Run, SummaryError, read_json

SCHEMA = 3
POINTS = 200  # at most, of a series
PARALLEL = 200  # runs to read from which on it is worth processes of its own
Key = tuple[str, str, str, str, str]  # host, suite, device, workload, system


@dataclass(frozen=True)
class Details:
    """Details of one run. The series have a value per step from the start of the logs, None where none was completed.

    problem: why there is nothing, in a line.
    """

    kops: Sequence[float | None] = ()
    latency_us: Sequence[float | None] = ()
    bins: Bins = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Band:
    """Mean of the runs in each step of a series, and the lowest and highest of them."""

    mean: Sequence[float | None]
    low: Sequence[float | None]
    high: Sequence[float | None]


@dataclass(frozen=True)
class CellDetails:
    """Details of all valid runs of a cell: step_s is the width of a step of the series, bins the merged histogram."""

    step_s: float
    kops: Band
    latency_us: Band
    bins: Bins


# ---- one run --------------------------------------------------------------------


def _series(intervals: Sequence[Interval], group: int) -> tuple[list[float | None], list[float | None]]:
    """kop/s and us of every group of intervals; a latency is None where nothing was completed."""
    kops: list[float | None] = []
    latency: list[float | None] = []
    for at in range(0, len(intervals), group):
        part = intervals[at : at + group]
        operations = sum(one.operations for one in part)
        kops.append(round(operations / sum(one.end - one.start for one in part) / 1e3, 6))
        waited = sum(one.waited_us for one in part)
        latency.append(round(waited / operations, 6) if operations else None)
    return kops, latency


def _fio(directory: Path, run: Run, interval_s: float, group: int) -> Details:
    job = read_json(directory / "fio.json")["jobs"][0]
    sides = job["read"], job["write"]
    bins = merged(side["clat_ns"].get("bins", {}) for side in sides)
    waiting = sum(fio.under_way(side, side["runtime"] / 1e3) for side in sides)
    return Details(*_series(fio.series(directory / fio.IOPS_LOG, interval_s, waiting), group), bins)


def _flow(directory: Path, run: Run, interval_s: float, group: int) -> Details:
    report = read_json(directory / SOURCES[run.engine].files[0])
    found = [one for one in report["intervals"] if one["end_s"] > one["start_s"]]
    intervals = [Interval(one["start_s"], one["end_s"], one["ops"], one["latency_ns"]["sum"] / 1e3) for one in found]
    # What was measured is the end of it.
    begin = intervals[-1].end - run.duration_s - interval_s / 2 if intervals else 0.0
    bins = merged(one["latency_ns"]["bins"] for one in found if one["start_s"] >= begin)
    return Details(*_series(intervals, group), bins)


@dataclass(frozen=True)
class Source:
    """The raw files of an engine's runs, and their reader, which has the arguments of read_details()."""

    files: tuple[str, ...]
    read: Callable[[Path, Run, float, int], Details]


FIO = Source(("fio.json", fio.IOPS_LOG), _fio)
SOURCES = {"fio": FIO, "fio-files": FIO, "flow": Source(("flow.json",), _flow), "ops": Source(("ops.json",), _flow)}


def read_details(directory: Path, run: Run, interval_s: float, group: int) -> Details:
    """From the raw files in a run's directory. interval_s: of the logs; group: intervals in a step of the series."""
    try:
        return SOURCES[run.engine].read(directory, run, interval_s, group)
    except SummaryError as error:
        return Details(problem=str(error))
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        return Details(problem=f"{directory}: raw files cannot be read: {type(error).__name__} {error}")


# ---- kept ------------------------------------------------------------------------


def _stamp(directory: Path, engine: str, *parameters: float) -> list[object]:
    """What must be the same for kept details to hold."""
    stamp: list[object] = [SCHEMA, *parameters]
    for name in SOURCES[engine].files:
        with contextlib.suppress(OSError):
            status = os.stat(directory / name)
            stamp.append([name, status.st_size, status.st_mtime_ns])
    return stamp


def _kept(file: Path, stamp: list[object]) -> Details | None:
    try:
        value = json.loads(file.read_bytes())
        if value["stamp"] != stamp:
            return None
        return Details(value["kops"], value["latency_us"], {int(k): n for k, n in value["bins"].items()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _keep(file: Path, stamp: list[object], details: Details) -> None:
    """A campaign that cannot be written to is read again each time."""
    value = {"stamp": stamp, "kops": details.kops, "latency_us": details.latency_us, "bins": details.bins}
    temporary = file.with_name(f"{file.name}.{os.getpid()}.new")
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps(value, separators=(",", ":")))
        temporary.rename(file)


@dataclass(frozen=True)
class _Task:
    campaign: Path
    run: Run
    interval_s: float
    group: int

    def details(self) -> Details:
        directory = self.campaign / self.run.directory
        file = self.campaign / CACHE / ("+".join(self.run.directory.parts) + ".json")
        stamp = _stamp(directory, self.run.engine, self.interval_s, self.group, self.run.duration_s)
        details = _kept(file, stamp)
        if details is None:
            details = read_details(directory, self.run, self.interval_s, self.group)
            if not details.problem:
                _keep(file, stamp, details)
        return details


def _details(task: _Task) -> Details:
    return task.details()


def _logging(campaign: Campaign) -> tuple[float, dict[str, int]]:
    """Seconds between lines of the logs; how many are a step of a series, by engine. Raises SummaryError."""
    file = campaign.directory / "plan.json"
    try:
        profile: Mapping[str, Any] = read_json(file)["profile"]
        files = profile["files"]
        earlier = profile.get("series_ms", profile["interval_ms"])  # in plans before schema 4
        interval = profile.get("workload_interval_ms", earlier) / 1e3
        seconds = {
            "fio": profile["ramp_s"] + profile["runtime_s"],
            "flow": files["ramp_s"] + max(files["runtime_s"], files["macro_runtime_s"]),
            "ops": files["ramp_s"] + files["runtime_s"],
            "fio-files": files["ramp_s"] + files["runtime_s"],
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise SummaryError(f"{file}: not a plan: {type(error).__name__} {error}") from None
    return interval, {name: max(1, math.ceil(value / interval / POINTS)) for name, value in seconds.items()}


# ---- cells ------------------------------------------------------------------------


def _band(series: Sequence[Sequence[float | None]]) -> Band:
    mean: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for step in range(max(map(len, series), default=0)):
        values = [one[step] for one in series if step < len(one)]
        present = [value for value in values if value is not None]
        mean.append(fmean(present) if present else None)
        low.append(min(present, default=None))
        high.append(max(present, default=None))
    return Band(mean, low, high)


def cell_details(campaign: Campaign) -> tuple[dict[Key, CellDetails], list[str]]:
    """Details of every cell with a valid run, and a line for each file not readable. Raises SummaryError."""
    interval, groups = _logging(campaign)
    runs = [run for run in campaign.runs if run.valid and run.engine in SOURCES]
    tasks = [_Task(campaign.directory, run, interval, groups[run.engine]) for run in runs]
    with contextlib.suppress(OSError):
        (campaign.directory / CACHE).mkdir(exist_ok=True)
    if len(tasks) >= PARALLEL:
        with ProcessPoolExecutor() as pool:
            found = list(pool.map(_details, tasks, chunksize=50))
    else:
        found = [task.details() for task in tasks]
    grouped: dict[Key, list[Details]] = defaultdict(list)
    steps: dict[Key, float] = {}
    for task, details in zip(tasks, found, strict=True):
        run = task.run
        key = (run.host, run.suite, run.device, run.workload, run.system)
        steps[key] = interval * task.group
        grouped[key].append(details)
    cells = {
        key: CellDetails(
            steps[key],
            _band([one.kops for one in several]),
            _band([one.latency_us for one in several]),
            merged(one.bins for one in several),
        )
        for key, several in grouped.items()
    }
    return cells, [details.problem for details in found if details.problem]
