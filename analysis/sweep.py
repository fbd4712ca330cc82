# SPDX-License-Identifier: BSD-3-Clause
"""Throughput of null devices over block sizes, jobs, depths and CPUs: suite buse-null, the BUSE thesis's chapter 5."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from userblk.harness.machine.paths import CONFIGS

from . import drawing
from .palette import look
from .papers import papers_of
from .report import (
    ALL_HOSTS,
    INTERVALS,
    NO_VALUE,
    Report,
    interval_fields,
    interval_of,
    interval_text,
    place,
    size_text,
    summaries_of,
)
from .statistics import Interval
from .summaries import lab_words
from .table import DEVICES, SYSTEMS, ordered

SUITE = "buse-null"
POINT = re.compile(r"([a-z-]+)-(\d+)j-(\d+)d-(\d+[km]?)")
SCALING = re.compile(r"(\w+)-(\d+)cpu")
NOTES = (
    "Sequential fio, io_uring, direct, on null devices: the ceiling of each framework. GB/s, 10^9 bytes.",
    INTERVALS,
)
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}

Samples = dict[str, list[float]]  # of a system: GB/s of each valid run


def block_bytes(text: str) -> int:
    return int(text.rstrip("km")) * UNITS[text.lstrip("0123456789")]


def published() -> dict[tuple[str, int], dict[str, str]]:
    """What papers with this suite measured, as they print it: by mode and number of CPUs, by their system."""
    found: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    for paper in papers_of({SUITE}, CONFIGS):
        tables = [table for number, table in paper.tables.items() if SUITE in paper.suites[number]]
        for (_, workload, system, _), cell in ((key, cell) for table in tables for key, cell in table.cells.items()):
            match, mean = SCALING.fullmatch(workload), cell.mean
            if match and mean and mean.low is not None and mean.high is not None:
                value, below, above = (x / 1e3 for x in (mean.value, mean.value - mean.low, mean.high - mean.value))
                text = f"{value:.2f} (-{below:.2f}, +{above:.2f})"
                found[match[1], int(match[2])][paper.names.get(system, system)] = text
    return dict(found)


def reports(directory: Path, host: str = ALL_HOSTS) -> list[Report]:
    """The reports on a campaign, of each of its devices; none without a finished run. Raises SummaryError."""
    found = [summary for _, summary in summaries_of(directory, SUITE, host)]
    devices = ordered({summary["device"] for summary in found}, DEVICES)
    if len(devices) < 2:  # as with null devices, which have none below them
        return _reports(found, "") if found else []
    return [
        replace(
            one,
            name=f"{one.name}-{device}",
            figures={f"{name}-{device}": draw for name, draw in one.figures.items()},
        )
        for device in devices
        for one in _reports([summary for summary in found if summary["device"] == device], device)
    ]


def _reports(found: Sequence[Mapping[str, Any]], device: str) -> list[Report]:
    """The reports on some runs. device: where they were, "" if all were on one."""
    points: dict[tuple[str, int, int, int], Samples] = defaultdict(lambda: defaultdict(list))
    scaling: dict[tuple[str, int], Samples] = defaultdict(lambda: defaultdict(list))
    texts = {}
    for summary in found:
        rate = summary["metrics"].get("throughput_mbps") if summary["valid"] else None
        if rate is None:
            continue
        system = summary["system"]
        if match := POINT.fullmatch(summary["workload"]):
            mode, jobs, depth, text = match.groups()
            texts[block_bytes(text)] = text
            points[mode, int(depth), int(jobs), block_bytes(text)][system].append(rate / 1e3)
        elif match := SCALING.fullmatch(summary["workload"]):
            scaling[match[1], int(match[2])][system].append(rate / 1e3)
    systems = ordered({system for samples in (*points.values(), *scaling.values()) for system in samples}, SYSTEMS)
    where, facts = place(found)
    where = f"{DEVICES.get(device, device)}, {where}" if device else where
    emulated = max(lab_words(summary) for summary in found)
    titles = tuple(SYSTEMS.get(system, system) for system in systems)
    made = []
    if points:
        rows = [
            (mode, str(depth), str(jobs), texts[size], *_cells(points[mode, depth, jobs, size], systems))
            for mode, depth, jobs, size in sorted(points)
        ]
        records = [
            (mode, str(depth), str(jobs), str(size), system, str(len(rates)), *interval_fields(interval_of(rates)))
            for (mode, depth, jobs, size), samples in sorted(points.items())
            for system, rates in sorted(samples.items())
        ]
        modes = dict.fromkeys(mode for mode, _, _, _ in sorted(points))
        figures = {f"{SUITE}-{mode}": partial(_draw_points, mode, where, points, systems) for mode in modes}
        made.append(
            Report(
                name=SUITE,
                title=f"Null devices over block size, jobs and depth (BUSE thesis, Figures 5.2 and 5.3), {where}",
                notes=(*facts, *NOTES),
                columns=("Mode", "Depth", "Jobs", "Block", *titles),
                rows=tuple(rows),
                heads=("mode", "depth", "jobs", "block_size", "system", "n", "gbps", "ci_low", "ci_high"),
                records=tuple(records),
                emulated=emulated,
                figures=figures,
            )
        )
    if scaling:
        made.append(_scaling_report(scaling, systems, where, facts, emulated))
    return made


def _cells(samples: Samples, systems: Sequence[str]) -> list[str]:
    return [interval_text(interval_of(samples.get(system, [])), 3) for system in systems]


def _scaling_report(
    scaling: dict[tuple[str, int], Samples],
    systems: Sequence[str],
    where: str,
    facts: Sequence[str],
    emulated: str,
) -> Report:
    """Beside the thesis's numbers."""
    known = published()
    names = list(dict.fromkeys(name for values in known.values() for name in values))
    rows, records = [], []
    for key in sorted({*scaling, *(key for key in known if key[0] in {mode for mode, _ in scaling})}):
        mode, cpus = key
        theirs = [known.get(key, {}).get(name, NO_VALUE) for name in names]
        rows.append((mode, str(cpus), *_cells(scaling.get(key, {}), systems), *theirs))
        for system, rates in sorted(scaling.get(key, {}).items()):
            records.append((mode, str(cpus), system, str(len(rates)), *interval_fields(interval_of(rates))))
    titles = [SYSTEMS.get(system, system) for system in systems]
    return Report(
        name=f"{SUITE}-scaling",
        title=f"Null devices over CPUs, 64 KiB, depth 4, a job per CPU (BUSE thesis, Tables 5.2 to 5.5), {where}",
        notes=(
            *facts,
            *NOTES,
            "Thesis: Amazon EC2 m5zn instances, as printed, with the distances to both ends; its BUSE is a kernel"
            " module of its own, not the BUSE of the BDUS paper.",
        ),
        columns=("Mode", "CPUs", *titles, *(f"thesis {name}" for name in names)),
        rows=tuple(rows),
        heads=("mode", "cpus", "system", "n", "gbps", "ci_low", "ci_high"),
        records=tuple(records),
        emulated=emulated,
        figures={f"{SUITE}-scaling": partial(_draw_scaling, where, scaling, systems)},
    )


