# SPDX-License-Identifier: BSD-3-Clause
"""What an application saw when a server ended under load: suite failover, as a table and as throughput over time."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from . import drawing
from .report import ALL_HOSTS, INTERVALS, Report, interval_fields, interval_of, of_suite, place, some_text, summaries_of
from .summaries import SUMMARY, SummaryError, lab_words
from .table import DEVICES, SYSTEMS, ordered

SUITE = "failover"
EVENTS = {"kill": "killed", "replace": "replaced"}
MEASURES = (
    ("failed_requests", "Requests failed", 1),
    ("lost_blocks", "Blocks lost", 1),
    ("stall_s", "Longest stall (s)", 2),
    ("recovery_s", "Back at 90 % after (s)", 2),
    ("before_kops", "Before (kop/s)", 2),
)
LOAD = (
    "fio writes 4 KiB blocks at random at depth 16; beside it, a second job writes at a steady pace and reads all of it"
    " back at the end.",
    "Requests failed, blocks lost (acknowledged writes that were not read back): mean of all runs.",
)
RESOLUTION = (
    "Longest stall: the longest time that a request took, or in which none came back, not even as failed (at a"
    " resolution of {interval_s:g} s; fio keeps no time of requests that failed). Back at 90 %: from the event until"
    " the mean of {window_s:g} s was 90 % of the throughput before, at a resolution of {interval_s:g} s."
)
FRAMEWORKS = (
    "nbd: connections are given to the kernel again; what the server had is sent again after 10 s, the timeout chosen."
    " TCMU: the new daemon resets the ring, and the kernel sends everything again. ublk: the kernel sends again what"
    " the server had, or it is quiesced (Linux 6.16) when it is replaced.",
    "FUSE and BUSE are not in the table, because there is nothing to measure. When the FUSE daemon is gone all open"
    " files fail (ENOTCONN), until the file system is mounted again and they are opened again; the disk of BUSE ends"
    " with its server.",
)
OLD = {"window_s": 1.0, "interval_s": 0.1}  # of summaries that do not say so
BEFORE_S, INTERVALS_OF_BIN = 5.0, 2.5  # of the figures


@dataclass(frozen=True)
class Run:
    """One run. series: seconds from the event, kop/s of the interval of interval_s that ends there."""

    device: str
    event: str
    system: str
    measures: Mapping[str, float]
    series: Sequence[tuple[float, float]]
    interval_s: float = OLD["interval_s"]
    window_s: float = OLD["window_s"]


def _series(path: Path, event_s: float) -> list[tuple[float, float]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [
                (float(row["time_s"]) - event_s, float(row["read_kops"]) + float(row["write_kops"]))
                for row in csv.DictReader(file)
            ]
    except (OSError, KeyError, ValueError) as error:
        raise SummaryError(f"{path}: cannot be read: {error}") from None


def _run(directory: Path, summary: Mapping[str, Any]) -> Run:
    settings = {**OLD, **summary["settings"][SUITE]}
    values = {name: {**settings, **summary["metrics"]}.get(name) for name, _, _ in MEASURES}
    return Run(
        device=summary["device"],
        event=summary["workload"],
        system=summary["system"],
        measures={name: float(value) for name, value in values.items() if value is not None},
        series=_series(directory / "samples.csv", float(settings["event_s"])),
        interval_s=float(settings["interval_s"]),
        window_s=float(settings["window_s"]),
    )


def reports(directory: Path, host: str = ALL_HOSTS) -> list[Report]:
    """The reports on a campaign; none without a finished run. Raises SummaryError."""
    found = list(summaries_of(directory, SUITE, host))
    if not found:
        return []
    runs = []
    for path, summary in found:
        if summary["valid"]:
            with of_suite(SUITE, path / SUMMARY):
                runs.append(_run(path, summary))
    said = [RESOLUTION.format(interval_s=run.interval_s, window_s=run.window_s) for run in runs]
    resolution = tuple(dict.fromkeys(said))
    where, facts = place([summary for _, summary in found])
    cells: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        cells[run.device, run.event, run.system].append(run)
    keys = [
        (device, event, system)
        for device in ordered({run.device for run in runs}, DEVICES)
        for event in ordered({run.event for run in runs}, EVENTS)
        for system in ordered({run.system for run in runs}, SYSTEMS)
        if (device, event, system) in cells
    ]
    rows, records = [], []
    for device, event, system in keys:
        cell = cells[device, event, system]
        texts = []
        for name, _, decimals in MEASURES:
            values = [run.measures[name] for run in cell if name in run.measures]
            texts.append(some_text(values, len(cell), decimals))
            fields = (device, event, system, name, str(len(values)), *interval_fields(interval_of(values)))
            records.append(fields)
        head = (DEVICES.get(device, device), SYSTEMS.get(system, system), EVENTS.get(event, event), str(len(cell)))
        rows.append((*head, *texts))
    figures = {
        f"{SUITE}-{device}-{event}": partial(
            _draw, f"{DEVICES.get(device, device)}, server {EVENTS.get(event, event)}, {where}", panels
        )
        for device, event in dict.fromkeys(key[:2] for key in keys)
        if (panels := [(key[2], cells[key]) for key in keys if key[:2] == (device, event)])
    }
    return [
        Report(
            name=SUITE,
            title=f"A server's end under load, {where}",
            notes=(*facts, *LOAD, *resolution, INTERVALS, *FRAMEWORKS),
            columns=("Device", "System", "Server", "Runs", *(title for _, title, _ in MEASURES)),
            rows=tuple(rows),
            heads=("device", "event", "system", "measure", "n", "mean", "ci_low", "ci_high"),
            records=tuple(records),
            emulated=max(lab_words(summary) for _, summary in found),
            figures=figures,
        )
    ]


def mean_series(runs: Sequence[Run]) -> list[tuple[float, float]]:
    """Mean of all runs in bins of some intervals: the middle of the bin in s, kop/s."""
    width = INTERVALS_OF_BIN * max(run.interval_s for run in runs)
    bins: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        for time, rate in run.series:
            bins[int(time // width)].append(rate)
    return [((number + 0.5) * width, fmean(rates)) for number, rates in sorted(bins.items())]


def _draw(title: str, panels: Sequence[tuple[str, Sequence[Run]]]) -> Any:
    """Throughput over time around the event, a panel a system: each run, and their mean."""
    figure = drawing.new_figure(9, 1.8 * len(panels) + 1.2)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (system, runs) in zip(axes, panels, strict=True):
        for run in runs:
            axis.plot(*zip(*run.series, strict=True), color="0.75", linewidth=0.7)
        axis.plot(*zip(*mean_series(runs), strict=True), color="#7a1f1a", linewidth=1.4)
        axis.axvline(0, color="black", linewidth=0.8, linestyle="--")
        axis.set_ylabel("kop/s")
        axis.set_ylim(bottom=0)
        runs_text = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        axis.set_title(f"{SYSTEMS.get(system, system)}, {runs_text}", loc="left", fontsize=9)
    first = min((run.series[0][0] for _, runs in panels for run in runs if run.series), default=-BEFORE_S)
    axes[-1].set_xlim(left=max(-BEFORE_S, first))
    axes[-1].set_xlabel("seconds from the event")
    figure.suptitle(title, fontsize=10)
    return figure
