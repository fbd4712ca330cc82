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
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from userblk.harness.model.parts import ENGINES, Engine, History
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


def _history(run: Run) -> History | None:
    """What the run's engine says of it; None, too, where that is not here."""
    return ENGINES.get(run.engine, Engine()).history


def read_details(directory: Path, run: Run, interval_s: float, group: int) -> Details:
    """From the raw files in a run's directory. interval_s: of the logs; group: intervals in a step of the series."""
    history = _history(run)
    assert history is not None
    try:
        intervals, bins = history.read(directory, run.duration_s, interval_s)
        return Details(*_series(intervals, group), bins)
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        return Details(problem=f"{directory}: raw files cannot be read: {type(error).__name__} {error}")


# ---- kept ------------------------------------------------------------------------


def _stamp(directory: Path, files: Sequence[str], *parameters: float) -> list[object]:
    """What must be the same for kept details to hold."""
    stamp: list[object] = [SCHEMA, *parameters]
    for name in files:
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
    files: Sequence[str]
    interval_s: float
    group: int

    def details(self) -> Details:
        directory = self.campaign / self.run.directory
        file = self.campaign / CACHE / ("+".join(self.run.directory.parts) + ".json")
        stamp = _stamp(directory, self.files, self.interval_s, self.group, self.run.duration_s)
        details = _kept(file, stamp)
        if details is None:
            details = read_details(directory, self.run, self.interval_s, self.group)
            if not details.problem:
                _keep(file, stamp, details)
        return details


def _details(task: _Task) -> Details:
    return task.details()


def _logging(campaign: Campaign, histories: Mapping[str, History]) -> tuple[float, dict[str, int]]:
    """Seconds between lines of the logs; how many are a step of a series, by engine. Raises SummaryError."""
    file = campaign.directory / "plan.json"
    try:
        profile: Mapping[str, Any] = read_json(file)["profile"]
        earlier = profile.get("series_ms", profile["interval_ms"])  # in plans before schema 4
        interval = profile.get("workload_interval_ms", earlier) / 1e3
        seconds = {engine: history.seconds(profile) for engine, history in histories.items()}
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
    valid = [run for run in campaign.runs if run.valid]
    histories = {run.engine: history for run in valid if (history := _history(run))}
    interval, groups = _logging(campaign, histories)
    tasks = [
        _Task(campaign.directory, run, histories[run.engine].files, interval, groups[run.engine])
        for run in valid
        if run.engine in histories
    ]
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