def _draw_points(
    mode: str,
    where: str,
    points: dict[tuple[str, int, int, int], Samples],
    systems: Sequence[str],
) -> Any:
    """A row a depth, a column a number of jobs, as the thesis's figures."""
    depths = sorted({depth for m, depth, _, _ in points if m == mode})
    jobs = sorted({count for m, _, count, _ in points if m == mode})
    figure = drawing.new_figure(3.2 * len(jobs) + 1.5, 2.2 * len(depths) + 1)
    axes = figure.subplots(len(depths), len(jobs), sharex=True, sharey=True, squeeze=False)
    for row, depth in enumerate(depths):
        for column, count in enumerate(jobs):
            axis = axes[row, column]
            sizes = sorted(size for m, d, c, size in points if (m, d, c) == (mode, depth, count))
            for system in systems:
                means = [interval_of(points[mode, depth, count, size].get(system, [])) for size in sizes]
                line = [(size, mean.value) for size, mean in zip(sizes, means, strict=True) if mean]
                if line:
                    axis.plot(*zip(*line, strict=True), markersize=3, **_style(system, systems))
            axis.set_xscale("log", base=2)
            axis.set_xticks(sizes, [size_text(size) for size in sizes])
            axis.set_title(f"depth {depth}, jobs {count}", fontsize=9)
    figure.supylabel("GB/s", fontsize=9)
    figure.supxlabel("block size", fontsize=9)
    return _finished(figure, axes.flat, axes[0, -1], f"null devices, {mode}, {where}")


def _draw_scaling(where: str, scaling: dict[tuple[str, int], Samples], systems: Sequence[str]) -> Any:
    """A panel a mode, throughput over CPUs."""
    modes = sorted({mode for mode, _ in scaling})
    figure = drawing.new_figure(4 * len(modes) + 1.5, 3.6)
    axes = figure.subplots(1, len(modes), sharey=True, squeeze=False)[0]
    shown: list[Interval] = []
    for axis, mode in zip(axes, modes, strict=True):
        for system in systems:
            line = [
                (cpus, interval)
                for (m, cpus), samples in sorted(scaling.items())
                if m == mode and (interval := interval_of(samples.get(system, [])))
            ]
            if line:
                axis.errorbar(
                    [cpus for cpus, _ in line],
                    [interval.value for _, interval in line],
                    drawing.half_widths([interval for _, interval in line]),
                    markersize=4, capsize=3, **_style(system, systems),
                )  # fmt: skip
                shown += [interval for _, interval in line]
        axis.set_xticks(sorted({cpus for m, cpus in scaling if m == mode}))
        axis.set_xlabel("CPUs")
        axis.set_title(mode, fontsize=9)
    axes[0].set_ylabel("GB/s")
    title = f"null devices, 64 KiB, depth 4, a job per CPU, {where}{drawing.intervals_text(shown)}"
    return _finished(figure, axes, axes[-1], title)


def _style(system: str, systems: Sequence[str]) -> dict[str, Any]:
    """How a system's line is drawn."""
    own = look(system, systems)
    label = SYSTEMS.get(system, system)
    return {"color": own.colour, "linestyle": own.line, "marker": own.marker, "label": label}


def _finished(figure: Any, axes: Iterable[Any], last: Any, title: str) -> Any:
    """
    The same figure with legend and title. All axes share the y of the last one, whose beginning is set when all has
    been drawn: that fixes its end, too.
    """
    last.set_ylim(bottom=0)
    drawing.legend(axes, last)
    figure.suptitle(title, fontsize=10)
    return figure
